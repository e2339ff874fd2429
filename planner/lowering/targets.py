"""Which gradients a training step makes, and by what ops parameters are updated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from planner.graph import Graph, Op


@final
@dataclass(frozen=True, slots=True)
class Target:
    """One gradient that is accumulated: that of a parameter some op updates, or an output of the backward pass."""

    parameter: str
    gradient: str
    op: Op | None  # the update
    states: tuple[str, ...]


def targets_of(graph: Graph) -> tuple[Target, ...]:
    """Every gradient of a parameter with the op that updates by it; without updates, outputs of a parameter's size."""
    found = []
    for op in graph.ops:
        updated = [i for i, _ in op.updates]
        roots = {i: graph.producer[graph.storage_root[op.reads[i]]] for i in updated}
        parameters = [op.reads[i] for i in updated if roots[i].kind == "parameter"]
        if not parameters:
            continue
        gradients = [value for i, value in enumerate(op.reads) if i not in updated and _may_be_gradient(graph, value)]
        states = tuple(op.reads[i] for i in updated if graph.producer[op.reads[i]].kind == "state")
        count = max(len(parameters), len(gradients)) if gradients else 0
        for k in range(count):
            found.append(Target(parameters[k % len(parameters)], gradients[k % len(gradients)], op, states))
    if found:
        return tuple(found)
    sizes = {t.nbytes for op in graph.ops if op.kind == "parameter" for t in op.outputs}
    made = (t for op in graph.ops if op.phase == "backward" for t in op.outputs)
    outputs = [t.name for t in made if t.output and t.nbytes in sizes and not graph.on_resident(t.name)]
    return tuple(Target(name, name, None, ()) for name in outputs)


def _may_be_gradient(graph: Graph, value: str) -> bool:
    root = graph.producer[graph.storage_root[value]]
    return root.op == "GradientBuffer" or not (root.resident or root.phase == "update")
