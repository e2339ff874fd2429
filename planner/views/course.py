"""What a schedule holds at each step by component, in as many columns as a picture has."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType
from typing import Final, final

import numpy as np

from planner.analysis.arrays import Ints
from planner.analysis.evaluator import evaluator_of
from planner.analysis.roles import COMPONENTS, roles
from planner.analysis.stretches import Stretch, bytes_by_step, stretches
from planner.graph import Graph
from planner.memory import MemoryModel
from planner.schedule import Schedule
from planner.simulator import Trace, simulate

#: Components as people call them, in the order they are stacked: what stays lies below what passes.
WORDS: Final[Mapping[str, str]] = MappingProxyType({
    "parameters": "weights", "master_weights": "master weights", "optimizer_state": "optimizer state",
    "inputs": "inputs", "parameter_copies": "weight copies", "gradients": "weight gradients",
    "activations": "activations", "activation_gradients": "activation gradients", "loss_tail": "loss",
    "workspace": "workspace", "other": "other",
})  # fmt: skip

_THINNEST: Final = 0.002  # of the peak


@final
class Course:
    """A schedule replayed by the judge, with every byte in its component.

    Args:
        graph, schedule, memory: of a plan, or of a run without recomputation.
    """

    def __init__(self, graph: Graph, schedule: Schedule, memory: MemoryModel) -> None:
        self.graph, self.memory, self.schedule = graph, memory, schedule
        self.trace: Final[Trace] = simulate(graph, schedule, memory=memory)
        self.ops: Final = schedule.computes

    @cached_property
    def stretches(self) -> list[Stretch]:
        """Storages and workspaces, without residents."""
        return stretches(evaluator_of(self.graph, self.memory), self.schedule, self.trace)

    @cached_property
    def table(self) -> Ints:
        """Bytes of each of `COMPONENTS` at each step, residents included [components, steps]."""
        place = {component: row for row, component in enumerate(COMPONENTS)}
        groups = [place[stretch.component] for stretch in self.stretches]
        table = bytes_by_step(self.stretches, groups, count=len(COMPONENTS), steps=len(self.ops))
        if self.memory.scope == "total":
            component = roles(self.graph)
            for op in self.graph.ops:
                for tensor in op.outputs if op.resident else ():
                    table[place[component[tensor.name]]] += self.memory.round_up(tensor.nbytes)
        return table

    @property
    def held(self) -> dict[str, Ints]:
        """Bytes at each step of the components that are ever held, in the order of `WORDS`."""
        rows = {component: self.table[COMPONENTS.index(component)] for component in WORDS}
        return {component: row for component, row in rows.items() if row.any()}

    def columns(self, most: int) -> Ints:
        """The step of most bytes in each of at most `most` equal stretches; the peak is among them."""
        timeline = np.array(self.trace.timeline_bytes, dtype=np.int64)
        edges = np.linspace(0, len(timeline), min(most, len(timeline)) + 1).astype(np.int64)
        return np.array([a + timeline[a:b].argmax() for a, b in pairwise(edges.tolist())], dtype=np.int64)

    def bands(self, columns: Ints) -> dict[str, Ints]:
        """Bytes at these steps by component, as people call it; those too thin to be seen are added to "other"."""
        thin = self.trace.peak_bytes * _THINNEST
        found: dict[str, Ints] = {}
        for component, name in WORDS.items():
            row = self.table[COMPONENTS.index(component), columns]
            band = name if row.max(initial=0) > thin else "other"
            found[band] = found.get(band, 0) + row
        other = found.pop("other")
        return {**found, "other": other} if other.any() else found
