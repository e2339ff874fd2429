"""Minimum cuts against networkx and brute force; storages of the network against the slow twin of the rules."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import networkx as nx
import numpy as np
import programs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from naive import history, naive_timeline
from strategies import digraphs, memory_models, op_sequences, schedules
from test_laws import GRAPHS, layered_digraphs

from planner import Graph, MemoryModel, lower
from planner.analysis.arrays import encode
from planner.bounds.cut import Instant, first_run, storages
from planner.kernels import flow, unroll
from planner.schedule import Compute

QUICK = settings(suppress_health_check=list(HealthCheck))
Arcs = list[tuple[int, int, int]]


# ------------------------------------------------------------------------------------------------ push


@st.composite
def networks(draw: Any, *, most: int = 7) -> tuple[int, Arcs, list[int], list[int]]:
    """Nodes, arcs (tail, head, capacity), what the source sends and what the sink takes."""
    nodes = draw(st.integers(1, most))
    node = st.integers(0, nodes - 1)
    capacity = st.sampled_from([0, 1, 2, 3, 7, 10**15])
    arcs = draw(st.lists(st.tuples(node, node, capacity).filter(lambda arc: arc[0] != arc[1]), max_size=3 * nodes))
    ends = st.lists(capacity, min_size=nodes, max_size=nodes)
    return nodes, arcs, draw(ends), draw(ends)


class Flow:
    """The kernel's arrays for a list of arcs."""

    def __init__(self, nodes: int, arcs: Arcs, source: Sequence[int], sink: Sequence[int]) -> None:
        both = [(tail, head, cap, k) for k, (tail, head, cap) in enumerate(arcs)]
        both += [(head, tail, 0, len(arcs) + k) for k, (tail, head, _) in enumerate(arcs)]
        order = sorted(range(len(both)), key=lambda e: both[e][0])
        place = {both[e][3]: p for p, e in enumerate(order)}
        self.first = np.searchsorted([both[e][0] for e in order], np.arange(nodes + 1)).astype(np.int64)
        self.to = np.array([both[e][1] for e in order], dtype=np.int64)
        self.mate = np.array([place[(both[e][3] + len(arcs)) % (2 * len(arcs))] for e in order], dtype=np.int64)
        self.residual = np.array([both[e][2] for e in order], dtype=np.int64)
        self.place = [place[k] for k in range(len(arcs))]
        self.sink, self.excess = np.array(sink, dtype=np.int64), np.array(source, dtype=np.int64)
        self.taken = self.sink.copy()
        self.label = np.empty(nodes, np.int64)
        self.network = flow.new_network(
            **{name: getattr(self, name) for name in ("first", "to", "mate", "residual", "sink", "excess", "label")},
            arc=np.empty(nodes, np.int64),
            active=np.empty((2, nodes + 2), np.int64),
            level=np.empty((3, nodes + 2), np.int64),
        )

    def run(self, most_work: int = 10**9) -> tuple[int, set[int]]:
        """Flow to the sink, and the nodes on the source's side."""
        while not flow.push(self.network, most_work):
            pass
        return int((self.taken - self.sink).sum()), set(np.flatnonzero(self.label > len(self.sink)).tolist())


def cut_value(side: set[int], arcs: Arcs, source: Sequence[int], sink: Sequence[int]) -> int:
    across = sum(cap for tail, head, cap in arcs if tail in side and head not in side)
    return across + sum(cap for node, cap in enumerate(source) if node not in side) + sum(sink[node] for node in side)


@QUICK
@given(given_=networks())
def test_the_flow_is_the_least_cut_over_all_subsets_and_that_of_networkx(given_: Any) -> None:
    nodes, arcs, source, sink = given_
    value, side = Flow(nodes, arcs, source, sink).run()
    subsets = itertools.chain.from_iterable(itertools.combinations(range(nodes), k) for k in range(nodes + 1))
    assert value == min(cut_value(set(subset), arcs, source, sink) for subset in subsets)
    assert cut_value(side, arcs, source, sink) == value
    assert value == networkx_value(nodes, arcs, source, sink)


