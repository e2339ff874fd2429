"""What no plan can go below, proven without any plan: the same numbers for the report that states them and for who
checks it.
"""

from __future__ import annotations

from typing import NamedTuple

from planner.analysis.evaluator import evaluator_of
from planner.bounds.certificate import certified_cost
from planner.bounds.enumeration import enumerated
from planner.bounds.peak import peak_lower_bound
from planner.graph import Graph
from planner.memory import MemoryModel
from planner.problem import Problem, Stop


class LowerBounds(NamedTuple):
    """Of all plans at a budget, in any order.

    Args:
        peak_bytes: the largest working set, or of a few ops the least peak there is.
        cost: within the budget; infinite where nothing fits.
    """

    peak_bytes: int
    cost: float


def lower_bounds(
    graph: Graph,
    memory: MemoryModel,
    budget: int | None,
    *,
    plan_cost: float,
    effort: float = 1.0,
    stop: Stop | None = None,
) -> LowerBounds:
    """Bounds on peak and cost: of at most nine ops the optimum itself, else by working sets and minimum cuts.

    Args:
        budget: most live bytes, the reserve taken off; None: the least peak is asked for.
        plan_cost: of the plan in question; where that is one run of each op, there is nothing more to prove.
        effort: work of the cuts, relative to the default.
        stop: once `stop.now`, what is proven by then.

    >>> from planner import lower, zoo
    >>> lower_bounds(lower(zoo.chain(4, reads=("in",))), MemoryModel(), 3, plan_cost=13.0)
    LowerBounds(peak_bytes=3, cost=12.0)
    """
    stop = stop or Stop()
    evaluator = evaluator_of(graph, memory)
    once = evaluator.evaluate(evaluator.keep_all)
    assert once is not None
    keep_all_bytes, cost = once
    peak_bytes = peak_lower_bound(graph, memory).nbytes
    if budget is None:
        answer = enumerated(Problem(graph, None, memory, stop=stop)) if keep_all_bytes > peak_bytes else None
        peak_bytes = peak_bytes if answer is None else int(answer.bound)
    elif plan_cost > cost and keep_all_bytes > budget:
        answer = enumerated(Problem(graph, budget, memory, stop=stop))
        cost = (
            certified_cost(graph, memory, budget, effort=effort, plan_cost=plan_cost, stop=stop).cost
            if answer is None
            else answer.bound
        )
    # Sums in another order, or rounded at other steps, may differ in the last bits.
    return LowerBounds(peak_bytes, plan_cost if plan_cost < cost <= plan_cost * (1 + 1e-12) else cost)
