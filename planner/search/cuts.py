"""Minimum cuts over one instant of the program: what to keep is priced per byte, and what is dropped runs again just in
time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise, product
from typing import Final, NamedTuple

import msgspec
import numpy as np

from planner.analysis.arrays import BACKWARD, Flags, Ints
from planner.bounds.certificate import certified_cost
from planner.bounds.cut import Instant, Storages, storages_of
from planner.errors import PlannerError
from planner.kernels.segments import recompute, threshold_cuts
from planner.problem import Problem, Proposal
from planner.search.evict import touches_updated
from planner.search.incumbent import Evaluation, Incumbent
from planner.search.recursive import recursive
from planner.search.repair import Repair

_CUTS: Final = 12  # over the price, for one set of checkpoints
_FINER: Final = 12  # more of them, around the budget
_MOST_CROSSING: Final = 16
_STEEPNESS: Final = (0.0, 0.8, 0.95)  # of the bytes that count against a threshold, along the forward pass
_THRESHOLDS: Final = 16  # sets of checkpoints tried for one kind of candidate
_LEAST_SETS: Final = 10  # of checkpoints, swept in any case
_SWEPT_ROWS: Final = 1_000_000  # ops in all sets swept, at most, at effort 1
_MOVES: Final = 400  # stretches exchanged between plans, and as many left out, at effort 1
_ROWS: Final = 3_000_000  # and so many ops looked at, at most
_RENEWALS: Final = 250  # peaks relieved anew from one plan, at effort 1
_RENEWED_ROWS: Final = 250_000  # and so many ops looked at, at most
_WORTH: Final = 1.05  # times the best cost: plans from which that is done
_OTHERS: Final = 2
_CLOSE: Final = 1e-5  # to the bound: not worth more search


class _Plan(NamedTuple):
    """A drop set that was judged."""

    rerun: Flags
    candidate: Evaluation


class _Vertex(NamedTuple):
    """A vertex of the hull of (live bytes, cost): a cut, and the plan that drops what it runs again."""

    live_bytes: int
    cost: int
    plan: _Plan


def cuts(problem: Problem) -> Proposal:
    """Keep what a minimum cut keeps at a price per byte, run the rest again just in time, and mix plans to meet the
    budget.

    All cuts over the price are the lower hull of kept bytes and recomputed cost for plans that run an op at most twice.
    Where a long
    stretch is dropped, its own values exceed the budget when it runs again: then checkpoints are kept in any case, as
    few as leave no stretch of more than some bytes, for many such thresholds. Every plan is judged by its exact peak.

    Raises:
        InfeasibleBudget: nothing tried fits; carries the least peak seen, in bytes.
    Source: ours; `papers/decisions/0006-cut-certificate.md`.
    """
    incumbent = Incumbent(problem, "cuts")
    if problem.budget is None or incumbent.best is None:
        _Cuts(incumbent).run()
    return incumbent.proposal()


class _Cuts:
    """Drop sets as candidate sequences, for one place where the program turns from making values to using them up."""

    def __init__(self, incumbent: Incumbent) -> None:
        self.incumbent = incumbent
        self.evaluator = incumbent.evaluator
        problem = incumbent.problem
        self.storages = storages_of(problem.graph, problem.memory)
        arrays = self.storages.arrays
        rows = np.arange(len(arrays.cost))
        turn = _turn(self.storages)
        self.before = (rows < turn) & ~arrays.resident
        self.after = rows >= turn
        self.stuck = touches_updated(self.storages.arrays)
        self.plans: dict[Evaluation, _Plan] = {}
        self._none = np.full(len(rows), -1, dtype=np.int64)
        self.keep_all = self.judged(np.zeros(len(rows), dtype=np.bool_))

    def run(self) -> None:
        """Every set of checkpoints; then what does not fit is relieved until it does, and the best is made cheaper."""
        problem = self.incumbent.problem
        bound = (
            0.0
            if problem.budget is None
            else certified_cost(problem.graph, problem.memory, problem.budget, stop=problem.stop).cost
        )
        sets = list(self._checkpoints())
        # so that fewer of them are spread over all
        spread = sorted(range(len(sets)), key=lambda k: f"{k:b}"[::-1].ljust(20, "0"))
        for k in spread[: max(_LEAST_SETS, round(_SWEPT_ROWS / len(self.before) * problem.effort))]:
            if self.incumbent.stop() or self._done(bound):
                return
            self.sweep(sets[k])
        repair = Repair(self.incumbent)
        if problem.budget is None:
            self._lower(repair)
        else:
            self._cheapen(repair, problem.budget, bound)

    def _lower(self, repair: Repair) -> None:
        """Without a budget: from the plan of least peak, from keep-all and from the deepest recursion."""
        assert self.incumbent.best is not None
        repair.enter(self.sequence(self.plans[self.incumbent.best].rerun))
        repair.reduce_peak([self.evaluator.keep_all, *self._nested()])

    def _cheapen(self, repair: Repair, budget: int, bound: float) -> None:
        """With one: exchange, relieve, leave out, again and again, until no plan can be much cheaper."""
        effort = self.incumbent.problem.effort
        moves = round(min(_MOVES, _ROWS / len(self.before)) * effort)
        for _ in range(2):
            if self.incumbent.best is not None:
                for low in self._edge():
                    if low.candidate.cost < self.incumbent.best.cost and not self._done(bound):
                        self.mix(low, self.plans[self.incumbent.best])
        self._exchange(moves)
        if self.incumbent.best is not None:
            repair.enter(self.sequence(self.plans[self.incumbent.best].rerun))
        starts = [self.sequence(plan.rerun) for plan in self._edge()]
        fitted: list[Ints] = []
        for start in starts if self.incumbent.best is not None else [*starts, *self._nested()]:
            if self._done(bound):
                return
            limit = math.inf if self.incumbent.best is None else _WORTH * self.incumbent.best.cost
            found = repair.repair(start, budget, limit)
            fitted += [] if found is None else [found]
        renewals = round(min(_RENEWALS, _RENEWED_ROWS / len(self.before)) * effort)
        cost = self.storages.arrays.cost
        others = sorted(fitted, key=lambda sequence: float(cost[sequence].sum()))[:_OTHERS]
        for turn in range(2 + len(others)):
            if repair.best is None or self._done(bound):
                return
            repair.prune(moves)
            repair.ruin_and_recreate(
                repair.best if turn < 2 else others[turn - 2], renewals, self.incumbent.problem.seed + turn, bound
            )
        repair.prune(moves)

    def _done(self, bound: float) -> bool:
        """True if the best plan costs at most a hundred-thousandth more than any can."""
        return (
            self.incumbent.problem.budget is not None
            and self.incumbent.best is not None
            and self.incumbent.best.cost <= bound * (1 + _CLOSE)
        )

    def _nested(self) -> list[Ints]:
        """What plans look like that run an op more often: the proposal of "recursive", fitting or not."""
        problem = msgspec.structs.replace(self.incumbent.problem, budget=None)
        try:
            return [self.evaluator.sequence(recursive(problem).schedule)]
        except PlannerError:
            return []

    def _checkpoints(self) -> Iterator[Flags]:
        """Ops kept in any case: none; then, for each kind of candidate cut, as few as leave no stretch above a
        threshold.

        The backward pass starts at the end of the forward one, where all that was kept is still live: stretches that
            end there have
        less room. So bytes are also counted as more the later they are made.
        """
        nothing = np.zeros(len(self.before), dtype=np.bool_)
        yield nothing
        seen: set[bytes] = set()
        for most_crossing, steepness in product((1, _MOST_CROSSING), _STEEPNESS):
            part = self.evaluator.forward_part(most_crossing=most_crossing)
            if part is None or not len(part.members):
                continue
            reached = np.cumsum(part.gap_bytes)
            counted = (part.gap_bytes / (1 - steepness * reached / max(1, int(reached[-1]) + part.tail_bytes))).astype(
                np.int64
            )
            for threshold in (
                np.geomspace(max(1, int(counted.sum())), max(1, int(counted.min())), _THRESHOLDS)
                .astype(np.int64)
                .tolist()
            ):
                chosen = np.empty(len(counted), dtype=np.int64)
                count = threshold_cuts(counted, part.cut_bytes, threshold - 1, chosen)[0]
                kept = nothing.copy()
                for cut in chosen[:count].tolist():
                    kept[list(part.members[cut])] = True
                if kept.tobytes() not in seen:
                    seen.add(kept.tobytes())
                    yield kept

    def sweep(self, fixed: Flags) -> None:
        """The vertices of one hull, those around the budget too, and mixtures of neighbours on both sides of it."""
        live_here = np.zeros(len(self.storages.storage_rep), dtype=np.bool_)
        instant = Instant(
            self.storages, before=self.before, after=self.after, live_here=live_here, fixed=fixed | self.stuck
        )
        if instant.needed_bytes == instant.fixed_bytes or self.keep_all is None:
            return
        last = self._vertex(instant, float(self.storages.most))
        if last is None or last.live_bytes >= instant.needed_bytes:
            return
        hull = [_Vertex(instant.needed_bytes, 0, self.keep_all), last]
        done: set[tuple[int, int]] = set()
        for turn in range(_CUTS + _FINER):
            gaps = [(low, high) for low, high in pairwise(hull) if (low.live_bytes, high.live_bytes) not in done]
            if turn >= _CUTS:
                gaps = [(low, high) for low, high in gaps if self._straddle(low.plan, high.plan)]
            if not gaps or self.incumbent.stop():
                break
            low, high = max(gaps, key=lambda gap: gap[0].live_bytes - gap[1].live_bytes)
            done.add((low.live_bytes, high.live_bytes))
            price = (high.cost - low.cost) / (low.live_bytes - high.live_bytes)
            between = self._vertex(instant, price)
            if between is not None and high.live_bytes < between.live_bytes < low.live_bytes:
                hull.insert(hull.index(high), between)
        for low, high in pairwise(hull):
            if self._straddle(low.plan, high.plan):
                self.mix(low.plan, high.plan)

    def _vertex(self, instant: Instant, price: float) -> _Vertex | None:
        cut = instant.cut(price)
        plan = self.judged(cut.rerun)
        return None if plan is None else _Vertex(cut.live_bytes, cut.again_cost, plan)

    def _straddle(self, low: _Plan, high: _Plan) -> bool:
        """The cheaper one does not fit, the other does."""
        return (
            not self.incumbent.fits(low.candidate)
            and self.incumbent.fits(high.candidate)
            and low.candidate.cost < high.candidate.cost
        )

    def judged(self, rerun: Flags) -> _Plan | None:
        """Peak and cost of the plan that drops what these ops make; None where it is illegal."""
        rerun = self._with_views(rerun & self.before)
        candidate = self.incumbent.evaluate(np.packbits(rerun).tobytes(), lambda: self.sequence(rerun))
        if candidate is None:
            return None
        return self.plans.setdefault(candidate, _Plan(rerun, candidate))

    def _with_views(self, rerun: Flags) -> Flags:
        """Views of what is dropped are dropped too: they would hold its bytes."""
        arrays, storage_rep = self.storages.arrays, self.storages.storage_rep
        on = np.flatnonzero((storage_rep >= 0) & (storage_rep != np.arange(len(storage_rep))))
        makers = arrays.producer[on[rerun[arrays.producer[storage_rep[on]]]]]
        rerun = rerun.copy()
        rerun[makers[self.before[makers] & arrays.recomputable[makers] & ~self.stuck[makers]]] = True
        return rerun

    def sequence(self, rerun: Flags) -> Ints:
        """Op rows: each dropped value made again just before its first reader after the turn."""
        keep_all = self.evaluator.keep_all
        sequence = np.empty(len(keep_all) + int(rerun.sum()), dtype=np.int64)
        length = recompute(self.storages.arrays, keep_all, rerun.astype(np.int64), self.before, self._none, sequence)
        return sequence[:length]

    def mix(self, low: _Plan, high: _Plan) -> None:
        """One plan up to a row and the other after it, both ways round: as much of the cheaper one as fits."""
        differ = np.flatnonzero(low.rerun != high.rerun)
        for first in (False, True):
            enough, too_many = 0, len(differ)
            while too_many - enough > 1 and not self.incumbent.stop():
                middle = (enough + too_many) // 2
                mixed = self.judged(
                    _with(high.rerun, low.rerun, differ[:middle] if first else differ[len(differ) - middle :])
                )
                if mixed is not None and self.incumbent.fits(mixed.candidate):
                    enough = middle
                else:
                    too_many = middle

    def _exchange(self, most: int) -> None:
        """Put stretches of cheaper plans, halves first, then ever shorter, into the best plan, while it fits."""
        tried = 0
        share = 1
        while tried < most and self.incumbent.best is not None:
            best = self.plans[self.incumbent.best]
            edge = [plan for plan in self._edge() if plan.candidate.cost < best.candidate.cost]
            longest = 0
            for other in edge:
                differ = np.flatnonzero(other.rerun != best.rerun)
                longest = max(longest, len(differ))
                length = max(1, len(differ) // (2 * share))
                for start in range(0, len(differ), length):
                    if tried >= most or self.incumbent.stop():
                        return
                    if other.candidate.cost >= best.candidate.cost:
                        break
                    tried += 1
                    mixed = self.judged(_with(best.rerun, other.rerun, differ[start : start + length]))
                    if mixed is not None and self.incumbent.best == mixed.candidate:
                        best = mixed
            if 2 * share > max(1, longest):
                return
            share *= 2

    def _edge(self) -> list[_Plan]:
        """The plans above the budget that no other is both cheaper and smaller than; few."""
        above = sorted(plan.candidate for plan in self.plans.values() if not self.incumbent.fits(plan.candidate))
        edge: list[_Plan] = []
        for candidate in above:
            if not edge or candidate.cost < edge[-1].candidate.cost:
                edge.append(self.plans[candidate])
        return [*edge[:: max(1, len(edge) // 6)], edge[-1]] if edge else []


def _with(base: Flags, other: Flags, rows: Ints) -> Flags:
    """A drop set with the choices of another at some rows."""
    mixed: Flags = base.copy()
    mixed[rows] = other[rows]
    return mixed


def _turn(storages: Storages) -> int:
    """The row at which the program turns: its first backward op."""
    backward = np.flatnonzero(storages.arrays.phase == BACKWARD)
    return int(backward[0]) if len(backward) else len(storages.arrays.phase)
