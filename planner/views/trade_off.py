"""The trade-off of memory and recomputation as a figure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from planner.text import shortened
from planner.views.drawing import COLOURS, FAINT, INK, MARKERS, ZONE, above, legend_below, size_in, styled, unit_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from planner.planning.curve import Curve, Point

#: Overheads up to here, in %, are what people decide by.
READABLE: Final = 15.0


@styled
def trade_off(curve: Curve) -> Figure:
    """Memory against recomputation: one stepped line a strategy, the Pareto front bold, what no plan can reach shaded.

    A line holds from the memory of one plan to that of the next: with that much, this is the cheapest plan found. The
    lower bound holds from one budget down to the next: what is impossible with more memory is impossible with less.
    Steps are not slanted, so that each jump is where a plan needs it. White between bound and front is not known.
    Where the dearest plan would squash what cheap ones cost, the scale is linear up to 15 % and logarithmic above.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    figure = Figure(figsize=(8.0, 5.0), layout="constrained")
    axes = figure.add_subplot()
    unit_bytes, unit = unit_of(curve.memory.needed_bytes(curve.keep_all.arena_bytes))
    top = _top(curve)
    _limits(axes, curve, unit_bytes, unit, top)
    _scale(axes, top)
    _bound(axes, curve, unit_bytes)
    _front(axes, curve, unit_bytes)
    for place in range(len(curve.strategies)):
        _line(axes, curve, place, unit_bytes, top)
    measured = ("memory" if curve.allocator else "live memory") + (" + reserve" if curve.memory.reserve else "")
    axes.set_xlabel(f"{measured} ({unit}{'' if curve.memory.scope == 'total' else ', without weights and inputs'})")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=10, steps=[1, 2, 2.5, 5, 10], integer=unit_bytes == 1))
    axes.set_ylabel("extra cost over no recomputation")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda percent, _: f"{percent:g} %"))
    axes.grid(True)
    axes.set_axisbelow(True)
    axes.set_title(shortened(curve.graph, 60), loc="left", pad=38, color=INK)
    packed = f"allocator {curve.allocator}" if curve.allocator else "live bytes only"
    above(axes, 0.0, 23, f"{curve.ops:,} ops · {packed} · scope {curve.memory.scope}", "left", FAINT)
    legend_below(figure, len(axes.get_legend_handles_labels()[1]))
    return figure


def _scale(axes: Axes, top: float) -> None:
    """Give the overheads between 0 and 15 % half of the height, where others are far above them."""
    from matplotlib.ticker import FixedLocator, NullLocator

    if top <= 2 * READABLE:
        return
    axes.set_ylim(bottom=-0.05 * READABLE)
    axes.set_yscale("symlog", linthresh=READABLE, linscale=0.9 * math.log10(1.2 * top / READABLE))
    ticks = [0, 5, 10, 15, 30, 60, *(per_cent * 10**k for k in range(2, 7) for per_cent in (1, 3))]
    axes.yaxis.set_major_locator(FixedLocator([tick for tick in ticks if tick <= 1.08 * top]))
    axes.yaxis.set_minor_locator(NullLocator())


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
        least = size_in(high_bytes, unit_bytes, unit)
        above(axes, at_high, 4, f"no plan below {least}: no recomputation", "right", INK)
    else:
        above(axes, at_low, 4, f"no plan below {size_in(low_bytes, unit_bytes, unit)}", "left", INK)
        above(axes, at_high, 4, f"no recomputation {size_in(high_bytes, unit_bytes, unit)}", "right", INK)
