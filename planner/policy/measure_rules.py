"""What a rule comes to in one plan: figures of the plan's own replay, not of the program."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from planner.graph import Graph
from planner.memory import MemoryModel
from planner.policy.check import forward_ops
from planner.report import Applied, storages_at
from planner.schedule import Schedule
from planner.simulator import Trace


class Measure:
    """The replay of one plan, asked about the ops of each rule.

    Args:
        trace: the judge's, of the schedule.
    """

    def __init__(self, graph: Graph, memory: MemoryModel, schedule: Schedule, trace: Trace) -> None:
        self.graph, self.memory, self.trace, self.computes = graph, memory, trace, schedule.computes
        self.begins = _backward_begins(self.computes, forward_ops(graph))
        self.storages = [] if self.begins is None else storages_at(graph, schedule, trace, self.begins)
        self.cost_once = math.fsum(op.cost for op in graph.ops if not op.resident)

    def of(self, ops: Collection[str]) -> Applied:
        """Figures of a rule by the ops that obey it."""
        again = {op: runs for op, runs in self.trace.recomputed.items() if op in ops}
        extra = math.fsum(self.graph.op_named[op].cost * runs for op, runs in again.items())
        held = [
            (self.memory.round_up(self.graph.tensors[made].nbytes), names)
            for made, names in self.storages
            if not self.graph.producer[made].resident and any(self.graph.producer[name].name in ops for name in names)
        ]
        total, overhead = sum(nbytes for nbytes, _ in held), extra / self.cost_once if self.cost_once else 0.0
        if not total:
            return Applied(total, len(again), overhead)
        largest_bytes, names = max(held, key=lambda each: each[0])
        largest = next(name for name in reversed(names) if self.graph.producer[name].name in ops)
        return Applied(total, len(again), overhead, largest, largest_bytes, self._next_reader(names))

    def _next_reader(self, names: Collection[str]) -> str:
        """The first op of the backward pass, reruns included, that reads one of the names on a storage."""
        later = self.computes[self.begins :]
        return next((op for op in later if any(value in names for value in self.graph.op_named[op].reads)), "")


def _backward_begins(computes: Sequence[str], forward: Collection[str]) -> int | None:
    """The step of the first op of the backward pass, or of the first of the reruns right before it; None without."""
    first = {op: at for at, op in reversed([*enumerate(computes)])}
    begins = next((at for at, op in enumerate(computes) if forward and op not in forward), None)
    while begins and first[computes[begins - 1]] < begins - 1:
        begins -= 1
    return begins
