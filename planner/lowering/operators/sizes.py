"""Types of the outputs of an op, from those of its inputs and its parameters.

Parameters have the names of their standard: `axes`, `keepdims`, `kernel_shape` in ONNX, and the names of its constant
inputs (`shape`, `repeats`, `k`); `dim`, `keepdim`, `kernel_size` in PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from planner.lowering.operators.flops import einsum_sizes, einsum_terms
from planner.lowering.operators.rows import DTYPE_BYTES, Params, Sizes, TensorType, Types, is_float

Made = tuple[TensorType, ...]


def like(*positions: int) -> Sizes:
    """One output for each of these inputs, of the same type."""
    return lambda inputs, params: tuple(inputs[i] for i in positions)


def like_as(position: int, dtype: str) -> Sizes:
    """The shape of an input, in one dtype."""
    return lambda inputs, params: (TensorType(inputs[position].shape, dtype),)


def broadcast(inputs: Types, params: Params) -> Made:
    """The inputs broadcast together, in the widest of their dtypes."""
    return (TensorType(together(inputs), widest(inputs)),)


def broadcast_bool(inputs: Types, params: Params) -> Made:
    """The inputs broadcast together, as bools."""
    return (TensorType(together(inputs), "bool"),)


def broadcast_float(inputs: Types, params: Params) -> Made:
    """The inputs broadcast together; integers give float32."""
    dtype = widest(inputs)
    return (TensorType(together(inputs), dtype if is_float(dtype) else "float32"),)


def chosen(inputs: Types, params: Params) -> Made:
    """(condition, x, y): all broadcast together, in the widest dtype of x and y."""
    return (TensorType(together(inputs), widest(inputs[1:])),)


def together(inputs: Types) -> tuple[int, ...]:
    """The shape that these inputs broadcast to."""
    rank = max((len(value.shape) for value in inputs), default=0)
    padded = [(1,) * (rank - len(value.shape)) + value.shape for value in inputs]
    return tuple(0 if 0 in sizes else max(sizes) for sizes in zip(*padded, strict=True))


def widest(inputs: Types) -> str:
    """The dtype of their sum: floats win over integers over bools, then more bytes; a scalar yields within its kind."""

    def rank(value: TensorType) -> tuple[bool, bool, bool, bool, int]:
        kinds = value.dtype.startswith("complex"), is_float(value.dtype), value.dtype != "bool"
        return *kinds, bool(value.shape), DTYPE_BYTES.get(value.dtype, 0)

    dtypes = {value.dtype for value in inputs}
    best = max(inputs, key=rank).dtype
    return "float32" if best in ("float16", "bfloat16") and {"float16", "bfloat16"} <= dtypes else best


def matmul(inputs: Types, params: Params) -> Made:
    """Stacks of matrices; a vector is a row on the left and a column on the right."""
    a, b = inputs[0].shape, inputs[1].shape
    batch = together([TensorType(a[:-2]), TensorType(b[:-2])])
    rows = a[-2:-1]
    return (TensorType((*batch, *rows, *(b[-1:] if len(b) > 1 else ())), widest(inputs[:2])),)


def addmm(inputs: Types, params: Params) -> Made:
    """(bias, a, b): the product of a and b."""
    return matmul(inputs[1:3], params)


def gemm(inputs: Types, params: Params) -> Made:
    """Either factor may be given transposed."""
    rows = inputs[0].shape[1 if params.get("transA") else 0]
    return (TensorType((rows, inputs[1].shape[0 if params.get("transB") else 1]), inputs[0].dtype),)


def einsum(inputs: Types, params: Params) -> Made:
    """The letters behind the arrow; without an arrow, those that occur once."""
    sizes = einsum_sizes(inputs, params)
    return (TensorType(tuple(sizes[letter] for letter in einsum_terms(inputs, params)[1]), inputs[0].dtype),)


def _spatial(params: Params, names: tuple[str, ...], rank: int, default: int) -> list[int]:
    given = next((params[name] for name in names if params.get(name) is not None and params.get(name) != []), None)
    given = default if given is None else given
    listed = [given] if isinstance(given, int) else [int(size) for size in given]
    return listed * rank if len(listed) == 1 else listed


def _padding(params: Params, rank: int) -> list[int]:
    """The padding of each axis, both sides added."""
    if params.get("pads") is not None:
        return [int(params["pads"][k]) + int(params["pads"][k + rank]) for k in range(rank)]
    return [2 * size for size in _spatial(params, ("padding",), rank, 0)]


def _windows(sizes: Sequence[int], kernel: Sequence[int], params: Params) -> tuple[int, ...]:
    """The number of windows along each axis."""
    rank = len(sizes)
    default = list(kernel) if "kernel_size" in params else [1] * rank
    stride = _spatial(params, ("strides", "stride"), rank, 0)
    stride = default if not any(stride) else stride
    dilation = _spatial(params, ("dilations", "dilation"), rank, 1)
    padding = _padding(params, rank)
    auto = params.get("auto_pad") or "NOTSET"
    auto = auto.decode() if isinstance(auto, bytes) else auto
    found = []
    for k in range(rank):
        if auto.startswith("SAME"):
            found.append(-(-sizes[k] // stride[k]))
            continue
        room = sizes[k] + padding[k] - dilation[k] * (kernel[k] - 1) - 1
        count = (-(-room // stride[k]) if params.get("ceil_mode") else room // stride[k]) + 1
        begin = int(params["pads"][k]) if params.get("pads") is not None else padding[k] // 2
        if params.get("ceil_mode") and (count - 1) * stride[k] >= sizes[k] + begin:
            count -= 1  # a last window that starts in the padding does not count
        found.append(count)
    return tuple(found)


def conv(inputs: Types, params: Params) -> Made:
    """(image, weight): ONNX's and, with `transposed`, PyTorch's."""
    if params.get("transposed"):
        return conv_transpose(inputs, params)
    image, weight = inputs[0].shape, inputs[1].shape
    return (TensorType((image[0], weight[0], *_windows(image[2:], weight[2:], params)), inputs[0].dtype),)


def conv_transpose(inputs: Types, params: Params) -> Made:
    """(image, weight), the weight (Cin, Cout / groups, *kernel)."""
    image, weight = inputs[0].shape, inputs[1].shape
    rank = len(image) - 2
    stride = _spatial(params, ("strides", "stride"), rank, 1)
    dilation = _spatial(params, ("dilations", "dilation"), rank, 1)
    more, padding = _spatial(params, ("output_padding",), rank, 0), _padding(params, rank)
    groups = int(params.get("group") or params.get("groups") or 1)
    spatial = params.get("output_shape") or [
        (image[2 + k] - 1) * stride[k] + dilation[k] * (weight[2 + k] - 1) + 1 + more[k] - padding[k]
        for k in range(rank)
    ]
    return (TensorType((image[0], weight[1] * groups, *spatial), inputs[0].dtype),)


def pool(inputs: Types, params: Params) -> Made:
    """Windows of `kernel_shape` or `kernel_size`."""
    image = inputs[0].shape
    rank = len(image) - 2
    kernel = _spatial(params, ("kernel_shape", "kernel_size"), rank, 1)
    return (TensorType((*image[:2], *_windows(image[2:], kernel, params)), inputs[0].dtype),)


def global_pool(inputs: Types, params: Params) -> Made:
    """One element for each image and channel."""
    image = inputs[0].shape
    return (TensorType((*image[:2], *(1 for _ in image[2:])), inputs[0].dtype),)


def resized(inputs: Types, params: Params) -> Made:
    """PyTorch's `output_size` behind batch and channels."""
    return (TensorType((*inputs[0].shape[:2], *params["output_size"]), inputs[0].dtype),)


