"""The program as a networkx DAG of the schema: the way back from `lower`."""

from __future__ import annotations

from typing import Any, Final

import networkx as nx

from planner.graph import Graph, Op
from planner.lowering.assembly import Assembly, Value

#: Attributes of a node that are left out where they have the schema's default.
_DEFAULTS: Final = {
    "workspace": 0, "kind": "op", "phase": None, "view": (), "updates": (), "inplace": (), "recomputable": True,
    "stage": None, "op": None, "flops": None, "module": None,
}  # fmt: skip


def as_dag(graph: Graph, **facts: Any) -> nx.DiGraph:
    """A DAG that `lower` makes this program of again.

    Args:
        facts: attributes of the DAG, as device and source.

    >>> from planner import lower, zoo
    >>> program = lower(zoo.mlp([4, 2], batch=2))
    >>> lower(as_dag(program)) == program
    True
    """
    draft = Assembly(**{**facts, "name": graph.name})
    place = {t.name: Value(op.name, k) for op in graph.ops for k, t in enumerate(op.outputs)}
    for op in graph.ops:
        draft.add(op.name, [place[value] for value in op.reads], after=op.after, **_attributes(op, graph))
    return draft.graph


def _attributes(op: Op, graph: Graph) -> dict[str, Any]:
    """What the schema says of a node."""
    found: dict[str, Any] = {"cost": op.cost}
    found.update({name: value for name, default in _DEFAULTS.items() if (value := getattr(op, name)) != default})
    for name in ("nbytes", "shape", "dtype"):
        column = tuple(getattr(t, name) for t in op.outputs)
        if name == "nbytes" or None not in column:
            found[name] = column[0] if len(column) == 1 else column
        elif any(each is not None for each in column):
            found[name] = column
    kept = tuple(k for k, t in enumerate(op.outputs) if t.output)
    unread = not any(graph.readers[t.name] for t in op.outputs)
    if kept or unread:
        found["output"] = kept if kept else False
    return found
