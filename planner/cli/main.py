"""The command line. A command imports heavy modules only when it runs, so that `planner --help` answers at once."""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
from contextlib import suppress
from types import FrameType

import click

from planner import errors
from planner.cli.console import exit_code, fail, silence
from planner.cli.explain_command import explain
from planner.cli.export_commands import export, report
from planner.cli.measure_command import measure
from planner.cli.model_commands import estimate, inspect, zoo
from planner.cli.pack_command import pack
from planner.cli.plan_commands import curve, optimize, simulate, verify
from planner.cli.warm_command import warm

EXIT_HELP = (
    "Exit codes: 0 fits, 1 internal error, 2 usage, 3 unreadable graph or plan, 4 infeasible, 5 time limit, "
    "6 verification failed."
)


@click.group(epilog=EXIT_HELP)
@click.version_option(package_name="sublinear-planner", prog_name="planner")
def cli() -> None:
    """Plans that make training fit in memory: what stays, what is computed again and when, where every buffer lies."""


for _command in (
    optimize,
    curve,
    estimate,
    inspect,
    simulate,
    verify,
    explain,
    report,
    export,
    pack,
    measure,
    zoo,
    warm,
):
    cli.add_command(_command)


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
        code = cli.main(standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError:
        fail("UsageError", "name a command; planner --help lists them", 2, as_json=as_json)
    except click.ClickException as error:
        fail(type(error).__name__, error.format_message(), error.exit_code, as_json=as_json)
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
