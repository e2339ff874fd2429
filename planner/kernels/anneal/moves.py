"""Random moves: a few changes each."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.kernels import kernel
from planner.kernels.anneal.changes import evict, pull, push, removable, remove, shift, window_start, window_stop
from planner.kernels.anneal.draws import below, uniform
from planner.kernels.anneal.runs import instance

from planner.kernels.anneal.state import (  # isort: skip
    ABOVE,
    END,
    EXCESS,
    FIRST,
    HEAD,
    KEY,
    LAST,
    MAKER,
    MEMBERS,
    NEXT,
    N_BLOCKS,
    OLDER,
    ONCE,
    OP,
    OUTS,
    OUTS_STOP,
    PREVIOUS,
    RANKED,
    READ,
    READERS,
    READERS_STOP,
    READS,
    READS_STOP,
    RUNS,
    SIZE,
    SLOT,
    VALUE,
)


@kernel
def _any_run(s: Any) -> Any:
    """A random run: of a random block, or, half of the time where something is above the budget, of one that is."""
    n_blocks = s[N_BLOCKS]
    b = s[s[RANKED] + below(s, n_blocks)]
    if s[EXCESS] > 0 and uniform(s) < 0.5:
        for _ in range(8):
            if s[b + ABOVE] > 0:
                break
            b = s[s[RANKED] + below(s, n_blocks)]
    return s[b + MEMBERS + below(s, s[b + SIZE])]


@kernel
def _random_later_read(s: Any, e: int) -> int:
    """A random read of run e but the first, the end included; 0 if there is none."""
    op = s[e + OP]
    if s[op + OUTS] == s[op + OUTS_STOP]:
        return 0
    k = below(s, (s[op + OUTS_STOP] - s[op + OUTS]) // VALUE)
    v = s[op + OUTS] + k * VALUE
    end = s[e + READ + k]
    if end == e:
        return 0
    opening = window_stop(s, e)
    if end == opening:
        return 0
    if end == END:
        if uniform(s) < 0.3:
            return END
        end = s[END + PREVIOUS]
    count = 0
    found = 0
    for r in range(s[v + READERS], s[v + READERS_STOP]):
        run = s[s[r] + LAST]
        while run != 0 and s[run + KEY] > s[end + KEY]:
            run = s[run + OLDER]
        while run != 0 and s[run + KEY] > s[opening + KEY]:
            count += 1
            if below(s, count) == 0:
                found = run
            run = s[run + OLDER]
    if found == 0 and s[e + READ + k] == END:
        return END
    return found


@kernel
def _random_input(s: Any, op: int) -> Any:
    return s[s[op + READS] + 2 * below(s, (s[op + READS_STOP] - s[op + READS]) // 2)]


@kernel
def move_evict(s: Any, f: Any) -> bool:
    e = _any_run(s)
    op = s[e + OP]
    if s[op + ONCE] == 1:
        return False
    before = _random_later_read(s, e)
    if before == 0 or s[before + PREVIOUS] == e:
        return False
    if uniform(s) < 0.25 and s[op + READS] < s[op + READS_STOP]:  # while an input is still there
        v = _random_input(s, op)
        run = instance(s, s[v + MAKER], before)
        if run != 0:
            end = s[run + READ + s[v + SLOT]]
            if s[end + KEY] < s[before + KEY] and s[end + KEY] > s[e + KEY] and s[e + NEXT] != end:
                before = end if uniform(s) < 0.5 else s[end + NEXT]
    chance = uniform(s)
    depth = 0.0 if chance < 0.35 else 1.0 if chance < 0.7 else 0.5
    return evict(s, f, e, before, depth, np.int64(0), 1 + np.int64(1.0 / (0.02 + uniform(s))))


@kernel
def move_remove(s: Any, f: Any) -> bool:
    for _ in range(16):
        e = _any_run(s)
        if s[s[e + OP] + RUNS] > 1 and removable(s, e):
            remove(s, f, e)
            return True
    return False


@kernel
def move_shift(s: Any, f: Any) -> Any:
    e = _any_run(s)
    op = s[e + OP]
    start = window_start(s, e)
    stop = window_stop(s, e)
    choice = uniform(s)
    if choice < 0.3:  # as late as its first reader lets it
        moved = shift(s, f, e, stop)
        if moved != 0 and uniform(s) < 0.6:
            pull(s, f, 1 + np.int64(1.0 / (0.02 + uniform(s))))
        return moved != 0
    if choice < 0.5:
        moved = shift(s, f, e, s[start + NEXT])
        if moved != 0 and uniform(s) < 0.6:
            push(s, f, 1 + np.int64(1.0 / (0.02 + uniform(s))))
        return moved != 0
    before = 0
    if choice < 0.75 and s[op + READS] < s[op + READS_STOP]:  # beside another reader of an input
        v = _random_input(s, op)
        other = s[s[s[v + READERS] + below(s, s[v + READERS_STOP] - s[v + READERS])] + FIRST]
        if other != 0 and other != e:
            before = other if uniform(s) < 0.5 else s[other + NEXT]
    else:
        before = e
        later = uniform(s) < 0.5
        for _ in range(1 + np.int64(4.0 / (0.02 + uniform(s)))):
            following = s[before + NEXT] if later else s[before + PREVIOUS]
            if following in (HEAD, END):
                break
            before = following
    if before == 0 or s[before + KEY] <= s[start + KEY] or s[before + KEY] > s[stop + KEY]:
        return False
    later = s[before + KEY] > s[e + KEY]
    moved = shift(s, f, e, before)
    if moved != 0 and uniform(s) < 0.5:
        if later:
            pull(s, f, 1 + np.int64(1.0 / (0.02 + uniform(s))))
        else:
            push(s, f, 1 + np.int64(1.0 / (0.02 + uniform(s))))
    return moved != 0


@kernel
def move_stretch(s: Any, f: Any) -> bool:
    """Move a few neighbours together as far as each may go."""
    e = _any_run(s)
    length = 2 + below(s, np.int64(14))
    far = 1 + np.int64(2.0 / (0.02 + uniform(s)))
    any_moved = False
    if uniform(s) < 0.5:  # the last of them first, later
        last = e
        for _ in range(length - 1):
            if s[last + NEXT] == END:
                break
            last = s[last + NEXT]
        before = s[last + NEXT]
        for _ in range(far):
            if before == END:
                break
            before = s[before + NEXT]
        run = last
        for _ in range(length):
            if run == HEAD:
                break
            following = s[run + PREVIOUS]
            stop = window_stop(s, run)
            target = stop if s[stop + KEY] < s[before + KEY] else before
            moved = shift(s, f, run, target)
            if moved != 0:
                any_moved = True
                if target == before:
                    before = moved
            run = following
        return any_moved
    before = e
    for _ in range(far):
        if s[before + PREVIOUS] == HEAD:
            break
        before = s[before + PREVIOUS]
    run = e
    for _ in range(length):
        if run == END:
            break
        following = s[run + NEXT]
        start = window_start(s, run)
        target = s[start + NEXT] if s[start + KEY] >= s[before + KEY] else before
        if s[target + KEY] < s[run + KEY]:
            any_moved = shift(s, f, run, target) != 0 or any_moved
        run = following
    return any_moved
