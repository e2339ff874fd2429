"""A cost that no plan at a budget goes below, in any order and with any number of runs.

At the first run of an op, each earlier value that is still needed is either live, within the budget, or recomputed
later, at a cost. `papers/decisions/0006-cut-certificate.md` has the argument, rule by rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from fractions import Fraction
from typing import Final, NamedTuple, TypeVar

import numpy as np

from planner.analysis.arrays import BACKWARD, Ints
from planner.bounds.chain_of_cuts import ChainOfCuts
from planner.bounds.choose_cuts import proven_by_chains
from planner.bounds.cut import Storages, first_run, storages_of
from planner.bounds.lagrange import Best, best_price, proven
from planner.graph import Graph
from planner.memory import MemoryModel
from planner.problem import Stop

_INSTANTS: Final = 96  # tried at effort 1
_NEAR: Final = 0.97  # of the best bound: an instant whose first cut proves less is skipped
_BRANCHED: Final = 4  # best instants at which the search splits
_MOST_EFFORT: Final = 4.0
_CUTS: Final = 2000  # best prices found at effort 1 for splits at single instants, and as many for chains of them
_CUT_ROWS: Final = 400_000  # most ops in all their networks
_FEWEST: Final = 100  # with fewer best prices to find, chains prove nothing
_KEPT: Final = 4  # answers remembered
_CLOSE: Final = 5e-4  # of a plan's cost: for a smaller gap no chain is tried


class CostBound(NamedTuple):
    """A lower bound on the cost of any plan.

    Args:
        cost: at least one run of each op; infinite if no plan fits.
        op: the op at whose first run that cost is proven, or the first of several; None if only one run each is proven.
    """

    cost: float
    op: str | None


def certified_cost(
    graph: Graph,
    memory: MemoryModel,
    budget: int,
    *,
    effort: float = 1.0,
    plan_cost: float | None = None,
    stop: Stop | None = None,
) -> CostBound:
    """The largest bound found over instants, prices per byte and branches; the same for the same arguments.

    Args:
        budget: most live bytes, residents included in scope "total".
        effort: instants and branches tried, relative to the default; at most 4.
        plan_cost: of a plan within the budget. If the bound leaves a gap to it, chains of instants are tried too.
        stop: once `stop.now`, what is proven by then is returned; None: the search runs to its end.

    >>> from planner.graph import Op, Tensor
    >>> ops = [Op("a", (Tensor("a", 4),)), Op("b", (Tensor("b", 4),), ("a",)), Op("c", (Tensor("c", 2),), ("b",))]
    >>> ops += [Op("d", (Tensor("d", 1),), ("c",)), Op("e", (Tensor("e", 1, output=True),), ("d", "a"))]
    >>> graph = Graph(ops)
    >>> certified_cost(graph, MemoryModel(), 10), certified_cost(graph, MemoryModel(), 9)
    (CostBound(cost=5.0, op=None), CostBound(cost=6.0, op='c'))
    """
    stop = stop or Stop()
    question = (graph, memory, budget, min(effort, _MOST_EFFORT))
    search = _remembered(_searches, question, stop, lambda: _searched(*question, stop))
    if plan_cost is None or not math.inf > plan_cost * (1 - _CLOSE) > _total(search.storages, search.best):
        return _stated(graph, search.storages, search.best, search.best_row)

    def several() -> CostBound:
        return _stated(graph, search.storages, *search.extended(plan_cost, stop))

    return _remembered(_several, (*question, plan_cost), stop, several)


#: The last answers, by single instants and by chains: a search and its report ask the same questions.
_searches: dict[Hashable, _Search] = {}
_several: dict[Hashable, CostBound] = {}
_Proven = TypeVar("_Proven")


def _remembered(
    known: dict[Hashable, _Proven], question: Hashable, stop: Stop, prove: Callable[[], _Proven]
) -> _Proven:
    """The remembered answer, else the result of `prove`, which is remembered unless `stop` cut it short."""
    if question in known:
        return known[question]
    answer = prove()
    if not stop.now:
        if len(known) >= _KEPT:
            del known[next(iter(known))]
        known[question] = answer
    return answer


def _searched(graph: Graph, memory: MemoryModel, budget: int, effort: float, stop: Stop) -> _Search:
    search = _Search(storages_of(graph, memory), budget, effort)
    search.run(stop)
    search.found.clear()  # large, and not used again
    return search


def forget() -> None:
    """Forget all answers, so that a measurement starts as in a new process."""
    _searches.clear()
    _several.clear()


def _stated(graph: Graph, storages: Storages, best: Fraction | float, row: int) -> CostBound:
    return CostBound(_total(storages, best), graph.ops[row].name if best > 0 else None)


class _Search:
    """Tries the instants that look tight, then the neighbours of the best, then splits at the best few."""

    def __init__(self, storages: Storages, budget: int, effort: float) -> None:
        self.storages, self.budget = storages, budget
        self.most = max(1, round(_INSTANTS * effort))
        self.cuts = round(min(_CUTS, _CUT_ROWS / max(1, len(storages.step_cost))) * effort)
        self.best: Fraction | float = Fraction(0)
        self.best_row = -1
        self.found: dict[int, Best] = {}
        self.tried: set[int] = set()
        self.chains: dict[int, ChainOfCuts] = {}

    def run(self, stop: Stop) -> None:
        """Set the best bound, in units, and its row."""
        profile = _profile(self.storages)
        tight = np.flatnonzero(profile > self.budget)
        if not len(tight):
            return
        for row in _first_tries(self.storages, profile, tight, self.most // 2):
            if stop.now:
                return
            self.attempt(row)
        stride = max(1, len(tight) // 16)
        while len(self.tried) < self.most and self.best_row >= 0 and not stop.now:
            place = int(np.searchsorted(tight, self.best_row))
            before = self.best
            for other in (place - stride, place + stride):
                if 0 <= other < len(tight):
                    self.attempt(int(tight[other]))
            if self.best == before:
                if stride == 1:
                    break
                stride //= 2
        self.branch(stop)

    def attempt(self, row: int) -> None:
        """Try the first run of one op: at the best instant's price first, then at its own best price."""
        if row in self.tried or len(self.tried) >= self.most or self.best == math.inf:
            return
        self.tried.add(row)
        instant = first_run(self.storages, row)
        room = self.budget - int(self.storages.working_bytes[row])
        price = self.found[self.best_row].price if self.best_row >= 0 else 0.0
        fits = instant.fixed_bytes <= room
        if fits and price > 0 and proven(instant.cut(price), room - instant.fixed_bytes) <= self.best * _NEAR:
            return
        self.enter(row, best_price(instant, room, price))

    def enter(self, row: int, best: Best) -> None:
        """Remember the bound of an instant."""
        self.found[row] = best
        bound = math.inf if best.bound is None else best.bound
        if bound > self.best:
            self.best, self.best_row = bound, row

    def branch(self, stop: Stop) -> None:
        """At the instants that prove most, split on which values are live, until the work is used up."""
        if self.best == math.inf:
            return
        rows = sorted(self.found, key=lambda row: (-(self.found[row].bound or 0), row))[:_BRANCHED]
        for row in rows:
            if stop.now:
                return
            chain = self.chains[row] = ChainOfCuts(self.storages, (row,), self.budget)
            bound, _ = chain.least(floor=self.found[row].bound or Fraction(0), limit=None, most=self.cuts // len(rows))
            self.enter(row, self.found[row]._replace(bound=bound))

    def extended(self, plan_cost: float, stop: Stop) -> tuple[Fraction | float, int]:
        """The bound and its row once instants are added to the best one; this object does not change."""
        if self.best_row < 0 or not isinstance(self.best, Fraction) or self.cuts < _FEWEST or stop.now:
            return self.best, self.best_row
        more = Fraction(plan_cost) - Fraction(_total(self.storages, Fraction(0)))
        limit = more / Fraction(self.storages.unit) - len(self.storages.step_cost)  # each cost is up to a unit too low
        known = self.chains.get(self.best_row)
        chain = ChainOfCuts(self.storages, (self.best_row,), self.budget) if known is None else known.copy()
        bound, row = proven_by_chains(chain, self.budget, floor=self.best, limit=limit, most=self.cuts)
        return (math.inf if bound is None else bound), row


def _profile(storages: Storages) -> Ints:
    """About the bytes at each op's step if nothing is recomputed; the op's inputs count twice."""
    arrays, storage_rep = storages.arrays, storages.storage_rep
    n = len(arrays.cost)
    last = np.full(len(storage_rep), -1, dtype=np.int64)
    readers, read = np.repeat(np.arange(n), np.diff(arrays.read_ptr)), storage_rep[arrays.read_value]
    np.maximum.at(last, read[read >= 0], readers[read >= 0])
    ends = storage_rep[np.flatnonzero(arrays.is_output)]
    last[ends[ends >= 0]] = n - 1
    held = np.flatnonzero((storage_rep == np.arange(len(storage_rep))) & (last > arrays.producer))
    change = np.zeros(n + 1, dtype=np.int64)
    np.add.at(change, arrays.producer[held] + 1, storages.rep_bytes[held])
    np.subtract.at(change, last[held] + 1, storages.rep_bytes[held])
    return np.where(arrays.resident, 0, np.cumsum(change)[:n] + storages.working_bytes)


def _first_tries(storages: Storages, profile: Ints, tight: Ints, most: int) -> list[int]:
    """Rows to try first: the highest, the first backward ones, the largest working sets, and a spread over all."""
    backward = tight[storages.arrays.phase[tight] == BACKWARD]
    by_height = tight[np.argsort(-profile[tight], kind="stable")]
    by_working = tight[np.argsort(-storages.working_bytes[tight], kind="stable")]
    spread = tight[np.linspace(0, len(tight) - 1, min(len(tight), most // 2)).astype(np.int64)]
    share = max(1, most // 6)
    rows = [*by_height[:share].tolist(), *backward[:share].tolist(), *by_working[:share].tolist(), *spread.tolist()]
    return list(dict.fromkeys(rows))


def _total(storages: Storages, extra: Fraction | float) -> float:
    """One run of each op and so many units more, as a float that no plan's summed cost is below."""
    arrays = storages.arrays
    costs = arrays.cost[~arrays.resident]
    one_run = float(np.add.accumulate(costs)[-1]) if len(costs) else 0.0  # summed as a replay sums it
    if extra == math.inf:
        return math.inf
    if extra <= 0:
        return one_run
    more = Fraction(extra) * Fraction(storages.unit)
    exact = [Fraction(cost) for cost in set(costs.tolist()) if cost]
    fine = max(cost.denominator for cost in exact)  # powers of two
    step = Fraction(math.gcd(*(int(cost * fine) for cost in exact)), fine)
    if (Fraction(one_run) + more) / Fraction(1, fine) < 2**52:  # float sums of costs are exact
        return float(Fraction(one_run) + math.ceil(more / step) * step)
    return max(one_run, (one_run + float(more)) * (1 - 8 * (len(costs) + 8) * 2.0**-53))
