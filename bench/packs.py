"""Packing alone: tables of the shared data, and the buffers of plans. CPU seconds as in `bench.measure`."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Final, final

import numpy as np

import planner
from bench import shared
from bench.measure import LEAST, Bench, Clock, OnSubject, Size, least, least_of
from bench.results import PackRow, PeerRow, Row, Seconds
from planner.packing import Intervals, Packing, find_allocator, pack
from planner.packing.arena import PlacementOrder, pack_once
from planner.packing.buffer_table import read_table
from planner.packing.intervals import sections_of
from planner.packing.restarts import round_robin
from planner.units import BudgetText

#: Rules that place each buffer once: words for the table, order, and whether in the smallest gap.
RULES: Final[tuple[tuple[str, PlacementOrder, bool], ...]] = (
    ("breadth first-fit", "breadth", False),
    ("size first-fit", "size", False),
    ("breadth best-fit", "breadth", True),
    ("size best-fit", "size", True),
)


def live_bytes(path: Path) -> int:
    """Most bytes live at once, from the file alone."""
    changes: dict[int, int] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if int(row["upper"]) > int(row["lower"]):
                for time, sign in ((row["lower"], 1), (row["upper"], -1)):
                    changes[int(time)] = changes.get(int(time), 0) + sign * int(row["size"])
    return max(itertools.accumulate(changes[time] for time in sorted(changes)))


@lru_cache(maxsize=1)
def warm_search() -> None:
    """Load the compiled kernels, the search's too."""
    pair = Intervals(*(np.array(column) for column in ([2, 2], [0, 1], [2, 3], [1, 1], [-1, -1])))
    pack(pair)
    next(round_robin(sections_of(pair), pair.end - pair.start, 2, 0))[0].run(1000)


@final
@dataclass(frozen=True)
class Tables:
    """One table of the shared data: the rules that place once, and the packer.

    Args:
        name: short, for the table.
        file: of the shared data.
        capacities: bytes, one run each; None: the smallest arena.
        efforts: of the runs for the smallest arena.
        peer: CPU seconds of MiniMalloc at the first capacity.
    """

    name: str
    file: str
    capacities: tuple[int | None, ...] = (None,)
    efforts: tuple[float, ...] = (4.0,)
    peer: float | None = None
    rules: bool = True
    size: Size = "normal"

    def missing(self) -> str | None:
        return shared.missing(self.file)

    def rows(self, bench: Bench) -> Iterator[Row]:
        warm_search()
        path = shared.path_of(self.file)
        table = read_table(path)
        live = live_bytes(path)

        def row(asked: str, rule: str, found: tuple[Packing, Seconds], capacity: int | None = None) -> PackRow:
            packing, seconds = found
            table.check(packing)
            return PackRow(
                self.name,
                asked,
                len(table.rows),
                live,
                packing.top_bytes,
                packing.bound_bytes,
                rule,
                packing.nodes,
                seconds,
                capacity,
            )

        for rule, order, best in RULES if self.rules else ():
            once = partial(pack_once, table.intervals, order=order, best=best)
            yield row(rule, rule, least_of(bench.repeat, "pack", once))
        for capacity in self.capacities:
            for effort in self.efforts if capacity is None else (4.0,):
                found = least_of(bench.repeat, "pack", partial(pack, table.intervals, capacity=capacity, effort=effort))
                asked = f"smallest, effort {effort:g}" if capacity is None else f"within {capacity}"
                yield row(asked, found[0].rule, found, capacity)
        if self.peer is not None:
            yield PeerRow(
                self.name,
                "MiniMalloc",
                f"within {self.capacities[0]}",
                "measured in the shared notes on allocation, section 1",
                arena_bytes=self.capacities[0],
                cpu={"pack": self.peer},
            )


@final
@dataclass(frozen=True)
class PlanTables(OnSubject):
    """The buffers of plans made for live bytes, packed by "auto".

    Args:
        budgets: where nothing fits one, the least that works is planned.
    """

    budgets: tuple[BudgetText | None, ...]
    strategy: str = "auto"
    size: Size = "normal"

    def rows(self, bench: Bench) -> Iterator[Row]:
        warm_search()
        graph, memory = bench.graph(self.subject).graph, self.subject.memory
        allocator = find_allocator("auto")[1]
        for budget in self.budgets:
            clock = Clock()
            planned = partial(
                clock.timed("plan", planner.optimize), graph, strategy=self.strategy, allocator=None, memory=memory
            )
            asked = LEAST if budget is None else str(budget)
            try:
                plan = planned(budget)
            except planner.InfeasibleBudget as error:
                asked = f"least that works, not {budget}"
                plan = planned(error.minimum)
            allocation, seconds = least_of(
                bench.repeat, "pack", partial(allocator, plan.graph, plan.schedule, memory=memory)
            )
            trace = planner.simulate(plan.graph, plan.schedule, memory=memory, allocation=allocation)
            yield PackRow(
                self.name,
                f"{asked}, {self.strategy}",
                len(allocation.buffers),
                trace.peak_bytes,
                allocation.arena_bytes,
                allocation.bound_bytes or 0,
                "auto",
                0,
                {**least([clock.seconds]), **seconds},
            )
