"""The enumeration of small graphs against the exhaustive oracle, and against the public cases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import cases
import networkx as nx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from naive import canonical_steps, keep_all, least_cost, least_peak, naive_peak
from programs import op, program, steps
from strategies import memory_models, simple_digraphs
from test_laws import layered_digraphs

from planner import Graph, GraphError, InfeasibleBudget, MemoryModel, Op, Tensor, lower, optimize, simulate
from planner.bounds import MOST_OPS, enumerated, enumeration
from planner.problem import Problem, Proposal


def bound(problem: Problem) -> float:
    answer = enumerated(problem)
    assert answer is not None
    return answer.bound


MANY = settings(max_examples=settings().max_examples * 4, suppress_health_check=list(HealthCheck))


@MANY
@given(digraph=simple_digraphs(most_ops=MOST_OPS), memory=memory_models(), percent=st.sampled_from([0, 20, 40, 60, 80]))
def test_it_finds_the_least_peak_and_the_least_cost_of_the_oracle(
    digraph: nx.DiGraph, memory: MemoryModel, percent: int
) -> None:
    graph = lower(digraph)
    least = least_peak(graph, memory=memory)
    assert bound(Problem(graph, None, memory)) == least
    smallest = enumeration(Problem(graph, None, memory))
    assert smallest is not None
    trace = simulate(graph, smallest.schedule, memory=memory)
    assert trace.peak_bytes == least
    assert not least or trace.cost == least_cost(graph, least, memory=memory)
    assert bound(Problem(graph, least - 1, memory)) == math.inf
    budget = least + (naive_peak(graph, keep_all(graph), memory.alignment, memory.scope) - least) * percent // 100
    cost = least_cost(graph, budget, memory=memory)
    assert bound(Problem(graph, budget, memory)) == cost
    found = enumeration(Problem(graph, budget, memory))
    assert found is not None
    trace = simulate(graph, found.schedule, memory=memory)
    assert (trace.peak_bytes <= budget, trace.cost) == (True, cost)


@MANY
@given(digraph=simple_digraphs(most_ops=6), percent=st.sampled_from([0, 30, 60, 100]))
def test_a_pinned_order_is_kept_and_costs_no_less(digraph: nx.DiGraph, percent: int) -> None:
    graph = lower(digraph)
    least = least_peak(graph)
    budget = least + (naive_peak(graph, keep_all(graph)) - least) * percent // 100
    pinned = Problem(graph, budget, order="pinned")
    assert bound(pinned) >= bound(Problem(graph, budget))
    if percent == 100:
        assert bound(pinned) < math.inf
    if bound(pinned) < math.inf:
        found = enumeration(pinned)
        assert found is not None
        assert tuple(dict.fromkeys(found.schedule.computes)) == keep_all(graph).computes


@pytest.mark.parametrize(("budget", "cost"), [(160, 31), (161, 26), (163, 25)])
def test_c3_costs_what_the_case_says(budget: int, cost: float) -> None:
    assert bound(Problem(lower(cases.C3.digraph()), budget)) == cost


def test_c3_below_the_bound_names_the_least_that_works() -> None:
    with pytest.raises(InfeasibleBudget) as caught:
        enumeration(Problem(lower(cases.C3.digraph()), 159))
    assert (caught.value.minimum, caught.value.proven, caught.value.binding_op) == (160, True, "gb")


def test_two_outputs_made_again_beside_one_that_is_kept() -> None:
    """`pair` makes 4 + 4; keeping its first output while the second waits costs 8; making it twice never more."""
    graph = program(
        Op("pair", (Tensor("pair:0", 4), Tensor("pair:1", 4))),
        Op("a", (Tensor("a", 1),), reads=("pair:0",)),
        Op("b", (Tensor("b", 6),), reads=("a",)),
        Op("c", (Tensor("c", 1, output=True),), reads=("b", "pair:1")),
    )
    assert bound(Problem(graph, 11)) == 4.0  # a + b + pair:1 = 11
    assert bound(Problem(graph, 10)) == math.inf  # c alone needs b + pair:1 + c = 11


def chains(count: int, length: int, sizes: Sequence[int]) -> Graph:
    """Chains beside each other, the last value of each an output."""
    size = iter(sizes)
    places = [(c, k) for c in range(count) for k in range(length)]
    return Graph(
        [op(f"{c}.{k}", *([f"{c}.{k - 1}"] if k else []), nbytes=next(size), output=k == length - 1) for c, k in places]
    )


@pytest.mark.parametrize(
    "sizes", [(5, 7, 3, 8, 2, 4, 6, 9, 1), (8, 7, 3, 8, 7, 3, 8, 7, 3), (4, 9, 5, 3, 9, 4, 2, 8, 6)]
)
def test_three_chains_beside_each_other_are_solved(sizes: tuple[int, ...]) -> None:
    graph = chains(3, 3, sizes)
    least, high = least_peak(graph), naive_peak(graph, keep_all(graph))
    assert bound(Problem(graph, None)) == least
    for budget in sorted({least - 1, least, (least + high) // 2, high}):
        cost = least_cost(graph, budget)
        assert bound(Problem(graph, budget)) == (math.inf if cost is None else cost)


@st.composite
def sparse_graphs(draw: Any) -> Graph:
    """Seven to nine ops of one or two outputs that read little, in pieces or not; some are free or run at most once."""
    sizes = draw(st.sampled_from([(1,), (1, 2), (3, 5, 8), (4, 1, 8, 3, 16, 0)]))
    kinds = draw(
        st.sampled_from([("plain",), ("plain", "plain", "two"), ("plain", "view", "inplace", "update", "two")])
    )
    ops = [op("x", nbytes=4, kind="input")]
    alive, bytes_of = ["x"], {"x": 4}
    for k in range(draw(st.integers(7, 9))):
        reads = draw(st.lists(st.sampled_from(alive), max_size=2, unique=True))
        kind = draw(st.sampled_from(kinds)) if reads else "plain"
        nbytes = bytes_of[reads[0]] if kind in ("view", "inplace", "update") else draw(st.sampled_from(sizes))
        rules = {
            "view": {"view": ((0, 0, 0),)},
            "inplace": {"inplace": ((0, 0, False),)},
            "update": {"updates": ((0, 0),)},
        }
        made = op(
            f"v{k}",
            *reads,
            nbytes=(nbytes, draw(st.sampled_from(sizes))) if kind == "two" else nbytes,
            output=draw(st.integers(0, 3)) == 0,
            cost=draw(st.sampled_from([1.0, 2.0, 0.0])),
            recomputable=draw(st.integers(0, 7)) > 0,
            **rules.get(kind, {}),
        )
        try:
            Graph([*ops, made])
        except GraphError:  # a second update of one version, or of what is an output
            made = op(f"v{k}", nbytes=nbytes)
        ops.append(made)
        overwritten = {reads[0]} if made.updates else set()
        alive = [name for name in alive if name not in overwritten] + [tensor.name for tensor in made.outputs]
        bytes_of |= {tensor.name: tensor.nbytes for tensor in made.outputs}
    return Graph(ops)


SMALL = st.one_of(
    sparse_graphs(), layered_digraphs(least=2, most=4).map(lower), simple_digraphs(most_ops=MOST_OPS).map(lower)
)


@given(graph=SMALL, percent=st.sampled_from([None, -1, 0, 10, 30, 60, 90]), pinned=st.booleans())
def test_every_graph_of_nine_ops_is_solved(graph: Graph, percent: int | None, pinned: bool) -> None:
    """Whatever it looks like: `enumerated` says None where it gave up."""
    order = "pinned" if pinned else "free"
    least = bound(Problem(graph, None, order=order))
    high = naive_peak(graph, keep_all(graph))
    assert least <= high
    if percent is not None:
        budget = int(least) - 1 if percent < 0 else int(least) + (high - int(least)) * percent // 100
        assert (bound(Problem(graph, budget, order=order)) == math.inf) == (percent < 0)


def test_ten_ops_are_too_many() -> None:
    nine = [Op(f"v{k}", (Tensor(f"v{k}", 1),)) for k in range(9)]
    assert enumerated(Problem(Graph(nine), None)) is not None
    assert enumerated(Problem(Graph([*nine, Op("v9", (Tensor("v9", 1),))]), None)) is None


@given(digraph=simple_digraphs(most_ops=MOST_OPS), memory=memory_models(), budget=st.sampled_from([None, "60%"]))
def test_a_plan_frees_each_value_after_its_last_read(
    digraph: nx.DiGraph, memory: MemoryModel, budget: str | None
) -> None:
    graph = lower(digraph)
    if not naive_peak(graph, keep_all(graph), memory.alignment, memory.scope):
        return
    try:
        plan = optimize(graph, budget, memory=memory)
    except InfeasibleBudget:
        return
    assert plan.schedule == canonical_steps(graph, plan.schedule.computes)


def test_other_frees_stay_where_canonical_frees_take_more() -> None:
    # c may lie on a while both live, but not if it is freed at once: a, c and -c take 4 + 4, a, c, d and -c take 4 + 1.
    graph = program(op("a"), op("c", "a", inplace=((0, 0, True),)), op("d", "a", nbytes=1, output=True))
    assert simulate(graph, canonical_steps(graph, ["a", "c", "d"])).peak_bytes == 8
    for strategy in ("auto", lambda _: Proposal(steps("a c d -a -c"))):
        assert optimize(graph, strategy=strategy).report.plan.peak_bytes == 5
