"""The plan fixtures of `shared/data/mxnet` as graphs of our schema.

Every fixture node is one op, recomputed copies too. Variables are parameters. A gradient of an argument is written into
a buffer of the caller (grad_req=write): a new version of a "state" resident, so it counts in no total. An ignored input
is an order-only edge. In-place pairs to external outputs are left out, as MXNet never takes them.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np

from planner import Graph, MemoryModel, Schedule, lower
from planner.analysis.evaluator import Evaluator, evaluator_of
from planner.kernels import Ints
from planner.mxnet.nnvm import Sharing

#: What the original counts: everything but what the caller holds.
MEMORY = MemoryModel(scope="activations")


@dataclass(frozen=True)
class Fixture:
    """One fixture file; `entries`, `nodes`, `golden` are its words, `value_of` our name of an entry by its id."""

    name: str
    nodes: list[dict[str, Any]]
    entries: list[dict[str, Any]]
    golden: dict[str, Any]
    value_of: list[str]
    digraph: nx.DiGraph

    @property
    def ops(self) -> list[str]:
        """Our name of each node, in execution order."""
        return [self.value_of[node["outputs"][0]].split(":")[0] for node in self.nodes]

    @cached_property
    def graph(self) -> Graph:
        return lower(self.digraph)

    @cached_property
    def graph_without_inplace(self) -> Graph:
        bare = self.digraph.copy()
        for node in bare:
            bare.nodes[node].pop("inplace", None)
        return lower(bare)

    def evaluator(self) -> Evaluator:
        return evaluator_of(self.graph, MEMORY)

    def schedule(self) -> Schedule:
        """Program order with canonical frees."""
        evaluator = self.evaluator()
        return evaluator.schedule(evaluator.keep_all)

    def blocks(self, match_range: int) -> list[int]:
        """Block id of each entry where the file has it, -1 for external ones."""
        if match_range == 16:
            return [-1 if entry["external"] else entry["storage"] for entry in self.entries]
        found: list[int] = self.golden["storage_by_match_range"][str(match_range)]
        return found


FOLDER = Path("data/mxnet")  # in the shared folder


@lru_cache(maxsize=8)
def load(path: Path) -> Fixture:
    """A fixture from its .json or .json.gz file."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    file = json.loads(text)
    assert file["format"] == "mxnet-plan-fixture-1"
    nodes, entries = file["nodes"], file["entries"]
    graph = nx.DiGraph(name=path.name.split(".")[0])
    source: list[tuple[str, int]] = [("", 0)] * len(entries)  # entry -> node and output
    value_of = [""] * len(entries)
    made = {entry for node in nodes for entry in node["outputs"]}
    for entry in entries:
        if entry["id"] not in made:
            assert entry["external"]
            name = entry["name"] or f"entry {entry['id']}"  # gradients of the heads have no name
            assert name not in graph
            graph.add_node(name, nbytes=entry["bytes"], kind="parameter")
            source[entry["id"]], value_of[entry["id"]] = (name, 0), name
        elif entry["external"]:
            graph.add_node(f"buffer of entry {entry['id']}", nbytes=entry["bytes"], kind="state")
    for k, node in enumerate(nodes):
        name = node["name"] if node["name"] not in graph else f"{node['name']} (node {k})"  # gradient sums share names
        _add(graph, name, node, entries, source)
        for o, entry in enumerate(node["outputs"]):
            source[entry] = (name, o)
            value_of[entry] = name if len(node["outputs"]) == 1 else f"{name}:{o}"
    return Fixture(graph.graph["name"], nodes, entries, file["golden"], value_of, graph)


def _add(
    graph: nx.DiGraph, name: str, node: dict[str, Any], entries: list[dict[str, Any]], source: list[tuple[str, int]]
) -> None:
    outputs, ignored = node["outputs"], set(node["ignored_inputs"])
    counted = [i for i in range(len(node["inputs"])) if i not in ignored]
    position = {i: at for at, i in enumerate(counted)}
    external = [o for o, entry in enumerate(outputs) if entries[entry]["external"]]
    sizes = tuple(entries[entry]["bytes"] for entry in outputs)
    assert not any(i in ignored for i, _, _ in node["inplace"])
    graph.add_node(
        name,
        nbytes=sizes[0] if len(sizes) == 1 else sizes,
        op=node["op"],
        phase="forward" if node["phase"] == "forward" else "backward",
        output=tuple(o for o, entry in enumerate(outputs) if entries[entry]["is_output"]),
        inplace=tuple((position[i], o, bool(identity)) for i, o, identity in node["inplace"] if o not in external),
        updates=tuple((len(counted) + k, o) for k, o in enumerate(external)),
    )
    reads: dict[str, list[tuple[int, int]]] = {}
    for i in counted:
        maker, output = source[node["inputs"][i]]
        reads.setdefault(maker, []).append((output, position[i]))
    for k, o in enumerate(external):
        reads[f"buffer of entry {outputs[o]}"] = [(0, len(counted) + k)]
    for i in ignored:
        reads.setdefault(source[node["inputs"][i]][0], [])
    for maker, pairs in reads.items():
        graph.add_edge(maker, name, reads=tuple(o for o, _ in pairs), at=tuple(at for _, at in pairs))


