"""Allocators: offsets for every buffer of a schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from planner.errors import UnknownAllocator
from planner.memory import Allocation
from planner.packing.fit import auto, best_fit, first_fit
from planner.problem import Allocator

_ALLOCATORS: dict[str, Allocator] = {"auto": auto, "first-fit": first_fit, "best-fit": best_fit}


def register_allocator(name: str, allocator: Allocator) -> None:
    """Make an allocator available by name; a later registration of the same name replaces it.

    >>> register_allocator("breadth-first-fit", lambda graph, schedule, *, memory: first_fit(graph, schedule, memory=memory, order="breadth"))
    """
    _ALLOCATORS[name] = allocator


def allocator_names() -> tuple[str, ...]:
    """Registered names, in order of registration."""
    return tuple(_ALLOCATORS)


def find_allocator(allocator: str | Allocator) -> tuple[str, Callable[..., Allocation]]:
    """(name, callable) of a name or a callable.

    Raises:
        UnknownAllocator: lists the names there are.
    """
    if not isinstance(allocator, str):
        return _name_of(allocator), allocator
    if allocator not in _ALLOCATORS:
        raise UnknownAllocator(f"no allocator {allocator!r}; there are {', '.join(_ALLOCATORS)}")
    return allocator, _ALLOCATORS[allocator]


def _name_of(function: Any) -> str:
    inner = getattr(function, "func", function)
    return str(getattr(inner, "__name__", type(inner).__name__))
