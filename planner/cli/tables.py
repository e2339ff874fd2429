"""Tables for terminals, by rich; plain text and wide when the output is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from planner.footprint.inventory import Group, Inventory
from planner.footprint.modules import Breakdown, Row
from planner.report import sparkline
from planner.simulator import Trace
from planner.text import counted_on, folded, printable
from planner.units import counted, format_bytes

_NAMED_READERS: Final = 3
_NARROWEST: Final = 16  # characters that the names of readers keep in a narrow terminal
_NAMED_TENSORS: Final = 3
_TOLD: Final = ("path", "stored", "notes")  # what the file line leaves to other lines
_GAP: Final = 2
_TIMES: Final = " x "
_READ_BY: Final = ("read by the backward of", "read by")
_NUMBERS: Final = frozenset({"ops", "params", "FLOPs", "fwd FLOPs", "bwd FLOPs", "cost", "forward", "bytes", "saved"})
_PREFIXES: Final = ("", "k", "M", "G", "T", "P", "E")
#: Columns that go first where a terminal is too narrow for all; saved bytes and their readers stay.
_LESS_WANTED: Final = (
    "cost", "bwd FLOPs", "ops", "op", "forward", "bytes", "output shape", "phase", "fwd FLOPs", "FLOPs", "params",
)  # fmt: skip


def console() -> Console:
    """Standard output; node names are never read as markup, and never wrapped where the output is no terminal."""
    return Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else 160)


def print_breakdown(found: Breakdown, *, by: str, depth: int | None, limit: int, sort: str | None) -> None:
    """The `inspect` command's table: modules, op types, or ops one by one, and the total.

    Args:
        by: "module", "op" (type) or "layer" (one op).
        depth: of modules; None: as deep as `limit` shows whole.
        limit: rows at most, 0 for all; a line counts those left out.
        sort: "order", "bytes", "saved", "flops" or "params"; modules stay inside the module around them. Default: op
            types by bytes, the rest in program order.
    """
    rows = {"module": found.modules, "op": found.operators, "layer": found.ops}[by]
    deepest = max((row.depth for row in rows), default=1)
    if by == "module" and depth is None:
        fitting = [k for k in range(1, deepest + 1) if not limit or sum(row.depth <= k for row in rows) <= limit]
        depth = max(fitting, default=1)
    upper = [row for row in rows if depth is None or row.depth <= depth]
    shown = _sorted(upper, sort or ("bytes" if by == "op" else "order"))
    kept = [row for row in shown if by != "module" or not _is_empty(row)]
    folds = by == "module" and bool(kept)
    cells = _folded(kept, total=found.total) if folds else [_cells(row, by=by, total=found.total) for row in kept]
    left_out = len(cells) - limit if limit and len(cells) > limit else 0
    more = f"... {left_out:,} more rows; --limit 0 shows all" if left_out else ""
    del cells[len(cells) - left_out :]
    width = console().width if sys.stdout.isatty() else None
    lines = _breakdown_lines([*cells, _cells(found.total, by=by, total=found.total)], width=width, more=more)
    if folds and any(_TIMES in next(iter(row.values())) for row in cells):
        lines.append(f"  h0-h10{_TIMES}11 stands for 11 equal neighbours, with the figures of one")
    if depth is not None and depth < deepest:
        deeper = sum(row.depth == depth + 1 for row in rows)
        lines.append(f"  Modules to depth {depth} of {deepest}; --depth {depth + 1} has {deeper:,} rows more")
    console().out("\n".join(lines), highlight=False)


def inventory_verdict(inventory: Inventory) -> str:
    """What a model holds, in a sentence."""
    peak = f"{printable(inventory.graph)} holds {format_bytes(inventory.keep_all_peak_bytes)} at the peak"
    saved = f"{format_bytes(inventory.saved_bytes)} are saved for the backward pass"
    return f"{peak} without recomputation; {saved if inventory.saved_bytes else 'nothing is saved for a backward pass'}"


def print_inventory(inventory: Inventory, *, scope: str) -> None:
    """The `inspect` command's summary."""
    out = console()
    counts = f"{inventory.ops:,} ops · {inventory.values:,} values · {inventory.outputs:,} outputs"
    out.print(f"{printable(inventory.graph)} · {counts}")
    if inventory.source:
        counted_there = (f"{key} {_count(value)}" for key, value in inventory.source.items() if key not in _TOLD)
        out.print(f"  File  {', '.join(counted_there)}")
        for note in inventory.source.get("notes", ()):
            out.print(f"  Note  {printable(note)}")
        for line in _stored_lines(inventory.source.get("stored", {})):
            out.print(line)
    table = _table("", "count", "size", "saved for backward", "cost share")
    total = sum(group.cost for group in inventory.phases) or 1.0
    for title, groups in (("held", inventory.residents), ("phase", inventory.phases)):
        if groups:
            table.add_section()
            table.add_row(Text(title, style="bold"))
            for group in groups:
                _add_group(table, group, total, resident=groups is inventory.residents)
    out.print(table)
    out.print(f"  Saved for backward: {inventory.saved_tensors:,} storages, {format_bytes(inventory.saved_bytes)}")
    at = "" if inventory.keep_all_peak_op is None else f" at op {printable(inventory.keep_all_peak_op)}"
    out.print(f"  Peak without recomputation ({scope}): {format_bytes(inventory.keep_all_peak_bytes)}{at}")
    out.print(f"  Lower bound on memory: no plan's peak is below {format_bytes(inventory.peak_lower_bound)}")
    if inventory.copies is not None:
        out.print(f"  {printable(str(inventory.copies))}")
    out.print(f"  Candidate cuts of the forward pass: {inventory.candidate_cuts:,}")
    dead = ", ".join(map(printable, inventory.dead[:8])) + (" ..." if len(inventory.dead) > 8 else "")
    out.print(f"  Dead ops: {dead or 'none'}")
    if inventory.largest:
        out.print("  Largest storages")
        for name, nbytes in inventory.largest:
            out.print(f"    {format_bytes(nbytes):>11}  {printable(name)}")


