"""Whether a file can run at another batch than its own, by what its shapes do when the batch grows.

Exporters trace a model at one batch, and some of its numbers stay in the file: in the target of a Reshape, in a table
of indices, in the ends of a Slice. A runtime then fails, or makes fewer rows than asked without a word: both are
refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, Optional, final

from planner.errors import GraphError
from planner.lowering.operators.lookup import TensorType

_RECURRENT: Final = ("LSTM", "GRU", "RNN")
_SAME_NUMBERS: Final = ("Identity", "Cast", "Unsqueeze", "Squeeze", "Reshape", "Flatten")

#: Types of all values for one choice of the free dimensions; None where inference found none.
Sizes = Mapping[str, Optional[TensorType]]


@final
class BatchCheck:
    """Compares the types of a file's values at two batches.

    Args:
        model: as read.
        before: types at `reference`: the file's own batch, or any other where it is free.
        after: types at `batch`.
        held: batches that the inputs of the file have as sizes; empty where all are free.
    """

    def __init__(
        self, model: Any, before: Sizes, after: Sizes, *, reference: int, batch: int, held: frozenset[int]
    ) -> None:
        self.model, self.before, self.after = model, before, after
        self.reference, self.batch, self.held = reference, batch, held
        self.makers: Final = {name: node for node in model.graph.node for name in node.output if name}
        self.tensors: Final = {tensor.name: tensor for tensor in model.graph.initializer}

    def check(self) -> None:
        """Refuse a file that cannot run at this batch.

        Raises:
            GraphError: names the node, the number in it and its place.
        """
        for node in self.model.graph.node:
            if node.op_type == "Reshape":
                self._check_reshape(node)
            elif node.op_type in ("Gather", "Slice"):
                self._check_pick(node)
        for value in self.model.graph.output:
            self._check_output(value.name)

    def _grown(self, name: str) -> list[int]:
        """Axes of a value that grew."""
        old, new = self.before.get(name), self.after.get(name)
        if old is None or new is None or len(old.shape) != len(new.shape):
            return []
        return [axis for axis, size in enumerate(old.shape) if new.shape[axis] != size]

    def _check_reshape(self, node: Any) -> None:
        """The first place of the target behind the same elements as a grown axis is where that axis goes on."""
        source, target = self.before.get(node.input[0]), self.before.get(node.output[0])
        grown = self._grown(node.input[0])
        if source is None or target is None or not grown:
            return
        literals = self._literals(node.input[1])
        for axis in grown:
            ahead = math.prod(source.shape[:axis])
            place = next((k for k in range(len(target.shape)) if math.prod(target.shape[:k]) == ahead), None)
            if place is not None and place < len(literals) and literals[place] in self.held:
                self._refuse(
                    node, f"has batch {literals[place]} frozen at place {place} of its target {_shown(literals)}"
                )
        read, made = self.after.get(node.input[0]), self.after.get(node.output[0])
        if read is not None and made is not None and read.elements != made.elements:
            numbers = [number for number in literals if number is not None]
            what = f"reads {read.elements} elements, and its target {_shown(literals)} holds {made.elements}"
            self._refuse(node, what if numbers else f"reads {read.elements} elements and makes {made.elements}")

    def _check_pick(self, node: Any) -> None:
        """Rows picked by fixed numbers do not grow with the data."""
        grown, made = self._grown(node.input[0]), self.after.get(node.output[0])
        if not grown or made is None or self._grown(node.output[0]) or made != self.before.get(node.output[0]):
            return
        if node.op_type == "Gather" and self._grown(node.input[1]):
            return
        size = (self.after[node.input[0]] or made).shape[grown[0]]
        part = f"a fixed part of dimension {grown[0]}, which became {size}"
        what = f"picks {part}: it makes {list(made.shape)} at any batch"
        self._refuse(node, what)

    def _check_output(self, name: str) -> None:
        """An output that grows has the batch as a dimension, or grows row by row."""
        grown, old, new = self._grown(name), self.before.get(name), self.after.get(name)
        if not grown or 0 in grown or old is None or new is None:
            return
        pairs = zip(old.shape, new.shape, strict=True)
        if (self.reference, self.batch) not in pairs:
            what = f"output {name!r} is {list(new.shape)} at batch={self.batch}: no dimension of it is the batch"
            raise GraphError(f"{what}, so one was frozen on the way; {_REMEDY}")

    def _refuse(self, node: Any, what: str) -> None:
        named = f"node {node.name or node.output[0]!r} ({node.op_type})"
        raise GraphError(f"{named} {what}, so batch={self.batch} cannot pass; {_REMEDY}")

    def _literals(self, name: str) -> list[int | None]:
        """Numbers of a small integer tensor that stand in the file; None for those that shapes determine."""
        tensor = self.tensors.get(name)
        node = self.makers.get(name)
        if tensor is None and node is not None and node.op_type == "Constant":
            given = {attribute.name: attribute for attribute in node.attribute}
            if "value_ints" in given:
                return list(given["value_ints"].ints)
            if "value_int" in given:
                return [given["value_int"].i]
            tensor = given["value"].t if "value" in given else None
        if tensor is not None:
            return _numbers(tensor)
        if node is not None and node.op_type == "Concat":
            return [number for part in node.input for number in self._literals(part)]
        if node is not None and node.op_type in _SAME_NUMBERS and node.input[0] != name:
            return self._literals(node.input[0])
        size = self.before.get(name)
        return [None] * (size.elements if size is not None and size.elements <= _MOST_NUMBERS else 1)


_MOST_NUMBERS: Final = 64
_REMEDY: Final = "use the file's own batch, or export it with a free one"


def _numbers(tensor: Any) -> list[int | None]:
    from onnx import numpy_helper

    if math.prod(tensor.dims) > _MOST_NUMBERS:
        return []
    try:
        return [int(number) or None if number != -1 else None for number in numpy_helper.to_array(tensor).ravel()]
    except Exception:  # damaged bytes raise anything; without numbers nothing is frozen
        return []


def _shown(literals: list[int | None]) -> str:
    return f"[{', '.join('free' if number is None else str(number) for number in literals)}]"


def check_states(model: Any, types: Sizes) -> None:
    """Refuse initial states of recurrent layers that are not (directions, batch, hidden), which inference lets pass.

    Raises:
        GraphError: names the node, the state and both shapes.
    """
    for node in model.graph.node:
        x = types.get(node.input[0]) if node.op_type in _RECURRENT else None
        if x is None or len(x.shape) != 3:
            continue
        given = {attribute.name: attribute for attribute in node.attribute}
        first = "layout" in given and given["layout"].i == 1
        directions = 2 if "direction" in given and given["direction"].s == b"bidirectional" else 1
        rows = x.shape[0] if first else x.shape[1]
        for name in filter(None, node.input[5:7]):
            state = types.get(name)
            if state is None or "hidden_size" not in given:
                continue
            hidden = given["hidden_size"].i
            right = (rows, directions, hidden) if first else (directions, rows, hidden)
            if state.shape != right:
                what = f"initial state {name!r} is {list(state.shape)}, and its input needs {list(right)}"
                remedy = "give the sizes of that state by dims=, or leave the batch as in the file"
                raise GraphError(f"node {node.name or node.output[0]!r} ({node.op_type}): {what}; {remedy}")
