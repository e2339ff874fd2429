"""What a program holds while it runs: each byte of a judged run belongs to a component and a phase."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Final, final

import msgspec
import numpy as np

from planner.analysis.arrays import FORWARD, Ints
from planner.analysis.evaluator import Evaluator
from planner.analysis.roles import COMPONENTS as COMPONENTS
from planner.analysis.roles import gradient_buffers, roles
from planner.analysis.stretches import Stretch, bytes_by_step, stretches
from planner.bounds.peak import PeakBound, peak_lower_bound
from planner.errors import GraphError, PlannerError, VerificationError
from planner.graph import Graph, Phase
from planner.lowering.targets import targets_of
from planner.memory import MemoryModel
from planner.schedule import Schedule
from planner.simulator import Trace, simulate

#: Components made anew from each batch: recomputation can shorten their lives.
MADE_OF_A_BATCH: Final = frozenset({"activations", "activation_gradients", "loss_tail"})
PHASES: Final[tuple[Phase, ...]] = ("forward", "loss", "backward", "update")


class Moment(msgspec.Struct, frozen=True):
    """The step of a phase with the most bytes.

    Args:
        phase: "forward", "loss", "backward" or "update" (the optimizer step).
        peak_bytes: most bytes at a step of the phase, residents included in scope "total".
        op: the first op that needs them.
        step: its place in the iteration.
        components: bytes of each component live at that step; they add up to `peak_bytes`.
        live: (value, bytes) of the largest storages live at that step, without residents.
    """

    phase: str
    peak_bytes: int
    op: str
    step: int
    components: dict[str, int]
    live: tuple[tuple[str, int], ...]

    @property
    def batch_bytes(self) -> int:
        """What grows with the batch: inputs, values made from them, and workspace outside the optimizer step."""
        growing = MADE_OF_A_BATCH | {"inputs"} | ({"workspace"} if self.phase != "update" else set())
        return sum(nbytes for component, nbytes in self.components.items() if component in growing)


class Iteration(msgspec.Struct, frozen=True):
    """One iteration, all its micro-batches and the update.

    Args:
        name: "first" (optimizer states and gradient buffers come into being) or "later".
        phases: the peak of each phase it has, in order.
        most: for each component, the most bytes live at one step.
    """

    name: str
    phases: tuple[Moment, ...]
    most: dict[str, int]

    @property
    def peak(self) -> Moment:
        """The phase with the most bytes; the earliest of equals."""
        return max(self.phases, key=lambda moment: moment.peak_bytes)

    def phase(self, name: str) -> Moment:
        """The phase of that name; a PlannerError where the step has none."""
        by_name = {moment.phase: moment for moment in self.phases}
        if name not in by_name:
            raise PlannerError(f"no phase {name!r} in this step; it has {', '.join(by_name)}")
        return by_name[name]


def simulated(graph: Graph, memory: MemoryModel, name: str) -> tuple[Iteration, Simulated]:
    """The iteration of a program run without recomputation, and the run."""
    work = Simulated(graph, memory)
    return work.iteration(name), work


@final
class Simulated:
    """A judged run of a program, each byte of which belongs to a component.

    Args:
        evaluator, schedule, trace: those of the run if the caller has them. Default: the run without recomputation.
    """

    def __init__(
        self,
        graph: Graph,
        memory: MemoryModel,
        *,
        evaluator: Evaluator | None = None,
        schedule: Schedule | None = None,
        trace: Trace | None = None,
    ) -> None:
        self.graph, self.memory = graph, memory
        self.evaluator: Final = evaluator or Evaluator(graph, memory)
        evaluator = self.evaluator
        self.schedule: Final = schedule or evaluator.schedule(evaluator.keep_all)
        self.trace: Final[Trace] = trace or simulate(graph, self.schedule, memory=memory)
        self.order: Final = self.schedule.computes
        self.component: Final = roles(graph)
        phase = dict(zip(evaluator.encoded.op_names, evaluator.encoded.arrays.phase.tolist(), strict=True))
        self.phases: Final = np.array([max(phase[op], FORWARD) - FORWARD for op in self.order], dtype=np.int64)
        self.timeline: Final = np.array(self.trace.timeline_bytes, dtype=np.int64)

    @cached_property
    def bound(self) -> PeakBound:
        """The lower bound on the peak of any schedule."""
        return peak_lower_bound(self.graph, self.memory)

    def phase_of(self, op: str | None) -> str:
        """Phase of an op; "forward" where it has none."""
        return "forward" if op is None else self.graph.op_named[op].phase or "forward"

    @cached_property
    def residents(self) -> dict[str, int]:
        """Bytes of residents by component; nothing in scope "activations"."""
        sizes = dict.fromkeys(COMPONENTS, 0)
        if self.memory.scope == "total":
            for op in self.graph.ops:
                for t in op.outputs if op.resident else ():
                    sizes[self.component[t.name]] += self.memory.round_up(t.nbytes)
        return sizes

    @cached_property
    def stretches(self) -> list[Stretch]:
        """Every storage and workspace, cut where an in-place op puts another value on it."""
        return stretches(self.evaluator, self.schedule, self.trace)

    def bytes_by_step(self, groups: Sequence[int], count: int) -> Ints:
        """Bytes of each group of stretches at each step [count, steps], without residents.

        Args:
            groups: the group of each of `stretches`, below `count`.
        """
        return bytes_by_step(self.stretches, groups, count=count, steps=len(self.order))

    @cached_property
    def table(self) -> Ints:
        """Bytes of each component at each step, residents included [components, steps].

        Raises:
            VerificationError: the components do not add up to what the judge saw.
        """
        place = {component: row for row, component in enumerate(COMPONENTS)}
        table = self.bytes_by_step([place[component] for component, *_ in self.stretches], len(COMPONENTS))
        table += np.array([[self.residents[component]] for component in COMPONENTS], dtype=np.int64)
        if not np.array_equal(table.sum(axis=0), self.timeline):
            raise VerificationError("the components do not add up to the judge's timeline; please report the graph")
        return table

    def iteration(self, name: str) -> Iteration:
        """Bytes by component at the peak of each phase."""
        steps = [np.flatnonzero(self.phases == row) for row in range(len(PHASES))]
        ran = [(phase, at) for phase, at in zip(PHASES, steps, strict=True) if len(at)]
        peaks = [(phase, int(at[self.timeline[at].argmax()])) for phase, at in ran]
        if not peaks:
            raise GraphError(f"graph {self.graph.name!r} has no op to run")
        most = dict(zip(COMPONENTS, self.table.max(axis=1).tolist(), strict=True))
        return Iteration(name, tuple(self._moment(phase, step) for phase, step in peaks), most)

    def _moment(self, phase: Phase, step: int) -> Moment:
        nbytes, components = int(self.timeline[step]), self.components_at(step)
        live = [(value, size) for _, value, size, start, end in self.stretches if start <= step < end and size]
        largest = sorted(live, key=lambda pair: (-pair[1], pair[0]))[:10]
        return Moment(phase, nbytes, self.order[step], step, components, tuple(largest))

    def components_at(self, step: int) -> dict[str, int]:
        """Bytes of each component at a step."""
        return dict(zip(COMPONENTS, self.table[:, step].tolist(), strict=True))

    def update_floor(self, *, less: Ints | None = None) -> tuple[int, int] | None:
        """(bytes, step) of the update op that holds most, without activations and their gradients; None without one.

        No plan goes below it that makes no gradient twice and keeps the order of updates.

        Args:
            less: bytes at each step to leave out.
        """
        at = np.flatnonzero(self.phases == PHASES.index("update"))
        if not len(at):
            return None
        tensors = self.graph.tensors
        passing = [of in MADE_OF_A_BATCH and not tensors[value].output for of, value, *_ in self.stretches]
        held = (self.timeline - self.bytes_by_step(passing, 2)[1] - (0 if less is None else less))[at]
        return int(held.max()), int(at[held.argmax()])

    @property
    def step_bytes(self) -> int:
        """`update_floor` without temporaries of the update; 0 without one."""
        held = self.update_floor()
        return 0 if held is None else held[0] - self.components_at(held[1])["workspace"]

    def by_dtype(self) -> dict[str, dict[str, int]]:
        """Bytes by dtype of parameters, gradients, optimizer state and copies, each storage once."""
        kinds = ("parameters", "parameter_copies", "gradients", "optimizer_state", "master_weights")
        found: dict[str, dict[str, int]] = {kind: {} for kind in kinds}
        buffers = {target.gradient for target in targets_of(self.graph)} or gradient_buffers(self.graph)
        for t in self.graph.tensors.values():
            kind = self.component[t.name]
            own = t.name in buffers if kind == "gradients" else self.graph.storage_root[t.name] == t.name
            if own and kind in found:
                dtype = t.dtype or "unknown"
                found[kind][dtype] = found[kind].get(dtype, 0) + t.nbytes
        return {kind: sizes for kind, sizes in found.items() if sizes}
