"""Repair plans that exceed the budget, then make them cheaper by pruning reruns and by ruin and recreate."""

from __future__ import annotations

import math
from hashlib import blake2b
from typing import Final

import numpy as np

from planner.analysis.arrays import Ints
from planner.bounds.peak import peak_lower_bound
from planner.search.evict import Eviction
from planner.search.incumbent import Evaluation, Incumbent

_REPAIRS: Final = 64  # evictions in one sequence
_IN_VAIN: Final = 8  # evictions in a row after which no less is above the budget, and it is over
_PATIENCE: Final = 6  # moves without gain, per rerun of the sequence
_DEAREST: Final = 4.0  # a plan of least peak may cost so many runs of every op
_SMALLEST_STEP: Final = 1 / 128  # of the least peak


class Repair:
    """Changes sequences of ops; each one that fits is offered to the incumbent."""

    def __init__(self, incumbent: Incumbent) -> None:
        self.incumbent = incumbent
        self.evaluator = incumbent.evaluator
        self.eviction = Eviction(incumbent.evaluator)
        self._cost = self.evaluator.encoded.arrays.cost
        self.best: Ints | None = None
        self.best_candidate: Evaluation | None = None

    def enter(self, sequence: Ints) -> Evaluation | None:
        """Evaluate a sequence; remember it if it is the best that fits."""
        candidate = self.incumbent.evaluate(blake2b(sequence.tobytes()).digest(), lambda: sequence)
        if candidate is not None and self.incumbent.best == candidate and candidate != self.best_candidate:
            self.best, self.best_candidate = sequence, candidate
        return candidate

    def repair(self, sequence: Ints, budget: int, limit: float, draw: np.random.Generator | None = None) -> Ints | None:
        """Evict at the highest step until the sequence fits; None if that fails or would cost `limit` or more.

        Given up by progress: what lies above the budget, in bytes times steps, must fall again and again.
        """
        least_above, in_vain = math.inf, 0
        for _ in range(_REPAIRS):
            timeline = self.eviction.timeline(sequence)
            if timeline is None or self.incumbent.stop():
                return None
            step = int(np.argmax(timeline))
            if timeline[step] <= budget:
                return sequence if self.enter(sequence) is not None else None
            above = float(np.maximum(timeline - budget, 0).sum())
            in_vain = 0 if above < least_above else in_vain + 1
            if in_vain == _IN_VAIN:
                return None
            least_above = min(least_above, above)
            evicted = self.eviction.evict_at_peak(sequence, step, int(timeline[step]) - budget, draw=draw)
            if evicted is None or self._cost[evicted].sum() >= limit:
                return None
            sequence = evicted
        return None

    def reduce_peak(self, starts: list[Ints]) -> None:
        """Ask for less than the least peak so far, in ever smaller steps, until no start can be repaired."""
        limit = _DEAREST * float(self._cost[self.evaluator.keep_all].sum())
        floor = peak_lower_bound(self.incumbent.problem.graph, self.incumbent.problem.memory).nbytes
        step = 0.25
        while self.best_candidate is not None and step >= _SMALLEST_STEP and not self.incumbent.stop():
            if self.incumbent.enough:
                return
            peak = self.best_candidate.peak_bytes
            target = max(floor, peak - max(1, int(step * peak)))
            some = {start.tobytes(): start for start in (self.best, *starts) if start is not None}
            if peak <= floor or all(self.repair(start, target, limit) is None for start in some.values()):
                step /= 2

    def prune(self, moves: int) -> None:
        """Leave reruns out of the best sequence while it fits: half of them at a time, then ever fewer."""
        share = 2
        while self.best is not None:
            rerun = reruns(self.best)
            length = max(1, len(rerun) // share)
            start = 0
            while start < len(rerun):
                if moves <= 0 or self.incumbent.stop():
                    return
                moves -= 1
                shorter = np.delete(self.best, rerun[start : start + length])
                if self.enter(shorter) is not None and self.best is shorter:
                    rerun = reruns(self.best)
                else:
                    start += length
            if length <= 1:
                break
            share *= 2

    def ruin_and_recreate(self, sequence: Ints, moves: int, seed: int, bound: float) -> None:
        """Leave out a random stretch of reruns, repair the sequence, and go on from it if it is cheaper.

        Args:
            moves: stretches tried.
            seed: of the stretches and of the variation of costs.
            bound: stop at this cost, which no plan goes below.
        """
        draw = np.random.default_rng(abs(seed))
        budget = self.incumbent.problem.budget
        assert budget is not None
        patience = 0
        cost = float(self._cost[sequence].sum())
        rerun = reruns(sequence)
        for _ in range(moves):
            if cost <= bound or self.incumbent.stop() or not len(rerun):
                return
            if patience > _PATIENCE * (len(rerun) + _PATIENCE):
                return
            length = max(1, int(len(rerun) ** draw.random()))
            start = int(draw.integers(len(rerun) - length + 1))
            shorter = np.delete(sequence, rerun[start : start + length])
            found = self.repair(shorter, budget, cost, draw if draw.random() < 0.8 else None)
            patience += 1
            if found is not None:
                patience = 0
                sequence, cost, rerun = found, float(self._cost[found].sum()), reruns(found)


def reruns(sequence: Ints) -> Ints:
    """Steps whose op ran before."""
    order = np.argsort(sequence, kind="stable")
    ordered = sequence[order]
    return np.sort(order[np.diff(ordered, prepend=-1) == 0])
