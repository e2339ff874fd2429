"""What an op of PyTorch costs: arithmetic from the operator table, seconds by the roofline of a named device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves

from planner.lowering.devices import device, find_device, roofline_seconds
from planner.lowering.operators.lookup import find_row
from planner.lowering.operators.rows import TensorType
from planner.torch.stream import ATenCall


class Cost(NamedTuple):
    """Of one execution."""

    seconds: float
    flops: float = 0.0


Costs = Callable[[ATenCall], Cost]


def roofline(name: str) -> Costs:
    """Costs on a device, by its name.

    An op that the operator table has no row for is taken to do one operation an element: its traffic bounds it.

    Raises:
        GraphError: no such device.

    >>> from planner.torch.capture import capture
    >>> from planner.torch.root import Root, as_call
    >>> from planner.torch.stream import Stream
    >>> net = torch.nn.Linear(64, 32)
    >>> found = Stream.of(capture(Root(net, None), as_call(torch.ones(8, 64))))
    >>> [(call.name, roofline("cpu")(call).flops) for call in found.calls if call.name in ("t", "addmm")]
    [('t', 0.0), ('addmm', 32768.0)]
    """
    on = device(name)

    def cost(call: ATenCall) -> Cost:
        if len(call.views) == len(call.tensors):
            return Cost(0.0)
        inputs, outputs = _inputs(call), [type_of(tensor) for tensor in call.tensors]
        flops = _flops(call, inputs, outputs)
        moved = sum(value.nbytes for value in (*inputs, *outputs))
        return Cost(roofline_seconds(on, flops=flops, bytes_moved=moved, dtype=outputs[0].dtype), flops)

    return cost


def device_name(home: torch.device) -> str:
    """The name of a device of PyTorch's, as `planner` knows devices."""
    if home.type != "cuda":
        return "cpu"
    found = find_device(torch.cuda.get_device_name(home))
    return "a100" if found is None else found.name  # for the ratio of one op to another any will do


def type_of(tensor: torch.Tensor) -> TensorType:
    """Shape and dtype as the operator table has them."""
    return TensorType(tuple(map(int, tensor.shape)), str(tensor.dtype).removeprefix("torch."))


def _inputs(call: ATenCall) -> list[TensorType]:
    leaves = [leaf for leaf in tree_leaves((call.node.args, call.node.kwargs)) if isinstance(leaf, torch.fx.Node)]
    values = [leaf.meta.get("val") for leaf in leaves]
    return [type_of(value) for value in values if isinstance(value, torch.Tensor)]


def _flops(call: ATenCall, inputs: list[TensorType], outputs: list[TensorType]) -> float:
    row = find_row(str(call.node.target))
    elements = float(sum(value.elements for value in outputs))
    if row is None:
        return elements
    try:
        return float(row.flops(inputs, outputs, _params(call)))
    except (IndexError, KeyError, ValueError, TypeError):  # a form of the op that the row does not know
        return elements


def _params(call: ATenCall) -> Mapping[str, Any]:
    target: Any = call.node.target
    names = [argument.name for argument in target._schema.arguments]
    return {**dict(zip(names, call.node.args, strict=False)), **call.node.kwargs}
