"""The program as arrays: lists of lists as pointers and entries (compressed sparse rows, CSR)."""

from __future__ import annotations

from typing import NamedTuple

from planner.kernels import Flags, Floats, Ints


class Arrays(NamedTuple):
    """n ops (residents too) and m values in program order; the outputs of op k are values out_ptr[k] .. out_ptr[k+1].

    Args:
        out_ptr [n+1], read_ptr [n+1], read_value: CSR; reads by input position.
        producer [m]: op of each value.
        raw_bytes [m], storage_bytes [m]: fresh bytes, and rounded up to the alignment.
        alias [m]: for a view or an update, the input position it shares storage with; else -1.
        is_update [m], is_output [m], never_freed [m]: never_freed marks residents and their versions.
        root [m]: value whose making allocated the storage, in-place apart.
        after_ptr [n+1], after_op: order-only predecessors.
        pair_ptr [n+1], pair_in, pair_out, pair_identity: in-place permissions; input position, output position,
            identity flag.
        cost [n], workspace [n], recomputable [n], resident [n], phase [n] (index into PHASES).
        resident_bytes [1]: what residents add to every step in this memory model.
    """

    out_ptr: Ints
    read_ptr: Ints
    read_value: Ints
    after_ptr: Ints
    after_op: Ints
    producer: Ints
    raw_bytes: Ints
    storage_bytes: Ints
    alias: Ints
    is_update: Flags
    is_output: Flags
    never_freed: Flags
    root: Ints
    pair_ptr: Ints
    pair_in: Ints
    pair_out: Ints
    pair_identity: Flags
    cost: Floats
    workspace: Ints
    recomputable: Flags
    resident: Flags
    phase: Ints
    resident_bytes: Ints
