"""The incumbent of a search: evaluates sequences, remembers the best that fits, and turns it into a proposal."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, NamedTuple

from planner.analysis.arrays import Ints
from planner.analysis.evaluator import Evaluator, evaluator_of
from planner.bounds.peak import no_plan
from planner.errors import TimeLimit
from planner.problem import Problem, Proposal

RAISE: Final = "raise the limit or the budget"


class Evaluation(NamedTuple):
    """Peak bytes and cost of one sequence of ops."""

    peak_bytes: int
    cost: float


class Incumbent:
    """The best plan so far. Keep-all is tried first, so that nothing worse is ever proposed.

    Args:
        name: of the strategy, for errors.
    """

    def __init__(self, problem: Problem, name: str) -> None:
        self.problem, self.name = problem, name
        self.evaluator: Evaluator = evaluator_of(problem.graph, problem.memory)
        self.best: Evaluation | None = None
        self.cut_short = False
        self._seen: dict[Hashable, Evaluation | None] = {}
        self._best_sequence: Ints = self.evaluator.keep_all
        self._least: Evaluation | None = None
        self.evaluate((), lambda: self.evaluator.keep_all)

    def evaluate(self, key: Hashable, make: Callable[[], Ints]) -> Evaluation | None:
        """Evaluate the op rows that `make` returns, or recall the outcome by key; None if they are illegal."""
        if key in self._seen:
            return self._seen[key]
        sequence = make()
        outcome = self.evaluator.evaluate(sequence)
        candidate = self._seen[key] = None if outcome is None else Evaluation(*outcome)
        if candidate is not None:
            if self._least is None or candidate < self._least:
                self._least = candidate
            if self.fits(candidate) and (self.best is None or self._rank(candidate) < self._rank(self.best)):
                self.best, self._best_sequence = candidate, sequence.copy()
            if self.problem.watch is not None:
                self.problem.watch(self.name, candidate.peak_bytes, candidate.cost, self.fits(candidate))
        return candidate

    def fits(self, candidate: Evaluation | None) -> bool:
        """True if legal and within the budget, if there is one."""
        return candidate is not None and (self.problem.budget is None or candidate.peak_bytes <= self.problem.budget)

    @property
    def enough(self) -> bool:
        """True if the best is as low as the search need go."""
        enough = self.problem.enough_bytes
        return enough is not None and self.best is not None and self.best.peak_bytes <= enough

    def _rank(self, candidate: Evaluation) -> tuple[float, float]:
        """Sort key: cost first under a budget, peak first without one."""
        return candidate if self.problem.budget is None else candidate[::-1]

    def stop(self) -> bool:
        """True, and noted, once the search should end."""
        self.cut_short = self.cut_short or self.problem.stop.now
        return self.cut_short

    def proposal(self) -> Proposal:
        """The best plan found.

        Raises:
            InfeasibleBudget: none fits; carries the least peak seen.
            TimeLimit: none fits among those the deadline left time for.
        """
        if self.best is not None:
            return Proposal(self.evaluator.schedule(self._best_sequence), cut_short=self.cut_short)
        if self.cut_short:
            raise TimeLimit(f"{self.name!r} found no plan within the budget before the time limit; {RAISE}")
        raise no_plan(self.problem, self.name, minimum=None if self._least is None else self._least.peak_bytes)
