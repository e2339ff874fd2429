"""What is asked of plans at budgets, live bytes only: which graphs, how good, how soon, how near to what is proven."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from bench import remat
from bench.generators import Parts, gpt, layered
from bench.measure import Size
from bench.overhead_table import missed
from bench.overheads import OURS, Aim, Overheads
from bench.results import PlanRow
from bench.targets import Found, Measured, Rows

#: (graph, CPU seconds a plan may take, overhead in % to be reached by budget, or None: any plan).
_REMAT: Final[tuple[tuple[str, float, dict[str, float | None]], ...]] = (
    ("cm_vgg16", 1, {"90%": 1.97}),
    ("cm_vgg_unet", 1, {"80%": 1.98, "60%": 4.45, "50%": 6.97, "40%": 13.27}),
    ("cm_resnet50", 1, {"40%": 2.45}),
    ("cm_mobilenet", 1, {"50%": 1.64}),
    ("chain100", 1, {"50%": 25.5, "25%": 38.0, "10%": 77.0}),
    ("vgg16chain", 1, {"60%": 0.01, "50%": 0.38}),
    ("rl100", 1, {"90%": 0.0, "80%": 0.0}),
    ("gpt12", 1, {"50%": 6.86}),
    ("aten_gpt", 1, {"80%": 2.83, "60%": 12.32}),
    ("aten_resnet50", 1, {"50%": 8.87, "30%": 18.42}),
    ("aten_resnet152", 5, {"50%": 8.84, "30%": 16.81, "20%": 22.52}),
    ("aten_resnet1001", 5, {"50%": 9.00, "30%": 16.40, "15%": 24.02, "10%": 29.88}),
    ("unet_own", 5, {"50%": 3.31}),
    ("resnet50_own", 5, {"50%": 7.76}),
    ("gpt96", 5, {"50%": 6.50}),
    ("rl1000", 20, {"90%": 0.62, "80%": 2.18}),
    ("layered1000", 20, {"80%": 3.96}),
    ("gpt400", 20, {"50%": 6.50}),
    ("layered10000", 20, {"80%": None}),
)
_PINNED: Final = {"rl100": (Aim("90%", 0.79, "pinned"), Aim("80%", 2.30, "pinned"))}
_MADE: Final[dict[str, Callable[[], Parts]]] = {
    "gpt400": partial(gpt, 400), "layered10000": partial(layered, 10_000, width=60, seed=0),
}  # fmt: skip
#: Training graphs of 1,000, 10,000 and 100,000 ops.
GROWING: Final = ("gpt42", "gpt417", "gpt4167")


def _overheads(name: str, seconds: float, column: dict[str, float | None]) -> Overheads:
    aims = (*(Aim(budget, percent) for budget, percent in column.items()), *_PINNED.get(name, ()))
    if name in _MADE:
        return Overheads(name, _MADE[name], aims, seconds)
    size: Size = "quick" if seconds <= 1 else "normal"
    return Overheads(
        name, partial(remat.read_parts, name), aims, seconds, missing=partial(remat.missing, name), size=size
    )


def asked(rows: Rows, graphs: Sequence[str], least_share: float = 0.0) -> list[PlanRow]:
    """Rows of ours on these graphs, at budgets of at least this share of keep-all's peak; none unless all graphs are
    there.
    """
    found = [
        row
        for row in rows.rows
        if isinstance(row, PlanRow) and row.strategy == OURS and row.graph in graphs and row.limit_seconds
    ]
    found = [row for row in found if "order" not in row.budget and float(row.budget.rstrip("%")) >= 100 * least_share]
    return found if {row.graph for row in found} == set(graphs) else []


def over(kind: str) -> Measured:
    """Rows that miss what is asked of them: a plan at the overhead, or within the time."""

    def measured(rows: Rows) -> Found:
        asked = [row for row in rows.rows if isinstance(row, PlanRow) and row.limit_seconds]
        return (
            (sum(any((" s over" in why) == (kind == "time") for why in missed(row)) for row in asked), 0)
            if asked
            else None
        )

    return measured


def gap(*graphs: str, limit: float, least_share: float = 0.0, most_share: float = 1.0) -> Measured:
    """The largest distance of a plan to what is proven, in points."""

    def measured(rows: Rows) -> Found:
        found = [row for row in asked(rows, graphs, least_share) if float(row.budget.rstrip("%")) <= 100 * most_share]
        if not found:
            return None
        return (None if any(row.gap is None for row in found) else 100 * max(row.gap or 0.0 for row in found), limit)

    return measured


def bound_seconds(*graphs: str, limit: float) -> Measured:
    def measured(rows: Rows) -> Found:
        found = asked(rows, graphs)
        return (max(row.cpu["bound"] for row in found), limit) if found else None

    return measured


def growth(rows: Rows) -> Found:
    """CPU against ops, from 10,000 to 100,000: the exponent."""
    if not asked(rows, GROWING):
        return None
    small, large = (asked(rows, (name,))[0].plan_seconds for name in GROWING[1:])
    return (math.log10(large / small), 1.2)


def largest(measure: Callable[[PlanRow], float | None], limit: float) -> Measured:
    """Of the graph of 100,000 ops, if it got a plan."""

    def measured(rows: Rows) -> Found:
        found = asked(rows, GROWING[-1:])
        return (measure(found[0]) if found[0].overhead is not None else None, limit) if found else None

    return measured


TRAINING: Final = tuple(
    name
    for name, _, column in _REMAT
    if name[:2] != "rl" and name[:7] != "layered" and any(int(budget[:-1]) >= 50 for budget in column)
)

CASES: Final = (
    *(_overheads(*row) for row in _REMAT),
    *(Overheads(name, partial(gpt, int(name[3:])), (Aim("50%", None),), 60, (OURS,), peers=False) for name in GROWING),
)
