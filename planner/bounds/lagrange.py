"""The best Lagrange multiplier at one instant: the price per byte whose cut proves the largest bound."""

from __future__ import annotations

from fractions import Fraction
from typing import Final, NamedTuple

from planner.bounds.cut import Cut, Instant

_PRICES: Final = 24  # tried at one instant; about ten are enough to close in on the best


class Best(NamedTuple):
    """The largest bound over prices, and the cuts on both sides of its price.

    Args:
        bound: units; no choice within the room costs less. None: no choice fits the room.
        price: units per byte.
        few, many: the last cut whose live bytes exceed the room, and the last whose live bytes fit.
    """

    bound: Fraction | None
    price: float
    few: Cut | None = None
    many: Cut | None = None


def best_price(instant: Instant, room: int, start: float) -> Best:
    """The largest bound over prices.

    Each cut is a line over the price, nowhere below the least cut. The next price is where the last line that keeps too
    many bytes meets the last that fits.

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
            few, low_cost, low_bytes = cut, cut.rerun_cost, cut.live_bytes
        if many is None:
            if price * (low_bytes - room) > instant.storages.most:
                break
            price *= 4
            continue
        following = (many.rerun_cost - low_cost) / (low_bytes - many.live_bytes)
        reached = low_cost + following * (low_bytes - room)
        if following <= 0 or following == price or reached - float(best.bound or 0) <= 1e-9 * instant.storages.most:
            break
        price = following
    return best._replace(few=few, many=many)


def proven(cut: Cut, room: int) -> Fraction:
    """The bound of a cut, in exact units; `room` is the bytes left for values that may be dropped."""
    return cut.value - Fraction(cut.price) * room
