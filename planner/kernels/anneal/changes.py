"""Changes of a sequence that leave it legal: runs made again, left out, moved; each is noted, and can be undone."""

from __future__ import annotations

import numpy as np

from planner.kernels import kernel
from planner.kernels.anneal.draws import uniform
from planner.kernels.anneal.runs import delete, first_read, insert, instance, last_read_between
from planner.kernels.anneal.state import END, HEAD, LOGS, State


@kernel
def _logged_insert(state: State, op: int, before: int) -> int:
    e = insert(state, op, before)
    if e != 0:
        at = state.logged
        state.log_inserted[at] = 1
        state.log_row[at] = e
        state.logged += 1
    return e


@kernel
def _logged_delete(state: State, e: int) -> None:
    at = state.logged
    state.log_inserted[at] = 0
    state.log_row[at] = state.run_op[e]
    state.log_before[at] = state.run_next[e]
    state.logged += 1
    delete(state, e)


@kernel
def undo(state: State) -> None:
    """Take back what is logged. Runs are given out last in, first out, so every run gets the row it had."""
    while state.logged > 0:
        state.logged -= 1
        at = state.logged
        if state.log_inserted[at] == 1:
            delete(state, state.log_row[at])
        else:
            insert(state, state.log_row[at], state.log_before[at])


@kernel
def _may_stand(state: State, op: int, before: int, is_first: bool | np.bool_) -> bool:
    """True if reads, effects and order let a run of op stand in front of a run; its readers are not looked at."""
    key = state.run_key[before]  # others stand before it where their key is less
    for r in range(state.op_reads[op], state.op_reads_stop[op]):
        run = state.op_first[state.value_maker[state.read_value[r]]]
        if run == 0 or state.run_key[run] >= key:
            return False
    for r in range(state.op_killers[op], state.op_killers_stop[op]):
        run = state.op_first[state.order_op[r]]
        if run != 0 and state.run_key[run] < key:
            return False
    for r in range(state.op_victims[op], state.op_victims_stop[op]):
        run = state.op_last[state.order_op[r]]
        if run != 0 and state.run_key[run] >= key:
            return False
    if is_first:
        for r in range(state.op_after[op], state.op_after_stop[op]):
            run = state.op_first[state.order_op[r]]
            if run == 0 or state.run_key[run] >= key:
                return False
        for r in range(state.op_later[op], state.op_later_stop[op]):
            run = state.op_first[state.order_op[r]]
            if run != 0 and state.run_key[run] < key:
                return False
        if state.op_before[op] != 0 and state.run_key[state.op_first[state.op_before[op]]] >= key:
            return False
        if state.op_behind[op] != 0 and state.run_key[state.op_first[state.op_behind[op]]] < key:
            return False
    return True


@kernel
def _unread(state: State, e: int) -> bool:
    unread: bool = True
    for v in range(state.op_outs[state.run_op[e]], state.op_outs_stop[state.run_op[e]]):
        unread = unread and state.run_read[e, state.value_slot[v]] == e
    return unread


@kernel
def removable(state: State, e: int) -> bool:
    """True if the sequence stays legal without the run."""
    op = state.run_op[e]
    if state.run_older[e] != 0:
        return True
    newer = state.run_newer[e]
    if newer == 0 or not _unread(state, e):
        return False
    for r in range(state.op_later[op], state.op_later_stop[op]):
        run = state.op_first[state.order_op[r]]
        if run != 0 and state.run_key[run] < state.run_key[newer]:
            return False
    return not (state.op_behind[op] != 0 and state.run_key[state.op_first[state.op_behind[op]]] < state.run_key[newer])


@kernel
def remove(state: State, e: int) -> None:
    """Remove a run, and then those that nobody reads any more."""
    start = state.logged
    _logged_delete(state, e)
    while start < state.logged:
        op, before = state.log_row[start], state.log_before[start]
        start += 1
        # `before` may itself be gone: an instance in front of it is then looked for from what is left.
        for r in range(state.op_reads[op], state.op_reads_stop[op]):
            maker = state.value_maker[state.read_value[r]]
            if state.op_runs[maker] < 2 or state.logged + 1 > LOGS:
                continue
            run = state.op_last[maker] if state.run_op[before] == 0 else instance(state, maker, before)
            if run != 0 and _unread(state, run) and removable(state, run):
                _logged_delete(state, run)


