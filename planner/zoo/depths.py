"""Depths that people name networks by, and the layers of each; read by the models and by the catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: Blocks per stage; depth counts the convolutions of the blocks, the stem's and the classifier.
RESNET_STAGES: Final[Mapping[int, tuple[int, ...]]] = {
    18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3), 1001: (3, 8, 319, 3),
}  # fmt: skip
#: Convolutions per stage; depth counts them and the three fully connected layers.
VGG_STAGES: Final[Mapping[int, tuple[int, ...]]] = {16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
#: Layers per dense block; depth counts two convolutions a layer, the stem's, the transitions' and the classifier.
DENSENET_BLOCKS: Final[Mapping[int, tuple[int, ...]]] = {
    121: (6, 12, 24, 16), 169: (6, 12, 32, 32), 201: (6, 12, 48, 32),
}  # fmt: skip
