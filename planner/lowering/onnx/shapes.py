"""Shapes that onnx's inference leaves open: the ops of onnxruntime's training graphs, and arithmetic on shapes.

A gradient has the shape of what it differentiates, so each such op is replaced, for inference alone, by standard ops
whose outputs have the types of its own. One pass of onnx's inference then types the whole step. What exporters compute
from shapes is folded once the shapes are known, because inference gives up on some of it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final, Optional

from planner.lowering.operators.lookup import TensorType

ACCUMULATOR: Final = "InPlaceAccumulatorV2"
_BUFFER_SUFFIX: Final = "_grad.accumulation.buffer"
_STATISTICS_OPS: Final = ("BatchNormInternal", "BatchNormalization")
_WEIGHTED_OPS: Final = ("Conv", "ConvTranspose", "Gemm", "MatMul", *_STATISTICS_OPS)
# By op type, for each output the input whose type it has; None: see `_Twins.like`.
_LIKE: Final[Mapping[str, tuple[Optional[int], ...]]] = {
    "ReluGrad": (1,), "Scale": (0,), "DropoutGrad": (0,), "SoftmaxCrossEntropyLossGrad": (1,), "SplitTraining": (),
    "BatchNormInternal": (0, 3, 4, 3, 3), "BatchNormalizationGrad": (1, 2, 2), "ConvGrad": (1, 2, None),
    "MaxPoolGrad": (None,), "AveragePoolGrad": (None,), "ConcatTraining": (), ACCUMULATOR: (),
}  # fmt: skip
#: The ops whose types are ruled here, with the inputs each must have; onnx knows those of its own.
TRAINING_OPS: Final[Mapping[str, int]] = {
    "ReluGrad": 2, "Scale": 2, "DropoutGrad": 2, "SoftmaxCrossEntropyLossGrad": 3, "BatchNormInternal": 5,
    "BatchNormalizationGrad": 5, "ConvGrad": 3, "MaxPoolGrad": 2, "AveragePoolGrad": 1, "SplitTraining": 2,
    "ConcatTraining": 1, ACCUMULATOR: 2,
}  # fmt: skip
# Ops that are exact on integers and make no tensor larger than their inputs.
_ARITHMETIC: Final = frozenset({
    "Abs", "Add", "And", "Cast", "Ceil", "Concat", "CumSum", "Div", "Equal", "Floor", "Gather", "GatherElements",
    "GatherND", "Greater", "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Max", "Min", "Mod", "Mul", "Neg",
    "Not", "Or", "Pow", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "Reshape", "Slice", "Split", "Squeeze",
    "Sub", "Transpose", "Trilu", "Unsqueeze", "Where",
})  # fmt: skip
_MOST_ELEMENTS: Final = 1024
_CODES: Final[Mapping[str, int]] = {"float32": 1, "int32": 6, "int64": 7, "bool": 9}
# These keep the shape of their input; inference finds none, because onnx has them as functions it cannot follow.
_SHAPED_AS_READ: Final = frozenset({"GroupNormalization", "MeanVarianceNormalization"})
_GRADIENT_NAME: Final = re.compile(r"(.+)_grad(_\d+)?")


def is_training_step(nodes: Iterable[Any]) -> bool:
    """True if the file holds its own backward pass."""
    return any(is_gradient(node) for node in nodes)


def is_gradient(node: Any) -> bool:
    """True for ops that exist in a backward pass only."""
    return bool(node.op_type.endswith("Grad"))


def held_inputs(nodes: Iterable[Any]) -> dict[str, str]:
    """Kinds of the inputs of a training step that are held from step to step; the others are fed.

    A parameter has a gradient buffer of its name, or stands where an op has its weights (values that nodes make may
    stand there too; only inputs are looked up). The flag of the accumulators is an input, but no batch of anything.
    """
    kinds: dict[str, str] = {}
    listed = list(nodes)
    for node in listed:
        if node.op_type == ACCUMULATOR:
            kinds.update({node.input[0]: "state", **dict.fromkeys(node.input[2:3], "input")})
            if node.input[0].endswith(_BUFFER_SUFFIX):
                kinds[node.input[0].removesuffix(_BUFFER_SUFFIX)] = "parameter"
    for node in listed:
        if node.op_type in _WEIGHTED_OPS:
            for name in node.input[1:3]:
                kinds.setdefault(name, "parameter")
        if node.op_type in _STATISTICS_OPS:
            kinds.update(dict.fromkeys(node.input[3:5], "state"))
    return kinds


def stand_ins(nodes: Iterable[Any]) -> list[Any]:
    """The nodes, with each op of `TRAINING_OPS` replaced by standard ops that make the same names with the same types.

    So are standard ops that inference cannot type. A name whose twin is missing in the forward pass stays untyped.
    """
    from onnx import helper

    def read_alike(node: Any) -> Any:
        return helper.make_node("Identity", node.input[:1], node.output[:1], name=node.name)

    listed = [read_alike(node) if node.op_type in _SHAPED_AS_READ else node for node in nodes]
    if not any(node.op_type in TRAINING_OPS for node in listed):
        return listed
    twins = _Twins(listed)
    replaced = (twins.replaced(node) if node.op_type in TRAINING_OPS else (node,) for node in listed)
    return [stand_in for found in replaced for stand_in in found]


class _Twins:
    """Finds the forward op behind a gradient op."""

    def __init__(self, nodes: list[Any]) -> None:
        self.maker: Final = {name: node for node in nodes for name in node.output if name}
        self.convolutions: Final = {tuple(node.input[:2]): node for node in nodes if node.op_type == "Conv"}
        self.names: Final = {name for node in nodes for name in (*node.input, *node.output) if name}

    def replaced(self, node: Any) -> list[Any]:
        """Standard ops that make the outputs of this one."""
        from onnx import TensorProto, helper

        if node.op_type == ACCUMULATOR:  # a flag, and optionally the buffer's new version
            made = [_constant(node.output[0], TensorProto.BOOL, 1)]
            return made + [helper.make_node("Identity", [node.input[0]], [name]) for name in node.output[1:2] if name]
        if node.op_type == "ConcatTraining":
            joined = helper.make_node("Concat", list(node.input), [node.output[0]], name=node.name)
            joined.attribute.extend(attribute for attribute in node.attribute if attribute.name == "axis")
            return [joined, *(_constant(name, TensorProto.INT64, len(node.input)) for name in node.output[1:2] if name)]
        pairs = [(self.like(node, k), name) for k, name in enumerate(node.output) if name]
        return [helper.make_node("Identity", [like], [name], name=node.name) for like, name in pairs if like]

    def like(self, node: Any, k: int) -> str | None:
        """The value whose type output `k` of a node has."""
        if node.op_type == "SplitTraining":  # it undoes a concatenation
            joined = self._maker_of(node, "ConcatTraining")
            return joined.input[k] if joined is not None and k < len(joined.input) else None
        positions = _LIKE[node.op_type]
        position = positions[k] if k < len(positions) else None
        if position is not None:
            return node.input[position] if position < len(node.input) else None
        if node.op_type == "ConvGrad" and k == 2:
            convolution = self.convolutions.get(tuple(node.input[1:3]))
            return convolution.input[2] if convolution is not None and len(convolution.input) > 2 else None
        if node.op_type == "MaxPoolGrad":
            pool = self._maker_of(node, "MaxPool")
            return pool.input[0] if pool is not None else None
        named = _GRADIENT_NAME.fullmatch(node.output[k])  # the gradient of an average pool reads no value of its shape
        return named[1] if named is not None and named[1] in self.names else None

    def _maker_of(self, node: Any, op_type: str) -> Any:
        """The node of this type that makes input 1 of a node, or None."""
        maker = self.maker.get(node.input[1]) if len(node.input) > 1 else None
        return maker if maker is not None and maker.op_type == op_type else None


def _constant(name: str, dtype: int, length: int) -> Any:
    from onnx import helper

    value = helper.make_tensor(f"{name}.value", dtype, [length], [0] * length)
    return helper.make_node("Constant", [], [name], value=value)


def shape_values(model: Any, types: Mapping[str, TensorType | None]) -> list[Any]:
    """Values that the shapes known so far determine, as initializers; none where the arithmetic cannot be done.

    Args:
        model: the structure, with the values of small constants.
        types: what inference found.
    """
    from onnx import TensorProto, helper, numpy_helper

    numbers = (TensorProto.INT64, TensorProto.INT32, TensorProto.FLOAT, TensorProto.BOOL)
    written = [*model.graph.initializer, *filter(None, map(constant_tensor, model.graph.node))]
    constants = [tensor for tensor in written if tensor.data_type in numbers]
    stored = {tensor.name: tensor for tensor in constants}
    known = set(stored)
    chosen: list[Any] = []
    found: list[str] = []
    for node in model.graph.node:
        if node.op_type in ("Shape", "Size") and (size := types.get(node.input[0])) is not None:
            chosen.append(_known_shape(node, size))
        elif node.op_type == "CastLike" and node.input[0] in known and (like := types.get(node.input[1])) is not None:
            if like.dtype not in _CODES:
                continue
            chosen.append(helper.make_node("Cast", node.input[:1], node.output, to=_CODES[like.dtype]))
        elif node.op_type in _ARITHMETIC or _is_fill(node, stored):
            if not node.input or not known.issuperset(filter(None, node.input)):
                continue
            chosen.append(node)
        else:
            continue
        known.update(node.output)
        found.extend(name for name in node.output if name)
    if not found:
        return []
    from onnx.reference import ReferenceEvaluator

    outputs = [helper.make_empty_tensor_value_info(name) for name in found]
    graph = helper.make_graph(chosen, "shapes", [], outputs, initializer=constants)
    chain = helper.make_model(graph, opset_imports=model.opset_import)
    try:
        values = ReferenceEvaluator(chain, new_ops=[_gather_elements()]).run(None, {})
    except Exception:  # a damaged file may raise anything; a value without a type is refused by name later
        return []
    made = zip(found, values, strict=True)
    return [numpy_helper.from_array(value, name) for name, value in made if value.size <= _MOST_ELEMENTS]


@cache
def _gather_elements() -> Any:
    """The op as numpy has it: that of onnx's reference reads no more than 32 places of an axis, else it fails."""
    import numpy as np
    from onnx.reference.op_run import OpRun

    class GatherElements(OpRun):  # type: ignore[misc, no-any-unimported, unused-ignore]
        def _run(self, data: Any, indices: Any, axis: int = 0) -> tuple[Any]:
            return (np.take_along_axis(data, indices.astype(np.int64), axis),)

    return GatherElements


