"""The operator table, ONNX's names: what each op costs, may overwrite, and what its gradients read.

Beside the standard's ops it has those of our zoo (`FusedAttention`, `UpdateStatistics`) and of onnxruntime's training
graphs. `planner.lowering.operators.aten_rows` has PyTorch's; `planner.lowering.operators.lookup` looks up both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from planner.lowering.operators import flops, sizes
from planner.lowering.operators import movement as moves
from planner.lowering.operators.flops import no_flops, per_element, per_input_element
from planner.lowering.operators.rows import ANY_COUNT, Gradient, Operator, Params, Ref, Sizes, TensorType, Types, each

IN: Final[tuple[Ref, ...]] = tuple(("in", i) for i in range(8))
OUT: Final[tuple[Ref, ...]] = tuple(("out", k) for k in range(8))
FREE: Final = Gradient()  # reads nothing but the gradient of the output
SUM: Final = Gradient(flops="elements")
PASS: Final = Gradient(how="pass", flops="elements")
VIEW: Final = Gradient(how="view")
LIKE: Final = sizes.like(0)
_EXTREME: Final = Gradient((OUT[0],), own=True)  # the gradient goes to where an input equals the output
_PRODUCT: Final = (Gradient((IN[1],)), Gradient((IN[0],)))  # each factor's gradient reads the other factor
_FACTORS: Final = (*_PRODUCT, SUM)
_ATTENTION: Final = Gradient((*IN[:3], *OUT[:2]))
_SCORES: Final = Gradient(IN[:4])  # the scores are made again
_AGAIN: Final = (_SCORES, _SCORES, Gradient((IN[0], IN[1], IN[3])), _SCORES)  # the gradient of v reads no v
_AT: Final = Gradient((IN[1],), flops="elements")  # the gradient reads the indices alone


def from_output(count: int) -> Operator:
    """An elementwise op whose gradient reads the output."""
    return Operator((Gradient((OUT[0],)),), per_element(count), LIKE, inplace=(0,), inplace_backward=True)


def from_input(count: int, *, static: tuple[int, ...] = ()) -> Operator:
    """An elementwise op whose gradient reads the input."""
    return Operator((Gradient((IN[0],)),), per_element(count), LIKE, inplace=(0,), inplace_backward=True, static=static)


def flat(count: int) -> Operator:
    """An elementwise op with steps and no slope: no gradient flows."""
    return Operator((), per_element(count), LIKE, inplace=(0,))


def predicate(rule: Sizes = sizes.broadcast_bool) -> Operator:
    """An elementwise op that makes bools."""
    return Operator((), per_element(1), rule)


def reshaped(rule: Sizes, *static: int) -> Operator:
    """The same bytes under another shape."""
    return Operator((VIEW,), no_flops, rule, view=True, static=static)


def moved(rule: Sizes | None, *static: int) -> Operator:
    """Elements copied to other places: linear, so the gradient reads nothing."""
    return Operator((FREE,), no_flops, rule, static=static)


def reduction(*reads: Ref) -> Operator:
    """Fewer elements along some axes."""
    return Operator((Gradient(reads),), per_input_element(1), sizes.reduced(keep=True), static=(1,))


def draw(*static: int, state: int = 0, rule: Sizes | None = moves.drawn) -> Operator:
    """Random numbers: the last input is the saved state of the generator."""
    return Operator((), per_element(4), rule, static=static, state=state)


def _normalized(count: int, sizes_of: Sizes = LIKE) -> Operator:
    # (x, scale, shift) -> y alone: the backward finds the statistics again.
    return Operator((Gradient((IN[0], IN[1])), Gradient((IN[0],)), SUM), per_element(count), sizes_of)


def _recurrent(
    gates: int,
    pointwise: int,
    parts: int,
    outputs: int,
    cell: tuple[Ref, ...],
    *,
    hidden: Ref = OUT[0],
    inputs: int = 5,
) -> Operator:
    """A recurrent layer; the last output is what the gradients need of each step.

    The reserve and the workspace of a library are not counted, as only the library tells them: see
    `Footprint.not_counted`; a calibration takes them in. Inputs: x, weights, recurrent weights, bias, first hidden
    state, and for an LSTM first cell and peepholes.

    Args:
        parts: values kept a step and hidden unit.
        cell: what every gradient reads to find the gradients of the gates.
        hidden: where the gradient of the recurrent weights reads the hidden states.
        inputs: 7 where inputs 5 and 6 exist.
    """
    states = (4, 5) if inputs > 5 else (4,)
    rule = sizes.recurrent(parts, states=len(states))
    # Beside the cell, dX reads the weights, dW reads x, and dR the hidden states.
    further: list[tuple[Ref, ...]] = [(IN[1],), (IN[0],), (IN[4], hidden), *[()] * (inputs - 3)]
    reads = [dict.fromkeys((*cell, *IN[5:inputs], *more)) for more in further]
    gradients = tuple(Gradient(tuple(refs)) for refs in reads)
    count, optional, flows = flops.recurrent(gates, pointwise), tuple(range(3, inputs)), range(outputs - bool(parts))
    row = Operator(
        gradients, count, rule, optional=optional, flows=tuple(flows), static=(4,), untrained=states, outputs=outputs
    )
    if not parts:
        return row
    # Where nothing is kept, the backward runs the forward pass again from all its inputs.
    again = (Gradient(IN[:inputs]),) * inputs
    fewer = replace(row, gradients=again, sizes=_outputs(rule, -1), flows=None, untrained=(), outputs=outputs - 1)
    return replace(row, fewer=fewer)


def _scores_bytes(inputs: Types, outputs: Types, params: Params) -> int:
    """The scores of all heads at once, as the standard's own definition of the op has them."""
    q, k = inputs[0], inputs[1]
    heads = int(params.get("q_num_heads") or 1) if len(q.shape) == 3 else q.shape[1]
    return TensorType((q.shape[0], heads, q.shape[-2], k.shape[-2]), q.dtype).nbytes


