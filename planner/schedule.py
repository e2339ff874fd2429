"""A schedule: what runs, what is freed, in order; and rule 11, which makes one of a sequence of ops.

Legality is the judge's verdict, not a property of the type.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Union

import msgspec

if TYPE_CHECKING:
    from planner.graph import Graph, Op, Tensor


class Compute(msgspec.Struct, frozen=True, array_like=True, tag="compute"):
    """Run op `op`: makes a new instance of each of its outputs that is not live."""

    op: str


class Free(msgspec.Struct, frozen=True, array_like=True, tag="free"):
    """Drop the live instance of `value`, after the step before it."""

    value: str


Step = Union[Compute, Free]


class Schedule(msgspec.Struct, frozen=True):
    """An immutable list of steps: countable, comparable, hashable, JSON.

    >>> schedule = Schedule.of([Compute("a"), Compute("b"), Free("a")])
    >>> len(schedule), schedule.computes
    (3, ('a', 'b'))
    >>> print(schedule)
    a
    b; free a
    """

    steps: tuple[Step, ...]

    @classmethod
    def of(cls, steps: Iterable[Step]) -> Schedule:
        """A schedule of any iterable of steps."""
        return cls(tuple(steps))

    @property
    def computes(self) -> tuple[str, ...]:
        """Ops in the order they run, repeats included."""
        return tuple(step.op for step in self.steps if isinstance(step, Compute))

    def __len__(self) -> int:
        return len(self.steps)

    def __str__(self) -> str:
        lines: list[str] = []
        for step in self.steps:
            if isinstance(step, Compute):
                lines.append(step.op)
            elif lines:
                lines[-1] += f"{',' if '; free' in lines[-1] else '; free'} {step.value}"
            else:
                lines.append(f"; free {step.value}")
        return "\n".join(lines)


def keep_all(graph: Graph) -> Schedule:
    """Rule 1, the baseline without recomputation: the program order with canonical frees.

    >>> from planner.graph import Graph, Op, Tensor
    >>> graph = Graph([Op("a", (Tensor("a", 4),)), Op("b", (Tensor("b", 2, output=True),), reads=("a",))])
    >>> print(keep_all(graph))
    a
    b; free a
    """
    return canonical(graph, [op.name for op in graph.ops if not op.resident])


def canonical(graph: Graph, ops: Sequence[str]) -> Schedule:
    """Rule 11: a sequence of ops with each value freed right after its last read before its op runs again.

    Outputs keep their last instance, and a value that nobody reads is freed right after its op. A resident and its
    newest version are never freed, nor is a name that an update drops (rule 7). The sequence is not checked.

    Args:
        ops: names in the order they run, repeats included.
    """
    needed = {tensor.name for op in graph.ops for tensor in op.outputs if tensor.output}
    frees: list[list[str]] = []
    for name in reversed(ops):
        op = graph.op_named[name]
        outputs = [tensor.name for tensor in op.outputs]
        freed = [value for value in outputs if value not in needed]
        needed.difference_update(outputs)
        freed += [value for value in dict.fromkeys(op.reads) if value not in needed]
        needed.update(op.reads)
        frees.append(freed[::-1])
    names = _Names(graph)
    steps: list[Step] = []
    for name, freed in zip(ops, reversed(frees), strict=True):
        steps.append(Compute(name))
        steps.extend(Free(value) for value in names.run(graph.op_named[name], freed))
    return Schedule(tuple(steps))


class _Shared(NamedTuple):
    """A storage: its bytes, whether it is a resident's, and the names on it."""

    nbytes: int
    resident: bool
    names: set[str]


class _Names:
    """Which names are on which storage (rules 3 and 5 to 10), to know what an update drops."""

    def __init__(self, graph: Graph) -> None:
        self.on: dict[str, _Shared] = {}
        self.kept: set[str] = set()  # residents and their versions
        for op in graph.ops:
            for tensor in op.outputs if op.resident else ():
                self.on[tensor.name] = _Shared(tensor.nbytes, True, {tensor.name})
                self.kept.add(tensor.name)

    def run(self, op: Op, freed: list[str]) -> list[str]:
        """Run an op; returns which of `freed` are still to be freed after it."""
        inputs = [self.on.get(value) or _Shared(-1, False, set()) for value in op.reads]
        live = {tensor.name for tensor in op.outputs if tensor.name in self.on}
        taken = [inputs[i] for i, _ in op.updates]
        for storage in taken:
            for older in storage.names:
                self.on.pop(older, None)
            storage.names.clear()
        joins = [(i, o) for i, o in op.updates] + [(i, o) for i, o, _ in op.view]
        joined = {o for _, o in joins}
        for i, o, identity in op.inplace:
            if o in joined or op.outputs[o].name in live or _same(inputs[i], taken):
                continue
            if self._takes(op, i, op.outputs[o], identity=identity, inputs=inputs, freed=set(freed)):
                joins.append((i, o))
                joined.add(o)
                taken.append(inputs[i])
        self.kept.update(op.outputs[o].name for i, o in op.updates if inputs[i].resident)
        for i, o in joins:
            if op.outputs[o].name not in live:
                self._join(op.outputs[o].name, inputs[i])
        for o, tensor in enumerate(op.outputs):
            if o not in joined and tensor.name not in live:
                self._join(tensor.name, _Shared(tensor.nbytes, False, set()))
        gone = [value for value in freed if value in self.on and value not in self.kept]
        for value in gone:
            self.on.pop(value).names.discard(value)
        return gone

    def _takes(self, op: Op, i: int, output: Tensor, *, identity: bool, inputs: list[_Shared], freed: set[str]) -> bool:
        """Rule 10 for one pair, after what `run` has asked."""
        storage = inputs[i]
        if storage.resident or storage.nbytes != output.nbytes:
            return False
        permitted = {place for place, o, _ in op.inplace if op.outputs[o] is output}
        places = [place for place, other in enumerate(inputs) if other is storage]
        if any(place not in permitted or op.reads[place] != op.reads[i] for place in places):
            return False
        return (identity and output.name not in freed) or storage.names <= freed

    def _join(self, value: str, storage: _Shared) -> None:
        self.on[value] = storage
        storage.names.add(value)


def _same(storage: _Shared, others: list[_Shared]) -> bool:
    return any(storage is other for other in others)
