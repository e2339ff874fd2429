"""Ask PyTorch itself about its operators, and print what it says as JSON: the facts of `tests/golden/aten.json`.

Run by hand where `torch==2.13.0` is installed: `python bench/aten_facts.py > tests/golden/aten.json`. No test needs
torch.
Per case: types of tensor inputs in the order of the schema, other arguments by name, types of outputs (checked on meta
tensors), which outputs lie on an input's storage, which inputs change, whether the op draws, how many FLOPs
`flop_counter` has, and for each input what autograd keeps when that input alone needs a gradient.
"""

import json
import sys

import torch
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode

torch.manual_seed(0)
torch.set_num_threads(1)


def f(*shape, dtype=torch.float32):
    """Floats."""
    return torch.rand(shape, dtype=torch.float32).add(0.25).to(dtype)


def h(*shape):
    """Half precision."""
    return f(*shape, dtype=torch.bfloat16)


def i(most, *shape):
    """int64 below `most`."""
    return torch.randint(most, shape)


def b(*shape):
    """Bools."""
    return torch.rand(shape) > 0.5


IMAGE, GRAD = (2, 4, 6, 6), (2, 4, 6, 6)
CASES = [
    *((name, f(3, 4)) for name in ("relu", "sigmoid", "tanh", "exp", "log", "sqrt", "rsqrt", "neg", "abs", "sin", "cos",
        "reciprocal", "erf", "gelu", "silu", "elu", "hardtanh", "hardswish", "hardsigmoid", "leaky_relu", "softplus",
        "mish", "log1p", "expm1", "sign", "floor", "ceil", "round", "trunc", "isnan", "logical_not", "celu",
        "log_sigmoid_forward", "log2", "atan", "sgn", "isinf")),
    ("clamp", f(3, 4), -1.0, 1.0), ("clamp_min", f(3, 4), 0.5), ("clamp_max", f(3, 4), 0.5),
        ("threshold", f(3, 4), 0.5, 0.0),
    ("bitwise_not", b(3)), ("_prelu_kernel", f(2, 3, 4), f(1, 3, 1)),
    *((f"{name}.Tensor", f(3, 4), f(4)) for name in ("add", "sub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge",
        "remainder", "fmod")),
    *((f"{name}.Scalar", f(3, 4), 2.0) for name in ("add", "sub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge",
        "rsub", "remainder")),
    ("add.Tensor", h(3, 4), f(3, 4)), ("mul.Tensor", i(3, 4), f(4)), ("div.Tensor", i(3, 4), i(3, 4) + 1),
    ("pow.Tensor_Scalar", f(3, 4), 3.0), ("pow.Tensor_Tensor", f(3, 4), f(3, 4)), ("maximum", f(3, 4), f(4)),
    ("minimum", f(3, 4), f(4)),
    ("logical_and", b(3, 4), b(3, 4)), ("logical_or", b(3, 4), b(3, 4)), ("bitwise_and.Tensor", b(3), b(3)),
    ("bitwise_or.Tensor", b(3), b(3)),
    ("logical_xor", b(3, 4), b(3, 4)),
    ("addcmul", f(3, 4), f(3, 4), f(4)), ("addcdiv", f(3, 4), f(3, 4), f(4)), ("where.self", b(3, 4), f(3, 4), f(4)),
    ("masked_fill.Scalar", f(3, 4), b(3, 4), 0.0), ("lerp.Scalar", f(3, 4), f(3, 4), 0.5),
        ("lerp.Tensor", f(3, 4), f(3, 4), f(3, 4)),
    ("mm", f(3, 4), f(4, 5)), ("bmm", f(2, 3, 4), f(2, 4, 5)), ("addmm", f(5), f(3, 4), f(4, 5)),
    ("baddbmm", f(2, 3, 5), f(2, 3, 4), f(2, 4, 5)),
    ("mv", f(3, 4), f(4)), ("dot", f(4), f(4)), ("mm", h(3, 4), h(4, 5)),
    ("view", f(3, 4), [2, 6]), ("_unsafe_view", f(3, 4), [2, 6]), ("permute", f(2, 3, 4), [2, 0, 1]),
    ("transpose.int", f(2, 3, 4), 1, -1),
    ("t", f(3, 4)), ("expand", f(3, 1), [2, 3, 4]), ("select.int", f(3, 4), 1, 2),
        ("slice.Tensor", f(3, 9), 1, 1, 8, 3),
    ("squeeze.dim", f(3, 1), 1),
    ("squeeze.dims", f(1, 3, 1), [0, 2]), ("squeeze", f(1, 3, 1)), ("unsqueeze", f(3, 4), -1),
        ("split.Tensor", f(7, 4), 3),
    ("split_with_sizes", f(7, 4), [3, 4]), ("unbind.int", f(3, 4), 0), ("alias", f(3, 4)), ("detach", f(3, 4)),
    ("diagonal", f(3, 4)),
    ("unfold", f(3, 9), 1, 3, 2), ("as_strided", f(3, 4), [2, 2], [4, 1], 1), ("view_as_complex", f(3, 2)),
    ("view.dtype", f(3, 4), torch.int32),
    ("lift_fresh", f(3)), ("_reshape_alias", f(3, 4), [12], [1]), ("unsafe_split.Tensor", f(7, 4), 3),
    ("clone", f(3, 4)), ("_to_copy", f(3, 4), {"dtype": torch.bfloat16}),
        ("_to_copy", h(3, 4), {"dtype": torch.float32}),
    ("copy", f(3, 4), f(4)),
    ("cat", [f(3, 4), f(2, 4)]), ("cat", [f(3, 4), f(3, 2)], 1), ("stack", [f(3, 4), f(3, 4)], 1),
        ("repeat", f(3, 4), [2, 1, 3]),
    ("constant_pad_nd", f(3, 4), [1, 2]), ("flip", f(3, 4), [0]), ("roll", f(3, 4), [1], [0]),
    ("gather", f(3, 4), 1, i(4, 3, 2)), ("index.Tensor", f(5, 4), [i(5, 3)]), ("index_select", f(5, 4), 0, i(5, 3)),
    ("scatter.src", f(3, 4), 1, i(4, 3, 2), f(3, 2)), ("scatter.value", f(3, 4), 1, i(4, 3, 2), 0.0),
    ("scatter_add", f(3, 4), 1, i(4, 3, 2), f(3, 2)),
    ("index_put", f(5, 4), [i(5, 3)], f(3, 4), False), ("index_add", f(5, 4), 0, i(5, 3), f(3, 4)),
    ("slice_scatter", f(5, 4), f(2, 4), 0, 1, 3), ("select_scatter", f(5, 4), f(4), 0, 1),
    ("tril", f(4, 4)), ("triu", f(4, 4)), ("cumsum", f(3, 4), 1), ("sort", f(3, 4), 1), ("topk", f(3, 9), 2, 1),
    ("embedding", f(10, 4), i(10, 2, 3)), ("embedding", h(10, 4), i(10, 3)),
    ("sum", f(3, 4)), ("sum.dim_IntList", f(3, 4), [1]), ("sum.dim_IntList", f(2, 3, 4), [0, 2], True),
        ("mean", f(3, 4)),
    ("mean.dim", f(3, 4), [-1], True),
    ("sum", b(3, 4)), ("linear", f(2, 3, 4), f(5, 4), f(5)), ("matmul", f(2, 3, 4), f(2, 4, 5)),
        ("reshape", f(3, 4), [2, -1]),
    ("tan", f(3, 4)), ("asin", f(3, 4) / 2), ("acos", f(3, 4) / 2), ("sinh", f(3, 4)), ("cosh", f(3, 4)),
        ("log10", f(3, 4)),
    ("atan2", f(3, 4), f(3, 4)),
    ("pow.Scalar", 2.0, f(3, 4)), ("bitwise_xor.Tensor", b(3), b(3)), ("view_as_real", torch.complex(f(3), f(3))),
    ("new_ones", f(3), [2, 2]), ("_adaptive_avg_pool3d", f(1, 2, 4, 4, 4), [2, 2, 2]),
    ("upsample_nearest3d", f(1, 2, 2, 2, 2), [4, 4, 4]),
    ("upsample_trilinear3d", f(1, 2, 2, 2, 2), [4, 4, 4], False),
        ("_upsample_bicubic2d_aa", f(2, 4, 6, 6), [3, 3], False),
    ("replication_pad1d", f(2, 3, 4), [1, 2]),
    ("index.Tensor", f(5, 4, 3), [i(5, 2), i(4, 2)]), ("clamp_max_", f(3, 4), 0.5),
    ("sum.dim_IntList", h(3, 4), [0]), ("_to_copy", f(3, 4)), ("amax", f(3, 4), [1]), ("amin", f(3, 4), [1]),
    ("var.correction", f(3, 4), [1]), ("std.correction", f(3, 4), [1]), ("var_mean.correction", f(3, 4), [1]),
    ("argmax", f(3, 4), 1), ("argmin", f(3, 4)), ("max.dim", f(3, 4), 1), ("min.dim", f(3, 4), 1), ("max", f(3, 4)),
    ("min", f(3, 4)),
    ("prod", f(3)),
    ("prod.dim_int", f(3, 4), 1), ("logsumexp", f(3, 4), [1]), ("any", b(3, 4)), ("all", b(3, 4)),
        ("any.dim", b(3, 4), 1),
    ("linalg_vector_norm", f(3, 4), 2, [1]),
    ("norm.ScalarOpt_dim", f(3, 4), 2, [1]), ("norm.Scalar", f(3, 4)),
    ("convolution", f(*IMAGE), f(8, 4, 3, 3), f(8), [2, 2], [1, 1], [1, 1], False, [0, 0], 1),
    ("convolution", f(*IMAGE), f(4, 1, 3, 3), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 4),
    ("convolution", f(2, 4, 9), f(6, 2, 3), f(6), [1], [2], [2], False, [0], 2),
    ("convolution", f(*IMAGE), f(4, 3, 2, 2), f(3), [2, 2], [0, 0], [1, 1], True, [1, 1], 1),
    ("native_batch_norm", f(*IMAGE), f(4), f(4), f(4), f(4), True, 0.1, 1e-5),
    ("_native_batch_norm_legit", f(*IMAGE), f(4), f(4), f(4), f(4), True, 0.1, 1e-5),
    ("_native_batch_norm_legit_functional", f(*IMAGE), f(4), f(4), f(4), f(4), True, 0.1, 1e-5),
    ("_native_batch_norm_legit.no_stats", f(*IMAGE), f(4), f(4), True, 0.1, 1e-5),
    ("_native_batch_norm_legit_no_training", f(*IMAGE), f(4), f(4), f(4), f(4), 0.1, 1e-5),
    ("native_layer_norm", f(2, 3, 4), [4], f(4), f(4), 1e-5),
        ("native_layer_norm", f(2, 3, 4), [3, 4], None, None, 1e-5),
    ("native_group_norm", f(*IMAGE), f(4), f(4), 2, 4, 36, 2, 1e-5), ("_fused_rms_norm", f(2, 3, 4), [4], f(4), 1e-5),
    ("max_pool2d_with_indices", f(*IMAGE), [3, 3], [2, 2], [1, 1]),
    ("max_pool2d_with_indices", f(*IMAGE), [2, 2], [], [0, 0], [1, 1], True),
    ("max_pool3d_with_indices", f(1, 2, 4, 4, 4), [2, 2, 2]),
    ("avg_pool2d", f(*IMAGE), [3, 3], [2, 2], [1, 1]), ("avg_pool2d", f(2, 4, 5, 5), [2], [2], [0], True),
    ("avg_pool3d", f(1, 2, 4, 4, 4), [2, 2, 2]),
    ("_adaptive_avg_pool2d", f(*IMAGE), [2, 3]), ("adaptive_max_pool2d", f(*IMAGE), [2, 3]),
    ("upsample_nearest2d", f(*IMAGE), [12, 12]), ("upsample_bilinear2d", f(*IMAGE), [12, 9], False),
    ("upsample_bicubic2d", f(*IMAGE), [12, 9], False),
    ("upsample_nearest1d", f(2, 3, 4), [8]), ("upsample_linear1d", f(2, 3, 4), [8], False),
    ("_upsample_bilinear2d_aa", f(*IMAGE), [3, 3], False),
    ("reflection_pad2d", f(*IMAGE), [1, 1, 2, 2]), ("replication_pad2d", f(*IMAGE), [1, 1, 2, 2]),
    ("reflection_pad1d", f(2, 3, 4), [1, 2]),
    ("grid_sampler_2d", f(*IMAGE), f(2, 5, 5, 2), 0, 0, False), ("glu", f(3, 4), 1),
    ("im2col", f(*IMAGE), [3, 3], [1, 1], [0, 0], [1, 1]),
    ("_softmax", f(3, 4), 1, False), ("_log_softmax", f(3, 4), 1, False), ("_safe_softmax", f(3, 4), 1),
    ("nll_loss_forward", f(3, 4), i(4, 3), None, 1, -100), ("nll_loss_forward", f(3, 4), i(4, 3), None, 0, -100),
    ("nll_loss2d_forward", f(2, 3, 4, 4), i(3, 2, 4, 4), None, 1, -100),
    ("mse_loss", f(3, 4), f(3, 4)), ("smooth_l1_loss", f(3, 4), f(3, 4)), ("huber_loss", f(3, 4), f(3, 4)),
    ("binary_cross_entropy", f(3, 4) / 2, f(3, 4) / 2),
    ("binary_cross_entropy_with_logits", f(3, 4), f(3, 4)),
    ("_scaled_dot_product_flash_attention_for_cpu", f(2, 3, 5, 8), f(2, 3, 7, 8), f(2, 3, 7, 8)),
    ("_scaled_dot_product_flash_attention_for_cpu", f(2, 3, 5, 8), f(2, 3, 7, 8), f(2, 3, 7, 8),
        {"attn_mask": f(2, 3, 5, 7)}),
    ("native_dropout", f(3, 4), 0.5, True), ("bernoulli", f(3, 4) / 2), ("bernoulli.p", f(3, 4), 0.5),
        ("rand_like", f(3, 4)),
    ("randn_like", h(3, 4)), ("rand", [3, 4]), ("randn", [3, 4]),
    ("randint", 5, [3, 4]), ("randperm", 5), ("multinomial", f(3, 4), 2), ("normal_functional", f(3)),
        ("uniform", f(3)),
    ("exponential", f(3)),
    ("randint_like", f(3), 5),
    *((name, f(3, 4)) for name in ("zeros_like", "ones_like", "empty_like")), ("full_like", f(3, 4), 2.0),
    ("zeros", [3, 4]), ("ones", [3, 4]), ("full", [3, 4], 1.0),
    ("arange", 5), ("arange.start_step", 1, 9, 3), ("scalar_tensor", 1.0), ("new_zeros", f(3), [2, 2]),
        ("new_full", f(3), [2], 1.0),
    ("empty.memory_format", [3, 4]), ("new_empty", f(3), [2]),
    ("nll_loss_forward", f(3, 4), i(4, 3), f(4), 1, -100),
        ("nll_loss2d_forward", f(2, 3, 4, 4), i(3, 2, 4, 4), f(3), 1, -100),
    ("binary_cross_entropy", f(3, 4) / 2, f(3, 4) / 2, f(4)),
        ("binary_cross_entropy_with_logits", f(3, 4), f(3, 4), f(4), f(4)),
    ("index.Tensor", f(5, 4, 3, 2), [i(5, 2), i(4, 2), i(3, 2), i(2, 2)]), ("lerp_.Tensor", f(3, 4), f(3, 4), f(3, 4)),
    ("masked_fill.Tensor", f(3, 4), b(3, 4), f()), ("masked_fill_.Tensor", f(3, 4), b(3, 4), f()),
    ("rsub.Tensor", f(3, 4), f(4)), ("clamp.Tensor", f(3, 4), f(3, 4), f(3, 4)), ("clamp_min.Tensor", f(3, 4), f(4)),
    ("clamp_max.Tensor", f(3, 4), f(4)), ("div.Tensor_mode", f(3, 4), f(4), {"rounding_mode": "floor"}),
    ("floor_divide", f(3, 4), f(4)),
    ("bernoulli.Tensor", f(3, 4), f(3, 4) / 2), ("pixel_shuffle", f(2, 8, 3, 3), 2),
        ("pixel_unshuffle", f(2, 2, 6, 6), 2),
    ("lift_fresh_copy", f(3)), ("fill.Tensor", f(3), f()), ("fill.Scalar", f(3), 1.0), ("sigmoid", h(3, 4)),
        ("relu", h(3, 4)),
    ("_to_copy", i(5, 3, 4), {"dtype": torch.float16}), ("mul.Tensor", h(3, 4), f()), ("add.Tensor", i(5, 3), b(3)),
    ("xlogy.Tensor", f(3, 4), f(4)),
    ("mkldnn_rnn_layer", f(3, 2, 4), f(20, 4), f(20, 5), f(20), f(20), f(2, 5), f(2, 5), False, [], 2, 5, 1, True,
        False, False, True),
    # what captured training graphs hold
    ("threshold_backward", f(3, 4), f(3, 4), 0.0), ("gelu_backward", f(3, 4), f(3, 4)),
        ("silu_backward", f(3, 4), f(3, 4)),
    ("sigmoid_backward", f(3, 4), f(3, 4)),
    ("tanh_backward", f(3, 4), f(3, 4)), ("hardtanh_backward", f(3, 4), f(3, 4), -1.0, 1.0),
        ("hardswish_backward", f(3, 4), f(3, 4)),
    ("hardsigmoid_backward", f(3, 4), f(3, 4)),
    ("leaky_relu_backward", f(3, 4), f(3, 4), 0.1, False), ("elu_backward", f(3, 4), 1.0, 1.0, 1.0, False, f(3, 4)),
    ("mish_backward", f(3, 4), f(3, 4)),
    ("softplus_backward", f(3, 4), f(3, 4), 1.0, 20.0), ("log_sigmoid_backward", f(3, 4), f(3, 4), f(3, 4)),
    ("glu_backward", f(3, 2), f(3, 4), 1), ("_prelu_kernel_backward", f(2, 3, 4), f(2, 3, 4), f(1, 3, 1)),
    ("convolution_backward", f(2, 8, 3, 3), f(*IMAGE), f(8, 4, 3, 3), [8], [2, 2], [1, 1], [1, 1], False, [0, 0], 1,
        [True, True, True]),
    ("convolution_backward", f(2, 8, 3, 3), f(*IMAGE), f(8, 4, 3, 3), [0], [2, 2], [1, 1], [1, 1], False, [0, 0], 1,
        [False, True, False]),
    ("native_batch_norm_backward", f(*IMAGE), f(*IMAGE), f(4), f(4), f(4), f(4), f(4), True, 1e-5, [True, True, True]),
    ("native_layer_norm_backward", f(2, 3, 4), f(2, 3, 4), [4], f(2, 3, 1), f(2, 3, 1), f(4), f(4), [True, True, True]),
    ("native_group_norm_backward", f(*IMAGE), f(*IMAGE), f(2, 2), f(2, 2), f(4), 2, 4, 36, 2, [True, True, True]),
    ("max_pool2d_with_indices_backward", f(2, 4, 3, 3), f(*IMAGE), [2, 2], [2, 2], [0, 0], [1, 1], False,
        i(9, 2, 4, 3, 3)),
    ("avg_pool2d_backward", f(2, 4, 3, 3), f(*IMAGE), [2, 2], [2, 2], [0, 0], False, True, None),
    ("_adaptive_avg_pool2d_backward", f(2, 4, 2, 3), f(*IMAGE)),
    ("_softmax_backward_data", f(3, 4), f(3, 4), 1, torch.float32),
        ("_log_softmax_backward_data", f(3, 4), f(3, 4), 1, torch.float32),
    ("nll_loss_backward", f(), f(3, 4), i(4, 3), None, 1, -100, f()),
    ("nll_loss2d_backward", f(), f(2, 3, 4, 4), i(3, 2, 4, 4), None, 1, -100, f()),
    ("embedding_dense_backward", f(2, 3, 4), i(10, 2, 3), 10, -1, False),
        ("native_dropout_backward", f(3, 4), b(3, 4), 2.0),
    ("upsample_nearest2d_backward", f(2, 4, 12, 12), [12, 12], [2, 4, 6, 6]),
    ("upsample_bilinear2d_backward", f(2, 4, 12, 9), [12, 9], [2, 4, 6, 6], False),
    ("upsample_bicubic2d_backward", f(2, 4, 12, 9), [12, 9], [2, 4, 6, 6], False),
    ("reflection_pad2d_backward", f(2, 4, 10, 8), f(*IMAGE), [1, 1, 2, 2]),
    ("replication_pad2d_backward", f(2, 4, 10, 8), f(*IMAGE), [1, 1, 2, 2]),
    ("slice_backward", f(3, 3), [3, 9], 1, 1, 8, 3), ("select_backward", f(3), [3, 4], 1, 2),
    ("grid_sampler_2d_backward", f(2, 4, 5, 5), f(*IMAGE), f(2, 5, 5, 2), 0, 0, False, [True, True]),
    ("huber_loss_backward", f(), f(3, 4), f(3, 4), 1, 1.0),
    ("mse_loss_backward", f(), f(3, 4), f(3, 4), 1), ("smooth_l1_loss_backward", f(), f(3, 4), f(3, 4), 1, 1.0),
    ("binary_cross_entropy_backward", f(), f(3, 4) / 2, f(3, 4) / 2),
    ("_scaled_dot_product_flash_attention_for_cpu_backward", f(2, 3, 5, 8), f(2, 3, 5, 8), f(2, 3, 7, 8), f(2, 3, 7, 8),
        f(2, 3, 5, 8), f(2, 3, 5), 0.0, False),
    # in place
    *((name, f(3, 4) - 0.75) for name in ("relu_", "abs_", "leaky_relu_", "elu_")),
    *((name, f(3, 4)) for name in ("sigmoid_", "tanh_", "exp_", "sqrt_", "rsqrt_", "neg_", "hardtanh_", "hardswish_",
        "silu_", "zero_", "reciprocal_", "log_", "ceil_", "floor_", "round_", "hardsigmoid_")),
    ("add_.Tensor", f(3, 4), f(4)), ("sub_.Tensor", f(3, 4), f(4)), ("mul_.Tensor", f(3, 4), f(4)),
        ("div_.Tensor", f(3, 4), f(4)),
    ("add_.Scalar", f(3, 4), 1), ("mul_.Scalar", f(3, 4), 2.0), ("div_.Scalar", f(3, 4), 2.0),
        ("clamp_", f(3, 4), 0.5, 0.8),
    ("clamp_min_", f(3, 4), 0.5), ("fill_.Scalar", f(3, 4), 1.0),
    ("pow_.Scalar", f(3, 4), 2.0), ("pow_.Tensor", f(3, 4), f(3, 4)), ("copy_", f(3, 4), f(4)),
        ("addcmul_", f(3, 4), f(3, 4), f(4)),
    ("addcdiv_", f(3, 4), f(3, 4), f(4)), ("lerp_.Scalar", f(3, 4), f(3, 4), 0.5),
    ("masked_fill_.Scalar", f(3, 4), b(3, 4), 7.0), ("bernoulli_.float", f(3, 4), 0.5), ("uniform_", f(3, 4)),
    ("normal_", f(3, 4)),
    ("index_put_", f(5, 4), [i(5, 3)], f(3, 4)),
    ("scatter_add_", f(3, 4), 1, i(4, 3, 2), f(3, 2)), ("index_add_", f(5, 4), 0, i(5, 3), f(3, 4)),
    ("scatter_.src", f(3, 4), 1, i(4, 3, 2), f(3, 2)), ("fill_.Tensor", f(3), f()),
    ("bernoulli_.Tensor", f(3, 4), f(3, 4) / 2),
    ("addmm_", f(3, 5), f(3, 4), f(4, 5)), ("exponential_", f(3)),
    # optimizers: lists of tensors
    ("_foreach_add.List", [f(3), f(4)], [f(3), f(4)]), ("_foreach_mul.Scalar", [f(3), f(4)], 2.0),
        ("_foreach_sqrt", [f(3), f(4)]),
    ("_foreach_neg", [f(3), f(4)]),
    ("_foreach_div.List", [f(3), f(4)], [f(3), f(4)]), ("_foreach_sub.List", [f(3), f(4)], [f(3), f(4)]),
    ("_foreach_norm.Scalar", [f(3), f(4)], 2), ("_foreach_addcdiv.Scalar", [f(3), f(4)], [f(3), f(4)], [f(3), f(4)], 1),
    ("_foreach_reciprocal", [f(3), f(4)]), ("_foreach_exp", [f(3), f(4)]), ("_foreach_abs", [f(3), f(4)]),
    ("_foreach_exp_", [f(3), f(4)]), ("_foreach_abs_", [f(3) - 1, f(4) - 1]),
    ("_foreach_add.Scalar", [f(3), f(4)], 1.0), ("_foreach_sub.Scalar", [f(3), f(4)], 1.0),
        ("_foreach_div.Scalar", [f(3), f(4)], 2.0),
    ("_foreach_maximum.Scalar", [f(3), f(4)], 0.5), ("_foreach_minimum.Scalar", [f(3), f(4)], 0.5),
    ("_foreach_pow.Scalar", [f(3), f(4)], 2.0), ("_foreach_sub_.Scalar", [f(3), f(4)], 1.0),
    ("_foreach_maximum_.Scalar", [f(3), f(4)], 0.9), ("_foreach_minimum_.Scalar", [f(3), f(4)], 0.3),
    ("_foreach_pow_.Scalar", [f(3), f(4)], 2.0),
    ("_foreach_mul.List", [f(3), f(4)], [f(3), f(4)]), ("_foreach_minimum.List", [f(3), f(4)], [f(3), f(4)]),
    ("_foreach_minimum_.List", [f(3) + 1, f(4) + 1], [f(3), f(4)]), ("_foreach_pow_.List", [f(3), f(4)], [f(3), f(4)]),
    ("_foreach_addcmul.Scalar", [f(3), f(4)], [f(3), f(4)], [f(3), f(4)], 0.5),
        ("_foreach_lerp.Scalar", [f(3), f(4)], [f(3), f(4)], 0.5),
    ("_foreach_lerp.List", [f(3), f(4)], [f(3), f(4)], [f(3), f(4)]),
        ("_foreach_lerp_.List", [f(3), f(4)], [f(3), f(4)], [f(3), f(4)]),
    ("_foreach_mul_.Tensor", [f(3), f(4)], f()), ("_foreach_add_.Tensor", [f(3), f(4)], f()),
    ("_foreach_mul.Tensor", [f(3), f(4)], f()), ("_foreach_add.Tensor", [f(3), f(4)], f()),
        ("_foreach_div.Tensor", [f(3), f(4)], f()),
    ("_foreach_div_.Tensor", [f(3), f(4)], f()),
    ("_foreach_pow.List", [f(3), f(4)], [f(3), f(4)]), ("_foreach_maximum.List", [f(3), f(4)], [f(3), f(4)]),
    ("_foreach_add_.List", [f(3), f(4)], [f(3), f(4)]), ("_foreach_add_.Scalar", [f(3), f(4)], 2.0),
    ("_foreach_mul_.Scalar", [f(3), f(4)], 2.0), ("_foreach_mul_.List", [f(3), f(4)], [f(3), f(4)]),
    ("_foreach_sub_.List", [f(3), f(4)], [f(3), f(4)]), ("_foreach_div_.ScalarList", [f(3), f(4)], [2.0, 3.0]),
    ("_foreach_div_.List", [f(3), f(4)], [f(3), f(4)]), ("_foreach_lerp_.Scalar", [f(3), f(4)], [f(3), f(4)], 0.5),
    ("_foreach_addcdiv_.ScalarList", [f(3), f(4)], [f(3), f(4)], [f(3), f(4)], [1.0, 1.0]),
    ("_foreach_addcmul_.Scalar", [f(3), f(4)], [f(3), f(4)], [f(3), f(4)], 0.5), ("_foreach_sqrt_", [f(3), f(4)]),
    ("_foreach_zero_", [f(3), f(4)]), ("_foreach_neg_", [f(3), f(4)]), ("_foreach_copy_", [f(3), f(4)], [f(3), f(4)]),
    ("_foreach_maximum_.List", [f(3), f(4)], [f(3) + 1, f(4) + 1]), ("_foreach_reciprocal_", [f(3), f(4)]),
    ("_fused_adam_", [f(3), f(4)], [f(3), f(4)], [f(3), f(4)], [f(3), f(4)], [], [f(), f()],
        {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0, "eps": 1e-8, "amsgrad": False,
        "maximize": False}),
    ("_fused_adamw_", [f(3), f(4)], [f(3), f(4)], [f(3), f(4)], [f(3), f(4)], [], [f(), f()],
        {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-8, "amsgrad": False,
        "maximize": False}),
    ("_fused_sgd_", [f(3), f(4)], [f(3), f(4)], [f(3), f(4)],
        {"weight_decay": 0.0, "momentum": 0.9, "lr": 0.1, "dampening": 0.0, "nesterov": False, "maximize": False,
        "is_first_step": False}),
    ("_fused_adagrad_", [f(3), f(4)], [f(3), f(4)], [f(3), f(4)], [f(), f()],
        {"lr": 0.1, "lr_decay": 0.0, "weight_decay": 0.0, "eps": 1e-8, "maximize": False}),
]  # fmt: skip
Q, K, ROWS = f(2, 3, 5, 8, dtype=torch.float16), f(2, 3, 7, 8, dtype=torch.float16), f(2, 3, 5)
SEED = torch.empty((), dtype=torch.int64)
# Ops this build has no kernel for: their types and FLOPs on meta tensors.
ABSTRACT = [
    ("_scaled_dot_product_flash_attention", Q, K, K), ("_scaled_dot_product_efficient_attention", Q, K, K, None, True),
    ("_scaled_dot_product_cudnn_attention", Q, K, K, None, True),
    ("_scaled_dot_product_flash_attention_backward", Q, Q, K, K, Q, ROWS, None, None, 5, 7, 0.0, False, SEED, SEED),
    ("_scaled_dot_product_efficient_attention_backward", Q, Q, K, K, None, Q, ROWS, SEED, SEED, 0.0,
        [True, True, True, False]),
    ("_scaled_dot_product_cudnn_attention_backward", Q, Q, K, K, Q, ROWS, SEED, SEED, None, None, None, 5, 7, 0.0,
        False),
    ("cudnn_batch_norm", f(*IMAGE), f(4), f(4), f(4), f(4), True, 0.1, 1e-5),
    ("_thnn_fused_lstm_cell", f(2, 12), f(2, 12), f(2, 3), f(12), f(12)),
    ("_fused_rms_norm", f(2, 3, 4), [4], f(4), 1e-5),
    ("mkldnn_rnn_layer_backward", f(3, 2, 4), f(20, 4), f(20, 5), f(20), f(20), f(2, 5), f(2, 5), f(3, 2, 5), f(2, 5),
        f(2, 5), f(3, 2, 5), f(2, 5), f(2, 5), False, 2, 5, 1, True, True, False, [], False,
        torch.empty(8, dtype=torch.uint8),
    ),
]  # fmt: skip
# And what their autograd nodes keep, by name.
NODES = {
    "aten._scaled_dot_product_flash_attention": "ScaledDotProductFlashAttentionBackward0",
    "aten._scaled_dot_product_efficient_attention": "ScaledDotProductEfficientAttentionBackward0",
    "aten._scaled_dot_product_cudnn_attention": "ScaledDotProductCudnnAttentionBackward0",
    "aten._thnn_fused_lstm_cell": "ThnnFusedLstmCellBackward0",
    "aten.cudnn_batch_norm": "CudnnBatchNormBackward0",
}


