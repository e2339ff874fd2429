"""One graph and allocator: what a strategy proposes is packed, judged, and asked again where the arena misses the
budget.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

import msgspec

from planner.analysis.evaluator import evaluator_of
from planner.bounds.peak import infeasible
from planner.bounds.proofs import lower_bounds
from planner.errors import InfeasibleBudget, ScheduleError, TimeLimit
from planner.footprint.advice import shortfall
from planner.footprint.components import Simulated
from planner.graph import Graph
from planner.memory import Allocation, MemoryModel
from planner.packing import find_allocator
from planner.policy import Policy
from planner.problem import Allocator, Order, Problem, Proposal, Status, Strategy, effort_schedule, out_of_order
from planner.report import Figures, Report, replayed
from planner.schedule import Schedule
from planner.simulator import Trace
from planner.simulator import simulate as judge
from planner.units import format_bytes


class Candidate:
    """A proposal with the judge's verdict."""

    def __init__(self, proposal: Proposal, allocation: Allocation | None, trace: Trace) -> None:
        self.proposal, self.allocation, self.trace = proposal, allocation, trace
        self.arena_bytes = trace.peak_bytes if trace.arena_bytes is None else trace.arena_bytes

    @property
    def figures(self) -> Figures:
        """For a report or a curve."""
        return Figures(self.trace.peak_bytes, self.arena_bytes, self.trace.cost)


class Progress:
    """From plans judged to `progress`. What that raises is raised, whatever a strategy catches: see `failure`.

    Args:
        progress: called at each plan judged.
    """

    def __init__(self, progress: Callable[[Status], None]) -> None:
        self.progress = progress
        self.started = time.monotonic()
        self.failure: Exception | None = None
        self.plans_judged = 0
        self.keep_all_cost, self.cost_lower_bound = 0.0, 0.0
        self._best: tuple[float, float] | None = None
        self._asked_budget = False

    def ask(self, *, budget: int | None) -> None:
        """A new question: nothing found before answers it."""
        self._best, self._asked_budget = None, budget is not None

    def __call__(self, strategy: str, peak_bytes: int, cost: float, fits: bool) -> None:
        """One plan judged."""
        self.plans_judged += 1
        ranked = (cost, peak_bytes) if self._asked_budget else (peak_bytes, cost)
        if fits and (self._best is None or ranked < self._best):
            self._best = ranked
        best_cost, best_peak = (
            (None, None) if self._best is None else self._best if self._asked_budget else self._best[::-1]
        )
        status = Status(
            strategy,
            None if best_peak is None else int(best_peak),
            self._overhead(best_cost),
            self._overhead(self.cost_lower_bound) or 0.0,
            self.plans_judged,
            time.monotonic() - self.started,
        )
        try:
            self.progress(status)
        except Exception as failure:
            self.failure = failure
            raise

    def _overhead(self, cost: float | None) -> float | None:
        """As a fraction of keep-all's cost; rounding never makes it less than nothing."""
        return None if cost is None else max(0.0, cost / self.keep_all_cost - 1) if self.keep_all_cost else 0.0


