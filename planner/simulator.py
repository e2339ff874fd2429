"""The judge: replays a schedule step by step, and raises at the first illegal one.

Plain Python, written from the thirteen memory rules of `papers/memory-model.md` and from nothing else. It shares no
code with the searches, the packers and the analyses it judges: where they misunderstand a rule, it does not follow.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from typing import Optional

import msgspec

from planner.errors import ScheduleError, VerificationError
from planner.graph import Graph, Op, Tensor
from planner.memory import Allocation, Buffer, MemoryModel
from planner.schedule import Compute, Schedule

BufferKey = tuple[str, int, bool]


class Trace(msgspec.Struct, frozen=True):
    """What a legal schedule takes.

    Args:
        peak_bytes: most bytes at a step, residents included in scope "total".
        peak_step: the Compute step where that first happens; -1 if nothing runs.
        peak_op: its op, or None.
        live_at_peak: (value, bytes) of the storages live at that step, outputs being made included, residents not;
            largest first. The value is the one that made the storage.
        workspace_at_peak_bytes: scratch bytes of that step.
        cost: summed cost of all Compute steps, in the graph's unit.
        timeline_bytes: bytes at each Compute step.
        resident_bytes: bytes of residents (0 in scope "activations").
        recomputed: ops run more than once, with the number of extra runs.
        inplace_taken: (Compute step, output value, input value) for every in-place pair that happened.
        arena_bytes: resident bytes + highest end of a buffer, where an allocation was checked.
    """

    peak_bytes: int
    peak_step: int
    peak_op: Optional[str]
    live_at_peak: tuple[tuple[str, int], ...]
    workspace_at_peak_bytes: int
    cost: float
    timeline_bytes: tuple[int, ...]
    resident_bytes: int
    recomputed: dict[str, int]
    inplace_taken: tuple[tuple[int, str, str], ...]
    arena_bytes: Optional[int] = None

    def __repr__(self) -> str:
        where = f"step {self.peak_step + 1} of {len(self.timeline_bytes)}, op {self.peak_op!r}"
        return f"Trace(peak {self.peak_bytes} bytes at {where}, cost {self.cost:g})"


def simulate(
    graph: Graph, schedule: Schedule, *, memory: MemoryModel = MemoryModel(), allocation: Allocation | None = None
) -> Trace:
    """Replay a schedule; with an allocation, check every buffer against every other in time and space.

    Args:
        graph: the program.
        schedule: any list of steps.
        memory: scope and alignment.
        allocation: offsets to check. It must hold one buffer for every storage and workspace, and may hold one more for
            an output whose in-place pair it declines.
    Raises:
        ScheduleError: the first illegal step, with op and value.
        VerificationError: a buffer is missing, unknown, too small, too short-lived, misaligned, or overlaps another.

    >>> from planner.graph import Tensor
    >>> from planner.schedule import Free
    >>> graph = Graph([Op("a", (Tensor("a", 4),)), Op("b", (Tensor("b", 2, output=True),), reads=("a",))])
    >>> simulate(graph, Schedule.of([Compute("a"), Compute("b"), Free("a")])).timeline_bytes
    (4, 6)
    """
    replay = _Replay(graph, memory)
    replay.run(schedule)
    arena_bytes = None
    if allocation is not None:
        stored = replay
        if any(not b.workspace and (b.value, b.execution) in replay.joined for b in allocation.buffers):
            declined = {(b.value, b.execution) for b in allocation.buffers if not b.workspace}
            kept = {key: value for key, value in replay.joined.items() if key not in declined}
            stored = _Replay(graph, memory, only=kept)
            stored.run(schedule)
        arena_bytes = _check_allocation(stored, allocation, memory)
    return replay.trace(arena_bytes)


class _Storage:
    """Bytes under one or more names, called by the value that made it."""

    __slots__ = ("end", "execution", "names", "nbytes", "newest", "raw", "resident", "start", "value")

    def __init__(self, value: str, execution: int, raw: int, nbytes: int, start: int, *, resident: bool) -> None:
        self.value, self.execution, self.raw, self.nbytes = value, execution, raw, nbytes
        self.start, self.end, self.resident = start, -1, resident
        self.names: set[str] = {value}
        self.newest = value


def _may_take(storage: _Storage, output: Tensor, *, identity: bool, freed: set[str]) -> bool:
    """What rule 10 asks of the storage: not resident, equal bytes, all names freed next (or an identity pair)."""
    if storage.resident or storage.raw != output.nbytes:
        return False
    return (identity and output.name not in freed) or storage.names <= freed


class _Replay:
    """State of a machine that obeys the memory rules."""

    def __init__(self, graph: Graph, memory: MemoryModel, *, only: dict[tuple[str, int], str] | None = None) -> None:
        self.graph, self.memory, self.only = graph, memory, only
        self.live: dict[str, _Storage] = {}
        self.overwritten: dict[str, str] = {}
        self.runs: dict[str, int] = {}
        self.storages: list[_Storage] = []
        self.workspaces: list[tuple[str, int, int, int]] = []
        self.joined: dict[tuple[str, int], str] = {}
        self.inplace: list[tuple[int, str, str]] = []
        self.order: list[str] = []
        self.timeline: list[int] = []
        self.costs: list[float] = []
        self.live_bytes = 0
        self.resident_bytes = 0
        for op in graph.ops:
            if op.kind == "op":
                continue
            for tensor in op.outputs:
                nbytes = memory.round_up(tensor.nbytes)
                self.live[tensor.name] = _Storage(tensor.name, 0, tensor.nbytes, nbytes, 0, resident=True)
                self.resident_bytes += nbytes if memory.scope == "total" else 0

    def run(self, schedule: Schedule) -> None:
        """All steps, then the conditions at the end."""
        steps = schedule.steps
        index = 0
        while index < len(steps):
            step = steps[index]
            if isinstance(step, Compute):
                stop = index + 1
                while stop < len(steps) and not isinstance(steps[stop], Compute):
                    stop += 1
                freed = {free.value for free in steps[index + 1 : stop] if not isinstance(free, Compute)}
                self._compute(index, step.op, freed)
            else:
                self._free(index, step.value)
            index += 1
        for op in self.graph.ops:
            if op.kind == "op" and op.name not in self.runs:
                raise ScheduleError(f"op {op.name!r} never ran", op=op.name)
            for tensor in op.outputs:
                if tensor.output and tensor.name not in self.live:
                    raise ScheduleError(f"output {tensor.name!r} is not live", op=op.name, value=tensor.name)
        for storage in self.storages:
            if storage.end < 0:
                storage.end = len(self.timeline)

    def _compute(self, index: int, name: str, freed: set[str]) -> None:
        op = self.graph.op_named.get(name)
        if op is None:
            raise ScheduleError("no such op in the graph", step=index, op=name)
        kept = self._check_runnable(index, op)
        now, execution = len(self.timeline), self.runs.get(name, 0)
        self.order.append(name)
        self.runs[name] = execution + 1
        fresh: Iterable[int] = range(len(op.outputs))
        taken: Iterable[_Storage] = ()
        if op.updates or op.view or op.inplace:
            fresh, taken = self._share(op, execution, now, kept, freed)
        copies_bytes = self._allocate(op, execution, now, fresh, kept)
        if op.workspace:
            self.workspaces.append((name, execution, op.workspace, now))
        self.timeline.append(self.resident_bytes + self.live_bytes + copies_bytes + op.workspace)
        self.costs.append(op.cost)
        for storage in taken:
            self._release_if_nameless(storage)

    def _share(
        self, op: Op, execution: int, now: int, kept: set[int], freed: set[str]
    ) -> tuple[list[int], Iterable[_Storage]]:
        """Outputs put on storages of inputs.

        Returns:
            The outputs that need a storage of their own, and the storages that were taken.
        """
        inputs = [self.live[value] for value in op.reads]
        taken = self._update(op, inputs, kept)
        self._view(op, inputs, kept)
        aliased = {o for _, o in op.updates} | {o for _, o, _offset in op.view}
        placed = self._take(op, execution, now, inputs, kept | aliased, taken, freed)
        return [o for o in range(len(op.outputs)) if o not in aliased and (o in kept or o not in placed)], taken

    def _update(self, op: Op, inputs: list[_Storage], kept: set[int]) -> dict[_Storage, None]:
        """Rule 7: an update's output joins its input's storage, and every older name there is dead from then on.

        Returns:
            The storages written, in order; a storage is equal to itself only.
        """
        written = dict.fromkeys(inputs[i] for i, _ in op.updates)
        for storage in written:
            for older in storage.names:
                del self.live[older]
                self.overwritten[older] = op.name
            storage.names.clear()
        for i, o in op.updates:
            if o not in kept:
                self._join(op.outputs[o].name, inputs[i])
                inputs[i].newest = op.outputs[o].name
        return written

    def _view(self, op: Op, inputs: list[_Storage], kept: set[int]) -> None:
        """Rule 7: a view joins the storage of its input's current instance."""
        for i, o, _offset in op.view:
            if o not in kept:
                self._join(op.outputs[o].name, inputs[i])

    def _take(
        self,
        op: Op,
        execution: int,
        now: int,
        inputs: list[_Storage],
        placed: set[int],
        taken: dict[_Storage, None],
        freed: set[str],
    ) -> set[int]:
        """Rule 10: the in-place pairs that happen, first lawful pair first; `taken` grows by their storages.

        Args:
            placed: outputs that no pair may place.
        Returns:
            The outputs placed by now.
        """
        positions: dict[int, list[int]] = {}
        for position, storage in enumerate(inputs if op.inplace else ()):
            positions.setdefault(id(storage), []).append(position)
        permitted = {(i, o) for i, o, _identity in op.inplace}
        for i, o, identity in op.inplace:
            output, storage = op.outputs[o].name, inputs[i]
            if o in placed or storage in taken:
                continue
            if self.only is not None:
                happens = self.only.get((output, execution)) == op.reads[i]
            else:
                everywhere = all(op.reads[p] == op.reads[i] and (p, o) in permitted for p in positions[id(storage)])
                happens = everywhere and _may_take(storage, op.outputs[o], identity=identity, freed=freed)
            if happens:
                placed.add(o)
                taken[storage] = None
                self._join(output, storage)
                self.joined[output, execution] = op.reads[i]
                self.inplace.append((now, output, op.reads[i]))
        return placed

    def _allocate(self, op: Op, execution: int, now: int, fresh: Iterable[int], kept: set[int]) -> int:
        """Storages of their own for these outputs; returns the bytes of those that exist for the step only."""
        copies_bytes = 0
        for o in fresh:
            tensor = op.outputs[o]
            storage = _Storage(
                tensor.name, execution, tensor.nbytes, self.memory.round_up(tensor.nbytes), now, resident=False
            )
            self.storages.append(storage)
            if o in kept:  # the sibling still live keeps its instance; this copy exists for the step only
                storage.end = now + 1
                copies_bytes += storage.nbytes
            else:
                self.live[tensor.name] = storage
                self.overwritten.pop(tensor.name, None)
                self.live_bytes += storage.nbytes
        return copies_bytes

    def _check_runnable(self, index: int, op: Op) -> set[int]:
        """Everything that can forbid a step; returns the outputs that are live already."""
        if op.kind != "op":
            raise ScheduleError(f"a resident ({op.kind}) is never computed", step=index, op=op.name)
        again = op.name in self.runs
        if again and not op.recomputable:
            raise ScheduleError("is not recomputable and ran before", step=index, op=op.name)
        if again and not op.outputs:
            raise ScheduleError("has no outputs and ran before", step=index, op=op.name)
        if not again:
            for before in op.after:
                if before not in self.runs and self.graph.op_named[before].kind == "op":
                    raise ScheduleError(f"must wait for op {before!r}, which has not run", step=index, op=op.name)
        for value in op.reads:
            if value in self.live:
                continue
            if value in self.overwritten:
                reason = f"reads {value!r}, which op {self.overwritten[value]!r} has overwritten"
            elif self.graph.producer[value].name in self.runs:
                reason = f"reads {value!r}, which was freed"
            else:
                reason = f"reads {value!r}, which was not computed yet"
            raise ScheduleError(reason, step=index, op=op.name, value=value)
        kept = {o for o, tensor in enumerate(op.outputs) if tensor.name in self.live}
        if kept and len(kept) == len(op.outputs):
            raise ScheduleError("all its outputs are live already", step=index, op=op.name)
        return kept

    def _join(self, value: str, storage: _Storage) -> None:
        storage.names.add(value)
        self.live[value] = storage
        self.overwritten.pop(value, None)

    def _free(self, index: int, value: str) -> None:
        if value not in self.graph.tensors:
            raise ScheduleError(f"frees {value!r}, which no op makes", step=index, value=value)
        storage = self.live.get(value)
        if storage is None:
            why = (
                f"op {self.overwritten[value]!r} has overwritten it" if value in self.overwritten else "it is not live"
            )
            raise ScheduleError(f"frees {value!r}, but {why}", step=index, value=value)
        if storage.resident and storage.newest == value:
            raise ScheduleError(f"frees {value!r}, which is resident", step=index, value=value)
        del self.live[value]
        storage.names.discard(value)
        self._release_if_nameless(storage)

    def _release_if_nameless(self, storage: _Storage) -> None:
        if not storage.names and not storage.resident and storage.end < 0:
            storage.end = len(self.timeline)
            self.live_bytes -= storage.nbytes

    def trace(self, arena_bytes: int | None) -> Trace:
        """The verdict in numbers."""
        peak_bytes = max(self.timeline, default=self.resident_bytes)
        peak_step = self.timeline.index(peak_bytes) if self.timeline else -1
        at_peak = [storage for storage in self.storages if storage.start <= peak_step < storage.end]
        live = [(storage.value, storage.nbytes) for storage in at_peak]
        scratch = [w for w in self.workspaces if w[3] == peak_step]
        return Trace(
            peak_bytes=peak_bytes,
            peak_step=peak_step,
            peak_op=self.order[peak_step] if self.order else None,
            live_at_peak=tuple(sorted(live, key=lambda pair: (-pair[1], pair[0]))),
            workspace_at_peak_bytes=sum(w[2] for w in scratch),
            cost=math.fsum(self.costs),  # in any order of steps the same, so that bounds hold to the last bit
            timeline_bytes=tuple(self.timeline),
            resident_bytes=self.resident_bytes,
            recomputed={name: count - 1 for name, count in self.runs.items() if count > 1},
            inplace_taken=tuple(self.inplace),
            arena_bytes=arena_bytes,
        )


