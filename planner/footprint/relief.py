"""What would help a plan that recomputes: less of the batch, the loss in chunks, early updates, copies of slices.

Each is said with a number, and only where it is true of this plan: a program that can be written is planned again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Optional

from planner.errors import GraphError
from planner.footprint.advice import chunked_loss, with_smaller_batch
from planner.footprint.components import Simulated
from planner.footprint.copied_slices import slices_of, with_copies
from planner.footprint.loss_tail import loss_tail
from planner.graph import Graph
from planner.lowering.step import iteration
from planner.remedies import Remedy
from planner.training_step import TrainingStep
from planner.units import counted, format_bytes

if TYPE_CHECKING:
    from planner.plan import Plan

#: A loss that holds less of the peak is not worth a word.
_WORTH: Final = 0.1

#: Plans another program as the plan was; None where nothing fits, or nothing is searched.
Again = Callable[[Graph], Optional["Plan"]]


def reliefs(plan: Plan, run: Simulated, *, again: Again) -> tuple[Remedy, ...]:
    """What would spare a plan recomputation; () for one that recomputes nothing.

    Args:
        run: the plan, replayed.
        again: plans another program with the same budget and rules.
    """
    if not plan.report.extra_runs:
        return ()
    allowed = plan.request.live_budget or plan.report.plan.arena_bytes
    smaller = with_smaller_batch(Simulated(plan.graph, plan.memory), allowed, how="without recomputation")
    found = [] if smaller is None or not smaller.fits else [smaller]
    return (*found, *_chunks(run), *_other_programs(plan, again))


def _chunks(run: Simulated) -> Iterator[Remedy]:
    """The loss in chunks, where the loss holds a good part of the peak, or sets what any plan needs."""
    tail, bound = loss_tail(run), run.bound
    if tail is None:
        return
    held = run.components_at(run.trace.peak_step)["loss_tail"]
    made = () if bound.op is None else run.graph.op_named[bound.op].outputs
    binds = any(run.component[tensor.name] == "loss_tail" for tensor in made)
    fewest = tail.chunked_bytes(tail.rows or 2) * 11 // 10  # more chunks would gain less than a tenth
    for remedy in chunked_loss(tail, fewest):
        said: list[str] = []
        if held > _WORTH * run.trace.peak_bytes:
            said.append(f"The loss holds {format_bytes(held)} of the peak.")
        if binds and remedy.peak_bytes < bound.nbytes:
            sizes = f"{format_bytes(remedy.peak_bytes)} in place of {format_bytes(bound.nbytes)}"
            said.append(f"No plan would need less than about {sizes}.")
        if said:
            yield Remedy(remedy.action, remedy.peak_bytes, True, " ".join(said), at_least=True)


def _other_programs(plan: Plan, again: Again) -> Iterator[Remedy]:
    """The step with updates inside the backward pass, and with copies of slices, where a plan of it is better."""
    report, mine = plan.report, plan.report.plan
    for action, program in _programs(plan.graph):
        other = again(program)
        if other is None:
            continue
        found = other.report.plan
        if plan.budget is not None and other.report.overhead < report.overhead:
            cost = f"{100 * other.report.overhead:+.2f} % cost in place of {100 * report.overhead:+.2f} %"
            yield Remedy(action, found.arena_bytes, True, f"{cost} in this budget.")
        elif plan.budget is None and found.arena_bytes < mine.arena_bytes:
            sizes = f"{format_bytes(found.arena_bytes)} in place of {format_bytes(mine.arena_bytes)}"
            yield Remedy(action, found.arena_bytes, True, f"The least found is {sizes}.")


def _programs(graph: Graph) -> Iterator[tuple[str, Graph]]:
    try:
        early = iteration(graph, TrainingStep(update="inside-backward"))
    except GraphError:  # the graph shows no updates
        early = graph
    if early.fingerprint != graph.fingerprint:
        yield "Updates inside the backward pass (--update inside-backward)", early
    slices = slices_of(graph)
    if slices:
        first, more = slices[0], len(slices) - 1
        others = f" and {counted(more, 'more slice')}" if more else ""
        held = f"{format_bytes(first.base_bytes)} of {first.base!r}"
        yield f"A copy of {first.value!r}{others} in place of a view, which keeps {held}", with_copies(graph, slices)
