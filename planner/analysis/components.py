"""What a program holds while it runs: each byte of the judged keep-all run given to a component and a phase."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Final, final

import msgspec
import numpy as np

from planner.analysis.bounds import PeakBound, peak_lower_bound
from planner.analysis.liveness import Evaluator, Liveness
from planner.errors import GraphError, PlannerError, VerificationError
from planner.graph import Graph, Op, Phase
from planner.lowering.step import Target, targets_of
from planner.memory import MemoryModel
from planner.simulator import Trace, simulate

COMPONENTS: Final = (
    "inputs", "parameters", "parameter_copies", "gradients", "optimizer_state", "master_weights", "activations", "activation_gradients",
    "loss_tail", "workspace", "other",
)  # fmt: skip
PHASES: Final[tuple[Phase, ...]] = ("forward", "loss", "backward", "update")
_LOSS_OPS: Final = frozenset({"SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss", "SoftmaxOutput"})
_THROUGH: Final = frozenset({"Cast", "Reshape", "Flatten", "Identity", "Squeeze", "Unsqueeze", "Softmax", "LogSoftmax", "Log"})
_SUMS: Final = frozenset({"Add", "Sum", "Cast", "Accumulate", "GradientBuffer"})
_STEP_ROLES: Final = {"OptimizerState": "optimizer_state", "MasterWeights": "master_weights", "StepTemporary": "workspace"}
_SCALAR_BYTES: Final = 8


class Moment(msgspec.Struct, frozen=True):
    """The step of a phase with the most bytes.

    Args:
        phase: "forward", "loss", "backward" or "update" (the optimizer step).
        peak_bytes: most bytes at a step of it, residents included in scope "total".
        op: the first op that needs them.
        step: its place in the iteration.
        components: bytes of each component live at that step; they add up to `peak_bytes`.
        live: (value, bytes) of the largest storages live there, residents not.
    """

    phase: str
    peak_bytes: int
    op: str
    step: int
    components: dict[str, int]
    live: tuple[tuple[str, int], ...]


class Iteration(msgspec.Struct, frozen=True):
    """One iteration, all its micro-batches and the update.

    Args:
        name: "first" (optimizer states and gradient buffers come into being) or "later".
        phases: those it has, in their order.
        most: of each component, the most bytes of it that are live at one step.
    """

    name: str
    phases: tuple[Moment, ...]
    most: dict[str, int]

    @property
    def peak(self) -> Moment:
        """The phase with the most bytes; the earliest of equals."""
        return max(self.phases, key=lambda moment: moment.peak_bytes)

    def phase(self, name: str) -> Moment:
        """The phase of that name.

        Raises:
            PlannerError: the step has none of that name.
        """
        for moment in self.phases:
            if moment.phase == name:
                return moment
        raise PlannerError(f"no phase {name!r} in this step; it has {', '.join(moment.phase for moment in self.phases)}")


class Tail(msgspec.Struct, frozen=True):
    """What recomputation cannot go below in the loss tail, and what splitting it would leave.

    Args:
        op: the op of the tail with the largest working set.
        needed_bytes: what it needs by itself, residents included.
        divisible_bytes: of these, what becomes 1/k in k chunks of the rows.
        boundary_bytes: what the tail reads, and its gradient, which stay whole.
        resident_bytes: residents.
        edge_bytes: what becomes 1/k of the gradient that leaves the tail.
        weight_gradients_bytes: of the parameters whose product with it is summed over chunks.
        rest_bytes: what the ops outside the tail, and the update, need at least.
    """

    op: str
    needed_bytes: int
    divisible_bytes: int
    boundary_bytes: int
    resident_bytes: int
    edge_bytes: int
    weight_gradients_bytes: int
    rest_bytes: int

    def chunked_bytes(self, chunks: int) -> int:
        """Bytes with the loss in so many equal chunks and all else recomputed; scalars are not counted.

        The sum of the weight gradients so far is live throughout, and beside it that of one chunk while its gradient leaves the tail.
        """
        whole, weights = self.resident_bytes + self.boundary_bytes + self.weight_gradients_bytes, self.weight_gradients_bytes
        return max(whole + -(-self.divisible_bytes // chunks), whole + -(-self.edge_bytes // chunks) + weights, self.rest_bytes)


def simulated(graph: Graph, memory: MemoryModel, name: str) -> tuple[Iteration, Simulated]:
    work = Simulated(graph, memory)
    return work.iteration(name), work


@final
class Simulated:
    """The keep-all run of a program, judged, with each byte given to a component."""

    def __init__(self, graph: Graph, memory: MemoryModel) -> None:
        self.graph, self.memory = graph, memory
        evaluator = Evaluator(graph, memory)
        schedule = evaluator.schedule(evaluator.keep_all)
        self.trace: Final[Trace] = simulate(graph, schedule, memory=memory)
        self.liveness: Final[Liveness] = evaluator.liveness(schedule)
        self.names: Final = (evaluator.encoded.value_names, evaluator.encoded.op_names)
        self.order: Final = schedule.computes
        self.component: Final = _components(graph)

    @cached_property
    def bound(self) -> PeakBound:
        """What no schedule goes below."""
        return peak_lower_bound(self.graph, self.memory)

    def phase_of(self, op: str | None) -> str:
        """Phase of an op; "forward" where it has none."""
        return "forward" if op is None else self.graph.op_named[op].phase or "forward"

    def _residents(self) -> dict[str, int]:
        sizes = dict.fromkeys(COMPONENTS, 0)
        if self.memory.scope == "total":
            for op in self.graph.ops:
                for t in op.outputs if op.resident else ():
                    sizes[self.component[t.name]] += self.memory.round_up(t.nbytes)
        return sizes

    def _stretches(self) -> Iterator[tuple[str, str, int, int, int]]:
        """(component, value, bytes, start, end) of every storage, cut where an in-place op makes something else of it."""
        taken: dict[str, list[tuple[int, str]]] = {}
        root: dict[str, str] = {}
        for step, output, source in self.trace.inplace_taken:
            base = self.graph.storage_root[source]
            base = root.get(base, base)
            root[output] = base
            taken.setdefault(base, []).append((step, output))
        live = self.liveness
        rows = zip(live.value.tolist(), live.workspace.tolist(), live.nbytes.tolist(), live.start.tolist(), live.end.tolist(), strict=True)
        for row, workspace, nbytes, start, end in rows:
            name = self.names[workspace][row]
            if workspace:
                yield "workspace", name, nbytes, start, end
                continue
            since = start
            for step, output in taken.get(name, ()):
                yield self.component[name], name, nbytes, since, step
                name, since = output, step
            yield self.component[name], name, nbytes, since, end

    def iteration(self, name: str) -> Iteration:
        """Bytes by component at the peak of each phase.

        Raises:
            VerificationError: the components do not add up to what the judge saw.
        """
        steps = len(self.order)
        place = {component: row for row, component in enumerate(COMPONENTS)}
        table = np.zeros((len(COMPONENTS), steps + 1), dtype=np.int64)
        stretches = list(self._stretches())
        for component, _, nbytes, start, end in stretches:
            table[place[component], start] += nbytes
            table[place[component], end] -= nbytes
        table = table.cumsum(axis=1)[:, :steps]
        for component, nbytes in self._residents().items():
            table[place[component]] += nbytes
        timeline = np.array(self.trace.timeline_bytes, dtype=np.int64)
        if not np.array_equal(table.sum(axis=0), timeline):
            raise VerificationError("the components of the footprint do not add up to the judge's timeline; please report the graph")
        phases = np.array([PHASES.index(self.graph.op_named[op].phase or "forward") for op in self.order], dtype=np.int64)
        moments = []
        for row, phase in enumerate(PHASES):
            at = np.flatnonzero(phases == row)
            if len(at):
                step = int(at[timeline[at].argmax()])
                there = [(value, nbytes) for _, value, nbytes, start, end in stretches if start <= step < end and nbytes]
                live = sorted(there, key=lambda pair: (-pair[1], pair[0]))
                components = {component: int(table[place[component], step]) for component in COMPONENTS}
                moments.append(Moment(phase, int(timeline[step]), self.order[step], step, components, tuple(live[:10])))
        if not moments:
            raise GraphError(f"graph {self.graph.name!r} has no op to run")
        return Iteration(name, tuple(moments), {component: int(table[place[component]].max()) for component in COMPONENTS})

    def by_dtype(self) -> dict[str, dict[str, int]]:
        """Bytes by dtype of what the parameters bring with them, each storage once."""
        kinds = ("parameters", "parameter_copies", "gradients", "optimizer_state", "master_weights")
        found: dict[str, dict[str, int]] = {kind: {} for kind in kinds}
        buffers = {target.gradient for target in targets_of(self.graph)} or _gradient_buffers(self.graph)
        for t in self.graph.tensors.values():
            kind = self.component[t.name]
            if kind in found and (t.name in buffers if kind == "gradients" else self.graph.storage_root[t.name] == t.name):
                dtype = t.dtype or "unknown"
                found[kind][dtype] = found[kind].get(dtype, 0) + t.nbytes
        return {kind: sizes for kind, sizes in found.items() if sizes}

    def tail(self) -> Tail | None:
        """The op of the loss tail with the largest working set, and what of it would divide."""
        graph = self.graph
        values = {name for name, component in self.component.items() if component == "loss_tail"}
        if not values:
            return None
        size = {name: self.memory.round_up(t.nbytes) for name, t in graph.tensors.items()}
        tail, needed, divisible, rest, boundary = "", 0, 0, 0, set[str]()
        edge = weights = 0
        for op in graph.ops:
            if op.resident:
                continue
            roots = {graph.storage_root[value] for value in (*op.reads, *(t.name for t in op.outputs)) if not graph.on_resident(value)}
            shared = _takeable_bytes(graph, op)
            whole = sum(size[root] for root in roots) - shared + op.workspace
            if not any(t.name in values for t in op.outputs):
                read = {graph.storage_root[value] for value in op.reads} & values
                large = sum(size[root] for root in read if graph.tensors[root].nbytes > _SCALAR_BYTES)
                if not large:
                    rest = max(rest, whole)
                elif op.phase == "backward":
                    edge = max(edge, large)
                    weights += sum(t.nbytes for t in op.outputs if self.component[t.name] == "gradients")
                continue
            if op.phase != "backward":
                boundary |= {root for root in roots if root not in values}
            if whole > needed:
                parts = sum(size[root] for root in roots if root in values and graph.tensors[root].nbytes > _SCALAR_BYTES)
                tail, needed, divisible = op.name, whole, max(0, parts - shared)
        resident = sum(self._residents().values())
        around = sum(size[root] for root in boundary)
        twice = 2 if any(op.phase == "backward" for op in graph.ops) else 1
        update = max((n for op, n in zip(self.order, self.trace.timeline_bytes, strict=True) if self.phase_of(op) == "update"), default=0)
        return Tail(tail, resident + needed, divisible, twice * around, resident, edge, weights, max(resident + rest, update))


def _takeable_bytes(graph: Graph, op: Op) -> int:
    """The most bytes that one in-place pair could save."""
    sizes = [0]
    for i, o, _ in op.inplace:
        given = graph.storage_root[op.reads[i]]
        if not graph.on_resident(given) and graph.tensors[given].nbytes == op.outputs[o].nbytes:
            sizes.append(op.outputs[o].nbytes)
    return max(sizes)


def _components(graph: Graph) -> dict[str, str]:
    """For each value, what it is to a person."""
    targets = targets_of(graph)
    states = {state for target in targets for state in target.states}
    for target in targets:  # states that come into being in the first iteration
        if target.op is not None:
            states.update(value for value in target.op.reads if graph.producer[value].op == "OptimizerState")
    buffers = _gradient_buffers(graph)
    gradients = _gradient_values(graph, targets) | buffers
    tail = _loss_tail(graph) - gradients
    found: dict[str, str] = {}
    for op in graph.ops:
        for t in op.outputs:
            root = graph.producer[graph.storage_root[t.name]]
            name = graph.storage_root[t.name]
            if root.op in _STEP_ROLES:
                kind = _STEP_ROLES[root.op]
            elif root.op == "GradientBuffer" or t.name in gradients or name in gradients:
                kind = "gradients"
            elif root.resident:
                kind = {"input": "inputs", "parameter": "parameters"}.get(root.kind, "optimizer_state" if name in states else "other")
            elif t.name in tail:
                kind = "loss_tail"
            elif op.phase == "backward":
                kind = "activation_gradients"
            elif op.phase == "update":
                kind = "other"
            elif op.op == "Cast" and all(graph.producer[graph.storage_root[v]].kind == "parameter" for v in op.reads):
                kind = "parameter_copies"
            else:
                kind = "activations"
            found[t.name] = kind
    return found


def _gradient_buffers(graph: Graph) -> set[str]:
    """Resident states that the backward pass adds to."""
    roots = (graph.storage_root[op.reads[i]] for op in graph.ops if op.phase == "backward" for i, _ in op.updates)
    return {root for root in roots if graph.producer[root].kind == "state"}


def _gradient_values(graph: Graph, targets: Iterable[Target]) -> set[str]:
    """Gradients of parameters and the terms they are summed from."""
    found = {target.gradient for target in targets}
    buffers = _gradient_buffers(graph)
    for op in graph.ops:
        if op.phase == "backward" and any(graph.storage_root[op.reads[i]] in buffers for i, _ in op.updates):
            found.update(value for value in op.reads if graph.producer[value].phase == "backward")
    waiting = list(found)
    while waiting:
        op = graph.producer[waiting.pop()]
        for value in op.reads if op.op in _SUMS else ():
            maker = graph.producer[value]
            if value not in found and not maker.resident and maker.phase == "backward":
                found.add(value)
                waiting.append(value)
    return found


def _loss_tail(graph: Graph) -> set[str]:
    """Logits, their copies in other dtypes, what the loss makes, and the gradients of these."""
    found: set[str] = set()
    for op in graph.ops:
        if not op.resident and (op.phase == "loss" or (op.op in _LOSS_OPS and op.phase != "backward")):
            found.update(t.name for t in op.outputs)
    waiting = [value for op in graph.ops if op.op in _LOSS_OPS and op.phase != "backward" for value in op.reads]
    while waiting:
        value = waiting.pop()
        op = graph.producer[value]
        if value not in found and not graph.on_resident(value) and op.phase != "backward":
            found.add(value)
            if op.op in _THROUGH or op.view:
                waiting += op.reads
    for op in graph.ops if found else ():
        if op.phase == "backward" and any(value in found for value in op.reads):
            makers = (graph.producer[graph.storage_root[value]] for value in op.reads if value not in found)
            if all(maker.kind == "input" for maker in makers):
                found.update(t.name for t in op.outputs)
    return found
