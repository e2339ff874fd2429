"""Random numbers, from a word of the header."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.kernels import kernel
from planner.kernels.anneal.state import RANDOM


@kernel
def uniform(s: Any) -> Any:
    """xorshift64*."""
    x = np.uint64(s[RANDOM])
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    s[RANDOM] = np.int64(x)
    return np.float64((x * np.uint64(2685821657736338717)) >> np.uint64(11)) * 1.1102230246251565e-16


@kernel
def below(s: Any, bound: int) -> Any:
    return min(bound - 1, np.int64(uniform(s) * bound))
