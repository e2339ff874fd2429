"""What exporters write with control flow and sequences, although the file itself settles it, written as plain nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from planner.errors import GraphError
from planner.lowering.onnx.shapes import constant_tensor

_BRANCHES: Final = {True: "then_branch", False: "else_branch"}
_MOST_PARTS: Final = 2**12


def plain(model: Any) -> Any:
    """The model with constant branches taken and split sequences read as tensors, in place.

    Raises:
        GraphError: a branch is damaged.
    """
    take_branches(model, {})
    _split_sequences(model)
    return model


def take_branches(model: Any, known: Mapping[str, Any]) -> bool:
    """Write out, in place, the branch of every If whose condition is known; True if there was one.

    Args:
        known: tensors that shapes determine, by name, beside those that the file holds.
    Raises:
        GraphError: a branch is damaged.
    """
    taken = 0
    while _branch_taken(model, known):
        taken += 1
    return taken > 0


def _branch_taken(model: Any, known: Mapping[str, Any]) -> bool:
    constants = {**known, **constants_of(model)} if any(node.op_type == "If" for node in model.graph.node) else {}
    for place, node in enumerate(model.graph.node):
        condition = values_in(constants.get(node.input[0])) if node.op_type == "If" and node.input else None
        if condition is None or condition.size != 1:
            continue
        key = _BRANCHES[bool(condition.ravel()[0])]
        branch = next((attribute.g for attribute in node.attribute if attribute.name == key), None)
        if branch is None or len(branch.output) != len(node.output):
            raise GraphError(f"node {node.name or node.output[0]!r} (If) has no {key} with its outputs")
        nodes = list(_written_out(node, branch, model))
        rest = list(model.graph.node)
        del model.graph.node[:]
        model.graph.node.extend([*rest[:place], *nodes, *rest[place + 1 :]])
        return True
    return False


def _written_out(node: Any, branch: Any, model: Any) -> Iterator[Any]:
    """The nodes of a branch, what they make under names that no other node makes."""
    from onnx import helper

    inside = [name for inner in branch.node for name in inner.output if name]
    inside += [tensor.name for tensor in branch.initializer]
    names = {name: f"{node.output[0]}/{name}" for name in inside}
    for tensor in branch.initializer:
        model.graph.initializer.append(tensor)
        model.graph.initializer[-1].name = names[tensor.name]
    for inner in branch.node:
        yield _renamed(inner, names)
    for value, name in zip(branch.output, node.output, strict=True):
        if name:
            yield helper.make_node("Identity", [names.get(value.name, value.name)], [name], name=f"{name}/Identity")


def _renamed(node: Any, names: dict[str, str]) -> Any:
    """A copy of a node under new names of values, in its own subgraphs too unless they make the name themselves."""
    copy = type(node)()
    copy.CopyFrom(node)
    for field in (copy.input, copy.output):
        field[:] = [names.get(name, name) for name in field]
    for attribute in copy.attribute:
        for graph in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
            own = {name for inner in graph.node for name in inner.output} | {
                tensor.name for tensor in graph.initializer
            }
            outer = {old: new for old, new in names.items() if old not in own}
            renamed = [_renamed(inner, outer) for inner in graph.node]
            del graph.node[:]
            graph.node.extend(renamed)
            for value in graph.output:
                value.name = outer.get(value.name, value.name)
    return copy


def _split_sequences(model: Any) -> None:
    """SplitToSequence by numbers of the file, read at numbers of the file, as Split.

    A lone number is the size of every part; a last part that is smaller is refused later by inference.
    """
    from onnx import TensorProto, helper

    if not any(node.op_type == "SplitToSequence" for node in model.graph.node):
        return
    constants = constants_of(model)
    readers: dict[str, list[Any]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    replaced: dict[str, list[Any]] = {}  # by the name that a node made first
    for node in model.graph.node:
        if node.op_type != "SplitToSequence" or len(node.input) < 2:
            continue
        sizes = values_in(constants.get(node.input[1]))
        found = readers.get(node.output[0], [])
        at = [place for reader in found if (place := _position(reader, constants)) is not None]
        if sizes is None or len(at) < len(found) or not at:
            continue
        count = sizes.size if sizes.ndim else max(at) + 1
        if not -count <= min(at) <= max(at) < count <= _MOST_PARTS or (min(at) < 0 and not sizes.ndim):
            continue
        source, made = node.output[0], [f"{node.output[0]}/{k}" for k in range(count)]
        listed = sizes.tolist() if sizes.ndim else [int(sizes)] * count
        model.graph.initializer.append(helper.make_tensor(f"{source}/sizes", TensorProto.INT64, [count], listed))
        split = helper.make_node("Split", [node.input[0], f"{source}/sizes"], made, name=node.name)
        split.attribute.extend(attribute for attribute in node.attribute if attribute.name == "axis")
        replaced[source] = [_told_as(split, node)]
        for reader, place in zip(found, at, strict=True):
            same = helper.make_node("Identity", [made[place]], list(reader.output), name=reader.name)
            replaced[reader.output[0]] = [_told_as(same, reader)]
    nodes = [new for node in model.graph.node for new in replaced.get(node.output[0] if node.output else "", [node])]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _told_as(node: Any, old: Any) -> Any:
    node.metadata_props.extend(old.metadata_props)
    return node


def _position(reader: Any, constants: dict[str, Any]) -> int | None:
    """Where a SequenceAt reads; None for other readers and for positions that the file does not hold."""
    value = values_in(constants.get(reader.input[1])) if reader.op_type == "SequenceAt" else None
    return int(value.ravel()[0]) if value is not None and value.size == 1 else None


def constants_of(model: Any) -> dict[str, Any]:
    """The small tensors that the file holds, by name."""
    found = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if (tensor := constant_tensor(node)) is not None:
            found[tensor.name] = tensor
        elif node.op_type == "Identity" and node.input[0] in found:
            found[node.output[0]] = found[node.input[0]]
    return found


def values_in(tensor: Any) -> Any:
    """The values of a tensor; None for none, for damaged and for external ones."""
    from onnx import TensorProto, numpy_helper

    if tensor is None or tensor.data_location == TensorProto.EXTERNAL:
        return None
    try:
        return numpy_helper.to_array(tensor)
    except Exception:  # damaged bytes raise anything
        return None
