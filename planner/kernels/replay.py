"""Memory of a sequence of ops: canonical frees, storages and their lifetimes, bytes at each step.

Searches judge thousands of candidates with these compiled memory rules; `planner.simulator` has the last word.
"""

from __future__ import annotations

import numpy as np

from planner.kernels import Flags, Ints, kernel
from planner.kernels.csr import Arrays


@kernel
def canonical_frees(g: Arrays, sequence: Ints, needed: Flags, free_ptr: Ints, freed: Ints) -> None:
    """Rule 11: which values are freed right after each step of a sequence.

    Args:
        sequence [L]: ops.
        needed [m]: scratch flags.
        free_ptr [L+1], freed [sum of reads and outputs over the sequence]: CSR result. A value that an update drops by
            itself can be listed at that step; `replay` marks it.
    """
    used = np.int64(0)
    for v in range(needed.shape[0]):
        needed[v] = g.is_output[v]
    for step in range(sequence.shape[0] - 1, -1, -1):
        op = sequence[step]
        free_ptr[step + 1] = used  # counted from the end
        for v in range(g.out_ptr[op], g.out_ptr[op + 1]):
            if not needed[v] and not g.never_freed[v]:
                freed[used] = v
                used += 1
            needed[v] = False
        for r in range(g.read_ptr[op], g.read_ptr[op + 1]):
            v = g.read_value[r]
            if not needed[v] and not g.never_freed[v]:
                freed[used] = v
                used += 1
            needed[v] = True
    turn_round(free_ptr, freed, used)


