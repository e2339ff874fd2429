"""Sweeps: every strategy at every budget of a curve, in one process, in many or on a cluster."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path

from planner.bounds.certificate import certified_cost
from planner.bounds.peak import peak_lower_bound
from planner.errors import TimeLimit
from planner.plan import Plan
from planner.planning.curve import Curve, Point, PointStatus
from planner.planning.journal import Journal, Question
from planner.planning.searches import Answer, Found, Search, Task, answered, ranked
from planner.planning.session import Candidate, Session
from planner.planning.workers import Parcel, answers, elsewhere
from planner.problem import Allocator, Budget, Strategy, effort_schedule
from planner.units import BudgetText, format_bytes

#: Called with searches and bounds done, those in all, and a word on the last.
SweepProgress = Callable[[int, int, str], None]
_ROUNDING = 1e-9  # of a cost: sums in another order


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
        jobs: int | None,
        progress: SweepProgress | None,
    ) -> None:
        self.session, self.searches, self.jobs = session, searches, jobs
        # by value where it is registered here: other processes know only what comes with the package
        self.allocate = session.allocate if isinstance(allocator, str) else allocator
        self.progress = progress or (lambda done, total, what: None)
        self.base = ranked(session.base)
        self.answers: dict[Task, Answer] = {}
        self.bounds: dict[int, float] = {}
        self.chosen: dict[tuple[str, int], Found] = {}
        self.total = 0
        self._journal: Journal | None = None

    def curve(self, wanted: int | tuple[BudgetText, ...], *, resume: str | os.PathLike[str] | None = None) -> Curve:
        """The curve over a number of budgets, or over these.

        Args:
            resume: a file of finished searches, see `Journal`.
        Raises:
            TimeLimit: Ctrl-C came before any plan was found.
            PlanFileError, OutputError: see `Journal`.
        """
        session = self.session
        with ExitStack() as open_files:
            self._folder = open_files.enter_context(tempfile.TemporaryDirectory(prefix="planner-"))
            if resume is not None:
                self._journal = open_files.enter_context(Journal(resume, session, self._question(wanted)))
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

    def _question(self, wanted: int | tuple[BudgetText, ...]) -> Question:
        budgets = wanted if isinstance(wanted, int) else tuple(self._budgets(wanted))
        return Question.of(self.session, budgets=budgets, strategies=tuple(self.searches))

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

    def _tasks(self, effort: float, *budgets: int | None) -> list[Task]:
        return [Task(name, budget, effort) for budget in budgets for name in self.searches]

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

    def _ask(self, tasks: list[Task]) -> None:
        """Answer these tasks, all from what is known before the first; once `stop.now`, those under way alone."""
        if self.session.stop.now:
            return
        for task in tasks:
            if self._settled(task):
                self._enter(task, Answer((), False))
        open_tasks = [task for task in tasks if task not in self.answers]
        searches = [Search(task, self.searches[task.strategy], self._starts(task)) for task in open_tasks]
        known = {} if self._journal is None else {task: self._journal.answer(task) for task in open_tasks}
        for task, answer in known.items():
            if answer is not None:
                self._enter(task, answer)
        for task, answer in self._answers([search for search in searches if search.task not in self.answers]):
            if self._journal is not None:
                self._journal.write(task, answer)
            self._enter(task, answer)

    def _enter(self, task: Task, answer: Answer) -> None:
        self.answers[task] = answer
        where = ", least peak" if task.budget is None else f" at {format_bytes(task.budget)}"
        self._tell(task.strategy + where)

    def _settled(self, task: Task) -> bool:
        """True where a search could find nothing better."""
        if task.budget is None:
            return False
        bound = self._bound(task.budget)
        return bound == math.inf or any(
            found.cost <= bound for found in self._pool(task.strategy) if self._fits(found, task.budget)
        )

    def _starts(self, task: Task) -> tuple[Candidate, ...]:
        """The cheapest plan of a strategy within a budget, and the smallest of its cheaper ones above it."""
        name, budget, _ = task
        if budget is None:
            return ()
        pool = [found for found in self._pool(name) if found is not self.base]  # where every strategy begins
        within = min((found for found in pool if self._fits(found, budget)), key=lambda found: found[:5], default=None)
        cheaper = [
            found for found in pool if not self._fits(found, budget) and (within is None or found.cost < within.cost)
        ]
        above = min(cheaper, key=lambda found: (found.arena_bytes, found[:5]), default=None)
        return tuple(found.candidate for found in (within, above) if found is not None)

    def _fits(self, found: Found, budget: int) -> bool:
        return self.session.memory.needed_bytes(found.arena_bytes) <= budget

    def _pool(self, name: str) -> list[Found]:
        """All plans of one strategy so far, by budget, then by effort; keep-all first."""
        asked = sorted((task.budget or 0, task.effort, task) for task in self.answers if task.strategy == name)
        return [self.base, *(found for _, _, task in asked for found in self.answers[task].found)]

    def _answers(self, searches: list[Search]) -> Iterator[tuple[Task, Answer]]:
        """Each task with its answer, as its search ends."""
        if len(searches) > 1 and elsewhere(self.jobs):
            yield from answers(self._parcel, searches, jobs=self.jobs, stop=self.session.stop)
            return
        for search in searches:
            if self.session.stop.now:
                return
            yield search.task, answered(self.session, search)

    @cached_property
    def _parcel(self) -> Parcel:
        return Parcel.of(self.session, folder=self._folder, allocate=self.allocate)

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

    def _point(self, name: str, budget: int, found: Found, bound: float, *, cut_short: bool) -> Point:
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
