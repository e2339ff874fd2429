"""python -m bench.torch_sweep [MODEL ...]: plans of six models of PyTorch that were run, beside eager and targets.

One thread. Each row is one plan: what it was asked, its peak, what its run held, how many values of loss, gradients,
buffers and generator are eager's to the bit, FLOPs more than eager's, and CPU time by the least of three runs.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import torch

from bench.torch_models import MODELS, made
from planner.errors import InfeasibleBudget
from planner.memory import MemoryModel
from planner.torch import track
from planner.torch.costs import Cost
from planner.torch.prepared import Prepared, joint_step, prepare
from planner.torch.root import Root, as_call
from planner.torch.stream import ATenCall

aten = torch.ops.aten
MEMORY: Final = MemoryModel(scope="activations")
FRACTIONS: Final = (0.8, 0.6, 0.5, 0.3)


#: The ones that `backward()` begins with. They are in our plans; the targets are of plans that took them as an input.
_ONES_BYTES: Final = 4


class Aim(NamedTuple):
    """What issue 14 asks: a budget in bytes, and the FLOPs more in % that a plan within it may have."""

    nbytes: int
    percent: float | None  # None: any plan within it


TARGETS: Final = {
    "gpt": [Aim(101_810_184, 0), Aim(64_061_448, 5.4), Aim(40_992_776, 13.2), Aim(29_715_460, None)],
    "gptd": [Aim(108_038_728, 0), Aim(65_107_832, 7.3), Aim(35_020_300, None)],
    "rn50": [Aim(178_578_236, 0), Aim(230_375_320 // 2, 10.9)],
    "rn26": [Aim(38_246_936 * 3 // 10, 28.3), Aim(10_439_464, None)],
    "lstm": [Aim(11_822_124, 5.9), Aim(2_384_940, None)],
    "unet": [],
}  # fmt: skip


def flops(target: Any, args: Sequence[Any], made: Any) -> float:
    """Multiplies and adds of convolutions, products and attention; a causal mask saves nothing, a backward is 2.5 x.

    Args:
        target, args, made: an op of ATen, what it is given and its first result; tensors may be fake.
    """
    sizes = [argument.shape if isinstance(argument, torch.Tensor) else None for argument in args]
    if target is aten.convolution_backward.default:
        gradient, x, weight = sizes[:3]
        spread = x if args[7] else gradient
        return 2.0 * math.prod(spread) * math.prod(weight[1:]) * sum(args[10][:2])
    if target is aten.convolution.default:
        spread = sizes[0] if args[6] else made.shape
        return 2.0 * math.prod(spread) * math.prod(sizes[1][1:])
    if target in (aten.mm.default, aten.bmm.default):
        return 2.0 * math.prod(sizes[0]) * sizes[1][-1]
    if target is aten.addmm.default:
        return 2.0 * math.prod(sizes[1]) * sizes[2][-1]
    if "attention" in str(target):
        backward = "backward" in str(target)
        batch, heads, length, width = sizes[1 if backward else 0]
        return 4.0 * batch * heads * length * length * width * (2.5 if backward else 1.0)
    return 0.0


def ruler(call: ATenCall) -> Cost:
    """The cost that plans are made by: FLOPs, and a thousandth for each byte moved, so that no op is free."""
    if len(call.views) == len(call.tensors):
        return Cost(0.0, 0.0)
    moved = sum(tensor.untyped_storage().nbytes() for tensor in call.tensors)
    read = {node for node in call.node.all_input_nodes if isinstance(node.meta.get("val"), torch.Tensor)}
    moved += sum(node.meta["val"].numel() * node.meta["val"].element_size() for node in read)
    node: Any = call.node
    args = [argument.meta["val"] if isinstance(argument, torch.fx.Node) else argument for argument in node.args]
    arithmetic = flops(node.target, args, call.tensors[0])
    return Cost(arithmetic + 1e-3 * moved, arithmetic)


class Outcome(NamedTuple):
    values: list[torch.Tensor]
    peak_bytes: int
    seconds: float


class Bed:
    """A model at its beginning, again and again."""

    def __init__(self, model: torch.nn.Module, inputs: Any) -> None:
        self.model, self.inputs = model, inputs
        self.state = {key: value.clone() for key, value in self.model.state_dict().items()}
        self.generator = torch.get_rng_state()

    def outcome(self, call: Any, *, runs: int = 3) -> Outcome:
        """Bits, peak and least CPU seconds of so many runs."""
        with track() as memory:
            values, _ = self.run(call)
        peak_bytes = memory.peak_bytes
        return Outcome(values, peak_bytes, min((self.run(call)[1] for _ in range(runs)), default=0.0))

    def run(self, call: Any) -> tuple[list[torch.Tensor], float]:
        """All values that one call leaves, and its CPU seconds."""
        self.model.load_state_dict(self.state)
        self.model.zero_grad(set_to_none=True)
        torch.set_rng_state(self.generator)
        begin = time.process_time()
        loss = call(*self.inputs)
        loss.backward()
        seconds = time.process_time() - begin
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        with torch.utils._python_dispatch._disable_current_modes():
            buffers = [buffer.clone() for buffer in self.model.buffers()]
        return [loss.detach(), *gradients, *buffers, torch.get_rng_state()], seconds


def rows(name: str) -> Iterator[str]:
    """The table's rows of one model."""
    bed = Bed(*made(name))
    begin = time.process_time()
    root, call = Root(bed.model, None), as_call(bed.inputs)
    joint = joint_step(root, call, costs=ruler)
    captured = time.process_time() - begin
    eager = bed.outcome(bed.model)
    total = sum(float(op or 0.0) for _, op in joint.dag.nodes(data="flops"))
    yield f"| {name} | eager, captured in {captured:.1f} s | | {eager.peak_bytes:,} | | | |"
    asked: list[tuple[str, int | None, float | None]] = [("keep-all", eager.peak_bytes * 2, None)]
    asked += [(f"{100 * fraction:.0f} %", int(fraction * eager.peak_bytes), None) for fraction in FRACTIONS]
    for aim in TARGETS.get(name, []):
        asked.append((f"target {aim.nbytes:,} + {_ONES_BYTES} B", aim.nbytes + _ONES_BYTES, aim.percent))
    asked += [("least", None, None)]
    for label, budget, percent in asked:
        begin = time.process_time()
        try:
            prepared = prepare(joint, budget, memory=MEMORY)
        except InfeasibleBudget as error:
            yield f"| {name} | {label} | refused: least {error.minimum:,}, proven {error.peak_lower_bound:,} | | | | |"
            continue
        planned = time.process_time() - begin
        found = bed.outcome(lambda *_, prepared=prepared: prepared.run(root, call.tensors))
        yield _row(name, label, prepared, found, eager, total=total, percent=percent, planned=planned)


