"""Graphs of the benchmark that are made here, as `rematgraph-1` parts: see the shared data's README for the format."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any, Final, NamedTuple

from bench.remat import FORMAT

Parts = dict[str, Any]


class _Step(NamedTuple):
    """One op of a block: what it reads counts from the block's first op; -1 is the value that enters the block."""

    cost: int
    nbytes: int
    reads: tuple[int, ...]


_WIDTH: Final = 8192
_SCORES: Final = 131072
#: A transformer block: norm, qkv, scores, softmax, weighted sum, projection, sum, norm, up, gelu, down, sum.
_BLOCK: Final = (
    _Step(3, _WIDTH, (-1,)),
    _Step(25, 3 * _WIDTH, (0,)),
    _Step(8, _SCORES, (1,)),
    _Step(20, _SCORES, (2,)),
    _Step(8, _WIDTH, (1, 3)),
    _Step(8, _WIDTH, (4,)),
    _Step(2, _WIDTH, (-1, 5)),
    _Step(3, _WIDTH, (6,)),
    _Step(34, 4 * _WIDTH, (7,)),
    _Step(8, 4 * _WIDTH, (8,)),
    _Step(34, _WIDTH, (9,)),
    _Step(2, _WIDTH, (6, 10)),
)


def gpt(layers: int) -> Parts:
    """The training step of a transformer of so many layers: 24 ops a layer and four more. `gpt12`, `gpt96` of the
    shared data.

    >>> parts = gpt(400)
    >>> parts["name"], parts["n"]
    ('gpt400', 9604)
    """
    cost, nbytes, edges = [1], [_WIDTH], list[list[int]]()

    def add(step_cost: int, step_bytes: int, *reads: int) -> int:
        edges.extend([read, len(cost)] for read in sorted(reads))
        cost.append(step_cost)
        nbytes.append(step_bytes)
        return len(cost) - 1

    enters = 0
    for _ in range(layers):
        first = len(cost)
        for step in _BLOCK:
            add(step.cost, step.nbytes, *(enters if k < 0 else first + k for k in step.reads))
        enters = len(cost) - 1
    add(34, _WIDTH, enters)  # the loss, of the last value
    forward = len(cost)
    own = add(68, _WIDTH, enters)  # gradients: of what leaves a block, by its own way and past it
    past: int | None = None
    for layer in reversed(range(layers)):
        first = 1 + 12 * layer
        own, past = _block_backward(add, first, own, past)
    assert past is not None
    add(1, 1, past, own)
    flags = [0] * forward + [1] * (len(cost) - forward)
    return {
        "format": FORMAT,
        "name": f"gpt{layers}",
        "n": len(cost),
        "cost": cost,
        "mem": nbytes,
        "edges": edges,
        "bwd": flags,
    }


def _block_backward(add: Any, first: int, own: int, past: int | None) -> tuple[int, int]:
    """The gradient ops of a block; its last gradient, and the sum that goes past its first half."""
    whole = add(1, 2 * _WIDTH, *([own] if past is None else [past, own]))
    down = add(68, 4 * _WIDTH, first + 9, whole)
    gelu = add(8, 4 * _WIDTH, first + 8, down)
    up = add(68, _WIDTH, first + 7, gelu)
    norm = add(6, _WIDTH, first + 6, up)
    half = add(1, 2 * _WIDTH, whole, norm)
    projection = add(17, _WIDTH, first + 4, half)
    weighted = add(17, _SCORES + 3 * _WIDTH, first + 1, first + 3, projection)
    softmax = add(20, _SCORES, first + 3, weighted)
    scores = add(17, 3 * _WIDTH, first + 1, softmax)
    qkv = add(51, _WIDTH, first, weighted, scores)
    return add(6, _WIDTH, first - 1, qkv), half


def layered(ops: int, *, width: int, seed: int) -> Parts:
    """Random layers between one source and one sink, no backward pass: the kind of `layered1000` in the shared data.

    An op reads each op of the layer before with a chance of 1 in 5, and at least one; one op in seven also reads one
    from further back. What nobody would read, an op of the next layer reads.

    Args:
        width: of a layer in the mean; layers have a third of it to five thirds. 60 at 10,000 ops, about 26 at 1,000.
    """
    draw = random.Random(seed)
    layers = [[0]]
    while (begin := layers[-1][-1] + 1) < ops - 1:
        layers.append(list(range(begin, min(ops - 1, begin + draw.randint(max(1, width // 3), 5 * width // 3)))))
    layers.append([ops - 1])
    edges = set[tuple[int, int]]()
    for before, layer in pairwise(layers):
        for op in layer:
            reads = [other for other in before if draw.random() < 0.2] or [draw.choice(before)]
            edges.update((other, op) for other in reads)
            if before[0] and draw.random() < 1 / 7:
                edges.add((draw.randrange(before[0]), op))
        unread = set(before) - {other for other, _ in edges}
        edges.update((other, draw.choice(layer)) for other in sorted(unread))
    cost = [draw.randint(1, 999) for _ in range(ops)]
    nbytes = [draw.randint(1, 4999) for _ in range(ops)]
    ordered = [list(edge) for edge in sorted(edges, key=lambda edge: (edge[1], edge[0]))]
    return {
        "format": FORMAT,
        "name": f"layered{ops}",
        "n": ops,
        "cost": cost,
        "mem": nbytes,
        "edges": ordered,
        "bwd": None,
    }
