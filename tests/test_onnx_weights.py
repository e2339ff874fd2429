"""Which stored tensors are weights: one small file for each line of the rule, and the overrides of the caller."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from conftest import Answer
from offenders import every
from test_onnx import make, model, saved_at, weights
from test_onnx_wild import external, ints

import planner
from planner.lowering.onnx.importer import from_onnx
from planner.training_step import TrainingStep

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper  # noqa: E402

SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
FOLDED_FROM = "pkg.onnxscript.optimizer.folded_from"
RULE_NAME = "pkg.onnxscript.rewriter.rule_name"


def told(item: Any, **entries: str) -> Any:
    """A node or a graph with entries of metadata."""
    for key, value in entries.items():
        item.metadata_props.add(key=key, value=value)
    return item


def numbers(name: str, *values: float, shape: tuple[int, ...] | None = None) -> Any:
    return helper.make_tensor(name, TensorProto.FLOAT, shape or (len(values),), values)


def constant(name: str, *values: float, shape: tuple[int, ...] | None = None) -> Any:
    return make("Constant", "", name, value=numbers(f"{name}.value", *values, shape=shape))


def exported(
    nodes: list[Any],
    stored: list[Any],
    *,
    producer: str = "",
    signed: dict[str, str] | None = None,
    values: dict[str, dict[str, str]] | None = None,
    shape: list[Any] | None = None,
) -> Any:
    """A file as an exporter leaves it.

    Args:
        signed: kinds by name, in the signature of the graph.
        values: metadata of values, by name.
    """
    made = model(nodes, shape=shape or [2, 3], initializers=stored)
    made.producer_name = producer
    made.opset_import[0].version = 17
    lines = (f"p_{name}: {kind} target='{name}'" for name, kind in (signed or {}).items())
    if signed:
        told(made.graph, **{SIGNATURE: "\n# inputs\n" + "\n".join(lines)})
    for name, entries in (values or {}).items():
        made.graph.value_info.append(told(helper.make_empty_tensor_value_info(name), **entries))
    return made


def trained(path: Path, **options: Any) -> dict[str, int]:
    """Names and elements of the weights."""
    graph = from_onnx(path, training="forward", **options)
    kinds = graph.nodes(data="kind")
    return {name: math.prod(graph.nodes[name]["shape"]) for name, kind in kinds if kind == "parameter"}


FC = make("MatMul", "x fc.weight", "h", name="fc")
FC_WEIGHT = weights("fc.weight", 3, 4)


@every(("nodes", "stored", "said", "expected"), [
    # 2: the value's own kind, else the signature; a buffer as matrix is none, a parameter of one number is one
    ([make("MatMul", "x a", "h"), make("MatMul", "h b", "g"), make("Mul", "g c", "y")],
     [weights("a", 3, 4), weights("b", 4, 4), numbers("c", 3.0, shape=())],
     {"signed": {"a": "PARAMETER", "b": "BUFFER", "c": "PARAMETER"}}, {"a": 12, "c": 1}),
    ([make("MatMul", "x a", "h"), make("MatMul", "h b", "y")], [weights("a", 3, 4), weights("b", 4, 4)],
     {"signed": {"gone": "PARAMETER"},
      "values": {"a": {KIND: "PARAMETER"}, "b": {KIND: "CONSTANT_TENSOR"}}}, {"a": 12}),
    # 3: folded from one parameter, which names it; from two; from none but a buffer
    ([make("MatMul", "x val_1", "h"), make("Add", "h val_2", "g"), make("Mul", "g val_3", "y")],
     [weights("val_1", 3, 4), weights("val_2", 4), numbers("val_3", 1.0, 2.0, 3.0, 4.0)],
     {"signed": {"fc.weight": "PARAMETER", "b_ih": "PARAMETER", "b_hh": "PARAMETER", "table": "BUFFER"},
      "values": {"val_1": {FOLDED_FROM: "['fc.weight', 't']"}, "val_2": {FOLDED_FROM: "['b_ih', 'b_hh']"},
                 "val_3": {FOLDED_FROM: "['table', 'cos']"}}}, {"fc.weight": 12, "val_2": 4}),
    # 3: zeros made of the shape of a stored parameter, and that parameter again, transposed
    ([make("MatMul", "x e", "h"), make("Add", "h zeros", "g"), make("MatMul", "g val_1", "y")],
     [weights("e", 3, 4), weights("zeros", 4), weights("val_1", 4, 3)],
     {"signed": {"e": "PARAMETER"}, "values": {"zeros": {FOLDED_FROM: "['e', 'val_0', 'zeros']"},
                                               "val_1": {FOLDED_FROM: "['e', 'permute']"}}}, {"e": 12}),
    # 4 and 5: the weight and bias that a batch normalization was folded into have no kind, nor has a number
    ([told(make("Gemm", "x w w_bias", "h"), **{RULE_NAME: "FuseBatchNormIntoGemm"}), make("Div", "h val_9", "y")],
     [weights("w", 3, 4), weights("w_bias", 4), numbers("val_9", 0.3)], {"signed": {"bn.weight": "PARAMETER"}},
     {"w": 12, "w_bias": 4}),
    # 6: paths, one number among them, are weights; numbers and masks of the exporter are not; renamed matrices are
    ([make("MatMul", "x onnx::MatMul_7", "h"), make("Mul", "h scale", "g"), make("Add", "g /Constant_output_0", "k"),
      make("Mul", "k onnx::Mul_8", "y")],
     [weights("onnx::MatMul_7", 3, 4), numbers("scale", 0.7), numbers("onnx::Mul_8", 0.125)],
     {"producer": "pytorch", "constants": [constant("/Constant_output_0", 1.0, 2.0, 3.0, 4.0)]},
     {"onnx__MatMul_7": 12, "scale": 1}),
    ([make("MatMul", "x temperature", "h"), make("Mul", "h logit_scale", "y")],
     [weights("temperature", 3, 4), numbers("logit_scale", 0.7, shape=())], {"producer": "pytorch"},
     {"temperature": 12, "logit_scale": 1}),
    # 6: in a frozen module no float has a path, and nodes hold the weights; equal elements are none
    ([make("MatMul", "x 12", "h"), make("Add", "h 13", "y")], [],
     {"producer": "pytorch",
      "constants": [constant("12", *range(12), shape=(3, 4)), constant("13", 2.0, 2.0, 2.0, 2.0)]}, {"12": 12}),
    # 7: one element that scales: an exporter's own name or a whole number says no, nothing else does
    ([make("MatMul", "x w", "h"), make("Add", "h p2o.helper.constant.3", "g"), make("Div", "g six", "k"),
      make("Mul", "k lab_scale", "l"), make("Add", "l lab_bias", "y")],
     [weights("w", 3, 4), numbers("p2o.helper.constant.3", 0.258), numbers("six", 6.0), numbers("lab_scale", 1.37),
      numbers("lab_bias", -0.2)], {"producer": "paddle"}, {"w": 12, "lab_scale": 1, "lab_bias": 1}),
    # 7: a bias of one element that is added is kept
    ([make("MatMul", "x w", "h"), make("Add", "h dense/BiasAdd", "y")],
     [weights("w", 3, 1), numbers("dense/BiasAdd", 0.01)], {"producer": "tf2onnx"}, {"w": 3, "dense/BiasAdd": 1}),
    # 7: a fill of fixed size is a weight without its values, one that an input sizes is not
    ([make("ConstantOfShape", "size", "w"), make("MatMul", "x w", "h"), make("Shape", "h", "s"),
      make("ConstantOfShape", "s", "ones"), make("Mul", "h ones", "y")], [ints("size", 3, 4)], {}, {"w": 12}),
    # 8: mean and deviation of an input; a table that meets positions; a mask before a softmax
    ([make("Sub", "x mean", "c"), make("Div", "c std", "n"), make("MatMul", "n w", "y")],
     [numbers("mean", 0.4, 0.5, 0.6), numbers("std", 0.2, 0.3, 0.2), weights("w", 3, 4)], {}, {"w": 12}),
    ([make("MatMul", "x w", "h"), make("Shape", "x", "s"), make("Cast", "s", "at", to=TensorProto.FLOAT),
      make("Mul", "at freq", "angle"), make("Add", "h angle", "y")],
     [weights("w", 3, 2), numbers("freq", 1.0, 0.1)], {}, {"w": 6}),
    ([make("MatMul", "x w", "h"), make("Add", "h mask", "m"), make("Softmax", "m", "y")],
     [weights("w", 3, 3), numbers("mask", *[0.0, -1e4, -1e4, 0.0, 0.0, -1e4], shape=(2, 3))], {}, {"w": 9}),
    # 9: a bias of other values before a softmax is learned, and so is what scales an input if nothing else is
    ([make("MatMul", "x w", "h"), make("Add", "h bias", "m"), make("Softmax", "m", "y")],
     [weights("w", 3, 3), numbers("bias", 0.1, -0.2, 0.3)], {}, {"w": 9, "bias": 3}),
    ([make("Mul", "x w", "y")], [weights("w", 3)], {}, {"w": 3}),
])  # fmt: skip
def test_each_line_of_the_rule_tells_weights_from_the_rest(
    tmp_path: Path, nodes: list[Any], stored: list[Any], said: dict[str, Any], expected: dict[str, int]
) -> None:
    given = {**said}
    listed = [*given.pop("constants", []), *nodes]
    assert trained(saved_at(tmp_path, exported(listed, stored, **given))) == expected


def test_a_tied_matrix_that_torchscript_stores_twice_is_one_weight_and_equal_shapes_are_not_enough(
    tmp_path: Path,
) -> None:
    """w [3, 4] is read as it is, and again transposed under the exporter's own name; the third has other values."""
    table = numbers("wte", *range(12), shape=(3, 4))
    again = numbers(
        "onnx::MatMul_9", *[float(row * 4 + column) for column in range(4) for row in range(3)], shape=(4, 3)
    )
    other = numbers("onnx::MatMul_10", *[float(k) for k in range(12)], shape=(4, 3))
    nodes = [
        make("MatMul", "x wte", "h"),
        make("MatMul", "h onnx::MatMul_9", "g"),
        make("MatMul", "h onnx::MatMul_10", "k"),
    ]
    made = exported([*nodes, make("Add", "g k", "y")], [table, again, other], producer="pytorch")
    assert trained(saved_at(tmp_path, made)) == {"wte": 12, "onnx__MatMul_10": 12}


