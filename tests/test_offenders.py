"""Many cases in one item: none is left out, and each that fails is named."""

from __future__ import annotations

import pytest
from offenders import every


@every("a, b", [(1, 2), (3, 3), (5, 4)])
@every("third", [True, False])
def small(a: int, b: int, third: bool, limit: int) -> None:
    with pytest.raises(ValueError, match="higher"):
        raise ValueError("higher" if b <= limit or third else "lower")
    assert a < b


def test_each_case_that_fails_is_named_with_its_reason() -> None:
    with pytest.raises(AssertionError) as caught:
        small(limit=3)
    report = str(caught.value)
    assert report.startswith("2 of 3 cases")
    assert "(1, 2)" not in report
    assert "(3, 3): AssertionError: 2 of 2 cases" in report
    assert "(5, 4): AssertionError: 2 of 2 cases" in report


def test_a_list_of_no_cases_cannot_pass() -> None:
    with pytest.raises(AssertionError, match="no cases"):
        every("a", [])


@every("size", [1, 2])
def test_fixtures_reach_each_case(size: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert tmp_path_factory.mktemp(str(size)).is_dir()
