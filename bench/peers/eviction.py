"""Look-ahead eviction: dynamic tensor rematerialisation replayed offline, where the next use of a value is known.

The program runs in order. Where the next value does not fit, the live value of least score goes, and is made again when
it is read. A value is released as soon as no first run will read it. The score is (cost to make it again)^a / (bytes *
(ops until its next use)^b); several pairs of exponents are tried, the cheapest plan wins.

Source: Kirisame et al. 2021, *Dynamic tensor rematerialization*; theirs knows the past alone, and estimates
neighbourhoods by union-find.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from bench.peers.program import Ints, Program
from planner.kernels import kernel

#: (exponent of cost, of distance).
EXPONENTS: Final = ((1.0, 0.0), (1.0, 0.5), (1.0, 1.0), (0.5, 0.5), (0.5, 0.0), (0.5, 1.0), (0.25, 1.0), (0.0, 1.0))
_FEWER: Final = 4  # pairs on graphs of more ops than this
_LARGE: Final = 3000
_MOST_RUNS: Final = 4  # times the ops: cascades beyond are given up
_CLOSURE: Final = 256  # ops looked at for the cost of one value
_NO_ROOM, _TOO_LONG = -1, -2


def eviction(program: Program, budget: int) -> list[int] | None:
    """The cheapest sequence of ops over the exponents, or None where none fits."""
    n = program.ops
    found: list[tuple[float, list[int]]] = []
    for a, b in EXPONENTS if n <= _LARGE else EXPONENTS[:_FEWER]:
        sequence = np.empty(_MOST_RUNS * n + 64, dtype=np.int64)
        length = replay(
            program.cost,
            program.nbytes,
            program.read_ptr,
            program.reads,
            program.reader_ptr,
            program.readers,
            budget,
            a,
            b,
            sequence,
            np.zeros((7, n), dtype=np.int64),
        )
        if length > 0:
            used = sequence[:length]
            found.append((float(program.cost[used].sum()), used.tolist()))
    return min(found)[1] if found else None


@kernel
def replay(
    cost: Any,
    nbytes: Ints,
    read_ptr: Ints,
    reads: Ints,
    reader_ptr: Ints,
    readers: Ints,
    budget: int,
    a: float,
    b: float,
    sequence: Ints,
    scratch: Ints,
) -> int:
    """Runs in `sequence`; how many, or a negative number where the next value finds no room or there are too many.

    Args:
        scratch [7, n]: zeros.
    """
    n = len(cost)
    live, locks, next_use = scratch[0], scratch[1], scratch[2]  # next_use: a position among the readers of each value
    stack, place, mark, todo = scratch[3], scratch[4], scratch[5], scratch[6]
    live_list = np.empty(n, np.int64)  # compact: values now live, in no order
    where = np.empty(n, np.int64)
    live_count, used, length, stamp = 0, 0, 0, 0
    for v in range(n):
        next_use[v] = reader_ptr[v]
    for step in range(n):
        stack[0], place[step], depth = step, 0, 1
        while depth > 0:
            op = stack[depth - 1]
            count = read_ptr[op + 1] - read_ptr[op]
            if place[op] < count:
                v = reads[read_ptr[op] + place[op]]
                if live[v]:
                    locks[v] += 1
                    place[op] += 1
                else:
                    stack[depth] = v
                    place[v] = 0
                    depth += 1
                continue
            while used + nbytes[op] > budget:
                best, best_score = -1, np.inf
                for k in range(live_count):
                    v = live_list[k]
                    if locks[v] > 0:
                        continue
                    stamp += 1
                    again, size = 0.0, 1
                    todo[0], mark[v] = v, stamp
                    looked = 0
                    while looked < size and looked < _CLOSURE:
                        w = todo[looked]
                        looked += 1
                        again += cost[w]
                        for e in range(read_ptr[w], read_ptr[w + 1]):
                            u = reads[e]
                            if not live[u] and mark[u] != stamp:
                                mark[u] = stamp
                                todo[size] = u
                                size += 1
                    distance = 1.0
                    if next_use[v] < reader_ptr[v + 1]:
                        distance = readers[next_use[v]] - step + 1.0
                    score = again**a / (nbytes[v] * distance**b + 1e-9)
                    if score < best_score or (score == best_score and v < best):
                        best, best_score = v, score
                if best < 0:
                    return _NO_ROOM
                live[best] = 0
                used -= nbytes[best]
                live_count -= 1
                last = live_list[live_count]
                live_list[where[best]] = last
                where[last] = where[best]
            if length == len(sequence):
                return _TOO_LONG
            sequence[length] = op
            length += 1
            live[op] = 1
            used += nbytes[op]
            live_list[live_count] = op
            where[op] = live_count
            live_count += 1
            depth -= 1
            for e in range(read_ptr[op], read_ptr[op + 1] + 1):  # the values read, then the one made
                v = reads[e] if e < read_ptr[op + 1] else op
                if e < read_ptr[op + 1]:
                    locks[v] -= 1
                while depth == 0 and next_use[v] < reader_ptr[v + 1] and readers[next_use[v]] <= step:
                    next_use[v] += 1
                asked = depth > 0 and v == op  # by the op that waits for it
                if locks[v] == 0 and not asked and next_use[v] == reader_ptr[v + 1]:
                    live[v] = 0
                    used -= nbytes[v]
                    live_count -= 1
                    last = live_list[live_count]
                    live_list[where[v]] = last
                    where[last] = where[v]
    return length
