"""Parts of the program run again at a few places: plans for wide graphs, where one value made again needs hundreds of
others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from planner.analysis.arrays import Flags, Ints
from planner.kernels.anneal.state import Model, State
from planner.kernels.replay_blocks import (
    BEST_COST,
    BEST_COUNT,
    BEST_EXCESS,
    COST,
    EXCESS,
    LAST_EXCESS,
    LENGTH,
    run_passes,
    search,
)

_MOST_PASSES: Final = 32
_MOST_RUNS: Final = 8  # of an op in the mean; a plan that needs more is of no use
_MOVES: Final = 4000
_WORK: Final = 1_000_000_000  # reads looked at, about: fewer moves on larger graphs
_SLICE: Final = 10_000_000
_HOT: Final = 0.3  # temperature at the start, of the cost of one run of everything
_COLD: Final = 0.003  # and at the end
# so many times the budget, above it by that much in one run of everything, costs one run of everything
_PENALTY: Final = 300.0
_SEVEREST: Final = 2.0**16


def passes(state: State, model: Model, order: Ints, budget: int) -> Iterator[Ints | None]:
    """Search for passes with which an order fits: see `kernels.passes`.

    Args:
        state: for its random numbers.
        order: op rows, each once.
        budget: bytes, residents apart.
    Yields:
        None after a part of the work, so that the caller can stop it; the first sequence that fits; at the end the best
        there is.
    """
    room = np.zeros((3, _MOST_PASSES, 4), dtype=np.int64)
    needed = np.zeros(len(model.nbytes), dtype=np.bool_)
    stack = np.zeros((3, _MOST_PASSES + 1), dtype=np.int64)
    sequence = np.zeros(_MOST_RUNS * len(order) + 1, dtype=np.int64)
    words, f = np.zeros(6, dtype=np.int64), np.zeros(2)
    rerun = repeatable(model)

    def runs(count: int) -> Ints:
        f[BEST_COST] = run_passes(
            model, order, rerun, room[2], count, budget, 0.0, np.inf, needed, stack, sequence, words
        )
        words[BEST_EXCESS] = words[LAST_EXCESS]
        found: Ints = sequence[len(sequence) - int(words[LENGTH]) :].copy()
        return found

    runs(0)
    words[EXCESS], f[COST] = words[BEST_EXCESS], f[BEST_COST]
    once = float(f[COST]) or 1.0
    penalty = _PENALTY * once / (max(1, budget) * max(1, len(order)))
    work = 2 * (len(order) + len(model.reads))  # of one move, about
    moves, per_slice = min(_MOVES, 1 + _WORK // work), 1 + _SLICE // work
    severity = 1.0
    fits = False
    for done in range(0, moves, per_slice):
        hot, cold = (_HOT * once * (_COLD / _HOT) ** (part / moves) for part in (done, done + per_slice))
        step = min(per_slice, moves - done)
        search(
            model,
            order,
            rerun,
            budget,
            step,
            hot,
            cold,
            penalty * severity,
            room,
            needed,
            stack,
            sequence,
            words,
            f,
            state,
        )
        severity = min(_SEVEREST, severity * 1.5) if words[EXCESS] else max(1.0, severity * 0.8)
        yield runs(int(words[BEST_COUNT])) if not (fits or words[BEST_EXCESS]) else None
        fits = not words[BEST_EXCESS]
    yield runs(int(words[BEST_COUNT]))


def repeatable(model: Model) -> Flags:
    """Ops that may run again at any place: none whose inputs are overwritten at some time."""
    return np.asarray(~model.once & (np.diff(model.order_ptr)[2::4] == 0))
