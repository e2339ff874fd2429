"""What one instant proves: the best price per byte, and then branching on single ops until no choice between two cuts is left."""

from __future__ import annotations

import heapq
from fractions import Fraction
from typing import Final, NamedTuple

import numpy as np

from planner.analysis.encode import Flags
from planner.analysis.instants import Cut, Instant, Storages
from planner.kernels.flow import ancestors, descendants

_PRICES: Final = 24  # tried at one instant; the best lies between two neighbours after about ten


class Best(NamedTuple):
    """The largest bound over prices, and the cuts on both sides of its price.

    Args:
        bound: in units; no choice within the room costs less. None: there is no choice within the room.
        price: where that is.
        few, many: the last cut whose live bytes exceed the room, and the last whose do not.
    """

    bound: Fraction | None
    price: float
    few: Cut | None = None
    many: Cut | None = None


class Moment:
    """The first run of one op, in any order.

    Args:
        storages: of the graph.
        row: the op.
        budget: peak bytes.
    """

    def __init__(self, storages: Storages, row: int, budget: int) -> None:
        arrays = storages.arrays
        self.storages, self.row = storages, row
        self.room = budget - int(storages.working_bytes[row])
        self._before, self._after = np.empty((2, len(arrays.cost)), dtype=np.bool_)
        descendants(arrays, row, self._after)
        ancestors(arrays, row, self._before)
        self._at_hand: Flags = np.zeros(len(storages.holder), dtype=np.bool_)
        read = storages.holder[arrays.read_value[arrays.read_ptr[row] : arrays.read_ptr[row + 1]]]
        self._at_hand[read[read >= 0]] = True

    def instant(self, kept: tuple[int, ...] = (), again: tuple[int, ...] = ()) -> Instant:
        """The network, with some ops of before not allowed to run again, and others that do."""
        before, after, fixed = self._before.copy(), self._after.copy(), np.zeros(len(self._before), dtype=np.bool_)
        fixed[list(kept)] = True
        before[list(again)], after[list(again)] = False, True  # it reads what is at hand or made again, and makes its outputs
        return Instant(self.storages, before=before, after=after, at_hand=self._at_hand, fixed=fixed)

    def integral(self, root: Best, nodes: int) -> Fraction | None:
        """The least cost of any choice that fits, or a bound on it where the nodes run out; None where no choice fits.

        The leaf with the least bound is split on the op whose two values differ most between its two cuts: it is kept, or runs again.
        """
        if root.bound is None:
            return None
        leaves: list[tuple[Fraction, int, tuple[int, ...], tuple[int, ...], Best]] = [(root.bound, 0, (), (), root)]
        made = 0
        while leaves:
            bound, _, kept, again, best = leaves[0]
            row = self._undecided(best, kept, again)
            if row is None or made >= nodes:
                return bound
            heapq.heappop(leaves)
            for less, more in (((*kept, row), again), (kept, (*again, row))):
                made += 1
                child = best_price(self.instant(less, more), self.room, best.price)
                if child.bound is not None:
                    paid = sum(int(self.storages.step_cost[op]) for op in more)
                    heapq.heappush(leaves, (max(bound, child.bound + paid), made, less, more, child))
        return None

    def _undecided(self, best: Best, kept: tuple[int, ...], again: tuple[int, ...]) -> int | None:
        """The op to split on, or None where the cut that fits costs no more than the bound, or there is none."""
        if best.many is None or best.bound is None or best.many.again_cost <= best.bound:
            return None
        chosen = best.many.again if best.few is None else best.many.again != best.few.again
        rows = np.setdiff1d(np.flatnonzero(chosen & self._before), [*kept, *again])
        if not len(rows):
            return None
        arrays, storages = self.storages.arrays, self.storages
        made = np.concatenate(([0], np.cumsum(np.where(storages.holder == np.arange(len(storages.holder)), storages.holder_bytes, 0))))
        nbytes = made[arrays.out_ptr[rows + 1]] - made[arrays.out_ptr[rows]]
        return int(rows[np.argmax(np.minimum(storages.step_cost[rows], best.price * nbytes))])


def best_price(instant: Instant, room: int, start: float) -> Best:
    """The largest bound over prices.

    Every cut is a line over the price, at or above the least cut everywhere; the next price is where the last line that keeps too
    much meets the last that keeps too little.

    Args:
        start: the first price.
    """
    price = start or instant.storages.most / max(1, instant.needed_bytes)
    if instant.fixed_bytes > room:
        return Best(None, price)
    if instant.needed_bytes <= room:
        return Best(Fraction(0), price)
    best = Best(Fraction(0), price)
    low_cost, low_bytes = 0, instant.needed_bytes
    few: Cut | None = None
    many: Cut | None = None
    for _ in range(_PRICES):
        cut = instant.cut(price)
        best = max(best, Best(proven(cut, room - instant.fixed_bytes), price), key=lambda found: found.bound or 0)
        if cut.live_bytes <= room:
            many = cut
        else:
            few, low_cost, low_bytes = cut, cut.again_cost, cut.live_bytes
        if many is None:
            if price * (low_bytes - room) > instant.storages.most:
                break
            price *= 4
            continue
        following = (many.again_cost - low_cost) / (low_bytes - many.live_bytes)
        reached = low_cost + following * (low_bytes - room)
        if following <= 0 or following == price or reached - float(best.bound or 0) <= 1e-9 * instant.storages.most:
            break
        price = following
    return best._replace(few=few, many=many)


def proven(cut: Cut, room: int) -> Fraction:
    """What a cut proves, in units, where so many bytes are left for values that need not stay: exact, so that no rounding lifts it."""
    return cut.value - Fraction(cut.price) * room
