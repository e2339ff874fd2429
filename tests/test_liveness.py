"""Which storages a schedule makes, when they live, and what they take: by hand. The laws are in `test_kernels`."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import pytest
from cases import C3, c8
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from naive import keep_all, runs
from programs import op, program, steps
from strategies import broken_schedules, digraphs, memory_models, op_sequences

from planner import Graph, GraphError, MemoryModel, ScheduleError, lower, simulate
from planner.analysis.arrays import BACKWARD, FORWARD, encode
from planner.analysis.evaluator import Evaluator, evaluator_of

QUICK = settings(suppress_health_check=list(HealthCheck))


def lifetimes(graph: Graph, text: str, **memory: Any) -> list[tuple[str, int, int, int, int]]:
    """(name, execution, bytes, start, end) in order of birth; a workspace is named `op!`."""
    evaluator = Evaluator(graph, MemoryModel(**memory))
    found = evaluator.liveness(steps(text))
    values, ops = evaluator.encoded.value_names, evaluator.encoded.op_names
    columns = (found.value, found.workspace, found.execution, found.nbytes, found.start, found.end)
    return [
        (f"{ops[row]}!" if scratch else values[row], run, nbytes, start, end)
        for row, scratch, run, nbytes, start, end in zip(*(column.tolist() for column in columns), strict=True)
    ]


# ------------------------------------------------------------------------------------------------ lifetimes by hand


def test_a_value_lives_from_its_making_to_its_free_and_outputs_to_the_end() -> None:
    graph = program(op("a"), op("b", "a", nbytes=2), op("c", "b", nbytes=1, output=True), op("d", "c", nbytes=8))
    found = lifetimes(graph, "a b -a c -b d -d")
    assert found == [("a", 0, 4, 0, 2), ("b", 0, 2, 1, 3), ("c", 0, 1, 2, 4), ("d", 0, 8, 3, 4)]


def test_a_recomputed_value_is_a_new_storage() -> None:
    graph = Graph([op("a"), op("b", "a"), op("c", "a", "b", output=True)])
    found = lifetimes(graph, "a b -a a c -a -b")
    assert found == [("a", 0, 4, 0, 2), ("b", 0, 4, 1, 4), ("a", 1, 4, 2, 4), ("c", 0, 4, 3, 4)]


def test_a_view_keeps_its_base_and_has_no_storage() -> None:
    graph = Graph([op("a", nbytes=8), op("v", "a", nbytes=4, view=((0, 0, 4),)), op("b", "v", output=True)])
    assert lifetimes(graph, "a v -a b -v") == [("a", 0, 8, 0, 3), ("b", 0, 4, 2, 3)]


def test_an_old_view_pins_the_storage_a_recomputed_base_has_left() -> None:
    graph = Graph([op("a", nbytes=8), op("v", "a", nbytes=8, view=((0, 0, 0),)), op("b", "a", "v", output=True)])
    assert lifetimes(graph, "a v -a a b -a -v") == [("a", 0, 8, 0, 4), ("a", 1, 8, 2, 4), ("b", 0, 4, 3, 4)]


def test_an_update_goes_on_in_the_same_storage() -> None:
    graph = Graph([op("a", nbytes=8), op("u", "a", nbytes=8, updates=((0, 0),)), op("b", "u", output=True)])
    assert lifetimes(graph, "a u b -u") == [("a", 0, 8, 0, 3), ("b", 0, 4, 2, 3)]


def test_in_place_wants_equal_bytes_not_equal_bytes_rounded_up() -> None:
    graph = Graph([op("a", nbytes=5), op("b", "a", nbytes=7, inplace=((0, 0, False),), output=True)])
    assert lifetimes(graph, "a b -a", alignment=8) == [("a", 0, 8, 0, 2), ("b", 0, 8, 1, 2)]
    evaluator = Evaluator(graph, MemoryModel(alignment=8))
    assert evaluator.evaluate(evaluator.keep_all) == (16, 2.0)


def test_an_in_place_pair_goes_on_in_the_same_storage_where_the_input_dies() -> None:
    graph = Graph([op("a"), op("b", "a", inplace=((0, 0, False),)), op("c", "b", output=True)])
    assert lifetimes(graph, "a b -a c -b") == [("a", 0, 4, 0, 3), ("c", 0, 4, 2, 3)]
    assert lifetimes(graph, "a b c -a -b") == [("a", 0, 4, 0, 3), ("b", 0, 4, 1, 3), ("c", 0, 4, 2, 3)]


def test_an_identity_pair_shares_while_both_live() -> None:
    graph = Graph([op("a"), op("b", "a", inplace=((0, 0, True),)), op("c", "a", "b", output=True)])
    assert lifetimes(graph, "a b c -a -b") == [("a", 0, 4, 0, 3), ("c", 0, 4, 2, 3)]


def test_residents_have_no_row_and_workspace_has_one_of_a_single_step() -> None:
    graph = Graph([op("w", nbytes=100, kind="parameter"), op("a", "w", nbytes=5, workspace=3, output=True)])
    assert lifetimes(graph, "a", alignment=4) == [("a", 0, 8, 0, 1), ("a!", 0, 3, 0, 1)]
    total = Evaluator(graph, MemoryModel()).liveness(steps("a"))
    assert (total.resident_bytes, total.peak_bytes, total.timeline_bytes.tolist()) == (100, 108, [108])
    scoped = Evaluator(graph, MemoryModel(scope="activations")).liveness(steps("a"))
    assert (scoped.resident_bytes, scoped.peak_bytes) == (0, 8)


def test_a_kept_sibling_keeps_its_storage_and_its_copy_lives_one_step() -> None:
    graph = Graph([op("p", nbytes=(4, 8)), op("b", "p:0", "p:1", output=True)])
    pairs = [("p:0", 0, 4, 0, 1), ("p:1", 0, 8, 0, 3), ("p:0", 1, 4, 1, 3), ("p:1", 1, 8, 1, 2)]
    assert lifetimes(graph, "p -p:0 p b -p:0 -p:1") == [*pairs, ("b", 0, 4, 2, 3)]


def test_the_storages_of_case_8_are_five_not_seven() -> None:
    graph = lower(c8())
    evaluator = Evaluator(graph, MemoryModel(scope="activations"))
    liveness = evaluator.liveness(keep_all(graph))
    assert len(liveness.value) == 5
    assert int(liveness.nbytes.sum()) == 40


# ------------------------------------------------------------------------------------------------ sequences


def test_keep_all_is_the_program_order_without_residents() -> None:
    graph = lower(C3.digraph())
    evaluator = Evaluator(graph, MemoryModel())
    assert " ".join(evaluator.encoded.op_names[row] for row in evaluator.keep_all) == "a b c d gd gc gb ga gx"
    assert evaluator.evaluate(evaluator.keep_all) == (163, 25.0)


@QUICK
@given(digraph=digraphs(), memory=memory_models(), data=st.data())
def test_schedule_and_sequence_are_inverse(digraph: nx.DiGraph, memory: MemoryModel, data: st.DataObject) -> None:
    graph = lower(digraph)
    order = data.draw(op_sequences(graph))
    evaluator = Evaluator(graph, memory)
    rows = np.array([evaluator.encoded.op_index[name] for name in order], dtype=np.int64)
    made = evaluator.schedule(rows)
    assert made.computes == tuple(order)
    assert evaluator.sequence(made).tolist() == rows.tolist()
    assert runs(evaluator.schedule(evaluator.keep_all)) == runs(keep_all(graph))


def test_evaluating_one_sequence_leaves_no_trace_on_the_next() -> None:
    graph = lower(C3.digraph())
    evaluator = Evaluator(graph, MemoryModel())
    once = evaluator.evaluate(evaluator.keep_all)
    assert evaluator.evaluate(evaluator.keep_all[1:]) is None
    assert evaluator.evaluate(np.empty(0, dtype=np.int64)) is None  # rule 12: every op runs
    assert evaluator.evaluate(evaluator.keep_all) == once


def test_equal_graphs_and_models_share_an_evaluator() -> None:
    graph = lower(C3.digraph())
    assert evaluator_of(graph, MemoryModel()) is evaluator_of(lower(C3.digraph()), MemoryModel())
    assert evaluator_of(graph, MemoryModel()) is not evaluator_of(graph, MemoryModel(alignment=2))


def test_unknown_names_and_illegal_schedules_are_schedule_errors() -> None:
    graph = Graph([op("w", kind="parameter"), op("a", "w"), op("b", "a", output=True)])
    for text in ("nobody", "a b -nobody", "-nobody"):
        with pytest.raises(ScheduleError, match="nobody"):
            Evaluator(graph, MemoryModel()).liveness(steps(text))
    for text in ("b", "a", "", "a a", "a -a b", "w", "a b -a -a", "a b -w", "a -b", "-a a b", "a b -a -b"):
        for judge in (simulate, lambda graph, schedule: Evaluator(graph, MemoryModel()).liveness(schedule)):
            with pytest.raises(ScheduleError):
                judge(graph, steps(text))


@QUICK
@given(digraph=digraphs(), data=st.data())
def test_liveness_refuses_the_steps_that_the_judge_refuses(digraph: nx.DiGraph, data: st.DataObject) -> None:
    graph = lower(digraph)
    broken = data.draw(broken_schedules(graph))
    try:
        timeline = simulate(graph, broken).timeline_bytes
    except ScheduleError:
        with pytest.raises(ScheduleError):
            Evaluator(graph, MemoryModel()).liveness(broken)
    else:
        assert tuple(Evaluator(graph, MemoryModel()).liveness(broken).timeline_bytes.tolist()) == timeline


# ------------------------------------------------------------------------------------------------ arrays


def test_the_arrays_of_a_small_graph() -> None:
    graph = program(
        op("w", nbytes=700, kind="parameter"),
        op("p", "w", nbytes=(3, 5), phase="forward", cost=2.0, workspace=9),
        op("v", "p:1", nbytes=5, view=((0, 0, 0),), phase="forward", recomputable=False),
        op("u", "w", "v", nbytes=700, updates=((0, 0),), inplace=((1, 0, False),), phase="backward", output=True),
    )
    arrays = encode(graph, MemoryModel(alignment=4)).arrays
    assert arrays.out_ptr.tolist() == [0, 1, 3, 4, 5]
    assert arrays.read_ptr.tolist() == [0, 0, 1, 2, 4]
    assert arrays.read_value.tolist() == [0, 2, 0, 3]
    assert arrays.producer.tolist() == [0, 1, 1, 2, 3]
    assert arrays.raw_bytes.tolist() == [700, 3, 5, 5, 700]
    assert arrays.storage_bytes.tolist() == [700, 4, 8, 8, 700]
    assert arrays.alias.tolist() == [-1, -1, -1, 0, 0]
    assert arrays.root.tolist() == [0, 1, 2, 2, 0]
    assert arrays.is_update.tolist() == [False, False, False, False, True]
    assert arrays.never_freed.tolist() == [True, False, False, False, True]
    assert arrays.is_output.tolist() == [False, False, False, False, True]
    assert (arrays.pair_ptr.tolist(), arrays.pair_in.tolist(), arrays.pair_out.tolist()) == ([0, 0, 0, 0, 1], [1], [0])
    assert (arrays.cost.tolist(), arrays.workspace.tolist()) == ([1.0, 2.0, 1.0, 1.0], [0, 9, 0, 0])
    assert (arrays.recomputable.tolist(), arrays.resident.tolist()) == (
        [True, True, False, True],
        [True, False, False, False],
    )
    assert arrays.phase.tolist() == [0, FORWARD, FORWARD, BACKWARD]
    assert arrays.resident_bytes.tolist() == [700]
    assert encode(graph, MemoryModel(scope="activations")).arrays.resident_bytes.tolist() == [0]


def test_sizes_that_overflow_once_rounded_up_are_refused() -> None:
    graph = Graph([op(f"a{k}", nbytes=2**61 // 64 - 1) for k in range(64)])
    assert encode(graph, MemoryModel()).arrays.raw_bytes.sum() < 2**62
    with pytest.raises(GraphError, match=r"2\*\*62"):
        encode(
            Graph([op(f"a{k}", nbytes=1) for k in range(2**13)] + [op("b", nbytes=2**62 - 2**13)]),
            MemoryModel(alignment=2**30),
        )
