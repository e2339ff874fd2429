"""Orders of single runs in which little is live."""

from __future__ import annotations

import numpy as np

from planner.kernels import Ints, kernel
from planner.kernels.anneal.state import KEYS, State


@kernel
def order_by_memory(state: State, window: int, order: Ints) -> int:
    """Run ops once, each time the ready one after which least is live.

    Args:
        window: only ops less than this many rows behind the first that has not run.
        order [n]: result, op rows of the graph.
    Returns:
        how many ran: fewer than there are where the window lets none be ready.
    """
    left = np.zeros(state.value_bytes.shape[0], np.int64)  # reads of each value that are to come
    waiting = np.zeros(state.ops_stop, np.int64)  # for how many things each op waits; -1: it has run, or never runs
    ready = np.zeros(state.ops_stop, np.int64)
    count = 0
    for op in range(1, state.ops_stop):
        for v in range(state.op_outs[op], state.op_outs_stop[op]):
            left[v] = state.value_readers_stop[v] - state.value_readers[v] + state.value_kept[v]
        waiting[op] = state.op_reads_stop[op] - state.op_reads[op] + state.op_after_stop[op] - state.op_after[op]
        waiting[op] += state.op_victims_stop[op] - state.op_victims[op]
        if state.op_runs[op] == 0:
            waiting[op] = -1  # a resident
        elif waiting[op] == 0:
            ready[count] = op
            count += 1
    done = 0
    lowest = 1
    while count > 0:
        while lowest < state.ops_stop and waiting[lowest] == -1:
            lowest += 1
        chosen = -1
        least = np.int64(KEYS)
        for i in range(count):
            op = ready[i]
            if op >= lowest + window:
                continue
            change = np.int64(0)
            for v in range(state.op_outs[op], state.op_outs_stop[op]):
                if left[v] > 0:
                    change += state.value_bytes[v]
            for r in range(state.op_reads[op], state.op_reads_stop[op]):
                if left[state.read_value[r]] == 1:
                    change -= state.value_bytes[state.read_value[r]]
            if change < least or (change == least and op < ready[chosen]):
                least = change
                chosen = i
        if chosen < 0:
            break
        op = ready[chosen]
        count -= 1
        ready[chosen] = ready[count]
        waiting[op] = -1
        order[done] = op - 1
        done += 1
        for r in range(state.op_reads[op], state.op_reads_stop[op]):
            left[state.read_value[r]] -= 1
        for v in range(state.op_outs[op], state.op_outs_stop[op]):
            for r in range(state.value_readers[v], state.value_readers_stop[v]):
                count = _one_less(state.reader_op[r], waiting, ready, count)
        for r in range(state.op_later[op], state.op_later_stop[op]):
            count = _one_less(state.order_op[r], waiting, ready, count)
        for r in range(state.op_killers[op], state.op_killers_stop[op]):
            count = _one_less(state.order_op[r], waiting, ready, count)
    return done


@kernel
def _one_less(op: int, waiting: Ints, ready: Ints, count: int) -> int:
    """An op waits for one thing less; it is ready if for none."""
    waiting[op] -= 1
    if waiting[op] == 0:
        ready[count] = op
        count += 1
    return count
