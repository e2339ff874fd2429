"""The layers models are made of; each adds its parameters and ops to the DAG and returns its value.

Sizes come from shapes alone, so a model is built without a framework and without weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, final

import networkx as nx

from planner.errors import GraphError
from planner.lowering.assembly import Assembly, Value
from planner.lowering.devices import device as device_named
from planner.lowering.devices import roofline_seconds
from planner.lowering.differentiate import check_optimizer, differentiate
from planner.lowering.operators.lookup import TensorType, output_types
from planner.lowering.step import stepped
from planner.text import whole_number
from planner.training_step import TrainingStep


def whole_numbers(model: str, **given: Any) -> Iterator[int]:
    """Arguments of a model that count something, in their order, each checked by `whole_number`."""
    return (whole_number(model, name, value, least=1) for name, value in given.items())


def block_counts(
    model: str, depth: int | Sequence[int], known: Mapping[int, tuple[int, ...]], *, form: str, most: int | None = None
) -> tuple[int, ...]:
    """Blocks of each stage, from a depth that is known or as they are given.

    Args:
        form: what is counted and an example, as "blocks per stage such as 3-4-6-3".
        most: stages.
    Raises:
        GraphError: neither.
    """
    depths = ", ".join(map(str, known))
    if isinstance(depth, int) and not isinstance(depth, bool):
        if depth not in known:
            raise GraphError(f"{model}: no depth {depth}; known: {depths}, or {form}")
        return known[depth]
    counts = tuple(depth) if isinstance(depth, (list, tuple)) else ()
    whole = all(isinstance(n, int) and not isinstance(n, bool) and n >= 1 for n in counts)
    if not counts or not whole or len(counts) > (most or len(counts)):
        counted = (f"1 to {most} " if most else "") + form.partition(" such")[0].replace(" ", "-")
        raise GraphError(f"{model}: {depth!r} is neither a depth ({depths}) nor {counted} counts >= 1")
    return counts


@final
class Layers:
    """A model under construction, batch first; each layer has the dtype of its input.

    Args:
        name: of the graph.
        device: costs are seconds on it.
        training: True for batch statistics, pool indices and the like; False for inference; "forward" for the forward
            pass as training runs it, not differentiated.
        optimizer: of the training step; see `differentiate`.
        step: the training step that runs, see `with_step`; its optimizer wins over the other.
        master_weights: parameters are float32, and cast where a layer of another dtype needs them.
    Raises:
        GraphError: unknown optimizer or device, or a step of a model without training.

    >>> layers = Layers("tiny", device="a100", training=True)
    >>> image = layers.input("image", (1, 3, 8, 8))
    >>> layers.shape(layers.conv("conv", image, 16, kernel=3, padding=1))
    (1, 16, 8, 8)
    """

    def __init__(
        self,
        name: str,
        *,
        device: str,
        training: bool | Literal["forward"],
        optimizer: str | None = "sgd",
        step: TrainingStep | None = None,
        master_weights: bool = False,
    ) -> None:
        check_optimizer(optimizer)
        device_named(device)
        if step is not None and not training:
            raise GraphError(f"{name}: training is False, which has no step; leave out training or step")
        self.draft: Final = Assembly(name=name, device=device)
        self.training: Final[bool | Literal["forward"]] = training
        self.optimizer: Final = optimizer
        self.training_step: Final = step
        self.master_weights: Final = master_weights

    @property
    def graph(self) -> nx.DiGraph:
        """The DAG so far."""
        return self.draft.graph

    def step(self, logits: Value, labels: Value | None) -> nx.DiGraph:
        """The training step whose loss is the cross-entropy of logits; without labels the forward graph."""
        if labels is None:
            return self.graph
        self.cross_entropy("loss", logits, labels)
        return self.trained("loss:0")

    def trained(self, loss: str | None) -> nx.DiGraph:
        """The training step of a loss, or the forward pass that training runs where that is asked for."""
        if self.training_step is not None:
            self.graph.graph["loss"] = loss
            return stepped(self.graph, self.training_step, optimizer=self.optimizer)
        if self.training == "forward":
            self.graph.graph["loss"] = loss
            return self.graph
        return differentiate(self.graph, loss=loss, optimizer=self.optimizer)

    def type(self, value: Value) -> TensorType:
        """Shape and dtype of a value."""
        return self.draft.types[value]

    def shape(self, value: Value) -> tuple[int, ...]:
        """Shape of a value."""
        return self.type(value).shape

    def input(self, name: str, shape: tuple[int, ...], dtype: str = "float32") -> Value:
        """A batch the caller owns."""
        return self.draft.resident(name, TensorType(shape, dtype), kind="input")

    def labels(self, *shape: int) -> Value | None:
        """The int64 labels of a batch; inference has none."""
        return self.input("labels", shape, "int64") if self.training else None

    def apply(self, name: str, op: str, reads: Sequence[Value], *outputs: TensorType, **further: Any) -> Value:
        """An op of the operator table, in the block that its dotted name says; see `Assembly.apply`."""
        return self.draft.apply(name, op, reads, outputs, **{"module": _module(name), **further})

    def conv(
        self, name: str, x: Value, channels: int, *, kernel: int, stride: int = 1, padding: int = 0, bias: bool = False
    ) -> Value:
        """A square convolution, without bias unless asked for."""
        reads = [x, self.parameter(f"{name}.weight", (channels, self.shape(x)[1], kernel, kernel), x)]
        reads += [self.parameter(f"{name}.bias", (channels,), x)] if bias else []
        return self.apply(name, "Conv", reads, self._windows(name, x, channels, kernel, stride, padding))

    def upsample(self, name: str, x: Value, channels: int, *, factor: int) -> Value:
        """A transposed convolution with bias whose windows do not overlap."""
        batch, cin, height, width = self.shape(x)
        weight = self.parameter(f"{name}.weight", (cin, channels, factor, factor), x)
        reads = [x, weight, self.parameter(f"{name}.bias", (channels,), x)]
        return self.apply(name, "ConvTranspose", reads, self._like(x, batch, channels, height * factor, width * factor))

    def batch_norm(self, name: str, x: Value) -> Value:
        """Batch normalization with its running statistics as state."""
        per_channel = TensorType((self.shape(x)[1],))
        parts = {"weight": "parameter", "bias": "parameter", "running_mean": "state", "running_var": "state"}
        made = [self.draft.resident(f"{name}.{part}", per_channel, kind=kind) for part, kind in parts.items()]
        if self.training:
            scale, shift, mean, variance = made
            return self.draft.batch_norm(name, x, scale, shift, (mean, variance), module=_module(name))
        return self.apply(name, "BatchNormalization", [x, *made], self.type(x))

    def relu(self, name: str, x: Value) -> Value:
        """max(x, 0)."""
        return self.apply(name, "Relu", [x], self.type(x))

    def add(self, name: str, a: Value, b: Value) -> Value:
        """Sum of two values of one shape."""
        return self.apply(name, "Add", [a, b], self.type(a))

    def max_pool(self, name: str, x: Value, *, kernel: int, stride: int, padding: int) -> Value:
        """Maximum over windows; in training with the int64 index of each."""
        made = self._windows(name, x, self.shape(x)[1], kernel, stride, padding)
        outputs = [made, TensorType(made.shape, "int64")] if self.training else [made]
        return self.apply(name, "MaxPool", [x], *outputs, params={"kernel_shape": (kernel, kernel)})

    def average_pool(self, name: str, x: Value, *, kernel: int, stride: int) -> Value:
        """Mean over windows."""
        made = self._windows(name, x, self.shape(x)[1], kernel, stride, 0)
        return self.apply(name, "AveragePool", [x], made, params={"kernel_shape": (kernel, kernel)})

    def global_average_pool(self, name: str, x: Value) -> Value:
        """Mean over height and width."""
        return self.apply(name, "GlobalAveragePool", [x], self._like(x, *self.shape(x)[:2], 1, 1))

    def concat(self, name: str, values: Sequence[Value], *, axis: int = 1) -> Value:
        """Values side by side along an axis, copied."""
        shape = list(self.shape(values[0]))
        shape[axis] = sum(self.shape(value)[axis] for value in values)
        return self.apply(name, "Concat", values, self._like(values[0], *shape))

    def split(self, name: str, x: Value, part: TensorType, count: int, *, copied: bool = False) -> list[Value]:
        """Equal parts of a value, by strides or copied; the backward joins their gradients and reads nothing else."""
        moved = 2 * count * part.nbytes if copied else 0
        seconds = roofline_seconds(device_named(self.graph.graph["device"]), flops=0, bytes_moved=moved)
        view = {} if copied else {"view": tuple((0, k, k * part.nbytes) for k in range(count))}
        fixed: dict[str, Any] = {"op": "Split", "phase": "forward", "saves": (), "module": _module(name)}
        self.draft.add(name, [x], flops=0, cost=seconds, **fixed, **view, **output_types([part] * count))
        parts = [Value(name, k) for k in range(count)]
        self.draft.types.update(dict.fromkeys(parts, part))
        return parts

    def slice(self, name: str, x: Value, shape: tuple[int, ...]) -> Value:
        """A copy of a part of this shape; it reads no more than it keeps."""
        made = self._like(x, *shape)
        return self.apply(name, "Slice", [x], made, types=[made])

    def first(self, name: str, x: Value) -> Value:
        """The first row of each sequence, a view: who keeps it keeps the sequences."""
        batch, _, width = self.shape(x)
        made = self._like(x, batch, width)
        return self.apply(name, "aten.select", [x], made, types=[made])

    def reshape(self, name: str, x: Value, shape: tuple[int, ...]) -> Value:
        """The same elements in another shape; no bytes move."""
        return self.apply(name, "Reshape", [x], self._like(x, *shape))

    def flatten(self, name: str, x: Value) -> Value:
        """All but the batch in one axis; no bytes move."""
        batch, *rest = self.shape(x)
        return self.apply(name, "Flatten", [x], self._like(x, batch, math.prod(rest)))

    def linear(self, name: str, x: Value, features: int, *, bias: bool = True) -> Value:
        """A fully connected layer on rows, with bias unless told otherwise."""
        weight = self.parameter(f"{name}.weight", (features, self.shape(x)[1]), x)
        return self.gemm(name, x, weight, self.parameter(f"{name}.bias", (features,), x) if bias else None)

    def gemm(self, name: str, x: Value, weight: Value, bias: Value | None = None) -> Value:
        """Rows times a weight of (features out, features in) that stands already."""
        reads = [x, weight] if bias is None else [x, weight, bias]
        made = self._like(x, self.shape(x)[0], self.shape(weight)[0])
        return self.apply(name, "Gemm", reads, made, params={"transB": 1})

    def layer_norm(self, name: str, x: Value) -> Value:
        """Normalization of each row of the last axis; in training with its float32 mean and 1/std."""
        *rows, width = self.shape(x)
        reads = [x, *(self.parameter(f"{name}.{part}", (width,), x) for part in ("weight", "bias"))]
        statistics = [TensorType(tuple(rows))] * 2 if self.training else []
        return self.apply(name, "LayerNormalization", reads, self.type(x), *statistics)

    def rms_norm(self, name: str, x: Value) -> Value:
        """Division of each row of the last axis by its root mean square; in training with its float32 inverse."""
        *rows, width = self.shape(x)
        statistics = [TensorType(tuple(rows))] if self.training else []
        reads = [x, self.parameter(f"{name}.weight", (width,), x)]
        return self.apply(name, "RMSNormalization", reads, self.type(x), *statistics)

    def multiply(self, name: str, a: Value, b: Value) -> Value:
        """Product of two values, the second broadcast to the first."""
        return self.apply(name, "Mul", [a, b], self.type(a))

    def silu(self, name: str, x: Value) -> Value:
        """x * sigmoid(x)."""
        return self.apply(name, "Swish", [x], self.type(x))

    def tanh(self, name: str, x: Value) -> Value:
        """Hyperbolic tangent."""
        return self.apply(name, "Tanh", [x], self.type(x))

    def gelu(self, name: str, x: Value) -> Value:
        """Gaussian error linear unit."""
        return self.apply(name, "Gelu", [x], self.type(x))

    def dropout(self, name: str, x: Value) -> Value:
        """Dropout; in inference the identity."""
        if self.training:
            return self.draft.dropout(name, x, module=_module(name))
        return self.apply(name, "Dropout", [x], self.type(x))

    def cross_entropy(self, name: str, logits: Value, labels: Value, *, term: bool = False) -> Value:
        """Mean softmax cross-entropy: the loss, or a term of it; keeps the log-probabilities for the backward."""
        outputs, marks = [TensorType(()), self.type(logits)], {} if term else {"phase": "loss", "output": (0,)}
        return self.apply(name, "SoftmaxCrossEntropyLoss", [logits, labels], *outputs, **marks)

    def sum_losses(self, losses: Sequence[Value]) -> str:
        """The sum of losses as the loss; returns its name."""
        self.apply("loss", "Sum", losses, TensorType(()), phase="loss")
        return "loss"

    def parameter(self, name: str, shape: tuple[int, ...], like: Value) -> Value:
        """A trainable resident for layers in the dtype of a value."""
        return self.typed_parameter(name, self._like(like, *shape))

    def typed_parameter(self, name: str, wanted: TensorType) -> Value:
        """A trainable resident of this type, or a copy of this type of a float32 one."""
        if not self.master_weights or wanted.dtype == "float32":
            return self.draft.resident(name, wanted, kind="parameter")
        master = self.draft.resident(name, TensorType(wanted.shape), kind="parameter")
        return self.apply(f"{name}.cast", "Cast", [master], wanted, module=_module(name.rpartition(".")[0]))

    def _like(self, x: Value, *shape: int) -> TensorType:
        """A type in the dtype of a value."""
        return TensorType(shape, self.type(x).dtype)

    def _windows(self, name: str, x: Value, channels: int, kernel: int, stride: int, padding: int) -> TensorType:
        """What a window makes that slides over an image."""
        batch, _, *extents = self.shape(x)
        height, width = ((extent + 2 * padding - kernel) // stride + 1 for extent in extents)
        if height < 1 or width < 1:
            image = "x".join(map(str, extents))
            reason = f"a {kernel}x{kernel} window does not fit an image of {image}; use a larger one"
            raise GraphError(f"layer {name!r}: {reason}")
        return self._like(x, batch, channels, height, width)


def _module(name: str) -> str | None:
    """The block a layer is in: its dotted name without the last part."""
    return name.rpartition(".")[0] or None
