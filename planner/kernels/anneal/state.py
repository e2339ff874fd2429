"""The arrays in which a sequence of runs lies, and how a graph is laid out in them.

All of it lies in one int64 array `s`: the header, then records of ops, values, runs and blocks, each known by the index
of its first word, so that `s[run + NEXT]` is the run after a run. 0 is none. `f` has the costs. One array instead of
thirty: a compiled function pays for every array it is handed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.kernels import kernel

# Words of the header.
(
    N_RUNS, N_BLOCKS, FREE_RUN, FREE_BLOCK, LOGGED, BEST_LENGTH, BUDGET, ENDING, PENDING, MOVES, ACCEPTED, EXCESS,
        BEST_EXCESS, RANDOM,
    FIRST_OP, OPS_STOP, FIRST_RUN, RUN_WIDTH, MOST_RUNS, FIRST_BLOCK, MOST_BLOCKS, RANKED, LOG, BEST, SCRATCH,
) = range(25)  # fmt: skip
# The two ends of the list of runs.
HEAD, END, HEADER = 32, 48, 64
# Words of an op. `..._STOP` is where a list ends; reads are pairs of value and bytes of the output that may take its
# place.
(
    FIRST, LAST, RUNS, ROW, ONCE, WORKSPACE, OUTS, OUTS_STOP, READS, READS_STOP, AFTER, AFTER_STOP, LATER, LATER_STOP,
        KILLERS,
    KILLERS_STOP, VICTIMS, VICTIMS_STOP, BEFORE, BEHIND, OPERATION,
) = range(21)  # fmt: skip
# Words of a value: bytes of its own storage, whether it must be live at the end, its op, which output it is, and the
# ops that read it.
BYTES, KEPT, MAKER, SLOT, READERS, READERS_STOP, VALUE = range(7)
# Words of a run: neighbours in the list, and among the runs of its op; bytes that in-place takes off; its block; and
# for each output the last run that reads this instance, or the run itself.
OP, KEY, NEXT, PREVIOUS, NEWER, OLDER, STOLEN, BLOCK_OF, PLACE, READ = range(10)
# Words of a block: runs, bytes to add to each, the highest memory (may be too high where nothing is above the budget),
# bytes above.
BLOCK = 64
SIZE, ADDED, HIGHEST, ABOVE, RANK, MEMBERS = range(6)
MEMORY = MEMBERS + BLOCK
LOGS = 512
# Words of `f`: cost of the state and of the best, and above which cost a move need not go on; then the cost of each op.
COST, BEST_COST, MOST_COST, COSTS = range(4)
KEYS = 2**62  # of runs, in their order
FILL = 48  # runs of a block when it is packed anew


@kernel
def build(
    out_ptr: Any,
    nbytes: Any,
    kept: Any,
    read_ptr: Any,
    reads: Any,
    reader_ptr: Any,
    reader_op: Any,
    order_ptr: Any,
    order_op: Any,
    cost: Any,
    workspace: Any,
    once: Any,
    neighbours: Any,
    most_runs: int,
    s: Any,
    f: Any,
) -> Any:
    """Lay out a graph.

    Args:
        out_ptr [n+1]: the outputs of op k are values out_ptr[k] .. out_ptr[k+1].
        nbytes [m]: bytes of each value's own storage; 0 for views and updates.
        kept [m]: must be live at the end.
        read_ptr [n+1], reads [., 2]: distinct values an op reads, with bytes of the output that takes the value's place
        if it dies there. reader_ptr [m+1], reader_op: ops that read a value.
        order_ptr [4 n + 1], order_op: four lists an op: first run before its first run, and turned round; all its runs
        before the first
            of those, and turned round.
        cost [n], workspace [n], once [n]: of each op.
        neighbours [2, n]: op before and behind in a pinned order, or -1.
        most_runs: room for runs.
        s, f: result. Empty arrays: only the size is found.
    Returns:
        words of `s`.
    """
    n, m = cost.shape[0], nbytes.shape[0]
    first_op = HEADER
    first_value = first_op + n * OPERATION
    first_read = first_value + m * VALUE
    first_reader = first_read + 2 * reads.shape[0]
    first_order = first_reader + reader_op.shape[0]
    width = np.int64(1)
    for k in range(n):
        width = max(width, out_ptr[k + 1] - out_ptr[k])
    width += READ
    first_run = first_order + order_op.shape[0]
    first_block = first_run + most_runs * width
    most_blocks = most_runs // 24 + 8
    ranked = first_block + most_blocks * (MEMORY + BLOCK)
    log = ranked + most_blocks
    best = log + 3 * LOGS
    scratch = best + most_runs
    total = scratch + most_runs + 1
    if s.shape[0] < total:
        return total
    s[:HEADER] = 0
    s[FIRST_OP], s[OPS_STOP], s[FIRST_RUN], s[RUN_WIDTH], s[MOST_RUNS] = (
        first_op,
        first_value,
        first_run,
        width,
        most_runs,
    )
    s[FIRST_BLOCK], s[MOST_BLOCKS], s[RANKED], s[LOG], s[BEST], s[SCRATCH] = (
        first_block,
        most_blocks,
        ranked,
        log,
        best,
        scratch,
    )
    for k in range(n):
        op = first_op + k * OPERATION
        s[op + ROW] = k
        s[op + ONCE] = once[k]
        s[op + WORKSPACE] = workspace[k]
        s[op + OUTS] = first_value + out_ptr[k] * VALUE
        s[op + OUTS_STOP] = first_value + out_ptr[k + 1] * VALUE
        s[op + READS] = first_read + 2 * read_ptr[k]
        s[op + READS_STOP] = first_read + 2 * read_ptr[k + 1]
        for i in range(4):
            s[op + AFTER + 2 * i] = first_order + order_ptr[4 * k + i]
            s[op + AFTER + 2 * i + 1] = first_order + order_ptr[4 * k + i + 1]
        s[op + BEFORE] = 0 if neighbours[0, k] < 0 else first_op + neighbours[0, k] * OPERATION
        s[op + BEHIND] = 0 if neighbours[1, k] < 0 else first_op + neighbours[1, k] * OPERATION
        f[COSTS + k] = cost[k]
        for v in range(out_ptr[k], out_ptr[k + 1]):
            value = first_value + v * VALUE
            s[value + BYTES] = nbytes[v]
            s[value + KEPT] = kept[v]
            s[value + MAKER] = op
            s[value + SLOT] = v - out_ptr[k]
            s[value + READERS] = first_reader + reader_ptr[v]
            s[value + READERS_STOP] = first_reader + reader_ptr[v + 1]
    for r in range(reads.shape[0]):
        s[first_read + 2 * r] = first_value + reads[r, 0] * VALUE
        s[first_read + 2 * r + 1] = reads[r, 1]
    for r in range(reader_op.shape[0]):
        s[first_reader + r] = first_op + reader_op[r] * OPERATION
    for r in range(order_op.shape[0]):
        s[first_order + r] = first_op + order_op[r] * OPERATION
    return total
