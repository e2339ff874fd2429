"""Our value beside the original's, for every number measured on the system of Chen et al. 2016; and the paper's figures
5 and 6.

    python papers/chen2016/reproduce.py [--quick] [-o FOLDER]

The original's numbers were read off MXNet 1.5.1 with memonger on a CPU; what is counted and why some differ is in
README.md beside this file. Ours are made from nothing but the networks of `planner.zoo`. "MB" is MiB rounded down, as
MXNet prints it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
import msgspec
import networkx as nx
import numpy as np
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from planner import Graph, MemoryModel, lower, optimize, zoo
from planner.analysis.arrays import Ints
from planner.analysis.candidates import forward_part
from planner.analysis.evaluator import Evaluator
from planner.files import write_whole
from planner.mxnet.memonger import Trial, planned_sequence, search_thresholds
from planner.mxnet.nnvm import MATCH_RANGE, share_blocks
from planner.search.chen import chen_budget
from planner.search.recursive import recursive

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MIB: Final = 2**20
#: What the original counts: feature maps and their gradients; what the caller binds is left out.
FEATURE_MAPS: Final = MemoryModel("activations")
RANGES: Final = (0, 1, 2, 4, 8, 16, 64)
Stages = tuple[int, int, int, int]

# ------------------------------------------------------------------------------------------------ the original's
# numbers "-": nobody measured it. A dagger: measured for this note, on the same binary as the others.

RESNET_COLUMNS: Final = (
    "no-opt",
    "inplace",
    "sharing",
    "sharing, no inplace",
    "drop bn-relu",
    "memonger (B)",
    "sharing/plan",
)
RESNET: Final[Mapping[Stages, tuple[int, str]]] = {
    (3, 4, 6, 3): (53, "9413 6729 3539 3749 2843 1250@0 2.8"),
    (3, 4, 23, 3): (104, "13995 10061 5206 5415 4093† 1667@0 3.1"),
    (3, 8, 36, 3): (155, "19654 14178 7264 7474 5636 1808@487 4.0"),
    (3, 24, 36, 3): (203, "28279 20450 10400 10610 7988 1957@576 5.3"),
    (3, 30, 48, 8): (272, "- 25644 12997 - 9936† 2166@894 6.0"),
    (33, 72, 170, 33): (929, "- 91160 45756 - 34503† 4480@1074† 10.2†"),
    (15, 120, 180, 15): (995, "132928 96559 48456 48666 36528 4091@1230 11.8"),
    (3, 120, 207, 3): (1004, "126110 91600 45976 46186 34669† 3575@1138 12.9"),
}
LSTM_COLUMNS: Final = ("no-opt", "inplace", "sharing", "memonger (B)", "sharing/plan")
LSTM: Final[Mapping[int, str]] = {
    64: "21781 11491 1460 518@57 2.8",
    256: "87576 45967 5006 778@111 6.4",
    1000: "- - 18748 1666@192 11.3",
}
TRACES: Final[Mapping[str, str]] = {
    "resnet 3-4-6-3": "0:1250 469:1618 378:1548",
    "resnet 3-8-36-3": "0:2157 728:1813 487:1808 669:1927 672:1927 675:1903 678:1903 681:1903 684:1903",
    "resnet 3-24-36-3": "0:2941 889:1992 576:1957 707:2105 748:2191 789:2191 830:1992 871:1992 912:1992",
    "resnet 33-72-170-33": (
        "0:11709† 1932:4691† 1279:5129† 870:4696† 1074:4480† 1278:5129† 1482:5215† 1686:4949† 1890:4691†"
    ),
    "resnet 15-120-180-15": "0:12384 1989:4338 1230:4091 866:4414 1066:4399 1266:4091 1466:4630 1666:4258 1866:4267",
    "lstm 64": "0:753 41:543 43:543 32:546 37:543 42:543 47:543 52:543 57:518",
    "lstm 1000": "0:7511 164:1728 162:1728 60:3239 93:2525 126:1957 159:1728 192:1666 225:1688",
}
SWEEPS: Final[Mapping[str, str]] = {  # by match range: 0 1 2 4 8 16 64
    "inception-bn": "2787 1771 1391 1341 1340 1340 1340",
    "resnet 3-4-6-3": "6729 3886 3543 3539 3539 3539 3539",
    "resnet 3-4-6-3, plan": "8942 2176 1275 1251 1251 1250 1250",
    "resnet 3-8-36-3": "14178 7610 7267 7264 7264 7264 -",
    "resnet 3-8-36-3, plan": "19135 2783 1775 1808 1808 1808 -",
    "resnet 3-24-36-3": "20450 10746 - - - 10400 -",
    "resnet 15-120-180-15": "96559 48802 48459 48456 48456 48456 -",
    "lstm 64": "11491 1162 1097 1479 1478 1460 -",
    "lstm 64, plan": "12417 476 479 464 524 518 -",
}
# k = 1 2 4 8
COLOURS: Final[Mapping[str, str]] = {"inception-bn": "1340 1395 1451 1451", "resnet 3-4-6-3": "3539 3539 3539 3539"}
INCEPTION_COLUMNS: Final = ("no-opt", "inplace", "sharing", "forward only")
INCEPTION: Final = "3826 2787 1340 242"
BYTES_COLUMNS: Final = ("no sharing", "shared blocks", "live peak", "live peak, inplace")
BYTES: Final[Mapping[str, str]] = {  # exact, of the stored fixtures and traces
    "inception-bn": "4012709120 1405553920 1256519936 1256519936",
    "resnet 3-4-6-3": "9870809600 3711911424 3535589888 3535589888",
    "resnet 3-4-6-3, plan": "14098882560 1311584256 1075714048 1075714048",
    "resnet 3-8-36-3": "20609669632 7617201664 7440880128 7440880128",
    "resnet 3-8-36-3, plan": "30155988992 1896637440 1415078912 1415078912",
    "resnet 15-120-180-15": "139385842176 50810312192 50633990656 50633990656",
    "resnet 15-120-180-15, plan": "- 4289839104 3219018752 -",
    "lstm 64": "22839895008 1530967844 1114148160 1094948164",
    "lstm 64, plan": "24572273888 543389480 413506880 397778240",
}
PORT: Final[Mapping[str, str]] = {  # a scratch port of the allocator, MiB, and what MXNet printed
    "resnet 3-4-6-3, plan": "1250.95 1250",
    "resnet 3-24-36-3, plan": "1957.62 1957",
    "resnet 3-24-36-3, B = 0": "2941.45 2941",
    "resnet 15-120-180-15, plan": "4091.23 4091",
}
LIVE_MB: Final[Mapping[str, str]] = {
    "resnet 3-4-6-3": "3371",
    "resnet 15-120-180-15": "48288",
    "resnet 15-120-180-15, plan": "3070",
}
MIRRORED: Final[Mapping[str, tuple[tuple[str, ...], dict[Stages, str]]]] = {
    "LeakyReLU": (("LeakyReLU",), {(3, 4, 6, 3): "4167†", (3, 8, 36, 3): "8357†"}),
    "MXNET_BACKWARD_DO_MIRROR=1": (("LeakyReLU", "elemwise_add", "Pooling", "Flatten"), {(3, 4, 6, 3): "4069"}),
}
SECONDS: Final[Mapping[str, str]] = {  # of the whole search on the original, wall, at a load of about 10
    "resnet 3-4-6-3": "0.5",
    "resnet 3-24-36-3": "8",
    "resnet 15-120-180-15": "9-23",
    "lstm 64": "10-39",
    "lstm 256": "36-117",
    "lstm 1000": "157",
}
SIDE_NOTES: Final = (
    (
        "0.9.5 plans: 1263, 1807, 1951; LSTM 64: sharing 1204",
        "not reproduced: its declarations differ, and no graph of it is stored",
    ),
    ("0.9.5 and 0.10.0 sharing: 3539, 7264, 10400, 48456", "equal to 1.5.1, hence to ours"),
    (
        "1.9.1: R=0 8112, 24405; sharing 4899, 14332; plans 1658, 2520",
        "not reproduced: it declares fewer in-place pairs; the zoo has those of 1.5.1",
    ),
    (
        "mxnet #14383, switch on: 3317 -> 4496 MB",
        "not reproduced: the network is not given; the switch is explained in README.md",
    ),
    ("time per batch (figure 7), nvidia-smi totals", "not reproduced: no GPU ran, and the paper prints no numbers"),
)

# Reasons of differences; a cell that differs without one is a failure.
PORT_REASON: Final = "the port was an approximation, up to 0.13 MB off; ours has MXNet's own bytes"
ROUNDING: Final = "the notes round this one up and cut the others off; the bytes are equal: 3219018752"
TWO_INSTANCES: Final = (
    "MXNet keeps the residual sums of the last stage for the convolutions that read them and has their copies"
    " beside them; in our memory"
    " model (rule 2) a value has one live instance, and the convolutions read the copies"
)


class Cell(NamedTuple):
    """One number of the original, and ours.

    Args:
        reason: why they differ, if they do.
    """

    table: str
    row: str
    column: str
    ours: str
    original: str
    reason: str = ""

    @property
    def measured(self) -> bool:
        """Whether the original has a number here."""
        return self.original != "-"

    @property
    def equal(self) -> bool:
        """Digit for digit, as printed."""
        return self.ours == self.original.removesuffix("†")


# ------------------------------------------------------------------------------------------------ measuring


class Network:
    """A network with what has been measured on it."""

    def __init__(self, name: str, build: Callable[[], nx.DiGraph]) -> None:
        self.name: Final = name
        self.graph: Final = lower(build())
        self.evaluator: Final = Evaluator(self.graph, FEATURE_MAPS)

    @cached_property
    def bare(self) -> Evaluator:
        """Of the graph without in-place pairs."""
        ops = [msgspec.structs.replace(op, inplace=()) for op in self.graph.ops]
        return Evaluator(Graph(ops, name=self.graph.name), FEATURE_MAPS)

    @cached_property
    def trials(self) -> list[Trial]:
        """memonger's search."""
        return search_thresholds(self.graph, self.evaluator)

    @cached_property
    def seconds(self) -> float:
        """CPU seconds of that search, kernels compiled."""
        assert self.trials
        start = time.process_time()
        search_thresholds(self.graph, self.evaluator)
        return time.process_time() - start

    @property
    def best(self) -> Trial:
        """Of its trials, the first of the least printed MB."""
        return min(self.trials, key=lambda trial: trial.cost_bytes >> 20)

    @cached_property
    def plan(self) -> Ints:
        """Op rows of its plan."""
        return planned_sequence(self.evaluator, self.best.keep)

    def pool(
        self, sequence: Ints | None = None, *, inplace: bool = True, match_range: int = MATCH_RANGE, colours: int = 1
    ) -> int:
        """Bytes of all shared blocks, of the plain order or of a plan."""
        evaluator = self.evaluator if inplace else self.bare
        order = evaluator.keep_all if sequence is None else sequence
        return share_blocks(evaluator, order, match_range=match_range, colours=colours, first_outputs=True).total_bytes

    def live_peak(self, sequence: Ints | None = None, *, inplace: bool) -> int:
        """Most bytes live at a step, where the first run of a head keeps its output, as the original's does."""
        evaluator = self.evaluator if inplace else self.bare
        order = evaluator.keep_all if sequence is None else sequence
        lives = share_blocks(evaluator, order, match_range=0, first_outputs=True)
        own = np.flatnonzero(lives.storage == np.arange(len(lives.storage)))
        nbytes = evaluator.encoded.arrays.storage_bytes[lives.value[own]]
        change = np.zeros(len(order) + 1, dtype=np.int64)
        np.add.at(change, lives.step[own], nbytes)
        np.subtract.at(change, lives.end[own], nbytes)
        return int(np.cumsum(change).max())

    def dropping(self, operators: Collection[str], *, as_shipped: bool = True) -> Ints:
        """Op rows of the plan that runs every forward op of these operators again: Alg. 2 with m(v) = 1 for them.

        Args:
            operators: an explicit list; the paper's "drop bn-relu" is BatchNorm and LeakyReLU.
            as_shipped: the backward op of a kept op reads what that op itself read, as nnvm wires it: a convolution
                keeps its input alive, though that has been made again. False: it reads the newest copy, as in Alg. 2.
        """
        encoded, part = self.evaluator.encoded, forward_part(self.graph, self.evaluator.encoded)
        assert part is not None
        counts = np.array(
            [int(drop and op.op in operators) for op, drop in zip(self.graph.ops, part.droppable, strict=True)]
        )
        partner = np.full(len(counts), -1)
        for row, op in enumerate(self.graph.ops if as_shipped else ()):
            if op.name.endswith("_backward"):
                partner[row] = encoded.op_index[op.name.removesuffix("_backward")]
        return self.evaluator.just_in_time(counts, part.origin, partner)

    def arena(self, strategy: Callable[..., Any]) -> int:
        """Bytes of one of our plans at its least peak, packed by offset."""
        plan = optimize(self.graph, strategy=strategy, memory=FEATURE_MAPS, allocator="first-fit")
        return plan.report.plan.arena_bytes


