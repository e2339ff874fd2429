"""Where what a series of instants would choose does not fit in between: the instants to add, and what they prove
then.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

import numpy as np

from planner.analysis.arrays import Flags, Ints
from planner.bounds.chain_of_cuts import Facts, Series
from planner.bounds.cut import Storages

_LATER: Final = 4  # new instants tried at a time after the first one
_EARLIER: Final = 2  # and before
_SHARE: Final = 10  # of what may be spent, for each


def proven_in_series(
    series: Series, budget: int, *, floor: Fraction, limit: Fraction, most: int
) -> tuple[Fraction | None, int]:
    """The largest bound found as instants are added where their own choices are too large; None where no plan fits.

    Args:
        series: to start from, as far as it was solved.
        floor: known to be a bound.
        limit: a bound that is enough.
        most: choices solved in addition.
    Returns:
        the bound, and the row of the first instant that it takes.
    """
    before = series.solved
    best, facts = series.least(floor=floor, limit=limit, most=before + most // _SHARE)
    left = most - series.solved + before
    while best is not None and best < limit and left > 0:
        tried: list[tuple[Fraction | None, Series]] = []
        for new in _crowded(series, facts, budget):
            other = Series(series.storages, sorted((*series.rows, new)), budget)
            bound, _ = other.least(floor=best, limit=limit, most=min(most // _SHARE, left))
            left -= other.solved
            tried.append((bound, other))
            if bound is None or bound >= limit or left <= 0:
                break
        if tried:
            series = max(tried, key=lambda one: (one[0] is None, one[0] or 0))[1]
        before = series.solved
        best, facts = series.least(floor=best, limit=limit, most=before + (left // 2 if tried else left))
        left -= max(1, series.solved - before)
        if not tried:
            break
    return best, series.rows[0]


def _crowded(series: Series, facts: tuple[Facts, ...], budget: int) -> list[int]:
    """Ops at whose first run more than the budget would be live, of those that can be added to the series.

    What runs again is taken to do so just before it is asked for, what runs for the first time in program order. The
    last few come first, as what is needed after them is least, and soonest decided; then the last few before the
    series.
    """
    shared, k = series.storages, len(series.rows)
    n = len(shared.arrays.cost)
    occupied = np.full(n, -1, dtype=np.int64)
    held, end = series.read[k].copy(), n
    for i in reversed(range(k)):
        part = series.choice(i, i + 1, facts)
        assert part is not None
        first_runs = series.after[i] & series.before[i + 1]
        occupied[first_runs] = _occupied(shared, first_runs, part.made, held, series.rows[i], end)[first_runs]
        held, end = series.read[i].copy(), series.rows[i]
        held[list(facts[i].live | part.live)] = True
    first_runs = series.before[0]
    occupied[first_runs] = _occupied(shared, first_runs, first_runs, held, 0, end)[first_runs]
    rows = np.array(
        [row for row in np.flatnonzero(occupied > budget).tolist() if _comparable(series, row)], dtype=np.int64
    )
    full = np.concatenate(([-1], occupied[rows], [-1]))
    tops = rows[(full[1:-1] >= full[:-2]) & (full[1:-1] > full[2:])]  # of neighbours that are full one stands for all
    later, earlier = tops[tops > series.rows[0]], tops[tops < series.rows[0]]
    return [int(row) for row in (*later[::-1][:_LATER], *earlier[::-1][:_EARLIER])]


def _comparable(series: Series, row: int) -> bool:
    """True if an op is no instant yet, and depends on or is needed by each."""
    return all(row != other and (series.after[i, row] or series.before[i, row]) for i, other in enumerate(series.rows))


def _occupied(storages: Storages, first_runs: Flags, made: Flags, held: Flags, start: int, end: int) -> Ints:
    """Bytes at the first run of each op of one part.

    Args:
        first_runs, made [n]: ops that run in it for the first time, and all that do.
        held [m]: holders that are live where it ends.
        start, end: where that is in the program.
    """
    arrays, storage_rep, nbytes = storages.arrays, storages.storage_rep, storages.holder_bytes
    n = len(arrays.cost)
    asked = np.where(held, end, n + 1)  # the first op that asks for each holder, and the last
    until = np.where(held, end, -1)
    born = np.full(len(asked), start - 1, dtype=np.int64)
    for op in np.flatnonzero(made)[::-1].tolist():
        outputs = np.arange(arrays.out_ptr[op], arrays.out_ptr[op + 1])
        at = op if first_runs[op] else int(asked[outputs].min(initial=n + 1))
        if at > n:
            continue
        born[outputs] = at
        read = _read(storages, op)
        asked[read] = np.minimum(asked[read], at)
        until[read] = np.maximum(until[read], at)
    there = np.maximum(0, born + first_runs[arrays.producer])  # at the first run of its own op it is in the working set
    holds = np.flatnonzero((until > born) & (storage_rep == np.arange(len(storage_rep))))
    change = np.zeros(n + 2, dtype=np.int64)
    np.add.at(change, there[holds], nbytes[holds])
    np.subtract.at(change, until[holds] + 1, nbytes[holds])
    occupied = np.cumsum(change)[:n] + storages.working_bytes
    for op in np.flatnonzero(first_runs).tolist():
        read = np.unique(_read(storages, op))
        occupied[op] -= nbytes[read[(until[read] > born[read]) & (there[read] <= op)]].sum()  # in the working set too
    return occupied


def _read(storages: Storages, op: int) -> Ints:
    """The holders that an op reads, repeats included."""
    arrays = storages.arrays
    read = storages.storage_rep[arrays.read_value[arrays.read_ptr[op] : arrays.read_ptr[op + 1]]]
    return read[read >= 0]
