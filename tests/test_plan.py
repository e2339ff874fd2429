"""A plan's file holds all of it, is whole or absent, and nothing in it is believed before the judge has seen it."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import cases
import msgspec
import networkx as nx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from strategies import digraphs, memory_models

import planner
from planner import InfeasibleBudget, MemoryModel, Plan, load, optimize, zoo
from planner.errors import OutputError, PlanFileError, ScheduleError, VerificationError
from planner.files import write_whole
from planner.mxnet.nnvm import nnvm
from planner.packing import first_fit, register_allocator
from planner.problem import Budget, Problem, Proposal
from planner.schedule import Compute, Free, Schedule

GOLDEN = Path(__file__).parent / "golden" / "files"


def asking(plan: Plan, **changes: Any) -> Plan:
    """The same plan, said to be asked for something else."""
    request = msgspec.structs.replace(plan.request, **changes)
    return dataclasses.replace(plan, report=msgspec.structs.replace(plan.report, request=request))


def claiming(plan: Plan, **changes: Any) -> Plan:
    """The same plan, of which the report says something else."""
    return dataclasses.replace(plan, report=msgspec.structs.replace(plan.report, **changes))


@pytest.fixture(scope="module")
def plan() -> Plan:
    """A plan with recomputation, workspace, residents and a reserve, dearer than what can be proven."""
    graph = zoo.chain(16, reads=("in", "out"), nbytes=8, input_nbytes=8)
    for node in graph:
        if node.startswith("f"):
            graph.nodes[node]["workspace"] = 3
    found = optimize(graph, 120, strategy="chen-sqrt", memory=MemoryModel(alignment=4, reserve=5), seed=3)
    assert found.report.extra_runs > 0
    assert found.report.cost_lower_bound < found.report.plan.cost
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
def test_any_plan_survives_its_file(
    tmp_path_factory: pytest.TempPathFactory, digraph: nx.DiGraph, memory: MemoryModel
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    for allocator in ("auto", None):
        plan = optimize(digraph, memory=memory, allocator=allocator)
        plan.save(path)
        again = load(path)
        assert again == plan
        assert again.verify() == plan.verify()


def test_the_file_is_versioned_json_with_the_graph_inside(plan: Plan, saved: Path) -> None:
    parts = json.loads(saved.read_bytes())
    assert (parts["format"], parts["version"]) == ("planner-plan", 3)
    assert parts["fingerprint"] == plan.graph.fingerprint
    assert len(parts["ops"]) == len(plan.graph.ops)


def test_saving_the_same_plan_twice_writes_the_same_bytes(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "a.json")
    load(tmp_path / "a.json").save(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


# ------------------------------------------------------------------------------------------------ files of no plan


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
    for content in (b"", b"hello", bytes(range(256)), b"[1, 2]", b"7", b"{}", b"[" * 100_000, b'{"a":' * 100_000):
        (tmp_path / "other.json").write_bytes(content)
        refused(tmp_path / "other.json", "not a plan file")


def test_a_graph_file_is_no_plan(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "graph.json").write_bytes(plan.graph.to_json())
    refused(tmp_path / "graph.json", "planner-graph", "planner-plan")


def test_a_truncated_file_is_refused(saved: Path) -> None:
    content = saved.read_bytes()
    for share in (0.1, 0.5, 0.9, 0.999):
        saved.write_bytes(content[: int(len(content) * share)])
        refused(saved)


def test_another_version_is_refused_with_both_versions(saved: Path) -> None:
    for version in (0, 4, "1", "3", None, 1.5):
        refused(edited(saved, lambda parts, version=version: parts.update(version=version)), repr(version), "3")


def asked(parts: dict[str, Any]) -> dict[str, Any]:
    """The request in a plan file."""
    return parts["report"]["request"]


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
    "a budget of text": lambda parts: asked(parts).update(budget="7GB"),
    "a budget without its bytes": lambda parts: asked(parts)["budget"].pop("nbytes"),
    "an unknown scope": lambda parts: asked(parts)["memory"].update(scope="half"),
    "an alignment of zero": lambda parts: asked(parts)["memory"].update(alignment=0),
    "an unknown order": lambda parts: asked(parts).update(order="mixed"),
    "effort below 0": lambda parts: asked(parts).update(effort=-5),
    "effort 0": lambda parts: asked(parts).update(effort=0),
    "a seed above 64 bits": lambda parts: asked(parts).update(seed=2**63),
    "no request": lambda parts: parts["report"].pop("request"),
    "another fingerprint": lambda parts: parts.update(fingerprint="0" * 64),
    "another cost under the old fingerprint": lambda parts: parts["ops"][3].update(cost=9.0),
    "a report without figures": lambda parts: parts["report"].pop("plan"),
    "a buffer without offset": lambda parts: parts["allocation"]["buffers"][0].pop("offset"),
}


def test_a_damaged_file_is_refused(saved: Path) -> None:
    content = saved.read_bytes()
    for damage in DAMAGE.values():
        saved.write_bytes(content)
        refused(edited(saved, damage), "damaged")


#: Of version 1, in which plan and report each said what was asked.
DISAGREEMENTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "strategy": lambda side: side.update(strategy="recursive"),
    "allocator": lambda side: side.update(allocator="nnvm"),
    "no allocator": lambda side: side.update(allocator=None),
    "memory": lambda side: side["memory"].update(reserve=side["memory"]["reserve"] + 1),
    "order": lambda side: side.update(order="pinned" if side["order"] == "free" else "free"),
    "budget": lambda side: side.update(budget=(side["budget"] or 0) + 1),
    "no budget": lambda side: side.update(budget=None if side["budget"] else 7),
}


def test_an_old_file_in_which_plan_and_report_disagree_is_refused(tmp_path: Path) -> None:
    for name in ("plan-percent", "plan-pinned", "plan-reserve", "plan-least-peak"):
        content = json.loads((GOLDEN / f"{name}.json").read_bytes())
        assert content["version"] == 1
        for what, change in DISAGREEMENTS.items():
            for side in ("plan", "report"):
                parts = copy.deepcopy(content)
                change(parts if side == "plan" else parts["report"])
                (tmp_path / "plan.json").write_text(json.dumps(parts))
                refused(tmp_path / "plan.json", "damaged", what.split()[-1])
        parts = copy.deepcopy(content)
        parts["report"]["budget_text"] = "7GB" if content["budget"] is None else "least peak"
        (tmp_path / "plan.json").write_text(json.dumps(parts))
        if content["budget"] is None:
            refused(tmp_path / "plan.json", "damaged", "budget")
        else:
            with pytest.raises(VerificationError, match="budget"):
                load(tmp_path / "plan.json").verify()


def test_the_plan_of_another_graph_is_refused(saved: Path) -> None:
    other = planner.lower(zoo.chain(16, reads=("in",), nbytes=8))
    refused(saved, "another graph", graph=other)


# ------------------------------------------------------------------------------------------------ tampering


def first_free(steps: list) -> int:
    return next(k for k, step in enumerate(steps) if step[0] == "free")


TAMPERED_SCHEDULES: dict[str, Callable[[list], Any]] = {
    "the last op left out": lambda steps: steps.__delitem__(
        slice(max(k for k, s in enumerate(steps) if s[0] == "compute"), None)
    ),
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
TAMPERED_BUFFERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "all offsets zero": lambda allocation: [b.update(offset=0) for b in allocation["buffers"]],
    "an offset that is not aligned": lambda allocation: allocation["buffers"][0].update(
        offset=allocation["buffers"][0]["offset"] + 1
    ),
    "a buffer left out": lambda allocation: allocation["buffers"].pop(),
    "a smaller buffer": lambda allocation: allocation["buffers"][0].update(nbytes=1),
    "a smaller arena": lambda allocation: allocation.update(arena_bytes=allocation["arena_bytes"] - 4),
    "another rule for the offsets": lambda allocation: allocation.update(allocator="nnvm"),
}
TAMPERED_REPORTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "peak": lambda report: report["plan"].update(peak_bytes=report["plan"]["peak_bytes"] - 1),
    "arena": lambda report: report["plan"].update(arena_bytes=report["plan"]["arena_bytes"] - 1),
    "cost": lambda report: report["plan"].update(cost=report["plan"]["cost"] - 1),
    "keep-all peak": lambda report: report["keep_all"].update(peak_bytes=report["keep_all"]["peak_bytes"] * 10),
    "keep-all cost": lambda report: report["keep_all"].update(cost=report["plan"]["cost"]),
    "recomputed ops": lambda report: report.update(recomputed_ops=0),
    "extra runs": lambda report: report.update(extra_runs=0),
    "peak op": lambda report: report.update(peak_op="x"),
    "live at the peak": lambda report: report.update(live_at_peak=[]),
    "a lower bound above the plan": lambda report: report.update(peak_lower_bound=report["plan"]["peak_bytes"] + 1),
    "keep-all arena": lambda report: report["keep_all"].update(arena_bytes=10**9),
    "keep-all arena, one byte more": lambda report: report["keep_all"].update(
        arena_bytes=report["keep_all"]["arena_bytes"] + 1
    ),
    "graph": lambda report: report.update(graph="another"),
    "ops": lambda report: report.update(ops=report["ops"] + 1),
    "a cost bound forged to the plan's cost": lambda report: report.update(cost_lower_bound=report["plan"]["cost"]),
    "a cost proof that rests on a forged bound": lambda report: report.update(
        optimal="cost at this budget, order free", cost_lower_bound=report["plan"]["cost"]
    ),
    "a peak bound forged to the plan's peak": lambda report: report.update(
        peak_lower_bound=report["plan"]["peak_bytes"]
    ),
    "a peak proof that rests on a forged bound": lambda report: report.update(
        optimal="peak, order free", peak_lower_bound=report["plan"]["peak_bytes"]
    ),
    "a proof of anything": lambda report: report.update(optimal="peak and anything"),
    "a proof of nothing": lambda report: report.update(optimal=""),
    "a proof there is not": lambda report: report.update(
        optimal="cost at this budget, order free", cost_lower_bound=1e9
    ),
}
TAMPERED_REQUESTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no allocator": lambda request: request.update(allocator=None),
    "another allocator": lambda request: request.update(allocator="nnvm"),
    "a larger budget": lambda request: request["budget"].update(nbytes=121),
    "a smaller budget": lambda request: request["budget"].update(nbytes=119),
    "no budget": lambda request: request.update(budget=None),
    "budget in words": lambda request: request["budget"].update(text="1KB"),
    "budget in words that mean nothing": lambda request: request["budget"].update(text="plenty"),
    "a budget said to be the least peak": lambda request: request["budget"].update(text="least peak"),
    "no words for the budget": lambda request: request["budget"].update(text=""),
    "a smaller reserve": lambda request: request["memory"].update(reserve=0),
    "a reserve that leaves too little": lambda request: request["memory"].update(reserve=100),
    "a policy": lambda request: request.update(save=["f3"]),
}
TAMPERED_PLANS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no offsets": lambda parts: (
        parts.update(allocation=None),
        parts["report"]["plan"].update(arena_bytes=parts["report"]["plan"]["peak_bytes"]),
    ),
    "graph name": lambda parts: parts.update(graph_name="another"),
    "an arena bound above what can be proven, said twice": lambda parts: (
        parts["allocation"].update(bound_bytes=parts["allocation"]["arena_bytes"] + 4),
        parts["report"].update(arena_lower_bound=parts["allocation"]["arena_bytes"] + 4),
    ),
}


def test_verify_refuses_whatever_was_tampered_with(saved: Path) -> None:
    content = saved.read_bytes()
    accepted = []
    for part, changes in (
        (lambda parts: parts["schedule"]["steps"], TAMPERED_SCHEDULES),
        (lambda parts: parts["allocation"], TAMPERED_BUFFERS),
        (lambda parts: parts["report"], TAMPERED_REPORTS),
        (asked, TAMPERED_REQUESTS),
        (lambda parts: parts, TAMPERED_PLANS),
    ):
        for name, change in changes.items():
            saved.write_bytes(content)
            plan = load(edited(saved, lambda parts, part=part, change=change: change(part(parts))))
            try:
                plan.verify()
            except VerificationError:
                continue
            except ScheduleError:
                assert changes is TAMPERED_SCHEDULES
                continue
            accepted.append(name)
    assert accepted == []


def test_an_arena_bound_above_what_can_be_proven_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = optimize(zoo.chain(16, reads=("in", "out"), nbytes=8), "80%", allocator=bump)
    allocation, peak_bytes = plan.allocation, plan.report.plan.peak_bytes
    assert allocation is not None
    assert allocation.arena_bytes > peak_bytes

    def claiming(bound_bytes: int) -> Plan:
        report = msgspec.structs.replace(plan.report, arena_lower_bound=bound_bytes)
        bound = msgspec.structs.replace(allocation, bound_bytes=bound_bytes)
        return dataclasses.replace(plan, allocation=bound, report=report)

    claiming(peak_bytes).verify()
    assert "proven: no placement of these buffers takes less" in str(claiming(allocation.arena_bytes))
    with pytest.raises(VerificationError, match=f"no arena of theirs is below {allocation.arena_bytes} bytes"):
        claiming(allocation.arena_bytes).verify()
    monkeypatch.setattr("planner.packing.allocators.proves", lambda *_: True)
    claiming(allocation.arena_bytes).verify()  # nothing else looks at it


#: Nothing in a plan follows from them, as long as names are of nothing registered, and the budget holds the reserve.
ECHOES = {
    ("report", "cut_short"),
    *(("report", "request", name) for name in ("strategy", "allocator", "seed", "effort")),
    ("report", "request", "memory", "reserve"),
}
BOUNDS = {("report", "cost_lower_bound"), ("report", "peak_lower_bound")}


def leaves(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every number, text and null in a JSON object."""
    if isinstance(node, dict) or (isinstance(node, list) and node):
        for key, below in node.items() if isinstance(node, dict) else enumerate(node):
            yield from leaves(below, (*path, key))
    else:
        yield path


