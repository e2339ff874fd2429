"""Annealing: random moves, of which those that are worse are taken by chance."""

from __future__ import annotations

import numpy as np

from planner.kernels import kernel
from planner.kernels.anneal.changes import undo
from planner.kernels.anneal.draws import uniform
from planner.kernels.anneal.drops import relieve_once
from planner.kernels.anneal.liveness import recount, repack
from planner.kernels.anneal.moves import move_evict, move_remove, move_shift, move_stretch
from planner.kernels.anneal.runs import save
from planner.kernels.anneal.state import FILL, LOGS, State


@kernel
def _better(state: State) -> bool:
    """True if the state is to be noted: less above the budget, or as much and cheaper."""
    if state.excess != state.best_excess:
        return state.excess < state.best_excess
    return state.cost < state.best_cost * (1.0 - 1e-12)


@kernel
def anneal(state: State, moves: int, hot: float, cold: float, penalty: float, repairs: int) -> None:
    """Random moves, taken where they are no worse, or by chance: the colder, the less.

    What is minimised is cost + penalty * bytes above the budget, summed over the runs. The best is the state with least
    above the budget, then least cost.

    Args:
        moves: how many are tried.
        hot, cold: temperatures at the start and at the end, in cost.
        penalty: cost of a byte above the budget for one run.
        repairs: how many values may be dropped after a move that exceeds the budget.
    """
    state.excess = 0
    for r in range(state.n_blocks):
        state.block_above[state.ranked[r]] = 0
        recount(state, state.ranked[r])
    cooling = (cold / hot) ** (1.0 / max(1, moves)) if hot > 0.0 else 1.0
    temperature = hot
    since = 0
    for _ in range(moves):
        temperature *= cooling
        state.moves += 1
        since += 1
        if state.n_blocks * FILL > 2 * state.n_runs + 4 * FILL:
            repack(state)
        cost, excess = state.cost, state.excess
        state.logged = 0
        allowed = -temperature * np.log(uniform(state) + 1e-300)
        state.most_cost = cost + allowed + penalty * excess
        choice = uniform(state)
        if choice < 0.05 and excess > 0:
            done = relieve_once(state)
        elif choice < 0.25:
            done = move_evict(state)
        elif choice < 0.5:
            done = move_remove(state)
        elif choice < 0.95:
            done = move_shift(state)
        else:  # dear, ten shifts or more: as often as it takes no more time than the others
            done = move_stretch(state)
        if not done or state.logged == 0:
            undo(state)
            continue
        for _repair in range(repairs if excess == 0 else 0):
            if state.excess == 0 or state.logged + 16 > LOGS or not relieve_once(state):
                break
        is_refused = state.cost - cost + penalty * (state.excess - excess) > allowed
        is_worse = state.excess > excess or (state.excess == excess and state.cost > cost)
        if is_refused or (state.pending == 1 and is_worse):
            undo(state)
            state.cost, state.excess = cost, excess
            if not is_refused:  # it would leave the best behind unnoted
                save(state)
                since = 0
            continue
        state.accepted += 1
        if _better(state):
            if since * 16 >= state.n_runs:
                save(state)
                since = 0
            else:
                state.pending = 1
    if state.pending == 1:
        save(state)
