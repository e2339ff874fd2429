"""Search over sequences of runs: what is dropped, when it is made again, and the order of everything.

A state is a list of *runs* (one execution of an op each) with canonical frees, so it determines the memory at every step. Memory is kept
in blocks of runs with a pending addition each: adding bytes over a stretch, and the bytes above the budget summed over all runs, take
about sqrt(L) steps. A move is a few insertions and deletions of runs, evaluated as they happen and undone in reverse.

All of it lies in one int64 array `s`: the header, then records of ops, values, runs and blocks, each known by the index of its first
word, so that `s[run + NEXT]` is the run after a run. 0 is none. `f` has the costs. One array instead of thirty: a compiled function
pays for every array it is handed.

The model knows storages as lifetimes of values; where views are made anew apart from their base it is approximate, so the caller
confirms what it keeps by the exact replay.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.kernels import kernel

# Words of the header.
(
    N_RUNS, N_BLOCKS, FREE_RUN, FREE_BLOCK, LOGGED, BEST_LENGTH, BUDGET, ENDING, PENDING, MOVES, ACCEPTED, EXCESS, BEST_EXCESS, RANDOM,
    FIRST_OP, OPS_STOP, FIRST_RUN, RUN_WIDTH, MOST_RUNS, FIRST_BLOCK, MOST_BLOCKS, RANKED, LOG, BEST, SCRATCH,
) = range(25)  # fmt: skip
# The two ends of the list of runs.
HEAD, END, HEADER = 32, 48, 64
# Words of an op. `..._STOP` is where a list ends; reads are pairs of value and bytes of the output that may take its place.
(
    FIRST, LAST, RUNS, ROW, ONCE, WORKSPACE, OUTS, OUTS_STOP, READS, READS_STOP, AFTER, AFTER_STOP, LATER, LATER_STOP, KILLERS,
    KILLERS_STOP, VICTIMS, VICTIMS_STOP, BEFORE, BEHIND, OPERATION,
) = range(21)  # fmt: skip
# Words of a value: bytes of its own storage, whether it must be live at the end, its op, which output it is, and the ops that read it.
BYTES, KEPT, MAKER, SLOT, READERS, READERS_STOP, VALUE = range(7)
# Words of a run: neighbours in the list, and among the runs of its op; bytes that in-place takes off; its block; and for each output
# the last run that reads this instance, or the run itself.
OP, KEY, NEXT, PREVIOUS, NEWER, OLDER, STOLEN, BLOCK_OF, PLACE, READ = range(10)
# Words of a block: runs, bytes to add to each, the highest memory (may be too high where nothing is above the budget), bytes above.
BLOCK = 64
SIZE, ADDED, HIGHEST, ABOVE, RANK, MEMBERS = range(6)
MEMORY = MEMBERS + BLOCK
LOGS = 512
# Words of `f`: cost of the state and of the best, and above which cost a move need not go on; then the cost of each op.
COST, BEST_COST, MOST_COST, COSTS = range(4)
_KEYS = 2**62
_MOST_ABOVE = 2**44  # counted of one run: sums of half a million stay in range
_FILL = 48


@kernel
def build(
    out_ptr: Any, nbytes: Any, kept: Any, read_ptr: Any, reads: Any, reader_ptr: Any, reader_op: Any, order_ptr: Any, order_op: Any,
    cost: Any, workspace: Any, once: Any, neighbours: Any, most_runs: int, s: Any, f: Any,
) -> Any:
    """Lay out a graph.

    Args:
        out_ptr [n+1]: the outputs of op k are values out_ptr[k] .. out_ptr[k+1].
        nbytes [m]: bytes of each value's own storage; 0 for views and updates.
        kept [m]: must be live at the end.
        read_ptr [n+1], reads [., 2]: distinct values an op reads, with bytes of the output that takes the value's place if it dies there.
        reader_ptr [m+1], reader_op: ops that read a value.
        order_ptr [4 n + 1], order_op: four lists an op: first run before its first run, and turned round; all its runs before the first
            of those, and turned round.
        cost [n], workspace [n], once [n]: of each op.
        neighbours [2, n]: op before and behind in a pinned order, or -1.
        most_runs: room for runs.
        s, f: result. Empty arrays: only the size is found.
    Returns:
        words of `s`.
    """
    n, m = cost.shape[0], nbytes.shape[0]
    first_op = HEADER
    first_value = first_op + n * OPERATION
    first_read = first_value + m * VALUE
    first_reader = first_read + 2 * reads.shape[0]
    first_order = first_reader + reader_op.shape[0]
    width = np.int64(1)
    for k in range(n):
        width = max(width, out_ptr[k + 1] - out_ptr[k])
    width += READ
    first_run = first_order + order_op.shape[0]
    first_block = first_run + most_runs * width
    most_blocks = most_runs // 24 + 8
    ranked = first_block + most_blocks * (MEMORY + BLOCK)
    log = ranked + most_blocks
    best = log + 3 * LOGS
    scratch = best + most_runs
    total = scratch + most_runs + 1
    if s.shape[0] < total:
        return total
    s[:HEADER] = 0
    s[FIRST_OP], s[OPS_STOP], s[FIRST_RUN], s[RUN_WIDTH], s[MOST_RUNS] = first_op, first_value, first_run, width, most_runs
    s[FIRST_BLOCK], s[MOST_BLOCKS], s[RANKED], s[LOG], s[BEST], s[SCRATCH] = first_block, most_blocks, ranked, log, best, scratch
    for k in range(n):
        op = first_op + k * OPERATION
        s[op + ROW] = k
        s[op + ONCE] = once[k]
        s[op + WORKSPACE] = workspace[k]
        s[op + OUTS] = first_value + out_ptr[k] * VALUE
        s[op + OUTS_STOP] = first_value + out_ptr[k + 1] * VALUE
        s[op + READS] = first_read + 2 * read_ptr[k]
        s[op + READS_STOP] = first_read + 2 * read_ptr[k + 1]
        for i in range(4):
            s[op + AFTER + 2 * i] = first_order + order_ptr[4 * k + i]
            s[op + AFTER + 2 * i + 1] = first_order + order_ptr[4 * k + i + 1]
        s[op + BEFORE] = 0 if neighbours[0, k] < 0 else first_op + neighbours[0, k] * OPERATION
        s[op + BEHIND] = 0 if neighbours[1, k] < 0 else first_op + neighbours[1, k] * OPERATION
        f[COSTS + k] = cost[k]
        for v in range(out_ptr[k], out_ptr[k + 1]):
            value = first_value + v * VALUE
            s[value + BYTES] = nbytes[v]
            s[value + KEPT] = kept[v]
            s[value + MAKER] = op
            s[value + SLOT] = v - out_ptr[k]
            s[value + READERS] = first_reader + reader_ptr[v]
            s[value + READERS_STOP] = first_reader + reader_ptr[v + 1]
    for r in range(reads.shape[0]):
        s[first_read + 2 * r] = first_value + reads[r, 0] * VALUE
        s[first_read + 2 * r + 1] = reads[r, 1]
    for r in range(reader_op.shape[0]):
        s[first_reader + r] = first_op + reader_op[r] * OPERATION
    for r in range(order_op.shape[0]):
        s[first_order + r] = first_op + order_op[r] * OPERATION
    return total


@kernel
def _uniform(s: Any) -> Any:
    """xorshift64*."""
    x = np.uint64(s[RANDOM])
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    s[RANDOM] = np.int64(x)
    return np.float64((x * np.uint64(2685821657736338717)) >> np.uint64(11)) * 1.1102230246251565e-16


@kernel
def _below(s: Any, bound: int) -> Any:
    return min(bound - 1, np.int64(_uniform(s) * bound))


# ------------------------------------------------------------------------------------------------ memory in blocks


@kernel
def _recount(s: Any, b: int) -> None:
    """The highest memory of a block, and its bytes above the budget."""
    level = s[BUDGET] - s[b + ADDED]
    highest = np.int64(-_KEYS)
    above = np.int64(0)
    for i in range(b + MEMORY, b + MEMORY + s[b + SIZE]):
        highest = max(highest, s[i])
        above += min(max(s[i] - level, 0), _MOST_ABOVE)
    s[b + HIGHEST] = highest + s[b + ADDED]
    s[EXCESS] += above - s[b + ABOVE]
    s[b + ABOVE] = above


@kernel
def _add_part(s: Any, b: int, start: int, stop: int, nbytes: int) -> None:
    highest = np.int64(-_KEYS)
    for i in range(b + MEMORY + start, b + MEMORY + stop):
        s[i] += nbytes
        highest = max(highest, s[i])
    if nbytes > 0:
        s[b + HIGHEST] = max(s[b + HIGHEST], highest + s[b + ADDED])
    if s[b + HIGHEST] > s[BUDGET] or s[b + ABOVE] > 0:
        _recount(s, b)


@kernel
def _add(s: Any, start: int, stop: int, nbytes: int) -> None:
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
            _recount(s, middle)
    _add_part(s, last, 0, s[stop + PLACE] + 1, nbytes)


@kernel
def _memory_at(s: Any, run: int) -> Any:
    b = s[run + BLOCK_OF]
    return s[b + MEMORY + s[run + PLACE]] + s[b + ADDED]


@kernel
def _repack(s: Any) -> None:
    """Blocks anew, three quarters full; keys anew."""
    count = 0
    run = s[HEAD + NEXT]
    while run != END:
        s[s[SCRATCH] + count] = _memory_at(s, run)
        count += 1
        run = s[run + NEXT]
    gap = _KEYS // (count + 2)
    n_blocks = (count + _FILL - 1) // _FILL
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
        b = s[s[RANKED] + k // _FILL]
        s[run + KEY] = (k + 1) * gap
        s[run + BLOCK_OF] = b
        s[run + PLACE] = s[b + SIZE]
        s[b + MEMBERS + s[b + SIZE]] = run
        s[b + MEMORY + s[b + SIZE]] = s[s[SCRATCH] + k]
        s[b + SIZE] += 1
        run = s[run + NEXT]
    s[EXCESS] = 0
    for k in range(n_blocks):
        _recount(s, s[s[RANKED] + k])


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
    _recount(s, b)
    _recount(s, other)


@kernel
def _place_run(s: Any, run: int, before: int, nbytes: int) -> None:
    """Give a run, just linked in front of another, its place among the blocks."""
    neighbour = s[run + PREVIOUS] if before == END else before
    if neighbour == HEAD:
        b = s[FREE_BLOCK]
        s[FREE_BLOCK] = s[b + RANK]
        s[b + SIZE] = 0
        s[b + ADDED] = 0
        s[b + ABOVE] = 0
        s[b + HIGHEST] = -_KEYS
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
        _recount(s, b)


@kernel
def _unplace_run(s: Any, run: int) -> None:
    b = s[run + BLOCK_OF]
    for i in range(s[run + PLACE], s[b + SIZE] - 1):
        other = s[b + MEMBERS + i + 1]
        s[b + MEMBERS + i] = other
        s[b + MEMORY + i] = s[b + MEMORY + i + 1]
        s[other + PLACE] = i
    s[b + SIZE] -= 1
    if s[b + ABOVE] > 0:
        _recount(s, b)
    if s[b + SIZE] == 0:
        for r in range(s[b + RANK], s[N_BLOCKS] - 1):
            s[s[RANKED] + r] = s[s[RANKED] + r + 1]
            s[s[s[RANKED] + r] + RANK] = r
        s[N_BLOCKS] -= 1
        s[b + RANK] = s[FREE_BLOCK]
        s[FREE_BLOCK] = b


# ------------------------------------------------------------------------------------------------ lifetimes


@kernel
def _instance(s: Any, op: int, run: int) -> Any:
    """The newest run of an op before another run, or 0."""
    found = s[op + LAST]
    while found != 0 and s[found + KEY] >= s[run + KEY]:
        found = s[found + OLDER]
    return found


@kernel
def _last_read_between(s: Any, v: int, start: int, stop: int) -> int:
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
def _first_read(s: Any, v: int, start: int, stop: int) -> int:
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
            _add(s, run, run, -sign * s[r + 1])


@kernel
def _through(s: Any, run: int) -> Any:
    """Bytes live across the place just before a run."""
    if run == END:
        return s[ENDING]
    op = s[run + OP]
    nbytes = _memory_at(s, run) - s[op + WORKSPACE] + s[run + STOLEN]
    for v in range(s[op + OUTS], s[op + OUTS_STOP], VALUE):
        nbytes -= s[v + BYTES]
    return nbytes


@kernel
def _insert(s: Any, f: Any, op: int, before: int) -> Any:
    """A new run of an op in front of a run; 0 where there is no room for one. Legality is the caller's."""
    if s[FREE_RUN] == 0:
        return 0
    if s[FREE_BLOCK] == 0:
        _repack(s)
    if s[before + KEY] - s[s[before + PREVIOUS] + KEY] < 2:
        _repack(s)
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
    _place_run(s, e, before, through + s[op + WORKSPACE])
    older = _instance(s, op, e)
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
                shorter = _last_read_between(s, v, older, e)
                s[older + READ + k] = shorter
                s[e + READ + k] = end
                _add(s, s[shorter + NEXT], front, -s[v + BYTES])
                if shorter != older:
                    _steal(s, shorter, v, 1)
            else:
                s[e + READ + k] = e
                _add(s, e, e, s[v + BYTES])
        else:
            end = END if newer == 0 and s[v + KEPT] else _last_read_between(s, v, e, END if newer == 0 else newer)
            if end == END:
                s[ENDING] += s[v + BYTES]
            s[e + READ + k] = end
            _add(s, e, end, s[v + BYTES])
            if end != e:
                _steal(s, end, v, 1)
    for r in range(s[op + READS], s[op + READS_STOP], 2):
        v = s[r]
        maker = s[v + MAKER]
        run = _instance(s, maker, e)
        if run == 0:
            continue
        k = s[v + SLOT]
        end = s[run + READ + k]
        if s[end + KEY] < s[e + KEY]:
            if end != run:
                _steal(s, end, v, -1)
            s[run + READ + k] = e
            _add(s, s[end + NEXT], e, s[v + BYTES])
            _steal(s, e, v, 1)
    return e


