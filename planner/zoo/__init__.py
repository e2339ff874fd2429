"""Models as networkx DAGs with true sizes, built without a framework.

`zoo.resnet(1001, batch=32)` is also `zoo.build("resnet:1001", batch=32)`, by the name the command line takes. Some have
names that people know them by, as `zoo.build("gpt2-medium", batch=8)`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from planner.errors import GraphError
from planner.zoo.catalogue import ALIASES, MODELS, Alias, Model, find, hint

if TYPE_CHECKING:
    import networkx as nx

    from planner.graph import Graph
    from planner.lowering.read import GraphLike
    from planner.mxnet.models import inception_bn as inception_bn
    from planner.mxnet.models import mxnet_lstm as mxnet_lstm
    from planner.mxnet.models import mxnet_resnet as mxnet_resnet
    from planner.training_step import TrainingStep
    from planner.zoo.models.bert import bert as bert
    from planner.zoo.models.chains import chain as chain
    from planner.zoo.models.densenet import densenet as densenet
    from planner.zoo.models.llama import llama as llama
    from planner.zoo.models.lstm import lstm as lstm
    from planner.zoo.models.mlp import mlp as mlp
    from planner.zoo.models.resnet import resnet as resnet
    from planner.zoo.models.squeezenet import squeezenet as squeezenet
    from planner.zoo.models.transformer import gpt as gpt
    from planner.zoo.models.transformer import vit as vit
    from planner.zoo.models.unet import unet as unet
    from planner.zoo.models.vgg import vgg as vgg

__all__ = [
    "ALIASES", "MODELS", "Alias", "Model", "bert", "build", "chain", "densenet", "gpt", "inception_bn", "llama", "lstm",
    "mlp", "mxnet_lstm", "mxnet_resnet", "opened", "resnet", "squeezenet", "unet", "vgg", "vit",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    model = MODELS.get(name)
    if model is not None:
        return model.build.function
    missing = f"module 'planner.zoo' has no attribute {name!r}"
    if name.startswith("__"):
        raise AttributeError(missing)
    alias = find(name)
    raise AttributeError(
        f"{missing}; {hint(name) if alias is None else _written(alias.title or alias.name, alias.model)}"
    )


def __dir__() -> list[str]:
    return __all__


def _written(name: str, model: Model) -> str:
    options = "".join(f", {option}=..." for option in model.required)
    return f"write zoo.build({name!r}{options})"


def build(spec: str, **options: Any) -> nx.DiGraph:
    """Build the model that a name such as "resnet:1001" or "gpt2" stands for.

    Args:
        spec: `name:argument` of one of `MODELS`, or one of `ALIASES`, in any case.
        options: as the model's function takes them; they win over those of an alias.
    Raises:
        GraphError: unknown model, an argument it cannot read, or an option it does not take; says which there are.

    >>> len(build("chain:8"))
    18
    >>> build("ResNet50", batch=2, image=32, training=False).graph["name"]
    'resnet50'
    """
    named = find(spec)
    if named is None:
        raise GraphError(f"unknown model {spec!r}; {hint(spec)}")
    name, model = named.name, named.model
    try:
        if (model.parse is None) != (named.argument is None):
            raise ValueError
        parsed = () if model.parse is None else (model.parse(named.argument or ""),)
    except ValueError:
        raise GraphError(f"model {name!r} needs {named.accepted}; got {spec!r}") from None
    for option in options:
        if option not in model.options and not (option == "step" and model.trains):
            raise GraphError(f"model {name!r} takes no option {option!r}; it takes {', '.join(model.options)}")
    for option in model.required:
        if options.get(option) is None:
            raise GraphError(f"model {name!r} needs the option {option!r}")
    graph = model.build(*parsed, **{**named.options, **options})
    if named.title is not None:
        graph.graph["name"] = graph.graph["name"].replace(ALIASES[named.title].spec, named.title)
    return graph


def opened(graph: GraphLike, **options: Any) -> nx.DiGraph | Graph:
    """The graph itself, or the one that a text names: a model of the zoo first, then a file.

    A model that needs a batch and is given none has a batch of 1, which the name of its graph then says. A
    `pathlib.Path` is always a file.

    Args:
        graph: in any form that `optimize` takes.
        options: of the model, or of `from_onnx`; for a graph itself they are nothing, and for a model `trainable` is.
    Raises:
        GraphError: no model or file of that name, or not readable; says which names are near.

    >>> opened("mlp:8-4").graph["name"], opened("chain:2").graph["name"]
    ('mlp:8-4, batch 1', 'chain:2')
    """
    if not isinstance(graph, (str, os.PathLike)):
        return graph
    named = find(graph) if isinstance(graph, str) else None
    if named is None:
        if isinstance(graph, str) and not os.path.exists(graph) and not os.path.splitext(graph)[1]:
            raise GraphError(f"no file {graph!r}, and no zoo model of that name; {hint(graph)}")
        from planner.lowering.read import read_graph

        return read_graph(graph, **options)
    options.pop("trainable", None)  # a model knows its weights; the verb freezes some of them
    if options.get("training") == "forward" and "training" not in named.model.options:
        del options["training"]  # the model is a whole step, which the verb rewrites
    if "batch" not in named.model.required or options.get("batch") is not None:
        return build(str(graph), **options)
    found = build(str(graph), **{**options, "batch": 1})
    found.graph["name"] += ", batch 1"
    return found


def opened_under(graph: GraphLike, step: TrainingStep | None) -> nx.DiGraph | Graph:
    """The same graph, read so that a verb can make this step of it; without a step, as it comes.

    >>> opened_under("chain:2", None).graph["name"]
    'chain:2'
    """
    return opened(graph) if step is None else opened(graph, training="forward", trainable=step.trainable)
