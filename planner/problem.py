"""What a user asks (Request, Budget), what a strategy is asked and answers (Problem, Proposal), when to end (Stop)."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from numbers import Real
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Literal, Optional, Protocol, final

import msgspec

from planner.errors import PlannerError, UnitError
from planner.graph import Graph
from planner.lowering.devices import CONTEXT_BYTES, DEVICES, find_device, nearest
from planner.memory import Allocation, MemoryModel
from planner.schedule import Schedule
from planner.text import as_int, shown
from planner.training_step import TrainingStep
from planner.units import MAX_BYTES, BudgetText, parse_budget

Order = Literal["free", "pinned"]

MOST_EFFORT: Final = 1e6
LEAST_PEAK: Final = "least peak"
#: Graphs of so few ops are searched to the end of every way that is tried: it takes no time, and their peaks leap.
SMALL_OPS: Final = 100

#: Told of a plan judged: strategy, peak bytes, cost, and whether it fits.
Watch = Callable[[str, int, float, bool], None]


@final
class Stop:
    """Says when a search should end: its deadline has passed, or Ctrl-C came. Whoever searches looks at `now`.

    Args:
        deadline: `time.monotonic()` seconds, or None.
    """

    def __init__(self, deadline: float | None = None) -> None:
        self.deadline = deadline
        self._heard = threading.Event()
        self.told: list[Callable[[], None]] = []  # called at Ctrl-C

    @classmethod
    def after(cls, seconds: float | None) -> Stop:
        """A stop so many seconds from now; None: only Ctrl-C ends the search."""
        return cls(None if seconds is None else time.monotonic() + seconds)

    @property
    def interrupted(self) -> bool:
        """True once Ctrl-C came."""
        return self._heard.is_set()

    @property
    def now(self) -> bool:
        """True once Ctrl-C came or the deadline has passed."""
        return self.interrupted or (self.deadline is not None and time.monotonic() > self.deadline)

    @property
    def seconds_left(self) -> float:
        """Seconds to the deadline, at least a hundredth; infinite without one."""
        return math.inf if self.deadline is None else max(0.01, self.deadline - time.monotonic())

    def earlier(self, part: float) -> Stop:
        """A stop that hears Ctrl-C as this one does, and whose deadline comes after a part of the seconds left."""
        now = time.monotonic()
        other = Stop(None if self.deadline is None else now + part * (self.deadline - now))
        other._heard, other.told = self._heard, self.told
        return other

    def for_packing(self) -> Stop:
        """What an allocator looks at: a Ctrl-C yet to come. Packing is short, and completes a plan already found."""
        packing = Stop()
        if not self.now:
            packing._heard = self._heard
        return packing

    def interrupt(self) -> None:
        """Take note of Ctrl-C."""
        self._heard.set()
        for tell in self.told:
            tell()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Hear the first Ctrl-C in here, on the main thread; a second one goes to the handler that was there before."""
        before = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is not threading.main_thread() or not callable(before):
            yield
            return

        def heard(number: int, frame: FrameType | None) -> None:
            signal.signal(signal.SIGINT, before)
            self.interrupt()

        signal.signal(signal.SIGINT, heard)
        try:
            yield
        finally:
            if signal.getsignal(signal.SIGINT) is heard:
                signal.signal(signal.SIGINT, before)


class Budget(msgspec.Struct, frozen=True):
    """A budget as it was asked.

    Args:
        text: as the user wrote it.
        nbytes: the bytes it stands for, reserve included.
    """

    text: str
    nbytes: int

    @classmethod
    def read(cls, written: BudgetText, *, keep_all_peak_bytes: int = MAX_BYTES) -> Budget:
        """The budget that a size, a fraction or a device stands for; of a device, all that it holds.

        Args:
            written: as `optimize` takes it.
            keep_all_peak_bytes: what a fraction is of.
        Raises:
            UnitError: not understood; lists the accepted forms.

        >>> Budget.read("T4"), Budget.read("40%", keep_all_peak_bytes=1000)
        (Budget(text='T4', nbytes=15633680957), Budget(text='40%', nbytes=400))
        """
        device = find_device(written)
        if device is not None and device.total_bytes is not None:
            return cls(str(written), device.total_bytes)
        try:
            return cls(str(written), parse_budget(written, keep_all_peak_bytes))
        except UnitError as error:
            near = " or ".join(name for name in nearest(written) if DEVICES[name].total_bytes)
            hint = f": did you mean {near}?" if near else ', as "t4"'
            raise UnitError(f"{error}; or a device{hint}") from None


