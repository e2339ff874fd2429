"""The original's allocator, block for block: the fixtures of `shared/data/mxnet` and the tables of `original.md` 3.

The fixtures hold what MXNet 1.5.1 itself planned. Beyond what it can express (views, updates, workspace, kept siblings,
late frees) the judge and a slow twin decide.
"""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import mxnet
import networkx as nx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mxnet import MEMORY, Fixture, fold_additions, just_in_time, recomputed, second_runs, split_heads
from naive import Moment, _compute, _free, history, keep_all, overlaps, stacked
from offenders import every
from programs import op, steps
from strategies import digraphs, memory_models
from test_kernels import loose_schedules

from planner import Graph, MemoryModel, Op, PlannerError, ScheduleError, Tensor, lower, simulate
from planner.analysis.evaluator import Evaluator
from planner.kernels import block_sharing as kernels
from planner.mxnet.nnvm import Sharing, nnvm, share_blocks
from planner.schedule import Compute, Schedule

FILES = (
    "resnet_3-4-6-3_sharing.json", "resnet_3-4-6-3_memonger.json", "resnet_3-8-36-3_sharing.json.gz",
    "resnet_3-8-36-3_memonger.json.gz", "lstm_4x1024_t64_sharing.json.gz", "lstm_4x1024_t64_memonger.json.gz",
    "inception_bn_sharing.json", "resnet_15-120-180-15_sharing.json.gz",
)  # fmt: skip
LARGEST = FILES[-1]
PLANS = ("resnet_3-4-6-3", "resnet_3-8-36-3", "lstm_4x1024_t64")
MIB = 2**20


def fixtures(shared: Path, *names: str) -> Iterator[Fixture]:
    """The fixtures of these files, each loaded once."""
    return (mxnet.load(shared / mxnet.FOLDER / name) for name in names)


def entry_blocks(fixture: Fixture, sharing: Sharing, block: Any = None) -> list[int]:
    """Block of each entry, -1 for external ones."""
    value_index = fixture.evaluator().encoded.value_index
    of_value = np.full(len(value_index), -1)
    of_value[sharing.value] = sharing.block if block is None else block
    return [int(of_value[value_index[name]]) for name in fixture.value_of]


# the fixtures


def test_the_total_at_every_match_range_is_the_originals(shared: Path) -> None:
    for fixture in fixtures(shared, *FILES):
        for match_range, golden in fixture.golden["by_match_range"].items():
            sharing = share_blocks(fixture.evaluator(), fixture.schedule(), match_range=int(match_range))
            assert (sharing.total_bytes, len(sharing.block_bytes)) == (golden["total_bytes"], golden["blocks"]), (
                match_range
            )
            assert sharing.total_bytes // MIB == golden["reported_MB"]


def test_the_totals_of_the_fixtures_are_51(shared: Path) -> None:
    tables = [mxnet.load(shared / mxnet.FOLDER / name).golden for name in FILES]
    assert sum(len(golden["by_match_range"]) for golden in tables) == 51
    assert all(golden["by_match_range"]["16"]["total_bytes"] == golden["shared_total_bytes"] for golden in tables)
    assert all(golden["by_match_range"]["0"]["total_bytes"] == golden["inplace_only_total_bytes"] for golden in tables)


def test_every_entry_lies_in_the_block_the_original_gave_it_at_every_stored_range(shared: Path) -> None:
    for fixture in fixtures(shared, *FILES):
        ranges = {16, *map(int, fixture.golden.get("storage_by_match_range", {}))}
        assert len(ranges) == (1 if "15-120" in fixture.name else len(fixture.golden["by_match_range"]))
        for match_range in ranges:
            sharing = share_blocks(fixture.evaluator(), fixture.schedule(), match_range=match_range)
            assert entry_blocks(fixture, sharing) == fixture.blocks(match_range), match_range


def test_as_many_inplace_pairs_happen_as_in_the_original(shared: Path) -> None:
    for fixture in fixtures(shared, *FILES):
        assert (
            share_blocks(fixture.evaluator(), fixture.schedule()).pairs_taken == fixture.golden["inplace_pairs_taken"]
        )


