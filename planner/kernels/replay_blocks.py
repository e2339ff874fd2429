"""Passes, that is, parts of the program run again for what is needed later, and a random search over them.

The program is one run of every op, in an order. A pass stands before a row of the program, or of another pass, and runs
the ops of rows low to high again that make something needed afterwards, with what those read. The values that a pass
makes are dropped after their last read before it. So a few numbers say which of thousands of values wait and which are
made again: where nearly all of a graph hangs together, they have to be made again many at once, and moves of single
values do not get there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.kernels import Flags, Ints, kernel
from planner.kernels.anneal.draws import below, uniform
from planner.kernels.anneal.state import Model, State
from planner.kernels.structs import struct

# Words of a pass: the pass it stands in, or -1 for the program; the row it stands before; which rows it runs again.
WITHIN, AT, LOW, HIGH = range(4)


class Passes:
    """A program of n' runs, and passes over it: those of the state, some to try, and the best."""

    order: Ints  # [n']: op rows of the program
    rerun: Flags  # [n]: ops that may run again; what others make is kept
    table: Ints  # [3, k, 4]
    budget: int  # bytes, residents apart
    count: int  # passes of the state
    excess: int  # bytes above the budget, summed over the runs
    cost: float
    best_count: int
    best_excess: int
    best_cost: float
    last_excess: int  # of what `run_passes` looked at last
    length: int  # its runs, at the end of `sequence`
    needed: Flags  # [m]
    stack: Ints  # [3, k + 1]
    sequence: Ints  # [L]: op rows


PassesType, PassesProxy, new_passes = struct(Passes)


class Numbers(NamedTuple):
    """Numbers of passes that their owner looks at."""

    passes: int
    excess: int
    cost: float
    best_count: int
    best_excess: int
    best_cost: float
    last_excess: int
    length: int


@kernel
def numbers(passes: Passes) -> Numbers:
    """The numbers of passes; from outside a kernel, their fields cannot be read."""
    state = passes.count, passes.excess, passes.cost
    best = passes.best_count, passes.best_excess, passes.best_cost
    return Numbers(*state, *best, passes.last_excess, passes.length)


@kernel
def begin(g: Model, passes: Passes) -> float:
    """Make the program without passes the state and the best; returns its cost."""
    passes.count, passes.best_count = 0, 0
    passes.cost = run_passes(g, passes, passes.table[0], np.int64(0), 0.0, np.inf)
    passes.best_cost = passes.cost
    passes.excess, passes.best_excess = passes.last_excess, passes.last_excess
    return passes.cost


@kernel
def run_passes(g: Model, passes: Passes, table: Ints, count: int, penalty: float, most: float) -> float:
    """The runs that the program and its passes come to: from the end, so that what is needed is known.

    Args:
        table [k, 4], count: the passes, and how many there are.
        penalty, most: given up once cost + penalty * bytes above the budget is more.
    Returns:
        cost; infinite where it was given up, or `sequence` is too short.
    """
    order, needed, stack, sequence = passes.order, passes.needed, passes.stack, passes.sequence
    live = np.int64(0)
    for v in range(needed.shape[0]):
        needed[v] = g.kept[v]
        if needed[v]:
            live += g.nbytes[v]
    done = stack[2]
    done[:] = 0
    cost: float = 0.0
    excess = np.int64(0)
    step = sequence.shape[0]
    depth = 0
    inside, row, low = -1, order.shape[0], 0  # the pass we are in, and the rows of it that are left
    while True:
        inner, stop = -1, low
        for k in range(count):
            if table[k, WITHIN] == inside and done[k] == 0 and min(table[k, AT], row) >= stop:
                inner = k
                stop = min(table[k, AT], row)
        while row > stop:
            row -= 1
            op = order[row]
            if inside >= 0:
                wanted = False
                for v in range(g.out_ptr[op], g.out_ptr[op + 1]):
                    wanted |= needed[v]
                if not wanted or not passes.rerun[op]:
                    continue
            if step == 0 or cost + penalty * excess > most:
                passes.last_excess = excess
                passes.length = sequence.shape[0] - step
                return np.inf
            step -= 1
            sequence[step] = op
            cost += float(g.cost[op])
            nbytes = g.workspace[op]
            for r in range(g.read_ptr[op], g.read_ptr[op + 1]):
                v = g.reads[r, 0]
                if not needed[v]:
                    needed[v] = True
                    live += g.nbytes[v]
                    nbytes -= g.reads[r, 1]  # it dies here: an output takes its place
            nbytes += live
            for v in range(g.out_ptr[op], g.out_ptr[op + 1]):
                if needed[v]:
                    needed[v] = False
                    live -= g.nbytes[v]
                else:
                    nbytes += g.nbytes[v]
            excess += max(0, nbytes - passes.budget)
        if inner >= 0:
            done[inner] = 1
            stack[0, depth] = inside
            stack[1, depth] = row
            depth += 1
            inside = inner
            row = min(row, table[inner, HIGH])
        elif depth > 0:
            depth -= 1
            inside = stack[0, depth]
            row = stack[1, depth]
        else:
            break
        low = min(row, table[inside, LOW]) if inside >= 0 else 0
    passes.last_excess = excess
    passes.length = sequence.shape[0] - step
    return cost


