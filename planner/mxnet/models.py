"""The original's example networks, as MXNet 1.5.1 planned them: forward and backward, without an update.

Allocator "nnvm" gives the original's totals on these graphs; for a modern network take `zoo.resnet` or `zoo.lstm`.
Names of nodes are the original's if those are unique.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, final

import networkx as nx

from planner.errors import GraphError
from planner.mxnet.graph_builder import Entry, Network
from planner.text import whole_number


def mxnet_resnet(
    stages: Sequence[int], *, batch: int = 32, image: int = 224, classes: int = 1000, device: str = "a100"
) -> nx.DiGraph:
    """The ResNet of memonger's example: bottleneck blocks, every convolution with a bias, batch norm and leaky ReLU.

    `stage=True` marks what the original marked (`mirror_stage`): the input of each block, and its projected shortcut.
    Batch norm gives its result, mean and variance; the first pool is without padding, 112 -> 55 pixels.

    Args:
        stages: blocks per stage; with one projection a stage (3, 4, 6, 3) has 53 convolutions, (15, 120, 180, 15) 995.
        batch: images.
        image: height and width in pixels.
        classes: outputs of the classifier.
        device: costs are seconds on it.
    Returns:
        A DAG in program order; see `Network.training_step` for gradients of arguments.
    Raises:
        GraphError: an argument out of range, an image that is too small, an unknown device.
    Source: Chen et al. 2016, section 5; example_resnet.py of dmlc/mxnet-memonger. Ours adds costs.

    >>> graph = mxnet_resnet((1, 1), batch=2, image=64, classes=10)
    >>> graph.nodes["pooling0"]["shape"], graph.nodes["leakyrelu4"]["stage"]
    ((2, 64, 15, 15), True)
    """
    blocks = _blocks(stages)
    batch, image, classes = _whole("mxnet_resnet", batch=batch, image=image, classes=classes)
    net = Network(f"mxnet_resnet:{'-'.join(map(str, blocks))}", device=device)
    layers = _Convolutions(net, activation="LeakyReLU", names=("convolution", "batchnorm", "leakyrelu"))
    data = net.variable("data", (batch, 3, image, image), kind="input")
    x = layers.unit("0", data, 64, kernel=7, stride=2, padding=3)
    x = layers.pool("pooling0", x, "max", kernel=3, stride=2)
    units = adds = 0
    for stage, count in enumerate(blocks):
        for block in range(count):
            units, names = units + 3, [str(units + k) for k in (1, 2, 3)]
            wide = 256 << stage
            stride = 2 if block == 0 and stage > 0 else 1
            y = layers.unit(names[0], x, wide // 4)
            y = layers.unit(names[1], y, wide // 4, kernel=3, stride=stride, padding=1)
            y = layers.unit(names[2], y, wide)
            if block == 0:
                units += 1
                x = layers.unit(str(units), x, wide, stride=stride)
            x.node.stage = True
            x = net.apply("elemwise_add", f"_plus{adds}", [x, y], [x.type.shape])
            adds += 1
    return net.training_step([_classifier(layers, x, classes)])


def inception_bn(*, batch: int = 32, image: int = 224, classes: int = 1000, device: str = "a100") -> nx.DiGraph:
    """Inception-BN of MXNet's memory-cost example, in which the original's sharing of memory was measured.

    Args:
        batch: images.
        image: height and width in pixels.
        classes: outputs of the classifier.
        device: costs are seconds on it.
    Returns:
        A DAG in program order; see `Network.training_step` for gradients of arguments.
    Raises:
        GraphError: an argument out of range, an image that is too small, an unknown device.
    Source: Ioffe and Szegedy 2015; example/memcost/inception_memcost.py of MXNet 0.x.

    >>> graph = inception_bn(batch=2)
    >>> graph.nodes["ch_concat_3a_chconcat"]["shape"]
    (2, 256, 27, 27)
    """
    batch, image, classes = _whole("inception_bn", batch=batch, image=image, classes=classes)
    net = Network("inception_bn", device=device)
    layers = _Convolutions(net, activation="Activation.relu", names=("conv_", "bn_", "relu_"))
    data = net.variable("data", (batch, 3, image, image), kind="input")
    x = layers.unit("conv1", data, 64, kernel=7, stride=2, padding=3)
    x = layers.pool("pool1", x, "max", kernel=3, stride=2)
    x = layers.unit("conv2", layers.unit("conv2red", x, 64), 192, kernel=3, padding=1)
    x = layers.pool("pool2", x, "max", kernel=3, stride=2)
    for name, module in _INCEPTION.items():
        x = _inception(layers, name, x, module)
    return net.training_step([_classifier(layers, x, classes)])


def mxnet_lstm(
    steps: int,
    *,
    batch: int = 64,
    layers: int = 4,
    hidden: int = 1024,
    features: int = 50,
    embed: int = 1024,
    classes: int = 5000,
    device: str = "a100",
) -> nx.DiGraph:
    """The unrolled LSTM of memonger's example, with a softmax cross-entropy at each time step.

    Weights are shared over time; MXNet sums their gradients in one op up to 7 time steps, from 8 on in a chain of adds.
    `stage` marks cell and hidden state of every layer with the number of the time step: one decision a step.

    Args:
        steps: time steps.
        batch: sequences.
        layers: LSTM layers.
        hidden: width of cell and hidden state.
        features: width of the input of a time step.
        embed: width after the first fully connected layer.
        classes: outputs of the classifier.
        device: costs are seconds on it.
    Returns:
        A DAG in program order; see `Network.training_step` for gradients of arguments.
    Raises:
        GraphError: an argument out of range, an unknown device.
    Source: Chen et al. 2016, section 5; example_lstm.py of dmlc/mxnet-memonger.

    >>> graph = mxnet_lstm(2, batch=3, layers=1, hidden=4, features=5, embed=6, classes=7)
    >>> [(node, stage) for node, stage in graph.nodes(data="stage") if stage]
    [('_plus1', '0'), ('_mul2', '0'), ('_plus3', '1'), ('_mul5', '1')]
    """
    steps, batch, layers, hidden = _whole("mxnet_lstm", steps=steps, batch=batch, layers=layers, hidden=hidden)
    features, embed, classes = _whole("mxnet_lstm", features=features, embed=embed, classes=classes)
    net = Network(f"mxnet_lstm:{steps}", device=device)
    cells = _Lstm(net, hidden=hidden)
    embedding = net.variable("embed_weight", (embed, features), kind="parameter")
    weights = [_Weights.of(net, f"l{k}", embed if k == 0 else hidden, hidden) for k in range(layers)]
    cls = [net.variable(f"cls_{name}", shape, kind="parameter") for name, shape in _linear(classes, hidden)]
    cell = [net.variable(f"l{k}_init_c", (batch, hidden), kind="input") for k in range(layers)]
    state = [net.variable(f"l{k}_init_h", (batch, hidden), kind="input") for k in range(layers)]
    heads = []
    for t in range(steps):
        data = net.variable(f"t{t}_data", (batch, features), kind="input")
        x = net.apply("FullyConnected", f"t{t}_embed", [data, embedding], [(batch, embed)])
        for k in range(layers):
            cell[k], state[k] = cells.step(f"t{t}_l{k}", x, weights[k], cell[k], state[k], stage=str(t))
            x = state[k]
        label = net.variable(f"t{t}_label", (batch,), kind="input")
        x = net.apply("FullyConnected", f"t{t}_cls", [x, *cls], [(batch, classes)])
        heads.append(net.apply("softmax_cross_entropy", f"t{t}_sm", [x, label], [(1,)]))
    for name, last in (("c", cell), ("h", state)):
        for k, value in enumerate(last):
            heads.append(net.apply("BlockGrad", f"l{k}_last_{name}", [value], [value.type.shape]))
    return net.training_step(heads)


class _Weights(NamedTuple):
    """Parameters of an LSTM layer: from the layer below and from its own state."""

    i2h: list[Entry]
    h2h: list[Entry]

    @classmethod
    def of(cls, net: Network, name: str, width: int, hidden: int) -> _Weights:
        parts = (("i2h", _linear(4 * hidden, width)), ("h2h", _linear(4 * hidden, hidden)))
        pairs = [
            [net.variable(f"{name}_{part}_{which}", shape, kind="parameter") for which, shape in shapes]
            for part, shapes in parts
        ]
        return cls(*pairs)


@final
class _Lstm:
    """Writes LSTM cells; unnamed symbols are numbered by operator, as MXNet's name manager does."""

    def __init__(self, net: Network, *, hidden: int) -> None:
        self.net: Final = net
        self.hidden: Final = hidden
        self.numbers: Final[dict[str, int]] = {}

    def step(
        self, name: str, x: Entry, weights: _Weights, cell: Entry, state: Entry, *, stage: str
    ) -> tuple[Entry, Entry]:
        """One layer at one time step; returns the next cell and hidden state."""
        wide = (x.type.shape[0], 4 * self.hidden)
        i2h = self.net.apply("FullyConnected", f"{name}_i2h", [x, *weights.i2h], [wide])
        h2h = self.net.apply("FullyConnected", f"{name}_h2h", [state, *weights.h2h], [wide])
        narrow = cell.type.shape
        both = self._unnamed("elemwise_add", [i2h, h2h])
        sliced = self.net.apply("SliceChannel", f"{name}_slice", [both], [narrow] * 4).node
        kinds = ("sigmoid", "tanh", "sigmoid", "sigmoid")
        parts = [self._unnamed(f"Activation.{kind}", [Entry(sliced, k)]) for k, kind in enumerate(kinds)]
        gate, change, forget, out = parts
        kept = self._unnamed("elemwise_mul", [forget, cell])
        cell = self._unnamed("elemwise_add", [kept, self._unnamed("elemwise_mul", [gate, change])], stage=stage)
        state = self._unnamed("elemwise_mul", [out, self._unnamed("Activation.tanh", [cell])], stage=stage)
        return cell, state

    def _unnamed(self, rule: str, inputs: list[Entry], *, stage: str | None = None) -> Entry:
        hint = {"elemwise_add": "_plus", "elemwise_mul": "_mul"}.get(rule, "activation")
        number = self.numbers.get(hint, 0)
        self.numbers[hint] = number + 1
        return self.net.apply(rule, f"{hint}{number}", inputs, [inputs[0].type.shape], stage=stage)