def test_without_inplace_pairs_the_totals_are_the_originals_with_and_without_sharing(shared: Path) -> None:
    for fixture in fixtures(shared, *FILES):
        evaluator = Evaluator(fixture.graph_without_inplace, MEMORY)
        shared_blocks, own_blocks = (share_blocks(evaluator, fixture.schedule(), match_range=r) for r in (16, 0))
        assert shared_blocks.total_bytes == fixture.golden["shared_no_inplace_total_bytes"]
        assert own_blocks.total_bytes == fixture.golden["no_sharing_total_bytes"]
        assert shared_blocks.pairs_taken == own_blocks.pairs_taken == 0


def test_the_judges_peak_is_the_live_peak_with_and_without_inplace(shared: Path) -> None:
    for fixture in fixtures(shared, *FILES):
        schedule = fixture.schedule()
        assert simulate(fixture.graph, schedule, memory=MEMORY).peak_bytes == fixture.golden["live_peak_inplace_bytes"]
        assert (
            simulate(fixture.graph_without_inplace, schedule, memory=MEMORY).peak_bytes
            == fixture.golden["live_peak_bytes"]
        )


def test_external_entries_are_residents(shared: Path) -> None:
    for fixture in fixtures(shared, *FILES):
        golden = fixture.golden
        residents = simulate(fixture.graph, fixture.schedule(), memory=MemoryModel(scope="total")).resident_bytes
        assert residents == golden["external_variable_bytes"] + golden["external_gradient_bytes"]


def test_after_the_add_to_pass_every_entry_of_the_lstm_lies_where_the_log_shows_it(shared: Path) -> None:
    for fixture in fixtures(shared, "lstm_4x1024_t64_sharing.json.gz", "lstm_4x1024_t64_memonger.json.gz"):
        sharing = share_blocks(fixture.evaluator(), fixture.schedule())
        folded = entry_blocks(fixture, sharing, fold_additions(fixture.graph, sharing))
        assert folded == [-1 if e["external"] else e.get("logged_storage", e["storage"]) for e in fixture.entries]
        redirected = sum(a != b for a, b in zip(folded, entry_blocks(fixture, sharing), strict=True))
        assert redirected == fixture.golden["addto_redirected_entries"] == 1197


def test_colours_cost_what_they_cost_in_the_original(shared: Path) -> None:
    for fixture in fixtures(shared, "resnet_3-4-6-3_sharing.json", "inception_bn_sharing.json"):
        totals = [
            share_blocks(fixture.evaluator(), fixture.schedule(), colours=k).total_bytes // MIB for k in (1, 2, 4, 8)
        ]
        assert totals == ([1340, 1395, 1451, 1451] if "inception" in fixture.name else [3539] * 4)


def test_the_judge_accepts_the_allocation_and_its_arena_is_the_total(shared: Path) -> None:
    for fixture in fixtures(shared, *FILES):
        schedule = fixture.schedule()
        for options in (
            ({}, {"match_range": 0}, {"match_range": 2, "colours": 4}) if fixture.name not in LARGEST else ({},)
        ):
            allocation = nnvm(fixture.graph, schedule, memory=MEMORY, **options)
            trace = simulate(fixture.graph, schedule, memory=MEMORY, allocation=allocation)
            assert trace.arena_bytes == share_blocks(fixture.evaluator(), schedule, **options).total_bytes


