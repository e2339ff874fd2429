"""Runs any plan on real bytes in one numpy arena, and holds every byte to a plain run without a plan.

The judge counts; this executor acts. Every op mixes the bytes of its inputs into those of its outputs, frees poison, in-place pairs,
views and updates really alias, workspace is really overwritten. Where the bytes of a value differ from those of `reference`, the plan
is wrong. It finds every buffer by its key in the `Allocation` and reads the memory rules for itself: it shares no code with the judge,
the kernels and the packers, so that what they misunderstand together comes out as wrong bytes here.

Offsets of views count from the start of the storage. A value's window of its storage ends where the storage does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple, final

import numpy as np

from planner.errors import GraphError, PlannerError, VerificationError
from planner.graph import Graph, Op
from planner.memory import Allocation, Buffer
from planner.schedule import Compute, Schedule, Step

Bytes = np.typing.NDArray[np.uint8]
Words = np.typing.NDArray[np.uint64]

ARENA_LIMIT: Final = 2**28
_MASK: Final = 2**64 - 1
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


class Content(NamedTuple):
    """What a value holds: a window of its storage as it was when the value was made.

    Args:
        storage: bytes of the whole storage, read-only.
        lo, hi: the window of the value in it.
    """

    storage: Bytes
    lo: int
    hi: int

    @property
    def window(self) -> Bytes:
        """The bytes of the value itself."""
        return self.storage[self.lo : self.hi]


def execute(
    graph: Graph, schedule: Schedule, allocation: Allocation, *, scale: int = 1, expected: Mapping[str, Content] | None = None
) -> Execution:
    """Run a schedule in one arena at the allocation's offsets; every value made or read must be what a plain run makes it.

    An op damages the buffers of its new outputs and its workspace before it reads, so that one lying over a live input shows. Bytes
    are all that is judged. What leaves no trace in them is left to `simulate`: order-only edges, ops without outputs that never run,
    a name read after its free while another name holds its storage, alignment, the stated lifetimes of buffers, the budget.

    Args:
        scale: sizes are divided by it and rounded up, no byte becomes none. Addresses keep their order, and any two buffers of which
            one byte overlaps still overlap, so a scaled run finds every wrong step and wrong offset that a full one finds (either may
            miss bytes that happen to be equal: one chance in 256 for each). It is blind to what is finer than `scale` bytes inside
            a storage: a view's offset off by less may fall on the same byte.
        expected: `reference(graph, scale=scale)`, to run many plans of a graph.
    Raises:
        VerificationError: names the value whose bytes differ, who found it, and the step that damaged it; or a missing buffer.
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


def reference(graph: Graph, *, scale: int = 1) -> dict[str, Content]:
    """Every value by a plain run without a plan: program order, a fresh array for whatever is made, nothing freed.

    A view is a window of its input's storage. An update copies the storage and writes its window in the copy: the older names keep
    what they held, and nobody reads them again.

    Raises:
        GraphError: an output is declared identical to inputs that differ.

    >>> from planner.graph import Tensor
    >>> a, b = Op("a", (Tensor("a", 8),)), Op("b", (Tensor("b", 4),), reads=("a",), view=((0, 0, 4),))
    >>> contents = reference(Graph([a, b]))
    >>> bool((contents["b"].window == contents["a"].window[4:]).all())
    True
    """
    mixer = _Mixer(max((tensor.nbytes for tensor in graph.tensors.values()), default=0), scale)
    contents: dict[str, Content] = {}
    for op in graph.ops:
        read = [contents[value] for value in op.reads]
        digests = [mixer.digest(content.window) for content in read]
        newer: dict[str, Bytes] = {}
        for i, o in op.updates:
            root = graph.storage_root[op.reads[i]]
            newer[root] = storage = read[i].storage.copy()
            storage[read[i].lo : read[i].hi] = mixer.mixed(op, o, read[i].hi - read[i].lo, digests)
            contents[op.outputs[o].name] = Content(storage, read[i].lo, read[i].hi)
        for i, o, offset in op.view:
            storage = newer.get(graph.storage_root[op.reads[i]], read[i].storage)
            contents[op.outputs[o].name] = Content(storage, *mixer.window(offset, op.outputs[o].nbytes, len(storage)))
        for o, tensor in enumerate(op.outputs):
            if tensor.name in contents:
                continue
            same = [read[i].storage for i in _identical(graph, op, o)]
            if any(not np.array_equal(other, same[0]) for other in same[1:]):
                raise GraphError(f"op {op.name!r}: identity in-place pairs say that {tensor.name!r} equals inputs that differ")
            fresh = same[0].copy() if same else mixer.mixed(op, o, mixer.size(tensor.nbytes), digests)
            contents[tensor.name] = Content(fresh, 0, len(fresh))
    for content in contents.values():
        content.storage.flags.writeable = False
    return contents


