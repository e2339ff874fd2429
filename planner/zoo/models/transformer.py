"""Transformers: a language model, and one that reads patches of an image."""

from __future__ import annotations

import math
from functools import partial
from typing import Final, Literal

import networkx as nx

from planner.errors import GraphError
from planner.lowering.assembly import Value
from planner.lowering.operators.lookup import TensorType
from planner.training_step import TrainingStep
from planner.zoo.attention import (
    Activate,
    Activation,
    Attention,
    DType,
    ShortDType,
    activation_named,
    attention_of,
    causal_mask,
    check_dropout,
    check_heads,
    dtype_named,
    lookup,
    upcast,
    vocabulary_loss,
)  # fmt: skip
from planner.zoo.builder import Layers, whole_numbers

_EXPANSION: Final = 4


def gpt(
    layers: int = 12,
    *,
    batch: int,
    tokens: int = 1024,
    hidden: int = 768,
    heads: int = 12,
    vocabulary: int = 50257,
    positions: int | None = None,
    loss_chunks: int = 1,
    fused_attention: bool = True,
    dropout: float = 0.0,
    activation: Activation = "gelu",
    dtype: DType | ShortDType = "float32",
    master_weights: bool = False,
    training: bool | Literal["forward"] = True,
    optimizer: str | None = "sgd",
    step: TrainingStep | None = None,
    device: str = "a100",
) -> nx.DiGraph:
    """GPT-2: causal self-attention, learned positions, GELU, layer normalization first; for training or inference.

    The matrix of the vocabulary is embedding and classifier in one, and its two gradients are summed in place. In a
    16-bit dtype the statistics of layer normalization and attention stay float32, and the logits are cast to float32
    for the loss, which keeps log-probabilities of that size: with a large vocabulary this is the peak.

    Args:
        layers: transformer blocks.
        batch: sequences.
        tokens: of a sequence.
        hidden: width, a multiple of `heads`.
        heads: of the attention.
        vocabulary: distinct tokens.
        positions: that have an embedding; None: as many as tokens.
        loss_chunks: equal parts of all tokens, each with its logits and loss; a plan can hold those of one at a time.
        fused_attention: True: the backward reads q, k, v, the output and one float32 a row, and no value has tokens x
            tokens elements. False: scores and probabilities are values, and the backward reads the probabilities.
        dropout: probability, of the embedding, the attention and both residual branches; 0 leaves it out.
        activation: "gelu" is one op, whose backward reads its input; "gelu_new" is Hugging Face's for GPT-2: eight ops,
            whose backward reads four values of that size.
        dtype: "float32", "bfloat16" or "float16", or "fp32", "bf16", "fp16", "half".
        master_weights: parameters, gradients and optimizer states are float32; their copies in `dtype` are values.
        training: False gives the forward graph without labels.
        optimizer, step, device: see `Layers`; costs are seconds on the device.
    Returns:
        A DAG with (vocabulary + positions) * hidden + layers * (12 * hidden**2 + 13 * hidden) + 2 * hidden parameters.
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
    (positions,) = whole_numbers("gpt", positions=tokens if positions is None else positions)
    if tokens > positions:
        raise GraphError(f"gpt: {tokens} tokens are more than {positions} positions")
    check_heads("gpt", hidden=hidden, heads=heads)
    check_dropout("gpt", dropout)
    dtype = dtype_named("gpt", dtype)
    activate = activation_named("gpt", activation)
    net = Layers(
        f"gpt:{layers}", device=device, training=training, optimizer=optimizer, step=step, master_weights=master_weights
    )
    ids = net.input("tokens", (batch, tokens), "int64")
    places = net.input("positions", (tokens,), "int64")
    labels = net.labels(batch * tokens)
    table = net.typed_parameter("wte.weight", TensorType((vocabulary, hidden), dtype))
    of_places = net.typed_parameter("wpe.weight", TensorType((positions, hidden), dtype))
    sums = TensorType((batch, tokens, hidden), dtype)
    both = [lookup(net, "embed.wte", table, ids), lookup(net, "embed.wpe", of_places, places)]
    x = net.draft.apply("embed.add", "Add", both, [sums])
    x = net.reshape("embed.rows", x, (batch * tokens, hidden))
    x = net.dropout("embed.dropout", x) if dropout else x
    hide = partial(causal_mask, net, tokens, dtype)
    attend = attention_of(fused=fused_attention, dropout=dropout, mask=hide)
    for k in range(layers):
        x = _block(net, f"h{k}", x, batch=batch, heads=heads, dropout=dropout, attend=attend, activate=activate)
    x = net.layer_norm("head.ln", x)
    if labels is None:
        net.gemm("head.logits", x, table)
        return net.graph
    return net.trained(vocabulary_loss(net, x, table, labels, chunks=loss_chunks))


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
    dtype: DType | ShortDType = "float32",
    master_weights: bool = False,
    training: bool | Literal["forward"] = True,
    optimizer: str | None = "sgd",
    step: TrainingStep | None = None,
    device: str = "a100",
) -> nx.DiGraph:
    """Vision transformer, ViT-B/16 by default, for training (with backward and update) or inference.

    It keeps what torchvision's keeps; the classifier reads a view of all the normalized tokens.

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
        optimizer, step, device: see `Layers`; costs are seconds on the device.
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
    check_heads("vit", hidden=hidden, heads=heads)
    check_dropout("vit", dropout)
    dtype = dtype_named("vit", dtype)
    net = Layers(
        f"vit:{layers}", device=device, training=training, optimizer=optimizer, step=step, master_weights=master_weights
    )
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
    attend = attention_of(fused=fused_attention, dropout=dropout)
    for k in range(layers):
        x = _block(net, f"h{k}", x, batch=batch, heads=heads, dropout=dropout, attend=attend, activate=Layers.gelu)
    x = net.reshape("head.images", net.layer_norm("head.ln", x), sequence.shape)
    x = net.linear("head.fc", net.first("head.class", x), classes)
    return net.step(x if labels is None else upcast(net, "head.upcast", x), labels)


def _block(
    net: Layers, name: str, x: Value, *, batch: int, heads: int, dropout: float, attend: Attention, activate: Activate
) -> Value:
    """Attention and two wide layers, each normalized before and added to its input; x is (batch * tokens, hidden)."""
    rows, hidden = net.shape(x)
    y = net.linear(f"{name}.qkv", net.layer_norm(f"{name}.ln1", x), 3 * hidden)
    head = TensorType((batch, heads, rows // batch, hidden // heads), net.type(y).dtype)
    y = attend(net, f"{name}.attention", net.split(f"{name}.split", y, head, 3))
    y = net.linear(f"{name}.projection", net.reshape(f"{name}.merge", y, (rows, hidden)), hidden)
    x = net.add(f"{name}.add1", x, net.dropout(f"{name}.dropout1", y) if dropout else y)
    y = activate(net, f"{name}.gelu", net.linear(f"{name}.fc1", net.layer_norm(f"{name}.ln2", x), _EXPANSION * hidden))
    y = net.linear(f"{name}.fc2", y, hidden)
    return net.add(f"{name}.add2", x, net.dropout(f"{name}.dropout2", y) if dropout else y)