def others(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, (int, float)):
        return [value + 1, value - 1, None]
    return [f"{value}x", "", None] if isinstance(value, str) else [1, "x"]


def test_whatever_is_changed_in_a_plan_file_is_noticed(saved: Path) -> None:
    content = saved.read_bytes()
    # A graph is held to its fingerprint; a buffer may be larger, live longer or lie elsewhere if nothing overlaps.
    paths = [
        path
        for path in leaves(json.loads(content))
        if path not in ECHOES and path[0] != "ops" and path[1:2] != ("buffers",)
    ]
    assert len(paths) > 180
    unnoticed = []
    for path in paths:
        parts = json.loads(content)
        *folders, last = path
        place = parts
        for key in folders:
            place = place[key]
        for other in others(place[last]):
            place[last] = other
            saved.write_text(json.dumps(parts))
            try:
                load(saved).verify()
            except (PlanFileError, ScheduleError, VerificationError):
                continue
            unnoticed.append((path, other))
    report = json.loads(content)["report"]
    weaker = [(path, report[path[1]] - 1) for path in paths if path in BOUNDS]  # what is proven, less one, holds too
    assert unnoticed == weaker


def test_only_known_statements_are_proofs_even_of_a_plan_that_is_optimal() -> None:
    easy = optimize(zoo.chain(16, reads=("in", "out")), "1KB")  # keep-all fits: nothing is cheaper
    for known in ("cost at this budget, order free", "cost at this budget, order pinned"):
        claiming(easy, optimal=known).verify()
    for statement in (
        "cost at this budget, anything", "cost", "peak and anything", "peak", "Cost at this budget, order free",
    ):  # fmt: skip
        with pytest.raises(VerificationError, match="proven"):
            claiming(easy, optimal=statement).verify()