def automatic_scale(graph: Graph, allocation: Allocation, *, limit_bytes: int = ARENA_LIMIT) -> int:
    """The least power of two that brings the arena, and the arrays of the reference, below a limit in bytes.

    >>> automatic_scale(Graph([]), Allocation((), 0, 2**30, "none"))
    4
    """
    residents = sum(tensor.nbytes for op in graph.ops if op.resident for tensor in op.outputs)
    arena = residents + allocation.arena_bytes - allocation.resident_bytes
    arrays = 0
    for op in graph.ops:
        viewed = {o for _, o, _ in op.view}
        arrays += sum(graph.tensors[graph.storage_root[tensor.name]].nbytes for o, tensor in enumerate(op.outputs) if o not in viewed)
    scale = 1
    while max(arena, arrays) > scale * limit_bytes:
        scale *= 2
    return scale


def _identical(graph: Graph, op: Op, o: int) -> list[int]:
    """Input positions whose storage the output equals byte for byte: identity pairs of equal size, which may alias while both live."""
    nbytes = op.outputs[o].nbytes
    return [i for i, out, same in op.inplace if same and out == o and graph.tensors[graph.storage_root[op.reads[i]]].nbytes == nbytes]


# ------------------------------------------------------------------------------------------------ what an op computes


class _Mixer:
    """The arithmetic of all ops: any byte of any input, or two of them exchanged, changes every byte of the outputs."""

    def __init__(self, largest_bytes: int, scale: int) -> None:
        self.scale = scale
        self._words: Words = _random_words(self.size(largest_bytes) // 8 + 1)
        self._weights: Words = self._words | np.uint64(1)  # odd: a change of one byte never cancels

    def size(self, nbytes: int) -> int:
        """Scaled size."""
        return -(-nbytes // self.scale)

    def window(self, offset: int, nbytes: int, storage_bytes: int) -> tuple[int, int]:
        """First and last of the bytes of a view, in a storage of scaled size."""
        lo = min(offset // self.scale, storage_bytes)
        return lo, min(lo + self.size(nbytes), storage_bytes)

    def digest(self, content: Bytes) -> tuple[int, int]:
        """(weighted sum of the words, length)."""
        count = -(-len(content) // 8)
        words = np.zeros(count, dtype=np.uint64)
        words.view(np.uint8)[: len(content)] = content
        return int(np.dot(words, self._weights[:count])), len(content)

    def mixed(self, op: Op, o: int, nbytes: int, digests: Iterable[tuple[int, int]], *, run: int = 0) -> Bytes:
        """The bytes of an output; those of an op that must not be run again are others at each run."""
        label = f"{op.name}\0{o}\0{0 if op.recomputable else run}"
        state = int.from_bytes(hashlib.blake2b(label.encode(), digest_size=8).digest(), "little")
        for digest, length in digests:
            state = _scrambled((_scrambled(state ^ digest) + length) & _MASK)
        words = self._words[: -(-nbytes // 8)] * np.uint64(state | 1)
        words ^= np.uint64(_scrambled(state))
        content: Bytes = words.view(np.uint8)[:nbytes]
        return content


def _scrambled(state: int) -> int:
    """The finaliser of SplitMix64."""
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
    return state ^ state >> 31


def _random_words(count: int) -> Words:
    words: Words = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        words ^= words >> np.uint64(shift)
        words *= np.uint64(factor)
    words ^= words >> np.uint64(31)
    return words


# ------------------------------------------------------------------------------------------------ where things lie


class _Storage:
    """A place in the arena: content, then the slack that scaling leaves, which holds a canary."""

    __slots__ = ("end", "names", "resident", "start", "stop")

    def __init__(self, start: int, end: int, stop: int, *, resident: bool = False) -> None:
        self.start, self.end, self.stop, self.resident = start, end, stop, resident
        self.names: set[str] = set()

    @property
    def size(self) -> int:
        """Bytes of the content."""
        return self.end - self.start


class _Instance(NamedTuple):
    """A value in the arena."""

    value: str
    storage: _Storage
    lo: int
    hi: int
    made: int  # step


class _Layout:
    """Scaled addresses: the gap between two neighbouring ends of buffers is divided and rounded up, so that none closes."""

    def __init__(self, graph: Graph, allocation: Allocation, scale: int) -> None:
        self.scale = scale
        residents = [tensor for op in graph.ops if op.resident for tensor in op.outputs]
        base = sum(tensor.nbytes for tensor in residents)
        if 0 < allocation.resident_bytes < base:
            raise VerificationError(f"residents need {base} bytes; the allocation has {allocation.resident_bytes}")
        top = base + allocation.arena_bytes - allocation.resident_bytes
        self._spans: dict[tuple[str, int, bool], tuple[int, int]] = {}
        offset = 0
        for tensor in residents:
            self._spans[tensor.name, -1, False] = offset, tensor.nbytes
            offset += tensor.nbytes
        for buffer in allocation.buffers:
            nbytes = _needed_bytes(graph, buffer)
            if buffer.offset < 0 or base + buffer.offset + nbytes > top:
                raise VerificationError(f"buffer of {buffer.value!r}, execution {buffer.execution}, lies outside the arena")
            self._spans[buffer.value, buffer.execution, buffer.workspace] = base + buffer.offset, nbytes
        points = sorted({0, *(start for start, _ in self._spans.values()), *(start + nbytes for start, nbytes in self._spans.values())})
        self._places = {0: 0}
        for before, point in pairwise(points):
            self._places[point] = self._places[before] - (before - point) // scale
        self.arena_bytes = self._places[points[-1]]

    def storage(self, value: str, execution: int, *, workspace: bool = False, resident: bool = False) -> _Storage | None:
        """The place of a buffer, or None where the allocation has none."""
        span = self._spans.get((value, execution, workspace))
        if span is None:
            return None
        start, nbytes = span
        first = self._places[start]
        return _Storage(first, first - -nbytes // self.scale, self._places[start + nbytes], resident=resident)


def _needed_bytes(graph: Graph, buffer: Buffer) -> int:
    if buffer.workspace:
        op = graph.op_named.get(buffer.value)
        return buffer.nbytes if op is None else op.workspace
    tensor = graph.tensors.get(buffer.value)
    return buffer.nbytes if tensor is None else tensor.nbytes


def _inplace_pairs(graph: Graph, schedule: Schedule, freed_after: list[set[str]]) -> list[dict[int, int]]:
    """Rule 10: for each step, output -> input whose storage it takes over, if every lawful pair happens."""
    sizes: dict[int, int] = {}  # bytes of the storages that may be taken, by number
    names: dict[int, set[str]] = {}
    on: dict[str, int] = {}

    def put(value: str, number: int) -> None:
        on[value] = number
        names[number].add(value)

    for op in graph.ops:
        for tensor in op.outputs if op.resident else ():
            names[len(names)] = set()
            put(tensor.name, len(names) - 1)
    found: list[dict[int, int]] = []
    for step, freed in zip(schedule.steps, freed_after, strict=True):
        pairs: dict[int, int] = {}
        found.append(pairs)
        if not isinstance(step, Compute):
            if step.value in on:
                names[on[step.value]].discard(step.value)
            continue
        op = graph.op_named[step.op]
        under = [on[value] for value in op.reads if value in on]
        if len(under) < len(op.reads):
            continue  # the machine says which value is missing
        kept = {o for o, tensor in enumerate(op.outputs) if tensor.name in on and tensor.name in names[on[tensor.name]]}
        taken = {under[i] for i, _ in op.updates}
        for number in taken:
            names[number].clear()
        settled = set(kept)
        for i, o, *_ in (*op.updates, *op.view):
            if o not in kept:
                put(op.outputs[o].name, under[i])
            settled.add(o)
        for i, o, identity in op.inplace:
            output, number = op.outputs[o], under[i]
            if o in settled or number in taken or sizes.get(number) != output.nbytes:
                continue
            if any(n == number and (op.reads[j] != op.reads[i] or not _permits(op, j, o)) for j, n in enumerate(under)):
                continue
            if names[number] <= freed or (identity and output.name not in freed):
                pairs[o] = i
                taken.add(number)
                settled.add(o)
                put(output.name, number)
        for o, tensor in enumerate(op.outputs):
            if o not in settled:
                number = len(names)
                sizes[number], names[number] = tensor.nbytes, set()
                put(tensor.name, number)
    return found


def _permits(op: Op, i: int, o: int) -> bool:
    return any(pair[:2] == (i, o) for pair in op.inplace)


def _freed_after(schedule: Schedule) -> list[set[str]]:
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


# ------------------------------------------------------------------------------------------------ the machine


class _Difference(Exception):
    """Bytes of an instance differ from the reference, as found at a step (None: at the end)."""

    def __init__(self, instance: _Instance, step: int | None, verb: str) -> None:
        super().__init__(verb)
        self.instance, self.step, self.verb = instance, step, verb


class _Machine:
    """One arena, and what lies where in it."""

    def __init__(self, graph: Graph, schedule: Schedule, allocation: Allocation, scale: int, expected: Mapping[str, Content]) -> None:
        self.graph, self.schedule, self.expected = graph, schedule, expected
        self.layout = _Layout(graph, allocation, scale)
        self.mixer = _Mixer(max((tensor.nbytes for tensor in graph.tensors.values()), default=0), scale)
        self.arena: Bytes = np.full(self.layout.arena_bytes, 0xCD, dtype=np.uint8)
        self.noise: Bytes = _random_words(2**13).view(np.uint8) | np.uint8(1)  # odd: changes every byte that it is laid over
        self.spoils = self.checks = 0
        self.located: dict[str, _Instance] = {}
        self.runs: dict[str, int] = {}
        self.watched: _Instance | None = None
        for op in graph.ops:
            for o, tensor in enumerate(op.outputs if op.resident else ()):
                storage = self.layout.storage(tensor.name, -1, resident=True)
                assert storage is not None
                self._write(storage, self.mixer.mixed(op, o, storage.size, ()))
                storage.names.add(tensor.name)
                self.located[tensor.name] = _Instance(tensor.name, storage, 0, storage.size, -1)

    def run(self) -> Execution:
        """All steps, then the values that must have lasted."""
        computes = 0
        freed = _freed_after(self.schedule)
        pairs = _inplace_pairs(self.graph, self.schedule, freed)
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
        """Spoil what is to be written, read, write, give names, check."""
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
            if instance.value not in passing or instance.storage not in taken.values():  # else its storage is taken over already
                self._check(instance, index, "makes")
        for storage in (*own.values(), *(inputs[i].storage for i, _ in op.updates)):
            self._release(storage)

    def _targets(
        self, op: Op, run: int, inputs: list[_Instance], kept: set[str], pairs: dict[int, int]
    ) -> tuple[dict[int, _Storage], dict[int, _Storage]]:
        """Where outputs go that are neither views nor updates: to buffers of their own, or to storages they take over."""
        own: dict[int, _Storage] = {}
        taken: dict[int, _Storage] = {}
        aliased = {o for _, o, *_ in (*op.updates, *op.view)}
        for o, tensor in enumerate(op.outputs):
            if o in aliased:
                continue
            storage = self.layout.storage(tensor.name, run)
            if storage is not None:
                own[o] = storage
                continue
            # no rule makes the others happen, but whoever left out the buffer meant one of them: the bytes will tell
            unlawful = (i for i, out, _ in op.inplace if out == o and inputs[i].storage.size == self.mixer.size(tensor.nbytes))
            i = pairs.get(o, next(unlawful, None))
            if tensor.name in kept or i is None:
                raise VerificationError(f"{tensor.name!r}, execution {run}, has no buffer, and no in-place input to lie on")
            taken[o] = inputs[i].storage
        return own, taken

    def _results(self, op: Op, run: int, inputs: list[_Instance], targets: dict[int, _Storage]) -> dict[int, Bytes]:
        """New bytes of every output but views, from the bytes that lie in the arena now."""
        digests = [self.mixer.digest(self._content(instance)) for instance in inputs]
        results = {o: self.mixer.mixed(op, o, inputs[i].hi - inputs[i].lo, digests, run=run) for i, o in op.updates}
        for o in targets:
            same = _identical(self.graph, op, o)
            if same:
                source = inputs[same[0]].storage
                results[o] = self.arena[source.start : source.end].copy()
            else:
                results[o] = self.mixer.mixed(op, o, self.mixer.size(op.outputs[o].nbytes), digests, run=run)
        return results

    def _made(self, index: int, op: Op, inputs: list[_Instance], targets: dict[int, _Storage]) -> list[_Instance]:
        made = [_Instance(op.outputs[o].name, storage, 0, storage.size, index) for o, storage in targets.items()]
        made += [inputs[i]._replace(value=op.outputs[o].name, made=index) for i, o in op.updates]
        for i, o, offset in op.view:
            window = self.mixer.window(offset, op.outputs[o].nbytes, inputs[i].storage.size)
            made.append(_Instance(op.outputs[o].name, inputs[i].storage, *window, index))
        return made

    def _free(self, index: int, value: str) -> None:
        if not self._is_live(value):
            raise VerificationError(f"step {index}: frees {value!r}, which holds no bytes")
        storage = self.located[value].storage
        storage.names.discard(value)
        self._release(storage)

    def _check_end(self) -> None:
        """Outputs, and the storages of residents under their newest names."""
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
                    raise VerificationError(f"at the end: nothing has made {value!r}, the newest version of {tensor.name!r}")
                self._check(self.located[value], None, "ends with")

    def _located(self, index: int, op: Op, value: str) -> _Instance:
        """Where a value was put last, dead or alive: what is dead was spoilt."""
        if value not in self.located:
            raise VerificationError(f"step {index}, op {op.name!r}: reads {value!r}, which nothing has made")
        return self.located[value]

    def _is_live(self, value: str) -> bool:
        return value in self.located and value in self.located[value].storage.names

    def _content(self, instance: _Instance) -> Bytes:
        start = instance.storage.start
        return self.arena[start + instance.lo : start + instance.hi]

    def _write(self, storage: _Storage, content: Bytes) -> None:
        self.arena[storage.start : storage.end] = content
        self.arena[storage.end : storage.stop] = _CANARY

    def _release(self, storage: _Storage) -> None:
        """The last name is gone: so are the bytes."""
        if not storage.names:
            self._spoil(storage)

    def _spoil(self, storage: _Storage | None, *, again: bool = False) -> None:
        """Change every byte; `again`: so that together with the time before, every byte is still changed."""
        if storage is None:
            return
        self.spoils += 1
        shift = self.spoils % _NOISE_SHIFTS
        block = len(self.noise) - _NOISE_SHIFTS
        noise = self.noise[shift : shift + block]
        for start in range(storage.start, storage.stop, block):
            part = self.arena[start : min(start + block, storage.stop)]
            part ^= noise[: len(part)] ^ np.uint8(again)

    def _check(self, instance: _Instance, index: int | None, verb: str) -> None:
        """Hold the bytes of a value to the reference."""
        self.checks += 1
        storage, expected = instance.storage, self.expected[instance.value]
        right = np.array_equal(self._content(instance), expected.window)
        if right and instance.hi - instance.lo < storage.size:
            right = np.array_equal(self.arena[storage.start : storage.end], expected.storage)
        if not right or (storage.stop > storage.end and (self.arena[storage.end : storage.stop] != _CANARY).any()):
            raise _Difference(instance, index, verb)


def _explained(found: _Difference, machine: _Machine) -> str:
    """Who found the difference, and, from a second run that watches the value after every step, who made it."""
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
