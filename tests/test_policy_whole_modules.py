"""Modules that run again whole: a search against every choice there is, and schedules written down here."""

from __future__ import annotations

from itertools import chain, combinations
from typing import Any

import pytest

import planner
from planner import PlannerError
from planner.graph import Graph, Op, Tensor
from planner.policy.whole_modules import whole_modules
from planner.schedule import canonical
from planner.simulator import simulate

#: Modules of a chain of twelve ops, two in each leaf and four in each of the outer ones.
LEAVES = [f"part{k // 4}.leaf{k // 2 % 2}" for k in range(12)]
SIZES = [5, 1, 8, 2, 9, 1, 1, 7, 3, 3, 6, 2]
COSTS = [1, 4, 2, 2, 7, 1, 3, 1, 5, 2, 1, 1]


def chained(*once: int) -> Graph:
    """Each backward op reads the value of its forward op, and the gradient before it.

    Args:
        once: forward ops that must not run twice.
    """

    def op(name: str, k: int, reads: tuple[str, ...], **facts: Any) -> Op:
        return Op(name, outputs=(Tensor(name, SIZES[k]),), reads=reads, **facts)

    forward = [
        op(f"f{k}", k, (f"f{k - 1}",)[:k], cost=COSTS[k], module=LEAVES[k], phase="forward", recomputable=k not in once)
        for k in range(12)
    ]
    backward = [op(f"b{k}", k, (f"f{k}", f"b{k + 1}")[: 12 - k], phase="backward") for k in reversed(range(12))]
    return Graph([*forward, *backward])


def order_of(chosen: tuple[str, ...]) -> list[str]:
    """All forward ops; then backwards; before the last ops of a module all of it but the last, which is kept."""
    order = [f"f{k}" for k in range(12)]
    for k in reversed(range(12)):
        own = [path for path in chosen if LEAVES[k].startswith(path)]
        inside = [j for j in range(12) if own and LEAVES[j].startswith(own[0])]
        if inside and k == inside[-1 if k == 11 else -2]:  # the last op of all has no reader that keeps it
            order += [f"f{j}" for j in (inside if k == 11 else inside[:-1])]
        order.append(f"b{k}")
    return order


def choices() -> list[tuple[str, ...]]:
    """Every set of modules, none inside another."""
    paths = sorted({*LEAVES, *(leaf.partition(".")[0] for leaf in LEAVES)})
    sets = chain.from_iterable(combinations(paths, count) for count in range(len(paths) + 1))
    return [s for s in sets if not any(a != b and b.startswith(f"{a}.") for a in s for b in s)]


def test_no_choice_of_modules_is_cheaper_at_any_budget() -> None:
    graph = chained()
    found = [simulate(graph, canonical(graph, order_of(choice))) for choice in choices()]
    assert len(found) == 125  # per part: none, the whole, one leaf or the other, or both
    among = {*LEAVES, "part0", "part1", "part2"}
    for budget in range(min(trace.peak_bytes for trace in found), max(trace.peak_bytes for trace in found) + 2):
        best = min(trace.cost for trace in found if trace.peak_bytes <= budget)
        chosen = whole_modules(graph, budget, among=among)
        assert chosen.cost == best, budget
        assert chosen.peak_bytes <= budget
    least = min((trace.peak_bytes, trace.cost) for trace in found)
    assert (whole_modules(graph, None, among=among).peak_bytes, whole_modules(graph, None, among=among).cost) == least
    with pytest.raises(PlannerError, match=r"no choice of modules .* within 3 B(ytes)?.*: the least takes"):
        whole_modules(graph, 3, among=among)


def test_a_module_that_must_not_run_twice_is_not_chosen() -> None:
    chosen = whole_modules(chained(1), None).modules
    assert "part0.leaf0" not in chosen
    assert "part0.leaf1" in chosen


def test_a_plan_names_modules_within_its_own_budget() -> None:
    graph = chained()
    plan = planner.optimize(graph, 38, allocator=None)
    modules = plan.modules_to_checkpoint()
    assert modules
    assert simulate(graph, canonical(graph, order_of(modules))).peak_bytes <= 38
