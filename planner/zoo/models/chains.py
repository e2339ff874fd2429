"""The chain of equal layers of the literature."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import networkx as nx

from planner.errors import GraphError
from planner.lowering.assembly import Assembly, Value
from planner.text import whole_number


def chain(
    n: int,
    *,
    reads: Sequence[Literal["in", "out"]] = ("in",),
    nbytes: int = 1,
    cost: float = 1.0,
    input_nbytes: int = 0,
) -> nx.DiGraph:
    """Forward `f1..fn`, the loss gradient `g{n}`, and backward `g{n-1}..g0`, all of one size and cost.

    Several unit chains are in use in the literature; they differ in what a backward reads beside the gradient above it.

    Args:
        n: layers.
        reads: "in": backward i reads the layer's input `f{i-1}` (of the first: `x`); "out": its output `f{i}`.
        nbytes: bytes of every value but the input.
        cost: of every op.
        input_nbytes: bytes of the resident input.
    Raises:
        GraphError: an argument out of range.
    Source: reads=("in",) is Griewank and Walther 2000, with the gradients counted too.

    >>> list(chain(2))
    ['x', 'f1', 'f2', 'g2', 'g1', 'g0']
    """
    n = whole_number("chain", "n", n, least=1)
    nbytes = whole_number("chain", "nbytes", nbytes, least=0)
    input_nbytes = whole_number("chain", "input_nbytes", input_nbytes, least=0)
    if not isinstance(cost, (int, float)) or isinstance(cost, bool) or not 0 <= cost < math.inf:
        raise GraphError(f"chain: cost is {cost!r}, expected a number >= 0")
    wanted = tuple(reads) if isinstance(reads, (list, tuple)) else (reads,)
    if not wanted or not set(wanted) <= {"in", "out"}:
        raise GraphError(f"chain: reads is {reads!r}, expected ('in',), ('out',) or ('in', 'out')")
    draft = Assembly(name=f"chain:{n}")
    values = [draft.add("x", nbytes=input_nbytes, kind="input", cost=0.0)]
    for i in range(1, n + 1):
        values.append(draft.add(f"f{i}", [values[-1]], op="Layer", nbytes=nbytes, cost=float(cost), phase="forward"))
    top = draft.add(f"g{n}", [values[n]], op="LossGrad", nbytes=nbytes, cost=float(cost), phase="loss")
    for i in range(n, 0, -1):
        saved: list[Value] = [values[i - 1]] if "in" in wanted else []
        saved += [values[i]] if "out" in wanted else []
        top = draft.add(f"g{i - 1}", [top, *saved], op="LayerGrad", nbytes=nbytes, cost=float(cost), phase="backward")
    return draft.graph
