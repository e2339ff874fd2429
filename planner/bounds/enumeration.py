"""The optimum of at most nine ops, by looking at every schedule there is."""

from __future__ import annotations

from typing import Final

import msgspec

from planner.analysis.evaluator import evaluator_of
from planner.bounds.peak import no_plan
from planner.bounds.shortest import Answer, cheapest_schedule, least_peak_schedule
from planner.problem import Problem, Proposal

MOST_OPS: Final = 9
#: Looked at before it gives up. Nets and sparse graphs end long before; what comes near has two outputs or more on
#: nearly every op.
MOST_STATES: Final = 400_000


def enumerated(problem: Problem) -> Answer | None:
    """The proven answer to a problem (without a budget: the least peak); None for more ops, or where there are too many
    states.

    >>> from planner import lower, zoo
    >>> enumerated(Problem(lower(zoo.chain(4, reads=("in",))), 3)).bound
    12.0
    """
    evaluator = evaluator_of(problem.graph, problem.memory)
    if len(evaluator.keep_all) > MOST_OPS:
        return None
    pinned = problem.order == "pinned"

    def stopped() -> bool:
        return problem.stop.now

    if problem.budget is None:
        once = evaluator.evaluate(evaluator.keep_all)
        assert once is not None
        answer = least_peak_schedule(
            problem.graph, problem.memory, most_bytes=once[0], pinned=pinned, most_states=MOST_STATES, stop=stopped
        )
    else:
        answer = cheapest_schedule(
            problem.graph, problem.memory, problem.budget, pinned=pinned, most_states=MOST_STATES, stop=stopped
        )
    return answer if answer.proven else None


def enumeration(problem: Problem) -> Proposal | None:
    """The cheapest schedule there is within the budget; without one, one of least peak. None where `enumerated` has no
    answer.

    Raises:
        InfeasibleBudget: no schedule fits; carries the least peak, which a schedule reaches.
    """
    answer = enumerated(problem)
    if answer is None:
        return None
    if answer.schedule is not None:
        return Proposal(answer.schedule)
    evaluator = evaluator_of(problem.graph, problem.memory)
    if problem.budget is None:
        return Proposal(evaluator.schedule(evaluator.keep_all))
    least = enumerated(msgspec.structs.replace(problem, budget=None))
    raise no_plan(problem, "enumeration", minimum=None if least is None else int(least.bound))