def _shape_sizes(inputs: Types, params: Params) -> tuple[TensorType, ...]:
    rank = len(inputs[0].shape)
    return (TensorType((len(range(rank)[params.get("start") : params.get("end")]),), "int64"),)


def _outputs(rule: Sizes, count: int) -> Sizes:
    """The first outputs of a rule, or with -1 all but the last."""
    return lambda inputs, params: rule(inputs, params)[:count]


_PRODUCTS: Final[Mapping[str, Operator]] = {
    "Conv": Operator(_FACTORS, flops.conv, sizes.conv),
    "ConvTranspose": Operator(_FACTORS, flops.conv_transpose, sizes.conv_transpose),
    "Gemm": Operator(_FACTORS, flops.gemm, sizes.gemm),
    "MatMul": Operator(_PRODUCT, flops.dot_product(0), sizes.matmul),
    # Each factor's gradient reads all the others; with one factor it is a sum or a transposition.
    "Einsum": Operator((Gradient((IN[1], IN[2])), Gradient((IN[0], IN[2])), Gradient((IN[0], IN[1]))), flops.einsum,
        sizes.einsum, optional=(1, 2)),
    # (x, weight, offset, bias, mask): the sampled places depend on the offsets.
    "DeformConv": Operator((Gradient((IN[1], IN[2], IN[4])), Gradient((IN[0], IN[2], IN[4])),
        Gradient((IN[0], IN[1], IN[2], IN[4])), SUM, Gradient((IN[0], IN[1], IN[2]))), flops.deform_conv, sizes.conv,
        optional=(3, 4)),
    # (q, k, v) -> (y, log of the sum of exponentials, a float32 a row): the scores are made tile by tile and never
    # stored (Dao et al. 2022). Backward: 3 times the forward here, 2.5 in truth.
    "FusedAttention": Operator((_ATTENTION, _ATTENTION, _ATTENTION), flops.attention, sizes.attention, outputs=2,
        fewer=Operator((Gradient(IN[:3]),) * 3, flops.attention, _outputs(sizes.attention, 1))),
    # (q, k, v, mask) -> y: nothing is kept, the backward makes the scores again. More outputs: past keys and values.
    "Attention": Operator(_AGAIN, flops.attention, None, workspace=_scores_bytes, optional=(3, 4, 5),
        untrained=(3, 4, 5), outputs=3, fewer=Operator(_AGAIN, flops.attention, _outputs(sizes.attention, 1),
        workspace=_scores_bytes, optional=(3, 4, 5))),
    # Kept of each step, as PyTorch's own cells do: LSTM's four gates, cell, tanh of it and hidden state; GRU's three
    # gates and what the hidden state adds to the last.
    "LSTM": _recurrent(4, 14, 7, 4, (IN[2], OUT[3]), hidden=OUT[3], inputs=7),
    "GRU": _recurrent(3, 12, 4, 3, (IN[2], IN[4], OUT[0], OUT[2])),
    "RNN": _recurrent(1, 4, 0, 2, (IN[2], OUT[0])),
}  # fmt: skip

