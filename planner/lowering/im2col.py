"""Convolutions that unfold their input into a matrix: the workspace that takes."""

from __future__ import annotations

import math

from msgspec.structs import replace

from planner.graph import Graph, Op


def unfolded(graph: Graph) -> Graph:
    """The program with every convolution and its backward holding the matrix as workspace."""
    ops = [replace(op, workspace=op.workspace + im2col_bytes(graph, op)) for op in graph.ops]
    return Graph(ops, name=graph.name)


def im2col_bytes(graph: Graph, op: Op) -> int:
    """Bytes of the matrix a convolution unfolds its input into, N * C_in * k_h * k_w * H_out * W_out elements.

    A 1x1 kernel needs none, and the backward of a convolution needs one of the same size. The rule of thumb unfolds the
    whole batch at once; libraries that unfold image by image need 1/N of it.
    """
    forward = graph.op_named.get(op.name.removesuffix(".bwd")) if op.op == "ConvGrad" else op
    if forward is None or forward.op != "Conv" or len(forward.reads) < 2:
        return 0
    image, weight, made = graph.tensors[forward.reads[0]], graph.tensors[forward.reads[1]], forward.outputs[0]
    if image.shape is None or weight.shape is None or made.shape is None or len(weight.shape) < 3:
        return 0
    kernel = math.prod(weight.shape[2:])
    elements = math.prod(made.shape)
    if kernel == 1 or not elements:
        return 0
    return made.nbytes // elements * made.shape[0] * image.shape[1] * kernel * math.prod(made.shape[2:])
