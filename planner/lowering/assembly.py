"""A DAG under construction, node by node in program order.

The zoo, the importers and `differentiate` write the schema through this one door: every edge has `reads` and `at`, and
every node its `position`, so program order survives `subgraph(...).copy()`, relabelling and JSON.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, final

import networkx as nx

from planner.errors import GraphError
from planner.lowering.devices import device
from planner.lowering.operators.lookup import TensorType, attributes, output_types

RNG_BYTES: Final = 16  # a counter-based generator's state: seed and offset, 8 bytes each


class Value(NamedTuple):
    """One output of a node."""

    node: Hashable
    output: int = 0


@final
class Assembly:
    """Adds nodes to `graph`, each after everything it reads.

    Args:
        facts: attributes of the graph: name, device, source.

    >>> draft = Assembly(name="two")
    >>> x = draft.resident("x", TensorType((4,)), kind="input")
    >>> y = draft.add("y", [x, x], nbytes=16, cost=1.0)
    >>> draft.graph.edges["x", "y"]
    {'reads': (0, 0), 'at': (0, 1)}
    """

    def __init__(self, **facts: Any) -> None:
        self.graph: nx.DiGraph = nx.DiGraph(**facts)
        self.types: Final[dict[Value, TensorType]] = {}

    def add(
        self, name: Hashable, reads: Sequence[Value] = (), *, after: Iterable[Hashable] = (), **attributes: Any
    ) -> Value:
        """A node that reads these values by input position and waits for the nodes `after`; returns its output 0.

        Raises:
            GraphError: the name is taken.
        """
        graph = self.graph
        if name in graph:
            raise GraphError(f"two nodes are named {name!r}; rename one")
        graph.add_node(name, **{**attributes, "position": len(graph)})
        wires: dict[Hashable, tuple[list[int], list[int]]] = {}
        for position, value in enumerate(reads):
            outputs, at = wires.setdefault(value.node, ([], []))
            outputs.append(value.output)
            at.append(position)
        for producer in after:
            wires.setdefault(producer, ([], []))
        for producer, (outputs, at) in wires.items():
            graph.add_edge(producer, name, reads=tuple(outputs), at=tuple(at))
        return Value(name)

    def resident(self, name: str, value: TensorType, *, kind: str) -> Value:
        """An input, a parameter or a state."""
        made = self.add(name, **output_types([value]), kind=kind, cost=0.0)
        self.types[made] = value
        return made

    def apply(
        self,
        name: str,
        op: str,
        reads: Sequence[Value],
        outputs: Sequence[TensorType],
        *,
        types: Sequence[TensorType] | None = None,
        params: Mapping[str, Any] | None = None,
        phase: str = "forward",
        **further: Any,
    ) -> Value:
        """An op of the operator table on values of known type; returns its output 0.

        Args:
            outputs: types of its outputs.
            types: types of the inputs, where the op sees them in another shape than they are kept in.
            params: what FLOPs need beside types, see `operators.attributes`.
            further: node attributes, which win over the table's.
        Raises:
            GraphError: no rule for the op type; names the node.
        """
        inputs = types if types is not None else [self.types[value] for value in reads]
        on = device(self.graph.graph["device"])
        found = attributes(op, node=name, inputs=inputs, outputs=outputs, device=on, params=params, phase=phase)
        self.add(name, reads, **{**found, **further})
        for k, value in enumerate(outputs):
            self.types[Value(name, k)] = value
        return Value(name)

    def batch_norm(
        self, name: str, x: Value, scale: Value, shift: Value, running: tuple[Value, Value], **further: Any
    ) -> Value:
        """Training's batch normalization, which can run again: an op of its own updates the running statistics."""
        statistic = TensorType((self.types[x].shape[1],), "float32")
        y = self.apply(name, "BatchNormalization", [x, scale, shift], [self.types[x], statistic, statistic], **further)
        reads, made = [*running, Value(name, 1), Value(name, 2)], [self.types[value] for value in running]
        self.apply(f"{name}.stats", "UpdateStatistics", reads, made, **further)
        return y

    def dropout(self, name: str, x: Value, **further: Any) -> Value:
        """Training's dropout: its bool mask is saved, or drawn again from the saved state of the generator."""
        state = self.generator_state(f"{name}.rng", **further)
        mask = TensorType(self.types[x].shape, "bool")
        return self.apply(name, "Dropout", [x, state], [self.types[x], mask], **further)

    def generator_state(self, name: str, **further: Any) -> Value:
        """The saved state of the random generator; the op that saves it can run only once."""
        state = TensorType((RNG_BYTES,), "uint8")
        fixed = {"op": "GeneratorState", "flops": 0, "cost": 0.0, "phase": "forward", "recomputable": False}
        made = self.add(name, **{**output_types([state]), **fixed, **further})
        self.types[made] = state
        return made

    def unique(self, name: str) -> str:
        """The name, with the first free number behind it if the name is taken."""
        number, candidate = 1, name
        while candidate in self.graph:
            number += 1
            candidate = f"{name}_{number}"
        return candidate

    def mark_output(self, value: Value) -> None:
        """Mark a value as an output: it must be live at the end."""
        node = self.graph.nodes[value.node]
        if not isinstance(node["nbytes"], tuple):
            node["output"] = True
            return
        marked = node.get("output")
        if marked is not True:
            node["output"] = tuple(sorted({*(marked or ()), value.output}))
