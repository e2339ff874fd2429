"""From a forward DAG to the whole training step: forward, loss, backward, update.

What each backward op reads comes from the operator table, or from `saves` on the node, and nothing else is kept for it.
Order is the reverse of the forward program; a planner may reorder.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Final, Optional, final

import networkx as nx

from planner.errors import GraphError
from planner.graph import Op, Tensor
from planner.lowering.assembly import Assembly, Value
from planner.lowering.devices import Device, roofline_seconds
from planner.lowering.forward import Forward, Rule
from planner.lowering.operators.lookup import Gradient
from planner.training_step import OPTIMIZERS


def check_optimizer(optimizer: str | None) -> None:
    """Refuse an unknown optimizer before any work is done.

    Raises:
        GraphError: lists those there are.
    """
    if optimizer is not None and optimizer not in OPTIMIZERS:
        known = ", ".join(OPTIMIZERS)
        raise GraphError(f"unknown optimizer {optimizer!r}; known: {known}, or None for gradients as outputs")


def differentiate(
    forward: nx.DiGraph,
    *,
    loss: str | None = None,
    trainable: Iterable[str] | None = None,
    optimizer: str | None = "sgd",
) -> nx.DiGraph:
    """The training step of a forward DAG: loss, backward and update ops added, dead ops pruned.

    Each op `X` on a path from a trainable resident to the loss gets one op `X.bwd` with an output per gradient, reading
    only what those need. A gradient that passes unchanged makes no op. Gradients of a value read more than once are
    summed by a left fold of adds that may work in place. One barrier makes all updates wait for everything else.

    Costs are roofline seconds on `forward.graph["device"]` (default "a100") where op type, FLOPs and shapes are known.
    Elsewhere a backward op costs the forward op times the gradients made; adds, updates and the loss cost 1.0.

    Args:
        forward: the DAG; nodes and their attributes are kept. Without `op` a node needs `saves`, and `at` on its edges
            if it has several reads and `saves` names inputs. A missing dtype counts as float.
        loss: name of the value that is the loss, of one element. Default: the attribute "loss" of the graph, else the
            one unread output of phase "loss";
            without that phase an op `loss` is added that reads all unread float outputs a trainable resident reaches.
        trainable: names of residents that get gradients. Default: all float parameters. For inputs and states
            the gradient becomes an output and nothing is updated.
        optimizer: "sgd" (no state), "momentum", "adagrad", "rmsprop" (one), "adam", "adamw" (two), or None: parameter
            gradients become outputs.
    Returns:
        A DAG whose `graph["pruned"]` names what no loss, explicit output or update of a resident needs.
    Raises:
        GraphError: names the node: no rule for its op, a cycle, a graph that has a backward pass, a loss that is not
            one float, an unknown name, or no trainable resident that reaches the loss.

    >>> g = nx.DiGraph()
    >>> g.add_node("w", nbytes=4, kind="parameter")
    >>> g.add_node("a", nbytes=4, saves=(("in", 0),))
    >>> g.add_edge("w", "a")
    >>> list(differentiate(g))
    ['w', 'a', 'loss', 'loss.bwd', 'a.bwd', 'barrier', 'w.update']
    """
    check_optimizer(optimizer)
    names = trainable if trainable is None or isinstance(trainable, str) else tuple(trainable)
    read = Forward(forward, names)
    end = read.find_loss(loss or forward.graph.get("loss"))
    if end is None:
        graph, name = read.with_generic_loss()
        read = Forward(graph, names)
        end = read.program.tensors[name]
    step = _Step(read, end)
    step.write_forward()
    step.write_backward()
    step.write_updates(optimizer)
    return step.draft.graph


@final
class _Step:
    """Writes the training step; `differentiate` calls each `write_` method once, in the order they stand here."""

    def __init__(self, forward: Forward, loss: Tensor) -> None:
        self.forward: Final = forward
        self.loss: Final = loss
        self.device: Final[Device] = forward.device
        self.tensors: Final = forward.program.tensors
        self.kept: Final = forward.needed(loss)
        self.draft: Final = Assembly(**{"device": forward.device.name, **forward.graph.graph})
        # The gradient so far of each forward value; None stands for the gradient of the loss, the constant 1.
        self.gradients: Final[dict[str, Optional[Value]]] = {loss.name: None}
        self.terms: Final[dict[str, int]] = {}

    def write_forward(self) -> None:
        """Copy the ops that are needed and list the others as pruned."""
        forward, draft = self.forward, self.draft
        names = {op.name for op in self.kept}
        for op in self.kept:
            attributes = dict(forward.given(op))
            if not op.resident and op.phase is None:
                attributes["phase"] = "forward"
            after = [forward.keys[name] for name in op.after if name in names]
            draft.add(forward.keys[op.name], [forward.value(value) for value in op.reads], after=after, **attributes)
        pruned = (op.name for op in forward.program.ops if op.name not in names)
        draft.graph.graph["pruned"] = (*draft.graph.graph.get("pruned", ()), *pruned)
        draft.mark_output(forward.value(self.loss.name))

    def write_backward(self) -> None:
        """One backward op a forward op, last first, each followed by the adds its gradients need."""
        for op in reversed(self.kept):
            if op.resident:
                continue
            incoming = [k for k, tensor in enumerate(op.outputs) if tensor.name in self.gradients]
            rule = self.forward.rules[op.name].covering(incoming)
            targets = [i for i, v in enumerate(op.reads) if v in self.forward.reached and rule.gradient(i) is not None]
            if incoming and targets:
                rule.check(op, incoming)
                self._write_backward_of(op, rule, [op.outputs[k] for k in incoming], targets)

    def _write_backward_of(self, op: Op, rule: Rule, incoming: list[Tensor], targets: list[int]) -> None:
        gradients = {i: gradient for i in targets if (gradient := rule.gradient(i)) is not None}
        like = incoming[0]
        passed = [i for i, g in gradients.items() if g.how == "pass" and _same_type(self.tensors[op.reads[i]], like)]
        made = [i for i in targets if i not in passed]
        # The gradient of the loss is a constant; only an op that passes it on unchanged needs it as a value.
        explicit = bool(passed) or any(gradients[i].how == "view" for i in made)
        found = [self._gradient_of(tensor, op, explicit=explicit) for tensor in incoming]
        given = [value for value in found if value is not None]
        node = self._write_op(op, rule, {i: gradients[i] for i in made}, given, incoming) if made else None
        for i in targets:
            self._contribute(op.reads[i], given[0] if i in passed else Value(node, made.index(i)))

    def _gradient_of(self, tensor: Tensor, op: Op, *, explicit: bool) -> Value | None:
        value = self.gradients[tensor.name]
        if value is None and explicit:
            name = self.draft.unique(f"{op.name}.seed")
            value = self.draft.add(name, op="Ones", flops=0, cost=0.0, phase="backward", **_types([tensor]))
            self.gradients[tensor.name] = value
        return value

    def _write_op(
        self, op: Op, rule: Rule, made: dict[int, Gradient], given: list[Value], incoming: list[Tensor]
    ) -> Hashable:
        """Add `X.bwd`, whose outputs are the gradients made; returns its name."""
        saved = rule.saved(op, list(made))
        targets = [self.tensors[op.reads[i]] for i in made]
        attributes: dict[str, Any] = {"phase": "backward", **_types(targets)}
        attributes.update({"op": f"{op.op}Grad"} if op.op else {}, **({"module": op.module} if op.module else {}))
        if [gradient.how for gradient in made.values()] == ["view"]:
            attributes.update(view=((0, 0),), flops=0, cost=0.0)
        else:
            touched = [*incoming, *(self.tensors[name] for name in saved), *targets]
            attributes.update(self._backward_work(op, list(made.values()), touched))
            lone = rule.row is not None and rule.row.inplace_backward and len(made) == 1
            if lone and given and _same_type(targets[0], incoming[0]):
                attributes["inplace"] = ((0, 0),)
        reads = [*given, *(self.forward.value(name) for name in saved)]
        return self.draft.add(self.draft.unique(f"{op.name}.bwd"), reads, **attributes).node

    def _backward_work(self, op: Op, gradients: list[Gradient], touched: list[Tensor]) -> dict[str, Any]:
        """FLOPs and seconds of a backward op; `touched` starts with the gradient of the output."""
        if op.op is None or op.flops is None or any(tensor.shape is None for tensor in touched):
            return {"cost": op.cost * len(gradients)}
        flops = sum(_elements(touched[0]) if gradient.flops == "elements" else op.flops for gradient in gradients)
        return self._work(touched[0], flops=int(flops), moved=sum(tensor.nbytes for tensor in touched))

    def _work(self, like: Tensor, *, flops: int, moved: int) -> dict[str, Any]:
        """FLOPs and seconds of an op on values like this one; the schema's default cost where its shape is unknown."""
        if like.shape is None:
            return {"cost": 1.0}
        seconds = roofline_seconds(self.device, flops=flops, bytes_moved=moved, dtype=like.dtype or "float32")
        return {"flops": flops, "cost": seconds}

    def _contribute(self, name: str, value: Value) -> None:
        """Add one term to the gradient of a forward value."""
        before = self.gradients.get(name)
        if before is not None:
            tensor = self.tensors[name]
            self.terms[name] = self.terms.get(name, 1) + 1
            node = self.draft.unique(f"{name.replace(':', '.')}.grad{self.terms[name]}")
            fixed: dict[str, Any] = {"op": "Add", "phase": "backward", "inplace": ((0, 0), (1, 0))}
            work = self._work(tensor, flops=_elements(tensor), moved=3 * tensor.nbytes)
            value = self.draft.add(node, [before, value], **fixed, **_types([tensor]), **work)
        self.gradients[name] = value

    def write_updates(self, optimizer: str | None) -> None:
        """Write the optimizer step behind everything else, or without an optimizer mark the gradients as outputs."""
        draft = self.draft
        updated: list[tuple[Op, Value]] = []
        for op in self.kept:
            gradient = self.gradients.get(op.name) if op.name in self.forward.trainable else None
            if gradient is None:
                continue
            if optimizer is None or op.kind != "parameter":
                draft.mark_output(gradient)
            else:
                updated.append((op, gradient))
        if optimizer is None or not updated:
            return
        states, flops = OPTIMIZERS[optimizer]
        # Every op leads to one of these sinks: one barrier behind them puts all updates after all ops with few edges.
        kinds = draft.graph.nodes(data="kind")
        sinks = [node for node, kind in kinds if kind in (None, "op") and not draft.graph.out_degree(node)]
        held = [[self._write_state(op, state) for state in states] for op, _ in updated]
        nothing: dict[str, Any] = {"nbytes": (), "flops": 0, "cost": 0.0}
        barrier = draft.add(draft.unique("barrier"), after=sinks, op="Barrier", phase="update", **nothing).node
        for (op, gradient), own in zip(updated, held, strict=True):
            tensor = op.outputs[0]
            reads = [self.forward.value(op.name), gradient, *own]
            pairs = ((0, 0), *((2 + k, 1 + k) for k in range(len(own))))
            work = self._work(tensor, flops=flops * _elements(tensor), moved=(3 + 2 * len(own)) * tensor.nbytes)
            work.update(op="Update", phase="update", recomputable=False, updates=pairs)
            name = draft.unique(f"{op.name}.update")
            draft.add(name, reads, after=[barrier], **work, **_types([tensor] * (1 + len(own))))

    def _write_state(self, op: Op, state: str) -> Value:
        return self.draft.add(self.draft.unique(f"{op.name}.{state}"), kind="state", cost=0.0, **_types(op.outputs))


def _elements(tensor: Tensor) -> int:
    return math.prod(tensor.shape or ())


def _same_type(a: Tensor, b: Tensor) -> bool:
    """Equal shape and dtype; equal bytes where they are not known."""
    known = ((a.shape, b.shape), (a.dtype, b.dtype))
    return a.nbytes == b.nbytes and all(None in pair or pair[0] == pair[1] for pair in known)


def _types(tensors: Sequence[Tensor]) -> dict[str, Any]:
    """`nbytes`, and `shape` and `dtype` where known, of a node whose outputs are like these tensors."""
    columns = {key: [getattr(tensor, key) for tensor in tensors] for key in ("nbytes", "shape", "dtype")}
    known = {key: column for key, column in columns.items() if None not in column}
    return {key: column[0] if len(column) == 1 else tuple(column) for key, column in known.items()}
