"""Passes: parts of the program run again at some places, as far as what they make is needed there, and a random search
over them.

The program is one run of every op, in an order. A pass stands before a row of the program, or of another pass, and runs
the ops of rows low to high again that make something needed afterwards, with what those read. The values that a pass
makes are dropped after their last
read before it. So a few numbers say which of thousands of values wait and which are made again: where nearly all of a
graph hangs together, they have to be made again many at once, and moves of single values do not get there.

`g` is `search.lifetimes.Model`.
"""

from __future__ import annotations

import numpy as np

from planner.kernels import Flags, Floats, Ints, kernel
from planner.kernels.anneal.draws import below, uniform
from planner.kernels.anneal.state import Model, State

# Words of a pass: the pass it stands in, or -1 for the program; the row it stands before; which rows it runs again.
WITHIN, AT, LOW, HIGH = range(4)
# Numbers of passes, bytes above the budget summed over the runs, and runs: of the state, of the best, and of what was
# looked at last.
COUNT, EXCESS, BEST_COUNT, BEST_EXCESS, LAST_EXCESS, LENGTH = range(6)
# Costs.
COST, BEST_COST = range(2)


@kernel
def run_passes(
    g: Model,
    order: Ints,
    rerun: Flags,
    passes: Ints,
    count: int,
    budget: int,
    penalty: float,
    most: float,
    needed: Flags,
    stack: Ints,
    sequence: Ints,
    words: Ints,
) -> float:
    """The runs that the program and its passes come to: from the end, so that what is needed is known.

    Args:
        order [n']: op rows of the program.
        again [n]: ops that may run again; what others make is kept.
        passes [k, 4], count: those that there are.
        budget: bytes, residents apart.
        penalty, most: given up once cost + penalty * bytes above the budget is more.
        needed [m], stack [3, k + 1]: working memory.
        sequence [L]: result, op rows, at the end of it.
        words: LAST_EXCESS and LENGTH are written.
    Returns:
        cost; infinite where it was given up, or L is too short.
    """
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
            if passes[k, WITHIN] == inside and done[k] == 0 and min(passes[k, AT], row) >= stop:
                inner = k
                stop = min(passes[k, AT], row)
        while row > stop:
            row -= 1
            op = order[row]
            if inside >= 0:
                wanted = False
                for v in range(g.out_ptr[op], g.out_ptr[op + 1]):
                    wanted |= needed[v]
                if not wanted or not rerun[op]:
                    continue
            if step == 0 or cost + penalty * excess > most:
                words[LAST_EXCESS] = excess
                words[LENGTH] = sequence.shape[0] - step
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
            excess += max(0, nbytes - budget)
        if inner >= 0:
            done[inner] = 1
            stack[0, depth] = inside
            stack[1, depth] = row
            depth += 1
            inside = inner
            row = min(row, passes[inner, HIGH])
        elif depth > 0:
            depth -= 1
            inside = stack[0, depth]
            row = stack[1, depth]
        else:
            break
        low = min(row, passes[inside, LOW]) if inside >= 0 else 0
    words[LAST_EXCESS] = excess
    words[LENGTH] = sequence.shape[0] - step
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
def search(
    g: Model,
    order: Ints,
    rerun: Flags,
    budget: int,
    moves: int,
    hot: float,
    cold: float,
    penalty: float,
    passes: Ints,
    needed: Flags,
    stack: Ints,
    sequence: Ints,
    words: Ints,
    f: Floats,
    state: State,
) -> None:
    """Random changes of the passes, taken where they are no worse, or by chance: the colder, the less.

    What is minimised is cost + penalty * bytes above the budget, summed over the runs. The best are those with least
    above the budget, then least cost.

    Args:
        moves: how many are tried.
        hot, cold: temperatures at the start and at the end, in cost.
        passes [3, k, 4]: the state, one to try, and the best.
        words, f: their numbers.
        state: for its random numbers.
    """
    now, trial, best = passes[0], passes[1], passes[2]
    cooling = (cold / hot) ** (1.0 / max(1, moves)) if hot > 0.0 else 1.0
    temperature = hot
    for _ in range(moves):
        temperature *= cooling
        trial[:] = now
        count = _change(state, trial, words[COUNT], order.shape[0], stack[0])
        most = f[COST] + penalty * words[EXCESS] - temperature * np.log(uniform(state) + 1e-300)
        cost = run_passes(g, order, rerun, trial, count, budget, penalty, most, needed, stack, sequence, words)
        if cost + penalty * words[LAST_EXCESS] > most:
            continue
        now[:] = trial
        words[COUNT], words[EXCESS], f[COST] = count, words[LAST_EXCESS], cost
        if words[EXCESS] < words[BEST_EXCESS] or (words[EXCESS] == words[BEST_EXCESS] and cost < f[BEST_COST]):
            best[:] = trial
            words[BEST_COUNT], words[BEST_EXCESS], f[BEST_COST] = count, words[EXCESS], cost
