"""One question about one graph: strategies are asked, and what they propose is packed, judged, bounded and reported."""

from __future__ import annotations

import copy
import inspect
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from planner.analysis.evaluator import evaluator_of
from planner.bounds import LowerBounds, lower_bounds
from planner.bounds.peak import peak_lower_bound
from planner.errors import InfeasibleBudget, PlannerError, ScheduleError, TimeLimit, VerificationError
from planner.graph import Graph
from planner.memory import Allocation
from planner.names import ALLOCATORS, STRATEGIES
from planner.packing import find_allocator
from planner.plan import Plan
from planner.planning.infeasible import infeasible
from planner.policy import Policy, policy_of
from planner.problem import (
    SMALL_OPS,
    Allocator,
    Budget,
    Problem,
    Proposal,
    Request,
    Status,
    Stop,
    Strategy,
    effort_schedule,
    out_of_order,
)
from planner.remedies import Shortfall
from planner.report import Figures, Report, replayed
from planner.schedule import Schedule, keep_all
from planner.search import find_strategy
from planner.simulator import Trace
from planner.simulator import simulate as judge
from planner.text import shown
from planner.units import format_bytes

#: Where an arena misses the budget, the next search asks for less by these parts of what is missing.
_SHARES: Final = (0.25, 1.0, 1.0, 1.0, 1.0)
#: An arena of more than so many times the budget: in plans that lie between, packing wastes as much.
_FAR: Final = 1.05


class Candidate:
    """A proposal with the judge's verdict."""

    def __init__(self, proposal: Proposal, allocation: Allocation | None, trace: Trace) -> None:
        self.proposal, self.allocation, self.trace = proposal, allocation, trace
        self.arena_bytes = trace.peak_bytes if trace.arena_bytes is None else trace.arena_bytes

    @property
    def figures(self) -> Figures:
        """For a report or a curve."""
        return Figures(self.trace.peak_bytes, self.arena_bytes, self.trace.cost)

    @property
    def size(self) -> tuple[int, float]:
        """What a plan of least arena is ranked by."""
        return self.arena_bytes, self.trace.cost

    def having(self, **changes: Any) -> Candidate:
        """The same plan, of which the strategy claims something else."""
        return Candidate(msgspec.structs.replace(self.proposal, **changes), self.allocation, self.trace)


class Missed(NamedTuple):
    """What was found for a budget that nothing fits, and a search effort it was found with."""

    least: Candidate
    reached_bytes: int
    effort: float


#: (session, what was found) -> what recomputation cannot mend, and what would.
Advise = Callable[["Session", Missed], Shortfall]


class Progress:
    """From plans judged to `progress`.

    Args:
        progress: called at each plan judged. What it raises ends the search, whatever a strategy catches.
    """

    def __init__(self, progress: Callable[[Status], None]) -> None:
        if not callable(progress):
            raise PlannerError(f"progress {shown(progress)} is not callable")
        self.progress = progress
        self.started = time.monotonic()
        self.failure: Exception | None = None
        self.plans_judged = 0
        self.keep_all_cost, self.cost_lower_bound = 0.0, 0.0
        self._best: tuple[float, float] | None = None
        self._asked_budget = False

    def refuse(self, strategy: str, reason: str) -> None:
        """Tell that no plan can fit, and why."""
        elapsed_seconds = time.monotonic() - self.started
        bound = self._overhead(self.cost_lower_bound) or 0.0
        self._call(Status(strategy, None, None, bound, self.plans_judged, elapsed_seconds, reason))

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
        bound = self._overhead(self.cost_lower_bound) or 0.0
        elapsed_seconds = time.monotonic() - self.started
        peak = None if best_peak is None else int(best_peak)
        self._call(Status(strategy, peak, self._overhead(best_cost), bound, self.plans_judged, elapsed_seconds))

    def _call(self, status: Status) -> None:
        try:
            self.progress(status)
        except Exception as failure:
            self.failure = failure
            raise

    def _overhead(self, cost: float | None) -> float | None:
        """As a fraction of the baseline's cost; rounding never makes it less than nothing."""
        return None if cost is None else max(0.0, cost / self.keep_all_cost - 1) if self.keep_all_cost else 0.0


