"""Devices by name: what one holds, budgets that are devices and what is kept of them, and roofline seconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from offenders import every

import planner
from planner import MemoryModel, zoo
from planner.errors import GraphError, InfeasibleBudget, UnitError
from planner.footprint.estimate import estimate, largest_batch
from planner.lowering.devices import DEVICES, device, find_device, roofline_seconds
from planner.problem import Budget
from planner.units import format_bytes

GIB, MIB = 2**30, 2**20
CARDS = {name: entry for name, entry in DEVICES.items() if name != "cpu"}

#: GiB, two digits, as the places that `memory_source` names print them ("total capacity of 14.56 GiB"); of those that
#: print bytes, the bytes.
REPORTED = {
    "a100": 79.14, "a100-40": 42_298_834_944, "h100": 79.11, "h200": 139.80, "v100": 31.72, "v100-16": 15.75,
    "t4": 14.56, "l4": 22.16, "a10": 21.99, "l40s": 44.42, "rtx4090": 23.52, "rtx3090": 23.69,
    "titanx": 12_797_607_936, "gtx1080ti": 10.91,
}  # fmt: skip

# --- the registry ---


def test_every_device_holds_what_the_runtime_reports_and_never_what_it_is_sold_by() -> None:
    assert list(REPORTED) == list(CARDS)
    for name, entry in CARDS.items():
        assert entry.total_bytes is not None
        assert entry.marketed_gib is not None
        reported = REPORTED[name]
        assert entry.total_bytes == (reported if isinstance(reported, int) else int(reported * GIB)), name
        # Error correction and the firmware take at most a tenth of any card on sale.
        assert 0.9 * entry.marketed_gib * GIB < entry.total_bytes < entry.marketed_gib * GIB, name


def test_every_figure_of_a_device_has_its_source() -> None:
    assert {name for name, entry in DEVICES.items() if not entry.source} == set()
    assert {name for name, entry in CARDS.items() if not entry.memory_source} == set()
    host = DEVICES["cpu"]
    assert (host.total_bytes, host.marketed_gib, host.link_bandwidth, host.memory_source) == (None, None, None, "")


def test_a_link_to_the_host_is_a_slot_of_16_lanes_one_way() -> None:
    # PCI Express: 8, 16 and 32 GT/s a lane in generations 3, 4 and 5, so 16, 32 and 64 GB/s on 16 lanes.
    links = {name: entry.link_bandwidth for name, entry in CARDS.items()}
    assert {link: sorted(name for name in links if links[name] == link) for link in (16e9, 32e9, 64e9)} == {
        16e9: ["gtx1080ti", "t4", "titanx", "v100", "v100-16"],
        32e9: ["a10", "a100", "a100-40", "l4", "l40s", "rtx3090", "rtx4090"],
        64e9: ["h100", "h200"],
    }


def test_a_device_is_found_by_what_people_and_the_runtime_call_it() -> None:
    names = {
        "t4": ("T4", " t4 ", "Tesla T4", "T4-16GB"), "a100": ("A100", "a100-80", "A100-80GB", "NVIDIA A100 80GB PCIe"),
        "a100-40": ("A100-40", "a100 40gb", "NVIDIA A100-SXM4-40GB"), "h100": ("H100", "NVIDIA H100 80GB HBM3"),
        "v100": ("V100-32GB",), "v100-16": ("Tesla V100-SXM2-16GB",), "cpu": ("CPU",), "l40s": ("NVIDIA L40S",),
        "rtx4090": ("RTX 4090", "rtx-4090", "NVIDIA GeForce RTX 4090"), "gtx1080ti": ("GeForce GTX 1080 Ti",),
        "titanx": ("GeForce GTX TITAN X", "Titan X"),
    }  # fmt: skip
    for name, written in names.items():
        for text in written:
            assert (text, find_device(text)) == (text, DEVICES[name])


def test_no_size_and_no_other_card_is_a_device() -> None:
    others = (
        "4090",
        "7GB",
        "40%",
        "0.4",
        "auto",
        "1e-9",
        "",
        "GB",
        "NVIDIA",
        "L40",
        "A10G",
        "TITAN X (Pascal)",
        "a1000",
    )
    for other in (*others, None, 7, 0.4, True, b"t4"):
        assert find_device(other) is None, other
    assert Budget.read("4090").nbytes == 4090


def test_an_unknown_device_is_one_line_with_the_nearest_names() -> None:
    for wrong, near in (("a1000", "a100 or a100-40"), ("l5", "l4"), ("4090", "rtx4090"), ("RTX 4080", "rtx4090")):
        with pytest.raises(
            GraphError, match=f"^unknown device {wrong!r}; did you mean {near}.*known: a100.*cpu$"
        ) as caught:
            device(wrong)
        assert "\n" not in str(caught.value)
    for wrong in (None, "much", "x" * 10_000):
        with pytest.raises(GraphError, match=r"unknown device .*; known: a100, .*, cpu$") as caught:
            device(wrong)  # type: ignore[arg-type]
        assert len(str(caught.value)) < 400


# --- budgets that are devices ---


def deep() -> nx.DiGraph:
    """Four layers of 8 GiB: 40 GiB without recomputation, and never below 24 GiB: g3 reads two and makes one."""
    return zoo.chain(4, nbytes=8 * GIB)


def test_of_a_device_512_mib_are_kept_for_the_context_unless_a_reserve_is_given() -> None:
    plan = planner.optimize(deep(), "A100-40GB")
    assert (plan.budget, plan.budget_text, plan.memory) == (42_298_834_944, "A100-40GB", MemoryModel(reserve=512 * MIB))
    assert "reserve 512.00 MiB" in " ".join(str(plan.report).split())
    for reserve in (0, GIB):
        given = planner.optimize(deep(), "a100-40", memory=MemoryModel(reserve=reserve))
        assert (given.budget, given.memory.reserve) == (42_298_834_944, reserve)
    for size in (42_298_834_944, "39GiB", "90%", None):
        assert planner.optimize(deep(), size).memory.reserve == 0


def test_the_context_decides_what_fits_a_device_and_a_size_of_as_many_bytes_has_none() -> None:
    graph, peak, total = zoo.chain(1, nbytes=7_730_941_133), 15_461_882_266, int(14.56 * GIB)  # f1 and g1: 14.4 GiB
    assert total - 512 * MIB < estimate(graph).peak_bytes == peak < total
    with pytest.raises(InfeasibleBudget, match=r"reserve 512\.00 MiB") as caught:
        planner.optimize(graph, "t4")
    assert caught.value.minimum == peak + 512 * MIB
    assert planner.optimize(graph, total).report.needed_bytes == peak
    assert planner.optimize(graph, "t4", memory=MemoryModel(reserve=0)).report.needed_bytes == peak
    assert not estimate(graph).fits("t4")
    assert estimate(graph).fits(total)
    assert estimate(graph, memory=MemoryModel(reserve=0)).fits("t4")


def test_a_plan_for_a_device_is_verified_as_such_after_it_was_saved(tmp_path: Path) -> None:
    planner.optimize(deep(), "a100-40").save(tmp_path / "plan.json")
    loaded = planner.load(tmp_path / "plan.json")
    loaded.verify()
    assert loaded.memory.reserve == 512 * MIB
    content = json.loads((tmp_path / "plan.json").read_text().replace('"A100-40"', '"t4"').replace('"a100-40"', '"t4"'))
    (tmp_path / "other.json").write_text(json.dumps(content))
    with pytest.raises(planner.VerificationError, match="'t4', which is 15633680957 bytes, not 42298834944"):
        planner.load(tmp_path / "other.json").verify()


def test_a_device_among_the_budgets_of_a_curve_is_what_its_context_leaves() -> None:
    found = planner.curve(deep(), ["A100-40", "t4", 35 * GIB])
    assert [point.budget for point in found.points] == [
        int(14.56 * GIB) - 512 * MIB,
        35 * GIB,
        42_298_834_944 - 512 * MIB,
    ]
    assert [point.status for point in found.points] == ["infeasible", "fits", "fits"]
    given = planner.curve(deep(), ["a100-40"], memory=MemoryModel(reserve=GIB))
    assert [point.budget for point in given.points] == [42_298_834_944]


def test_a_budget_that_reads_like_a_device_is_refused_with_the_nearest() -> None:
    for wrong, near in (("t5", "did you mean t4?"), ("a1000", "did you mean a100 or a100-40?"), ("7Gb", 'as "t4"')):
        with pytest.raises(UnitError, match=r'"7GB"') as caught:
            planner.optimize(deep(), wrong)
        assert str(caught.value).endswith(near if near.startswith("as") else f": {near}")
    with pytest.raises(UnitError, match="budget 'cpu' is not understood"):
        planner.optimize(deep(), "cpu")


def test_the_largest_batch_on_a_device_is_that_of_the_bytes_it_leaves() -> None:
    def build(batch: int) -> nx.DiGraph:
        return zoo.chain(2, nbytes=batch * 64 * MIB)

    least = estimate(build(1)).peak_bytes
    left = int(14.56 * GIB) - 512 * MIB
    assert largest_batch(build, "T4") == left // least
    assert largest_batch(build, "T4", memory=MemoryModel(reserve=0)) == int(14.56 * GIB) // least > left // least
    assert largest_batch(build, "T4", overhead=10.0) >= left // least


# --- verdicts ---


def test_a_verdict_says_what_is_left_and_barely_is_less_than_a_twentieth() -> None:
    peak = estimate(zoo.mlp([64, 64], batch=8)).peak_bytes
    found = estimate(zoo.mlp([64, 64], batch=8))
    # 5 % of the budget are left where the budget is peak / 0.95.
    for budget, verdict in ((peak - 1, "does not fit"), (peak, "barely"), (20 * peak // 19 - 1, "barely"),
                            (20 * peak // 19 + 2, "fits"), (3 * peak, "fits")):  # fmt: skip
        advice = found.advice(budget)
        assert (advice.verdict, advice.spare_bytes, advice.device) == (verdict, budget - peak, None), budget
        assert advice.fits == found.fits(budget) == (verdict != "does not fit")
    small = found.advice("t4")
    assert (small.device, small.reserve_bytes) == ("t4", 512 * MIB)
    assert small.spare_bytes == int(14.56 * GIB) - 512 * MIB - peak
    said = "in the backward phase, 14.06 GiB to spare; 512.00 MiB of t4's 14.56 GiB are reserved."
    assert str(small) == f"Fits t4: {format_bytes(peak)} at the peak, {said}"


def test_the_command_has_a_verdict_for_each_device_and_each_batch(run: Any) -> None:
    words = ("estimate", "resnet:50", "--batch", "8,170,256", "--fits", "T4,a100")
    answer = run(*words)
    lines = answer.out.splitlines()
    head = next(k for k, line in enumerate(lines) if line.startswith("  batch "))
    assert [line.split()[-2:] for line in lines[head : head + 4]] == [
        ["fits", "a100"], ["yes", "yes"], ["barely", "yes"], ["no", "yes"]
    ]  # fmt: skip
    assert answer.code == 0
    # 22,206,444,612 bytes, where 15,633,680,957 less 512 MiB are: 6.62 GiB too much
    assert answer.out.startswith("Batch 256: Does not fit t4: 20.68 GiB at the peak, in the backward phase, 6.62 GiB")
    assert answer.out.endswith("\nNext: planner optimize resnet:50 --batch 256 --budget T4\n")
    rows = json.loads(run(*words, "--json").out)["rows"]
    verdicts = [[advice["verdict"] for advice in row["verdicts"]] for row in rows]
    assert verdicts == [["fits", "fits"], ["barely", "fits"], ["does not fit", "fits"]]
    assert [row["fits"] for row in rows] == [True, True, False]
    assert all(
        advice["spare_bytes"] == advice["budget"] - 512 * MIB - row["peak_bytes"]
        for row in rows
        for advice in row["verdicts"]
    )


@every(("words", "said"), [
    (["--fits", "t4,t5"], "did you mean t4?"), (["--fits", "t4,"], "budget '' is not understood"),
    (["--fits", "t4,a100", "--largest-batch"], "--largest-batch is for one device: write --fits t4"),
    (["--device", "l5"], "unknown device 'l5'; did you mean l4?"),
])  # fmt: skip
def test_a_device_that_cannot_be_is_one_line(run: Any, words: list[str], said: str) -> None:
    answer = run("estimate", "mlp:4-4", "--batch", "1", *words)
    assert answer.code in (2, 3)
    assert (len(answer.err.splitlines()), said in answer.err) == (1, True)


def test_the_command_line_sets_the_reserve_of_a_device_and_prints_the_default(run: Any) -> None:
    assert "512.00 MiB" in run("optimize", "chain:4", "--budget", "T4").out
    assert "reserve" not in run("optimize", "chain:4", "--budget", "T4", "--reserve", "0").out
    said = "t4: 14.06 GiB, for 512.00 MiB of its 14.56 GiB are reserved; --reserve sets it"
    assert said in run("curve", "chain:4", "--budgets", "t4,8").out
    assert "reserve 1.00 GiB" in run("curve", "chain:4", "--budgets", "t4", "--reserve", "1GiB").out


# --- seconds ---


def test_arithmetic_bounds_a_large_product_and_traffic_an_elementwise_op() -> None:
    # Data sheet: 19.5 TFLOP/s in float32, 312 in 16-bit on tensor cores, 2,039 GB/s.
    a100 = device("a100")
    assert roofline_seconds(a100, flops=19.5e12, bytes_moved=1.0) == 1.0
    assert roofline_seconds(a100, flops=312e12, bytes_moved=1.0, dtype="bfloat16") == 1.0
    assert roofline_seconds(a100, flops=1.0, bytes_moved=2039e9) == 1.0


def test_a_dtype_without_a_rate_runs_at_that_of_float32() -> None:
    v100 = device("v100")
    assert roofline_seconds(v100, flops=15.7e12, bytes_moved=0.0, dtype="bfloat16") == 1.0


def test_nothing_takes_no_time() -> None:
    assert roofline_seconds(device("cpu"), flops=0, bytes_moved=0) == 0.0


def test_any_device_of_the_registry_gives_costs_however_its_name_is_written() -> None:
    costs = {
        name: sum(c for _, c in zoo.mlp([8, 8], batch=2, device=name).nodes(data="cost")) for name in ("l4", "L4", "t4")
    }
    assert costs["l4"] == costs["L4"] > costs["t4"]  # 300 and 320 GB/s: such small ops wait for memory
