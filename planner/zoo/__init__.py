"""Models as networkx DAGs with true sizes, built without a framework.

`zoo.resnet(1001, batch=32)` is also `zoo.build("resnet:1001", batch=32)`, by the name the command line takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, final

import networkx as nx

from planner.errors import GraphError
from planner.zoo.chain import chain
from planner.zoo.resnet import STAGES, resnet

__all__ = ["MODELS", "Model", "build", "chain", "resnet"]


@final
@dataclass(frozen=True, slots=True)
class Model:
    """One entry of the zoo.

    Args:
        build: makes the DAG from one argument and options.
        parse: the argument from its text.
        argument: what the text must be, for people.
        description: one line.
        options: keyword options it takes; `required` must be given.
    """

    build: Callable[..., nx.DiGraph]
    parse: Callable[[str], Any]
    argument: str
    description: str
    options: tuple[str, ...]
    required: tuple[str, ...] = ()


def _blocks(text: str) -> int | tuple[int, ...]:
    return tuple(int(part) for part in text.split("-")) if "-" in text else int(text)


MODELS: Final[Mapping[str, Model]] = MappingProxyType(
    {
        "chain": Model(
            chain, int, "a number of layers, e.g. chain:100", "Chain of equal layers, one unit each, with its backward.",
            ("reads", "nbytes", "cost", "input_nbytes"),
        ),
        "resnet": Model(
            resnet, _blocks, f"a depth ({', '.join(map(str, STAGES))}) or blocks per stage, e.g. resnet:3-4-6-3",
            "ResNet v1.5 of bottleneck blocks, a whole training step.",
            ("batch", "image", "classes", "training", "optimizer", "device"), ("batch",),
        ),
    }
)  # fmt: skip


def build(spec: str, **options: Any) -> nx.DiGraph:
    """The model a name such as "resnet:1001" stands for.

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
        if not colon:
            raise ValueError
        parsed = model.parse(argument)
    except ValueError:
        raise GraphError(f"model {name!r} needs {model.argument}; got {spec!r}") from None
    for option in options:
        if option not in model.options:
            raise GraphError(f"model {name!r} takes no option {option!r}; it takes {', '.join(model.options)}")
    for option in model.required:
        if options.get(option) is None:
            raise GraphError(f"model {name!r} needs the option {option!r}")
    return model.build(parsed, **options)
