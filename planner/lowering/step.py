"""The training step as it will run: forward, backward and update, for all micro-batches.

A graph in, a program out: what a `TrainingStep` changes is written as ops, so that the judge and every search see it.
What a device does in one kernel launch is one op.
"""

from __future__ import annotations

from typing import Final, final

import networkx as nx
from msgspec.structs import replace

from planner.errors import GraphError
from planner.graph import Graph, Op, Tensor
from planner.lowering.dag import as_dag
from planner.lowering.differentiate import differentiate
from planner.lowering.im2col import unfolded
from planner.lowering.operators.rows import DTYPE_BYTES, is_float
from planner.lowering.schema import lower
from planner.lowering.targets import Target, targets_of
from planner.lowering.trainable import trained_by
from planner.training_step import OPTIMIZERS, TrainingStep


def with_step(graph: nx.DiGraph | Graph, step: TrainingStep | None) -> Graph:
    """The program that runs in every iteration but perhaps the first; without a step the graph as it is.

    Raises:
        GraphError: the graph hides the gradients or updates that the step speaks of, or cannot be differentiated.

    >>> from planner import zoo
    >>> with_step(zoo.mlp([4, 2], batch=2), TrainingStep("adam", update="fused")).ops[-1].name
    'update'
    """
    return lower(graph) if step is None else iteration(differentiated(graph, step), step)


def stepped(graph: nx.DiGraph, step: TrainingStep, *, optimizer: str | None = "sgd") -> nx.DiGraph:
    """The DAG of a forward DAG with a step.

    Args:
        optimizer: for a step that names none; None leaves gradients as outputs.
    Raises:
        GraphError: see `with_step`.
    """
    own = step if step.optimizer is not None else replace(step, optimizer=optimizer or "none")
    return as_dag(with_step(graph, own), **graph.graph)


def differentiated(graph: nx.DiGraph | Graph, step: TrainingStep) -> Graph:
    """The program of a graph with its backward pass and an update of each parameter.

    Raises:
        GraphError: a forward program that is no DAG of the schema, or an option that only a forward graph can take.
    """
    backward = next((name for name, phase in _phases(graph) if phase in ("backward", "update")), None)
    if backward is not None:
        for option, given in (("trainable", step.trainable), ("lowering", step.lowering)):
            if given:
                fix = f"{option} is for a forward graph, as a model with training=False, or give step= to the zoo"
                raise GraphError(f"op {backward!r} shows that the graph is differentiated already; {fix}")
        if step.optimizer == "none" and any(target.op is not None for target in targets_of(lower(graph))):
            raise GraphError(f"op {backward!r} shows that the graph is a step already; optimizer 'none' cannot undo it")
        return lower(graph)
    if isinstance(graph, Graph):
        fix = "give the networkx DAG, an ONNX file or a training step"
        raise GraphError(f"graph {graph.name!r} is a forward program, of which the step cannot be made; {fix}")
    trainable = trained_by(graph, step.trainable) if step.trainable else None
    optimizer = None if step.optimizer == "none" else step.optimizer or "sgd"
    program = lower(differentiate(graph, trainable=trainable, optimizer=optimizer))
    return unfolded(program) if step.lowering else program


def _phases(graph: nx.DiGraph | Graph) -> list[tuple[str, str | None]]:
    if isinstance(graph, Graph):
        return [(op.name, op.phase) for op in graph.ops]
    return [(str(node), phase) for node, phase in graph.nodes(data="phase")]


def iteration(graph: Graph, step: TrainingStep, *, first: bool = False) -> Graph:
    """The program of one whole iteration of a differentiated program, or that program where the step changes nothing.

    Args:
        first: optimizer states and gradient buffers do not exist before it.
    Raises:
        GraphError: the graph has no backward pass or update that the step speaks of.
    """
    if step.optimizer == "none":
        step = replace(step, optimizer=None)
    first = first and not step.resumed
    if not step.rewrites:
        return _without_states(graph) if first else graph
    targets = targets_of(graph)
    updating = bool(step.optimizer or step.update or step.master_weights or step.state_dtype)
    if updating and (not targets or targets[0].op is None):
        what = "its gradients are outputs; leave the optimizer out" if targets else _why_no_update(graph)
        raise GraphError(f"graph {graph.name!r} updates no parameter: {what}")
    if not targets:
        return graph
    names = [target.op.name for target in targets if target.op is not None]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        reason = "only the step as it is can be planned"
        raise GraphError(f"op {twice!r} updates by several gradients or parameters at once: {reason}")
    return _Writer(graph, targets, step, first=first).written()


