"""A training graph as onnxruntime's tools write it: the file has forward, backward and gradient accumulation.

It is read as what it is: nothing is differentiated, and no optimizer is added. Each parameter has a gradient buffer
among the inputs, which its accumulator updates in place.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, final

import networkx as nx

from planner.errors import GraphError
from planner.lowering.assembly import Assembly, Value
from planner.lowering.onnx.batches import Sizes
from planner.lowering.onnx.layout import Layout, module_of, node_name, params_of, title
from planner.lowering.onnx.model_file import check_dtype, real_inputs
from planner.lowering.onnx.shapes import ACCUMULATOR, held_inputs, is_gradient
from planner.lowering.operators.lookup import TensorType, is_float


@final
class Step:
    """Writes the DAG of a training step, node by node in the file's order.

    Phases: everything before the first gradient op is forward, or loss where it makes an output of one float; the rest
    is backward, accumulation included. Shape arguments are values here where a node makes them, as in the file.

    Args:
        layout: the nodes.
        sizes: types of all values.
        path: names the graph.
        device: costs are seconds on it.
    """

    def __init__(self, layout: Layout, sizes: Sizes, path: Path, *, device: str) -> None:
        self.layout: Final = layout
        self.sizes: Final = sizes
        self.path: Final = path
        self.draft: Final = Assembly(name=path.stem, device=device)
        self.values: Final[dict[str, Value]] = {}
        self.pruned: Final[list[str]] = []
        self.first_gradient: Final = next(i for i, node in enumerate(layout.nodes) if is_gradient(node))
        self.buffers: Final = [node.input[0] for node in layout.nodes if node.op_type == ACCUMULATOR]

    def build(self) -> nx.DiGraph:
        """The DAG, its facts in `graph.graph`.

        Raises:
            GraphError: names the node: no rule, or a value without a size.
        """
        layout = self.layout
        kinds = held_inputs(layout.nodes)
        for value in real_inputs(layout.model):
            if value.name in layout.needed:
                self._resident(value.name, kinds.get(value.name, "input"), "input")
            else:
                self.pruned.append(value.name)
        for position, node in enumerate(layout.nodes):
            if layout.is_live(node):
                self._write(node, self._phase(node, position))
            elif node.output[0] not in layout.constants:
                self.pruned.append(node_name(node))
        for name in layout.outputs:
            if name in self.values:
                self.draft.mark_output(self.values[name])
        self.draft.graph.graph.update(source=self._source(), pruned=tuple(self.pruned))
        return self.draft.graph

    def _phase(self, node: Any, position: int) -> str:
        if position >= self.first_gradient:
            return "backward"
        types = [self.sizes.get(name) for name in node.output if name in self.layout.outputs]
        losses = [found for found in types if found is not None and found.elements == 1 and is_float(found.dtype)]
        return "loss" if losses else "forward"

    def _size(self, name: str, where: str) -> TensorType:
        size = self.sizes.get(name)
        if size is None:
            raise GraphError(f"{where}: no size could be inferred for value {name!r}")
        check_dtype(size, name, where)
        return size

    def _free_name(self, name: str) -> str:
        return self.draft.unique(name.replace(":", "_"))

    def _resident(self, name: str, kind: str, where: str) -> Value:
        self.values[name] = self.draft.resident(self._free_name(name), self._size(name, where), kind=kind)
        return self.values[name]

    def _read(self, name: str, node: Any) -> Value:
        """The value behind a name; a constant of the file becomes a state where it is first read."""
        return self.values[name] if name in self.values else self._resident(name, "state", f"node {title(node)}")

    def _write(self, node: Any, phase: str) -> None:
        """Write one node of the file without its dead outputs."""
        made = [name for name in node.output if name in self.layout.needed]
        self.pruned.extend(name for name in node.output if name and name not in made)
        reads = [self._read(name, node) for name in self.layout.reads(node)]
        outputs = [self._size(name, f"node {title(node)}") for name in made]
        name = self._free_name(node_name(node))
        module: dict[str, Any] = {"module": scope} if (scope := module_of(node)) else {}
        if node.op_type == "Dropout":
            self.draft.dropout(name, reads[0], phase=phase, **module)
        elif node.op_type == ACCUMULATOR:
            self._accumulate(name, reads, outputs, phase)
        else:
            self.draft.apply(name, node.op_type, reads, outputs, params=params_of(node), phase=phase, **module)
        for k, output in enumerate(made):
            self.values[output] = Value(name, k)

    def _accumulate(self, name: str, reads: list[Value], flag: list[TensorType], phase: str) -> None:
        """Add a gradient to its buffer in place, in the module that made it; the file's own output is a flag."""
        module = self.draft.graph.nodes[reads[1].node].get("module")
        outputs = [*flag[:1], self.draft.types[reads[0]]]
        further: dict[str, Any] = {"updates": ((0, len(outputs) - 1),), "recomputable": False, "module": module}
        self.draft.apply(name, ACCUMULATOR, reads, outputs, phase=phase, **further)

    def _source(self) -> dict[str, Any]:
        """What the file holds; a value is saved if a forward node makes it and a backward node reads it."""
        layout = self.layout
        forward, backward = layout.nodes[: self.first_gradient], layout.nodes[self.first_gradient :]
        made = {name for node in forward for name in node.output if name}
        read = dict.fromkeys(name for node in backward for name in node.input)
        saved = [self.sizes[name] for name in read if name in made]
        moved = (name for node in layout.nodes for name in node.output if name and name not in layout.constants)
        moving = [self.sizes.get(name) for name in moved]
        used = {name for node in layout.nodes for name in node.input} | set(layout.outputs)
        return {
            "path": str(self.path),
            "nodes": len(layout.nodes),
            "forward_nodes": len(forward),
            "grad_ops": sum(1 for node in layout.nodes if is_gradient(node)),
            "trainable": _elements(self.sizes.get(name) for name in self.buffers),
            "saved_tensors": len(saved),
            "saved_elems": _elements(saved),
            "act_elems": _elements(moving),
            "act_bytes": sum(found.nbytes for found in moving if found is not None),
            "ignored": tuple(tensor.name for tensor in layout.model.graph.initializer if tensor.name not in used),
            "pruned": tuple(self.pruned),
        }


def _elements(types: Iterable[TensorType | None]) -> int:
    return sum(found.elements for found in types if found is not None)