def networkx_value(nodes: int, arcs: Arcs, source: Sequence[int], sink: Sequence[int]) -> int:
    graph = nx.DiGraph()
    graph.add_nodes_from(["s", "t"])
    ends = [("s", k, c) for k, c in enumerate(source)] + [(k, "t", c) for k, c in enumerate(sink)]
    for tail, head, cap in [*arcs, *ends]:
        known = graph.get_edge_data(tail, head, {"capacity": 0})["capacity"]
        graph.add_edge(tail, head, capacity=known + cap)
    return nx.maximum_flow_value(graph, "s", "t")


@QUICK
@given(
    given_=networks(most=40),
    raised=st.lists(st.integers(0, 9), min_size=200, max_size=200),
    most_work=st.sampled_from([1, 10**9]),
)
def test_a_flow_goes_on_from_where_it_was_when_capacities_rise(given_: Any, raised: list[int], most_work: int) -> None:
    nodes, arcs, source, sink = given_
    warm = Flow(nodes, arcs, source, sink)
    assert warm.run(most_work)[0] == networkx_value(nodes, arcs, source, sink)
    more = [(tail, head, cap + extra) for (tail, head, cap), extra in zip(arcs, raised, strict=False)]
    for place, extra in zip(warm.place, raised, strict=False):
        warm.residual[place] += extra
    warm.excess += np.array(raised[:nodes], dtype=np.int64)
    expected = networkx_value(nodes, more, [s + extra for s, extra in zip(source, raised, strict=False)], sink)
    assert warm.run(most_work)[0] == expected


# -------------------------------------------------------------------------------------------- before, after, holders


@QUICK
@given(digraph=GRAPHS, data=st.data())
def test_before_and_after_are_what_the_graph_reaches(digraph: nx.DiGraph, data: st.DataObject) -> None:
    graph = lower(digraph)
    arrays = encode(graph, MemoryModel()).arrays
    row = data.draw(st.sampled_from([k for k, op in enumerate(graph.ops) if not op.resident]))
    reach = nx.DiGraph()
    reach.add_nodes_from(range(len(graph.ops)))
    index = {op.name: k for k, op in enumerate(graph.ops)}
    for k, op in enumerate(graph.ops):
        reach.add_edges_from((index[graph.producer[v].name], k) for v in op.reads)
        reach.add_edges_from((index[name], k) for name in op.after)
    after, before = np.empty((2, len(graph.ops)), dtype=np.bool_)
    flow.descendants(arrays, row, after)
    flow.ancestors(arrays, row, before)
    assert set(np.flatnonzero(after).tolist()) == nx.descendants(reach, row) | {row}
    assert set(np.flatnonzero(before).tolist()) == {k for k in nx.ancestors(reach, row) if not graph.ops[k].resident}


def test_a_value_with_identity_pairs_of_several_holders_has_none() -> None:
    both = programs.op("c", "a", "b", nbytes=8, inplace=((0, 0, True), (1, 0, True)))
    ends = programs.op("a", nbytes=8), programs.op("b", nbytes=8), programs.op("d", "c", nbytes=8, output=True)
    graph = Graph([*ends[:2], both, ends[2]])
    assert storages(encode(graph, MemoryModel()).arrays).storage_rep.tolist() == [0, 1, -1, 3]