BN_RELU: Final = ("BatchNorm", "LeakyReLU")


def resnet(stages: Sequence[int]) -> Network:
    """The original's example of so many blocks a stage."""
    return Network(f"resnet {_dashed(stages)}", partial(zoo.mxnet_resnet, stages))


def lstm(steps: int) -> Network:
    """The original's example of so many time steps."""
    return Network(f"lstm {steps}", partial(zoo.mxnet_lstm, steps))


def mb(nbytes: int) -> str:
    """As MXNet prints it."""
    return str(nbytes >> 20)


def _dashed(stages: Sequence[int]) -> str:
    return "-".join(map(str, stages))


# ------------------------------------------------------------------------------------------------ cells


def resnet_cells(net: Network, stages: Stages) -> Iterator[Cell]:
    """The row of a depth: sums, pools, drop, memonger; and what the notes say beside the table."""
    layers, original = RESNET[stages]
    shared, best = net.pool(), net.best
    dropped = net.pool(net.dropping(BN_RELU))
    pools = [net.pool(match_range=0, inplace=False), net.pool(match_range=0), shared, net.pool(inplace=False), dropped]
    ratio = f"{(shared >> 20) / (best.cost_bytes >> 20):.1f}"
    values = [*map(mb, pools), f"{mb(best.cost_bytes)}@{best.threshold_mib}", ratio]
    yield from _row("ResNet, MB", f"{layers}: {_dashed(stages)}", RESNET_COLUMNS, values, original)
    for name, (operators, measured) in MIRRORED.items():
        reason = TWO_INSTANCES if "elemwise_add" in operators else ""
        ours = mb(net.pool(net.dropping(operators)))
        yield Cell("ResNet, recomputing by operator, MB", net.name, name, ours, measured.get(stages, "-"), reason)
    written = mb(net.pool(net.dropping(BN_RELU, as_shipped=False)))
    yield Cell("ResNet, recomputing by operator, MB", net.name, "bn-relu, Alg. 2 as written", written, "-")


