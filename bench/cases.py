"""What is measured: one list a suite. To add a row, add it here; README.md says how."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Optional, final

from bench import remat
from bench.measure import LEAST, AgainstOriginal, Case, Command, Plans, Processes, Subject
from bench.results import PeerRow, PlanRow, ProcessRow, Row, TargetRow
from planner import zoo

BUDGETS: Final = ("80%", "50%", "30%", "20%", None)
ORIGINAL_995: Final = (15, 120, 180, 15)


_Found = Optional[tuple[Optional[float], float]]
Measured = Callable[["Rows"], _Found]


@final
@dataclass(frozen=True)
class Target:
    """What an issue asks of the numbers; a `TargetRow` once measured.

    Args:
        measured: (value, limit) from the rows of its suite, or None where they are not there; a value of None: no plan was found.
        strict: the value must be below the limit.
    """

    issue: int
    claim: str
    unit: str
    measured: Measured
    strict: bool = False

    def row(self, rows: Rows) -> TargetRow | None:
        found = self.measured(rows)
        if found is None:
            return None
        measured = None if found[0] is None else round(found[0], 4)
        return TargetRow(self.issue, self.claim, measured, round(found[1], 4), self.unit, self.strict)


@final
@dataclass(frozen=True)
class Suite:
    """Cases that are run together, and the targets they answer. Cases on one graph stand together."""

    name: str
    description: str
    cases: tuple[Case, ...]
    targets: tuple[Target, ...] = ()


@final
class Rows:
    """The rows of a run, to find some in."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows

    def plans(self, graph: str, budget: str, **fields: str | None) -> list[PlanRow]:
        """Plans that fit, cheapest first."""
        found = [row for row in self.rows if isinstance(row, PlanRow) and row.graph == graph and row.budget == budget]
        return sorted((row for row in found if row.overhead is not None and _has(row, fields)), key=lambda row: row.overhead or 0.0)

    def peer(self, graph: str, budget: str, **fields: str | None) -> PeerRow | None:
        found = [row for row in self.rows if isinstance(row, PeerRow) and row.graph == graph and row.budget == budget]
        return next((row for row in found if _has(row, fields)), None)

    def process(self, what: str) -> ProcessRow | None:
        return next((row for row in self.rows if isinstance(row, ProcessRow) and row.what == what), None)


def _has(row: Row, fields: dict[str, str | None]) -> bool:
    return all(getattr(row, name) == value for name, value in fields.items())


# --- resnet: depths 50 to 1001, the original's 995 layers, every strategy ---

RESNETS: Final = {
    "resnet:50": 50,
    "resnet:101": 101,
    "resnet:152": 152,
    "resnet:3-24-36-3": (3, 24, 36, 3),  # 203 layers, as the original counts them
    "resnet:1001": 1001,
}
_RESNET_CASES: Final = tuple(
    Plans(
        Subject(name, partial(zoo.resnet, depth, batch=32)),  # type: ignore[arg-type]
        BUDGETS,
        files=("auto", "50%"),
        size="quick" if depth == 50 else "normal",
    )
    for name, depth in RESNETS.items()
)
_MXNET_995: Final = Subject("mxnet_resnet:15-120-180-15", partial(zoo.mxnet_resnet, ORIGINAL_995), "activations")
RESNET: Final = Suite(
    "resnet",
    "ResNet v1.5 of 50 to 1001 layers and the original's network of 995, batch 32: every strategy at five budgets.",
    (*_RESNET_CASES, Plans(_MXNET_995, BUDGETS, files=("auto", "50%"))),
)

# --- lstm: the original's unrolled LSTM ---

_LSTMS: Final = {
    steps: Subject(f"mxnet_lstm:{steps}", partial(zoo.mxnet_lstm, steps), "activations") for steps in (16, 64, 256, 1000)
}
LSTM: Final = Suite(
    "lstm",
    "The original's 4x1024 LSTM, batch 64, unrolled: every strategy at five budgets (1000 steps: auto at 50 %, with --slow).",
    (
        Plans(_LSTMS[16], BUDGETS, size="quick"),
        Plans(_LSTMS[64], BUDGETS, files=("auto", "50%")),
        Plans(_LSTMS[256], ("50%", "20%", None)),
        Plans(_LSTMS[1000], ("50%",), ("auto",), size="slow", files=("auto", "50%")),
    ),
)

# --- original: ours at the bytes, and at the cost, of memonger's plans ---


def _overhead_at(graph: str, budget: str, allocator: str) -> Measured:
    def measured(rows: Rows) -> _Found:
        its = rows.peer(graph, budget, allocator=allocator) or rows.peer(graph, budget)
        ours = rows.plans(graph, budget, allocator=allocator)
        if its is None or its.overhead is None:
            return None
        return (100 * (ours[0].overhead or 0.0) if ours else None, 100 * its.overhead)

    return measured


def _peak_at_cost(graph: str) -> Measured:
    def measured(rows: Rows) -> _Found:
        its = rows.peer(graph, AgainstOriginal.ITS_BYTES)
        ours = rows.plans(graph, AgainstOriginal.ITS_COST)
        return (ours[0].peak_bytes or 0, its.peak_bytes or 0) if its is not None and ours else None

    return measured


