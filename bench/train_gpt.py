"""python -m bench.train_gpt [--budget 40%] [--steps 50] [--unplanned]: a GPT that learns its own source in a budget.

With `--unplanned` the same loop runs without a plan: every loss is the same to the bit, at another peak.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import click
import torch

from bench.torch_models import GPT
from planner import MemoryModel
from planner.torch import checkpoint, track
from planner.units import format_bytes


class Trained(NamedTuple):
    """What a loop left behind: the loss of each step, the parameters, and the most bytes that a step held."""

    losses: list[float]
    parameters: list[torch.Tensor]
    peak_bytes: int


def text() -> torch.Tensor:
    """This file and its model, as bytes."""
    files = (Path(__file__), Path(__file__).with_name("torch_models.py"))
    return torch.tensor(list(b"".join(path.read_bytes() for path in files)))


def train(*, steps: int, budget: str | None, planned: bool = True, length: int = 64, layers: int = 4) -> Trained:
    """Train from seed 0 with AdamW, clipping and dropout.

    Args:
        budget: of the activations and gradients, as `planner.optimize` takes it; None: the least that works.
        planned: False: the loop as PyTorch runs it.
    """
    torch.manual_seed(0)
    source = text()
    model = GPT(vocabulary=256, width=64, layers=layers, heads=2, length=length, dropout=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def batch() -> tuple[Any, Any]:
        starts = torch.randint(0, len(source) - length - 1, (8,)).tolist()
        rows = torch.stack([source[start : start + length + 1] for start in starts])
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    state = torch.get_rng_state()
    net = checkpoint(model, batch(), budget=budget, memory=MemoryModel("activations")) if planned else model
    torch.set_rng_state(state)
    losses, peak_bytes = [], 0
    for _ in range(steps):
        x, y = batch()
        optimizer.zero_grad()
        with track() as memory:
            loss = net(x, y)
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        peak_bytes = max(peak_bytes, memory.peak_bytes)
    return Trained(losses, [parameter.detach() for parameter in model.parameters()], peak_bytes)


@click.command()
@click.option("--budget", default=None, help="As planner optimize takes it. [the least that works]")
@click.option("--steps", default=50, show_default=True)
@click.option("--unplanned", is_flag=True, help="Without a plan.")
def main(budget: str | None, steps: int, unplanned: bool) -> None:
    """Train a small GPT within a budget."""
    torch.set_num_threads(1)
    found = train(steps=steps, budget=budget, planned=not unplanned)
    for step, loss in enumerate(found.losses):
        if step % 10 == 0 or step == steps - 1:
            click.echo(f"step {step:3d}  loss {loss:.6f}")
    click.echo(f"a step held at most {format_bytes(found.peak_bytes)} of activations and gradients")


if __name__ == "__main__":
    main()