def test_a_large_external_mask_is_read_where_its_bytes_are_there(tmp_path: Path) -> None:
    mask = external("mask", TensorProto.FLOAT, [40, 40], "mask.bin", 6400)
    nodes = [make("MatMul", "x w", "h"), make("Add", "h mask", "m"), make("Softmax", "m", "y")]
    path = saved_at(tmp_path, exported(nodes, [weights("w", 3, 40), mask], shape=[40, 3]))
    (tmp_path / "mask.bin").write_bytes(bytes(4 * 1600))  # zeros: nothing is hidden
    assert trained(path) == {"w": 120}
    (tmp_path / "mask.bin").write_bytes(b"")
    assert trained(path) == {"w": 120, "mask": 1600}  # without its values it can be a learned bias


def buffered() -> Any:
    """(x w + pe) basis, where the file says that `pe` is trained, and `basis` is not."""
    nodes = [make("MatMul", "x w", "h"), make("Add", "h pe", "g"), make("MatMul", "g basis", "y")]
    stored = [weights("w", 3, 4), numbers("pe", 0.1, 0.2, 0.3, 0.4), weights("basis", 4, 2)]
    signed = {"w": "PARAMETER", "pe": "PARAMETER", "basis": "BUFFER"}
    return exported(nodes, stored, signed=signed)


