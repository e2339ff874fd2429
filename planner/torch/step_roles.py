"""A planned step: the graph in the planner's schema, and beside it what the executor does at each node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Union, final

import networkx as nx
import torch

from planner.torch.meanings import Input, Parameter
from planner.torch.root import Results
from planner.torch.stream import ATenCall

#: What becomes of a gradient when it is handed over: kept as a new `.grad`; added to the `.grad` that is there; used by
#: an update of its parameter, and gone.
Handover = Literal["new", "existing", "inside-backward"]
RNG_STATE_BYTES: Final = {"cpu": 5056, "cuda": 16}  # of a device's generator; both are kept on the host


@final
@dataclass(frozen=True)
class SaveState:
    """Keeps the state of a device's generator, so that the draw that follows can be made again."""

    device: torch.device


@final
@dataclass(frozen=True)
class HandOut:
    """Gives an output to the caller."""

    index: int
    value: str


@final
@dataclass(frozen=True)
class Write:
    """Writes a buffer's new content."""

    path: str
    value: str


@final
@dataclass(frozen=True)
class Wait:
    """The end of the forward pass."""


@final
@dataclass(frozen=True)
class Take:
    """Takes the gradient of an output from the caller."""

    output: int


@final
@dataclass(frozen=True)
class HandOver:
    """Gives a gradient to the autograd engine.

    Args:
        of: whose gradient it is; a tied parameter by its first name.
        value: the gradient.
        copied: the engine gets a copy: someone else has the tensor, or it is laid out unlike its parameter.
        needs: the outputs that it depends on; where the caller uses none of them there is no gradient.
    """

    of: Parameter | Input
    value: str
    copied: bool
    needs: frozenset[int]


Role = Union[ATenCall, SaveState, HandOut, Write, Wait, Take, HandOver]


@final
@dataclass(frozen=True)
class Joint:
    """A step in the planner's schema, and what its nodes are to the executor.

    Args:
        dag: the graph that is planned.
        roles: by node; residents have none.
        residents: what each resident is.
        value_of: the value of each node of the capture that is planned.
        outputs: fake tensors that the caller gets, by position.
        shape: the form of the model's results.
        states: per draw, the node that keeps the generator's state before it.
        storages: of the values that the capture has; equal where they share one.
    """

    dag: nx.DiGraph
    roles: Mapping[str, Role]
    residents: Mapping[str, Any]
    value_of: Mapping[torch.fx.Node, str]
    outputs: Mapping[int, torch.Tensor]
    tangents: frozenset[int]
    shape: Results
    states: Mapping[str, str]
    storages: Mapping[str, int]
