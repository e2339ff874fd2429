"""Chen et al. 2016: sqrt(n) segments (4.2) and the threshold search (Alg. 3, appendix A), by the paper's own figures.

`original.md` 1.3 and 1.4 hold what the paper and its implementation state. Ours keeps the last segment.
"""

from __future__ import annotations

import math
import time
from functools import partial
from typing import Any

import networkx as nx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_kernels import alg3_twin

from planner import InfeasibleBudget, MemoryModel, TimeLimit, Trace, lower, optimize, simulate, zoo
from planner.analysis.arrays import encode
from planner.analysis.candidates import forward_part
from planner.graph import Graph, Op, Tensor
from planner.problem import Problem, Stop
from planner.search import find_strategy
from planner.search.chen import _alg3, _appendix_thresholds, chen_budget, chen_sqrt

SQUARES = [k * k for k in range(2, 31)]

# memonger counts in whole MiB, and sees nothing to cut in graphs of a few bytes.
SEGMENTED = ["chen-sqrt", "chen-budget", "recursive", "memonger"]
BYTEWISE = [name for name in SEGMENTED if name != "memonger"]


def unit_chain(n: int) -> Graph:
    """Backward i reads f[i-1], f[i] and the gradient above."""
    return lower(zoo.chain(n, reads=("in", "out")))


def judged(strategy: Any, graph: Graph, budget: int | None = None, **options: Any) -> Trace:
    return simulate(graph, strategy(Problem(graph, budget, **options)).schedule)


def judged_or_refused(strategy: Any, graph: Graph, budget: int) -> Trace | None:
    try:
        return judged(strategy, graph, budget)
    except InfeasibleBudget as error:
        refusal = error
    assert refusal.minimum is not None
    assert refusal.minimum > budget
    return None


def part_of(graph: Graph) -> Any:
    return forward_part(graph, encode(graph, MemoryModel()))


# ------------------------------------------------------------------------------------------------ 4.2: sqrt(n)


def test_sqrt_segments_take_at_most_2_sqrt_n_plus_1_for_less_than_one_extra_forward() -> None:
    for n in SQUARES:
        graph, root = unit_chain(n), math.isqrt(n)
        least = judged(chen_sqrt, graph)
        assert least.peak_bytes <= 2 * root + 1
        assert sum(least.recomputed.values()) <= n - root
        assert set(least.recomputed.values()) <= {1}
        tight = judged(chen_sqrt, graph, least.peak_bytes)
        assert tight.peak_bytes <= 2 * root + 1
        assert sum(tight.recomputed.values()) <= n - root


def test_sqrt_segments_take_about_2_sqrt_n_between_squares_too() -> None:
    for n in (2, 3, 5, 10, 50, 99, 101, 500):
        trace = judged(chen_sqrt, unit_chain(n))
        assert trace.peak_bytes <= 2 * math.isqrt(n) + 4
        assert sum(trace.recomputed.values()) <= n


