"""The verbs: search, pack, judge, and hand over a plan."""

from __future__ import annotations

import math
import os
import time
from typing import Union

import networkx as nx

from planner.analysis.bounds import infeasible, peak_lower_bound
from planner.analysis.liveness import evaluator_of
from planner.errors import InfeasibleBudget, PlannerError, TimeLimit
from planner.graph import Graph
from planner.lowering.files import read_graph
from planner.lowering.schema import lower
from planner.memory import Allocation, MemoryModel
from planner.packing import find_allocator
from planner.plan import Plan
from planner.problem import Allocator, Order, Problem, Proposal, Strategy
from planner.report import Figures, Report, replayed
from planner.schedule import Schedule
from planner.search import find_strategy
from planner.simulator import Trace
from planner.simulator import simulate as judge
from planner.units import MAX_BYTES, Budget, format_bytes, parse_budget

GraphLike = Union[nx.DiGraph, Graph, str, os.PathLike[str]]


def optimize(
    graph: GraphLike,
    budget: Budget | None = None,
    *,
    strategy: str | Strategy = "auto",
    allocator: str | Allocator | None = "auto",
    memory: MemoryModel = MemoryModel(),
    order: Order = "free",
    effort: float = 1.0,
    time_limit: float | None = None,
    seed: int = 0,
) -> Plan:
    """The cheapest plan found that fits the budget; without a budget, the one of least peak.

    Whatever a strategy proposes is packed and replayed by the judge before it is returned. Where the arena misses the budget
    that the peak meets, the search is asked again for the difference.

    Args:
        graph: a networkx DiGraph in the schema, a `Graph`, or the path of an ONNX or JSON file.
        budget: `"7GB"`, `"7GiB"`, bytes, or a fraction of the keep-all peak in the same scope (`0.4`, `"40%"`).
        strategy: a registered name, or a callable Problem -> Proposal.
        allocator: a registered name, or a callable; None plans live bytes, without offsets.
        memory: what the budget covers.
        order: "pinned" forbids first runs in another order than the program's.
        effort: search work relative to the default; counted in moves, so the result is the same on any machine.
        time_limit: seconds; the best plan so far is returned, and says that it was cut short.
    Raises:
        InfeasibleBudget: no plan fits; carries the least that works, and what no plan can go below.
        TimeLimit: the limit passed before a plan was found.
        GraphError, UnitError, UnknownStrategy, UnknownAllocator: the arguments.

    >>> import networkx as nx
    >>> g = nx.DiGraph()
    >>> g.add_node("a", nbytes=4)
    >>> g.add_node("b", nbytes=2)
    >>> g.add_edge("a", "b")
    >>> optimize(g, "100%").report.plan
    Figures(peak_bytes=6, arena_bytes=6, cost=2.0)
    """
    if order not in ("free", "pinned"):
        raise PlannerError(f"order {order!r} is not 'free' or 'pinned'")
    if not (isinstance(effort, (int, float)) and math.isfinite(effort) and effort > 0):
        raise PlannerError(f"effort {effort!r} is not a number above 0")
    if time_limit is not None and not time_limit > 0:
        raise PlannerError(f"time limit {time_limit!r} is not a number of seconds above 0")
    if budget is not None:
        parse_budget(budget, MAX_BYTES)  # refuse what is not understood before any work
    deadline = None if time_limit is None else time.monotonic() + time_limit
    work = _Work(as_graph(graph), strategy, allocator, memory)
    budget_bytes = None if budget is None else parse_budget(budget, work.keep_all.trace.peak_bytes)
    problem = Problem(work.graph, None, memory, order, seed, float(effort), deadline)
    solution = work.solve(problem, budget_bytes)
    report = work.report(solution, budget_bytes, "least peak" if budget is None else str(budget))
    return Plan(
        work.graph, solution.proposal.schedule, solution.allocation, report, work.strategy_name, work.allocator_name, budget_bytes,
        memory, seed, float(effort),
    )  # fmt: skip


def allocate(
    graph: GraphLike, schedule: Schedule, *, allocator: str | Allocator = "auto", memory: MemoryModel = MemoryModel()
) -> Allocation:
    """Offsets for every buffer of a schedule, checked by the judge.

    Raises:
        ScheduleError: the schedule is illegal.
        VerificationError: the allocator's offsets are.
        UnknownAllocator: no such name.

    >>> import networkx as nx
    >>> g = nx.DiGraph()
    >>> g.add_node("a", nbytes=4)
    >>> allocate(g, optimize(g).schedule).arena_bytes
    4
    """
    program = as_graph(graph)
    judge(program, schedule, memory=memory)
    allocation = find_allocator(allocator)[1](program, schedule, memory=memory)
    judge(program, schedule, memory=memory, allocation=allocation)
    return allocation


