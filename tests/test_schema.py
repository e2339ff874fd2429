"""The schema people write graphs in: every attribute checked, and the same program however the graph was carried."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from enum import Enum
from typing import Any

import msgspec
import networkx as nx
import numpy as np
import pytest
from cases import C3, CASES, c4, c8, nodes
from hypothesis import given
from naive import keep_all
from offenders import every
from strategies import dag, digraphs, simple_digraphs

from planner.errors import GraphError
from planner.graph import Graph, Op, Tensor
from planner.lowering.schema import EDGE, NODE, lower, program_order
from planner.simulator import simulate


def pair(**attributes: Any) -> nx.DiGraph:
    """Input x, read by op "node"."""
    return dag({"x": {"nbytes": 8, "kind": "input"}, "node": {"nbytes": 8, **attributes}}, ("x", "node"))


def triple(**edge: Any) -> nx.DiGraph:
    """ "many" has two outputs; "node" reads them."""
    return dag({"many": (4, 8), "node": 4}, ("many", "node", edge))


def changed(graph: nx.DiGraph, change: Callable[[nx.DiGraph], Any]) -> nx.DiGraph:
    change(graph)
    return graph


WRONG = {
    "nbytes": [None, -1, 4.0, "4", True, (4, -1), (4, 4.5), {4}, [None], np.float64(4), b"4", np.array([1, 2]),
        np.array([[1, 2]] * 99), np.True_, (4, np.array([1, 2]))],
    "cost": [None, -1, -0.5, float("nan"), float("inf"), "1", True, [1.0], 10**400, np.True_, np.array([1.0, 2.0])],
    "workspace": [None, -1, 1.5, "8", True, (8,), np.array([1, 2])],
    "kind": [None, "weight", 0, ["op"], "Op", True, np.array(["op", "op"])],
    "phase": ["fwd", 0, "Forward", ("forward",), True],
    "output": [0, 1, "all", -1, (-1,), (0.0,), (1,), ("0",), [True], {0}],
    "view": [(0, 0), 0, None, "00", [(0,)], [(0, 0, -1)], [(0, 0, 1.5)], [(0, 0, 0, 0)], [(-1, 0)], [(0.0, 0)],
        [(0, 0, True)], [(True, 0)], [0, 0]],
    "updates": [(0, 0), None, True, [(0, 0, 0)], [(0,)], [(0, -1)], ["00"], [(0, None)]],
    "inplace": [(0, 0), None, [(0, 0, 1)], [(0, 0, "identity")], [(0,)], [(-1, 0)], [(0, 0, True, True)], {(0, 0)}],
    "recomputable": [None, 0, 1, "no", (), np.int64(1), np.array([True])],
    "stage": [1, 0, 1.5, ("a",), ["a"], b"a", np.array([1, 2]), "\ud800"],
    "position": [-1, 1.5, "1", True],
    "op": [1, ("Relu",), b"Relu", "\ud800"],
    "flops": [-1, "many", float("nan"), True],
    "module": [1, ["net"], "net.\udcff"],
}  # fmt: skip
ANYTHING = {"saves", "shape", "dtype"}  # read elsewhere, or in reports only


@every(
    ("attribute", "value"),
    [(key, value) for key, values in WRONG.items() for value in values],
    ids=lambda value: repr(value)[:30],
)
def test_a_wrong_type_is_refused_naming_node_attribute_and_value(attribute: str, value: object) -> None:
    with pytest.raises(GraphError) as caught:
        lower(pair(**{attribute: value}))
    message = str(caught.value)
    assert "'node'" in message
    assert attribute in message
    assert "\n" not in message


def test_every_attribute_has_a_wrong_type_or_means_nothing_to_the_program() -> None:
    assert set(WRONG) | ANYTHING == set(NODE)
    assert set(EDGE) == {"reads", "at"}


def test_the_defaults_are_those_of_the_design() -> None:
    program = lower(pair())
    op = program.op_named["node"]
    assert (op.cost, op.workspace, op.kind, op.phase, op.recomputable, op.stage) == (1.0, 0, "op", None, True, None)
    assert (op.view, op.updates, op.inplace, op.after, op.reads) == ((), (), (), (), ("x",))
    assert program.outputs == ("node",)


def test_numpy_numbers_are_numbers() -> None:
    program = lower(
        pair(
            nbytes=np.int64(8), cost=np.float32(2), workspace=np.int32(3), output=(np.int64(0),), view=[(np.int8(0), 0)]
        )
    )
    assert program == lower(pair(nbytes=8, cost=2.0, workspace=3, output=(0,), view=((0, 0, 0),)))
    assert Graph.from_json(program.to_json()) == program


def test_the_error_of_a_large_value_is_one_short_line() -> None:
    for value in (np.arange(1000), [-1] * 10**5, -(10**5000)):
        with pytest.raises(GraphError, match=r"'node': nbytes is .*, expected an int >= 0, or a tuple") as caught:
            lower(pair(nbytes=value))
        assert len(str(caught.value)) < 250
        assert "truth value" not in str(caught.value)


def plain(value: Any) -> bool:
    """True if a value is of Python's own types all through."""
    if isinstance(value, tuple):
        return type(value) is tuple and all(map(plain, value))
    return value is None or type(value) in (bool, int, float, str)