def lstm_cells(net: Network, steps: int) -> Iterator[Cell]:
    """The row of a length."""
    shared, best = net.pool(), net.best
    ratio = f"{(shared >> 20) / (best.cost_bytes >> 20):.1f}"
    pools = [net.pool(match_range=0, inplace=False), net.pool(match_range=0), shared]
    values = [*map(mb, pools), f"{mb(best.cost_bytes)}@{best.threshold_mib}", ratio]
    yield from _row("LSTM 4 x 1024, batch 64, MB", f"{steps} steps", LSTM_COLUMNS, values, LSTM[steps])


def inception_cells(net: Network) -> Iterator[Cell]:
    """The row of Inception-BN; the forward pass alone is the plan of inference."""
    part = forward_part(net.graph, net.evaluator.encoded)
    assert part is not None
    forward = net.pool(np.flatnonzero(part.origin))
    pools = [net.pool(match_range=0, inplace=False), net.pool(match_range=0), net.pool(), forward]
    yield from _row("Inception-BN, batch 32, MB", net.name, INCEPTION_COLUMNS, [*map(mb, pools)], INCEPTION)


def common_cells(net: Network) -> Iterator[Cell]:
    """What was measured on some networks only: sweeps, traces, exact bytes."""
    plain, planned = net.name, f"{net.name}, plan"
    for name in (plain, planned):
        sequence = (
            net.plan
            if name == planned and (name in SWEEPS or name in BYTES or name in PORT or name in LIVE_MB)
            else None
        )
        if name in SWEEPS:
            values = [mb(net.pool(sequence, match_range=r)) for r in RANGES]
            yield from _row("Match range R, MB", name, [f"R={r}" for r in RANGES], values, SWEEPS[name])
        if name in COLOURS:
            values = [mb(net.pool(colours=k)) for k in (1, 2, 4, 8)]
            yield from _row("Colours k, MB", name, [f"k={k}" for k in (1, 2, 4, 8)], values, COLOURS[name])
        if name in BYTES:
            exact = [net.pool(sequence, match_range=0, inplace=False), net.pool(sequence)]
            exact += [net.live_peak(sequence, inplace=inplace) for inplace in (False, True)]
            yield from _row("Exact bytes", name, BYTES_COLUMNS, [*map(str, exact)], BYTES[name])
        if name in LIVE_MB:
            ours = mb(net.live_peak(sequence, inplace=False))
            yield Cell(
                "Live-bytes peak, no inplace, MB",
                name,
                "peak",
                ours,
                LIVE_MB[name],
                ROUNDING if name == planned else "",
            )
        if name in PORT:
            yield from _port(name, net.pool(sequence))
    if f"{plain}, B = 0" in PORT:
        yield from _port(f"{plain}, B = 0", net.trials[0].cost_bytes)
    if plain in TRACES:
        original = TRACES[plain].split()
        ours = [f"{trial.threshold_mib}:{mb(trial.cost_bytes)}" for trial in net.trials]
        for k in range(max(len(ours), len(original))):
            pair = [found[k] if k < len(found) else "none" for found in (ours, original)]
            yield Cell("memonger's search, B:MB", f"trial {k + 1}", plain, *pair)


