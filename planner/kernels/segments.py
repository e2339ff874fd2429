"""Chen et al. 2016: Alg. 3 over candidate cuts, and Alg. 2 for any recompute counts."""

from __future__ import annotations

import numpy as np

from planner.kernels import Flags, Ints, kernel
from planner.kernels.csr import Arrays


@kernel
def threshold_cuts(gap_bytes: Ints, cut_bytes: Ints, threshold: int, cuts: Ints) -> tuple[int, int, int]:
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
def recompute(g: Arrays, order: Ints, counts: Ints, origin: Flags, gradient_of: Ints, sequence: Ints) -> int:
    """Alg. 2: run op v again counts[v] times, each copy just before the first backward op that needs it.

    Copy k of an op reads, of each predecessor, copy min(k, its count); a backward op reads the last copy of what it
    needs. Copies are run depth first by input position, as the original's graph order has them.

    Args:
        order [k]: ops of one plain run, in program order.
        counts [n]: m(v); 0 keeps the value. The original never shipped counts above 1.
        origin [n]: True for the ops of the forward part, which read first instances.
        gradient_of [n]: for parity with the original, the forward op of a backward op, or -1. The backward op of one
            that is kept reads what that read, whatever was recomputed; that of any other needs its copy, read or not.
        sequence [k + sum of counts]: result.
    Returns:
        its length; copies that nobody needs are not run.
    """
    newest = np.empty(counts.shape[0], np.int64)  # the newest copy run of each op
    newest[:] = 0
    path_op = np.empty(counts.shape[0] + 1, np.int64)  # from a backward op down to the copy being looked at
    path_copy = np.empty(counts.shape[0] + 1, np.int64)
    path_read = np.empty(counts.shape[0] + 1, np.int64)
    length = 0
    for position in range(order.shape[0]):
        depth = 0
        path_op[0] = order[position]
        path_copy[0] = 0
        path_read[0] = 0
        while depth >= 0:
            op = path_op[depth]
            reads = g.read_ptr[op + 1] - g.read_ptr[op]
            partner = gradient_of[op] if depth == 0 else -1
            ahead = reads
            if partner >= 0:
                ahead = reads + 1 if counts[partner] > 0 else 0
            if depth == 0 and origin[op]:
                ahead = 0
            if path_read[depth] < ahead:
                maker = partner
                if path_read[depth] < reads:
                    maker = g.producer[g.read_value[g.read_ptr[op] + path_read[depth]]]
                path_read[depth] += 1
                target = counts[maker] if depth == 0 else min(counts[maker], path_copy[depth])
                if newest[maker] < target:
                    depth += 1
                    path_op[depth] = maker
                    path_copy[depth] = target
                    path_read[depth] = 0
                continue
            newest[op] = max(newest[op], path_copy[depth])
            sequence[length] = op
            length += 1
            depth -= 1
    return length
