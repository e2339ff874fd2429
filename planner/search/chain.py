"""Strategy "chain": the cheapest persistent plan of a chain of unequal stages, by dynamic programming over stretches.

A plan is persistent if it keeps each kept value until its backward op has read it. Of a stage it keeps nothing, the cut
after it, or all values that its backward ops read; a cut that the stage before reads too may be kept on for it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from planner.analysis.actions import Actions, measure
from planner.analysis.arrays import Floats, Ints
from planner.analysis.stages import Stages, chain_stages
from planner.kernels import chain_dp as kernels
from planner.problem import Problem, Proposal
from planner.search.incumbent import Evaluation, Incumbent

_CUTS: Final = 1_500_000  # most cuts looked at, over all stretches, at effort 1
_CUTS_APART: Final = 150_000  # the same for the finest partition of the backward ops
_POINTS: Final = 128  # least points a front may have, at effort 1
_MOST_POINTS: Final = 1 << 18  # points take memory, so that is the most whatever the effort
_WORK: Final = 20_000_000  # cuts times points, at effort 1: short chains have longer fronts
_SLICE: Final = 1 << 16  # cuts looked at between two looks at the clock
_ENDLESS: Final = 1 << 61
_ALWAYS: Final = -(1 << 62)


def chain(problem: Problem) -> Proposal:
    """Find the cheapest persistent plan of the forward pass as a chain of stages.

    Stages lie between single storages through which all of the forward pass goes. The bytes of each stage are measured
    on the graph, with in-place pairs, workspaces and kept gradients, so the recurrence sees the judge's peak. An op of
    the backward pass that reads only a cut belongs to the stage after it; in short chains the plan with all such ops in
    the stage before is found too, and the better one taken.

    Either plan is exact in bytes over persistent plans of its chain, unless a front of cost against headroom has more
    than 128 points times the effort (more in short chains). Longer fronts are thinned to the safe side: no plan is
    above the budget, and it costs no more than the best for a budget smaller by 1 / points of it for every level of the
    recurrence. Chains of more than about 200 different stages are shortened first. Plans that are not persistent can be
    cheaper yet, so nothing is claimed to be optimal.

    Raises:
        InfeasibleBudget: no such plan fits, or the graph is no chain and keep-all does not; carries the least peak of
            such plans.
    Source: Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova 2019, *Optimal checkpointing for heterogeneous chains*.
        Ours differs: bytes are not rounded to 500 slots, equal stretches are solved once, and a cut outlives the stage
        after it if the one before reads it.
    """
    incumbent = Incumbent(problem, "chain")
    if problem.budget is not None and incumbent.best is not None:
        return incumbent.proposal()  # keep-all fits
    for apart in (False, True):
        search = recurrence(problem, incumbent, apart=apart)
        if search is not None:
            _try(search, incumbent)
    return incumbent.proposal()


def _try(search: Recurrence, incumbent: Incumbent) -> None:
    """The cheapest plan of one recurrence, or the one of least peak."""
    budget = incumbent.problem.budget
    least = search.solve(None, stop=incumbent.stop)
    if least is None:
        return
    headroom = least if budget is None else max(least, budget - search.resident_bytes)
    while search.solve(headroom, stop=incumbent.stop) is not None:
        candidate = incumbent.evaluate((search.count, search.plan(headroom)), partial(search.sequence, headroom))
        if candidate is None or budget is None or incumbent.fits(candidate) or headroom == least:
            break
        # The table counts a storage that two cuts share twice or not at all.
        headroom = max(least, headroom - (candidate.peak_bytes - budget))


def recurrence(problem: Problem, incumbent: Incumbent, *, apart: bool) -> Recurrence | None:
    """The recurrence of a problem's chain; None if the graph is no chain, or time runs out.

    If there are too many stages, the largest of every four cuts in a row is left out, again and again; with `apart`,
    None is returned.

    Args:
        apart: stage of backward ops that only read a cut; see `chain_stages`.
    """
    part = incumbent.evaluator.forward_part()
    arrays = incumbent.evaluator.encoded.arrays
    without: set[int] = set()
    while part is not None and not incumbent.stop():
        stages = chain_stages(arrays, part, apart=apart, without=without)
        actions = None if stages is None else measure(arrays, stages)
        if stages is None or actions is None:
            return None
        search = Recurrence(stages, actions, effort=problem.effort)
        if search.cuts <= problem.effort * (_CUTS_APART if apart else _CUTS) or len(stages.ends) == 1:
            return search
        if apart:
            return None
        nbytes = actions.table[:-1, kernels.CUT_AFTER]
        for start in range(0, len(nbytes), 4):
            without.add(stages.ends[start + int(nbytes[start : start + 4].argmax())])
    return None


class _Stretch(NamedTuple):
    """Stages s to t, to be planned within a headroom."""

    first: bool  # their forward part runs for the first time
    s: int
    t: int
    outlives: bool  # the cut before them is not theirs to free: kept on for the stage before, or gone already
    out: bool  # the cut after them is already live, and their backward ops read it
    headroom: int


class Recurrence:
    """Fronts of all stretches of a chain, and the plans they stand for; more effort gives fronts more points."""

    def __init__(self, stages: Stages, actions: Actions, *, effort: float = 1.0) -> None:
        self.stages = stages
        self.resident_bytes = actions.resident_bytes
        self.table, self.costs = actions.table, actions.costs
        self.count = len(stages.first)
        self.kind, self.of_kind = _kinds(self.table, self.costs)
        # Each state of either end is solved, and each way to leave a cut is tried.
        ways = 1 + self.table[:, kernels.READS_AFTER]
        lengths = self.of_kind[:, 1] - self.of_kind[:, 0]
        self.cuts = int((lengths * ways[self.of_kind[:, 1]]).sum() * ways.mean())
        self.points = max(8, int(min(effort * max(_POINTS, min(_WORK / max(1, self.cuts), 1 << 16)), _MOST_POINTS)))

    def solve(self, headroom: int | None, *, stop: Callable[[], bool] = lambda: False) -> int | None:
        """Solve all fronts up to a headroom, or only their first points if that is None.

        Returns:
            the least headroom of any plan; None if none is within this one, or `stop` returned True.
        """
        least = headroom is None
        limit = _ENDLESS if headroom is None else headroom
        points = 1 if least else self.points
        kinds = len(self.of_kind)
        self.fronts = np.zeros((kinds + self.count, 2, 2, 2), dtype=np.int64)
        room = 4 * (points + 2) + 4 * kinds
        self.pool_h, self.pool_c = np.empty(room, dtype=np.int64), np.empty(room, dtype=np.float64)
        self.pool_h[0], self.pool_c[0] = _ALWAYS, 0.0
        width = 12 * points + 16
        self.choice: Ints = np.empty(4, dtype=np.int64)
        self.fields = {
            "table": self.table,
            "costs": self.costs,
            "kind": self.kind,
            "of_kind": self.of_kind,
            "limit": limit,
            "points": points,
            "least": least,
            "fronts": self.fronts,
            "used": np.ones(1, dtype=np.int64),
            "h": np.empty((3, width), dtype=np.int64),
            "c": np.empty((3, width), dtype=np.float64),
            "choice": self.choice,
        }
        self.chain = kernels.new_chain(**self.fields, pool_h=self.pool_h, pool_c=self.pool_c)
        lengths = np.cumsum(self.of_kind[:, 1] - self.of_kind[:, 0] + 1)
        done = 0
        while done < kinds:
            if stop():
                return None
            goal = int(np.searchsorted(lengths, (lengths[done - 1] if done else 0) + _SLICE)) + 1
            now = kernels.stretches(self.chain, done, min(goal, kinds))
            done = self._grown(now, done)
        following = self.count - 1
        while following >= 0:
            if stop():
                return None
            now = kernels.sweeps(self.chain, following, max(-1, following - 64))
            following = self._grown(now, following)
        start, size = self.fronts[kinds, 0, 0]
        return int(self.pool_h[start]) if size else None

    def _grown(self, now: int, before: int) -> int:
        """Double the pools if a kernel made no progress for lack of room."""
        if now == before:
            self.pool_h = np.concatenate((self.pool_h, np.empty_like(self.pool_h)))
            self.pool_c = np.concatenate((self.pool_c, np.empty_like(self.pool_c)))
            self.chain = kernels.new_chain(**self.fields, pool_h=self.pool_h, pool_c=self.pool_c)
        return now

    def plan(self, headroom: int) -> Evaluation:
        """Peak bytes and extra cost of the cheapest plan within a headroom that was solved for."""
        start, size = self.fronts[len(self.of_kind), 0, 0].tolist()
        place = int(np.searchsorted(self.pool_h[start : start + size], headroom, side="right")) - 1
        if place < 0:
            raise ValueError(f"no plan within a headroom of {headroom} bytes")
        return Evaluation(self.resident_bytes + int(self.pool_h[start + place]), float(self.pool_c[start + place]))

    def sequence(self, headroom: int) -> Ints:
        """Its op rows."""
        # The least headroom with the same cost, for the plan of least peak.
        headroom = self.plan(headroom).peak_bytes - self.resident_bytes
        parts: list[Ints] = []
        todo: list[_Stretch | Ints] = [_Stretch(True, 0, self.count - 1, False, False, headroom)]
        while todo:
            what = todo.pop()
            if isinstance(what, _Stretch):
                todo.extend(reversed(self._planned(what)))
            else:
                parts.append(what)
        return np.concatenate(parts)

    def _planned(self, what: _Stretch) -> list[_Stretch | Ints]:
        """The plan of a stretch: rows to run, and shorter stretches."""
        stages, (first, s, t, outlives, out, headroom) = self.stages, what
        if first and s == t:
            return [stages.first[s], stages.backward[s]]
        if s == t:
            return [stages.leaf[out][t], stages.backward[t]]
        kernels.choose(self.chain, s, t, int(outlives), int(out), not first, headroom)
        k, flags, delta, then = self.choice.tolist()
        stays, drops = bool(flags & 1), bool(flags & 2)
        if k == -2:
            below = what._replace(t=t - 1, out=False, headroom=headroom - delta)
            return [stages.leaf[out][t], stages.backward[t], below]
        run = stages.first if first else stages.advance
        if k == -1:
            above = _Stretch(first, s + 1, t, stays, out, headroom - delta)
            return [stages.first[s] if first else stages.every[s], above, stages.backward[s]]
        above = _Stretch(first, k + 1, t, stays, out, headroom - delta)
        return [*run[s : k + 1], above, _Stretch(False, s, k, outlives or drops, stays, headroom - then)]


def _kinds(table: Ints, costs: Floats) -> tuple[Ints, Ints]:
    """Equal stretches: the row of stages s to t, and for each row, by length, one such s and t."""
    count = len(table)
    reads_before = np.concatenate(([0], table[:-1, kernels.READS_AFTER]))
    described = np.column_stack((table[:, : kernels.RERUN_COLUMNS], reads_before)).astype(np.float64)
    _, stage_kind = np.unique(np.column_stack((described, costs)), axis=0, return_inverse=True)
    stage_kind = stage_kind.reshape(-1).astype(np.int64)
    kind = np.full((count, count), -1, dtype=np.int64)
    found: list[Ints] = []
    known = 0
    now = np.zeros(count, dtype=np.int64)  # of the stretch of the length before, by its first stage
    for length in range(1, count):
        starts = np.arange(count - length)  # the last stage never runs again
        key = now[: len(starts)] * (count + 1) + stage_kind[starts + length - 1]
        _, sample, now = np.unique(key, return_index=True, return_inverse=True)
        now = now.reshape(-1)
        kind[starts, starts + length - 1] = known + now
        found.append(np.column_stack((sample, sample + length - 1)))
        known += len(sample)
    return kind, np.concatenate((*found, np.empty((0, 2), dtype=np.int64)))
