"""The encoded program: its checks, its JSON, its fingerprint, and what is dead in it."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

import networkx as nx
import pytest
from hypothesis import given
from offenders import every
from programs import op, program
from strategies import digraphs

from planner.errors import GraphError
from planner.graph import Graph, Op, Tensor
from planner.lowering.schema import lower
from planner.units import MAX_BYTES

X = op("x", nbytes=8, kind="input")


@dataclass(frozen=True)
class Bad:
    """Ops that no Graph accepts, and what the error must say."""

    ops: tuple[Op, ...]
    names: tuple[str, ...]


BAD = {
    "op twice": Bad((X, op("a"), op("a")), ("'a'", "twice")),
    "value twice": Bad((op("a:0"), op("a", nbytes=(1, 2))), ("'a:0'", "'a'")),
    "resident reads": Bad((X, op("p", "x", kind="parameter")), ("'p'", "parameter")),
    "resident waits": Bad((X, op("p", kind="state", after=("x",))), ("'p'", "state")),
    "unknown read": Bad((op("a", "nobody"),), ("'a'", "'nobody'")),
    "read of a later op": Bad((op("a", "b"), op("b")), ("'a'", "'b'")),
    "read of itself": Bad((op("a", "a"),), ("'a'",)),
    "unknown order": Bad((op("a", after=("b",)), op("b")), ("'a'", "'b'")),
    "negative cost": Bad((op("a", cost=-1.0),), ("'a'", "cost", "-1.0")),
    "infinite cost": Bad((op("a", cost=float("inf")),), ("'a'", "cost", "inf")),
    "nan cost": Bad((op("a", cost=float("nan")),), ("'a'", "cost", "nan")),
    "negative workspace": Bad((op("a", workspace=-3),), ("'a'", "workspace", "-3")),
    "negative size": Bad((op("a", nbytes=-5),), ("'a'", "nbytes", "-5")),
    "view of no input": Bad((X, op("v", "x", view=((1, 0, 0),))), ("'v'", "view", "(1, 0, 0)")),
    "view of a negative input": Bad((X, op("v", "x", view=((-1, 0, 0),))), ("'v'", "view")),
    "view as no output": Bad((X, op("v", "x", view=((0, 1, 0),))), ("'v'", "view", "(0, 1, 0)")),
    "view before its base": Bad((X, op("v", "x", view=((0, 0, -4),))), ("'v'", "offset")),
    "view at the end of its base": Bad((X, op("v", "x", view=((0, 0, 8),))), ("'v'", "byte 8", "'x' has 8 bytes")),
    "view beyond its base": Bad((X, op("v", "x", nbytes=0, view=((0, 0, 9),))), ("'v'", "byte 9", "'x' has 8 bytes")),
    "view beyond the storage under a view": Bad((X, op("v", "x", nbytes=99, view=((0, 0, 4),)),
        op("w", "v", view=((0, 0, 40),))), ("'w'", "byte 40", "8 bytes")),
    "view beyond a base of no bytes": Bad((op("x", nbytes=0), op("v", "x", view=((0, 0, 1),))), ("'v'", "0 bytes")),
    "update out of range": Bad((X, op("u", "x", updates=((0, 2),))), ("'u'", "updates", "(0, 2)")),
    "in-place out of range": Bad((X, op("i", "x", inplace=((3, 0, False),))), ("'i'", "inplace", "(3, 0, False)")),
    "output viewed twice": Bad((X, op("y"), op("v", "x", "y", view=((0, 0, 0), (1, 0, 0)))), ("'v'", "two storages")),
    "view and update": Bad((X, op("y"), op("v", "x", "y", view=((0, 0, 0),), updates=((1, 0),))),
        ("'v'", "two storages")),
    "input updated twice": Bad((X, op("u", "x", nbytes=(8, 8), updates=((0, 0), (0, 1)))), ("'u'", "input 0", "twice")),
    "read of an overwritten resident": Bad((X, op("u", "x", updates=((0, 0),)), op("a", "x")), ("'a'", "'x'", "'u'")),
    "read of an overwritten value": Bad((op("z"), op("u", "z", updates=((0, 0),)), op("a", "u", "z")),
        ("'a'", "'z'", "'u'")),
    "read of an overwritten view": Bad((op("z"), op("v", "z", view=((0, 0, 0),)), op("u", "z", updates=((0, 0),)),
        op("a", "v")), ("'a'", "'v'", "'u'")),
    "base overwritten through its view": Bad((X, op("v", "x", view=((0, 0, 0),)), op("u", "v", updates=((0, 0),)),
        op("a", "x")), ("'a'", "'x'", "'u'")),
    "update of an older version": Bad((X, op("u", "x", updates=((0, 0),)), op("w", "x", updates=((0, 0),))),
        ("'w'", "'x'", "'u'")),
    "output overwritten": Bad((op("z", output=True), op("u", "z", updates=((0, 0),))), ("'z'", "'u'")),
    "identity over an updated storage": Bad((op("z"), op("i", "z", inplace=((0, 0, True),)),
        op("u", "z", updates=((0, 0),))), ("'i'", "identity", "'z'")),
    "identity over a new version": Bad((op("z"), op("u", "z", updates=((0, 0),)),
        op("i", "u", inplace=((0, 0, True),))), ("'i'", "identity")),
    # If the pair happened, the update would overwrite z too, and keep-all could not run `a`.
    "identity, then an update of its output": Bad((op("z"), op("i", "z", inplace=((0, 0, True),)),
        op("u", "i", updates=((0, 0),)), op("a", "z", "u")), ("'i'", "identity")),
    "identities in a row, then an update": Bad((op("z"), op("i", "z", inplace=((0, 0, True),)),
        op("j", "i", inplace=((0, 0, True),)), op("u", "j", updates=((0, 0),)), op("a", "z", "u")), ("identity",)),
    "overflow": Bad((op("a", nbytes=MAX_BYTES), op("b", nbytes=1)), ("'b'", "2**62")),
    "overflow in one op": Bad((op("a", nbytes=MAX_BYTES + 1),), ("'a'", "2**62")),
    "overflow by workspace": Bad((op("a", nbytes=MAX_BYTES, workspace=1),), ("'a'", "2**62")),
}  # fmt: skip


@every("bad", BAD.values(), ids=BAD)
def test_a_program_that_cannot_be_is_refused_by_name(bad: Bad) -> None:
    with pytest.raises(GraphError) as caught:
        Graph(bad.ops)
    assert all(name in str(caught.value) for name in bad.names), str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_view_of_no_bytes_may_lie_at_the_end_of_its_base() -> None:
    empty = [op("none", nbytes=0), *(op(f"{size} of none", "none", nbytes=size, view=((0, 0, 0),)) for size in (0, 4))]
    graph = program(X, op("rest", "x", nbytes=0, view=((0, 0, 8),)), *empty)
    assert [graph.storage_root[name] for name in ("rest", "0 of none", "4 of none")] == ["x", "none", "none"]


def test_the_largest_sizes_are_accepted() -> None:
    assert program(op("a", nbytes=MAX_BYTES - 1), op("b", nbytes=1)).tensors["a"].nbytes == MAX_BYTES - 1


def test_an_identity_without_updates_a_pair_on_an_updated_storage_and_reads_by_the_updating_op_are_fine() -> None:
    program(op("z"), op("i", "z", inplace=((0, 0, True),)), op("a", "z", "i"))
    taking = op("i", "u", inplace=((0, 0, False),))
    program(op("z"), op("u", "z", updates=((0, 0),)), taking, op("w", "i", updates=((0, 0),)))
    program(op("z"), op("v", "z", view=((0, 0, 0),)), op("u", "z", "v", updates=((0, 0),), output=True))


def test_readers_and_outputs_come_in_program_order() -> None:
    graph = program(X, op("a", "x", "x"), op("b", "x", output=True), op("c", "a", "x", output=True))
    assert graph.readers == {"x": ("a", "b", "c"), "a": ("c",), "b": (), "c": ()}
    assert graph.outputs == ("b", "c")


def test_a_storage_is_known_by_the_value_that_allocated_it() -> None:
    graph = program(
        op("p", nbytes=8, kind="parameter"),
        op("v", "p", view=((0, 0, 4),)),
        op("u", "v", updates=((0, 0),)),
        op("a", "u", inplace=((0, 0, False),)),
    )
    assert graph.storage_root == {"p": "p", "v": "p", "u": "p", "a": "a"}
    assert [graph.on_resident(value) for value in "pvua"] == [True, True, True, False]
    assert [graph.carries_resident(value) for value in "pvua"] == [True, False, True, False]


def test_dead_is_what_no_output_no_resident_and_no_effect_would_miss() -> None:
    unread = [op("live", "x"), op("unread", "x"), op("feeds unread", "x"), op("unread too", "feeds unread")]
    updates = [op("z"), op("lost update", "z", updates=((0, 0),)), op("step", "p", "live", updates=((0, 0),))]
    effects = [op("log", "live", nbytes=()), op("awaited", "x"), op("out", "live", after=("awaited",), output=True)]
    halves = [op("half", "x", nbytes=(1, 2)), op("reads half", "half:1", output=True)]
    graph = program(X, op("p", kind="parameter"), *unread, *updates, *effects, *halves)
    assert graph.dead == ("unread", "feeds unread", "unread too", "z", "lost update")


def test_dropping_the_dead_leaves_a_program() -> None:
    graph = program(X, op("a", "x"), op("b", "a"), op("c", "x", output=True))
    assert Graph([o for o in graph.ops if o.name not in graph.dead]).outputs == ("c",)


@given(digraphs())
def test_dropping_the_dead_always_leaves_a_program_with_the_same_outputs(digraph: nx.DiGraph) -> None:
    graph = lower(digraph)
    rest = Graph([o for o in graph.ops if o.name not in graph.dead])
    assert rest.outputs == graph.outputs
    assert rest.dead == ()


EVERYTHING = Graph(
    [
        Op("x", (Tensor("x", 8, shape=(2,), dtype="float32"),), kind="input"),
        Op("p", (Tensor("p", 4),), kind="parameter"),
        Op("r", (), ("x",), cost=0.5, phase="forward", recomputable=False),
        Op("m", (Tensor("m:0", 8), Tensor("m:1", 3, True)), ("x", "x"), after=("r",), cost=2.0, workspace=7,
            phase="forward", inplace=((0, 0, True), (1, 0, False)), stage="cell", op="Mul", flops=3.5,
            module="net.mul"),
        Op("v", (Tensor("v", 2),), ("m:0",), view=((0, 0, 6),), stage=True),
        Op("u", (Tensor("u", 4, True),), ("p", "v"), updates=((0, 0),), phase="update"),
        ], name="everything",
)  # fmt: skip


def test_json_gives_the_program_back() -> None:
    again = Graph.from_json(EVERYTHING.to_json())
    assert again == EVERYTHING
    assert again.name == "everything"
    assert again.to_json() == EVERYTHING.to_json()
    assert Graph.from_json(EVERYTHING.to_json().decode()) == EVERYTHING
    assert hash(again) == hash(EVERYTHING)


@given(digraphs())
def test_json_gives_any_program_back(digraph: nx.DiGraph) -> None:
    graph = lower(digraph)
    assert Graph.from_json(graph.to_json()) == graph
    assert Graph.from_json(json.dumps(json.loads(graph.to_json()))).fingerprint == graph.fingerprint


def _edited(edit: Any) -> bytes:
    parts = json.loads(EVERYTHING.to_json())
    edit(parts)
    return json.dumps(parts).encode()


@every(("edit", "message"), [
    (lambda parts: parts.update(version=2), "version 2"), (lambda parts: parts.update(version="1"), "version '1'"),
    (lambda parts: parts.pop("version"), "version None"),
    (lambda parts: parts.update(format="planner-plan"), "planner-plan"),
    (lambda parts: parts.pop("format"), "format is None"), (lambda parts: parts.pop("ops"), "ops"),
    (lambda parts: parts.update(ops={}), "ops"), (lambda parts: parts["ops"][3].update(cost="much"), "'m'"),
    (lambda parts: parts["ops"][3].update(kind="weight"), "'m'"),
    (lambda parts: parts["ops"][4].update(view=[[0]]), "'v'"),
    (lambda parts: parts["ops"][1]["outputs"][0].update(nbytes=1.5), "'p'"),
    (lambda parts: parts["ops"][1]["outputs"][0].update(nbytes=-1), "'p'"),
    (lambda parts: parts["ops"][4].update(reads=["m:7"]), "'v'"), (lambda parts: parts["ops"].reverse(), "'u'"),
])  # fmt: skip
def test_json_of_another_kind_is_refused_by_name(edit: Any, message: str) -> None:
    with pytest.raises(GraphError) as caught:
        Graph.from_json(_edited(edit))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@every("text", [b"", b"{", b"[]", b"null", b"7", b'"graph"', b"\xff\xfe", EVERYTHING.to_json()[:-9]], ids=repr)
def test_what_is_not_a_json_graph_is_a_graph_error(text: bytes) -> None:
    with pytest.raises(GraphError):
        Graph.from_json(text)


def test_the_fingerprint_is_of_the_content_alone() -> None:
    ops = [X, op("a", "x"), op("b", "x"), op("c", "a", "b", output=True)]
    graph = Graph(ops)
    assert Graph([ops[0], ops[2], ops[1], ops[3]], name="another name").fingerprint == graph.fingerprint
    for other in (
        op("b", "x", cost=2.0),
        op("b", "x", nbytes=5),
        op("b", "x", output=True),
        op("b", "x", after=("a",)),
        op("b", "a"),
    ):
        assert program(ops[0], ops[1], other, ops[3]).fingerprint != graph.fingerprint


@given(digraphs())
def test_the_fingerprint_does_not_depend_on_the_order_networkx_iterates_in(digraph: nx.DiGraph) -> None:
    nodes, edges = list(digraph.nodes(data=True)), list(digraph.edges(data=True))
    order = random.Random(len(edges))
    order.shuffle(edges)
    shuffled = nx.DiGraph()
    shuffled.add_nodes_from(nodes)
    shuffled.add_edges_from(edges)
    graph = lower(digraph)
    assert lower(shuffled) == graph
    assert Graph(_another_topological_order(graph.ops)).fingerprint == graph.fingerprint


def _another_topological_order(ops: tuple[Op, ...]) -> list[Op]:
    """The residents backwards, then the rest."""
    return [*reversed([o for o in ops if o.resident]), *(o for o in ops if not o.resident)]


def test_graphs_compare_by_their_ops_in_order() -> None:
    a, b = op("a"), op("b")
    assert Graph([a, b], name="one") == Graph([a, b], name="two")
    assert program(a, b) != program(b, a)
    assert program(a) != "a"


def test_a_graph_says_how_large_it_is() -> None:
    assert len(EVERYTHING) == 6
    assert "everything" in repr(EVERYTHING)
    assert "6 ops" in repr(EVERYTHING)
    assert Graph([]).outputs == ()
