"""Figures, by matplotlib's object interface: no window, no global state, and the same bytes for the same curve.

Each function returns a matplotlib `Figure`; `rendered` turns one into a file's content.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, ParamSpec

from planner.errors import PlannerError
from planner.text import shortened
from planner.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from planner.planning.curve import Curve, Point

Drawn = ParamSpec("Drawn")

#: Okabe and Ito's palette, which readers with any colour vision tell apart; markers say the same once more.
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X")
INK, FAINT, ZONE = "#222222", "#767676", "#EDEDED"
STYLE: Final[dict[str, Any]] = {
    "font.family": ["DejaVu Sans", "sans-serif"], "font.size": 10.0,
    "axes.edgecolor": FAINT, "axes.labelcolor": INK, "axes.spines.right": False, "axes.spines.top": False,
    "axes.titlesize": 12.0, "axes.titleweight": "bold",
    "figure.dpi": 100.0, "savefig.dpi": 200.0,
    "grid.color": "#E2E2E2", "grid.linewidth": 0.8, "legend.frameon": False,
    "xtick.color": FAINT, "xtick.labelcolor": INK, "ytick.color": FAINT, "ytick.labelcolor": INK,
    "svg.fonttype": "none",  # text stays text: it can be searched, and read aloud
    "svg.hashsalt": "planner",
    "text.parse_math": False,  # names of nodes and strategies are no formulas
    "pdf.fonttype": 42,
}  # fmt: skip


@contextmanager
def _style() -> Iterator[None]:
    """Draw in our style and give the user's style back afterwards.

    Raises:
        PlannerError: no matplotlib.
    """
    try:
        import matplotlib.style
    except ImportError:
        raise PlannerError("figures need matplotlib: pip install 'sublinear-planner[plot]'") from None
    with matplotlib.style.context(["default", STYLE]):
        yield


def _styled(draw: Callable[Drawn, Figure]) -> Callable[Drawn, Figure]:
    @wraps(draw)
    def in_style(*args: Drawn.args, **kwargs: Drawn.kwargs) -> Figure:
        with _style():
            return draw(*args, **kwargs)

    return in_style


def rendered(figure: Figure, suffix: str) -> bytes:
    """The content of a .svg, .png or .pdf file, without date and random ids: equal figures give equal bytes."""
    metadata: dict[str, dict[str, Any]] = {
        ".svg": {"Date": None, "Creator": "planner"},
        ".png": {"Software": None},
        ".pdf": {"CreationDate": None, "Creator": "planner", "Producer": None},
    }
    content = io.BytesIO()
    with _style():
        figure.savefig(content, format=suffix[1:], metadata=metadata[suffix])
    return content.getvalue()


@_styled
def trade_off(curve: Curve) -> Figure:
    """Memory against recomputation: one stepped line a strategy, the Pareto front bold, what no plan can reach shaded.

    A line holds from the memory of one plan to that of the next: with that much, this is the cheapest plan found. The
    lower bound holds from one budget down to the next: what is impossible with more memory is impossible with less.
    Steps are not slanted, so that each jump is where a plan needs it. White between bound and front is not known.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    figure = Figure(figsize=(8.0, 5.0), layout="constrained")
    axes = figure.add_subplot()
    unit_bytes, unit = _unit(curve.memory.needed_bytes(curve.keep_all.arena_bytes))
    top = _top(curve)
    _limits(axes, curve, unit_bytes, unit, top)
    _bound(axes, curve, unit_bytes)
    _front(axes, curve, unit_bytes)
    for place in range(len(curve.strategies)):
        _line(axes, curve, place, unit_bytes, top)
    measured = ("arena" if curve.allocator else "peak") + (" + reserve" if curve.memory.reserve else "")
    axes.set_xlabel(f"{measured} ({unit}{'' if curve.memory.scope == 'total' else ', residents left out'})")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=10, steps=[1, 2, 2.5, 5, 10], integer=unit_bytes == 1))
    axes.set_ylabel("extra cost over no recomputation")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda percent, _: f"{percent:g} %"))
    axes.grid(True)
    axes.set_axisbelow(True)
    axes.set_title(shortened(curve.graph, 60), loc="left", pad=38, color=INK)
    packed = f"allocator {curve.allocator}" if curve.allocator else "live bytes only"
    _above(axes, 0.0, 23, f"{curve.ops:,} ops · {packed} · scope {curve.memory.scope}", "left", FAINT)
    _legend(figure, len(axes.get_legend_handles_labels()[1]))
    return figure


def _legend(figure: Figure, entries: int) -> None:
    """Put the legend below the axes, in as many columns as fit."""
    for columns in range(entries, 0, -1):
        legend = figure.legend(loc="outside lower center", ncols=columns)
        if columns == 1 or legend.get_window_extent().width < 0.98 * figure.bbox.width:
            return
        legend.remove()


def _above(axes: Axes, where: float, points: float, text: str, side: str, colour: str) -> None:
    """Text above the axes, `points` above their upper edge; `where` is 0 at the left and 1 at the right."""
    above: dict[str, Any] = {"xycoords": "axes fraction", "xytext": (0, points), "textcoords": "offset points"}
    axes.annotate(text, (where, 1.0), **above, ha=side, va="bottom", fontsize=9, color=colour)


def _unit(nbytes: int) -> tuple[int, str]:
    """The IEC unit in which a size reads well."""
    unit = format_bytes(nbytes).split(" ")[1]
    return 1024 ** ("B", "KiB", "MiB", "GiB", "TiB", "PiB").index(unit), unit


