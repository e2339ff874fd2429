"""An ONNX file as read: checked, its inputs bound to sizes, every value's type inferred.

Only structure and shapes are used. Weights are dropped before inference, nothing in the file is run, and files holding
external weights need only exist.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from planner.errors import GraphError
from planner.lowering.onnx.batches import BatchCheck, Sizes, check_states
from planner.lowering.onnx.rewrites import plain, take_branches
from planner.lowering.onnx.shapes import held_inputs, is_training_step, shape_values, stand_ins
from planner.lowering.operators.lookup import DTYPE_BYTES, TensorType

# Larger constants are weights; shape arguments are smaller, and inference needs the values of those.
_ARGUMENT_ELEMENTS: Final = 1024
_MOST: Final = 2**31 - 1
_REFERENCES: Final = (7, 11)
_DTYPES: Final[Mapping[str, str]] = {
    "FLOAT": "float32", "DOUBLE": "float64", "FLOAT8E4M3FN": "float8_e4m3fn", "FLOAT8E5M2": "float8_e5m2",
}  # fmt: skip


class FreeDimensions(GraphError):
    """Dimensions of inputs that have no size, neither in the file nor given.

    Args:
        free: input, axis and the name that the file gives, of each.
        fed: inputs whose dimension 0 is the batch.
        path: the file.
        command_line: the remedy is in options of the command line, not in arguments of Python.
    """

    def __init__(
        self, free: list[tuple[str, int, str]], fed: Collection[str], *, path: str = "", command_line: bool = False
    ) -> None:
        self.free, self.fed = free, fed
        batches = {own for name, axis, own in free if axis == 0 and name in fed}  # names that batch= sets everywhere
        rest = [
            own if own and len({axis for _, axis, other in free if other == own}) == 1 else f"{name}:{axis}"
            for name, axis, own in free
            if (axis or name not in fed) and (not own or own not in batches)
        ]
        rest = list(dict.fromkeys(rest))
        places = ", ".join(f"{axis} of {name!r}" + (f" ({own})" if own else "") for name, axis, own in free)
        if command_line:
            options = [*(["--batch SIZE"] if batches else []), *(f"--dim {name}=SIZE" for name in rest)]
            give = " ".join(options)
        else:
            sizes = ", ".join(f"{name!r}: SIZE" for name in rest)
            give = ", ".join([*(["batch=SIZE"] if batches else []), *([f"dims={{{sizes}}}"] if rest else [])])
        what = "dimension" if len(free) == 1 else "dimensions"
        super().__init__(f"{path + ': ' if path else ''}no size for {what} {places}; give {give}")

    def told(self, path: str | os.PathLike[str], *, command_line: bool = False) -> FreeDimensions:
        """The same about a file, for whoever reads it."""
        return FreeDimensions(self.free, self.fed, path=str(path), command_line=command_line)


def read_model(path: Path) -> Any:
    """The parsed model.

    Raises:
        GraphError: onnx is not installed; the file is missing, no ONNX model, damaged, or lacks its external weights.
    """
    try:
        import onnx
    except ImportError:
        raise GraphError("reading an ONNX file needs the onnx package: pip install 'sublinear-planner[onnx]'") from None
    try:
        if path.stat().st_size > _MOST:
            remedy = "save its weights beside it, as external data"
            raise GraphError(f"is larger than 2 GiB, which no ONNX file can be; {remedy}")
        model = onnx.load(str(path), format="protobuf", load_external_data=False)
    except GraphError:
        raise
    except OSError as error:
        raise GraphError(f"cannot be read: {error.strerror or error}") from None
    except Exception:  # protobuf's own error type differs between its implementations
        raise GraphError("is damaged or not an ONNX model") from None
    if not model.ir_version or not model.opset_import or not model.graph.node:
        raise GraphError("is damaged or not an ONNX model: it has no nodes or names no operator set")
    if model.functions:
        model = _inlined(model)
    for name in _names(model):
        if not isinstance(name, str):  # protobuf hands over bytes that are no UTF-8 as bytes
            raise GraphError(f"is damaged: the name {name!r} is no text")
    _check(model)
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            location = next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
            if not location or not os.path.isfile(path.parent / location):
                where = f"its external weights {location!r} are missing beside the file"
                raise GraphError(f"initializer {tensor.name!r}: {where}")
            if math.prod(tensor.dims) <= _ARGUMENT_ELEMENTS:
                _load_argument(tensor, path.parent)
    return plain(model)


def _check(model: Any) -> None:
    """Refuse what inference would misread: a name given twice, sizes below 0, sparse tensors, future operator sets."""
    from onnx import defs

    newest = defs.onnx_opset_version()
    for opset in model.opset_import:
        if opset.domain in ("", "ai.onnx") and not 1 <= opset.version <= newest:
            known = f"the onnx package here knows 1 to {newest}"
            raise GraphError(f"has operator set {opset.version}, and {known}; install a newer one")
    for what, listed in (("inputs", model.graph.input), ("initializers", model.graph.initializer)):
        names = set[str]()
        for value in listed:
            if value.name in names:
                raise GraphError(f"has two {what} named {value.name!r}; rename one")
            names.add(value.name)
    for tensor in model.graph.initializer:
        if any(size < 0 for size in tensor.dims):
            raise GraphError(f"initializer {tensor.name!r} has a size below 0: {list(tensor.dims)}")
    for tensor in model.graph.sparse_initializer:
        reason = "what it takes then depends on its values; store it dense"
        raise GraphError(f"initializer {tensor.values.name!r} is sparse, and {reason}")


def _inlined(model: Any) -> Any:
    """The model with the file's own functions written out where they are called; a GraphError if one cannot be."""
    from onnx import inliner

    try:
        return inliner.inline_local_functions(model)
    except Exception as error:  # the errors of the C++ side have no common base
        raise GraphError(f"its functions cannot be written out: {' '.join(str(error).split())}") from None


