"""`planner pack` as people use it: tables in and out, capacities, interrupts; and the rules an allocator must respect.

What is written is held to the table by a check of every pair, which shares nothing with the packer or the judge.
"""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive import lower_bound, naive_peak, overlaps
from programs import op, steps
from test_cli import error_lines, faults

from planner import Allocation, Graph, PlanFileError, VerificationError, allocate, simulate
from planner.executors.arena_machine import execute
from planner.packing import allocator_names, pack
from planner.packing.buffer_table import Table, read_table

README = Path(__file__).resolve().parents[1] / "README.md"
ALLOCATORS = allocator_names()
COMMAND = [sys.executable, "-m", "planner.cli", "pack"]
HEAD = "id,lower,upper,size"
TWO = f"{HEAD}\na,0,2,4\nb,1,3,8\n"


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def held(text: str, *, reserved: Sequence[tuple[int, int]] = ()) -> int:
    """Every pair of rows of a written table, every alignment, every fixed offset; returns the highest end."""
    boxes = []
    for row in rows_of(text):
        start, end, nbytes, offset = (int(row[column]) for column in ("lower", "upper", "size", "offset"))
        assert offset >= 0, row
        assert offset % int(row.get("alignment") or 1) == 0, row
        assert int(row.get("fixed_offset") or offset) == offset, row
        if nbytes and end > start:
            boxes.append((start, end, offset, offset + nbytes, row["id"]))
    for k, (start, end, low, high, name) in enumerate(boxes):
        for other in boxes[:k]:
            assert not (start < other[1] and other[0] < end and low < other[3] and other[2] < high), (name, other)
        for at, nbytes in reserved:
            assert high <= at or at + nbytes <= low, name
    return max([box[3] for box in boxes] + [at + nbytes for at, nbytes in reserved], default=0)