class Session:
    """One graph and request: what every strategy and budget on it share.

    Args:
        graph: the program.
        request: what is asked; see `asking` for the same of another strategy or budget.
        search, allocate: callables for the request's strategy and allocator; None: what is registered by that name.
        stop: when to end.
        progress: told of each plan judged.
        advise: asked where no plan fits, for what else would help.
        starts: plans of the graph that every search begins from.
        least: look for the least that works where nothing fits.
    """

    def __init__(
        self,
        graph: Graph,
        request: Request,
        *,
        search: Strategy | None = None,
        allocate: Allocator | None = None,
        stop: Stop | None = None,
        progress: Progress | None = None,
        advise: Advise | None = None,
        starts: tuple[Schedule, ...] = (),
        least: bool = True,
    ) -> None:
        self.starts, self.least = starts, least
        self.graph, self.request, self.memory = graph, request, request.memory
        self.stop, self.progress, self.advise = stop or Stop(), progress, advise
        self.search = find_strategy(request.strategy)[1] if search is None and request.strategy else search
        self.allocate = find_allocator(request.allocator)[1] if allocate is None and request.allocator else allocate
        self._packing_options = frozenset(_parameters(self.allocate))
        self.policy: Policy | None = policy_of(graph, self.memory, request.save, request.recompute)
        self._judged: dict[Schedule, tuple[Candidate, int | None]] = {}
        #: By strategy and effort, what a search found that went all the way down in vain.
        self._least_peak: dict[tuple[str, float], Schedule] = {}
        self.keep_all = self.judged(Proposal(keep_all(graph)))
        #: The cheapest plan: the baseline, and what the policy makes run again.
        self.base = self.keep_all if self.policy is None else self.judged(Proposal(self.policy.base))
        self.cost_lower_bound = self.keep_all.trace.cost if self.policy is None else self.policy.cost_lower_bound
        if progress is not None:
            progress.keep_all_cost, progress.cost_lower_bound = self.keep_all.trace.cost, self.cost_lower_bound

    @property
    def problem(self) -> Problem:
        """What is asked of strategies."""
        program = self.graph if self.policy is None else self.policy.search_graph
        asked = self.request
        return Problem(
            program,
            asked.live_budget,
            self.memory,
            asked.order,
            asked.seed,
            asked.effort,
            self.stop,
            self.progress,
            self.starts,
        )

    def asking(self, *, strategy: str = "", search: Strategy | None = None, budget: Budget | None = None) -> Session:
        """The same session, asked for another budget, and of another strategy where one is named."""
        other = copy.copy(self)
        changes = {"budget": budget, "strategy": strategy or self.request.strategy}
        other.request = msgspec.structs.replace(self.request, **changes)
        other.search = search or self.search
        return other

    def knowing(self, judged: Sequence[Candidate]) -> Session:
        """The same session, which remembers of plans that were judged these alone."""
        other = copy.copy(self)
        other._judged = {candidate.proposal.schedule: (candidate, None) for candidate in judged}
        return other

    # ---- one strategy, one question

    def solve(self) -> Candidate:
        """The best plan for a budget: keep-all if it fits, else what is found at effort 1, then 2, then 4.

        So more effort never finds less. Where nothing fits the budget, the strategy's plan of least arena may.

        Raises:
            InfeasibleBudget, TimeLimit: no plan fits.
        """
        allowed = self.request.live_budget
        if allowed is not None and self.base.arena_bytes <= allowed:
            return self.base
        if allowed is not None and allowed < peak_lower_bound(self.graph, self.memory).nbytes:
            raise self._refused(allowed)
        found: list[Candidate] = []
        missed: list[Missed] = []
        late = False
        for effort in effort_schedule(self.problem.effort):
            if (found or missed) and self.stop.now:
                late = True
                break
            problem = msgspec.structs.replace(self.problem, effort=effort)
            reached = [self.base, *self._given(allowed)]
            # Where time is limited, some of it is left for the plan of least arena.
            early = msgspec.structs.replace(problem, stop=self.stop.earlier(0.7))
            try:
                for candidate in self.attempts(early, allowed):
                    reached.append(candidate)
                    self._tell(candidate, allowed)
            except TimeLimit:
                late = True
            if not self.stop.now and self._wants_least(reached, allowed):
                try:
                    reached.append(self._least(problem, allowed))
                except TimeLimit:
                    late = True
            best = min(reached, key=lambda each: self._rank(each, allowed))
            if allowed is not None and best.arena_bytes > allowed:
                if late:
                    break
                missed.append(Missed(best, min(each.trace.peak_bytes for each in reached), effort))
                continue
            found.append(best)
            late = late or best.proposal.cut_short
            if late or self._is_best(best):
                break
        if not found and (late or not missed):
            raise self._out_of_time()
        if not found:
            raise self._infeasible(min(missed, key=lambda each: each.least.arena_bytes))
        best = min(found, key=lambda each: self._rank(each, allowed))
        return best.having(cut_short=True) if late else best

    def _wants_least(self, reached: list[Candidate], allowed: int | None) -> bool:
        """True if the plan of least arena is asked for, alone fits, or, in small graphs, may be the cheaper one."""
        fit = [each for each in reached if allowed is not None and each.arena_bytes <= allowed]
        if not fit:
            return True
        best = min(fit, key=lambda each: each.trace.cost)
        return len(self.graph.ops) <= SMALL_OPS and not best.proposal.cut_short and not self._is_best(best)

    def _given(self, allowed: int | None) -> list[Candidate]:
        """The plans to begin from that fit and obey, as they are."""
        obey = [start for start in self.starts if self._obeys(start)]
        fit = [self.judged(Proposal(start), capacity_bytes=allowed) for start in obey]
        return [each for each in fit if allowed is None or each.arena_bytes <= allowed]

    def _obeys(self, schedule: Schedule) -> bool:
        """True if a plan keeps to a pinned order and to the user's policy."""
        if self.request.order == "pinned" and out_of_order(self.graph, schedule) is not None:
            return False
        try:
            if self.policy is not None:
                self.policy.check(schedule)
        except VerificationError:
            return False
        return True

    def _rank(self, candidate: Candidate, allowed: int | None) -> tuple[float, ...]:
        """What is best: what fits first, then the cheapest; without a budget the least arena."""
        if allowed is None:
            return candidate.size
        return (
            candidate.arena_bytes > allowed,
            *(candidate.size[::-1] if candidate.arena_bytes <= allowed else candidate.size),
        )

    def _refused(self, allowed: int) -> InfeasibleBudget:
        """The error for a budget below what is proven, told before the least that works is looked for."""
        at_once = self._infeasible(Missed(self.base, self.base.trace.peak_bytes, 0.0), known=False)
        if not self.least:
            return at_once
        if self.progress is not None:
            self.progress.refuse(self.request.strategy, str(at_once).partition("\n")[0])
        problem = msgspec.structs.replace(self.problem, effort=min(1.0, self.problem.effort))
        reached = [self.base, *self._given(None)]
        try:
            reached.append(self._least(problem, allowed))
        except TimeLimit:
            return at_once
        best = min(reached, key=lambda each: each.size)
        return self._infeasible(Missed(best, min(each.trace.peak_bytes for each in reached), problem.effort))

    def attempts(self, problem: Problem, allowed: int | None) -> Iterator[Candidate]:
        """What a strategy proposes for a budget, asked again for less while the arena misses it: only the last can fit.

        Raises:
            TimeLimit: time ran out, or Ctrl-C came, before an arena fits.
        """
        target = allowed or 0
        for share in _SHARES:
            if target < 1 or allowed is None:
                return
            try:
                proposal = self.propose(msgspec.structs.replace(problem, budget=target))
            except InfeasibleBudget as failure:
                if failure.least is not None and self.policy is None:
                    self._least_peak[self.request.strategy, problem.effort] = failure.least
                return
            if target < allowed:  # bounds proven of less memory do not hold for the budget
                proposal = proposal.unclaimed()
            candidate = self.judged(proposal, capacity_bytes=allowed)
            yield candidate
            if candidate.arena_bytes <= allowed:
                return
            if self.stop.now:
                raise self._out_of_time()
            if proposal.cut_short:
                return
            problem = msgspec.structs.replace(problem, onwards=proposal.schedule)
            share = share if candidate.arena_bytes <= _FAR * allowed else 1.0
            missing = math.ceil(share * (candidate.arena_bytes - allowed))
            target = min(target - missing, candidate.trace.peak_bytes - 1)

    def _least(self, problem: Problem, allowed: int | None) -> Candidate:
        """Smallest arena found; of a strategy that does not apply, keep-all's where a budget is asked for."""
        least = self.base
        try:
            for candidate in self.least_plans(problem, allowed):
                least = min(least, candidate, key=lambda each: each.size)
        except InfeasibleBudget:  # the strategy does not apply
            if allowed is None:
                raise
        self._tell(least, allowed)
        # The strategy's claims are about the least peak, which a budget does not ask for.
        return least if allowed is None else Candidate(least.proposal.unclaimed(), least.allocation, least.trace)

    def least_plans(self, problem: Problem, allowed: int | None) -> Iterator[Candidate]:
        """The plan of least peak, the next best, and those that pack tighter, where packing wastes over a hundredth.

        Where a budget is asked for, that is done for small graphs alone, and a twentieth.

        Raises:
            InfeasibleBudget: the strategy does not apply.
            TimeLimit: time ran out, or Ctrl-C came, before any plan was found.
        """
        problem = msgspec.structs.replace(problem, budget=None)
        known = self._least_peak.get((self.request.strategy, problem.effort))
        proposal = self.propose(problem) if known is None else Proposal(known)
        # A budget that nothing fits asks for the least only nearly: packing within a hundredth is enough.
        near = None if allowed is None else max(allowed, self._peak_bytes(proposal) * 101 // 100)
        least = min(self.base, first := self.judged(proposal, capacity_bytes=near), key=lambda each: each.size)
        yield first
        for other in map(Proposal, proposal.others):
            if self._peak_bytes(other) < least.arena_bytes:
                least = min(least, second := self.judged(other, capacity_bytes=near), key=lambda each: each.size)
                yield second
        wasted_bytes = least.arena_bytes - least.trace.peak_bytes
        if allowed is not None and least.arena_bytes <= allowed:
            wasteful = False
        elif allowed is None:
            wasteful = wasted_bytes > least.trace.peak_bytes // 100
        else:
            wasteful = wasted_bytes > least.trace.peak_bytes // 20 and len(self.graph.ops) <= SMALL_OPS
        if wasteful and not self.stop.now and not least.proposal.cut_short:
            asked = msgspec.structs.replace(problem, starts=(*problem.starts, least.proposal.schedule))
            for smaller in _until_late(self.attempts(asked, least.arena_bytes - 1)):
                yield smaller.having(cost_lower_bound=None, optimal=None)  # nobody asked for this budget

    def _peak_bytes(self, proposal: Proposal) -> int:
        """Peak of a proposal, before it is packed and judged."""
        evaluator = evaluator_of(self.graph, self.memory)
        outcome = evaluator.evaluate(evaluator.sequence(proposal.schedule))
        return 0 if outcome is None else outcome[0]

    def _is_best(self, candidate: Candidate) -> bool:
        """True if no plan can be better: by the strategy's word, by one run of everything, or by the report's bound."""
        cost, allowed = candidate.trace.cost, self.request.live_budget
        if candidate.proposal.optimal is not None or allowed is None:
            return candidate.proposal.optimal is not None
        return cost <= self.cost_lower_bound or self._bounds(cost).cost >= cost

    # ---- ask, pack, judge

    def propose(self, problem: Problem) -> Proposal:
        """Ask the strategy; hold its answer to its type, to the user's policy, and to a pinned order; tidy its frees.

        Raises:
            PlannerError: a strategy that is not ours returned something else, or failed; named.
        """
        if self.progress is not None:
            self.progress.ask(budget=problem.budget)
        assert self.search is not None
        name = self.request.strategy
        try:
            proposal = self.search(problem) if self.policy is None else self.policy.ask(self.search, problem)
        except PlannerError:
            raise
        except Exception as error:
            if name in STRATEGIES:
                raise
            raise PlannerError(f"strategy {name!r} failed: {type(error).__name__}: {error}") from error
        finally:
            if self.progress is not None and self.progress.failure is not None:
                raise self.progress.failure
        if not isinstance(proposal, Proposal) or not isinstance(proposal.schedule, Schedule):
            raise PlannerError(f"strategy {name!r} returned {shown(proposal)}, no Proposal of a Schedule")
        if problem.order == "pinned" and (pair := out_of_order(self.graph, proposal.schedule)) is not None:
            raise ScheduleError(f"first runs {pair[1]!r} before {pair[0]!r}, but the order is pinned", op=pair[1])
        tidy = evaluator_of(self.graph, self.memory).tidied(proposal.schedule)
        return msgspec.structs.replace(proposal, schedule=tidy)

    def judged(self, proposal: Proposal, *, capacity_bytes: int | None = None) -> Candidate:
        """Pack a proposal and replay it; the last few are remembered, since neighbouring budgets often agree.

        Args:
            capacity_bytes: what the arena may take; packing ends once it is within. None: it should be small.
        """
        schedule = proposal.schedule
        known, packed_for = self._judged.pop(schedule, (None, None))
        within = known is not None and capacity_bytes is not None and known.arena_bytes <= capacity_bytes
        if known is None or not (within or packed_for == capacity_bytes):
            allocation = self._packed(schedule, capacity_bytes)
            known, packed_for = Candidate(proposal, allocation, self._simulated(schedule, allocation)), capacity_bytes
        self._judged[schedule] = known, packed_for
        if len(self._judged) > 8:
            del self._judged[next(iter(self._judged))]
        return Candidate(proposal, known.allocation, known.trace)

    def _simulated(self, schedule: Schedule, allocation: Allocation | None) -> Trace:
        return judge(self.graph, schedule, memory=self.memory, allocation=allocation)

    def _packed(self, schedule: Schedule, capacity_bytes: int | None) -> Allocation | None:
        """Offsets from the allocator, held to their type."""
        if self.allocate is None:
            return None
        known = {"stop": self.stop.for_packing(), "capacity_bytes": capacity_bytes}
        options = {name: value for name, value in known.items() if name in self._packing_options}
        name = self.request.allocator
        try:
            allocation = self.allocate(self.graph, schedule, memory=self.memory, **options)
        except ScheduleError:
            self._simulated(schedule, None)  # names the step
            raise
        except PlannerError:
            raise
        except Exception as error:
            if name in ALLOCATORS:
                raise
            raise PlannerError(f"allocator {name!r} failed: {type(error).__name__}: {error}") from error
        if not isinstance(allocation, Allocation):
            raise VerificationError(f"allocator {name!r} returned {shown(allocation)}, no Allocation")
        return allocation

    # ---- bound, report

    def plan(self, candidate: Candidate) -> Plan:
        """A plan as `optimize` returns it: bounds on what was asked, and everything a reader of the plan asks."""
        request = self.request
        trace, proposal, asked_budget = candidate.trace, candidate.proposal, request.budget is not None
        bound, least_cost = self._bounds(trace.cost)
        least_cost = max(least_cost, self.cost_lower_bound)  # the user may say that some ops run twice
        # A claim above what the plan itself takes is false: nothing of it is repeated.
        peak_claim, cost_claim = proposal.peak_lower_bound or 0, proposal.cost_lower_bound or 0.0
        modest = peak_claim <= trace.peak_bytes and cost_claim <= trace.cost
        optimal = proposal.optimal if modest else None
        if optimal is not None and optimal.startswith("peak") == asked_budget:
            optimal = None  # the claim is about another question
        if trace.cost <= least_cost if asked_budget else trace.peak_bytes <= bound:
            optimal = "cost at this budget, order free" if asked_budget else "peak, order free"
        report = Report(
            graph=self.graph.name,
            ops=sum(not op.resident for op in self.graph.ops),
            request=request,
            keep_all=self.keep_all.figures,
            plan=candidate.figures,
            peak_lower_bound=max(bound, peak_claim) if modest else bound,
            cost_lower_bound=max(least_cost, cost_claim) if modest else least_cost,
            optimal=optimal,
            cut_short=proposal.cut_short,
            arena_lower_bound=0 if candidate.allocation is None else candidate.allocation.bound_bytes,
            rules=() if self.policy is None else self.policy.in_plan(proposal.schedule, trace),
            **replayed(self.graph, proposal.schedule, trace),
        )
        return Plan(self.graph, proposal.schedule, candidate.allocation, report)

    def _bounds(self, plan_cost: float) -> LowerBounds:
        """What no plan goes below, for the question that was asked."""
        asked = self.request
        return lower_bounds(
            self.graph, self.memory, asked.live_budget, plan_cost=plan_cost, effort=asked.effort, stop=self.stop
        )

    def _infeasible(self, missed: Missed, *, known: bool = True) -> InfeasibleBudget:
        """The error where nothing fits, in words for people.

        Args:
            known: the least that works was looked for.
        """
        request, least = self.request, missed.least
        allowed, budget = request.live_budget, request.budget
        assert allowed is not None
        assert budget is not None
        known = known and self.least
        bound = lower_bounds(self.graph, self.memory, None, plan_cost=0.0, stop=self.stop).peak_bytes
        impossible = allowed < bound or (missed.reached_bytes > allowed and self._nothing_fits(allowed, missed.effort))
        kept = () if self.policy is None else self.policy.rulings
        minimum = self.memory.needed_bytes(least.arena_bytes) if known else None
        at_minimum = None if minimum is None else self.asking(budget=Budget(str(minimum), minimum))
        return infeasible(
            self.graph,
            self.memory,
            budget=budget,
            minimum=minimum,
            minimum_proven=known and least.arena_bytes <= bound,
            plan=None if at_minimum is None or self.advise is None else lambda: at_minimum.plan(least),
            found_by=request.strategy,
            keep_all_peak_bytes=self.keep_all.trace.peak_bytes,
            live_fit=missed.reached_bytes if missed.reached_bytes <= allowed else None,
            shortfall=None if self.advise is None else self.advise(self, missed),
            impossible=impossible,
            within=", ".join(f"{ruling.kind} {ruling.pattern!r}" for ruling in kept),
        )

    def _nothing_fits(self, allowed: int, effort: float) -> bool:
        """True if it is proven that no plan's live bytes fit."""
        bounds = lower_bounds(self.graph, self.memory, allowed, plan_cost=math.inf, effort=effort, stop=self.stop)
        return bounds.cost == math.inf

    def _out_of_time(self) -> TimeLimit:
        budget = format_bytes(self.request.budget_bytes or 0)
        return TimeLimit(f"no plan whose arena fits {budget} was found in time; raise the limit or the budget")

    def _tell(self, candidate: Candidate, allowed: int | None) -> None:
        if self.progress is not None:
            fits = allowed is None or candidate.arena_bytes <= allowed
            self.progress(self.request.strategy, candidate.trace.peak_bytes, candidate.trace.cost, fits)


def _until_late(candidates: Iterator[Candidate]) -> Iterator[Candidate]:
    """The candidates found before time ran out."""
    try:
        yield from candidates
    except TimeLimit:
        return


def _parameters(function: Any) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return ()