def _load_argument(tensor: Any, folder: Path) -> None:
    """Read a small external tensor, which may be a shape that inference needs; a GraphError if its bytes are lost."""
    import onnx
    from onnx.external_data_helper import load_external_data_for_tensor

    try:
        load_external_data_for_tensor(tensor, str(folder))
    except Exception as error:  # such as an offset behind the end; the errors have no common base
        text = " ".join(str(error).split())
        raise GraphError(f"initializer {tensor.name!r}: its external data cannot be read: {text}") from None
    if len(tensor.raw_data) != TensorType(tuple(tensor.dims), _dtype(tensor.data_type)).nbytes:
        found = f"{len(tensor.raw_data)} bytes, not those of its shape"
        raise GraphError(f"initializer {tensor.name!r}: its external data has {found}")
    tensor.data_location = onnx.TensorProto.DEFAULT
    del tensor.external_data[:]


def _names(model: Any) -> Iterator[Any]:
    """Everything in the file that is used as a name."""
    for value in (*model.graph.input, *model.graph.output, *model.graph.initializer):
        yield value.name
    for value in model.graph.input:
        yield from (dim.dim_param for dim in value.type.tensor_type.shape.dim)
    for tensor in model.graph.initializer:
        yield from (text for entry in tensor.external_data for text in (entry.key, entry.value))
    for node in model.graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (attribute.name for attribute in node.attribute)


def real_inputs(model: Any) -> list[Any]:
    """Inputs that the caller feeds; IR 3 lists initializers among the inputs too."""
    initializers = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in initializers]


def fed_inputs(model: Any) -> list[Any]:
    """Inputs whose dimension 0 is the batch: all but those that a training step holds."""
    held = held_inputs(model.graph.node) if is_training_step(model.graph.node) else {}
    return [value for value in real_inputs(model) if value.name not in held]


def infer_sizes(model: Any, *, batch: int | None, dims: Mapping[str, int] | None) -> Sizes:
    """Types of all values, inputs bound, everything else inferred from scratch.

    Args:
        batch: dimension 0 of every input that is fed, or None for the file's.
        dims: sizes of named dimensions.
    Raises:
        GraphError: a dimension without a size, an unknown name, inference fails, or a Reshape that freezes the batch.
    """
    bound = _bindings(model, batch, dims)
    shapes = _input_shapes(model, batch, bound)
    if batch is not None:
        _check_batch(model, shapes, batch)
    types = _infer(model, shapes, strict=True)
    check_states(model, types)
    return types


def _check_batch(model: Any, shapes: Mapping[str, tuple[int, ...]], batch: int) -> None:
    """Refuse what cannot run at this batch, by comparison with the file's own; see `BatchCheck`."""
    fed = [value for value in fed_inputs(model) if shapes[value.name]]
    held = frozenset(size for value in fed if (size := _file_batch(value)) is not None)
    free = next(size for size in _REFERENCES if size != batch)  # where the file has none, one that is no usual size
    own = {value.name: _file_batch(value) or (min(held) if held else free) for value in fed}
    reference = {**shapes, **{name: (size, *shapes[name][1:]) for name, size in own.items()}}
    if reference == shapes:
        return
    try:
        before = _infer(model, reference, strict=True)
    except GraphError:  # a Squeeze without axes fails at batch 1 alone: that says nothing of the batch asked for
        return
    after = _infer(model, shapes, strict=False)
    BatchCheck(model, before, after, reference=min(own.values()), batch=batch, held=held).check()