def _check_allocation(replay: _Replay, allocation: Allocation, memory: MemoryModel) -> int:
    """Every storage has a buffer that is large, long and aligned enough, and no two meet; returns the arena's bytes."""
    needed: dict[BufferKey, tuple[int, int, int]] = {
        (s.value, s.execution, False): (s.nbytes, s.start, s.end) for s in replay.storages
    }
    needed.update({(op, execution, True): (nbytes, now, now + 1) for op, execution, nbytes, now in replay.workspaces})
    found: dict[BufferKey, Buffer] = {}
    for buffer in allocation.buffers:
        key = (buffer.value, buffer.execution, buffer.workspace)
        label = _label(buffer)
        if key in found:
            raise VerificationError(f"{label} is given twice")
        if key not in needed:
            raise VerificationError(f"{label} belongs to no storage of this schedule")
        nbytes, start, end = needed[key]
        if buffer.nbytes < nbytes or buffer.start > start or buffer.end < end:
            raise VerificationError(
                f"{label} has {buffer.nbytes} bytes during [{buffer.start}, {buffer.end}); it needs {nbytes}"
                f" during [{start}, {end})"
            )
        if buffer.offset < 0 or buffer.offset % memory.alignment:
            raise VerificationError(
                f"{label} lies at offset {buffer.offset}, not a multiple of the alignment {memory.alignment}"
            )
        found[key] = buffer
    for value, execution, workspace in needed:
        if (value, execution, workspace) not in found:
            raise VerificationError(
                f"{'workspace of ' if workspace else ''}{value!r}, execution {execution}, has no buffer"
            )
    check_overlaps(allocation.buffers)
    arena_bytes = replay.resident_bytes + max((b.offset + b.nbytes for b in allocation.buffers), default=0)
    if allocation.bound_bytes > arena_bytes:
        raise VerificationError(
            f"the allocation says no arena is below {allocation.bound_bytes} bytes; its own takes {arena_bytes}"
        )
    if allocation.resident_bytes != replay.resident_bytes or allocation.arena_bytes != arena_bytes:
        raise VerificationError(
            f"the allocation says {allocation.resident_bytes} resident and {allocation.arena_bytes} arena bytes;"
            f" its buffers make {replay.resident_bytes} and {arena_bytes}"
        )
    return arena_bytes


