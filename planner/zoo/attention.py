"""Parts that transformers share: lookups, attention, activations, and a loss over a vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal, get_args

from planner.dtypes import DTYPE_ALIASES
from planner.errors import GraphError
from planner.lowering.assembly import Value
from planner.lowering.operators.lookup import TensorType
from planner.zoo.builder import Layers

DType = Literal["float32", "bfloat16", "float16"]
ShortDType = Literal["fp32", "float", "bf16", "fp16", "half"]
Activation = Literal["gelu", "gelu_new"]
#: From q, k and v of (batch, heads, tokens, width), under a name, to the rows of all heads side by side.
Attention = Callable[[Layers, str, list[Value]], Value]
#: From a value, under a name, to its activation.
Activate = Callable[[Layers, str, Value], Value]
_DTYPES: Final[Mapping[str, DType]] = {dtype: dtype for dtype in get_args(DType)}
# The backward of fused attention reads q, k, v, the generator's state, the output and its log-sum-exp.
_FUSED_WITH_DROPOUT: Final = (("in", 0), ("in", 1), ("in", 2), ("in", 3), ("out", 0), ("out", 1))


def check_heads(model: str, *, hidden: int, heads: int) -> None:
    """Refuse a width that heads do not divide."""
    if hidden % heads:
        raise GraphError(f"{model}: hidden is {hidden}, no multiple of {heads} heads")


def check_dropout(model: str, dropout: float) -> None:
    """Refuse what is no probability below 1."""
    if isinstance(dropout, bool) or not isinstance(dropout, (int, float)) or not 0 <= dropout < 1:
        raise GraphError(f"{model}: dropout is {dropout!r}, expected a probability below 1")


def dtype_named(model: str, dtype: str) -> DType:
    """The dtype of a name, long or short, in any case.

    >>> dtype_named("gpt", "BF16")
    'bfloat16'
    """
    word = dtype.lower() if isinstance(dtype, str) else ""
    found = _DTYPES.get(DTYPE_ALIASES.get(word, word))
    if found is None:
        raise GraphError(f"{model}: unknown dtype {dtype!r}; known: {', '.join(get_args(DType))}")
    return found


def activation_named(model: str, activation: str) -> Activate:
    """The layer of an activation."""
    known: dict[str, Activate] = {"gelu": Layers.gelu, "gelu_new": _composed_gelu}
    if activation not in known:
        raise GraphError(f"{model}: unknown activation {activation!r}; known: {', '.join(known)}")
    return known[activation]


def upcast(net: Layers, name: str, x: Value) -> Value:
    """Cast a value to float32, in which losses are computed."""
    return x if net.type(x).dtype == "float32" else net.apply(name, "Cast", [x], TensorType(net.shape(x)))


def lookup(net: Layers, name: str, table: Value, indices: Value) -> Value:
    """Look up rows of a table; the op reads as many rows as it writes."""
    rows, wanted = net.type(table), net.type(indices)
    made = TensorType((*wanted.shape, rows.shape[1]), rows.dtype)
    return net.apply(name, "Gather", [table, indices], made, types=[made, wanted])


def causal_mask(net: Layers, tokens: int, dtype: str) -> Value:
    """What plain attention adds to the scores of later tokens."""
    return net.draft.resident("attention.mask", TensorType((tokens, tokens), dtype), kind="state")


def attention_of(*, fused: bool, dropout: float, mask: Callable[[], Value] | None = None) -> Attention:
    """Fused or plain attention.

    Args:
        fused: one op that stores no scores and masks inside; else scores, softmax and their sum are ops.
        dropout: probability; 0 leaves it out.
        mask: makes the mask that plain attention adds to its scores; None: no token is hidden from another.
    """
    if fused:
        return lambda net, name, qkv: _fused(net, name, qkv, dropout=bool(dropout))
    added = None if mask is None else mask()
    return lambda net, name, qkv: _plain(net, name, qkv, dropout=bool(dropout), mask=added)


def _fused(net: Layers, name: str, qkv: list[Value], *, dropout: bool) -> Value:
    """One op for all; dropout is drawn again from the generator's state. Heads lie side by side in its output."""
    made = net.type(qkv[0])
    outputs = [made, TensorType(made.shape[:-1])] if net.training else [made]
    if not (dropout and net.training):
        return net.apply(name, "FusedAttention", qkv, *outputs)
    state, types = net.draft.generator_state(f"{name}.rng", module=name.rpartition(".")[0]), [*map(net.type, qkv)]
    return net.apply(name, "FusedAttention", [*qkv, state], *outputs, types=types, saves=_FUSED_WITH_DROPOUT)


def _plain(net: Layers, name: str, qkv: list[Value], *, dropout: bool, mask: Value | None) -> Value:
    """Scores, mask, softmax, dropout and the sum, each an op; the heads are then put side by side by a copy."""
    q, k, v = qkv
    batch, heads, tokens, width = net.shape(q)
    k, v = (_repeated(net, f"{name}.{part}", value, heads) for part, value in (("keys", k), ("values", v)))
    scores = TensorType((batch, heads, tokens, tokens), net.type(q).dtype)
    y = net.apply(f"{name}.scores", "MatMul", [q, k], scores)
    y = y if mask is None else net.apply(f"{name}.masked", "Add", [y, mask], scores)
    y = net.apply(f"{name}.softmax", "Softmax", [y], scores)
    y = net.dropout(f"{name}.dropout", y) if dropout else y
    y = net.apply(f"{name}.sum", "MatMul", [y, v], net.type(q))
    return net.apply(f"{name}.transpose", "Transpose", [y], TensorType((batch, tokens, heads, width), scores.dtype))


def _repeated(net: Layers, name: str, x: Value, heads: int) -> Value:
    """Keys or values of fewer heads, copied for each head of the queries."""
    batch, own, tokens, width = net.shape(x)
    if own == heads:
        return x
    return net.apply(f"{name}.repeat", "Expand", [x], TensorType((batch, heads, tokens, width), net.type(x).dtype))


def _composed_gelu(net: Layers, name: str, x: Value) -> Value:
    """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) as Hugging Face writes it: the backward keeps four values."""
    like = net.type(x)
    y = net.apply(f"{name}.cube", "aten.pow.Tensor_Scalar", [x], like)
    y = net.apply(f"{name}.scale", "aten.mul", [y], like)
    y = net.apply(f"{name}.inner", "aten.mul", [net.add(f"{name}.add", x, y)], like)
    y = net.apply(f"{name}.one", "aten.add", [net.apply(f"{name}.tanh", "Tanh", [y], like)], like)
    return net.apply(f"{name}.product", "Mul", [net.apply(f"{name}.half", "aten.mul", [x], like), y], like)


def vocabulary_loss(net: Layers, x: Value, table: Value, labels: Value, *, chunks: int = 1) -> str:
    """Logits of rows, cast to float32, and their cross-entropy, in equal parts; returns the name of the loss."""
    if chunks == 1:
        net.cross_entropy("loss", upcast(net, "head.upcast", net.gemm("head.logits", x, table)), labels)
        return "loss:0"
    rows, width = net.shape(x)[0] // chunks, net.shape(x)[1]
    parts = net.split("head.split", x, TensorType((rows, width), net.type(x).dtype), chunks)
    wanted = net.split("labels.split", labels, TensorType((rows,), net.type(labels).dtype), chunks)
    losses = []
    for k in range(chunks):
        logits = upcast(net, f"head.upcast{k}", net.gemm(f"head.logits{k}", parts[k], table))
        losses.append(net.cross_entropy(f"head.loss{k}", logits, wanted[k], term=True))
    return net.sum_losses(losses)
