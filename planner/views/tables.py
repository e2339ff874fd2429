"""Tables for terminals, by rich; plain text and wide when the output is no terminal."""

from __future__ import annotations

import sys

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from planner.analysis.inventory import Group, Inventory
from planner.report import sparkline
from planner.simulator import Trace
from planner.units import format_bytes


def console() -> Console:
    """Standard output; names of nodes are never wrapped or read as markup where nobody looks at a screen."""
    return Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else 160)


def print_inventory(inventory: Inventory, *, scope: str) -> None:
    """The `inspect` command's answer."""
    out = console()
    out.print(f"{inventory.graph} · {inventory.ops:,} ops · {inventory.values:,} values · {inventory.outputs:,} outputs")
    if inventory.source:
        out.print("  File  " + ", ".join(f"{key} {_count(value)}" for key, value in inventory.source.items() if key != "path"))
    table = _table("", "count", "bytes", "MiB", "saved for backward", "cost share")
    total = sum(group.cost for group in inventory.phases) or 1.0
    for title, groups in (("residents", inventory.residents), ("phase", inventory.phases), ("operator", inventory.operators)):
        if groups:
            table.add_section()
            table.add_row(Text(title, style="bold"))
            for group in groups:
                _add_group(table, group, total, resident=title == "residents")
    out.print(table)
    saved_bytes = inventory.saved_bytes
    out.print(f"  Saved for backward: {inventory.saved_tensors:,} storages, {format_bytes(saved_bytes)} ({saved_bytes} bytes)")
    out.print(f"  Keep-all peak ({scope}): {format_bytes(inventory.keep_all_peak_bytes)} at op {inventory.keep_all_peak_op}")
    out.print(f"  No plan goes below: {format_bytes(inventory.peak_lower_bound)}")
    out.print(f"  Candidate cuts of the forward pass: {inventory.candidate_cuts:,}")
    out.print(f"  Dead ops: {', '.join(inventory.dead[:8]) + (' ...' if len(inventory.dead) > 8 else '') if inventory.dead else 'none'}")
    if inventory.largest:
        out.print("  Largest storages")
        for name, nbytes in inventory.largest:
            out.print(f"    {format_bytes(nbytes):>11}  {name}")


def print_trace(trace: Trace, *, name: str) -> None:
    """The `simulate` command's answer."""
    out = console()
    arena = "" if trace.arena_bytes is None else f" · arena {format_bytes(trace.arena_bytes)} ({trace.arena_bytes} bytes)"
    peak = f"peak {format_bytes(trace.peak_bytes)} ({trace.peak_bytes} bytes)"
    out.print(f"{name} · legal · {len(trace.timeline_bytes):,} steps · {peak}{arena}")
    out.print(f"  Cost {trace.cost:g}; {len(trace.recomputed):,} ops run again")
    out.print(f"  Peak at step {trace.peak_step + 1}, op {trace.peak_op}: residents {format_bytes(trace.resident_bytes)}")
    out.print(f"  Memory {sparkline(trace.timeline_bytes)}")
    for value, nbytes in trace.live_at_peak[:10]:
        out.print(f"    {format_bytes(nbytes):>11}  {value}")


def print_models(rows: list[tuple[str, str, str, str]]) -> None:
    """The `zoo` command's answer: name, argument, options, description."""
    table = _table("model", "argument", "options", "")
    for row in rows:
        table.add_row(*row)
    console().print(table)


def _table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place and headings[0] == "" else "left", overflow="fold")
    return table


def _add_group(table: Table, group: Group, total_cost: float, *, resident: bool) -> None:
    share = "" if resident else f"{100 * group.cost / total_cost:.1f} %"
    saved = f"{group.saved_bytes:,}" if group.saved_bytes else ""
    table.add_row(f"  {group.name}", f"{group.count:,}", f"{group.nbytes:,}", f"{group.nbytes / 2**20:,.2f}", saved, share)


def _count(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return str(len(value))
    return f"{value:,}" if isinstance(value, int) else str(value)