def print_trace(trace: Trace, *, name: str) -> None:
    """The `simulate` command's answer."""
    out = console()
    arena = "" if trace.arena_bytes is None else f", {format_bytes(trace.arena_bytes)} with every buffer in its place"
    peak = f"{format_bytes(trace.peak_bytes)} at the peak"
    out.print(f"{printable(name)} is legal: {len(trace.timeline_bytes):,} steps, {peak}{arena}")
    out.print(f"  Cost {trace.cost:g}; {counted(len(trace.recomputed), 'op')} recomputed")
    held = f"weights, inputs and states {format_bytes(trace.resident_bytes)}"
    out.print(f"  Peak at step {trace.peak_step + 1}, op {printable(str(trace.peak_op))}: {held}")
    out.print(f"  Memory {sparkline(trace.timeline_bytes)}")
    for value, nbytes in trace.live_at_peak[:10]:
        out.print(f"    {format_bytes(nbytes):>11}  {printable(value)}")


def _sorted(rows: list[Row], by: str) -> list[Row]:
    """Largest first at every depth, each module followed by what is inside it."""
    if by == "order":
        return rows
    fields = {"bytes": "nbytes", "saved": "saved_bytes", "flops": "flops", "params": "parameter_bytes"}

    def smallest_first(siblings: list[Row]) -> list[Row]:
        return sorted(siblings, key=lambda row: -getattr(row, fields[by]))[::-1]

    inside: dict[int, list[Row]] = {}  # by id of the row around
    around: list[Row] = []
    for row in rows:
        del around[row.depth - 1 :]
        inside.setdefault(id(around[-1]) if around else 0, []).append(row)
        around.append(row)
    found: list[Row] = []
    waiting = smallest_first(inside.get(0, []))
    while waiting:
        found.append(waiting.pop())
        waiting += smallest_first(inside.get(id(found[-1]), []))
    return found


def _is_empty(row: Row) -> bool:
    """True for a module that gives, holds and costs nothing, as a barrier."""
    return row.shape is None and not (row.nbytes or row.parameter_bytes or row.saved_bytes or row.cost)


