"""The model and its loss under one root: tensors in, tensors out, everything else fixed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, final

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from planner.errors import PlannerError

Loss = Callable[..., Any]
#: Leaves of arguments and results that are part of the program, not of its input.
FIXED: Final = (type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.Size, slice)


class Call(NamedTuple):
    """The arguments of one call, apart: tensors, and what is left without them."""

    tensors: tuple[torch.Tensor, ...]
    fixed: tuple[Any, ...]  # all leaves, a tensor's place held by `_HERE`
    spec: TreeSpec

    @classmethod
    def of(cls, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        """Split arguments.

        Raises:
            PlannerError: an argument that is neither a tensor nor a plain value.
        """
        leaves, spec = tree_flatten((tuple(args), dict(kwargs)))
        tensors = tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
        for leaf in leaves:
            if not isinstance(leaf, (torch.Tensor, *FIXED)):
                fix = "give tensors, plain values, and lists, tuples and dicts of them"
                raise PlannerError(f"an argument is a {type(leaf).__name__}, which a planned step cannot take: {fix}")
        return cls(tensors, tuple(_HERE if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves), spec)

    def arguments(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with these tensors in the places of their own."""
        rest = iter(tensors)
        args, kwargs = tree_unflatten([next(rest) if leaf is _HERE else leaf for leaf in self.fixed], self.spec)
        return args, kwargs


class _Here:
    def __repr__(self) -> str:
        return "a tensor"


_HERE: Final = _Here()


def as_call(inputs: Any) -> Call:
    """The call that example inputs stand for: a mapping is keyword arguments, a list or tuple positional ones."""
    if isinstance(inputs, Mapping):
        return Call.of((), inputs)
    return Call.of(inputs if isinstance(inputs, (tuple, list)) else (inputs,), {})


@final
class Root(torch.nn.Module):
    """Calls the model, then the loss on its result and the last argument; on the result alone where all have names."""

    def __init__(self, model: torch.nn.Module, loss: Loss | None) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The loss, or the model's own result where no loss was given."""
        if self.loss is None:
            return self.model(*args, **kwargs)
        if not args:
            return self.loss(self.model(**kwargs))
        return self.loss(self.model(*args[:-1], **kwargs), args[-1])

    def resident(self, path: str) -> torch.Tensor:
        """The parameter or buffer at a path, as it is now."""
        *modules, name = path.split(".")
        owner: Any = self
        for part in modules:
            owner = getattr(owner, part)
        return getattr(owner, name)


class Results(NamedTuple):
    """The results of a call, apart."""

    tensors: tuple[torch.Tensor, ...]
    fixed: tuple[Any, ...]
    spec: TreeSpec

    @classmethod
    def of(cls, made: Any) -> Results:
        """Split the results of a call.

        Raises:
            PlannerError: a result that is neither a tensor nor a plain value.
        """
        leaves, spec = tree_flatten(made)
        for leaf in leaves:
            if not isinstance(leaf, (torch.Tensor, *FIXED)):
                fix = "return tensors alone, or give a loss= that picks one, as loss=lambda result: result.loss"
                raise PlannerError(f"the model returns a {type(leaf).__name__}, which no plan can hand out: {fix}")
        tensors = tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
        return cls(tensors, tuple(_HERE if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves), spec)

    def shaped(self, tensors: Sequence[Any]) -> Any:
        """These tensors in the form the model returns."""
        rest = iter(tensors)
        return tree_unflatten([next(rest) if leaf is _HERE else leaf for leaf in self.fixed], self.spec)
