"""The step that really runs: estimated and planned alike (`shared/findings/steps.md`, S1 to S4)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from exhaustive import cheapest
from hypothesis import given
from offenders import every
from strategies import digraphs
from test_footprint import TINY_GPT

import planner
from planner import GraphError, InfeasibleBudget, MemoryModel, PlannerError, TrainingStep, zoo
from planner.footprint.estimate import estimate, largest_batch
from planner.lowering.dag import as_dag
from planner.lowering.step import with_step
from planner.training_step import UPDATES

MIB = 2**20
ADAM = TrainingStep("adam")


def s1() -> nx.DiGraph:
    """Two layers of 1 byte with weights of 100, each saving both of its inputs."""
    graph = nx.DiGraph()
    graph.add_node("x", nbytes=1, kind="input")
    for k, below in ((1, "x"), (2, "h1")):
        graph.add_node(f"w{k}", nbytes=100, kind="parameter")
        graph.add_node(f"h{k}", nbytes=1, saves=(("in", 0), ("in", 1)))
        graph.add_edge(below, f"h{k}", reads=(0,), at=(0,))
        graph.add_edge(f"w{k}", f"h{k}", reads=(0,), at=(1,))
    return graph


def s2(batch: int) -> nx.DiGraph:
    """Three layers of 1 KiB, 4 MiB and 4 MiB; the first activation, of `batch` MiB, is saved until the last op."""
    graph = nx.DiGraph()
    sizes = {"1": 1024, "2": 4 * MIB, "3": 4 * MIB}
    for k, nbytes in sizes.items():
        graph.add_node(f"w{k}", nbytes=nbytes, kind="parameter")
    rows: list[tuple[str, Any, tuple[str, ...], str]] = [
        ("a1", batch * MIB, ("w1",), "forward"), ("a2", 1, ("a1", "w2"), "forward"), ("a3", 1, ("a2", "w3"), "forward"),
        ("d3", (4 * MIB, 1), ("a3", "a2", "w3"), "backward"), ("d2", (4 * MIB, 1), ("d3:1", "w2"), "backward"),
        ("d1", 1024, ("d2:1", "a1"), "backward"),
    ]  # fmt: skip
    rows += [(f"u{k}", nbytes, (f"w{k}", f"d{k}:0" if k > "1" else "d1"), "update") for k, nbytes in sizes.items()]
    for name, nbytes, reads, phase in rows:
        updates = {"updates": ((0, 0),), "recomputable": False} if phase == "update" else {}
        graph.add_node(name, nbytes=nbytes, phase=phase, **updates)
        for at, value in enumerate(reads):
            node, _, output = value.partition(":")
            graph.add_edge(node, name, reads=(int(output or 0),), at=(at,))
    return graph


# ------------------------------------------------------------------------------------------------ S1, S2, S3


def test_s1_the_optima_are_those_of_the_exhaustive_search_and_no_floor_lies_above_one() -> None:
    graph = planner.differentiate(s1())
    program, found = planner.lower(graph), estimate(graph)
    # S1 has 11 at 404 too; there the loss runs again after the updates, from the one byte it reads.
    for budget, cost in ((406, 9), (405, 10), (404, 10), (309, 11), (305, 12), (304, 13)):
        assert cheapest(program, budget, memory=MemoryModel(), most_states=20_000) == cost
        assert planner.optimize(graph, budget, allocator=None).report.plan.cost == cost
        advice = found.advice(budget)
        assert advice.floor_bytes <= budget
        assert advice.fits == (cost == 9)
        assert advice.fits or advice.recompute_helps
    with pytest.raises(InfeasibleBudget) as caught:
        planner.optimize(graph, 303, allocator=None)
    assert caught.value.minimum == 304


@given(graph=digraphs())
def test_no_floor_lies_above_the_least_plan_of_any_graph(graph: nx.DiGraph) -> None:
    program = planner.lower(graph)
    if all(op.resident for op in program.ops):
        return
    least = planner.optimize(program, allocator=None, effort=0.1).report.plan.peak_bytes
    assert estimate(program).floor_bytes <= least


def test_no_floor_lies_above_the_least_plan_of_zoo_models_and_real_files(shared: Path) -> None:
    pytest.importorskip("onnx")
    light = shared / "data/graphs/onnx_light"
    graphs = [*(build() for build in MODELS.values()), planner.from_onnx(light / "light_squeezenet.onnx")]
    for step in (None, TrainingStep("adam", update="multi-tensor"), TrainingStep("adam", update="inside-backward")):
        for graph in graphs:
            least = planner.optimize(graph, step=step, allocator=None, strategy="recursive").report.plan.peak_bytes
            assert estimate(graph, step=step).floor_bytes <= least


def test_s2_the_multi_tensor_update_waits_for_every_gradient() -> None:
    # Before the update: weights and states 3 * 8 MiB, the first activation, and both large gradients, 8 MiB.
    step = TrainingStep("adam", update="multi-tensor")
    assert largest_batch(s2, "41MiB", overhead=0.0, step=step) == 8
    program = with_step(s2(8), step)
    update = program.ops[-1]
    assert (update.name, update.workspace) == ("update", 2 * 4 * MIB + 1024)
    assert {"d3:0", "d2:0", "d1"} <= set(update.reads)


@every("overhead", [0.0, 0.2])
def test_the_largest_batch_is_the_last_that_optimize_plans_at_that_overhead(overhead: float) -> None:
    def build(batch: int) -> nx.DiGraph:
        return zoo.mlp([32] * 6, batch=batch)

    budget = estimate(build(48), step=ADAM).peak_bytes
    found = largest_batch(build, budget, overhead=overhead, step=ADAM)
    assert planner.optimize(build(found), budget, step=ADAM).report.overhead <= overhead
    try:
        beyond = planner.optimize(build(found + 1), budget, step=ADAM).report.overhead
    except InfeasibleBudget:
        return
    assert beyond > overhead


STEPS: tuple[TrainingStep, ...] = (
    TrainingStep(), ADAM, TrainingStep("momentum", update="per-tensor"), TrainingStep("adamw", update="multi-tensor"),
    TrainingStep("rmsprop", update="fused", micro_batches=3), TrainingStep("adam", update="inside-backward"),
    TrainingStep("adam", gradients="zeroed", micro_batches=2), TrainingStep("adam", master_weights=True),
    TrainingStep("adam", gradient_dtype="float32"), TrainingStep("adam", state_dtype="uint8", resumed=True),
)  # fmt: skip
MODELS: dict[str, Any] = {
    "mlp": partial(zoo.mlp, [8, 8, 4], batch=2),
    "resnet": partial(zoo.resnet, (1,), batch=2, image=32, classes=10),
    "gpt16": partial(zoo.gpt, 1, **TINY_GPT, dtype="bfloat16"),
    "lstm": partial(zoo.lstm, 2, batch=2, layers=1, hidden=4, features=3, classes=5),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_verb_describes_the_same_step(name: str) -> None:
    for step in STEPS:
        for graph in (MODELS[name](), MODELS[name](training="forward")):
            found = estimate(graph, step=step)
            plan = planner.optimize(graph, "100%", step=step, allocator=None, strategy="chen-sqrt")
            assert found.peak_bytes == plan.report.keep_all.peak_bytes, step
            assert found.peak_bytes == found.later.peak.peak_bytes, step  # the first iteration takes no more
            assert plan.step == step
            points = planner.curve(graph, ["100%"], step=step, allocator=None, strategies="chen-sqrt")
            assert points.points[-1].budget == found.peak_bytes, step
            assert points.step == step


@every("name", list(MODELS))
def test_a_forward_model_and_a_differentiated_one_become_the_same_step(name: str) -> None:
    for step in STEPS:
        own = with_step(MODELS[name](training="forward"), step)
        other = with_step(MODELS[name](), step)
        assert [op.name for op in own.ops] == [op.name for op in other.ops]
        assert [(t.name, t.nbytes) for t in own.tensors.values()] == [
            (t.name, t.nbytes) for t in other.tensors.values()
        ]


@given(graph=digraphs())
def test_a_program_comes_back_from_its_dag(graph: nx.DiGraph) -> None:
    program = planner.lower(graph)
    assert planner.lower(as_dag(program)) == program


# ------------------------------------------------------------------------------------------------ S4


def update_peaks(model: Any) -> dict[str, int]:
    """Bytes at the update by kind; of an update inside the backward pass, at the peak."""
    found = {}
    for update in UPDATES:
        footprint = estimate(model, step=TrainingStep("adam", update=update))
        inside = update == "inside-backward"
        found[update] = footprint.peak_bytes if inside else footprint.later.phase("update").peak_bytes
    return found


def weights(model: nx.DiGraph) -> list[int]:
    return [nbytes for _, nbytes in model.nodes(data="nbytes") if _ and model.nodes[_].get("kind") == "parameter"]


def counted(model: nx.DiGraph, rest: int, inside: int) -> dict[str, int]:
    """What the update holds: weights, gradients and two states, and a temporary of all weights or of one.

    Args:
        rest: bytes of inputs, running statistics and the loss.
        inside: bytes of activations and gradients at the peak of an update inside the backward pass.
    """
    sizes = weights(model)
    whole = sum(sizes)
    # One by one: the gradients of those before are gone.
    one = max(whole - sum(sizes[:k]) + nbytes for k, nbytes in enumerate(sizes))
    return {
        "fused": 4 * whole + rest, "multi-tensor": 5 * whole + rest, "per-tensor": 3 * whole + one + rest,
        "inside-backward": 3 * whole + inside + rest,
    }  # fmt: skip


def test_vgg16_updates_as_counted_by_hand() -> None:
    # At the backward of the first linear layer, of 25,088 x 4,096 weights: its gradients, the gradient that came and
    # the one it makes; and of activations 13 relu outputs, 5 pool outputs and their int64 indices.
    relus = 2 * 12_845_056 + 2 * 6_422_528 + 3 * 3_211_264 + 3 * 1_605_632 + 3 * 401_408
    pools = 3_211_264 + 1_605_632 + 802_816 + 401_408 + 100_352
    inside = 4 * 25_088 * 4_096 + 4 * 4_096 + 4 * 4_096 + 100_352 + relus + 3 * pools
    model = zoo.vgg(16, batch=1, training="forward")
    assert sum(weights(model)) == 4 * 138_357_544
    assert update_peaks(model) == counted(model, 602_112 + 8 + 4, inside)


def test_resnet50_updates_as_counted_by_hand() -> None:
    # What backward reads: 21,180,264 elements and 200,704 indices of 8 bytes (golden.md). At the backward of the last
    # 3x3 convolution these are gone of its block: two relu outputs, the outputs of conv2 and conv3, statistics of two
    # normalizations; and of the head the pooled row and the log-probabilities. Its gradient is the largest.
    saved = 4 * 21_180_264 + 4 * 200_704
    gone = 2 * 401_408 + 2 * 100_352 + 8 * 2048 + 8 * 512 + 4 * 2048 + 4 * 1000
    inside = saved - gone + 4 * 512 * 512 * 9 + 100_352 + 100_352 + 401_408
    model = zoo.resnet(50, batch=1, training="forward")
    assert sum(weights(model)) == 4 * 25_557_032
    assert update_peaks(model) == counted(model, 602_112 + 8 + 4 + 4 * 53_120, inside)


def test_vit_l_16_updates_as_counted_by_hand() -> None:
    model = zoo.vit(24, batch=1, hidden=1024, heads=16, training="forward")
    assert sum(weights(model)) == 4 * 304_326_632
    found = update_peaks(model)
    assert found["inside-backward"] == 3_983_570_028  # steps.md S4a
    assert found == counted(model, 602_112 + 8 + 4, 3_983_570_028 - 12 * 304_326_632 - 602_124)
    assert estimate(model, step=ADAM).peak_bytes == 4_871_509_172  # steps.md S4a


def test_gpt2_updates_as_counted_by_hand() -> None:
    # At the last op: both terms of the gradient of the tied embedding, 50,257 x 768, and the gradient of 128 rows.
    model = zoo.gpt(12, batch=1, tokens=128, training="forward")
    inside = 2 * 4 * 50_257 * 768 + 4 * 128 * 768
    found, hand = update_peaks(model), counted(model, 3 * 128 * 8 + 4, inside)
    assert found["inside-backward"] == hand["inside-backward"]
    assert (found["fused"], found["multi-tensor"]) == (hand["fused"], hand["multi-tensor"])


def test_an_update_inside_the_backward_pass_is_a_remedy_with_its_numbers() -> None:
    model = zoo.vit(4, batch=1, hidden=256, heads=4, training="forward")
    found = estimate(model, step=ADAM)
    early = estimate(model, step=TrainingStep("adam", update="inside-backward"))
    assert found.alternatives["inside-backward"] == (early.peak_bytes, early.floor_bytes)
    remedies = {remedy.action: remedy for remedy in found.advice(early.peak_bytes).remedies}
    assert remedies["inside-backward update"].fits
    with pytest.raises(InfeasibleBudget) as caught:
        planner.optimize(model, early.floor_bytes, step=ADAM, strategy="chen-budget", allocator=None)
    assert any(remedy.action.startswith("inside-backward update") for remedy in caught.value.remedies)


def test_float32_gradients_of_16_bit_weights_take_18_bytes_a_parameter() -> None:
    step = TrainingStep("adam", master_weights=True, gradient_dtype="fp32")
    found = estimate(MODELS["gpt16"](), step=step)
    held = found.later.phase("update").components
    kinds = ("parameters", "gradients", "optimizer_state", "master_weights")
    assert sum(held[kind] for kind in kinds) == 18 * found.parameters  # 2 + 4 + 8 + 4


def test_8_bit_states_take_a_byte_an_element() -> None:
    found = estimate(MODELS["mlp"](), step=TrainingStep("adam", state_dtype="uint8"))
    assert found.by_dtype["optimizer_state"] == {"uint8": 2 * found.parameters}


def test_frozen_layers_are_not_updated_and_keep_nothing_for_their_gradients() -> None:
    model = zoo.mlp([8, 16, 4], batch=2, training="forward", relu=False)
    whole, head = estimate(model, step=ADAM), estimate(model, step=TrainingStep("adam", trainable=("fc2*",)))
    assert head.components["optimizer_state"] == 2 * 4 * (16 * 4 + 4)
    assert whole.components["optimizer_state"] == 2 * 4 * whole.parameters
    frozen = with_step(model, TrainingStep("adam", trainable=("!fc1*",)))
    assert [op.name for op in frozen.ops if op.op == "Update"] == ["fc2.weight.update", "fc2.bias.update"]
    assert not any(op.phase == "backward" and op.name.startswith("fc1") for op in frozen.ops)


@every(
    ("patterns", "trained"),
    [
        (("!op:Embedding",), {"fc", "norm"}), (("module:h0",), {"norm"}), (("module:*", "!op:Linear"), {"norm", "wte"}),
        (("op:Linear",), {"fc"}), (("!*", "norm.*"), {"norm"}),
    ],
)  # fmt: skip
def test_patterns_train_and_freeze_by_name_op_and_module(patterns: tuple[str, ...], trained: set[str]) -> None:
    graph = nx.DiGraph()
    graph.add_node("rows", nbytes=8, kind="input", dtype="int64", shape=(1,))
    for name, op, below in (("wte", "Gather", "rows"), ("norm", "LayerNormalization", "emb"), ("fc", "Gemm", "ln")):
        graph.add_node(f"{name}.weight", nbytes=4, kind="parameter", dtype="float32", shape=(1, 1))
        made = {"wte": "emb", "norm": "ln", "fc": "out"}[name]
        graph.add_node(made, nbytes=4, op=op, saves=(("in", 0), ("in", 1)), module="h0" if name == "norm" else name)
        graph.add_edge(below, made, reads=(0,), at=(1,) if name == "wte" else (0,))
        graph.add_edge(f"{name}.weight", made, reads=(0,), at=(0,) if name == "wte" else (1,))
    program = with_step(graph, TrainingStep(trainable=patterns))
    assert {op.name.split(".")[0] for op in program.ops if op.op == "Update"} == trained


def test_a_resumed_run_has_its_states_from_the_first_iteration() -> None:
    fresh, resumed = (estimate(MODELS["mlp"](), step=TrainingStep("adam", resumed=on)) for on in (False, True))
    assert fresh.first.phase("forward").components["optimizer_state"] == 0
    assert resumed.first.phases == resumed.later.phases == fresh.later.phases


def test_the_report_names_the_micro_batch_of_the_peak() -> None:
    found = estimate(MODELS["mlp"](), step=TrainingStep(micro_batches=4))
    assert found.micro_batch == "second and later"  # gradients of the first lie in their buffers
    assert "of the second and later micro-batch" in str(found)
    assert estimate(MODELS["mlp"]()).micro_batch is None


# ------------------------------------------------------------------------------------------------ refused


@every(
    ("step", "graph", "message"),
    [
        (TrainingStep(trainable=("fc1*",)), lambda: zoo.mlp([4, 2], batch=1), "op 'loss.bwd'.*trainable"),
        (TrainingStep(lowering=True), lambda: zoo.mlp([4, 2], batch=1), "op 'loss.bwd'.*lowering"),
        (TrainingStep("none"), lambda: zoo.mlp([4, 2], batch=1), "cannot undo"),
        (ADAM, lambda: planner.lower(s1()), "forward program"),
        (ADAM, lambda: zoo.mlp([4, 2], batch=1, optimizer=None), "gradients are outputs"),
    ],
)
def test_a_step_that_the_graph_cannot_take_is_refused(step: TrainingStep, graph: Any, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        planner.optimize(graph(), step=step)


@every(
    ("options", "message"),
    [
        ({"optimizer": "adamm"}, "did you mean 'adam'"), ({"update": "inside"}, "did you mean 'inside-backward'"),
        ({"state_dtype": "int-8"}, "did you mean 'int8'"), ({"gradient_dtype": "int8"}, "unknown gradient_dtype"),
        ({"micro_batches": 0}, "not a number >= 1"), ({"trainable": ("!",)}, "not a pattern"),
        ({"optimizer": "none", "update": "fused"}, "updates nothing"), ({"lowering": 1}, "not True or False"),
    ],
)  # fmt: skip
def test_a_word_that_is_unknown_is_answered_with_the_nearest(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PlannerError, match=message):
        TrainingStep(**options)


def test_a_pattern_that_names_no_parameter_is_answered_with_the_nearest() -> None:
    with pytest.raises(PlannerError, match=r"names no parameter; there are 'fc1.weight'"):
        with_step(zoo.mlp([4, 2], batch=1, training="forward"), TrainingStep(trainable=("fc9.weight",)))
