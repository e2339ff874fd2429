"""Each row of ONNX's table against an independent count.

Forward passes are onnx's reference implementation, shapes its inference. A gradient is computed from what its row lists
and compared with differences of the forward pass; in-place permissions and views with what the op does to data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import networkx as nx
import numpy as np
import pytest
from offenders import every

from planner import zoo
from planner.errors import GraphError
from planner.footprint.estimate import estimate
from planner.lowering.devices import Device, device
from planner.lowering.differentiate import differentiate
from planner.lowering.operators.lookup import TensorType, attributes, operator
from planner.lowering.operators.onnx_rows import ONNX_OPERATORS, REFUSED
from planner.lowering.operators.rows import Operator

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper, shape_inference  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

Array = np.ndarray
Slope = Callable[..., Array]
RNG = np.random.default_rng(1)
STATE = np.zeros(16, np.uint8)  # of a generator, which is no input in ONNX
#: One byte takes one second and arithmetic none: the cost of an op is the bytes it moves.
TRAFFIC = Device("traffic", 1.0, {"float32": math.inf}, "by definition")


def some(*shape: int) -> Array:
    """Floats of both signs, none near 0, no two alike."""
    size = math.prod(shape)
    values = np.linspace(0.3, 2.1, size) * RNG.choice([-1.0, 1.0], size)
    return RNG.permutation(values).reshape(shape)


def positive(*shape: int) -> Array:
    return abs(some(*shape))


def ints(*values: Any) -> Array:
    return np.array(values, np.int64)


@dataclass(frozen=True)
class Case:
    """One op on small tensors.

    Args:
        inputs: the tensors it reads, in the row's order.
        static: by ONNX's input position, what importers drop.
        slopes: by input, the gradient from (dy, *what the row lists).
        outputs: how many the node has.
        forward: of the inputs, where onnx has no reference for what training keeps.
        flops: by hand, where the count is exact.
        opset: of the standard.
    """

    op: str
    inputs: Sequence[Array]
    slopes: Mapping[int, Slope] = field(default_factory=dict)
    static: Mapping[int, Array] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    outputs: int = 1
    forward: Callable[..., Sequence[Array]] | None = None
    flops: int | None = None
    opset: int = 24
    shaped: bool = True

    @property
    def row(self) -> Operator:
        return operator(self.op, node="n", outputs=self.outputs)

    def run(self, *inputs: Array) -> list[Array]:
        """All outputs; `forward` first, where it is given."""
        return [np.asarray(made) for made in (self.forward or self.reference)(*inputs)]

    def reference(self, *inputs: Array) -> list[Array]:
        feeds = self._places(inputs)
        evaluator = _evaluator(self.op, tuple(feeds), repr(self.params), self.outputs, self.opset, _Params(self.params))
        return list(evaluator.run(None, {f"i{k}": value for k, value in feeds.items()}))

    def _places(self, inputs: Sequence[Array]) -> dict[int, Array]:
        """By ONNX's input position."""
        rest = iter([value for value in inputs if value is not STATE])
        feeds: dict[int, Array] = {}
        for k in range(len(inputs) + len(self.static) + 8):
            if k in self.static:
                feeds[k] = self.static[k]
            elif k not in self.row.static and (value := next(rest, None)) is not None:
                feeds[k] = value
        return feeds


class _Params(dict):  # type: ignore[type-arg]
    """Hashable by identity of use: the cache key names its content as text."""

    def __hash__(self) -> int:  # type: ignore[override]
        return 0

    def __eq__(self, other: object) -> bool:
        return True


@cache
def _evaluator(op: str, places: tuple[int, ...], text: str, outputs: int, opset: int, params: _Params) -> Any:
    names = [f"i{k}" if k in places else "" for k in range(max(places, default=-1) + 1)]
    node = helper.make_node(op, names, [f"o{k}" for k in range(outputs)], **params)
    fed = [helper.make_tensor_value_info(f"i{k}", TensorProto.DOUBLE, None) for k in places]
    graph = helper.make_graph([node], "g", fed, [helper.make_empty_tensor_value_info(f"o{k}") for k in range(outputs)])
    return ReferenceEvaluator(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10))


# --- gradients that need no formula


def linear(case: Case, position: int) -> Slope:
    """Of an op linear in this input: what each element does to the output, given the listed reads alone."""

    def slope(dy: Array, *reads: Array) -> Array:
        refs = case.row.gradient(position).refs(position)  # type: ignore[union-attr]
        given = dict(zip([k for side, k in refs if side == "in" and k < len(case.inputs)], reads, strict=True))
        inputs = [given.get(k, np.zeros_like(value)) for k, value in enumerate(case.inputs)]
        made = np.zeros_like(case.inputs[position])
        for index in np.ndindex(made.shape):
            inputs[position] = np.zeros_like(made)
            inputs[position][index] = 1.0
            made[index] = (dy * case.run(*inputs)[0]).sum()
        return made

    return slope


def again(case: Case, position: int) -> Slope:
    """Of an op whose inputs are all listed: by differences of the forward pass."""

    def slope(dy: Array, *reads: Array) -> Array:
        refs = case.row.gradient(position).refs(position)  # type: ignore[union-attr]
        given = dict(zip([k for side, k in refs if side == "in" and k < len(case.inputs)], reads, strict=True))
        inputs = [given.get(k, np.zeros_like(value)) for k, value in enumerate(case.inputs)]
        return difference(case, inputs, position, dy)

    return slope


def difference(case: Case, inputs: Sequence[Array], position: int, dy: Array) -> Array:
    made = np.zeros_like(inputs[position])
    for index in np.ndindex(made.shape):
        ends = []
        for step in (1e-6, -1e-6):
            moved = [value.copy() for value in inputs]
            moved[position][index] += step
            ends.append(case.run(*moved)[0])
        made[index] = (dy * (ends[0] - ends[1])).sum() / 2e-6
    return made


def by(
    rule: Callable[[Case, int], Slope], op: str, inputs: Sequence[Array], positions: Sequence[int], **more: Any
) -> Case:
    """A case whose gradients at these positions are made by one of the rules above."""
    case = Case(op, inputs, **more)
    return Case(op, inputs, {k: rule(case, k) for k in positions}, **more)


def keep(dy: Array, like: Array) -> Array:
    """Back over a reduction of the last axis."""
    return np.broadcast_to(dy, like.shape)


# --- ops that keep what onnx's reference does not make


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def attention(q: Array, k: Array, v: Array) -> list[Array]:
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    total = np.log(np.exp(scores).sum(-1))
    return [np.exp(scores - total[..., None]) @ v, total]


def attention_slopes(dy: Array, q: Array, k: Array, v: Array, y: Array, total: Array) -> list[Array]:
    p = np.exp(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1]) - total[..., None])
    ds = p * (dy @ v.swapaxes(-1, -2) - (dy * y).sum(-1, keepdims=True)) / math.sqrt(q.shape[-1])
    return [ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ dy]


def lstm(x: Array, w: Array, r: Array, b: Array, h: Array, c: Array, peepholes: Array | None = None) -> list[Array]:
    """One direction; keeps the gates i, o, f, g, the cell, the tanh of it and the state of each step."""
    size, h, c = r.shape[2], h[0], c[0]
    pi, po, pf = np.zeros((3, size)) if peepholes is None else peepholes.reshape(3, size)
    hidden, kept = [], []
    for step in x:
        a = step @ w[0].T + h @ r[0].T + b[0, : 4 * size] + b[0, 4 * size :]
        i, f = sigmoid(a[:, :size] + pi * c), sigmoid(a[:, 2 * size : 3 * size] + pf * c)
        g = np.tanh(a[:, 3 * size :])
        c = f * c + i * g
        o = sigmoid(a[:, size : 2 * size] + po * c)
        h = o * np.tanh(c)
        hidden.append(h)
        kept.append(np.concatenate([i, o, f, g, c, np.tanh(c), h], 1))
    return [np.array(hidden)[:, None], h[None], c[None], np.array(kept)[:, None]]


