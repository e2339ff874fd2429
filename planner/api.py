"""The verbs: search, pack, judge, and hand over a plan."""

from __future__ import annotations

import math
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Union

import networkx as nx

from planner.analysis.bounds import infeasible, peak_lower_bound
from planner.analysis.liveness import evaluator_of
from planner.curves import Curve, Point, Status
from planner.errors import InfeasibleBudget, PlannerError, ScheduleError, TimeLimit
from planner.graph import Graph
from planner.lowering.files import read_graph
from planner.lowering.schema import lower
from planner.memory import Allocation, MemoryModel
from planner.packing import find_allocator
from planner.plan import Plan
from planner.problem import Allocator, Order, Problem, Proposal, Strategy
from planner.report import Figures, Report, replayed
from planner.schedule import Schedule
from planner.search import find_strategy
from planner.simulator import Trace
from planner.simulator import simulate as judge
from planner.units import MAX_BYTES, Budget, format_bytes, parse_budget

GraphLike = Union[nx.DiGraph, Graph, str, os.PathLike[str]]
#: Called with budgets done, budgets in all, and a word on the last.
Progress = Callable[[int, int, str], None]
MOST_BUDGETS = 1000


def optimize(
    graph: GraphLike,
    budget: Budget | None = None,
    *,
    strategy: str | Strategy = "auto",
    allocator: str | Allocator | None = "auto",
    memory: MemoryModel = MemoryModel(),
    order: Order = "free",
    effort: float = 1.0,
    time_limit: float | None = None,
    seed: int = 0,
) -> Plan:
    """The cheapest plan found that fits the budget; without a budget, the one of least peak.

    Whatever a strategy proposes is packed and replayed by the judge before it is returned. Where the arena misses the budget
    that the peak meets, the search is asked again for the difference.

    Args:
        graph: a networkx DiGraph in the schema, a `Graph`, or the path of an ONNX or JSON file.
        budget: `"7GB"`, `"7GiB"`, bytes, or a fraction of the keep-all peak in the same scope (`0.4`, `"40%"`).
        strategy: a registered name, or a callable Problem -> Proposal.
        allocator: a registered name, or a callable; None plans live bytes, without offsets.
        memory: what the budget covers.
        order: "pinned" forbids first runs in another order than the program's.
        effort: search work relative to the default; counted in moves, so the result is the same on any machine.
        time_limit: seconds; the best plan so far is returned, and says that it was cut short.
    Raises:
        InfeasibleBudget: no plan fits; carries the least that works, and what no plan can go below.
        TimeLimit: the limit passed before a plan was found.
        GraphError, UnitError, UnknownStrategy, UnknownAllocator: the arguments.

    >>> import networkx as nx
    >>> g = nx.DiGraph()
    >>> g.add_node("a", nbytes=4)
    >>> g.add_node("b", nbytes=2)
    >>> g.add_edge("a", "b")
    >>> optimize(g, "100%").report.plan
    Figures(peak_bytes=6, arena_bytes=6, cost=2.0)
    """
    deadline = _deadline(order, effort, time_limit, seed)
    if budget is not None:
        parse_budget(budget, MAX_BYTES)  # refuse what is not understood before any work
    program = as_graph(graph)
    name, search = find_strategy(strategy)
    work = _Work(program, allocator, memory)
    budget_bytes = None if budget is None else parse_budget(budget, work.keep_all.trace.peak_bytes)
    problem = Problem(program, None, memory, order, seed, float(effort), deadline)
    solution = work.solve(name, search, problem, budget_bytes)
    report = work.report(name, solution, budget_bytes, "least peak" if budget is None else str(budget))
    return Plan(
        program, solution.proposal.schedule, solution.allocation, report, name, work.allocator_name, budget_bytes, memory, seed,
        float(effort),
    )  # fmt: skip


