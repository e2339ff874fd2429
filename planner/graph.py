"""The program: frozen ops and tensors, single assignment, in topological order.

A `Graph` that exists is valid: every read names a value made before it, sizes cannot overflow, aliases are well formed
and program order never reads an overwritten version. People write a `networkx.DiGraph`; `planner.lower` makes one of
these of it.
"""

from __future__ import annotations

import hashlib
import sys
from functools import cached_property
from typing import Any, Final, Literal, Optional

import msgspec

from planner.errors import GraphError
from planner.units import MAX_BYTES

Kind = Literal["op", "input", "parameter", "state"]
Phase = Literal["forward", "loss", "backward", "update"]

FORMAT: Final = "planner-graph"
VERSION: Final = 1
MAX_COST: Final = sys.float_info.max / 1e6  # of one run of every op, so that a million of them still have a finite cost


class Tensor(msgspec.Struct, frozen=True, omit_defaults=True):
    """One output of an op: a value.

    Args:
        name: the op's name, or `op:k` where the op has several outputs.
        nbytes: bytes of the fresh storage; for a view or an update it is shown in reports only.
        output: True if it must be live at the end.
        shape, dtype: for reports.
    """

    name: str
    nbytes: int
    output: bool = False
    shape: Optional[tuple[int, ...]] = None
    dtype: Optional[str] = None


class Op(msgspec.Struct, frozen=True, omit_defaults=True):
    """One operation, or a resident (`kind` other than "op").

    Args:
        name: unique.
        outputs: the values it makes.
        reads: names of the values it reads, by input position.
        after: ops that must have run once before its first run.
        cost: seconds, or any one unit, of one execution.
        workspace: bytes needed only while it runs.
        view: (input, output, byte offset): the output shares the input's storage, both stay valid.
        updates: (input, output): the output is the new version of the input in the same storage.
        inplace: (input, output, identity) permissions, tried in this order.
        recomputable: False: runs at most once.
        stage: candidate mark for Chen's planners: True, or an id shared by all members of one decision.
    """

    name: str
    outputs: tuple[Tensor, ...] = ()
    reads: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    cost: float = 1.0
    workspace: int = 0
    kind: Kind = "op"
    phase: Optional[Phase] = None
    view: tuple[tuple[int, int, int], ...] = ()
    updates: tuple[tuple[int, int], ...] = ()
    inplace: tuple[tuple[int, int, bool], ...] = ()
    recomputable: bool = True
    stage: Optional[bool | str] = None
    op: Optional[str] = None
    flops: Optional[float] = None
    module: Optional[str] = None

    @property
    def resident(self) -> bool:
        """True for inputs, parameters and states: live from start to end."""
        return self.kind != "op"


class _GraphFile(msgspec.Struct, frozen=True):
    format: str
    version: int
    name: str
    ops: tuple[Op, ...]


