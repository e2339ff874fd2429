"""What the benchmark compares with: graphs made here, methods of others, and the file of best known plans."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import random
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from test_bench import row_of

import planner
from bench import __main__ as command
from bench import known, remat
from bench.cases import SUITES, Suite
from bench.generators import gpt, layered
from bench.known import BestKnown, KnownPlan
from bench.overhead_table import missed
from bench.overheads import Aim, Overheads, judged_again
from bench.peers import PEERS, eviction, ilp, keepbits, program_of, schedules
from bench.peers.program import peak_of
from bench.results import PeerRow, PlanRow, Results
from bench.run import run
from bench.tables import table
from planner.errors import PlanFileError
from tests import naive

Parts = dict[str, Any]


def graph_of(parts: Parts) -> planner.Graph:
    return planner.lower(remat.converted(parts))


def steps_of(graph: planner.Graph, ops: list[int]) -> planner.Schedule:
    """A sequence as a schedule, by the naive rule of canonical frees."""
    return naive.canonical_steps(graph, [f"v{op}" for op in ops])


def parts_of(name: str, layers: int, cost: list[int], mem: list[int], edges: list[list[int]]) -> Parts:
    """A remat graph whose second half is its backward pass."""
    of_edges = {"edges": edges, "bwd": [0] * layers + [1] * layers}
    return {"format": remat.FORMAT, "name": name, "n": 2 * layers, "cost": cost, "mem": mem, **of_edges}


def training(layers: int, *, seed: int) -> Parts:
    """A random net with skips, then its backward ops reversed; each reads two forward values and the last gradient."""
    draw = random.Random(seed)
    edges = {(k - 1, k) for k in range(1, layers)} | {(draw.randrange(k), k) for k in range(1, layers)}
    for k in reversed(range(layers)):
        back = 2 * layers - 1 - k
        edges |= {(k, back), (draw.randrange(k + 1), back)} | ({(back - 1, back)} if k < layers - 1 else set())
    cost = [draw.randint(1, 20) for _ in range(2 * layers)]
    mem = [draw.randint(1, 20) for _ in range(2 * layers)]
    return parts_of(f"training{layers}", layers, cost, mem, [list(edge) for edge in sorted(edges)])


def unit_chain(layers: int) -> Parts:
    """Layer k reads layer k - 1; its backward op reads both, and the gradient."""
    edges = [[k - 1, k] for k in range(1, layers)]
    for k in reversed(range(layers)):
        back = 2 * layers - 1 - k
        edges += [[v, back] for v in ((k - 1, k) if k else (k,))] + ([[back - 1, back]] if k < layers - 1 else [])
    ones = [1] * (2 * layers)
    return parts_of("chain", layers, ones, ones, edges)


def test_the_transformers_made_here_are_those_of_the_shared_files(shared: Path) -> None:
    for layers in (12, 96):
        theirs = json.loads((shared / "data" / "rematgraphs" / f"gpt{layers}.json").read_bytes())
        ours = gpt(layers)
        assert sorted(map(tuple, ours["edges"])) == sorted(map(tuple, theirs["edges"]))
        assert {key: ours[key] for key in ("name", "n", "cost", "mem", "bwd")} == {
            key: theirs[key] for key in ("name", "n", "cost", "mem", "bwd")
        }


def depth_of(parts: Parts) -> int:
    """Ops on the longest path."""
    level = [1] * parts["n"]
    for u, v in sorted(parts["edges"], key=lambda edge: edge[1]):
        level[v] = max(level[v], level[u] + 1)
    return max(level)


def test_random_layers_are_of_the_kind_of_the_shared_files(shared: Path) -> None:
    theirs = json.loads((shared / "data" / "rematgraphs" / "layered1000.json").read_bytes())
    several = [layered(1000, width=26, seed=seed) for seed in range(5)]
    assert np.mean([len(parts["edges"]) for parts in several]) == pytest.approx(len(theirs["edges"]), rel=0.1)
    assert np.mean([depth_of(parts) for parts in several]) == pytest.approx(depth_of(theirs), rel=0.1)
    assert np.mean([parts["mem"] for parts in several]) == pytest.approx(np.mean(theirs["mem"]), rel=0.05)
    large = layered(10_000, width=60, seed=0)
    assert len(large["edges"]) == pytest.approx(121_771, rel=0.01)  # of the notes' own generator
    assert several[0] == layered(1000, width=26, seed=0)
    for parts in (theirs, several[0], large):
        read, readers = Counter(v for _, v in parts["edges"]), Counter(u for u, _ in parts["edges"])
        assert [v for v in range(parts["n"]) if not read[v]] == [0]
        assert [v for v in range(parts["n"]) if not readers[v]] == [parts["n"] - 1]
        assert all(u < v for u, v in parts["edges"])


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_plans_of_peers_are_legal_and_within_the_budget(peer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if why := peer.missing():
        pytest.skip(why)
    monkeypatch.setattr(keepbits, "_WORK", 2_000_000)
    monkeypatch.setattr(ilp, "MOST_OPS", 16)
    found = 0
    made = [training(7, seed=1), training(7, seed=2), training(12, seed=3)]
    for parts in (*made, unit_chain(12), gpt(1), layered(60, width=5, seed=1)):
        program = program_of(parts)
        if not peer.applies(program):
            continue
        graph, peak = graph_of(parts), peak_of(program, list(range(program.ops)))
        for share in (0.9, 0.7, 0.5):
            budget = int(share * peak)
            ops = peer.method(program, budget)
            if ops is None:
                continue
            found += 1
            trace = planner.simulate(graph, steps_of(graph, ops))
            assert trace.peak_bytes == peak_of(program, ops) <= budget
            assert trace.cost == sum(parts["cost"][op] for op in ops)
            assert set(ops) == set(range(program.ops))
    assert found >= 3


def test_eviction_runs_nothing_again_where_all_fits_and_gives_up_below_one_op() -> None:
    for parts in (gpt(2), training(20, seed=4), layered(60, width=5, seed=2)):
        program = program_of(parts)
        in_order = list(range(program.ops))
        assert eviction.eviction(program, peak_of(program, in_order)) == in_order
        alone = max(
            int(program.nbytes[[*program.reads[program.read_ptr[k] : program.read_ptr[k + 1]], k]].sum())
            for k in range(program.ops)
        )
        assert eviction.eviction(program, alone - 1) is None


def bits_plan(parts: Parts, dropped: set[int]) -> list[int]:
    """What one bit a tensor means, by recursion."""
    reads: dict[int, list[int]] = {v: [] for v in range(parts["n"])}
    for u, v in sorted(parts["edges"]):
        reads[v].append(u)
    ops: list[int] = []
    again: set[int] = set()

    def need(v: int) -> None:
        if v in dropped and v not in again:
            again.add(v)
            for u in reads[v]:
                need(u)
            ops.append(v)

    for op in range(parts["n"]):
        if parts["bwd"][op]:
            for u in reads[op]:
                need(u)
        ops.append(op)
    return ops


def test_the_annealer_finds_the_best_bits_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keepbits, "_WORK", 2_000_000)
    for seed in (1, 2, 3):
        parts = training(7, seed=seed)
        program, graph = program_of(parts), graph_of(parts)
        plans = [bits_plan(parts, set(dropped)) for k in range(8) for dropped in itertools.combinations(range(7), k)]
        costs = [sum(parts["cost"][op] for op in ops) for ops in plans]
        peaks = [planner.simulate(graph, steps_of(graph, ops)).peak_bytes for ops in plans]
        for share in (0.9, 0.75, 0.6):
            budget = int(share * peaks[0])
            best = min((cost for cost, peak in zip(costs, peaks, strict=True) if peak <= budget), default=None)
            found = keepbits.annealed(program, budget)
            assert (None if found is None else sum(parts["cost"][op] for op in found)) == best


def test_the_integer_program_is_exact_on_small_chains() -> None:
    if why := ilp.missing():
        pytest.skip(why)
    for parts in (unit_chain(4), unit_chain(5)):
        graph = graph_of(parts)
        for budget in range(3, parts["n"] // 2 + 2):
            found = ilp.checkmate(program_of(parts), budget)
            assert (None if found is None else len(found)) == naive.least_cost(graph, budget)


def test_schedules_of_the_library_take_the_forward_runs_of_the_binomial_formula() -> None:
    if why := schedules.missing():
        pytest.skip(why)
    from checkpoint_schedules import Revolve  # type: ignore[import-not-found,unused-ignore]

    for steps, checkpoints in ((12, 3), (10, 2), (20, 4)):
        ops = schedules._sequence(Revolve(steps, checkpoints), steps)
        again = next(r for r in itertools.count() if math.comb(checkpoints + r, checkpoints) >= steps)
        advances = again * steps - math.comb(checkpoints + again, again - 1)  # Griewank and Walther 2000, proposition 1
        # The last advance of each step is the one its backward step needs, and is not counted there; but for the first
        # sweep's.
        assert sum(op < steps for op in ops) == advances + steps
        assert [op for op in ops if op >= steps] == list(range(steps, 2 * steps))


# --- best known plans ---

PARTS = training(8, seed=5)
GRAPH = graph_of(PARTS)
KEEP_ALL = np.arange(16)
PEAK = peak_of(program_of(PARTS), list(range(16)))


def worse_than_keep_all() -> np.ndarray[Any, Any]:
    return np.array(bits_plan(PARTS, {2, 3, 4}), dtype=np.int64)


def test_a_best_known_plan_is_replaced_by_a_cheaper_one_alone() -> None:
    best = BestKnown()
    cost, peak_bytes = best.offer("case", GRAPH, worse_than_keep_all(), budget_bytes=2 * PEAK, found_by="bits")
    assert cost == sum(PARTS["cost"]) + sum(PARTS["cost"][2:5])
    first = best.plans["case"]
    assert (first.found_by, first.cost, first.peak_bytes, first.ops().tolist()) == (
        "bits",
        cost,
        peak_bytes,
        worse_than_keep_all().tolist(),
    )
    best.offer("case", GRAPH, KEEP_ALL, budget_bytes=2 * PEAK, found_by="nothing")
    assert best.plans["case"].found_by == "nothing"
    best.offer("case", GRAPH, worse_than_keep_all(), budget_bytes=2 * PEAK, found_by="bits")
    best.offer("case", GRAPH, KEEP_ALL, budget_bytes=2 * PEAK, found_by="again")
    assert (best.plans["case"].found_by, best.plans["case"].overhead) == ("nothing", 0.0)
    with pytest.raises(AssertionError, match=f"takes {PEAK} bytes of {PEAK - 1}"):
        best.offer("tight", GRAPH, KEEP_ALL, budget_bytes=PEAK - 1, found_by="nothing")
    other = graph_of(training(8, seed=6))  # the graph of a case was changed
    best.offer("case", other, KEEP_ALL, budget_bytes=3 * PEAK, found_by="new")
    assert best.plans["case"].found_by == "new"


def test_best_known_plans_come_back_from_their_file_or_say_what_is_wrong(tmp_path: Path) -> None:
    best = BestKnown()
    best.offer("case", GRAPH, worse_than_keep_all(), budget_bytes=2 * PEAK, found_by="bits")
    best.save(tmp_path / "best.json")
    assert known.load(tmp_path / "best.json").plans == best.plans
    document = json.loads((tmp_path / "best.json").read_bytes())
    for text, wrong in ((json.dumps({**document, "version": 0}), "version"), (json.dumps(document)[:99], "damaged")):
        (tmp_path / "wrong.json").write_text(text)
        with pytest.raises(PlanFileError, match=wrong):
            known.load(tmp_path / "wrong.json")
    with pytest.raises(PlanFileError, match="cannot read"):
        known.load(tmp_path / "absent.json")


def test_a_plan_that_does_not_hold_is_found_out() -> None:
    best = BestKnown()
    best.offer("case", GRAPH, worse_than_keep_all(), budget_bytes=PEAK, found_by="bits")
    plan = best.plans["case"]

    def verdict(**fields: Any) -> str:
        return known.verdict(msgspec.structs.replace(plan, **fields), GRAPH, PEAK)

    assert verdict() == ""
    assert "another graph" in verdict(fingerprint="0")
    assert "peak is" in verdict(peak_bytes=plan.peak_bytes - 1)
    assert "overhead is" in verdict(overhead=0.0)
    assert "overhead is" in verdict(cost=1.0)
    assert "damaged" in verdict(sequence="AAAA")
    assert "damaged" in verdict(runs=3)
    assert "not there" in verdict(sequence=known.packed(KEEP_ALL + 1), runs=16)
    assert verdict(sequence=known.packed(KEEP_ALL[::-1].copy()), runs=16)  # illegal
    assert "bytes, not" in known.verdict(plan, GRAPH, PEAK - 1)
    early = msgspec.structs.replace(plan, pinned=True)
    assert known.verdict(early, GRAPH, PEAK) == ""


# --- the case and its table ---

MADE = Overheads(
    "training8", partial(training, 8, seed=7), (Aim("70%", 0.0), Aim("95%", 90.0), Aim("5%", None)), 30.0, size="quick"
)


@pytest.fixture(scope="module")
def measured() -> tuple[Results, BestKnown]:
    best = BestKnown()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keepbits, "_WORK", 2_000_000)
        return run(Suite("remat", "", (MADE,)), size="quick", known=best), best


def test_ours_has_a_bound_a_target_and_a_verdict(measured: tuple[Results, BestKnown]) -> None:
    results, _ = measured
    tight, loose, none = (row_of(results, PlanRow, strategy="auto", budget=budget) for budget in ("70%", "95%", "5%"))
    budget = loose.budget_bytes
    assert loose.cost_lower_bound <= naive.least_cost(graph_of(training(8, seed=7)), budget) <= loose.cost
    assert loose.gap == pytest.approx(
        (loose.cost - loose.cost_lower_bound) / sum(training(8, seed=7)["cost"]), abs=1e-6
    )
    assert missed(loose) == []
    assert missed(none) == ["no plan"]
    assert missed(tight) == [f"{100 * tight.overhead:.2f} points over"]
    assert missed(msgspec.structs.replace(loose, limit_seconds=1e-9))[0].endswith(" s over")
    almost = msgspec.structs.replace(tight, target=tight.overhead - 4e-5, overhead=round(tight.overhead, 4) + 4e-5)
    assert missed(msgspec.structs.replace(almost, target=round(tight.overhead, 4))) == []  # as both are printed


def test_the_table_has_ours_peers_and_what_is_missed(measured: tuple[Results, BestKnown]) -> None:
    results, _ = measured
    text = table(results)
    head = next(line for line in text.splitlines() if line.startswith("| graph | budget | ops | ours"))
    for peer in ("look-ahead eviction", "keep bits", "chain", "chen-budget", "best known"):
        assert f"| {peer} |" in head
    lines = {
        line.split(" | ")[1]: line for line in text.splitlines() if line.startswith("| training8 | ") and "%" in line
    }
    assert set(lines) == {"70%", "95%", "5%"}
    tight = row_of(results, PlanRow, strategy="auto", budget="70%")
    assert f"| **missed**: {100 * tight.overhead:.2f} points over |" in lines["70%"]
    assert "| any plan |" in lines["5%"]
    assert "| hit |" in lines["95%"]
    assert len({line.count("|") for line in lines.values()} | {head.count("|")}) == 1


def test_the_best_plan_of_a_run_is_kept_and_shown_in_the_next(measured: tuple[Results, BestKnown]) -> None:
    results, best = measured
    plans = dict(best)
    assert set(plans) == {"training8 · 70%", "training8 · 95%"}
    rows = [
        row
        for row in results.rows
        if isinstance(row, (PlanRow, PeerRow)) and row.budget == "70%" and row.overhead is not None
    ]
    assert plans["training8 · 70%"].overhead == pytest.approx(min(row.overhead or 0.0 for row in rows), abs=1e-6)
    alone = dataclasses.replace(MADE, strategies=("auto",), peers=False)
    again = run(Suite("remat", "", (alone,)), size="quick", known=best)
    shown = row_of(again, PeerRow, peer="best known", budget="70%")
    assert shown.overhead == round(plans["training8 · 70%"].overhead, 6)
    assert dict(best) == plans


def test_best_known_plans_are_judged_again_from_the_command_line(
    measured: tuple[Results, BestKnown], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, best = measured
    path = tmp_path / "best_known.json"
    monkeypatch.setattr(command, "BEST_KNOWN", path)
    monkeypatch.setitem(SUITES, "remat", Suite("remat", "", (MADE,)))
    best.save(path)
    good = CliRunner().invoke(command.main, ["remat", "--check-best"])
    assert (good.exit_code, good.output.count("holds")) == (0, 2)
    name, plan = next(iter(best))
    BestKnown(
        {**best.plans, name: msgspec.structs.replace(plan, overhead=plan.overhead / 2 - 0.01), "gone · 50%": plan}
    ).save(path)
    bad = CliRunner().invoke(command.main, ["remat", "--check-best"])
    assert bad.exit_code == 1
    assert "overhead is" in bad.output
    assert "gone · 50%" in bad.output
    assert isinstance(plan, KnownPlan)


def test_the_best_known_plans_of_the_repository_hold(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANNER_SHARED", str(shared))
    best = known.load(command.BEST_KNOWN)
    small = [case for case in SUITES["remat"].cases if isinstance(case, Overheads) and case.limit_seconds <= 5]
    verdicts = dict(judged_again(best, small))
    assert len(verdicts) >= 30
    assert set(verdicts.values()) == {""}
