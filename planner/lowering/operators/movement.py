"""Types of the outputs of ops that move elements or make new ones, and the bytes moved; parameters as in `sizes`."""

from __future__ import annotations

import math

from planner.lowering.operators.rows import Count, Params, Sizes, TensorType, Types
from planner.lowering.operators.sizes import Made, axes_of, axis_of, together, widest


def concatenated(inputs: Types, params: Params) -> Made:
    """The inputs joined along one axis."""
    axis = axis_of(params, 0, len(inputs[0].shape))
    shape = list(inputs[0].shape)
    shape[axis] = sum(value.shape[axis] for value in inputs)
    return (TensorType(tuple(shape), widest(inputs)),)


def stacked(inputs: Types, params: Params) -> Made:
    """The inputs joined along a new axis."""
    axis = axis_of(params, 0, len(inputs[0].shape) + 1)
    shape = inputs[0].shape
    return (TensorType((*shape[:axis], len(inputs), *shape[axis:]), inputs[0].dtype),)


def split(inputs: Types, params: Params) -> Made:
    """Pieces along one axis: of given lengths, or of one length with a shorter last piece."""
    shape = inputs[0].shape
    axis = axis_of(params, 0, len(shape))
    lengths = params.get("split") or params.get("split_sizes") or params.get("split_size")
    if lengths is None:
        lengths = -(-shape[axis] // int(params["num_outputs"]))
    if isinstance(lengths, int):
        whole, rest = divmod(shape[axis], lengths)
        lengths = [lengths] * whole + [rest] * bool(rest)
    return tuple(TensorType((*shape[:axis], int(length), *shape[axis + 1 :]), inputs[0].dtype) for length in lengths)


def unbound(inputs: Types, params: Params) -> Made:
    """One output for each index of an axis."""
    axis = axis_of(params, 0, len(inputs[0].shape))
    return _without(inputs[0], axis) * inputs[0].shape[axis]


def _without(value: TensorType, axis: int) -> Made:
    return (TensorType((*value.shape[:axis], *value.shape[axis + 1 :]), value.dtype),)


def selected(inputs: Types, params: Params) -> Made:
    """The input at one index of an axis."""
    return _without(inputs[0], axis_of(params, 0, len(inputs[0].shape)))


def _span(length: int, start: int | None, end: int | None, step: int | None) -> int:
    return len(range(length)[slice(start, end, step)])


def sliced(inputs: Types, params: Params) -> Made:
    """ONNX: `starts`, `ends`, `axes`, `steps`."""
    shape = list(inputs[0].shape)
    starts, ends = params["starts"], params["ends"]
    axes = params.get("axes") or range(len(starts))
    steps = params.get("steps") or [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        # With a negative step, -1 as a start is the last element; an end below -length means before the first.
        stop = None if step < 0 and end < -shape[axis] else int(end)
        shape[axis] = _span(shape[axis], int(start), stop, int(step))
    return (TensorType(tuple(shape), inputs[0].dtype),)


def aten_sliced(inputs: Types, params: Params) -> Made:
    """PyTorch: `start`, `end` and `step` of one axis."""
    axis = axis_of(params, 0, len(inputs[0].shape))
    shape = list(inputs[0].shape)
    shape[axis] = _span(shape[axis], params.get("start"), params.get("end"), params.get("step"))
    return (TensorType(tuple(shape), inputs[0].dtype),)


def transposed(inputs: Types, params: Params) -> Made:
    """ONNX's `perm`, PyTorch's `dims`, or all axes backwards."""
    shape = inputs[0].shape
    order = params.get("perm") or params.get("dims") or range(len(shape) - 1, -1, -1)
    return (TensorType(tuple(shape[axis] for axis in order), inputs[0].dtype),)


def swapped(inputs: Types, params: Params) -> Made:
    """The input with two axes exchanged."""
    shape = list(inputs[0].shape)
    a, b = int(params["dim0"]), int(params["dim1"])
    shape[a], shape[b] = shape[b], shape[a]
    return (TensorType(tuple(shape), inputs[0].dtype),)


def reshaped(inputs: Types, params: Params) -> Made:
    """The shape in `shape` or `size`, where 0 copies an axis (ONNX) and -1 takes what remains."""
    given = [int(size) for size in params.get("shape", params.get("size", ()))]
    old = inputs[0]
    if "shape" in params and not params.get("allowzero"):
        given = [old.shape[k] if size == 0 else size for k, size in enumerate(given)]
    known = math.prod(size for size in given if size != -1)
    return (TensorType(tuple(old.elements // known if size == -1 else size for size in given), old.dtype),)


def flattened(inputs: Types, params: Params) -> Made:
    """A matrix: the axes before `axis`, and the others."""
    shape = inputs[0].shape
    axis = int(params.get("axis", 1))
    return (TensorType((math.prod(shape[:axis]), math.prod(shape[axis:])), inputs[0].dtype),)


def squeezed(inputs: Types, params: Params) -> Made:
    """The input without the named axes of length 1, or without all axes of length 1."""
    shape = inputs[0].shape
    axes = axes_of(params, len(shape))
    return (TensorType(tuple(size for k, size in enumerate(shape) if k not in axes or size != 1), inputs[0].dtype),)


def unsqueezed(inputs: Types, params: Params) -> Made:
    """The input with new axes of length 1."""
    given = params["axes"] if "axes" in params else [params["dim"]]
    shape = list(inputs[0].shape)
    rank = len(shape) + len(given)
    for axis in sorted(int(axis) % rank for axis in given):
        shape.insert(axis, 1)
    return (TensorType(tuple(shape), inputs[0].dtype),)


def expanded(inputs: Types, params: Params) -> Made:
    """A shape that the input broadcasts to; -1 keeps an axis (PyTorch)."""
    given = params.get("shape", params.get("size"))
    target = TensorType(tuple(1 if size == -1 else int(size) for size in given or ()))
    return (TensorType(together([inputs[0], target]), inputs[0].dtype),)


def tiled(inputs: Types, params: Params) -> Made:
    """The input repeated along each axis; PyTorch adds new axes in front."""
    repeats = params["repeats"]
    shape = (1,) * (len(repeats) - len(inputs[0].shape)) + inputs[0].shape
    return (TensorType(tuple(size * int(times) for size, times in zip(shape, repeats, strict=True)), inputs[0].dtype),)


def padded(inputs: Types, params: Params) -> Made:
    """ONNX: `pads`, all begins and then all ends."""
    rank = len(inputs[0].shape)
    axes = [int(axis) % rank for axis in params.get("axes") or range(rank)]
    pads, shape = params["pads"], list(inputs[0].shape)
    for k, axis in enumerate(axes):
        shape[axis] += int(pads[k]) + int(pads[k + len(axes)])
    return (TensorType(tuple(shape), inputs[0].dtype),)


def aten_padded(inputs: Types, params: Params) -> Made:
    """PyTorch: begin and end of each axis, the last axis first."""
    pads = params["pad"] if "pad" in params else params["padding"]
    shape = list(inputs[0].shape)
    for k in range(len(pads) // 2):
        shape[-1 - k] += int(pads[2 * k]) + int(pads[2 * k + 1])
    return (TensorType(tuple(shape), inputs[0].dtype),)


def gathered(inputs: Types, params: Params) -> Made:
    """(table, indices): the shape of the indices in the place of one axis."""
    axis = axis_of(params, 0, len(inputs[0].shape))
    shape = inputs[0].shape
    return (TensorType((*shape[:axis], *inputs[1].shape, *shape[axis + 1 :]), inputs[0].dtype),)


def gathered_elements(inputs: Types, params: Params) -> Made:
    """(table, indices): one element for each index."""
    return (TensorType(inputs[1].shape, inputs[0].dtype),)


def gathered_slices(inputs: Types, params: Params) -> Made:
    """GatherND: the last axis of the indices is a place in the first axes of the table."""
    batch = int(params.get("batch_dims", 0))
    indices = inputs[1].shape
    return (TensorType((*indices[:-1], *inputs[0].shape[batch + indices[-1] :]), inputs[0].dtype),)


def indexed(inputs: Types, params: Params) -> Made:
    """`aten.index`: tensors of indices for the first axes."""
    where = together(inputs[1:])
    return (TensorType((*where, *inputs[0].shape[len(inputs) - 1 :]), inputs[0].dtype),)


def top(inputs: Types, params: Params) -> Made:
    """The `k` greatest elements along an axis, and their indices."""
    axis = axis_of(params, -1, len(inputs[0].shape))
    shape = list(inputs[0].shape)
    shape[axis] = int(params["k"])
    return TensorType(tuple(shape), inputs[0].dtype), TensorType(tuple(shape), "int64")


def one_hot(inputs: Types, params: Params) -> Made:
    """A new axis of `depth`, in the dtype of the values."""
    shape = inputs[0].shape
    axis = int(params.get("axis", -1)) % (len(shape) + 1)
    made = (*shape[:axis], int(params["depth"]), *shape[axis:])
    return (TensorType(made, str(params.get("values_dtype", "float32"))),)


def depth_to_space(inputs: Types, params: Params) -> Made:
    """Channels become blocks of pixels."""
    n, c, h, w = inputs[0].shape
    block = int(params["blocksize"])
    return (TensorType((n, c // block**2, h * block, w * block), inputs[0].dtype),)


def space_to_depth(inputs: Types, params: Params) -> Made:
    """Blocks of pixels become channels."""
    n, c, h, w = inputs[0].shape
    block = int(params["blocksize"])
    return (TensorType((n, c * block**2, h // block, w // block), inputs[0].dtype),)


def cast(inputs: Types, params: Params) -> Made:
    """The input in `dtype`; callers translate ONNX's `to`, a number, into a name."""
    return (TensorType(inputs[0].shape, str(params.get("dtype") or inputs[0].dtype)),)


def filled(inputs: Types, params: Params) -> Made:
    """`size` or the shape of input 0, in `dtype`."""
    shape = params.get("size", params.get("shape", inputs[0].shape if inputs else ()))
    dtype = params.get("dtype") or (inputs[0].dtype if inputs else "float32")
    return (TensorType(tuple(int(size) for size in shape), str(dtype)),)


def drawn(inputs: Types, params: Params) -> Made:
    """`size` or `shape`; the only input is a generator's state."""
    shape = params["size"] if "size" in params else params["shape"]
    return filled((), {**params, "size": shape})


def sampled(dtype: str) -> Sizes:
    """Places drawn from each row of probabilities: `sample_size` or `num_samples` of them."""

    def rule(inputs: Types, params: Params) -> Made:
        count = int(params.get("sample_size", params.get("num_samples", 1)))
        return (TensorType((*inputs[0].shape[:-1], count), dtype),)

    return rule


def counted(inputs: Types, params: Params) -> Made:
    """`aten.arange`: int64 unless an end is a float."""
    ends = [params.get("start") or 0, params["end"], params.get("step") or 1]
    dtype = params.get("dtype") or ("float32" if any(isinstance(end, float) for end in ends) else "int64")
    return (TensorType((max(0, math.ceil((ends[1] - ends[0]) / ends[2])),), str(dtype)),)


def part_moved(inputs: Types, outputs: Types, params: Params) -> int:
    """Of input 0 the op reads what arrives in the outputs, such as rows of a table, and at most all of it."""
    made = sum(value.nbytes for value in outputs)
    return min(inputs[0].nbytes, made) + made + sum(value.nbytes for value in inputs[1:])


def none_read(inputs: Types, outputs: Types, params: Params) -> int:
    """Of input 0 the op reads the shape alone, or overwrites it unread."""
    return sum(value.nbytes for value in (*inputs[1:], *outputs))


def written_in_place(count: int, *, rows: bool = False) -> Count:
    """(x, indices, values), in place: the elements of x, or its `rows`, at the indices are touched so many times."""

    def moved(inputs: Types, outputs: Types, params: Params) -> int:
        each = inputs[0].elements // max(inputs[0].shape[0], 1) if rows and inputs[0].shape else 1
        size = TensorType((inputs[1].elements * each,), inputs[0].dtype).nbytes
        touched = min(inputs[2].nbytes if len(inputs) > 2 and not rows else size, inputs[0].nbytes)
        times = count + bool(params.get("accumulate"))
        return times * touched + sum(value.nbytes for value in inputs[1:])

    return moved
