"""Graphs of the shared data, in its folder rematgraphs, as networkx graphs of our schema."""

from __future__ import annotations

from typing import Any

import msgspec
import networkx as nx

from bench import shared

FORMAT = "rematgraph-1"


def _file(name: str) -> str:
    return f"rematgraphs/{name}.json"


def missing(name: str) -> str | None:
    """Why a graph cannot be read, or None."""
    return shared.missing(_file(name))


def read_parts(name: str) -> dict[str, Any]:
    """The shared graph of this name, as its file has it."""
    return msgspec.json.decode(shared.path_of(_file(name)).read_bytes(), type=dict[str, Any])


def read(name: str) -> nx.DiGraph:
    """The shared graph of this name."""
    return converted(read_parts(name))


def converted(parts: dict[str, Any]) -> nx.DiGraph:
    """A `rematgraph-1` as a graph of our schema: memory model M1 of its README is ours with allocator None.

    A value that nobody reads lives for its own step: `output=False`.

    >>> chain = {"format": FORMAT, "name": "pair", "cost": [1, 2], "mem": [3, 4], "edges": [[0, 1]], "bwd": [0, 1]}
    >>> converted(chain).nodes["v1"]
    {'nbytes': 4, 'cost': 2, 'phase': 'backward', 'output': False}
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
