"""The layers models are made of; each adds its parameters and ops to the DAG and returns its value.

Sizes come from shapes alone, so a model is built without a framework and without weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, final

import networkx as nx

from planner.errors import GraphError
from planner.lowering.assembly import Assembly, Value
from planner.lowering.devices import device as device_named
from planner.lowering.operators.lookup import TensorType


@final
class Layers:
    """A model under construction, batch first; each layer has the dtype of its input.

    Args:
        name: of the graph.
        device: its costs are seconds on this device.
        training: batch statistics, pool indices and the like, or inference.
        master_weights: parameters are float32, and cast where a layer of another dtype needs them.
    Raises:
        GraphError: unknown device.

    >>> layers = Layers("tiny", device="a100", training=True)
    >>> image = layers.input("image", (1, 3, 8, 8))
    >>> layers.shape(layers.conv("conv", image, 16, kernel=3, padding=1))
    (1, 16, 8, 8)
    """

    def __init__(self, name: str, *, device: str, training: bool, master_weights: bool = False) -> None:
        device_named(device)
        self.draft: Final = Assembly(name=name, device=device)
        self.training: Final = training
        self.master_weights: Final = master_weights

    @property
    def graph(self) -> nx.DiGraph:
        """The DAG so far."""
        return self.draft.graph

    def shape(self, value: Value) -> tuple[int, ...]:
        """Shape of a value."""
        return self.draft.types[value].shape

    def input(self, name: str, shape: tuple[int, ...], dtype: str = "float32") -> Value:
        """A batch the caller owns."""
        return self.draft.resident(name, TensorType(shape, dtype), kind="input")

    def conv(
        self, name: str, x: Value, channels: int, *, kernel: int, stride: int = 1, padding: int = 0, bias: bool = False
    ) -> Value:
        """A square convolution, without bias unless asked for."""
        batch, cin, height, width = self.shape(x)
        reads = [x, self.parameter(f"{name}.weight", (channels, cin, kernel, kernel), x)]
        reads += [self.parameter(f"{name}.bias", (channels,), x)] if bias else []
        made = self._like(x, (batch, channels, *_window(name, (height, width), kernel, stride, padding)))
        return self.draft.apply(name, "Conv", reads, [made], module=_module(name))

    def upsample(self, name: str, x: Value, channels: int, *, factor: int) -> Value:
        """A transposed convolution with bias whose windows do not overlap."""
        batch, cin, height, width = self.shape(x)
        reads = [
            x,
            self.parameter(f"{name}.weight", (cin, channels, factor, factor), x),
            self.parameter(f"{name}.bias", (channels,), x),
        ]
        made = self._like(x, (batch, channels, height * factor, width * factor))
        return self.draft.apply(name, "ConvTranspose", reads, [made], module=_module(name))

    def batch_norm(self, name: str, x: Value) -> Value:
        """Batch normalization with its running statistics as state."""
        per_channel = TensorType((self.shape(x)[1],))
        scale, shift = (
            self.draft.resident(f"{name}.{part}", per_channel, kind="parameter") for part in ("weight", "bias")
        )
        mean, variance = (
            self.draft.resident(f"{name}.running_{part}", per_channel, kind="state") for part in ("mean", "var")
        )
        if self.training:
            return self.draft.batch_norm(name, x, scale, shift, (mean, variance), module=_module(name))
        kept = [x, scale, shift, mean, variance]
        return self.draft.apply(name, "BatchNormalization", kept, [self.draft.types[x]], module=_module(name))

    def relu(self, name: str, x: Value) -> Value:
        """max(x, 0)."""
        return self.draft.apply(name, "Relu", [x], [self.draft.types[x]], module=_module(name))

    def add(self, name: str, a: Value, b: Value) -> Value:
        """Sum of two values of one shape."""
        return self.draft.apply(name, "Add", [a, b], [self.draft.types[a]], module=_module(name))

    def max_pool(self, name: str, x: Value, *, kernel: int, stride: int, padding: int) -> Value:
        """Maximum over windows; in training with the int64 index of each."""
        batch, channels, height, width = self.shape(x)
        made = TensorType((batch, channels, *_window(name, (height, width), kernel, stride, padding)))
        outputs = [made, TensorType(made.shape, "int64")] if self.training else [made]
        return self.draft.apply(
            name, "MaxPool", [x], outputs, params={"kernel_shape": (kernel, kernel)}, module=_module(name)
        )

    def average_pool(self, name: str, x: Value, *, kernel: int, stride: int) -> Value:
        """Mean over windows."""
        batch, channels, height, width = self.shape(x)
        made = self._like(x, (batch, channels, *_window(name, (height, width), kernel, stride, 0)))
        return self.draft.apply(
            name, "AveragePool", [x], [made], params={"kernel_shape": (kernel, kernel)}, module=_module(name)
        )

    def global_average_pool(self, name: str, x: Value) -> Value:
        """Mean over height and width."""
        return self.draft.apply(
            name, "GlobalAveragePool", [x], [self._like(x, (*self.shape(x)[:2], 1, 1))], module=_module(name)
        )

    def concat(self, name: str, values: Sequence[Value], *, axis: int = 1) -> Value:
        """Values side by side along an axis, copied."""
        shape = list(self.shape(values[0]))
        shape[axis] = sum(self.shape(value)[axis] for value in values)
        return self.draft.apply(name, "Concat", values, [self._like(values[0], tuple(shape))], module=_module(name))

    def slice(self, name: str, x: Value, shape: tuple[int, ...]) -> Value:
        """A copy of a part of this shape."""
        made = self._like(x, shape)
        # It reads no more than it keeps.
        return self.draft.apply(name, "Slice", [x], [made], types=[made], module=_module(name))

    def reshape(self, name: str, x: Value, shape: tuple[int, ...]) -> Value:
        """The same elements in another shape; no bytes move."""
        return self.draft.apply(name, "Reshape", [x], [self._like(x, shape)], module=_module(name))

    def flatten(self, name: str, x: Value) -> Value:
        """All but the batch in one axis; no bytes move."""
        batch, *rest = self.shape(x)
        return self.draft.apply(name, "Flatten", [x], [self._like(x, (batch, math.prod(rest)))], module=_module(name))

    def linear(self, name: str, x: Value, features: int, *, bias: bool = True) -> Value:
        """A fully connected layer on rows, with bias unless told otherwise."""
        weight = self.parameter(f"{name}.weight", (features, self.shape(x)[1]), x)
        return self.gemm(name, x, weight, self.parameter(f"{name}.bias", (features,), x) if bias else None)

    def gemm(self, name: str, x: Value, weight: Value, bias: Value | None = None) -> Value:
        """Rows times a weight of (features out, features in) that stands already."""
        made = self._like(x, (self.shape(x)[0], self.shape(weight)[0]))
        reads = [x, weight] if bias is None else [x, weight, bias]
        return self.draft.apply(name, "Gemm", reads, [made], params={"transB": 1}, module=_module(name))

    def layer_norm(self, name: str, x: Value) -> Value:
        """Normalization of each row of the last axis; in training with its float32 mean and 1/std."""
        *rows, width = self.shape(x)
        reads = [x, *(self.parameter(f"{name}.{part}", (width,), x) for part in ("weight", "bias"))]
        statistic = TensorType(tuple(rows))
        outputs = [self.draft.types[x], statistic, statistic] if self.training else [self.draft.types[x]]
        return self.draft.apply(name, "LayerNormalization", reads, outputs, module=_module(name))

    def gelu(self, name: str, x: Value) -> Value:
        """Gaussian error linear unit."""
        return self.draft.apply(name, "Gelu", [x], [self.draft.types[x]], module=_module(name))

    def dropout(self, name: str, x: Value) -> Value:
        """Dropout; in inference the identity."""
        if self.training:
            return self.draft.dropout(name, x, module=_module(name))
        return self.draft.apply(name, "Dropout", [x], [self.draft.types[x]], module=_module(name))

    def cross_entropy(self, name: str, logits: Value, labels: Value) -> Value:
        """Mean softmax cross-entropy; keeps the log-probabilities for the backward."""
        made = [TensorType(()), self.draft.types[logits]]
        return self.draft.apply(name, "SoftmaxCrossEntropyLoss", [logits, labels], made, phase="loss", output=(0,))

    def parameter(self, name: str, shape: tuple[int, ...], like: Value) -> Value:
        """A trainable resident for layers in the dtype of a value."""
        return self.typed_parameter(name, self._like(like, shape))

    def typed_parameter(self, name: str, wanted: TensorType) -> Value:
        """A trainable resident of this type, or a copy of this type of a float32 one."""
        if not self.master_weights or wanted.dtype == "float32":
            return self.draft.resident(name, wanted, kind="parameter")
        master = self.draft.resident(name, TensorType(wanted.shape), kind="parameter")
        return self.draft.apply(f"{name}.cast", "Cast", [master], [wanted], module=_module(name.rpartition(".")[0]))

    def _like(self, x: Value, shape: tuple[int, ...]) -> TensorType:
        """A type in the dtype of a value."""
        return TensorType(shape, self.draft.types[x].dtype)


def _module(name: str) -> str | None:
    """The block a layer is in: its dotted name without the last part."""
    return name.rpartition(".")[0] or None


def _window(name: str, extents: tuple[int, int], kernel: int, stride: int, padding: int) -> tuple[int, int]:
    """Height and width after a window slid over an image."""
    height, width = ((extent + 2 * padding - kernel) // stride + 1 for extent in extents)
    if height < 1 or width < 1:
        raise GraphError(
            f"layer {name!r}: a {kernel}x{kernel} window does not fit an image of {extents[0]}x{extents[1]}; use"
            " a larger one"
        )
    return height, width
