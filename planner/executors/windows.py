"""Where things lie: the places of storages and values in the arena, and what the sizes are divided by."""

from __future__ import annotations

from itertools import pairwise
from typing import Final, NamedTuple

from planner.errors import VerificationError
from planner.graph import Graph
from planner.memory import Allocation, Buffer

ARENA_LIMIT: Final = 2**28


class Storage:
    """A place in the arena: the content, then slack from scaling, which holds a canary."""

    __slots__ = ("end", "names", "start", "stop")

    def __init__(self, start: int, end: int, stop: int) -> None:
        self.start, self.end, self.stop = start, end, stop
        self.names: set[str] = set()

    @property
    def size(self) -> int:
        """Bytes of the content."""
        return self.end - self.start


class Instance(NamedTuple):
    """A value in the arena."""

    value: str
    storage: Storage
    lo: int
    hi: int
    made: int  # step


class Layout:
    """Scaled addresses: gaps between neighbouring ends of buffers are divided and rounded up, so that none closes."""

    def __init__(self, graph: Graph, allocation: Allocation, scale: int) -> None:
        self.scale = scale
        residents = [tensor for op in graph.ops if op.resident for tensor in op.outputs]
        base = sum(tensor.nbytes for tensor in residents)
        if 0 < allocation.resident_bytes < base:
            raise VerificationError(f"residents need {base} bytes; the allocation has {allocation.resident_bytes}")
        top = base + allocation.arena_bytes - allocation.resident_bytes
        self._spans: dict[tuple[str, int, bool], tuple[int, int]] = {}
        offset = 0
        for tensor in residents:
            self._spans[tensor.name, -1, False] = offset, tensor.nbytes
            offset += tensor.nbytes
        for buffer in allocation.buffers:
            nbytes = _needed_bytes(graph, buffer)
            if buffer.offset < 0 or base + buffer.offset + nbytes > top:
                where = f"{buffer.value!r}, execution {buffer.execution}"
                raise VerificationError(f"buffer of {where}, lies outside the arena")
            self._spans[buffer.value, buffer.execution, buffer.workspace] = base + buffer.offset, nbytes
        points = sorted({0}.union(*((start, start + nbytes) for start, nbytes in self._spans.values())))
        self._places = {0: 0}
        for before, point in pairwise(points):
            self._places[point] = self._places[before] - (before - point) // scale
        self.arena_bytes = self._places[points[-1]]

    def storage(self, value: str, execution: int, *, workspace: bool = False) -> Storage | None:
        """The place of a buffer, or None where the allocation has none."""
        span = self._spans.get((value, execution, workspace))
        if span is None:
            return None
        start, nbytes = span
        first = self._places[start]
        return Storage(first, first - -nbytes // self.scale, self._places[start + nbytes])


def _needed_bytes(graph: Graph, buffer: Buffer) -> int:
    if buffer.workspace:
        op = graph.op_named.get(buffer.value)
        return buffer.nbytes if op is None else op.workspace
    tensor = graph.tensors.get(buffer.value)
    return buffer.nbytes if tensor is None else tensor.nbytes


def automatic_scale(graph: Graph, allocation: Allocation, *, limit_bytes: int = ARENA_LIMIT) -> int:
    """The least power of two that brings the arena, and the arrays of the reference, below a limit in bytes.

    >>> automatic_scale(Graph([]), Allocation((), 0, 2**30, "none"))
    4
    """
    residents = sum(tensor.nbytes for op in graph.ops if op.resident for tensor in op.outputs)
    arena = residents + allocation.arena_bytes - allocation.resident_bytes
    arrays = 0
    for op in graph.ops:
        viewed = {op.outputs[o].name for _, o, _ in op.view}
        made = (graph.storage_root[tensor.name] for tensor in op.outputs if tensor.name not in viewed)
        arrays += sum(graph.tensors[root].nbytes for root in made)
    scale = 1
    while max(arena, arrays) > scale * limit_bytes:
        scale *= 2
    return scale
