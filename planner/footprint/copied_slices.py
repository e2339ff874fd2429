"""Slices: small views that are all the backward pass reads of a large storage, and what copies of them would take."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from planner.analysis.evaluator import evaluator_of
from planner.bounds.peak import peak_lower_bound
from planner.graph import Graph
from planner.memory import MemoryModel
from planner.remedies import Remedy
from planner.units import counted, format_bytes


class Slice(msgspec.Struct, frozen=True):
    """A view that, with other such views, is all that the backward pass reads of a storage.

    Args:
        value, nbytes: the view and its bytes.
        base, base_bytes: the value that made the storage, and the bytes that the view keeps.
    """

    value: str
    nbytes: int
    base: str
    base_bytes: int


class Copies(msgspec.Struct, frozen=True):
    """What a step takes whose slices are copies, so that nothing keeps the storages they are of.

    Args:
        slices: the views to copy, those of the largest storages first.
        peak_bytes: the peak without recomputation.
        floor_bytes: the lower bound on the peak with any recomputation.
    """

    slices: tuple[Slice, ...]
    peak_bytes: int
    floor_bytes: int

    def remedy(self, allowed: int) -> Remedy:
        """The copies as advice on a budget in bytes, the reserve taken off."""
        action = f"copy of {self.slices[0].value!r}{self._others} in place of views"
        if self.peak_bytes <= allowed:
            return Remedy(action, self.peak_bytes, True, f"{self._why}. No recomputation is needed.")
        if self.floor_bytes > allowed:
            note = f"{self._why}. Even with any recomputation."
            return Remedy(action, self.floor_bytes, False, note, at_least=True)
        return Remedy(f"{action}, with recomputation", self.floor_bytes, True, f"{self._why}.", at_least=True)

    @property
    def _others(self) -> str:
        return f" and {counted(len(self.slices) - 1, 'more slice')}" if len(self.slices) > 1 else ""

    @property
    def _why(self) -> str:
        first = self.slices[0]
        held = f"{first.base!r} ({format_bytes(first.base_bytes)})"
        return (
            f"The backward pass reads {first.value!r} ({format_bytes(first.nbytes)}), a view that keeps all of {held}"
        )

    def __str__(self) -> str:
        return f"{self._why}; a copy{self._others} in place of views: peak {format_bytes(self.peak_bytes)}"


def copies(graph: Graph, memory: MemoryModel, *, peak_bytes: int) -> Copies | None:
    """The copies of all slices of a graph; None where they do not lower its peak without recomputation.

    Args:
        peak_bytes: that peak.

    >>> from planner.graph import Op, Tensor
    >>> view = Op("v", (Tensor("v", 4),), ("a",), view=((0, 0, 0),), phase="forward")
    >>> ops = [Op("a", (Tensor("a", 40),), phase="forward"), view, Op("c", (Tensor("c", 20),), phase="forward")]
    >>> graph = Graph([*ops, Op("b", (Tensor("b", 4),), ("v", "c"), phase="backward")])
    >>> found = copies(graph, MemoryModel(), peak_bytes=64)
    >>> (found.slices, found.peak_bytes)
    ((Slice(value='v', nbytes=4, base='a', base_bytes=40),), 44)
    """
    found = slices_of(graph)
    if not found:
        return None
    program = with_copies(graph, found)
    evaluator = evaluator_of(program, memory)
    judged = evaluator.evaluate(evaluator.keep_all)
    if judged is None or judged[0] >= peak_bytes:
        return None
    return Copies(found, judged[0], peak_lower_bound(program, memory).nbytes)


def slices_of(graph: Graph) -> tuple[Slice, ...]:
    """The views of forward storages of which the backward pass reads nothing else, those of the largest first.

    The slices of one storage have fewer bytes than the storage. A storage that is updated in place is left out, since a
    copy would miss the update.
    """
    updated = {graph.storage_root[op.reads[i]] for op in graph.ops for i, _ in op.updates}
    late = {value for op in graph.ops if op.phase in ("backward", "update") for value in op.reads}
    late.update(graph.outputs)
    read: dict[str, dict[str, None]] = {}
    for value in graph.tensors:
        root = graph.storage_root[value]
        makers = graph.producer[root], graph.producer[value]
        early = all(not op.resident and op.phase not in ("backward", "update") for op in makers)
        if early and value in late and root not in updated:
            read.setdefault(root, {})[_first_of_its_size(graph, value)] = None
    found = []
    for root, values in read.items():
        whole, parts = graph.tensors[root].nbytes, [graph.tensors[value].nbytes for value in values]
        if all(parts) and sum(parts) < whole:
            found += [Slice(value, nbytes, root, whole) for value, nbytes in zip(values, parts, strict=True)]
    return tuple(sorted(found, key=lambda each: -each.base_bytes))


def _first_of_its_size(graph: Graph, value: str) -> str:
    """The value that a view is another shape of: the first of a chain of views that is as large."""
    while value != graph.storage_root[value]:
        op = graph.producer[value]
        base = next(op.reads[i] for i, o, _ in op.view if op.outputs[o].name == value)
        if graph.tensors[base].nbytes > graph.tensors[value].nbytes:
            break
        value = base
    return value


def with_copies(graph: Graph, slices: tuple[Slice, ...]) -> Graph:
    """The program with storages of their own for slices; offsets of views are left out: bytes do not depend on them."""
    own = {each.value for each in slices}
    ops = [
        replace(op, view=tuple((i, o, 0) for i, o, _ in op.view if op.outputs[o].name not in own)) for op in graph.ops
    ]
    return Graph(ops, name=graph.name)