def test_whatever_is_accepted_is_plain_and_survives_its_file() -> None:
    class Phase(str, Enum):
        FORWARD = "forward"

    numbers = {"nbytes": (np.int64(8), np.uint8(4)), "cost": np.float32(2), "workspace": np.array(3)}
    texts = {"kind": np.str_("op"), "phase": Phase.FORWARD, "stage": np.str_("s"), "op": np.str_("Relu")}
    pairs = {"view": [(np.int64(0), np.int8(1), np.int64(4))], "inplace": [(np.int64(0), 0, np.False_)]}
    reports = {"shape": [[np.int64(2), 1], (np.int32(4),)], "dtype": (np.str_("f4"), "f2"), "module": np.str_("net")}
    others = {"flops": np.float64(7), "output": [np.int64(1)], "recomputable": np.False_, "position": None}
    graph = pair(**numbers, **texts, **pairs, **reports, **others)
    op = lower(graph).op_named["node"]
    of_tensors = (field for tensor in op.outputs for field in msgspec.structs.astuple(tensor))
    fields = [*msgspec.structs.astuple(op)[2:], *of_tensors]
    assert all(map(plain, fields)), fields
    assert (op.kind, op.phase, op.stage, op.op) == ("op", "forward", "s", "Relu")
    assert (op.module, op.recomputable) == ("net", False)
    found = [(tensor.shape, tensor.dtype, tensor.output) for tensor in op.outputs]
    assert found == [((2, 1), "f4", False), ((4,), "f2", True)]
    assert Graph.from_json(lower(graph).to_json()).ops == lower(graph).ops


@every(("flag", "wanted"), [(np.True_, True), (np.False_, False), (True, True), (False, False)])
def test_flags_of_numpy_are_flags(flag: Any, wanted: bool) -> None:
    op = lower(pair(recomputable=flag, output=flag, stage=flag)).op_named["node"]
    assert (op.recomputable, op.outputs[0].output, op.stage) == (wanted, wanted, wanted or None)
    assert op.recomputable is wanted


SHAPES: list[tuple[Any, Any]] = [
    ((2, 3), (2, 3)), ([2, 3], (2, 3)), (((2, 3),), (2, 3)), ((), ()), (((),), ()), ((np.int64(2), 3), (2, 3)),
    ((0,), (0,)), *((wrong, None) for wrong in (
        (("N", 3),), ("N", 3), ((None, 3),), ((3.5,),), (3.5,), (-1, 3), ((True, 3),), (2**70,), "abc", 7, None,
        (None,), np.array([2, 3]), ((2, 3), (2, 3)), {2, 3},
    )),
]  # fmt: skip


