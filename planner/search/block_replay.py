"""Plans for wide graphs, where one value made again needs hundreds: parts of the program run again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from planner.analysis.arrays import Flags, Ints
from planner.kernels.anneal.state import Model, State
from planner.kernels.replay_blocks import Passes, begin, new_passes, numbers, run_passes, search

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
    """Search for passes with which an order fits: see `kernels.replay_blocks`.

    Args:
        state: for its random numbers.
        order: op rows, each once.
        budget: bytes, residents apart.
    Yields:
        None after a part of the work, so that the caller can stop it; the first sequence that fits; at the end the best
        there is.
    """
    table = np.zeros((3, _MOST_PASSES, 4), dtype=np.int64)
    sequence = np.zeros(_MOST_RUNS * len(order) + 1, dtype=np.int64)
    tried = program(model, order, budget, table, sequence)

    def best() -> Ints:
        run_passes(model, tried, table[2], numbers(tried).best_count, 0.0, np.inf)
        found: Ints = sequence[len(sequence) - numbers(tried).length :].copy()
        return found

    once = begin(model, tried) or 1.0
    penalty = _PENALTY * once / (max(1, budget) * max(1, len(order)))
    work = 2 * (len(order) + len(model.reads))  # of one move, about
    moves, per_slice = min(_MOVES, 1 + _WORK // work), 1 + _SLICE // work
    severity = 1.0
    fits = False
    for done in range(0, moves, per_slice):
        hot, cold = (_HOT * once * (_COLD / _HOT) ** (part / moves) for part in (done, done + per_slice))
        search(model, tried, min(per_slice, moves - done), hot, cold, penalty * severity, state)
        now = numbers(tried)
        severity = min(_SEVEREST, severity * 1.5) if now.excess else max(1.0, severity * 0.8)
        yield best() if not (fits or now.best_excess) else None
        fits = not now.best_excess
    yield best()


def program(model: Model, order: Ints, budget: int, table: Ints, sequence: Ints) -> Passes:
    """A program for the kernels, with room for passes and their runs: see `kernels.replay_blocks.Passes`."""
    needed = np.zeros(len(model.nbytes), dtype=np.bool_)
    stack = np.zeros((3, table.shape[1] + 1), dtype=np.int64)
    tables = {"table": table, "needed": needed, "stack": stack, "sequence": sequence}
    return new_passes(order=order, rerun=repeatable(model), budget=budget, **tables)


def repeatable(model: Model) -> Flags:
    """Ops that may run again at any place: none whose inputs are overwritten at some time."""
    return np.asarray(~model.once & (np.diff(model.order_ptr)[2::4] == 0))
