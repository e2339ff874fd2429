"""One call of a module and its backward, and everything that the call left behind."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from tests.extras import imported

torch = imported("torch")
track = imported("planner.torch").track


class Outcome:
    """What a call made, by name, and the most bytes that it held."""

    def __init__(self, values: Mapping[str, Any], peak_bytes: int) -> None:
        self.values, self.peak_bytes = dict(values), peak_bytes

    def differs_from(self, other: Outcome) -> list[str]:
        """Names of what is not equal to the bit; a gradient that only one has is not."""
        assert self.values.keys() == other.values.keys()

        def same(a: Any, b: Any) -> bool:
            return a is b if a is None or b is None else torch.equal(a, b)

        return [name for name in self.values if not same(self.values[name], other.values[name])]


class Trial:
    """A model and how it was before: each call begins from there."""

    def __init__(self, model: Any, inputs: Any) -> None:
        self.model, self.inputs = model, inputs
        self.state, self.generator = copy.deepcopy(model.state_dict()), torch.get_rng_state()

    def reset(self) -> None:
        self.model.load_state_dict(self.state)
        self.model.zero_grad(set_to_none=True)
        torch.set_rng_state(self.generator)

    def of(self, call: Callable[..., Any], *, backward: Callable[[Any], None] | None = None) -> Outcome:
        """Loss, gradients, buffers and the generator's state after one call and its backward."""
        self.reset()
        with track() as memory:
            loss = call(*self.inputs)
            (backward or torch.Tensor.backward)(loss)
        peak_bytes = memory.peak_bytes
        return Outcome({"loss": loss.detach().clone(), **self.left()}, peak_bytes)

    def left(self) -> dict[str, Any]:
        """Parameters, their gradients, buffers and the generator's state, as they are now."""
        values: dict[str, Any] = {f"grad {name}": p.grad for name, p in self.model.named_parameters()}
        values |= {f"parameter {name}": p.detach().clone() for name, p in self.model.named_parameters()}
        values |= {f"buffer {name}": buffer.clone() for name, buffer in self.model.named_buffers()}
        return {**values, "generator": torch.get_rng_state()}
