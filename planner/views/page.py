"""One page for a browser with no network: what a plan holds when, where and for whom, to search and to click on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Final

import msgspec

from planner.analysis.roles import COMPONENTS, roles
from planner.errors import PlannerError
from planner.schedule import keep_all
from planner.units import counted, format_bytes
from planner.views.course import WORDS, Course
from planner.views.drawing import unit_of
from planner.views.plan_figures import COLOUR_OF

if TYPE_CHECKING:
    from planner.graph import Graph, Op
    from planner.plan import Plan
    from planner.planning.curve import Curve

_COLUMNS: Final = 600
_MOST_BUFFERS: Final = 1500  # drawn in the arena map, those of most bytes times steps


def page(
    plan: Plan,
    *,
    curve: Curve | None = None,
    explained: Mapping[str, Sequence[str]] | None = None,
    plan_file: str = "PLAN",
) -> bytes:
    """The page, whole in one file: it asks for nothing else, and its own policy forbids it to.

    Args:
        curve: the trade-off of the same graph, for a chart of its own.
        explained: sentences by tensor, shown where it is chosen; of others the page has the command to copy.
        plan_file: the plan's file, for that command.
    Raises:
        PlannerError: no jinja2 or plotly, or the curve of another graph.
    """
    try:
        from jinja2 import Environment
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise PlannerError("a page needs jinja2 and plotly: pip install jinja2 plotly") from None
    if curve is not None and curve.fingerprint != plan.graph.fingerprint:
        raise PlannerError(f"the curve is of another graph ({curve.graph!r}) than the plan ({plan.graph.name!r})")
    facts, drawn = _facts(plan)
    facts |= {"curve": None if curve is None else _curve(curve), "explained": dict(explained or {})}
    facts["plan_file"] = quote(plan_file)
    escaped = msgspec.json.encode(facts).decode().replace("<", "\\u003c")
    template = Environment(autoescape=True).from_string(Path(__file__).with_name("page.html").read_text("utf-8"))
    return template.render(
        title=plan.graph.name,
        verdict=plan.report.verdict,
        report=str(plan.report),
        arena_note=drawn,
        has_curve=curve is not None,
        facts=escaped,
        plotly=get_plotlyjs(),
    ).encode()


def largest_at_peak(plan: Plan, count: int) -> list[str]:
    """The tensors that take most at the peak, largest first, by the names that the page has; weights are none."""
    course = Course(plan.graph, plan.schedule, plan.memory)
    step = course.trace.peak_step
    held = [h for h in course.stretches if h.start <= step < h.end and h.component != "workspace"]
    return [each.name for each in sorted(held, key=lambda each: (-each.nbytes, each.name))[:count]]


def _facts(plan: Plan) -> tuple[dict[str, Any], str]:
    """What the page's script reads, and a note on what the arena map leaves out ("" without offsets)."""
    graph, course = plan.graph, Course(plan.graph, plan.schedule, plan.memory)
    kept = Course(graph, keep_all(graph), plan.memory)
    row_of = {op.name: row for row, op in enumerate(graph.ops)}
    order = [row_of[name] for name in course.ops]
    tensors, place = _tensors(plan, course, row_of, order)
    columns, baseline = course.columns(_COLUMNS), kept.columns(_COLUMNS)
    arena, note = _arena(plan, place)
    return {
        "unit": unit_of(max(course.trace.peak_bytes, kept.trace.peak_bytes)),
        "peak": {"step": course.trace.peak_step, "bytes": course.trace.peak_bytes},
        "budget": None if plan.budget is None else plan.memory.live_bytes(plan.budget),
        "cost": kept.trace.cost,
        "components": [WORDS[component] for component in COMPONENTS],
        "colours": dict(COLOUR_OF),
        "timeline": {
            "steps": columns.tolist(),
            "bands": {name: row.tolist() for name, row in course.bands(columns).items()},
            "baseline_steps": baseline.tolist(),
            "baseline": [kept.trace.timeline_bytes[step] for step in baseline.tolist()],
        },
        "order": [row - before for before, row in pairwise([0, *order])],
        **_ops(graph),
        "tensors": tensors,
        "arena": arena,
    }, note


