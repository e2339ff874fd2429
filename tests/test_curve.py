"""The trade-off curve: its laws on random training graphs, its files, its figure and its command."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import networkx as nx
import pytest
from conftest import Answer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from naive import canonical_steps, least_cost
from strategies import memory_models, simple_digraphs
from test_cli import error_lines
from test_laws import GRAPHS as TRAINING_GRAPHS
from test_laws import layered_digraphs, outcome

import planner
from planner import Curve, InfeasibleBudget, MemoryModel, Plan, PlannerError, curve, lower, optimize, zoo
from planner.errors import OutputError, PlanFileError, TimeLimit, UnitError, UnknownAllocator, UnknownStrategy
from planner.graph import Graph, Op, Tensor
from planner.packing.allocators import first_fit
from planner.planning.curve import CSV_COLUMNS, SUFFIXES, Point
from planner.problem import Problem, Proposal
from planner.search import auto, strategy_names
from planner.search.chen import chen_budget, chen_sqrt
from planner.simulator import simulate

STRATEGIES = ("auto", "chen-sqrt")
ON_RANDOM_GRAPHS = settings(max_examples=settings().max_examples // 3, suppress_health_check=list(HealthCheck))
GRAPHS = st.one_of(TRAINING_GRAPHS, st.integers(3, 12).map(zoo.chain))
PERCENTS = st.lists(st.sampled_from(["5%", "30%", "50%", "70%", "80%", "90%", "100%"]), min_size=1, max_size=4)
BUDGETS = st.one_of(st.integers(1, 6), PERCENTS)


@pytest.fixture(scope="module")
def chain() -> Curve:
    """A curve of two strategies with points on the front and off it, and budgets that nothing fits."""
    return curve(zoo.chain(12), [3, 6, 7, 8, 10, 12, 13], strategies=("chen-budget", "chen-sqrt"))


def fits(found: Curve) -> list[Point]:
    return [point for point in found.points if point.status == "fits"]


def undominated(plans: set[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """(arena, cost) of the plans that no other betters, smallest first."""
    return sorted((a, c) for a, c in plans if not any((b, d) != (a, c) and b <= a and d <= c for b, d in plans))


# laws


@ON_RANDOM_GRAPHS
@given(
    digraph=GRAPHS,
    budgets=BUDGETS,
    memory=memory_models(),
    reserve=st.sampled_from([0, 5]),
    allocator=st.sampled_from(["auto", None]),
)
def test_within_a_strategy_a_larger_budget_never_costs_more_and_no_arena_exceeds_its_budget(
    digraph: nx.DiGraph, budgets: Any, memory: MemoryModel, reserve: int, allocator: str | None
) -> None:
    memory = MemoryModel(memory.scope, memory.alignment, reserve)
    found = curve(digraph, budgets, strategies=STRATEGIES, memory=memory, allocator=allocator)
    assert [point.strategy for point in found.points] == sorted(
        (p.strategy for p in found.points), key=STRATEGIES.index
    )
    for strategy in STRATEGIES:
        points = found.of(strategy)
        assert [p.budget for p in points] == sorted({p.budget for p in points})
        assert len(points) * len(STRATEGIES) == len(found.points)
        costs = [p.cost for p in points if p.cost is not None]
        assert costs == sorted(costs, reverse=True)
        assert [p.status for p in points] == sorted((p.status for p in points), key=["infeasible", "fits"].index)
        assert all(p.peak_bytes <= p.arena_bytes <= p.budget - reserve for p in points if p.status == "fits")  # type: ignore[operator]


@ON_RANDOM_GRAPHS
@given(digraph=GRAPHS, budgets=BUDGETS, memory=memory_models(), reserve=st.sampled_from([0, 5]))
def test_a_point_is_no_worse_than_the_plan_of_its_budget_and_misses_only_with_a_minimum_that_works(
    digraph: nx.DiGraph, budgets: Any, memory: MemoryModel, reserve: int
) -> None:
    graph = lower(digraph)
    memory = MemoryModel(memory.scope, memory.alignment, reserve)
    found = curve(graph, budgets, strategies=STRATEGIES, memory=memory)
    for point in found.points:
        plan = outcome(graph, point.budget, strategy=point.strategy, memory=memory)
        if point.cost is None:
            assert isinstance(plan, InfeasibleBudget)
            assert point.minimum is not None
            assert point.budget < point.minimum <= (plan.minimum or 0)
            assert (
                optimize(graph, point.minimum, strategy=point.strategy, memory=memory).report.needed_bytes
                <= point.minimum
            )
        elif isinstance(plan, Plan):
            assert point.cost <= plan.report.plan.cost
            assert found.keep_all == plan.report.keep_all
            assert found.peak_lower_bound == lower_bound_of(plan)


def lower_bound_of(plan: Plan) -> int:
    from planner.bounds.peak import peak_lower_bound

    return peak_lower_bound(plan.graph, plan.memory).nbytes


@ON_RANDOM_GRAPHS
@given(digraph=GRAPHS, budgets=BUDGETS)
def test_the_front_is_what_no_point_dominates(digraph: nx.DiGraph, budgets: Any) -> None:
    found = curve(digraph, budgets, strategies=STRATEGIES)
    plans = {(p.arena_bytes, p.cost) for p in fits(found)}
    assert [(p.arena_bytes, p.cost) for p in found.front] == undominated(plans)
    assert set(map(id, found.front)) <= set(map(id, found.points))


@ON_RANDOM_GRAPHS
@given(digraph=GRAPHS, count=st.integers(1, 6), reserve=st.sampled_from([0, 5]))
def test_a_number_of_budgets_spans_least_peak_to_keep_all(digraph: nx.DiGraph, count: int, reserve: int) -> None:
    memory = MemoryModel(reserve=reserve)
    least = [optimize(digraph, strategy=strategy, memory=memory).report for strategy in STRATEGIES]
    low, high = min(report.needed_bytes for report in least), least[0].keep_all.arena_bytes + reserve
    found = curve(digraph, count, strategies=STRATEGIES, memory=memory)
    budgets = [p.budget for p in found.of("auto")]
    assert budgets[0] == max(1, low)
    assert len(budgets) == min(count, high - max(1, low) + 1)
    assert count == 1 or budgets[-1] == max(1, high)
    gaps = [right - left for left, right in pairwise(budgets)]
    assert all(right >= left - 1 for left, right in pairwise(gaps))  # dense at the least, to a byte of rounding
    assert any(p.status == "fits" for p in found.points)
    if count > 1 and high:
        assert all(found.of(strategy)[-1].overhead == 0 for strategy in STRATEGIES)


def test_a_chain_has_the_least_costs_of_public_case_c1_at_every_budget() -> None:
    points = curve(zoo.chain(8), [7, 8, 9]).points
    assert [(p.budget, p.cost, p.recomputed_ops, p.extra_runs) for p in points] == [
        (7, 19.0, 2, 2),
        (8, 18.0, 1, 1),
        (9, 17.0, 0, 0),
    ]


@ON_RANDOM_GRAPHS
@given(
    digraph=GRAPHS,
    budgets=BUDGETS,
    memory=memory_models(),
    reserve=st.sampled_from([0, 5]),
    rule=st.sampled_from([(), ("full",)]),
)
def test_a_bound_is_below_every_plan_holds_for_smaller_budgets_and_is_infinite_only_where_nothing_fits(
    digraph: nx.DiGraph, budgets: Any, memory: MemoryModel, reserve: int, rule: tuple[str, ...]
) -> None:
    memory = MemoryModel(memory.scope, memory.alignment, reserve)
    try:
        found = curve(digraph, budgets, strategies=STRATEGIES, memory=memory, recompute=rule)
    except PlannerError:
        assert rule  # a graph without a backward pass
        return
    for strategy in STRATEGIES:
        points = found.of(strategy)
        bounds = [math.inf if p.cost_lower_bound is None else p.cost_lower_bound for p in points]
        assert bounds == sorted(bounds, reverse=True)
        for point in points:
            assert (point.cost_lower_bound is None) == (point.budget < found.least_budget)
            if point.cost is not None and point.cost_lower_bound is not None:
                assert found.keep_all.cost * (1 - 1e-12) <= point.cost_lower_bound <= point.cost
                assert point.gap == pytest.approx((point.overhead or 0.0) - found.overhead_lower_bound(point), abs=1e-9)
    assert found.least_budget >= found.peak_lower_bound + reserve


@ON_RANDOM_GRAPHS
@given(
    digraph=st.one_of(simple_digraphs(most_ops=9), layered_digraphs(least=3, most=4, aliasing=False)),
    memory=memory_models(),
)
def test_no_schedule_at_all_costs_less_than_the_bound_of_its_budget(digraph: nx.DiGraph, memory: MemoryModel) -> None:
    graph = lower(digraph)
    for point in curve(graph, ["30%", "50%", "60%", "75%", "90%"], memory=memory, allocator=None).best:
        least = least_cost(graph, point.budget, memory=memory)
        if least is None:
            assert point.status == "infeasible"
        else:
            assert point.cost_lower_bound is not None
            assert point.cost_lower_bound <= least
            assert point.cost is None or least <= point.cost * (1 + 1e-12)


@ON_RANDOM_GRAPHS
@given(digraph=GRAPHS, budgets=BUDGETS)
def test_over_all_strategies_a_larger_budget_never_costs_more_and_the_best_point_has_its_plan(
    digraph: nx.DiGraph, budgets: Any
) -> None:
    found = curve(digraph, budgets, strategies=STRATEGIES)
    best = found.best
    assert [p.budget for p in best] == [p.budget for p in found.of("auto")]
    costs = [p.cost for p in best if p.cost is not None]
    assert costs == sorted(costs, reverse=True)
    for point in best:
        assert [
            p.cost
            for p in found.points
            if p.budget == point.budget and p.cost is not None and p.cost < (point.cost or 0)
        ] == []
        if point.status == "fits":
            plan = found.plan(point)
            trace = plan.verify()
            assert (plan.budget, plan.strategy) == (point.budget, point.strategy)
            assert (trace.cost, trace.peak_bytes, plan.report.plan.arena_bytes) == (
                point.cost,
                point.peak_bytes,
                point.arena_bytes,
            )


def test_chains_of_public_case_c1_are_proven_and_so_are_budgets_that_nothing_fits() -> None:
    found = curve(zoo.chain(8), [2, 7, 8, 9])
    proven = [(p.budget, p.cost_lower_bound, p.gap) for p in found.points]
    assert proven == [(2, None, None), (7, 19.0, 0.0), (8, 18.0, 0.0), (9, 17.0, 0.0)]
    assert found.least_budget == 3
    assert "proven to be the cheapest there are" in str(found)
    assert "points above it (8 B)" in str(curve(zoo.chain(8), [8, 9], strategies=chen_sqrt))


def test_what_can_never_run_again_proves_budgets_above_the_largest_working_set_hopeless() -> None:
    once = [Op(f"f{k}", (Tensor(f"f{k}", 4),), recomputable=False) for k in range(4)]
    after = Op("all", (Tensor("all", 1),), reads=("f0",), after=("f1", "f2", "f3"))
    graph = Graph(
        [*once, after, *(Op(f"b{k}", (Tensor(f"b{k}", 1, output=True),), reads=("all", f"f{k}")) for k in range(4))]
    )
    assert [least_cost(graph, budget) for budget in (16, 18)] == [None, 9.0]
    found = curve(graph, [12, 16, 18])
    assert found.peak_lower_bound < 12
    assert found.least_budget == 17
    assert [(p.status, p.cost_lower_bound) for p in found.points] == [
        ("infeasible", None),
        ("infeasible", None),
        ("fits", 9.0),
    ]
    assert "  auto at 12 B to 16 B does not fit, nor can any plan" in str(found)


def jumping(problem: Problem) -> Proposal:
    """A strategy whose plan costs more at a larger budget: as "chen-budget", but at 8 bytes as "chen-sqrt"."""
    return chen_sqrt(problem) if problem.budget == 8 else chen_budget(problem)


def test_a_cheaper_plan_of_a_smaller_budget_is_carried_to_a_larger_one() -> None:
    graph = zoo.chain(12)
    costs = [planner.simulate(graph, jumping(Problem(lower(graph), budget)).schedule).cost for budget in (8, 7)]
    assert costs[0] > costs[1]
    seven, eight = curve(graph, [7, 8], strategies=jumping).points
    assert eight.cost is not None
    assert seven.cost is not None
    assert eight.cost <= seven.cost


def test_costs_that_round_differently_in_another_order_break_no_law() -> None:
    graph = nx.DiGraph()
    for name, nbytes, cost in (("a", 10, 0.1), ("b", 10, 0.2), ("big", 100, 0.3)):  # 0.1 + 0.2 + 0.3 > 0.3 + 0.2 + 0.1
        graph.add_node(name, nbytes=nbytes, cost=cost, output=name != "big")

    def turned_round(problem: Problem) -> Proposal:
        return Proposal(canonical_steps(problem.graph, [op.name for op in reversed(problem.graph.ops)]))

    smaller, larger = curve(graph, [110, 120], strategies=turned_round).points
    assert smaller.arena_bytes == 100
    assert larger.cost <= smaller.cost  # type: ignore[operator]
    assert (smaller.overhead, larger.overhead) == (0.0, 0.0)


def test_budgets_are_taken_in_every_form_and_equals_once() -> None:
    graph = zoo.chain(8)  # keep-all peak 9
    found = curve(graph, ["9", 9, "100%", 1.0, "8B", "0.8", 0.8])
    assert [p.budget for p in found.points] == [7, 8, 9]
    assert [p.budget for p in curve(graph, "80%").points] == [7]
    assert [p.budget for p in curve(graph, 0.8).points] == [7]


def test_a_budget_that_nothing_fits_is_kept_and_named(chain: Curve) -> None:
    missing = [p for p in chain.points if p.status == "infeasible"]
    assert {(p.strategy, p.budget) for p in missing} == {
        ("chen-budget", 3),
        ("chen-budget", 6),
        ("chen-sqrt", 3),
        ("chen-sqrt", 6),
    }
    assert {p.minimum for p in missing} == {7}
    assert all(p.cost is None and p.arena_bytes is None for p in missing)
    for strategy in chain.strategies:
        assert f"  {strategy} at 3 B to 6 B does not fit; least that works 7 B\n" in f"{chain}\n"
    impossible = curve(zoo.chain(12), [2])
    assert "does not fit, nor can any plan" in str(impossible)  # two inputs and an output of one byte each
    assert impossible.front == ()


def wasteful(graph: planner.Graph, schedule: planner.Schedule, *, memory: MemoryModel) -> planner.Allocation:
    """First fit, one byte above where it could be."""
    tight = first_fit(graph, schedule, memory=memory)
    moved = tuple(msgspec.structs.replace(buffer, offset=buffer.offset + 1) for buffer in tight.buffers)
    return msgspec.structs.replace(tight, buffers=moved, arena_bytes=tight.arena_bytes + 1)


def test_budgets_are_held_against_the_arena_and_not_the_peak() -> None:
    options: dict[str, Any] = {"allocator": wasteful, "memory": MemoryModel(reserve=2)}
    found = curve(zoo.chain(12), [*range(10, 17)], **options)
    for point in found.points:
        report = optimize(zoo.chain(12), point.budget, **options).report
        assert (point.peak_bytes, point.arena_bytes) == (report.plan.peak_bytes, report.plan.peak_bytes + 1)
        assert (point.cost, point.recomputed_ops, point.extra_runs) == (
            report.plan.cost,
            report.recomputed_ops,
            report.extra_runs,
        )
        assert point.budget == report.needed_bytes
    assert found.allocator == "wasteful"


def inapplicable(problem: Problem) -> Proposal:
    raise InfeasibleBudget("not a chain", budget=0, minimum=None, peak_lower_bound=0, proven=False, binding_op=None)


def test_a_strategy_that_does_not_apply_has_keep_all_alone() -> None:
    found = curve(zoo.chain(8), 3, strategies=("auto", inapplicable))
    assert [(p.status, p.minimum, p.overhead) for p in found.of("inapplicable")] == [
        ("infeasible", 9, None),
        ("infeasible", 9, None),
        ("fits", None, 0.0),
    ]


def test_an_empty_graph_has_a_curve() -> None:
    found = curve(nx.DiGraph())
    assert [(p.arena_bytes, p.overhead) for p in found.points] == [(0, 0.0)]
    assert "Curve" in str(found)


def test_what_cannot_be_meant_is_refused_before_any_search() -> None:
    for arguments, error, named in [
        ({"budgets": 0}, PlannerError, "0"),
        ({"budgets": -3}, PlannerError, "-3"),
        ({"budgets": 7_000_000_000}, PlannerError, r"\[7000000000\]"),
        ({"budgets": True}, UnitError, "True"),
        ({"budgets": []}, PlannerError, "0 budgets"),
        ({"budgets": ["7Gb"]}, UnitError, "7Gb"),
        ({"budgets": [5, 1.5]}, UnitError, "1.5"),
        ({"budgets": object()}, PlannerError, "object"),
        ({"strategies": "best"}, UnknownStrategy, "best"),
        ({"strategies": ()}, PlannerError, "no strategy"),
        ({"strategies": ("auto", "auto")}, PlannerError, "'auto'"),
        ({"allocator": "best"}, UnknownAllocator, "best"),
        ({"jobs": 0}, PlannerError, "jobs 0"),
        ({"jobs": "2"}, PlannerError, "jobs '2'"),
        ({"order": "mixed"}, PlannerError, "mixed"),
        ({"effort": 0}, PlannerError, "effort"),
        ({"time_limit": 0}, PlannerError, "time limit"),
    ]:

        def search(problem: Problem) -> Proposal:
            raise AssertionError("a search was started")

        with pytest.raises(error, match=named):
            curve(zoo.chain(4), **{"strategies": search, **arguments})


# starts


class Asked:
    """As "chen-budget"; notes what it is asked."""

    __name__ = "asked"

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.answers: list[planner.Schedule | None] = []

    def __call__(self, problem: Problem) -> Proposal:
        self.problems.append(problem)
        self.answers.append(None)
        proposal = chen_budget(problem, sweeps=2)
        self.answers[-1] = proposal.schedule
        return proposal


def test_a_search_begins_from_the_plans_next_below_and_above() -> None:
    asked = Asked()
    graph = lower(zoo.resnet(50, batch=2, image=64))
    found = curve(graph, 8, strategies=asked, allocator=None)
    budgets = [problem.budget for problem in asked.problems]
    assert [None, *sorted(b for b in budgets if b is not None)] == [None, *(p.budget for p in found.points[:-1])]
    assert budgets[1:4] == [found.points[k].budget for k in (3, 1, 5)]
    assert asked.problems[0].starts == ()
    answered = [None if schedule is None else simulate(graph, schedule) for schedule in asked.answers]
    assert None in answered
    keep_all = found.keep_all
    for place, problem in enumerate(asked.problems[1:], start=1):
        budget = problem.budget
        assert budget is not None
        known = [trace for trace, other in zip(answered, asked.problems[:place], strict=False) if trace is not None]
        within = min((trace.cost for trace in known if trace.peak_bytes <= budget), default=math.inf)
        above = [t.peak_bytes for t in known if t.peak_bytes > budget and t.cost < within and t.cost > keep_all.cost]
        traces = [simulate(graph, schedule) for schedule in problem.starts]
        assert [trace.cost for trace in traces if trace.peak_bytes <= budget] == [within] * (within < math.inf)
        assert [trace.peak_bytes for trace in traces if trace.peak_bytes > budget] == ([min(above)] if above else [])


def thinning(problem: Problem) -> Proposal:
    """A strategy that does worse without its starts: the cheapest that fits, or else the plan of least peak."""
    fitting = [
        (simulate(problem.graph, s, memory=problem.memory).cost, k)
        for k, s in enumerate(problem.starts)
        if fit(problem, s)
    ]
    if not fitting:
        return chen_sqrt(msgspec.structs.replace(problem, budget=None) if problem.budget is None else problem)
    steps = problem.starts[min(fitting)[1]].computes
    for place in [k for k, name in enumerate(steps) if name in steps[:k]][:40]:
        try:
            fewer = canonical_steps(problem.graph, [*steps[:place], *steps[place + 1 :]])
            simulate(problem.graph, fewer, memory=problem.memory)
        except (PlannerError, KeyError):
            continue
        if fit(problem, fewer):
            return Proposal(fewer)
    return Proposal(problem.starts[min(fitting)[1]])


def fit(problem: Problem, schedule: planner.Schedule) -> bool:
    assert problem.budget is not None
    return simulate(problem.graph, schedule, memory=problem.memory).peak_bytes <= problem.budget


def test_more_effort_never_finds_less_at_given_budgets() -> None:
    """The strategy finds less with more effort and other starts: the rungs below its own are asked all the same."""

    def moody(problem: Problem) -> Proposal:
        return thinning(problem) if problem.effort == 1 else chen_sqrt(msgspec.structs.replace(problem, starts=()))

    budgets = [6, 7, 8, 10]
    costs = []
    for effort in (1, 2, 3, 7.5):
        found = curve(zoo.chain(12), budgets, strategies=moody, allocator=None, effort=effort)
        costs.append([math.inf if point.cost is None else point.cost for point in found.points])
    for less, more in pairwise(costs):
        assert all(b <= a for a, b in zip(less, more, strict=True))
    one = curve(zoo.chain(24), budgets, strategies="chen-budget", allocator=None, effort=3)
    assert curve(zoo.chain(24), budgets, strategies="chen-budget", allocator=None, effort=3, jobs=2) == one


def test_auto_takes_what_its_neighbours_found() -> None:
    graph = lower(zoo.unet(batch=1, image=64, padding=1))
    report = optimize(graph, allocator=None, strategy="chen-sqrt").report
    budget = (report.keep_all.peak_bytes + report.peak_lower_bound) // 2
    below = optimize(graph, budget, strategy="retention", allocator=None, effort=2)
    problem = Problem(graph, budget, effort=1e-6)
    warm = auto(msgspec.structs.replace(problem, starts=(below.schedule,)))
    cost = simulate(graph, warm.schedule).cost
    assert cost <= below.report.plan.cost
    assert cost <= simulate(graph, auto(problem).schedule).cost


def test_starts_are_the_same_with_any_number_of_processes() -> None:
    options: dict[str, Any] = {"strategies": (thinning, "chen-budget"), "allocator": None}
    one = curve(zoo.chain(24), [9, 11, 13, 15, 17, 19, 21, 23], **options)
    assert curve(zoo.chain(24), [9, 11, 13, 15, 17, 19, 21, 23], jobs=2, **options) == one
    alone = [
        optimize(zoo.chain(24), p.budget, strategy=thinning, allocator=None).report.plan.cost
        for p in one.of("thinning")
        if p.cost
    ]
    assert [p.cost for p in one.of("thinning") if p.cost] != alone  # they did begin from a neighbour's plan


def test_plans_that_obey_a_rule_are_no_starts_where_another_graph_is_searched() -> None:
    graph = lower(zoo.resnet(50, batch=2, image=64))
    rules: list[tuple[dict[str, str], bool]] = [({"save": "stage1.*"}, True), ({"recompute": "stage1.*"}, False)]
    for options, same_ops in rules:
        asked = Asked()
        curve(graph, 4, strategies=asked, allocator=None, **options)  # type: ignore[arg-type]
        assert all(problem.graph.op_named.keys() == graph.op_named.keys() for problem in asked.problems) == same_ops
        assert any(problem.starts for problem in asked.problems) == same_ops
        for problem in asked.problems:
            for schedule in problem.starts:
                simulate(problem.graph, schedule)


def test_a_search_that_can_find_nothing_better_is_left_out() -> None:
    asked = Asked()
    # 8 bytes are below the largest working set
    found = curve(zoo.chain(8, nbytes=4), [8, 32, 33, 34, 35, 36], strategies=asked)
    assert [p.cost_lower_bound for p in found.points] == [None, *[18.0] * 4, 17.0]
    assert [p.cost for p in found.points] == [None, *[18.0] * 4, 17.0]
    assert [problem.budget for problem in asked.problems][:2] == [None, 33]
    assert not {8, 34, 35} & {problem.budget for problem in asked.problems}


# processes, progress, and being stopped


def by_value(problem: Problem) -> Proposal:
    return chen_budget(problem, sweeps=4)


def test_any_number_of_processes_gives_the_same_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.search._STRATEGIES", {**planner.search._STRATEGIES, "few": by_value})
    graph = zoo.resnet((1, 1, 1, 1), batch=2, image=64)
    options: dict[str, Any] = {
        "strategies": ("auto", "few", "chen-sqrt"),
        "memory": MemoryModel(alignment=512, reserve=1000),
    }
    one, two = (curve(graph, 5, jobs=jobs, **options) for jobs in (1, 2))
    assert two == one
    assert str(two) == str(one)


def test_progress_counts_every_search_once_to_the_total() -> None:
    heard: list[tuple[int, int, str]] = []
    curve(zoo.chain(12), [7, 8, 13], strategies=("auto", "chen-sqrt"), progress=lambda *words: heard.append(words))
    # least peak, 7 and 8, and bounds; at 13 keep-all fits without a search
    assert [done for done, _, _ in heard] == list(range(1, 9))
    assert [what for _, _, what in heard if "bound" in what] == ["lower bound at 8 B", "lower bound at 7 B"]
    assert heard[-1] == (8, 8, "chen-sqrt at 7 B")


class Stopping:
    """A strategy that is interrupted at its nth question: by Ctrl-C, or by an error."""

    __name__ = "stopping"

    def __init__(self, last: int, error: BaseException | None = None) -> None:
        self.left, self.error = last, error

    def __call__(self, problem: Problem) -> Proposal:
        if not self.left and self.error is None:
            signal.raise_signal(signal.SIGINT)
            raise TimeLimit("Ctrl-C")
        if not self.left:
            raise self.error
        self.left -= 1
        return chen_budget(problem)


def test_ctrl_c_keeps_what_was_found_and_says_what_was_not() -> None:
    # least peak, 9 and 8; 10 and 6 would come next
    found = curve(zoo.chain(12), [6, 8, 9, 10, 13], strategies=Stopping(3))
    whole = curve(zoo.chain(12), [6, 8, 9, 10, 13], strategies=chen_budget)
    assert [p.status for p in found.points] == ["not reached", "fits", "fits", "fits", "fits"]
    assert [p.cut_short for p in found.points] == [True, False, False, True, False]
    assert [p.cost for p in found.points[1:3]] == [p.cost for p in whole.points[1:3]]
    assert found.points[3].cost == found.points[2].cost
    assert [p.cost_lower_bound for p in found.points] == [p.cost_lower_bound for p in whole.points]
    assert "Cut short by the time limit or Ctrl-C" in str(found)


def test_ctrl_c_that_a_strategy_answers_with_its_best_plan_ends_the_curve() -> None:
    asked = []

    def cut_short(problem: Problem) -> Proposal:
        asked.append(problem.budget)
        plan = chen_budget(problem).schedule
        if problem.budget is not None:
            signal.raise_signal(signal.SIGINT)
        return Proposal(plan, cut_short=problem.budget is not None)

    found = curve(zoo.chain(12), [8, 9, 10], strategies=cut_short)
    assert asked == [None, 9]
    assert [p.cut_short for p in found.points] == [True, True, True]
    assert len({p.cost for p in found.points[1:]}) == 1


def test_ctrl_c_before_anything_is_found_is_passed_on() -> None:
    with pytest.raises(KeyboardInterrupt):
        curve(zoo.chain(12), strategies=Stopping(0))


GROUP = """
import os, sys, time
from pathlib import Path
import planner