def _bindings(model: Any, batch: int | None, dims: Mapping[str, int] | None) -> dict[str, int]:
    """Sizes of named dimensions."""
    for what, size in (("batch", batch), *(dims or {}).items()):
        if size is not None and (isinstance(size, bool) or not hasattr(size, "__index__") or not 1 <= size <= _MOST):
            raise GraphError(f"size of {what!r} is {size!r}, expected an int from 1 to {_MOST}")
    inputs = {value.name: value.type.tensor_type.shape.dim for value in real_inputs(model)}
    names = {dim.dim_param for listed in inputs.values() for dim in listed if dim.dim_param}
    places = {f"{name}:{axis}" for name, listed in inputs.items() for axis in range(len(listed))}
    for name in dims or {}:
        if name not in names | places:
            known = ", ".join(sorted(names)) or "none"
            raise GraphError(f"no input has a dimension named {name!r}; named dimensions: {known}")
    bound = dict(dims or {})
    if batch is not None:
        for value in fed_inputs(model):
            first = next(iter(value.type.tensor_type.shape.dim), None)
            if first is not None and first.dim_param:
                if bound.get(first.dim_param, batch) != batch:
                    given = f"{{{first.dim_param!r}: {bound[first.dim_param]}}}"
                    raise GraphError(f"batch={batch} and dims={given} name the same dimension")
                bound[first.dim_param] = batch
    return bound


def _file_batch(value: Any) -> int | None:
    """Dimension 0 in the file; None where it has no size there."""
    size = value.type.tensor_type.shape.dim[0].dim_value
    return int(size) if size > 0 else None


