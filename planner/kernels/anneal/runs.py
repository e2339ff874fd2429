"""The runs and which of them reads which instance: a sequence loaded, a run put in, a run taken out."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.kernels import kernel
from planner.kernels.anneal.liveness import add, memory_at, place_run, repack, unplace_run

from planner.kernels.anneal.state import (  # isort: skip
    ADDED,
    BEST,
    BEST_COST,
    BEST_EXCESS,
    BEST_LENGTH,
    BLOCK,
    BLOCK_OF,
    BUDGET,
    BYTES,
    COST,
    COSTS,
    END,
    ENDING,
    EXCESS,
    FIRST,
    FIRST_BLOCK,
    FIRST_OP,
    FIRST_RUN,
    FREE_BLOCK,
    FREE_RUN,
    HEAD,
    KEPT,
    KEY,
    KEYS,
    LAST,
    LOGGED,
    MAKER,
    MEMORY,
    MOST_RUNS,
    NEWER,
    NEXT,
    N_RUNS,
    OLDER,
    OP,
    OPERATION,
    OPS_STOP,
    OUTS,
    OUTS_STOP,
    PLACE,
    PREVIOUS,
    READ,
    READERS,
    READERS_STOP,
    READS,
    READS_STOP,
    ROW,
    RUNS,
    RUN_WIDTH,
    SCRATCH,
    SLOT,
    STOLEN,
    VALUE,
    WORKSPACE,
)


@kernel
def load(s: Any, f: Any, sequence: Any, budget: int) -> None:
    """The state of a legal sequence.

    Args:
        sequence [L]: op rows, L below the number of runs there is room for.
        budget: bytes, residents apart, above which memory is counted as excess.
    """
    length = sequence.shape[0]
    for op in range(s[FIRST_OP], s[OPS_STOP], OPERATION):
        s[op + FIRST] = 0
        s[op + LAST] = 0
        s[op + RUNS] = 0
    s[N_RUNS] = length
    s[BUDGET] = budget
    s[LOGGED] = 0
    s[ENDING] = 0
    s[FREE_RUN] = 0
    for k in range(s[MOST_RUNS] - 1, length - 1, -1):
        e = s[FIRST_RUN] + k * s[RUN_WIDTH]
        s[e + NEXT] = s[FREE_RUN]
        s[FREE_RUN] = e
    s[HEAD + KEY] = 0
    s[END + KEY] = KEYS
    scratch = s[SCRATCH]
    s[scratch : scratch + length + 1] = 0
    f[COST] = 0.0
    front = HEAD
    for step in range(length):
        e = s[FIRST_RUN] + step * s[RUN_WIDTH]
        op = s[FIRST_OP] + sequence[step] * OPERATION
        s[e + OP] = op
        s[e + KEY] = step + 1
        s[e + PREVIOUS] = front
        s[front + NEXT] = e
        front = e
        s[e + STOLEN] = 0
        s[e + OLDER] = s[op + LAST]
        s[e + NEWER] = 0
        if s[op + LAST] != 0:
            s[s[op + LAST] + NEWER] = e
        else:
            s[op + FIRST] = e
        s[op + RUNS] += 1
        f[COST] += f[COSTS + s[op + ROW]]
        for r in range(s[op + READS], s[op + READS_STOP], 2):
            v = s[r]
            s[s[s[v + MAKER] + LAST] + READ + s[v + SLOT]] = e
        s[op + LAST] = e
        for v in range(s[op + OUTS], s[op + OUTS_STOP], VALUE):
            s[e + READ + s[v + SLOT]] = e
    s[front + NEXT] = END
    s[END + PREVIOUS] = front
    for op in range(s[FIRST_OP], s[OPS_STOP], OPERATION):
        for v in range(s[op + OUTS], s[op + OUTS_STOP], VALUE):
            if s[v + KEPT] and s[op + LAST] != 0:
                s[s[op + LAST] + READ + s[v + SLOT]] = END
                s[ENDING] += s[v + BYTES]
    for step in range(length):
        e = s[FIRST_RUN] + step * s[RUN_WIDTH]
        op = s[e + OP]
        for v in range(s[op + OUTS], s[op + OUTS_STOP], VALUE):
            end = s[e + READ + s[v + SLOT]]
            s[scratch + step] += s[v + BYTES]
            s[scratch + (length if end == END else s[end + KEY])] -= s[v + BYTES]
            if end != END and end != e:
                for r in range(s[s[end + OP] + READS], s[s[end + OP] + READS_STOP], 2):
                    if s[r] == v:
                        s[end + STOLEN] += s[r + 1]
    live = np.int64(0)
    for step in range(length):
        e = s[FIRST_RUN] + step * s[RUN_WIDTH]
        live += s[scratch + step]
        b = s[FIRST_BLOCK] + step // BLOCK * (MEMORY + BLOCK)
        s[b + ADDED] = 0
        s[e + BLOCK_OF] = b
        s[e + PLACE] = step % BLOCK
        s[b + MEMORY + step % BLOCK] = live + s[s[e + OP] + WORKSPACE] - s[e + STOLEN]
    repack(s)


@kernel
def save(s: Any, f: Any) -> None:
    """Note the sequence as the best."""
    run = s[HEAD + NEXT]
    count = 0
    while run != END:
        s[s[BEST] + count] = s[s[run + OP] + ROW]
        count += 1
        run = s[run + NEXT]
    s[BEST_LENGTH] = count
    f[BEST_COST] = f[COST]
    s[BEST_EXCESS] = s[EXCESS]


@kernel
def instance(s: Any, op: int, run: int) -> Any:
    """The newest run of an op before another run, or 0."""
    found = s[op + LAST]
    while found != 0 and s[found + KEY] >= s[run + KEY]:
        found = s[found + OLDER]
    return found


@kernel
def last_read_between(s: Any, v: int, start: int, stop: int) -> int:
    """The last run after start and before stop that reads v, or start itself."""
    found = start
    low, high = s[start + KEY], s[stop + KEY]
    for r in range(s[v + READERS], s[v + READERS_STOP]):
        run = s[s[r] + LAST]
        while run != 0 and s[run + KEY] >= high:
            run = s[run + OLDER]
        if run != 0 and s[run + KEY] > low:
            low = s[run + KEY]
            found = run
    return found


@kernel
def first_read(s: Any, v: int, start: int, stop: int) -> int:
    """The first run after start and up to stop that reads v, or stop."""
    found = stop
    low, high = s[start + KEY], s[stop + KEY]
    for r in range(s[v + READERS], s[v + READERS_STOP]):
        run = s[s[r] + FIRST]
        while run != 0 and s[run + KEY] <= low:
            run = s[run + NEWER]
        if run != 0 and s[run + KEY] < high:
            high = s[run + KEY]
            found = run
    return found


@kernel
def _steal(s: Any, run: int, v: int, sign: int) -> None:
    """The instance of v that a run reads begins (1) or ceases (-1) to die there: an output may take its place."""
    if run == END:
        return
    op = s[run + OP]
    for r in range(s[op + READS], s[op + READS_STOP], 2):
        if s[r] == v and s[r + 1] > 0:
            s[run + STOLEN] += sign * s[r + 1]
            add(s, run, run, -sign * s[r + 1])


@kernel
def _through(s: Any, run: int) -> Any:
    """Bytes live across the place just before a run."""
    if run == END:
        return s[ENDING]
    op = s[run + OP]
    nbytes = memory_at(s, run) - s[op + WORKSPACE] + s[run + STOLEN]
    for v in range(s[op + OUTS], s[op + OUTS_STOP], VALUE):
        nbytes -= s[v + BYTES]
    return nbytes


@kernel
def insert(s: Any, f: Any, op: int, before: int) -> Any:
    """A new run of an op in front of a run; 0 where there is no room for one. Legality is the caller's."""
    if s[FREE_RUN] == 0:
        return 0
    if s[FREE_BLOCK] == 0:
        repack(s)
    if s[before + KEY] - s[s[before + PREVIOUS] + KEY] < 2:
        repack(s)
    through = _through(s, before)
    e = s[FREE_RUN]
    s[FREE_RUN] = s[e + NEXT]
    front = s[before + PREVIOUS]
    s[e + OP] = op
    s[e + KEY] = s[front + KEY] + (s[before + KEY] - s[front + KEY]) // 2
    s[e + PREVIOUS] = front
    s[e + NEXT] = before
    s[front + NEXT] = e
    s[before + PREVIOUS] = e
    s[e + STOLEN] = 0
    s[N_RUNS] += 1
    f[COST] += f[COSTS + s[op + ROW]]
    place_run(s, e, before, through + s[op + WORKSPACE])
    older = instance(s, op, e)
    newer = s[op + FIRST] if older == 0 else s[older + NEWER]
    s[e + OLDER] = older
    s[e + NEWER] = newer
    if older == 0:
        s[op + FIRST] = e
    else:
        s[older + NEWER] = e
    if newer == 0:
        s[op + LAST] = e
    else:
        s[newer + OLDER] = e
    s[op + RUNS] += 1
    for v in range(s[op + OUTS], s[op + OUTS_STOP], VALUE):
        k = s[v + SLOT]
        if older != 0:
            end = s[older + READ + k]
            if s[end + KEY] > s[e + KEY]:  # its later reads are of the new instance from now on
                shorter = last_read_between(s, v, older, e)
                s[older + READ + k] = shorter
                s[e + READ + k] = end
                add(s, s[shorter + NEXT], front, -s[v + BYTES])
                if shorter != older:
                    _steal(s, shorter, v, np.int64(1))
            else:
                s[e + READ + k] = e
                add(s, e, e, s[v + BYTES])
        else:
            end = END if newer == 0 and s[v + KEPT] else last_read_between(s, v, e, END if newer == 0 else newer)
            if end == END:
                s[ENDING] += s[v + BYTES]
            s[e + READ + k] = end
            add(s, e, end, s[v + BYTES])
            if end != e:
                _steal(s, end, v, np.int64(1))
    for r in range(s[op + READS], s[op + READS_STOP], 2):
        v = s[r]
        maker = s[v + MAKER]
        run = instance(s, maker, e)
        if run == 0:
            continue
        k = s[v + SLOT]
        end = s[run + READ + k]
        if s[end + KEY] < s[e + KEY]:
            if end != run:
                _steal(s, end, v, np.int64(-1))
            s[run + READ + k] = e
            add(s, s[end + NEXT], e, s[v + BYTES])
            _steal(s, e, v, np.int64(1))
    return e