def _ops(graph: Graph) -> dict[str, list[Any]]:
    """[end of the name, module, type, phase, cost] of each op, the last four as rows of `words`.

    A name begins with its module, as most do, or stands after "=" where it does not. That of a weight, which is in no
    module, may begin with one all the same, and then stands after "~": names are most of the page.
    """
    words: dict[Any, int] = {None: 0}
    modules = {op.module for op in graph.ops if op.module}
    rows: list[list[Any]] = []
    for op in graph.ops:
        base, mark = op.module, ""
        if base is None:
            base = next((module for module in _prefixes(op.name) if module in modules), None)
            mark = "~"
        end = f"={op.name}" if base is None or not op.name.startswith(base) else mark + op.name[len(base) :]
        facts = (op.module if end[:1] == "=" else base, op.op, op.phase, float(f"{op.cost:.4g}"))
        rows.append([end, *(words.setdefault(fact, len(words)) for fact in facts)])
    return {"words": list(words), "ops": rows}


def _prefixes(name: str) -> Iterator[str]:
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _tensors(
    plan: Plan, course: Course, row_of: Mapping[str, int], order: Sequence[int]
) -> tuple[list[list[Any]], dict[tuple[str, bool], int]]:
    """[op, name, component, bytes, lives ...] of whatever takes bytes, and its row.

    The name is 0 where it is the op's, and what follows the op's name where it begins with that. A life is three
    numbers: its start, counted from that of the life before; its steps; and 0 if it ends with its last reader, 1 if the
    next op writes in its place, 2 if it stays to the end. A resident has none.
    """
    graph, component = plan.graph, roles(plan.graph)
    takers = {(step, graph.storage_root[source]) for step, _, source in course.trace.inplace_taken}
    stays = {graph.storage_root[value] for value in graph.outputs}
    rows: list[list[Any]] = []
    place: dict[tuple[str, bool], int] = {}

    def add(op: Op, name: str, kind: str, nbytes: int) -> None:
        scratch = kind == "workspace"
        place[name, scratch] = len(rows)
        shown = f"={op.name} (workspace)" if scratch else f"={name}"
        if not scratch and name.startswith(op.name):
            shown = name[len(op.name) :]
        rows.append([row_of[op.name], shown or 0, COMPONENTS.index(kind), nbytes])

    for op in (op for op in graph.ops if op.resident):
        for tensor in op.outputs:
            nbytes = plan.memory.round_up(tensor.nbytes) if plan.memory.scope == "total" else 0
            add(op, tensor.name, component[tensor.name], nbytes)
    for held in course.stretches:
        scratch = held.component == "workspace"
        if (held.name, scratch) not in place:
            op = graph.op_named[held.name] if scratch else graph.producer[held.name]
            add(op, held.name, held.component, held.nbytes)
        taken = (held.end, held.name) in takers and not scratch
        how = 1 if taken else 2 if held.end == len(order) and held.name in stays else 0
        rows[place[held.name, scratch]].append([held.start, held.end - held.start, how])
    before = 0
    for row in rows:
        lives = row[4:]
        del row[4:]
        for start, steps, how in lives:
            row += [start - before, steps, how]
            before = start
    return rows, place


def _arena(plan: Plan, place: Mapping[tuple[str, bool], int]) -> tuple[list[list[int]], str]:
    """[row of the tensor, offset, bytes, start, end] of the buffers that are drawn, and a note on them."""
    if plan.allocation is None:
        return [], ""
    buffers = plan.allocation.buffers
    drawn = sorted(buffers, key=lambda buffer: -buffer.nbytes * (buffer.end - buffer.start))[:_MOST_BUFFERS]
    low = plan.allocation.resident_bytes
    rows = [[place[b.value, b.workspace], low + b.offset, b.nbytes, b.start, b.end] for b in drawn]
    below = f"; the {format_bytes(low)} below are weights and inputs" if low else ""
    if len(drawn) == len(buffers):
        return rows, f"{counted(len(buffers), 'buffer')}{below}."
    areas = [sum(b.nbytes * (b.end - b.start) for b in some) for some in (drawn, buffers)]
    share = f"{100 * areas[0] / areas[1]:.1f} % of the bytes held over all steps"
    return rows, f"The {len(drawn):,} largest of {len(buffers):,} buffers, {share}{below}."


def _curve(curve: Curve) -> dict[str, Any]:
    """The points of each strategy, and the proven bound, as the script draws them."""
    lines = []
    for strategy in curve.strategies:
        plans = {(p.arena_bytes, p.overhead) for p in curve.of(strategy) if p.arena_bytes is not None}
        memory = [curve.memory.needed_bytes(arena or 0) for arena, _ in sorted(plans)]
        lines.append({"strategy": strategy, "memory": memory, "overhead": [100 * (o or 0) for _, o in sorted(plans)]})
    proven = [point for point in curve.best if point.cost_lower_bound is not None]
    overheads = [100 * curve.overhead_lower_bound(point) for point in proven]
    return {"lines": lines, "bound": {"memory": [point.budget for point in proven], "overhead": overheads}}
