"""Options of models as text: the signature of a model's function says what type each has."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, final, get_args, get_origin, get_type_hints

_TRUTH: Final = {
    "true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False,
}  # fmt: skip
_WORDS: Final = {
    "int": "an int", "float": "a number", "bool": "true or false", "str": "text", "list": "names with commas between",
}  # fmt: skip
_NUMBER: Final = {
    int: re.compile(r"-?[0-9]{1,19}", re.ASCII),
    float: re.compile(r"[-+]?[0-9.]+(e[-+]?[0-9]+)?", re.ASCII | re.IGNORECASE),
}


@final
@dataclass(frozen=True, slots=True)
class Option:
    """One option of a model.

    Args:
        name: as the model's function has it.
        type: "int", "float", "bool", "str", or "list" of choices with commas between.
        default: None too where there is none.
        choices: the values of a "str" or a "list" there are, and of a "bool" that is a word too; () if any will do.
        nullable: "none" is a value.
        spellings: further values of a "str" that has choices, each short for one of them.
    """

    name: str
    type: Literal["int", "float", "bool", "str", "list"]
    default: Any
    choices: tuple[str, ...] = ()
    nullable: bool = False
    spellings: tuple[str, ...] = ()

    @property
    def accepted(self) -> str:
        """What may be written, for people."""
        some = "some of" if self.type == "list" else "one of"
        known = f"{some} {', '.join(self.choices)}" if self.choices else _WORDS[self.type]
        return f"{known}, or none" if self.nullable else known

    def __str__(self) -> str:
        values = ("," if self.type == "list" else "|").join(self.choices) or self.type
        return f"{self.name}={values}{'|none' if self.nullable else ''}"

    @property
    def example(self) -> str:
        """The option with its default, as it may be written; where it has choices or no default, with what it takes.

        >>> Option("image", "int", 224).example, Option("relu", "bool", True).example
        ('image=224', 'relu=true')
        """
        return str(self) if self.choices or self.default is None else f"{self.name}={str(self.default).lower()}"

    def parse(self, text: str) -> Any:
        """The value a text stands for.

        Raises:
            ValueError: it stands for none; see `accepted`.

        >>> Option("dropout", "float", 0.0).parse("0.1"), Option("relu", "bool", True).parse("off")
        (0.1, False)
        """
        if self.nullable and text.lower() == "none":
            return None
        if self.type == "bool" and text.lower() in _TRUTH:
            return _TRUTH[text.lower()]
        if self.type == "int" and _NUMBER[int].fullmatch(text):
            return int(text)
        if self.type == "float" and _NUMBER[float].fullmatch(text) and math.isfinite(float(text)):
            return float(text)
        if self.type == "list" and all(part in self.choices for part in text.split(",")):
            return tuple(text.split(","))
        if self.type == "str" and not self.choices:
            return text
        if self.type == "str" and text.lower() in (*self.choices, *self.spellings):
            return text.lower()
        raise ValueError(self.accepted)


def options_of(function: Callable[..., Any], names: Iterable[str]) -> dict[str, Option]:
    """Options of a function by name.

    Args:
        function: annotated with int, float, bool, str, `Literal` of str, a sequence of one, or one of these or None. A
            second `Literal` has short forms of what is in the first.

    >>> def model(*, width: int = 3, dtype: Literal["float32", "float16"] = "float32") -> None: ...
    >>> [str(option) for option in options_of(model, ("width", "dtype")).values()]
    ['width=int', 'dtype=float32|float16']
    """
    types, parameters = get_type_hints(function), inspect.signature(function).parameters
    return {name: _option(name, types[name], parameters[name].default) for name in names}


def _option(name: str, annotation: Any, default: Any) -> Option:
    parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    kinds = [part for part in parts if part is not NoneType]
    words = [word for part in kinds if get_origin(part) is Literal for word in get_args(part)]
    if bool in kinds and words and len(kinds) == 2:
        return Option(name, "bool", default, ("true", "false", *words), NoneType in parts)
    spellings: tuple[str, ...] = ()
    if len(kinds) == 2 and all(get_origin(kind) is Literal for kind in kinds):
        spellings = get_args(kinds.pop())
    if len(kinds) != 1:
        raise TypeError(f"option {name!r} is of type {annotation}, which cannot be given as text")
    kind, default = kinds[0], None if default is inspect.Parameter.empty else default
    nullable = NoneType in parts
    if get_origin(kind) is Literal:
        return Option(name, "str", default, get_args(kind), nullable, spellings)
    if get_origin(kind) in (Sequence, tuple) and get_origin(get_args(kind)[0]) is Literal:
        return Option(name, "list", default, get_args(get_args(kind)[0]), nullable)
    if kind not in (int, float, bool, str):
        raise TypeError(f"option {name!r} is of type {annotation}, which cannot be given as text")
    return Option(name, kind.__name__, default, (), nullable)