@kernel
def _delete(s: Any, f: Any, e: int) -> None:
    """Take a run out; its reads go to the instance before it."""
    op = s[e + OP]
    for r in range(s[op + READS], s[op + READS_STOP], 2):
        v = s[r]
        maker = s[v + MAKER]
        run = _instance(s, maker, e)
        if run == 0:
            continue
        k = s[v + SLOT]
        if s[run + READ + k] == e:
            end = _last_read_between(s, v, run, e)
            _steal(s, e, v, -1)
            s[run + READ + k] = end
            _add(s, s[end + NEXT], e, -s[v + BYTES])
            if end != run:
                _steal(s, end, v, 1)
    older, newer = s[e + OLDER], s[e + NEWER]
    for v in range(s[op + OUTS], s[op + OUTS_STOP], VALUE):
        k = s[v + SLOT]
        end = s[e + READ + k]
        if older != 0:
            if end != e:
                shorter = s[older + READ + k]
                if shorter != older:
                    _steal(s, shorter, v, -1)
                s[older + READ + k] = end
                _add(s, s[shorter + NEXT], s[e + PREVIOUS], s[v + BYTES])
        else:
            if end == END:
                s[ENDING] -= s[v + BYTES]
            if end != e:
                _steal(s, end, v, -1)
                _add(s, s[e + NEXT], end, -s[v + BYTES])
    if older == 0:
        s[op + FIRST] = newer
    else:
        s[older + NEWER] = newer
    if newer == 0:
        s[op + LAST] = older
    else:
        s[newer + OLDER] = older
    s[op + RUNS] -= 1
    _unplace_run(s, e)
    s[s[e + PREVIOUS] + NEXT] = s[e + NEXT]
    s[s[e + NEXT] + PREVIOUS] = s[e + PREVIOUS]
    s[e + OP] = 0
    s[e + NEXT] = s[FREE_RUN]
    s[FREE_RUN] = e
    s[N_RUNS] -= 1
    f[COST] -= f[COSTS + s[op + ROW]]


