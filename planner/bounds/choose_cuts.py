"""Which instants to add to a chain of cuts: those at which its own choice would exceed the budget."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

import numpy as np

from planner.analysis.arrays import Flags, Ints
from planner.bounds.chain_of_cuts import ChainOfCuts, Facts
from planner.bounds.cut import Storages, reps_read

_LATER: Final = 4  # new instants tried at a time after the first of the chain
_EARLIER: Final = 2  # and before it
_SHARE: Final = 10  # each trial may take one tenth of the work


def proven_by_chains(
    chain: ChainOfCuts, budget: int, *, floor: Fraction, limit: Fraction, most: int
) -> tuple[Fraction | None, int]:
    """The largest bound found while instants are added, and the row of its first instant; None if no plan fits.

    Args:
        chain: to start from, as far as it was solved.
        floor: a bound proven before.
        limit: a bound that is enough.
        most: choices solved in addition.
    """
    before = chain.solved
    best, facts = chain.least(floor=floor, limit=limit, most=before + most // _SHARE)
    left = most - chain.solved + before
    while best is not None and best < limit and left > 0:
        tried: list[tuple[Fraction | None, ChainOfCuts]] = []
        for new in _overfull(chain, facts, budget):
            other = ChainOfCuts(chain.storages, sorted((*chain.rows, new)), budget)
            bound, _ = other.least(floor=best, limit=limit, most=min(most // _SHARE, left))
            left -= other.solved
            tried.append((bound, other))
            if bound is None or bound >= limit or left <= 0:
                break
        if tried:
            chain = max(tried, key=lambda one: (one[0] is None, one[0] or 0))[1]
        before = chain.solved
        best, facts = chain.least(floor=best, limit=limit, most=before + (left // 2 if tried else left))
        left -= max(1, chain.solved - before)
        if not tried:
            break
    return best, chain.rows[0]


def _overfull(chain: ChainOfCuts, facts: tuple[Facts, ...], budget: int) -> list[int]:
    """Ops that can join the chain and at whose first run the chain's choice exceeds the budget.

    Reruns are assumed just before their first reader. The last few ops come first, as they are decided soonest.
    """
    shared, k = chain.storages, len(chain.rows)
    n = len(shared.arrays.cost)
    occupied = np.full(n, -1, dtype=np.int64)
    held, end = chain.read[k].copy(), n
    for i in reversed(range(k)):
        part = chain.choice(i, i + 1, facts)
        assert part is not None
        first_runs = chain.after[i] & chain.before[i + 1]
        occupied[first_runs] = _occupied(shared, first_runs, part.made, held, chain.rows[i], end)[first_runs]
        held, end = chain.read[i].copy(), chain.rows[i]
        held[list(facts[i].live | part.live)] = True
    first_runs = chain.before[0]
    occupied[first_runs] = _occupied(shared, first_runs, first_runs, held, 0, end)[first_runs]
    over = np.flatnonzero(occupied > budget).tolist()
    rows = np.array([row for row in over if _comparable(chain, row)], dtype=np.int64)
    full = np.concatenate(([-1], occupied[rows], [-1]))
    tops = rows[(full[1:-1] >= full[:-2]) & (full[1:-1] > full[2:])]  # one of each run of neighbours
    later, earlier = tops[tops > chain.rows[0]], tops[tops < chain.rows[0]]
    return [int(row) for row in (*later[::-1][:_LATER], *earlier[::-1][:_EARLIER])]


def _comparable(chain: ChainOfCuts, row: int) -> bool:
    """True if an op is not in the chain, and each instant depends on it or it on the instant."""
    return all(row != other and (chain.after[i, row] or chain.before[i, row]) for i, other in enumerate(chain.rows))


def _occupied(storages: Storages, first_runs: Flags, made: Flags, held: Flags, start: int, end: int) -> Ints:
    """Bytes at the first run of each op of one part.

    Args:
        first_runs, made [n]: ops that run for the first time in the part, and all ops that run in it.
        held [m]: storages live at the end of the part.
        start, end: rows between which the part lies.
    """
    arrays, storage_rep, nbytes = storages.arrays, storages.storage_rep, storages.rep_bytes
    n = len(arrays.cost)
    asked = np.where(held, end, n + 1)  # the first op that reads each storage, and the last
    until = np.where(held, end, -1)
    born = np.full(len(asked), start - 1, dtype=np.int64)
    for op in np.flatnonzero(made)[::-1].tolist():
        outputs = np.arange(arrays.out_ptr[op], arrays.out_ptr[op + 1])
        at = op if first_runs[op] else int(asked[outputs].min(initial=n + 1))
        if at > n:
            continue
        born[outputs] = at
        read = reps_read(storages, op)
        asked[read] = np.minimum(asked[read], at)
        until[read] = np.maximum(until[read], at)
    there = np.maximum(0, born + first_runs[arrays.producer])  # its own op counts it in the working set
    holds = np.flatnonzero((until > born) & (storage_rep == np.arange(len(storage_rep))))
    change = np.zeros(n + 2, dtype=np.int64)
    np.add.at(change, there[holds], nbytes[holds])
    np.subtract.at(change, until[holds] + 1, nbytes[holds])
    occupied = np.cumsum(change)[:n] + storages.working_bytes
    for op in np.flatnonzero(first_runs).tolist():
        read = np.unique(reps_read(storages, op))
        occupied[op] -= nbytes[read[(until[read] > born[read]) & (there[read] <= op)]].sum()  # in the working set too
    return occupied
