"""Which ops may write their result over an input, and how they are then called: the bits stay the same.

A row is only for ops that read each element of the overwritten input before they write it, or that copy it first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch

aten = torch.ops.aten


class Form(NamedTuple):
    """Another way to call an op.

    Args:
        positions: arguments that the result may be written over.
        target: what is called then; with argument 1 taken, arguments 0 and 1 change places.
        out: name of the argument for the result; None: argument 0 is written over.
    """

    positions: tuple[int, ...]
    target: Any
    out: str | None = None

    def call(self, args: Sequence[Any], kwargs: Mapping[str, Any], taken: int) -> tuple[Any, list[Any], dict[str, Any]]:
        """Target and arguments where the argument `taken` is overwritten."""
        if self.out is not None:
            return self.target, list(args), {**kwargs, self.out: args[taken]}
        moved = list(args)
        moved[0], moved[taken] = moved[taken], moved[0]
        return self.target, moved, dict(kwargs)


FORMS: Final[Mapping[Any, Form]] = {
    aten.abs.default: Form((0,), aten.abs_.default),
    aten.add.Scalar: Form((0,), aten.add_.Scalar),
    aten.add.Tensor: Form((0, 1), aten.add_.Tensor),
    aten.bernoulli.p: Form((0,), aten.bernoulli_.float),
    aten.div.Scalar: Form((0,), aten.div_.Scalar),
    aten.div.Tensor: Form((0,), aten.div_.Tensor),
    aten.exp.default: Form((0,), aten.exp_.default),
    aten.masked_fill.Scalar: Form((0,), aten.masked_fill_.Scalar),
    aten.masked_fill.Tensor: Form((0,), aten.masked_fill_.Tensor),
    aten.mul.Scalar: Form((0,), aten.mul_.Scalar),
    aten.mul.Tensor: Form((0, 1), aten.mul_.Tensor),
    aten.neg.default: Form((0,), aten.neg_.default),
    aten.pow.Tensor_Scalar: Form((0,), aten.pow_.Scalar),
    aten.relu.default: Form((0,), aten.relu_.default),
    aten.rsqrt.default: Form((0,), aten.rsqrt_.default),
    aten.sigmoid.default: Form((0,), aten.sigmoid_.default),
    aten.silu.default: Form((0,), aten.silu_.default),
    aten.sqrt.default: Form((0,), aten.sqrt_.default),
    aten.sub.Tensor: Form((0,), aten.sub_.Tensor),
    aten.tanh.default: Form((0,), aten.tanh_.default),
    aten._log_softmax.default: Form((0,), aten._log_softmax.out, "out"),
    aten._log_softmax_backward_data.default: Form((0,), aten._log_softmax_backward_data.out, "out"),
    aten._softmax.default: Form((0,), aten._softmax.out, "out"),
    aten._softmax_backward_data.default: Form((0,), aten._softmax_backward_data.out, "grad_input"),
    aten.gelu.default: Form((0,), aten.gelu.out, "out"),
    aten.gelu_backward.default: Form((0,), aten.gelu_backward.grad_input, "grad_input"),
    aten.sigmoid_backward.default: Form((0,), aten.sigmoid_backward.grad_input, "grad_input"),
    aten.silu_backward.default: Form((0,), aten.silu_backward.grad_input, "grad_input"),
    aten.tanh_backward.default: Form((0,), aten.tanh_backward.grad_input, "grad_input"),
    aten.threshold_backward.default: Form((0,), aten.threshold_backward.grad_input, "grad_input"),
}


def overwritable(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The inputs of an op that its lone result may be written over: dense, and of the same shape, strides and dtype."""
    form = FORMS.get(node.target)
    made = node.meta.get("val")
    if form is None or not isinstance(made, torch.Tensor) or not _fills_its_storage(made):
        return []
    found = []
    for position in form.positions:
        given = node.args[position] if position < len(node.args) else None
        if not isinstance(given, torch.fx.Node) or given in found or (position and node.kwargs.get("alpha", 1) != 1):
            continue
        value = given.meta.get("val")
        if isinstance(value, torch.Tensor) and _alike(value, made) and _fills_its_storage(value):
            found.append(given)
    return found


def _alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())


def _fills_its_storage(tensor: torch.Tensor) -> bool:
    nbytes = tensor.numel() * tensor.element_size()
    return tensor.storage_offset() == 0 and tensor.untyped_storage().nbytes() == nbytes
