"""Measure a command: sample its process tree until it ends, and collect the device peaks that PyTorch reports.

The tree's memory is the sum of PSS: a page that n processes map counts 1/n in each. The sum of RSS would count a page
that processes of the tree share once for each, the sum of USS not at all. A page shared with programs outside the tree
counts in part, so the sum is raised to the largest RSS in the tree. Only Linux has PSS; elsewhere the sum of RSS stands
in. Samples miss short peaks; the kernel keeps the highest RSS of each finished process, and where the largest of those
is above all samples, it is the peak. Pages that are swapped out are not counted.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Optional

import msgspec

from planner.errors import PlannerError
from planner.footprint import allocator_hook
from planner.footprint.calibration import Calibration, Kind, Prediction
from planner.footprint.process_tree import Tree
from planner.footprint.signals import listening
from planner.text import printable

SHORTEST_SECONDS: Final = 0.01
LONGEST_SECONDS: Final = 60.0
_SLICE_SECONDS: Final = 0.1  # the longest that a signal waits to be passed on
_FIRST_SECONDS: Final = 0.01  # between the first samples; each pause is twice the last, up to the interval

#: Processes now, highest bytes so far, seconds so far.
Progress = Callable[[int, int, float], None]


class DevicePeak(msgspec.Struct, frozen=True):
    """Peak of PyTorch's caching allocator on one device, summed over the processes that used it.

    Args:
        device, name: as PyTorch calls it.
        allocated_bytes: of live tensors (`max_memory_allocated`).
        reserved_bytes: of the segments held for them (`max_memory_reserved`).
        processes: how many reported; their peaks need not coincide.
    """

    device: str
    name: str
    allocated_bytes: int
    reserved_bytes: int
    processes: int


class Measurement(msgspec.Struct, frozen=True):
    """One measured run of a command.

    Args:
        command: what ran.
        exit_code: of the command; 128 + N if signal N ended it.
        signal: the name of that signal.
        host_bytes: the peak: the larger of the next two.
        sampled_bytes: the most that a sample found in the tree, by `method`.
        kernel_bytes: highest RSS of the largest process by the kernel's count; None if it may be this process's own.
        method: "pss" or "rss".
        processes: most at once.
        samples, interval_seconds, seconds: of the run.
        left_running: processes that the command left behind.
        devices: what PyTorch reported. A process that was killed, a worker of multiprocessing by "fork" or "forkserver"
            and a Python run with -I, -E or -S report nothing.
    """

    command: tuple[str, ...]
    exit_code: int
    signal: Optional[str]
    host_bytes: int
    sampled_bytes: int
    kernel_bytes: Optional[int]
    method: str
    processes: int
    samples: int
    interval_seconds: float
    seconds: float
    left_running: int
    devices: tuple[DevicePeak, ...]

    def peak(self, kind: Kind | None = None) -> tuple[Kind, int]:
        """The kind of memory, and its peak to compare with a prediction; on devices, live tensors of the fullest one.

        Args:
            kind: None: the devices if any were used, else the host.
        Raises:
            PlannerError: "device", and no device was reported.
        """
        if kind == "host" or (kind is None and not self.devices):
            return "host", self.host_bytes
        if not self.devices:
            needs = "PyTorch must have used CUDA in a Python that reads PYTHONPATH, and that was not killed"
            raise PlannerError(f"no device was reported: {needs}")
        return "device", max(device.allocated_bytes for device in self.devices)

    def calibration(
        self, predicted: Prediction | None, *, baseline_bytes: int = 0, kind: Kind | None = None
    ) -> Calibration:
        """The measured peak beside its prediction; see `Calibration`."""
        found, measured_bytes = self.peak(kind)
        return Calibration(found, measured_bytes, baseline_bytes, predicted, self.command)


def measure(
    command: Sequence[str],
    *,
    interval_seconds: float = 0.1,
    stdout: int | None = None,
    progress: Progress | None = None,
) -> Measurement:
    """Run a command to its end, and sample the memory of its process tree.

    The command shares input, output and errors with this process. An interrupt or a termination is passed on to the
    whole tree, and the measurement goes on until the command ends; the third kills the tree. Processes that the command
    leaves behind are ended after an interrupt, and otherwise left running, as without a measurement.

    Args:
        command: program and arguments; no shell.
        interval_seconds: between samples, from 0.01 to 60.
        stdout: a file descriptor for the command's output.
        progress: called after each sample.
    Raises:
        PlannerError: the command cannot be started, or psutil is missing.
    """
    if not SHORTEST_SECONDS <= interval_seconds <= LONGEST_SECONDS:
        allowed = f"from {SHORTEST_SECONDS} to {LONGEST_SECONDS:g} s"
        raise PlannerError(f"an interval of {interval_seconds} s is not {allowed}")
    try:
        import psutil  # noqa: F401
    except ImportError:
        raise PlannerError("measuring needs psutil: pip install 'sublinear-planner[measure]'") from None
    reports = tempfile.TemporaryDirectory(prefix="planner-measure-", ignore_cleanup_errors=True)
    with reports as folder, listening() as signals:
        started = time.monotonic()
        child = _start(command, folder, stdout)
        before = _kernel_peaks()
        tree = Tree(child.pid, folder)
        samples, pause = 0, 0.0
        try:
            while not _ended(child, pause, lambda: signals.pass_on(tree)):
                pause = min(interval_seconds, 2 * pause or _FIRST_SECONDS)
                tree.sample()
                samples += 1
                if progress is not None:
                    progress(tree.processes, tree.sampled_bytes, time.monotonic() - started)
            seconds = time.monotonic() - started
            after = _kernel_peaks()
            left = tree.left()
        except BaseException:
            tree.end(tree.left(wait_seconds=0))
            child.wait()
            raise
        if signals.count:
            tree.end(left)
            left = []
        kernel_bytes = after[1] if after[1] > max(before) else None
        return Measurement(
            command=tuple(command),
            exit_code=child.returncode if child.returncode >= 0 else 128 - child.returncode,
            signal=_signal_name(-child.returncode) if child.returncode < 0 else None,
            host_bytes=max(tree.sampled_bytes, kernel_bytes or 0),
            sampled_bytes=tree.sampled_bytes,
            kernel_bytes=kernel_bytes,
            method=tree.method,
            processes=tree.most_processes,
            samples=samples,
            interval_seconds=interval_seconds,
            seconds=seconds,
            left_running=len(left),
            devices=_device_peaks(Path(folder)),
        )


def _start(command: Sequence[str], folder: str, stdout: int | None) -> subprocess.Popen[bytes]:
    """Start the command, with `allocator_hook` for each Python in it."""
    if not command:
        raise PlannerError("there is no command to measure; write it after --, as planner measure -- python train.py")
    Path(folder, "sitecustomize.py").write_bytes(Path(allocator_hook.__file__).read_bytes())
    path = os.environ.get("PYTHONPATH")
    ours = {"PYTHONPATH": f"{folder}{os.pathsep}{path}" if path else folder, allocator_hook.FOLDER: folder}
    try:
        return subprocess.Popen(list(command), env={**os.environ, **ours}, stdout=stdout)
    except (OSError, ValueError) as error:
        name = printable(command[0])
        script = name.endswith(".py")
        fix = f"write python {name}" if script else "name a program on the PATH, or a file that can be run"
        raise PlannerError(f"cannot run {name!r}: {getattr(error, 'strerror', None) or error}; {fix}") from None


def _ended(child: subprocess.Popen[bytes], interval_seconds: float, each_slice: Callable[[], None]) -> bool:
    """Wait one interval; True as soon as the command has ended."""
    until = time.monotonic() + interval_seconds
    while (rest := until - time.monotonic()) > 0:
        try:
            child.wait(timeout=min(rest, _SLICE_SECONDS))
            return True
        except subprocess.TimeoutExpired:
            each_slice()
    return False


def _kernel_peaks() -> tuple[int, int]:
    """Highest RSS in bytes of this process, and of the largest finished descendant; zeros where the system hides them.

    A child begins as a copy of its parent and inherits the parent's peak, so only a peak above ours is surely its own.
    """
    try:
        import resource
    except ImportError:
        return 0, 0
    unit = 1 if sys.platform == "darwin" else 1024
    own, children = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own * unit, children * unit


class _Entry(msgspec.Struct):
    device: str
    name: str
    uuid: str
    allocated_bytes: int
    reserved_bytes: int


class _Reported(msgspec.Struct):
    devices: tuple[_Entry, ...]


def _device_peaks(folder: Path) -> tuple[DevicePeak, ...]:
    """The reports of all processes, by device; its uuid comes first, as processes may number devices differently."""
    found: dict[str, DevicePeak] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            entries = msgspec.json.decode(path.read_bytes(), type=_Reported).devices
        except (OSError, msgspec.MsgspecError):
            continue
        for entry in entries:
            key = entry.uuid or entry.device
            seen = found.get(key, DevicePeak(entry.device, entry.name, 0, 0, 0))
            allocated = entry.allocated_bytes + seen.allocated_bytes
            reserved = entry.reserved_bytes + seen.reserved_bytes
            found[key] = DevicePeak(seen.device, seen.name, allocated, reserved, seen.processes + 1)
    return tuple(sorted(found.values(), key=lambda peak: peak.device))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
