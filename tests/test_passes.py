"""Passes: their runs against a twin and the judge, what is found against exhaustive search and recurrences."""

from __future__ import annotations

from typing import Any

import cases
import networkx as nx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from naive import canonical_steps, keep_all, least_cost, naive_peak, naive_timeline
from strategies import digraphs, simple_digraphs
from test_laws import layered_digraphs
from test_retention import chain_cost, plain

from bench import remat
from bench.generators import layered
from planner import Graph, MemoryModel, lower, simulate
from planner.analysis.evaluator import Evaluator
from planner.kernels import replay_blocks as kernel
from planner.problem import Problem
from planner.search.anneal import retention
from planner.search.block_replay import passes, program, repeatable
from planner.search.greedy import evictions, orders
from planner.search.lifetimes import Runs, first_word, model_of

QUICK = settings(suppress_health_check=list(HealthCheck))
Pass = tuple[int, int, int, int]


class Bench:
    """A graph in the arrays of the kernels, in the program's order."""

    def __init__(self, graph: Graph, *, seed: int = 0) -> None:
        self.graph = graph
        self.evaluator = Evaluator(graph, MemoryModel())
        self.order = self.evaluator.keep_all
        self.names = [graph.ops[row].name for row in self.order]
        self.model = model_of(self.evaluator.encoded.arrays, pinned=False)
        self.runs = Runs(self.model, most_runs=64, random=first_word(seed))
        self.again = repeatable(self.model)
        self.residents = int(self.evaluator.encoded.arrays.resident_bytes[0])
        self.passes: Any = None

    def run(
        self, rows: Any, budget: int = 0, *, penalty: float = 0.0, most: float = np.inf, room: int = 5000
    ) -> tuple[float, list[str]]:
        """Cost, and the names of the ops that run."""
        table, sequence = np.zeros((3, len(rows), 4), dtype=np.int64), np.zeros(room, dtype=np.int64)
        table[0] = np.array(rows, dtype=np.int64).reshape(-1, 4)
        self.passes = program(self.model, self.order, budget, table, sequence)
        cost = kernel.run_passes(self.model, self.passes, table[0], len(rows), penalty, most)
        return cost, [self.graph.ops[row].name for row in sequence[room - kernel.numbers(self.passes).length :]]

    def last_excess(self) -> int:
        """Bytes above the budget, summed over the runs of the last call of `run`."""
        return kernel.numbers(self.passes).last_excess

    def search(self, budget: int, moves: int) -> Any:
        """The passes of the state and the best, and their numbers."""
        table = np.zeros((3, 6, 4), dtype=np.int64)
        passes = program(self.model, self.order, budget, table, np.zeros(5000, dtype=np.int64))
        kernel.begin(self.model, passes)
        kernel.search(self.model, passes, moves, 2.0, 0.1, 0.2, self.runs.state)
        return table[0], table[2], kernel.numbers(passes)


@st.composite
def nested_passes(draw: Any, rows: int) -> list[Pass]:
    """Up to five, each in the program or in an earlier one; places and rows may lie outside of what that one runs."""
    row = st.integers(0, rows)
    return [(draw(st.integers(-1, k - 1)), draw(row), draw(row), draw(row)) for k in range(draw(st.integers(0, 5)))]


def unrolled(table: list[Pass], inside: int, low: int, high: int) -> list[tuple[int, bool]]:
    """Rows that a pass would run if all of them were needed, and whether they are runs of a pass."""
    found: list[tuple[int, bool]] = []
    inner = sorted(
        (min(at, high), k) for k, (within, at, _, _) in enumerate(table) if within == inside and min(at, high) >= low
    )
    start = low
    for place, k in inner:
        found += [(row, inside >= 0) for row in range(start, place)]
        start = place
        end = min(table[k][3], place)
        found += unrolled(table, k, min(table[k][2], end), end)
    return found + [(row, inside >= 0) for row in range(start, high)]


