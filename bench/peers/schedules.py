"""Schedules of the library `checkpoint-schedules` for unit chains, as sequences of ops: Revolve, and Maddison's mixed
one.

They count checkpoints of equal size and do not know bytes: the most checkpoints whose judged peak fits are taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench.peers.program import Program, peak_of


def missing() -> str | None:
    """Why it cannot run here, or None."""
    try:
        import checkpoint_schedules  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
    except ImportError:
        return "chain schedules: checkpoint-schedules is not installed; pip install 'sublinear-planner[bench]'"
    return None


def applies(program: Program) -> bool:
    """A chain of equal steps: step k reads value k - 1, and its backward op, the k-th from the end, reads values k and
    k - 1.
    """
    n = program.ops
    if program.backward is None or n % 2 or len(np.unique(program.cost)) != 1 or len(np.unique(program.nbytes)) != 1:
        return False
    reads = [set(program.reads[program.read_ptr[k] : program.read_ptr[k + 1]].tolist()) for k in range(n)]
    forward = all(reads[k] == ({k - 1} if k else set()) for k in range(n // 2))
    return forward and all(
        {v for v in reads[n - 1 - k] if v < n // 2} == {v for v in (k, k - 1) if v >= 0} for k in range(n // 2)
    )


def unit_chain(program: Program, budget: int) -> list[int] | None:
    """The cheapest of both schedules within the budget; or None."""
    from checkpoint_schedules import MixedCheckpointSchedule, Revolve, StorageType

    steps = program.ops // 2
    makers: list[Callable[[int], Any]] = [
        lambda units: Revolve(steps, units),
        lambda units: MixedCheckpointSchedule(steps, units, storage=StorageType.RAM),
    ]
    found = []
    for make in makers:
        low, high = 0, min(steps - 1, budget)  # `low` checkpoints fit, or it is 0
        while low < high:
            middle = (low + high + 1) // 2
            if peak_of(program, _sequence(make(middle), steps)) <= budget:
                low = middle
            else:
                high = middle - 1
        if low:
            found.append(_sequence(make(low), steps))
    return min(found, key=len, default=None)


def _sequence(schedule: Any, steps: int) -> list[int]:
    from checkpoint_schedules import Forward, Reverse

    runs: list[int] = []
    for action in schedule:
        if isinstance(action, Forward):
            runs.extend(range(action.n0, action.n1))
        elif isinstance(action, Reverse):
            runs.extend(2 * steps - 1 - k for k in reversed(range(action.n0, action.n1)))
        if schedule.is_exhausted:
            break
    return runs