def _why_no_update(graph: Graph) -> str:
    kept = any(graph.on_resident(op.reads[i]) for op in graph.ops if op.phase == "backward" for i, _ in op.updates)
    if kept:
        return "its backward pass adds to gradient buffers, and what updates by them is not in it; leave the update out"
    return "give a training step, or a forward DAG"


def _without_states(graph: Graph) -> Graph:
    """The first iteration of the graph as it is: what only updates use is made just before the first of them."""
    states = {state for target in targets_of(graph) for state in target.states}
    for op in graph.ops:
        if op.phase != "update":
            states.difference_update(op.reads)
    if not states:
        return graph
    fresh = [replace(_made_once(op), cost=0.0, op="OptimizerState") for op in graph.ops if op.name in states]
    kept = [op for op in graph.ops if op.name not in states]
    place = next(k for k, op in enumerate(kept) if not states.isdisjoint(op.reads))
    return Graph([*kept[:place], *fresh, *kept[place:]], name=graph.name)


@final
class _Writer:
    """Writes an iteration op by op."""

    def __init__(self, graph: Graph, targets: tuple[Target, ...], step: TrainingStep, *, first: bool) -> None:
        self.graph, self.targets, self.step, self.first = graph, targets, step, first
        self.updates: Final = {target.op.name for target in targets if target.op is not None}
        self.states: Final = {state for target in targets for state in target.states}
        self.ops: list[Op] = []
        self.newest: dict[str, str] = {}  # the newest version of each resident storage
        self.buffers: dict[str, str] = {}  # the value that holds the gradient so far of each parameter
        self.by_gradient: dict[str, list[Target]] = {}
        for target in targets:
            self.by_gradient.setdefault(target.gradient, []).append(target)

    def written(self) -> Graph:
        """The program of the whole iteration."""
        step = self.step
        self.ops = [op for op in self.graph.ops if op.resident and op.name not in self.states]
        accumulate = step.micro_batches > 1 or step.gradients == "zeroed"
        if step.gradients == "zeroed" and not self.first:
            for target in self.targets:
                name = f"{target.parameter}.grad"
                like = _renamed(self._kept_gradient(target), name)
                self.ops.append(Op(name, (like,), kind="state", cost=0.0, op="GradientBuffer"))
                self.buffers[target.parameter] = name
            copies = 1
        else:
            copies = min(step.micro_batches, 2)
        for copy in range(copies):
            last = copy == copies - 1
            self._write_copy("" if last else f"@{copy + 1}", last=last, accumulate=accumulate)
        if self.updates:
            self._write_updates()
        return Graph(self.ops, name=self.graph.name)

    def _write_copy(self, suffix: str, *, last: bool, accumulate: bool) -> None:
        """One micro-batch: forward, loss and backward."""
        graph = self.graph
        start = dict(self.newest)
        running = dict(self.buffers)

        def value(name: str) -> str:
            return start.get(name, name) if graph.producer[name].resident else name + suffix

        for op in graph.ops:
            if op.resident or op.name in self.updates or (op.phase == "update" and not last):
                continue
            buffered = {t.name for t in op.outputs if self._is_buffered(t.name, accumulate=accumulate)}
            kept = tuple(t.output and last and t.name not in buffered for t in op.outputs)
            before = (name for name in op.after if name not in self.updates)
            after = tuple(name if graph.op_named[name].resident else name + suffix for name in before)
            reads = tuple(map(value, op.reads))
            if not suffix and (kept, reads, after) == (_kept(op), op.reads, op.after):
                self.ops.append(op)
            else:
                made = (_renamed(t, t.name + suffix, output=o) for t, o in zip(op.outputs, kept, strict=True))
                self.ops.append(replace(op, name=op.name + suffix, outputs=tuple(made), reads=reads, after=after))
            for _, o in op.updates:
                root = graph.storage_root[op.outputs[o].name]
                if graph.producer[root].resident:
                    self.newest[root] = op.outputs[o].name + suffix
            if op.phase == "update":
                continue
            for t in op.outputs:
                for target in self.by_gradient.get(t.name, ()):
                    if t.name in buffered:
                        self._accumulate(target, t, op, suffix, running.get(target.parameter), last=last)
                    else:
                        self.buffers[target.parameter] = t.name

    def _kept_gradient(self, target: Target) -> Tensor:
        """What a parameter's gradient is kept as."""
        return _in_dtype(self.graph.tensors[target.gradient], self.step.gradient_dtype)

    def _is_buffered(self, gradient: str, *, accumulate: bool) -> bool:
        """True if a gradient goes into a buffer: to be added to others, or kept in another dtype."""
        targets = self.by_gradient.get(gradient, ())
        like = self.graph.tensors[gradient]
        return any(accumulate or self._kept_gradient(target).nbytes != like.nbytes for target in targets)

    def _accumulate(
        self, target: Target, gradient: Tensor, op: Op, suffix: str, buffer: str | None, *, last: bool
    ) -> None:
        keep = last and target.op is None
        value, kept = gradient.name + suffix, self._kept_gradient(target)
        if buffer is None:
            # The gradient becomes the buffer if it has the buffer's dtype and nothing else lies on its storage.
            one = len(self.by_gradient[gradient.name]) == 1 and kept.nbytes == gradient.nbytes
            alone = one and self.graph.storage_root[gradient.name] == gradient.name
            if alone and not any(op.outputs[o].name == gradient.name and identity for _, o, identity in op.inplace):
                self.buffers[target.parameter] = value
                return
            name = f"{target.parameter}.grad"
            fresh = Op(name, reads=(value,), cost=0.0, phase="backward", op="GradientBuffer")
            fresh = replace(fresh, inplace=((0, 0, False),) if kept.nbytes == gradient.nbytes else ())
        else:
            name = f"{target.parameter}.accumulate{suffix}"
            sums = Op(name, reads=(buffer, value), cost=0.0, phase="backward", op="Accumulate", recomputable=False)
            fresh = replace(sums, updates=((0, 0),))
        self.ops.append(replace(fresh, outputs=(_renamed(kept, name, output=keep),)))
        self.buffers[target.parameter] = name

    def _write_updates(self) -> None:
        """States, and the updates as the device runs them."""
        residents: list[Op] = []
        parts: list[_Update] = []
        made: list[list[Op]] = []  # of each part, the states that come into being
        for target in self.targets:
            part = self._update_of(target)
            residents += [Op(t.name, (t,), kind="state", cost=0.0, op="MasterWeights") for t in part.masters]
            states = [Op(t.name, (t,), kind="state", cost=0.0, op="OptimizerState") for t in part.states]
            if self.first:
                made.append([replace(_made_once(op), outputs=(_renamed(op.outputs[0], op.name),)) for op in states])
            else:
                made.append([])
                residents += states
            parts.append(part)
        self.ops[:0] = residents
        if self.step.update == "inside-backward":
            self.ops = _early(self.ops, [[*own, self._single(part)] for own, part in zip(made, parts, strict=True)])
            return
        self.ops += [op for own in made for op in own]
        if self.step.update in ("multi-tensor", "fused"):
            self.ops.append(self._joint(parts))
        else:
            self.ops += [self._single(part) for part in parts]

    def _update_of(self, target: Target) -> _Update:
        """What one parameter's update reads and writes."""
        step, parameter = self.step, self.graph.tensors[target.parameter]
        master = step.master_weights and _low_precision(parameter)
        like = _in_dtype(parameter, "float32") if master else parameter
        if step.optimizer is None:
            states = [self.graph.tensors[state] for state in target.states]
            states = [_in_dtype(t, "float32") if master and _low_precision(t) else t for t in states]
        else:
            states = [_renamed(like, f"{target.parameter}.{state}") for state in OPTIMIZERS[step.optimizer][0]]
        states = [_in_dtype(t, step.state_dtype) for t in states]
        masters = [_renamed(like, f"{target.parameter}.master")] if master else []
        divides = bool(states) and step.optimizer != "momentum"  # else the gradient is added to the parameter at once
        return _Update(target, parameter, states, masters, like.nbytes if divides else 0)

    def _single(self, part: _Update) -> Op:
        """The op that updates one parameter."""
        temporary = part.scratch_bytes if self.step.update == "per-tensor" else 0
        assert part.target.op is not None
        return self._op([part], part.target.op, part.target.op.name, temporary)

    def _joint(self, parts: list[_Update]) -> Op:
        """The one op that updates all parameters: nothing of it runs before every gradient is there."""
        temporary = sum(part.scratch_bytes for part in parts) if self.step.update == "multi-tensor" else 0
        old = [part.target.op for part in parts if part.target.op is not None]
        after = tuple(dict.fromkeys(name for op in old for name in op.after))
        taken = {op.name for op in self.ops}
        name = next(
            name for name in ("update", *(f"update_{k}" for k in range(2, len(taken) + 3))) if name not in taken
        )
        flops = [op.flops for op in old]
        whole = replace(
            old[0], after=after, module=None,
            flops=None if None in flops else sum(count or 0 for count in flops),
        )  # fmt: skip
        return self._op(parts, whole, name, temporary)

    def _op(self, parts: list[_Update], old: Op, name: str, temporary_bytes: int) -> Op:
        """An update of these parameters: it reads gradients, and writes parameters, states and masters anew."""
        kept, reads, pairs = list[Tensor](), list[str](), list[tuple[int, int]]()
        for part in parts:
            parameter, written = part.target.parameter, (part.parameter, *part.states, *part.masters)
            places = (len(reads), *range(len(reads) + 2, len(reads) + 1 + len(written)))
            pairs += zip(places, range(len(kept), len(kept) + len(written)), strict=True)
            reads += [self.newest.get(parameter, parameter), self.buffers[parameter], *(t.name for t in written[1:])]
            kept += written
        names = [name] if len(kept) == 1 else [f"{name}:{o}" for o in range(len(kept))]
        cost = sum(part.cost(self.graph) for part in parts)
        return replace(
            old,
            name=name,
            outputs=tuple(_renamed(t, own, output=True) for t, own in zip(kept, names, strict=True)),
            reads=tuple(reads),
            after=tuple(name for name in old.after if name not in self.states),
            updates=tuple(pairs),
            workspace=old.workspace if self.step.update is None else temporary_bytes,
            cost=cost,
            view=(),
            inplace=(),
            phase="update",
        )