def simulate(
    graph: GraphLike, schedule: Schedule, *, memory: MemoryModel = MemoryModel(), allocation: Allocation | None = None
) -> Trace:
    """The judge's verdict on a schedule; see `planner.simulator.simulate`. Takes any form of a graph.

    >>> import networkx as nx
    >>> g = nx.DiGraph()
    >>> g.add_node("a", nbytes=4)
    >>> simulate(g, optimize(g).schedule).peak_bytes
    4
    """
    return judge(as_graph(graph), schedule, memory=memory, allocation=allocation)


def as_graph(graph: GraphLike) -> Graph:
    """The program of a graph in any form.

    Raises:
        GraphError: unreadable or invalid.
    """
    if isinstance(graph, (str, os.PathLike)):
        graph = read_graph(graph)
    return lower(graph)


class _Solution:
    """A proposal with the judge's verdict."""

    def __init__(self, proposal: Proposal, allocation: Allocation | None, trace: Trace) -> None:
        self.proposal, self.allocation, self.trace = proposal, allocation, trace
        self.arena_bytes = trace.peak_bytes if trace.arena_bytes is None else trace.arena_bytes


class _Work:
    """One graph, strategy and allocator."""

    def __init__(self, graph: Graph, strategy: str | Strategy, allocator: str | Allocator | None, memory: MemoryModel) -> None:
        self.graph, self.memory = graph, memory
        self.strategy_name, self.strategy = find_strategy(strategy)
        self.allocator_name: str | None = None
        self.allocator: Allocator | None = None
        if allocator is not None:
            self.allocator_name, self.allocator = find_allocator(allocator)
        evaluator = evaluator_of(graph, memory)
        self.keep_all = self.judged(Proposal(evaluator.schedule(evaluator.keep_all)))

    def judged(self, proposal: Proposal) -> _Solution:
        """Pack a proposal and replay it."""
        allocation = None if self.allocator is None else self.allocator(self.graph, proposal.schedule, memory=self.memory)
        return _Solution(proposal, allocation, judge(self.graph, proposal.schedule, memory=self.memory, allocation=allocation))

    def solve(self, problem: Problem, budget_bytes: int | None) -> _Solution:
        """Keep-all if it fits, else the strategy, asked again for less while its arena misses the budget."""
        if budget_bytes is None:
            least = self.judged(self.strategy(problem))
            return min(self.keep_all, least, key=lambda s: (s.arena_bytes, s.trace.cost))
        allowed = budget_bytes - self.memory.reserve
        if self.keep_all.arena_bytes <= allowed:
            return self.keep_all
        target = allowed
        for _ in range(8):
            if target < 1:
                break
            try:
                solution = self.judged(self.strategy(_with_budget(problem, target)))
            except InfeasibleBudget:
                break
            if solution.arena_bytes <= allowed:
                return solution
            if problem.out_of_time:
                raise TimeLimit(f"no plan whose arena fits {format_bytes(budget_bytes)} was found in time; raise the limit or the budget")
            target = min(target - (solution.arena_bytes - allowed), solution.trace.peak_bytes - 1)
        least = self.solve(problem, None)
        if least.arena_bytes <= allowed:
            return least
        raise infeasible(
            self.graph, self.memory, budget=budget_bytes, minimum=least.arena_bytes + self.memory.reserve, found_by=self.strategy_name
        )

    def report(self, solution: _Solution, budget_bytes: int | None, budget_text: str) -> Report:
        """Everything a reader of the plan asks."""
        trace, proposal = solution.trace, solution.proposal
        bound = peak_lower_bound(self.graph, self.memory).nbytes
        peak_bound = max(bound, proposal.peak_lower_bound or 0)
        cost_bound = max(self.keep_all.trace.cost, proposal.cost_lower_bound or 0.0)  # every op runs once in keep-all
        optimal = proposal.optimal
        if budget_bytes is not None and trace.cost <= cost_bound:
            optimal = "cost at this budget, order free"
        elif budget_bytes is None and trace.peak_bytes <= peak_bound:
            optimal = "peak, order free"
        return Report(
            graph=self.graph.name,
            ops=sum(not op.resident for op in self.graph.ops),
            strategy=self.strategy_name,
            allocator=self.allocator_name,
            keep_all=_figures(self.keep_all),
            plan=_figures(solution),
            peak_lower_bound=peak_bound,
            cost_lower_bound=cost_bound,
            budget=budget_bytes,
            budget_text=budget_text,
            memory=self.memory,
            live_at_peak=tuple(
                (value, nbytes, "recomputed" if self.graph.producer[value].name in trace.recomputed else "kept")
                for value, nbytes in trace.live_at_peak[:8]
            ),
            optimal=optimal,
            cut_short=proposal.cut_short,
            **replayed(trace),
        )


def _with_budget(problem: Problem, budget: int) -> Problem:
    return Problem(problem.graph, budget, problem.memory, problem.order, problem.seed, problem.effort, problem.deadline)


def _figures(solution: _Solution) -> Figures:
    return Figures(solution.trace.peak_bytes, solution.arena_bytes, solution.trace.cost)
