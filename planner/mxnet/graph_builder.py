"""The graph that MXNet 1.5.1 plans for a network, by its own gradient pass and execution order.

Gradients are appended in reverse topological order and summed as `AggregateGradient` does. The program is the
depth-first post-order from the heads, then from the gradients of the arguments. MXNet plans in one pass over this
program, so both orders decide the bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, final

import networkx as nx

from planner.errors import GraphError
from planner.lowering.assembly import Assembly, Value
from planner.lowering.devices import device as device_named
from planner.lowering.operators.lookup import TensorType, output_types
from planner.mxnet.symbols import DECLARATIONS, Work, backward_work, forward_work

SUM_CAP: Final = 8  # MXNET_EXEC_INPLACE_GRAD_SUM_CAP: from so many terms on, a chain of adds instead of one sum
_NO_WORK: Final = Work(0, 0.0)


@final
class Node:
    """A symbol: a variable, an operator, or an operator of the backward pass. Compared by identity.

    Args:
        op: the name in the program; empty for a variable.
        kind: of a variable: "input", "parameter", or "state" for an auxiliary state, which gets no gradient.
        after: nodes that must have run before: control dependencies, and inputs whose value the op ignores.
        rule: key of `DECLARATIONS`, for a forward operator.
    """

    def __init__(
        self,
        name: str,
        op: str,
        inputs: Sequence[Entry],
        types: Sequence[TensorType],
        *,
        kind: str = "op",
        after: Iterable[Node] = (),
        inplace: tuple[tuple[int, int, bool], ...] = (),
        work: Work = _NO_WORK,
    ) -> None:
        self.name, self.op, self.inputs, self.types, self.kind = name, op, tuple(inputs), tuple(types), kind
        self.after, self.inplace, self.work, self.phase = list(after), inplace, work, "backward"
        # Set by `Network.apply` for operators of the forward pass.
        self.rule = ""
        self.kernel: tuple[int, ...] = ()
        self.stage: bool | str | None = None


class Entry(NamedTuple):
    """One output of a node."""

    node: Node
    output: int = 0

    @property
    def type(self) -> TensorType:
        """Shape and dtype."""
        return self.node.types[self.output]


@final
class Network:
    """A network under construction, float32.

    Args:
        name: of the graph.
        device: costs are seconds on this device.
    Raises:
        GraphError: unknown device.

    >>> net = Network("tiny", device="a100")
    >>> data = net.variable("data", (2, 3), kind="input")
    >>> weight = net.variable("w", (4, 3), kind="parameter")
    >>> out = net.apply("FullyConnected", "fc", [data, weight], [(2, 4)])
    >>> [node for node in net.training_step([out]) if not node.endswith("_grad")]
    ['data', 'w', 'fc', 'fc_id', 'fc_backward']
    """

    def __init__(self, name: str, *, device: str) -> None:
        device_named(device)
        self.name: Final = name
        self.device: Final = device

    def variable(self, name: str, shape: tuple[int, ...], *, kind: str) -> Entry:
        """An array that the caller binds: "input", "parameter", or "state" for an auxiliary state."""
        return Entry(Node(name, "", (), (TensorType(shape),), kind=kind))

    def apply(
        self,
        rule: str,
        name: str,
        inputs: Sequence[Entry],
        shapes: Sequence[tuple[int, ...]],
        *,
        kernel: tuple[int, ...] = (),
        stage: bool | str | None = None,
    ) -> Entry:
        """Add an operator and return its output 0.

        Args:
            rule: key of `DECLARATIONS`.
            shapes: of its outputs.
            kernel: window of a pooling.
            stage: the original's `mirror_stage`.
        """
        types = tuple(TensorType(shape) for shape in shapes)
        work = forward_work(rule, tuple(entry.type for entry in inputs), types, kernel, self.device)
        made = Node(name, rule.partition(".")[0], inputs, types, inplace=DECLARATIONS[rule].inplace, work=work)
        made.rule, made.kernel, made.stage, made.phase = rule, kernel, stage, "forward"
        return Entry(made)

    def training_step(self, heads: Sequence[Entry]) -> nx.DiGraph:
        """The graph MXNet plans for `grad_req="write"` of every argument, data and labels included.

        Args:
            heads: the outputs of the network.
        Returns:
            A DAG in program order. MXNet writes the gradient of an argument into an array of the caller. Here that is a
            new version of the resident `<argument>_grad` of kind "state", so scope "activations" does not count it.
        """
        forward = _post_order(entry.node for entry in heads)
        arguments = [Entry(node) for node in forward if node.kind in ("input", "parameter")]
        # MXNet would copy a gradient that two arguments share; none do in these networks.
        written = dict(zip(_Gradients(self.device, forward, heads).of(arguments), arguments, strict=True))
        draft, kept = Assembly(name=self.name, device=self.device), frozenset(heads)
        for node in _post_order(entry.node for entry in [*heads, *written]):
            _write(draft, node, heads=kept, written=written)
        return draft.graph


@final
class _Gradients:
    """The gradient pass of nnvm, with `AggregateGradient` of MXNet's graph executor."""

    def __init__(self, device: str, forward: Sequence[Node], heads: Sequence[Entry]) -> None:
        self.device: Final = device
        self.terms: Final[dict[Entry, list[Entry]]] = {head: [self._given(head)] for head in heads}
        for node in reversed(forward):
            if node.op:
                self._through(node)

    def of(self, arguments: Sequence[Entry]) -> list[Entry]:
        """The summed gradients, in this order.

        Raises:
            GraphError: an argument that no head depends on.
        """
        found = []
        for argument in arguments:
            total = self._sum(argument)
            if total is None:
                raise GraphError(f"no gradient reaches {argument.node.name!r}")
            found.append(total)
        return found

    def _given(self, head: Entry) -> Entry:
        """The gradient the caller gives for a head, through the op that MXNet adds as a hint for its shape."""
        variable = Entry(Node(f"{head.node.name}_head_grad", "", (), (head.type,), kind="input"))
        return self._add(f"{head.node.name}_id", "_identity_with_attr_like_rhs", [variable], after=[head.node])

    def _add(self, name: str, op: str, inputs: Sequence[Entry], *, after: Iterable[Node] = ()) -> Entry:
        """An operator of the gradient pass, of one output like its first input."""
        types = tuple(entry.type for entry in inputs)
        work = forward_work(op, types, types[:1], (), self.device)
        return Entry(Node(name, op, inputs, types[:1], after=after, inplace=DECLARATIONS[op].inplace, work=work))

    def _through(self, node: Node) -> None:
        """Give the inputs of a forward operator one more term each."""
        declared = DECLARATIONS[node.rule]
        gradients = [self._sum(Entry(node, k)) for k in range(len(node.types))]
        if declared.backward is None or not any(gradients):
            return
        if declared.backward == "pass":
            for of in node.inputs:
                self._append(of, gradients[0])
            return
        outputs = [Entry(node, k) for k in range(len(node.types))]
        sources = {"grad": gradients, "in": node.inputs, "out": outputs}
        reads = [entry for side, k in declared.reads if (entry := sources[side][k]) is not None]
        made = node.inputs[: declared.gradients]
        types = tuple(entry.type for entry in made)
        inputs, read = (tuple(entry.type for entry in entries) for entries in (node.inputs, reads))
        work = backward_work(node.rule, inputs, node.types, node.kernel, read, types, self.device)
        # In nnvm each gradient node waits for its forward node, so a plan runs the copy of that node too.
        name, pairs = f"{node.name}_backward", declared.inplace_backward
        backward = Node(name, declared.backward, reads, types, after=[node], inplace=pairs, work=work)
        for k, of in enumerate(made):
            self._append(of, Entry(backward, k))

    def _append(self, entry: Entry, term: Entry | None) -> None:
        if term is not None:
            self.terms.setdefault(entry, []).append(term)

    def _sum(self, entry: Entry) -> Entry | None:
        """The sum of all terms: one n-ary sum, or from `SUM_CAP` terms on a chain of adds in their order."""
        terms = self.terms.get(entry, [])
        if len(terms) < 2:
            return terms[0] if terms else None
        name = f"{entry.node.name}{f'_{entry.output}' if len(entry.node.types) > 1 else ''}_sum"
        if len(terms) < SUM_CAP:
            return self._add(name, "add_n", terms)
        total = terms[0]
        for k in range(1, len(terms)):
            if terms[k - 1].node is not terms[k].node:
                terms[k].node.after.append(total.node)
            total = self._add(f"{name}_{k}", "_grad_add", [total, terms[k]])
        return self._add(f"{name}_final", "_copy", [total])


