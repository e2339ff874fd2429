"""Transformers: a language model, and one that reads patches of an image."""

from __future__ import annotations

import math
from typing import Final, Literal, get_args

import networkx as nx

from planner.errors import GraphError
from planner.lowering.assembly import Value
from planner.lowering.differentiate import check_optimizer, differentiate
from planner.lowering.operators.lookup import TensorType, output_types
from planner.text import whole_number
from planner.zoo.builder import Layers

DType = Literal["float32", "bfloat16", "float16"]
_DTYPES: Final = get_args(DType)
_EXPANSION: Final = 4
# Of a saved fused attention, all the backward reads: q, k, v and the generator's state; the output and its log-sum-exp.
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

    The matrix of the vocabulary is embedding and classifier in one: one resident, whose two gradients are summed in
    place. In a 16-bit dtype parameters and values are of that dtype, the statistics of layer normalization and
    attention are float32, and the logits are cast to float32 for the loss, which keeps log-probabilities of that size:
    with a large vocabulary this is the peak.

    Args:
        layers: transformer blocks.
        batch: sequences.
        tokens: of a sequence; as many positions have an embedding.
        hidden: width, a multiple of `heads`.
        heads: of the attention.
        vocabulary: distinct tokens.
        loss_chunks: equal parts of all tokens whose logits and loss are made one after the other; a plan can then hold
            those of one part at a time, for the cost of making them twice.
        fused_attention: True: the backward reads q, k, v, the output and one float32 a row, and no value has tokens x
            tokens elements. False: scores and probabilities are values, and the backward reads the probabilities.
        dropout: probability, of the embedding, the attention and both residual branches; 0 leaves it out.
        dtype: "float32", "bfloat16" or "float16".
        master_weights: parameters, their gradients and the optimizer's states are float32; a copy in `dtype` is a value
            like any other.
        training: False gives the forward graph without labels.
        optimizer: see `differentiate`.
        device: costs are seconds on it.
    Returns:
        A DAG with (vocabulary + tokens) * hidden + layers * (12 * hidden**2 + 13 * hidden) + 2 * hidden parameters.
    Raises:
        GraphError: an argument out of range, an unknown dtype, optimizer or device.
    Source: Radford et al. 2019; fused attention as Dao et al. 2022. Ours puts the softmax's scale into the product
    before it.

    >>> graph = gpt(1, batch=2, tokens=8, hidden=4, heads=2, vocabulary=11)
    >>> graph.nodes["h0.attention"]["shape"]
    ((2, 2, 8, 2), (2, 2, 8))
    """
    counts = {
        "layers": layers,
        "batch": batch,
        "tokens": tokens,
        "hidden": hidden,
        "heads": heads,
        "vocabulary": vocabulary,
    }
    layers, batch, tokens, hidden, heads, vocabulary = (
        whole_number("gpt", name, value, least=1) for name, value in counts.items()
    )
    loss_chunks = whole_number("gpt", "loss_chunks", loss_chunks, least=1)
    if batch * tokens % loss_chunks:
        raise GraphError(f"gpt: {batch * tokens} tokens do not divide into {loss_chunks} loss_chunks")
    _check("gpt", hidden=hidden, heads=heads, dropout=dropout, dtype=dtype)
    check_optimizer(optimizer)
    net = Layers(f"gpt:{layers}", device=device, training=training, master_weights=master_weights)
    ids = net.input("tokens", (batch, tokens), "int64")
    positions = net.input("positions", (tokens,), "int64")
    labels = net.input("labels", (batch * tokens,), "int64") if training else None
    table = net.typed_parameter("wte.weight", TensorType((vocabulary, hidden), dtype))
    places = net.typed_parameter("wpe.weight", TensorType((tokens, hidden), dtype))
    sums = TensorType((batch, tokens, hidden), dtype)
    x = net.draft.apply(
        "embed.add",
        "Add",
        [_lookup(net, "embed.wte", table, ids), _lookup(net, "embed.wpe", places, positions)],
        [sums],
    )
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
    loss = vocabulary_loss(net, x, table, labels, chunks=loss_chunks)
    return differentiate(net.graph, loss=loss, optimizer=optimizer)


def vocabulary_loss(net: Layers, x: Value, table: Value, labels: Value, *, chunks: int = 1) -> str:
    """Logits of rows, cast to float32, and their cross-entropy, in equal parts; returns the name of the loss."""
    if chunks == 1:
        net.cross_entropy("loss", _upcast(net, "head.upcast", net.gemm("head.logits", x, table)), labels)
        return "loss:0"
    rows = net.shape(x)[0] // chunks
    parts = _views(net, "head.split", x, (rows, net.shape(x)[1]), chunks)
    wanted = _views(net, "labels.split", labels, (rows,), chunks)
    losses = []
    for k in range(chunks):
        logits = _upcast(net, f"head.upcast{k}", net.gemm(f"head.logits{k}", parts[k], table))
        made = [TensorType(()), net.draft.types[logits]]
        losses.append(
            net.draft.apply(f"head.loss{k}", "SoftmaxCrossEntropyLoss", [logits, wanted[k]], made, module="head")
        )
    net.draft.apply("loss", "Sum", losses, [TensorType(())], phase="loss")
    return "loss"


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
        optimizer: see `differentiate`.
        device: costs are seconds on it.
    Returns:
        A DAG with 86,567,656 parameters by default.
    Raises:
        GraphError: an argument out of range, a patch larger than the image, an unknown dtype, optimizer or device.
    Source: Dosovitskiy et al. 2021, table 1; a classifier of one layer, as for fine-tuning.

    >>> graph = vit(1, batch=2, image=32, hidden=8, heads=2, classes=3)
    >>> graph.nodes["embed.concat"]["shape"]
    (2, 5, 8)
    """
    counts = {
        "layers": layers,
        "batch": batch,
        "image": image,
        "patch": patch,
        "hidden": hidden,
        "heads": heads,
        "classes": classes,
    }
    layers, batch, image, patch, hidden, heads, classes = (
        whole_number("vit", name, n, least=1) for name, n in counts.items()
    )
    _check("vit", hidden=hidden, heads=heads, dropout=dropout, dtype=dtype)
    check_optimizer(optimizer)
    net = Layers(f"vit:{layers}", device=device, training=training, master_weights=master_weights)
    x = net.input("image", (batch, 3, image, image), dtype)
    labels = net.input("labels", (batch,), "int64") if training else None
    x = net.conv("embed.conv", x, hidden, kernel=patch, stride=patch, bias=True)
    count = math.prod(net.shape(x)[2:])
    x = net.reshape("embed.flatten", x, (batch, hidden, count))
    x = net.draft.apply(
        "embed.transpose", "Transpose", [x], [TensorType((batch, count, hidden), dtype)], module="embed"
    )
    token = net.typed_parameter("class_token", TensorType((1, 1, hidden), dtype))
    sequence = TensorType((batch, count + 1, hidden), dtype)
    # The class token goes before the patches of every image: its gradient is summed over the batch.
    x = net.draft.apply("embed.concat", "Concat", [token, x], [sequence], module="embed")
    places = net.typed_parameter("positions.weight", TensorType((1, count + 1, hidden), dtype))
    x = net.draft.apply("embed.add", "Add", [x, places], [sequence], module="embed")
    x = net.reshape("embed.rows", x, (batch * (count + 1), hidden))
    x = net.dropout("embed.dropout", x) if dropout else x
    for k in range(layers):
        x = _block(net, f"h{k}", x, batch=batch, heads=heads, dropout=bool(dropout), fused=fused_attention, mask=None)
    x = net.slice(
        "head.class", net.reshape("head.images", net.layer_norm("head.ln", x), sequence.shape), (batch, hidden)
    )
    x = net.linear("head.fc", x, classes)
    if labels is None:
        return net.graph
    net.cross_entropy("loss", _upcast(net, "head.upcast", x), labels)
    return differentiate(net.graph, loss="loss:0", optimizer=optimizer)


