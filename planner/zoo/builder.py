"""The layers models are made of; each adds its parameters and ops to the DAG and returns its value.

Sizes come from shapes alone, so a model is built without a framework and without weights.
"""

from __future__ import annotations

from operator import index
from typing import Any, Final, final

import networkx as nx

from planner.errors import GraphError
from planner.lowering.assembly import Assembly, Value
from planner.lowering.devices import device as device_named
from planner.lowering.operators import TensorType


@final
class Layers:
    """A model under construction, float32, batch first.

    Args:
        name: of the graph.
        device: its costs are seconds on this device.
        training: batch statistics, pool indices and the like, or inference.
    Raises:
        GraphError: unknown device.

    >>> layers = Layers("tiny", device="a100", training=True)
    >>> image = layers.input("image", (1, 3, 8, 8))
    >>> layers.shape(layers.conv("conv", image, 16, kernel=3, padding=1))
    (1, 16, 8, 8)
    """

    def __init__(self, name: str, *, device: str, training: bool) -> None:
        device_named(device)
        self.draft: Final = Assembly(name=name, device=device)
        self.training: Final = training

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

    def conv(self, name: str, x: Value, channels: int, *, kernel: int, stride: int = 1, padding: int = 0) -> Value:
        """A square convolution without bias."""
        batch, cin, height, width = self.shape(x)
        weight = self.draft.resident(f"{name}.weight", TensorType((channels, cin, kernel, kernel)), kind="parameter")
        made = TensorType((batch, channels, *_window(name, (height, width), kernel, stride, padding)))
        return self.draft.apply(name, "Conv", [x, weight], [made], module=_module(name))

    def batch_norm(self, name: str, x: Value) -> Value:
        """Batch normalization with its running statistics as state."""
        per_channel = TensorType((self.shape(x)[1],))
        scale, shift = (self.draft.resident(f"{name}.{part}", per_channel, kind="parameter") for part in ("weight", "bias"))
        mean, variance = (self.draft.resident(f"{name}.running_{part}", per_channel, kind="state") for part in ("mean", "var"))
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
        return self.draft.apply(name, "MaxPool", [x], outputs, params={"kernel_shape": (kernel, kernel)}, module=_module(name))

    def global_average_pool(self, name: str, x: Value) -> Value:
        """Mean over height and width."""
        made = TensorType((*self.shape(x)[:2], 1, 1))
        return self.draft.apply(name, "GlobalAveragePool", [x], [made], module=_module(name))

    def flatten(self, name: str, x: Value) -> Value:
        """All but the batch in one axis; no bytes move."""
        batch, *rest = self.shape(x)
        size = 1
        for extent in rest:
            size *= extent
        return self.draft.apply(name, "Flatten", [x], [TensorType((batch, size))], module=_module(name))

    def linear(self, name: str, x: Value, features: int) -> Value:
        """A fully connected layer with bias."""
        batch, size = self.shape(x)
        weight = self.draft.resident(f"{name}.weight", TensorType((features, size)), kind="parameter")
        bias = self.draft.resident(f"{name}.bias", TensorType((features,)), kind="parameter")
        return self.draft.apply(
            name, "Gemm", [x, weight, bias], [TensorType((batch, features))], params={"transB": 1}, module=_module(name)
        )

    def cross_entropy(self, name: str, logits: Value, labels: Value) -> Value:
        """Mean softmax cross-entropy; keeps the log-probabilities for the backward."""
        made = [TensorType(()), self.draft.types[logits]]
        return self.draft.apply(name, "SoftmaxCrossEntropyLoss", [logits, labels], made, phase="loss", output=(0,))


def whole_number(model: str, name: str, value: Any, *, least: int) -> int:
    """An argument that counts something, numpy's integers included.

    Raises:
        GraphError: another type, or too small.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
        raise GraphError(f"{model}: {name} is {value!r}, expected an int >= {least}")
    return index(value)


def _module(name: str) -> str | None:
    """The block a layer is in: its dotted name without the last part."""
    return name.rpartition(".")[0] or None


def _window(name: str, extents: tuple[int, int], kernel: int, stride: int, padding: int) -> tuple[int, int]:
    """Height and width after a window slid over an image."""
    height, width = ((extent + 2 * padding - kernel) // stride + 1 for extent in extents)
    if height < 1 or width < 1:
        raise GraphError(f"layer {name!r}: a {kernel}x{kernel} window does not fit an image of {extents[0]}x{extents[1]}; use a larger one")
    return height, width