def lstm_gates(
    dy: Array, r: Array, kept: Array, c0: Array, peepholes: Array | None = None
) -> tuple[Array, Array, Array, Array]:
    """Gradients of all gates before their activations, of the first states and of the peepholes, from what is kept."""
    size = r.shape[2]
    pi, po, pf = np.zeros((3, size)) if peepholes is None else peepholes.reshape(3, size)
    dh, dc, dp = np.zeros_like(c0[0]), np.zeros_like(c0[0]), np.zeros((3, size))
    gates = []
    for t in reversed(range(len(dy))):
        i, o, f, g, c, flat = (kept[t, 0, :, k * size : (k + 1) * size] for k in range(6))
        before = kept[t - 1, 0, :, 4 * size : 5 * size] if t else c0[0]
        dh = dh + dy[t, 0]
        do = dh * flat * o * (1 - o)
        dc = dc + dh * o * (1 - flat**2) + do * po
        di, df = dc * g * i * (1 - i), dc * before * f * (1 - f)
        gates.append(np.concatenate([di, do, df, dc * i * (1 - g * g)], 1))
        dp += np.array([(di * before).sum(0), (do * c).sum(0), (df * before).sum(0)])
        dh, dc = gates[-1] @ r[0], dc * f + di * pi + df * pf
    return np.array(gates[::-1]), dh, dc, dp.reshape(1, -1)


def gru(x: Array, w: Array, r: Array, b: Array, h: Array) -> list[Array]:
    """`linear_before_reset`; keeps the gates z, r, n and what the hidden state adds to n."""
    size, h = r.shape[2], h[0]
    hidden, kept = [], []
    for step in x:
        a, u = step @ w[0].T + b[0, : 3 * size], h @ r[0].T + b[0, 3 * size :]
        z, reset = (sigmoid(a[:, k * size : (k + 1) * size] + u[:, k * size : (k + 1) * size]) for k in range(2))
        n = np.tanh(a[:, 2 * size :] + reset * u[:, 2 * size :])
        h = (1 - z) * n + z * h
        hidden.append(h)
        kept.append(np.concatenate([z, reset, n, u[:, 2 * size :]], 1))
    return [np.array(hidden)[:, None], h[None], np.array(kept)[:, None]]


def gru_gates(dy: Array, r: Array, h0: Array, y: Array, kept: Array) -> tuple[Array, Array, Array]:
    """Gradients of the gates as the input and as the hidden state see them, and of the first state."""
    size = r.shape[2]
    dh = np.zeros_like(h0[0])
    seen_by_x, seen_by_h = [], []
    for t in reversed(range(len(dy))):
        z, reset, n, u = (kept[t, 0, :, k * size : (k + 1) * size] for k in range(4))
        before = y[t - 1, 0] if t else h0[0]
        dh = dh + dy[t, 0]
        dn = dh * (1 - z) * (1 - n * n)
        dz, dr = dh * (before - n) * z * (1 - z), dn * u * reset * (1 - reset)
        seen_by_x.append(np.concatenate([dz, dr, dn], 1))
        seen_by_h.append(np.concatenate([dz, dr, dn * reset], 1))
        dh = dh * z + seen_by_h[-1] @ r[0]
    return np.array(seen_by_x[::-1]), np.array(seen_by_h[::-1]), dh


def rnn_gates(dy: Array, r: Array, y: Array) -> tuple[Array, Array]:
    dh = np.zeros_like(y[0, 0])
    gates = []
    for t in reversed(range(len(dy))):
        gates.append((dh + dy[t, 0]) * (1 - y[t, 0] ** 2))
        dh = gates[-1] @ r[0]
    return np.array(gates[::-1]), dh


def shifted(y: Array, h0: Array) -> Array:
    """The hidden state before each step."""
    return np.concatenate([h0, y[:-1, 0]])


def outer(gates: Array, against: Array) -> Array:
    return np.einsum("tbg,tbi->gi", gates, against)[None]


STEPS, BATCH, WIDTH, HIDDEN = 3, 2, 4, 2


def layer(gates: int, biases: int) -> list[Array]:
    """x, weights, recurrent weights, bias, first hidden state."""
    products = [some(1, gates * HIDDEN, WIDTH) / 2, some(1, gates * HIDDEN, HIDDEN) / 2]
    return [some(STEPS, BATCH, WIDTH), *products, some(1, biases * gates * HIDDEN), some(1, BATCH, HIDDEN)]


LSTM_LAYER = [*layer(4, 2), some(1, BATCH, HIDDEN)]
PEEPHOLES = some(1, 3 * HIDDEN)
GRU_LAYER, RNN_LAYER = layer(3, 2), layer(1, 2)
RECURRENT: list[Case] = [
    *(Case(
        "LSTM", inputs,
        {
            0: lambda dy, r, kept, c0, *p_w: lstm_gates(dy, r, kept, c0, *p_w[:-1])[0] @ p_w[-1][0],
            1: lambda dy, r, kept, c0, *p_x: outer(lstm_gates(dy, r, kept, c0, *p_x[:-1])[0], p_x[-1]),
            2: lambda dy, r, kept, c0, *more: outer(lstm_gates(dy, r, kept, c0, *more[:-1])[0],
                shifted(kept[..., -HIDDEN:], more[-1])),
            3: lambda dy, r, kept, c0, *p: np.tile(lstm_gates(dy, r, kept, c0, *p)[0].sum((0, 1)), 2)[None],
            4: lambda dy, r, kept, c0, *p: lstm_gates(dy, r, kept, c0, *p)[1][None],
            5: lambda dy, r, kept, c0, *p: lstm_gates(dy, r, kept, c0, *p)[2][None],
            **({6: lambda dy, r, kept, c0, p: lstm_gates(dy, r, kept, c0, p)[3]} if len(inputs) > 6 else {}),
        },
        params={"hidden_size": HIDDEN}, outputs=4, forward=lstm,
        # Of each step and unit: four gates of 4 + 2 products, a multiply and an add each, and 14 more.
        flops=STEPS * BATCH * HIDDEN * (2 * 4 * (WIDTH + HIDDEN) + 14), shaped=False,
    ) for inputs in (LSTM_LAYER, [*LSTM_LAYER, PEEPHOLES])),
    by(again, "LSTM", [*LSTM_LAYER, PEEPHOLES], range(7), params={"hidden_size": HIDDEN}, outputs=3, shaped=False,
        forward=lambda *inputs: lstm(*inputs)[:3], flops=STEPS * BATCH * HIDDEN * (2 * 4 * (WIDTH + HIDDEN) + 14)),
    by(again, "LSTM", LSTM_LAYER, range(6), params={"hidden_size": HIDDEN}, outputs=2,
        flops=STEPS * BATCH * HIDDEN * (2 * 4 * (WIDTH + HIDDEN) + 14)),
    Case("GRU", GRU_LAYER, {0: lambda dy, r, h0, y, kept, w: gru_gates(dy, r, h0, y, kept)[0] @ w[0],
        1: lambda dy, r, h0, y, kept, x: outer(gru_gates(dy, r, h0, y, kept)[0], x),
        2: lambda dy, r, h0, y, kept: outer(gru_gates(dy, r, h0, y, kept)[1], shifted(y, h0)),
        3: lambda dy, r, h0, y, kept: np.concatenate([found.sum((0, 1)) for found in gru_gates(dy, r, h0, y,
        kept)[:2]])[None], 4: lambda dy, r, h0, y, kept: gru_gates(dy, r, h0, y, kept)[2][None]},
        params={"hidden_size": HIDDEN, "linear_before_reset": 1}, outputs=3, forward=gru,
        flops=STEPS * BATCH * HIDDEN * (2 * 3 * (WIDTH + HIDDEN) + 12), shaped=False),
    by(again, "GRU", GRU_LAYER, range(5), params={"hidden_size": HIDDEN, "linear_before_reset": 1}, outputs=2,
        flops=STEPS * BATCH * HIDDEN * (2 * 3 * (WIDTH + HIDDEN) + 12)),
    Case("RNN", RNN_LAYER, {0: lambda dy, r, y, w: rnn_gates(dy, r, y)[0] @ w[0],
        1: lambda dy, r, y, x: outer(rnn_gates(dy, r, y)[0], x),
        2: lambda dy, r, y, h0: outer(rnn_gates(dy, r, y)[0], shifted(y, h0)),
        3: lambda dy, r, y: np.tile(rnn_gates(dy, r, y)[0].sum((0, 1)), 2)[None],
        4: lambda dy, r, y: rnn_gates(dy, r, y)[1][None]}, params={"hidden_size": HIDDEN}, outputs=2,
        flops=STEPS * BATCH * HIDDEN * (2 * (WIDTH + HIDDEN) + 4),
    ),
]  # fmt: skip


