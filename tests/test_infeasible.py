"""Budgets that nothing fits, and the plans that are handed from call to call."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from exhaustive import cheapest
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import digraphs

import planner
from planner import InfeasibleBudget, PlannerError, zoo
from planner.graph import Graph
from planner.problem import Status
from planner.search import find_strategy


def tight(graph: Any, budget: int, **options: Any) -> InfeasibleBudget:
    with pytest.raises(InfeasibleBudget) as caught:
        planner.optimize(graph, budget, **options)
    return caught.value


def test_a_budget_below_the_proven_bound_is_refused_before_anything_is_searched() -> None:
    graph = zoo.chain(40)
    searched: list[str] = []

    def never(problem: planner.Problem) -> planner.Proposal:
        searched.append(problem.graph.name)
        raise AssertionError

    error = tight(graph, 1, strategy=never, least=False)
    assert (searched, error.minimum, error.plan, error.proven) == ([], None, None, True)
    assert str(error).endswith(f"\nAt least {error.peak_lower_bound} bytes.")


def test_progress_is_told_why_nothing_fits_before_the_least_is_looked_for() -> None:
    told: list[Status] = []
    error = tight(zoo.chain(40), 1, progress=told.append)
    assert told[0].infeasible == str(error).partition("\n")[0]
    assert told[0].plans_judged == 0
    assert told[-1].plans_judged > 0


def test_the_error_brings_the_plan_that_needs_the_minimum() -> None:
    graph = zoo.mlp([16] * 6, batch=8)
    error = tight(graph, 4000)
    assert error.plan is not None
    assert error.plan.budget == error.minimum == error.plan.report.needed_bytes
    error.plan.verify()
    again = planner.optimize(graph, error.minimum, starts=[error.plan])
    assert again.report.plan.cost <= error.plan.report.plan.cost


def test_a_minimum_is_called_proven_only_where_the_bound_reaches_it() -> None:
    graph = nx.DiGraph()
    graph.add_node("a", nbytes=4)
    graph.add_node("b", nbytes=2)
    graph.add_edge("a", "b")
    assert tight(graph, 5).minimum_proven  # b alone needs both
    chain = tight(zoo.chain(40, reads=("in", "out")), 3)
    assert chain.minimum is not None
    assert chain.minimum_proven == (chain.minimum == chain.peak_lower_bound)


def test_the_least_of_all_budgets_is_a_budget_that_fits_where_peaks_fall_by_leaps() -> None:
    rows: list[tuple[str, float, tuple[int, ...], dict[str, Any]]] = [  # op, cost, sizes, what else it has
        ("f0", 2, (4, 8, 4), {}), ("f1", 7, (16,), {}), ("f2", 2, (4, 3), {}), ("loss", 7, (0,), {}),
        ("b2", 2, (3, 4, 4), {}), ("a2", 0, (3,), {}), ("b1", 7, (16, 0), {}),
        ("a1", 0, (8,), {"reads": ["a2", "b1:0"], "updates": [[0, 0]]}),
        ("b0", 1, (16,), {"reads": ["b1:0", "b1:0", "f0:2"]}), ("u1", 0, (4,), {}),
    ]  # fmt: skip
    ops = []
    for name, cost, sizes, more in rows:
        values = [name] if len(sizes) == 1 else [f"{name}:{k}" for k in range(len(sizes))]
        kept = {"f2:0", "f2:1", "b1:0", "a1", "b0"}.intersection
        outputs = [
            {"name": value, "nbytes": nbytes, "output": bool(kept({value}))}
            for value, nbytes in zip(values, sizes, strict=True)
        ]
        phase = {"f": "forward", "l": "loss", "u": "update"}.get(name[0], "backward")
        ops.append({"name": name, "cost": float(cost), "phase": phase, "outputs": outputs, **more})
    content = {"format": "planner-graph", "version": 1, "name": "leaps", "ops": ops}
    graph = Graph.from_json(json.dumps(content).encode())
    memory = planner.MemoryModel("activations", 4, 5)
    least = planner.optimize(graph, memory=memory).report.needed_bytes
    assert planner.optimize(graph, least, memory=memory).report.needed_bytes <= least


def test_a_start_is_a_plan_of_the_same_graph() -> None:
    graph = zoo.chain(12)
    plan = planner.optimize(graph, "50%")
    with pytest.raises(PlannerError, match="another graph"):
        planner.optimize(zoo.chain(13), "50%", starts=[plan])
    with pytest.raises(PlannerError, match="no Plan"):
        planner.optimize(graph, "50%", starts=[plan.schedule])  # type: ignore[list-item]


def test_a_plan_is_no_dearer_than_a_start_that_fits() -> None:
    graph = zoo.resnet((1, 1), batch=4, image=64, classes=10)
    good = planner.optimize(graph, "75%")
    weak = planner.optimize(graph, good.budget, strategy="chen-sqrt", starts=[good])
    assert weak.report.plan.cost <= good.report.plan.cost


def test_a_start_that_breaks_the_policy_is_no_answer() -> None:
    graph = zoo.chain(12)
    free = planner.optimize(graph, "70%")
    again = sorted(free.verify().recomputed)[0]
    held = planner.optimize(graph, "70%", save=f"name:{again}", starts=[free])
    assert again not in held.verify().recomputed


def test_a_budget_searched_for_in_vain_is_not_searched_again_for_the_least_that_works() -> None:
    asked: list[int | None] = []

    def auto(problem: planner.Problem) -> planner.Proposal:
        asked.append(problem.budget)
        return find_strategy("auto")[1](problem)

    graph = zoo.mlp([64, 32, 64, 128, 16, 8], batch=8)
    least = planner.optimize(graph).report.plan.arena_bytes
    error = tight(graph, least - 1, strategy=auto)
    assert (asked, error.minimum) == ([least - 1], least)


def test_no_plan_for_a_budget_is_below_the_least_memory(shared: Path) -> None:
    graph = planner.Graph.from_json((shared / "data" / "findings" / "rn26.json").read_text())
    memory = planner.MemoryModel("activations")
    least = planner.optimize(graph, memory=memory).report.plan.arena_bytes
    for budget in (11_474_080, 11_599_944, 12_761_427):  # the first two are of findings/steps.md, S7
        try:
            arena_bytes = planner.optimize(graph, budget, memory=memory).report.plan.arena_bytes
        except InfeasibleBudget as error:
            arena_bytes = error.minimum or 0
        assert least <= arena_bytes


@given(graph=digraphs(), part=st.floats(0.1, 0.9))
def test_what_an_error_says_works_works_at_no_higher_cost(graph: nx.DiGraph, part: float) -> None:
    program = planner.lower(graph)
    assume(any(not op.resident for op in program.ops))
    whole = planner.simulate(program, planner.optimize(program, allocator=None, effort=0.1).schedule).peak_bytes
    error = refusal(program, max(1, int(part * whole)))
    assume(error is not None and error.minimum is not None and error.plan is not None)
    for budget in (error.minimum, error.minimum + 1 + whole // 16):
        plan = planner.optimize(program, budget)
        assert plan.report.plan.cost <= error.plan.report.plan.cost
    if error.minimum_proven:
        with suppress(OverflowError):
            assert cheapest(program, error.minimum - 1, memory=planner.MemoryModel(), most_states=500) is None


def refusal(graph: planner.Graph, budget: int) -> Any:
    """The error of a budget, or None if a plan fits."""
    try:
        planner.optimize(graph, budget)
    except InfeasibleBudget as error:
        return error
    return None
