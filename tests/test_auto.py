"""`auto` against the public cases with known answers (`cases.md`): exact at every budget listed, and least peaks."""

from __future__ import annotations

import cases
import pytest

import planner
from bench import remat
from bench.generators import layered
from planner import InfeasibleBudget, optimize, zoo

#: Case -> budget in live bytes -> least cost, by the exhaustive oracle of `cases.md`.
LEAST_COST: dict[str, tuple[cases.Case, dict[int, float]]] = {
    "C1": (cases.C1, {3: 38, 4: 24, 5: 21, 6: 20, 7: 19, 8: 18, 9: 17}),
    "C2": (cases.C2, {288: 112, 264: 116, 256: 120, 248: 124, 232: 132, 224: 136}),
    "C3": (cases.C3, {160: 31, 161: 26, 163: 25}),
    "C7": (cases.C7, {38: 47, 40: 43, 48: 39}),
    "C7 dead": (cases.C7_DEAD, {24: 40, 25: 32, 31: 28}),
    "C7 frozen": (cases.C7_FROZEN, {38: 37, 40: 29}),
    "C9": (cases.C9, {25: 49, 32: 49, 33: 41}),
    "C9 replayed": (cases.C9_REPLAYED, {24: 50, 25: 49, 31: 49, 32: 42}),
}
MINIMUM = {"C1": 3, "C2": 224, "C3": 160, "C7": 38, "C7 dead": 24, "C9": 25, "C9 replayed": 24}


def test_the_optimum_of_a_public_case_is_found() -> None:
    for name, budget in [(name, budget) for name, (_, costs) in LEAST_COST.items() for budget in costs]:
        case, costs = LEAST_COST[name]
        plan = optimize(case.digraph(), budget, allocator=None)
        assert plan.report.plan.cost == costs[budget]
        plan.verify()


def test_the_least_peak_of_a_public_case_is_found() -> None:
    for name in MINIMUM:
        case = LEAST_COST[name][0]
        assert optimize(case.digraph(), allocator=None).report.plan.peak_bytes == MINIMUM[name]
        with pytest.raises(InfeasibleBudget) as caught:
            optimize(case.digraph(), MINIMUM[name] - 1, allocator=None)
        assert caught.value.minimum == MINIMUM[name]


def test_c5_splits_nothing_and_says_what_no_plan_goes_below() -> None:
    with pytest.raises(InfeasibleBudget) as caught:
        optimize(cases.C5.digraph(), "24GiB", allocator=None)
    assert (caught.value.proven, caught.value.minimum) == (True, 39_829_110_788)


@pytest.mark.parametrize("model", ["unet:2", "gpt:2"])
def test_more_effort_never_finds_less(model: str) -> None:
    small = {"unet:2": {"image": 64, "padding": 1}, "gpt:2": {"hidden": 32, "heads": 2, "tokens": 16, "vocabulary": 64}}
    program = planner.lower(zoo.build(model, batch=2, **small[model]))
    report = optimize(program, allocator=None).report
    least, most = report.plan.peak_bytes, report.keep_all.peak_bytes
    for budget in (least, least + (most - least) // 3):
        costs = [
            optimize(program, budget, allocator=None, effort=effort).report.plan.cost for effort in (1.0, 2.0, 5.0)
        ]
        assert costs == sorted(costs, reverse=True)


#: C10: a chain of 1000 forward steps; the least cost of any plan, or between which costs of other budgets it lies.
C10 = {
    8: (6286, 6286), 16: (4186, 4186), 32: (3474, 3474), 64: (2938, 2938), 66: (2001, 2938), 500: (2001, 2938),
        1001: (2001, 2001),
}  # fmt: skip


@pytest.fixture(scope="module")
def thousand() -> planner.Graph:
    return planner.lower(cases.digraph(cases.chain(1000), ("g0",)))


@pytest.mark.parametrize("budget", C10)
def test_c10_is_met_within_a_tenth(thousand: planner.Graph, budget: int) -> None:
    plan = optimize(thousand, budget, allocator=None)
    assert plan.verify().peak_bytes <= budget
    least, most = C10[budget]
    assert least <= plan.report.plan.cost <= 1.1 * most


def test_a_large_graph_without_a_backward_pass_is_planned_no_dearer_than_by_cuts() -> None:
    graph = planner.lower(remat.converted(layered(2600, width=30, seed=1)))
    costs = {name: optimize(graph, 0.95, strategy=name, allocator=None).report.plan.cost for name in ("auto", "cuts")}
    assert costs["auto"] <= costs["cuts"]
