"""The integer program of Checkmate, solved by HiGHS: n stages, in stage t the first t ops may run and op t does; order
fixed.

Source: Jain et al. 2020, *Checkmate*, section 4, with frontier advancing. Ours differs: a freed value is one continuous
variable under one row for each hazard, which is tighter than their sum of hazards.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from bench.peers.program import Program

MOST_OPS: Final = 80
_SECONDS: Final = 60.0
_UNITS: Final = 1000.0  # the budget, as the solver sees it


def missing() -> str | None:
    """Why it cannot run here, or None."""
    try:
        import highspy  # noqa: F401
    except ImportError:
        return "ILP: highspy is not installed; pip install 'sublinear-planner[bench]'"
    return None


def applies(program: Program) -> bool:
    """Few enough ops to hope for a plan."""
    return program.ops <= MOST_OPS


def checkmate(program: Program, budget: int) -> list[int] | None:
    """The best sequence of ops found in a minute, or None."""
    if budget < int(program.nbytes.max()):
        return None
    model = _Model(program, budget)
    values = model.solve()
    if values is None:
        return None
    n = program.ops
    return [i for t in range(n) for i in range(t + 1) if values[model.run[t, i]] > 0.5]


@contextmanager
def _quiet() -> Iterator[None]:
    """Send what a library writes past Python to stderr: stdout is for the table."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


class _Model:
    """Columns by (stage, op), and rows as they are written."""

    def __init__(self, program: Program, budget: int) -> None:
        n = program.ops
        self.cost: list[float] = []
        self.lower: list[float] = []
        self.whole: list[bool] = []
        self.rows: list[tuple[float, dict[int, float]]] = []  # sum <= limit
        self.reads = [program.reads[program.read_ptr[k] : program.read_ptr[k + 1]].tolist() for k in range(n)]
        self.readers = [program.readers[program.reader_ptr[k] : program.reader_ptr[k + 1]].tolist() for k in range(n)]
        unit = math.gcd(*program.nbytes.tolist()) or 1
        room = budget // unit
        self.nbytes = [_UNITS * (nbytes // unit) / room for nbytes in program.nbytes.tolist()]
        # half a unit more is no room for anything, and no plan is lost to rounding
        self.room = _UNITS * (room + 0.5) / room
        scale = max(1.0, float(program.cost.max()))
        costs = [cost / scale for cost in program.cost.tolist()]
        self.run = {
            (t, i): self._column(costs[i], lower=float(i == t), whole=True) for t in range(n) for i in range(t + 1)
        }
        self.kept = {(t, i): self._column(0.0, whole=True) for t in range(1, n) for i in range(t)}
        for t in range(n):
            self._dependencies(t)
            self._memory(t, n)

    def _column(self, cost: float, *, lower: float = 0.0, whole: bool = False) -> int:
        self.cost.append(cost)
        self.lower.append(lower)
        self.whole.append(whole)
        return len(self.cost) - 1

    def _at_most(self, limit: float, *terms: tuple[int | None, float]) -> None:
        row: dict[int, float] = {}
        for column, factor in terms:
            if column is not None:
                row[column] = row.get(column, 0.0) + factor
        self.rows.append((limit, row))

    def _dependencies(self, t: int) -> None:
        for i in range(t + 1):
            for u in self.reads[i]:  # what runs has its inputs from this stage or kept from the last
                self._at_most(0.0, (self.run[t, i], 1.0), (self.run[t, u], -1.0), (self.kept.get((t, u)), -1.0))
        for i in range(t):  # what is kept was there
            self._at_most(0.0, (self.kept[t, i], 1.0), (self.run[t - 1, i], -1.0), (self.kept.get((t - 1, i)), -1.0))

    def _memory(self, t: int, n: int) -> None:
        """Live bytes while each op of the stage runs: kept, made, less freed after an earlier op."""
        live: list[tuple[int | None, float]] = [(self.kept[t, i], self.nbytes[i]) for i in range(t)]
        for k in range(t + 1):
            live.append((self.run[t, k], self.nbytes[k]))
            self._at_most(self.room, *live)
            for i in (*self.reads[k], k):
                freed = self._column(0.0)
                self._at_most(0.0, (freed, 1.0), (self.run[t, k], -1.0))
                if t + 1 < n:
                    self._at_most(1.0, (freed, 1.0), (self.kept[t + 1, i], 1.0))
                for j in self.readers[i]:
                    if k < j <= t:
                        self._at_most(1.0, (freed, 1.0), (self.run[t, j], 1.0))
                live.append((freed, -self.nbytes[i]))

    def solve(self) -> list[float] | None:
        """Values of the columns in the best solution found."""
        import highspy

        with _quiet():
            solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
        options = {
            "output_flag": False,
            "log_to_console": False,
            "time_limit": _SECONDS,
            "threads": 1,
            "mip_rel_gap": 1e-6,
        }
        exact = {"primal_feasibility_tolerance": 1e-9, "mip_feasibility_tolerance": 1e-9}
        for option, value in {**options, **exact}.items():
            solver.setOptionValue(option, value)
        solver.passModel(self._program(highspy))
        solver.run()
        found = solver.getInfo().primal_solution_status == int(highspy.SolutionStatus.kSolutionStatusFeasible)
        return list(solver.getSolution().col_value) if found else None

    def _program(self, highspy: Any) -> Any:
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(self.cost), len(self.rows)
        lp.col_cost_, lp.col_lower_, lp.col_upper_ = self.cost, self.lower, [1.0] * len(self.cost)
        lp.row_lower_, lp.row_upper_ = [-highspy.kHighsInf] * len(self.rows), [limit for limit, _ in self.rows]
        starts, columns, factors = [0], list[int](), list[float]()
        for _, row in self.rows:
            columns.extend(row)
            factors.extend(row.values())
            starts.append(len(columns))
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_ = starts, columns, factors
        kinds = highspy.HighsVarType
        lp.integrality_ = [kinds.kInteger if whole else kinds.kContinuous for whole in self.whole]
        return lp