def twin(bench: Bench, table: list[Pass]) -> list[str]:
    """All unrolled; then, last first, what a pass runs goes unless its op may run again and a later run needs it."""
    graph = bench.graph
    left: list[str] = []
    rows = unrolled(table, -1, 0, len(bench.names))
    for row, of_a_pass in reversed(rows):
        name = bench.names[row]
        outputs = {tensor.name for tensor in graph.op_named[name].outputs}
        if of_a_pass:
            following = next((k for k, later in enumerate(left) if later == name), len(left))
            reads = {
                value
                for later in left[: following + 1]
                for value in (*graph.op_named[later].reads, *roots(graph, later))
            }
            kept = {v for v in graph.outputs if following == len(left)}
            kept |= {graph.storage_root[v] for v in kept}
            if not outputs & (reads | kept) or not bench.again[bench.order[row]]:
                continue
        left.insert(0, name)
    return left


def roots(graph: Graph, name: str) -> list[str]:
    return [graph.storage_root[value] for value in graph.op_named[name].reads]


GRAPHS = st.one_of(layered_digraphs(), digraphs(), simple_digraphs(most_ops=9))


@QUICK
@given(digraph=GRAPHS, data=st.data(), budget=st.integers(0, 40))
def test_passes_run_what_their_twin_runs_and_their_memory_is_the_judges(
    digraph: nx.DiGraph, data: Any, budget: int
) -> None:
    bench = Bench(lower(digraph))
    table = data.draw(nested_passes(len(bench.names)))
    cost, names = bench.run(table, budget)
    assert names == twin(bench, table)
    schedule = canonical_steps(bench.graph, names)
    trace = simulate(bench.graph, schedule)  # raises where it is illegal
    assert cost == pytest.approx(trace.cost)
    assert tuple(dict.fromkeys(names)) == tuple(bench.names)  # first runs keep the order
    if plain(bench.graph):
        timeline = naive_timeline(bench.graph, schedule)
        assert bench.last_excess() == sum(max(0, nbytes - bench.residents - budget) for nbytes in timeline)


def test_an_input_that_dies_in_place_is_counted_once() -> None:
    graph = nx.DiGraph()
    graph.add_node("x", nbytes=8)
    graph.add_node("r", nbytes=8, inplace=((0, 0),))
    graph.add_node("y", nbytes=1, output=True)
    graph.add_edge("x", "r", at=(0,))
    graph.add_edge("r", "y")
    bench = Bench(lower(graph))
    bench.run([], 0)
    assert bench.last_excess() == 8 + 8 + 9 == sum(naive_timeline(bench.graph, keep_all(bench.graph)))


def test_a_sequence_that_costs_too_much_or_finds_no_room_is_given_up() -> None:
    bench = Bench(lower(cases.digraph(cases.chain(5), ("g0",))))
    again = [(-1, 8, 0, 4)]
    cost, names = bench.run(again)
    assert cost == len(names) > len(bench.names)
    assert bench.run(again, most=cost)[0] == cost
    assert bench.run(again, most=cost - 2)[0] == np.inf
    assert bench.run(again, penalty=1.0, most=cost)[0] == np.inf  # nothing fits into 0 bytes
    assert bench.run(again, room=len(names))[0] == cost
    assert bench.run(again, room=len(names) - 1)[0] == np.inf


@QUICK
@given(
    digraph=GRAPHS, seed=st.integers(0, 99), percent=st.sampled_from([50, 70, 90]), moves=st.sampled_from([1, 30, 300])
)
def test_after_any_moves_the_numbers_are_those_of_the_passes(
    digraph: nx.DiGraph, seed: int, percent: int, moves: int
) -> None:
    bench = Bench(lower(digraph), seed=seed)
    budget = (naive_peak(bench.graph, keep_all(bench.graph)) - bench.residents) * percent // 100
    state, best, numbers = bench.search(budget, moves)
    for table, (count, excess, cost) in zip((state, best), (numbers[:3], numbers[3:6]), strict=True):
        rows = table[:count]
        assert all(-1 <= rows[k, kernel.WITHIN] < k for k in range(len(rows)))
        assert bench.run(rows, budget)[0] == pytest.approx(cost)
        assert bench.last_excess() == excess
    assert numbers.best_excess <= numbers.excess
    again = Bench(bench.graph, seed=seed)
    assert np.array_equal(again.search(budget, moves)[1], best)