# ------------------------------------------------------------------------------------------------ moves and their undoing


@kernel
def _has_log(s: Any, entries: int) -> Any:
    return s[LOGGED] + entries <= LOGS


@kernel
def _logged_insert(s: Any, f: Any, op: int, before: int) -> Any:
    e = _insert(s, f, op, before)
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
    _delete(s, f, e)


@kernel
def _undo(s: Any, f: Any) -> None:
    """Take back what is logged. Runs are given out last in, first out, so every run gets the row it had."""
    while s[LOGGED] > 0:
        s[LOGGED] -= 1
        at = s[LOGGED]
        if s[s[LOG] + 3 * at + 0] == 1:
            _delete(s, f, s[s[LOG] + 3 * at + 1])
        else:
            _insert(s, f, s[s[LOG] + 3 * at + 1], s[s[LOG] + 3 * at + 2])


@kernel
def _may_stand(s: Any, op: int, before: int, is_first: bool) -> bool:
    """True if a run of op may stand in front of a run as far as its reads, effects and order go; its own readers are not looked at."""
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
def _removable(s: Any, e: int) -> bool:
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
def _remove(s: Any, f: Any, e: int) -> None:
    """Remove a run, and then those that nobody reads any more."""
    start = s[LOGGED]
    _logged_delete(s, f, e)
    while start < s[LOGGED]:
        op, before = s[s[LOG] + 3 * start + 1], s[s[LOG] + 3 * start + 2]
        start += 1
        # `before` may itself be gone: an instance in front of it is then looked for from what is left.
        for r in range(s[op + READS], s[op + READS_STOP], 2):
            maker = s[s[r] + MAKER]
            if s[maker + RUNS] < 2 or not _has_log(s, 1):
                continue
            run = s[maker + LAST] if s[before + OP] == 0 else _instance(s, maker, before)
            if run != 0 and _unread(s, run) and _removable(s, run):
                _logged_delete(s, f, run)


