"""Strategy "cuts": a minimum cut decides which values to keep where the program turns to the backward pass."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise, product
from typing import Final, NamedTuple

import msgspec
import numpy as np

from planner.analysis.arrays import BACKWARD, Flags, Ints
from planner.analysis.candidates import touches_updated
from planner.bounds.certificate import certified_cost
from planner.bounds.cut import Instant, Storages, storages_of
from planner.errors import PlannerError
from planner.kernels.segments import threshold_cuts
from planner.problem import Problem, Proposal
from planner.search.evict import with_views
from planner.search.incumbent import Evaluation, Incumbent
from planner.search.recursive import recursive
from planner.search.repair import Repair

_CUTS: Final = 12  # prices tried for one set of checkpoints
_FINER: Final = 12  # more prices around the budget
_MOST_CROSSING: Final = 16
_STEEPNESS: Final = (0.0, 0.8, 0.95)  # how much more a byte counts against a threshold, the later it is made
_THRESHOLDS: Final = 16  # sets of checkpoints tried for one kind of candidate
_LEAST_SETS: Final = 10  # sets of checkpoints swept in any case
_SWEPT_ROWS: Final = 1_000_000  # most ops in all sets swept, at effort 1
_MOVES: Final = 400  # stretches exchanged between plans, and as many pruned, at effort 1
_ROWS: Final = 3_000_000  # most ops looked at for them
_RENEWALS: Final = 250  # moves of ruin and recreate from one plan, at effort 1
_RENEWED_ROWS: Final = 250_000  # most ops looked at for them
_WORTH: Final = 1.05  # repaired plans may cost so many times the best
_OTHERS: Final = 2  # repaired plans, besides the best, from which ruin and recreate starts
_CLOSE: Final = 1e-5  # relative gap to the bound at which the search ends


class _Plan(NamedTuple):
    """Ops to run again, and what that plan takes."""

    rerun: Flags
    candidate: Evaluation


class _Vertex(NamedTuple):
    """A vertex of the hull of (live bytes, cost): a cut and its plan."""

    live_bytes: int
    cost: int
    plan: _Plan


def cuts(problem: Problem) -> Proposal:
    """Keep what a minimum cut keeps at a price per byte, and run the rest again just in time.

    The cuts over all prices are the lower hull of kept bytes and recomputed cost, for plans that run an op at most
    twice. A long stretch that is dropped exceeds the budget when it runs again; so checkpoints are kept in any case, as
    few as leave no stretch above a threshold, for many thresholds. Plans on both sides of the budget are mixed, then
    repaired and made cheaper. Every plan is judged by its exact peak.

    Raises:
        InfeasibleBudget: nothing tried fits; carries the least peak seen, in bytes.
    Source: ours; `papers/decisions/0006-cut-certificate.md`.
    """
    incumbent = Incumbent(problem, "cuts")
    if problem.budget is None or incumbent.best is None:
        _Cuts(incumbent).run()
    return incumbent.proposal()


class _Cuts:
    """Plans by the set of ops that run again, each made again after the first backward op (the turn)."""

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
        self.stuck = touches_updated(arrays)
        self._rerunnable = self.before & arrays.recomputable & ~self.stuck
        self.plans: dict[Evaluation, _Plan] = {}
        self.keep_all = self.judged(np.zeros(len(rows), dtype=np.bool_))

    def run(self) -> None:
        """Sweep sets of checkpoints, repair plans that do not fit, and make the best cheaper."""
        problem = self.incumbent.problem
        bound = 0.0
        if problem.budget is not None:
            bound = certified_cost(problem.graph, problem.memory, problem.budget, stop=problem.stop).cost
        sets = list(self._checkpoints())
        # In the order of reversed bits, so that the first few are spread over all.
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
        """Without a budget: reduce the peak of the best plan, keep-all and the deepest recursion."""
        assert self.incumbent.best is not None
        repair.enter(self.sequence(self.plans[self.incumbent.best].rerun))
        repair.reduce_peak([self.evaluator.keep_all, *self._nested()])

    def _cheapen(self, repair: Repair, budget: int, bound: float) -> None:
        """With a budget: mix, exchange, repair and prune, until no plan can be much cheaper."""
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
            start = repair.best if turn < 2 else others[turn - 2]
            repair.ruin_and_recreate(start, renewals, self.incumbent.problem.seed + turn, bound)
        repair.prune(moves)

    def _done(self, bound: float) -> bool:
        """True if the best plan costs at most `_CLOSE` more than the bound; without a budget, if its peak is enough."""
        best = self.incumbent.best
        if self.incumbent.problem.budget is None:
            return self.incumbent.enough
        return best is not None and best.cost <= bound * (1 + _CLOSE)

    def _nested(self) -> list[Ints]:
        """A plan that runs ops more than twice: that of "recursive", whether it fits or not."""
        problem = msgspec.structs.replace(self.incumbent.problem, budget=None)
        try:
            return [self.evaluator.sequence(recursive(problem).schedule)]
        except PlannerError:
            return []

    def _checkpoints(self) -> Iterator[Flags]:
        """Ops kept in any case: none; then, by kind of candidate cut, as few as leave no stretch above a threshold.

        All kept values are still live where the backward pass starts, so late stretches have less room: a byte also
        counts more the later it is made.
        """
        nothing = np.zeros(len(self.before), dtype=np.bool_)
        yield nothing
        seen: set[bytes] = set()
        for most_crossing, steepness in product((1, _MOST_CROSSING), _STEEPNESS):
            part = self.evaluator.forward_part(most_crossing=most_crossing)
            if part is None or not len(part.members):
                continue
            reached = np.cumsum(part.gap_bytes)
            share = reached / max(1, int(reached[-1]) + part.tail_bytes)
            counted = (part.gap_bytes / (1 - steepness * share)).astype(np.int64)
            highest, lowest = max(1, int(counted.sum())), max(1, int(counted.min()))
            for threshold in np.geomspace(highest, lowest, _THRESHOLDS).astype(np.int64).tolist():
                chosen = np.empty(len(counted), dtype=np.int64)
                count = threshold_cuts(counted, part.cut_bytes, threshold - 1, chosen)[0]
                kept = nothing.copy()
                for cut in chosen[:count].tolist():
                    kept[list(part.members[cut])] = True
                if kept.tobytes() not in seen:
                    seen.add(kept.tobytes())
                    yield kept

    def sweep(self, fixed: Flags) -> None:
        """Find the vertices of one hull, more around the budget, and mix neighbours on both sides of it."""
        live_here = np.zeros(len(self.storages.storage_rep), dtype=np.bool_)
        held = fixed | self.stuck
        instant = Instant(self.storages, before=self.before, after=self.after, live_here=live_here, fixed=held)
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
        return None if plan is None else _Vertex(cut.live_bytes, cut.rerun_cost, plan)

    def _straddle(self, low: _Plan, high: _Plan) -> bool:
        """True if only the dearer plan fits."""
        fits = self.incumbent.fits
        return not fits(low.candidate) and fits(high.candidate) and low.candidate.cost < high.candidate.cost

    def judged(self, rerun: Flags) -> _Plan | None:
        """The plan in which these ops run again, and the views of what they make; None if it is illegal."""
        rerun = with_views(self.storages, rerun & self.before, self._rerunnable)
        candidate = self.incumbent.evaluate(np.packbits(rerun).tobytes(), lambda: self.sequence(rerun))
        return None if candidate is None else self.plans.setdefault(candidate, _Plan(rerun, candidate))

    def sequence(self, rerun: Flags) -> Ints:
        """Op rows: each dropped value is made again just before its first reader after the turn."""
        return self.evaluator.just_in_time(rerun.astype(np.int64), self.before)

    def mix(self, low: _Plan, high: _Plan) -> None:
        """Join one plan up to a row with the other after it, both ways round, with as much of `low` as fits."""
        differ = np.flatnonzero(low.rerun != high.rerun)
        for first in (False, True):
            enough, too_many = 0, len(differ)
            while too_many - enough > 1 and not self.incumbent.stop():
                middle = (enough + too_many) // 2
                rows = differ[:middle] if first else differ[len(differ) - middle :]
                mixed = self.judged(_with(high.rerun, low.rerun, rows))
                if mixed is not None and self.incumbent.fits(mixed.candidate):
                    enough = middle
                else:
                    too_many = middle

    def _exchange(self, most: int) -> None:
        """Put stretches of cheaper plans into the best plan while it fits: halves first, then ever shorter ones."""
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
        """A few of the plans above the budget that no other plan beats in both cost and peak."""
        above = sorted(plan.candidate for plan in self.plans.values() if not self.incumbent.fits(plan.candidate))
        edge: list[_Plan] = []
        for candidate in above:
            if not edge or candidate.cost < edge[-1].candidate.cost:
                edge.append(self.plans[candidate])
        return [*edge[:: max(1, len(edge) // 6)], edge[-1]] if edge else []


def _with(base: Flags, other: Flags, rows: Ints) -> Flags:
    """A set of reruns with the choices of another at some rows."""
    mixed: Flags = base.copy()
    mixed[rows] = other[rows]
    return mixed


def _turn(storages: Storages) -> int:
    """The row of the first backward op, where the program turns from making values to using them up."""
    backward = np.flatnonzero(storages.arrays.phase == BACKWARD)
    return int(backward[0]) if len(backward) else len(storages.arrays.phase)
