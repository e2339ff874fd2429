"""The operator table: forms, refusals, sizes, FLOPs, in-place; row by row in `test_onnx_operators`, `test_aten`."""

from __future__ import annotations

from typing import Any

import pytest
from naive import keep_all
from offenders import every

from planner.errors import GraphError
from planner.lowering.assembly import Assembly
from planner.lowering.devices import device
from planner.lowering.differentiate import differentiate
from planner.lowering.operators.lookup import DTYPE_BYTES, OPERATORS, TensorType, attributes, is_float, operator
from planner.lowering.schema import lower
from planner.simulator import simulate

A100 = device("a100")


def test_inference_forms_read_what_they_need() -> None:
    # y = scale (x - mean) / sqrt(var): nothing is saved for the shift.
    row = operator("BatchNormalization", node="n", outputs=1)
    reads = [gradient.reads if gradient else None for gradient in row.gradients]
    assert reads == [(("in", 1), ("in", 4)), (("in", 0), ("in", 3), ("in", 4)), ()]
    assert operator("Dropout", node="n", outputs=1).view
    assert operator("MaxPool", node="n", outputs=1).gradients[0].reads == (("in", 0), ("out", 0))  # type: ignore[union-attr]


def test_labels_running_statistics_and_generator_states_have_no_gradient() -> None:
    assert operator("SoftmaxCrossEntropyLoss", node="n", outputs=2).gradient(1) is None
    assert operator("BatchNormalization", node="n", outputs=1).gradient(3) is None
    assert operator("Dropout", node="n", outputs=2).gradient(1) is None
    assert operator("UpdateStatistics", node="n", outputs=2).gradient(2) is None


def test_every_rule_refers_to_outputs_that_the_op_has() -> None:
    for name, row in OPERATORS.items():
        for form in (row, row.fewer):
            for gradient in form.gradients if form is not None else ():
                for side, k in gradient.reads if gradient is not None else ():
                    assert side == "in" or k < form.outputs, name  # type: ignore[union-attr]


def test_an_op_without_a_rule_is_an_error_that_names_it() -> None:
    with pytest.raises(GraphError, match=r"'layer7'.*'Magic'.*saves="):
        operator("Magic", node="layer7")
    with pytest.raises(GraphError, match=r"'r'.*'Relu'.*at most 1"):
        operator("Relu", node="r", outputs=2)


@every(("op", "shapes", "output", "params", "flops"), [
    # 2 N Cout Ho Wo Cin/g kh kw
    ("Conv", [(2, 64, 56, 56), (128, 64, 3, 3)], (2, 128, 28, 28), {}, 2 * 2 * 128 * 28 * 28 * 64 * 9),
    ("Conv", [(1, 32, 8, 8), (32, 1, 3, 3)], (1, 32, 8, 8), {"group": 32}, 2 * 32 * 64 * 9),
    ("ConvTranspose", [(1, 8, 4, 4), (8, 4, 2, 2)], (1, 4, 8, 8), {}, 2 * 8 * 16 * 4 * 4),
    ("Gemm", [(5, 7), (11, 7)], (5, 11), {"transB": 1}, 2 * 5 * 7 * 11),
    ("Gemm", [(7, 5), (7, 11)], (5, 11), {"transA": 1}, 2 * 5 * 7 * 11),
    ("MatMul", [(3, 5, 7), (3, 7, 11)], (3, 5, 11), {}, 2 * 3 * 5 * 7 * 11), ("Reshape", [(6, 4)], (24,), {}, 0),
])  # fmt: skip
def test_flops_count_a_multiply_and_an_add_each(
    op: str, shapes: list[tuple[int, ...]], output: tuple[int, ...], params: dict[str, Any], flops: int
) -> None:
    inputs, outputs = [TensorType(shape) for shape in shapes], [TensorType(output)]
    found = attributes(op, node="n", inputs=inputs, outputs=outputs, device=A100, params=params)
    assert found["flops"] == flops


