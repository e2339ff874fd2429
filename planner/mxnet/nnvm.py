"""Allocator "nnvm": in-place pairs and whole shared blocks, as MXNet's nnvm planned them for Chen et al. 2016.

One pass in execution order counts the uses of each storage. When the count reaches 0 its block goes to a free list, and
a later request takes a block of about its size from there. A block is never split.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np

from planner.analysis.arrays import Ints
from planner.analysis.evaluator import Evaluator, evaluator_of
from planner.errors import PlannerError, ScheduleError
from planner.graph import Graph
from planner.kernels.block_sharing import colour_paths, count_uses, new_sharing, share
from planner.memory import Allocation, Buffer, MemoryModel
from planner.schedule import Schedule
from planner.units import MAX_BYTES

MATCH_RANGE: Final = 16  # the original's default


class Sharing(NamedTuple):
    """Blocks of a schedule; one row for each output of each Compute, in order.

    Args:
        sequence, execution [steps]: op rows, and how often each ran before.
        value, step [rows]: the value, and the Compute step that makes it.
        storage [rows]: the row that allocated the storage; -1: on a resident, or a view that was live already.
        block [rows]: block id, in order of first allocation; -1: no storage, or one of 0 bytes.
        uses [rows]: input positions that read the value, and one more if it is held longer.
        end [rows]: step after the last one of the storage that the row allocated.
        read_ptr [steps+1], read_row: rows read at each step by input position; rows of residents come last.
        scratch_block [steps]: block of the step's workspace, or -1.
        block_bytes [blocks]: final sizes.
        pairs_taken: in-place pairs that happened.
    """

    sequence: Ints
    execution: Ints
    value: Ints
    step: Ints
    storage: Ints
    block: Ints
    uses: Ints
    end: Ints
    read_ptr: Ints
    read_row: Ints
    scratch_block: Ints
    block_bytes: Ints
    pairs_taken: int

    @property
    def total_bytes(self) -> int:
        """The sum of all blocks, which the original reports."""
        return sum(self.block_bytes.tolist())


def nnvm(
    graph: Graph, schedule: Schedule, *, memory: MemoryModel, match_range: int = MATCH_RANGE, colours: int = 1
) -> Allocation:
    """Whole blocks, shared in execution order; the arena is the sum of the blocks.

    In-place pairs, tried in the order of the schema, take an input's block if the output is used, and nothing else will
    use the input (its count is 1) or the pair is an identity. The other outputs, largest first, request blocks: the
    smallest free one of size .. size * match_range, else the largest of size / match_range .. size, which grows. Then
    the inputs' counts fall.

    Args:
        match_range: by what factor a free block may differ from a request; 0 never shares, larger is not always better.
        colours: with k > 1, the longest path of ops without a colour gets its own, k - 1 times; a free block serves
            only ops of the colour that released it, so that sharing never makes one parallel path wait for another.
    Raises:
        ScheduleError: the schedule is illegal.
        PlannerError: match_range below 0, or colours below 1.
    Source: Chen et al. 2016, section 3, as shipped in nnvm (`plan_memory.cc`, MXNet 0.9 to 1.5); equal block for block
        on graphs that it can express. Ours adds: views and updates join the block of their input and add their uses;
        workspace and copies of kept siblings are requests of one step; a value is used until it is freed; sizes are
        rounded up to the alignment; values of 0 bytes have no block. It takes no pair that rule 10 of the memory model
        does not take; the original would, if the rule gave the input to an output that nobody uses, or the output to
        an input that is read twice.
    """
    evaluator = evaluator_of(graph, memory)
    evaluator.liveness(schedule)  # refuses an illegal schedule
    sharing = share_blocks(evaluator, schedule, match_range=match_range, colours=colours)
    offsets = [0, *accumulate(sharing.block_bytes.tolist())]
    arrays, values, ops = evaluator.encoded.arrays, evaluator.encoded.value_names, evaluator.encoded.op_names
    own = np.flatnonzero(sharing.storage == np.arange(len(sharing.storage)))
    value, start = sharing.value[own], sharing.step[own]
    step = np.flatnonzero(sharing.scratch_block >= 0)
    op = sharing.sequence[step]
    tables = (
        (values, False, value, arrays.storage_bytes[value], start, sharing.end[own], sharing.block[own]),
        (ops, True, op, arrays.workspace[op], step, step + 1, sharing.scratch_block[step]),
    )
    buffers = []
    for names, is_scratch, row, *columns in tables:
        runs = sharing.execution[columns[1]].tolist()
        rows = zip(row.tolist(), runs, *(column.tolist() for column in columns), strict=True)
        for made, run, nbytes, begin, end, block in rows:
            offset = offsets[block] if block >= 0 else 0
            buffers.append(Buffer(names[made], run, is_scratch, nbytes, begin, end, offset))
    resident_bytes = int(arrays.resident_bytes[0])
    top = max((buffer.offset + buffer.nbytes for buffer in buffers), default=0)
    return Allocation(tuple(buffers), resident_bytes, resident_bytes + top, "nnvm")


def share_blocks(
    evaluator: Evaluator,
    schedule: Schedule | Ints,
    *,
    match_range: int = MATCH_RANGE,
    colours: int = 1,
    first_outputs: bool = False,
) -> Sharing:
    """The blocks of `nnvm` alone, fast, for searches.

    Args:
        schedule: a legal schedule, or a sequence of op rows, which gets canonical frees.
        first_outputs: of a sequence, hold the first instance of each graph output to the end instead of the last, as
            the original does: its copies are nodes of their own, and the output stays on the first one.
    Raises:
        ScheduleError: a step reads what is not live. Other faults are for the judge to find.
        PlannerError: match_range below 0, or colours below 1.
    """
    if match_range < 0 or colours < 1:
        raise PlannerError(f"match_range {match_range!r} must be at least 0, and colours {colours!r} at least 1")
    match_range, colours = min(match_range, MAX_BYTES), min(colours, MAX_BYTES)
    if isinstance(schedule, Schedule):
        sequence, free_ptr, freed = evaluator.rows(schedule)
    else:
        sequence = schedule
        free_ptr, freed = evaluator.frees(sequence, keep_outputs=not first_outputs)
    arrays = evaluator.encoded.arrays
    outputs, reads = np.diff(arrays.out_ptr)[sequence], np.diff(arrays.read_ptr)[sequence]
    row_ptr, read_ptr = _pointers(outputs), _pointers(reads)
    rows, steps, n_values = int(row_ptr[-1]), len(sequence), len(arrays.producer)
    alignment = evaluator.memory.alignment
    fields = {"sequence": sequence, "free_ptr": free_ptr, "freed": freed, "row_ptr": row_ptr}
    fields["workspace_bytes"] = -(-arrays.workspace // alignment) * alignment
    fields |= {name: np.zeros(steps, dtype=np.int64) for name in ("execution", "colour")}
    sizes = {"read_row": int(read_ptr[-1]), "free_row": len(freed), "end": rows}
    sizes |= dict.fromkeys(("uses", "storage"), rows + n_values)
    fields |= {name: np.empty(size, dtype=np.int64) for name, size in sizes.items()}
    lists = ("block", "block_bytes", "block_colour", "free_bytes", "free_block")
    fields |= {name: np.zeros(rows + steps, dtype=np.int64) for name in lists}
    execution, uses, storage, block = (fields[name] for name in ("execution", "uses", "storage", "block"))
    kept = np.empty(rows + n_values, dtype=np.bool_)
    sharing = new_sharing(**fields, kept=kept, match_range=match_range, n_free=0)
    illegal = count_uses(arrays, sharing)
    if illegal >= 0:
        op = evaluator.encoded.op_names[sequence[illegal]]
        raise ScheduleError("the schedule is illegal; simulate() names the step", op=op)
    if first_outputs:
        made = np.arange(rows) - np.repeat(row_ptr[:-1] - arrays.out_ptr[sequence], outputs)
        uses[:rows][arrays.is_output[made] & (np.repeat(execution, outputs) == 0)] += 1
    if colours > 1:
        colour_paths(arrays, sharing, colours)
    blocks, pairs = share(arrays, sharing)
    step = np.repeat(np.arange(steps), outputs)
    under = storage[:rows]
    return Sharing(
        sequence=sequence,
        execution=execution,
        value=np.arange(rows) - row_ptr[step] + arrays.out_ptr[sequence[step]],
        step=step,
        storage=under,
        block=np.where(under >= 0, block[:rows][under], -1),
        uses=uses[:rows],
        end=fields["end"],
        read_ptr=read_ptr,
        read_row=fields["read_row"],
        scratch_block=block[rows:],
        block_bytes=fields["block_bytes"][:blocks],
        pairs_taken=pairs,
    )


def _pointers(counts: Ints) -> Ints:
    pointers = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=pointers[1:])
    return pointers
