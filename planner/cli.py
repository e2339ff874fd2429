"""The command line. Every command imports what it needs when it runs, so that `planner --help` answers at once."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from planner import errors
from planner.arguments import MOST_DIGITS, memory_of, program_of
from planner.names import ALLOCATORS, STRATEGIES, printable
from planner.views.progress import progress_bar, spinner

if TYPE_CHECKING:
    from planner.graph import Graph

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

    memory = memory_of(options)
    with spinner("reading the graph"):
        program = program_of(graph, options)
    with spinner("planning"):
        plan = find_plan(
            program, budget, strategy=options["strategy"], allocator=None if allocator == "none" else allocator, memory=memory,
            order=options["order"], effort=options["effort"], time_limit=options["time_limit"], seed=options["seed"],
        )  # fmt: skip
    if output is not None:
        plan.save(output)
    if as_json:
        _print_json("planner-report", {"report": plan.report, "overhead": plan.report.overhead, "plan_file": output and _text(output)})
    else:
        saved = f"  Saved to {output}" if output else "  Save the plan with -o plan.json; planner verify plan.json checks it"
        _print(str(plan.report), saved)


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
    memory = memory_of(options)
    listed = [budget.strip() for budget in budgets.split(",") if budget.strip()]
    count = len(listed) == 1 and listed[0].isascii() and listed[0].isdecimal()
    if count and len(listed[0]) > MOST_DIGITS:
        raise click.UsageError(f"--budgets: a number of {len(listed[0])} digits is no number of budgets")
    with spinner("reading the graph"):
        program = program_of(graph, options)
    with progress_bar("planning") as progress:
        found = find_curve(
            program, int(listed[0]) if count else listed,
            strategies=strategy_names() if strategies == "all" else [name.strip() for name in strategies.split(",")],
            allocator=None if options["allocator"] == "none" else options["allocator"], memory=memory, order=options["order"],
            effort=options["effort"], time_limit=options["time_limit"], seed=options["seed"], jobs=jobs, progress=progress,
        )  # fmt: skip
    for output in outputs:
        found.save(output)
    if as_json:
        _print_json("planner-curve", {"curve": found, "front": found.front, "files": [_text(output) for output in outputs]})
    else:
        _print(str(found), f"  Saved to {', '.join(outputs)}" if outputs else "  Draw the curve with -o curve.svg")
    error = nothing_fits(found)
    if error is not None and as_json:  # one object is printed, and it says so point by point
        _say(str(error), last_line=True)
        raise click.exceptions.Exit(_exit_code(error))
    if error is not None:
        raise error


@cli.command(epilog=_GRAPH_HELP)
@click.argument("graph")
@click.option("--batch", "batches", metavar="N,N,...", default="", help="Batch sizes, one row each, for zoo models and ONNX files.")
@click.option("--fits", metavar="SIZE", help='"16GiB", or a device such as a100, h100, t4, rtx4090: say what fits, and what would help.')
@click.option("--largest-batch", is_flag=True, help="Find the largest batch that fits; needs --fits.")
@click.option("--overhead", type=click.FloatRange(min=0), help="With --largest-batch: also with a plan that costs so much more, as 0.3.")
@click.option("--optimizer", type=click.Choice(["sgd", "momentum", "adagrad", "rmsprop", "adam", "adamw", "none"]), help="[the graph's]")
@click.option("--micro-batches", type=click.IntRange(min=1), default=1, show_default=True, help="Gradients accumulate over so many.")
@click.option("--gradients", type=click.Choice(["released", "zeroed"]), default="released", show_default=True, help="Between iterations.")
@click.option("--update", type=click.Choice(["fused", "per-tensor", "multi-tensor"]), help="Temporaries of the update. [the graph's]")
@click.option("--master-weights", is_flag=True, help="16-bit parameters have a float32 master, and float32 optimizer states.")
@click.option("--lowering", is_flag=True, help="Convolutions unfold their input (im2col) into workspace.")
@click.option("--rule", type=click.Choice(["cs231n"]), help="Show this rule of thumb beside the simulation.")
@_options(_GRAPH_OPTIONS[1:2], _GRAPH_OPTIONS[3:], _MEMORY_OPTIONS, _JSON)
def estimate(
    graph: str, batches: str, fits: str | None, largest_batch: bool, overhead: float | None, as_json: bool, **options: Any
) -> None:
    """Simulate a training step: bytes by component and phase, and whether they fit."""
    if (largest_batch and fits is None) or (overhead is not None and not largest_batch):
        raise click.UsageError("--largest-batch needs --fits SIZE, and --overhead needs --largest-batch")
    from planner import footprint

    wanted = [int(text) if text.strip().isdecimal() else 0 for text in batches.split(",")] if batches else [None]
    if 0 in wanted:
        raise click.UsageError(f"--batch {batches!r}: write batch sizes >= 1 with commas between, as 1,8,32")
    memory = memory_of(options)
    if fits is not None:
        footprint.device_bytes(fits)  # refuse what is not understood before any work
    given = {**options, "optimizer": "none" if options["optimizer"] == "none" else None}
    named = {name: options[name] for name in ("micro_batches", "gradients", "update", "master_weights", "lowering")}
    named.update(memory=memory, optimizer=None if options["optimizer"] == "none" else options["optimizer"])
    rows, most = [], dict[str, int]()
    for batch in wanted:
        with spinner("simulating the step"):
            found = footprint.estimate(program_of(graph, {**given, "batch": batch}), rule=options["rule"], **named)
        rows.append((batch, found, None if fits is None else found.fits(fits)))
    if largest_batch:
        for key, allowed in (("largest_batch", None), *((("largest_batch_planned", overhead),) if overhead is not None else ())):
            with spinner("trying batches"):
                build = partial(_with_batch, graph, given)
                most[key] = footprint.largest_batch(build, str(fits), overhead=allowed, **named)
    if as_json:
        from planner.views.footprint import as_object

        _print_json("planner-estimate", {"rows": [as_object(*row, device=fits) for row in rows], "overhead": overhead, **most})
    else:
        from planner.views.footprint import as_lines

        _print(*as_lines(rows, device=fits, most=most, overhead=overhead))
    if fits is not None and not any(row[2] for row in rows):
        least = min(found.peak_bytes + memory.reserve for _, found, _ in rows)
        _say(f"no row fits {fits}; the least that works without a plan, in bytes:\n{least}", last_line=True)
        raise click.exceptions.Exit(4)


@cli.command(epilog=_GRAPH_HELP)
@click.argument("graph")
@click.option("--top", type=click.IntRange(min=0), default=10, show_default=True, help="List this many of the largest storages.")
@_options(_GRAPH_OPTIONS, _MEMORY_OPTIONS, _JSON)
def inspect(graph: str, top: int, as_json: bool, **options: Any) -> None:
    """Count what a graph holds, and what its backward pass keeps alive."""
    memory = memory_of(options)
    with spinner("reading the graph"):
        source: dict[str, Any] = {}
        program = program_of(graph, options, source)
        from planner.analysis.inventory import take_inventory

        inventory = take_inventory(program, memory, top=top, source=source)
    if as_json:
        _print_json("planner-inventory", {"inventory": inventory})
    else:
        from planner.views.tables import print_inventory

        with _printing():
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

        with _printing():
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
    given = [name for name in ("batch", "optimizer", "device") if options[name] is not None]
    given += ["dim"] * bool(options["dims"]) + ["inference"] * bool(options["inference"])
    if given and graph is None:
        raise click.UsageError(f"--{given[0]} is for --graph; give both")
    from planner.plan import load

    loaded = load(plan, None if graph is None else program_of(graph, options))
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
        lines = [f"ok: {steps:,} steps legal, {buffers:,} buffers without overlap, arena + reserve {needed} bytes, {fits}"]
        if executed is not None:
            sizes = "at full size" if executed.scale == 1 else f"sizes / {executed.scale}"
            arena = f"one arena of {executed.arena_bytes:,} bytes ({sizes})"
            lines.append(f"ok: ran {executed.computes:,} computes in {arena}, every byte as in a run without a plan")
        _print(*lines)


@cli.command()
@click.argument("model", required=False)
@_options(_GRAPH_OPTIONS, _OUTPUT_OPTIONS, _JSON)
def zoo(model: str | None, output: str | None, force: bool, as_json: bool, **options: Any) -> None:
    """List the models that come with the planner, or write one as a JSON graph."""
    from planner.zoo import MODELS

    if model is None and as_json:
        rows = [(name, entry.argument, entry.description, entry.options, entry.required) for name, entry in MODELS.items()]
        columns = ("name", "argument", "description", "options", "required")
        _print_json("planner-models", {"models": [dict(zip(columns, row, strict=True)) for row in rows]})
        return
    if model is None:
        from planner.views.tables import print_models

        with _printing():
            print_models([(name, entry.argument, ", ".join(entry.options), entry.description) for name, entry in MODELS.items()])
        return
    if output is None:
        raise click.UsageError("name the file to write with -o FILE")
    if model.partition(":")[0] not in MODELS:
        raise errors.GraphError(f"unknown model {model!r}; known: {', '.join(MODELS)}")
    _check_output(output, force=force)
    from planner.files import write_whole

    program = program_of(model, options)
    write_whole(output, program.to_json())
    if as_json:
        facts = {"graph": program.name, "fingerprint": program.fingerprint, "ops": len(program.ops), "values": len(program.tensors)}
        _print_json("planner-model", {**facts, "file": _text(output)})
    else:
        _print(f"Saved {program!r} to {output}")


def _with_batch(graph: str, options: dict[str, Any], batch: int) -> Graph:
    return program_of(graph, {**options, "batch": batch})


def _check_output(output: str | None, *, force: bool) -> None:
    """Refuse before the work what could not be written after it."""
    if output is None:
        return
    if os.path.exists(output) and not force:
        raise click.UsageError(f"{output!r} exists; overwrite it with -f, or name another file")
    folder = os.path.dirname(os.path.abspath(output))
    special = os.path.exists(output) and not os.path.isfile(output)  # a folder, a device, a pipe
    if special or not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise errors.OutputError(f"cannot write {output!r}; name a file in a folder that exists and can be written")


@contextmanager
def _printing() -> Iterator[None]:
    """Around all that writes results, so that an output which cannot take them is told from everything else that may fail.

    Raises:
        OutputError: standard output cannot be written. A reader that has left, as `head` does, ends the program in peace.
    """
    try:
        yield
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit):  # rich exits by itself where the reader has left
        _silence()
        raise click.exceptions.Exit(0) from None
    except UnicodeEncodeError as error:
        shown = printable(error.object[error.start : error.end])
        raise errors.OutputError(f"standard output cannot show {shown!r} as {error.encoding}; set PYTHONIOENCODING=utf-8") from None
    except OSError as error:
        _silence()
        raise errors.OutputError(f"cannot write to standard output: {error.strerror or error}") from None


def _silence() -> None:
    """What is left in the buffer goes nowhere, so that the interpreter does not fail once more when it ends."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print(*lines: str) -> None:
    with _printing():
        for line in lines:
            click.echo(_text(line))


