"""The exact optimum of small graphs, by looking at every set of values that can be live."""

from __future__ import annotations

import heapq
from typing import Final, NamedTuple

import numpy as np

from planner.analysis.bounds import infeasible
from planner.analysis.encode import Arrays, Ints
from planner.analysis.liveness import evaluator_of
from planner.errors import InfeasibleBudget
from planner.graph import Graph
from planner.problem import Problem, Proposal

MOST_OPS: Final = 9
_MOST_VALUES: Final = 12


class Optimum(NamedTuple):
    """What no schedule of a graph goes below, and a sequence of op rows that reaches it.

    Args:
        peak_bytes: within the budget; without one, the least there is.
        cost: the least at that peak, or within the budget.
    """

    sequence: Ints
    peak_bytes: int
    cost: float


def applies(graph: Graph) -> bool:
    """True for at most nine ops whose outputs are storages of their own: no views, updates or in-place pairs.

    >>> from planner.graph import Op, Tensor
    >>> applies(Graph([Op("a", (Tensor("a", 4),)), Op("b", (Tensor("b", 2, output=True),), reads=("a",))]))
    True
    """
    ops = [op for op in graph.ops if not op.resident]
    plain = not any(op.view or op.updates or op.inplace for op in ops)
    return plain and len(ops) <= MOST_OPS and sum(len(op.outputs) for op in ops) <= _MOST_VALUES


def enumeration(problem: Problem) -> Proposal:
    """The cheapest schedule there is within the budget; without one, the cheapest of least peak. Only where `applies`.

    Raises:
        InfeasibleBudget: no schedule fits; carries the least peak, which a schedule reaches.
    """
    found = optimum(problem)
    if found is None:
        raise failure(problem)
    return Proposal(evaluator_of(problem.graph, problem.memory).schedule(found.sequence))


def failure(problem: Problem) -> InfeasibleBudget:
    """The error for a budget that no schedule fits."""
    least = optimum(Problem(problem.graph, None, problem.memory, problem.order))
    assert least is not None
    return infeasible(
        problem.graph, problem.memory, budget=(problem.budget or 0) + problem.memory.reserve,
        minimum=least.peak_bytes + problem.memory.reserve, found_by="enumeration",
    )  # fmt: skip


def optimum(problem: Problem) -> Optimum | None:
    """The proven optimum, or None where nothing fits the budget.

    A schedule is a walk over (live values, ops that ran). Dijkstra's algorithm finds the cheapest; values are dropped only where an op
    needs the room, in every way that leaves no room unused, so of two states with the same ops run, one with more live values and no
    higher cost makes the other needless.
    """
    assert applies(problem.graph)
    evaluator = evaluator_of(problem.graph, problem.memory)
    program = _Program(evaluator.encoded.arrays, pinned=problem.order == "pinned")
    if problem.budget is not None:
        sequence = program.cheapest(problem.budget)
    else:
        sequence = None
        highest = evaluator.evaluate(evaluator.keep_all)
        assert highest is not None
        low, high = 0, highest[0]
        while low < high:
            middle = (low + high) // 2
            if program.cheapest(middle) is None:
                low = middle + 1
            else:
                high = middle
        sequence = program.cheapest(low)
    if sequence is None:
        return None
    outcome = evaluator.evaluate(sequence)
    assert outcome is not None
    return Optimum(sequence, *outcome)


class _Program:
    """A graph as bit sets: one bit a value, one an op.

    Args:
        arrays: the graph.
        pinned: first runs keep the program's order.
    """

    def __init__(self, arrays: Arrays, *, pinned: bool) -> None:
        self.rows = np.flatnonzero(~arrays.resident).tolist()
        self.residents = int(arrays.resident_bytes[0])
        values = [v for op in self.rows for v in range(arrays.out_ptr[op], arrays.out_ptr[op + 1])]
        bit = {v: 1 << k for k, v in enumerate(values)}
        run = {op: 1 << k for k, op in enumerate(self.rows)}
        self.nbytes = [int(arrays.storage_bytes[v]) for v in values]
        self.cost = arrays.cost[self.rows].tolist()
        self.workspace = arrays.workspace[self.rows].tolist()
        self.outs = [sum(bit[v] for v in range(arrays.out_ptr[op], arrays.out_ptr[op + 1])) for op in self.rows]
        self.reads = [
            sum({bit.get(v, 0) for v in arrays.read_value[arrays.read_ptr[op] : arrays.read_ptr[op + 1]].tolist()}) for op in self.rows
        ]
        after = [arrays.after_op[arrays.after_ptr[op] : arrays.after_ptr[op + 1]].tolist() for op in self.rows]
        self.waits = [sum({run.get(a, 0) for a in some}) for some in after]
        if pinned:
            self.waits = [(1 << k) - 1 for k in range(len(self.rows))]
        self.once = [not arrays.recomputable[op] or not self.outs[k] for k, op in enumerate(self.rows)]
        self.goal = sum(bit[v] for v in values if arrays.is_output[v])
        self.size = [0] * (1 << len(values))
        for some in range(1, len(self.size)):
            low = some & -some
            self.size[some] = self.size[some ^ low] + self.nbytes[low.bit_length() - 1]

    def cheapest(self, budget: int) -> Ints | None:
        """Rows of the cheapest sequence within the budget, or None."""
        room = budget - self.residents
        everything = (1 << len(self.rows)) - 1
        start = (0, 0)
        costs: dict[tuple[int, int], float] = {start: 0.0}
        came: dict[tuple[int, int], tuple[tuple[int, int], int]] = {}
        settled: dict[int, list[int]] = {}  # ops that ran -> sets of live values, none within another
        queue: list[tuple[float, int, int]] = [(0.0, 0, 0)]
        if room < 0:
            return None
        while queue:
            cost, ran, live = heapq.heappop(queue)
            known = settled.setdefault(ran, [])
            if any(live & other == live for other in known):
                continue
            known.append(live)
            if ran == everything and live & self.goal == self.goal:
                return self._path(came, (ran, live))
            for k, row in enumerate(self.rows):
                one = 1 << k
                if self.reads[k] & ~live or (ran & one and self.once[k]) or (self.outs[k] and not self.outs[k] & ~live):
                    continue
                if not ran & one and self.waits[k] & ~ran:
                    continue
                then = cost + self.cost[k]
                fresh = self.size[self.outs[k]] + self.workspace[k]
                for kept in self._kept(live, self.reads[k], room - fresh):
                    state = (ran | one, kept | self.outs[k])
                    if then < costs.get(state, np.inf):
                        costs[state] = then
                        came[state] = ((ran, live), row)
                        heapq.heappush(queue, (then, *state))
        return None

    def _kept(self, live: int, needed: int, room: int) -> list[int]:
        """The largest sets of live values, those needed among them, that fit the room."""
        if self.size[live] <= room:
            return [live]
        if self.size[needed] > room:
            return []
        found: list[int] = []
        loose = live & ~needed
        some = loose
        while True:  # all subsets, each after every set that holds it
            if self.size[some | needed] <= room and not any(some & other == some for other in found):
                found.append(some)
            if not some:
                return [other | needed for other in found]
            some = (some - 1) & loose

    @staticmethod
    def _path(came: dict[tuple[int, int], tuple[tuple[int, int], int]], state: tuple[int, int]) -> Ints:
        rows: list[int] = []
        while state in came:
            state, row = came[state]
            rows.append(row)
        return np.array(rows[::-1], dtype=np.int64)
