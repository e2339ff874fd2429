"""What a run of the benchmark leaves: rows of exact figures and CPU seconds, in a versioned JSON file, one row a
line.
"""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Optional, Union

import msgspec

from planner import __version__
from planner.errors import PlanFileError
from planner.files import write_whole
from planner.report import Figures

SCHEMA: Final = "planner-bench"
VERSION: Final = 1
ROOT: Final = Path(__file__).resolve().parents[1]

Seconds = dict[str, float]  # CPU seconds by phase


class Measure(NamedTuple):
    """One number of a row that a later run is held to: less is better. `exact`: the same on any machine."""

    what: str
    value: float
    exact: bool


class GraphRow(msgspec.Struct, frozen=True, tag_field="row", tag="graph", omit_defaults=True):
    """A graph, and its keep-all plan.

    Args:
        graph, scope, allocator: which; allocator None: live bytes only.
        nodes, edges: of the networkx graph; ops, values: of the program, residents left out of ops.
        keep_all: see `Figures`.
        peak_lower_bound: bytes no plan goes below.
        cpu: build (the networkx graph), lower (to the program), encode (to arrays), pack and judge (keep-all).
    """

    graph: str
    scope: str
    allocator: Optional[str]
    nodes: int
    edges: int
    ops: int
    values: int
    keep_all: Figures
    peak_lower_bound: int
    cpu: Seconds

    @property
    def key(self) -> str:
        return f"{self.graph} · {self.scope} · {self.allocator}"

    def measures(self) -> list[Measure]:
        return [
            Measure("keep-all arena, bytes", self.keep_all.arena_bytes, True),
            *(Measure(f"{phase}, CPU s", seconds, False) for phase, seconds in self.cpu.items()),
        ]


class PlanRow(msgspec.Struct, frozen=True, tag_field="row", tag="plan", omit_defaults=True):
    """One strategy at one budget.

    Args:
        graph, scope, strategy, allocator: which.
        budget: as asked; "least peak", or words such as "cost of the original" where the search was for bytes.
        budget_bytes: None where bytes were searched for.
        status: "infeasible" rows have `minimum`, the least arena the strategy reached, and no plan.
        share: arena, or minimum, as a fraction of keep-all's arena.
        peak_lower_bound, cost_lower_bound: what no plan goes below.
        peak_bytes, arena_bytes, cost: of the plan; overhead: extra cost as a fraction of keep-all's.
        gap: overhead above the lower bound, as a fraction of keep-all's cost.
        recomputed_ops, extra_runs: ops that run again, and how many runs that makes.
        cpu: search, pack, judge (the rest of `optimize`: replays, bounds, report); save, load, verify where asked.
            Where bytes were searched for: of all the searches, and allocate (packed and judged) at the end. bound: of
                the certificate, where shown.
        target, limit_seconds: overhead to be reached, and CPU of `plan_seconds` allowed, where an issue says so.
        resident_bytes: most of the process up to then.
    """

    graph: str
    scope: str
    strategy: str
    allocator: Optional[str]
    budget: str
    budget_bytes: Optional[int]
    status: Literal["fits", "infeasible"]
    share: float
    peak_lower_bound: int
    cpu: Seconds
    minimum: Optional[int] = None
    cost_lower_bound: Optional[float] = None
    peak_bytes: Optional[int] = None
    arena_bytes: Optional[int] = None
    cost: Optional[float] = None
    overhead: Optional[float] = None
    gap: Optional[float] = None
    recomputed_ops: Optional[int] = None
    extra_runs: Optional[int] = None
    target: Optional[float] = None
    limit_seconds: Optional[float] = None
    resident_bytes: Optional[int] = None

    @property
    def key(self) -> str:
        return f"{self.graph} · {self.scope} · {self.allocator} · {self.strategy} · {self.budget}"

    @property
    def plan_seconds(self) -> float:
        """CPU of `optimize`."""
        return sum(self.cpu.get(phase, 0.0) for phase in ("search", "pack", "judge"))

    def measures(self) -> list[Measure]:
        if self.status == "infeasible":
            exact = [Measure("least that works, bytes", self.minimum or 0, True)]
        elif self.budget_bytes is None:
            exact = [Measure("arena, bytes", self.arena_bytes or 0, True)]
        else:
            exact = [Measure("cost", self.cost or 0.0, True)]
        files = [
            Measure(f"{phase}, CPU s", self.cpu[phase], False)
            for phase in ("save", "load", "verify")
            if phase in self.cpu
        ]
        return [*exact, Measure("plan, CPU s", self.plan_seconds, False), *files]