folder = Path({folder!r})

def slow(problem):
    (folder / f"{{os.getpid()}}.pid").touch()
    if problem.budget is not None:
        for _ in range(600):
            if problem.stop.now:
                raise planner.errors.TimeLimit("stopped")
            time.sleep(0.1)
    return planner.search.find_strategy("chen-budget")[1](problem)

def quick(problem):
    return planner.search.find_strategy("chen-budget")[1](problem)

found = planner.curve(planner.zoo.chain(12), [8, 9, 10], strategies=[quick, slow], jobs=2)
print([point.status for point in found.points], any(point.cut_short for point in found.points))
"""


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_children_outlive_ctrl_c_to_the_group_and_end_with_their_parent(tmp_path: Path, sent: signal.Signals) -> None:
    command = [sys.executable, "-c", GROUP.format(folder=str(tmp_path))]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    children: list[int] = []
    until = time.monotonic() + 60
    while not children and time.monotonic() < until:
        children = [int(path.stem) for path in tmp_path.glob("*.pid")]
        time.sleep(0.1)
    time.sleep(1)
    assert children
    if sent == signal.SIGINT:
        os.killpg(parent.pid, sent)
        out = parent.communicate(timeout=60)[0]
        assert "'fits'" in out
        assert out.endswith("True\n")
        assert parent.returncode == 0
    else:
        parent.kill()
        parent.wait()
    until = time.monotonic() + 20
    while any(map(running, children)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not any(map(running, children))


def running(pid: int) -> bool:
    """True for a process that is there and no zombie."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_time_limit_marks_the_points_it_stopped() -> None:
    found = curve(zoo.chain(12), [6, 8, 13], strategies=("chen-budget",), time_limit=1e-9)
    assert found.points[0].status == "not reached"
    assert found.points[-1].overhead == 0.0
    assert "not reached" in str(found)
    late = curve(zoo.chain(12), [6, 13], strategies=Stopping(1, TimeLimit("too late")))
    assert [(p.status, p.cut_short) for p in late.points] == [("not reached", True), ("fits", False)]


