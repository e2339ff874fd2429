"""Which outputs take over the storage of an input: rule 10 of the memory rules, read for itself.

No code is shared with the judge, the kernels and the packers: what they misunderstand together comes out as wrong
bytes.
"""

from __future__ import annotations

from planner.graph import Graph, Op, Tensor
from planner.schedule import Compute, Schedule


def inplace_pairs(graph: Graph, schedule: Schedule, freed: list[set[str]]) -> list[dict[int, int]]:
    """For each step, output -> input whose storage it takes over, if every lawful pair happens.

    Args:
        freed: `freed_after(schedule)`.
    """
    names = _Names(graph)
    found: list[dict[int, int]] = []
    for step, dying in zip(schedule.steps, freed, strict=True):
        pairs: dict[int, int] = {}
        if isinstance(step, Compute):
            pairs = names.run(graph.op_named[step.op], dying)
        else:
            names.free(step.value)
        found.append(pairs)
    return found


class _Names:
    """Names on each storage; storages are numbered."""

    def __init__(self, graph: Graph) -> None:
        self._sizes: dict[int, int] = {}  # bytes of storages that may be taken over; residents may not
        self._names: list[set[str]] = []
        self._on: dict[str, int] = {}
        for op in graph.ops:
            for tensor in op.outputs if op.resident else ():
                self._put(tensor.name, self._new())

    def free(self, value: str) -> None:
        """Take a name off its storage."""
        if value in self._on:
            self._names[self._on[value]].discard(value)

    def run(self, op: Op, freed: set[str]) -> dict[int, int]:
        """Give names to the outputs of an op; output -> input whose storage it takes over."""
        under = [self._on[value] for value in op.reads if value in self._on]
        if len(under) < len(op.reads):
            return {}  # the machine says which value is missing
        kept = {o for o, tensor in enumerate(op.outputs) if self._is_live(tensor.name)}
        taken = {under[i] for i, _ in op.updates}
        for number in taken:
            self._names[number].clear()
        settled = set(kept)
        for i, o, *_ in (*op.updates, *op.view):
            if o not in kept:
                self._put(op.outputs[o].name, under[i])
            settled.add(o)
        readers: dict[int, list[int]] = {}
        for j, number in enumerate(under if op.inplace else ()):
            readers.setdefault(number, []).append(j)
        permitted = {(i, o) for i, o, _ in op.inplace}
        pairs: dict[int, int] = {}
        for i, o, identity in op.inplace:
            if o in settled or under[i] in taken:
                continue
            alone = all(op.reads[j] == op.reads[i] and (j, o) in permitted for j in readers[under[i]])
            if alone and self._may_take(under[i], op.outputs[o], identity, freed):
                pairs[o] = i
                taken.add(under[i])
                settled.add(o)
                self._put(op.outputs[o].name, under[i])
        for o, tensor in enumerate(op.outputs):
            if o not in settled:
                number = self._new()
                self._sizes[number] = tensor.nbytes
                self._put(tensor.name, number)
        return pairs

    def _may_take(self, number: int, output: Tensor, identity: bool, freed: set[str]) -> bool:
        """True if bytes are equal and every name on the storage dies, or the pair is an identity that lives on."""
        if self._sizes.get(number) != output.nbytes:
            return False
        return self._names[number] <= freed or (identity and output.name not in freed)

    def _is_live(self, value: str) -> bool:
        return value in self._on and value in self._names[self._on[value]]

    def _new(self) -> int:
        self._names.append(set())
        return len(self._names) - 1

    def _put(self, value: str, number: int) -> None:
        self._on[value] = number
        self._names[number].add(value)


def freed_after(schedule: Schedule) -> list[set[str]]:
    """For each Compute, the values freed before the next one."""
    found: list[set[str]] = []
    freed: set[str] = set()
    for step in schedule.steps:
        if isinstance(step, Compute):
            freed = set()
        else:
            freed.add(step.value)
        found.append(freed)
    return found
