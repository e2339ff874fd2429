"""Modules that run again whole, as PyTorch does it: eager's bits, at a peak that was counted before."""

from __future__ import annotations

from typing import Any

import pytest

import planner
from planner import MemoryModel, PlannerError
from tests.extras import imported

torch = imported("torch")
nn, F = torch.nn, torch.nn.functional

from planner.torch import wrap_checkpoints  # noqa: E402
from tests.training import Trial  # noqa: E402

ACTIVATIONS = MemoryModel(scope="activations")
pytestmark = pytest.mark.usefixtures("one_thread")


class Block(nn.Module):
    """Statistics, a draw, and writes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm, self.relu = nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU(inplace=True)

    def forward(self, x: Any) -> Any:
        y = self.relu(self.norm(self.fc(x)))
        return F.dropout(y, 0.3, self.training) + x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.relu, self.head = nn.ModuleList(Block() for _ in range(5)), nn.ReLU(True), nn.Linear(32, 5)

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = self.relu(block(x))
        return self.head(x)


def test_whole_modules_run_again_with_eager_s_bits_at_the_peak_that_was_counted() -> None:
    model, inputs = Net(), (torch.randn(64, 32), torch.randint(0, 5, (64,)))
    trial = Trial(model, inputs)
    eager = trial.of(lambda x, y: F.cross_entropy(model(x), y))
    graph = planner.from_torch(model, inputs, loss=F.cross_entropy)
    for budget in (eager.peak_bytes * 8 // 10, None):
        plan = planner.optimize(graph, budget, memory=ACTIVATIONS, allocator=None, effort=0.02)
        net = wrap_checkpoints(model, plan, loss=F.cross_entropy)
        found = trial.of(net)
        assert found.differs_from(eager) == []  # statistics are written once, and masks are drawn as they were
        assert found.peak_bytes == net.peak_bytes
        assert found.peak_bytes < eager.peak_bytes * 9 // 10
        assert budget is None or found.peak_bytes <= budget
        assert net.modules_run_again
        assert not any(path.endswith("relu") for path in net.modules_run_again)  # it would begin from its own result
        assert all("forward" not in module.__dict__ for module in model.modules())


def test_what_would_not_be_eager_s_is_refused() -> None:
    model, x = Net(), torch.randn(64, 32)
    graph = planner.from_torch(model, x)
    net = wrap_checkpoints(model, planner.optimize(graph, allocator=None, effort=0.02))
    made = net(x)
    with torch.no_grad():
        model.blocks[1].fc.weight.mul_(2)
    with pytest.raises(PlannerError, match=r"a parameter of 'blocks\.1.*' was changed between forward and backward"):
        made.sum().backward()
    plan = planner.optimize(graph, memory=ACTIVATIONS, allocator=None, effort=0.02)
    tight = planner.optimize(graph, plan.report.plan.peak_bytes, memory=ACTIVATIONS, allocator=None, effort=0.02)
    with pytest.raises(PlannerError, match=r"no choice of modules .* run the plan itself \(planner\.torch\.apply\)"):
        wrap_checkpoints(model, tight)(x)
