"""What a training step holds, by component and phase: the very step that will run is simulated.

Options that change the step (optimizer, accumulation, master weights, how the update is done) rewrite its program, and
the judge replays the result. No number comes from a formula, but for the rule of thumb, which is asked for by name.
"""

from __future__ import annotations

import gc
import html
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Literal, Optional

import msgspec

from planner.errors import InfeasibleBudget, PlannerError, UnitError
from planner.footprint.advice import TWICE, chunked_loss, smaller_batch, update_remedy
from planner.footprint.calibration import Calibration, load_calibration
from planner.footprint.components import Iteration, Moment, Simulated, simulated
from planner.footprint.copied_slices import Copies, copies
from planner.footprint.loss_tail import Tail, loss_tail
from planner.footprint.printed import as_text
from planner.footprint.rule_of_thumb import RuleOfThumb, rule_for
from planner.footprint.rule_of_thumb import rule_of_thumb as rule_of_thumb
from planner.graph import Graph
from planner.lowering.devices import find_device
from planner.lowering.im2col import unfolded
from planner.lowering.read import GraphLike
from planner.lowering.schema import lower
from planner.lowering.step import differentiated, iteration
from planner.lowering.targets import targets_of
from planner.memory import MemoryModel
from planner.problem import Budget, Request, with_reserve
from planner.remedies import SMALLER_BATCH
from planner.remedies import Remedy as Remedy
from planner.text import shortened
from planner.training_step import Gradients, TrainingStep, Update
from planner.units import MAX_BYTES, BudgetText, format_bytes
from planner.zoo import opened_under

Verdict = Literal["fits", "barely", "does not fit"]

#: By way of updating, the ways that may hold less.
_LIGHTER: Final[Mapping[str | None, tuple[Update, ...]]] = {
    None: ("inside-backward",),
    "fused": ("inside-backward",),
    "per-tensor": ("fused", "inside-backward"),
    "multi-tensor": ("per-tensor", "fused", "inside-backward"),
    "inside-backward": (),
}


class Advice(msgspec.Struct, frozen=True):
    """What stands between a step and a budget.

    Args:
        budget: bytes.
        fits: True if the step fits as it is.
        verdict: "barely" where less than 5 % of the budget is left.
        peak_bytes, phase: of the step as it is.
        floor_bytes, floor_phase, floor_op: the lower bound on the peak with any recomputation, and where it is needed.
        recompute_helps: True if recomputation could be enough; `optimize` finds out.
        remedies: what else would help, those that fit first.
        spare_bytes: what of the budget neither the step nor the reserve takes; below 0 where the step does not fit.
        reserve_bytes: what of the budget is kept free.
        device: the device that the budget is, or None.
        graph_budget: the simulated peak that the budget has room for by the calibration; None without a calibration.
    """

    budget: int
    fits: bool
    verdict: Verdict
    peak_bytes: int
    phase: str
    floor_bytes: int
    floor_phase: str
    floor_op: Optional[str]
    recompute_helps: bool
    remedies: tuple[Remedy, ...]
    spare_bytes: int
    reserve_bytes: int = 0
    device: Optional[str] = None
    graph_budget: Optional[int] = None

    def __str__(self) -> str:
        asked = self.device or format_bytes(self.budget)
        needs = f"{format_bytes(self.peak_bytes)} at the peak, in the {self.phase} phase"
        if self.fits:
            word, share = ("Barely fits", ", less than 5 %") if self.verdict == "barely" else ("Fits", "")
            return f"{word} {asked}: {needs}, {format_bytes(self.spare_bytes)} to spare{share}{self._room()}."
        lines = [f"Does not fit {asked}: {needs}, {format_bytes(-self.spare_bytes)} too much{self._room()}."]
        if not self.recompute_helps:
            where = f"op {self.floor_op!r}" if self.floor_op else f"the {self.floor_phase} phase"
            lines.append(
                f"  Recomputing activations cannot help: {where} alone needs {format_bytes(self.floor_bytes)}."
            )
        lines += [f"  {remedy.action}: {_promise(remedy)}{remedy.note}" for remedy in self.remedies]
        return "\n".join(lines)

    def _room(self) -> str:
        """What of the budget the step may not have, or what a calibration makes of it."""
        whose = f"{self.device}'s {format_bytes(self.budget)}" if self.device else format_bytes(self.budget)
        kept = f"; {format_bytes(self.reserve_bytes)} of {whose} are reserved" if self.reserve_bytes else ""
        if self.graph_budget is None:
            return kept
        return f"{kept}; by the calibration there is room for a peak of {format_bytes(self.graph_budget)}"


