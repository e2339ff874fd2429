"""The training step as it will run: optimizer, accumulation over micro-batches, master weights, way of the update.

A program in, a program out: what an option changes is written as ops, so that the judge and every search see it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, final

from msgspec.structs import replace

from planner.errors import GraphError, PlannerError
from planner.graph import Graph, Op, Tensor
from planner.lowering.operators.lookup import DTYPE_BYTES, is_float

Gradients = Literal["released", "zeroed"]
Update = Literal["fused", "per-tensor", "multi-tensor"]

#: Per optimizer, its states; each has the size of the parameter. In all: 2, 3, 3, 3, 4 and 4 times the parameter bytes.
OPTIMIZER_STATES: Final[Mapping[str, tuple[str, ...]]] = {
    "sgd": (), "momentum": ("momentum",), "adagrad": ("sum_sq",), "rmsprop": ("mean_sq",),
    "adam": ("exp_avg", "exp_avg_sq"), "adamw": ("exp_avg", "exp_avg_sq"),
}  # fmt: skip
UPDATES: Final[tuple[Update, ...]] = ("fused", "per-tensor", "multi-tensor")


@final
@dataclass(frozen=True, slots=True)
class StepOptions:
    """How a training step is done; see `estimate`."""

    optimizer: str | None = None
    micro_batches: int = 1
    gradients: Gradients = "released"
    update: Update | None = None
    master_weights: bool = False
    lowering: bool = False

    def __post_init__(self) -> None:
        if self.optimizer is not None and self.optimizer not in OPTIMIZER_STATES:
            raise PlannerError(f"unknown optimizer {self.optimizer!r}; known: {', '.join(OPTIMIZER_STATES)}")
        count = self.micro_batches
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise PlannerError(f"micro_batches {count!r} is not a number >= 1")
        if self.gradients not in ("released", "zeroed"):
            raise PlannerError(f"gradients {self.gradients!r} are not 'released' or 'zeroed'")
        if self.update not in (None, *UPDATES):
            raise PlannerError(f"update {self.update!r} is not one of {', '.join(UPDATES)}")

    @property
    def plain(self) -> bool:
        """True if these options leave the graph as it is."""
        return self == StepOptions()


@final
@dataclass(frozen=True, slots=True)
class Target:
    """One gradient that is accumulated: that of a parameter some op updates, or an output of the backward pass."""

    parameter: str
    gradient: str
    op: Op | None  # the update
    states: tuple[str, ...]


def training_step(graph: Graph, options: StepOptions, *, first: bool = False) -> Graph:
    """The program of one whole iteration under these options; the graph itself where they change nothing.

    Args:
        first: optimizer states and gradient buffers do not exist before it.
    Raises:
        GraphError: the graph has no backward pass or update that an option speaks of.
    """
    if options.plain:
        return _without_states(graph) if first else graph
    targets = targets_of(graph)
    updating = bool(options.optimizer or options.update or options.master_weights)
    if updating and (not targets or targets[0].op is None):
        what = "its gradients are outputs; estimate it without an optimizer" if targets else _why_no_update(graph)
        raise GraphError(f"graph {graph.name!r} updates no parameter: {what}")
    if not targets and not options.lowering:
        return graph
    names = [target.op.name for target in targets if target.op is not None]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        reason = "only the step as it is can be estimated"
        raise GraphError(f"op {twice!r} updates by several gradients or parameters at once: {reason}")
    return _Writer(graph, targets, options, first=first).written()


def _why_no_update(graph: Graph) -> str:
    kept = any(graph.on_resident(op.reads[i]) for op in graph.ops if op.phase == "backward" for i, _ in op.updates)
    if kept:
        found = "its backward pass adds to gradient buffers, and what updates by them is not in it"
        return f"{found}; estimate it without an optimizer"
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


def targets_of(graph: Graph) -> tuple[Target, ...]:
    """Every gradient of a parameter with the op that updates by it; without updates, outputs of a parameter's size."""
    found = []
    for op in graph.ops:
        updated = [i for i, _ in op.updates]
        roots = {i: graph.producer[graph.storage_root[op.reads[i]]] for i in updated}
        parameters = [op.reads[i] for i in updated if roots[i].kind == "parameter"]
        if not parameters:
            continue
        gradients = [value for i, value in enumerate(op.reads) if i not in updated and _may_be_gradient(graph, value)]
        states = tuple(op.reads[i] for i in updated if graph.producer[op.reads[i]].kind == "state")
        count = max(len(parameters), len(gradients)) if gradients else 0
        for k in range(count):
            found.append(Target(parameters[k % len(parameters)], gradients[k % len(gradients)], op, states))
    if found:
        return tuple(found)
    sizes = {t.nbytes for op in graph.ops if op.kind == "parameter" for t in op.outputs}
    made = (t for op in graph.ops if op.phase == "backward" for t in op.outputs)
    outputs = [t.name for t in made if t.output and t.nbytes in sizes and not graph.on_resident(t.name)]
    return tuple(Target(name, name, None, ()) for name in outputs)


