"""Commands that make plans, and those that check them."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from planner.cli.arguments import MOST_DIGITS, call_of, graph_of, memory_of, program_of, step_of
from planner.cli.console import (
    check_file_or_stream,
    check_output,
    columns,
    exit_code,
    print_answer,
    print_bytes,
    print_json,
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
    PLAN_ARGUMENT,
    SEARCH,
    SIZE,
    STEP,
    STRATEGY,
    STRATEGY_LIST,
    options_of,
    written,
)
from planner.cli.progress import phase, search_progress, sweep_progress
from planner.errors import GraphError, OutputError, VerificationError
from planner.names import STRATEGIES

if TYPE_CHECKING:
    from planner.plan import Plan
    from planner.torch.verification import Verification

STRATEGY_NAMES = ", ".join(STRATEGIES)
_option = section("Options")
_OPTIMIZE = (
    last_section("-o", "--output", type=FILE, metavar="FILE",
                 help="Write the plan (.json), a page (.html) or memory over time (.svg, .png, .pdf); - prints it."),
    FORCE,
    _option("--budget", type=SIZE,
            help='"7GB" (7e9), "7GiB" (7*2**30), bytes, "40%" or "0.4" of the peak without recomputation, a device such'
                 ' as t4 or a100-40, or "auto". [least peak]'),
    _option("--strategy", type=STRATEGY, default="auto", show_default=True, help=f"{STRATEGY_NAMES}."),
    _option("--no-least", "least", flag_value=False, default=True,
            help="Where nothing fits, do not look for the least that works."),
)  # fmt: skip
_CURVE = (
    _option("--budgets", type=SIZE, default="16", show_default=True,
            help='How many, from least peak to no recomputation; or a list: "4GB,5GB,40%,t4".'),
    _option("--strategies", type=STRATEGY_LIST, default="auto", show_default=True,
            help=f'"all", or names with commas between: {STRATEGY_NAMES}.'),
    _option("--jobs", type=int, default=1, show_default=True, help="Processes; -1 takes every core."),
    _option("--resume", type=FILE, metavar="FILE",
            help="Keep each finished search in this file, and make none again that it holds."),
    last_section("-o", "--output", "outputs", type=FILE, multiple=True, metavar="FILE",
                 help="Write .csv, .json, .svg, .png or .pdf; may be repeated."),
    _option("--plans", metavar="FOLDER",
            help="Write the cheapest plan of each budget into this folder; made if it is missing."),
)  # fmt: skip
_VERIFY = (
    _option("--graph", type=MODEL, help="Refuse the plan unless it is of this graph."),
    _option("--execute", is_flag=True,
            help="Run it too, on real bytes in one arena; they must be those of a run without a plan."),
    _option("--scale", type=click.IntRange(min=1),
            help="Divide sizes by this to run them. [as little as keeps the arena below 256 MiB]"),
    _option("--model", metavar="MODULE:CALLABLE",
            help="Run it in PyTorch beside the step without it; the callable returns (model, inputs, loss)."),
)  # fmt: skip
_ASKED = ("order", "save", "recompute", "effort", "time_limit", "seed")  # options that go to the verb as they are


def _asked(options: dict[str, Any]) -> dict[str, Any]:
    """The arguments that `optimize` and `curve` share."""
    allocator = None if options["allocator"] == "none" else options["allocator"]
    return {
        "step": step_of(options),
        "memory": memory_of(options),
        "allocator": allocator,
        **{name: options[name] for name in _ASKED},
    }


@contextmanager
def _counted(asked: dict[str, Any]) -> Iterator[None]:
    """Take the seconds that pass in here off the time limit, which is for the whole command."""
    start = time.monotonic()
    yield
    if (limit := asked["time_limit"]) is not None and limit > 0:
        asked["time_limit"] = max(1e-9, limit + start - time.monotonic())


_OPTIMIZE_EXAMPLES = (
    "planner optimize resnet:18 --batch 32 --budget 70% -o plan.json",
    "planner optimize mlp:784-128-10 --batch 64 --budget t4 --optimizer adam",
)
_CURVE_EXAMPLES = (
    "planner curve mlp:64-64-64-10 --batch 512 --budgets 4 -o curve.csv",
    "planner curve chain:24 --budgets 8,12,60% --strategies chen-sqrt,chen-budget",
)


@click.command(cls=Command, examples=_OPTIMIZE_EXAMPLES, epilog=GRAPH_HELP)
@GRAPH_ARGUMENT
@options_of(_OPTIMIZE, SEARCH, GRAPH, STEP, MEMORY, JSON)
def optimize(
    graph: str,
    budget: str | None,
    strategy: str,
    least: bool,
    output: str | None,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Find the cheapest plan that fits a budget."""
    check_file_or_stream(output, force=force, as_json=as_json)
    with phase("reading the graph"):  # and before that the kernels, which take longer than most graphs
        from planner.api import optimize as find_plan
        from planner.files import write_whole
        from planner.views.plan_files import PICTURES, check_suffix, content_of

        suffix = ".json" if output in (None, "-") else check_suffix(output, allowed=(".json", ".html", *PICTURES))
        asked = _asked(options)
        with _counted(asked):
            model = graph_of(graph, options)
    with search_progress("planning") as progress:
        plan = find_plan(model, budget, strategy=strategy, **asked, least=least, progress=progress)
    if output == "-":
        print_bytes(plan.to_json())
        return
    if output is not None:
        write_whole(output, content_of(plan, suffix))
    if as_json:
        report, saved = plan.report, output and shown(output)
        facts = {"report": report.as_object(), "overhead": report.overhead, "plan_file": saved}
        print_json("planner-report", facts)
    else:
        print_answer(str(plan.report), *_following(output, suffix))


