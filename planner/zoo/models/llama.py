"""The language models of Meta, and those built like them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, final

import networkx as nx

from planner.errors import GraphError
from planner.lowering.assembly import Value
from planner.lowering.operators.lookup import TensorType
from planner.training_step import TrainingStep
from planner.zoo.attention import (
    Attention,
    DType,
    ShortDType,
    attention_of,
    causal_mask,
    dtype_named,
    lookup,
    upcast,
    vocabulary_loss,
)  # fmt: skip
from planner.zoo.builder import Layers, whole_numbers


def llama(
    layers: int = 16,
    *,
    batch: int,
    tokens: int = 2048,
    hidden: int = 2048,
    heads: int = 32,
    kv_heads: int = 8,
    head_width: int | None = None,
    intermediate: int = 8192,
    vocabulary: int = 128256,
    tied: bool = True,
    loss_chunks: int = 1,
    fused_attention: bool = True,
    fused_norm: bool = True,
    dtype: DType | ShortDType = "float32",
    master_weights: bool = False,
    training: bool | Literal["forward"] = True,
    optimizer: str | None = "sgd",
    step: TrainingStep | None = None,
    device: str = "a100",
) -> nx.DiGraph:
    """Llama, Llama 3.2 1B by default: RMSNorm, rotary positions, grouped-query attention, SwiGLU; no bias, no dropout.

    The tables of cosines and sines are states, as they are made once for all blocks. Fused attention reads keys and
    values of `kv_heads` heads as they are; plain attention copies them for each head of the queries.

    Args:
        layers: transformer blocks.
        batch: sequences.
        tokens: of a sequence.
        hidden: width.
        heads: of the queries, a multiple of `kv_heads`.
        kv_heads: of keys and values.
        head_width: of a head; None: hidden / heads.
        intermediate: width between the layers of SwiGLU.
        vocabulary: distinct tokens.
        tied: True: the matrix of the vocabulary is embedding and classifier in one. False: each has its own.
        loss_chunks, fused_attention: as for `gpt`.
        fused_norm: True: PyTorch's `RMSNorm`, whose backward reads its input and a float32 a row. False: Hugging
            Face's, six ops in float32, whose backward reads the normalized rows too.
        dtype, master_weights: as for `gpt`.
        training: False gives the forward graph without labels.
        optimizer, step, device: see `Layers`; costs are seconds on the device.
    Returns:
        A DAG with 1,235,814,400 parameters by default.
    Raises:
        GraphError: an argument out of range, heads that do not divide, an unknown dtype, optimizer or device.
    Source: Touvron et al. 2023; Grattafiori et al. 2024, table 3; the sizes of 3.2 as in its published configuration.

    >>> graph = llama(1, batch=2, tokens=8, hidden=8, heads=4, kv_heads=2, intermediate=16, vocabulary=11)
    >>> graph.nodes["h0.key.rotary"]["shape"], graph.nodes["h0.attention"]["shape"]
    ((2, 2, 8, 2), ((2, 4, 8, 2), (2, 4, 8)))
    """
    layers, batch, tokens, hidden = whole_numbers("llama", layers=layers, batch=batch, tokens=tokens, hidden=hidden)
    heads, kv_heads, intermediate = whole_numbers("llama", heads=heads, kv_heads=kv_heads, intermediate=intermediate)
    vocabulary, loss_chunks = whole_numbers("llama", vocabulary=vocabulary, loss_chunks=loss_chunks)
    if heads % kv_heads:
        raise GraphError(f"llama: {heads} heads are no multiple of {kv_heads} kv_heads")
    if head_width is None and hidden % heads:
        raise GraphError(f"llama: hidden is {hidden}, no multiple of {heads} heads; give head_width")
    (width,) = whole_numbers("llama", head_width=hidden // heads if head_width is None else head_width)
    if width % 2:
        raise GraphError(f"llama: head_width is {width}; rotary positions turn pairs, so it must be even")
    if batch * tokens % loss_chunks:
        raise GraphError(f"llama: {batch * tokens} tokens do not divide into {loss_chunks} loss_chunks")
    dtype = dtype_named("llama", dtype)
    name = f"llama:{layers}"
    net = Layers(name, device=device, training=training, optimizer=optimizer, step=step, master_weights=master_weights)
    ids = net.input("tokens", (batch, tokens), "int64")
    labels = net.labels(batch * tokens)
    kinds = ("embed", "head") if not tied else ("embed",)
    tables = [net.typed_parameter(f"{kind}.weight", TensorType((vocabulary, hidden), dtype)) for kind in kinds]
    angles = TensorType((tokens, width), dtype)
    turns = [net.draft.resident(f"rotary.{table}", angles, kind="state") for table in ("cos", "sin")]
    x = net.reshape("embed.rows", lookup(net, "embed", tables[0], ids), (batch * tokens, hidden))
    attend = attention_of(fused=fused_attention, dropout=0, mask=lambda: causal_mask(net, tokens, dtype))
    norm = Layers.rms_norm if fused_norm else _composed_norm
    of_parts = {"query": heads, "key": kv_heads, "value": kv_heads}
    block = _Block(net, (batch, tokens, width), of_parts, intermediate, turns, attend, norm)
    for k in range(layers):
        x = block.write(f"h{k}", x)
    x = norm(net, "head.norm", x)
    if labels is None:
        net.gemm("head.logits", x, tables[-1])
        return net.graph
    return net.trained(vocabulary_loss(net, x, tables[-1], labels, chunks=loss_chunks))


@final
@dataclass(frozen=True, slots=True)
class _Block:
    """What all blocks of a model have in common.

    Args:
        sizes: batch, tokens and width of a head.
        heads: of queries, keys and values.
        intermediate: width between the layers of SwiGLU.
        turns: cosines and sines of the positions.
        attend, norm: layers.
    """

    net: Layers
    sizes: tuple[int, int, int]
    heads: dict[str, int]
    intermediate: int
    turns: list[Value]
    attend: Attention
    norm: Callable[[Layers, str, Value], Value]

    def write(self, name: str, x: Value) -> Value:
        """Attention and SwiGLU, each normalized before and added to its input; x is (batch * tokens, hidden)."""
        net = self.net
        hidden = net.shape(x)[1]
        y = self._attention(name, self.norm(net, f"{name}.norm1", x))
        x = net.add(f"{name}.add1", x, net.linear(f"{name}.projection", y, hidden, bias=False))
        y = self.norm(net, f"{name}.norm2", x)
        gate = net.silu(f"{name}.silu", net.linear(f"{name}.gate", y, self.intermediate, bias=False))
        y = net.multiply(f"{name}.gated", gate, net.linear(f"{name}.up", y, self.intermediate, bias=False))
        return net.add(f"{name}.add2", x, net.linear(f"{name}.down", y, hidden, bias=False))

    def _attention(self, name: str, x: Value) -> Value:
        """Queries and keys turned by their positions, and values, attended; rows of all heads side by side."""
        net, (batch, tokens, width), qkv = self.net, self.sizes, []
        for part, heads in self.heads.items():
            y = net.linear(f"{name}.{part}", x, heads * width, bias=False)
            y = net.reshape(f"{name}.{part}.heads", y, (batch, heads, tokens, width))
            turned = part != "value"
            made = f"{name}.{part}.rotary"
            qkv.append(net.apply(made, "RotaryEmbedding", [y, *self.turns], net.type(y)) if turned else y)
        y = self.attend(net, f"{name}.attention", qkv)
        return net.reshape(f"{name}.merge", y, (batch * tokens, self.heads["query"] * width))


def _composed_norm(net: Layers, name: str, x: Value) -> Value:
    """weight * (x / sqrt(mean(x^2) + eps)) as Hugging Face writes it, in float32 but for the weight."""
    like, (rows, hidden) = net.type(x), net.shape(x)
    weight = net.parameter(f"{name}.weight", (hidden,), x)
    whole, each = TensorType((rows, hidden)), TensorType((rows, 1))
    wide = upcast(net, f"{name}.upcast", x)
    y = net.apply(f"{name}.square", "aten.pow.Tensor_Scalar", [wide], whole)
    y = net.apply(f"{name}.mean", "aten.mean", [y], each)
    y = net.apply(f"{name}.rsqrt", "aten.rsqrt", [net.apply(f"{name}.eps", "aten.add", [y], each)], each)
    y = net.apply(f"{name}.rows", "Mul", [wide, y], whole)
    y = y if like == whole else net.apply(f"{name}.downcast", "Cast", [y], like)
    return net.multiply(f"{name}.scaled", y, weight)
