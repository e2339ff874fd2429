"""Recomputed cost at a budget, live bytes only: ours, its proven bound, and peers that run here, beside what is to be
reached.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, final

import msgspec
import numpy as np

import planner
from bench import remat
from bench.generators import Parts
from bench.known import BestKnown, verdict
from bench.measure import Bench, Clock, Held, Size, Subject, fitting, infeasible, least, least_of
from bench.peers import PEERS, Peer, Program, program_of
from bench.results import PeerRow, PlanRow, Row, Seconds, most_resident_bytes
from planner.analysis.evaluator import evaluator_of
from planner.bounds.certificate import certified_cost, forget
from planner.memory import MemoryModel
from planner.problem import Order
from planner.search import find_strategy, strategy_names
from planner.units import parse_budget

#: Ours first, then methods of others that are strategies here. One that is not registered is passed over.
STRATEGIES: Final = ("auto", "chen-budget", "chain")
OURS: Final = STRATEGIES[0]
BEST_KNOWN: Final = "best known"
#: Judged without residents: these graphs have none.
_MEMORY: Final = MemoryModel()


class Aim(NamedTuple):
    """A budget, and the overhead in % that is to be reached, or None: any plan within it."""

    budget: str
    percent: float | None
    order: Order = "free"

    @property
    def label(self) -> str:
        return self.budget if self.order == "free" else f"{self.budget}, order pinned"


@final
@dataclass(frozen=True)
class Overheads:
    """One graph of memory model M1 at budgets.

    Args:
        make: the graph as `rematgraph-1` parts.
        limit_seconds: CPU one plan of ours may take.
        strategies: names; in a slow run every registered one, if peers run too.
        peers: whether others run too.
        missing: says why the graph cannot be made here, or None.
    """

    name: str
    make: Callable[[], Parts]
    aims: tuple[Aim, ...]
    limit_seconds: float
    strategies: tuple[str, ...] = STRATEGIES
    peers: bool = True
    missing: Callable[[], str | None] = lambda: None
    size: Size = "normal"

    def case(self, aim: Aim) -> str:
        """Its name in the file of best known plans."""
        return f"{self.name} · {aim.label}"

    def rows(self, bench: Bench) -> Iterator[Row]:
        parts = self.make()
        held = bench.graph(Subject(self.name, lambda: remat.converted(parts)))
        yield held.row(None)
        program = program_of(parts)
        for aim in self.aims:
            one = _One(self, aim, bench, held)
            yield from one.known()
            yield from one.ours()
            if self.peers and aim.order == "free":
                for peer in PEERS:
                    yield from one.peer(peer, program)


class _One:
    """One graph at one budget."""

    def __init__(self, case: Overheads, aim: Aim, bench: Bench, held: Held) -> None:
        self.case, self.aim, self.bench, self.held, self.graph = case, aim, bench, held, held.graph
        self.keep_all = held.row(None).keep_all
        self.budget_bytes = parse_budget(aim.budget, self.keep_all.peak_bytes)

    def known(self) -> Iterator[Row]:
        """The best known plan, if it still holds."""
        plan = self.bench.known.plans.get(self.case.case(self.aim))
        if plan is None:
            return
        if why := verdict(plan, self.graph, self.budget_bytes):
            print(f"best known plan of {self.case.case(self.aim)} is passed over: {why}", file=sys.stderr)
            return
        yield PeerRow(
            self.case.name,
            BEST_KNOWN,
            self.aim.label,
            f"found by {plan.found_by}",
            peak_bytes=plan.peak_bytes,
            share=round(plan.peak_bytes / self.keep_all.peak_bytes, 6),
            overhead=round(plan.overhead, 6),
        )

    def ours(self) -> Iterator[Row]:
        """Plans of strategies; the first with its bound and its target."""
        there = strategy_names()
        asked = there if self.bench.size == "slow" and self.case.peers else self.case.strategies
        for name in (name for name in asked if name in there):
            row = self._plan(name)
            if name == OURS:
                row = self._bounded(row)
                row = msgspec.structs.replace(
                    row,
                    target=None if self.aim.percent is None else round(self.aim.percent / 100, 6),
                    limit_seconds=self.case.limit_seconds,
                    resident_bytes=most_resident_bytes(),
                )
            yield row

    def _plan(self, name: str) -> PlanRow:
        runs: list[Seconds] = []
        costs: list[float] = []
        for _ in range(self.bench.repeat):
            clock = Clock()
            try:
                plan = self.held.plan(find_strategy(name)[1], None, self.budget_bytes, clock, order=self.aim.order)
            except planner.InfeasibleBudget as error:
                row = infeasible(self.held.subject, name, None, self.aim.label, error, self.keep_all)
                return msgspec.structs.replace(row, cpu=least([clock.seconds]))
            runs.append(clock.seconds)
            costs.append(plan.report.plan.cost)
        if len(set(costs)) > 1:
            raise AssertionError(f"{self.case.case(self.aim)}: {name} gave plans of different cost: {costs}")
        self._offer(name, evaluator_of(self.graph, _MEMORY).sequence(plan.schedule))
        return msgspec.structs.replace(
            fitting(self.held.subject, name, None, self.aim.label, plan.report), cpu=least(runs)
        )

    def _bounded(self, row: PlanRow) -> PlanRow:
        """The row with the better of the plan's own bound and the certificate's, and the CPU of the latter."""

        def bounded() -> float:
            forget()
            return certified_cost(self.graph, _MEMORY, self.budget_bytes, plan_cost=row.cost).cost

        bound, seconds = least_of(self.bench.repeat, "bound", bounded)
        proven = max(bound, row.cost_lower_bound or 0.0)
        gap = None if row.cost is None else round((row.cost - proven) / self.keep_all.cost, 6)
        return msgspec.structs.replace(row, cost_lower_bound=proven, gap=gap, cpu={**row.cpu, **seconds})

    def peer(self, peer: Peer, program: Program) -> Iterator[Row]:
        """What a peer finds, judged."""
        if not peer.applies(program) or (self.bench.size == "quick" and not peer.quick):
            return
        if why := peer.missing():
            print(f"left out: {why}", file=sys.stderr)
            return
        ops, seconds = least_of(self.bench.repeat, "search", lambda: peer.method(program, self.budget_bytes))
        row = PeerRow(self.case.name, peer.name, self.aim.label, f"run here: {peer.source}", cpu=seconds)
        if ops is not None:
            cost, peak_bytes = self._offer(peer.name, np.array(ops, dtype=np.int64))
            row = msgspec.structs.replace(
                row,
                peak_bytes=peak_bytes,
                share=round(peak_bytes / self.keep_all.peak_bytes, 6),
                overhead=round(cost / self.keep_all.cost - 1, 6),
            )
        yield row

    def _offer(self, found_by: str, ops: Any) -> tuple[float, int]:
        return self.bench.known.offer(
            self.case.case(self.aim),
            self.graph,
            ops,
            budget_bytes=self.budget_bytes,
            found_by=found_by,
            pinned=self.aim.order == "pinned",
        )


def judged_again(known: BestKnown, cases: list[Overheads]) -> Iterator[tuple[str, str]]:
    """(case, what is wrong or "") of each best known plan of these cases."""
    for case in cases:
        aims = [aim for aim in case.aims if case.case(aim) in known.plans]
        if not aims:
            continue
        if why := case.missing():
            yield case.name, why
            continue
        graph = planner.lower(remat.converted(case.make()))
        evaluator = evaluator_of(graph, _MEMORY)
        peak_bytes = planner.simulate(graph, evaluator.schedule(evaluator.keep_all), memory=_MEMORY).peak_bytes
        for aim in aims:
            plan = known.plans[case.case(aim)]
            why = verdict(plan, graph, parse_budget(aim.budget, peak_bytes))
            yield case.case(aim), why or ("" if plan.pinned == (aim.order == "pinned") else "of another order")