@kernel
def _evict(s: Any, f: Any, e: int, before: int, depth: float, worst: int, most: int) -> bool:
    """Make the outputs of run e again in front of a later run, and those of its inputs that would have to wait for it.

    Args:
        depth: chance that such an input is made again too, rather than held longer.
        worst: where not 0, inputs that would wait across this run are made again, others held.
        most: runs that are added at most; further inputs are held.
    """
    start = s[LOGGED]
    last = min(LOGS - 8, start + most)
    if s[FREE_RUN] == 0 or f[COST] + f[COSTS + s[s[e + OP] + ROW]] > f[MOST_COST] or not _may_stand(s, s[e + OP], before, False):
        return False
    _logged_insert(s, f, s[e + OP], before)
    while start < s[LOGGED]:
        made = s[s[LOG] + 3 * start + 1]
        start += 1
        op = s[made + OP]
        for r in range(s[op + READS], s[op + READS_STOP], 2):
            v = s[r]
            maker = s[v + MAKER]
            run = _instance(s, maker, made)
            if run == 0 or s[maker + ONCE] == 1 or s[run + READ + s[v + SLOT]] != made:
                continue
            if s[run + NEXT] == made or s[LOGGED] >= last or s[FREE_RUN] == 0:
                continue
            held = _last_read_between(s, v, run, made)
            if s[held + NEXT] == made:
                continue
            if worst != 0:
                if s[held + KEY] >= s[worst + KEY]:
                    continue
            elif depth < 1.0 and _uniform(s) >= depth:
                continue
            if f[COST] + f[COSTS + s[maker + ROW]] > f[MOST_COST]:
                return False
            if _may_stand(s, maker, made, False):
                _logged_insert(s, f, maker, made)
    return True


