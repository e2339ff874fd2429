"""Chen, Xu, Zhang and Guestrin 2016: sqrt(n) segments (4.2), and the budget search of Alg. 3 and appendix A.

Both cut the forward pass at candidate tensors, keep those and the last segment, and run each other op a second time
just before the backward op that needs it. They differ in the cuts they try.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from planner.analysis.arrays import Floats, Ints
from planner.analysis.candidates import ForwardPart, equal_cuts
from planner.kernels.segments import threshold_cuts
from planner.problem import Problem, Proposal
from planner.search.incumbent import Evaluation, Incumbent

Cuts = tuple[int, ...]
_MOST_CROSSING: Final = 16


def chen_sqrt(problem: Problem) -> Proposal:
    """Cut the forward pass into about sqrt(n) segments of equal bytes, n being the number of candidate cuts.

    The balance that needs O(sqrt(n)) memory for one extra forward pass on a chain of equal layers.

    Raises:
        InfeasibleBudget: neither these segments nor keep-all fit.
    Source: Chen et al. 2016, 4.2. Ours differs: the last segment is never recomputed, segments are balanced in bytes
        over the candidates there are, and keep-all is taken if it is no worse.
    """
    incumbent = Incumbent(problem, "chen-sqrt")
    part = incumbent.evaluator.forward_part()
    if part is not None:
        _Segments(incumbent, part).evaluate(equal_cuts(part))
    return incumbent.proposal()


def chen_budget(problem: Problem, *, sweeps: int = 128) -> Proposal:
    """Cut the forward pass into segments whose own activations fit a threshold, and sweep the threshold.

    Cost against threshold is not monotone, so every candidate is evaluated exactly. A prefix of the cuts of a threshold
    keeps everything after its last cut, which is cheaper and larger; bisection finds the shortest prefix that fits.

    Args:
        sweeps: thresholds tried at effort 1; O(sweeps * log(cuts) * ops).
    Raises:
        InfeasibleBudget: no threshold fits; carries the least peak seen, in bytes.
    Source: Chen et al. 2016, Alg. 3 and appendix A. Ours differs: the last segment is never recomputed, prefixes of the
        cuts are tried, thresholds are judged by exact peak, not by x + y, and if a stretch between single tensors makes
        a quarter of the bytes, places crossed by a few tensors are candidates too.
    """
    incumbent = Incumbent(problem, "chen-budget")
    part = incumbent.evaluator.forward_part()
    parts = [] if part is None else [part]
    marked = any(op.stage is not None for op in problem.graph.ops)
    if part is not None and not marked and not _cuts_well(part):
        wide = incumbent.evaluator.forward_part(most_crossing=_MOST_CROSSING)
        parts += [] if wide is None else [wide]
    for some in parts:
        if len(some.gap_bytes):
            _sweep(_Segments(incumbent, some), sweeps * problem.effort)
    return incumbent.proposal()


def _cuts_well(part: ForwardPart) -> bool:
    """True if no stretch without a candidate makes a quarter of all bytes."""
    total = int(part.gap_bytes.sum()) + part.tail_bytes
    return 4 * max(part.tail_bytes, int(part.gap_bytes.max(initial=0))) <= total


def _sweep(segments: _Segments, sweeps: float) -> None:
    """Thresholds over the whole range, then finer between the neighbours of the best."""
    part = segments.part
    # Thresholds differ only if some stretch between two candidates lies between them.
    useful = max(8, len(part.gap_bytes) ** 2)
    count = max(8, int(min(sweeps, useful)))
    thresholds = sorted({*_appendix_thresholds(part), *_spread_thresholds(part, count)})
    for threshold in thresholds:
        segments.try_threshold(threshold)
    for _ in range(2):
        place = thresholds.index(segments.best_threshold) if segments.best_threshold in thresholds else 0
        low, high = thresholds[max(0, place - 1)], thresholds[min(len(thresholds) - 1, place + 1)]
        finer = {low + (high - low) * k // 9 for k in range(1, 9)} - set(thresholds)
        for threshold in sorted(finer):
            segments.try_threshold(threshold)
        thresholds = sorted({*thresholds, *finer})


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
    """Thresholds from the smallest gap to the whole forward pass: geometric, and of 1, 2, 3, ... equal segments."""
    total = int(part.gap_bytes.sum()) + part.tail_bytes
    low = max(1, int(part.gap_bytes.min()))
    ratio = max(1.0, total / low)
    spread = {round(low * ratio ** (k / (count - 1))) for k in range(count)}
    return spread | {total // k for k in range(1, count // 2 + 1)}


class _Segments:
    """Evaluates the plans of cuts."""

    def __init__(self, incumbent: Incumbent, part: ForwardPart) -> None:
        self.incumbent, self.part = incumbent, part
        self.evaluator = incumbent.evaluator
        self.best_threshold = -1
        arrays, keep_all = self.evaluator.encoded.arrays, self.evaluator.keep_all
        self._keep_all_cost = float(arrays.cost[keep_all].sum())
        everything = self.evaluator.just_in_time(part.droppable.astype(np.int64), part.origin)
        runs = np.bincount(everything, minlength=len(arrays.cost))
        # The cost of each op that runs again if everything is dropped.
        self._rerun_cost: Floats = np.where(runs > 1, arrays.cost, 0.0)

    def evaluate(self, cuts: Cuts) -> Evaluation | None:
        """Peak and cost of the plan that keeps these cuts and everything after the last."""
        # By places: candidates at one place keep the same values.
        places = tuple(self.part.position[list(cuts)].tolist())
        return self.incumbent.evaluate(places, lambda: self.sequence(cuts))

    def sequence(self, cuts: Cuts) -> Ints:
        """Its op rows."""
        if not cuts:
            return self.evaluator.keep_all
        counts = self.part.droppable.astype(np.int64)
        counts[self.part.position[cuts[-1]] + 1 :] = 0
        for cut in cuts:
            counts[list(self.part.members[cut])] = 0
        return self.evaluator.just_in_time(counts, self.part.origin)

    def try_threshold(self, threshold: int) -> None:
        """Try the cuts of one threshold, and if they fit, the shortest prefix of them that does."""
        if self.incumbent.stop():
            return
        before = self.incumbent.best
        cuts = _alg3(self.part, threshold)[0]
        whole = self.evaluate(cuts)
        if self.incumbent.problem.budget is None:
            for shorter in (cuts[:-1], cuts[:-2]):
                self.evaluate(shorter)
        elif self.incumbent.fits(whole):
            self._bisect(cuts)
        if self.incumbent.best is not before:
            self.best_threshold = threshold

    def _bisect(self, cuts: Cuts) -> None:
        """Find the shortest prefix that fits, unless even the longest one cheaper than the best plan does not."""
        too_few, enough = -1, len(cuts)
        best = self.incumbent.best
        assert best is not None  # all of the cuts fit
        cheaper = max(0, int(np.searchsorted(self._prefix_costs(cuts), best.cost - self._keep_all_cost)) - 1)
        if cheaper < len(cuts):
            if not self.incumbent.fits(self.evaluate(cuts[:cheaper])):
                return
            enough = cheaper
        while enough - too_few > 1:
            middle = (too_few + enough) // 2
            if self.incumbent.fits(self.evaluate(cuts[:middle])):
                enough = middle
            else:
                too_few = middle

    def _prefix_costs(self, cuts: Cuts) -> list[float]:
        """About the cost of reruns with the first 0, 1, 2, ... cuts: all ops before the last cut but the cuts' own."""
        costs = [0.0]
        reached = np.cumsum(self._rerun_cost)
        saved = 0.0
        for cut in cuts:
            saved += float(self._rerun_cost[list(self.part.members[cut])].sum())
            costs.append(max(costs[-1], float(reached[self.part.position[cut]]) - saved))
        return costs
