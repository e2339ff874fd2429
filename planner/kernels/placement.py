"""Greedy placement of buffers in one arena, in a given order."""

from __future__ import annotations

import numpy as np

from planner.kernels import Ints, kernel


@kernel
def _insert(node: int, low: int, high: int, head: Ints, pool: Ints, state: Ints) -> None:
    """Add the addresses [low, high) to a node's sorted list of disjoint ranges; those that touch become one.

    Args:
        head [nodes]: first range of each list, or -1.
        pool [ranges, 3]: low, high and the next range or -1; grown by the caller, which leaves at least one row free.
        state [2]: rows ever used, and the first of those given back (a list of its own), or -1.
    """
    before = -1
    here = head[node]
    while here >= 0 and pool[here, 1] < low:
        before = here
        here = pool[here, 2]
    if here >= 0 and pool[here, 0] <= high:
        pool[here, 0] = min(pool[here, 0], low)
        pool[here, 1] = max(pool[here, 1], high)
        after = pool[here, 2]
        while after >= 0 and pool[after, 0] <= pool[here, 1]:
            pool[here, 1] = max(pool[here, 1], pool[after, 1])
            following = pool[after, 2]
            pool[after, 2] = state[1]
            state[1] = after
            after = following
        pool[here, 2] = after
        return
    if state[1] >= 0:
        row = state[1]
        state[1] = pool[row, 2]
    else:
        row = state[0]
        state[0] += 1
    pool[row, 0] = low
    pool[row, 1] = high
    pool[row, 2] = here
    if before < 0:
        head[node] = row
    else:
        pool[before, 2] = row


@kernel
def place(order: Ints, size: Ints, alignment: Ints, first: Ints, last: Ints, best: bool, offset: Ints) -> int:
    """Put each buffer in the first gap (`best`: the smallest) between those placed before it and live with it.

    The taken addresses are kept in a segment tree over sections: a node has those of the buffers that cover it, and
    those of all that touch it, as disjoint ranges. Well packed buffers leave few ranges, so placement is near linear
    where packing goes well.

    Args:
        order [n]: buffers, in the order they are placed.
        size [n], alignment [n]: in one unit; offsets are multiples of the buffer's alignment.
        first [n], last [n]: sections, half-open.
        offset [n]: result; what is not negative on entry stays, and should come first in `order`.
    Returns:
        the highest end.
    """
    n = order.shape[0]
    leaves = 1
    for k in range(n):
        while leaves < last[order[k]]:
            leaves *= 2
    # Lists of the ranges taken throughout a node, then of those taken anywhere in it.
    head = np.empty(4 * leaves, np.int64)
    head[:] = -1
    pool = np.empty((4 * n + 256, 3), np.int64)
    state = np.empty(2, np.int64)
    state[0] = 0
    state[1] = -1
    lists = np.empty(256, np.int64)
    canonical = np.empty(128, np.int64)
    partial = np.empty(128, np.int64)
    top = 0
    for k in range(n):
        buffer = order[k]
        need = size[buffer]
        if need == 0 or last[buffer] <= first[buffer]:
            offset[buffer] = max(offset[buffer], 0)
            continue
        # Largest nodes within the lifetime, and those that reach beyond it: ancestors of the first and last leaf.
        whole = 0
        left = first[buffer] + leaves
        right = last[buffer] + leaves
        while left < right:
            if left & 1:
                canonical[whole] = left
                whole += 1
                left += 1
            if right & 1:
                right -= 1
                canonical[whole] = right
                whole += 1
            left >>= 1
            right >>= 1
        parts = 0
        left = first[buffer] + leaves
        right = last[buffer] - 1 + leaves
        span = 1
        while left >= 1:
            if (left - leaves // span) * span < first[buffer] or (left - leaves // span + 1) * span > last[buffer]:
                partial[parts] = left
                parts += 1
            if right != left and (right - leaves // span + 1) * span > last[buffer]:
                partial[parts] = right
                parts += 1
            left >>= 1
            right >>= 1
            span *= 2
        if offset[buffer] < 0:
            count = 0
            for p in range(parts):
                if head[partial[p]] >= 0:
                    lists[count] = head[partial[p]]
                    count += 1
            for p in range(whole):
                if head[2 * leaves + canonical[p]] >= 0:
                    lists[count] = head[2 * leaves + canonical[p]]
                    count += 1
            align = alignment[buffer]
            chosen = -1
            chosen_gap = 0
            cursor = 0
            while count > 0:
                # Rise above every range that begins too early, until no list has one; `best` looks at every gap.
                moved = True
                while moved:
                    moved = False
                    p = 0
                    while p < count:
                        here = lists[p]
                        while here >= 0 and pool[here, 1] <= cursor:
                            here = pool[here, 2]
                        while here >= 0 and pool[here, 0] < cursor + need:
                            cursor = max(cursor, (pool[here, 1] + align - 1) // align * align)
                            here = pool[here, 2]
                            moved = True
                        if here < 0:
                            count -= 1
                            lists[p] = lists[count]
                        else:
                            lists[p] = here
                            p += 1
                if count == 0 or not best:
                    break
                ceiling = pool[lists[0], 0]
                for p in range(1, count):
                    ceiling = min(ceiling, pool[lists[p], 0])
                if chosen < 0 or ceiling - cursor < chosen_gap:
                    chosen = cursor
                    chosen_gap = ceiling - cursor
                cursor = (ceiling + align - 1) // align * align
            offset[buffer] = cursor if chosen < 0 else chosen
        low = offset[buffer]
        high = low + need
        top = max(top, high)
        if state[0] + 2 * whole + parts > pool.shape[0]:
            larger = np.empty((2 * pool.shape[0], 3), np.int64)
            for row in range(pool.shape[0]):  # a slice would do, and cost more to compile than the rest of the kernel
                for column in range(3):
                    larger[row, column] = pool[row, column]
            pool = larger
        for p in range(whole):
            _insert(canonical[p], low, high, head, pool, state)
            _insert(2 * leaves + canonical[p], low, high, head, pool, state)
        for p in range(parts):
            _insert(2 * leaves + partial[p], low, high, head, pool, state)
    return top
