"""The U of Ronneberger, Fischer and Brox: down, up, and a copy across at each level."""

from __future__ import annotations

from typing import Literal

import networkx as nx

from planner.errors import GraphError
from planner.lowering.assembly import Value
from planner.training_step import TrainingStep
from planner.zoo.builder import Layers, whole_numbers


def unet(
    depth: int = 4,
    *,
    batch: int,
    image: int = 572,
    channels: int = 64,
    features: int = 1,
    classes: int = 2,
    padding: int = 0,
    training: bool | Literal["forward"] = True,
    optimizer: str | None = "sgd",
    step: TrainingStep | None = None,
    device: str = "a100",
) -> nx.DiGraph:
    """U-Net with a cross-entropy at each pixel, for training (with backward and update) or inference, in float32.

    Its skips keep the largest values of the way down alive until the way up: no cut through its forward pass is narrow.

    Args:
        depth: poolings on the way down, 1 to 8.
        batch: images.
        image: height and width in pixels.
        channels: of the first level; they double at each level.
        features: channels of the image.
        classes: of a pixel.
        padding: of the 3x3 convolutions: 0 as published (of 572 pixels 388 have labels), 1 keeps height and width.
        training: False gives the forward graph without labels.
        optimizer, step, device: see `Layers`; costs are seconds on the device.
    Raises:
        GraphError: an argument out of range, an unknown optimizer or device, an image with a side that does not halve.
    Source: Ronneberger et al. 2015, figure 1, without its dropout.

    >>> graph = unet(batch=1)
    >>> graph.nodes["head"]["shape"]
    (1, 2, 388, 388)
    """
    depth, batch, image = whole_numbers("unet", depth=depth, batch=batch, image=image)
    channels, features, classes = whole_numbers("unet", channels=channels, features=features, classes=classes)
    if depth > 8 or padding not in (0, 1):
        raise GraphError(f"unet: depth is {depth} and padding {padding!r}, expected at most 8, and 0 or 1")
    layers = Layers(f"unet:{depth}", device=device, training=training, optimizer=optimizer, step=step)
    x = layers.input("image", (batch, features, image, image))
    skips = []
    for level in range(depth):
        x = _convolutions(layers, f"down{level}", x, channels << level, padding)
        skips.append(x)
        if (size := layers.shape(x)[2]) % 2:
            there = f"{size} before pooling {level + 1}; it must be even there"
            raise GraphError(f"unet: an image of {image} pixels has {there}")
        x = layers.max_pool(f"down{level}.pool", x, kernel=2, stride=2, padding=0)
    x = _convolutions(layers, "bottom", x, channels << depth, padding)
    for level in reversed(range(depth)):
        name = f"up{level}"
        x = layers.upsample(f"{name}.upsample", x, channels << level, factor=2)
        skip = skips[level]
        if layers.shape(skip) != layers.shape(x):
            skip = layers.slice(f"{name}.crop", skip, layers.shape(x))
        x = _convolutions(layers, name, layers.concat(f"{name}.concat", [skip, x]), channels << level, padding)
    x = layers.conv("head", x, classes, kernel=1, bias=True)
    return layers.step(x, layers.labels(batch, *layers.shape(x)[2:]))


def _convolutions(layers: Layers, name: str, x: Value, channels: int, padding: int) -> Value:
    """Two 3x3 convolutions with their ReLUs."""
    for k in (1, 2):
        x = layers.conv(f"{name}.conv{k}", x, channels, kernel=3, padding=padding, bias=True)
        x = layers.relu(f"{name}.relu{k}", x)
    return x
