"""The gradients of a captured step, term by term, as the autograd engine is given them."""

from __future__ import annotations

from typing import Final

import torch

from planner.torch import unstable
from planner.torch.capture import Capture
from planner.torch.meanings import Gradient, Input, Parameter
from planner.torch.stream import Stream

#: More terms of one gradient than this are summed inside the plan: an unrolled recurrence has one a step.
_MOST_TERMS: Final = 8

Terms = dict[Parameter | Input, list[torch.fx.Node]]


def gradient_terms(captured: Capture, stream: Stream) -> tuple[Terms, set[torch.fx.Node]]:
    """The gradients of each parameter in the order in which the engine gets and adds them; the sums left to the engine.

    A parameter of several names, or one that is used twice, has several terms: the engine adds them one by one. Summed
    inside the plan they would be grouped otherwise where several calls are differentiated at once.
    """
    terms: Terms = {}
    for node, meaning in captured.results:
        if isinstance(meaning, Gradient):
            of = meaning.of
            if isinstance(of, Parameter):
                of = Parameter(captured.first_name.get(of.path, of.path))
            terms.setdefault(of, []).append(node)
    left: set[torch.fx.Node] = set()
    for of, nodes in terms.items():
        sums: set[torch.fx.Node] = set()
        split = [term for node in nodes for term in _terms_of(node, sums)]
        if len(split) <= _MOST_TERMS:
            left |= sums
            nodes = split
        terms[of] = sorted(nodes, key=stream.position_of.__getitem__)
    return terms, left


def _terms_of(node: torch.fx.Node, sums: set[torch.fx.Node]) -> list[torch.fx.Node]:
    """The gradients that an accumulation adds; the accumulation itself where something else reads it."""
    if unstable.is_accumulation(node) and len(node.users) == 1 and len(node.args) == 2:
        sums.add(node)
        return [term for part in node.args for term in _terms_of(part, sums)]
    return [node]


def as_engine_wants(gradient: torch.Tensor, like: torch.Tensor) -> bool:
    """True if the engine takes a gradient over as `.grad`; it copies one of other strides than the parameter's.

    A gradient that fills only part of its storage would keep all of it.
    """
    whole = gradient.untyped_storage().nbytes() == gradient.numel() * gradient.element_size()
    return whole and gradient.dtype == like.dtype and all(
        a == b for a, b, size in zip(gradient.stride(), like.stride(), like.shape, strict=True) if size > 1
    )  # fmt: skip
