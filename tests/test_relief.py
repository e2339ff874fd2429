"""What an explanation of the peak says would help: each number is that of the changed step, planned or run."""

from __future__ import annotations

import networkx as nx
import pytest
from strategies import dag

import planner
from planner import Plan, TrainingStep, zoo


def helps(plan: Plan, begins: str) -> str:
    """The line of what would help that begins so; "" where there is none."""
    lines = plan.explain().lines
    found = [line.strip() for line in lines if line.strip().startswith(begins)]
    assert len(found) == len([remedy for remedy in plan.explain().remedies if remedy.action.startswith(begins)]) <= 1
    return found[0] if found else ""


@pytest.fixture(scope="module")
def resnet() -> Plan:
    return planner.optimize(zoo.resnet((1, 1, 1, 1), batch=32, image=64), "60%", effort=0.05)


def test_the_largest_batch_said_to_fit_does_without_recomputation_and_one_more_does_not(resnet: Plan) -> None:
    said = helps(resnet, "Smaller batch")
    batch = int(said.split("A batch of about ")[1].split(",")[0])
    assert said.endswith(f"A batch of about {batch}, not 32, would fit without recomputation.")
    peaks = [planner.estimate(zoo.resnet((1, 1, 1, 1), batch=b, image=64)).peak_bytes for b in (batch, batch + 1)]
    assert resnet.budget is not None
    assert peaks[0] <= resnet.budget < peaks[1]


def test_updates_inside_the_backward_pass_cost_what_is_said(resnet: Plan) -> None:
    early = TrainingStep(update="inside-backward")
    graph = zoo.mlp([256, 256, 256, 256, 256, 256], batch=64)
    plan = planner.optimize(graph, "85%", effort=0.05)
    other = planner.optimize(graph, plan.budget, step=early, effort=0.05)
    assert 0 <= other.report.overhead < plan.report.overhead
    figures = f"{100 * other.report.overhead:+.2f} % cost in place of {100 * plan.report.overhead:+.2f} %"
    assert helps(plan, "Updates") == (
        f"Updates inside the backward pass (--update inside-backward): {figures} in this budget."
    )
    worse = planner.optimize(resnet.graph, resnet.budget, step=early, effort=0.05).report.overhead
    assert bool(helps(resnet, "Updates")) is (worse < resnet.report.overhead)


def sliced(*, copy: bool) -> nx.DiGraph:
    """a (1000) -> v, a slice of it (10) -> h (600) -> k (600); the backward pass reads k, then h and v."""
    nodes = {
        "x": {"nbytes": 8, "kind": "input"},
        "a": {"nbytes": 1000, "phase": "forward"},
        "v": {"nbytes": 10, "phase": "forward", **({} if copy else {"view": ((0, 0, 16),)})},
        "h": {"nbytes": 600, "phase": "forward"}, "k": {"nbytes": 600, "phase": "forward"},
        "b1": {"nbytes": 10, "phase": "backward"}, "b0": {"nbytes": 10, "phase": "backward"},
    }  # fmt: skip
    edges = [("x", "a"), ("a", "v", {"at": (0,)}), ("v", "h"), ("h", "k"), ("k", "b1"), ("b1", "b0", {"at": (0,)})]
    return dag(nodes, *edges, ("h", "b0", {"at": (1,)}), ("v", "b0", {"at": (2,)}))


def test_a_copy_of_a_slice_costs_what_is_said() -> None:
    # With the view, a is held or made again: at k, 8 + 1000 + 600 + 600 are too many. With a copy at most
    # 8 + 10 + 600 + 600 + 10 are held, at b1. Of 6 ops, a and v run twice: 2 / 6.
    plan = planner.optimize(sliced(copy=False), 1700)
    assert plan.report.extra_runs == 2
    held = "which keeps 1000 B of 'a'"
    figures = "+0.00 % cost in place of +33.33 % in this budget."
    assert helps(plan, "A copy") == f"A copy of 'v' in place of a view, {held}: {figures}"
    assert planner.optimize(sliced(copy=True), 1700).report.extra_runs == 0
    assert "What would help" not in str(planner.optimize(sliced(copy=True), 1700).explain())  # nothing is recomputed


def test_chunks_of_the_loss_are_named_where_the_loss_is_what_fills_the_peak(resnet: Plan) -> None:
    plan = planner.optimize(zoo.gpt(2, batch=4, tokens=128, hidden=64, heads=2, vocabulary=5000), "88%", effort=0.05)
    # Logits of 4 x 128 rows of 5000 float32, and as much again that the loss makes of them: 20480000 B.
    assert "The loss holds 19.53 MiB of the peak." in helps(plan, "Loss in ")
    (remedy,) = [each for each in plan.explain(search=False).remedies if each.action.startswith("Loss")]
    chunks = int(remedy.action.split()[2])
    # Once weights and tokens are there, a chunk of the gradient of the logits, the hidden states of 4 x 128 x 64 and
    # their gradient stay, and gradients of the weights of 5000 x 64: of this chunk, and the sum of those before.
    resident_bytes = plan.report.resident_bytes
    assert remedy.peak_bytes == resident_bytes + 10_240_000 // chunks + 2 * 131_072 + 2 * 1_280_000
    assert 10 * remedy.peak_bytes <= 11 * (resident_bytes + 10_240_000 // 512 + 2 * 131_072 + 2 * 1_280_000)
    assert helps(resnet, "Loss in ") == ""
