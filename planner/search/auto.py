"""The portfolio: every strategy that applies, cheapest that fits wins."""

from __future__ import annotations

from planner.analysis.liveness import evaluator_of
from planner.errors import InfeasibleBudget
from planner.problem import Problem, Proposal
from planner.search.chen import chen_budget, chen_sqrt


def auto(problem: Problem) -> Proposal:
    """The cheapest plan within the budget that any strategy proposes; without a budget, the one of least peak.

    Raises:
        InfeasibleBudget: no strategy fits; carries the least peak any of them reached.
    """
    evaluator = evaluator_of(problem.graph, problem.memory)
    ranked: list[tuple[float, float, int, Proposal]] = []
    failures: list[InfeasibleBudget] = []
    for place, strategy in enumerate((chen_sqrt, chen_budget)):
        try:
            proposal = strategy(problem)
        except InfeasibleBudget as failure:
            failures.append(failure)
            continue
        outcome = evaluator.evaluate(evaluator.sequence(proposal.schedule))
        assert outcome is not None
        peak_bytes, cost = outcome
        first, second = (peak_bytes, cost) if problem.budget is None else (cost, peak_bytes)
        ranked.append((first, second, place, proposal))
    if not ranked:
        raise min(failures, key=lambda failure: failure.minimum or 2**63)
    return min(ranked, key=lambda row: row[:3])[3]
