"""The runs and which of them reads which instance: a sequence loaded, a run put in, a run taken out."""

from __future__ import annotations

import numpy as np

from planner.kernels import Ints, kernel
from planner.kernels.anneal.liveness import add, memory_at, place_run, repack, unplace_run
from planner.kernels.anneal.state import BLOCK, END, FIRST_RUN, HEAD, KEYS, State


@kernel
def load(state: State, sequence: Ints, budget: int) -> None:
    """The state of a legal sequence.

    Args:
        sequence [L]: op rows, L below the number of runs there is room for.
        budget: bytes, residents apart, above which memory is counted as excess.
    """
    length = sequence.shape[0]
    for op in range(1, state.ops_stop):
        state.op_first[op] = 0
        state.op_last[op] = 0
        state.op_runs[op] = 0
    state.n_runs = length
    state.budget = budget
    state.logged = 0
    state.ending = 0
    state.free_run = 0
    for k in range(state.most_runs - 1, length - 1, -1):
        e = FIRST_RUN + k
        state.run_next[e] = state.free_run
        state.free_run = e
    state.run_key[HEAD] = 0
    state.run_key[END] = KEYS
    state.scratch[: length + 1] = 0
    state.cost = 0.0
    front = HEAD
    for step in range(length):
        e = FIRST_RUN + step
        op = 1 + sequence[step]
        state.run_op[e] = op
        state.run_key[e] = step + 1
        state.run_previous[e] = front
        state.run_next[front] = e
        front = e
        state.run_stolen[e] = 0
        state.run_older[e] = state.op_last[op]
        state.run_newer[e] = 0
        if state.op_last[op] != 0:
            state.run_newer[state.op_last[op]] = e
        else:
            state.op_first[op] = e
        state.op_runs[op] += 1
        state.cost += state.op_cost[op]
        for r in range(state.op_reads[op], state.op_reads_stop[op]):
            v = state.read_value[r]
            state.run_read[state.op_last[state.value_maker[v]], state.value_slot[v]] = e
        state.op_last[op] = e
        for v in range(state.op_outs[op], state.op_outs_stop[op]):
            state.run_read[e, state.value_slot[v]] = e
    state.run_next[front] = END
    state.run_previous[END] = front
    for op in range(1, state.ops_stop):
        for v in range(state.op_outs[op], state.op_outs_stop[op]):
            if state.value_kept[v] and state.op_last[op] != 0:
                state.run_read[state.op_last[op], state.value_slot[v]] = END
                state.ending += state.value_bytes[v]
    for step in range(length):
        e = FIRST_RUN + step
        op = state.run_op[e]
        for v in range(state.op_outs[op], state.op_outs_stop[op]):
            end = state.run_read[e, state.value_slot[v]]
            state.scratch[step] += state.value_bytes[v]
            state.scratch[(length if end == END else state.run_key[end])] -= state.value_bytes[v]
            if end != END and end != e:
                for r in range(state.op_reads[state.run_op[end]], state.op_reads_stop[state.run_op[end]]):
                    if state.read_value[r] == v:
                        state.run_stolen[end] += state.read_steal[r]
    live = np.int64(0)
    for step in range(length):
        e = FIRST_RUN + step
        live += state.scratch[step]
        b = 1 + step // BLOCK
        state.block_added[b] = 0
        state.run_block[e] = b
        state.run_place[e] = step % BLOCK
        state.block_memory[b, step % BLOCK] = live + state.op_workspace[state.run_op[e]] - state.run_stolen[e]
    repack(state)


@kernel
def save(state: State) -> None:
    """Note the sequence as the best; nothing is pending then."""
    run = state.run_next[HEAD]
    count = 0
    while run != END:
        state.best[count] = state.run_op[run] - 1
        count += 1
        run = state.run_next[run]
    state.best_length = count
    state.best_cost = state.cost
    state.best_excess = state.excess
    state.pending = 0


@kernel
def instance(state: State, op: int, run: int) -> int:
    """The newest run of an op before another run, or 0."""
    found = state.op_last[op]
    while found != 0 and state.run_key[found] >= state.run_key[run]:
        found = state.run_older[found]
    return found


@kernel
def last_read_between(state: State, v: int, start: int, stop: int) -> int:
    """The last run after start and before stop that reads v, or start itself."""
    found = start
    low = state.run_key[start]
    for r in range(state.value_readers[v], state.value_readers_stop[v]):
        run = instance(state, state.reader_op[r], stop)
        if run != 0 and state.run_key[run] > low:
            low = state.run_key[run]
            found = run
    return found


@kernel
def first_read(state: State, v: int, start: int, stop: int) -> int:
    """The first run after start and up to stop that reads v, or stop."""
    found = stop
    low, high = state.run_key[start], state.run_key[stop]
    for r in range(state.value_readers[v], state.value_readers_stop[v]):
        run = state.op_first[state.reader_op[r]]
        while run != 0 and state.run_key[run] <= low:
            run = state.run_newer[run]
        if run != 0 and state.run_key[run] < high:
            high = state.run_key[run]
            found = run
    return found


@kernel
def _steal(state: State, run: int, v: int, sign: int) -> None:
    """The instance of v that a run reads begins (1) or ceases (-1) to die there: an output may take its place."""
    if run == END:
        return
    op = state.run_op[run]
    for r in range(state.op_reads[op], state.op_reads_stop[op]):
        if state.read_value[r] == v and state.read_steal[r] > 0:
            state.run_stolen[run] += sign * state.read_steal[r]
            add(state, run, run, -sign * state.read_steal[r])


