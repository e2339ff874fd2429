"""What a budget covers, and where buffers lie."""

from __future__ import annotations

from typing import Final, Literal, Optional

import msgspec

from planner.errors import PlannerError, UnitError
from planner.text import as_int, shortened
from planner.units import counted, format_bytes, parse_bytes

Scope = Literal["total", "activations"]
MOST_RESERVE: Final = 2**61


class MemoryModel(msgspec.Struct, frozen=True):
    """What counts against a budget.

    Args:
        scope: "total" counts everything; "activations" leaves residents out. Parameter gradients count in both.
        alignment: every storage is rounded up to this many bytes, once (512 for CUDA's caching allocator).
        reserve: bytes of the budget kept for what the graph does not show: context, libraries, fragmentation. At most
            2**61: with an arena of as much, the least that works can still be asked for. None: not given, which is 512
            MiB where the budget is a device, and nothing where it is a size.

    Alignment and reserve may be text, as "500MiB".

    >>> MemoryModel(alignment=512).round_up(700), MemoryModel(reserve="500MiB").live_bytes(2**30)
    (1024, 549453824)
    """

    scope: Scope = "total"
    alignment: int = 1
    reserve: Optional[int] = None

    def __post_init__(self) -> None:
        if not isinstance(self.scope, str) or self.scope not in ("total", "activations"):
            raise PlannerError(f"scope {self.scope!r} is not 'total' or 'activations'")
        alignment = _size(self.alignment)
        reserve = None if self.reserve is None else _size(self.reserve)
        if alignment is None or not 1 <= alignment <= 2**30:
            raise PlannerError(f"alignment {self.alignment!r} is not a number of bytes from 1 to 2**30")
        if self.reserve is not None and (reserve is None or not 0 <= reserve <= MOST_RESERVE):
            raise PlannerError(f"reserve {self.reserve!r} is not a number of bytes from 0 to 2**61")
        for field, plain in (("scope", str.__str__(self.scope)), ("alignment", alignment), ("reserve", reserve)):
            msgspec.structs.force_setattr(self, field, plain)  # NumPy's numbers and strings cannot be written to a file

    def round_up(self, nbytes: int) -> int:
        """Bytes a storage of `nbytes` takes."""
        return -(-nbytes // self.alignment) * self.alignment

    def reserving(self, nbytes: int) -> MemoryModel:
        """The same model, with a reserve of so many bytes where none was given."""
        return self if self.reserve is not None else msgspec.structs.replace(self, reserve=nbytes)

    def live_bytes(self, budget: int) -> int:
        """What a budget leaves for the arena: all but the reserve; below 0 where the reserve is larger."""
        return budget - (self.reserve or 0)

    def needed_bytes(self, arena_bytes: int) -> int:
        """The least budget that an arena fits: its bytes and the reserve."""
        return arena_bytes + (self.reserve or 0)


def _size(value: int | str) -> int | None:
    """Bytes of an int or a size as text; None for anything else."""
    try:
        return parse_bytes(value) if isinstance(value, str) else as_int(value)
    except UnitError:
        return None


class Buffer(msgspec.Struct, frozen=True):
    """One storage, or one step's workspace, with its place in the arena.

    Args:
        value: the value whose making allocated it; for workspace, the op.
        execution: which run of that op, from 0.
        workspace: True for the scratch bytes of one step.
        nbytes: bytes, rounded up to the alignment (workspace is not).
        start, end: Compute steps during which it is live, half-open.
        offset: first byte in the arena, above the residents.
    """

    value: str
    execution: int
    workspace: bool
    nbytes: int
    start: int
    end: int
    offset: int


class Allocation(msgspec.Struct, frozen=True):
    """Where every buffer of a schedule lies in one arena.

    Args:
        buffers: one per storage and workspace; an output that an in-place pair would put on its input's storage has a
            buffer of its own only where the allocator declined the pair.
        resident_bytes: bytes of residents below the buffers (0 in scope "activations").
        arena_bytes: resident bytes + the highest end of a buffer.
        allocator: the name of the rule that placed them.
        bound_bytes: proven: no arena of these buffers is smaller. 0: nothing is known beyond the peak.
    """

    buffers: tuple[Buffer, ...]
    resident_bytes: int
    arena_bytes: int
    allocator: str
    bound_bytes: int = 0

    def __repr__(self) -> str:
        arena = format_bytes(self.arena_bytes)
        return f"Allocation({counted(len(self.buffers), 'buffer')} in {arena}, by {shortened(self.allocator, 40)!r})"
