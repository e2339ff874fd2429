"""The models of the zoo by name, and the names that people know some of them by."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from planner.zoo.depths import DENSENET_BLOCKS, RESNET_STAGES, VGG_STAGES

if TYPE_CHECKING:
    import networkx as nx

    from planner.zoo.model_options import Option


@final
@dataclass(frozen=True, slots=True)
class Deferred:
    """A model's function, imported when the model is built or described: lists of models are printed without it.

    Args:
        home: its module, after `planner`.
    """

    home: str
    name: str

    @property
    def function(self) -> Callable[..., nx.DiGraph]:
        """The function itself."""
        from importlib import import_module

        function: Callable[..., nx.DiGraph] = getattr(import_module(f"planner.{self.home}"), self.name)
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
    """

    build: Deferred
    parse: Callable[[str], Any] | None
    argument: str
    description: str

    @property
    def options(self) -> tuple[str, ...]:
        """The keyword options it takes, but `step`, which is no text."""
        return tuple(self._defaults)

    @property
    def required(self) -> tuple[str, ...]:
        """Options that must be given."""
        from inspect import Parameter

        return tuple(name for name, default in self._defaults.items() if default is Parameter.empty)

    @property
    def _defaults(self) -> dict[str, Any]:
        from inspect import Parameter, signature

        own = signature(self.build.function).parameters.values()
        return {each.name: each.default for each in own if each.kind is Parameter.KEYWORD_ONLY and each.name != "step"}

    @property
    def trains(self) -> bool:
        """True if it makes the training step that it is given as `step`."""
        return "training" in self.options

    @property
    def typed_options(self) -> dict[str, Option]:
        """What each option is, so that it can be given as text."""
        from planner.zoo.model_options import options_of

        return options_of(self.build.function, self.options)


def _model(
    name: str, parse: Callable[[str], Any] | None, argument: str, description: str, *, home: str | None = None
) -> Model:
    return Model(Deferred(f"zoo.models.{home or name}", name), parse, argument, description)


def _mxnet(name: str, parse: Callable[[str], Any] | None, argument: str, description: str) -> Model:
    return Model(Deferred("mxnet.models", name), parse, argument, description)


def _blocks(text: str) -> int | tuple[int, ...]:
    return _stages(text) if "-" in text else int(text)


def _stages(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("-"))


def _listed(known: Mapping[int, tuple[int, ...]]) -> str:
    return f"a depth ({', '.join(map(str, known))})"


_STEP: Final = "a whole training step."
MODELS: Final[Mapping[str, Model]] = MappingProxyType({
    "chain": _model("chain", int, "a number of layers, e.g. chain:100",
        "Chain of equal layers, one unit each, with its backward.", home="chains"),
    "resnet": _model("resnet", _blocks, f"{_listed(RESNET_STAGES)} or blocks per stage, e.g. resnet:3-4-6-3",
        f"ResNet v1.5 of basic or bottleneck blocks, {_STEP}"),
    "vgg": _model("vgg", int, _listed(VGG_STAGES), f"VGG of 3x3 convolutions, {_STEP}"),
    "squeezenet": _model("squeezenet", None, "no argument", f"SqueezeNet 1.1, {_STEP}"),
    "densenet": _model("densenet", _blocks, f"{_listed(DENSENET_BLOCKS)} or layers per block, e.g. densenet:6-12-24-16",
        f"DenseNet of bottleneck layers that read all before them, {_STEP}"),
    "unet": _model("unet", int, "a number of poolings, e.g. unet:4", f"U-Net with a label at each pixel, {_STEP}"),
    "gpt": _model("gpt", int, "a number of blocks, e.g. gpt:12",
        f"GPT-2 with fused or plain attention, {_STEP}", home="transformer"),
    "bert": _model("bert", int, "a number of blocks, e.g. bert:12",
        f"BERT, an encoder fine-tuned to classify, {_STEP}"),
    "llama": _model("llama", int, "a number of blocks, e.g. llama:16",
        f"Llama with grouped-query attention and SwiGLU, {_STEP}"),
    "vit": _model("vit", int, "a number of blocks, e.g. vit:12",
        f"Vision transformer, ViT-B/16 by default, {_STEP}", home="transformer"),
    "mlp": _model("mlp", _stages, "widths, e.g. mlp:784-128-10", f"Fully connected layers, {_STEP}"),
    "lstm": _model("lstm", int, "a number of time steps, e.g. lstm:64",
        f"Unrolled LSTM with a loss at each step, {_STEP}"),
    "mxnet_resnet": _mxnet("mxnet_resnet", _stages, "blocks per stage, e.g. mxnet_resnet:15-120-180-15",
        "ResNet of Chen et al. 2016 as MXNet 1.5.1 planned it, forward and backward."),
    "mxnet_lstm": _mxnet("mxnet_lstm", int, "a number of time steps, e.g. mxnet_lstm:64",
        "LSTM of Chen et al. 2016 as MXNet 1.5.1 planned it, forward and backward."),
    "inception_bn": _mxnet("inception_bn", None, "no argument",
        "Inception-BN of MXNet's memory-cost example, forward and backward."),
})  # fmt: skip