@kernel
def delete(s: Any, f: Any, e: int) -> None:
    """Take a run out; its reads go to the instance before it."""
    op = s[e + OP]
    for r in range(s[op + READS], s[op + READS_STOP], 2):
        v = s[r]
        maker = s[v + MAKER]
        run = instance(s, maker, e)
        if run == 0:
            continue
        k = s[v + SLOT]
        if s[run + READ + k] == e:
            end = last_read_between(s, v, run, e)
            _steal(s, e, v, np.int64(-1))
            s[run + READ + k] = end
            add(s, s[end + NEXT], e, -s[v + BYTES])
            if end != run:
                _steal(s, end, v, np.int64(1))
    older, newer = s[e + OLDER], s[e + NEWER]
    for v in range(s[op + OUTS], s[op + OUTS_STOP], VALUE):
        k = s[v + SLOT]
        end = s[e + READ + k]
        if older != 0:
            if end != e:
                shorter = s[older + READ + k]
                if shorter != older:
                    _steal(s, shorter, v, np.int64(-1))
                s[older + READ + k] = end
                add(s, s[shorter + NEXT], s[e + PREVIOUS], s[v + BYTES])
        else:
            if end == END:
                s[ENDING] -= s[v + BYTES]
            if end != e:
                _steal(s, end, v, np.int64(-1))
                add(s, s[e + NEXT], end, -s[v + BYTES])
    if older == 0:
        s[op + FIRST] = newer
    else:
        s[older + NEWER] = newer
    if newer == 0:
        s[op + LAST] = older
    else:
        s[newer + OLDER] = older
    s[op + RUNS] -= 1
    unplace_run(s, e)
    s[s[e + PREVIOUS] + NEXT] = s[e + NEXT]
    s[s[e + NEXT] + PREVIOUS] = s[e + PREVIOUS]
    s[e + OP] = 0
    s[e + NEXT] = s[FREE_RUN]
    s[FREE_RUN] = e
    s[N_RUNS] -= 1
    f[COST] -= f[COSTS + s[op + ROW]]
