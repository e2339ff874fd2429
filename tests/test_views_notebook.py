"""What a notebook and a REPL show of the nouns: one line of text, a picture of memory and the report."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

import planner
from planner import Plan, zoo
from planner.views.sketch import timeline_svg


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planner.optimize(zoo.chain(8), 7)


def test_the_repr_of_every_noun_is_one_short_line_whatever_the_graph_is_called(plan: Plan) -> None:
    graph = zoo.chain(200)
    graph.graph["name"] = "two\nlines " + "x" * 500
    long = planner.optimize(graph, "100%")
    curve = planner.curve(graph, ["100%"], strategies=("chen-sqrt",))
    trace = planner.simulate(graph, long.schedule)
    nouns = [plan, long, long.report, long.allocation, trace, curve, planner.estimate(graph)]
    assert [text for text in map(repr, nouns) if "\n" in text or len(text) > 160] == []


def test_the_repr_of_a_plan_names_model_memory_and_cost(plan: Plan) -> None:
    # Public case C1: within 7 bytes 19 runs, within 9 the 17 runs that there are at least; 19 / 17 = 1.1176.
    assert repr(plan) == "Plan('chain:8', 7 B of 9 B, +11.76 % cost)"
    assert repr(plan.report) == "Report('chain:8', 7 B of 9 B, +11.76 % cost)"
    trace = planner.simulate(plan.graph, plan.schedule)
    assert repr(trace) == f"Trace(peak 7 bytes at step {trace.peak_step + 1} of 19, op {trace.peak_op!r}, cost 19)"


def heights(path: str) -> list[float]:
    return [float(y) for y in re.findall(r"V([\d.]+)", path)]


def test_the_sketch_is_xml_to_scale_with_budget_and_baseline() -> None:
    svg = ElementTree.fromstring(timeline_svg((25, 100, 50), baseline=(200, 100), budget=150))
    area, line = (path.attrib["d"] for path in svg.iter("{http://www.w3.org/2000/svg}path"))
    (dashed,) = svg.iter("{http://www.w3.org/2000/svg}line")
    # 132 units of height stand for 200 bytes, from y = 150 upwards.
    assert heights(area) == [133.5, 84.0, 117.0, 150.0]
    assert heights(line) == [18.0, 84.0]
    assert float(dashed.attrib["y1"]) == 51.0


def test_a_notebook_shows_the_report_and_memory_over_time_without_scripts_or_addresses(plan: Plan) -> None:
    shown = plan._repr_html_()
    assert shown.count("<path") == 2  # the plan, and no recomputation beside it
    assert plan.report._repr_html_().count("<path") == 1
    for text in (shown, plan.report._repr_html_(), planner.estimate(zoo.mlp([4, 2], batch=2))._repr_html_()):
        assert "<pre>" in text
        assert "<script" not in text
        assert set(re.findall(r"https?://[^\"]*", text)) <= {"http://www.w3.org/2000/svg"}


def test_an_empty_graph_is_shown_too() -> None:
    plan = planner.optimize(planner.Graph([]))
    assert "at most 0 B" in plan._repr_html_()
    assert "\n" not in repr(plan)
