"""A graph's ops by module, by op type and one by one, and the backward ops that read what each of them made."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Optional, TypeVar

import msgspec

from planner.graph import Graph, Op, Tensor
from planner.names import scoped

Path = tuple[str, ...]  # a layer or a module around it, outermost first; () is the whole graph
Key = TypeVar("Key", Path, str)

MOST_LEVELS: Final = 32  # nobody reads a deeper tree; further parts of a name stay together
UNREAD: Final = "unread"


class Reader(msgspec.Struct, frozen=True):
    """A row whose backward reads what another row made.

    Args:
        name: a module, an op type or a backward op, as the rows are.
        storages, nbytes: what it reads. Several may read one storage, so the sum can exceed what the row saves.
    """

    name: str
    storages: int
    nbytes: int


class Row(msgspec.Struct, frozen=True):
    """A module, an op type or an op. Bytes are of storages, without views; rows of one depth add up to the graph.

    Args:
        name: of the module (dotted), the op type or the op.
        depth: parts of a module's name; 0 is the whole graph, and op types and ops are 1.
        ops: how many, of all phases.
        op: the type of the forward op, where the row is one layer.
        phase: of the op, where the row is one op.
        shape, dtype: of the value handed on to later ops, if known.
        parameters: elements of the parameters first read here, each counted once; None where a shape is unknown.
        parameter_bytes: their bytes.
        nbytes: of all storages made.
        forward_bytes: the part of `nbytes` made by the forward pass, loss included.
        saved_storages, saved_bytes: the storages that a backward op reads, directly or through a view.
        readers: the rows whose backward reads them, in order of appearance.
        flops, forward_flops, backward_flops: of all phases, and of two; a multiply-add is two.
        unknown_flops: ops whose FLOPs are unknown; they count 0.
        cost: of running each op once, in the graph's unit.
    """

    name: str
    depth: int
    ops: int
    op: Optional[str]
    phase: Optional[str]
    shape: Optional[tuple[int, ...]]
    dtype: Optional[str]
    parameters: Optional[int]
    parameter_bytes: int
    nbytes: int
    forward_bytes: int
    saved_storages: int
    saved_bytes: int
    readers: tuple[Reader, ...]
    flops: int
    forward_flops: int
    backward_flops: int
    unknown_flops: int
    cost: float


class Breakdown(msgspec.Struct, frozen=True):
    """One graph, added up in three ways.

    Args:
        total: the whole graph.
        modules: each module followed by what is inside it, down to layers; a layer is a forward op with its backward
            and update.
        operators: by op type, in order of appearance.
        ops: one by one, in program order.
    """

    total: Row
    modules: tuple[Row, ...]
    operators: tuple[Row, ...]
    ops: tuple[Row, ...]


def break_down(graph: Graph) -> Breakdown:
    """Add up a graph by module, by op type and op by op.

    The module of an op is its `module` attribute, or its name without the last part. An op whose name extends that of
    another op or of a parameter, as `conv1.bwd` and `conv1.weight.update` do, belongs to that one's layer.

    >>> from planner.zoo import resnet
    >>> from planner.lowering.schema import lower
    >>> found = break_down(lower(resnet((1,), batch=1)))
    >>> [(row.name, row.parameters) for row in found.modules if row.depth == 1]
    [('stem', 9536), ('stage1', 75008), ('head', 257000), ('loss', 0), ('barrier', 0)]
    """
    layers = _layers(graph)
    computed = [op for op in graph.ops if not op.resident]
    heads: dict[Path, Op] = {}  # by layer, the op that gives it its type
    for op in sorted(computed, key=lambda op: (op.phase in ("backward", "update"), _path(op) != layers[op.name])):
        heads.setdefault(layers[op.name], op)

    def around(path: Path) -> list[Path]:
        return [path[:k] for k in range(len(path) + 1)]

    def whose(path: Path, op: Op) -> str:
        return ".".join(layers[op.name] if path in heads else layers[op.name][: len(path)])

    modules = _rows(
        graph,
        {name: around(path) for name, path in layers.items()},
        reader=whose,
        unread=lambda op: around(_path(op)),
        heads=heads,
        handed_on=_handed_on(graph, layers),
    )
    by_type = {op.name: [op.op or "unnamed"] for op in computed}
    types = _rows(graph, by_type, reader=lambda _, op: op.op or "unnamed", unread=lambda _: [UNREAD])
    ops = _rows(
        graph,
        {op.name: [op.name] for op in computed},
        reader=lambda _, op: op.name,
        unread=lambda op: [op.name],
        heads={op.name: op for op in computed},
        handed_on={op.name: op.outputs[0] for op in computed if op.outputs},
    )
    total = modules.pop((), None) or _Tally().row((), head=None, handed_on=None)
    total = msgspec.structs.replace(total, name=graph.name, op=None, phase=None, shape=None, dtype=None)
    nested = tuple(modules[path] for path in _nested(modules))
    return Breakdown(total, nested, tuple(types.values()), tuple(ops.values()))


def saved_readers(graph: Graph) -> dict[str, tuple[str, ...]]:
    """By forward storage, the backward ops that read it, through views or not, in program order.

    Storages that no backward op reads, and those of residents, are left out.

    >>> from planner.graph import Op, Tensor
    >>> a = Op("a", (Tensor("a", 4),), phase="forward")
    >>> ops = [a, Op("v", (Tensor("v", 4),), ("a",), view=((0, 0, 0),), phase="forward")]
    >>> saved_readers(Graph([*ops, Op("b", (Tensor("b", 4),), ("v",), phase="backward")]))
    {'a': ('b',)}
    """
    found: dict[str, dict[str, None]] = {}
    for op in graph.ops:
        if op.phase != "backward":
            continue
        for value in op.reads:
            root = graph.storage_root[value]
            maker = graph.producer[root]
            if maker.phase in ("forward", "loss") and not maker.resident:
                found.setdefault(root, {})[op.name] = None
    return {root: tuple(readers) for root, readers in found.items()}


class _Tally:
    """Running sums of one row."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.parameters: Optional[int] = 0
        self.parameter_bytes = 0
        self.nbytes = {"forward": 0, "backward": 0, "update": 0}
        self.flops = {"forward": 0, "backward": 0, "update": 0}
        self.unknown_flops = 0
        self.cost = 0.0
        self.saved: dict[str, int] = {}
        self.readers: dict[str, dict[str, int]] = {}

    def add(self, op: Op, fresh: Sequence[Tensor]) -> None:
        part = op.phase if op.phase in ("backward", "update") else "forward"
        self.ops.append(op)
        self.nbytes[part] += sum(tensor.nbytes for tensor in fresh)
        self.flops[part] += round(op.flops or 0)
        self.unknown_flops += op.flops is None
        self.cost += op.cost

    def own(self, parameter: Op) -> None:
        for tensor in parameter.outputs:
            self.parameter_bytes += tensor.nbytes
            known = self.parameters is not None and tensor.shape is not None
            self.parameters = (self.parameters or 0) + math.prod(tensor.shape or ()) if known else None

    def save(self, storage: Tensor, readers: Iterable[str]) -> None:
        self.saved[storage.name] = storage.nbytes
        for reader in readers:
            self.readers.setdefault(reader, {})[storage.name] = storage.nbytes

    def row(self, key: Path | str, *, head: Op | None, handed_on: Tensor | None) -> Row:
        return Row(
            name=key if isinstance(key, str) else ".".join(key),
            depth=1 if isinstance(key, str) else len(key),
            ops=len(self.ops),
            op=None if head is None else head.op,
            phase=self.ops[0].phase if len(self.ops) == 1 else None,
            shape=None if handed_on is None else handed_on.shape,
            dtype=None if handed_on is None else handed_on.dtype,
            parameters=self.parameters,
            parameter_bytes=self.parameter_bytes,
            nbytes=sum(self.nbytes.values()),
            forward_bytes=self.nbytes["forward"],
            saved_storages=len(self.saved),
            saved_bytes=sum(self.saved.values()),
            readers=tuple(Reader(reader, len(sizes), sum(sizes.values())) for reader, sizes in self.readers.items()),
            flops=sum(self.flops.values()),
            forward_flops=self.flops["forward"],
            backward_flops=self.flops["backward"],
            unknown_flops=self.unknown_flops,
            cost=self.cost,
        )


