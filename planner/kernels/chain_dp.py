"""Chains of stages: frees of single actions, and cost against headroom for every stretch of a chain.

Headroom is the bytes between what is live when a stretch begins and the budget. A front is the extra cost of a stretch
as a falling step function of headroom: points of rising headroom and falling cost, in a pool that all stretches share.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from planner.kernels import Floats, Ints, kernel
from planner.kernels.csr import Arrays
from planner.kernels.replay import turn_round
from planner.kernels.structs import struct

#: Columns of the stage table. Rises are bytes above what is live when an action starts, deltas what it leaves; *_KEPT:
#: the cut before the stage outlives the action, *_GONE: it does not, if nobody in the stage needs it. OUT: the cut
#: after the stage is live already. READS_AFTER: its backward ops read the cut after it; SAVES: values inside it; FREE:
#: they can run, whatever is made again included, without the cut before. NET: what they leave, cuts apart; FIRST_NET:
#: and what the first run of the stage leaves for good. FIRST_DELTA: with the cut before kept.
(
    CUT_BEFORE, CUT_AFTER, READS_AFTER, SAVES, FREE, FREE_OUT,
    ADVANCE_KEPT, ADVANCE_GONE, ALL_GONE, ALL_KEPT, ALL_DELTA_GONE, ALL_DELTA_KEPT, BACK_GONE, BACK_KEPT,
    LEAF_GONE, LEAF_KEPT, LEAF_OUT_GONE, LEAF_OUT_KEPT, LEAF_DELTA, LEAF_OUT_DELTA, NET,
    FIRST_KEPT, FIRST_GONE, FIRST_DELTA, FIRST_ALL_GONE, FIRST_ALL_KEPT, FIRST_ALL_DELTA_GONE, FIRST_ALL_DELTA_KEPT,
    FIRST_NET, COLUMNS,
) = range(30)  # fmt: skip
RERUN_COLUMNS: Final = 21  # of the table, what a stretch that runs again depends on
#: Columns of the costs.
ADVANCE_COST, ALL_COST, LEAF_COST, LEAF_OUT_COST = range(4)


class Chain:
    """A chain of L stages with K kinds of stretches, and the fronts found so far."""

    table: Ints  # [L, COLUMNS]
    costs: Floats  # [L, 4]
    kind: Ints  # [L, L]: row of `of_kind` for stages s to t; equal stretches have one
    of_kind: Ints  # [K, 2]: s and t of each, by length
    limit: int  # the largest headroom of interest
    points: int  # that a front may have; one with more is thinned
    least: bool  # only the least headroom matters
    # [K + L, 2, 2, 2]: start and count in the pool, by whether the cut before must outlive the stretch, and by whether
    # the cut after it is live already
    fronts: Ints
    pool_h: Ints  # headroom of each point; point 0 has cost 0 at any headroom
    pool_c: Floats
    used: Ints  # [1]: points in the pool
    h: Ints  # [3, 12 * points + 16], as `c`: row 0 has a front in the making, the others are scratch
    c: Floats
    # [4]: the cut to go on to, -1 to keep all of the first stage, -2 to do the last at once; 1 if that cut outlives the
    # stages after it, and 2 more if the cut before the stretch is dropped on the way there; bytes above the start once
    # it is reached, and once those stages are done
    choice: Ints


ChainType, ChainProxy, new_chain = struct(Chain)


@kernel
def action_frees(
    g: Arrays, sequence: Ints, bounds: Ints, level: Ints, dies: Ints, keep_ptr: Ints, keep: Ints, freed: Ints
) -> Ints:
    """Frees of a sequence of actions, each a stretch of steps that states which values it touches live on after it.

    Args:
        sequence [L]: ops. bounds [a+1]: first step of each action.
        level [a], dies [m]: a value is freed in an action whose level is at least that at which it dies.
        keep_ptr [a+1], keep: values that an action leaves live all the same.
        freed [sum of reads and outputs over the sequence]: result.
    Returns:
        free_ptr [L+1]: where the frees of each step begin in `freed`.
    """
    needed = np.zeros(g.producer.shape[0], np.bool_)
    free_ptr = np.zeros(sequence.shape[0] + 1, np.int64)
    used = np.int64(0)
    for a in range(level.shape[0] - 1, -1, -1):
        for k in range(keep_ptr[a], keep_ptr[a + 1]):
            needed[keep[k]] = True
        for step in range(bounds[a + 1] - 1, bounds[a] - 1, -1):
            op = sequence[step]
            free_ptr[step + 1] = used  # counted from the end
            for v in range(g.out_ptr[op], g.out_ptr[op + 1]):
                if not needed[v] and not g.never_freed[v] and dies[v] <= level[a]:
                    freed[used] = v
                    used += 1
                needed[v] = False
            for r in range(g.read_ptr[op], g.read_ptr[op + 1]):
                v = g.read_value[r]
                if not needed[v] and not g.never_freed[v] and dies[v] <= level[a]:
                    freed[used] = v
                    used += 1
                needed[v] = True
        for step in range(bounds[a], bounds[a + 1]):
            op = sequence[step]
            for v in range(g.out_ptr[op], g.out_ptr[op + 1]):
                needed[v] = False
            for r in range(g.read_ptr[op], g.read_ptr[op + 1]):
                needed[g.read_value[r]] = False
        for k in range(keep_ptr[a], keep_ptr[a + 1]):
            needed[keep[k]] = False
    turn_round(free_ptr, freed, used)
    return free_ptr


@kernel
def _find(pool_h: Ints, start: int, count: int, headroom: int) -> int:
    """The last point of a front within a headroom, as its place in the pool, or -1."""
    low, high = start, start + count
    while low < high:
        middle = (low + high) // 2
        if pool_h[middle] <= headroom:
            low = middle + 1
        else:
            high = middle
    return low - 1 if low > start else -1


@kernel
def _lower(
    chain: Chain, one: Ints, shift_one: int, two: Ints, shift_two: int, cost: float, floor: int, count: int
) -> int:
    """The lower envelope of a front and `cost` + two others, shifted to the right; the count of points after it.

    Args:
        one, two [2]: start and count of the two fronts in the pool.
        floor: the sum is defined from there on.
    """
    pool_h, pool_c, h, c = chain.pool_h, chain.pool_c, chain.h, chain.c
    limit = chain.limit
    if one[1] == 0 or two[1] == 0:
        return count
    i, j = one[0], two[0]
    stop_one, stop_two = i + one[1], j + two[1]
    at = max(floor, pool_h[i] + shift_one, pool_h[j] + shift_two)
    if at > limit:
        return count
    end = count  # of the points that the sum may replace
    if count > 0:
        last_one = _find(pool_h, i, one[1], limit - shift_one)
        last_two = _find(pool_h, j, two[1], limit - shift_two)
        lowest = cost + pool_c[last_one] + pool_c[last_two]
        k = 0
        while k < end:  # from its point `end` on, the front is as low as the sum ever gets
            middle = (k + end) // 2
            if c[0, middle] > lowest:
                k = middle + 1
            else:
                end = middle
        if end < count:
            limit = min(limit, h[0, end] - 1)
        if at > limit:
            return count
    if chain.least:
        if count == 0 or at < h[0, 0]:
            h[0, 0] = at
            c[0, 0] = cost
        return 1
    found = 0
    while True:
        while i + 1 < stop_one and pool_h[i + 1] + shift_one <= at:
            i += 1
        while j + 1 < stop_two and pool_h[j + 1] + shift_two <= at:
            j += 1
        total = cost + pool_c[i] + pool_c[j]
        if found == 0 or total < c[1, found - 1]:
            h[1, found] = at
            c[1, found] = total
            found += 1
        following = limit + 1
        if i + 1 < stop_one:
            following = min(following, pool_h[i + 1] + shift_one)
        if j + 1 < stop_two:
            following = min(following, pool_h[j + 1] + shift_two)
        if following > limit:
            break
        at = following
    at = h[1, 0]
    begin, high = 0, end
    while begin < high:
        middle = (begin + high) // 2
        if h[0, middle] < at:
            begin = middle + 1
        else:
            high = middle
    lowest = c[0, begin - 1] if begin > 0 else np.inf
    merged, x, y = 0, begin, 0
    while x < end or y < found:
        if y >= found or (x < end and (h[0, x] < h[1, y] or (h[0, x] == h[1, y] and c[0, x] <= c[1, y]))):
            head, tail = h[0, x], c[0, x]
            x += 1
        else:
            head, tail = h[1, y], c[1, y]
            y += 1
        if tail < lowest:
            h[2, merged] = head
            c[2, merged] = tail
            lowest = tail
            merged += 1
    moved = begin + merged - end
    if moved > 0:
        for k in range(count - 1, end - 1, -1):
            h[0, k + moved] = h[0, k]
            c[0, k + moved] = c[0, k]
    elif moved < 0:
        for k in range(end, count):
            h[0, k + moved] = h[0, k]
            c[0, k + moved] = c[0, k]
    for k in range(merged):
        h[0, begin + k] = h[2, k]
        c[0, begin + k] = c[2, k]
    count += moved
    return _thin(chain, count) if count > 8 * chain.points else count


@kernel
def _thin(chain: Chain, count: int) -> int:
    """Keep the first point, and of every 1 / `points` of the range of headroom the cheapest."""
    h, c = chain.h, chain.c
    first = h[0, 0]
    width = (chain.limit - first) // chain.points + 1
    kept = 1
    for k in range(1, count):
        last_of_cell = k + 1 == count or (h[0, k + 1] - first) // width != (h[0, k] - first) // width
        if last_of_cell:
            h[0, kept] = h[0, k]
            c[0, kept] = c[0, k]
            kept += 1
    return kept


@kernel
def _store(chain: Chain, start: Ints, count: int) -> None:
    """Put a front into the pool, thinned where it has too many points."""
    if count > chain.points:
        count = _thin(chain, count)
    start[0] = chain.used[0]
    start[1] = count
    for k in range(count):
        chain.pool_h[start[0] + k] = chain.h[0, k]
        chain.pool_c[start[0] + k] = chain.c[0, k]
    chain.used[0] += count


@kernel
def _cut_again(chain: Chain, s: int, t: int, outlives: int, out: int) -> int:
    """The front of a stretch: do its last stage, keep everything of its first, or go on to a cut and keep that."""
    table, costs, kind, fronts = chain.table, chain.costs, chain.kind, chain.fronts
    zero = np.array([0, 1])
    none, count = np.int64(0), np.int64(0)
    tail = np.inf
    if table[t, FREE + out]:
        below = fronts[kind[s, t - 1], outlives, 0]
        delta = table[t, LEAF_DELTA + out]
        floor = table[t, LEAF_GONE + 2 * out]
        cost = costs[t, LEAF_COST + out]
        count = _lower(chain, below, delta, zero, none, cost, floor, count)
        tail = _note(chain, count, tail, np.int64(-2), none, delta, none)
    net = 0  # of the stages after the cut
    for u in range(s + 1, t + 1):
        net += table[u, NET]
    after = table[t, CUT_AFTER] if out else 0
    if table[s, SAVES]:
        stays = 1 if table[s, READS_AFTER] else 0
        delta = table[s, ALL_DELTA_GONE + outlives]
        then = delta + net - (0 if stays else table[s, CUT_AFTER]) - after
        floor = max(table[s, ALL_GONE + outlives], then + table[s, BACK_GONE + outlives])
        above = fronts[kind[s + 1, t], stays, out]
        count = _lower(chain, above, delta, zero, none, costs[s, ALL_COST], floor, count)
        tail = _note(chain, count, tail, np.int64(-1), np.int64(stays), delta, then)
    needless = True  # stages s to k - 1 need not be run from the cut before s
    cost = 0.0
    kept, gone = table[s, ADVANCE_KEPT], table[s, ADVANCE_GONE]
    for k in range(s, t):
        if k > s:
            kept = max(kept, table[k, CUT_BEFORE] + table[k, ADVANCE_GONE])
            gone = max(gone, table[k, CUT_BEFORE] - table[s, CUT_BEFORE] + table[k, ADVANCE_GONE])
            net -= table[k, NET]
        cost += costs[k, ADVANCE_COST]
        for stays in range(2 if table[k, READS_AFTER] else 1):
            drops = needless and table[k, FREE + stays] != 0 and outlives == 0
            delta = table[k, CUT_AFTER] - (table[s, CUT_BEFORE] if drops else 0)
            then = delta + net - (0 if stays else table[k, CUT_AFTER]) - after
            right = fronts[kind[k + 1, t], stays, out]
            left = fronts[kind[s, k], 1 if drops else outlives, stays]
            floor = gone if drops else kept
            count = _lower(chain, right, delta, left, then, cost, floor, count)
            tail = _note(chain, count, tail, k, stays + (2 if drops else 0), delta, then)
        needless = needless and table[k, FREE] != 0
    return count


@kernel
def _cut_first(chain: Chain, s: int, outlives: int) -> int:
    """The same of stages s to the last, whose forward part runs for the first time and costs nothing extra."""
    table, kind, fronts = chain.table, chain.kind, chain.fronts
    stages = table.shape[0]
    base = fronts.shape[0] - stages
    zero = np.array([0, 1])
    none, count = np.int64(0), np.int64(0)
    tail = np.inf
    net = 0
    for u in range(s + 1, stages):
        net += table[u, FIRST_NET]
    delta = table[s, FIRST_ALL_DELTA_GONE + outlives]
    floor = table[s, FIRST_ALL_GONE + outlives]
    if s == stages - 1:
        floor = max(floor, delta + table[s, BACK_GONE + outlives])
        return _lower(chain, zero, none, zero, none, 0.0, floor, count)
    if table[s, SAVES]:
        stays = 1 if table[s, READS_AFTER] else 0
        then = delta + net - (0 if stays else table[s, CUT_AFTER])
        floor = max(floor, then + table[s, BACK_GONE + outlives])
        above = fronts[base + s + 1, stays, 0]
        count = _lower(chain, above, delta, zero, none, 0.0, floor, count)
        tail = _note(chain, count, tail, np.int64(-1), np.int64(stays), delta, then)
    needless = True
    kept, gone = table[s, FIRST_KEPT], table[s, FIRST_GONE]
    live = table[s, FIRST_DELTA]  # above the start, after stage k
    for k in range(s, stages - 1):
        if k > s:
            kept = max(kept, live + table[k, FIRST_GONE])
            gone = max(gone, live - table[s, CUT_BEFORE] + table[k, FIRST_GONE])
            live += table[k, FIRST_DELTA] - table[k, CUT_BEFORE]
            net -= table[k, FIRST_NET]
        for stays in range(2 if table[k, READS_AFTER] else 1):
            drops = needless and table[k, FREE + stays] != 0 and outlives == 0
            delta = live - (table[s, CUT_BEFORE] if drops else 0)
            then = delta + net - (0 if stays else table[k, CUT_AFTER])
            right = fronts[base + k + 1, stays, 0]
            left = fronts[kind[s, k], 1 if drops else outlives, stays]
            floor = gone if drops else kept
            count = _lower(chain, right, delta, left, then, 0.0, floor, count)
            tail = _note(chain, count, tail, k, stays + (2 if drops else 0), delta, then)
        needless = needless and table[k, FREE] != 0
    return count


@kernel
def _note(chain: Chain, count: int, tail: float, k: int, flags: int, delta: int, then: int) -> float:
    """Remember a choice that lowered the last point of the front, which is what the largest headroom buys."""
    if count == 0 or chain.c[0, count - 1] >= tail:
        return tail
    chain.choice[0], chain.choice[1], chain.choice[2], chain.choice[3] = k, flags, delta, then
    return chain.c[0, count - 1]


@kernel
def _minds(table: Ints, s: int) -> bool:
    """True if it matters to stretches from stage s on whether the cut before them outlives them."""
    minds: bool = table[s, FREE] != 0 or table[s, FREE_OUT] != 0  # such a stretch may begin without that cut
    if s == 0 or table[s - 1, READS_AFTER] == 0:
        return minds
    for gone in (ALL_GONE, ALL_DELTA_GONE, BACK_GONE, LEAF_GONE, LEAF_OUT_GONE, FIRST_ALL_GONE, FIRST_ALL_DELTA_GONE):
        minds = minds or table[s, gone] != table[s, gone + 1]  # *_KEPT stands behind each *_GONE
    return minds


@kernel
def stretches(chain: Chain, first: int, last: int) -> int:
    """Fronts of stretches whose forward part runs again, from the gradient after them to the gradient before.

    Args:
        first, last: kinds to do now.
    Returns:
        the first kind not done, where the pool is full.
    """
    table, fronts = chain.table, chain.fronts
    zero, none = np.array([0, 1]), np.int64(0)
    for q in range(first, last):
        s, t = chain.of_kind[q, 0], chain.of_kind[q, 1]
        if chain.used[0] + 4 * (chain.points + 2) > chain.pool_h.shape[0]:
            return q
        for out in range(2 if table[t, READS_AFTER] else 1):
            for outlives in range(2):
                if outlives == 1 and not _minds(table, s):
                    for part in range(2):  # a copied slice would cost two seconds to compile
                        fronts[q, 1, out, part] = fronts[q, 0, out, part]
                    continue
                if s == t:
                    cost = chain.costs[t, LEAF_COST + out]
                    rise = table[t, LEAF_GONE + 2 * out + (0 if table[t, FREE + out] else outlives)]
                    count = _lower(chain, zero, none, zero, none, cost, rise, none)
                else:
                    count = _cut_again(chain, s, t, outlives, out)
                _store(chain, fronts[q, outlives, out], count)
    return last


@kernel
def sweeps(chain: Chain, first: int, last: int) -> int:
    """Fronts of stages s to the last whose forward part runs for the first time, last s first: s has row K + s.

    Args:
        first, last: stages to do now, down from first and without last; `stretches` says what the others are.
    Returns:
        the stage that comes next; last where all are done.
    """
    table, fronts = chain.table, chain.fronts
    base = fronts.shape[0] - table.shape[0]
    for s in range(first, last, -1):
        if chain.used[0] + 2 * (chain.points + 2) > chain.pool_h.shape[0]:
            return s
        for outlives in range(2):
            if outlives == 1 and not _minds(table, s):
                for part in range(2):
                    fronts[base + s, 1, 0, part] = fronts[base + s, 0, 0, part]
                continue
            _store(chain, fronts[base + s, outlives, 0], _cut_first(chain, s, outlives))
    return last


@kernel
def choose(chain: Chain, s: int, t: int, outlives: int, out: int, rerun: bool, headroom: int) -> bool:
    """Find the cheapest way to do a stretch of several stages within a headroom, from the fronts of the shorter ones.

    `chain.choice` is the result, `chain.limit` is the headroom from now on.
    Returns:
        whether there is any.
    """
    chain.limit = headroom
    chain.least = False
    count = _cut_again(chain, s, t, outlives, out) if rerun else _cut_first(chain, s, outlives)
    return count > 0


@kernel
def binomial_table(extra: Ints, advance: Ints, mixed: bool) -> None:
    """Least forwards for every number of steps and slots, by the recurrence.

    Args:
        extra [n+1, s+1]: result: forwards beyond one that is taped for each step; with `mixed`, all forwards. Row 0 and
            what cannot be done are infinite (the largest int64 / 4).
        advance [n+1, s+1]: result: how many steps to go before the next state is stored, the longest where several are
            best; 0: store the tape of the first step instead of a state.
        mixed: slots may hold tapes.
    """
    never = np.iinfo(np.int64).max // 4
    extra[:, :] = never
    advance[:, :] = 0
    for slots in range(extra.shape[1]):
        if mixed or slots > 0:
            extra[1, slots] = 1 if mixed else 0
        for steps in range(2, extra.shape[0]):
            if slots == 0:
                break
            best, way = never, 0
            if mixed and slots > 0 and extra[steps - 1, slots - 1] < never:
                best = 1 + extra[steps - 1, slots - 1]
            for i in range(1, steps):
                right = extra[steps - i, slots - 1]
                if not mixed and slots == 1 and i == steps - 1:
                    right = 0  # the last step needs no slot of its own
                if right < never and i + extra[i, slots] + right < best + (way > 0):
                    best, way = i + extra[i, slots] + right, i
            extra[steps, slots] = best
            advance[steps, slots] = way
