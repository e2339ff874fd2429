"""The command that packs a table of buffers."""

from __future__ import annotations

import math
from typing import Any

import click

from planner import errors
from planner.cli.console import check_output, print_json, print_lines, shown
from planner.cli.help_text import Command, section
from planner.cli.options import FILE, JSON, OUTPUT, options_of
from planner.cli.progress import phase

_HELP = (
    "BUFFERS: a CSV file with the columns id, lower, upper (a buffer is live from lower until before upper) and size"
    " in bytes, and if you wish alignment and fixed_offset. It is written back with a column offset: to standard"
    " output, or to -o FILE. Exit code 4: nothing was found within the capacity; the last line is the least that was."
)
_option = section("Options")
_ZERO = click.FloatRange(min=0)
_OWN = (
    _option("--capacity", metavar="SIZE",
            help='Stop at the first arena within it, as "1MiB" or bytes. [the smallest arena]'),
    _option("--reserved", multiple=True, metavar="OFFSET:SIZE",
            help="No buffer may lie there; part of the arena. May be repeated."),
    _option("--effort", type=_ZERO, default=4.0, show_default=True, help="Search work; 0: simple rules alone."),
    _option("--time-limit", type=_ZERO, metavar="SECONDS", help="Return the best found by then."),
    _option("--seed", type=click.IntRange(min=0), default=0, show_default=True),
)  # fmt: skip


@click.command(cls=Command, examples=["planner pack buffers.csv --capacity 44KiB -o packed.csv"], epilog=_HELP)
@click.argument("buffers", type=FILE)
@options_of(_OWN, OUTPUT, JSON)
def pack(
    buffers: str, capacity: str | None, reserved: tuple[str, ...], output: str | None, force: bool, **options: Any
) -> None:
    """Give every buffer of a table its place in the smallest arena."""
    effort, time_limit = options["effort"], options["time_limit"]
    for name, number in (("--effort", effort), ("--time-limit", time_limit)):
        if number is not None and not math.isfinite(number):
            raise click.UsageError(f"{name} {number} is not a finite number")
    from planner.units import exactly, format_bytes, parse_bytes

    check_output(output, force=force)
    capacity_bytes = None if capacity is None else parse_bytes(capacity, what="capacity")
    regions = [_region(text) for text in reserved]
    from planner.files import write_whole
    from planner.packing import pack as find_packing
    from planner.packing.buffer_table import read_table
    from planner.problem import Stop

    table = read_table(buffers, reserved=regions)
    stop = Stop.after(time_limit)
    with phase("packing") as shown_phase, stop.listening():

        def progress(top: int, bound: int) -> None:
            shown_phase.tell(f"best so far {format_bytes(top)}, none below {format_bytes(bound)}")

        search: dict[str, Any] = {"effort": effort, "seed": options["seed"], "stop": stop, "progress": progress}
        found = find_packing(table.intervals, capacity=capacity_bytes, **search)
    table.check(found)
    if capacity_bytes is not None and found.top_bytes > capacity_bytes:
        raise _too_small(capacity_bytes, found.top_bytes, found.bound_bytes, cut_short=found.cut_short)
    if output is not None:
        write_whole(output, table.to_csv(found).encode(errors="surrogateescape"))
    facts: dict[str, Any] = {"arena_bytes": found.top_bytes, "bound_bytes": found.bound_bytes}
    facts |= {"capacity": capacity_bytes, "rule": found.rule, "nodes": found.nodes}
    facts |= {"cut_short": found.cut_short, "file": output and shown(output)}
    count = len(table.rows)
    if options["as_json"]:
        places: dict[str, Any] = dict(zip(map(shown, table.names), found.offset[:count].tolist(), strict=False))
        print_json("planner-packing", {**facts, "buffers": count, "offsets": places})
        return
    bound = f"no packing goes below {found.bound_bytes} bytes" if found.gap_bytes else "proven: no packing is smaller"
    within = "" if capacity_bytes is None else f", within {capacity_bytes} bytes"
    cut = "; cut short" if found.cut_short else ""
    summary = f"{count:,} buffers in {exactly(found.top_bytes)}{within}; {bound}{cut}"
    if output is None:
        print_lines(table.to_csv(found).rstrip("\n"))
        click.echo(summary, err=True)
    else:
        print_lines(summary, f"  Saved to {output}")


def _region(text: str) -> tuple[int, int]:
    from planner.units import parse_bytes

    offset, colon, size = text.partition(":")
    if not colon:
        raise click.UsageError(f"--reserved {text!r}: write OFFSET:SIZE, as 0:4096")
    return parse_bytes(offset, what="reserved offset"), parse_bytes(size, what="reserved size")


def _too_small(capacity: int, top: int, bound: int, *, cut_short: bool) -> errors.InfeasibleBudget:
    from planner.units import exactly

    proven = capacity < bound
    late = " in time" if cut_short else ""
    why = f"no packing goes below {bound} bytes" if proven else f"none was found{late}; the proven bound is {bound}"
    message = f"the buffers do not fit {exactly(capacity)}: {why}. Least found, in bytes:\n{top}"
    facts: dict[str, Any] = {"minimum": top, "peak_lower_bound": bound, "proven": proven, "binding_op": None}
    return errors.InfeasibleBudget(message, budget=capacity, **facts)
