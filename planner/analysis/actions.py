"""Bytes and costs of the actions of a chain, measured by replaying scripts in which each stage acts once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from planner.analysis.arrays import Arrays, Floats, Ints
from planner.analysis.evaluator import replay_scratch
from planner.analysis.stages import Stages
from planner.kernels import chain_dp as kernels
from planner.kernels.replay import replay


class Actions(NamedTuple):
    """The tables of `kernels.chain_dp`.

    Args:
        table [L, COLUMNS], costs [L, 4]: bytes and costs of the stages.
        resident_bytes: live before the first op.
    """

    table: Ints
    costs: Floats
    resident_bytes: int


class _Effect(NamedTuple):
    """Bytes of an action above what was live before it: at its peak, and once it is done."""

    rise: int
    delta: int


class _Script:
    """A sequence of actions, each with the values it leaves live."""

    def __init__(self) -> None:
        self.rows: list[Ints] = []
        self.level: list[int] = []
        self.keep: list[Ints] = []
        self.named: dict[int, int] = {}  # place of a measured action -> its stage
        self.discards: dict[int, Ints] = {}  # values freed after an action, even if it keeps them
        self.credit: dict[int, int] = {}  # bytes of those that are certainly live

    def add(self, rows: Ints, keep: list[Ints], *, level: int = -1, stage: int | None = None) -> None:
        """Add an action, which is measured if it has a `stage`."""
        if stage is not None:
            self.named[len(self.rows)] = stage
        self.rows.append(rows)
        self.level.append(level)
        self.keep.append(np.concatenate(keep) if keep else np.empty(0, dtype=np.int64))

    def discard(self, *values: Ints, live_bytes: int = 0) -> None:
        """Free the live ones of these values before the next action; `live_bytes` of them are certainly live."""
        place = len(self.rows) - 1
        if place < 0:
            return
        while place > 0 and not len(self.rows[place]):
            place -= 1
        self.discards[place] = np.concatenate((self.discards.get(place, np.empty(0, dtype=np.int64)), *values))
        self.credit[place] = self.credit.get(place, 0) + live_bytes


def measure(arrays: Arrays, stages: Stages) -> Actions | None:
    """Bytes and costs of every action; None if one of them is illegal."""
    return _Measure(arrays, stages).actions()


class _Measure:
    """The scripts of one chain and what they measure."""

    def __init__(self, arrays: Arrays, stages: Stages) -> None:
        self.arrays, self.stages = arrays, stages
        self.count = len(stages.first)
        self.nothing: Ints = np.empty(0, dtype=np.int64)
        self.table: Ints = np.zeros((self.count, kernels.COLUMNS), dtype=np.int64)

    def before(self, u: int) -> Ints:
        """Values of the cut before stage u."""
        return self.stages.cut[u - 1] if u else self.nothing

    def actions(self) -> Actions | None:
        """See `measure`."""
        stages, last = self.stages, self.count - 1
        table = self.table
        table[:, kernels.READS_AFTER] = stages.reads_after
        table[:, kernels.SAVES] = [len(values) > 0 for values in stages.saved]
        table[:, kernels.FREE], table[:, kernels.FREE_OUT] = stages.free
        back_delta = 0
        for script, rises, delta in self.scripts():
            effects = self.effects(script)
            if effects is None:
                return None
            for u, effect in effects.items():
                table[u, list(rises)] = effect.rise
                if delta is not None:
                    table[u, delta] = effect.delta
                if delta == kernels.CUT_AFTER:
                    table[u + 1, kernels.CUT_BEFORE] = effect.delta
                if u == last and kernels.BACK_GONE in rises:
                    back_delta = effect.delta
        free = table[:, kernels.FREE] != 0
        table[:, kernels.NET] = table[:, kernels.LEAF_DELTA] + np.where(free, 0, table[:, kernels.CUT_BEFORE])
        kept = table[:, kernels.FIRST_DELTA] - table[:, kernels.CUT_AFTER]
        table[:, kernels.FIRST_NET] = table[:, kernels.NET] + kept
        # The last stage has no cut, and its backward ops run right after its first run.
        first_delta = table[last, kernels.FIRST_ALL_DELTA_GONE] + back_delta
        table[last, kernels.FIRST_NET] = first_delta + table[last, kernels.CUT_BEFORE]
        kinds = (stages.advance, stages.every, *stages.leaf)
        cost = [[float(self.arrays.cost[rows].sum()) for rows in kind] for kind in kinds]
        return Actions(table, np.ascontiguousarray(np.array(cost).T), int(self.arrays.resident_bytes[0]))

    def scripts(self) -> Iterator[tuple[_Script, tuple[int, ...], int | None]]:
        """All scripts, each with the columns for its rises and the column for its deltas."""
        first, advance, every = self.stages.first, self.stages.advance, self.stages.every
        k = kernels
        yield self.runs(first, first=True, outlives=True), (k.FIRST_KEPT,), k.FIRST_DELTA
        yield self.runs(first, first=True), (k.FIRST_GONE,), None
        yield self.runs(first, first=True, everything=True), (k.FIRST_ALL_GONE,), k.FIRST_ALL_DELTA_GONE
        yield self.runs(first, first=True, everything=True, outlives=True), (k.FIRST_ALL_KEPT,), k.FIRST_ALL_DELTA_KEPT
        yield self.runs(advance, outlives=True), (k.ADVANCE_KEPT,), k.CUT_AFTER
        yield self.runs(advance), (k.ADVANCE_GONE,), None
        yield self.runs(every, everything=True), (k.ALL_GONE,), k.ALL_DELTA_GONE
        yield self.runs(every, everything=True, outlives=True), (k.ALL_KEPT,), k.ALL_DELTA_KEPT
        yield self.returns("back"), (k.BACK_GONE,), None
        yield self.returns("leaf"), (k.LEAF_GONE, k.LEAF_OUT_GONE), k.LEAF_DELTA
        if self.stages.reads_after.any():  # else no cut outlives the stage after it
            yield self.returns("back", outlives=True), (k.BACK_KEPT,), None
            yield self.returns("leaf", outlives=True), (k.LEAF_KEPT,), None
            yield self.returns("leaf out"), (k.LEAF_OUT_GONE,), k.LEAF_OUT_DELTA
            yield self.returns("leaf out", outlives=True), (k.LEAF_OUT_KEPT,), None

    def runs(
        self, rows: list[Ints], *, everything: bool = False, outlives: bool = False, first: bool = False
    ) -> _Script:
        """The script that runs all stages in turn, for the first time, or again once all values were freed.

        Args:
            everything: keep what the backward ops read, not only cuts.
            outlives: keep the cut before, needed or not.
        """
        script, stages, last = _Script(), self.stages, self.count - 1
        if not first:
            for u in range(self.count):
                script.add(stages.first[u], [stages.cut[u]], level=u)
            script.discard(*stages.cut, *stages.saved)
        for u in range(self.count if first else last):
            keep = [stages.cut[u], stages.saved[u]] if everything or u == last else [stages.cut[u]]
            if outlives or (everything and stages.reads_before[u]):
                keep.append(self.before(u))
            else:
                script.discard(self.unread(u, rows[u]))
            script.add(rows[u], keep, level=u if first else -1, stage=u)
        return script

    def returns(self, how: str, *, outlives: bool = False) -> _Script:
        """The script of all backward ops, last stage first: "back" if their reads are live, "leaf" if made again."""
        script, stages, last = _Script(), self.stages, self.count - 1
        for u in range(self.count):
            keep = [stages.cut[u], self.before(u), *([stages.saved[u]] if u == last else [])]
            script.add(stages.first[u], keep, level=u)
        live = set(range(last))  # stages whose cut is live
        for u in range(last, -1, -1):
            if not len(stages.backward[u]):
                continue  # nothing is made again either: updates may have overtaken those ops
            out = how == "leaf out" and bool(stages.reads_after[u])
            again = stages.leaf[1 if out else 0][u] if how != "back" and u < last else self.nothing
            rows = np.concatenate((again, stages.backward[u]))
            if u < last:
                script.discard(stages.cut[u], live_bytes=int(self.table[u, kernels.CUT_AFTER]) if u in live else 0)
                live.discard(u)
                if how == "back":
                    script.add(stages.every[u], [stages.saved[u], stages.cut[u], self.before(u)])
                    if not stages.reads_after[u]:
                        script.discard(stages.cut[u])
                elif out:
                    script.add(stages.advance[u], [stages.cut[u], self.before(u)])
            if not outlives:
                unread = self.unread(u, rows)
                none_read = len(unread) == len(self.before(u))
                script.discard(unread, live_bytes=int(self.table[u, kernels.CUT_BEFORE]) if none_read else 0)
                live.discard(u - 1)
            script.add(rows, [self.before(u)] if outlives else [], level=2 * self.count - u, stage=u)
        return script

    def unread(self, u: int, rows: Ints) -> Ints:
        """Values of the cut before a stage that none of these ops reads."""
        arrays = self.arrays
        read = [arrays.read_value[arrays.read_ptr[op] : arrays.read_ptr[op + 1]] for op in rows.tolist()]
        return np.setdiff1d(self.before(u), np.concatenate((*read, self.nothing)))

    def effects(self, script: _Script) -> dict[int, _Effect] | None:
        """Rise and delta of the measured actions by stage; None if a step is illegal."""
        lengths = [len(rows) for rows in script.rows]
        bounds = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
        # One step is added, so that values that outlive the last action end later than those that die in it.
        sequence = np.concatenate((*script.rows, np.flatnonzero(~self.arrays.resident)[:1]))
        steps = int(bounds[-1])
        widths = np.diff(self.arrays.out_ptr) + np.diff(self.arrays.read_ptr)
        freed = np.empty(int(widths[sequence].sum()), dtype=np.int64)
        keep_ptr = np.concatenate(([0], np.cumsum([len(values) for values in script.keep]))).astype(np.int64)
        level = np.array(script.level, dtype=np.int64)
        keep = np.concatenate((*script.keep, self.nothing))
        ran, dies = sequence[:steps], self.stages.dies
        free_ptr = kernels.action_frees(self.arrays, ran, bounds, level, dies, keep_ptr, keep, freed)
        free_ptr = np.append(free_ptr, free_ptr[-1:].repeat(len(sequence) - steps))
        freed = freed[: free_ptr[-1]]
        for place in sorted(script.discards, reverse=True):
            at = bounds[place + 1]  # after the last step of the action
            values = np.unique(script.discards[place])
            freed = np.insert(freed, free_ptr[at], values)
            free_ptr[at:] += len(values)
        timeline = np.zeros(len(sequence), dtype=np.int64)
        buffers = np.empty((4, int(np.diff(self.arrays.out_ptr)[sequence].sum())), dtype=np.int64)
        scratch = replay_scratch(self.arrays)
        _peak, _cost, made, illegal = replay(self.arrays, sequence, free_ptr, freed, timeline, buffers, scratch)
        if 0 <= illegal < steps:
            return None
        value, _, start, end = buffers[:, :made]
        change = np.zeros(len(sequence) + 1, dtype=np.int64)
        np.add.at(change, start, self.arrays.storage_bytes[value])
        np.add.at(change, end, -self.arrays.storage_bytes[value])
        # Bytes while each step runs, without kept siblings and workspace.
        live = np.cumsum(change) + int(self.arrays.resident_bytes[0])
        born = np.zeros(len(sequence) + 1, dtype=np.int64)
        np.add.at(born, start, self.arrays.storage_bytes[value])
        before = live - born  # before each step
        effects = {}
        for place, stage in script.named.items():
            a, b = int(bounds[place]), int(bounds[place + 1])
            rise = int(timeline[a:b].max() - before[a]) if b > a else 0
            effects[stage] = _Effect(rise, int(before[b] - before[a]) + script.credit.get(place, 0))
        return effects