@final
@dataclass(frozen=True, slots=True)
class Alias:
    """A name that people know a model by.

    Args:
        spec: `name:argument` of the model.
        options: it is built with, unless others are given.
    """

    spec: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join([self.spec, *(f"{name}={str(value).lower()}" for name, value in self.options.items())])


def _gpt2(layers: int, hidden: int) -> Alias:
    # As the model's published configuration trains; `--option dropout=0` leaves dropout out.
    sizes = {"hidden": hidden, "heads": hidden // 64, "positions": 1024}
    return Alias(f"gpt:{layers}", {**sizes, "dropout": 0.1, "activation": "gelu_new"})


def _bert(layers: int, hidden: int) -> Alias:
    return Alias(f"bert:{layers}", {"hidden": hidden, "heads": hidden // 64, "dropout": 0.1})


def _vit(layers: int, hidden: int, patch: int) -> Alias:
    return Alias(f"vit:{layers}", {"hidden": hidden, "heads": hidden // 64, "patch": patch})


def _llama(layers: int, hidden: int, heads: int, kv_heads: int, intermediate: int, **further: Any) -> Alias:
    sizes = {"hidden": hidden, "heads": heads, "kv_heads": kv_heads, "intermediate": intermediate}
    return Alias(f"llama:{layers}", {**sizes, **further})


ALIASES: Final[Mapping[str, Alias]] = MappingProxyType({
    **{f"resnet{depth}": Alias(f"resnet:{depth}") for depth in (18, 34, 50, 101, 152)},
    **{f"vgg{depth}": Alias(f"vgg:{depth}") for depth in VGG_STAGES},
    **{f"densenet{depth}": Alias(f"densenet:{depth}") for depth in DENSENET_BLOCKS},
    "squeezenet1_1": Alias("squeezenet"), "unet": Alias("unet:4"),
    "gpt2": _gpt2(12, 768), "gpt2-medium": _gpt2(24, 1024), "gpt2-large": _gpt2(36, 1280), "gpt2-xl": _gpt2(48, 1600),
    **dict.fromkeys(("bert-base", "bert-base-uncased"), _bert(12, 768)),
    **dict.fromkeys(("bert-large", "bert-large-uncased"), _bert(24, 1024)),
    "vit_b_16": _vit(12, 768, 16), "vit_b_32": _vit(12, 768, 32), "vit_l_16": _vit(24, 1024, 16),
    "vit_l_32": _vit(24, 1024, 32),
    "llama-3.2-1b": _llama(16, 2048, 32, 8, 8192), "llama-3.2-3b": _llama(28, 3072, 24, 8, 8192),
    **dict.fromkeys(("llama-3-8b", "llama-3.1-8b"), _llama(32, 4096, 32, 8, 14336, tied=False)),
    "llama-2-7b": _llama(32, 4096, 32, 32, 11008, vocabulary=32000, tied=False),
})  # fmt: skip


class Named(NamedTuple):
    """What a name stands for.

    Args:
        title: of the graph, where an alias was named.
        name: of the model.
        argument: as text; None: there is none.
        options: it is built with, unless others are given.
    """

    title: str | None
    name: str
    argument: str | None
    options: Mapping[str, Any]

    @property
    def model(self) -> Model:
        """The entry of the model."""
        return MODELS[self.name]

    @property
    def accepted(self) -> str:
        """What the argument must be, and the aliases that have one."""
        aliases = [alias for alias, stands in ALIASES.items() if stands.spec.startswith(f"{self.name}:")]
        return self.model.argument + (f", or {', '.join(aliases)}" if aliases else "")


def find(text: str) -> Named | None:
    """The model or alias that a text names, in any case, with -, _ or neither; None if it names none.

    >>> find("ResNet:50").argument, find("GPT2_Medium").options["hidden"]
    ('50', 1024)
    """
    folded = _folded(text)
    if folded in _ALIAS_OF:
        title = _ALIAS_OF[folded]
        name, colon, argument = ALIASES[title].spec.partition(":")
        return Named(title, name, argument if colon else None, ALIASES[title].options)
    head, colon, argument = text.partition(":")
    if _folded(head) not in _MODEL_OF:
        return None
    return Named(None, _MODEL_OF[_folded(head)], argument if colon else None, {})


def near(text: str) -> str | None:
    """The name that the writer of a text most likely meant; None where no name is near.

    >>> near("rsnet50"), near("resnt:50"), near("alexnet")
    ('resnet50', 'resnet:50', None)
    """
    head, colon, argument = text.partition(":")
    known = _MODEL_OF if colon else _WHOLE
    found = difflib.get_close_matches(_folded(head), known, n=1, cutoff=_NEAR)
    return f"{known[found[0]]}{colon}{argument}" if found else None


def hint(text: str) -> str:
    """What to do about a name that is not known.

    >>> hint("resnet50x")
    "did you mean 'resnet50'?"
    """
    name = near(text)
    return "`planner zoo` lists the models" if name is None else f"did you mean {name!r}?"


def _folded(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


_NEAR: Final = 0.7  # of 1, in the measure of difflib; two letters of gpt2 that change places make 0.75
_MODEL_OF: Final = {_folded(name): name for name in MODELS}
_ALIAS_OF: Final = {_folded(name): name for name in ALIASES}
#: Names that need no argument.
_WHOLE: Final = {**_ALIAS_OF, **{_folded(name): name for name, model in MODELS.items() if model.parse is None}}
