"""from_onnx on models made of the rarer ops: what training keeps of them, and what is refused by node and reason."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from naive import keep_all
from offenders import every
from test_onnx import make, saved_at

from planner.errors import GraphError
from planner.lowering.onnx.importer import from_onnx
from planner.lowering.operators.onnx_rows import ONNX_OPERATORS, REFUSED
from planner.lowering.schema import lower
from planner.simulator import simulate

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper  # noqa: E402

F, I64 = TensorProto.FLOAT, TensorProto.INT64


def weights(name: str, *shape: int) -> Any:
    return helper.make_tensor(name, F, shape, bytes(4 * math.prod(shape)), raw=True)


def ints(name: str, *values: int) -> Any:
    return helper.make_tensor(name, I64, [len(values)], values)


def written(folder: Path, nodes: list[Any], shape: list[int], initializers: list[Any], *, opset: int = 17) -> Path:
    fed, made = [helper.make_tensor_value_info("x", F, shape)], [helper.make_empty_tensor_value_info("y")]
    graph = helper.make_graph(nodes, "g", fed, made, initializer=initializers)
    return saved_at(folder, helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10))


def backward_reads(step: Any, node: str) -> set[tuple[str, tuple[int, ...]]]:
    """What the backward op of a node reads, gradients aside."""
    edges = step.in_edges(f"{node}.bwd", data="reads")
    gradients = (".bwd", ".seed", ".grad")
    return {(source, reads) for source, _, reads in edges if not any(part in source for part in gradients)}


def tensors(shapes: dict[str, tuple[int, ...]]) -> list[Any]:
    return [weights(name, *shape) for name, shape in shapes.items()]


def test_an_lstm_keeps_its_gates_and_cells_and_nothing_of_its_products(tmp_path: Path) -> None:
    """As PyTorch exports it: the lengths are left out, and the last states are not named."""
    nodes = [
        make("LSTM", "x w r b _ h0 c0", "states last", name="lstm", hidden_size=5),
        make("Squeeze", "states one", "y", name="flat"),
    ]
    shapes = {"w": (1, 20, 3), "r": (1, 20, 5), "b": (1, 40), "h0": (1, 2, 5), "c0": (1, 2, 5)}
    path = written(tmp_path, nodes, [7, 2, 3], [*tensors(shapes), ints("one", 1)])
    step = from_onnx(path)
    # Hidden states, last one, last cell, and 7 values a step, image and unit: 4 gates, the cell, tanh of it, the state.
    assert step.nodes["lstm"]["nbytes"] == (4 * 7 * 2 * 5, 4 * 2 * 5, 4 * 2 * 5, 4 * 7 * 2 * 5 * 7)
    assert step.nodes["lstm"]["flops"] == 7 * 2 * 5 * (2 * 4 * (3 + 5) + 14)
    read = {(source, tuple(sorted(reads))) for source, reads in backward_reads(step, "lstm")}
    assert read == {("lstm", (3,)), ("x", (0,)), ("r", (0,)), ("h0", (0,)), ("c0", (0,))}
    program = lower(step)
    simulate(program, keep_all(program))
    assert from_onnx(path, training=False).nodes["lstm"]["nbytes"] == 4 * 7 * 2 * 5


def residents(graph: Any, kind: str) -> dict[str, tuple[int, ...]]:
    return {name: graph.nodes[name]["shape"] for name, found in graph.nodes(data="kind") if found == kind}


@every("training", [True, False])
def test_initial_states_of_a_recurrent_layer_are_no_weights(tmp_path: Path, training: bool) -> None:
    """The standard: W, R, B and peepholes P are weights; initial_h and initial_c begin what runs through the steps."""
    nodes = [make("LSTM", "x w r b lengths h0 c0 p", "_ y", name="lstm", hidden_size=5)]
    shapes = {"w": (1, 20, 3), "r": (1, 20, 5), "b": (1, 40), "h0": (1, 2, 5), "c0": (1, 2, 5), "p": (1, 15)}
    lengths = helper.make_tensor("lengths", TensorProto.INT32, [2], [7, 4])
    nodes[0].output[0] = "all"
    graph = from_onnx(written(tmp_path, nodes, [7, 2, 3], [*tensors(shapes), lengths]), training=training)
    assert residents(graph, "parameter") == {name: shapes[name] for name in "wrbp"}
    assert residents(graph, "state") == {"h0": (1, 2, 5), "c0": (1, 2, 5)}
    updated = {name for name, phase in graph.nodes(data="phase") if phase == "update"} - {"barrier"}
    assert updated == ({f"{name}.update" for name in "wrbp"} if training else set())


def test_an_initial_state_is_none_through_a_view_or_of_a_gru_and_one_that_is_read_elsewhere_is_a_weight(
    tmp_path: Path,
) -> None:
    nodes = [
        make("Unsqueeze", "h axis", "h0", name="up"),
        make("GRU", "x w r b _ h0", "s y", name="gru", hidden_size=4),
    ]
    stored = [weights("w", 1, 12, 3), weights("r", 1, 12, 4), weights("b", 1, 24), weights("h", 2, 4), ints("axis", 0)]
    assert residents(from_onnx(written(tmp_path, nodes, [6, 2, 3], stored)), "state") == {"h": (2, 4)}
    nodes[1].output[1] = "last"
    nodes.append(make("Add", "last h", "y", name="more"))
    assert "h" in residents(from_onnx(written(tmp_path, nodes, [6, 2, 3], stored)), "parameter")


@every("training", [True, False])
def test_an_lstm_may_leave_out_its_bias_before_an_initial_state(tmp_path: Path, training: bool) -> None:
    """7 steps, 2 images, 5 units: with and without the 40 elements of a bias the layer makes and keeps the same."""
    shapes = {"w": (1, 20, 3), "r": (1, 20, 5), "b": (1, 40), "h0": (1, 2, 5)}
    graphs = []
    for bias in ("b", ""):
        nodes = [make("LSTM", ["x", "w", "r", bias, "", "h0"], "y", name="lstm", hidden_size=5)]
        stored = [weights(name, *shape) for name, shape in shapes.items() if name != "b" or bias]
        graphs.append(from_onnx(written(tmp_path, nodes, [7, 2, 3], stored), training=training))
    full, bare = graphs
    assert bare.nodes["lstm"]["nbytes"] == full.nodes["lstm"]["nbytes"]
    assert residents(bare, "parameter") == {"w": (1, 20, 3), "r": (1, 20, 5)}
    assert sum(bare.nodes[name]["nbytes"] for name in residents(bare, "state")) == 4 * 2 * 5
    program = lower(bare)
    simulate(program, keep_all(program))
    if training:
        assert backward_reads(bare, "lstm") == backward_reads(full, "lstm")


PRODUCT = make("MatMul", "x w", "q")
TURNED = [make("RotaryEmbedding", "x c s", "q", num_heads=2), make("MatMul", "q w", "y")]
ENDS = [helper.make_tensor(name, F, [], [value]) for name, value in (("zero", 0), ("three", 3), ("one", 1))]
#: Nodes, the shape of x, stored tensors, and which of them are no weights.
UNTRAINED: list[tuple[list[Any], list[int], list[Any], dict[str, tuple[int, ...]]]] = [
    ([PRODUCT, make("SoftmaxCrossEntropyLoss", "q t c", "y")], [8, 4],
     [weights("w", 4, 10), weights("c", 10), ints("t", *range(8))], {"c": (10,), "t": (8,)}),
    (TURNED, [1, 3, 8], tensors({"w": (8, 8), "c": (1, 3, 2), "s": (1, 3, 2)}), {"c": (1, 3, 2), "s": (1, 3, 2)}),
    ([PRODUCT, make("Attention", "q q q m", "y")], [1, 2, 3, 8], tensors({"w": (8, 8), "m": (3, 3)}), {"m": (3, 3)}),
    ([PRODUCT, make("Range", "zero three one", "r"), make("Add", "q r", "y")], [2, 3], [weights("w", 3, 3), *ENDS],
     {"r": (3,)}),
]  # fmt: skip


def test_what_no_gradient_reaches_is_a_state(tmp_path: Path) -> None:
    """Weights of classes, the tables of a rotation, a mask of the standard's attention, a row that is counted up."""
    for nodes, shape, stored, states in UNTRAINED:
        graph = from_onnx(written(tmp_path, nodes, shape, stored, opset=23))
        assert residents(graph, "state") == states
        assert list(residents(graph, "parameter")) == ["w"]


