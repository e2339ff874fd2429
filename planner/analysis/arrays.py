"""The program as arrays, for kernels."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from planner.errors import GraphError
from planner.graph import Graph
from planner.kernels import Flags, Floats, Ints
from planner.kernels.csr import Arrays
from planner.memory import MemoryModel
from planner.units import MAX_BYTES

__all__ = [
    "BACKWARD", "FORWARD", "LOSS", "PHASES", "UPDATE", "Arrays", "Encoded", "Flags", "Floats", "Ints", "encode",
    "resident_bytes",
]  # fmt: skip

PHASES: Final = (None, "forward", "loss", "backward", "update")
FORWARD, LOSS, BACKWARD, UPDATE = 1, 2, 3, 4


class Encoded(NamedTuple):
    """A graph's arrays with the names of their rows.

    Args:
        arrays: see `Arrays`.
        op_index, value_index: row of each name.
        op_names, value_names: name of each row.
    """

    arrays: Arrays
    op_index: dict[str, int]
    value_index: dict[str, int]
    op_names: tuple[str, ...]
    value_names: tuple[str, ...]


def encode(graph: Graph, memory: MemoryModel) -> Encoded:
    """Arrays of a graph under a memory model.

    Raises:
        GraphError: sizes so large that a sum over one run of every op could overflow an int64 twice over.

    >>> from planner.graph import Op, Tensor
    >>> encode(Graph([Op("a", (Tensor("a", 700),))]), MemoryModel(alignment=512)).arrays.storage_bytes
    array([1024])
    """
    op_index = {op.name: k for k, op in enumerate(graph.ops)}
    value_index = {name: v for v, name in enumerate(graph.tensors)}
    alias = [-1] * len(value_index)
    is_update = [False] * len(value_index)
    pairs: list[tuple[int, int, bool]] = []
    for op in graph.ops:
        pairs.extend(op.inplace)
        for i, o, _offset in op.view:
            alias[value_index[op.outputs[o].name]] = i
        for i, o in op.updates:
            alias[value_index[op.outputs[o].name]] = i
            is_update[value_index[op.outputs[o].name]] = True
    tensors = list(graph.tensors.values())
    producer = _ints([op_index[op.name] for op in graph.producer.values()])
    root = _ints([value_index[name] for name in graph.storage_root.values()])
    resident = _flags([op.resident for op in graph.ops])
    rounded = [memory.round_up(t.nbytes) for t in tensors]
    if sum(rounded) + sum(op.workspace for op in graph.ops) > MAX_BYTES:
        raise GraphError(f"sizes rounded up to {memory.alignment} bytes add up to more than 2**62")
    arrays = Arrays(
        out_ptr=_pointers(len(op.outputs) for op in graph.ops),
        read_ptr=_pointers(len(op.reads) for op in graph.ops),
        read_value=_ints(value_index[value] for op in graph.ops for value in op.reads),
        after_ptr=_pointers(len(op.after) for op in graph.ops),
        after_op=_ints(op_index[name] for op in graph.ops for name in op.after),
        producer=producer,
        raw_bytes=_ints(t.nbytes for t in tensors),
        storage_bytes=_ints(rounded),
        alias=_ints(alias),
        is_update=_flags(is_update),
        is_output=_flags(t.output for t in tensors),
        never_freed=resident[producer[root]] & (resident[producer] | _flags(is_update)),
        root=root,
        pair_ptr=_pointers(len(op.inplace) for op in graph.ops),
        pair_in=_ints(pair[0] for pair in pairs),
        pair_out=_ints(pair[1] for pair in pairs),
        pair_identity=_flags(pair[2] for pair in pairs),
        cost=np.array([op.cost for op in graph.ops], dtype=np.float64),
        workspace=_ints(op.workspace for op in graph.ops),
        recomputable=_flags(op.recomputable for op in graph.ops),
        resident=resident,
        phase=_ints(PHASES.index(op.phase) for op in graph.ops),
        resident_bytes=_ints([resident_bytes(graph, memory)]),
    )
    return Encoded(arrays, op_index, value_index, tuple(op_index), tuple(value_index))


def resident_bytes(graph: Graph, memory: MemoryModel) -> int:
    """What residents add to every step: 0 in scope "activations"."""
    if memory.scope != "total":
        return 0
    return sum(memory.round_up(t.nbytes) for op in graph.ops if op.resident for t in op.outputs)


def _ints(items: Any) -> Ints:
    return np.fromiter(items, dtype=np.int64)


def _flags(items: Any) -> Flags:
    return np.fromiter(items, dtype=np.bool_)


def _pointers(counts: Any) -> Ints:
    return np.concatenate(([0], np.cumsum(np.fromiter(counts, dtype=np.int64)))).astype(np.int64)
