"""Random numbers, from a number of the state."""

from __future__ import annotations

import numpy as np

from planner.kernels import kernel
from planner.kernels.anneal.state import State


@kernel
def uniform(state: State) -> float:
    """xorshift64*."""
    x = np.uint64(state.random)
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    state.random = np.int64(x)
    return np.float64((x * np.uint64(2685821657736338717)) >> np.uint64(11)) * 1.1102230246251565e-16


@kernel
def below(state: State, bound: int) -> int:
    return min(bound - 1, np.int64(uniform(state) * bound))
