"""A plan in other tools' files, read back: every byte, every step, every run."""

from __future__ import annotations

import csv
import io
import json
import pickle
import pickletools
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from test_cli import faults

import planner
from planner import Allocation, Buffer, MemoryModel, Plan, zoo
from planner.packing.buffer_table import read_table
from planner.views.exports import BASE_ADDRESS, CSV_COLUMNS, buffers_csv, chrome_trace, torch_snapshot


def scratching() -> nx.DiGraph:
    """Two outputs, one of them read in place, and scratch bytes at both steps."""
    graph = nx.DiGraph()
    graph.add_node("x", nbytes=5, kind="input")
    graph.add_node("a", nbytes=(8, 3), workspace=16)
    graph.add_node("b", nbytes=8, workspace=4, inplace=((0, 0),))
    graph.add_edge("x", "a", reads=(0,), at=(0,))
    graph.add_edge("a", "b", reads=(0,), at=(0,))
    return graph


@pytest.fixture(scope="module")
def plans() -> dict[str, Plan]:
    """Plans with in-place ops, workspace, several outputs, alignment, and no offsets."""
    resnet = zoo.resnet((1, 1, 1, 1), batch=4, image=64)
    budget: dict[str, Any] = {"strategy": "chen-budget"}
    return {
        "total": planner.optimize(resnet, "97%", **budget),
        "activations": planner.optimize(resnet, memory=MemoryModel("activations", alignment=512), **budget),
        "no offsets": planner.optimize(resnet, "97%", allocator=None, **budget),
        "workspace": planner.optimize(scratching()),
        "empty": planner.optimize(planner.Graph([])),
    }


def test_the_judge_takes_the_buffers_of_the_table_for_those_of_the_plan(plans: dict[str, Plan], tmp_path: Path) -> None:
    for name in ("total", "activations"):
        plan = plans[name]
        rows = list(csv.DictReader(io.StringIO(buffers_csv(plan))))
        numbers = [{column: int(row[column]) for column in ("size", "lower", "upper", "offset")} for row in rows]
        made = zip(rows, numbers, strict=True)
        buffers = tuple(
            Buffer(
                row["value"],
                int(row["execution"]),
                row["workspace"] == "1",
                n["size"],
                n["lower"],
                n["upper"],
                n["offset"],
            )
            for row, n in made
        )
        held = plan.allocation
        assert held is not None
        again = Allocation(buffers, held.resident_bytes, held.arena_bytes, "read back")
        trace = planner.simulate(plan.graph, plan.schedule, memory=plan.memory, allocation=again)
        assert trace.arena_bytes == plan.report.plan.arena_bytes
        assert tuple(rows[0]) == CSV_COLUMNS
        assert sum(int(row["runs"]) > 1 for row in rows) > 0
        (tmp_path / "buffers.csv").write_text(buffers_csv(plan))
        assert len(read_table(tmp_path / "buffers.csv").names) == len(rows)  # as planner pack reads it


def test_a_table_without_offsets_says_no_place() -> None:
    plan = planner.optimize(zoo.chain(4), allocator=None)
    assert {row["offset"] for row in csv.DictReader(io.StringIO(buffers_csv(plan)))} == {""}


def events(plan: Plan, kind: str) -> list[dict[str, Any]]:
    trace = json.loads(chrome_trace(plan))
    assert set(trace) == {"traceEvents", "displayTimeUnit", "otherData"}
    return [event for event in trace["traceEvents"] if event["ph"] == kind]


def test_the_counter_of_a_chrome_trace_has_the_peak_and_the_judges_timeline(plans: dict[str, Plan]) -> None:
    for plan in plans.values():
        judged = planner.simulate(plan.graph, plan.schedule, memory=plan.memory).timeline_bytes
        assert tuple(sum(event["args"].values()) for event in events(plan, "C")) == judged