def _steps(points: tuple[Point, ...], curve: Curve, unit_bytes: int) -> tuple[list[float], list[float]]:
    """(memory, overhead in %) of the distinct plans among points."""
    plans = {(p.arena_bytes, p.overhead) for p in points if p.arena_bytes is not None and p.overhead is not None}
    ordered = sorted(plans)
    memory = [curve.memory.needed_bytes(arena) / unit_bytes for arena, _ in ordered]
    return memory, [100 * overhead for _, overhead in ordered]


def _top(curve: Curve) -> float:
    """The highest overhead shown, in %: the front's, and of other plans up to twice that."""
    front = max([0.0, *(p.overhead for p in curve.front if p.overhead is not None)])
    plans = max([0.0, *(p.overhead for p in curve.points if p.overhead is not None)])
    bounds = [curve.overhead_lower_bound(p) for p in curve.best if p.cost_lower_bound is not None]
    if not curve.front:
        return 100 * max([0.0, *bounds]) or 1.0
    return 100 * (min(plans, 2 * front) if front else plans) or 1.0


def _front(axes: Axes, curve: Curve, unit_bytes: int) -> None:
    memory, overhead = _steps(curve.front, curve, unit_bytes)
    if memory:
        band: dict[str, Any] = {"color": INK, "alpha": 0.22, "linewidth": 9, "solid_capstyle": "round", "zorder": 2}
        axes.step(memory, overhead, where="post", label="Pareto front", **band)


def _line(axes: Axes, curve: Curve, place: int, unit_bytes: int, top: float) -> None:
    """Draw one strategy; the first lies on top and is thinnest, so that lines that coincide are all seen."""
    wider = min(place, 4)
    strategy = curve.strategies[place]
    points = curve.of(strategy)
    memory, overhead = _steps(points, curve, unit_bytes)
    fits = sum(point.status == "fits" for point in points)
    notes = [] if fits == len(points) else [f"fits {fits} of {len(points)} budgets"]
    notes += [f"up to +{max(overhead):.0f} %"] if max(overhead, default=0.0) > 1.08 * top else []
    label = shortened(strategy, 40) + (f" ({', '.join(notes)})" if notes else "")
    label = f" {label}" if label.startswith("_") else label  # a legend leaves out what begins with an underscore
    sizes: dict[str, Any] = {"linewidth": 1.5 + 0.9 * wider, "markersize": 5.5 + 1.1 * wider, "markeredgewidth": 0.7}
    sizes.update(zorder=4 - place / len(curve.strategies), markeredgecolor="white")
    colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
    axes.step(memory, overhead, where="post", color=colour, marker=marker, label=label, **sizes)


def _bound(axes: Axes, curve: Curve, unit_bytes: int) -> None:
    """The proven lower bound of overhead, a step from each budget down; below it all is shaded as impossible."""
    bounds = [p for p in curve.best if p.cost_lower_bound is not None]
    proven = [(p.budget / unit_bytes, 100 * curve.overhead_lower_bound(p)) for p in bounds]
    if not proven:
        return
    low = curve.least_budget / unit_bytes
    right, bottom = axes.get_xlim()[1], axes.get_ylim()[0]
    memory = [low, *(budget for budget, _ in proven), max(right, proven[-1][0])]
    overhead = [proven[0][1], *(least for _, least in proven), 0.0]
    area = axes.fill_between(memory, overhead, bottom, step="pre", facecolor=ZONE, linewidth=0, zorder=1)
    area.set_gid("impossible")
    style: dict[str, Any] = {"color": INK, "linewidth": 1.1, "zorder": 1.6}
    (line,) = axes.step(memory, overhead, where="pre", label="lower bound (proven)", **style)
    line.set_gid("lower-bound")


def _limits(axes: Axes, curve: Curve, unit_bytes: int, unit: str, top: float) -> None:
    """Mark the memory below which no plan fits, and the memory that no recomputation takes."""
    low_bytes, high_bytes = curve.least_budget, curve.memory.needed_bytes(curve.keep_all.arena_bytes)
    low, high = low_bytes / unit_bytes, high_bytes / unit_bytes
    span = (high - low) or high or 1.0
    left, right = max(0.0, low - 0.1 * span), high + 0.04 * span
    axes.set_xlim(left, right)
    axes.set_ylim(-0.03 * top, 1.08 * top)
    zone = axes.axvspan(left, low, facecolor=ZONE, hatch="///", edgecolor="#D5D5D5", linewidth=0, zorder=1)
    zone.set_gid("infeasible")
    if low - left > 0.03 * (right - left):
        box = {"boxstyle": "round,pad=0.25", "facecolor": ZONE, "edgecolor": "none"}
        centred: dict[str, Any] = {"rotation": 90, "ha": "center", "va": "center", "fontsize": 9}
        axes.text((left + low) / 2, 0.5 * top, "no plan fits", color=FAINT, bbox=box, **centred)
    axes.axvline(low, color=INK, linewidth=1.0, zorder=1.5)
    axes.axvline(high, color=INK, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1.5)
    at_low, at_high = (low - left) / (right - left), (high - left) / (right - left)
    if low_bytes == high_bytes:
        _above(axes, at_high, 4, f"no plan below {_size(high_bytes, unit_bytes, unit)}: no recomputation", "right", INK)
    else:
        _above(axes, at_low, 4, f"no plan below {_size(low_bytes, unit_bytes, unit)}", "left", INK)
        _above(axes, at_high, 4, f"no recomputation {_size(high_bytes, unit_bytes, unit)}", "right", INK)


def _size(nbytes: int, unit_bytes: int, unit: str) -> str:
    """A size in the unit of the axis, or exactly where the unit is too coarse."""
    return format_bytes(nbytes) if unit_bytes == 1 or 10 * nbytes < unit_bytes else f"{nbytes / unit_bytes:.2f} {unit}"
