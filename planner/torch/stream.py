"""The captured graph as calls on values: what each reads and makes, and which storage a value lies on."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, final

import torch
from torch.utils._pytree import tree_leaves

from planner.errors import GraphError
from planner.torch import unstable
from planner.torch.capture import Capture
from planner.torch.lines import quoted
from planner.torch.meanings import Buffer, Input, Parameter, Source, Tangent, plain_path

aten = torch.ops.aten
#: Ops that a plan cannot run, why, and the way out.
_REFUSED: Final = {
    aten.mkldnn_rnn_layer.default: "keeps what its backward reads only where autograd runs it: plan and train inside"
    " torch.backends.mkldnn.flags(enabled=False)",
}
#: Tagged as random, but without dropout (which it never has on a CPU) it draws nothing.
_DRAWS_NOTHING: Final = (aten._scaled_dot_product_flash_attention_for_cpu.default,)


class Value(NamedTuple):
    """One output of a node of the graph."""

    node: str
    output: int = 0


@final
@dataclass(frozen=True)
class ATenCall:
    """One op.

    Args:
        node: the node of the captured graph; its arguments are nodes too.
        name: in the planned graph.
        reads: the values it reads, each once.
        tensors: fake results.
        places: where each result is in the tuple that the op returns; None: it returns one tensor.
        views: (input, output, byte offset) where a result lies on an input's storage.
    """

    node: torch.fx.Node
    name: str
    reads: tuple[Value, ...]
    tensors: tuple[torch.Tensor, ...]
    places: tuple[int | None, ...]
    views: tuple[tuple[int, int, int], ...]

    @property
    def backward(self) -> bool:
        """True for an op of the backward pass."""
        return unstable.is_backward(self.node)

    @property
    def draws(self) -> bool:
        """True if it takes numbers from the generator."""
        tags = getattr(self.node.target, "tags", ())
        return torch.Tag.nondeterministic_seeded in tags and self.node.target not in _DRAWS_NOTHING

    @property
    def values(self) -> tuple[Value, ...]:
        """What it makes."""
        return tuple(Value(self.name, output) for output in range(len(self.tensors)))


@final
@dataclass
class Stream:
    """All calls of a capture in order, and the value of every node.

    >>> import torch
    >>> from planner.torch.capture import capture
    >>> from planner.torch.root import Root, as_call
    >>> model = torch.nn.Linear(2, 1)
    >>> found = Stream.of(capture(Root(model, torch.nn.MSELoss()), as_call((torch.ones(3, 2), torch.ones(3, 1)))))
    >>> [call.name for call in found.calls if not call.backward]
    ['t', 'addmm', 'mse_loss']
    """

    residents: dict[str, torch.fx.Node] = field(default_factory=dict)
    calls: list[ATenCall] = field(default_factory=list)
    value_of: dict[torch.fx.Node, Value] = field(default_factory=dict)
    storage_of: dict[Value, int] = field(default_factory=dict)
    position_of: dict[torch.fx.Node, int] = field(default_factory=dict)

    @classmethod
    def of(cls, captured: Capture) -> Stream:
        """Read a capture.

        Raises:
            GraphError: an op that is not a function of tensors, or a result on the storage of a sibling.
        """
        reader = cls()
        taken = {node.name for node in captured.graph.nodes if node not in captured.sources}
        for position, node in enumerate(captured.graph.nodes):
            reader.position_of[node] = position
            if node in captured.sources:
                name = _name_of(captured.sources[node], node)
                while name in taken:
                    name += "_"
                reader._resident(name, node)
            elif node.op != "output":
                reader._call(node)
        return reader

    def _resident(self, name: str, node: torch.fx.Node) -> None:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            self.residents[name] = node
            self.value_of[node] = Value(name)
            self.storage_of[Value(name)] = storage(value)
            self._known.add(storage(value))
            if name.startswith("tangent."):  # what the caller brings is a tensor of its own
                self._begins[storage(value)] = value.storage_offset() * value.element_size()

    def _call(self, node: torch.fx.Node) -> None:
        target = node.target
        if target is operator.getitem:
            producer, place = node.args
            found = self._outputs.get((producer, place))
            if found is not None:
                self.value_of[node] = found
            return
        made = tuple(_tensors(node))
        if any(tensor.layout is not torch.strided for _, tensor in made):
            fix = "make it dense (sparse=False)"
            raise GraphError(f"op {str(target)!r}{_within(node)} makes a sparse tensor, which cannot be planned: {fix}")
        if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
            fix = "keep this part out of the planned module"
            raise GraphError(f"op {str(target)!r}{_within(node)} is not a function of tensors: {fix}")
        if target in _REFUSED:
            raise GraphError(f"op {str(target)!r}{_within(node)} {_REFUSED[target]}")
        if not made:
            return  # an assertion: true of the fake values, it holds for all
        reads = self._reads(node)
        views = []
        for output, (_, tensor) in enumerate(made):
            at = [i for i, value in enumerate(reads) if self.storage_of[value] == storage(tensor)]
            if at:
                offset = tensor.storage_offset() * tensor.element_size() - self._begins.get(storage(tensor), 0)
                views.append((at[0], output, max(offset, 0)))
            elif storage(tensor) in self._known:
                fix = "copy it first (clone)"
                raise GraphError(f"op {str(target)!r}{_within(node)} returns a tensor that it did not make: {fix}")
        self._known.update(storage(tensor) for _, tensor in made)
        places, tensors = zip(*made, strict=True)
        call = ATenCall(node, node.name, reads, tensors, places, tuple(views))
        for value, place, tensor in zip(call.values, places, tensors, strict=True):
            self.storage_of[value] = storage(tensor)
            if place is None:
                self.value_of[node] = value
            else:
                self._outputs[node, place] = value
        self.calls.append(call)

    _outputs: dict[tuple[Any, Any], Value] = field(default_factory=dict)
    _known: set[int] = field(default_factory=set)
    _begins: dict[int, int] = field(default_factory=dict)

    def _reads(self, node: torch.fx.Node) -> tuple[Value, ...]:
        nodes = [leaf for leaf in tree_leaves((node.args, node.kwargs)) if isinstance(leaf, torch.fx.Node)]
        return tuple(dict.fromkeys(self.value_of[leaf] for leaf in nodes if leaf in self.value_of))


def storage(tensor: torch.Tensor) -> int:
    """The identity of a fake tensor's storage."""
    return int(tensor.untyped_storage()._cdata)


