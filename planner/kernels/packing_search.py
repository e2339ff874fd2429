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

#: Entries of `state`: depth, head and length of the agenda, length of the first two trails, nodes, work, if it has
#: begun, and length of the third trail.
STATE: Final = 9

#: Columns of a frame: slice of members, slice of sections, offset and buffer last tried, chosen buffer, whether it had
#: a neighbour above, parent frame, agenda head and length, and lengths of the trails when it was made.
FRAME: Final = 14

#: Columns of the agenda: slices of members and sections, offset and buffer (or -1) to go on from, parent frame, next
#: entry, and units to spare.
AGENDA: Final = 9


@kernel
def _divide(
    begin: int,
    end: int,
    start: int,
    stop: int,
    offset: int,
    tried: int,
    depth: int,
    first: Any,
    last: Any,
    by_load: bool,
    capacity: int,
    load: Any,
    member: Any,
    floor: Any,
    left: Any,
    crossing: Any,
    agenda: Any,
    entries: int,
    head: int,
    loaded: Any,
    loads: int,
) -> tuple[int, int, int]:
    """Put the components of what is left in a slice of members on the agenda, the fullest first; arguments as in
    `descend`.

    Returns:
        length and head of the agenda, and length of the trail of loads.
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
        # Components are searched from their lowest offset again, and by the loads of what is left of them.
        for e in range(pieces, entries):
            agenda[e, 5] = -1
        if by_load:
            for p in range(begin, end):
                i = member[p]
                loaded[loads, 0] = i
                loaded[loads, 1] = load[i]
                loads += 1
                load[i] = 0
                for s in range(first[i], last[i]):
                    load[i] = max(load[i], left[s])
    return entries, head, loads


@kernel
def descend(
    size: Any,
    alignment: Any,
    fixed: Any,
    first: Any,
    last: Any,
    base: Any,
    by_load: bool,
    capacity: int,
    work_limit: int,
    load: Any,
    minimum: Any,
    placed: Any,
    member: Any,
    floor: Any,
    fresh: Any,
    left: Any,
    crossing: Any,
    raised: Any,
    lifted: Any,
    loaded: Any,
    frame: Any,
    agenda: Any,
    state: Any,
) -> int:
    """Place buffers bottom up, each on top of a neighbour, never lower than the one before.

    Every packing can be pushed down until each buffer rests on another or on the ground, so these are enough. Where no
    buffer crosses a section boundary any more, both sides are searched one after the other, and the failure of one is
    that of both.

    Args:
        size [m], alignment [m], fixed [m]: in one unit; `fixed` is -1 where free.
        first [m], last [m]: sections, half-open, none empty.
        base [m], by_load: ties are broken by this permutation; `by_load`: by the load of a buffer's busiest section
        before that.
        capacity: units.
        work_limit: rows of buffers and sections looked at, all calls together, after which it pauses.
        load [m], minimum [m], placed [m], member [m]: scratch: of the busiest section, the offset a buffer cannot go
        below, its offset or
            -1, and buffers by component; in the end `placed` is the packing.
        floor [s], fresh [s], left [s], crossing [s + 1]: scratch: lowest unit that is free, its next value, units not
        yet placed, and
            buffers not yet placed that cross each boundary.
        raised [., 2], lifted [., 2], loaded [., 2]: trails of `minimum`, `floor` and `load`, of at least 2 (m + s)
        rows. frame [m + 2, FRAME], agenda [2 m + s + 2, AGENDA]: stacks.
        state [STATE]: all zero at the first call.
    Returns:
        PACKED, EXHAUSTED (proven: there is no packing), PAUSED, or CROWDED: a trail needs more rows.
    Source: the search of MiniMalloc (Moffitt 2023), with another order of its checks, no sorting and no recursion.
    """
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
    depth = state[0]
    head = state[1]
    entries = state[2]
    raises = state[3]
    lifts = state[4]
    loads = state[8]
    # First the whole. These are no literals: those have types of their own, and `_divide` would be compiled for each.
    begin, end, start, stop, offset, chosen = (
        np.int64(0),
        np.int64(m),
        np.int64(0),
        np.int64(sections),
        np.int64(0),
        np.int64(-1),
    )
    opening = depth < 0  # the next component is taken from the agenda
    while True:
        if dividing:
            entries, head, loads = _divide(
                begin,
                end,
                start,
                stop,
                offset,
                chosen,
                depth,
                first,
                last,
                by_load,
                capacity,
                load,
                member,
                floor,
                left,
                crossing,
                agenda,
                entries,
                head,
                loaded,
                loads,
            )
            dividing = False
            opening = True
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
            frame[depth, 13] = loads
            frame[depth, 6] = -1
            opening = False
        room = min(raised.shape[0] - raises, lifted.shape[0] - lifts, loaded.shape[0] - loads)
        if state[6] > work_limit or room < m + sections:
            state[0] = depth
            state[1] = head
            state[2] = entries
            state[3] = raises
            state[4] = lifts
            state[8] = loads
            return PAUSED if room >= m + sections else CROWDED
        # The next buffer to try here: the lowest after the last, of those the busiest; none above the lowest end any
        # buffer could have.
        begin = frame[depth, 0]
        end = frame[depth, 1]
        start = frame[depth, 2]
        stop = frame[depth, 3]
        tried_offset = frame[depth, 4]
        tried = frame[depth, 5]
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
            if (
                low > tried_offset
                or tried < 0
                or load[i] < load[tried]
                or (load[i] == load[tried] and base[i] > base[tried])
            ):
                chosen = i
                offset = low
        state[6] += end - begin
        failed = chosen < 0 or offset >= line
        if not failed:
            state[5] += 1
            frame[depth, 4] = offset
            frame[depth, 5] = chosen
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
                raises = frame[d, 11]
                lifts = frame[d, 12]
                loads = frame[d, 13]
            head = frame[depth, 9]
            entries = frame[depth, 10]
            failed = failed and frame[depth, 7] == 0
            undone = failed
