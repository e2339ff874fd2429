"""Depth-first search over canonical packings: does a set of buffers fit in so many units?"""

from __future__ import annotations

from typing import Final

import numpy as np

from planner.kernels import Ints, kernel
from planner.kernels.structs import struct

#: What `descend` returns; after the last two it can be called again.
PACKED, EXHAUSTED, PAUSED, CROWDED = 1, 2, 3, 4

STATE: Final = 9
Pair = tuple[int, int]

#: Columns of a frame: slice of members, slice of sections, offset and buffer last tried, chosen buffer, whether it had
#: a neighbour above, parent frame, agenda head and length, and lengths of the trails when it was made.
FRAME: Final = 14

#: Columns of the agenda: slices of members and sections, offset and buffer (or -1) to go on from, parent frame, next
#: entry, and units to spare.
AGENDA: Final = 9


class Search:
    """Buffers of one core, and a search among their packings that can be paused.

    Trails have what was overwritten: a row, and the number before. They are of at least 2 (m + s) rows.
    """

    size: Ints  # [m], in one unit, as are alignment and fixed
    alignment: Ints
    fixed: Ints  # [m]: an offset, or -1 where free
    first: Ints  # [m]: sections, half-open, none empty
    last: Ints
    base: Ints  # [m]: ties are broken by this permutation
    by_load: bool  # and before that, by the load of a buffer's busiest section
    capacity: int  # units
    load: Ints  # [m]: of the busiest section
    minimum: Ints  # [m]: the offset a buffer cannot go below
    placed: Ints  # [m]: offset, or -1; in the end the packing
    member: Ints  # [m]: buffers by component
    floor: Ints  # [s]: lowest unit that is free
    fresh: Ints  # [s]: its next value
    left: Ints  # [s]: units not yet placed
    crossing: Ints  # [s + 1]: buffers not yet placed that cross each boundary
    raised: Ints  # [., 2]: trail of `minimum`
    lifted: Ints  # [., 2]: trail of `floor`
    loaded: Ints  # [., 2]: trail of `load`
    frame: Ints  # [m + 2, FRAME]
    agenda: Ints  # [2 m + s + 2, AGENDA]
    # [STATE]: depth, head and length of the agenda, length of the first two trails, nodes, work, 1 if it has begun,
    # and length of the third trail; all zero at first
    state: Ints


SearchType, SearchProxy, new_search = struct(Search)


@kernel
def _divide(
    search: Search, members: Pair, sections: Pair, resumed: Pair, depth: int, head: int, entries: int, loads: int
) -> tuple[int, int, int]:
    """Put the components of what is left in a slice of members on the agenda, the fullest first.

    Args:
        members, sections: begin and end of the slices.
        resumed: offset and buffer to go on from in a component that is all there is.
        depth: frame that the components come from.
    Returns:
        length and head of the agenda, and length of the trail of loads.
    """
    begin, end = members
    start, stop = sections
    offset, tried = resumed
    first, last, load, member = search.first, search.last, search.load, search.member
    left, agenda, loaded = search.left, search.agenda, search.loaded
    pieces = entries
    lower = begin
    for s in range(start + 1, stop + 1):
        if s < stop and search.crossing[s] > 0:
            continue
        upper = lower
        for p in range(lower, end):
            i = member[p]
            if last[i] <= s:
                member[p] = member[upper]
                member[upper] = i
                upper += 1
        if upper > lower:
            spare = search.capacity
            for t in range(start, s):
                if left[t] > 0:
                    spare = min(spare, search.capacity - left[t] - max(search.floor[t], offset))
            for column, entry in enumerate((lower, upper, start, s, offset, tried, depth, -2, spare)):
                agenda[entries, column] = entry
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
        # Components are searched from their lowest offset again, and by the loads of what is left of them.
        for e in range(pieces, entries):
            agenda[e, 5] = -1
        if search.by_load:
            for p in range(begin, end):
                i = member[p]
                loaded[loads, 0], loaded[loads, 1] = i, load[i]
                loads += 1
                load[i] = 0
                for s in range(first[i], last[i]):
                    load[i] = max(load[i], left[s])
    return entries, head, loads