def _may_be_gradient(graph: Graph, value: str) -> bool:
    root = graph.producer[graph.storage_root[value]]
    return root.op == "GradientBuffer" or not (root.resident or root.phase == "update")


@final
class _Writer:
    """Writes an iteration op by op."""

    def __init__(self, graph: Graph, targets: tuple[Target, ...], options: StepOptions, *, first: bool) -> None:
        self.graph, self.targets, self.options, self.first = graph, targets, options, first
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
        options = self.options
        self.ops = [op for op in self.graph.ops if op.resident and op.name not in self.states]
        alter = options.micro_batches > 1 or options.gradients == "zeroed"
        if self.targets and options.gradients == "zeroed" and not self.first:
            for target in self.targets:
                like = self.graph.tensors[target.gradient]
                name = f"{target.parameter}.grad"
                self.ops.append(Op(name, (_renamed(like, name),), kind="state", cost=0.0, op="GradientBuffer"))
                self.buffers[target.parameter] = name
            copies = 1
        else:
            copies = min(options.micro_batches, 2)
        for copy in range(copies):
            self._write_copy("" if copy == copies - 1 else f"@{copy + 1}", last=copy == copies - 1, accumulate=alter)
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
            kept = tuple(t.output and last and not (accumulate and t.name in self.by_gradient) for t in op.outputs)
            before = (name for name in op.after if name not in self.updates)
            after = tuple(name if graph.op_named[name].resident else name + suffix for name in before)
            reads = tuple(map(value, op.reads))
            workspace = op.workspace + (im2col_bytes(graph, op) if self.options.lowering else 0)
            if not suffix and (kept, reads, after, workspace) == (_kept(op), op.reads, op.after, op.workspace):
                self.ops.append(op)
            else:
                made = (_renamed(t, t.name + suffix, output=o) for t, o in zip(op.outputs, kept, strict=True))
                changed = {"outputs": tuple(made), "reads": reads, "after": after, "workspace": workspace}
                self.ops.append(replace(op, name=op.name + suffix, **changed))
            for _, o in op.updates:
                root = graph.storage_root[op.outputs[o].name]
                if graph.producer[root].resident:
                    self.newest[root] = op.outputs[o].name + suffix
            if op.phase == "update":
                continue
            for t in op.outputs:
                for target in self.by_gradient.get(t.name, ()):
                    if accumulate:
                        self._accumulate(target, t, op, suffix, running.get(target.parameter), last=last)
                    else:
                        self.buffers[target.parameter] = t.name

    def _accumulate(
        self, target: Target, gradient: Tensor, op: Op, suffix: str, buffer: str | None, *, last: bool
    ) -> None:
        keep = last and target.op is None
        value = gradient.name + suffix
        if buffer is None:
            # The gradient becomes the buffer if nothing else lies on its storage.
            one = len(self.by_gradient[gradient.name]) == 1
            alone = one and self.graph.storage_root[gradient.name] == gradient.name
            if alone and not any(op.outputs[o].name == gradient.name and identity for _, o, identity in op.inplace):
                self.buffers[target.parameter] = value
                return
            name, reads = f"{target.parameter}.grad", (value,)
            fresh = Op(name, reads=reads, cost=0.0, phase="backward", op="GradientBuffer", inplace=((0, 0, False),))
        else:
            name = f"{target.parameter}.accumulate{suffix}"
            sums = Op(name, reads=(buffer, value), cost=0.0, phase="backward", op="Accumulate", recomputable=False)
            fresh = replace(sums, updates=((0, 0),))
        self.ops.append(replace(fresh, outputs=(_renamed(gradient, name, output=keep),)))
        self.buffers[target.parameter] = name

    def _write_updates(self) -> None:
        """States, the temporary of all parameters, and the updates themselves."""
        options, graph = self.options, self.graph
        held: list[list[Tensor]] = []
        masters: list[list[Tensor]] = []
        residents: list[Op] = []
        scratch: dict[str, int] = {}  # bytes of a parameter in the precision its update computes in
        for target in self.targets:
            parameter = graph.tensors[target.parameter]
            master = options.master_weights and _low_precision(parameter)
            like = _as_float32(parameter) if master else parameter
            scratch[target.parameter] = like.nbytes
            made = [_renamed(like, f"{target.parameter}.master")] if master else []
            residents += [Op(t.name, (t,), kind="state", cost=0.0, op="MasterWeights") for t in made]
            masters.append(made)
            if options.optimizer is None:
                own = [graph.tensors[state] for state in target.states]
                own = [_as_float32(t) if master and _low_precision(t) else t for t in own]
            else:
                own = [_renamed(like, f"{target.parameter}.{state}") for state in OPTIMIZER_STATES[options.optimizer]]
            held.append(own)
            for t in own:
                state = Op(t.name, (t,), kind="state", cost=0.0, op="OptimizerState")
                if self.first:
                    self.ops.append(replace(_made_once(state), outputs=(replace(t, output=False),)))
                else:
                    residents.append(state)
        self.ops[:0] = residents
        temporary: tuple[str, ...] = ()
        if options.update == "multi-tensor":
            temporary = ("update.temporary",)
            made = [Tensor(temporary[0], sum(scratch.values()))]
            self.ops.append(Op(temporary[0], tuple(made), cost=0.0, phase="update", op="StepTemporary"))
        for k, target in enumerate(self.targets):
            old = target.op
            assert old is not None
            parameter = graph.tensors[target.parameter]
            versions = [parameter, *held[k], *masters[k]]
            names = [old.name] if len(versions) == 1 else [f"{old.name}:{o}" for o in range(len(versions))]
            first = (self.newest.get(target.parameter, target.parameter), self.buffers[target.parameter])
            last = temporary if k == len(self.targets) - 1 else ()
            workspace = scratch[target.parameter] if options.update == "per-tensor" else 0
            update = replace(
                old,
                outputs=tuple(_renamed(t, name, output=True) for t, name in zip(versions, names, strict=True)),
                reads=(*first, *(t.name for t in versions[1:]), *last),
                after=tuple(name for name in old.after if name not in self.states),
                updates=((0, 0), *((2 + o, 1 + o) for o in range(len(versions) - 1))),
            )
            workspace += old.workspace
            self.ops.append(replace(update, workspace=workspace, view=(), inplace=(), phase="update"))


