"""What a graph holds: counts and bytes by kind, phase and operator, and what is saved for the backward pass."""

from __future__ import annotations

from typing import Any, Optional

import msgspec

from planner.analysis.evaluator import evaluator_of
from planner.bounds.peak import peak_lower_bound
from planner.footprint.copied_slices import Copies, copies
from planner.footprint.modules import saved_readers
from planner.graph import Graph
from planner.memory import MemoryModel
from planner.simulator import simulate


class Group(msgspec.Struct, frozen=True):
    """Ops or residents of one kind.

    Args:
        name: the kind, phase or operator.
        count: how many.
        nbytes: bytes of the storages they make; for residents, their own bytes.
        saved_bytes: the part of `nbytes` in forward storages that a backward op reads.
        cost: their sum, in the graph's unit.
    """

    name: str
    count: int
    nbytes: int
    saved_bytes: int
    cost: float


class Inventory(msgspec.Struct, frozen=True):
    """Counts and exact bytes of a graph.

    Args:
        residents, phases, operators: groups; operators by falling bytes.
        saved_tensors, saved_bytes: forward storages that a backward op reads.
        keep_all_peak_bytes, keep_all_peak_op: the peak without recomputation, and the op that needs it.
        peak_lower_bound: the lower bound on the peak of any plan, in bytes.
        candidate_cuts: where Chen's planners may cut: `stage` marks, or storages that alone carry on the forward pass.
        largest: (value, bytes) of the largest storages.
        dead: ops that contribute to no output.
        source: what the importer counted in the file, if any.
        copies: what copies of slices would take, where they lower the peak without recomputation.
    """

    graph: str
    fingerprint: str
    ops: int
    values: int
    outputs: int
    residents: tuple[Group, ...]
    phases: tuple[Group, ...]
    operators: tuple[Group, ...]
    saved_tensors: int
    saved_bytes: int
    keep_all_peak_bytes: int
    keep_all_peak_op: Optional[str]
    peak_lower_bound: int
    candidate_cuts: int
    largest: tuple[tuple[str, int], ...]
    dead: tuple[str, ...]
    source: dict[str, Any]
    copies: Optional[Copies] = None


def take_inventory(
    graph: Graph, memory: MemoryModel, *, top: int = 10, source: dict[str, Any] | None = None
) -> Inventory:
    """Count a graph.

    Args:
        top: how many of the largest storages to list.
        source: the importer's counts, passed on.

    >>> from planner.graph import Op, Tensor
    >>> graph = Graph([Op("w", (Tensor("w", 8),), kind="parameter"), Op("a", (Tensor("a", 4),), reads=("w",))])
    >>> take_inventory(graph, MemoryModel()).residents
    (Group(name='parameter', count=1, nbytes=8, saved_bytes=0, cost=0.0),)
    """
    saved = saved_readers(graph)
    groups: dict[str, dict[str, list[float]]] = {"residents": {}, "phases": {}, "operators": {}}
    storages: list[tuple[str, int]] = []
    for op in graph.ops:
        fresh = [t for t in op.outputs if graph.storage_root[t.name] == t.name]
        storages.extend((t.name, t.nbytes) for t in fresh)
        nbytes, kept = sum(t.nbytes for t in fresh), sum(t.nbytes for t in fresh if t.name in saved)
        ops = [("phases", op.phase or "none"), ("operators", op.op or "unnamed")]
        keys = [("residents", op.kind)] if op.resident else ops
        for table, key in keys:
            row = groups[table].setdefault(key, [0, 0, 0, 0.0])
            for column, amount in enumerate((1, nbytes, kept, 0.0 if op.resident else op.cost)):
                row[column] += amount
    evaluator = evaluator_of(graph, memory)
    part = evaluator.forward_part()
    trace = simulate(graph, evaluator.schedule(evaluator.keep_all), memory=memory)
    tables = {table: tuple(Group(key, *row) for key, row in rows.items()) for table, rows in groups.items()}  # type: ignore[arg-type]
    return Inventory(
        graph=graph.name,
        fingerprint=graph.fingerprint,
        ops=sum(not op.resident for op in graph.ops),
        values=len(graph.tensors),
        outputs=len(graph.outputs),
        residents=tables["residents"],
        phases=tables["phases"],
        operators=tuple(sorted(tables["operators"], key=lambda group: -group.nbytes)),
        saved_tensors=len(saved),
        saved_bytes=sum(graph.tensors[root].nbytes for root in saved),
        keep_all_peak_bytes=trace.peak_bytes,
        keep_all_peak_op=trace.peak_op,
        peak_lower_bound=peak_lower_bound(graph, memory).nbytes,
        candidate_cuts=0 if part is None else len(part.position),
        largest=tuple(sorted(storages, key=lambda pair: -pair[1])[:top]),
        dead=graph.dead,
        source=source or {},
        copies=copies(graph, memory, peak_bytes=trace.peak_bytes),
    )
