"""Transformers: a language model, and one that reads patches of an image."""

from __future__ import annotations

import math
from typing import Final, Literal, get_args

import networkx as nx

from planner.errors import GraphError
from planner.lowering.assembly import Value
from planner.lowering.operators.lookup import TensorType
from planner.zoo.builder import Layers, whole_numbers

DType = Literal["float32", "bfloat16", "float16"]
_DTYPES: Final = get_args(DType)
_EXPANSION: Final = 4
# The backward of fused attention reads q, k, v, the generator's state, the output and its log-sum-exp.
_FUSED_WITH_DROPOUT: Final = (("in", 0), ("in", 1), ("in", 2), ("in", 3), ("out", 0), ("out", 1))


def gpt(
    layers: int = 12,
    *,
    batch: int,
    tokens: int = 1024,
    hidden: int = 768,
    heads: int = 12,
    vocabulary: int = 50257,
    loss_chunks: int = 1,
    fused_attention: bool = True,
    dropout: float = 0.0,
    dtype: DType = "float32",
    master_weights: bool = False,
    training: bool = True,
    optimizer: str | None = "sgd",
    device: str = "a100",
) -> nx.DiGraph:
    """GPT-2: causal self-attention, learned positions, GELU, layer normalization first; for training or inference.

    The matrix of the vocabulary is embedding and classifier in one, and its two gradients are summed in place. In a
    16-bit dtype the statistics of layer normalization and attention stay float32, and the logits are cast to float32
    for the loss, which keeps log-probabilities of that size: with a large vocabulary this is the peak.

    Args:
        layers: transformer blocks.
        batch: sequences.
        tokens: of a sequence; as many positions have an embedding.
        hidden: width, a multiple of `heads`.
        heads: of the attention.
        vocabulary: distinct tokens.
        loss_chunks: equal parts of all tokens, each with its logits and loss; a plan can hold those of one at a time.
        fused_attention: True: the backward reads q, k, v, the output and one float32 a row, and no value has tokens x
            tokens elements. False: scores and probabilities are values, and the backward reads the probabilities.
        dropout: probability, of the embedding, the attention and both residual branches; 0 leaves it out.
        dtype: "float32", "bfloat16" or "float16".
        master_weights: parameters, gradients and optimizer states are float32; their copies in `dtype` are values.
        training: False gives the forward graph without labels.
        optimizer, device: see `differentiate`; costs are seconds on the device.
    Returns:
        A DAG with (vocabulary + tokens) * hidden + layers * (12 * hidden**2 + 13 * hidden) + 2 * hidden parameters.
    Raises:
        GraphError: an argument out of range, an unknown dtype, optimizer or device.
    Source: Radford et al. 2019; fused attention as Dao et al. 2022. Ours scales in the product before the softmax.

    >>> graph = gpt(1, batch=2, tokens=8, hidden=4, heads=2, vocabulary=11)
    >>> graph.nodes["h0.attention"]["shape"]
    ((2, 2, 8, 2), (2, 2, 8))
    """
    layers, batch, tokens, hidden = whole_numbers("gpt", layers=layers, batch=batch, tokens=tokens, hidden=hidden)
    heads, vocabulary, loss_chunks = whole_numbers("gpt", heads=heads, vocabulary=vocabulary, loss_chunks=loss_chunks)
    if batch * tokens % loss_chunks:
        raise GraphError(f"gpt: {batch * tokens} tokens do not divide into {loss_chunks} loss_chunks")
    _check("gpt", hidden=hidden, heads=heads, dropout=dropout, dtype=dtype)
    net = Layers(f"gpt:{layers}", device=device, training=training, optimizer=optimizer, master_weights=master_weights)
    ids = net.input("tokens", (batch, tokens), "int64")
    positions = net.input("positions", (tokens,), "int64")
    labels = net.labels(batch * tokens)
    table = net.typed_parameter("wte.weight", TensorType((vocabulary, hidden), dtype))
    places = net.typed_parameter("wpe.weight", TensorType((tokens, hidden), dtype))
    sums = TensorType((batch, tokens, hidden), dtype)
    both = [_lookup(net, "embed.wte", table, ids), _lookup(net, "embed.wpe", places, positions)]
    x = net.draft.apply("embed.add", "Add", both, [sums])
    x = net.reshape("embed.rows", x, (batch * tokens, hidden))
    x = net.dropout("embed.dropout", x) if dropout else x
    mask = None
    if not fused_attention:
        mask = net.draft.resident("attention.mask", TensorType((tokens, tokens), dtype), kind="state")
    for k in range(layers):
        x = _block(net, f"h{k}", x, batch=batch, heads=heads, dropout=bool(dropout), fused=fused_attention, mask=mask)
    x = net.layer_norm("head.ln", x)
    if labels is None:
        net.gemm("head.logits", x, table)
        return net.graph
    return net.trained(vocabulary_loss(net, x, table, labels, chunks=loss_chunks))


