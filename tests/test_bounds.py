"""What no plan can go below: by hand, and against the exhaustive search."""

from __future__ import annotations

from typing import Any

import networkx as nx
import pytest
from cases import C2, C3, C7_B_FIRST, CASES, c8
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from naive import least_peak, naive_peak
from programs import op
from strategies import digraphs, memory_models, schedules, simple_digraphs
from test_kernels import loose_schedules

from planner import Graph, InfeasibleBudget, MemoryModel, Op, lower, optimize, zoo
from planner.bounds.peak import no_plan, peak_lower_bound
from planner.planning.infeasible import infeasible
from planner.problem import Budget, Problem

QUICK = settings(suppress_health_check=list(HealthCheck))


def bound(*ops: Op, **memory: Any) -> tuple[int, str | None, set[str]]:
    found = peak_lower_bound(Graph(ops), MemoryModel(**memory))
    return found.nbytes, found.op, set(found.live)


# ------------------------------------------------------------------------------------------------ by hand


def test_the_bound_is_the_largest_working_set_of_one_op() -> None:
    ops = [op("a", nbytes=10), op("b", "a", nbytes=20, workspace=7), op("c", "b", nbytes=5, output=True)]
    assert bound(*ops) == (37, "b", {"a", "b"})


def test_the_outputs_at_the_end_bind_where_no_op_needs_more() -> None:
    ops = [op(name, nbytes=10, output=True) for name in "abcd"]
    assert bound(*ops) == (40, None, {"a", "b", "c", "d"})


def test_residents_count_once_in_scope_total_and_not_in_activations() -> None:
    ops = [op("w", nbytes=100, kind="parameter"), op("a", "w", "w", nbytes=7), op("b", "a", "w", nbytes=3, output=True)]
    assert bound(*ops) == (110, "b", {"a", "b"})
    assert bound(*ops, scope="activations") == (10, "b", {"a", "b"})
    assert bound(ops[0]) == (100, None, set())


def test_every_storage_is_rounded_up_once_and_workspace_is_not() -> None:
    ops = [op("w", nbytes=1, kind="state"), op("a", "w", nbytes=5), op("b", "a", nbytes=9, workspace=3, output=True)]
    assert bound(*ops, alignment=8) == (8 + 8 + 16 + 3, "b", {"a", "b"})


def test_a_value_read_twice_counts_once() -> None:
    assert bound(op("a", nbytes=10), op("b", "a", "a", nbytes=1, output=True)) == (11, "b", {"a", "b"})


def test_a_view_adds_nothing_to_its_base() -> None:
    ops = [op("a", nbytes=10), op("v", "a", nbytes=10, view=((0, 0, 0),)), op("b", "a", "v", nbytes=1, output=True)]
    assert bound(*ops)[:2] == (11, "b")


def test_a_view_of_a_resident_adds_nothing() -> None:
    ops = [
        op("w", nbytes=10, kind="parameter"),
        op("v", "w", nbytes=10, view=((0, 0, 0),)),
        op("b", "v", nbytes=1, output=True),
    ]
    assert bound(*ops)[0] == 11


def test_an_update_adds_nothing() -> None:
    ops = [
        op("w", nbytes=10, kind="parameter"),
        op("g", "w", nbytes=10),
        op("s", "w", "g", nbytes=10, updates=((0, 0),), output=True),
    ]
    assert bound(*ops)[:2] == (20, "g")
    fresh = [op("a", nbytes=10), op("s", "a", nbytes=10, updates=((0, 0),), output=True)]
    assert bound(*fresh)[0] == 10


def test_an_in_place_pair_is_granted_where_the_sizes_are_equal() -> None:
    assert bound(op("a", nbytes=10), op("b", "a", nbytes=10, inplace=((0, 0, False),), output=True))[0] == 10
    assert bound(op("a", nbytes=10), op("b", "a", nbytes=9, inplace=((0, 0, False),), output=True))[0] == 19
    resident = [op("w", nbytes=10, kind="parameter"), op("b", "w", nbytes=10, inplace=((0, 0, False),), output=True)]
    assert bound(*resident)[0] == 20


def test_values_on_one_storage_by_identity_count_once() -> None:
    ops = [
        op("a", nbytes=10),
        op("same", "a", nbytes=10, inplace=((0, 0, True),)),
        op("b", "a", "same", nbytes=1, output=True),
    ]
    assert bound(*ops)[:2] == (11, "b")
    chained = [
        *ops[:2],
        op("again", "same", nbytes=10, inplace=((0, 0, True),)),
        op("b", "a", "same", "again", nbytes=1, output=True),
    ]
    assert bound(*chained)[:2] == (11, "b")


def test_values_that_an_identity_pair_cannot_join_are_counted_apart_or_the_bound_is_smaller() -> None:
    ops = [
        op("a", nbytes=10),
        op("other", "a", nbytes=6, inplace=((0, 0, True),)),  # sizes differ: never on one storage
        op("b", "a", "other", nbytes=1, output=True),
    ]
    assert 11 <= bound(*ops)[0] <= 17


@pytest.mark.parametrize(("case", "nbytes", "binding"), [(C3, 160, "gb"), (C2, 224, "ge1"), (C7_B_FIRST, 38, "B1")])
def test_cases_with_a_minimum_that_one_step_binds_have_it_as_their_bound(case: Any, nbytes: int, binding: str) -> None:
    found = peak_lower_bound(lower(case.digraph()), MemoryModel())
    assert (found.nbytes, found.op) == (nbytes, binding)


