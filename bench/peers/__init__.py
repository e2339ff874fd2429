"""Other people's methods, written here as plainly as they are told: a program and a budget in, a sequence of ops out.

They see the graph as the shared file has it, run it under memory model M1, and share no code with the searches they are
compared to. What they return is judged like any plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Optional, final

from bench.peers import eviction, ilp, keepbits, schedules
from bench.peers.program import Program, program_of

Method = Callable[[Program, int], Optional[list[int]]]


@final
@dataclass(frozen=True)
class Peer:
    """A method with its name in the tables.

    Args:
        method: (program, budget in bytes) -> ops in the order they run, or None: no plan, or not for such graphs.
        applies: False where the method is not for a graph at all.
        missing: what keeps it from running here, or None.
        quick: whether a short run has it.
    """

    name: str
    method: Method
    source: str
    applies: Callable[[Program], bool] = lambda program: True
    missing: Callable[[], str | None] = lambda: None
    quick: bool = True


PEERS: Final = (
    Peer("look-ahead eviction", eviction.eviction, "DTR of Kirisame et al. 2021 with the next use known"),
    Peer("keep bits", keepbits.annealed, "annealing, one bit a tensor", lambda program: program.backward is not None),
    Peer("ILP", ilp.checkmate, "Checkmate of Jain et al. 2020 in HiGHS, 60 s", ilp.applies, ilp.missing, quick=False),
    Peer(
        "chain schedules",
        schedules.unit_chain,
        "Revolve and mixed, of checkpoint-schedules",
        schedules.applies,
        schedules.missing,
    ),
)
__all__ = ["PEERS", "Method", "Peer", "Program", "program_of"]
