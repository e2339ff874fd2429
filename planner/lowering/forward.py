"""What `differentiate` must know of a forward DAG: rules, what a trainable resident reaches, the loss, what is dead."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Optional, final

import networkx as nx

from planner.errors import GraphError
from planner.graph import Op, Tensor
from planner.lowering.assembly import Value
from planner.lowering.devices import Device, device, roofline_seconds
from planner.lowering.operators.lookup import Gradient, Operator, Ref, find_row, is_float, operator
from planner.lowering.schema import lower

# Of a node with `saves`: its one backward op reads the same for every input.
_ANY_INPUT: Final = Gradient()


@final
@dataclass(frozen=True, slots=True)
class Rule:
    """What is known about the gradients of one op.

    Args:
        row: its row of the operator table; None without one, and where the node's own `saves` say anything else.
        saves: the node's own `saves`, if any.
        ordered: the positions of its inputs are known.
    """

    row: Optional[Operator]
    saves: Optional[tuple[Ref, ...]]
    ordered: bool

    def gradient(self, position: int) -> Gradient | None:
        """How the gradient of this input is made; None if it has none. Without a row every input may have one."""
        return _ANY_INPUT if self.row is None else self.row.gradient(position)

    def flows_from(self, output: int) -> bool:
        """True if the rule covers a gradient of this output; most rows of the table cover output 0 alone."""
        return self.row is None or self.row.flows is None or output in self.row.flows

    def covering(self, outputs: Iterable[int]) -> Rule:
        """The rule for gradients of these outputs: the node's own `saves` where the row does not cover them all."""
        if self.saves is None or all(map(self.flows_from, outputs)):
            return self
        return replace(self, row=None)

    def saved(self, op: Op, positions: list[int]) -> list[str]:
        """Values the backward of `op` reads to make the gradients of these inputs, each once."""
        refs = (self.saves or ()) if self.row is None else _read_by(self.row, positions)
        found: dict[str, None] = {}
        for side, k in refs:
            values = op.reads if side == "in" else tuple(tensor.name for tensor in op.outputs)
            if k >= len(values):
                if self.row is not None and self.row.lacks((side, k)):
                    continue
                has = f"it has {len(values)} {side}puts"
                raise GraphError(f"node {op.name!r}: its backward reads {side}put {k}, but {has}")
            found[values[k]] = None
        return list(found)

    def check(self, op: Op, outputs: Iterable[int]) -> None:
        """Refuse to guess a gradient.

        Raises:
            GraphError: no rule, unknown input positions, or a gradient of an output that the rule does not cover.
        """
        if self.saves is None and self.row is None:
            if op.op is not None:
                operator(op.op, node=op.name, outputs=len(op.outputs))
            reason = "so what its backward reads is unknown"
            raise GraphError(f"node {op.name!r} has neither an op type nor saves=, {reason}")
        if (self.saves is None or any(side == "in" for side, _ in self.saves)) and not self.ordered:
            raise GraphError(f"node {op.name!r} has {len(op.reads)} reads: its in-edges need `at`, the input positions")
        most = None if self.row is None else self.row.inputs
        if most is not None and len(op.reads) > most:
            raise GraphError(f"node {op.name!r}: the rule of {op.op!r} is for at most {most} inputs; give saves=")
        for k in outputs:
            if not self.flows_from(k):
                covered = f"the rule of {op.op!r} is for output 0; give saves="
                raise GraphError(f"node {op.name!r}: the loss depends on output {k}, but {covered}")


