"""Commands about a model before any plan: its memory, its modules, and the models of the zoo."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click
from click import option

from planner import errors
from planner.cli.arguments import ELSEWHERE, graph_of, memory_of, program_of, step_of
from planner.cli.console import check_output, columns, print_answer, print_json, print_lines, printing, say, shown
from planner.cli.options import GRAPH, GRAPH_HELP, JSON, MEMORY, OUTPUT, STEP, options_of
from planner.cli.progress import spinner

if TYPE_CHECKING:
    import networkx as nx

    from planner.graph import Graph
    from planner.zoo import Model


_ESTIMATE = (
    option("--batch", "batches", metavar="N,N,...", default="",
           help="Batch sizes, one row each, for zoo models and ONNX files."),
    option("--fits", metavar="SIZE,...",
           help='"16GiB", or devices such as t4,a100-40,rtx4090: say what fits, and what would help.'),
    option("--largest-batch", is_flag=True,
           help="Find the largest batch that fits; without --batch, show it. Needs --fits."),
    option("--overhead", type=click.FloatRange(min=0),
           help="With --largest-batch: also with a plan that costs so much more, as 0.3."),
    option("--calibration", metavar="FILE",
           help="Go by memory as `planner measure -o FILE` found it: baseline + ratio x peak."),
    option("--rule", type=click.Choice(["cs231n"]), help="Show this rule of thumb beside the simulation."),
)  # fmt: skip
_INSPECT = (
    option("--by", type=click.Choice(["module", "op", "layer"]), default="module",
           help="What a row is; layer: one op. [module]"),
    option("--depth", type=click.IntRange(min=1),
           help="Modules down to this many parts of a name. [as deep as --limit shows whole]"),
    option("--limit", type=click.IntRange(min=0), default=40, show_default=True,
           help="Rows at most, 0 for all; --json has all."),
    option("--sort", type=click.Choice(["order", "bytes", "saved", "flops", "params"]),
           help="Largest first. [op types by bytes]"),
    option("--top", type=click.IntRange(min=0), default=10, show_default=True,
           help="List this many of the largest storages."),
)  # fmt: skip


@click.command(epilog=GRAPH_HELP)
@click.argument("graph")
@options_of(_ESTIMATE, STEP, GRAPH[1:], MEMORY, JSON)
def estimate(graph: str, batches: str, fits: str | None, largest_batch: bool, as_json: bool, **options: Any) -> None:
    """Simulate a training step: bytes by component and phase, and whether they fit."""
    overhead = options["overhead"]
    devices = [] if fits is None else [device.strip() for device in fits.split(",")]
    if (largest_batch and fits is None) or (overhead is not None and not largest_batch):
        raise click.UsageError("--largest-batch needs --fits SIZE, and --overhead needs --largest-batch")
    if largest_batch and len(devices) > 1:
        raise click.UsageError(f"--largest-batch is for one device: write --fits {devices[0]}")
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
        with spinner("trying batches"):
            most["largest_batch"] = footprint.largest_batch(build, str(fits), **named)
            if overhead is not None:
                most["largest_batch_planned"] = footprint.largest_batch(build, str(fits), overhead=overhead, **named)
        if not batches:
            wanted = [max(most["largest_batch"], 1)]
    for batch in wanted:
        with spinner("simulating the step"):
            found = footprint.estimate(_with_batch(graph, given, batch), rule=options["rule"], **named)
        rows.append((batch, found, tuple(map(found.advice, devices))))
    from planner.footprint.printed import as_lines, as_object

    if as_json:
        listed = [as_object(*row) for row in rows]
        print_json("planner-estimate", {"rows": listed, "overhead": overhead, **most})
    else:
        print_answer(*as_lines(rows, devices=devices, most=most, overhead=overhead, width=columns()))
    if devices and not any(advice.fits for _, _, verdicts in rows for advice in verdicts):
        least = min(found.needed_bytes for _, found, _ in rows)
        say(f"no row fits {fits}; the least that works without a plan, in bytes:\n{least}", last_line=True)
        raise click.exceptions.Exit(4)


@click.command(epilog=GRAPH_HELP)
@click.argument("graph")
@options_of(_INSPECT, GRAPH, STEP, MEMORY, JSON)
def inspect(
    graph: str, by: str, depth: int | None, limit: int, sort: str | None, top: int, as_json: bool, **options: Any
) -> None:
    """Show what each module or op holds, and what its backward pass keeps alive."""
    if depth is not None and by != "module":
        raise click.UsageError(f"--depth is for --by module; --by {by} has no tree")
    memory = memory_of(options)
    with spinner("reading the graph"):
        source: dict[str, Any] = {}
        program = program_of(graph, options, source)
        from planner.footprint.inventory import take_inventory
        from planner.footprint.modules import break_down

        inventory, found = take_inventory(program, memory, top=top, source=source), break_down(program)
    if as_json:
        print_json("planner-inventory", {"inventory": inventory, "breakdown": found})
    else:
        from planner.cli.tables import print_breakdown, print_inventory

        with printing():
            print_breakdown(found, by=by, depth=depth, limit=limit, sort=sort)
            print_inventory(inventory, scope=memory.scope)


@click.command()
@click.argument("model", required=False)
@options_of(GRAPH, STEP, OUTPUT, JSON)
def zoo(model: str | None, output: str | None, force: bool, as_json: bool, **options: Any) -> None:
    """List the models that come with the planner, or write one as a JSON graph."""
    from planner.zoo.catalogue import ALIASES, MODELS, find, hint

    if model is None and as_json:
        fields = ("argument", "description", "options", "required")
        rows: list[dict[str, Any]] = []
        for name, entry in MODELS.items():
            types = (*entry.typed_options.values(),)
            rows.append({"name": name, **{field: getattr(entry, field) for field in fields}, "types": types})
        aliases = [{"name": name, "spec": alias.spec, "options": alias.options} for name, alias in ALIASES.items()]
        print_json("planner-models", {"models": rows, "aliases": aliases})
        return
    if model is None:
        from planner.cli.tables import print_models

        listed = [(name, entry.argument, _option_list(entry), entry.description) for name, entry in MODELS.items()]
        with printing():
            print_models(listed, aliases=[(name, str(alias)) for name, alias in ALIASES.items()])
        return
    if output is None:
        raise click.UsageError("name the file to write with -o FILE")
    if find(model) is None:
        raise errors.GraphError(f"unknown model {model!r}; {hint(model)}")
    check_output(output, force=force)
    from planner.files import write_whole

    program = program_of(model, options)
    write_whole(output, program.to_json())
    if as_json:
        facts = {"graph": program.name, "fingerprint": program.fingerprint, "ops": len(program.ops)}
        print_json("planner-model", {**facts, "values": len(program.tensors), "file": shown(output)})
    else:
        print_lines(f"Saved {program!r} to {output}")


def _option_list(model: Model) -> str:
    """Options as people write them: those of the command line itself, then those for `--option`."""
    own = [f"--{ELSEWHERE[name]}" for name in model.options if name in ELSEWHERE]
    return ", ".join([*own, *(typed.example for name, typed in model.typed_options.items() if name not in ELSEWHERE)])


def _with_batch(graph: str, options: dict[str, Any], batch: int | None) -> nx.DiGraph | Graph:
    return graph_of(graph, {**options, "batch": batch})
