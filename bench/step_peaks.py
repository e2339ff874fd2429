"""One step of PyTorch, counted, beside `planner.estimate` of the same step; what differs at the peaks is named.

    python -m bench.step_peaks                    # every row, as Markdown
    python -m bench.step_peaks resnet50           # one model

PyTorch's side is the tracked peak of the second step, and what is there before it: parameters, buffers, optimizer
states, inputs. Fake tensors of the CPU take the storages that real ones take, but neither memory nor time. Needs the
extra `test-torch`.

Each row names what one side holds at its peak and the other does not: how many more storages of a size, and the ops
that made such.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import networkx as nx

import planner
from bench.vision import name_missing_ops
from planner import TrainingStep, zoo
from planner.lowering.step import with_step
from planner.schedule import keep_all

BATCHES = (1, 4)
SHOWN = 3  # sizes of a side, and ops of a size


class Side(NamedTuple):
    """What one side holds at its peak."""

    peak_bytes: int
    given_bytes: int  # there before the step and after it
    op: str
    live: Counter[tuple[str, int]]  # storages by op and bytes, without what is given


class Torch(NamedTuple):
    """A model as PyTorch runs it: `loss(net, inputs, labels)`."""

    net: Any
    inputs: Any
    labels: Any
    loss: Callable[[Any, Any, Any], Any]


class Pair(NamedTuple):
    """One model, on both sides."""

    spec: str  # of the zoo
    torch: Callable[[int], Torch]  # of a batch


def vision(name: str, batch: int) -> Torch:
    """A model of torchvision, on images of 224 x 224."""
    import torch
    import torchvision

    images, labels = torch.zeros(batch, 3, 224, 224), torch.zeros(batch, dtype=torch.int64)
    cross_entropy = torch.nn.functional.cross_entropy
    return Torch(getattr(torchvision.models, name)(), images, labels, lambda net, x, y: cross_entropy(net(x), y))


def gpt2(batch: int, *, one_op_loss: bool = False, **options: Any) -> Torch:
    """GPT-2 of transformers, without dropout, whose masks differ by device.

    Args:
        one_op_loss: log-probabilities are kept and the gradient of the logits made of them, without one between.
        options: of its configuration.
    """
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    class Loss(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, logits: Any, _labels: Any) -> Any:
            kept = logits.log_softmax(1)
            ctx.save_for_backward(kept)
            return -kept.mean()

        @staticmethod
        def backward(ctx: Any, _gradient: Any) -> Any:
            return ctx.saved_tensors[0].exp(), None

    config = GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, **options)
    tokens, labels = (torch.zeros(batch, config.n_positions, dtype=torch.int64) for _ in range(2))
    loss = Loss.apply if one_op_loss else torch.nn.functional.cross_entropy
    return Torch(
        GPT2LMHeadModel(config), tokens, labels, lambda net, x, y: loss(net(x).logits.flatten(0, 1), y.flatten())
    )


_ONE_OP_GELU = "gelu_pytorch_tanh"  # the configuration's own, "gelu_new", is eight ops
MODELS = {
    "resnet18": Pair("resnet:18", partial(vision, "resnet18")),
    "resnet50": Pair("resnet:50", partial(vision, "resnet50")),
    "vit_b_16": Pair("vit:12", partial(vision, "vit_b_16")),
    "gpt2": Pair("gpt2", gpt2),
    "gpt2, GELU as one op": Pair("gpt:12", partial(gpt2, activation_function=_ONE_OP_GELU)),
    "gpt2, GELU and loss as one op each": Pair(
        "gpt:12", partial(gpt2, activation_function=_ONE_OP_GELU, one_op_loss=True)
    ),
}
#: What PyTorch runs, as (optimizer, foreach), and the step of ours that is held against it.
STEPS = (
    ("sgd", False, TrainingStep("sgd", "per-tensor")),
    ("sgd", False, TrainingStep("sgd")),
    ("sgd", True, TrainingStep("sgd", "multi-tensor")),
    ("sgd", True, TrainingStep("sgd", "fused")),
    ("adam", False, TrainingStep("adam", "per-tensor")),
    ("adam", True, TrainingStep("adam", "multi-tensor")),
)


def tracked(build: Callable[[], Torch], *, optimizer: str, foreach: bool, fake: bool = True) -> Side:
    """What the second step of PyTorch holds.

    Args:
        optimizer: "sgd" or "adam".
        foreach: True updates all parameters at once.
        fake: count fake tensors; False runs the step.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from planner.torch import track

    name_missing_ops()
    made = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimizer]
    with ExitStack() as stack:
        if fake:
            stack.enter_context(FakeTensorMode())
            # Both ask a tensor for its values, and a fake one has none: initial weights; whether rows are packed.
            stack.enter_context(patch("torch.nn.init.trunc_normal_", lambda tensor, **_: tensor))
            stack.enter_context(patch("transformers.masking_utils.find_packed_sequence_indices", lambda *_, **__: None))
        net, inputs, labels, loss = build()
        update = made(net.parameters(), lr=0.1, foreach=foreach)

        def step() -> None:
            update.zero_grad()
            loss(net, inputs, labels).backward()
            update.step()

        step()
        update.zero_grad()
        states = [value for state in update.state.values() for value in state.values() if torch.is_tensor(value)]
        given_bytes = _storage_bytes([*net.parameters(), *net.buffers(), *states, inputs, labels])
        with track() as memory:
            step()
    op = memory.ops[memory.timeline_bytes.index(memory.peak_bytes)]
    live = Counter((_short(storage.op), storage.nbytes) for storage in memory.at_peak())
    return Side(memory.peak_bytes + given_bytes, given_bytes, _short(op), live)


