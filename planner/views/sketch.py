"""A small picture of memory over time as inline SVG: no script, no library, readable on light and dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from planner.units import format_bytes

_WIDTH, _HEIGHT, _TOP = 640, 150, 18
_TEXT: Final = 'font-family="sans-serif" font-size="11" fill="currentColor"'


def timeline_svg(bars: Sequence[int], *, baseline: Sequence[int] = (), budget: int | None = None) -> str:
    """Memory over the steps of a plan as an area, without recomputation as a line, the budget as a dashed line.

    The text of the picture takes the colour of the text around it.

    Args:
        bars: the most bytes in equal stretches of the plan's steps.
        baseline: the same without recomputation; left out where there is none.
        budget: bytes for the arena, or None.

    >>> timeline_svg((1, 3), budget=4).count("<path"), timeline_svg((1, 3)).count("stroke-dasharray")
    (1, 0)
    """
    top = max([*bars, *baseline, budget or 0], default=0) or 1
    drawn = []
    said = f"memory over time, at most {format_bytes(max(bars, default=0))}"
    if bars:
        area = f"M0 {_HEIGHT}" + _steps(bars, top) + f"V{_HEIGHT}Z"
        drawn.append(f'<path d="{area}" fill="#0072B2" fill-opacity="0.55"/>')
    if baseline:
        said += f", without recomputation {format_bytes(max(baseline))}"
        line = f"M0 {_y(baseline[0], top)}" + _steps(baseline, top)
        drawn.append(f'<path d="{line}" fill="none" stroke="currentColor" stroke-opacity="0.6"/>')
    if budget is not None:
        said += f", budget {format_bytes(budget)}"
        y = _y(budget, top)
        drawn.append(f'<line x1="0" x2="{_WIDTH}" y1="{y}" y2="{y}" stroke="#D55E00" stroke-dasharray="6 4"/>')
    label = f'<text x="0" y="12" {_TEXT}>{escape(said[0].upper() + said[1:])}</text>'
    frame = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" style="max-width: {_WIDTH}px; width: 100%" role="img"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {frame} aria-label="{escape(said)}">{label}{"".join(drawn)}</svg>'


def _y(nbytes: int, top: int) -> float:
    return round(_HEIGHT - (_HEIGHT - _TOP) * nbytes / top, 1)


def _steps(bars: Sequence[int], top: int) -> str:
    """A path of steps from left to right, one a bar."""
    return "".join(f"V{_y(nbytes, top)}H{round(_WIDTH * (k + 1) / len(bars), 1)}" for k, nbytes in enumerate(bars))