def test_a_tied_weight_that_is_transposed_in_the_file_is_one_parameter(tmp_path: Path) -> None:
    """Vocabulary 50, width 6: read by the embedding and, as the strides of its transpose, by the logits; one update."""
    nodes = [
        make("Cast", "x", "ids", to=I64, name="ids"),
        make("Gather", "table ids", "e", name="embed"),
        make("Transpose", "table", "turned", name="turn", perm=[1, 0]),
        make("MatMul", "e turned", "y", name="head"),
    ]
    path = written(tmp_path, nodes, [2, 3], [weights("table", 50, 6)])
    step = from_onnx(path)
    assert residents(step, "parameter") == {"table": (50, 6)}
    assert [name for name, op in step.nodes(data="op") if op == "Update"] == ["table.update"]
    assert set(step.predecessors("head.bwd")) == {"loss.bwd", "embed", "table"}
    assert residents(from_onnx(path, training=False), "parameter") == {"table": (50, 6)}


@every(("nodes", "stored", "made"), [
    # Autocast: float32 weights, and in each step a copy in 2 bytes.
    ([make("Cast", "w", "v", to=TensorProto.FLOAT16), make("Cast", "x", "z", to=TensorProto.FLOAT16)], {"w": (4, 5)},
        4 * 5 * 2),
    # A normalized weight: the direction and its length are both trained.
    ([make("Mul", "w g", "v"), make("Identity", "x", "z")], {"w": (4, 5), "g": (1, 5)}, 4 * 5 * 4),
    # Two factors of one product side by side.
    ([make("Concat", "w u", "v", axis=1), make("Identity", "x", "z")], {"w": (4, 5), "u": (4, 2)}, 4 * 7 * 4),
    # The first rows of a longer table of positions, as a view of them: the whole table is trained.
    ([make("Slice", "w zero four", "s"), make("Unsqueeze", "s zero", "v"), make("Identity", "x", "z")],
        {"w": (9, 5)}, 4 * 5 * 4),
])  # fmt: skip
def test_what_is_computed_from_weights_is_computed_in_each_step(
    tmp_path: Path, nodes: list[Any], stored: dict[str, tuple[int, ...]], made: int
) -> None:
    listed = [*nodes, make("MatMul", "z v", "y", name="fc")]
    tensors = [*(weights(name, *shape) for name, shape in stored.items()), ints("zero", 0), ints("four", 4)]
    for training in (True, False):
        graph = from_onnx(written(tmp_path, listed, [3, 4], tensors), training=training)
        assert residents(graph, "parameter") == stored
        assert residents(graph, "state") == {}
        assert graph.nodes[next(node for node in graph if node in ("v", "s"))]["nbytes"] == made
        program = lower(graph)
        simulate(program, keep_all(program))


