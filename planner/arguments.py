"""What GRAPH and its options mean on the command line; everything heavy is imported when it is needed."""

from __future__ import annotations

import os
import sys
from contextlib import redirect_stdout, suppress
from typing import TYPE_CHECKING, Any, Final

import click

from planner import errors

if TYPE_CHECKING:
    from planner.graph import Graph
    from planner.memory import MemoryModel

MOST_DIGITS: Final = 18  # a longer number counts nothing


def program_of(text: str, options: dict[str, Any], source: dict[str, Any] | None = None) -> Graph:
    """The program GRAPH names; `source` is filled with the importer's counts."""
    from planner.lowering.schema import lower

    given: dict[str, Any] = {name: options[name] for name in ("batch", "device") if options[name] is not None}
    if options["optimizer"] is not None:
        given["optimizer"] = None if options["optimizer"] == "none" else options["optimizer"]
    if options["inference"]:
        given["training"] = False
    if options["dims"]:
        given["dims"] = _dims(options["dims"])
    graph = _read(text, given)
    if source is not None and not hasattr(graph, "ops"):
        source.update(graph.graph.get("source") or {})
    return lower(graph)


def _read(text: str, given: dict[str, Any]) -> Any:
    from planner.lowering.files import read_graph
    from planner.zoo import MODELS, build

    name, colon, _ = text.partition(":")
    if name in MODELS:
        for option in ("spec", *given):
            if option in given.get("dims", {}):
                raise click.UsageError(f"--dim {option} is no dimension" + (f"; write --{option}" if option in ("batch", "device") else ""))
        for option in MODELS[name].required:
            if option not in given:
                raise click.UsageError(f"{text} needs --{option}")
        return build(text, **given.pop("dims", {}), **given)
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
        raise errors.GraphError(f"{text!r} returned {type(graph).__name__}, expected a networkx.DiGraph or a planner.Graph")
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


def _dims(items: tuple[str, ...]) -> dict[str, int]:
    dims: dict[str, int] = {}
    for item in items:
        name, equals, value = item.rpartition("=")
        digits = value.isascii() and value.isdecimal() and len(value) <= MOST_DIGITS
        if not equals or not name or not digits or int(value) < 1:
            shown = item if len(item) <= 80 else f"{item[:79]}…"
            raise click.UsageError(f"--dim {shown!r}: write NAME=VALUE with VALUE an int >= 1, as --dim height=224")
        dims[name] = int(value)
    return dims


def memory_of(options: dict[str, Any]) -> MemoryModel:
    from planner.memory import MemoryModel
    from planner.units import parse_bytes

    return MemoryModel(
        options["scope"],
        parse_bytes(options["alignment"], what="alignment"),
        parse_bytes(options["reserve"], what="reserve"),
    )
