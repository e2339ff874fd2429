"""Every schedule of a small graph: against the oracle of `cases.md` and, with aliasing, every state of `naive`."""

from __future__ import annotations

import math

import cases
import networkx as nx
from exhaustive import cheapest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from naive import history, keep_all, least_cost, least_peak, naive_cost, naive_peak
from programs import op, program, steps
from strategies import memory_models
from test_certificate import LEAST_COSTS
from test_laws import GRAPHS, ORACLE_GRAPHS, PERCENT, WALKED_GRAPHS, budget_of

from planner import Graph, MemoryModel, Op, Tensor, lower, simulate
from planner.bounds.astar import Answer, cheapest_schedule, least_peak_schedule
from planner.bounds.certificate import certified_cost
from planner.bounds.states import compile_program

SOME = settings(suppress_health_check=list(HealthCheck))
MANY = settings(max_examples=settings().max_examples * 2, suppress_health_check=list(HealthCheck))
BYTES = MemoryModel()
LEAST_PEAKS = {
    "C1": 3, "C2": 224, "C3": 160, "C5": 39_829_110_788, "C7": 38, "C7-b-first": 38, "C7-dead": 24, "C9": 25,
    "C9-replayed": 24,
}  # fmt: skip


def kept_peak(graph: Graph, memory: MemoryModel = BYTES) -> int:
    return naive_peak(graph, keep_all(graph), memory.alignment, memory.scope)


def check(answer: Answer, graph: Graph, memory: MemoryModel, budget: int, cost: float | None) -> None:
    """The answer is the optimum that another search found; None: nothing fits."""
    assert answer.proven
    assert (answer.schedule is None) == (cost is None)
    assert answer.bound == (math.inf if cost is None else cost)
    if answer.schedule is not None:
        trace = simulate(graph, answer.schedule, memory=memory)
        assert trace.cost == cost
        assert trace.peak_bytes <= budget


@MANY
@given(digraph=ORACLE_GRAPHS, memory=memory_models(), percent=PERCENT)
def test_the_least_cost_and_the_least_peak_are_those_of_the_oracle(
    digraph: nx.DiGraph, memory: MemoryModel, percent: int
) -> None:
    graph = lower(digraph)
    budget = budget_of(graph, memory, percent)
    cost = least_cost(graph, budget, memory=memory)
    check(cheapest_schedule(graph, memory, budget), graph, memory, budget, cost)
    lowest = least_peak_schedule(graph, memory, most_bytes=kept_peak(graph, memory))
    assert lowest.proven
    assert lowest.bound == least_peak(graph, memory=memory)
    if lowest.schedule is not None:
        trace = simulate(graph, lowest.schedule, memory=memory)
        assert trace.peak_bytes == lowest.bound
        assert trace.cost == least_cost(graph, trace.peak_bytes, memory=memory)


@SOME
@given(digraph=WALKED_GRAPHS, memory=memory_models(), percent=PERCENT)
def test_the_least_cost_is_that_of_the_machine_walked_in_full(
    digraph: nx.DiGraph, memory: MemoryModel, percent: int
) -> None:
    graph = lower(digraph)
    if sum(not op.resident for op in graph.ops) > 8:
        return
    budget = budget_of(graph, memory, percent)
    answer = cheapest_schedule(graph, memory, budget)
    try:
        cost = cheapest(graph, budget, memory=memory, most_states=600)
    except OverflowError:
        event("too many states")
        return
    event("aliased" if not compile_program(graph, memory, pinned=False).plain else "plain")
    if answer.proven:
        check(answer, graph, memory, budget, cost)
    else:
        assert cost is None or answer.bound <= cost


@MANY
@given(digraph=GRAPHS, memory=memory_models(), percent=PERCENT, pinned=st.booleans())
def test_what_is_found_is_legal_fits_and_costs_what_it_says(
    digraph: nx.DiGraph, memory: MemoryModel, percent: int, pinned: bool
) -> None:
    graph = lower(digraph)
    budget = budget_of(graph, memory, percent)
    answer = cheapest_schedule(graph, memory, budget, pinned=pinned, most_states=1500)
    assert answer.bound >= certified_cost(graph, memory, budget).cost or not answer.proven
    if answer.schedule is not None:
        history(graph, answer.schedule)
        assert naive_peak(graph, answer.schedule, memory.alignment, memory.scope) <= budget
        assert naive_cost(graph, answer.schedule) == answer.bound
        if pinned:
            assert list(dict.fromkeys(answer.schedule.computes)) == list(keep_all(graph).computes)
    lowest = least_peak_schedule(graph, memory, most_bytes=kept_peak(graph, memory), pinned=pinned, most_states=1500)
    assert lowest.bound <= kept_peak(graph, memory)
    if lowest.schedule is not None and lowest.proven:
        assert naive_peak(graph, lowest.schedule, memory.alignment, memory.scope) == lowest.bound


def test_public_cases_are_solved() -> None:
    for name, budget in [(name, budget) for name, costs in LEAST_COSTS.items() for budget in costs]:
        graph = lower(cases.CASES[name].digraph())
        check(cheapest_schedule(graph, MemoryModel(), budget), graph, MemoryModel(), budget, LEAST_COSTS[name][budget])


