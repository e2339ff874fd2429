"""The meaning of GRAPH and its options on the command line; heavy modules are imported when they are needed."""

from __future__ import annotations

import os
import sys
from contextlib import redirect_stdout, suppress
from typing import TYPE_CHECKING, Any, Final

import click

from planner import errors
from planner.cli.options import written
from planner.text import shortened

if TYPE_CHECKING:
    import networkx as nx

    from planner.footprint.calibration import Prediction
    from planner.graph import Graph
    from planner.memory import MemoryModel
    from planner.training_step import TrainingStep

MOST_DIGITS: Final = 18  # of a number on the command line
#: Arguments of a model's function that have an option of their own, and that option.
ELSEWHERE: Final = {"batch": "batch", "device": "device", "optimizer": "optimizer", "training": "inference"}
#: Names of the options that make a `TrainingStep`.
STEP_OPTIONS: Final = (
    "optimizer", "update", "micro_batches", "gradients", "master_weights", "gradient_dtype", "state_dtype", "trained",
    "frozen", "lowering", "resumed",
)  # fmt: skip


def program_of(text: str, options: dict[str, Any], source: dict[str, Any] | None = None) -> Graph:
    """The program that GRAPH and the step's options name; `source` is filled with the importer's counts."""
    from planner.lowering.step import with_step

    graph: Any = graph_of(text, options)
    if source is not None and not hasattr(graph, "ops"):
        source.update(graph.graph.get("source") or {})
    return with_step(graph, step_of(options))


def graph_of(text: str, options: dict[str, Any]) -> nx.DiGraph | Graph:
    """The graph that GRAPH names, before the step of `step_of` is applied to it."""
    given: dict[str, Any] = {name: options[name] for name in ("batch", "device") if options[name] is not None}
    step = step_of(options)
    if options["inference"]:
        said = written({name: True for name in STEP_OPTIONS if options[name]})
        if said:
            raise click.UsageError(f"--inference has no backward pass and no update, so no --{said[0]}")
        given["training"] = False
    elif step is not None:
        given["training"] = "forward"  # the verb differentiates it
    if options["dims"]:
        given["dims"] = _dims(options["dims"])
    return _read(text, given, _pairs(options.get("settings", ())), trained=options["trained"])


def step_of(options: dict[str, Any]) -> TrainingStep | None:
    """The training step that the options describe; None where none is given: the graph as it is."""
    from planner.training_step import TrainingStep

    frozen = (f"!{pattern}" for pattern in options["frozen"])
    fields = {name: options[name] for name in STEP_OPTIONS if name not in ("trained", "frozen")}
    step = TrainingStep(**fields, trainable=(*options["trained"], *frozen))
    return None if step == TrainingStep() else step


def _read(text: str, given: dict[str, Any], settings: dict[str, str], *, trained: tuple[str, ...]) -> Any:
    from planner.zoo import opened
    from planner.zoo.catalogue import find

    named = find(text)
    if named is not None:
        chosen = _chosen(named.name, given.pop("dims", {}), settings)
        for option in named.model.required:
            if option not in given:
                raise click.UsageError(f"{text} needs --{option}")
        return opened(text, **chosen, **given)
    if settings:
        raise click.UsageError(f"--option {next(iter(settings))} is for zoo models; {text!r} is none")
    if os.path.exists(text) or ":" not in text:
        from planner.lowering.onnx.model_file import FreeDimensions

        try:
            return opened(text, trainable=trained, **given)
        except FreeDimensions as error:
            raise error.told(text, command_line=True) from None
    made = call_of(text, {name: value for name, value in given.items() if value != "forward"})
    return _step_of_model(text, made, given) if isinstance(made, tuple) else made


def _step_of_model(text: str, made: tuple[Any, ...], given: dict[str, Any]) -> nx.DiGraph:
    """The step of a model of PyTorch; one that a `TrainingStep` rewrites ends with updates."""
    if given.get("training") is False:
        raise click.UsageError(f"--inference: the step of {text!r} is forward and backward; there is no other")
    from planner import torch

    model, inputs, loss = made
    stepped = "sgd" if given.get("training") == "forward" else None
    graph: nx.DiGraph = torch.from_torch(model, inputs, loss=loss, optimizer=stepped, device=given.get("device"))
    return graph


def call_of(text: str, given: dict[str, Any]) -> Any:
    """What the user's `module:callable` returns; that code runs because the user names it.

    It is a graph, or (model, inputs) or (model, inputs, loss) of PyTorch, which come back as three.
    """
    import networkx as nx

    from planner.graph import Graph as Program

    module_name, _, function_name = text.partition(":")
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        with redirect_stdout(sys.stderr):  # the user's code may print, and standard output is for results
            function = _import(module_name, function_name, text)
            graph = function(**_taken(function, given))
    except errors.PlannerError:
        raise
    except (Exception, SystemExit) as error:
        raise errors.GraphError(f"{text!r} failed: {type(error).__name__}: {' '.join(str(error).split())}") from error
    finally:
        with suppress(ValueError):
            sys.path.remove(folder)
    if isinstance(graph, tuple) and len(graph) in (2, 3) and callable(graph[0]):
        return (*graph, None)[:3]
    if not isinstance(graph, (nx.Graph, Program)):
        found, forms = type(graph).__name__, "a networkx.DiGraph, a planner.Graph, or (model, inputs, loss) of PyTorch"
        raise errors.GraphError(f"{text!r} returned {found}, expected {forms}")
    return graph