def _made_once(state: Op) -> Op:
    """An optimizer state that does not exist before the first update."""
    return replace(state, kind="op", phase="update", recomputable=False)


def _kept(op: Op) -> tuple[bool, ...]:
    return tuple(t.output for t in op.outputs)


def _renamed(tensor: Tensor, name: str, *, output: bool = False) -> Tensor:
    return replace(tensor, name=name, output=output)


def _low_precision(tensor: Tensor) -> bool:
    return tensor.dtype is not None and is_float(tensor.dtype) and DTYPE_BYTES.get(tensor.dtype, 4) <= 2


def _as_float32(tensor: Tensor) -> Tensor:
    nbytes = 4 * (tensor.nbytes // DTYPE_BYTES[tensor.dtype or "float32"])
    return replace(tensor, dtype="float32", nbytes=nbytes)


def im2col_bytes(graph: Graph, op: Op) -> int:
    """Bytes of the matrix a convolution unfolds its input into, N * C_in * k_h * k_w * H_out * W_out elements.

    A 1x1 kernel needs none, and the backward of a convolution needs one of the same size. The rule of thumb unfolds the
    whole batch at once; libraries that unfold image by image need 1/N of it.
    """
    forward = graph.op_named.get(op.name.removesuffix(".bwd")) if op.op == "ConvGrad" else op
    if forward is None or forward.op != "Conv" or len(forward.reads) < 2:
        return 0
    image, weight, made = graph.tensors[forward.reads[0]], graph.tensors[forward.reads[1]], forward.outputs[0]
    if image.shape is None or weight.shape is None or made.shape is None or len(weight.shape) < 3:
        return 0
    kernel = math.prod(weight.shape[2:])
    elements = math.prod(made.shape)
    if kernel == 1 or not elements:
        return 0
    return made.nbytes // elements * made.shape[0] * image.shape[1] * kernel * math.prod(made.shape[2:])
