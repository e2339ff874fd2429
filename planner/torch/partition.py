"""A plan for `torch.compile`: which values a compiled forward pass saves, and in which order its backward pass runs."""

from __future__ import annotations

import copy
import operator
from collections.abc import Sequence
from typing import Any, Final, final

import torch
from torch.utils._pytree import tree_leaves, tree_map

from planner.api import optimize
from planner.errors import GraphError
from planner.lowering.assembly import Assembly
from planner.lowering.assembly import Value as Wire
from planner.lowering.schema import lower
from planner.memory import MemoryModel
from planner.plan import Plan
from planner.torch import unstable
from planner.torch.capture import Capture
from planner.torch.costs import Costs, device_name, roofline
from planner.torch.joint import facts_of
from planner.torch.meanings import Buffer, Gradient, Input, Output, Result, Source, Tangent, Update
from planner.torch.root import Results
from planner.torch.stream import ATenCall, Stream, Value, storage_bytes

aten = torch.ops.aten
_BOUNDARY: Final = "boundary"
_NORM: Final = aten._native_batch_norm_legit_functional.default


@final
class Partition:
    """A `partition_fn` of AOTAutograd that keeps a budget.

    The compiled forward pass is the plan up to the boundary, the compiled backward pass the rest, with all that runs
    again in the order of the plan. What `checkpoint` has and this has not: results over dead inputs, gradients handed
    over as they are made, and draws that are made again (the masks of dropout are kept).

    The bits are those that `backend="aot_eager"` computes. The peak is the predicted one where the two graphs are run
    as they are (`boxed_nop`); a compiler that fuses or reorders ops has another. One graph is planned at a time: ask
    for `fullgraph=True`, or each part of a broken graph has the budget to itself.

    Args:
        budget: as `planner.optimize` takes it; None: the least that works.
        memory: what it covers; "activations" leaves out what the compiled function is given (parameters too).
        options: of `planner.optimize`.

    >>> from torch._dynamo.backends.common import aot_autograd
    >>> from torch._dynamo.backends.debugging import boxed_nop
    >>> from planner.torch import Partition
    >>> partition = Partition("90%")
    >>> backend = aot_autograd(fw_compiler=boxed_nop, bw_compiler=boxed_nop, partition_fn=partition)
    >>> net = torch.compile(torch.nn.Linear(4, 4), backend=backend, fullgraph=True)  # planned at the first call
    """

    def __init__(
        self, budget: Any = None, *, memory: MemoryModel = MemoryModel(scope="activations"), **options: Any
    ) -> None:
        self.budget, self.memory, self.options = budget, memory, options
        self.plan: Plan | None = None  #: of the graph compiled last

    def __call__(
        self, joint: torch.fx.GraphModule, inputs: Any, *, num_fwd_outputs: int, **rest: Any
    ) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
        """The forward and the backward graph.

        Raises:
            InfeasibleBudget: no plan fits.
            GraphError: an op that is not a function of tensors, or a shape that is not known.
        """
        _drop_statistics(joint.graph)
        captured = _read(joint, num_fwd_outputs)
        step = _Step(captured, roofline(device_name(_first(captured).meta["val"].device)))
        options = {"allocator": None, **self.options}
        self.plan = optimize(lower(step.draft.graph), self.budget, memory=self.memory, **options)
        planned, saved = _reordered(joint, step.stream, self.plan.schedule.computes)
        return unstable.forward_and_backward(planned, saved, num_fwd_outputs)


def _drop_statistics(graph: torch.fx.Graph) -> None:
    """The backward of batch normalization in training reads no running statistics: they are not saved for it."""
    for node in graph.nodes:
        if node.target is aten.native_batch_norm_backward.default and node.args[7]:
            node.args = (*node.args[:3], None, None, *node.args[5:])


def _read(joint: torch.fx.GraphModule, outputs: int) -> Capture:
    sources: dict[torch.fx.Node, Source] = {}
    for index, node in enumerate(node for node in joint.graph.nodes if node.op == "placeholder"):
        if not isinstance(node.meta.get("val"), torch.Tensor):
            fix = "compile with dynamic=False"
            raise GraphError(f"input {node.name!r} of the compiled graph is no tensor, as of a dynamic shape: {fix}")
        sources[node] = Tangent(index) if unstable.is_backward(node) else Input(index)
    for node in joint.graph.nodes:
        if node.op == "get_attr":
            sources[node] = Input(len(sources))
    last = next(node for node in joint.graph.nodes if node.op == "output")
    results: list[tuple[torch.fx.Node, Result]] = []
    for k, (node, described) in enumerate(zip(tree_leaves(last.args[0]), last.meta["desc"], strict=True)):
        if isinstance(node, torch.fx.Node):
            early = Update(Buffer(node.name)) if unstable.is_write(described) else Output(k)
            results.append((node, early if k < outputs else Gradient(Input(k))))
    nothing: Any = None
    return Capture(joint.graph, sources, tuple(results), Results((), (), nothing), {})


def _first(captured: Capture) -> torch.fx.Node:
    return next(node for node, source in captured.sources.items() if isinstance(source, Input))


