"""Signals that come while a command runs, and are passed on to it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from planner.footprint.process_tree import Tree

_ENOUGH: Final = 3  # the third interrupt kills


class Signals:
    """Interrupts and terminations that came, kept until they are passed on."""

    def __init__(self) -> None:
        self.count = self._passed = 0
        self._waiting: list[int] = []

    def keep(self, number: int, _frame: Any) -> None:
        self.count += 1
        self._waiting.append(number)

    def pass_on(self, tree: Tree) -> None:
        """Send the signals that came to the tree, but for Ctrl-C at the terminal, which has reached it already."""
        while self._waiting:
            number = self._waiting.pop(0)
            self._passed += 1
            if self._passed >= _ENOUGH:
                tree.send(getattr(signal, "SIGKILL", signal.SIGTERM))
            elif number != signal.SIGINT or not _in_foreground():
                tree.send(number)


@contextmanager
def listening() -> Iterator[Signals]:
    """Keep signals instead of ending on them; ignored ones stay ignored. Only the main thread can do so."""
    signals = Signals()
    before: dict[int, Any] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for name in ("SIGINT", "SIGTERM", "SIGHUP"):
                number = getattr(signal, name, None)
                if number is not None and signal.getsignal(number) not in (signal.SIG_IGN, None):
                    before[number] = signal.signal(number, signals.keep)
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _in_foreground() -> bool:
    """True if Ctrl-C at the terminal reaches this process and, in the same group, the command."""
    if os.name == "nt":
        return True
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