def _port(name: str, nbytes: int) -> Iterator[Cell]:
    port, printed = PORT[name].split()
    yield Cell("Planned graphs, MB", name, "port", f"{nbytes / MIB:.2f}", port, PORT_REASON)
    yield Cell("Planned graphs, MB", name, "MXNet", mb(nbytes), printed)


def ratio_cells(cells: Sequence[Cell]) -> Iterator[Cell]:
    """What the notes conclude from the ResNet table, from our own numbers; only where all of its rows are there."""
    found = {(int(cell.row.split(":")[0]), cell.column): cell.ours for cell in cells if cell.table == "ResNet, MB"}
    if len({layers for layers, _ in found}) < len(RESNET):
        return
    known = [layers for layers, row in RESNET.values() if not row.startswith("-")]
    savings = [int(found[layers, "no-opt"]) / int(found[layers, "sharing"]) for layers in known]
    table = "ResNet, conclusions"
    yield Cell(table, "no-opt/sharing", "least..most", f"{min(savings):.2f}..{max(savings):.2f}", "2.66..2.74")
    grown = math.log(995 / 203)
    for column, original in (("memonger (B)", "0.46"), ("sharing", "0.97")):
        few, many = (int(found[layers, column].split("@")[0]) for layers in (203, 995))
        yield Cell(table, "exponent, 203 to 995 layers", column, f"{math.log(many / few) / grown:.2f}", original)


