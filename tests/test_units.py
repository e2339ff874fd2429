"""Bytes as people write them: `users.md`, "Budget forms", and design section 5, "Budgets"."""

from __future__ import annotations

import math
import sys
import types
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import PlannerError, UnitError
from planner.units import MAX_BYTES, format_bytes, parse_budget, parse_bytes

SIZES = {
    "7GB": 7_000_000_000, "7G": 7_000_000_000, "7GiB": 7_516_192_768, "1.5GiB": 1_610_612_736, "512 MiB": 536_870_912,
    "512mb": 512_000_000, "512 mb": 512_000_000, "7000000000": 7_000_000_000, 7_000_000_000: 7_000_000_000,
    "64KB": 64_000, "64kB": 64_000, "64KiB": 65_536, "2TB": 2 * 10**12, "2TiB": 2 * 2**40, "1PiB": 2**50,
    1: 1, "1": 1, "1B": 1, " 7GB ": 7_000_000_000,
}  # fmt: skip


def test_a_size_is_exact_bytes() -> None:
    assert {text: parse_budget(text, 10) for text in SIZES} == SIZES
    assert {text: parse_bytes(text) for text in SIZES} == SIZES


def test_a_part_of_a_byte_is_dropped_and_never_rounded_up() -> None:
    for text, nbytes in (("1.0007KB", 1000), ("1.9999B", 1), ("0.9B", 0), ("0.0015KiB", 1)):
        assert parse_bytes(text) == nbytes
    assert parse_budget("1.0007KB", 10) == 1000
    assert parse_budget("66.7%", 100) == parse_budget(0.667, 100) == 66


def test_a_fraction_is_of_the_keep_all_peak() -> None:
    parts: tuple[float | str, ...] = (0.4, "0.4", "40%", "40 %", ".4", "0.40", "40.0%")
    assert {parse_budget(fraction, 1001) for fraction in parts} == {400}
    assert {parse_budget(whole, 123_457) for whole in (1.0, "1.0", "100%")} == {123_457}


def test_an_int_of_one_is_a_byte_and_a_float_of_one_is_everything() -> None:
    assert parse_budget(1, 500) == 1
    assert parse_budget(1.0, 500) == 500


def test_a_fraction_is_exact_where_floats_are_not() -> None:
    assert parse_budget(0.29, 100) == 29  # floor(0.29 * 100) is 28 in floats
    assert parse_budget("33.3%", 10**18) == 333 * 10**15


def test_a_fraction_of_next_to_nothing_is_still_a_byte() -> None:
    assert parse_budget(0.001, 10) == 1


def test_the_text_of_a_small_float_is_that_float() -> None:
    for text in ("1e-9", "1e-09", "2.5e-05", "1E-6", "3e-300"):
        assert parse_budget(text, 10**18) == parse_budget(float(text), 10**18)
    assert parse_budget("1e-9", 10**18) == 10**9


def test_numbers_of_numpy_are_numbers() -> None:
    numbers: tuple[Any, ...] = (np.int64(7), np.uint8(1), np.float32(0.5), np.float32(0.4), np.float64(0.29))
    found = [parse_budget(number, 1000) for number in (*numbers, Fraction(1, 4))]
    assert found == [7, 1, 500, 400, 290, 250]
    assert {type(nbytes) for nbytes in found} == {int}


def test_a_negative_size_is_called_negative() -> None:
    for budget in (-1, "-1", "-1GB", "-40%", -0.5, "-0.5", np.int64(-3), -(10**100)):
        with pytest.raises(UnitError, match="is negative") as caught:
            parse_budget(budget, 1000)  # type: ignore[arg-type]
        assert "bits" not in str(caught.value)


def test_a_size_above_all_sizes_is_called_so_however_long() -> None:
    for size in (2**62 + 1, 10**5000, "5000PiB"):
        with pytest.raises(UnitError, match=r"above 2\*\*62 bytes") as caught:
            parse_bytes(size)
        assert len(str(caught.value)) < 200


