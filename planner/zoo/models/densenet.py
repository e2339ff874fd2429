"""Densely connected networks, whose layers read all layers before them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import networkx as nx

from planner.lowering.assembly import Value
from planner.training_step import TrainingStep
from planner.zoo.builder import Layers, block_counts, whole_numbers
from planner.zoo.depths import DENSENET_BLOCKS

_BOTTLENECK: Final = 4


def densenet(
    depth: int | Sequence[int],
    *,
    batch: int,
    image: int = 224,
    classes: int = 1000,
    growth: int = 32,
    training: bool | Literal["forward"] = True,
    optimizer: str | None = "sgd",
    step: TrainingStep | None = None,
    device: str = "a100",
) -> nx.DiGraph:
    """DenseNet-BC, for training (with backward and update) or inference, in float32.

    Each layer concatenates everything before it in its block, and the normalization that follows keeps that copy for
    its backward: kept values grow with the square of the depth, and parameters do not (Pleiss et al. 2017).

    Args:
        depth: 121, 169 or 201, or layers per block, such as (6, 12, 24, 16).
        batch: images.
        image: height and width in pixels.
        classes: outputs of the classifier.
        growth: channels that each layer adds; the stem has twice as many.
        training: False gives the forward graph with running statistics and without labels.
        optimizer, step, device: see `Layers`; costs are seconds on the device.
    Returns:
        A DAG with 7,978,856 trained parameters for 121 and 1000 classes, and 83,648 running statistics as states.
        Caffe's form of the net, and its ONNX file, count those too, and scale and shift twice: 8,146,152.
    Raises:
        GraphError: an argument out of range, an unknown depth, optimizer or device, an image too small.
    Source: Huang et al. 2017, table 1; only the classifier has a bias, as in the authors' code.

    >>> graph = densenet((2, 2), batch=1, image=32, classes=10)
    >>> graph.nodes["block1.layer2.concat"]["shape"]
    (1, 96, 8, 8)
    """
    blocks = block_counts("densenet", depth, DENSENET_BLOCKS, form="layers per block such as 6-12-24-16")
    batch, image, classes, growth = whole_numbers("densenet", batch=batch, image=image, classes=classes, growth=growth)
    name = f"densenet:{depth if isinstance(depth, int) else '-'.join(map(str, blocks))}"
    layers = Layers(name, device=device, training=training, optimizer=optimizer, step=step)
    x = layers.input("image", (batch, 3, image, image))
    labels = layers.labels(batch)
    x = layers.conv("stem.conv", x, 2 * growth, kernel=7, stride=2, padding=3)
    x = layers.max_pool("stem.pool", _normalized(layers, "stem", "", x), kernel=3, stride=2, padding=1)
    for number, count in enumerate(blocks, start=1):
        if number > 1:
            x = _transition(layers, f"transition{number - 1}", x)
        x = _dense_block(layers, f"block{number}", x, count=count, growth=growth)
    x = layers.global_average_pool("head.pool", _normalized(layers, "head", "", x))
    x = layers.linear("head.fc", layers.flatten("head.flatten", x), classes)
    return layers.step(x, labels)


def _dense_block(layers: Layers, name: str, x: Value, *, count: int, growth: int) -> Value:
    """Layers of 1x1 and 3x3 convolutions, each on all features so far; returns them all side by side."""
    features = [x]
    for k in range(1, count + 1):
        inside = f"{name}.layer{k}"
        x = layers.concat(f"{inside}.concat", features) if k > 1 else features[0]
        x = layers.conv(f"{inside}.conv1", _normalized(layers, inside, "1", x), _BOTTLENECK * growth, kernel=1)
        x = _normalized(layers, inside, "2", x)
        features.append(layers.conv(f"{inside}.conv2", x, growth, kernel=3, padding=1))
    return layers.concat(f"{name}.concat", features)


def _transition(layers: Layers, name: str, x: Value) -> Value:
    """Half the channels, half the height and width."""
    x = layers.conv(f"{name}.conv", _normalized(layers, name, "", x), layers.shape(x)[1] // 2, kernel=1)
    return layers.average_pool(f"{name}.pool", x, kernel=2, stride=2)


def _normalized(layers: Layers, name: str, number: str, x: Value) -> Value:
    return layers.relu(f"{name}.relu{number}", layers.batch_norm(f"{name}.bn{number}", x))