def test_no_budget_is_no_ground_for_a_proof_of_cost() -> None:
    least = optimize(zoo.chain(1, reads=("in", "out")))
    assert least.report.plan.cost == least.report.cost_lower_bound
    with pytest.raises(VerificationError, match="proven"):
        claiming(least, optimal="cost at this budget, order free").verify()


def test_a_strategy_of_your_own_may_claim_a_higher_bound_but_no_proof_that_rests_on_it() -> None:
    def knowing(problem: Problem, *, bound: float | None, optimal: str | None) -> Proposal:
        return Proposal(
            planner.search.find_strategy("chen-sqrt")[1](problem).schedule, cost_lower_bound=bound, optimal=optimal
        )

    graph = zoo.chain(16, reads=("in", "out"))
    modest = optimize(graph, 10, strategy=partial(knowing, bound=None, optimal=None)).report
    claimed = (modest.cost_lower_bound + modest.plan.cost) / 2
    assert modest.cost_lower_bound < claimed < modest.plan.cost
    plan = optimize(graph, 10, strategy=partial(knowing, bound=claimed, optimal=None))
    assert (plan.strategy, plan.report.keep_all.cost, plan.report.cost_lower_bound) == ("knowing", 33, claimed)
    plan.verify()
    with pytest.raises(VerificationError, match="proven"):
        optimize(
            graph, 10, strategy=partial(knowing, bound=claimed, optimal="cost at this budget, order free")
        ).verify()
    assert "above the best possible, or so 'knowing' says" in str(plan)