def storage_bytes(tensor: torch.Tensor) -> int:
    """Bytes of a tensor's storage."""
    return int(tensor.untyped_storage().nbytes())


def _tensors(node: torch.fx.Node) -> Iterator[tuple[int | None, torch.Tensor]]:
    made = node.meta.get("val")
    if isinstance(made, torch.Tensor):
        yield None, made
    elif isinstance(made, (list, tuple)):
        mask = _output_mask(node)
        for place, tensor in enumerate(made):
            if isinstance(tensor, torch.Tensor) and (mask is None or mask[place]):
                yield place, tensor


def _output_mask(node: torch.fx.Node) -> list[bool] | None:
    """Which results a backward op is asked for: it does not make the others, even where its fake values say so."""
    target: Any = node.target
    names = [argument.name for argument in target._schema.arguments] if hasattr(target, "_schema") else []
    mask = {**dict(zip(names, node.args, strict=False)), **node.kwargs}.get("output_mask")
    return mask if isinstance(mask, list) else None


def _name_of(source: Source, node: torch.fx.Node) -> str:
    """How people call a resident."""
    if isinstance(source, (Parameter, Buffer)):
        return plain_path(source.path)
    if isinstance(source, Input):
        return f"input.{source.index}"
    return f"tangent.{source.output}" if isinstance(source, Tangent) else node.name


def _within(node: torch.fx.Node) -> str:
    path, line = unstable.module_of(node), unstable.line_of(node)
    return (f" of module {path!r}" if path else "") + (f" at {quoted(line)}" if line else "")