def test_after_the_time_limit_no_search_begins_and_what_is_in_hand_serves_every_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, asked = Clock(monkeypatch), []

    def late(problem: Problem) -> Proposal:
        asked.append(problem.budget)
        proposal = chen_budget(problem)
        if problem.budget == 8:
            clock.ahead_seconds += 100
        return proposal

    # the middle is asked first; 13 needs no search
    found = curve(zoo.chain(12), [6, 7, 8, 9, 10, 13], strategies=late, time_limit=50)
    assert asked == [None, 8]
    assert found.points[0].status == "not reached"
    assert [point.arena_bytes for point in found.points[1:]] == [7, 8, 8, 8, 13]  # 7 is the least peak
    assert [point.cut_short for point in found.points[2:]] == [True, True, True, False]
    assert all(found.plan(point).verify().cost == point.cost for point in found.points[1:])


def test_a_time_limit_covers_the_reading_of_the_graph(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    def slow(name: str, options: dict[str, Any]) -> nx.DiGraph:
        clock.ahead_seconds += 100
        return zoo.chain(8)

    monkeypatch.setattr("planner.cli.plan_commands.graph_of", slow)
    asked = ("curve", "slow", "--budgets", "7,8", "--strategies", "chen-budget", "--time-limit")
    assert [run(*asked, limit).code for limit in (50, 500)] == [5, 0]


class Clock:
    """The clock that deadlines are of, which a test sets ahead."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead_seconds = 0.0
        right = time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: right() + self.ahead_seconds)


def test_an_illegal_proposal_is_an_error_of_its_strategy() -> None:
    def illegal(problem: Problem) -> Proposal:
        return Proposal(planner.Schedule.of(chen_budget(problem).schedule.steps[1:]))

    with pytest.raises(PlannerError):
        curve(zoo.chain(4), strategies=illegal)


# files


def test_json_comes_back_equal_and_is_versioned(chain: Curve, tmp_path: Path) -> None:
    chain.save(tmp_path / "curve.json")
    assert planner.load_curve(tmp_path / "curve.json") == chain
    content = json.loads((tmp_path / "curve.json").read_text())
    assert (content["format"], content["version"]) == ("planner-curve", 4)
    assert content["fingerprint"] == lower(zoo.chain(12)).fingerprint


def test_a_damaged_json_file_is_refused(chain: Curve, tmp_path: Path) -> None:
    for change, named in [
        (lambda file: file.update(version=1), "version 1"),
        (lambda file: file.update(format="planner-plan"), "planner-plan"),
        (lambda file: file.pop("points"), "points"),
        (lambda file: file["points"][0].update(status="fits"), "status 'fits'"),
        (lambda file: file["points"][-1].update(cost=None), "figures"),
        (lambda file: file["points"][-1].update(gap=None), "figures"),
        (lambda file: file["points"][-1].update(cost_lower_bound=None), "lower bound"),
        (lambda file: file["points"][-1].update(budget="much"), "budget"),
        (lambda file: file["request"]["memory"].update(alignment=0), "alignment"),
    ]:
        file = json.loads(chain.to_json())
        change(file)
        (tmp_path / "curve.json").write_text(json.dumps(file))
        with pytest.raises(PlanFileError, match=named):
            planner.load_curve(tmp_path / "curve.json")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"format": "\xff"}', b"strategy,budget_bytes\n"])
def test_a_file_that_is_no_curve_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "curve.json").write_bytes(content)
    with pytest.raises(PlanFileError, match=r"curve\.json"):
        planner.load_curve(tmp_path / "curve.json")
    with pytest.raises(PlanFileError, match="nothing"):
        planner.load_curve(tmp_path / "nothing.json")


def test_csv_has_a_line_a_point_with_exact_ints(tmp_path: Path) -> None:
    found = curve(zoo.resnet((1, 1, 1, 1), batch=32), 4, strategies=STRATEGIES)
    found.save(tmp_path / "curve.csv")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "curve.csv").read_text())))
    assert tuple(rows[0]) == CSV_COLUMNS
    assert len(rows) == len(found.points)
    for row, point in zip(rows, found.points, strict=True):
        assert (row["strategy"], int(row["budget_bytes"]), row["status"]) == (
            point.strategy,
            point.budget,
            point.status,
        )
        for column in ("minimum_bytes", "peak_bytes", "arena_bytes", "recomputed_ops", "extra_runs"):
            value = getattr(point, column.replace("minimum_bytes", "minimum"))
            assert row[column] == ("" if value is None else str(value))
        for column in ("cost", "cost_lower_bound", "gap"):
            assert (None if row[column] == "" else float(row[column])) == getattr(point, column)
    assert sum(int(row["on_front"]) for row in rows) == len(found.front)
    assert int(rows[-1]["arena_bytes"]) == found.keep_all.arena_bytes > 2**30


def test_svg_is_xml_that_names_axes_strategies_bound_and_keep_all(chain: Curve, tmp_path: Path) -> None:
    chain.save(tmp_path / "curve.svg")
    root = ElementTree.parse(tmp_path / "curve.svg").getroot()
    texts = {"".join(element.itertext()).strip() for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {
        "chain:12",
        "memory (B)",
        "extra cost over no recomputation",
        "no plan below 3 B",
        "no recomputation 13 B",
        "Pareto front",
        "lower bound (proven)",
        "chen-budget (fits 5 of 7 budgets)",
        "chen-sqrt (fits 5 of 7 budgets)",
        "no plan fits",
    } <= texts


SVG = "{http://www.w3.org/2000/svg}"


def corners(root: ElementTree.Element, gid: str) -> list[tuple[float, float]]:
    """The points of the one path in a group."""
    (group,) = [element for element in root.iter(f"{SVG}g") if element.get("id") == gid]
    (path,) = [element.get("d") for element in group.iter(f"{SVG}path")]
    numbers = [float(number) for number in re.findall(r"-?[\d.]+", path or "")]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def test_svg_has_the_bound_in_steps_with_what_is_impossible_shaded_below_and_left_of_it(
    chain: Curve, tmp_path: Path
) -> None:
    chain.save(tmp_path / "curve.svg")
    root = ElementTree.parse(tmp_path / "curve.svg").getroot()
    line = corners(root, "lower-bound")
    for (x, y), (right, down) in pairwise(line):
        assert (x == right) != (y == down) or (x, y) == (right, down)
        assert right >= x
        assert down >= y  # down the page
    infeasible = corners(root, "infeasible")
    assert max(x for x, _ in infeasible) == pytest.approx(line[0][0])
    area = corners(root, "impossible")
    assert len([y for _, y in line if y > 0]) >= 8  # what is above the page is cut off
    assert {(round(x, 3), round(y, 3)) for x, y in line if y > 0} <= {(round(x, 3), round(y, 3)) for x, y in area}
    assert max(y for _, y in area) == pytest.approx(max(y for _, y in infeasible))  # down to the axis


def test_the_bound_is_drawn_from_each_budget_down_to_the_next_and_plans_from_their_arena_up() -> None:
    from planner.views.trade_off import trade_off

    found = curve(zoo.chain(8), [2, 4, 7, 8, 9], strategies="chen-budget")
    axes = trade_off(found).axes[0]
    lines = {line.get_label(): line for line in axes.get_lines()}
    bound, plans = lines["lower bound (proven)"], lines["chen-budget (fits 3 of 5 budgets)"]
    assert (bound.get_drawstyle(), plans.get_drawstyle()) == ("steps-pre", "steps-post")
    assert list(bound.get_xdata())[:-1] == [3, 4, 7, 8, 9]
    four = found.points[1].cost_lower_bound
    assert four is not None
    assert 19.0 <= four <= (least_cost(lower(zoo.chain(8)), 4) or 0)
    costs = [four, four, 19, 18, 17, 17]
    assert list(bound.get_ydata()) == pytest.approx([100 * (cost - 17) / 17 for cost in costs])
    assert list(plans.get_xdata()) == [7, 8, 9]
    assert list(plans.get_ydata()) == pytest.approx([100 * 2 / 17, 100 / 17, 0])


def test_a_strategy_far_above_the_front_leaves_the_page_and_its_name_says_how_far() -> None:
    from planner.views.trade_off import trade_off

    # one of x and y must go while "big" runs: one strategy drops the cheap one, the other the dear one
    graph = nx.DiGraph()
    for name, cost, reads in (("x", 1.0, ""), ("y", 100.0, ""), ("m", 1.0, "xy"), ("big", 1.0, "m")):
        graph.add_node(name, nbytes=8 if name in "xy" else 1, cost=cost, workspace=16 if name == "big" else 0)
        graph.add_edges_from((read, name) for read in reads)
    graph.add_node("end", nbytes=1)
    graph.add_edges_from((read, "end") for read in ("big", "x", "y"))
    program = lower(graph)

    def again(name: str) -> planner.Strategy:
        def strategy(problem: Problem) -> Proposal:
            return Proposal(canonical_steps(program, ["x", "y", "m", "big", name, "end"]))

        strategy.__name__ = f"again_{name}"
        return strategy

    found = curve(program, [33, 100], strategies=[again("x"), again("y")], allocator=None)
    overheads = [p.overhead for p in found.points if p.budget == 33]
    assert overheads == pytest.approx([1 / 104, 100 / 104])
    axes = trade_off(found).axes[0]
    assert 100 / 104 < axes.get_ylim()[1] < 5 * 100 / 104
    assert axes.get_legend_handles_labels()[1][2:] == ["again_x", "again_y (up to +96 %)"]


def test_overheads_up_to_15_per_cent_have_half_of_the_page_where_others_are_far_above() -> None:
    from planner.views.trade_off import trade_off

    found = curve(zoo.chain(60), 8, strategies="chen-budget", allocator=None)
    overheads = [point.overhead for point in found.front if point.overhead]
    assert min(overheads) < 0.15
    assert max(overheads) > 0.3
    axes = trade_off(found).axes[0]
    bottom, low, high, top = axes.transData.transform(
        [(0, y) for y in (axes.get_ylim()[0], 0, 15, axes.get_ylim()[1])]
    )[:, 1]
    assert 0.4 <= (high - low) / (top - bottom) <= 0.7


def test_where_nothing_fits_the_page_is_as_high_as_the_bound() -> None:
    from planner.views.trade_off import trade_off

    found = curve(zoo.chain(12), [4], strategies=chen_budget)
    bound = found.points[0].cost_lower_bound
    assert bound is not None
    assert trade_off(found).axes[0].get_ylim()[1] == pytest.approx(1.08 * 100 * (bound - 25) / 25)


SIGNATURES = {".svg": b"<?xml", ".png": b"\x89PNG\r\n\x1a\n", ".pdf": b"%PDF-", ".PNG": b"\x89PNG"}


@pytest.mark.parametrize(("suffix", "signature"), SIGNATURES.items())
def test_a_figure_has_the_same_bytes_every_time_and_leaves_matplotlib_as_it_was(
    chain: Curve, tmp_path: Path, suffix: str, signature: bytes
) -> None:
    import matplotlib

    before = matplotlib.rcParams.copy()
    for name in ("one", "two"):
        chain.save(tmp_path / f"{name}{suffix}")
    with matplotlib.rc_context({"font.size": 30, "lines.linewidth": 9, "svg.hashsalt": None}):
        chain.save(tmp_path / f"three{suffix}")
    one, two, three = ((tmp_path / f"{name}{suffix}").read_bytes() for name in ("one", "two", "three"))
    assert one.startswith(signature)
    assert one == two == three
    assert matplotlib.rcParams.copy() == before


def test_figure_text_is_inside_the_page_and_labels_do_not_overlap() -> None:
    from planner.views.trade_off import trade_off

    name = (
        "a name with $dollars$ and _underscores_ that is far too long for the page it stands on, so that it must be cut"
    )
    long = nx.DiGraph(name=name)
    long.add_node("a", nbytes=4)

    def _under_scored(problem: Problem) -> Proposal:
        return chen_budget(problem)

    every = (*strategy_names(), _under_scored)
    odd = curve(zoo.chain(20), 6, strategies=every, allocator=None, memory=MemoryModel(reserve=10**6), effort=0.01)
    three = curve(zoo.chain(12), [2, 7, 13], strategies=("auto", "chen-sqrt", "chen-budget"))
    for found in (
        curve(zoo.resnet((1, 1), batch=8, image=64), 5, effort=0.05),
        curve(long),
        curve(nx.DiGraph()),
        curve(zoo.chain(8), [2]),
        odd,
        three,
    ):
        figure = trade_off(found)
        figure.draw_without_rendering()
        axes, legend = figure.axes[0], figure.legends[0]
        texts = [
            *axes.texts,
            axes.title,
            axes.get_title(loc="left") and axes._left_title,
            axes.xaxis.label,
            axes.yaxis.label,
        ]
        boxes = [(text.get_text(), text.get_window_extent()) for text in texts if text and text.get_text()]
        boxes.append(("legend", legend.get_window_extent()))
        page = figure.bbox
        for what, box in boxes:
            assert box.x0 >= page.x0 - 1, what
            assert box.y0 >= page.y0 - 1, what
            assert box.x1 <= page.x1 + 1, what
            assert box.y1 <= page.y1 + 1, what
        for k, (what, box) in enumerate(boxes):
            assert [other for other, its in boxes[k + 1 :] if box.overlaps(its)] == [], what
        proven = any(point.cost_lower_bound is not None for point in found.points)
        assert len(legend.texts) == 1 + len(found.strategies) - (not found.front) + proven
        assert not legend.get_window_extent().overlaps(axes.get_window_extent())


@pytest.mark.parametrize("name", ["curve.txt", "curve", "curve.svgz", "curve.csv.gz"])
def test_an_unknown_suffix_is_refused_with_those_there_are(chain: Curve, tmp_path: Path, name: str) -> None:
    with pytest.raises(OutputError) as refusal:
        chain.save(tmp_path / name)
    assert all(suffix in str(refusal.value) for suffix in SUFFIXES)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_named(chain: Curve, tmp_path: Path) -> None:
    for suffix in SUFFIXES:
        with pytest.raises(OutputError, match=f"missing.*{suffix}"):
            chain.save(tmp_path / f"missing/curve{suffix}")


def test_without_matplotlib_the_extra_is_named_and_tables_still_work(tmp_path: Path) -> None:
    program = """
import importlib.util, sys
sys.modules["matplotlib"] = None
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "matplotlib" else find(name, *rest)
import planner
from planner import zoo
found = planner.curve(zoo.chain(4), 2)
found.save("curve.csv")
found.save("curve.json")
assert found._repr_html_().startswith("<pre>")
def draw():
    from planner.views.trade_off import trade_off
    trade_off(found)
for attempt in (lambda: found.save("curve.png"), draw):
    try:
        attempt()
    except planner.PlannerError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.count("pip install 'sublinear-planner[plot]'") == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curve.csv", "curve.json"]


def test_the_table_and_the_figure_are_shown_in_a_notebook(chain: Curve) -> None:
    shown = chain._repr_html_()
    assert shown.startswith("<svg")
    assert "<pre>13 B without recomputation, " in shown


def test_the_verb_is_not_hidden_by_a_module_of_its_name() -> None:
    program = "import planner.planning.curve, planner.api, planner; print(planner.curve.__module__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "planner.api"


def test_a_figure_is_saved_without_pyplot_and_a_curve_is_found_without_matplotlib(tmp_path: Path) -> None:
    program = (
        "import sys, planner; found = planner.curve(planner.zoo.chain(4), 2); print('matplotlib' in sys.modules)\n"
    )
    program += "found.save('curve.png'); print('matplotlib' in sys.modules, 'matplotlib.pyplot' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.split() == ["False", "True", "False"]


# plans


def test_plans_are_saved_a_file_each_and_load_and_verify(tmp_path: Path) -> None:
    found = curve(zoo.chain(12), [3, 7, 8, 9, 13, 20], strategies=("chen-sqrt", "chen-budget"))
    paths = found.save_plans(tmp_path / "plans")
    # at 3 nothing fits; 20 is as 13
    assert [Path(path).name for path in paths] == ["7.json", "8.json", "9.json", "13.json"]
    assert sorted(paths) == sorted(map(str, (tmp_path / "plans").iterdir()))
    for path, point in zip(paths, found.best[1:], strict=False):
        plan = planner.load(path, zoo.chain(12))
        assert plan.verify().cost == point.cost
        assert (plan.budget, plan.strategy, plan.report.plan.arena_bytes) == (
            point.budget,
            point.strategy,
            point.arena_bytes,
        )


def test_plans_within_rules_say_so_and_verify(tmp_path: Path) -> None:
    found = curve(zoo.resnet((1, 1, 1, 1), batch=2, image=64), 3, save="stage1.*", recompute="selective")
    for point in found.best:
        plan = found.plan(point)
        plan.verify()
        assert (plan.save_rules, plan.recompute_rules) == (("stage1.*",), ("selective",))
        assert (plan.report.plan.cost, plan.report.plan.arena_bytes) == (point.cost, point.arena_bytes)


def test_a_point_without_a_plan_is_refused_with_the_reason(chain: Curve, tmp_path: Path) -> None:
    with pytest.raises(PlannerError, match="infeasible"):
        chain.plan(chain.points[0])
    with pytest.raises(PlannerError, match="on this curve"):
        chain.plan(curve(zoo.chain(8), [8]).points[0])
    chain.save(tmp_path / "curve.json")
    loaded = planner.load_curve(tmp_path / "curve.json")
    with pytest.raises(PlannerError, match="--plans"):
        loaded.plan(loaded.points[-1])
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputError, match="file"):
        chain.save_plans(tmp_path / "file")