@QUICK
@given(data=st.data(), count=st.integers(1, 6))
def test_a_pass_is_left_out_with_all_that_stand_in_it(data: Any, count: int) -> None:
    within = [data.draw(st.integers(-1, k - 1)) for k in range(count)]
    out = data.draw(st.integers(0, count - 1))
    tree = nx.DiGraph((parent, k) for k, parent in enumerate(within))
    gone = {out} | nx.descendants(tree, out)
    stay = [k for k in range(count) if k not in gone]
    table = np.array([(parent, 10 * k, 20 * k, 30 * k) for k, parent in enumerate(within)], dtype=np.int64)
    left = kernel._without(table, count, out, np.zeros(count + 1, dtype=np.int64))
    wanted = [(-1 if within[k] < 0 else stay.index(within[k]), 10 * k, 20 * k, 30 * k) for k in stay]
    assert [tuple(row) for row in table[:left].tolist()] == wanted


# ------------------------------------------------------------------------------------------------ what is found


def found(bench: Bench, budget: int) -> tuple[int, float]:
    """Peak bytes and cost of the last sequence, judged."""
    sequence = [runs for runs in passes(bench.runs.state, bench.model, bench.order, budget) if runs is not None][-1]
    trace = simulate(bench.graph, bench.evaluator.schedule(sequence))
    return trace.peak_bytes, trace.cost


def test_chains_cost_what_the_recurrence_says_while_little_has_to_go() -> None:
    for length, exact, loose in ((6, (6, 5), 3), (12, (12, 9), 6), (30, (30, 23), 10)):
        for budget, at_most in (*((budget, 1.0) for budget in exact), (loose, 1.25)):
            bench = Bench(lower(cases.digraph(cases.chain(length), ("g0",))))
            peak_bytes, cost = found(bench, budget)
            assert peak_bytes <= budget
            assert chain_cost(length, budget) <= cost <= at_most * chain_cost(length, budget)


@QUICK
@given(
    digraph=st.one_of(layered_digraphs(least=3, most=4, aliasing=False), simple_digraphs(most_ops=7)),
    percent=st.sampled_from([60, 80]),
)
def test_what_is_found_is_legal_and_costs_no_less_than_the_exhaustive_search_says(
    digraph: nx.DiGraph, percent: int
) -> None:
    bench = Bench(lower(digraph))
    budget = naive_peak(bench.graph, keep_all(bench.graph)) * percent // 100
    peak_bytes, cost = found(bench, budget - bench.residents)
    least = least_cost(bench.graph, budget)
    if peak_bytes <= budget:
        assert least is not None
        assert cost >= least


def long_skips() -> Graph:
    """600 ops in layers, some of which read from far back: a value made again needs all before it."""
    return lower(remat.converted(layered(600, width=16, seed=0)))


def test_parts_run_again_fit_where_single_values_made_again_do_not() -> None:
    bench = Bench(long_skips())
    bench.runs = Runs(bench.model, most_runs=4 * len(bench.order), random=first_word(0))
    peak_bytes, _ = bench.evaluator.evaluate(bench.order) or (0, 0.0)
    budget = 8 * peak_bytes // 10
    bench.order = min(
        orders(bench.runs, bench.model, bench.order), key=lambda order: bench.evaluator.evaluate(order) or (0, 0.0)
    )
    dropped = [runs for runs in evictions(bench.runs, bench.model, bench.order, budget) if runs is not None]
    assert all((bench.evaluator.evaluate(runs) or (0, 0.0))[0] > budget for runs in dropped)
    fits, cost = found(bench, budget)
    assert fits <= budget
    assert cost <= 1.2 * bench.model.cost.sum()


def test_the_annealing_starts_from_passes_where_nothing_else_fits() -> None:
    graph = long_skips()
    budget = 8 * naive_peak(graph, keep_all(graph)) // 10
    trace = simulate(graph, retention(Problem(graph, budget, effort=0.01), starts=()).schedule)
    assert trace.peak_bytes <= budget


def test_the_work_comes_in_parts_and_the_first_that_fits_at_once() -> None:
    bench = Bench(lower(remat.converted(layered(3000, width=35, seed=0))))
    peak_bytes, _ = bench.evaluator.evaluate(bench.order) or (0, 0.0)
    parts = list(passes(bench.runs.state, bench.model, bench.order, 85 * peak_bytes // 100))
    judged = [None if runs is None else bench.evaluator.evaluate(runs) for runs in parts]
    fitting = [k for k, pair in enumerate(judged) if pair is not None and pair[0] * 100 <= 85 * peak_bytes]
    assert len(parts) > 10
    assert fitting[-1] == len(parts) - 1
    assert len(fitting) == 2