def test_recomputation_by_second_runs_of_an_op_gets_the_blocks_of_the_originals_copies(shared: Path) -> None:
    for name in PLANS:
        plain, planned = (
            mxnet.load(next((shared / mxnet.FOLDER).glob(f"{name}_{plan}.json*"))) for plan in ("sharing", "memonger")
        )
        graph = split_heads(plain, recomputed(planned))
        evaluator = Evaluator(graph, MEMORY)
        order = second_runs(plain, planned, graph)
        rows = np.array([evaluator.encoded.op_index[op] for op in order])
        unsplit = np.array([plain.evaluator().encoded.op_index[op.removesuffix(" again")] for op in order])
        for match_range in (0, 2, 16):
            ours = share_blocks(evaluator, rows, match_range=match_range)
            theirs = share_blocks(planned.evaluator(), planned.schedule(), match_range=match_range)
            assert ours.block.tolist() == theirs.block.tolist()
            assert (
                share_blocks(plain.evaluator(), unsplit, match_range=match_range, first_outputs=True).block.tolist()
                == ours.block.tolist()
            )
            assert ours.total_bytes == planned.golden["by_match_range"][str(match_range)]["total_bytes"]
        schedule = evaluator.schedule(rows)
        allocation = nnvm(graph, schedule, memory=MEMORY)
        assert (
            simulate(graph, schedule, memory=MEMORY, allocation=allocation).arena_bytes
            == planned.golden["shared_total_bytes"]
        )


def test_the_originals_plan_for_995_layers_takes_4091_mb_and_the_originals_bytes_at_every_range(shared: Path) -> None:
    for fixture in fixtures(shared, LARGEST):
        trace = json.loads(gzip.decompress((shared / mxnet.FOLDER / "alg3_resnet_15-120-180-15.json.gz").read_bytes()))
        again = {name for name, *_, recomputed in trace["decisions"] if recomputed}
        graph = split_heads(fixture, again)
        evaluator = Evaluator(graph, MEMORY)
        order = np.array([evaluator.encoded.op_index[op] for op in just_in_time(graph, again)])
        totals = {
            r: share_blocks(evaluator, order, match_range=int(r)).total_bytes for r in ("0", "1", "2", "4", "8", "16")
        }
        assert totals == trace["best"]["total_bytes_by_match_range"]
        assert totals["16"] == 4289839104
        assert evaluator.evaluate(order) == (trace["best"]["live_peak_bytes"], len(order))
        assert len(order) == 6640 + 3272


def test_995_layers_are_allocated_in_well_under_half_a_second(shared: Path) -> None:
    for fixture in fixtures(shared, LARGEST):
        schedule = fixture.schedule()
        nnvm(fixture.graph, schedule, memory=MEMORY)
        start = time.process_time()
        nnvm(fixture.graph, schedule, memory=MEMORY)
        assert time.process_time() - start < 0.5


# by hand


def ops(*rows: tuple[str, int, str], **attributes: dict[str, Any]) -> Graph:
    """(name, bytes, names read) for each op."""
    read = {name for _, _, reads in rows for name in reads.split()}
    return Graph(
        [
            op(name, *reads.split(), nbytes=nbytes, output=name not in read, **attributes.get(name, {}))
            for name, nbytes, reads in rows
        ]
    )


def blocks_of(graph: Graph, schedule: Schedule | None = None, **options: Any) -> tuple[dict[str, int], list[int]]:
    """Block of each value's last instance, and the bytes of each block."""
    evaluator = Evaluator(graph, MemoryModel())
    sharing = share_blocks(evaluator, schedule or keep_all(graph), **options)
    names = [evaluator.encoded.value_names[value] for value in sharing.value]
    return dict(zip(names, sharing.block.tolist(), strict=True)), sharing.block_bytes.tolist()


#: Blocks of 4, 9 and 30 bytes are free, released in this order, when q is made.
FREE_BLOCKS = (("a", 4, ""), ("b", 9, ""), ("c", 30, ""), ("d", 0, "a"), ("e", 0, "b"), ("f", 0, "c"))


