"""Bytes at every run, in blocks of runs with a pending addition each.

Adding bytes over a stretch, and the bytes above the budget summed over all runs, take about sqrt(L) steps.
"""

from __future__ import annotations

import numpy as np

from planner.kernels import kernel
from planner.kernels.anneal.state import BLOCK, END, FILL, HEAD, KEYS, State

_MOST_ABOVE = 2**44  # counted of one run: sums of half a million stay in range


@kernel
def recount(state: State, b: int) -> None:
    """The highest memory of a block, and its bytes above the budget."""
    level = state.budget - state.block_added[b]
    highest = np.int64(-KEYS)
    above = np.int64(0)
    for i in range(state.block_size[b]):
        highest = max(highest, state.block_memory[b, i])
        above += min(max(state.block_memory[b, i] - level, 0), _MOST_ABOVE)
    state.block_highest[b] = highest + state.block_added[b]
    state.excess += above - state.block_above[b]
    state.block_above[b] = above


@kernel
def _add_part(state: State, b: int, start: int, stop: int, nbytes: int) -> None:
    highest = np.int64(-KEYS)
    for i in range(start, stop):
        state.block_memory[b, i] += nbytes
        highest = max(highest, state.block_memory[b, i])
    if nbytes > 0:
        state.block_highest[b] = max(state.block_highest[b], highest + state.block_added[b])
    if state.block_highest[b] > state.budget or state.block_above[b] > 0:
        recount(state, b)


@kernel
def add(state: State, start: int, stop: int, nbytes: int) -> None:
    """Add bytes at all runs from start to stop, both included; nothing if stop comes before start."""
    if nbytes == 0:
        return
    if stop == END:
        stop = state.run_previous[END]
    if state.run_key[start] > state.run_key[stop]:
        return
    b, last = state.run_block[start], state.run_block[stop]
    if b == last:
        _add_part(state, b, state.run_place[start], state.run_place[stop] + 1, nbytes)
        return
    _add_part(state, b, state.run_place[start], state.block_size[b], nbytes)
    for r in range(state.block_rank[b] + 1, state.block_rank[last]):
        middle = state.ranked[r]
        state.block_added[middle] += nbytes
        state.block_highest[middle] += nbytes
        if state.block_highest[middle] > state.budget or state.block_above[middle] > 0:
            recount(state, middle)
    _add_part(state, last, np.int64(0), state.run_place[stop] + 1, nbytes)


@kernel
def memory_at(state: State, run: int) -> int:
    b = state.run_block[run]
    return state.block_memory[b, state.run_place[run]] + state.block_added[b]


@kernel
def repack(state: State) -> None:
    """Blocks anew, three quarters full; keys anew."""
    count = 0
    run = state.run_next[HEAD]
    while run != END:
        state.scratch[count] = memory_at(state, run)
        count += 1
        run = state.run_next[run]
    gap = KEYS // (count + 2)
    n_blocks = (count + FILL - 1) // FILL
    state.free_block = 0
    for k in range(state.most_blocks - 1, -1, -1):
        b = 1 + k
        state.block_size[b] = 0
        state.block_added[b] = 0
        state.block_above[b] = 0
        if k < n_blocks:
            state.block_rank[b] = k
            state.ranked[k] = b
        else:
            state.block_rank[b] = state.free_block
            state.free_block = b
    state.n_blocks = n_blocks
    run = state.run_next[HEAD]
    for k in range(count):
        b = state.ranked[k // FILL]
        state.run_key[run] = (k + 1) * gap
        state.run_block[run] = b
        state.run_place[run] = state.block_size[b]
        state.block_members[b, state.block_size[b]] = run
        state.block_memory[b, state.block_size[b]] = state.scratch[k]
        state.block_size[b] += 1
        run = state.run_next[run]
    state.excess = 0
    for k in range(n_blocks):
        recount(state, state.ranked[k])


@kernel
def _split(state: State, b: int) -> None:
    """Half of a full block into a new one behind it."""
    other = state.free_block
    state.free_block = state.block_rank[other]
    for r in range(state.n_blocks, state.block_rank[b] + 1, -1):
        state.ranked[r] = state.ranked[r - 1]
        state.block_rank[state.ranked[r]] = r
    state.ranked[state.block_rank[b] + 1] = other
    state.block_rank[other] = state.block_rank[b] + 1
    state.n_blocks += 1
    half = BLOCK // 2
    for i in range(half):
        run = state.block_members[b, half + i]
        state.block_members[other, i] = run
        state.block_memory[other, i] = state.block_memory[b, half + i]
        state.run_block[run] = other
        state.run_place[run] = i
    state.block_size[other] = half
    state.block_size[b] = half
    state.block_added[other] = state.block_added[b]
    state.block_above[other] = 0
    recount(state, b)
    recount(state, other)


@kernel
def place_run(state: State, run: int, before: int, nbytes: int) -> None:
    """Give a run, just linked in front of another, its place among the blocks."""
    neighbour = state.run_previous[run] if before == END else before
    if neighbour == HEAD:
        b = state.free_block
        state.free_block = state.block_rank[b]
        state.block_size[b] = 0
        state.block_added[b] = 0
        state.block_above[b] = 0
        state.block_highest[b] = -KEYS
        state.block_rank[b] = 0
        state.ranked[0] = b
        state.n_blocks = 1
        at = 0
    else:
        b = state.run_block[neighbour]
        if state.block_size[b] == BLOCK:
            _split(state, b)
            b = state.run_block[neighbour]
        at = state.run_place[neighbour] + (1 if before == END else 0)
    for i in range(state.block_size[b], at, -1):
        other = state.block_members[b, i - 1]
        state.block_members[b, i] = other
        state.block_memory[b, i] = state.block_memory[b, i - 1]
        state.run_place[other] = i
    state.block_size[b] += 1
    state.block_members[b, at] = run
    state.block_memory[b, at] = nbytes - state.block_added[b]
    state.run_block[run] = b
    state.run_place[run] = at
    state.block_highest[b] = max(state.block_highest[b], nbytes)
    if state.block_highest[b] > state.budget:
        recount(state, b)


@kernel
def unplace_run(state: State, run: int) -> None:
    b = state.run_block[run]
    for i in range(state.run_place[run], state.block_size[b] - 1):
        other = state.block_members[b, i + 1]
        state.block_members[b, i] = other
        state.block_memory[b, i] = state.block_memory[b, i + 1]
        state.run_place[other] = i
    state.block_size[b] -= 1
    if state.block_above[b] > 0:
        recount(state, b)
    if state.block_size[b] == 0:
        for r in range(state.block_rank[b], state.n_blocks - 1):
            state.ranked[r] = state.ranked[r + 1]
            state.block_rank[state.ranked[r]] = r
        state.n_blocks -= 1
        state.block_rank[b] = state.free_block
        state.free_block = b
