"""Depth-first search over canonical packings: does a set of buffers fit in so many units?"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from planner.kernels import kernel

#: What `descend` returns; after the last two it can be called again.
PACKED: Final = 1
EXHAUSTED: Final = 2
PAUSED: Final = 3
CROWDED: Final = 4

#: Entries of `state`: depth, head and length of the agenda, length of both trails, nodes, work, and if it has begun.
STATE: Final = 9

#: Columns of a frame: slice of members, slice of sections, (offset, rank) last tried, chosen buffer, whether it had a neighbour above,
#: parent frame, agenda head and length, and lengths of both trails when it was made.
FRAME: Final = 14

#: Columns of the agenda: slices of members and sections, (offset, rank) to go on from, parent frame, next entry, and units to spare.
AGENDA: Final = 9


@kernel
def _take_back(
    depth: int, size: Any, first: Any, last: Any, minimum: Any, placed: Any, floor: Any, left: Any, crossing: Any, raised: Any,
    raises: int, lifted: Any, lifts: int, rank: Any, ranked: Any, ranks: int, frame: Any,
) -> None:  # fmt: skip
    """Undo the placement made in a frame, which is the newest there is; arguments as in `descend`."""
    chosen = frame[depth, 6]
    for s in range(first[chosen], last[chosen]):
        left[s] += size[chosen]
    for s in range(first[chosen] + 1, last[chosen]):
        crossing[s] += 1
    placed[chosen] = -1
    for row in range(raises - 1, frame[depth, 11] - 1, -1):
        minimum[raised[row, 0]] = raised[row, 1]
    for row in range(lifts - 1, frame[depth, 12] - 1, -1):
        floor[lifted[row, 0]] = lifted[row, 1]
    for row in range(ranks - 1, frame[depth, 13] - 1, -1):
        rank[ranked[row, 0]] = ranked[row, 1]


@kernel
def _divide(
    begin: int, end: int, start: int, stop: int, offset: int, tried: int, depth: int, size: Any, first: Any, last: Any, base: Any,
    by_load: bool, capacity: int, rank: Any, member: Any, floor: Any, left: Any, crossing: Any, agenda: Any, entries: int, head: int,
    ranked: Any, ranks: int,
) -> tuple[int, int, int]:  # fmt: skip
    """Put the components of what is left in a slice of members on the agenda, the fullest first; arguments as in `descend`.

    Returns:
        length and head of the agenda, and length of the trail of ranks.
    """
    pieces = entries
    lower = begin
    for s in range(start + 1, stop + 1):
        if s < stop and crossing[s] > 0:
            continue
        upper = lower
        for p in range(lower, end):
            i = member[p]
            if last[i] <= s:
                member[p] = member[upper]
                member[upper] = i
                upper += 1
        if upper > lower:
            spare = capacity
            for t in range(start, s):
                if left[t] > 0:
                    spare = min(spare, capacity - left[t] - max(floor[t], offset))
            agenda[entries, 0] = lower
            agenda[entries, 1] = upper
            agenda[entries, 2] = start
            agenda[entries, 3] = s
            agenda[entries, 4] = offset
            agenda[entries, 5] = tried
            agenda[entries, 6] = depth
            agenda[entries, 7] = -2
            agenda[entries, 8] = spare
            entries += 1
            lower = upper
        start = s
    for _ in range(pieces, entries):
        loosest = -1
        for e in range(pieces, entries):
            if agenda[e, 7] == -2 and (loosest < 0 or agenda[e, 8] > agenda[loosest, 8]):
                loosest = e
        agenda[loosest, 7] = head
        head = loosest
    if entries - pieces > 1 or depth < 0:
        # Components are ranked anew, by what is left of them.
        for e in range(pieces, entries):
            agenda[e, 5] = -1
            count = agenda[e, 1] - agenda[e, 0]
            members = np.empty(count, np.int64)
            keys = np.empty(count, np.int64)
            for k in range(count):
                members[k] = member[agenda[e, 0] + k]
                keys[k] = base[members[k]]
            members = members[np.argsort(keys)]
            if by_load:
                for k in range(count):
                    load = 0
                    for s in range(first[members[k]], last[members[k]]):
                        load = max(load, left[s])
                    keys[k] = -load
                members = members[np.argsort(keys, kind="mergesort")]
            for k in range(count):
                ranked[ranks, 0] = members[k]
                ranked[ranks, 1] = rank[members[k]]
                ranks += 1
                rank[members[k]] = k
    return entries, head, ranks


@kernel
def descend(
    size: Any, alignment: Any, fixed: Any, first: Any, last: Any, base: Any, by_load: bool, capacity: int, work_limit: int,
    rank: Any, minimum: Any, placed: Any, member: Any, floor: Any, fresh: Any, left: Any, crossing: Any, raised: Any, lifted: Any,
    ranked: Any, frame: Any, agenda: Any, state: Any,
) -> int:  # fmt: skip
    """Place buffers bottom up, each on top of a neighbour, never lower than the one before.

    Every packing can be pushed down until each buffer rests on another or on the ground, so these are enough. Where no buffer
    crosses a section boundary any more, both sides are searched one after the other, and the failure of one is that of both.

    Args:
        size [m], alignment [m], fixed [m]: in one unit; `fixed` is -1 where free.
        first [m], last [m]: sections, half-open, none empty.
        base [m], by_load: ties are broken by this permutation; `by_load`: by the load of a buffer's busiest section before that.
        capacity: units.
        work_limit: rows of buffers and sections looked at, all calls together, after which it pauses.
        rank [m], minimum [m], placed [m], member [m]: scratch: tie-break, the offset a buffer cannot go below, its offset or -1, and
            buffers by component; in the end `placed` is the packing.
        floor [s], fresh [s], left [s], crossing [s + 1]: scratch: lowest unit that is free, its next value, units not yet placed, and
            buffers not yet placed that cross each boundary.
        raised [., 2], lifted [., 2], ranked [., 2]: trails of `minimum`, `floor` and `rank`, of at least 2 (m + s) rows.
        frame [m + 2, FRAME], agenda [2 m + s + 2, AGENDA]: stacks.
        state [STATE]: all zero at the first call.
    Returns:
        PACKED, EXHAUSTED (proven: there is no packing), PAUSED, or CROWDED: a trail needs more rows.
    Source: the search of MiniMalloc (Moffitt 2023), with another order of its checks, no sorting and no recursion.
    """
    m = size.shape[0]
    sections = left.shape[0]
    if state[7] == 0:
        state[7] = 1
        left[:] = 0
        crossing[:] = 0
        floor[:] = 0
        for i in range(m):
            member[i] = i
            placed[i] = -1
            minimum[i] = max(fixed[i], 0)
            for s in range(first[i], last[i]):
                left[s] += size[i]
            for s in range(first[i] + 1, last[i]):
                crossing[s] += 1
            if minimum[i] + size[i] > capacity:
                return EXHAUSTED
        for s in range(sections):
            if left[s] > capacity:
                return EXHAUSTED
        entries, head, ranks = _divide(
            0, m, 0, sections, 0, -1, -1, size, first, last, base, by_load, capacity, rank, member, floor, left, crossing, agenda, 0, -1,
            ranked, 0,
        )  # fmt: skip
        state[0] = -1
        state[1] = head
        state[2] = entries
        state[8] = ranks
    depth = state[0]
    head = state[1]
    entries = state[2]
    raises = state[3]
    lifts = state[4]
    ranks = state[8]
    opening = depth < 0  # the next component is taken from the agenda
    while True:
        if opening:
            if head < 0:
                state[0] = depth
                state[1] = head
                return PACKED
            depth += 1
            for column in range(6):
                frame[depth, column] = agenda[head, column]
            frame[depth, 8] = agenda[head, 6]
            head = agenda[head, 7]
            frame[depth, 9] = head
            frame[depth, 10] = entries
            frame[depth, 11] = raises
            frame[depth, 12] = lifts
            frame[depth, 13] = ranks
            frame[depth, 6] = -1
            opening = False
        room = min(raised.shape[0] - raises, lifted.shape[0] - lifts, ranked.shape[0] - ranks)
        if state[6] > work_limit or room < m + sections:
            state[0] = depth
            state[1] = head
            state[2] = entries
            state[3] = raises
            state[4] = lifts
            state[8] = ranks
            return PAUSED if room >= m + sections else CROWDED
        # The next buffer to try here: the least (offset, rank) after the last; none above the lowest end any buffer could have.
        begin = frame[depth, 0]
        end = frame[depth, 1]
        tried_offset = frame[depth, 4]
        tried_rank = frame[depth, 5]
        line = capacity + 1
        chosen = -1
        offset = capacity + 1
        for p in range(begin, end):
            i = member[p]
            low = minimum[i]
            if low + size[i] < line:
                line = low + size[i]
            least = low < offset or (low == offset and rank[i] < rank[chosen])
            if least and (low > tried_offset or (low == tried_offset and rank[i] > tried_rank)):
                chosen = i
                offset = low
        state[6] += end - begin
        failed = chosen < 0 or offset >= line
        if not failed:
            state[5] += 1
            frame[depth, 4] = offset
            frame[depth, 5] = rank[chosen]
            frame[depth, 6] = chosen
            top = offset + size[chosen]
            born = first[chosen]
            dies = last[chosen]
            good = True
            for s in range(born, dies):
                if top + left[s] - size[chosen] > capacity:
                    good = False
                    break
            if good:
                # Nothing goes below this offset any more: later choices here are no lower, and would fail the same way.
                for s in range(frame[depth, 2], born):
                    if max(floor[s], offset) + left[s] > capacity and left[s] > 0:
                        failed = True
                        break
                for s in range(dies, frame[depth, 3]):
                    if max(floor[s], offset) + left[s] > capacity and left[s] > 0:
                        failed = True
                        break
                state[6] += frame[depth, 3] - frame[depth, 2]
                good = not failed
            if good:
                # Take it out of the slice, raise its neighbours and the floors.
                for p in range(begin, end):
                    if member[p] == chosen:
                        member[p] = member[end - 1]
                        member[end - 1] = chosen
                        break
                placed[chosen] = offset
                neighbours = 0
                touched = born
                beyond = dies
                for p in range(begin, end - 1):
                    i = member[p]
                    if first[i] < dies and born < last[i]:
                        neighbours += 1
                        low = (top + alignment[i] - 1) // alignment[i] * alignment[i]
                        if low > minimum[i]:
                            if low + size[i] > capacity or fixed[i] >= 0:
                                good = False
                                break
                            raised[raises, 0] = i
                            raised[raises, 1] = minimum[i]
                            raises += 1
                            minimum[i] = low
                            touched = min(touched, first[i])
                            beyond = max(beyond, last[i])
                frame[depth, 7] = neighbours
                for s in range(born, dies):
                    left[s] -= size[chosen]
                for s in range(born + 1, dies):
                    crossing[s] -= 1
                if good:
                    # The floor of a section is the least offset among the buffers it still waits for.
                    for s in range(touched, beyond):
                        fresh[s] = capacity + 1
                    for p in range(begin, end - 1):
                        i = member[p]
                        if first[i] < beyond and touched < last[i]:
                            for s in range(max(first[i], touched), min(last[i], beyond)):
                                if minimum[i] < fresh[s]:
                                    fresh[s] = minimum[i]
                            state[6] += min(last[i], beyond) - max(first[i], touched)
                    for s in range(touched, beyond):
                        if fresh[s] > floor[s]:
                            lifted[lifts, 0] = s
                            lifted[lifts, 1] = floor[s]
                            lifts += 1
                            floor[s] = fresh[s]
                            if left[s] > 0 and floor[s] + left[s] > capacity:
                                good = False
                                break
                if good:
                    entries, head, ranks = _divide(
                        begin, end - 1, frame[depth, 2], frame[depth, 3], offset, rank[chosen], depth, size, first, last, base, by_load,
                        capacity, rank, member, floor, left, crossing, agenda, entries, head, ranked, ranks,
                    )  # fmt: skip
                    state[6] += end - begin
                    opening = True
                    continue
                _take_back(
                    depth, size, first, last, minimum, placed, floor, left, crossing, raised, raises, lifted, lifts, rank, ranked, ranks,
                    frame,
                )  # fmt: skip
                raises = frame[depth, 11]
                lifts = frame[depth, 12]
                ranks = frame[depth, 13]
        while failed:
            # Everything since the choice that made this component goes; where that had no neighbour above, it changed nothing here.
            parent = frame[depth, 8]
            if parent < 0:
                return EXHAUSTED
            for d in range(depth - 1, parent - 1, -1):
                _take_back(
                    d, size, first, last, minimum, placed, floor, left, crossing, raised, raises, lifted, lifts, rank, ranked, ranks,
                    frame,
                )  # fmt: skip
                raises = frame[d, 11]
                lifts = frame[d, 12]
                ranks = frame[d, 13]
            depth = parent
            head = frame[depth, 9]
            entries = frame[depth, 10]
            failed = frame[depth, 7] == 0
