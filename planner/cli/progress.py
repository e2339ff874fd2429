"""Progress on standard error, and only where that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.problem import Status


@contextmanager
def spinner(what: str) -> Iterator[None]:
    """A spinner on standard error while something long runs; nothing where that is no terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(f"{what} ..."):
        yield


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int, str], None] | None]:
    """A bar on standard error, for work that counts its steps; None where that is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress, TimeElapsedColumn

    columns = (*Progress.get_default_columns(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total, last: bar.update(task, completed=done, total=total, description=f"{what}, {last}")


@contextmanager
def search_progress(what: str) -> Iterator[Callable[[Status], None] | None]:
    """A line on standard error with the status and time of a search; None where that is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as line:
        task = line.add_task(what, total=None)

        def show(status: Status) -> None:
            if status.infeasible is not None:
                line.console.print(f"{status.infeasible}\nLooking for the least that works.", markup=False)
            line.update(task, description=f"{what}, {standing_line(status)}")

        yield show


def standing_line(status: Status) -> str:
    """The best overhead, its lower bound, and how many plans were judged.

    >>> from planner.problem import Status
    >>> standing_line(Status("chain", 100, 0.0425, 0.01, 1234, 2.0))
    'chain: best +4.25 % cost, none below +1.00 %; 1,234 plans'
    """
    best = "none fits yet" if status.overhead is None else f"best +{100 * status.overhead:.2f} % cost"
    bound = f"none below +{100 * status.overhead_lower_bound:.2f} %"
    return f"{status.strategy}: {best}, {bound}; {status.plans_judged:,} plans"


@contextmanager
def status(what: str) -> Iterator[Callable[[str], None] | None]:
    """A spinner with words that change, for work with a best so far; None where that is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    with Console(stderr=True).status(f"{what} ...") as line:
        yield lambda now: line.update(f"{what}: {now}")