# --- matrix products, convolutions, attention

Q, K, V = some(1, 1, 3, 4), some(1, 1, 5, 4), some(1, 1, 5, 2)
BIAS = some(1, 1, 3, 5)
TRIPLE = [some(2, 3), some(3, 4), some(4, 2)]
DEFORM = [some(1, 1, 4, 4), some(1, 1, 2, 2), some(1, 8, 3, 3) / 5, some(1), positive(1, 4, 3, 3)]
PRODUCTS: list[Case] = [
    # 2 Cin K for each output element; 5 x 2 of them are inside.
    by(linear, "Conv", [some(1, 2, 7), some(3, 2, 3), some(3)], (0, 1, 2), flops=2 * 2 * 3 * 15),
    by(linear, "Conv", [some(1, 4, 5, 5), some(4, 2, 3, 3)], (0, 1),
        params={"group": 2, "pads": [1, 1, 1, 1], "strides": [2, 2]}, flops=2 * 2 * 9 * 4 * 9),
    by(linear, "ConvTranspose", [some(1, 2, 4), some(2, 3, 3), some(3)], (0, 1, 2), params={"strides": [2]},
        flops=2 * 2 * 4 * 3 * 3),
    Case("Gemm", [some(2, 3), some(4, 3), some(4)], {0: lambda dy, b: dy @ b, 1: lambda dy, a: dy.T @ a,
        2: lambda dy: dy.sum(0)}, params={"transB": 1}, flops=2 * 2 * 3 * 4),
    Case("MatMul", [some(2, 2, 3), some(2, 3, 4)], {0: lambda dy, b: dy @ b.swapaxes(1, 2),
        1: lambda dy, a: a.swapaxes(1, 2) @ dy}, flops=2 * 2 * 2 * 3 * 4),
    Case("Einsum", TRIPLE[:2], {0: lambda dy, b: dy @ b.T, 1: lambda dy, a: a.T @ dy}, params={"equation": "ij,jk->ik"},
        flops=2 * 2 * 3 * 4),
    Case("Einsum", [some(2, 3)], {0: lambda dy: dy.T}, params={"equation": "ij->ji"}, flops=6),
    Case("Einsum", TRIPLE, {0: lambda dy, b, c: dy @ c.T @ b.T, 1: lambda dy, a, c: a.T @ dy @ c.T,
        2: lambda dy, a, b: b.T @ a.T @ dy}, params={"equation": "ij,jk,kl->il"}, flops=3 * 2 * 3 * 4 * 2),
    Case("Einsum", [some(2, 3, 4), some(2, 4, 5)], {0: lambda dy, b: dy @ b.swapaxes(1, 2),
        1: lambda dy, a: a.swapaxes(1, 2) @ dy}, params={"equation": "...ij,...jk"}, flops=2 * 2 * 3 * 4 * 5),
    # Four products and adds a sample of the image, then those of a convolution.
    by(again, "DeformConv", DEFORM, (2, 4), flops=2 * 9 * 4 + 8 * 9 * 4),
    by(linear, "DeformConv", DEFORM, (0, 1, 3), flops=2 * 9 * 4 + 8 * 9 * 4),
    # 15 scores: a product of length 4 and one of length 2 each, and 5 for the softmax.
    Case("FusedAttention", [Q, K, V], {i: lambda dy, q, k, v, y, total, i=i: attention_slopes(dy, q, k, v, y,
        total)[i] for i in range(3)}, outputs=2, forward=attention, flops=15 * (2 * 4 + 2 * 2 + 5), shaped=False),
    Case("FusedAttention", [Q, K, V], {i: lambda dy, q, k, v, i=i: attention_slopes(dy, q, k, v,
        *attention(q, k, v))[i] for i in range(3)}, forward=lambda q, k, v: attention(q, k, v)[:1],
        flops=15 * (2 * 4 + 2 * 2 + 5), shaped=False),
    by(again, "Attention", [Q, K, V, BIAS], (0, 1, 2, 3), flops=15 * (2 * 4 + 2 * 2 + 5)),
    by(again, "Attention", [some(1, 3, 4), some(1, 5, 4), some(1, 5, 4)], (0, 1, 2),
        params={"q_num_heads": 2, "kv_num_heads": 2}, flops=15 * (2 * 4 + 2 * 4 + 5)),
]  # fmt: skip

# --- normalizations and losses

EPSILON = 1e-5
ROWS, SCALE, SHIFT = some(2, 3, 4), some(4), some(4)
IMAGES = some(2, 4, 3, 2)
LABELS = ints(2, 0, 1)
WEIGHTS = positive(4)


def centred(x: Array) -> tuple[Array, Array]:
    return (x - x.mean(-1, keepdims=True)), 1 / np.sqrt(x.var(-1, keepdims=True) + EPSILON)


def layer_norm_dx(dy: Array, x: Array, scale: Array, mean: Array, inverse: Array) -> Array:
    hat, g = (x - mean) * inverse, dy * scale
    return inverse * (g - g.mean(-1, keepdims=True) - hat * (g * hat).mean(-1, keepdims=True))


def mask_of(x: Array) -> Array:
    return np.arange(x.size).reshape(x.shape) % 3 > 0


def log_softmax(x: Array) -> Array:
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def cross_entropy_slope(dy: Array, logp: Array, labels: Array, weights: Array | None = None) -> Array:
    own = np.ones(len(labels)) if weights is None else weights[labels]
    return dy * (np.exp(logp) - np.eye(logp.shape[-1])[labels]) * (own / own.sum())[:, None]


def lrn(x: Array) -> list[Array]:
    squares = np.pad(x * x, ((0, 0), (1, 1), (0, 0), (0, 0)))  # onnx's reference takes the batch for the channels
    return [x * (1 + 0.1 * (squares[:, :-2] + squares[:, 1:-1] + squares[:, 2:])) ** -0.75]


