"""Graph files: ONNX, our encoded JSON, and networkx node-link JSON."""

from __future__ import annotations

import codecs
import os
from pathlib import Path
from typing import Any, Final, Union

import msgspec
import networkx as nx

from planner.errors import GraphError
from planner.files import refuse_larger
from planner.graph import FORMAT, Graph
from planner.text import shown

#: What a graph may be given as; text names a zoo model, or an ONNX or JSON file.
GraphLike = Union[nx.DiGraph, Graph, str, os.PathLike[str]]
_START_BYTES: Final = 4096  # white space before JSON is shorter
_MARKS: Final = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_graph(path: str | os.PathLike[str], **onnx_options: Any) -> Graph | nx.DiGraph:
    """The graph in a file; JSON is recognised by its name or its first character, everything else is read as ONNX.

    Args:
        path: the file.
        onnx_options: passed to `from_onnx`; refused for JSON, which has nothing to bind.
    Raises:
        GraphError: missing, not readable, or no graph.
    """
    try:
        with open(path, "rb") as file:
            start = file.read(_START_BYTES)
            named = Path(path).suffix.lower() == ".json"
            is_json = named or start.startswith(_MARKS) or start.lstrip()[:1] in (b"{", b"[")
            if is_json:
                refuse_larger(file, f"graph {str(path)!r}", GraphError)
            content = start + file.read() if is_json else b""
    except OSError as error:
        raise GraphError(f"cannot read graph {str(path)!r}: {error.strerror or error}") from None
    if not is_json:
        from planner.lowering.onnx.importer import from_onnx

        return from_onnx(path, **onnx_options)
    own = {name: value for name, value in onnx_options.items() if name != "trainable"}  # patterns of any graph's step
    given = sorted(name for name, value in own.items() if value not in (None, "forward"))
    if given:
        options = f"{', '.join(given)} can be set for ONNX files and zoo models only"
        raise GraphError(f"{str(path)!r} is a JSON graph: {options}")
    return from_json(content, name=str(path))


def from_json(content: bytes, *, name: str = "graph") -> Graph | nx.DiGraph:
    """A graph from JSON text: the encoded form, or what `networkx.node_link_data` gives.

    Args:
        name: shown in errors.
    Raises:
        GraphError: neither.
    """
    if not content.strip():
        raise GraphError(f"{name!r} is not JSON: it is empty")
    if content.startswith(_MARKS) or b"\0" in content[:4]:
        read = "JSON is read as UTF-8 without a byte order mark"
        raise GraphError(f"{name!r}: {read}, and this is another encoding; save it as UTF-8")
    try:
        parts = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise GraphError(f"{name!r} is not JSON: {error}") from None
    if isinstance(parts, dict) and parts.get("format") == FORMAT:
        return Graph.from_head(parts)
    if isinstance(parts, dict) and isinstance(parts.get("nodes"), list):
        try:
            return _from_node_link(parts, name)
        except RecursionError:
            raise GraphError(f"{name!r} is not node-link JSON: an id is nested too deeply") from None
    kind = parts.get("format") if isinstance(parts, dict) else type(parts).__name__
    raise GraphError(f"{name!r} holds no graph ({kind!r}): expected {FORMAT!r} or networkx node-link JSON")


def _from_node_link(parts: dict[str, Any], name: str) -> nx.DiGraph:
    edges = "links" if "links" in parts else "edges"
    if not isinstance(parts.get(edges), list):
        raise GraphError(f"{name!r}: node-link JSON without an {edges!r} list")
    if parts.get("directed") is False:
        raise GraphError(f"{name!r} is an undirected graph; an edge must say who reads whom")
    for key, kind, what in (("graph", dict, "an object"), ("multigraph", bool, "true or false")):
        if not isinstance(parts.get(key, kind()), kind):
            raise GraphError(f"{name!r}: {key!r} of node-link JSON is {what}, not {shown(parts[key], 80)}")
    nodes = _nodes(parts["nodes"], name)
    _check_edges(parts[edges], nodes, name, many=parts.get("multigraph", True))
    parts = {**parts, "directed": True}
    try:
        graph: nx.DiGraph = nx.node_link_graph(parts, edges=edges)
    except (KeyError, TypeError, ValueError, nx.NetworkXError) as error:
        raise GraphError(f"{name!r} is not node-link JSON: {type(error).__name__}: {error}") from None
    return graph


def _nodes(listed: list[Any], name: str) -> set[Any]:
    """The ids of all nodes; two nodes of one id are refused, because networkx keeps the last without a word."""
    ids: set[Any] = set()
    for place, node in enumerate(listed):
        if not isinstance(node, dict) or node.get("id") is None:
            raise GraphError(f"{name!r}: node {place} of node-link JSON is {shown(node, 80)}, without an 'id'")
        found = _hashable(node["id"], f"{name!r}: node {place}")
        if found in ids:
            raise GraphError(f"{name!r}: two nodes have the id {found!r}; give each its own")
        ids.add(found)
    return ids


def _check_edges(listed: list[Any], nodes: set[Any], name: str, *, many: bool) -> None:
    """Refuse edges of unknown nodes, and without `many` two of one pair: networkx keeps the last without a word."""
    pairs: set[tuple[Any, Any]] = set()
    for place, edge in enumerate(listed):
        if not isinstance(edge, dict) or not {"source", "target"} <= edge.keys():
            what = f"{shown(edge, 80)}, without a 'source' and a 'target'"
            raise GraphError(f"{name!r}: edge {place} of node-link JSON is {what}")
        source, target = (_hashable(edge[end], f"{name!r}: edge {place}") for end in ("source", "target"))
        for node in (source, target):
            if node not in nodes:
                raise GraphError(f"{name!r}: an edge names node {node!r}, which is not among the nodes")
        if (source, target) in pairs and not many:
            remedy = "write one with all its reads, or 'multigraph': true"
            raise GraphError(f"{name!r}: two edges from {source!r} to {target!r}; {remedy}")
        pairs.add((source, target))


def _hashable(value: Any, where: str) -> Any:
    key = _key(value)
    try:
        hash(key)
    except TypeError:
        expected = "an id is a string, a number or a list of them"
        raise GraphError(f"{where} has the id {shown(value, 80)}; {expected}") from None
    return key


def _key(value: Any) -> Any:
    return tuple(_key(item) for item in value) if isinstance(value, list) else value