@every(("nbytes", "match_range", "block", "grown"), [
    (8, 16, "b", 9),  # the smallest not below it
    (10, 16, "c", 30),  # upward first, however far within the range
    (10, 2, "b", 10),  # 30 > 2 * 10: downward, the largest, which grows
    (31, 16, "c", 31),
    (70, 2, None, 70),  # 30 < 70 // 2: a new one
    (60, 2, "c", 60),  # 30 >= 60 // 2
    (61, 2, "c", 61),  # 61 // 2 == 30
    (9, 1, "b", 9), (8, 1, None, 8),
    (9, 0, None, 9),  # 0 never shares
    (5, 2**70, "b", 9),
])  # fmt: skip
def test_a_request_takes_the_smallest_block_within_the_range_above_else_the_largest_below(
    nbytes: int, match_range: int, block: str | None, grown: int
) -> None:
    graph = ops(*FREE_BLOCKS, ("q", nbytes, "d e f"))
    found, sizes = blocks_of(graph, match_range=match_range)
    assert found["q"] == (found[block] if block else len(sizes) - 1)
    assert sizes[found["q"]] == grown
    assert len(sizes) == (3 if block else 4)


def test_among_equal_blocks_the_first_released_serves_upward_and_the_last_released_downward() -> None:
    for nbytes, block in [(6, "b"), (5, "b"), (7, "a")]:
        graph = ops(("a", 6, ""), ("b", 6, ""), ("d", 0, "b"), ("e", 0, "a"), ("q", nbytes, "d e"))
        found, _ = blocks_of(graph)
        assert found["q"] == found[block]


def test_outputs_are_served_largest_first_and_equal_ones_from_the_last() -> None:
    graph = Graph([Op("s", tuple(Tensor(f"s:{o}", nbytes, output=True) for o, nbytes in enumerate((1, 5, 1, 7))))])
    assert blocks_of(graph) == ({"s:3": 0, "s:1": 1, "s:2": 2, "s:0": 3}, [7, 5, 1, 1])


IN_PLACE = {"inplace": ((0, 0, False), (1, 0, False))}


def test_an_output_takes_the_first_input_that_nobody_else_uses() -> None:
    graph = ops(("a", 4, ""), ("b", 4, ""), ("sum", 4, "a b"), ("z", 1, "sum a"), sum=IN_PLACE)
    found, _ = blocks_of(graph)
    assert found["sum"] == found["b"] != found["a"]


def test_an_input_read_twice_is_not_taken_though_rule_10_allows_it_and_the_judge_accepts_both() -> None:
    graph = ops(("a", 4, ""), ("sum", 4, "a a"), sum=IN_PLACE)
    found, _ = blocks_of(graph)
    assert found["sum"] != found["a"]
    assert simulate(graph, keep_all(graph)).inplace_taken == ((1, "sum", "a"),)
    allocation = nnvm(graph, keep_all(graph), memory=MemoryModel())
    assert simulate(graph, keep_all(graph), allocation=allocation).arena_bytes == 8


def test_no_pair_is_added_where_rule_10_gave_the_input_to_an_output_that_nobody_uses() -> None:
    pairs = ((0, 0, False), (0, 1, False))
    both = Op("s", (Tensor("s:0", 4), Tensor("s:1", 4, output=True)), reads=("a",), inplace=pairs)
    graph = Graph([op("a", nbytes=4), both])
    assert simulate(graph, keep_all(graph)).inplace_taken == ((1, "s:0", "a"),)
    assert blocks_of(graph)[0] == {"a": 0, "s:1": 1, "s:0": 2}
    simulate(graph, keep_all(graph), allocation=nnvm(graph, keep_all(graph), memory=MemoryModel()))


def test_no_pair_is_added_where_rule_10_gave_the_output_to_an_input_that_is_read_twice_or_freed_late() -> None:
    pairs = {"inplace": tuple((i, 0, False) for i in range(3))}
    graph = ops(("a", 4, ""), ("b", 4, ""), ("s", 4, "a a b"), s=pairs)
    assert simulate(graph, keep_all(graph)).inplace_taken == ((2, "s", "a"),)
    assert blocks_of(graph)[0] == {"a": 0, "b": 1, "s": 2}
    simulate(graph, keep_all(graph), allocation=nnvm(graph, keep_all(graph), memory=MemoryModel()))
    graph = ops(("a", 4, ""), ("v", 4, "a"), ("b", 4, ""), ("s", 4, "v b"), v={"view": ((0, 0, 0),)}, s=IN_PLACE)
    late = steps("a v b s -a -v -b")  # a is last read by v
    assert simulate(graph, late).inplace_taken == ((3, "s", "v"),)
    assert blocks_of(graph, late)[0] == {"a": 0, "v": 0, "b": 1, "s": 2}
    simulate(graph, late, allocation=nnvm(graph, late, memory=MemoryModel()))


