"""Results as Markdown, and two results side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

from bench.measure import LEAST
from bench.overhead_table import overhead_lines
from bench.results import ExplainRow, GraphRow, Measure, PackRow, PeerRow, PlanRow, ProcessRow, Results, TargetRow
from planner.units import format_bytes

#: Plans below this are left out of the table of CPU seconds.
QUICK_SECONDS = 0.1


def table(results: Results) -> str:
    """Everything in a run, as Markdown."""
    parts = [
        _targets([row for row in results.rows if isinstance(row, TargetRow)]),
        _overheads(results)
        if any(isinstance(row, PlanRow) and row.limit_seconds for row in results.rows)
        else _plans(results),
        *_packings(results),
        _graphs([row for row in results.rows if isinstance(row, GraphRow)]),
        _seconds([row for row in results.rows if isinstance(row, PlanRow)]),
        _processes([row for row in results.rows if isinstance(row, ProcessRow)]),
        _explanations([row for row in results.rows if isinstance(row, ExplainRow)]),
        _footer(results),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _targets(rows: list[TargetRow]) -> str:
    if not rows:
        return ""
    shown = []
    for row in rows:
        if row.measured is None:
            measured, gap = "no plan", "no plan"
        else:
            measured = _amount(row.measured, row.unit)
            gap = "" if row.hit else f"{_amount(row.measured - row.limit, row.unit)} over"
        sign = "<" if row.strict else "<="
        verdict = "hit" if row.hit else f"**missed**: {gap or 'equal'}"
        shown.append((row.claim, str(row.issue), f"{sign} {_amount(row.limit, row.unit)}", measured, verdict))
    return _markdown(("target", "issue", "limit", "measured", "verdict"), shown)


def _amount(value: float, unit: str) -> str:
    if unit == "B":
        return format_bytes(int(value))
    return f"{value:.2f} {unit}"


def _overheads(results: Results) -> str:
    return _markdown(*overhead_lines(results))


def _plans(results: Results) -> str:
    """One line a budget, one column a strategy or peer; the cheapest of ours is bold."""
    plans = [row for row in results.rows if isinstance(row, PlanRow)]
    peers = [row for row in results.rows if isinstance(row, PeerRow)]
    if not plans:
        return ""
    names = [*dict.fromkeys(row.peer for row in peers), *dict.fromkeys(row.strategy for row in plans)]
    lines = []
    several = len({row.allocator for row in plans}) > 1
    for graph, allocator, budget in dict.fromkeys((row.graph, row.allocator, row.budget) for row in plans):
        here = [row for row in plans if (row.graph, row.allocator, row.budget) == (graph, allocator, budget)]
        cells = {row.strategy: _cell(row) for row in here}
        fits = [row for row in here if row.overhead is not None]
        if len(here) > 1 and fits:
            best = min(fits, key=_merit)
            cells.update({row.strategy: f"**{_cell(row)}**" for row in fits if _merit(row) == _merit(best)})
        for peer in peers:
            if (peer.graph, peer.budget) == (graph, budget):
                cells[peer.peer] = _peer_cell(peer)
        packing = [allocator or "live bytes"] if several else []
        shown = (
            budget
            if here[0].budget_bytes is None or not budget.endswith("l")
            else f"{budget}, {format_bytes(here[0].budget_bytes)}"
        )
        lines.append((graph, shown, *packing, *(cells.get(name, "") for name in names)))
    return _markdown(("graph", "budget", *(["allocator"] if several else []), *names), lines)


def _merit(row: PlanRow) -> float:
    """What is compared in a line: the arena where bytes were searched for, else the cost; rounded as it is shown."""
    return round(row.share, 4) if row.budget_bytes is None else round(row.overhead or 0.0, 4)


def _cell(row: PlanRow) -> str:
    if row.overhead is None:
        return f"none (least {100 * row.share:.1f} %)"
    cost = f"+{100 * row.overhead:.2f} %"
    return cost if row.budget_bytes is not None else f"{100 * row.share:.1f} % at {cost}"


def _peer_cell(row: PeerRow) -> str:
    return "none" if row.overhead is None else f"+{100 * row.overhead:.2f} %"


def _graphs(rows: list[GraphRow]) -> str:
    if not rows:
        return ""
    phases = tuple(dict.fromkeys(phase for row in rows for phase in row.cpu))
    head = (
        "graph",
        "ops",
        "scope",
        "allocator",
        "keep-all peak",
        "arena",
        "peak bound",
        *(f"{phase}, s" for phase in phases),
    )
    return _markdown(
        head,
        [
            (
                row.graph,
                f"{row.ops:,}",
                row.scope,
                row.allocator or "live bytes",
                format_bytes(row.keep_all.peak_bytes),
                format_bytes(row.keep_all.arena_bytes),
                format_bytes(row.peak_lower_bound),
                *(f"{row.cpu[phase]:.3f}" for phase in phases),
            )
            for row in rows
        ],
    )


def _seconds(rows: list[PlanRow]) -> str:
    """CPU of a plan, by graph and strategy: the median over budgets, and where it goes; nothing of what is too quick to
    matter.
    """
    lines = []
    for graph, strategy, allocator in dict.fromkeys((row.graph, row.strategy, row.allocator) for row in rows):
        here = [
            row for row in rows if (row.graph, row.strategy, row.allocator) == (graph, strategy, allocator) and row.cpu
        ]
        # the rest are many searches
        here = [row for row in here if row.budget_bytes is not None or row.budget == LEAST]
        if not here or max(row.plan_seconds for row in here) < QUICK_SECONDS:
            continue
        phases = [median(row.cpu.get(phase, 0.0) for row in here) for phase in ("search", "pack", "judge")]
        whole = [row.plan_seconds for row in here]
        files = [
            next((f"{row.cpu[phase]:.3f}" for row in here if phase in row.cpu), "")
            for phase in ("save", "load", "verify")
        ]
        spread = (median(whole), max(whole))
        lines.append((graph, strategy, allocator or "live bytes", *(f"{s:.3f}" for s in (*spread, *phases)), *files))
    head = (
        "graph",
        "strategy",
        "allocator",
        "plan, s",
        "slowest, s",
        "search",
        "pack",
        "judge",
        "save",
        "load",
        "verify",
    )
    return _markdown(head, lines) if lines else ""


def _packings(results: Results) -> tuple[str, str]:
    """What was packed, one line a run; and the rules that place each buffer once, one line an instance."""
    rows = [row for row in results.rows if isinstance(row, PackRow)]
    peers = {(row.graph, row.budget): row for row in results.rows if isinstance(row, PeerRow)}
    runs, rules = [], dict[str, dict[str, str]]()
    for row in rows:
        above = _above(row.arena_bytes, row.live_bytes)
        if row.asked == row.rule:
            rules.setdefault(row.instance, {})[row.rule] = f"{above}, {row.cpu['pack']:.3f} s"
            continue
        peer = peers.get((row.instance, row.asked))
        proven = (
            "smallest"
            if row.arena_bytes == row.bound_bytes
            else f"within {_above(row.arena_bytes, row.bound_bytes)[1:]}"
        )
        runs.append(
            (
                row.instance,
                row.asked,
                f"{row.buffers:,}",
                f"{row.live_bytes}",
                f"{row.arena_bytes}",
                above,
                proven,
                row.rule,
                f"{row.nodes:,}",
                *(f"{row.cpu[phase]:.3f}" if phase in row.cpu else "" for phase in ("plan", "pack")),
                f"{peer.cpu['pack']:.2f}" if peer else "",
            )
        )
    head = (
        "buffers of",
        "asked",
        "buffers",
        "live, bytes",
        "arena, bytes",
        "above live",
        "proven",
        "by",
        "nodes",
        "plan, s",
        "pack, s",
    )
    names = tuple(dict.fromkeys(rule for row in rules.values() for rule in row))
    return (
        _markdown((*head, "MiniMalloc, s"), runs) if runs else "",
        _markdown(("one pass over", *names), [(name, *row.values()) for name, row in rules.items()]) if rules else "",
    )


def _above(nbytes: int, base: int) -> str:
    return f"+{100 * (nbytes / base - 1):.3f} %" if nbytes > base else "+0 %"


def _processes(rows: list[ProcessRow]) -> str:
    lines = [(row.what, f"{row.cpu_seconds:.3f}", f"{row.ratio:.1f}") for row in rows]
    return _markdown(("command", "CPU s", "times a bare interpreter"), lines) if lines else ""


def _explanations(rows: list[ExplainRow]) -> str:
    head = ("graph", "budget", "kept", "recomputed", "numbers", "wrong", "no such plan", "better plan offered",
            "peak by owner", "a tensor, CPU s", "slowest")  # fmt: skip
    lines = []
    for row in rows:
        counts = (row.kept, row.recomputed, row.numbers, len(row.wrong), row.refused, row.better)
        seconds = (f"{row.cpu['a tensor']:.2f}", f"{row.cpu['slowest']:.2f}")
        lines.append((row.graph, row.budget, *map(str, counts), f"{100 * row.owned:.1f} %", *seconds))
    wrong = [f"- {row.graph}: {said}" for row in rows for said in row.wrong]
    return "\n".join([_markdown(head, lines), *([""] if wrong else []), *wrong]) if rows else ""


def _footer(results: Results) -> str:
    machine = results.machine
    versions = ", ".join(f"{name} {number}" for name, number in results.versions.items())
    options = ", ".join(f"{name} {value}" for name, value in results.options.items())
    return (
        f"`{results.suite}` at {results.commit or 'no commit'} ({options}). CPU seconds, least of"
        f" {results.options.get('repeat', 1)};"
        f" {machine.processor}, {machine.cores} cores, {format_bytes(machine.memory_bytes)}, {machine.system},"
        f" yardstick {1000 * machine.yardstick_seconds:.1f} ms; {versions}. Most resident memory of the run"
        f" {format_bytes(results.most_resident_bytes)}."
    )


class Change(NamedTuple):
    """One measure of one row in two runs. `ratio` is new to old; CPU by the yardstick of each run. None: only one has
    it.
    """

    key: str
    what: str
    old: float | None
    new: float | None
    ratio: float | None
    flag: str


#: CPU may differ by this factor, and by this many seconds, before it is called slower.
NOISE, LEAST_SECONDS = 1.3, 0.1


def changes(old: Results, new: Results) -> list[Change]:
    """Every measure of both runs; flagged: "worse", "slower", "no longer fits", "now fits", "missed", "gone"."""
    scale = old.machine.yardstick_seconds / new.machine.yardstick_seconds
    before = {(type(row), row.key): row for row in old.rows}
    after = {(type(row), row.key): row for row in new.rows}
    found = []
    for key, row in before.items():
        other = after.get(key)
        if other is None:
            found.append(Change(row.key, "row", None, None, None, "gone"))
            continue
        if isinstance(row, PlanRow) and isinstance(other, PlanRow) and row.status != other.status:
            found.append(
                Change(row.key, "status", None, None, None, "no longer fits" if row.status == "fits" else "now fits")
            )
        if isinstance(row, TargetRow) and isinstance(other, TargetRow):
            missed = row.hit and not other.hit
            found.append(
                Change(
                    row.key,
                    row.unit,
                    row.measured,
                    other.measured,
                    _ratio(row.measured, other.measured),
                    "missed" * missed,
                )
            )
        theirs = {measure.what: measure for measure in other.measures()}
        found += [
            _change(row.key, m, theirs[m.what], 1.0 if m.exact else scale) for m in row.measures() if m.what in theirs
        ]
    return found


def _ratio(old: float | None, new: float | None) -> float | None:
    return new / old if old and new is not None else None


def _change(key: str, old: Measure, new: Measure, scale: float) -> Change:
    value = new.value * scale
    if old.exact:
        flag = "worse" if value > old.value * (1 + 1e-9) else ""
    else:
        flag = "slower" if value > NOISE * old.value and value - old.value > LEAST_SECONDS else ""
    return Change(key, old.what, old.value, value, _ratio(old.value, value), flag)


def regressions(found: list[Change]) -> list[Change]:
    """What a reviewer must see."""
    return [change for change in found if change.flag and change.flag != "now fits"]


def comparison(old: Results, new: Results) -> str:
    """The changes of note as Markdown, flagged ones first, and one line that sums up."""
    found = changes(old, new)
    flagged = [change for change in found if change.flag]
    rest = [c for c in found if not c.flag and c.ratio is not None and _moved(c)]
    lines = [
        (
            c.flag or "better",
            c.key,
            c.what,
            *(_number(value, ".6g") for value in (c.old, c.new)),
            _number(c.ratio, ".3f"),
        )
        for c in (*flagged, *sorted(rest, key=lambda c: c.ratio or 0.0))
    ]
    fresh = len({(type(row), row.key) for row in new.rows} - {(type(row), row.key) for row in old.rows})
    cpu = [c.ratio for c in found if c.ratio is not None and "CPU" in c.what]
    speed = f"; CPU against the yardstick x{median(cpu):.2f} in the median" if cpu else ""
    summary = (
        f"{len(regressions(found))} regressions, {len(rest)} better, {len(found)} measures compared,"
        f" {fresh} rows are new{speed}."
    )
    head = ("", "row", "measure", "old", "new", "ratio")
    return (_markdown(head, lines) + "\n\n" if lines else "") + f"{old.commit} -> {new.commit}: {summary}\n"


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _moved(change: Change) -> bool:
    assert change.ratio is not None
    slack = NOISE if "CPU" in change.what else 1 + 1e-9
    little = "CPU" in change.what and (change.old or 0.0) - (change.new or 0.0) < LEAST_SECONDS
    return change.ratio < 1 / slack and not little