@final
class _Convolutions:
    """Writes the layers of image networks; `names` are prefixes of a unit's convolution, batch norm and activation."""

    def __init__(self, net: Network, *, activation: str, names: tuple[str, str, str]) -> None:
        self.net: Final = net
        self.activation: Final = activation
        self.names: Final = names

    def unit(self, name: str, x: Entry, channels: int, *, kernel: int = 1, stride: int = 1, padding: int = 0) -> Entry:
        """Convolution with bias, batch norm, activation."""
        net, (conv, norm, activation) = self.net, (prefix + name for prefix in self.names)
        weight = net.variable(f"{conv}_weight", (channels, x.type.shape[1], kernel, kernel), kind="parameter")
        bias = net.variable(f"{conv}_bias", (channels,), kind="parameter")
        made = (x.type.shape[0], channels, *_window(conv, x, kernel, stride, padding))
        x = net.apply("Convolution", conv, [x, weight, bias], [made])
        of_norm = {"gamma": "parameter", "beta": "parameter", "moving_mean": "state", "moving_var": "state"}
        further = [net.variable(f"{norm}_{part}", (channels,), kind=kind) for part, kind in of_norm.items()]
        x = net.apply("BatchNorm", norm, [x, *further], [made, (channels,), (channels,)])
        return net.apply(self.activation, activation, [x], [made])

    def pool(self, name: str, x: Entry, how: str, *, kernel: int, stride: int = 1, padding: int = 0) -> Entry:
        """Pooling, "max" or "avg"; MXNet's default leaves out windows that reach over the edge."""
        made = (*x.type.shape[:2], *_window(name, x, kernel, stride, padding))
        return self.net.apply(f"Pooling.{how}", name, [x], [made], kernel=(kernel, kernel))


