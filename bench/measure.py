"""What a case is, and how one is measured: a declaration that yields rows of results.

Seconds are CPU seconds of this process (`time.process_time`), the least of several runs: noise only ever adds.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeVar, final

import networkx as nx

import planner
from bench.known import BestKnown
from bench.results import GraphRow, PeerRow, PlanRow, Row, Seconds
from planner import zoo
from planner.analysis.evaluator import Evaluator, evaluator_of
from planner.bounds.certificate import forget
from planner.memory import MemoryModel, Scope
from planner.packing import find_allocator
from planner.plan import Plan
from planner.problem import Order, Problem, Proposal
from planner.report import Figures, Report
from planner.search import find_strategy, strategy_names
from planner.units import BudgetText

Size = Literal["quick", "normal", "slow"]
#: Searches of minutes on deep nets; only in slow runs where no strategy is named.
SEARCHES: Final = ("retention", "exact")
Made = TypeVar("Made")
LEAST: Final = "least peak"


class Clock:
    """CPU seconds by phase."""

    def __init__(self) -> None:
        self.seconds: Seconds = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = time.process_time()
        try:
            yield
        finally:
            self.add(phase, time.process_time() - start)

    def add(self, phase: str, seconds: float) -> None:
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds

    def timed(self, phase: str, function: Callable[..., Made]) -> Callable[..., Made]:
        def run(*args: Any, **kwargs: Any) -> Made:
            with self(phase):
                return function(*args, **kwargs)

        return run


def least(runs: list[Seconds]) -> Seconds:
    """Phase by phase, the least of several runs."""
    return {phase: round(min(run[phase] for run in runs), 5) for phase in runs[0]}


def least_of(repeat: int, phase: str, function: Callable[[], Made]) -> tuple[Made, Seconds]:
    """What a function returns, and the least CPU of several calls; garbage is collected before each."""
    runs: list[Seconds] = []
    for _ in range(repeat):
        clock = Clock()
        gc.collect()
        made = clock.timed(phase, function)()
        runs.append(clock.seconds)
    return made, least(runs)


@final
@dataclass(frozen=True)
class Subject:
    """A named graph.

    Args:
        make: builds the networkx graph.
        scope: what budgets cover.
        missing: says why it cannot be made here, or None.
    """

    name: str
    make: Callable[[], nx.DiGraph]
    scope: Scope = "total"
    missing: Callable[[], str | None] = lambda: None

    @property
    def memory(self) -> MemoryModel:
        return MemoryModel(self.scope)


class Bench:
    """What the cases of a run share.

    Args:
        repeat: runs of each measurement.
        size: of the run.
        known: best known plans; better ones are put there.
    """

    def __init__(self, *, repeat: int = 1, size: Size = "normal", known: BestKnown | None = None) -> None:
        self.repeat, self.size = repeat, size
        self.known = known or BestKnown()
        self._held: Held | None = None

    @property
    def strategies(self) -> tuple[str, ...]:
        """Every registered one; in a run that is not slow, all but `SEARCHES`."""
        return tuple(name for name in strategy_names() if self.size == "slow" or name not in SEARCHES)

    def graph(self, subject: Subject) -> Held:
        """The program of a subject; the last is kept, since cases on one graph stand together."""
        if self._held is None or self._held.subject is not subject:
            evaluator_of.cache_clear()
            self._held = None
            self._held = Held(subject, self.repeat)
        return self._held


class Case(Protocol):
    """Something to measure.

    Args:
        name: for the progress bar.
        size: the least thorough run that has it.
    """

    @property
    def name(self) -> str: ...
    @property
    def size(self) -> Size: ...
    def missing(self) -> str | None: ...
    def rows(self, bench: Bench) -> Iterator[Row]: ...


@dataclass(frozen=True)
class OnSubject:
    """What cases on one graph have in common: its name, and that they are missing where it is."""

    subject: Subject

    @property
    def name(self) -> str:
        return self.subject.name

    def missing(self) -> str | None:
        return self.subject.missing()


class Held:
    """A subject's program, built `repeat` times."""

    def __init__(self, subject: Subject, repeat: int) -> None:
        self.subject = subject
        runs = []
        for _ in range(repeat):
            clock = Clock()
            gc.collect()
            with clock("build"):
                drawn = subject.make()
            with clock("lower"):
                self.graph = planner.lower(drawn)
            with clock("encode"):
                Evaluator(self.graph, subject.memory)
            runs.append(clock.seconds)
        evaluator_of(self.graph, subject.memory)  # kept for all that follows
        self.cpu = least(runs)
        self._rows: dict[str | None, GraphRow] = {}
        self.nodes, self.edges = drawn.number_of_nodes(), drawn.number_of_edges()

    def row(self, allocator: str | None) -> GraphRow:
        """Facts, and keep-all packed and judged."""
        if allocator not in self._rows:
            clock = Clock()
            report = self.plan(keeping_all, allocator, None, clock).report
            cpu = {**self.cpu, **least([{phase: clock.seconds[phase] for phase in ("pack", "judge")}])}
            self._rows[allocator] = GraphRow(
                self.subject.name,
                self.subject.scope,
                allocator,
                self.nodes,
                self.edges,
                report.ops,
                len(self.graph.tensors),
                report.keep_all,
                report.peak_lower_bound,
                cpu,
            )
        return self._rows[allocator]

    def plan(
        self, strategy: Any, allocator: str | None, budget: BudgetText | None, clock: Clock, *, order: Order = "free"
    ) -> Plan:
        """`optimize`, its phases timed from inside."""
        own = Clock()
        pack = None if allocator is None else own.timed("pack", find_allocator(allocator)[1])
        forget()
        gc.collect()
        start = time.process_time()
        try:
            return planner.optimize(
                self.graph,
                budget,
                strategy=own.timed("search", strategy),
                allocator=pack,
                memory=self.subject.memory,
                order=order,
            )
        finally:
            whole = time.process_time() - start
            search, packing = own.seconds.get("search", 0.0), own.seconds.get("pack", 0.0)
            for phase, seconds in (("search", search), ("pack", packing), ("judge", whole - search - packing)):
                clock.add(phase, seconds)


