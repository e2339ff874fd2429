"""Fully connected layers, one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import networkx as nx

from planner.errors import GraphError
from planner.lowering.differentiate import check_optimizer, differentiate
from planner.text import whole_number
from planner.zoo.builder import Layers


def mlp(
    widths: Sequence[int],
    *,
    batch: int,
    relu: bool = True,
    tied: bool = False,
    training: bool = True,
    optimizer: str | None = "sgd",
    device: str = "a100",
) -> nx.DiGraph:
    """Fully connected layers with biases, for training (with backward and update) or inference, in float32.

    Args:
        widths: of the input and of each layer's output, at least two.
        batch: rows.
        relu: a ReLU after each layer but the last. Without, the network is linear and the loss a generic one: a float
            made of the last output, which its backward reads again.
        tied: all layers are one and the same, with one weight and one bias; widths must be equal. The parameters and
            their gradients are counted once, the values once a layer.
        training: False gives the forward graph without labels.
        optimizer: see `differentiate`.
        device: costs are seconds on it.
    Raises:
        GraphError: an argument out of range, tied layers of several widths, an unknown optimizer or device.

    >>> graph = mlp([6272, 128, 10], batch=1)
    >>> graph.nodes["fc1.weight"]["shape"], graph.nodes["fc2"]["shape"]
    ((128, 6272), (1, 10))
    """
    if not isinstance(widths, (list, tuple)) or len(widths) < 2:
        raise GraphError(f"mlp: widths is {widths!r}, expected at least two ints, such as 784-128-10")
    batch, *sizes = (
        whole_number("mlp", name, value, least=1) for name, value in (("batch", batch), *(("width", n) for n in widths))
    )
    if tied and len(set(sizes)) > 1:
        raise GraphError(f"mlp: tied layers need one width, not {'-'.join(map(str, sizes))}")
    check_optimizer(optimizer)
    layers = Layers(
        f"mlp:{'-'.join(map(str, sizes)) if len(sizes) < 9 else f'{len(sizes) - 1} layers'}",
        device=device,
        training=training,
    )
    x = layers.input("input", (batch, sizes[0]))
    labels = layers.input("labels", (batch,), "int64") if training and relu else None
    shared = (
        (layers.parameter("weight", (sizes[0], sizes[0]), x), layers.parameter("bias", (sizes[0],), x))
        if tied
        else None
    )
    for k, width in enumerate(sizes[1:], start=1):
        x = layers.linear(f"fc{k}", x, width) if shared is None else layers.gemm(f"fc{k}", x, *shared)
        if relu and k < len(sizes) - 1:
            x = layers.relu(f"relu{k}", x)
    if not training:
        return layers.graph
    if labels is None:
        return differentiate(layers.graph, optimizer=optimizer)
    layers.cross_entropy("loss", x, labels)
    return differentiate(layers.graph, loss="loss:0", optimizer=optimizer)
