"""The strategy "cuts": published figures, public cases, graphs without phases, what no search may do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cases
import networkx as nx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from naive import least_cost, least_peak, naive_cost
from strategies import digraphs, memory_models
from test_laws import GRAPHS, PERCENT, budget_of, layered_digraphs

from bench import remat
from planner import InfeasibleBudget, MemoryModel, Plan, TimeLimit, lower, optimize, simulate
from planner.analysis.evaluator import evaluator_of
from planner.bounds.certificate import certified_cost
from planner.problem import Problem, Stop
from planner.search.cuts import cuts
from planner.search.evict import Eviction
from planner.search.repair import Repair, reruns

SOME = settings(max_examples=settings().max_examples // 2, suppress_health_check=list(HealthCheck))

#: `rematerialisation.md` 4a: "cut + mix", or the best known before where that is lower; overhead in percent, live
#: bytes.
PUBLISHED = {
    ("aten_resnet1001", 0.5): 9.00, ("aten_resnet1001", 0.3): 16.40, ("aten_resnet1001", 0.15): 24.02,
        ("aten_resnet1001", 0.1): 29.88,
    ("aten_resnet152", 0.5): 8.84, ("aten_resnet152", 0.3): 16.81, ("aten_resnet152", 0.2): 22.52,
    ("aten_resnet50", 0.5): 8.87, ("aten_resnet50", 0.3): 18.42, ("aten_gpt", 0.8): 2.83, ("aten_gpt", 0.6): 12.32,
    ("gpt12", 0.5): 6.86, ("gpt96", 0.5): 6.50, ("cm_resnet50", 0.5): 1.58, ("cm_resnet50", 0.4): 2.44, ("cm_mobilenet",
        0.5): 1.64,
    ("cm_vgg_unet", 0.8): 1.98, ("cm_vgg_unet", 0.6): 4.45, ("cm_vgg_unet", 0.5): 6.97, ("unet_own", 0.5): 3.31,
    ("resnet50_own", 0.5): 7.76, ("vgg16chain", 0.5): 0.39, ("cm_vgg16", 0.9): 1.97, ("rl100", 0.9): 0.79,
    ("chain100", 0.5): 25.5, ("chain100", 0.25): 38.0,
}  # fmt: skip


@pytest.mark.parametrize(("name", "fraction"), PUBLISHED)
def test_plans_are_as_cheap_as_the_best_published(name: str, fraction: float, shared: Path) -> None:
    if remat.missing(name):
        pytest.skip("shared files absent")
    graph = lower(remat.read(name))
    evaluator = evaluator_of(graph, MemoryModel())
    kept = evaluator.evaluate(evaluator.keep_all)
    assert kept is not None
    budget = int(fraction * kept[0])
    trace = simulate(graph, cuts(Problem(graph, budget)).schedule)
    assert trace.peak_bytes <= budget
    assert 100 * (trace.cost / kept[1] - 1) <= PUBLISHED[name, fraction] + 0.006
    assert certified_cost(graph, MemoryModel(), budget).cost <= trace.cost


@pytest.mark.parametrize(("name", "fraction"), [
    ("gpt12", 0.5), ("gpt96", 0.5), ("chain100", 0.5), ("chain100", 0.25), ("cm_vgg16", 0.9), ("cm_vgg_unet", 0.8),
    ("cm_vgg_unet", 0.6),
])  # fmt: skip
def test_some_plans_are_proven_cheapest_of_all(name: str, fraction: float, shared: Path) -> None:
    graph = lower(remat.read(name))
    evaluator = evaluator_of(graph, MemoryModel())
    kept = evaluator.evaluate(evaluator.keep_all)
    assert kept is not None
    budget = int(fraction * kept[0])
    assert (
        simulate(graph, cuts(Problem(graph, budget)).schedule).cost == certified_cost(graph, MemoryModel(), budget).cost
    )


@pytest.mark.parametrize(("name", "budget", "least"), [
    ("C1", 5, 21), ("C1", 6, 20), ("C1", 7, 19), ("C1", 8, 18), ("C2", 288, 112), ("C2", 264, 116), ("C3", 160, 31),
    ("C3", 161, 26), ("C7-b-first", 40, 43), ("C9", 25, 49), ("C9-replayed", 24, 50),
])  # fmt: skip
def test_public_cases_are_solved(name: str, budget: int, least: int) -> None:
    assert optimize(cases.CASES[name].digraph(), budget, strategy="cuts", allocator=None).report.plan.cost == least


@pytest.mark.parametrize(
    ("name", "least"), [("C1", 3), ("C2", 224), ("C3", 160), ("C7-b-first", 38), ("C9", 25), ("C9-replayed", 24)]
)
def test_without_a_budget_the_least_peak_of_the_public_cases_is_reached(name: str, least: int) -> None:
    assert optimize(cases.CASES[name].digraph(), strategy="cuts", allocator=None).report.plan.peak_bytes == least


@pytest.mark.parametrize(("budget", "least"), [(64, 2938), (500, 2502)])
def test_a_thousand_steps_within_ten_percent(budget: int, least: int) -> None:
    plan = optimize(cases.digraph(cases.chain(1000), ("g0",)), budget, strategy="cuts", allocator=None)
    assert plan.report.plan.cost <= 1.1 * least


def without_phases(digraph: nx.DiGraph) -> nx.DiGraph:
    plain = digraph.copy()
    for _, attributes in plain.nodes(data=True):
        attributes.pop("phase", None)
    return plain


@pytest.mark.parametrize("name", ["C1", "C3", "C9"])
def test_phases_are_not_needed(name: str) -> None:
    digraph = cases.CASES[name].digraph()
    graph = lower(without_phases(digraph))
    least = least_peak(graph)
    kept = optimize(digraph, allocator=None).report.keep_all.peak_bytes
    for budget in range(least, kept, max(1, (kept - least) // 3)):
        try:
            plan = optimize(without_phases(digraph), budget, strategy="cuts", allocator=None)
        except InfeasibleBudget:
            assert budget < least + (kept - least) // 2
            continue
        cost = least_cost(graph, budget)
        assert cost is not None
        assert cost <= plan.report.plan.cost <= 1.25 * cost


@SOME
@given(digraph=GRAPHS, memory=memory_models(), percent=PERCENT, phases=st.booleans())
def test_a_proposal_fits_and_costs_at_least_the_certificate(
    digraph: nx.DiGraph, memory: MemoryModel, percent: int, phases: bool
) -> None:
    graph = lower(digraph if phases else without_phases(digraph))
    budget = budget_of(graph, memory, percent)
    try:
        proposal = cuts(Problem(graph, budget, memory, effort=0.2))
    except InfeasibleBudget:
        return
    trace = simulate(graph, proposal.schedule, memory=memory)
    assert trace.peak_bytes <= budget
    assert trace.cost >= certified_cost(graph, memory, budget).cost


@SOME
@given(
    digraph=st.one_of(layered_digraphs(), digraphs(), layered_digraphs(aliasing=False)),
    memory=memory_models(),
    percent=PERCENT,
)
def test_relief_brings_the_step_within_the_budget_and_leaves_the_rest_legal(
    digraph: nx.DiGraph, memory: MemoryModel, percent: int
) -> None:
    graph = lower(digraph)
    evaluator = evaluator_of(graph, memory)
    eviction = Eviction(evaluator)
    budget = budget_of(graph, memory, percent)
    timeline = eviction.timeline(evaluator.keep_all)
    assert timeline is not None
    assert timeline.tolist() == list(
        simulate(graph, evaluator.schedule(evaluator.keep_all), memory=memory).timeline_bytes
    )
    step = int(timeline.argmax())
    if timeline[step] <= budget:
        return
    found = eviction.evict_at_peak(evaluator.keep_all, step, int(timeline[step]) - budget)
    if found is None:
        return
    assert found[: step + 1].tolist() == evaluator.keep_all[: step + 1].tolist()
    assert len(reruns(found)) == len(found) - len(evaluator.keep_all)
    after = eviction.timeline(found)
    if after is not None:
        trace = simulate(graph, evaluator.schedule(found), memory=memory)
        assert list(trace.timeline_bytes) == after.tolist()
        assert trace.cost >= naive_cost(graph, evaluator.schedule(evaluator.keep_all))
        if not any(op.view or op.updates or op.inplace for op in graph.ops):
            assert after[step] <= budget


def test_the_same_seed_gives_the_same_plan_and_a_deadline_is_kept() -> None:
    digraph = cases.CASES["C2"].digraph()
    graph = lower(digraph)
    assert cuts(Problem(graph, 232, seed=3)) == cuts(Problem(graph, 232, seed=3))
    assert cuts(Problem(graph, 232, seed=-1)).schedule.steps
    with pytest.raises(TimeLimit):
        cuts(Problem(graph, 232, stop=Stop(0.0)))
    proposal = cuts(Problem(graph, None, stop=Stop(0.0)))
    assert proposal.cut_short
    assert isinstance(optimize(digraph, 232, strategy="cuts", time_limit=60), Plan)


def test_interrupting_keeps_the_best_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = lower(cases.CASES["C2"].digraph())
    problem = Problem(graph, 232)
    repair = Repair.prune

    def interrupted(self: Repair, *args: Any) -> Any:
        problem.stop.interrupt()
        return repair(self, *args)

    monkeypatch.setattr(Repair, "prune", interrupted)
    proposal = cuts(problem)
    assert proposal.cut_short
    assert simulate(graph, proposal.schedule).peak_bytes <= 232
