"""Fully connected layers, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import networkx as nx

from planner.errors import GraphError
from planner.text import whole_number
from planner.training_step import TrainingStep
from planner.zoo.builder import Layers


def mlp(
    widths: Sequence[int],
    *,
    batch: int,
    relu: bool = True,
    tied: bool = False,
    training: bool | Literal["forward"] = True,
    optimizer: str | None = "sgd",
    step: TrainingStep | None = None,
    device: str = "a100",
) -> nx.DiGraph:
    """Fully connected layers with biases, for training (with backward and update) or inference, in float32.

    Args:
        widths: of the input and of each layer's output, at least two.
        batch: rows.
        relu: a ReLU after each layer but the last. Without, the network is linear, and `differentiate` adds the loss.
        tied: all layers share one weight and one bias, counted once, as their gradients are; widths must be equal.
        training: False gives the forward graph without labels.
        optimizer, step, device: see `Layers`; costs are seconds on the device.
    Raises:
        GraphError: an argument out of range, tied layers of several widths, an unknown optimizer or device.

    >>> graph = mlp([6272, 128, 10], batch=1)
    >>> graph.nodes["fc1.weight"]["shape"], graph.nodes["fc2"]["shape"]
    ((128, 6272), (1, 10))
    """
    if not isinstance(widths, (list, tuple)) or len(widths) < 2:
        raise GraphError(f"mlp: widths is {widths!r}, expected at least two ints, such as 784-128-10")
    given = (("batch", batch), *(("width", n) for n in widths))
    batch, *sizes = (whole_number("mlp", name, n, least=1) for name, n in given)
    if tied and len(set(sizes)) > 1:
        raise GraphError(f"mlp: tied layers need one width, not {'-'.join(map(str, sizes))}")
    named = "-".join(map(str, sizes)) if len(sizes) < 9 else f"{len(sizes) - 1} layers"
    layers = Layers(f"mlp:{named}", device=device, training=training, optimizer=optimizer, step=step)
    x = layers.input("input", (batch, sizes[0]))
    labels = layers.labels(batch) if relu else None
    one = [layers.parameter(name, (sizes[0],) * rank, x) for name, rank in (("weight", 2), ("bias", 1)) if tied]
    for k, width in enumerate(sizes[1:], start=1):
        x = layers.gemm(f"fc{k}", x, *one) if one else layers.linear(f"fc{k}", x, width)
        if relu and k < len(sizes) - 1:
            x = layers.relu(f"relu{k}", x)
    return layers.step(x, labels) if relu or not training else layers.trained(None)
