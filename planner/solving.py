"""One graph and allocator: what a strategy proposes is packed, judged, and asked again where the arena misses the budget."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from planner.analysis.bounds import infeasible, peak_lower_bound
from planner.analysis.components import Simulated
from planner.analysis.liveness import evaluator_of
from planner.analysis.shortfall import shortfall
from planner.errors import InfeasibleBudget, ScheduleError, TimeLimit
from planner.graph import Graph
from planner.memory import Allocation, MemoryModel
from planner.packing import find_allocator
from planner.problem import Allocator, Problem, Proposal, Strategy
from planner.report import Figures, Report, replayed
from planner.schedule import Schedule
from planner.simulator import Trace
from planner.simulator import simulate as judge
from planner.units import format_bytes


class Solution:
    """A proposal with the judge's verdict."""

    def __init__(self, proposal: Proposal, allocation: Allocation | None, trace: Trace) -> None:
        self.proposal, self.allocation, self.trace = proposal, allocation, trace
        self.arena_bytes = trace.peak_bytes if trace.arena_bytes is None else trace.arena_bytes

    @property
    def figures(self) -> Figures:
        """For a report or a curve."""
        return Figures(self.trace.peak_bytes, self.arena_bytes, self.trace.cost)


class Work:
    """One graph and allocator: what every strategy and budget on it share."""

    def __init__(self, graph: Graph, allocator: str | Allocator | None, memory: MemoryModel) -> None:
        self.graph, self.memory = graph, memory
        self.allocator_name: str | None = None
        self.allocator: Allocator | None = None
        if allocator is not None:
            self.allocator_name, self.allocator = find_allocator(allocator)
        self._judged: dict[Schedule, Solution] = {}
        evaluator = evaluator_of(graph, memory)
        self.keep_all = self.judged(Proposal(evaluator.schedule(evaluator.keep_all)))

    def judged(self, proposal: Proposal) -> Solution:
        """Pack a proposal and replay it; the last few are remembered, since neighbouring budgets and strategies often agree."""
        schedule = proposal.schedule
        known = self._judged.pop(schedule, None)
        if known is not None:
            self._judged[schedule] = known
            return Solution(proposal, known.allocation, known.trace)
        try:
            allocation = None if self.allocator is None else self.allocator(self.graph, schedule, memory=self.memory)
        except ScheduleError:
            judge(self.graph, schedule, memory=self.memory)  # names the step
            raise
        solution = Solution(proposal, allocation, judge(self.graph, schedule, memory=self.memory, allocation=allocation))
        self._judged[schedule] = solution
        if len(self._judged) > 8:
            del self._judged[next(iter(self._judged))]
        return solution

    def propose(self, strategy: Strategy, problem: Problem) -> Proposal:
        """Ask a strategy; where the order is pinned, hold it to that."""
        proposal = strategy(problem)
        if problem.order == "pinned":
            first_runs = list(dict.fromkeys(proposal.schedule.computes))
            program = [op.name for op in self.graph.ops if not op.resident]
            for wanted, found in zip(program, first_runs, strict=False):
                if wanted != found:
                    raise ScheduleError(f"first runs {found!r} before {wanted!r}, but the order is pinned", op=found)
        return proposal

    def attempts(self, strategy: Strategy, problem: Problem, allowed: int) -> Iterator[Solution]:
        """What a strategy proposes for a budget, asked again for less while the arena misses it: only the last can fit."""
        target = allowed
        for _ in range(8):
            if target < 1:
                return
            try:
                solution = self.judged(self.propose(strategy, msgspec.structs.replace(problem, budget=target)))
            except InfeasibleBudget:
                return
            yield solution
            if solution.arena_bytes <= allowed:
                return
            target = min(target - (solution.arena_bytes - allowed), solution.trace.peak_bytes - 1)

    def solve(self, name: str, strategy: Strategy, problem: Problem, budget_bytes: int | None) -> Solution:
        """Keep-all if it fits, else what the strategy finds, else its plan of least peak."""
        peaks = [self.keep_all.trace.peak_bytes]
        if budget_bytes is not None:
            allowed = budget_bytes - self.memory.reserve
            if self.keep_all.arena_bytes <= allowed:
                return self.keep_all
            for solution in self.attempts(strategy, problem, allowed):
                if solution.arena_bytes <= allowed:
                    return solution
                peaks.append(solution.trace.peak_bytes)
                if problem.out_of_time:
                    budget = format_bytes(budget_bytes)
                    raise TimeLimit(f"no plan whose arena fits {budget} was found in time; raise the limit or the budget")
        least = min(self.keep_all, self.judged(self.propose(strategy, problem)), key=lambda s: (s.arena_bytes, s.trace.cost))
        if budget_bytes is None or least.arena_bytes <= allowed:
            return least
        minimum = least.arena_bytes + self.memory.reserve
        reached = min(*peaks, least.trace.peak_bytes)
        runs = [self._simulated(solution) for solution in (self.keep_all, least)]
        packing_bytes = least.arena_bytes - least.trace.peak_bytes
        raise infeasible(
            self.graph, self.memory, budget=budget_bytes, minimum=minimum, found_by=name,
            live_fit=reached if reached <= allowed else None,
            shortfall=shortfall(*runs, allowed=allowed, reached_bytes=reached, packing_bytes=packing_bytes),
        )  # fmt: skip

    def _simulated(self, solution: Solution) -> Simulated:
        evaluator = evaluator_of(self.graph, self.memory)
        return Simulated(self.graph, self.memory, evaluator=evaluator, schedule=solution.proposal.schedule, trace=solution.trace)

    def report(self, strategy: str, solution: Solution, budget_bytes: int | None, budget_text: str) -> Report:
        """Everything a reader of the plan asks."""
        trace, proposal = solution.trace, solution.proposal
        bound = peak_lower_bound(self.graph, self.memory).nbytes
        one_run = self.keep_all.trace.cost  # every op runs once in keep-all, and at least once in any plan
        # A bound above what the plan itself takes is no bound: nothing of such a claim is repeated.
        modest = (proposal.peak_lower_bound or 0) <= trace.peak_bytes and (proposal.cost_lower_bound or 0.0) <= trace.cost
        peak_bound = max(bound, proposal.peak_lower_bound or 0) if modest else bound
        cost_bound = max(one_run, proposal.cost_lower_bound or 0.0) if modest else one_run
        optimal = proposal.optimal if modest else None
        if budget_bytes is not None and trace.cost <= cost_bound:
            optimal = "cost at this budget, order free"
        elif budget_bytes is None and trace.peak_bytes <= peak_bound:
            optimal = "peak, order free"
        return Report(
            graph=self.graph.name,
            ops=sum(not op.resident for op in self.graph.ops),
            strategy=strategy,
            allocator=self.allocator_name,
            keep_all=self.keep_all.figures,
            plan=solution.figures,
            peak_lower_bound=peak_bound,
            cost_lower_bound=cost_bound,
            budget=budget_bytes,
            budget_text=budget_text,
            memory=self.memory,
            optimal=optimal,
            cut_short=proposal.cut_short,
            arena_lower_bound=0 if solution.allocation is None else solution.allocation.bound_bytes,
            **replayed(self.graph, trace),
        )