@dataclass(frozen=True)
class _Module:
    """A row of a module with what is inside it, as neighbours are compared: by what they show beside their names."""

    compared: tuple[tuple[tuple[str, str], ...], ...]
    cells: tuple[dict[str, str], ...] = field(compare=False)
    shared_readers: str = field(compare=False)


def _folded(rows: Sequence[Row], *, total: Row) -> list[dict[str, str]]:
    """The cells of modules; neighbours that count on by one and are equal, inside too, are one row, as h0-h10 x 11."""
    outermost = min(row.depth for row in rows)
    starts = [k for k, row in enumerate(rows) if row.depth == outermost]
    blocks = [rows[a:b] for a, b in pairwise([*starts, len(rows)])]
    named = [(block[0].name, _module(block, total=total)) for block in blocks]
    found: list[dict[str, str]] = []
    for name, count, module in folded(named):
        head, *inside = module.cells
        if count > 1:
            first = next(iter(head))
            indent = " " * (len(head[first]) - len(head[first].lstrip()))
            folds = f"{indent}{printable(name.rpartition('.')[2])}{_TIMES}{count}"
            head = {**head, first: folds, _READ_BY[0]: module.shared_readers}
        found += [head, *inside]
    return found


def _module(block: Sequence[Row], *, total: Row) -> _Module:
    head, *inside = block
    own = _cells(head, by="module", total=total)
    shared = _readers(head, following=counted_on(head.name))
    cells = [own, *(_folded(inside, total=total) if inside else ())]
    compared = [tuple({**own, _READ_BY[0]: shared}.items())[1:], *(tuple(row.items()) for row in cells[1:])]
    return _Module(tuple(compared), tuple(cells), shared)


def _breakdown_lines(cells: Sequence[dict[str, str]], *, width: int | None, more: str) -> list[str]:
    """A heading and a line for each row, the last under a rule; empty columns are left out.

    Args:
        width: of the terminal; columns go until the rest fits. None: all columns, uncut.
        more: a line before the last row.
    """
    columns = {heading: [row[heading] for row in cells] for heading in cells[0]}
    first = next(iter(columns))
    filled = {key for key, column in columns.items() if key == first or not set(column) <= {"", "-", "?"}}
    columns = {key: column for key, column in columns.items() if key in filled}
    widths = {heading: max(map(cell_len, [heading, *column])) for heading, column in columns.items()}
    hidden = [] if width is None else _narrowed(widths, width)
    lines = [_line(row, widths) for row in ({key: key for key in widths}, *cells)]
    rule = "  " + "─" * (sum(widths.values()) + _GAP * (len(widths) - 1))
    lines = [lines[0], rule, *lines[1:-1], *([f"  {more}"] if more else []), rule, lines[-1]]
    return [*lines, f"  Left out in {width} columns: {', '.join(hidden)}; --json has all"] if hidden else lines