def _text(name: str) -> str:
    """A file name may hold bytes that are no text; they are shown escaped."""
    return name.encode(errors="backslashreplace").decode()


def _print_json(schema: str, content: dict[str, Any]) -> None:
    import msgspec

    _print(msgspec.json.encode({"schema": schema, "version": 1, **content}).decode())


def _exit_code(error: errors.PlannerError) -> int:
    return next(code for kind, code in EXIT_CODES if isinstance(error, kind))


def _say(message: str, *, last_line: bool = False) -> None:
    """One line on standard error; with `last_line` what follows the last line break is a line of its own."""
    head, line_break, tail = message.rpartition("\n") if last_line else (message, "", "")
    lines = [head, tail] if line_break else [head or tail]
    with suppress(OSError):
        click.echo("error: " + "\n".join(printable(line) for line in lines), err=True)


def _fail(kind: str, message: str, code: int, *, as_json: bool, error: errors.PlannerError | None = None) -> NoReturn:
    """Say what is wrong, and exit; with `as_json` also as the one object on standard output."""
    _say(message, last_line=isinstance(error, errors.InfeasibleBudget))
    if as_json:
        facts = {} if error is None else {name: value for name, value in vars(error).items() if not name.startswith("_")}
        head = {"error": kind, "message": _text(message)}
        with suppress(errors.OutputError, click.exceptions.Exit):  # it has been said on standard error
            try:
                _print_json("planner-error", {**head, **facts})
            except (TypeError, ValueError):  # an attribute that is no JSON
                _print_json("planner-error", head)
    sys.exit(code)


