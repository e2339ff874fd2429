"""What each op of a planned step takes here, measured in runs of the plan: the budget holds while it is measured."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import final

import torch

from planner.torch import unstable
from planner.torch.emit import emit
from planner.torch.prepared import Prepared
from planner.torch.root import Call, Root
from planner.torch.step_roles import Joint
from planner.torch.stream import ATenCall


@final
class _Clock:
    """Keeps the seconds of the first execution of each op in a run, and the least of them over all runs."""

    def __init__(self) -> None:
        self.least: dict[str, float] = {}
        self.met: set[str] = set()
        self.began = 0.0

    def begin(self, device: torch.device) -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        self.began = time.perf_counter()

    def end(self, op: str, device: torch.device) -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds = time.perf_counter() - self.began
        if op not in self.met:
            self.met.add(op)
            self.least[op] = min(seconds, self.least.get(op, seconds))


def measured_seconds(prepared: Prepared, root: Root, call: Call, *, runs: int = 3) -> Mapping[str, float]:
    """Seconds of each op that computes: the least of its first executions in so many runs of the plan.

    The runs are outside autograd: gradients are dropped where the plan hands them over, buffers are not written, no
    hook is called, and the generators are as before. So the peak is at most the plan's.
    """
    clock = _Clock()
    timed = replace(prepared, emitted=emit(prepared.joint, prepared.plan.graph, prepared.plan.schedule, clock=clock))
    devices = sorted({tensor.device.index for tensor in root.parameters() if tensor.device.type == "cuda"})
    for _ in range(runs):
        clock.met.clear()
        with torch.random.fork_rng(devices=devices), torch.no_grad(), unstable.without_autocast():
            _rehearse(timed, root, call)
    return clock.least


def with_costs(joint: Joint, seconds: Mapping[str, float]) -> Joint:
    """The same step with these costs; views stay free."""
    dag = joint.dag.copy()
    for name, taken in seconds.items():
        role = joint.roles[name]
        if isinstance(role, ATenCall) and len(role.views) < len(role.tensors):
            dag.nodes[name]["cost"] = taken
    return replace(joint, dag=dag)


def _rehearse(prepared: Prepared, root: Root, call: Call) -> None:
    run = prepared.begun(root, call.tensors, write=lambda path, value: None)
    run.forward()  # its results are dropped here
    for index in prepared.joint.tangents:
        like = prepared.joint.outputs[index]
        ones = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device).fill_(1)
        run.box.tangents[index] = ones
    for group in range(len(prepared.emitted.groups)):
        run.gradients(group)
