"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click
from click import option
from click.shell_completion import CompletionItem

from planner.names import ALLOCATORS
from planner.text import nearest

Command = TypeVar("Command", bound=Callable[..., Any])


class Word(click.ParamType):  # type: ignore[type-arg]
    """One of a few words, case ignored; an unknown one is answered with the nearest."""

    name = "word"

    def __init__(self, *words: str) -> None:
        self.words = words

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return f"[{'|'.join(self.words)}]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        word = str(value).lower()
        if word not in self.words:
            near = nearest(word, self.words)
            instead = f"did you mean {' or '.join(near)}? " if near else ""
            self.fail(f"{value!r} is unknown; {instead}There are {', '.join(self.words)}.", param, ctx)
        return word

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(word) for word in self.words if word.startswith(incomplete.lower())]


_ONE = click.IntRange(min=1)
_SHOWN: dict[str, Any] = {"show_default": True}
SEARCH = (
    option("--allocator", default="auto", **_SHOWN, help=f"{', '.join(ALLOCATORS)}, or none for live bytes only."),
    option("--order", type=click.Choice(["free", "pinned"]), default="free", **_SHOWN,
           help="May first runs change order?"),
    option("--save", multiple=True, metavar="PATTERN",
           help="Never compute these again: NAME, op:TYPE, module:NAME; * and ? match."),
    option("--recompute", multiple=True, metavar="PATTERN",
           help="Keep none of these for the backward pass; or none, selective, full, auto."),
    option("--effort", type=float, default=1.0, **_SHOWN, help="Search work, relative to the default."),
    option("--time-limit", type=float, metavar="SECONDS", help="Return the best found by then."),
    option("--seed", type=int, default=0, **_SHOWN),
)  # fmt: skip
STEP = (
    option("--optimizer", type=Word("sgd", "momentum", "adagrad", "rmsprop", "adam", "adamw", "none"),
           help="Of the training step; none leaves gradients as outputs. [the graph's, else sgd]"),
    option("--update", type=Word("per-tensor", "multi-tensor", "fused", "inside-backward"),
           help="How parameters are updated: one by one, all at once with or without a temporary, or each right after"
                " its last gradient. [the graph's]"),
    option("--micro-batches", type=_ONE, default=1, **_SHOWN, help="Gradients accumulate over so many."),
    option("--gradients", type=Word("released", "zeroed"), default="released", **_SHOWN, help="Between iterations."),
    option("--master-weights", is_flag=True,
           help="16-bit parameters have a float32 master, and float32 optimizer states."),
    option("--gradient-dtype", metavar="DTYPE", help="Keep gradients so, as float32 for 16-bit parameters."),
    option("--state-dtype", metavar="DTYPE", help="Keep optimizer states so, as uint8."),
    option("--train", "trained", multiple=True, metavar="PATTERN",
           help="Train these parameters alone: NAME, op:TYPE, module:NAME; * and ? match."),
    option("--freeze", "frozen", multiple=True, metavar="PATTERN",
           help="Do not train these; wins over --train."),
    option("--lowering", is_flag=True,
           help="Convolutions unfold their input (im2col): workspace of N C_in k_h k_w H_out W_out elements."),
    option("--resumed", is_flag=True, help="Optimizer states are there from the first iteration."),
)  # fmt: skip
GRAPH = (
    option("--batch", type=_ONE, help="Batch size, for zoo models and ONNX files."),
    option("--dim", "dims", multiple=True, metavar="NAME=N",
           help="Named dimension of an ONNX file; image, classes of a model."),
    option("--device", metavar="NAME", help="Costs are seconds on this device, as t4 or rtx4090. [a100]"),
    option("--inference", is_flag=True, help="The forward pass alone, without backward and update."),
    option("--option", "settings", multiple=True, metavar="NAME=VALUE",
           help="Of a zoo model, as dtype=bfloat16; zoo lists them."),
)  # fmt: skip
MEMORY = (
    option("--scope", type=click.Choice(["total", "activations"]), default="total",
           help="What the budget covers. [total]"),
    option("--alignment", metavar="BYTES", default="1", help="Every storage is rounded up to it (512 for CUDA). [1]"),
    option("--reserve", metavar="SIZE",
           help="Bytes of the budget to leave unused. [512MiB of a device, for its context; 0 of a size]"),
)  # fmt: skip
FORCE = option("-f", "--force", is_flag=True, help="Overwrite FILE.")
OUTPUT = (option("-o", "--output", metavar="FILE", help="Write the result here."), FORCE)
JSON = option("--json", "as_json", is_flag=True, help="Print one versioned JSON object.")
_FORMS = "GRAPH: a zoo name such as resnet:1001, an ONNX or JSON file, or module:callable"
GRAPH_HELP = f"{_FORMS} (your own code, run to return a graph, or a model of PyTorch with inputs and loss)."


def options_of(*groups: Any) -> Callable[[Command], Command]:
    """A decorator that adds options and tuples of options to a command, in the order given."""

    def add(command: Command) -> Command:
        listed = [one for group in groups for one in (group if isinstance(group, tuple) else (group,))]
        for one in reversed(listed):
            command = one(command)
        return command

    return add


def written(options: dict[str, Any]) -> list[str]:
    """Names of the options that stand on the command line, as people write them."""
    context = click.get_current_context()
    line = click.core.ParameterSource.COMMANDLINE
    names = [name for name in options if context.get_parameter_source(name) is line]
    return [parameter.opts[0].lstrip("-") for parameter in context.command.params if parameter.name in names]
