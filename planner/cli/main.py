"""The command line. A command imports heavy modules only when it runs, so that `planner --help` answers at once."""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import Final

import click

from planner import errors
from planner.cli.console import exit_code, fail, silence
from planner.cli.help_text import Commands, Listed

EXIT_HELP = (
    "Exit codes: 0 fits, 1 internal error, 2 usage, 3 unreadable graph or plan, 4 infeasible, 5 time limit, "
    "6 verification failed."
)
_LISTED: Final = {
    "Before a plan": {
        "estimate": Listed("model_commands", "Say what a training step holds, and whether that fits."),
        "inspect": Listed("model_commands", "Show what each module or op holds, and whose backward needs it."),
        "measure": Listed("measure_command", "Run a training command, and measure the memory it takes."),
    },
    "Plans": {
        "optimize": Listed("plan_commands", "Find the cheapest plan that fits a budget."),
        "curve": Listed("plan_commands", "Find what memory costs: the cheapest plan at each budget."),
        "verify": Listed("plan_commands", "Check every number that a plan claims."),
    },
    "A plan in hand": {
        "explain": Listed("explain_command", "Say why a tensor is kept or recomputed, and what else would be."),
        "report": Listed("export_commands", "Draw a plan: an offline page, or a figure."),
        "simulate": Listed("plan_commands", "Replay a plan: its peak, where that is, what is live there."),
        "export": Listed("export_commands", "Write a plan for Perfetto, PyTorch's memory viewer, or a table."),
    },
    "More": {
        "zoo": Listed("model_commands", "List the models, show one's options, or write its graph."),
        "pack": Listed("pack_command", "Give every buffer of a table its place in the smallest arena."),
        "warm": Listed("warm_command", "Compile every kernel before anybody waits for one."),
        "help": Listed("help_command", "Read about a topic."),
    },
}


@click.group(
    cls=Commands,
    listed=_LISTED,
    invoke_without_command=True,
    epilog=f"planner COMMAND -h has options and examples. {EXIT_HELP}",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(None, "-V", "--version", package_name="sublinear-planner", prog_name="planner")
@click.pass_context
def cli(context: click.Context) -> None:
    """Plans that make training fit in memory: what stays, what is computed again and when, where every buffer lies."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main() -> None:
    """Entry point: errors become one line and an exit code; with `--json` also one object."""
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:  # closed by the caller
            setattr(sys, stream, open(os.devnull, "w"))  # noqa: SIM115
    gc.set_threshold(100_000, 50, 50)  # a graph is many objects that all stay; collecting took a tenth of the time
    ours = sys.argv[1:]  # up to --, after which a measured command has options of its own
    as_json = "--json" in ours[: ours.index("--")] if "--" in ours else "--json" in ours
    interrupts = _noted_interrupts()
    try:
        code = cli.main(prog_name="planner", standalone_mode=False)
    except click.ClickException as error:
        fail(type(error).__name__, _meant(error), error.exit_code, as_json=as_json)
    except click.Abort:
        fail("Abort", "interrupted before there was a result", 130, as_json=as_json)
    except errors.PlannerError as error:
        fail(type(error).__name__, str(error), exit_code(error), as_json=as_json, error=error)
    except Exception as error:
        if interrupts:  # one that a compiler's callback swallowed, and failed of
            fail("Abort", "interrupted before there was a result", 130, as_json=as_json)
        full = (errno.ENOSPC, errno.EIO, errno.EBADF)
        if isinstance(error, OSError) and error.filename is None and error.errno in full:
            silence()  # click itself writes help and version
            fail("OutputError", f"cannot write to standard output: {error.strerror}", 2, as_json=False)
        said = f"internal error: {type(error).__name__}: {' '.join(str(error).split())}"
        if os.environ.get("PLANNER_TRACEBACK"):
            import traceback

            traceback.print_exc()
        else:
            said += "; set PLANNER_TRACEBACK=1 for the traceback"
        fail("InternalError", said, 1, as_json=as_json)
    sys.exit(code if isinstance(code, int) else 0)


#: What people call options of another name; click would offer those that are spelled alike.
_CALLED: Final = {"--memory": "--budget", "--dtype": "--option dtype=bf16", "--keep": "--save"}


def _meant(error: click.ClickException) -> str:
    """What a usage error says, with the option that was meant."""
    if isinstance(error, click.NoSuchOption) and error.option_name in _CALLED:
        return f"No such option {error.option_name!r}. Write {_CALLED[error.option_name]}."
    return error.format_message()


def _noted_interrupts() -> list[int]:
    """Filled at each Ctrl-C: a compiler's callback swallows some, and the compiler then fails in its own way."""
    interrupts: list[int] = []

    def heard(number: int, frame: FrameType | None) -> None:
        interrupts.append(number)
        signal.default_int_handler(number, frame)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        with suppress(ValueError):  # not in the main thread, where none arrives
            signal.signal(signal.SIGINT, heard)
    return interrupts
