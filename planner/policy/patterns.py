"""What a rule says: presets, and patterns over names, op types and modules."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from fnmatch import translate
from typing import Any, Final

from planner.errors import PlannerError
from planner.graph import Graph, Op
from planner.text import printable

#: Words that stand for a whole set of rules, where `recompute` takes patterns.
PRESETS: Final = ("none", "selective", "full", "auto")
_SHOWN: Final = 5


def rule_list(given: Any, *, option: str) -> tuple[str, ...]:
    """Patterns as they were given, one or many; the preset "auto" asks for nothing and is left out, and so are repeats.

    Args:
        option: "save" or "recompute", for the error.
    Raises:
        PlannerError: not a string, nor a list of them, or two presets.

    >>> rule_list("op:Relu", option="recompute"), rule_list(["auto"], option="recompute")
    (('op:Relu',), ())
    """
    listed = (given,) if isinstance(given, str) else given
    if not isinstance(listed, Iterable) or isinstance(listed, (bytes, dict)):
        raise PlannerError(f"{option}={printable(repr(given))} is neither a pattern nor a list of patterns")
    rules = tuple(listed)
    for rule in rules:
        if not isinstance(rule, str) or not rule:
            raise PlannerError(
                f"{option}: {printable(repr(rule))} is not a pattern; write a name, or op:TYPE, or module:NAME"
            )
    presets = [rule for rule in dict.fromkeys(rules) if rule in PRESETS]
    if option != "recompute":
        return tuple(dict.fromkeys(rules))
    if len(presets) > 1:
        raise PlannerError(f"recompute: {presets[0]!r} and {presets[1]!r} are both presets; give one of them")
    return tuple(dict.fromkeys(rule for rule in rules if rule != "auto"))


def matching(graph: Graph, pattern: str, *, option: str) -> tuple[str, ...]:
    """Ops that a pattern names, in program order; residents, which are always kept, are none of them.

    `*`, `?` and `[...]` are those of file names; case counts. A pattern that equals a name means it, whatever is in it.

    Args:
        pattern: over names of ops and of their values; `op:` before it: over op types; `module:`: over modules, and
            what is inside a module that matches is meant too; `name:` says that names are meant, for one that begins
            like these or is a preset.
        option: for the error.
    Raises:
        PlannerError: it names no op.
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
            raise PlannerError(
                f"save: {pattern!r} is a preset of recompute; write name:{pattern} for a value of that name"
            )
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


_KINDS: Final[dict[str, Callable[[Op], Iterator[str]]]] = {"name": _names, "op": _types, "module": _modules}


def _instead(
    graph: Graph,
    wanted: str,
    of: Callable[[Op], Iterator[str]],
    matches: Callable[[str], object],
    presets: tuple[str, ...],
) -> str:
    """What there is instead."""
    residents = [
        op.name for op in graph.ops if op.resident and any(name == wanted or matches(name) for name in _names(op))
    ]
    if residents and of is _names:
        return f": {residents[0]!r} is an input, parameter or state, and always kept"
    there = dict.fromkeys(name for op in graph.ops if not op.resident for name in of(op))
    if not there:
        return f"; no op of this graph has {'a type' if of is _types else 'a module'}"
    import difflib

    names = [*presets, *there]
    close = difflib.get_close_matches(wanted, names[:20_000], n=_SHOWN) or list(there)[:_SHOWN]
    return f"; there are {', '.join(map(repr, close))}{', ...' if len(names) > len(close) else ''}"