class PeerRow(msgspec.Struct, frozen=True, tag_field="row", tag="peer", omit_defaults=True):
    """What somebody else reaches on the same graph and budget: measured here, or as they print it.

    Args:
        source: where the figures are from.
        overhead: None: no plan.
    """

    graph: str
    peer: str
    budget: str
    source: str
    scope: str = "total"
    allocator: Optional[str] = None
    peak_bytes: Optional[int] = None
    arena_bytes: Optional[int] = None
    share: Optional[float] = None
    overhead: Optional[float] = None
    cpu: Seconds = {}

    @property
    def key(self) -> str:
        return f"{self.graph} · {self.scope} · {self.allocator} · {self.peer} · {self.budget}"

    def measures(self) -> list[Measure]:
        return [Measure(f"{phase}, CPU s", seconds, False) for phase, seconds in self.cpu.items()]


class ProcessRow(msgspec.Struct, frozen=True, tag_field="row", tag="process", omit_defaults=True):
    """A command as a user starts it. `ratio`: of its CPU to that of a bare interpreter in the same run."""

    what: str
    cpu_seconds: float
    ratio: float

    @property
    def key(self) -> str:
        return self.what

    def measures(self) -> list[Measure]:
        return [Measure("CPU s", self.cpu_seconds, False)]


class PackRow(msgspec.Struct, frozen=True, tag_field="row", tag="packing", omit_defaults=True):
    """One set of buffers, packed once.

    Args:
        instance: which.
        asked: a rule that places each buffer once, "within BYTES", or what was planned before.
        live_bytes: most live at once, counted apart from the packer.
        arena_bytes, bound_bytes: reached, and proven.
        rule, nodes: what found it, and the placements tried by the search.
        cpu: pack; and plan where there was one.
        capacity: bytes it had to fit in.
    """

    instance: str
    asked: str
    buffers: int
    live_bytes: int
    arena_bytes: int
    bound_bytes: int
    rule: str
    nodes: int
    cpu: Seconds
    capacity: Optional[int] = None

    @property
    def key(self) -> str:
        return f"{self.instance} · {self.asked}"

    def measures(self) -> list[Measure]:
        arena = Measure("arena, bytes", max(self.arena_bytes, self.capacity or 0), True)
        return [arena, *(Measure(f"{phase}, CPU s", seconds, False) for phase, seconds in self.cpu.items())]


class ExplainRow(msgspec.Struct, frozen=True, tag_field="row", tag="explain", omit_defaults=True):
    """Tensors of one plan, explained, and every number of that found once more.

    Args:
        graph, budget: of the plan.
        kept, recomputed: tensors of each kind.
        numbers, wrong: looked at, and what was stated otherwise.
        refused: tensors of which the other decision cannot be had.
        better: tensors by which a better plan was found, and offered.
        owned: of the peak, as a fraction: what is listed by owner.
        cpu: of `explain`: a tensor on average, and the slowest.
    """

    graph: str
    budget: str
    kept: int
    recomputed: int
    numbers: int
    wrong: tuple[str, ...]
    refused: int
    better: int
    owned: float
    cpu: Seconds

    @property
    def key(self) -> str:
        return f"{self.graph} · {self.budget}"

    def measures(self) -> list[Measure]:
        return [Measure("wrong", len(self.wrong), True), Measure("a tensor, CPU s", self.cpu["a tensor"], False)]


