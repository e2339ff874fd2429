"""Lower bounds on peak and cost that hold for every plan, proven from the graph alone.

A report states them and `verify` computes them again. Of at most nine ops every schedule is looked at, so the bound is
the optimum itself; of more ops, working sets bound the peak and minimum cuts the cost.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from planner.analysis.evaluator import evaluator_of
from planner.bounds.astar import Answer, cheapest_schedule, least_peak_schedule
from planner.bounds.certificate import certified_cost
from planner.bounds.peak import no_plan, peak_lower_bound
from planner.graph import Graph
from planner.memory import MemoryModel
from planner.problem import Problem, Proposal, Stop

MOST_OPS: Final = 9
#: States after which the search gives up; only graphs with two outputs or more on nearly every op come near.
MOST_STATES: Final = 400_000


class LowerBounds(NamedTuple):
    """What no plan at a budget goes below, in any order.

    Args:
        peak_bytes: the largest working set; of at most nine ops the least peak.
        cost: of any plan within the budget; infinite if none fits.
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
    """Lower bounds on peak and cost of any plan.

    Args:
        budget: most live bytes; None: the least peak is asked for.
        plan_cost: of the plan in question; if it runs each op once, nothing more is proven.
        effort: work of the minimum cuts, relative to the default.
        stop: once `stop.now`, what is proven by then is returned.

    >>> from planner import lower, zoo
    >>> lower_bounds(lower(zoo.chain(4, reads=("in",))), MemoryModel(), 3, plan_cost=13.0)
    LowerBounds(peak_bytes=3, cost=12.0)
    """
    stop = stop or Stop()
    keep_all_bytes, cost = _keep_all(graph, memory)
    peak_bytes = peak_lower_bound(graph, memory).nbytes
    if budget is None:
        answer = enumerated(Problem(graph, None, memory, stop=stop)) if keep_all_bytes > peak_bytes else None
        peak_bytes = peak_bytes if answer is None else int(answer.bound)
    elif plan_cost > cost and keep_all_bytes > budget:
        answer = enumerated(Problem(graph, budget, memory, stop=stop))
        if answer is None:
            cost = certified_cost(graph, memory, budget, effort=effort, plan_cost=plan_cost, stop=stop).cost
        else:
            cost = answer.bound
    # Costs summed in another order, or rounded at other steps, may differ in the last bits.
    return LowerBounds(peak_bytes, plan_cost if plan_cost < cost <= plan_cost * (1 + 1e-12) else cost)


def enumerated(problem: Problem) -> Answer | None:
    """The proven optimum over every schedule of at most nine ops; None for more ops or too many states.

    Without a budget the optimum is the least peak.

    >>> from planner import lower, zoo
    >>> enumerated(Problem(lower(zoo.chain(4, reads=("in",))), 3)).bound
    12.0
    """
    graph, memory, pinned = problem.graph, problem.memory, problem.order == "pinned"
    if len(evaluator_of(graph, memory).keep_all) > MOST_OPS:
        return None

    def stopped() -> bool:
        return problem.stop.now

    if problem.budget is None:
        most_bytes, _ = _keep_all(graph, memory)
        answer = least_peak_schedule(
            graph, memory, most_bytes=most_bytes, pinned=pinned, most_states=MOST_STATES, stop=stopped
        )
    else:
        answer = cheapest_schedule(graph, memory, problem.budget, pinned=pinned, most_states=MOST_STATES, stop=stopped)
    return answer if answer.proven else None


def enumeration(problem: Problem) -> Proposal | None:
    """The schedule that `enumerated` proves best; None if it has no answer.

    Raises:
        InfeasibleBudget: no schedule fits; carries the least peak, which a schedule reaches.
    """
    answer = enumerated(problem)
    if answer is None:
        return None
    if answer.schedule is not None:
        return Proposal(answer.schedule)
    if problem.budget is None:
        evaluator = evaluator_of(problem.graph, problem.memory)
        return Proposal(evaluator.schedule(evaluator.keep_all))
    least = enumerated(msgspec.structs.replace(problem, budget=None))
    raise no_plan(problem, "enumeration", minimum=None if least is None else int(least.bound))


def _keep_all(graph: Graph, memory: MemoryModel) -> tuple[int, float]:
    """(peak bytes, cost) of the baseline."""
    evaluator = evaluator_of(graph, memory)
    once = evaluator.evaluate(evaluator.keep_all)
    assert once is not None
    return once
