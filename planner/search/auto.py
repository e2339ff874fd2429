"""The portfolio: what is asked, by the size of the graph, and the cheapest plan that fits."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

import msgspec

from planner.analysis.liveness import evaluator_of
from planner.errors import InfeasibleBudget, TimeLimit
from planner.problem import Problem, Proposal, Strategy
from planner.search.chen import chen_budget, chen_sqrt
from planner.search.cuts import cuts
from planner.search.enumeration import applies, enumeration
from planner.search.memonger import memonger
from planner.search.recursive import recursive
from planner.search.retention import retention

#: Graphs of more ops are annealed only where nothing else finds a plan.
ANNEALED_OPS: Final = 2500

_SEGMENTS: Final[tuple[Strategy, ...]] = (chen_sqrt, chen_budget, memonger, recursive)


def auto(problem: Problem) -> Proposal:
    """The optimum of at most nine plain ops; else the best of the others: minimum cuts first, and annealing from what they find.

    Up to `ANNEALED_OPS` ops "retention" starts from the plans of all others. Larger graphs take the plan of "cuts"; where it finds none,
    the cheapest of Chen's planners, the original's and the recursive one; and where these find none, "retention". Without a budget all
    are asked, and the plan of least peak is taken.

    Raises:
        InfeasibleBudget: none fits; carries the least peak any of them reached.
        TimeLimit: the deadline stopped one of them before it found a plan, and no other found one.
    """
    if applies(problem.graph):
        return enumeration(problem)
    evaluator = evaluator_of(problem.graph, problem.memory)
    if len(evaluator.keep_all) <= ANNEALED_OPS:
        return retention(problem, starts=(cuts, *_SEGMENTS))
    # Each plan tried costs as many steps as the graph has ops: fewer are tried, so that time grows no faster than the graph.
    problem = msgspec.structs.replace(problem, effort=problem.effort * ANNEALED_OPS / len(evaluator.keep_all))
    if problem.budget is None:
        return _best(problem, ((cuts, *_SEGMENTS),))
    return _best(problem, ((cuts,), _SEGMENTS, (partial(retention, starts=()),)))


def _best(problem: Problem, rounds: Iterable[tuple[Strategy, ...]]) -> Proposal:
    """The cheapest plan of the first round that has one (without a budget: of least peak)."""
    evaluator = evaluator_of(problem.graph, problem.memory)
    failures: list[InfeasibleBudget] = []
    late: TimeLimit | None = None
    for strategies in rounds:
        ranked: list[tuple[float, float, int, Proposal]] = []
        for place, strategy in enumerate(strategies):
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
        if ranked:
            best = min(ranked, key=lambda row: row[:3])[3]
            return msgspec.structs.replace(best, cut_short=late is not None or any(row[3].cut_short for row in ranked))
        if late is not None:
            raise late
    raise min(failures, key=lambda failure: failure.minimum or 2**63)