def curve(
    graph: GraphLike,
    budgets: int | Budget | Sequence[Budget] = 16,
    *,
    strategies: str | Strategy | Sequence[str | Strategy] = ("auto",),
    allocator: str | Allocator | None = "auto",
    memory: MemoryModel = MemoryModel(),
    order: Order = "free",
    effort: float = 1.0,
    time_limit: float | None = None,
    seed: int = 0,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Curve:
    """What memory costs: the cheapest plan found at each of many budgets, by each of several strategies.

    Within a strategy every plan found serves every budget that it fits, so that a larger budget never costs more.

    Args:
        graph, allocator, memory, order, effort, seed: as for `optimize`.
        budgets: an int: that many, evenly from the least arena any of the strategies reaches to that of keep-all. A list: each in any
            form that `optimize` takes (`[7_000_000_000]`, `["4GB", "40%"]`); equals are asked once.
        strategies: registered names, or callables.
        time_limit: seconds for the whole curve; what it stops is marked so.
        jobs: processes; -1 takes every core. The curve is the same with any number.
        progress: called after each search with (done, total, what).
    Raises:
        GraphError, UnitError, UnknownStrategy, UnknownAllocator, PlannerError: the arguments. A budget that nothing fits is a point
            of the curve, not an error. Ctrl-C returns the points found so far, if there are any.

    >>> from planner import zoo
    >>> [(point.budget, point.cost) for point in curve(zoo.chain(8), [7, 8, 9]).points]  # public case C1
    [(7, 19.0), (8, 18.0), (9, 17.0)]
    """
    deadline = _deadline(order, effort, time_limit, seed)
    wanted = _wanted(budgets)
    searches = _searches(strategies)
    if isinstance(jobs, bool) or not isinstance(jobs, int) or not (jobs >= 1 or jobs == -1):
        raise PlannerError(f"jobs {jobs!r} is not a number of processes >= 1, or -1 for every core")
    program = as_graph(graph)
    work = _Work(program, allocator, memory)
    problem = Problem(program, None, memory, order, seed, float(effort), deadline)
    sweep = _Sweep(work, problem, searches, allocator=allocator, jobs=jobs, progress=progress)
    points = sweep.points(wanted)
    return Curve(
        graph=program.name,
        fingerprint=program.fingerprint,
        ops=sum(not op.resident for op in program.ops),
        keep_all=_figures(work.keep_all),
        peak_lower_bound=peak_lower_bound(program, memory).nbytes,
        memory=memory,
        strategies=tuple(searches),
        points=points,
        allocator=work.allocator_name,
        order=order,
        effort=float(effort),
        seed=seed,
    )


def _wanted(budgets: int | Budget | Sequence[Budget]) -> int | tuple[Budget, ...]:
    """A number of budgets, or the budgets; refused before any work."""
    if isinstance(budgets, int) and not isinstance(budgets, bool):
        if not 1 <= budgets <= MOST_BUDGETS:
            hint = f"; for one budget in bytes write [{budgets}]" if budgets > MOST_BUDGETS else ""
            raise PlannerError(f"{budgets!r} is not a number of budgets from 1 to {MOST_BUDGETS}{hint}")
        return budgets
    try:
        listed = (budgets,) if isinstance(budgets, (bool, float, str)) else tuple(budgets)
    except TypeError:
        raise PlannerError(f"budgets {budgets!r} is neither a number of them nor a list") from None
    if not 1 <= len(listed) <= MOST_BUDGETS:
        raise PlannerError(f"{len(listed)} budgets were given; a curve has from 1 to {MOST_BUDGETS}")
    for budget in listed:
        parse_budget(budget, MAX_BYTES)
    return listed


def _searches(strategies: str | Strategy | Sequence[str | Strategy]) -> dict[str, Strategy]:
    listed = [strategies] if isinstance(strategies, str) or callable(strategies) else list(strategies)
    searches: dict[str, Strategy] = {}
    for strategy in listed:
        name, search = find_strategy(strategy)
        if name in searches:
            raise PlannerError(f"two strategies are named {name!r}; give each a name of its own by register_strategy")
        searches[name] = search
    if not searches:
        raise PlannerError("no strategy was named")
    return searches


def _deadline(order: Order, effort: float, time_limit: float | None, seed: int) -> float | None:
    """Refuse options that cannot be meant; the `time.monotonic()` at which the search ends."""
    if order not in ("free", "pinned"):
        raise PlannerError(f"order {order!r} is not 'free' or 'pinned'")
    if not (isinstance(effort, (int, float)) and math.isfinite(effort) and effort > 0):
        raise PlannerError(f"effort {effort!r} is not a number above 0")
    if time_limit is not None and not (isinstance(time_limit, (int, float)) and time_limit > 0):
        raise PlannerError(f"time limit {time_limit!r} is not a number of seconds above 0")
    if not isinstance(seed, int):
        raise PlannerError(f"seed {seed!r} is not an int")
    return None if time_limit is None else time.monotonic() + time_limit


def allocate(
    graph: GraphLike, schedule: Schedule, *, allocator: str | Allocator = "auto", memory: MemoryModel = MemoryModel()
) -> Allocation:
    """Offsets for every buffer of a schedule, checked by the judge.

    Raises:
        ScheduleError: the schedule is illegal.
        VerificationError: the allocator's offsets are.
        UnknownAllocator: no such name.

    >>> import networkx as nx
    >>> g = nx.DiGraph()
    >>> g.add_node("a", nbytes=4)
    >>> allocate(g, optimize(g).schedule).arena_bytes
    4
    """
    program = as_graph(graph)
    judge(program, schedule, memory=memory)
    allocation = find_allocator(allocator)[1](program, schedule, memory=memory)
    judge(program, schedule, memory=memory, allocation=allocation)
    return allocation


def simulate(
    graph: GraphLike, schedule: Schedule, *, memory: MemoryModel = MemoryModel(), allocation: Allocation | None = None
) -> Trace:
    """The judge's verdict on a schedule; see `planner.simulator.simulate`. Takes any form of a graph.

    >>> import networkx as nx
    >>> g = nx.DiGraph()
    >>> g.add_node("a", nbytes=4)
    >>> simulate(g, optimize(g).schedule).peak_bytes
    4
    """
    return judge(as_graph(graph), schedule, memory=memory, allocation=allocation)


def as_graph(graph: GraphLike) -> Graph:
    """The program of a graph in any form.

    Raises:
        GraphError: unreadable or invalid.
    """
    if isinstance(graph, (str, os.PathLike)):
        graph = read_graph(graph)
    return lower(graph)


class _Solution:
    """A proposal with the judge's verdict."""

    def __init__(self, proposal: Proposal, allocation: Allocation | None, trace: Trace) -> None:
        self.proposal, self.allocation, self.trace = proposal, allocation, trace
        self.arena_bytes = trace.peak_bytes if trace.arena_bytes is None else trace.arena_bytes


class _Work:
    """One graph and allocator: what every strategy and budget on it share."""

    def __init__(self, graph: Graph, allocator: str | Allocator | None, memory: MemoryModel) -> None:
        self.graph, self.memory = graph, memory
        self.allocator_name: str | None = None
        self.allocator: Allocator | None = None
        if allocator is not None:
            self.allocator_name, self.allocator = find_allocator(allocator)
        self._judged: dict[Schedule, _Solution] = {}
        evaluator = evaluator_of(graph, memory)
        self.keep_all = self.judged(Proposal(evaluator.schedule(evaluator.keep_all)))

    def judged(self, proposal: Proposal) -> _Solution:
        """Pack a proposal and replay it; the last few are remembered, since neighbouring budgets and strategies often agree."""
        schedule = proposal.schedule
        known = self._judged.pop(schedule, None)
        if known is not None:
            self._judged[schedule] = known
            return _Solution(proposal, known.allocation, known.trace)
        try:
            allocation = None if self.allocator is None else self.allocator(self.graph, schedule, memory=self.memory)
        except ScheduleError:
            judge(self.graph, schedule, memory=self.memory)  # names the step
            raise
        solution = _Solution(proposal, allocation, judge(self.graph, schedule, memory=self.memory, allocation=allocation))
        self._judged[schedule] = solution
        if len(self._judged) > 8:
            del self._judged[next(iter(self._judged))]
        return solution

    def propose(self, strategy: Strategy, problem: Problem) -> Proposal:
        """Ask a strategy; where the order is pinned, hold it to that."""
        proposal = strategy(problem)
        if problem.order == "pinned":
            first_runs = list(dict.fromkeys(proposal.schedule.computes))
            program = [op.name for op in self.graph.ops if not op.resident]
            for wanted, found in zip(program, first_runs, strict=False):
                if wanted != found:
                    raise ScheduleError(f"first runs {found!r} before {wanted!r}, but the order is pinned", op=found)
        return proposal

    def attempts(self, strategy: Strategy, problem: Problem, allowed: int) -> Iterator[_Solution]:
        """What a strategy proposes for a budget, asked again for less while the arena misses it: only the last can fit."""
        target = allowed
        for _ in range(8):
            if target < 1:
                return
            try:
                solution = self.judged(self.propose(strategy, _with_budget(problem, target)))
            except InfeasibleBudget:
                return
            yield solution
            if solution.arena_bytes <= allowed:
                return
            target = min(target - (solution.arena_bytes - allowed), solution.trace.peak_bytes - 1)

    def solve(self, name: str, strategy: Strategy, problem: Problem, budget_bytes: int | None) -> _Solution:
        """Keep-all if it fits, else what the strategy finds, else its plan of least peak."""
        peaks = [self.keep_all.trace.peak_bytes]
        if budget_bytes is not None:
            allowed = budget_bytes - self.memory.reserve
            if self.keep_all.arena_bytes <= allowed:
                return self.keep_all
            for solution in self.attempts(strategy, problem, allowed):
                if solution.arena_bytes <= allowed:
                    return solution
                peaks.append(solution.trace.peak_bytes)
                if problem.out_of_time:
                    budget = format_bytes(budget_bytes)
                    raise TimeLimit(f"no plan whose arena fits {budget} was found in time; raise the limit or the budget")
        least = min(self.keep_all, self.judged(self.propose(strategy, problem)), key=lambda s: (s.arena_bytes, s.trace.cost))
        if budget_bytes is None or least.arena_bytes <= allowed:
            return least
        minimum = least.arena_bytes + self.memory.reserve
        live_fit = min(peaks) if min(peaks) <= allowed else None
        raise infeasible(self.graph, self.memory, budget=budget_bytes, minimum=minimum, found_by=name, live_fit=live_fit)

    def report(self, strategy: str, solution: _Solution, budget_bytes: int | None, budget_text: str) -> Report:
        """Everything a reader of the plan asks."""
        trace, proposal = solution.trace, solution.proposal
        bound = peak_lower_bound(self.graph, self.memory).nbytes
        one_run = self.keep_all.trace.cost  # every op runs once in keep-all, and at least once in any plan
        # A bound above what the plan itself takes is no bound: nothing of such a claim is repeated.
        modest = (proposal.peak_lower_bound or 0) <= trace.peak_bytes and (proposal.cost_lower_bound or 0.0) <= trace.cost
        peak_bound = max(bound, proposal.peak_lower_bound or 0) if modest else bound
        cost_bound = max(one_run, proposal.cost_lower_bound or 0.0) if modest else one_run
        optimal = proposal.optimal if modest else None
        if budget_bytes is not None and trace.cost <= cost_bound:
            optimal = "cost at this budget, order free"
        elif budget_bytes is None and trace.peak_bytes <= peak_bound:
            optimal = "peak, order free"
        return Report(
            graph=self.graph.name,
            ops=sum(not op.resident for op in self.graph.ops),
            strategy=strategy,
            allocator=self.allocator_name,
            keep_all=_figures(self.keep_all),
            plan=_figures(solution),
            peak_lower_bound=peak_bound,
            cost_lower_bound=cost_bound,
            budget=budget_bytes,
            budget_text=budget_text,
            memory=self.memory,
            optimal=optimal,
            cut_short=proposal.cut_short,
            **replayed(self.graph, trace),
        )


def _with_budget(problem: Problem, budget: int) -> Problem:
    return Problem(problem.graph, budget, problem.memory, problem.order, problem.seed, problem.effort, problem.deadline)


def _figures(solution: _Solution) -> Figures:
    return Figures(solution.trace.peak_bytes, solution.arena_bytes, solution.trace.cost)


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


def _answer(work: _Work, problem: Problem, strategy: Strategy, budget_bytes: int | None) -> _Answer:
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


_unpacked: dict[str, tuple[_Work, Problem]] = {}


def _answer_elsewhere(parcel: _Parcel, strategy: Strategy, budget_bytes: int | None) -> _Answer:
    """`_answer` in another process, which unpacks a graph once for all its tasks."""
    if parcel.token not in _unpacked:
        _unpacked.clear()
        graph = Graph.from_json(parcel.graph_json)
        problem = Problem(graph, None, parcel.memory, parcel.order, parcel.seed, parcel.effort, parcel.deadline)
        _unpacked[parcel.token] = _Work(graph, parcel.allocator, parcel.memory), problem
    return _answer(*_unpacked[parcel.token], strategy, budget_bytes)


class _Sweep:
    """Every strategy at every budget. Searches are independent of each other, so their order and number of processes do not matter."""

    def __init__(
        self, work: _Work, problem: Problem, searches: dict[str, Strategy], *, allocator: str | Allocator | None, jobs: int,
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
