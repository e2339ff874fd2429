"""The choice at one instant: each value that is still needed is live, or its op runs again.

At a price per live byte, the cheapest choice is a minimum cut.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from planner.analysis.arrays import Arrays, Flags, Ints
from planner.analysis.evaluator import evaluator_of
from planner.graph import Graph
from planner.kernels import flow as kernels
from planner.memory import MemoryModel

_WORK = 20_000_000  # arcs looked at in one call of the kernel, so that Ctrl-C is heard


class Storages(NamedTuple):
    """What every instant of a graph shares.

    Args:
        storage_rep [m]: the value that represents the storage of each value, or -1; see `kernels.flow.holders`.
        rep_bytes [m]: bytes of the storage of each representative.
        working_bytes [n]: least bytes at each op's step: residents, inputs, fresh outputs, workspace.
        step_cost [n]: cost of one run in whole units, rounded down.
        unit: cost of one unit, a power of two.
        most: more units than one run of every op costs.
    """

    arrays: Arrays
    storage_rep: Ints
    rep_bytes: Ints
    working_bytes: Ints
    step_cost: Ints
    unit: float
    most: int


@lru_cache(maxsize=4)
def storages_of(graph: Graph, memory: MemoryModel) -> Storages:
    """`storages` of a graph; the last few are kept."""
    return storages(evaluator_of(graph, memory).encoded.arrays)


def storages(arrays: Arrays) -> Storages:
    """Representatives, working sets and whole costs of a program."""
    storage_rep = np.empty(len(arrays.producer), dtype=np.int64)
    kernels.holders(arrays, storage_rep)
    rep_bytes = arrays.storage_bytes[arrays.root]
    cost = np.where(arrays.resident, 0.0, arrays.cost)
    total = math.fsum(cost.tolist())
    # Sums over all arcs of amounts up to one run of every op stay below UNBOUNDED.
    bits = min(50, 59 - max(1, len(arrays.producer) + len(cost)).bit_length())
    exponent = max(-1000, math.frexp(total)[1] - bits) if total > 0 else 0
    step_cost = np.floor(np.ldexp(cost, -exponent)).astype(np.int64)
    working_bytes = np.empty(len(cost), dtype=np.int64)
    kernels.working_sets(arrays, storage_rep, np.full(len(storage_rep), -1, dtype=np.int64), working_bytes)
    unit, most = math.ldexp(1.0, exponent), int(step_cost.sum()) + 1
    return Storages(arrays, storage_rep, rep_bytes, working_bytes, step_cost, unit, most)


def reps_read(storages: Storages, op: int) -> Ints:
    """Representatives of the storages that an op reads, repeats included."""
    arrays = storages.arrays
    read = storages.storage_rep[arrays.read_value[arrays.read_ptr[op] : arrays.read_ptr[op + 1]]]
    return read[read >= 0]


class Cut(NamedTuple):
    """A least cut at one price.

    Args:
        price: units per byte.
        value: units; the least cost of reruns and live bytes, where bytes of values that must stay are free.
        rerun [n]: ops that run again.
        rerun_cost: units they cost.
        live_bytes: of needed values that are live, those that must stay included, those of `live_here` not.
    """

    price: float
    value: int
    rerun: Flags
    rerun_cost: int
    live_bytes: int


class _Flow(NamedTuple):
    """A flow and its price; a cut at a higher price goes on from it."""

    price: float
    residual: Ints
    sink: Ints
    excess: Ints
    supply: Ints
    capacity: Ints


class Instant:
    """The flow network of one instant; [m] flags are of representatives of storages.

    Args:
        before [n]: ops that have run, so that another run costs.
        after [n]: ops whose first run is at the instant or later. Ops in neither set may run at no cost.
        live_here [m]: live at the instant in any case; their bytes are counted elsewhere.
        fixed [n]: ops of `before` that must not run again, besides those that cannot.
        needed [m]: must be live or made again; None: what `after` reads, and the outputs of the graph.
        absent [m]: not live at the instant, and not in `needed`.
    """

    def __init__(
        self,
        storages: Storages,
        *,
        before: Flags,
        after: Flags,
        live_here: Flags,
        fixed: Flags | None = None,
        needed: Flags | None = None,
        absent: Flags | None = None,
    ) -> None:
        self.storages = storages
        arrays, storage_rep = storages.arrays, storages.storage_rep
        n, m = len(arrays.cost), len(storage_rep)
        rerunnable = arrays.recomputable if fixed is None else arrays.recomputable & ~fixed
        self._rerun_cost = np.where(before, np.where(rerunnable, storages.step_cost, kernels.UNBOUNDED), 0)
        self._rerun_cost[after | arrays.resident] = 0
        self.needed: Flags = np.empty(m, dtype=np.bool_) if needed is None else needed
        if needed is None:
            kernels.needs(arrays, storage_rep, after, live_here, self.needed)
        rows = np.flatnonzero(self.needed)
        stuck = before[arrays.producer[rows]] & ~rerunnable[arrays.producer[rows]]
        self.fixed_bytes = int(storages.rep_bytes[rows[stuck]].sum())
        paid = rows[~stuck]
        paid_bytes = np.bincount(arrays.producer[paid], storages.rep_bytes[paid], n).astype(np.int64)
        self._paid_bytes = paid_bytes  # of each op: to pay at the instant, or the op runs again
        self.needed_bytes = self.fixed_bytes + int(paid_bytes.sum())
        arcs = 2 * (len(arrays.read_value) + m)
        first = np.empty(n + m + 1, dtype=np.int64)
        table = np.empty((3, arcs), dtype=np.int64)
        used = kernels.arcs_of(arrays, storage_rep, after, live_here, self.needed, first, table)
        to, mate, weight = (row[:used].copy() for row in table)
        if absent is not None:  # what asks for one of them makes it again: no bytes to pay instead
            weight[(weight >= 0) & absent[weight]] = -1
        self._priced = np.flatnonzero(weight >= 0)
        rep = weight[self._priced]
        self._priced_bytes, self._priced_node, self._priced_producer = (
            storages.rep_bytes[rep],
            n + rep,
            arrays.producer[rep],
        )
        self._unbounded = np.flatnonzero(weight == -1)
        self._residual = np.empty(used, dtype=np.int64)
        self._sink, self._excess, arc, self._label = np.empty((4, n + m), dtype=np.int64)
        self._network = kernels.new_network(
            first=first,
            to=to,
            mate=mate,
            residual=self._residual,
            sink=self._sink,
            excess=self._excess,
            arc=arc,
            label=self._label,
            active=np.empty((2, n + m + 2), dtype=np.int64),
            level=np.empty((3, n + m + 2), dtype=np.int64),
        )
        self._flows: list[_Flow] = []

    def _capacities(self, price: float) -> tuple[Ints, Ints]:
        """Whole units of the source's arcs and of the priced arcs, rounded down and at most `Storages.most`."""
        below = price * (1 - 2.0**-50)  # so that a rounded product never exceeds the exact one
        most = float(self.storages.most)
        supply = np.minimum(np.floor(self._paid_bytes * below), most).astype(np.int64)
        priced = np.minimum(np.floor(self._priced_bytes * below), most).astype(np.int64)
        return supply, priced

    def cut(self, price: float) -> Cut:
        """The least cut at a price in units per byte."""
        n = len(self._paid_bytes)
        supply, capacity = self._capacities(price)
        start = max((flow for flow in self._flows if flow.price <= price), key=lambda flow: flow.price, default=None)
        if start is None:
            self._residual[:] = 0
            self._residual[self._unbounded] = kernels.UNBOUNDED
            self._residual[self._priced] = capacity
            self._sink[:n], self._sink[n:] = self._rerun_cost, 0
            self._excess[:n], self._excess[n:] = supply, 0
        else:
            self._residual[:], self._sink[:], self._excess[:] = start.residual, start.sink, start.excess
            self._residual[self._priced] += capacity - start.capacity
            self._excess[:n] += supply - start.supply
        while not kernels.push(self._network, _WORK):
            pass
        flow = _Flow(price, self._residual.copy(), self._sink.copy(), self._excess.copy(), supply, capacity)
        self._flows = [*[other for other in self._flows if other.price != price][-3:], flow]
        on_source_side = self._label > len(self._label)
        rerun = on_source_side[:n] & (self._rerun_cost < kernels.UNBOUNDED)
        chosen = on_source_side[self._priced_node] & ~on_source_side[self._priced_producer]
        chosen_bytes = int(self._priced_bytes[chosen].sum()) + int(self._paid_bytes[~on_source_side[:n]].sum())
        value = int((self._rerun_cost - self._sink[:n]).sum())
        return Cut(price, value, rerun, int(self._rerun_cost[rerun].sum()), self.fixed_bytes + chosen_bytes)


def first_run(storages: Storages, row: int) -> Instant:
    """The network of the first run of one op, in any order; what the op reads is live."""
    arrays = storages.arrays
    before, after = np.empty((2, len(arrays.cost)), dtype=np.bool_)
    kernels.ancestors(arrays, row, before)
    kernels.descendants(arrays, row, after)
    live_here = np.zeros(len(storages.storage_rep), dtype=np.bool_)
    live_here[reps_read(storages, row)] = True
    return Instant(storages, before=before, after=after, live_here=live_here)