def updated(path: Path, *patterns: str) -> set[str]:
    """What a step with these patterns updates."""
    graph = from_onnx(path, step=TrainingStep(trainable=patterns))
    return {str(node).removesuffix(".update") for node, phase in graph.nodes(data="phase") if phase == "update"} - {
        "barrier"
    }


def test_the_caller_decides_where_a_file_cannot(tmp_path: Path) -> None:
    path = saved_at(tmp_path, buffered())
    assert updated(path) == {"w", "pe"}
    assert updated(path, "!pe") == {"w"}
    assert updated(path, "*", "basis") == {"w", "pe", "basis"}
    assert updated(path, "basis") == {"basis"}


def test_verbs_that_open_a_file_train_what_the_step_spells_out(tmp_path: Path) -> None:
    """w has 3 * 4 floats, pe 4 and basis 4 * 2, which the file calls a buffer; frozen weights have no gradient."""
    path = saved_at(tmp_path, buffered())
    for patterns, floats in (((), 16), (("*", "basis"), 24), (("basis",), 8), (("!pe",), 12)):
        step = TrainingStep(trainable=patterns)
        plan = planner.optimize(path, step=step, effort=0.1)
        updates = [op for op in plan.graph.ops if op.phase == "update" and op.name != "barrier"]
        read = {name for op in updates for name in op.reads if plan.graph.producer[name].kind == "parameter"}
        assert sum(plan.graph.tensors[name].nbytes for name in read) == 4 * floats, patterns
        assert planner.estimate(path, step=step).by_dtype["gradients"] == {"float32": 4 * floats}, patterns


def test_inspect_says_by_which_line_each_stored_tensor_is_a_weight_or_not(run: Any, tmp_path: Path) -> None:
    path = saved_at(tmp_path, buffered())
    shown: Answer = run("inspect", path)
    assert shown.code == 0, shown.err
    assert "    2 weight  2: PARAMETER in the signature of the exporter: w, pe\n" in shown.out
    assert "    1 not     2: BUFFER in the signature of the exporter: basis\n" in shown.out
    shown = run("inspect", path, "--train", "*", "--train", "basis")
    assert "    1 weight  named by trainable=: basis\n" in shown.out


def test_a_metadata_entry_that_is_no_list_is_read_as_none(tmp_path: Path) -> None:
    nodes = [make("MatMul", "x w", "h"), make("Mul", "h v", "y")]
    said = {"signed": {"w": "PARAMETER"}, "values": {"v": {FOLDED_FROM: "[" * 300}}}
    assert trained(saved_at(tmp_path, exported(nodes, [weights("w", 3, 4), weights("v", 4)], **said))) == {"w": 12}
