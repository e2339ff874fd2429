"""Equal steps and slots: the published counts, the schedules that reach them, and what they take on graphs."""

from __future__ import annotations

import math
from functools import cache

import cases
import networkx as nx
import numpy as np
import pytest

from planner import Graph, InfeasibleBudget, MemoryModel, Problem, Schedule, lower, optimize, simulate, zoo
from planner.kernels.chain_dp import binomial_table
from planner.search.binomial import binomial, forwards, longest

#: original.md 5: n, s -> t, extra forwards, all forwards, all forwards of the mixed kind (checkpoint-schedules 1.0.4).
PUBLISHED = {
    (2, 1): (1, 1, 3, 2), (4, 2): (2, 4, 8, 6), (5, 2): (2, 6, 11, 8), (10, 1): (9, 45, 55, 54), (10, 2): (3, 20, 30,
        26),
    (10, 3): (2, 15, 25, 19), (10, 4): (2, 14, 24, 17), (10, 9): (1, 9, 19, 10), (20, 3): (3, 45, 65, 55), (20, 4): (3,
        39, 59, 46),
    (30, 5): (3, 62, 92, 70), (56, 3): (5, 210, 266, 245), (56, 5): (3, 140, 196, 161), (100, 5): (4, 316, 416, 352),
    (100, 10): (3, 222, 322, 237), (1000, 50): (2, 1948, 2948, 1974),
}  # fmt: skip
BETA = {
    1: [2, 3, 4, 5, 6, 7], 2: [3, 6, 10, 15, 21, 28], 3: [4, 10, 20, 35, 56, 84], 4: [5, 15, 35, 70, 126, 210],
    5: [6, 21, 56, 126, 252, 462],
}  # fmt: skip


@cache
def extra(n: int, s: int) -> float:
    """Griewank and Walther 2000: p(1, s) = 0, p(n, 1) = n (n - 1) / 2, p(n, s) = min i + p(i, s) + p(n - i, s - 1)."""
    if n == 1:
        return 0
    if s == 1:
        return n * (n - 1) / 2
    return min(i + extra(i, s) + extra(n - i, s - 1) for i in range(1, n))


@cache
def mixed_forwards(n: int, s: int) -> float:
    """One slot holds a state, from which any number of steps are advanced, or the tape of one step."""
    if n == 1:
        return 1
    if s == 0:
        return math.inf
    state = min(i + mixed_forwards(i, s) + mixed_forwards(n - i, s - 1) for i in range(1, n))
    return min(state, 1 + mixed_forwards(n - 1, s - 1))


def taped(n: int, *, tape: int, state: int = 1) -> Graph:
    """A chain whose step i makes a state and a tape, and whose backward reads the tape: the chain of the theory."""
    graph = nx.DiGraph()
    graph.add_node("x", nbytes=0, kind="input")
    below = ("x", (0,))
    for i in range(1, n + 1):
        graph.add_node(f"f{i}", nbytes=(state, tape), phase="forward")
        graph.add_edge(below[0], f"f{i}", reads=below[1])
        below = (f"f{i}", (0,))
    above = below
    for i in range(n, 0, -1):
        graph.add_node(f"b{i}", nbytes=1, phase="backward")
        graph.add_edge(above[0], f"b{i}", reads=(0, 1) if above[0] == f"f{i}" else (0,))
        if above[0] != f"f{i}":
            graph.add_edge(f"f{i}", f"b{i}", reads=(1,))
        above = (f"b{i}", (0,))
    return lower(graph)


def count(schedule: Schedule) -> int:
    return sum(op.startswith("f") for op in schedule.computes)


def test_forwards_are_the_published_ones() -> None:
    for case in PUBLISHED:
        n, s = case
        t, more, all_forwards, mixed = PUBLISHED[case]
        assert longest(s, t) >= n > longest(s, t - 1)
        assert forwards(n, s) == n + more == all_forwards
        assert forwards(n, s, mixed=True) == mixed


def test_a_thousand_steps_with_tapes_in_the_slots() -> None:
    for slots, expected in [(50, 1974), (44, 1992), (20, 2823), (10, 3921)]:
        assert forwards(1000, slots, mixed=True) == expected


def test_beta_is_the_published_table() -> None:
    assert {s: [longest(s, t) for t in range(1, 7)] for s in BETA} == BETA


