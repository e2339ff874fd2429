"""Strategy "exact": the best plan of several searches, and bounds that may prove it optimal."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Final

import msgspec

from planner.analysis.arrays import Ints
from planner.bounds.astar import MOST_STATES, Answer, cheapest_schedule, least_peak_schedule
from planner.bounds.certificate import certified_cost
from planner.bounds.peak import no_plan, peak_lower_bound
from planner.bounds.stage_mip import MOST_ENTRIES, Solved, Stages
from planner.bounds.states import compile_program
from planner.errors import InfeasibleBudget, TimeLimit
from planner.graph import Graph
from planner.problem import Problem, Proposal
from planner.schedule import Schedule
from planner.search.anneal import retention
from planner.search.cuts import cuts
from planner.search.incumbent import Incumbent

_SMALL: Final = 20  # ops; a state of more ops takes longer, so fewer states are looked at
_AT_ONCE: Final = 0.25  # share of the states looked at before other searches are asked


def exact(problem: Problem) -> Proposal:
    """Prove the least cost at the budget, or without one the least peak, or state how far the plan may be from it.

    In turn: A* over all schedules, for graphs of up to about twenty ops; the plans of "cuts" and "retention" against
    the bound of `certified_cost`; A* over all cheaper schedules; and a mixed-integer program with HiGHS, if the order
    is pinned or each op has to follow the one before anyway. Every bound holds for any number of runs, and for any
    order unless it is pinned.

    Raises:
        InfeasibleBudget: nothing fits. If that is certain it is `proven`, and `minimum` is the least peak there is.
        TimeLimit: the deadline passed before anything that fits was found.
        PlannerError: the mixed-integer program is needed, and highspy is not installed.
    Source: Jain et al. 2020, *Checkmate*, and Bartan et al. 2023, *MOCCASIN*, for the stages and what they prove;
    `papers/jain2020`.
    """
    search = _Search(problem)
    search.run()
    return search.proposal()


def proves(problem: Problem, schedule: Schedule, *, bound: float) -> bool:
    """True if no plan in the problem's order is below a bound, which is proven again without seeking a plan.

    Without a deadline the answer is the same for the same arguments.

    Args:
        schedule: legal, within the budget, and in the program's order if the problem pins it.
        bound: cost, or without a budget peak bytes; a bound above the schedule's own is refuted.
    """
    for effort in (problem.effort, 8 * problem.effort):  # from another start the same proof may look at more states
        search = _Search(msgspec.structs.replace(problem, effort=effort), claim=bound)
        search.keep(schedule)
        search.run()
        if search.best < bound:
            return False
        if search.proven >= bound:
            return True
    return False


class _Search:
    """The best plan and bound of one problem so far; a search with a claim only proves that no plan is below it."""

    def __init__(self, problem: Problem, *, claim: float | None = None) -> None:
        self.problem, self.claim = problem, claim
        self.incumbent = Incumbent(problem, "exact")
        self.evaluator = self.incumbent.evaluator
        self.pinned = problem.order == "pinned" or _one_order(problem.graph)
        self.ops = len(self.evaluator.keep_all)
        self.states = max(1, round(MOST_STATES * problem.effort * _SMALL / max(_SMALL, self.ops)))
        self.one_run = float(sum(self.evaluator.encoded.arrays.cost[self.evaluator.keep_all].tolist()))
        self.schedule: Schedule | None = None
        self.peak_bytes, self.cost = 0, math.inf
        self.least: int | None = None  # peak bytes of any plan seen
        self.cost_bound, self.peak_bound = 0.0, peak_lower_bound(problem.graph, problem.memory).nbytes
        self.nothing_fits = False
        self.cut_short = False
        self.keep(self.evaluator.schedule(self.evaluator.keep_all))

    def run(self) -> None:
        """Search until plan and bound meet, or nothing is left to try."""
        if self.problem.budget is None:
            self.lower()
        elif not self.done:
            self.cheapen(self.problem.budget)

    @property
    def done(self) -> bool:
        """True if no plan can be better, or none fits."""
        goal = self.best if self.claim is None else min(self.best, self.claim)
        return self.nothing_fits or (self.schedule is not None and self.proven >= goal)

    @property
    def best(self) -> float:
        """Cost of the best plan, or without a budget its peak."""
        return self.peak_bytes if self.problem.budget is None else self.cost

    @property
    def proven(self) -> float:
        """Cost, or without a budget peak, that no plan is below."""
        return self.peak_bound if self.problem.budget is None else max(self.one_run, self.cost_bound)

    def cheapen(self, budget: int) -> None:
        """Seek the least cost."""
        if self.ops <= _SMALL:
            self.every_schedule(budget, round(self.states * _AT_ONCE))
        if not self.done and not self.stop():
            self.ask_others()
        if not self.done and not self.stop():
            problem = self.problem
            self.bound(certified_cost(problem.graph, problem.memory, budget, stop=problem.stop).cost)
        if not self.done and not self.stop():
            self.every_schedule(budget, self.states)
        if self.pinned and not self.done and not self.stop():
            self.stages(budget)

    def every_schedule(self, budget: int, states: int) -> None:
        """Search all schedules that are cheaper than the best plan."""
        self.enter(
            cheapest_schedule(
                self.problem.graph,
                self.problem.memory,
                budget,
                pinned=self.pinned,
                known_cost=self.sought,
                at_least=self.cost_bound,
                most_states=states,
                stop=self.stop,
            )
        )

    def enter(self, answer: Answer) -> None:
        """Take the schedule and the bound of an answer."""
        if answer.schedule is not None:
            self.keep(answer.schedule)
        self.bound(min(self.cost, self.sought) if answer.proven and self.schedule is not None else answer.bound)

    @property
    def sought(self) -> float:
        """Only plans cheaper than this matter."""
        return self.cost if self.claim is None else min(self.cost, self.claim)

    def bound(self, cost: float) -> None:
        """Note that no plan costs less than this; infinite: none fits."""
        self.cost_bound = max(self.cost_bound, cost)
        self.nothing_fits = self.cost_bound == math.inf

    def ask_others(self) -> None:
        """Take the plans of "cuts" and of "retention", which starts from them."""
        for strategy in (cuts, retention) if self.claim is None else ():
            if self.done or self.stop():
                return
            try:
                proposal = strategy(self.problem)
            except InfeasibleBudget as failure:
                if failure.minimum is not None:
                    self.least = min(failure.minimum, self.least or 2**63)
            except TimeLimit:
                self.cut_short = True
            else:
                self.cut_short = self.cut_short or proposal.cut_short
                self.keep(proposal.schedule)

    def stages(self, budget: int) -> None:
        """Solve the mixed-integer program from the best plan, unless names share storages: it is no bound then."""
        graph, memory = self.problem.graph, self.problem.memory
        if not compile_program(graph, memory, pinned=True).plain:
            return
        program = Stages(graph, memory, budget)
        if program.entries > MOST_ENTRIES * self.problem.effort:
            return
        start = None if self.schedule is None else self.evaluator.sequence(self.schedule)
        asked = self.problem
        solved: Solved = program.solve(start, effort=asked.effort, seed=asked.seed, stop=asked.stop)
        if solved.sequence is not None:
            self.keep(self.evaluator.schedule(solved.sequence))
        self.bound(self.one_run + solved.extra_cost)
        self.stop()

    def lower(self) -> None:
        """Seek the least peak, and of the plans that reach it the cheapest."""
        graph, memory = self.problem.graph, self.problem.memory
        if self.ops > _SMALL:
            self.ask_others()
            if self.done or self.stop():
                return
        assert self.schedule is not None
        answer = least_peak_schedule(
            graph, memory, most_bytes=self.peak_bytes, pinned=self.pinned, most_states=self.states, stop=self.stop
        )
        if answer.schedule is not None:
            self.keep(answer.schedule)
        self.peak_bound = max(self.peak_bound, int(answer.bound))
        if not answer.proven and self.ops <= _SMALL:
            self.ask_others()

    def stop(self) -> bool:
        """True, and noted, once the search should end."""
        self.cut_short = self.cut_short or self.problem.stop.now
        return self.cut_short

    def keep(self, schedule: Schedule) -> None:
        """Evaluate a plan, with canonical frees if they take no more; remember it if it is the best."""
        sequence: Ints = self.evaluator.sequence(schedule)
        liveness = self.evaluator.liveness(schedule)
        peak_bytes, cost = liveness.peak_bytes, math.fsum(self.evaluator.encoded.arrays.cost[sequence].tolist())
        canonical = self.incumbent.evaluate(sequence.tobytes(), lambda: sequence)
        if canonical is not None and canonical.peak_bytes <= peak_bytes:
            peak_bytes, schedule = canonical.peak_bytes, self.evaluator.schedule(sequence)
        self.least = peak_bytes if self.least is None else min(self.least, peak_bytes)
        budget = self.problem.budget
        if budget is not None and peak_bytes > budget:
            return
        new, old = (cost, peak_bytes), (self.cost, self.peak_bytes)
        if self.schedule is None or (new < old if budget is not None else new[::-1] < old[::-1]):
            self.schedule, self.peak_bytes, self.cost = schedule, peak_bytes, cost

    def proposal(self) -> Proposal:
        """The best plan and the bounds proven on it; raises as `exact` does."""
        problem = self.problem
        if self.schedule is None:
            if self.cut_short and not self.nothing_fits:
                fix = "raise the limit or the budget"
                raise TimeLimit(f"'exact' found no plan within the budget before the time limit; {fix}")
            raise self.infeasible()
        if problem.budget is None:
            optimal = f"peak, order {problem.order}" if self.done else None
            return Proposal(self.schedule, peak_lower_bound=self.peak_bound, optimal=optimal, cut_short=self.cut_short)
        bound = min(max(self.one_run, self.cost_bound), self.cost)  # sums in another order may differ in the last bit
        optimal = f"cost at this budget, order {problem.order}" if self.done else None
        return Proposal(self.schedule, cost_lower_bound=bound, optimal=optimal, cut_short=self.cut_short)

    def infeasible(self) -> InfeasibleBudget:
        """The error for a budget that nothing fits, with the least peak found."""
        least = _Search(msgspec.structs.replace(self.problem, budget=None))
        least.run()
        return no_plan(self.problem, "exact", minimum=least.peak_bytes, proven_bytes=least.peak_bound)


def _one_order(graph: Graph) -> bool:
    """True if each op has to wait for the one before it in the program."""
    pairs = pairwise(op for op in graph.ops if not op.resident)
    return all(a.name in b.after or any(graph.producer[value] is a for value in b.reads) for a, b in pairs)