class Graph:
    """A checked program.

    Args:
        ops: residents and operations in program order.
        name: shown in reports.
    Raises:
        GraphError: names the op and what is wrong.

    >>> Graph([Op("a", (Tensor("a", 4),)), Op("b", (Tensor("b", 4, output=True),), reads=("a",))]).outputs
    ('b',)
    """

    def __init__(self, ops: tuple[Op, ...] | list[Op], *, name: str = "graph") -> None:
        self.name: Final = name
        self.ops: Final = tuple(ops)
        self.tensors: Final[dict[str, Tensor]] = {}
        self.producer: Final[dict[str, Op]] = {}
        self.op_named: Final[dict[str, Op]] = {}
        total = 0
        total_cost = 0.0
        for op in self.ops:
            if op.name in self.op_named:
                raise GraphError(f"op {op.name!r} is defined twice")
            _check_op(op, self)
            self.op_named[op.name] = op
            for tensor in op.outputs:
                if tensor.name in self.tensors:
                    other = self.producer[tensor.name].name
                    raise GraphError(f"two values are named {tensor.name!r}; rename op {op.name!r} or {other!r}")
                self.tensors[tensor.name] = tensor
                self.producer[tensor.name] = op
                total += tensor.nbytes
            total += op.workspace
            if total > MAX_BYTES:
                raise GraphError(f"op {op.name!r}: sizes add up to more than 2**62 bytes")
            total_cost += min(op.cost, MAX_COST * 2)  # an int may be larger than any float
            if total_cost > MAX_COST:
                most = f"{MAX_COST:.1e}; give them in a larger unit"
                raise GraphError(f"op {op.name!r}: costs add up to more than {most}")
        self.storage_root: Final = _storage_roots(self)
        _check_versions(self)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Values that must be live at the end, in program order."""
        return tuple(t.name for t in self.tensors.values() if t.output)

    @cached_property
    def readers(self) -> dict[str, tuple[str, ...]]:
        """For each value, the ops that read it, in program order."""
        lists: dict[str, list[str]] = {name: [] for name in self.tensors}
        for op in self.ops:
            for value in dict.fromkeys(op.reads):
                lists[value].append(op.name)
        return {name: tuple(ops) for name, ops in lists.items()}

    @cached_property
    def dead(self) -> tuple[str, ...]:
        """Ops that no output, no update of a resident and no op without outputs depends on."""
        needed: set[str] = set()
        after: set[str] = set()
        for op in reversed(self.ops):
            effect = not op.outputs or any(self.on_resident(op.reads[i]) for i, _ in op.updates)
            if effect or op.name in after or any(t.output or t.name in needed for t in op.outputs):
                needed.update(op.reads)
                needed.update(t.name for t in op.outputs)
                after.update(op.after)
        made = [op for op in self.ops if op.outputs and not op.resident]
        return tuple(op.name for op in made if needed.isdisjoint(t.name for t in op.outputs))

    def on_resident(self, value: str) -> bool:
        """True if the value lies on the storage of an input, a parameter or a state."""
        return self.producer[self.storage_root[value]].resident

    def carries_resident(self, value: str) -> bool:
        """True if the value is a resident or a version of one, so that freeing it is an error."""
        op = self.producer[value]
        if op.resident:
            return True
        return self.on_resident(value) and any(op.outputs[o].name == value for _, o in op.updates)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the content, independent of the order ops were given in."""
        digest = hashlib.sha256(f"{FORMAT} {VERSION}".encode())
        encoder = msgspec.json.Encoder()
        for op in sorted(self.ops, key=lambda op: op.name):
            digest.update(encoder.encode(op))
        return digest.hexdigest()

    def to_json(self) -> bytes:
        """The encoded form: format, version, name, and the ops in program order."""
        return msgspec.json.encode(_GraphFile(FORMAT, VERSION, self.name, self.ops))

    @classmethod
    def from_json(cls, text: bytes | str) -> Graph:
        """A graph from `to_json`'s form.

        Raises:
            GraphError: not JSON, another format or version, a wrong type, or an invalid program.
        """
        try:
            head = msgspec.json.decode(text, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise GraphError(f"not a JSON graph: {error}") from None
        return cls.from_head(head)

    @classmethod
    def from_head(cls, head: dict[str, Any]) -> Graph:
        """A graph from the decoded JSON object, format, version and types checked."""
        if head.get("format") != FORMAT:
            raise GraphError(f"not a graph: format is {head.get('format')!r}, expected {FORMAT!r}")
        if head.get("version") != VERSION:
            raise GraphError(f"graph of version {head.get('version')!r}; this planner reads version {VERSION}")
        return cls.from_parts(head)

    @classmethod
    def from_parts(cls, parts: dict[str, Any]) -> Graph:
        """A graph from the decoded JSON object, types checked."""
        try:
            file = msgspec.convert(parts, _GraphFile)
        except msgspec.ValidationError as error:
            raise GraphError(f"not a valid graph: {error}{_op_of(parts, str(error))}") from None
        return cls(file.ops, name=file.name)

    def __len__(self) -> int:
        return len(self.ops)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Graph) and self.ops == other.ops

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        return f"Graph({self.name!r}, {len(self.ops)} ops, {len(self.tensors)} values)"


def _op_of(parts: dict[str, Any], message: str) -> str:
    """` (op 'x')` for a msgspec path such as `$.ops[3].cost`."""
    try:
        index = int(message.split("$.ops[", 1)[1].split("]", 1)[0])
        return f" (op {parts['ops'][index]['name']!r})"
    except (IndexError, KeyError, TypeError, ValueError):
        return ""