def _classifier(layers: _Convolutions, x: Entry, classes: int) -> Entry:
    """Mean over the image, one fully connected layer, softmax with its own loss."""
    net = layers.net
    x = layers.pool("global_pool", x, "avg", kernel=x.type.shape[-1])
    batch, channels = x.type.shape[:2]
    x = net.apply("Flatten", "flatten", [x], [(batch, channels)])
    fc1 = [net.variable(f"fc1_{name}", shape, kind="parameter") for name, shape in _linear(classes, channels)]
    x = net.apply("FullyConnected", "fc1", [x, *fc1], [(batch, classes)])
    label = net.variable("softmax_label", (batch,), kind="input")
    return net.apply("SoftmaxOutput", "softmax", [x, label], [(batch, classes)])


def _linear(outputs: int, inputs: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Shapes of the parameters of a fully connected layer."""
    return ("weight", (outputs, inputs)), ("bias", (outputs,))


class _Inception(NamedTuple):
    """Channels of a module's branches; 0: the module halves the image and has no such branch."""

    one: int
    three_reduce: int
    three: int
    double_reduce: int
    double: int
    pool: str = "avg"
    projection: int = 0


# Ioffe and Szegedy 2015, figure 5, as MXNet's example has it.
_INCEPTION: Final = {
    "3a": _Inception(64, 64, 64, 64, 96, "avg", 32),
    "3b": _Inception(64, 64, 96, 64, 96, "avg", 64),
    "3c": _Inception(0, 128, 160, 64, 96, "max"),
    "4a": _Inception(224, 64, 96, 96, 128, "avg", 128),
    "4b": _Inception(192, 96, 128, 96, 128, "avg", 128),
    "4c": _Inception(160, 128, 160, 128, 160, "avg", 128),
    "4d": _Inception(96, 128, 192, 160, 192, "avg", 128),
    "4e": _Inception(0, 128, 192, 192, 256, "max"),
    "5a": _Inception(352, 192, 320, 160, 224, "avg", 128),
    "5b": _Inception(352, 192, 320, 192, 224, "max", 128),
}


def _inception(layers: _Convolutions, name: str, x: Entry, module: _Inception) -> Entry:
    """Up to four branches over one input, concatenated."""
    stride = 1 if module.one else 2
    branches = [layers.unit(f"{name}_1x1", x, module.one)] if module.one else []
    y = layers.unit(f"{name}_3x3_reduce", x, module.three_reduce)
    branches.append(layers.unit(f"{name}_3x3", y, module.three, kernel=3, stride=stride, padding=1))
    y = layers.unit(f"{name}_double_3x3_reduce", x, module.double_reduce)
    y = layers.unit(f"{name}_double_3x3_0", y, module.double, kernel=3, padding=1)
    branches.append(layers.unit(f"{name}_double_3x3_1", y, module.double, kernel=3, stride=stride, padding=1))
    y = layers.pool(f"{module.pool}_pool_{name}_pool", x, module.pool, kernel=3, stride=stride, padding=1)
    branches.append(layers.unit(f"{name}_proj", y, module.projection) if module.projection else y)
    channels = sum(branch.type.shape[1] for branch in branches)
    made = (x.type.shape[0], channels, *branches[0].type.shape[2:])
    return layers.net.apply("Concat", f"ch_concat_{name}_chconcat", branches, [made])


def _window(name: str, x: Entry, kernel: int, stride: int, padding: int) -> tuple[int, int]:
    """Height and width after a window slid over an image; it starts only where it fits."""
    height, width = ((extent + 2 * padding - kernel) // stride + 1 for extent in x.type.shape[2:])
    if height < 1 or width < 1:
        size = "x".join(map(str, x.type.shape[2:]))
        window = f"{kernel}x{kernel} window"
        raise GraphError(f"layer {name!r}: a {window} does not fit an image of {size}; use a larger one")
    return height, width


def _whole(model: str, **arguments: int) -> list[int]:
    return [whole_number(model, name, value, least=1) for name, value in arguments.items()]


def _blocks(stages: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(stages, (list, tuple)) or not stages:
        raise GraphError(f"mxnet_resnet: stages is {stages!r}, expected blocks per stage such as (3, 4, 6, 3)")
    return tuple(whole_number("mxnet_resnet", "stages", count, least=1) for count in stages)
