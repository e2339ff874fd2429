"""The error that says no plan fits, why, and what would: written once, in words for people and with the reserve."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.bounds.peak import PeakBound, parts_of, peak_lower_bound
from planner.errors import InfeasibleBudget
from planner.graph import Graph
from planner.memory import MemoryModel
from planner.problem import Budget
from planner.remedies import SMALLER_BATCH, Remedy, Shortfall
from planner.units import exactly, format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from planner.plan import Plan


def infeasible(
    graph: Graph,
    memory: MemoryModel,
    *,
    budget: Budget,
    minimum: int | None,
    found_by: str,
    keep_all_peak_bytes: int,
    live_fit: int | None = None,
    shortfall: Shortfall | None = None,
    impossible: bool = False,
    within: str = "",
    minimum_proven: bool = False,
    plan: Callable[[], Plan] | None = None,
) -> InfeasibleBudget:
    """The error for a budget that no plan found fits.

    Args:
        budget: as it was asked, reserve included.
        minimum: least arena + reserve reached, in bytes; None: it was not looked for.
        minimum_proven: no plan needs less.
        plan: makes the one that needs the minimum.
        found_by: the strategy that reached it.
        keep_all_peak_bytes: peak without recomputation, which budgets in percent are of.
        live_fit: peak of a plan whose live bytes fit while its arena does not, or None.
        shortfall: what recomputation cannot mend, and what would.
        impossible: it is proven that no plan fits, be the budget above the bound or not.
        within: the user's policy, for people; empty without one.
    """
    bound = peak_lower_bound(graph, memory)
    floor = memory.needed_bytes(bound.nbytes)
    proven = impossible or budget.nbytes < floor
    scope = "" if memory.scope == "total" else f" in scope {memory.scope!r}"
    what = "the outputs at the end need" if bound.op is None else f"op {bound.op!r} alone needs"
    needs = f"{what} {format_bytes(floor)} ({_breakdown(graph, memory, bound)})"
    asked = f"{_as_written(budget)}{scope}"
    if shortfall is not None and shortfall.phase is not None:
        why = _alone(shortfall, memory, needs, same=shortfall.op == bound.op)
        if proven:
            message = f"no plan fits {asked}: recomputation cannot help, for {why}."
        else:
            unless = "unless gradients are made twice or parameters updated early"
            message = f"no plan of {found_by!r} fits {asked}: {why}, {unless}."
    elif budget.nbytes < floor:
        message = f"no plan fits {asked}: {needs}."
    elif impossible:
        message = f"no plan fits {asked}: that is proven for any recomputation and any order, though {needs}."
    else:
        message = f"no plan of {found_by!r} fits {asked}; no plan at all goes below {exactly(floor)}: {needs}."
    if live_fit is not None:
        message += f" Live bytes alone would fit ({live_fit} bytes): packing the buffers into one arena needs more."
    if shortfall is not None:
        message += "".join(f" {_sentence(remedy)}" for remedy in shortfall.remedies if remedy.fits)
    if within:
        message += f" Within the policy, that is: {within}."
    smaller = ", or make the batch smaller" if shortfall is None or shortfall.batch_helps else ""
    if minimum is None:
        message += f"\nAt least {floor} bytes."
    else:
        least = f"{exactly(minimum)[:-1]}, {found_by!r}){_part(minimum, keep_all_peak_bytes)}"
        message += f"\nLeast that works: {least}. Raise the budget to that{smaller}."
    return InfeasibleBudget(
        message,
        budget=budget.nbytes,
        minimum=minimum,
        peak_lower_bound=floor,
        proven=proven,
        binding_op=bound.op,
        live=bound.live,
        phase=None if shortfall is None else shortfall.phase,
        remedies=() if shortfall is None else shortfall.remedies,
        minimum_proven=minimum_proven,
        plan=plan,
    )


def _as_written(budget: Budget) -> str:
    """The budget in the user's words and in bytes."""
    written = budget.text.strip()
    return exactly(budget.nbytes) if written == str(budget.nbytes) else f"{written} = {exactly(budget.nbytes)}"


def _part(minimum: int, keep_all_peak_bytes: int) -> str:
    """The least that works as a percentage that would do as a budget: a tenth of a percent up."""
    if not keep_all_peak_bytes:
        return ""
    tenths = -(-1000 * minimum // keep_all_peak_bytes)
    return f", {tenths / 10:g}% of the peak without recomputation"


def _alone(shortfall: Shortfall, memory: MemoryModel, needs: str, *, same: bool) -> str:
    """The optimizer step or the loss tail, and what it needs."""
    what = {"update": "the optimizer step", "loss": "the loss tail"}[shortfall.phase or ""]
    if same and not shortfall.parts:
        return f"{what} is too large: {needs}"
    nbytes = memory.needed_bytes(shortfall.nbytes)
    parts = _listed([*shortfall.parts, ("reserve", nbytes - shortfall.nbytes)])
    return f"{what} (op {shortfall.op!r}) alone needs {exactly(nbytes)[:-1]}{f': {parts}' if parts else ''})"


def _breakdown(graph: Graph, memory: MemoryModel, bound: PeakBound) -> str:
    """Where the bytes of a bound are."""
    reserve = memory.needed_bytes(bound.nbytes) - bound.nbytes
    return _listed([*parts_of(graph, memory, bound).items(), ("reserve", reserve)])


def _listed(parts: list[tuple[str, int]]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {format_bytes(nbytes)}" for name, nbytes in parts if nbytes)


def _sentence(remedy: Remedy) -> str:
    """The action and what the step takes then; for a smaller batch, its note, which says how much smaller."""
    if remedy.action == SMALLER_BATCH:
        return remedy.note
    action = remedy.action[:1].upper() + remedy.action[1:]
    return f"{action}: {'at least ' if remedy.at_least else ''}{exactly(remedy.peak_bytes)}."