def _check(model: str, *, hidden: int, heads: int, dropout: float, dtype: str) -> None:
    if hidden % heads:
        raise GraphError(f"{model}: hidden is {hidden}, no multiple of {heads} heads")
    if isinstance(dropout, bool) or not isinstance(dropout, (int, float)) or not 0 <= dropout < 1:
        raise GraphError(f"{model}: dropout is {dropout!r}, expected a probability below 1")
    if dtype not in _DTYPES:
        raise GraphError(f"{model}: unknown dtype {dtype!r}; known: {', '.join(_DTYPES)}")


def _upcast(net: Layers, name: str, x: Value) -> Value:
    """In float32, as losses are computed."""
    if net.draft.types[x].dtype == "float32":
        return x
    return net.draft.apply(name, "Cast", [x], [TensorType(net.shape(x))], module="head")


def _lookup(net: Layers, name: str, table: Value, indices: Value) -> Value:
    """Rows of a table; it reads as many as it writes, not the whole."""
    rows, wanted = net.draft.types[table], net.draft.types[indices]
    made = TensorType((*wanted.shape, rows.shape[1]), rows.dtype)
    return net.draft.apply(name, "Gather", [table, indices], [made], types=[made, wanted], module="embed")


def _block(
    net: Layers, name: str, x: Value, *, batch: int, heads: int, dropout: bool, fused: bool, mask: Value | None
) -> Value:
    """Attention and two wide layers, each normalized before and added to what went in; values are rows of (batch *
    tokens, hidden).
    """
    rows, hidden = net.shape(x)
    y = net.linear(f"{name}.qkv", net.layer_norm(f"{name}.ln1", x), 3 * hidden)
    q, k, v = _views(net, f"{name}.split", y, (batch, heads, rows // batch, hidden // heads), 3)
    attention = _fused_attention if fused else _plain_attention
    y = attention(net, f"{name}.attention", q, k, v, dropout=dropout, mask=mask)
    y = net.linear(f"{name}.projection", net.reshape(f"{name}.merge", y, (rows, hidden)), hidden)
    x = net.add(f"{name}.add1", x, net.dropout(f"{name}.dropout1", y) if dropout else y)
    y = net.gelu(f"{name}.gelu", net.linear(f"{name}.fc1", net.layer_norm(f"{name}.ln2", x), _EXPANSION * hidden))
    y = net.linear(f"{name}.fc2", y, hidden)
    return net.add(f"{name}.add2", x, net.dropout(f"{name}.dropout2", y) if dropout else y)


def _views(net: Layers, name: str, x: Value, shape: tuple[int, ...], count: int) -> list[Value]:
    """Equal parts of a value, by strides; the backward writes their gradients side by side and reads nothing else."""
    part = TensorType(shape, net.draft.types[x].dtype)
    views = tuple((0, k, k * part.nbytes) for k in range(count))
    net.draft.add(
        name,
        [x],
        op="Split",
        flops=0,
        cost=0.0,
        phase="forward",
        saves=(),
        view=views,
        module=name.rpartition(".")[0],
        **output_types([part] * count),
    )
    for k in range(count):
        net.draft.types[Value(name, k)] = part
    return [Value(name, k) for k in range(count)]


def _fused_attention(
    net: Layers, name: str, q: Value, k: Value, v: Value, *, dropout: bool, mask: Value | None
) -> Value:
    """One op for scores, softmax, dropout and the sum; its mask is computed, and its dropout drawn again from the
    generator's state.
    """
    made = net.draft.types[q]
    outputs = [made, TensorType(made.shape[:-1])] if net.training else [made]
    if not (dropout and net.training):
        return net.draft.apply(name, "FusedAttention", [q, k, v], outputs, module=name.rpartition(".")[0])
    state = net.draft.generator_state(f"{name}.rng", module=name.rpartition(".")[0])
    types = [made] * 3
    return net.draft.apply(
        name,
        "FusedAttention",
        [q, k, v, state],
        outputs,
        types=types,
        saves=_FUSED_WITH_DROPOUT,
        module=name.rpartition(".")[0],
    )


def _plain_attention(
    net: Layers, name: str, q: Value, k: Value, v: Value, *, dropout: bool, mask: Value | None
) -> Value:
    """Scores, mask, softmax, dropout and the sum, each an op; the heads are then put side by side by a copy."""
    batch, heads, tokens, width = net.shape(q)
    scores = TensorType((batch, heads, tokens, tokens), net.draft.types[q].dtype)
    y = net.draft.apply(f"{name}.scores", "MatMul", [q, k], [scores], module=name)
    y = y if mask is None else net.draft.apply(f"{name}.masked", "Add", [y, mask], [scores], module=name)
    y = net.draft.apply(f"{name}.softmax", "Softmax", [y], [scores], module=name)
    y = net.dropout(f"{name}.dropout", y) if dropout else y
    y = net.draft.apply(f"{name}.sum", "MatMul", [y, v], [net.draft.types[q]], module=name)
    rows = TensorType((batch, tokens, heads, width), scores.dtype)
    return net.draft.apply(f"{name}.transpose", "Transpose", [y], [rows], module=name)