def _check_op(op: Op, graph: Graph) -> None:
    """Check one op against the ops before it."""
    where = f"op {op.name!r}"
    if op.resident and (op.reads or op.after):
        raise GraphError(f"{where} is a resident ({op.kind}): it cannot read anything")
    for value in op.reads:
        if value not in graph.tensors:
            raise GraphError(f"{where} reads {value!r}, which no op before it makes")
    for name in op.after:
        if name not in graph.op_named:
            raise GraphError(f"{where} must run after {name!r}, which is not before it")
    if not 0 <= op.cost < float("inf"):
        raise GraphError(f"{where}: cost {op.cost!r} must be finite and >= 0")
    if op.workspace < 0:
        raise GraphError(f"{where}: workspace {op.workspace} is negative")
    for tensor in op.outputs:
        if tensor.nbytes < 0:
            raise GraphError(f"{where}: nbytes {tensor.nbytes} of {tensor.name!r} is negative")
    aliased: set[int] = set()
    updated: set[int] = set()
    for attribute, pairs in (("view", op.view), ("updates", op.updates), ("inplace", op.inplace)):
        for pair in pairs:
            i, o = pair[0], pair[1]
            if not 0 <= i < len(op.reads) or not 0 <= o < len(op.outputs):
                has = f"{len(op.reads)} inputs, {len(op.outputs)} outputs"
                raise GraphError(f"{where}: {attribute} pair {tuple(pair)} is out of range ({has})")
            if attribute == "view" and pair[2] < 0:  # type: ignore[misc]
                raise GraphError(f"{where}: view {tuple(pair)} has a negative byte offset")
            if attribute != "inplace":
                if o in aliased:
                    raise GraphError(f"{where}: output {o} is on two storages (view and updates name it twice)")
                aliased.add(o)
            if attribute == "updates":
                if i in updated:
                    raise GraphError(f"{where}: input {i} is updated twice")
                updated.add(i)


def _storage_roots(graph: Graph) -> dict[str, str]:
    """For each value, the value that allocated its storage; in-place pairs are not decided here."""
    root = {name: name for name in graph.tensors}
    for op in graph.ops:
        updated = [root[op.reads[i]] for i, _ in op.updates]
        if len(set(updated)) < len(updated):
            raise GraphError(f"op {op.name!r} updates one storage twice, through two of its inputs; make it two ops")
        for i, o, offset in op.view:
            base, window = root[op.reads[i]], op.outputs[o]
            size = graph.tensors[base].nbytes
            # A view of no bytes may lie at the very end, and any view of a base of no bytes has offset 0.
            if offset and (offset > size or (offset == size and window.nbytes)):
                where = f"starts at byte {offset}, but its base {base!r} has {size} bytes"
                raise GraphError(f"op {op.name!r}: view {window.name!r} {where}")
            root[window.name] = base
        for i, o in op.updates:
            root[op.outputs[o].name] = root[op.reads[i]]
    return root


def _check_versions(graph: Graph) -> None:
    """Refuse a program that reads, or ends with, a version that an update has overwritten."""
    root = graph.storage_root
    updated_roots = {root[op.reads[i]] for op in graph.ops for i, _ in op.updates}
    if not updated_roots:
        return
    names: dict[str, list[str]] = {}
    killer: dict[str, str] = {}
    for op in graph.ops:
        for value in op.reads:
            if value in killer:
                after = f"after op {killer[value]!r} updated it"
                raise GraphError(f"op {op.name!r} reads {value!r} {after}; order {op.name!r} before it")
        for i, o, identity in op.inplace:
            for shared in (root[op.reads[i]], root[op.outputs[o].name]):
                if identity and shared in updated_roots:
                    pair = f"identity in-place pair ({i}, {o})"
                    raise GraphError(f"op {op.name!r}: {pair} on storage {shared!r}, which is updated")
        for i, _ in op.updates:
            for older in names.get(root[op.reads[i]], ()):
                killer[older] = op.name
            names[root[op.reads[i]]] = []
        for tensor in op.outputs:
            if root[tensor.name] in updated_roots:
                names.setdefault(root[tensor.name], []).append(tensor.name)
    for value, op_name in killer.items():
        if graph.tensors[value].output:
            remedy = "make the new version the output"
            raise GraphError(f"value {value!r} is an output, but op {op_name!r} updates it in place; {remedy}")
