"""A measurement as text and as JSON, and its progress in the title of a terminal."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from planner.footprint.calibration import Calibration, Prediction
from planner.footprint.measure import Measurement, Progress
from planner.text import printable, shortened
from planner.units import format_bytes

_METHODS = {
    "pss": "sum of PSS (a page shared by n processes counts 1/n in each)",
    "rss": "sum of RSS (shared pages count in each process)",
}


def as_lines(
    found: Measurement, predicted: Prediction | None, calibration: Calibration | None, *, saved: str | None
) -> list[str]:
    """The `measure` command's answer.

    Args:
        calibration: None where the measurement gives none.
        saved: the file that holds the calibration.
    """
    title = shortened(printable(shlex.join(found.command)), 60)
    ended = found.signal or f"exit code {found.exit_code}"
    how = _METHODS[found.method] if found.processes > 1 else "RSS"
    took = f"{format_bytes(found.host_bytes)} of host memory at the peak"
    lines = [
        f"{title} took {took}, and ended with {ended} after {found.seconds:.1f} s ({found.samples:,} samples)",
        f"  Host peak {format_bytes(found.host_bytes)} in {found.processes} process{'es' * (found.processes != 1)}",
        f"    Samples {format_bytes(found.sampled_bytes)}, {how}",
    ]
    if found.kernel_bytes is not None:
        lines.append(f"    Kernel  {format_bytes(found.kernel_bytes)}, highest RSS of the largest process")
    for device in found.devices:
        by = f" · {device.processes} processes" if device.processes > 1 else ""
        reserved = f"{format_bytes(device.reserved_bytes)} reserved{by}"
        lines.append(f"  {device.device} peak {format_bytes(device.allocated_bytes)} allocated, {reserved}")
        lines.append(f"    {device.name}, by PyTorch's allocator: context and libraries are not in it")
    if not found.samples or not found.host_bytes:
        lines.append("  It ended before it could be sampled")
    if found.left_running:
        lines.append(f"  Processes left running: {found.left_running}")
    if predicted is not None:
        arena = "" if predicted.arena_bytes is None else f", arena {format_bytes(predicted.arena_bytes)}"
        lines.append(f"  Predicted peak {format_bytes(predicted.peak_bytes)}{arena} · {predicted.graph}")
    if predicted is not None and calibration is not None:
        above = " above the baseline" if calibration.baseline_bytes else ""
        lines.append(f"  Measured{above} / predicted: {calibration.ratio:.3f} · {calibration}")
        if calibration.kind == "host" and not calibration.baseline_bytes:
            why = "the ratio covers interpreter and libraries, and is too high for larger models"
            lines.append(f"  No --baseline: {why}")
    if saved is not None:
        option = "--baseline" if predicted is None else "planner estimate GRAPH --calibration"
        lines.append(f"  Saved to {saved}; {option} takes it")
    return lines


def as_object(
    found: Measurement, predicted: Prediction | None, calibration: Calibration | None, *, saved: str | None
) -> dict[str, Any]:
    """The same for JSON, with exact bytes."""
    ratio = None if predicted is None or calibration is None else calibration.ratio
    return {"measurement": found, "predicted": predicted, "calibration": calibration, "ratio": ratio, "file": saved}


@contextmanager
def progress_title(command: Sequence[str]) -> Iterator[Progress | None]:
    """Progress in the title of the terminal that standard error is; None where it is none.

    The command writes to the same terminal, and a line of ours would be drawn over what it says.
    """
    from rich.console import Console

    console = Console(stderr=True)
    if not sys.stderr.isatty() or console.is_dumb_terminal:
        yield None
        return
    name = printable(command[0]) if command else ""

    def show(processes: int, highest_bytes: int, seconds: float) -> None:
        peak = f"{format_bytes(highest_bytes)} peak"
        console.set_window_title(f"{peak} · {processes} processes · {seconds:.0f} s · {name}")

    try:
        yield show
    finally:
        console.set_window_title("")