def main() -> None:
    """Entry point: errors become one line and an exit code; with `--json` also one object."""
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:  # closed by the caller
            setattr(sys, stream, open(os.devnull, "w"))  # noqa: SIM115
    as_json = "--json" in sys.argv[1:]
    try:
        code = cli.main(standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError:
        _fail("UsageError", "name a command; planner --help lists them", 2, as_json=as_json)
    except click.ClickException as error:
        _fail(type(error).__name__, error.format_message(), error.exit_code, as_json=as_json)
    except click.Abort:
        _fail("Abort", "interrupted before any plan was found", 130, as_json=as_json)
    except errors.PlannerError as error:
        _fail(type(error).__name__, str(error), _exit_code(error), as_json=as_json, error=error)
    except Exception as error:
        if isinstance(error, OSError) and error.filename is None and error.errno in (errno.ENOSPC, errno.EIO, errno.EBADF):
            _silence()  # click's own help and version
            _fail("OutputError", f"cannot write to standard output: {error.strerror}", 2, as_json=False)
        said = f"internal error: {type(error).__name__}: {' '.join(str(error).split())}"
        if os.environ.get("PLANNER_TRACEBACK"):
            import traceback

            traceback.print_exc()
        else:
            said += "; set PLANNER_TRACEBACK=1 for the traceback"
        _fail("InternalError", said, 1, as_json=as_json)
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
