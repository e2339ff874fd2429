"""A* over all schedules of a small graph: the least cost at a budget, or the least peak, proven.

The length of a path is the cost of its reruns; first runs are free. The estimate of the rest is the cost of ops that
must run again because a needed value was freed. Costs are summed as whole numbers, so rounding decides nothing.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Final, NamedTuple

from planner.bounds.peak import peak_lower_bound
from planner.bounds.states import Machine, Move, Program, State, bits, compile_program
from planner.graph import Graph
from planner.memory import MemoryModel
from planner.schedule import Compute, Free, Schedule, Step

#: States expanded before a search gives up, at effort 1: about half a second for ten ops.
MOST_STATES: Final = 12_000
_BETWEEN_LOOKS: Final = 256  # states expanded between two looks at the clock


class Answer(NamedTuple):
    """The outcome of a search over all schedules.

    Args:
        schedule: the best one; None if none fits, none beats the known one, or the search gave up before it had one.
        bound: no schedule is below it, in cost or in live bytes; infinite if none fits.
        proven: True if the bound is reached by the schedule, or without one by the known schedule.
        states: number of states expanded.
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
    """The least cost of any schedule within a budget, over all orders, numbers of runs and frees.

    Args:
        budget: most live bytes.
        pinned: first runs are in program order.
        known_cost: of some schedule that fits; only cheaper ones are sought.
        at_least: a proven bound on the cost; of states that do not exceed it, the one with most ops run goes first.
        most_states: number of states after which the search gives up; its bound stays valid.
        stop: asked now and then; the search gives up if it returns True.

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
        # Taken lower than any rounding of the bound can have lifted it.
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
    """The least peak of any schedule, by bisection; of schedules that reach it, the cheapest if time allows.

    Args:
        most_bytes: peak of a known schedule.
        pinned, most_states, stop: as for `cheapest_schedule`.
    """
    program = compile_program(graph, memory, pinned=pinned)
    zero = [0] * len(program.costs)
    grain = program.grain_bytes
    low, high = peak_lower_bound(graph, memory).nbytes, most_bytes
    low += -(low - program.resident_bytes) % grain  # every peak is the residents and a number of grains
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
    """Costs as whole multiples of one unit, exactly: every float is a multiple of some power of two."""
    exact = [Fraction(cost) for cost in costs]
    unit = Fraction(1, max((cost.denominator for cost in exact), default=1))
    return [int(cost / unit) for cost in exact], unit


class _Search:
    """One run of A* within a budget in bytes; `costs` are whole, and `most_states` and `stop` say when to give up."""

    def __init__(
        self, program: Program, budget: int, costs: list[int], most_states: int, stop: Callable[[], bool]
    ) -> None:
        self.program, self.costs = program, costs
        costless = sum(1 << k for k, cost in enumerate(costs) if not cost)
        self.machine = Machine(program, budget, costless)
        self.most_states, self.stop = most_states, stop
        self.enough: float = math.inf
        self.floor = 0
        self.states = 0
        self.proven = False
        self._goal: State | None = None
        self._came: dict[State, tuple[State, Move]] = {}
        self._sums: dict[int, int] = {}

    def run(self) -> int | None:
        """Least cost of reruns, or a bound on it if the search gave up; None if nothing fits."""
        machine, costs = self.machine, self.costs
        start = machine.start()
        known: dict[State, int] = {start: 0}
        queue: list[tuple[int, int, int, int, int, State]] = [(self.floor, 0, 0, 0, 0, start)]
        pushed = 0
        # If every op may run again for nothing, a state in which more ops ran can reach all that another can.
        program = self.program
        costless = program.plain and not any(costs) and not any(row.once or row.updated for row in program.rows)
        furthest = 0
        while queue:
            bound, _, _, _, extra, state = heapq.heappop(queue)
            if bound >= self.enough:
                self.proven = True
                return int(self.enough)
            runs = state[0].bit_count()
            if extra > known[state] or (costless and runs < furthest) or machine.dominated(state, extra):
                continue
            furthest = runs
            if machine.done(state):
                self._goal, self.proven = state, True
                return extra
            if self.states >= self.most_states or (self.states % _BETWEEN_LOOKS == 0 and self.stop()):
                return bound
            self.states += 1
            for after, move in machine.moves(state):
                then = extra + costs[move.op] if move.op >= 0 and state[0] >> move.op & 1 else extra
                if then < known.get(after, then + 1):
                    due = machine.owed(after)
                    if due is None:
                        continue
                    owed = self._cost_of(due)
                    known[after] = then
                    self._came[after] = state, move
                    pushed += 1  # of equals: most ops run, then fewest reruns due, then the newest
                    ahead = -after[0].bit_count(), due.bit_count(), -pushed
                    heapq.heappush(queue, (max(self.floor, then + owed), *ahead, then, after))
        self.proven = True
        return int(self.enough) if self.enough < math.inf else None

    def _cost_of(self, ops: int) -> int:
        """Summed cost of a mask of ops."""
        if ops not in self._sums:
            self._sums[ops] = sum(self.costs[k] for k in bits(ops))
        return self._sums[ops]

    def schedule(self) -> Schedule | None:
        """The schedule that leads to the goal; None if none was reached."""
        if self._goal is None:
            return None
        state, parts = self._goal, list[tuple[Step, ...]]()
        while state in self._came:
            state, move = self._came[state]
            parts.append(tuple(self._steps(move)))
        return Schedule.of(step for part in reversed(parts) for step in part)

    def _steps(self, move: Move) -> Iterator[Step]:
        names = self.program.value_names
        yield from (Free(names[v]) for v in bits(move.freed_before))
        if move.op >= 0:
            yield Compute(self.program.op_names[move.op])
        yield from (Free(names[v]) for v in bits(move.freed_after))
