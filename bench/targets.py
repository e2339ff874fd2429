"""What an issue asks of the numbers of a run, and the rows it is looked up in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Optional, final

from bench.results import ExplainRow, PackRow, PeerRow, PlanRow, ProcessRow, Row, TargetRow


@final
class Rows:
    """The rows of a run, to find some in."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows

    def plans(self, graph: str, budget: str, **fields: str | None) -> list[PlanRow]:
        """Plans that fit, cheapest first."""
        found = [row for row in self.rows if isinstance(row, PlanRow) and row.graph == graph and row.budget == budget]
        return sorted(
            (row for row in found if row.overhead is not None and _has(row, fields)),
            key=lambda row: row.overhead or 0.0,
        )

    def peer(self, graph: str, budget: str, **fields: str | None) -> PeerRow | None:
        found = [row for row in self.rows if isinstance(row, PeerRow) and row.graph == graph and row.budget == budget]
        return next((row for row in found if _has(row, fields)), None)

    def packings(self, *instances: str, asked: str = "") -> list[PackRow]:
        """Runs of the packer on these instances."""
        found = [row for row in self.rows if isinstance(row, PackRow) and row.instance in instances]
        return [row for row in found if row.asked.startswith(asked) and row.asked != row.rule]

    @property
    def explanations(self) -> list[ExplainRow]:
        return [row for row in self.rows if isinstance(row, ExplainRow)]

    def process(self, what: str) -> ProcessRow | None:
        return next((row for row in self.rows if isinstance(row, ProcessRow) and row.what == what), None)


def _has(row: Row, fields: dict[str, str | None]) -> bool:
    return all(getattr(row, name) == value for name, value in fields.items())


#: (value, limit), or None where the rows are not there; a value of None: no plan was found.
Found = Optional[tuple[Optional[float], float]]
Measured = Callable[[Rows], Found]


@final
@dataclass(frozen=True)
class Target:
    """What an issue asks of the numbers; a `TargetRow` once measured.

    Args:
        measured: (value, limit) from the rows of its suite, or None where they are not there; a value of None: no plan
            was found.
        strict: the value must be below the limit.
    """

    issue: int
    claim: str
    unit: str
    measured: Measured
    strict: bool = False

    def row(self, rows: Rows) -> TargetRow | None:
        found = self.measured(rows)
        if found is None:
            return None
        measured = None if found[0] is None else round(found[0], 4)
        return TargetRow(self.issue, self.claim, measured, round(found[1], 4), self.unit, self.strict)