def with_reserve(memory: MemoryModel, budget: BudgetText | None) -> MemoryModel:
    """The memory model with its reserve as given; else what the context takes of a device, and nothing of a size.

    Args:
        budget: as `optimize` takes it.
    Raises:
        PlannerError: `memory` is of another type.

    >>> with_reserve(MemoryModel(), "t4").reserve, with_reserve(MemoryModel(reserve=0), "t4").reserve
    (536870912, 0)
    """
    check_memory(memory)
    return memory.reserving(0 if find_device(budget) is None else CONTEXT_BYTES)


def usable(budget: BudgetText, memory: MemoryModel) -> BudgetText:
    """A budget among others that have one reserve: of a device, what its context leaves where no reserve is given.

    >>> usable("40%", MemoryModel()), usable("a100-40", MemoryModel()), usable("a100-40", MemoryModel(reserve=0))
    ('40%', 41761964032, 42298834944)
    """
    asked = Budget.read(budget)
    if find_device(budget) is None:
        return budget
    return asked.nbytes if memory.reserve is not None else with_reserve(memory, budget).live_bytes(asked.nbytes)


class Request(msgspec.Struct, frozen=True):
    """What the user asked about a graph, checked once.

    The graph itself is beside it: a report and a curve file hold the request without the graph.

    Args:
        strategy: its name; of a curve the names are `Curve.strategies`, and this one is empty.
        budget: None asks for the least peak.
        allocator: its name; None plans live bytes, without offsets.
        memory: what the budget covers.
        order: "pinned" forbids first runs in another order than the program's.
        save, recompute: the patterns of the user's policy.
        seed: for strategies that draw.
        effort: search work, relative to the default.
        step: the training step that the graph was given; None: the graph is planned as it is.
    Raises:
        PlannerError: an argument that cannot be meant, named.
    """

    strategy: str = ""
    budget: Optional[Budget] = None
    allocator: Optional[str] = None
    memory: MemoryModel = MemoryModel()
    order: Order = "free"
    save: tuple[str, ...] = ()
    recompute: tuple[str, ...] = ()
    seed: int = 0
    effort: float = 1.0
    step: Optional[TrainingStep] = None

    def __post_init__(self) -> None:
        check_memory(self.memory)
        if self.step is not None and not isinstance(self.step, TrainingStep):
            example = 'write step=TrainingStep("adam", update="fused")'
            raise PlannerError(f"step {shown(self.step)} is not a TrainingStep; {example}")
        msgspec.structs.force_setattr(self, "memory", self.memory.reserving(0))
        if not isinstance(self.order, str) or self.order not in ("free", "pinned"):
            raise PlannerError(f"order {shown(self.order)} is not 'free' or 'pinned'")
        effort, seed = as_number(self.effort), as_int(self.seed)
        if not 0 < effort < math.inf:
            raise PlannerError(f"effort {shown(self.effort)} is not a number above 0")
        if seed is None or not -(2**63) <= seed < 2**63:
            raise PlannerError(f"seed {shown(self.seed)} is not an int of at most 64 bits")
        msgspec.structs.force_setattr(self, "effort", effort)
        msgspec.structs.force_setattr(self, "seed", seed)

    @property
    def budget_bytes(self) -> int | None:
        """The budget, reserve included; None: the least peak is asked for."""
        return None if self.budget is None else self.budget.nbytes

    @property
    def live_budget(self) -> int | None:
        """Bytes that a plan's arena may take: the budget less the reserve."""
        return None if self.budget is None else self.memory.live_bytes(self.budget.nbytes)

    @property
    def budget_text(self) -> str:
        """The budget as it was written."""
        return LEAST_PEAK if self.budget is None else self.budget.text


