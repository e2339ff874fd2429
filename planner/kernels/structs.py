"""Structs of numbers and arrays that kernels hand one another by reference.

Numba pays for every array that a kernel is handed, also within a tuple; for a struct it hands one pointer. A family of
kernels declares the fields once, annotated, in a class; here they become a struct of numba's, or with
NUMBA_DISABLE_JIT=1 an ordinary object of that class. The arrays of a struct are never replaced, only filled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
from numba import types
from numba.experimental import structref

from planner.kernels import kernel

Fields = TypeVar("Fields")
StructProxy: Any = structref.StructRefProxy
_structref: Any = structref
_types: Any = types
_config: Any = numba.config


class StructType(_types.StructRef):  # type: ignore[misc]
    """The type of a struct: a subclass for each, in the module that declares the fields, so that caches find it."""

    def preprocess_fields(self, fields: Any) -> Any:
        """The type of a number in place of the type of one literal."""
        return tuple((name, _types.unliteral(kind)) for name, kind in fields)


def constructor(fields: type[Fields], kind: type, proxy: type) -> Callable[..., Fields]:
    """What makes a struct of the values of its fields, given by name; numbers left out are 0.

    Args:
        fields: the class whose annotations are the fields.
        kind, proxy: subclasses of `StructType` and `StructProxy`, known by name in the module of the fields.
    """
    kinds: dict[str, str] = fields.__annotations__
    names = tuple(kinds)
    zeros = {"int": 0, "float": 0.0, "bool": False}

    def plain(values: tuple[object, ...]) -> Fields:
        made = fields()
        vars(made).update(zip(names, values, strict=True))
        return made

    if _config.DISABLE_JIT:
        build = plain
    else:
        _structref.register(kind)
        _structref.define_proxy(proxy, kind, names)

        @kernel  # numba compiles the constructor of a proxy in every process; a kernel is kept on disk
        def build(values: tuple[object, ...]) -> Fields:
            return proxy(*values)

    def make(**values: Any) -> Fields:
        unknown = values.keys() - kinds.keys()
        assert not unknown, unknown
        return build(tuple(values[name] if name in values else zeros[kinds[name]] for name in names))

    return make