def test_slices_of_a_chrome_trace_nest_and_take_the_cost_of_the_plan(plans: dict[str, Plan]) -> None:
    plan = plans["total"]
    slices = events(plan, "X")
    ops, phases = ([e for e in slices if (e["cat"] == "phase") is outer] for outer in (False, True))
    assert [e["name"] for e in ops] == list(plan.schedule.computes)
    assert sum(e["cat"] == "run again" for e in ops) == plan.report.extra_runs > 0
    assert sum(e["dur"] for e in ops) == pytest.approx(1e6 * plan.report.plan.cost, abs=0.001 * len(ops))
    tolerance_us = 1e-6
    for before, after in (*pairwise(ops), *pairwise(phases)):
        assert before["ts"] + before["dur"] <= after["ts"] + tolerance_us
    inside = iter(ops)
    for phase in phases:
        for op in (next(inside) for _ in range(phase["args"]["ops"])):
            assert phase["ts"] <= op["ts"]
            assert op["ts"] + op["dur"] <= phase["ts"] + phase["dur"] + tolerance_us
    assert next(inside, None) is None
    keys = {"ph", "pid", "tid", "name", "cat", "ts", "dur", "args"}  # as the format's description names them
    assert all(set(e) == keys for e in slices)


def live_bytes(snapshot: dict[str, Any]) -> Iterator[int]:
    """Bytes taken after each event of a snapshot; two tensors that share a byte, or one freed twice, are an error."""
    live: dict[int, int] = {}
    for event in snapshot["device_traces"][0]:
        address, size = event["addr"], event["size"]
        if event["action"] == "alloc":
            assert all(address + size <= other or other + held <= address for other, held in live.items())
            live[address] = size
        elif event["action"] == "free_completed":
            assert live.pop(address) == size
        yield sum(live.values())
    active = [block for block in snapshot["segments"][0]["blocks"] if block["state"] == "active_allocated"]
    assert live == {block["address"]: block["size"] for block in active}


def test_a_snapshot_takes_and_gives_back_what_the_plan_does_up_to_its_peak(plans: dict[str, Plan]) -> None:
    for plan in plans.values():
        snapshot = pickle.loads(torch_snapshot(plan))
        assert max(live_bytes(snapshot)) == plan.report.plan.peak_bytes
        (segment,) = snapshot["segments"]
        place = BASE_ADDRESS
        for block in segment["blocks"]:
            assert block["address"] == place
            place += block["size"]
        assert place == BASE_ADDRESS + segment["total_size"]
        if plan.allocation is not None:
            assert segment["total_size"] == max(plan.report.plan.arena_bytes, 1)


def test_a_snapshot_holds_no_code(plans: dict[str, Plan]) -> None:
    codes = {code.name for code, _, _ in pickletools.genops(torch_snapshot(plans["total"]))}
    assert not codes & {"GLOBAL", "STACK_GLOBAL", "REDUCE", "INST", "OBJ", "NEWOBJ", "BUILD", "EXT1", "EXT2", "EXT4"}


def test_pytorchs_own_viewer_reads_a_snapshot(plans: dict[str, Plan]) -> None:
    viewer = pytest.importorskip("torch.cuda._memory_viz")
    snapshot = pickle.loads(torch_snapshot(plans["total"]))
    assert "segments: 1\n" in viewer.segsum(snapshot)  # raises where the blocks do not add up
    taken = [line for line in viewer.trace(snapshot).splitlines() if "[" in line]
    assert len(taken) == sum(event["action"] == "alloc" for event in snapshot["device_traces"][0])
    assert "<script" in viewer.trace_plot(snapshot)


def test_what_pytorchs_viewer_prints_has_the_peak_of_the_plan(plans: dict[str, Plan]) -> None:
    viewer = pytest.importorskip("torch.cuda._memory_viz")
    chain = planner.optimize(zoo.chain(8), 7)
    for plan in (chain, plans["workspace"]):  # of few bytes, which the viewer does not round
        held, most = 0, 0
        for line in viewer.trace(pickle.loads(torch_snapshot(plan))).splitlines():
            size = re.search(r"(\d+)\.0B", line)
            if size is not None and "cudaMalloc" not in line and "TOTAL" not in line:
                held += int(size[1]) * ("[" in line) - int(size[1]) * ("free completed" in line)
                most = max(most, held)
        assert most == plan.report.plan.peak_bytes


