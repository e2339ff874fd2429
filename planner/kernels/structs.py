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
_structref: Any = structref
_types: Any = types
_config: Any = numba.config


class _StructType(_types.StructRef):  # type: ignore[misc]
    def preprocess_fields(self, fields: Any) -> Any:
        """The type of a number in place of the type of one literal."""
        return tuple((name, _types.unliteral(kind)) for name, kind in fields)


def struct(fields: type[Fields]) -> tuple[type, type, Callable[..., Fields]]:
    """A struct of the fields that a class declares.

    Returns:
        its type, its form in Python, and what makes one of the values of its fields, given by name; numbers left out
        are 0. The module of the class has to name the first two `<class>Type` and `<class>Proxy`: compiled code on
        disk finds them so.
    """
    name, kinds = fields.__name__, fields.__annotations__
    kind = type(f"{name}Type", (_StructType,), {"__module__": fields.__module__})
    proxy = type(f"{name}Proxy", (structref.StructRefProxy,), {"__module__": fields.__module__})
    zeros = {"int": 0, "float": 0.0, "bool": False}

    def plain(values: tuple[object, ...]) -> Fields:
        made = fields()
        vars(made).update(zip(kinds, values, strict=True))
        return made

    if _config.DISABLE_JIT:
        build = plain
    else:
        _structref.register(kind)
        _structref.define_proxy(proxy, kind, tuple(kinds))

        @kernel  # numba compiles the constructor of a proxy in every process; a kernel is kept on disk
        def build(values: tuple[object, ...]) -> Fields:
            return proxy(*values)

    def make(**values: Any) -> Fields:
        unknown = values.keys() - kinds.keys()
        assert not unknown, unknown
        return build(tuple(values[name] if name in values else zeros[kinds[name]] for name in kinds))

    return kind, proxy, make
