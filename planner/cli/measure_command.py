"""The command that measures a training run."""

from __future__ import annotations

from typing import Any

import click

from planner import errors
from planner.cli.arguments import prediction_of
from planner.cli.console import check_output, exit_code, print_json, print_lines, say, shown
from planner.cli.help_text import Command, section
from planner.cli.options import FILE, GRAPH, JSON, MODEL, OUTPUT, STEP, options_of, written
from planner.cli.progress import phase

MEASURE_HELP = (
    "Exit code: that of COMMAND, 128 + N if signal N ended it; 2 or 3 with an error line if it never started, or"
    " nothing could be saved. A calibration is baseline + ratio x predicted peak. With --json the output of COMMAND"
    " goes to standard error."
)
_option = section("Options")
_OWN = (
    _option("--against", type=MODEL, metavar="PLAN|GRAPH",
            help="A plan file, or GRAPH as for estimate: show its predicted peak too."),
    _option("--baseline", type=FILE, metavar="SIZE|FILE",
            help="What does not grow with the model: bytes, or a file of measure -o. [0]"),
    _option("--kind", type=click.Choice(["host", "device"]),
            help="Memory held against the prediction. [device if PyTorch used one]"),
    _option("--interval", type=click.FloatRange(0.01, 60), default=0.1, show_default=True, metavar="SECONDS",
            help="Between samples."),
    _option("--alignment", metavar="BYTES", help="Of the prediction from a graph (512 for CUDA). [1]"),
)  # fmt: skip


@click.command(
    cls=Command,
    examples=['planner measure -- python -c "print(sum(range(10**6)))"'],
    context_settings={"allow_interspersed_args": False},
    epilog=MEASURE_HELP,
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...")
@options_of(_OWN, GRAPH, STEP, OUTPUT, JSON)
def measure(
    command: tuple[str, ...],
    against: str | None,
    baseline: str | None,
    kind: Any,
    interval: float,
    output: str | None,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Run a training command, and measure what its processes and devices really take."""
    check_output(output, force=force)
    given = written(options)
    if against is None and (given or baseline):
        raise click.UsageError(f"--{(given or ['baseline'])[0]} is for --against; give both")
    from planner.cli import measurement_text as view
    from planner.footprint.calibration import read_baseline
    from planner.footprint.measure import measure as run_measured

    baseline_bytes, its_kind = (0, None) if baseline is None else read_baseline(baseline)
    if its_kind is not None and kind not in (None, its_kind):
        measured = f"--baseline {baseline!r} was measured on the {its_kind}"
        raise click.UsageError(f"{measured}, and --kind is {kind}; they must be the same")
    predicted = None
    if against is not None:
        with phase("predicting the peak"):
            predicted = prediction_of(against, options, given=given)
    with view.progress_title(command) as progress:
        found = run_measured(command, interval_seconds=interval, stdout=2 if as_json else None, progress=progress)
    calibration = problem = None
    try:
        calibration = found.calibration(predicted, baseline_bytes=baseline_bytes, kind=kind or its_kind)
        if output is not None and not found.exit_code:
            calibration.save(output)
    except errors.PlannerError as error:  # a run may take hours: all that was measured is printed first
        problem = error
    saved = None if output is None or problem is not None or found.exit_code else shown(output)
    if as_json:
        print_json("planner-measurement", view.as_object(found, predicted, calibration, saved=saved))
    else:
        print_lines(*view.as_lines(found, predicted, calibration, saved=saved))
    if found.exit_code:
        how = found.signal or f"exit code {found.exit_code}"
        say(f"the command ended with {how}{'; nothing was saved' if output else ''}")
    if problem is not None:
        say(str(problem))
    if found.exit_code or problem is not None:
        raise click.exceptions.Exit(found.exit_code or (exit_code(problem) if problem else 0))
