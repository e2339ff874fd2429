"""Residual networks of bottleneck blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import networkx as nx

from planner.lowering.assembly import Value
from planner.zoo.builder import Layers, block_counts, whole_numbers

# Blocks per stage; depth counts three convolutions a block, the stem's and the classifier.
STAGES: Final[Mapping[int, tuple[int, ...]]] = {
    50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3), 1001: (3, 8, 319, 3),
}  # fmt: skip
_EXPANSION: Final = 4


def resnet(
    depth: int | Sequence[int],
    *,
    batch: int,
    image: int = 224,
    classes: int = 1000,
    stride_on_1x1: bool = False,
    training: bool = True,
    optimizer: str | None = "sgd",
    device: str = "a100",
) -> nx.DiGraph:
    """ResNet v1.5, for training (with backward and update) or inference, in float32.

    v1.5 has the stride in the 3x3 convolution, as torchvision and the ONNX zoo do; v1, of the paper, in the first 1x1.

    Args:
        depth: 50, 101, 152 or 1001 (stages 3, 8, 319, 3), or blocks per stage, such as (3, 4, 6, 3).
        batch: images.
        image: height and width in pixels.
        classes: outputs of the classifier.
        stride_on_1x1: v1: values inside the first block of a stage are smaller, parameters the same.
        training: False gives the forward graph with running statistics and without labels.
        optimizer, device: see `differentiate`; costs are seconds on the device.
    Raises:
        GraphError: an argument out of range, an unknown depth or device.
    Source: He et al. 2016, table 1; the stride as in torchvision's and NVIDIA's v1.5.

    >>> graph = resnet((1, 1), batch=2, image=32, classes=10)
    >>> graph.nodes["stage2.block1.conv2"]["shape"]
    (2, 128, 4, 4)
    """
    stages = block_counts("resnet", depth, STAGES, form="blocks per stage such as 3-4-6-3", most=8)
    batch, image, classes = whole_numbers("resnet", batch=batch, image=image, classes=classes)
    name = f"resnet:{depth if isinstance(depth, int) else '-'.join(map(str, stages))}{' v1' if stride_on_1x1 else ''}"
    layers = Layers(name, device=device, training=training, optimizer=optimizer)
    x = layers.input("image", (batch, 3, image, image))
    labels = layers.labels(batch)
    x = layers.batch_norm("stem.bn", layers.conv("stem.conv", x, 64, kernel=7, stride=2, padding=3))
    x = layers.max_pool("stem.pool", layers.relu("stem.relu", x), kernel=3, stride=2, padding=1)
    for stage, blocks in enumerate(stages, start=1):
        for block in range(1, blocks + 1):
            stride = 2 if block == 1 and stage > 1 else 1
            strides = (stride, 1) if stride_on_1x1 else (1, stride)
            x = _bottleneck(layers, f"stage{stage}.block{block}", x, width=64 << (stage - 1), strides=strides)
    x = layers.flatten("head.flatten", layers.global_average_pool("head.pool", x))
    x = layers.linear("head.fc", x, classes)
    return layers.step(x, labels)


def _bottleneck(layers: Layers, name: str, x: Value, *, width: int, strides: tuple[int, int]) -> Value:
    """1x1, 3x3, 1x1, and a projected shortcut where the shape changes; strides of the first two."""
    channels, stride = width * _EXPANSION, max(strides)
    y = layers.conv(f"{name}.conv1", x, width, kernel=1, stride=strides[0])
    y = layers.relu(f"{name}.relu1", layers.batch_norm(f"{name}.bn1", y))
    y = layers.conv(f"{name}.conv2", y, width, kernel=3, stride=strides[1], padding=1)
    y = layers.relu(f"{name}.relu2", layers.batch_norm(f"{name}.bn2", y))
    y = layers.batch_norm(f"{name}.bn3", layers.conv(f"{name}.conv3", y, channels, kernel=1))
    if stride != 1 or layers.shape(x)[1] != channels:
        shortcut = layers.conv(f"{name}.shortcut.conv", x, channels, kernel=1, stride=stride)
        x = layers.batch_norm(f"{name}.shortcut.bn", shortcut)
    return layers.relu(f"{name}.relu3", layers.add(f"{name}.add", y, x))
