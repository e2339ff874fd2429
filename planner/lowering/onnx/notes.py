"""What in a file shows that it is not the step that is trained: layers that an export for inference removed."""

from __future__ import annotations

import re
from typing import Any, Final

from planner.lowering.onnx.layout import module_of, node_name
from planner.lowering.onnx.weights import RULE_NAME, metadata

_STACK: Final = "pkg.torch.onnx.stack_trace"
_FX_NODE: Final = "pkg.torch.onnx.fx_node"
#: The rate of dropout is the fifth argument, behind a mask or None.
_ATTENDS: Final = re.compile(r"scaled_dot_product_attention\.default\]\(args = \((?:[%\w]+, ){4}(\d*\.\d+)")
_DROPS: Final = re.compile(r"^\s*(.*dropout\(.*)$", re.MULTILINE)
_DRAWS: Final = ("Dropout", "RandomUniformLike", "Bernoulli")
_REMEDY: Final = "export the model in train(), without optimization (README)"
_NAMED: Final = 3


def notes_on(model: Any) -> tuple[str, ...]:
    """One line for each kind of layer that is gone, with the first of the layers; none for most files.

    A batch normalization that was folded leaves a rule's name on the reader, or a convolution with renamed weights. Of
    dropout only the dynamo exporter leaves a trace, the source line of what read it, and the rate of an attention,
    whose own Dropout goes where constants are folded, because it has no flag for training.
    """
    found: list[str] = []
    if folded := _folded(model):
        what = f"batch normalization was folded into {_listed(folded)}"
        found.append(f"{what}: the step that trains it saves more; {_REMEDY}")
    if bare := _without_dropout(model):
        what = f"dropout inside attention is gone from {_listed(bare)}"
        found.append(f"{what}: the step that trains it keeps masks; export without folding constants")
    if line := _dropped(model):
        found.append(
            f"dropout is gone, as in {line!r}: the step that trains it keeps masks where a rate is above 0; {_REMEDY}"
        )
    return tuple(found)


def _listed(layers: list[str]) -> str:
    return f"{len(layers)} layers ({', '.join(layers[:_NAMED])}{' ...' if len(layers) > _NAMED else ''})"


def _without_dropout(model: Any) -> list[str]:
    """The layers of attentions that drop at a rate above 0, and have no node that does."""
    layers: dict[str, str] = {}  # by the call of attention that their nodes are of
    drawn = set[str]()
    for node in model.graph.node:
        call = metadata(node, _FX_NODE)
        if (rate := _ATTENDS.search(call)) and float(rate[1]):
            layers.setdefault(call, module_of(node) or node_name(node))
            if node.op_type in _DRAWS:
                drawn.add(call)
    return [layer for call, layer in layers.items() if call not in drawn]


def _folded(model: Any) -> list[str]:
    """The layers that batch normalization was folded into."""
    nodes = list(model.graph.node)
    if any(node.op_type == "BatchNormalization" for node in nodes):
        return []
    renamed = [
        node
        for node in nodes
        if "BatchNorm" in metadata(node, RULE_NAME)
        or (node.op_type in ("Conv", "ConvTranspose") and node.input[1].startswith(f"onnx::{node.op_type}_"))
    ]
    return [module_of(node) or node_name(node) for node in renamed]


def _dropped(model: Any) -> str | None:
    """The first line of source that calls a dropout, where no node draws."""
    if any(node.op_type in _DRAWS for node in model.graph.node):
        return None
    for node in model.graph.node:
        if line := _DROPS.search(metadata(node, _STACK)):
            return line[1].strip()
    return None
