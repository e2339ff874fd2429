"""The schema people write graphs in: every attribute checked, and the same program however the graph was carried."""

from __future__ import annotations

import itertools
import json
import random
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
from strategies import digraphs, simple_digraphs

from planner.errors import GraphError
from planner.graph import Graph, Op, Tensor
from planner.lowering.schema import EDGE, NODE, lower, program_order
from planner.simulator import simulate


def pair(**attributes: Any) -> nx.DiGraph:
    """Input x, read by op "node"."""
    graph = nx.DiGraph()
    graph.add_node("x", nbytes=8, kind="input")
    graph.add_node("node", **{"nbytes": 8, **attributes})
    graph.add_edge("x", "node")
    return graph


WRONG = {
    "nbytes": [None, -1, 4.0, "4", True, (4, -1), (4, 4.5), {4}, [None], np.float64(4), b"4", np.array([1, 2]),
        np.array([[1, 2]] * 99),
               np.True_, (4, np.array([1, 2]))],
    "cost": [None, -1, -0.5, float("nan"), float("inf"), "1", True, [1.0], 10**400, np.True_, np.array([1.0, 2.0])],
    "workspace": [None, -1, 1.5, "8", True, (8,), np.array([1, 2])],
    "kind": [None, "weight", 0, ["op"], "Op", True, np.array(["op", "op"])],
    "phase": ["fwd", 0, "Forward", ("forward",), True],
    "output": [0, 1, "all", -1, (-1,), (0.0,), (1,), ("0",), [True], {0}],
    "view": [(0, 0), 0, None, "00", [(0,)], [(0, 0, -1)], [(0, 0, 1.5)], [(0, 0, 0, 0)], [(-1, 0)], [(0.0, 0)],
        [(0, 0, True)], [(True, 0)],
             [0, 0]],
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


def test_nbytes_is_required() -> None:
    graph = nx.DiGraph()
    graph.add_node("bare")
    with pytest.raises(GraphError, match=r"'bare'.*nbytes"):
        lower(graph)


def test_a_node_made_by_a_mistyped_edge_is_named() -> None:
    graph = pair()
    graph.add_edge("x", "nodee")
    with pytest.raises(GraphError, match="'nodee' has no nbytes"):
        lower(graph)


def test_sizes_that_overflow_are_refused() -> None:
    with pytest.raises(GraphError, match=r"'node'.*2\*\*62"):
        lower(pair(nbytes=2**62))
    with pytest.raises(GraphError, match=r"'node'.*2\*\*62"):
        lower(pair(nbytes=10**30))
    with pytest.raises(GraphError, match=r"'node'.*2\*\*62"):
        lower(pair(workspace=2**62))


def test_numpy_numbers_are_numbers() -> None:
    numbers = {
        "nbytes": np.int64(8),
        "cost": np.float32(2),
        "workspace": np.int32(3),
        "output": (np.int64(0),),
        "view": [(np.int8(0), 0)],
    }
    program = lower(pair(**numbers))
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

    graph = pair(
        nbytes=(np.int64(8), np.uint8(4)),
        cost=np.float32(2),
        workspace=np.array(3),
        kind=np.str_("op"),
        phase=Phase.FORWARD,
        output=[np.int64(1)],
        view=[(np.int64(0), np.int8(1), np.int64(4))],
        inplace=[(np.int64(0), 0, np.False_)],
        recomputable=np.False_,
        stage=np.str_("s"),
        position=None,
        op=np.str_("Relu"),
        shape=[[np.int64(2), 1], (np.int32(4),)],
        dtype=(np.str_("f4"), "f2"),
        flops=np.float64(7),
        module=np.str_("net"),
    )
    op = lower(graph).op_named["node"]
    fields = [
        *msgspec.structs.astuple(op)[2:],
        *(field for tensor in op.outputs for field in msgspec.structs.astuple(tensor)),
    ]
    assert all(map(plain, fields)), fields
    assert (op.kind, op.phase, op.stage, op.op, op.module, op.recomputable) == (
        "op",
        "forward",
        "s",
        "Relu",
        "net",
        False,
    )
    assert [(tensor.shape, tensor.dtype, tensor.output) for tensor in op.outputs] == [
        ((2, 1), "f4", False),
        ((4,), "f2", True),
    ]
    assert Graph.from_json(lower(graph).to_json()).ops == lower(graph).ops


@every(("flag", "wanted"), [(np.True_, True), (np.False_, False), (True, True), (False, False)])
def test_flags_of_numpy_are_flags(flag: Any, wanted: bool) -> None:
    op = lower(pair(recomputable=flag, output=flag, stage=flag)).op_named["node"]
    assert (op.recomputable, op.outputs[0].output, op.stage) == (wanted, wanted, wanted or None)
    assert op.recomputable is wanted


@every(
    ("shape", "wanted"),
    [
        ((2, 3), (2, 3)),
        ([2, 3], (2, 3)),
        (((2, 3),), (2, 3)),
        ((), ()),
        (((),), ()),
        ((np.int64(2), 3), (2, 3)),
        ((0,), (0,)),
        ((("N", 3),), None),
        (("N", 3), None),
        (((None, 3),), None),
        (((3.5,),), None),
        ((3.5,), None),
        ((-1, 3), None),
        (((True, 3),), None),
        ((2**70,), None),
        ("abc", None),
        (7, None),
        (None, None),
        ((None,), None),
        (np.array([2, 3]), None),
        (((2, 3), (2, 3)), None),
        ({2, 3}, None),
    ],
    ids=repr,
)
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
    graph = nx.DiGraph()
    graph.add_node("a", nbytes=4, cost=1.7e308)
    graph.add_node("b", nbytes=4, cost=1e308)
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


def test_a_program_is_its_own_lowering() -> None:
    program = lower(pair())
    assert lower(program) is program


def test_the_empty_graph_is_a_program() -> None:
    assert len(lower(nx.DiGraph())) == 0


# ------------------------------------------------------------------------------------------------ outputs


def unread(output: Any, *, nbytes: Any = 4, kind: str = "op", read: bool = False) -> tuple[str, ...]:
    graph = nx.DiGraph()
    graph.add_node("n", nbytes=nbytes, kind=kind, output=output)
    graph.add_node("reader", nbytes=(), output=False)
    if read:
        graph.add_edge("n", "reader", reads=(0,))
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
    graph = nx.DiGraph()
    graph.add_node("a", nbytes=4)
    graph.add_node("b", nbytes=4)
    graph.add_edge("a", "b", reads=())
    program = lower(graph)
    assert program.outputs == ("a", "b")
    assert program.op_named["b"].after == ("a",)
    assert program.op_named["b"].reads == ()


@every("output", [0, 1, -1])
def test_a_bare_int_is_no_output(output: int) -> None:
    with pytest.raises(GraphError, match=r"'node'.*output.*bare int"):
        lower(pair(output=output))


def test_an_output_that_is_not_there_is_refused() -> None:
    with pytest.raises(GraphError, match=r"'node'.*position 2.*2 outputs"):
        lower(pair(nbytes=(4, 4), output=(0, 2)))


# ------------------------------------------------------------------------------------------------ edges and names


def triple(**edge: Any) -> nx.DiGraph:
    """ "many" has two outputs; "node" reads them."""
    graph = nx.DiGraph()
    graph.add_node("many", nbytes=(4, 8))
    graph.add_node("node", nbytes=4)
    graph.add_edge("many", "node", **edge)
    return graph


def test_a_value_is_named_after_its_node_and_position() -> None:
    program = lower(triple(reads=(1, 0)))
    assert list(program.tensors) == ["many:0", "many:1", "node"]
    assert sorted(program.op_named["node"].reads) == ["many:0", "many:1"]
    assert lower(pair(nbytes=(4,))).outputs == ("node",)


def test_reads_may_repeat() -> None:
    assert lower(triple(reads=(1, 1))).op_named["node"].reads == ("many:1", "many:1")
    graph = pair()
    graph.edges["x", "node"]["reads"] = (0, 0)
    assert lower(graph).op_named["node"].reads == ("x", "x")


def test_positions_give_the_order_of_reads() -> None:
    assert lower(triple(reads=(0, 1), at=(1, 0))).op_named["node"].reads == ("many:1", "many:0")
    assert lower(triple(reads=[0, 1, 0], at=[2, 1, 0])).op_named["node"].reads == ("many:0", "many:1", "many:0")


@every("outputs", [2, 0])
def test_reads_are_required_unless_the_producer_has_one_output(outputs: int) -> None:
    graph = nx.DiGraph()
    graph.add_node("many", nbytes=(4,) * outputs)
    graph.add_node("node", nbytes=4)
    graph.add_edge("many", "node")
    with pytest.raises(GraphError, match=f"'many' -> 'node'.*no reads.*{outputs} outputs"):
        lower(graph)
    graph.edges["many", "node"]["reads"] = ()
    assert lower(graph).op_named["node"].after == ("many",)


@every("reads", [0, "0", (-1,), (0.5,), (True,), {0}, (None,)], ids=repr)
def test_wrong_reads_are_refused(reads: object) -> None:
    with pytest.raises(GraphError, match=r"'many' -> 'node'.*reads"):
        lower(triple(reads=reads))


@every("at", [0, "0", (-1,), (0.5,), (True,), {0}], ids=repr)
def test_wrong_positions_are_refused(at: object) -> None:
    with pytest.raises(GraphError, match=r"'many' -> 'node'.*at"):
        lower(triple(reads=(0,), at=at))


def test_a_read_of_an_output_that_is_not_there_is_refused() -> None:
    with pytest.raises(GraphError, match=r"'many' -> 'node'.*output 2.*2 outputs"):
        lower(triple(reads=(2,)))


def test_positions_are_parallel_to_reads() -> None:
    with pytest.raises(GraphError, match=r"'many' -> 'node'.*2 positions for 1 reads"):
        lower(triple(reads=(0,), at=(0, 1)))


@every("at", [(0, 0), (1, 2), (0, 2)])
def test_positions_are_all_there_once(at: tuple[int, ...]) -> None:
    with pytest.raises(GraphError, match=r"'node'.*positions.*0..1"):
        lower(triple(reads=(0, 1), at=at))


def test_positions_are_given_on_all_edges_or_on_none() -> None:
    graph = triple(reads=(0,), at=(0,))
    graph.add_node("x", nbytes=4)
    graph.add_edge("x", "node")
    with pytest.raises(GraphError, match=r"'node'.*'x'.*no `at`"):
        lower(graph)


@every("attribute", ["view", "updates", "inplace"])
def test_positions_are_required_where_two_reads_and_an_alias_meet(attribute: str) -> None:
    alias = {attribute: ((0, 0),)}
    graph = triple(reads=(0, 1))
    graph.nodes["many"]["output"] = False
    graph.nodes["node"].update(alias)
    with pytest.raises(GraphError, match=r"'node' has 2 reads.*`at`"):
        lower(graph)
    graph.edges["many", "node"]["at"] = (1, 0)
    assert lower(graph).op_named["node"].reads == ("many:1", "many:0")
    single = triple(reads=(0,))
    single.nodes["node"].update(alias)
    lower(single)


@every(
    ("attribute", "value"),
    [("view", [(1, 0)]), ("view", [(0, 1)]), ("updates", [(0, 1)]), ("inplace", [(1, 0)]), ("inplace", [(0, 1)])],
)
def test_a_pair_out_of_range_is_refused(attribute: str, value: object) -> None:
    with pytest.raises(GraphError, match=f"'node'.*{attribute}.*out of range.*1 inputs, 1 outputs"):
        lower(pair(**{attribute: value}))


def test_parallel_edges_of_a_multigraph_add_reads() -> None:
    graph = nx.MultiDiGraph()
    graph.add_node("x", nbytes=8, kind="input")
    graph.add_node("square", nbytes=8)
    graph.add_edge("x", "square")
    graph.add_edge("x", "square")
    assert lower(graph).op_named["square"].reads == ("x", "x")


def test_parallel_edges_equal_one_edge_with_two_reads() -> None:
    single, several = triple(reads=(1, 0), at=(0, 1)), nx.MultiDiGraph(triple())
    several.remove_edge("many", "node")
    several.add_edge("many", "node", reads=(0,), at=(1,))
    several.add_edge("many", "node", reads=(1,), at=(0,))
    several.add_edge("many", "node", reads=())
    assert lower(several).op_named["node"].reads == lower(single).op_named["node"].reads == ("many:1", "many:0")


def test_nodes_that_read_the_same_as_text_collide() -> None:
    graph = nx.DiGraph()
    graph.add_node(1, nbytes=4)
    graph.add_node("1", nbytes=4)
    with pytest.raises(GraphError, match="'1'"):
        lower(graph)


def test_an_output_and_a_node_of_the_same_name_collide() -> None:
    graph = triple(reads=(0,))
    graph.add_node("many:1", nbytes=4)
    with pytest.raises(GraphError, match="'many:1'"):
        lower(graph)


def test_a_name_with_a_colon_alone_is_fine() -> None:
    graph = nx.DiGraph()
    graph.add_node("conv:0", nbytes=4)
    assert lower(graph).outputs == ("conv:0",)


@every("hashable", [("layer", 1), 7, frozenset({1})], ids=repr)
def test_any_hashable_is_a_node_and_its_text_is_its_name(hashable: Any) -> None:
    graph = nx.DiGraph()
    graph.add_node(hashable, nbytes=4)
    assert lower(graph).outputs == (str(hashable),)


def test_a_cycle_is_refused_naming_its_nodes() -> None:
    graph = nx.DiGraph()
    graph.add_nodes_from(["in", "one", "two", "three", "out"], nbytes=4)
    nx.add_cycle(graph, ["one", "two", "three"])
    nx.add_path(graph, ["in", "one"])
    nx.add_path(graph, ["three", "out"])
    with pytest.raises(GraphError, match="cycle") as caught:
        lower(graph)
    message = str(caught.value)
    assert all(repr(name) in message for name in ("one", "two", "three"))
    assert not any(repr(name) in message for name in ("in", "out"))


def test_a_self_loop_and_an_order_only_cycle_are_cycles() -> None:
    loop = pair()
    loop.add_edge("node", "node")
    with pytest.raises(GraphError, match=r"cycle.*'node'"):
        lower(loop)
    waits = nx.DiGraph()
    waits.add_nodes_from(["a", "b"], nbytes=4)
    waits.add_edge("a", "b")
    waits.add_edge("b", "a", reads=())
    with pytest.raises(GraphError, match=r"cycle.*'a'"):
        lower(waits)


def test_a_long_cycle_is_cut_short() -> None:
    graph = nx.DiGraph()
    graph.add_nodes_from(range(5000), nbytes=4)
    nx.add_cycle(graph, range(5000))
    with pytest.raises(GraphError, match="cycle") as caught:
        lower(graph)
    assert len(str(caught.value)) < 300


# ------------------------------------------------------------------------------------------------ order, and the same
# program


def names(graph: nx.DiGraph) -> list[str]:
    return [op.name for op in lower(graph).ops]


def test_program_order_is_insertion_order_where_topological() -> None:
    graph = nx.DiGraph()
    graph.add_nodes_from(["b", "a", "d", "c"], nbytes=4)
    graph.add_edges_from([("b", "d"), ("a", "c")])
    assert names(graph) == ["b", "a", "d", "c"]


def test_program_order_is_stable_where_insertion_order_is_not_topological() -> None:
    graph = nx.DiGraph()
    graph.add_nodes_from(["late", "e", "needs late", "first", "f"], nbytes=4)
    graph.add_edges_from([("first", "late"), ("late", "needs late")])
    assert names(graph) == ["e", "first", "late", "needs late", "f"]


def test_position_wins_over_insertion_order_where_every_node_has_one() -> None:
    graph = nx.DiGraph()
    for name, position in (("c", 30), ("a", 10), ("b", 20)):
        graph.add_node(name, nbytes=4, position=position)
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
    lists.add_nodes_from(
        (node, {key: as_lists(value) for key, value in given.items()}) for node, given in graph.nodes(data=True)
    )
    lists.add_edges_from(
        (a, b, {key: as_lists(value) for key, value in given.items()}) for a, b, given in graph.edges(data=True)
    )
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
    graph = nx.DiGraph()
    wanted = [f"wanted {k}" for k in range(40)]
    for k in range(400):
        graph.add_node(f"other {k}", nbytes=4)
    graph.add_nodes_from(reversed(wanted), nbytes=4)
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
            assert (op.reads, op.cost, op.workspace, op.outputs[0].nbytes) == (
                written[op.name].inputs,
                written[op.name].cost,
                written[op.name].workspace,
                written[op.name].nbytes,
            )
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
    graph = nx.DiGraph()
    count = 100_000
    graph.add_nodes_from(range(count), nbytes=4)
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
