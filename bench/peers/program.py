"""A `rematgraph-1` as arrays: memory model M1, one value an op."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


class Program(NamedTuple):
    """n ops in program order; op k makes value k.

    Args:
        cost, nbytes [n]: of op and value.
        read_ptr [n+1], reads: CSR of the values each op reads.
        reader_ptr [n+1], readers: CSR of the ops that read each value, in program order.
        backward [n], or None where the graph has no backward pass.
    """

    cost: Floats
    nbytes: Ints
    read_ptr: Ints
    reads: Ints
    reader_ptr: Ints
    readers: Ints
    backward: Flags | None

    @property
    def ops(self) -> int:
        return len(self.cost)


def program_of(parts: dict[str, Any]) -> Program:
    """The arrays of a graph.

    >>> pair = {"n": 2, "cost": [1, 2], "mem": [3, 4], "edges": [[0, 1]], "bwd": None}
    >>> program_of(pair).reads, program_of(pair).reader_ptr
    (array([0]), array([0, 1, 1]))
    """
    n = parts["n"]
    edges = np.array(parts["edges"], dtype=np.int64).reshape(-1, 2)
    read_ptr, reads = _grouped(edges[:, 1], edges[:, 0], n)
    reader_ptr, readers = _grouped(edges[:, 0], edges[:, 1], n)
    backward = None if parts["bwd"] is None else np.array(parts["bwd"], dtype=np.bool_)
    return Program(
        np.array(parts["cost"], np.float64),
        np.array(parts["mem"], np.int64),
        read_ptr,
        reads,
        reader_ptr,
        readers,
        backward,
    )


def _grouped(keys: Ints, values: Ints, n: int) -> tuple[Ints, Ints]:
    pointers = np.zeros(n + 1, dtype=np.int64)
    np.cumsum(np.bincount(keys, minlength=n), out=pointers[1:])
    return pointers, values[np.lexsort((values, keys))]


def peak_of(program: Program, sequence: list[int]) -> int:
    """Most live bytes of a sequence of ops: each value lives to its last read before it is made again."""
    made: dict[int, int] = {}
    last_read = list(range(len(sequence)))
    for t, op in enumerate(sequence):
        for v in program.reads[program.read_ptr[op] : program.read_ptr[op + 1]].tolist():
            last_read[made[v]] = t
        made[op] = t
    change = [0] * (len(sequence) + 1)
    for t, op in enumerate(sequence):
        change[t] += int(program.nbytes[op])
        change[last_read[t] + 1] -= int(program.nbytes[op])
    return max(itertools.accumulate(change))