@every(("shape", "wanted"), SHAPES)
def test_a_shape_is_ints_or_is_dropped(shape: Any, wanted: Any) -> None:
    program = lower(pair(shape=shape))
    assert program.op_named["node"].outputs[0].shape == wanted
    assert Graph.from_json(program.to_json()) == program


def test_a_shape_that_is_dropped_leaves_those_of_the_other_outputs() -> None:
    outputs = lower(pair(nbytes=(4, 4), shape=(("N", 3), (2, 2)), dtype=(None, "f4"))).op_named["node"].outputs
    assert [(tensor.shape, tensor.dtype) for tensor in outputs] == [(None, None), ((2, 2), "f4")]
    outputs = lower(pair(nbytes=(4, 4), shape=(2, 2), dtype="f4")).op_named["node"].outputs
    assert [(tensor.shape, tensor.dtype) for tensor in outputs] == [((2, 2), "f4")] * 2


@every("dtype", [1, (1, 2), [], np.dtype("f4"), "\ud800", (7,), b"f4"], ids=repr)
def test_a_dtype_is_text_or_is_dropped(dtype: Any) -> None:
    program = lower(pair(dtype=dtype))
    assert program.op_named["node"].outputs[0].dtype is None
    assert Graph.from_json(program.to_json()) == program


@every("name", ["\ud800", "layer \udcff", ("layer", "\ud800")], ids=ascii)
def test_a_name_that_no_file_can_hold_is_refused_naming_the_node(name: Any) -> None:
    graph = nx.DiGraph()
    graph.add_node(name, nbytes=4)
    if isinstance(name, tuple):  # its text is its repr, which has the surrogate escaped
        assert Graph.from_json(lower(graph).to_json()) == lower(graph)
        return
    with pytest.raises(GraphError, match="surrogate") as caught:
        lower(graph)
    assert repr(name) in str(caught.value)
    str(caught.value).encode()
    with pytest.raises(GraphError, match=r"name of the graph.*surrogate"):
        lower(nx.DiGraph(name=name))


def test_costs_that_cannot_be_added_are_refused_naming_the_op() -> None:
    graph = dag({"a": {"nbytes": 4, "cost": 1.7e308}, "b": {"nbytes": 4, "cost": 1e308}})
    with pytest.raises(GraphError, match=r"'a'.*costs add up"):
        lower(graph)
    for cost in (7e301, 1.0):
        graph.nodes["a"]["cost"], graph.nodes["b"]["cost"] = 1e302, cost
        program = lower(graph)
        assert simulate(program, keep_all(program)).cost == 1e302 + cost
    graph.nodes["b"]["cost"] = 1.797e302
    with pytest.raises(GraphError, match=r"'b'.*costs add up"):
        lower(graph)
    with pytest.raises(GraphError, match=r"'c'.*costs add up"):
        Graph([Op("c", (Tensor("c", 4),), cost=10**400)])


def test_unknown_attributes_are_ignored() -> None:
    graph = pair(colour="red", weight=3)
    graph.edges["x", "node"]["colour"] = "blue"
    assert lower(graph) == lower(pair())


def test_what_is_not_a_directed_graph_is_refused() -> None:
    for other in (nx.Graph(), nx.MultiGraph(), {"a": 1}, None, "graph.json"):
        with pytest.raises(GraphError, match=type(other).__name__):
            lower(other)  # type: ignore[arg-type]


def test_a_program_is_its_own_lowering_and_the_empty_graph_is_a_program() -> None:
    program = lower(pair())
    assert lower(program) is program
    assert len(lower(nx.DiGraph())) == 0


