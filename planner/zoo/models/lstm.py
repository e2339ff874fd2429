"""Long short-term memory, unrolled over time."""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

import networkx as nx

from planner.lowering.assembly import Value
from planner.lowering.operators.lookup import TensorType
from planner.training_step import TrainingStep
from planner.zoo.builder import Layers, whole_numbers

_GATES: Final = (("in", "Sigmoid"), ("forget", "Sigmoid"), ("change", "Tanh"), ("out", "Sigmoid"))


def lstm(
    steps: int,
    *,
    batch: int,
    layers: int = 4,
    hidden: int = 1024,
    features: int | None = None,
    classes: int = 5000,
    training: bool | Literal["forward"] = True,
    optimizer: str | None = "sgd",
    step: TrainingStep | None = None,
    device: str = "a100",
) -> nx.DiGraph:
    """An LSTM unrolled over time with a softmax cross-entropy at each step, for training or inference, in float32.

    Weights are shared over time: each is one resident, and its gradient is a fold over the steps. `stage` marks cell
    and hidden state of every layer with the number of the time step: Chen's planners keep or drop them together.

    Args:
        steps: time steps.
        batch: sequences.
        layers: LSTM layers.
        hidden: width of cell and hidden state.
        features: width of the input of a time step; default: as `hidden`.
        classes: outputs of the classifier.
        training: False gives the forward graph without labels; the logits of each step are its outputs.
        optimizer, step, device: see `Layers`; costs are seconds on the device.
    Returns:
        A DAG with layers * 4 * hidden * (width + hidden + 2) + classes * (hidden + 1) parameters, width being that of
        the layer's input. The initial states are inputs; the loss is the sum over steps of the mean over the batch.
    Raises:
        GraphError: an argument out of range, an unknown optimizer or device.
    Source: Hochreiter and Schmidhuber 1997, the forget gate of Gers et al. 2000, two biases as in PyTorch and MXNet.

    >>> graph = lstm(3, batch=2, layers=1, hidden=4, classes=5)
    >>> graph.nodes["t2.l0.cell"]["shape"], graph.nodes["t2.l0.cell"]["stage"]
    ((2, 4), '2')
    """
    width = hidden if features is None else features
    steps, batch, layers = whole_numbers("lstm", steps=steps, batch=batch, layers=layers)
    hidden, width, classes = whole_numbers("lstm", hidden=hidden, features=width, classes=classes)
    net = Layers(f"lstm:{steps}", device=device, training=training, optimizer=optimizer, step=step)
    weights = [_Weights.of(net, f"l{k}", width if k == 0 else hidden, 4 * hidden, hidden) for k in range(layers)]
    head = net.draft.resident("head.weight", TensorType((classes, hidden)), kind="parameter")
    bias = net.draft.resident("head.bias", TensorType((classes,)), kind="parameter")
    shape = (batch, hidden)
    states = [_State(net.input(f"l{k}.hidden", shape), net.input(f"l{k}.cell", shape)) for k in range(layers)]
    losses = []
    for t in range(steps):
        x = net.input(f"t{t}.input", (batch, width))
        for k in range(layers):
            states[k] = _cell(net, f"t{t}.l{k}", x, weights[k], states[k], stage=str(t))
            x = states[k].hidden
        x = net.gemm(f"t{t}.head", x, head, bias)
        if training:
            labels = net.input(f"t{t}.labels", (batch,), "int64")
            losses.append(net.cross_entropy(f"t{t}.loss", x, labels, term=True))
    return net.trained(net.sum_losses(losses)) if training else net.graph


class _State(NamedTuple):
    """Hidden state and cell, which a layer hands on to the next time step."""

    hidden: Value
    cell: Value


class _Weights(NamedTuple):
    """Weight and bias of a layer for its input, and for its hidden state."""

    of_input: tuple[Value, Value]
    of_hidden: tuple[Value, Value]

    @classmethod
    def of(cls, net: Layers, name: str, width: int, gates: int, hidden: int) -> _Weights:
        pairs = []
        for part, extent in (("input", width), ("hidden", hidden)):
            weight = net.draft.resident(f"{name}.weight_{part}", TensorType((gates, extent)), kind="parameter")
            pairs.append((weight, net.draft.resident(f"{name}.bias_{part}", TensorType((gates,)), kind="parameter")))
        return cls(*pairs)


def _cell(net: Layers, name: str, x: Value, weights: _Weights, state: _State, *, stage: str) -> _State:
    """One layer at one time step."""

    def apply(part: str, op: str, *reads: Value, **marks: Any) -> Value:
        return net.apply(f"{name}.{part}", op, reads, net.type(reads[0]), **marks)

    of_input = net.gemm(f"{name}.input_gates", x, *weights.of_input)
    of_hidden = net.gemm(f"{name}.hidden_gates", state.hidden, *weights.of_hidden)
    both = apply("gates", "Add", of_input, of_hidden)
    parts = net.split(f"{name}.split", both, net.type(state.cell), len(_GATES), copied=True)
    gates = {gate: apply(gate, op, part) for (gate, op), part in zip(_GATES, parts, strict=True)}
    kept = apply("keep", "Mul", gates["forget"], state.cell)
    cell = apply("cell", "Add", kept, apply("write", "Mul", gates["in"], gates["change"]), stage=stage)
    hidden = apply("hidden", "Mul", gates["out"], apply("tanh", "Tanh", cell), stage=stage)
    return _State(hidden, cell)