@final
class _Update:
    """One parameter with what its update writes beside it.

    Args:
        scratch_bytes: of a temporary in the precision that the update computes in.
    """

    def __init__(
        self, target: Target, parameter: Tensor, states: list[Tensor], masters: list[Tensor], scratch_bytes: int
    ) -> None:
        self.target, self.parameter, self.states, self.masters = target, parameter, states, masters
        self.scratch_bytes: Final = scratch_bytes

    def cost(self, graph: Graph) -> float:
        """The graph's cost of the update, in proportion to the bytes that it moves now."""
        old = self.target.op
        assert old is not None
        before = [graph.tensors[state].nbytes for state in self.target.states]
        own = 3 * self.parameter.nbytes
        now = own + 2 * sum(t.nbytes for t in (*self.states, *self.masters))
        return old.cost if not own else old.cost * now / (own + 2 * sum(before))


def _early(ops: list[Op], updates: list[list[Op]]) -> list[Op]:
    """Every update right after the last op that makes what it reads, or reads the parameter; it waits for no other.

    Args:
        updates: each the op that updates, last, and before it the states that it makes.
    """
    barriers = {op.name for op in ops if op.op == "Barrier" and not op.outputs}
    ops = [op for op in ops if op.name not in barriers]
    made = {t.name: k for k, op in enumerate(ops) for t in op.outputs}
    last_read: dict[str, int] = {}
    for k, op in enumerate(ops):
        last_read.update(dict.fromkeys(op.reads, k))
    behind: dict[int, list[Op]] = {}
    for *states, update in updates:
        waits = [made[name] for name in update.reads if name in made]
        waits += [last_read.get(update.reads[i], 0) for i, _ in update.updates]
        behind.setdefault(max(waits), []).extend((*states, replace(update, after=())))
    return [each for k, op in enumerate(ops) for each in (op, *behind.get(k, ()))]


def _made_once(state: Op) -> Op:
    """An optimizer state that does not exist before the first update."""
    return replace(state, kind="op", phase="update", recomputable=False)


def _kept(op: Op) -> tuple[bool, ...]:
    return tuple(t.output for t in op.outputs)


def _renamed(tensor: Tensor, name: str, *, output: bool = False) -> Tensor:
    return replace(tensor, name=name, output=output)


def _low_precision(tensor: Tensor) -> bool:
    return tensor.dtype is not None and is_float(tensor.dtype) and DTYPE_BYTES.get(tensor.dtype, 4) <= 2


def _in_dtype(tensor: Tensor, dtype: str | None) -> Tensor:
    """The tensor in another dtype; one of unknown dtype counts as float32."""
    if dtype is None or dtype == tensor.dtype:
        return tensor
    elements = tensor.nbytes // DTYPE_BYTES.get(tensor.dtype or "float32", 4)
    return replace(tensor, dtype=dtype, nbytes=DTYPE_BYTES[dtype] * elements)
