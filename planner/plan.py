"""A plan: what runs when, where every buffer lies, and what it takes. One JSON file holds all of it, graph included."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Final, Optional

import msgspec

from planner.errors import PlanFileError, PlannerError, VerificationError
from planner.files import read_versioned, write_whole
from planner.graph import Graph, Op
from planner.memory import Allocation, MemoryModel
from planner.report import Report, proven, replayed
from planner.schedule import Schedule
from planner.simulator import Trace, simulate

if TYPE_CHECKING:
    from planner.executors.arena import Execution

FORMAT: Final = "planner-plan"
VERSION: Final = 1


class _PlanFile(msgspec.Struct, frozen=True):
    format: str
    version: int
    fingerprint: str
    graph_name: str
    ops: tuple[Op, ...]
    schedule: Schedule
    allocation: Optional[Allocation]
    report: Report
    strategy: str
    allocator: Optional[str]
    budget: Optional[int]
    memory: MemoryModel
    seed: int
    effort: float


@dataclasses.dataclass(frozen=True)
class Plan:
    """What `optimize` returns.

    Args:
        graph, schedule, allocation: the program, its steps, and the offsets (None: live bytes only).
        report: keep-all, plan, bound and budget; `print(plan.report)`.
        strategy, allocator, budget, memory, seed, effort: what was asked.
    """

    graph: Graph
    schedule: Schedule
    allocation: Allocation | None
    report: Report
    strategy: str
    allocator: str | None
    budget: int | None
    memory: MemoryModel
    seed: int
    effort: float

    def __str__(self) -> str:
        return str(self.report)

    def verify(self) -> Trace:
        """Replay the plan by the judge, and hold it to every number it claims.

        Raises:
            ScheduleError: an illegal step.
            VerificationError: overlapping or missing buffers, above the budget, or a number in the report that the replay does not
                find: of the plan, of keep-all, or a lower bound above them.
        """
        from planner.analysis.bounds import peak_lower_bound
        from planner.analysis.liveness import evaluator_of

        trace = simulate(self.graph, self.schedule, memory=self.memory, allocation=self.allocation)
        arena_bytes = trace.peak_bytes if trace.arena_bytes is None else trace.arena_bytes
        evaluator = evaluator_of(self.graph, self.memory)
        keep_all = simulate(self.graph, evaluator.schedule(evaluator.keep_all), memory=self.memory)
        report = self.report
        for what, claimed, found in (
            ("peak", report.plan.peak_bytes, trace.peak_bytes),
            ("arena", report.plan.arena_bytes, arena_bytes),
            ("cost", report.plan.cost, trace.cost),
            ("keep-all peak", report.keep_all.peak_bytes, keep_all.peak_bytes),
            ("keep-all cost", report.keep_all.cost, keep_all.cost),
            ("budget", report.budget, self.budget),
            ("memory model", report.memory, self.memory),
            *((name, getattr(report, name), found) for name, found in replayed(self.graph, trace).items()),
        ):
            if claimed != found:
                raise VerificationError(f"the report says {what} {claimed}, the replay finds {found}")
        bound = peak_lower_bound(self.graph, self.memory).nbytes
        if not keep_all.cost <= report.cost_lower_bound <= trace.cost:
            claim = f"the report says no plan costs less than {report.cost_lower_bound}"
            raise VerificationError(f"{claim}; one run of each op costs {keep_all.cost}, and this plan {trace.cost}")
        if report.optimal is not None and not proven(report):
            raise VerificationError(f"the report says {report.optimal!r} is proven, but its bounds do not reach the plan")
        if not bound <= report.peak_lower_bound <= min(trace.peak_bytes, keep_all.peak_bytes):
            claim = f"the report says no plan goes below {report.peak_lower_bound} bytes"
            raise VerificationError(f"{claim}; the largest working set is {bound}, and this plan takes {trace.peak_bytes}")
        if self.budget is not None and arena_bytes + self.memory.reserve > self.budget:
            raise VerificationError(f"arena {arena_bytes} + reserve {self.memory.reserve} is above the budget of {self.budget} bytes")
        return trace

    def execute(self, *, scale: int | None = None) -> Execution:
        """Run the plan on real bytes in one arena; every byte must be that of a plain run. See `planner.executors.arena.execute`.

        Args:
            scale: divide all sizes by it; None: the least power of two that keeps the arena below 256 MiB.
        Raises:
            VerificationError: names the value whose bytes differ, and the step that damaged it.
            PlannerError: a plan without offsets, or a scale below 1.
        """
        from planner.executors.arena import execute
        from planner.executors.layout import automatic_scale

        if self.allocation is None:
            raise PlannerError("a plan with no offsets (allocator none) cannot be run; plan again with an allocator, or `allocate` it")
        if scale is None:
            scale = automatic_scale(self.graph, self.allocation)
        return execute(self.graph, self.schedule, self.allocation, scale=scale)

    def to_json(self) -> bytes:
        """The plan file: versioned, everything in it."""
        file = _PlanFile(
            FORMAT, VERSION, self.graph.fingerprint, self.graph.name, self.graph.ops, self.schedule, self.allocation, self.report,
            self.strategy, self.allocator, self.budget, self.memory, self.seed, self.effort,
        )  # fmt: skip
        return msgspec.json.encode(file)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan file, whole or not at all.

        Raises:
            OutputError: the file cannot be written.
        """
        write_whole(path, self.to_json())


def load(path: str | os.PathLike[str], graph: Graph | None = None) -> Plan:
    """A plan from its file. Nothing in the file is executed; its claims are checked by `Plan.verify`.

    Args:
        graph: refuse a plan of any other graph.
    Raises:
        PlanFileError: missing, not a plan, another version, damaged, or the plan of another graph.
    """
    head = read_versioned(path, kind="plan", format=FORMAT, version=VERSION, again="plan it again")
    try:
        parts = msgspec.convert(head, _PlanFile)
        own = Graph(parts.ops, name=parts.graph_name)
    except (msgspec.ValidationError, PlannerError, RecursionError) as error:
        raise PlanFileError(f"{str(path)!r} is damaged: {error}") from None
    if own.fingerprint != parts.fingerprint:
        raise PlanFileError(f"{str(path)!r} is damaged: its graph is not the one it was planned for (fingerprint)")
    if graph is not None and graph.fingerprint != own.fingerprint:
        raise PlanFileError(f"{str(path)!r} is the plan of another graph ({own.name!r}, not {graph.name!r}); plan this graph again")
    return Plan(
        own, parts.schedule, parts.allocation, parts.report, parts.strategy, parts.allocator, parts.budget, parts.memory,
        parts.seed, parts.effort,
    )  # fmt: skip
