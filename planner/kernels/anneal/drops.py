"""Values dropped where the memory is highest: the best of a few drawn, or greedily until the sequence fits."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.kernels import kernel
from planner.kernels.anneal.changes import evict
from planner.kernels.anneal.draws import below, uniform
from planner.kernels.anneal.liveness import memory_at
from planner.kernels.anneal.runs import first_read, instance

from planner.kernels.anneal.state import (  # isort: skip
    ABOVE,
    BLOCK_OF,
    BUDGET,
    BYTES,
    COST,
    COSTS,
    EXCESS,
    FIRST_OP,
    HEAD,
    HIGHEST,
    KEY,
    KEYS,
    LOGGED,
    LOGS,
    MAKER,
    MEMBERS,
    MEMORY,
    MOST_COST,
    NEXT,
    N_BLOCKS,
    ONCE,
    OP,
    OPERATION,
    OPS_STOP,
    OUTS,
    OUTS_STOP,
    RANK,
    RANKED,
    READ,
    READS,
    READS_STOP,
    ROW,
    SIZE,
    SLOT,
    VALUE,
)

_DRAWN = 24  # runs looked at for a value to drop


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
    return first_read(s, v, worst, s[e + READ + k])


@kernel
def relieve_once(s: Any, f: Any) -> bool:
    """Make one sampled value that waits across the worst run again behind it: of those cheap enough for the move, the
    cheapest per byte.
    """
    worst = _worst(s)
    chosen, place = np.int64(0), np.int64(0)
    best = np.inf
    over = np.float64(memory_at(s, worst) - s[BUDGET])
    for _ in range(_DRAWN):
        b = s[s[RANKED] + below(s, s[s[worst + BLOCK_OF] + RANK] + 1)]
        e = s[b + MEMBERS + below(s, s[b + SIZE])]
        op = s[e + OP]
        outs = (s[op + OUTS_STOP] - s[op + OUTS]) // VALUE
        if outs == 0 or s[op + ONCE] == 1 or f[COST] + f[COSTS + s[op + ROW]] > f[MOST_COST]:
            continue
        k = below(s, outs)
        before = _cover(s, e, k, worst)
        if before == 0:
            continue
        score = (
            f[COSTS + s[op + ROW]]
            / min(over, np.float64(s[s[op + OUTS] + k * VALUE + BYTES]) + 1e-9)
            * (0.5 + uniform(s))
        )
        if score < best:
            best = score
            chosen = e
            place = before
    return chosen != 0 and evict(s, f, chosen, place, 0.5, worst if uniform(s) < 0.7 else np.int64(0), np.int64(4))


@kernel
def _waiting_cost(s: Any, f: Any, op: int, before: int, worst: int) -> Any:
    """What it costs to make an op's outputs again there, with those inputs that would have to wait across the worst
    run.
    """
    cost = f[COSTS + s[op + ROW]]
    for r in range(s[op + READS], s[op + READS_STOP], 2):
        v = s[r]
        run = instance(s, s[v + MAKER], before)
        if run != 0 and s[s[run + READ + s[v + SLOT]] + KEY] < s[worst + KEY]:
            cost += np.inf if s[s[v + MAKER] + ONCE] == 1 else f[COSTS + s[s[v + MAKER] + ROW]]
    return cost


@kernel
def relieve(s: Any, f: Any, steps: int, at_once: int, thrift: float, patience: float, values: Any, worths: Any) -> bool:
    """Drop values at the highest run, the best first, then at the run that is highest then, and so on.

    A value that waits across that run is worth min(bytes, what is above the budget) * wait ** patience / cost **
    thrift.

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
        over = np.float64(memory_at(s, worst) - s[BUDGET])
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
                    wait = np.float64(s[before + KEY] - s[run + KEY]) / KEYS
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
            if steps > 0 and memory_at(s, worst) > s[BUDGET]:
                before = _cover(s, values[k, 0], values[k, 1], worst)
                s[LOGGED] = 0
                if before != 0 and evict(s, f, values[k, 0], before, 1.0, worst, np.int64(LOGS)):
                    dropped = True
                    steps -= 1
        if not dropped:
            return False
    return True