def _label(buffer: Buffer) -> str:
    return f"buffer of {'workspace of ' if buffer.workspace else ''}{buffer.value!r}, execution {buffer.execution}"


def check_overlaps(buffers: Iterable[Buffer]) -> None:
    """Sweep over time with the live buffers sorted by offset, where only neighbours can overlap; O(n log n).

    Raises:
        VerificationError: names the first two that share a byte at a step.
    """
    births = sorted((b for b in buffers if b.nbytes and b.end > b.start), key=lambda b: b.start)
    deaths = sorted(births, key=lambda b: b.end)
    offsets: list[int] = []
    live: list[Buffer] = []
    gone = 0
    for buffer in births:
        while deaths[gone].end <= buffer.start:
            place = bisect_left(offsets, deaths[gone].offset)
            del offsets[place], live[place]
            gone += 1
        place = bisect_left(offsets, buffer.offset)
        for other in live[max(0, place - 1) : place + 1]:
            if other.offset < buffer.offset + buffer.nbytes and buffer.offset < other.offset + other.nbytes:
                raise VerificationError(
                    f"{_label(other)} and {_label(buffer)} overlap at step {buffer.start}:"
                    f" bytes [{other.offset}, {other.offset + other.nbytes}) and [{buffer.offset},"
                    f" {buffer.offset + buffer.nbytes})"
                )
        offsets.insert(place, buffer.offset)
        live.insert(place, buffer)
