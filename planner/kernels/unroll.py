"""A sequence of ops as a program in which every run is an op of its own."""

from __future__ import annotations

import numpy as np

from planner.kernels import Flags, Ints, kernel
from planner.kernels.csr import Arrays


@kernel
def unroll(
    g: Arrays, runs: Ints, out_ptr: Ints, read_ptr: Ints, read_value: Ints, origin: Ints, root: Ints, is_output: Flags
) -> None:
    """Outputs and reads of each run: a run reads the newest instance before it.

    Args:
        runs [L]: op of each run, residents first.
        out_ptr [L+1], read_ptr [L+1], read_value: result; values are numbered in order of birth.
        origin, root, is_output [values]: result; the value each is an instance of, the instance whose making allocated
            its storage, and True for the last instance of an output.
    """
    newest = np.full(g.cost.shape[0], -1, np.int64)  # run of each op
    values = 0
    reads = 0
    out_ptr[0] = 0
    read_ptr[0] = 0
    for run in range(runs.shape[0]):
        op = runs[run]
        for r in range(g.read_ptr[op], g.read_ptr[op + 1]):
            v = g.read_value[r]
            maker = g.producer[v]
            read_value[reads] = out_ptr[newest[maker]] + v - g.out_ptr[maker]
            reads += 1
        read_ptr[run + 1] = reads
        for v in range(g.out_ptr[op], g.out_ptr[op + 1]):
            origin[values] = v
            root[values] = values
            if g.alias[v] >= 0:
                root[values] = root[read_value[read_ptr[run] + g.alias[v]]]
            values += 1
        out_ptr[run + 1] = values
        newest[op] = run
    for run in range(runs.shape[0]):
        for value in range(out_ptr[run], out_ptr[run + 1]):
            is_output[value] = g.is_output[origin[value]] and newest[runs[run]] == run


@kernel
def restore(
    g: Arrays, storage_rep: Ints, nbytes: Ints, needed: Flags, live_here: Flags, rerun: Flags, order: Ints, room: int
) -> int:
    """Keep values after all, one op after the other, as long as what is live at the instant stays within the room.

    Args:
        g: an unrolled program; `storage_rep`, `needed` and `live_here` as in `kernels.flow`.
        rerun [n]: ops that run again; on return, without those whose outputs stay or that nothing asks for any more.
        order: ops to try.
        room: bytes.
    Returns:
        bytes live at the end, values at hand apart.
    """
    demand = np.empty(storage_rep.shape[0], np.int64)  # ops that ask for each holder
    live = 0
    for h in range(storage_rep.shape[0]):
        demand[h] = 1 if needed[h] else 0
    for op in range(rerun.shape[0]):
        if rerun[op]:
            for r in range(g.read_ptr[op], g.read_ptr[op + 1]):
                h = storage_rep[g.read_value[r]]
                if h >= 0 and not live_here[h]:
                    demand[h] += 1
    for h in range(storage_rep.shape[0]):
        if demand[h] > 0 and not rerun[g.producer[h]]:
            live += nbytes[h]
    for _ in range(2):
        for k in range(order.shape[0]):
            op = order[k]
            if not rerun[op]:
                continue
            change = 0
            for v in range(g.out_ptr[op], g.out_ptr[op + 1]):
                if storage_rep[v] == v and demand[v] > 0:
                    change += nbytes[v]
            for r in range(g.read_ptr[op], g.read_ptr[op + 1]):
                h = storage_rep[g.read_value[r]]
                if h >= 0 and not live_here[h]:
                    demand[h] -= 1
                    if demand[h] == 0 and not rerun[g.producer[h]]:
                        change -= nbytes[h]
            if live + change <= room:
                live += change
                rerun[op] = False
                continue
            for r in range(g.read_ptr[op], g.read_ptr[op + 1]):
                h = storage_rep[g.read_value[r]]
                if h >= 0 and not live_here[h]:
                    demand[h] += 1
    return live
