"""What a strategy is asked, and what it answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final, Literal, Optional, Protocol

import msgspec

from planner.errors import PlannerError
from planner.graph import Graph
from planner.memory import Allocation, MemoryModel
from planner.schedule import Schedule
from planner.text import as_int

Order = Literal["free", "pinned"]

MOST_EFFORT: Final = 1e6

#: Told of a plan judged: strategy, peak bytes, cost, and whether it fits.
Watch = Callable[[str, int, float, bool], None]


class Status(msgspec.Struct, frozen=True):
    """Where a search stands: what `progress` of `optimize` is called with, at each plan judged.

    Args:
        strategy: at work.
        peak_bytes, overhead: of the best plan so far within the budget (without one: of least peak), the overhead as a
            fraction of keep-all's cost; None while there is none. They start again where the search is asked again, for
            what packing takes.
        overhead_lower_bound: what no plan's overhead is below.
        plans_judged: so far.
        elapsed_seconds: since `optimize` was called.
    """

    strategy: str
    peak_bytes: Optional[int]
    overhead: Optional[float]
    overhead_lower_bound: float
    plans_judged: int
    elapsed_seconds: float


#: The name that `Status` had in version 0.1.
Standing = Status


class Problem(msgspec.Struct, frozen=True):
    """One question to a strategy.

    Args:
        graph: the program. Where the user has rules, a program in which they hold; see `planner.policy`.
        budget: most peak bytes allowed (the user's budget less the reserve); None asks for the least peak.
        memory: scope and alignment.
        order: "pinned" forbids first runs in another order than the program's.
        seed: for strategies that draw.
        effort: work to spend, counted in moves, relative to the default 1.0; more than `MOST_EFFORT` is as good as
            endless.
        deadline: `time.monotonic()` seconds after which the best so far is returned, or None.
        watch: told of each plan judged; it says nothing back.
        starts: plans of `graph` for other budgets, to begin from; they may be above this one. A strategy need not look
            at them.
    """

    graph: Graph
    budget: Optional[int]
    memory: MemoryModel = MemoryModel()
    order: Order = "free"
    seed: int = 0
    effort: float = 1.0
    deadline: Optional[float] = None
    watch: Optional[Watch] = None
    starts: tuple[Schedule, ...] = ()

    def __post_init__(self) -> None:
        seed = as_int(self.seed)
        if seed is None:
            raise PlannerError(f"seed {self.seed!r} is not an int")
        msgspec.structs.force_setattr(self, "seed", seed)
        msgspec.structs.force_setattr(self, "effort", min(self.effort, MOST_EFFORT))

    @property
    def out_of_time(self) -> bool:
        """True once the deadline has passed."""
        return self.deadline is not None and time.monotonic() > self.deadline


def effort_schedule(effort: float) -> Iterator[float]:
    """The searches an effort is worth: of 1, then 2, then 4, while the sum stays within it; so that more effort only
    adds searches.

    >>> list(effort_schedule(7.5)), list(effort_schedule(0.3))
    ([1.0, 2.0, 4.0], [0.3])
    """
    effort_step = min(effort, 1.0)
    while effort_step <= effort:
        yield effort_step
        effort -= effort_step
        effort_step *= 2


def out_of_order(graph: Graph, schedule: Schedule) -> tuple[str, str] | None:
    """(op wanted, op found) where first runs first leave the order of the program; None where they keep to it."""
    program = (op.name for op in graph.ops if not op.resident)
    return next(
        (pair for pair in zip(program, dict.fromkeys(schedule.computes), strict=False) if pair[0] != pair[1]), None
    )


class Proposal(msgspec.Struct, frozen=True):
    """A strategy's claim; the judge decides.

    Args:
        schedule: legal, with a peak within the budget.
        cost_lower_bound: cost no plan at this budget can go below, if the strategy knows more than one run of each op.
        peak_lower_bound: bytes no plan can go below, if it knows more than the largest working set.
        optimal: what is proven, one of `planner.report.PROOFS`, or None. `Plan.verify` accepts it only where one run of
            each op (cost) or the largest working set (peak) proves it again.
        cut_short: True if the deadline stopped the search.
    """

    schedule: Schedule
    cost_lower_bound: Optional[float] = None
    peak_lower_bound: Optional[int] = None
    optimal: Optional[str] = None
    cut_short: bool = False

    def unclaimed(self) -> Proposal:
        """The plan alone: what was proven was of another question."""
        return msgspec.structs.replace(self, cost_lower_bound=None, peak_lower_bound=None, optimal=None)


class Strategy(Protocol):
    """Problem -> Proposal. `functools.partial` carries options.

    Raises InfeasibleBudget where it finds no plan within the budget, with the least peak it reached, plus the reserve,
    as `minimum`.
    """

    def __call__(self, problem: Problem, /) -> Proposal: ...


class Allocator(Protocol):
    """(graph, schedule, memory) -> offsets of every buffer."""

    def __call__(self, graph: Graph, schedule: Schedule, /, *, memory: MemoryModel) -> Allocation: ...
