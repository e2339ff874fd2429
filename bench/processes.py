"""What a user waits for: CPU seconds of child processes."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from bench.measure import Bench, Size
from bench.results import ProcessRow, Row


@final
@dataclass(frozen=True)
class Command:
    """One command line of this interpreter.

    Args:
        runs: how many for each `repeat`; the least CPU counts.
        cold: with an empty kernel cache; then once in all.
    """

    what: str
    arguments: tuple[str, ...]
    runs: int = 1
    cold: bool = False


@final
@dataclass(frozen=True)
class Processes:
    """What a user waits for: commands in processes of their own, the first of them the bare interpreter."""

    commands: tuple[Command, ...]
    name: str = "processes"
    size: Size = "quick"

    def missing(self) -> str | None:
        return None

    def rows(self, bench: Bench) -> Iterator[Row]:
        with tempfile.TemporaryDirectory() as cache:
            kept = {**os.environ, "NUMBA_CACHE_DIR": cache}
            found: dict[str, float] = {}
            # cold first: it fills the cache of the others
            for command in sorted(self.commands, key=lambda command: not command.cold):
                runs = 1 if command.cold else command.runs * bench.repeat
                found[command.what] = min(_child_seconds(command.arguments, kept) for _ in range(runs))
        bare = found[self.commands[0].what]
        for command in self.commands:
            seconds = found[command.what]
            yield ProcessRow(command.what, round(seconds, 4), round(seconds / bare, 2))


def _child_seconds(arguments: tuple[str, ...], environment: dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