LONG_CYCLE = changed(dag(dict.fromkeys(range(5000), 4)), lambda g: nx.add_cycle(g, range(5000)))
ALIASES = [{key: ((0, 0),)} for key in ("view", "updates", "inplace")]
NO_READS = r"'many' -> 'node'.*no reads.*{} outputs"
#: What no program can be made of, and what the error says.
REFUSED: dict[str, list[tuple[nx.DiGraph, str]]] = {
    "nbytes is required": [(dag({"bare": {}}), "'bare'.*nbytes")],
    "a node made by a mistyped edge is named": [
        (changed(pair(), lambda g: g.add_edge("x", "nodee")), "'nodee' has no nbytes"),
    ],
    "sizes that overflow": [(pair(**size), r"'node'.*2\*\*62") for size in (
        {"nbytes": 2**62}, {"nbytes": 10**30}, {"workspace": 2**62},
    )],
    "a bare int is no output": [(pair(output=k), "'node'.*output.*bare int") for k in (0, 1, -1)],
    "an output that is not there": [(pair(nbytes=(4, 4), output=(0, 2)), "'node'.*position 2.*2 outputs")],
    "reads are required unless the producer has one output": [
        (dag({"many": (4,) * count, "node": 4}, ("many", "node")), NO_READS.format(count)) for count in (2, 0)
    ],
    "wrong reads": [(triple(reads=reads), "'many' -> 'node'.*reads") for reads in (
        0, "0", (-1,), (0.5,), (True,), {0}, (None,),
    )],
    "wrong positions": [(triple(reads=(0,), at=at), "'many' -> 'node'.*at") for at in (
        0, "0", (-1,), (0.5,), (True,), {0},
    )],
    "a read of an output that is not there": [(triple(reads=(2,)), "'many' -> 'node'.*output 2.*2 outputs")],
    "positions are parallel to reads": [(triple(reads=(0,), at=(0, 1)), "'many' -> 'node'.*2 positions for 1 reads")],
    "positions are all there once": [(triple(reads=(0, 1), at=at), r"'node'.*positions.*0..1") for at in (
        (0, 0), (1, 2), (0, 2),
    )],
    "positions are given on all edges or on none": [
        (dag({"many": (4, 8), "node": 4, "x": 4}, ("many", "node", {"reads": (0,), "at": (0,)}), ("x", "node")),
         "'node'.*'x'.*no `at`"),
    ],
    "positions are required where two reads and an alias meet": [
        (dag({"many": (4, 8), "node": {"nbytes": 4, **alias}}, ("many", "node", {"reads": (0, 1)})),
         "'node' has 2 reads.*`at`") for alias in ALIASES
    ],
    "a pair out of range": [
        (pair(**{key: [ends]}), f"'node'.*{key}.*out of range.*1 inputs, 1 outputs")
        for key, listed in (("view", [(1, 0), (0, 1)]), ("updates", [(0, 1)]), ("inplace", [(1, 0), (0, 1)]))
        for ends in listed
    ],
    "nodes that read the same as text": [(dag({1: 4, "1": 4}), "'1'")],
    "an output and a node of the same name": [
        (changed(triple(reads=(0,)), lambda g: g.add_node("many:1", nbytes=4)), "'many:1'"),
    ],
    "a self loop is a cycle": [(changed(pair(), lambda g: g.add_edge("node", "node")), "cycle.*'node'")],
    "an order-only cycle": [(dag({"a": 4, "b": 4}, ("a", "b"), ("b", "a", {"reads": ()})), "cycle.*'a'")],
    "a long cycle is cut short": [(LONG_CYCLE, "^(?=.*cycle).{,300}$")],
}  # fmt: skip


