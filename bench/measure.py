"""The kinds of case there are. A case is a declaration that can measure itself: it yields rows of results.

Seconds are CPU seconds of this process (`time.process_time`), the least of several runs: noise only ever adds.
"""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeVar, final

import msgspec
import networkx as nx

import planner
from bench.known import BestKnown
from bench.results import GraphRow, PeerRow, PlanRow, ProcessRow, Row, Seconds
from planner import zoo
from planner.analysis.liveness import Evaluator, evaluator_of
from planner.memory import MemoryModel, Scope
from planner.packing import find_allocator
from planner.plan import Plan
from planner.problem import Problem, Proposal
from planner.report import Report
from planner.search import find_strategy, strategy_names
from planner.search.memonger import planned_sequence, search_thresholds
from planner.units import Budget

Size = Literal["quick", "normal", "slow"]
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
        self._held: _Held | None = None

    def graph(self, subject: Subject) -> _Held:
        """The program of a subject; the last is kept, since cases on one graph stand together."""
        if self._held is None or self._held.subject is not subject:
            evaluator_of.cache_clear()
            self._held = None
            self._held = _Held(subject, self.repeat)
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


class _Held:
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
            report = self.plan(_keep_all, allocator, None, clock).report
            cpu = {**self.cpu, **least([{phase: clock.seconds[phase] for phase in ("pack", "judge")}])}
            self._rows[allocator] = GraphRow(
                self.subject.name, self.subject.scope, allocator, self.nodes, self.edges, report.ops, len(self.graph.tensors),
                report.keep_all, report.peak_lower_bound, cpu,
            )  # fmt: skip
        return self._rows[allocator]

    def plan(self, strategy: Any, allocator: str | None, budget: Budget | None, clock: Clock) -> Plan:
        """`optimize`, its phases timed from inside."""
        own = Clock()
        pack = None if allocator is None else own.timed("pack", find_allocator(allocator)[1])
        gc.collect()
        start = time.process_time()
        try:
            return planner.optimize(self.graph, budget, strategy=own.timed("search", strategy), allocator=pack, memory=self.subject.memory)
        finally:
            whole = time.process_time() - start
            search, packing = own.seconds.get("search", 0.0), own.seconds.get("pack", 0.0)
            for phase, seconds in (("search", search), ("pack", packing), ("judge", whole - search - packing)):
                clock.add(phase, seconds)


def _keep_all(problem: Problem) -> Proposal:
    evaluator = evaluator_of(problem.graph, problem.memory)
    return Proposal(evaluator.schedule(evaluator.keep_all))


def plan_row(
    held: _Held, strategy: str, *, allocator: str | None, budget: Budget | None, repeat: int, name: str | None = None, files: bool = False
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
    held: _Held, strategy: str, allocator: str | None, budget: Budget | None, name: str | None, files: bool, clock: Clock
) -> PlanRow:
    subject = held.subject
    asked = name or (LEAST if budget is None else str(budget))
    try:
        plan = held.plan(find_strategy(strategy)[1], allocator, budget, clock)
    except planner.InfeasibleBudget as error:
        minimum = error.minimum or 0
        share = round(minimum / held.row(allocator).keep_all.arena_bytes, 6)
        return PlanRow(
            subject.name, subject.scope, strategy, allocator, asked, error.budget, "infeasible", share,
            error.peak_lower_bound, {}, minimum=error.minimum,
        )  # fmt: skip
    if files:
        _file_phases(plan, clock)
    return fitting(subject, strategy, allocator, asked, plan.report)


def fitting(subject: Subject, strategy: str, allocator: str | None, asked: str, report: Report) -> PlanRow:
    """The row of a plan."""
    return PlanRow(
        subject.name, subject.scope, strategy, allocator, asked, report.budget, "fits",
        round(report.plan.arena_bytes / report.keep_all.arena_bytes, 6), report.peak_lower_bound, {},
        cost_lower_bound=report.cost_lower_bound, peak_bytes=report.plan.peak_bytes, arena_bytes=report.plan.arena_bytes,
        cost=report.plan.cost, overhead=round(report.overhead, 6), gap=round(report.gap, 6), recomputed_ops=report.recomputed_ops,
        extra_runs=report.extra_runs,
    )  # fmt: skip


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
class Plans:
    """Strategies at budgets on one graph.

    Args:
        budgets: as `optimize` takes them; None is the least peak.
        strategies: names; None: every registered one.
        files: (strategy, budget) of the plan that is also saved, loaded and verified.
        peers: what others reach, by budget; see `PeerRow`.
    """

    subject: Subject
    budgets: tuple[Budget | None, ...]
    strategies: tuple[str, ...] | None = None
    allocator: str | None = "auto"
    size: Size = "normal"
    files: tuple[str, Budget | None] | None = None
    peers: tuple[PeerRow, ...] = ()

    @property
    def name(self) -> str:
        return self.subject.name

    def missing(self) -> str | None:
        return self.subject.missing()

    def rows(self, bench: Bench) -> Iterator[Row]:
        held = bench.graph(self.subject)
        yield held.row(self.allocator)
        yield from self.peers
        for strategy in self.strategies or strategy_names():
            for budget in self.budgets:
                files = self.files == (strategy, budget)
                yield plan_row(held, strategy, allocator=self.allocator, budget=budget, repeat=bench.repeat, files=files)


