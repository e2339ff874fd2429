"""Sweeps: every strategy at every budget of a curve, in one process or many."""

from __future__ import annotations

import math
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import msgspec

from planner import mxnet
from planner.bounds.certificate import certified_cost
from planner.bounds.peak import peak_lower_bound
from planner.errors import InfeasibleBudget, TimeLimit
from planner.graph import Graph
from planner.plan import Plan
from planner.planning.curve import Curve, Point, PointStatus
from planner.planning.session import Candidate, Session
from planner.problem import Allocator, Budget, Request, Stop, Strategy, effort_schedule
from planner.schedule import Schedule
from planner.units import BudgetText, format_bytes

#: Called with searches and bounds done, those in all, and a word on the last.
SweepProgress = Callable[[int, int, str], None]
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


def _answer(session: Session, task: _Task, search: Strategy, starts: tuple[Schedule, ...]) -> _Answer:
    """All plans one strategy finds for one budget, beginning from plans for other budgets."""
    budget = None if task.budget is None else Budget(str(task.budget), task.budget)
    session = session.asking(strategy=task.strategy, search=search, budget=budget)
    problem = msgspec.structs.replace(session.problem, effort=task.effort, starts=starts)
    found: list[_Found] = []
    cut_short = session.stop.now
    try:
        if budget is None:
            candidates = iter([session.judged(session.propose(problem))])
        else:
            candidates = session.attempts(problem, session.request.live_budget)
        for candidate in candidates:
            found.append(_found(candidate))
            cut_short = candidate.proposal.cut_short or session.stop.now
    except InfeasibleBudget:
        pass
    except TimeLimit:
        cut_short = True
    return _Answer(tuple(found), cut_short)


class _Parcel(NamedTuple):
    """A sweep's question as it is sent to another process.

    Args:
        folder: of the parent, gone when the sweep is over; a file `stop` in it says that Ctrl-C came.
        graph_json: the graph as bytes, which travel faster than objects.
        allocate: a callable of the user's, or None for the one registered by the request's name.
    """

    folder: str
    graph_json: bytes
    request: Request
    allocate: Allocator | None
    deadline: float | None


_unpacked: dict[str, Session] = {}


def _answer_elsewhere(parcel: _Parcel, task: _Task, search: Strategy, starts: tuple[Schedule, ...]) -> _Answer:
    """`_answer` in another process, which unpacks a graph once for all its tasks."""
    if parcel.folder not in _unpacked:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C, and says so
        mxnet.register()
        _unpacked.clear()
        stop = Stop(parcel.deadline)
        threading.Thread(target=_heed, args=(parcel.folder, stop), daemon=True).start()
        graph = Graph.from_json(parcel.graph_json)
        _unpacked[parcel.folder] = Session(graph, parcel.request, allocate=parcel.allocate, stop=stop)
    return _answer(_unpacked[parcel.folder], task, search, starts)


def _heed(folder: str, stop: Stop) -> None:
    """End this process with its parent, and its searches when the parent says so; until the sweep is over."""
    parent = os.getppid()
    while os.path.isdir(folder):
        if os.getppid() != parent:
            os._exit(1)
        if os.path.exists(os.path.join(folder, "stop")):
            stop.interrupt()
        time.sleep(0.1)


