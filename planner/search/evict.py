"""Evict at the peak: a minimum cut at the fullest step of a sequence says which values to drop and make again later."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from planner.analysis.arrays import Arrays, Flags, Ints
from planner.analysis.candidates import touches_updated
from planner.analysis.evaluator import Evaluator
from planner.bounds.cut import Instant, Storages, reps_read, storages
from planner.kernels.segments import recompute
from planner.kernels.unroll import restore, unroll

_PRICES: Final = 16
_WOBBLE: Final = 0.2
#: Fields that a run, its outputs and its pairs have from their op.
_OF_OP: Final = ("cost", "workspace", "recomputable", "resident", "phase")
_OF_VALUE: Final = ("raw_bytes", "storage_bytes", "alias", "is_update", "never_freed")
_OF_PAIR: Final = ("pair_in", "pair_out", "pair_identity")


class Eviction:
    """Evicts values from sequences of one graph."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.timeline = evaluator.timeline
        self.arrays = evaluator.encoded.arrays
        self._residents = np.flatnonzero(self.arrays.resident)

    def evict_at_peak(
        self, sequence: Ints, step: int, excess: int, *, draw: np.random.Generator | None = None
    ) -> Ints | None:
        """The sequence in which the cheapest set of values is dropped at one step; None if no set frees enough.

        Args:
            excess: bytes to free.
            draw: varies the costs a little, for another set that is about as cheap.
        """
        program = _Unrolled(self.arrays, self._residents, sequence)
        row = len(self._residents) + step
        rerun = program.dropped(row, excess, draw)
        return None if rerun is None else program.sequence(row, rerun)


class _Unrolled:
    """A sequence as a program with one op per run; it needs no order-only edges, as first runs stay in order."""

    def __init__(self, arrays: Arrays, residents: Ints, sequence: Ints) -> None:
        self.runs = np.concatenate((residents, sequence))
        self.first = len(residents)
        self.arrays = _unrolled(arrays, self.runs)
        self.storages: Storages = storages(self.arrays)
        self.stuck = touches_updated(self.arrays)

    def dropped(self, row: int, excess: int, draw: np.random.Generator | None) -> Flags | None:
        """Runs before a row that repeat after it, so that `excess` bytes less are live at the row; None if none do."""
        rows = np.arange(len(self.runs))
        base, arrays = self.storages, self.arrays
        live_here = np.zeros(len(base.storage_rep), dtype=np.bool_)
        live_here[reps_read(base, row)] = True
        if draw is not None:
            wobbly = np.maximum(1, base.step_cost * draw.uniform(1 - _WOBBLE, 1 + _WOBBLE, len(rows))).astype(np.int64)
            base = base._replace(step_cost=wobbly, most=int(wobbly.sum()) + 1)
        before = (rows < row) & ~arrays.resident
        instant = Instant(base, before=before, after=rows >= row, live_here=live_here, fixed=self.stuck)
        room = instant.needed_bytes - excess
        many = _cheapest_within(instant, room)
        if many is None:
            return None
        rerun: Flags = many.copy()
        tried = np.flatnonzero(rerun)
        worth = base.step_cost[tried] / np.maximum(1, self._made_bytes()[tried])
        order = tried[np.argsort(-worth, kind="stable")]
        restore(arrays, base.storage_rep, base.rep_bytes, instant.needed, live_here, rerun, order, room)
        return rerun

    def _made_bytes(self) -> Ints:
        """Fresh bytes of each run."""
        total = np.zeros(len(self.runs), dtype=np.int64)
        np.add.at(total, self.arrays.producer, self.arrays.storage_bytes)
        return total

    def sequence(self, row: int, rerun: Flags) -> Ints:
        """Op rows of the graph: each value dropped at `row` is made again just before its first reader after it."""
        counts = with_views(self.storages, rerun & ~self.stuck, self.arrays.recomputable).astype(np.int64)
        counts[row:] = 0
        rows = np.arange(self.first, len(self.runs))
        result = np.empty(len(rows) + int(counts.sum()), dtype=np.int64)
        none = np.full(len(self.runs), -1, dtype=np.int64)
        length = recompute(self.arrays, rows, counts, np.arange(len(self.runs)) <= row, none, result)
        return self.runs[result[:length]]


def _cheapest_within(instant: Instant, room: int) -> Flags | None:
    """Reruns of the cheapest cut whose live bytes fit the room; None if all bytes fit, or no cut does."""
    if instant.fixed_bytes > room or instant.needed_bytes <= room:
        return None
    many = instant.cut(float(instant.storages.most))
    if many.live_bytes > room:
        return None
    low_cost, low_bytes = 0, instant.needed_bytes
    for _ in range(_PRICES):
        price = (many.rerun_cost - low_cost) / (low_bytes - many.live_bytes)
        if price <= 0:
            break
        cut = instant.cut(price)
        if cut.live_bytes in (low_bytes, many.live_bytes):
            break
        if cut.live_bytes <= room:
            many = cut
        else:
            low_cost, low_bytes = cut.rerun_cost, cut.live_bytes
    found: Flags = many.rerun
    return found


def with_views(storages: Storages, rerun: Flags, allowed: Flags) -> Flags:
    """The reruns and the allowed ops that make views of what they make: an old view would hold the bytes."""
    arrays, storage_rep = storages.arrays, storages.storage_rep
    on = np.flatnonzero((storage_rep >= 0) & (storage_rep != np.arange(len(storage_rep))))
    makers = arrays.producer[on[rerun[arrays.producer[storage_rep[on]]]]]
    rerun = rerun.copy()
    rerun[makers[allowed[makers]]] = True
    return rerun


def _unrolled(arrays: Arrays, runs: Ints) -> Arrays:
    """The arrays with one op per run."""
    outputs, reads, pairs = (np.diff(ptr)[runs] for ptr in (arrays.out_ptr, arrays.read_ptr, arrays.pair_ptr))
    out_ptr, read_ptr = np.empty((2, len(runs) + 1), dtype=np.int64)
    read_value = np.empty(int(reads.sum()), dtype=np.int64)
    origin, root = np.empty((2, int(outputs.sum())), dtype=np.int64)
    is_output = np.empty(len(origin), dtype=np.bool_)
    unroll(arrays, runs, out_ptr, read_ptr, read_value, origin, root, is_output)
    pair_ptr = np.concatenate(([0], np.cumsum(pairs))).astype(np.int64)
    pair = np.repeat(arrays.pair_ptr[:-1][runs] - pair_ptr[:-1], pairs) + np.arange(int(pair_ptr[-1]))
    rows_of = ((_OF_VALUE, origin), (_OF_PAIR, pair), (_OF_OP, runs))
    copied: dict[str, Any] = {field: getattr(arrays, field)[rows] for fields, rows in rows_of for field in fields}
    after_ptr, after_op = np.zeros(len(runs) + 1, dtype=np.int64), np.empty(0, dtype=np.int64)
    made = arrays._replace(out_ptr=out_ptr, read_ptr=read_ptr, read_value=read_value, root=root, is_output=is_output)
    made = made._replace(after_ptr=after_ptr, after_op=after_op, pair_ptr=pair_ptr)
    return made._replace(producer=np.repeat(np.arange(len(runs)), outputs), **copied)
