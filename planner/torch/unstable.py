"""All that PyTorch calls private or experimental, as 2.13 has it: who ports the room to a newer one reads this file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
import torch._functorch.config
import torch.fx.traceback
from torch._functorch._aot_autograd import descriptors
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._functorch.partitioners import _extract_fwd_bwd_modules
from torch._subclasses.fake_tensor import FakeTensorMode

from planner.errors import GraphError
from planner.torch.meanings import Buffer, Gradient, Input, Output, Parameter, Result, Source, Tangent, Update

aten = torch.ops.aten
_DROPOUT = aten.dropout.default
_KEYS = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)
#: Ops that PyTorch's tracing rewrites in Python, where eager runs the compiled form: the bits differ.
_REWRITTEN = (
    "dropout", "gru", "hardshrink", "lstm", "matmul", "multi_margin_loss", "multilabel_margin_loss_forward", "rnn_relu",
    "rnn_tanh", "softshrink", "upsample_bicubic2d", "upsample_bilinear2d", "upsample_linear1d", "upsample_nearest1d",
    "upsample_nearest2d", "upsample_nearest3d", "upsample_trilinear3d", "_upsample_bicubic2d_aa",
    "_upsample_bilinear2d_aa", "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d",
)  # fmt: skip


def joint_graph(root: torch.nn.Module, tensors: Sequence[Any], fakes: FakeTensorMode) -> torch.fx.GraphModule:
    """Forward and backward of a module of fake state on fake tensors, as one graph of functional ATen calls.

    The backward is captured outside autocast, where eager runs it (by default PyTorch captures it inside).
    """
    with ExitStack() as stack:
        stack.enter_context(torch._functorch.config.patch(backward_pass_autocast="off"))
        stack.enter_context(torch.fx.traceback.preserve_node_meta())
        stack.enter_context(_compiled_as_eager())
        stack.enter_context(fakes)
        return aot_export_joint_with_descriptors(stack, root, tuple(tensors)).graph_module


@contextmanager
def said_to_compile() -> Iterator[None]:
    """Libraries are told that a compiler is at work: they then ask no questions about values."""
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


def annotated(**facts: str | None) -> AbstractContextManager[None]:
    """Ops made inside, and those of their backward, know these facts: `module`, `line`."""
    return torch.fx.traceback.annotate({f"planner_{name}": fact for name, fact in facts.items()})


def module_of(node: torch.fx.Node) -> str | None:
    """The innermost module that an op is of."""
    return (node.meta.get("custom") or {}).get("planner_module")


def line_of(node: torch.fx.Node) -> str | None:
    """The line of the user's that made an op, or the op whose backward it is."""
    return (node.meta.get("custom") or {}).get("planner_line")


def is_backward(node: torch.fx.Node) -> bool:
    """True for an op of the backward pass."""
    return node.meta.get("partitioner_tag") == "is_backward"


def place(node: torch.fx.Node, *, backward: bool) -> None:
    """Put an op into the forward or the backward pass."""
    node.meta["partitioner_tag"] = "is_backward" if backward else "is_forward"