def _following(output: str | None, suffix: str) -> list[str]:
    """Where the plan is, and the command that comes next."""
    if output is None:
        return ["  Save the plan with -o plan.json; planner verify plan.json checks it"]
    file = shlex.quote(shown(output))
    more = [f"Next: planner report {file} -o plan.html, or planner explain {file}"] if suffix == ".json" else []
    return [f"  Saved to {shown(output)}", *more]


@click.command(cls=Command, examples=_CURVE_EXAMPLES, epilog=GRAPH_HELP)
@GRAPH_ARGUMENT
@options_of(_CURVE, SEARCH, GRAPH, STEP, MEMORY, FORCE, JSON)
def curve(
    graph: str, budgets: str, strategies: str, jobs: int, outputs: tuple[str, ...], as_json: bool, **options: Any
) -> None:
    """Find what memory costs: the cheapest plan at each of many budgets, and what none can cost less than."""
    plans: str | None = options["plans"]
    for output in outputs:
        check_output(output, force=options["force"])
    if plans is not None:
        _check_folder(plans, force=options["force"])
    from planner.api import curve as find_curve
    from planner.planning.curve import check_path, nothing_fits
    from planner.search import strategy_names

    for output in outputs:
        check_path(output)
    asked = _asked(options)
    listed = [budget.strip() for budget in budgets.split(",") if budget.strip()]
    count = len(listed) == 1 and listed[0].isascii() and listed[0].isdecimal()
    if count and len(listed[0]) > MOST_DIGITS:
        raise click.UsageError(f"--budgets: a number of {len(listed[0])} digits is no number of budgets")
    with phase("reading the graph"), _counted(asked):
        model = graph_of(graph, options)
    wanted = int(listed[0]) if count else listed
    names = strategy_names() if strategies == "all" else [name.strip() for name in strategies.split(",")]
    with sweep_progress("planning") as progress:
        found = find_curve(
            model, wanted, strategies=names, **asked, jobs=jobs, resume=options["resume"], progress=progress
        )
    for output in outputs:
        found.save(output)
    plan_files = () if plans is None else found.save_plans(plans)
    if as_json:
        files = [shown(file) for file in (*outputs, *plan_files)]
        print_json("planner-curve", {"curve": found.as_object(), "front": found.front, "files": files})
    else:
        kept = [] if options["reserve"] is not None else filter(None, map(_kept, listed))
        saved = [*outputs, *([f"{len(plan_files)} plans in {plans}"] if plan_files else [])]
        end = f"  Saved to {', '.join(saved)}" if saved else "  Draw the curve with -o curve.svg"
        print_answer(found.as_text(columns()), *kept, end)
    error = nothing_fits(found)
    if error is not None and as_json:  # the object on standard output says so point by point
        say(str(error), last_line=True)
        raise click.exceptions.Exit(exit_code(error))
    if error is not None:
        raise error


