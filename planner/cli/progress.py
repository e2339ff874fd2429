"""What a long command does, on standard error: a line that changes on a terminal, elsewhere one every ten seconds."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, Protocol

import click

from planner.cli.console import loudness

if TYPE_CHECKING:
    from planner.problem import Status

#: Between lines where standard error is no terminal.
EVERY_SECONDS: Final = 10.0


class Phase(Protocol):
    """A phase of a command that is under way."""

    def tell(self, now: str) -> None:
        """Say how far it is."""

    def note(self, line: str) -> None:
        """Say something that stays, where people look on."""


@contextmanager
def phase(what: str) -> Iterator[Phase]:
    """Show a phase while it lasts; with --quiet nothing, with --verbose its time too."""
    begun = time.monotonic()
    if loudness() < 0:
        yield _Unseen()
    elif sys.stderr.isatty():
        with _on_terminal(what) as shown:
            yield shown
    else:
        with _in_pipe(what) as told:
            yield told
    if loudness() > 0:
        _say(f"{what}: {time.monotonic() - begun:.1f} s")


@contextmanager
def search_progress(what: str) -> Iterator[Callable[[Status], None]]:
    """The phase of one search; what it gives is the `progress` of `optimize`."""
    with phase(what) as shown:

        def show(status: Status) -> None:
            if status.infeasible is not None:
                shown.note(f"{status.infeasible}\nLooking for the least that works.")
            shown.tell(standing_line(status))

        yield show


@contextmanager
def sweep_progress(what: str) -> Iterator[Callable[[int, int, str], None]]:
    """The phase of many searches; what it gives is the `progress` of `curve`."""
    with phase(what) as shown:
        yield lambda done, total, last: shown.tell(f"{done:,} of {total:,} searches done, the last one {last}")


def standing_line(status: Status) -> str:
    """The best overhead, its lower bound, and how many plans were tried.

    >>> from planner.problem import Status
    >>> standing_line(Status("chain", 100, 0.0425, 0.01, 1234, 2.0))
    "best so far +4.25 % cost, and no plan costs less than +1.00 %; 1,234 plans tried, now by 'chain'"
    """
    best = "no plan fits so far" if status.overhead is None else f"best so far +{100 * status.overhead:.2f} % cost"
    bound = f", and no plan costs less than +{100 * status.overhead_lower_bound:.2f} %"
    known = bound if status.overhead_lower_bound > 0 else ""
    return f"{best}{known}; {status.plans_judged:,} plans tried, now by {status.strategy!r}"


class _Unseen:
    def tell(self, now: str) -> None:
        pass

    def note(self, line: str) -> None:
        pass


@contextmanager
def _on_terminal(what: str) -> Iterator[Phase]:
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as line:
        task = line.add_task(what, total=None)

        class Shown(_Unseen):
            def tell(self, now: str) -> None:
                line.update(task, description=f"{what}: {now}")

            def note(self, line_: str) -> None:
                line.console.print(line_, markup=False)

        yield Shown()


@contextmanager
def _in_pipe(what: str) -> Iterator[Phase]:
    """A thread writes the lines, since the work itself may go on for long without telling anything."""
    begun, ended, last = time.monotonic(), threading.Event(), [""]

    class Told(_Unseen):
        def tell(self, now: str) -> None:
            last[0] = f": {now}"

    def write_lines() -> None:
        while not ended.wait(EVERY_SECONDS):
            _say(f"{what}{last[0]} ({time.monotonic() - begun:.0f} s)")

    writer = threading.Thread(target=write_lines, daemon=True)
    writer.start()
    try:
        yield Told()
    finally:
        ended.set()
        writer.join()


def _say(line: str) -> None:
    with suppress(OSError, ValueError):
        click.echo(line, err=True)
