"""The loss tail (logits, values the loss makes of them, their gradients), and what it takes in chunks."""

from __future__ import annotations

import math
from typing import Final, Optional

import msgspec

from planner.footprint.components import Simulated
from planner.graph import Graph, Op
from planner.lowering.operators.lookup import is_float

_SCALAR_BYTES: Final = 8


class Tail(msgspec.Struct, frozen=True):
    """The lower bound on memory that the loss tail sets, and what splitting the loss into chunks would leave.

    Args:
        op: the op of the tail with the largest working set.
        needed_bytes: what that op needs by itself, residents included.
        divisible_bytes: the part of `needed_bytes` that becomes 1/k in k chunks of the rows.
        boundary_bytes: values that the tail reads, and their gradients, which stay whole.
        resident_bytes: residents.
        edge_bytes: the part of the gradient leaving the tail that becomes 1/k.
        weight_gradients_bytes: gradients of the parameters in the tail, summed over chunks.
        rest_bytes: what the ops outside the tail, and the update, need at least.
        rows: independent rows of the loss, and so the most chunks; None where no shape tells.
    """

    op: str
    needed_bytes: int
    divisible_bytes: int
    boundary_bytes: int
    resident_bytes: int
    edge_bytes: int
    weight_gradients_bytes: int
    rest_bytes: int
    rows: Optional[int]

    def chunked_bytes(self, chunks: int) -> int:
        """Bytes with the loss in so many equal chunks and all else recomputed; scalars are not counted.

        The running sum of the weight gradients is always live; those of one chunk join it while its gradient leaves.
        """
        whole = self.resident_bytes + self.boundary_bytes + self.weight_gradients_bytes
        within, leaving = -(-self.divisible_bytes // chunks), -(-self.edge_bytes // chunks)
        return max(whole + within, whole + leaving + self.weight_gradients_bytes, self.rest_bytes)


def loss_tail(work: Simulated) -> Tail | None:
    """The loss tail of a run; None for a graph without one."""
    graph = work.graph
    values = {name for name, component in work.component.items() if component == "loss_tail"}
    if not values:
        return None
    size = {name: work.memory.round_up(t.nbytes) for name, t in graph.tensors.items()}

    def large(roots: set[str]) -> int:
        return sum(size[root] for root in roots & values if graph.tensors[root].nbytes > _SCALAR_BYTES)

    tail, needed, divisible, rest, edge, weights = "", 0, 0, 0, 0, 0
    boundary = set[str]()
    for op in graph.ops:
        if op.resident:
            continue
        touched = (*op.reads, *(t.name for t in op.outputs))
        roots = {graph.storage_root[value] for value in touched if not graph.on_resident(value)}
        shared = _takeable_bytes(graph, op)
        whole = sum(size[root] for root in roots) - shared + op.workspace
        if any(t.name in values for t in op.outputs):
            boundary |= set() if op.phase == "backward" else roots - values
            if whole > needed:
                tail, needed, divisible = op.name, whole, max(0, large(roots) - shared)
            continue
        leaving = large({graph.storage_root[value] for value in op.reads})
        if not leaving:
            rest = max(rest, whole)
        elif op.phase == "backward":
            edge = max(edge, leaving)
            weights += sum(t.nbytes for t in op.outputs if work.component[t.name] == "gradients")
    resident = sum(work.residents.values())
    around = sum(size[root] for root in boundary) * (2 if any(op.phase == "backward" for op in graph.ops) else 1)
    update, _step = work.update_floor() or (0, None)
    rest = max(resident + rest, update)
    return Tail(tail, resident + needed, divisible, around, resident, edge, weights, rest, _rows(graph, values))


def _rows(graph: Graph, tail: set[str]) -> int | None:
    """The number of labels; without labels, the extent of the tail's largest value but for its last axis."""
    makers = (graph.producer[value] for value in tail)
    read = {value for op in makers if op.phase != "backward" for value in op.reads if value not in tail}
    labels = [t for t in map(graph.tensors.__getitem__, read) if t.shape is not None and not is_float(t.dtype)]
    if labels:
        return max(math.prod(t.shape or ()) for t in labels)
    return max((math.prod(shape[:-1]) for value in tail if (shape := graph.tensors[value].shape)), default=None)


def _takeable_bytes(graph: Graph, op: Op) -> int:
    """The most bytes that one in-place pair could save."""
    sizes = [0]
    for i, o, _ in op.inplace:
        given = graph.storage_root[op.reads[i]]
        if not graph.on_resident(given) and graph.tensors[given].nbytes == op.outputs[o].nbytes:
            sizes.append(op.outputs[o].nbytes)
    return max(sizes)
