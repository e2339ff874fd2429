"""Random moves, taken where they are no worse, or by chance."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.kernels import kernel
from planner.kernels.anneal.changes import undo
from planner.kernels.anneal.draws import uniform
from planner.kernels.anneal.drops import relieve_once
from planner.kernels.anneal.liveness import recount, repack
from planner.kernels.anneal.moves import move_evict, move_remove, move_shift, move_stretch
from planner.kernels.anneal.runs import save

from planner.kernels.anneal.state import (  # isort: skip
    ABOVE,
    ACCEPTED,
    BEST_COST,
    BEST_EXCESS,
    COST,
    EXCESS,
    FILL,
    LOGGED,
    LOGS,
    MOST_COST,
    MOVES,
    N_BLOCKS,
    N_RUNS,
    PENDING,
    RANKED,
)


@kernel
def _better(s: Any, f: Any) -> Any:
    """True if the state is to be noted: less above the budget, or as much and cheaper."""
    if s[EXCESS] != s[BEST_EXCESS]:
        return s[EXCESS] < s[BEST_EXCESS]
    return f[COST] < f[BEST_COST] * (1.0 - 1e-12)


@kernel
def anneal(s: Any, f: Any, moves: int, hot: float, cold: float, penalty: float, repairs: int) -> None:
    """Random moves, taken where they are no worse, or by chance: the colder, the less.

    What is minimised is cost + penalty * bytes above the budget, summed over the runs. The best is the state with least
    above the budget, then least cost.

    Args:
        moves: how many are tried.
        hot, cold: temperatures at the start and at the end, in cost.
        penalty: cost of a byte above the budget for one run.
        repairs: how many values may be dropped after a move that exceeds the budget.
    """
    s[EXCESS] = 0
    for r in range(s[N_BLOCKS]):
        s[s[s[RANKED] + r] + ABOVE] = 0.0
        recount(s, s[s[RANKED] + r])
    cooling = (cold / hot) ** (1.0 / max(1, moves)) if hot > 0.0 else 1.0
    temperature = hot
    since = 0
    for _ in range(moves):
        temperature *= cooling
        s[MOVES] += 1
        since += 1
        if s[N_BLOCKS] * FILL > 2 * s[N_RUNS] + 4 * FILL:
            repack(s)
        cost, excess = f[COST], s[EXCESS]
        s[LOGGED] = 0
        allowed = -temperature * np.log(uniform(s) + 1e-300)
        f[MOST_COST] = cost + allowed + penalty * excess
        choice = uniform(s)
        if choice < 0.05 and excess > 0:
            done = relieve_once(s, f)
        elif choice < 0.25:
            done = move_evict(s, f)
        elif choice < 0.5:
            done = move_remove(s, f)
        elif choice < 0.95:
            done = move_shift(s, f)
        else:  # dear, ten shifts or more: as often as it takes no more time than the others
            done = move_stretch(s, f)
        if not done or s[LOGGED] == 0:
            if s[LOGGED] > 0:
                undo(s, f)
            continue
        for _repair in range(repairs if excess == 0 else 0):
            if s[EXCESS] == 0 or s[LOGGED] + 16 > LOGS:
                break
            if not relieve_once(s, f):
                break
        worse = f[COST] - cost + penalty * (s[EXCESS] - excess)
        if worse > allowed:
            undo(s, f)
            f[COST] = cost
            s[EXCESS] = excess
            continue
        if s[PENDING] == 1 and (s[EXCESS] > excess or (s[EXCESS] == excess and f[COST] > cost)):
            undo(s, f)
            f[COST] = cost
            s[EXCESS] = excess
            save(s, f)
            s[PENDING] = 0
            since = 0
            continue
        s[ACCEPTED] += 1
        if _better(s, f):
            if since * 16 >= s[N_RUNS]:
                save(s, f)
                s[PENDING] = 0
                since = 0
            else:
                s[PENDING] = 1
    if s[PENDING] == 1:
        save(s, f)
        s[PENDING] = 0
