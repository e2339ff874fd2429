"""Errors keep their message and their numbers, also across process borders."""

from __future__ import annotations

import pickle

import pytest

from planner import InfeasibleBudget, PlannerError, ScheduleError, errors

CASES = [
    ScheduleError("reads 'x', which was freed", step=3, op="a", value="x"),
    ScheduleError("op 'a' never ran", op="a"),
    InfeasibleBudget(
        "no plan fits", budget=1, minimum=5, peak_lower_bound=3, proven=True, binding_op="g", live=("a", "b")
    ),
    errors.GraphError("node 'a' has no nbytes"),
]


@pytest.mark.parametrize("error", CASES, ids=lambda error: type(error).__name__)
def test_an_error_crosses_process_borders_whole(error: PlannerError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_every_error_is_a_planner_error() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len(kinds) > 8
    assert all(issubclass(kind, PlannerError) for kind in kinds)