def _rows(
    graph: Graph,
    keys: Mapping[str, Sequence[Key]],
    *,
    reader: Callable[[Key, Op], str],
    unread: Callable[[Op], Sequence[Key]],
    heads: Mapping[Key, Op] | None = None,
    handed_on: Mapping[Key, Tensor] | None = None,
) -> dict[Key, Row]:
    """Rows by key, in order of appearance; an op counts in its `keys`, a parameter that no op reads in its `unread`."""
    heads, handed_on = heads or {}, handed_on or {}
    tallies: dict[Key, _Tally] = {}
    saved = saved_readers(graph)
    held = _holders(graph)
    for op in graph.ops:
        if op.resident:
            continue
        fresh = [tensor for tensor in op.outputs if graph.storage_root[tensor.name] == tensor.name]
        for key in keys[op.name]:
            tally = tallies.setdefault(key, _Tally())
            tally.add(op, fresh)
            for tensor in fresh:
                if tensor.name in saved:
                    tally.save(tensor, [reader(key, graph.op_named[name]) for name in saved[tensor.name]])
    for op in graph.ops:
        if op.kind == "parameter":
            for key in keys[held[op.name]] if op.name in held else unread(op):
                tallies.setdefault(key, _Tally()).own(op)
    return {key: tally.row(key, head=heads.get(key), handed_on=handed_on.get(key)) for key, tally in tallies.items()}


