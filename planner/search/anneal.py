"""Search over what is dropped, when it is made again, and the order of everything, on any graph.

Starts are made greedily; then random moves, annealed, change one schedule for as long as the effort lasts. Every move
is evaluated as it is made (`kernels.anneal.annealing`), a few microseconds each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from planner.analysis.arrays import Ints
from planner.bounds import enumeration
from planner.bounds.peak import peak_lower_bound
from planner.errors import InfeasibleBudget, TimeLimit
from planner.kernels.anneal.annealing import anneal
from planner.problem import Problem, Proposal, Strategy
from planner.search.block_replay import passes
from planner.search.cuts import cuts
from planner.search.greedy import evictions, orders
from planner.search.incumbent import Evaluation, Incumbent
from planner.search.lifetimes import Runs, first_word, model_of
from planner.search.recursive import recursive

_HUNT: Final = 4  # times more moves, until something fits
_HOT: Final = 0.02  # temperature at the start of a cycle, of the overhead there is
_FLOOR: Final = 1.0  # and at least so much of the mean cost of an op
_COOLING: Final = 300.0  # how much less it is at the end
_SLICES: Final = 16  # of a cycle at least: after each, what is above the budget costs more, or less
_SEVEREST: Final = 2.0**16
_CYCLES: Final = 15  # the default effort is 1 + 2 + 4 + 8 of the shortest


def retention(problem: Problem, *, starts: Sequence[Strategy] = (cuts, recursive)) -> Proposal:
    """Drop, make again and reorder, from the best start there is, by annealing.

    A state is a sequence of runs with canonical frees. Moves: make a value again just before a read, with those inputs
    that would have to wait; leave out a run, and what is then unread; shift a run, with what follows it, or a stretch
    of runs, within what it reads and what reads it. Cycles of cooling grow by doubling, whatever the effort, so that
    more effort only goes on.

    Graphs of at most nine ops are enumerated instead.

    Args:
        starts: strategies whose plans are starts beside the greedy ones.
    Raises:
        InfeasibleBudget: nothing found fits; carries the least peak seen.
    """
    optimum = enumeration(problem)
    if optimum is not None:
        return optimum
    search = _Search(problem)
    if not search.done:
        search.start(starts)
        search.anneal()
    return search.incumbent.proposal()


class _Search:
    """One problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.incumbent = Incumbent(problem, "retention")
        evaluator = self.incumbent.evaluator
        arrays = evaluator.encoded.arrays
        self.keep_all = evaluator.keep_all
        self.ops = len(self.keep_all)
        self.residents = int(arrays.resident_bytes[0])
        self.one_run = float(arrays.cost[self.keep_all].sum())
        self.bound = peak_lower_bound(problem.graph, problem.memory).nbytes
        first = self.incumbent.evaluate((), lambda: self.keep_all)
        assert first is not None
        self.keep_all_peak = first.peak_bytes
        self.severity = 1.0  # what a byte above the budget costs, relative to the least it ever does
        self.margin = 0  # bytes by which the model was found too low
        self.tried = 0
        self.least, self.origin = first, self.keep_all
        if not self.done:
            self.model = model_of(arrays, pinned=problem.order == "pinned")
            self.runs = Runs(self.model, most_runs=4 * self.ops + 256, random=first_word(problem.seed))

    @property
    def done(self) -> bool:
        """True if nothing can be better than the best."""
        best = self.incumbent.best
        if self.ops == 0:
            return True
        if best is None:
            return False
        if self.problem.budget is None:
            return self.incumbent.enough or (best.peak_bytes <= self.bound and best.cost <= self.one_run)
        return best.cost <= self.one_run

    def judge(self, sequence: Ints) -> Evaluation | None:
        """Evaluate exactly, and remember where cycles start."""
        self.tried += 1
        before = self.incumbent.best
        candidate = self.incumbent.evaluate(self.tried, lambda: sequence)
        if candidate is not None and (self.incumbent.best is not before or (before is None and candidate < self.least)):
            self.least, self.origin = candidate, sequence
        return candidate

    # ---- starts

    def start(self, starts: Sequence[Strategy]) -> None:
        """Try orders of little memory, greedy plans, other strategies, and then passes if none of them fits."""
        target = self.bound if self.problem.budget is None else self.problem.budget
        if self.problem.order == "free":
            for sequence in orders(self.runs, self.model, self.keep_all):
                self.judge(sequence)
                if self.done or self.incumbent.stop():
                    return
        order = self.origin
        for evicted in evictions(self.runs, self.model, order, target - self.residents):
            if evicted is not None:
                self.judge(evicted)
            if self.done or self.incumbent.stop():
                return
        for strategy in starts:
            if self.done or self.incumbent.stop():
                return
            try:
                proposal = strategy(msgspec.structs.replace(self.problem, effort=1.0))
            except (InfeasibleBudget, TimeLimit):
                continue
            self.judge(self.incumbent.evaluator.sequence(proposal.schedule))
            self.incumbent.cut_short = self.incumbent.cut_short or proposal.cut_short  # Ctrl-C ends this search too
        if self.incumbent.best is None and target >= self.bound:
            for runs in passes(self.runs.state, self.model, order, target - self.residents):
                if runs is not None:
                    self.judge(runs)
                if self.done or self.incumbent.stop():
                    return

    def slices(self, total: int, *, per_slice: int) -> Iterator[int]:
        """Parts of an amount of work; the deadline and Ctrl-C are looked at between two of them."""
        while total > 0 and not self.incumbent.stop():
            part = min(total, per_slice)
            yield part
            total -= part

    # ---- annealing

    def anneal(self) -> None:
        """Cycles of cooling, each twice as long as the one before."""
        # a move takes about as many steps as a run has neighbours
        ease = min(1.0, 4.0 / (2.0 + len(self.model.reads) / self.ops))
        unit = min(2000.0 * self.ops, 20_000.0 * math.sqrt(self.ops), 800_000.0) * ease / _CYCLES
        self.per_slice = max(200, round(20_000 * ease / (1 + self.ops / 4000)))
        left = unit * _CYCLES * self.problem.effort
        if self.problem.budget is not None and self.problem.budget < self.bound:
            return
        cycle = 0
        while left >= 1.0 and not self.done and not self.incumbent.stop():
            moves = round(unit * 2 ** min(cycle, 30))
            hunt = _HUNT if self.incumbent.best is None else 1  # moves come cheaper until something fits
            part = min(moves, int(left * hunt))
            if part < moves:  # whole slices, so that a run with less effort judges nothing that one with more does not
                part -= part % self.per_slice
                if not part:
                    break
            self.cycle(moves, part, cycle)
            left -= part / hunt
            cycle += 1

    def goal(self, cycle: int) -> int:
        """Peak bytes to stay within: the budget, or if there is none, less than the best has."""
        if self.problem.budget is not None:
            return self.problem.budget - self.margin
        assert self.incumbent.best is not None
        peak = self.incumbent.best.peak_bytes
        # every third cycle looks for as little, but cheaper
        if cycle % 3 == 2 or peak <= self.bound:
            return peak - self.margin
        return max(self.bound, peak - 1 - ((peak - self.bound) >> min(cycle + 1, 62))) - self.margin

    def cycle(self, moves: int, part: int, cycle: int) -> None:
        """One cooling of `moves`, of which the first `part` are done."""
        runs = self.roomy_runs()
        runs.load(self.origin, self.goal(cycle) - self.residents)
        overhead = max(runs.now.cost - self.one_run, 0.01 * self.one_run)
        hot = max(_HOT * overhead, _FLOOR * self.one_run / self.ops)
        cooling = _COOLING ** (-1 / moves)
        penalty = self.one_run / max(1, self.keep_all_peak - self.residents) / 3
        done = 0
        judged: tuple[int, float] | None = None
        for step in self.slices(part, per_slice=min(self.per_slice, 1 + moves // _SLICES)):
            start = hot * cooling**done
            anneal(runs.state, step, start, start * cooling**step, penalty * self.severity, 3)
            now = runs.now
            self.severity = min(_SEVEREST, self.severity * 1.5) if now.excess else max(1.0, self.severity * 0.8)
            done += step
            best = (now.best_excess, now.best_cost)
            if best != judged:
                self.confirm(cycle)
                judged = best
            if self.done:
                return
        self.margin //= 2
        if self.incumbent.best is None:
            # least above the budget over all runs: a better place to go on from than the least peak
            self.origin = runs.best()

    def roomy_runs(self) -> Runs:
        """The runs, with more room where the sequence to start from leaves little."""
        if len(self.origin) * 5 // 4 > self.runs.most_runs:
            self.runs = Runs(self.model, most_runs=2 * len(self.origin), random=self.runs.now.random)
        return self.runs

    def confirm(self, cycle: int) -> None:
        """Judge the best of the kernels exactly; where the model was too low, ask for less."""
        runs = self.runs
        candidate = self.judge(runs.best())
        if candidate is None or runs.now.best_excess:
            return
        if self.problem.budget is not None:
            if candidate.peak_bytes > self.problem.budget:
                self.margin += candidate.peak_bytes - self.problem.budget
                runs.load(self.origin, self.goal(cycle) - self.residents)
        elif self.incumbent.best == candidate:
            runs.load(self.origin, self.goal(cycle) - self.residents)
