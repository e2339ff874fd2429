"""A plan's file holds all of it, is whole or absent, and nothing in it is believed before the judge has seen it."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import networkx as nx
import pytest
from hypothesis import HealthCheck, given, settings
from strategies import digraphs, memory_models

import planner
from planner import InfeasibleBudget, MemoryModel, OutputError, Plan, PlanFileError, ScheduleError, VerificationError, load, optimize, zoo
from planner.files import write_whole
from planner.schedule import Compute, Free, Schedule


@pytest.fixture(scope="module")
def plan() -> Plan:
    """A plan with recomputation, workspace, residents and a reserve."""
    graph = zoo.chain(16, reads=("in", "out"), nbytes=8, input_nbytes=8)
    for node in graph:
        if node.startswith("f"):
            graph.nodes[node]["workspace"] = 3
    found = optimize(graph, 120, memory=MemoryModel(alignment=4, reserve=5), seed=3)
    assert found.report.extra_runs > 0
    return found


@pytest.fixture
def saved(plan: Plan, tmp_path: Path) -> Path:
    plan.save(tmp_path / "plan.json")
    return tmp_path / "plan.json"


# ------------------------------------------------------------------------------------------------ round trip


def test_load_gives_back_the_plan_that_was_saved(plan: Plan, saved: Path) -> None:
    again = load(saved)
    assert again == plan
    assert again.verify() == plan.verify()
    assert str(again.report) == str(plan.report)
    assert again.graph.fingerprint == plan.graph.fingerprint
    assert load(str(saved), plan.graph) == plan


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(digraph=digraphs(), memory=memory_models())
def test_any_plan_survives_its_file(tmp_path_factory: pytest.TempPathFactory, digraph: nx.DiGraph, memory: MemoryModel) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    for allocator in ("auto", None):
        plan = optimize(digraph, memory=memory, allocator=allocator)
        plan.save(path)
        again = load(path)
        assert again == plan
        assert again.verify() == plan.verify()


def test_the_file_is_versioned_json_with_the_graph_inside(plan: Plan, saved: Path) -> None:
    parts = json.loads(saved.read_bytes())
    assert (parts["format"], parts["version"]) == ("planner-plan", 1)
    assert parts["fingerprint"] == plan.graph.fingerprint
    assert len(parts["ops"]) == len(plan.graph.ops)


def test_saving_the_same_plan_twice_writes_the_same_bytes(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "a.json")
    load(tmp_path / "a.json").save(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


# ------------------------------------------------------------------------------------------------ files that are no plans


def refused(path: Path, *words: str, graph: planner.Graph | None = None) -> None:
    with pytest.raises(PlanFileError) as caught:
        load(path, graph)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    assert all(word in message for word in words), message


def edited(path: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    parts = json.loads(path.read_bytes())
    change(parts)
    path.write_text(json.dumps(parts))
    return path


def test_a_missing_file_a_folder_and_another_kind_of_file_are_refused(tmp_path: Path) -> None:
    refused(tmp_path / "nothing.json", "No such file")
    refused(tmp_path)
    for name, content in {
        "empty": b"",
        "text": b"hello",
        "binary": bytes(range(256)),
        "list": b"[1, 2]",
        "number": b"7",
        "object": b"{}",
        "deep": b"[" * 100_000,
        "deep object": b'{"a":' * 100_000,
    }.items():
        (tmp_path / name).write_bytes(content)
        refused(tmp_path / name, "not a plan file")


def test_a_graph_file_is_no_plan(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "graph.json").write_bytes(plan.graph.to_json())
    refused(tmp_path / "graph.json", "planner-graph", "planner-plan")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused(saved: Path, share: float) -> None:
    content = saved.read_bytes()
    saved.write_bytes(content[: int(len(content) * share)])
    refused(saved)


@pytest.mark.parametrize("version", [0, 2, "1", None, 1.5])
def test_another_version_is_refused_with_both_versions(saved: Path, version: Any) -> None:
    refused(edited(saved, lambda parts: parts.update(version=version)), repr(version), "1")


DAMAGE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no schedule": lambda parts: parts.pop("schedule"),
    "no ops": lambda parts: parts.pop("ops"),
    "a step of another kind": lambda parts: parts["schedule"]["steps"].__setitem__(0, ["sleep", "f1"]),
    "a step that is a number": lambda parts: parts["schedule"]["steps"].__setitem__(0, 7),
    "a size that is text": lambda parts: parts["ops"][1]["outputs"][0].update(nbytes="8"),
    "a negative size": lambda parts: parts["ops"][1]["outputs"][0].update(nbytes=-8),
    "a size above 64 bits": lambda parts: parts["ops"][1]["outputs"][0].update(nbytes=2**70),
    "an op twice": lambda parts: parts["ops"].append(parts["ops"][-1]),
    "an op that reads nothing known": lambda parts: parts["ops"][2].update(reads=["nobody"]),
    "a budget of text": lambda parts: parts.update(budget="7GB"),
    "an unknown scope": lambda parts: parts["memory"].update(scope="half"),
    "an alignment of zero": lambda parts: parts["memory"].update(alignment=0),
    "another fingerprint": lambda parts: parts.update(fingerprint="0" * 64),
    "another cost under the old fingerprint": lambda parts: parts["ops"][3].update(cost=9.0),
    "a report without figures": lambda parts: parts["report"].pop("plan"),
    "a buffer without offset": lambda parts: parts["allocation"]["buffers"][0].pop("offset"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_refused(saved: Path, damage: str) -> None:
    refused(edited(saved, DAMAGE[damage]), "damaged")


def test_the_plan_of_another_graph_is_refused(saved: Path) -> None:
    other = planner.lower(zoo.chain(16, reads=("in",), nbytes=8))
    refused(saved, "another graph", graph=other)


# ------------------------------------------------------------------------------------------------ tampering


def first_free(steps: list) -> int:
    return next(k for k, step in enumerate(steps) if step[0] == "free")


TAMPERED_SCHEDULES: dict[str, Callable[[list], Any]] = {
    "the last op left out": lambda steps: steps.__delitem__(slice(max(k for k, s in enumerate(steps) if s[0] == "compute"), None)),
    "a value freed too soon": lambda steps: steps.insert(first_free(steps), ["free", "f16"]),
    "a free left out, so that more is live": lambda steps: steps.__delitem__(first_free(steps)),
    "a recomputation left out": lambda steps: steps.__delitem__(
        next(k for k, step in enumerate(steps) if step[0] == "compute" and step in steps[:k])
    ),
    "an extra run": lambda steps: steps.extend([["compute", "f1"], ["free", "f1"]]),
    "steps turned round": lambda steps: steps.reverse(),
    "an unknown op": lambda steps: steps.insert(0, ["compute", "nobody"]),
    "a resident freed": lambda steps: steps.append(["free", "x"]),
    "nothing at all": lambda steps: steps.clear(),
}


@pytest.mark.parametrize("fault", TAMPERED_SCHEDULES)
def test_verify_refuses_a_tampered_schedule(saved: Path, fault: str) -> None:
    plan = load(edited(saved, lambda parts: TAMPERED_SCHEDULES[fault](parts["schedule"]["steps"])))
    with pytest.raises((ScheduleError, VerificationError)):
        plan.verify()


TAMPERED_BUFFERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "all offsets zero": lambda allocation: [b.update(offset=0) for b in allocation["buffers"]],
    "an offset that is not aligned": lambda allocation: allocation["buffers"][0].update(offset=allocation["buffers"][0]["offset"] + 1),
    "a buffer left out": lambda allocation: allocation["buffers"].pop(),
    "a smaller buffer": lambda allocation: allocation["buffers"][0].update(nbytes=1),
    "a smaller arena": lambda allocation: allocation.update(arena_bytes=allocation["arena_bytes"] - 4),
}


@pytest.mark.parametrize("fault", TAMPERED_BUFFERS)
def test_verify_refuses_tampered_offsets(saved: Path, fault: str) -> None:
    plan = load(edited(saved, lambda parts: TAMPERED_BUFFERS[fault](parts["allocation"])))
    with pytest.raises(VerificationError):
        plan.verify()


TAMPERED_REPORTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "peak": lambda report: report["plan"].update(peak_bytes=report["plan"]["peak_bytes"] - 1),
    "arena": lambda report: report["plan"].update(arena_bytes=report["plan"]["arena_bytes"] - 1),
    "cost": lambda report: report["plan"].update(cost=report["plan"]["cost"] - 1),
    "budget": lambda report: report.update(budget=report["budget"] - 1),
    "no budget": lambda report: report.update(budget=None),
    "memory": lambda report: report["memory"].update(reserve=0),
    "keep-all peak": lambda report: report["keep_all"].update(peak_bytes=report["keep_all"]["peak_bytes"] * 10),
    "keep-all cost": lambda report: report["keep_all"].update(cost=report["plan"]["cost"]),
    "recomputed ops": lambda report: report.update(recomputed_ops=0),
    "extra runs": lambda report: report.update(extra_runs=0),
    "peak op": lambda report: report.update(peak_op="x"),
    "live at the peak": lambda report: report.update(live_at_peak=[]),
    "a lower bound above the plan": lambda report: report.update(peak_lower_bound=report["plan"]["peak_bytes"] + 1),
    "a proof there is not": lambda report: report.update(optimal="cost at this budget, order free", cost_lower_bound=1e9),
}


@pytest.mark.parametrize("claim", TAMPERED_REPORTS)
def test_verify_refuses_a_tampered_report(saved: Path, claim: str) -> None:
    plan = load(edited(saved, lambda parts: TAMPERED_REPORTS[claim](parts["report"])))
    with pytest.raises(VerificationError):
        plan.verify()


def test_verify_refuses_a_budget_that_is_exceeded(plan: Plan) -> None:
    budget = plan.report.plan.arena_bytes + plan.memory.reserve - 1
    tight = dataclasses.replace(plan, budget=budget, report=msgspec.structs.replace(plan.report, budget=budget))
    with pytest.raises(VerificationError, match="budget"):
        tight.verify()


def test_a_plan_cannot_be_changed_in_place(plan: Plan) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.budget = 1  # type: ignore[misc]
    with pytest.raises(AttributeError):
        plan.report.budget = 1  # type: ignore[misc]


# ------------------------------------------------------------------------------------------------ whole or not at all


def cannot_save(plan: Plan, path: Path) -> str:
    with pytest.raises(OutputError) as caught:
        plan.save(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_missing_folder_is_an_output_error_and_is_not_made(plan: Plan, tmp_path: Path) -> None:
    cannot_save(plan, tmp_path / "missing" / "plan.json")
    assert not (tmp_path / "missing").exists()


def test_a_folder_as_target_is_an_output_error(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    cannot_save(plan, tmp_path / "target")
    assert list((tmp_path / "target").iterdir()) == []
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_a_file_as_folder_is_an_output_error(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    cannot_save(plan, tmp_path / "file" / "plan.json")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_an_output_error(plan: Plan, tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    folder.chmod(0o500)
    try:
        cannot_save(plan, folder / "plan.json")
        assert list(folder.iterdir()) == []
    finally:
        folder.chmod(0o700)


@pytest.mark.parametrize("failing", ["fsync", "replace", "chmod"])
def test_a_failure_midway_leaves_the_old_file_and_nothing_else(
    plan: Plan, saved: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    before = saved.read_bytes()

    def full(*_args: Any, **_options: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, failing, full)
    assert "No space left" in cannot_save(dataclasses.replace(plan, seed=99), saved)
    monkeypatch.undo()
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_an_interrupt_midway_leaves_the_old_file_and_nothing_else(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = saved.read_bytes()

    def interrupt(*_args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_whole(saved, b"new")
    monkeypatch.undo()
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_saving_replaces_an_existing_file_and_keeps_its_permissions(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("old and longer " * 10_000)
    path.chmod(0o640)
    plan.save(path)
    assert load(path) == plan
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_new_file_has_the_permissions_the_umask_asks_for(plan: Plan, tmp_path: Path) -> None:
    mask = os.umask(0o027)
    try:
        plan.save(tmp_path / "plan.json")
    finally:
        os.umask(mask)
    assert (tmp_path / "plan.json").stat().st_mode & 0o777 == 0o640


# ------------------------------------------------------------------------------------------------ what is printed


def test_the_report_shows_keep_all_plan_bound_and_budget_side_by_side(plan: Plan) -> None:
    text = str(plan.report)
    rows = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert all(word in text for word in ("keep-all", "this plan", "lower bound", "budget"))
    # 16 layers, two gradients and the input of 8 bytes; layers need 3 bytes more while they run.
    assert plan.report.keep_all.peak_bytes == 19 * 8
    assert "152 B" in rows["peak"]
    assert f"{plan.report.plan.peak_bytes} B" in rows["peak"]
    # The working set of a backward step: the gradient above and below, f[i-1] and f[i], and the resident x.
    assert plan.report.peak_lower_bound == 5 * 8
    assert "40 B" in rows["peak"]
    assert "120 bytes" in text
    assert str(plan) == text


def test_the_report_says_optimal_only_with_a_proof(plan: Plan) -> None:
    assert plan.report.plan.cost > plan.report.cost_lower_bound
    assert plan.report.optimal is None
    assert "Proven optimal" not in str(plan.report)
    assert "Not proven optimal" in str(plan.report)
    easy = optimize(zoo.chain(16, reads=("in", "out")), "1KB")
    assert easy.report.optimal == "cost at this budget, order free"
    assert "Proven optimal: cost" in str(easy.report)
    assert "Nothing is recomputed" in str(easy.report)


def test_the_least_peak_is_called_optimal_where_it_meets_the_bound() -> None:
    plan = optimize(zoo.chain(1, reads=("in", "out")))
    assert plan.report.plan.peak_bytes == plan.report.peak_lower_bound == 3
    assert "Proven optimal: peak" in str(plan.report)


def test_a_plan_says_what_it_was_asked(plan: Plan) -> None:
    assert (plan.budget, plan.seed, plan.effort, plan.strategy, plan.allocator) == (120, 3, 1.0, "auto", "auto")
    assert plan.memory == MemoryModel(alignment=4, reserve=5)


def test_schedules_print_one_op_a_line() -> None:
    schedule = Schedule.of([Compute("a"), Compute("b"), Free("a"), Free("c")])
    assert str(schedule) == "a\nb; free a, c"
    assert str(Schedule.of([])) == ""


def test_an_error_of_any_kind_is_a_planner_error() -> None:
    for error in (InfeasibleBudget, OutputError, PlanFileError, ScheduleError, VerificationError):
        assert issubclass(error, planner.PlannerError)
