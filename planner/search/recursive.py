"""Strategy "recursive": segments of segments, so that memory grows with the logarithm of depth.

A stretch of the forward pass is cut into k + 1 pieces and the k tensors between them are kept. Each piece, last first,
is treated the same way when the backward pass reaches it: a chain of n equal layers keeps g(n) = k + g(n / (k + 1)).
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from planner.analysis.arrays import Arrays, Flags, Ints
from planner.analysis.candidates import ForwardPart
from planner.problem import Problem, Proposal
from planner.search.incumbent import Evaluation, Incumbent


class _Units(NamedTuple):
    """The forward pass between neighbouring candidate cuts, unit by unit."""

    first: Ints  # op rows of the forward part, in program order
    advance: list[Ints]  # per unit, the rows that remake its cut from the cut before
    leaf: list[Ints]  # per unit, the rows that remake what its own backward ops read
    backward: list[Ints]  # per unit, the rows of its backward ops; those of the first unit end the program


def recursive(problem: Problem, *, k: int | None = None, reuse: bool = False) -> Proposal:
    """Cut every stretch into k + 1 pieces, again and again, down to single candidates.

    On `zoo.chain(n, reads=("in",))` g(n; k) forward values are kept between steps and, for k = 1, T(n) = floor(n/2) +
    T(ceil(n/2)) + T(floor(n/2)) forwards run; the judged peak is g(n; k) + 1, the value being made. With `reuse` one
    more is kept and n - 1 fewer run.

    Args:
        k: tensors kept per stretch, >= 1. None tries 1, 2, 3, 4, 6, 8, 12, ..., with and without `reuse`, each also
            with a last stretch that is kept whole, as long as fits, and proposes the cheapest that fits (without a
            budget, the one of least peak).
        reuse: keep a cut until the backward ops that read it have run, instead of making it again for its own piece:
            one tensor more, and about one forward pass fewer.
    Raises:
        InfeasibleBudget: nothing tried fits; carries the least peak seen.
    Source: Chen et al. 2016, 4.4; its code was not released. Ours differs: any k, unequal layers, cuts found on the
        graph.
    """
    incumbent = Incumbent(problem, "recursive")
    part = incumbent.evaluator.forward_part()
    if part is None or not len(part.position):
        return incumbent.proposal()
    search = _Recursion(incumbent, part)
    for rerun in (reuse,) if k is not None else (True, False):
        for pieces in (k,) if k is not None else _branchings(len(part.position)):
            search.try_branching(pieces, reuse=rerun, whole=k is not None)
    return incumbent.proposal()


def _branchings(count: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, ... below the number of candidates."""
    found, step = [1], 2
    while step < count:
        found += [step, step * 3 // 2] if step * 3 // 2 < count and step > 1 else [step]
        step *= 2
    return found


class _Recursion:
    """Evaluates recursive plans."""

    def __init__(self, incumbent: Incumbent, part: ForwardPart) -> None:
        self.incumbent, self.part = incumbent, part
        self.units = {reuse: _units(incumbent.evaluator.encoded.arrays, part, reuse=reuse) for reuse in (False, True)}
        self.count = len(self.units[True].leaf)

    def try_branching(self, k: int, *, reuse: bool, whole: bool) -> None:
        """Recurse into all units; then, under a budget, find the longest stretch at the end that can be kept whole."""
        if self.incumbent.stop():
            return
        complete = self.evaluate(k, reuse=reuse, tail=1)
        if whole or self.incumbent.problem.budget is None or not self.incumbent.fits(complete):
            return
        fitting, too_long = 1, self.count
        while too_long - fitting > 1:
            tail = (fitting + too_long) // 2
            if self.incumbent.fits(self.evaluate(k, reuse=reuse, tail=tail)):
                fitting = tail
            else:
                too_long = tail

    def evaluate(self, k: int, *, reuse: bool, tail: int) -> Evaluation | None:
        """Peak and cost of `sequence`."""
        return self.incumbent.evaluate((k, reuse, tail), lambda: self.sequence(k, reuse=reuse, tail=tail))

    def sequence(self, k: int, *, reuse: bool, tail: int) -> Ints:
        """Op rows of the plan whose last `tail` units are kept whole."""
        units = self.units[reuse]
        parts = [units.first, *(units.backward[u] for u in range(self.count - 1, self.count - tail - 1, -1))]
        # Stretches still to do, the next on top; True: its forward part has just run.
        stack = [(0, self.count - tail + 1, True)]
        while stack:
            low, high, forward = stack.pop()
            if high - low > 1:
                bounds = _bounds(low, high, k)
                if not forward:
                    parts.extend(units.advance[low : bounds[-2]])
                stack.extend((start, stop, forward and stop == high) for start, stop in pairwise(bounds))
            elif not forward:  # else it is the last stretch, whose backward is in place
                parts.extend((units.leaf[low], units.backward[low]))
        return np.concatenate(parts)


def _bounds(low: int, high: int, k: int) -> list[int]:
    """Ends of k + 1 pieces of nearly equal length, the longer ones last."""
    pieces = min(k + 1, high - low)
    short, longer = divmod(high - low, pieces)
    sizes = [short] * (pieces - longer) + [short + 1] * longer
    return [low, *(low + int(end) for end in np.cumsum(sizes))]


def _units(arrays: Arrays, part: ForwardPart, *, reuse: bool) -> _Units:
    """Cut the ops into units; `reuse`: a backward op that reads a cut belongs to the unit after it."""
    n = len(arrays.cost)
    rows = np.arange(n)
    origin_rows = rows[part.origin]
    ends = part.position
    if not part.droppable[ends[-1] + 1 :].any():
        ends = ends[:-1]  # nothing droppable follows: the loss belongs to the last unit
    count = len(ends) + 1
    unit = np.searchsorted(ends, rows)
    is_cut = np.zeros(n, dtype=np.bool_)
    for members in part.members[: count - 1]:
        is_cut[list(members)] = True
    read_by = np.repeat(rows, np.diff(arrays.read_ptr))
    maker = arrays.producer[arrays.read_value]
    stretch = _stretches(arrays, part, unit, is_cut, count, reuse=reuse)
    later = rows[~part.origin & ~arrays.resident]
    wanted = np.zeros(n, dtype=np.bool_)
    outside = ~part.origin[read_by] & part.droppable[maker] & (unit[maker] == stretch[read_by])
    wanted[maker[outside]] = True
    cut = [[m for m in part.members[u] if unit[m] == u] for u in range(count - 1)]
    read = [np.flatnonzero(wanted & (unit == u)).tolist() for u in range(count)]
    advance, leaf = ([_remake(arrays, part, unit, u, rows) for u, rows in enumerate(some)] for some in (cut, read))
    return _Units(origin_rows, advance, leaf, backward=[later[stretch[later] == u] for u in range(count)])


def _stretches(arrays: Arrays, part: ForwardPart, unit: Ints, is_cut: Flags, count: int, *, reuse: bool) -> Ints:
    """For each op after the forward part, the unit whose forward values it reads; it never rises along the program."""
    stretch = np.zeros(len(unit), dtype=np.int64)
    current = count - 1
    for op in np.flatnonzero(~part.origin & ~arrays.resident).tolist():
        makers = arrays.producer[arrays.read_value[arrays.read_ptr[op] : arrays.read_ptr[op + 1]]]
        makers = makers[part.droppable[makers]]
        if len(makers):
            after = unit[makers] + (is_cut[makers] if reuse else 0)
            current = min(current, int(after.max()))
        stretch[op] = current
    return stretch


def _remake(arrays: Arrays, part: ForwardPart, unit: Ints, u: int, targets: list[int]) -> Ints:
    """Rows of unit u, in program order, that remake what the target ops make."""
    found = {op for op in targets if part.droppable[op]}
    stack = list(found)
    while stack:
        op = stack.pop()
        for maker in arrays.producer[arrays.read_value[arrays.read_ptr[op] : arrays.read_ptr[op + 1]]].tolist():
            if maker not in found and part.droppable[maker] and unit[maker] == u:
                found.add(maker)
                stack.append(maker)
    return np.array(sorted(found), dtype=np.int64)
