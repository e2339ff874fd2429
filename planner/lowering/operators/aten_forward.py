"""PyTorch's forward ops: rows of the operator table, under their names without `aten.`.

What differs from ONNX is what PyTorch keeps: one backward op makes all gradients of an op, so each of them reads all
that the op reads, and some of it for its shape only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from planner.lowering.operators import flops, onnx_rows, sizes
from planner.lowering.operators import movement as moves
from planner.lowering.operators.flops import no_flops, per_element, per_input_element
from planner.lowering.operators.onnx_rows import FREE, IN, LIKE, ONNX_OPERATORS, OUT, PASS, SUM, VIEW, moved
from planner.lowering.operators.rows import ANY_COUNT, Gradient, Operator, Params, Ref, Sizes, TensorType, Types, each


def _onnx(names: str) -> dict[str, Operator]:
    """Rows of ONNX under PyTorch's names, from pairs such as `gelu=Gelu`."""
    return {ours: ONNX_OPERATORS[theirs] for ours, theirs in (pair.split("=") for pair in names.split())}


def _all(count: int, *reads: Ref) -> tuple[Gradient, ...]:
    """Gradients of so many inputs, made by one backward op that reads all these references."""
    return (Gradient(reads),) * count


def _view(rule: Sizes | None, gradient: Gradient | None = VIEW, *, outputs: int = 1) -> Operator:
    return Operator((gradient,), no_flops, rule, view=True, flows=None if outputs > 1 else (0,), outputs=outputs)


def _reduction(*reads: Ref, count: int = 1, rule: Sizes | None = None) -> Operator:
    return Operator((Gradient(reads),), per_input_element(count), rule or sizes.reduced(whole=True))


def _batch_norm_sizes(*positions: int) -> Sizes:
    def rule(inputs: Types, params: Params) -> tuple[TensorType, ...]:
        return *sizes.statistics(sizes.channels, None)(inputs, params), *(inputs[i] for i in positions)

    return rule


def _rms_sizes(inputs: Types, params: Params) -> tuple[TensorType, ...]:
    return sizes.statistics(sizes.rows)(inputs, params)[:2]


_SEEDS: Final = (TensorType((), "int64"), TensorType((), "int64"))


def _flash_sizes(inputs: Types, params: Params) -> tuple[TensorType, ...]:
    state = TensorType((2,), "uint64"), TensorType((), "uint64")
    return *sizes.attention(inputs, params), *state, TensorType((0,), inputs[0].dtype)


