"""Options and arguments that several commands share, and what a shell completes them with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from planner.cli.console import set_loudness
from planner.cli.help_text import last_section, section
from planner.names import ALLOCATORS, STRATEGIES
from planner.text import nearest

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

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
        return _items(word for word in self.words if word.startswith(incomplete.lower()))


class Named(click.ParamType):  # type: ignore[type-arg]
    """Text that a shell completes with names; the command itself says which it does not know.

    Args:
        names: of them all; asked for when a shell asks.
        listed: several may be given, with commas between.
        files: a file may be named too.
    """

    name = "text"

    def __init__(self, names: Callable[[], Iterable[str]], *, listed: bool = False, files: bool = False) -> None:
        self.names, self.listed, self.files = names, listed, files

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        head, comma, last = incomplete.rpartition(",") if self.listed else ("", "", incomplete)
        found = _items(f"{head}{comma}{name}" for name in self.names() if name.startswith(last.lower()))
        return [*found, *_items([incomplete], type="file")] if self.files else found


def _items(words: Iterable[str], *, type: str = "plain") -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(word, type=type) for word in words]


def _model_names() -> list[str]:
    from planner.zoo.catalogue import ALIASES, MODELS

    return [*ALIASES, *(name if model.parse is None else f"{name}:" for name, model in MODELS.items())]


def _device_names() -> list[str]:
    from planner.lowering.devices import DEVICES

    return list(DEVICES)


#: Arguments and options that a shell completes.
FILE = click.Path()
MODEL = Named(_model_names, files=True)
DEVICE = Named(_device_names)
SIZE = Named(_device_names, listed=True)
STRATEGY = Named(lambda: STRATEGIES)
STRATEGY_LIST = Named(lambda: ("all", *STRATEGIES), listed=True)
PLAN_ARGUMENT = click.argument("plan", type=FILE)
GRAPH_ARGUMENT = click.argument("graph", type=MODEL)


_ONE = click.IntRange(min=1)
_SHOWN: dict[str, Any] = {"show_default": True}
_search, _step, _graph, _memory = map(section, ("Search", "Training step", "Graph", "Memory"))
SEARCH = (
    _search("--allocator", type=Named(lambda: (*ALLOCATORS, "none")), default="auto", **_SHOWN,
            help=f"{', '.join(ALLOCATORS)}, or none for live bytes only."),
    _search("--order", type=click.Choice(["free", "pinned"]), default="free", **_SHOWN,
            help="May first runs change order?"),
    _search("--save", multiple=True, metavar="PATTERN",
            help="Never compute these again: NAME, op:TYPE, module:NAME; * and ? match."),
    _search("--recompute", multiple=True, metavar="PATTERN",
            help="Keep none of these for the backward pass; or none, selective, full, auto."),
    _search("--effort", type=float, default=1.0, **_SHOWN, help="Search work, relative to the default."),
    _search("--time-limit", type=float, metavar="SECONDS", help="Return the best found by then."),
    _search("--seed", type=int, default=0, **_SHOWN),
)  # fmt: skip
STEP = (
    _step("--optimizer", type=Word("sgd", "momentum", "adagrad", "rmsprop", "adam", "adamw", "none"),
          help="Of the training step; none leaves gradients as outputs. [the graph's, else sgd]"),
    _step("--update", type=Word("per-tensor", "multi-tensor", "fused", "inside-backward"),
          help="How parameters are updated: one by one, all at once with or without a temporary, or each right after"
               " its last gradient. [the graph's]"),
    _step("--micro-batches", type=_ONE, default=1, **_SHOWN, help="Gradients accumulate over so many."),
    _step("--gradients", type=Word("released", "zeroed"), default="released", **_SHOWN, help="Between iterations."),
    _step("--master-weights", is_flag=True,
          help="16-bit parameters have a float32 master, and float32 optimizer states."),
    _step("--gradient-dtype", metavar="DTYPE", help="Keep gradients so, as float32 for 16-bit parameters."),
    _step("--state-dtype", metavar="DTYPE", help="Keep optimizer states so, as uint8."),
    _step("--train", "trained", multiple=True, metavar="PATTERN",
          help="Train these parameters alone: NAME, op:TYPE, module:NAME; * and ? match."),
    _step("--freeze", "frozen", multiple=True, metavar="PATTERN",
          help="Do not train these; wins over --train."),
    _step("--lowering", is_flag=True,
          help="Convolutions unfold their input (im2col): workspace of N C_in k_h k_w H_out W_out elements."),
    _step("--resumed", is_flag=True, help="Optimizer states are there from the first iteration."),
)  # fmt: skip
GRAPH = (
    _graph("--batch", type=_ONE, help="Batch size, for zoo models and ONNX files."),
    _graph("--dim", "dims", multiple=True, metavar="NAME=N",
           help="Named dimension of an ONNX file; image, classes of a model."),
    _graph("--device", type=DEVICE, metavar="NAME", help="Costs are seconds on this device, as t4 or rtx4090. [a100]"),
    _graph("--inference", is_flag=True, help="The forward pass alone, without backward and update."),
    _graph("--option", "settings", multiple=True, metavar="NAME=VALUE",
           help="Of a zoo model, as dtype=bfloat16; planner zoo NAME lists them."),
)  # fmt: skip
MEMORY = (
    _memory("--scope", type=click.Choice(["total", "activations"]), default="total",
            help="What the budget covers. [total]"),
    _memory("--alignment", metavar="BYTES", default="1", help="Every storage is rounded up to it (512 for CUDA). [1]"),
    _memory("--reserve", metavar="SIZE",
            help="Bytes of the budget to leave unused. [512MiB of a device, for its context; 0 of a size]"),
)  # fmt: skip
FORCE = last_section("-f", "--force", is_flag=True, help="Overwrite FILE.")
OUTPUT = (last_section("-o", "--output", type=FILE, metavar="FILE", help="Write the result here."), FORCE)
#: What every command has.
JSON = (
    last_section("--json", "as_json", is_flag=True, help="Print one versioned JSON object, with exact bytes."),
    last_section("-q", "--quiet", is_flag=True, expose_value=False, callback=set_loudness(-1),
                 help="Print the answer in one sentence, and no progress."),
    last_section("-v", "--verbose", is_flag=True, expose_value=False, callback=set_loudness(1),
                 help="Print each phase and its time on standard error."),
)  # fmt: skip
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
