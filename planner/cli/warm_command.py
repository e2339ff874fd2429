"""The command that compiles every kernel before anybody waits for one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import click

from planner.cli.console import print_json, print_lines, shown
from planner.cli.help_text import Command
from planner.cli.options import JSON, options_of
from planner.cli.progress import sweep_progress
from planner.errors import InfeasibleBudget, KernelCacheError

if TYPE_CHECKING:
    import networkx as nx


@click.command(cls=Command, examples=["planner warm"])
@options_of(JSON)
def warm(as_json: bool) -> None:
    """Compile all kernels into the cache, as for an image or a build: later commands wait for none."""
    from planner.kernels import FOLDER

    if FOLDER is None:
        raise KernelCacheError("compiled kernels are kept nowhere; set NUMBA_CACHE_DIR, and unset NUMBA_DISABLE_JIT")
    parts = dict(questions())
    with sweep_progress("compiling") as progress:
        for done, (name, ask) in enumerate(parts.items()):
            progress(done, len(parts), name)
            ask()
    count = sum(1 for _ in FOLDER.rglob("*.nbi"))
    if as_json:
        print_json("planner-kernels", {"kernels": count, "folder": shown(str(FOLDER))})
    else:
        print_lines(f"{count} compiled kernels in {shown(str(FOLDER))}")


def questions() -> Iterator[tuple[str, Callable[[], object]]]:
    """Small questions by name; all together run every kernel, those of "annealing" and "passes" the slowest to compile.

    A kernel is compiled for the types that it is called with, so that what is compiled here is what others look for.
    """
    import numpy as np

    from planner import mxnet, zoo
    from planner.api import optimize
    from planner.mxnet.nnvm import nnvm
    from planner.packing.intervals import Intervals, sections_of
    from planner.packing.restarts import round_robin

    mxnet.register()
    chain, deep, wide = zoo.chain(30), zoo.chain(20, reads=("in", "out")), _wide()

    def passes() -> None:
        with suppress(InfeasibleBudget):
            optimize(wide, 12, strategy="retention", effort=0.01, least=False)

    def packing() -> None:
        pair = Intervals(*(np.array(column) for column in ([2, 2], [0, 1], [2, 3], [1, 1], [-1, -1])))
        next(round_robin(sections_of(pair), pair.end - pair.start, 2, 0))[0].run(1)

    yield "annealing", partial(optimize, deep, "40%", strategy="retention", allocator=None, effort=0.1)
    yield "passes", passes
    yield "cuts", partial(optimize, deep, "40%", strategy="cuts", effort=0.1)
    for strategy in ("chen-budget", "chain", "binomial"):
        yield strategy, partial(optimize, chain, "50%", strategy=strategy)
    yield "policy", partial(optimize, chain, "50%", strategy="chen-budget", recompute=["full"])
    yield "memonger", partial(optimize, chain, strategy="memonger", allocator=partial(nnvm, colours=2))
    yield "packing", packing


def _wide() -> nx.DiGraph:
    """A graph that needs 21 bytes, of which no single op needs more than 9."""
    import networkx as nx

    graph = nx.DiGraph()
    for name in "abcde":
        graph.add_node(name, nbytes=4, recomputable=False)
    graph.add_node("all", nbytes=1)
    graph.add_edges_from((name, "all", {"reads": (0,) if name == "a" else ()}) for name in "abcde")
    for name in "abcde":
        graph.add_node(f"{name}.end", nbytes=1)
        graph.add_edges_from([("all", f"{name}.end"), (name, f"{name}.end")])
    return graph
