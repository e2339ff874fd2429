"""Allocators that place buffer by buffer, at true offsets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from planner.analysis.evaluator import evaluator_of
from planner.graph import Graph
from planner.memory import Allocation, Buffer, MemoryModel
from planner.packing.arena import Packing, PlacementOrder, pack, pack_once
from planner.packing.intervals import Intervals
from planner.problem import Stop
from planner.schedule import Schedule


def first_fit(graph: Graph, schedule: Schedule, *, memory: MemoryModel, order: PlacementOrder = "size") -> Allocation:
    """Largest buffer first, each at the lowest offset where it fits.

    Args:
        order: "size": decreasing; "breadth": those live at the busiest step first, then by size.
    Raises:
        ScheduleError: the schedule is illegal.
    Source: Pisarchyk and Lee 2020, greedy by size and by breadth.
    """
    return _Buffers(graph, schedule, memory).allocation(pack_once, "first-fit", order=order, best=False)


def best_fit(graph: Graph, schedule: Schedule, *, memory: MemoryModel, order: PlacementOrder = "size") -> Allocation:
    """As `first_fit`, but each buffer goes where it leaves the smallest gap."""
    return _Buffers(graph, schedule, memory).allocation(pack_once, "best-fit", order=order, best=True)


def auto(graph: Graph, schedule: Schedule, *, memory: MemoryModel, stop: Stop | None = None) -> Allocation:
    """As `exact`, with a quarter of the search where the portfolio leaves a gap, and all of it where more than a
    thousandth is left.
    """
    buffers = _Buffers(graph, schedule, memory)
    found = buffers.allocation(pack, "auto", effort=1.0, stop=stop)
    if found.arena_bytes - found.bound_bytes <= found.bound_bytes // 1000:
        return found
    return buffers.allocation(pack, "auto", effort=4.0, stop=stop)


def exact(
    graph: Graph,
    schedule: Schedule,
    *,
    memory: MemoryModel,
    effort: float = 4.0,
    seed: int = 0,
    stop: Stop | None = None,
) -> Allocation:
    """The smallest arena that rules and a search can find, and the bound proven on it; see
    `planner.packing.arena.pack`.
    """
    return _Buffers(graph, schedule, memory).allocation(pack, "exact", effort=effort, seed=seed, stop=stop)


def proves(graph: Graph, schedule: Schedule, memory: MemoryModel, bound_bytes: int) -> bool:
    """True if no arena of this schedule's buffers is smaller, as far as that can be proven again: by what is live, else
    by `exact`.
    """
    buffers = _Buffers(graph, schedule, memory)
    for options in ({"effort": 0}, {"effort": 4.0}):
        found = buffers.allocation(pack, "exact", **options).bound_bytes
        if found >= bound_bytes:
            return found == bound_bytes
    return False


class _Buffers:
    """The buffers of a schedule, as rows and with their names."""

    def __init__(self, graph: Graph, schedule: Schedule, memory: MemoryModel) -> None:
        self.evaluator = evaluator_of(graph, memory)
        self.alignment = memory.alignment
        self.liveness = self.evaluator.liveness(schedule)

    def allocation(self, packer: Callable[..., Packing], name: str, **options: Any) -> Allocation:
        """What a packer makes of them."""
        live = self.liveness
        aligned, free = np.full_like(live.nbytes, self.alignment), np.full_like(live.nbytes, -1)
        found = packer(Intervals(live.nbytes, live.start, live.end, aligned, free), **options)
        values, ops = self.evaluator.encoded.value_names, self.evaluator.encoded.op_names
        columns = zip(
            live.value.tolist(),
            live.workspace.tolist(),
            live.execution.tolist(),
            live.nbytes.tolist(),
            live.start.tolist(),
            live.end.tolist(),
            found.offset.tolist(),
            strict=True,
        )
        buffers = tuple(
            Buffer(ops[row] if workspace else values[row], execution, workspace, nbytes, start, end, offset)
            for row, workspace, execution, nbytes, start, end, offset in columns
        )
        resident = live.resident_bytes
        return Allocation(buffers, resident, resident + found.top_bytes, name, resident + found.bound_bytes)
