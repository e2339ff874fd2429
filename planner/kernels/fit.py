"""Greedy placement of buffers in one arena, in a given order."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.kernels import kernel


@kernel
def place(order: Any, nbytes: Any, start: Any, end: Any, alignment: int, best: bool, offset: Any) -> int:
    """Put each buffer in the first gap that holds it (`best`: the smallest) among those placed before and live at the same time.

    Args:
        order [n]: buffers, in the order they are placed.
        nbytes [n], start [n], end [n]: bytes, and steps, half-open.
        alignment: offsets are multiples of it.
        offset [n]: result.
    Returns:
        the highest end.
    """
    n = order.shape[0]
    # Those placed, by offset, as rows of their own: the scan below is the whole cost, and reads them in sequence.
    low = np.empty(n, np.int64)
    high = np.empty(n, np.int64)
    birth = np.empty(n, np.int64)
    death = np.empty(n, np.int64)
    count = 0
    top = 0
    for k in range(n):
        buffer = order[k]
        size = nbytes[buffer]
        if size == 0:
            offset[buffer] = 0
            continue
        born = start[buffer]
        dies = end[buffer]
        cursor = 0
        chosen = -1
        chosen_gap = 0
        for p in range(count):
            if birth[p] >= dies or born >= death[p]:
                continue
            gap = low[p] - cursor
            if gap >= size and (chosen < 0 or gap < chosen_gap):
                chosen = cursor
                chosen_gap = gap
                if not best:
                    break
            cursor = max(cursor, high[p])
        if chosen < 0:
            chosen = cursor
        offset[buffer] = chosen
        top = max(top, chosen + size)
        at = np.searchsorted(low[:count], chosen, side="right")
        for row in (low, high, birth, death):
            row[at + 1 : count + 1] = row[at:count].copy()
        low[at] = chosen
        high[at] = (chosen + size + alignment - 1) // alignment * alignment
        birth[at] = born
        death[at] = dies
        count += 1
    return top