_NORMALIZATIONS: Final[Mapping[str, Operator]] = {
    # Training: (x, scale, shift) -> (y, saved mean, saved 1/std). Inference: running mean and variance at inputs 3, 4.
    "BatchNormalization": Operator((Gradient((IN[0], IN[1], OUT[1], OUT[2])), Gradient((IN[0], OUT[1], OUT[2])), SUM),
        per_element(7), sizes.statistics(sizes.channels), outputs=3,
        fewer=Operator((Gradient((IN[1], IN[4])), Gradient((IN[0], IN[3], IN[4])), SUM), per_element(2), LIKE,
        inplace=(0,))),
    # (running mean, running variance, batch mean, batch 1/std) -> new running mean and variance.
    "UpdateStatistics": Operator((), per_element(6), sizes.like(0, 1), updates=((0, 0), (1, 1)), recomputable=False,
        outputs=2),
    # (x, scale, shift) -> (y, mean, 1/std) of each row; with one output the backward finds the statistics again.
    "LayerNormalization": Operator((Gradient((IN[0], IN[1], OUT[1], OUT[2])), Gradient((IN[0], OUT[1], OUT[2])), SUM),
        per_element(8), sizes.statistics(sizes.rows), outputs=3, fewer=_normalized(8)),
    "InstanceNormalization": _normalized(8),
    "GroupNormalization": _normalized(8),
    # (x, scale) -> (y, 1/root mean square) of each row; with one output the backward finds it again.
    "RMSNormalization": Operator((Gradient((IN[0], IN[1], OUT[1])), Gradient((IN[0], OUT[1]))), per_element(5),
        _outputs(sizes.statistics(sizes.rows), 2), outputs=2,
        fewer=Operator((Gradient((IN[0], IN[1])), Gradient((IN[0],))), per_element(5), LIKE)),
    "LpNormalization": Operator((Gradient((IN[0],)),), per_element(4), LIKE),
    "MeanVarianceNormalization": Operator((Gradient((IN[0],)),), per_element(6), LIKE),
    "LRN": Operator((Gradient((IN[0], OUT[0])),), flops.lrn, LIKE),
    "Softmax": Operator((Gradient((OUT[0],)),), per_element(5), LIKE),
    "LogSoftmax": Operator((Gradient((OUT[0],)),), per_element(5), LIKE),
    "Hardmax": Operator((), per_element(1), LIKE),
    # (x, generator state) -> (y, bool mask); with one output it is the identity of inference.
    "Dropout": Operator((Gradient((OUT[1],)),), per_element(2), sizes.with_mask, inplace=(0,), inplace_backward=True,
        state=1, static=(1, 2), outputs=2, fewer=Operator((PASS,), no_flops, LIKE, view=True, static=(1, 2))),
    # (logits, int64 labels, weights) -> (loss, log-probabilities); the gradient is exp of these minus one-hot labels.
    "SoftmaxCrossEntropyLoss": Operator((Gradient((OUT[1], IN[1], IN[2])),), per_input_element(5),
        sizes.with_second(sizes.label_loss, 0), optional=(2,), outputs=2,
        fewer=Operator((Gradient((IN[0], IN[1], IN[2])),), per_input_element(5), sizes.label_loss, optional=(2,))),
    "NegativeLogLikelihoodLoss": Operator((Gradient((IN[1], IN[2])),), per_input_element(1), sizes.label_loss,
        optional=(2,)),
}  # fmt: skip

