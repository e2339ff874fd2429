"""Advice on a budget that no plan meets: whether the optimizer step, the loss tail or the batch is too large."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

import numpy as np

from planner.analysis.evaluator import evaluator_of
from planner.bounds.peak import peak_lower_bound, working_set_bytes
from planner.errors import GraphError
from planner.footprint.components import MADE_OF_A_BATCH, Simulated
from planner.footprint.copied_slices import copies
from planner.footprint.loss_tail import Tail, loss_tail
from planner.graph import Graph
from planner.lowering.step import iteration
from planner.lowering.targets import targets_of
from planner.remedies import SMALLER_BATCH, Remedy, Shortfall
from planner.training_step import TrainingStep

MOST_CHUNKS: Final = 2**20
TWICE: Final = "Gradients must be made a second time, or parameters updated early."


def shortfall(
    keep_all: Simulated, least: Simulated, *, allowed: int, reached_bytes: int, packing_bytes: int = 0
) -> Shortfall:
    """Why recomputation does not meet a budget that every plan found misses, and what else would.

    The optimizer step is blamed only where no plan found goes below it, as one might that updates early.

    Args:
        keep_all, least: the runs without recomputation and with the least arena.
        allowed: budget without reserve, in bytes.
        reached_bytes: least peak of all plans found.
        packing_bytes: what the arena of the least plan takes beyond its peak.
    """
    phase: str | None = None
    op: str | None = None
    nbytes, parts = allowed, tuple[tuple[str, int], ...]()
    held = keep_all.update_floor()
    if held is not None and nbytes < held[0] <= reached_bytes:
        phase, nbytes, op = "update", held[0], keep_all.order[held[1]]
        sizes = keep_all.components_at(held[1]).items()
        parts = tuple((name, size) for name, size in sizes if size and name not in MADE_OF_A_BATCH)
    tail = loss_tail(keep_all)
    remedies = list[Remedy]()
    if tail is not None:
        bound = keep_all.bound
        makes = () if bound.op is None else keep_all.graph.op_named[bound.op].outputs
        in_tail = any(keep_all.component[t.name] == "loss_tail" for t in makes)
        if in_tail and bound.nbytes > nbytes and tail.resident_bytes <= allowed:
            phase, nbytes, op, parts = "loss", bound.nbytes, bound.op, ()
        if tail.needed_bytes > allowed:
            remedies += chunked_loss(tail, allowed)
    copied = copies(keep_all.graph, keep_all.memory, peak_bytes=keep_all.trace.peak_bytes)
    remedies += [] if copied is None else [copied.remedy(allowed)]
    smaller = with_smaller_batch(least, allowed - packing_bytes, how="with the plan of least peak")
    if held is not None and held[0] > allowed:
        remedies += [each for each in (per_tensor_update(keep_all, allowed),) if each is not None]
        remedies += inside_backward(keep_all, allowed)
    remedies += [] if smaller is None else [smaller]
    ranked = tuple(sorted(remedies, key=lambda remedy: not remedy.fits))
    return Shortfall(phase, op, nbytes, parts, ranked, batch_helps=smaller is None or smaller.fits)


def chunked_loss(tail: Tail, allowed: int) -> list[Remedy]:
    """The loss in the fewest chunks, a power of two, that fit; else in as many as it has rows; [] for a single row."""
    most = MOST_CHUNKS if tail.rows is None else min(tail.rows, MOST_CHUNKS)
    if most < 2:
        return []
    chunks = next((2**k for k in range(1, 21) if 2**k <= most and tail.chunked_bytes(2**k) <= allowed), most)
    peak = tail.chunked_bytes(chunks)
    holds = f"The loss tail (op {tail.op!r}) then holds 1/{chunks} of its rows at a time"
    note = f"{holds}; recompute the rest within the budget. Models of the zoo take --option loss_chunks={chunks}."
    return [Remedy(f"Loss in {chunks} chunks", peak, peak <= allowed, note)]


def per_tensor_update(work: Simulated, allowed: int) -> Remedy | None:
    """An update that holds the temporary of one parameter at a time; None for a graph whose update does so already.

    Of the temporaries held for all parameters, the share of the largest parameter stays.
    """
    graph = work.graph
    temporaries = _temporaries(graph)
    if not temporaries:
        return None
    sizes = {target.parameter: graph.tensors[target.parameter].nbytes for target in targets_of(graph)}
    largest, total = max(sizes.values()), sum(sizes.values())
    held = work.bytes_by_step([value in temporaries for _, value, *_ in work.stretches], 2)[1]
    spared = np.array([nbytes - -(-nbytes * largest // total) for nbytes in held.tolist()], dtype=np.int64)
    peak = int((work.timeline - spared).max())
    others = (nbytes for nbytes, op in working_set_bytes(graph, work.memory) if work.phase_of(op) != "update")
    floor = max(*others, sum(work.residents.values()) + largest)  # the gradient of the largest at its update
    held = work.update_floor(less=spared) or (0, 0)
    return update_remedy("per-tensor", peak, floor, allowed, held=held[0])


def inside_backward(work: Simulated, allowed: int) -> list[Remedy]:
    """Updates right after each last gradient; [] where the graph hides its updates or makes them so already."""
    try:
        program = iteration(work.graph, TrainingStep(update="inside-backward"))
    except GraphError:
        return []
    evaluator = evaluator_of(program, work.memory)
    judged = evaluator.evaluate(evaluator.keep_all)
    peak = work.trace.peak_bytes if judged is None else judged[0]
    floor = peak_lower_bound(program, work.memory).nbytes
    helps = program != work.graph and peak <= work.trace.peak_bytes
    return [update_remedy("inside-backward", peak, floor, allowed)] if helps else []


def update_remedy(update: str, peak: int, floor: int, allowed: int, *, held: int = 0, note: str = "") -> Remedy:
    """Another way to update.

    Args:
        peak, floor: bytes without recomputation, and the lower bound of any plan.
        held: bytes of the optimizer step if no gradient is made twice, without activations; 0 where it is no limit.
        note: how far activations must shrink.
    """
    if peak <= allowed:
        return Remedy(f"{update} update", peak, True, "No recomputation is needed.")
    if floor > allowed:
        return Remedy(f"{update} update", floor, False, "Even with any recomputation.", at_least=True)
    note = TWICE if allowed < held else note or "Activations must shrink too."
    return Remedy(f"{update} update with recomputation", floor, True, note, at_least=True)


def _temporaries(graph: Graph) -> frozenset[str]:
    """Values that an update op makes for several parameters, and update ops that have such values as workspace."""
    targets = targets_of(graph)
    largest = max((graph.tensors[target.parameter].nbytes for target in targets), default=0)
    if len({target.parameter for target in targets}) < 2:
        return frozenset()
    phase = {op.name: op.phase for op in graph.ops}
    kept = {value for target in targets for value in (target.gradient, *target.states)}
    found = set[str]()
    for op in graph.ops:
        if op.phase != "update" or op.resident:
            continue
        if op.workspace > largest and len(op.updates) > 1:
            found.add(op.name)
        fresh = (t for t in op.outputs if not t.output and graph.storage_root[t.name] == t.name)
        made = {t.name: t.nbytes for t in fresh if t.name not in kept}
        read_in_update = all(phase[reader] == "update" for value in made for reader in graph.readers[value])
        if sum(made.values()) > largest and read_in_update:
            found.update(made)
    return frozenset(found)


def smaller_batch(
    steps: Iterable[tuple[int, int]], allowed: int, *, batch: int | None = None, how: str = "as it is"
) -> Remedy | None:
    """The part of the batch that fits; None where all of it does.

    Args:
        steps: (bytes, part of them that does not depend on the batch) of each step.
        batch: examples now, if known.
        how: how the smaller batch fits, for people.
    """
    over = [(nbytes, fixed) for nbytes, fixed in steps if nbytes > allowed]
    if not over:
        return None
    most_fixed = max(fixed for _, fixed in over)
    if most_fixed > allowed:
        return Remedy(SMALLER_BATCH, most_fixed, False, "What does not depend on the batch is too large.")
    part = min((allowed - fixed) / (nbytes - fixed) for nbytes, fixed in over)
    if batch is not None and batch * part < 1:
        return Remedy(SMALLER_BATCH, allowed, False, "Not even a batch of 1 would fit.")
    if batch is not None:
        some = f"A batch of about {math.floor(batch * part)}, not {batch},"
    else:
        some = f"{f'About {math.floor(100 * part)}%' if part >= 0.01 else 'Less than 1%'} of the batch"
    return Remedy(SMALLER_BATCH, allowed, True, f"{some} would fit {how}.")


def with_smaller_batch(work: Simulated, allowed: int, *, how: str) -> Remedy | None:
    """`smaller_batch` for a training step run by one plan; None too where no parameter is trained."""
    graph = work.graph
    if not targets_of(graph):
        return None
    batch = batch_of(graph)

    def grows(component: str, value: str) -> bool:
        if component == "workspace":
            return graph.producer.get(value, graph.op_named[value]).phase != "update"
        shape = graph.tensors[value].shape
        fixed = batch is not None and shape is not None and (not shape or shape[0] % batch > 0)
        return not fixed and (component == "inputs" or component in MADE_OF_A_BATCH)

    growing = work.bytes_by_step([grows(component, value) for component, value, *_ in work.stretches], 2)[1]
    if work.memory.scope == "total":
        residents = (t for op in graph.ops if op.resident for t in op.outputs)
        inputs = (t for t in residents if grows(work.component[t.name], t.name))
        growing = growing + sum(work.memory.round_up(t.nbytes) for t in inputs)
    steps = zip(work.timeline.tolist(), (work.timeline - growing).tolist(), strict=True)
    return smaller_batch(steps, allowed, batch=batch, how=how)


def batch_of(graph: Graph) -> int | None:
    """The first extent of every input if all agree; None where they differ or a shape is unknown."""
    shapes = [t.shape for op in graph.ops if op.kind == "input" for t in op.outputs]
    extents = {shape[0] if shape else None for shape in shapes}
    return extents.pop() if len(extents) == 1 else None
