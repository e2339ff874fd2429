"""A schedule: what runs, what is freed, in order. Legality is the judge's verdict, not a property of the type."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Union

import msgspec


class Compute(msgspec.Struct, frozen=True, array_like=True, tag="compute"):
    """Run op `op`: makes a new instance of each of its outputs that is not live."""

    op: str


class Free(msgspec.Struct, frozen=True, array_like=True, tag="free"):
    """Drop the live instance of `value`, after the step before it."""

    value: str


Step = Union[Compute, Free]


class Schedule(msgspec.Struct, frozen=True):
    """An immutable list of steps: countable, comparable, hashable, JSON.

    >>> schedule = Schedule.of([Compute("a"), Compute("b"), Free("a")])
    >>> len(schedule), schedule.computes
    (3, ('a', 'b'))
    >>> print(schedule)
    a
    b; free a
    """

    steps: tuple[Step, ...]

    @classmethod
    def of(cls, steps: Iterable[Step]) -> Schedule:
        """A schedule of any iterable of steps."""
        return cls(tuple(steps))

    @property
    def computes(self) -> tuple[str, ...]:
        """Ops in the order they run, repeats included."""
        return tuple(step.op for step in self.steps if isinstance(step, Compute))

    def __len__(self) -> int:
        return len(self.steps)

    def __str__(self) -> str:
        lines: list[str] = []
        for step in self.steps:
            if isinstance(step, Compute):
                lines.append(step.op)
            elif lines:
                lines[-1] += f"{',' if '; free' in lines[-1] else '; free'} {step.value}"
            else:
                lines.append(f"; free {step.value}")
        return "\n".join(lines)
