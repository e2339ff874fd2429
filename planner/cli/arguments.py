"""What GRAPH and its options mean on the command line; everything heavy is imported when it is needed."""

from __future__ import annotations

import os
import sys
from contextlib import redirect_stdout, suppress
from typing import TYPE_CHECKING, Any, Final

import click

from planner import errors
from planner.text import shortened

if TYPE_CHECKING:
    import networkx as nx

    from planner.footprint.calibration import Prediction
    from planner.graph import Graph
    from planner.memory import MemoryModel

MOST_DIGITS: Final = 18  # a longer number counts nothing
#: What has an option of its own, by the name it has in a model's function.
ELSEWHERE: Final = {"batch": "batch", "device": "device", "optimizer": "optimizer", "training": "inference"}


def program_of(text: str, options: dict[str, Any], source: dict[str, Any] | None = None) -> Graph:
    """The program GRAPH names; `source` is filled with the importer's counts."""
    from planner.lowering.schema import lower

    graph: Any = graph_of(text, options)
    if source is not None and not hasattr(graph, "ops"):
        source.update(graph.graph.get("source") or {})
    return lower(graph)


def graph_of(text: str, options: dict[str, Any]) -> nx.DiGraph | Graph:
    """The graph GRAPH names, as its source gives it: a DAG may still lack its backward."""
    given: dict[str, Any] = {name: options[name] for name in ("batch", "device") if options[name] is not None}
    if options["optimizer"] is not None:
        given["optimizer"] = None if options["optimizer"] == "none" else options["optimizer"]
    if options["inference"]:
        given["training"] = False
    if options["dims"]:
        given["dims"] = _dims(options["dims"])
    return _read(text, given, _pairs(options.get("settings", ())))


def _read(text: str, given: dict[str, Any], settings: dict[str, str]) -> Any:
    from planner.lowering.read import read_graph
    from planner.zoo import MODELS, build

    name, colon, _ = text.partition(":")
    if name in MODELS:
        chosen = _chosen(name, given.pop("dims", {}), settings)
        for option in MODELS[name].required:
            if option not in given:
                raise click.UsageError(f"{text} needs --{option}")
        return build(text, **chosen, **given)
    if settings:
        raise click.UsageError(f"--option {next(iter(settings))} is for zoo models; {text!r} is none")
    if os.path.exists(text) or not colon:
        if not os.path.exists(text):
            raise errors.GraphError(f"no file {text!r}, and no zoo model of that name ({', '.join(MODELS)})")
        return read_graph(text, **given)
    return _call(text, given)


def _call(text: str, given: dict[str, Any]) -> Any:
    """The graph that the user's `module:callable` returns; their code runs because they name it."""
    import networkx as nx

    from planner.graph import Graph as Program

    module_name, _, function_name = text.partition(":")
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        with redirect_stdout(sys.stderr):  # what their code prints is no result of ours
            function = _import(module_name, function_name, text)
            graph = function(**given)
    except errors.PlannerError:
        raise
    except (Exception, SystemExit) as error:
        raise errors.GraphError(f"{text!r} failed: {type(error).__name__}: {' '.join(str(error).split())}") from error
    finally:
        with suppress(ValueError):
            sys.path.remove(folder)
    if not isinstance(graph, (nx.Graph, Program)):
        raise errors.GraphError(
            f"{text!r} returned {type(graph).__name__}, expected a networkx.DiGraph or a planner.Graph"
        )
    return graph


def _import(module_name: str, function_name: str, text: str) -> Any:
    from importlib import import_module

    unknown = f"{text!r} is no zoo model, no file, and no module:callable"
    if not module_name or module_name.startswith("."):
        raise errors.GraphError(f"{unknown} (a module is named in full, as package.module)")
    try:
        return getattr(import_module(module_name), function_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise errors.GraphError(f"{unknown} ({' '.join(str(error).split())})") from None


def _chosen(model: str, dims: dict[str, int], settings: dict[str, str]) -> dict[str, Any]:
    """Options of a zoo model that have no option of their own on the command line, as the model's types read them."""
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
        if name in pairs:
            raise click.UsageError(f"--option {shortened(name, 80)} is given twice; give it once")
        pairs[name] = value
    return pairs


def _dims(items: tuple[str, ...]) -> dict[str, int]:
    dims: dict[str, int] = {}
    for item in items:
        name, equals, value = item.rpartition("=")
        digits = value.isascii() and value.isdecimal() and len(value) <= MOST_DIGITS
        if not equals or not name or not digits or int(value) < 1:
            raise click.UsageError(
                f"--dim {shortened(item, 80)!r}: write NAME=VALUE with VALUE an int >= 1, as --dim height=224"
            )
        if name in dims:
            raise click.UsageError(f"--dim {shortened(name, 80)} is given twice; give it once")
        dims[name] = int(value)
    return dims


def step_of(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of the graph, and the arguments of `footprint.estimate`, where its own optimizer is not to be that of
    the graph.
    """
    named = {name: options[name] for name in ("micro_batches", "gradients", "update", "master_weights", "lowering")}
    bare = options["optimizer"] == "none"
    return {**options, "optimizer": "none" if bare else None}, {
        **named,
        "optimizer": None if bare else options["optimizer"],
    }


def prediction_of(text: str, options: dict[str, Any], *, given: list[str]) -> Prediction:
    """What a run of a plan file, or of GRAPH as `estimate` takes it, is predicted to hold; all of it, whatever the
    plan's scope.

    Args:
        given: options on the command line that say which graph, which a plan file does not need.
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

    memory = MemoryModel(
        "total", 1 if options["alignment"] is None else parse_bytes(options["alignment"], what="alignment")
    )
    graph_options, named = step_of(options)
    found = estimate(graph_of(text, graph_options), memory=memory, **named)
    return Prediction(found.graph, found.fingerprint, found.peak_bytes, None, memory.alignment)


def _is_plan(text: str) -> bool:
    """True for a file that says it is a plan; what else may be wrong with it, its reader says."""
    import msgspec

    from planner.plan import FORMAT

    try:
        with open(text, "rb") as file:
            found = msgspec.json.decode(file.read(), type=dict[str, msgspec.Raw]).get("format", msgspec.Raw())
    except (OSError, ValueError, RecursionError):
        return False
    return bytes(found) == msgspec.json.encode(FORMAT)


def memory_of(options: dict[str, Any]) -> MemoryModel:
    from planner.memory import MemoryModel
    from planner.units import parse_bytes

    return MemoryModel(
        options["scope"],
        parse_bytes(options["alignment"], what="alignment"),
        parse_bytes(options["reserve"], what="reserve"),
    )