def recomputed(planned: Fixture) -> set[str]:
    """Names of the nodes that a plan computes twice."""
    return {node["name"].replace("_mirror", "") for node in planned.nodes if node["phase"] == "recompute"}


def split_heads(plain: Fixture, again: Collection[str]) -> Graph:
    """The unplanned graph in which an output that a plan computes twice has a twin for the backward pass: `<op> again`.

    The original makes a second copy of it and keeps the first; by our rules a live output cannot be made again.
    """
    heads = {op for op in again if any(plain.graph.tensors[t.name].output for t in plain.graph.op_named[op].outputs)}
    graph = nx.DiGraph()
    for name, given in plain.digraph.nodes(data=True):
        graph.add_node(name, **given)
        if name in heads:
            graph.add_node(f"{name} again", **{**given, "output": ()})
    for source, target, given in plain.digraph.edges(data=True):
        graph.add_edge(f"{source} again" if source in heads and given["reads"] else source, target, **given)
        if target in heads:
            graph.add_edge(source, f"{target} again", **given)
    return lower(graph)


def just_in_time(graph: Graph, again: Collection[str]) -> list[str]:
    """Alg. 2: before each backward op, the second runs it still needs, in program order; twins run there first."""
    place = {op.name: k for k, op in enumerate(graph.ops)}
    missing = {f"{name} again" if f"{name} again" in place else name for name in again}
    order: list[str] = []
    for op in graph.ops:
        if op.phase == "forward" and not op.name.endswith(" again"):
            order.append(op.name)
        elif op.phase == "backward":
            found, waiting = set(), [op]
            while waiting:
                makers = {graph.producer[value] for value in waiting.pop().reads}
                waiting += (new := [maker for maker in makers if maker.name in missing])
                missing -= {maker.name for maker in new}
                found |= {maker.name for maker in new}
            order += [*sorted(found, key=place.__getitem__), op.name]
    return order


def second_runs(plain: Fixture, planned: Fixture, graph: Graph) -> list[str]:
    """The plan's execution order over the ops of `split_heads`: a recomputed node is a second run of its op."""
    named: dict[str, list[str]] = {}  # gradient sums share their names, and come in the same order
    for node, op in zip(plain.nodes, plain.ops, strict=True):
        named.setdefault(node["name"], []).append(op)
    order = []
    for node in planned.nodes:
        ops = named[node["name"].replace("_mirror", "")]
        op = ops.pop(0) if len(ops) > 1 else ops[0]
        twin = f"{op} again"
        order.append(twin if node["phase"] == "recompute" and twin in graph.op_named else op)
    return order


def fold_additions(graph: Graph, sharing: Sharing, *, additions: frozenset[str] = frozenset({"_grad_add"})) -> Ints:
    """Block of each row after the original's add-to pass, for parity only: totals do not change.

    If a sum took the block of its left operand, and the right operand is read once and made later, MXNet lets the maker
    of the right operand add to that block. An `Allocation` cannot say so, since both operands are live.

    Args:
        additions: the operators (`Op.op`) that add their second input to their first.
    Source: MXNet 1.5, `inplace_addto_detect_pass.cc`.
    """
    block: Ints = sharing.block.copy()
    rows = len(block)
    first_row = np.searchsorted(sharing.step, np.arange(len(sharing.sequence))).tolist()
    for step, op in enumerate(sharing.sequence.tolist()):
        if graph.ops[op].op not in additions or len(graph.ops[op].reads) < 2 or not graph.ops[op].outputs:
            continue
        left, right = sharing.read_row[sharing.read_ptr[step] : sharing.read_ptr[step] + 2].tolist()
        if max(left, right) >= rows or block[left] < 0 or block[left] != block[first_row[step]]:
            continue
        if sharing.uses[right] == 1 and sharing.step[left] < sharing.step[right]:
            block[right] = block[left]
    return block
