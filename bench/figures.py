"""The figure of a suite of plans: overhead against arena, one panel a graph."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bench.results import GraphRow, PlanRow, Results
from planner.units import format_bytes
from planner.views.drawing import COLOURS, FAINT, INK, MARKERS, STYLE, ZONE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def small_multiples(results: Results, *, top: float | None = None) -> Figure:
    """A panel a graph: arena as a share of keep-all's against extra cost, one line a strategy.

    Args:
        top: upper end of the overhead axis in %; plans above it are named in words. None: nine tenths fit below it.
    """
    from matplotlib.figure import Figure

    rows = [row for row in results.rows if isinstance(row, PlanRow) and row.overhead is not None]
    graphs = {row.graph: row for row in results.rows if isinstance(row, GraphRow)}
    names = list(dict.fromkeys(row.strategy for row in rows))
    top = top or _top(rows)
    with _style():
        columns = min(3 if len(graphs) % 3 == 0 or len(graphs) > 4 else 2, len(graphs))
        lines = -(-len(graphs) // columns)
        figure = Figure(figsize=(3.7 * columns, 3.0 * lines + 0.5), layout="constrained")
        axes = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
        for panel, (name, graph) in zip(axes.flat, graphs.items(), strict=False):
            _panel(panel, graph, [row for row in rows if row.graph == name], names, top)
        for panel in list(axes.flat)[len(graphs) :]:
            panel.set_visible(False)
        for panel in axes[-1]:
            panel.set_xlabel("arena, share of the one without recomputation")
        for panel in axes[:, 0]:
            panel.set_ylabel("extra cost over no recomputation")
        handles, labels = axes.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
        return figure


def rendered(figure: Figure, suffix: str) -> bytes:
    """The content of a .svg or .png file; no date and no random ids, and small."""
    content = io.BytesIO()
    metadata: dict[str, Any] = {"Date": None, "Creator": "planner"} if suffix == ".svg" else {"Software": None}
    with _style():
        figure.savefig(content, format=suffix[1:], dpi=110, metadata=metadata)
    return content.getvalue()


@contextmanager
def _style() -> Iterator[None]:
    import matplotlib.style

    with matplotlib.style.context(["default", STYLE]):
        yield


def _top(rows: list[PlanRow]) -> float:
    ordered = sorted(100 * (row.overhead or 0.0) for row in rows)
    return 1.2 * ordered[int(0.9 * (len(ordered) - 1))] if ordered else 1.0


def _panel(axes: Axes, graph: GraphRow, rows: list[PlanRow], names: list[str], top: float) -> None:
    """Steps: from one plan's arena to the next this is the cheapest plan found; keep-all at 100 %."""
    from matplotlib.ticker import FuncFormatter

    for place, name in enumerate(names):
        found = [(100 * row.share, 100 * (row.overhead or 0.0)) for row in rows if row.strategy == name]
        points = _front([*found, (100.0, 0.0)] if found else [])
        wider = min(place, 4)
        axes.step(
            [share for share, _ in points],
            [overhead for _, overhead in points],
            where="post",
            label=name,
            color=COLOURS[place % len(COLOURS)],
            marker=MARKERS[place % len(MARKERS)],
            linewidth=1.1 + 0.7 * wider,
            markersize=4.5 + 1.0 * wider,
            markeredgecolor="white",
            markeredgewidth=0.6,
            zorder=4 - place / len(names),
        )
    _above(axes, rows, top)
    low = 100 * graph.peak_lower_bound / graph.keep_all.arena_bytes
    axes.axvspan(0, low, facecolor=ZONE, hatch="///", edgecolor="#D5D5D5", linewidth=0, zorder=1)
    axes.set_xlim(0, 103)
    axes.set_ylim(-0.03 * top, top)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda percent, _: f"{percent:g} %"))
    axes.grid(True)
    axes.set_axisbelow(True)
    axes.set_title(graph.graph, loc="left", fontsize=10, color=INK, pad=16)
    facts = f"{graph.ops:,} ops, no recomputation {format_bytes(graph.keep_all.arena_bytes)}, {graph.scope}"
    axes.annotate(
        facts, (0, 1), xycoords="axes fraction", xytext=(0, 4), textcoords="offset points", fontsize=8, color=FAINT
    )


def _front(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Less memory only for more cost."""
    front: list[tuple[float, float]] = []
    for share, overhead in sorted(points):
        if not front or overhead < front[-1][1]:
            front.append((share, overhead))
    return front


def _above(axes: Axes, rows: list[PlanRow], top: float) -> None:
    """What lies above the axes, in words."""
    above: dict[tuple[float, int], dict[str, None]] = {}
    for row in rows:
        if 100 * (row.overhead or 0.0) > top:
            above.setdefault((round(100 * row.share, 1), round(100 * (row.overhead or 0.0))), {})[row.strategy] = None
    text = "\n".join(
        f"↑ {', '.join(names)}: {share:g} % at +{overhead} %" for (share, overhead), names in sorted(above.items())
    )
    if text:
        box = {"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": "none"}
        axes.text(
            0.99, 0.97, text, transform=axes.transAxes, ha="right", va="top", fontsize=8, color=INK, bbox=box, zorder=5
        )
