"""Lower bounds from a chain of instants: the first runs of ops, each of which depends on the one before.

An op that runs again between two instants and again after the second is paid for twice. The search splits on which
storages are live at an instant, until the parts between instants fit together.
`papers/decisions/0006-cut-certificate.md` has the argument.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from copy import copy
from fractions import Fraction
from typing import Final, NamedTuple

import numpy as np

from planner.analysis.arrays import Flags
from planner.bounds.cut import Cut, Instant, Storages
from planner.bounds.lagrange import best_price
from planner.kernels.flow import ancestors, descendants

Reps = frozenset[int]  # representative values of storages; see `cut.Storages`
NONE: Final[Reps] = frozenset()


class Facts(NamedTuple):
    """Assumptions at one instant.

    Args:
        live: storages of which some value made before is live.
        absent: storages of which no value is live.
    """

    live: Reps = NONE
    absent: Reps = NONE


class Choice(NamedTuple):
    """The least cost from one instant to another, and the choice that has it.

    Args:
        bound: units for runs in between that are not first ones.
        live: storages live at the first instant, besides those its op reads or that are assumed live.
        other: the solution on the other side of the best price; the bound interpolates the two.
        made [n]: ops that run in between.
        exact: True if the choice costs no more than the bound.
        must_rerun [n]: ops that run again in any case, since something absent is needed; None: none.
        paid: units for those; counted in the bound.
    """

    bound: Fraction
    live: Reps
    other: Reps
    made: Flags
    exact: bool
    must_rerun: Flags | None
    paid: int


class ChainOfCuts:
    """A chain of instants of one program.

    Args:
        rows: ops, each a descendant of the one before.
        budget: most live bytes.
    """

    def __init__(self, storages: Storages, rows: Sequence[int], budget: int) -> None:
        arrays, n, k = storages.arrays, len(storages.arrays.cost), len(rows)
        self.storages, self.rows = storages, tuple(rows)
        self.before, self.after = np.zeros((2, k + 1, n), dtype=np.bool_)
        self.before[k] = ~arrays.resident
        self.read: Flags = np.zeros((k + 1, len(storages.storage_rep)), dtype=np.bool_)
        for i, row in enumerate(rows):
            ancestors(arrays, row, self.before[i])
            descendants(arrays, row, self.after[i])
        self.room = [budget - int(storages.working_bytes[row]) for row in rows]
        self._reader = np.repeat(np.arange(n), np.diff(arrays.read_ptr))
        self._reads = storages.storage_rep[arrays.read_value]
        for i, row in enumerate(rows):
            self.read[i] = self.read_by(np.arange(n) == row)
        ends = storages.storage_rep[np.flatnonzero(arrays.is_output)]
        self.read[k, ends[ends >= 0]] = True  # outputs count as read at the end
        self.solved = 0
        self._known: dict[tuple[object, ...], Choice | None] = {}
        self._price: dict[tuple[int, int], float] = {}

    def copy(self) -> ChainOfCuts:
        """A copy that knows every part this one has solved."""
        other = copy(self)
        other._known, other._price = dict(self._known), dict(self._price)
        return other

    def read_by(self, ops: Flags) -> Flags:
        """The storages that some ops read, as flags of their representatives."""
        found = np.zeros(len(self.storages.storage_rep), dtype=np.bool_)
        reps = self._reads[ops[self._reader]]
        found[reps[reps >= 0]] = True
        return found

    def choice(self, i: int, j: int, facts: Sequence[Facts]) -> Choice | None:
        """The choice from the first run of `rows[i]` to that of `rows[j]`, or to the end; None if nothing fits.

        Args:
            facts: of all instants. Reruns forced at one in between stay forced; storages live there must be live.
        """
        later = facts[j].live if j < len(self.rows) else NONE
        key = (i, j, *facts[i:j], later)
        if key not in self._known:
            self._known[key] = self._solve(i, j, facts, later)
        return self._known[key]

    def _solve(self, i: int, j: int, facts: Sequence[Facts], later: Reps) -> Choice | None:
        self.solved += 1
        shared, arrays = self.storages, self.storages.arrays
        before, after = self.before[i], self.after[i] & self.before[j]
        live_here = self.read[i].copy()
        live_here[list(facts[i].live)] = True
        room = self.room[i] - int(shared.rep_bytes[live_here & ~self.read[i]].sum())
        absent = np.zeros(len(live_here), dtype=np.bool_)
        absent[list(facts[i].absent)] = True
        needed = self.read_by(after) | self.read[j]
        needed[list(later)] = True
        paid = 0
        if j > i + 1:
            for between in range(i, j):
                part = self.choice(between, between + 1, facts)
                if part is None:
                    return None
                needed[list(facts[between].live)] = True
                if part.must_rerun is not None:
                    before, after = before & ~part.must_rerun, after | part.must_rerun
                    needed |= self.read_by(part.must_rerun)
                    paid += part.paid
        needed &= ~live_here & ~after[arrays.producer]
        must_rerun: Flags | None = None
        while (asked := needed & absent).any():
            rerun = np.zeros(len(before), dtype=np.bool_)
            rerun[arrays.producer[asked]] = True
            if (rerun & before & ~arrays.recomputable).any():
                return None
            paid += int(shared.step_cost[rerun & before].sum())
            must_rerun = rerun if must_rerun is None else must_rerun | rerun
            before, after = before & ~rerun, after | rerun
            needed = (needed | self.read_by(rerun)) & ~live_here & ~after[arrays.producer]
        if room < 0:
            return None
        instant = Instant(shared, before=before, after=after, live_here=live_here, needed=needed, absent=absent)
        best = best_price(instant, room, self._price.get((i, j), 0.0))
        if best.bound is None:
            return None
        self._price[i, j] = best.price

        def chosen(cut: Cut | None) -> tuple[Reps, Flags]:
            rerun = after if cut is None else after | cut.rerun
            live = (needed | self.read_by(rerun & ~after)) & ~live_here & ~rerun[arrays.producer]
            return frozenset(np.flatnonzero(live).tolist()), rerun

        live, made = chosen(best.few if best.many is None else best.many)
        exact = best.few is None if best.many is None else best.many.rerun_cost <= best.bound
        return Choice(best.bound + paid, live, chosen(best.few)[0], made, exact, must_rerun, paid)

    def least(self, *, floor: Fraction, limit: Fraction | None, most: int) -> tuple[Fraction | None, tuple[Facts, ...]]:
        """A bound on the cost of any plan, and the facts of the leaf that has it; None if no plan fits.

        Solved choices are remembered, so a call goes on from where an earlier one ended.

        Args:
            floor: a bound proven before.
            limit: a bound that is enough; None: there is none.
            most: choices solved, over all calls.
        """
        facts = (Facts(),) * len(self.rows)
        found = self._bound(facts)
        if found is None:
            return None, facts
        leaves = [(max(floor, found[0]), 0, facts, found[1])]
        made = 0
        while leaves:
            bound, _, facts, split = leaves[0]
            if split is None or (limit is not None and bound >= limit) or self.solved >= most:
                return bound, facts
            heapq.heappop(leaves)
            i, rep = split
            here = facts[i]
            for one in (here._replace(live=here.live | {rep}), here._replace(absent=here.absent | {rep})):
                made += 1
                child = (*facts[:i], one, *facts[i + 1 :])
                found = self._bound(child)
                if found is not None:
                    heapq.heappush(leaves, (max(bound, found[0]), made, child, found[1]))
        return None, facts

    def _bound(self, facts: tuple[Facts, ...]) -> tuple[Fraction, tuple[int, int] | None] | None:
        """The largest sum over consecutive parts, and the (instant, storage) to split on next."""
        k = len(self.rows)
        best = [Fraction(0)] * (k + 1)
        parts: list[Choice] = []
        for i in reversed(range(k)):
            for j in range(i + 1, k + 1):
                part = self.choice(i, j, facts)
                if part is None:
                    return None
                best[i] = max(best[i], part.bound + best[j])
                if j == i + 1:
                    parts.insert(0, part)
        return best[0], self._split(facts, parts)

    def _split(self, facts: tuple[Facts, ...], parts: list[Choice]) -> tuple[int, int] | None:
        """The (instant, largest storage) where parts disagree, else where one is undecided; None if all parts fit."""
        made_by, nbytes = self.storages.arrays.producer, self.storages.rep_bytes
        asked = [
            (i, rep)
            for i in range(1, len(parts))
            for rep in parts[i].live - parts[i - 1].live - facts[i - 1].live - facts[i].absent
            if not (self.read[i - 1, rep] or parts[i - 1].made[made_by[rep]])
        ]
        if not asked:
            loose = [(i, part.live ^ part.other) for i, part in enumerate(parts) if not part.exact]
            asked = [(i, rep) for i, reps in loose for rep in reps - facts[i].live - facts[i].absent]
        return max(asked, key=lambda pair: (nbytes[pair[1]], -pair[0], pair[1]), default=None)
