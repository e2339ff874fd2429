"""Relief of the peak: at the fullest step of any sequence of ops, a minimum cut says what to drop there and make again
after it.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from planner.analysis.arrays import UPDATE, Arrays, Flags, Ints
from planner.analysis.evaluator import Evaluator
from planner.bounds.cut import Instant, Storages, storages
from planner.kernels.replay import replay
from planner.kernels.segments import recompute
from planner.kernels.unroll import restore, unroll

_PRICES: Final = 16
_WOBBLE: Final = 0.2


class Eviction:
    """Relieves sequences of one graph.

    Args:
        evaluator: of the graph and memory model.
    """

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator = evaluator
        self.arrays = evaluator.encoded.arrays
        arrays = self.arrays
        self._outputs, self._reads = np.diff(arrays.out_ptr), np.diff(arrays.read_ptr)
        widest = max(len(arrays.producer), len(arrays.cost), int(self._reads.max(initial=0))) + 1
        self._scratch = np.empty((13, widest), dtype=np.int64)
        self._residents = np.flatnonzero(arrays.resident)

    def timeline(self, sequence: Ints) -> Ints | None:
        """Bytes at each step, or None where the sequence is illegal."""
        free_ptr, freed = self.evaluator.frees(sequence)
        timeline = np.zeros(len(sequence), dtype=np.int64)
        buffers = np.empty((4, int(self._outputs[sequence].sum())), dtype=np.int64)
        illegal = replay(self.arrays, sequence, free_ptr, freed, timeline, buffers, self._scratch)[3]
        return None if illegal >= 0 else timeline

    def evict_at_peak(
        self, sequence: Ints, step: int, excess: int, *, draw: np.random.Generator | None = None
    ) -> Ints | None:
        """The sequence with the cheapest set of values that frees some bytes at one step dropped there; None where none
        does.

        Args:
            excess: bytes to free.
            draw: takes costs to be a little higher or lower than they are, for another set about as cheap.
        """
        program = _Unrolled(self.arrays, self._residents, sequence)
        row = len(self._residents) + step
        rerun = program.dropped(row, excess, draw)
        return None if rerun is None else program.sequence(row, rerun)


class _Unrolled:
    """A sequence as a program of its own: residents, then one op per run. Order-only edges are left out: first runs
    stay in order.
    """

    def __init__(self, arrays: Arrays, residents: Ints, sequence: Ints) -> None:
        self.runs = np.concatenate((residents, sequence))
        self.first = len(residents)
        self.arrays = _unrolled(arrays, self.runs)
        self.storages: Storages = storages(self.arrays)
        self.stuck = touches_updated(self.arrays)

    def dropped(self, row: int, excess: int, draw: np.random.Generator | None) -> Flags | None:
        """Runs before a row to repeat after it, so that so many bytes less are live at the row; None where there are
        none.
        """
        rows = np.arange(len(self.runs))
        base, arrays = self.storages, self.arrays
        live_here = np.zeros(len(base.storage_rep), dtype=np.bool_)
        read = base.storage_rep[arrays.read_value[arrays.read_ptr[row] : arrays.read_ptr[row + 1]]]
        live_here[read[read >= 0]] = True
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
        restore(arrays, base.storage_rep, base.holder_bytes, instant.needed, live_here, rerun, order, room)
        return rerun

    def _made_bytes(self) -> Ints:
        """Fresh bytes of each run."""
        total = np.zeros(len(self.runs), dtype=np.int64)
        np.add.at(total, self.arrays.producer, self.arrays.storage_bytes)
        return total

    def sequence(self, row: int, rerun: Flags) -> Ints:
        """Op rows of the graph: what was dropped at `row` runs again just before its first reader after it."""
        counts = with_views(self.storages, rerun & ~self.stuck).astype(np.int64)
        counts[row:] = 0
        rows = np.arange(self.first, len(self.runs))
        result = np.empty(len(rows) + int(counts.sum()), dtype=np.int64)
        none = np.full(len(self.runs), -1, dtype=np.int64)
        length = recompute(self.arrays, rows, counts, np.arange(len(self.runs)) <= row, none, result)
        return self.runs[result[:length]]


def _cheapest_within(instant: Instant, room: int) -> Flags | None:
    """The ops run again by the cheapest vertex of the hull whose live bytes fit; None where nothing has to, or nothing
    fits.
    """
    if instant.fixed_bytes > room or instant.needed_bytes <= room:
        return None
    many = instant.cut(float(instant.storages.most))
    if many.live_bytes > room:
        return None
    low_cost, low_bytes = 0, instant.needed_bytes
    for _ in range(_PRICES):
        price = (many.again_cost - low_cost) / (low_bytes - many.live_bytes)
        if price <= 0:
            break
        cut = instant.cut(price)
        if cut.live_bytes in (low_bytes, many.live_bytes):
            break
        if cut.live_bytes <= room:
            many = cut
        else:
            low_cost, low_bytes = cut.again_cost, cut.live_bytes
    found: Flags = many.rerun
    return found


def with_views(storages: Storages, rerun: Flags) -> Flags:
    """Ops that run again, and those that make views of what they make: else the old views would hold the bytes."""
    arrays, storage_rep = storages.arrays, storages.storage_rep
    on = np.flatnonzero((storage_rep >= 0) & (storage_rep != np.arange(len(storage_rep))))
    makers = arrays.producer[on[rerun[arrays.producer[storage_rep[on]]]]]
    rerun = rerun.copy()
    rerun[makers[arrays.recomputable[makers]]] = True
    return rerun


def touches_updated(arrays: Arrays) -> Flags:
    """Ops that read or make a storage which an op before the update phase updates: its old versions are gone later."""
    updated = np.zeros(len(arrays.root), dtype=np.bool_)
    updated[arrays.root[arrays.is_update & (arrays.phase[arrays.producer] != UPDATE)]] = True
    touched = np.zeros(len(arrays.phase), dtype=np.bool_)
    touched[arrays.producer[updated[arrays.root]]] = True
    readers = np.repeat(np.arange(len(arrays.phase)), np.diff(arrays.read_ptr))
    touched[readers[updated[arrays.root[arrays.read_value]]]] = True
    return touched


def _unrolled(arrays: Arrays, runs: Ints) -> Arrays:
    outputs, reads, pairs = (np.diff(ptr)[runs] for ptr in (arrays.out_ptr, arrays.read_ptr, arrays.pair_ptr))
    out_ptr, read_ptr = np.empty((2, len(runs) + 1), dtype=np.int64)
    read_value = np.empty(int(reads.sum()), dtype=np.int64)
    origin, root = np.empty((2, int(outputs.sum())), dtype=np.int64)
    is_output = np.empty(len(origin), dtype=np.bool_)
    unroll(arrays, runs, out_ptr, read_ptr, read_value, origin, root, is_output)
    pair_ptr = np.concatenate(([0], np.cumsum(pairs))).astype(np.int64)
    pair = np.repeat(arrays.pair_ptr[:-1][runs] - pair_ptr[:-1], pairs) + np.arange(int(pair_ptr[-1]))
    return Arrays(
        out_ptr=out_ptr,
        read_ptr=read_ptr,
        read_value=read_value,
        after_ptr=np.zeros(len(runs) + 1, dtype=np.int64),
        after_op=np.empty(0, dtype=np.int64),
        producer=np.repeat(np.arange(len(runs)), outputs),
        raw_bytes=arrays.raw_bytes[origin],
        storage_bytes=arrays.storage_bytes[origin],
        alias=arrays.alias[origin],
        is_update=arrays.is_update[origin],
        is_output=is_output,
        never_freed=arrays.never_freed[origin],
        root=root,
        pair_ptr=pair_ptr,
        pair_in=arrays.pair_in[pair],
        pair_out=arrays.pair_out[pair],
        pair_identity=arrays.pair_identity[pair],
        cost=arrays.cost[runs],
        workspace=arrays.workspace[runs],
        recomputable=arrays.recomputable[runs],
        resident=arrays.resident[runs],
        phase=arrays.phase[runs],
        resident_bytes=arrays.resident_bytes,
    )