class Asked:
    """The parts of `request`, by the names they have on plans, reports and curves."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def request(self) -> Request:
            """What was asked."""

    @property
    def strategy(self) -> str:
        """The strategy's name."""
        return self.request.strategy

    @property
    def allocator(self) -> str | None:
        """The allocator's name, or None: live bytes only."""
        return self.request.allocator

    @property
    def budget(self) -> int | None:
        """Bytes, reserve included; None: the least peak was asked for."""
        return self.request.budget_bytes

    @property
    def budget_text(self) -> str:
        """The budget as it was written."""
        return self.request.budget_text

    @property
    def memory(self) -> MemoryModel:
        """Scope, alignment and reserve."""
        return self.request.memory

    @property
    def order(self) -> Order:
        """ "pinned": ops first run in the program's order."""
        return self.request.order

    @property
    def seed(self) -> int:
        """For strategies that draw."""
        return self.request.seed

    @property
    def effort(self) -> float:
        """Search work, relative to the default."""
        return self.request.effort

    @property
    def step(self) -> TrainingStep | None:
        """The training step that the graph was given; None: the graph as it is."""
        return self.request.step

    @property
    def save_rules(self) -> tuple[str, ...]:
        """The policy's patterns of ops that run once."""
        return self.request.save

    @property
    def recompute_rules(self) -> tuple[str, ...]:
        """The policy's patterns of ops that are computed again."""
        return self.request.recompute


#: The request's fields by the names they have in files of before and in `--json`.
_FLAT: Final = {
    "strategy": "strategy",
    "allocator": "allocator",
    "memory": "memory",
    "order": "order",
    "save_rules": "save",
    "recompute_rules": "recompute",
    "seed": "seed",
    "effort": "effort",
    "step": "step",
}


def flat(struct: msgspec.Struct, *names: str) -> dict[str, Any]:
    """A struct that holds a request, as plain values, with the request's fields beside its own.

    Args:
        names: of the request's fields, as `_FLAT` has them; none: all.
    """
    content: dict[str, Any] = msgspec.to_builtins(struct)
    asked = content.pop("request")
    return {**content, **{name: asked[own] for name, own in _FLAT.items() if name in names or not names}}


def nested(content: dict[str, Any]) -> dict[str, Any]:
    """The opposite: the values of an older file with what was asked gathered in a request."""
    own = {key: value for key, value in content.items() if key not in _FLAT}
    return {**own, "request": {_FLAT[key]: value for key, value in content.items() if key in _FLAT}}


class Status(msgspec.Struct, frozen=True):
    """Where a search stands: what `progress` of `optimize` is called with, at each plan judged.

    Args:
        strategy: at work.
        peak_bytes, overhead: of the best plan so far within the budget (without one: of least peak), the overhead as a
            fraction of the baseline's cost; None while there is none. They start afresh where the search is asked for
            less, because packing needs more than the peak.
        overhead_lower_bound: what no plan's overhead is below.
        plans_judged: so far.
        elapsed_seconds: since `optimize` was called.
        infeasible: why no plan can fit, once that is proven; the search goes on for the least that works.
    """

    strategy: str
    peak_bytes: Optional[int]
    overhead: Optional[float]
    overhead_lower_bound: float
    plans_judged: int
    elapsed_seconds: float
    infeasible: Optional[str] = None


#: The name that `Status` had in version 0.1.
Standing = Status


