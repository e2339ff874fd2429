"""Make sequences of ops obey a policy: none of the chosen ops' values waits for the backward pass."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from planner.analysis.arrays import Flags, Ints
from planner.analysis.evaluator import Evaluator
from planner.kernels.mark_rerun import mirror, read_runs
from planner.policy.check import forward_ops


class AppliedProgram:
    """A program whose sequences of ops can be made to obey, for any set of ops to recompute."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator = evaluator
        self.forward = forward_ops(evaluator.graph)
        self._in_forward = self._flags(self.forward)

    def _flags(self, names: Iterable[str]) -> Flags:
        flags = np.zeros(len(self.evaluator.encoded.op_names), dtype=np.bool_)
        flags[[self.evaluator.encoded.op_index[name] for name in names]] = True
        return flags

    def obeyed(self, sequence: Ints, rerun: frozenset[str]) -> Ints:
        """The sequence, with a rerun wherever a value would wait, and without reruns that nothing reads."""
        arrays = self.evaluator.encoded.arrays
        marked = self._flags(rerun)
        result = np.empty(len(sequence) + len(rerun) + 1, dtype=np.int64)
        length = mirror(arrays, sequence, marked, self._in_forward, result)
        if length > len(result):
            result = np.empty(length, dtype=np.int64)
            mirror(arrays, sequence, marked, self._in_forward, result)
        read, newest = np.empty(len(arrays.producer), np.bool_), np.empty(len(marked), np.int64)
        keep = np.empty(length, dtype=np.bool_)
        read_runs(arrays, result[:length], read, newest, keep)
        return result[:length][keep]

    def must_rerun(self, rerun: Iterable[str]) -> list[str]:
        """Ops that every obedient plan runs again: an op outside the forward part reads them, or such a rerun does."""
        graph = self.evaluator.graph
        wanted: set[str] = set()
        marked = set(rerun)
        for op in reversed(graph.ops):
            if op.name in wanted or (op.name not in self.forward and not op.resident):
                wanted.update({graph.producer[value].name for value in op.reads} & marked)
        return [op.name for op in graph.ops if op.name in wanted]
