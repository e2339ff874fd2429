"""The trade-off curve: what each byte of budget costs in recomputation, as a table, CSV, JSON or a figure."""

from __future__ import annotations

import csv
import html
import importlib.util
import io
import math
import os
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Optional

import msgspec

from planner.errors import InfeasibleBudget, OutputError, PlanFileError, PlannerError, TimeLimit
from planner.files import read_versioned, write_whole
from planner.problem import Asked, Request, flat, nested
from planner.report import Figures
from planner.text import fitting, printable, shortened
from planner.units import counted, format_bytes

if TYPE_CHECKING:
    from planner.plan import Plan

FORMAT: Final = "planner-curve"
VERSION: Final = 4
FIGURES: Final = (".svg", ".png", ".pdf")
SUFFIXES: Final = (".csv", ".json", *FIGURES)

CSV_COLUMNS: Final = (
    "strategy", "budget_bytes", "status", "minimum_bytes", "peak_bytes", "arena_bytes", "cost", "overhead",
    "recomputed_ops", "extra_runs", "cut_short", "on_front", "cost_lower_bound", "gap",
)  # fmt: skip

#: What a point has where a plan fits, and only there.
_FOUND: Final = ("peak_bytes", "arena_bytes", "cost", "overhead", "recomputed_ops", "extra_runs", "gap")
#: Overheads in %, of each of which the verdict names the least memory.
_CHEAP: Final = (1.0, 5.0, 15.0)
PointStatus = Literal["fits", "infeasible", "not reached"]


class Point(msgspec.Struct, frozen=True):
    """One strategy at one budget. All bytes are exact ints.

    Args:
        strategy, budget: what was asked; the budget in bytes, reserve included.
        status: "fits"; "infeasible": the strategy has no plan within the budget; "not reached": the search was stopped
            before.
        minimum: where nothing fits, the least arena + reserve the strategy reached: the least budget it can do.
        peak_bytes, arena_bytes, cost: of the plan; None where nothing fits.
        overhead: extra cost as a fraction of keep-all's.
        recomputed_ops, extra_runs: ops run more than once, and their runs beyond the first.
        cut_short: True if a time limit or Ctrl-C stopped the search at this budget: more time may find a better plan.
        cost_lower_bound: proven: no plan whose live bytes fit the budget costs less, however it is packed. None: proven
            that none fits.
        gap: how far the cost may be above the best possible, as a fraction of keep-all's; None where nothing fits.
    """

    strategy: str
    budget: int
    status: PointStatus
    minimum: Optional[int] = None
    peak_bytes: Optional[int] = None
    arena_bytes: Optional[int] = None
    cost: Optional[float] = None
    overhead: Optional[float] = None
    recomputed_ops: Optional[int] = None
    extra_runs: Optional[int] = None
    cut_short: bool = False
    cost_lower_bound: Optional[float] = None
    gap: Optional[float] = None

    def __post_init__(self) -> None:
        found = [getattr(self, name) for name in _FOUND]
        if any((value is None) == (self.status == "fits") for value in found):
            raise ValueError(f"a point with status {self.status!r} and figures {found}")
        if self.status == "fits" and self.cost_lower_bound is None:
            raise ValueError("a point that fits has no cost lower bound")