@final
@dataclass(frozen=True)
class AgainstOriginal:
    """The plan of the original on one of its networks, and ours at its bytes and at its cost.

    Its bytes are those of its own allocator, and again those of the same plan packed by ours.

    Args:
        strategies: ours; None: every registered one but the original's.
        steps: bisections for the least peak at its cost.
    """

    subject: Subject
    strategies: tuple[str, ...] | None = None
    steps: int = 10
    size: Size = "normal"

    ITS_BYTES = "bytes of the original"
    ITS_PACKED_BYTES = "bytes of the original's plan in our packing"
    ITS_COST = "cost of the original"

    @property
    def name(self) -> str:
        return self.subject.name

    def missing(self) -> str | None:
        return self.subject.missing()

    def rows(self, bench: Bench) -> Iterator[Row]:
        held = bench.graph(self.subject)
        facts = {allocator: held.row(allocator) for allocator in ("nnvm", "auto")}
        yield from facts.values()
        own, packed, cost = self._original(held, facts, bench.repeat)
        yield own
        yield packed
        strategies = self.strategies or tuple(name for name in strategy_names() if name != "memonger")
        for allocator, budget, name in (
            ("nnvm", own.arena_bytes, self.ITS_BYTES),
            ("auto", own.arena_bytes, self.ITS_BYTES),
            ("auto", packed.arena_bytes, self.ITS_PACKED_BYTES),
        ):
            for strategy in strategies:
                yield plan_row(held, strategy, allocator=allocator, budget=budget, repeat=bench.repeat, name=name)
        yield self._at_its_cost(held, cost, own.peak_bytes or 0)

    def _original(self, held: _Held, facts: dict[str, GraphRow], repeat: int) -> tuple[PeerRow, PeerRow, float]:
        runs = []
        for _ in range(repeat):
            clock = Clock()
            with clock("encode"):
                evaluator = Evaluator(held.graph, self.subject.memory)
            with clock("search"):
                trials = search_thresholds(held.graph, evaluator)
            runs.append(clock.seconds)
        best = min(trials, key=lambda trial: trial.cost_bytes >> 20)
        sequence = planned_sequence(evaluator, best.keep)
        schedule = evaluator.schedule(sequence)
        trace = planner.simulate(held.graph, schedule, memory=self.subject.memory)
        clock = Clock()
        with clock("allocate"):
            arena_bytes = planner.allocate(held.graph, schedule, memory=self.subject.memory).arena_bytes
        overhead = round(trace.cost / facts["nnvm"].keep_all.cost - 1, 6)
        rows = [
            PeerRow(
                self.subject.name, "original", budget, source, self.subject.scope, allocator, trace.peak_bytes, nbytes,
                round(nbytes / facts[allocator].keep_all.arena_bytes, 6), overhead, cpu,
            )
            for budget, allocator, nbytes, cpu, source in (
                (self.ITS_BYTES, "nnvm", best.cost_bytes, least(runs), "memonger's search and allocator, reproduced"),
                (self.ITS_PACKED_BYTES, "auto", arena_bytes, least([clock.seconds]), "the same plan, packed by our allocator"),
            )
        ]  # fmt: skip
        return rows[0], rows[1], trace.cost

    def _at_its_cost(self, held: _Held, cost: float, its_peak: int) -> PlanRow:
        """Least live bytes found with no more cost: bisection on the budget, starting at its own peak; the result is packed."""
        clock = Clock()
        best = held.plan(_keep_all, None, None, Clock())
        strategy = find_strategy("auto")[1]
        low, high = best.report.peak_lower_bound, best.report.plan.peak_bytes
        middle = its_peak
        for _ in range(self.steps):
            try:
                plan = held.plan(strategy, None, middle, clock)
            except planner.InfeasibleBudget:
                low = middle
            else:
                if plan.report.plan.cost <= cost * (1 + 1e-12):
                    best, high = plan, plan.report.plan.peak_bytes
                else:
                    low = middle
            middle = (low + high) // 2
            if high - low < 2:
                break
        with clock("allocate"):
            allocation = planner.allocate(held.graph, best.schedule, memory=self.subject.memory)
        row = fitting(self.subject, "auto", "auto", self.ITS_COST, best.report)
        share = round(allocation.arena_bytes / held.row("auto").keep_all.arena_bytes, 6)
        return msgspec.structs.replace(
            row, budget_bytes=None, share=share, arena_bytes=allocation.arena_bytes, cpu=least([clock.seconds])
        )


@final
@dataclass(frozen=True)
class Command:
    """One command line of this interpreter.

    Args:
        runs: how many for each `repeat`; the least CPU counts.
        cold: with an empty kernel cache; then once in all.
    """

    what: str
    arguments: tuple[str, ...]
    runs: int = 1
    cold: bool = False


@final
@dataclass(frozen=True)
class Processes:
    """What a user waits for: commands in processes of their own, the first of them the bare interpreter."""

    commands: tuple[Command, ...]
    name: str = "processes"
    size: Size = "quick"

    def missing(self) -> str | None:
        return None

    def rows(self, bench: Bench) -> Iterator[Row]:
        with tempfile.TemporaryDirectory() as cache:
            kept = {**os.environ, "NUMBA_CACHE_DIR": cache}
            found: dict[str, float] = {}
            for command in sorted(self.commands, key=lambda command: not command.cold):  # cold first: it fills the cache of the others
                runs = 1 if command.cold else command.runs * bench.repeat
                found[command.what] = min(_child_seconds(command.arguments, kept) for _ in range(runs))
        bare = found[self.commands[0].what]
        for command in self.commands:
            seconds = found[command.what]
            yield ProcessRow(command.what, round(seconds, 4), round(seconds / bare, 2))


def _child_seconds(arguments: tuple[str, ...], environment: dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@lru_cache(maxsize=1)
def warm() -> None:
    """Load the compiled kernels before anything is measured."""
    graph = planner.lower(zoo.chain(12))
    for strategy in strategy_names():
        for allocator in ("auto", "nnvm"):
            planner.optimize(graph, strategy=strategy, allocator=allocator)
