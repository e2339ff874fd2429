"""The program in other orders of first runs: what frees more than it makes goes early, what makes more goes late."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple, final

import msgspec
import numpy as np

from planner.analysis.arrays import Ints
from planner.analysis.evaluator import Evaluator, evaluator_of
from planner.graph import Graph
from planner.problem import Problem, Proposal
from planner.search.cuts import cuts
from planner.search.lifetimes import killers_of


class Reordered(NamedTuple):
    """The program in another order, in which it takes less; a schedule of it is one of the program."""

    graph: Graph
    peak_bytes: int

    def cuts(self, problem: Problem) -> Proposal:
        """Strategy "cuts" on the program in this order."""
        return cuts(msgspec.structs.replace(problem, graph=self.graph))


def reordered(problem: Problem) -> Reordered | None:
    """The order of least peak; None where none goes below the program's own, or the order is pinned."""
    if problem.order == "pinned":
        return None
    return _least_order(problem.graph, evaluator_of(problem.graph, problem.memory))


@lru_cache(maxsize=4)
def _least_order(graph: Graph, evaluator: Evaluator) -> Reordered | None:
    """`reordered` of a graph; the last few are kept, as every search of a call asks for it."""
    once = evaluator.evaluate(evaluator.keep_all)
    if once is None:
        return None
    least, best = once[0], None
    for rows in _orders(evaluator):
        outcome = evaluator.evaluate(rows)
        if outcome is not None and outcome[0] < least:
            least, best = outcome[0], rows
    if best is None:
        return None
    residents = [op for op in graph.ops if op.resident]
    names = evaluator.encoded.op_names
    ordered = [graph.op_named[names[row]] for row in best.tolist()]
    return Reordered(Graph([*residents, *ordered], name=graph.name), least)


def _orders(evaluator: Evaluator) -> Iterator[Ints]:
    """Early, late, and early after late."""
    program = evaluator.keep_all.tolist()
    early = _Order(evaluator, program).early()
    late = _Order(evaluator, program).late()
    for rows in (early, late, _Order(evaluator, late).early()):
        yield np.array(rows, dtype=np.int64)


@final
class _Order:
    """One pass over a program, op by op."""

    def __init__(self, evaluator: Evaluator, program: list[int]) -> None:
        arrays = evaluator.encoded.arrays
        self.program = program
        n = len(arrays.cost)
        runs = set(program)
        size = arrays.storage_bytes.tolist()
        root, producer = arrays.root.tolist(), arrays.producer.tolist()
        self.waits: list[set[int]] = [set() for _ in range(n)]  # ops that must run before
        self.followers: list[list[int]] = [[] for _ in range(n)]
        self.touched: list[set[int]] = [set() for _ in range(n)]  # storages read, residents apart
        self.readers: dict[int, set[int]] = {}  # by storage, ops that have not read it yet
        self.size = size
        self.kept = {root[v] for v in np.flatnonzero(arrays.is_output).tolist()}
        self.made_bytes = [0] * n
        killers = killers_of(arrays, program)
        for op in program:
            inputs = arrays.read_value[arrays.read_ptr[op] : arrays.read_ptr[op + 1]].tolist()
            after = arrays.after_op[arrays.after_ptr[op] : arrays.after_ptr[op + 1]].tolist()
            before = {producer[v] for v in inputs} | {producer[root[v]] for v in inputs} | set(after)
            self.waits[op] |= (before & runs) - {op}
            for killer in killers[op]:
                self.waits[killer].add(op)
            self.touched[op] = {root[v] for v in inputs if producer[root[v]] in runs}
            for storage in self.touched[op]:
                self.readers.setdefault(storage, set()).add(op)
            outs = range(int(arrays.out_ptr[op]), int(arrays.out_ptr[op + 1]))
            self.made_bytes[op] = sum(size[v] for v in outs if root[v] == v)
        for op in program:
            for before_op in self.waits[op]:
                self.followers[before_op].append(op)
        self.done = [False] * n
        self.order: list[int] = []

    def frees(self, op: int) -> int:
        """Bytes that its run frees, less those that it makes."""
        last = (s for s in self.touched[op] if s not in self.kept and len(self.readers[s]) == 1)
        return int(sum(self.size[s] for s in last) - self.made_bytes[op])

    def run(self, op: int) -> list[int]:
        """Run an op; returns ops that may now be ready, or free more than before."""
        self.done[op] = True
        self.order.append(op)
        changed = list(self.followers[op])
        for storage in self.touched[op]:
            left = self.readers[storage]
            left.discard(op)
            if len(left) == 1:
                changed += left
        return changed

    def early(self) -> list[int]:
        """Each op as soon as it is ready and frees as much as it makes; the others in the program's order."""
        for op in self.program:
            waiting = [] if self.done[op] else self.run(op)
            while waiting:
                other = waiting.pop()
                ready = not self.done[other] and all(self.done[before] for before in self.waits[other])
                if ready and self.frees(other) >= 0 and self.touched[other]:
                    waiting += self.run(other)
        return self.order

    def late(self) -> list[int]:
        """Each op that makes more than it frees when an op is run that needs it; the others in the program's order."""
        place = {op: k for k, op in enumerate(self.program)}
        for op in self.program:
            if self.done[op] or (self.frees(op) < 0 and self.followers[op]):
                continue
            needed: set[int] = set()
            waiting = [op]
            while waiting:
                one = waiting.pop()
                if one not in needed:
                    needed.add(one)
                    waiting += [before for before in self.waits[one] if not self.done[before]]
            for one in sorted(needed, key=place.__getitem__):
                self.run(one)
        return self.order + [op for op in self.program if not self.done[op]]