@kernel
def _through(state: State, run: int) -> int:
    """Bytes live across the place just before a run."""
    if run == END:
        return state.ending
    op = state.run_op[run]
    nbytes = memory_at(state, run) - state.op_workspace[op] + state.run_stolen[run]
    for v in range(state.op_outs[op], state.op_outs_stop[op]):
        nbytes -= state.value_bytes[v]
    return nbytes


@kernel
def _read_until(state: State, v: int, e: int, end: int) -> None:
    """Make a run the last to read the instance of v that run e made."""
    k = state.value_slot[v]
    before = state.run_read[e, k]
    if before != e:
        _steal(state, before, v, np.int64(-1))
    state.run_read[e, k] = end
    if state.run_key[end] > state.run_key[before]:
        add(state, state.run_next[before], end, state.value_bytes[v])
    else:
        add(state, state.run_next[end], before, -state.value_bytes[v])
    if end != e:
        _steal(state, end, v, np.int64(1))


@kernel
def _join(state: State, op: int, older: int, newer: int) -> None:
    """Make two runs of an op neighbours among its runs; 0 stands for the ends."""
    if older == 0:
        state.op_first[op] = newer
    else:
        state.run_newer[older] = newer
    if newer == 0:
        state.op_last[op] = older
    else:
        state.run_older[newer] = older


@kernel
def insert(state: State, op: int, before: int) -> int:
    """A new run of an op in front of a run; 0 where there is no room for one. Legality is the caller's."""
    if state.free_run == 0:
        return 0
    if state.free_block == 0:
        repack(state)
    if state.run_key[before] - state.run_key[state.run_previous[before]] < 2:
        repack(state)
    through = _through(state, before)
    e = state.free_run
    state.free_run = state.run_next[e]
    front = state.run_previous[before]
    state.run_op[e] = op
    state.run_key[e] = state.run_key[front] + (state.run_key[before] - state.run_key[front]) // 2
    state.run_previous[e] = front
    state.run_next[e] = before
    state.run_next[front] = e
    state.run_previous[before] = e
    state.run_stolen[e] = 0
    state.n_runs += 1
    state.cost += state.op_cost[op]
    place_run(state, e, before, through + state.op_workspace[op])
    older = instance(state, op, e)
    newer = state.op_first[op] if older == 0 else state.run_newer[older]
    _join(state, op, older, e)
    _join(state, op, e, newer)
    state.op_runs[op] += 1
    for v in range(state.op_outs[op], state.op_outs_stop[op]):
        k = state.value_slot[v]
        if older != 0:
            end = state.run_read[older, k]
            if state.run_key[end] > state.run_key[e]:  # its later reads are of the new instance from now on
                shorter = last_read_between(state, v, older, e)
                state.run_read[older, k] = shorter
                state.run_read[e, k] = end
                add(state, state.run_next[shorter], front, -state.value_bytes[v])
                if shorter != older:
                    _steal(state, shorter, v, np.int64(1))
            else:
                state.run_read[e, k] = e
                add(state, e, e, state.value_bytes[v])
        else:
            stop = END if newer == 0 else newer
            end = END if newer == 0 and state.value_kept[v] else last_read_between(state, v, e, stop)
            if end == END:
                state.ending += state.value_bytes[v]
            state.run_read[e, k] = end
            add(state, e, end, state.value_bytes[v])
            if end != e:
                _steal(state, end, v, np.int64(1))
    for r in range(state.op_reads[op], state.op_reads_stop[op]):
        v = state.read_value[r]
        run = instance(state, state.value_maker[v], e)
        if run != 0 and state.run_key[state.run_read[run, state.value_slot[v]]] < state.run_key[e]:
            _read_until(state, v, run, e)
    return e


@kernel
def delete(state: State, e: int) -> None:
    """Take a run out; its reads go to the instance before it."""
    op = state.run_op[e]
    for r in range(state.op_reads[op], state.op_reads_stop[op]):
        v = state.read_value[r]
        run = instance(state, state.value_maker[v], e)
        if run != 0 and state.run_read[run, state.value_slot[v]] == e:
            _read_until(state, v, run, last_read_between(state, v, run, e))
    older, newer = state.run_older[e], state.run_newer[e]
    for v in range(state.op_outs[op], state.op_outs_stop[op]):
        k = state.value_slot[v]
        end = state.run_read[e, k]
        if older != 0:
            if end != e:
                shorter = state.run_read[older, k]
                if shorter != older:
                    _steal(state, shorter, v, np.int64(-1))
                state.run_read[older, k] = end
                add(state, state.run_next[shorter], state.run_previous[e], state.value_bytes[v])
        else:
            if end == END:
                state.ending -= state.value_bytes[v]
            if end != e:
                _steal(state, end, v, np.int64(-1))
                add(state, state.run_next[e], end, -state.value_bytes[v])
    _join(state, op, older, newer)
    state.op_runs[op] -= 1
    unplace_run(state, e)
    state.run_next[state.run_previous[e]] = state.run_next[e]
    state.run_previous[state.run_next[e]] = state.run_previous[e]
    state.run_op[e] = 0
    state.run_next[e] = state.free_run
    state.free_run = e
    state.n_runs -= 1
    state.cost -= state.op_cost[op]
