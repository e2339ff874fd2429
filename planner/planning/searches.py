"""One search of a sweep: what is asked, and every plan that it found."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from planner.errors import InfeasibleBudget, TimeLimit
from planner.planning.session import Candidate, Session
from planner.problem import Budget, Strategy


class Found(NamedTuple):
    """A solution, after the figures by which it is ranked."""

    cost: float
    arena_bytes: int
    peak_bytes: int
    recomputed_ops: int
    extra_runs: int
    candidate: Candidate


class Answer(NamedTuple):
    """What one search found, plans that missed their budget included: they may fit another."""

    found: tuple[Found, ...]
    cut_short: bool


class Task(NamedTuple):
    """One search: of a strategy, for a budget in bytes or None for the least peak, with some effort."""

    strategy: str
    budget: int | None
    effort: float


class Search(NamedTuple):
    """A task, the strategy's callable, and the plans that it begins from."""

    task: Task
    strategy: Strategy
    starts: tuple[Candidate, ...]


def ranked(candidate: Candidate) -> Found:
    """A plan judged, with its figures before it."""
    trace, extra = candidate.trace, candidate.trace.recomputed
    return Found(trace.cost, candidate.arena_bytes, trace.peak_bytes, len(extra), sum(extra.values()), candidate)


def answered(session: Session, search: Search) -> Answer:
    """All plans that a strategy finds for one budget, beginning from plans for other budgets.

    What other searches judged is forgotten: the answer is the same in whatever process and order they run.
    """
    task = search.task
    budget = None if task.budget is None else Budget(str(task.budget), task.budget)
    session = session.asking(strategy=task.strategy, search=search.strategy, budget=budget).knowing(
        (session.base, *search.starts)
    )
    starts = tuple(start.proposal.schedule for start in search.starts)
    problem = msgspec.structs.replace(session.problem, effort=task.effort, starts=starts)
    found: list[Found] = []
    cut_short = session.stop.now
    try:
        if budget is None:
            candidates = session.least_plans(problem, None)
        else:
            candidates = session.attempts(problem, session.request.live_budget)
        for candidate in candidates:
            found.append(ranked(candidate))
            cut_short = candidate.proposal.cut_short or session.stop.now
    except InfeasibleBudget:
        pass
    except TimeLimit:
        cut_short = True
    return Answer(tuple(found), cut_short)
