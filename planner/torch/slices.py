"""A plan inside autograd: one node for the forward pass, and one for each group of gradients that it hands over.

`Entry` runs the generator to the end of the forward pass; its backward puts the gradients of the outputs into the box.
Under it hangs a chain of `Slice`s, each of which resumes the generator once. The engine accumulates what a slice
returns before it asks the next, so that hooks see each gradient as it is made, and the plan may reuse its memory. One
node for the whole backward pass would hold all gradients until it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch.autograd import Function

from planner.errors import PlannerError
from planner.torch import unstable
from planner.torch.emit import Emitted
from planner.torch.meanings import Input, Parameter
from planner.torch.step_roles import Joint

Write = Callable[[str, torch.Tensor], None]

_AGAIN = "values are freed as the backward pass runs, so it runs once: call the module again, or use the model itself"


@final
class Box:
    """What the generator and its caller hand each other.

    It does not know the generator: else a forward pass whose loss is dropped would keep its bytes in a circle until
    the garbage collector runs.
    """

    def __init__(self, joint: Joint, resident: Callable[[str], torch.Tensor], write: Write) -> None:
        self.joint, self.resident, self.write = joint, resident, write
        self.outputs: dict[int, torch.Tensor] = {}
        self.given: list[torch.Tensor | None] = []
        self.tangents: dict[int, torch.Tensor] = {}
        self.without: frozenset[int] = frozenset()  # outputs that the caller does not use

    def state(self, device: torch.device) -> torch.Tensor:
        """The state of a device's generator, kept as long as the plan says, in a tensor that the tracker sees."""
        return self.now(device).clone()

    def now(self, device: torch.device) -> torch.Tensor:
        """The state of a device's generator for the time of one op."""
        return torch.get_rng_state() if device.type == "cpu" else torch.cuda.get_rng_state(device)

    def restore(self, state: torch.Tensor, device: torch.device) -> None:
        """Set a device's generator back."""
        if device.type == "cpu":
            torch.set_rng_state(state)
        else:
            torch.cuda.set_rng_state(state, device)

    def take(self, output: int) -> torch.Tensor:
        """The gradient of an output; the box lets it go."""
        return self.tangents.pop(output)

    def give(self, gradient: torch.Tensor, needs: frozenset[int]) -> None:
        """Put a gradient out for the caller, or nothing where the caller uses no output that it depends on."""
        self.given.append(None if needs and needs <= self.without else gradient)

    def copied(self, gradient: torch.Tensor, of: Parameter | Input) -> torch.Tensor:
        """A copy laid out as the parameter is."""
        like = self.resident(of.path) if isinstance(of, Parameter) else gradient
        return torch.empty_like(like, requires_grad=False).copy_(gradient)


@final
class Run:
    """One forward pass and its backward pass: the generator that holds the live values."""

    def __init__(self, emitted: Emitted, box: Box, residents: Sequence[torch.Tensor]) -> None:
        self.emitted, self.box, self.next = emitted, box, 0
        self.steps: Any = emitted.start(box, *residents)
        self.residents = dict(zip(box.joint.residents, residents, strict=True))
        self.versions: dict[str, int] = {}

    def forward(self) -> dict[int, torch.Tensor]:
        """Run to the boundary; returns the outputs."""
        next(self.steps)
        outputs, self.box.outputs = self.box.outputs, {}
        self.versions = {name: tensor._version for name, tensor in self.residents.items()}
        return outputs

    def gradients(self, group: int) -> list[torch.Tensor | None]:
        """Run to the end of a group of gradients."""
        if group != self.next or self.steps is None:
            raise PlannerError(f"a planned backward pass was asked for twice: {_AGAIN}")
        for name in self.emitted.still_reads[group]:
            if self.residents[name]._version != self.versions[name]:
                what = f"{self.box.joint.residents[name]} was changed in place between forward and backward"
                raise PlannerError(f"{what}, and the plan reads it again: change it after the backward pass")
        self.next += 1
        next(self.steps)
        given, self.box.given = self.box.given, []
        if self.next == len(self.emitted.groups):
            self.steps.close()
            self.steps, self.residents = None, {}
        return given


def _refuse() -> None:
    if torch.is_grad_enabled():
        raise PlannerError("create_graph=True (double backward) is not planned: use the model itself")
    if unstable.keeps_graph():
        raise PlannerError(f"retain_graph=True cannot be honoured: {_AGAIN}")


class Entry(Function):
    """The forward pass."""

    @staticmethod
    def forward(ctx: Any, token: Any, run: Run) -> Any:
        """Run to the boundary."""
        ctx.run, ctx.device = run, token.device
        ctx.set_materialize_grads(False)
        with unstable.without_autocast():
            outputs = run.forward()
        made = tuple(outputs[index] for index in sorted(outputs))
        ctx.mark_non_differentiable(*(made[index] for index in range(len(made)) if index not in run.box.joint.tangents))
        return made

    @staticmethod
    def backward(ctx: Any, *tangents: Any) -> Any:
        """Put the gradients of the outputs into the box."""
        _refuse()
        box: Box = ctx.run.box
        if box.tangents or ctx.run.next:
            raise PlannerError(f"a planned backward pass was asked for twice: {_AGAIN}")
        wanted = box.joint.tangents
        box.without = frozenset(index for index in wanted if tangents[index] is None)
        for index in wanted:
            like = box.joint.outputs[index]
            given = tangents[index]
            if given is None:
                given = torch.zeros(like.shape, dtype=like.dtype, device=like.device)
            box.tangents[index] = given if _laid_out_alike(given, like) else _laid_out(given, like)
        return torch.empty(0, device=ctx.device), None


class Slice(Function):
    """One group of gradients."""

    @staticmethod
    def forward(ctx: Any, token: Any, run: Run, group: int, *leaves: Any) -> Any:
        """Nothing yet: the values are made by `Entry`."""
        ctx.run, ctx.group = run, group
        ctx.device = leaves[0].device  # the engine runs a node where its inputs lie
        return torch.empty(0, device=ctx.device)

    @staticmethod
    def backward(ctx: Any, _: Any) -> Any:
        """Run to the end of the group."""
        _refuse()
        run, group = ctx.run, ctx.group
        ctx.run = None
        if run is None:
            raise PlannerError(f"a planned backward pass was asked for twice: {_AGAIN}")
        with unstable.without_autocast():
            gradients = run.gradients(group)
        return (torch.empty(0, device=ctx.device) if ctx.needs_input_grad[0] else None, None, None, *gradients)


def differentiable(run: Run, leaf: Callable[[Parameter | Input], torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The outputs of a run, under its chain of slices.

    Args:
        leaf: the parameter or input that a gradient is of.
    """
    token = None
    for group in range(len(run.emitted.groups) - 1, -1, -1):
        token = Slice.apply(token, run, group, *map(leaf, run.emitted.groups[group]))
    outputs: tuple[torch.Tensor, ...] = Entry.apply(token, run)
    return outputs


def _laid_out_alike(given: torch.Tensor, like: torch.Tensor) -> bool:
    return given.numel() <= 1 or given.stride() == like.stride()


def _laid_out(given: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(like.shape, like.stride(), dtype=given.dtype, device=given.device).copy_(given)
