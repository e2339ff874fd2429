"""How memory grows with depth, as a figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from planner.errors import PlannerError
from planner.text import shortened
from planner.views.drawing import COLOURS, FAINT, INK, MARKERS, legend_below, styled, unit_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@styled
def depth_scaling(peaks: Mapping[str, Sequence[tuple[int, int]]], *, title: str = "memory and depth") -> Figure:
    """Memory against depth on logarithmic scales, one line a strategy, with guides that grow as n, sqrt n and log n.

    A guide begins where the line of most memory does, so that a line parallel to it grows as it says.

    Args:
        peaks: by strategy, (layers, bytes) of models of growing depth.
        title: of the figure.
    Raises:
        PlannerError: no strategy has a point, or a number is below 1.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullFormatter

    points = [point for line in peaks.values() for point in line]
    if not points or min(map(min, points)) < 1:
        raise PlannerError("depth_scaling needs (layers, bytes) of at least one model, each number 1 or more")
    unit_bytes, unit = unit_of(max(nbytes for _, nbytes in points))
    figure = Figure(figsize=(8.0, 5.0), layout="constrained")
    axes = figure.add_subplot()
    least, most = min(layers for layers, _ in points), max(layers for layers, _ in points)
    start = max(nbytes for layers, nbytes in points if layers == least) / unit_bytes
    depths = [least * (most / least) ** (k / 50) for k in range(51)]
    guides: dict[str, Callable[[float], float]] = {"n": float, "sqrt n": math.sqrt, "log n": math.log1p}
    for name, grows in guides.items():
        memory = [start * grows(n) / grows(least) for n in depths]
        axes.plot(depths, memory, color=FAINT, linewidth=1.0, linestyle=(0, (4, 3)))
        shift: dict[str, Any] = {"xytext": (4, 0), "textcoords": "offset points", "va": "center", "fontsize": 9}
        axes.annotate(name, (depths[-1], memory[-1]), color=FAINT, **shift)
    for place, (strategy, line) in enumerate(peaks.items()):
        style: dict[str, Any] = {"color": COLOURS[place % len(COLOURS)], "marker": MARKERS[place % len(MARKERS)]}
        ordered = sorted(line)
        memory = [nbytes / unit_bytes for _, nbytes in ordered]
        axes.plot([layers for layers, _ in ordered], memory, label=shortened(strategy, 40), **style)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:,.4g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("layers")
    axes.set_ylabel(f"memory ({unit})")
    axes.grid(True)
    axes.set_title(shortened(title, 60), loc="left", color=INK)
    legend_below(figure, len(peaks))
    return figure
