"""A plan held to what it claims by running it beside the step without it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import torch
from torch.utils._pytree import tree_leaves

from planner.memory import MemoryModel
from planner.plan import Plan
from planner.simulator import simulate
from planner.torch import unstable
from planner.torch.prepared import joint_step, prepare_plan
from planner.torch.root import Call, Loss, Root, as_call
from planner.torch.tracker import track
from planner.units import format_bytes


@final
@dataclass(frozen=True)
class Verification:
    """What a planned and an unplanned run of one step did.

    Args:
        compared: what was compared: results, gradients, buffers, the generator's state.
        differing: those of them that are not equal to the bit.
        predicted_bytes, tracked_bytes: the plan's peak without residents, and what its run held.
        unplanned_bytes: what the step without a plan held.
        seconds, unplanned_seconds: of the runs, the least of the repeats.
    """

    compared: tuple[str, ...]
    differing: tuple[str, ...]
    predicted_bytes: int
    tracked_bytes: int
    unplanned_bytes: int
    seconds: float
    unplanned_seconds: float

    @property
    def holds(self) -> bool:
        """True if every bit is equal and the peak is the predicted one."""
        return not self.differing and self.tracked_bytes == self.predicted_bytes

    def __str__(self) -> str:
        equal = f"all {len(self.compared)} values are equal to the bit"
        if self.differing:
            shown = ", ".join(self.differing[:4]) + (" ..." if len(self.differing) > 4 else "")
            equal = f"{len(self.differing)} of {len(self.compared)} values differ: {shown}"
        off = self.tracked_bytes - self.predicted_bytes
        peak = "as predicted, to the byte" if not off else f"{off:+d} bytes from the {self.predicted_bytes} predicted"
        return "\n".join([
            f"Results, gradients, buffers, generator: {equal}",
            f"Peak {format_bytes(self.tracked_bytes)} ({self.tracked_bytes} bytes), {peak}; without the plan"
            f" {format_bytes(self.unplanned_bytes)}",
            f"Time {self.seconds / self.unplanned_seconds:.2f} x that without the plan",
        ])  # fmt: skip


def verify(
    plan: Plan, model: torch.nn.Module, inputs: Any, *, loss: Loss | None = None, repeats: int = 1
) -> Verification:
    """Run a plan and the step without it from one state, and compare everything that they leave behind.

    The backward pass begins at every result that a gradient can come back to, with ones. Buffers, gradients and the
    generator are as before afterwards. Bits are those of this machine with this number of threads; the peak is that of
    tensors, which an op's own scratch memory comes on top of.

    Args:
        plan: of `planner.torch.checkpoint`, or of `planner.optimize(planner.from_torch(...))`, loaded or not.
        inputs: as `checkpoint` takes them.
        repeats: runs for the time; the least counts.
    Raises:
        PlanFileError: it is the plan of another step.

    >>> import planner
    >>> from planner.torch import verify
    >>> net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    >>> plan = planner.optimize(planner.from_torch(net, torch.ones(4, 8)))
    >>> verify(plan, net, torch.ones(4, 8)).holds
    True
    """
    root, call = Root(model, loss), as_call(inputs)
    prepared = prepare_plan(joint_step(root, call), plan)
    args, kwargs = call.arguments(call.tensors)
    unplanned = _least(root, call, lambda: root(*args, **kwargs), repeats)
    planned = _least(root, call, lambda: prepared.run(root, call.tensors), repeats)
    differing = [name for name, value in unplanned.left.items() if not _same(value, planned.left[name])]
    predicted = simulate(plan.graph, plan.schedule, memory=MemoryModel(scope="activations")).peak_bytes
    return Verification(
        compared=tuple(unplanned.left), differing=tuple(differing), predicted_bytes=predicted,
        tracked_bytes=planned.peak_bytes, unplanned_bytes=unplanned.peak_bytes,
        seconds=planned.seconds, unplanned_seconds=unplanned.seconds,
    )  # fmt: skip


@final
@dataclass(frozen=True)
class _Outcome:
    left: dict[str, Any]
    peak_bytes: int
    seconds: float


def _least(root: Root, call: Call, step: Callable[[], Any], repeats: int) -> _Outcome:
    """One tracked run, and the least time of so many others."""
    with track() as memory:
        outcome = _run(root, call, step)
    peak_bytes = memory.peak_bytes
    seconds = [_run(root, call, step).seconds for _ in range(max(repeats, 1))]
    return _Outcome(outcome.left, peak_bytes, min(seconds))


def _run(root: Root, call: Call, step: Callable[[], Any]) -> _Outcome:
    with _as_before(root, call):
        begin = time.perf_counter()
        made = [leaf for leaf in tree_leaves(step()) if isinstance(leaf, torch.Tensor)]
        ends = [leaf for leaf in made if leaf.requires_grad]
        torch.autograd.backward(ends, [torch.ones_like(end) for end in ends])
        seconds = time.perf_counter() - begin
        with unstable.unwatched():  # what is kept for comparison is not of the step
            left: dict[str, Any] = {f"result {k}": leaf.detach().clone() for k, leaf in enumerate(made)}
            left |= {f"gradient of {name}": p.grad for name, p in root.model.named_parameters()}
            left |= {f"gradient of input {k}": tensor.grad for k, tensor in enumerate(call.tensors)}
            left |= {f"buffer {name}": buffer.clone() for name, buffer in root.model.named_buffers()}
            left["generator"] = torch.get_rng_state()
    return _Outcome(left, 0, seconds)


@contextmanager
def _as_before(root: Root, call: Call) -> Iterator[None]:
    """Begins without gradients; buffers, gradients and the generator are put back at the end."""
    leaves = [*root.parameters(), *call.tensors]
    gradients = [leaf.grad for leaf in leaves]
    with unstable.unwatched():
        buffers = [(buffer, buffer.clone()) for buffer in root.buffers()]
    state = torch.get_rng_state()
    try:
        for leaf in leaves:
            leaf.grad = None
        yield
    finally:
        torch.set_rng_state(state)
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        for leaf, gradient in zip(leaves, gradients, strict=True):
            leaf.grad = gradient


def _same(a: Any, b: Any) -> bool:
    return a is b if a is None or b is None else torch.equal(a, b)