def resize(inputs: Types, params: Params) -> Made:
    """ONNX: `sizes`, or `scales` rounded down."""
    shape = params.get("sizes") or [
        math.floor(size * scale) for size, scale in zip(inputs[0].shape, params["scales"], strict=True)
    ]
    return (TensorType(tuple(int(size) for size in shape), inputs[0].dtype),)


def with_mask(inputs: Types, params: Params) -> Made:
    """Like input 0, and a bool for each of its elements."""
    return inputs[0], TensorType(inputs[0].shape, "bool")


def given(name: str) -> Sizes:
    """The shape that the parameter of this name says."""
    return lambda inputs, params: (TensorType(tuple(params[name]), inputs[0].dtype),)


def with_second(rule: Sizes, second: int | TensorType) -> Sizes:
    """The outputs of a rule, and one like this input or of this type."""
    return lambda inputs, params: (*rule(inputs, params), inputs[second] if isinstance(second, int) else second)


def with_indices(rule: Sizes) -> Sizes:
    """Output 0 of a rule, and an int64 for each of its elements."""

    def sizes(inputs: Types, params: Params) -> Made:
        made = rule(inputs, params)[0]
        return made, TensorType(made.shape, "int64")

    return sizes


def axes_of(params: Params, rank: int) -> set[int]:
    """The axes that the parameters name, counted from the front; all axes if they name none."""
    given = next((params[name] for name in ("axes", "axis", "dim") if params.get(name) is not None), None)
    listed = [given] if isinstance(given, int) else [int(axis) for axis in given or ()]
    return {axis % rank for axis in listed} if listed and rank else set(range(rank))


