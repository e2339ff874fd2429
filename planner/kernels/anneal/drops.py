"""Values dropped where the memory is highest: the best of a few drawn, or greedily until the sequence fits."""

from __future__ import annotations

import numpy as np

from planner.kernels import Floats, Ints, kernel
from planner.kernels.anneal.changes import evict
from planner.kernels.anneal.draws import below, uniform
from planner.kernels.anneal.liveness import memory_at
from planner.kernels.anneal.runs import first_read, instance
from planner.kernels.anneal.state import HEAD, KEYS, LOGS, State

_DRAWN = 24  # runs looked at for a value to drop


@kernel
def _worst(state: State) -> int:
    """The run with most bytes."""
    worst = state.ranked[0]
    for r in range(state.n_blocks):
        b = state.ranked[r]
        is_worse = state.block_above[worst] == 0 or state.block_highest[b] > state.block_highest[worst]
        if state.block_above[b] > 0 and is_worse:
            worst = b
    best = 0
    for i in range(state.block_size[worst]):
        if state.block_memory[worst, i] > state.block_memory[worst, best]:
            best = i
    return state.block_members[worst, best]


@kernel
def _cover(state: State, e: int, k: int, worst: int) -> int:
    """Where run e's output k could be made again so that it is dead at the worst run; 0 if it is not idle there."""
    op = state.run_op[e]
    v = state.op_outs[op] + k
    if state.run_key[e] >= state.run_key[worst] or state.run_key[state.run_read[e, k]] <= state.run_key[worst]:
        return 0
    here = state.run_op[worst]
    for r in range(state.op_reads[here], state.op_reads_stop[here]):
        if state.read_value[r] == v:
            return 0
    return first_read(state, v, worst, state.run_read[e, k])


@kernel
def relieve_once(state: State) -> bool:
    """Make one of a few drawn values that wait across the worst run again behind it: the cheapest per byte."""
    worst = _worst(state)
    chosen, place = np.int64(0), np.int64(0)
    best = np.inf
    over = np.float64(memory_at(state, worst) - state.budget)
    for _ in range(_DRAWN):
        b = state.ranked[below(state, state.block_rank[state.run_block[worst]] + 1)]
        e = state.block_members[b, below(state, state.block_size[b])]
        op = state.run_op[e]
        outs = state.op_outs_stop[op] - state.op_outs[op]
        if outs == 0 or state.op_once[op] == 1 or state.cost + state.op_cost[op] > state.most_cost:
            continue
        k = below(state, outs)
        before = _cover(state, e, k, worst)
        if before == 0:
            continue
        gain = min(over, np.float64(state.value_bytes[state.op_outs[op] + k]) + 1e-9)
        score = state.op_cost[op] / gain * (0.5 + uniform(state))
        if score < best:
            best, chosen, place = score, e, before
    return chosen != 0 and evict(state, chosen, place, 0.5, worst if uniform(state) < 0.7 else np.int64(0), np.int64(4))


@kernel
def _waiting_cost(state: State, op: int, before: int, worst: int) -> float:
    """Cost of an op made again there, with its inputs that would have to wait across the worst run."""
    cost = state.op_cost[op]
    for r in range(state.op_reads[op], state.op_reads_stop[op]):
        v = state.read_value[r]
        run = instance(state, state.value_maker[v], before)
        if run != 0 and state.run_key[state.run_read[run, state.value_slot[v]]] < state.run_key[worst]:
            cost += np.inf if state.op_once[state.value_maker[v]] == 1 else state.op_cost[state.value_maker[v]]
    return cost


@kernel
def relieve(state: State, steps: int, thrift: float, patience: float, values: Ints, worths: Floats) -> bool:
    """Drop values at the highest run, the best first, then at the run that is highest then, and so on.

    A value that waits across that run is worth min(bytes, bytes too many) * wait ** patience / cost ** thrift.

    Args:
        steps: how many to drop at most.
        values [k, 2], worths [k]: working memory; k values are dropped before the next look at all of them.
    Returns:
        False if there is nothing left to drop, or nothing left to do.
    """
    at_once = worths.shape[0]
    floor = np.inf
    state.most_cost = np.inf
    for op in range(1, state.ops_stop):
        if state.op_cost[op] > 0.0:
            floor = min(floor, state.op_cost[op])
    while steps > 0:
        if state.excess == 0:
            return False
        worst = _worst(state)
        over = np.float64(memory_at(state, worst) - state.budget)
        found = 0
        run = state.run_next[HEAD]
        while run != worst:
            op = state.run_op[run]
            if state.op_once[op] == 0:
                for v in range(state.op_outs[op], state.op_outs_stop[op]):
                    k = state.value_slot[v]
                    is_idle = state.run_key[state.run_read[run, k]] > state.run_key[worst]
                    before = _cover(state, run, k, worst) if is_idle and state.value_bytes[v] != 0 else 0
                    if before == 0:
                        continue
                    wait = np.float64(state.run_key[before] - state.run_key[run]) / KEYS
                    cost = _waiting_cost(state, op, before, worst) + 1e-3 * floor
                    worth = min(over, np.float64(state.value_bytes[v])) * wait**patience / cost**thrift
                    if worth <= 0.0 or (found == at_once and worth <= worths[found - 1]):
                        continue
                    at = found if found < at_once else found - 1
                    while at > 0 and worths[at - 1] < worth:
                        worths[at] = worths[at - 1]
                        values[at, 0], values[at, 1] = values[at - 1, 0], values[at - 1, 1]
                        at -= 1
                    worths[at] = worth
                    values[at, 0], values[at, 1] = run, k
                    found = min(found + 1, at_once)
            run = state.run_next[run]
        dropped = False
        for k in range(found):
            if steps > 0 and memory_at(state, worst) > state.budget:
                before = _cover(state, values[k, 0], values[k, 1], worst)
                state.logged = 0
                if before != 0 and evict(state, values[k, 0], before, 1.0, worst, np.int64(LOGS)):
                    dropped = True
                    steps -= 1
        if not dropped:
            return False
    return True