def _row(
    name: str, label: str, prepared: Prepared, found: Outcome, eager: Outcome, *, total: float, percent: float | None,
    planned: float,
) -> str:  # fmt: skip
    graph, runs = prepared.plan.graph, prepared.plan.schedule.computes
    more = 100 * (sum(graph.op_named[op].flops or 0.0 for op in runs) / total - 1)
    equal = sum(map(torch.equal, found.values, eager.values))
    predicted = prepared.plan.report.plan.peak_bytes
    off = "exact" if found.peak_bytes == predicted else f"{found.peak_bytes - predicted:+d} B"
    goal = "" if percent is None else f" ({'meets' if more <= percent + 0.005 else 'MISSES'} +{percent} %)"
    return (
        f"| {name} | {label} | {predicted:,} | {found.peak_bytes:,} {off} | {equal} of {len(eager.values)} |"
        f" +{more:.2f} %{goal} | {found.seconds / eager.seconds:.2f} (planned in {planned:.1f} s) |"
    )


def main(names: list[str]) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    print("| model | asked | peak B | tracked B | equal | FLOPs | CPU, eager = 1 |")
    print("|---|---|---|---|---|---|---|")
    for name in names or [name for name in MODELS if name != "lstm20"]:
        for row in rows(name):
            print(row, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
