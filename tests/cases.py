"""The graphs of `shared/cases.md` in its own words (Model R), and their translation to our schema.

`NAME<inputs:size,cost[,workspace]`: a node makes one value; names never defined are residents of 0 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import networkx as nx


class Node(NamedTuple):
    """One word of Model R."""

    inputs: tuple[str, ...]
    nbytes: int
    cost: float
    workspace: int


def nodes(text: str) -> dict[str, Node]:
    """Model R, read literally."""
    found = {}
    for word in text.split():
        name, rest = word.split("<")
        inputs, numbers = rest.split(":")
        size, cost, *scratch = numbers.split(",")
        found[name] = Node(
            tuple(i for i in inputs.split(",") if i), int(size), float(cost), int(scratch[0]) if scratch else 0
        )
    return found


def digraph(
    text: str,
    outs: tuple[str, ...],
    *,
    resident: int = 0,
    backward: tuple[str, ...] = ("g",),
    loss: tuple[str, ...] = (),
    once: tuple[str, ...] = (),
) -> nx.DiGraph:
    """Model R as a graph of our schema.

    Args:
        outs: values that must be live at the end; every other unread value has `output=False`.
        resident: bytes of one more parameter, named "resident".
        backward: prefixes of the names of backward nodes.
        loss: nodes of phase "loss"; all others are "forward".
        once: nodes that are not recomputable.
    """
    ops = nodes(text)
    graph = nx.DiGraph()
    if resident:
        graph.add_node("resident", nbytes=resident, kind="parameter")
    read = {name for op in ops.values() for name in op.inputs}
    for op in ops.values():
        for name in op.inputs:
            if name not in ops:
                graph.add_node(name, nbytes=0, kind="input")
    for name, op in ops.items():
        phase = "loss" if name in loss else "backward" if name.startswith(backward) else "forward"
        graph.add_node(name, nbytes=op.nbytes, cost=op.cost, workspace=op.workspace, phase=phase)
        if name in outs or name not in read:
            graph.nodes[name]["output"] = name in outs
        if name in once:
            graph.nodes[name]["recomputable"] = False
        for k, source in enumerate(op.inputs):
            graph.add_edge(source, name, at=(k,))
    return graph


@dataclass(frozen=True)
class Case:
    """One public case: its text, and the keep-all peak and cost that `cases.md` states (None where it states none)."""

    text: str
    outs: tuple[str, ...]
    peak: int | None = None
    cost: float | None = None
    resident: int = 0
    backward: tuple[str, ...] = ("g",)
    loss: tuple[str, ...] = ()
    once: tuple[str, ...] = ()

    def digraph(self) -> nx.DiGraph:
        """The case in our schema, in the order its text lists."""
        return digraph(
            self.text, self.outs, resident=self.resident, backward=self.backward, loss=self.loss, once=self.once
        )


def chain(length: int) -> str:
    """C1 and C10: unit chain where backward i reads f[i-1] and the gradient above, and the first reads the last f."""
    forward = ["f1<x:1,1"] + [f"f{i}<f{i - 1}:1,1" for i in range(2, length + 1)]
    backward = [f"g{length}<f{length}:1,1"] + [f"g{i}<g{i + 1},f{i}:1,1" for i in range(length - 1, 0, -1)]
    return " ".join([*forward, *backward, "g0<g1,x:1,1"])


def layers(count: int = 24, *, inner: int = 16, outer: int = 1) -> str:
    """C1, trap b: layers of an inner value m and an outer value x, whose backward reads both."""
    forward = [f"m{i}<x{i}:{inner},4 x{i + 1}<m{i}:{outer},4" for i in range(count)]
    backward = [f"g{i}<g{i + 1},m{i},x{i}:{outer},16" for i in range(count - 1, -1, -1)]
    return " ".join([*forward, f"g{count}<x{count}:{outer},1", *backward])


C1 = Case(chain(8), ("g0",), peak=9, cost=17)
C1_FREE = replace(C1, text=C1.text.replace("f3<f2:1,1", "f3<f2:1,0").replace("f6<f5:1,1", "f6<f5:1,0"), cost=15)
TRAP_B = Case(layers(), ("g0",), peak=409)
TRAP_B_EQUAL = Case(layers(inner=4, outer=4), ("g0",), peak=196)
C2 = Case(
    "e1<x:64,8 e2<e1:32,8 e3<e2:16,8 m<e3:8,4 d3<m,e3:16,8 d2<d3,e2:32,8 d1<d2,e1:64,8 gd1<d1:64,1 gd2<gd1,d2,e1:32,8"
    " se1<gd1:64,1 gd3<gd2,d3,e2:16,8 se2<gd2:32,1 gm<gd3,m,e3:8,8 se3<gd3:16,1 ge3<gm,se3,e3:16,4 ge2<ge3,se2,e2:32,8"
    " ge1<ge2,se1,e1:64,8 gx<ge1:1,8",
    ("gx",),
    peak=296,
    cost=108,
    backward=("g", "se"),
)
C3 = Case(
    "a<x:2,1 b<a:20,5 c<b:20,5,4 d<c:1,1 gd<d:1,1 gc<gd,c:20,1 gb<gc,b:20,5 ga<gb,a:2,5 gx<ga:1,1",
    ("gx",),
    peak=163,
    cost=25,
    resident=100,
)
C5 = Case(
    "hid<x:134217728,1 l16<hid:9957277696,100 l32<l16:19914555392,5 logp<l32:19914555392,5 loss<logp:4,1"
    " g32<logp,loss:19914555392,5 g16<g32:9957277696,5 gh<g16,hid:134217728,200",
    ("gh",),
    peak=39_963_328_516,
    loss=("loss",),
)
C5_RETURNED = replace(C5, outs=("gh", "l16"), peak=49_920_606_212)
_C7_TRUNK, _C7_A = "t1<x:8,4 t2<t1:8,4", "A1<t2:6,3 A2<A1:1,1"
_C7_B, _C7_GRADS = "B1<t2:30,10 B2<B1:2,1", "gA2<A2,B2:1,1 gA1<gA2,A1:6,3 gt2<gA1,t2:8,4 gt1<gt2,t1:8,4 gx<gt1:1,4"
C7 = Case(f"{_C7_TRUNK} {_C7_A} {_C7_B} {_C7_GRADS}", ("A2", "B2", "gx"), peak=55, cost=39)
C7_B_FIRST = replace(C7, text=f"{_C7_TRUNK} {_C7_B} {_C7_A} {_C7_GRADS}", peak=48)
C7_DEAD = replace(
    C7, text=f"{_C7_TRUNK} {_C7_A} {_C7_GRADS}".replace("gA2<A2,B2:", "gA2<A2:"), outs=("A2", "gx"), peak=31, cost=28
)
C7_FROZEN = replace(
    C7,
    text=f"{_C7_TRUNK} {_C7_B} {_C7_A} gA2<A2,B2:1,1 gA1<gA2,A1:6,3 wA<gA1,t2:1,2",
    outs=("A2", "B2", "wA"),
    backward=("g", "w"),
    peak=40,
    cost=29,
)
C9 = Case(
    "h1<x:8,8 n1<h1:8,2 k<:1,1 d1<n1,k:8,1 h2<d1:8,8 gl<h2:8,1 gd1<gl,d1:8,8 gn1<gd1,k:8,1 gh1<gn1,h1:8,3 gx<gh1:8,8",
    ("gx",),
    cost=41,
    once=("k",),
)
C9_REPLAYED = replace(C9, once=())

#: Every case with one text; C10 is `chain(1000)`.
CASES = {
    "C1": C1, "C1-free": C1_FREE, "trap-b": TRAP_B, "trap-b-equal": TRAP_B_EQUAL, "C2": C2, "C3": C3, "C5": C5,
    "C5-returned": C5_RETURNED, "C7": C7, "C7-b-first": C7_B_FIRST, "C7-dead": C7_DEAD, "C7-frozen": C7_FROZEN,
    "C9": C9, "C9-replayed": C9_REPLAYED,
}  # fmt: skip


def c4(length: int = 100) -> nx.DiGraph:
    """C4: one linear layer applied again and again; every activation is returned. Bytes."""
    activation = 10240 * 1024 * 4
    graph = nx.DiGraph()
    graph.add_node("h0", nbytes=activation, kind="input")
    graph.add_node("weight", nbytes=1024 * 1024 * 4, kind="parameter")
    graph.add_node("bias", nbytes=1024 * 4, kind="parameter")
    for i in range(1, length + 1):
        graph.add_node(f"h{i}", nbytes=activation, phase="forward", output=True)
        graph.add_edges_from((source, f"h{i}") for source in (f"h{i - 1}", "weight", "bias"))
    return graph


def c8(*, c2_returned: bool = True) -> nx.DiGraph:
    """C8: which in-place pairs are legal. MiB; all permissions a naive planner might take; `saved` is backward."""
    graph = nx.DiGraph()
    graph.add_node("x", nbytes=8, kind="input")
    for name, sources, pairs in (
        ("c1", ("x",), ((0, 0),)),
        ("n1", ("c1",), ((0, 0),)),
        ("r1", ("n1",), ((0, 0),)),
        ("c2", ("r1",), ()),
        ("s", ("c2", "r1"), ((0, 0), (1, 0))),
        ("r2", ("s",), ((0, 0),)),
        ("y", ("r2",), ((0, 0),)),
    ):
        graph.add_node(
            name, nbytes=8, inplace=pairs, phase="forward", output=name == "y" or (name == "c2" and c2_returned)
        )
        for k, source in enumerate(sources):
            graph.add_edge(source, name, at=(k,))
    graph.add_node("saved", nbytes=(), phase="backward")
    for source in ("x", "c1", "r1", "r2"):
        graph.add_edge(source, "saved")
    return graph