def _input_shapes(model: Any, batch: int | None, bound: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    free: list[tuple[str, int, str]] = []
    fed = {value.name for value in fed_inputs(model)}
    for value in real_inputs(model):
        if not value.type.HasField("tensor_type") or not value.type.tensor_type.HasField("shape"):
            raise GraphError(f"input {value.name!r} is no tensor of known rank")
        shape: list[int] = []
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            size = bound.get(f"{value.name}:{axis}", bound.get(dim.dim_param, dim.dim_value))
            size = batch if axis == 0 and batch is not None and value.name in fed else size
            if size < 1:  # exporters write -1 and 0 for "any", and may give two dimensions one name
                free.append((value.name, axis, dim.dim_param))
            shape.append(int(size))
        shapes[value.name] = tuple(shape)
    if free:
        raise FreeDimensions(free, fed)
    return shapes


def _infer(model: Any, shapes: Mapping[str, tuple[int, ...]], *, strict: bool) -> Sizes:
    """Run onnx's inference on the structure alone: no weights, no stored shapes of inner values or outputs."""
    types, _ = _settle(_bare(model, shapes), strict=strict)
    return {**types, **{tensor.name: type_of(tensor) for tensor in model.graph.initializer}}


def settle_branches(model: Any, *, batch: int | None, dims: Mapping[str, int] | None) -> None:
    """Take, in place, the branch of every If whose condition the shapes of the inputs determine.

    Raises:
        GraphError: there is an If, and an input has a dimension without a size.
    """
    while any(node.op_type == "If" for node in model.graph.node):
        shapes = _input_shapes(model, batch, _bindings(model, batch, dims))
        try:
            _, known = _settle(_bare(model, shapes), strict=False)
        except GraphError:  # what onnx gives up on is named later
            return
        if not take_branches(model, known):
            return


def _bare(model: Any, shapes: Mapping[str, tuple[int, ...]]) -> Any:
    """The structure of a model, its inputs bound, with the values of small constants."""
    import onnx
    from onnx import helper

    bare = onnx.ModelProto(ir_version=max(model.ir_version, 4))
    bare.opset_import.extend(model.opset_import)
    bare.graph.name = "graph"
    bare.graph.node.extend(stand_ins(model.graph.node))
    for value in real_inputs(model):
        kind = value.type.tensor_type.elem_type
        bare.graph.input.append(helper.make_tensor_value_info(value.name, kind, shapes[value.name]))
    for tensor in model.graph.initializer:
        if math.prod(tensor.dims) <= _ARGUMENT_ELEMENTS and tensor.data_location != onnx.TensorProto.EXTERNAL:
            bare.graph.initializer.append(tensor)
        else:
            bare.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    made = {name for node in bare.graph.node for name in node.output}
    # An output that no node makes is an input or a stored tensor, whose type an empty one would hide.
    for value in (value for value in model.graph.output if value.name in made):
        bare.graph.output.append(helper.make_empty_tensor_value_info(value.name))
        bare.graph.output[-1].type.tensor_type.elem_type = value.type.tensor_type.elem_type
    return bare


def _settle(bare: Any, *, strict: bool) -> tuple[dict[str, TensorType | None], dict[str, Any]]:
    """Types of all values of a structure, and the values that its shapes determine; the structure is used up."""
    types = _types_of(bare, strict=strict)
    while None in types.values() and (settled := shape_values(bare, types)):
        while settled:  # what is known now may make more known, before inference runs again
            _replace_nodes(bare, settled)
            settled = shape_values(bare, types)
        before, types = types, _types_again(bare, strict=strict)
        if list(types.values()).count(None) == list(before.values()).count(None):
            break
    return types, {tensor.name: tensor for tensor in bare.graph.initializer}


def _types_again(bare: Any, *, strict: bool) -> dict[str, TensorType | None]:
    """As `_types_of`, once values of shapes are constants: data propagation takes some of them for others and fails."""
    try:
        return _types_of(bare, strict=strict)
    except GraphError:
        return _types_of(bare, strict=strict, propagate=False)


def _types_of(bare: Any, *, strict: bool, propagate: bool = True) -> dict[str, TensorType | None]:
    """What onnx's inference finds, for every value of a structure; a GraphError if it fails."""
    from onnx import shape_inference

    try:
        inferred = shape_inference.infer_shapes(bare, strict_mode=strict, data_prop=propagate)
    except Exception as error:  # inference, type and value errors of the C++ side have no common base
        text = " ".join(str(error).split())
        raise GraphError(f"shape inference failed: {text if len(text) < 300 else text[:300] + ' ...'}") from None
    types: dict[str, TensorType | None] = {name: None for node in bare.graph.node for name in node.output if name}
    types.update({tensor.name: type_of(tensor) for tensor in bare.graph.initializer})
    for value in (*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output):
        types[value.name] = types.get(value.name) or _tensor_type(value)
    return types


def _replace_nodes(bare: Any, values: list[Any]) -> None:
    """Put constants in the place of the nodes that make them."""
    names = {tensor.name for tensor in values}
    kept = [node for node in bare.graph.node if not names.issuperset(name for name in node.output if name)]
    made = {name for node in kept for name in node.output}
    del bare.graph.node[:]
    bare.graph.node.extend(kept)
    bare.graph.initializer.extend(tensor for tensor in values if tensor.name not in made)


def type_of(tensor: Any) -> TensorType:
    """Shape and dtype of a stored tensor."""
    return TensorType(tuple(tensor.dims), _dtype(tensor.data_type))


def values_of(tensor: Any, folder: Path) -> Any:
    """The values of a stored tensor as an array; None where its bytes are damaged or are not there."""
    import onnx
    from onnx import numpy_helper
    from onnx.external_data_helper import load_external_data_for_tensor

    try:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            whole = onnx.TensorProto()
            whole.CopyFrom(tensor)
            load_external_data_for_tensor(whole, str(folder))
            tensor = whole
        return numpy_helper.to_array(tensor)
    except Exception:  # what is wrong with bytes has no common base, and structure is read without them
        return None


def _tensor_type(value: Any) -> TensorType | None:
    """Type of a value if all its dimensions have a size."""
    tensor = value.type.tensor_type
    if not value.type.HasField("tensor_type") or not tensor.HasField("shape") or not tensor.elem_type:
        return None
    if any(not dim.HasField("dim_value") or dim.dim_value < 0 for dim in tensor.shape.dim):
        return None
    return TensorType(tuple(int(dim.dim_value) for dim in tensor.shape.dim), _dtype(tensor.elem_type))


def _dtype(code: int) -> str:
    import onnx

    name = onnx.TensorProto.DataType.Name(code) if code in onnx.TensorProto.DataType.values() else str(code)
    return _DTYPES.get(name, name.lower())


def check_dtype(size: TensorType, name: str, where: str) -> None:
    """Refuse a value whose elements have no known number of bytes.

    Raises:
        GraphError: that; names the value and where it is.
    """
    if size.dtype not in DTYPE_BYTES:
        raise GraphError(f"{where}: value {name!r} is of dtype {size.dtype!r}; known: {', '.join(DTYPE_BYTES)}")