@kernel
def _shift(s: Any, f: Any, e: int, before: int) -> Any:
    """Move a run in front of another; 0 if it may not go there. Readers must still come after it: the caller chose the window."""
    op = s[e + OP]
    if before == e or s[e + NEXT] == before or not _has_log(s, 2):
        return 0
    # Its own first run does not count as one of those it waits for: an op does not read itself.
    if not _may_stand(s, op, before, s[e + OLDER] == 0):
        return 0
    _logged_delete(s, f, e)
    return _logged_insert(s, f, op, before)


@kernel
def _window_start(s: Any, e: int) -> int:
    """The last of the runs that e reads, and of the older run of its op."""
    op = s[e + OP]
    found = HEAD
    for r in range(s[op + READS], s[op + READS_STOP], 2):
        run = _instance(s, s[s[r] + MAKER], e)
        if run != 0 and s[run + KEY] > s[found + KEY]:
            found = run
    if s[e + OLDER] != 0 and s[s[e + OLDER] + KEY] > s[found + KEY]:
        found = s[e + OLDER]
    return found


@kernel
def _window_stop(s: Any, e: int) -> int:
    """The first run that reads e, or the next run of its op, or the end."""
    op = s[e + OP]
    found = END if s[e + NEWER] == 0 else s[e + NEWER]
    for v in range(s[op + OUTS], s[op + OUTS_STOP], VALUE):
        if s[e + READ + s[v + SLOT]] != e:
            run = _first_read(s, v, e, found)
            if s[run + KEY] < s[found + KEY]:
                found = run
    return found


@kernel
def _pull(s: Any, f: Any, most: int) -> None:
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
            run = _instance(s, s[s[r] + MAKER], moved)
            if run == 0 or s[run + NEXT] == moved or s[LOGGED] > room:
                continue
            if _window_stop(s, run) == moved and _uniform(s) < 0.8:
                _shift(s, f, run, moved)


@kernel
def _push(s: Any, f: Any, most: int) -> None:
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
                if _window_start(s, run) == moved and s[moved + NEXT] != run and _uniform(s) < 0.8:
                    _shift(s, f, run, s[moved + NEXT])


@kernel
def _any_run(s: Any) -> Any:
    """A random run: of a random block, or, half of the time where something is above the budget, of one that is."""
    n_blocks = s[N_BLOCKS]
    b = s[s[RANKED] + _below(s, n_blocks)]
    if s[EXCESS] > 0 and _uniform(s) < 0.5:
        for _ in range(8):
            if s[b + ABOVE] > 0:
                break
            b = s[s[RANKED] + _below(s, n_blocks)]
    return s[b + MEMBERS + _below(s, s[b + SIZE])]