class _Step:
    """A compiled step in the planner's schema."""

    def __init__(self, captured: Capture, costs: Costs) -> None:
        self.captured, self.costs = captured, costs
        self.stream = Stream.of(captured)
        self.draft = Assembly(name="compiled")
        self.tangents = {name for name, node in self.stream.residents.items()
                         if isinstance(captured.sources[node], Tangent)}  # fmt: skip
        for name, node in self.stream.residents.items():
            if name not in self.tangents:
                self.draft.add(name, nbytes=storage_bytes(node.meta["val"]), kind="input", cost=0.0)
        self._calls()

    def _calls(self) -> None:
        ends: list[str] = []
        needed = self._needed()
        for call in self.stream.calls:
            if not call.backward and call.name in needed:
                self._call(call, "forward", ())
                ends += [call.name] if call.draws else []
        written = []  # new contents of buffers: the runtime copies them when the forward pass has returned
        for k, (node, meaning) in enumerate(self.captured.results):
            if isinstance(meaning, Output):
                ends += self._outlet(f"out.{k}", node, "forward")
            elif isinstance(meaning, Update):
                written.append(Wire(*self.stream.value_of[node]))
        self.draft.add(_BOUNDARY, written, after=ends, nbytes=(), cost=0.0, op="boundary", phase="loss")
        for name in sorted(self.tangents):
            nbytes = storage_bytes(self.stream.residents[name].meta["val"])
            self.draft.add(
                name, after=[_BOUNDARY], nbytes=nbytes, cost=0.0, op="tangent", phase="backward", recomputable=False,
                output=True,
            )  # fmt: skip
        late = set(self.tangents)
        for call in self.stream.calls:
            if call.backward and call.name in needed:
                waits = not late & {slot.node for slot in call.reads}
                self._call(call, "backward", (_BOUNDARY,) if waits else ())
                late.add(call.name)
        for k, (node, meaning) in enumerate(self.captured.results):
            if isinstance(meaning, Gradient):
                self._outlet(f"out.{k}", node, "backward")

    def _needed(self) -> set[str]:
        needed = {self.stream.value_of[node].node for node, _ in self.captured.results}
        needed |= {call.name for call in self.stream.calls if call.draws}
        for call in reversed(self.stream.calls):
            if call.name in needed:
                needed.update(slot.node for slot in call.reads)
        return needed

    def _call(self, call: ATenCall, phase: str, after: Sequence[str]) -> None:
        facts = facts_of(call, self.costs(call), phase)
        once = call.draws or (call.node.target is _NORM and not call.node.args[5])
        if once:
            facts["recomputable"] = False
        self.draft.add(call.name, [Wire(*slot) for slot in call.reads], after=after, **facts)

    def _outlet(self, name: str, node: torch.fx.Node, phase: str) -> list[str]:
        slot = self.stream.value_of[node]
        self.draft.add(
            name, [Wire(*slot)], nbytes=storage_bytes(node.meta["val"]), cost=0.0, op="out", phase=phase,
            view=((0, 0),), recomputable=False, output=True,
        )  # fmt: skip
        return [name]


def _reordered(
    joint: torch.fx.GraphModule, stream: Stream, order: Sequence[str]
) -> tuple[torch.fx.GraphModule, list[torch.fx.Node]]:
    """The joint graph with every execution of the plan in its order, and what the backward reads of the forward."""
    calls = {call.name: call for call in stream.calls}
    graph = torch.fx.Graph()
    live: dict[Value, torch.fx.Node] = {}
    for node in joint.graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            live[stream.value_of[node]] = graph.node_copy(node)
    late, met = False, set[str]()
    for name in order:
        late = late or name == _BOUNDARY
        if name in calls:
            _run(graph, calls[name], stream, live, again=name in met, late=late)
            met.add(name)
    last = next(node for node in joint.graph.nodes if node.op == "output")
    graph.node_copy(last, lambda node: live[stream.value_of[node]])
    planned = torch.fx.GraphModule(joint, graph)
    early = [node for node in graph.nodes if node.op != "output" and not unstable.is_backward(node)]
    saved = [node for node in early if any(unstable.is_backward(user) for user in node.users)]
    return planned, saved


def _run(
    graph: torch.fx.Graph, call: ATenCall, stream: Stream, live: dict[Value, torch.fx.Node], *, again: bool, late: bool
) -> None:
    """One execution of an op; `live` is then its instance of each result."""
    target: Any = call.node.target
    args, kwargs = tree_map(
        lambda leaf: live.get(stream.value_of[leaf]) if isinstance(leaf, torch.fx.Node) else leaf,
        (call.node.args, dict(call.node.kwargs)),
    )
    places = call.places
    if again and target is _NORM:  # a second run must not begin from statistics that were written meanwhile
        target, args = aten._native_batch_norm_legit.no_stats, (*args[:3], *args[5:])
        places = places[:3]
    made = graph.call_function(target, args, kwargs)
    made.meta = copy.copy(call.node.meta)
    unstable.place(made, backward=late)
    if places == (None,):
        live[call.values[0]] = made
        return
    for value, place, tensor in zip(call.values, places, call.tensors, strict=False):
        part = graph.call_function(operator.getitem, (made, place))
        part.meta = {**{key: call.node.meta[key] for key in ("seq_nr",) if key in call.node.meta}, "val": tensor}
        unstable.place(part, backward=late)
        live[value] = part