def lrn_dx(dy: Array, x: Array, y: Array) -> Array:
    # y = x s^-0.75, s = 1 + 0.1 (the sum of squares of three channels)
    s = (x / y) ** (1 / 0.75)
    near = np.pad(dy * y / s, ((0, 0), (1, 1), (0, 0), (0, 0)))
    return dy * y / x - 2 * 0.75 * 0.1 * x * (near[:, :-2] + near[:, 1:-1] + near[:, 2:])


NORMALIZATIONS: list[Case] = [
    Case("BatchNormalization", [IMAGES, SCALE, SHIFT],
        {0: lambda dy, x, scale, mean, inverse: layer_norm_dx(dy.swapaxes(0, 1).reshape(4, -1),
        x.swapaxes(0, 1).reshape(4, -1), scale[:, None], mean[:, None], inverse[:, None]).reshape(4, 2, 3,
        2).swapaxes(0, 1), 1: lambda dy, x, mean, inverse: (dy * (x - mean[:, None, None]) * inverse[:, None,
        None]).sum((0, 2, 3)), 2: lambda dy: dy.sum((0, 2, 3))}, outputs=3, shaped=False,
        forward=lambda x, scale, shift: [(x - x.mean((0, 2, 3), keepdims=True)) / np.sqrt(x.var((0, 2, 3),
        keepdims=True) + EPSILON) * scale[:, None, None] + shift[:, None, None], x.mean((0, 2, 3)),
        1 / np.sqrt(x.var((0, 2, 3)) + EPSILON)]),
    Case("BatchNormalization", [IMAGES, SCALE, SHIFT, some(4), positive(4)],
        {0: lambda dy, scale, var: dy * (scale / np.sqrt(var + EPSILON))[:, None, None],
        1: lambda dy, x, mean, var: (dy * (x - mean[:, None, None]) / np.sqrt(var + EPSILON)[:, None, None]).sum((0, 2,
        3)), 2: lambda dy: dy.sum((0, 2, 3))}),
    Case("LayerNormalization", [ROWS, SCALE, SHIFT],
        {0: layer_norm_dx, 1: lambda dy, x, mean, inverse: (dy * (x - mean) * inverse).sum((0, 1)),
        2: lambda dy: dy.sum((0, 1))}, outputs=3),
    Case("LayerNormalization", [ROWS, SCALE, SHIFT],
        {0: lambda dy, x, scale: layer_norm_dx(dy, x, scale, x.mean(-1, keepdims=True), centred(x)[1]),
        1: lambda dy, x: (dy * math.prod(centred(x))).sum((0, 1)), 2: lambda dy: dy.sum((0, 1))}),
    by(again, "InstanceNormalization", [IMAGES, SCALE, SHIFT], (0, 1, 2)),
    by(again, "GroupNormalization", [IMAGES, SCALE, SHIFT], (0, 1, 2), params={"num_groups": 2}, shaped=False),
    by(again, "RMSNormalization", [ROWS, SCALE], (0, 1)),
    Case("RMSNormalization", [ROWS, SCALE], {0: lambda dy, x, scale, inverse: inverse * (dy * scale -
        x * inverse**2 * (dy * scale * x).mean(-1, keepdims=True)), 1: lambda dy, x, inverse: (dy * x * inverse).sum((0,
        1))}, outputs=2, shaped=False, forward=lambda x, scale: [x * scale / np.sqrt((x**2).mean(-1, keepdims=True) +
        EPSILON), 1 / np.sqrt((x**2).mean(-1, keepdims=True) + EPSILON)]),
    by(again, "LpNormalization", [ROWS], (0,)),
    by(again, "MeanVarianceNormalization", [IMAGES], (0,), shaped=False,
        forward=lambda x: [(x - x.mean((0, 2, 3), keepdims=True)) / np.sqrt(x.var((0, 2, 3), keepdims=True))]),
    Case("LRN", [some(1, 4, 2, 2)], {0: lrn_dx}, params={"size": 3, "alpha": 0.3}, flops=16 * (2 * 3 + 3), forward=lrn),
    Case("Softmax", [ROWS], {0: lambda dy, y: y * (dy - (dy * y).sum(-1, keepdims=True))}),
    Case("LogSoftmax", [ROWS], {0: lambda dy, y: dy - np.exp(y) * dy.sum(-1, keepdims=True)}),
    Case("Hardmax", [ROWS]),
    Case("Dropout", [ROWS, ints(7)], {0: lambda dy, mask: dy * mask * 2}, outputs=2, shaped=False,
        forward=lambda x, state: [x * mask_of(x) * 2, mask_of(x)]),
    Case("Dropout", [ROWS], {0: lambda dy: dy}),
    Case("SoftmaxCrossEntropyLoss", [some(3, 4), LABELS], {0: cross_entropy_slope}, outputs=2),
    Case("SoftmaxCrossEntropyLoss", [some(3, 4), LABELS, WEIGHTS], {0: cross_entropy_slope}, outputs=2),
    Case("SoftmaxCrossEntropyLoss", [some(3, 4), LABELS],
        {0: lambda dy, x, labels: cross_entropy_slope(dy, log_softmax(x), labels)}),
    Case("SoftmaxCrossEntropyLoss", [some(3, 4), LABELS, WEIGHTS],
        {0: lambda dy, x, labels, weights: cross_entropy_slope(dy, log_softmax(x), labels, weights)}),
    Case("NegativeLogLikelihoodLoss", [some(3, 4), LABELS, WEIGHTS],
        {0: lambda dy, labels, weights: -dy * np.eye(4)[labels] * (weights[labels] / weights[labels].sum())[:, None]}),
    Case("UpdateStatistics", [some(4), positive(4), some(4), positive(4)], outputs=2, shaped=False,
        forward=lambda mean, var, m, s: [0.9 * mean + 0.1 * m, 0.9 * var + 0.1 * (1 / s**2 - EPSILON)]),
]  # fmt: skip

# --- windows


def spread(dy: Array, indices: Array, like: tuple[int, ...]) -> Array:
    made = np.zeros(math.prod(like))
    np.add.at(made, indices.ravel(), dy.ravel())
    return made.reshape(like)


def extreme(dy: Array, x: Array, y: Array) -> Array:
    return dy * (x == y)


PIXELS = some(1, 1, 4, 4)
HALF = {"kernel_shape": [2, 2], "strides": [2, 2]}


def twice(x: Array) -> Array:
    return x.repeat(2, 2).repeat(2, 3)