def test_the_loss_reads_the_outputs_of_the_file_and_no_other_output_of_their_ops(tmp_path: Path) -> None:
    """Three parts of a product, of which only the last is the model's; an LSTM of which only the hidden states are."""
    nodes = [make("MatMul", "x w", "p", name="fc"), make("Split", "p sizes", "a b y", name="split", axis=1)]
    step = from_onnx(written(tmp_path, nodes, [2, 4], [weights("w", 4, 9), ints("sizes", 3, 3, 3)]))
    assert step.edges["split", "loss"]["reads"] == (2,)
    nodes = [make("LSTM", "x w r", "y last", name="lstm", hidden_size=5)]
    step = from_onnx(written(tmp_path, nodes, [7, 2, 3], [weights("w", 1, 20, 3), weights("r", 1, 20, 5)]))
    assert step.edges["lstm", "loss"]["reads"] == (0,)
    assert step.nodes["loss.bwd"]["nbytes"] == 4 * 7 * 2 * 5


@every("training", [True, False])
def test_the_rows_of_a_table_that_a_length_asks_for_are_read_from_the_whole_table(
    tmp_path: Path, training: bool
) -> None:
    """Learned positions as exporters write them: 9 of 4 units are trained, and as many as x is long, 6, are added."""
    nodes = [
        make("Shape", "x", "shape"),
        make("Slice", "shape one two", "length"),
        make("Slice", "table zero length one", "rows", name="rows"),
        make("Add", "x rows", "y", name="add"),
    ]
    stored = [weights("table", 1, 9, 4), ints("zero", 0), ints("one", 1), ints("two", 2)]
    graph = from_onnx(written(tmp_path, nodes, [2, 6, 4], stored), training=training)
    assert residents(graph, "parameter") == {"table": (1, 9, 4)}
    assert (graph.nodes["rows"]["shape"], residents(graph, "state")) == ((1, 6, 4), {})
    if training:
        assert graph.nodes["rows.bwd"]["shape"] == (1, 9, 4)


