"""C9 of the shared cases, and models of torchvision in small: equal to the bit, at the predicted peak to the byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from planner import MemoryModel
from tests.extras import imported
from tests.offenders import every

torch = imported("torch")
models = imported("torchvision.models")
nn, F = torch.nn, torch.nn.functional

from planner.torch import checkpoint  # noqa: E402
from tests.training import Trial  # noqa: E402

ACTIVATIONS = MemoryModel(scope="activations")
pytestmark = pytest.mark.usefixtures("one_thread")


class Stretch(nn.Module):
    """A batch norm and a mask between two layers; the batch's mean is 1 in the first feature."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(32, 32), nn.BatchNorm1d(32), nn.Linear(32, 32)
        with torch.no_grad():
            self.first.weight[0] = 0
            self.first.bias[0] = 1

    def forward(self, x: Any) -> Any:
        return self.last(F.dropout(self.norm(self.first(x)), 0.5)).square().sum()


def test_statistics_move_once_where_a_norm_and_a_mask_run_again() -> None:
    # C9: momentum 0.1 moves a running mean of 0 to 0.1 by a batch's mean of 1, and twice to 0.19.
    model, x = Stretch(), torch.randn(256, 32, requires_grad=True)
    trial = Trial(model, (x,))
    eager = trial.of(model)
    again = {"recompute": ["module:first", "module:norm"], "budget": "100%"}
    net = checkpoint(model, x, memory=ACTIVATIONS, costs="roofline", **again)
    runs = [op for op in net.plan.schedule.computes if "batch_norm" in op and "backward" not in op]
    assert len(runs) == 2
    found = trial.of(net)
    assert found.differs_from(eager) == []
    assert found.values["buffer norm.running_mean"][0] == pytest.approx(0.1)
    assert found.values["buffer norm.num_batches_tracked"] == 1
    assert found.peak_bytes == net.plan.report.plan.peak_bytes


def vit() -> Any:
    sizes = {"image_size": 32, "patch_size": 8, "num_layers": 2, "num_heads": 2, "hidden_dim": 32, "mlp_dim": 64}
    return models.VisionTransformer(**sizes, num_classes=10, dropout=0.1)


@every("make", [lambda: models.resnet18(num_classes=10), vit])
def test_a_model_of_torchvision_gives_eager_s_bits_at_the_predicted_peak(make: Callable[[], Any]) -> None:
    torch.manual_seed(0)
    model, inputs = make(), (torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,)))
    own = lambda x, y: F.cross_entropy(model(x), y)  # noqa: E731
    trial = Trial(model, inputs)
    eager = trial.of(own)
    gradients = sum(p.numel() * p.element_size() for p in model.parameters())
    for budget in ((eager.peak_bytes + gradients) // 2, None):
        net = checkpoint(
            model, inputs, loss=F.cross_entropy, budget=budget, memory=ACTIVATIONS, costs="roofline", effort=0.02
        )
        found = trial.of(net)
        assert found.differs_from(eager) == []
        assert found.peak_bytes == net.plan.report.plan.peak_bytes
        assert budget is None or found.peak_bytes <= budget
