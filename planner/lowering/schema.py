"""The schema people write graphs in, and its translation to the program.

A `networkx.DiGraph`: a node is an operation, an edge is a read. `NODE` and `EDGE` are the whole contract (meaning,
default, check); unknown attributes are kept by networkx and ignored here. Lists equal tuples, so a graph that was
copied, relabelled, put through JSON or cut by `subgraph` gives the same program.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final, NamedTuple

import networkx as nx
import numpy as np

from planner.errors import GraphError
from planner.graph import Graph, Op, Tensor
from planner.text import as_int, shown
from planner.units import MAX_BYTES


class Attribute(NamedTuple):
    """One row of the schema. `check` returns the normal form or raises ValueError saying what is accepted."""

    default: Any
    check: Callable[[Any], Any]
    meaning: str


def _size(value: Any) -> int:
    size = as_int(value)
    if size is None or size < 0:
        raise ValueError("an int >= 0")
    return size


def _ints(value: Any) -> tuple[int, ...] | None:
    """A list or tuple of ints >= 0 as plain ints, or None."""
    if not isinstance(value, (list, tuple)):
        return None
    for item in value:
        if type(item) is not int or item < 0:
            break
    else:  # nearly always the ints are plain already
        return tuple(value)
    ints = tuple(size for size in map(as_int, value) if size is not None and size >= 0)
    return ints if len(ints) == len(value) else None


def _sizes(value: Any) -> int | tuple[int, ...]:
    """Bytes of the one output, or a tuple with one entry per output."""
    sizes = _ints(value) if isinstance(value, (list, tuple)) else as_int(value)
    if sizes is None or (isinstance(sizes, int) and sizes < 0):
        raise ValueError("an int >= 0, or a tuple of them with one entry per output")
    return sizes


def _cost(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = -1.0
    if isinstance(value, (str, bool, np.bool_)) or not 0 <= number < float("inf"):
        raise ValueError("a finite number >= 0")
    return number


def _flag(value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError("True or False")
    return bool(value)


def _plain(text: str) -> str:
    """A string of any subclass as a `str` that can be written to a file."""
    if type(text) is str and text.isascii():
        return text
    plain = str.__str__(text)
    try:
        plain.encode()
    except UnicodeEncodeError:
        raise ValueError("text without lone surrogates, which no file can hold") from None
    return plain


def _one_of(*names: str | None) -> Callable[[Any], Any]:
    known = frozenset(names)

    def check(value: Any) -> Any:
        if type(value) is str and value in known:
            return value
        if not (value is None or isinstance(value, str)) or value not in names:
            raise ValueError("one of " + ", ".join(map(repr, names)))
        return value if value is None else _plain(value)

    return check


def _output(value: Any) -> bool | tuple[int, ...] | None:
    if value is None:
        return None
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    positions = _ints(value)
    if positions is None:
        raise ValueError("True, False, None or a tuple of output positions (a bare int is ambiguous)")
    return positions


def _pairs(third: str | None) -> Callable[[Any], tuple[tuple[Any, ...], ...]]:
    """(input, output) pairs with an optional third item: a byte offset or an identity flag."""
    accepted = "pairs (input, output)" + (f" with an optional third item, {third}" if third else "")

    def check(value: Any) -> tuple[tuple[Any, ...], ...]:
        if not isinstance(value, (list, tuple)):
            raise ValueError(accepted)
        pairs = []
        for pair in value:
            if not isinstance(pair, (list, tuple)) or len(pair) not in ((2, 3) if third else (2,)):
                raise ValueError(accepted)
            ends = _ints(pair[:2])
            if ends is None:
                raise ValueError(accepted)
            last: tuple[Any, ...] = ()
            if third == "a byte offset":
                last = (_size(pair[2]) if len(pair) == 3 else 0,)
            elif third:
                last = (_flag(pair[2]) if len(pair) == 3 else False,)
            pairs.append((*ends, *last))
        return tuple(pairs)

    return check


def _stage(value: Any) -> bool | str | None:
    if isinstance(value, str):
        return _plain(value)
    if value is None or isinstance(value, (bool, np.bool_)):
        return True if value else None
    raise ValueError("True, None or a string shared by the nodes of one decision")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a string")
    return _plain(value)


def _any(value: Any) -> Any:
    return value


def _positions(value: Any) -> tuple[int, ...]:
    positions = _ints(value)
    if positions is None:
        raise ValueError("a tuple of positions")
    return positions


def _optional(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else check(value)


NODE: Final[Mapping[str, Attribute]] = {
    "nbytes": Attribute(None, _sizes, "bytes of the output, or a tuple, one per output; () = no output"),
    "cost": Attribute(1.0, _cost, "seconds, or any one unit, of one execution"),
    "workspace": Attribute(0, _size, "bytes needed only while it runs"),
    "kind": Attribute("op", _one_of("op", "input", "parameter", "state"), "anything but op is resident"),
    "phase": Attribute(None, _one_of(None, "forward", "loss", "backward", "update"), "part of the training step"),
    "output": Attribute(None, _output, "which outputs must be live at the end; None: all, if nothing reads any"),
    "view": Attribute((), _pairs("a byte offset"), "output shares the input's storage; both stay valid"),
    "updates": Attribute((), _pairs(None), "output is the new version of the input in the same storage"),
    "inplace": Attribute((), _pairs("an identity flag"), "permissions, tried in this order"),
    "recomputable": Attribute(True, _flag, "False: runs at most once"),
    "saves": Attribute(None, _any, "what its backward reads; used by differentiate only"),
    "stage": Attribute(None, _stage, "candidate mark for Chen's planners"),
    "position": Attribute(None, _optional(_size), "place in program order; optional"),
    "op": Attribute(None, _optional(_text), "operator type"),
    "shape": Attribute(None, _any, "shape, or one per output; reports only"),
    "dtype": Attribute(None, _any, "dtype, or one per output; reports only"),
    "flops": Attribute(None, _optional(_cost), "reports only"),
    "module": Attribute(None, _optional(_text), "reports only"),
}
#: Attributes that an `Op` has under the same name.
_OF_OP: Final = (
    "cost", "workspace", "kind", "phase", "view", "updates", "inplace", "recomputable", "stage", "op", "flops",
    "module",
)  # fmt: skip
_DEFAULTS: Final = {key: attribute.default for key, attribute in NODE.items()}
EDGE: Final[Mapping[str, Attribute]] = {
    "reads": Attribute(None, _positions, "outputs read, repeats allowed; () = order only"),
    "at": Attribute(None, _optional(_positions), "the reader's input positions, parallel to reads"),
}


def lower(graph: nx.DiGraph | Graph) -> Graph:
    """The checked program of a graph people wrote.

    Program order is the `position` attribute where every node has one, else insertion order; where that is not
    topological, the stable topological order (each time, the earliest node whose predecessors are done).

    Args:
        graph: DiGraph or MultiDiGraph (parallel edges add reads) in the schema above; a `Graph` is returned as it is.
    Raises:
        GraphError: a cycle, a missing or wrong attribute, an unknown read; names the node or the edge.

    >>> g = nx.DiGraph()
    >>> g.add_node("a", nbytes=4, cost=1.0)
    >>> g.add_node("b", nbytes=4)
    >>> g.add_edge("a", "b")
    >>> lower(g).op_named["b"].reads
    ('a',)
    """
    if isinstance(graph, Graph):
        return graph
    if not isinstance(graph, nx.Graph) or not graph.is_directed():
        raise GraphError(f"expected a networkx.DiGraph or a planner.Graph, not {type(graph).__name__}")
    nodes = {node: _node(node, given) for node, given in graph.nodes(data=True)}
    names = {node: _name(node) for node in nodes}
    if len(set(names.values())) < len(names):
        twice = next(name for name, count in Counter(names.values()).items() if count > 1)
        raise GraphError(f"two nodes are both named {twice!r} as text; rename one")
    wiring = _wiring(graph, nodes, names)
    order = program_order(graph)
    unread = _unread(nodes, wiring)
    ops = [_op(names[node], nodes[node], *wiring[node], unread=node in unread) for node in order]
    try:
        title = _plain(str(graph.graph.get("name") or "graph"))
    except ValueError as error:
        raise GraphError(f"the name of the graph is {shown(graph.graph['name'])}, expected {error}") from None
    return Graph(ops, name=title)


def _name(node: Hashable) -> str:
    try:
        return _plain(str(node))
    except ValueError as error:
        raise GraphError(f"node {node!r}: its name must be {error}") from None


def _node(node: Hashable, given: Mapping[str, Any]) -> dict[str, Any]:
    """All schema attributes of a node in normal form."""
    if given.get("nbytes") is None:
        wanted = "give the bytes of its output, or a tuple with one entry per output"
        raise GraphError(f"node {node!r} has no nbytes; {wanted}")
    normal = dict(_DEFAULTS)
    for key in [key for key in NODE if key in given]:
        default, check, _meaning = NODE[key]
        value = given[key]
        if value is default:
            continue
        try:
            normal[key] = check(value)
        except (ValueError, TypeError) as error:
            raise GraphError(f"node {node!r}: {key} is {shown(value, 100)}, expected {error}") from None
    count = 1 if isinstance(normal["nbytes"], int) else len(normal["nbytes"])
    if isinstance(normal["output"], tuple) and any(o >= count for o in normal["output"]):
        raise GraphError(f"node {node!r}: output names position {max(normal['output'])}, but it has {count} outputs")
    normal["count"] = count
    return normal


def _wiring(
    graph: nx.DiGraph, nodes: Mapping[Hashable, dict[str, Any]], names: Mapping[Hashable, str]
) -> dict[Hashable, tuple[tuple[str, ...], tuple[str, ...]]]:
    """For each node, the values it reads by input position, and the ops it only waits for."""
    reads: dict[Hashable, list[tuple[int | None, str, int]]] = {node: [] for node in nodes}
    after: dict[Hashable, set[str]] = {}
    check_reads, check_at = EDGE["reads"].check, EDGE["at"].check
    for source, target, given in graph.edges(data=True):
        count = nodes[source]["count"]
        try:
            key = "reads"
            outputs = given.get("reads")
            if outputs is None:
                if count != 1:
                    wanted = "say which are read, as reads=(0,), or reads=() for order only"
                    raise _bad_edge(source, target, f" has no reads, and {source!r} has {count} outputs; {wanted}")
                outputs = (0,)
            else:
                outputs = check_reads(outputs)
            key = "at"
            at = check_at(given.get("at"))
        except ValueError as error:
            raise _bad_edge(source, target, f": {key} is {shown(given[key], 100)}, expected {error}") from None
        if not outputs:
            after.setdefault(target, set()).add(names[source])
        if at is not None and len(at) != len(outputs):
            raise _bad_edge(source, target, f": at has {len(at)} positions for {len(outputs)} reads")
        for k, output in enumerate(outputs):
            if output >= count:
                raise _bad_edge(source, target, f" reads output {output}, but {source!r} has {count} outputs")
            reads[target].append((None if at is None else at[k], names[source], output))
    single = {names[node]: nodes[node]["count"] == 1 for node in nodes}
    waits = {node: tuple(sorted(after.get(node, ()))) for node in nodes}
    return {node: (_by_position(node, nodes[node], reads[node], single), waits[node]) for node in nodes}


def _bad_edge(source: Hashable, target: Hashable, what: str) -> GraphError:
    return GraphError(f"edge {source!r} -> {target!r}{what}")


def _by_position(
    node: Hashable, normal: Mapping[str, Any], reads: list[tuple[int | None, str, int]], single: Mapping[str, bool]
) -> tuple[str, ...]:
    """Reads in order of input position; where nobody gave positions they mean nothing, and names give the order."""
    given = [entry for entry in reads if entry[0] is not None]
    if len(reads) == 1 and reads[0][0] in (None, 0):
        pass
    elif not given:
        if len(reads) > 1 and (normal["inplace"] or normal["view"] or normal["updates"]):
            wanted = "its in-edges need `at`, the input positions"
            raise GraphError(f"node {node!r} has {len(reads)} reads and an inplace, view or updates: {wanted}")
        reads.sort(key=lambda entry: entry[1:])
    elif len(given) < len(reads):
        missing = next(entry[1] for entry in reads if entry[0] is None)
        where = f"the edge from {missing!r} has no `at`, but others have"
        raise GraphError(f"node {node!r}: {where}; give it on all or none")
    else:
        reads.sort()
        positions = [position for position, *_ in reads]
        if positions != list(range(len(reads))):
            raise GraphError(f"node {node!r}: `at` gives input positions {positions}, expected 0..{len(reads) - 1}")
    return tuple(name if single[name] else f"{name}:{output}" for _, name, output in reads)


def program_order(graph: nx.DiGraph) -> list[Hashable]:
    """Nodes in program order; see `lower`.

    Raises:
        GraphError: a cycle, naming its nodes.
    """
    root = graph
    while getattr(root, "_graph", None) is not None:  # a subgraph view iterates over a set: ask the graph it looks at
        root = root._graph
    order = [node for node in root if node in graph]
    given = dict(graph.nodes(data="position"))
    positions = [given[node] for node in order]
    if all(as_int(position) is not None for position in positions):
        order = [node for _, node in sorted(zip(positions, order, strict=True), key=lambda pair: pair[0])]
    rank = {node: k for k, node in enumerate(order)}
    if all(rank[source] < rank[target] for source, target in graph.edges()):
        return order
    waiting = {node: len(set(graph.predecessors(node))) for node in order}
    ready = [rank[node] for node in order if not waiting[node]]
    stable: list[Hashable] = []
    while ready:
        node = order[heapq.heappop(ready)]
        stable.append(node)
        for reader in graph.successors(node):
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, rank[reader])
    if len(stable) < len(order):
        cycle = [source for source, _target, *_ in nx.find_cycle(graph)]
        more = " ..." if len(cycle) > 8 else ""
        raise GraphError(f"the graph has a cycle: {' -> '.join(map(repr, cycle[:8]))}{more}")
    return stable


def _unread(
    nodes: Mapping[Hashable, dict[str, Any]], wiring: Mapping[Hashable, tuple[tuple[str, ...], tuple[str, ...]]]
) -> set[Hashable]:
    """Nodes of which no output is read."""
    read = {value for values, _ in wiring.values() for value in values}
    return {node for node, normal in nodes.items() if read.isdisjoint(_values(str(node), normal["count"]))}


def _values(name: str, count: int) -> tuple[str, ...]:
    """Names of the outputs of a node."""
    return (name,) if count == 1 else tuple([f"{name}:{o}" for o in range(count)])


def _op(name: str, normal: Mapping[str, Any], reads: tuple[str, ...], after: tuple[str, ...], *, unread: bool) -> Op:
    count: int = normal["count"]
    sizes = (normal["nbytes"],) if isinstance(normal["nbytes"], int) else normal["nbytes"]
    output = normal["output"]
    if output is None:
        output = unread and normal["kind"] == "op"
    kept = output if isinstance(output, tuple) else tuple(range(count)) if output else ()
    shapes = _per_output(normal["shape"], count, _shape)
    dtypes = _per_output(normal["dtype"], count, _dtype)
    tensors = [Tensor(value, sizes[o], o in kept, shapes[o], dtypes[o]) for o, value in enumerate(_values(name, count))]
    return Op(name, tuple(tensors), reads, after, **{key: normal[key] for key in _OF_OP})


def _shape(value: Any) -> tuple[int, ...] | None:
    """A shape as plain ints, or None."""
    shape = _ints(value)
    return None if shape is None or max(shape, default=0) > MAX_BYTES else shape


def _dtype(value: Any) -> str | None:
    """A dtype's name as plain text, or None."""
    try:
        return _plain(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _per_output(value: Any, count: int, read: Callable[[Any], Any]) -> tuple[Any, ...]:
    """A report attribute of each output, given once for all or for each; what does not parse is dropped."""
    shared = read(value)
    if shared is not None:
        return (shared,) * count
    if isinstance(value, (list, tuple)) and len(value) == count:
        return tuple(map(read, value))
    return (None,) * count
