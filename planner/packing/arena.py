"""Packing of intervals: a portfolio of placement rules, then a search of the crowded sections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from planner.analysis.arrays import Ints
from planner.kernels.packing_search import EXHAUSTED, PACKED, PAUSED
from planner.kernels.placement import place
from planner.packing.intervals import Intervals, sections_of
from planner.packing.restarts import Descent, round_robin
from planner.problem import MOST_EFFORT, Stop

WORK: Final = 1_000_000_000  # rows of buffers and sections looked at for effort 1; about two seconds
SLICE: Final = 25_000_000  # work of one call of the kernel: about 50 ms, so that an interrupt is heard
SMALL: Final = 600  # so few buffers are searched as a whole
MANY: Final = 2000  # of so many buffers the search gains little, and takes long
MOST_CORE: Final = 4000  # a core of more buffers is left to the portfolio


PlacementOrder = Literal["size", "breadth"]
#: Called with the arena and the proven bound, in bytes.
Progress = Callable[[int, int], None]


class Packing(NamedTuple):
    """Offsets, and what is proven of them.

    Args:
        offset: bytes, one per buffer.
        top_bytes: highest end.
        bound_bytes: no packing is smaller, proven; equal to `top_bytes` if this one is smallest.
        rule: name of the placement rule that found the packing, or "exact" for the search.
        nodes: placements tried by the search.
        cut_short: a deadline or Ctrl-C ended the search.
    """

    offset: Ints
    top_bytes: int
    bound_bytes: int
    rule: str
    nodes: int
    cut_short: bool

    @property
    def gap_bytes(self) -> int:
        """Bytes between the arena and the proven bound."""
        return self.top_bytes - self.bound_bytes


def pack(
    intervals: Intervals,
    *,
    capacity: int | None = None,
    effort: float = 1.0,
    seed: int = 0,
    stop: Stop | None = None,
    progress: Progress | None = None,
) -> Packing:
    """The smallest arena found within the effort, and the proven bound.

    Args:
        capacity: bytes; stop at the first packing within it. None: stop at the proven bound.
        effort: counted work, so that the same input gives the same offsets on any machine; 0: the portfolio alone.
        seed: of the restarts.
        stop: once `stop.now`, the search ends with its best packing; the portfolio always runs. None: Ctrl-C ends it.
        progress: called with the arena and the bound, in bytes, whenever the arena gets smaller.
    Source: the portfolio is that of Pisarchyk and Lee 2020; for the search see `planner.kernels.packing_search`. Ours
        differs from MiniMalloc (Moffitt 2023): the first target is the bound, only the buffers of crowded sections are
        searched and the others placed around them, and there is always an incumbent.
    """
    if stop is None:
        stop = Stop()
        with stop.listening():
            return pack(intervals, capacity=capacity, effort=effort, seed=seed, stop=stop, progress=progress)
    search = _Search(intervals, capacity, seed, stop, progress)
    search.portfolio()
    search.improve(int(WORK * min(effort, MOST_EFFORT)))
    return search.packing()


def pack_within(
    intervals: Intervals, *, capacity: int | None = None, besides_bytes: int = 0, stop: Stop | None = None
) -> Packing:
    """As `pack`, with effort that ends where it cannot decide anything: see `allocators.auto`.

    Args:
        besides_bytes: what the arena holds besides these buffers; waste is a part of all.
    """
    search = _Search(intervals, capacity, 0, stop or Stop(), None)
    search.portfolio()
    if capacity is not None and search.bound > capacity // search.sections.unit:
        return search.packing()
    many = len(search.offset) > MANY
    enough = (search.bound + besides_bytes // search.sections.unit) // (100 if many else 1000)
    for effort in (1.0, 3.0) if capacity is None else (0.2, 0.4, 0.8, 2.6):
        if capacity is None and search.top - search.bound <= enough:
            break
        before = search.top
        near = max((search.top - search.goal) // 2, search.goal // 500)
        search.improve(int(WORK * effort))
        hopeless = capacity is not None and search.top - search.goal > near
        if search.top <= search.goal or hopeless or (search.top == before and (many or capacity is not None)):
            break  # more would not come there
    return search.packing()


def pack_once(intervals: Intervals, *, order: PlacementOrder, best: bool) -> Packing:
    """Place each buffer once, at the lowest offset where it fits, or (`best`) where it leaves the smallest gap.

    Source: Pisarchyk and Lee 2020, greedy by size and by breadth.
    """
    search = _Search(intervals, None, 0, Stop(), None)
    offset = search.sections.fixed.copy()
    search.keep(order, offset, search.place(search.order(order), offset, best=best))
    return search.packing()


@dataclass
class _Paused:
    """Searches of one core for one target.

    Args:
        unit: bytes of the core's unit, in units of the whole.
        turns: the rankings' searches in turn.
        one, limit: whose turn it is, until which work.
        outcome: PACKED or EXHAUSTED once its search has ended.
    """

    unit: int
    turns: Iterator[tuple[Descent, int]]
    one: Descent
    limit: int
    outcome: int = PAUSED


class _Search:
    """One packing problem, its incumbent and its bound, in units."""

    def __init__(
        self, intervals: Intervals, capacity: int | None, seed: int, stop: Stop, progress: Progress | None
    ) -> None:
        self.seed, self.stop, self.progress = seed, stop, progress
        self.sections = sections_of(intervals)
        self.bound = self.sections.bound
        self.goal = self.bound if capacity is None else max(self.bound, capacity // self.sections.unit)
        self.offset: Ints = np.zeros(0, dtype=np.int64)
        self.top, self.rule, self.nodes, self.cut_short = -1, "none", 0, False
        self.width, self.fixed = intervals.end - intervals.start, intervals.fixed
        self._paused: dict[tuple[int, bytes], _Paused] = {}

    def packing(self) -> Packing:
        unit = self.sections.unit
        offset = np.where(self.fixed >= 0, self.fixed, self.offset * unit)
        return Packing(offset, self.top * unit, self.bound * unit, self.rule, self.nodes, self.cut_short)

    def portfolio(self) -> None:
        """Try placement rules until one reaches the goal."""
        for rule, order, best in self._rules():
            offset = self.sections.fixed.copy()
            self.keep(rule, offset, self.place(order, offset, best=best))
            if self.top <= self.goal:
                return

    def improve(self, work: int) -> None:
        """Search for the goal with half the work, then between the highest failed target and the incumbent."""
        target, failed, share = self.goal, self.goal - 1, work // 2
        while self.top > self.goal and work > 0 and not self.cut_short:
            spent, outcome = self._attempt(target, min(share, work))
            if outcome == "large":
                return
            work -= spent
            if outcome == "failed":
                failed = max(failed, target)
            failed = max(failed, self.goal - 1)
            target = failed + max((self.top - failed) // 2, 1)
            if target >= self.top:
                return
            share = max(work // 4, 1)

    def _rules(self) -> Iterator[tuple[str, Ints, bool]]:
        sections = self.sections
        area = sections.size * self.width.astype(np.float64)
        busiest = self._busiest()
        yield "breadth first-fit", self.order("breadth"), False
        # At the fullest section the last buffer to die lies lowest, so the room on top stays whole.
        yield "breadth and death best-fit", self._decreasing(busiest, sections.last, sections.size), True
        yield "size first-fit", self.order("size"), False
        yield "breadth best-fit", self.order("breadth"), True
        yield "size best-fit", self.order("size"), True
        yield "area first-fit", self._decreasing(area, sections.size), False
        yield "lifetime first-fit", self._decreasing(self.width, sections.size), False
        yield "birth best-fit", self._decreasing(-sections.first, sections.size), True

    def order(self, name: PlacementOrder) -> Ints:
        """Rows in order of placement: by size, or those live at the busiest section first and then by size."""
        size = self.sections.size
        return self._decreasing(size) if name == "size" else self._decreasing(self._busiest(), size)

    def _decreasing(self, *keys: np.typing.NDArray[Any]) -> Ints:
        """Fixed buffers first; ties by birth."""
        free = (self.sections.fixed < 0).astype(np.int64)
        return np.lexsort((self.sections.first, *(-key for key in reversed(keys)), free))

    def _busiest(self) -> Ints:
        """For each buffer, the most units live in a section of its lifetime: range maxima by a sparse table."""
        sections = self.sections
        levels = [sections.load]
        while 2 ** len(levels) <= len(sections.load):
            half = 2 ** (len(levels) - 1)
            levels.append(np.maximum(levels[-1][:-half], levels[-1][half:]))
        busiest = np.zeros(len(sections.size), dtype=np.int64)
        length = sections.last - sections.first
        level_of = np.frexp(length)[1] - 1
        for level, table in enumerate(levels):
            rows = np.flatnonzero((level_of == level) & (length > 0))
            busiest[rows] = np.maximum(table[sections.first[rows]], table[sections.last[rows] - 2**level])
        return busiest

    def place(self, order: Ints, offset: Ints, *, best: bool) -> int:
        sections = self.sections
        return int(place(order, sections.size, sections.alignment, sections.first, sections.last, best, offset))

    def keep(self, rule: str, offset: Ints, top: int) -> None:
        if self.top < 0 or top < self.top:
            self.offset, self.top, self.rule = offset, top, rule
            if self.progress is not None:
                self.progress(top * self.sections.unit, self.bound * self.sections.unit)

    def _attempt(self, target: int, work: int) -> tuple[int, Literal["packed", "failed", "large"]]:
        """(work spent, outcome) of packing the crowded sections, which grow where a buffer ends above the target."""
        sections = self.sections
        hot = sections.load >= min(target, int(sections.load.max(initial=0)))
        small = np.count_nonzero(sections.last > sections.first) <= SMALL
        spent = 0
        while spent < work:
            rows = np.flatnonzero(sections.last > sections.first) if small else self._alive(hot)
            if len(rows) > MOST_CORE:
                return spent, "large"
            used, outcome, placed = self._solve(rows, target, work - spent)
            spent += used
            if outcome == EXHAUSTED:  # what does not fit the core's buffers does not fit all
                self.bound = max(self.bound, target + 1)
                self.goal = max(self.goal, self.bound)
            if outcome != PACKED:
                break
            offset = sections.fixed.copy()
            offset[rows] = placed
            core = np.zeros(len(offset), dtype=np.int64)
            core[rows] = 1
            self.keep("exact", offset, self.place(self._decreasing(core, sections.size), offset, best=False))
            if self.top <= target:
                return spent, "packed"
            for row in np.flatnonzero(offset + sections.size > target):
                first, last = sections.first[row], sections.last[row]
                cool = np.flatnonzero(~hot[first:last])
                if len(cool):
                    hot[first + cool[sections.load[first:last][cool].argmax()]] = True
        return spent, "failed"

    def _alive(self, hot: np.typing.NDArray[np.bool_]) -> Ints:
        """Buffers alive in a hot section, and all fixed ones."""
        before = np.concatenate(([0], np.cumsum(hot)))
        sections = self.sections
        alive = before[sections.last] > before[sections.first]
        return np.flatnonzero(alive | ((sections.fixed >= 0) & (sections.last > sections.first)))

    def _solve(self, rows: Ints, target: int, work: int) -> tuple[int, int, Ints]:
        """Rankings in turn, each round with twice the work: (work spent, PACKED, EXHAUSTED or PAUSED, offsets).

        A search of the same rows for the same target goes on where it was left.
        """
        every = self.sections
        key = (target, rows.tobytes())
        if key not in self._paused:
            columns = (every.size, every.first, every.last, every.alignment, every.fixed)
            core = sections_of(Intervals(*(column[rows] for column in columns)))
            turns = round_robin(core, self.width[rows], target // core.unit, self.seed)
            self._paused[key] = _Paused(core.unit, turns, *next(turns))
        paused = self._paused[key]
        spent = 0
        while paused.outcome == PAUSED:
            one = paused.one
            while one.work < paused.limit:
                before, nodes = one.work, one.nodes
                outcome = one.run(min(paused.limit, before + SLICE))
                spent += one.work - before
                self.nodes += one.nodes - nodes
                if outcome in (PACKED, EXHAUSTED):
                    paused.outcome = outcome
                    break
                if spent >= work or self._late():
                    return spent, PAUSED, one.placed
            if paused.outcome == PAUSED:
                paused.one, paused.limit = next(paused.turns)
        return spent, paused.outcome, paused.one.placed * paused.unit

    def _late(self) -> bool:
        self.cut_short = self.cut_short or self.stop.now
        return self.cut_short