def test_the_least_peaks_of_the_public_cases_are_found() -> None:
    for name in LEAST_PEAKS:
        graph = lower(cases.CASES[name].digraph())
        least = LEAST_PEAKS[name]
        answer = least_peak_schedule(graph, MemoryModel(), most_bytes=kept_peak(graph))
        assert answer.proven
        assert answer.bound == least


def test_below_the_least_peak_nothing_fits_and_that_is_certain() -> None:
    for name in ["C3", "C5", "C7", "C9", "C9-replayed"]:
        graph = lower(cases.CASES[name].digraph())
        assert cheapest_schedule(graph, MemoryModel(), LEAST_PEAKS[name] - 1)[:3] == (None, math.inf, True)


def test_what_is_known_is_only_to_be_beaten() -> None:
    graph = lower(cases.C1.digraph())
    assert cheapest_schedule(graph, MemoryModel(), 4, known_cost=24.0)[:3] == (None, 24.0, True)
    better = cheapest_schedule(graph, MemoryModel(), 4, known_cost=25.0)
    assert better.schedule is not None
    assert better.bound == 24.0
    certificate = certified_cost(graph, MemoryModel(), 4).cost
    assert cheapest_schedule(graph, MemoryModel(), 4, at_least=certificate)[1:3] == (24.0, True)


def test_a_search_that_gives_up_leaves_a_bound() -> None:
    graph = lower(cases.C2.digraph())
    answer = cheapest_schedule(graph, MemoryModel(), 224, most_states=100)
    assert not answer.proven
    assert answer.schedule is None
    assert 108 <= answer.bound <= 136
    stopped = cheapest_schedule(graph, MemoryModel(), 224, stop=lambda: True)
    assert (stopped.proven, stopped.states) == (False, 0)


def test_plans_that_differ_by_less_than_rounding_are_told_apart() -> None:
    """Summed as floats the two plans would cost the same."""
    for other, dropped in ((math.nextafter(0.1, 1), "a"), (math.nextafter(0.1, 0), "b")):
        ops = [op("a", nbytes=4), op("b", nbytes=4), op("c", nbytes=6), op("d", "c", nbytes=1)]
        ops += [op("e", "d", "a", nbytes=1), op("f", "e", "b", nbytes=1, output=True)]
        costs = {"a": 0.1, "b": other}
        priced = Graph(
            [
                Op(o.name, o.outputs, o.reads, cost=costs.get(o.name, 1.0), after={"c": ("a", "b")}.get(o.name, ()))
                for o in ops
            ]
        )
        answer = cheapest_schedule(priced, MemoryModel(), 11)
        assert answer.schedule is not None
        assert 4.0 + 0.1 + other + 0.1 == 4.0 + 0.1 + other + other
        assert list(simulate(priced, answer.schedule).recomputed) == [dropped]


def test_a_view_that_pins_the_old_storage_and_a_kept_sibling_are_weighed() -> None:
    """Canonical frees are not the best here: a is made anew beside its view, or kept as b is made again with a copy."""
    two = Op("two", (Tensor("two:0", 4), Tensor("two:1", 8)))
    view = Op("view", (Tensor("view", 4),), reads=("two:0",), view=((0, 0, 0),))
    wide = Op("wide", (Tensor("wide", 8),), reads=("view",))
    small = Op("small", (Tensor("small", 1),), reads=("wide",))
    last = Op("last", (Tensor("last", 1, output=True),), reads=("two:0", "two:1", "view", "small"))
    graph = Graph([two, view, wide, small, last])
    for budget in range(12, 30):
        answer = cheapest_schedule(graph, MemoryModel(), budget)
        check(answer, graph, MemoryModel(), budget, cheapest(graph, budget, memory=MemoryModel()))


def test_an_output_freed_so_that_it_can_be_made_in_place_saves_its_bytes_twice() -> None:
    """Freeing `two:1` before `two` runs again saves the copy, and lets `two` put it on the storage of `a`."""
    two = (Tensor("two:0", 71, True), Tensor("two:1", 33, True), Tensor("two:2", 12))
    graph = program(
        op("a", nbytes=33),
        op("b", "a", nbytes=33, recomputable=False),
        op("v", "a", "b", nbytes=33, view=((0, 0, 0),), workspace=12),
        op("c", "b", "v", nbytes=71, output=True, workspace=12),
        Op("two", two, ("v",), inplace=((0, 1, False),)),
        op("d", "b", "two:2", "two:1", nbytes=100, output=True, recomputable=False),
    )
    shown = steps("a b v two -a -v d -two:2 a v -two:1 -two:0 c -b two -a -v -two:2")
    peak_bytes = simulate(graph, shown).peak_bytes
    assert peak_bytes < simulate(graph, keep_all(graph)).peak_bytes
    answer = least_peak_schedule(graph, BYTES, most_bytes=kept_peak(graph))
    assert answer.proven
    assert answer.bound <= peak_bytes
