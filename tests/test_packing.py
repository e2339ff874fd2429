"""Allocators: no two buffers overlap at a step, and no arena is below the bytes live at a step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import networkx as nx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from naive import lower_bound, overlaps, stacked
from programs import op, steps
from strategies import digraphs, memory_models, schedules

import planner
from planner import Allocation, MemoryModel, UnknownAllocator, VerificationError, allocate, lower, optimize, simulate
from planner.graph import Graph, Op, Tensor
from planner.kernels.placement import place
from planner.packing import allocator_names, best_fit, first_fit, register_allocator
from planner.schedule import Compute, Free, Schedule

ALLOCATORS = [*allocator_names(), partial(first_fit, order="breadth"), partial(best_fit, order="breadth")]
# Those that place buffer by buffer; nnvm shares whole blocks.
FITS = [allocator for allocator in ALLOCATORS if allocator != "nnvm"]
QUICK = settings(suppress_health_check=list(HealthCheck))


def put(buffers: list[tuple[int, int, int]], *, best: bool, alignment: int = 1) -> tuple[list[int], int]:
    """Offsets and top of (bytes, start, end), placed in the order given."""
    nbytes, start, end = (np.array(column, dtype=np.int64) for column in zip(*buffers, strict=True))
    offset = np.full(len(buffers), -1, dtype=np.int64)
    top = place(np.arange(len(buffers)), nbytes, np.full_like(nbytes, alignment), start, end, best, offset)
    return offset.tolist(), int(top)


# by hand

#: During step 1: [0, 4) taken, a hole of 6, [10, 13) taken, a hole of 3, [16, 18) taken; the last buffer wants 2 bytes.
TWO_HOLES = [(4, 0, 2), (6, 0, 1), (3, 0, 2), (3, 0, 1), (2, 0, 2), (2, 1, 2)]


def test_first_fit_takes_the_lowest_hole() -> None:
    assert put(TWO_HOLES, best=False) == ([0, 4, 10, 13, 16, 4], 18)


def test_best_fit_takes_the_smallest_hole() -> None:
    assert put(TWO_HOLES, best=True) == ([0, 4, 10, 13, 16, 13], 18)


def test_a_buffer_that_fits_no_hole_goes_on_top() -> None:
    for best in [False, True]:
        assert put([*TWO_HOLES[:-1], (7, 1, 2)], best=best) == ([0, 4, 10, 13, 16, 18], 25)


def test_lifetimes_are_half_open_so_that_neighbours_in_time_share_bytes() -> None:
    for best in [False, True]:
        assert put([(5, 0, 2), (5, 2, 4)], best=best) == ([0, 0], 5)
        assert put([(5, 0, 3), (5, 2, 4)], best=best) == ([0, 5], 10)


def test_offsets_are_aligned_where_a_workspace_is_not_a_multiple() -> None:
    assert put([(3, 0, 2), (8, 0, 2), (1, 0, 1)], best=False, alignment=4) == ([0, 4, 12], 13)


def chain_of(sizes: list[int], **attributes: Any) -> tuple[Graph, Schedule]:
    """Ops of these sizes, each reading the one before; keep-all."""
    graph = nx.DiGraph()
    for k, size in enumerate(sizes):
        graph.add_node(f"v{k}", nbytes=size, **attributes)
        if k:
            graph.add_edge(f"v{k - 1}", f"v{k}")
    plan = optimize(graph)
    return plan.graph, plan.schedule


def test_a_chain_shares_the_bytes_of_every_second_value() -> None:
    for allocator in ALLOCATORS:
        graph, schedule = chain_of([8, 8, 8, 8, 8, 8])
        assert allocate(graph, schedule, allocator=allocator).arena_bytes == 16


def test_workspace_has_a_buffer_of_one_step() -> None:
    for allocator in ALLOCATORS:
        graph, schedule = chain_of([8, 8, 8], workspace=5)
        allocation = allocate(graph, schedule, allocator=allocator)
        scratch = [(b.value, b.execution, b.nbytes, b.start, b.end) for b in allocation.buffers if b.workspace]
        assert sorted(scratch) == [("v0", 0, 5, 0, 1), ("v1", 0, 5, 1, 2), ("v2", 0, 5, 2, 3)]
        assert allocation.arena_bytes == 21


def test_residents_lie_below_the_arena_in_scope_total_and_outside_in_activations() -> None:
    for allocator in ALLOCATORS:
        weight = Op("w", (Tensor("w", 100),), kind="parameter")
        graph = Graph([weight, op("a", "w", nbytes=7, output=True)])
        schedule = Schedule.of([Compute("a")])
        total = allocate(graph, schedule, allocator=allocator, memory=MemoryModel(alignment=8))
        assert (total.resident_bytes, total.arena_bytes, len(total.buffers)) == (104, 112, 1)
        scoped = allocate(graph, schedule, allocator=allocator, memory=MemoryModel(scope="activations", alignment=8))
        assert (scoped.resident_bytes, scoped.arena_bytes) == (0, 8)


def test_a_program_without_ops_has_an_empty_arena() -> None:
    for allocator in ALLOCATORS:
        assert allocate(Graph([]), Schedule.of([]), allocator=allocator).arena_bytes == 0


def test_a_value_made_twice_has_two_buffers() -> None:
    for allocator in ALLOCATORS:
        graph = Graph([op("a"), op("b", "a"), op("c", "b", "a", output=True)])
        allocation = allocate(graph, steps("a b -a a c -a -b"), allocator=allocator)
        found = sorted((b.value, b.execution, b.start, b.end) for b in allocation.buffers)
        assert found == [("a", 0, 0, 2), ("a", 1, 2, 4), ("b", 0, 1, 4), ("c", 0, 3, 4)]


# laws


@st.composite
def interval_sets(draw: Callable) -> tuple[list[tuple[int, int, int]], int]:
    alignment = draw(st.sampled_from([1, 4, 512]))
    buffers = []
    for _ in range(draw(st.integers(1, 25))):
        start = draw(st.integers(0, 12))
        buffers.append((draw(st.integers(0, 5)) * alignment, start, start + draw(st.integers(1, 8))))
    return draw(st.permutations(buffers)), alignment


@QUICK
@given(sets=interval_sets(), best=st.booleans())
def test_no_two_placed_buffers_share_a_byte_at_a_step(sets: Any, best: bool) -> None:
    intervals, alignment = sets
    offsets, top = put(intervals, best=best, alignment=alignment)
    buffers = [
        planner.Buffer(str(k), 0, False, nbytes, start, end, offset)
        for k, ((nbytes, start, end), offset) in enumerate(zip(intervals, offsets, strict=True))
    ]
    assert overlaps(buffers) == []
    assert all(offset % alignment == 0 and offset >= 0 for offset in offsets)
    assert top == max(b.offset + b.nbytes for b in buffers)
    assert lower_bound(buffers) <= top <= sum(b.nbytes for b in buffers)


@pytest.mark.parametrize("allocator", ALLOCATORS)
@QUICK
@given(digraph=digraphs(), memory=memory_models(), data=st.data())
def test_an_allocation_holds_exactly_the_storages_of_the_schedule_and_none_overlap(
    allocator: Any, digraph: nx.DiGraph, memory: MemoryModel, data: st.DataObject
) -> None:
    graph = lower(digraph)
    schedule = data.draw(schedules(graph))
    allocation = allocate(graph, schedule, allocator=allocator, memory=memory)
    assert overlaps(allocation.buffers) == []
    shared = {(b.value, b.execution) for b in stacked(graph, schedule, memory=memory).buffers if not b.workspace}
    declined = {(b.value, b.execution) for b in allocation.buffers if not b.workspace} - shared
    assert allocator == "nnvm" or not declined
    wanted = stacked(graph, schedule, memory=memory, declined=declined)

    def rows(some: Allocation) -> list[tuple]:
        return sorted((b.value, b.execution, b.workspace, b.nbytes, b.start, b.end) for b in some.buffers)

    assert rows(allocation) == rows(wanted)
    assert all(b.offset % memory.alignment == 0 for b in allocation.buffers)
    trace = simulate(graph, schedule, memory=memory, allocation=allocation)
    top = max((b.offset + b.nbytes for b in allocation.buffers), default=0)
    assert allocation.arena_bytes == trace.arena_bytes == allocation.resident_bytes + top
    assert allocation.resident_bytes + lower_bound(allocation.buffers) <= allocation.arena_bytes
    assert trace.peak_bytes <= allocation.arena_bytes
    rounded = sum(memory.round_up(b.nbytes) for b in allocation.buffers)
    assert allocation.arena_bytes <= allocation.resident_bytes + rounded


@QUICK
@given(digraph=digraphs(), memory=memory_models(), data=st.data())
def test_auto_is_no_larger_than_any_of_its_rules(digraph: nx.DiGraph, memory: MemoryModel, data: st.DataObject) -> None:
    graph = lower(digraph)
    schedule = data.draw(schedules(graph))
    rules = [allocator for allocator in FITS if allocator != "exact"]
    arenas = [allocate(graph, schedule, allocator=rule, memory=memory).arena_bytes for rule in rules]
    least = allocate(graph, schedule, memory=memory).arena_bytes
    assert least == min(arenas)
    assert allocate(graph, schedule, memory=memory, allocator="exact").arena_bytes <= least


# names and callables


def test_an_unknown_allocator_is_refused_with_the_names_there_are() -> None:
    graph, schedule = chain_of([1, 1])
    for call in (partial(allocate, graph, schedule), partial(optimize, graph)):
        with pytest.raises(UnknownAllocator) as caught:
            call(allocator="worst-fit")
        assert "worst-fit" in str(caught.value)
        assert all(name in str(caught.value) for name in ("auto", "first-fit", "best-fit"))


def test_a_callable_or_a_partial_is_an_allocator_and_named_for_its_function() -> None:
    graph, schedule = chain_of([4, 8, 2])
    assert allocate(graph, schedule, allocator=best_fit).arena_bytes == 12
    assert optimize(graph, allocator=partial(first_fit, order="breadth")).allocator == "first_fit"


def spread(graph: Graph, schedule: Schedule, *, memory: MemoryModel) -> Allocation:
    """Correct, and wasteful."""
    return stacked(graph, schedule, memory=memory)


def test_a_registered_allocator_is_found_by_name_and_saved_with_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.packing._ALLOCATORS", dict(planner.packing._ALLOCATORS))
    register_allocator("spread", spread)
    assert "spread" in allocator_names()
    graph, _ = chain_of([4, 8, 2])
    plan = optimize(graph, allocator="spread")
    assert (plan.allocator, plan.report.allocator) == ("spread", "spread")
    assert plan.report.plan.arena_bytes == 14
    assert plan.report.plan.peak_bytes == 12


# allocators that lie


def altered(change: Callable[[Allocation], Allocation]) -> Callable[..., Allocation]:
    def broken(graph: Graph, schedule: Schedule, *, memory: MemoryModel) -> Allocation:
        return change(stacked(graph, schedule, memory=memory))

    return broken


def with_buffers(change: Callable[[list], list]) -> Callable[[Allocation], Allocation]:
    return lambda allocation: msgspec.structs.replace(allocation, buffers=tuple(change(list(allocation.buffers))))


def each(fields: Callable[[Any], dict[str, int]]) -> Callable[[Allocation], Allocation]:
    """Change some fields of every buffer."""
    return with_buffers(lambda buffers: [msgspec.structs.replace(b, **fields(b)) for b in buffers])


BROKEN = {
    "overlapping offsets": each(lambda b: {"offset": 0}),
    "a buffer left out": with_buffers(lambda buffers: buffers[:-1]),
    "a buffer given twice": with_buffers(lambda buffers: [*buffers, buffers[0]]),
    "a buffer too small": each(lambda b: {"nbytes": b.nbytes - 1}),
    "a buffer born too late": each(lambda b: {"start": b.start + 1}),
    "a buffer that dies too soon": each(lambda b: {"end": b.end - 1}),
    "a negative offset": each(lambda b: {"offset": b.offset - 64}),
    "a buffer of nothing": with_buffers(lambda buffers: [*buffers, msgspec.structs.replace(buffers[0], execution=9)]),
    "an arena said to be smaller": lambda a: msgspec.structs.replace(a, arena_bytes=a.arena_bytes - 1),
    "an arena said to be larger": lambda a: msgspec.structs.replace(a, arena_bytes=a.arena_bytes + 1),
    "a bound above its own arena": lambda a: msgspec.structs.replace(a, bound_bytes=a.arena_bytes + 1),
    "other residents": lambda a: msgspec.structs.replace(a, resident_bytes=1, arena_bytes=a.arena_bytes + 1),
}


def test_the_judge_refuses() -> None:
    for fault in BROKEN:
        graph, schedule = chain_of([8, 8, 8])
        with pytest.raises(VerificationError):
            allocate(graph, schedule, allocator=altered(BROKEN[fault]))
        with pytest.raises(VerificationError):
            optimize(graph, allocator=altered(BROKEN[fault]))
        with pytest.raises(VerificationError):
            optimize(graph, 20, allocator=altered(BROKEN[fault]))


def test_an_allocator_may_decline_an_in_place_pair_and_pays_for_it() -> None:
    graph = Graph([op("a", nbytes=8), op("b", "a", nbytes=8, output=True, inplace=((0, 0, False),))])
    schedule = Schedule.of([Compute("a"), Compute("b"), Free("a")])
    assert allocate(graph, schedule).arena_bytes == 8
    declining = allocate(graph, schedule, allocator=partial(stacked, declined={("b", 0)}))
    assert declining.arena_bytes == 16
    assert simulate(graph, schedule, allocation=declining).peak_bytes == 8


def test_the_judge_refuses_offsets_that_are_not_aligned() -> None:
    graph, schedule = chain_of([8, 8])
    shifted = altered(
        lambda a: msgspec.structs.replace(each(lambda b: {"offset": b.offset + 4})(a), arena_bytes=a.arena_bytes + 4)
    )
    with pytest.raises(VerificationError, match="alignment"):
        allocate(graph, schedule, allocator=shifted, memory=MemoryModel(alignment=8))


def test_an_illegal_schedule_is_refused_before_it_is_packed() -> None:
    graph, _ = chain_of([8, 8])
    with pytest.raises(planner.ScheduleError, match="v0"):
        allocate(graph, Schedule.of([Compute("v1")]))