def constant_tensor(node: Any) -> Any:
    """What a Constant node holds, under the name of its output; None for another node, and for many elements."""
    from onnx import TensorProto, helper

    if node.op_type != "Constant" or len(node.attribute) != 1:
        return None
    (value,) = node.attribute
    if value.name == "value":
        if math.prod(value.t.dims) > _MOST_ELEMENTS:
            return None
        tensor = TensorProto()
        tensor.CopyFrom(value.t)
        tensor.name = node.output[0]
        return tensor
    code = {"value_int": TensorProto.INT64, "value_float": TensorProto.FLOAT}.get(value.name.removesuffix("s"))
    if code is None:
        return None
    numbers = helper.get_attribute_value(value)
    listed = list(numbers) if value.name.endswith("s") else [numbers]
    return helper.make_tensor(node.output[0], code, [len(listed)] if value.name.endswith("s") else [], listed)


def _is_fill(node: Any, stored: Mapping[str, Any]) -> bool:
    """True for an Expand, Range or ConstantOfShape of few elements, told from stored numbers."""
    from onnx import numpy_helper

    places = {"Expand": node.input[1:2], "ConstantOfShape": node.input[:1], "Range": node.input[:3]}.get(node.op_type)
    if not places or any(name not in stored for name in places):
        return False
    given = [numpy_helper.to_array(stored[name]).ravel() for name in places]
    if node.op_type != "Range":
        return math.prod(map(int, given[0])) <= _MOST_ELEMENTS
    start, end, step = (float(values[0]) if values.size == 1 else 0.0 for values in given)
    return step != 0 and (end - start) / step <= _MOST_ELEMENTS


def _known_shape(node: Any, size: TensorType) -> Any:
    """A Shape or Size node as the constant it is."""
    from onnx import TensorProto, helper

    if node.op_type == "Size":
        value = helper.make_tensor("value", TensorProto.INT64, [], [size.elements])
    else:
        ends = {attribute.name: attribute.i for attribute in node.attribute}
        kept = size.shape[ends.get("start", 0) : ends.get("end", len(size.shape))]
        value = helper.make_tensor("value", TensorProto.INT64, [len(kept)], kept)
    return helper.make_node("Constant", [], [node.output[0]], value=value)
