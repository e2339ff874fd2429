"""Runs any plan on real bytes in one numpy arena, and holds every byte to a plain run without a plan.

The judge counts; this executor acts. Every op mixes the bytes of its inputs into those of its outputs, frees poison,
in-place pairs, views and updates really alias, workspace is really overwritten. Where the bytes of a value differ from
those of `reference`, the plan is wrong. It finds every buffer by its key in the `Allocation` and reads the memory rules
for itself: it shares no code with the judge, the kernels and the packers, so that what they misunderstand together
comes out as wrong bytes here.

Offsets of views count from the start of the storage. A value's window of its storage ends where the storage does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import numpy as np

from planner.errors import PlannerError, VerificationError
from planner.executors.inplace import freed_after, inplace_pairs
from planner.executors.mixing import Bytes, Mixer, identical, random_words
from planner.executors.reference import Contents, reference
from planner.executors.windows import Instance, Layout, Storage
from planner.graph import Graph, Op
from planner.memory import Allocation
from planner.schedule import Compute, Schedule, Step

_CANARY: Final = 0xC3
_NOISE_SHIFTS: Final = 61


@final
@dataclass(frozen=True)
class Execution:
    """A run whose every byte was right.

    Args:
        scale: what sizes were divided by.
        arena_bytes: of the numpy arena, residents included, after scaling.
        computes: Compute steps run.
        checks: times the bytes of a value were held to the reference: when made, at each read, and at the end.
    """

    scale: int
    arena_bytes: int
    computes: int
    checks: int


def execute(
    graph: Graph, schedule: Schedule, allocation: Allocation, *, scale: int = 1, expected: Contents | None = None
) -> Execution:
    """Run a schedule in one arena at the allocation's offsets; every value must be what a plain run makes it.

    An op damages the buffers of its new outputs and its workspace before it reads, so that one lying over a live input
    shows. Bytes are all that is judged. What leaves no trace in them is left to `simulate`: order-only edges, ops
    without outputs that never run, a name read after its free while another name holds its storage, alignment, the
    stated lifetimes of buffers, the budget.

    Args:
        scale: sizes are divided by it and rounded up, so that no size becomes 0. Addresses keep their order, and two
            buffers that overlap by a byte still overlap: a scaled run finds every wrong step and offset that a full
            run finds (each may miss bytes that are equal by chance, one in 256). Inside a storage it sees nothing
            finer than `scale` bytes: an offset of a view that is off by less may fall on the same byte.
        expected: `reference(graph, scale=scale)`, to run many plans of a graph.
    Raises:
        VerificationError: names the value whose bytes differ, who found it, and the step that damaged it; or a missing
            buffer.
        GraphError: as `reference`.
        PlannerError: a scale below 1.

    >>> from planner.graph import Tensor
    >>> from planner.memory import Buffer
    >>> from planner.schedule import Free
    >>> graph = Graph([Op("a", (Tensor("a", 4),)), Op("b", (Tensor("b", 8, output=True),), reads=("a",))])
    >>> a, b = Buffer("a", 0, False, 4, 0, 2, 0), Buffer("b", 0, False, 8, 1, 2, 4)
    >>> steps = Schedule.of([Compute("a"), Compute("b"), Free("a")])
    >>> execute(graph, steps, Allocation((a, b), 0, 12, "by hand"))
    Execution(scale=1, arena_bytes=12, computes=2, checks=4)
    """
    if scale < 1:
        raise PlannerError(f"scale {scale} is not a number >= 1")
    for index, step in enumerate(schedule.steps):
        if isinstance(step, Compute) and (step.op not in graph.op_named or graph.op_named[step.op].resident):
            raise VerificationError(f"step {index}: {step.op!r} is no op that can run")
    if expected is None:
        expected = reference(graph, scale=scale)
    machine = _Machine(graph, schedule, allocation, scale, expected)
    try:
        return machine.run()
    except _Difference as found:
        raise VerificationError(_explained(found, _Machine(graph, schedule, allocation, scale, expected))) from None


class _Difference(Exception):
    """The bytes of an instance differ from the reference; `step` is None at the end."""

    def __init__(self, instance: Instance, step: int | None, verb: str) -> None:
        super().__init__(verb)
        self.instance, self.step, self.verb = instance, step, verb


class _Machine:
    """One arena, and what lies where in it."""

    def __init__(
        self, graph: Graph, schedule: Schedule, allocation: Allocation, scale: int, expected: Contents
    ) -> None:
        self.graph, self.schedule, self.expected = graph, schedule, expected
        self.layout = Layout(graph, allocation, scale)
        self.mixer = Mixer(max((tensor.nbytes for tensor in graph.tensors.values()), default=0), scale)
        self.arena: Bytes = np.full(self.layout.arena_bytes, 0xCD, dtype=np.uint8)
        # Odd noise changes every byte it is added to.
        self.noise: Bytes = random_words(2**13).view(np.uint8) | np.uint8(1)
        self.spoils = self.checks = 0
        self.located: dict[str, Instance] = {}
        self.runs: dict[str, int] = {}
        self.watched: Instance | None = None
        for op in graph.ops:
            for o, tensor in enumerate(op.outputs if op.resident else ()):
                storage = self.layout.storage(tensor.name, -1)
                assert storage is not None
                self._write(storage, self.mixer.mixed(op, o, storage.size, ()))
                storage.names.add(tensor.name)
                self.located[tensor.name] = Instance(tensor.name, storage, 0, storage.size, -1)

    def run(self) -> Execution:
        """Run all steps, then check the values that must be there at the end."""
        computes = 0
        freed = freed_after(self.schedule)
        pairs = inplace_pairs(self.graph, self.schedule, freed)
        for index, step in enumerate(self.schedule.steps):
            if isinstance(step, Compute):
                computes += 1
                self._compute(index, self.graph.op_named[step.op], pairs[index], freed[index])
            else:
                self._free(index, step.value)
            if self.watched is not None and self.watched.made < index:
                self._check(self.watched, index, "leaves")
        self._check_end()
        return Execution(self.layout.scale, len(self.arena), computes, self.checks)

    def _compute(self, index: int, op: Op, pairs: dict[int, int], freed: set[str]) -> None:
        """Run one op: spoil its targets, check and read its inputs, write, name and check its outputs."""
        run = self.runs.get(op.name, 0)
        self.runs[op.name] = run + 1
        inputs = [self._located(index, op, value) for value in op.reads]
        kept = {tensor.name for tensor in op.outputs if self._is_live(tensor.name)}
        own, taken = self._targets(op, run, inputs, kept, pairs)
        scratch = self.layout.storage(op.name, run, workspace=True)
        if scratch is None and op.workspace:
            raise VerificationError(f"workspace of {op.name!r}, execution {run}, has no buffer")
        for storage in (*own.values(), scratch):
            self._spoil(storage)
        for instance in inputs:
            self._check(instance, index, "reads")
        results = self._results(op, run, inputs, own | taken)
        for o, storage in (own | taken).items():
            self._write(storage, results[o])
        for i, o in op.updates:
            self._content(inputs[i])[:] = results[o]
        self._spoil(scratch, again=True)
        made = self._made(index, op, inputs, own | taken)
        for i, _ in op.updates:
            inputs[i].storage.names.clear()
        for instance in made:
            if instance.value not in kept:
                self.located[instance.value] = instance
                instance.storage.names.add(instance.value)
        passing = {op.outputs[o].name for _, o, _ in op.view} & (freed | kept)
        for instance in made:
            # A view that nobody will read may lie on a storage that is taken over already.
            if instance.value not in passing or instance.storage not in taken.values():
                self._check(instance, index, "makes")
        for storage in (*own.values(), *(inputs[i].storage for i, _ in op.updates)):
            self._release(storage)

    def _targets(
        self, op: Op, run: int, inputs: list[Instance], kept: set[str], pairs: dict[int, int]
    ) -> tuple[dict[int, Storage], dict[int, Storage]]:
        """Where outputs go that are neither views nor updates: to own buffers, or to storages they take over."""
        own: dict[int, Storage] = {}
        taken: dict[int, Storage] = {}
        aliased = {o for _, o, *_ in (*op.updates, *op.view)}
        for o, tensor in enumerate(op.outputs):
            if o in aliased:
                continue
            storage = self.layout.storage(tensor.name, run)
            if storage is not None:
                own[o] = storage
                continue
            # A packer that left out the buffer meant a pair, perhaps an unlawful one: the bytes will tell.
            size = self.mixer.size(tensor.nbytes)
            unlawful = (i for i, out, _ in op.inplace if out == o and inputs[i].storage.size == size)
            i = pairs.get(o, next(unlawful, None))
            if tensor.name in kept or i is None:
                missing = "has no buffer, and no in-place input to lie on"
                raise VerificationError(f"{tensor.name!r}, execution {run}, {missing}")
            taken[o] = inputs[i].storage
        return own, taken

    def _results(self, op: Op, run: int, inputs: list[Instance], targets: dict[int, Storage]) -> dict[int, Bytes]:
        """New bytes of every output but views, from the bytes that lie in the arena now."""
        digests = [self.mixer.digest(self._content(instance)) for instance in inputs]
        results = {o: self.mixer.mixed(op, o, inputs[i].hi - inputs[i].lo, digests, run=run) for i, o in op.updates}
        for o in targets:
            same = identical(self.graph, op, o)
            if same:
                source = inputs[same[0]].storage
                results[o] = self.arena[source.start : source.end].copy()
            else:
                results[o] = self.mixer.mixed(op, o, self.mixer.size(op.outputs[o].nbytes), digests, run=run)
        return results

    def _made(self, index: int, op: Op, inputs: list[Instance], targets: dict[int, Storage]) -> list[Instance]:
        made = [Instance(op.outputs[o].name, storage, 0, storage.size, index) for o, storage in targets.items()]
        made += [inputs[i]._replace(value=op.outputs[o].name, made=index) for i, o in op.updates]
        for i, o, offset in op.view:
            window = self.mixer.window(offset, op.outputs[o].nbytes, inputs[i].storage.size)
            made.append(Instance(op.outputs[o].name, inputs[i].storage, *window, index))
        return made

    def _free(self, index: int, value: str) -> None:
        if not self._is_live(value):
            raise VerificationError(f"step {index}: frees {value!r}, which holds no bytes")
        storage = self.located[value].storage
        storage.names.discard(value)
        self._release(storage)

    def _check_end(self) -> None:
        """Check outputs and the newest version of each resident."""
        for value in self.graph.outputs:
            if value not in self.located:
                raise VerificationError(f"at the end: nothing has made output {value!r}")
            self._check(self.located[value], None, "ends with")
        newest = {tensor.name: tensor.name for op in self.graph.ops if op.resident for tensor in op.outputs}
        for op in self.graph.ops:
            newest |= {self.graph.storage_root[op.reads[i]]: op.outputs[o].name for i, o in op.updates}
        for op in self.graph.ops:
            for tensor in op.outputs if op.resident else ():
                value = newest[tensor.name]
                if value not in self.located:
                    missing = f"{value!r}, the newest version of {tensor.name!r}"
                    raise VerificationError(f"at the end: nothing has made {missing}")
                self._check(self.located[value], None, "ends with")

    def _located(self, index: int, op: Op, value: str) -> Instance:
        """Where a value was put last; the bytes of a dead value are spoilt."""
        if value not in self.located:
            raise VerificationError(f"step {index}, op {op.name!r}: reads {value!r}, which nothing has made")
        return self.located[value]

    def _is_live(self, value: str) -> bool:
        return value in self.located and value in self.located[value].storage.names

    def _content(self, instance: Instance) -> Bytes:
        start = instance.storage.start
        return self.arena[start + instance.lo : start + instance.hi]

    def _write(self, storage: Storage, content: Bytes) -> None:
        self.arena[storage.start : storage.end] = content
        self.arena[storage.end : storage.stop] = _CANARY

    def _release(self, storage: Storage) -> None:
        """Spoil the bytes of a storage that has no names left."""
        if not storage.names:
            self._spoil(storage)

    def _spoil(self, storage: Storage | None, *, again: bool = False) -> None:
        """Change every byte; `again` changes each in a way that does not undo the time before."""
        if storage is None:
            return
        self.spoils += 1
        shift = self.spoils % _NOISE_SHIFTS
        block = len(self.noise) - _NOISE_SHIFTS
        noise = self.noise[shift : shift + block]
        for start in range(storage.start, storage.stop, block):
            part = self.arena[start : min(start + block, storage.stop)]
            part ^= noise[: len(part)] ^ np.uint8(again)

    def _check(self, instance: Instance, index: int | None, verb: str) -> None:
        """Compare the bytes of a value with the reference."""
        self.checks += 1
        storage, expected = instance.storage, self.expected[instance.value]
        right = np.array_equal(self._content(instance), expected.window)
        if right and instance.hi - instance.lo < storage.size:
            right = np.array_equal(self.arena[storage.start : storage.end], expected.storage)
        if not right or (storage.stop > storage.end and (self.arena[storage.end : storage.stop] != _CANARY).any()):
            raise _Difference(instance, index, verb)


def _explained(found: _Difference, machine: _Machine) -> str:
    """Where a difference was found, and where a second run that checks the value after every step sees it first."""
    instance, steps = found.instance, machine.schedule.steps
    where = "at the end" if found.step is None else _named(steps, found.step)
    sentence = f"{where}: {found.verb} {instance.value!r} with bytes that differ from the reference"
    if instance.made == found.step:
        return f"{sentence}, from the start"
    machine.watched = instance
    try:
        machine.run()
    except _Difference as first:
        if first.step is None or first.step == found.step:
            return f"{sentence}; an output or the workspace of the same op lies over it"
        return f"{sentence}; they were right until {_named(steps, first.step)}"
    raise AssertionError("the second run does not differ")


def _named(steps: tuple[Step, ...], index: int) -> str:
    step = steps[index]
    return f"step {index}, {f'op {step.op!r}' if isinstance(step, Compute) else f'the free of {step.value!r}'}"
