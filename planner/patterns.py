"""Patterns over names, op types and modules of ops, and the names of presets."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import translate
from typing import Any, Final, final

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


@final
class Pattern:
    """A pattern over ops: over their names, or with `op:` before it over op types, with `module:` over modules.

    `*`, `?` and `[...]` are those of file names; case counts. A pattern that equals a name means that name. `name:` is
    for a name that begins like these or is a preset; the modules inside a module match too.

    Args:
        names: what an op is called, by kind of pattern.

    >>> relu, conv = Op("r1", op="Relu"), Op("c1", op="Conv")
    >>> [op.name for op in Pattern("op:Re*").found_in([relu, conv])]
    ['r1']
    """

    def __init__(self, text: str, *, names: Mapping[str, Names] | None = None) -> None:
        names = names or NAMES
        kind, colon, rest = text.partition(":")
        typed = names.get(kind) if colon else None
        self.text: Final = text
        self.kind: Final = "name" if typed is None else kind
        self.wanted: Final = text if typed is None else rest
        self.prefixed: Final = typed is not None
        self._names_of: Final[Names] = typed or names["name"]
        self._matches: Final = re.compile(translate(self.wanted)).match
        self._known: Final[dict[str, bool]] = {}

    def matches(self, op: Op) -> bool:
        """True if the pattern names the op."""
        return any(map(self._is_named, self._names_of(op)))

    def _is_named(self, name: str) -> bool:
        if name not in self._known:
            self._known[name] = name == self.wanted or self._matches(name) is not None
        return self._known[name]

    def found_in(self, ops: Iterable[Op]) -> list[Op]:
        """The ops it names, in their order."""
        return [op for op in ops if self.matches(op)]

    def instead(self, ops: Iterable[Op], *, presets: tuple[str, ...] = (), what: str = "op") -> str:
        """Names close to a pattern that names no op, as the end of a sentence."""
        there = dict.fromkeys(name for op in ops for name in self._names_of(op))
        if not there:
            return f"; no {what} of this graph has {'a type' if self.kind == 'op' else 'a module'}"
        import difflib

        names = [*presets, *there]
        close = difflib.get_close_matches(self.wanted, names[:20_000], n=_SHOWN) or list(there)[:_SHOWN]
        return f"; there are {', '.join(map(repr, close))}{', ...' if len(names) > len(close) else ''}"


def matching(graph: Graph, pattern: str, *, option: str) -> tuple[str, ...]:
    """Ops that a pattern of a policy names, in program order; residents are always kept, so no pattern names them.

    Args:
        option: "save" or "recompute", for the error.
    Raises:
        PlannerError: the pattern names no op.
    """
    wanted = Pattern(pattern)
    ops = [op for op in graph.ops if not op.resident]
    found = wanted.found_in(ops)
    if not found:
        if option == "save" and pattern in PRESETS:
            fix = f"write name:{pattern} for a value of that name"
            raise PlannerError(f"save: {pattern!r} is a preset of recompute; {fix}")
        kept = next((op for op in graph.ops if op.resident and wanted.kind == "name" and wanted.matches(op)), None)
        if kept is not None:
            why = f": {kept.name!r} is an input, parameter or state, and always kept"
        else:
            why = wanted.instead(ops, presets=PRESETS if option == "recompute" and not wanted.prefixed else ())
        raise PlannerError(f"{option}: {pattern!r} names no op{why}")
    return tuple(op.name for op in found)


def _names(op: Op) -> Iterator[str]:
    yield op.name
    for tensor in op.outputs:
        yield tensor.name


def _types(op: Op) -> Iterator[str]:
    if op.op is not None:
        yield op.op


def modules_around(op: Op) -> Iterator[str]:
    """The module of an op, and those around it."""
    name = op.module or ""
    while name:
        yield name
        name = name[: max(name.rfind("."), name.rfind("/"), 0)]


#: What an op is called, by kind of pattern.
NAMES: Final[Mapping[str, Names]] = {"name": _names, "op": _types, "module": modules_around}
