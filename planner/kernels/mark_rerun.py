"""Values that must not wait: made again where a sequence would keep them."""

from __future__ import annotations

import numpy as np

from planner.kernels import Flags, Ints, kernel
from planner.kernels.csr import Arrays


@kernel
def mirror(g: Arrays, sequence: Ints, rerun: Flags, forward: Flags, result: Ints) -> int:
    """Run marked ops again, just in time, so that nothing made before a first run of the forward part is read after it.

    First runs of the forward part read whatever there is. Anything else that reads a value of a marked op finds one of
    a later run than the first, made after all first runs of the forward part so far; where the sequence has none, the
    op is run again just before, and so is, depth first, what it reads itself.

    Args:
        sequence [L]: ops.
        rerun [n]: the marked ops.
        forward [n]: ops of the forward part.
        result: the sequence with the further runs; what does not fit is counted only.
    Returns:
        its length, more than `result` has room for if that is too short.
    """
    runs = np.zeros(rerun.shape[0], np.int64)
    made = np.empty(rerun.shape[0], np.int64)  # position of the newest run of each op
    path_op = np.empty(rerun.shape[0] + 1, np.int64)  # from a step down to the run being looked at
    path_read = np.empty(rerun.shape[0] + 1, np.int64)
    edge = -1  # position of the last first run of the forward part
    length = 0
    for position in range(sequence.shape[0]):
        depth = 0
        path_op[0] = sequence[position]
        path_read[0] = 0
        while depth >= 0:
            op = path_op[depth]
            first = forward[op] and runs[op] == 0
            if not first and path_read[depth] < g.read_ptr[op + 1] - g.read_ptr[op]:
                maker = g.producer[g.read_value[g.read_ptr[op] + path_read[depth]]]
                path_read[depth] += 1
                if rerun[maker] and (runs[maker] == 1 or (runs[maker] > 1 and made[maker] < edge)):
                    depth += 1
                    path_op[depth] = maker
                    path_read[depth] = 0
                continue
            if first:
                edge = length
            runs[op] += 1
            made[op] = length
            if length < result.shape[0]:
                result[length] = op
            length += 1
            depth -= 1
    return length


@kernel
def read_runs(g: Arrays, sequence: Ints, needed: Flags, runs: Ints, keep: Flags) -> None:
    """Which runs of a sequence are first ones, or make something that is read before its op runs again.

    Args:
        sequence [L]: ops.
        needed [m], runs [n]: scratch.
        keep [L]: result flags.
    """
    for v in range(needed.shape[0]):
        needed[v] = g.is_output[v]
    for op in range(runs.shape[0]):
        runs[op] = 0
    for position in range(sequence.shape[0]):
        runs[sequence[position]] += 1
    for position in range(sequence.shape[0] - 1, -1, -1):
        op = sequence[position]
        runs[op] -= 1
        keep[position] = runs[op] == 0
        for v in range(g.out_ptr[op], g.out_ptr[op + 1]):
            keep[position] = keep[position] or needed[v]
        if keep[position]:
            for v in range(g.out_ptr[op], g.out_ptr[op + 1]):
                needed[v] = False
            for r in range(g.read_ptr[op], g.read_ptr[op + 1]):
                needed[g.read_value[r]] = True
