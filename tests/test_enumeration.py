"""The enumeration of small graphs against the exhaustive oracle, and against the public cases."""

from __future__ import annotations

from typing import Any

import cases
import networkx as nx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from naive import keep_all, least_cost, least_peak, naive_peak
from strategies import memory_models, simple_digraphs

from planner import Graph, InfeasibleBudget, MemoryModel, Op, Tensor, lower, simulate
from planner.problem import Problem
from planner.search.enumeration import MOST_OPS, applies, enumeration, optimum

MANY = settings(max_examples=settings().max_examples * 4, suppress_health_check=list(HealthCheck))


@MANY
@given(digraph=simple_digraphs(most_ops=MOST_OPS), memory=memory_models(), percent=st.sampled_from([0, 20, 40, 60, 80]))
def test_it_finds_the_least_peak_and_the_least_cost_of_the_oracle(digraph: nx.DiGraph, memory: MemoryModel, percent: int) -> None:
    graph = lower(digraph)
    assert applies(graph)
    least = least_peak(graph, memory=memory)
    smallest = optimum(Problem(graph, None, memory))
    assert smallest is not None
    assert smallest.peak_bytes == least
    assert smallest.cost == (least_cost(graph, least, memory=memory) if least else smallest.cost)
    assert optimum(Problem(graph, least - 1, memory)) is None
    budget = least + (naive_peak(graph, keep_all(graph), memory.alignment, memory.scope) - least) * percent // 100
    found = optimum(Problem(graph, budget, memory))
    assert found is not None
    assert found.cost == least_cost(graph, budget, memory=memory)
    trace = simulate(graph, enumeration(Problem(graph, budget, memory)).schedule, memory=memory)
    assert trace.peak_bytes <= budget
    assert trace.cost == found.cost


@MANY
@given(digraph=simple_digraphs(most_ops=6), percent=st.sampled_from([0, 30, 60, 100]))
def test_a_pinned_order_is_kept_and_costs_no_less(digraph: nx.DiGraph, percent: int) -> None:
    graph = lower(digraph)
    least = least_peak(graph)
    budget = least + (naive_peak(graph, keep_all(graph)) - least) * percent // 100
    found = optimum(Problem(graph, budget, order="pinned"))
    free = optimum(Problem(graph, budget))
    assert free is not None
    if percent == 100:
        assert found is not None
    if found is not None:
        names = [graph.ops[row].name for row in found.sequence.tolist()]
        assert tuple(dict.fromkeys(names)) == keep_all(graph).computes
        assert found.cost >= free.cost


@pytest.mark.parametrize(("budget", "cost"), [(160, 31), (161, 26), (163, 25)])
def test_c3_costs_what_the_case_says(budget: int, cost: float) -> None:
    found = optimum(Problem(lower(cases.C3.digraph()), budget))
    assert found is not None
    assert found.cost == cost


def test_c3_below_the_bound_names_the_least_that_works() -> None:
    with pytest.raises(InfeasibleBudget) as caught:
        enumeration(Problem(lower(cases.C3.digraph()), 159))
    assert (caught.value.minimum, caught.value.proven, caught.value.binding_op) == (160, True, "gb")


def test_two_outputs_made_again_beside_one_that_is_kept() -> None:
    """`pair` makes 4 + 4; keeping its first output while the second waits for `c` costs 8 at once, making it twice never more."""
    graph = Graph([
        Op("pair", (Tensor("pair:0", 4), Tensor("pair:1", 4))),
        Op("a", (Tensor("a", 1),), reads=("pair:0",)),
        Op("b", (Tensor("b", 6),), reads=("a",)),
        Op("c", (Tensor("c", 1, output=True),), reads=("b", "pair:1")),
    ])  # fmt: skip
    once = optimum(Problem(graph, 11))
    assert once is not None
    assert (once.cost, once.peak_bytes) == (4.0, 11)  # a + b + pair:1 = 11
    assert optimum(Problem(graph, 10)) is None  # c alone needs b + pair:1 + c = 11


@pytest.mark.parametrize("attribute", ["inplace", "view", "updates"])
def test_it_does_not_apply_to_shared_storages_or_to_ten_ops(attribute: str) -> None:
    pair: dict[str, Any] = {"inplace": ((0, 0, False),), "view": ((0, 0, 0),), "updates": ((0, 0),)}
    ops = [Op("a", (Tensor("a", 4),)), Op("b", (Tensor("b", 4, output=True),), reads=("a",), **{attribute: pair[attribute]})]
    assert not applies(Graph(ops))
    assert applies(Graph([Op(f"v{k}", (Tensor(f"v{k}", 1),)) for k in range(9)]))
    assert not applies(Graph([Op(f"v{k}", (Tensor(f"v{k}", 1),)) for k in range(10)]))