def _halvings(budgets: Sequence[int]) -> Iterator[list[int]]:
    """The middle budget, then the middles of both halves, and so on, so that neighbours are known before a budget.

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
    cannot find anything better is left out: nothing fits by proof, or the strategy has a plan that costs no more than
    is proven. All is done with effort 1, then again with 2, from what is known by then, then with 4, as far as the
    effort goes: at given budgets more effort never finds less.
    """

    def __init__(
        self,
        session: Session,
        searches: dict[str, Strategy],
        *,
        allocator: str | Allocator | None,
        jobs: int,
        progress: SweepProgress | None,
    ) -> None:
        self.session, self.searches, self.jobs = session, searches, jobs
        # by value where it is registered here: other processes know only what comes with the package
        self.allocate = session.allocate if isinstance(allocator, str) else allocator
        self.progress = progress or (lambda done, total, what: None)
        self.base = _found(session.base)
        self.answers: dict[_Task, _Answer] = {}
        self.bounds: dict[int, float] = {}
        self.chosen: dict[tuple[str, int], _Found] = {}
        self.total = 0

    def curve(self, wanted: int | tuple[BudgetText, ...]) -> Curve:
        """The curve over a number of budgets, or over these.

        Raises:
            TimeLimit: Ctrl-C came before any plan was found.
        """
        session = self.session
        with tempfile.TemporaryDirectory(prefix="planner-") as self._folder:
            session.stop.told.append(Path(self._folder, "stop").touch)
            try:
                points = self._points(wanted)
            finally:
                session.stop.told.pop()
        if session.stop.interrupted and not any(answer.found for answer in self.answers.values()):
            raise TimeLimit("Ctrl-C came before any plan was found")
        found = Curve(
            graph=session.graph.name,
            fingerprint=session.graph.fingerprint,
            ops=sum(not op.resident for op in session.graph.ops),
            keep_all=session.keep_all.figures,
            peak_lower_bound=peak_lower_bound(session.graph, session.memory).nbytes,
            request=session.request,
            strategies=tuple(self.searches),
            points=points,
        )
        return found.with_plans(self.plan)

    def _points(self, wanted: int | tuple[BudgetText, ...]) -> tuple[Point, ...]:
        """One point for each strategy and budget, by strategy, then by budget."""
        count = wanted if isinstance(wanted, int) else len(wanted)
        efforts = tuple(effort_schedule(self.session.problem.effort))
        self._expect(efforts, count)
        early = efforts if isinstance(wanted, int) else efforts[:1]  # a number of budgets begins at the least peak
        for effort in early:
            self._ask(self._tasks(effort, None))
        budgets = self._budgets(wanted)
        needed = [budget for budget in budgets if budget < self.session.memory.needed_bytes(self.base.arena_bytes)]
        self._expect(efforts, len(needed))
        self._bind(needed)
        for effort in efforts:
            if effort not in early:
                self._ask(self._tasks(effort, None))
            for middles in _halvings(needed):
                self._ask(self._tasks(effort, *middles))
        return tuple(point for name in self.searches for point in self._line(name, budgets))

    def plan(self, point: Point) -> Plan:
        """The plan of one of these points."""
        budget = Budget(str(point.budget), point.budget)
        session = self.session.asking(strategy=point.strategy, budget=budget)
        return session.plan(self.chosen[point.strategy, point.budget].candidate)

    def _budgets(self, wanted: int | tuple[BudgetText, ...]) -> list[int]:
        """The budgets asked for; a number of them lie as squares do, dense at the least peak, where costs rise."""
        if isinstance(wanted, tuple):
            peak_bytes = self.session.keep_all.trace.peak_bytes
            return sorted({Budget.read(budget, keep_all_peak_bytes=peak_bytes).nbytes for budget in wanted})
        arenas = [found.arena_bytes for answer in self.answers.values() for found in answer.found]
        whole = self.base.arena_bytes
        low, high = (max(1, self.session.memory.needed_bytes(nbytes)) for nbytes in (min([whole, *arenas]), whole))
        steps, budgets = max(1, wanted - 1), [low]
        for k in range(1, wanted):
            budgets.append(min(high, max(budgets[-1] + 1, low + (high - low) * k * k // steps**2)))
        return sorted(set(budgets))

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
        """A cost that no plan within the budget is below; infinite where none fits. It holds for less memory too."""
        session, known = self.session, self._bound(budget)
        allowed = session.memory.live_bytes(budget)
        if known == math.inf or allowed < peak_lower_bound(session.graph, session.memory).nbytes:
            return math.inf
        if session.stop.now:
            return known
        effort = session.problem.effort
        proven = certified_cost(session.graph, session.memory, allowed, effort=effort, stop=session.stop)
        return max(known, proven.cost)

    def _bound(self, budget: int) -> float:
        """The largest cost proven for this budget or a larger one."""
        return max([self.session.cost_lower_bound, *(cost for other, cost in self.bounds.items() if other >= budget)])

    def _tell(self, what: str) -> None:
        self.progress(len(self.answers) + len(self.bounds), self.total, what)

    def _ask(self, tasks: list[_Task]) -> None:
        """Answer these tasks; after Ctrl-C, those that are under way alone."""
        if self.session.stop.interrupted:
            return
        for task in tasks:
            if self._settled(task):
                self._enter(task, _Answer((), False))
        open_tasks = [task for task in tasks if task not in self.answers]
        for task, answer in zip(open_tasks, self._answers(open_tasks), strict=False):
            self._enter(task, answer)

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
        return self.session.memory.needed_bytes(found.arena_bytes) <= budget

    def _pool(self, name: str) -> list[_Found]:
        """All plans of one strategy so far, by budget; keep-all first."""
        asked = sorted((task for task in self.answers if task.strategy == name), key=lambda task: task.budget or 0)
        return [self.base, *(found for task in asked for found in self.answers[task].found)]

    def _answers(self, tasks: list[_Task]) -> Iterator[_Answer]:
        starts = [self._starts(task.strategy, task.budget) for task in tasks]
        if self.jobs == 1 or len(tasks) < 2:
            for task, start in zip(tasks, starts, strict=True):
                if self.session.stop.interrupted:
                    return
                yield _answer(self.session, task, self.searches[task.strategy], start)
            return
        from joblib import Parallel, delayed

        run = Parallel(n_jobs=self.jobs, backend="loky", return_as="generator")
        try:
            yield from run(
                delayed(_answer_elsewhere)(self._parcel, task, self.searches[task.strategy], start)
                for task, start in zip(tasks, starts, strict=True)
            )
        except BrokenExecutor:  # a child that was just starting did not ignore Ctrl-C yet
            if not self.session.stop.interrupted:
                raise

    @cached_property
    def _parcel(self) -> _Parcel:
        session = self.session
        return _Parcel(self._folder, session.graph.to_json(), session.request, self.allocate, session.stop.deadline)

    def _line(self, name: str, budgets: list[int]) -> Iterator[Point]:
        """The points of one strategy: at each budget the cheapest of all its plans that fit."""
        base, pool = self.base, self._pool(name)
        least = self.session.memory.needed_bytes(min(found.arena_bytes for found in pool))
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
