"""The encoder that reads a text in both directions."""

from __future__ import annotations

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
    check_dropout,
    check_heads,
    dtype_named,
    lookup,
    upcast,
)  # fmt: skip
from planner.zoo.builder import Layers, whole_numbers

_EXPANSION: Final = 4


def bert(
    layers: int = 12,
    *,
    batch: int,
    tokens: int = 512,
    hidden: int = 768,
    heads: int = 12,
    vocabulary: int = 30522,
    positions: int = 512,
    types: int = 2,
    classes: int | None = None,
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
    """BERT, BERT-base by default: an encoder and its pooler, fine-tuned to classify texts, or for inference.

    Tokens, positions and types of segments are embedded; each block normalizes after its additions; the pooler is a
    layer with tanh on the first token. The loss is the cross-entropy of scores of classes. With `classes=None` the head
    has no parameters, so that those of the graph are the published ones of the encoder: the pooled vector itself is the
    scores, one class for each of its elements. No text is padded, so attention has no mask.

    Args:
        layers: transformer blocks.
        batch: texts.
        tokens: of a text.
        hidden: width, a multiple of `heads`.
        heads: of the attention.
        vocabulary: distinct tokens.
        positions: that have an embedding.
        types: of segments.
        classes: outputs of a classifier on the pooled vector, which dropout goes before; None: no classifier.
        fused_attention: as for `gpt`.
        dropout: probability, of the embedding, the attention, both residual branches and the classifier.
        activation, dtype, master_weights: as for `gpt`.
        training: False gives the forward graph without labels.
        optimizer, step, device: see `Layers`; costs are seconds on the device.
    Returns:
        A DAG with 109,482,240 parameters by default.
    Raises:
        GraphError: an argument out of range, more tokens than positions, an unknown name.
    Source: Devlin et al. 2019, with the ops of Hugging Face's `BertModel`.

    >>> graph = bert(1, batch=2, tokens=8, hidden=4, heads=2, vocabulary=11)
    >>> graph.nodes["pooler.tanh"]["shape"]
    (2, 4)
    """
    layers, batch, tokens, hidden = whole_numbers("bert", layers=layers, batch=batch, tokens=tokens, hidden=hidden)
    heads, vocabulary, positions = whole_numbers("bert", heads=heads, vocabulary=vocabulary, positions=positions)
    types, outputs = whole_numbers("bert", types=types, classes=hidden if classes is None else classes)
    if tokens > positions:
        raise GraphError(f"bert: {tokens} tokens are more than {positions} positions")
    check_heads("bert", hidden=hidden, heads=heads)
    check_dropout("bert", dropout)
    dtype = dtype_named("bert", dtype)
    activate = activation_named("bert", activation)
    net = Layers(
        f"bert:{layers}",
        device=device,
        training=training,
        optimizer=optimizer,
        step=step,
        master_weights=master_weights,
    )
    labels = net.labels(batch)
    x = _embedding(net, (batch, tokens, hidden), dtype, {"tokens": vocabulary, "types": types, "positions": positions})
    x = net.dropout("embed.dropout", x) if dropout else x
    attend = attention_of(fused=fused_attention, dropout=dropout)
    for k in range(layers):
        x = _block(net, f"h{k}", x, batch=batch, heads=heads, dropout=dropout, attend=attend, activate=activate)
    x = net.first("pooler.first", net.reshape("pooler.texts", x, (batch, tokens, hidden)))
    x = net.tanh("pooler.tanh", net.linear("pooler.fc", x, hidden))
    if classes is not None:
        x = net.linear("head.fc", net.dropout("head.dropout", x) if dropout else x, outputs)
    return net.step(x if labels is None else upcast(net, "head.upcast", x), labels)


def _embedding(net: Layers, shape: tuple[int, int, int], dtype: DType, rows: dict[str, int]) -> Value:
    """The normalized sum of what tokens, types and positions are embedded as; `rows` of each table."""
    batch, tokens, hidden = shape
    found = []
    for name, count in rows.items():
        indices = net.input(name, (tokens,) if name == "positions" else (batch, tokens), "int64")
        table = net.typed_parameter(f"embed.{name}.weight", TensorType((count, hidden), dtype))
        found.append(lookup(net, f"embed.{name}", table, indices))
    x = net.add("embed.add2", net.add("embed.add1", found[0], found[1]), found[2])
    return net.layer_norm("embed.ln", net.reshape("embed.rows", x, (batch * tokens, hidden)))


def _block(
    net: Layers, name: str, x: Value, *, batch: int, heads: int, dropout: float, attend: Attention, activate: Activate
) -> Value:
    """Attention and two wide layers, each added to its input and normalized after; x is (batch * tokens, hidden)."""
    rows, hidden = net.shape(x)
    head = (batch, heads, rows // batch, hidden // heads)
    parts = ("query", "key", "value")
    qkv = [net.reshape(f"{name}.{part}.heads", net.linear(f"{name}.{part}", x, hidden), head) for part in parts]
    y = net.reshape(f"{name}.merge", attend(net, f"{name}.attention", qkv), (rows, hidden))
    y = net.linear(f"{name}.projection", y, hidden)
    y = net.add(f"{name}.add1", net.dropout(f"{name}.dropout1", y) if dropout else y, x)
    x = net.layer_norm(f"{name}.ln1", y)
    y = activate(net, f"{name}.gelu", net.linear(f"{name}.fc1", x, _EXPANSION * hidden))
    y = net.linear(f"{name}.fc2", y, hidden)
    y = net.add(f"{name}.add2", net.dropout(f"{name}.dropout2", y) if dropout else y, x)
    return net.layer_norm(f"{name}.ln2", y)
