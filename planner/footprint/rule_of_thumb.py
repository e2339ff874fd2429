"""The rule of thumb people use for the memory of a training step, as written in the CS231n notes: to be compared with a
simulation.
"""

from __future__ import annotations

from typing import Final

import msgspec

from planner.errors import PlannerError
from planner.graph import Graph
from planner.lowering.step import OPTIMIZER_STATES, im2col_bytes, targets_of

#: Layers whose outputs the rule of thumb counts; ReLU and the like are in place, normalization is left out.
_RULE_OPS: Final = frozenset({"Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool", "Gemm", "MatMul"})


class RuleOfThumb(msgspec.Struct, frozen=True):
    """The estimate of the CS231n notes, beside the simulation; see `rule_of_thumb`.

    Args:
        parameters_bytes, activations_bytes, inputs_bytes: what it counts, once, the whole batch.
        factor: copies of the parameters.
        lowering_bytes: im2col matrices of all convolutions, if asked for: N * C_in * k_h * k_w * H_out * W_out elements
            each.
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
    """Bytes of training by the rule of the CS231n notes: parameters x factor + batch x (2 x activations + inputs), x
    itemsize.

    Args:
        parameters: elements.
        activations: elements of one example: W * H * depth of each layer, outputs of fully connected ones; twice, for
            their gradients.
        batch: examples.
        inputs: elements of one example, if they are to be counted.
        optimizer: None is inference (the parameters once, the activations once); sgd 2, momentum, Adagrad and RMSProp
            3, Adam 4 copies. Some sources give 3 for Adam too, which has two states: 4.
        itemsize: bytes of an element.

    >>> round(rule_of_thumb(813_802, 56_586) / 2**20, 2), round(rule_of_thumb(813_802, 56_586, batch=128) / 2**20, 2)
    (9.74, 64.57)
    """
    if optimizer is not None and optimizer not in OPTIMIZER_STATES:
        raise PlannerError(f"unknown optimizer {optimizer!r}; known: {', '.join(OPTIMIZER_STATES)}")
    factor = 1 if optimizer is None else 2 + len(OPTIMIZER_STATES[optimizer])
    return itemsize * (parameters * factor + batch * ((1 if optimizer is None else 2) * activations + inputs))


def rule_for(graph: Graph, optimizer: str | None, *, lowering: bool) -> RuleOfThumb:
    """The rule applied to a graph: outputs of convolutions, poolings and fully connected layers; of all forward ops
    without `op`.
    """
    training = any(op.phase in ("backward", "update") for op in graph.ops)
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
    if optimizer is None:
        targets = targets_of(graph)
        states = max((len(target.states) for target in targets), default=0)
        factor = 2 + states if training else 1
    else:
        factor = 2 + len(OPTIMIZER_STATES[optimizer])
    total = factor * parameters + (2 if factor > 1 else 1) * activations + inputs + unfolded
    return RuleOfThumb("cs231n", parameters, activations, inputs, factor, unfolded, total)
