"""Presets: the ops of a training graph that a word stands for."""

from __future__ import annotations

import re
from typing import Final

from planner.analysis.candidates import equal_cuts
from planner.analysis.evaluator import Evaluator
from planner.errors import PlannerError
from planner.graph import Graph, Op

#: Products with a parameter are kept: their arithmetic grows faster than their bytes.
_PRODUCTS: Final = frozenset({
    "conv", "conv1d", "conv2d", "conv3d", "convtranspose", "convolution", "deconvolution", "deformconv",
    "gemm", "matmul", "fullyconnected", "linear", "mm", "addmm", "bmm", "baddbmm", "mv", "einsum",
})  # fmt: skip
#: Kept whatever they read: fused attention stores no scores, and a recurrent cell is many products.
_WHOLE: Final = re.compile(
    r"(fused|multihead)?attention|_?scaled_dot_product_.*|_flash_attention.*|_efficient_attention.*|lstm|gru|rnn"
)
#: Sums and concatenations of branches are kept: a recomputed one would need the one before it, back to the input.
_JOINS: Final = frozenset({"add", "sum", "elemwise_add", "elementwise_add", "_plus", "add_n", "concat", "cat"})


def selective(graph: Graph) -> tuple[str, ...]:
    """The cheap ops of the forward part: all but products with weights, fused attention, recurrent cells and joins.

    In a convolution net these are normalisation, activation and pooling, as Chen et al. drop them; in a transformer
    normalisation, activation, dropout and the core of plain attention, its products of activations included.

    Raises:
        PlannerError: no op of the forward part has a type.
    Source: Chen et al. 2016, 4.1 (drop results of low-cost operations) and Korthikanti et al. 2022, section 5
        (selective activation recomputation). Ours differs: residual sums are kept, so that no chain of them is
        recomputed at once.
    """
    weights: set[str] = set()  # parameters, and values made of parameters alone
    chosen = []
    types = False
    for op in graph.ops:
        if op.resident:
            weights.update(t.name for t in op.outputs if op.kind == "parameter")
            continue
        if op.reads and all(value in weights for value in op.reads):
            weights.update(t.name for t in op.outputs)
        if op.phase in ("backward", "update", "loss") or op.op is None:
            continue
        types = True
        if not _kept(graph, op, weights):
            chosen.append(op.name)
    if not types:
        raise PlannerError("recompute: preset 'selective' goes by op types, and no op of this graph has one")
    return tuple(chosen)


def _kept(graph: Graph, op: Op, weights: set[str]) -> bool:
    kinds = set(re.split(r"[.:/]+", (op.op or "").lower()))
    if any(_WHOLE.fullmatch(kind) for kind in kinds):
        return True
    if kinds & _PRODUCTS:
        return any(value in weights for value in op.reads)
    joined = {value for value in op.reads if value not in weights and not graph.producer[value].resident}
    return bool(kinds & _JOINS) and len(joined) > 1


def full(evaluator: Evaluator) -> tuple[str, ...]:
    """Every op of the forward part but those at the boundaries of segments.

    Boundaries are the graph's `stage` marks; without marks, the candidate cuts nearest to the ends of about sqrt(n)
    segments of equal bytes, n being the number of candidates.

    Source: Chen et al. 2016, 4.2; full activation checkpointing of Megatron-LM and PyTorch, layer by layer.
    """
    graph = evaluator.graph
    part = evaluator.forward_part()
    if part is None:
        return ()
    marked = any(op.stage is not None for op in graph.ops)
    cuts = range(len(part.members)) if marked else equal_cuts(part)
    kept = {row for cut in cuts for row in part.members[cut]}
    return tuple(op.name for row, op in enumerate(graph.ops) if part.droppable[row] and row not in kept)