def test_pandas_reads_the_table_as_it_is_written(plans: dict[str, Plan], tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    (tmp_path / "buffers.csv").write_text(buffers_csv(plans["total"]))
    table = pandas.read_csv(tmp_path / "buffers.csv")
    assert tuple(table.columns) == CSV_COLUMNS
    assert table["size"].dtype == table["lower"].dtype == table["offset"].dtype == "int64"
    plan = plans["total"]
    highest = (table["offset"] + table["size"]).max() + plan.report.resident_bytes
    assert highest == plan.report.plan.arena_bytes


def test_report_and_export_write_files_and_standard_output(run) -> None:
    assert run("optimize", "chain:8", "--budget", "7", "-o", "plan.json").code == 0
    for name, begins in (("a.svg", b"<?xml"), ("a.PNG", b"\x89PNG"), ("a.pdf", b"%PDF")):
        assert run("report", "plan.json", "-o", name).out == f"Saved to {name}\n"
        assert Path(name).read_bytes().startswith(begins)
    pictures = set()
    for figure in ("timeline", "arena", "recomputation"):
        assert run("report", "plan.json", "-o", "b.svg", "-f", "--figure", figure).code == 0
        pictures.add(Path("b.svg").read_bytes())
    assert len(pictures) == 3
    printed = run("export", "plan.json", "--to", "csv", "-o", "-").out
    assert run("export", "plan.json", "--to", "csv", "-o", "b.csv").code == 0
    assert Path("b.csv").read_text() == printed == buffers_csv(planner.load("plan.json"))
    written = json.loads(run("export", "plan.json", "--to", "perfetto", "-o", "t.json", "--json").out)
    assert (written["schema"], written["form"], written["file"]) == ("planner-file", "perfetto", "t.json")
    assert Path("t.json").read_bytes() == chrome_trace(planner.load("plan.json"))


def test_optimize_writes_what_the_name_of_its_file_says(run) -> None:
    assert run("optimize", "chain:8", "--budget", "7", "-o", "p.svg").code == 0
    assert Path("p.svg").read_bytes().startswith(b"<?xml")
    printed = run("optimize", "chain:8", "--budget", "7", "-o", "-")
    assert not Path("-").exists()
    Path("p.json").write_text(printed.out)
    assert planner.load("p.json").report.plan.cost == 19  # public case C1: 7 -> 19


REFUSED = (
    ("optimize chain:8 -o p.xlsx", 2, (".json, .html, .svg, .png or .pdf",)),
    ("optimize chain:8 -o p", 2, (".json, ",)),
    ("report p.json -o p.html5", 2, (".html, .svg, .png or .pdf",)), ("report p.json", 2, ("-o",)),
    ("report none.json -o a.svg", 3, ("none.json",)), ("export none.json --to csv -o a.csv", 3, ("none.json",)),
    ("export p.json --to xml -o a", 2, ("csv, perfetto, torch-snapshot",)),
    ("report p.json -o a.svg --figure x", 2, ("timeline",)),
)  # fmt: skip


def test_what_cannot_be_written_is_refused_before_any_work(run) -> None:
    assert [said for command, *what in REFUSED for said in faults(run(*command.split()), what[0], *what[1])] == []
    for command in ("optimize chain:8 -o - --json", "export p.json --to csv -o - --json"):
        assert "both write to standard output" in json.loads(run(*command.split()).out)["message"]
    run("optimize", "chain:4", "-o", "p.json")
    run("report", "p.json", "-o", "a.svg")
    assert faults(run("report", "p.json", "-o", "a.svg"), 2, "-f") == []
    run("optimize", "chain:4", "--allocator", "none", "-o", "q.json")
    assert faults(run("report", "q.json", "-o", "c.svg", "--figure", "arena"), 2, "allocator") == []