class Curve(Asked, msgspec.Struct, frozen=True, dict=True):
    """What `curve` returns.

    Within one strategy a larger budget never costs more, nor is more proven of it; arena + reserve never exceeds the
    budget.

    Args:
        graph, fingerprint, ops: the program; residents are not counted.
        keep_all: what the program takes without recomputing, see `Figures`.
        peak_lower_bound: bytes no plan can go below, reserve not counted.
        request: what was asked at every point; its strategy and budget are those of the points.
        strategies: names, as asked.
        points: by strategy as asked, then by budget; one for every budget, also where nothing fits.
    """

    graph: str
    fingerprint: str
    ops: int
    keep_all: Figures
    peak_lower_bound: int
    request: Request
    strategies: tuple[str, ...]
    points: tuple[Point, ...]

    @property
    def front(self) -> tuple[Point, ...]:
        """The Pareto front of (arena, cost) over all strategies; of equal points the first."""
        front: list[Point] = []
        fits = [point for point in self.points if point.arena_bytes is not None]
        for point in sorted(fits, key=lambda point: (point.arena_bytes, point.cost)):
            if not front or _cost(point) < _cost(front[-1]):
                front.append(point)
        return tuple(front)

    @property
    def best(self) -> tuple[Point, ...]:
        """At each budget the point of least cost over all strategies; of equal points the first named."""
        by_budget = groupby(sorted(self.points, key=lambda point: point.budget), key=lambda point: point.budget)
        return tuple(min(points, key=_rank) for _, points in by_budget)

    @property
    def least_budget(self) -> int:
        """The least budget in bytes, reserve included, that is not proven to be too small for any plan."""
        hopeless = [point.budget + 1 for point in self.points if point.cost_lower_bound is None]
        return max([self.memory.needed_bytes(self.peak_lower_bound), *hopeless])

    def plan(self, point: Point) -> Plan:
        """The plan of a point, as `optimize` returns one: packed, judged, and ready to be saved.

        Raises:
            PlannerError: nothing fits there, the point is of another curve, or this one comes from a file, which holds
                no plans.
        """
        if point.status != "fits" or point not in self.points:
            raise PlannerError(f"no plan of {point.strategy!r} at {point.budget} bytes on this curve: {point.status}")
        make: Optional[Callable[[Point], Plan]] = vars(self).get("_make_plan")
        if make is None:
            raise PlannerError(
                "a curve from a file has no plans: take them from the one that was found, or save them beside"
                " it (--plans)"
            )
        return make(point)

    def save_plans(self, folder: str | os.PathLike[str]) -> tuple[str, ...]:
        """Write the plans of `best`, each to a file named by the least budget it is for, as `3727519556.json`.

        Args:
            folder: made if it is missing.
        Raises:
            OutputError: the folder or a file cannot be written.
            PlannerError: see `plan`.
        Returns:
            The files' paths.
        """
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            raise OutputError(f"cannot make the folder {os.fspath(folder)!r}: {error.strerror or error}") from None
        paths: list[str] = []
        last: Optional[tuple[object, ...]] = None
        for point in self.best:
            which = (point.strategy, point.arena_bytes, point.peak_bytes, point.cost)
            if point.status == "fits" and which != last:
                last = which
                paths.append(os.path.join(folder, f"{point.budget}.json"))
                self.plan(point).save(paths[-1])
        return tuple(paths)

    def with_plans(self, make: Callable[[Point], Plan]) -> Curve:
        """This curve, with what makes the plan of a point; no part of its value or its file."""
        vars(self)["_make_plan"] = make
        return self

    def of(self, strategy: str) -> tuple[Point, ...]:
        """The points of one strategy, smallest budget first."""
        return tuple(point for point in self.points if point.strategy == strategy)

    def overhead_lower_bound(self, point: Point) -> float:
        """What no plan's overhead is below at a point's budget; infinite where none fits."""
        if point.cost_lower_bound is None:
            return math.inf
        return max(0.0, point.cost_lower_bound / self.keep_all.cost - 1) if self.keep_all.cost else 0.0

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the curve in the form its suffix names, whole or not at all: .csv, .json, .svg, .png or .pdf.

        Raises:
            OutputError: another suffix, or the file cannot be written.
            PlannerError: a figure is wanted and matplotlib is not installed.
        """
        suffix = check_path(path)
        if suffix == ".csv":
            content = self.to_csv().encode()
        elif suffix == ".json":
            content = self.to_json()
        else:
            from planner.views.drawing import rendered
            from planner.views.trade_off import trade_off

            content = rendered(trade_off(self), suffix)
        write_whole(path, content)

    def to_json(self) -> bytes:
        """The curve file: versioned, everything in it; `load_curve` reads it."""
        return msgspec.json.encode({"format": FORMAT, "version": VERSION, **msgspec.to_builtins(self)})

    def as_object(self) -> dict[str, object]:
        """The curve as `--json` prints it: what was asked lies beside what was found."""
        return flat(self, "allocator", "memory", "order", "effort", "seed", "save_rules", "recompute_rules")

    def to_csv(self) -> str:
        """One line a point; empty cells where nothing fits; bytes are exact ints."""
        front = self.front
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(CSV_COLUMNS)
        for point in self.points:
            cells = {**msgspec.structs.asdict(point), "budget_bytes": point.budget, "minimum_bytes": point.minimum}
            cells |= {"cut_short": int(point.cut_short), "on_front": int(any(point is other for other in front))}
            writer.writerow(cells[column] for column in CSV_COLUMNS)
        return text.getvalue()

    def __str__(self) -> str:
        return self.as_text(None)

    def as_text(self, width: int | None) -> str:
        """The answer in a sentence, then a table of all points.

        Args:
            width: characters of a line at most; columns are left out for it, and a line says which. None: all columns.
        """
        table, hidden = self._table(width)
        left_out = [f"  Left out in {width} columns: {', '.join(hidden)}; --json has all"] if hidden else []
        return "\n".join(map(printable, [self.verdict, *self._head(), *table, *left_out, *self._notes()]))

    @property
    def verdict(self) -> str:
        """The least memory for no, little and some recomputation, in one sentence."""
        front = [(point.arena_bytes, point.overhead) for point in self.front]
        if not front:
            return "No budget fits any plan found"
        cheapest = [
            next(((a, o) for a, o in front if a is not None and 100 * (o or 0) <= most), None) for most in _CHEAP
        ]
        told = dict.fromkeys(pair for pair in (*cheapest, front[0]) if pair is not None and pair[1])
        plans = [f"{format_bytes(arena or 0)} for {100 * (o or 0):+.2f} %" for arena, o in sorted(told, reverse=True)]
        whole = f"{format_bytes(self.keep_all.arena_bytes)} without recomputation"
        return f"{', '.join([whole, *plans])}; no plan below {format_bytes(self.least_budget)}"

    def __repr__(self) -> str:
        found = f"{counted(len(self.points), 'point')} by {shortened(', '.join(self.strategies), 60)}"
        return f"Curve({shortened(self.graph, 60)!r}, {found}; {len(self.front)} on the front)"

    def _repr_html_(self) -> str:
        """The table, and the figure where matplotlib is installed."""
        table = f"<pre>{html.escape(str(self))}</pre>"
        if importlib.util.find_spec("matplotlib") is None:
            return table
        from planner.views.drawing import rendered
        from planner.views.trade_off import trade_off

        svg = rendered(trade_off(self), ".svg").decode()
        return svg[svg.index("<svg") :] + table

    def _head(self) -> list[str]:
        base, scope = self.keep_all, self.memory.scope
        packed = f"allocator {self.allocator}" if self.allocator else "live bytes only"
        reserve = self.memory.needed_bytes(0)
        kept = f" · reserve {format_bytes(reserve)}" if reserve else ""
        return [
            f"Curve  {self.graph} · {self.ops:,} ops · {packed} · scope {scope}{kept}",
            f"  No recomputation: peak {format_bytes(base.peak_bytes)}, memory {format_bytes(base.arena_bytes)};"
            f" no plan's peak is below {format_bytes(self.peak_lower_bound)}",
        ]

    def _table(self, width: int | None) -> tuple[list[str], tuple[str, ...]]:
        """Lines, and the columns that were left out. Budgets that a strategy misses for one reason share a line."""
        front = self.front
        rows = [["strategy", "budget", "peak", "memory", "of all", "overhead", "at least", "recomputed", ""]]
        missed: list[tuple[str, str, str]] = []
        for p in self.points:
            if p.peak_bytes is None or p.arena_bytes is None or p.overhead is None:
                missed.append((p.strategy, self._why_not(p), format_bytes(p.budget)))
                continue
            rows.append([p.strategy, format_bytes(p.budget)])
            share = f"{100 * p.arena_bytes / self.keep_all.arena_bytes:.1f} %" if self.keep_all.arena_bytes else ""
            costs = [f"{100 * overhead:+.2f} %" for overhead in (p.overhead, self.overhead_lower_bound(p))]
            mark = "*" if any(p is other for other in front) else ""
            rows[-1] += [format_bytes(p.peak_bytes), format_bytes(p.arena_bytes), share, *costs]
            rows[-1] += [f"{p.recomputed_ops:,}", mark]
        inner = None if width is None else width - 2
        lines, hidden = fitting(rows, width=inner, less_wanted=("of all", "peak", "recomputed", "at least"))
        lines = lines if len(rows) > 1 else []
        for (strategy, why), group in groupby(missed, key=lambda miss: miss[:2]):
            budgets = [budget for _, _, budget in group]
            span = budgets[0] if len(budgets) == 1 else f"{budgets[0]} to {budgets[-1]}"
            lines.append(f"{strategy} at {span} {why}")
        return [f"  {line}" for line in lines], hidden

    def _why_not(self, point: Point) -> str:
        if point.status == "not reached":
            return "not reached"
        least = "" if point.minimum is None else f"; least that works {format_bytes(point.minimum)}"
        return f"does not fit{', nor can any plan' if point.cost_lower_bound is None else ''}{least}"

    def _notes(self) -> list[str]:
        notes = ["* on the Pareto front of memory and cost"] if self.front else []
        fits = [point for point in self.best if point.gap is not None]
        if fits:
            widest = max(fits, key=_gap)
            notes.append(f"at least: the overhead that no plan within the budget is below; {_proven(widest)}")
        policy = [("save", rule) for rule in self.save_rules] + [("recompute", rule) for rule in self.recompute_rules]
        if policy:
            notes.append("Every plan within the policy: " + ", ".join(f"{kind} {rule!r}" for kind, rule in policy))
        stopped = sum(point.status == "not reached" for point in self.points)
        if any(point.cut_short for point in self.points):
            stop = f"; {stopped} points were not reached" if stopped else ""
            notes.append(f"Cut short by the time limit or Ctrl-C: more time may find better plans{stop}")
        return [f"  {note}" for note in notes]


def _cost(point: Point) -> float:
    assert point.cost is not None
    return point.cost


def _gap(point: Point) -> float:
    return point.gap or 0.0


def _rank(point: Point) -> tuple[bool, float]:
    """Least cost first; where nothing fits, least minimum."""
    return (point.cost is None, float(point.minimum or 0) if point.cost is None else point.cost)


def _proven(widest: Point) -> str:
    if not widest.gap:
        return "the cheapest plans of this curve are proven to be the cheapest there are"
    return (
        f"the cheapest plans of this curve are at most {100 * widest.gap:.2f} percentage points above it"
        f" ({format_bytes(widest.budget)})"
    )


def check_path(path: str | os.PathLike[str]) -> str:
    """The suffix of a path a curve can be saved to; refuses before the work what could not be written after it.

    Raises:
        OutputError: another suffix.
        PlannerError: a figure, and matplotlib is not installed.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise OutputError(
            f"cannot save a curve as {str(path)!r}: end the name with {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
        )
    if suffix in FIGURES and importlib.util.find_spec("matplotlib") is None:
        raise PlannerError(
            f"{str(path)!r} needs matplotlib: pip install 'sublinear-planner[plot]', or save as .csv or .json"
        )
    return suffix