def _narrowed(widths: dict[str, int], width: int) -> list[str]:
    """Make columns fit a terminal, in place; returns the headings of the columns left out."""
    first, last = next(iter(widths)), next(reversed(widths))
    widths[first] = min(widths[first], max(width // 3, _NARROWEST))
    hidden: list[str] = []
    for heading in _LESS_WANTED:
        spare = max(widths[last] - _NARROWEST, 0) if last in _READ_BY else 0
        if heading in widths and sum(widths.values()) + _GAP * len(widths) - spare > width:
            hidden.append(heading)
            del widths[heading]
    if last in _READ_BY:
        widths[last] = max(min(widths[last], width - sum(widths.values()) + widths[last] - _GAP * len(widths)), 1)
    return hidden


def _line(cells: dict[str, str], widths: dict[str, int]) -> str:
    """One line; names and shapes to the left, numbers to the right; a cell too long ends in an ellipsis."""
    shown = []
    for heading, width in widths.items():
        cell = cells[heading]
        if cell_len(cell) > width:
            cell = set_cell_size(cell, width - 1) + "…"
        padding = " " * (width - cell_len(cell))
        shown.append(padding + cell if heading in _NUMBERS else cell + padding)
    return f"{' ' * _GAP}{(' ' * _GAP).join(shown)}".rstrip()


def _cells(row: Row, *, by: str, total: Row) -> dict[str, str]:
    """A row as text, by heading."""
    name = printable(row.name if row is total or by != "module" else row.name.split(".", row.depth - 1)[-1])
    count = f"{row.ops:,}" if row.op is None or by == "op" else printable(row.op)
    shape = "" if row.shape is None else str(list(row.shape))
    params = f"{row.parameters:,}" if row.parameters is not None else format_bytes(row.parameter_bytes)
    size = {"params": params if row.parameter_bytes else "-"}
    saved = {"saved": format_bytes(row.saved_bytes) if row.saved_storages else "-"}
    readers = "" if row is total else _readers(row)
    share = {"cost": f"{100 * row.cost / total.cost:.1f} %" if total.cost else "-"}
    if by == "module":
        indent = "  " * (0 if row is total else row.depth - 1)
        own = {"module": indent + name, "op": count if row.op else f"{count} ops", "output shape": shape}
        work = {"fwd FLOPs": _flops(row.forward_flops, row), "bwd FLOPs": _flops(row.backward_flops, row)}
        return {**own, **size, **work, **share, "forward": _bytes(row.forward_bytes), **saved, _READ_BY[0]: readers}
    work = {"FLOPs": _flops(row.flops, row), **share, "bytes": _bytes(row.nbytes)}
    if by == "op":
        return {"op type": name, "ops": count, **size, **work, **saved, _READ_BY[1]: readers}
    own = {"layer": name, "op": "" if row is total else count, "phase": row.phase or "", "output shape": shape}
    return {**own, **size, **work, **saved, _READ_BY[1]: readers}


def _readers(row: Row, *, following: str | None = None) -> str:
    """Whose backward reads what a row saves.

    Args:
        following: the name of the row's next neighbour, which is then called so.
    """
    called = {row.name: "itself", **({} if following is None else {following: "the next"})}
    names = [called.get(reader.name) or printable(reader.name) for reader in row.readers]
    unnamed = len(names) - _NAMED_READERS
    return ", ".join(names[:_NAMED_READERS]) + (f" and {unnamed:,} more" if unnamed > 0 else "")


def _bytes(nbytes: int) -> str:
    return format_bytes(nbytes) if nbytes else "-"


def _flops(count: int, row: Row) -> str:
    """FLOPs with a decimal prefix; a lower bound where an op's are unknown."""
    if not count:
        return "?" if row.unknown_flops else "-"
    power = min((len(str(count)) - 1) // 3, len(_PREFIXES) - 1)
    shown = f"{count / 1000**power:.2f} {_PREFIXES[power]}".rstrip() if power else str(count)
    return f">= {shown}" if row.unknown_flops else shown


def _table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place and headings[0] == "" else "left", overflow="fold")
    return table


def _add_group(table: Table, group: Group, total_cost: float, *, resident: bool) -> None:
    share = "" if resident else f"{100 * group.cost / total_cost:.1f} %"
    saved = format_bytes(group.saved_bytes) if group.saved_bytes else ""
    table.add_row(f"  {group.name}", f"{group.count:,}", format_bytes(group.nbytes), saved, share)


def _stored_lines(stored: dict[str, dict[str, Any]]) -> list[str]:
    """What the file stores, grouped by whether it is a weight and what says so, with the first names of each group."""
    groups: dict[tuple[bool, str], list[str]] = {}
    for name, found in stored.items():
        groups.setdefault((found["weight"], found["line"]), []).append(name)
    lines = ["  Stored floats, and by which line each is a weight or not"] if groups else []
    for (weight, line), names in sorted(groups.items(), key=lambda group: (not group[0][0], group[0][1])):
        first = ", ".join(map(printable, names[:_NAMED_TENSORS])) + (" ..." if len(names) > _NAMED_TENSORS else "")
        lines.append(f"    {len(names):>5,} {'weight' if weight else 'not':<6}  {line}: {first}")
    return lines


def _count(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return str(len(value))
    return f"{value:,}" if isinstance(value, int) else printable(str(value))