def test_an_identity_pair_to_an_output_that_nobody_uses_leaves_the_input_to_the_next() -> None:
    pairs = ((0, 0, True), (0, 1, True))
    both = Op("s", (Tensor("s:0", 4), Tensor("s:1", 4)), reads=("a",), inplace=pairs)
    graph = Graph([Op("a", (Tensor("a", 4),)), both, Op("z", (Tensor("z", 1, output=True),), reads=("a", "s:1"))])
    assert blocks_of(graph)[0] == {"a": 0, "s:0": 1, "s:1": 0, "z": 1}
    assert simulate(graph, keep_all(graph)).inplace_taken == ((1, "s:1", "a"),)


def test_an_identity_pair_shares_while_both_live_and_the_counts_add_up() -> None:
    graph = ops(
        ("a", 4, ""), ("i", 4, "a"), ("b", 4, "i"), ("c", 4, "a"), ("z", 4, "b c"), i={"inplace": ((0, 0, True),)}
    )
    assert blocks_of(graph)[0] == {"a": 0, "i": 0, "b": 1, "c": 2, "z": 0}


def test_a_view_and_an_update_keep_the_block_of_their_input_until_their_last_use() -> None:
    graph = ops(("a", 4, ""), ("v", 1, "a"), ("b", 4, "v"), ("c", 4, "b"), v={"view": ((0, 0, 0),)})
    assert blocks_of(graph)[0] == {"a": 0, "v": 0, "b": 1, "c": 0}
    graph = ops(("a", 4, ""), ("u", 4, "a"), ("b", 4, ""), ("c", 4, "u b"), ("d", 4, "c"), u={"updates": ((0, 0),)})
    assert blocks_of(graph)[0] == {"a": 0, "u": 0, "b": 1, "c": 2, "d": 0}


def test_workspace_and_the_copy_of_a_kept_sibling_are_requests_of_one_step() -> None:
    graph = ops(("a", 4, ""), ("b", 4, "a"), b={"workspace": 3})
    assert blocks_of(graph) == ({"a": 0, "b": 1}, [4, 4, 3])
    pair = Op("pair", (Tensor("pair:0", 4), Tensor("pair:1", 8)))
    graph = Graph([pair, *ops(("a", 1, "")).ops, Op("b", (Tensor("b", 1, output=True),), reads=("pair:0", "pair:1"))])
    allocation = nnvm(graph, steps("pair -pair:0 pair a b -pair:0 -pair:1"), memory=MemoryModel())
    found = [(b.value, b.execution, b.start, b.end, b.offset) for b in allocation.buffers]
    # pair:1 in block 0, pair:0 in block 1; the copy of pair:1 takes block 1, which grows; then pair:0 needs another.
    assert found == [
        ("pair:0", 0, 0, 1, 8), ("pair:1", 0, 0, 4, 0), ("pair:0", 1, 1, 4, 16),
        ("pair:1", 1, 1, 2, 8), ("a", 0, 2, 4, 8), ("b", 0, 3, 4, 20),
    ]  # fmt: skip


def test_a_value_freed_late_or_never_keeps_its_block_and_is_not_taken_in_place() -> None:
    graph = ops(("a", 4, ""), ("b", 4, "a"), ("c", 4, "b"), b={"inplace": ((0, 0, False),)})
    late = steps("a b c -a -b")
    assert blocks_of(graph)[0] == {"a": 0, "b": 0, "c": 1}
    assert blocks_of(graph, late)[0] == {"a": 0, "b": 1, "c": 2}


