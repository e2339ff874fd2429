"""A plan inside `torch.compile`: the bits of the unplanned compiled step, at the predicted peak."""

from __future__ import annotations

from typing import Any

import pytest

from planner import InfeasibleBudget
from tests.extras import imported

torch = imported("torch")
nn, F = torch.nn, torch.nn.functional

from torch._dynamo.backends.common import aot_autograd  # noqa: E402
from torch._dynamo.backends.debugging import boxed_nop  # noqa: E402

from planner.torch import Partition  # noqa: E402
from tests.training import Trial  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


class Net(nn.Module):
    """Statistics and masks in layers that run again."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU(inplace=True), nn.Dropout(0.1))
            for _ in range(3)
        )

    def forward(self, x: Any, y: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(x, y)


def compiled(model: Any, partition: Partition, **options: Any) -> Any:
    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=boxed_nop, bw_compiler=boxed_nop, partition_fn=partition)
    return torch.compile(model, backend=backend, fullgraph=True, **options)


def test_a_partition_runs_norms_again_and_keeps_masks_at_the_predicted_peak() -> None:
    model, inputs = Net(), (torch.randn(256, 16), torch.randint(0, 16, (256,)))
    trial = Trial(model, inputs)
    eager = trial.of(model)
    for budget in (eager.peak_bytes * 8 // 10, None):
        partition = Partition(budget, effort=0.05)
        net = compiled(model, partition)
        trial.of(net)  # it compiles
        found = trial.of(net)
        assert found.differs_from(eager) == []
        plan: Any = partition.plan
        assert found.peak_bytes == plan.report.plan.peak_bytes
        assert found.peak_bytes <= (budget or eager.peak_bytes * 8 // 10)
        again = {op for op in plan.schedule.computes if plan.schedule.computes.count(op) > 1}
        assert budget is not None or any("batch_norm" in op for op in again)
        assert not any("dropout" in op for op in again)


def test_a_partition_refuses_a_budget_that_nothing_fits_and_a_shape_that_is_not_known() -> None:
    model, inputs = Net(), (torch.randn(256, 16), torch.randint(0, 16, (256,)))
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as failure:
        compiled(model, Partition(1000, effort=0.05))(*inputs)
    assert isinstance(failure.value.inner_exception, InfeasibleBudget)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="compile with dynamic=False"):
        compiled(model, Partition(effort=0.05), dynamic=True)(*inputs)
    torch._dynamo.reset()