def _row(table: str, row: str, columns: Sequence[str], ours: Sequence[str], original: str) -> Iterator[Cell]:
    for column, value, measured in zip(columns, ours, original.split(), strict=True):
        yield Cell(table, row, column, value, measured)


# ------------------------------------------------------------------------------------------------ figures

LINES: Final = (
    "no optimization",
    "inplace",
    "sharing",
    "drop bn-relu",
    "sublinear (memonger)",
    "ours, chen-budget",
    "ours, recursive",
)
DEPTHS: Final = (128, 181, 256, 362, 512, 724, 1024)
STEPS: Final = (64, 128, 256, 512, 1000)
Lines = dict[str, list[tuple[int, float]]]  # name -> (depth or steps, GiB)


def deepened(depth: int) -> tuple[int, Stages]:
    """(convolutions and classifier layers, blocks per stage) nearest to a depth, in the shares of memonger's example
    3-24-36-3.
    """
    blocks = (depth - 5) / 3
    stages = tuple(max(1, round(blocks * share / 66)) for share in (3, 24, 36, 3))
    return 5 + 3 * sum(stages), stages  # type: ignore[return-value]


def measured_lines(net: Network, *, drop: bool, ours: Mapping[str, Callable[..., Any]]) -> dict[str, float]:
    """GiB of one network on every line."""
    found = {
        "no optimization": net.pool(match_range=0, inplace=False),
        "inplace": net.pool(match_range=0),
        "sharing": net.pool(),
        "sublinear (memonger)": net.best.cost_bytes,
    }
    if drop:
        found["drop bn-relu"] = net.pool(net.dropping(BN_RELU))
    for name, strategy in ours.items():
        found[name] = net.arena(strategy)
    return {name: nbytes / 2**30 for name, nbytes in found.items()}