@kernel
def _without(passes: Ints, count: int, out: int, place: Ints) -> int:
    """Leave out a pass and those within it; how many are left. A pass stands behind the one it is in."""
    left = 0
    for k in range(count):
        within = passes[k, WITHIN]
        place[k] = -1
        if k == out or (within >= 0 and place[within] < 0):
            continue
        place[k] = left
        passes[left] = passes[k]
        passes[left, WITHIN] = place[within] if within >= 0 else -1
        left += 1
    return left


@kernel
def _shifted(state: State, row: int, rows: int) -> int:
    """A row nearby: as often by one as by a tenth of all."""
    by = np.int64(np.ceil(2.0 * uniform(state) * np.exp(uniform(state) * np.log(2.0 + 0.1 * rows))))
    return min(max(row + (by if uniform(state) < 0.5 else -by), 0), rows)


@kernel
def _change(state: State, passes: Ints, count: int, rows: int, place: Ints) -> int:
    """Add a pass, leave one out, or shift an end of one; how many there are then."""
    choice = uniform(state)
    if count == 0 or choice < 0.15:
        if count == passes.shape[0]:
            return count
        within, end = -1, rows
        if count > 0 and uniform(state) < 0.3:
            within = below(state, count)
            end = passes[within, HIGH]
        at = 1 + below(state, max(1, end - 1))
        high = 1 + below(state, min(at, max(1, rows // 2)))
        passes[count, WITHIN] = within
        passes[count, AT] = at
        passes[count, LOW] = below(state, high) if uniform(state) < 0.2 else 0
        passes[count, HIGH] = high
        return count + 1
    k = below(state, count)
    if choice < 0.25:
        return _without(passes, count, k, place)
    which = uniform(state)
    word = AT if which < 0.45 else HIGH if which < 0.9 else LOW
    passes[k, word] = _shifted(state, passes[k, word], rows)
    return count


@kernel
def search(g: Model, passes: Passes, moves: int, hot: float, cold: float, penalty: float, state: State) -> None:
    """Random changes of the passes, taken where they are no worse, or by chance: the colder, the less.

    What is minimised is cost + penalty * bytes above the budget, summed over the runs. The best are those with least
    above the budget, then least cost.

    Args:
        moves: how many are tried.
        hot, cold: temperatures at the start and at the end, in cost.
        state: for its random numbers.
    """
    now, trial, best = passes.table[0], passes.table[1], passes.table[2]
    cooling = (cold / hot) ** (1.0 / max(1, moves)) if hot > 0.0 else 1.0
    temperature = hot
    for _ in range(moves):
        temperature *= cooling
        trial[:] = now
        count = _change(state, trial, passes.count, passes.order.shape[0], passes.stack[0])
        most = passes.cost + penalty * passes.excess - temperature * np.log(uniform(state) + 1e-300)
        cost = run_passes(g, passes, trial, count, penalty, most)
        if cost + penalty * passes.last_excess > most:
            continue
        now[:] = trial
        passes.count, passes.excess, passes.cost = count, passes.last_excess, cost
        fewer = passes.excess < passes.best_excess
        if fewer or (passes.excess == passes.best_excess and cost < passes.best_cost):
            best[:] = trial
            passes.best_count, passes.best_excess, passes.best_cost = count, passes.excess, cost