class Problem(msgspec.Struct, frozen=True):
    """One question to a strategy.

    Args:
        graph: the program. Where the user has a policy, a program in which it holds; see `planner.policy`.
        budget: most live bytes allowed, the reserve taken off; None asks for the least peak.
        memory: scope and alignment.
        order: "pinned" forbids first runs in another order than the program's.
        seed: for strategies that draw.
        effort: work to spend, in moves, relative to the default 1.0; more than `MOST_EFFORT` is as good as endless.
        stop: once `stop.now`, the strategy returns the best it has.
        watch: told of each plan judged; it says nothing back.
        starts: plans of `graph` for other budgets, to begin from; they may be above this one. A strategy need not look
            at them.
        onwards: the plan this search found for a little more memory, if its arena missed; it goes on from there.
        enough_bytes: without a budget, a peak at which the search may end: it goes the same way down, and no further.
    """

    graph: Graph
    budget: Optional[int]
    memory: MemoryModel = MemoryModel()
    order: Order = "free"
    seed: int = 0
    effort: float = 1.0
    stop: Stop = msgspec.field(default_factory=Stop)
    watch: Optional[Watch] = None
    starts: tuple[Schedule, ...] = ()
    onwards: Optional[Schedule] = None
    enough_bytes: Optional[int] = None

    def __post_init__(self) -> None:
        seed = as_int(self.seed)
        if seed is None:
            raise PlannerError(f"seed {self.seed!r} is not an int")
        msgspec.structs.force_setattr(self, "seed", seed)
        msgspec.structs.force_setattr(self, "effort", min(self.effort, MOST_EFFORT))

    @property
    def deadline(self) -> float | None:
        """`time.monotonic()` seconds after which the best so far is returned, or None."""
        return self.stop.deadline

    @property
    def out_of_time(self) -> bool:
        """True once the search should end."""
        return self.stop.now


class Proposal(msgspec.Struct, frozen=True):
    """A strategy's claim; the judge decides.

    Args:
        schedule: legal, with a peak within the budget.
        cost_lower_bound: cost no plan at this budget can go below, if the strategy knows more than one run of each op.
        peak_lower_bound: bytes no plan can go below, if it knows more than the largest working set.
        optimal: what is proven, one of `planner.report.PROOFS`, or None. `Plan.verify` accepts it only where it is
            proven again.
        cut_short: True if the search ended before its work was done.
        others: plans nearly as good, of which one may pack better.
    """

    schedule: Schedule
    cost_lower_bound: Optional[float] = None
    peak_lower_bound: Optional[int] = None
    optimal: Optional[str] = None
    cut_short: bool = False
    others: tuple[Schedule, ...] = ()

    def unclaimed(self) -> Proposal:
        """The same schedule without its bounds: they were proven for a different budget."""
        return msgspec.structs.replace(self, cost_lower_bound=None, peak_lower_bound=None, optimal=None)


class Strategy(Protocol):
    """Problem -> Proposal. `functools.partial` carries options.

    Raises InfeasibleBudget where it finds no plan within the budget, with the least peak it reached, in live bytes.
    """

    def __call__(self, problem: Problem, /) -> Proposal: ...


class Allocator(Protocol):
    """(graph, schedule, memory) -> offsets of every buffer. One that takes `stop` too is handed a `Stop`."""

    def __call__(self, graph: Graph, schedule: Schedule, /, *, memory: MemoryModel) -> Allocation: ...


def effort_schedule(effort: float) -> Iterator[float]:
    """The searches an effort is worth: of 1, then 2, then 4, while the sum stays within it. More effort only adds some.

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


def check_memory(memory: MemoryModel) -> None:
    """Refuse what is no memory model.

    Raises:
        PlannerError: another type, or a size that is True or False.
    """
    if not isinstance(memory, MemoryModel):
        example = "write memory=MemoryModel(scope=..., alignment=..., reserve=...)"
        raise PlannerError(f"memory {shown(memory)} is not a MemoryModel; {example}")


def as_number(value: Any) -> float:
    """A float, NumPy's included; NaN for what is no number."""
    try:
        return float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        return math.nan