@every(("claim", "graph", "message"), [(claim, *row) for claim, rows in REFUSED.items() for row in rows], ids=str)
def test_what_no_program_can_be_made_of_is_refused_by_name(claim: str, graph: nx.DiGraph, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        lower(graph)


# --- outputs


def unread(output: Any, *, nbytes: Any = 4, kind: str = "op", read: bool = False) -> tuple[str, ...]:
    graph = dag({"n": {"nbytes": nbytes, "kind": kind, "output": output}, "reader": {"nbytes": (), "output": False}})
    graph.add_edges_from([("n", "reader", {"reads": (0,)})] if read else [])
    return lower(graph).outputs


def test_an_unread_node_is_an_output_unless_it_says_no() -> None:
    assert unread(None) == ("n",)
    assert unread(None, nbytes=(1, 2)) == ("n:0", "n:1")
    assert unread(False) == ()
    assert unread(True) == ("n",)


def test_one_read_makes_no_output_of_a_node_unless_it_says_so() -> None:
    assert unread(None, read=True) == ()
    assert unread(None, nbytes=(1, 2), read=True) == ()
    assert unread(True, nbytes=(1, 2), read=True) == ("n:0", "n:1")
    assert unread((1,), nbytes=(1, 2), read=True) == ("n:1",)
    assert unread([0], read=True) == ("n",)
    assert unread((), nbytes=(1, 2)) == ()


def test_an_unread_resident_is_no_output_unless_it_says_so() -> None:
    assert unread(None, kind="parameter") == ()
    assert unread(True, kind="parameter") == ("n",)


def test_an_order_only_edge_is_no_read() -> None:
    program = lower(dag({"a": 4, "b": 4}, ("a", "b", {"reads": ()})))
    assert program.outputs == ("a", "b")
    assert (program.op_named["b"].after, program.op_named["b"].reads) == (("a",), ())
    for outputs in (0, 2):  # nor does the producer need one output
        silent = dag({"many": (4,) * outputs, "node": 4}, ("many", "node", {"reads": ()}))
        assert lower(silent).op_named["node"].after == ("many",)


# --- edges and names


def reads_of(graph: nx.DiGraph, node: str = "node") -> tuple[str, ...]:
    return lower(graph).op_named[node].reads


def test_a_value_is_named_after_its_node_and_position() -> None:
    program = lower(triple(reads=(1, 0)))
    assert list(program.tensors) == ["many:0", "many:1", "node"]
    assert sorted(program.op_named["node"].reads) == ["many:0", "many:1"]
    assert lower(pair(nbytes=(4,))).outputs == ("node",)
    assert lower(dag({"conv:0": 4})).outputs == ("conv:0",)  # a colon alone is fine
    for hashable in (("layer", 1), 7, frozenset({1})):  # any hashable is a node, and its text is its name
        assert lower(dag({hashable: 4})).outputs == (str(hashable),)


def test_reads_may_repeat_and_positions_give_their_order() -> None:
    assert reads_of(triple(reads=(1, 1))) == ("many:1", "many:1")
    assert reads_of(changed(pair(), lambda g: g.edges["x", "node"].update(reads=(0, 0)))) == ("x", "x")
    assert reads_of(triple(reads=(0, 1), at=(1, 0))) == ("many:1", "many:0")
    assert reads_of(triple(reads=[0, 1, 0], at=[2, 1, 0])) == ("many:0", "many:1", "many:0")


def test_with_positions_or_a_lone_read_an_alias_is_accepted() -> None:
    for alias in ALIASES:
        both, single = triple(reads=(0, 1), at=(1, 0)), triple(reads=(0,))
        for graph in (both, single):
            graph.nodes["many"]["output"] = False
            graph.nodes["node"].update(alias)
        assert reads_of(both) == ("many:1", "many:0")
        assert reads_of(single) == ("many:0",)


def test_parallel_edges_of_a_multigraph_add_reads() -> None:
    graph = nx.MultiDiGraph(dag({"x": {"nbytes": 8, "kind": "input"}, "square": 8}))
    graph.add_edges_from([("x", "square"), ("x", "square")])
    assert reads_of(graph, "square") == ("x", "x")
    single, several = triple(reads=(1, 0), at=(0, 1)), nx.MultiDiGraph(dag({"many": (4, 8), "node": 4}))
    several.add_edge("many", "node", reads=(0,), at=(1,))
    several.add_edge("many", "node", reads=(1,), at=(0,))
    several.add_edge("many", "node", reads=())
    assert reads_of(several) == reads_of(single) == ("many:1", "many:0")


def test_a_cycle_is_refused_naming_its_nodes() -> None:
    graph = dag(dict.fromkeys(["in", "one", "two", "three", "out"], 4), ("in", "one"), ("three", "out"))
    nx.add_cycle(graph, ["one", "two", "three"])
    with pytest.raises(GraphError, match="cycle") as caught:
        lower(graph)
    message = str(caught.value)
    assert all(repr(name) in message for name in ("one", "two", "three"))
    assert not any(repr(name) in message for name in ("in", "out"))


# --- order, and the same program


def names(graph: nx.DiGraph) -> list[str]:
    return [op.name for op in lower(graph).ops]


def test_program_order_is_insertion_order_where_topological_and_stable_elsewhere() -> None:
    assert names(dag(dict.fromkeys("badc", 4), ("b", "d"), ("a", "c"))) == ["b", "a", "d", "c"]
    graph = dag(dict.fromkeys(["late", "e", "needs late", "first", "f"], 4), ("first", "late"), ("late", "needs late"))
    assert names(graph) == ["e", "first", "late", "needs late", "f"]


def test_position_wins_over_insertion_order_where_every_node_has_one() -> None:
    graph = dag({name: {"nbytes": 4, "position": place} for name, place in (("c", 30), ("a", 10), ("b", 20))})
    assert names(graph) == ["a", "b", "c"]
    del graph.nodes["b"]["position"]
    assert names(graph) == ["c", "a", "b"]


def stamp_positions(graph: nx.DiGraph) -> nx.DiGraph:
    """The graph, with the present order of its nodes in `position`."""
    nx.set_node_attributes(graph, {node: position for position, node in enumerate(graph)}, "position")
    return graph


def test_stamped_positions_survive_what_reorders_nodes() -> None:
    graph = stamp_positions(CASES["C2"].digraph())
    backwards = nx.DiGraph()
    backwards.add_nodes_from(reversed(list(graph.nodes(data=True))))
    backwards.add_edges_from(reversed(list(graph.edges(data=True))))
    assert lower(backwards) == lower(graph)
    assert program_order(backwards) == list(graph)


def through_json(graph: nx.DiGraph) -> nx.DiGraph:
    return nx.node_link_graph(json.loads(json.dumps(nx.node_link_data(graph, edges="edges"))), edges="edges")


def as_lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: as_lists(item) for key, item in value.items()}
    return [as_lists(item) for item in value] if isinstance(value, (list, tuple)) else value


