"""The command line. Every command imports what it needs when it runs, so that `planner --help` answers at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from planner import errors
from planner.names import ALLOCATORS, STRATEGIES
from planner.views.progress import progress_bar, spinner

if TYPE_CHECKING:
    from planner.graph import Graph
    from planner.memory import MemoryModel

Command = TypeVar("Command", bound=Callable[..., Any])

EXIT_CODES = (
    (errors.InfeasibleBudget, 4),
    (errors.TimeLimit, 5),
    (errors.ScheduleError, 6),
    (errors.VerificationError, 6),
    (errors.GraphError, 3),
    (errors.PlanFileError, 3),
    (errors.PlannerError, 2),
)

_STRATEGIES = ", ".join(STRATEGIES)
_SEARCH_OPTIONS = (
    click.option("--allocator", default="auto", show_default=True, help=f"{', '.join(ALLOCATORS)}, or none for live bytes only."),
    click.option("--order", type=click.Choice(["free", "pinned"]), default="free", show_default=True, help="May first runs change order?"),
    click.option("--effort", type=float, default=1.0, show_default=True, help="Search work, relative to the default."),
    click.option("--time-limit", type=float, metavar="SECONDS", help="Return the best found by then."),
    click.option("--seed", type=int, default=0, show_default=True),
)
_GRAPH_OPTIONS = (
    click.option("--batch", type=click.IntRange(min=1), help="Batch size, for zoo models and ONNX files."),
    click.option("--dim", "dims", multiple=True, metavar="NAME=N", help="Named dimension of an ONNX file; image, classes of a model."),
    click.option("--optimizer", type=click.Choice(["sgd", "momentum", "adam", "none"]), help="Optimizer of the training step. [sgd]"),
    click.option("--device", metavar="NAME", help="Costs are seconds on this device. [a100]"),
    click.option("--inference", is_flag=True, help="The forward pass alone, without backward and update."),
)
_MEMORY_OPTIONS = (
    click.option("--scope", type=click.Choice(["total", "activations"]), default="total", help="What the budget covers. [total]"),
    click.option("--alignment", metavar="BYTES", default="1", help="Every storage is rounded up to it (512 for CUDA). [1]"),
    click.option("--reserve", metavar="SIZE", default="0", help="Bytes of the budget to leave unused. [0]"),
)
_FORCE = click.option("-f", "--force", is_flag=True, help="Overwrite FILE.")
_OUTPUT_OPTIONS = (click.option("-o", "--output", metavar="FILE", help="Write the result here."), _FORCE)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one versioned JSON object.")
_GRAPH_HELP = "GRAPH: a zoo name such as resnet:1001, an ONNX or JSON file, or module:callable (your own code, run to return a graph)."
_EXIT_HELP = "Exit codes: 0 fits, 1 internal error, 2 usage, 3 unreadable graph or plan, 4 infeasible, 5 time limit, 6 verification failed."


def _options(*groups: Any) -> Callable[[Command], Command]:
    def add(command: Command) -> Command:
        for option in reversed([option for group in groups for option in (group if isinstance(group, tuple) else (group,))]):
            command = option(command)
        return command

    return add


@click.group(epilog=_EXIT_HELP)
@click.version_option(package_name="sublinear-planner", prog_name="planner")
def cli() -> None:
    """Plans that make training fit in memory: what stays, what is computed again and when, where every buffer lies."""


@cli.command(epilog=_GRAPH_HELP)
@click.argument("graph")
@click.option("--budget", help='"7GB" (7e9), "7GiB" (7*2**30), bytes, "40%" or "0.4" of the keep-all peak, or "auto". [least peak]')
@click.option("--strategy", default="auto", show_default=True, help=f"{_STRATEGIES}.")
@_options(_SEARCH_OPTIONS, _GRAPH_OPTIONS, _MEMORY_OPTIONS, _OUTPUT_OPTIONS, _JSON)
def optimize(graph: str, budget: str | None, allocator: str, output: str | None, force: bool, as_json: bool, **options: Any) -> None:
    """Find the cheapest plan that fits a budget."""
    _check_output(output, force=force)
    from planner.api import optimize as find_plan

    memory = _memory(options)
    with spinner("reading the graph"):
        program = _graph(graph, options)
    with spinner("planning"):
        plan = find_plan(
            program, budget, strategy=options["strategy"], allocator=None if allocator == "none" else allocator, memory=memory,
            order=options["order"], effort=options["effort"], time_limit=options["time_limit"], seed=options["seed"],
        )  # fmt: skip
    if output is not None:
        plan.save(output)
    if as_json:
        _print_json("planner-report", {"report": plan.report, "overhead": plan.report.overhead, "plan_file": output})
    else:
        click.echo(str(plan.report))
        click.echo(f"  Saved to {output}" if output else "  Save the plan with -o plan.json; planner verify plan.json checks it")


@cli.command(epilog=_GRAPH_HELP)
@click.argument("graph")
@click.option("--budgets", default="16", show_default=True, help='How many, from least peak to keep-all; or a list: "4GB,5GB,40%".')
@click.option("--strategies", default="auto", show_default=True, help=f'"all", or names with commas between: {_STRATEGIES}.')
@click.option("--jobs", type=int, default=1, show_default=True, help="Processes; -1 takes every core.")
@click.option("-o", "--output", "outputs", multiple=True, metavar="FILE", help="Write .csv, .json, .svg, .png or .pdf; may be repeated.")
@_options(_SEARCH_OPTIONS, _GRAPH_OPTIONS, _MEMORY_OPTIONS, _FORCE, _JSON)
def curve(graph: str, budgets: str, strategies: str, jobs: int, outputs: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Find what memory costs: the cheapest plan at each of many budgets."""
    for output in outputs:
        _check_output(output, force=options["force"])
    from planner.api import curve as find_curve
    from planner.curves import check_path, nothing_fits
    from planner.search import strategy_names

    for output in outputs:
        check_path(output)
    memory = _memory(options)
    listed = [budget.strip() for budget in budgets.split(",") if budget.strip()]
    with spinner("reading the graph"):
        program = _graph(graph, options)
    with progress_bar("planning") as progress:
        found = find_curve(
            program, int(budgets) if budgets.strip().isdecimal() else listed,
            strategies=strategy_names() if strategies == "all" else [name.strip() for name in strategies.split(",")],
            allocator=None if options["allocator"] == "none" else options["allocator"], memory=memory, order=options["order"],
            effort=options["effort"], time_limit=options["time_limit"], seed=options["seed"], jobs=jobs, progress=progress,
        )  # fmt: skip
    for output in outputs:
        found.save(output)
    if as_json:
        _print_json("planner-curve", {"curve": found, "front": found.front, "files": outputs})
    else:
        click.echo(str(found))
        click.echo(f"  Saved to {', '.join(outputs)}" if outputs else "  Draw the curve with -o curve.svg")
    error = nothing_fits(found)
    if error is not None and as_json:  # one object is printed, and it says so point by point
        click.echo(f"error: {error}", err=True)
        raise click.exceptions.Exit(_exit_code(error))
    if error is not None:
        raise error


