"""Real ONNX files, planned end to end: a plan that verifies at each budget, or the least that works."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner import Graph, InfeasibleBudget, MemoryModel, Plan, from_onnx, load, lower, optimize

LIGHT = (
    "bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet", "vgg19",
    "zfnet512",
)  # fmt: skip
ACTIVATIONS = MemoryModel("activations")


def planned(graph: Graph, budget: str) -> Plan:
    """The plan at this budget, or the one at the least that works."""
    least = None
    try:
        return optimize(graph, budget, memory=ACTIVATIONS, effort=0.05)
    except InfeasibleBudget as error:
        least = error.minimum
    assert least is not None
    plan = optimize(graph, least, memory=ACTIVATIONS, effort=0.05)
    assert 0.999 * least <= plan.report.plan.arena_bytes <= least
    return plan


@pytest.mark.parametrize("budget", ["80%", "60%", "40%"])
@pytest.mark.parametrize("name", LIGHT)
def test_every_light_file_gets_a_plan_that_verifies_or_the_least_that_works(
    shared: Path, tmp_path: Path, name: str, budget: str
) -> None:
    graph = lower(from_onnx(shared / f"data/graphs/onnx_light/light_{name}.onnx"))
    plan = planned(graph, budget)
    plan.save(tmp_path / "plan.json")
    trace = load(tmp_path / "plan.json", graph).verify()
    assert plan.budget is not None
    assert trace.peak_bytes <= plan.report.plan.arena_bytes <= plan.budget
    assert trace.peak_bytes >= plan.report.peak_lower_bound


@pytest.mark.parametrize("name", ["densenet121", "squeezenet"])
def test_a_larger_batch_is_planned_from_the_file_itself(shared: Path, name: str) -> None:
    graph = lower(from_onnx(shared / f"data/graphs/onnx_light/light_{name}.onnx", batch=8))
    plan = optimize(graph, "50%", memory=ACTIVATIONS)
    assert plan.report.extra_runs > 0
    assert plan.report.overhead < 1 / 3  # at most one more forward pass beside a backward of twice its cost
    assert plan.execute(scale=256)
