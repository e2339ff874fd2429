"""What two plans of one graph do differently."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from planner.errors import PlannerError
from planner.text import aligned, printable
from planner.units import counted, format_bytes

if TYPE_CHECKING:
    from planner.plan import Plan

_SHOWN = 20


class Difference(msgspec.Struct, frozen=True):
    """Two plans of one graph side by side.

    Args:
        names: what each was asked for, as "auto at 7GB".
        peak_bytes, arena_bytes, cost, overhead: of the first plan and of the second.
        runs: (op, runs in the first, runs in the second) of exactly the ops that run more or less often, in the
            program's order.
    """

    names: tuple[str, str]
    peak_bytes: tuple[int, int]
    arena_bytes: tuple[int, int]
    cost: tuple[float, float]
    overhead: tuple[float, float]
    runs: tuple[tuple[str, int, int], ...]

    def __str__(self) -> str:
        costs = [f"{100 * overhead:+.2f} %" for overhead in self.overhead]
        rows = [["", *self.names], ["peak", *map(format_bytes, self.peak_bytes)]]
        rows += [["arena", *map(format_bytes, self.arena_bytes)], ["cost", *costs]]
        more = sum(after > before for _, before, after in self.runs)
        lines = aligned(rows)
        if not self.runs:
            return "\n".join(map(printable, [*lines, "Every op runs as often in both"]))
        fewer = len(self.runs) - more
        said = [f"{counted(count, 'op')} {how} often" for count, how in ((more, "more"), (fewer, "less")) if count]
        lines.append(f"In the second run {' and '.join(said)}")
        lines += aligned([[f"  {op}", f"{before} -> {after}"] for op, before, after in self.runs[:_SHOWN]])
        if len(self.runs) > _SHOWN:
            lines.append(f"  and {len(self.runs) - _SHOWN:,} more")
        return "\n".join(map(printable, lines))

    def __repr__(self) -> str:
        return f"Difference({counted(len(self.runs), 'op')} run more or less often)"


def difference(first: Plan, second: Plan) -> Difference:
    """What changes from the first plan to the second.

    Raises:
        PlannerError: plans of two graphs.
    """
    if first.graph.fingerprint != second.graph.fingerprint:
        names = f"{first.graph.name!r} and {second.graph.name!r}"
        raise PlannerError(f"plans of two graphs ({names}) have no difference to show; plan one graph twice")
    runs = [Counter(plan.schedule.computes) for plan in (first, second)]
    ops = [op.name for op in first.graph.ops if not op.resident]
    figures = [plan.report.plan for plan in (first, second)]
    return Difference(
        names=(_asked(first), _asked(second)),
        peak_bytes=(figures[0].peak_bytes, figures[1].peak_bytes),
        arena_bytes=(figures[0].arena_bytes, figures[1].arena_bytes),
        cost=(figures[0].cost, figures[1].cost),
        overhead=(first.report.overhead, second.report.overhead),
        runs=tuple((op, runs[0][op], runs[1][op]) for op in ops if runs[0][op] != runs[1][op]),
    )


def _asked(plan: Plan) -> str:
    return f"{plan.strategy} at {plan.budget_text}"
