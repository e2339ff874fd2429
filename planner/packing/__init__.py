"""Allocators: offsets for every buffer of a schedule."""

from __future__ import annotations

from planner.errors import UnknownAllocator
from planner.names import named, register
from planner.packing.allocators import auto, best_fit, exact, first_fit
from planner.packing.arena import Packing, pack
from planner.packing.intervals import Intervals
from planner.problem import Allocator

__all__ = [
    "Intervals", "Packing", "allocator_names", "best_fit", "exact", "find_allocator", "first_fit", "pack",
    "register_allocator",
]  # fmt: skip

_ALLOCATORS: dict[str, Allocator] = {"auto": auto, "first-fit": first_fit, "best-fit": best_fit, "exact": exact}


def register_allocator(name: str, allocator: Allocator) -> None:
    """Make an allocator available by name; a later registration of the same name replaces it.

    Raises:
        PlannerError: the name is no text, or the allocator is not callable.

    >>> from functools import partial
    >>> register_allocator("first-fit-breadth", partial(first_fit, order="breadth"))
    """
    register(name, allocator, _ALLOCATORS, kind="allocator")


def allocator_names() -> tuple[str, ...]:
    """Registered names, in order of registration."""
    return tuple(_ALLOCATORS)


def find_allocator(allocator: str | Allocator) -> tuple[str, Allocator]:
    """(name, callable) of a name or a callable.

    Raises:
        UnknownAllocator: lists the names there are.
    """
    return named(allocator, _ALLOCATORS, kind="allocator", unknown=UnknownAllocator)
