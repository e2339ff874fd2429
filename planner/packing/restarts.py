"""Searches of one core of buffers under several rankings: which is lucky cannot be known, so all get their turn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from planner.analysis.arrays import Ints
from planner.kernels.packing_search import AGENDA, CROWDED, FRAME, STATE, descend
from planner.packing.intervals import Sections

#: Work of the first try of each ranking: rows of buffers and sections looked at; each round has twice that of the one
#: before.
FIRST_TRY: Final = 4_000_000
#: Tie-breaks: (lifetimes in time, not in sections; the busiest section's load comes first; area comes before lifetime).
_RANKINGS: Final = (
    (True, True, False), (False, True, True), (False, False, False), (False, True, False), (False, False, True), (True,
        True, True),
)  # fmt: skip
#: Most that the logarithm of a lifetime is disturbed by.
_SPREADS: Final = (0.05, 0.2)


def turns(core: Sections, width: Ints, capacity: int, seed: int) -> Iterator[tuple[Descent, int]]:
    """(a search, the work until which to go on with it), without end.

    Each round gives the searches of all rankings twice the work they have had, and as much again to short ones whose
    keys are
    disturbed a little: which ranking is lucky cannot be known.
    """
    tries: list[Descent] = []
    draw = np.random.default_rng(seed)
    limit = FIRST_TRY
    while True:
        for turn in range(len(_RANKINGS)):
            if turn == len(tries):
                tries.append(Descent(core, _ranked(core, width, turn), capacity))
            yield tries[turn], limit
        for turn in range(len(_RANKINGS) * limit // (2 * FIRST_TRY)):
            spread = _SPREADS[turn // len(_RANKINGS) % len(_SPREADS)]
            noisy = (1000 * width * np.exp(draw.uniform(-spread, spread, len(width)))).astype(np.int64)
            yield Descent(core, _ranked(core, noisy, turn % len(_RANKINGS)), capacity), FIRST_TRY
        limit *= 2


def _ranked(core: Sections, width: Ints, turn: int) -> tuple[Ints, bool]:
    """(rank, whether the load of the busiest section comes before it) of one of `_RANKINGS`."""
    in_time, by_load, by_area = _RANKINGS[turn]
    longest = width if in_time else core.last - core.first
    area = core.size * longest.astype(np.float64)
    order = np.lexsort((-longest, -area) if by_area else (-area, -longest))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return rank, by_load


class Descent:
    """A search under one ranking, which can be gone on with."""

    def __init__(self, core: Sections, ranking: tuple[Ints, bool], capacity: int) -> None:
        self.core, self.capacity = core, capacity
        self.base, self.by_load = ranking
        m, s = len(core.size), len(core.load)
        self.buffers = np.zeros((4, m), dtype=np.int64)  # load, minimum, placed, member
        self.sections = np.zeros((4, s + 1), dtype=np.int64)  # floor, fresh, left, crossing
        self.trails = [np.zeros((4 * (m + s) + 1024, 2), dtype=np.int64) for _ in range(3)]
        self.frame = np.zeros((m + 2, FRAME), dtype=np.int64)
        self.agenda = np.zeros((2 * m + s + 2, AGENDA), dtype=np.int64)
        self.state = np.zeros(STATE, dtype=np.int64)

    @property
    def placed(self) -> Ints:
        offsets: Ints = self.buffers[2]
        return offsets

    @property
    def work(self) -> int:
        return int(self.state[6])

    @property
    def nodes(self) -> int:
        return int(self.state[5])

    def run(self, work_limit: int) -> int:
        """Go on until it is packed, exhausted, or out of work."""
        core = self.core
        load, minimum, placed, member = self.buffers
        floor, fresh, left, crossing = self.sections
        while True:
            raised, lifted, loaded = self.trails
            outcome = int(
                descend(
                    core.size,
                    core.alignment,
                    core.fixed,
                    core.first,
                    core.last,
                    self.base,
                    self.by_load,
                    self.capacity,
                    work_limit,
                    load,
                    minimum,
                    placed,
                    member,
                    floor[:-1],
                    fresh[:-1],
                    left[:-1],
                    crossing,
                    raised,
                    lifted,
                    loaded,
                    self.frame,
                    self.agenda,
                    self.state,
                )
            )
            if outcome != CROWDED:
                return outcome
            used = (self.state[3], self.state[4], self.state[8])
            self.trails = [
                np.concatenate((trail, np.zeros_like(trail)))
                if len(trail) - rows < len(self.frame) + len(self.agenda)
                else trail
                for trail, rows in zip(self.trails, used, strict=True)
            ]