@cli.command(epilog=_GRAPH_HELP)
@click.argument("graph")
@click.option("--top", type=click.IntRange(min=0), default=10, show_default=True, help="List this many of the largest storages.")
@_options(_GRAPH_OPTIONS, _MEMORY_OPTIONS, _JSON)
def inspect(graph: str, top: int, as_json: bool, **options: Any) -> None:
    """Count what a graph holds, and what its backward pass keeps alive."""
    memory = _memory(options)
    with spinner("reading the graph"):
        source: dict[str, Any] = {}
        program = _graph(graph, options, source)
        from planner.analysis.inventory import take_inventory

        inventory = take_inventory(program, memory, top=top, source=source)
    if as_json:
        _print_json("planner-inventory", {"inventory": inventory})
    else:
        from planner.views.tables import print_inventory

        print_inventory(inventory, scope=memory.scope)


@cli.command()
@click.argument("plan")
@_options(_JSON)
def simulate(plan: str, as_json: bool) -> None:
    """Replay a plan step by step, and print what it takes."""
    from planner.plan import load
    from planner.simulator import simulate as judge

    loaded = load(plan)
    trace = judge(loaded.graph, loaded.schedule, memory=loaded.memory, allocation=loaded.allocation)
    if as_json:
        _print_json("planner-trace", {"trace": trace})
    else:
        from planner.views.tables import print_trace

        print_trace(trace, name=plan)


