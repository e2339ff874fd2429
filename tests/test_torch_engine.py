"""A planned module under PyTorch's autograd engine, in the ways that people call it: eager's bits."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.extras import imported
from tests.offenders import every

torch = imported("torch")
nn = torch.nn

from planner.torch import checkpoint  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
MODEL = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 16))
X, Y = torch.randn(8, 16), torch.randn(8, 16)


def in_other_order(call: Any) -> None:
    a, b = call(X), call(Y)
    b.sum().backward()
    a.sum().backward()


def thrown_away(call: Any) -> None:
    call(X)
    call(Y).sum().backward()


def under_anomaly_detection(call: Any) -> None:
    with pytest.warns(UserWarning, match="Anomaly Detection"), torch.autograd.detect_anomaly():
        call(X).sum().backward()


def in_another_thread(call: Any) -> None:
    loss = call(X).sum()
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()


def inside_a_checkpoint(call: Any) -> None:
    torch.utils.checkpoint.checkpoint(call, X, use_reentrant=False).sum().backward()


def with_hooks(call: Any) -> list[Any]:
    seen: list[Any] = []
    hooks = [p.register_hook(lambda gradient: gradient * 2) for p in MODEL.parameters()]
    hooks += [p.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.sum())) for p in MODEL.parameters()]
    call(X).sum().backward()
    for hook in hooks:
        hook.remove()
    assert len(seen) == 4  # each parameter once
    return [torch.stack(seen).sort()[0]]


def with_a_scaler(call: Any) -> None:
    scaler, optimizer = torch.amp.GradScaler("cpu"), torch.optim.SGD(MODEL.parameters(), lr=0.0)
    scaler.scale(call(X).sum()).backward()
    scaler.unscale_(optimizer)


def with_draws_between(call: Any) -> list[Any]:
    made = call(X)
    drawn = torch.rand(3)
    made.sum().backward()
    return [drawn]


def half_frozen(call: Any) -> None:
    MODEL[0].requires_grad_(False)
    call(X).sum().backward()
    MODEL[0].requires_grad_(True)


def with_saved_tensors_hooks(call: Any) -> None:
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.clone(), lambda tensor: tensor):
        call(X).sum().backward()


WAYS: list[Callable[[Any], Any]] = [
    in_other_order, thrown_away, under_anomaly_detection, in_another_thread, inside_a_checkpoint, with_hooks,
    with_a_scaler, with_draws_between, half_frozen, with_saved_tensors_hooks,
    lambda call: (call(X) + call(Y)).sum().backward(),
    lambda call: call(call(X)).square().sum().backward(),
    lambda call: list(torch.autograd.grad(call(X).sum(), list(MODEL.parameters()))),
    lambda call: call(X).sum().backward(inputs=[MODEL[0].weight]),
    lambda call: call(X).sum().expand(3).sum().backward(),
    lambda call: call(X)[::2, 1:3].sum().backward(),
    lambda call: call(MODEL[0](X)[:, :16]).sum().backward(),
]  # fmt: skip


@every("way", WAYS)
def test_a_planned_module_is_called_like_any_other(way: Callable[[Any], Any]) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    left = []
    for call in (MODEL, checkpoint(MODEL, X, on_new_shape="plan", costs="roofline", effort=0.02)):
        MODEL.zero_grad()
        torch.manual_seed(2)
        made = way(call) or []
        gradients = {name: p.grad for name, p in MODEL.named_parameters() if p.grad is not None}
        left.append((list(gradients), [*gradients.values(), *made, torch.get_rng_state()]))
    torch.set_num_threads(threads)
    (names, eager), (found_names, found) = left
    assert names == found_names
    assert all(map(torch.equal, eager, found))


PROCESS = """
import copy, os, sys, torch
from torch import nn
from planner.torch import checkpoint
rank, folder = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 5))
twin = copy.deepcopy(model)
torch.manual_seed(10 + rank)
batches = [(torch.randn(8, 16), torch.randint(0, 5, (8,))) for _ in range(6)]
loss, left = nn.functional.cross_entropy, []
for own in (checkpoint(model, batches[0][0], costs="roofline", effort=0.02), twin):
    net = nn.parallel.DistributedDataParallel(own)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(5 + rank)
    for k, (x, y) in enumerate(batches):
        if k % 2 == 0:
            with net.no_sync():
                (loss(net(x), y) / 2).backward()
        else:
            (loss(net(x), y) / 2).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    left.append([*own.parameters(), *own.buffers(), torch.get_rng_state()])
assert all(map(torch.equal, *left))
torch.distributed.destroy_process_group()
"""


def test_two_processes_train_as_they_would_without_a_plan(tmp_path: Path) -> None:
    commands = [[sys.executable, "-c", PROCESS, str(rank), str(tmp_path)] for rank in range(2)]
    running = [subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) for command in commands]
    for process in running:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
