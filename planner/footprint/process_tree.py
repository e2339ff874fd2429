"""The process tree of a command, and the memory it holds. psutil is imported when a tree is made."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from planner.footprint import allocator_hook

if TYPE_CHECKING:
    from psutil import Process

_LEAVING_SECONDS: Final = 0.5  # for processes that end because the command did
_GRACE_SECONDS: Final = 3.0  # between asking leftover processes to end, and killing them


class Tree:
    """The processes of a command, and the most memory that they held.

    Args:
        pid: of the command.
        mark: the value of `allocator_hook.FOLDER` in the environment of each of them.
    """

    def __init__(self, pid: int, mark: str) -> None:
        import psutil

        self._psutil, self._mark = psutil, mark
        self._seen: set[Process] = set()
        self.method = "rss"
        with suppress(psutil.Error):
            self._seen.add(psutil.Process(pid))
            self.method = "pss" if hasattr(psutil.Process().memory_full_info(), "pss") else "rss"
        self.sampled_bytes = self.processes = self.most_processes = 0

    def alive(self) -> set[Process]:
        """Processes that run; an orphan of the tree still belongs to it, and so do its children."""
        found: set[Process] = set()
        for process in sorted(self._seen, key=lambda process: process.create_time()):  # parents first
            if process not in found and process.is_running():
                with suppress(self._psutil.Error):
                    found |= {process, *process.children(recursive=True)}
        self._seen = found
        return found

    def sample(self) -> None:
        """Add up the memory that the tree holds now; a process of 0 bytes has ended."""
        resident = {process: nbytes for process in self.alive() if (nbytes := self._resident_bytes(process))}
        self.processes = len(resident)
        self.most_processes = max(self.most_processes, self.processes)
        largest_bytes = max(resident.values(), default=0)
        self.sampled_bytes = max(self.sampled_bytes, largest_bytes)
        if sum(resident.values()) > self.sampled_bytes:  # PSS is costly to read, and its sum is never above that of RSS
            self.sampled_bytes = max(self.sampled_bytes, self._together_bytes(resident))

    def _together_bytes(self, resident: dict[Process, int]) -> int:
        """The sum of PSS, or 0 if it may count a page twice: the shares of a process that ends go to the others."""
        # A child made by vfork shows its parent's pages as its own until it becomes another program; the youngest are
        # read first, so that the second reading finds them changed.
        youngest_first = sorted(resident, key=lambda process: process.create_time(), reverse=True)
        total = sum(self._share_bytes(process, resident[process]) for process in youngest_first)
        after = [self._resident_bytes(process) for process in resident]
        return min(total, sum(after)) if all(after) else 0

    def _resident_bytes(self, process: Process) -> int:
        try:
            return int(process.memory_info().rss)
        except self._psutil.Error:
            return 0

    def _share_bytes(self, process: Process, resident_bytes: int) -> int:
        if self.method == "rss":
            return resident_bytes
        try:
            return int(process.memory_full_info().pss)
        except self._psutil.AccessDenied:  # the process changed its user
            return resident_bytes
        except self._psutil.Error:
            return 0

    def send(self, number: int) -> None:
        """Send a signal to every process of the tree."""
        for process in self.alive():
            with suppress(self._psutil.Error, OSError, ValueError):
                process.send_signal(number)

    def left(self, *, wait_seconds: float = _LEAVING_SECONDS) -> list[Process]:
        """Processes that still run after a moment to end by themselves; an environment tells those no sample saw."""
        found = self.alive()
        for process in self._psutil.process_iter():
            with suppress(self._psutil.Error, OSError):
                if process.environ().get(allocator_hook.FOLDER) == self._mark:
                    found.add(process)
        running: list[Process] = []
        for process in self._psutil.wait_procs(found, timeout=wait_seconds)[1]:
            with suppress(self._psutil.Error):
                if process.status() != self._psutil.STATUS_ZOMBIE:
                    running.append(process)
        return running

    def end(self, processes: Sequence[Process]) -> None:
        """Ask processes to end, and kill those that do not."""
        waiting = list(processes)
        for number in (signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM)):
            for process in waiting:
                with suppress(self._psutil.Error, OSError):
                    process.send_signal(number)
            waiting = self._psutil.wait_procs(waiting, timeout=_GRACE_SECONDS)[1]