# the command


def test_the_command_prints_the_table_and_writes_every_file(run: Any, tmp_path: Path) -> None:
    files = [f"curve{suffix}" for suffix in SUFFIXES]
    outputs = [word for name in files for word in ("-o", name)]
    answer = run("curve", "chain:12", "--budgets", "4", "--strategies", "chen-budget,chen-sqrt", *outputs)
    assert (answer.code, answer.err) == (0, "")
    found = planner.load_curve(tmp_path / "curve.json")
    assert answer.out == f"{found}\n  Saved to {', '.join(files)}\n"
    assert [p.budget for p in found.of("chen-sqrt")] == [7, 8, 9, 13]
    assert all((tmp_path / name).stat().st_size > 100 for name in files)


def test_the_command_prints_one_versioned_object(run: Any) -> None:
    answer = run(
        "curve", "chain:8", "--budgets", "2, 7,8B,100%", "--strategies", "all", "--allocator", "none", "--json"
    )
    content = json.loads(answer.out)
    assert (answer.code, content["schema"], content["version"]) == (0, "planner-curve", 1)
    assert content["curve"]["strategies"] == list(strategy_names())
    auto = [point for point in content["curve"]["points"] if point["strategy"] == "auto"]
    assert [(p["budget"], p["status"], p["cost"]) for p in auto] == [
        (2, "infeasible", None),
        (7, "fits", 19.0),
        (8, "fits", 18.0),
        (9, "fits", 17.0),
    ]
    plans = {(p["arena_bytes"], p["cost"]) for p in content["curve"]["points"] if p["status"] == "fits"}
    assert [(p["arena_bytes"], p["cost"]) for p in content["front"]] == undominated(plans)