def _kept(budget: str) -> str:
    """What is kept of a budget that is a device, in a line for people; of any other nothing, in none."""
    from planner.lowering.devices import CONTEXT_BYTES, find_device
    from planner.units import format_bytes

    device = find_device(budget)
    if device is None or device.total_bytes is None:
        return ""
    left, total = format_bytes(device.total_bytes - CONTEXT_BYTES), format_bytes(device.total_bytes)
    return f"  {budget}: {left}, for {format_bytes(CONTEXT_BYTES)} of its {total} are reserved; --reserve sets it"


def _check_folder(folder: str, *, force: bool) -> None:
    """Refuse before the work a folder that cannot be made or written, or that holds other files."""
    if os.path.isdir(folder) and os.listdir(folder) and not force:
        raise click.UsageError(f"{folder!r} is not empty; write into it with -f, or name another folder")
    place = folder if os.path.exists(folder) else os.path.dirname(os.path.abspath(folder))
    if not os.path.isdir(place) or not os.access(place, os.W_OK):
        fix = "name a folder that can be written, or one to be made in such a folder"
        raise OutputError(f"cannot write into {folder!r}; {fix}")


@click.command(cls=Command, examples=["planner simulate plan.json"])
@PLAN_ARGUMENT
@options_of(JSON)
def simulate(plan: str, as_json: bool) -> None:
    """Replay a plan step by step, and print what it takes."""
    from planner.api import simulate as replay
    from planner.plan import load

    loaded = load(plan)
    trace = replay(loaded.graph, loaded.schedule, memory=loaded.memory, allocation=loaded.allocation)
    if as_json:
        print_json("planner-trace", {"trace": trace})
    else:
        from planner.cli.tables import print_trace

        with printing():
            print_trace(trace, name=plan)


@click.command(
    cls=Command, examples=["planner verify plan.json", "planner verify plan.json --execute"], epilog=GRAPH_HELP
)
@PLAN_ARGUMENT
@options_of(_VERIFY, GRAPH, STEP, JSON)
def verify(
    plan: str, graph: str | None, execute: bool, scale: int | None, model: str | None, as_json: bool, **options: Any
) -> None:
    """Check every number that a plan claims: legal steps, no two buffers overlapping, peak, arena, cost and budget."""
    if scale is not None and not execute:
        raise click.UsageError("--scale is for --execute; give both")
    given = written(options)
    if given and graph is None:
        raise click.UsageError(f"--{given[0]} is for --graph; give both")
    from planner.plan import load
    from planner.units import format_bytes

    loaded = load(plan, None if graph is None else program_of(graph, options))
    trace = loaded.verify()
    buffers = 0 if loaded.allocation is None else len(loaded.allocation.buffers)
    needed = loaded.report.needed_bytes
    with phase("running the plan"):
        executed = loaded.execute(scale=scale) if execute else None
        compared = None if model is None else _compared(loaded, model)
    if as_json:
        verdict = {"ok": True, "peak_bytes": trace.peak_bytes, "needed_bytes": needed, "budget": loaded.budget}
        ran = {} if executed is None else {"executed": executed}
        print_json("planner-verdict", {**verdict, **ran, **({} if compared is None else {"model": compared})})
    else:
        fits = "the least peak found" if loaded.budget is None else f"within {format_bytes(loaded.budget)}"
        steps = len(trace.timeline_bytes)
        legal = f"ok: {steps:,} legal steps, {buffers:,} buffers without overlap"
        lines = [f"{legal}, {format_bytes(needed)} with the reserve, {fits}"]
        if executed is not None:
            sizes = "at full size" if executed.scale == 1 else f"sizes / {executed.scale}"
            arena = f"one arena of {format_bytes(executed.arena_bytes)} ({sizes})"
            lines.append(f"ok: ran {executed.computes:,} ops in {arena}, every byte as in a run without a plan")
        print_answer(*lines, *([] if compared is None else [str(compared)]))


def _compared(plan: Plan, text: str) -> Verification:
    """A plan run in PyTorch beside the step without it.

    Raises:
        VerificationError: a bit differs, or the peak is another than predicted.
    """
    from planner import torch

    made = call_of(text, {})
    if not isinstance(made, tuple):
        raise GraphError(f"{text!r} returned a graph, and --model runs a model: return (model, inputs, loss)")
    own, inputs, loss = made
    found = torch.verify(plan, own, inputs, loss=loss)
    if not found.holds:
        raise VerificationError(str(found).replace("\n", "; "))
    return found
