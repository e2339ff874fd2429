"""Sweeps: every strategy at every budget of a curve, in one process or many."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import NamedTuple, Union

from planner.curves import Point, Status
from planner.errors import InfeasibleBudget, TimeLimit
from planner.graph import Graph
from planner.memory import MemoryModel
from planner.problem import Allocator, Order, Problem, Strategy
from planner.solving import Work
from planner.units import Budget, format_bytes, parse_budget

#: Called with searches done, searches in all, and a word on the last.
Progress = Callable[[int, int, str], None]


class _Found(NamedTuple):
    """What a sweep keeps of a solution."""

    cost: float
    arena_bytes: int
    peak_bytes: int
    recomputed_ops: int
    extra_runs: int


class _Answer(NamedTuple):
    """What one search found, plans that missed their budget included: they may fit another."""

    found: tuple[_Found, ...]
    cut_short: bool


_Task = tuple[str, Union[int, None]]  # strategy, and budget in bytes or None for the least peak


def _answer(work: Work, problem: Problem, strategy: Strategy, budget_bytes: int | None) -> _Answer:
    """Every plan that a strategy comes to for one budget."""
    found: list[_Found] = []
    cut_short = problem.out_of_time
    try:
        if budget_bytes is None:
            solutions = iter([work.judged(work.propose(strategy, problem))])
        else:
            solutions = work.attempts(strategy, problem, budget_bytes - work.memory.reserve)
        for solution in solutions:
            extra = solution.trace.recomputed
            found.append(_Found(solution.trace.cost, solution.arena_bytes, solution.trace.peak_bytes, len(extra), sum(extra.values())))
            cut_short = solution.proposal.cut_short or problem.out_of_time
            if problem.out_of_time:
                break
    except InfeasibleBudget:
        pass
    except TimeLimit:
        cut_short = True
    return _Answer(tuple(found), cut_short)


class _Parcel(NamedTuple):
    """A sweep's question as it is sent to another process; the graph as bytes, which travel faster than objects."""

    token: str
    graph_json: bytes
    allocator: str | Allocator | None
    memory: MemoryModel
    order: Order
    seed: int
    effort: float
    deadline: float | None


_unpacked: dict[str, tuple[Work, Problem]] = {}


def _answer_elsewhere(parcel: _Parcel, strategy: Strategy, budget_bytes: int | None) -> _Answer:
    """`_answer` in another process, which unpacks a graph once for all its tasks."""
    if parcel.token not in _unpacked:
        _unpacked.clear()
        graph = Graph.from_json(parcel.graph_json)
        problem = Problem(graph, None, parcel.memory, parcel.order, parcel.seed, parcel.effort, parcel.deadline)
        _unpacked[parcel.token] = Work(graph, parcel.allocator, parcel.memory), problem
    return _answer(*_unpacked[parcel.token], strategy, budget_bytes)


class Sweep:
    """Every strategy at every budget. Searches are independent of each other, so their order and number of processes do not matter."""

    def __init__(
        self, work: Work, problem: Problem, searches: dict[str, Strategy], *, allocator: str | Allocator | None, jobs: int,
        progress: Progress | None,
    ) -> None:  # fmt: skip
        self.work, self.problem, self.searches, self.jobs = work, problem, searches, jobs
        # by value where it is registered here: other processes know only what comes with the package
        self.allocator = work.allocator if isinstance(allocator, str) else allocator
        self.progress = progress or (lambda done, total, what: None)
        self.answers: dict[_Task, _Answer] = {}
        self.stopped = False

    def points(self, wanted: int | tuple[Budget, ...]) -> tuple[Point, ...]:
        """One point for each strategy and budget, by strategy, then by budget."""
        total = len(self.searches) * (1 + (wanted if isinstance(wanted, int) else len(wanted)))
        self._ask([(name, None) for name in self.searches], total)
        budgets = self._budgets(wanted)
        reserve = self.work.memory.reserve
        needed = [budget for budget in budgets if budget - reserve < self.work.keep_all.arena_bytes]
        total = len(self.searches) * (1 + len(needed))
        self._ask([(name, budget) for budget in needed for name in self.searches], total)
        return tuple(point for name in self.searches for point in self._line(name, budgets))

    def _budgets(self, wanted: int | tuple[Budget, ...]) -> list[int]:
        keep_all = self.work.keep_all
        if isinstance(wanted, tuple):
            return sorted({parse_budget(budget, keep_all.trace.peak_bytes) for budget in wanted})
        high = keep_all.arena_bytes
        low = min([high, *(found.arena_bytes for answer in self.answers.values() for found in answer.found)])
        steps = max(1, wanted - 1)
        return sorted({max(1, low + (high - low) * k // steps + self.work.memory.reserve) for k in range(wanted)})

    def _ask(self, tasks: list[_Task], total: int) -> None:
        if self.stopped:
            return
        try:
            for task, answer in zip(tasks, self._answers(tasks), strict=True):
                self.answers[task] = answer
                name, budget = task
                what = f"{name}, least peak" if budget is None else f"{name} at {format_bytes(budget)}"
                self.progress(len(self.answers), total, what)
                if answer.cut_short and not self.problem.out_of_time:  # the strategy kept its best plan at Ctrl-C
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            if not any(answer.found for answer in self.answers.values()):
                raise
            self.stopped = True

    def _answers(self, tasks: list[_Task]) -> Iterator[_Answer]:
        if self.jobs == 1 or len(tasks) < 2:
            for name, budget in tasks:
                yield _answer(self.work, self.problem, self.searches[name], budget)
            return
        from joblib import Parallel, delayed

        problem = self.problem
        parcel = _Parcel(
            uuid.uuid4().hex, problem.graph.to_json(), self.allocator, problem.memory, problem.order, problem.seed, problem.effort,
            problem.deadline,
        )  # fmt: skip
        run = Parallel(n_jobs=self.jobs, backend="loky", return_as="generator")
        yield from run(delayed(_answer_elsewhere)(parcel, self.searches[name], budget) for name, budget in tasks)

    def _line(self, name: str, budgets: list[int]) -> Iterator[Point]:
        """The points of one strategy: at each budget the cheapest of all its plans that fit."""
        keep_all, reserve = self.work.keep_all, self.work.memory.reserve
        everything = _Found(keep_all.trace.cost, keep_all.arena_bytes, keep_all.trace.peak_bytes, 0, 0)
        asked = [self.answers.get((name, budget)) for budget in (None, *budgets)]
        pool = [everything, *(found for answer in asked if answer is not None for found in answer.found)]
        least = min(found.arena_bytes for found in pool) + reserve
        for budget, answer in zip(budgets, asked[1:], strict=True):
            fits = [found for found in pool if found.arena_bytes + reserve <= budget]
            cut_short = everything not in fits and (answer is None or answer.cut_short)
            if fits:  # keep-all before its equals
                best = min(fits, key=lambda found: (found.cost, found is not everything, found))
                yield _point(name, budget, best, everything.cost, cut_short=cut_short)
            else:
                status: Status = "not reached" if cut_short else "infeasible"
                yield Point(name, budget, status, minimum=least, cut_short=cut_short)


def _point(name: str, budget: int, found: _Found, keep_all_cost: float, *, cut_short: bool) -> Point:
    overhead = max(0.0, found.cost / keep_all_cost - 1) if keep_all_cost else 0.0  # below 0 by rounding: sums in another order
    return Point(
        name, budget, "fits", None, found.peak_bytes, found.arena_bytes, found.cost, overhead, found.recomputed_ops, found.extra_runs,
        cut_short,
    )  # fmt: skip
