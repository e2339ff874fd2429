"""Figures of plans: every byte in its band, every buffer in its place, every run in its row."""

from __future__ import annotations

from itertools import accumulate

import networkx as nx
import numpy as np
import pytest
from offenders import every

import planner
from planner import MemoryModel, Plan, PlannerError, zoo
from planner.analysis.roles import COMPONENTS
from planner.schedule import keep_all
from planner.views.course import Course
from planner.views.depth_scaling import depth_scaling
from planner.views.plan_figures import arena_map, memory_timeline, recompute_strip


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planner.optimize(zoo.resnet((1, 1, 1, 1), batch=4, image=64), "70%", effort=0.05)


def layers(count: int) -> nx.DiGraph:
    """Layers of 100 bytes with weights of 10 bytes."""
    graph = nx.DiGraph()
    for k in range(count):
        graph.add_node(f"w{k}", nbytes=10, kind="parameter")
        graph.add_node(f"a{k}", nbytes=100, saves=(("in", 0), ("in", 1)) if k else (("in", 0),))
        graph.add_edge(f"w{k}", f"a{k}", reads=(0,), at=(0,))
        if k:
            graph.add_edge(f"a{k - 1}", f"a{k}", reads=(0,), at=(1,))
    return planner.differentiate(graph, optimizer=None)


def test_bands_of_two_layers_are_what_is_counted_by_hand() -> None:
    program = planner.lower(layers(2))
    course = Course(program, keep_all(program), MemoryModel())
    rows = dict(zip(COMPONENTS, course.table.tolist(), strict=True))
    forward = [op.name for op in program.ops if op.phase == "forward"]
    assert (forward, list(course.ops[:2])) == (["a0", "a1"], ["a0", "a1"])
    assert rows["parameters"] == [20] * len(course.ops)  # two weights of 10 bytes, there all the time
    assert rows["activations"][:2] == [100, 200]  # a0, then a1 beside it
    assert rows["gradients"][-1] == 20  # both weight gradients are outputs, and live at the end
    assert rows["workspace"] == [0] * len(course.ops)


MODELS = {
    "in-place": lambda: zoo.resnet((1, 1, 1, 1), batch=4, image=64),
    "views and updates": lambda: zoo.gpt(1, batch=1, tokens=16, hidden=32, heads=2, vocabulary=64),
    "accumulation": lambda: zoo.mlp([8, 16, 4], batch=4),
}


@every("name, scope", [(name, scope) for name in MODELS for scope in ("total", "activations")])
def test_the_bands_of_every_step_add_up_to_what_the_judge_saw(name: str, scope: str) -> None:
    memory = MemoryModel(scope, alignment=512)
    plan = planner.optimize(MODELS[name](), memory=memory, strategy="chen-budget", allocator=None)
    course = Course(plan.graph, plan.schedule, memory)
    judged = np.array(planner.simulate(plan.graph, plan.schedule, memory=memory).timeline_bytes)
    assert np.array_equal(course.table.sum(axis=0), judged)
    for most in (1, 7, 10**6):
        columns = course.columns(most)
        assert sum(course.bands(columns).values()).tolist() == judged[columns].tolist()
        assert judged[columns].max() == judged.max()
        assert len(columns) == min(most, len(judged))


def test_the_timeline_stacks_up_to_the_peak_under_the_budget_beside_no_recomputation(plan: Plan) -> None:
    axes = memory_timeline(plan).axes[0]
    unit_bytes = 1024**2
    assert axes.get_ylabel() == "memory (MiB)"
    top = max(band.get_datalim(axes.transData).y1 for band in axes.collections)
    assert top * unit_bytes == pytest.approx(plan.report.plan.peak_bytes)
    lines = {line.get_label(): line.get_ydata() for line in axes.lines}
    assert max(lines["no recomputation"]) * unit_bytes == pytest.approx(plan.report.keep_all.peak_bytes)
    assert plan.budget is not None
    assert lines["budget 70%"][0] * unit_bytes == pytest.approx(plan.budget)


def test_the_budget_line_leaves_out_the_reserve_and_says_so() -> None:
    plan = planner.optimize(zoo.chain(8), 20, memory=MemoryModel(reserve=11))
    lines = {line.get_label(): line.get_ydata() for line in memory_timeline(plan).axes[0].lines}
    assert lines["budget 20 less reserve"][0] == 9


def test_the_arena_map_has_a_rectangle_for_every_buffer_where_it_lies(plan: Plan) -> None:
    allocation = plan.allocation
    assert allocation is not None
    axes = arena_map(plan).axes[0]
    drawn = [path.get_extents().extents for shapes in axes.collections for path in shapes.get_paths()]
    low = allocation.resident_bytes
    there = [(b.start, low + b.offset, b.end, low + b.offset + b.nbytes) for b in allocation.buffers]
    assert np.allclose(sorted(map(tuple, drawn)), sorted((a, b / 2**20, c, d / 2**20) for a, b, c, d in there))
    with pytest.raises(PlannerError, match="plan it with an allocator"):
        arena_map(planner.optimize(zoo.chain(4), allocator=None))


def test_the_strip_has_a_point_a_run_and_its_first_runs_once_an_op(plan: Plan) -> None:
    axes = recompute_strip(plan).axes[0]
    first, again = (points.get_offsets() for points in axes.collections if len(points.get_offsets()))
    ops = [op.name for op in plan.graph.ops if not op.resident]
    assert len(again) == plan.report.extra_runs > 0
    assert sorted(row for _, row in first) == list(range(len(ops)))
    assert all(plan.schedule.computes[int(step)] == ops[int(row)] for step, row in (*first, *again))


def test_a_line_that_grows_as_its_guide_lies_on_it() -> None:
    halves = list(accumulate([4] * 5, lambda n, factor: n * factor))  # 4, 16, ..., 1024 layers
    figure = depth_scaling({"all": [(n, 1000 * n) for n in halves], "roots": [(n, 2000 * n**0.5) for n in halves]})
    curves = {line.get_label(): line for line in figure.axes[0].lines}
    linear, root = figure.axes[0].lines[:2]
    for line, guide in (("all", linear), ("roots", root)):
        memory = dict(zip(*curves[line].get_data(), strict=True))
        assert guide.get_xdata()[-1] == pytest.approx(1024)
        assert guide.get_ydata()[-1] == pytest.approx(memory[1024])
    for wrong in ({}, {"none": []}, {"zero": [(0, 4)]}):
        with pytest.raises(PlannerError, match="depth_scaling needs"):
            depth_scaling(wrong)


def test_every_text_of_every_figure_is_inside_the_page_whatever_the_names(plan: Plan) -> None:
    graph = zoo.chain(5)
    graph.graph["name"] = "a $name$ with _much_ to say " * 9
    odd = planner.optimize(nx.relabel_nodes(graph, {node: f"{node} {'long ' * 40}" for node in graph}), 6)
    empty = planner.optimize(planner.Graph([]))
    outside = []
    for shown in (plan, odd, empty):
        for draw in (memory_timeline, arena_map, recompute_strip):
            figure = draw(shown)
            figure.draw_without_rendering()
            axes = figure.axes[0]
            for text in (*axes.texts, axes._left_title, axes.xaxis.label, axes.yaxis.label, *figure.legends):
                box = text.get_window_extent()
                if min(box.x0, box.y0) < -1 or box.x1 > figure.bbox.x1 + 1 or box.y1 > figure.bbox.y1 + 1:
                    outside.append((draw.__name__, shown.graph.name[:20], str(text)[:60]))
    assert outside == []