@settings(max_examples=settings().max_examples * 4, suppress_health_check=list(HealthCheck))
@given(digraph=GRAPHS, data=st.data())
def test_values_of_different_holders_are_never_on_one_storage(digraph: nx.DiGraph, data: st.DataObject) -> None:
    graph = lower(digraph)
    storage_rep = storages(encode(graph, MemoryModel()).arrays).storage_rep
    index = {name: v for v, name in enumerate(graph.tensors)}
    schedule = data.draw(schedules(graph))
    steps = [*schedule.steps, None]
    for k, moment in enumerate(history(graph, schedule)):
        if not (steps[k + 1] is None or isinstance(steps[k + 1], Compute)):
            continue  # until the frees after a step are done, an in-place output and its input share
        on: dict[Any, set[int]] = {}
        for value, storage in moment.on.items():
            on.setdefault(storage, set()).add(int(storage_rep[index[value]]))
        assert all(len(holders - {-1}) <= 1 for holders in on.values())


@QUICK
@given(digraph=GRAPHS, memory=memory_models(), data=st.data())
def test_no_step_of_any_schedule_takes_less_than_its_working_set(
    digraph: nx.DiGraph, memory: MemoryModel, data: st.DataObject
) -> None:
    graph = lower(digraph)
    names, working_bytes = [op.name for op in graph.ops], storages(encode(graph, memory).arrays).working_bytes
    working = dict(zip(names, working_bytes.tolist(), strict=True))
    schedule = data.draw(schedules(graph))
    for name, nbytes in zip(schedule.computes, naive_timeline(graph, schedule, memory=memory), strict=True):
        assert working[name] <= nbytes


# ------------------------------------------------------------------------------------------------ the network


def cheapest_choice(graph: Graph, instant: Instant, row: int, price: Fraction) -> Fraction:
    """Every set of ops to run again, tried: what it demands and does not make again is live and paid for, in units."""
    shared = instant.storages
    arrays, storage_rep = shared.arrays, shared.storage_rep
    before, after = np.empty((2, len(graph.ops)), dtype=np.bool_)
    flow.descendants(arrays, row, after)
    flow.ancestors(arrays, row, before)
    index = {name: v for v, name in enumerate(graph.tensors)}
    maker = [int(k) for k in arrays.producer]
    live_here = {int(storage_rep[index[v]]) for v in graph.ops[row].reads}
    asked = {index[v] for k, op in enumerate(graph.ops) if after[k] for v in op.reads} | {
        index[v] for v in graph.outputs
    }
    wanted = {int(storage_rep[v]) for v in asked if not after[maker[v]]} - live_here - {-1}
    candidates = [
        k for k, op in enumerate(graph.ops) if not op.resident and not after[k] and (op.recomputable or not before[k])
    ]
    best: Fraction | None = None
    for chosen in itertools.chain.from_iterable(
        itertools.combinations(candidates, k) for k in range(len(candidates) + 1)
    ):
        demanded = wanted | {int(storage_rep[index[v]]) for k in chosen for v in graph.ops[k].reads} - live_here - {-1}
        live = sum(int(shared.rep_bytes[h]) for h in demanded if maker[h] not in chosen)
        cost = sum(int(shared.step_cost[k]) for k in chosen if before[k])
        if best is None or cost + price * live < best:
            best = cost + price * live
    assert best is not None
    return best


@QUICK
@given(
    digraph=st.one_of(layered_digraphs(least=2, most=4), digraphs(most_forward=4)),
    price=st.sampled_from([Fraction(1, 4), Fraction(1, 64), Fraction(2), Fraction(1, 1024)]),
    data=st.data(),
)
def test_a_cut_is_the_cheapest_of_all_choices(digraph: nx.DiGraph, price: Fraction, data: st.DataObject) -> None:
    graph = lower(digraph)
    row = data.draw(st.sampled_from([k for k, op in enumerate(graph.ops) if not op.resident]))
    instant = first_run(storages(encode(graph, MemoryModel()).arrays), row)
    if sum(not op.resident for op in graph.ops[:row]) > 9:
        return
    scale = instant.storages.most  # prices about as large as costs are per byte
    for factor in (1, 16):
        asked = float(price * scale / factor / 8)
        cut = instant.cut(asked)
        paid = cut.value + Fraction(asked) * instant.fixed_bytes
        exact = cheapest_choice(graph, instant, row, Fraction(asked))
        slack = len(graph.tensors) + Fraction(asked) * 2000 / 2**48
        assert min(exact, scale) - slack <= paid <= exact  # no capacity is above one run of everything
        chosen = cut.rerun_cost + Fraction(asked) * cut.live_bytes
        assert exact - slack <= chosen
        assert chosen <= exact + slack or exact >= scale


