"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from planner.names import ALLOCATORS, STRATEGIES

Command = TypeVar("Command", bound=Callable[..., Any])

STRATEGY_NAMES = ", ".join(STRATEGIES)
SEARCH = (
    click.option(
        "--allocator", default="auto", show_default=True, help=f"{', '.join(ALLOCATORS)}, or none for live bytes only."
    ),
    click.option(
        "--order",
        type=click.Choice(["free", "pinned"]),
        default="free",
        show_default=True,
        help="May first runs change order?",
    ),
    click.option(
        "--save",
        multiple=True,
        metavar="PATTERN",
        help="Never compute these again: NAME, op:TYPE, module:NAME; * and ? match.",
    ),
    click.option(
        "--recompute",
        multiple=True,
        metavar="PATTERN",
        help="Keep none of these for the backward pass; or none, selective, full, auto.",
    ),
    click.option("--effort", type=float, default=1.0, show_default=True, help="Search work, relative to the default."),
    click.option("--time-limit", type=float, metavar="SECONDS", help="Return the best found by then."),
    click.option("--seed", type=int, default=0, show_default=True),
)
GRAPH = (
    click.option("--batch", type=click.IntRange(min=1), help="Batch size, for zoo models and ONNX files."),
    click.option(
        "--dim",
        "dims",
        multiple=True,
        metavar="NAME=N",
        help="Named dimension of an ONNX file; image, classes of a model.",
    ),
    click.option(
        "--optimizer",
        type=click.Choice(["sgd", "momentum", "adam", "none"]),
        help="Optimizer of the training step. [sgd]",
    ),
    click.option("--device", metavar="NAME", help="Costs are seconds on this device. [a100]"),
    click.option("--inference", is_flag=True, help="The forward pass alone, without backward and update."),
    click.option(
        "--option",
        "settings",
        multiple=True,
        metavar="NAME=VALUE",
        help="Of a zoo model, as dtype=bfloat16; zoo lists them.",
    ),
)
STEP = (
    click.option(
        "--optimizer",
        type=click.Choice(["sgd", "momentum", "adagrad", "rmsprop", "adam", "adamw", "none"]),
        help="[the graph's]",
    ),
    click.option(
        "--micro-batches",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="Gradients accumulate over so many.",
    ),
    click.option(
        "--gradients",
        type=click.Choice(["released", "zeroed"]),
        default="released",
        show_default=True,
        help="Between iterations.",
    ),
    click.option(
        "--update",
        type=click.Choice(["fused", "per-tensor", "multi-tensor"]),
        help="Temporaries of the update. [the graph's]",
    ),
    click.option(
        "--master-weights", is_flag=True, help="16-bit parameters have a float32 master, and float32 optimizer states."
    ),
    click.option(
        "--lowering",
        is_flag=True,
        help="Convolutions unfold their input (im2col): workspace of N C_in k_h k_w H_out W_out elements.",
    ),
)
MEMORY = (
    click.option(
        "--scope", type=click.Choice(["total", "activations"]), default="total", help="What the budget covers. [total]"
    ),
    click.option(
        "--alignment", metavar="BYTES", default="1", help="Every storage is rounded up to it (512 for CUDA). [1]"
    ),
    click.option("--reserve", metavar="SIZE", default="0", help="Bytes of the budget to leave unused. [0]"),
)
FORCE = click.option("-f", "--force", is_flag=True, help="Overwrite FILE.")
OUTPUT = (click.option("-o", "--output", metavar="FILE", help="Write the result here."), FORCE)
JSON = click.option("--json", "as_json", is_flag=True, help="Print one versioned JSON object.")
GRAPH_HELP = (
    "GRAPH: a zoo name such as resnet:1001, an ONNX or JSON file, or module:callable "
    "(your own code, run to return a graph)."
)


def options_of(*groups: Any) -> Callable[[Command], Command]:
    def add(command: Command) -> Command:
        for option in reversed(
            [option for group in groups for option in (group if isinstance(group, tuple) else (group,))]
        ):
            command = option(command)
        return command

    return add


def written(options: dict[str, Any]) -> list[str]:
    """Those of the options that were written on the command line, as people write them."""
    context = click.get_current_context()
    written = [name for name in options if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE]
    return [parameter.opts[0].lstrip("-") for parameter in context.command.params if parameter.name in written]
