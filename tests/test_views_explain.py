"""Explanations: each number is found once more, by a walk over the instructions or by planning again."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import msgspec
import pytest
from test_cli import faults

import planner
from bench.explanations import Walk, drawn
from planner import Compute, MemoryModel, Plan, PlannerError, zoo
from planner.footprint.explain import explain


@pytest.fixture(scope="module")
def chain() -> Plan:
    return planner.optimize(zoo.chain(12), 8)


@pytest.fixture(scope="module")
def gpt() -> Plan:
    graph = zoo.gpt(3, batch=1, tokens=64, hidden=32, heads=2, vocabulary=64)
    return planner.optimize(graph, "82%", effort=0.05)


def walked(plan: Plan, value: str) -> list[tuple[int, int, str | None]]:
    """(step made, last step held, op there) of each life of a value that no view or in-place op shares."""
    steps: list[str] = []
    lives: list[tuple[int, int, str | None]] = []
    made = 0
    for instruction in plan.schedule.steps:
        if isinstance(instruction, Compute):
            steps.append(instruction.op)
            if value in {tensor.name for tensor in plan.graph.op_named[instruction.op].outputs} and not made:
                made = len(steps)
        elif instruction.value == value:
            lives.append((made, len(steps), steps[-1]))
            made = 0
    return [*lives, (made, len(steps), None)] if made else lives


def test_lives_and_holders_are_those_of_the_instructions(chain: Plan) -> None:
    values = [op.name for op in chain.graph.ops if not op.resident]
    assert chain.report.recomputed_ops > 0
    for value in values:
        lives = chain.explain(value, search=False).lives
        assert [(life.made, life.held_to, life.held_by) for life in lives] == walked(chain, value)
        assert all(chain.schedule.computes[life.made - 1] == life.made_by == value for life in lives)


def test_fates_are_the_numbers_of_runs(gpt: Plan) -> None:
    runs = Counter(gpt.schedule.computes)
    for op in (op for op in gpt.graph.ops if not op.resident and len(op.outputs) == 1):
        found = gpt.explain(op.outputs[0].name, search=False)
        assert (found.kept, found.recomputed) == (((op.name,), ()) if runs[op.name] == 1 else ((), (op.name,)))


def test_the_peak_is_split_to_the_last_byte_and_its_op_named(chain: Plan, gpt: Plan) -> None:
    inference = planner.optimize(zoo.mlp([4, 8, 2], batch=2, training=False), memory=MemoryModel("activations", 512))
    for plan in (chain, gpt, inference):
        found = plan.explain()
        assert sum(nbytes for _, _, nbytes in found.shares) == plan.report.plan.peak_bytes
        trace = planner.simulate(plan.graph, plan.schedule, memory=plan.memory)
        timeline = trace.timeline_bytes
        assert (found.step, found.op) == (timeline.index(max(timeline)) + 1, trace.peak_op)
        assert found.op is not None
        assert found.op in found.lines[0]
        listed = [line for line in found.lines if " % " in line and " of " in line and line.startswith("   ")]
        shown = sum(nbytes for _, _, nbytes in found.shares[: len(listed)])
        assert 10 * shown >= 9 * found.nbytes  # at least 90 % by owner


def forced(plan: Plan, option: str, pattern: str) -> Plan:
    rule: dict[str, Any] = {option: pattern}
    return planner.optimize(
        plan.graph, plan.budget, strategy=plan.strategy, memory=plan.memory, effort=plan.effort, **rule
    )


def test_every_number_stated_is_that_of_a_walk_a_second_search_and_the_judge(gpt: Plan, chain: Plan) -> None:
    looked_at = 0
    for plan, count in ((gpt, 6), (chain, 8)):
        walk = Walk(plan)
        values = drawn(plan, count) or [op.name for op in plan.graph.ops if not op.resident][:count]
        checked = [walk.check(value, plan.explain(value)) for value in values]
        assert [wrong for each in checked for wrong in each.wrong] == []
        looked_at += sum(each.numbers for each in checked)
    assert looked_at > 150
    walk = Walk(gpt)
    for value in gpt.graph.tensors:  # and of all others what needs no search: views, in-place ops, updates
        if not gpt.graph.producer[value].resident:
            assert walk.check(value, gpt.explain(value, search=False)).wrong == [], value


def test_a_number_that_is_not_so_is_found(gpt: Plan) -> None:
    walk, value = Walk(gpt), drawn(gpt, 2)[-1]
    found = gpt.explain(value)
    assert walk.check(value, found).wrong == []
    other, life = found.instead[0], found.lives[0]
    replace = msgspec.structs.replace
    lines = (*found.lines, "It has 77.00 KiB.")
    faults = (
        {"nbytes": found.nbytes + 1}, {"lives": (replace(life, held_to=life.held_to + 1), *found.lives[1:])},
        {"instead": (replace(other, cost=1.0),)}, {"instead": (replace(other, arena_bytes=1),)}, {"lines": lines},
    )  # fmt: skip
    assert all(walk.check(value, replace(found, **fault)).wrong for fault in faults)


def test_a_better_plan_found_that_way_is_offered(chain: Plan) -> None:
    poor = planner.optimize(zoo.chain(12), 9, strategy="chen-sqrt")
    assert poor.report.plan.cost > chain.report.plan.cost
    value = next(op.name for op in poor.graph.ops if op.name not in poor.verify().recomputed and not op.resident)
    said = explain(poor, value, search=lambda *_graph, **_asked: chain).lines[-1]
    assert f"{100 * chain.report.overhead:+.2f} % cost in place of {100 * poor.report.overhead:+.2f} %" in said
    assert "That is the better plan" in said
    assert "better" not in explain(chain, value, search=lambda *_graph, **_asked: poor).lines[-1]


def test_a_decision_that_no_plan_can_take_is_said_with_the_least_that_works() -> None:
    plan = planner.optimize(zoo.chain(12))  # least peak: whatever is recomputed there must be
    tight = planner.optimize(zoo.chain(12), plan.report.plan.arena_bytes)
    again = sorted(tight.verify().recomputed)
    said = tight.explain(again[0]).lines[-1]
    with pytest.raises(planner.InfeasibleBudget) as refusal:
        forced(tight, "save", "name:" + again[0])
    assert f"the least that works is {refusal.value.minimum} B" in said


def test_a_module_is_explained_with_both_decisions_and_a_weight_with_none(gpt: Plan) -> None:
    found = gpt.explain("h1", search=False)
    inside = {op.name for op in gpt.graph.ops if (op.module or "").split(".")[0] == "h1" and not op.resident}
    assert {*found.kept, *found.recomputed} == inside
    weight = next(op.name for op in gpt.graph.ops if op.kind == "parameter")
    assert "a weight, which no plan frees" in str(gpt.explain(weight))
    assert gpt.explain(weight).instead == ()


def test_an_unknown_name_is_answered_with_near_ones(gpt: Plan) -> None:
    with pytest.raises(PlannerError, match=r"did you mean .*'h1\.fc1'"):
        gpt.explain("h1.fcl")


def test_a_difference_lists_exactly_the_ops_whose_number_of_runs_differs(chain: Plan) -> None:
    other = planner.optimize(zoo.chain(12), 6)
    before, after = Counter(chain.schedule.computes), Counter(other.schedule.computes)
    found = chain.diff(other)
    assert found.runs == tuple((op, before[op], after[op]) for op in before if before[op] != after[op])
    assert found.runs
    assert sum(b - a for _, a, b in found.runs) == len(other.schedule.computes) - len(chain.schedule.computes)
    assert chain.diff(chain).runs == ()
    with pytest.raises(PlannerError, match="plans of two graphs"):
        chain.diff(planner.optimize(zoo.chain(5)))


def test_explain_prints_sentences_or_one_object(run) -> None:
    run("optimize", "chain:12", "--budget", "8", "-o", "plan.json")
    run("optimize", "chain:12", "--budget", "6", "-o", "other.json")
    plan = planner.load("plan.json")
    assert run("explain", "plan.json").out == f"{plan.explain()}\n"
    name = plan.graph.ops[1].name
    assert run("explain", "plan.json", name).out == f"{plan.explain(name)}\n"
    quick = json.loads(run("explain", "plan.json", name, "--no-search", "--json").out)
    assert (quick["schema"], quick["explanation"]["instead"]) == ("planner-explanation", [])
    against = json.loads(run("explain", "plan.json", "--against", "other.json", "--json").out)
    assert len(against["difference"]["runs"]) == len(plan.diff(planner.load("other.json")).runs)
    assert run("explain", "plan.json", "--against", "other.json").out == f"{plan.diff(planner.load('other.json'))}\n"
    assert faults(run("explain", "plan.json", "nobody"), 2, "nobody") == []
    assert faults(run("explain", "plan.json", name, "--against", "other.json"), 2, "--against") == []
