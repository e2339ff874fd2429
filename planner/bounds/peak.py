"""What no plan can go below."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from planner.analysis.arrays import resident_bytes
from planner.errors import InfeasibleBudget
from planner.graph import Graph, Op
from planner.memory import MemoryModel
from planner.remedies import Shortfall
from planner.units import format_bytes


class PeakBound(NamedTuple):
    """A lower bound on the peak of any schedule.

    Args:
        nbytes: bytes, residents included in scope "total".
        op: the op that needs them by itself, or None when the outputs at the end do.
        live: values that must be live there.
    """

    nbytes: int
    op: str | None
    live: tuple[str, ...]


def peak_lower_bound(graph: Graph, memory: MemoryModel) -> PeakBound:
    """The largest working set of one op: residents, storages of its inputs and fresh outputs, workspace; or the outputs
    at the end.

    Every op runs at least once, so no order and no recomputation avoids it. In-place pairs are granted wherever sizes
    allow, and values that an identity pair may put on one storage are counted once, which keeps it a bound.

    >>> from planner.graph import Tensor
    >>> graph = Graph([Op("a", (Tensor("a", 4),)), Op("b", (Tensor("b", 2, output=True),), reads=("a",), workspace=3)])
    >>> peak_lower_bound(graph, MemoryModel())
    PeakBound(nbytes=9, op='b', live=('a', 'b'))
    """
    nbytes, name = max(working_sets(graph, memory), key=lambda pair: pair[0])
    if name is None:
        return PeakBound(nbytes, None, tuple(value for value in graph.outputs if not graph.on_resident(value)))
    op = graph.op_named[name]
    live = (*dict.fromkeys(op.reads), *(t.name for t in op.outputs))
    return PeakBound(nbytes, name, tuple(value for value in live if not graph.on_resident(value)))


def working_sets(graph: Graph, memory: MemoryModel) -> Iterator[tuple[int, str | None]]:
    """(bytes, op) of every op, residents included in scope "total"; before them those of the end, without an op."""
    residents = resident_bytes(graph, memory)
    group = _storage_groups(graph)
    ends = tuple(name for name in graph.outputs if not graph.on_resident(name))
    yield residents + _bytes_of(graph, memory, group, ends), None
    for op in graph.ops:
        if not op.resident:
            inputs = tuple(value for value in op.reads if not graph.on_resident(value))
            yield (
                residents + _bytes_of(graph, memory, group, inputs) + _fresh_bytes(graph, memory, op) + op.workspace,
                op.name,
            )


def _storage_groups(graph: Graph) -> dict[str, str]:
    """For each storage root, a representative of the storages it can share bytes with while both are live."""
    group = {name: name for name in graph.tensors}

    def find(name: str) -> str:
        while group[name] != name:
            group[name] = group[group[name]]
            name = group[name]
        return name

    for op in graph.ops:
        for i, o, identity in op.inplace:
            if identity:
                group[find(graph.storage_root[op.outputs[o].name])] = find(graph.storage_root[op.reads[i]])
    return {name: find(root) for name, root in graph.storage_root.items()}


def _bytes_of(graph: Graph, memory: MemoryModel, group: dict[str, str], values: tuple[str, ...]) -> int:
    storages: dict[str, int] = {}
    for value in values:
        nbytes = memory.round_up(graph.tensors[graph.storage_root[value]].nbytes)
        storages[group[value]] = max(nbytes, storages.get(group[value], 0))
    return sum(storages.values())


def _fresh_bytes(graph: Graph, memory: MemoryModel, op: Op) -> int:
    """Bytes of the outputs that need new storage whatever in-place pairs happen."""
    aliased = {pair[1] for pair in op.view} | {o for _, o in op.updates}
    granted: set[int] = set()
    for i, o, _identity in op.inplace:
        root = graph.storage_root[op.reads[i]]
        if not graph.producer[root].resident and graph.tensors[root].nbytes == op.outputs[o].nbytes:
            granted.add(o)
    return sum(memory.round_up(t.nbytes) for o, t in enumerate(op.outputs) if o not in aliased and o not in granted)


def infeasible(
    graph: Graph,
    memory: MemoryModel,
    *,
    budget: int,
    minimum: int | None,
    found_by: str,
    live_fit: int | None = None,
    shortfall: Shortfall | None = None,
    impossible: bool = False,
) -> InfeasibleBudget:
    """The error that says no plan fits, why, and what would.

    Args:
        budget: bytes asked for, reserve included.
        minimum: least arena + reserve reached, in bytes, or None.
        found_by: the strategy that reached it.
        live_fit: peak of a plan whose live bytes fit while its arena does not, or None.
        shortfall: what recomputation cannot mend, and what would.
        impossible: it is proven that no plan fits, be the budget above the bound or not.
    """
    bound = peak_lower_bound(graph, memory)
    floor = bound.nbytes + memory.reserve
    proven = impossible or budget < floor
    scope = "" if memory.scope == "total" else f" in scope {memory.scope!r}"
    what = "the outputs at the end need" if bound.op is None else f"op {bound.op!r} alone needs"
    needs = f"{what} {format_bytes(floor)} ({_breakdown(graph, memory, bound)})"
    asked = f"{_exactly(budget)}{scope}"
    if shortfall is not None and shortfall.phase is not None:
        why = _alone(shortfall, memory, needs, same=shortfall.op == bound.op)
        if proven:
            message = f"no plan fits {asked}: recomputation cannot help, for {why}."
        else:  # making gradients of parameters a second time, or updating early, might
            message = f"no plan of {found_by!r} fits {asked}: recomputing activations cannot help, for {why}."
    elif budget < floor:
        message = f"no plan fits {asked}: {needs}."
    elif impossible:
        message = f"no plan fits {asked}: that is proven, whatever is computed again and in any order, though {needs}."
    else:
        message = f"no plan of {found_by!r} fits {asked}; no plan at all goes below {_exactly(floor)}: {needs}."
    if live_fit is not None:
        message += (
            f" Live bytes alone would fit ({live_fit} bytes): what misses is the packing of buffers into one arena."
        )
    message += (
        "".join(f" {remedy.sentence}" for remedy in shortfall.remedies if remedy.fits) if shortfall is not None else ""
    )
    if minimum is not None:
        least = f"Least that works: {format_bytes(minimum)} ({minimum} bytes, {found_by!r})"
        smaller = ", or make the batch smaller" if shortfall is None or shortfall.batch_helps else ""
        message += f"\n{least}. Raise the budget to that{smaller}."
    return InfeasibleBudget(
        message,
        budget=budget,
        minimum=minimum,
        peak_lower_bound=floor,
        proven=proven,
        binding_op=bound.op,
        live=bound.live,
        phase=None if shortfall is None else shortfall.phase,
        remedies=() if shortfall is None else shortfall.remedies,
    )


def _alone(shortfall: Shortfall, memory: MemoryModel, needs: str, *, same: bool) -> str:
    """The optimizer step or the loss tail, and what it needs."""
    what = {"update": "the optimizer step", "loss": "the loss tail"}[shortfall.phase or ""]
    if same and not shortfall.parts:
        return f"{what} is too large: {needs}"
    parts = [*shortfall.parts, *([("reserve", memory.reserve)] if memory.reserve else [])]
    shown = ", ".join(f"{name.replace('_', ' ')} {format_bytes(nbytes)}" for name, nbytes in parts)
    nbytes = shortfall.nbytes + memory.reserve
    return (
        f"{what} (op {shortfall.op!r}) alone needs {format_bytes(nbytes)} ({nbytes}"
        f" bytes{f': {shown}' if shown else ''})"
    )


def _exactly(nbytes: int) -> str:
    return f"{format_bytes(nbytes)} ({nbytes} bytes)"


def _breakdown(graph: Graph, memory: MemoryModel, bound: PeakBound) -> str:
    """Where the bytes of a bound are."""
    group = _storage_groups(graph)
    residents = resident_bytes(graph, memory)
    parts = {"residents": residents}
    if bound.op is None:
        parts["outputs"] = bound.nbytes - residents
    else:
        op = graph.op_named[bound.op]
        inputs = tuple(value for value in bound.live if value in op.reads)
        parts["inputs"] = _bytes_of(graph, memory, group, inputs)
        parts["outputs"] = _fresh_bytes(graph, memory, op)
        parts["workspace"] = op.workspace
    parts["reserve"] = memory.reserve
    return ", ".join(f"{name} {format_bytes(nbytes)}" for name, nbytes in parts.items() if nbytes)
