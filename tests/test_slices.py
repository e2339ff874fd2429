"""Where a view is all that the backward pass reads of a large storage, a copy is advised, and takes what is said."""

from __future__ import annotations

import json
from typing import Any

import networkx as nx
import pytest
from naive import keep_all
from strategies import dag

import planner
from planner import InfeasibleBudget, lower, simulate
from planner.footprint.copied_slices import Copies, Slice, slices_of


def sliced(*, copy: bool = False, size: int = 10, **changes: dict[str, Any]) -> nx.DiGraph:
    """x (8) -> a (1000) -> v, a slice of it (10) -> h (600); the backward of h reads v and h."""
    nodes: dict[str, dict[str, Any]] = {
        "x": {"nbytes": 8, "kind": "input"},
        "a": {"nbytes": 1000, "phase": "forward"},
        "v": {"nbytes": size, "phase": "forward", **({} if copy else {"view": ((0, 0, 16),)})},
        "h": {"nbytes": 600, "phase": "forward"},
        "b": {"nbytes": 10, "phase": "backward"},
    }
    for name, change in changes.items():
        nodes[name] = {**nodes.get(name, {}), **change}
    return dag(
        nodes, ("x", "a"), ("a", "v", {"at": (0,)}), ("v", "h"), ("h", "b", {"at": (0,)}), ("v", "b", {"at": (1,)})
    )


def views(graph: nx.DiGraph) -> list[tuple[str, int, str, int]]:
    return [(each.value, each.nbytes, each.base, each.base_bytes) for each in slices_of(lower(graph))]


def test_a_copy_of_the_slice_takes_what_is_said_without_recomputation() -> None:
    # b: 8 + 1000 + 600 + 10. With a copy the most is at the copy itself: 8 + 1000 + 10.
    advice = planner.estimate(sliced()).advice(1018)
    assert advice.peak_bytes == 1618
    best = advice.remedies[0]
    assert (best.action, best.peak_bytes, best.fits) == ("copy of 'v' in place of views", 1018, True)
    assert "reads 'v' (10 B), a view that keeps all of 'a' (1000 B). No recomputation is needed." in best.note
    plan = planner.optimize(sliced(copy=True), 1018)
    assert (plan.report.plan.arena_bytes, plan.report.extra_runs) == (1018, 0)


def test_the_error_names_the_copy() -> None:
    # No plan with the view goes below 8 + 1000 + 600 + 10, for b reads what lies on the storage of a.
    with pytest.raises(InfeasibleBudget) as caught:
        planner.optimize(sliced(), 1100)
    assert caught.value.minimum == 1618
    assert "Copy of 'v' in place of views: 1018 B (1018 bytes)." in str(caught.value)
    with pytest.raises(InfeasibleBudget) as caught:
        planner.optimize(sliced(), 1017)  # a needs 8 + 1000 by itself, and its copy 10 more
    assert "Copy" not in str(caught.value)


def test_copies_that_do_not_fit_by_themselves_may_with_recomputation() -> None:
    found = Copies((Slice("v", 10, "a", 1000), Slice("u", 10, "a", 1000)), peak_bytes=100, floor_bytes=50)
    action = "copy of 'v' and 1 more slice in place of views"
    for allowed, remedy in (
        (100, (action, 100, True, False)),
        (99, (f"{action}, with recomputation", 50, True, True)),
        (49, (action, 50, False, True)),
    ):
        told = found.remedy(allowed)
        assert (told.action, told.peak_bytes, told.fits, told.at_least) == remedy


def test_inspect_and_estimate_print_it(run, tmp_path) -> None:
    path = tmp_path / "sliced.json"
    path.write_bytes(lower(sliced()).to_json())
    said = "a view that keeps all of 'a' (1000 B); a copy in place of views: peak 1018 B"
    assert said in run("inspect", path).out
    assert said in run("estimate", path).out
    told = json.loads(run("inspect", path, "--json").out)["inventory"]["copies"]
    assert told["slices"] == [{"value": "v", "nbytes": 10, "base": "a", "base_bytes": 1000}]
    path.write_bytes(lower(sliced(copy=True)).to_json())
    assert "a view that keeps" not in run("inspect", path).out


def test_the_first_view_of_the_size_that_is_read_is_the_one_to_copy() -> None:
    graph = sliced(r={"nbytes": 10, "phase": "forward", "view": ((0, 0, 16),)})  # the slice in another shape
    graph.remove_edge("v", "b")
    graph.add_edge("v", "r", at=(0,))
    graph.add_edge("r", "b", at=(1,))
    assert views(graph) == [("v", 10, "a", 1000)]


def test_slices_of_one_storage_are_copied_together_where_they_are_less_than_it() -> None:
    for size, found in ((400, [("v", 10, "a", 1000), ("u", 400, "a", 1000)]), (990, [])):
        graph = sliced(u={"nbytes": size, "phase": "forward", "view": ((0, 0),)})
        graph.add_edge("a", "u", at=(0,))
        graph.add_edge("u", "b", at=(2,))
        assert views(graph) == found


def test_no_copy_is_advised_where_it_frees_nothing_or_would_miss_an_update() -> None:
    whole, kept = sliced(size=1000), sliced(a={"output": True})
    whole.nodes["v"]["view"] = ((0, 0),)
    read = sliced()
    read.add_edge("a", "b", at=(2,))
    updated = sliced(u={"nbytes": 1000, "phase": "forward", "updates": ((0, 0),)})
    updated.add_edge("v", "u", at=(0,))
    updated.add_edge("h", "u", reads=(), at=())
    updated.remove_edge("v", "b")
    updated.add_edge("u", "b", at=(1,))
    resident = sliced()
    resident.nodes["a"].update(kind="parameter")
    resident.remove_edge("x", "a")
    for graph in (whole, kept, read, updated, resident):
        assert views(graph) == []


def test_no_copy_is_advised_where_the_peak_is_elsewhere() -> None:
    graph = sliced(c={"nbytes": 3000, "phase": "forward"})
    graph.add_edge("c", "a")  # 8 + 3000 + 1000 at a, before the slice
    assert views(graph) == [("v", 10, "a", 1000)]
    found = planner.estimate(graph)
    assert found.peak_bytes == simulate(lower(graph), keep_all(lower(graph))).peak_bytes == 4008
    assert found.copies is None
