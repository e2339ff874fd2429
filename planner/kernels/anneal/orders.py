"""Orders of single runs in which little is live."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.kernels import kernel

from planner.kernels.anneal.state import (  # isort: skip
    AFTER,
    AFTER_STOP,
    BYTES,
    FIRST_OP,
    KEPT,
    KEYS,
    KILLERS,
    KILLERS_STOP,
    LATER,
    LATER_STOP,
    OPERATION,
    OPS_STOP,
    OUTS,
    OUTS_STOP,
    READERS,
    READERS_STOP,
    READS,
    READS_STOP,
    ROW,
    RUNS,
    VALUE,
    VICTIMS,
    VICTIMS_STOP,
)


@kernel
def order_by_memory(s: Any, window: int, left: Any, waiting: Any, ready: Any, order: Any) -> int:
    """Run ops once, each time the ready one after which least is live.

    Args:
        window: only ops less than this many rows behind the first that has not run.
        left [n words of all values], waiting [n], ready [n]: working memory; `left` has one entry a value, by index //
        VALUE. order [n]: result, op rows.
    Returns:
        how many ran: fewer than there are where the window lets none be ready.
    """
    first_value = s[OPS_STOP]
    n = (s[OPS_STOP] - s[FIRST_OP]) // OPERATION
    for k in range(n):
        op = s[FIRST_OP] + k * OPERATION
        waiting[k] = (s[op + READS_STOP] - s[op + READS]) // 2 + s[op + AFTER_STOP] - s[op + AFTER]
        waiting[k] += s[op + VICTIMS_STOP] - s[op + VICTIMS]
        for v in range(s[op + OUTS], s[op + OUTS_STOP], VALUE):
            left[(v - first_value) // VALUE] = s[v + READERS_STOP] - s[v + READERS] + s[v + KEPT]
    count = 0
    done = 0
    lowest = 0
    for k in range(n):
        if s[s[FIRST_OP] + k * OPERATION + RUNS] == 0:
            waiting[k] = -1  # a resident: it is never run
        elif waiting[k] == 0:
            ready[count] = k
            count += 1
    while count > 0:
        while lowest < n and waiting[lowest] == -1:
            lowest += 1
        chosen = -1
        least = np.int64(KEYS)
        for i in range(count):
            k = ready[i]
            if k >= lowest + window:
                continue
            op = s[FIRST_OP] + k * OPERATION
            change = np.int64(0)
            for v in range(s[op + OUTS], s[op + OUTS_STOP], VALUE):
                if left[(v - first_value) // VALUE] > 0:
                    change += s[v + BYTES]
            for r in range(s[op + READS], s[op + READS_STOP], 2):
                if left[(s[r] - first_value) // VALUE] == 1:
                    change -= s[s[r] + BYTES]
            if change < least or (change == least and k < ready[chosen]):
                least = change
                chosen = i
        if chosen < 0:
            break
        k = ready[chosen]
        count -= 1
        ready[chosen] = ready[count]
        waiting[k] = -1
        order[done] = k
        done += 1
        op = s[FIRST_OP] + k * OPERATION
        for r in range(s[op + READS], s[op + READS_STOP], 2):
            left[(s[r] - first_value) // VALUE] -= 1
        for v in range(s[op + OUTS], s[op + OUTS_STOP], VALUE):
            for r in range(s[v + READERS], s[v + READERS_STOP]):
                count = _one_less(s, s[r], waiting, ready, count)
        for r in range(s[op + LATER], s[op + LATER_STOP]):
            count = _one_less(s, s[r], waiting, ready, count)
        for r in range(s[op + KILLERS], s[op + KILLERS_STOP]):
            count = _one_less(s, s[r], waiting, ready, count)
    return done


@kernel
def _one_less(s: Any, op: int, waiting: Any, ready: Any, count: int) -> int:
    """An op waits for one thing less; ready if for none."""
    k = s[op + ROW]
    waiting[k] -= 1
    if waiting[k] == 0:
        ready[count] = k
        count += 1
    return count