def test_sizes_are_exact_in_every_dtype() -> None:
    sizes = {"float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "bool": 1, "float64": 8, "uint8": 1}
    assert {name: DTYPE_BYTES[name] for name in sizes} == sizes
    assert TensorType((), "int64").nbytes == 8
    assert TensorType((3, 0, 5)).nbytes == 0
    with pytest.raises(GraphError, match=r"'float33'.*float32"):
        TensorType((1,), "float33").nbytes  # noqa: B018


def test_only_floats_and_values_of_unknown_dtype_have_gradients() -> None:
    assert all(is_float(dtype) for dtype in ("float16", "bfloat16", None))
    assert not any(is_float(dtype) for dtype in ("int64", "bool", "uint8"))


def test_a_view_moves_no_bytes_and_costs_nothing() -> None:
    found = attributes("Flatten", node="n", inputs=[TensorType((8, 2, 2))], outputs=[TensorType((8, 4))], device=A100)
    assert (found["view"], found["cost"], found["flops"]) == (((0, 0),), 0.0, 0)
    assert "inplace" not in found


def test_an_elementwise_op_costs_its_traffic() -> None:
    # Reads and writes 4 MB each at 2,039 GB/s.
    x = TensorType((1_000_000,))
    assert attributes("Relu", node="n", inputs=[x], outputs=[x], device=A100)["cost"] == pytest.approx(8e6 / 2.039e12)


def test_in_place_is_offered_only_between_equal_types() -> None:
    big, small, half = TensorType((4, 4)), TensorType((4,)), TensorType((4, 4), "float16")

    def pairs(op: str, *inputs: TensorType) -> Any:
        return attributes(op, node="n", inputs=inputs, outputs=[big], device=A100).get("inplace", ())

    assert pairs("Add", big, big) == ((0, 0), (1, 0))
    assert pairs("Add", big, small) == ((0, 0),)
    assert pairs("Add", half, big) == ((1, 0),)
    assert pairs("Sum", big, big, big) == ((0, 0), (1, 0), (2, 0))
    assert pairs("MatMul", big, big) == ()
    assert pairs("Softmax", big) == ()


@every(
    ("returned", "legal"), [(True, {("r1", "n1:0"), ("r2", "s")}), (False, {("r1", "n1:0"), ("r2", "s"), ("s", "c2")})]
)
def test_case_c8_only_relu_over_batch_norm_and_over_the_sum_is_in_place(
    returned: bool, legal: set[tuple[str, str]]
) -> None:
    """cases.md C8: permissions of the table and reads of its backward leave these pairs to the memory model."""
    kind = TensorType((1, 2, 1024, 1024))  # 8 MiB
    draft = Assembly(device="a100")
    x = draft.resident("x", kind, kind="parameter")
    w1, w2 = (draft.resident(name, TensorType((2, 2, 1, 1)), kind="parameter") for name in ("w1", "w2"))
    scale, shift = (draft.resident(name, TensorType((2,)), kind="parameter") for name in ("scale", "shift"))
    mean, var = (draft.resident(name, TensorType((2,)), kind="state") for name in ("mean", "var"))
    c1 = draft.apply("c1", "Conv", [x, w1], [kind])
    n1 = draft.batch_norm("n1", c1, scale, shift, (mean, var))
    r1 = draft.apply("r1", "Relu", [n1], [kind])
    c2 = draft.apply("c2", "Conv", [r1, w2], [kind], **({"output": True} if returned else {}))
    s = draft.apply("s", "Add", [c2, r1], [kind])
    r2 = draft.apply("r2", "Relu", [s], [kind])
    draft.apply("y", "Gelu", [r2], [kind], output=True)
    program = lower(differentiate(draft.graph))
    taken = simulate(program, keep_all(program)).inplace_taken
    forward = {(made, over) for _, made, over in taken if program.producer[made].phase == "forward"}
    assert forward == legal