def test_the_budget_search_reaches_the_best_single_level_of_segments() -> None:
    for n, single_level in [(100, 20), (1000, 64)]:
        assert single_level == min(k + -(-n // k) for k in range(1, n + 1))  # original.md 1.4
        trace = judged(chen_budget, unit_chain(n))
        assert trace.peak_bytes <= single_level + 2
        assert sum(trace.recomputed.values()) <= n


@pytest.mark.parametrize("strategy", [chen_sqrt, chen_budget])
def test_the_last_segment_is_never_recomputed(strategy: Any) -> None:
    trace = judged(strategy, unit_chain(100))
    again = {int(name[1:]) for name in trace.recomputed}
    assert again
    assert all(name.startswith("f") for name in trace.recomputed)
    assert max(again) < 100 - 5  # half a segment of sqrt(100) at least is kept in one piece up to the loss
    assert set(range(max(again) + 1, 101)).isdisjoint(again)


@pytest.mark.parametrize("n", [2, 3, 10, 100])
def test_every_budget_from_keep_all_down_is_met_or_refused(n: int) -> None:
    graph = unit_chain(n)
    keep_all = n + 2  # f1..fn, and two gradients where the first backward reads the last layer's output
    for strategy in SEGMENTED:
        met = False
        for budget in sorted({1, 2, 3, *range(4, keep_all + 2, max(1, n // 12)), keep_all - 1, keep_all}):
            trace = judged_or_refused(find_strategy(strategy)[1], graph, budget)
            if trace is None:
                assert not met, "a budget is refused although a smaller one was met"
                continue
            met = True
            assert trace.peak_bytes <= budget
            assert trace.recomputed == {} or budget < keep_all
        assert met


def test_auto_is_as_cheap_as_the_cheapest_strategy() -> None:
    graph = unit_chain(60)
    for budget in (16, 17, 20, 25, 40, 60):
        traces = [judged_or_refused(strategy, graph, budget) for strategy in (chen_sqrt, chen_budget)]
        least = min((trace.cost for trace in traces if trace), default=None)
        found = judged_or_refused(find_strategy("auto")[1], graph, budget)
        assert (found is None) == (least is None)
        assert found is None or found.cost <= least


# ------------------------------------------------------------------------------------------------ Alg. 3 and appendix A


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(sizes=st.lists(st.integers(1, 9), min_size=2, max_size=12), threshold=st.integers(0, 40))
def test_alg3_over_the_candidates_of_a_chain_cuts_where_the_paper_does(sizes: list[int], threshold: int) -> None:
    graph = zoo.chain(len(sizes), reads=("in", "out"))
    for k, size in enumerate(sizes, 1):
        graph.nodes[f"f{k}"]["nbytes"] = size
    program = lower(graph)
    part = part_of(program)
    forward = [op.name for op in program.ops if op.phase == "forward"]
    candidates = [forward.index(program.ops[members[-1]].name) for members in part.members]
    assert candidates == list(range(len(sizes))), "every layer of a chain is a candidate"
    cuts, x, y = _alg3(part, threshold)
    assert ([candidates[c] for c in cuts], x, y) == alg3_twin(sizes, candidates, threshold)


def test_appendix_thresholds_are_0_then_the_balance_of_x_and_y_then_six_around_it() -> None:
    for n in [9, 100, 144]:
        thresholds = _appendix_thresholds(part_of(lower(zoo.chain(n, reads=("in", "out"), nbytes=100))))
        balance = 100 * math.isqrt(n)
        assert {0, balance} <= thresholds
        grid = sorted(thresholds - {0, balance})
        assert len(grid) == 6
        assert abs(grid[0] - balance / math.sqrt(2)) <= 1
        assert abs(grid[-1] - balance * math.sqrt(2)) <= 1


def test_effort_and_sweeps_change_the_work_not_the_laws() -> None:
    for effort in [0.1, 1.0, 4.0]:
        graph = unit_chain(200)
        for budget in (None, 32, 40, 100):
            for strategy in (chen_budget, partial(chen_budget, sweeps=12)):
                trace = judged(strategy, graph, budget, effort=effort)
                assert trace.peak_bytes <= (budget or 202)
                assert max(trace.recomputed.values()) == 1


def test_sweeps_are_an_option_through_partial() -> None:
    plan = optimize(zoo.chain(50, reads=("in", "out")), 20, strategy=partial(chen_budget, sweeps=200))
    assert plan.strategy == "chen_budget"
    assert plan.verify().peak_bytes <= 20


# ------------------------------------------------------------------------------------------------ candidates


def kept_below(trace: Trace, layers: list[str]) -> set[str]:
    """Layers below the last recomputed one that ran once: the cuts."""
    again = [k for k, name in enumerate(layers) if name in trace.recomputed]
    return {name for name in layers[: max(again, default=0)] if name not in trace.recomputed}


@pytest.mark.parametrize("strategy", SEGMENTED)
def test_a_stage_mark_of_true_makes_a_layer_a_cut_of_its_own_and_others_none(strategy: str) -> None:
    digraph = zoo.chain(24, reads=("in", "out"))
    marked = {"f5", "f11", "f16", "f20"}
    for name in marked:
        digraph.nodes[name]["stage"] = True
    trace = optimize(digraph, strategy=strategy).verify()
    assert trace.recomputed
    assert kept_below(trace, [f"f{k}" for k in range(1, 25)]) <= marked
    assert trace.peak_bytes < optimize(digraph, strategy=strategy).report.keep_all.peak_bytes


def recurrent(steps: int, *, marks: bool) -> nx.DiGraph:
    """A cell of two states: no single tensor separates one step from the next."""
    graph = nx.DiGraph()
    for name in ("x", "h0", "c0"):
        graph.add_node(name, nbytes=0, kind="input")
    for t in range(1, steps + 1):
        for name, reads in ((f"c{t}", (f"c{t - 1}", f"h{t - 1}", "x")), (f"h{t}", (f"c{t}", f"h{t - 1}"))):
            graph.add_node(name, nbytes=4, phase="forward", **({"stage": f"step {t}"} if marks else {}))
            graph.add_edges_from((source, name) for source in reads)
    graph.add_node(f"g{steps}", nbytes=4, phase="loss")
    graph.add_edges_from([(f"h{steps}", f"g{steps}"), (f"c{steps}", f"g{steps}")])
    for t in range(steps, 0, -1):
        graph.add_node(f"g{t - 1}", nbytes=4, phase="backward")
        graph.add_edges_from((source, f"g{t - 1}") for source in (f"g{t}", f"c{t}", f"h{t}", f"c{t - 1}", f"h{t - 1}"))
    return graph


@pytest.mark.parametrize("strategy", BYTEWISE)
def test_nodes_of_one_stage_id_are_kept_or_recomputed_together(strategy: str) -> None:
    assert optimize(recurrent(25, marks=False), strategy="chen-sqrt").report.extra_runs == 0  # no tensor alone cuts it
    plan = optimize(recurrent(25, marks=True), strategy=strategy)
    again = plan.verify().recomputed
    assert again
    for t in range(1, 26):
        assert (f"c{t}" in again) == (f"h{t}" in again)
    # cuts of two states of 4 bytes: about 5 segments of 5 steps, so 2 * (5 + 5) states and the gradients, against 50
    # states.
    assert plan.report.plan.peak_bytes <= 4 * (2 * 10 + 4)


def branching(depth: int = 12) -> nx.DiGraph:
    """A chain with a skip over every third layer: the skipped layers are no articulation points."""
    graph = zoo.chain(depth, reads=("in", "out"))
    for k in range(3, depth, 3):
        graph.add_edge(f"f{k}", f"f{k + 2}", at=(1,))
        graph[f"f{k + 1}"][f"f{k + 2}"]["at"] = (0,)
    return graph


@pytest.mark.parametrize("strategy", SEGMENTED)
def test_only_articulation_tensors_are_cuts_where_nothing_is_marked(strategy: str) -> None:
    plan = optimize(branching(), strategy=strategy)
    inside = {"f4", "f7", "f10"}  # under the skips 3->5, 6->8, 9->11
    assert plan.report.extra_runs > 0
    assert kept_below(plan.verify(), [f"f{k}" for k in range(1, 13)]).isdisjoint(inside)


# ---------------------------------------------------------------------------------------------- what must not run again


@pytest.mark.parametrize("strategy", SEGMENTED)
def test_graphs_without_phases_are_kept_whole_or_refused_without_a_proof(strategy: str) -> None:
    digraph = zoo.chain(8, reads=("in",))
    for name in digraph:
        digraph.nodes[name].pop("phase", None)
    assert optimize(digraph, strategy=strategy).report.extra_runs == 0
    assert optimize(digraph, 9, strategy=strategy).report.extra_runs == 0
    with pytest.raises(InfeasibleBudget) as caught:
        optimize(digraph, 8, strategy=strategy)
    assert (caught.value.proven, caught.value.minimum, caught.value.peak_lower_bound) == (False, 9, 3)
    with pytest.raises(InfeasibleBudget) as caught:
        optimize(digraph, 2, strategy=strategy)
    assert caught.value.proven


def test_non_recomputable_layers_never_run_twice() -> None:
    for strategy in BYTEWISE:
        digraph = zoo.chain(30, reads=("in", "out"))
        once = {"f4", "f9", "f17", "f23"}
        for name in once:
            digraph.nodes[name]["recomputable"] = False
        for budget in (None, 26, 22, 20):
            plan = optimize(digraph, budget, strategy=strategy)
            assert plan.report.extra_runs > 0
            assert once.isdisjoint(plan.verify().recomputed)


def normalised(depth: int) -> nx.DiGraph:
    """A chain where every third layer reads running statistics that an op of the forward pass then updates."""
    graph = zoo.chain(depth, reads=("in", "out"))
    for k in range(3, depth, 3):
        graph.add_node(f"running{k}", nbytes=1, kind="state")
        graph.add_edge(f"running{k}", f"f{k}", at=(1,))
        graph[f"f{k - 1}"][f"f{k}"]["at"] = (0,)
        graph.add_node(f"update{k}", nbytes=1, phase="forward", updates=((0, 0),))
        graph.add_edge(f"running{k}", f"update{k}", at=(0,))
        graph.add_edge(f"f{k}", f"update{k}", at=(1,))
    return graph


def test_layers_that_read_or_make_an_overwritten_statistic_never_run_twice() -> None:
    for strategy in BYTEWISE:
        digraph = normalised(30)
        plan = optimize(digraph, strategy=strategy)
        assert plan.report.extra_runs > 0
        again = set(plan.verify().recomputed)
        touching = {f"f{k}" for k in range(3, 30, 3)} | {f"update{k}" for k in range(3, 30, 3)}
        assert again.isdisjoint(touching)
        assert all(plan.schedule.computes.count(name) == 1 for name in touching)


@pytest.mark.parametrize("strategy", BYTEWISE)
def test_parameters_updated_after_backward_do_not_forbid_recomputation(strategy: str) -> None:
    digraph = zoo.chain(30, reads=("in", "out"))
    digraph.add_node("weight", nbytes=1, kind="parameter")
    for k in range(1, 31):
        digraph.add_edge("weight", f"f{k}", at=(1,))
        below = "x" if k == 1 else f"f{k - 1}"
        digraph[below][f"f{k}"]["at"] = (0,)
    digraph.add_node("step", nbytes=1, phase="update", updates=((0, 0),))
    digraph.add_edge("weight", "step", at=(0,))
    digraph.add_edge("g0", "step", at=(1,))
    plan = optimize(digraph, strategy=strategy)
    assert plan.report.extra_runs > 0
    assert plan.schedule.computes.count("step") == 1
    plan.verify()


def test_a_graph_of_one_layer_and_an_empty_graph_are_kept() -> None:
    for graph in (Graph([]), Graph([Op("a", (Tensor("a", 4),), phase="forward")]), unit_chain(1)):
        for strategy in SEGMENTED:
            assert judged(find_strategy(strategy)[1], graph).recomputed == {}


# ------------------------------------------------------------------------------------------------ time


def test_a_deadline_that_has_passed_gives_the_best_so_far_and_says_so() -> None:
    proposal = chen_budget(Problem(unit_chain(100), None, stop=Stop(0.0)))
    assert proposal.cut_short


def test_a_deadline_that_has_passed_before_any_plan_fits_is_a_time_limit() -> None:
    with pytest.raises(TimeLimit, match="time limit"):
        chen_budget(Problem(unit_chain(100), 30, stop=Stop(0.0)))
    with pytest.raises(TimeLimit):
        optimize(unit_chain(100), 30, strategy="chen-budget", time_limit=1e-9)


def test_auto_returns_what_another_strategy_found_when_one_runs_out_of_time() -> None:
    graph = unit_chain(100)
    assert judged(chen_sqrt, graph, 30).peak_bytes <= 30
    plan = optimize(graph, 30, strategy="auto", time_limit=1e-9)
    assert plan.verify().peak_bytes <= 30
    assert plan.report.cut_short


def test_enough_time_changes_nothing() -> None:
    graph = unit_chain(40)
    assert optimize(graph, 16, time_limit=600.0).schedule == optimize(graph, 16).schedule
    assert not optimize(graph, 16, time_limit=600.0).report.cut_short


@pytest.mark.parametrize("effort", [1e6, 1e300])
def test_no_effort_is_too_much_to_stop_at_the_time_limit(effort: float) -> None:
    start = time.process_time()
    plan = optimize(zoo.chain(300), "50%", effort=effort, time_limit=1.0)
    assert time.process_time() - start < 30
    assert plan.verify().peak_bytes <= plan.budget


def test_on_a_small_graph_any_effort_ends() -> None:
    assert optimize(zoo.chain(8), 8, effort=1e308).report.plan.cost == 18  # public case C1: 8 -> 18


def test_where_skips_span_the_network_a_few_tensors_together_are_a_cut() -> None:
    graph = lower(zoo.unet(batch=2, image=188, channels=16, optimizer=None))
    activations = MemoryModel("activations")
    arrays = encode(graph, activations)
    single, several = forward_part(graph, arrays), forward_part(graph, arrays, most_crossing=16)
    assert single is not None
    assert several is not None
    # four skips: a cut at the bottom keeps all of them
    assert max(len(members) for members in several.members) >= 5
    assert max(len(members) for members in single.members) < 5
    plan = optimize(graph, "75%", memory=activations, strategy="chen-budget", allocator=None)
    assert plan.verify().peak_bytes <= 0.75 * plan.report.keep_all.peak_bytes