def test_a_bound_of_exact_is_proven_again_and_none_above_the_optimum_is_believed() -> None:
    dear = optimize(cases.CASES["C2"].digraph(), 224, strategy="exact")
    assert dear.report.plan.cost == 136  # where 132 is the least at 232 bytes: public case C2
    larger = asking(dear, budget=Budget("232", 232))
    claiming(larger, cost_lower_bound=132.0, optimal=None).verify()
    for bound in (133.0, 136.0):
        with pytest.raises(VerificationError, match=f"no plan costs less than {bound}"):
            claiming(larger, cost_lower_bound=bound, optimal=None).verify()


def test_the_order_asked_for_is_in_the_plan_and_what_holds_of_the_programs_order_is_not_said_of_all(
    tmp_path: Path,
) -> None:
    # at 48 bytes: 39 with the other head first, so no less than that in the order listed
    graph = cases.CASES["C7"].digraph()
    free, pinned = (optimize(graph, 48, strategy="exact", order=order) for order in ("free", "pinned"))
    assert (free.report.plan.cost, free.report.optimal) == (39, "cost at this budget, order free")
    assert pinned.report.cost_lower_bound == pinned.report.plan.cost > 39
    assert (free.order, pinned.order) == ("free", "pinned")
    assert "order pinned" in str(pinned).splitlines()[1]
    pinned.save(tmp_path / "plan.json")
    assert load(tmp_path / "plan.json") == pinned
    pinned.verify()
    for optimal in (None, "cost at this budget, order free", "cost at this budget, order pinned"):
        with pytest.raises(VerificationError, match="proven"):
            claiming(asking(pinned, order="free"), optimal=optimal).verify()
    with pytest.raises(VerificationError, match="order is pinned"):
        asking(free, order="pinned").verify()


