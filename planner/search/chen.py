"""Chen, Xu, Zhang and Guestrin 2016: sqrt(n) segments (4.2), and the budget search of Alg. 3 and appendix A.

Both cut the forward pass at candidate tensors, keep those and the last segment, and run the rest a second time just before the
backward op that needs it. They differ in which cuts they try.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from planner.analysis.articulation import ForwardPart, forward_part
from planner.analysis.bounds import infeasible
from planner.analysis.encode import Flags, Ints
from planner.analysis.liveness import Evaluator, evaluator_of
from planner.errors import TimeLimit
from planner.kernels.segments import recompute_once, threshold_cuts
from planner.problem import Problem, Proposal

Cuts = tuple[int, ...]


class Candidate(NamedTuple):
    """One evaluated set of cuts; () is keep-all."""

    peak_bytes: int
    cost: float
    cuts: Cuts


def chen_sqrt(problem: Problem) -> Proposal:
    """Cut the forward pass into about sqrt(n) segments of equal bytes, n being the number of candidate cuts.

    The balance that needs O(sqrt(n)) memory for one extra forward pass on a chain of equal layers.

    Raises:
        InfeasibleBudget: neither these segments nor keep-all fit.
    Source: Chen et al. 2016, 4.2. Ours differs: the last segment is never recomputed, segments are balanced in bytes
        over the candidates there are, and keep-all is taken where it is no worse.
    """
    trials = _Trials(problem, "chen-sqrt")
    if trials.part is not None:
        trials.evaluate(_equal_cuts(trials.part))
    return trials.proposal()


def chen_budget(problem: Problem, *, sweeps: int = 64) -> Proposal:
    """Cut the forward pass into segments whose own activations fit a threshold, and sweep the threshold.

    Cost against threshold is not monotone, so every candidate is evaluated exactly. Of each threshold's cuts, a prefix can
    do: everything after its last cut is then kept, which is cheaper and larger; the shortest prefix that fits is found by
    bisection.

    Args:
        sweeps: thresholds tried at effort 1; O(sweeps * log(cuts) * ops).
    Raises:
        InfeasibleBudget: no threshold fits; carries the least peak seen, in bytes.
    Source: Chen et al. 2016, Alg. 3 and appendix A. Ours differs: the last segment is never recomputed, prefixes of the
        cuts are tried, and thresholds are judged by exact peak, not by x + y.
    """
    trials = _Trials(problem, "chen-budget")
    part = trials.part
    if part is None or not len(part.gap_bytes):
        return trials.proposal()
    count = max(8, round(sweeps * problem.effort))
    thresholds = sorted({*_appendix_thresholds(part), *_spread_thresholds(part, count)})
    try:
        for threshold in thresholds:
            trials.try_threshold(threshold)
        for _ in range(2):  # finer between the neighbours of the best threshold
            place = thresholds.index(trials.best_threshold) if trials.best_threshold in thresholds else 0
            low, high = thresholds[max(0, place - 1)], thresholds[min(len(thresholds) - 1, place + 1)]
            finer = {low + (high - low) * k // 9 for k in range(1, 9)} - set(thresholds)
            for threshold in sorted(finer):
                trials.try_threshold(threshold)
            thresholds = sorted({*thresholds, *finer})
    except KeyboardInterrupt:  # Ctrl-C keeps the best plan so far
        if trials.best is None:
            raise
        trials.cut_short = True
    return trials.proposal()


def _equal_cuts(part: ForwardPart) -> Cuts:
    """Cuts nearest to the ends of k equal segments in bytes, k = round(sqrt(candidates)); the last segment stays open."""
    reached = np.cumsum(part.gap_bytes)
    if not len(reached):
        return ()
    segments = max(1, round(math.sqrt(len(reached))))
    total = int(reached[-1]) + part.tail_bytes
    ideal = [total * k / segments for k in range(1, segments)]
    return tuple(sorted({int(np.argmin(np.abs(reached - goal))) for goal in ideal}))


def _alg3(part: ForwardPart, threshold: int) -> tuple[Cuts, int, int]:
    """Alg. 3 at one threshold: cuts, x = kept bytes, y = bytes of the largest closed segment."""
    cuts = np.empty(len(part.gap_bytes), dtype=np.int64)
    count, kept, largest = threshold_cuts(part.gap_bytes, part.cut_bytes, threshold, cuts)
    return tuple(cuts[:count].tolist()), kept, largest


def _appendix_thresholds(part: ForwardPart) -> set[int]:
    """Appendix A: B = 0 gives x and y, then B = sqrt(x y), then six points from B / sqrt(2) to sqrt(2) B."""
    _, kept, largest = _alg3(part, 0)
    first = math.isqrt(kept * largest)
    return {0, first, *(round(first * 2 ** (k / 5 - 0.5)) for k in range(6))}


def _spread_thresholds(part: ForwardPart, count: int) -> set[int]:
    """Thresholds from the smallest gap to the whole forward pass: evenly in the logarithm, and 1, 2, 3, ... equal segments."""
    total = int(part.gap_bytes.sum()) + part.tail_bytes
    low = max(1, int(part.gap_bytes.min()))
    ratio = max(1.0, total / low)
    spread = {round(low * ratio ** (k / (count - 1))) for k in range(count)}
    return spread | {total // k for k in range(1, count // 2 + 1)}


class _Trials:
    """Evaluates cuts, remembers the best, and turns it into a proposal."""

    def __init__(self, problem: Problem, name: str) -> None:
        self.problem, self.name = problem, name
        self.evaluator: Evaluator = evaluator_of(problem.graph, problem.memory)
        self.part = forward_part(problem.graph, self.evaluator.encoded)
        self.seen: dict[Cuts, Candidate | None] = {}
        self.best: Candidate | None = None
        self.least: Candidate | None = None
        self.best_threshold = -1
        self.cut_short = False
        if self.part is not None:
            self._rerun_cost = np.where(self._rerun(), self.evaluator.encoded.arrays.cost, 0.0)
        self.evaluate(())

    def evaluate(self, cuts: Cuts) -> Candidate | None:
        """Peak and cost of some cuts, or None where they make an illegal schedule."""
        if cuts in self.seen:
            return self.seen[cuts]
        outcome = self.evaluator.evaluate(self.sequence(cuts))
        candidate = None if outcome is None else Candidate(*outcome, cuts)
        self.seen[cuts] = candidate
        if candidate is not None:
            if self.least is None or candidate[:2] < self.least[:2]:
                self.least = candidate
            if self.fits(candidate) and (self.best is None or self._rank(candidate) < self._rank(self.best)):
                self.best = candidate
        return candidate

    def fits(self, candidate: Candidate) -> bool:
        """Within the budget, if there is one."""
        return self.problem.budget is None or candidate.peak_bytes <= self.problem.budget

    def _rank(self, candidate: Candidate) -> tuple[float, float]:
        """A budget asks for least cost, none for least peak."""
        if self.problem.budget is None:
            return candidate.peak_bytes, candidate.cost
        return candidate.cost, candidate.peak_bytes

    def try_threshold(self, threshold: int) -> None:
        """The cuts of one threshold, and where they fit, the shortest prefix of them that does."""
        if self.problem.out_of_time:
            self.cut_short = True
            return
        assert self.part is not None
        before = self.best
        cuts = _alg3(self.part, threshold)[0]
        whole = self.evaluate(cuts)
        if self.problem.budget is None:
            for shorter in (cuts[:-1], cuts[:-2]):
                self.evaluate(shorter)
        elif whole is not None and self.fits(whole):
            self._bisect(cuts)
        if self.best is not before:
            self.best_threshold = threshold

    def _bisect(self, cuts: Cuts) -> None:
        """The shortest prefix that fits, unless even the longest one cheaper than the best plan does not."""
        too_few, enough = -1, len(cuts)
        assert self.part is not None
        assert self.best is not None
        keep_all_cost = float(self.evaluator.encoded.arrays.cost[self.evaluator.keep_all].sum())
        cheaper = max(0, int(np.searchsorted(self._prefix_costs(cuts), self.best.cost - keep_all_cost)) - 1)
        if cheaper < len(cuts):
            candidate = self.evaluate(cuts[:cheaper])
            if candidate is None or not self.fits(candidate):
                return
            enough = cheaper
        while enough - too_few > 1:
            middle = (too_few + enough) // 2
            candidate = self.evaluate(cuts[:middle])
            if candidate is not None and self.fits(candidate):
                enough = middle
            else:
                too_few = middle

    def _prefix_costs(self, cuts: Cuts) -> list[float]:
        """About what recomputing costs with the first 0, 1, 2, ... of the cuts: all ops before the last, members apart."""
        assert self.part is not None
        costs = [0.0]
        reached = np.cumsum(self._rerun_cost)
        saved = 0.0
        for cut in cuts:
            saved += float(self._rerun_cost[list(self.part.members[cut])].sum())
            costs.append(max(costs[-1], float(reached[self.part.position[cut]]) - saved))
        return costs

    def sequence(self, cuts: Cuts) -> Ints:
        """Op rows of the plan that keeps these cuts and everything after the last."""
        evaluator, part = self.evaluator, self.part
        if not cuts or part is None:
            return evaluator.keep_all
        mirrored = part.droppable.copy()
        mirrored[part.position[cuts[-1]] + 1 :] = False
        for cut in cuts:
            mirrored[list(part.members[cut])] = False
        sequence = np.empty(2 * len(evaluator.keep_all), dtype=np.int64)
        length = recompute_once(evaluator.encoded.arrays, evaluator.keep_all, mirrored, part.origin, sequence)
        return sequence[:length]

    def _rerun(self) -> Flags:
        """Ops that run again when everything droppable is dropped."""
        assert self.part is not None
        arrays, keep_all = self.evaluator.encoded.arrays, self.evaluator.keep_all
        sequence = np.empty(2 * len(keep_all), dtype=np.int64)
        length = recompute_once(arrays, keep_all, self.part.droppable, self.part.origin, sequence)
        runs: Flags = np.bincount(sequence[:length], minlength=len(arrays.cost)) > 1
        return runs

    def proposal(self) -> Proposal:
        """The best plan found.

        Raises:
            InfeasibleBudget: none fits.
            TimeLimit: none fits among those the deadline left time for.
        """
        problem = self.problem
        if self.best is None and self.cut_short:
            raise TimeLimit(f"{self.name!r} found no plan within the budget before the time limit; raise the limit or the budget")
        if self.best is None:
            least = None if self.least is None else self.least.peak_bytes + problem.memory.reserve
            budget = (problem.budget or 0) + problem.memory.reserve
            raise infeasible(problem.graph, problem.memory, budget=budget, minimum=least, found_by=self.name)
        return Proposal(self.evaluator.schedule(self.sequence(self.best.cuts)), cut_short=self.cut_short)

