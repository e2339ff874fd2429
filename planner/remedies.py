"""Data types for advice on a budget that no plan meets."""

from __future__ import annotations

from typing import Final, NamedTuple, Optional

import msgspec

SMALLER_BATCH: Final = "Smaller batch"


class Remedy(msgspec.Struct, frozen=True):
    """One thing to do about a budget that no plan meets.

    Args:
        action: what to do, as "Loss in 8 chunks".
        peak_bytes: what the step takes then, without the reserve.
        fits: True if `peak_bytes` is within the budget.
        note: a sentence for people.
        at_least: True if `peak_bytes` is a lower bound, and the best plan may be above it.
    """

    action: str
    peak_bytes: int
    fits: bool
    note: str
    at_least: bool = False


class Shortfall(NamedTuple):
    """Why recomputation is not enough to meet a budget, and what else would help.

    Args:
        phase: "update" if the optimizer step alone is too large, "loss" if the loss tail alone is, else None.
        op: the op of that phase that needs most.
        nbytes: what that op needs, without the reserve.
        parts: (component, bytes) of `nbytes`.
        remedies: what else would help, those that fit first.
        batch_helps: False if what does not depend on the batch is too large already.
    """

    phase: Optional[str]
    op: Optional[str]
    nbytes: int
    parts: tuple[tuple[str, int], ...]
    remedies: tuple[Remedy, ...]
    batch_helps: bool