def load_curve(path: str | os.PathLike[str]) -> Curve:
    """A curve from its JSON file.

    Raises:
        PlanFileError: missing, not a curve, another version, or damaged.
    """
    head = read_versioned(path, kind="curve", format=FORMAT, versions=(2, 3, VERSION), again="make it again")
    try:
        return msgspec.convert(nested(head) if head["version"] == 2 else head, Curve)
    except (msgspec.ValidationError, PlannerError, RecursionError) as error:
        raise PlanFileError(f"{str(path)!r} is damaged: {error}") from None


def nothing_fits(found: Curve) -> PlannerError | None:
    """The error where a curve has no plan at all, so that it exits as one plan would."""
    if any(point.status == "fits" for point in found.points):
        return None
    if any(point.status == "not reached" for point in found.points):
        return TimeLimit("no plan for any of the budgets was found in time; raise the limit or the budgets")
    minimum, strategy = min((point.minimum or 0, point.strategy) for point in found.points)
    largest = max(found.points, key=lambda point: point.budget)
    least = f"Least that works: {minimum} bytes ({strategy!r}). Raise the budgets to that."
    return InfeasibleBudget(
        f"no plan fits any of the budgets\n{least}",
        budget=largest.budget,
        minimum=minimum,
        peak_lower_bound=found.least_budget,
        proven=largest.cost_lower_bound is None,
        binding_op=None,
    )
