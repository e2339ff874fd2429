"""What is measured: one list a suite. To add a row, add it here; README.md says how."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Final, final

import networkx as nx

from bench import overhead_targets as asks
from bench import shared
from bench.explanations import Explanations
from bench.measure import Case, Plans, Subject
from bench.original import AgainstOriginal
from bench.packs import PlanTables, Tables
from bench.processes import Command, Processes
from bench.targets import Found, Measured, Rows, Target
from planner import from_onnx, zoo

BUDGETS: Final = ("80%", "50%", "30%", "20%", None)
ORIGINAL_995: Final = (15, 120, 180, 15)


@final
@dataclass(frozen=True)
class Suite:
    """Cases that are run together, and the targets they answer. Cases on one graph stand together."""

    name: str
    description: str
    cases: tuple[Case, ...]
    targets: tuple[Target, ...] = ()


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
    steps: Subject(f"mxnet_lstm:{steps}", partial(zoo.mxnet_lstm, steps), "activations")
    for steps in (16, 64, 256, 1000)
}
LSTM: Final = Suite(
    "lstm",
    "The original's 4x1024 LSTM, batch 64, unrolled: every strategy at five budgets (1000 steps: auto at 50 %,"
    " with --slow).",
    (
        Plans(_LSTMS[16], BUDGETS, size="quick"),
        Plans(_LSTMS[64], BUDGETS, files=("auto", "50%")),
        Plans(_LSTMS[256], ("50%", "20%", None)),
        Plans(_LSTMS[1000], ("50%",), ("auto",), size="slow", files=("auto", "50%")),
    ),
)

# --- original: ours at the bytes, and at the cost, of memonger's plans ---


def _overhead_at(graph: str, budget: str, allocator: str) -> Measured:
    def measured(rows: Rows) -> Found:
        its = rows.peer(graph, budget, allocator=allocator) or rows.peer(graph, budget)
        ours = rows.plans(graph, budget, allocator=allocator)
        if its is None or its.overhead is None:
            return None
        return (100 * (ours[0].overhead or 0.0) if ours else None, 100 * its.overhead)

    return measured


def _peak_at_cost(graph: str) -> Measured:
    def measured(rows: Rows) -> Found:
        its = rows.peer(graph, AgainstOriginal.ITS_BYTES)
        ours = rows.plans(graph, AgainstOriginal.ITS_COST)
        return (ours[0].peak_bytes or 0, its.peak_bytes or 0) if its is not None and ours else None

    return measured


def _search_seconds(rows: Rows) -> Found:
    its = rows.peer(_MXNET_995.name, AgainstOriginal.ITS_BYTES)
    return None if its is None else (its.cpu["encode"] + its.cpu["search"], 2.0)


def _against(graph: str, *, strict: bool) -> tuple[Target, ...]:
    word = "less" if strict else "no more"
    same = f"{graph}: {word} recomputed cost than the original at"
    return (
        Target(
            3, f"{same} its bytes, any packing", "%", _overhead_at(graph, AgainstOriginal.ITS_BYTES, "auto"), strict
        ),
        Target(
            3, f"{same} its bytes, its allocator", "%", _overhead_at(graph, AgainstOriginal.ITS_BYTES, "nnvm"), strict
        ),
        Target(
            3,
            f"{same} the bytes of its plan in our packing",
            "%",
            _overhead_at(graph, AgainstOriginal.ITS_PACKED_BYTES, "auto"),
            strict,
        ),
        Target(
            3,
            f"{graph}: {'lower' if strict else 'no higher'} peak than the original at its cost",
            "B",
            _peak_at_cost(graph),
            strict,
        ),
    )


ORIGINAL: Final = Suite(
    "original",
    "Plans of memonger on the networks of Chen et al. 2016, and ours at the same bytes and at the same cost.",
    (
        AgainstOriginal(
            Subject("mxnet_resnet:3-4-6-3", partial(zoo.mxnet_resnet, (3, 4, 6, 3)), "activations"), size="quick"
        ),
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

# --- startup: what a user waits for ---

_PLAN: Final = ("-m", "planner.cli", "optimize", "resnet:1001", "--batch", "32", "--budget", "7GB")
_WARM, _COLD, _HELP = (
    "planner optimize resnet:1001 --budget 7GB, warm",
    "the same, empty kernel cache",
    "planner --help",
)


def _seconds(what: str, limit: float) -> Measured:
    return lambda rows: None if (row := rows.process(what)) is None else (row.cpu_seconds, limit)


def _ratio(what: str, limit: float) -> Measured:
    return lambda rows: None if (row := rows.process(what)) is None else (row.ratio, limit)


STARTUP: Final = Suite(
    "startup",
    "Help, a warm plan and a cold start: CPU of child processes, beside a bare interpreter.",
    (
        Processes(
            (
                Command("bare interpreter", ("-c", "pass"), runs=20),
                Command(_HELP, ("-m", "planner.cli", "--help"), runs=20),
                Command(_WARM, _PLAN, runs=3),
                Command(_COLD, _PLAN, cold=True),
            )
        ),
    ),
    (
        Target(2, "resnet:1001 planned, warm", "CPU s", _seconds(_WARM, 5.0)),
        Target(2, "resnet:1001 planned from an empty kernel cache", "CPU s", _seconds(_COLD, 20.0)),
        Target(2, "planner --help, times a bare interpreter", "x", _ratio(_HELP, 6.0)),
    ),
)

# --- remat: overheads at budgets, live bytes only ---

_REMAT_ISSUE: Final = 6
REMAT: Final = Suite(
    "remat",
    "Overheads at budgets on graphs of the rematerialisation literature and three that grow, live bytes only,"
    " beside peers run here.",
    (
        *asks.CASES,
        Processes(
            (
                Command("bare interpreter", ("-c", "pass"), runs=20),
                Command(_WARM, _PLAN, runs=3),
                Command(_COLD, _PLAN, cold=True),
            ),
            size="normal",
        ),
    ),
    (
        Target(_REMAT_ISSUE, "rows above the overhead asked", "rows", asks.over("cost")),
        Target(_REMAT_ISSUE, "rows above the CPU asked", "rows", asks.over("time")),
        Target(
            _REMAT_ISSUE,
            "aten_resnet1001 at 50%: overhead less bound",
            "points",
            asks.gap("aten_resnet1001", limit=0.1, least_share=0.5),
        ),
        Target(
            _REMAT_ISSUE,
            "aten_resnet1001 at 30%: overhead less bound",
            "points",
            asks.gap("aten_resnet1001", limit=0.3, least_share=0.3, most_share=0.3),
        ),
        Target(
            _REMAT_ISSUE,
            "every training graph at 50% or more: overhead less bound",
            "points",
            asks.gap(*asks.TRAINING, limit=0.3, least_share=0.5),
        ),
        Target(
            _REMAT_ISSUE,
            "the bound at 1,000 ops",
            "CPU s",
            asks.bound_seconds("aten_resnet152", asks.GROWING[0], limit=1.0),
        ),
        Target(
            _REMAT_ISSUE, "the bound at 10,000 ops", "CPU s", asks.bound_seconds("gpt400", asks.GROWING[1], limit=10.0)
        ),
        Target(_REMAT_ISSUE, "100,000 ops at 50%", "CPU s", asks.largest(lambda row: row.plan_seconds, 60.0)),
        Target(
            _REMAT_ISSUE,
            "100,000 ops at 50%: most resident memory",
            "B",
            asks.largest(lambda row: row.resident_bytes, 4e9),
        ),
        Target(_REMAT_ISSUE, "exponent of CPU against ops, from 10,000 to 100,000", "", asks.growth),
        Target(_REMAT_ISSUE, "resnet:1001 planned, warm", "CPU s", _seconds(_WARM, 5.0)),
        Target(_REMAT_ISSUE, "resnet:1001 planned from an empty kernel cache", "CPU s", _seconds(_COLD, 20.0)),
    ),
)

# --- pack: arenas of tables of others, and of plans ---

#: CPU seconds of google/minimalloc at capacity 1048576.
MINIMALLOC: Final = {
    "A": 4.70, "B": 3.74, "C": 0.68, "D": 2.67, "E": 3.45, "F": 4.94, "G": 1.08, "H": 1.56, "I": 3.00, "J": 0.87,
        "K": 0.60,
}  # fmt: skip
#: Arenas tried below the published capacity.
_TIGHTER: Final = {"C": 1039360, "D": 1027072}
_SOMAS: Final = ("resnet50", "tiny_bert", "bert_base", "bert_large", "bert_nezha", "pangu_13B", "pangu_2.6B")
_TABLES: Final = (
    *(f"somas_{name}" for name in _SOMAS),
    "iree_mobilebert",
    "iree_mobilenet",
    "iopddl_G_1",
    "iopddl_S_1",
    "iopddl_Y_1",
)
_PUBLISHED: Final = 1048576
_WITHIN: Final = f"within {_PUBLISHED}"
_TO_PACK: Final = ("80%", "50%", "30%")
_RULES_ALONE: Final = (
    "-c",
    "import numpy as np; from planner.packing import Intervals, pack;"
    " pack(Intervals(*np.array([[8, 0, 2, 1, -1], [4, 1, 3, 1, -1]]).T.copy()))",
)
_SEARCHED: Final = (
    "-m",
    "planner.cli",
    "pack",
    str(shared.path_of("minimalloc/K.1048576.csv")),
    "--capacity",
    str(_PUBLISHED),
    "--json",
)
_COLD_RULES, _COLD_SEARCH = "pack() of two buffers, empty kernel cache", "planner pack K, empty kernel cache"


def _all_within(rows: Rows) -> Found:
    found = rows.packings(*MINIMALLOC, asked=_WITHIN)
    return (max(row.arena_bytes for row in found), _PUBLISHED) if len(found) == len(MINIMALLOC) else None


def _cpu(*instances: str, asked: str, limit: float, together: bool) -> Measured:
    """CPU of all instances, the sum or the most; nothing where one is missing."""

    def measured(rows: Rows) -> Found:
        seconds = [row.cpu["pack"] for row in rows.packings(*instances, asked=asked)]
        return None if len(seconds) < len(instances) else (sum(seconds) if together else max(seconds), limit)

    return measured


def _above_live(*instances: str, limit: float) -> Measured:
    def measured(rows: Rows) -> Found:
        found = rows.packings(*instances)
        complete = {row.instance for row in found} == set(instances)
        return (max(row.arena_bytes - row.live_bytes for row in found), limit) if complete else None

    return measured


_LARGE: Final = ("resnet:3-8-3700-3, batch 4, image 64", "mxnet_lstm:760")
PACK: Final = Suite(
    "pack",
    "Arenas: MiniMalloc's instances, real graphs of others, and plans of ours packed by auto.",
    (
        *(
            Tables(
                name,
                f"minimalloc/{name}.1048576.csv",
                (_PUBLISHED, *([_TIGHTER[name]] if name in _TIGHTER else [])),
                peer=seconds,
                size="quick" if name in "AK" else "normal",
            )
            for name, seconds in MINIMALLOC.items()
        ),
        *(Tables(name, f"minimalloc/{name}.1048576.csv", (None,), (4.0,), rules=False) for name in "DJ"),
        *(Tables(name, f"minimalloc/{name}.1048576.csv", (None,), (32.0,), rules=False, size="slow") for name in "DJ"),
        *(Tables(name, f"idealloc/{name}.csv") for name in _TABLES),
        PlanTables(Subject("resnet:152", partial(zoo.resnet, 152, batch=32)), _TO_PACK),
        PlanTables(Subject("resnet:1001", partial(zoo.resnet, 1001, batch=32)), _TO_PACK),
        PlanTables(Subject("densenet:121", partial(zoo.densenet, 121, batch=32)), _TO_PACK),
        PlanTables(Subject("unet:4", partial(zoo.unet, 4, batch=1)), _TO_PACK),
        PlanTables(Subject("gpt:12", partial(zoo.gpt, 12, batch=8)), _TO_PACK),
        PlanTables(_LSTMS[1000], _TO_PACK, size="slow"),
        PlanTables(Subject(_LARGE[0], partial(zoo.resnet, (3, 8, 3700, 3), batch=4, image=64)), (None,), "chen-sqrt"),
        PlanTables(Subject(_LARGE[1], partial(zoo.mxnet_lstm, 760), "activations"), (None,), "chen-sqrt"),
        Processes(
            (
                Command("bare interpreter", ("-c", "pass"), runs=20),
                Command(_COLD_RULES, _RULES_ALONE, cold=True),
                Command("pack() of two buffers, warm", _RULES_ALONE, runs=3),
            ),
        ),
        Processes(
            (
                Command("bare interpreter, again", ("-c", "pass"), runs=20),
                Command(_COLD_SEARCH, _SEARCHED, cold=True),
                Command("planner pack K, warm", _SEARCHED, runs=3),
            ),
            name="a search",
            size="normal",
        ),
    ),
    (
        Target(5, "A to K: the largest arena", "B", _all_within),
        Target(
            5,
            "A to K within 1048576 bytes, together",
            "CPU s",
            _cpu(*MINIMALLOC, asked=_WITHIN, limit=5.0, together=True),
        ),
        Target(
            5,
            "A to K within 1048576 bytes, the slowest",
            "CPU s",
            _cpu(*MINIMALLOC, asked=_WITHIN, limit=1.0, together=False),
        ),
        Target(
            5,
            "SOMAS without BERT large: above what is live",
            "B",
            _above_live(*(f"somas_{name}" for name in _SOMAS if name != "bert_large"), limit=0),
        ),
        Target(5, "SOMAS BERT large: above what is live", "B", _above_live("somas_bert_large", limit=200)),
        Target(
            5,
            "SOMAS, the slowest",
            "CPU s",
            _cpu(*(f"somas_{name}" for name in _SOMAS), asked="", limit=10.0, together=False),
        ),
        Target(5, "IOPDDL S_1 and Y_1: above what is live", "B", _above_live("iopddl_S_1", "iopddl_Y_1", limit=0)),
        Target(
            5,
            "IOPDDL S_1 and Y_1, the slowest",
            "CPU s",
            _cpu("iopddl_S_1", "iopddl_Y_1", asked="", limit=20.0, together=False),
        ),
        Target(5, "plans of 10,000 buffers: above the peak", "B", _above_live("resnet:1001", limit=0)),
        Target(
            5, "plans of 10,000 buffers, the slowest", "CPU s", _cpu("resnet:1001", asked="", limit=2.0, together=False)
        ),
        Target(5, "plans of 100,000 buffers: above the peak", "B", _above_live(*_LARGE, limit=0)),
        Target(
            5, "plans of 100,000 buffers, the slowest", "CPU s", _cpu(*_LARGE, asked="", limit=20.0, together=False)
        ),
    ),
)

# --- explain: every number of an explanation, found once more ---

_ONNX: Final = "graphs/onnx_light/light_resnet50.onnx"


def _captured() -> nx.DiGraph:
    from bench.torch_models import made
    from planner.torch import from_torch

    return from_torch(*made("gpt"))


def _no_torch() -> str | None:
    return None if find_spec("torch") else "torch:gpt: PyTorch is not installed"


def _slowest(graph: str) -> Measured:
    def measured(rows: Rows) -> Found:
        found = [each for each in rows.explanations if each.graph == graph]
        return (max(each.cpu["slowest"] for each in found), 10.0) if found else None

    return measured


def _wrong(rows: Rows) -> Found:
    return (float(sum(len(row.wrong) for row in rows.explanations)), 0.0) if rows.explanations else None


def _unowned(rows: Rows) -> Found:
    return (100 * (1 - min(row.owned for row in rows.explanations)), 10.0) if rows.explanations else None


EXPLAIN: Final = Suite(
    "explain",
    "Tensors of plans explained, half kept and half recomputed: every number by a walk, a second search and the judge.",
    (
        Explanations(Subject("unet:4", partial(zoo.unet, 4, batch=1)), "70%", size="quick"),
        Explanations(Subject("resnet:50", partial(zoo.resnet, 50, batch=32)), "60%"),
        Explanations(Subject("gpt:12", partial(zoo.gpt, 12, batch=8)), "60%"),
        Explanations(
            Subject(
                "light_resnet50.onnx",
                lambda: from_onnx(shared.path_of(_ONNX)),
                missing=lambda: shared.missing(_ONNX) or (None if find_spec("onnx") else "onnx is not installed"),
            ),
            "60%",
        ),
        Explanations(Subject("torch:gpt", _captured, "activations", _no_torch), "60%"),
        Explanations(Subject("resnet:1001", partial(zoo.resnet, 1001, batch=32)), "7GB", tensors=4),
    ),
    (
        Target(15, "numbers of explanations that a second look does not find", "numbers", _wrong),
        Target(15, "of a peak not listed by owner", "%", _unowned),
        Target(15, "resnet:1001 at 7GB: the slowest tensor", "CPU s", _slowest("resnet:1001")),
    ),
)

SUITES: Final = {suite.name: suite for suite in (RESNET, LSTM, ORIGINAL, REMAT, STARTUP, PACK, EXPLAIN)}
