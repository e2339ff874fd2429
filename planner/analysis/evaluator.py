"""Peak, cost and lifetimes of schedules of one graph, by compiled replay."""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from planner.analysis.arrays import Arrays, Encoded, Flags, Ints, encode
from planner.analysis.candidates import ForwardPart, forward_part
from planner.errors import ScheduleError
from planner.graph import Graph
from planner.kernels.replay import canonical_frees, replay
from planner.kernels.segments import recompute
from planner.memory import MemoryModel
from planner.schedule import Compute, Free, Schedule, Step


class Liveness(NamedTuple):
    """Storages and workspaces of a schedule, one row each, in order of birth.

    Args:
        value: row of the value, or of the op for workspace.
        workspace: True for the scratch bytes of one step.
        execution: which run of the op, from 0.
        nbytes: rounded up to the alignment (workspace is not).
        start, end: Compute steps, half-open.
        timeline_bytes: bytes at each step, residents included in scope "total".
        resident_bytes: bytes of residents at each step.
        peak_bytes, cost: of the schedule.
    """

    value: Ints
    workspace: np.typing.NDArray[np.bool_]
    execution: Ints
    nbytes: Ints
    start: Ints
    end: Ints
    timeline_bytes: Ints
    resident_bytes: int
    peak_bytes: int
    cost: float


class _Replayed(NamedTuple):
    """The result of `replay` for a legal schedule; storages [4, count]: value, execution, start and end of each."""

    peak_bytes: int
    cost: float
    timeline_bytes: Ints
    storages: Ints


class _Scratch(threading.local):
    """Working memory of `replay`, one per thread: threads that plan one graph share its evaluator."""

    def __init__(self, arrays: Arrays) -> None:
        self.rows = replay_scratch(arrays)


def replay_scratch(arrays: Arrays) -> Ints:
    """Working memory that `replay` needs for a graph."""
    widest = max(len(arrays.producer), len(arrays.cost), int(np.diff(arrays.read_ptr).max(initial=0)))
    return np.empty((13, widest + 1), dtype=np.int64)


