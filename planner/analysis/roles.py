"""The component of each value of a training step: parameter, gradient, optimizer state, activation, loss tail."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from planner.graph import Graph
from planner.lowering.targets import Target, targets_of

COMPONENTS: Final = (
    "inputs", "parameters", "parameter_copies", "gradients", "optimizer_state", "master_weights",
    "activations", "activation_gradients", "loss_tail", "workspace", "other",
)  # fmt: skip
_LOSS_OPS: Final = frozenset({"SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss", "SoftmaxOutput"})
_THROUGH: Final = frozenset({
    "Cast", "Reshape", "Flatten", "Identity", "Squeeze", "Unsqueeze", "Softmax", "LogSoftmax", "Log",
})  # fmt: skip
_SUMS: Final = frozenset({"Add", "Sum", "Cast", "Accumulate", "GradientBuffer"})
_STEP_ROLES: Final = {"OptimizerState": "optimizer_state", "MasterWeights": "master_weights"}
_RESIDENT_ROLES: Final = {"input": "inputs", "parameter": "parameters"}


def roles(graph: Graph) -> dict[str, str]:
    """The component of each value."""
    targets = targets_of(graph)
    states = {state for target in targets for state in target.states}
    for target in targets:  # states that come into being in the first iteration
        if target.op is not None:
            states.update(value for value in target.op.reads if graph.producer[value].op == "OptimizerState")
    buffers = gradient_buffers(graph)
    gradients = _gradient_values(graph, targets) | buffers
    tail = _loss_tail(graph) - gradients
    found: dict[str, str] = {}
    for op in graph.ops:
        for t in op.outputs:
            name = graph.storage_root[t.name]
            root = graph.producer[name]
            if root.op in _STEP_ROLES:
                kind = _STEP_ROLES[root.op]
            elif root.op == "GradientBuffer" or t.name in gradients or name in gradients:
                kind = "gradients"
            elif root.resident:
                kind = _RESIDENT_ROLES.get(root.kind, "optimizer_state" if name in states else "other")
            elif t.name in tail:
                kind = "loss_tail"
            elif op.phase == "backward":
                kind = "activation_gradients"
            elif op.phase == "update":
                kind = "other"
            elif op.op == "Cast" and all(graph.producer[graph.storage_root[v]].kind == "parameter" for v in op.reads):
                kind = "parameter_copies"
            else:
                kind = "activations"
            found[t.name] = kind
    return found


def gradient_buffers(graph: Graph) -> set[str]:
    """Resident states that the backward pass adds to."""
    roots = (graph.storage_root[op.reads[i]] for op in graph.ops if op.phase == "backward" for i, _ in op.updates)
    return {root for root in roots if graph.producer[root].kind == "state"}


def _gradient_values(graph: Graph, targets: Iterable[Target]) -> set[str]:
    """Gradients of parameters, and the terms of their sums."""
    found = {target.gradient for target in targets}
    # Handed over in the storage of the op that made it, a gradient is what that storage is for.
    found.update(graph.storage_root[gradient] for gradient in list(found) if graph.producer[gradient].updates)
    buffers = gradient_buffers(graph)
    for op in graph.ops:
        if op.phase == "backward" and any(graph.storage_root[op.reads[i]] in buffers for i, _ in op.updates):
            found.update(value for value in op.reads if graph.producer[value].phase == "backward")
    waiting = list(found)
    while waiting:
        op = graph.producer[waiting.pop()]
        for value in op.reads if op.op in _SUMS else ():
            maker = graph.producer[value]
            if value not in found and not maker.resident and maker.phase == "backward":
                found.add(value)
                waiting.append(value)
    return found


def _loss_tail(graph: Graph) -> set[str]:
    """Logits, their copies in other dtypes, values the loss makes, and the gradients of all these."""
    found: set[str] = set()
    for op in graph.ops:
        if not op.resident and (op.phase == "loss" or (op.op in _LOSS_OPS and op.phase != "backward")):
            found.update(t.name for t in op.outputs)
    waiting = [value for op in graph.ops if op.op in _LOSS_OPS and op.phase != "backward" for value in op.reads]
    while waiting:
        value = waiting.pop()
        op = graph.producer[value]
        if value not in found and not graph.on_resident(value) and op.phase != "backward":
            found.add(value)
            if op.op in _THROUGH or op.view:
                waiting += op.reads
    for op in graph.ops if found else ():
        if op.phase == "backward" and any(value in found for value in op.reads):
            makers = (graph.producer[graph.storage_root[value]] for value in op.reads if value not in found)
            if all(maker.kind == "input" for maker in makers):
                found.update(t.name for t in op.outputs)
    return found
