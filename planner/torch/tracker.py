"""What a call of PyTorch holds: every storage that its ops make, from that op to the end of its last tensor.

A storage is what several tensors may share (views, `detach`, in-place results), and what an allocator is asked for.
Storages that were there before are not counted. Nor is what an op takes and gives back while it runs: no tensor has it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from planner.errors import PlannerError

#: `torch.tensor([...])` fills a new tensor out of sight, and shows it first as what this op reads.
_SHOWS_A_NEW_TENSOR = torch.ops.aten.lift_fresh.default


class Storage(NamedTuple):
    """Bytes that one op made, or that it resized."""

    op: str
    nbytes: int


class Memory:
    """The bytes of the storages that were made under `track`."""

    def __init__(self) -> None:
        self.ops: list[str] = []  # as they ran
        self.timeline_bytes: list[int] = []  # live after each op
        self.live_bytes = 0  # now; falls further after `track` ended, as tensors die
        self._lives: list[_Life] = []

    @property
    def peak_bytes(self) -> int:
        """Most bytes that were live after an op."""
        return max(self.timeline_bytes, default=0)

    def at_peak(self) -> list[Storage]:
        """The storages that were live at the first moment of most bytes, the largest first."""
        if not self.timeline_bytes:
            return []
        peak = self.timeline_bytes.index(self.peak_bytes)
        living = (life.storage for life in self._lives if life.began <= peak and not life.ended_by(peak))
        return sorted(living, key=lambda storage: -storage.nbytes)


@contextmanager
def track() -> Iterator[Memory]:
    """Count the storages of every op that runs inside, in the backward pass too.

    The rules of `papers/memory-model.md` are about such storages, so a plan's peak can be held against a real call.

    Returns:
        A context manager that gives the `Memory`; it may be read inside and afterwards.
    Raises:
        PlannerError: an op makes a tensor that has no storage of its own (sparse layouts).

    >>> import torch
    >>> from planner.torch import track
    >>> with track() as memory:
    ...     a = torch.zeros(256)  # 256 float32
    ...     b = a.view(16, 16) + 1  # the view shares the storage of a; the sum has its own
    ...     del a
    >>> memory.peak_bytes, memory.live_bytes, memory.at_peak()[0]
    (2048, 1024, Storage(op='aten.zeros.default', nbytes=1024))
    """
    memory = Memory()
    with _Watch(memory):
        yield memory


class _Life:
    """A storage between two resizes: counts of finished ops say when."""

    def __init__(self, storage: Storage, began: int) -> None:
        self.storage, self.began = storage, began
        self.ended: int | None = None

    def ended_by(self, op: int) -> bool:
        """True if the storage was gone when that op, by its position, had finished."""
        return self.ended is not None and self.ended <= op


class _Watch(TorchDispatchMode):
    supports_higher_order_operators = True  # those that keep a generator's state fail under a mode that does not say so

    def __init__(self, memory: Memory) -> None:
        super().__init__()
        self.memory = memory
        self.before_bytes: dict[int, int] = {}  # by address: size of a storage that was there before, else 0
        self.living: dict[int, _Life] = {}  # by address: what is counted now

    @classmethod
    def is_infra_mode(cls) -> bool:
        return True  # else dynamo skips a compiled function while this mode is on, and what runs is the eager one

    def __torch_dispatch__(
        self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        read = _storages(func, (args, kwargs))
        for storage in read:
            self._meet(storage, 0 if func is _SHOWS_A_NEW_TENSOR else storage.nbytes())
        made = func(*args, **kwargs)
        for storage in _storages(func, made):
            self._meet(storage, 0)
            read.append(storage)
        for storage in read:
            self._count(storage, str(func))
        self.memory.ops.append(str(func))
        self.memory.timeline_bytes.append(self.memory.live_bytes)
        return made

    def _meet(self, storage: Any, before_bytes: int) -> None:
        """Note a storage when it is first seen."""
        address = storage._cdata
        if address not in self.before_bytes:
            self.before_bytes[address] = before_bytes
            weakref.finalize(storage, self._gone, address).atexit = False

    def _count(self, storage: Any, op: str) -> None:
        """Count a storage that is new or was resized; of one that was there before, what it grew by."""
        address = storage._cdata
        nbytes = max(0, storage.nbytes() - self.before_bytes[address])
        life = self.living.get(address)
        if nbytes != (life.storage.nbytes if life else 0):
            self._end(address)
            self.living[address] = _Life(Storage(op, nbytes), len(self.memory.ops))
            self.memory._lives.append(self.living[address])
            self.memory.live_bytes += nbytes

    def _gone(self, address: int) -> None:
        del self.before_bytes[address]
        self._end(address)

    def _end(self, address: int) -> None:
        life = self.living.pop(address, None)
        if life is not None:
            life.ended = len(self.memory.ops)
            self.memory.live_bytes -= life.storage.nbytes


def _storages(func: Callable[..., Any], tree: object) -> list[Any]:
    """The storages of all tensors among an op's arguments or results."""
    try:
        return [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
    except NotImplementedError:
        layouts = {str(leaf.layout) for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)} - {"torch.strided"}
        what = f"a tensor of layout {', '.join(sorted(layouts))}" if layouts else "a tensor without a storage"
        raise PlannerError(
            f"op {str(func)!r} has {what}, which cannot be counted: track a call of dense tensors"
        ) from None