def forward_and_backward(
    joint: torch.fx.GraphModule, saved: Sequence[torch.fx.Node], outputs: int
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """The two graphs that AOTAutograd asks a `partition_fn` for.

    Args:
        saved: nodes of the forward pass that the backward pass is given.
        outputs: how many results the forward pass has.
    """
    return _extract_fwd_bwd_modules(joint, list(saved), [], num_fwd_outputs=outputs)


def is_accumulation(node: torch.fx.Node) -> bool:
    """True for the sum of two gradients of one tensor that was used twice."""
    return bool(node.meta.get("is_gradient_acc"))


def source_of(node: torch.fx.Node) -> Source:
    """What a placeholder stands for.

    Raises:
        GraphError: something that a planned step does not know.
    """
    found = node.meta.get("desc")
    if isinstance(found, descriptors.ParamAOTInput):
        return Parameter(found.target)
    if isinstance(found, descriptors.BufferAOTInput):
        return Buffer(found.target)
    if isinstance(found, descriptors.PlainAOTInput):
        return Input(found.idx)
    if isinstance(found, descriptors.TangentAOTInput) and isinstance(found.output, descriptors.PlainAOTOutput):
        return Tangent(found.output.idx)
    raise GraphError(f"the step has an input of a kind that cannot be planned ({found}): give plain dense tensors")


def result_of(described: Any) -> Result:
    """What an output of the graph stands for.

    Raises:
        GraphError: something that a planned step cannot keep.
    """
    if isinstance(described, descriptors.PlainAOTOutput):
        return Output(described.idx)
    if isinstance(described, descriptors.InputMutationAOTOutput):
        changed = described.mutated_input
        if isinstance(changed, descriptors.BufferAOTInput):
            return Update(Buffer(changed.target))
        where = source_name(changed)
        raise GraphError(f"the model writes into {where}: let it write into a copy, or keep the tensor as a buffer")
    if isinstance(described, descriptors.GradAOTOutput):
        of = described.grad_of
        if isinstance(of, descriptors.ParamAOTInput):
            return Gradient(Parameter(of.target))
        if isinstance(of, descriptors.PlainAOTInput):
            return Gradient(Input(of.idx))
    raise GraphError(f"the step has a result that cannot be planned ({described}): return new dense tensors, not views")


def is_write(described: Any) -> bool:
    """True for an output of the graph that is the new content of an input."""
    return isinstance(described, descriptors.InputMutationAOTOutput)


def source_name(described: Any) -> str:
    """An input of the graph, for people."""
    if isinstance(described, descriptors.ParamAOTInput):
        return str(Parameter(described.target))
    if isinstance(described, descriptors.PlainAOTInput):
        return str(Input(described.idx))
    return str(described)


def without_autocast() -> AbstractContextManager[None]:
    """Ops inside run as they are written, whatever autocast the caller is in."""
    return torch._C._DisableAutocast() if torch._C._is_any_autocast_enabled() else nullcontext()


def called(op: Any) -> Any:
    """What to call for an op, without the Python that `OpOverload` puts before it."""
    return op._op if isinstance(op, torch._ops.OpOverload) else op


def unwatched() -> AbstractContextManager[None]:
    """Ops inside are seen by no tracker and no other mode."""
    return torch.utils._python_dispatch._disable_current_modes()


def keeps_graph() -> bool:
    """True inside a backward that was asked to keep its graph."""
    return torch._C._autograd._get_current_graph_task_keep_graph()


def _drops_alike(probability: float, dtype: torch.dtype) -> bool:
    """True if `native_dropout`, which keeps a mask of bools, gives the bits of eager's dropout on a CPU.

    Eager multiplies by mask / (1 - p), `native_dropout` by mask and then by 1 / (1 - p): two roundings that agree for
    most p, in float32. For other types they were not compared, and eager's own form is captured.
    """
    divided = np.float32(1) / np.float32(1 - probability)
    return dtype == torch.float32 and bool(divided == np.float32(1 / (1 - probability)))


@contextmanager
def _compiled_as_eager() -> Iterator[None]:
    """Ops are captured as eager computes them, not as PyTorch's tracing rewrites them."""
    packets = [getattr(aten, name, None) for name in _REWRITTEN]
    ops = [getattr(packet, overload) for packet in packets if packet is not None for overload in packet.overloads()]
    before = {op: {key: op.py_kernels[key] for key in _KEYS if key in op.py_kernels} for op in ops}
    rewritten: Callable[..., torch.Tensor] = before[_DROPOUT][_KEYS[0]]

    def dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        if not train or p == 0 or x.numel() == 0:
            return x
        if x.device.type != "cpu" or (0 < p < 1 and _drops_alike(p, x.dtype)):
            return rewritten(x, p, train)
        if p == 1:
            return x.mul(torch.zeros((), dtype=x.dtype))
        return x * torch.empty_like(x).bernoulli_(1 - p).div_(1 - p)

    try:
        for op in ops:
            for key in before[op]:
                del op.py_kernels[key]
            op._dispatch_cache.clear()
        _DROPOUT.py_kernels.update(dict.fromkeys(before[_DROPOUT], dropout))
        yield
    finally:
        for op in ops:
            op.py_kernels.update(before[op])
            op._dispatch_cache.clear()