def overload(name):
    """The op behind `"add.Tensor"`."""
    op, _, kind = name.partition(".")
    return getattr(getattr(torch.ops.aten, op), kind or "default")


def flat(value):
    """The tensors in an argument."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return flat(list(value.values()))
    if isinstance(value, (list, tuple)):
        return [x for item in value for x in flat(item)]
    return []


def kind(tensor):
    """Shape and dtype, as JSON has them."""
    return [list(tensor.shape), str(tensor.dtype).removeprefix("torch.")]


def plain(value):
    """An argument as JSON has it."""
    return str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else value


LONG = 4  # a schema's default dtype is a number; the only one met is int64


def same(a, b):
    """True if both are the same elements in memory."""
    return a.data_ptr() == b.data_ptr() and a.numel() == b.numel() and a.dtype == b.dtype


def copied(values):
    """The same arguments with tensors of their own."""
    return tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, values)


def measure(name, *args):
    """Run an op, and run it again for each input that may need a gradient."""
    op = overload(name)
    kwargs = args[-1] if args and isinstance(args[-1], dict) else {}
    args = args[:-1] if kwargs else args
    params = {}
    for k, argument in enumerate(op._schema.arguments):
        value = args[k] if k < len(args) else kwargs.get(argument.name, argument.default_value)
        if not flat(value) and value is not None and not (isinstance(value, list) and "Tensor" in str(argument.type)):
            params[argument.name] = "int64" if argument.name == "dtype" and value == LONG else plain(value)
    mine, options = copied((args, kwargs))
    before = flat((mine, options))
    values = [t.clone() for t in before]
    with FlopCounterMode(display=False) as counter:
        outputs = flat(op(*mine, **options))
    pointers = {t.untyped_storage().data_ptr(): k for k, t in reversed(list(enumerate(before))) if t.numel()}
    aliases = [
        [pointers[o.untyped_storage().data_ptr()], k]
        for k, o in enumerate(outputs)
        if o.untyped_storage().data_ptr() in pointers
    ]
    changed = [k for k, (t, old) in enumerate(zip(before, values, strict=True)) if not torch.equal(t, old)]
    fact = {
        "op": f"aten.{op.__name__}",
        "inputs": [kind(t) for t in before],
        "params": params,
        "outputs": [kind(t) for t in outputs],
    }
    fact |= {"aliases": aliases, "changed": changed, "draws": torch.Tag.nondeterministic_seeded in op.tags}
    fact["saves"] = {
        str(k): refs for k in range(len(before)) if (refs := saves(op, args, kwargs, k, changed)) is not None
    }
    elsewhere = on_meta(op, args, kwargs)
    if elsewhere is not None and elsewhere != fact["outputs"]:
        fact["meta"] = elsewhere
    if counter.get_total_flops():
        fact["flops"] = counter.get_total_flops()
    return fact


def on_meta(op, args, kwargs):
    """Types of the outputs where no data is."""
    place = {"device": "meta"} if any(argument.name == "device" for argument in op._schema.arguments) else {}
    try:
        mine, options = tree_map(lambda x: x.to("meta") if isinstance(x, torch.Tensor) else x, (args, kwargs))
        return [kind(t) for t in flat(op(*mine, **options, **place))]
    except (NotImplementedError, RuntimeError) as error:
        print("no meta:", op, str(error)[:80], file=sys.stderr)
        return None


def saves(op, args, kwargs, k, changed):
    """What autograd keeps where input `k` alone needs a gradient; None where none can flow."""
    mine = copied((args, kwargs))
    inputs = flat(mine)
    if not inputs[k].is_floating_point():
        return None
    moved = inputs[k].detach().clone().requires_grad_().clone()  # what is updated in place may be no leaf
    mine = tree_map(lambda x: moved if x is inputs[k] else x, mine)
    inputs = [moved if n == k else t for n, t in enumerate(inputs)]
    old = [t.detach().clone() for t in inputs]
    kept = []
    try:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.detach()) or t, lambda t: t):
            made = flat(op(*mine[0], **mine[1]))
    except (RuntimeError, NotImplementedError) as error:
        print("no gradient:", op, k, str(error)[:90], file=sys.stderr)
        return None
    in_place = op._schema.name.endswith("_")
    if not any(t.requires_grad for t in made or inputs):
        return None
    refs = []
    for t in kept:
        out = next((["out", n] for n, x in enumerate(made) if same(t, x.detach())), None)
        into = next((["in", n] for n, x in enumerate(inputs) if same(t, x.detach())), None)
        if into and into[1] in changed and in_place:  # the new version
            out, into = ["out", into[1]], None
        twin = next(
            (["copy", n] for n, x in enumerate(old) if t.shape == x.shape and t.dtype == x.dtype and torch.equal(t, x)),
            None,
        )
        found = into or out or twin or ["other", *kind(t)]
        if found not in refs:
            refs.append(found)
    return refs


def node(name, made):
    """What the autograd node of an op keeps, by name."""
    op = getattr(torch.ops.aten, name.removeprefix("aten.")).default
    own = getattr(torch._C._functions, made)
    kept = sorted(x.removeprefix("_saved_") for x in dir(own) if x.startswith("_saved_"))
    arguments = [[a.name, str(a.type)] for a in op._schema.arguments]
    return {
        "op": name,
        "node": made,
        "keeps": kept,
        "arguments": arguments,
        "returns": [[r.name, str(r.type)] for r in op._schema.returns],
    }


def ignored():
    """The running statistics change nothing of the gradients in training, though the backward op is handed them."""
    made, mean, inverse = torch.ops.aten._native_batch_norm_legit.no_stats(f(*IMAGE), f(4), f(4), True, 0.1, 1e-5)
    fixed, masks = (f(*GRAD), made, f(4)), [True, True, True]
    backward = torch.ops.aten.native_batch_norm_backward
    ours = [backward(*fixed, *two, mean, inverse, True, 1e-5, masks) for two in ((f(4), f(4)), (None, None))]
    return {"ignored": all(torch.equal(a, b) for a, b in zip(*ours, strict=True))}


def abstract(name, *args):
    """Types and FLOPs on meta tensors."""
    op = overload(name)
    with FlopCounterMode(display=False) as counter:
        made = op(*tree_map(lambda x: x.to("meta") if isinstance(x, torch.Tensor) else x, args))
    params = {
        a.name: plain(v) for a, v in zip(op._schema.arguments, args, strict=False) if not flat(v) and v is not None
    }
    fact = {
        "op": f"aten.{op.__name__}",
        "inputs": [kind(t) for v in args for t in flat(v)],
        "params": params,
        "outputs": [kind(t) for t in flat(made)],
    }
    fact["draws"] = torch.Tag.nondeterministic_seeded in op.tags
    return fact | ({"flops": counter.get_total_flops()} if counter.get_total_flops() else {}) | {"abstract": True}


def main():
    """All facts, one a line; what cannot be asked here is named on stderr."""
    facts = []
    for ask, cases in ((abstract, ABSTRACT), (measure, CASES), (node, NODES.items())):
        for case in cases:
            try:
                facts.append(ask(*case))
            except Exception as error:
                print("FAILED", case[0], type(error).__name__, str(error)[:200], file=sys.stderr)
    print("[")
    print(",\n".join(json.dumps(fact) for fact in [{"torch": torch.__version__, **ignored()}, *facts]))
    print("]")


if __name__ == "__main__":
    main()
