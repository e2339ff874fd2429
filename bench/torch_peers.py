"""python -m bench.torch_peers [MODEL ...] [-o FILE]: our plans beside what PyTorch offers, at its own tracked peak.

Its budget for compiled functions (`activation_memory_budget`), `torch.utils.checkpoint` of each block, and selective
checkpointing that keeps products and convolutions. Each runs in one process under one tracker and one count of FLOPs;
then ours is planned within the peak that it had, once by FLOPs and once by the times measured here. Ways of ours that
do without our executor stand beside: whole modules (`wrap_checkpoints`) and a partition for `torch.compile`.

A point whose values are not eager's to the bit, or that raises, is listed and not compared. One thread.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
import torch._functorch.config
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import boxed_nop
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint as run_again
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from bench.torch_models import made
from bench.torch_sweep import MEMORY, Bed, flops, ruler
from bench.vision import name_missing_ops
from planner.api import optimize
from planner.torch import Partition, checkpoint, wrap_checkpoints
from planner.torch.prepared import joint_step, prepare
from planner.torch.root import Root, as_call

aten = torch.ops.aten
_KEPT: Final = [
    aten.mm.default, aten.addmm.default, aten.bmm.default, aten.convolution.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
]  # fmt: skip
_RUNS: Final = 7
_EFFORT: Final = 0.2  # of our searches: the table is for every day
_SLOWER: Final = 1.03  # what issue 14 allows


class GPT2(torch.nn.Module):
    """GPT-2 of transformers from its configuration, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        name_missing_ops()
        from transformers import GPT2Config, GPT2LMHeadModel

        sizes = {"n_layer": 4, "n_embd": 256, "n_head": 4, "vocab_size": 2048, "n_positions": 256}
        self.own = GPT2LMHeadModel(GPT2Config(**sizes, use_cache=False))

    def forward(self, x: Any, y: Any) -> Any:
        return self.own(input_ids=x, labels=y).loss


def bed_of(name: str) -> Bed:
    """A model of the sweep, or "hf"."""
    if name != "hf":
        return Bed(*made(name))
    torch.manual_seed(0)
    ids = torch.randint(0, 2048, (4, 256))
    return Bed(GPT2().train(), (ids, ids))


#: The modules that people checkpoint.
BLOCKS: Final[Mapping[str, Callable[[Any], Sequence[torch.nn.Module]]]] = {
    "gpt": lambda model: model.blocks,
    "gptd": lambda model: model.blocks,
    "rn26": lambda model: model.body,
    "hf": lambda model: model.own.transformer.h,
}


class Arithmetic(TorchDispatchMode):
    """Counts the FLOPs of what runs, by the ruler of the sweep."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0.0

    @classmethod
    def is_infra_mode(cls) -> bool:
        return True  # else dynamo runs eager under it

    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        first = found[0] if isinstance(found, (tuple, list)) and found else found
        self.flops += flops(func, args, first)
        return found


class Point(NamedTuple):
    """One way to run a step: bits, bytes, FLOPs, and how to run it."""

    equal: int
    of: int
    peak_bytes: int
    flops: float
    call: Any


@contextmanager
def again(blocks: Sequence[torch.nn.Module], **options: Any) -> Iterator[None]:
    """Blocks run again in the backward pass."""
    for block in blocks:
        block.forward = functools.partial(run_again, block.forward, use_reentrant=False, **options)
    try:
        yield
    finally:
        for block in blocks:
            del block.__dict__["forward"]


class Way:
    """A model that is called under a context manager."""

    def __init__(self, model: Any, under: Callable[[], Any]) -> None:
        self.model, self.under = model, under

    def __call__(self, *inputs: Any) -> Any:
        with self.under():
            return self.model(*inputs)


def peers(name: str, bed: Bed) -> Iterator[tuple[str, Any]]:
    """PyTorch's ways, by name."""
    blocks = list(BLOCKS[name](bed.model))
    select = functools.partial(create_selective_checkpoint_contexts, _KEPT)
    yield "checkpoint per block", Way(bed.model, lambda: again(blocks))
    yield "selective checkpoint", Way(bed.model, lambda: again(blocks, context_fn=select))
    for budget in (0.8, 0.5, 0.2):
        torch._dynamo.reset()
        partition = functools.partial(min_cut_rematerialization_partition, compiler="inductor")
        backend = aot_autograd(fw_compiler=boxed_nop, bw_compiler=boxed_nop, partition_fn=partition)
        compiled = torch.compile(bed.model, backend=backend)
        under = functools.partial(torch._functorch.config.patch, activation_memory_budget=budget)
        yield f"memory budget {budget}", Way(compiled, under)