def original_points(rows: Mapping[int, tuple[Sequence[str], str]], low: int) -> Lines:
    """The tables' own numbers, by line."""
    of_column = {
        "no-opt": LINES[0],
        "inplace": LINES[1],
        "sharing": LINES[2],
        "drop bn-relu": LINES[3],
        "memonger (B)": LINES[4],
    }
    points: Lines = {}
    for size, (columns, row) in rows.items():
        for column, value in zip(columns, row.split(), strict=True):
            if column in of_column and value != "-" and size >= low:
                points.setdefault(of_column[column], []).append(
                    (size, int(value.split("@")[0].removesuffix("†")) / 1024)
                )
    return points


def figure(
    lines: Lines, points: Lines, *, title: str, below: str, axis: str, ticks: Sequence[int], guides: Mapping[str, str]
) -> Figure:
    """Memory against size, both logarithmic: our lines, the original's points on them, and what would grow like a
    guide.

    Args:
        ticks: of the horizontal axis; the first and last are its ends.
        guides: "n", "sqrt n" or "log n" -> the line whose first point it starts from.
    """
    import matplotlib.style
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    from planner.views.drawing import COLOURS, FAINT, INK, STYLE

    colour_of = dict(
        zip(LINES, (INK, COLOURS[5], COLOURS[0], COLOURS[4], COLOURS[1], COLOURS[2], COLOURS[3]), strict=True)
    )
    circle: dict[str, Any] = {
        "marker": "o", "linestyle": "none", "markersize": 6.5, "markerfacecolor": "white", "markeredgewidth": 1.7,
            "zorder": 4,
    }  # fmt: skip
    growth = {"n": lambda n: n, "√n": math.sqrt, "log n": math.log}
    with matplotlib.style.context(["default", STYLE]):
        drawn = Figure(figsize=(9.0, 5.6), layout="constrained")
        axes = drawn.add_subplot(xscale="log", yscale="log")
        low, high = ticks[0], ticks[-1]
        for guide, line in guides.items():
            size, memory = lines[line][0]
            sizes = np.geomspace(size, high, 60)
            values = [0.86 * memory * growth[guide](n) / growth[guide](size) for n in sizes]
            axes.plot(sizes, values, color="#B0B0B0", linestyle=(0, (1, 2)), linewidth=1.3, zorder=1)
            axes.annotate(
                f"O({guide})",
                (sizes[-1], values[-1]),
                xytext=(7, -2),
                textcoords="offset points",
                va="center",
                color=FAINT,
                fontsize=9,
                annotation_clip=False,
            )
        for name in (line for line in LINES if line in lines):
            sizes, values = zip(*sorted(lines[name]), strict=True)
            style = {LINES[5]: (0, (4, 4)), LINES[6]: (4, (4, 4))}.get(name, "-")  # in turn, where the two agree
            axes.plot(sizes, values, color=colour_of[name], linewidth=2.0, linestyle=style, label=name, zorder=3)
        for name, measured in points.items():
            sizes, values = zip(*measured, strict=True)
            axes.plot(sizes, values, markeredgecolor=colour_of[name], **circle)
        axes.plot([], [], markeredgecolor=FAINT, label="measured on the original", **circle)
        axes.set_xlim(low / 1.04, high * 1.04)
        axes.xaxis.set_major_locator(FixedLocator(list(ticks)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        everything = [value for found in (*lines.values(), *points.values()) for _, value in found]
        exponents = range(math.floor(math.log2(min(everything) * 0.86)), math.ceil(math.log2(max(everything))) + 1)
        axes.set_ylim(2.0 ** exponents[0], 2.0 ** exponents[-1])
        axes.yaxis.set_major_locator(FixedLocator([2.0**k for k in exponents]))
        axes.yaxis.set_major_formatter(
            FuncFormatter(lambda value, _: f"{value:g}" if value >= 1 else f"1/{1 / value:g}")
        )
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_xlabel(axis)
        axes.set_ylabel("feature maps and their gradients, GiB")
        axes.grid(True)
        axes.set_axisbelow(True)
        axes.set_title(title, loc="left", pad=24, color=INK)
        axes.annotate(
            below,
            (0, 1),
            xycoords="axes fraction",
            xytext=(0, 8),
            textcoords="offset points",
            va="bottom",
            color=FAINT,
            fontsize=9,
        )
        drawn.legend(loc="outside right upper", labelspacing=0.9, handlelength=2.6)
    return drawn


def save_figure(drawn: Figure, folder: Path, name: str) -> None:
    """As .svg and .png, the same bytes for the same numbers."""
    from planner.views.drawing import rendered

    for suffix in (".svg", ".png"):
        write_whole(folder / f"{name}{suffix}", rendered(drawn, suffix))


def figure5(lines: Lines) -> Figure:
    """ResNet: memory against depth."""
    rows = {layers: (RESNET_COLUMNS, row) for layers, row in RESNET.values()}
    return figure(
        lines,
        original_points(rows, DEPTHS[0]),
        title="ResNet: memory against depth (figure 5 of the paper)",
        axis="layers",
        below="batch 32, 3 x 224 x 224 · lines: blocks per stage as 3 : 24 : 36 : 3; points: also other shares",
        ticks=(128, 256, 512, 1024),
        guides={"n": "sharing", "√n": "sublinear (memonger)", "log n": "ours, recursive"},
    )


def figure6(lines: Lines) -> Figure:
    """LSTM: memory against length."""
    rows = {steps: (LSTM_COLUMNS, row) for steps, row in LSTM.items()}
    return figure(
        lines,
        original_points(rows, STEPS[0]),
        title="LSTM: memory against time steps (figure 6 of the paper)",
        axis="time steps",
        below="4 layers of 1024, batch 64, a softmax over 5000 classes at each step",
        ticks=(64, 128, 256, 512, 1024),
        guides={"n": "sharing", "√n": "sublinear (memonger)", "log n": "ours, recursive"},
    )


# ------------------------------------------------------------------------------------------------ running

QUICK_STAGES: Final[tuple[Stages, ...]] = ((3, 4, 6, 3), (3, 4, 23, 3), (3, 8, 36, 3), (3, 24, 36, 3))


class Result(NamedTuple):
    """What a run found.

    Args:
        seconds: CPU seconds of memonger's search by network.
        lines5, lines6: of the figures; empty in a quick run.
    """

    cells: list[Cell]
    seconds: dict[str, float]
    lines5: Lines
    lines6: Lines


def reproduce(*, quick: bool, progress: Callable[[str], object] = lambda _: None) -> Result:
    """All cells, and unless quick the lines of the figures; one network in memory at a time."""
    cells: list[Cell] = []
    seconds: dict[str, float] = {}
    lines5: Lines = {}
    lines6: Lines = {}
    progress("inception-bn")
    net = Network("inception-bn", zoo.inception_bn)
    cells += [*inception_cells(net), *common_cells(net)]
    for stages in QUICK_STAGES if quick else RESNET:
        progress(f"resnet {_dashed(stages)}")
        net = resnet(stages)
        cells += [*resnet_cells(net, stages), *common_cells(net)]
        if net.name in SECONDS:
            seconds[net.name] = net.seconds
    for steps in (64,) if quick else STEPS:
        progress(f"lstm {steps}")
        net = lstm(steps)
        if steps in LSTM:
            cells += [*lstm_cells(net, steps), *common_cells(net)]
            seconds[net.name] = net.seconds
        if not quick:
            ours = {LINES[5]: partial(chen_budget, sweeps=8), LINES[6]: partial(recursive, k=1, reuse=True)}
            _extend(lines6, steps, measured_lines(net, drop=False, ours=ours))
    for depth in () if quick else DEPTHS:
        layers, stages = deepened(depth)
        progress(f"figure 5, {layers} layers")
        _extend(
            lines5, layers, measured_lines(resnet(stages), drop=True, ours={LINES[5]: chen_budget, LINES[6]: recursive})
        )
    cells += ratio_cells(cells)
    return Result(cells, seconds, lines5, lines6)


def _extend(lines: Lines, size: int, found: Mapping[str, float]) -> None:
    for name, value in found.items():
        lines.setdefault(name, []).append((size, value))


def print_cells(out: Console, cells: Iterable[Cell]) -> None:
    """One table for each of the original's; "ours = theirs", "ours ≠ theirs", or "ours" alone where nobody measured."""
    tables: dict[str, dict[str, dict[str, Cell]]] = {}
    for cell in cells:
        tables.setdefault(cell.table, {}).setdefault(cell.row, {})[cell.column] = cell
    for title, rows in tables.items():
        columns = list(dict.fromkeys(column for row in rows.values() for column in row))
        table = _table(out, title)
        for column in columns:
            table.add_column(column, justify="right", no_wrap=True)
        for name, row in rows.items():
            table.add_row(name, *(_shown(row.get(column)) for column in columns))
        out.print(table)
        out.print()


def _table(out: Console, title: str) -> Table:
    out.print(Text(title, style="bold"))
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("", no_wrap=True)
    return table


def _shown(cell: Cell | None) -> Text:
    if cell is None:
        return Text("")
    if not cell.measured:
        return Text(cell.ours, style="dim")
    return Text(f"{cell.ours} {'=' if cell.equal else '≠'} {cell.original}", style="green" if cell.equal else "yellow")


def print_lines(out: Console, title: str, lines: Lines) -> None:
    """The numbers behind a figure."""
    table = _table(out, f"{title}, GiB")
    for size, _ in lines[LINES[0]]:
        table.add_column(str(size), justify="right")
    for name in LINES:
        if name in lines:
            table.add_row(name, *(f"{value:.2f}" for _, value in lines[name]))
    out.print(table)
    out.print()


def print_summary(out: Console, result: Result, spent: float) -> bool:
    """Counts and reasons; False if a cell differs and nobody can say why."""
    measured = [cell for cell in result.cells if cell.measured]
    different = [cell for cell in measured if not cell.equal]
    for what, why in SIDE_NOTES:
        out.print(f"side note       {what}: {why}", soft_wrap=True)
    for name, found in result.seconds.items():
        out.print(f"search          {name}: {found:.2f} s CPU here, {SECONDS[name]} s on the original")
    for cell in different:
        where = f"{cell.table.removesuffix(', MB')} · {cell.row} · {cell.column}"
        out.print(
            f"different       {where}: {cell.ours}, not {cell.original}: {cell.reason or 'UNEXPLAINED'}", soft_wrap=True
        )
    unmeasured = len(result.cells) - len(measured)
    daggers = sum(cell.original.endswith("†") for cell in measured)
    out.print(
        f"{len(measured) - len(different)} of {len(measured)} cells equal ({daggers} of them † measured on the"
        " original for this note),"
        f" {len(different)} different; {unmeasured} more of ours alone; {spent:.0f} s CPU"
    )
    return all(cell.reason for cell in different)


@click.command()
@click.option(
    "--quick", is_flag=True, help="Small networks only, and no figures: some seconds instead of some minutes."
)
@click.option(
    "-o",
    "--output",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(__file__).parent,
    show_default="beside this file",
    help="Where figure5 and figure6 are written.",
)
def main(quick: bool, folder: Path) -> None:
    """Our value beside the original's, cell by cell, and the paper's figures 5 and 6."""
    start = time.process_time()
    with Progress(
        TextColumn("{task.description}"), TimeElapsedColumn(), console=Console(stderr=True), transient=True
    ) as bar:
        task = bar.add_task("")
        result = reproduce(quick=quick, progress=lambda what: bar.update(task, description=what))
    out = Console(width=220, highlight=False)  # a narrower terminal wraps lines; nothing is cut off
    print_cells(out, result.cells)
    if not quick:
        folder.mkdir(parents=True, exist_ok=True)
        for name, title, lines, draw in (
            ("figure5", "Figure 5, ResNet", result.lines5, figure5),
            ("figure6", "Figure 6, LSTM", result.lines6, figure6),
        ):
            print_lines(out, title, lines)
            save_figure(draw(lines), folder, name)
    if not print_summary(out, result, time.process_time() - start):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
