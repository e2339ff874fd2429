"""The portfolio: Chen's two planners, and where they do not fit, the original's search and the recursive one."""

from __future__ import annotations

import msgspec

from planner.analysis.liveness import evaluator_of
from planner.errors import InfeasibleBudget, TimeLimit
from planner.problem import Problem, Proposal
from planner.search.chen import chen_budget, chen_sqrt
from planner.search.memonger import memonger
from planner.search.recursive import recursive


def auto(problem: Problem) -> Proposal:
    """The cheaper plan within the budget of "chen-sqrt" and "chen-budget", else that of "memonger", else that of "recursive".

    Without a budget all four are asked, and the plan of least peak is taken.

    Raises:
        InfeasibleBudget: none of them fits; carries the least peak any of them reached.
        TimeLimit: the deadline stopped one of them before it found a plan, and no other found one.
    """
    evaluator = evaluator_of(problem.graph, problem.memory)
    ranked: list[tuple[float, float, int, Proposal]] = []
    failures: list[InfeasibleBudget] = []
    late: TimeLimit | None = None
    for place, strategy in enumerate((chen_sqrt, chen_budget, memonger, recursive)):
        if place >= 2 and ranked and problem.budget is not None:
            break  # these cost more: the last segment runs again too, or ops more than one extra time
        try:
            proposal = strategy(problem)
        except InfeasibleBudget as failure:
            failures.append(failure)
            continue
        except TimeLimit as limit:
            late = limit
            continue
        outcome = evaluator.evaluate(evaluator.sequence(proposal.schedule))
        assert outcome is not None
        peak_bytes, cost = outcome
        first, second = (peak_bytes, cost) if problem.budget is None else (cost, peak_bytes)
        ranked.append((first, second, place, proposal))
    if not ranked:
        if late is not None:
            raise late
        raise min(failures, key=lambda failure: failure.minimum or 2**63)
    best = min(ranked, key=lambda row: row[:3])[3]
    cut_short = late is not None or any(row[3].cut_short for row in ranked)
    return msgspec.structs.replace(best, cut_short=cut_short)