# ------------------------------------------------------------------------------------------------ unrolled programs


@QUICK
@given(digraph=GRAPHS, data=st.data())
def test_an_unrolled_run_reads_the_newest_instances(digraph: nx.DiGraph, data: st.DataObject) -> None:
    graph = lower(digraph)
    arrays = encode(graph, MemoryModel()).arrays
    index = {op.name: k for k, op in enumerate(graph.ops)}
    runs = [k for k, op in enumerate(graph.ops) if op.resident] + [
        index[name] for name in data.draw(op_sequences(graph))
    ]
    values = sum(len(graph.ops[k].outputs) for k in runs)
    out_ptr, read_ptr = np.empty((2, len(runs) + 1), dtype=np.int64)
    read_value = np.empty(sum(len(graph.ops[k].reads) for k in runs), dtype=np.int64)
    origin, root = np.empty((2, values), np.int64)
    is_output = np.empty(values, np.bool_)
    unroll.unroll(arrays, np.array(runs), out_ptr, read_ptr, read_value, origin, root, is_output)
    instances: list[str] = []
    latest: dict[str, int] = {}
    on: list[int] = []
    for run, k in enumerate(runs):
        op = graph.ops[k]
        reads = [latest[v] for v in op.reads]
        assert read_value[read_ptr[run] : read_ptr[run + 1]].tolist() == reads
        shared = {o: on[reads[i]] for i, o, *_ in (*op.view, *op.updates)}
        on += [shared.get(o, len(instances) + o) for o in range(len(op.outputs))]
        latest |= {tensor.name: len(instances) + o for o, tensor in enumerate(op.outputs)}
        instances += [tensor.name for tensor in op.outputs]
    names = list(graph.tensors)
    assert [names[v] for v in origin] == instances
    assert root.tolist() == on
    assert is_output.tolist() == [graph.tensors[name].output and latest[name] == v for v, name in enumerate(instances)]


@QUICK
@given(digraph=GRAPHS, room=st.integers(0, 60), data=st.data())
def test_restoring_keeps_within_the_room_and_counts_what_is_live(
    digraph: nx.DiGraph, room: int, data: st.DataObject
) -> None:
    graph = lower(digraph)
    row = data.draw(st.sampled_from([k for k, op in enumerate(graph.ops) if not op.resident]))
    instant = first_run(storages(encode(graph, MemoryModel()).arrays), row)
    shared = instant.storages
    arrays, storage_rep = shared.arrays, shared.storage_rep
    live_here = np.zeros(len(storage_rep), dtype=np.bool_)
    live_here[[h for v in graph.ops[row].reads if (h := int(storage_rep[list(graph.tensors).index(v)])) >= 0]] = True
    before = instant.cut(float(shared.most)).rerun
    rerun = before.copy()
    order = np.array(data.draw(st.permutations(np.flatnonzero(before).tolist())), dtype=np.int64)
    live = unroll.restore(arrays, storage_rep, shared.rep_bytes, instant.needed, live_here, rerun, order, room)

    def counted(rerun: Any) -> int:
        index = {name: v for v, name in enumerate(graph.tensors)}
        read = {int(storage_rep[index[v]]) for k, op in enumerate(graph.ops) if rerun[k] for v in op.reads}
        asked = {h for h in read if h >= 0 and not live_here[h]} | set(np.flatnonzero(instant.needed).tolist())
        return sum(int(shared.rep_bytes[h]) for h in asked if not rerun[arrays.producer[h]])

    assert not (rerun & ~before).any()
    assert live == counted(rerun)
    assert live <= max(room, counted(before))