@every("training", [True, False])
def test_quantized_weights_are_refused_too(tmp_path: Path, training: bool) -> None:
    nodes = [make("DequantizeLinear", "q s", "w", name="dq"), make("MatMul", "x w", "y")]
    stored = [helper.make_tensor("q", TensorProto.INT8, [4, 4], [0] * 16), helper.make_tensor("s", F, [], [0.1])]
    with pytest.raises(GraphError, match=r"no rule for node 'dq' \(DequantizeLinear\): it works on quantized integers"):
        from_onnx(written(tmp_path, nodes, [2, 4], stored), training=training)


def test_a_gru_in_both_directions(tmp_path: Path) -> None:
    both = {"hidden_size": 4, "direction": "bidirectional", "linear_before_reset": 1}
    nodes = [make("GRU", "x w r", "s y", name="gru", **both)]
    step = from_onnx(written(tmp_path, nodes, [6, 2, 3], [weights("w", 2, 12, 3), weights("r", 2, 12, 4)]))
    assert step.nodes["gru"]["nbytes"] == (4 * 6 * 2 * 2 * 4, 4 * 2 * 2 * 4, 4 * 6 * 2 * 2 * 4 * 4)
    assert backward_reads(step, "gru") == {("r", (0,)), ("gru", (0, 2)), ("x", (0,))}


def test_the_greatest_values_are_kept_as_their_places(tmp_path: Path) -> None:
    nodes = [make("Gemm", "x w", "g", name="fc"), make("TopK", "g k", "y places", name="top")]
    step = from_onnx(written(tmp_path, nodes, [2, 8], [weights("w", 8, 16), ints("k", 3)]))
    assert step.nodes["top"]["nbytes"] == (4 * 2 * 3, 8 * 2 * 3)
    assert backward_reads(step, "top") == {("top", (1,))}


def test_the_greater_of_two_needs_both_and_itself(tmp_path: Path) -> None:
    nodes = [
        make("Gemm", "x w", "g", name="fc"),
        make("Relu", "g", "r", name="relu"),
        make("Max", "g r", "m", name="max"),
        make("Exp", "m", "y", name="exp"),
    ]
    step = from_onnx(written(tmp_path, nodes, [2, 8], [weights("w", 8, 16)]))
    assert {source for source, _ in backward_reads(step, "max")} == {"fc", "relu", "max"}
    assert step.nodes["max.bwd"]["nbytes"] == (4 * 2 * 16, 4 * 2 * 16)


def test_the_standards_attention_and_rotation(tmp_path: Path) -> None:
    nodes = [
        make("RotaryEmbedding", "x cos sin", "q", name="turn"),
        make("Mul", "x scale", "v", name="values"),
        make("Attention", "q x v", "y", name="heads"),
    ]
    initializers = [weights("cos", 2, 6, 4), weights("sin", 2, 6, 4), weights("scale", 1)]
    step = from_onnx(written(tmp_path, nodes, [2, 3, 6, 8], initializers, opset=23))
    assert step.nodes["heads"]["workspace"] == 4 * 2 * 3 * 6 * 6
    assert {source for source, _ in backward_reads(step, "heads")} == {"turn", "x"}  # of v: by the scores
    assert "turn.bwd" not in step  # nothing trainable before it; the tables have no gradient
    assert "cos.update" not in step


@every("training", [True, False])
def test_a_random_draw_reads_a_saved_state(tmp_path: Path, training: bool) -> None:
    nodes = [
        make("Gemm", "x w", "g", name="fc"),
        make("RandomNormalLike", "g", "n", name="noise"),
        make("Mul", "g n", "y", name="y"),
    ]
    graph = from_onnx(written(tmp_path, nodes, [2, 8], [weights("w", 8, 16)]), training=training)
    program = lower(graph)
    assert set(graph.predecessors("noise")) == {"noise.rng"}  # of the value it is like, only the shape is used
    assert program.op_named["noise"].recomputable
    assert not program.op_named["noise.rng"].recomputable