def _taken(function: Any, given: dict[str, Any]) -> dict[str, Any]:
    """The options as the user's function takes them: a model need not know what device its costs are for."""
    from inspect import Parameter, signature

    try:
        known = signature(function).parameters
    except (TypeError, ValueError):
        return given
    takes_all = any(each.kind is Parameter.VAR_KEYWORD for each in known.values())
    return {name: value for name, value in given.items() if takes_all or name in known or name != "device"}


def _import(module_name: str, function_name: str, text: str) -> Any:
    from importlib import import_module

    from planner.zoo.catalogue import hint, near

    meant = f"; {hint(text)}" if near(text) else ""
    unknown = f"{text!r} is no zoo model, no file, and no module:callable{meant}"
    if not module_name or module_name.startswith("."):
        raise errors.GraphError(f"{unknown} (a module is named in full, as package.module)")
    try:
        return getattr(import_module(module_name), function_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise errors.GraphError(f"{unknown} ({' '.join(str(error).split())})") from None


def _chosen(model: str, dims: dict[str, int], settings: dict[str, str]) -> dict[str, Any]:
    """Arguments of a zoo model from `--dim` and `--option`, read by the model's types."""
    from planner.zoo import MODELS

    known = MODELS[model].typed_options
    others = ", ".join(str(option) for name, option in known.items() if name not in ELSEWHERE) or "none"
    for way, name in (*(("dim", name) for name in dims), *(("option", name) for name in settings)):
        if name in ELSEWHERE:
            raise click.UsageError(f"--{way} {name} is given in a way of its own; write --{ELSEWHERE[name]}")
        if name not in known:
            raise click.UsageError(f"--{way} {shortened(name, 80)}: {model} has no such option; it has {others}")
    for name in dims:
        if known[name].type != "int":
            raise click.UsageError(f"--dim {name} is no dimension; write --option {known[name]}")
        if name in settings:
            raise click.UsageError(f"--dim {name} and --option {name} are one and the same; give one")
    chosen: dict[str, Any] = dict(dims)
    for name, value in settings.items():
        try:
            chosen[name] = known[name].parse(value)
        except ValueError as error:
            raise click.UsageError(f"--option {name}={shortened(value, 80)}: {name} of {model} is {error}") from None
    return chosen


def _pairs(items: tuple[str, ...]) -> dict[str, str]:
    """NAME=VALUE by name, each name once."""
    pairs: dict[str, str] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise click.UsageError(f"--option {shortened(item, 80)!r}: write NAME=VALUE, as --option dtype=bfloat16")
        _put(pairs, name, value, option="option")
    return pairs


def _dims(items: tuple[str, ...]) -> dict[str, int]:
    """NAME=N by name, each name once."""
    dims: dict[str, int] = {}
    for item in items:
        name, equals, value = item.rpartition("=")
        digits = value.isascii() and value.isdecimal() and len(value) <= MOST_DIGITS
        if not equals or not name or not digits or int(value) < 1:
            form = "write NAME=VALUE with VALUE an int >= 1, as --dim height=224"
            raise click.UsageError(f"--dim {shortened(item, 80)!r}: {form}")
        _put(dims, name, int(value), option="dim")
    return dims


def _put(table: dict[str, Any], name: str, value: Any, *, option: str) -> None:
    if name in table:
        raise click.UsageError(f"--{option} {shortened(name, 80)} is given twice; give it once")
    table[name] = value


def prediction_of(text: str, options: dict[str, Any], *, given: list[str]) -> Prediction:
    """The predicted memory of a run of a plan file, or of GRAPH as for `estimate`; in scope "total" for any plan.

    Args:
        given: options on the command line that choose a graph; a plan file holds its own.
    """
    from planner.footprint.calibration import Prediction
    from planner.memory import MemoryModel

    if _is_plan(text):
        if given:
            raise click.UsageError(f"--{given[0]} is for a graph; {text!r} is a plan, which holds its own")
        from planner.plan import load
        from planner.simulator import simulate

        plan = load(text)
        own = simulate(plan.graph, plan.schedule, memory=plan.memory, allocation=plan.allocation)
        memory = MemoryModel("total", plan.memory.alignment)
        whole = own if plan.memory.scope == "total" else simulate(plan.graph, plan.schedule, memory=memory)
        arena_bytes = None if own.arena_bytes is None else own.arena_bytes + whole.resident_bytes - own.resident_bytes
        return Prediction(plan.graph.name, plan.graph.fingerprint, whole.peak_bytes, arena_bytes, memory.alignment)
    from planner.footprint.estimate import estimate
    from planner.units import parse_bytes

    alignment = 1 if options["alignment"] is None else parse_bytes(options["alignment"], what="alignment")
    memory = MemoryModel("total", alignment)
    found = estimate(graph_of(text, options), step=step_of(options), memory=memory)
    return Prediction(found.graph, found.fingerprint, found.peak_bytes, None, memory.alignment)


def _is_plan(text: str) -> bool:
    """True for a file of a plan's format; its reader finds whatever else is wrong with it."""
    import msgspec

    from planner.files import refuse_larger
    from planner.plan import FORMAT

    try:
        with open(text, "rb") as file:
            refuse_larger(file, f"file {text!r}", errors.PlanFileError)
            found = msgspec.json.decode(file.read(), type=dict[str, msgspec.Raw]).get("format", msgspec.Raw())
    except (OSError, ValueError, RecursionError):
        return False
    return bytes(found) == msgspec.json.encode(FORMAT)


def memory_of(options: dict[str, Any]) -> MemoryModel:
    """The memory model that scope, alignment and reserve describe."""
    from planner.memory import MemoryModel
    from planner.units import parse_bytes

    reserve = None if options["reserve"] is None else parse_bytes(options["reserve"], what="reserve")
    return MemoryModel(options["scope"], parse_bytes(options["alignment"], what="alignment"), reserve)