def _path(op: Op) -> Path:
    """The path of an op by its own module and name."""
    name, module = scoped(op.name), scoped(op.module) if op.module else ()
    path = name if name[: len(module)] == module else (*module, name[-1])
    return path if len(path) <= MOST_LEVELS else (*path[: MOST_LEVELS - 1], ".".join(path[MOST_LEVELS - 1 :]))


def _holders(graph: Graph) -> dict[str, str]:
    """By resident, the first op that reads it."""
    found: dict[str, str] = {}
    for op in graph.ops:
        for value in op.reads:
            maker = graph.producer[value]
            if maker.resident:
                found.setdefault(maker.name, op.name)
    return found


def _layers(graph: Graph) -> dict[str, Path]:
    """By op, the path of its layer."""
    own = {op.name: _path(op) for op in graph.ops if not op.resident}
    taken = {own[op.name] for op in graph.ops if not op.resident and op.phase not in ("backward", "update")}

    def within(path: Path, paths: set[Path] | dict[Path, str]) -> Path | None:
        return next((path[:k] for k in range(1, len(path)) if path[:k] in paths), None)

    layers = {name: within(path, taken) or path for name, path in own.items()}
    held = {scoped(resident): reader for resident, reader in _holders(graph).items()}
    for name, path in own.items():
        resident = within(path, held)
        if layers[name] == path and resident is not None and held[resident] != name:
            layers[name] = layers[held[resident]]
    return layers


def _handed_on(graph: Graph, layers: Mapping[str, Path]) -> dict[Path, Tensor]:
    """By layer or module, the last value of its forward pass that is an output or read outside; else the last made."""
    handed: dict[Path, Tensor] = {}
    made: dict[Path, Tensor] = {}
    for op in graph.ops:
        if op.resident or op.phase in ("backward", "update"):
            continue
        path = layers[op.name]
        for tensor in op.outputs:
            if graph.on_resident(tensor.name):
                continue
            readers = [graph.op_named[name] for name in graph.readers[tensor.name]]
            outside = [layers[reader.name] for reader in readers if reader.phase not in ("backward", "update")]
            shared = 0 if tensor.output else min((_shared(path, other) for other in outside), default=len(path))
            for k in range(shared + 1, len(path) + 1):
                handed[path[:k]] = tensor
        for k in range(1, len(path) + 1):
            made.update({path[:k]: tensor for tensor in op.outputs[:1]})
    return {**made, **handed}


def _shared(path: Path, other: Path) -> int:
    """How many parts of two paths are the same from the start."""
    return next((k for k, (a, b) in enumerate(zip(path, other, strict=False)) if a != b), min(len(path), len(other)))


def _nested(paths: Iterable[Path]) -> list[Path]:
    """Each module directly followed by what is inside it, otherwise in the order given."""
    inside: dict[Path, list[Path]] = {}
    for path in paths:
        inside.setdefault(path[:-1], []).append(path)
    found: list[Path] = []
    waiting = inside.pop((), [])[::-1]
    while waiting:
        found.append(waiting.pop())
        waiting += inside.pop(found[-1], [])[::-1]
    return found
