"""Commands about a model before any plan: its memory, its modules, and the models of the zoo."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from planner import errors
from planner.cli.arguments import graph_of, memory_of, program_of, step_of
from planner.cli.console import (
    check_output,
    columns,
    loudness,
    print_answer,
    print_json,
    print_lines,
    printing,
    say,
    shown,
)
from planner.cli.help_text import Command, last_section, section
from planner.cli.options import (
    FILE,
    FORCE,
    GRAPH,
    GRAPH_ARGUMENT,
    GRAPH_HELP,
    JSON,
    MEMORY,
    MODEL,
    OUTPUT,
    SIZE,
    STEP,
    options_of,
    written,
)
from planner.cli.progress import phase
from planner.cli.row_files import check_table, write_table

if TYPE_CHECKING:
    import networkx as nx

    from planner.footprint.modules import Row
    from planner.graph import Graph

_option = section("Options")
_ESTIMATE = (
    _option("--batch", "batches", metavar="N,N,...", default="",
            help="Batch sizes, one row each, for zoo models and ONNX files."),
    _option("--fits", type=SIZE, metavar="SIZE,...",
            help='"16GiB", or devices such as t4,a100-40,rtx4090: say what fits, and what would help.'),
    _option("--largest-batch", is_flag=True,
            help="Find the largest batch that fits; without --batch, show it. Needs --fits."),
    _option("--overhead", type=click.FloatRange(min=0),
            help="With --largest-batch: also with a plan that costs so much more, as 0.3."),
    _option("--calibration", type=FILE, metavar="FILE",
            help="Go by memory as `planner measure -o FILE` found it: baseline + ratio x peak."),
    _option("--rule", type=click.Choice(["cs231n"]), help="Show this rule of thumb beside the simulation."),
    last_section("-o", "--output", type=FILE, metavar="FILE", help="Write a line a batch, as .csv; - prints it alone."),
    FORCE,
)  # fmt: skip
_INSPECT = (
    _option("--by", type=click.Choice(["module", "op", "layer"]), default="module",
            help="What a row is; layer: one op. [module]"),
    _option("--depth", type=click.IntRange(min=1),
            help="Modules down to this many parts of a name. [as deep as --limit shows whole]"),
    _option("--limit", type=click.IntRange(min=0), default=40, show_default=True,
            help="Rows at most, 0 for all; --json has all."),
    _option("--sort", type=click.Choice(["order", "bytes", "saved", "flops", "params"]),
            help="Largest first. [op types by bytes]"),
    _option("--top", type=click.IntRange(min=0), default=10, show_default=True,
            help="List this many of the largest storages."),
    last_section("-o", "--output", type=FILE, metavar="FILE",
                 help="Write a line for each row of --by, as .csv; - prints them alone."),
    FORCE,
)  # fmt: skip


@click.command(
    cls=Command,
    examples=[
        "planner estimate resnet50 --batch 8,32 --fits t4",
        "planner estimate vit_b_16 --batch 8 --optimizer adamw",
    ],
    epilog=GRAPH_HELP,
)
@GRAPH_ARGUMENT
@options_of(_ESTIMATE, STEP, GRAPH[1:], MEMORY, JSON)
def estimate(
    graph: str,
    batches: str,
    fits: str | None,
    largest_batch: bool,
    output: str | None,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Simulate a training step: bytes by component and phase, and whether they fit."""
    overhead = options["overhead"]
    devices = [] if fits is None else [device.strip() for device in fits.split(",")]
    if (largest_batch and fits is None) or (overhead is not None and not largest_batch):
        raise click.UsageError("--largest-batch needs --fits SIZE, and --overhead needs --largest-batch")
    if largest_batch and len(devices) > 1:
        raise click.UsageError(f"--largest-batch is for one device: write --fits {devices[0]}")
    check_table(output, force=force, as_json=as_json)
    from planner.footprint import estimate as footprint
    from planner.footprint.calibration import load_calibration

    wanted = [int(text) if text.strip().isdecimal() else 0 for text in batches.split(",")] if batches else [None]
    if 0 in wanted:
        raise click.UsageError(f"--batch {batches!r}: write batch sizes >= 1 with commas between, as 1,8,32")
    memory = memory_of(options)
    calibration = None if options["calibration"] is None else load_calibration(options["calibration"])
    for device in devices:  # refuse what is not understood before any work
        footprint.device_bytes(device)
        footprint.check_kind(device, calibration)
    step = step_of(options)
    unfolded = options["inference"] and options["lowering"]  # inference has no step, but may unfold its input
    given = {**options, "lowering": False} if unfolded else options
    named: dict[str, Any] = {"lowering": True} if unfolded else {"step": step}
    named.update(memory=memory, calibration=calibration)
    rows, most = [], dict[str, int]()
    if largest_batch:
        build = partial(_with_batch, graph, given)
        with phase("trying batches"):
            most["largest_batch"] = footprint.largest_batch(build, str(fits), **named)
            if overhead is not None:
                most["largest_batch_planned"] = footprint.largest_batch(build, str(fits), overhead=overhead, **named)
        if not batches:
            wanted = [max(most["largest_batch"], 1)]
    for batch in wanted:
        with phase("simulating the step"):
            found = footprint.estimate(_with_batch(graph, given, batch), rule=options["rule"], **named)
        rows.append((batch, found, tuple(map(found.advice, devices))))
    from planner.footprint.printed import as_lines, as_object, as_records

    saved = write_table(output, as_records(rows, devices=devices))
    if output == "-":
        pass
    elif as_json:
        listed = [as_object(*row) for row in rows]
        print_json("planner-estimate", {"rows": listed, "overhead": overhead, **most})
    else:
        lines = as_lines(rows, devices=devices, most=most, overhead=overhead, width=columns())
        tight = [
            (batch, each) for batch, _, said in rows for each in zip(devices, said, strict=True) if not each[1].fits
        ]
        planned = [_next(graph, batch, device) for batch, (device, said) in tight if said.recompute_helps]
        print_answer(*lines, *saved, *planned[:1])
    if devices and not any(advice.fits for _, _, verdicts in rows for advice in verdicts):
        least = min(found.needed_bytes for _, found, _ in rows)
        what = "no batch fits" if len(rows) > 1 else "the step does not fit"
        say(f"{what} {fits}; the least that works without a plan, in bytes:\n{least}", last_line=True)
        raise click.exceptions.Exit(4)


