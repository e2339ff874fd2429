"""Bytes at every run, in blocks of runs with a pending addition each.

Adding bytes over a stretch, and the bytes above the budget summed over all runs, take about sqrt(L) steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.kernels import kernel

from planner.kernels.anneal.state import (  # isort: skip
    ABOVE,
    ADDED,
    BLOCK,
    BLOCK_OF,
    BUDGET,
    END,
    EXCESS,
    FILL,
    FIRST_BLOCK,
    FREE_BLOCK,
    HEAD,
    HIGHEST,
    KEY,
    KEYS,
    MEMBERS,
    MEMORY,
    MOST_BLOCKS,
    NEXT,
    N_BLOCKS,
    PLACE,
    PREVIOUS,
    RANK,
    RANKED,
    SCRATCH,
    SIZE,
)

_MOST_ABOVE = 2**44  # counted of one run: sums of half a million stay in range


@kernel
def recount(s: Any, b: int) -> None:
    """The highest memory of a block, and its bytes above the budget."""
    level = s[BUDGET] - s[b + ADDED]
    highest = np.int64(-KEYS)
    above = np.int64(0)
    for i in range(b + MEMORY, b + MEMORY + s[b + SIZE]):
        highest = max(highest, s[i])
        above += min(max(s[i] - level, 0), _MOST_ABOVE)
    s[b + HIGHEST] = highest + s[b + ADDED]
    s[EXCESS] += above - s[b + ABOVE]
    s[b + ABOVE] = above


@kernel
def _add_part(s: Any, b: int, start: int, stop: int, nbytes: int) -> None:
    highest = np.int64(-KEYS)
    for i in range(b + MEMORY + start, b + MEMORY + stop):
        s[i] += nbytes
        highest = max(highest, s[i])
    if nbytes > 0:
        s[b + HIGHEST] = max(s[b + HIGHEST], highest + s[b + ADDED])
    if s[b + HIGHEST] > s[BUDGET] or s[b + ABOVE] > 0:
        recount(s, b)


@kernel
def add(s: Any, start: int, stop: int, nbytes: int) -> None:
    """Add bytes at all runs from start to stop, both included; nothing if stop comes before start."""
    if nbytes == 0:
        return
    if stop == END:
        stop = s[END + PREVIOUS]
    if s[start + KEY] > s[stop + KEY]:
        return
    b, last = s[start + BLOCK_OF], s[stop + BLOCK_OF]
    if b == last:
        _add_part(s, b, s[start + PLACE], s[stop + PLACE] + 1, nbytes)
        return
    _add_part(s, b, s[start + PLACE], s[b + SIZE], nbytes)
    for r in range(s[b + RANK] + 1, s[last + RANK]):
        middle = s[s[RANKED] + r]
        s[middle + ADDED] += nbytes
        s[middle + HIGHEST] += nbytes
        if s[middle + HIGHEST] > s[BUDGET] or s[middle + ABOVE] > 0:
            recount(s, middle)
    _add_part(s, last, np.int64(0), s[stop + PLACE] + 1, nbytes)


@kernel
def memory_at(s: Any, run: int) -> Any:
    b = s[run + BLOCK_OF]
    return s[b + MEMORY + s[run + PLACE]] + s[b + ADDED]


@kernel
def repack(s: Any) -> None:
    """Blocks anew, three quarters full; keys anew."""
    count = 0
    run = s[HEAD + NEXT]
    while run != END:
        s[s[SCRATCH] + count] = memory_at(s, run)
        count += 1
        run = s[run + NEXT]
    gap = KEYS // (count + 2)
    n_blocks = (count + FILL - 1) // FILL
    s[FREE_BLOCK] = 0
    for k in range(s[MOST_BLOCKS] - 1, -1, -1):
        b = s[FIRST_BLOCK] + k * (MEMORY + BLOCK)
        s[b + SIZE] = 0
        s[b + ADDED] = 0
        s[b + ABOVE] = 0
        if k < n_blocks:
            s[b + RANK] = k
            s[s[RANKED] + k] = b
        else:
            s[b + RANK] = s[FREE_BLOCK]
            s[FREE_BLOCK] = b
    s[N_BLOCKS] = n_blocks
    run = s[HEAD + NEXT]
    for k in range(count):
        b = s[s[RANKED] + k // FILL]
        s[run + KEY] = (k + 1) * gap
        s[run + BLOCK_OF] = b
        s[run + PLACE] = s[b + SIZE]
        s[b + MEMBERS + s[b + SIZE]] = run
        s[b + MEMORY + s[b + SIZE]] = s[s[SCRATCH] + k]
        s[b + SIZE] += 1
        run = s[run + NEXT]
    s[EXCESS] = 0
    for k in range(n_blocks):
        recount(s, s[s[RANKED] + k])


@kernel
def _split(s: Any, b: int) -> None:
    """Half of a full block into a new one behind it."""
    other = s[FREE_BLOCK]
    s[FREE_BLOCK] = s[other + RANK]
    for r in range(s[N_BLOCKS], s[b + RANK] + 1, -1):
        s[s[RANKED] + r] = s[s[RANKED] + r - 1]
        s[s[s[RANKED] + r] + RANK] = r
    s[s[RANKED] + s[b + RANK] + 1] = other
    s[other + RANK] = s[b + RANK] + 1
    s[N_BLOCKS] += 1
    half = BLOCK // 2
    for i in range(half):
        run = s[b + MEMBERS + half + i]
        s[other + MEMBERS + i] = run
        s[other + MEMORY + i] = s[b + MEMORY + half + i]
        s[run + BLOCK_OF] = other
        s[run + PLACE] = i
    s[other + SIZE] = half
    s[b + SIZE] = half
    s[other + ADDED] = s[b + ADDED]
    s[other + ABOVE] = 0
    recount(s, b)
    recount(s, other)


@kernel
def place_run(s: Any, run: int, before: int, nbytes: int) -> None:
    """Give a run, just linked in front of another, its place among the blocks."""
    neighbour = s[run + PREVIOUS] if before == END else before
    if neighbour == HEAD:
        b = s[FREE_BLOCK]
        s[FREE_BLOCK] = s[b + RANK]
        s[b + SIZE] = 0
        s[b + ADDED] = 0
        s[b + ABOVE] = 0
        s[b + HIGHEST] = -KEYS
        s[b + RANK] = 0
        s[s[RANKED] + 0] = b
        s[N_BLOCKS] = 1
        at = 0
    else:
        b = s[neighbour + BLOCK_OF]
        if s[b + SIZE] == BLOCK:
            _split(s, b)
            b = s[neighbour + BLOCK_OF]
        at = s[neighbour + PLACE] + (1 if before == END else 0)
    for i in range(s[b + SIZE], at, -1):
        other = s[b + MEMBERS + i - 1]
        s[b + MEMBERS + i] = other
        s[b + MEMORY + i] = s[b + MEMORY + i - 1]
        s[other + PLACE] = i
    s[b + SIZE] += 1
    s[b + MEMBERS + at] = run
    s[b + MEMORY + at] = nbytes - s[b + ADDED]
    s[run + BLOCK_OF] = b
    s[run + PLACE] = at
    s[b + HIGHEST] = max(s[b + HIGHEST], nbytes)
    if s[b + HIGHEST] > s[BUDGET]:
        recount(s, b)


@kernel
def unplace_run(s: Any, run: int) -> None:
    b = s[run + BLOCK_OF]
    for i in range(s[run + PLACE], s[b + SIZE] - 1):
        other = s[b + MEMBERS + i + 1]
        s[b + MEMBERS + i] = other
        s[b + MEMORY + i] = s[b + MEMORY + i + 1]
        s[other + PLACE] = i
    s[b + SIZE] -= 1
    if s[b + ABOVE] > 0:
        recount(s, b)
    if s[b + SIZE] == 0:
        for r in range(s[b + RANK], s[N_BLOCKS] - 1):
            s[s[RANKED] + r] = s[s[RANKED] + r + 1]
            s[s[s[RANKED] + r] + RANK] = r
        s[N_BLOCKS] -= 1
        s[b + RANK] = s[FREE_BLOCK]
        s[FREE_BLOCK] = b
