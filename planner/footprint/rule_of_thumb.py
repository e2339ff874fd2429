"""The rule of thumb of the CS231n notes for the memory of a training step, to compare with a simulation."""

from __future__ import annotations

from typing import Final

import msgspec

from planner.errors import PlannerError
from planner.graph import Graph
from planner.lowering.im2col import im2col_bytes
from planner.lowering.targets import targets_of
from planner.training_step import OPTIMIZERS

#: Layers whose outputs the rule of thumb counts; ReLU and the like are in place, normalization is left out.
_RULE_OPS: Final = frozenset({"Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool", "Gemm", "MatMul"})


class RuleOfThumb(msgspec.Struct, frozen=True):
    """The estimate of the CS231n notes, beside the simulation; see `rule_of_thumb`.

    Args:
        parameters_bytes, activations_bytes, inputs_bytes: of the whole batch, each counted once.
        factor: copies of the parameters.
        lowering_bytes: im2col matrices of all convolutions, if asked for; see `estimate`.
        total_bytes: factor * parameters + 2 * activations + inputs + lowering.
    """

    name: str
    parameters_bytes: int
    activations_bytes: int
    inputs_bytes: int
    factor: int
    lowering_bytes: int
    total_bytes: int


def rule_of_thumb(
    parameters: int,
    activations: int,
    *,
    batch: int = 1,
    inputs: int = 0,
    optimizer: str | None = "momentum",
    itemsize: int = 4,
) -> int:
    """Bytes of training by the CS231n notes: itemsize x (parameters x factor + batch x (2 x activations + inputs)).

    Args:
        parameters: elements.
        activations: elements of one example: W * H * depth of each layer, outputs of fully connected ones.
        batch: examples.
        inputs: elements of one example, if they are to be counted.
        optimizer: sgd has factor 2; momentum, Adagrad and RMSProp 3; Adam 4, for its two states, though some sources
            give 3. None is inference: parameters and activations once.
        itemsize: bytes of an element.

    >>> round(rule_of_thumb(813_802, 56_586) / 2**20, 2), round(rule_of_thumb(813_802, 56_586, batch=128) / 2**20, 2)
    (9.74, 64.57)
    """
    if optimizer is not None and optimizer not in OPTIMIZERS:
        raise PlannerError(f"unknown optimizer {optimizer!r}; known: {', '.join(OPTIMIZERS)}")
    factor = 1 if optimizer is None else 2 + len(OPTIMIZERS[optimizer][0])
    return itemsize * (parameters * factor + batch * ((1 if optimizer is None else 2) * activations + inputs))


def rule_for(graph: Graph, optimizer: str | None, *, lowering: bool) -> RuleOfThumb:
    """The rule applied to a graph: outputs of convolutions, poolings, fully connected layers and ops without a type."""
    training = any(op.phase in ("backward", "update") for op in graph.ops)
    optimizer = None if optimizer == "none" else optimizer
    parameters = sum(t.nbytes for op in graph.ops if op.kind == "parameter" for t in op.outputs)
    inputs = sum(t.nbytes for op in graph.ops if op.kind == "input" for t in op.outputs)
    activations = unfolded = 0
    for op in graph.ops:
        if op.resident or op.phase not in (None, "forward") or not op.outputs:
            continue
        if op.op is None:
            activations += sum(t.nbytes for t in op.outputs if graph.storage_root[t.name] == t.name)
        elif op.op in _RULE_OPS:
            activations += op.outputs[0].nbytes
            unfolded += im2col_bytes(graph, op) if lowering else 0
    held = max((len(target.states) for target in targets_of(graph)), default=0)
    states = held if optimizer is None else len(OPTIMIZERS[optimizer][0])
    factor = 2 + states if training or optimizer is not None else 1
    total = factor * parameters + (2 if factor > 1 else 1) * activations + inputs + unfolded
    return RuleOfThumb("cs231n", parameters, activations, inputs, factor, unfolded, total)