def test_the_command_writes_the_plans_into_a_folder_of_their_own(run: Any, tmp_path: Path) -> None:
    answer = run("curve", "chain:8", "--budgets", "7,8,9", "--plans", "plans")
    assert (answer.code, answer.out.splitlines()[-1]) == (0, "  Saved to 3 plans in plans")
    assert run("verify", "plans/8.json", "--graph", "chain:8").code == 0
    refused = run("curve", "chain:8", "--budgets", "7,8,9", "--plans", "plans")
    assert (refused.code, refused.out) == (2, "")
    assert "'plans' is not empty" in error_lines(refused)[-1]
    again = run("curve", "chain:8", "--budgets", "7,8,9", "--plans", "plans", "-f", "--json")
    assert json.loads(again.out)["files"] == [f"plans/{budget}.json" for budget in (7, 8, 9)]
    missing = run("curve", "chain:8", "--plans", "missing/plans")
    assert missing.code == 2
    assert "missing/plans" in missing.err


def test_budgets_that_nothing_fits_exit_4_with_the_least_workable_on_the_last_line(run: Any) -> None:
    answer: Answer = run("curve", "chain:8", "--budgets", "1,2")  # an op has two inputs and an output of one byte each
    assert answer.code == 4
    assert "does not fit" in answer.out
    least = int(error_lines(answer)[-1].split("works: ")[1].split(" bytes")[0])
    assert run("curve", "chain:8", "--budgets", f"{least},").code == 0
    as_json = run("curve", "chain:8", "--budgets", "1,2", "--json")
    assert as_json.code == 4
    assert [p["minimum"] for p in json.loads(as_json.out)["curve"]["points"]] == [least, least]


