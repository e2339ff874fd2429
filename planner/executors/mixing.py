"""What an op computes, outputs whose every byte depends on every byte of the inputs, and their scaled sizes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

import numpy as np

from planner.graph import Graph, Op

Bytes = np.typing.NDArray[np.uint8]
Words = np.typing.NDArray[np.uint64]

_MASK: Final = 2**64 - 1


class Mixer:
    """The arithmetic of all ops: a change of any input byte, or an exchange of two, changes every output byte."""

    def __init__(self, largest_bytes: int, scale: int) -> None:
        self.scale = scale
        self._words: Words = random_words(self.size(largest_bytes) // 8 + 1)
        self._weights: Words = self._words | np.uint64(1)  # odd: a change of one byte never cancels

    def size(self, nbytes: int) -> int:
        """A size divided by the scale and rounded up."""
        return -(-nbytes // self.scale)

    def window(self, offset: int, nbytes: int, storage_bytes: int) -> tuple[int, int]:
        """Where a view begins and ends in a storage of scaled size."""
        lo = min(offset // self.scale, storage_bytes)
        return lo, min(lo + self.size(nbytes), storage_bytes)

    def digest(self, content: Bytes) -> tuple[int, int]:
        """(weighted sum of the words, length)."""
        count = -(-len(content) // 8)
        words = np.zeros(count, dtype=np.uint64)
        words.view(np.uint8)[: len(content)] = content
        return int(np.dot(words, self._weights[:count])), len(content)

    def mixed(self, op: Op, o: int, nbytes: int, digests: Iterable[tuple[int, int]], *, run: int = 0) -> Bytes:
        """The bytes of an output; an op that must not run again makes other bytes at each run."""
        label = f"{op.name}\0{o}\0{0 if op.recomputable else run}"
        state = int.from_bytes(hashlib.blake2b(label.encode(), digest_size=8).digest(), "little")
        for digest, length in digests:
            state = _scrambled((_scrambled(state ^ digest) + length) & _MASK)
        words = self._words[: -(-nbytes // 8)] * np.uint64(state | 1)
        words ^= np.uint64(_scrambled(state))
        content: Bytes = words.view(np.uint8)[:nbytes]
        return content


def _scrambled(state: int) -> int:
    """The finaliser of SplitMix64."""
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
    return state ^ state >> 31


def random_words(count: int) -> Words:
    """The first words of one fixed sequence, the same on any machine."""
    words: Words = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        words ^= words >> np.uint64(shift)
        words *= np.uint64(factor)
    words ^= words >> np.uint64(31)
    return words


def identical(graph: Graph, op: Op, o: int) -> list[int]:
    """Input positions whose storage the output equals byte for byte: identity pairs of equal size."""
    sizes = {i: graph.tensors[graph.storage_root[op.reads[i]]].nbytes for i, _, _ in op.inplace}
    return [i for i, out, same in op.inplace if same and out == o and sizes[i] == op.outputs[o].nbytes]
