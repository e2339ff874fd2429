"""In-place arithmetic through strided views, which a functional graph does in another layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from planner.errors import GraphError
from planner.torch import unstable
from planner.torch.lines import line_at_work, quoted

#: Bytes that a loop of PyTorch takes at once: two of the widest vectors of a CPU.
_VECTOR_BYTES: Final = 128
aten = torch.ops.aten
#: They move elements and compute nothing.
_MOVES: Final = {aten.copy_, aten.fill_, aten.zero_, aten.masked_fill_, aten.index_put_, aten.resize_, aten.set_}


class Forward(TorchDispatchMode):
    """Tells every op of the forward pass the line that made it; refuses writes that a functional graph does otherwise.

    Refused are ops that compute in place on a view with gaps whose rows are no whole number of vectors.

    The captured graph has the op out of place, with a dense result. A function such as tanh rounds the elements that
    are left over at the end of a row by other instructions than those in full vectors, and the rows are others.
    """

    @classmethod
    def is_infra_mode(cls) -> bool:
        return True

    def __torch_dispatch__(
        self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func._schema.is_mutable and func.overloadpacket not in _MOVES and args and isinstance(args[0], torch.Tensor):
            written = args[0]
            if written.is_floating_point() and written.device.type == "cpu" and _has_broken_rows(written):
                fix = "write it out of place, or make the rows a multiple of 32 float32"
                where = f"{quoted(line)}: " if (line := line_at_work()) else ""
                raise GraphError(f"{where}op {str(func)!r} computes in place on a view with gaps,"
                                 f" {list(written.shape)}: out of place its last bits may differ: {fix}")  # fmt: skip
        with unstable.annotated(line=line_at_work()):
            return func(*args, **(kwargs or {}))


def _has_broken_rows(tensor: torch.Tensor) -> bool:
    """True if a tensor is not dense and its contiguous rows end within a vector."""
    if torch.ops.aten.is_non_overlapping_and_dense(tensor):
        return False
    row = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if size > 1 and stride != row:
            break
        row *= size
    return row * tensor.element_size() % _VECTOR_BYTES != 0
