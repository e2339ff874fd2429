"""Files that an earlier planner wrote: they load, print what their `.txt` says, and hold to every number they claim.

The files stay as they were written. Where the words of a report change, the `.txt` is written again from the old file.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import planner

ROOT = Path(__file__).resolve().parents[1]
FILES = ROOT / "tests" / "golden" / "files"
PLANS = sorted(path.stem for path in FILES.glob("plan-*.json"))
CURVES = sorted(path.stem for path in FILES.glob("curve-*.json"))
GRAPHS = sorted(path.stem for path in FILES.glob("graph-*.json"))

#: All of it in one process, where nothing was registered before.
FRESH = """
import sys
from pathlib import Path
import planner

for path in map(Path, sys.argv[1:]):
    kind = path.name.split("-")[0]
    if kind == "graph":
        print(path.stem, planner.optimize(path, "100%", strategy="cuts").graph.fingerprint)
        continue
    if kind == "plan":
        found = planner.load(path)
        said = str(found.report)
        found.verify()
    else:
        said = str(planner.load_curve(path))
    if said + "\\n" != path.with_suffix(".txt").read_text():
        sys.exit(f"{path.name} prints another report")
    print(path.stem)
"""


def file(name: str) -> Path:
    return FILES / f"{name}.json"


def said(name: str) -> str:
    return (FILES / f"{name}.txt").read_text()


def test_there_are_files_of_every_kind() -> None:
    assert len(PLANS) >= 14
    assert len(CURVES) == len(GRAPHS) == 2
    assert {path.stem for path in FILES.glob("*.txt")} == {*PLANS, *CURVES}


@pytest.mark.parametrize("name", PLANS)
def test_an_old_plan_prints_the_same_report_and_verifies(name: str) -> None:
    plan = planner.load(file(name))
    assert f"{plan.report}\n" == said(name)
    trace = plan.verify()
    assert (trace.peak_bytes, trace.cost) == (plan.report.plan.peak_bytes, plan.report.plan.cost)


@pytest.mark.parametrize("name", PLANS)
def test_an_old_plan_saved_again_is_the_same_plan(name: str, tmp_path: Path) -> None:
    plan = planner.load(file(name))
    plan.save(tmp_path / "again.json")
    again = planner.load(tmp_path / "again.json", plan.graph)
    for part in (
        "schedule", "allocation", "report", "strategy", "allocator", "budget", "memory", "seed", "effort", "save_rules",
        "recompute_rules", "order",
    ):  # fmt: skip
        assert getattr(again, part) == getattr(plan, part), part
    assert again.graph.fingerprint == plan.graph.fingerprint
    assert again.to_json() == plan.to_json()


@pytest.mark.parametrize("name", CURVES)
def test_an_old_curve_prints_the_same_table_also_when_saved_again(name: str, tmp_path: Path) -> None:
    curve = planner.load_curve(file(name))
    assert f"{curve}\n" == said(name)
    curve.save(tmp_path / "again.json")
    assert planner.load_curve(tmp_path / "again.json") == curve


@pytest.mark.parametrize("name", GRAPHS)
def test_an_old_graph_file_is_the_graph_of_an_old_plan(name: str) -> None:
    plan = planner.load(file("plan-rules"), file(name))
    assert planner.optimize(file(name), "100%", strategy="cuts").graph.fingerprint == plan.graph.fingerprint


def test_all_of_them_load_and_verify_in_one_fresh_process() -> None:
    names = [*PLANS, *CURVES, *GRAPHS]
    command = [sys.executable, "-c", FRESH, *(str(file(name)) for name in names)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=600)
    assert done.returncode == 0, done.stderr
    fingerprint = planner.load(file("plan-rules")).graph.fingerprint
    assert done.stdout.split("\n")[:-1] == [f"{name} {fingerprint}" if name in GRAPHS else name for name in names]