def bump(graph: planner.Graph, schedule: Schedule, *, memory: MemoryModel) -> planner.Allocation:
    """First fit, under a name that is registered nowhere, with a gap at the end."""
    found = first_fit(graph, schedule, memory=memory)
    moved = tuple(msgspec.structs.replace(buffer, offset=buffer.offset + memory.alignment) for buffer in found.buffers)
    return msgspec.structs.replace(
        found, buffers=moved, arena_bytes=found.arena_bytes + memory.alignment, allocator="mine"
    )


NAMED_ALLOCATORS: dict[str, Any] = {
    **{name: name for name in ("auto", "first-fit", "best-fit", "nnvm")},
    "first_fit": first_fit,
    "first_fit by breadth": partial(first_fit, order="breadth"),
    "nnvm, nothing shared": partial(nnvm, match_range=0),
    "nnvm, exact sizes": partial(nnvm, match_range=1),
    "nnvm, colours": partial(nnvm, colours=3),
    "bump": bump,
    "partial of bump": partial(bump),
    "lambda": lambda graph, schedule, *, memory: bump(graph, schedule, memory=memory),
    "none": None,
}


def test_verify_accepts_the_plan_of_any_allocator_by_name_by_callable_and_with_options(tmp_path: Path) -> None:
    graph = zoo.chain(8, reads=("in", "out"), nbytes=8)
    for k in range(1, 9):
        graph.nodes[f"f{k}"].update(nbytes=8 + k % 3, workspace=k % 4)
    memory, refused = MemoryModel(alignment=4), []
    for name, allocator in NAMED_ALLOCATORS.items():
        for budget in (None, "80%", 10**6, 0.9):
            try:
                plan = optimize(graph, budget, allocator=allocator, memory=memory, effort=0.1)
            except InfeasibleBudget as error:
                plan = optimize(graph, error.minimum, allocator=allocator, memory=memory, effort=0.1)
            plan.save(tmp_path / "plan.json")
            try:
                plan.verify()
                load(tmp_path / "plan.json").verify()
            except VerificationError as error:
                refused.append((name, budget, str(error)))
    assert refused == []


@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(digraph=digraphs(), memory=memory_models())
def test_verify_accepts_what_options_of_a_registered_allocator_make(digraph: nx.DiGraph, memory: MemoryModel) -> None:
    for options in ({"match_range": 0}, {"match_range": 1}, {"colours": 2}, {}):
        optimize(digraph, memory=memory, allocator=partial(nnvm, **options), effort=0.1).verify()