def test_sizes_are_rounded_up_and_values_without_bytes_have_no_block() -> None:
    graph = ops(("a", 5, ""), ("n", 0, "a"), ("b", 6, "n"), ("c", 1, "b"), b={"workspace": 3})
    memory = MemoryModel(alignment=4)
    allocation = nnvm(graph, keep_all(graph), memory=memory)
    trace = simulate(graph, keep_all(graph), memory=memory, allocation=allocation)
    found = [(b.value, b.nbytes, b.offset) for b in allocation.buffers if b.nbytes]
    assert found == [("a", 8, 0), ("b", 8, 0), ("c", 4, 8), ("b", 3, 8)]
    assert trace.arena_bytes == 12


def test_a_colour_keeps_parallel_paths_apart() -> None:
    rows = [("x", 1, ""), ("l1", 8, "x"), ("l2", 4, "l1"), ("r1", 8, "x"), ("r2", 4, "r1"), ("l3", 4, "l2")]
    rows.append(("z", 1, "l3 r2"))
    one, _ = blocks_of(ops(*rows))
    assert one["r1"] == one["l1"]  # r1 has to wait until l2 has read l1
    two, _ = blocks_of(ops(*rows), colours=2)
    assert two["r1"] != two["l1"]
    assert blocks_of(ops(*rows), colours=2) == blocks_of(ops(*rows), colours=50)


@pytest.mark.parametrize("options", [{"match_range": -1}, {"colours": 0}])
def test_a_match_range_below_0_and_no_colour_are_refused(options: dict[str, int]) -> None:
    graph = ops(("a", 4, ""))
    with pytest.raises(PlannerError, match=next(iter(options))):
        nnvm(graph, keep_all(graph), memory=MemoryModel(), **options)


def test_an_illegal_schedule_or_sequence_is_refused() -> None:
    graph = ops(("a", 4, ""), ("b", 4, "a"))
    with pytest.raises(ScheduleError):
        nnvm(graph, Schedule.of([Compute("b")]), memory=MemoryModel())
    with pytest.raises(ScheduleError):
        share_blocks(Evaluator(graph, MemoryModel()), np.array([1, 0]))


# the slow twin


class Twin(NamedTuple):
    """Blocks by (value or op, run, workspace), and their bytes."""

    blocks: dict[tuple[str, int, bool], int]
    block_bytes: list[int]
    declined: set[tuple[str, int]]


class NameLife:
    """One life of a name: from its making (or the start) until it is freed, overwritten, or the end."""

    def __init__(
        self, steps: tuple[Any, ...], graph: Graph, moments: list[Moment], name: str, k: int, *, made: bool = False
    ) -> None:
        """The life of `name` around step k: made there, or live before it."""

        def live(j: int) -> bool:
            return name in moments[j].on

        begin = k
        while not made and begin > 0 and live(begin - 1):
            begin -= 1
        stop = k if made or begin == k else begin
        while stop < len(steps) and live(stop):
            stop += 1
        reading = [
            j for j in range(begin + (made or begin < k), min(stop + 1, len(steps))) if isinstance(steps[j], Compute)
        ]
        self.reads = [j for j in reading for value in graph.op_named[steps[j].op].reads if value == name]
        last = max(self.reads, default=begin)
        between = [j for j in range(last + 1, min(stop, len(steps) - 1) + 1) if isinstance(steps[j], Compute)]
        self.held = stop == len(steps) or bool(between)  # beyond its last read
        self.stop = stop

    def uses_from(self, k: int) -> int:
        return sum(j >= k for j in self.reads) + self.held


