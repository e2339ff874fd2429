"""`shared/cases.md`: the public cases with known answers, for every strategy that is registered.

Numbers are those of `cases.md`, computed there by an exhaustive oracle. Model R has no arena, so its budgets are live
bytes (`allocator=None`) wherever packing may add to them.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import cases
import networkx as nx
import pytest
from naive import history
from offenders import every

import planner
from planner import InfeasibleBudget, Plan, optimize
from planner.schedule import Compute
from planner.search import strategy_names

STRATEGIES = strategy_names()
# memonger counts in whole MiB, and sees nothing to cut in graphs of a few bytes.
BYTEWISE = [name for name in STRATEGIES if name != "memonger"]
C1_LEAST_COST = {3: 38, 4: 24, 5: 21, 6: 20, 7: 19, 8: 18}
C2_LEAST_COST = {288: 112, 264: 116, 256: 120, 248: 124, 232: 132, 224: 136}
C9_LEAST_COST = {**dict.fromkeys(range(25, 33), 49), **dict.fromkeys((33, 40, 1000), 41)}
C9_REPLAYED_LEAST_COST = {24: 50, 25: 49, 28: 49, 31: 49, 32: 42, 33: 41}


def attempt(graph: nx.DiGraph, budget: int | None, strategy: str, **options: Any) -> Plan | InfeasibleBudget:
    """What a user gets: a plan or the typed error."""
    try:
        return optimize(graph, budget, strategy=strategy, **options)
    except InfeasibleBudget as error:
        return error


def plan_or_none(graph: nx.DiGraph, budget: int | None, strategy: str) -> Plan | None:
    """A verified plan within the budget in live bytes, or None for the typed error, whose claims are checked too."""
    outcome = attempt(graph, budget, strategy, allocator=None)
    if isinstance(outcome, InfeasibleBudget):
        assert budget is not None
        assert outcome.budget == budget < outcome.minimum
        assert outcome.peak_lower_bound <= outcome.minimum
        return None
    trace = outcome.verify()
    assert budget is None or trace.peak_bytes <= budget
    return outcome


def live_at_start_of(plan: Plan, op: str) -> set[str]:
    """Names that are live when an op first runs, by the naive replay."""
    place = plan.schedule.steps.index(Compute(op))
    return set(history(plan.graph, plan.schedule)[place - 1].on)


@every(("strategy", "budget"), product(STRATEGIES, (9, 10, 12, 17)))
def test_c1_recomputes_nothing_where_the_baseline_fits(strategy: str, budget: int) -> None:
    plan = optimize(cases.C1.digraph(), budget, strategy=strategy)
    assert plan.verify().recomputed == {}
    assert plan.report.plan.cost == 17
    assert plan.report.optimal is not None
    free = optimize(cases.C1_FREE.digraph(), budget, strategy=strategy)
    assert (free.verify().recomputed, free.report.plan.cost) == ({}, 15)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_c1_is_never_cheaper_than_the_optimum_nor_above_its_budget(strategy: str) -> None:
    for budget in range(1, 9):
        plan = plan_or_none(cases.C1.digraph(), budget, strategy)
        if plan is not None:
            assert plan.report.plan.cost >= C1_LEAST_COST[budget], budget
            if plan.report.optimal:
                assert plan.report.plan.cost == C1_LEAST_COST[budget], budget


@every(("strategy", "budget"), product(STRATEGIES, (None, 9, 10, 13, 17)))  # within less, no plan has that peak
def test_c1_trap_a_redoing_everything_for_the_peak_of_the_baseline_is_never_chosen(
    strategy: str, budget: int | None
) -> None:
    plan = plan_or_none(cases.C1.digraph(), budget, strategy)
    if plan is not None and plan.report.plan.peak_bytes >= 9:
        assert plan.report.plan.cost == 17


@every(("strategy", "allocator", "name"), product(["auto", "chen-budget"], ["auto", None], ["trap-b", "trap-b-equal"]))
def test_c1_trap_b_the_group_size_is_chosen_well(strategy: str, allocator: str | None, name: str) -> None:
    case, most = cases.CASES[name], {"trap-b": 41, "trap-b-equal": 56}[name]
    plan = optimize(case.digraph(), strategy=strategy, allocator=allocator)
    assert plan.verify().peak_bytes <= most
    assert plan.report.plan.arena_bytes <= most
    with pytest.raises(InfeasibleBudget) as caught:
        optimize(case.digraph(), 10, strategy=strategy, allocator=allocator)
    assert caught.value.minimum <= most


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_c2_never_pays_144_for_the_peak_of_the_baseline(strategy: str) -> None:
    for budget, allocator in product((None, 216, 240, 280, 295, 296, 297, 304, 336, *C2_LEAST_COST), ("auto", None)):
        plan = attempt(cases.C2.digraph(), budget, strategy, allocator=allocator)
        if isinstance(plan, InfeasibleBudget):
            continue
        figures = plan.report.plan
        assert (figures.peak_bytes, figures.cost) != (296, 144), (budget, allocator)
        assert budget is None or figures.arena_bytes <= budget, (budget, allocator)
        assert figures.peak_bytes < 296 or figures.cost == 108, (budget, allocator)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_c2_costs_108_at_its_baseline_and_never_less_than_the_optimum_below(strategy: str) -> None:
    plan = plan_or_none(cases.C2.digraph(), 296, strategy)
    assert plan is not None
    assert (plan.report.plan.peak_bytes, plan.report.plan.cost) == (296, 108)
    for budget, least in C2_LEAST_COST.items():
        below = plan_or_none(cases.C2.digraph(), budget, strategy)
        assert below is None or below.report.plan.cost >= least
    with pytest.raises(InfeasibleBudget) as caught:
        optimize(cases.C2.digraph(), 223, strategy=strategy, allocator=None)
    assert caught.value.binding_op == "ge1"
    assert caught.value.peak_lower_bound == 224
    assert caught.value.proven


@every("strategy", STRATEGIES)
def test_c3_needs_no_recomputation_at_163(strategy: str) -> None:
    plan = optimize(cases.C3.digraph(), 163, strategy=strategy)
    assert plan.verify().recomputed == {}
    assert (plan.report.plan.cost, plan.report.resident_bytes) == (25, 100)


@every(("strategy", "allocator"), product(BYTEWISE, ["auto", None]))
def test_c3_below_the_bound_says_what_binds_and_what_works(strategy: str, allocator: str | None) -> None:
    with pytest.raises(InfeasibleBudget) as caught:
        optimize(cases.C3.digraph(), 159, strategy=strategy, allocator=allocator)
    error = caught.value
    assert (error.budget, error.peak_lower_bound, error.binding_op, error.proven) == (159, 160, "gb", True)
    assert set(error.live) == {"gc", "b", "gb"}
    assert 160 <= error.minimum <= 161
    assert "'gb'" in str(error)
    assert str(error.minimum) in str(error)
    again = optimize(cases.C3.digraph(), error.minimum, strategy=strategy, allocator=allocator)
    assert again.verify().peak_bytes <= error.minimum


@every("strategy", BYTEWISE)
def test_c3_at_160_is_not_called_impossible(strategy: str) -> None:
    outcome = attempt(cases.C3.digraph(), 160, strategy, allocator=None)
    if isinstance(outcome, InfeasibleBudget):
        assert (outcome.proven, outcome.minimum) == (False, 161)
    else:
        assert outcome.report.plan.cost >= 31
    at_161 = plan_or_none(cases.C3.digraph(), 161, strategy)
    assert at_161 is not None
    assert at_161.report.plan.cost == 26


@every("name", ["C5", "C5-returned"])
def test_c5_24gib_is_infeasible_whatever_is_done_elsewhere(name: str) -> None:
    with pytest.raises(InfeasibleBudget) as caught:
        optimize(cases.CASES[name].digraph(), "24GiB", allocator=None)
    assert caught.value.proven
    assert caught.value.peak_lower_bound == 39_829_110_788
    assert caught.value.binding_op == "g32"


def test_c4_one_layer_a_hundred_times_counts_its_weight_once() -> None:
    plan = optimize(cases.c4(), memory=planner.MemoryModel())
    assert plan.report.keep_all.peak_bytes == 101 * 10240 * 1024 * 4 + 1024 * 1024 * 4 + 1024 * 4


@every("strategy", STRATEGIES)
def test_c7_b_first_fits_48_at_cost_39_with_b1_gone_before_backward(strategy: str) -> None:
    plan = optimize(cases.C7_B_FIRST.digraph(), 48, strategy=strategy)
    assert (plan.verify().peak_bytes, plan.report.plan.cost) == (48, 39)
    live = live_at_start_of(plan, "gA2")
    assert "B1" not in live
    assert {"t1", "t2", "A1", "A2", "B2"} <= live
    for budget, least in ((38, 47), (40, 43)):
        below = plan_or_none(cases.C7_B_FIRST.digraph(), budget, strategy)
        assert below is None or below.report.plan.cost >= least
    with pytest.raises(InfeasibleBudget):
        optimize(cases.C7_B_FIRST.digraph(), 37, strategy=strategy, allocator=None)


@every("strategy", STRATEGIES)
def test_c7_without_the_unused_head_and_with_a_frozen_trunk(strategy: str) -> None:
    dead = optimize(cases.C7_DEAD.digraph(), 31, strategy=strategy)
    assert (dead.verify().peak_bytes, dead.report.plan.cost) == (31, 28)
    for budget, least in ((24, 40), (25, 32), (30, 32)):
        below = plan_or_none(cases.C7_DEAD.digraph(), budget, strategy)
        assert below is None or below.report.plan.cost >= (least if budget < 30 else 28)
    frozen = optimize(cases.C7_FROZEN.digraph(), 40, strategy=strategy)
    assert (frozen.verify().peak_bytes, frozen.report.plan.cost) == (40, 29)
    live = live_at_start_of(frozen, "gA2")
    assert "t1" not in live
    assert {"t2", "A1"} <= live


def test_c7_an_unread_head_that_is_no_output_is_called_dead() -> None:
    graph = cases.C7_B_FIRST.digraph()
    graph.remove_edge("B2", "gA2")
    nx.set_node_attributes(graph, {"gA2": {"inplace": ()}, "B2": {"output": False}})
    assert set(planner.lower(graph).dead) == {"B1", "B2"}


def test_c8_takes_the_two_legal_pairs_and_the_third_when_c2_is_not_returned() -> None:
    kept = optimize(cases.c8(), 10**9)
    assert {(o, i) for _, o, i in kept.verify().inplace_taken} == {("r1", "n1"), ("r2", "s")}
    freed = optimize(cases.c8(c2_returned=False), 10**9)
    assert ("s", "c2") in {(o, i) for _, o, i in freed.verify().inplace_taken}


@every(("strategy", "budget"), product(STRATEGIES, C9_LEAST_COST))
def test_c9_the_random_mask_is_never_drawn_again(strategy: str, budget: int) -> None:
    plan = plan_or_none(cases.C9.digraph(), budget, strategy)
    if plan is not None:
        assert plan.schedule.computes.count("k") == 1
        assert plan.report.plan.cost >= C9_LEAST_COST[budget]
    else:
        assert budget < 33


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_c9_nothing_goes_below_24_with_a_replayed_mask_or_25_with_a_saved_one(strategy: str) -> None:
    assert optimize(cases.C9.digraph(), strategy=strategy).report.plan.peak_bytes >= 25
    assert optimize(cases.C9_REPLAYED.digraph(), strategy=strategy).report.plan.peak_bytes >= 24
    for budget, least in C9_REPLAYED_LEAST_COST.items():
        plan = plan_or_none(cases.C9_REPLAYED.digraph(), budget, strategy)
        assert plan is None or plan.report.plan.cost >= least
    with pytest.raises(InfeasibleBudget):
        optimize(cases.C9.digraph(), 24, strategy=strategy, allocator=None)
