"""The table of recomputed cost: ours with its proof, what is asked, and what others find on the same graph and
budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from bench.overheads import BEST_KNOWN, OURS
from bench.results import GraphRow, PeerRow, PlanRow, Results

#: A target is printed with two decimals of a percent, and so is what is held to it.
_ROUNDED = 4


def missed(row: PlanRow) -> list[str]:
    """In words, how a row misses what is asked of it."""
    found = []
    if row.overhead is None:
        found.append("no plan")
    elif row.target is not None and round(row.overhead, _ROUNDED) > round(row.target, _ROUNDED):
        found.append(f"{100 * (round(row.overhead, _ROUNDED) - row.target):.2f} points over")
    if row.limit_seconds is not None and row.plan_seconds > row.limit_seconds:
        found.append(f"{row.plan_seconds - row.limit_seconds:.2f} s over")
    return found


def overhead_lines(results: Results) -> tuple[Sequence[str], list[Sequence[str]]]:
    """Head and lines, one for each graph and budget. Peers' cells have CPU seconds in brackets."""
    ours = [row for row in results.rows if isinstance(row, PlanRow) and row.strategy == OURS]
    others = [row for row in results.rows if isinstance(row, PlanRow) and row.strategy != OURS]
    peers = [row for row in results.rows if isinstance(row, PeerRow)]
    graphs = {row.graph: row for row in results.rows if isinstance(row, GraphRow)}
    names = dict.fromkeys(
        chain((row.strategy for row in others), (row.peer for row in peers if row.peer != BEST_KNOWN))
    )
    lines: list[Sequence[str]] = []
    for row in ours:
        cells = {other.strategy: _cell(other.overhead, other.plan_seconds) for other in others if _same(other, row)}
        cells.update({peer.peer: _cell(peer.overhead, peer.cpu.get("search")) for peer in peers if _same(peer, row)})
        facts = graphs[row.graph]
        bound = None if row.cost_lower_bound is None else row.cost_lower_bound / facts.keep_all.cost - 1
        asked = "any plan" if row.target is None else f"{100 * row.target:.2f}"
        verdict = "hit" if not missed(row) else f"**missed**: {', '.join(missed(row))}"
        limit = "" if row.limit_seconds is None else f"{row.limit_seconds:g}"
        lines.append(
            (
                row.graph,
                row.budget,
                f"{facts.ops:,}",
                _percent(row.overhead),
                _percent(bound),
                _percent(row.gap),
                f"{row.plan_seconds:.2f}",
                _seconds(row.cpu.get("bound")),
                asked,
                limit,
                verdict,
                cells.get(BEST_KNOWN, ""),
                *(cells.get(name, "") for name in names),
            )
        )
    head = (
        "graph",
        "budget",
        "ops",
        "ours, %",
        "bound, %",
        "gap",
        "plan, s",
        "bound, s",
        "target, %",
        "limit, s",
        "",
        BEST_KNOWN,
    )
    return (*head, *names), lines


def _same(row: PlanRow | PeerRow, other: PlanRow) -> bool:
    return (row.graph, row.budget) == (other.graph, other.budget)


def _percent(fraction: float | None) -> str:
    return "none" if fraction is None else f"{100 * fraction:.2f}"


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.2f}"


def _cell(overhead: float | None, seconds: float | None) -> str:
    return _percent(overhead) + ("" if seconds is None else f" ({seconds:.2f})")