@given(digraphs())
def test_a_graph_that_was_carried_gives_the_same_program(graph: nx.DiGraph) -> None:
    program = lower(graph)
    assert lower(graph.copy()) == program
    assert lower(through_json(graph)) == program
    assert lower(nx.MultiDiGraph(graph)) == program
    assert lower(graph.subgraph(list(graph))) == program
    assert lower(graph.subgraph(list(graph)).subgraph(list(graph))) == program
    assert lower(nx.freeze(graph.copy())) == program
    lists = nx.DiGraph()
    lists.add_nodes_from((node, as_lists(given)) for node, given in graph.nodes(data=True))
    lists.add_edges_from((a, b, as_lists(given)) for a, b, given in graph.edges(data=True))
    assert lower(lists) == program


@given(digraphs())
def test_a_graph_that_was_relabelled_and_back_gives_the_same_program(graph: nx.DiGraph) -> None:
    there = {node: f"model/{k:03}.{node}" for k, node in enumerate(graph)}
    back = {new: old for old, new in there.items()}
    relabelled = nx.relabel_nodes(graph, there)
    assert [op.name for op in lower(relabelled).ops] == list(there.values())
    assert lower(nx.relabel_nodes(relabelled, back)) == lower(graph)


@given(simple_digraphs())
def test_relabelling_changes_no_bytes(graph: nx.DiGraph) -> None:
    order = list(range(len(graph)))
    random.Random(len(graph)).shuffle(order)
    relabelled = nx.relabel_nodes(graph, dict(zip(graph, map(str, order), strict=True)))
    traces = [simulate(program, keep_all(program)) for program in (lower(graph), lower(relabelled))]
    assert traces[0].timeline_bytes == traces[1].timeline_bytes


