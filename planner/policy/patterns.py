"""Patterns over names, op types and modules of ops, and the names of presets."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from fnmatch import translate
from typing import Any, Final

from planner.errors import PlannerError
from planner.graph import Graph, Op
from planner.text import shown

#: Words that stand for a whole set of patterns in `recompute`.
PRESETS: Final = ("none", "selective", "full", "auto")
Names = Callable[[Op], Iterator[str]]
_SHOWN: Final = 5


def rule_list(given: Any, *, option: str) -> tuple[str, ...]:
    """Patterns as given, one or many, without repeats and without the preset "auto", which asks for nothing.

    Args:
        option: "save" or "recompute", for the error.
    Raises:
        PlannerError: neither a string nor a list of strings, or two presets.

    >>> rule_list("op:Relu", option="recompute"), rule_list(["auto"], option="recompute")
    (('op:Relu',), ())
    """
    listed = (given,) if isinstance(given, str) else given
    if not isinstance(listed, Iterable) or isinstance(listed, (bytes, dict)):
        raise PlannerError(f"{option}={shown(given)} is neither a pattern nor a list of patterns")
    patterns = tuple(listed)
    for pattern in patterns:
        if not isinstance(pattern, str) or not pattern:
            fix = "write a name, or op:TYPE, or module:NAME"
            raise PlannerError(f"{option}: {shown(pattern)} is not a pattern; {fix}")
    once = tuple(dict.fromkeys(patterns))
    if option != "recompute":
        return once
    presets = [pattern for pattern in once if pattern in PRESETS]
    if len(presets) > 1:
        raise PlannerError(f"recompute: {presets[0]!r} and {presets[1]!r} are both presets; give one of them")
    return tuple(pattern for pattern in once if pattern != "auto")


def matching(graph: Graph, pattern: str, *, option: str) -> tuple[str, ...]:
    """Ops that a pattern names, in program order; residents are always kept, so no pattern names them.

    `*`, `?` and `[...]` are those of file names; case counts. A pattern that equals a name means that name.

    Args:
        pattern: over names of ops and of their values; with `op:` before it over op types; with `module:` over modules,
            whose inner modules match too; with `name:` over names, for a name that begins like these or is a preset.
        option: "save" or "recompute", for the error.
    Raises:
        PlannerError: the pattern names no op.
    """
    kind, colon, rest = pattern.partition(":")
    names_of = _KINDS.get(kind) if colon else None
    wanted = rest if names_of is not None else pattern
    of = names_of or _names
    matches = re.compile(translate(wanted)).match
    known: dict[str, bool] = {}
    found = []
    for op in graph.ops:
        if op.resident:
            continue
        for name in of(op):
            if name not in known:
                known[name] = name == wanted or matches(name) is not None
            if known[name]:
                found.append(op.name)
                break
    if not found:
        if option == "save" and pattern in PRESETS:
            fix = f"write name:{pattern} for a value of that name"
            raise PlannerError(f"save: {pattern!r} is a preset of recompute; {fix}")
        presets = PRESETS if option == "recompute" and names_of is None else ()
        raise PlannerError(f"{option}: {pattern!r} names no op{_instead(graph, wanted, of, matches, presets)}")
    return tuple(found)


def _names(op: Op) -> Iterator[str]:
    yield op.name
    for tensor in op.outputs:
        yield tensor.name


def _types(op: Op) -> Iterator[str]:
    if op.op is not None:
        yield op.op


def _modules(op: Op) -> Iterator[str]:
    """The module, and those around it."""
    name = op.module or ""
    while name:
        yield name
        name = name[: max(name.rfind("."), name.rfind("/"), 0)]


_KINDS: Final[dict[str, Names]] = {"name": _names, "op": _types, "module": _modules}


def _instead(graph: Graph, wanted: str, of: Names, matches: Callable[[str], object], presets: tuple[str, ...]) -> str:
    """Why a pattern names no op, and names close to it."""
    for op in graph.ops if of is _names else ():
        if op.resident and any(name == wanted or matches(name) for name in _names(op)):
            return f": {op.name!r} is an input, parameter or state, and always kept"
    there = dict.fromkeys(name for op in graph.ops if not op.resident for name in of(op))
    if not there:
        return f"; no op of this graph has {'a type' if of is _types else 'a module'}"
    import difflib

    names = [*presets, *there]
    close = difflib.get_close_matches(wanted, names[:20_000], n=_SHOWN) or list(there)[:_SHOWN]
    return f"; there are {', '.join(map(repr, close))}{', ...' if len(names) > len(close) else ''}"
