"""The laws of design section 5, over every registered strategy and allocator, on random training graphs.

The judge decides what is legal and what a plan takes; the exhaustive oracle of `naive` decides what is possible.
"""

from __future__ import annotations

import json
from typing import Any

import networkx as nx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from naive import keep_all, least_cost, least_peak, naive_peak
from strategies import digraphs, simple_digraphs

from planner import Graph, InfeasibleBudget, MemoryModel, Plan, lower, optimize, simulate
from planner.bounds.peak import peak_lower_bound
from planner.packing import allocator_names
from planner.search import strategy_names

STRATEGIES = strategy_names()
ALLOCATORS = [*allocator_names(), None]
#: An allocator sees of a strategy only the plan that it found, so each is tried with one of the others, not with all.
PAIRS = [*((name, "auto") for name in STRATEGIES), *(("chen-budget", name) for name in ALLOCATORS if name != "auto")]
FOR_EVERY_PAIR = settings(max_examples=settings().max_examples // 2, suppress_health_check=list(HealthCheck))
ON_SMALL_GRAPHS = settings(max_examples=settings().max_examples // 4, suppress_health_check=list(HealthCheck))

MEMORY = st.builds(
    MemoryModel,
    scope=st.sampled_from(["total", "activations"]),
    alignment=st.sampled_from([1, 4, 7]),
    reserve=st.sampled_from([0, 0, 5]),
)
#: Where a budget lies, in percent of the way from what no plan can go below to the peak of keep-all.
PERCENT = st.sampled_from([25, 50, 75, 90, 60, 40, 10, 0, 100, 110, -20, -1000])


@st.composite
def layered_digraphs(draw: Any, *, least: int = 4, most: int = 8, aliasing: bool = True) -> nx.DiGraph:
    """A net of layers whose backward reads what most layers save, so that recomputing pays as in real nets.

    Each layer reads the one below and at times an earlier one; some are views, work in place, have two outputs, run at
    most once, or update a running statistic in the forward pass.
    """
    graph = nx.DiGraph()
    graph.add_node("x", nbytes=draw(st.sampled_from([0, 3])), kind="input")
    graph.add_node("statistic", nbytes=4, kind="state")
    statistic: tuple[str, tuple[int, ...]] = ("statistic", (0,))
    kinds = ["plain"] * 6 + (["view", "inplace", "two outputs", "once", "updating"] if aliasing else [])
    layers = ["x"]
    for k in range(draw(st.integers(least, most))):
        name, below, kind = f"f{k}", layers[-1], draw(st.sampled_from(kinds))
        made = graph.nodes[below]["nbytes"]
        under = made if isinstance(made, int) else made[0]
        nbytes = draw(st.sampled_from([8, 4, 8, 12, 1])) if kind != "inplace" else under
        cost, workspace = draw(st.sampled_from([1.0, 2.0, 0.5])), draw(st.sampled_from([0, 0, 0, 3]))
        graph.add_node(name, nbytes=nbytes, cost=cost, workspace=workspace, phase="forward")
        graph.add_edge(below, name, reads=(0,), at=(0,))
        if kind == "view":
            graph.nodes[name]["view"] = ((0, 0),)
        elif kind == "inplace":
            graph.nodes[name]["inplace"] = ((0, 0),)
        elif kind == "two outputs":
            graph.nodes[name]["nbytes"] = (nbytes, 4)
        elif kind == "once":
            graph.nodes[name]["recomputable"] = False
        elif kind == "updating":
            graph.nodes[name].update(nbytes=(nbytes, 4), updates=((1, 1),))
            source, reads = statistic
            graph.add_edge(
                source, name, **({"reads": (0, 1), "at": (0, 1)} if source == below else {"reads": reads, "at": (1,)})
            )
            statistic = (name, (1,))
        skip = draw(st.sampled_from([None, None, None, *layers[1:-1]]))
        if skip is not None and kind in ("plain", "once"):
            graph.add_edge(skip, name, reads=(0,), at=(1,))
        layers.append(name)
    graph.add_node("loss", nbytes=1, phase="loss")
    graph.add_edge(layers[-1], "loss", reads=(0,))
    gradient = "loss"
    for k in range(len(layers) - 1, 0, -1):
        name = f"b{k - 1}"
        graph.add_node(
            name, nbytes=draw(st.sampled_from([4, 8, 1])), cost=draw(st.sampled_from([1.0, 2.0])), phase="backward"
        )
        graph.add_edge(gradient, name, reads=(0,))
        for read in draw(st.sampled_from([(k - 1, k), (k - 1,), (k,), ()])):
            graph.add_edge(layers[read], name, reads=(0,))
        gradient = name
    return graph


GRAPHS = st.one_of(layered_digraphs(), digraphs())
SMALL_GRAPHS = st.one_of(layered_digraphs(least=3, most=4, aliasing=False), simple_digraphs(most_ops=7))
#: Small enough for the oracle of `naive`; with aliasing, for every state of `exhaustive.cheapest`.
ORACLE_GRAPHS = st.one_of(layered_digraphs(least=3, most=4, aliasing=False), simple_digraphs(most_ops=9))
WALKED_GRAPHS = st.one_of(layered_digraphs(least=2, most=3), digraphs(most_forward=2), digraphs(most_forward=3))


def outcome(graph: Any, budget: int | None, **options: Any) -> Plan | InfeasibleBudget:
    """What a user gets: a plan, or the typed error."""
    try:
        return optimize(graph, budget, **options)
    except InfeasibleBudget as error:
        return error


def keep_all_peak(graph: Graph, memory: MemoryModel) -> int:
    return naive_peak(graph, keep_all(graph), memory.alignment, memory.scope)


def budget_of(graph: Graph, memory: MemoryModel, percent: int) -> int:
    low, high = peak_lower_bound(graph, memory).nbytes, keep_all_peak(graph, memory)
    return max(1, low + (high - low or low) * percent // 100 + (memory.reserve or 0))


def check_plan(plan: Plan, budget: int | None, allocator: str | None) -> None:
    """Everything a plan promises, by the judge."""
    trace = simulate(plan.graph, plan.schedule, memory=plan.memory, allocation=plan.allocation)
    assert (plan.allocation is None) == (allocator is None)
    arena = trace.peak_bytes if allocator is None else trace.arena_bytes
    assert arena is not None
    assert arena >= trace.peak_bytes
    assert budget is None or arena + plan.memory.reserve <= budget
    base = keep_all_peak(plan.graph, plan.memory)
    report = plan.report
    assert arena <= report.keep_all.arena_bytes  # its peak may be higher, where packing wastes less of it
    assert allocator is not None or trace.peak_bytes <= base
    assert (report.plan.peak_bytes, report.plan.arena_bytes, report.plan.cost) == (trace.peak_bytes, arena, trace.cost)
    assert report.keep_all.peak_bytes == base
    assert report.keep_all.cost == simulate(plan.graph, keep_all(plan.graph)).cost
    assert report.peak_lower_bound <= trace.peak_bytes
    assert report.cost_lower_bound <= trace.cost
    assert set(plan.verify().recomputed) == set(trace.recomputed)


@pytest.mark.parametrize(("strategy", "allocator"), PAIRS)
@FOR_EVERY_PAIR
@given(digraph=GRAPHS, memory=MEMORY, percent=PERCENT)
def test_a_plan_is_legal_and_fits_or_the_error_names_a_minimum_that_works(
    strategy: str, allocator: str | None, digraph: nx.DiGraph, memory: MemoryModel, percent: int
) -> None:
    graph = lower(digraph)
    budget = budget_of(graph, memory, percent)
    options: dict[str, Any] = {"strategy": strategy, "allocator": allocator, "memory": memory}
    found = outcome(digraph, budget, **options)
    if isinstance(found, Plan):
        check_plan(found, budget, allocator)
        return
    assert found.budget == budget
    assert found.minimum is not None
    assert found.minimum > budget
    assert found.peak_lower_bound <= found.minimum
    assert found.proven or budget >= found.peak_lower_bound  # minimum cuts and the enumeration prove more
    assert found.binding_op is None or found.binding_op in graph.op_named
    assert set(found.live) <= set(graph.tensors)
    check_plan(optimize(digraph, found.minimum, **options), found.minimum, allocator)
    assert found.peak_lower_bound <= keep_all_peak(graph, memory) + (memory.reserve or 0)


@pytest.mark.parametrize(("strategy", "allocator"), PAIRS)
@FOR_EVERY_PAIR
@given(digraph=GRAPHS, memory=MEMORY, spare=st.sampled_from([0, 0, 1, 100]))
def test_without_a_budget_the_plan_is_legal_and_no_larger_than_keep_all_and_is_that_where_its_arena_fits(
    strategy: str, allocator: str | None, digraph: nx.DiGraph, memory: MemoryModel, spare: int
) -> None:
    options: dict[str, Any] = {"strategy": strategy, "allocator": allocator, "memory": memory}
    least = optimize(digraph, **options)
    check_plan(least, None, allocator)
    assert least.budget is None
    assert least.report.plan.arena_bytes <= least.report.keep_all.arena_bytes
    budget = max(1, least.report.keep_all.arena_bytes + (memory.reserve or 0) + spare)
    plan = optimize(digraph, budget, **options)
    check_plan(plan, budget, allocator)
    assert plan.schedule.computes == keep_all(plan.graph).computes
    assert plan.report.plan == plan.report.keep_all
    assert plan.report.optimal


@pytest.mark.parametrize("strategy", STRATEGIES)
@ON_SMALL_GRAPHS
@given(digraph=GRAPHS, memory=MEMORY, percent=PERCENT, seed=st.integers(0, 3), allocator=st.sampled_from(ALLOCATORS))
def test_the_same_input_and_seed_give_the_same_plan(
    strategy: str, digraph: nx.DiGraph, memory: MemoryModel, percent: int, seed: int, allocator: str | None
) -> None:
    budget = budget_of(lower(digraph), memory, percent)
    options: dict[str, Any] = {"strategy": strategy, "allocator": allocator, "memory": memory, "seed": seed}
    through_json = nx.node_link_graph(json.loads(json.dumps(nx.node_link_data(digraph, edges="edges"))), edges="edges")
    plans = [outcome(graph, budget, **options) for graph in (digraph, digraph.copy(), through_json, lower(digraph))]
    if isinstance(plans[0], InfeasibleBudget):
        assert all(isinstance(plan, InfeasibleBudget) for plan in plans)
        assert {(str(plan), plan.minimum) for plan in plans if isinstance(plan, InfeasibleBudget)} == {
            (str(plans[0]), plans[0].minimum)
        }
    else:
        assert all(plan == plans[0] for plan in plans)


@pytest.mark.parametrize("strategy", STRATEGIES)
@ON_SMALL_GRAPHS
@given(digraph=GRAPHS, percent=PERCENT, allocator=st.sampled_from(ALLOCATORS), reserve=st.integers(1, 50))
def test_a_reserve_is_the_same_as_a_budget_smaller_by_it(
    strategy: str, digraph: nx.DiGraph, percent: int, allocator: str | None, reserve: int
) -> None:
    budget = budget_of(lower(digraph), MemoryModel(), percent)
    without = outcome(digraph, budget, strategy=strategy, allocator=allocator)
    held = outcome(
        digraph, budget + reserve, strategy=strategy, allocator=allocator, memory=MemoryModel(reserve=reserve)
    )
    if isinstance(without, Plan):
        assert isinstance(held, Plan)
        assert held.schedule == without.schedule
    else:
        assert isinstance(held, InfeasibleBudget)
        assert without.minimum is not None
        assert (held.minimum, held.peak_lower_bound) == (without.minimum + reserve, without.peak_lower_bound + reserve)
        assert (held.proven, held.binding_op, held.live) == (without.proven, without.binding_op, without.live)


@pytest.mark.parametrize("strategy", STRATEGIES)
@ON_SMALL_GRAPHS
@given(digraph=GRAPHS, percent=PERCENT, memory=MEMORY)
def test_pinned_order_runs_ops_first_in_program_order(
    strategy: str, digraph: nx.DiGraph, percent: int, memory: MemoryModel
) -> None:
    graph = lower(digraph)
    found = outcome(digraph, budget_of(graph, memory, percent), strategy=strategy, memory=memory, order="pinned")
    if isinstance(found, Plan):
        assert tuple(dict.fromkeys(found.schedule.computes)) == keep_all(graph).computes


@pytest.mark.parametrize("strategy", STRATEGIES)
@ON_SMALL_GRAPHS
@given(digraph=SMALL_GRAPHS, memory=MEMORY, percent=PERCENT)
def test_no_plan_beats_the_exhaustive_search_and_claims_of_optimality_are_true(
    strategy: str, digraph: nx.DiGraph, memory: MemoryModel, percent: int
) -> None:
    graph = lower(digraph)
    least = least_peak(graph, memory=memory)
    budget = budget_of(graph, memory, percent)
    smallest = optimize(digraph, strategy=strategy, allocator=None, memory=memory)
    assert smallest.report.peak_lower_bound <= least <= smallest.report.plan.peak_bytes
    if smallest.report.optimal and smallest.report.optimal.startswith("peak"):
        assert smallest.report.plan.peak_bytes == least
    found = outcome(digraph, budget, strategy=strategy, allocator=None, memory=memory)
    cheapest = least_cost(graph, budget, memory=memory)
    if isinstance(found, InfeasibleBudget):
        assert found.peak_lower_bound <= least + (memory.reserve or 0) <= (found.minimum or 0)
        assert not (found.proven and cheapest is not None)
        return
    assert cheapest is not None, "a plan fits where the search says that none does"
    assert found.report.cost_lower_bound <= cheapest <= found.report.plan.cost
    if found.report.optimal and found.report.optimal.startswith("cost"):
        assert found.report.plan.cost == cheapest
    packed = outcome(digraph, budget, strategy=strategy, memory=memory)
    if isinstance(packed, Plan):
        assert cheapest <= packed.report.plan.cost
