"""A plain run without a plan: the bytes that every plan of a graph must end with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from planner.errors import GraphError
from planner.executors.mixing import Bytes, Mixer, identical
from planner.graph import Graph


class Content(NamedTuple):
    """What a value holds: a window of its storage, as the storage was when the value was made."""

    storage: Bytes  # of the whole storage, read-only
    lo: int
    hi: int

    @property
    def window(self) -> Bytes:
        """The bytes of the value itself."""
        return self.storage[self.lo : self.hi]


Contents = Mapping[str, Content]


def reference(graph: Graph, *, scale: int = 1) -> dict[str, Content]:
    """Every value of a plain run without a plan: program order, a fresh array for each value, nothing freed.

    A view is a window of its input's storage. An update copies the storage and writes its window in the copy: the older
    names keep what they held, and nobody reads them again.

    Raises:
        GraphError: an output is declared identical to inputs that differ.

    >>> from planner.graph import Op, Tensor
    >>> a, b = Op("a", (Tensor("a", 8),)), Op("b", (Tensor("b", 4),), reads=("a",), view=((0, 0, 4),))
    >>> contents = reference(Graph([a, b]))
    >>> bool((contents["b"].window == contents["a"].window[4:]).all())
    True
    """
    mixer = Mixer(max((tensor.nbytes for tensor in graph.tensors.values()), default=0), scale)
    contents: dict[str, Content] = {}
    for op in graph.ops:
        read = [contents[value] for value in op.reads]
        digests = [mixer.digest(content.window) for content in read]
        newer: dict[str, Bytes] = {}
        for i, o in op.updates:
            root = graph.storage_root[op.reads[i]]
            newer[root] = storage = read[i].storage.copy()
            storage[read[i].lo : read[i].hi] = mixer.mixed(op, o, read[i].hi - read[i].lo, digests)
            contents[op.outputs[o].name] = Content(storage, read[i].lo, read[i].hi)
        for i, o, offset in op.view:
            storage = newer.get(graph.storage_root[op.reads[i]], read[i].storage)
            contents[op.outputs[o].name] = Content(storage, *mixer.window(offset, op.outputs[o].nbytes, len(storage)))
        for o, tensor in enumerate(op.outputs):
            if tensor.name in contents:
                continue
            same = [read[i].storage for i in identical(graph, op, o)]
            if any(not np.array_equal(other, same[0]) for other in same[1:]):
                claim = f"{tensor.name!r} equals inputs that differ"
                raise GraphError(f"op {op.name!r}: identity in-place pairs say that {claim}")
            fresh = same[0].copy() if same else mixer.mixed(op, o, mixer.size(tensor.nbytes), digests)
            contents[tensor.name] = Content(fresh, 0, len(fresh))
    for content in contents.values():
        content.storage.flags.writeable = False
    return contents
