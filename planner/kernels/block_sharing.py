"""The memory planner of MXNet's NNVM: use counts, whole blocks from a free list, and colours.

Each Compute makes one row for each of its outputs, in order: the outputs of step s are rows row_ptr[s] .. row_ptr[s+1].
Resident values have rows too, R + v, where R = row_ptr[L]. `papers/memory-model.md` says what a storage is; the rules
of the original are in `planner.mxnet.nnvm`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from planner.kernels import Flags, Ints, kernel
from planner.kernels.csr import Arrays
from planner.kernels.structs import struct

_LARGEST: Final = 2**63 - 1


class Sharing:
    """A schedule of L steps, the R rows of what it makes, and the blocks that they share."""

    sequence: Ints  # [L]
    free_ptr: Ints  # [L+1]
    freed: Ints  # entries that are not live are passed over
    row_ptr: Ints  # [L+1]: first row of each step
    execution: Ints  # [L]: how often the step's op ran before
    read_row: Ints  # the row read at each input position of each step
    kept: Flags  # [R+m]: an output was live already, so that the row is a copy for its step
    uses: Ints  # [R+m]: input positions that read the row, and one more where it is held beyond the last of them
    free_row: Ints  # the row that each entry of `freed` stops holding, or -1 where the last read has done so
    colour: Ints  # [L]: a block serves only steps of the colour of the step that released it
    workspace_bytes: Ints  # [n]: of each op, rounded up to the alignment
    match_range: int  # how many times larger or smaller than the request a free block may be; 0 never shares
    # [R+m]: the row whose making allocated the storage under a row; -1: on a resident, or a view not made anew
    storage: Ints
    block: Ints  # [R+L]: block of each such row, then of each step's workspace; -1: no bytes
    end: Ints  # [R]: step after the last of each storage
    block_bytes: Ints  # [R+L], as the next three
    block_colour: Ints
    free_bytes: Ints  # of the free blocks, in ascending order
    free_block: Ints
    n_free: int


SharingType, SharingProxy, new_sharing = struct(Sharing)


@kernel
def count_uses(g: Arrays, sharing: Sharing) -> int:
    """Find who reads which row, and how often: `execution`, `read_row`, `kept`, `uses` and `free_row`.

    Returns:
        the first illegal step, or -1; it sees reads of dead values and runs that make nothing, not the rest.
    """
    sequence, row_ptr, read_row = sharing.sequence, sharing.row_ptr, sharing.read_row
    kept, uses = sharing.kept, sharing.uses
    n_values = g.producer.shape[0]
    rows = row_ptr[sequence.shape[0]]
    current = np.full(n_values, -1, np.int64)  # row of the newest instance of each value
    root = np.arange(rows + n_values)  # row whose making allocated the storage; in-place pairs do not outlive an update
    version = np.zeros(rows + n_values, np.int64)  # of a root: how often it was updated
    born = np.zeros(rows + n_values, np.int64)  # the version that a row is a name of
    last = np.full(rows + n_values, -1, np.int64)  # step of its making or of its last read
    ended = np.zeros(rows + n_values, np.bool_)
    runs = np.zeros(g.cost.shape[0], np.int64)
    kept[:] = False
    uses[:] = 0
    sharing.free_row[:] = -1
    for v in range(n_values):
        if g.resident[g.producer[v]]:
            current[v] = rows + v
    reads = 0
    for step in range(sequence.shape[0]):
        op = sequence[step]
        sharing.execution[step] = runs[op]
        runs[op] += 1
        row = row_ptr[step]
        fresh = 0
        for v in range(g.out_ptr[op], g.out_ptr[op + 1]):
            instance = current[v]
            if instance >= 0 and version[root[instance]] == born[instance]:
                kept[row] = True
            else:
                fresh += 1
            row += 1
        if g.resident[op] or (fresh == 0 and row > row_ptr[step]):
            return step
        first_read = reads
        for r in range(g.read_ptr[op], g.read_ptr[op + 1]):
            instance = current[g.read_value[r]]
            if instance < 0 or version[root[instance]] != born[instance]:
                return step
            read_row[reads] = instance
            uses[instance] += 1
            last[instance] = step
            reads += 1
        for v in range(g.out_ptr[op], g.out_ptr[op + 1]):
            if g.is_update[v]:
                version[root[read_row[first_read + g.alias[v]]]] += 1
        row = row_ptr[step]
        for v in range(g.out_ptr[op], g.out_ptr[op + 1]):
            if not kept[row]:
                current[v] = row
                last[row] = step
                if g.alias[v] >= 0:
                    root[row] = root[read_row[first_read + g.alias[v]]]
                born[row] = version[root[row]]
            row += 1
        for f in range(sharing.free_ptr[step], sharing.free_ptr[step + 1]):
            v = sharing.freed[f]
            if v < 0 or current[v] < 0:
                continue
            instance = current[v]
            if version[root[instance]] != born[instance]:
                continue
            current[v] = -1
            ended[instance] = True
            if last[instance] < step:
                uses[instance] += 1
                sharing.free_row[f] = instance
    for row in range(rows):
        if not ended[row] and not kept[row]:
            uses[row] += 1  # held to the end, or dropped by an update, which empties the count of the whole storage
    return -1


@kernel
def colour_paths(g: Arrays, sharing: Sharing, colours: int) -> int:
    """Give the steps of the longest path without a colour one of its own, `colours` - 1 times; the rest get the last.

    Args:
        colours: most colours, at least 1.
    Returns:
        number of colours used.
    """
    sequence, row_ptr, read_row, colour = sharing.sequence, sharing.row_ptr, sharing.read_row, sharing.colour
    steps = sequence.shape[0]
    rows = row_ptr[steps]
    maker = np.empty(rows, np.int64)
    first_run = np.full(g.cost.shape[0], -1, np.int64)
    for step in range(steps):
        maker[row_ptr[step] : row_ptr[step + 1]] = step
        if first_run[sequence[step]] < 0:
            first_run[sequence[step]] = step
    colour[:] = -1
    best = np.empty(steps, np.int64)
    following = np.empty(steps, np.int64)
    used = 0
    while used < colours - 1:
        best[:] = 0
        following[:] = -1
        longest = 0
        start = -1
        last_read = read_row.shape[0]
        for step in range(steps - 1, -1, -1):
            op = sequence[step]
            if colour[step] < 0:
                best[step] += 1
            if best[step] > longest:
                longest = best[step]
                start = step
            reads = g.read_ptr[op + 1] - g.read_ptr[op]
            for r in range(last_read - reads, last_read):
                if read_row[r] < rows and best[maker[read_row[r]]] < best[step]:
                    best[maker[read_row[r]]] = best[step]
                    following[maker[read_row[r]]] = step
            last_read -= reads
            if first_run[op] == step:
                for a in range(g.after_ptr[op], g.after_ptr[op + 1]):
                    before = first_run[g.after_op[a]]
                    if before >= 0 and best[before] < best[step]:
                        best[before] = best[step]
                        following[before] = step
        if longest == 0:
            break
        while start >= 0:
            if colour[start] < 0:
                colour[start] = used
            start = following[start]
        used += 1
    for step in range(steps):
        if colour[step] < 0:
            colour[step] = used
    return used + 1


@kernel
def _fewer(sharing: Sharing, nbytes: int) -> int:
    """Free blocks smaller than so many bytes, by bisection; np.searchsorted would cost a second to compile."""
    low, high = 0, sharing.n_free
    while low < high:
        middle = (low + high) // 2
        if sharing.free_bytes[middle] < nbytes:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def _find(sharing: Sharing, size: int, colour: int) -> int:
    """Place in the free list of the block to reuse, or -1."""
    match_range = sharing.match_range
    if match_range == 0:
        return -1
    most = _LARGEST if size > _LARGEST // match_range else size * match_range
    middle = _fewer(sharing, size)
    for at in range(middle, sharing.n_free):
        if sharing.free_bytes[at] > most:
            break
        if sharing.block_colour[sharing.free_block[at]] == colour:
            return at
    for at in range(middle - 1, -1, -1):
        if sharing.free_bytes[at] < size // match_range:
            break
        if sharing.block_colour[sharing.free_block[at]] == colour:
            return at
    return -1


@kernel
def _give_back(sharing: Sharing, block: int, colour: int) -> None:
    """Put a block, now of a colour, behind those of its size in the free list."""
    if block < 0:
        return
    at = _fewer(sharing, sharing.block_bytes[block] + 1)
    for k in range(sharing.n_free, at, -1):
        sharing.free_bytes[k] = sharing.free_bytes[k - 1]
        sharing.free_block[k] = sharing.free_block[k - 1]
    sharing.free_bytes[at] = sharing.block_bytes[block]
    sharing.free_block[at] = block
    sharing.block_colour[block] = colour
    sharing.n_free += 1


@kernel
def _take(sharing: Sharing, at: int) -> int:
    """The block at a place in the free list, which is free no more."""
    block = sharing.free_block[at]
    sharing.n_free -= 1
    for k in range(at, sharing.n_free):
        sharing.free_bytes[k] = sharing.free_bytes[k + 1]
        sharing.free_block[k] = sharing.free_block[k + 1]
    return block


@kernel
def _lawful(g: Arrays, sharing: Sharing, step: int, pair: int, first_read: int, count: int, use: int) -> bool:
    """The part of rule 10 that looks at all reads of the op and at the frees right after it."""
    op, read_row, storage = sharing.sequence[step], sharing.read_row, sharing.storage
    slot = storage[read_row[first_read + g.pair_in[pair]]]
    value = g.read_value[g.read_ptr[op] + g.pair_in[pair]]
    remaining = count
    for r in range(g.read_ptr[op + 1] - g.read_ptr[op]):
        if storage[read_row[first_read + r]] != slot:
            continue
        remaining -= 1
        permitted = False
        for other in range(g.pair_ptr[op], g.pair_ptr[op + 1]):
            if g.pair_in[other] == r and g.pair_out[other] == g.pair_out[pair]:
                permitted = True
        if not permitted or g.read_value[g.read_ptr[op] + r] != value:
            return False
    if g.pair_identity[pair] and use > 0:
        return True
    for f in range(sharing.free_ptr[step], sharing.free_ptr[step + 1]):
        if sharing.free_row[f] >= 0 and storage[sharing.free_row[f]] == slot:
            remaining -= 1
    return remaining == 0


@kernel
def share(g: Arrays, sharing: Sharing) -> tuple[int, int]:
    """One pass in execution order with a use count for every storage: `storage`, `block`, `end` and `block_bytes`.

    Returns:
        number of blocks, and number of in-place pairs taken.
    """
    sequence, row_ptr, read_row = sharing.sequence, sharing.row_ptr, sharing.read_row
    kept, uses, free_row, colour = sharing.kept, sharing.uses, sharing.free_row, sharing.colour
    storage, block, end, workspace_bytes = sharing.storage, sharing.block, sharing.end, sharing.workspace_bytes
    steps = sequence.shape[0]
    rows = int(row_ptr[steps])
    count = np.zeros(rows, np.int64)
    raw = np.zeros(rows, np.int64)
    taken = np.full(rows, -1, np.int64)  # step at which it was last updated or taken in place
    settled = np.zeros(rows, np.bool_)  # rule 10 has found its pair
    most_outputs = 0
    for op in range(g.cost.shape[0]):
        most_outputs = max(most_outputs, g.out_ptr[op + 1] - g.out_ptr[op])
    missing = np.empty(most_outputs + 1, np.int64)
    storage[:] = -1
    block[:] = -1
    end[:] = -1
    first_read = np.int64(0)
    blocks = 0
    pairs = 0
    for step in range(steps):
        op = sequence[step]
        first_row, last_row = row_ptr[step], row_ptr[step + 1]
        first_out = g.out_ptr[op]
        reads = g.read_ptr[op + 1] - g.read_ptr[op]
        for row in range(first_row, last_row):  # an update drops every older name: only this step's reads are left
            v = first_out + row - first_row
            if g.is_update[v]:
                slot = storage[read_row[first_read + g.alias[v]]]
                if slot >= 0:
                    taken[slot] = step
                    count[slot] = 0
                    for r in range(first_read, first_read + reads):
                        count[slot] += storage[read_row[r]] == slot
        for row in range(first_row, last_row):
            v = first_out + row - first_row
            if g.alias[v] >= 0 and not kept[row]:
                slot = storage[read_row[first_read + g.alias[v]]]
                storage[row] = slot
                if slot >= 0:
                    count[slot] += uses[row]
        for pair in range(g.pair_ptr[op], g.pair_ptr[op + 1]):
            row = first_row + g.pair_out[pair]
            v = first_out + g.pair_out[pair]
            slot = storage[read_row[first_read + g.pair_in[pair]]]
            if settled[row] or kept[row] or g.alias[v] >= 0 or slot < 0:
                continue
            if taken[slot] == step or raw[slot] != g.raw_bytes[v]:
                continue
            if _lawful(g, sharing, step, pair, first_read, count[slot], uses[row]):
                settled[row] = True
                taken[slot] = step
                if uses[row] > 0 and (count[slot] == 1 or g.pair_identity[pair]):
                    storage[row] = slot
                    count[slot] += uses[row]
                    pairs += 1
        waiting = 0  # largest first, equal sizes higher output first; workspace, as output -1, behind those of its size
        for k in range(-1, last_row - first_row):
            if k < 0:
                size = workspace_bytes[op]
            elif g.alias[first_out + k] < 0 and storage[first_row + k] < 0:
                size = g.storage_bytes[first_out + k]
                storage[first_row + k] = first_row + k
                raw[first_row + k] = g.raw_bytes[first_out + k]
                count[first_row + k] = uses[first_row + k]
            else:
                size = 0
            if size == 0:
                continue
            at = waiting
            while at > 0:
                other = missing[at - 1]
                if (workspace_bytes[op] if other < 0 else g.storage_bytes[first_out + other]) > size:
                    break
                missing[at] = other
                at -= 1
            missing[at] = k
            waiting += 1
        for at in range(waiting):
            k = missing[at]
            size = workspace_bytes[op] if k < 0 else g.storage_bytes[first_out + k]
            found = _find(sharing, size, colour[step])
            if found < 0:
                chosen = blocks
                sharing.block_bytes[chosen] = size
                blocks += 1
            else:
                chosen = _take(sharing, found)
                sharing.block_bytes[chosen] = max(sharing.block_bytes[chosen], size)
            block[rows + step if k < 0 else first_row + k] = chosen
        frees = sharing.free_ptr[step + 1] - sharing.free_ptr[step]
        # inputs in order, then outputs, then what is freed later than read
        for turn in range(reads + last_row - first_row + frees):
            spent = 1
            if turn < reads:
                slot = storage[read_row[first_read + turn]]
            elif turn < reads + last_row - first_row:
                slot = storage[first_row + turn - reads]
                spent = 0
            else:
                storage_rep = free_row[sharing.free_ptr[step] + turn - reads - (last_row - first_row)]
                slot = storage[storage_rep] if storage_rep >= 0 else -1
            if slot < 0:
                continue
            count[slot] -= spent
            if count[slot] == 0 and end[slot] < 0:
                end[slot] = step + 1
                _give_back(sharing, block[slot], colour[step])
        _give_back(sharing, block[rows + step], colour[step])
        first_read += reads
    for row in range(rows):
        if end[row] < 0:
            end[row] = steps
    return blocks, pairs
