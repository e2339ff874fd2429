"""Several instants together: against every schedule of small graphs, and every choice of runs between them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from pathlib import Path

import cases
import networkx as nx
import numpy as np
from exhaustive import cheapest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from naive import keep_all, least_cost, naive_cost, naive_peak
from strategies import memory_models, schedules
from test_certificate import LEAST_COSTS, budgets, keep_all_of, layers
from test_laws import GRAPHS, ORACLE_GRAPHS, WALKED_GRAPHS

from bench import remat
from planner import Graph, MemoryModel, Op, Tensor, lower, simulate
from planner.bounds.certificate import certified_cost
from planner.bounds.chain_of_cuts import ChainOfCuts
from planner.bounds.cut import storages_of
from planner.bounds.peak import peak_lower_bound
from planner.kernels.flow import descendants

SOME = settings(max_examples=settings().max_examples, suppress_health_check=list(HealthCheck))


@st.composite
def rows_of(draw: st.DrawFn, graph: Graph, memory: MemoryModel, *, most: int = 4) -> list[int]:
    """Ops each of which depends on the one before; rather early ones, as after late ones nothing runs again."""
    arrays = storages_of(graph, memory).arrays
    later = np.array([not op.resident for op in graph.ops])
    rows: list[int] = []
    found = np.empty(len(graph.ops), dtype=np.bool_)
    while later.any() and len(rows) < most:
        candidates = np.flatnonzero(later).tolist()
        rows.append(draw(st.sampled_from(candidates[: 1 + len(candidates) // 2])))
        descendants(arrays, rows[-1], found)
        found[rows[-1]] = False
        later = found.copy()
    return rows


def proven(graph: Graph, memory: MemoryModel, rows: list[int], budget: int, *, most: int = 10**9) -> float:
    """Cost of any plan, by a series of instants."""
    shared = storages_of(graph, memory)
    bound, _ = ChainOfCuts(shared, rows, budget).least(floor=Fraction(0), limit=None, most=most)
    return math.inf if bound is None else naive_cost(graph, keep_all(graph)) + float(bound * Fraction(shared.unit))


def check(graph: Graph, memory: MemoryModel, data: st.DataObject, oracle: Callable[[int], float | None]) -> None:
    one_run = naive_cost(graph, keep_all(graph))
    for budget in budgets(graph, memory)[:4]:
        rows = data.draw(rows_of(graph, memory))
        bound = proven(graph, memory, rows, budget, most=data.draw(st.sampled_from([5, 50, 1000])))
        if bound <= one_run:
            continue
        try:
            cost = oracle(budget)
        except OverflowError:
            event("too many states")
            continue
        event("no plan" if cost is None else f"above one run, {len(rows)} instants")
        assert cost is None or bound <= cost * (1 + 1e-12)
        rerun = certified_cost(graph, memory, budget, plan_cost=cost or 4 * one_run).cost
        assert cost is None or rerun <= cost


@SOME
@given(digraph=ORACLE_GRAPHS, memory=memory_models(), data=st.data())
def test_no_schedule_costs_less_than_a_series_proves(
    digraph: nx.DiGraph, memory: MemoryModel, data: st.DataObject
) -> None:
    graph = lower(digraph)
    check(graph, memory, data, lambda budget: least_cost(graph, budget, memory=memory))


@SOME
@given(digraph=WALKED_GRAPHS, memory=memory_models(), data=st.data())
def test_nor_with_views_updates_inplace_pairs_and_several_outputs(
    digraph: nx.DiGraph, memory: MemoryModel, data: st.DataObject
) -> None:
    graph = lower(digraph)
    if sum(not op.resident for op in graph.ops) <= 8:
        check(graph, memory, data, lambda budget: cheapest(graph, budget, memory=memory))


@SOME
@given(digraph=GRAPHS, memory=memory_models(), data=st.data())
def test_nor_any_schedule_drawn_at_random(digraph: nx.DiGraph, memory: MemoryModel, data: st.DataObject) -> None:
    graph = lower(digraph)
    trace = simulate(graph, data.draw(schedules(graph)), memory=memory)
    for _ in range(3):
        rows = data.draw(rows_of(graph, memory))
        assert proven(graph, memory, rows, trace.peak_bytes, most=200) <= trace.cost * (1 + 1e-12)


def cheapest_runs(graph: Graph, memory: MemoryModel, rows: list[int], budget: int) -> int | None:
    """Every set of reruns in each part, tried: what a part asks for and does not make is live where it starts."""
    shared = storages_of(graph, memory)
    storage_rep, names = shared.storage_rep, list(graph.tensors)
    index = {name: v for v, name in enumerate(names)}
    maker = {name: k for k, op in enumerate(graph.ops) for name in (tensor.name for tensor in op.outputs)}
    reach = nx.DiGraph()
    reach.add_nodes_from(range(len(graph.ops)))
    where = {op.name: k for k, op in enumerate(graph.ops)}
    for k, op in enumerate(graph.ops):
        reach.add_edges_from((maker[v], k) for v in op.reads)
        reach.add_edges_from((where[name], k) for name in op.after)
    before = [nx.ancestors(reach, row) for row in rows] + [set(reach)]
    after = [nx.descendants(reach, row) | {row} for row in rows]

    def read(ops: set[int]) -> set[int]:
        return {int(storage_rep[index[v]]) for k in ops for v in graph.ops[k].reads} - {-1}

    ends = {int(storage_rep[index[v]]) for v in graph.outputs} - {-1}
    first_runs = [after[i] & before[i + 1] for i in range(len(rows))]
    free: list[list[int]] = [[] for _ in rows]
    waiting = set(ends)
    for i in reversed(range(len(rows))):  # what nobody asks for is not made again
        waiting |= read(first_runs[i] - {rows[i]}) | (read({rows[i + 1]}) if i + 1 < len(rows) else set())
        while more := read({maker[names[h]] for h in waiting} - first_runs[i]) - waiting:
            waiting |= more
        asked_ops = {maker[names[h]] for h in waiting - read({rows[i]})} - first_runs[i]
        free[i] = sorted(k for k in asked_ops if graph.ops[k].recomputable or k not in before[i])
    best: int | None = None
    subsets = [
        list(itertools.chain.from_iterable(itertools.combinations(ops, k) for k in range(len(ops) + 1))) for ops in free
    ]
    for runs in itertools.product(*subsets):
        asked, fits = ends, True
        for i in reversed(range(len(rows))):
            made = first_runs[i] | set(runs[i])
            own = read({rows[i]})
            asked = {h for h in asked | read(made) if maker[names[h]] not in made} - own
            nbytes = sum(int(shared.rep_bytes[h]) for h in asked)
            fits = fits and nbytes + int(shared.working_bytes[rows[i]]) <= budget
            asked = asked | own
        cost = sum(int(shared.step_cost[k]) for i, chosen in enumerate(runs) for k in chosen if k in before[i])
        if fits and (best is None or cost < best):
            best = cost
    return best


@st.composite
def nets(draw: st.DrawFn) -> Graph:
    """A chain with a skip or two, whose backward pass reads every value."""
    n = draw(st.integers(3, 5))
    sizes, costs = (draw(st.lists(st.integers(1, 9), min_size=2 * n, max_size=2 * n)) for _ in range(2))
    skips = {k: draw(st.sampled_from([(), (), (f"f{draw(st.integers(0, k - 2))}",)])) for k in range(2, n)}
    once = draw(st.sampled_from([-1, -1, 0, 1, 2]))
    ops = []
    for k in range(n):
        below = (f"f{k - 1}",) if k else ()
        made, reads = (Tensor(f"f{k}", sizes[k]),), (*below, *skips.get(k, ()))
        ops.append(Op(f"f{k}", made, reads, cost=float(costs[k]), recomputable=k != once))
    for k in reversed(range(n)):
        above = (f"b{k + 1}",) if k < n - 1 else ()
        gradient = Tensor(f"b{k}", sizes[n + k], output=k == 0)
        ops.append(Op(f"b{k}", (gradient,), (*above, f"f{k}", *skips.get(k, ())), cost=float(costs[n + k])))
    return Graph(ops)


@settings(max_examples=settings().max_examples * 2, suppress_health_check=list(HealthCheck))
@given(graph=nets(), percent=st.sampled_from([0, 5, 10, 20, 30, 45]), data=st.data())
def test_the_splits_end_with_the_cheapest_runs_between_the_instants(
    graph: Graph, percent: int, data: st.DataObject
) -> None:
    memory, n = MemoryModel(), len(graph.ops) // 2
    count = data.draw(st.sampled_from([1, 2, 2] if n > 3 else [2, 3]))
    rows = sorted(data.draw(st.sets(st.integers(n, 2 * n - 2), min_size=min(count, n - 1), max_size=count)))
    low, high = peak_lower_bound(graph, memory).nbytes, naive_peak(graph, keep_all(graph))
    budget = low + (high - low) * percent // 100
    cost = cheapest_runs(graph, memory, rows, budget)
    shared = storages_of(graph, memory)
    bound, _ = ChainOfCuts(shared, rows, budget).least(floor=Fraction(0), limit=None, most=10**6)
    event("nothing fits" if cost is None else f"{len(rows)} instants, {'above one run' if cost else 'one run'}")
    assert (bound is None) == (cost is None)
    if bound is not None and cost is not None:
        assert cost * (1 - Fraction(1, 2**30)) <= bound <= cost


#: `rematerialisation.md` 4a, the best plans known, in percent: what one instant proves is 0.6, 0.2 and 0.2 less.
PROVEN_TOGETHER = {("cm_vgg_unet", 0.5): 6.97, ("vgg16chain", 0.5): 0.38}


def test_plans_that_one_instant_leaves_a_gap_to_are_proven_cheapest(shared: Path) -> None:
    for name, fraction in PROVEN_TOGETHER:
        graph = lower(remat.read(name))
        schedule = keep_all_of(graph)
        budget = int(fraction * schedule.peak_bytes)
        known = PROVEN_TOGETHER[name, fraction]
        single = certified_cost(graph, MemoryModel(), budget).cost
        together = certified_cost(
            graph, MemoryModel(), budget, plan_cost=schedule.cost * (1 + (known + 0.005) / 100)
        ).cost
        assert 100 * (single / schedule.cost - 1) < known - 0.1
        assert abs(100 * (together / schedule.cost - 1) - known) <= 0.006


#: Where reruns themselves need the room: no instant is the first run of one.
NOT_PROVEN = {("C2", 256), ("C2", 248)}


def test_public_cases_are_proven() -> None:
    for name, budget in [(name, budget) for name, costs in LEAST_COSTS.items() for budget in costs]:
        least = float(LEAST_COSTS[name][budget])
        bound = certified_cost(lower(cases.CASES[name].digraph()), MemoryModel(), budget, plan_cost=least).cost
        assert bound <= least
        assert (bound == least) == ((name, budget) not in NOT_PROVEN)


def test_nested_reruns_of_a_chain_are_counted_each_time() -> None:
    for length, budget in [(8, 3), (8, 4), (12, 3), (16, 3), (24, 3), (12, 4), (16, 5), (24, 10), (40, 3)]:
        graph = lower(cases.digraph(cases.chain(length), ("g0",)))
        least = float(_reversal(length, budget) + length + 1)
        bound = certified_cost(graph, MemoryModel(), budget, plan_cost=least).cost
        assert bound <= least
        if (budget, length) in {(3, 8), (4, 8), (3, 12), (3, 16), (3, 24), (10, 24)}:
            assert bound == least


@cache
def _forward(n: int, c: int) -> float:
    """C10 of `cases.md`: V."""
    if n == 0 or (n == 1 and c >= 1):
        return 0.0
    return math.inf if c < 2 else min(j + _forward(n - j, c - 1) + _forward(j, c) for j in range(1, n))


@cache
def _reversal(n: int, c: int) -> float:
    """C10 of `cases.md`: W."""
    if n == 0:
        return 0.0 if c >= 1 else math.inf
    return math.inf if c < 2 else min(j + _reversal(n - j, c - 1) + _forward(j, c - 1) for j in range(1, n + 1))


def test_a_search_goes_on_from_where_it_ended() -> None:
    graph = lower(cases.digraph(cases.chain(12), ("g0",)))
    shared = storages_of(graph, MemoryModel())
    last = len(graph.ops) - 1
    rows = list(range(13, last, 3))
    in_steps, at_once = ChainOfCuts(shared, rows, 4), ChainOfCuts(shared, rows, 4)
    bounds = [in_steps.least(floor=Fraction(0), limit=None, most=most)[0] or 0 for most in (1, 20, 100, 400)]
    assert bounds == sorted(bounds)
    assert bounds[0] < bounds[-1] == at_once.least(floor=Fraction(0), limit=None, most=400)[0]
    assert in_steps.solved == at_once.solved


def test_rounding_never_lifts_what_a_series_proves_above_a_plan() -> None:
    for costs in [[0.1, 0.2, 0.3, 0.7] * 2, [1e-09, 3e-07, 0.001, 1.0] * 2, [1 / 3] * 7]:
        graph = layers(costs)
        for slots in range(3, len(costs) + 1):
            least = least_cost(graph, slots)
            assert least is not None
            assert certified_cost(graph, MemoryModel(), slots, plan_cost=2 * least).cost <= least
