"""What to do about a budget that is missed: the forms in which it is said."""

from __future__ import annotations

from typing import Final, NamedTuple, Optional

import msgspec

from planner.units import format_bytes

SMALLER_BATCH: Final = "Smaller batch"


class Remedy(msgspec.Struct, frozen=True):
    """One thing to do about a budget that is missed.

    Args:
        action: what.
        peak_bytes: what the step then takes, reserve not included.
        fits: that is within the budget.
        note: for people.
        at_least: no plan goes below `peak_bytes`, and the least there is may be above it.
    """

    action: str
    peak_bytes: int
    fits: bool
    note: str
    at_least: bool = False

    @property
    def sentence(self) -> str:
        """For an error: the action and what it takes; of a smaller batch, how much of it."""
        if self.action == SMALLER_BATCH:
            return self.note
        size = f"{'at least ' if self.at_least else ''}{format_bytes(self.peak_bytes)} ({self.peak_bytes} bytes)"
        return f"{self.action[:1].upper()}{self.action[1:]}: {size}."


class Shortfall(NamedTuple):
    """What stands between a program and a budget, where recomputation is not enough.

    Args:
        phase: "update": the optimizer step alone is too large; "loss": the loss tail alone is; None: neither.
        op: the op that needs most there.
        nbytes: what it needs, reserve not included.
        parts: (what, bytes) of these.
        remedies: what else could be done, those that fit first.
        batch_helps: not all of it is independent of the batch.
    """

    phase: Optional[str]
    op: Optional[str]
    nbytes: int
    parts: tuple[tuple[str, int], ...]
    remedies: tuple[Remedy, ...]
    batch_helps: bool