@cli.command(epilog=_GRAPH_HELP)
@click.argument("plan")
@click.option("--graph", help="Refuse the plan unless it is of this graph.")
@click.option("--execute", is_flag=True, help="Run it too, on real bytes in one arena; they must be those of a run without a plan.")
@click.option("--scale", type=click.IntRange(min=1), help="Divide sizes by this to run them. [as little as keeps the arena below 256 MiB]")
@_options(_GRAPH_OPTIONS, _JSON)
def verify(plan: str, graph: str | None, execute: bool, scale: int | None, as_json: bool, **options: Any) -> None:
    """Hold a plan to every number it claims: legal steps, no two buffers overlapping, peak, arena, cost and budget."""
    if scale is not None and not execute:
        raise click.UsageError("--scale is for --execute; give both")
    from planner.plan import load

    loaded = load(plan, None if graph is None else _graph(graph, options))
    trace = loaded.verify()
    buffers = 0 if loaded.allocation is None else len(loaded.allocation.buffers)
    needed = loaded.report.needed_bytes
    with spinner("running the plan"):
        executed = loaded.execute(scale=scale) if execute else None
    if as_json:
        verdict = {"ok": True, "peak_bytes": trace.peak_bytes, "needed_bytes": needed, "budget": loaded.budget}
        _print_json("planner-verdict", {**verdict, **({} if executed is None else {"executed": executed})})
    else:
        fits = "least peak" if loaded.budget is None else f"within the budget of {loaded.budget} bytes"
        steps = len(trace.timeline_bytes)
        click.echo(f"ok: {steps:,} steps legal, {buffers:,} buffers without overlap, arena + reserve {needed} bytes, {fits}")
        if executed is not None:
            sizes = "at full size" if executed.scale == 1 else f"sizes / {executed.scale}"
            arena = f"one arena of {executed.arena_bytes:,} bytes ({sizes})"
            click.echo(f"ok: ran {executed.computes:,} computes in {arena}, every byte as in a run without a plan")


@cli.command()
@click.argument("model", required=False)
@_options(_GRAPH_OPTIONS, _OUTPUT_OPTIONS)
def zoo(model: str | None, output: str | None, force: bool, **options: Any) -> None:
    """List the models that come with the planner, or write one as a JSON graph."""
    from planner.zoo import MODELS

    if model is None:
        from planner.views.tables import print_models

        print_models([(name, entry.argument, ", ".join(entry.options), entry.description) for name, entry in MODELS.items()])
        return
    if output is None:
        raise click.UsageError("name the file to write with -o FILE")
    if model.partition(":")[0] not in MODELS:
        raise errors.GraphError(f"unknown model {model!r}; known: {', '.join(MODELS)}")
    _check_output(output, force=force)
    from planner.files import write_whole

    program = _graph(model, options)
    write_whole(output, program.to_json())
    click.echo(f"Saved {program!r} to {output}")


def _graph(text: str, options: dict[str, Any], source: dict[str, Any] | None = None) -> Graph:
    """The program GRAPH names; `source` is filled with the importer's counts."""
    from planner.lowering.schema import lower

    given: dict[str, Any] = {name: options[name] for name in ("batch", "device") if options[name] is not None}
    if options["optimizer"] is not None:
        given["optimizer"] = None if options["optimizer"] == "none" else options["optimizer"]
    if options["inference"]:
        given["training"] = False
    if options["dims"]:
        given["dims"] = _dims(options["dims"])
    graph = _read(text, given)
    if source is not None and not hasattr(graph, "ops"):
        source.update(graph.graph.get("source") or {})
    return lower(graph)


