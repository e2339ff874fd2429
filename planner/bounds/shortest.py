"""Every schedule of a small graph, cheapest first: the proven least cost at a budget, the proven least peak, or that
nothing fits.

What counts is the cost of runs beyond the first, so that a search in order of it is a shortest path in which first runs
are free. A value
that is gone and has to be made again is paid for when it goes. Costs are summed as whole numbers: no rounding decides
between two plans.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any, Final, NamedTuple

from planner.bounds.peak import peak_lower_bound
from planner.bounds.states import Aliased, Move, Plain, Program, compile_program
from planner.graph import Graph
from planner.memory import MemoryModel
from planner.schedule import Compute, Free, Schedule, Step

#: States looked at before a search gives up, at effort 1: about half a second for ten ops.
MOST_STATES: Final = 12_000
_BETWEEN_LOOKS: Final = 256  # at the clock


class Answer(NamedTuple):
    """What a search of all schedules found.

    Args:
        schedule: the best one; None where none fits, none is below what was known, or the search gave up before it had
            one.
        bound: no schedule is below it: cost, or peak bytes without the reserve; infinite where none fits.
        proven: True if the bound is reached: by the schedule, or without one by what was known.
        states: looked at.
    """

    schedule: Schedule | None
    bound: float
    proven: bool
    states: int


def cheapest_schedule(
    graph: Graph,
    memory: MemoryModel,
    budget: int,
    *,
    pinned: bool = False,
    known_cost: float = math.inf,
    at_least: float = 0.0,
    most_states: int = MOST_STATES,
    stop: Callable[[], bool] = lambda: False,
) -> Answer:
    """The least cost of any schedule within a budget, over all orders (or the program's), any number of runs, and all
    frees.

    Args:
        budget: most peak bytes, the reserve taken off.
        pinned: ops first run in program order.
        known_cost: of some schedule that fits; only what is cheaper is sought.
        at_least: a proven bound on the cost; between states that do not exceed it, the one furthest on goes first.
        most_states: after which the search gives up; its bound stays valid.
        stop: asked now and then; True gives up too.

    >>> from planner.graph import Op, Tensor
    >>> ops = [Op("a", (Tensor("a", 4),)), Op("b", (Tensor("b", 4),), ("a",)), Op("c", (Tensor("c", 2),), ("b",))]
    >>> ops += [Op("d", (Tensor("d", 1),), ("c",)), Op("e", (Tensor("e", 1, output=True),), ("d", "a"))]
    >>> graph = Graph(ops)
    >>> cheapest_schedule(graph, MemoryModel(), 9).bound
    6.0
    """
    program = compile_program(graph, memory, pinned=pinned)
    costs, unit = _whole_costs(program.costs)
    search = _Search(program, budget, costs, most_states, stop)
    once = sum(costs)
    if known_cost < math.inf:
        search.enough = math.ceil(Fraction(known_cost) / unit) - once
    if 0 < at_least < math.inf:
        # below, however it was rounded
        search.floor = max(0, math.floor(Fraction(at_least) * (1 - Fraction(1, 2**50)) / unit) - once)
    extra = search.run()
    bound = math.inf if extra is None else float((once + extra) * unit)
    return Answer(search.schedule(), bound, search.proven, search.states)


def least_peak_schedule(
    graph: Graph,
    memory: MemoryModel,
    *,
    most_bytes: int,
    pinned: bool = False,
    most_states: int = MOST_STATES,
    stop: Callable[[], bool] = lambda: False,
) -> Answer:
    """The least peak of any schedule, and of those that reach it the cheapest where time allows.

    Whether one fits is asked again and again, each time with half the bytes in doubt.

    Args:
        most_bytes: peak of some schedule that is known.
        pinned, most_states, stop: as for `cheapest_schedule`.
    """
    program = compile_program(graph, memory, pinned=pinned)
    zero = [0] * len(program.costs)
    grain = program.grain_bytes
    low, high = peak_lower_bound(graph, memory).nbytes, most_bytes
    low += -(low - program.resident_bytes) % grain  # every peak is the residents and whole grains
    best: Schedule | None = None
    states = 0
    target = low  # the largest working set is often enough
    while low < high:
        search = _Search(program, target, zero, most_states - states, stop)
        fits = search.run() is not None
        states += search.states
        if not search.proven:
            return Answer(best, low, False, states)
        if fits:
            best, high = search.schedule(), target
        else:
            low = target + grain
        target = low + (high - low) // grain // 2 * grain
    final = cheapest_schedule(graph, memory, high, pinned=pinned, most_states=most_states - states, stop=stop)
    return Answer(final.schedule or best, high, True, states + final.states)


def _whole_costs(costs: list[float]) -> tuple[list[int], Fraction]:
    """Costs as whole multiples of one unit, exactly: a float is a whole number of some power of two."""
    exact = [Fraction(cost) for cost in costs]
    unit = Fraction(1, max((cost.denominator for cost in exact), default=1))
    return [int(cost / unit) for cost in exact], unit


class _Search:
    """States in order of what runs beyond the first cost, those included that can be seen to be due.

    Args:
        program: the graph.
        budget: most bytes at a step.
        costs: of each op, whole.
        most_states, stop: when to give up.
    """

    def __init__(
        self, program: Program, budget: int, costs: list[int], most_states: int, stop: Callable[[], bool]
    ) -> None:
        self.program, self.costs = program, costs
        costless = sum(1 << k for k, cost in enumerate(costs) if not cost)
        self.machine: Any = (Plain if program.plain else Aliased)(program, budget, costless)
        self.most_states, self.stop = most_states, stop
        self.enough: float = math.inf
        self.floor = 0
        self.states = 0
        self.proven = False
        self._goal: Any = None
        self._came: dict[Any, tuple[Any, Move]] = {}
        self._sums: dict[int, int] = {}

    def run(self) -> int | None:
        """Least extra cost, or what it is at least where the search gave up; None where nothing fits."""
        machine, costs = self.machine, self.costs
        start = machine.start()
        known: dict[Any, int] = {start: 0}
        queue: list[tuple[int, int, int, int, int, Any]] = [(self.floor, 0, 0, 0, 0, start)]
        pushed = 0
        # What ran can then run again for nothing: whatever is live, a state that is further on can come to all that
        # others can.
        costless = (
            self.program.plain and not any(costs) and not any(row.once or row.updated for row in self.program.rows)
        )
        furthest = 0
        while queue:
            bound, _, _, _, extra, state = heapq.heappop(queue)
            if bound >= self.enough:
                self.proven = True
                return int(self.enough)
            if (
                extra > known[state]
                or (costless and state[0].bit_count() < furthest)
                or machine.dominated(state, extra)
            ):
                continue
            furthest = state[0].bit_count()
            if machine.done(state):
                self._goal, self.proven = state, True
                return extra
            if self.states >= self.most_states or (self.states % _BETWEEN_LOOKS == 0 and self.stop()):
                return bound
            self.states += 1
            for after, move in machine.moves(state):
                then = extra + costs[move.op] if move.op >= 0 and state[0] >> move.op & 1 else extra
                if then < known.get(after, then + 1):
                    due = machine.owed(after[0], machine.live(after))
                    if due is None:
                        continue
                    owed = self._cost_of(due)
                    known[after] = then
                    self._came[after] = state, move
                    pushed += 1  # of equals, the furthest, then the one that lacks least, and then the newest
                    ahead = -after[0].bit_count(), due.bit_count(), -pushed
                    heapq.heappush(queue, (max(self.floor, then + owed), *ahead, then, after))
        self.proven = True
        return int(self.enough) if self.enough < math.inf else None

    def _cost_of(self, ops: int) -> int:
        """Summed cost of a mask of ops."""
        if ops not in self._sums:
            self._sums[ops] = sum(self.costs[k] for k in _bits(ops))
        return self._sums[ops]

    def schedule(self) -> Schedule | None:
        """The steps to the goal."""
        if self._goal is None:
            return None
        state, parts = self._goal, list[tuple[Step, ...]]()
        while state in self._came:
            state, move = self._came[state]
            parts.append(tuple(self._steps(move)))
        return Schedule.of(step for part in reversed(parts) for step in part)

    def _steps(self, move: Move) -> Iterator[Step]:
        names = self.program.value_names
        yield from (Free(names[v]) for v in _bits(move.freed_before))
        if move.op >= 0:
            yield Compute(self.program.op_names[move.op])
        yield from (Free(names[v]) for v in _bits(move.freed_after))


def _bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