@kernel
def turn_round(free_ptr: Ints, freed: Ints, used: int) -> None:
    """Reverse frees that were written last step first, so that step s owns [free_ptr[s], free_ptr[s+1]).

    Args:
        free_ptr [L+1]: entry s + 1 has the number of entries written before those of step s.
        freed, used: the entries, and how many.
    """
    for k in range(used // 2):
        other = used - 1 - k
        freed[k], freed[other] = freed[other], freed[k]
    shifted = 0
    for step in range(free_ptr.shape[0] - 1):
        following = used - free_ptr[step + 1]
        free_ptr[step] = shifted
        shifted = following
    free_ptr[free_ptr.shape[0] - 1] = used


@kernel
def _join(v: int, slot: int, slot_of: Ints, names: Ints, name_count: Ints) -> None:
    """Put the name v on a storage: names[0] has its first name, names[1] and [2] the next and previous of each."""
    slot_of[v] = slot
    first = names[0, slot]
    names[1, v] = first
    names[2, v] = -1
    if first >= 0:
        names[2, first] = v
    names[0, slot] = v
    name_count[slot] += 1


@kernel
def _leave(v: int, slot_of: Ints, names: Ints, name_count: Ints) -> None:
    """Take the name v off its storage."""
    slot = slot_of[v]
    slot_of[v] = -1
    following = names[1, v]
    previous = names[2, v]
    if previous >= 0:
        names[1, previous] = following
    else:
        names[0, slot] = following
    if following >= 0:
        names[2, following] = previous
    name_count[slot] -= 1


@kernel
def _may_overwrite(
    g: Arrays, op: int, pair: int, inputs: Ints, slot_of: Ints, name_count: Ints, freed: Ints, frees: tuple[int, int]
) -> bool:
    """The part of rule 10 that looks at all reads of the op and at the frees right after it."""
    slot = inputs[g.pair_in[pair]]
    first_read = g.read_ptr[op]
    for r in range(g.read_ptr[op + 1] - first_read):
        if inputs[r] != slot:
            continue
        permitted = False
        for other in range(g.pair_ptr[op], g.pair_ptr[op + 1]):
            if g.pair_in[other] == r and g.pair_out[other] == g.pair_out[pair]:
                permitted = True
        if not permitted or g.read_value[first_read + r] != g.read_value[first_read + g.pair_in[pair]]:
            return False
    output = g.out_ptr[op] + g.pair_out[pair]
    dying: int = 0
    own: bool = False
    for f in range(frees[0], frees[1]):
        if freed[f] == output:
            own = True
        elif freed[f] >= 0 and slot_of[freed[f]] == slot:
            dying += 1
    if g.pair_identity[pair] and not own:
        return True
    all_die: bool = dying == name_count[slot]
    return all_die


@kernel
def replay(
    g: Arrays, sequence: Ints, free_ptr: Ints, freed: Ints, timeline: Ints, buffers: Ints, scratch: Ints
) -> tuple[int, float, int, int]:
    """Rules 2 to 10 over a sequence and its frees.

    Args:
        sequence [L], free_ptr [L+1], freed: a schedule; entries of `freed` for what an update dropped become -1.
        timeline [L]: result, bytes at each step.
        buffers [4, outputs over the sequence]: result, one column per storage in order of birth: value, execution, and
            lifetime, half-open in steps.
        scratch [13, max(m, n, most reads of an op) + 1]: working memory, so that thousands of calls allocate nothing.
    Returns:
        peak bytes, cost, number of buffers, and the first illegal step, L where the end is illegal, or -1.
    """
    n_values = g.producer.shape[0]
    n_steps = sequence.shape[0]
    scratch[:, :] = -1
    slot_of = scratch[0]  # storage of the live instance of each value
    names = scratch[1:4]
    slot_raw, slot_bytes = scratch[4], scratch[5]
    slot_taken = scratch[6]  # step at which it was last updated or overwritten in place
    slot_buffer = scratch[7]  # -1: resident
    placed = scratch[8]  # step at which an output found a storage that exists
    kept = scratch[9]  # step at which an output was a live sibling
    inputs = scratch[10]  # storages of the running op's reads
    runs = scratch[11]
    name_count = scratch[12]
    runs[:] = 0
    name_count[:] = 0
    spare = -1  # storages given back, chained through slot_raw
    slots = np.int64(0)
    for v in range(n_values):
        if g.resident[g.producer[v]]:
            _join(v, slots, slot_of, names, name_count)
            slots += 1
    live = g.resident_bytes[0]
    peak = live
    cost = 0.0
    made = 0
    for step in range(n_steps):
        op = sequence[step]
        execution = runs[op]
        runs[op] += 1
        cost += g.cost[op]
        first_out, last_out = g.out_ptr[op], g.out_ptr[op + 1]
        first_read = g.read_ptr[op]
        n_reads = g.read_ptr[op + 1] - first_read
        if g.resident[op] or (execution > 0 and (not g.recomputable[op] or first_out == last_out)):
            return peak, cost, made, step
        if execution == 0:
            for before in range(g.after_ptr[op], g.after_ptr[op + 1]):
                if runs[g.after_op[before]] == 0 and not g.resident[g.after_op[before]]:
                    return peak, cost, made, step
        fresh = 0
        for v in range(first_out, last_out):
            if slot_of[v] >= 0:
                kept[v] = step
            else:
                fresh += 1
        if fresh == 0 and last_out > first_out:
            return peak, cost, made, step
        for r in range(n_reads):
            inputs[r] = slot_of[g.read_value[first_read + r]]
            if inputs[r] < 0:
                return peak, cost, made, step
        for v in range(first_out, last_out):
            if g.is_update[v]:  # drops every older name
                slot = inputs[g.alias[v]]
                slot_taken[slot] = step
                while names[0, slot] >= 0:
                    _leave(names[0, slot], slot_of, names, name_count)
        for v in range(first_out, last_out):
            if g.alias[v] >= 0 and kept[v] != step:
                _join(v, inputs[g.alias[v]], slot_of, names, name_count)
        for pair in range(g.pair_ptr[op], g.pair_ptr[op + 1]):
            v = first_out + g.pair_out[pair]
            slot = inputs[g.pair_in[pair]]
            if placed[v] == step or kept[v] == step or g.alias[v] >= 0:
                continue
            if slot_buffer[slot] < 0 or slot_taken[slot] == step or slot_raw[slot] != g.raw_bytes[v]:
                continue
            frees = free_ptr[step], free_ptr[step + 1]
            if _may_overwrite(g, op, pair, inputs, slot_of, name_count, freed, frees):
                slot_taken[slot] = step
                placed[v] = step
                _join(v, slot, slot_of, names, name_count)
        copies = 0
        for v in range(first_out, last_out):
            if g.alias[v] >= 0 or placed[v] == step:
                continue
            buffers[0, made] = v
            buffers[1, made] = execution
            buffers[2, made] = step
            buffers[3, made] = n_steps
            if kept[v] == step:  # its copy exists for this step only
                buffers[3, made] = step + 1
                copies += g.storage_bytes[v]
            else:
                slot = spare
                if slot >= 0:
                    spare = slot_raw[slot]
                else:
                    slot = slots
                    slots += 1
                _join(v, slot, slot_of, names, name_count)
                slot_raw[slot] = g.raw_bytes[v]
                slot_bytes[slot] = g.storage_bytes[v]
                slot_buffer[slot] = made
                slot_taken[slot] = -1
                live += g.storage_bytes[v]
            made += 1
        timeline[step] = live + copies + g.workspace[op]
        peak = max(peak, timeline[step])
        for r in range(n_reads):  # an update whose new version is a live sibling leaves a storage without names
            slot = inputs[r]
            if slot_taken[slot] == step and name_count[slot] == 0 and slot_buffer[slot] >= 0:
                buffers[3, slot_buffer[slot]] = step + 1
                live -= slot_bytes[slot]
                slot_buffer[slot] = -1  # seen: the same storage may be read twice
                slot_raw[slot] = spare
                spare = slot
        for f in range(free_ptr[step], free_ptr[step + 1]):
            v = freed[f]
            if v < 0 or slot_of[v] < 0:
                freed[f] = -1
                continue
            slot = slot_of[v]
            _leave(v, slot_of, names, name_count)
            if name_count[slot] == 0 and slot_buffer[slot] >= 0:
                buffers[3, slot_buffer[slot]] = step + 1
                live -= slot_bytes[slot]
                slot_raw[slot] = spare
                spare = slot
    for op in range(g.cost.shape[0]):  # rule 12
        if runs[op] == 0 and not g.resident[op]:
            return peak, cost, made, n_steps
    for v in range(n_values):
        if g.is_output[v] and slot_of[v] < 0:
            return peak, cost, made, n_steps
    return peak, cost, made, -1
