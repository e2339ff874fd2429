"""The packer without waste: optimal where it can be checked, never an overlap, and its bound proven."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from naive import lower_bound, overlaps

from planner import Buffer
from planner.kernels.packing_search import EXHAUSTED, PACKED
from planner.packing import Intervals, Packing, pack
from planner.packing.buffer_table import read_table
from planner.packing.intervals import sections_of
from planner.packing.restarts import Descent, round_robin
from planner.problem import Stop

QUICK = settings(suppress_health_check=list(HealthCheck))
Row = tuple[int, int, int, int, int]  # bytes, start, end, alignment, fixed offset or -1


def intervals_of(rows: Sequence[Row]) -> Intervals:
    return Intervals(*np.array(rows, dtype=np.int64).reshape(-1, 5).T.copy())


def placed(rows: Sequence[Row], packing: Packing) -> list[Buffer]:
    return [
        Buffer(str(k), 0, False, nbytes, start, end, offset)
        for k, ((nbytes, start, end, _, _), offset) in enumerate(zip(rows, packing.offset.tolist(), strict=True))
    ]


def best_top(rows: Sequence[Row]) -> int:
    """Every order, each buffer at the lowest free offset: some order gives the smallest arena there is.

    Placed in the order of their offsets in a smallest arena, no buffer ends up higher than it was.
    """
    fixed = [row for row in rows if row[4] >= 0]
    free = [row for row in rows if row[4] < 0]
    least = None
    for order in itertools.permutations(free):
        done: list[tuple[Row, int]] = [(row, row[4]) for row in fixed]
        for row in order:
            nbytes, start, end, alignment, _ = row
            meets = [(low, low + other[0]) for other, low in done if other[1] < end and start < other[2] and other[0]]
            starts = {0} | {-(-high // alignment) * alignment for _, high in meets}
            low = min(at for at in starts if all(at + nbytes <= a or b <= at for a, b in meets)) if nbytes else 0
            done.append((row, low))
        top = max((low + row[0] for row, low in done if row[0]), default=0)
        least = top if least is None else min(least, top)
    return least or 0


@st.composite
def small_sets(draw: Callable[..., Any]) -> list[Row]:
    """Up to six buffers; some aligned, some fixed where they meet no other fixed one."""
    rows: list[Row] = []
    for _ in range(draw(st.integers(0, 6))):
        start = draw(st.integers(0, 5))
        end = start + draw(st.integers(1, 5))
        nbytes, alignment = draw(st.integers(0, 7)), draw(st.sampled_from([1, 1, 2, 4, 3]))
        fixed = draw(st.sampled_from([-1, -1, -1, 0, 1, 2, 5])) * alignment
        fixed = max(fixed, -1)
        meets = [
            r
            for r in rows
            if r[4] >= 0 and r[1] < end and start < r[2] and r[4] < fixed + nbytes and fixed < r[4] + r[0]
        ]
        rows.append((nbytes, start, end, alignment, -1 if meets else fixed))
    return rows


@settings(max_examples=400, suppress_health_check=list(HealthCheck))
@given(rows=small_sets())
def test_small_sets_are_packed_as_small_as_every_order_can_and_that_is_proven(rows: list[Row]) -> None:
    packing = pack(intervals_of(rows))
    assert packing.top_bytes == packing.bound_bytes == best_top(rows)
    check(rows, packing)


def check(rows: Sequence[Row], packing: Packing) -> None:
    buffers = placed(rows, packing)
    assert overlaps(buffers) == []
    assert all(buffer.offset >= 0 and buffer.offset % row[3] == 0 for buffer, row in zip(buffers, rows, strict=True))
    assert all(row[4] in (-1, buffer.offset) for buffer, row in zip(buffers, rows, strict=True))
    assert packing.top_bytes == max((b.offset + b.nbytes for b in buffers if b.nbytes), default=0)
    assert lower_bound(buffers) <= packing.bound_bytes <= packing.top_bytes


@st.composite
def large_sets(draw: Callable[..., Any]) -> list[Row]:
    """Up to 120 buffers drawn by a seed: many short ones, some that live long, a few fixed ones at the bottom."""
    generator = np.random.default_rng(draw(st.integers(0, 10**6)))
    count, horizon = draw(st.integers(1, 120)), draw(st.integers(2, 80))
    alignment = draw(st.sampled_from([1, 4, 512]))
    rows: list[Row] = []
    floor = 0
    for _ in range(count):
        start = int(generator.integers(0, horizon))
        length = int(generator.geometric(0.3)) if generator.random() < 0.8 else int(generator.integers(1, horizon + 1))
        nbytes = int(generator.integers(1, 5000))
        fixed = -1
        if generator.random() < 0.03:
            fixed, floor = floor, -(-(floor + nbytes) // alignment) * alignment
        rows.append((nbytes, start, start + length, alignment, fixed))
    return rows


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(rows=large_sets(), seed=st.integers(0, 3))
def test_no_two_buffers_share_a_byte_at_a_step_and_the_same_seed_gives_the_same_offsets(
    rows: list[Row], seed: int
) -> None:
    packing = pack(intervals_of(rows), effort=0.01, seed=seed)
    check(rows, packing)
    again = pack(intervals_of(rows), effort=0.01, seed=seed)
    assert (packing.offset.tolist(), packing[1:]) == (again.offset.tolist(), again[1:])


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(rows=large_sets())
def test_the_search_never_makes_it_worse_than_the_rules(rows: list[Row]) -> None:
    rules = pack(intervals_of(rows), effort=0)
    assert pack(intervals_of(rows), effort=0.01).top_bytes <= rules.top_bytes


@settings(max_examples=300, suppress_health_check=list(HealthCheck))
@given(rows=small_sets(), extra=st.integers(-2, 3), turn=st.integers(0, 5))
def test_the_descent_decides_every_capacity_under_every_ranking(rows: list[Row], extra: int, turn: int) -> None:
    rows = [row for row in rows if row[0]]
    assume(rows)
    core = sections_of(intervals_of(rows))
    capacity = best_top(rows) // core.unit + extra
    width = core.last - core.first
    descent: Descent = next(itertools.islice(round_robin(core, width, capacity, 0), turn, None))[0]
    outcome = descent.run(10**9)
    assert outcome == (PACKED if extra >= 0 else EXHAUSTED)
    if outcome == PACKED:
        ends = descent.placed + core.size
        assert int(ends.max(initial=0)) <= capacity


def test_a_descent_that_is_cut_into_slices_finds_what_one_run_finds() -> None:
    generator = np.random.default_rng(5)
    rows = [(int(n), int(s), int(s) + int(d), 1, -1) for n, s, d in generator.integers(1, 30, (60, 3))]
    core = sections_of(intervals_of(rows))
    width = core.last - core.first
    capacity = core.bound + core.bound // 20
    whole, sliced = (next(round_robin(core, width, capacity, 0))[0] for _ in range(2))
    outcome = whole.run(5_000_000)
    limit = 0
    while sliced.work < whole.work:
        limit += 1_000
        found = sliced.run(min(limit, 5_000_000))
    assert found == outcome
    assert (sliced.nodes, sliced.work, sliced.placed.tolist()) == (whole.nodes, whole.work, whole.placed.tolist())


def test_a_capacity_stops_the_search_at_the_first_packing_within_it() -> None:
    rows = [(3, 0, 2, 1, -1), (3, 1, 3, 1, -1), (2, 2, 4, 1, -1)]
    assert pack(intervals_of(rows), capacity=100).top_bytes <= 100
    assert pack(intervals_of(rows), capacity=6).top_bytes == 6


def test_a_capacity_between_two_multiples_of_the_unit_is_never_exceeded() -> None:
    """All sizes are multiples of four: within 27 bytes means within 24."""
    generator = np.random.default_rng(11)
    for _ in range(20):
        drawn = generator.integers(1, 9, (8, 3)).tolist()
        rows = [(4 * n, s, s + d, 4, -1) for n, s, d in drawn]
        least = pack(intervals_of(rows)).top_bytes
        for capacity in range(least, least + 5):
            packing = pack(intervals_of(rows), capacity=capacity)
            check(rows, packing)
            assert packing.top_bytes <= capacity


def test_progress_is_told_of_every_better_arena() -> None:
    seen: list[tuple[int, int]] = []
    generator = np.random.default_rng(1)
    rows = [(int(n), int(s), int(s) + int(d), 1, -1) for n, s, d in generator.integers(1, 30, (80, 3))]
    packing = pack(intervals_of(rows), progress=lambda top, bound: seen.append((top, bound)))
    assert [top for top, _ in seen] == sorted({top for top, _ in seen}, reverse=True)
    assert seen[-1][0] == packing.top_bytes


def test_a_deadline_that_has_passed_leaves_the_rules(shared: Path) -> None:
    table = read_table(shared / "data/minimalloc/A.1048576.csv")
    late = pack(table.intervals, stop=Stop(0.0))
    assert late.cut_short
    assert late.top_bytes > late.bound_bytes
    table.check(late)


# ------------------------------------------------------------------------------------------------ instances of others


@pytest.mark.parametrize("name", "ABCDEFGHIJK")
def test_minimalloc_instances_fit_their_capacity(name: str, shared: Path) -> None:
    table = read_table(shared / f"data/minimalloc/{name}.1048576.csv")
    packing = pack(table.intervals, capacity=1048576)
    table.check(packing)
    assert packing.top_bytes <= 1048576


def test_minimalloc_c_is_packed_at_what_is_live(shared: Path) -> None:
    """`allocation.md` section 1: 1039360 bytes, 0.9 % below the published capacity, and no packing is smaller."""
    packing = pack(read_table(shared / "data/minimalloc/C.1048576.csv").intervals)
    assert packing.top_bytes == packing.bound_bytes == 1039360


SOMAS = ["somas_resnet50", "somas_tiny_bert", "somas_bert_base", "somas_bert_large", "somas_bert_nezha"]
PANGU = ["somas_pangu_13B", "somas_pangu_2.6B"]


@pytest.mark.parametrize("name", [*SOMAS, *PANGU, "iree_mobilebert", "iree_mobilenet", "iopddl_G_1"])
def test_graphs_of_mindspore_iree_and_the_contest_are_packed_at_what_is_live(name: str, shared: Path) -> None:
    path = shared / f"data/idealloc/{name}.csv"
    table = read_table(path)
    packing = pack(table.intervals)
    table.check(packing)
    with path.open(newline="") as file:
        rows = [(int(row["size"]), int(row["lower"]), int(row["upper"])) for row in csv.DictReader(file)]
    changes: dict[int, int] = {}
    for nbytes, start, end in rows:
        if end > start:
            changes[start] = changes.get(start, 0) + nbytes
            changes[end] = changes.get(end, 0) - nbytes
    assert packing.top_bytes == max(itertools.accumulate(changes[time] for time in sorted(changes)))
