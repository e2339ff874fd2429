"""Buffers as rows of numbers: lifetimes in sections, sizes in one unit, and the bytes that no packing goes below."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.analysis.arrays import Ints


class Intervals(NamedTuple):
    """The buffers to pack, one row each.

    Args:
        start, end: lifetime, half-open, in any unit of time.
        alignment: the offset is a multiple of this many bytes.
        fixed: the offset the buffer must have, or -1.
    """

    nbytes: Ints
    start: Ints
    end: Ints
    alignment: Ints
    fixed: Ints


class Sections(NamedTuple):
    """Intervals reduced to what matters for packing.

    A section is a largest set of buffers live at once: time is cut at the first birth after a death. The unit divides
    all sizes, and all alignments that matter, so nothing is rounded.

    Args:
        unit: bytes.
        size, alignment, fixed: in units; `fixed` is -1 where free.
        first, last: sections, half-open; equal if a buffer has no bytes or no lifetime.
        load: units live in each section.
        bound: units; no arena is smaller.
    """

    unit: int
    size: Ints
    alignment: Ints
    fixed: Ints
    first: Ints
    last: Ints
    load: Ints
    bound: int


def sections_of(intervals: Intervals) -> Sections:
    """Reduce intervals to sections and units.

    >>> two = Intervals(*(np.array(column) for column in ([8, 4], [0, 1], [2, 3], [4, 4], [-1, -1])))
    >>> found = sections_of(two)
    >>> found.unit, found.size.tolist(), found.first.tolist(), found.last.tolist(), found.bound
    (4, [2, 1], [0, 0], [1, 1], 3)
    """
    real = (intervals.nbytes > 0) & (intervals.end > intervals.start)
    first, last = np.zeros((2, len(real)), dtype=np.int64)
    births = np.unique(intervals.start[real])
    if len(births):
        # A section begins at a birth if something died since the birth before.
        dead = np.searchsorted(np.unique(intervals.end[real]), births, side="right")
        section = np.concatenate(([0], np.cumsum(np.diff(dead) > 0)))
        first[real] = section[np.searchsorted(births, intervals.start[real])]
        last[real] = section[np.searchsorted(births, intervals.end[real]) - 1] + 1
    unit = _unit(intervals, real)
    size = intervals.nbytes // unit
    alignment = np.maximum(intervals.alignment // unit, 1)
    fixed = np.where(intervals.fixed >= 0, intervals.fixed // unit, -1)
    load = _sums(size, first, last)
    ends = np.where(real & (fixed >= 0), fixed + size, 0)
    bound = max(_aligned_bound(size, alignment, first, last, real), int(load.max(initial=0)), int(ends.max(initial=0)))
    return Sections(unit, size, alignment, fixed, first, last, load, bound)


def _unit(intervals: Intervals, real: np.typing.NDArray[np.bool_]) -> int:
    """The most bytes that divide all sizes and fixed offsets, and all alignments unless these all divide it."""
    given = np.concatenate((intervals.nbytes[real], intervals.fixed[real & (intervals.fixed > 0)]))
    unit = int(np.gcd.reduce(given, initial=0))
    if unit and (unit % intervals.alignment[real]).any():
        unit = int(np.gcd.reduce(intervals.alignment[real], initial=unit))
    return max(unit, 1)


def _aligned_bound(size: Ints, alignment: Ints, first: Ints, last: Ints, real: np.typing.NDArray[np.bool_]) -> int:
    """Units of the largest section, every buffer but the top one rounded up to what divides all alignments."""
    shared = int(np.gcd.reduce(alignment[real], initial=0))
    if shared <= 1:
        return 0
    rounded = -(-size // shared) * shared
    load = _sums(rounded, first, last)
    spare = np.zeros_like(load)
    for row in np.flatnonzero(real & (rounded > size)):
        np.maximum(spare[first[row] : last[row]], rounded[row] - size[row], out=spare[first[row] : last[row]])
    return int((load - spare).max(initial=0))


def _sums(size: Ints, first: Ints, last: Ints) -> Ints:
    """Units live in each section."""
    count = int(last.max(initial=0))
    steps = np.zeros(count + 1, dtype=np.int64)
    np.add.at(steps, first, size)
    np.subtract.at(steps, last, size)
    return np.cumsum(steps)[:count]
