"""`planner.from_torch`: what a model's step will take, before anything runs."""

from __future__ import annotations

from typing import Any

import networkx as nx
import torch

from planner.lowering.step import stepped
from planner.torch.capture import capture
from planner.torch.costs import device_name, roofline
from planner.torch.joint import joint_of
from planner.torch.root import Call, Loss, Root, as_call
from planner.training_step import TrainingStep


def from_torch(
    model: torch.nn.Module,
    inputs: Any,
    *,
    loss: Loss | None = None,
    optimizer: str | None = None,
    device: str | None = None,
) -> nx.DiGraph:
    """The forward and backward pass of a model as a graph: what will it take, before anything runs.

    The step is captured on fake tensors, so that a model on the device "meta" will do; it is then meant for a CPU.
    Modes are those of the model and of the caller: training, autocast. The backward pass is that of every result that a
    gradient can come back to, and gradients of parameters are outputs.

    Args:
        model: any module.
        inputs: example arguments: a tuple is positional, a mapping keyword arguments, a tensor one argument.
        loss: called with the model's result and the last argument.
        optimizer: of `planner.TrainingStep`, "sgd" for one: the graph ends with an update of each parameter, and its
            gradient goes. Such a graph tells what a step takes; what runs is the graph without.
        device: whose roofline gives the costs, by name; None: the one that the parameters are on.
    Raises:
        GraphError: the step cannot be captured, or an unknown device; names the line and the way out.

    >>> import planner
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1))
    >>> graph = planner.from_torch(model, (torch.ones(32, 64), torch.ones(32, 1)), loss=torch.nn.functional.mse_loss)
    >>> [graph.nodes[name]["phase"] for name in ("addmm", "boundary", "give.1.weight")]
    ['forward', 'loss', 'backward']
    """
    step = None if optimizer in (None, "none") else TrainingStep(optimizer)
    root, call = Root(model, loss), as_call(inputs)
    costs = roofline(device or home_device(root, call))
    captured = capture(root, call)
    dag = joint_of(captured, costs, updated=step is not None, name=type(model).__name__).dag
    return dag if step is None else stepped(dag, step)


def home_device(root: Root, call: Call) -> str:
    """The name of the device that the first parameter or input is on, as `planner` knows devices."""
    first = next(iter([*root.parameters(), *call.tensors]))
    return device_name(first.device)