@kernel
def evict(state: State, e: int, before: int, depth: float, worst: int, most: int) -> bool:
    """Make the outputs of run e again in front of a later run, and those of its inputs that would have to wait for it.

    Args:
        depth: chance that such an input is made again too, rather than held longer.
        worst: where not 0, inputs that would wait across this run are made again, others held.
        most: runs that are added at most; further inputs are held.
    """
    start = state.logged
    last = min(LOGS - 8, start + most)
    op = state.run_op[e]
    too_dear = state.cost + state.op_cost[op] > state.most_cost
    if too_dear or state.free_run == 0 or not _may_stand(state, op, before, np.bool_(False)):
        return False
    _logged_insert(state, op, before)
    while start < state.logged:
        made = state.log_row[start]
        start += 1
        op = state.run_op[made]
        for r in range(state.op_reads[op], state.op_reads_stop[op]):
            v = state.read_value[r]
            maker = state.value_maker[v]
            run = instance(state, maker, made)
            if run == 0 or state.op_once[maker] == 1 or state.run_read[run, state.value_slot[v]] != made:
                continue
            if state.run_next[run] == made or state.logged >= last or state.free_run == 0:
                continue
            held = last_read_between(state, v, run, made)
            if state.run_next[held] == made:
                continue
            if worst != 0:
                if state.run_key[held] >= state.run_key[worst]:
                    continue
            elif depth < 1.0 and uniform(state) >= depth:
                continue
            if state.cost + state.op_cost[maker] > state.most_cost:
                return False
            if _may_stand(state, maker, made, np.bool_(False)):
                _logged_insert(state, maker, made)
    return True


@kernel
def window_start(state: State, e: int) -> int:
    """The last of the runs that e reads, and of the older run of its op."""
    op = state.run_op[e]
    found = HEAD
    for r in range(state.op_reads[op], state.op_reads_stop[op]):
        run = instance(state, state.value_maker[state.read_value[r]], e)
        if run != 0 and state.run_key[run] > state.run_key[found]:
            found = run
    if state.run_older[e] != 0 and state.run_key[state.run_older[e]] > state.run_key[found]:
        found = state.run_older[e]
    return found


@kernel
def window_stop(state: State, e: int) -> int:
    """The first run that reads e, or the next run of its op, or the end."""
    op = state.run_op[e]
    found = END if state.run_newer[e] == 0 else state.run_newer[e]
    for v in range(state.op_outs[op], state.op_outs_stop[op]):
        if state.run_read[e, state.value_slot[v]] != e:
            run = first_read(state, v, e, found)
            if state.run_key[run] < state.run_key[found]:
                found = run
    return found


@kernel
def shift(state: State, e: int, before: int) -> int:
    """Move a run in front of another, where the caller has seen that its readers come later; 0 if it may not."""
    op = state.run_op[e]
    if before == e or state.run_next[e] == before or state.logged + 2 > LOGS:
        return 0
    # Its own first run does not count as one of those it waits for: an op does not read itself.
    if not _may_stand(state, op, before, state.run_older[e] == 0):
        return 0
    _logged_delete(state, e)
    return _logged_insert(state, op, before)


@kernel
def _moved(state: State, at: int) -> int:
    """The run that an entry of the log put in, or 0 where it put none in or the run is gone again."""
    run = state.log_row[at] if state.log_inserted[at] == 1 else 0
    return run if state.run_op[run] != 0 else 0


@kernel
def follow(state: State, later: bool | np.bool_) -> None:
    """After a run moved later, inputs that nobody else reads follow; after it moved earlier, readers free to do so."""
    most = 1 + np.int64(1.0 / (0.02 + uniform(state)))
    start = state.logged - 1
    room = min(LOGS, state.logged + 2 * most) - 2
    while start < state.logged <= room:
        moved = _moved(state, start)
        start += 1
        op = state.run_op[moved]
        if later:
            for r in range(state.op_reads[op], state.op_reads_stop[op]):
                run = instance(state, state.value_maker[state.read_value[r]], moved)
                if run == 0 or state.run_next[run] == moved or state.logged > room:
                    continue
                if window_stop(state, run) == moved and uniform(state) < 0.8:
                    shift(state, run, moved)
            continue
        for v in range(state.op_outs[op], state.op_outs_stop[op]):
            if state.run_read[moved, state.value_slot[v]] == moved:
                continue
            for r in range(state.value_readers[v], state.value_readers_stop[v]):
                run = state.op_first[state.reader_op[r]]
                if run == 0 or state.run_key[run] <= state.run_key[moved] or state.logged > room:
                    continue
                following = state.run_next[moved]
                if window_start(state, run) == moved and following != run and uniform(state) < 0.8:
                    shift(state, run, following)
