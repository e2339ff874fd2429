"""Names of strategies and allocators, and of modules in a user's file. It imports little, so that `--help` is quick."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from planner.errors import PlannerError
from planner.text import shown

STRATEGIES: Final = (
    "auto", "chen-budget", "chen-sqrt", "recursive", "binomial", "chain", "cuts", "retention", "exact", "memonger"
)  # fmt: skip
ALLOCATORS: Final = ("auto", "first-fit", "best-fit", "exact", "nnvm")

Named = TypeVar("Named")


def named(
    given: str | Named, known: Mapping[str, Named], *, kind: str, unknown: type[PlannerError]
) -> tuple[str, Named]:
    """(name, callable) of a registered name or of any callable, which is named for its function.

    Args:
        known: callables by registered name.
        kind: "strategy" or "allocator", for the error.
        unknown: the error for anything else; its message lists the registered names.
    """
    if not isinstance(given, str):
        if not callable(given):
            raise unknown(f"{kind} {shown(given)} is neither a name nor a callable; there are {', '.join(known)}")
        return _name_of(given), given
    if given not in known:
        raise unknown(f"no {kind} {given!r}; there are {', '.join(known)}")
    return given, known[given]


def register(name: str, given: Named, known: dict[str, Named], *, kind: str) -> None:
    """Register a callable under a name.

    Raises:
        PlannerError: the name is not a string, or the object is not callable.
    """
    if not isinstance(name, str) or not name:
        raise PlannerError(f"{kind} name {shown(name)} is no text")
    if not callable(given):
        raise PlannerError(f"{kind} {name!r} is registered as {shown(given)}, which is not callable")
    known[name] = given


def scoped(name: str) -> tuple[str, ...]:
    """The parts of a dotted or slashed name, outermost first.

    Exporters repeat a scope inside the next one, and join several names by ";": a repeated scope is left out, and only
    the first name is read.

    >>> scoped("stage1.block1.conv1"), scoped("/layer1/layer1.0/conv1/Conv")
    (('stage1', 'block1', 'conv1'), ('layer1', '0', 'conv1', 'Conv'))
    """
    parts: list[str] = []
    before = ""
    for scope in (name.partition(";")[0] if "/" in name else name).split("/"):
        own = scope.removeprefix(f"{before}.") if before else scope
        parts += [part for part in own.split(".") if part]
        before = scope
    return tuple(parts) or (name,)


def _name_of(function: Any) -> str:
    inner = getattr(function, "func", function)
    return str(getattr(inner, "__name__", type(inner).__name__))
