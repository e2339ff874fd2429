"""The benchmark harness on a suite of seconds: files, tables, targets, and what `compare` flags."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import networkx as nx
import pytest
from click.testing import CliRunner

from bench import remat
from bench.__main__ import main
from bench.cases import SUITES, Suite
from bench.explanations import Explanations
from bench.measure import Clock, Plans, Subject
from bench.original import AgainstOriginal
from bench.results import ExplainRow, GraphRow, PeerRow, PlanRow, Results, TargetRow, load
from bench.run import run, wanted
from bench.tables import changes, comparison, regressions, table
from bench.targets import Rows, Target
from planner import PlanFileError, Problem, Proposal, optimize, zoo
from planner.search import strategy_names


def _overhead(rows: Rows) -> tuple[float | None, float] | None:
    plans = rows.plans("chain:16", "50%", strategy="chen-budget")
    return (100 * (plans[0].overhead or 0.0), 0.0) if plans else None


TINY = Suite(
    "tiny",
    "A chain, and two blocks of the original's network.",
    (
        Plans(
            Subject("chain:16", partial(zoo.chain, 16)),
            ("50%", "5%", None),
            ("auto", "chen-budget"),
            allocator=None,
            size="quick",
            files=("auto", "50%"),
            peers=(PeerRow("chain:16", "somebody", "50%", "their paper", overhead=0.4),),
        ),
        AgainstOriginal(
            Subject("mxnet", partial(zoo.mxnet_resnet, (1, 1), batch=2, image=64), "activations"),
            ("auto", "chen-budget"),
            steps=3,
        ),
        Plans(Subject("elsewhere", nx.DiGraph, missing=lambda: "elsewhere: not on this machine"), (None,)),
    ),
    (Target(0, "nothing recomputed", "%", _overhead), Target(0, "not in this run", "%", lambda rows: None)),
)


@pytest.fixture(scope="module")
def tiny() -> Results:
    return run(TINY, repeat=2)


def row_of(results: Results, kind: type, **fields: Any) -> Any:
    """The one row of this kind with these fields."""
    found = [
        row
        for row in results.rows
        if isinstance(row, kind) and all(getattr(row, name) == fields[name] for name in fields)
    ]
    assert len(found) == 1, found
    return found[0]


def replaced(results: Results, row: Any, **fields: Any) -> Results:
    """The results with one row changed."""
    rows = tuple(msgspec.structs.replace(other, **fields) if other is row else other for other in results.rows)
    return msgspec.structs.replace(results, rows=rows)


def test_results_come_back_equal_from_their_file(tiny: Results, tmp_path: Path) -> None:
    tiny.save(tmp_path / "tiny.json")
    assert load(tmp_path / "tiny.json") == tiny
    assert len((tmp_path / "tiny.json").read_text().splitlines()) < len(tiny.rows) + 45  # one row a line
    document = json.loads((tmp_path / "tiny.json").read_bytes())
    document["version"] = 0
    (tmp_path / "old.json").write_text(json.dumps(document))
    with pytest.raises(PlanFileError, match="version"):
        load(tmp_path / "old.json")
    (tmp_path / "half.json").write_bytes((tmp_path / "tiny.json").read_bytes()[:200])
    with pytest.raises(PlanFileError, match="damaged"):
        load(tmp_path / "half.json")


def test_a_row_says_what_optimize_says(tiny: Results) -> None:
    row = row_of(tiny, PlanRow, graph="chain:16", strategy="chen-budget", budget="50%")
    report = optimize(zoo.chain(16), "50%", strategy="chen-budget", allocator=None).report
    assert (row.peak_bytes, row.cost, row.budget_bytes) == (report.plan.peak_bytes, report.plan.cost, report.budget)
    assert set(row.cpu) == {"search", "pack", "judge"}
    assert set(row_of(tiny, PlanRow, graph="chain:16", strategy="auto", budget="50%").cpu) == {
        *row.cpu,
        "save",
        "load",
        "verify",
    }
    assert set(row_of(tiny, GraphRow, graph="chain:16").cpu) == {"build", "lower", "encode", "pack", "judge"}


def test_explained_tensors_are_a_row_in_which_nothing_is_wrong() -> None:
    subject = Subject("mlp", partial(zoo.mlp, [64] * 8, batch=512))
    found = run(
        Suite("explain", "A few layers.", (Explanations(subject, "80%", tensors=4),), SUITES["explain"].targets)
    )
    row = row_of(found, ExplainRow, graph="mlp")
    assert (row.kept, row.recomputed, row.wrong) == (2, 2, ())
    assert row.numbers > 40
    assert row_of(found, TargetRow, unit="numbers").hit
    assert "| mlp | 80% | 2 | 2 |" in table(found)


def test_what_does_not_fit_is_a_row_with_its_minimum(tiny: Results) -> None:
    row = row_of(tiny, PlanRow, graph="chain:16", strategy="chen-budget", budget="5%")
    least = row_of(tiny, PlanRow, graph="chain:16", strategy="chen-budget", budget="least peak")
    assert row.status == "infeasible"
    assert row.overhead is None
    assert row.minimum == least.arena_bytes


def test_the_original_is_met_at_its_bytes_and_at_its_cost(tiny: Results) -> None:
    original = row_of(tiny, PeerRow, graph="mxnet", budget=AgainstOriginal.ITS_BYTES)
    at_its_cost = row_of(tiny, PlanRow, graph="mxnet", budget=AgainstOriginal.ITS_COST)
    assert at_its_cost.overhead <= original.overhead
    for allocator in ("nnvm", "auto"):
        row = row_of(
            tiny, PlanRow, graph="mxnet", budget=AgainstOriginal.ITS_BYTES, allocator=allocator, strategy="auto"
        )
        assert row.budget_bytes == original.arena_bytes
        assert (row.arena_bytes or row.minimum) is not None


def test_targets_are_rows_and_the_table_shows_the_gap(tiny: Results) -> None:
    target = row_of(tiny, TargetRow)
    assert not target.hit
    text = table(tiny)
    assert f"**missed**: {target.measured:.2f} % over" in text
    assert "none (least" in text
    assert "| chain:16 | 50% |" in text
    assert "+40.00 %" in text  # the peer, beside ours
    assert "not in this run" not in text
    assert "no plan" in table(replaced(tiny, target, measured=None))


def test_compare_flags_what_got_worse_and_nothing_else(tiny: Results) -> None:
    assert regressions(changes(tiny, tiny)) == []
    row = row_of(tiny, PlanRow, graph="chain:16", strategy="auto", budget="50%")
    graph = row_of(tiny, GraphRow, graph="chain:16")
    cases: list[tuple[Results, set[str]]] = [
        (replaced(tiny, row, cost=row.cost * 1.01), {"worse"}),
        (replaced(tiny, row, cost=row.cost * 0.99), set()),
        (replaced(tiny, row, cpu={**row.cpu, "search": row.cpu["search"] + 1.0}), {"slower"}),
        (replaced(tiny, row, status="infeasible", minimum=1), {"no longer fits"}),
        (replaced(tiny, graph, peak_lower_bound=0), set()),
        (msgspec.structs.replace(tiny, rows=tuple(other for other in tiny.rows if other is not row)), {"gone"}),
    ]
    for new, flags in cases:
        assert {change.flag for change in regressions(changes(tiny, new))} == flags
    assert {change.flag for change in changes(cases[3][0], tiny) if change.flag} == {"now fits"}
    assert "1 regressions" in comparison(tiny, cases[0][0])


def test_cpu_is_compared_by_the_yardstick_of_each_machine(tiny: Results) -> None:
    row = row_of(tiny, PlanRow, graph="chain:16", strategy="auto", budget="50%")
    before = replaced(tiny, row, cpu={"search": 1.0, "pack": 0.0, "judge": 0.0})
    after = replaced(tiny, row, cpu={"search": 2.0, "pack": 0.0, "judge": 0.0})
    assert {change.flag for change in regressions(changes(before, after))} == {"slower"}
    slow = msgspec.structs.replace(after.machine, yardstick_seconds=2 * before.machine.yardstick_seconds)
    found = changes(before, msgspec.structs.replace(after, machine=slow))
    assert [c.ratio for c in found if c.what == "plan, CPU s" and c.old == 1.0] == [pytest.approx(1.0)]


def test_compare_and_table_run_from_the_command_line(tiny: Results, tmp_path: Path) -> None:
    row = row_of(tiny, PlanRow, graph="chain:16", strategy="auto", budget="50%")
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    tiny.save(old)
    replaced(tiny, row, cost=row.cost + 1).save(new)
    same, worse = (CliRunner().invoke(main, ["compare", str(old), str(path)]) for path in (old, new))
    assert (same.exit_code, worse.exit_code) == (0, 1)
    assert "worse" in worse.stdout
    assert CliRunner().invoke(main, ["table", str(old)]).stdout == table(tiny)
    missing = CliRunner().invoke(main, ["table", str(tmp_path / "no.json")])
    assert missing.exit_code == 3
    assert "error: cannot read results" in missing.output


def test_the_figure_has_a_panel_for_each_graph(tiny: Results) -> None:
    from bench.figures import rendered, small_multiples

    only = msgspec.structs.replace(tiny, rows=tuple(row for row in tiny.rows if "chain:16" in row.key))
    svg = rendered(small_multiples(only), ".svg").decode()
    assert svg.count("chain:16") == 1
    assert "chen-budget" in svg


def test_two_runs_that_plan_differently_are_an_error() -> None:
    from planner.search import register_strategy
    from planner.search.chen import chen_budget, chen_sqrt

    asked: set[int | None] = set()

    def fickle(problem: Problem) -> Proposal:
        """Another plan where a budget is asked a second time."""
        search = chen_sqrt if problem.budget in asked else chen_budget
        asked.add(problem.budget)
        return search(problem)

    register_strategy("fickle", fickle)
    try:
        with pytest.raises(AssertionError, match="different plans"):
            run(
                Suite("fickle", "", (Plans(Subject("chain:60", partial(zoo.chain, 60)), ("60%",), ("fickle",)),)),
                repeat=2,
            )
    finally:
        from planner import search

        search._STRATEGIES.pop("fickle", None)


def test_every_suite_has_a_command_and_a_quick_case() -> None:
    for name, suite in SUITES.items():
        assert name in main.commands
        assert wanted(suite, size="quick")
        assert len(wanted(suite, size="slow")) == len(suite.cases)
    assert all(case.strategies is None for case in SUITES["resnet"].cases if isinstance(case, Plans))
    assert len(strategy_names()) >= 5


def test_shared_graphs_are_read_as_their_notes_say(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANNER_SHARED", str(shared))
    assert [case.missing() for case in SUITES["remat"].cases] == [None] * len(SUITES["remat"].cases)
    graph = remat.read("chain100")
    plan = optimize(graph, allocator=None)
    assert plan.report.keep_all.peak_bytes == 101  # unit chain of 100 layers: all forward values and one gradient
    assert plan.report.ops == 200
    assert remat.missing("nothing") is not None


def test_a_clock_adds_up_by_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.process_time", iter((1.0, 3.0, 10.0, 10.5)).__next__)
    clock = Clock()
    assert clock.timed("work", sum)([1, 2]) == 3
    with clock("work"):
        pass
    assert clock.seconds == {"work": 2.5}
