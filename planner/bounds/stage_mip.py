"""A mixed-integer program over stages whose optimum no schedule in program order goes below.

Stage t lies between the first run of op t - 1 and that of op t; one more comes after the last op. Checkmate lets each
op run once in a stage, in program order; a schedule may do more. So the rows only ask for what holds of every schedule,
and the solution is judged like any other plan.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np

from planner.analysis.arrays import Floats, Ints
from planner.bounds.states import Program, bits, compile_program, mask_of
from planner.errors import PlannerError
from planner.graph import Graph
from planner.memory import MemoryModel
from planner.problem import Stop

_WORK: Final = 50_000_000  # non-zeros times nodes of the search tree, at effort 1
#: Non-zeros of the largest program tried at effort 1.
MOST_ENTRIES: Final = 600_000
_TOTAL: Final = 2.0**20  # costs that are not small whole numbers are scaled to about this sum


class Solved(NamedTuple):
    """The answer of the solver.

    Args:
        sequence: op rows of the best solution, reruns of a stage in program order; None if there is no solution.
        extra_cost: cost beyond one run of each op that no schedule in program order goes below; infinite if none fits.
        solved: True if the solution is optimal, or it is certain that there is none.
    """

    sequence: Ints | None
    extra_cost: float
    solved: bool


class Stages:
    """Columns and rows of the program: what is live when a stage begins, and what runs again in it.

    Args:
        graph, memory: no two names may share a storage that can be freed (`Program.plain`).
        budget: most live bytes.
    """

    def __init__(self, graph: Graph, memory: MemoryModel, budget: int) -> None:
        self.program: Program = compile_program(graph, memory, pinned=True)
        self.room = budget - self.program.resident_bytes
        self.rows_of_ops = [k for k, op in enumerate(graph.ops) if not op.resident]
        self.count = len(self.rows_of_ops)
        self.scale = float(self.program.grain_bytes)
        self._costs: list[float] = []
        self._index: list[int] = []
        self._entries: list[float] = []
        self._starts: list[int] = [0]
        self._most: list[float] = []
        self._last = _last_stages(self.program)
        self._dies = _deaths(self.program)
        self.live: dict[tuple[int, int], int] = {}
        self.rerun: dict[tuple[int, int], int] = {}
        self.stays: dict[tuple[int, int], int] = {}
        self.through: list[int] = []  # bytes that are live all through each stage
        self._columns()

    @cached_property
    def entries(self) -> int:
        """About how many non-zeros the matrix will have."""
        return 6 * len(self.live) + 8 * len(self.rerun)

    def build(self) -> None:
        """Add the rows, once."""
        for t in range(self.count + 1) if not self._most else ():
            self._flow(t)
            self._stay(t)
            self._memory(t)

    def _columns(self) -> None:
        """Columns: live at the start of stage t (count + 1: at the end), run again in it, live all through it."""
        program = self.program
        for v, maker in enumerate(program.maker):
            for t in range(maker + 1, self._last[v] + 1) if maker >= 0 else ():
                self.live[t, v] = self._column(0.0)
        for i, row in enumerate(program.rows):
            last = min(max((self._last[v] for v in row.outs), default=0), self._dies[i], self.count)
            for t in range(i + 1, last + 1) if not row.once else ():
                self.rerun[t, i] = self._column(program.costs[i])
        for t, v in self.live:
            if program.nbytes[v] and t <= self.count:
                self.stays[t, v] = self._column(0.0)
        self.through = [self._column(0.0) for _ in range(self.count + 1)]

    def _column(self, cost: float) -> int:
        self._costs.append(cost)
        return len(self._costs) - 1

    def _row(self, entries: Sequence[tuple[int, float]], most: float) -> None:
        """Add the row: sum of entries <= most."""
        for column, entry in entries:
            self._index.append(column)
            self._entries.append(entry)
        self._starts.append(len(self._index))
        self._most.append(most)

    def _made(self, t: int, v: int) -> list[tuple[int, float]]:
        """Ways to have v in stage t: live at its start, or made in it."""
        columns = (self.live.get((t, v)), self.rerun.get((t, self.program.maker[v])))
        return [(column, -1.0) for column in columns if column is not None]

    def _flow(self, t: int) -> None:
        """A value that is read, or live after the stage, was live at its start or is made in it."""
        program = self.program
        for i in range(min(t + 1, self.count)):
            rerun = self.rerun.get((t, i))
            for v in set(program.rows[i].reads):
                if program.maker[v] >= 0 and (i == t or rerun is not None):
                    own = [] if i == t else [(rerun or 0, 1.0)]
                    self._row([*own, *self._made(t, v)], -1.0 if i == t else 0.0)
        for v, maker in enumerate(program.maker):
            following = self.live.get((t + 1, v))
            if following is not None and maker < t:
                self._row([(following, 1.0), *self._made(t, v)], 0.0)
        if t == self.count:
            for v, maker in enumerate(program.maker):
                if maker >= 0 and program.output_mask >> v & 1:
                    self._row([(self.live[t + 1, v], -1.0)], -1.0)

    def _stay(self, t: int) -> None:
        """A value that is live after the stage, or read at its end, and not made in it, is live all through it."""
        program = self.program
        for v, maker in enumerate(program.maker):
            stays = self.stays.get((t, v))
            if stays is None:
                continue
            rerun = self.rerun.get((t, maker))
            own = [(stays, -1.0)] if rerun is None else [(stays, -1.0), (rerun, -1.0)]
            if t < self.count and program.rows[t].read_mask >> v & 1:
                self._row(own, -1.0)
            elif (t + 1, v) in self.live:
                self._row([*own, (self.live[t + 1, v], 1.0)], 0.0)

    def _memory(self, t: int) -> None:
        """Bytes at the first run of t or at the end, and at each rerun before it beside what is live all through."""
        program = self.program
        touched = 0 if t == self.count else program.rows[t].read_mask | program.rows[t].out_mask
        terms = {v: self.live[t + 1, v] for v in range(len(program.maker)) if (t + 1, v) in self.live}
        beside = self._sized({v: one for v, one in terms.items() if not touched >> v & 1 and program.nbytes[v]})
        fixed, instead = self._taken(t, terms) if t < self.count else (0.0, [])
        self._row([*beside, *instead], self._units(self.room) - fixed)
        through = {v: self.stays[t, v] for v in range(len(program.maker)) if (t, v) in self.stays}
        if any((t, i) in self.rerun for i in range(t)):
            self._row([(self.through[t], -1.0), *self._sized(through)], 0.0)
        for i in range(t):
            rerun = self.rerun.get((t, i))
            if rerun is None:
                continue
            own = program.rows[i]
            needed = self._bytes(own.read_mask) + self._bytes(own.fresh_mask) + own.workspace
            saved = self._bytes(_outputs_in_place(program, i))
            live_here = [(through[v], -self._units(program.nbytes[v])) for v in {*own.reads, *own.outs} if v in through]
            entries = [(rerun, self._units(needed - saved)), (self.through[t], 1.0), *live_here]
            self._row(entries, self._units(self.room))

    def _sized(self, columns: dict[int, int]) -> list[tuple[int, float]]:
        """Entries of the columns of values, each with the size of its value."""
        return [(column, self._units(self.program.nbytes[v])) for v, column in columns.items()]

    def _taken(self, t: int, after: dict[int, int]) -> tuple[float, list[tuple[int, float]]]:
        """Bytes of a first run, and those more if an output cannot take its one input's storage as that stays live."""
        program = self.program
        row = program.rows[t]
        placed = _outputs_in_place(program, t)
        fixed = self._bytes(row.read_mask) + self._bytes(row.fresh_mask & ~placed) + row.workspace
        instead = []
        for out in range(len(program.maker)):
            under = {row.reads[i] for i, o, _ in row.pairs if row.outs[o] == out}
            if placed >> out & 1 and len(under) == 1 and (column := after.get(*under)) is not None:
                instead.append((column, self._units(program.nbytes[out])))
        return self._units(fixed), instead

    def _bytes(self, mask: int) -> int:
        return sum(self.program.nbytes[v] for v in bits(mask))

    def _units(self, nbytes: int) -> float:
        """Bytes as multiples of what divides all sizes, so that coefficients are small."""
        return nbytes / self.scale

    def start_of(self, sequence: Ints) -> Floats:
        """Columns of a schedule in program order with canonical frees, given as op rows of the graph."""
        program = self.program
        number = {row: k for k, row in enumerate(self.rows_of_ops)}
        runs = [number[row] for row in sequence.tolist()]
        columns = np.zeros(len(self._costs))
        newest: dict[int, int] = {}  # op -> step of its newest run
        stage_of, stage = [], 0
        for step, i in enumerate(runs):
            stage_of.append(stage)
            if i == stage:  # its first run, since the order is the program's
                stage += 1
            elif (column := self.rerun.get((stage, i))) is not None:
                columns[column] = 1.0
            newest[i] = step
        made: dict[int, int] = {}
        lasts: dict[tuple[int, int], int] = {}  # (value, step it was made) -> step of its last read
        for step, i in enumerate(runs):
            for v in program.rows[i].reads:
                if v in made:
                    lasts[v, made[v]] = step
            for v in program.rows[i].outs:
                made[v] = step
        lasts.update({(v, step): len(runs) for v, step in made.items() if program.output_mask >> v & 1})
        stage_of.append(self.count + 1)
        for (v, step), last in lasts.items():
            for t in range(stage_of[step] + 1, stage_of[last] + 1):
                if (t, v) in self.live:
                    columns[self.live[t, v]] = 1.0
        for (t, v), column in self.stays.items():
            rerun = self.rerun.get((t, program.maker[v]))
            read = t < self.count and program.rows[t].read_mask >> v & 1
            live_after = (t + 1, v) in self.live and columns[self.live[t + 1, v]]
            if (read or live_after) and not (rerun is not None and columns[rerun]):
                columns[column] = 1.0
                columns[self.through[t]] += self._units(program.nbytes[v])
        return columns

    def cost(self, columns: Floats) -> float:
        """Cost of columns beyond one run of each op."""
        return float(np.array(self._costs) @ columns)

    def sequence(self, columns: Floats) -> Ints:
        """Op rows of the graph: in each stage its reruns, in program order, then its own op."""
        runs = []
        for t in range(self.count + 1):
            runs += [i for i in range(t) if (t, i) in self.rerun and columns[self.rerun[t, i]] > 0.5]
            runs += [t] if t < self.count else []
        return np.array([self.rows_of_ops[i] for i in runs], dtype=np.int64)

    def solve(self, start: Ints | None, *, effort: float, seed: int, stop: Stop) -> Solved:
        """Branch and cut by HiGHS, one thread, up to a number of nodes, or until `stop`.

        Args:
            start: op rows of a schedule in program order that fits.
        Raises:
            PlannerError: highspy is not installed.
        """
        highspy, solver = _solver()
        self.build()
        unit, whole = _unit(self._costs)
        nodes = max(1, round(_WORK * effort / max(1, self.entries)))
        options = {"output_flag": False, "threads": 1, "random_seed": seed % 2**31, "mip_max_nodes": nodes}
        limits = {"mip_rel_gap": 0.0, "mip_abs_gap": 0.999 if whole else 0.0, "time_limit": stop.seconds_left}
        for option, setting in (*options.items(), *limits.items()):
            solver.setOptionValue(option, setting)
        solver.passModel(self._model(highspy, unit))
        if start is not None:
            solution = highspy.HighsSolution()
            solution.col_value = self.start_of(start).tolist()
            solver.setSolution(solution)
        _run(solver, stop)
        status, info = solver.getModelStatus(), solver.getInfo()
        if status == highspy.HighsModelStatus.kInfeasible:
            return Solved(None, math.inf, True)
        bound = float(info.mip_dual_bound)
        bound = max(0.0, bound if math.isfinite(bound) else 0.0)
        # The solver computes in floats: whole costs are rounded up, others lowered by a billionth of one run.
        extra = math.ceil(bound - 1e-3) * unit if whole else max(0.0, bound - _TOTAL * 1e-9) * unit
        columns = np.array(solver.getSolution().col_value)
        found = self.sequence(columns) if len(columns) and info.primal_solution_status == 2 else None
        return Solved(found, extra, status == highspy.HighsModelStatus.kOptimal)

    def _model(self, highspy: Any, unit: float) -> Any:
        lp = highspy.HighsLp()
        count = len(self._costs)
        lp.num_col_, lp.num_row_ = count, len(self._most)
        lp.col_cost_ = np.array(self._costs) / unit
        most = np.ones(count)
        most[self.through] = highspy.kHighsInf
        lp.col_lower_, lp.col_upper_ = np.zeros(count), most
        lp.row_lower_, lp.row_upper_ = np.full(len(self._most), -highspy.kHighsInf), np.array(self._most)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.array(self._starts)
        lp.a_matrix_.index_ = np.array(self._index)
        lp.a_matrix_.value_ = np.array(self._entries)
        between = {*self.stays.values(), *self.through}
        kinds = highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger
        lp.integrality_ = [kinds[column not in between] for column in range(count)]
        return lp