@kernel
def _random_later_read(s: Any, e: int) -> int:
    """A random read of run e but the first, the end included; 0 if there is none."""
    op = s[e + OP]
    if s[op + OUTS] == s[op + OUTS_STOP]:
        return 0
    k = _below(s, (s[op + OUTS_STOP] - s[op + OUTS]) // VALUE)
    v = s[op + OUTS] + k * VALUE
    end = s[e + READ + k]
    if end == e:
        return 0
    opening = _window_stop(s, e)
    if end == opening:
        return 0
    if end == END:
        if _uniform(s) < 0.3:
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
            if _below(s, count) == 0:
                found = run
            run = s[run + OLDER]
    if found == 0 and s[e + READ + k] == END:
        return END
    return found


@kernel
def _random_input(s: Any, op: int) -> Any:
    return s[s[op + READS] + 2 * _below(s, (s[op + READS_STOP] - s[op + READS]) // 2)]


@kernel
def _move_evict(s: Any, f: Any) -> bool:
    e = _any_run(s)
    op = s[e + OP]
    if s[op + ONCE] == 1:
        return False
    before = _random_later_read(s, e)
    if before == 0 or s[before + PREVIOUS] == e:
        return False
    if _uniform(s) < 0.25 and s[op + READS] < s[op + READS_STOP]:  # while an input is still there
        v = _random_input(s, op)
        run = _instance(s, s[v + MAKER], before)
        if run != 0:
            end = s[run + READ + s[v + SLOT]]
            if s[end + KEY] < s[before + KEY] and s[end + KEY] > s[e + KEY] and s[e + NEXT] != end:
                before = end if _uniform(s) < 0.5 else s[end + NEXT]
    chance = _uniform(s)
    return _evict(s, f, e, before, 0.0 if chance < 0.35 else 1.0 if chance < 0.7 else 0.5, 0, 1 + np.int64(1.0 / (0.02 + _uniform(s))))


@kernel
def _move_remove(s: Any, f: Any) -> bool:
    for _ in range(16):
        e = _any_run(s)
        if s[s[e + OP] + RUNS] > 1 and _removable(s, e):
            _remove(s, f, e)
            return True
    return False


@kernel
def _move_shift(s: Any, f: Any) -> Any:
    e = _any_run(s)
    op = s[e + OP]
    start = _window_start(s, e)
    stop = _window_stop(s, e)
    choice = _uniform(s)
    if choice < 0.3:  # as late as its first reader lets it
        moved = _shift(s, f, e, stop)
        if moved != 0 and _uniform(s) < 0.6:
            _pull(s, f, 1 + np.int64(1.0 / (0.02 + _uniform(s))))
        return moved != 0
    if choice < 0.5:
        moved = _shift(s, f, e, s[start + NEXT])
        if moved != 0 and _uniform(s) < 0.6:
            _push(s, f, 1 + np.int64(1.0 / (0.02 + _uniform(s))))
        return moved != 0
    before = 0
    if choice < 0.75 and s[op + READS] < s[op + READS_STOP]:  # beside another reader of an input
        v = _random_input(s, op)
        other = s[s[s[v + READERS] + _below(s, s[v + READERS_STOP] - s[v + READERS])] + FIRST]
        if other != 0 and other != e:
            before = other if _uniform(s) < 0.5 else s[other + NEXT]
    else:
        before = e
        later = _uniform(s) < 0.5
        for _ in range(1 + np.int64(4.0 / (0.02 + _uniform(s)))):
            following = s[before + NEXT] if later else s[before + PREVIOUS]
            if following in (HEAD, END):
                break
            before = following
    if before == 0 or s[before + KEY] <= s[start + KEY] or s[before + KEY] > s[stop + KEY]:
        return False
    later = s[before + KEY] > s[e + KEY]
    moved = _shift(s, f, e, before)
    if moved != 0 and _uniform(s) < 0.5:
        if later:
            _pull(s, f, 1 + np.int64(1.0 / (0.02 + _uniform(s))))
        else:
            _push(s, f, 1 + np.int64(1.0 / (0.02 + _uniform(s))))
    return moved != 0


@kernel
def _move_stretch(s: Any, f: Any) -> bool:
    """Move a few neighbours together as far as each may go."""
    e = _any_run(s)
    length = 2 + _below(s, 14)
    far = 1 + np.int64(2.0 / (0.02 + _uniform(s)))
    any_moved = False
    if _uniform(s) < 0.5:  # the last of them first, later
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
            stop = _window_stop(s, run)
            target = stop if s[stop + KEY] < s[before + KEY] else before
            moved = _shift(s, f, run, target)
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
        start = _window_start(s, run)
        target = s[start + NEXT] if s[start + KEY] >= s[before + KEY] else before
        if s[target + KEY] < s[run + KEY]:
            any_moved = _shift(s, f, run, target) != 0 or any_moved
        run = following
    return any_moved


@kernel
def _worst(s: Any) -> Any:
    """The run with most bytes."""
    worst = s[s[RANKED] + 0]
    for r in range(s[N_BLOCKS]):
        b = s[s[RANKED] + r]
        if s[b + ABOVE] > 0 and (s[worst + ABOVE] == 0 or s[b + HIGHEST] > s[worst + HIGHEST]):
            worst = b
    best = 0
    for i in range(s[worst + SIZE]):
        if s[worst + MEMORY + i] > s[worst + MEMORY + best]:
            best = i
    return s[worst + MEMBERS + best]


@kernel
def _cover(s: Any, e: int, k: int, worst: int) -> int:
    """Where run e's output k could be made again so that it is dead at the worst run; 0 if it is not idle there."""
    op = s[e + OP]
    v = s[op + OUTS] + k * VALUE
    if s[e + KEY] >= s[worst + KEY] or s[s[e + READ + k] + KEY] <= s[worst + KEY]:
        return 0
    here = s[worst + OP]
    for r in range(s[here + READS], s[here + READS_STOP], 2):
        if s[r] == v:
            return 0
    return _first_read(s, v, worst, s[e + READ + k])


@kernel
def _relieve(s: Any, f: Any, tries: int) -> bool:
    """Make one sampled value that waits across the worst run again behind it: the cheapest per byte."""
    worst = _worst(s)
    chosen, place = 0, 0
    best = np.inf
    over = np.float64(_memory_at(s, worst) - s[BUDGET])
    for _ in range(tries):
        b = s[s[RANKED] + _below(s, s[s[worst + BLOCK_OF] + RANK] + 1)]
        e = s[b + MEMBERS + _below(s, s[b + SIZE])]
        op = s[e + OP]
        outs = (s[op + OUTS_STOP] - s[op + OUTS]) // VALUE
        if outs == 0 or s[op + ONCE] == 1:
            continue
        k = _below(s, outs)
        before = _cover(s, e, k, worst)
        if before == 0:
            continue
        score = f[COSTS + s[op + ROW]] / min(over, np.float64(s[s[op + OUTS] + k * VALUE + BYTES]) + 1e-9) * (0.5 + _uniform(s))
        if score < best:
            best = score
            chosen = e
            place = before
    return chosen != 0 and _evict(s, f, chosen, place, 0.5, worst if _uniform(s) < 0.7 else 0, 4)


# ------------------------------------------------------------------------------------------------ the search


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
    s[END + KEY] = _KEYS
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
    _repack(s)


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
def _better(s: Any, f: Any) -> Any:
    """True if the state is to be noted: less above the budget, or as much and cheaper."""
    if s[EXCESS] != s[BEST_EXCESS]:
        return s[EXCESS] < s[BEST_EXCESS]
    return f[COST] < f[BEST_COST] * (1.0 - 1e-12)


@kernel
def order_by_memory(s: Any, window: int, left: Any, waiting: Any, ready: Any, order: Any) -> int:
    """Run ops once, each time the ready one after which least is live.

    Args:
        window: only ops less than this many rows behind the first that has not run.
        left [n words of all values], waiting [n], ready [n]: working memory; `left` has one entry a value, by index // VALUE.
        order [n]: result, op rows.
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
        least = np.int64(_KEYS)
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


@kernel
def _waiting_cost(s: Any, f: Any, op: int, before: int, worst: int) -> Any:
    """What it costs to make an op's outputs again there, with those inputs that would have to wait across the worst run."""
    cost = f[COSTS + s[op + ROW]]
    for r in range(s[op + READS], s[op + READS_STOP], 2):
        v = s[r]
        run = _instance(s, s[v + MAKER], before)
        if run != 0 and s[s[run + READ + s[v + SLOT]] + KEY] < s[worst + KEY]:
            cost += np.inf if s[s[v + MAKER] + ONCE] == 1 else f[COSTS + s[s[v + MAKER] + ROW]]
    return cost


@kernel
def relieve(s: Any, f: Any, steps: int, at_once: int, thrift: float, patience: float, values: Any, worths: Any) -> bool:
    """Drop values at the highest run, the best first, then at the run that is highest then, and so on.

    A value that waits across that run is worth min(bytes, what is above the budget) * wait ** patience / cost ** thrift.

    Args:
        steps: how many to drop at most.
        at_once: how many to drop before the next look at all values.
        values [at_once, 2], worths [at_once]: working memory.
    Returns:
        False if there is nothing left to drop, or nothing left to do.
    """
    floor = np.inf
    f[MOST_COST] = np.inf
    for op in range(s[FIRST_OP], s[OPS_STOP], OPERATION):
        if f[COSTS + s[op + ROW]] > 0.0:
            floor = min(floor, f[COSTS + s[op + ROW]])
    while steps > 0:
        if s[EXCESS] == 0:
            return False
        worst = _worst(s)
        over = np.float64(_memory_at(s, worst) - s[BUDGET])
        found = 0
        run = s[HEAD + NEXT]
        while run != worst:
            op = s[run + OP]
            if s[op + ONCE] == 0:
                for v in range(s[op + OUTS], s[op + OUTS_STOP], VALUE):
                    if s[s[run + READ + s[v + SLOT]] + KEY] <= s[worst + KEY] or s[v + BYTES] == 0:
                        continue
                    before = _cover(s, run, s[v + SLOT], worst)
                    if before == 0:
                        continue
                    wait = np.float64(s[before + KEY] - s[run + KEY]) / _KEYS
                    cost = _waiting_cost(s, f, op, before, worst) + 1e-3 * floor
                    worth = min(over, np.float64(s[v + BYTES])) * wait**patience / cost**thrift
                    if worth <= 0.0 or (found == at_once and worth <= worths[found - 1]):
                        continue
                    at = found if found < at_once else found - 1
                    while at > 0 and worths[at - 1] < worth:
                        worths[at] = worths[at - 1]
                        values[at, 0], values[at, 1] = values[at - 1, 0], values[at - 1, 1]
                        at -= 1
                    worths[at] = worth
                    values[at, 0], values[at, 1] = run, s[v + SLOT]
                    found = min(found + 1, at_once)
            run = s[run + NEXT]
        dropped = False
        for k in range(found):
            if steps > 0 and _memory_at(s, worst) > s[BUDGET]:
                before = _cover(s, values[k, 0], values[k, 1], worst)
                s[LOGGED] = 0
                if before != 0 and _evict(s, f, values[k, 0], before, 1.0, worst, LOGS):
                    dropped = True
                    steps -= 1
        if not dropped:
            return False
    return True


@kernel
def anneal(s: Any, f: Any, moves: int, hot: float, cold: float, penalty: float, repairs: int) -> None:
    """Random moves, taken where they are no worse, or by chance: the colder, the less.

    What is minimised is cost + penalty * bytes above the budget, summed over the runs. The best is the state with least above the
    budget, then least cost.

    Args:
        moves: how many are tried.
        hot, cold: temperatures at the start and at the end, in cost.
        penalty: cost of a byte above the budget for one run.
        repairs: how many values may be dropped after a move that exceeds the budget.
    """
    s[EXCESS] = 0
    for r in range(s[N_BLOCKS]):
        s[s[s[RANKED] + r] + ABOVE] = 0.0
        _recount(s, s[s[RANKED] + r])
    cooling = (cold / hot) ** (1.0 / max(1, moves)) if hot > 0.0 else 1.0
    temperature = hot
    since = 0
    for _ in range(moves):
        temperature *= cooling
        s[MOVES] += 1
        since += 1
        if s[N_BLOCKS] * _FILL > 2 * s[N_RUNS] + 4 * _FILL:
            _repack(s)
        cost, excess = f[COST], s[EXCESS]
        s[LOGGED] = 0
        allowed = -temperature * np.log(_uniform(s) + 1e-300)
        f[MOST_COST] = cost + allowed + penalty * excess
        choice = _uniform(s)
        if choice < 0.05 and excess > 0:
            done = _relieve(s, f, 24)
        elif choice < 0.25:
            done = _move_evict(s, f)
        elif choice < 0.5:
            done = _move_remove(s, f)
        elif choice < 0.9:
            done = _move_shift(s, f)
        else:
            done = _move_stretch(s, f)
        if not done or s[LOGGED] == 0:
            if s[LOGGED] > 0:
                _undo(s, f)
            continue
        for _repair in range(repairs if excess == 0 else 0):
            if s[EXCESS] == 0 or not _has_log(s, 16):
                break
            if not _relieve(s, f, 24):
                break
        worse = f[COST] - cost + penalty * (s[EXCESS] - excess)
        if worse > allowed:
            _undo(s, f)
            f[COST] = cost
            s[EXCESS] = excess
            continue
        if s[PENDING] == 1 and (s[EXCESS] > excess or (s[EXCESS] == excess and f[COST] > cost)):
            _undo(s, f)
            f[COST] = cost
            s[EXCESS] = excess
            save(s, f)
            s[PENDING] = 0
            since = 0
            continue
        s[ACCEPTED] += 1
        if _better(s, f):
            if since * 16 >= s[N_RUNS]:
                save(s, f)
                s[PENDING] = 0
                since = 0
            else:
                s[PENDING] = 1
    if s[PENDING] == 1:
        save(s, f)
        s[PENDING] = 0