def _promise(remedy: Remedy) -> str:
    """What becomes of the step, in a sentence."""
    size = format_bytes(remedy.peak_bytes)
    if remedy.action == SMALLER_BATCH:  # its note says all
        return ""
    if remedy.at_least:
        needs = f"may fit, no plan needs less than {size}" if remedy.fits else f"does not fit, it needs {size} or more"
    else:
        needs = f"{'fits' if remedy.fits else 'does not fit'}, {size} at the peak"
    return f"{needs}. "


class Footprint(msgspec.Struct, frozen=True):
    """What a step holds, by component and phase, in the first and in later iterations.

    Args:
        graph, fingerprint: name and content hash of the graph.
        training: True if it has a backward pass or an update.
        step: the training step; None: as the graph has it.
        memory: what is counted.
        parameters: number of elements, each storage once (0 if no shapes are known).
        by_dtype: bytes by dtype, or "unknown", of parameters, their copies, gradients, optimizer state, master weights.
        first, later: the first iteration, and every one after it.
        floor_bytes, floor_phase, floor_op: the lower bound on the peak with any recomputation, and where it is needed.
        step_bytes: parameters, gradients and optimizer state at the update, if no gradient is made twice.
        alternatives: (peak, lower bound) in bytes for other ways to do the update.
        tail: the loss tail, if the graph has one.
        copies: what copies of slices would take, where they lower the peak of later iterations.
        rule: the rule of thumb, if asked for.
        not_counted: what no graph shows.
        calibration: one measured run beside its prediction, if given.
    """

    graph: str
    fingerprint: str
    training: bool
    step: Optional[TrainingStep]
    memory: MemoryModel
    parameters: int
    by_dtype: dict[str, dict[str, int]]
    first: Iteration
    later: Iteration
    floor_bytes: int
    floor_phase: str
    floor_op: Optional[str]
    step_bytes: int
    alternatives: dict[str, tuple[int, int]]
    tail: Optional[Tail]
    copies: Optional[Copies] = None
    rule: Optional[RuleOfThumb] = None
    not_counted: tuple[str, ...] = (
        "device context and libraries",
        "workspace and reserves that libraries choose",
        "communication buffers",
        "allocator rounding and fragmentation",
    )
    calibration: Optional[Calibration] = None

    @property
    def optimizer(self) -> str | None:
        """The step's optimizer; None: the graph's.

        Each part of the step is an attribute here too.

        >>> from planner import zoo
        >>> found = estimate(zoo.mlp([4, 8, 2], batch=2), step=TrainingStep("adam", micro_batches=4))
        >>> found.optimizer, found.micro_batches, found.gradients, found.update, found.master_weights, found.lowering
        ('adam', 4, 'released', None, False, False)
        """
        return self._asked.optimizer

    @property
    def micro_batches(self) -> int:
        """The step's forward and backward passes before one update."""
        return self._asked.micro_batches

    @property
    def gradients(self) -> str:
        """What the step does with gradients between iterations."""
        return self._asked.gradients

    @property
    def update(self) -> str | None:
        """How the step updates parameters; None: as the graph does."""
        return self._asked.update

    @property
    def master_weights(self) -> bool:
        """True if the step keeps a float32 master of each 16-bit parameter."""
        return self._asked.master_weights

    @property
    def lowering(self) -> bool:
        """True if the step's convolutions unfold their input."""
        return self._asked.lowering

    @property
    def _asked(self) -> TrainingStep:
        return self.step or TrainingStep()

    @property
    def micro_batch(self) -> str | None:
        """The micro-batch of the peak: "first", "second and later" or "every"; None without, or in the update."""
        if self.step is None or self.step.micro_batches == 1 or self.phase == "update":
            return None
        if self.step.gradients == "zeroed" and self.worst is self.later:
            return "every"
        return "first" if self.peak.op.endswith("@1") else "second and later"

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

    @property
    def needed_bytes(self) -> int:
        """Memory to have: the peak, corrected by the calibration if there is one, and the reserve."""
        return self.memory.needed_bytes(self._taken_bytes)

    @property
    def _taken_bytes(self) -> int:
        return self.peak_bytes if self.calibration is None else self.calibration.needed_bytes(self.peak_bytes)

    def fits(self, device: BudgetText) -> bool:
        """True if peak + reserve is within a device's memory.

        Args:
            device: bytes in any form a budget has (`"16GiB"`, an int), or a device's name, of which 512 MiB are kept
                for its context where no reserve was given.
        Raises:
            UnitError: neither.
            PlannerError: a device's name, and the calibration was measured on the host.
        """
        return with_reserve(self.memory, device).needed_bytes(self._taken_bytes) <= self._device_bytes(device)

    def advice(self, budget: BudgetText) -> Advice:
        """Whether the step fits a budget (as for `fits`), whether recomputation can help, and what else would."""
        nbytes = self._device_bytes(budget)
        memory, device = with_reserve(self.memory, budget), find_device(budget)
        allowed = graph_bytes(nbytes, memory, self.calibration)
        fits = self.peak_bytes <= allowed
        spare = nbytes - memory.needed_bytes(self._taken_bytes)
        return Advice(
            budget=nbytes,
            fits=fits,
            verdict="does not fit" if not fits else "barely" if spare * 20 < nbytes else "fits",
            peak_bytes=self.peak_bytes,
            phase=self.phase,
            floor_bytes=self.floor_bytes,
            floor_phase=self.floor_phase,
            floor_op=self.floor_op,
            recompute_helps=not fits and self.floor_bytes <= allowed,
            remedies=() if fits else tuple(sorted(self._remedies(allowed), key=lambda remedy: not remedy.fits)),
            spare_bytes=spare,
            reserve_bytes=memory.needed_bytes(0),
            device=None if device is None else device.name,
            graph_budget=None if self.calibration is None else allowed,
        )

    def _device_bytes(self, device: BudgetText) -> int:
        check_kind(device, self.calibration)
        return device_bytes(device, self._taken_bytes)

    def _remedies(self, allowed: int) -> Iterator[Remedy]:
        if self.floor_bytes <= allowed:
            twice = f"{TWICE} " if allowed < self.step_bytes else ""
            note = f"{twice}{self._activations_left(allowed)}optimize finds the cheapest plan that fits."
            yield Remedy("Recomputation", self.floor_bytes, True, note, at_least=True)
        for update, (peak, floor) in self.alternatives.items():
            held = 0 if update == "inside-backward" else self.step_bytes
            if (peak, floor) == (self.peak_bytes, self.floor_bytes) and (held or allowed >= self.step_bytes):
                continue
            yield update_remedy(update, peak, floor, allowed, held=held, note=self._activations_left(allowed).strip())
        if self.tail is not None and self.tail.needed_bytes > allowed:
            yield from chunked_loss(self.tail, allowed)
        if self.copies is not None:
            yield self.copies.remedy(allowed)
        moments = (*self.first.phases, *self.later.phases)
        steps = [(moment.peak_bytes, moment.peak_bytes - moment.batch_bytes) for moment in moments]
        remedy = smaller_batch(steps, allowed)
        yield from () if remedy is None else (remedy,)

    def _activations_left(self, allowed: int) -> str:
        """How far the activations at the end of the forward pass must shrink, as a sentence."""
        for moment in self.later.phases:
            kept = moment.components["activations"]
            if moment.phase == "forward" and 0 < moment.peak_bytes - kept < allowed < moment.peak_bytes:
                most = allowed - moment.peak_bytes + kept
                now = format_bytes(kept)
                return f"Activations of the forward pass must shrink to {format_bytes(most)}, from {now}. "
        return ""

    def __str__(self) -> str:
        return as_text(self)

    def __repr__(self) -> str:
        return f"Footprint({shortened(self.graph, 60)!r}, {format_bytes(self.peak_bytes)} in phase {self.phase})"

    def _repr_html_(self) -> str:
        """The table of components and phases."""
        return f"<pre>{html.escape(str(self))}</pre>"


