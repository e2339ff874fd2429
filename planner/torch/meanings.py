"""What the inputs and outputs of a captured step mean to the model that it was captured from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Union, final


@final
@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter, by its path from the root."""

    path: str

    def __str__(self) -> str:
        return f"parameter {plain_path(self.path)!r}"


@final
@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer, by its path from the root."""

    path: str

    def __str__(self) -> str:
        return f"buffer {plain_path(self.path)!r}"


@final
@dataclass(frozen=True, slots=True)
class Input:
    """A tensor among the arguments of the call, by its position among the tensors."""

    index: int

    def __str__(self) -> str:
        return f"input {self.index}"


@final
@dataclass(frozen=True, slots=True)
class Constant:
    """A tensor that the model makes once and keeps as it is."""

    tensor: Any

    def __str__(self) -> str:
        return "a constant of the model"


@final
@dataclass(frozen=True, slots=True)
class Tangent:
    """The gradient of an output, which the caller's backward brings."""

    output: int


@final
@dataclass(frozen=True, slots=True)
class Output:
    """A tensor among the results of the call."""

    index: int


@final
@dataclass(frozen=True, slots=True)
class Update:
    """The new content of a buffer, as running statistics have it."""

    buffer: Buffer


@final
@dataclass(frozen=True, slots=True)
class Gradient:
    """The gradient of a parameter or an input."""

    of: Parameter | Input


Source = Union[Parameter, Buffer, Input, Constant, Tangent]
Result = Union[Output, Update, Gradient]


def plain_path(path: str) -> str:
    """A path as the user's model has it.

    >>> plain_path("model.fc.weight"), plain_path("loss.weight")
    ('fc.weight', 'loss.weight')
    """
    return path.removeprefix("model.")
