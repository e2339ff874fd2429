"""Greedy starts: orders in which little is live, and values dropped where the memory is highest until it fits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from planner.analysis.arrays import Ints
from planner.kernels.anneal.drops import relieve
from planner.kernels.anneal.orders import order_by_memory
from planner.kernels.anneal.state import Model
from planner.search.lifetimes import Runs

#: Exponents of cost and of waiting time: none is best on every graph.
_EXPONENTS: Final = ((1.0, 0.3), (1.0, 0.0), (0.5, 1.0), (0.5, 0.3), (0.5, 0.0), (0.2, 0.0))
_WORK: Final = 5_000_000  # reads looked at, after which no further rule is tried
_WINDOWS: Final = (1, 10, 100)  # parts of the program that an order may look ahead over


def orders(runs: Runs, model: Model, keep_all: Ints) -> Iterator[Ints]:
    """Each op once, the ready one after which least is live next, near the program's order or far from it."""
    n = len(model.cost)
    order = np.zeros(n, dtype=np.int64)
    runs.load(keep_all, 0)
    for window in dict.fromkeys(1 + n // part for part in _WINDOWS):
        done = order_by_memory(runs.state, window, order)
        if done == len(keep_all):
            yield order[:done].copy()


def evictions(runs: Runs, model: Model, sequence: Ints, budget: int) -> Iterator[Ints | None]:
    """Drop the value worth most at the highest run until the sequence fits or gains no more, by several rules.

    Args:
        budget: bytes, residents apart.
    Yields:
        None after a part of the work, so that the caller can stop it; then the sequence of one rule.
    """
    ops = len(sequence)
    at_once = min(64, 1 + ops // 500)
    drops = 16 + ops // 8
    values, worths = np.zeros((at_once, 2), dtype=np.int64), np.zeros(at_once)
    work = 0
    for thrift, patience in _EXPONENTS:
        if work > _WORK:
            return
        runs.load(sequence, budget)
        least = runs.now.excess
        while relieve(runs.state, drops, thrift, patience, values, worths):
            work += drops * (len(model.reads) + ops) // at_once
            if runs.now.excess >= least:
                break
            least = runs.now.excess
            yield None
        yield runs.sequence()
