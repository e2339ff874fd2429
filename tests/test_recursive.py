"""Segments of segments: kept tensors, forwards and peak on unit chains, and what holds on any graph."""

from __future__ import annotations

import math
from functools import partial

from offenders import every

from planner import Compute, Graph, MemoryModel, Problem, Schedule, lower, optimize, simulate, zoo
from planner.search.recursive import recursive


def kept(n: int, k: int) -> int:
    """g(n; k) = k + g(ceil(n / (k + 1))): Chen et al. 2016, 4.4."""
    return 0 if n <= 1 else k + kept(math.ceil(n / (k + 1)), k)


def bisection_forwards(n: int) -> int:
    """T(n) = floor(n/2) + T(ceil(n/2)) + T(floor(n/2)), T(1) = 1."""
    return 1 if n == 1 else n // 2 + bisection_forwards(n - n // 2) + bisection_forwards(n // 2)


def binomial_forwards(n: int, slots: int) -> int:
    """Griewank and Walther 2000: least forwards of n steps with so many slots, taped forwards included."""
    if slots >= n - 1:
        return 2 * n - 1
    t = next(t for t in range(1, n + 1) if math.comb(slots + t, slots) >= n)
    return n + t * n - math.comb(slots + t, t - 1)


def unit_chain(n: int) -> Graph:
    return lower(zoo.chain(n, reads=("in",)))


def proposed(n: int, k: int, *, reuse: bool = False) -> tuple[Graph, Schedule]:
    graph = unit_chain(n)
    return graph, recursive(Problem(graph, None), k=k, reuse=reuse).schedule


def most_forward_values_between_steps(schedule: Schedule) -> int:
    live: set[str] = set()
    most = 0
    for step in (*schedule.steps, Compute("end")):
        if isinstance(step, Compute):
            most = max(most, len(live))
            if step.op.startswith("f"):
                live.add(step.op)
        else:
            live.discard(step.value)
    return most


def forwards(schedule: Schedule) -> int:
    return sum(op.startswith("f") for op in schedule.computes)


def test_bisection_runs_the_forwards_of_the_recurrence() -> None:
    for n, expected in [(8, 20), (16, 48), (64, 256), (100, 416), (256, 1280), (1000, 5932), (1024, 6144)]:
        assert bisection_forwards(n) == expected  # the notes' own table
        assert forwards(proposed(n, 1)[1]) == expected


@every(("n", "k", "expected"), [
    (1000, 1, 10), (1000, 3, 15), (1000, 9, 27), (1000, 31, 62), (1024, 1, 10), (64, 3, 9), (27, 2, 6),
])  # fmt: skip
def test_as_many_forward_values_are_kept_as_the_recurrence_says(n: int, k: int, expected: int) -> None:
    assert kept(n, k) == expected
    graph, schedule = proposed(n, k)
    assert most_forward_values_between_steps(schedule) == expected
    assert simulate(graph, schedule).peak_bytes == expected + 1


def test_never_more_is_kept_and_never_fewer_forwards_run_than_the_binomial_optimum() -> None:
    for n in [3, 7, 10, 37, 100, 333, 1000]:
        for k in [1, 2, 3, 5, 9, 31]:
            graph, schedule = proposed(n, k)
            assert simulate(graph, schedule).peak_bytes <= kept(n, k) + 1
            assert forwards(schedule) >= binomial_forwards(n, kept(n, k) + 1)  # one slot more: the initial state


def test_the_binomial_optimum_here_is_the_published_one() -> None:
    for n, s, expected in [(10, 3, 25), (100, 5, 416), (1000, 50, 2948), (56, 3, 266)]:
        assert binomial_forwards(n, s) == expected


def test_reusing_a_cut_takes_one_tensor_more_and_a_forward_pass_fewer() -> None:
    for n, k in [(100, 1), (1000, 1), (1000, 3), (64, 7)]:
        graph, schedule = proposed(n, k, reuse=True)
        assert simulate(graph, schedule).peak_bytes == kept(n, k) + 2
        assert forwards(schedule) == forwards(proposed(n, k)[1]) - (n - 1)


def test_a_thousand_layers_fit_in_logarithmic_memory() -> None:
    plan = optimize(unit_chain(1000), strategy="recursive")
    assert plan.report.plan.peak_bytes <= math.log2(1000) + 2


def test_more_memory_makes_it_cheaper() -> None:
    graph = unit_chain(256)
    costs = [optimize(graph, budget, strategy="recursive").report.plan.cost for budget in (10, 16, 32, 64, 128, 200)]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] < costs[0] / 2


def test_the_last_stretch_is_kept_whole_where_that_fits() -> None:
    graph = unit_chain(64)
    plan = optimize(graph, 40, strategy="recursive")
    assert max(int(op[1:]) for op in plan.verify().recomputed) < 60


def test_a_residual_network_goes_below_one_level_of_segments() -> None:
    graph = lower(zoo.resnet((2, 2, 30, 2), batch=64, image=64))
    activations = MemoryModel("activations")
    one_level = optimize(graph, strategy="chen-budget", memory=activations).report.plan.peak_bytes
    assert optimize(graph, strategy="recursive", memory=activations).verify().peak_bytes < one_level
    assert optimize(graph, strategy=partial(recursive, k=2), memory=activations).verify()


def test_auto_falls_back_on_it_where_one_extra_pass_is_not_enough() -> None:
    graph = unit_chain(100)
    least = optimize(graph, strategy="chen-budget").report.plan.peak_bytes
    plan = optimize(graph, least - 4)
    assert plan.verify().peak_bytes <= least - 4


def test_graphs_without_cuts_are_kept_whole() -> None:
    assert forwards(recursive(Problem(unit_chain(1), None)).schedule) == 1