def ours(bed: Bed, nbytes: int) -> Mapping[str, Callable[[], Any]]:
    """Ours within so many bytes: what makes them, by name."""
    root, call = Root(bed.model, None), as_call(bed.inputs)

    def by_flops() -> Any:
        prepared = prepare(joint_step(root, call, costs=ruler), nbytes, memory=MEMORY, effort=_EFFORT)
        return lambda *_: prepared.run(root, call.tensors)

    def whole_modules() -> Any:
        plan = optimize(joint_step(root, call).dag, nbytes, memory=MEMORY, allocator=None, effort=0.05)
        return wrap_checkpoints(bed.model, plan)

    def compiled() -> Any:
        torch._dynamo.reset()
        backend = aot_autograd(
            fw_compiler=boxed_nop, bw_compiler=boxed_nop, partition_fn=Partition(nbytes, effort=_EFFORT)
        )
        return torch.compile(bed.model, backend=backend, fullgraph=True)

    return {
        "by FLOPs": by_flops,
        "by profile": lambda: checkpoint(bed.model, bed.inputs, budget=nbytes, memory=MEMORY, effort=_EFFORT),
        "whole modules": whole_modules,
        "in torch.compile": compiled,
    }


def point(bed: Bed, call: Any, eager: Sequence[torch.Tensor]) -> Point:
    """What a way does, after it was run once."""
    bed.run(call)
    found = bed.outcome(call, runs=0)
    with Arithmetic() as counted:
        bed.run(call)
    return Point(sum(map(torch.equal, found.values, eager)), len(eager), found.peak_bytes, counted.flops, call)


def rows(name: str) -> Iterator[str]:
    """The table's rows of one model."""
    bed = bed_of(name)
    values = bed.outcome(bed.model, runs=0).values
    eager = point(bed, bed.model, values)
    yield _row(name, "eager", eager, eager, None, "")
    for title, call in peers(name, bed):
        try:
            peer = point(bed, call, values)
        except Exception as error:
            yield f"| {name} | {title} | raises {type(error).__name__} | | | | not compared |"
            continue
        right = peer.equal == peer.of
        verdict = "" if right else "WRONG, not compared"
        yield _row(name, title, peer, eager, _slower(bed, bed.model, call), verdict)
        if right:
            yield from _beside(name, bed, peer, eager, values)


def _beside(name: str, bed: Bed, peer: Point, eager: Point, values: Sequence[torch.Tensor]) -> Iterator[str]:
    for title, make in ours(bed, peer.peak_bytes).items():
        try:
            mine = point(bed, make(), values)
        except Exception as error:
            said_first = f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"
            yield f"| {name} | within it, ours, {title} | {said_first} | | | | |"
            continue
        assert mine.peak_bytes <= peer.peak_bytes
        said = []
        if title == "by FLOPs":
            said.append("no more FLOPs" if mine.flops <= peer.flops else "MORE FLOPs")
        if title in ("by FLOPs", "by profile"):
            ratio = _slower(bed, peer.call, mine.call)
            said.append(f"{ratio:.2f} x its time" + ("" if ratio <= _SLOWER else ", SLOWER"))
        yield _row(name, f"within it, ours, {title}", mine, eager, _slower(bed, bed.model, mine.call), ", ".join(said))


def _slower(bed: Bed, base: Any, call: Any) -> float:
    """CPU time of a call in that of another, the least of alternating runs."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(_RUNS):
        for times, each in zip(seconds, (base, call), strict=True):
            times.append(bed.run(each)[1])
    return min(seconds[1]) / min(seconds[0])


def _row(name: str, title: str, found: Point, eager: Point, slower: float | None, verdict: str) -> str:
    more = 100 * (found.flops / eager.flops - 1)
    time = "" if slower is None else f"{slower:.2f}"
    equal = f"{found.equal} of {found.of}"
    return f"| {name} | {title} | {found.peak_bytes:,} | {equal} | +{more:.2f} % | {time} | {verdict} |"


def main(arguments: list[str]) -> None:
    """Print the table, and write it where `-o` says."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    output = arguments[arguments.index("-o") + 1] if "-o" in arguments else None
    names = [name for name in arguments if name in BLOCKS] or list(BLOCKS)
    lines = ["| model | way | tracked peak B | equal | FLOPs | CPU, eager = 1 | |", "|---|---|---|---|---|---|---|"]
    print("\n".join(lines))
    for name in names:
        for row in rows(name):
            lines.append(row)
            print(row, flush=True)
    if output is not None:
        Path(output).write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
