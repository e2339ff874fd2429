"""The state of the annealer: one struct of numbers and tables, handed to kernels by reference.

An op, a value, a run and a block is known by its row in the tables named for it, so that `state.run_next[run]` is the
run after a run. Row 0 is none; ops and values stand one row below where the graph has them. One struct in place of
seventy arguments: numba pays for every array that a kernel is handed, and for this one pointer once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from planner.kernels import Flags, Floats, Ints, kernel
from planner.kernels.structs import struct

HEAD, END, FIRST_RUN = 1, 2, 3  # rows of the two ends of the list of runs, and of the first run
BLOCK, FILL = 64, 48  # runs that a block has room for, and that it gets when it is packed anew
LOGS = 512  # changes that one move may note
KEYS = 2**62  # above the key of every run


class Model(NamedTuple):
    """A graph for the kernels: its storages as lifetimes of values.

    Args:
        out_ptr [n+1]: the outputs of op k are values out_ptr[k] .. out_ptr[k+1].
        nbytes [m]: bytes of each value's own storage; 0 for views and updates.
        kept [m]: the value must be live at the end.
        read_ptr [n+1], reads [., 2]: distinct values an op reads, with the bytes of the output that takes the value's
            place if it dies there.
        reader_ptr [m+1], reader_op: ops that read a value.
        order_ptr [4 n + 1], order_op: four lists an op. Its first run comes after the first run of the ops in list 0,
            and before that of list 1; all its runs come before the first of list 2, its first after all of list 3.
        cost [n], workspace [n]: of each op.
        once [n]: the op runs once.
        neighbours [2, n]: op before and behind in a pinned order, or -1.
    """

    out_ptr: Ints
    nbytes: Ints
    kept: Flags
    read_ptr: Ints
    reads: Ints
    reader_ptr: Ints
    reader_op: Ints
    order_ptr: Ints
    order_op: Ints
    cost: Floats
    workspace: Ints
    once: Flags
    neighbours: Ints


class State:
    """What the kernels read and write. `<field>` and `<field>_stop` are the first row of a list and the row behind it.

    A run's `stolen` is the bytes that in-place takes off, and its `read[k]` the last run that reads output k of this
    run, or the run itself. A block's `highest` is its highest memory (it may be too high where nothing in the block is
    above the budget), `above` its bytes above the budget, `added` what is to be added to each `memory` in it.
    """

    n_runs: int
    n_blocks: int
    free_run: int
    free_block: int
    logged: int
    best_length: int
    budget: int
    ending: int  # bytes live at the end
    pending: int  # 1: the state is better than the best noted
    moves: int
    accepted: int
    excess: int  # bytes above the budget, summed over the runs
    best_excess: int
    random: int
    ops_stop: int
    most_runs: int
    most_blocks: int
    cost: float
    best_cost: float
    most_cost: float  # above it, a move need not go on
    op_cost: Floats
    op_first: Ints
    op_last: Ints
    op_runs: Ints
    op_once: Ints
    op_workspace: Ints
    op_outs: Ints
    op_outs_stop: Ints
    op_reads: Ints
    op_reads_stop: Ints
    op_after: Ints
    op_after_stop: Ints
    op_later: Ints
    op_later_stop: Ints
    op_killers: Ints
    op_killers_stop: Ints
    op_victims: Ints
    op_victims_stop: Ints
    op_before: Ints
    op_behind: Ints
    value_bytes: Ints
    value_kept: Ints
    value_maker: Ints
    value_slot: Ints  # which output of its maker it is
    value_readers: Ints
    value_readers_stop: Ints
    run_op: Ints
    run_key: Ints  # ascends along the list
    run_next: Ints
    run_previous: Ints
    run_newer: Ints  # among the runs of its op
    run_older: Ints
    run_stolen: Ints
    run_block: Ints
    run_place: Ints  # in its block
    run_read: Ints
    block_size: Ints
    block_added: Ints
    block_highest: Ints
    block_above: Ints
    block_rank: Ints
    block_memory: Ints
    block_members: Ints
    read_value: Ints
    read_steal: Ints
    reader_op: Ints
    order_op: Ints
    log_inserted: Ints  # 1: a run was put in, 0: taken out
    log_row: Ints  # the run put in, or the op of the run taken out
    log_before: Ints  # the run that stood behind the one taken out
    ranked: Ints  # blocks in their order
    scratch: Ints
    best: Ints  # op rows of the graph, those of the best sequence


StateType, StateProxy, _new = struct(State)


def new_state(model: Model, most_runs: int, random: int) -> tuple[State, dict[str, Any]]:
    """A state for a graph, without runs.

    Args:
        most_runs: room for runs.
        random: the word that random numbers start from, not 0.
    Returns:
        the state, and its fields by name: tables are the state's own, numbers are those of the start.
    """
    n, most_blocks = len(model.cost), most_runs // 24 + 8
    widest = max(1, int(np.diff(model.out_ptr).max(initial=0)))
    maker = np.repeat(np.arange(n), np.diff(model.out_ptr))
    shapes = {
        "op": (1 + n,),
        "value": (1 + len(model.nbytes),),
        "run": (FIRST_RUN + most_runs,),
        "block": (1 + most_blocks,),
        "log": (LOGS,),
        "run_read": (FIRST_RUN + most_runs, widest),
        "block_memory": (1 + most_blocks, BLOCK),
        "block_members": (1 + most_blocks, BLOCK),
        "ranked": (1 + most_blocks,),
        "scratch": (1 + most_runs,),
        "best": (most_runs,),
    }
    fields: dict[str, Any] = {
        "ops_stop": 1 + n,
        "most_runs": most_runs,
        "most_blocks": most_blocks,
        "random": np.int64(random),
        "op_cost": _below_none(model.cost),
        "op_once": _below_none(model.once),
        "op_workspace": _below_none(model.workspace),
        "op_before": _below_none(1 + model.neighbours[0]),
        "op_behind": _below_none(1 + model.neighbours[1]),
        "value_bytes": _below_none(model.nbytes),
        "value_kept": _below_none(model.kept),
        "value_maker": _below_none(1 + maker),
        "value_slot": _below_none(np.arange(len(maker)) - model.out_ptr[maker]),
        "read_value": 1 + model.reads[:, 0],
        "read_steal": model.reads[:, 1].copy(),
        "reader_op": 1 + model.reader_op,
        "order_op": 1 + model.order_op,
    }
    lists = {"op_outs": 1 + model.out_ptr, "op_reads": model.read_ptr, "value_readers": model.reader_ptr}
    for name, ptr in lists.items():
        fields[name], fields[f"{name}_stop"] = _below_none(ptr[:-1]), _below_none(ptr[1:])
    for k, name in enumerate(("op_after", "op_later", "op_killers", "op_victims")):
        fields[name] = _below_none(model.order_ptr[k:-1:4])
        fields[f"{name}_stop"] = _below_none(model.order_ptr[k + 1 :: 4])
    for name, kind in State.__annotations__.items():
        if name not in fields and kind == "Ints":
            fields[name] = np.zeros(shapes.get(name) or shapes[name.split("_")[0]], dtype=np.int64)
    return _new(**fields), fields


def _below_none(column: Any) -> Any:
    """A column of a table, below the row 0 of none."""
    kind = column.dtype if column.dtype == np.float64 else np.int64
    return np.concatenate((np.zeros(1, kind), column.astype(kind)))


class Figures(NamedTuple):
    """Numbers of a state that its owner looks at."""

    excess: int
    cost: float
    best_excess: int
    best_cost: float
    best_length: int
    moves: int
    accepted: int
    random: int


@kernel
def figures(state: State) -> Figures:
    """The numbers of a state; from outside a kernel, its fields cannot be read."""
    best = state.best_excess, state.best_cost, state.best_length
    return Figures(state.excess, state.cost, *best, state.moves, state.accepted, state.random)
