"""Chen et al. 2016: Alg. 3 over candidate cuts, and Alg. 2 for recompute counts of 0 or 1. `g` is `analysis.encode.Arrays`."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.kernels import kernel


@kernel
def threshold_cuts(gap_bytes: Any, cut_bytes: Any, threshold: int, cuts: Any) -> tuple[int, int, int]:
    """Alg. 3: sweep the candidates in program order, cut where the bytes since the last cut exceed a threshold.

    Args:
        gap_bytes [c]: bytes made after the candidate before, up to and including this one.
        cut_bytes [c]: bytes kept if this candidate is a cut.
        threshold: B.
        cuts [c]: result, indices of the candidates cut.
    Returns:
        number of cuts, x = bytes kept, y = bytes of the largest closed segment.
    """
    count = 0
    kept = 0
    largest = 0
    since = 0
    for c in range(gap_bytes.shape[0]):
        since += gap_bytes[c]
        if since > threshold:
            cuts[count] = c
            count += 1
            kept += cut_bytes[c]
            largest = max(largest, since)
            since = 0
    return count, kept, largest


@kernel
def recompute_once(g: Any, order: Any, mirrored: Any, origin: Any, sequence: Any) -> int:
    """Alg. 2 for m in {0, 1}: run the mirrored ops a second time, just before the first backward op that needs them.

    Args:
        order [k]: ops of one plain run, in program order.
        mirrored [n]: ops whose values are dropped after their last forward reader.
        origin [n]: True for the ops of the forward part, which read first instances.
        sequence [2k]: result.
    Returns:
        its length.
    """
    done = np.zeros(mirrored.shape[0], np.bool_)
    stack = np.empty(mirrored.shape[0], np.int64)
    length = 0
    for position in range(order.shape[0]):
        op = order[position]
        if not origin[op]:
            needed = 0
            top = 0
            stack[0] = op
            while top >= 0:
                reader = stack[top]
                top -= 1
                for r in range(g.read_ptr[reader], g.read_ptr[reader + 1]):
                    maker = g.producer[g.read_value[r]]
                    if mirrored[maker] and not done[maker]:
                        done[maker] = True
                        sequence[length + needed] = maker
                        needed += 1
                        top += 1
                        stack[top] = maker
            sequence[length : length + needed] = np.sort(sequence[length : length + needed])  # ops are numbered in program order
            length += needed
        sequence[length] = op
        length += 1
    return length
