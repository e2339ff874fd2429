"""Residual networks of basic or bottleneck blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import networkx as nx

from planner.errors import GraphError
from planner.lowering.assembly import Value
from planner.training_step import TrainingStep
from planner.zoo.builder import Layers, block_counts, whole_numbers
from planner.zoo.depths import RESNET_STAGES

_BASIC: Final = (18, 34)  # depths of two 3x3 convolutions a block; all others have three, of which one is 3x3
_EXPANSION: Final = 4


def resnet(
    depth: int | Sequence[int],
    *,
    batch: int,
    image: int = 224,
    classes: int = 1000,
    stride_on_1x1: bool = False,
    training: bool | Literal["forward"] = True,
    optimizer: str | None = "sgd",
    step: TrainingStep | None = None,
    device: str = "a100",
) -> nx.DiGraph:
    """ResNet v1.5, for training (with backward and update) or inference, in float32.

    v1.5 has the stride in the 3x3 convolution, as torchvision and the ONNX zoo do; v1, of the paper, in the first 1x1.

    Args:
        depth: 18 or 34 (basic blocks); 50, 101, 152 or 1001 (stages 3, 8, 319, 3), or bottleneck blocks per stage,
            such as (3, 4, 6, 3).
        batch: images.
        image: height and width in pixels.
        classes: outputs of the classifier.
        stride_on_1x1: v1: values inside the first block of a stage are smaller, parameters the same.
        training: False gives the forward graph with running statistics and without labels.
        optimizer, step, device: see `Layers`; costs are seconds on the device.
    Raises:
        GraphError: an argument out of range, an unknown depth or device, v1 of basic blocks, which have no 1x1.
    Source: He et al. 2016, table 1; the stride as in torchvision's and NVIDIA's v1.5.

    >>> graph = resnet((1, 1), batch=2, image=32, classes=10)
    >>> graph.nodes["stage2.block1.conv2"]["shape"]
    (2, 128, 4, 4)
    """
    stages = block_counts("resnet", depth, RESNET_STAGES, form="blocks per stage such as 3-4-6-3", most=8)
    batch, image, classes = whole_numbers("resnet", batch=batch, image=image, classes=classes)
    basic = depth in _BASIC
    if basic and stride_on_1x1:
        raise GraphError(f"resnet: blocks of depth {depth} begin with a 3x3 convolution; leave stride_on_1x1 out")
    name = f"resnet:{depth if isinstance(depth, int) else '-'.join(map(str, stages))}{' v1' if stride_on_1x1 else ''}"
    layers = Layers(name, device=device, training=training, optimizer=optimizer, step=step)
    x = layers.input("image", (batch, 3, image, image))
    labels = layers.labels(batch)
    x = layers.batch_norm("stem.bn", layers.conv("stem.conv", x, 64, kernel=7, stride=2, padding=3))
    x = layers.max_pool("stem.pool", layers.relu("stem.relu", x), kernel=3, stride=2, padding=1)
    for stage, blocks in enumerate(stages, start=1):
        for block in range(1, blocks + 1):
            stride = 2 if block == 1 and stage > 1 else 1
            width, inside = 64 << (stage - 1), f"stage{stage}.block{block}"
            if basic:
                x = _basic(layers, inside, x, width=width, stride=stride)
            else:
                strides = (stride, 1) if stride_on_1x1 else (1, stride)
                x = _bottleneck(layers, inside, x, width=width, strides=strides)
    x = layers.flatten("head.flatten", layers.global_average_pool("head.pool", x))
    x = layers.linear("head.fc", x, classes)
    return layers.step(x, labels)


def _basic(layers: Layers, name: str, x: Value, *, width: int, stride: int) -> Value:
    """Two 3x3 convolutions, the first with the stride."""
    y = layers.conv(f"{name}.conv1", x, width, kernel=3, stride=stride, padding=1)
    y = layers.relu(f"{name}.relu1", layers.batch_norm(f"{name}.bn1", y))
    y = layers.batch_norm(f"{name}.bn2", layers.conv(f"{name}.conv2", y, width, kernel=3, padding=1))
    y = layers.add(f"{name}.add", y, _shortcut(layers, name, x, channels=width, stride=stride))
    return layers.relu(f"{name}.relu2", y)


def _bottleneck(layers: Layers, name: str, x: Value, *, width: int, strides: tuple[int, int]) -> Value:
    """Convolutions of 1x1, 3x3 and 1x1; strides of the first two."""
    channels, stride = width * _EXPANSION, max(strides)
    y = layers.conv(f"{name}.conv1", x, width, kernel=1, stride=strides[0])
    y = layers.relu(f"{name}.relu1", layers.batch_norm(f"{name}.bn1", y))
    y = layers.conv(f"{name}.conv2", y, width, kernel=3, stride=strides[1], padding=1)
    y = layers.relu(f"{name}.relu2", layers.batch_norm(f"{name}.bn2", y))
    y = layers.batch_norm(f"{name}.bn3", layers.conv(f"{name}.conv3", y, channels, kernel=1))
    y = layers.add(f"{name}.add", y, _shortcut(layers, name, x, channels=channels, stride=stride))
    return layers.relu(f"{name}.relu3", y)


def _shortcut(layers: Layers, name: str, x: Value, *, channels: int, stride: int) -> Value:
    """The input of a block, or its projection where the shape changes."""
    if stride == 1 and layers.shape(x)[1] == channels:
        return x
    shortcut = layers.conv(f"{name}.shortcut.conv", x, channels, kernel=1, stride=stride)
    return layers.batch_norm(f"{name}.shortcut.bn", shortcut)
