"""Random training graphs and random legal orders for hypothesis, legal by construction.

`digraphs()` has everything the schema knows, `simple_digraphs()` suits the oracle, `op_sequences(graph)` recomputes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx
from hypothesis import strategies as st
from naive import canonical_steps, instance

from planner.graph import Graph
from planner.memory import MemoryModel
from planner.schedule import Compute, Free, Schedule


def dag(nodes: Mapping[Hashable, Any], *edges: tuple[Any, ...], **facts: Any) -> nx.DiGraph:
    """A graph as people write it: bytes or attributes of each node, and (source, target[, attributes]) edges."""
    graph = nx.DiGraph(**facts)
    for name, given in nodes.items():
        graph.add_node(name, **(given if isinstance(given, dict) else {"nbytes": given}))
    graph.add_edges_from(edges)
    return graph


SIZES = st.sampled_from([4, 1, 8, 3, 16, 0])
COSTS = st.sampled_from([1.0, 2.0, 0.0, 0.25, 7.0])


@dataclass(eq=False)
class _Storage:
    nbytes: int
    resident: bool
    updated: bool = False
    identity: bool = False  # an identity pair joins it: `Graph` refuses to update it


@dataclass(eq=False)
class _Value:
    node: str
    output: int
    storage: _Storage
    alive: bool = True  # False: an update has overwritten it
    read: bool = False


class _Builder:
    """Adds nodes in program order; only values that are not overwritten are ever read."""

    def __init__(self, draw: Callable[[st.SearchStrategy], Any], *, aliasing: bool) -> None:
        self.draw, self.aliasing = draw, aliasing
        self.graph = nx.DiGraph()
        self.values: list[_Value] = []

    def chance(self, one_in: int) -> bool:
        return bool(self.draw(st.integers(0, one_in - 1)) == one_in - 1)

    def alive(self, values: Sequence[_Value]) -> list[_Value]:
        return [value for value in values if value.alive]

    def some(self, pool: Sequence[_Value], *, least: int = 0, most: int = 3) -> list[_Value]:
        """Values of a pool, repeats allowed."""
        pool = self.alive(pool)
        return self.draw(st.lists(st.sampled_from(pool), min_size=least, max_size=most)) if pool else []

    def resident(self, name: str, kind: str) -> list[_Value]:
        count = 2 if self.aliasing and self.chance(12) else 1
        sizes = [self.draw(SIZES) for _ in range(count)]
        self.graph.add_node(name, nbytes=sizes[0] if count == 1 else tuple(sizes), kind=kind)
        return self._made(name, [_Storage(nbytes, resident=True) for nbytes in sizes])

    def _made(self, name: str, storages: Sequence[_Storage]) -> list[_Value]:
        made = [_Value(name, o, storage) for o, storage in enumerate(storages)]
        self.values += made
        return made

    def op(
        self, name: str, phase: str, reads: Sequence[_Value], *, aliases: Sequence[str] | None = None
    ) -> list[_Value]:
        """One op; `aliases` says what each output is: fresh, view, update, inplace or identity. Drawn by default."""
        if aliases is None:
            kinds = (
                ["fresh", "fresh", "inplace", "view", "identity", "update"] if self.aliasing and reads else ["fresh"]
            )
            count = self.draw(st.sampled_from([1, 1, 1, 2, 3, 0])) if self.aliasing else 1
            aliases = [self.draw(st.sampled_from(kinds)) for _ in range(count)]
        storages: list[_Storage] = []
        sizes: list[int] = []
        pairs: dict[str, list[tuple]] = {"view": [], "updates": [], "inplace": []}
        doomed: list[_Storage] = []
        for o, alias in enumerate(aliases):
            i = self.draw(st.integers(0, len(reads) - 1)) if alias != "fresh" and len(reads) > 1 else 0
            under = reads[i].storage if reads else None
            nbytes = self.draw(SIZES)
            if alias == "view":
                offset = self.draw(st.integers(0, under.nbytes))
                nbytes = 0 if 0 < offset == under.nbytes else nbytes  # at the end of its base a view is empty
                pairs["view"].append((i, o, offset) if offset or self.chance(2) else (i, o))
            elif alias == "update" and not under.identity and under not in doomed:
                pairs["updates"].append((i, o))
                doomed.append(under)
                under.updated = True
            else:
                given = under
                under = _Storage(nbytes, resident=False)
                if alias in ("inplace", "identity"):
                    if not self.chance(5):
                        nbytes = under.nbytes = given.nbytes
                    identity = alias == "identity" and not given.updated and given not in doomed
                    pairs["inplace"].append(
                        (i, o, True) if identity else self.draw(st.sampled_from([(i, o), (i, o, False)]))
                    )
                    if identity:
                        given.identity = under.identity = True
                    elif len(reads) > 1 and self.chance(3):
                        pairs["inplace"] += [(j, o) for j in range(len(reads)) if j != i]
            storages.append(under)
            sizes.append(nbytes)
        attributes = {key: value for key, value in pairs.items() if value}
        nbytes = sizes[0] if len(sizes) == 1 and not self.chance(8) else tuple(sizes)
        cost, workspace = self.draw(COSTS), self.draw(SIZES) if self.chance(4) else 0
        attributes.update(cost=cost, workspace=workspace, recomputable=not self.chance(8))
        self.graph.add_node(name, nbytes=nbytes, phase=phase, **attributes)
        self._wire(name, reads, positions=any(pairs.values()) and len(reads) > 1)
        for value in self.values:
            if value.storage in doomed:
                value.alive = False
        return self._made(name, storages)

    def _wire(self, name: str, reads: Sequence[_Value], *, positions: bool) -> None:
        positions = positions or self.chance(2)
        for source in dict.fromkeys(value.node for value in reads):
            at = [k for k, value in enumerate(reads) if value.node == source]
            outputs = [reads[k].output for k in at]
            only = sum(value.node == source for value in self.values) == 1 and outputs == [0]
            attributes: dict[str, Any] = {} if only and self.chance(2) else {"reads": tuple(outputs)}
            if positions:
                attributes["at"] = tuple(at)
            self.graph.add_edge(source, name, **attributes)
        for value in reads:
            value.read = True

    def wait(self, name: str, before: Sequence[str]) -> None:
        """An order-only edge, where there is none yet."""
        before = [other for other in before if other != name and not self.graph.has_edge(other, name)]
        if before:
            self.graph.add_edge(self.draw(st.sampled_from(before)), name, reads=())

    def finish(self) -> nx.DiGraph:
        """Mark outputs: never one that an update has overwritten."""
        made: dict[str, list[_Value]] = {node: [] for node in self.graph}
        for value in self.values:
            made[value.node].append(value)
        for node, values in made.items():
            lasting = tuple(value.output for value in values if value.alive)
            whole = len(lasting) == len(values)
            choices: list[Any] = []
            if whole or any(value.read for value in values):
                choices.append(None)
            choices += [False, lasting if not whole else True]
            choices += [lasting[:1]] if len(values) > 1 else []
            if self.graph.nodes[node].get("kind", "op") != "op":
                choices = [None, None, None, *choices]
            elif any(value.read for value in values):
                choices = [*choices[:1], *choices[:1], *choices]  # mostly not an output
            output = self.draw(st.sampled_from(choices))
            if output is not None:
                self.graph.nodes[node]["output"] = output
        return self.graph


def _training(build: _Builder, forward: int, backward: int) -> nx.DiGraph:
    draw = build.draw
    inputs = build.resident("x", "input")
    parameters = [build.resident(f"p{k}", "parameter")[0] for k in range(draw(st.integers(0, 2)))]
    states = [build.resident(f"s{k}", "state")[0] for k in range(draw(st.integers(0, 1)))]
    newest: list[_Value] = []
    layers: list[tuple[list[_Value], list[_Value]]] = []
    for k in range(forward):
        recent = build.alive(newest)[-3:]
        reads = build.some([*recent, *recent, *inputs, *parameters, *states], most=3)
        made = build.op(f"f{k}", "forward", reads)
        newest += made
        layers.append((reads, made))
    loss = build.op("loss", "loss", build.some(newest[-4:], most=2), aliases=("fresh",))
    gradients = list(loss)
    accumulated: _Value | None = None
    for k, (reads, made) in reversed(list(enumerate(layers[len(layers) - backward :]))):
        wanted = [*build.some(gradients[-3:], least=1, most=2), *build.some([*reads, *made], most=2)]
        gradients += build.op(f"b{k}", "backward", wanted)
        if build.aliasing and build.chance(3):
            if accumulated is None or not accumulated.alive:
                (accumulated,) = build.op(f"a{k}", "backward", build.some(gradients[-1:], most=1), aliases=("fresh",))
            else:
                addends = build.some(gradients[-2:], most=1)
                (accumulated,) = build.op(f"a{k}", "backward", [accumulated, *addends], aliases=("update",))
    backward_names = [node for node in build.graph if node[0] == "b"]
    for k, parameter in enumerate(parameters):
        if parameter.alive and build.aliasing and build.chance(2):
            extra = build.some([*gradients[-3:], *states], most=2)
            build.op(f"u{k}", "update", [parameter, *extra], aliases=("update",))
            build.wait(f"u{k}", backward_names)
    if build.chance(3):
        ops = [node for node in build.graph if "kind" not in build.graph.nodes[node]]
        build.wait(ops[-1], list(build.graph)[:-1])
    return build.finish()


@st.composite
def digraphs(draw: Callable, *, most_forward: int = 6) -> nx.DiGraph:
    """A training step in the schema: residents, forward, loss, backward, update, with every attribute of the schema.

    Node order is topological, program order reads no overwritten version, and keep-all is legal.
    """
    forward = draw(st.integers(1, most_forward))
    return _training(_Builder(draw, aliasing=True), forward, draw(st.integers(0, forward)))


@st.composite
def simple_digraphs(draw: Callable, *, most_ops: int = 9) -> nx.DiGraph:
    """A small training step, at most `most_ops` ops of one output each and no aliasing: for the exhaustive oracle."""
    forward = draw(st.integers(1, (most_ops - 1) // 2))
    return _training(_Builder(draw, aliasing=False), forward, draw(st.integers(0, forward)))


@st.composite
def memory_models(draw: Callable) -> MemoryModel:
    """Both scopes, small alignments, no reserve."""
    return MemoryModel(
        scope=draw(st.sampled_from(["total", "activations"])), alignment=draw(st.sampled_from([1, 4, 7]))
    )


@st.composite
def op_sequences(draw: Callable, graph: Graph, *, most_extra: int = 12) -> list[str]:
    """A random order of ops, the program order at the simplest, whose `naive.canonical_steps` are a legal schedule."""
    ops = [op for op in graph.ops if op.kind == "op"]
    sequence: list[str] = []
    # value -> storage
    live = {tensor.name: (tensor.name, -1) for op in graph.ops if op.kind != "op" for tensor in op.outputs}
    extra = draw(st.integers(0, most_extra))
    while True:
        fresh = [op for op in ops if op.name not in sequence and _may_run(graph, op, sequence, live)]
        again = [op for op in ops if op.name in sequence and _may_run_again(op, live)] if extra else []
        if not fresh and not (again and draw(st.booleans())):
            break
        op = draw(st.sampled_from([*fresh[:1], *fresh[:1], *fresh, *again]))
        extra -= op.name in sequence
        doomed = {live[op.reads[i]] for i, _ in op.updates}
        sequence.append(op.name)
        live = {value: storage for value, storage in live.items() if storage not in doomed}
        for tensor in op.outputs:
            live[tensor.name] = instance(graph, sequence, len(sequence), tensor.name)
    assert len(set(sequence)) == len(ops), "an order got stuck"
    return sequence


def _may_run(graph: Graph, op: Any, sequence: Sequence[str], live: dict[str, tuple[str, int]]) -> bool:
    """First runs: everything read is at hand, and nobody still waits for a version that this op overwrites."""
    if any(value not in live for value in op.reads):
        return False
    if any(before not in sequence for before in op.after if graph.op_named[before].kind == "op"):
        return False
    doomed = {live[op.reads[i]] for i, _ in op.updates}
    dropped = [value for value, storage in live.items() if storage in doomed]
    return all(reader == op.name or reader in sequence for value in dropped for reader in graph.readers[value])


def _may_run_again(op: Any, live: dict[str, tuple[str, int]]) -> bool:
    return bool(op.recomputable and op.outputs and all(value in live for value in op.reads))


@st.composite
def schedules(draw: Callable, graph: Graph) -> Schedule:
    """A legal schedule: a random order with canonical frees."""
    return canonical_steps(graph, draw(op_sequences(graph)))


@st.composite
def broken_schedules(draw: Callable, graph: Graph) -> Schedule:
    """A schedule near a legal one, legal or not: steps dropped, doubled, swapped, moved or made up."""
    steps = list(draw(schedules(graph)).steps)
    names = [op.name for op in graph.ops]
    for _ in range(draw(st.integers(1, 4))):
        k = draw(st.integers(0, len(steps)))
        change = draw(st.sampled_from(["drop a free", "drop", "double", "swap", "move", "compute", "free"]))
        frees = [j for j, step in enumerate(steps) if isinstance(step, Free)]
        if change == "compute":
            steps.insert(k, Compute(draw(st.sampled_from(names))))
        elif change == "free" and graph.tensors:
            steps.insert(k, Free(draw(st.sampled_from(list(graph.tensors)))))
        elif change == "drop a free" and frees:
            del steps[draw(st.sampled_from(frees))]
        elif k < len(steps) and change == "drop":
            del steps[k]
        elif k < len(steps) and change == "double":
            steps.insert(k, steps[k])
        elif k + 1 < len(steps) and change == "swap":
            steps[k], steps[k + 1] = steps[k + 1], steps[k]
        elif k < len(steps) and change == "move":
            steps.insert(draw(st.integers(0, len(steps) - 1)), steps.pop(k))
    return Schedule.of(steps)