def test_gradients_of_all_parts_of_a_split_are_joined_by_its_row(tmp_path: Path) -> None:
    assert ONNX_OPERATORS["Split"].flows is None
    nodes = [
        make("Gemm", "x w", "g", name="fc"),
        make("Split", "g", "a b", axis=1, name="split", num_outputs=2),
        make("Mul", "a b", "y", name="gate"),
    ]
    step = from_onnx(written(tmp_path, nodes, [2, 8], [weights("w", 8, 16)], opset=18))
    assert list(step.predecessors("split.bwd")) == ["gate.bwd"]


REFUSALS = [
    (make("NonZero", "x", "y", name="n"), r"'n' \(NonZero\): the size of its output depends on the values it reads"),
    (make("Unique", "x", "y", name="n"), r"'n' \(Unique\): the size of its output depends"),
    (make("Range", "x x x", "y", name="n"), r"'n' \(Range\): the size of its output depends"),
    (make("SequenceConstruct", "x x", "y", name="n"), r"'n' \(SequenceConstruct\): it makes or reads a sequence"),
    (make("DynamicQuantizeLinear", "x", "y s z", name="n"), r"'n' \(DynamicQuantizeLinear\): it works on quantized"),
    (make("STFT", "x x", "y", name="n"), r"'n' \(STFT\); a graph built by hand can say what"),
    (
        make("ScatterElements", "x i x", "y", name="n", reduction="mul"),
        r"'n' \(ScatterElements\) with reduction='mul'; export it without",
    ),
    (make("RoiAlign", "x x i", "y", name="n", mode="max"), r"'n' \(RoiAlign\) with mode='max'"),
]


@every(("node", "message"), REFUSALS, ids=[node.op_type for node, _ in REFUSALS])
def test_what_has_no_row_is_refused_by_node_and_reason(tmp_path: Path, node: Any, message: str) -> None:
    with pytest.raises(GraphError, match=f"no rule for node {message}") as error:
        from_onnx(written(tmp_path, [node], [2, 3], [ints("i", 0, 1)], opset=18))
    assert "\n" not in str(error.value)


def test_a_loop_is_refused_by_name(tmp_path: Path) -> None:
    body = helper.make_graph(
        [make("Identity", "c", "d")],
        "body",
        [helper.make_tensor_value_info("i", I64, []), helper.make_tensor_value_info("c", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("d", TensorProto.BOOL, [])],
    )
    nodes = [make("Loop", "x", "y", name="loop", body=body)]
    with pytest.raises(
        GraphError, match=r"no rule for node 'loop' \(Loop\): which of its subgraphs runs, and how often"
    ):
        from_onnx(written(tmp_path, nodes, [2, 3], []))


def test_every_op_of_the_real_files_is_a_row_a_constant_or_refused(shared: Path) -> None:
    files = [name for name in json.loads((shared / "data/graphs/manifest.json").read_text()) if name.endswith(".onnx")]
    assert len(files) >= 19
    missing = set()
    for name in files:
        for node in onnx.load(shared / "data/graphs" / name, load_external_data=False).graph.node:
            if node.op_type not in {*ONNX_OPERATORS, *REFUSED, "Constant", "ConstantOfShape"}:
                missing.add((node.domain, node.op_type))
    assert all(domain == "com.microsoft.extensions" for domain, _ in missing), missing


def test_a_padding_that_an_exporter_fills_up_with_zeros_is_folded(tmp_path: Path) -> None:
    """What torch.onnx makes of a reflecting pad of the last axis: two numbers behind zeros for the other axes."""
    nodes = [
        make("ConstantOfShape", "two", "zeros", name="zeros", value=ints("v", 0)),
        make("Concat", "given zeros", "all", axis=0, name="all"),
        make("Reshape", "all pairs", "table", name="table"),
        make("Slice", "table end start zero back", "turned", name="turned"),
        make("Transpose", "turned", "columns", perm=[1, 0], name="columns"),
        make("Reshape", "columns flat", "pads", name="pads"),
        make("Pad", "x pads", "y", mode="reflect", name="pad"),
    ]
    constants = {"two": [2], "given": [1, 2], "pairs": [-1, 2], "end": [-1], "zero": [0], "back": [-1], "flat": [-1]}
    constants["start"] = [-(2**62)]
    path = written(tmp_path, nodes, [2, 6], [ints(name, *values) for name, values in constants.items()])
    graph = from_onnx(path, training=False)
    assert list(graph) == ["x", "pad"]
    assert graph.nodes["pad"]["shape"] == (2, 9)