def test_the_closed_form_and_the_table_are_the_recurrences() -> None:
    for mixed, twin in ((False, extra), (True, mixed_forwards)):
        table = np.empty((41, 12), dtype=np.int64), np.empty((41, 12), dtype=np.int64)
        binomial_table(*table, mixed)
        for n in range(1, 41):
            for s in range(1, 12):
                assert table[0][n, s] == twin(n, s)
                assert forwards(n, min(s, n), mixed=mixed) == twin(n, s) + (0 if mixed else n)


def test_the_table_goes_as_far_as_the_closed_form() -> None:
    table = np.empty((1001, 61), dtype=np.int64), np.empty((1001, 61), dtype=np.int64)
    binomial_table(*table, False)
    assert all(table[0][n, s] + n == forwards(n, s) for n in range(2, 1001, 7) for s in range(1, min(n, 61)))


def test_the_first_advance_over_ten_steps_is_revolves() -> None:
    table = np.empty((11, 4), dtype=np.int64), np.empty((11, 4), dtype=np.int64)
    binomial_table(*table, False)
    assert table[1][10].tolist()[1:] == [9, 6, 4]


def test_schedules_run_as_many_forwards_with_as_many_states() -> None:
    for case in [case for case in PUBLISHED if case[0] <= 100]:
        n, s = case
        graph = taped(n, tape=1000)
        schedule = binomial(Problem(graph, None), slots=s, mixed=False).schedule
        assert count(schedule) == PUBLISHED[case][2]
        # One tape; the initial state is resident, so s - 1 are stored; the state made beside the tape; two gradients.
        assert simulate(graph, schedule).peak_bytes <= 1000 + (s - 1) + 1 + 2


def test_mixed_schedules_run_as_many_forwards_with_as_many_states_and_tapes() -> None:
    for case in [case for case in PUBLISHED if case[0] <= 100]:
        n, s = case
        graph = taped(n, tape=100, state=100)
        schedule = binomial(Problem(graph, None), slots=s, mixed=True).schedule
        assert count(schedule) == PUBLISHED[case][3]
        # s slots; the state that the running step reads, the tape and the state that it makes; two gradients.
        assert simulate(graph, schedule).peak_bytes <= 100 * (s + 3) + 2


@pytest.mark.parametrize("budget", [6, 9, 14, 25, 60])
def test_under_a_budget_the_cheapest_that_fits_is_taken(budget: int) -> None:
    graph = lower(zoo.chain(100))
    plan = binomial(Problem(graph, budget))
    trace = simulate(graph, plan.schedule)
    assert trace.peak_bytes <= budget
    every = [
        simulate(graph, binomial(Problem(graph, None), slots=s, mixed=mixed).schedule)
        for s in range(1, 101)
        for mixed in (False, True)
    ]
    assert trace.cost <= min(other.cost for other in every if other.peak_bytes <= budget)


def test_c1_is_never_beaten_and_nearly_reached() -> None:
    graph = lower(cases.C1.digraph())
    for budget, least in {3: 38, 4: 24, 5: 21, 6: 20, 7: 19, 8: 18, 9: 17}.items():
        cost = simulate(graph, binomial(Problem(graph, budget)).schedule).cost
        # the loss gradient takes a slot only once it is there: "chain" knows, the theory does not
        assert least <= cost <= least + 2


def test_what_is_no_chain_is_kept_whole_or_refused_without_proof() -> None:
    graph = lower(cases.C2.digraph())
    assert simulate(graph, binomial(Problem(graph, 296)).schedule).cost == 108
    with pytest.raises(InfeasibleBudget) as caught:
        binomial(Problem(graph, 250))
    assert (caught.value.minimum, caught.value.proven) == (296, False)


def test_stages_of_a_real_network_are_steps_too() -> None:
    graph, memory = lower(zoo.resnet(50, batch=16, image=64)), MemoryModel("activations")
    keep_all = optimize(graph, "100%", memory=memory, allocator=None).report.keep_all.peak_bytes
    assert (
        optimize(graph, keep_all * 7 // 10, strategy="binomial", memory=memory).verify().peak_bytes
        <= keep_all * 7 // 10
    )


def test_no_steps_or_no_slots_are_refused() -> None:
    for steps, slots in [(0, 1), (1, 0), (-3, 2)]:
        with pytest.raises(ValueError, match="at least 1"):
            forwards(steps, slots)
