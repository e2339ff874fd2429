"""Threads that plan one graph share its arrays, and nothing that a search writes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from planner import lower, optimize, zoo


def test_threads_that_plan_one_graph_get_the_plans_they_would_get_alone() -> None:
    graph = lower(zoo.chain(2000))
    budgets = ["20%", "35%", "50%", "70%"]
    alone = {
        budget: optimize(graph, budget, allocator=None, strategy="chen-budget", effort=0.1).report for budget in budgets
    }
    with ThreadPoolExecutor(4) as pool:
        asked = [
            (budget, pool.submit(optimize, graph, budget, allocator=None, strategy="chen-budget", effort=0.1))
            for _ in range(3)
            for budget in budgets
        ]
    assert [future.result().report == alone[budget] for budget, future in asked] == [True] * len(asked)
