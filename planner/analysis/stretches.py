"""Who holds which bytes from when to when: each storage of a judged run, named by the value that lies on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from planner.analysis.arrays import Ints
from planner.analysis.evaluator import Evaluator, Liveness
from planner.analysis.roles import roles
from planner.graph import Graph
from planner.schedule import Schedule

if TYPE_CHECKING:
    from planner.simulator import Trace


class Stretch(NamedTuple):
    """Bytes of one component for a stretch of steps.

    Args:
        component: one of `roles.COMPONENTS`.
        name: of the value, or of the op that has the workspace.
        nbytes: rounded up to the alignment (workspace is not).
        start, end: Compute steps, half-open.
    """

    component: str
    name: str
    nbytes: int
    start: int
    end: int


def stretches(evaluator: Evaluator, schedule: Schedule, trace: Trace) -> list[Stretch]:
    """Every storage and workspace of a schedule, cut where an in-place op puts another value on it.

    Args:
        trace: the judge's, of the same schedule.
    """
    names = (evaluator.encoded.value_names, evaluator.encoded.op_names)
    component, live = roles(evaluator.graph), evaluator.liveness(schedule)
    taken = _taken(evaluator.graph, live, names[0], trace)
    columns = (live.value, live.workspace, live.nbytes, live.start, live.end)
    found: list[Stretch] = []
    for row, (value, workspace, nbytes, start, end) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
        name = names[workspace][value]
        if workspace:
            found.append(Stretch("workspace", name, nbytes, start, end))
            continue
        for step, output in taken.get(row, ()):
            found.append(Stretch(component[name], name, nbytes, start, step))
            name, start = output, step
        found.append(Stretch(component[name], name, nbytes, start, end))
    return found


def bytes_by_step(held: Sequence[Stretch], groups: Sequence[int], *, count: int, steps: int) -> Ints:
    """Bytes of each group of stretches at each step [count, steps].

    Args:
        groups: the group of each stretch, below `count`.
    """
    row = np.array(groups, dtype=np.int64)
    numbers = np.array([stretch[2:] for stretch in held], dtype=np.int64).reshape(-1, 3)
    table = np.zeros((count, steps + 1), dtype=np.int64)
    np.add.at(table, (row, numbers[:, 1]), numbers[:, 0])
    np.subtract.at(table, (row, numbers[:, 2]), numbers[:, 0])
    return table.cumsum(axis=1)[:, :steps]


def _taken(graph: Graph, live: Liveness, value_names: Sequence[str], trace: Trace) -> dict[int, list[tuple[int, str]]]:
    """By row of the liveness, (step, output) of each in-place op that takes its storage, in order."""
    if not trace.inplace_taken:
        return {}
    rows: dict[str, list[int]] = {}
    for row, (value, workspace) in enumerate(zip(live.value.tolist(), live.workspace.tolist(), strict=True)):
        if not workspace:
            rows.setdefault(value_names[value], []).append(row)
    found: dict[int, list[tuple[int, str]]] = {}
    lies_on: dict[str, int] = {}  # by value that took a storage, its row
    for step, output, source in trace.inplace_taken:
        root = graph.storage_root[source]
        own = next((row for row in rows.get(root, ()) if live.start[row] < step < live.end[row]), None)
        row = lies_on[root] if own is None else own
        lies_on[output] = row
        found.setdefault(row, []).append((step, output))
    return found
