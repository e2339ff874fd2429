"""Where the forward pass can be cut by keeping one tensor: by hand, and by taking each tensor away and looking."""

from __future__ import annotations

from typing import Any

import networkx as nx
from cases import C2, C7_B_FIRST, C7_FROZEN, C9, TRAP_B
from hypothesis import HealthCheck, given, settings
from programs import program
from strategies import digraphs, simple_digraphs
from test_chen import branching, recurrent

from planner import Graph, MemoryModel, Op, Tensor, lower, zoo
from planner.analysis.arrays import encode
from planner.analysis.candidates import ForwardPart, forward_part

QUICK = settings(suppress_health_check=list(HealthCheck))


def part_of(graph: Graph, **memory: Any) -> ForwardPart | None:
    return forward_part(graph, encode(graph, MemoryModel(**memory)))


def candidates(graph: Graph | nx.DiGraph) -> list[list[str]]:
    """Names of the ops each candidate keeps, in order; None where there is no forward part."""
    program = lower(graph)
    part = part_of(program)
    assert part is not None
    return [[program.ops[row].name for row in members] for members in part.members]


# by hand


def test_every_layer_of_a_chain_is_a_candidate() -> None:
    assert candidates(zoo.chain(6, reads=("in", "out"))) == [[f"f{k}"] for k in range(1, 7)]


def test_the_only_single_tensor_separator_of_the_u_net_before_its_last_layer_is_e1() -> None:
    found = [names for names in candidates(C2.digraph()) if names != ["d1"]]
    assert found == [["e1"]]


def test_layers_under_a_skip_are_no_candidates() -> None:
    names = {name for names in candidates(branching(12)) for name in names}
    assert names.isdisjoint({"f4", "f7", "f10"})
    assert {"f1", "f2", "f3", "f5", "f6", "f8"} <= names


def test_both_tensors_of_a_layer_are_candidates_where_each_alone_separates() -> None:
    assert candidates(TRAP_B.digraph())[:4] == [["m0"], ["x1"], ["m1"], ["x2"]]


def test_a_head_that_the_loss_does_not_need_hides_no_candidate() -> None:
    assert ["t2"] in candidates(C7_FROZEN.digraph())
    assert ["t1"] in candidates(C7_B_FIRST.digraph())
    assert ["t2"] in candidates(C7_B_FIRST.digraph())


def test_a_saved_generator_state_is_on_no_path() -> None:
    found = candidates(C9.digraph())
    assert ["h1"] in found
    assert ["n1"] in found
    assert ["k"] not in found


def test_two_recurrent_states_have_no_candidates_until_marked_and_then_one_a_step() -> None:
    assert candidates(recurrent(4, marks=False)) == [["c1"]]  # made of residents, and all that the first h reads
    assert candidates(recurrent(4, marks=True)) == [[f"c{t}", f"h{t}"] for t in range(1, 5)]


def test_marks_replace_the_candidates_that_would_be_found() -> None:
    graph = zoo.chain(8, reads=("in", "out"))
    for name, stage in (("f2", True), ("f5", True), ("f6", "pair"), ("f7", "pair")):
        graph.nodes[name]["stage"] = stage
    assert candidates(graph) == [["f2"], ["f5"], ["f6", "f7"]]


def test_equal_marks_of_true_are_not_one_group() -> None:
    graph = zoo.chain(4, reads=("in", "out"))
    for name in ("f1", "f3"):
        graph.nodes[name]["stage"] = True
    assert candidates(graph) == [["f1"], ["f3"]]


def test_views_belong_to_the_storage_they_lie_on() -> None:
    graph = zoo.chain(4, reads=("in", "out"))
    graph.nodes["f2"]["view"] = ((0, 0),)
    assert candidates(graph) == [["f1", "f2"], ["f3"], ["f4"]]


def test_a_graph_without_phases_has_no_forward_part() -> None:
    graph = zoo.chain(4)
    for name in graph:
        graph.nodes[name].pop("phase", None)
    assert part_of(lower(graph)) is None
    assert part_of(Graph([])) is None
    forward = [name for name in graph if name.startswith("f")]
    nx.set_node_attributes(graph, dict.fromkeys(forward, "forward"), "phase")
    assert part_of(lower(graph)) is None, "forward ops alone are no training step"


