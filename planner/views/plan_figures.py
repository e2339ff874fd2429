"""A plan in figures: memory over time, where every buffer lies, and which ops run again when."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from planner.analysis.roles import roles
from planner.errors import PlannerError
from planner.schedule import keep_all
from planner.text import shortened
from planner.units import counted, format_bytes
from planner.views.course import WORDS, Course
from planner.views.drawing import COLOURS, FAINT, INK, above, legend_below, styled, unit_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from planner.plan import Plan

#: What stays is grey, what passes has a colour, activations the one seen first.
COLOUR_OF: Final[Mapping[str, str]] = MappingProxyType({
    "weights": "#9A9A9A", "master weights": "#B4B4B4", "optimizer state": "#7D7D7D", "inputs": "#CFCFCF",
    "weight copies": "#E3DCC8", "weight gradients": COLOURS[2], "activations": COLOURS[0],
    "activation gradients": COLOURS[5], "loss": COLOURS[3], "workspace": COLOURS[4], "other": "#F0E442",
})  # fmt: skip
_COLUMNS: Final = 1200
_MOST_SHAPES: Final = 3000  # of one kind in a figure; above it they are drawn as a bitmap inside the .svg or .pdf


@styled
def memory_timeline(plan: Plan) -> Figure:
    """Memory over the steps of a plan in bands by component, beside that without recomputation, and the budget."""
    course = Course(plan.graph, plan.schedule, plan.memory)
    kept = Course(plan.graph, keep_all(plan.graph), plan.memory)
    unit_bytes, unit = unit_of(max(course.trace.peak_bytes, kept.trace.peak_bytes))
    figure, axes = _page(plan, f"memory ({unit})")
    columns = course.columns(_COLUMNS)
    if len(columns):
        bands = course.bands(columns)
        heights = [row / unit_bytes for row in bands.values()]
        left = np.append(columns, len(course.ops))
        left[0] = 0
        stacked = [np.append(row, row[-1]) for row in heights]
        axes.stackplot(left, stacked, step="post", labels=list(bands), colors=[COLOUR_OF[of] for of in bands], lw=0)
        baseline = kept.columns(_COLUMNS)
        line: dict[str, Any] = {"color": INK, "linewidth": 1.1, "label": "no recomputation"}
        timeline = np.array(kept.trace.timeline_bytes)[baseline] / unit_bytes
        axes.step(np.append(baseline, len(kept.ops)), np.append(timeline, timeline[-1]), where="post", **line)
        peak = course.trace.peak_bytes / unit_bytes
        axes.plot([course.trace.peak_step], [peak], marker="v", color=INK, markersize=6, linestyle="none")
    _budget(axes, plan, unit_bytes)
    axes.set_ylim(0, 1.08 * max(kept.trace.peak_bytes, course.trace.peak_bytes, plan.budget or 0) / unit_bytes or 1)
    axes.set_xlim(0, max(len(course.ops), len(kept.ops), 1))
    report = plan.report
    said = f"peak {format_bytes(report.plan.peak_bytes)} at op {shortened(str(report.peak_op), 40)}"
    above(axes, 1.0, 4, f"{said}; without recomputation {format_bytes(report.keep_all.peak_bytes)}", "right", INK)
    _legend(figure, axes)
    return figure


@styled
def arena_map(plan: Plan) -> Figure:
    """Where every buffer lies in the arena, and when; what no buffer uses is hatched.

    Raises:
        PlannerError: a plan with no offsets.
    """
    from matplotlib.collections import PolyCollection
    from matplotlib.patches import Rectangle

    if plan.allocation is None:
        raise PlannerError("a plan with no offsets (allocator none) has no arena to draw; plan it with an allocator")
    arena = plan.allocation
    unit_bytes, unit = unit_of(arena.arena_bytes)
    steps, component = len(plan.schedule.computes), roles(plan.graph)
    figure, axes = _page(plan, f"place in the arena ({unit})")
    hole: dict[str, Any] = {"facecolor": "white", "edgecolor": "#D8D8D8", "hatch": "////", "linewidth": 0}
    axes.add_patch(Rectangle((0, 0), steps, arena.arena_bytes / unit_bytes, zorder=0, **hole))
    shapes: dict[str, list[list[tuple[float, float]]]] = {}
    if arena.resident_bytes:
        height = arena.resident_bytes / unit_bytes
        axes.add_patch(Rectangle((0, 0), steps, height, facecolor=COLOUR_OF["weights"], label="weights and inputs"))
    for buffer in arena.buffers:
        of = "workspace" if buffer.workspace else WORDS[component[buffer.value]]
        low = (arena.resident_bytes + buffer.offset) / unit_bytes
        high, start, end = low + buffer.nbytes / unit_bytes, buffer.start, buffer.end
        shapes.setdefault(of, []).append([(start, low), (end, low), (end, high), (start, high)])
    few = len(arena.buffers) < 500  # of more, white edges would cover the buffers
    for of in WORDS.values():
        if of in shapes:
            edge: dict[str, Any] = {"edgecolors": "white", "linewidths": 0.3 if few else 0.0}
            edge["rasterized"] = len(shapes[of]) > _MOST_SHAPES
            axes.add_collection(PolyCollection(shapes[of], facecolors=COLOUR_OF[of], label=of, **edge))
    axes.set_xlim(0, max(steps, 1))
    axes.set_ylim(0, 1.04 * arena.arena_bytes / unit_bytes or 1)
    lies = f"{counted(len(arena.buffers), 'buffer')} in {format_bytes(arena.arena_bytes)}"
    above(axes, 1.0, 4, f"{lies}, placed by {shortened(arena.allocator, 40)}", "right", INK)
    _legend(figure, axes)
    return figure


@styled
def recompute_strip(plan: Plan) -> Figure:
    """Which op runs at which step: first runs on the diagonal, runs again in colour."""
    place = {op.name: row for row, op in enumerate(op for op in plan.graph.ops if not op.resident)}
    rows = np.array([place[op] for op in plan.schedule.computes], dtype=np.int64)
    steps = np.arange(len(rows))
    first = np.zeros(len(rows), dtype=bool)
    first[np.unique(rows, return_index=True)[1]] = True
    figure, axes = _page(plan, "op, in the program's order")
    size = float(np.clip(2000 / max(len(rows), 1), 1.0, 40.0))
    for chosen, colour, label in ((first, FAINT, "first run"), (~first, COLOURS[1], "run again")):
        style: dict[str, Any] = {"s": size, "color": colour, "linewidths": 0, "rasterized": chosen.sum() > _MOST_SHAPES}
        axes.scatter(steps[chosen], rows[chosen], **style)
        axes.scatter([], [], s=30, color=colour, label=f"{label} ({chosen.sum():,})")  # in the legend as large as text
    axes.set_xlim(0, max(len(rows), 1))
    axes.set_ylim(max(len(place), 1), -1)
    above(axes, 1.0, 4, f"{counted(plan.report.recomputed_ops, 'op')} recomputed", "right", INK)
    _legend(figure, axes)
    return figure


def _page(plan: Plan, ylabel: str) -> tuple[Figure, Axes]:
    """A page with its title and axes."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    figure = Figure(figsize=(8.0, 5.0), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel("step")
    axes.set_ylabel(ylabel)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:,g}"))
    axes.set_title(shortened(plan.graph.name, 60), loc="left", pad=38, color=INK)
    report = plan.report
    said = f"{counted(report.ops, 'op')} · strategy {shortened(report.strategy, 30)} · {report.extra_runs:,} runs again"
    above(axes, 0.0, 23, f"{said}, {100 * report.overhead:+.2f} % cost", "left", FAINT)
    return figure, axes


def _budget(axes: Axes, plan: Plan, unit_bytes: int) -> None:
    """A line at what the budget leaves for the arena."""
    if plan.budget is None:
        return
    left = plan.memory.live_bytes(plan.budget)
    label = f"budget {shortened(plan.report.budget_text, 30)}" + (" less reserve" if left < plan.budget else "")
    axes.axhline(left / unit_bytes, color=COLOURS[1], linestyle=(0, (5, 3)), linewidth=1.3, label=label)


def _legend(figure: Figure, axes: Axes) -> None:
    entries = len(axes.get_legend_handles_labels()[1])
    if entries:
        legend_below(figure, entries)
