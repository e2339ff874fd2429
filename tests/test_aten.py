"""PyTorch's rows against what torch 2.13.0 says of each op: `bench/aten_facts.py` wrote `golden/aten.json`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from naive import keep_all
from offenders import every

from planner.errors import GraphError
from planner.lowering.assembly import Assembly
from planner.lowering.devices import device
from planner.lowering.differentiate import differentiate
from planner.lowering.operators.aten_rows import ATEN_OPERATORS, ATEN_REFUSED
from planner.lowering.operators.lookup import TensorType, attributes, find_row, operator, refusal, sizes_of
from planner.lowering.operators.onnx_rows import ONNX_OPERATORS
from planner.lowering.operators.rows import Operator
from planner.lowering.schema import lower
from planner.simulator import simulate

FILE = json.loads((Path(__file__).parent / "golden" / "aten.json").read_text())
FACTS: list[dict[str, Any]] = [fact for fact in FILE[1:] if "node" not in fact]
NODES: list[dict[str, Any]] = [fact for fact in FILE[1:] if "node" in fact]
MEASURED = [fact for fact in FACTS if "abstract" not in fact]
A100 = device("a100")

#: Rows that cannot say their sizes: strides, another dtype, a library's own buffer, a size of the device.
UNSIZED = {
    "aten.diagonal", "aten.view_as_complex", "aten.view_as_real", "aten.view.dtype", "aten.cudnn_batch_norm",
    "aten.mkldnn_rnn_layer", "aten._native_batch_norm_legit_no_training",
}  # fmt: skip
#: What autograd keeps though the gradient does not need it: torch, ours, and why.
_RUNNING = "the running statistics are named to the backward op, which in training uses the saved ones"
KEPT_IN_VAIN: dict[tuple[str, str], tuple[list[str], str]] = {
    **{(f"aten.{name}", i): (["in3", "in4"], _RUNNING) for i in "012" for name in (
        "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional",
    )},
    ("aten.addcdiv", "0"): (["in2"], "the gradient of the first term is that of the output"),
    ("aten.addcdiv_", "0"): (["in2"], "the gradient of the first term is that of the output"),
}  # fmt: skip


def types(given: list[Any]) -> list[TensorType]:
    return [TensorType(tuple(shape), dtype) for shape, dtype in given]


def key(op: str) -> str:
    """The name of the row that an overload uses."""
    return op if op in ATEN_OPERATORS else ".".join(op.split(".")[:2])


def row_of(fact: dict[str, Any]) -> Operator:
    row = find_row(fact["op"])
    assert row is not None, fact["op"]
    made = len(fact["outputs"])
    return row.fewer if row.fewer is not None and 0 < made < row.outputs else row


def each(facts: list[dict[str, Any]]) -> Any:
    names = [f"{fact['op'].removeprefix('aten.')}-{k}" for k, fact in enumerate(facts)]
    return every("fact", facts, ids=names)


def test_the_facts_are_those_of_the_version_named() -> None:
    assert FILE[0]["torch"].startswith("2.13.0")
    assert FILE[0]["ignored"] is True  # `_RUNNING`
    assert len(MEASURED) > 350


@every("name", ATEN_OPERATORS)
def test_every_row_was_asked_for(name: str) -> None:
    assert name in {key(fact["op"]) for fact in FACTS}


@each(FACTS)
def test_sizes_are_those_of_torch(fact: dict[str, Any]) -> None:
    row = row_of(fact)
    if key(fact["op"]) in UNSIZED:
        assert row.sizes is None
        return
    inputs = types(fact["inputs"])
    made = types(fact["outputs"]) or [inputs[i] for i in fact["changed"]]
    assert row.sizes is not None
    assert list(row.sizes(inputs, fact["params"])) == made
    assert not (row.view and "abstract" in fact)


@each(MEASURED)
def test_views_and_updates_are_what_lies_on_the_same_storage(fact: dict[str, Any]) -> None:
    row = find_row(fact["op"])
    assert row is not None
    outputs = len(fact["outputs"]) or len(fact["changed"])
    updates = row.update_pairs(len(fact["inputs"]), max(outputs, row.outputs if row.fewer is not None else 0))
    assert sorted(i for i, _ in updates) == fact["changed"]
    assert not (row.view and fact["changed"])
    if fact["outputs"]:
        shared = [[0, k] for k in range(outputs)] if row.view else [[i, o] for i, o in updates if o < outputs]
        assert shared == fact["aliases"]


@each(FACTS)
def test_what_draws_reads_a_generator_state(fact: dict[str, Any]) -> None:
    row = row_of(fact)
    if fact["op"].endswith("attention_backward.default"):
        return  # it repeats the draw of the forward op, from the seed and offset that are among its inputs
    assert (row.state is not None) == fact["draws"]
    if row.state is not None and "attention" not in fact["op"]:
        assert row.state == len(fact["inputs"])  # behind its tensors


@each(MEASURED)
def test_backward_reads_what_autograd_keeps(fact: dict[str, Any]) -> None:
    row, name = row_of(fact), key(fact["op"])
    differentiated = not (
        name.removesuffix("_data").endswith("_backward") or name.startswith(("aten._foreach", "aten._fused_"))
    )
    if not differentiated and not row.gradients:
        return  # nothing differentiates it again
    for position, kept in fact["saves"].items():
        gradient = row.gradient(int(position))
        # A copy is of the value before it was overwritten.
        theirs = {f"in{n}" if side == "copy" else f"{side}{n}" for side, n, *_ in kept}
        given = {"in": len(fact["inputs"]), "out": len(fact["outputs"])}
        refs = gradient.refs(int(position)) if gradient is not None else ()
        ours = {f"{side}{n}" for side, n in refs if n < given[side]}
        assert all(n < given[side] or row.lacks((side, n)) for side, n in refs)
        if name == "aten._fused_rms_norm" and position == "1":
            assert theirs == {"other[2, 3, 4]"}  # here autograd sees its parts, not the op
            continue
        vain = {ref for ref in KEPT_IN_VAIN.get((name, position), ([], ""))[0] if int(ref[2:]) < len(fact["inputs"])}
        assert ours | vain == theirs
        assert not ours & vain


@every("fact", NODES, ids=[fact["op"] for fact in NODES])
def test_ops_without_a_kernel_here_keep_what_their_autograd_node_names(fact: dict[str, Any]) -> None:
    inputs = [name for name, kind in fact["arguments"] if "Tensor" in kind]
    returned = [name or f"result{k}" for k, (name, kind) in enumerate(fact["returns"]) if kind == "Tensor"]
    outputs = [name for name in returned if not name.startswith("cum_seq")]  # None for sequences of one length
    kept = set(fact["keeps"]) - {"running_mean", "running_var"}
    theirs = {f"in{k}" for k, name in enumerate(inputs) if name in kept} | {
        f"out{k}" for k, name in enumerate(outputs) if name in kept
    }
    row = ATEN_OPERATORS[fact["op"]]
    assert not row.view
    for gradient in row.gradients:  # one backward op makes them all
        assert gradient is not None
        assert {f"{side}{k}" for side, k in gradient.reads} == theirs


def softmax_flops(fact: dict[str, Any]) -> int:
    """Ours counts 5 for each score, which `flop_counter` leaves out."""
    if "attention" not in fact["op"]:
        return 0
    q, k = (fact["inputs"][at][0] for at in ((1, 2) if "backward" in fact["op"] else (0, 1)))
    return 5 * q[0] * q[1] * q[2] * k[2]


@each([fact for fact in FACTS if "flops" in fact])
def test_flops_are_those_of_the_flop_counter(fact: dict[str, Any]) -> None:
    row = row_of(fact)
    biases = sum(1 for shape, _ in fact["outputs"] if "convolution_backward" in fact["op"] and len(shape) == 1)
    extra = softmax_flops(fact) + biases * types(fact["inputs"])[0].elements
    assert row.flops(types(fact["inputs"]), types(fact["outputs"]), fact["params"]) == fact["flops"] + extra


def test_flops_of_the_cpu_attention_by_hand() -> None:
    # (2, 3, 5, 8) by (2, 3, 7, 8): 2 * 3 * 5 * 7 scores, 16 FLOPs each for q k, 16 for p v, 5 for the softmax; 5
    # products backward.
    facts = {key(fact["op"]): fact for fact in FACTS}
    for name, count in (("", 210 * 37), ("_backward", 210 * 85)):
        fact = facts[f"aten._scaled_dot_product_flash_attention_for_cpu{name}"]
        assert row_of(fact).flops(types(fact["inputs"]), types(fact["outputs"]), {}) == count


def test_flops_of_a_recurrent_layer_are_those_of_its_two_products() -> None:
    # 3 steps of 2: four gates of 5 units, each a dot product of 4 and one of 5; backward twice that.
    facts = {key(fact["op"]): fact for fact in FACTS}
    for name, count in (("", 3 * 2 * 20 * 2 * (4 + 5)), ("_backward", 2 * 3 * 2 * 20 * 2 * (4 + 5))):
        fact = facts[f"aten.mkldnn_rnn_layer{name}"]
        assert row_of(fact).flops(types(fact["inputs"]), types(fact["outputs"]), {}) == count


def test_attributes_are_filled_in_from_the_row() -> None:
    for fact in FACTS:
        inputs = types(fact["inputs"])
        outputs = types(fact["outputs"]) or [inputs[i] for i in fact["changed"]]
        found = attributes(fact["op"], node="n", inputs=inputs, outputs=outputs, device=A100, params=fact["params"])
        sizes = found["nbytes"] if isinstance(found["nbytes"], tuple) else (found["nbytes"],)
        assert sizes == tuple(value.nbytes for value in outputs)
        assert ("view" in found) == (bool(fact.get("aliases")) and not fact["changed"])


def test_only_a_row_that_is_equal_is_shared_with_onnx() -> None:
    shared = {
        name: row for name, row in ATEN_OPERATORS.items() if any(row is other for other in ONNX_OPERATORS.values())
    }
    assert {"aten.relu", "aten.gelu", "aten.mm", "aten.cat", "aten.where", "aten._softmax", "aten.topk"} <= set(shared)


def test_an_embedding_moves_only_the_rows_it_reads() -> None:
    table, indices, made = TensorType((50257, 768)), TensorType((8, 1024), "int64"), TensorType((8, 1024, 768))
    found = attributes("aten.embedding.default", node="n", inputs=[table, indices], outputs=[made], device=A100)
    assert found["cost"] == pytest.approx((2 * 8 * 1024 * 768 * 4 + 8 * 1024 * 8) / A100.bandwidth)


CACHE, STEP, PLACE = TensorType((4096, 64)), TensorType((2, 64)), TensorType((2,), "int64")


@every(("op", "inputs", "params", "moved"), [
    # Two rows of a cache are written (and, where they are added to, read), beside the values and the places read.
    ("index_put_", [CACHE, PLACE, STEP], {}, 2 * 512 + 16),
    ("index_put_", [CACHE, PLACE, STEP], {"accumulate": True}, 3 * 512 + 16),
    ("index_add_", [CACHE, PLACE, STEP], {}, 3 * 512 + 16),
    ("scatter_", [CACHE, TensorType((2, 64), "int64"), STEP], {}, 2 * 512 + 2 * 64 * 8),
    ("scatter_add_", [CACHE, TensorType((2, 64), "int64"), STEP], {}, 3 * 512 + 2 * 64 * 8),
    # What is overwritten whole is not read.
    ("zero_", [CACHE], {}, 4096 * 64 * 4), ("fill_", [CACHE, TensorType(())], {}, 4096 * 64 * 4 + 4),
    ("copy_", [CACHE, CACHE], {}, 2 * 4096 * 64 * 4),
    ("normal_", [CACHE, TensorType((16,), "uint8")], {}, 4096 * 64 * 4 + 16),
    ("add_", [CACHE, CACHE], {}, 3 * 4096 * 64 * 4),
])  # fmt: skip
def test_an_op_in_place_moves_what_it_touches(
    op: str, inputs: list[TensorType], params: dict[str, Any], moved: int
) -> None:
    found = attributes(f"aten.{op}", node="n", inputs=inputs, outputs=[CACHE], device=A100, params=params)
    assert found["cost"] * A100.bandwidth == pytest.approx(moved)


@every(
    ("op", "outputs", "moved"),
    [("zeros_like", CACHE, 4096 * 64 * 4), ("empty_like", CACHE, 0), ("new_zeros", STEP, 512), ("new_empty", STEP, 0)],
)
def test_a_new_tensor_like_another_is_written_and_the_other_is_not_read(
    op: str, outputs: TensorType, moved: int
) -> None:
    found = attributes(f"aten.{op}", node="n", inputs=[CACHE], outputs=[outputs], device=A100, params={})
    assert found["cost"] * A100.bandwidth == pytest.approx(moved)


@every("op", ["index_select", "embedding", "index"])
def test_only_the_rows_asked_for_are_read(op: str) -> None:
    found = attributes(f"aten.{op}", node="n", inputs=[CACHE, PLACE], outputs=[STEP], device=A100, params={"dim": 0})
    assert found["cost"] * A100.bandwidth == pytest.approx(2 * 512 + 16)


def test_each_dtype_counts_its_own_bytes() -> None:
    # cross entropy of bfloat16 logits: 2 bytes a logit, 8 a label; a mask of one byte beside a value of two.
    x = TensorType((4, 8), "bfloat16")
    outputs, params = [x, TensorType((4, 8), "bool")], {"p": 0.5, "train": True}
    found = attributes("aten.native_dropout", node="n", inputs=[x], outputs=outputs, device=A100, params=params)
    assert found["nbytes"] == (64, 32)
    assert found["cost"] == pytest.approx((64 + 64 + 32) / A100.bandwidth)


# --- graphs of these ops

X = TensorType((4, 8))


def draft() -> tuple[Assembly, Any]:
    made = Assembly(device="a100")
    x = made.resident("x", X, kind="input")
    w = made.resident("w", TensorType((8, 8)), kind="parameter")
    return made, made.apply("mm", "aten.mm.default", [x, w], [X])


def reads(step: nx.DiGraph, node: str) -> set[str]:
    return set(step.predecessors(node)) - {"loss.bwd", f"{node.removesuffix('.bwd')}.seed"}


def test_overloads_and_unknown_ops() -> None:
    assert find_row("aten.add.Tensor") is find_row("aten.add.Scalar") is find_row("aten.add")
    assert find_row("aten.pow.Tensor_Scalar") is not find_row("aten.pow.Tensor_Tensor")
    with pytest.raises(GraphError, match=r"'n'.*'aten.magic.default'.*saves="):
        operator("aten.magic.default", node="n")
    with pytest.raises(
        GraphError, match=r"node 'n': no rule for op type 'aten.nonzero.default': .*depends on the values it reads"
    ):
        operator("aten.nonzero.default", node="n")
    assert all(find_row(name) is None and refusal(f"{name}.default") for name in ATEN_REFUSED)


def test_a_graph_of_aten_ops_is_differentiated_and_planned() -> None:
    made, y = draft()
    h = made.apply("norm", "aten.native_layer_norm.default", [y, y], [X, TensorType((4, 1)), TensorType((4, 1))])
    h = made.apply("view", "aten.view.default", [h], [TensorType((32,))])
    h = made.apply("relu", "aten.relu.default", [h], [TensorType((32,))])
    made.apply("gelu", "aten.gelu.default", [h], [TensorType((32,))])
    step = differentiate(made.graph)
    assert reads(step, "gelu.bwd") == {"relu"}
    assert reads(step, "relu.bwd") == {"gelu.bwd", "relu"}
    assert step.nodes["view.bwd"]["view"] == ((0, 0),)
    assert reads(step, "norm.bwd") == {"view.bwd", "mm", "norm"}
    program = lower(step)
    assert program.storage_root["view"] == "norm:0"
    simulate(program, keep_all(program))


def test_json_graphs_use_the_rows_too() -> None:
    g = nx.DiGraph()
    g.add_node("w", nbytes=128, kind="parameter", shape=(4, 8), dtype="float32")
    g.add_node("y", nbytes=128, op="aten.sigmoid.default")
    g.add_node("z", nbytes=128, op="aten.log.default")
    g.add_edge("w", "y")
    g.add_edge("y", "z")
    loaded = nx.node_link_graph(json.loads(json.dumps(nx.node_link_data(g, edges="edges"))), edges="edges")
    step = differentiate(loaded)
    assert (reads(step, "z.bwd"), reads(step, "y.bwd")) == ({"y"}, {"z.bwd", "y"})


def test_an_update_in_place_keeps_its_output_and_kills_its_input() -> None:
    made, y = draft()
    h = made.apply("relu", "aten.relu_.default", [y], [X])
    made.apply("sigmoid", "aten.sigmoid.default", [h], [X])
    assert made.graph.nodes["relu"]["updates"] == ((0, 0),)
    step = differentiate(made.graph)
    assert reads(step, "relu.bwd") == {"sigmoid.bwd", "relu"}
    program = lower(step)
    assert program.storage_root["relu"] == "mm"
    simulate(program, keep_all(program))


def test_a_gradient_that_needs_what_was_overwritten_is_refused() -> None:
    made, y = draft()
    made.apply("silu", "aten.silu_.default", [y], [X])
    with pytest.raises(GraphError, match=r"silu.bwd.*mm"):
        lower(differentiate(made.graph))


def test_a_draw_runs_once_unless_it_reads_the_state_of_its_generator() -> None:
    mask = TensorType((4, 8), "bool")
    made, y = draft()
    made.apply("bare", "aten.native_dropout.default", [y], [X, mask], params={"train": True})
    made.apply("inference", "aten.native_dropout.default", [y], [X, mask], params={"train": False})
    state = made.generator_state("state")
    kept = made.apply("replayed", "aten.native_dropout.default", [y, state], [X, mask], params={"train": True})
    made.apply("noise", "aten.randn.default", [], [X], params={"size": [4, 8]})
    made.apply("again", "aten.randn.default", [state], [X], params={"size": [4, 8]})
    made.apply("end", "aten.silu.default", [kept], [X])
    program = lower(made.graph)
    once = {op.name for op in program.ops if not op.recomputable}
    assert once == {"bare", "state", "noise"}
    step = differentiate(made.graph, trainable=["w"])
    assert step.in_edges["replayed", "replayed.bwd"]["reads"] == (1,)  # the mask
    assert set(step.predecessors("replayed.bwd")) == {"end.bwd", "replayed"}


def test_batch_normalization_is_pure_and_the_running_statistics_are_an_update() -> None:
    x, c = TensorType((2, 4, 6, 6)), TensorType((4,))
    for name in ("aten.native_batch_norm", "aten._native_batch_norm_legit"):
        row = ATEN_OPERATORS[name]
        assert row.fewer is not None
        assert row.gradients == row.fewer.gradients  # which was measured
        assert sizes_of(name, node="n", inputs=[x, c, c, c, c], outputs=5) == (x, c, c, c, c)
    pure = attributes("aten.native_batch_norm", node="n", inputs=[x, c, c, c, c], outputs=[x, c, c], device=A100)
    assert "updates" not in pure
    assert "recomputable" not in pure
    whole = attributes("aten.native_batch_norm", node="n", inputs=[x, c, c, c, c], outputs=[x, c, c, c, c], device=A100)
    assert whole["updates"] == ((3, 3), (4, 4))
    assert whole["recomputable"] is False
    effect = attributes("UpdateStatistics", node="n", inputs=[c, c, c, c], outputs=[c, c], device=A100)
    assert effect["updates"] == ((0, 0), (1, 1))
    assert effect["recomputable"] is False
    name, values = "aten._native_batch_norm_legit_functional", [x, c, c, c, c]
    functional = attributes(name, node="n", inputs=values, outputs=values, device=A100)
    assert "updates" not in functional


def test_optimizers_update_lists() -> None:
    a, b = TensorType((3,)), TensorType((4,))
    found = attributes("aten._foreach_addcdiv_.ScalarList", node="n", inputs=[a, b] * 3, outputs=[a, b], device=A100)
    assert found["updates"] == ((0, 0), (1, 1))
    adam = attributes("aten._fused_adam_", node="n", inputs=[a, b] * 5, outputs=[a, b] * 3, device=A100)
    assert adam["updates"] == ((0, 0), (1, 1), (4, 2), (5, 3), (6, 4), (7, 5))
    assert adam["recomputable"] is False
    with pytest.raises(
        GraphError, match=r"node 'n': op type 'aten._fused_adam_': 12 inputs and 8 outputs are not 5 lists"
    ):
        attributes("aten._fused_adam_", node="n", inputs=[a, b] * 6, outputs=[a, b] * 4, device=A100)


def test_a_row_that_holds_for_few_inputs_says_so() -> None:
    i = TensorType((3,), "int64")
    inputs = [TensorType((5, 4, 2)), i, i, TensorType((3, 2))]
    with pytest.raises(GraphError, match=r"'n'.*'aten.index_put.default' is for at most 3 inputs, not 4"):
        attributes("aten.index_put.default", node="n", inputs=inputs, outputs=inputs[:1], device=A100)
    made, y = draft()
    extra = [made.resident(name, TensorType((3,), "int64"), kind="input") for name in "ij"]
    made.add("put", [y, *extra, y], op="aten.index_put.default", nbytes=X.nbytes, shape=X.shape, dtype=X.dtype)
    with pytest.raises(GraphError, match=r"'put'.*at most 3 inputs"):
        differentiate(made.graph)


def test_a_size_that_does_not_follow_names_the_node() -> None:
    assert sizes_of("aten.mm", node="n", inputs=[TensorType((2, 3)), TensorType((3, 5))]) == (TensorType((2, 5)),)
    with pytest.raises(GraphError, match=r"node 'n'.*parameter 'num_weights' is missing"):
        sizes_of("aten.embedding_dense_backward", node="n", inputs=[X, TensorType((4,), "int64")])
    with pytest.raises(GraphError, match=r"node 'n': the sizes of 'aten.diagonal' do not follow"):
        sizes_of("aten.diagonal", node="n", inputs=[X])


def test_a_row_is_a_value() -> None:
    assert replace(ATEN_OPERATORS["aten.relu"]) == ATEN_OPERATORS["aten.relu"]