class TargetRow(msgspec.Struct, frozen=True, tag_field="row", tag="target", omit_defaults=True):
    """A target of an issue; hit where measured <= limit (< if `strict`). Measured None: nothing was found."""

    issue: int
    claim: str
    measured: Optional[float]
    limit: float
    unit: str
    strict: bool = False

    @property
    def hit(self) -> bool:
        if self.measured is None:
            return False
        return self.measured < self.limit if self.strict else self.measured <= self.limit

    @property
    def key(self) -> str:
        return f"issue {self.issue}: {self.claim}"

    def measures(self) -> list[Measure]:
        return []


Row = Union[GraphRow, PlanRow, PeerRow, ProcessRow, PackRow, ExplainRow, TargetRow]


class Machine(msgspec.Struct, frozen=True):
    """Enough to read CPU seconds by, and nothing that names the machine.

    Args:
        yardstick_seconds: CPU of a fixed loop of plain Python in the same run; `compare` divides by it.
    """

    processor: str
    cores: int
    memory_bytes: int
    system: str
    yardstick_seconds: float


class Results(msgspec.Struct, frozen=True):
    """One run of one suite.

    Args:
        versions: of Python, planner and what it computes with.
        commit: short hash, "+" where the tree had changes, or None outside git.
        options: quick, slow, repeat: each CPU figure is the least of `repeat` runs.
        most_resident_bytes: of the process, over the whole run.
    """

    suite: str
    machine: Machine
    versions: dict[str, str]
    commit: Optional[str]
    options: dict[str, int]
    most_resident_bytes: int
    rows: tuple[Row, ...]
    schema: str = SCHEMA
    version: int = VERSION

    def to_json(self) -> bytes:
        """Indented, with one row a line, so that a change is a readable difference."""
        head = msgspec.to_builtins(self)
        lines = ",\n".join(f"    {msgspec.json.encode(row).decode()}" for row in head.pop("rows"))
        text = msgspec.json.format(msgspec.json.encode(head), indent=2).decode()
        return f'{text[:-2]},\n  "rows": [\n{lines}\n  ]\n}}\n'.encode()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file, whole or not at all."""
        write_whole(path, self.to_json())


def load(path: str | os.PathLike[str]) -> Results:
    """Results from their file.

    Raises:
        PlanFileError: missing, not results, or of another version.
    """
    try:
        head = msgspec.json.decode(Path(path).read_bytes(), type=dict[str, Any])
        if (head.get("schema"), head.get("version")) != (SCHEMA, VERSION):
            raise PlanFileError(f"{str(path)!r} is not a {SCHEMA} file of version {VERSION}: run the suite again")
        return msgspec.convert(head, Results)
    except OSError as error:
        raise PlanFileError(f"cannot read results {str(path)!r}: {error.strerror or error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PlanFileError(f"{str(path)!r} is damaged: {error}") from None


def results(suite: str, rows: tuple[Row, ...], *, commit: str | None, options: dict[str, int]) -> Results:
    """Rows with the facts of this machine; `commit` is that of the start, since others may commit during a run."""
    libraries = ("numpy", "numba", "networkx", "msgspec")
    return Results(
        suite=suite,
        machine=_machine(),
        versions={
            "python": platform.python_version(),
            "planner": __version__,
            **{name: version(name) for name in libraries},
        },
        commit=commit,
        options=options,
        most_resident_bytes=most_resident_bytes(),
        rows=rows,
    )


def most_resident_bytes() -> int:
    """Of this process so far, whatever else it did."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _machine() -> Machine:
    processor = platform.machine()
    if Path("/proc/cpuinfo").exists():
        named = [
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ]
        processor = named[0] if named else processor
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(
        processor, cores, memory_bytes, f"{platform.system()} {platform.machine()}", min(_yardstick() for _ in range(7))
    )


def _yardstick() -> float:
    start = time.process_time()
    seen: dict[int, int] = {}
    for k in range(200_000):
        seen[k % 1009] = seen.get(k % 1013, 0) + k
    return time.process_time() - start


def current_commit() -> str | None:
    """Short hash of the tree, "+" where the planner has changes, None outside git."""
    try:
        words = [
            subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
            for command in (
                ("rev-parse", "--short=10", "HEAD"),
                ("status", "--porcelain", "--", "planner"),
            )
        ]
    except (OSError, subprocess.CalledProcessError):
        return None
    return words[0] + ("+" if words[1] else "")