@click.command(
    cls=Command,
    examples=["planner inspect resnet50 --batch 32 --depth 1", "planner inspect unet --batch 1 --by op --sort saved"],
    epilog=GRAPH_HELP,
)
@GRAPH_ARGUMENT
@options_of(_INSPECT, GRAPH, STEP, MEMORY, JSON)
def inspect(
    graph: str,
    by: str,
    depth: int | None,
    limit: int,
    sort: str | None,
    top: int,
    output: str | None,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Show what each module or op holds, and what its backward pass keeps alive."""
    if depth is not None and by != "module":
        raise click.UsageError(f"--depth is for --by module; --by {by} has no tree")
    check_table(output, force=force, as_json=as_json)
    memory = memory_of(options)
    with phase("reading the graph"):
        source: dict[str, Any] = {}
        program = program_of(graph, options, source)
        from planner.footprint.inventory import take_inventory
        from planner.footprint.modules import break_down

        inventory, found = take_inventory(program, memory, top=top, source=source), break_down(program)
    rows = {"module": found.modules, "op": found.operators, "layer": found.ops}[by]
    saved = write_table(output, map(_record, rows))
    if output == "-":
        pass
    elif as_json:
        print_json("planner-inventory", {"inventory": inventory, "breakdown": found})
    else:
        from planner.cli.tables import inventory_verdict, print_breakdown, print_inventory

        print_answer(inventory_verdict(inventory))
        if loudness() < 0:
            return
        with printing():
            print_breakdown(found, by=by, depth=depth, limit=limit, sort=sort)
            print_inventory(inventory, scope=memory.scope)
        print_lines(*saved)


@click.command(
    cls=Command, examples=["planner zoo", "planner zoo gpt2-medium", "planner zoo resnet18 --batch 8 -o resnet18.json"]
)
@click.argument("model", required=False, type=MODEL)
@options_of(GRAPH, STEP, OUTPUT, JSON)
def zoo(model: str | None, output: str | None, force: bool, as_json: bool, **options: Any) -> None:
    """List the models, show what one takes, or write one as a JSON graph."""
    from planner.zoo.catalogue import ALIASES, MODELS, find, hint

    if model is None:
        if output is not None:
            raise click.UsageError("name a model to write with -o FILE; planner zoo lists them")
        if as_json:
            aliases = [{"name": name, "spec": alias.spec, "options": alias.options} for name, alias in ALIASES.items()]
            print_json("planner-models", {"models": [_facts(name) for name in MODELS], "aliases": aliases})
        else:
            from planner.cli.model_list import list_lines

            print_answer(*list_lines(width=columns()))
        return
    named = find(model)
    if named is None:
        raise errors.GraphError(f"unknown model {model!r}; {hint(model)}")
    if output is None:
        if as_json:
            print_json("planner-options", {"model": _facts(named.name), "alias": named.title, "set": named.options})
        else:
            from planner.cli.model_list import model_lines

            print_answer(*model_lines(named, model, width=columns()))
        return
    check_output(output, force=force)
    from planner.files import write_whole

    program = program_of(model, options)
    write_whole(output, program.to_json())
    if as_json:
        facts = {"graph": program.name, "fingerprint": program.fingerprint, "ops": len(program.ops)}
        print_json("planner-model", {**facts, "values": len(program.tensors), "file": shown(output)})
    else:
        print_lines(f"Saved {program!r} to {output}")


def _facts(name: str) -> dict[str, Any]:
    """A model for JSON."""
    from planner.zoo.catalogue import MODELS

    model = MODELS[name]
    fields = ("argument", "description", "options", "required")
    types = tuple(model.typed_options.values())
    return {"name": name, **{field: getattr(model, field) for field in fields}, "types": types}


def _next(graph: str, batch: int | None, device: str) -> str:
    """The command that plans what was estimated, with the options that it shares, to copy."""
    import shlex

    context = click.get_current_context()
    words = ["planner", "optimize", graph, *([] if batch is None else ["--batch", str(batch)])]
    for parameter in context.command.params:
        shared = getattr(parameter, "section", "") in ("Graph", "Training step", "Memory")
        if shared and parameter.name and written({parameter.name: None}):
            given = context.params[parameter.name]
            for one in given if isinstance(given, tuple) else (given,):
                words += [parameter.opts[0]] if one is True else [parameter.opts[0], str(one)]
    return f"Next: {shlex.join([*words, '--budget', device])}"


def _record(row: Row) -> dict[str, object]:
    """A row of `inspect` for a table: shapes as 2x64x32, readers with spaces between."""
    shape = None if row.shape is None else "x".join(map(str, row.shape))
    readers = " ".join(reader.name for reader in row.readers)
    cells = {name: getattr(row, name) for name in row.__struct_fields__}
    return {**cells, "shape": shape, "readers": readers}


def _with_batch(graph: str, options: dict[str, Any], batch: int | None) -> nx.DiGraph | Graph:
    return graph_of(graph, {**options, "batch": batch})
