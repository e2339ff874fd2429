"""The strategy "exact": optima of small graphs, and bounds of larger ones on schedules in program order."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

import cases
import networkx as nx
import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from naive import keep_all, least_cost, least_peak, naive_cost
from programs import op
from strategies import memory_models, simple_digraphs
from test_astar import LEAST_PEAKS
from test_certificate import LEAST_COSTS
from test_laws import GRAPHS, ORACLE_GRAPHS, PERCENT, budget_of, layered_digraphs

from bench import remat
from planner import Graph, InfeasibleBudget, MemoryModel, Op, PlannerError, Tensor, TimeLimit, lower, optimize, simulate
from planner.analysis.evaluator import evaluator_of
from planner.bounds.astar import cheapest_schedule
from planner.bounds.certificate import forget
from planner.bounds.stage_mip import Stages
from planner.bounds.states import compile_program
from planner.kernels import Floats
from planner.problem import Problem, Proposal, Stop
from planner.report import PROOFS
from planner.search.exact import exact, proves

SOME = settings(suppress_health_check=list(HealthCheck))
MANY = settings(max_examples=settings().max_examples * 2, suppress_health_check=list(HealthCheck))
STAGED_GRAPHS = st.one_of(layered_digraphs(least=3, most=6, aliasing=False), simple_digraphs(most_ops=9), GRAPHS)

#: `rematerialisation.md` 5, rows proved optimal for a fixed order; overhead in percent.
PROVED = {
    ("cm_vgg16", 0.9): 1.97, ("cm_vgg_unet", 0.8): 1.98, ("cm_vgg_unet", 0.6): 4.45, ("vgg16chain", 0.6): 0.01,
        ("vgg16chain", 0.5): 0.38,
    ("rl100", 0.9): 0.79,
}  # fmt: skip


def outcome(problem: Problem) -> Proposal | InfeasibleBudget:
    try:
        return exact(problem)
    except InfeasibleBudget as failure:
        return failure


@SOME
@given(digraph=ORACLE_GRAPHS, memory=memory_models(), percent=PERCENT)
def test_small_graphs_are_solved_and_said_to_be(digraph: nx.DiGraph, memory: MemoryModel, percent: int) -> None:
    graph = lower(digraph)
    smallest = exact(Problem(graph, None, memory))
    least = least_peak(graph, memory=memory)
    assert simulate(graph, smallest.schedule, memory=memory).peak_bytes == smallest.peak_lower_bound == least
    assert smallest.optimal == "peak, order free"
    budget = budget_of(graph, memory, percent)
    cost = least_cost(graph, budget, memory=memory)
    proposal = outcome(Problem(graph, budget, memory))
    if isinstance(proposal, InfeasibleBudget):
        assert cost is None
        assert (proposal.proven, proposal.minimum, proposal.peak_lower_bound) == (True, least, least)
        return
    assert simulate(graph, proposal.schedule, memory=memory).cost == cost == proposal.cost_lower_bound
    assert proposal.optimal == "cost at this budget, order free"


@SOME
@given(
    digraph=GRAPHS,
    memory=memory_models(),
    percent=PERCENT,
    order=st.sampled_from(["free", "pinned"]),
    limited=st.booleans(),
)
def test_any_graph_has_a_plan_that_fits_and_a_bound_below_it(
    digraph: nx.DiGraph, memory: MemoryModel, percent: int, order: str, limited: bool
) -> None:
    graph = lower(digraph)
    budget = budget_of(graph, memory, percent) if limited else None
    problem = Problem(graph, budget, memory, order, effort=0.2)  # type: ignore[arg-type]
    proposal = outcome(problem)
    if isinstance(proposal, InfeasibleBudget):
        assert budget is not None
        assert proposal.minimum is not None
        assert proposal.minimum > budget
        assert proposal.proven == (budget < proposal.peak_lower_bound)
        return
    trace = simulate(graph, proposal.schedule, memory=memory)
    assert proposal.optimal is None or (proposal.optimal in PROOFS and proposal.optimal.endswith(order))
    if budget is None:
        assert proposal.peak_lower_bound is not None
        assert proposal.peak_lower_bound <= trace.peak_bytes
        assert (proposal.optimal is not None) == (proposal.peak_lower_bound == trace.peak_bytes)
    else:
        assert proposal.cost_lower_bound is not None
        assert naive_cost(graph, keep_all(graph)) <= proposal.cost_lower_bound <= trace.cost
        assert trace.peak_bytes <= budget
        assert (proposal.optimal is not None) == (proposal.cost_lower_bound == trace.cost)
    assert proposal == exact(problem)
    if order == "pinned":
        assert list(dict.fromkeys(proposal.schedule.computes)) == list(keep_all(graph).computes)


def test_public_cases_are_proven() -> None:
    for name, budget in [(name, budget) for name, costs in LEAST_COSTS.items() for budget in costs]:
        for order in ["free", "pinned"]:
            graph = lower(cases.CASES[name].digraph())
            proposal = exact(Problem(graph, budget, order=order))  # type: ignore[arg-type]
            assert simulate(graph, proposal.schedule).cost == LEAST_COSTS[name][budget] == proposal.cost_lower_bound
            assert proposal.optimal == f"cost at this budget, order {order}"


def test_the_least_peaks_of_the_public_cases_are_proven_and_less_is_infeasible() -> None:
    for name in LEAST_PEAKS:
        graph = lower(cases.CASES[name].digraph())
        proposal = exact(Problem(graph, None))
        assert simulate(graph, proposal.schedule).peak_bytes == LEAST_PEAKS[name] == proposal.peak_lower_bound
        with pytest.raises(InfeasibleBudget) as caught:
            exact(Problem(graph, LEAST_PEAKS[name] - 1))
        assert (caught.value.proven, caught.value.minimum) == (True, LEAST_PEAKS[name])
        with pytest.raises(InfeasibleBudget, match="no plan fits") as caught:
            optimize(graph, LEAST_PEAKS[name] - 1, strategy="exact", allocator=None)
        assert (caught.value.proven, caught.value.minimum) == (True, LEAST_PEAKS[name])


def test_a_proof_can_be_had_again_and_none_of_a_dearer_plan() -> None:
    for name, budget in [("C1", 5), ("C2", 232), ("C7-b-first", 40), ("C9", 25)]:
        for order in ["free", "pinned"]:
            graph = lower(cases.CASES[name].digraph())
            problem = Problem(graph, budget, order=order)  # type: ignore[arg-type]
            assert proves(problem, exact(problem).schedule, bound=LEAST_COSTS[name][budget])
            assert not proves(problem, exact(problem).schedule, bound=LEAST_COSTS[name][budget] + 1)
            lowest = Problem(graph, None, order=order)  # type: ignore[arg-type]
            smallest, least = exact(lowest).schedule, simulate(graph, exact(lowest).schedule).peak_bytes
            assert proves(lowest, smallest, bound=least)
            assert proves(lowest, keep_all(graph), bound=least)  # of a larger plan too: nothing is below it
            assert not proves(lowest, keep_all(graph), bound=simulate(graph, keep_all(graph)).peak_bytes)
            assert not proves(problem, smallest, bound=LEAST_COSTS[name][budget] + 1)


# -------------------------------------------------------------------------------------------- the mixed-integer program


@MANY
@given(digraph=STAGED_GRAPHS, memory=memory_models(), percent=PERCENT)
def test_no_schedule_in_program_order_is_below_the_stages(
    digraph: nx.DiGraph, memory: MemoryModel, percent: int
) -> None:
    pytest.importorskip("highspy")
    graph = lower(digraph)
    budget = budget_of(graph, memory, percent)
    if not compile_program(graph, memory, pinned=True).plain:
        return
    answer = cheapest_schedule(graph, memory, budget, pinned=True)
    if not answer.proven:
        return
    solved = Stages(graph, memory, budget).solve(None, effort=1.0, seed=0, stop=Stop())
    one_run = naive_cost(graph, keep_all(graph))
    assert one_run + solved.extra_cost <= answer.bound
    event("tight" if one_run + solved.extra_cost == answer.bound else "loose")
    if solved.extra_cost == math.inf:
        assert answer.schedule is None


def violation(stages: Stages, columns: Floats) -> float:
    """By how much columns break the row they break most; at most 0 for a solution."""
    stages.build()
    sums = np.zeros(len(stages._most))
    rows = np.repeat(np.arange(len(stages._most)), np.diff(stages._starts))
    np.add.at(sums, rows, np.array(stages._entries) * columns[stages._index])
    return float((sums - np.array(stages._most)).max(initial=-np.inf))


@MANY
@given(digraph=STAGED_GRAPHS, memory=memory_models(), percent=PERCENT)
def test_every_schedule_in_program_order_is_a_solution_of_the_stages_at_no_more_than_its_cost(
    digraph: nx.DiGraph, memory: MemoryModel, percent: int
) -> None:
    graph = lower(digraph)
    if not compile_program(graph, memory, pinned=True).plain:
        return
    budget = budget_of(graph, memory, percent)
    answer = cheapest_schedule(graph, memory, budget, pinned=True)
    if answer.schedule is None:
        return
    evaluator = evaluator_of(graph, memory)
    sequence = evaluator.sequence(answer.schedule)
    judged = evaluator.evaluate(sequence)
    if judged is None or judged[0] > budget:
        return  # its frees are not the canonical ones
    stages = Stages(graph, memory, budget)
    columns = stages.start_of(sequence)
    assert violation(stages, columns) <= 1e-9
    assert stages.cost(columns) <= judged[1] - naive_cost(graph, keep_all(graph)) + 1e-9


def test_the_stages_of_the_public_cases() -> None:
    for name in ["C1", "C2", "C3", "C7-b-first", "C9"]:
        pytest.importorskip("highspy")
        graph = lower(cases.CASES[name].digraph())
        for budget, cost in LEAST_COSTS[name].items():
            solved = Stages(graph, MemoryModel(), budget).solve(None, effort=1.0, seed=0, stop=Stop())
            assert solved.solved
            assert solved.extra_cost <= cost - naive_cost(graph, keep_all(graph))
            if (name, budget) != ("C1", 3) and solved.sequence is not None:
                assert list(dict.fromkeys(solved.sequence.tolist())) == [
                    k for k, o in enumerate(graph.ops) if not o.resident
                ]


@pytest.mark.parametrize(("name", "fraction"), PROVED)
def test_rows_proved_elsewhere_for_a_fixed_order_are_proved_here(name: str, fraction: float, shared: Path) -> None:
    pytest.importorskip("highspy")
    if remat.missing(name):
        pytest.skip("shared files absent")
    graph = lower(remat.read(name))
    evaluator = evaluator_of(graph, MemoryModel())
    kept = evaluator.evaluate(evaluator.keep_all)
    assert kept is not None
    proposal = exact(Problem(graph, int(fraction * kept[0]), order="pinned"))
    trace = simulate(graph, proposal.schedule)
    assert proposal.optimal == "cost at this budget, order pinned"
    assert proposal.cost_lower_bound == trace.cost
    assert abs(100 * (trace.cost / kept[1] - 1) - PROVED[name, fraction]) <= 0.006
    assert proves(
        Problem(graph, int(fraction * kept[0]), order="pinned"),
        proposal.schedule,
        bound=proposal.cost_lower_bound or 0.0,
    )


def test_where_each_op_waits_for_the_one_before_the_proof_holds_for_any_order(shared: Path) -> None:
    pytest.importorskip("highspy")
    graph = lower(remat.read("vgg16chain"))
    evaluator = evaluator_of(graph, MemoryModel())
    kept = evaluator.evaluate(evaluator.keep_all)
    assert kept is not None
    proposal = exact(Problem(graph, kept[0] // 2))
    assert proposal.optimal == "cost at this budget, order free"


# ------------------------------------------------------------------------------------------------ limits


def wide(count: int = 20) -> Graph:
    """A chain with skips that no quick argument solves, too long for all its schedules; order pinned by nothing."""
    ops = [Op("f0", (Tensor("f0", 7),))]
    for k in range(1, count):
        skips = (f"f{k - 3}",) if k % 4 == 3 else ()
        ops.append(Op(f"f{k}", (Tensor(f"f{k}", 5 + k % 3),), reads=(f"f{k - 1}", *skips), cost=1.0 + k % 5))
    for k in range(count - 1, -1, -1):
        above = (f"b{k + 1}",) if k < count - 1 else ()
        ops.append(Op(f"b{k}", (Tensor(f"b{k}", 6, output=k == 0),), reads=(*above, f"f{k}"), cost=2.0))
    return Graph(ops)


def test_without_highspy_small_graphs_are_solved_and_larger_ones_name_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    graph = lower(cases.C1.digraph())
    assert exact(Problem(graph, 4, order="pinned")).optimal
    with pytest.raises(PlannerError, match=r"needs highspy .*pip install 'sublinear-planner\[exact\]'"):
        exact(Problem(wide(), 50, order="pinned", effort=0.2))


def test_a_deadline_is_kept_and_what_is_known_is_told() -> None:
    graph = lower(cases.C2.digraph())
    with pytest.raises(TimeLimit):
        exact(Problem(graph, 232, stop=Stop(0.0)))
    late = exact(Problem(graph, None, stop=Stop(0.0)))
    assert late.cut_short
    assert late.optimal is None
    assert exact(Problem(graph, 296, stop=Stop(0.0))).optimal  # keep-all fits


def test_the_solver_says_nothing_on_standard_output_and_stops_at_a_deadline(capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("highspy")
    stages = Stages(wide(40), MemoryModel(), 60)
    start = time.process_time()
    solved = stages.solve(None, effort=1.0, seed=0, stop=Stop.after(0.3))
    assert time.process_time() - start < 20
    assert not solved.solved
    assert capfd.readouterr() == ("", "")


def test_interrupting_keeps_the_best_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, module = wide(), sys.modules["planner.search.exact"]

    def interrupted_in(function: str) -> Problem:
        """A problem whose Ctrl-C comes as "exact" calls a function."""
        problem, called = Problem(graph, 80, effort=0.05), getattr(module, function)

        def interrupted(*args: object, **options: object) -> object:
            problem.stop.interrupt()
            forget()
            return called(*args, **options)

        monkeypatch.setattr(module, function, interrupted)
        return problem

    proposal = exact(interrupted_in("certified_cost"))
    assert proposal.cut_short
    assert simulate(graph, proposal.schedule).peak_bytes <= 80
    with pytest.raises(TimeLimit):
        exact(interrupted_in("cuts"))


def test_names_that_share_storages_are_not_modelled_and_nothing_is_claimed_of_them() -> None:
    view = [
        op("a", nbytes=8),
        Op("v", (Tensor("v", 8),), reads=("a",), view=((0, 0, 0),)),
        op("b", "v", nbytes=8, output=True),
    ]
    assert not compile_program(Graph(view), MemoryModel(), pinned=True).plain
    assert compile_program(
        Graph([op("a", nbytes=8), op("b", "a", nbytes=8, output=True)]), MemoryModel(), pinned=True
    ).plain


def test_optimize_takes_it_by_name() -> None:
    plan = optimize(cases.C2.digraph(), 232, strategy="exact", allocator=None)
    assert plan.report.plan.cost == 132
    assert np.isfinite(plan.report.cost_lower_bound)
