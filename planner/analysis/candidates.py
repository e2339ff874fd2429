"""Where the forward pass can be cut: at the user's marks, or at storages through which all of it goes."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from planner.analysis.arrays import BACKWARD, FORWARD, LOSS, UPDATE, Arrays, Encoded, Flags, Ints
from planner.graph import Graph


class ForwardPart(NamedTuple):
    """The forward part of a training graph and its candidate cuts.

    Args:
        origin [n]: ops of the forward and loss phases, and ops without a phase before the first backward op.
        droppable [n]: forward ops that can run twice: recomputable, and not in `touches_updated`.
        gap_bytes [c]: bytes made after the candidate before, up to and including this one.
        cut_bytes [c]: bytes kept by cutting here.
        position [c]: last op row of the segment that this candidate closes.
        members: the op rows that each candidate keeps.
        tail_bytes: bytes made after the last candidate.
    """

    origin: Flags
    droppable: Flags
    gap_bytes: Ints
    cut_bytes: Ints
    position: Ints
    members: tuple[tuple[int, ...], ...]
    tail_bytes: int


def forward_part(graph: Graph, encoded: Encoded, *, most_crossing: int = 1) -> ForwardPart | None:
    """The forward part and its candidate cuts; None if the graph has no forward and backward phases.

    Candidates are the user's `stage` marks (nodes of equal string id are one candidate). Without marks they are the
    articulation storages: each alone carries everything the later forward ops need, residents and saved generator
    states apart. One sweep in program order, O(ops + reads).

    Args:
        most_crossing: also cut where at most so many storages carry on, as in a network with skips over its length.
    Source: Chen et al. 2016, 4.3; the original leaves finding candidates to its user (`mirror_stage`).
    """
    arrays = encoded.arrays
    backward = np.flatnonzero(arrays.phase == BACKWARD)
    if not len(backward) or not (arrays.phase == FORWARD).any():
        return None
    origin = (arrays.phase == FORWARD) | (arrays.phase == LOSS)
    origin |= (arrays.phase == 0) & (np.arange(len(arrays.phase)) < backward[0])
    origin &= ~arrays.resident
    droppable = origin & (arrays.phase != LOSS) & arrays.recomputable & ~touches_updated(arrays)
    marked = [(k, op.stage) for k, op in enumerate(graph.ops) if op.stage is not None and origin[k]]
    candidates = _marked_candidates(marked) if marked else _crossing_candidates(arrays, origin, backward, most_crossing)
    fresh_bytes = np.zeros(len(origin), dtype=np.int64)
    fresh = arrays.alias < 0
    np.add.at(fresh_bytes, arrays.producer[fresh], arrays.storage_bytes[fresh])
    fresh_bytes[~origin] = 0
    made = np.concatenate(([0], np.cumsum(fresh_bytes)))
    position = np.array([p for p, _ in candidates], dtype=np.int64)
    reached = made[position + 1]
    return ForwardPart(
        origin=origin,
        droppable=droppable,
        gap_bytes=np.diff(np.concatenate(([0], reached))).astype(np.int64),
        cut_bytes=np.array([fresh_bytes[list(members)].sum() for _, members in candidates], dtype=np.int64),
        position=position,
        members=tuple(members for _, members in candidates),
        tail_bytes=int(made[-1] - (reached[-1] if len(reached) else 0)),
    )


def equal_cuts(part: ForwardPart) -> tuple[int, ...]:
    """Candidates nearest to the ends of sqrt(candidates) segments of equal bytes; the last segment stays open."""
    reached = np.cumsum(part.gap_bytes)
    if not len(reached):
        return ()
    segments = max(1, round(math.sqrt(len(reached))))
    total = int(reached[-1]) + part.tail_bytes
    return tuple(sorted({int(np.argmin(np.abs(reached - total * k / segments))) for k in range(1, segments)}))


def touches_updated(arrays: Arrays) -> Flags:
    """Ops on a storage that an op before the update phase updates: they cannot run again after it."""
    updated = np.zeros(len(arrays.root), dtype=np.bool_)
    updated[arrays.root[arrays.is_update & (arrays.phase[arrays.producer] != UPDATE)]] = True
    touched = np.zeros(len(arrays.phase), dtype=np.bool_)
    touched[arrays.producer[updated[arrays.root]]] = True
    reader = np.repeat(np.arange(len(arrays.phase)), np.diff(arrays.read_ptr))
    touched[reader[updated[arrays.root[arrays.read_value]]]] = True
    return touched


def _marked_candidates(marked: list[tuple[int, bool | str]]) -> list[tuple[int, tuple[int, ...]]]:
    """Candidates of the user's marks: each True is one, and equal ids are one, placed at their last member."""
    groups: dict[str, list[int]] = {}
    for row, stage in marked:
        groups.setdefault(f"row {row}" if stage is True else f"id {stage}", []).append(row)
    return sorted((members[-1], tuple(members)) for members in groups.values())


def _crossing_candidates(arrays: Arrays, origin: Flags, backward: Ints, most: int) -> list[tuple[int, tuple[int, ...]]]:
    """The first place in program order of each set of at most `most` storages that carries all later ops need."""
    needed = np.zeros(len(origin), dtype=np.bool_)  # ancestors of the backward part
    needed[backward] = True
    for op in range(len(origin) - 1, -1, -1):
        if needed[op]:
            needed[arrays.producer[arrays.read_value[arrays.read_ptr[op] : arrays.read_ptr[op + 1]]]] = True
    reads = np.diff(arrays.read_ptr)
    free_source = ~arrays.recomputable & (reads == 0)  # saved generator states: small and never dropped
    last_reader: dict[int, int] = {}
    on_root: dict[int, list[int]] = {}
    rows = np.flatnonzero(origin & needed).tolist()
    for op in rows:
        for v in arrays.read_value[arrays.read_ptr[op] : arrays.read_ptr[op + 1]].tolist():
            last_reader[int(arrays.root[v])] = op
    crossing: set[int] = set()
    dying: dict[int, list[int]] = {}
    candidates: list[tuple[int, tuple[int, ...]]] = []
    before: tuple[int, ...] = ()
    for op in rows:
        for root in dying.pop(op, ()):
            crossing.discard(root)
        for v in range(arrays.out_ptr[op], arrays.out_ptr[op + 1]):
            root = int(arrays.root[v])
            maker = arrays.producer[root]
            on_root.setdefault(root, []).append(op)
            if root == v and last_reader.get(root, -1) > op and not arrays.resident[maker] and not free_source[maker]:
                crossing.add(root)
                dying.setdefault(last_reader[root], []).append(root)
        if 0 < len(crossing) <= most and (roots := tuple(sorted(crossing))) != before:
            before = roots
            candidates.append((op, roots))
    return [(op, tuple(sorted({row for root in roots for row in on_root[root]}))) for op, roots in candidates]