def longest_path_colours(graph: Graph, schedule: Schedule, moments: list[Moment], colours: int) -> list[int]:
    """Colour of each run: longest paths of runs without a colour, later runs first where two are equal."""
    names = schedule.computes
    at = [k for k, step in enumerate(schedule.steps) if isinstance(step, Compute)]
    successors: list[set[int]] = [set() for _ in names]
    for t, name in enumerate(names):
        for value in graph.op_named[name].reads:
            makers = [s for s in range(t) if names[s] == graph.producer[value].name]
            fresh = [s for s in makers if at[s] == 0 or value not in moments[at[s] - 1].on]
            if fresh:
                successors[fresh[-1]].add(t)
        if name not in names[:t]:
            for before in set(graph.op_named[name].after) & set(names[:t]):
                successors[names.index(before)].add(t)
    colour: list[int | None] = [None] * len(names)
    used = 0
    while used < colours - 1 and None in colour:
        length = [0] * len(names)
        onward: list[int | None] = [None] * len(names)
        for t in reversed(range(len(names))):
            follow = max(successors[t], key=lambda s: (length[s], s), default=None)
            if follow is not None and length[follow]:
                length[t], onward[t] = length[follow], follow
            length[t] += colour[t] is None
        run: int | None = max(range(len(names)), key=lambda t: (length[t], t))
        while run is not None:
            colour[run] = used if colour[run] is None else colour[run]
            run = onward[run]
        used += 1
    return [used if c is None else c for c in colour]