# The middles of 2 by 3 pixels of an image from -1 to 1, as (x, y, 1).
PLACES = np.array([[[[x, y, 1.0] for x in (-2 / 3, 0.0, 2 / 3)] for y in (-0.5, 0.5)]])
WINDOWS: list[Case] = [
    Case("MaxPool", [PIXELS], {0: lambda dy, where: spread(dy, where, PIXELS.shape)}, params=HALF, outputs=2,
        flops=4 * 4),
    Case("MaxPool", [PIXELS], {0: lambda dy, x, y: extreme(twice(dy), x, twice(y))}, params=HALF, flops=4 * 4),
    by(linear, "AveragePool", [PIXELS], (0,), params={**HALF, "pads": [1, 1, 0, 0], "ceil_mode": 1}, flops=9 * 4),
    by(linear, "AveragePool", [PIXELS], (0,), params={"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER",
        "strides": [2, 2]}, flops=4 * 9),
    Case("LpPool", [PIXELS], {0: lambda dy, x, y: twice(dy) * x / twice(y)}, params={**HALF, "p": 2}, flops=2 * 4 * 4),
    by(linear, "GlobalAveragePool", [PIXELS], (0,)),
    Case("GlobalMaxPool", [PIXELS], {0: extreme}),
    Case("GlobalLpPool", [PIXELS], {0: lambda dy, x, y: dy * x / y}, params={"p": 2},
        forward=lambda x: [np.sqrt((x * x).sum((2, 3), keepdims=True))]),
    by(linear, "MaxUnpool", [some(1, 1, 2, 2), ints(0, 3, 9, 14).reshape(1, 1, 2, 2)], (0,), params=HALF),
    by(linear, "RoiAlign", [some(2, 1, 4, 4), np.array([[0.0, 0.0, 3.0, 3.0]]), ints(1)], (0,),
        params={"output_height": 2, "output_width": 2}),
    by(linear, "GridSample", [PIXELS, np.linspace(-0.8, 0.7, 8).reshape(1, 2, 2, 2)], (0,)),
    by(again, "GridSample", [PIXELS, np.linspace(-0.8, 0.7, 8).reshape(1, 2, 2, 2)], (1,)),
    by(linear, "AffineGrid", [some(1, 2, 3)], (0,), static={1: ints(1, 1, 2, 3)},
        forward=lambda theta: [PLACES @ theta[0].T]),
    by(linear, "Resize", [PIXELS], (0,), static={3: ints(1, 1, 8, 6)}, params={"mode": "linear"}),
    by(linear, "Resize", [PIXELS], (0,), static={2: np.array([1.0, 1.0, 2.0, 0.6], np.float32)},
        params={"mode": "linear"}),
    by(linear, "Upsample", [PIXELS], (0,), static={1: np.array([1.0, 1.0, 2.0, 2.0], np.float32)}, opset=9,
        forward=lambda x: [twice(x)]),
    by(linear, "Col2Im", [some(1, 4, 4)], (0,), static={1: ints(3, 3), 2: ints(2, 2)}),
]  # fmt: skip

# --- element by element

ANY, POSITIVE, SMALL = some(7), positive(7), some(7) / 3
ERF = np.vectorize(math.erf)


def bell(x: Array) -> Array:
    return np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def softplus(x: Array) -> Array:
    return np.log1p(np.exp(x))