def test_a_time_limit_without_any_plan_exits_5(run: Any) -> None:
    answer = run("curve", "chain:8", "--budgets", "2,3", "--time-limit", "0.000001", "--strategies", "chen-budget")
    assert answer.code == 5
    assert "not reached" in answer.out


def test_an_existing_file_is_kept_unless_forced(run: Any, tmp_path: Path) -> None:
    (tmp_path / "curve.csv").write_text("mine")
    assert run("curve", "chain:4", "-o", "curve.json", "-o", "curve.csv").code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["curve.csv"]
    assert run("curve", "chain:4", "-o", "curve.json", "-o", "curve.csv", "-f").code == 0
    assert (tmp_path / "curve.csv").read_text().startswith("strategy,")


@pytest.mark.parametrize(("arguments", "code", "named"), [
    (["--budgets", "7Gb"], 2, "7Gb"), (["--budgets", "0"], 2, "0"), (["--budgets", "7000000000"], 2, "[7000000000]"),
    (["--budgets", ","], 2, "budgets"), (["--strategies", "auto,best"], 2, "best"), (["--jobs", "0"], 2, "jobs"),
    (["-o", "curve.txt"], 2, ".svg"), (["-o", "missing/curve.svg"], 2, "missing/curve.svg"),
])  # fmt: skip
def test_what_cannot_be_done_is_one_line_that_names_it(run: Any, arguments: list[str], code: int, named: str) -> None:
    answer = run("curve", "chain:4", *arguments)
    assert answer.code == code
    assert len(error_lines(answer)) == 1
    assert named in answer.err
    assert answer.out == ""