def table_of(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(text.encode(encoding))
    return path


# ------------------------------------------------------------------------------------------------ tables in and out


def test_a_table_comes_back_with_an_offset_for_each_buffer_and_a_line_that_says_how_good_it_is(
    run, tmp_path: Path
) -> None:
    table = table_of(tmp_path / "two.csv", TWO)
    answer = run("pack", table)
    assert answer.code == 0
    assert [row["id"] for row in rows_of(answer.out)] == ["a", "b"]
    assert held(answer.out) == 12  # both live at 1
    assert answer.err == "2 buffers in 12 B (12 bytes); proven: no packing is smaller\n"


def test_any_finite_effort_is_an_effort(run, tmp_path: Path) -> None:
    table = table_of(tmp_path / "two.csv", TWO)
    answers = [run("pack", table, "--effort", effort) for effort in ("0", "1e-300", "1e300")]
    assert [(answer.code, held(answer.out)) for answer in answers] == [(0, 12)] * 3


def test_the_table_of_the_readme_is_packed_as_it_shows(run, tmp_path: Path) -> None:
    text = README.read_text(encoding="utf-8")
    table, shown = re.search(r"```csv\n(.*?)```.*?```text\n(.*?)```", text, flags=re.DOTALL).groups()  # type: ignore[union-attr]
    answer = run("pack", table_of(tmp_path / "buffers.csv", table))
    assert answer.out + answer.err == shown
    assert held(answer.out) == 45056
    rules = json.loads(run("pack", "buffers.csv", "--effort", "0", "--json").out)["arena_bytes"]
    assert rules > 45056
    assert f"simple rules end at {rules} bytes" in text


def test_columns_and_rows_keep_their_order_and_an_offset_that_was_there_is_replaced(run, tmp_path: Path) -> None:
    text = "note,size,offset,upper,id,lower\nfirst,4,999,2,z,0\n,8,,3,a,1\nlast,1,x,9,m,3\n"
    out = run("pack", table_of(tmp_path / "t.csv", text)).out
    assert out.splitlines()[0] == "note,size,offset,upper,id,lower"
    assert [(row["note"], row["id"]) for row in rows_of(out)] == [("first", "z"), ("", "a"), ("last", "m")]
    assert held(out) == 12
    again = table_of(tmp_path / "again.csv", out)
    assert run("pack", again).out == out


WRITTEN_ELSEWHERE = {
    "BOM": (TWO, "utf-8-sig"), "CRLF": (TWO.replace("\n", "\r\n"), "utf-8"),
    "blank lines": (TWO.replace("\n", "\n\n"), "utf-8"), "no last line break": (TWO.rstrip("\n"), "utf-8"),
    "spaces": (TWO.replace(",", " , "), "utf-8"), "quotes": (TWO.replace("a,0,2,4", '"a","0","2","4"'), "utf-8"),
}  # fmt: skip


def test_what_other_programs_write_is_read(run, tmp_path: Path) -> None:
    for what, (text, encoding) in WRITTEN_ELSEWHERE.items():
        answer = run("pack", table_of(tmp_path / "t.csv", text, encoding))
        assert (answer.code, held(answer.out)) == (0, 12), what
        assert [row["id"].strip() for row in rows_of(answer.out)] == ["a", "b"], what


NAMES = [
    "plain", "a,b", 'say "x"', "two\nlines", "return\rhere", "both\r\n", "é∂", "", "=1+1", "\x1b[31m", "a\tb", "NaN",
]  # fmt: skip


def test_ids_come_back_as_they_were_whatever_they_hold(run, tmp_path: Path) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\r\n")  # which quotes every line break
    writer.writerows([HEAD.split(","), *([name, k, k + 2, 4] for k, name in enumerate(NAMES))])
    table = table_of(tmp_path / "t.csv", text.getvalue())
    assert run("pack", table, "-o", "out.csv").code == 0
    written = (tmp_path / "out.csv").read_bytes().decode()
    assert [row["id"] for row in rows_of(written)] == NAMES
    assert held(written) == 8
    offsets = json.loads(run("pack", table, "--json").out)["offsets"]
    assert {name.strip() for name in NAMES} == set(offsets)


def test_an_error_shows_control_characters_escaped_on_one_line(run, tmp_path: Path) -> None:
    answer = run("pack", table_of(tmp_path / "t.csv", f'{HEAD}\n"\x1b[31m\nred",0,1,-4\n'))
    assert answer.code == 3
    assert len(error_lines(answer)) == 1
    assert "\x1b" not in answer.err
    assert r"\x1b[31m" in answer.err


def test_times_may_be_negative_and_as_large_as_nanoseconds_since_1970(run, tmp_path: Path) -> None:
    now = 1_764_444_000_000_000_000
    text = f"{HEAD}\na,-5,-2,4\nb,-3,{now},8\nc,{now - 1},{now + 5},16\n"
    answer = run("pack", table_of(tmp_path / "t.csv", text))
    assert answer.code == 0
    assert held(answer.out) == 24


def test_buffers_without_bytes_or_without_a_lifetime_take_no_room(run, tmp_path: Path) -> None:
    text = f"{HEAD},alignment,fixed_offset\na,0,4,8,,\nempty,0,4,0,,\nnever,2,2,100,,\nnowhere,1,3,0,4,4\nb,0,4,8,,\n"
    answer = run("pack", table_of(tmp_path / "t.csv", text))
    assert answer.code == 0
    assert held(answer.out) == 16
    assert "16 B (16 bytes)" in answer.err


def test_a_table_without_buffers_has_an_empty_arena(run, tmp_path: Path) -> None:
    answer = run("pack", table_of(tmp_path / "t.csv", HEAD + "\n"), "--json")
    assert answer.code == 0
    assert json.loads(answer.out)["arena_bytes"] == 0
    assert json.loads(answer.out)["offsets"] == {}


FAULTS = {
    "an empty file": ("", "is empty", "id, lower, upper, size"),
    "blank lines alone": ("\n\n", "is empty", "id, lower, upper, size"),
    "no column": ("id,lower,upper\na,0,1\n", "has no column 'size'", "id, lower, upper, size"),
    "no header": ("a,0,1,4\n", "has no column 'id'", "id, lower, upper, size"),
    "a column twice": (f"{HEAD},size\na,0,1,4,4\n", "a column 'size' twice", "id, lower"),
    "a short row": (f"{HEAD}\na,0,1,4\nb,0,1\n", "line 3", "3 cells, and the header has 4"),
    "a long row": (f"{HEAD}\na,0,1,4,5\n", "line 2", "5 cells, and the header has 4"),
    "a short row after a quoted line break": (f'{HEAD}\n"a\nb",0,1,4\nb,0,1\n', "line 4", "3 cells"),
    "no int": (f"{HEAD}\na,0,1,four\n", "line 2, buffer 'a'", "size 'four' is not an int >= 0"),
    "a fraction": (f"{HEAD}\na,0,1.5,4\n", "buffer 'a'", "upper '1.5' is not an int"),
    "an underscore": (f"{HEAD}\na,0,1,1_000\n", "buffer 'a'", "size '1_000'"),
    "other digits": (f"{HEAD}\na,0,1,٤\n", "buffer 'a'", "size"),
    "an empty cell": (f"{HEAD}\na,0,,4\n", "buffer 'a'", "upper ''"),
    "a negative size": (f"{HEAD}\na,0,1,-4\n", "buffer 'a'", "size '-4' is not an int >= 0"),
    "a size of 2**62": (f"{HEAD}\na,0,1,{2**62}\n", "buffer 'a'", "below 2**62"),
    "a size of a thousand digits": (f"{HEAD}\na,0,1,{'9' * 1000}\n", "buffer 'a'", "below 2**62"),
    "a time of 2**62": (f"{HEAD}\na,-{2**62},1,4\n", "buffer 'a'", "below 2**62"),
    "sizes that add up to more": (f"{HEAD}\na,0,1,{2**61}\nb,0,1,{2**61}\nc,0,1,1\n", "add up to more than 2**62", ""),
    "alignments that add up to more": (
        f"{HEAD},alignment\n" + "".join(f"{name},0,1,4,{2**61}\n" for name in "abc"),
        "more than 2**62",
        "",
    ),
    "a lifetime backwards": (f"{HEAD}\na,3,1,4\n", "buffer 'a'", "upper 1 is below lower 3"),
    "a duplicate": (f"{HEAD}\na,0,1,4\nb,0,1,4\na,5,6,4\n", "line 4", "a buffer 'a' already"),
    "an alignment of 0": (f"{HEAD},alignment\na,0,1,4,0\n", "buffer 'a'", "alignment 0"),
    "a fixed offset off its alignment": (
        f"{HEAD},alignment,fixed_offset\na,0,1,4,8,4\n",
        "buffer 'a'",
        "no multiple of its alignment 8",
    ),
    "a negative fixed offset": (f"{HEAD},fixed_offset\na,0,1,4,-8\n", "buffer 'a'", "fixed_offset '-8'"),
    "gaps": (f"{HEAD},gaps\na,0,9,4,3-5\n", "buffer 'a'", "gaps"),
    "fixed offsets that contradict": (
        f"{HEAD},fixed_offset\na,0,2,4,0\nb,1,3,8,2\n",
        "'a' and buffer of 'b' overlap at step 1",
        "[2, 10)",
    ),
}


def test_a_fault_in_a_table_is_one_line_that_names_where(run, tmp_path: Path) -> None:
    wrong = list[str]()
    for fault, (text, *named) in FAULTS.items():
        answer = run("pack", table_of(tmp_path / "t.csv", text))
        wrong += [f"{fault}: {what}" for what in faults(answer, 3, "t.csv", *named)]
        assert "execution" not in answer.err
    assert wrong == []


def test_empty_optional_columns_are_defaults(run, tmp_path: Path) -> None:
    text = f"{HEAD},gaps,alignment,fixed_offset\na,0,2,4,,,\nb,1,3,8,,,\n"
    assert held(run("pack", table_of(tmp_path / "t.csv", text)).out) == 12


def test_files_that_are_no_tables_are_named(run, tmp_path: Path) -> None:
    (tmp_path / "binary.csv").write_bytes(bytes(range(256)) * 8)
    (tmp_path / "nul.csv").write_bytes(b"id\0,lower,upper,size\n")
    reasons = {"binary.csv": "not a CSV file", "nul.csv": "", "missing.csv": "No such file", ".": "directory"}
    assert [fault for name, why in reasons.items() for fault in faults(run("pack", name), 3, name, why)] == []


# ------------------------------------------------------------------------------------------------ places that are given


@st.composite
def tables(draw) -> str:
    """Up to 12 buffers with alignments, some fixed where they contradict none."""
    lines, fixed = [], list[tuple[int, int, int, int]]()
    for k in range(draw(st.integers(0, 12))):
        start, length, size = draw(st.integers(-4, 8)), draw(st.integers(0, 6)), draw(st.integers(0, 40))
        alignment, at = draw(st.sampled_from([1, 1, 2, 16, 5])), draw(st.sampled_from([None, None, None, 0, 1, 3]))
        cell = ""
        if at is not None:
            low = at * alignment
            clash = any(start < e and s < start + length and low < h and b < low + size for s, e, b, h in fixed)
            if not clash:
                fixed.append((start, start + length, low, low + size))
                cell = str(low)
        lines.append(f"b{k},{start},{start + length},{size},{alignment},{cell}")
    return "\n".join([f"{HEAD},alignment,fixed_offset", *lines, ""])


@given(text=tables())
def test_alignments_and_fixed_offsets_hold_in_what_is_written(
    text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    table = read_table(table_of(tmp_path_factory.mktemp("laws") / "t.csv", text))
    packing = pack(table.intervals, effort=0.01)
    table.check(packing)
    assert held(table.to_csv(packing)) == packing.top_bytes
    assert packing.bound_bytes <= packing.top_bytes


def test_reserved_regions_stay_free_at_all_times_and_are_part_of_the_arena(run, tmp_path: Path) -> None:
    table = table_of(tmp_path / "t.csv", TWO)
    out = run("pack", table, "--reserved", "0:2", "--reserved", "8:1KiB").out
    assert held(out, reserved=[(0, 2), (8, 1024)]) == 1040  # 4 bytes fit between, 8 do not
    summary = json.loads(run("pack", table, "--reserved", "0:2", "--reserved", "8:1KiB", "--json").out)
    assert summary["arena_bytes"] == summary["bound_bytes"] == 1040
    assert set(summary["offsets"]) == {"a", "b"}


def test_a_reserved_region_is_the_arena_where_no_buffer_has_bytes_or_a_lifetime(run, tmp_path: Path) -> None:
    for text in ("", "never,2,2,100\n", "empty,0,4,0\n", "never,2,2,100\nempty,0,4,0\n"):
        table = table_of(tmp_path / "t.csv", f"{HEAD}\n{text}")
        found = json.loads(run("pack", table, "--reserved", "0:4", "--reserved", "16:8", "--json").out)
        assert (found["arena_bytes"], found["bound_bytes"], found["buffers"]) == (24, 24, text.count("\n"))
    # a region stays free for a buffer that lives, and never for one that does not
    table = table_of(tmp_path / "t.csv", f"{HEAD},fixed_offset\nnever,2,2,100,0\nb,5,6,8,\n")
    answer = run("pack", table, "--reserved", "0:4")
    assert (answer.code, held(answer.out.replace("never,2,2,100,0,0\n", ""), reserved=[(0, 4)])) == (0, 12)


def test_a_wrong_region_is_named(run, tmp_path: Path) -> None:
    table, wrong = table_of(tmp_path / "t.csv", TWO), list[str]()
    for regions, code, named in (
        (["4096"], 2, "OFFSET:SIZE"),
        (["-1:4"], 2, "reserved offset"),
        (["0:x"], 2, "reserved size"),
        (["0:4", "2:4"], 3, "'reserved 0:4' and buffer of 'reserved 2:4'"),
        ([f"{2**62}:4"], 3, "2**62"),
    ):
        arguments = [word for region in regions for word in ("--reserved", region)]
        wrong += faults(run("pack", table, *arguments), code, named)
    assert wrong == []


def test_a_fixed_buffer_in_a_reserved_region_is_a_contradiction_that_names_both(run, tmp_path: Path) -> None:
    table = table_of(tmp_path / "t.csv", f"{HEAD},fixed_offset\na,0,2,4,0\nb,1,3,8,\n")
    answer = run("pack", table, "--reserved", "2:4")
    assert answer.code == 3
    assert "'a' and buffer of 'reserved 2:4'" in error_lines(answer)[0]


def wrong(table: Table, row: int, offset: int) -> None:
    """Move one buffer of a packing, and hold the result to the table."""
    packing = pack(table.intervals)
    moved = packing.offset.copy()
    moved[row] = offset
    table.check(packing._replace(offset=moved))


def test_a_packing_that_breaks_a_rule_is_refused_and_the_buffer_named(tmp_path: Path) -> None:
    text = f"{HEAD},alignment,fixed_offset\naligned,0,9,10,16,\nfixed,0,9,6,,64\nfree,0,9,8,,\n"
    table = read_table(table_of(tmp_path / "t.csv", text), reserved=[(200, 8)])
    table.check(pack(table.intervals))
    for row, offset, named in (
        (0, 100, "'aligned' is at offset 100; it must be a multiple of 16"),
        (1, 160, "'fixed' is at offset 160; it must be at 64"),
        (2, 66, "'fixed' and buffer of 'free' overlap"),
        (2, 200, "'free' and buffer of 'reserved 200:8' overlap"),
        (2, -8, "'free' is at offset -8"),
    ):
        with pytest.raises(VerificationError, match=named):
            wrong(table, row, offset)


def test_a_packing_that_misstates_its_arena_or_bound_is_refused(tmp_path: Path) -> None:
    table = read_table(table_of(tmp_path / "t.csv", TWO))
    packing = pack(table.intervals)
    for fault in ({"top_bytes": 11}, {"top_bytes": 13}, {"bound_bytes": 13}):
        with pytest.raises(VerificationError, match="end at 12"):
            table.check(packing._replace(**fault))


def test_regions_are_checked_in_python_as_on_the_command_line(tmp_path: Path) -> None:
    with pytest.raises(PlanFileError, match="reserved 0:4"):
        read_table(table_of(tmp_path / "t.csv", TWO), reserved=[(0, 4), (0, 4)])


# ------------------------------------------------------------------------------------------------ capacities


def test_a_capacity_that_is_proven_too_small_exits_4_with_the_least_on_the_last_line(run, tmp_path: Path) -> None:
    table = table_of(tmp_path / "t.csv", TWO)
    answer = run("pack", table, "--capacity", "11", "-o", "out.csv")
    assert (answer.code, answer.out) == (4, "")
    assert "no packing goes below 12 bytes" in error_lines(answer)[0]
    assert error_lines(answer)[-1] == "12"
    assert not (tmp_path / "out.csv").exists()
    assert run("pack", table, "--capacity", error_lines(answer)[-1]).code == 0
    error = json.loads(run("pack", table, "--capacity", "11", "--json").out)
    assert (error["schema"], error["error"]) == ("planner-error", "InfeasibleBudget")
    assert (error["budget"], error["minimum"], error["peak_lower_bound"], error["proven"]) == (11, 12, 12, True)


def test_a_capacity_that_was_only_not_reached_says_so(run, shared: Path) -> None:
    table = shared / "data/minimalloc/D.1048576.csv"
    answer = run("pack", table, "--capacity", "986112", "--effort", "0", "--json")
    assert answer.code == 4
    error = json.loads(answer.out)
    assert error["proven"] is False
    assert error["minimum"] > 986112
    assert error["peak_lower_bound"] == 986112  # what is live, by the notes of the data
    assert "none was found; the proven bound is 986112" in error_lines(answer)[0]
    assert error_lines(answer)[-1] == str(error["minimum"])
    late = run("pack", table, "--capacity", "986112", "--time-limit", "0")
    assert late.code == 4
    assert "none was found in time" in error_lines(late)[0]


def test_a_capacity_that_is_met_is_echoed_in_bytes(run, tmp_path: Path) -> None:
    table = table_of(tmp_path / "t.csv", TWO)
    for capacity, nbytes in (("12", 12), ("1KiB", 1024), ("0.012kB", 12)):
        answer = run("pack", table, "--capacity", capacity)
        assert answer.code == 0
        assert f"within {nbytes} bytes" in answer.err


def test_a_wrong_option_is_a_usage_error(run, tmp_path: Path) -> None:
    table = table_of(tmp_path / "t.csv", TWO)
    wrong = {"--capacity": ("7Gb", "-1"), "--effort": ("-1", "nan", "inf"), "--time-limit": ("nan", "-1")}
    wrong["--seed"] = ("-1", "x")
    answers = [run("pack"), *(run("pack", table, option, text) for option, texts in wrong.items() for text in texts)]
    assert [fault for answer in answers for fault in faults(answer, 2)] == []


# ------------------------------------------------------------------------------------------------ effort, time, seeds


def test_no_time_and_no_effort_still_give_a_packing(run, shared: Path) -> None:
    table = shared / "data/minimalloc/A.1048576.csv"
    for option, cut in ("--time-limit", True), ("--effort", False):
        answer = run("pack", table, option, "0")
        assert answer.code == 0
        arena = held(answer.out)
        assert arena > 1048576
        assert f"({arena} bytes); no packing goes below 1048576 bytes{'; cut short' if cut else ''}\n" in answer.err


def test_the_search_reaches_what_is_live_and_the_same_seed_the_same_offsets(run, shared: Path) -> None:
    table = shared / "data/minimalloc/F.1048576.csv"
    first, again = (run("pack", table, "--seed", "3") for _ in range(2))
    assert held(first.out) == 1048576
    assert first.out == again.out
    found = json.loads(run("pack", table, "--seed", "3", "--json").out)
    assert (found["schema"], found["version"]) == ("planner-packing", 1)
    assert found["arena_bytes"] == found["bound_bytes"] == 1048576
    assert found["offsets"] == {row["id"]: int(row["offset"]) for row in rows_of(first.out)}
    assert not found["cut_short"]


# ------------------------------------------------------------------------------------------------ outputs and processes


def test_the_table_is_written_to_a_file_and_never_over_one_unasked(run, tmp_path: Path) -> None:
    table = table_of(tmp_path / "t.csv", TWO)
    answer = run("pack", table, "-o", "out.csv")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == "2 buffers in 12 B (12 bytes); proven: no packing is smaller\n  Saved to out.csv\n"
    assert held((tmp_path / "out.csv").read_text()) == 12
    before = table.read_bytes()
    refused = run("pack", table, "-o", table)
    assert refused.code == 2
    assert "-f" in error_lines(refused)[0]
    assert table.read_bytes() == before
    assert json.loads(run("pack", table, "-o", table, "-f", "--json").out)["file"] == str(table)
    assert held(table.read_text()) == 12


def test_an_output_that_cannot_be_written_is_refused_before_the_work(run) -> None:
    for output in ("missing/out.csv", ".", "/dev/null"):
        assert faults(run("pack", "no-such-table.csv", "-o", output, "-f"), 2, output) == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_standard_output_is_said(tmp_path: Path) -> None:
    table = table_of(tmp_path / "t.csv", TWO)
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMAND, str(table)], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error: cannot write to standard output: ")
    assert len(done.stderr.splitlines()) == 1


def test_a_reader_that_leaves_ends_it_in_peace(tmp_path: Path) -> None:
    lines = "".join(f"buffer-{k},{k},{k + 3},{k % 7 + 1}\n" for k in range(20000))
    table = table_of(tmp_path / "t.csv", f"{HEAD}\n{lines}")
    done = subprocess.run(
        f'"{sys.executable}" -m planner.cli pack {table} | head -n 1; exit ${{PIPESTATUS[0]}}',
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    assert done.stdout == f"{HEAD},offset\n"
    assert "error" not in done.stderr.lower()


def interrupted(*arguments: str) -> tuple[int, str]:
    """Exit code and standard output of a `planner pack` that gets Ctrl-C as soon as it shows that it has a packing."""
    terminal, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        env={**os.environ, "TERM": "xterm"},
        # where the tests run in the background it is ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    os.close(theirs)
    try:
        seen = b""
        while b"none below" not in seen:
            seen += os.read(terminal, 1000)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=120)
        return process.returncode, out
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


def test_ctrl_c_writes_what_it_has_and_says_that_it_was_cut_short(shared: Path, tmp_path: Path) -> None:
    code, out = interrupted(
        str(shared / "data/minimalloc/D.1048576.csv"), "--effort", "100000", "-o", str(tmp_path / "out.csv")
    )
    assert code == 0
    assert "no packing goes below 986112 bytes; cut short" in out
    assert f"({held((tmp_path / 'out.csv').read_text())} bytes)" in out


def test_ctrl_c_before_the_capacity_is_reached_exits_4_with_the_least_so_far(shared: Path, tmp_path: Path) -> None:
    options = ("--capacity", "986112", "--effort", "100000", "--json", "-o", str(tmp_path / "out.csv"))
    code, out = interrupted(str(shared / "data/minimalloc/D.1048576.csv"), *options)
    assert code == 4
    assert json.loads(out)["minimum"] > 986112
    assert "in time" in json.loads(out)["message"]
    assert not (tmp_path / "out.csv").exists()


def test_what_the_rules_pack_does_not_wait_for_the_search_to_be_compiled(tmp_path: Path) -> None:
    table = table_of(tmp_path / "t.csv", TWO)
    cache = tmp_path / "cache"
    subprocess.run(
        [*COMMAND, str(table)], check=True, capture_output=True, env={**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    )
    compiled = {path.name.split("-")[0] for path in cache.rglob("*.nbi")}
    assert "placement.place" in compiled
    assert not any("packing_search" in name for name in compiled)


# ------------------------------------------------------------------------------- the true problem, from graphs

#: In-place through a chain, a view at an inner offset that outlives its base, and workspace of one step.
ALIASED = Graph([
    op("a", nbytes=64), op("b", "a", nbytes=64, inplace=((0, 0, False),)),
    op("c", "b", nbytes=64, inplace=((0, 0, False),), workspace=40), op("big", "c", nbytes=96),
    op("part", "big", nbytes=16, view=((0, 0, 32),)), op("d", "part", "c", nbytes=8, workspace=24),
    op("e", "part", "d", nbytes=8, output=True),
])  # fmt: skip
ORDER = steps("a b -a c -b big part -big d -c e -part -d")


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_chains_views_and_workspace_are_packed_as_one_storage_each_and_run_in_the_arena(allocator: str) -> None:
    allocation = allocate(ALIASED, ORDER, allocator=allocator)
    assert overlaps(allocation.buffers) == []
    lives = {(b.value, b.workspace): (b.nbytes, b.start, b.end) for b in allocation.buffers}
    assert lives[("big", False)] == (96, 3, 7)  # the view pins it
    assert lives[("c", True)] == (40, 2, 3)
    assert lives[("d", True)] == (24, 5, 6)
    assert ("part", False) not in lives
    if allocator != "nnvm":
        assert lives[("a", False)] == (64, 0, 6)  # b and c are in its place, and d reads c
        assert set(lives) == {("a", False), ("big", False), ("c", True), ("d", False), ("d", True), ("e", False)}
    execute(ALIASED, ORDER, allocation)
    execute(ALIASED, ORDER, allocation, scale=4)


def test_exact_has_no_byte_to_spare_on_them_and_proves_it() -> None:
    allocation = allocate(ALIASED, ORDER, allocator="exact")
    # a, big, d and the workspace of d at step 5
    assert allocation.arena_bytes == allocation.bound_bytes == 192
    assert naive_peak(ALIASED, ORDER) == lower_bound(allocation.buffers) == 192


def moved(allocation: Allocation, value: str, workspace: bool, offset: int) -> Allocation:
    buffers = tuple(
        msgspec.structs.replace(b, offset=offset) if (b.value, b.workspace) == (value, workspace) else b
        for b in allocation.buffers
    )
    top = max(b.offset + b.nbytes for b in buffers)
    return msgspec.structs.replace(allocation, buffers=buffers, arena_bytes=top, bound_bytes=None)


def test_a_buffer_over_a_chain_a_viewed_storage_or_under_a_workspace_is_refused_by_name() -> None:
    allocation = allocate(ALIASED, ORDER, allocator="exact")
    offset = {b.value: b.offset for b in allocation.buffers if not b.workspace}
    for value, workspace, base in (("d", False, "a"), ("e", False, "big"), ("d", True, "big"), ("c", True, "a")):
        clash = moved(allocation, value, workspace, offset[base] + 32)
        with pytest.raises(VerificationError, match=f"workspace of '{value}'" if workspace else f"'{value}'"):
            simulate(ALIASED, ORDER, allocation=clash)


def test_the_bytes_show_it_too_where_a_value_lies_in_the_viewed_part() -> None:
    allocation = allocate(ALIASED, ORDER, allocator="exact")
    inner = next(b.offset for b in allocation.buffers if b.value == "big") + 32
    for value in ("d", "e"):
        with pytest.raises(VerificationError, match="'part'"):
            execute(ALIASED, ORDER, moved(allocation, value, False, inner))


def test_an_arena_is_what_its_buffers_take_and_offsets_are_ints_of_python() -> None:
    for allocator in ALLOCATORS:
        allocation = allocate(ALIASED, ORDER, allocator=allocator)
        assert allocation.arena_bytes == max(b.offset + b.nbytes for b in allocation.buffers)
        numbers = [number for b in allocation.buffers for number in (b.offset, b.nbytes, b.start, b.end)]
        assert {type(number) for number in numbers} == {int}
        assert msgspec.json.decode(msgspec.json.encode(allocation), type=Allocation) == allocation
