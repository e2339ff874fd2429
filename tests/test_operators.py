"""The operator table: what it says a gradient reads is enough to compute it, and its sizes and FLOPs are right."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from naive import keep_all

from planner.errors import GraphError
from planner.lowering.assembly import Assembly
from planner.lowering.devices import device
from planner.lowering.differentiate import differentiate
from planner.lowering.operators import DTYPE_BYTES, OPERATORS, TensorType, attributes, is_float, operator
from planner.lowering.schema import lower
from planner.simulator import simulate

Array = np.ndarray
A100 = device("a100")
RNG = np.random.default_rng(0)
EPSILON = 1e-5


def _positive(*shape: int) -> Array:
    return RNG.uniform(0.5, 2.0, shape)


def _signed(*shape: int) -> Array:
    return _positive(*shape) * RNG.choice([-1.0, 1.0], shape)


def _softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _gelu(x: Array) -> Array:
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def _gelu_slope(x: Array) -> Array:
    return _gelu(x) / x + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def _normalize(x: Array, scale: Array, shift: Array) -> tuple[Array, Array, Array]:
    mean, inverse = x.mean(0), 1 / np.sqrt(x.var(0) + EPSILON)
    return scale * (x - mean) * inverse + shift, mean, inverse


def _normalize_dx(dy: Array, x: Array, scale: Array, mean: Array, inverse: Array) -> Array:
    hat, n = (x - mean) * inverse, len(x)
    return scale * inverse / n * (n * dy - dy.sum(0) - hat * (dy * hat).sum(0))


def _conv(x: Array, w: Array, b: Array) -> Array:
    """1-d convolution, (channels, length) by (out, channels, kernel)."""
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2], axis=1)
    return np.einsum("clk,ock->ol", windows, w) + b[:, None]


def _conv_dx(dy: Array, w: Array) -> Array:
    kernel = w.shape[2]
    padded = np.pad(dy, ((0, 0), (kernel - 1, kernel - 1)))
    return np.einsum("olk,ock->cl", np.lib.stride_tricks.sliding_window_view(padded, kernel, axis=1), w[:, :, ::-1])


def _conv_dw(dy: Array, x: Array) -> Array:
    return np.einsum("clk,ol->ock", np.lib.stride_tricks.sliding_window_view(x, x.shape[1] - dy.shape[1] + 1, axis=1), dy)


def _pool(x: Array) -> tuple[Array, Array]:
    pairs = x.reshape(-1, 2)
    return pairs.max(1), pairs.argmax(1)


def _spread(dy: Array, where: Array) -> Array:
    found = np.zeros((len(dy), 2))
    found[np.arange(len(dy)), where] = dy
    return found.reshape(-1)


def _lrn(x: Array) -> Array:
    return x / np.sqrt(1 + np.cumsum(x * x))


def _lrn_dx(dy: Array, x: Array, y: Array) -> Array:
    # y_i = x_i s_i, s_i = (1 + sum_{j<=i} x_j^2)^(-1/2) = y_i / x_i
    s = y / x
    return dy * s - x * np.cumsum((dy * x * s**3)[::-1])[::-1]


def _cross_entropy(x: Array) -> tuple[Array, Array]:
    logp = np.log(_softmax(x))
    return -logp[np.arange(len(x)), LABELS].mean(), logp


LABELS = np.array([2, 0, 1])
MASK = np.array([True, False, True, True])
Case = tuple[str, list[Array], Callable[..., Any], dict[int, Callable[..., Array]]]

# op, float inputs, forward, and per input: gradient from (dy, *what the table says it reads).
CASES: list[Case] = [
    ("Relu", [_signed(5)], lambda x: np.maximum(x, 0), {0: lambda dy, y: dy * (y > 0)}),
    ("Sigmoid", [_signed(5)], lambda x: 1 / (1 + np.exp(-x)), {0: lambda dy, y: dy * y * (1 - y)}),
    ("Tanh", [_signed(5)], np.tanh, {0: lambda dy, y: dy * (1 - y * y)}),
    ("Exp", [_signed(5)], np.exp, {0: lambda dy, y: dy * y}),
    ("Sqrt", [_positive(5)], np.sqrt, {0: lambda dy, y: dy / (2 * y)}),
    ("Log", [_positive(5)], np.log, {0: lambda dy, x: dy / x}),
    ("Neg", [_signed(5)], np.negative, {0: lambda dy: -dy}),
    ("LeakyRelu", [_signed(5)], lambda x: np.where(x > 0, x, -0.1 * x), {0: lambda dy, x: dy * np.where(x > 0, 1, -0.1)}),
    ("Clip", [_signed(9)], lambda x: np.clip(x, -1, 1), {0: lambda dy, x: dy * (abs(x) < 1)}),
    ("Gelu", [_signed(5)], _gelu, {0: lambda dy, x: dy * _gelu_slope(x)}),
    ("Softmax", [_signed(2, 4)], _softmax, {0: lambda dy, y: y * (dy - (dy * y).sum(-1, keepdims=True))}),
    ("LogSoftmax", [_signed(2, 4)], lambda x: np.log(_softmax(x)), {0: lambda dy, y: dy - np.exp(y) * dy.sum(-1, keepdims=True)}),
    ("Add", [_signed(3, 4), _signed(4)], np.add, {0: lambda dy: dy, 1: lambda dy: dy.sum(0)}),
    ("Sub", [_signed(3, 4), _signed(4)], np.subtract, {0: lambda dy: dy, 1: lambda dy: -dy.sum(0)}),
    ("Sum", [_signed(4), _signed(4), _signed(4)], lambda *x: sum(x), dict.fromkeys(range(3), lambda dy: dy)),
    ("Mul", [_signed(3, 4), _signed(4)], np.multiply, {0: lambda dy, b: dy * b, 1: lambda dy, a: (dy * a).sum(0)}),
    ("Div", [_signed(4), _positive(4)], np.divide, {0: lambda dy, b: dy / b, 1: lambda dy, a, b: -dy * a / b**2}),
    ("MatMul", [_signed(2, 3), _signed(3, 4)], np.matmul, {0: lambda dy, b: dy @ b.T, 1: lambda dy, a: a.T @ dy}),
    (
        "Gemm",
        [_signed(2, 3), _signed(3, 4), _signed(4)],
        lambda a, b, c: a @ b + c,
        {0: lambda dy, b: dy @ b.T, 1: lambda dy, a: a.T @ dy, 2: lambda dy: dy.sum(0)},
    ),
    ("Conv", [_signed(2, 7), _signed(3, 2, 3), _signed(3)], _conv, {0: _conv_dx, 1: _conv_dw, 2: lambda dy: dy.sum(1)}),
    (
        "BatchNormalization",
        [_signed(6, 3), _signed(3), _signed(3)],
        _normalize,
        {0: _normalize_dx, 1: lambda dy, x, mean, inverse: (dy * (x - mean) * inverse).sum(0), 2: lambda dy: dy.sum(0)},
    ),
    ("LRN", [_signed(4)], _lrn, {0: _lrn_dx}),
    ("MaxPool", [_signed(8)], _pool, {0: _spread}),
    ("AveragePool", [_signed(8)], lambda x: x.reshape(-1, 2).mean(1), {0: lambda dy: np.repeat(dy / 2, 2)}),
    ("GlobalAveragePool", [_signed(8)], lambda x: x.mean(keepdims=True), {0: lambda dy: np.repeat(dy / 8, 8)}),
    ("Dropout", [_signed(4)], lambda x: (x * MASK * 2, MASK), {0: lambda dy, mask: dy * mask * 2}),
    ("Concat", [_signed(2), _signed(3)], lambda *x: np.concatenate(x), {0: lambda dy: dy[:2], 1: lambda dy: dy[2:]}),
    ("Transpose", [_signed(2, 3)], np.transpose, {0: np.transpose}),
    ("Reshape", [_signed(2, 3)], np.ravel, {0: lambda dy: dy.reshape(2, 3)}),
    ("ReduceSum", [_signed(4)], lambda x: x.sum(keepdims=True), {0: lambda dy: np.repeat(dy, 4)}),
    ("Pad", [_signed(4)], lambda x: np.pad(x, 1), {0: lambda dy: dy[1:-1]}),
    ("Slice", [_signed(4)], lambda x: x[1:3], {0: lambda dy: np.pad(dy, 1)}),
    (
        "SoftmaxCrossEntropyLoss",
        [_signed(3, 4)],
        _cross_entropy,
        {0: lambda dy, logp, labels: dy * (np.exp(logp) - np.eye(4)[labels]) / len(labels)},
    ),
]


@pytest.mark.parametrize(("op", "inputs", "forward", "gradients"), CASES, ids=[case[0] for case in CASES])
def test_what_the_table_reads_is_enough_for_the_gradient(
    op: str, inputs: list[Array], forward: Callable[..., Any], gradients: Mapping[int, Callable[..., Array]]
) -> None:
    def first(*values: Array) -> Array:
        made = forward(*values)
        return np.asarray(made[0] if isinstance(made, tuple) else made)

    made = forward(*inputs)
    outputs = list(made) if isinstance(made, tuple) else [made]
    row = operator(op, node="n", outputs=len(outputs))
    dy = RNG.normal(size=np.shape(outputs[0]))
    for position, compute in gradients.items():
        rule = row.gradient(position)
        assert rule is not None
        # Labels are the one input here that is no float.
        sources = {"in": [*inputs, LABELS], "out": outputs}
        got = np.asarray(compute(dy, *(sources[side][k] for side, k in rule.reads)))
        expected = np.zeros_like(inputs[position])
        for index in np.ndindex(expected.shape):
            moved = [value.copy() for value in inputs]
            moved[position][index] += 1e-6
            back = [value.copy() for value in inputs]
            back[position][index] -= 1e-6
            expected[index] = (dy * (first(*moved) - first(*back))).sum() / 2e-6
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


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


@pytest.mark.parametrize(
    ("op", "shapes", "output", "params", "flops"),
    [
        # 2 N Cout Ho Wo Cin/g kh kw
        ("Conv", [(2, 64, 56, 56), (128, 64, 3, 3)], (2, 128, 28, 28), {}, 2 * 2 * 128 * 28 * 28 * 64 * 9),
        ("Conv", [(1, 32, 8, 8), (32, 1, 3, 3)], (1, 32, 8, 8), {"group": 32}, 2 * 32 * 64 * 9),
        ("ConvTranspose", [(1, 8, 4, 4), (8, 4, 2, 2)], (1, 4, 8, 8), {}, 2 * 8 * 16 * 4 * 4),
        ("Gemm", [(5, 7), (11, 7)], (5, 11), {"transB": 1}, 2 * 5 * 7 * 11),
        ("Gemm", [(7, 5), (7, 11)], (5, 11), {"transA": 1}, 2 * 5 * 7 * 11),
        ("MatMul", [(3, 5, 7), (3, 7, 11)], (3, 5, 11), {}, 2 * 3 * 5 * 7 * 11),
        ("Reshape", [(6, 4)], (24,), {}, 0),
    ],
)
def test_flops_count_a_multiply_and_an_add_each(
    op: str, shapes: list[tuple[int, ...]], output: tuple[int, ...], params: dict[str, Any], flops: int
) -> None:
    found = attributes(
        op, node="n", inputs=[TensorType(shape) for shape in shapes], outputs=[TensorType(output)], device=A100, params=params
    )
    assert found["flops"] == flops


def test_sizes_are_exact_in_every_dtype() -> None:
    assert {name: DTYPE_BYTES[name] for name in ("float32", "float16", "bfloat16", "int64", "bool", "float64", "uint8")} == {
        "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "bool": 1, "float64": 8, "uint8": 1,
    }  # fmt: skip
    assert TensorType((), "int64").nbytes == 8
    assert TensorType((3, 0, 5)).nbytes == 0
    with pytest.raises(GraphError, match=r"'float33'.*float32"):
        TensorType((1,), "float33").nbytes  # noqa: B018


def test_only_floats_and_values_of_unknown_dtype_have_gradients() -> None:
    assert [is_float(dtype) for dtype in ("float16", "bfloat16", None, "int64", "bool", "uint8")] == [True, True, True, False, False, False]


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


@pytest.mark.parametrize(
    ("returned", "legal"), [(True, {("r1", "n1:0"), ("r2", "s")}), (False, {("r1", "n1:0"), ("r2", "s"), ("s", "c2")})]
)
def test_case_c8_only_relu_over_batch_norm_and_over_the_sum_is_in_place(returned: bool, legal: set[tuple[str, str]]) -> None:
    """cases.md C8: the table's permissions and what its backward reads leave exactly these pairs to the memory model."""
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
