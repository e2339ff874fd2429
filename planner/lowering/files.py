"""Graph files: ONNX, our encoded JSON, and networkx node-link JSON."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import networkx as nx

from planner.errors import GraphError
from planner.graph import FORMAT, Graph


def read_graph(path: str | os.PathLike[str], **onnx_options: Any) -> Graph | nx.DiGraph:
    """The graph in a file; JSON is recognised by its first character, everything else is read as ONNX.

    Args:
        path: the file.
        onnx_options: passed to `from_onnx`; refused for JSON, which has nothing to bind.
    Raises:
        GraphError: missing, not readable, or no graph.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise GraphError(f"cannot read graph {str(path)!r}: {error.strerror or error}") from None
    if content.lstrip()[:1] not in (b"{", b"["):
        from planner.lowering.onnx import from_onnx

        return from_onnx(path, **onnx_options)
    given = sorted(name for name, value in onnx_options.items() if value is not None)
    if given:
        raise GraphError(f"{str(path)!r} is a JSON graph: {', '.join(given)} can be set for ONNX files and zoo models only")
    return from_json(content, name=str(path))


def from_json(content: bytes, *, name: str = "graph") -> Graph | nx.DiGraph:
    """A graph from JSON text: the encoded form, or what `networkx.node_link_data` gives.

    Args:
        name: shown in errors.
    Raises:
        GraphError: neither.
    """
    try:
        parts = msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError) as error:
        raise GraphError(f"{name!r} is not JSON: {error}") from None
    if isinstance(parts, dict) and parts.get("format") == FORMAT:
        return Graph.from_json(content)
    if isinstance(parts, dict) and isinstance(parts.get("nodes"), list):
        return _from_node_link(parts, name)
    kind = parts.get("format") if isinstance(parts, dict) else type(parts).__name__
    raise GraphError(f"{name!r} holds no graph ({kind!r}): expected {FORMAT!r} or networkx node-link JSON")


def _from_node_link(parts: dict[str, Any], name: str) -> nx.DiGraph:
    edges = "links" if "links" in parts else "edges"
    if not isinstance(parts.get(edges), list):
        raise GraphError(f"{name!r}: node-link JSON without an {edges!r} list")
    if parts.get("directed") is False:
        raise GraphError(f"{name!r} is an undirected graph; an edge must say who reads whom")
    parts = {**parts, "directed": True}
    try:
        graph: nx.DiGraph = nx.node_link_graph(parts, edges=edges)
    except (KeyError, TypeError, ValueError, nx.NetworkXError) as error:
        raise GraphError(f"{name!r} is not node-link JSON: {type(error).__name__}: {error}") from None
    known = {_key(node.get("id")) for node in parts["nodes"]}
    for node in graph:
        if node not in known:
            raise GraphError(f"{name!r}: an edge names node {node!r}, which is not among the nodes")
    return graph


def _key(value: Any) -> Any:
    return tuple(_key(item) for item in value) if isinstance(value, list) else value