SELU, GAMMA = 1.67326319217681884765625, 1.05070102214813232421875
BY_OUTPUT: dict[str, tuple[Array, Callable[[Array], Array]]] = {
    "Relu": (ANY, lambda y: y > 0), "Sigmoid": (ANY, lambda y: y * (1 - y)), "Tanh": (ANY, lambda y: 1 - y * y),
    "Exp": (ANY, lambda y: y), "Sqrt": (POSITIVE, lambda y: 0.5 / y), "Reciprocal": (ANY, lambda y: -y * y),
    "Tan": (SMALL, lambda y: 1 + y * y),
}  # fmt: skip
BY_INPUT: dict[str, tuple[Array, Callable[[Array], Array]]] = {
    "LeakyRelu": (ANY, lambda x: np.where(x > 0, 1, 0.01)),
    "Gelu": (ANY, lambda x: (1 + ERF(x / math.sqrt(2))) / 2 + x * bell(x)),
    "Erf": (ANY, lambda x: 2 / math.sqrt(math.pi) * np.exp(-x * x)), "Softplus": (ANY, sigmoid),
    "Mish": (ANY, lambda x: np.tanh(softplus(x)) + x * (1 - np.tanh(softplus(x)) ** 2) * sigmoid(x)),
    "Log": (POSITIVE, lambda x: 1 / x), "HardSwish": (ANY, lambda x: (2 * x + 3) / 6),
    "Elu": (ANY, lambda x: np.where(x > 0, 1, np.exp(x))),
    "Selu": (ANY, lambda x: GAMMA * np.where(x > 0, 1, SELU * np.exp(x))),
    "Celu": (ANY, lambda x: np.where(x > 0, 1, np.exp(x))),
    "Swish": (ANY, lambda x: sigmoid(x) * (1 + x * (1 - sigmoid(x)))),
    "Softsign": (ANY, lambda x: 1 / (1 + abs(x)) ** 2), "Shrink": (ANY, lambda x: abs(x) > 0.5), "Sin": (ANY, np.cos),
    "Cos": (ANY, lambda x: -np.sin(x)), "Asin": (SMALL, lambda x: 1 / np.sqrt(1 - x * x)),
    "Acos": (SMALL, lambda x: -1 / np.sqrt(1 - x * x)), "Atan": (ANY, lambda x: 1 / (1 + x * x)),
    "Sinh": (ANY, np.cosh), "Cosh": (ANY, np.sinh), "Asinh": (ANY, lambda x: 1 / np.sqrt(1 + x * x)),
    "Acosh": (POSITIVE + 1, lambda x: 1 / np.sqrt(x * x - 1)), "Atanh": (SMALL, lambda x: 1 / (1 - x * x)),
    "HardSigmoid": (ANY, lambda x: np.full_like(x, 0.2)), "ThresholdedRelu": (ANY, lambda x: x > 1),
    "Abs": (ANY, np.sign),
}  # fmt: skip
A, B = some(3, 4), some(4)
TABLE, ANGLES = some(1, 2, 1, 4), np.linspace(0.2, 1.4, 2).reshape(1, 1, 2)
TURNS = np.array([[1.0, 2.0], [0.3, 0.1]])  # by position
# Where onnx's reference works in float32, too coarse for differences.
EXACT: dict[str, Callable[..., list[Array]]] = {
    "Erf": lambda x: [ERF(x)],
    "Gelu": lambda x: [x * (1 + ERF(x / math.sqrt(2))) / 2],
}
ELEMENTWISE: list[Case] = [
    *(Case(op, [x], {0: lambda dy, y, slope=slope: dy * slope(y)}) for op, (x, slope) in BY_OUTPUT.items()),
    *(Case(op, [x], {0: lambda dy, x, slope=slope: dy * slope(x)}, forward=EXACT.get(op)) for op,
        (x, slope) in BY_INPUT.items()),
    Case("Clip", [A], {0: lambda dy, x: dy * (abs(x) < 1)}, static={1: np.array(-1.0), 2: np.array(1.0)}),
    Case("Neg", [A], {0: lambda dy: -dy}),
    Case("Add", [A, B], {0: lambda dy: dy, 1: lambda dy: dy.sum(0)}),
    Case("Sum", [A, B, A + 1], {0: lambda dy: dy, 1: lambda dy: dy.sum(0), 2: lambda dy: dy}, flops=2 * 12),
    Case("Mean", [A, B], {0: lambda dy: dy / 2, 1: lambda dy: dy.sum(0) / 2}, flops=2 * 12),
    *(Case(op, [A, B + 0.01, some(3, 4) + 0.02], {0: extreme, 1: lambda dy, x, y: extreme(dy, x, y).sum(0), 2: extreme},
        flops=2 * 12) for op in ("Max", "Min")),
    Case("Sub", [A, B], {0: lambda dy: dy, 1: lambda dy: -dy.sum(0)}),
    Case("Mul", [A, B], {0: lambda dy, b: dy * b, 1: lambda dy, a: (dy * a).sum(0)}),
    Case("Div", [A, B], {0: lambda dy, b: dy / b, 1: lambda dy, a, b: -(dy * a / b**2).sum(0)}),
    Case("Mod", [A, B * 0.37], {0: lambda dy: dy, 1: lambda dy, a, b: -(dy * np.trunc(a / b)).sum(0)},
        params={"fmod": 1}),
    Case("Pow", [positive(3, 4), B], {0: lambda dy, x, c: dy * c * x ** (c - 1),
        1: lambda dy, x, y: (dy * y * np.log(x)).sum(0)}),
    Case("PRelu", [A, B], {0: lambda dy, x, s: dy * np.where(x > 0, 1, s),
        1: lambda dy, x: (dy * np.minimum(x, 0)).sum(0)}),
    Case("Where", [A > 0, A, B], {1: lambda dy, c: dy * c, 2: lambda dy, c: (dy * ~c).sum(0)}),
    by(linear, "RotaryEmbedding", [TABLE, np.cos(ANGLES), np.sin(ANGLES)], (0,)),
    by(linear, "RotaryEmbedding", [TABLE, np.cos(TURNS), np.sin(TURNS), ints(1).reshape(1, 1)], (0,)),
    *(Case(op, [A, B]) for op in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")),
    *(Case(op, [A > 0, B > 0]) for op in ("And", "Or", "Xor")),
    Case("Not", [A > 0]),
    *(Case(op, [A]) for op in ("IsNaN", "IsInf", "Floor", "Ceil", "Round", "Sign")),
    *(Case(op, [ints(3, 5), ints(6, 4)]) for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")),
    Case("BitShift", [np.array([3, 5], np.uint8), np.array([1, 2], np.uint8)], params={"direction": "LEFT"}),
    Case("BitwiseNot", [ints(3, 5)]),
]  # fmt: skip

# --- reductions and moves

LAST = {1: ints(-1)}
POSITIVES = positive(2, 3)
REDUCTIONS: list[Case] = [
    Case("ReduceSum", [ROWS], {0: lambda dy: keep(dy, ROWS)}, static=LAST),
    Case("ReduceMean", [ROWS], {0: lambda dy: keep(dy, ROWS) / 4}, static=LAST),
    Case("ReduceSum", [ROWS], {0: lambda dy: np.full(ROWS.shape, dy)}, params={"keepdims": 0}),
    *(Case(op, [ROWS], {0: extreme}, static=LAST) for op in ("ReduceMax", "ReduceMin")),
    Case("ReduceProd", [ROWS], {0: lambda dy, x, y: dy * y / x}, static=LAST),
    Case("ReduceL2", [ROWS], {0: lambda dy, x, y: dy * x / y}, static=LAST),
    Case("ReduceLogSumExp", [ROWS], {0: lambda dy, x, y: dy * np.exp(x - y)}, static=LAST),
    Case("ReduceL1", [ROWS], {0: lambda dy, x: dy * np.sign(x)}, static=LAST),
    Case("ReduceSumSquare", [ROWS], {0: lambda dy, x: 2 * dy * x}, static=LAST),
    Case("ReduceLogSum", [POSITIVES], {0: lambda dy, y: keep(dy * np.exp(-y), POSITIVES)}, static=LAST),
    *(Case(op, [ROWS], params=params) for op in ("ArgMax", "ArgMin") for params in ({"axis": 1}, {"keepdims": 0})),
    by(linear, "CumSum", [A], (0,), static={1: np.array(1)}),
    Case("CumProd", [A], {0: lambda dy, x, y: np.cumsum((dy * y)[:, ::-1], 1)[:, ::-1] / x}, static={1: np.array(1)},
        opset=26, forward=lambda x: [np.cumprod(x, 1)]),
    Case("TopK", [some(5)], {0: lambda dy, where: spread(dy, where, (5,))}, static={1: ints(2)}, outputs=2),
    Case("Det", [some(2, 3, 3)], {0: lambda dy, x, y: (dy * y)[:, None, None] * np.linalg.inv(x).swapaxes(1, 2)}),
]  # fmt: skip


def scattered(x: Array, rows: Array, updates: Array) -> list[Array]:
    made = x.copy()
    made[rows, np.arange(rows.shape[1])] = updates
    return [made]


MOVES: list[Case] = [
    by(linear, "Concat", [some(2, 3), some(2, 2)], (0, 1), params={"axis": 1}),
    by(linear, "Transpose", [ROWS], (0,), params={"perm": [2, 0, 1]}),
    by(linear, "Cast", [A], (0,), params={"to": TensorProto.DOUBLE}, shaped=False),
    by(linear, "CastLike", [A], (0,), static={1: np.zeros(1)}),
    by(linear, "Pad", [A], (0,), static={1: ints(1, 0, 2, 1)}),
    by(linear, "Slice", [A], (0,), static={1: ints(-1), 2: ints(-9), 3: ints(1), 4: ints(-2)}),
    by(linear, "Slice", [A], (0,), static={1: ints(1, 0), 2: ints(3, 99)}),
    by(linear, "Tile", [A], (0,), static={1: ints(2, 1)}),
    by(linear, "Expand", [B], (0,), static={1: ints(3, 1)}),
    by(linear, "DepthToSpace", [some(1, 4, 2, 3)], (0,), params={"blocksize": 2}),
    by(linear, "SpaceToDepth", [some(1, 1, 4, 2)], (0,), params={"blocksize": 2}),
    by(linear, "Trilu", [A], (0,), params={"upper": 0}),
    by(linear, "CenterCropPad", [A], (0,), static={1: ints(2, 6)}),
    by(linear, "DFT", [some(1, 3, 1)], (0,), static={2: np.array(1)}),
    by(linear, "ReverseSequence", [A, ints(3, 1, 2, 3)], (0,)),
    Case("Split", [A], {0: lambda dy: dy}, static={1: ints(1, 2)}, outputs=2, forward=lambda x: [x]),
    by(linear, "Gather", [A, ints(2, 0, 2)], (0,)),
    by(linear, "Gather", [A, ints(2, 0).reshape(1, 2)], (0,), params={"axis": 1}),
    by(linear, "GatherElements", [A, ints(2, 0, 1, 1).reshape(1, 4)], (0,)),
    by(linear, "GatherND", [A, ints([2, 0], [0, 1])], (0,)),
    by(linear, "GatherND", [some(2, 3, 2), ints([1], [0])], (0,), params={"batch_dims": 1}),
    by(linear, "Scatter", [A, ints(2, 0).reshape(1, 2), some(1, 2)], (0, 2), opset=9, forward=scattered),
    by(linear, "ScatterElements", [A, ints(2, 0).reshape(1, 2), some(1, 2)], (0, 2)),
    by(linear, "ScatterND", [A, ints([2], [0]), some(2, 4)], (0, 2)),
    Case("OneHot", [ints(1, 0)], static={1: np.array(3), 2: np.array([0.0, 1.0], np.float32)}),
    Case("EyeLike", [], static={0: A}),
    Case("Shape", [A], params={"start": 1}),
    Case("Size", [A]),
    *(Case(op, [A], {0: lambda dy: dy.reshape(A.shape)}, **more) for op, more in (  # type: ignore[arg-type]
        ("Identity", {}), ("Reshape", {"static": {1: ints(0, 2, -1)}}), ("Flatten", {"params": {"axis": 0}}),
        ("Squeeze", {}), ("Unsqueeze", {"static": {1: ints(0, -1)}}),
    )),
    Case("Squeeze", [some(1, 3, 1)], {0: lambda dy: dy.reshape(1, 3, 1)}, static={1: ints(0)}),
    *(Case(op, [STATE], params={"shape": [2, 3]}) for op in ("RandomNormal", "RandomUniform")),
    *(Case(op, [STATE], static={0: A}) for op in ("RandomNormalLike", "RandomUniformLike")),
    Case("Bernoulli", [SMALL * 0 + 0.5, STATE]),
    Case("Multinomial", [some(2, 3), STATE], params={"sample_size": 5}),
]  # fmt: skip

CASES = [*PRODUCTS, *RECURRENT, *NORMALIZATIONS, *WINDOWS, *ELEMENTWISE, *REDUCTIONS, *MOVES]
IDS = [f"{case.op}-{k}" for k, case in enumerate(CASES)]
every_case = every("case", CASES, ids=IDS)
#: Rows of onnxruntime's training graphs: `test_onnx_training.py` has real ones.
TRAINING = {
    "ReluGrad", "Scale", "DropoutGrad", "ConvGrad", "BatchNormInternal", "BatchNormalizationGrad", "MaxPoolGrad",
    "AveragePoolGrad", "SoftmaxCrossEntropyLossGrad", "ConcatTraining", "SplitTraining", "InPlaceAccumulatorV2",
}  # fmt: skip
VIEWS = {"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze"}
#: Ops without arithmetic.
STILL = {case.op for case in MOVES if not case.op.startswith("Random")} - {"DFT", "Bernoulli", "Multinomial"}
STILL |= {"MaxUnpool"}


@every("name", [name for name in ONNX_OPERATORS if name not in TRAINING])
def test_every_row_and_each_of_its_gradients_has_a_case(name: str) -> None:
    row = ONNX_OPERATORS[name]
    for form in (row, row.fewer) if row.fewer is not None else (row,):
        cases = [case for case in CASES if case.op == name and case.row == form]
        if name == "Attention" and form is row:  # the keys and values of the past are further outputs
            assert row.fewer is not None
            assert (form.gradients, form.flops, form.view) == (row.fewer.gradients, row.fewer.flops, False)
            continue
        assert cases, name
        wanted = {k for k, gradient in enumerate(form.gradients) if gradient is not None}
        covered = {k for case in cases for k in case.slopes}
        assert wanted <= covered if form.variadic else wanted == covered, name


@every_case
def test_the_listed_reads_are_enough_for_each_gradient(case: Case) -> None:
    if not case.slopes:
        return
    outputs = case.run(*case.inputs)
    row = case.row
    dy = RNG.normal(size=outputs[0].shape)
    for position, slope in case.slopes.items():
        gradient = row.gradient(position)
        assert gradient is not None
        sources = {"in": list(case.inputs), "out": outputs}
        refs = [(side, k) for side, k in gradient.refs(position) if k < len(sources[side]) or not row.lacks((side, k))]
        reads = [sources[side][k] for side, k in refs]
        found = np.asarray(slope(dy, *reads))
        np.testing.assert_allclose(found, difference(case, case.inputs, position, dy), rtol=2e-5, atol=2e-6)


def as_float32(values: Array) -> Array:
    return values.astype(np.float32) if values.dtype == np.float64 else values


def type_of(values: Array) -> TensorType:
    return TensorType(values.shape, as_float32(values).dtype.name)


def params_of(case: Case) -> dict[str, Any]:
    """Attributes, and constant inputs under the names that the standard gives them."""
    if not case.shaped:
        return dict(case.params)
    schema = onnx.defs.get_schema(case.op, case.opset, "")
    named = {schema.inputs[k].name.lower(): value.tolist() for k, value in case.static.items() if value.size < 9}
    if "k" in named:
        named["k"] = named["k"][0]
    return {**named, **case.params}


def inferred(case: Case) -> list[TensorType]:
    """What onnx's own inference says."""
    feeds = {k: as_float32(value) for k, value in case._places(case.inputs).items()}
    names = [f"i{k}" if k in feeds else "" for k in range(max(feeds, default=-1) + 1)]
    schema = onnx.defs.get_schema(case.op, case.opset, "")
    node = helper.make_node(case.op, names, [f"o{k}" for k in range(case.outputs)], **case.params)
    fixed = [numpy_helper.from_array(as_float32(value), f"i{k}") for k, value in case.static.items()]
    given = [(k, value, helper.np_dtype_to_tensor_dtype(value.dtype)) for k, value in feeds.items()]
    fed = [helper.make_tensor_value_info(f"i{k}", d, x.shape) for k, x, d in given if k not in case.static]
    made = [helper.make_empty_tensor_value_info(f"o{k}") for k in range(case.outputs)]
    graph, opsets = helper.make_graph([node], "g", fed, made, initializer=fixed), [helper.make_opsetid("", case.opset)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    assert schema.name == case.op
    found = shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    types = {value.name: value.type.tensor_type for value in (*found.graph.output, *found.graph.value_info)}
    found_types = [types[f"o{k}"] for k in range(case.outputs)]
    dtypes = [helper.tensor_dtype_to_np_dtype(found.elem_type).name for found in found_types]
    shapes = [tuple(dim.dim_value for dim in found.shape.dim) for found in found_types]
    return list(map(TensorType, shapes, dtypes))


def cases_where(shaped: bool) -> Any:
    chosen = [k for k, case in enumerate(CASES) if case.shaped == shaped]
    return every("case", [CASES[k] for k in chosen], ids=[IDS[k] for k in chosen])


@cases_where(shaped=True)
def test_sizes_are_those_of_onnx(case: Case) -> None:
    if case.row.sizes is None:
        return  # left to onnx
    inputs = [type_of(value) for value in case.inputs]
    assert list(case.row.sizes(inputs, params_of(case)))[: case.outputs] == inferred(case)


@cases_where(shaped=False)
def test_sizes_of_what_training_keeps_are_those_of_the_values(case: Case) -> None:
    made = [value.astype(np.float32) if value.dtype == np.float64 else value for value in case.run(*case.inputs)]
    assert case.row.sizes is not None
    found = case.row.sizes([type_of(value) for value in case.inputs], case.params)
    assert [value.nbytes for value in found] == [value.nbytes for value in made]


def test_rows_without_sizes_are_few() -> None:
    unsized = {name for name, row in ONNX_OPERATORS.items() if row.sizes is None} - TRAINING
    stand_ins = {"CastLike", "EyeLike", "RandomNormalLike", "RandomUniformLike"}
    windows = {"MaxUnpool", "RoiAlign", "GridSample", "AffineGrid", "Col2Im", "CenterCropPad"}
    assert unsized == {"Attention", "DFT"} | stand_ins | windows


def unread_bytes(case: Case) -> int:
    """Bytes of input 0 that no output holds, found by letting the op move the numbers of its elements."""
    if case.op in ("Shape", "Size"):
        return as_float32(case.inputs[0]).nbytes
    if case.op not in ("Slice", "Gather", "GatherElements", "GatherND"):
        return 0
    size = case.inputs[0].size
    moved = case.run(np.arange(float(size)).reshape(case.inputs[0].shape), *case.inputs[1:])[0].astype(int).ravel()
    assert len(set(moved)) <= size
    return 4 * max(0, size - len(moved))


@every_case
def test_bytes_moved_are_those_of_the_arrays(case: Case) -> None:
    inputs = [as_float32(value) for value in case.inputs]
    if any(value is STATE for value in case.inputs):  # the reference draws by itself
        made = [np.zeros(found.shape, found.dtype) for found in inferred(case)]
    else:
        made = [as_float32(value) for value in case.run(*case.inputs)]
    types = [TensorType(value.shape, value.dtype.name) for value in made]
    read, params = [type_of(value) for value in case.inputs], params_of(case)
    found = attributes(case.op, node="n", inputs=read, outputs=types, device=TRAFFIC, params=params)
    moved = sum(value.nbytes for value in (*inputs, *made)) - unread_bytes(case)
    assert ("view" in found) == (case.op in VIEWS or case.row == ONNX_OPERATORS["Dropout"].fewer)
    assert found["cost"] == (0 if "view" in found else moved)
    if case.flops is not None:
        assert found["flops"] == case.flops
    else:
        most = max(value.size for value in (*made, *inputs))
        assert (found["flops"] == 0) if case.op in STILL or "view" in found else (0 < found["flops"] <= 16 * most)


def test_an_embedding_reads_its_rows_and_its_gradient_is_written_whole() -> None:
    """GPT-2's table of 50257 x 768: 8192 rows are read and written; backward reads dY and writes the whole gradient."""
    table, indices, made = TensorType((50257, 768)), TensorType((8, 1024), "int64"), TensorType((8, 1024, 768))
    found = attributes("Gather", node="n", inputs=[table, indices], outputs=[made], device=TRAFFIC)
    assert found["cost"] == 2 * 8 * 1024 * 768 * 4 + 8 * 1024 * 8
    graph = nx.DiGraph(device="a100")
    graph.add_node("w", nbytes=table.nbytes, shape=table.shape, dtype="float32", kind="parameter", position=0)
    graph.add_node("ids", nbytes=indices.nbytes, shape=indices.shape, dtype="int64", kind="input", position=1)
    graph.add_node("e", op="Gather", nbytes=made.nbytes, shape=made.shape, dtype="float32", flops=0, position=2)
    graph.add_edge("w", "e", reads=(0,), at=(0,))
    graph.add_edge("ids", "e", reads=(0,), at=(1,))
    backward = differentiate(graph).nodes["e.bwd"]
    assert backward["cost"] * device("a100").bandwidth == pytest.approx(
        (8 * 1024 * 768 + 50257 * 768) * 4 + 8 * 1024 * 8
    )


def test_a_small_table_is_read_once_however_often_its_rows_are_asked_for() -> None:
    """BERT's two token types for 8192 tokens: 2 rows come from memory."""
    inputs = [TensorType((2, 768)), TensorType((8, 1024), "int64")]
    found = attributes("Gather", node="n", inputs=inputs, outputs=[TensorType((8, 1024, 768))], device=TRAFFIC)
    assert found["cost"] == 2 * 768 * 4 + 8 * 1024 * 768 * 4 + 8 * 1024 * 8


@every_case
def test_only_ops_that_read_an_element_for_that_element_alone_work_in_place(case: Case) -> None:
    row = case.row
    positions = range(len(case.inputs)) if row.variadic and row.inplace else row.inplace
    for position in positions:
        x = case.inputs[position]
        if x.dtype != np.float64 or x.shape != case.run(*case.inputs)[0].shape:
            continue
        before = case.run(*case.inputs)[0]
        for index in np.ndindex(x.shape):
            moved = [value.copy() for value in case.inputs]
            moved[position][index] += 1e-3
            changed = np.argwhere(case.run(*moved)[0] != before)
            assert all(tuple(where) == index for where in changed)


@every_case
def test_a_backward_works_in_place_only_where_an_element_of_the_gradient_comes_from_that_element_alone(
    case: Case,
) -> None:
    row = case.row
    if not row.inplace_backward:
        return
    outputs = case.run(*case.inputs)
    sources = {"in": list(case.inputs), "out": outputs}
    for position, slope in case.slopes.items():
        if case.inputs[position].shape != outputs[0].shape:
            continue
        refs = row.gradient(position).refs(position)  # type: ignore[union-attr]
        reads = [sources[side][k] for side, k in refs if k < len(sources[side])]
        dy = RNG.normal(size=outputs[0].shape)
        before = slope(dy, *reads)
        for index in np.ndindex(dy.shape):
            other = dy.copy()
            other[index] += 1.0
            assert all(tuple(where) == index for where in np.argwhere(slope(other, *reads) != before))


@every_case
def test_a_view_is_the_same_bytes_in_the_same_order(case: Case) -> None:
    if case.row.view:
        assert case.run(*case.inputs)[0].tobytes() == case.inputs[0].tobytes()


def test_the_recurrent_layers_here_are_those_of_onnx() -> None:
    for case in (case for case in RECURRENT if case.forward is not None and len(case.inputs) < 7):
        ours = case.run(*case.inputs)
        theirs = Case(case.op, case.inputs, params=case.params, outputs=2).reference(*case.inputs)
        np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-6)
        np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-6)


def test_attention_needs_room_for_its_scores() -> None:
    q, k = TensorType((2, 8, 128, 64), "float16"), TensorType((2, 8, 256, 64), "float16")
    found = attributes("Attention", node="n", inputs=[q, k, k], outputs=[q], device=TRAFFIC)
    assert found["workspace"] == 2 * 8 * 128 * 256 * 2
    flat, longer = TensorType((2, 128, 512)), TensorType((2, 256, 512))
    found = attributes(
        "Attention", node="n", inputs=[flat, longer, longer], outputs=[flat], device=TRAFFIC, params={"q_num_heads": 8}
    )
    assert found["workspace"] == 2 * 8 * 128 * 256 * 4


def test_a_recurrent_layer_has_no_workspace_and_an_estimate_says_that_a_librarys_is_not_counted() -> None:
    assert all(ONNX_OPERATORS[name].workspace is None for name in ("LSTM", "GRU", "RNN"))
    assert "workspace and reserves that libraries choose" in estimate(zoo.mlp([4, 2], batch=1)).not_counted


def test_a_recurrent_layer_keeps_seven_or_four_values_a_step_and_unit() -> None:
    lstm_row, gru_row = operator("LSTM", node="n", outputs=4), operator("GRU", node="n", outputs=3)
    x, w = TensorType((10, 3, 6), "float16"), TensorType((2, 4 * 8, 6), "float16")
    assert lstm_row.sizes is not None
    assert gru_row.sizes is not None
    made = lstm_row.sizes([x, w, TensorType((2, 4 * 8, 8), "float16")], {})
    state = 2 * 2 * 3 * 8
    assert [value.nbytes for value in made] == [10 * state, state, state, 10 * 7 * state]
    made = gru_row.sizes([x, w, TensorType((2, 3 * 8, 8), "float16")], {"layout": 1})
    assert [value.shape for value in made] == [(10, 3, 2, 8), (10, 2, 8), (3, 2, 10, 4 * 8)]


def test_every_op_of_the_standard_is_a_row_or_refused() -> None:
    """Those that are neither are refused as unknown; the list is what is still to be done."""
    names = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""}
    # fold
    constants = {"Constant", "ConstantOfShape", "BlackmanWindow", "HannWindow", "HammingWindow", "MelWeightMatrix"}
    unknown = {"BitCast", "CausalConvWithState", "LinearAttention", "MaxRoiPool", "STFT", "SwiGLU", "TensorScatter"}
    assert names - set(ONNX_OPERATORS) - set(REFUSED) - constants <= unknown
    assert not set(REFUSED) & set(ONNX_OPERATORS)
    with pytest.raises(GraphError, match=r"node 'n': no rule for op type 'NonZero': the size of its output depends"):
        operator("NonZero", node="n")