REFUSED = [
    "7Gb", "7Mb", "7Kb", "7Gib", "-1GB", "0", 0, "0GB", 0.0, "0%", "0.0", "nan", math.nan, math.inf, -math.inf, "inf",
    "7 XB", 1.5, "1.5", "150%", "101%", "100.1%", -1, -0.5, "-40%", "", " ", "GB", "7 G B", "1e9", "7e9", "0x10",
    "1,000", "7GB.", "--", "%", True, False, None, [7], 2**62 + 1, "5000PiB", "9" * 40, "\u0663GB", "\u0664\u0660%",
    "0.\u0664", "\u00b2", "1e-9999", np.True_, np.array([7, 8]), b"7GB", np.float32("nan"), np.float32(1.5), 1e-400,
]  # fmt: skip


def test_anything_else_is_refused_with_the_accepted_forms() -> None:
    for budget in REFUSED:
        with pytest.raises(UnitError) as caught:
            parse_budget(budget, 1000)  # type: ignore[arg-type]
        message = str(caught.value)
        assert "\n" not in message
        assert all(form in message for form in ('"7GB"', '"7GiB"', '"40%"', "0.4"))


def test_a_refusal_shows_what_was_written() -> None:
    with pytest.raises(UnitError, match=r"7Gb.*bits"):
        parse_budget("7Gb", 1000)


def test_unit_errors_are_planner_errors() -> None:
    with pytest.raises(PlannerError):
        parse_budget("7 XB", 1)


def test_a_size_may_be_zero_but_a_budget_may_not() -> None:
    assert parse_bytes("0") == parse_bytes(0) == parse_bytes("0GB") == 0
    with pytest.raises(UnitError):
        parse_budget("0", 1)


def test_an_error_names_what_was_parsed() -> None:
    with pytest.raises(UnitError, match="reserve"):
        parse_bytes("7Gb", what="reserve")


def test_a_size_is_no_float() -> None:
    for size in (1.5, True, None):
        with pytest.raises(UnitError):
            parse_bytes(size)  # type: ignore[arg-type]


def test_the_largest_size_is_accepted() -> None:
    assert parse_bytes(MAX_BYTES) == parse_bytes(str(MAX_BYTES)) == parse_bytes("4096PiB") == 2**62


def test_auto_without_a_device_says_what_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UnitError, match=r'auto.*"7GB"'):
        parse_budget("auto", 1000)
    none = types.SimpleNamespace(cuda=types.SimpleNamespace(is_available=lambda: False))
    monkeypatch.setitem(sys.modules, "torch", none)
    with pytest.raises(UnitError, match=r'auto.*"7GB"'):
        parse_budget("auto", 1000)


def test_auto_is_the_free_memory_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    device = types.SimpleNamespace(is_available=lambda: True, mem_get_info=lambda: (3 * 2**30, 2**34))
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=device))
    assert parse_budget("auto", 1000) == 3 * 2**30


SHOWN = {
    0: "0 B", 1023: "1023 B", 1024: "1.00 KiB", 1536: "1.50 KiB", -1536: "-1.50 KiB", 2**62: "4096.00 PiB",
    2**20 - 1: "1.00 MiB", 2**20 - 6: "1023.99 KiB",  # never "1024.00 KiB"
    7_000_000_000: "6.52 GiB", 6_086_532_640: "5.67 GiB", 39_829_110_788: "37.09 GiB",  # cases.md, C6 and C5
}  # fmt: skip


def test_people_read_iec_units_with_two_decimals() -> None:
    assert {nbytes: format_bytes(nbytes) for nbytes in SHOWN} == SHOWN


@given(st.integers(1, MAX_BYTES))
def test_bytes_survive_as_text(nbytes: int) -> None:
    assert parse_budget(str(nbytes), 1) == parse_budget(nbytes, 1) == parse_budget(f"{nbytes} B", 1) == nbytes


@given(st.integers(1, 100), st.integers(1, 2**50))
def test_percent_and_fraction_agree(percent: int, keep_all: int) -> None:
    exact = max(1, percent * keep_all // 100)
    assert parse_budget(f"{percent}%", keep_all) == parse_budget(percent / 100, keep_all) == exact


@given(st.text(max_size=12))
def test_any_text_gives_bytes_or_a_unit_error(text: str) -> None:
    try:
        nbytes = parse_budget(text, 1000)
    except UnitError:
        return
    assert 1 <= nbytes <= MAX_BYTES


def test_only_a_budget_is_told_of_fractions() -> None:
    for what, told in (("budget", True), ("capacity", False), ("device memory", False)):
        with pytest.raises(UnitError, match=what) as caught:
            parse_bytes("-1", what=what)
        assert ("fraction" in str(caught.value)) == told
