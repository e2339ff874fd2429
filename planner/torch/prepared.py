"""From a call of a model to a plan that can be run: capture, plan, emit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import msgspec
import torch

from planner.api import optimize
from planner.errors import PlanFileError
from planner.graph import Graph
from planner.lowering.schema import lower
from planner.memory import MemoryModel
from planner.plan import Plan
from planner.torch.capture import capture
from planner.torch.costs import Costs, roofline
from planner.torch.emit import Emitted, emit
from planner.torch.from_module import home_device
from planner.torch.joint import joint_of
from planner.torch.meanings import Buffer, Input, Parameter, Source
from planner.torch.root import Call, Root
from planner.torch.slices import Box, Run, Write, differentiable
from planner.torch.step_roles import Joint


@final
@dataclass(frozen=True)
class Prepared:
    """A planned call: what runs, and the plan it was made from."""

    joint: Joint
    plan: Plan
    emitted: Emitted

    def run(self, root: Root, tensors: Sequence[torch.Tensor]) -> Any:
        """The model's results for these tensors, under autograd."""

        def write(path: str, value: torch.Tensor) -> None:
            root.resident(path).copy_(value)

        run = self.begun(root, tensors, write=write)
        return self.joint.shape.shaped(differentiable(run, lambda of: _resident(root, tensors, of)))

    def begun(self, root: Root, tensors: Sequence[torch.Tensor], *, write: Write) -> Run:
        """A run of the plan at its beginning, for who drives it.

        Args:
            write: called with the path and the new content of each buffer that the forward pass writes.
        """
        residents = [_resident(root, tensors, source).detach() for source in self.joint.residents.values()]
        return Run(self.emitted, Box(self.joint, root.resident, write), residents)

    def label(self, name: str) -> str:
        """A resident, for people."""
        return str(self.joint.residents[name])


def _resident(root: Root, tensors: Sequence[torch.Tensor], source: Source) -> torch.Tensor:
    if isinstance(source, (Parameter, Buffer)):
        return root.resident(source.path)
    return tensors[source.index] if isinstance(source, Input) else source.tensor  # type: ignore[union-attr]


def joint_step(root: Root, call: Call, *, costs: Costs | None = None, **options: Any) -> Joint:
    """The step of a call in the planner's schema.

    Args:
        costs: of an op; None: the roofline of the device that the tensors are on.
        options: of `joint_of`.
    """
    costs = costs or roofline(home_device(root, call))
    name = type(root.model).__name__
    captured = capture(root, call)
    return joint_of(captured, costs, name=name, **options)


def prepare(joint: Joint, budget: Any, *, memory: MemoryModel, **options: Any) -> Prepared:
    """Plan a step within a budget, and write what runs.

    Args:
        options: of `planner.optimize`.
    Raises:
        InfeasibleBudget: no plan fits; carries the least that works.
    """
    program = lower(joint.dag)
    plan = optimize(program, budget, memory=memory, **{"allocator": None, **options})
    return Prepared(joint, plan, emit(joint, program, plan.schedule))


def prepare_again(first: Prepared, joint: Joint, budget: Any, *, memory: MemoryModel, **options: Any) -> Prepared:
    """Plan a step that was planned before under other costs; the first plan is where the search begins."""
    start = replace(first.plan, graph=lower(joint.dag))
    return prepare(joint, budget, memory=memory, **{**options, "starts": [start, *options.get("starts", ())]})


def prepare_plan(joint: Joint, plan: Plan) -> Prepared:
    """Run a plan that was made before, perhaps from other costs.

    Raises:
        PlanFileError: it is the plan of another step.
    """
    program = lower(joint.dag)
    if structure(program) != structure(plan.graph):
        found, mine = len(plan.graph.ops), len(program.ops)
        reason = "another model, loss, shape, dtype or training mode" if found == mine else f"{found} ops, not {mine}"
        raise PlanFileError(f"this is the plan of another step ({reason}): plan this model again")
    return Prepared(joint, plan, emit(joint, program, plan.schedule))


def structure(program: Graph) -> str:
    """The fingerprint of a program without its costs, which differ from one profile to the next."""
    return Graph([msgspec.structs.replace(op, cost=0.0, flops=None) for op in program.ops]).fingerprint