def twin(graph: Graph, schedule: Schedule, memory: MemoryModel, match_range: int, colours: int) -> Twin:
    """`original.md` 1.1 from the whole history again at every step."""
    steps = schedule.steps
    lawful = history(graph, schedule) if steps else []
    allowed: set[tuple[str, int, str]] = set()
    colour = longest_path_colours(graph, schedule, lawful, colours)
    free: list[tuple[int, int]] = []  # (block, colour) in order of release
    found, sizes, declined = {}, list[int](), set()

    def request(size: int, colour: int) -> int | None:
        if size == 0:
            return None
        fitting = [(sizes[block], k) for k, (block, of) in enumerate(free) if of == colour and match_range]
        above = [(nbytes, k) for nbytes, k in fitting if size <= nbytes <= size * match_range]
        below = [(nbytes, k) for nbytes, k in fitting if size // (match_range or 1) <= nbytes < size]
        if not above and not below:
            sizes.append(size)
            return len(sizes) - 1
        block, _ = free.pop(min(above)[1] if above else max(below)[1])
        sizes[block] = max(sizes[block], size)
        return block

    t = -1
    for k, step in enumerate(steps):
        if not isinstance(step, Compute):
            continue
        t += 1
        op, run = graph.op_named[step.op], schedule.computes[:t].count(step.op)
        before = (history_of(graph, steps, k - 1, allowed) if k else start_of(graph)).on
        happened = set(lawful[k].inplace) - set(lawful[k - 1].inplace if k else ())
        for output, _, value in happened:
            on = history_of(graph, steps, k, allowed).on
            names = [name for name, storage in on.items() if storage == before[value]]
            kept = [name for name in names if before.get(name) == before[value]]
            old = sum(NameLife(steps, graph, lawful, name, k).uses_from(k) for name in kept)
            fresh_views = [name for name in names if name not in before]
            views = sum(NameLife(steps, graph, lawful, name, k, made=True).uses_from(k) for name in fresh_views)
            used = NameLife(steps, graph, lawful, output, k, made=True).uses_from(k)
            identity = next(flag for i, o, flag in op.inplace if op.outputs[o].name == output and op.reads[i] == value)
            if used and (old + views == 1 or identity):
                allowed.add((output, run, value))
            else:
                declined.add((output, run))
        now = history_of(graph, steps, k, allowed)
        fresh = [
            (o, t) for o, t in enumerate(op.outputs) if now.on[t.name] == (t.name, run) or (t.name, run) in now.copies
        ]
        wanted = [(memory.round_up(tensor.nbytes), o, tensor.name) for o, tensor in fresh]
        wanted.append((memory.round_up(op.workspace), -1, op.name))
        for size, o, name in sorted(wanted, reverse=True):
            block = request(size, colour[t])
            if block is not None:
                found[name, run, o < 0] = block
        run_end = next((j for j in range(k + 1, len(steps)) if isinstance(steps[j], Compute)), len(steps))
        after = history_of(graph, steps, run_end - 1, allowed)
        released = []
        for storage in now.during - set(after.on.values()):
            holds = [
                j
                for j in range(k + 1, run_end)
                if steps[j].value in before
                and before[steps[j].value] == storage
                and now.on.get(steps[j].value) == storage
                and NameLife(steps, graph, lawful, steps[j].value, k).held
            ]
            places = [i for i, value in enumerate(op.reads) if before[value] == storage]
            if holds:
                released.append((2, holds[-1], storage))
            elif places:
                released.append((0, places[-1], storage))
            else:
                output = next(o for o, tensor in enumerate(op.outputs) if tensor.name == storage[0])
                released.append((1, output, storage))
        for _, _, storage in sorted(released):
            if (*storage, False) in found:
                free.append((found[(*storage, False)], colour[t]))
        if (op.name, run, True) in found:
            free.append((found[op.name, run, True], colour[t]))
    return Twin(found, sizes, declined)


def start_of(graph: Graph) -> Moment:
    return Moment({t.name: (t.name, 0) for op in graph.ops if op.kind != "op" for t in op.outputs})


def history_of(graph: Graph, steps: tuple[Any, ...], k: int, allowed: set[tuple[str, int, str]]) -> Moment:
    """The machine after step k; the steps after it only say what is freed."""
    moment = start_of(graph)
    for j in range(k + 1):
        moment = naive_step(graph, steps, j, moment, allowed)
    return moment


def naive_step(
    graph: Graph, steps: tuple[Any, ...], j: int, moment: Moment, allowed: set[tuple[str, int, str]]
) -> Moment:
    if isinstance(steps[j], Compute):
        return _compute(graph, steps, j, moment, allowed)
    return _free(graph, j, steps[j].value, moment)


QUICK = settings(suppress_health_check=list(HealthCheck))


@QUICK
@given(
    digraph=digraphs(),
    memory=memory_models(),
    match_range=st.sampled_from([16, 1, 2, 0, 4]),
    colours=st.sampled_from([1, 2, 3, 9]),
    data=st.data(),
)
def test_on_any_graph_and_schedule_blocks_are_the_twins_and_the_judge_accepts_them(
    digraph: nx.DiGraph, memory: MemoryModel, match_range: int, colours: int, data: st.DataObject
) -> None:
    graph = lower(digraph)
    schedule = data.draw(loose_schedules(graph))
    allocation = nnvm(graph, schedule, memory=memory, match_range=match_range, colours=colours)
    trace = simulate(graph, schedule, memory=memory, allocation=allocation)
    assert overlaps(allocation.buffers) == []
    expected = twin(graph, schedule, memory, match_range, colours)
    assert trace.arena_bytes == allocation.arena_bytes <= allocation.resident_bytes + sum(expected.block_bytes)
    wanted = stacked(graph, schedule, memory=memory, declined=expected.declined)
    assert rows(allocation.buffers) == rows(wanted.buffers)
    offsets = [sum(expected.block_bytes[:block]) for block in range(len(expected.block_bytes))]
    found = {(b.value, b.execution, b.workspace): b.offset for b in allocation.buffers if b.nbytes}
    assert found == {key: offsets[block] for key, block in expected.blocks.items()}


def rows(buffers: Any) -> list[tuple[Any, ...]]:
    return sorted((b.value, b.execution, b.workspace, b.nbytes, b.start, b.end) for b in buffers)


def test_every_kernel_is_compiled_for_one_signature() -> None:
    graph = ops(("a", 4, ""), ("b", 4, "a"), b={"inplace": ((0, 0, False),), "workspace": 3})
    for options in ({}, {"match_range": 0, "colours": 2}):
        nnvm(graph, keep_all(graph), memory=MemoryModel(), **options)
        share_blocks(Evaluator(graph, MemoryModel()), np.array([0, 1]), **options)
    compiled = {name: value.signatures for name, value in vars(kernels).items() if hasattr(value, "signatures")}
    public = {name: len(signatures) for name, signatures in compiled.items() if not name.startswith("_")}
    assert public == {"count_uses": 1, "colour_paths": 1, "share": 1}
    assert all(len(signatures) <= 1 for signatures in compiled.values())
