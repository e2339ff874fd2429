"""What a training step keeps for its backward pass: the bytes in a planned graph, and those of PyTorch run eagerly."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple
from unittest import mock

import networkx as nx

from planner.lowering.schema import lower


class Saved(NamedTuple):
    """Bytes of the storages that a backward pass reads.

    Args:
        activations: of values that an input or a draw determines.
        of_weights: of what the file computes from weights alone, such as gates in another order.
    """

    activations: int
    of_weights: int


def saved(step: nx.DiGraph) -> Saved:
    """What the backward pass of a step reads of its forward pass; residents and what the loss reads are apart."""
    program = lower(step)
    moving: set[str] = set()
    kept: dict[str, int] = {}
    for op in program.ops:
        made = op.kind == "input" or op.op == "GeneratorState" or any(name in moving for name in op.reads)
        moving.update(tensor.name for tensor in op.outputs if made)
        for name in op.reads if op.phase == "backward" and not op.name.startswith("loss") else ():
            root = program.storage_root[name]
            maker = program.producer[root]
            if not maker.resident and maker.phase == "forward":
                kept[root] = program.tensors[root].nbytes
    activations = sum(nbytes for name, nbytes in kept.items() if name in moving)
    return Saved(activations, sum(kept.values()) - activations)


def saved_eagerly(module: Any, inputs: Mapping[str, Any], *, named: bool) -> int:
    """Bytes of the storages that PyTorch saves in a forward pass; parameters, buffers and inputs are apart.

    Three things are as a step on an accelerator has them, and as exporters write them: dropout keeps a byte an element,
    attention is taken apart, and an LSTM is no library's, whose workspace only the library knows.

    Args:
        module: in the mode that is asked about.
        inputs: example tensors by name.
        named: they are passed by name.
    """
    import torch

    own = {tensor.untyped_storage()._cdata for tensor in (*module.parameters(), *module.buffers(), *inputs.values())}
    kept: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage  # held, so that no other storage gets its address
        return tensor

    functions = mock.patch.multiple(
        torch.nn.functional, dropout=_dropout, scaled_dot_product_attention=_attention_in_parts
    )
    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # setting the flags back warns of builds for other devices
        with functions, torch.backends.mkldnn.flags(enabled=False), hooks:
            result = module(**inputs) if named else module(*inputs.values())
    del result
    return sum(storage.nbytes() for storage in kept.values())


def _dropout(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """Dropout with a mask of bools, as accelerators run it; the CPU's keeps the scaled mask."""
    import torch

    return torch.native_dropout(x, p, True)[0] if training and p > 0 else x


def _attention_in_parts(
    q: Any, k: Any, v: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """Scaled dot products as the standard fallback of PyTorch computes them."""
    import torch

    if is_causal or enable_gqa:
        raise NotImplementedError("no family of exports asks for causal or grouped attention here")
    root = math.sqrt(scale or 1 / math.sqrt(q.shape[-1]))
    scores = (q * root) @ (k.transpose(-2, -1) * root)
    weights = torch.softmax(scores if attn_mask is None else scores + attn_mask, -1)
    return _dropout(weights, dropout_p) @ v
