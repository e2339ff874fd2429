"""What a file settles itself: sizes behind arithmetic on shapes, branches with known conditions, split sequences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from offenders import every
from test_onnx import make, manifest, model, saved_at, weights
from test_onnx_wild import ints

from planner.errors import GraphError
from planner.lowering.onnx.importer import from_onnx

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper  # noqa: E402


def newer(made: Any) -> Any:
    made.opset_import[0].version = 18
    return made


def number(name: str, value: int) -> Any:
    return helper.make_tensor(name, TensorProto.INT64, [], [value])


def branches(condition: str, *before: Any, stored: tuple[Any, ...] = ()) -> Any:
    """x [2, 1, 3] times a matrix of the branch: squeezed before where the condition holds, as it is elsewhere."""

    def branch(name: str, nodes: list[Any], held: list[Any]) -> Any:
        return helper.make_graph(nodes, name, [], [helper.make_empty_tensor_value_info("out")], initializer=held)

    taken = [make("Squeeze", "x one", "s", name="squeeze"), make("MatMul", "s own", "out", name="small")]
    other = [make("MatMul", "x own", "out", name="large")]
    choice = helper.make_node("If", [condition], ["h"], name="choice",
        then_branch=branch("then", taken, [weights("own", 3, 4)]),
        else_branch=branch("else", other, [weights("own", 3, 5)]))  # fmt: skip
    nodes = [*before, choice, make("Relu", "h", "y", name="relu")]
    return newer(model(nodes, shape=[2, 1, 3], initializers=[ints("one", 1), *stored]))


def flag(name: str, *, value: bool) -> Any:
    return helper.make_tensor(name, TensorProto.BOOL, [], [value])


SHAPED = [make("Shape", "x", "s"), make("Gather", "s one", "d"), make("Equal", "d wanted", "is_one")]


@every(("made", "ops", "shape", "params"), [
    (branches("yes", stored=(flag("yes", value=True),)), ["Squeeze", "MatMul", "Identity", "Relu"], (2, 4), 12),
    (branches("no", stored=(flag("no", value=False),)), ["MatMul", "Identity", "Relu"], (2, 1, 5), 15),
    # the shape of x decides: dimension 1 is 1, and not 7
    (branches("is_one", *SHAPED, stored=(ints("wanted", 1),)), ["Squeeze", "MatMul", "Identity", "Relu"], (2, 4), 12),
    (branches("is_one", *SHAPED, stored=(ints("wanted", 7),)), ["MatMul", "Identity", "Relu"], (2, 1, 5), 15),
])  # fmt: skip
def test_the_branch_that_the_file_or_the_shapes_choose_is_the_graph(
    tmp_path: Path, made: Any, ops: list[str], shape: tuple[int, ...], params: int
) -> None:
    graph = from_onnx(saved_at(tmp_path, made), training="forward")
    assert [op for _, op in graph.nodes(data="op") if op] == ops
    assert graph.nodes["relu"]["shape"] == shape
    assert graph.graph["source"]["params"] == params  # the matrix of the branch alone


def test_a_real_file_of_nested_branches_loads_where_its_shapes_choose(shared: Path) -> None:
    """All its floats are weights, among them the basis of a transform, which nothing in the file tells from one."""
    path = shared / "data" / "graphs" / "onnx_wild" / "silero_vad_16k_op15.onnx"
    graph = from_onnx(path, dims={"batch": 1, "sequence": 576})
    assert graph.graph["source"]["params"] == manifest(shared)["onnx_wild/silero_vad_16k_op15.onnx"]["init_elems"]


def test_a_branch_that_the_input_chooses_is_refused_with_the_way_out(tmp_path: Path) -> None:
    before = [make("ReduceSum", "x", "sum", keepdims=0), make("Greater", "sum zero", "is_large")]
    zero = helper.make_tensor("zero", TensorProto.FLOAT, [], [0.0])
    with pytest.raises(
        GraphError, match=r"node 'choice' \(If\): which of its subgraphs runs.* run a simplifier such as"
    ):
        from_onnx(saved_at(tmp_path, branches("is_large", *before, stored=(zero,))))


SPLIT = [make("MatMul", "x w", "h"), make("SplitToSequence", "h sizes", "parts", axis=1, name="split")]


@every(("sizes", "at", "shapes"), [
    (ints("sizes", 2, 4), (0, 1), [(2, 2), (2, 4)]), (ints("sizes", 2, 4), (-1, 0), [(2, 4), (2, 2)]),
    (number("sizes", 3), (0, 1), [(2, 3), (2, 3)]),  # a lone number is the size of each part
])  # fmt: skip
def test_a_sequence_split_and_read_by_numbers_of_the_file_is_a_split(
    tmp_path: Path, sizes: Any, at: tuple[int, int], shapes: list[tuple[int, int]]
) -> None:
    reads = [make("SequenceAt", f"parts at{k}", f"p{k}", name=f"read{k}") for k in range(2)]
    relus = [make("Relu", f"p{k}", f"y{k}", name=f"relu{k}") for k in range(2)]
    stored = [weights("w", 3, 6), sizes, *(number(f"at{k}", place) for k, place in enumerate(at))]
    made = newer(model([*SPLIT, *reads, *relus], initializers=stored, outputs=("y0", "y1")))
    step = from_onnx(saved_at(tmp_path, made))
    assert [step.nodes[f"relu{k}"]["shape"] for k in range(2)] == shapes
    assert step.nodes["split.bwd"]["nbytes"] == 4 * 2 * 6  # the gradients of the parts, joined


@every(("nodes", "stored"), [
    ([make("Greater", "x x", "g"), make("Cast", "g", "c", to=TensorProto.INT64),
      make("ReduceMax", "c", "n", keepdims=0),
      make("SequenceAt", "parts n", "y")], [ints("sizes", 2, 4)]),  # which part is read depends on what is fed
    ([make("SequenceAt", "parts at", "y")], [ints("sizes", 2, 4), number("at", 2)]),  # there are two
])  # fmt: skip
def test_other_sequences_are_refused(tmp_path: Path, nodes: list[Any], stored: list[Any]) -> None:
    made = newer(model([*SPLIT, *nodes], initializers=[weights("w", 3, 6), *stored]))
    with pytest.raises(GraphError, match=r"no rule for node 'split' \(SplitToSequence\): it makes or reads a sequence"):
        from_onnx(saved_at(tmp_path, made))


ROWS = helper.make_tensor("", TensorProto.INT64, [2, 1], [0, 2])


@every(("nodes", "shape"), [
    # the zero bias of a convolution, as PyTorch's exporter makes it: as long as the weight has rows, cast like x
    ([make("Shape", "w", "rows", start=0, end=1), make("Constant", "", "n", value_ints=[1]),
      make("Expand", "rows n", "size"), make("Constant", "", "zero", value_float=0.0), make("CastLike", "zero x", "z"),
      make("Expand", "z size", "bias"), make("Conv", "x w bias", "y", name="last")], (2, 5, 4)),
    # axes that a Range counts
    ([make("Constant", "", "one", value_int=1), make("Constant", "", "end", value_int=3),
      make("Range", "one end one", "axes"), make("ReduceMax", "w axes", "m", keepdims=0),
      make("Unsqueeze", "m axes", "u"), make("Conv", "x w", "c"),
      make("ReduceMax", "u none", "k", keepdims=0), make("Mul", "c k", "y", name="last")],
     (2, 5, 4)),
    # rows that a GatherND picks from positions
    ([make("Shape", "x", "s"), make("Constant", "", "at", value=ROWS),
      make("GatherND", "s at", "target"), make("ReduceSum", "x two", "r", keepdims=0),
      make("Expand", "r target", "y", name="last")], (2, 4)),
])  # fmt: skip
def test_sizes_behind_arithmetic_on_shapes_are_found(tmp_path: Path, nodes: list[Any], shape: tuple[int, ...]) -> None:
    stored = [weights("w", 5, 3, 1), ints("two", 1), ints("none", 0, 1, 2)]
    made = newer(model(nodes, shape=[2, 3, 4], initializers=stored))
    graph = from_onnx(saved_at(tmp_path, made), training=False)
    assert graph.nodes["last"]["shape"] == shape