def keeping_all(problem: Problem) -> Proposal:
    evaluator = evaluator_of(problem.graph, problem.memory)
    return Proposal(evaluator.schedule(evaluator.keep_all))


def plan_row(
    held: Held,
    strategy: str,
    *,
    allocator: str | None,
    budget: BudgetText | None,
    repeat: int,
    name: str | None = None,
    files: bool = False,
) -> PlanRow:
    """One strategy at one budget, `repeat` times; the plans must be equal.

    Args:
        name: the budget in words.
        files: save, load and verify the plan too.
    """
    runs: list[Seconds] = []
    rows: list[PlanRow] = []
    for _ in range(repeat):
        clock = Clock()
        rows.append(_plan_row(held, strategy, allocator, budget, name, files, clock))
        runs.append(clock.seconds)
    bare = [{field: getattr(row, field) for field in row.__struct_fields__ if field != "cpu"} for row in rows]
    if any(other != bare[0] for other in bare):
        raise AssertionError(f"{rows[0].key}: two runs gave different plans")
    return PlanRow(**bare[0], cpu=least(runs))


def _plan_row(
    held: Held,
    strategy: str,
    allocator: str | None,
    budget: BudgetText | None,
    name: str | None,
    files: bool,
    clock: Clock,
) -> PlanRow:
    subject = held.subject
    asked = name or (LEAST if budget is None else str(budget))
    try:
        plan = held.plan(find_strategy(strategy)[1], allocator, budget, clock)
    except planner.InfeasibleBudget as error:
        return infeasible(subject, strategy, allocator, asked, error, held.row(allocator).keep_all)
    if files:
        _file_phases(plan, clock)
    return fitting(subject, strategy, allocator, asked, plan.report)


def fitting(subject: Subject, strategy: str, allocator: str | None, asked: str, report: Report) -> PlanRow:
    """The row of a plan."""
    return PlanRow(
        subject.name,
        subject.scope,
        strategy,
        allocator,
        asked,
        report.budget,
        "fits",
        round(report.plan.arena_bytes / report.keep_all.arena_bytes, 6),
        report.peak_lower_bound,
        {},
        cost_lower_bound=report.cost_lower_bound,
        peak_bytes=report.plan.peak_bytes,
        arena_bytes=report.plan.arena_bytes,
        cost=report.plan.cost,
        overhead=round(report.overhead, 6),
        gap=round(report.gap, 6),
        recomputed_ops=report.recomputed_ops,
        extra_runs=report.extra_runs,
    )


def infeasible(
    subject: Subject,
    strategy: str,
    allocator: str | None,
    asked: str,
    error: planner.InfeasibleBudget,
    keep_all: Figures,
) -> PlanRow:
    """The row of a budget that nothing fits."""
    return PlanRow(
        subject.name,
        subject.scope,
        strategy,
        allocator,
        asked,
        error.budget,
        "infeasible",
        round((error.minimum or 0) / keep_all.arena_bytes, 6),
        error.peak_lower_bound,
        {},
        minimum=error.minimum,
    )


def _file_phases(plan: Plan, clock: Clock) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        with clock("save"):
            plan.save(path)
        with clock("load"):
            again = planner.load(path)
    with clock("verify"):
        again.verify()


@final
@dataclass(frozen=True)
class Plans(OnSubject):
    """Strategies at budgets on one graph.

    Args:
        budgets: as `optimize` takes them; None is the least peak.
        strategies: names; None: see `Bench.strategies`.
        files: (strategy, budget) of the plan that is also saved, loaded and verified.
        peers: what others reach, by budget; see `PeerRow`.
    """

    budgets: tuple[BudgetText | None, ...]
    strategies: tuple[str, ...] | None = None
    allocator: str | None = "auto"
    size: Size = "normal"
    files: tuple[str, BudgetText | None] | None = None
    peers: tuple[PeerRow, ...] = ()

    def rows(self, bench: Bench) -> Iterator[Row]:
        held = bench.graph(self.subject)
        yield held.row(self.allocator)
        yield from self.peers
        for strategy in self.strategies or bench.strategies:
            for budget in self.budgets:
                files = self.files == (strategy, budget)
                yield plan_row(
                    held, strategy, allocator=self.allocator, budget=budget, repeat=bench.repeat, files=files
                )


@lru_cache(maxsize=1)
def warm() -> None:
    """Load the compiled kernels before anything is measured."""
    graph = planner.lower(zoo.chain(12))
    for strategy in strategy_names():
        for allocator in ("auto", "nnvm"):
            planner.optimize(graph, strategy=strategy, allocator=allocator)