def vocabulary_loss(net: Layers, x: Value, table: Value, labels: Value, *, chunks: int = 1) -> str:
    """Logits of rows, cast to float32, and their cross-entropy, in equal parts; returns the name of the loss."""
    if chunks == 1:
        net.cross_entropy("loss", _upcast(net, "head.upcast", net.gemm("head.logits", x, table)), labels)
        return "loss:0"
    rows, width = net.shape(x)[0] // chunks, net.shape(x)[1]
    parts = net.split("head.split", x, TensorType((rows, width), net.type(x).dtype), chunks)
    wanted = net.split("labels.split", labels, TensorType((rows,), net.type(labels).dtype), chunks)
    losses = []
    for k in range(chunks):
        logits = _upcast(net, f"head.upcast{k}", net.gemm(f"head.logits{k}", parts[k], table))
        losses.append(net.cross_entropy(f"head.loss{k}", logits, wanted[k], term=True))
    return net.sum_losses(losses)


def vit(
    layers: int = 12,
    *,
    batch: int,
    image: int = 224,
    patch: int = 16,
    hidden: int = 768,
    heads: int = 12,
    classes: int = 1000,
    fused_attention: bool = True,
    dropout: float = 0.0,
    dtype: DType = "float32",
    master_weights: bool = False,
    training: bool = True,
    optimizer: str | None = "sgd",
    device: str = "a100",
) -> nx.DiGraph:
    """Vision transformer, ViT-B/16 by default, for training (with backward and update) or inference.

    Args:
        layers: transformer blocks.
        batch: images.
        image: height and width in pixels.
        patch: height and width of a patch.
        hidden: width, a multiple of `heads`.
        heads: of the attention.
        classes: outputs of the classifier.
        fused_attention, dropout, dtype, master_weights: as for `gpt`.
        training: False gives the forward graph without labels.
        optimizer, device: see `differentiate`; costs are seconds on the device.
    Returns:
        A DAG with 86,567,656 parameters by default.
    Raises:
        GraphError: an argument out of range, a patch larger than the image, an unknown dtype, optimizer or device.
    Source: Dosovitskiy et al. 2021, table 1; a classifier of one layer, as for fine-tuning.

    >>> graph = vit(1, batch=2, image=32, hidden=8, heads=2, classes=3)
    >>> graph.nodes["embed.concat"]["shape"]
    (2, 5, 8)
    """
    layers, batch, image, patch = whole_numbers("vit", layers=layers, batch=batch, image=image, patch=patch)
    hidden, heads, classes = whole_numbers("vit", hidden=hidden, heads=heads, classes=classes)
    _check("vit", hidden=hidden, heads=heads, dropout=dropout, dtype=dtype)
    net = Layers(f"vit:{layers}", device=device, training=training, optimizer=optimizer, master_weights=master_weights)
    x = net.input("image", (batch, 3, image, image), dtype)
    labels = net.labels(batch)
    x = net.conv("embed.conv", x, hidden, kernel=patch, stride=patch, bias=True)
    count = math.prod(net.shape(x)[2:])
    x = net.reshape("embed.flatten", x, (batch, hidden, count))
    x = net.apply("embed.transpose", "Transpose", [x], TensorType((batch, count, hidden), dtype))
    token = net.typed_parameter("class_token", TensorType((1, 1, hidden), dtype))
    sequence = TensorType((batch, count + 1, hidden), dtype)
    # The class token goes before the patches of every image: its gradient is summed over the batch.
    x = net.apply("embed.concat", "Concat", [token, x], sequence)
    places = net.typed_parameter("positions.weight", TensorType((1, count + 1, hidden), dtype))
    x = net.apply("embed.add", "Add", [x, places], sequence)
    x = net.reshape("embed.rows", x, (batch * (count + 1), hidden))
    x = net.dropout("embed.dropout", x) if dropout else x
    for k in range(layers):
        x = _block(net, f"h{k}", x, batch=batch, heads=heads, dropout=bool(dropout), fused=fused_attention, mask=None)
    x = net.reshape("head.images", net.layer_norm("head.ln", x), sequence.shape)
    x = net.linear("head.fc", net.slice("head.class", x, (batch, hidden)), classes)
    return net.step(x if labels is None else _upcast(net, "head.upcast", x), labels)


