"""The operator table: what each op costs, may overwrite, and what its gradients read.

The one place that looks a row up. `onnx_rows` has the rows of ONNX, `aten_rows` those of PyTorch; what a row says is in
`rows`. An op without a row is an error, never a guess.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from planner.errors import GraphError
from planner.lowering.devices import Device, roofline_seconds
from planner.lowering.operators.aten_rows import ATEN_OPERATORS, ATEN_REFUSED
from planner.lowering.operators.onnx_rows import ONNX_OPERATORS, REFUSED
from planner.lowering.operators.rows import DTYPE_BYTES, Gradient, Operator, Ref, TensorType, is_float

__all__ = [
    "DTYPE_BYTES", "OPERATORS", "Gradient", "Operator", "Ref", "TensorType", "attributes", "find_row", "is_float",
    "operator", "output_types", "refusal", "sizes_of",
]  # fmt: skip

OPERATORS: Final[Mapping[str, Operator]] = MappingProxyType({**ONNX_OPERATORS, **ATEN_OPERATORS})


def _bare(op: str) -> str:
    """An op of PyTorch without its overload: `aten.add` of `aten.add.Tensor`."""
    return ".".join(op.split(".")[:2]) if op.startswith("aten.") else op


def find_row(op: str | None) -> Operator | None:
    """The row of an op type, or None. Overloads of PyTorch share a row, except a few with rows of their own."""
    return None if op is None else OPERATORS.get(op) or OPERATORS.get(_bare(op))


def refusal(op: str) -> str | None:
    """Why an op type cannot have a row, None if that is not known."""
    return REFUSED.get(op) or ATEN_REFUSED.get(_bare(op))


def operator(op: str, *, node: str, outputs: int = 1) -> Operator:
    """The row of an op type, in the form that has so many outputs.

    Args:
        op: operator type, named as in ONNX, or as PyTorch prints it: "aten.add.Tensor".
        node: named in the error.
        outputs: number of outputs of the node.
    Raises:
        GraphError: no row for this op type, or more outputs than it has.

    >>> operator("Relu", node="r1").gradient(0).reads
    (('out', 0),)
    """
    row = find_row(op)
    if row is None:
        reason = refusal(op)
        remedy = "; give the node saves=, what its backward reads, e.g. (('in', 0),)"
        because = remedy if reason is None else f": {reason}"
        raise GraphError(f"node {node!r}: no rule for op type {op!r}{because}")
    if row.fewer is not None and outputs < row.outputs:
        row = row.fewer
    if outputs > row.outputs:
        raise GraphError(f"node {node!r}: op type {op!r} has at most {row.outputs} outputs, not {outputs}")
    return row


def sizes_of(
    op: str, *, node: str, inputs: Sequence[TensorType], outputs: int = 1, params: Mapping[str, Any] | None = None
) -> tuple[TensorType, ...]:
    """Types of the outputs of an op, in the form that has so many.

    Args:
        op: operator type.
        node: named in errors.
        inputs: types of the tensors it reads.
        params: its other arguments, named as in its standard.
    Raises:
        GraphError: no row, a parameter that is missing, or a row whose sizes only the node itself can say.

    >>> sizes_of("MatMul", node="m", inputs=[TensorType((2, 3)), TensorType((3, 5))])
    (TensorType(shape=(2, 5), dtype='float32'),)
    """
    row = operator(op, node=node, outputs=outputs)
    if row.sizes is None:
        raise GraphError(f"node {node!r}: the sizes of {op!r} do not follow from its inputs; give shape= and nbytes=")
    try:
        return row.sizes(inputs, params or {})
    except (KeyError, IndexError, ValueError) as error:
        what = f"parameter {error} is missing" if isinstance(error, KeyError) else "its inputs do not fit together"
        raise GraphError(f"node {node!r}: no size follows for {op!r}: {what}") from None


def attributes(
    op: str,
    *,
    node: str,
    inputs: Sequence[TensorType],
    outputs: Sequence[TensorType],
    device: Device,
    params: Mapping[str, Any] | None = None,
    phase: str = "forward",
) -> dict[str, Any]:
    """Node attributes of an op of these types: sizes, FLOPs, seconds, workspace, and what it may or does overwrite.

    Args:
        op: operator type.
        node: named in errors.
        inputs, outputs: types, arguments such as a target shape left out.
        params: what FLOPs need beside types, named as in ONNX: kernel_shape, transA, size.
    Raises:
        GraphError: no rule for the op type, or an unknown dtype.

    >>> from planner.lowering.devices import device
    >>> x = TensorType((1, 8))
    >>> attributes("Relu", node="r", inputs=[x], outputs=[x], device=device("a100"))["inplace"]
    ((0, 0),)
    """
    row = operator(op, node=node, outputs=len(outputs))
    if row.inputs is not None and len(inputs) > row.inputs:
        raise GraphError(f"node {node!r}: the rule of {op!r} is for at most {row.inputs} inputs, not {len(inputs)}")
    given = params or {}
    flops = row.flops(inputs, outputs, given)
    if row.moved is not None:
        moved = row.moved(inputs, outputs, given)
    else:
        moved = 0 if row.view else sum(value.nbytes for value in (*outputs, *inputs))
    seconds = roofline_seconds(device, flops=flops, bytes_moved=moved, dtype=outputs[0].dtype)
    found: dict[str, Any] = {"op": op, **output_types(outputs), "flops": flops, "cost": seconds, "phase": phase}
    if row.view:
        found["view"] = tuple((0, k) for k in range(len(outputs)))
    if row.workspace is not None and (nbytes := row.workspace(inputs, outputs, given)):
        found["workspace"] = nbytes
    overwritten = range(len(inputs)) if row.variadic and row.inplace else row.inplace
    pairs = tuple((i, 0) for i in overwritten if i < len(inputs) and inputs[i] == outputs[0])
    if pairs:
        found["inplace"] = pairs
    try:
        updates = row.update_pairs(len(inputs), len(outputs))
    except ValueError as error:
        raise GraphError(f"node {node!r}: op type {op!r}: {error}") from None
    if updates:
        found["updates"] = updates
    if not row.recomputable or (row.draws(given) and len(inputs) <= (row.state or 0)):
        found["recomputable"] = False
    return found


def output_types(outputs: Sequence[TensorType]) -> dict[str, Any]:
    """`nbytes`, `shape` and `dtype` of a node: plain for one output, tuples for several."""
    columns = {key: tuple(getattr(value, key) for value in outputs) for key in ("nbytes", "shape", "dtype")}
    return {key: column[0] if len(column) == 1 else column for key, column in columns.items()}
