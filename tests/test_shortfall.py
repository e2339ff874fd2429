"""What `optimize` says where the optimizer step or the loss tail alone misses the budget (`shared/cases.md`)."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cases
import networkx as nx
import pytest
from conftest import Answer
from hypothesis import assume, given
from hypothesis import strategies as st
from naive import keep_all, naive_timeline
from programs import steps
from strategies import digraphs, memory_models
from test_footprint import C5_TAIL, W, c6, parts
from test_kernels import loose_schedules

import planner
from planner import InfeasibleBudget, MemoryModel, Problem, Proposal, zoo
from planner.footprint.advice import TWICE, batch_of, smaller_batch
from planner.footprint.components import Simulated
from planner.lowering.step import iteration
from planner.training_step import TrainingStep, Update

LAYERS = 20
LARGEST = max(parts(W, LAYERS))


def step(update: Update) -> planner.Graph:
    """C6 with the way of updating written into the graph."""
    return iteration(planner.lower(c6(layers=LAYERS)), TrainingStep(update=update))


def missed(graph: Any, budget: Any, **options: Any) -> InfeasibleBudget:
    """By a planner that keeps the order and drops activations alone: others update early, and make gradients again."""
    with pytest.raises(InfeasibleBudget) as caught:
        planner.optimize(graph, budget, **{"strategy": "chen-budget", **options})
    error = caught.value
    cause, least = str(error).split("\n")
    assert least.startswith("Least that works: ")
    assert f"({error.minimum} bytes" in least
    for remedy in error.remedies:
        size = f"({remedy.peak_bytes} bytes)."
        told = [remedy.note] if remedy.action == "Smaller batch" else [f" {remedy.action.capitalize()}: ", size]
        assert all(part in cause for part in told) == remedy.fits
    return error


# ------------------------------------------------------------------------------------------------ the optimizer step


@pytest.mark.parametrize("allocator", ["auto", None])
def test_c6_at_5_5gb_only_the_per_tensor_step_helps(allocator: str | None) -> None:
    error = missed(step("multi-tensor"), "5.5GB", allocator=allocator)
    assert (error.phase, error.minimum) == ("update", 5 * W)
    best = error.remedies[0]
    assert (best.action, best.peak_bytes, best.fits, best.at_least) == ("per-tensor update", 5_151_919_584, True, False)
    assert error.proven  # one op reads every gradient
    assert "recomputation cannot help, for the optimizer step" in str(error)
    held = "parameters 1.13 GiB, gradients 1.13 GiB, optimizer state 2.27 GiB, workspace 1.13 GiB"
    assert f"6086532640 bytes: {held}" in str(error)
    assert "batch" not in str(error)
    assert planner.optimize(step("per-tensor"), best.peak_bytes, allocator=None).report.extra_runs == 0


def test_c6_at_5gb_the_per_tensor_step_needs_recomputation_too() -> None:
    best = missed(step("multi-tensor"), "5GB").remedies[0]
    assert (best.action, best.at_least) == ("per-tensor update with recomputation", True)
    assert best.peak_bytes == 3 * W + 2 * 75_000_000  # a layer reads an activation of 1.5e9 / 20 and makes one
    assert best.note == "Activations must shrink too."
    assert planner.optimize(step("per-tensor"), "5GB", strategy="chen-budget", allocator=None).report.extra_runs > 0


def test_c6_at_4_8gb_only_an_early_update_or_a_second_gradient_could_help() -> None:
    updates: tuple[Update, ...] = ("multi-tensor", "per-tensor", "fused")
    for update in updates:
        error = missed(step(update), "4.8GB")
        assert error.phase == "update"
        assert error.minimum is not None
        assert error.minimum >= 4 * W == 4_869_226_112
        assert error.proven == (update != "per-tensor")  # one op for all parameters holds all gradients
        assert "batch" not in str(error)
        fit = {remedy.action: remedy.note for remedy in error.remedies if remedy.fits}
        early = {"inside-backward update with recomputation": "Activations must shrink too."}
        twice = {"per-tensor update with recomputation": TWICE}
        assert fit == {"multi-tensor": twice, "per-tensor": early, "fused": {}}[update]


def two_parameters(*, workspace: int, activation: int = 10) -> nx.DiGraph:
    """Parameters of 8 and 24 bytes, updated by one op with workspace."""
    graph = nx.DiGraph()
    for name, nbytes in (("w1", 8), ("w2", 24)):
        graph.add_node(name, nbytes=nbytes, kind="parameter")
    graph.add_node("a", nbytes=activation, phase="forward")
    graph.add_edges_from([("w1", "a"), ("w2", "a")])
    graph.add_node("b", nbytes=(8, 24), phase="backward")
    graph.add_edge("a", "b")
    updates = ((0, 0), (1, 1))
    graph.add_node("u", nbytes=(8, 24), phase="update", updates=updates, workspace=workspace, recomputable=False)
    graph.add_edge("w1", "u", reads=(0,), at=(0,))
    graph.add_edge("w2", "u", reads=(0,), at=(1,))
    graph.add_edge("b", "u", reads=(0, 1), at=(2, 3))
    return graph


def test_one_op_with_workspace_for_all_parameters_is_a_multi_tensor_step() -> None:
    # Residents 32, gradients 32, workspace 40, of which 24/32 stay: 94. The backward takes 32 + 10 + 32 = 74.
    error = missed(two_parameters(workspace=40), 100)
    assert (error.phase, error.binding_op, error.proven, error.peak_lower_bound) == ("update", "u", True, 104)
    assert (error.remedies[0].action, error.remedies[0].peak_bytes) == ("per-tensor update", 94)
    # Workspace no larger than one parameter is no temporary for both.
    assert "per-tensor" not in str(missed(two_parameters(workspace=24), 80))


def test_the_reserve_is_in_the_numbers_of_the_cause_and_not_in_those_of_remedies() -> None:
    error = missed(two_parameters(workspace=40), 107, memory=MemoryModel(reserve=7))
    assert "needs 111 B (111 bytes: parameters 32 B, gradients 32 B, workspace 40 B, reserve 7 B)" in str(error)
    assert error.remedies[0].peak_bytes == 94


def early_and_late() -> nx.DiGraph:
    """Two parameters of 10 bytes; the order alone makes both gradients live before the first update."""
    graph = nx.DiGraph()
    for name in ("w1", "w2"):
        graph.add_node(name, nbytes=10, kind="parameter")
    graph.add_node("a", nbytes=1, phase="forward")
    graph.add_edge("w1", "a")
    for k in (1, 2):
        graph.add_node(f"g{k}", nbytes=10, phase="backward", recomputable=False)
        graph.add_edge("a", f"g{k}")
    for k in (1, 2):
        graph.add_node(f"u{k}", nbytes=10, phase="update", updates=((0, 0),), recomputable=False)
        graph.add_edge(f"w{k}", f"u{k}", at=(0,))
        graph.add_edge(f"g{k}", f"u{k}", at=(1,))
    return graph


def updating_early(_problem: Problem) -> Proposal:
    return Proposal(steps("a g1 u1 -g1 g2 -a u2 -g2"))


def test_the_step_is_not_blamed_where_another_order_goes_below_it() -> None:
    # Residents 20 and both gradients: 40. Updating w1 before g2 is made leaves 20 + 1 + 10.
    late = missed(early_and_late(), 30, strategy=lambda problem: Proposal(keep_all(problem.graph)))
    assert late.phase == "update"
    assert "(40 bytes: parameters 20 B, gradients 20 B)" in str(late)
    early = missed(early_and_late(), 30, strategy=updating_early)
    assert (early.phase, early.minimum) == (None, 31)
    assert "cannot help" not in str(early)


def test_activations_that_live_through_an_update_are_not_its_own() -> None:
    graph = early_and_late()
    graph.add_node("large", nbytes=100, phase="forward")
    graph.add_edge("w1", "large")
    graph.add_node("used", nbytes=1, phase="backward", output=True)
    graph.add_edge("large", "used")
    graph.add_edge("u1", "used", reads=(), at=())
    order = ["w1", "w2", "a", "large", "g1", "g2", "u1", "used", "u2"]
    for position, name in enumerate(order):
        graph.nodes[name]["position"] = position
    error = missed(graph, 110, strategy="chen-budget")
    assert error.phase is None  # op "used" needs 121 by itself, the updates 40
    assert error.binding_op in ("large", "used")


# ------------------------------------------------------------------------------------------------ the loss tail


@pytest.mark.parametrize("allocator", ["auto", None])
def test_c5_at_24gib_the_loss_tail_is_too_large_and_2_chunks_help(allocator: str | None) -> None:
    error = missed(C5_TAIL.digraph(), "24GiB", allocator=allocator)
    assert (error.phase, error.proven, error.peak_lower_bound) == ("loss", True, 39_829_110_788)
    assert error.binding_op == "g32"
    best = error.remedies[0]
    assert (best.action, best.fits) == ("Loss in 2 chunks", True)
    assert best.peak_bytes == 2 * 19_914_555_392 // 2 + 2 * 134_217_728
    assert "recomputation cannot help, for the loss tail is too large: op 'g32' alone needs 37.09 GiB" in str(error)


def test_c5_at_6gb_8_chunks_help() -> None:
    best = missed(C5_TAIL.digraph(), "6GB").remedies[0]
    assert (best.action, best.peak_bytes) == ("Loss in 8 chunks", 5_247_074_304)


def test_the_loss_tail_is_not_blamed_for_residents_that_are_too_large_themselves() -> None:
    error = missed(cases.replace(C5_TAIL, resident=30_000_000_000).digraph(), "24GiB")
    assert (error.phase, error.binding_op, error.proven) == (None, "g32", True)
    assert "residents 27.94 GiB" in str(error)


def test_c5_without_a_loss_phase_is_bound_by_an_op_and_no_chunks_are_promised() -> None:
    error = missed(cases.replace(cases.C5, loss=()).digraph(), "24GiB")
    assert (error.phase, error.binding_op) == (None, "g32")
    assert "chunk" not in str(error)


def test_a_promised_chunked_loss_can_be_planned_within_the_budget() -> None:
    size: dict[str, Any] = {"batch": 4, "tokens": 256, "hidden": 64, "heads": 4, "vocabulary": 20011}
    whole = planner.optimize(zoo.gpt(1, **size), allocator=None).report.plan.peak_bytes
    error = missed(zoo.gpt(1, **size), whole * 3 // 5, allocator=None)
    assert error.phase == "loss"
    best = error.remedies[0]
    chunks = int(best.action.split()[2])
    plan = planner.optimize(zoo.gpt(1, loss_chunks=chunks, **size), allocator=None)
    assert abs(best.peak_bytes / plan.report.plan.peak_bytes - 1) < 0.05


def test_a_loss_is_divided_into_no_more_chunks_than_it_has_rows() -> None:
    for graph, chunked in (
        (zoo.resnet((1, 1), batch=8, image=32, classes=10), ["Loss in 8 chunks"]),  # one row an image
        (zoo.gpt(1, batch=2, tokens=16, hidden=16, heads=2, vocabulary=101), ["Loss in 32 chunks"]),  # 2 * 16 tokens
        (zoo.unet(1, batch=3, image=20, channels=2, padding=1), ["Loss in 1200 chunks"]),  # 3 * 20 * 20 pixels
        (zoo.mlp([4, 3], batch=1), []),  # a single row is not divided
    ):
        actions = [remedy.action for remedy in planner.estimate(graph).advice(1).remedies]
        assert [action for action in actions if "chunk" in action] == chunked


# ------------------------------------------------------------------------------------------------ the batch


def test_the_batch_is_named_where_every_input_has_it_first() -> None:
    assert batch_of(planner.lower(zoo.resnet((1, 1), batch=6, image=32, classes=10))) == 6
    assert batch_of(planner.lower(zoo.gpt(1, batch=2, tokens=16, hidden=16, heads=2, vocabulary=101))) is None
    assert batch_of(planner.lower(zoo.chain(3))) is None


@pytest.mark.parametrize(
    "build", [lambda batch: zoo.mlp([64] * 9, batch=batch), lambda batch: zoo.resnet((1, 1), batch=batch, image=32)]
)
def test_the_batch_that_is_promised_fits_and_a_tenth_more_does_not(build: Any) -> None:
    batch = 256
    least = planner.optimize(build(batch), allocator=None).report.plan.peak_bytes
    budget = least * 2 // 3
    error = missed(build(batch), budget, allocator=None)
    note = error.remedies[0].note
    assert note.startswith("A batch of about ")
    assert f"not {batch}" in note
    promised = int(note.split()[4].rstrip(","))
    assert 0 < promised < batch
    planner.optimize(build(promised), budget, allocator=None)
    missed(build(promised * 11 // 10), budget, allocator=None)


def test_no_batch_is_promised_for_a_graph_without_parameters() -> None:
    error = missed(cases.C1.digraph(), 2)
    assert error.remedies == ()
    assert str(error).endswith("or make the batch smaller.")


def test_the_part_of_the_batch_is_that_of_the_step_that_allows_least() -> None:
    # (70 - 20) / 80 and (70 - 60) / 20; the third step fits as it is.
    held = [(100, 20), (80, 60), (70, 0)]
    half, three, none = (smaller_batch(held, 70, batch=batch) for batch in (None, 7, 1))
    fixed = smaller_batch(held, 59)
    assert half and three and none and fixed  # noqa: PT018
    assert half.note == "About 50% of the batch would fit as it is."
    assert three.note.startswith("A batch of about 3, not 7,")
    assert not none.fits
    assert (fixed.fits, fixed.peak_bytes) == (False, 60)
    assert smaller_batch(held, 100) is None


# ------------------------------------------------------------------------------------------------ laws


@given(digraph=digraphs(), memory=memory_models(), data=st.data())
def test_every_byte_of_any_legal_schedule_is_given_to_one_component(
    digraph: nx.DiGraph, memory: MemoryModel, data: st.DataObject
) -> None:
    graph = planner.lower(digraph)
    schedule = data.draw(loose_schedules(graph))
    run = Simulated(graph, memory, schedule=schedule)
    assert run.table.sum(axis=0).tolist() == naive_timeline(graph, schedule, memory=memory)


@given(digraph=digraphs(), memory=memory_models())
def test_a_budget_of_one_byte_is_infeasible_for_any_graph_that_needs_two(
    digraph: nx.DiGraph, memory: MemoryModel
) -> None:
    graph = planner.lower(digraph)
    assume(planner.simulate(graph, keep_all(graph), memory=memory).peak_bytes > 1)
    with pytest.raises(InfeasibleBudget) as caught:
        planner.optimize(
            graph, 1, strategy=lambda asked: Proposal(keep_all(asked.graph)), allocator=None, memory=memory
        )
    assert caught.value.minimum == planner.simulate(graph, keep_all(graph), memory=memory).peak_bytes + (
        memory.reserve or 0
    )


# ------------------------------------------------------------------------------------------------ the command


def planned(run: Callable[..., Answer], path: Path, graph: nx.DiGraph | planner.Graph, *options: str) -> Answer:
    path.write_bytes(planner.lower(graph).to_json())
    return run("optimize", path, "--strategy", "chen-budget", *options)


def test_the_command_says_cause_and_remedy_in_one_line_and_the_least_that_works_on_the_last(run, tmp_path) -> None:
    answer = planned(run, tmp_path / "g.json", step("multi-tensor"), "--budget", "5.5GB")
    assert (answer.code, answer.out) == (4, "")
    cause, least = answer.err.splitlines()
    assert "the optimizer step" in cause
    assert "Per-tensor update: 4.80 GiB (5151919584 bytes)." in cause
    part = "100% of the peak without recomputation"
    assert least == f"Least that works: 5.67 GiB (6086532640 bytes, 'chen-budget'), {part}. Raise the budget to that."


def test_the_command_in_json_has_the_facts(run, tmp_path) -> None:
    answer = planned(run, tmp_path / "g.json", C5_TAIL.digraph(), "--budget", "6GB", "--json")
    told = json.loads(answer.out)
    assert (answer.code, told["error"], told["phase"], told["proven"]) == (4, "InfeasibleBudget", "loss", True)
    best = told["remedies"][0]
    assert (best["action"], best["peak_bytes"], best["fits"]) == ("Loss in 8 chunks", 5_247_074_304, True)
    assert answer.err.splitlines()[-1].startswith("Least that works: 37.09 GiB (39829110788 bytes")


def test_the_error_crosses_process_borders_with_its_remedies() -> None:
    error = missed(C5_TAIL.digraph(), "6GB")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), vars(again)) == (str(error), vars(error))


def test_a_plan_whose_peak_is_the_optimizer_step_says_so() -> None:
    report = planner.optimize(step("multi-tensor"), allocator=None).report
    assert report.peak_phase == "update"
    assert "(optimizer step)" in str(report)
    assert "(optimizer step)" not in str(planner.optimize(zoo.chain(8)).report)


def test_what_only_activations_cannot_mend_is_not_said_of_all_recomputation() -> None:
    # gradients of parameters made a second time go below what the optimizer step holds; segments never make them
    graph = planner.lower(zoo.resnet(50, batch=8, image=64))
    fits = planner.optimize(graph, "80%")
    with pytest.raises(InfeasibleBudget) as caught:
        planner.optimize(graph, "80%", strategy="chen-budget")
    assert caught.value.phase == "update"
    assert not caught.value.proven
    assert "unless gradients are made twice or parameters updated early" in str(caught.value)
    assert fits.report.plan.arena_bytes <= caught.value.budget
