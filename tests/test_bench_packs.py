"""The benchmark of packing: a row a rule, a capacity, a plan; what `compare` flags of them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import msgspec
import pytest

from bench.cases import SUITES, Suite
from bench.measure import Subject
from bench.packs import RULES, PlanTables, Tables
from bench.results import PackRow
from bench.run import run
from bench.tables import changes, regressions, table
from planner import optimize, zoo


def test_a_packed_table_has_a_row_a_rule_a_capacity_and_a_peer(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANNER_SHARED", str(shared))
    suite = Suite(
        "small",
        "",
        (Tables("K", "minimalloc/K.1048576.csv", (1048576, None), peer=0.6), Tables("none", "minimalloc/none.csv")),
    )
    found = run(suite)
    rows = [row for row in found.rows if isinstance(row, PackRow)]
    assert [row.asked for row in rows] == [*(rule[0] for rule in RULES), "within 1048576", "smallest, effort 4"]
    assert {(row.buffers, row.live_bytes) for row in rows} == {(454, 1048576)}  # the notes of the data
    assert rows[-2].arena_bytes == rows[-1].arena_bytes == 1048576
    text = table(found)
    assert "| +0 % | smallest |" in text
    assert "| 0.60 |" in text
    larger = tuple(msgspec.structs.replace(row, arena_bytes=1048577) if row is rows[-2] else row for row in found.rows)
    worse = changes(found, msgspec.structs.replace(found, rows=larger))
    assert [(change.flag, change.key) for change in regressions(worse)] == [("worse", "K · within 1048576")]


def test_the_buffers_of_a_plan_are_packed_at_the_least_budget_where_the_one_asked_is_too_small() -> None:
    rows = run(Suite("plans", "", (PlanTables(Subject("chain:16", partial(zoo.chain, 16)), ("50%", "5%")),))).rows
    half, least = (row for row in rows if isinstance(row, PackRow))
    plan = optimize(zoo.chain(16), "50%", allocator=None)
    assert (half.asked, half.live_bytes) == ("50%, auto", plan.report.plan.peak_bytes)
    assert half.live_bytes <= half.arena_bytes
    assert half.bound_bytes <= half.arena_bytes
    assert least.asked == "least that works, not 5%, auto"
    assert least.live_bytes < half.live_bytes


def test_the_suite_names_every_instance_of_minimalloc_once_at_the_published_capacity() -> None:
    cases = [case for case in SUITES["pack"].cases if isinstance(case, Tables) and case.peer is not None]
    assert [case.name for case in cases] == list("ABCDEFGHIJK")
    assert {case.capacities[0] for case in cases} == {1048576}
    assert sum(case.peer or 0.0 for case in cases) == pytest.approx(27.3, abs=0.05)  # the sum in the notes
