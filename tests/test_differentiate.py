"""differentiate: right gradients, reading only what was declared, for any DAG."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive import keep_all
from offenders import every
from strategies import dag

from planner import optimize
from planner.errors import GraphError
from planner.lowering.devices import device
from planner.lowering.differentiate import differentiate
from planner.lowering.operators.lookup import OPERATORS, Operator, Ref
from planner.lowering.schema import lower
from planner.simulator import simulate


def reads(graph: nx.DiGraph, node: str) -> list[tuple[str, int]]:
    """(producer, output) by input position."""
    found = {}
    for source, _, edge in graph.in_edges(node, data=True):
        found.update({at: (source, output) for output, at in zip(edge["reads"], edge["at"], strict=True)})
    return [found[at] for at in sorted(found)]


WEIGHT = {"nbytes": 4, "kind": "parameter"}


def two_layers() -> nx.DiGraph:
    """x -> a (weight u) -> b (weight w); each product reads both its inputs backward."""
    layer: dict[str, Any] = {"nbytes": 8, "cost": 3.0, "saves": (("in", 0), ("in", 1))}
    first, second = {"at": (0,)}, {"at": (1,)}
    edges = [("x", "a", first), ("u", "a", second), ("a", "b", first), ("w", "b", second)]
    return dag({"x": {"nbytes": 8, "kind": "input"}, "u": WEIGHT, "w": WEIGHT, "a": layer, "b": layer}, *edges)


def test_a_backward_op_makes_only_the_gradients_that_are_needed_and_reads_what_was_declared() -> None:
    d = differentiate(two_layers())
    assert list(d) == ["x", "u", "w", "a", "b", "loss", "loss.bwd", "b.bwd", "a.bwd", "barrier", "u.update", "w.update"]
    assert reads(d, "b.bwd") == [("loss.bwd", 0), ("a", 0), ("w", 0)]
    assert d.nodes["b.bwd"]["nbytes"] == (8, 4)  # of a, of w
    assert reads(d, "a.bwd") == [("b.bwd", 0), ("x", 0), ("u", 0)]
    assert d.nodes["a.bwd"]["nbytes"] == 4  # of u alone: x is an input
    phases = [d.nodes[n]["phase"] for n in ("a", "loss", "b.bwd", "u.update")]
    assert phases == ["forward", "loss", "backward", "update"]


def test_a_hand_made_backward_costs_the_forward_times_the_gradients_made() -> None:
    d = differentiate(two_layers())
    assert d.nodes["b.bwd"]["cost"] == 6.0
    assert d.nodes["a.bwd"]["cost"] == 3.0


def test_positions_count_program_order_residents_included() -> None:
    d = differentiate(two_layers(), optimizer="adam")
    assert [d.nodes[n]["position"] for n in d] == list(range(len(d)))
    shuffled = d.subgraph(reversed(list(d))).copy()
    assert [op.name for op in lower(shuffled).ops] == list(d)


@every(("optimizer", "states"), [("sgd", 0), ("momentum", 1), ("adam", 2)])
def test_updates_write_parameters_and_states_in_place(optimizer: str, states: int) -> None:
    d = differentiate(two_layers(), optimizer=optimizer)
    made = [n for n, kind in d.nodes(data="kind") if kind == "state"]
    assert len(made) == 2 * states
    update = d.nodes["w.update"]
    assert update["updates"] == ((0, 0), *((2 + k, 1 + k) for k in range(states)))
    assert reads(d, "w.update")[:2] == [("w", 0), ("b.bwd", 1)]
    program = lower(d)
    # Residents: x 8, u 4, w 4, and the states of both.
    assert simulate(program, keep_all(program)).resident_bytes == 16 + 8 * states


def test_without_optimizer_parameter_gradients_are_outputs() -> None:
    d = differentiate(two_layers(), optimizer=None)
    assert not [n for n, phase in d.nodes(data="phase") if phase == "update"]
    assert set(lower(d).outputs) == {"loss", "b.bwd:1", "a.bwd"}


def test_updates_wait_for_everything_before_them_over_few_edges() -> None:
    d = differentiate(two_layers())
    order = nx.DiGraph(d.edges())
    before = [n for n, phase in d.nodes(data="phase") if phase in ("forward", "loss", "backward")]
    for update in ("u.update", "w.update"):
        assert set(before) <= nx.ancestors(order, update)
    fixed = {"op": "Barrier", "nbytes": (), "flops": 0, "cost": 0.0, "phase": "update", "position": 9}
    assert d.nodes["barrier"] == fixed
    assert all(edge["reads"] == () for _, _, edge in d.in_edges("barrier", data=True))


def residual(op: str = "Add") -> nx.DiGraph:
    """h = f(w); y = h + g(h)."""
    nodes = {"w": WEIGHT, "h": {"nbytes": 4, "saves": ()}}
    nodes.update({name: {"nbytes": 4, "op": kind} for name, kind in (("r", "Relu"), ("y", op))})
    return dag(nodes, ("w", "h"), ("h", "r"), ("r", "y", {"at": (0,)}), ("h", "y", {"at": (1,)}))


def test_a_gradient_that_passes_unchanged_makes_no_op() -> None:
    d = differentiate(residual())
    assert "y.bwd" not in d
    assert reads(d, "r.bwd") == [("loss.bwd", 0), ("r", 0)]
    assert reads(d, "h.grad2") == [("loss.bwd", 0), ("r.bwd", 0)]
    assert d.nodes["h.grad2"]["inplace"] == ((0, 0), (1, 0))
    assert reads(d, "h.bwd") == [("h.grad2", 0)]


def test_relu_backward_may_overwrite_the_gradient_it_is_given() -> None:
    assert differentiate(residual()).nodes["r.bwd"]["inplace"] == ((0, 0),)


def test_gradient_sums_are_a_left_fold_each_right_after_its_term() -> None:
    readers = [f"c{k}" for k in range(4)]
    d = differentiate(
        dag({"w": WEIGHT, **{c: {"nbytes": 4, "saves": ()} for c in readers}}, *(("w", c) for c in readers))
    )
    backward = [n for n, phase in d.nodes(data="phase") if phase == "backward"]
    assert backward == ["loss.bwd", "c3.bwd", "c2.bwd", "w.grad2", "c1.bwd", "w.grad3", "c0.bwd", "w.grad4"]
    assert reads(d, "w.grad2") == [("c3.bwd", 0), ("c2.bwd", 0)]
    assert reads(d, "w.grad3") == [("w.grad2", 0), ("c1.bwd", 0)]
    assert reads(d, "w.update")[1] == ("w.grad4", 0)


def test_a_value_read_twice_by_one_op_gets_both_terms() -> None:
    g = dag({"w": WEIGHT, "sq": {"nbytes": 4, "op": "Mul"}}, ("w", "sq", {"reads": (0, 0), "at": (0, 1)}))
    d = differentiate(g)
    assert d.nodes["sq.bwd"]["nbytes"] == (4, 4)
    assert reads(d, "sq.bwd") == [("loss.bwd", 0), ("w", 0)]  # read once, though both gradients need it
    assert reads(d, "w.grad2") == [("sq.bwd", 0), ("sq.bwd", 1)]
    g.nodes["sq"]["op"] = "Add"
    assert reads(differentiate(g), "w.grad2") == [("loss.bwd", 0), ("loss.bwd", 0)]


def test_a_broadcast_operand_gets_a_sum_and_a_reshape_a_view() -> None:
    matrix, row = {"nbytes": 96, "shape": (4, 6), "dtype": "float32"}, {"nbytes": 24, "shape": (6,), "dtype": "float32"}
    g = product("Add", matrix, row, {**matrix, "flops": 24})
    g.add_node("v", **{**matrix, "shape": (24,)}, op="Reshape", view=((0, 0),), flops=0, cost=0.0)
    g.add_edge("y", "v")
    d = differentiate(g)
    assert d.nodes["v.bwd"]["view"] == ((0, 0),)
    assert d.nodes["v.bwd"]["cost"] == 0.0
    assert d.nodes["v.bwd"]["shape"] == (4, 6)
    assert d.nodes["y.bwd"]["shape"] == (6,)
    assert reads(d, "w.update")[1] == ("v.bwd", 0)
    # Reads 96 bytes, writes 24, at 2,039 GB/s.
    assert d.nodes["y.bwd"]["cost"] == pytest.approx(120 / 2.039e12)


def product(op: str, w: dict[str, Any], b: dict[str, Any], y: dict[str, Any]) -> nx.DiGraph:
    """y = op(w, b), both trained."""
    nodes = {"w": {"kind": "parameter", **w}, "b": {"kind": "parameter", **b}, "y": {"op": op, **y}}
    return dag(nodes, ("w", "y", {"at": (0,)}), ("b", "y", {"at": (1,)}), device="a100")


def test_an_update_moves_each_state_twice_beside_the_parameter_twice_and_the_gradient() -> None:
    matrix = {"nbytes": 1024, "shape": (16, 16), "dtype": "float32"}
    for optimizer, moved in (("sgd", 3), ("momentum", 5), ("adam", 7)):
        d = differentiate(product("Mul", matrix, matrix, {**matrix, "flops": 256}), optimizer=optimizer)
        assert d.nodes["w.update"]["cost"] == pytest.approx(moved * 1024 / device("a100").bandwidth), optimizer


def test_a_product_of_two_trained_values_overwrites_nothing_backward_and_of_one_its_gradient() -> None:
    both = product("Mul", {"nbytes": 8}, {"nbytes": 8}, {"nbytes": 8})
    assert (
        "inplace" not in differentiate(both).nodes["y.bwd"]
    )  # the second gradient needs what the first would overwrite
    assert differentiate(both, trainable=["w"]).nodes["y.bwd"]["inplace"] == ((0, 0),)


def test_a_loss_that_is_a_view_can_be_planned() -> None:
    g = product("Mul", {"nbytes": 4}, {"nbytes": 4}, {"nbytes": 4})
    g.add_node("seen", op="Reshape", nbytes=4, view=((0, 0),), phase="loss")
    g.add_edge("y", "seen")
    d = differentiate(g)
    assert reads(d, "seen.bwd") == [("seen.seed", 0)]
    assert optimize(d).report.plan.peak_bytes <= simulate(lower(d), keep_all(lower(d))).peak_bytes


def test_an_operand_of_another_size_gets_a_sum_where_no_shape_is_known() -> None:
    d = differentiate(product("Add", {"nbytes": 8}, {"nbytes": 2}, {"nbytes": 8}))
    assert (d.nodes["y.bwd"]["op"], d.nodes["y.bwd"]["nbytes"]) == ("AddGrad", 2)
    assert [reads(d, name)[1] for name in ("w.update", "b.update")] == [("loss.bwd", 0), ("y.bwd", 0)]


def test_convolution_backward_costs_the_forward_flops_once_per_gradient() -> None:
    from planner import zoo

    d = zoo.resnet((1, 1), batch=2, image=64)
    assert d.nodes["stage1.block1.conv2.bwd"]["flops"] == 2 * d.nodes["stage1.block1.conv2"]["flops"]
    assert d.nodes["stem.conv.bwd"]["flops"] == d.nodes["stem.conv"]["flops"]  # no gradient of the image


def test_frozen_trunk_is_read_by_no_backward() -> None:
    """cases.md C7: t1 is never saved, backward reads only t2 and A1."""
    layers = (("t1", "x", "wt1", 8), ("t2", "t1", "wt2", 8), ("A1", "t2", "wa1", 6), ("A2", "A1", "wa2", 1))
    nodes = {"x": {"nbytes": 1, "kind": "input"}, **{weight: WEIGHT for _, _, weight, _ in layers}}
    nodes.update({name: {"nbytes": size, "saves": (("in", 0),)} for name, _, _, size in layers})
    g = dag(nodes, *((source, name, {"at": (0,)}) for name, source, _, _ in layers))
    g.add_edges_from((weight, name, {"at": (1,)}) for name, _, weight, _ in layers)
    d = differentiate(g, trainable=["wa1", "wa2"])
    saved = {s for s, t in d.edges() if d.nodes[s].get("phase") == "forward" and d.nodes[t].get("phase") == "backward"}
    assert saved == {"t2", "A1", "A2"}  # A2 by the loss that was added
    assert {n for n in d if n.endswith(".update")} == {"wa1.update", "wa2.update"}


def heads(*, output: bool | None) -> nx.DiGraph:
    """cases.md C7: a trunk, a head A for the loss and a head B of no use to it, inserted first."""
    saves: dict[str, Any] = {"saves": (("in", 0),)}
    nodes = {"w": WEIGHT, "wB": WEIGHT, "t": {"nbytes": 8, **saves}, "B1": {"nbytes": 30, **saves}}
    nodes["B2"] = {"nbytes": 2, "saves": (("out", 0),), "output": output}
    nodes["A"] = {"nbytes": 4, "phase": "loss", **saves}
    return dag(nodes, ("w", "t"), ("B1", "B2"), ("t", "A"), ("t", "B1", {"at": (0,)}), ("wB", "B1", {"at": (1,)}))


def test_a_head_the_loss_does_not_need_is_pruned_and_listed() -> None:
    d = differentiate(heads(output=None))
    assert d.graph["pruned"] == ("wB", "B1", "B2")
    assert set(d) == {"w", "t", "A", "A.bwd", "t.bwd", "barrier", "w.update"}


def test_a_head_that_is_an_output_is_kept_and_not_saved() -> None:
    d = differentiate(heads(output=True))
    assert d.graph["pruned"] == ()
    assert not [t for s, t in d.edges() if s in ("B1", "B2") and d.nodes[t]["phase"] == "backward"]
    assert set(lower(d).outputs) >= {"A", "B2"}
    assert "wB.update" not in d


def test_effects_on_residents_are_never_pruned() -> None:
    g = heads(output=None)
    g.add_node("running", nbytes=4, kind="state")
    g.add_node("tick", nbytes=4, updates=((0, 0),))
    g.add_edge("running", "tick", at=(0,))
    g.add_edge("B2", "tick", at=(1,))
    g.add_node("print", nbytes=())
    g.add_edge("A", "print")
    d = differentiate(g, loss="A")
    assert d.graph["pruned"] == ()
    assert {"B1", "B2", "tick", "print"} <= set(d)


def test_an_unread_output_of_phase_loss_is_the_loss() -> None:
    d = differentiate(heads(output=None))
    assert "loss" not in d
    assert d.nodes["A"]["output"] is True
    assert reads(d, "A.bwd") == [("t", 0)]


def test_of_several_loss_outputs_the_one_of_one_element_is_the_loss() -> None:
    g = heads(output=None)
    g.nodes["A"].update(nbytes=(4, 40), shape=((), (10,)), dtype=("float32", "float32"))
    d = differentiate(g)
    assert d.nodes["A"]["output"] == (0,)
    g.nodes["A"].update(shape=None)
    with pytest.raises(GraphError, match=r"found 2 \(A:0, A:1\); give loss="):
        differentiate(g)


def test_a_loss_that_passes_its_gradient_on_gets_an_explicit_one() -> None:
    g = residual()
    d = differentiate(g, loss="y")
    assert d.nodes["y.seed"]["nbytes"] == 4
    assert reads(d, "r.bwd") == [("y.seed", 0), ("r", 0)]
    assert lower(d).outputs[0] == "y"


def test_the_generic_loss_reads_unread_float_outputs_that_something_trainable_reaches() -> None:
    g = two_layers()
    g.add_node("mask", nbytes=8, dtype="bool", saves=())
    g.add_node("frozen", nbytes=8, saves=())
    g.add_node("log", nbytes=8, saves=(), output=False)
    g.add_node("b2", nbytes=8, saves=())
    g.add_edges_from([("a", "mask"), ("x", "frozen"), ("a", "log"), ("a", "b2")])
    d = differentiate(g)
    assert [source for source, _ in reads(d, "loss")] == ["b", "b2"]
    assert reads(d, "loss.bwd") == [("b", 0), ("b2", 0)]
    assert d.nodes["loss"]["nbytes"] == 4
    assert set(d.graph["pruned"]) == {"mask", "frozen", "log"}


def test_an_input_can_be_trainable_and_its_gradient_is_an_output() -> None:
    d = differentiate(two_layers(), trainable=["x"])
    assert set(lower(d).outputs) == {"loss", "a.bwd"}
    assert not [n for n in d if n.endswith("update") or n == "barrier"]


def test_the_forward_graph_is_left_alone_and_unknown_attributes_are_kept() -> None:
    g = residual()
    g.nodes["r"]["colour"] = "red"
    before = {n: dict(a) for n, a in g.nodes(data=True)}
    d = differentiate(g)
    assert d.nodes["r"]["colour"] == "red"
    assert {n: dict(a) for n, a in g.nodes(data=True)} == before


def test_multigraphs_and_nodes_that_are_no_strings_are_accepted() -> None:
    g = nx.MultiDiGraph(dag({0: WEIGHT, 1: {"nbytes": 4, "op": "Mul"}}))
    g.add_edges_from([(0, 1, {"at": (0,)}), (0, 1, {"at": (1,)})])
    d = differentiate(g)
    assert list(d) == [0, 1, "loss", "loss.bwd", "1.bwd", "0.grad2", "barrier", "0.update"]
    lower(d)


def test_json_lists_are_as_good_as_tuples() -> None:
    as_lists = two_layers()
    for node in ("a", "b"):
        as_lists.nodes[node]["saves"] = [["in", 0], ["in", 1]]
    assert lower(differentiate(as_lists)).fingerprint == lower(differentiate(two_layers())).fingerprint


def _set(node: str, **attributes: Any) -> Callable[[nx.DiGraph], Any]:
    return lambda g: g.nodes[node].update(attributes)


@every(("break_it", "options", "message"), [
    (_set("a", saves=None), {}, "'a' has neither an op type nor saves="),
    (_set("a", saves=None, op="Magic"), {}, "'a': no rule for op type 'Magic'"),
    (_set("a", saves=(("in", 2),)), {}, "'a': saves names input 2, but it has 2 inputs"),
    (_set("a", saves=(("out", 1),)), {}, "'a': saves names output 1"),
    (_set("a", saves="all"), {}, "'a': saves is 'all', expected pairs"),
    (_set("a", saves=(("both", 0),)), {}, "'a': saves has"),
    (lambda g: g.edges["x", "a"].pop("at") and g.edges["u", "a"].pop("at"), {},
        "'a' has 2 reads: its in-edges need `at`"),
    (_set("b", phase="backward"), {}, "'b' has phase 'backward': the graph already is a training step"),
    (lambda g: g.add_edge("b", "a", at=(2,)), {}, "cycle"), (_set("a", nbytes=-1), {}, "'a': nbytes"),
    (lambda g: g.graph.update(device="abacus"), {}, "unknown device 'abacus'"),
    (lambda g: None, {"optimizer": "sgdd"}, "unknown optimizer 'sgdd'; known: sgd, momentum, adagrad"),
    (lambda g: None, {"trainable": ["v"]}, "trainable 'v' is no input, parameter or state"),
    (lambda g: None, {"trainable": ["a"]}, "trainable 'a' is no input, parameter or state"),
    (lambda g: None, {"trainable": "u"}, "must be a list of names"),
    (lambda g: None, {"trainable": []}, "no trainable resident"),
    (lambda g: None, {"loss": "b:0"}, "loss 'b:0' is no value"),
    (lambda g: None, {"loss": "u"}, "loss 'u' is a resident"),
    (_set("b", dtype="int64"), {"loss": "b"}, "loss 'b' has dtype int64"),
    (_set("b", shape=(2,), dtype="float32"), {"loss": "b"}, "loss 'b' has shape .*one element"),
    (_set("b", dtype="int64"), {}, "no trainable resident reaches"),
    (lambda g: None, {"trainable": ["w"], "loss": "a"}, "no trainable resident reaches the loss 'a'"),
    (_set("u", dtype="int8"), {"trainable": ["u"]}, "trainable 'u' has dtype int8"),
])  # fmt: skip
def test_bad_input_is_one_line_that_names_it(
    break_it: Callable[[nx.DiGraph], Any], options: dict[str, Any], message: str
) -> None:
    g = two_layers()
    break_it(g)
    with pytest.raises(GraphError, match=message) as error:
        differentiate(g, **options)
    assert "\n" not in str(error.value)


def test_a_training_step_cannot_be_differentiated_again() -> None:
    with pytest.raises(GraphError, match="already is a training step"):
        differentiate(differentiate(two_layers()))


def test_a_gradient_through_an_output_the_rule_does_not_cover_is_refused() -> None:
    nodes = {"w": WEIGHT, "norm": {"nbytes": (4, 4, 4), "op": "BatchNormalization"}, "end": {"nbytes": 4, "saves": ()}}
    g = dag(nodes, ("w", "norm", {"at": (0,)}), ("norm", "end", {"reads": (1,), "at": (0,)}))
    with pytest.raises(GraphError, match="'norm': the loss depends on output 1"):
        differentiate(g)


# --- explicit `saves` that say what the operator table says


def one_op(op: str, *, inputs: int, outputs: int = 1, nbytes: int = 4, **facts: Any) -> nx.DiGraph:
    """One op on parameters, and a loss that reads its first output."""
    made = nbytes if outputs == 1 else (nbytes,) * outputs
    weights = {f"w{i}": {"nbytes": nbytes, "kind": "parameter"} for i in range(inputs)}
    nodes = {**weights, "n": {"nbytes": made, "op": op, **facts}}
    nodes["end"] = {"nbytes": 4, "saves": (("in", 0),), "phase": "loss"}
    read = [(f"w{i}", "n", {"at": (i,)}) for i in range(inputs)]
    return dag(nodes, *read, ("n", "end", {"reads": (0,), "at": (0,)}))


FORMS = [(op, form) for op, row in OPERATORS.items() for form in (row, row.fewer) if form and any(form.gradients)]


@every("op, row", FORMS, ids=lambda case: f"{case[0]}, {case[1].outputs} outputs")
def test_saves_that_say_what_the_table_says_change_nothing(op: str, row: Operator) -> None:
    known = range(len(row.gradients) + row.variadic)
    read = {i: () if (how := row.gradient(i)) is None else how.refs(i) for i in known}
    required: set[Ref] = {ref for refs in read.values() for ref in refs if not row.lacks(ref)}
    inputs = max([row.inputs or len(known), *(k + 1 for side, k in required if side == "in")])
    outputs = min(row.outputs, 8)
    saves = {r for refs in read.values() for r in refs if r[1] < (inputs if r[0] == "in" else outputs)}
    by_table = one_op(op, inputs=inputs, outputs=outputs)
    by_hand = one_op(op, inputs=inputs, outputs=outputs, saves=tuple(sorted(saves, reverse=True)))
    for trainable in (None, *([f"w{i}"] for i in known if row.gradient(i))):
        expected, found = (differentiate(graph, trainable=trainable) for graph in (by_table, by_hand))
        del found.nodes["n"]["saves"]
        assert dict(found.nodes(data=True)) == dict(expected.nodes(data=True))
        assert list(found.edges(data=True)) == list(expected.edges(data=True))


def test_an_addition_passes_its_gradient_on_whatever_is_said_of_it() -> None:
    # Weights 2 * 1000, the sum 1000, its gradient 1000, the loss 4. Two gradients as copies would make it 5004.
    for facts in ({}, {"saves": ()}):
        graph = one_op("Add", inputs=2, nbytes=1000, **facts)
        assert optimize(differentiate(graph), "100%").report.keep_all.peak_bytes == 4004
        for weight in ("w0", "w1"):
            del graph.edges[weight, "n"]["at"]
        if facts:  # both inputs of a sum are alike, so their positions do not matter
            assert optimize(differentiate(graph), "100%").report.keep_all.peak_bytes == 4004


def test_a_product_with_a_frozen_weight_does_not_keep_its_input() -> None:
    for saves in (None, (("in", 0), ("in", 1)), (("in", 1), ("in", 0))):
        d = differentiate(one_op("MatMul", inputs=2, saves=saves), trainable=["w0"])
        assert reads(d, "n.bwd") == [("end.bwd", 0), ("w1", 0)]
    more = (("in", 0), ("in", 1), ("out", 0))  # not what the table says: the backward reads all that is named
    d = differentiate(one_op("MatMul", inputs=2, saves=more), trainable=["w0"])
    assert reads(d, "n.bwd") == [("end.bwd", 0), ("w0", 0), ("w1", 0), ("n", 0)]


def test_saves_give_gradients_where_the_table_has_none() -> None:
    # A step function passed over by its backward; and the saved mean, of which the table has no gradient.
    assert "n.bwd" in differentiate(one_op("Sign", inputs=1, saves=()))
    table = (("in", 0), ("in", 1), ("out", 1), ("out", 2))
    g = one_op("LayerNormalization", inputs=2, outputs=3, saves=table)
    g.edges["n", "end"]["reads"] = (1,)
    assert reads(differentiate(g), "n.bwd")[1:] == [("w0", 0), ("w1", 0), ("n", 1), ("n", 2)]


# --- random DAGs, against a gradient computed path by path


@st.composite
def forward_graphs(draw: st.DrawFn) -> nx.DiGraph:
    """Ops of several inputs and outputs, with `saves`, order-only edges, and residents of all kinds."""
    g = nx.DiGraph()
    values: list[tuple[str, int]] = []
    for k in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["parameter", "parameter", "input", "state"]))
        g.add_node(f"r{k}", nbytes=4, kind=kind)
        values.append((f"r{k}", 0))
    for k in range(draw(st.integers(1, 7))):
        name, count = f"n{k}", draw(st.integers(1, 2))
        chosen = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))
        refs = [("in", i) for i in range(len(chosen))] + [("out", o) for o in range(count)]
        saves = draw(st.lists(st.sampled_from(refs), unique=True, max_size=3))
        output = draw(st.sampled_from([None, None, True]))
        g.add_node(name, nbytes=4 if count == 1 else (4,) * count, saves=tuple(saves), output=output)
        wires: dict[str, list[tuple[int, int]]] = {}
        for at, (source, output) in enumerate(chosen):
            wires.setdefault(source, []).append((output, at))
        for source, pairs in wires.items():
            g.add_edge(source, name, reads=tuple(o for o, _ in pairs), at=tuple(at for _, at in pairs))
        earlier = [n for n in g if g.nodes[n].get("kind", "op") == "op" and n != name and not g.has_edge(n, name)]
        if earlier and draw(st.booleans()):
            g.add_edge(draw(st.sampled_from(earlier)), name, reads=(), at=())
        values += [(name, o) for o in range(count)]
    return g


def weight(node: str, position: int, output: int) -> int:
    """The coefficient of an input in an output; gradients are sums over paths of products of coefficients."""
    return 2 + (hash((int(node[1:]), position, output)) % 97)


def reached(g: nx.DiGraph) -> set[str]:
    """Nodes that change with a parameter; in these graphs all outputs of a node do alike."""
    data = nx.DiGraph((u, v) for u, v, edge in g.edges(data=True) if edge["reads"])
    data.add_nodes_from(g)
    parameters = [n for n, kind in g.nodes(data="kind") if kind == "parameter"]
    return set(parameters).union(*(nx.descendants(data, p) for p in parameters))


def gradient_by_paths(g: nx.DiGraph, ends: set[tuple[str, int]], value: tuple[str, int]) -> int:
    """d(sum of the ends) / d(value): 1 if it is an end, and over all its readers."""
    total = int(value in ends)
    for node in g:
        if g.nodes[node].get("kind", "op") != "op":
            continue
        for position, source in enumerate(reads(g, node)):
            if source == value:
                count = len(g.nodes[node]["nbytes"]) if isinstance(g.nodes[node]["nbytes"], tuple) else 1
                total += sum(weight(node, position, o) * gradient_by_paths(g, ends, (node, o)) for o in range(count))
    return total


def gradient_by_graph(g: nx.DiGraph, d: nx.DiGraph, alive: set[str]) -> dict[str, int]:
    """Run the backward ops of `d` on numbers: what reaches each update."""
    numbers: dict[tuple[str, int], int] = {}
    result: dict[str, int] = {}
    for node in d:
        sources = reads(d, node)
        if node == "loss.bwd":
            numbers.update({(node, k): 1 for k in range(len(sources))})
        elif node.endswith(".bwd"):
            forward = node.removesuffix(".bwd")
            made = [i for i, (source, _) in enumerate(reads(g, forward)) if source in alive]
            incoming = [source for source in sources if source in numbers]
            outputs = [o for o in range(2) if d.graph["wanted"].get((forward, o))]
            assert len(incoming) == len(outputs)
            for k, position in enumerate(made):
                numbers[node, k] = sum(
                    weight(forward, position, o) * numbers[s] for o, s in zip(outputs, incoming, strict=True)
                )
        elif ".grad" in node:
            numbers[node, 0] = sum(numbers[source] for source in sources)
        elif node.endswith(".update"):
            result[node.removesuffix(".update")] = numbers[sources[1]]
    return result


@given(forward_graphs())
def test_every_parameter_the_loss_depends_on_gets_its_gradient_once(g: nx.DiGraph) -> None:
    alive = reached(g)
    read = {(u, o) for u, _, edge in g.edges(data=True) for o in edge["reads"]}
    counts = {n: len(a["nbytes"]) if isinstance(a["nbytes"], tuple) else 1 for n, a in g.nodes(data=True)}
    ends = {
        (n, o) for n in alive if g.nodes[n].get("kind", "op") == "op" for o in range(counts[n]) if (n, o) not in read
    }
    if not ends:
        with pytest.raises(GraphError, match="no trainable resident"):
            differentiate(g)
        return
    d = differentiate(g)
    d.graph["wanted"] = {(n, o): gradient_by_paths(g, ends, (n, o)) for n in g for o in range(counts[n])}
    gradients = {n: d.graph["wanted"][n, 0] for n, kind in g.nodes(data="kind") if kind == "parameter"}
    assert gradient_by_graph(g, d, alive) == {n: gradient for n, gradient in gradients.items() if gradient}


@given(forward_graphs(), st.sampled_from(["sgd", "momentum", "adam", None]))
def test_backward_reads_gradients_and_declared_saves_and_nothing_else(g: nx.DiGraph, optimizer: str | None) -> None:
    try:
        d = differentiate(g, optimizer=optimizer)
    except GraphError as error:
        assert "no trainable resident" in str(error)  # noqa: PT017
        return
    for node in d:
        if d.nodes[node].get("phase") == "backward" and node != "loss.bwd":
            others = [(s, o) for s, o in reads(d, node) if d.nodes[s].get("phase") != "backward"]
            forward = node.removesuffix(".bwd")
            saves = g.nodes[forward]["saves"] if others else ()
            declared = [reads(g, forward)[k] if side == "in" else (forward, k) for side, k in saves]
            assert others == list(dict.fromkeys(declared))


@given(forward_graphs(), st.sampled_from(["sgd", "momentum", "adam", None]))
def test_the_step_is_a_legal_program_in_insertion_order(g: nx.DiGraph, optimizer: str | None) -> None:
    try:
        d = differentiate(g, optimizer=optimizer)
    except GraphError:
        return
    rank = {node: k for k, node in enumerate(d)}
    assert all(rank[u] < rank[v] for u, v in d.edges())
    assert all("reads" in edge and len(edge["at"]) == len(edge["reads"]) for _, _, edge in d.edges(data=True))
    program = lower(d)
    assert [op.name for op in program.ops] == list(d)
    assert not program.dead
    assert set(d.graph["pruned"]) == set(g) - set(d)
    simulate(program, keep_all(program))