def test_a_registered_allocator_packs_keep_all_again_and_a_portfolio_may_name_the_rule_that_won(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("planner.packing._ALLOCATORS", dict(planner.packing._ALLOCATORS))
    longest = len(planner.lower(zoo.chain(16, reads=("in", "out"))).ops) - 1

    def portfolio(graph: planner.Graph, schedule: Schedule, *, memory: MemoryModel) -> planner.Allocation:
        found = first_fit(graph, schedule, memory=memory)
        return msgspec.structs.replace(found, allocator="long" if len(list(schedule.computes)) > longest else "short")

    register_allocator("portfolio", portfolio)
    plan = optimize(zoo.chain(16, reads=("in", "out")), 14, allocator="portfolio")
    assert plan.allocation is not None
    assert plan.allocation.allocator == "long"
    plan.verify()
    with pytest.raises(VerificationError, match="other"):
        dataclasses.replace(plan, allocation=msgspec.structs.replace(plan.allocation, allocator="other")).verify()
    figures = msgspec.structs.replace(plan.report.keep_all, arena_bytes=plan.report.keep_all.arena_bytes + 1)
    with pytest.raises(VerificationError, match="baseline arena"):
        claiming(plan, keep_all=figures).verify()


def test_keep_all_of_an_unregistered_allocator_is_held_to_its_peak_and_of_options_to_all_buffers_side_by_side() -> None:
    graph = zoo.chain(4)  # 9 values of 1 byte
    for allocator, least, most in ((bump, None, 10**9), (partial(nnvm, match_range=0), 9, 9), (None, None, None)):
        plan = optimize(graph, allocator=allocator)
        keep_all = plan.report.keep_all
        assert keep_all.arena_bytes == (least or keep_all.arena_bytes)

        def claims(arena_bytes: int, plan: Plan = plan) -> Plan:
            return claiming(plan, keep_all=msgspec.structs.replace(plan.report.keep_all, arena_bytes=arena_bytes))

        claims(keep_all.peak_bytes).verify()
        with pytest.raises(VerificationError, match="baseline arena"):
            claims(keep_all.peak_bytes - 1).verify()
        if most is not None:
            claims(most).verify()
        if most != 10**9:
            with pytest.raises(VerificationError, match="baseline arena"):
                claims(10).verify()


def test_a_budget_is_read_again_as_it_was_written() -> None:
    numbers: list[Any] = [14, 0.8, 0.99999, 1.0, None, np.float64(0.8), np.int64(14)]
    for budget in (*numbers, "14", "14 B", "0.014KB", "80%", " 80 % ", ".8", "100%", "4PB"):
        optimize(zoo.chain(16, reads=("in", "out")), budget).verify()


def test_a_budget_below_a_ten_thousandth_is_read_again() -> None:
    graph = nx.DiGraph()
    graph.add_node("a", nbytes=0)
    plan = optimize(graph, 1e-05)  # at least one byte; text 1e-05
    assert (plan.budget, plan.report.budget_text) == (1, "1e-05")
    plan.verify()


def test_the_free_memory_of_a_device_is_an_echo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.units.free_device_bytes", lambda: 14)
    plan = optimize(zoo.chain(16, reads=("in", "out")), "auto")
    monkeypatch.undo()  # another machine
    assert (plan.budget, plan.report.budget_text) == (14, "auto")
    plan.verify()


def test_a_seed_or_an_effort_that_is_none_is_refused(plan: Plan) -> None:
    for seed in (True, 1.0, "1", None):
        with pytest.raises(planner.PlannerError, match="seed"):
            asking(plan, seed=seed)
        with pytest.raises(planner.PlannerError, match="seed"):
            Problem(plan.graph, None, seed=seed)  # type: ignore[arg-type]
    for effort in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(planner.PlannerError, match="effort"):
            asking(plan, effort=effort)


def test_numbers_of_numpy_are_written_as_plain_ones(tmp_path: Path) -> None:
    memory = MemoryModel(np.str_("activations"), alignment=np.int64(4), reserve=np.uint8(5))  # type: ignore[arg-type]
    assert memory == MemoryModel("activations", 4, 5)
    assert [type(field) for field in msgspec.structs.astuple(memory)] == [str, int, int]
    assert type(Problem(planner.lower(zoo.chain(2)), None, seed=np.int64(3)).seed) is int  # type: ignore[arg-type]
    plan = optimize(zoo.chain(4), memory=memory)
    plan.save(tmp_path / "plan.json")
    assert load(tmp_path / "plan.json") == plan


def test_an_alignment_or_reserve_that_is_no_number_of_bytes_is_refused() -> None:
    for wrong in (True, False, np.True_, 1.0, "much", "7Gb", "-1", -1, 2**62, np.array([1, 2])):
        for field in ("alignment", "reserve"):
            with pytest.raises(planner.PlannerError, match=f"{field}.*is not a number of bytes"):
                MemoryModel(**{field: wrong})
    with pytest.raises(planner.PlannerError, match="alignment None is not a number of bytes"):
        MemoryModel(alignment=None)  # type: ignore[arg-type]


def test_an_alignment_or_reserve_may_be_text() -> None:
    assert MemoryModel(alignment="512", reserve="500MiB") == MemoryModel(alignment=512, reserve=524_288_000)  # type: ignore[arg-type]


def test_the_least_that_works_can_be_asked_for_at_the_largest_reserve() -> None:
    largest = MemoryModel(reserve=2**61)
    with pytest.raises(planner.PlannerError, match=r"reserve.*from 0 to 2\*\*61"):
        MemoryModel(reserve=2**61 + 1)
    graph = zoo.chain(4)
    for allocator in ("auto", None):
        with pytest.raises(InfeasibleBudget) as caught:
            optimize(graph, 7, memory=largest, allocator=allocator)
        assert caught.value.minimum is not None
        plan = optimize(graph, caught.value.minimum, memory=largest, allocator=allocator)
        assert plan.report.plan.arena_bytes + 2**61 == caught.value.minimum
        plan.verify()


def test_verify_refuses_a_budget_that_is_exceeded(plan: Plan) -> None:
    budget = plan.report.plan.arena_bytes + plan.memory.reserve - 1
    with pytest.raises(VerificationError, match="above the budget"):
        asking(plan, budget=Budget(str(budget), budget)).verify()


def test_a_plan_cannot_be_changed_in_place(plan: Plan) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.schedule = Schedule(())  # type: ignore[misc]
    for whole in (plan, plan.report, plan.request):
        with pytest.raises(AttributeError):
            whole.budget = 1  # type: ignore[misc]


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


def test_a_failure_midway_leaves_the_old_file_and_nothing_else(
    plan: Plan, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = saved.read_bytes()

    def full(*_args: Any, **_options: Any) -> None:
        raise OSError(28, "No space left on device")

    for failing in ("fsync", "replace", "chmod"):
        monkeypatch.setattr(os, failing, full)
        assert "No space left" in cannot_save(asking(plan, seed=99), saved)
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
    assert all(
        word in text
        for word in ("no recomputation", "this plan", "Lower bound on memory", "Lower bound on cost", "budget")
    )
    # 16 layers, two gradients and the input of 8 bytes; layers need 3 bytes more while they run.
    assert plan.report.keep_all.peak_bytes == 19 * 8
    assert "152 B" in rows["peak"]
    assert f"{plan.report.plan.peak_bytes} B" in rows["peak"]
    # The working set of a backward step: the gradient above and below, f[i-1] and f[i], and the resident x.
    assert plan.report.peak_lower_bound == 5 * 8
    assert "Lower bound on memory: no plan's peak is below 40 B" in text
    # The verdict comes first: the budget, what is left of it, and both memories.
    spare, overhead = 115 - plan.report.plan.arena_bytes, 100 * plan.report.overhead  # 5 bytes are reserved
    found = f"{plan.report.plan.arena_bytes} B in place of 152 B, for {overhead:.2f} % more cost"
    assert text.splitlines()[0] == f"Fits 120 B, {spare} B to spare: {found}"
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
    assert (plan.budget, plan.seed, plan.effort, plan.strategy, plan.allocator) == (120, 3, 1.0, "chen-sqrt", "auto")
    assert plan.memory == MemoryModel(alignment=4, reserve=5)
    assert plan.request is plan.report.request


def test_schedules_print_one_op_a_line() -> None:
    schedule = Schedule.of([Compute("a"), Compute("b"), Free("a"), Free("c")])
    assert str(schedule) == "a\nb; free a, c"
    assert str(Schedule.of([])) == ""


def test_an_error_of_any_kind_is_a_planner_error() -> None:
    for error in (InfeasibleBudget, OutputError, PlanFileError, ScheduleError, VerificationError):
        assert issubclass(error, planner.PlannerError)
