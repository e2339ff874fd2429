"""Ours beside the plans of the original, on its networks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import msgspec

import planner
from bench.measure import Bench, Clock, Held, OnSubject, Size, fitting, keeping_all, least, plan_row
from bench.results import GraphRow, PeerRow, PlanRow, Row
from planner.analysis.evaluator import Evaluator
from planner.mxnet.memonger import planned_sequence, search_thresholds
from planner.search import find_strategy


@final
@dataclass(frozen=True)
class AgainstOriginal(OnSubject):
    """The plan of the original on one of its networks, and ours at its bytes and at its cost.

    Its bytes are those of its own allocator, and again those of the same plan packed by ours.

    Args:
        strategies: ours; None: see `Bench.strategies`, but not the original's.
        steps: bisections for the least peak at its cost.
    """

    strategies: tuple[str, ...] | None = None
    steps: int = 10
    size: Size = "normal"

    ITS_BYTES = "bytes of the original"
    ITS_PACKED_BYTES = "bytes of the original's plan in our packing"
    ITS_COST = "cost of the original"

    def rows(self, bench: Bench) -> Iterator[Row]:
        held = bench.graph(self.subject)
        facts = {allocator: held.row(allocator) for allocator in ("nnvm", "auto")}
        yield from facts.values()
        own, packed, cost = self._original(held, facts, bench.repeat)
        yield own
        yield packed
        strategies = self.strategies or tuple(name for name in bench.strategies if name != "memonger")
        for allocator, budget, name in (
            ("nnvm", own.arena_bytes, self.ITS_BYTES),
            ("auto", own.arena_bytes, self.ITS_BYTES),
            ("auto", packed.arena_bytes, self.ITS_PACKED_BYTES),
        ):
            for strategy in strategies:
                yield plan_row(held, strategy, allocator=allocator, budget=budget, repeat=bench.repeat, name=name)
        yield self._at_its_cost(held, cost, own.peak_bytes or 0)

    def _original(self, held: Held, facts: dict[str, GraphRow], repeat: int) -> tuple[PeerRow, PeerRow, float]:
        runs = []
        for _ in range(repeat):
            clock = Clock()
            with clock("encode"):
                evaluator = Evaluator(held.graph, self.subject.memory)
            with clock("search"):
                trials = search_thresholds(held.graph, evaluator)
            runs.append(clock.seconds)
        best = min(trials, key=lambda trial: trial.cost_bytes >> 20)
        sequence = planned_sequence(evaluator, best.keep)
        schedule = evaluator.schedule(sequence)
        trace = planner.simulate(held.graph, schedule, memory=self.subject.memory)
        clock = Clock()
        with clock("allocate"):
            arena_bytes = planner.allocate(held.graph, schedule, memory=self.subject.memory).arena_bytes
        overhead = round(trace.cost / facts["nnvm"].keep_all.cost - 1, 6)
        rows = [
            PeerRow(
                self.subject.name,
                "original",
                budget,
                source,
                self.subject.scope,
                allocator,
                trace.peak_bytes,
                nbytes,
                round(nbytes / facts[allocator].keep_all.arena_bytes, 6),
                overhead,
                cpu,
            )
            for budget, allocator, nbytes, cpu, source in (
                (self.ITS_BYTES, "nnvm", best.cost_bytes, least(runs), "memonger's search and allocator, reproduced"),
                (
                    self.ITS_PACKED_BYTES,
                    "auto",
                    arena_bytes,
                    least([clock.seconds]),
                    "the same plan, packed by our allocator",
                ),
            )
        ]
        return rows[0], rows[1], trace.cost

    def _at_its_cost(self, held: Held, cost: float, its_peak: int) -> PlanRow:
        """Least live bytes found with no more cost: bisection on the budget, starting at its own peak; the result is
        packed.
        """
        clock = Clock()
        best = held.plan(keeping_all, None, None, Clock())
        strategy = find_strategy("auto")[1]
        low, high = best.report.peak_lower_bound, best.report.plan.peak_bytes
        middle = its_peak
        for _ in range(self.steps):
            try:
                plan = held.plan(strategy, None, middle, clock)
            except planner.InfeasibleBudget:
                low = middle
            else:
                if plan.report.plan.cost <= cost * (1 + 1e-12):
                    best, high = plan, plan.report.plan.peak_bytes
                else:
                    low = middle
            middle = (low + high) // 2
            if high - low < 2:
                break
        with clock("allocate"):
            allocation = planner.allocate(held.graph, best.schedule, memory=self.subject.memory)
        row = fitting(self.subject, "auto", "auto", self.ITS_COST, best.report)
        share = round(allocation.arena_bytes / held.row("auto").keep_all.arena_bytes, 6)
        return msgspec.structs.replace(
            row, budget_bytes=None, share=share, arena_bytes=allocation.arena_bytes, cpu=least([clock.seconds])
        )
