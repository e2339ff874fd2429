"""A whole training step within a budget: forward, backward and the optimizer's update."""

from __future__ import annotations

import copy
from typing import Any, Final, Literal, final

import torch

from planner.errors import PlannerError
from planner.memory import MemoryModel
from planner.torch.module import OnNewShape, Planned, checkpoint
from planner.torch.root import Loss
from planner.units import exactly

How = Literal["per-tensor", "multi-tensor", "inside-backward"]
#: Per optimizer its states and the temporaries of an update without fused kernels, in sizes of the parameter.
_SIZES: Final = {
    torch.optim.SGD: (lambda group: int(bool(group["momentum"])), lambda group: int(bool(group["weight_decay"]))),
    torch.optim.Adam: (lambda group: 2 + int(group["amsgrad"]), lambda group: 2 + int(bool(group["weight_decay"]))),
    torch.optim.AdamW: (lambda group: 2 + int(group["amsgrad"]), lambda group: 2),
}


def train_step(
    model: torch.nn.Module,
    inputs: Any,
    optimizer: torch.optim.Optimizer,
    *,
    loss: Loss | None = None,
    budget: Any = None,
    update: How = "per-tensor",
    memory: MemoryModel = MemoryModel(),
    on_new_shape: OnNewShape = "error",
    **options: Any,
) -> TrainStep:
    """A step that trains the model within a budget: `step(x, y)` returns the loss, and the parameters are updated.

    Args:
        optimizer: SGD, Adam or AdamW over the model's parameters. It keeps its state and its groups, which a scheduler
            may change.
        update: "per-tensor": one parameter after the other; "multi-tensor": all at once, with temporaries of the size
            of all; "inside-backward": each as soon as its gradient is there, which then goes: the least memory.
        budget, memory, on_new_shape, loss, options: of `checkpoint`. The optimizer's state counts as parameters do.
    Raises:
        InfeasibleBudget: no plan fits.
        PlannerError: the update alone does not fit, or an optimizer whose memory is not known.

    >>> import torch
    >>> from planner.torch import train_step
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    >>> x, y = torch.ones(16, 4), torch.zeros(16, 1)
    >>> adam = torch.optim.Adam(model.parameters(), lr=0.01)
    >>> step = train_step(model, (x, y), adam, loss=torch.nn.functional.mse_loss, update="inside-backward")
    >>> losses = [step(x, y).item() for _ in range(20)]
    >>> losses[-1] < losses[0]
    True
    """
    states, temporaries = _sizes(optimizer)
    inside = update == "inside-backward"
    trained = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    sizes = [p.numel() * p.element_size() for p in trained]
    net = checkpoint(
        model, inputs, loss=loss, budget=budget, memory=memory, on_new_shape=on_new_shape,
        gradients="inside-backward" if inside else "new", update_workspace=temporaries if inside else 0,
        state_bytes=int(states * sum(sizes)), **options,
    )  # fmt: skip
    scratch = temporaries * (sum(sizes) if update == "multi-tensor" else max(sizes, default=0))
    update_bytes = 0 if inside else int(sum(sizes) + scratch)
    resident = sum(op.outputs[0].nbytes for op in net.plan.graph.ops if op.resident) if memory.scope == "total" else 0
    allowed = net.plan.budget
    if allowed is not None and memory.needed_bytes(resident + update_bytes) > allowed:
        fix = 'update="inside-backward" holds one gradient at a time'
        needed = exactly(memory.needed_bytes(resident + update_bytes))
        raise PlannerError(f"the update alone needs {needed}, and the budget is {exactly(allowed)}: {fix}")
    return TrainStep(net, optimizer, update, resident + update_bytes)


@final
class TrainStep:
    """Forward, backward and update of one batch. Made by `train_step`."""

    def __init__(self, net: Planned, optimizer: torch.optim.Optimizer, update: How, update_bytes: int) -> None:
        self.net, self.optimizer, self.update = net, optimizer, update
        self.peak_bytes: Final = max(net.plan.report.plan.peak_bytes, update_bytes)
        if update == "inside-backward":
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.register_post_accumulate_grad_hook(self._updater(group))

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Train on one batch; returns the loss, detached.

        Raises:
            PlannerError: the model does not return one number.
        """
        if self.update != "inside-backward":
            self.optimizer.zero_grad(set_to_none=True)
        loss = self.net(*args, **kwargs)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise PlannerError("the step has no loss: give loss=, as loss=torch.nn.functional.cross_entropy")
        loss.backward()
        if self.update != "inside-backward":
            for group in self.optimizer.param_groups:
                group["foreach"] = self.update == "multi-tensor"
            self.optimizer.step()
        return loss.detach()

    def _updater(self, group: dict[str, Any]) -> Any:
        """Updates one parameter by the user's optimizer: its state, and its group as it is now."""

        def step(parameter: torch.Tensor) -> None:
            alone = copy.copy(self.optimizer)
            alone.param_groups = [{**group, "params": [parameter], "foreach": False}]
            type(self.optimizer).step(alone)
            self.optimizer._opt_called = True  # what a scheduler asks
            parameter.grad = None

        return step


def _sizes(optimizer: torch.optim.Optimizer) -> tuple[float, float]:
    known = _SIZES.get(type(optimizer))
    if known is None:
        names = ", ".join(each.__name__ for each in _SIZES)
        fix = "train with checkpoint(...), and give the budget what the update leaves"
        raise PlannerError(f"what {type(optimizer).__name__} holds is not known (known: {names}): {fix}")
    states, temporaries = known
    groups = optimizer.param_groups
    if any(group.get("fused") for group in groups):
        raise PlannerError("fused updates were not measured: make the optimizer with fused=False")
    return max(map(states, groups)), max(map(temporaries, groups))
