"""Allocators that place the buffers of a schedule one by one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from planner.analysis.evaluator import evaluator_of
from planner.graph import Graph
from planner.memory import Allocation, Buffer, MemoryModel
from planner.packing.arena import Packing, PlacementOrder, pack, pack_once, pack_within
from planner.packing.intervals import Intervals
from planner.problem import Stop
from planner.schedule import Schedule


def first_fit(graph: Graph, schedule: Schedule, *, memory: MemoryModel, order: PlacementOrder = "size") -> Allocation:
    """Place the largest buffer first, each at the lowest offset where it fits.

    Args:
        order: "size": decreasing; "breadth": buffers live at the busiest step first, then by size.
    Raises:
        ScheduleError: the schedule is illegal.
    Source: Pisarchyk and Lee 2020, greedy by size and by breadth.
    """
    return _Buffers(graph, schedule, memory).allocation(pack_once, "first-fit", order=order, best=False)


def best_fit(graph: Graph, schedule: Schedule, *, memory: MemoryModel, order: PlacementOrder = "size") -> Allocation:
    """Place as `first_fit` does, but each buffer where it leaves the smallest gap."""
    return _Buffers(graph, schedule, memory).allocation(pack_once, "best-fit", order=order, best=True)


def auto(
    graph: Graph,
    schedule: Schedule,
    *,
    memory: MemoryModel,
    capacity_bytes: int | None = None,
    stop: Stop | None = None,
) -> Allocation:
    """Placement rules, and the search of `exact` with as much effort as may decide something.

    Args:
        capacity_bytes: what the arena may take, residents included: the first packing within it is returned, and none
            is searched for where live bytes alone take more. None: a small arena is wanted, and at most a thousandth
            is left to waste, a hundredth where buffers are many.
    """
    buffers = _Buffers(graph, schedule, memory)
    besides_bytes = buffers.liveness.resident_bytes
    packer = partial(pack_within, besides_bytes=besides_bytes)
    return buffers.allocation(packer, "auto", capacity_bytes=capacity_bytes, stop=stop)


def exact(
    graph: Graph,
    schedule: Schedule,
    *,
    memory: MemoryModel,
    effort: float = 4.0,
    seed: int = 0,
    stop: Stop | None = None,
) -> Allocation:
    """The smallest arena that placement rules and a search find, and the bound proven on it; see `arena.pack`."""
    return _Buffers(graph, schedule, memory).allocation(pack, "exact", effort=effort, seed=seed, stop=stop)


def proves(graph: Graph, schedule: Schedule, memory: MemoryModel, bound_bytes: int) -> bool:
    """True if it is proven again that no arena of this schedule is below the bound: by live bytes, else by `exact`."""
    buffers = _Buffers(graph, schedule, memory)
    found = buffers.allocation(pack, "exact", effort=0).bound_bytes
    if found < bound_bytes:
        # Half the effort goes to the target one byte below the bound, more than any allocator spent on it.
        found = buffers.allocation(pack, "exact", effort=8.0, capacity_bytes=bound_bytes - 1).bound_bytes
    return found >= bound_bytes


class _Buffers:
    """The buffers of a schedule."""

    def __init__(self, graph: Graph, schedule: Schedule, memory: MemoryModel) -> None:
        self.evaluator = evaluator_of(graph, memory)
        self.alignment = memory.alignment
        self.liveness = self.evaluator.liveness(schedule)

    def allocation(
        self, packer: Callable[..., Packing], name: str, *, capacity_bytes: int | None = None, **options: Any
    ) -> Allocation:
        """The allocation at a packer's offsets.

        Args:
            capacity_bytes: of the arena, residents included.
        """
        live = self.liveness
        if capacity_bytes is not None:
            options["capacity"] = capacity_bytes - live.resident_bytes
        aligned, free = np.full_like(live.nbytes, self.alignment), np.full_like(live.nbytes, -1)
        found = packer(Intervals(live.nbytes, live.start, live.end, aligned, free), **options)
        values, ops = self.evaluator.encoded.value_names, self.evaluator.encoded.op_names
        pairs = zip(live.value.tolist(), live.workspace.tolist(), strict=True)
        names = [ops[row] if scratch else values[row] for row, scratch in pairs]
        columns = (live.execution, live.workspace, live.nbytes, live.start, live.end, found.offset)
        rows = zip(names, *(column.tolist() for column in columns), strict=True)
        buffers = tuple(Buffer(*row) for row in rows)
        resident = live.resident_bytes
        return Allocation(buffers, resident, resident + found.top_bytes, name, resident + found.bound_bytes)