_WINDOWS: Final[Mapping[str, Operator]] = {
    # With its int64 indices the backward needs nothing else; without, it finds the maximum again, as cuDNN's does.
    "MaxPool": Operator((Gradient((OUT[1],)),), flops.pool, sizes.with_indices(sizes.pool), outputs=2,
        fewer=Operator((Gradient((IN[0], OUT[0])),), flops.pool, sizes.pool)),
    "AveragePool": Operator((FREE,), flops.pool, sizes.pool),
    "LpPool": Operator((Gradient((IN[0], OUT[0])),), lambda *given: 2 * flops.pool(*given), sizes.pool),
    "GlobalAveragePool": Operator((FREE,), per_input_element(1), sizes.global_pool),
    "GlobalMaxPool": Operator((Gradient((IN[0], OUT[0])),), per_input_element(1), sizes.global_pool),
    "GlobalLpPool": Operator((Gradient((IN[0], OUT[0])),), per_input_element(2), sizes.global_pool),
    "MaxUnpool": Operator((_AT,), no_flops, None, static=(2,)),
    # (x, boxes, image of each box): the mean of interpolated samples.
    "RoiAlign": Operator((Gradient((IN[1], IN[2])),), per_element(16), None),
    # (x, places to sample).
    "GridSample": Operator((Gradient((IN[1],)), Gradient((IN[0], IN[1]))), per_element(8), None),
    "AffineGrid": Operator((FREE,), per_element(4), None, static=(1,)),
    # Interpolation is linear in x; region, scales and sizes are arguments. FLOPs: bilinear.
    "Resize": Operator((FREE,), per_element(8), sizes.resize, static=(1, 2, 3)),
    "Upsample": Operator((FREE,), per_element(8), sizes.resize, static=(1,)),
    "Col2Im": Operator((FREE,), per_input_element(1), None, static=(1, 2)),
}  # fmt: skip

_ELEMENTWISE: Final[Mapping[str, Operator]] = {
    "Relu": from_output(1),
    **each("Sigmoid Tanh Exp", from_output(4)),
    **each("Sqrt Reciprocal", from_output(1)),
    "Tan": from_output(8),  # 1 + y^2
    # The gradient reads the input: the sign of the output tells the side only for positive slopes.
    "LeakyRelu": from_input(2),
    "Clip": from_input(2, static=(1, 2)),
    **each("Gelu Erf Softplus Mish", from_input(8)),
    **each("Log HardSwish Elu Selu Celu Swish Softsign Shrink", from_input(4)),
    **each("Sin Cos Asin Acos Atan Sinh Cosh Asinh Acosh Atanh", from_input(8)),
    "HardSigmoid": from_input(3),
    "ThresholdedRelu": from_input(1),
    "Abs": from_input(1),
    "Neg": Operator((FREE,), per_element(1), LIKE, inplace=(0,), inplace_backward=True),
    "Add": Operator((PASS, PASS), per_element(1), sizes.broadcast, inplace=(0, 1)),
    "Sum": Operator((PASS,), flops.folded(0), sizes.broadcast, variadic=True, inplace=(0,)),
    "Mean": Operator((FREE,), flops.folded(1), sizes.broadcast, variadic=True, inplace=(0,)),
    **each("Max Min", Operator((_EXTREME,), flops.folded(0), sizes.broadcast, variadic=True, inplace=(0,))),
    "Sub": Operator((PASS, FREE), per_element(1), sizes.broadcast, inplace=(0, 1)),
    "Mul": Operator(_PRODUCT, per_element(1), sizes.broadcast, inplace=(0, 1), inplace_backward=True),
    "Div": Operator((Gradient((IN[1],)), Gradient((IN[0], IN[1]))), per_element(1), sizes.broadcast, inplace=(0, 1),
        inplace_backward=True),
    # a - b trunc(a / b), or with floor.
    "Mod": Operator((PASS, Gradient((IN[0], IN[1]))), per_element(3), sizes.broadcast, inplace=(0, 1)),
    # (base, exponent): the exponent's gradient is the output times the logarithm of the base.
    "Pow": Operator((Gradient((IN[0], IN[1])), Gradient((IN[0], OUT[0]))), per_element(8), sizes.broadcast,
        inplace=(0,)),
    "PRelu": Operator((Gradient((IN[0], IN[1])), Gradient((IN[0],))), per_element(2), LIKE, inplace=(0,)),
    # (condition, x, y): the bool condition alone says where the gradient goes.
    "Where": Operator((None, Gradient((IN[0],)), Gradient((IN[0],))), per_element(1), sizes.chosen, inplace=(1, 2)),
    # (x, cosines, sines, positions): the backward rotates back. The tables are constants.
    "RotaryEmbedding": Operator((Gradient(IN[1:4]), None, None), per_element(3), LIKE, optional=(3,)),
    **each("Equal Greater GreaterOrEqual Less LessOrEqual And Or Xor", predicate()),
    **each("Not IsNaN IsInf", predicate(sizes.like_as(0, "bool"))),
    **each("Floor Ceil Round Sign BitwiseNot", flat(1)),
    **each("BitwiseAnd BitwiseOr BitwiseXor BitShift", Operator((), per_element(1), sizes.broadcast)),
}  # fmt: skip