def _efficient_sizes(inputs: Types, params: Params) -> tuple[TensorType, ...]:
    made, rows = sizes.attention(inputs, params)
    # The kernel writes whole tiles of 32 rows.
    length = 32 * -(-rows.shape[-1] // 32) if params.get("compute_log_sumexp") else 0
    return made, TensorType((*rows.shape[:-1], length)), *_SEEDS


def _cudnn_sizes(inputs: Types, params: Params) -> tuple[TensorType, ...]:
    made, rows = sizes.attention(inputs, params)
    return made, TensorType((*rows.shape, 1)), *_SEEDS


def _halved(inputs: Types, params: Params) -> tuple[TensorType, ...]:
    shape = list(inputs[0].shape)
    shape[sizes.axis_of(params, -1, len(shape))] //= 2
    return (TensorType(tuple(shape), inputs[0].dtype),)


def _linear_sizes(inputs: Types, params: Params) -> tuple[TensorType, ...]:
    return (TensorType((*inputs[0].shape[:-1], inputs[1].shape[0]), inputs[0].dtype),)


def _unfolded(inputs: Types, params: Params) -> tuple[TensorType, ...]:
    shape = list(inputs[0].shape)
    axis = int(params["dimension"]) % len(shape)
    shape[axis] = (shape[axis] - int(params["size"])) // int(params["step"]) + 1
    return (TensorType((*shape, int(params["size"])), inputs[0].dtype),)


def _columns(inputs: Types, params: Params) -> tuple[TensorType, ...]:
    windows = sizes.pool(inputs, params)[0].shape
    kernel = math.prod(params["kernel_size"])
    return (TensorType((windows[0], windows[1] * kernel, math.prod(windows[2:])), inputs[0].dtype),)


_MULTIPLY: Final = replace(ONNX_OPERATORS["Mul"], optional=(1,))
_DIVIDE: Final = replace(ONNX_OPERATORS["Div"], sizes=sizes.broadcast_float, optional=(1,))
_BATCH_NORM: Final = Operator(
    _all(3, IN[0], IN[1], *OUT[1:3]), per_element(7), _batch_norm_sizes(), optional=(1, 2), outputs=3
)
_FLASH: Final = Operator(
    _all(3, *IN[:4], *OUT[:2]), flops.attention, sizes.attention, optional=(3,), state=4, chance="dropout_p", outputs=2
)

_ELEMENTWISE: Final[Mapping[str, Operator]] = {
    **_onnx("relu=Relu sigmoid=Sigmoid tanh=Tanh exp=Exp log=Log sqrt=Sqrt neg=Neg abs=Abs sin=Sin cos=Cos tan=Tan"
        " reciprocal=Reciprocal erf=Erf gelu=Gelu silu=Swish elu=Elu celu=Celu mish=Mish softplus=Softplus"
        " hardtanh=Clip clamp=Clip clamp_min=Clip clamp_max=Clip hardswish=HardSwish hardsigmoid=HardSigmoid"
        " leaky_relu=LeakyRelu threshold=ThresholdedRelu atan=Atan asin=Asin acos=Acos sinh=Sinh cosh=Cosh sign=Sign"
        " floor=Floor ceil=Ceil round=Round trunc=Floor add=Add sub=Sub where=Where isnan=IsNaN isinf=IsInf"
        " logical_not=Not bitwise_not=BitwiseNot eq=Equal ne=Equal lt=Less le=LessOrEqual gt=Greater ge=GreaterOrEqual"
        " logical_and=And logical_or=Or logical_xor=Xor bitwise_and=BitwiseAnd bitwise_or=BitwiseOr"
        " bitwise_xor=BitwiseXor"),
    "rsub": Operator((FREE, PASS), per_element(1), sizes.broadcast, inplace=(0, 1)),
    **each("clamp.Tensor clamp_min.Tensor clamp_max.Tensor",
        Operator(_all(3, *IN[:3]), per_element(2), sizes.broadcast, optional=(2,))),
    "rsqrt": onnx_rows.from_output(2),
    "expm1": onnx_rows.from_output(4),
    **each("log1p log2 log10", onnx_rows.from_input(4)),
    "sgn": replace(onnx_rows.from_input(1), gradients=_all(1, IN[0], OUT[0])),
    "mul": _MULTIPLY,
    "div": _DIVIDE,
    "floor_divide": Operator((), per_element(2), sizes.broadcast, inplace=(0, 1)),
    **each("remainder fmod", replace(ONNX_OPERATORS["Mod"], optional=(1,))),
    "pow": Operator(_all(2, IN[0], IN[1], OUT[0]), per_element(8), sizes.broadcast, inplace=(0,)),
    "pow.Tensor_Scalar": onnx_rows.from_input(8),
    "pow.Scalar": replace(onnx_rows.from_output(8), gradients=_all(1, IN[0], OUT[0])),  # a number to a tensor's power
    "xlogy": Operator(_all(2, IN[0], IN[1]), per_element(5), sizes.broadcast, inplace=(0,)),
    **each("maximum minimum atan2", Operator(_all(2, IN[0], IN[1]), per_element(1), sizes.broadcast, inplace=(0, 1))),
    "addcmul": Operator((PASS, Gradient((IN[2],)), Gradient((IN[1],))), per_element(3), sizes.broadcast, inplace=(0,)),
    "addcdiv": Operator((PASS, Gradient((IN[2],)), Gradient((IN[1], IN[2]))), per_element(3), sizes.broadcast,
        inplace=(0,)),
    "lerp": Operator((*_all(2, IN[2]), Gradient(IN[:3])), per_element(3), sizes.broadcast, optional=(2,), inplace=(0,)),
    "masked_fill": Operator((Gradient((IN[1],)), None, Gradient((IN[1],))), per_element(1), LIKE, inplace=(0,)),
    "_prelu_kernel": Operator(_all(2, IN[0], IN[1]), per_element(2), LIKE, inplace=(0,)),
    # The second output is kept where it saves an exponential, and empty elsewhere.
    "log_sigmoid_forward": Operator(_all(1, IN[0], OUT[1]), per_element(8), sizes.like(0, 0), outputs=2),
    "glu": Operator(_all(1, IN[0]), per_element(5), _halved),
}  # fmt: skip

_PRODUCTS: Final[Mapping[str, Operator]] = {
    **_onnx("mm=MatMul bmm=MatMul matmul=MatMul mv=MatMul dot=MatMul"),
    **each("addmm baddbmm", Operator((PASS, Gradient((IN[2],)), Gradient((IN[1],))), flops.dot_product(1),
        sizes.addmm)),
    "linear": Operator((Gradient((IN[1],)), Gradient((IN[0],)), SUM), flops.dot_product(0), _linear_sizes),
    # One backward op for all three, which reads both the image and the weight.
    "convolution": Operator(_all(3, IN[0], IN[1]), flops.conv, sizes.conv),
    # The scores are made tile by tile and never stored. A mask is input 3, and only one of these differentiates it.
    "_scaled_dot_product_flash_attention_for_cpu": _FLASH,
    # (y, log of the sum of exponentials, random state, unused, debug mask), of sequences of one length.
    "_scaled_dot_product_flash_attention": replace(_FLASH, gradients=_all(3, *IN[:3], *OUT[:4]), sizes=_flash_sizes,
        optional=(), optional_outputs=(2, 3, 4), state=3, outputs=5),
    # (y, log of the sum of exponentials, seed, offset).
    "_scaled_dot_product_efficient_attention": replace(_FLASH, gradients=_all(4, *IN[:4], *OUT[:4]),
        sizes=_efficient_sizes, optional_outputs=(2, 3), outputs=4),
    # The same, and a debug mask.
    "_scaled_dot_product_cudnn_attention": replace(_FLASH, gradients=_all(3, *IN[:4], *OUT[:4]), sizes=_cudnn_sizes,
        optional_outputs=(2, 3, 4), outputs=5),
    # (x, weights, recurrent weights, two biases, h, c) -> (hidden states, h, c, the library's own). FLOPs: products.
    "mkldnn_rnn_layer": Operator(_all(7, *IN[:7], *OUT[:4]), flops.layer(1), None, flows=(0, 1, 2), outputs=4),
    # (gates of x, gates of h, c, two biases) -> (h, c, the four gates).
    "_thnn_fused_lstm_cell": Operator(_all(5, *IN[:5], *OUT[1:3]), per_input_element(4), sizes.like(2, 2, 0),
        optional=(3, 4), flows=(0, 1), outputs=3),
}  # fmt: skip

_NORMALIZATIONS: Final[Mapping[str, Operator]] = {
    # (x, scale, shift, running mean and variance) -> (y, mean, 1/std): pure. The running statistics change by an op of
    # their own (`UpdateStatistics`), or, of the eager op, as outputs 3 and 4 in place of inputs 3 and 4.
    **each("native_batch_norm _native_batch_norm_legit",
        replace(_BATCH_NORM, sizes=_batch_norm_sizes(3, 4), updates=((3, 3), (4, 4)), recomputable=False, outputs=5,
        fewer=_BATCH_NORM)),
    "_native_batch_norm_legit_functional": replace(_BATCH_NORM, sizes=_batch_norm_sizes(3, 4), outputs=5),
    # Inference: the size of outputs 1 and 2 depends on the device.
    "_native_batch_norm_legit_no_training": Operator(_all(3, IN[0], IN[1], *IN[3:5], OUT[1]), per_element(2), None,
        optional=(1, 2), optional_outputs=(1,), outputs=3),
    # One more output: what cuDNN reserves.
    "cudnn_batch_norm": replace(_BATCH_NORM, gradients=_all(3, IN[0], IN[1], *OUT[1:4]), sizes=None, outputs=4),
    "native_layer_norm": Operator(_all(3, *IN[:3], *OUT[1:3]), per_element(8), sizes.statistics(sizes.rows),
        optional=(1, 2), outputs=3),
    "native_group_norm": Operator(_all(3, IN[0], IN[1], *OUT[1:3]), per_element(8),
        sizes.statistics(lambda shape, params: (params["N"], params["group"]), None), optional=(1, 2), outputs=3),
    "_fused_rms_norm": Operator((Gradient((IN[0], IN[1], OUT[1])), Gradient((IN[0], OUT[1]))), per_element(5),
        _rms_sizes, optional=(1,), outputs=2),
    **_onnx("_softmax=Softmax _log_softmax=LogSoftmax _safe_softmax=Softmax"),
    "native_dropout": Operator(_all(1, OUT[1]), per_element(2), sizes.with_mask, inplace=(0,), inplace_backward=True,
        state=1, chance="train", outputs=2),
}  # fmt: skip

_LOSSES: Final[Mapping[str, Operator]] = {
    # (log-probabilities, labels, weights) -> (loss, total weight); the scores for their shape.
    **each("nll_loss_forward nll_loss2d_forward", Operator(_all(1, *IN[:3], OUT[1]), per_input_element(1),
        sizes.with_second(sizes.label_loss, TensorType(())), optional=(2,), outputs=2)),
    **each("mse_loss smooth_l1_loss huber_loss", Operator(_all(2, *IN[:2]), per_input_element(3), sizes.loss)),
    "binary_cross_entropy": Operator(_all(2, *IN[:3]), per_input_element(8), sizes.loss, optional=(2,)),
    "binary_cross_entropy_with_logits": Operator(_all(2, *IN[:4]), per_input_element(8), sizes.loss, optional=(2, 3)),
}  # fmt: skip

_WINDOWS: Final[Mapping[str, Operator]] = {
    # The backward reads the image for its shape alone.
    **each("max_pool2d_with_indices max_pool3d_with_indices",
        Operator(_all(1, IN[0], OUT[1]), flops.pool, sizes.with_indices(sizes.pool), outputs=2)),
    **each("avg_pool2d avg_pool3d", Operator(_all(1, IN[0]), flops.pool, sizes.pool)),
    **each("_adaptive_avg_pool2d _adaptive_avg_pool3d", Operator(_all(1, IN[0]), per_input_element(1), sizes.resized)),
    "adaptive_max_pool2d": Operator(_all(1, IN[0], OUT[1]), per_input_element(1), sizes.with_indices(sizes.resized),
        outputs=2),
    **each("upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d"
        " _upsample_bilinear2d_aa upsample_trilinear3d", Operator((FREE,), per_element(8), sizes.resized)),
    **each("upsample_bicubic2d _upsample_bicubic2d_aa", Operator((FREE,), per_element(32), sizes.resized)),
    **each("reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d",
        Operator(_all(1, IN[0]), no_flops, moves.aten_padded)),
    "grid_sampler_2d": Operator(_all(2, *IN[:2]), per_element(8),
        lambda inputs, params: (TensorType((*inputs[0].shape[:2], *inputs[1].shape[1:3]), inputs[0].dtype),)),
    "im2col": Operator((FREE,), no_flops, _columns),
}  # fmt: skip

_REDUCTIONS: Final[Mapping[str, Operator]] = {
    **each("sum mean", _reduction()),
    **each("amax amin logsumexp", _reduction(IN[0], OUT[0], rule=sizes.reduced())),
    **each("prod linalg_vector_norm norm", _reduction(IN[0], OUT[0], count=2)),
    "var": _reduction(IN[0], count=3),
    "std": _reduction(IN[0], OUT[0], count=3),
    "var_mean": replace(_reduction(IN[0], count=3, rule=sizes.reduced(outputs=2)), flows=None, outputs=2),
    **each("any all", Operator((), per_input_element(1), sizes.reduced(dtype="bool"))),
    **each("argmax argmin", Operator((), per_input_element(1), sizes.arg_reduced(keep=False))),
    # Along one axis with indices; of all elements without.
    **each("max min", Operator(_all(1, OUT[1]), per_input_element(1), sizes.with_indices(sizes.reduced()), outputs=2,
        fewer=_reduction(IN[0], OUT[0], rule=sizes.reduced()))),
    **_onnx("cumsum=CumSum topk=TopK"),
    "sort": Operator(_all(1, OUT[1]), flops.sort, sizes.with_indices(LIKE), outputs=2),
}  # fmt: skip

_VIEWS: Final[Mapping[str, Operator]] = {
    **each("view _unsafe_view reshape _reshape_alias", _view(moves.reshaped)),
    **each("permute t", _view(moves.transposed)),
    "transpose": _view(moves.swapped),
    **each("squeeze", _view(moves.squeezed)),
    "unsqueeze": _view(moves.unsqueezed),
    "expand": _view(moves.expanded, SUM),
    "select": _view(moves.selected, FREE),
    "slice": _view(moves.aten_sliced, FREE),
    "unfold": _view(_unfolded, FREE),
    "diagonal": _view(None, FREE),
    "as_strided": _view(sizes.given("size"), FREE),
    **each("alias lift_fresh", _view(LIKE, PASS)),
    "detach": _view(LIKE, None),
    "view_as_complex": _view(None),
    "view_as_real": _view(None),
    "view.dtype": _view(None, None),
    **each("split split_with_sizes unsafe_split", _view(moves.split, FREE, outputs=ANY_COUNT)),
    "unbind": _view(moves.unbound, FREE, outputs=ANY_COUNT),
}  # fmt: skip

_MOVES: Final[Mapping[str, Operator]] = {
    **_onnx("cat=Concat repeat=Tile tril=Trilu triu=Trilu index_select=Gather embedding=Gather"),
    "stack": Operator((FREE,), no_flops, moves.stacked, variadic=True),
    **each("clone lift_fresh_copy", Operator((PASS,), no_flops, LIKE)),
    "_to_copy": moved(moves.cast),
    "copy": Operator((None, PASS), no_flops, LIKE, moved=moves.none_read),
    "constant_pad_nd": moved(moves.aten_padded),
    **each("flip roll", moved(LIKE)),
    "pixel_shuffle": moved(lambda inputs, params: moves.depth_to_space(inputs,
        {"blocksize": params["upscale_factor"]})),
    "pixel_unshuffle": moved(lambda inputs, params: moves.space_to_depth(inputs,
        {"blocksize": params["downscale_factor"]})),
    "fill": Operator((None, FREE), no_flops, LIKE, moved=moves.none_read),
    # The backward reads the table for its shape alone.
    "gather": Operator((Gradient(IN[:2], flops="elements"), None), no_flops, moves.gathered_elements,
        moved=moves.part_moved),
    "index": Operator((Gradient(IN[1:5], flops="elements"),), no_flops, moves.indexed, moved=moves.part_moved,
        optional=(2, 3, 4), inputs=5),
    # This row holds for one tensor of indices.
    "index_put": replace(ONNX_OPERATORS["ScatterElements"], inputs=3),
    "scatter": ONNX_OPERATORS["ScatterElements"],
    "scatter_add": Operator((PASS, None, Gradient((IN[1],), flops="elements")), flops.added, LIKE, inplace=(0,)),
    "index_add": Operator((PASS, None, Gradient(IN[1:3], flops="elements")), flops.added, LIKE, inplace=(0,)),
    **each("slice_scatter select_scatter", Operator((FREE, FREE), no_flops, LIKE, inplace=(0,))),
}  # fmt: skip

FORWARD: Final[Mapping[str, Operator]] = MappingProxyType(
    {**_ELEMENTWISE, **_PRODUCTS, **_NORMALIZATIONS, **_LOSSES, **_WINDOWS, **_REDUCTIONS, **_VIEWS, **_MOVES}
)
