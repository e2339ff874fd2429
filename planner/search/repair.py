"""From plans near the budget to plans within it, and from those to cheaper ones: relieve peaks, leave reruns out,
relieve again.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

import numpy as np

from planner.analysis.arrays import Ints
from planner.bounds.peak import peak_lower_bound
from planner.search.evict import Relief
from planner.search.incumbent import Candidate, Trials

_REPAIRS: Final = 40  # peaks relieved in one sequence
_PATIENCE: Final = 6  # moves without gain, by rerun
_DEAREST: Final = 4.0  # runs of everything that a plan of least peak may cost
_SMALLEST_STEP: Final = 1 / 128  # of the least peak


class Refinement:
    """Works on sequences of ops; every one that fits is entered in the ledger.

    Args:
        trials: the ledger.
    """

    def __init__(self, trials: Trials) -> None:
        self.trials = trials
        self.evaluator = trials.evaluator
        self.relief = Relief(trials.evaluator)
        self._cost = self.evaluator.encoded.arrays.cost
        self.best: Ints | None = None
        self.best_candidate: Candidate | None = None

    def enter(self, sequence: Ints) -> Candidate | None:
        """Judge a sequence; remember it if it is the best that fits."""
        candidate = self.trials.evaluate(blake2b(sequence.tobytes()).digest(), lambda: sequence)
        if candidate is not None and self.trials.best == candidate and candidate != self.best_candidate:
            self.best, self.best_candidate = sequence, candidate
        return candidate

    def fit(self, sequence: Ints, budget: int, limit: float, draw: np.random.Generator | None = None) -> Ints | None:
        """The sequence with its highest peak relieved until all is within the budget; None where it would cost a limit
        or more.
        """
        for _ in range(_REPAIRS):
            timeline = self.relief.timeline(sequence)
            if timeline is None or self.trials.stop():
                return None
            step = int(np.argmax(timeline))
            if timeline[step] <= budget:
                return sequence if self.enter(sequence) is not None else None
            relieved = self.relief.relieved(sequence, step, int(timeline[step]) - budget, draw=draw)
            if relieved is None or self._cost[relieved].sum() >= limit:
                return None
            sequence = relieved
        return None

    def lower(self, starts: list[Ints]) -> None:
        """Without a budget: ask for less than the least peak so far, in ever smaller steps, until nothing gives."""
        limit = _DEAREST * float(self._cost[self.evaluator.keep_all].sum())
        floor = peak_lower_bound(self.trials.problem.graph, self.trials.problem.memory).nbytes
        step = 0.25
        while self.best_candidate is not None and step >= _SMALLEST_STEP and not self.trials.stop():
            peak = self.best_candidate.peak_bytes
            target = max(floor, peak - max(1, int(step * peak)))
            if peak <= floor or all(
                self.fit(start, target, limit) is None for start in [self.best, *starts] if start is not None
            ):
                step /= 2

    def thin(self, moves: int) -> None:
        """Leave reruns out of the best sequence, halves of them first, then ever fewer, while it fits."""
        share = 2
        while self.best is not None:
            again = reruns(self.best)
            length = max(1, len(again) // share)
            start = 0
            while start < len(again):
                if moves <= 0 or self.trials.stop():
                    return
                moves -= 1
                shorter = np.delete(self.best, again[start : start + length])
                if self.enter(shorter) is not None and self.best is shorter:
                    again = reruns(self.best)
                else:
                    start += length
            if length <= 1:
                break
            share *= 2

    def renew(self, sequence: Ints, moves: int, seed: int, bound: float) -> None:
        """Leave a stretch of reruns out of a sequence that fits and relieve what no longer does; go on from what is
        cheaper.

        Args:
            moves: stretches tried.
            seed: of which stretches, and of costs taken a little higher or lower than they are.
            bound: stop at this cost, which no plan goes below.
        """
        draw = np.random.default_rng(abs(seed))
        budget = self.trials.problem.budget
        assert budget is not None
        patience = 0
        cost = float(self._cost[sequence].sum())
        again = reruns(sequence)
        for _ in range(moves):
            if cost <= bound or self.trials.stop() or patience > _PATIENCE * (len(again) + _PATIENCE) or not len(again):
                return
            length = max(1, int(len(again) ** draw.random()))
            start = int(draw.integers(len(again) - length + 1))
            shorter = np.delete(sequence, again[start : start + length])
            found = self.fit(shorter, budget, cost, draw if draw.random() < 0.8 else None)
            patience += 1
            if found is not None:
                patience = 0
                sequence, cost, again = found, float(self._cost[found].sum()), reruns(found)


def reruns(sequence: Ints) -> Ints:
    """Steps whose op ran before."""
    order = np.argsort(sequence, kind="stable")
    ordered = sequence[order]
    repeated = np.concatenate(([False], ordered[1:] == ordered[:-1])) if len(ordered) else np.empty(0, dtype=np.bool_)
    return np.sort(order[repeated])
