"""The bench that holds `estimate` against a step of PyTorch: its two sides are what they say, and they meet."""

from __future__ import annotations

from collections import Counter
from functools import partial

from bench.step_peaks import MODELS, Side, Torch, beyond, estimated, gpt2, tracked
from planner import TrainingStep, zoo
from tests.extras import imported
from tests.offenders import every

torch = imported("torch")
imported("torchvision")
imported("transformers")


def linear() -> Torch:
    """8 to 4 features without a bias, 2 rows."""
    net = torch.nn.Linear(8, 4, bias=False)
    return Torch(net, torch.ones(2, 8), torch.ones(2, 4), lambda net, x, y: (net(x) * y).sum())


def test_the_step_of_a_linear_layer_is_that_of_a_count_by_hand() -> None:
    found = tracked(linear, optimizer="adam", foreach=False)
    weight, rows = 8 * 4 * 4, 2 * 4 * 4
    # The weight, its two states, a step count of 4; inputs 2 * 8 * 4 and labels.
    assert found.given_bytes == 3 * weight + 4 + 64 + rows
    # While the weight is updated: its gradient, the root of the second moment, and that divided. The loss is gone.
    assert (found.peak_bytes - found.given_bytes, found.op) == (3 * weight, "div")


@every("optimizer, foreach", [("sgd", False), ("adam", True)])
def test_fake_tensors_take_the_storages_of_real_ones(optimizer: str, foreach: bool) -> None:
    small = partial(gpt2, 2, n_layer=2, n_embd=32, n_head=2, n_positions=48, vocab_size=97)
    fake, real = (tracked(small, optimizer=optimizer, foreach=foreach, fake=fake) for fake in (True, False))
    assert fake == real


def test_storages_of_equal_size_cancel_and_the_rest_is_told_by_size_with_the_ops_that_made_such() -> None:
    one = Side(0, 0, "", Counter({("conv", 8): 3, ("relu", 8): 2, ("add", 5): 1, ("mul", 7): 1}))
    other = Side(0, 0, "", Counter({("Conv", 8): 3, ("Add", 5): 1, ("Sum", 9): 1}))
    assert beyond(one, other) == [(2, 8, ("conv", "relu")), (1, 7, ("mul",))]
    assert beyond(other, one) == [(1, 9, ("Sum",))]


#: The target is 2 %. Left are a sum of gradients, temporaries of Adam, the gradient of the loss: see bench/README.md.
ROWS: list[tuple[str, int, str, bool, TrainingStep, float]] = [
    ("resnet50", 4, "sgd", False, TrainingStep("sgd"), 0.5),
    ("vit_b_16", 1, "adam", False, TrainingStep("adam", "per-tensor"), 2),
    ("vit_b_16", 4, "adam", True, TrainingStep("adam", "multi-tensor"), 0.01),
    ("gpt2, GELU and loss as one op each", 4, "sgd", True, TrainingStep("sgd", "fused"), 0.01),
]


@every("name, batch, optimizer, foreach, step, percent", ROWS, ids=lambda row: f"{row[0]} {row[1]} {row[4]}")
def test_an_estimate_is_within_two_percent_of_the_step(
    name: str, batch: int, optimizer: str, foreach: bool, step: TrainingStep, percent: float
) -> None:
    real = tracked(partial(MODELS[name].torch, batch), optimizer=optimizer, foreach=foreach)
    ours = estimated(zoo.build(MODELS[name].spec, batch=batch), step)
    assert 100 * abs(ours.peak_bytes - real.peak_bytes) <= percent * real.peak_bytes
