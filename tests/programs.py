"""Programs and schedules in one line, and what tests count on a training graph by networkx alone."""

from __future__ import annotations

import math
from typing import Any

import networkx as nx

from planner.graph import Graph, Op, Tensor
from planner.schedule import Compute, Free, Schedule


def op(name: str, *reads: str, nbytes: int | tuple[int, ...] = 4, output: bool = False, **attributes: Any) -> Op:
    """An op; several sizes are several outputs. All of them are outputs of the graph, or none."""
    sizes = (nbytes,) if isinstance(nbytes, int) else nbytes
    names = [name] if len(sizes) == 1 else [f"{name}:{o}" for o in range(len(sizes))]
    return Op(name, tuple(Tensor(n, size, output) for n, size in zip(names, sizes, strict=True)), reads, **attributes)


def program(*ops: Op) -> Graph:
    return Graph(list(ops))


def steps(text: str) -> Schedule:
    """ "a b -a" is Compute a, Compute b, Free a."""
    return Schedule.of(Free(word[1:]) if word[0] == "-" else Compute(word) for word in text.split())


def elements(graph: nx.DiGraph, node: str, output: int = 0) -> int:
    """Elements of one output of a node."""
    attributes = graph.nodes[node]
    return math.prod(attributes["shape"][output] if isinstance(attributes["nbytes"], tuple) else attributes["shape"])


def saved(graph: nx.DiGraph) -> set[tuple[str, int]]:
    """Forward values, no residents, that a backward op reads."""
    return {
        (u, output)
        for u, v, edge in graph.edges(data=True)
        if graph.nodes[u].get("kind", "op") == "op"
        and graph.nodes[u]["phase"] in ("forward", "loss")
        and graph.nodes[v].get("phase") == "backward"
        for output in edge["reads"]
    }