def _search_seconds(rows: Rows) -> _Found:
    its = rows.peer(_MXNET_995.name, AgainstOriginal.ITS_BYTES)
    return None if its is None else (its.cpu["encode"] + its.cpu["search"], 2.0)


def _against(graph: str, *, strict: bool) -> tuple[Target, ...]:
    word = "less" if strict else "no more"
    same = f"{graph}: {word} recomputed cost than the original at"
    return (
        Target(3, f"{same} its bytes, any packing", "%", _overhead_at(graph, AgainstOriginal.ITS_BYTES, "auto"), strict),
        Target(3, f"{same} its bytes, its allocator", "%", _overhead_at(graph, AgainstOriginal.ITS_BYTES, "nnvm"), strict),
        Target(
            3, f"{same} the bytes of its plan in our packing", "%", _overhead_at(graph, AgainstOriginal.ITS_PACKED_BYTES, "auto"), strict
        ),
        Target(3, f"{graph}: {'lower' if strict else 'no higher'} peak than the original at its cost", "B", _peak_at_cost(graph), strict),
    )


ORIGINAL: Final = Suite(
    "original",
    "Plans of memonger on the networks of Chen et al. 2016, and ours at the same bytes and at the same cost.",
    (
        AgainstOriginal(Subject("mxnet_resnet:3-4-6-3", partial(zoo.mxnet_resnet, (3, 4, 6, 3)), "activations"), size="quick"),
        AgainstOriginal(_MXNET_995),
        AgainstOriginal(_LSTMS[64]),
        AgainstOriginal(_LSTMS[256]),
        AgainstOriginal(_LSTMS[1000], ("auto",), steps=4, size="slow"),
    ),
    (
        *_against(_MXNET_995.name, strict=True),
        *(target for steps in (64, 256, 1000) for target in _against(_LSTMS[steps].name, strict=False)),
        Target(3, "mxnet_resnet:15-120-180-15: the whole memonger search, warm", "CPU s", _search_seconds),
    ),
)

# --- remat: graphs of the literature, live bytes only, against Chen's greedy as measured in the shared notes ---

#: Overhead in % of Chen's greedy (best of 60 segmentations) by budget; None: no plan.
CHEN_GREEDY: Final[dict[str, dict[str, float | None]]] = {
    "cm_vgg16": {"90%": 5.23},
    "cm_vgg_unet": {"80%": 13.05, "60%": 18.75, "50%": None, "40%": None},
    "cm_mobilenet": {"50%": 3.81},
    "cm_resnet50": {"50%": 5.32, "40%": 6.64},
    "gpt12": {"50%": 18.99},
    "gpt96": {"50%": 23.93},
    "unet_own": {"50%": 24.18},
    "resnet50_own": {"50%": 16.95},
    "vgg16chain": {"60%": 6.17, "50%": None},
    "chain100": {"50%": 33.0, "25%": 38.0, "10%": None},
}
_CHEN_SOURCE: Final = "measured in the shared notes on rematerialisation, section 5"


def _remat(name: str, column: dict[str, float | None]) -> Plans:
    peers = tuple(
        PeerRow(name, "Chen greedy", budget, _CHEN_SOURCE, overhead=None if percent is None else round(percent / 100, 6))
        for budget, percent in column.items()
    )
    return Plans(
        Subject(name, partial(remat.read, name), missing=partial(remat.missing, name)), tuple(column), allocator=None, peers=peers,
        size="quick" if name == "chain100" else "normal",
    )  # fmt: skip


REMAT: Final = Suite(
    "remat",
    "Graphs of the rematerialisation literature, live bytes only: every strategy beside Chen's greedy.",
    tuple(_remat(name, column) for name, column in CHEN_GREEDY.items()),
)

# --- startup: what a user waits for ---

_PLAN: Final = ("-m", "planner.cli", "optimize", "resnet:1001", "--batch", "32", "--budget", "7GB")
_WARM, _COLD, _HELP = "planner optimize resnet:1001 --budget 7GB, warm", "the same, empty kernel cache", "planner --help"


def _seconds(what: str, limit: float) -> Measured:
    return lambda rows: None if (row := rows.process(what)) is None else (row.cpu_seconds, limit)


def _ratio(what: str, limit: float) -> Measured:
    return lambda rows: None if (row := rows.process(what)) is None else (row.ratio, limit)


STARTUP: Final = Suite(
    "startup",
    "Help, a warm plan and a cold start: CPU of child processes, beside a bare interpreter.",
    (
        Processes((
            Command("bare interpreter", ("-c", "pass"), runs=20),
            Command(_HELP, ("-m", "planner.cli", "--help"), runs=20),
            Command(_WARM, _PLAN, runs=3),
            Command(_COLD, _PLAN, cold=True),
        )),
    ),
    (
        Target(2, "resnet:1001 planned, warm", "CPU s", _seconds(_WARM, 5.0)),
        Target(2, "resnet:1001 planned from an empty kernel cache", "CPU s", _seconds(_COLD, 20.0)),
        Target(2, "planner --help, times a bare interpreter", "x", _ratio(_HELP, 6.0)),
    ),
)  # fmt: skip

SUITES: Final = {suite.name: suite for suite in (RESNET, LSTM, ORIGINAL, REMAT, STARTUP)}
__all__ = ["BUDGETS", "LEAST", "SUITES", "Rows", "Suite", "Target"]