def _post_order(heads: Iterable[Node]) -> list[Node]:
    """The order of nnvm's `DFSVisit`: each node after its inputs, first to last, then its control dependencies."""
    seen: set[Node] = set()
    order: list[Node] = []
    for head in heads:
        if head in seen:
            continue
        seen.add(head)
        stack = [(head, iter([*(entry.node for entry in head.inputs), *head.after]))]
        while stack:
            node, rest = stack[-1]
            for before in rest:
                if before not in seen:
                    seen.add(before)
                    stack.append((before, iter([*(entry.node for entry in before.inputs), *before.after])))
                    break
            else:
                order.append(node)
                stack.pop()
    return order


def _write(draft: Assembly, node: Node, *, heads: frozenset[Entry], written: dict[Entry, Entry]) -> None:
    """Add a node to the DAG, after the caller's arrays into which it writes gradients of arguments."""
    if not node.op:
        draft.resident(node.name, node.types[0], kind=node.kind)
        return
    reads = [Value(entry.node.name, entry.output) for entry in node.inputs]
    external: dict[int, int] = {}  # output -> input position of the array it is written into
    kept = []
    for k, entry in enumerate(Entry(node, k) for k in range(len(node.types))):
        if entry in written:
            external[k] = len(reads)
            reads.append(draft.resident(f"{written[entry].node.name}_grad", entry.type, kind="state"))
        if entry in written or entry in heads:
            kept.append(k)
    work = {"flops": node.work.flops, "cost": node.work.seconds}
    found: dict[str, Any] = {"op": node.op, **output_types(node.types), **work}
    # MXNet does not take a pair whose output is the caller's array.
    inplace = tuple(pair for pair in node.inplace if pair[1] not in external)
    updates = tuple((i, k) for k, i in external.items())
    further = {"inplace": inplace, "updates": updates, "output": tuple(kept), "stage": node.stage}
    found.update((key, value) for key, value in further.items() if value)
    draft.add(node.name, reads, after=[before.name for before in node.after], phase=node.phase, **found)