def device_bytes(device: BudgetText, keep_all_peak_bytes: int = MAX_BYTES) -> int:
    """Bytes of a device by name, or of a budget in any form; anything else is a UnitError.

    >>> device_bytes("a100-40"), device_bytes("16GiB")
    (42298834944, 17179869184)
    """
    return Budget.read(device, keep_all_peak_bytes=keep_all_peak_bytes).nbytes


def check_kind(device: BudgetText, calibration: Calibration | None) -> None:
    """Raise a PlannerError for a device's name where the calibration was measured on the host."""
    if calibration is not None and (named := find_device(device)) is not None:
        calibration.check_device(named.name)


def graph_bytes(budget: int, memory: MemoryModel, calibration: Calibration | None) -> int:
    """The largest simulated peak that a budget in bytes has room for."""
    room = memory.live_bytes(budget)
    return room if calibration is None else calibration.graph_bytes(room)


@contextmanager
def _no_collections() -> Iterator[None]:
    """Stop Python's cyclic garbage collector, which takes a quarter of the time and finds no cycle in graphs."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@_no_collections()
def estimate(
    graph: GraphLike,
    *,
    step: TrainingStep | None = None,
    optimizer: str | None = None,
    micro_batches: int = 1,
    gradients: Gradients = "released",
    update: Update | None = None,
    master_weights: bool = False,
    lowering: bool = False,
    rule: str | None = None,
    memory: MemoryModel = MemoryModel(),
    calibration: Calibration | str | os.PathLike[str] | None = None,
) -> Footprint:
    """Simulate the step that will run, and split what it holds by component and phase.

    Args:
        graph: as for `optimize`.
        step: the training step, as for `optimize`.
        optimizer, micro_batches, gradients, update, master_weights, lowering: these parts of a `TrainingStep`, in place
            of `step`. Without an optimizer a forward graph is inference.
        rule: "cs231n" adds that rule of thumb, see `rule_of_thumb`.
        memory: scope and alignment.
        calibration: of a measured run, or its file; corrects `needed_bytes`, `fits` and `advice`, no simulated figure.
    Raises:
        GraphError: an invalid graph, or one that the step cannot be applied to.
        PlannerError: an unknown or contradictory option.

    >>> from planner import zoo
    >>> found = estimate(zoo.mlp([4, 8, 2], batch=2), step=TrainingStep("adam"))
    >>> found.phase, found.peak_bytes == sum(found.components.values()), found.components["optimizer_state"]
    ('backward', True, 464)
    """
    if rule not in (None, "cs231n"):
        raise PlannerError(f"rule {rule!r} is not known; there is 'cs231n'")
    if calibration is not None:
        calibration = calibration if isinstance(calibration, Calibration) else load_calibration(calibration)
        calibration.check(memory)
    parts = TrainingStep(optimizer, update, micro_batches, gradients, master_weights, lowering=lowering)
    inference = step is None and parts == TrainingStep(lowering=lowering)
    step = _one_of(step, parts)
    program = _differentiated(graph, step, inference=inference)
    own = step or TrainingStep()
    later, later_work = simulated(iteration(program, own), memory, "later")
    rewritten = iteration(program, own, first=True)
    first = later if rewritten is later_work.graph else simulated(rewritten, memory, "first")[0]
    found = later_work.graph
    parameters = [t for op in found.ops if op.kind == "parameter" for t in op.outputs]
    return Footprint(
        graph=program.name,
        fingerprint=program.fingerprint,
        training=any(op.phase in ("backward", "update") for op in program.ops),
        step=step,
        memory=memory,
        parameters=sum(math.prod(t.shape) for t in parameters if t.shape is not None),
        by_dtype=later_work.by_dtype(),
        first=msgspec.structs.replace(first, name="first"),
        later=later,
        floor_bytes=later_work.bound.nbytes,
        floor_phase=later_work.phase_of(later_work.bound.op),
        floor_op=later_work.bound.op,
        step_bytes=later_work.step_bytes,
        alternatives=_alternatives(program, own, later_work),
        tail=loss_tail(later_work),
        copies=copies(found, memory, peak_bytes=later.peak.peak_bytes),
        rule=rule_for(program, None if own.optimizer == "none" else own.optimizer, lowering=own.lowering)
        if rule
        else None,
        calibration=calibration,
    )


def _one_of(step: TrainingStep | None, parts: TrainingStep) -> TrainingStep | None:
    """The step that is meant; None: the graph as it is."""
    if step is None:
        return None if parts == TrainingStep() else parts
    if parts != TrainingStep():
        raise PlannerError(f"step={step} and its parts ({parts}) are both given; give one of them")
    return step


def _differentiated(graph: GraphLike, step: TrainingStep | None, *, inference: bool = False) -> Graph:
    """The program before the step's own ops.

    Args:
        inference: a forward graph stays one.
    """
    read = opened_under(graph, step)
    if step is None:
        return lower(read)
    if inference and not isinstance(graph, (str, os.PathLike)):
        program = lower(read)
        if not any(op.phase in ("backward", "update") for op in program.ops):
            return unfolded(program)
    return differentiated(read, step)


def _alternatives(program: Graph, step: TrainingStep, work: Simulated) -> dict[str, tuple[int, int]]:
    """(peak, lower bound) in bytes of the other ways to update that hold less, where gradients or the update matter."""
    targets = targets_of(program)
    if len({target.op and target.op.name for target in targets}) < len(targets) or not targets or not targets[0].op:
        return {}
    peak = work.iteration("").peak
    largest = max(program.tensors[target.gradient].nbytes for target in targets)
    if peak.phase != "update" and peak.components["gradients"] <= largest:
        return {}
    found: dict[str, tuple[int, int]] = {}
    for update in _LIGHTER[step.update]:
        other = Simulated(iteration(program, msgspec.structs.replace(step, update=update)), work.memory)
        sizes = other.trace.peak_bytes, other.bound.nbytes
        if sizes <= (work.trace.peak_bytes, work.bound.nbytes):
            found[update] = sizes
    return found


def largest_batch(
    build: Callable[[int], GraphLike],
    device: BudgetText,
    *,
    most: int = 2**20,
    overhead: float | None = None,
    strategy: str = "auto",
    **options: Any,
) -> int:
    """The largest batch whose step fits a device; 0 if not even a batch of one does.

    Args:
        build: batch -> graph.
        device: as for `Footprint.fits`; a fraction is refused, since it means another size for each batch.
        most: the largest batch to try.
        overhead: None: without recomputation. A number: with a plan that costs at most so much more, 0.3 being 30 %.
        strategy: finds the plan.
        options: of `estimate`.
    """
    nbytes = device_bytes(device)
    if nbytes != device_bytes(device, 2):
        raise UnitError(f'{device!r} of what? write the bytes, as "16GiB", or a device, as "t4"')
    memory = with_reserve(options.get("memory", MemoryModel()), device)
    calibration = options.get("calibration")
    if calibration is not None and not isinstance(calibration, Calibration):
        calibration = options["calibration"] = load_calibration(calibration)
    check_kind(device, calibration)
    allowed = graph_bytes(nbytes, memory, calibration)
    budget = memory.needed_bytes(allowed)

    def fits(batch: int) -> bool:
        graph = build(batch)
        found = estimate(graph, **options)
        if found.peak_bytes <= allowed:
            return True
        if overhead is None or found.floor_bytes > allowed:
            return False
        program = iteration(_differentiated(graph, found.step), found.step or TrainingStep())
        least = _least_overhead(program, budget, strategy, memory)
        return least is not None and least <= overhead

    low, high = 0, 1
    while high <= most and fits(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _least_overhead(program: Graph, budget: int, strategy: str, memory: MemoryModel) -> float | None:
    """The overhead of the plan that `optimize` finds within a budget; None where none fits."""
    from planner import mxnet
    from planner.planning.session import Session

    mxnet.register()
    asked = Request(strategy=strategy, allocator="auto", budget=Budget(str(budget), budget), memory=memory)
    session = Session(program, asked)
    try:
        cost = session.solve().trace.cost
    except InfeasibleBudget:
        return None
    once = session.keep_all.trace.cost
    return cost / once - 1 if once else 0.0