@given(digraphs())
def test_positions_survive_a_copied_subgraph(graph: nx.DiGraph) -> None:
    program = lower(graph)
    stamp_positions(graph)
    assert lower(graph) == program
    assert lower(graph.subgraph(reversed(list(graph))).copy()) == program
    there = {node: ("n", node) for node in graph}
    nx.relabel_nodes(graph, there, copy=False)
    nx.relabel_nodes(graph, {new: old for old, new in there.items()}, copy=False)
    assert lower(graph) == program


def test_a_small_subgraph_view_keeps_the_order_of_its_graph() -> None:
    wanted = [f"wanted {k}" for k in range(40)]
    graph = dag(dict.fromkeys([*(f"other {k}" for k in range(400)), *reversed(wanted)], 4))
    assert names(graph.subgraph(wanted)) == wanted[::-1]
    assert names(graph.subgraph(wanted).subgraph(wanted[:20])) == wanted[19::-1]
    stamp_positions(graph)
    assert names(graph.subgraph(wanted).copy()) == wanted[::-1]
    assert names(through_json(graph.subgraph(wanted))) == wanted[::-1]


@given(digraphs())
def test_a_random_graph_lowers_to_a_program_whose_keep_all_is_legal(graph: nx.DiGraph) -> None:
    program = lower(graph)
    assert [op.name for op in program.ops] == list(graph)
    simulate(program, keep_all(program))


@every("name", CASES)
def test_a_public_case_lowers_as_written(name: str) -> None:
    case = CASES[name]
    program = lower(case.digraph())
    written = nodes(case.text)
    assert [op.name for op in program.ops if not op.resident] == list(written)
    assert set(program.outputs) == set(case.outs)
    for op in program.ops:
        if not op.resident:
            node = written[op.name]
            found = (op.reads, op.cost, op.workspace, op.outputs[0].nbytes)
            assert found == (node.inputs, node.cost, node.workspace, node.nbytes)
            assert op.phase in ("forward", "loss", "backward")
    phases = [op.phase for op in program.ops if not op.resident]
    assert sorted(phases, key=["forward", "loss", "backward"].index) == phases


def test_the_public_cases_stand_in_the_notes(shared: Any) -> None:
    text = (shared / "cases.md").read_text()
    for name in ("C1", "C2", "C3", "C5", "C7", "C9"):
        assert f"`{CASES[name].text}`" in text


def test_residents_of_a_case_count_what_it_says() -> None:
    program = lower(C3.digraph())
    assert sum(tensor.nbytes for op in program.ops if op.resident for tensor in op.outputs) == 100
    assert len(lower(c4(3))) == 6
    assert lower(c8()).outputs == ("c2", "y")


def test_a_hundred_thousand_ops_lower() -> None:
    count = 100_000
    graph = dag(dict.fromkeys(range(count), 4))
    graph.add_edges_from(itertools.pairwise(range(count)))
    graph.add_edges_from((k, k + 50) for k in range(0, count - 50, 3))
    program = lower(graph)
    assert len(program) == count
    assert program.outputs == (str(count - 1),)
    assert sum(len(op.reads) for op in program.ops) == graph.number_of_edges()
    scrambled = nx.DiGraph()
    scrambled.add_nodes_from(reversed(list(graph.nodes(data=True))))
    scrambled.add_edges_from(graph.edges(data=True))
    assert len(lower(scrambled)) == count