#: Least peaks by the exhaustive oracle of `cases.md`.
LEAST = {
    "C1": 3, "C2": 224, "C3": 160, "C5": 39_829_110_788, "C7-b-first": 38, "C7-dead": 24, "C9": 25, "C9-replayed": 24,
}  # fmt: skip


@pytest.mark.parametrize(("name", "least"), LEAST.items())
def test_no_bound_is_above_the_least_peak_that_cases_state(name: str, least: int) -> None:
    assert peak_lower_bound(lower(CASES[name].digraph()), MemoryModel()).nbytes <= least


def test_the_unit_chain_cannot_go_below_one_backward_step() -> None:
    for n in (2, 5, 50):
        assert peak_lower_bound(lower(zoo.chain(n, reads=("in",))), MemoryModel()).nbytes == 3
        assert peak_lower_bound(lower(zoo.chain(n, reads=("in", "out"))), MemoryModel()).nbytes == 4


def test_c8_ends_with_its_two_outputs() -> None:
    found = peak_lower_bound(lower(c8()), MemoryModel())
    assert found.nbytes <= 8 + 40


# ------------------------------------------------------------------------------------------------ laws


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(digraph=simple_digraphs(), memory=memory_models())
def test_the_bound_is_never_above_the_least_peak_of_the_exhaustive_search(
    digraph: nx.DiGraph, memory: MemoryModel
) -> None:
    graph = lower(digraph)
    assert peak_lower_bound(graph, memory).nbytes <= least_peak(graph, memory=memory)


@QUICK
@given(digraph=digraphs(), memory=memory_models(), data=st.data())
def test_no_legal_schedule_goes_below_the_bound(digraph: nx.DiGraph, memory: MemoryModel, data: st.DataObject) -> None:
    graph = lower(digraph)
    for schedule in (data.draw(schedules(graph)), data.draw(loose_schedules(graph))):
        assert peak_lower_bound(graph, memory).nbytes <= naive_peak(graph, schedule, memory.alignment, memory.scope)


@QUICK
@given(digraph=digraphs(), memory=memory_models())
def test_the_values_named_are_live_beside_the_op_that_binds(digraph: nx.DiGraph, memory: MemoryModel) -> None:
    graph = lower(digraph)
    found = peak_lower_bound(graph, memory)
    assert len(set(found.live)) == len(found.live)
    if found.op is None:
        assert set(found.live) <= set(graph.outputs)
    else:
        binding = graph.op_named[found.op]
        assert set(found.live) <= {*binding.reads, *(t.name for t in binding.outputs)}
    assert not any(graph.on_resident(value) for value in found.live)


# ------------------------------------------------------------------------------------------------ the error


def test_the_error_is_proven_only_below_the_bound_and_counts_the_reserve() -> None:
    graph = lower(C3.digraph())
    memory = MemoryModel(reserve=10)
    for budget, proven in ((169, True), (170, False)):
        asked = Budget(str(budget), budget)
        error = infeasible(graph, memory, budget=asked, minimum=171, found_by="chen-sqrt", keep_all_peak_bytes=200)
        assert (error.proven, error.peak_lower_bound, error.minimum, error.binding_op) == (proven, 170, 171, "gb")
        assert "171" in str(error)
        assert "'gb'" in str(error)
        assert "Raise the budget" in str(error)


def test_a_strategys_error_is_in_live_bytes_and_promises_no_minimum_where_it_has_none() -> None:
    problem = Problem(lower(C3.digraph()), 159, MemoryModel(reserve=10))
    for minimum in (None, 161):
        error = no_plan(problem, "mine", minimum=minimum)
        assert (error.budget, error.minimum, error.peak_lower_bound, error.proven) == (159, minimum, 160, True)


def test_the_breakdown_of_the_error_adds_up() -> None:
    # C3 at gb: residents 100, inputs gc 20 and b 20, output gb 20.
    said: dict[str, Any] = {"budget": Budget("1", 1), "found_by": "auto", "keep_all_peak_bytes": 200}
    message = str(infeasible(lower(C3.digraph()), MemoryModel(), minimum=161, **said))
    assert all(part in message for part in ("160 B", "100 B", "40 B", "20 B"))
    ends = Graph([op("a", nbytes=10, output=True), op("b", nbytes=11, output=True)])
    assert "outputs at the end" in str(infeasible(ends, MemoryModel(), minimum=21, **said))


def test_the_error_has_the_budget_as_written_and_the_least_that_works_as_a_part_of_no_recomputation() -> None:
    # a and b live at once, one of 1000 and one of 500 bytes: nothing goes below the peak of keep-all.
    graph = Graph([op("a", nbytes=1000), op("b", "a", nbytes=500, output=True)])
    for budget, asked in (("40%", "40% = 600 B"), (0.4, "0.4 = 600 B"), (" 0.6KB ", "0.6KB = 600 B"), (600, "600 B")):
        with pytest.raises(InfeasibleBudget) as caught:
            optimize(graph, budget)
        first, last = str(caught.value).splitlines()
        assert first.startswith(f"no plan fits {asked} (600 bytes): ")
        assert "(1500 bytes, 'auto'), 100% of the peak without recomputation. Raise" in last


def test_the_part_of_no_recomputation_that_works_is_a_budget_that_works() -> None:
    graph = lower(zoo.mlp([7, 11, 13, 17], batch=5))
    with pytest.raises(InfeasibleBudget) as caught:
        optimize(graph, "1%")
    part = str(caught.value).splitlines()[1].split("), ")[1].split(" ")[0]
    assert part.endswith("%")
    budget = optimize(graph, part).budget
    assert caught.value.minimum <= budget <= caught.value.minimum * 1.002
