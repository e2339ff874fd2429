"""A training graph as a chain of stages, each with its own backward ops and a cut as its only way to what is before."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from planner.analysis.arrays import Arrays, Flags, Ints
from planner.analysis.candidates import ForwardPart


class Stages(NamedTuple):
    """A chain of stages 0 ... L - 1. Cut u lies after stage u; only values that can be made again are part of a cut.

    Args:
        ends: per cut, the op row of the candidate it was.
        first: per stage, the ops of its first run, in program order.
        backward: per stage, its ops after the forward part; an op that reads no forward value joins the op before it.
        advance: per stage, the ops that make its cut from the cut before.
        every: per stage, the ops that make its cut and all that its backward ops read of it.
        leaf: per stage, the ops that make what its backward ops read of it; [0] from the cut before alone, [1] if its
            own cut is live too.
        cut, saved: per stage, the values of its cut, and those inside it that its backward ops read.
        reads_before, reads_after: whether the backward ops read the cut before, and their own.
        free: [0] and [1] as in `leaf`: neither those ops nor the backward ops read the cut before.
        dies [m]: when a value dies that is not made again: in the first run of stage u (u), in the backward ops of
            stage u (2 L - u), or never (4 L); -1 for values that are made again.
    """

    ends: tuple[int, ...]
    first: list[Ints]
    backward: list[Ints]
    advance: list[Ints]
    every: list[Ints]
    leaf: tuple[list[Ints], list[Ints]]
    cut: list[Ints]
    saved: list[Ints]
    reads_before: Flags
    reads_after: Flags
    free: tuple[Flags, Flags]
    dies: Ints


def chain_stages(
    arrays: Arrays, part: ForwardPart, *, apart: bool = True, without: Collection[int] = ()
) -> Stages | None:
    """The finest chain of stages whose cuts are candidates of the forward part; None if it has fewer than two stages.

    A cut is left out if no backward op reads it and the stage after it has no backward ops and a cut that is no larger:
    keeping that one instead never takes more bytes, and saves the way there. A backward op that reads a cut and nothing
    inside a stage belongs to the stage before or after the cut, as the order of the backward ops allows. Stages are
    joined until every op reads of the forward pass only what its stage has.

    Args:
        apart: put such an op into the stage before, so that the cut can be freed while the stage after it is done; else
            into the stage after, which leaves fewer choices and less to compute.
        without: `ends` of cuts not to make.
    """
    finder = _Finder(arrays, part, without, apart=apart)
    return finder.stages() if finder.settle() else None


class _Finder:
    """The cuts that are left, and what follows from them."""

    def __init__(self, arrays: Arrays, part: ForwardPart, without: Collection[int], *, apart: bool) -> None:
        self.arrays, self.origin, self.apart = arrays, part.origin, apart
        n = len(arrays.cost)
        makes_output = np.zeros(n, dtype=np.bool_)
        makes_output[arrays.producer[arrays.is_output]] = True
        self.reruns: Flags = part.droppable & ~makes_output  # ops that may run again
        self.later: Ints = np.flatnonzero(~part.origin & ~arrays.resident)
        forward = np.flatnonzero(part.origin)
        in_order = not len(self.later) or not len(forward) or forward[-1] < self.later[0]
        cuts = zip(part.position.tolist(), part.members, strict=True)
        ends = [end for end, members in cuts if end not in without and self.reruns[list(members)].all()]
        self.ends: list[int] = ends if in_order else []
        self.read_ptr: list[int] = arrays.read_ptr.tolist()
        self.reads: list[int] = arrays.read_value.tolist()
        self.maker: list[int] = arrays.producer.tolist()
        self.root: list[int] = arrays.root.tolist()
        self.rows: list[int] = np.flatnonzero(part.origin).tolist()
        self.remade: list[bool] = self.reruns[arrays.producer].tolist()

    def read_by(self, op: int) -> list[int]:
        """Values of the forward pass that an op reads and that may be made again."""
        return [v for v in self.reads[self.read_ptr[op] : self.read_ptr[op + 1]] if self.remade[v]]

    def settle(self) -> bool:
        """Join stages until the rest is a chain; True if at least two are left."""
        while self.ends:
            self.unit: list[int] = np.searchsorted(self._extended(), np.arange(len(self.arrays.cost))).tolist()
            wrong = self._skipping() or self._assign() or self._useless()
            if not wrong:
                return True
            self.ends = [end for u, end in enumerate(self.ends) if u not in wrong]
        return False

    def _extended(self) -> list[int]:
        """Last row of each stage but the last, including ops right after the cut that run once (running means)."""
        reruns = self.reruns.tolist()
        place = {row: k for k, row in enumerate(self.rows)}
        most = max(k for k, row in enumerate(self.rows) if reruns[row] or k == 0)
        extended = []
        for end in self.ends:
            k = place[end]
            while k + 1 < most and not reruns[self.rows[k + 1]]:
                k += 1
            extended.append(self.rows[k])
        return extended

    def _skipping(self) -> set[int]:
        """Cuts that a value jumps over on its way to another forward op."""
        wrong: set[int] = set()
        self.carried: list[set[int]] = [set() for _ in range(len(self.ends) + 1)]
        for op in self.rows:
            for v in self.read_by(op):
                made, here = self.unit[self.maker[v]], self.unit[op]
                if here > made:
                    self.carried[made].add(v)
                    wrong.update(range(made + 1, here))
        return wrong

    def _assign(self) -> set[int]:
        """Find the stage of each later op; return the cuts in the way of the first that has none."""
        last = len(self.ends)
        roots = [{self.root[v] for v in values} for values in self.carried]
        self.of_later: dict[int, int] = {}
        self.read_cuts: set[int] = set()
        bounds: list[tuple[int, int]] = []  # the first and the last stage that an op can belong to
        for op in self.later.tolist():
            low, high = 0, last
            for v in self.read_by(op):
                made = self.unit[self.maker[v]]
                on_cut = self.root[v] in roots[made]
                if on_cut:
                    self.carried[made].add(v)
                    self.read_cuts.add(made)
                low, high = max(low, made), min(high, made + on_cut)
            bounds.append((low, high))
        later_low = [0] * (len(bounds) + 1)  # the highest first stage of the ops after each
        for k in range(len(bounds) - 1, -1, -1):
            later_low[k] = max(later_low[k + 1], bounds[k][0])
        current = last
        for k, op in enumerate(self.later.tolist()):
            low, high = bounds[k]
            if low > min(high, current):
                return set(range(min(high, current), low))
            current = min(current, high)
            if self.apart and self.read_by(op):
                current = min(current, max(low, later_low[k + 1]))
            self.of_later[op] = current
        return set()

    def _useless(self) -> set[int]:
        """Cuts that no plan needs, whatever the budget."""
        storages = [list({self.root[v] for v in values}) for values in self.carried[:-1]]
        nbytes = [int(self.arrays.storage_bytes[roots].sum()) for roots in storages]
        busy = set(self.of_later.values())
        useless: set[int] = set()
        following = len(nbytes) - 1
        for u in range(len(nbytes) - 2, -1, -1):
            if u not in self.read_cuts and u + 1 not in busy and nbytes[u] >= nbytes[following]:
                useless.add(u)
            else:
                following = u
        return useless

    def stages(self) -> Stages:
        """The stages, once `settle` returned True."""
        count = len(self.ends) + 1
        backward: list[list[int]] = [[] for _ in range(count)]
        saved: list[set[int]] = [set() for _ in range(count)]
        before, after = np.zeros(count, dtype=np.bool_), np.zeros(count, dtype=np.bool_)
        for op, u in self.of_later.items():
            backward[u].append(op)
            for v in self.read_by(op):
                made = self.unit[self.maker[v]]
                if made < u:
                    before[u] = True
                elif v in self.carried[u]:
                    after[u] = True
                else:
                    saved[u].add(v)
        makers = [[{self.maker[v] for v in values} for values in kept] for kept in (self.carried, saved)]
        rows_of: list[list[int]] = [[] for _ in range(count)]
        for op in self.rows:
            rows_of[self.unit[op]].append(op)
        read_after = [cut if after[u] else set() for u, cut in enumerate(makers[0])]
        advance = [self._remake(u, makers[0][u], frozenset()) for u in range(count)]
        every = [self._remake(u, makers[0][u] | makers[1][u], frozenset()) for u in range(count)]
        leaf = [self._remake(u, read_after[u] | makers[1][u], frozenset()) for u in range(count)]
        leaf_out = [self._remake(u, makers[1][u], makers[0][u] - makers[1][u]) for u in range(count)]
        return Stages(
            ends=tuple(self.ends),
            first=[np.array(rows, dtype=np.int64) for rows in rows_of],
            backward=[np.array(rows, dtype=np.int64) for rows in backward],
            advance=advance,
            every=every,
            leaf=(leaf, leaf_out),
            cut=[np.array(sorted(values), dtype=np.int64) for values in self.carried],
            saved=[np.array(sorted(values), dtype=np.int64) for values in saved],
            reads_before=before,
            reads_after=after,
            free=(self._free(leaf, before), self._free(leaf_out, before)),
            dies=self._dies(count),
        )

    def _remake(self, u: int, targets: set[int], live: set[int] | frozenset[int]) -> Ints:
        """Ops of stage u, in program order, that run the targets again from the cut before if `live` need not run."""
        found = set(targets)
        stack = list(targets)
        while stack:
            for v in self.read_by(stack.pop()):
                maker = self.maker[v]
                if maker not in found and maker not in live and self.unit[maker] == u:
                    found.add(maker)
                    stack.append(maker)
        return np.array(sorted(found), dtype=np.int64)

    def _free(self, reruns: list[Ints], before: Flags) -> Flags:
        values = [[v for op in rows.tolist() for v in self.read_by(op)] for rows in reruns]
        reads = [any(self.unit[self.maker[v]] < u for v in read) for u, read in enumerate(values)]
        return ~before & ~np.array(reads, dtype=np.bool_)

    def _dies(self, count: int) -> Ints:
        dies = np.full(len(self.maker), -1, dtype=np.int64)
        for v, maker in enumerate(self.maker):
            if self.origin[maker] and not self.remade[v]:
                dies[v] = self.unit[maker]
            elif not self.origin[maker]:
                dies[v] = 2 * count - self.of_later.get(maker, 0)
        for op in (*self.rows, *self.of_later):
            backward = op in self.of_later
            stage = self.of_later[op] if backward else self.unit[op]
            # The reads of an op that runs again may be needed as late as the backward ops of its stage.
            when = 2 * count - stage if backward or self.reruns[op] else stage
            for v in self.reads[self.read_ptr[op] : self.read_ptr[op + 1]]:
                if dies[v] >= 0:
                    dies[v] = max(dies[v], when)
        dies[self.arrays.is_output] = 4 * count
        return dies
