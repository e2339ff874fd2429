"""A lower bound on the peak of any plan, and the error for a budget below it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from planner.analysis.arrays import resident_bytes
from planner.errors import InfeasibleBudget
from planner.graph import Graph, Op
from planner.memory import MemoryModel
from planner.problem import Problem
from planner.schedule import Schedule


class PeakBound(NamedTuple):
    """A lower bound on the peak of any schedule.

    Args:
        nbytes: bytes, residents included in scope "total".
        op: the op that needs them by itself; None if the outputs at the end do.
        live: values that must be live there.
    """

    nbytes: int
    op: str | None
    live: tuple[str, ...]


@lru_cache(maxsize=4)
def peak_lower_bound(graph: Graph, memory: MemoryModel) -> PeakBound:
    """The largest working set of one op, or the outputs at the end if they take more; the last few are kept.

    A working set is residents, inputs, fresh outputs and workspace. Every op runs at least once, so no plan avoids it.
    It stays a bound because in-place pairs are granted wherever sizes allow, and values that an identity pair may put
    on one storage count once.

    >>> from planner.graph import Tensor
    >>> graph = Graph([Op("a", (Tensor("a", 4),)), Op("b", (Tensor("b", 2, output=True),), reads=("a",), workspace=3)])
    >>> peak_lower_bound(graph, MemoryModel())
    PeakBound(nbytes=9, op='b', live=('a', 'b'))
    """
    nbytes, name = max(working_set_bytes(graph, memory), key=lambda pair: pair[0])
    if name is None:
        return PeakBound(nbytes, None, tuple(value for value in graph.outputs if not graph.on_resident(value)))
    op = graph.op_named[name]
    live = (*dict.fromkeys(op.reads), *(t.name for t in op.outputs))
    return PeakBound(nbytes, name, tuple(value for value in live if not graph.on_resident(value)))


def working_set_bytes(graph: Graph, memory: MemoryModel) -> Iterator[tuple[int, str | None]]:
    """(bytes, None) of the outputs at the end, then (bytes, op) of every op; residents included in scope "total"."""
    residents = resident_bytes(graph, memory)
    group = _storage_groups(graph)
    ends = tuple(name for name in graph.outputs if not graph.on_resident(name))
    yield residents + _bytes_of(graph, memory, group, ends), None
    for op in graph.ops:
        if not op.resident:
            inputs = tuple(value for value in op.reads if not graph.on_resident(value))
            own_bytes = _fresh_bytes(graph, memory, op) + op.workspace
            yield residents + _bytes_of(graph, memory, group, inputs) + own_bytes, op.name


def _storage_groups(graph: Graph) -> dict[str, str]:
    """For each value, a root that stands for all storages whose bytes it may share while both are live."""
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
    """Bytes of the outputs that need a new storage even if every in-place pair happens."""
    aliased = {pair[1] for pair in op.view} | {o for _, o in op.updates}
    granted: set[int] = set()
    for i, o, _identity in op.inplace:
        root = graph.storage_root[op.reads[i]]
        if not graph.producer[root].resident and graph.tensors[root].nbytes == op.outputs[o].nbytes:
            granted.add(o)
    return sum(memory.round_up(t.nbytes) for o, t in enumerate(op.outputs) if o not in aliased and o not in granted)


def parts_of(graph: Graph, memory: MemoryModel, bound: PeakBound) -> dict[str, int]:
    """The bytes of a bound by what takes them."""
    group = _storage_groups(graph)
    residents = resident_bytes(graph, memory)
    if bound.op is None:
        return {"residents": residents, "outputs": bound.nbytes - residents}
    op = graph.op_named[bound.op]
    inputs = _bytes_of(graph, memory, group, tuple(value for value in bound.live if value in op.reads))
    outputs = _fresh_bytes(graph, memory, op)
    return {"residents": residents, "inputs": inputs, "outputs": outputs, "workspace": op.workspace}


def no_plan(
    problem: Problem,
    found_by: str,
    *,
    minimum: int | None,
    proven_bytes: int | None = None,
    least: Schedule | None = None,
) -> InfeasibleBudget:
    """The error of a strategy that finds no plan, in live bytes; the session words it for people.

    Args:
        found_by: the strategy.
        minimum: least peak it reached, or None.
        least: the schedule that reached it, where the least peak was looked for.
        proven_bytes: peak it has proven no plan goes below, if more than the largest working set.
    """
    bound = peak_lower_bound(problem.graph, problem.memory)
    floor = bound.nbytes if proven_bytes is None else proven_bytes
    op, live = (bound.op, bound.live) if floor == bound.nbytes else (None, ())
    budget = problem.budget or 0
    text = f"{found_by!r} found no plan of at most {budget} live bytes; the least it reached is {minimum}"
    proven = budget < floor
    return InfeasibleBudget(
        text,
        budget=budget,
        minimum=minimum,
        peak_lower_bound=floor,
        proven=proven,
        binding_op=op,
        live=live,
        least=least,
    )
