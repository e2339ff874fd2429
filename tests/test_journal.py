"""A curve that goes on from a file of finished searches: it runs what is missing, and is the curve found at once."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from offenders import every

from planner import Curve, Graph, MemoryModel, PlannerError, Problem, Proposal, Schedule, curve, lower, zoo
from planner.errors import OutputError, PlanFileError, TimeLimit
from planner.memory import Allocation
from planner.packing.allocators import first_fit
from planner.schedule import keep_all
from planner.search.chen import chen_budget
from tests.test_cli import error_lines

GRAPH = lower(zoo.chain(12))
BUDGETS = [7, 8, 9, 10, 11, 12]  # of a chain of 12, whose keep-all takes 13
EFFORT = 0.01  # bounds take most of the time


class Counted:
    """As "chen-budget"; notes what it is asked, and is interrupted at its nth question."""

    __name__ = "counted"

    def __init__(self, last: int = 1000, *, raised: BaseException | None = None) -> None:
        self.asked: list[int | None] = []
        self.last, self.raised = last, raised

    def __call__(self, problem: Problem) -> Proposal:
        if len(self.asked) == self.last:
            if self.raised is not None:
                raise self.raised
            signal.raise_signal(signal.SIGINT)
            raise TimeLimit("Ctrl-C")
        self.asked.append(problem.budget)
        return chen_budget(problem)


def roomy(graph: Graph, schedule: Schedule, *, memory: MemoryModel, capacity_bytes: int | None = None) -> Allocation:
    """First fit with the highest buffer as far up as the capacity lets it: an arena says what it was packed for."""
    tight = first_fit(graph, schedule, memory=memory)
    spare = max(0, (capacity_bytes or 0) - tight.arena_bytes)
    top = max(tight.buffers, key=lambda buffer: buffer.offset + buffer.nbytes)
    moved = msgspec.structs.replace(top, offset=top.offset + spare)
    buffers = tuple(moved if buffer is top else buffer for buffer in tight.buffers)
    return msgspec.structs.replace(tight, buffers=buffers, arena_bytes=tight.arena_bytes + spare)


def found(strategy: Any, path: Path | None = None, **options: Any) -> Curve:
    return curve(GRAPH, BUDGETS, strategies=strategy, resume=path, effort=EFFORT, **options)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@every("last", [1, 2, 3, 4])
def test_after_ctrl_c_a_resumed_curve_makes_the_missing_searches_alone_and_is_as_found_at_once(
    last: int, tmp_path: Path
) -> None:
    path = tmp_path / f"{last}.jsonl"
    at_once = Counted()
    whole = found(at_once, allocator=roomy)
    first, second, third = Counted(last), Counted(), Counted()
    stopped = found(first, path, allocator=roomy)
    assert any(point.cut_short for point in stopped.points)
    assert [line["budget"] for line in lines(path)] == at_once.asked[:last]
    resumed = found(second, path, allocator=roomy)
    assert second.asked == at_once.asked[last:]
    assert len(second.asked) > 0
    assert resumed == whole
    assert [resumed.plan(point) for point in resumed.best] == [whole.plan(point) for point in whole.best]
    assert found(third, path, allocator=roomy) == whole
    assert third.asked == []


def test_each_line_is_in_the_file_when_the_next_search_begins(tmp_path: Path) -> None:
    path = tmp_path / "searches.jsonl"
    written = []

    def looking(problem: Problem) -> Proposal:
        written.append([line["budget"] for line in lines(path)])
        return chen_budget(problem)

    asked = Counted()
    found(asked)
    found(looking, path)
    assert written == [asked.asked[:count] for count in range(len(asked.asked))]


def test_an_error_and_a_time_limit_keep_what_was_found_too(tmp_path: Path) -> None:
    whole = found(Counted())
    for name, stopping in (("error", KeyError("mine")), ("limit", TimeLimit("late"))):
        path = tmp_path / name
        if name == "error":
            with pytest.raises(PlannerError, match="mine"):
                found(Counted(2, raised=stopping), path)
        else:
            found(Counted(2, raised=stopping), path)
        assert len(lines(path)) == 2
        assert found(Counted(), path) == whole


def test_processes_write_the_file_that_one_process_goes_on_from(tmp_path: Path) -> None:
    path = tmp_path / "searches.jsonl"
    two = found(("chen-budget", "chen-sqrt"), path, jobs=2)
    ended = path.read_bytes()
    one = found(("chen-budget", "chen-sqrt"), path)
    assert one == two == found(("chen-budget", "chen-sqrt"))
    assert path.read_bytes() == ended


def test_a_strategys_points_are_the_same_whatever_other_strategies_are_asked_beside_it() -> None:
    """Where it lies a plan says for what it was packed: not for the question of another strategy."""
    least = chen_budget(Problem(GRAPH, None))

    def everywhere(problem: Problem) -> Proposal:
        return least

    def above_eight(problem: Problem) -> Proposal:
        return least if problem.budget is not None and problem.budget > 8 else Proposal(keep_all(GRAPH))

    alone, both = (
        curve(GRAPH, [8, 10, 12], strategies=strategies, allocator=roomy, effort=EFFORT)
        for strategies in (above_eight, (everywhere, above_eight))
    )
    # 10 is asked first, then 8 and 12: the plan packed for 10 fits 12, and is not packed again
    assert [point.arena_bytes for point in alone.points] == [None, 10, 10]
    assert both.of("above_eight") == alone.points


def test_a_cut_last_line_is_dropped_and_its_search_made_again(tmp_path: Path) -> None:
    path = tmp_path / "searches.jsonl"
    whole = found(Counted(), path)
    content = path.read_bytes()
    for kept in (content[:-1], content[:-100], content[: content.rindex(b"\n", 0, -1) + 2], content[:5]):
        path.write_bytes(kept)
        missing = content.count(b"\n") - kept.count(b"\n")
        again = Counted()
        assert found(again, path) == whole
        assert len(again.asked) == missing
        assert path.read_bytes() == content


def test_searches_of_another_question_are_refused_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "searches.jsonl"
    found("chen-budget", path)
    content = path.read_bytes()

    def refused(match: str, graph: Any = GRAPH, budgets: Any = BUDGETS, **changes: Any) -> None:
        with pytest.raises(PlanFileError, match=match) as refusal:
            curve(graph, budgets, resume=path, **{"strategies": "chen-budget", "effort": EFFORT, **changes})
        assert "\n" not in str(refusal.value)
        assert str(path) in str(refusal.value)
        assert path.read_bytes() == content

    refused("another graph", graph=zoo.chain(13))
    refused(r"budgets \(7, 8, 9, 10, 11, 12\), not \(7, 8\)", budgets=[8, 7])
    refused("budgets .*, not 6", budgets=6)
    refused("strategies .*, not .*chen-sqrt", strategies=("chen-budget", "chen-sqrt"))
    refused("seed 0, not 1", seed=1)
    refused(r"effort 0\.01, not 2\.0", effort=2)
    refused("order 'free', not 'pinned'", order="pinned")
    refused("memory .*alignment=1.*alignment=512", memory=MemoryModel(alignment=512))
    refused("allocator 'auto', not None", allocator=None)
    monkeypatch.setattr("planner.planning.journal.version", lambda name: "9.9")
    refused("is of planner .*, not 9.9")


def test_a_file_that_holds_something_else_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "searches.jsonl"
    found("chen-budget", path)
    first, rest = path.read_text().split("\n", 1)
    changed = json.loads(first)
    changed["plans"][0]["proposal"]["schedule"]["steps"].pop(0)
    damaged = json.dumps(changed, separators=(",", ":"))
    for content, why in (
        ("mine", "something else"),
        ('{"format":"planner-curve","version":4}', "something else"),
        (f"{first[:200]}\n{rest}", "damaged"),
        (f"{damaged}\n{rest}", "not legal"),
    ):
        path.write_text(content)
        with pytest.raises(PlanFileError, match=why) as refusal:
            found("chen-budget", path)
        assert str(path) in str(refusal.value)
        assert path.read_text() == content
    with pytest.raises(PlanFileError, match="cannot read"):
        found("chen-budget", tmp_path)
    with pytest.raises(OutputError, match=r"cannot write .*missing"):
        found("chen-budget", tmp_path / "missing" / "searches.jsonl")
    with pytest.raises(PlannerError, match="resume True"):
        curve(zoo.chain(4), resume=True)  # type: ignore[arg-type]


def test_the_command_resumes_and_refuses_another_request(run: Any, tmp_path: Path) -> None:
    asked = (
        "curve",
        "chain:12",
        "--budgets",
        "7,8,9",
        "--strategies",
        "chen-sqrt",
        "--effort",
        "0.01",
        "--resume",
        "searches.jsonl",
    )
    first = run(*asked)
    content = (tmp_path / "searches.jsonl").read_bytes()
    assert content.count(b"\n") >= 2
    assert run(*asked).out == first.out
    assert (tmp_path / "searches.jsonl").read_bytes() == content
    other = run(*asked, "--seed", "1")
    assert (other.code, other.out) == (3, "")
    assert "'searches.jsonl' holds searches of seed 0, not 1" in error_lines(other)[-1]
