"""Strategy "binomial": which states of a chain of equal steps to store so that reversing it runs fewest forwards.

The theory counts steps and slots. Here a step is a stage of the graph, and a slot holds one cut between stages, or with
`mixed` all that the backward ops of a stage read. The judge says how many bytes that takes.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from planner.analysis.arrays import Ints
from planner.analysis.stages import Stages, chain_stages
from planner.kernels.chain_dp import binomial_table
from planner.problem import Problem, Proposal
from planner.search.incumbent import Evaluation, Incumbent

_TABLE: Final = 1 << 20  # entries of a table of steps and slots


def longest(slots: int, sweeps: int) -> int:
    """beta(s, t): steps that can be reversed with s slots if no step is advanced over more than t times.

    >>> [longest(3, t) for t in (1, 2, 3)]
    [4, 10, 20]
    """
    return math.comb(slots + sweeps, slots)


def forwards(steps: int, slots: int, *, mixed: bool = False) -> int:
    """Least forwards that reverse a chain of equal steps, including one taped forward per step.

    Args:
        steps: >= 1.
        slots: >= 1; one of them holds the state before the first step.
        mixed: a slot may hold the tape of a step instead of a state.
    Source: Griewank and Walther 2000 (closed form); `mixed`: the recurrence of checkpoint-schedules' mixed schedule.

    >>> forwards(10, 3), forwards(10, 3, mixed=True)
    (25, 19)
    """
    if steps < 1 or slots < 1:
        raise ValueError(f"{steps} steps and {slots} slots: both must be at least 1")
    if mixed:
        slots = min(slots, steps)
        return int(_table(steps, slots, mixed=True).extra[steps, slots])
    sweeps = 0
    while longest(slots, sweeps) < steps:
        sweeps += 1
    return steps + sweeps * steps - (math.comb(slots + sweeps, sweeps - 1) if sweeps else 0)


def binomial(problem: Problem, *, slots: int | None = None, mixed: bool | None = None) -> Proposal:
    """Store the states of the forward pass that would be best if all stages were equal.

    It applies to any graph whose forward pass is a chain of stages, and does not look at their sizes. For other graphs
    it proposes keep-all.

    Args:
        slots: None tries 1, 2, 3, ... with ever larger gaps, bisects to the budget, and proposes the cheapest plan that
            fits (without a budget, the one of least peak).
        mixed: slots may hold all that the backward ops of a stage read; None tries both.
    Raises:
        InfeasibleBudget: nothing tried fits; carries the least peak seen.
    Source: Griewank and Walther 2000, *Algorithm 799: revolve*; mixed: see `forwards`.
    """
    incumbent = Incumbent(problem, "binomial")
    part = incumbent.evaluator.forward_part()
    stages = None if part is None else chain_stages(incumbent.evaluator.encoded.arrays, part, apart=False)
    if stages is None:
        return incumbent.proposal()
    for kind in (False, True) if mixed is None else (mixed,):
        search = _Slots(incumbent, stages, mixed=kind, most=slots)
        if slots is None:
            search.sweep()
        else:
            search.evaluate(slots)
    return incumbent.proposal()


class _Table(NamedTuple):
    """Tables of `kernels.chain_dp.binomial_table`."""

    extra: Ints
    advance: Ints


def _table(steps: int, slots: int, *, mixed: bool) -> _Table:
    table = _Table(np.empty((steps + 1, slots + 1), dtype=np.int64), np.empty((steps + 1, slots + 1), dtype=np.int64))
    binomial_table(table.extra, table.advance, mixed)
    return table


class _Slots:
    """Plans of one kind by number of slots."""

    def __init__(self, incumbent: Incumbent, stages: Stages, *, mixed: bool, most: int | None) -> None:
        self.incumbent, self.stages, self.mixed = incumbent, stages, mixed
        self.steps = len(stages.first)
        self.most = min(self.steps, most or max(8, _TABLE // self.steps))
        self.advance = _table(self.steps, self.most, mixed=mixed).advance

    def sweep(self) -> None:
        """Try slots 1, 2, 3, ... with ever larger gaps; then bisect for the most that fit, since they cost least."""
        counts = sorted({*range(1, 9), *(round(8 * 1.5**k) for k in range(1, 40)), self.most})
        fitting, too_many = 0, self.most + 1
        for slots in counts:
            if slots > self.most or self.incumbent.stop():
                break
            if self.incumbent.fits(self.evaluate(slots)):
                fitting = slots
            elif fitting:
                too_many = slots
                break
        while self.incumbent.problem.budget is not None and too_many - fitting > 1 and not self.incumbent.stop():
            slots = (fitting + too_many) // 2
            if self.incumbent.fits(self.evaluate(slots)):
                fitting = slots
            else:
                too_many = slots

    def evaluate(self, slots: int) -> Evaluation | None:
        """Peak and cost of `sequence`."""
        slots = min(slots, self.most)
        return self.incumbent.evaluate((slots, self.mixed), lambda: self.sequence(slots))

    def sequence(self, slots: int) -> Ints:
        """Op rows of the schedule with so many slots."""
        stages = self.stages
        parts: list[Ints] = []
        todo: list[tuple[int, int, int, bool] | Ints] = [(0, self.steps, slots, True)]
        while todo:
            what = todo.pop()
            if not isinstance(what, tuple):
                parts.append(what)
                continue
            low, high, free, first = what
            way = int(self.advance[high - low, free]) if high - low > 1 else 0
            if high - low == 1:
                parts.append(stages.first[low] if first else stages.leaf[0][low])
                parts.append(stages.backward[low])
            elif way == 0:
                parts.append(stages.first[low] if first else stages.every[low])
                todo += [stages.backward[low], (low + 1, high, free - 1, first)]
            else:
                parts += (stages.first if first else stages.advance)[low : low + way]
                todo += [(low, low + way, free, False), (low + way, high, free - 1, first)]
        return np.concatenate(parts)