_REDUCTIONS: Final[Mapping[str, Operator]] = {
    **each("ReduceSum ReduceMean", reduction()),
    **each("ReduceMax ReduceMin ReduceProd ReduceL2 ReduceLogSumExp", reduction(IN[0], OUT[0])),
    **each("ReduceL1 ReduceSumSquare", reduction(IN[0])),
    "ReduceLogSum": reduction(OUT[0]),  # 1 / sum = exp(-y)
    **each("ArgMax ArgMin", Operator((), per_input_element(1), sizes.arg_reduced(keep=True))),
    "CumSum": Operator((FREE,), per_element(1), LIKE, static=(1,)),
    "CumProd": Operator((Gradient((IN[0], OUT[0])),), per_element(1), LIKE, static=(1,)),
    # (x) -> (values, int64 indices): the gradient goes back to where the values came from.
    "TopK": Operator((Gradient((OUT[1],), flops="elements"),), flops.sort, moves.top, static=(1,), outputs=2),
    "Det": Operator((Gradient((IN[0], OUT[0])),), per_input_element(2),
        lambda inputs, params: (inputs[0]._replace(shape=inputs[0].shape[:-2]),)),
}  # fmt: skip

_MOVES: Final[Mapping[str, Operator]] = {
    "Concat": Operator((FREE,), no_flops, moves.concatenated, variadic=True),
    "Transpose": moved(moves.transposed),
    "Cast": moved(moves.cast),
    "CastLike": moved(None, 1),
    "Pad": moved(moves.padded, 1, 2, 3),
    "Slice": replace(moved(moves.sliced, 1, 2, 3, 4), moved=moves.part_moved),
    "Tile": moved(moves.tiled, 1),
    "Expand": moved(moves.expanded, 1),
    "DepthToSpace": moved(moves.depth_to_space),
    "SpaceToDepth": moved(moves.space_to_depth),
    "Trilu": moved(LIKE, 1),
    "CenterCropPad": replace(moved(None, 1), moved=moves.part_moved),
    "DFT": Operator((FREE,), per_input_element(5), None, static=(1, 2)),
    # (x, length of each sequence).
    "ReverseSequence": Operator((Gradient((IN[1],)),), no_flops, LIKE),
    # One backward op joins the gradients of all outputs.
    "Split": Operator((FREE,), no_flops, moves.split, flows=None, static=(1,), outputs=ANY_COUNT),
    # (table, int64 indices): an embedding. Only the rows asked for are read; the gradient is a whole table.
    "Gather": Operator((_AT, None), no_flops, moves.gathered, moved=moves.part_moved),
    "GatherElements": Operator((_AT, None), no_flops, moves.gathered_elements, moved=moves.part_moved),
    "GatherND": Operator((_AT, None), no_flops, moves.gathered_slices, moved=moves.part_moved),
    # (x, indices, updates): overwritten elements have no gradient, and the updates get theirs.
    **each("Scatter ScatterElements ScatterND", Operator((_AT, None, _AT), no_flops, LIKE, inplace=(0,))),
    # (indices), with depth and both values as arguments.
    "OneHot": Operator((), no_flops, moves.one_hot, static=(1, 2)),
    "EyeLike": Operator((), no_flops, None, static=(0,)),
    "Shape": Operator((), no_flops, _shape_sizes, moved=moves.none_read),
    "Size": Operator((), no_flops, lambda inputs, params: (TensorType((), "int64"),), moved=moves.none_read),
    "Identity": Operator((PASS,), no_flops, LIKE, view=True),
    "Reshape": reshaped(moves.reshaped, 1),
    "Flatten": reshaped(moves.flattened),
    "Squeeze": reshaped(moves.squeezed, 1),
    "Unsqueeze": reshaped(moves.unsqueezed, 1),
    **each("RandomNormal RandomUniform", draw()),
    **each("RandomNormalLike RandomUniformLike", draw(0, rule=None)),
    "Bernoulli": draw(state=1, rule=LIKE),
    "Multinomial": draw(state=1, rule=moves.sampled("int32")),
}  # fmt: skip

