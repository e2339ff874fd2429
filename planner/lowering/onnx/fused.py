"""Functions that frameworks differentiate as one op and exporters take apart: GELU, SiLU and group normalization.

The parts of such a function would each keep what their own gradient reads; the step that is trained keeps the input.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final, Optional, final

from planner.lowering.onnx.layout import Layout
from planner.lowering.onnx.rewrites import constants_of, values_in

_NEAR: Final = 1e-3


def fused(layout: Layout) -> Any:
    """The model of a layout with such functions as one node each, under the name of their last part.

    The model itself is returned where it has none; else a copy.
    """
    return _Fusion(layout).written()


Found = Optional[tuple[list[str], list[Any]]]  # what a function reads, and its parts but the last


@final
class _Fusion:
    """Finds the functions, last part by last part."""

    def __init__(self, layout: Layout) -> None:
        self.layout: Final = layout
        self.constants: Final = constants_of(layout.model)
        self.maker: Final = {name: node for node in layout.nodes for name in node.output if name}
        self.reads: Final = Counter(dict.fromkeys(layout.outputs, 2))  # as if something else read it
        self.reads.update(name for node in layout.nodes for name in _read(node))

    def written(self) -> Any:
        from onnx import helper

        replaced: dict[str, Any] = {}
        alike: dict[str, str] = {}  # by the output of a part that goes: a value of its dtype
        for node in self.layout.nodes:
            for op_type, find in self._functions(node):
                if (found := find(node)) is not None:
                    inputs, parts = found
                    one = helper.make_node(op_type, inputs, list(node.output), name=node.name)
                    one.metadata_props.extend(node.metadata_props)
                    replaced[node.output[0]] = one
                    alike.update((part.output[0], inputs[0]) for part in parts)
                    break
        model = self.layout.model
        if not replaced:
            return model
        copy = type(model)()
        copy.CopyFrom(model)
        del copy.graph.node[:]
        for node in self.layout.nodes:
            if node.output[0] not in alike:
                copy.graph.node.append(replaced.get(node.output[0], node))
                if node.op_type == "CastLike" and node.input[1] in alike:
                    copy.graph.node[-1].input[1] = alike[node.input[1]]
        return copy

    def _functions(self, node: Any) -> tuple[tuple[str, Callable[[Any], Found]], ...]:
        """What may end with a node of this type."""
        if node.op_type == "Mul":
            return ("Swish", self._swish), ("Gelu", self._gelu)
        return (("GroupNormalization", self._group_norm),) if node.op_type == "Add" else ()

    def _part(self, name: str, op_type: str, *, reads: int = 1) -> Any:
        """The node of this type that makes a value which so many inputs read, all in the function; or None."""
        node = self.maker.get(name)
        return node if node is not None and node.op_type == op_type and self.reads.get(name) == reads else None

    def _number(self, name: str) -> float | None:
        values = values_in(self.constants.get(name))
        return float(values.ravel()[0]) if values is not None and values.size == 1 else None

    def _times(self, node: Any, number: float) -> str | None:
        """What a Mul or Div multiplies by this number."""
        for own, other in ((0, 1), (1, 0)) if node.op_type == "Mul" else ((0, 1),):
            found = self._number(node.input[other])
            if found is not None and math.isclose(found if node.op_type == "Mul" else 1 / found, number, rel_tol=_NEAR):
                return str(node.input[own])
        return None

    def _swish(self, node: Any) -> Found:
        """x sigmoid(x)."""
        for x, gate in (node.input, reversed(node.input)):
            sigmoid = self._part(gate, "Sigmoid")
            if sigmoid is not None and sigmoid.input[0] == x:
                return [x], [sigmoid]
        return None

    def _gelu(self, node: Any) -> Found:
        """x (1 + erf(x / sqrt 2)) / 2, the half on either factor or on the product."""
        whole = self._times(node, 0.5)
        product = None if whole is None else self._part(whole, "Mul")
        for left, right in (node.input, reversed(node.input)) if product is None else ():
            for factor, other in ((left, right), (right, left)):
                scaled = self._part(factor, "Mul")
                unscaled = None if scaled is None else self._times(scaled, 0.5)
                if unscaled is not None:
                    x, total = (unscaled, other) if factor == left else (other, unscaled)
                    if (parts := self._one_plus_erf(total, x)) is not None:
                        return [x], [scaled, *parts]
        for x, total in (product.input, reversed(product.input)) if product is not None else ():
            if (parts := self._one_plus_erf(total, x)) is not None:
                return [x], [product, *parts]
        return None

    def _one_plus_erf(self, name: str, x: str) -> list[Any] | None:
        total = self._part(name, "Add")
        for place in (0, 1) if total is not None else ():
            erf = self._part(total.input[place], "Erf")
            if erf is not None and self._number(total.input[1 - place]) == 1.0:
                inner = self._part(erf.input[0], "Div") or self._part(erf.input[0], "Mul")
                if inner is not None and self._times(inner, math.sqrt(0.5)) == x:
                    return [total, erf, inner]
        return None

    def _group_norm(self, node: Any) -> Found:
        """Reshape, InstanceNormalization, Reshape back, times a scale, plus a shift."""
        for place in (0, 1):
            scaled = self._part(node.input[place], "Mul")
            for own in (0, 1) if scaled is not None else ():
                back = self._part(scaled.input[own], "Reshape")
                norm = None if back is None else self._part(back.input[0], "InstanceNormalization")
                into = None if norm is None else self._part(norm.input[0], "Reshape")
                if norm is not None and into is not None and self.layout.weights.isdisjoint(norm.input[1:]):
                    affine = [scaled.input[1 - own], node.input[1 - place]]
                    if self.layout.constants.issuperset(affine):
                        return [into.input[0], *affine], [scaled, back, norm, into]
        return None


def _read(node: Any) -> Iterator[str]:
    """The inputs of a node, each as often as it reads it; a CastLike reads only the dtype of what it is like."""
    return (name for k, name in enumerate(node.input) if not (k and node.op_type == "CastLike"))