class Session:
    """One graph and allocator: what every strategy and budget on it share.

    Args:
        graph, allocator, memory: what is planned, and how.
        policy: the user's, or None.
        progress: told of each plan judged.
    """

    def __init__(
        self,
        graph: Graph,
        allocator: str | Allocator | None,
        memory: MemoryModel,
        *,
        policy: Policy | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.graph, self.memory, self.policy, self.progress = graph, memory, policy, progress
        self.allocator_name: str | None = None
        self.allocator: Allocator | None = None
        if allocator is not None:
            self.allocator_name, self.allocator = find_allocator(allocator)
        self._judged: dict[Schedule, Candidate] = {}
        evaluator = evaluator_of(graph, memory)
        self.keep_all = self.judged(Proposal(evaluator.schedule(evaluator.keep_all)))
        #: The cheapest plan: keep-all, and what the rules make run again.
        self.base = self.keep_all if policy is None else self.judged(Proposal(policy.base))
        self.cost_lower_bound = self.keep_all.trace.cost if policy is None else policy.cost_lower_bound
        if progress is not None:
            progress.keep_all_cost, progress.cost_lower_bound = self.keep_all.trace.cost, self.cost_lower_bound

    def problem(self, *, order: Order, seed: int, effort: float, deadline: float | None) -> Problem:
        """What is asked of strategies, without a budget yet."""
        program = self.graph if self.policy is None else self.policy.search_graph
        return Problem(program, None, self.memory, order, seed, effort, deadline, self.progress)

    def judged(self, proposal: Proposal) -> Candidate:
        """Pack a proposal and replay it; the last few are remembered, since neighbouring budgets and strategies often
        agree.
        """
        schedule = proposal.schedule
        known = self._judged.pop(schedule, None)
        if known is not None:
            self._judged[schedule] = known
            return Candidate(proposal, known.allocation, known.trace)
        try:
            allocation = None if self.allocator is None else self.allocator(self.graph, schedule, memory=self.memory)
        except ScheduleError:
            judge(self.graph, schedule, memory=self.memory)  # names the step
            raise
        candidate = Candidate(
            proposal, allocation, judge(self.graph, schedule, memory=self.memory, allocation=allocation)
        )
        self._judged[schedule] = candidate
        if len(self._judged) > 8:
            del self._judged[next(iter(self._judged))]
        return candidate

    def propose(self, strategy: Strategy, problem: Problem) -> Proposal:
        """Ask a strategy; hold it to the user's rules, and where the order is pinned, to that."""
        if self.progress is not None:
            self.progress.ask(budget=problem.budget)
        proposal = strategy(problem) if self.policy is None else self.policy.ask(strategy, problem)
        if problem.order == "pinned" and (pair := out_of_order(self.graph, proposal.schedule)) is not None:
            raise ScheduleError(f"first runs {pair[1]!r} before {pair[0]!r}, but the order is pinned", op=pair[1])
        return proposal

    def attempts(self, strategy: Strategy, problem: Problem, allowed: int) -> Iterator[Candidate]:
        """What a strategy proposes for a budget, asked again for less while the arena misses it: only the last can
        fit.
        """
        target = allowed
        for _ in range(8):
            if target < 1:
                return
            try:
                proposal = self.propose(strategy, msgspec.structs.replace(problem, budget=target))
            except InfeasibleBudget:
                return
            if target < allowed:  # what is proven of less memory is not proven of the budget
                proposal = proposal.unclaimed()
            candidate = self.judged(proposal)
            yield candidate
            if candidate.arena_bytes <= allowed or proposal.cut_short:
                return
            target = min(target - (candidate.arena_bytes - allowed), candidate.trace.peak_bytes - 1)

    def solve(self, name: str, strategy: Strategy, problem: Problem, budget_bytes: int | None) -> Candidate:
        """The best of what is found at effort 1, then 2, then 4, as far as the effort goes: so more of it never finds
        less.
        """
        found: list[Candidate] = []
        failures: list[InfeasibleBudget] = []
        late = False
        for effort in effort_schedule(problem.effort):
            if (found or failures) and problem.out_of_time:
                late = True
                break
            try:
                candidate = self._solve(name, strategy, msgspec.structs.replace(problem, effort=effort), budget_bytes)
            except InfeasibleBudget as failure:
                failures.append(failure)
                continue
            except (TimeLimit, KeyboardInterrupt):
                if not found:
                    raise
                late = True
                break
            found.append(candidate)
            late = candidate.proposal.cut_short  # by the deadline, or by Ctrl-C, which must not begin the next search
            if late or self._is_best(candidate, budget_bytes, effort=problem.effort):
                break
        if not found:
            raise min(failures, key=lambda failure: failure.minimum or 2**63)
        if budget_bytes is None:
            best = min(found, key=lambda candidate: (candidate.arena_bytes, candidate.trace.cost))
        else:
            best = min(found, key=lambda candidate: (candidate.trace.cost, candidate.arena_bytes))
        return (
            Candidate(msgspec.structs.replace(best.proposal, cut_short=True), best.allocation, best.trace)
            if late
            else best
        )

    def _is_best(self, candidate: Candidate, budget_bytes: int | None, *, effort: float) -> bool:
        """True if no plan can be better: by the strategy's word, by one run of everything, or by the bound that the
        report will state.
        """
        cost = candidate.trace.cost
        if candidate.proposal.optimal is not None or budget_bytes is None:
            return candidate.proposal.optimal is not None
        if cost <= self.cost_lower_bound:
            return True
        return (
            lower_bounds(
                self.graph, self.memory, budget_bytes - self.memory.reserve, plan_cost=cost, effort=effort
            ).cost
            >= cost
        )

    def _solve(self, name: str, strategy: Strategy, problem: Problem, budget_bytes: int | None) -> Candidate:
        """Keep-all if it fits (with the user's rules: `base`), else what the strategy finds, else its plan of least
        peak.
        """
        peaks = [self.base.trace.peak_bytes]
        if budget_bytes is not None:
            allowed = budget_bytes - self.memory.reserve
            if self.base.arena_bytes <= allowed:
                return self.base
            for candidate in self.attempts(strategy, problem, allowed):
                self._tell(name, candidate, fits=candidate.arena_bytes <= allowed)
                if candidate.arena_bytes <= allowed:
                    return candidate
                peaks.append(candidate.trace.peak_bytes)
                if problem.out_of_time:
                    budget = format_bytes(budget_bytes)
                    raise TimeLimit(
                        f"no plan whose arena fits {budget} was found in time; raise the limit or the budget"
                    )
                if candidate.proposal.cut_short:
                    raise KeyboardInterrupt  # the strategy took it, and what it had by then does not fit
        least = self._least(strategy, problem)
        self._tell(name, least, fits=budget_bytes is None or least.arena_bytes <= allowed)
        if budget_bytes is None:
            return least
        if least.arena_bytes <= allowed:  # what it says of the least peak was not asked
            return Candidate(least.proposal.unclaimed(), least.allocation, least.trace)
        minimum = least.arena_bytes + self.memory.reserve
        reached = min(*peaks, least.trace.peak_bytes)
        runs = [self._simulated(candidate) for candidate in (self.keep_all, least)]
        packing_bytes = least.arena_bytes - least.trace.peak_bytes
        error = infeasible(
            self.graph,
            self.memory,
            budget=budget_bytes,
            minimum=minimum,
            found_by=name,
            live_fit=reached if reached <= allowed else None,
            shortfall=shortfall(*runs, allowed=allowed, reached_bytes=reached, packing_bytes=packing_bytes),
            impossible=reached > allowed and self.nothing_fits(allowed, effort=problem.effort),
        )
        if self.policy is not None:
            why, _, remedy = str(error).partition("\n")
            kept = ", ".join(f"{ruling.kind} {ruling.pattern!r}" for ruling in self.policy.rulings)
            error.args = (f"{why} Within the rules, that is: {kept}.\n{remedy}",)
        raise error

    def _least(self, strategy: Strategy, problem: Problem) -> Candidate:
        """The plan of least arena: that of least peak, unless packing wastes of it what others do not; so they are
        asked for.
        """

        def size(candidate: Candidate) -> tuple[int, float]:
            return candidate.arena_bytes, candidate.trace.cost

        least = min(self.base, self.judged(self.propose(strategy, problem)), key=size)
        if least.arena_bytes - least.trace.peak_bytes <= least.trace.peak_bytes // 1000:
            return least
        for _ in range(2):
            if problem.out_of_time or least.proposal.cut_short:
                break
            smaller = min(self.attempts(strategy, problem, least.arena_bytes - 1), key=size, default=least)
            if size(smaller) >= size(least):
                break
            # nobody asked for this budget
            proposal = msgspec.structs.replace(smaller.proposal, cost_lower_bound=None, optimal=None)
            least = Candidate(proposal, smaller.allocation, smaller.trace)
        return least

    def nothing_fits(self, allowed: int, *, effort: float) -> bool:
        """True if it is proven that no plan's live bytes fit."""
        return lower_bounds(self.graph, self.memory, allowed, plan_cost=math.inf, effort=effort).cost == math.inf

    def _tell(self, name: str, candidate: Candidate, *, fits: bool) -> None:
        if self.progress is not None:
            self.progress(name, candidate.trace.peak_bytes, candidate.trace.cost, fits)

    def _simulated(self, candidate: Candidate) -> Simulated:
        evaluator = evaluator_of(self.graph, self.memory)
        return Simulated(
            self.graph, self.memory, evaluator=evaluator, schedule=candidate.proposal.schedule, trace=candidate.trace
        )

    def report(
        self,
        strategy: str,
        candidate: Candidate,
        budget_bytes: int | None,
        budget_text: str,
        *,
        effort: float,
        order: Order,
    ) -> Report:
        """Everything a reader of the plan asks."""
        trace, proposal = candidate.trace, candidate.proposal
        allowed = None if budget_bytes is None else budget_bytes - self.memory.reserve
        bound, least_cost = lower_bounds(self.graph, self.memory, allowed, plan_cost=trace.cost, effort=effort)
        least_cost = max(least_cost, self.cost_lower_bound)  # the user may say that some ops run twice
        # A bound above what the plan itself takes is no bound: nothing of such a claim is repeated.
        modest = (proposal.peak_lower_bound or 0) <= trace.peak_bytes and (
            proposal.cost_lower_bound or 0.0
        ) <= trace.cost
        peak_bound = max(bound, proposal.peak_lower_bound or 0) if modest else bound
        cost_bound = max(least_cost, proposal.cost_lower_bound or 0.0) if modest else least_cost
        optimal = proposal.optimal if modest else None
        if optimal is not None and optimal.startswith("peak") != (budget_bytes is None):
            optimal = None  # it is the plan of least peak, after no other was found within the budget
        if budget_bytes is not None and trace.cost <= least_cost:
            optimal = "cost at this budget, order free"
        elif budget_bytes is None and trace.peak_bytes <= bound:
            optimal = "peak, order free"
        return Report(
            graph=self.graph.name,
            ops=sum(not op.resident for op in self.graph.ops),
            strategy=strategy,
            allocator=self.allocator_name,
            keep_all=self.keep_all.figures,
            plan=candidate.figures,
            peak_lower_bound=peak_bound,
            cost_lower_bound=cost_bound,
            budget=budget_bytes,
            budget_text=budget_text,
            memory=self.memory,
            optimal=optimal,
            cut_short=proposal.cut_short,
            arena_lower_bound=0 if candidate.allocation is None else candidate.allocation.bound_bytes,
            rules=() if self.policy is None else self.policy.rulings,
            order=order,
            **replayed(self.graph, trace),
        )
