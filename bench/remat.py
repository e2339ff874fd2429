"""Graphs of the shared data, `PLANNER_SHARED`/data/rematgraphs, as networkx graphs of our schema; nothing of them is kept here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import networkx as nx

FORMAT = "rematgraph-1"


def folder() -> Path:
    """Where the shared graphs are; by default beside the repository."""
    shared = os.environ.get("PLANNER_SHARED") or Path(__file__).resolve().parents[2] / "shared"
    return Path(shared) / "data" / "rematgraphs"


def missing(name: str) -> str | None:
    """Why a graph cannot be read, or None."""
    return None if (folder() / f"{name}.json").is_file() else f"{name}: no such graph in the shared data (set PLANNER_SHARED)"


def read_parts(name: str) -> dict[str, Any]:
    """The shared graph of this name, as its file has it."""
    return msgspec.json.decode((folder() / f"{name}.json").read_bytes(), type=dict[str, Any])


def read(name: str) -> nx.DiGraph:
    """The shared graph of this name."""
    return converted(read_parts(name))


def converted(parts: dict[str, Any]) -> nx.DiGraph:
    """A `rematgraph-1` as a graph of our schema: memory model M1 of its README is ours with allocator None.

    A value that nobody reads lives for its own step: `output=False`.

    >>> chain = {"format": "rematgraph-1", "name": "pair", "n": 2, "cost": [1, 2], "mem": [3, 4], "edges": [[0, 1]], "bwd": [0, 1]}
    >>> converted(chain).nodes(data=True)
    NodeDataView({'v0': {'nbytes': 3, 'cost': 1, 'phase': 'forward'}, 'v1': {'nbytes': 4, 'cost': 2, 'phase': 'backward', 'output': False}})
    """
    if parts.get("format") != FORMAT:
        raise ValueError(f"not a {FORMAT} file: format is {parts.get('format')!r}")
    graph = nx.DiGraph(name=parts["name"])
    for k, (cost, nbytes) in enumerate(zip(parts["cost"], parts["mem"], strict=True)):
        graph.add_node(f"v{k}", nbytes=nbytes, cost=cost)
        if parts["bwd"] is not None:
            graph.nodes[f"v{k}"]["phase"] = "backward" if parts["bwd"][k] else "forward"
    graph.add_edges_from((f"v{u}", f"v{v}") for u, v in sorted(parts["edges"], key=lambda edge: edge[1]))
    for node in graph:
        if not graph.out_degree(node):
            graph.nodes[node]["output"] = False
    return graph
