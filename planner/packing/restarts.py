"""Searches of one core of buffers under several rankings, in turn, since no one can tell which will be lucky."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from planner.analysis.arrays import Ints
from planner.kernels.packing_search import AGENDA, CROWDED, FRAME, STATE, descend, new_search
from planner.packing.intervals import Sections

#: Work of the first try of each ranking, in rows of buffers and sections; each round has twice that of the last.
FIRST_TRY: Final = 4_000_000
#: Tie-breaks: (lifetimes in time, not in sections; the busiest section's load comes first; area comes before lifetime).
_RANKINGS: Final = (
    (True, True, False), (False, True, True), (False, False, False),
    (False, True, False), (False, False, True), (True, True, True),
)  # fmt: skip
_GIVEN: Final = ("size", "alignment", "fixed", "first", "last")
_TRAILS: Final = ("raised", "lifted", "loaded")
#: Most by which the logarithm of a lifetime is disturbed.
_SPREADS: Final = (0.05, 0.2)


def round_robin(core: Sections, width: Ints, capacity: int, seed: int) -> Iterator[tuple[Descent, int]]:
    """Yield (a search, the work until which to go on with it), without end.

    Each round gives the searches of all rankings twice the work they have had, and as much again to short searches
    whose keys are disturbed a little.
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
    """(rank of each buffer, whether the load of the busiest section comes before it) by one of `_RANKINGS`."""
    in_time, by_load, by_area = _RANKINGS[turn]
    longest = width if in_time else core.last - core.first
    area = core.size * longest.astype(np.float64)
    order = np.lexsort((-longest, -area) if by_area else (-area, -longest))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return rank, by_load


class Descent:
    """A search under one ranking that can pause and go on."""

    def __init__(self, core: Sections, ranking: tuple[Ints, bool], capacity: int) -> None:
        m, s = len(core.size), len(core.load)
        self.placed: Ints = np.zeros(m, dtype=np.int64)
        self.state: Ints = np.zeros(STATE, dtype=np.int64)
        self.fields: dict[str, Any] = {name: getattr(core, name) for name in _GIVEN}
        self.fields |= {name: np.zeros(m, dtype=np.int64) for name in ("load", "minimum", "member")}
        self.fields |= {name: np.zeros(s, dtype=np.int64) for name in ("floor", "fresh", "left")}
        self.fields |= {name: np.zeros((4 * (m + s) + 1024, 2), dtype=np.int64) for name in _TRAILS}
        tables = (("frame", m + 2, FRAME), ("agenda", 2 * m + s + 2, AGENDA))
        self.fields |= {name: np.zeros((rows, columns), dtype=np.int64) for name, rows, columns in tables}
        self.fields |= {"base": ranking[0], "by_load": ranking[1], "capacity": capacity}
        self.fields |= {"placed": self.placed, "state": self.state, "crossing": np.zeros(s + 1, dtype=np.int64)}
        self.search = new_search(**self.fields)

    @property
    def work(self) -> int:
        return int(self.state[6])

    @property
    def nodes(self) -> int:
        return int(self.state[5])

    def run(self, work_limit: int) -> int:
        """Go on until the core is packed, the search exhausted, or the work done."""
        while True:
            outcome = int(descend(self.search, work_limit))
            if outcome != CROWDED:
                return outcome
            room = len(self.fields["frame"]) + len(self.fields["agenda"])
            for name, used in zip(_TRAILS, self.state[[3, 4, 8]], strict=True):
                trail = self.fields[name]
                if len(trail) - used < room:
                    self.fields[name] = np.concatenate((trail, np.zeros_like(trail)))
            self.search = new_search(**self.fields)