# Ops of a training step that others differentiated (onnxruntime's names); nothing differentiates them again.
_GRADIENTS: Final[Mapping[str, Operator]] = {
    "ReluGrad": flat(1),
    "Scale": flat(1),
    "DropoutGrad": Operator((), per_element(2), LIKE, inplace=(0,), static=(2, 3)),
    "ConvGrad": Operator((), flops.conv_gradient, outputs=3),
    "BatchNormInternal": Operator((), per_element(7), sizes.like(0, 3, 4, 3, 3), outputs=5),
    "BatchNormalizationGrad": Operator((), per_element(11), sizes.like(1, 2, 2), outputs=3),
    "MaxPoolGrad": Operator((), per_input_element(1)),
    "AveragePoolGrad": Operator((), per_element(1)),
    "SoftmaxCrossEntropyLossGrad": Operator((), per_element(2), sizes.like(1)),
    "ConcatTraining": Operator((), no_flops, outputs=2),
    "SplitTraining": Operator((), no_flops, outputs=ANY_COUNT),
    # (buffer, gradient, flag) -> (done, the buffer's new version, in place).
    "InPlaceAccumulatorV2": Operator((), per_input_element(1), updates=((0, 1),), recomputable=False, outputs=2),
}

ONNX_OPERATORS: Final[Mapping[str, Operator]] = MappingProxyType(
    {**_PRODUCTS, **_NORMALIZATIONS, **_WINDOWS, **_ELEMENTWISE, **_REDUCTIONS, **_MOVES, **_GRADIENTS}
)

BY_VALUES: Final = "the size of its output depends on the values it reads, and sizes must be known before the step runs"
_SEQUENCES: Final = "it makes or reads a sequence, an optional or a string, which is no tensor of known size"
_QUANTIZED: Final = "it works on quantized integers, and has no gradient; export the model in floating point"
_SUBGRAPHS: Final = (
    "which of its subgraphs runs, and how often, depends on what is fed; export the branch you run, or fix the inputs"
    " that decide and run a simplifier such as onnxsim"
)

#: Refused even where they fold: what they make of stored integers is no weight that is trained.
QUANTIZED_OPS: Final = frozenset({
    "MatMulInteger", "ConvInteger", "QLinearConv", "QLinearMatMul", "QuantizeLinear", "DequantizeLinear",
    "DynamicQuantizeLinear",
})  # fmt: skip

#: Ops that cannot have a row, each with the reason.
REFUSED: Final[Mapping[str, str]] = MappingProxyType({
    **dict.fromkeys(("NonZero", "Unique", "Compress", "NonMaxSuppression", "Range"), BY_VALUES),
    **dict.fromkeys(("SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert",
        "SequenceLength", "SequenceMap", "ConcatFromSequence", "SplitToSequence", "Optional", "OptionalGetElement",
        "OptionalHasElement", "StringConcat", "StringNormalizer", "StringSplit", "RegexFullMatch", "TfIdfVectorizer",
        "ImageDecoder"), _SEQUENCES),
    **dict.fromkeys(sorted(QUANTIZED_OPS), _QUANTIZED),
    **dict.fromkeys(("If", "Loop", "Scan"), _SUBGRAPHS),
})  # fmt: skip