def _last_stages(program: Program) -> list[int]:
    """For each value, the last stage at whose start it can be of use; an output is of use after the last stage too."""
    last = [len(program.rows) + 1 if program.output_mask >> v & 1 else 0 for v in range(len(program.maker))]
    for i in range(len(program.rows) - 1, -1, -1):
        row = program.rows[i]
        until = i if row.once else max([i, *(min(last[v], len(program.rows)) for v in row.outs)])
        for v in row.reads:
            last[v] = max(last[v], until)
    return last


def _deaths(program: Program) -> list[int]:
    """For each op, the last stage in which it can run again before an update overwrites what it reads."""
    dies = [len(program.rows)] * len(program.rows)
    for k, row in enumerate(program.rows):
        gone = 0
        for i, _ in row.updated:
            gone |= program.group[row.reads[i]]
        gone &= ~row.out_mask
        for i, other in enumerate(program.rows[: k + 1]):
            if other.read_mask & gone:
                dies[i] = min(dies[i], k)
    return dies


def _outputs_in_place(program: Program, i: int) -> int:
    """Mask of outputs that may take an input's storage."""
    row = program.rows[i]
    return mask_of(row.outs[o] for _, o, _ in row.pairs)


def _unit(costs: list[float]) -> tuple[float, bool]:
    """(unit of costs, True if all costs are whole multiples of it); a power of two if multiples are not small."""
    exact = {Fraction(cost) for cost in costs if cost}
    if not exact:
        return 1.0, True
    fine = max(cost.denominator for cost in exact)
    step = Fraction(math.gcd(*(int(cost * fine) for cost in exact)), fine)
    if sum(map(Fraction, costs)) / step < 10**8 and Fraction(float(step)) == step:
        return float(step), True
    return math.ldexp(1.0, math.frexp(math.fsum(costs) / _TOTAL)[1]), False


def _solver() -> tuple[Any, Any]:
    """highspy and a solver, whose banner is kept off standard output.

    Raises:
        PlannerError: not installed.
    """
    try:
        import highspy
    except ImportError:
        fix = "pip install 'sublinear-planner[exact]'"
        raise PlannerError(f"'exact' needs highspy for a graph of this size: {fix}") from None
    sys.stdout.flush()
    shown, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        library: Any = highspy
        return library, library.Highs()
    finally:
        os.dup2(shown, 1)
        os.close(shown)
        os.close(nowhere)


def _run(solver: Any, stop: Stop) -> None:
    """Solve in a thread, so that Ctrl-C is heard and cancels it."""
    solver.HandleUserInterrupt = True
    solver.startSolve()
    while not solver.wait(0.1)[0]:
        if stop.interrupted:
            solver.cancelSolve()