def _read(text: str, given: dict[str, Any]) -> Any:
    from planner.lowering.files import read_graph
    from planner.zoo import MODELS, build

    name, colon, _ = text.partition(":")
    if name in MODELS:
        for option in MODELS[name].required:
            if option not in given:
                raise click.UsageError(f"{text} needs --{option}")
        return build(text, **given.pop("dims", {}), **given)
    if os.path.exists(text) or not colon:
        if not os.path.exists(text):
            raise errors.GraphError(f"no file {text!r}, and no zoo model of that name ({', '.join(MODELS)})")
        return read_graph(text, **given)
    return _call(text, given)


def _call(text: str, given: dict[str, Any]) -> Any:
    """The graph that the user's `module:callable` returns; their code runs because they name it."""
    from importlib import import_module

    module_name, _, function_name = text.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        function = getattr(import_module(module_name), function_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise errors.GraphError(f"{text!r} is no zoo model, no file, and no module:callable ({error})") from None
    finally:
        sys.path.pop(0)
    try:
        return function(**given)
    except errors.PlannerError:
        raise
    except Exception as error:
        raise errors.GraphError(f"{text!r} failed: {type(error).__name__}: {error}") from error


def _dims(items: tuple[str, ...]) -> dict[str, int]:
    dims: dict[str, int] = {}
    for item in items:
        name, equals, value = item.rpartition("=")
        if not equals or not name or not value.isdigit() or int(value) < 1:
            raise click.UsageError(f"--dim {item!r}: write NAME=VALUE with VALUE an int >= 1, as --dim height=224")
        dims[name] = int(value)
    return dims


def _memory(options: dict[str, Any]) -> MemoryModel:
    from planner.memory import MemoryModel
    from planner.units import parse_bytes

    return MemoryModel(
        options["scope"],
        parse_bytes(options["alignment"], what="alignment"),
        parse_bytes(options["reserve"], what="reserve"),
    )


def _check_output(output: str | None, *, force: bool) -> None:
    """Refuse before the work what could not be written after it."""
    if output is None:
        return
    if os.path.exists(output) and not force:
        raise click.UsageError(f"{output!r} exists; overwrite it with -f, or name another file")
    folder = os.path.dirname(os.path.abspath(output))
    if os.path.isdir(output) or not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise errors.OutputError(f"cannot write {output!r}; name a file in a folder that exists and can be written")


def _print_json(schema: str, content: dict[str, Any]) -> None:
    import msgspec

    click.echo(msgspec.json.encode({"schema": schema, "version": 1, **content}).decode())


def _exit_code(error: errors.PlannerError) -> int:
    return next(code for kind, code in EXIT_CODES if isinstance(error, kind))


def _say(error: errors.PlannerError, *, as_json: bool) -> None:
    """One line on standard error; for an infeasible budget, the least workable one on a last line of its own."""
    click.echo(f"error: {error}", err=True)
    if as_json:
        facts = {name: value for name, value in vars(error).items() if not name.startswith("_")}
        _print_json("planner-error", {"error": type(error).__name__, "message": str(error), **facts})


def main() -> None:
    """Entry point: errors become one line and an exit code."""
    as_json = "--json" in sys.argv[1:]
    try:
        code = cli.main(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.ClickException as error:
        click.echo(f"error: {error.format_message()}", err=True)
        sys.exit(error.exit_code)
    except click.Abort:
        click.echo("error: interrupted before any plan was found", err=True)
        sys.exit(130)
    except errors.PlannerError as error:
        _say(error, as_json=as_json)
        sys.exit(_exit_code(error))
    except BrokenPipeError:  # the reader of our output has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


if __name__ == "__main__":
    main()
