"""The network of fire modules, which has few parameters: nearly all of a training step is activations."""

from __future__ import annotations

from typing import Final, Literal

import networkx as nx

from planner.lowering.assembly import Value
from planner.training_step import TrainingStep
from planner.zoo.builder import Layers, whole_numbers

# Channels squeezed to and expanded to by each fire module from fire2 on; each group begins with a pooling.
_FIRES: Final = (((16, 64), (16, 64)), ((32, 128), (32, 128)), ((48, 192), (48, 192), (64, 256), (64, 256)))


def squeezenet(
    *,
    batch: int,
    image: int = 224,
    classes: int = 1000,
    training: bool | Literal["forward"] = True,
    optimizer: str | None = "sgd",
    step: TrainingStep | None = None,
    device: str = "a100",
) -> nx.DiGraph:
    """SqueezeNet 1.1, for training (with backward and update) or inference, in float32.

    Args:
        batch: images.
        image: height and width in pixels. Poolings round down; where, as for 224, nothing is left over, that is exact.
        classes: channels of the last convolution.
        training: False gives the forward graph without labels, its dropout the identity.
        optimizer, step, device: see `Layers`; costs are seconds on the device.
    Raises:
        GraphError: an argument out of range, an unknown optimizer or device, an image too small for the poolings.
    Source: Iandola et al. 2016, with the smaller first layer and earlier poolings that its authors released as 1.1.

    >>> graph = squeezenet(batch=1)
    >>> graph.nodes["fire9.concat"]["shape"], graph.nodes["fire9.squeeze.weight"]["shape"]
    ((1, 512, 13, 13), (64, 512, 1, 1))
    """
    batch, image, classes = whole_numbers("squeezenet", batch=batch, image=image, classes=classes)
    layers = Layers("squeezenet", device=device, training=training, optimizer=optimizer, step=step)
    x = layers.input("image", (batch, 3, image, image))
    labels = layers.labels(batch)
    x = layers.relu("stem.relu", layers.conv("stem.conv", x, 64, kernel=3, stride=2, bias=True))
    place = 2
    for group, fires in enumerate(_FIRES, start=1):
        x = layers.max_pool(f"pool{group}", x, kernel=3, stride=2, padding=0)
        for squeezed, expanded in fires:
            x = _fire(layers, f"fire{place}", x, squeezed=squeezed, expanded=expanded)
            place += 1
    x = layers.dropout("head.dropout", x)
    x = layers.relu("head.relu", layers.conv("head.conv", x, classes, kernel=1, bias=True))
    x = layers.flatten("head.flatten", layers.global_average_pool("head.pool", x))
    return layers.step(x, labels)


def _fire(layers: Layers, name: str, x: Value, *, squeezed: int, expanded: int) -> Value:
    """A 1x1 convolution to few channels, then a 1x1 and a 3x3 side by side."""
    x = layers.relu(f"{name}.relu1", layers.conv(f"{name}.squeeze", x, squeezed, kernel=1, bias=True))
    one = layers.relu(f"{name}.relu2", layers.conv(f"{name}.expand1", x, expanded, kernel=1, bias=True))
    three = layers.relu(f"{name}.relu3", layers.conv(f"{name}.expand3", x, expanded, kernel=3, padding=1, bias=True))
    return layers.concat(f"{name}.concat", [one, three])
