"""The portfolio: what is asked, by the size and shape of the graph, and the cheapest plan that fits."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec

from planner.analysis.arrays import BACKWARD
from planner.analysis.evaluator import evaluator_of
from planner.bounds import enumeration
from planner.bounds.certificate import certified_cost
from planner.bounds.peak import no_plan, peak_lower_bound
from planner.errors import InfeasibleBudget, TimeLimit
from planner.problem import SMALL_OPS, Problem, Proposal, Strategy
from planner.schedule import keep_all
from planner.search.anneal import retention
from planner.search.chain import chain
from planner.search.chen import chen_budget, chen_sqrt
from planner.search.cuts import cuts
from planner.search.incumbent import RAISE, Incumbent
from planner.search.recursive import recursive
from planner.search.reorder import Reordered, reordered
from planner.search.repair import Repair

#: Graphs of more ops are annealed only where nothing else finds a plan.
ANNEALED_OPS: Final = 2500
#: A plan this near the proven bound, as a fraction of one run of everything, is not searched further.
CLOSED: Final = 1e-3
#: Nearer than this, annealing gets less of the effort, as there is less to win.
WIDE: Final = 5e-3

#: A plan whose peak is at most so many times the budget is repaired, and nothing is searched from the beginning.
NEAR: Final = 1.05
ROUNDS: Final = 6  # of annealing for the least peak, besides the first
LOWER: Final = 0.99  # of the peak before, for a round not to be in vain
PATIENCE: Final = 2  # rounds in vain, and it is over
TIGHTENED: Final = 250  # moves that make a repaired start cheaper, at effort 1
TIGHTENED_ROWS: Final = 250_000  # most ops looked at for them

_SEGMENTS: Final[tuple[Strategy, ...]] = (chen_sqrt, chen_budget, recursive)


def auto(problem: Problem) -> Proposal:
    """The optimum of at most nine ops; else minimum cuts, and annealing from there unless that is proven close.

    Where single values cut most of the forward pass, the dynamic program over chains is asked too, and where a sweep
    found plans nearby, the best of those. Graphs of more than `ANNEALED_OPS` ops take the plan of "cuts"; where it
    finds none, the cheapest of "chen-sqrt", "chen-budget" and "recursive"; where these find none, "retention". A graph
    without backward ops has no turn to cut at, so all but "cuts" are asked at once. Without a budget all are asked,
    and the plan of least peak is taken.

    Raises:
        InfeasibleBudget: none fits; carries the least peak any of them reached.
        TimeLimit: the deadline stopped one of them before it found a plan, and no other found one.
    """
    optimum = enumeration(problem)
    if optimum is not None:
        return optimum
    order = reordered(problem)
    if order is not None and problem.budget is not None and order.peak_bytes <= problem.budget:
        return Proposal(keep_all(order.graph))
    evaluator = evaluator_of(problem.graph, problem.memory)
    ops = len(evaluator.keep_all)
    if ops > ANNEALED_OPS:
        return _large(problem, ops, order)
    part = evaluator.forward_part()
    chained = part is not None and 2 * len(part.position) >= int(part.origin.sum())
    strategies: tuple[Strategy, ...] = (cuts, chain) if chained else (cuts,)
    if order is not None and problem.budget is None:
        strategies = (*strategies, order.cuts)
    given: tuple[Strategy, ...] = (_tightened,) if problem.starts else ()
    goes_on = _goes_on(problem)
    try:
        found = _best(problem, ((_tightened,) if goes_on else strategies,))
        if given and not goes_on:
            found = _best(problem, ((_giving(found), *given),))
    except InfeasibleBudget:
        return _best(problem, ((_descended, *given),))
    except TimeLimit:
        return msgspec.structs.replace(_best(problem, (_SEGMENTS,)), cut_short=True)
    if problem.budget is None:
        return _least(problem, retention(problem, starts=(_giving(found), *_SEGMENTS)))
    costs = evaluator.encoded.arrays.cost
    once, cost = (sum(costs[rows]) for rows in (evaluator.keep_all, evaluator.sequence(found.schedule)))
    if found.cut_short or cost - once <= CLOSED * once:
        return found
    bound = certified_cost(problem.graph, problem.memory, problem.budget, plan_cost=cost, stop=problem.stop).cost
    if cost - bound <= CLOSED * once:
        return found
    effort = problem.effort * min(1.0, (cost - bound) / (WIDE * once))
    return retention(msgspec.structs.replace(problem, effort=effort), starts=(_giving(found),))


def _least(problem: Problem, found: Proposal) -> Proposal:
    """Anneal again from the plan found, with other draws, until the least peak no longer falls.

    Where a peak is enough that is far below, more rounds would not come there, but in graphs of few ops, whose peaks
    fall by leaps.
    """
    evaluator = evaluator_of(problem.graph, problem.memory)

    def size(proposal: Proposal) -> tuple[int, float]:
        outcome = evaluator.evaluate(evaluator.sequence(proposal.schedule))
        assert outcome is not None
        return outcome

    enough = math.inf if problem.enough_bytes is None else problem.enough_bytes
    goal = peak_lower_bound(problem.graph, problem.memory).nbytes if enough == math.inf else enough
    first, in_vain = found, 0
    for turn in range(1, ROUNDS + 1):
        peak_bytes, _ = size(found)
        far = peak_bytes > NEAR * enough and len(evaluator.keep_all) > SMALL_OPS
        if peak_bytes <= goal or far or in_vain == PATIENCE or found.cut_short:
            break
        asked = msgspec.structs.replace(problem, seed=problem.seed + turn)
        again = retention(asked, starts=(_giving(found),))
        in_vain = 0 if size(again)[0] <= LOWER * peak_bytes else in_vain + 1
        found = min(found, again, key=size)
    return msgspec.structs.replace(found, others=() if found is first else (first.schedule,))


def _giving(found: Proposal) -> Strategy:
    return lambda _: found


def _descended(problem: Problem) -> Proposal:
    """The way down to the least peak, as far as the budget, and from there made cheaper.

    Raises:
        InfeasibleBudget: the least peak is above the budget; brings its plan.
    """
    assert problem.budget is not None
    least = auto(msgspec.structs.replace(problem, budget=None, enough_bytes=problem.budget))
    evaluator = evaluator_of(problem.graph, problem.memory)
    outcome = evaluator.evaluate(evaluator.sequence(least.schedule))
    assert outcome is not None
    if least.cut_short and outcome[0] > problem.budget:
        raise TimeLimit(f"'auto' found no plan within the budget before the time limit; {RAISE}")
    onwards = partial(retention, starts=(_giving(least),))
    afresh = partial(retention, starts=_SEGMENTS)  # another beginning may end far cheaper
    if outcome[0] <= NEAR * problem.budget:  # from a little above, annealing may come within it
        with suppress(InfeasibleBudget):
            return _best(problem, ((onwards,) if problem.onwards is not None else (onwards, afresh),))
    raise no_plan(problem, "auto", minimum=outcome[0], least=least.schedule)


def _large(problem: Problem, ops: int, order: Reordered | None) -> Proposal:
    """Without annealing, unless nothing else finds a plan; effort falls as ops rise, so that time grows no faster."""
    less = msgspec.structs.replace(problem, effort=problem.effort * ANNEALED_OPS / ops)
    both: tuple[Strategy, ...] = (cuts,) if order is None else (cuts, order.cuts)
    if problem.budget is None:
        given = (_tightened,) if problem.starts else ()
        return _best(less, ((*both, *_SEGMENTS, *given),))

    def annealed(_: Problem) -> Proposal:
        return retention(problem, starts=())

    evaluator = evaluator_of(problem.graph, problem.memory)
    turns = bool((evaluator.encoded.arrays.phase == BACKWARD).any())
    onwards: tuple[tuple[Strategy, ...], ...] = ((_tightened,),) if _goes_on(problem) else ()
    if problem.starts and not onwards:
        both = (*both, _tightened)
    return _best(less, (*onwards, both, _SEGMENTS, (annealed,)) if turns else (*onwards, (*_SEGMENTS, annealed)))


def _goes_on(problem: Problem) -> bool:
    """True if this search found a plan a little above the budget, or any plan on the way to the least peak."""
    if problem.onwards is None or problem.budget is None:
        return problem.onwards is not None
    evaluator = evaluator_of(problem.graph, problem.memory)
    outcome = evaluator.evaluate(evaluator.sequence(problem.onwards))
    return outcome is not None and outcome[0] <= NEAR * problem.budget


def _tightened(problem: Problem) -> Proposal:
    """The best of the plans at hand; with a budget, what exceeds it is repaired, and the cheapest made cheaper."""
    incumbent = Incumbent(problem, "auto")
    evaluator, budget = incumbent.evaluator, problem.budget
    given = problem.starts if problem.onwards is None else (*problem.starts, problem.onwards)
    rows = [evaluator.sequence(each) for each in given]
    repair = Repair(incumbent)
    for sequence in rows:
        repair.enter(sequence)
    if budget is None:
        return incumbent.proposal()
    cost = evaluator.encoded.arrays.cost
    for sequence in sorted(rows, key=lambda sequence: float(cost[sequence].sum())):
        repair.repair(sequence, budget, math.inf if incumbent.best is None else incumbent.best.cost)
    moves = round(min(TIGHTENED, TIGHTENED_ROWS / len(evaluator.keep_all)) * problem.effort)
    for turn in range(2):
        repair.prune(moves)
        if repair.best is not None:
            repair.ruin_and_recreate(repair.best, moves, problem.seed + turn, 0.0)
    repair.prune(moves)
    return incumbent.proposal()


def _best(problem: Problem, rounds: Iterable[tuple[Strategy, ...]]) -> Proposal:
    """The cheapest plan of the first round that has one (without a budget: of least peak)."""
    evaluator = evaluator_of(problem.graph, problem.memory)
    failures: list[InfeasibleBudget] = []
    late: TimeLimit | None = None
    for strategies in rounds:
        ranked: list[tuple[float, float, int, Proposal]] = []
        for place, strategy in enumerate(strategies):
            try:
                proposal = strategy(problem)
            except InfeasibleBudget as failure:
                failures.append(failure)
                continue
            except TimeLimit as limit:
                late = limit
                continue
            outcome = evaluator.evaluate(evaluator.sequence(proposal.schedule))
            assert outcome is not None
            peak_bytes, cost = outcome
            first, second = (peak_bytes, cost) if problem.budget is None else (cost, peak_bytes)
            ranked.append((first, second, place, proposal))
        if ranked:
            best = min(ranked, key=lambda row: row[:3])[3]
            return msgspec.structs.replace(best, cut_short=late is not None or any(row[3].cut_short for row in ranked))
    if late is not None:
        raise late
    raise min(failures, key=lambda failure: failure.minimum or 2**63)
