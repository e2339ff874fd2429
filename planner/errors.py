"""The error tree. Every message says what is wrong, where, and what to do; the numbers are attributes.

PlannerError
  GraphError          a graph, or a file holding one, that cannot be read or planned
  ScheduleError       an illegal step: names the step, the op and the value
  UnitError           a budget or size that cannot be understood
  InfeasibleBudget    no plan fits; carries the least that works
  UnknownStrategy     no strategy of that name
  UnknownAllocator    no allocator of that name
  PlanFileError       a plan or curve file that cannot be read
  OutputError         a file that cannot be written
  KernelCacheError    no folder to keep compiled kernels in
  TimeLimit           the time limit passed before any plan was found
  VerificationError   a plan that its judge rejects
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from planner.plan import Plan
    from planner.remedies import Remedy
    from planner.schedule import Schedule


class PlannerError(Exception):
    """Base of all errors raised on purpose by this package."""


class GraphError(PlannerError):
    """The graph, or the file holding it, cannot be read or planned; the message names the node."""


class ScheduleError(PlannerError):
    """A schedule breaks a rule of the memory model.

    Args:
        reason: what is wrong.
        step: index into `Schedule.steps`, or None for the end of the schedule.
        op: op of that step, if any.
        value: value concerned, if any.
    """

    def __init__(
        self, reason: str, *, step: int | None = None, op: str | None = None, value: str | None = None
    ) -> None:
        place = "at the end" if step is None else f"step {step}"
        if op is not None:
            place += f", op {op!r}"
        super().__init__(f"{place}: {reason}")
        self.reason, self.step, self.op, self.value = reason, step, op, value

    def __reduce__(self) -> tuple[Any, ...]:  # so that it crosses process borders whole
        return _schedule_error, (self.reason, self.step, self.op, self.value)


def _schedule_error(reason: str, step: int | None, op: str | None, value: str | None) -> ScheduleError:
    return ScheduleError(reason, step=step, op=op, value=value)


class UnitError(PlannerError):
    """A budget or a size that cannot be understood; the message lists the accepted forms."""


class InfeasibleBudget(PlannerError):
    """No plan fits the budget.

    Args:
        budget: bytes asked for.
        minimum: least arena + reserve reached with the same arguments, in bytes; `optimize(budget=minimum)` succeeds.
            None where a strategy reached nothing, or the least was not asked for.
        minimum_proven: no plan needs less than `minimum`.
        plan: the plan that needs `minimum`, as `optimize(budget=minimum)` may return it; None where no verb made one.
            It may be given as a callable, which is called when the plan is first asked for: its bounds take time.
        least: the schedule of least live bytes, from a strategy that looked for it; else None.
        peak_lower_bound: bytes no plan can go below, reserve included.
        proven: no planner can do better: `budget < peak_lower_bound`, or minimum cuts or the enumeration of all plans
            say so.
        binding_op: the op that needs `peak_lower_bound` by itself, or None when the end of the program does.
        live: values that must be live there.
        phase: "update" if the optimizer step alone exceeds the budget, "loss" if the loss tail alone does, so that
            recomputation cannot help; else None.
        remedies: what else could be done, those that fit first; see `planner.remedies.Remedy`.
        message: the sentence shown to people.
    """

    def __init__(
        self,
        message: str,
        *,
        budget: int,
        minimum: int | None,
        peak_lower_bound: int,
        proven: bool,
        binding_op: str | None,
        live: tuple[str, ...] = (),
        phase: str | None = None,
        remedies: tuple[Remedy, ...] = (),
        minimum_proven: bool = False,
        plan: Plan | Callable[[], Plan] | None = None,
        least: Schedule | None = None,
    ) -> None:
        super().__init__(message)
        self.budget, self.minimum, self.peak_lower_bound = budget, minimum, peak_lower_bound
        self.proven, self.binding_op, self.live = proven, binding_op, live
        self.phase, self.remedies = phase, remedies
        self.minimum_proven, self.least = minimum_proven, least
        self._plan = plan

    @property
    def plan(self) -> Plan | None:
        """The plan that needs `minimum`."""
        if callable(self._plan):
            self._plan = self._plan()
        return self._plan

    def __reduce__(self) -> tuple[Any, ...]:  # so that it crosses process borders whole
        facts = {name: fact for name, fact in vars(self).items() if name != "_plan"}
        return _infeasible, (str(self), {**facts, "plan": self.plan})


def _infeasible(message: str, facts: dict[str, Any]) -> InfeasibleBudget:
    return InfeasibleBudget(message, **facts)


class UnknownStrategy(PlannerError):
    """No strategy of that name is registered; the message lists those that are."""


class UnknownAllocator(PlannerError):
    """No allocator of that name is registered; the message lists those that are."""


class PlanFileError(PlannerError):
    """A plan or curve file cannot be read: missing, another version, another graph, or damaged."""


class OutputError(PlannerError):
    """A file cannot be written; nothing of it was."""


class KernelCacheError(PlannerError):
    """The folder named for compiled kernels cannot be written."""


class TimeLimit(PlannerError):
    """The time limit passed before any plan was found."""


class VerificationError(PlannerError):
    """A plan that its judge rejects: wrong peak, overlapping buffers, or an illegal step."""