class Evaluator:
    """Judges sequences of ops in one graph and memory model, fast.

    Args:
        graph: the program.
        memory: scope and alignment.

    >>> from planner.graph import Op, Tensor
    >>> graph = Graph([Op("a", (Tensor("a", 4),)), Op("b", (Tensor("b", 2, output=True),), reads=("a",))])
    >>> evaluator = Evaluator(graph, MemoryModel())
    >>> evaluator.evaluate(evaluator.keep_all)
    (6, 2.0)
    >>> print(evaluator.schedule(evaluator.keep_all))
    a
    b; free a
    """

    def __init__(self, graph: Graph, memory: MemoryModel) -> None:
        self.graph, self.memory = graph, memory
        self.encoded: Encoded = encode(graph, memory)
        arrays = self.encoded.arrays
        self.keep_all: Ints = np.flatnonzero(~arrays.resident)
        self._outputs = np.diff(arrays.out_ptr)
        self._touched = self._outputs + np.diff(arrays.read_ptr)
        self._scratch = _Scratch(arrays)
        self._forward_parts: dict[int, ForwardPart | None] = {}

    def forward_part(self, *, most_crossing: int = 1) -> ForwardPart | None:
        """`candidates.forward_part` of the graph, found once; do not write to it."""
        if most_crossing not in self._forward_parts:
            self._forward_parts[most_crossing] = forward_part(self.graph, self.encoded, most_crossing=most_crossing)
        return self._forward_parts[most_crossing]

    def evaluate(self, sequence: Ints) -> tuple[int, float] | None:
        """(peak bytes, cost) of a sequence of op rows with canonical frees; None if it is illegal."""
        replayed = self._replay(sequence, *self.frees(sequence))
        return None if replayed is None else (replayed.peak_bytes, replayed.cost)

    def timeline(self, sequence: Ints) -> Ints | None:
        """Bytes at each step of a sequence of op rows with canonical frees; None if it is illegal."""
        replayed = self._replay(sequence, *self.frees(sequence))
        return None if replayed is None else replayed.timeline_bytes

    def schedule(self, sequence: Ints) -> Schedule:
        """The sequence with its canonical frees (rule 11)."""
        free_ptr, freed = self.frees(sequence)
        self._replay(sequence, free_ptr, freed)  # marks the values that updates drop by themselves
        steps: list[Step] = []
        names, values = self.encoded.op_names, self.encoded.value_names
        bounds, rows = free_ptr.tolist(), freed.tolist()
        for step, op in enumerate(sequence.tolist()):
            steps.append(Compute(names[op]))
            steps.extend(Free(values[v]) for v in rows[bounds[step] : bounds[step + 1]] if v >= 0)
        return Schedule(tuple(steps))

    def tidied(self, schedule: Schedule) -> Schedule:
        """The same runs with canonical frees: other frees may hold values that nobody reads.

        Where an op may overwrite one of several values, other frees choose which, and that may take less: such a
        schedule is returned as it is, and so is an illegal one.

        >>> from planner.graph import Op, Tensor
        >>> graph = Graph([Op("a", (Tensor("a", 4),)), Op("b", (Tensor("b", 2, output=True),), reads=("a",))])
        >>> print(Evaluator(graph, MemoryModel()).tidied(Schedule.of([Compute("a"), Compute("b")])))
        a
        b; free a
        """
        try:
            peak_bytes = self.liveness(schedule).peak_bytes
        except ScheduleError:
            return schedule
        sequence = self.sequence(schedule)
        outcome = self.evaluate(sequence)
        return schedule if outcome is None or outcome[0] > peak_bytes else self.schedule(sequence)

    def liveness(self, schedule: Schedule) -> Liveness:
        """Lifetimes under any schedule, canonical or not.

        Raises:
            ScheduleError: an unknown name, or an illegal step; `simulate` names it.
        """
        sequence, free_ptr, freed = self.rows(schedule)
        protected = bool(free_ptr[0]) or bool(self.encoded.arrays.never_freed[freed].any())
        replayed = None if protected else self._replay(sequence, free_ptr, freed)
        if replayed is None or (freed < 0).any():  # replay marks frees of what is not live
            raise ScheduleError("the schedule is illegal; simulate() names the step")
        arrays = self.encoded.arrays
        scratch = np.flatnonzero(arrays.workspace[sequence])
        ops = sequence[scratch]
        value, execution, start, end = replayed.storages
        return Liveness(
            value=np.concatenate((value, ops)),
            workspace=np.repeat([False, True], [len(value), len(ops)]),
            execution=np.concatenate((execution, _executions(sequence)[scratch])),
            nbytes=np.concatenate((arrays.storage_bytes[value], arrays.workspace[ops])),
            start=np.concatenate((start, scratch)),
            end=np.concatenate((end, scratch + 1)),
            timeline_bytes=replayed.timeline_bytes,
            resident_bytes=int(arrays.resident_bytes[0]),
            peak_bytes=replayed.peak_bytes,
            cost=replayed.cost,
        )

    def sequence(self, schedule: Schedule) -> Ints:
        """Op rows of a schedule's Compute steps."""
        return self.rows(schedule)[0]

    def rows(self, schedule: Schedule) -> tuple[Ints, Ints, Ints]:
        """Op rows [L] of a schedule, and its frees as CSR: pointers [L+1], those before any step first, and values.

        Raises:
            ScheduleError: an unknown name.
        """
        sequence: list[int] = []
        free_ptr, freed = [0], list[int]()
        for index, step in enumerate(schedule.steps):
            try:
                if isinstance(step, Compute):
                    sequence.append(self.encoded.op_index[step.op])
                    free_ptr.append(free_ptr[-1])
                else:
                    freed.append(self.encoded.value_index[step.value])
                    free_ptr[-1] += 1
            except KeyError as error:
                raise ScheduleError(f"names {error.args[0]!r}, which the graph does not have", step=index) from None
        return np.array(sequence, dtype=np.int64), np.array(free_ptr, dtype=np.int64), np.array(freed, dtype=np.int64)

    def frees(self, sequence: Ints, *, keep_outputs: bool = True) -> tuple[Ints, Ints]:
        """Canonical frees as CSR, pointers [L+1] and value rows; without `keep_outputs` graph outputs are freed too."""
        free_ptr = np.zeros(len(sequence) + 1, dtype=np.int64)
        freed = np.empty(int(self._touched[sequence].sum()), dtype=np.int64)
        needed = np.empty(len(self.encoded.value_names), dtype=np.bool_)
        arrays = self.encoded.arrays
        if not keep_outputs:
            arrays = arrays._replace(is_output=np.zeros_like(arrays.is_output))
        canonical_frees(arrays, sequence, needed, free_ptr, freed)
        return free_ptr, freed[: free_ptr[-1]]

    def just_in_time(self, counts: Ints, origin: Flags, gradient_of: Ints | None = None) -> Ints:
        """Op rows of the program in which each op runs again `counts` times; see `kernels.segments.recompute`."""
        gradient_of = np.full(len(counts), -1, dtype=np.int64) if gradient_of is None else gradient_of
        sequence = np.empty(len(self.keep_all) + int(counts.sum()), dtype=np.int64)
        length = recompute(self.encoded.arrays, self.keep_all, counts, origin, gradient_of, sequence)
        return sequence[:length]

    def _replay(self, sequence: Ints, free_ptr: Ints, freed: Ints) -> _Replayed | None:
        timeline = np.zeros(len(sequence), dtype=np.int64)
        rows = np.empty((4, int(self._outputs[sequence].sum())), dtype=np.int64)
        arrays, scratch = self.encoded.arrays, self._scratch.rows
        peak_bytes, cost, count, illegal = replay(arrays, sequence, free_ptr, freed, timeline, rows, scratch)
        return None if illegal >= 0 else _Replayed(int(peak_bytes), float(cost), timeline, rows[:, :count])


@lru_cache(maxsize=4)
def evaluator_of(graph: Graph, memory: MemoryModel) -> Evaluator:
    """The evaluator of a graph and memory model; the last few are kept, since search, packing and retries share one."""
    return Evaluator(graph, memory)


def _executions(sequence: Ints) -> Ints:
    """For each step, how often its op ran before."""
    order = np.argsort(sequence, kind="stable")
    ordered = sequence[order]
    firsts = np.flatnonzero(np.diff(ordered, prepend=-1))
    counts = np.arange(len(ordered)) - np.repeat(firsts, np.diff(np.append(firsts, len(ordered))))
    result = np.empty_like(sequence)
    result[order] = counts
    return result
