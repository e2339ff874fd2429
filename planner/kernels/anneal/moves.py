"""Random moves: a few changes each."""

from __future__ import annotations

import numpy as np

from planner.kernels import kernel
from planner.kernels.anneal.changes import evict, follow, removable, remove, shift, window_start, window_stop
from planner.kernels.anneal.draws import below, uniform
from planner.kernels.anneal.runs import instance
from planner.kernels.anneal.state import END, HEAD, State


@kernel
def _any_run(state: State) -> int:
    """A random run: of a random block, or, half of the time where something is above the budget, of one that is."""
    n_blocks = state.n_blocks
    b = state.ranked[below(state, n_blocks)]
    if state.excess > 0 and uniform(state) < 0.5:
        for _ in range(8):
            if state.block_above[b] > 0:
                break
            b = state.ranked[below(state, n_blocks)]
    return state.block_members[b, below(state, state.block_size[b])]


@kernel
def _random_later_read(state: State, e: int) -> int:
    """A random read of run e but the first, the end included; 0 if there is none."""
    op = state.run_op[e]
    if state.op_outs[op] == state.op_outs_stop[op]:
        return 0
    k = below(state, state.op_outs_stop[op] - state.op_outs[op])
    v = state.op_outs[op] + k
    end = state.run_read[e, k]
    if end == e:
        return 0
    opening = window_stop(state, e)
    if end == opening:
        return 0
    if end == END:
        if uniform(state) < 0.3:
            return END
        end = state.run_previous[END]
    count = 0
    found = 0
    for r in range(state.value_readers[v], state.value_readers_stop[v]):
        run = state.op_last[state.reader_op[r]]
        while run != 0 and state.run_key[run] > state.run_key[end]:
            run = state.run_older[run]
        while run != 0 and state.run_key[run] > state.run_key[opening]:
            count += 1
            if below(state, count) == 0:
                found = run
            run = state.run_older[run]
    return END if found == 0 and state.run_read[e, k] == END else found


@kernel
def _walk(state: State, run: int, steps: int, later: bool | np.bool_) -> int:
    """The run so many steps after another, or before it; the last or the first run if there are fewer."""
    for _ in range(steps):
        following = state.run_next[run] if later else state.run_previous[run]
        if following in (HEAD, END):
            break
        run = following
    return run


@kernel
def _random_input(state: State, op: int) -> int:
    return state.read_value[state.op_reads[op] + below(state, state.op_reads_stop[op] - state.op_reads[op])]


@kernel
def move_evict(state: State) -> bool:
    e = _any_run(state)
    op = state.run_op[e]
    if state.op_once[op] == 1:
        return False
    before = _random_later_read(state, e)
    if before == 0 or state.run_previous[before] == e:
        return False
    if uniform(state) < 0.25 and state.op_reads[op] < state.op_reads_stop[op]:  # while an input is still there
        v = _random_input(state, op)
        run = instance(state, state.value_maker[v], before)
        if run != 0:
            end = state.run_read[run, state.value_slot[v]]
            is_between = state.run_key[e] < state.run_key[end] < state.run_key[before]
            if is_between and state.run_next[e] != end:
                before = end if uniform(state) < 0.5 else state.run_next[end]
    chance = uniform(state)
    depth = 0.0 if chance < 0.35 else 1.0 if chance < 0.7 else 0.5
    return evict(state, e, before, depth, np.int64(0), 1 + np.int64(1.0 / (0.02 + uniform(state))))


@kernel
def move_remove(state: State) -> bool:
    for _ in range(16):
        e = _any_run(state)
        if state.op_runs[state.run_op[e]] > 1 and removable(state, e):
            remove(state, e)
            return True
    return False


@kernel
def move_shift(state: State) -> bool:
    e = _any_run(state)
    op = state.run_op[e]
    start = window_start(state, e)
    stop = window_stop(state, e)
    choice = uniform(state)
    if choice < 0.5:  # as late as its first reader lets it, or as early as its inputs do
        later = choice < 0.3
        moved = shift(state, e, stop if later else state.run_next[start])
        if moved != 0 and uniform(state) < 0.6:
            follow(state, later)
        return moved != 0
    before = 0
    if choice < 0.75 and state.op_reads[op] < state.op_reads_stop[op]:  # beside another reader of an input
        v = _random_input(state, op)
        k = below(state, state.value_readers_stop[v] - state.value_readers[v])
        other = state.op_first[state.reader_op[state.value_readers[v] + k]]
        if other != 0 and other != e:
            before = other if uniform(state) < 0.5 else state.run_next[other]
    else:
        later = uniform(state) < 0.5
        before = _walk(state, e, 1 + np.int64(4.0 / (0.02 + uniform(state))), later)
    if before == 0 or state.run_key[before] <= state.run_key[start] or state.run_key[before] > state.run_key[stop]:
        return False
    later = state.run_key[before] > state.run_key[e]
    moved = shift(state, e, before)
    if moved != 0 and uniform(state) < 0.5:
        follow(state, later)
    return moved != 0


@kernel
def move_stretch(state: State) -> bool:
    """Move a few neighbours together as far as each may go."""
    e = _any_run(state)
    length = 2 + below(state, np.int64(14))
    far = 1 + np.int64(2.0 / (0.02 + uniform(state)))
    any_moved = False
    if uniform(state) < 0.5:  # the last of them first, later
        run = _walk(state, e, length - 1, np.bool_(True))
        before = state.run_next[_walk(state, run, far, np.bool_(True))]
        for _ in range(length):
            if run == HEAD:
                break
            following = state.run_previous[run]
            stop = window_stop(state, run)
            target = stop if state.run_key[stop] < state.run_key[before] else before
            moved = shift(state, run, target)
            if moved != 0:
                any_moved = True
                if target == before:
                    before = moved
            run = following
        return any_moved
    before = _walk(state, e, far, np.bool_(False))
    run = e
    for _ in range(length):
        if run == END:
            break
        following = state.run_next[run]
        start = window_start(state, run)
        target = state.run_next[start] if state.run_key[start] >= state.run_key[before] else before
        if state.run_key[target] < state.run_key[run]:
            any_moved = shift(state, run, target) != 0 or any_moved
        run = following
    return any_moved
