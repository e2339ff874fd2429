"""An annealer over one bit a tensor: kept for the backward pass, or dropped and made again just in time, at most once.

Flips of one bit and exchanges of two, each judged by the exact peak of the whole schedule; what is above the budget
pays in proportion. It stands for what a user writes in an afternoon, and gets a fixed amount of work whatever the
graph.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from bench.peers.program import Flags, Ints, Program
from planner.kernels import kernel

_WORK: Final = 200_000_000  # ops and reads looked at
_SEED: Final = 1


def annealed(program: Program, budget: int) -> list[int] | None:
    """The cheapest sequence found within the budget, or None. Graphs without a backward pass have no bits, and no
    plan.
    """
    if program.backward is None:
        return None
    n = program.ops
    candidates = np.array([v for v in range(n) if _droppable(program, v)], dtype=np.int64)
    if not len(candidates):
        return None
    most = 2 * n
    best = np.zeros(n, dtype=np.bool_)
    scratch = np.zeros((5, most + 1), dtype=np.int64)
    sequence = np.empty(most, dtype=np.int64)
    moves = _WORK // (n + len(program.reads))
    arrays = (program.cost, program.nbytes, program.read_ptr, program.reads, program.backward)
    if not anneal(*arrays, budget, candidates, moves, _SEED, best, sequence, scratch):
        return None
    length = unrolled(program.read_ptr, program.reads, program.backward, best, sequence, scratch)
    return [int(op) for op in sequence[:length]]


def _droppable(program: Program, v: int) -> bool:
    """A forward value that the backward pass reads, or that makes one."""
    assert program.backward is not None
    readers = program.readers[program.reader_ptr[v] : program.reader_ptr[v + 1]]
    return not program.backward[v] and len(readers) > 0


@kernel
def unrolled(read_ptr: Ints, reads: Ints, backward: Flags, dropped: Flags, sequence: Ints, scratch: Ints) -> int:
    """The runs of a set of bits: program order, each dropped value again before the first backward op that needs it.
    Returns how many.
    """
    n = len(backward)
    again, stack, place = scratch[0], scratch[1], scratch[2]
    again[:n] = 0
    length = 0
    for step in range(n):
        if not backward[step]:
            sequence[length] = step
            length += 1
            continue
        stack[0], place[step], depth = step, read_ptr[step], 1
        while depth > 0:
            op = stack[depth - 1]
            if place[op] < read_ptr[op + 1]:
                v = reads[place[op]]
                place[op] += 1
                if dropped[v] and not again[v]:
                    again[v] = 1
                    stack[depth], place[v] = v, read_ptr[v]
                    depth += 1
            else:
                sequence[length] = op
                length += 1
                depth -= 1
    return length


@kernel
def judged(
    cost: Any, nbytes: Ints, read_ptr: Ints, reads: Ints, sequence: Ints, length: int, scratch: Ints
) -> tuple[int, float]:
    """(peak bytes, cost) of runs where each value dies at its last read before it is made again."""
    latest, last_read, change = scratch[0], scratch[3], scratch[4]
    total = 0.0
    change[: length + 1] = 0
    for t in range(length):
        op = sequence[t]
        total += cost[op]
        last_read[t] = t
        for e in range(read_ptr[op], read_ptr[op + 1]):
            last_read[latest[reads[e]]] = t
        latest[op] = t
    for t in range(length):
        change[t] += nbytes[sequence[t]]
        change[last_read[t] + 1] -= nbytes[sequence[t]]
    peak, live = 0, 0
    for t in range(length):
        live += change[t]
        peak = max(peak, live)
    return peak, total


@kernel
def anneal(
    cost: Any,
    nbytes: Ints,
    read_ptr: Ints,
    reads: Ints,
    backward: Flags,
    budget: int,
    candidates: Ints,
    moves: int,
    seed: int,
    best: Flags,
    sequence: Ints,
    scratch: Ints,
) -> bool:
    """Leaves the bits of the cheapest plan within the budget in `best`; False if there was none."""
    np.random.seed(seed)
    dropped = np.zeros(len(cost), np.bool_)
    length = unrolled(read_ptr, reads, backward, dropped, sequence, scratch)
    peak, total = judged(cost, nbytes, read_ptr, reads, sequence, length, scratch)
    rate = 20.0 * total / max(1, peak)
    now = total + rate * max(0, peak - budget)
    best_cost, found = np.inf, False
    hot, cold = 1e-3 * total, 1e-7 * total
    for move in range(moves):
        first = candidates[np.random.randint(len(candidates))]
        second = candidates[np.random.randint(len(candidates))]
        both = np.random.random() < 0.5 and dropped[first] != dropped[second]
        dropped[first] = not dropped[first]
        if both:
            dropped[second] = not dropped[second]
        length = unrolled(read_ptr, reads, backward, dropped, sequence, scratch)
        peak, total = judged(cost, nbytes, read_ptr, reads, sequence, length, scratch)
        score = total + rate * max(0, peak - budget)
        temperature = hot * (cold / hot) ** (move / moves)
        if score <= now or np.random.random() < np.exp((now - score) / temperature):
            now = score
            if peak <= budget and total < best_cost:
                best_cost, found = total, True
                best[:] = dropped
        else:
            dropped[first] = not dropped[first]
            if both:
                dropped[second] = not dropped[second]
    return found