def _check(model: str, *, hidden: int, heads: int, dropout: float, dtype: str) -> None:
    if hidden % heads:
        raise GraphError(f"{model}: hidden is {hidden}, no multiple of {heads} heads")
    if isinstance(dropout, bool) or not isinstance(dropout, (int, float)) or not 0 <= dropout < 1:
        raise GraphError(f"{model}: dropout is {dropout!r}, expected a probability below 1")
    if dtype not in _DTYPES:
        raise GraphError(f"{model}: unknown dtype {dtype!r}; known: {', '.join(_DTYPES)}")


def _upcast(net: Layers, name: str, x: Value) -> Value:
    """Cast a value to float32, in which losses are computed."""
    return x if net.type(x).dtype == "float32" else net.apply(name, "Cast", [x], TensorType(net.shape(x)))


def _lookup(net: Layers, name: str, table: Value, indices: Value) -> Value:
    """Look up rows of a table; the op reads as many rows as it writes."""
    rows, wanted = net.type(table), net.type(indices)
    made = TensorType((*wanted.shape, rows.shape[1]), rows.dtype)
    return net.apply(name, "Gather", [table, indices], made, types=[made, wanted])


def _block(
    net: Layers, name: str, x: Value, *, batch: int, heads: int, dropout: bool, fused: bool, mask: Value | None
) -> Value:
    """Attention and two wide layers, each normalized before and added to its input; x is (batch * tokens, hidden)."""
    rows, hidden = net.shape(x)
    y = net.linear(f"{name}.qkv", net.layer_norm(f"{name}.ln1", x), 3 * hidden)
    head = TensorType((batch, heads, rows // batch, hidden // heads), net.type(y).dtype)
    qkv = net.split(f"{name}.split", y, head, 3)
    attention = _fused_attention if fused else _plain_attention
    y = attention(net, f"{name}.attention", qkv, dropout=dropout, mask=mask)
    y = net.linear(f"{name}.projection", net.reshape(f"{name}.merge", y, (rows, hidden)), hidden)
    x = net.add(f"{name}.add1", x, net.dropout(f"{name}.dropout1", y) if dropout else y)
    y = net.gelu(f"{name}.gelu", net.linear(f"{name}.fc1", net.layer_norm(f"{name}.ln2", x), _EXPANSION * hidden))
    y = net.linear(f"{name}.fc2", y, hidden)
    return net.add(f"{name}.add2", x, net.dropout(f"{name}.dropout2", y) if dropout else y)


def _fused_attention(net: Layers, name: str, qkv: list[Value], *, dropout: bool, mask: Value | None) -> Value:
    """One op for all; the mask is computed inside, and the dropout drawn again from the generator's state."""
    made = net.type(qkv[0])
    outputs = [made, TensorType(made.shape[:-1])] if net.training else [made]
    if not (dropout and net.training):
        return net.apply(name, "FusedAttention", qkv, *outputs)
    state = net.draft.generator_state(f"{name}.rng", module=name.rpartition(".")[0])
    return net.apply(name, "FusedAttention", [*qkv, state], *outputs, types=[made] * 3, saves=_FUSED_WITH_DROPOUT)


def _plain_attention(net: Layers, name: str, qkv: list[Value], *, dropout: bool, mask: Value | None) -> Value:
    """Scores, mask, softmax, dropout and the sum, each an op; the heads are then put side by side by a copy."""
    q, k, v = qkv
    batch, heads, tokens, width = net.shape(q)
    scores = TensorType((batch, heads, tokens, tokens), net.type(q).dtype)
    y = net.apply(f"{name}.scores", "MatMul", [q, k], scores)
    y = y if mask is None else net.apply(f"{name}.masked", "Add", [y, mask], scores)
    y = net.apply(f"{name}.softmax", "Softmax", [y], scores)
    y = net.dropout(f"{name}.dropout", y) if dropout else y
    y = net.apply(f"{name}.sum", "MatMul", [y, v], net.type(q))
    return net.apply(f"{name}.transpose", "Transpose", [y], TensorType((batch, tokens, heads, width), scores.dtype))
