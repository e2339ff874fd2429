"""Changes of a sequence that leave it legal: runs made again, left out, moved; each is noted, and can be undone."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.kernels import kernel
from planner.kernels.anneal.draws import uniform
from planner.kernels.anneal.runs import delete, first_read, insert, instance, last_read_between

from planner.kernels.anneal.state import (  # isort: skip
    AFTER,
    AFTER_STOP,
    BEFORE,
    BEHIND,
    COST,
    COSTS,
    END,
    FIRST,
    FREE_RUN,
    HEAD,
    KEY,
    KILLERS,
    KILLERS_STOP,
    LAST,
    LATER,
    LATER_STOP,
    LOG,
    LOGGED,
    LOGS,
    MAKER,
    MOST_COST,
    NEWER,
    NEXT,
    OLDER,
    ONCE,
    OP,
    OUTS,
    OUTS_STOP,
    READ,
    READERS,
    READERS_STOP,
    READS,
    READS_STOP,
    ROW,
    RUNS,
    SLOT,
    VALUE,
    VICTIMS,
    VICTIMS_STOP,
)


@kernel
def _logged_insert(s: Any, f: Any, op: int, before: int) -> Any:
    e = insert(s, f, op, before)
    if e != 0:
        at = s[LOGGED]
        s[s[LOG] + 3 * at + 0] = 1
        s[s[LOG] + 3 * at + 1] = e
        s[LOGGED] += 1
    return e


@kernel
def _logged_delete(s: Any, f: Any, e: int) -> None:
    at = s[LOGGED]
    s[s[LOG] + 3 * at + 0] = 0
    s[s[LOG] + 3 * at + 1] = s[e + OP]
    s[s[LOG] + 3 * at + 2] = s[e + NEXT]
    s[LOGGED] += 1
    delete(s, f, e)


@kernel
def undo(s: Any, f: Any) -> None:
    """Take back what is logged. Runs are given out last in, first out, so every run gets the row it had."""
    while s[LOGGED] > 0:
        s[LOGGED] -= 1
        at = s[LOGGED]
        if s[s[LOG] + 3 * at + 0] == 1:
            delete(s, f, s[s[LOG] + 3 * at + 1])
        else:
            insert(s, f, s[s[LOG] + 3 * at + 1], s[s[LOG] + 3 * at + 2])


@kernel
def _may_stand(s: Any, op: int, before: int, is_first: Any) -> bool:
    """True if a run of op may stand in front of a run as far as its reads, effects and order go; its own readers are
    not looked at.
    """
    key = s[before + KEY]  # others stand before it where their key is less
    for r in range(s[op + READS], s[op + READS_STOP], 2):
        run = s[s[s[r] + MAKER] + FIRST]
        if run == 0 or s[run + KEY] >= key:
            return False
    for r in range(s[op + KILLERS], s[op + KILLERS_STOP]):
        run = s[s[r] + FIRST]
        if run != 0 and s[run + KEY] < key:
            return False
    for r in range(s[op + VICTIMS], s[op + VICTIMS_STOP]):
        run = s[s[r] + LAST]
        if run != 0 and s[run + KEY] >= key:
            return False
    if is_first:
        for r in range(s[op + AFTER], s[op + AFTER_STOP]):
            run = s[s[r] + FIRST]
            if run == 0 or s[run + KEY] >= key:
                return False
        for r in range(s[op + LATER], s[op + LATER_STOP]):
            run = s[s[r] + FIRST]
            if run != 0 and s[run + KEY] < key:
                return False
        if s[op + BEFORE] != 0 and s[s[s[op + BEFORE] + FIRST] + KEY] >= key:
            return False
        if s[op + BEHIND] != 0 and s[s[s[op + BEHIND] + FIRST] + KEY] < key:
            return False
    return True


@kernel
def _unread(s: Any, e: int) -> bool:
    unread: bool = True
    for v in range(s[s[e + OP] + OUTS], s[s[e + OP] + OUTS_STOP], VALUE):
        unread = unread and s[e + READ + s[v + SLOT]] == e
    return unread


@kernel
def removable(s: Any, e: int) -> bool:
    """True if the sequence stays legal without the run."""
    op = s[e + OP]
    if s[e + OLDER] != 0:
        return True
    newer = s[e + NEWER]
    if newer == 0 or not _unread(s, e):
        return False
    for r in range(s[op + LATER], s[op + LATER_STOP]):
        run = s[s[r] + FIRST]
        if run != 0 and s[run + KEY] < s[newer + KEY]:
            return False
    return not (s[op + BEHIND] != 0 and s[s[s[op + BEHIND] + FIRST] + KEY] < s[newer + KEY])


@kernel
def remove(s: Any, f: Any, e: int) -> None:
    """Remove a run, and then those that nobody reads any more."""
    start = s[LOGGED]
    _logged_delete(s, f, e)
    while start < s[LOGGED]:
        op, before = s[s[LOG] + 3 * start + 1], s[s[LOG] + 3 * start + 2]
        start += 1
        # `before` may itself be gone: an instance in front of it is then looked for from what is left.
        for r in range(s[op + READS], s[op + READS_STOP], 2):
            maker = s[s[r] + MAKER]
            if s[maker + RUNS] < 2 or s[LOGGED] + 1 > LOGS:
                continue
            run = s[maker + LAST] if s[before + OP] == 0 else instance(s, maker, before)
            if run != 0 and _unread(s, run) and removable(s, run):
                _logged_delete(s, f, run)


@kernel
def evict(s: Any, f: Any, e: int, before: int, depth: float, worst: int, most: int) -> bool:
    """Make the outputs of run e again in front of a later run, and those of its inputs that would have to wait for it.

    Args:
        depth: chance that such an input is made again too, rather than held longer.
        worst: where not 0, inputs that would wait across this run are made again, others held.
        most: runs that are added at most; further inputs are held.
    """
    start = s[LOGGED]
    last = min(LOGS - 8, start + most)
    if (
        s[FREE_RUN] == 0
        or f[COST] + f[COSTS + s[s[e + OP] + ROW]] > f[MOST_COST]
        or not _may_stand(s, s[e + OP], before, np.bool_(False))
    ):
        return False
    _logged_insert(s, f, s[e + OP], before)
    while start < s[LOGGED]:
        made = s[s[LOG] + 3 * start + 1]
        start += 1
        op = s[made + OP]
        for r in range(s[op + READS], s[op + READS_STOP], 2):
            v = s[r]
            maker = s[v + MAKER]
            run = instance(s, maker, made)
            if run == 0 or s[maker + ONCE] == 1 or s[run + READ + s[v + SLOT]] != made:
                continue
            if s[run + NEXT] == made or s[LOGGED] >= last or s[FREE_RUN] == 0:
                continue
            held = last_read_between(s, v, run, made)
            if s[held + NEXT] == made:
                continue
            if worst != 0:
                if s[held + KEY] >= s[worst + KEY]:
                    continue
            elif depth < 1.0 and uniform(s) >= depth:
                continue
            if f[COST] + f[COSTS + s[maker + ROW]] > f[MOST_COST]:
                return False
            if _may_stand(s, maker, made, np.bool_(False)):
                _logged_insert(s, f, maker, made)
    return True


@kernel
def window_start(s: Any, e: int) -> int:
    """The last of the runs that e reads, and of the older run of its op."""
    op = s[e + OP]
    found = HEAD
    for r in range(s[op + READS], s[op + READS_STOP], 2):
        run = instance(s, s[s[r] + MAKER], e)
        if run != 0 and s[run + KEY] > s[found + KEY]:
            found = run
    if s[e + OLDER] != 0 and s[s[e + OLDER] + KEY] > s[found + KEY]:
        found = s[e + OLDER]
    return found


@kernel
def window_stop(s: Any, e: int) -> int:
    """The first run that reads e, or the next run of its op, or the end."""
    op = s[e + OP]
    found = END if s[e + NEWER] == 0 else s[e + NEWER]
    for v in range(s[op + OUTS], s[op + OUTS_STOP], VALUE):
        if s[e + READ + s[v + SLOT]] != e:
            run = first_read(s, v, e, found)
            if s[run + KEY] < s[found + KEY]:
                found = run
    return found


@kernel
def shift(s: Any, f: Any, e: int, before: int) -> Any:
    """Move a run in front of another; 0 if it may not go there. Readers must still come after it: the caller chose the
    window.
    """
    op = s[e + OP]
    if before == e or s[e + NEXT] == before or s[LOGGED] + 2 > LOGS:
        return 0
    # Its own first run does not count as one of those it waits for: an op does not read itself.
    if not _may_stand(s, op, before, s[e + OLDER] == 0):
        return 0
    _logged_delete(s, f, e)
    return _logged_insert(s, f, op, before)


@kernel
def pull(s: Any, f: Any, most: int) -> None:
    """After a run moved later: its inputs that nobody else reads follow."""
    start = s[LOGGED] - 1
    room = min(LOGS, s[LOGGED] + 2 * most) - 2
    while start < s[LOGGED] <= room:
        if s[s[LOG] + 3 * start + 0] == 0:
            start += 1
            continue
        moved = s[s[LOG] + 3 * start + 1]
        start += 1
        op = s[moved + OP]
        if op == 0:
            continue
        for r in range(s[op + READS], s[op + READS_STOP], 2):
            run = instance(s, s[s[r] + MAKER], moved)
            if run == 0 or s[run + NEXT] == moved or s[LOGGED] > room:
                continue
            if window_stop(s, run) == moved and uniform(s) < 0.8:
                shift(s, f, run, moved)


@kernel
def push(s: Any, f: Any, most: int) -> None:
    """After a run moved earlier: readers that wait for nothing else follow."""
    start = s[LOGGED] - 1
    room = min(LOGS, s[LOGGED] + 2 * most) - 2
    while start < s[LOGGED] <= room:
        if s[s[LOG] + 3 * start + 0] == 0:
            start += 1
            continue
        moved = s[s[LOG] + 3 * start + 1]
        start += 1
        op = s[moved + OP]
        if op == 0:
            continue
        for v in range(s[op + OUTS], s[op + OUTS_STOP], VALUE):
            if s[moved + READ + s[v + SLOT]] == moved:
                continue
            for r in range(s[v + READERS], s[v + READERS_STOP]):
                run = s[s[r] + FIRST]
                if run == 0 or s[run + KEY] <= s[moved + KEY] or s[LOGGED] > room:
                    continue
                if window_start(s, run) == moved and s[moved + NEXT] != run and uniform(s) < 0.8:
                    shift(s, f, run, s[moved + NEXT])