@final
class Forward:
    """A forward DAG, checked, with what a trainable resident reaches in it.

    Args:
        graph: the DAG people wrote.
        trainable: names of residents, or None for all float parameters.
    Raises:
        GraphError: see `differentiate`.
    """

    def __init__(self, graph: nx.DiGraph, trainable: Iterable[str] | None) -> None:
        self.graph: Final = graph
        self.program: Final = lower(graph)
        self.keys: Final[Mapping[str, Hashable]] = {str(node): node for node in graph}
        for op in self.program.ops:
            if op.phase in ("backward", "update"):
                raise GraphError(f"node {op.name!r} has phase {op.phase!r}: the graph already is a training step")
        self.device: Final[Device] = device(graph.graph.get("device", "a100"))
        self.rules: Final = {op.name: self._rule(op) for op in self.program.ops if not op.resident}
        self.trainable: Final = self._trainable(trainable)
        self.reached: Final = self._reached()

    def given(self, op: Op) -> Mapping[str, Any]:
        """Attributes of the node as people wrote them."""
        return self.graph.nodes[self.keys[op.name]]  # type: ignore[no-any-return]

    def value(self, name: str) -> Value:
        """The node and output behind the name of a value."""
        op = self.program.producer[name]
        return Value(self.keys[op.name], 0 if len(op.outputs) == 1 else int(name[len(op.name) + 1 :]))

    def _rule(self, op: Op) -> Rule:
        key = self.keys[op.name]
        edges = (edge for _, _, edge in self.graph.in_edges(key, data=True) if edge.get("reads") != ())
        ordered = len(op.reads) < 2 or all(edge.get("at") is not None for edge in edges)
        given = self.given(op).get("saves")
        saves = None if given is None else _refs(op, given)
        row = find_row(op.op)
        if row is None or len(op.outputs) > row.outputs:
            return Rule(None, saves, ordered)
        row = operator(op.op or "", node=op.name, outputs=len(op.outputs))
        if saves is not None and not _says_the_same(saves, row, op, ordered=ordered):
            row = None
        return Rule(row, saves, ordered)

    def _trainable(self, names: Iterable[str] | None) -> frozenset[str]:
        residents = {op.name: op for op in self.program.ops if op.resident}
        if names is None:
            parameters = [op for op in residents.values() if op.kind == "parameter" and len(op.outputs) == 1]
            return frozenset(op.name for op in parameters if is_float(op.outputs[0].dtype))
        if isinstance(names, str):
            raise GraphError(f"trainable must be a list of names, not the string {names!r}")
        chosen = frozenset(str(name) for name in names)
        for name in sorted(chosen):
            if name not in residents:
                raise GraphError(f"trainable {name!r} is no input, parameter or state of the graph")
            outputs = residents[name].outputs
            if len(outputs) != 1:
                raise GraphError(f"trainable {name!r} has {len(outputs)} outputs; a trainable resident has one")
            if not is_float(outputs[0].dtype):
                raise GraphError(f"trainable {name!r} has dtype {outputs[0].dtype}: it has no gradient")
        return chosen

    def _reached(self) -> frozenset[str]:
        """Values that depend on a trainable resident, which may need a gradient."""
        reached: set[str] = set()
        for op in self.program.ops:
            if op.resident:
                found = op.name in self.trainable
            else:
                rule = self.rules[op.name]
                found = any(value in reached and rule.gradient(i) is not None for i, value in enumerate(op.reads))
            if found:
                reached.update(tensor.name for tensor in op.outputs if is_float(tensor.dtype))
        return frozenset(reached)

    def find_loss(self, loss: str | None) -> Tensor | None:
        """The loss, or None where the graph has none and a generic one must be added.

        Raises:
            GraphError: unknown or ambiguous, no float of one element, or nothing trainable reaches it.
        """
        if loss is not None:
            if loss not in self.program.tensors:
                form = "an output of a node with several is named 'node:k'"
                raise GraphError(f"loss {loss!r} is no value of the graph; {form}")
            tensor = self.program.tensors[loss]
        elif any(op.phase == "loss" and not op.resident for op in self.program.ops):
            tensor = self._only_loss()
        else:
            return None
        if self.program.producer[tensor.name].resident:
            raise GraphError(f"loss {tensor.name!r} is a resident: nothing computes it")
        if not is_float(tensor.dtype):
            dtype = f"{tensor.dtype}, which has no gradient"
            raise GraphError(f"loss {tensor.name!r} has dtype {dtype}; name a float value")
        if tensor.shape is not None and math.prod(tensor.shape) != 1:
            raise GraphError(f"loss {tensor.name!r} has shape {tensor.shape}; name a value of one element")
        if tensor.name not in self.reached:
            raise GraphError(f"no trainable resident reaches the loss {tensor.name!r}")
        return tensor

    def _only_loss(self) -> Tensor:
        losses = [op for op in self.program.ops if op.phase == "loss" and not op.resident]
        unread = [tensor for op in losses for tensor in op.outputs if not self.program.readers[tensor.name]]
        # A loss op has unread log-probabilities too: the loss is the output known to have one element.
        scalars = [tensor for tensor in unread if tensor.shape is not None and math.prod(tensor.shape) == 1]
        found = scalars if len(scalars) == 1 else unread
        if len(found) != 1:
            names = ", ".join(tensor.name for tensor in found) or "none"
            count = f"found {len(found)} ({names})"
            raise GraphError(f"expected one unread output of phase 'loss', {count}; give loss=, its name")
        return found[0]

    def with_generic_loss(self) -> tuple[nx.DiGraph, str]:
        """The DAG with a loss: an op that reads all unread float outputs reached, and reads them again backward.

        Raises:
            GraphError: there is no such output.
        """
        chosen = self.graph.graph.get("loss_reads")  # set by an importer, which knows the outputs of its file
        read = [
            tensor
            for op in self.program.ops
            if not op.resident and self.given(op).get("output") is not False
            for k, tensor in enumerate(op.outputs)
            if (chosen is None or (self.keys[op.name], k) in chosen)
            and not self.program.readers[tensor.name]
            and tensor.name in self.reached
            and self.rules[op.name].flows_from(k)
        ]
        if not read:
            reached = "no trainable resident reaches an unread float output"
            remedy = "without weights it is a graph for inference (training=False, --inference)"
            raise GraphError(f"{reached}, so there is nothing to differentiate; {remedy}")
        work: dict[str, Any] = {"cost": 1.0}
        if all(tensor.shape is not None for tensor in read):
            flops = sum(math.prod(tensor.shape or ()) for tensor in read)
            moved = sum(tensor.nbytes for tensor in read) + 4
            work = {"flops": flops, "cost": roofline_seconds(self.device, flops=flops, bytes_moved=moved)}
        name = "loss"
        while name in self.keys:
            name += "_"
        graph = nx.MultiDiGraph(self.graph) if self.graph.is_multigraph() else nx.DiGraph(self.graph)
        for position, op in enumerate(self.program.ops):
            graph.nodes[self.keys[op.name]]["position"] = position
        loss: dict[str, Any] = {"op": "Loss", "phase": "loss", "position": len(self.program.ops), **work}
        loss.update(nbytes=4, shape=(), dtype="float32", saves=tuple(("in", i) for i in range(len(read))))
        graph.add_node(name, **loss)
        wires: dict[Hashable, list[tuple[int, int]]] = {}
        for i, tensor in enumerate(read):
            value = self.value(tensor.name)
            wires.setdefault(value.node, []).append((value.output, i))
        for node, pairs in wires.items():
            graph.add_edge(node, name, reads=tuple(output for output, _ in pairs), at=tuple(i for _, i in pairs))
        return graph, name

    def needed(self, loss: Tensor) -> list[Op]:
        """Ops and residents that the loss, an explicit output, or an effect needs, in program order."""
        wanted = {self.program.producer[loss.name].name}
        for op in reversed(self.program.ops):
            kept = self.given(op).get("output") not in (None, False, (), [])
            effect = not op.outputs or any(self.program.on_resident(op.reads[i]) for i, _ in op.updates)
            if op.name in wanted or kept or effect:
                wanted.add(op.name)
                wanted.update(self.program.producer[value].name for value in op.reads)
        return [op for op in self.program.ops if op.name in wanted]


