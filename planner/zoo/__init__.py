"""Models as networkx DAGs with true sizes, built without a framework.

`zoo.resnet(1001, batch=32)` is also `zoo.build("resnet:1001", batch=32)`, by the name the command line takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import Parameter, signature
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, final

import networkx as nx

from planner.errors import GraphError
from planner.zoo.bert import bert
from planner.zoo.chains import chain
from planner.zoo.densenet import DENSENET_BLOCKS, densenet
from planner.zoo.llama import llama
from planner.zoo.lstm import lstm
from planner.zoo.mlp import mlp
from planner.zoo.model_options import Option, options_of
from planner.zoo.resnet import STAGES, resnet
from planner.zoo.squeezenet import squeezenet
from planner.zoo.transformer import gpt, vit
from planner.zoo.unet import unet
from planner.zoo.vgg import VGG_STAGES, vgg

if TYPE_CHECKING:
    from planner.mxnet.models import inception_bn as inception_bn
    from planner.mxnet.models import mxnet_lstm as mxnet_lstm
    from planner.mxnet.models import mxnet_resnet as mxnet_resnet

__all__ = [
    "MODELS", "Model", "bert", "build", "chain", "densenet", "gpt", "inception_bn", "llama", "lstm", "mlp",
    "mxnet_lstm", "mxnet_resnet", "resnet", "squeezenet", "unet", "vgg", "vit",
]  # fmt: skip


@final
@dataclass(frozen=True, slots=True)
class _Deferred:
    """A model of `planner.mxnet`, which is imported when the model is built or described."""

    name: str

    @property
    def function(self) -> Callable[..., nx.DiGraph]:
        """The model's own function."""
        from planner.mxnet import models

        function: Callable[..., nx.DiGraph] = getattr(models, self.name)
        return function

    def __call__(self, *arguments: Any, **options: Any) -> nx.DiGraph:
        return self.function(*arguments, **options)


@final
@dataclass(frozen=True, slots=True)
class Model:
    """One entry of the zoo.

    Args:
        build: makes the DAG from one argument and options.
        parse: the argument from its text; None: it takes options only, and its name stands alone.
        argument: what the text must be, for people.
        description: one line.
        options: keyword options it takes; `required` must be given.
    """

    build: Callable[..., nx.DiGraph] | _Deferred
    parse: Callable[[str], Any] | None
    argument: str
    description: str
    options: tuple[str, ...]
    required: tuple[str, ...] = ()

    @property
    def typed_options(self) -> dict[str, Option]:
        """What each option is, so that it can be given as text."""
        return options_of(getattr(self.build, "function", self.build), self.options)


def _model(
    build: Callable[..., nx.DiGraph], parse: Callable[[str], Any] | None, argument: str, description: str
) -> Model:
    """An entry whose options are the keyword arguments of the model's function."""
    given = [option for option in signature(build).parameters.values() if option.kind is Parameter.KEYWORD_ONLY]
    required = tuple(option.name for option in given if option.default is Parameter.empty)
    return Model(build, parse, argument, description, tuple(option.name for option in given), required)


def _blocks(text: str) -> int | tuple[int, ...]:
    return _stages(text) if "-" in text else int(text)


def _stages(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("-"))


def _listed(known: Mapping[int, tuple[int, ...]]) -> str:
    return f"a depth ({', '.join(map(str, known))})"


MODELS: Final[Mapping[str, Model]] = MappingProxyType({
    "chain": _model(chain, int, "a number of layers, e.g. chain:100",
        "Chain of equal layers, one unit each, with its backward."),
    "resnet": _model(resnet, _blocks, f"{_listed(STAGES)} or blocks per stage, e.g. resnet:3-4-6-3",
        "ResNet v1.5 of basic or bottleneck blocks, a whole training step."),
    "vgg": _model(vgg, int, _listed(VGG_STAGES), "VGG of 3x3 convolutions, a whole training step."),
    "squeezenet": _model(squeezenet, None, "no argument", "SqueezeNet 1.1, a whole training step."),
    "densenet": _model(densenet, _blocks, f"{_listed(DENSENET_BLOCKS)} or layers per block, e.g. densenet:6-12-24-16",
        "DenseNet of bottleneck layers that read all before them, a whole training step."),
    "unet": _model(unet, int, "a number of poolings, e.g. unet:4",
        "U-Net with a label at each pixel, a whole training step."),
    "gpt": _model(gpt, int, "a number of blocks, e.g. gpt:12",
        "GPT-2 with fused or plain attention, a whole training step."),
    "bert": _model(bert, int, "a number of blocks, e.g. bert:12",
        "BERT, an encoder fine-tuned to classify, a whole training step."),
    "llama": _model(llama, int, "a number of blocks, e.g. llama:16",
        "Llama with grouped-query attention and SwiGLU, a whole training step."),
    "vit": _model(vit, int, "a number of blocks, e.g. vit:12",
        "Vision transformer, ViT-B/16 by default, a whole training step."),
    "mlp": _model(mlp, _stages, "widths, e.g. mlp:784-128-10", "Fully connected layers, a whole training step."),
    "lstm": _model(lstm, int, "a number of time steps, e.g. lstm:64",
        "Unrolled LSTM with a loss at each step, a whole training step."),
    "mxnet_resnet": Model(_Deferred("mxnet_resnet"), _stages, "blocks per stage, e.g. mxnet_resnet:15-120-180-15",
        "ResNet of Chen et al. 2016 as MXNet 1.5.1 planned it, forward and backward.",
        ("batch", "image", "classes", "device")),
    "mxnet_lstm": Model(_Deferred("mxnet_lstm"), int, "a number of time steps, e.g. mxnet_lstm:64",
        "LSTM of Chen et al. 2016 as MXNet 1.5.1 planned it, forward and backward.",
        ("batch", "layers", "hidden", "features", "embed", "classes", "device")),
    "inception_bn": Model(_Deferred("inception_bn"), None, "no argument",
        "Inception-BN of MXNet's memory-cost example, forward and backward.",
        ("batch", "image", "classes", "device")),
})  # fmt: skip


def __getattr__(name: str) -> Any:
    model = MODELS.get(name)
    if model is not None and isinstance(model.build, _Deferred):
        return model.build.function
    raise AttributeError(f"module 'planner.zoo' has no attribute {name!r}")


def build(spec: str, **options: Any) -> nx.DiGraph:
    """Build the model that a name such as "resnet:1001" stands for.

    Args:
        spec: `name:argument`; see `MODELS`.
        options: as the model's function takes them.
    Raises:
        GraphError: unknown model, an argument it cannot read, or an option it does not take; lists those accepted.

    >>> len(build("chain:8"))
    18
    """
    name, colon, argument = spec.partition(":")
    model = MODELS.get(name)
    if model is None:
        raise GraphError(f"unknown model {name!r}; known: {', '.join(MODELS)}")
    try:
        if (model.parse is None) == bool(colon):
            raise ValueError
        parsed = () if model.parse is None else (model.parse(argument),)
    except ValueError:
        raise GraphError(f"model {name!r} needs {model.argument}; got {spec!r}") from None
    for option in options:
        if option not in model.options:
            raise GraphError(f"model {name!r} takes no option {option!r}; it takes {', '.join(model.options)}")
    for option in model.required:
        if options.get(option) is None:
            raise GraphError(f"model {name!r} needs the option {option!r}")
    return model.build(*parsed, **options)