def test_gaps_and_cuts_add_up_to_the_bytes_of_the_forward_pass() -> None:
    graph = zoo.chain(5, reads=("in", "out"))
    for k, nbytes in enumerate((3, 10, 4, 1, 7), 1):
        graph.nodes[f"f{k}"]["nbytes"] = nbytes
    graph.nodes["f3"]["stage"] = graph.nodes["f4"]["stage"] = True
    part = part_of(lower(graph))
    assert part is not None
    assert part.gap_bytes.tolist() == [17, 1]
    assert part.cut_bytes.tolist() == [4, 1]
    assert part.tail_bytes == 7 + 1  # f5 and the gradient of the loss phase
    aligned = part_of(lower(graph), alignment=8)
    assert aligned is not None
    assert (aligned.gap_bytes.tolist(), aligned.cut_bytes.tolist(), aligned.tail_bytes) == ([32, 8], [8, 8], 16)


def test_what_may_run_again_is_forward_recomputable_and_on_no_storage_updated_early() -> None:
    def op(name: str, *reads: str, phase: Any = "forward", **attributes: Any) -> Op:
        return Op(name, (Tensor(name, 4),), reads, phase=phase, **attributes)

    graph = program(
        op("w", phase=None, kind="parameter"),
        op("s", phase=None, kind="state"),
        op("a", "w"),
        op("draw", "a", recomputable=False),
        op("norm", "draw", "s"),
        op("running", "s", "norm", updates=((0, 0),)),
        op("b", "norm"),
        op("loss", "b", phase="loss"),
        op("g", "loss", "a", "draw", "norm", "b", phase="backward"),
        op("step", "w", "g", phase="update", updates=((0, 0),)),
    )
    part = part_of(graph)
    assert part is not None
    names = [o.name for o in graph.ops]
    assert {n for n, flag in zip(names, part.droppable, strict=True) if flag} == {"a", "b"}
    origin = {n for n, flag in zip(names, part.origin, strict=True) if flag}
    assert origin == {"a", "draw", "norm", "running", "b", "loss"}


# by taking away


def separates(graph: Graph, root: str) -> bool:
    """True if no forward path avoids the storage on its way from what runs before it to what runs after it.

    The forward part is what the backward ops need. Residents and non-recomputable ops that read nothing are on no path.
    """
    backward = [op for op in graph.ops if op.phase == "backward"]
    needed: set[str] = set()
    waiting = [value for op in backward for value in op.reads]
    while waiting:
        op = graph.producer[waiting.pop()]
        if op.name not in needed:
            needed.add(op.name)
            waiting += op.reads
    rows = {op.name: k for k, op in enumerate(graph.ops)}
    forward = [op for op in graph.ops if op.name in needed and op.phase in ("forward", "loss") and not op.resident]
    on_root = [rows[op.name] for op in forward for t in op.outputs if graph.storage_root[t.name] == root]
    if not on_root:
        return False
    # Some place from the first op on this storage until its last reader where it is all that crosses.
    for place in range(min(on_root), len(graph.ops)):
        crossing = {
            graph.storage_root[value]
            for reader in forward
            if rows[reader.name] > place
            for value in reader.reads
            if counts(graph, value) and rows[graph.producer[graph.storage_root[value]].name] <= place
        }
        if crossing == {root}:
            return True
    return False


def counts(graph: Graph, value: str) -> bool:
    maker = graph.producer[graph.storage_root[value]]
    return not maker.resident and (maker.recomputable or bool(maker.reads))


@QUICK
@given(digraph=simple_digraphs())
def test_candidates_are_exactly_the_storages_whose_removal_disconnects(digraph: nx.DiGraph) -> None:
    check_candidates(lower(digraph))


@QUICK
@given(digraph=digraphs())
def test_candidates_separate_in_graphs_with_views_and_updates_too(digraph: nx.DiGraph) -> None:
    check_candidates(lower(digraph))


def check_candidates(graph: Graph) -> None:
    part = part_of(graph)
    if part is None:
        assert not (any(op.phase == "backward" for op in graph.ops) and any(op.phase == "forward" for op in graph.ops))
        return
    assert list(part.position) == sorted(part.position)
    found = set()
    for members in part.members:
        roots = {graph.storage_root[t.name] for row in members for t in graph.ops[row].outputs}
        roots &= {root for root in roots if separates(graph, root)}
        assert roots, "a candidate separates nothing"
        found |= roots
    every = {
        graph.storage_root[t.name]
        for op in graph.ops
        if op.phase in ("forward", "loss")
        for t in op.outputs
        if not op.resident
    }
    assert {root for root in every if separates(graph, root)} <= found