def _read_by(row: Operator, positions: Iterable[int]) -> tuple[Ref, ...]:
    """What the gradients of the inputs at these positions read by the operator table."""
    gradients = ((i, row.gradient(i)) for i in positions)
    return tuple(ref for i, gradient in gradients if gradient is not None for ref in gradient.refs(i))


def _says_the_same(saves: tuple[Ref, ...], row: Operator, op: Op, *, ordered: bool) -> bool:
    """True if `saves` names what the row reads for all inputs of a node, so that the row, which knows more, holds.

    A row without gradients never does: whoever gives such a node `saves` wants gradients of its inputs. Neither does
    one for fewer inputs, nor one that tells inputs apart of which the positions are unknown.
    """
    positions = range(len(op.reads))
    gradients = {row.gradient(i) for i in positions}
    if gradients <= {None} or (row.inputs is not None and len(op.reads) > row.inputs):
        return False
    has = {"in": len(op.reads), "out": len(op.outputs)}
    read = {ref for ref in _read_by(row, positions) if ref[1] < has[ref[0]] or not row.lacks(ref)}
    return read == set(saves) and (ordered or len(gradients) == 1)


def _refs(op: Op, saves: Any) -> tuple[Ref, ...]:
    """`saves` in normal form."""
    accepted = "pairs ('in', input position) or ('out', output position)"
    if not isinstance(saves, (list, tuple)):
        raise GraphError(f"node {op.name!r}: saves is {saves!r}, expected {accepted}")
    refs: list[Ref] = []
    for ref in saves:
        well_formed = isinstance(ref, (list, tuple)) and len(ref) == 2 and ref[0] in ("in", "out")
        if not well_formed or not isinstance(ref[1], int) or isinstance(ref[1], bool) or ref[1] < 0:
            raise GraphError(f"node {op.name!r}: saves has {ref!r}, expected {accepted}")
        count = len(op.reads) if ref[0] == "in" else len(op.outputs)
        if ref[1] >= count:
            raise GraphError(f"node {op.name!r}: saves names {ref[0]}put {ref[1]}, but it has {count} {ref[0]}puts")
        refs.append((ref[0], ref[1]))
    return tuple(refs)
