"""The operator table, PyTorch's names: the ops of captured training graphs, forward, backward and update.

A node's reads are the op's tensor arguments in the order of its schema, absent ones and numbers left out, lists one
behind the other; its outputs are the tensors it returns. Where an op is the same as one of ONNX, it is that row;
`aten_forward` says what differs. Overloads share a row, but for those named here.

Source: autograd and `flop_counter` of torch 2.13.0, asked op by op: `bench/aten_facts.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from planner.lowering.operators import flops, sizes
from planner.lowering.operators import movement as moves
from planner.lowering.operators.aten_forward import FORWARD
from planner.lowering.operators.flops import no_flops, per_element, per_input_element, per_output
from planner.lowering.operators.onnx_rows import BY_VALUES, LIKE, draw, flat, from_input, from_output
from planner.lowering.operators.rows import ANY_COUNT, Count, Operator, Params, Sizes, TensorType, Types, each


def _backward(count: int, *like: int, flops_of: Count | None = None) -> Operator:
    """An op of a backward pass, which nothing differentiates again; its outputs are like these inputs."""
    inplace = (0,) if like == (0,) else ()
    return Operator((), flops_of or per_element(count), _masked(*like), inplace=inplace, outputs=len(like))


def _masked(*like: int) -> Sizes:
    """The outputs that the op is asked for."""

    def rule(inputs: Types, params: Params) -> tuple[TensorType, ...]:
        wanted = params.get("output_mask") or params.get("grad_input_mask") or [True] * len(like)
        return tuple(inputs[i] for i, asked in zip(like, wanted, strict=True) if asked)

    return rule


def _in_place(row: Operator) -> Operator:
    """The in-place form of an op: output 0 is the new version of input 0; gradients read a copy saved before."""
    return replace(row, sizes=LIKE, inplace=(), inplace_backward=False, updates=((0, 0),))


def _foreach(lists: int, count: int, *, updates: bool, number: bool = False) -> Operator:
    """An op on each tensor of a list, as optimizers use it; the last input may be a number held by a tensor."""

    def rule(inputs: Types, params: Params) -> tuple[TensorType, ...]:
        return tuple(inputs[: (len(inputs) - number) // lists])

    return Operator((), per_output(count), rule, lists=lists, updates=((0, 0),) if updates else (), outputs=ANY_COUNT)


def _fused(lists: int, count: int, *updated: int) -> Operator:
    """A whole optimizer step: parameters, gradients and states as lists, the parameters and these states updated."""

    def rule(inputs: Types, params: Params) -> tuple[TensorType, ...]:
        length = len(inputs) // lists
        return tuple(value for i in (0, *updated) for value in inputs[i * length : (i + 1) * length])

    pairs = tuple((i, o) for o, i in enumerate((0, *updated)))
    return Operator((), per_output(count), rule, lists=lists, updates=pairs, recomputable=False, outputs=ANY_COUNT)


def _conv_gradient_sizes(inputs: Types, params: Params) -> tuple[TensorType, ...]:
    weight = inputs[2].shape
    channels = weight[1] * params.get("groups", 1) if params.get("transposed") else weight[0]
    bias = TensorType((channels,), inputs[2].dtype)
    return tuple(made for made, asked in zip((inputs[1], inputs[2], bias), params["output_mask"], strict=True) if asked)


def _integers(inputs: Types, params: Params) -> tuple[TensorType, ...]:
    shape = params["size"] if "size" in params else (params["n"],)
    return (TensorType(tuple(shape), str(params.get("dtype") or "int64")),)


def _table(inputs: Types, params: Params) -> tuple[TensorType, ...]:
    return (TensorType((int(params["num_weights"]), inputs[0].shape[-1]), inputs[0].dtype),)


def _nothing_moved(inputs: Types, outputs: Types, params: Params) -> int:
    return 0


_FACTORIES: Final[Mapping[str, Operator]] = {
    **each("zeros ones full scalar_tensor new_zeros new_ones new_full",
        Operator((), no_flops, moves.filled, moved=moves.none_read)),
    **each("empty new_empty", Operator((), no_flops, moves.filled, moved=_nothing_moved)),
    **each("zeros_like ones_like full_like", Operator((), no_flops, moves.cast, moved=moves.none_read)),
    "empty_like": Operator((), no_flops, moves.cast, moved=_nothing_moved),
    "arange": Operator((), no_flops, moves.counted),
    **each("rand randn", draw()),
    **each("rand_like randn_like randint_like", replace(draw(state=1, rule=moves.cast), moved=moves.none_read)),
    **each("randint randperm", draw(rule=_integers)),
    "multinomial": draw(state=1, rule=moves.sampled("int64")),
    "bernoulli": draw(state=1, rule=LIKE),
    **each("uniform normal_functional exponential", replace(draw(state=1, rule=LIKE), moved=moves.none_read)),
    "bernoulli.Tensor": draw(state=2, rule=LIKE),
}  # fmt: skip

_BACKWARD: Final[Mapping[str, Operator]] = {
    **each("threshold_backward hardtanh_backward leaky_relu_backward native_dropout_backward", _backward(1, 0)),
    **each("sigmoid_backward tanh_backward hardswish_backward hardsigmoid_backward elu_backward", _backward(4, 0)),
    **each("gelu_backward silu_backward mish_backward softplus_backward log_sigmoid_backward", _backward(10, 0)),
    **each("_softmax_backward_data _log_softmax_backward_data", _backward(4, 0)),
    "glu_backward": _backward(5, 1),
    "_prelu_kernel_backward": _backward(2, 1, 1),
    "convolution_backward": Operator((), flops.conv_gradient, _conv_gradient_sizes, outputs=3),
    **each("native_batch_norm_backward", _backward(11, 1, 2, 2)),
    "native_layer_norm_backward": _backward(11, 1, 4, 5),
    "native_group_norm_backward": _backward(11, 1, 4, 4),
    **each("max_pool2d_with_indices_backward avg_pool2d_backward _adaptive_avg_pool2d_backward", _backward(1, 1)),
    **each("reflection_pad2d_backward replication_pad2d_backward", _backward(1, 1)),
    **each("nll_loss_backward nll_loss2d_backward", _backward(1, 1)),
    **each("mse_loss_backward smooth_l1_loss_backward huber_loss_backward binary_cross_entropy_backward",
        _backward(4, 1)),
    "grid_sampler_2d_backward": _backward(16, 1, 2),
    "mkldnn_rnn_layer_backward": _backward(0, *range(7), flops_of=flops.layer(2)),
    "embedding_dense_backward": Operator((), per_input_element(1), _table),
    **each("upsample_nearest2d_backward upsample_bilinear2d_backward upsample_bicubic2d_backward",
        Operator((), per_input_element(8), sizes.given("input_size"))),
    **each("slice_backward select_backward", Operator((), no_flops, sizes.given("input_sizes"))),
    "_scaled_dot_product_flash_attention_for_cpu_backward": _backward(0, 1, 2, 3, flops_of=flops.attention_gradient),
    **each("_scaled_dot_product_flash_attention_backward _scaled_dot_product_cudnn_attention_backward",
        _backward(0, 1, 2, 3, flops_of=flops.attention_gradient)),
    "_scaled_dot_product_efficient_attention_backward": _backward(0, 1, 2, 3, 4, flops_of=flops.attention_gradient),
}  # fmt: skip

_IN_PLACE: Final[Mapping[str, Operator]] = {
    **{f"{name}_": _in_place(FORWARD[name]) for name in ("relu", "sigmoid", "tanh", "exp", "log", "sqrt", "rsqrt",
        "neg", "abs", "reciprocal", "floor", "ceil", "round", "hardtanh", "hardswish", "hardsigmoid", "silu", "clamp",
        "clamp_min", "clamp_max", "add", "sub", "mul", "div", "pow", "addcmul", "addcdiv", "lerp", "masked_fill",
        "copy", "addmm", "fill")},
    "index_put_": replace(_in_place(FORWARD["index_put"]), moved=moves.written_in_place(1, rows=True)),
    "scatter_": replace(_in_place(FORWARD["scatter"]), moved=moves.written_in_place(1)),
    **{f"{name}_": replace(_in_place(FORWARD[name]), moved=moves.written_in_place(2)) for name in ("scatter_add",
        "index_add")},
    "pow_.Scalar": _in_place(from_input(8)),
    # By the output, whose sign says enough for the positive slopes that are allowed in place.
    **each("leaky_relu_ elu_", _in_place(from_output(4))),
    "zero_": replace(_in_place(flat(0)), moved=moves.none_read),
    **each("bernoulli_ uniform_ normal_ exponential_",
        replace(_in_place(draw(state=1, rule=LIKE)), moved=moves.none_read)),
    "bernoulli_.Tensor": replace(_in_place(draw(state=2, rule=LIKE)), moved=moves.none_read),
}  # fmt: skip

_OPTIMIZERS: Final[Mapping[str, Operator]] = {
    **{f"_foreach_{name}{suffix}{overload}": _foreach(lists, count, updates=bool(suffix),
        number=overload == ".Tensor") for suffix in ("", "_") for names, count, lists,
        overload in (("sqrt neg reciprocal exp abs zero", 1, 1, ""), ("add sub mul div maximum minimum pow", 1, 1, ""),
        ("add sub mul div maximum minimum pow", 1, 2, ".List"), ("add mul div", 1, 1, ".Tensor"),
        ("addcmul addcdiv", 3, 3, ""), ("lerp copy", 3, 2, ""),
        ("lerp", 3, 3, ".List")) for name in names.split() if name not in ("zero", "copy") or suffix},
    "_foreach_norm": Operator((), lambda inputs, outputs, params: 2 * sum(value.elements for value in inputs),
        lambda inputs, params: tuple(TensorType((), value.dtype) for value in inputs), outputs=ANY_COUNT),
    # Parameters, gradients, states, and the count of steps where there is one. With momentum; without amsgrad.
    **each("_fused_adam_ _fused_adamw_", _fused(5, 4, 2, 3)),
    "_fused_sgd_": _fused(3, 2, 2),
    "_fused_adagrad_": _fused(4, 3, 2),
}  # fmt: skip

_TABLES: Final = (FORWARD, _FACTORIES, _BACKWARD, _IN_PLACE, _OPTIMIZERS)
ATEN_OPERATORS: Final[Mapping[str, Operator]] = MappingProxyType(
    {f"aten.{name}": row for table in _TABLES for name, row in table.items()}
)

#: Ops that cannot have a row, each with the reason.
ATEN_REFUSED: Final[Mapping[str, str]] = MappingProxyType({
    **dict.fromkeys(("aten.nonzero", "aten.masked_select", "aten.unique_dim", "aten._unique2",
        "aten.repeat_interleave"), BY_VALUES),
    **dict.fromkeys(("aten._local_scalar_dense", "aten.item"),
        "it hands a number to Python, and what happens next depends on it; capture it out"),
})  # fmt: skip