@kernel
def descend(search: Search, work_limit: int) -> int:
    """Place buffers bottom up, each on top of a neighbour, never lower than the one before.

    Every packing can be pushed down until each buffer rests on another or on the ground, so these are enough. Where no
    buffer crosses a section boundary any more, both sides are searched one after the other, and the failure of one is
    that of both.

    Args:
        work_limit: rows of buffers and sections looked at, all calls together, after which it pauses.
    Returns:
        PACKED, EXHAUSTED (proven: there is no packing), PAUSED, or CROWDED: a trail needs more rows.
    Source: the search of MiniMalloc (Moffitt 2023), with another order of its checks, no sorting and no recursion.
    """
    size, alignment, fixed = search.size, search.alignment, search.fixed
    first, last, base, capacity = search.first, search.last, search.base, search.capacity
    load, minimum, placed, member = search.load, search.minimum, search.placed, search.member
    floor, fresh, left, crossing = search.floor, search.fresh, search.left, search.crossing
    raised, lifted, loaded = search.raised, search.lifted, search.loaded
    frame, state = search.frame, search.state
    m = size.shape[0]
    sections = left.shape[0]
    dividing = state[7] == 0  # what is left of a slice of members goes on the agenda
    if dividing:
        state[0] = -1
        state[1] = -1
        state[7] = 1
        load[:] = 0
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
    depth, head, entries, raises, lifts, loads = state[0], state[1], state[2], state[3], state[4], state[8]
    # First the whole. These are no literals: those have types of their own, and `_divide` would be compiled for each.
    begin, end, start, stop = np.int64(0), np.int64(m), np.int64(0), np.int64(sections)
    offset, chosen = np.int64(0), np.int64(-1)
    opening = depth < 0  # the next component is taken from the agenda
    while True:
        if dividing:
            entries, head, loads = _divide(
                search, (begin, end), (start, stop), (offset, chosen), depth, head, entries, loads
            )
            dividing = False
            opening = True
        if opening:
            if head < 0:
                state[0], state[1] = depth, head
                return PACKED
            depth += 1
            for column in range(6):
                frame[depth, column] = search.agenda[head, column]
            frame[depth, 6], frame[depth, 8] = -1, search.agenda[head, 6]
            head = search.agenda[head, 7]
            frame[depth, 9], frame[depth, 10] = head, entries
            frame[depth, 11], frame[depth, 12], frame[depth, 13] = raises, lifts, loads
            opening = False
        room = min(raised.shape[0] - raises, lifted.shape[0] - lifts, loaded.shape[0] - loads)
        if state[6] > work_limit or room < m + sections:
            state[0], state[1], state[2], state[3], state[4], state[8] = depth, head, entries, raises, lifts, loads
            return PAUSED if room >= m + sections else CROWDED
        # Try the lowest buffer after the last, of those the busiest; none above the lowest end a buffer could have.
        begin, end, start, stop = frame[depth, 0], frame[depth, 1], frame[depth, 2], frame[depth, 3]
        tried_offset, tried = frame[depth, 4], frame[depth, 5]
        line = capacity + 1
        chosen = -1
        offset = capacity + 1
        for p in range(begin, end):
            i = member[p]
            low = minimum[i]
            if low + size[i] < line:
                line = low + size[i]
            if low > offset or low < tried_offset:
                continue
            if low == offset and (load[i] < load[chosen] or (load[i] == load[chosen] and base[i] > base[chosen])):
                continue
            is_tied = low == tried_offset and tried >= 0
            if is_tied and (load[i] > load[tried] or (load[i] == load[tried] and base[i] <= base[tried])):
                continue
            chosen, offset = i, low
        state[6] += end - begin
        failed = chosen < 0 or offset >= line
        if not failed:
            state[5] += 1
            frame[depth, 4], frame[depth, 5], frame[depth, 6] = offset, chosen, chosen
            top, born, dies = offset + size[chosen], first[chosen], last[chosen]
            good = True
            for s in range(born, dies):
                if top + left[s] - size[chosen] > capacity:
                    good = False
                    break
            if good:
                # Nothing goes below this offset any more: later choices here are no lower, and would fail the same way.
                for s in range(start, born):
                    if max(floor[s], offset) + left[s] > capacity and left[s] > 0:
                        failed = True
                        break
                for s in range(dies, stop):
                    if max(floor[s], offset) + left[s] > capacity and left[s] > 0:
                        failed = True
                        break
                state[6] += stop - start
                good = not failed
            if good:
                # Take it out of the slice, raise its neighbours and the floors.
                for p in range(begin, end):
                    if member[p] == chosen:
                        member[p] = member[end - 1]
                        member[end - 1] = chosen
                        break
                placed[chosen] = offset
                neighbours, touched, beyond = 0, born, dies
                for p in range(begin, end - 1):
                    i = member[p]
                    if first[i] < dies and born < last[i]:
                        neighbours += 1
                        low = (top + alignment[i] - 1) // alignment[i] * alignment[i]
                        if low > minimum[i]:
                            if low + size[i] > capacity or fixed[i] >= 0:
                                good = False
                                break
                            raised[raises, 0], raised[raises, 1] = i, minimum[i]
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
                            lifted[lifts, 0], lifted[lifts, 1] = s, floor[s]
                            lifts += 1
                            floor[s] = fresh[s]
                            if left[s] > 0 and floor[s] + left[s] > capacity:
                                good = False
                                break
                if good:
                    end -= 1
                    state[6] += end - begin + 1
                    dividing = True
                    continue
        # Where the placement did not hold, it goes. Where none is left to try, everything since the choice that made
        # this component goes; where that one had no neighbour above, it changed nothing here.
        undone = failed or placed[chosen] >= 0
        while undone:
            newest = depth
            if failed:
                newest = depth - 1
                depth = frame[depth, 8]
                if depth < 0:
                    return EXHAUSTED
            for d in range(newest, depth - 1, -1):
                chosen = frame[d, 6]
                for s in range(first[chosen], last[chosen]):
                    left[s] += size[chosen]
                for s in range(first[chosen] + 1, last[chosen]):
                    crossing[s] += 1
                placed[chosen] = -1
                for row in range(raises - 1, frame[d, 11] - 1, -1):
                    minimum[raised[row, 0]] = raised[row, 1]
                for row in range(lifts - 1, frame[d, 12] - 1, -1):
                    floor[lifted[row, 0]] = lifted[row, 1]
                for row in range(loads - 1, frame[d, 13] - 1, -1):
                    load[loaded[row, 0]] = loaded[row, 1]
                raises, lifts, loads = frame[d, 11], frame[d, 12], frame[d, 13]
            head, entries = frame[depth, 9], frame[depth, 10]
            failed = failed and frame[depth, 7] == 0
            undone = failed
