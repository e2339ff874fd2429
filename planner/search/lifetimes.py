"""A graph for the retention kernels: its storages as lifetimes of values, and one sequence of runs in their arrays."""

from __future__ import annotations

import numpy as np

from planner.analysis.arrays import Arrays, Flags, Ints
from planner.kernels.anneal.runs import load, save
from planner.kernels.anneal.state import Figures, Model, figures, new_state


def model_of(arrays: Arrays, *, pinned: bool) -> Model:
    """What the kernels need of a graph.

    A view has no bytes, and whoever reads it also reads the value that owns its storage. An update runs once, after
    every run of those that read an older version. Of several in-place permissions for one output the first is counted,
    on values without views.

    Args:
        pinned: first runs keep the program's order.
    """
    n, m = len(arrays.cost), len(arrays.producer)
    runs = ~arrays.resident
    aliased = arrays.alias >= 0
    rows = np.flatnonzero(runs).tolist()
    reads = [_reads(arrays, op, aliased) if runs[op] else {} for op in range(n)]
    after: list[list[int]] = [[] for _ in range(n)]
    for op in rows:
        before = arrays.after_op[arrays.after_ptr[op] : arrays.after_ptr[op + 1]]
        after[op] = before[runs[before]].tolist()
    killers = killers_of(arrays, rows)
    updates = set(arrays.producer[arrays.is_update].tolist())
    orders = zip(after, _turned(after, n), killers, _turned(killers, n), strict=True)
    neighbours = np.full((2, n), -1)
    if pinned:
        neighbours[0, rows[1:]] = rows[:-1]
        neighbours[1, rows[:-1]] = rows[1:]
    kept = arrays.is_output & runs[arrays.producer]
    kept[arrays.root[kept]] |= runs[arrays.producer[arrays.root[kept]]]
    once = ~arrays.recomputable | (np.diff(arrays.out_ptr) == 0)
    once[list(updates)] = True
    read_ptr, read_value = _rows([list(some) for some in reads])
    reader_ptr, reader_op = _rows(_turned([list(some) for some in reads], m))
    order_ptr, order_op = _rows([some for four in orders for some in four])
    return Model(
        out_ptr=arrays.out_ptr,
        nbytes=np.where(aliased | ~runs[arrays.producer], 0, arrays.storage_bytes),
        kept=kept,
        read_ptr=read_ptr,
        reads=np.stack((read_value, _rows([list(some.values()) for some in reads])[1]), axis=1),
        reader_ptr=reader_ptr,
        reader_op=reader_op,
        order_ptr=order_ptr,
        order_op=order_op,
        cost=arrays.cost,
        workspace=arrays.workspace,
        once=once,
        neighbours=neighbours,
    )


def _reads(arrays: Arrays, op: int, aliased: Flags) -> dict[int, int]:
    """Values live while an op runs, each with the bytes of the output that takes its place where it dies."""
    inputs = arrays.read_value[arrays.read_ptr[op] : arrays.read_ptr[op + 1]].tolist()
    roots = arrays.root[inputs].tolist() if inputs else []
    saved = {v: 0 for v in (*inputs, *roots) if not arrays.resident[arrays.producer[v]]}
    granted: set[int] = set()
    permitted: dict[int, set[int]] = {}
    for pair in range(arrays.pair_ptr[op], arrays.pair_ptr[op + 1]):
        permitted.setdefault(int(arrays.out_ptr[op] + arrays.pair_out[pair]), set()).add(int(arrays.pair_in[pair]))
    for pair in range(arrays.pair_ptr[op], arrays.pair_ptr[op + 1]):
        v, out = inputs[arrays.pair_in[pair]], int(arrays.out_ptr[op] + arrays.pair_out[pair])
        here = {k for k, value in enumerate(inputs) if value == v}
        lawful = v in saved and not saved[v] and here <= permitted[out] and out not in granted
        if lawful and not aliased[v] and not aliased[out] and arrays.raw_bytes[v] == arrays.raw_bytes[out]:
            saved[v] = int(arrays.storage_bytes[out])
            granted.add(out)
    return saved


def killers_of(arrays: Arrays, rows: list[int]) -> list[list[int]]:
    """For each op, the ops that overwrite something it reads; `rows` are ops in the program's order."""
    killers: list[list[int]] = [[] for _ in range(len(arrays.cost))]
    names: dict[int, list[int]] = {}  # readers of the names on each storage so far
    overwritten = set(arrays.root[arrays.is_update].tolist())
    for op in rows if overwritten else ():
        inputs = arrays.read_value[arrays.read_ptr[op] : arrays.read_ptr[op + 1]].tolist()
        taken = {int(arrays.root[v]) for v in range(arrays.out_ptr[op], arrays.out_ptr[op + 1]) if arrays.is_update[v]}
        for storage in taken:
            for reader in dict.fromkeys(names.get(storage, ())):
                killers[reader].append(op)
            names[storage] = []
        for storage in dict.fromkeys(int(arrays.root[v]) for v in inputs):
            if storage in overwritten and storage not in taken:
                names.setdefault(storage, []).append(op)
    return killers


def _turned(lists: list[list[int]], count: int) -> list[list[int]]:
    turned: list[list[int]] = [[] for _ in range(count)]
    for row, items in enumerate(lists):
        for item in items:
            turned[item].append(row)
    return turned


def _rows(lists: list[list[int]]) -> tuple[Ints, Ints]:
    """Lists as CSR."""
    pointers = np.zeros(len(lists) + 1, dtype=np.int64)
    np.cumsum([len(items) for items in lists], out=pointers[1:])
    return pointers, np.array([item for items in lists for item in items], dtype=np.int64)


class Runs:
    """The state of the kernels, as `new_state` makes it: one sequence of runs, and the best so far."""

    def __init__(self, model: Model, *, most_runs: int, random: int) -> None:
        self.most_runs = most_runs
        self.state, self.fields = new_state(model, most_runs, random)

    @property
    def now(self) -> Figures:
        """Cost and bytes above the budget, of the sequence and of the best."""
        return figures(self.state)

    def load(self, sequence: Ints, budget: int) -> None:
        """Start from a legal sequence, the best so far."""
        load(self.state, sequence, budget)
        save(self.state)

    def best(self) -> Ints:
        """Op rows of the best sequence."""
        best: Ints = self.fields["best"][: self.now.best_length].copy()
        return best

    def sequence(self) -> Ints:
        """Op rows of the sequence, which is from now on the best."""
        save(self.state)
        return self.best()


def first_word(seed: int) -> int:
    """The word from which the random numbers of a seed start."""
    return int(np.random.default_rng(seed % 2**64).integers(1, 2**63))
