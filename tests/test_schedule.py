"""A schedule is a plain value: countable, comparable, hashable, JSON."""

from __future__ import annotations

import msgspec
import networkx as nx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import digraphs, op_sequences, simple_digraphs
from test_laws import layered_digraphs

from planner import lower
from planner.analysis.evaluator import evaluator_of
from planner.errors import PlannerError
from planner.memory import Allocation, Buffer, MemoryModel
from planner.schedule import Compute, Free, Schedule, canonical, keep_all

STEPS = (Compute("a"), Compute("b"), Free("a"), Compute("a"), Free("b"))
names = st.text(max_size=3)
schedules = st.lists(st.one_of(names.map(Compute), names.map(Free)), max_size=8).map(Schedule.of)


def test_a_schedule_counts_its_steps_and_lists_what_it_computes() -> None:
    schedule = Schedule(STEPS)
    assert len(schedule) == 5
    assert schedule.computes == ("a", "b", "a")
    assert len(Schedule(())) == 0
    assert Schedule(()).computes == ()


def test_any_iterable_of_steps_makes_a_schedule() -> None:
    assert Schedule.of(iter(STEPS)) == Schedule.of(list(STEPS)) == Schedule(STEPS)


def test_steps_compare_by_kind_and_name() -> None:
    assert Compute("a") == Compute("a") != Compute("b")
    assert Compute("a") != Free("a")
    assert len({Compute("a"), Compute("a"), Free("a")}) == 2


def test_schedules_compare_by_their_steps_in_order() -> None:
    assert Schedule(STEPS) == Schedule(tuple(STEPS))
    assert Schedule(STEPS) != Schedule(STEPS[:-1])
    assert Schedule((STEPS[1], STEPS[0])) != Schedule(STEPS[:2])
    assert Schedule(STEPS) != STEPS


def test_a_schedule_is_a_key() -> None:
    assert {Schedule(STEPS): 1}[Schedule.of(STEPS)] == 1
    assert hash(Schedule(STEPS)) == hash(Schedule.of(list(STEPS)))


def test_a_schedule_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Schedule(STEPS).steps = ()  # type: ignore[misc]
    with pytest.raises(AttributeError):
        STEPS[0].op = "b"  # type: ignore[misc,union-attr]


def test_text_shows_a_line_for_each_compute_and_its_frees() -> None:
    assert str(Schedule((*STEPS, Free("a")))) == "a\nb; free a\na; free b, a"
    assert str(Schedule(())) == ""
    assert str(Schedule((Free("x"), Compute("a")))) == "; free x\na"


def test_json_is_short_and_readable() -> None:
    assert msgspec.json.encode(Schedule(STEPS[:3])) == b'{"steps":[["compute","a"],["compute","b"],["free","a"]]}'


@given(schedules)
def test_json_gives_the_schedule_back(schedule: Schedule) -> None:
    again = msgspec.json.decode(msgspec.json.encode(schedule), type=Schedule)
    assert again == schedule
    assert hash(again) == hash(schedule)


@pytest.mark.parametrize(
    "text", [b'{"steps":[["keep","a"]]}', b'{"steps":[["compute",1]]}', b'{"steps":[["compute"]]}', b"{}", b"[]"]
)
def test_json_of_another_kind_is_refused(text: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=Schedule)


def test_json_gives_memory_model_and_allocation_back() -> None:
    memory = MemoryModel(scope="activations", alignment=512, reserve=7)
    assert msgspec.json.decode(msgspec.json.encode(memory), type=MemoryModel) == memory
    allocation = Allocation(
        (Buffer("a", 1, False, 512, 0, 3, 1024), Buffer("a", 1, True, 5, 0, 1, 0)), 100, 1636, "first-fit"
    )
    assert msgspec.json.decode(msgspec.json.encode(allocation), type=Allocation) == allocation


@pytest.mark.parametrize(
    ("nbytes", "alignment", "rounded"),
    [(0, 512, 0), (1, 512, 512), (512, 512, 512), (513, 512, 1024), (5, 1, 5), (2**62 - 1, 512, 2**62)],
)
def test_a_storage_is_rounded_up_to_the_alignment(nbytes: int, alignment: int, rounded: int) -> None:
    assert MemoryModel(alignment=alignment).round_up(nbytes) == rounded


@pytest.mark.parametrize(
    "wrong",
    [{"scope": "all"}, {"alignment": 0}, {"alignment": -8}, {"alignment": 1.5}, {"reserve": -1}, {"reserve": 0.5}],
    ids=repr,
)
def test_a_memory_model_that_cannot_be_is_refused(wrong: dict) -> None:
    with pytest.raises(PlannerError, match=next(iter(wrong))):
        MemoryModel(**wrong)


@settings(suppress_health_check=list(HealthCheck))
@given(digraph=st.one_of(digraphs(), layered_digraphs(), simple_digraphs()), data=st.data())
def test_rule_11_is_what_the_kernels_make_of_a_sequence(digraph: nx.DiGraph, data: st.DataObject) -> None:
    """Step by step, for the program's order and for legal sequences in which ops run again."""
    graph = lower(digraph)
    evaluator = evaluator_of(graph, MemoryModel())
    assert keep_all(graph) == evaluator.schedule(evaluator.keep_all)
    ops = data.draw(op_sequences(graph))
    row = {name: k for k, name in enumerate(evaluator.encoded.op_names)}
    sequence = np.array([row[name] for name in ops], dtype=np.int64)
    assert canonical(graph, ops) == evaluator.schedule(sequence)
