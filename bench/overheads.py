"""Recomputed cost at a budget, live bytes only: ours, its proven bound, and peers that run here, beside what is to be reached."""

from __future__ import annotations

import gc
import resource
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
from bench.measure import Bench, Clock, Size, Subject, fitting, least
from bench.peers import PEERS, Peer, Program, program_of
from bench.results import PeerRow, PlanRow, Row, Seconds
from planner import Graph
from planner.analysis.certificate import certified_cost
from planner.analysis.liveness import evaluator_of
from planner.memory import MemoryModel
from planner.problem import Order
from planner.report import Figures
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
        absent: says why the graph cannot be made here, or None.
    """

    name: str
    make: Callable[[], Parts]
    aims: tuple[Aim, ...]
    limit_seconds: float
    strategies: tuple[str, ...] = STRATEGIES
    peers: bool = True
    absent: Callable[[], str | None] = lambda: None
    size: Size = "normal"

    def missing(self) -> str | None:
        return self.absent()

    def case(self, aim: Aim) -> str:
        """Its name in the file of best known plans."""
        return f"{self.name} · {aim.label}"

    def rows(self, bench: Bench) -> Iterator[Row]:
        parts = self.make()
        held = bench.graph(Subject(self.name, lambda: remat.converted(parts)))
        facts = held.row(None)
        yield facts
        program = program_of(parts)
        for aim in self.aims:
            one = _One(self, aim, bench, held.graph, facts.keep_all)
            yield from one.known()
            yield from one.ours()
            if self.peers and aim.order == "free":
                for peer in PEERS:
                    yield from one.peer(peer, program)


class _One:
    """One graph at one budget."""

    def __init__(self, case: Overheads, aim: Aim, bench: Bench, graph: Graph, keep_all: Figures) -> None:
        self.case, self.aim, self.bench, self.graph, self.keep_all = case, aim, bench, graph, keep_all
        self.budget_bytes = parse_budget(aim.budget, keep_all.peak_bytes)
        self.subject = Subject(case.name, lambda: remat.converted(case.make()))

    def known(self) -> Iterator[Row]:
        """The best known plan, if it still holds."""
        plan = self.bench.known.plans.get(self.case.case(self.aim))
        if plan is None:
            return
        if why := verdict(plan, self.graph, self.budget_bytes):
            print(f"best known plan of {self.case.case(self.aim)} is passed over: {why}", file=sys.stderr)
            return
        yield PeerRow(
            self.case.name, BEST_KNOWN, self.aim.label, f"found by {plan.found_by}", peak_bytes=plan.peak_bytes,
            share=round(plan.peak_bytes / self.keep_all.peak_bytes, 6), overhead=round(plan.overhead, 6),
        )  # fmt: skip

    def ours(self) -> Iterator[Row]:
        """Plans of strategies; the first with its bound and its target."""
        there = strategy_names()
        asked = there if self.bench.size == "slow" and self.case.peers else self.case.strategies
        for name in (name for name in asked if name in there):
            row = self._plan(name)
            if name == OURS:
                row = self._bounded(row)
                row = msgspec.structs.replace(
                    row, target=None if self.aim.percent is None else round(self.aim.percent / 100, 6),
                    limit_seconds=self.case.limit_seconds, resident_bytes=_most_resident_bytes(),
                )  # fmt: skip
            yield row

    def _plan(self, name: str) -> PlanRow:
        runs: list[Seconds] = []
        costs: list[float] = []
        for _ in range(self.bench.repeat):
            clock = Clock()
            strategy = clock.timed("search", find_strategy(name)[1])
            gc.collect()
            whole = Clock()
            try:
                with whole("plan"):
                    plan = planner.optimize(
                        self.graph, self.budget_bytes, strategy=strategy, allocator=None, memory=_MEMORY, order=self.aim.order
                    )
            except planner.InfeasibleBudget as error:
                minimum = error.minimum or 0
                return PlanRow(
                    self.case.name, "total", name, None, self.aim.label, self.budget_bytes, "infeasible",
                    round(minimum / self.keep_all.peak_bytes, 6), error.peak_lower_bound, _phases(whole, clock), minimum=error.minimum,
                )  # fmt: skip
            runs.append(_phases(whole, clock))
            costs.append(plan.report.plan.cost)
        if len(set(costs)) > 1:
            raise AssertionError(f"{self.case.case(self.aim)}: {name} gave plans of different cost: {costs}")
        self._offer(name, evaluator_of(self.graph, _MEMORY).sequence(plan.schedule))
        return msgspec.structs.replace(fitting(self.subject, name, None, self.aim.label, plan.report), cpu=least(runs))

    def _bounded(self, row: PlanRow) -> PlanRow:
        """The row with the better of the plan's own bound and the certificate's, and the CPU of the latter."""
        runs = []
        for _ in range(self.bench.repeat):
            clock = Clock()
            with clock("bound"):
                bound = certified_cost(self.graph, _MEMORY, self.budget_bytes).cost
            runs.append(clock.seconds)
        proven = max(bound, row.cost_lower_bound or 0.0)
        gap = None if row.cost is None else round((row.cost - proven) / self.keep_all.cost, 6)
        return msgspec.structs.replace(row, cost_lower_bound=proven, gap=gap, cpu={**row.cpu, **least(runs)})

    def peer(self, peer: Peer, program: Program) -> Iterator[Row]:
        """What a peer finds, judged."""
        if not peer.applies(program) or (self.bench.size == "quick" and not peer.quick):
            return
        if why := peer.missing():
            print(f"left out: {why}", file=sys.stderr)
            return
        runs = []
        for _ in range(self.bench.repeat):
            clock = Clock()
            gc.collect()
            ops = clock.timed("search", peer.method)(program, self.budget_bytes)
            runs.append(clock.seconds)
        row = PeerRow(self.case.name, peer.name, self.aim.label, f"run here: {peer.source}", cpu=least(runs))
        if ops is not None:
            cost, peak_bytes = self._offer(peer.name, np.array(ops, dtype=np.int64))
            row = msgspec.structs.replace(
                row, peak_bytes=peak_bytes, share=round(peak_bytes / self.keep_all.peak_bytes, 6),
                overhead=round(cost / self.keep_all.cost - 1, 6),
            )  # fmt: skip
        yield row

    def _offer(self, found_by: str, ops: Any) -> tuple[float, int]:
        return self.bench.known.offer(
            self.case.case(self.aim), self.graph, ops, budget_bytes=self.budget_bytes, found_by=found_by, pinned=self.aim.order == "pinned"
        )


def _phases(whole: Clock, clock: Clock) -> Seconds:
    search = clock.seconds.get("search", 0.0)
    return {"search": round(search, 5), "judge": round(whole.seconds["plan"] - search, 5)}


def _most_resident_bytes() -> int:
    """Of this process so far, whatever else it did."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


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
