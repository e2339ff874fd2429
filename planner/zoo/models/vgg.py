"""The plain convolutional networks of Simonyan and Zisserman."""

from __future__ import annotations

from typing import Final, Literal

import networkx as nx

from planner.errors import GraphError
from planner.training_step import TrainingStep
from planner.zoo.builder import Layers, whole_numbers
from planner.zoo.depths import VGG_STAGES

_CHANNELS: Final = (64, 128, 256, 512, 512)
_WIDTH: Final = 4096


def vgg(
    depth: int,
    *,
    batch: int,
    image: int = 224,
    classes: int = 1000,
    training: bool | Literal["forward"] = True,
    optimizer: str | None = "sgd",
    step: TrainingStep | None = None,
    device: str = "a100",
) -> nx.DiGraph:
    """VGG-16 or VGG-19 without batch normalization, for training (with backward and update) or inference, in float32.

    Its three fully connected layers hold most of the parameters, so a training step is far larger than its activations.

    Args:
        depth: 16 (configuration D) or 19 (E).
        batch: images.
        image: height and width in pixels.
        classes: outputs of the classifier.
        training: False gives the forward graph without labels, its dropout the identity.
        optimizer, step, device: see `Layers`; costs are seconds on the device.
    Raises:
        GraphError: an argument out of range, an unknown depth, optimizer or device, an image too small to pool.
    Source: Simonyan and Zisserman 2015, table 1, with ReLU and dropout as values of their own.

    >>> graph = vgg(16, batch=1)
    >>> graph.nodes["stage5.pool"]["shape"], graph.nodes["head.fc6.weight"]["shape"]
    (((1, 512, 7, 7), (1, 512, 7, 7)), (4096, 25088))
    """
    if isinstance(depth, bool) or depth not in VGG_STAGES:
        raise GraphError(f"vgg: no depth {depth!r}; known: {', '.join(map(str, VGG_STAGES))}")
    batch, image, classes = whole_numbers("vgg", batch=batch, image=image, classes=classes)
    layers = Layers(f"vgg:{depth}", device=device, training=training, optimizer=optimizer, step=step)
    x = layers.input("image", (batch, 3, image, image))
    labels = layers.labels(batch)
    for stage, (count, channels) in enumerate(zip(VGG_STAGES[depth], _CHANNELS, strict=True), start=1):
        for k in range(1, count + 1):
            x = layers.conv(f"stage{stage}.conv{k}", x, channels, kernel=3, padding=1, bias=True)
            x = layers.relu(f"stage{stage}.relu{k}", x)
        x = layers.max_pool(f"stage{stage}.pool", x, kernel=2, stride=2, padding=0)
    x = layers.flatten("head.flatten", x)
    for k in (6, 7):
        x = layers.relu(f"head.relu{k}", layers.linear(f"head.fc{k}", x, _WIDTH))
        x = layers.dropout(f"head.dropout{k}", x)
    x = layers.linear("head.fc8", x, classes)
    return layers.step(x, labels)
