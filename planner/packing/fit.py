"""First fit and best fit with true offsets, and the portfolio of both that stops at the bound."""

from __future__ import annotations

from typing import Final, Literal

import numpy as np

from planner.analysis.encode import Ints
from planner.analysis.liveness import Evaluator, Liveness, evaluator_of
from planner.graph import Graph
from planner.kernels.fit import place
from planner.memory import Allocation, Buffer, MemoryModel
from planner.schedule import Schedule

PlacementOrder = Literal["size", "breadth"]


def first_fit(graph: Graph, schedule: Schedule, *, memory: MemoryModel, order: PlacementOrder = "size") -> Allocation:
    """Largest buffer first, each at the lowest offset where it fits.

    Args:
        order: "size": decreasing; "breadth": those live at the busiest step first, then by size.
    Raises:
        ScheduleError: the schedule is illegal.
    Source: Pisarchyk and Lee 2020, greedy by size and by breadth. O(n^2) in the number of buffers.
    """
    return _pack(graph, schedule, memory, ((order, False),), "first-fit")


def best_fit(graph: Graph, schedule: Schedule, *, memory: MemoryModel, order: PlacementOrder = "size") -> Allocation:
    """As `first_fit`, but each buffer goes where it leaves the smallest gap."""
    return _pack(graph, schedule, memory, ((order, True),), "best-fit")


def auto(graph: Graph, schedule: Schedule, *, memory: MemoryModel) -> Allocation:
    """The smallest arena of several rules; stops at the first whose arena equals the peak, which proves it least."""
    return _pack(graph, schedule, memory, _PORTFOLIO, "auto")


_PORTFOLIO: Final[tuple[tuple[PlacementOrder, bool], ...]] = (
    ("breadth", False), ("breadth", True), ("size", False), ("size", True),
)  # fmt: skip


def _pack(
    graph: Graph, schedule: Schedule, memory: MemoryModel, rules: tuple[tuple[PlacementOrder, bool], ...], name: str
) -> Allocation:
    evaluator = evaluator_of(graph, memory)
    liveness = evaluator.liveness(schedule)
    best_top = -1
    best_offset = np.zeros(len(liveness.value), dtype=np.int64)
    for order, tightest in rules:
        offset = np.zeros(len(liveness.value), dtype=np.int64)
        rows = _placement_order(liveness, order)
        top = int(place(rows, liveness.nbytes, liveness.start, liveness.end, memory.alignment, tightest, offset))
        if best_top < 0 or top < best_top:
            best_top, best_offset = top, offset
        if best_top + liveness.resident_bytes <= liveness.peak_bytes:
            break
    return _allocation(evaluator, liveness, best_offset, best_top, name)


def _placement_order(liveness: Liveness, order: PlacementOrder) -> Ints:
    by_size = -liveness.nbytes
    if order == "size":
        return np.lexsort((liveness.start, by_size))
    return np.lexsort((liveness.start, by_size, -_busiest_bytes(liveness)))


def _busiest_bytes(liveness: Liveness) -> Ints:
    """For each buffer, the most bytes live at a step of its lifetime; range maxima from a sparse table."""
    levels = [liveness.timeline_bytes]
    while 2 ** len(levels) <= len(liveness.timeline_bytes):
        half = 2 ** (len(levels) - 1)
        levels.append(np.maximum(levels[-1][:-half], levels[-1][half:]))
    busiest = np.zeros(len(liveness.value), dtype=np.int64)
    length = liveness.end - liveness.start
    level_of = np.frexp(length)[1] - 1
    for level, table in enumerate(levels):
        rows = np.flatnonzero((level_of == level) & (length > 0))
        busiest[rows] = np.maximum(table[liveness.start[rows]], table[liveness.end[rows] - 2**level])
    return busiest


def _allocation(evaluator: Evaluator, liveness: Liveness, offset: Ints, top: int, name: str) -> Allocation:
    values, ops = evaluator.encoded.value_names, evaluator.encoded.op_names
    columns = zip(
        liveness.value.tolist(), liveness.workspace.tolist(), liveness.execution.tolist(), liveness.nbytes.tolist(),
        liveness.start.tolist(), liveness.end.tolist(), offset.tolist(), strict=True,
    )  # fmt: skip
    buffers = tuple(
        Buffer(ops[row] if workspace else values[row], execution, workspace, nbytes, start, end, place_bytes)
        for row, workspace, execution, nbytes, start, end, place_bytes in columns
    )
    return Allocation(buffers, liveness.resident_bytes, liveness.resident_bytes + top, name)
