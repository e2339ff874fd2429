"""The peak of the step that PyTorch would run by itself, counted on fake tensors: nothing is allocated."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from planner.torch import unstable
from planner.torch.capture import fake, fake_state
from planner.torch.root import Call, Root
from planner.torch.stream import storage
from planner.torch.tracker import track


def eager_peak_bytes(root: Root, call: Call, *, total: bool = False) -> int:
    """Most bytes of storages during one forward and backward pass without a plan, gradients from None.

    It is the true stream of ops, in-place ones included. Where the call has several results, the backward pass is that
    of the sum of all that a gradient can come back to.

    Args:
        total: count parameters, buffers and inputs too.

    >>> from planner.torch.root import as_call
    >>> net = torch.nn.Linear(64, 32)  # gradients of 4 * (64 * 32 + 32) bytes; 32 sums, and as many ones
    >>> eager_peak_bytes(Root(net, torch.Tensor.sum), as_call((torch.ones(8, 64), 0)))
    8576
    """
    fakes = FakeTensorMode()
    with unstable.unwatched(), fake_state(root, fakes), torch.random.fork_rng(devices=[]), fakes:
        tensors = [fake(tensor, fakes) for tensor in call.tensors]
        args, kwargs = call.arguments(tensors)
        held = {storage(tensor): tensor for tensor in (*root.parameters(), *root.buffers(), *tensors)}
        with track() as memory:
            made = torch.utils._pytree.tree_leaves(root(*args, **kwargs))
            ends = [leaf for leaf in made if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
            torch.autograd.backward(ends, [torch.ones_like(end) for end in ends])
        for parameter in root.parameters():
            parameter.grad = None
    residents = sum(tensor.untyped_storage().nbytes() for tensor in held.values())
    return memory.peak_bytes + (residents if total else 0)