def reduced(*, dtype: str | None = None, whole: bool = False, keep: bool = False, outputs: int = 1) -> Sizes:
    """The input without the reduced axes, or with 1 in their place.

    Args:
        dtype: of the output, if not that of the input.
        whole: integers are summed in int64.
        keep: axes stay as 1 where the parameters do not say; ONNX's way.
        outputs: that many alike.
    """

    def sizes(inputs: Types, params: Params) -> Made:
        shape = inputs[0].shape
        if params.get("noop_with_empty_axes") and not params.get("axes"):
            return (inputs[0],) * outputs
        axes = axes_of(params, len(shape))
        kept = bool(params.get("keepdims", params.get("keepdim", keep)))
        made = tuple(1 if k in axes else size for k, size in enumerate(shape) if kept or k not in axes)
        kind = dtype or ("int64" if whole and not is_float(inputs[0].dtype) else inputs[0].dtype)
        return (TensorType(made, str(params.get("dtype") or kind) if whole else kind),) * outputs

    return sizes


def arg_reduced(*, keep: bool) -> Sizes:
    """An int64 index along `axis`, or of all elements where PyTorch names no `dim`."""

    def sizes(inputs: Types, params: Params) -> Made:
        named = params if "dim" in params or not keep else {"axis": 0, **params}
        return reduced(dtype="int64", keep=keep)(inputs, named)

    return sizes


def axis_of(params: Params, default: int, rank: int) -> int:
    """The axis that the parameters name, counted from the front."""
    return int(params.get("axis", params.get("dim", default))) % max(rank, 1)


def loss(inputs: Types, params: Params) -> Made:
    """A number, or one for each element, as `reduction` says in the words of either standard."""
    whole = params.get("reduction", 1) not in (0, "none", b"none")
    return (TensorType(() if whole else together(inputs[:2]), inputs[0].dtype),)


def label_loss(inputs: Types, params: Params) -> Made:
    """(scores, labels): a number, or one for each label."""
    whole = params.get("reduction", 1) not in (0, "none", b"none")
    return (TensorType(() if whole else inputs[1].shape, inputs[0].dtype),)


def statistics(axes: Any, dtype: str | None = "float32") -> Sizes:
    """Like input 0, and two statistics of the shape `axes(shape, params)`; without a dtype, in that of input 0."""

    def sizes(inputs: Types, params: Params) -> Made:
        statistic = TensorType(axes(inputs[0].shape, params), dtype or inputs[0].dtype)
        return inputs[0], statistic, statistic

    return sizes


def channels(shape: tuple[int, ...], params: Params) -> tuple[int, ...]:
    """One for each channel."""
    return shape[1:2]


def rows(shape: tuple[int, ...], params: Params) -> tuple[int, ...]:
    """1 on the axes that are normalized: from `axis` on, or as many as `normalized_shape` has."""
    named = params.get("normalized_shape")
    axis = int(params.get("axis", -1)) % len(shape) if named is None else len(shape) - len(named)
    return shape[:axis] + (1,) * (len(shape) - axis)


def attention(inputs: Types, params: Params) -> Made:
    """(q, k, v): rows of q, columns of v; and the log of the sum of exponentials, a float32 a row."""
    q, v = inputs[0], inputs[2]
    if len(q.shape) == 3 and params.get("q_num_heads"):  # heads side by side in the last axis
        heads, own = int(params["q_num_heads"]), int(params.get("kv_num_heads") or params["q_num_heads"])
        made = TensorType((*q.shape[:2], heads * (v.shape[2] // own)), q.dtype)
        return made, TensorType((q.shape[0], heads, q.shape[1]))
    return TensorType((*q.shape[:-1], v.shape[-1]), q.dtype), TensorType(q.shape[:-1])


def recurrent(parts: int, *, states: int = 1) -> Sizes:
    """ONNX's (steps, directions, batch, hidden), the last states, as hidden state and cell, and `parts` kept values."""

    def sizes(inputs: Types, params: Params) -> Made:
        steps, batch = inputs[0].shape[:2]
        directions, hidden = inputs[2].shape[0], inputs[2].shape[2]
        dtype = inputs[0].dtype
        whole, last = (steps, directions, batch, hidden), (directions, batch, hidden)
        if params.get("layout"):  # batch first
            steps, batch = batch, steps
            whole, last = (batch, steps, directions, hidden), (batch, directions, hidden)
        state = TensorType(last, dtype)
        kept = (TensorType((steps, directions, batch, parts * hidden), dtype),) if parts else ()
        return (TensorType(whole, dtype), *(state,) * states, *kept)

    return sizes
