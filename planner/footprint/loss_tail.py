"""The loss tail: logits, what the loss makes of them, and their gradients; what splitting it into chunks would
leave.
"""

from __future__ import annotations

import math
from typing import Final, Optional

import msgspec

from planner.footprint.components import Simulated
from planner.graph import Graph, Op
from planner.lowering.operators.lookup import is_float

_SCALAR_BYTES: Final = 8


class Tail(msgspec.Struct, frozen=True):
    """What recomputation cannot go below in the loss tail, and what splitting it would leave.

    Args:
        op: the op of the tail with the largest working set.
        needed_bytes: what it needs by itself, residents included.
        divisible_bytes: of these, what becomes 1/k in k chunks of the rows.
        boundary_bytes: what the tail reads, and its gradient, which stay whole.
        resident_bytes: residents.
        edge_bytes: what becomes 1/k of the gradient that leaves the tail.
        weight_gradients_bytes: of the parameters whose product with it is summed over chunks.
        rest_bytes: what the ops outside the tail, and the update, need at least.
        rows: that can be told apart, and so the most chunks; None where no shape says it.
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

        The sum of the weight gradients so far is live throughout, and beside it that of one chunk while its gradient
        leaves the tail.
        """
        whole, weights = (
            self.resident_bytes + self.boundary_bytes + self.weight_gradients_bytes,
            self.weight_gradients_bytes,
        )
        return max(
            whole + -(-self.divisible_bytes // chunks), whole + -(-self.edge_bytes // chunks) + weights, self.rest_bytes
        )


def loss_tail(work: Simulated) -> Tail | None:
    """The op of the loss tail with the largest working set, and what of it would divide; None for a graph without
    one.
    """
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
        roots = {
            graph.storage_root[value]
            for value in (*op.reads, *(t.name for t in op.outputs))
            if not graph.on_resident(value)
        }
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
    return Tail(
        tail,
        resident + needed,
        divisible,
        around,
        resident,
        edge,
        weights,
        max(resident + rest, update),
        _rows(graph, values),
    )


def _rows(graph: Graph, tail: set[str]) -> int | None:
    """As many as the loss has labels; without labels, as the largest value of the tail has beside its last axis."""
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