def _short(op: str) -> str:
    return op.split(".")[1] if op.startswith("aten.") else op


def _storage_bytes(tensors: Iterable[Any]) -> int:
    storages = (tensor.untyped_storage() for tensor in tensors)
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


def estimated(graph: nx.DiGraph, step: TrainingStep) -> Side:
    """What every iteration after the first holds by `planner.estimate`."""
    peak = planner.estimate(graph, step=step).later.peak
    program = with_step(graph, step)
    trace = planner.simulate(program, keep_all(program))
    kinds = {tensor.name: op.op or op.name for op in program.ops for tensor in op.outputs}
    live = Counter((kinds[value], nbytes) for value, nbytes in trace.live_at_peak)
    live["workspace", trace.workspace_at_peak_bytes] += 1
    assert trace.peak_bytes == peak.peak_bytes
    return Side(trace.peak_bytes, trace.resident_bytes, f"{peak.phase} {trace.peak_op}", live)


def beyond(one: Side, other: Side) -> list[tuple[int, int, tuple[str, ...]]]:
    """What one side holds beyond the other: (storages, bytes of each, ops that made such), most bytes first."""
    ops: dict[int, set[str]] = {}
    more: Counter[int] = Counter()
    for side, sign in ((one, 1), (other, -1)):
        for (op, nbytes), count in side.live.items():
            more[nbytes] += sign * count
            if side is one:
                ops.setdefault(nbytes, set()).add(op)
    found = [(count, nbytes, tuple(sorted(ops[nbytes]))) for nbytes, count in more.items() if count > 0 and nbytes]
    return sorted(found, key=lambda each: -each[0] * each[1])


def row(name: str, batch: int, real: Side, step: TrainingStep) -> str:
    """One line of the table."""
    ours = estimated(zoo.build(MODELS[name].spec, batch=batch), step)
    share = 100 * (ours.peak_bytes / real.peak_bytes - 1)
    parts = [f"given {real.given_bytes - ours.given_bytes:+,}"]
    for whose, one, other in (("only PyTorch", real, ours), ("only ours", ours, real)):
        more = [f"{count} x {nbytes:,} ({', '.join(ops[:SHOWN])})" for count, nbytes, ops in beyond(one, other)]
        more = more[:SHOWN] + ["..."] * (len(more) > SHOWN)
        parts += [f"{whose}: {', '.join(more)}"] if more else []
    cells = [name, batch, step, f"{real.peak_bytes:,}", f"{ours.peak_bytes:,}", f"{share:+.2f} %"]
    return f"| {' | '.join(map(str, cells))} | {real.op} / {ours.op} | {'; '.join(parts)} |"


def main(names: list[str]) -> None:
    """Print the table."""
    print("| model | batch | step | PyTorch, bytes | ours, bytes | ours | peaks at | what differs there, bytes |")
    print("|---|---|---|---|---|---|---|---|")
    for name in names or MODELS:
        for batch in BATCHES:
            for optimizer, foreach, step in STEPS:
                real = tracked(partial(MODELS[name].torch, batch), optimizer=optimizer, foreach=foreach)
                print(row(name, batch, real, step), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
