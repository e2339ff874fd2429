"""A module that shares all that another has, and trains it in its own way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, final

import torch

from planner.torch.root import Call, Root


class Sharing(torch.nn.Module):
    """Has the parameters, buffers, submodules and mode of the model it is made from, and its `state_dict`.

    Under `eval()` and `no_grad` it is the model's own forward; what happens in training is the subclass's.
    """

    def __init__(self, root: Root) -> None:
        hold: Callable[[str, Any], None] = lambda name, value: object.__setattr__(self, name, value)  # noqa: E731
        hold("_root", root)
        training = root.model.training
        super().__init__()
        for table in ("_parameters", "_buffers", "_modules"):
            hold(table, getattr(root.model, table))
        root.model.training = training

    @property
    def training(self) -> bool:
        """The model's own mode."""
        return bool(self._root.model.training)

    @training.setter
    def training(self, mode: bool) -> None:
        self._root.model.training = mode

    @property
    def model(self) -> torch.nn.Module:
        """The model as it was given."""
        return self._root.model

    @property
    def _trains(self) -> bool:
        """True where a call has a backward pass to come."""
        return self.training and torch.is_grad_enabled()

    def _own(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], met: Iterable[CallKind]) -> Any:
        """The model's own forward; with the loss, where the target is given too.

        Args:
            met: kinds of calls in training.
        """
        root = self._root
        with_target = root.loss is not None and (len(args), *kwargs) in {kind.form for kind in met}
        return root(*args, **kwargs) if with_target else root.model(*args, **kwargs)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own."""
        return self._root.model.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own."""
        return self._root.model.load_state_dict(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in self.__dict__:
            return self.__dict__[name]
        return getattr(self.__dict__["_root"].model, name)


@final
class CallKind:
    """What a plan depends on: tensors by shape, strides, dtype and device; modes; the other arguments."""

    def __init__(self, root: Root, call: Call) -> None:
        tensors = tuple(map(_facts, call.tensors))
        parameters = tuple((p.dtype, p.device, p.requires_grad) for p in root.parameters())
        autocast = tuple(
            (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")
        )
        modes = tuple(module.training for module in root.modules())
        self.parts = (tensors, repr(call.fixed), str(call.spec), parameters, autocast, modes)
        args, kwargs = call.arguments(call.tensors)
        self.form = (len(args), *kwargs)

    def __hash__(self) -> int:
        return hash(self.parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CallKind) and self.parts == other.parts

    def __str__(self) -> str:
        tensors = [f"{str(dtype).removeprefix('torch.')}{list(shape)}" for shape, _, dtype, *_ in self.parts[0]]
        return ", ".join(tensors)


def _facts(tensor: torch.Tensor) -> tuple[Any, ...]:
    return (tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad)
