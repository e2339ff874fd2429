"""What a training step really holds: bytes by component and phase, by simulating the very step that will run.

Options that change the step (optimizer, accumulation, master weights, how the update is done) rewrite its program; the judge then
replays the result. Nothing is read off a formula, except where a rule of thumb is asked for by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Optional

import msgspec
import networkx as nx

from planner.analysis.bounds import PeakBound
from planner.analysis.components import Iteration, Moment, Simulated, Tail, simulated
from planner.api import GraphLike, as_graph
from planner.api import optimize as find_plan
from planner.errors import InfeasibleBudget, PlannerError, UnitError
from planner.graph import Graph
from planner.lowering.differentiate import differentiate
from planner.lowering.files import read_graph
from planner.lowering.step import OPTIMIZER_STATES, Gradients, StepOptions, Update, im2col_bytes, targets_of, training_step
from planner.memory import MemoryModel
from planner.units import MAX_BYTES, Budget, format_bytes, parse_budget

#: Nominal memory of devices in bytes; the driver and the context take a part that no graph shows: use `MemoryModel(reserve=...)`.
DEVICE_BYTES: Final[Mapping[str, int]] = {
    name: gib * 2**30
    for name, gib in {
        "a100": 80, "a100-40": 40, "h100": 80, "h200": 141, "v100": 32, "v100-16": 16, "t4": 16, "l4": 24, "a10": 24, "l40s": 48,
        "rtx4090": 24, "rtx3090": 24, "titanx": 12, "gtx1080ti": 11,
    }.items()
}  # fmt: skip

#: Layers whose outputs the rule of thumb counts; ReLU and the like are in place, normalization is left out.
_RULE_OPS: Final = frozenset({"Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool", "Gemm", "MatMul"})


class RuleOfThumb(msgspec.Struct, frozen=True):
    """The estimate of the CS231n notes, beside the simulation; see `rule_of_thumb`.

    Args:
        parameters_bytes, activations_bytes, inputs_bytes: what it counts, once, the whole batch.
        factor: copies of the parameters.
        lowering_bytes: im2col matrices of all convolutions, if asked for: N * C_in * k_h * k_w * H_out * W_out elements each.
        total_bytes: factor * parameters + 2 * activations + inputs + lowering.
    """

    name: str
    parameters_bytes: int
    activations_bytes: int
    inputs_bytes: int
    factor: int
    lowering_bytes: int
    total_bytes: int


class Remedy(msgspec.Struct, frozen=True):
    """One thing to do about a budget that is missed.

    Args:
        action: what.
        peak_bytes: what the step then takes.
        fits: that is within the budget.
        note: for people.
        at_least: no plan goes below `peak_bytes`, and the least there is may be above it.
    """

    action: str
    peak_bytes: int
    fits: bool
    note: str
    at_least: bool = False


class Advice(msgspec.Struct, frozen=True):
    """What stands between a step and a budget.

    Args:
        budget: bytes.
        fits: the step as it is.
        peak_bytes, phase: of the step as it is.
        floor_bytes, floor_phase, floor_op: what no recomputation goes below, and where.
        recompute_helps: it could be enough; `optimize` finds out.
        remedies: others, best first.
    """

    budget: int
    fits: bool
    peak_bytes: int
    phase: str
    floor_bytes: int
    floor_phase: str
    floor_op: Optional[str]
    recompute_helps: bool
    remedies: tuple[Remedy, ...]

    def __str__(self) -> str:
        asked = f"{format_bytes(self.budget)} ({self.budget} bytes)"
        if self.fits:
            return f"Fits {asked}: the peak is {format_bytes(self.peak_bytes)} in phase {self.phase}."
        lines = [f"Does not fit {asked}: the peak is {format_bytes(self.peak_bytes)} ({self.peak_bytes} bytes) in phase {self.phase}."]
        if not self.recompute_helps:
            where = f"phase {self.floor_phase}" + (f", op {self.floor_op!r}" if self.floor_op else "")
            lines.append(f"  Recomputation cannot help: {where} alone needs {format_bytes(self.floor_bytes)} ({self.floor_bytes} bytes).")
        for remedy in self.remedies:
            verdict = ("may fit" if remedy.at_least else "fits") if remedy.fits else "does not fit"
            size = f"{'at least ' if remedy.at_least else ''}{format_bytes(remedy.peak_bytes)} ({remedy.peak_bytes} bytes)"
            lines.append(f"  {remedy.action}: {size}, {verdict}. {remedy.note}")
        return "\n".join(lines)


class Footprint(msgspec.Struct, frozen=True):
    """What a step holds, by component and phase, in the first and in later iterations.

    Args:
        graph, fingerprint: of the graph asked about.
        training: it has a backward pass or an update.
        optimizer, micro_batches, gradients, update, master_weights, lowering: as `estimate` took them; None: as the graph has it.
        memory: what is counted.
        parameters: number of elements, each storage once (0 if no shapes are known).
        by_dtype: of parameters, their copies, gradients, optimizer state and master weights, bytes by dtype ("unknown" without one).
        first, later: iterations.
        floor_bytes, floor_phase, floor_op: what no recomputation can go below.
        alternatives: for other ways to do the update, (peak, floor) bytes.
        tail: of the loss, if the graph has one.
        rule: the rule of thumb, if asked for.
        not_counted: what no graph shows.
    """

    graph: str
    fingerprint: str
    training: bool
    optimizer: Optional[str]
    micro_batches: int
    gradients: str
    update: Optional[str]
    master_weights: bool
    lowering: bool
    memory: MemoryModel
    parameters: int
    by_dtype: dict[str, dict[str, int]]
    first: Iteration
    later: Iteration
    floor_bytes: int
    floor_phase: str
    floor_op: Optional[str]
    alternatives: dict[str, tuple[int, int]]
    tail: Optional[Tail]
    rule: Optional[RuleOfThumb] = None
    not_counted: tuple[str, ...] = ("device context and libraries", "communication buffers", "allocator rounding and fragmentation")

    @property
    def worst(self) -> Iteration:
        """The iteration with the higher peak; the later ones if equal."""
        return self.first if self.first.peak.peak_bytes > self.later.peak.peak_bytes else self.later

    @property
    def peak(self) -> Moment:
        """Where the most bytes are live, over all iterations."""
        return self.worst.peak

    @property
    def peak_bytes(self) -> int:
        """Most bytes at any step."""
        return self.peak.peak_bytes

    @property
    def phase(self) -> str:
        """The phase of the peak; "update" is the optimizer step."""
        return self.peak.phase

    @property
    def components(self) -> dict[str, int]:
        """Bytes of each component at the peak; they add up to it."""
        return self.peak.components

    def fits(self, device: Budget) -> bool:
        """True if peak + reserve is within a device's memory.

        Args:
            device: bytes in any form a budget has (`"16GiB"`, an int), or a device's name (see `DEVICE_BYTES`).
        Raises:
            UnitError: neither.
        """
        return self.peak_bytes + self.memory.reserve <= device_bytes(device, self.peak_bytes)

    def advice(self, budget: Budget) -> Advice:
        """What stands between the step and a budget, whether recomputation can help, and what else would.

        Args:
            budget: as for `fits`.
        """
        nbytes = device_bytes(budget, self.peak_bytes)
        allowed = nbytes - self.memory.reserve
        fits = self.peak_bytes <= allowed
        return Advice(
            budget=nbytes,
            fits=fits,
            peak_bytes=self.peak_bytes,
            phase=self.phase,
            floor_bytes=self.floor_bytes,
            floor_phase=self.floor_phase,
            floor_op=self.floor_op,
            recompute_helps=not fits and self.floor_bytes <= allowed,
            remedies=() if fits else tuple(sorted(self._remedies(allowed), key=lambda remedy: not remedy.fits)),
        )

    def _remedies(self, allowed: int) -> Iterator[Remedy]:
        if self.floor_bytes <= allowed:
            note = f"{self._activations_left(allowed)}optimize(graph, budget) finds the cheapest that fits."
            yield Remedy("Recomputation", self.floor_bytes, True, note, at_least=True)
        for update, (peak, floor) in self.alternatives.items() if "update" in (self.phase, self.floor_phase) else ():
            if peak <= allowed:
                yield Remedy(f"{update} update", peak, True, "No recomputation is needed.")
            elif floor <= allowed:
                yield Remedy(f"{update} update with recomputation", floor, True, self._activations_left(allowed).strip(), at_least=True)
            else:
                yield Remedy(f"{update} update", floor, False, "Even without any activation.")
        tail = self.tail
        if tail is not None and tail.needed_bytes > allowed:
            chunks = next((2**k for k in range(1, 21) if tail.chunked_bytes(2**k) <= allowed), 2**20)
            peak = tail.chunked_bytes(chunks)
            note = f"The loss tail (op {tail.op!r}) then holds 1/{chunks} of its rows at a time; recompute the rest within the budget."
            yield Remedy(f"Loss in {chunks} chunks", peak, peak <= allowed, note)
        yield from self._smaller_batch(allowed)

    def _smaller_batch(self, allowed: int) -> Iterator[Remedy]:
        """What part of the batch fits as it is; the update does not depend on the batch."""
        lasting = ("parameters", "gradients", "optimizer_state", "master_weights", "parameter_copies")
        fixed = max(sum(self.worst.peak.components[name] for name in lasting), *self._update_bytes(), 0)
        if fixed > allowed:
            yield Remedy("Smaller batch", fixed, False, "What does not depend on the batch is too large.")
        elif self.peak_bytes > fixed:
            share = (allowed - fixed) / (self.peak_bytes - fixed)
            yield Remedy("Smaller batch", allowed, True, f"About {share:.0%} of the batch would fit as it is.")

    def _update_bytes(self) -> list[int]:
        return [moment.peak_bytes for which in (self.first, self.later) for moment in which.phases if moment.phase == "update"]

    def _activations_left(self, allowed: int) -> str:
        """How far the activations at the end of the forward pass must shrink."""
        for moment in self.later.phases:
            kept = moment.components["activations"]
            if moment.phase == "forward" and 0 < moment.peak_bytes - kept < allowed < moment.peak_bytes:
                return f"Activations of the forward pass must be at most {allowed - moment.peak_bytes + kept} bytes (now {kept}). "
        return ""

    def __str__(self) -> str:
        from planner.views.footprint import as_text

        return as_text(self)


def device_bytes(device: Budget, keep_all_peak_bytes: int = MAX_BYTES) -> int:
    """Bytes of a device by name, or of a budget in any form.

    Raises:
        UnitError: neither a device nor a size.

    >>> device_bytes("a100"), device_bytes("16GiB")
    (85899345920, 17179869184)
    """
    if isinstance(device, str) and device.strip().lower() in DEVICE_BYTES:
        return DEVICE_BYTES[device.strip().lower()]
    try:
        return parse_budget(device, keep_all_peak_bytes)
    except UnitError as error:
        raise UnitError(f"{error}; or a device: {', '.join(DEVICE_BYTES)}") from None


def estimate(
    graph: GraphLike,
    *,
    optimizer: str | None = None,
    micro_batches: int = 1,
    gradients: Gradients = "released",
    update: Update | None = None,
    master_weights: bool = False,
    lowering: bool = False,
    rule: str | None = None,
    memory: MemoryModel = MemoryModel(),
) -> Footprint:
    """Simulate the step that will run, and split what it holds by component and phase.

    Args:
        graph: as for `optimize`. A forward graph is inference, unless an optimizer is named and the graph is a networkx DAG or a
            file that `differentiate` can take.
        optimizer: one of `OPTIMIZER_STATES`; None: what the graph has.
        micro_batches: K forward and backward passes before one update; gradient buffers live across them. The third and later equal
            the second, so two are replayed.
        gradients: between iterations "released" (set to None) or "zeroed" (buffers stay, and new gradients are added to them).
        update: "fused" (no temporary), "per-tensor" (one of the parameter's size at a time), "multi-tensor" (one for all parameters,
            live throughout the update); None: as the graph has it.
        master_weights: parameters of 2 bytes or less an element have a float32 master, and float32 optimizer states.
        lowering: convolutions unfold their input (im2col) into workspace of N * C_in * k_h * k_w * H_out * W_out elements, forward and
            backward; a 1x1 kernel needs none.
        rule: "cs231n": the rule of thumb too, see `rule_of_thumb`.
        memory: scope and alignment.
    Raises:
        GraphError: the graph, or one that an option cannot be applied to.
        PlannerError: an option.

    >>> from planner import zoo
    >>> found = estimate(zoo.mlp([4, 8, 2], batch=2), optimizer="adam")
    >>> found.phase, found.peak_bytes == sum(found.components.values()), found.components["optimizer_state"]
    ('backward', True, 464)
    """
    if rule not in (None, "cs231n"):
        raise PlannerError(f"rule {rule!r} is not known; there is 'cs231n'")
    options = StepOptions(optimizer, micro_batches, gradients, update, master_weights, lowering)
    program = _with_backward(graph, options)
    later, later_work = simulated(training_step(program, options), memory, "later")
    rewritten = training_step(program, options, first=True)
    first = msgspec.structs.replace(later, name="first") if rewritten is later_work.graph else simulated(rewritten, memory, "first")[0]
    bound = later_work.bound
    floor, phase, op = _floor(bound, later_work, (first, later))
    alternatives: dict[str, tuple[int, int]] = {}
    if update == "multi-tensor" and any(moment.phase == "update" for moment in later.phases):
        for other in ("per-tensor", "fused"):
            its = StepOptions(optimizer, micro_batches, gradients, other, master_weights, lowering)
            both = [simulated(training_step(program, its, first=start), memory, "") for start in (False, True)]
            least = _floor(both[0][1].bound, both[0][1], [iteration for iteration, _ in both])[0]
            alternatives[other] = (max(iteration.peak.peak_bytes for iteration, _ in both), least)
    found = later_work.graph
    parameters = [t for op_ in found.ops if op_.kind == "parameter" for t in op_.outputs]
    return Footprint(
        graph=program.name,
        fingerprint=program.fingerprint,
        training=any(op_.phase in ("backward", "update") for op_ in program.ops),
        optimizer=optimizer,
        micro_batches=micro_batches,
        gradients=gradients,
        update=update,
        master_weights=master_weights,
        lowering=lowering,
        memory=memory,
        parameters=sum(math.prod(t.shape) for t in parameters if t.shape is not None),
        by_dtype=later_work.by_dtype(),
        first=first,
        later=later,
        floor_bytes=floor,
        floor_phase=phase,
        floor_op=op,
        alternatives=alternatives,
        tail=later_work.tail(),
        rule=_rule(program, optimizer, lowering=lowering) if rule else None,
    )


def _floor(bound: PeakBound, work: Simulated, iterations: Iterable[Iteration]) -> tuple[int, str, str | None]:
    """What no recomputation goes below: the update, which waits for everything, or the largest working set."""
    best: tuple[int, str, str | None] = (bound.nbytes, work.phase_of(bound.op), bound.op)
    for iteration in iterations:
        for moment in iteration.phases:
            if moment.phase == "update" and moment.peak_bytes >= best[0]:
                best = (moment.peak_bytes, "update", moment.op)
    return best


def _with_backward(graph: GraphLike, options: StepOptions) -> Graph:
    """The program; a forward DAG gets its backward where an optimizer asks for it."""
    if options.optimizer is None or isinstance(graph, Graph):
        return as_graph(graph)
    raw = graph if isinstance(graph, nx.DiGraph) else read_graph(graph)
    if isinstance(raw, nx.DiGraph) and not any(phase in ("backward", "update") for _, phase in raw.nodes(data="phase")):
        raw = differentiate(raw, optimizer="sgd")
    return as_graph(raw)


def largest_batch(
    build: Callable[[int], GraphLike],
    device: Budget,
    *,
    most: int = 2**20,
    overhead: float | None = None,
    strategy: str = "auto",
    **options: Any,
) -> int:
    """The largest batch whose step fits a device; 0 if not even one does.

    Args:
        build: batch -> graph.
        device: as for `Footprint.fits`; a fraction is refused, since it means another size for each batch.
        most: no batch above it is tried.
        overhead: None: as it is. A number: with a plan whose cost is at most (1 + overhead) that of keep-all.
        strategy: that finds the plan.
        options: of `estimate`.
    """
    nbytes = device_bytes(device)
    if nbytes != device_bytes(device, 2):
        raise UnitError(f'{device!r} of what? write the bytes, as "16GiB", or a device: {", ".join(DEVICE_BYTES)}')
    memory = options.get("memory", MemoryModel())

    def fits(batch: int) -> bool:
        graph = build(batch)
        found = estimate(graph, **options)
        if found.peak_bytes + memory.reserve <= nbytes:
            return True
        if overhead is None or found.floor_bytes + memory.reserve > nbytes:
            return False
        step = StepOptions(**{name: value for name, value in options.items() if name not in ("memory", "rule")})
        try:
            plan = find_plan(training_step(_with_backward(graph, step), step), nbytes, strategy=strategy, allocator=None, memory=memory)
        except InfeasibleBudget:
            return False
        return plan.report.overhead <= overhead

    low, high = 0, 1
    while high <= most and fits(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def rule_of_thumb(
    parameters: int, activations: int, *, batch: int = 1, inputs: int = 0, optimizer: str | None = "momentum", itemsize: int = 4
) -> int:
    """Bytes of training by the rule of the CS231n notes: parameters x factor + batch x (2 x activations + inputs), x itemsize.

    Args:
        parameters: elements.
        activations: elements of one example: W * H * depth of each layer, outputs of fully connected ones; twice, for their gradients.
        batch: examples.
        inputs: elements of one example, if they are to be counted.
        optimizer: None is inference (the parameters once, the activations once); sgd 2, momentum, Adagrad and RMSProp 3, Adam 4
            copies. Some sources give 3 for Adam too, which has two states: 4.
        itemsize: bytes of an element.

    >>> round(rule_of_thumb(813_802, 56_586) / 2**20, 2), round(rule_of_thumb(813_802, 56_586, batch=128) / 2**20, 2)
    (9.74, 64.57)
    """
    if optimizer is not None and optimizer not in OPTIMIZER_STATES:
        raise PlannerError(f"unknown optimizer {optimizer!r}; known: {', '.join(OPTIMIZER_STATES)}")
    factor = 1 if optimizer is None else 2 + len(OPTIMIZER_STATES[optimizer])
    return itemsize * (parameters * factor + batch * ((1 if optimizer is None else 2) * activations + inputs))


def _rule(graph: Graph, optimizer: str | None, *, lowering: bool) -> RuleOfThumb:
    """The rule applied to a graph: outputs of convolutions, poolings and fully connected layers; of all forward ops without `op`."""
    training = any(op.phase in ("backward", "update") for op in graph.ops)
    parameters = sum(t.nbytes for op in graph.ops if op.kind == "parameter" for t in op.outputs)
    inputs = sum(t.nbytes for op in graph.ops if op.kind == "input" for t in op.outputs)
    activations = unfolded = 0
    for op in graph.ops:
        if op.resident or op.phase not in (None, "forward") or not op.outputs:
            continue
        if op.op is None:
            activations += sum(t.nbytes for t in op.outputs if graph.storage_root[t.name] == t.name)
        elif op.op in _RULE_OPS:
            activations += op.outputs[0].nbytes
            unfolded += im2col_bytes(graph, op) if lowering else 0
    if optimizer is None:
        targets = targets_of(graph)
        states = max((len(target.states) for target in targets), default=0)
        factor = 2 + states if training else 1
    else:
        factor = 2 + len(OPTIMIZER_STATES[optimizer])
    total = factor * parameters + (2 if factor > 1 else 1) * activations + inputs + unfolded
    return RuleOfThumb("cs231n", parameters, activations, inputs, factor, unfolded, total)
