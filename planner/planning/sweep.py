"""Sweeps: every strategy at every budget of a curve, in one process or many."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from planner import mxnet
from planner.bounds.certificate import certified_cost
from planner.bounds.peak import peak_lower_bound
from planner.errors import InfeasibleBudget, TimeLimit
from planner.graph import Graph
from planner.memory import MemoryModel
from planner.plan import Plan
from planner.planning.curve import Point, PointStatus
from planner.planning.session import Candidate, Session
from planner.policy import policy_of
from planner.problem import Allocator, Order, Problem, Strategy, effort_schedule
from planner.schedule import Schedule
from planner.units import Budget, format_bytes, parse_budget

#: Called with searches and bounds done, those in all, and a word on the last.
SweepProgress = Callable[[int, int, str], None]
_What = TypeVar("_What")
_ROUNDING = 1e-9  # of a cost: sums in another order


class _Found(NamedTuple):
    """A solution, after the figures by which it is ranked."""

    cost: float
    arena_bytes: int
    peak_bytes: int
    recomputed_ops: int
    extra_runs: int
    candidate: Candidate


def _found(candidate: Candidate) -> _Found:
    trace, extra = candidate.trace, candidate.trace.recomputed
    return _Found(trace.cost, candidate.arena_bytes, trace.peak_bytes, len(extra), sum(extra.values()), candidate)


class _Answer(NamedTuple):
    """What one search found, plans that missed their budget included: they may fit another."""

    found: tuple[_Found, ...]
    cut_short: bool


class _Task(NamedTuple):
    """One search: of a strategy, for a budget in bytes or None for the least peak, with some effort."""

    strategy: str
    budget: int | None
    effort: float

    def asked(self, problem: Problem, starts: tuple[Schedule, ...]) -> Problem:
        """The problem with this budget and effort, from plans for other budgets."""
        return msgspec.structs.replace(problem, budget=self.budget, effort=self.effort, starts=starts)


def _answer(session: Session, problem: Problem, strategy: Strategy) -> _Answer:
    """Every plan that a strategy comes to for one problem, whose budget has the reserve in it still."""
    found: list[_Found] = []
    cut_short = problem.out_of_time
    try:
        if problem.budget is None:
            solutions = iter([session.judged(session.propose(strategy, problem))])
        else:
            solutions = session.attempts(strategy, problem, problem.budget - session.memory.reserve)
        for candidate in solutions:
            found.append(_found(candidate))
            cut_short = candidate.proposal.cut_short or problem.out_of_time
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
    deadline: float | None
    save: tuple[str, ...]
    recompute: tuple[str, ...]


_unpacked: dict[str, tuple[Session, Problem]] = {}


def _answer_elsewhere(parcel: _Parcel, strategy: Strategy, task: _Task, starts: tuple[Schedule, ...]) -> _Answer:
    """`_answer` in another process, which unpacks a graph once for all its tasks."""
    if parcel.token not in _unpacked:
        mxnet.register()
        _unpacked.clear()
        graph = Graph.from_json(parcel.graph_json)
        policy = policy_of(graph, parcel.memory, parcel.save, parcel.recompute)
        session = Session(graph, parcel.allocator, parcel.memory, policy=policy)
        problem = session.problem(order=parcel.order, seed=parcel.seed, effort=1.0, deadline=parcel.deadline)
        _unpacked[parcel.token] = session, problem
    session, problem = _unpacked[parcel.token]
    return _answer(session, task.asked(problem, starts), strategy)


def _halvings(budgets: Sequence[int]) -> Iterator[list[int]]:
    """The middle one, then the middles of both halves, and so on: every budget comes after a neighbour on each side, as
    far as there are.

    >>> list(_halvings([10, 20, 30, 40, 50, 60]))
    [[40], [20, 60], [10, 30, 50]]
    """
    spans = [(0, len(budgets))] if budgets else []
    while spans:
        middles = [(low, (low + high) // 2, high) for low, high in spans]
        yield [budgets[middle] for _, middle, _ in middles]
        spans = [
            span for low, middle, high in middles for span in ((low, middle), (middle + 1, high)) if span[0] < span[1]
        ]


class Sweep:
    """Every strategy at every budget, from the middle outwards; each search begins from the plans of its neighbours.

    Searches of one round are independent of each other, so the number of processes does not matter. A search that
    cannot find anything
    better is left out: nothing fits by proof, or the strategy has a plan that costs no more than is proven. All is done
    with effort 1,
    then again with 2, from what is known by then, then with 4, as far as the effort goes: at given budgets more effort
    never finds less.
    """

    def __init__(
        self,
        session: Session,
        problem: Problem,
        searches: dict[str, Strategy],
        *,
        allocator: str | Allocator | None,
        jobs: int,
        progress: SweepProgress | None,
    ) -> None:
        self.session, self.problem, self.searches, self.jobs = session, problem, searches, jobs
        # by value where it is registered here: other processes know only what comes with the package
        self.allocator = session.allocator if isinstance(allocator, str) else allocator
        self.progress = progress or (lambda done, total, what: None)
        self.base = _found(session.base)
        self.answers: dict[_Task, _Answer] = {}
        self.bounds: dict[int, float] = {}
        self.chosen: dict[tuple[str, int], _Found] = {}
        self.total = 0
        self.stopped = False
        self._parcel: _Parcel | None = None

    def points(self, wanted: int | tuple[Budget, ...]) -> tuple[Point, ...]:
        """One point for each strategy and budget, by strategy, then by budget."""
        count = wanted if isinstance(wanted, int) else len(wanted)
        efforts = tuple(effort_schedule(self.problem.effort))
        self._expect(efforts, count)
        # a number of budgets begins at the least peak there is
        early = efforts if isinstance(wanted, int) else efforts[:1]
        for effort in early:
            self._keep(self._ask, self._tasks(effort, None))
        budgets = self._budgets(wanted)
        needed = [budget for budget in budgets if budget - self.session.memory.reserve < self.base.arena_bytes]
        self._expect(efforts, len(needed))
        self._keep(self._bind, needed)
        for effort in efforts:
            if effort not in early:
                self._keep(self._ask, self._tasks(effort, None))
            for middles in _halvings(needed):
                self._keep(self._ask, self._tasks(effort, *middles))
        return tuple(point for name in self.searches for point in self._line(name, budgets))

    def plan(self, point: Point, *, save: tuple[str, ...] = (), recompute: tuple[str, ...] = ()) -> Plan:
        """The plan of one of these points.

        Args:
            save, recompute: the user's rules, for its file.
        """
        session, problem, name, budget = self.session, self.problem, point.strategy, point.budget
        candidate = self.chosen[name, budget].candidate
        report = session.report(name, candidate, budget, str(budget), effort=problem.effort, order=problem.order)
        return Plan(
            session.graph,
            candidate.proposal.schedule,
            candidate.allocation,
            report,
            name,
            session.allocator_name,
            budget,
            session.memory,
            problem.seed,
            problem.effort,
            save,
            recompute,
            problem.order,
        )

    def _budgets(self, wanted: int | tuple[Budget, ...]) -> list[int]:
        if isinstance(wanted, tuple):
            return sorted({parse_budget(budget, self.session.keep_all.trace.peak_bytes) for budget in wanted})
        high = self.base.arena_bytes
        low = min([high, *(found.arena_bytes for answer in self.answers.values() for found in answer.found)])
        steps = max(1, wanted - 1)
        return sorted({max(1, low + (high - low) * k // steps + self.session.memory.reserve) for k in range(wanted)})

    def _keep(self, stage: Callable[[_What], None], what: _What) -> None:
        """Run a stage; Ctrl-C ends the sweep, and what was found is kept."""
        if self.stopped:
            return
        try:
            stage(what)
        except KeyboardInterrupt:
            if not any(answer.found for answer in self.answers.values()):
                raise
            self.stopped = True

    def _expect(self, efforts: tuple[float, ...], count: int) -> None:
        """So many searches and bounds are ahead in all."""
        self.total = len(efforts) * len(self.searches) * (1 + count) + count

    def _bind(self, budgets: list[int]) -> None:
        for budget in reversed(budgets):
            self.bounds[budget] = self._certified(budget)
            self._tell(f"lower bound at {format_bytes(budget)}")

    def _tasks(self, effort: float, *budgets: int | None) -> list[_Task]:
        return [_Task(name, budget, effort) for budget in budgets for name in self.searches]

    def _certified(self, budget: int) -> float:
        """A cost that no plan within the budget is below; infinite where none fits. What holds with more memory holds
        with less.
        """
        session, allowed = self.session, budget - self.session.memory.reserve
        known = self._bound(budget)
        if known == math.inf or allowed < peak_lower_bound(session.graph, session.memory).nbytes:
            return math.inf
        if self.problem.out_of_time:
            return known
        return max(known, certified_cost(session.graph, session.memory, allowed, effort=self.problem.effort).cost)

    def _bound(self, budget: int) -> float:
        """The largest cost proven for this budget or a larger one."""
        return max([self.session.cost_lower_bound, *(cost for other, cost in self.bounds.items() if other >= budget)])

    def _tell(self, what: str) -> None:
        self.progress(len(self.answers) + len(self.bounds), self.total, what)

    def _ask(self, tasks: list[_Task]) -> None:
        for task in tasks:
            if self._settled(task):
                self._enter(task, _Answer((), False))
        open_tasks = [task for task in tasks if task not in self.answers]
        for task, answer in zip(open_tasks, self._answers(open_tasks), strict=True):
            self._enter(task, answer)
            if answer.cut_short and not self.problem.out_of_time:  # the strategy kept its best plan at Ctrl-C
                raise KeyboardInterrupt

    def _enter(self, task: _Task, answer: _Answer) -> None:
        self.answers[task] = answer
        where = ", least peak" if task.budget is None else f" at {format_bytes(task.budget)}"
        self._tell(task.strategy + where)

    def _settled(self, task: _Task) -> bool:
        """True where a search could find nothing better."""
        if task.budget is None:
            return False
        bound = self._bound(task.budget)
        return bound == math.inf or any(
            found.cost <= bound for found in self._pool(task.strategy) if self._fits(found, task.budget)
        )

    def _starts(self, name: str, budget: int | None) -> tuple[Schedule, ...]:
        """The cheapest plan of a strategy within a budget, and the smallest of its cheaper ones above it."""
        policy = self.session.policy
        # such plans are no plans of the graph that is searched
        if budget is None or (policy is not None and policy.rerun):
            return ()
        pool = [found for found in self._pool(name) if found is not self.base]  # where every strategy begins
        within = min((found for found in pool if self._fits(found, budget)), key=lambda found: found[:5], default=None)
        cheaper = [
            found for found in pool if not self._fits(found, budget) and (within is None or found.cost < within.cost)
        ]
        above = min(cheaper, key=lambda found: (found.arena_bytes, found[:5]), default=None)
        return tuple(found.candidate.proposal.schedule for found in (within, above) if found is not None)

    def _fits(self, found: _Found, budget: int) -> bool:
        return found.arena_bytes + self.session.memory.reserve <= budget

    def _pool(self, name: str) -> list[_Found]:
        """All plans of one strategy so far, by budget; keep-all first."""
        asked = sorted((task for task in self.answers if task.strategy == name), key=lambda task: task.budget or 0)
        return [self.base, *(found for task in asked for found in self.answers[task].found)]

    def _answers(self, tasks: list[_Task]) -> Iterator[_Answer]:
        starts = [self._starts(task.strategy, task.budget) for task in tasks]
        if self.jobs == 1 or len(tasks) < 2:
            for task, start in zip(tasks, starts, strict=True):
                yield _answer(self.session, task.asked(self.problem, start), self.searches[task.strategy])
            return
        from joblib import Parallel, delayed

        parcel = self._parcelled()
        run = Parallel(n_jobs=self.jobs, backend="loky", return_as="generator")
        yield from run(
            delayed(_answer_elsewhere)(parcel, self.searches[task.strategy], task, start)
            for task, start in zip(tasks, starts, strict=True)
        )

    def _parcelled(self) -> _Parcel:
        if self._parcel is None:
            problem, policy = self.problem, self.session.policy
            self._parcel = _Parcel(
                uuid.uuid4().hex,
                self.session.graph.to_json(),
                self.allocator,
                problem.memory,
                problem.order,
                problem.seed,
                problem.deadline,
                () if policy is None else policy.save,
                () if policy is None else policy.recompute,
            )
        return self._parcel

    def _line(self, name: str, budgets: list[int]) -> Iterator[Point]:
        """The points of one strategy: at each budget the cheapest of all its plans that fit."""
        base, pool = self.base, self._pool(name)
        least = min(found.arena_bytes for found in pool) + self.session.memory.reserve
        for budget in budgets:
            answers = [answer for task, answer in self.answers.items() if task[:2] == (name, budget)]
            fits = [found for found in pool if self._fits(found, budget)]
            cut_short = base not in fits and (not answers or any(answer.cut_short for answer in answers))
            bound = self._bound(budget)
            if fits:  # keep-all before its equals
                best = min(fits, key=lambda found: (found.cost, found is not base, found[:5]))
                self.chosen[name, budget] = best
                yield self._point(name, budget, best, bound, cut_short=cut_short)
            else:
                status: PointStatus = "not reached" if cut_short else "infeasible"
                proven = None if bound == math.inf else bound
                yield Point(name, budget, status, minimum=least, cut_short=cut_short, cost_lower_bound=proven)

    def _point(self, name: str, budget: int, found: _Found, bound: float, *, cut_short: bool) -> Point:
        keep_all_cost = self.session.keep_all.trace.cost
        # below 0 by rounding: sums in another order
        overhead = max(0.0, found.cost / keep_all_cost - 1) if keep_all_cost else 0.0
        if found.cost < bound <= found.cost * (1 + _ROUNDING):
            bound = found.cost
        gap = (found.cost - bound) / keep_all_cost if keep_all_cost else 0.0
        return Point(
            name,
            budget,
            "fits",
            peak_bytes=found.peak_bytes,
            arena_bytes=found.arena_bytes,
            cost=found.cost,
            overhead=overhead,
            recomputed_ops=found.recomputed_ops,
            extra_runs=found.extra_runs,
            cut_short=cut_short,
            cost_lower_bound=bound,
            gap=gap,
        )
