"""Which file a plan is written to, by the end of its name."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from planner.errors import OutputError, PlannerError
from planner.views.drawing import rendered
from planner.views.page import page
from planner.views.plan_figures import arena_map, memory_timeline, recompute_strip

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from planner.plan import Plan

FIGURES: Final[Mapping[str, Callable[[Plan], Figure]]] = MappingProxyType({
    "timeline": memory_timeline, "arena": arena_map, "recomputation": recompute_strip,
})  # fmt: skip
PICTURES: Final = (".svg", ".png", ".pdf")
_NEEDS: Final = {**dict.fromkeys(PICTURES, ("matplotlib",)), ".html": ("jinja2", "plotly")}


def check_suffix(path: str | os.PathLike[str], *, allowed: tuple[str, ...]) -> str:
    """The suffix of a path; refuses before the work what could not be written after it.

    Args:
        allowed: suffixes, with their dots.
    Raises:
        OutputError: another suffix.
        PlannerError: a figure, and matplotlib is not installed; a page, and jinja2 or plotly are not.

    >>> check_suffix("plan.JSON", allowed=(".json",))
    '.json'
    """
    suffix = Path(path).suffix.lower()
    if suffix not in allowed:
        ends = f"{', '.join(allowed[:-1])} or {allowed[-1]}" if len(allowed) > 1 else allowed[0]
        raise OutputError(f"cannot write {str(path)!r}: end the name with {ends}")
    missing = [library for library in _NEEDS.get(suffix, ()) if importlib.util.find_spec(library) is None]
    if missing:
        raise PlannerError(f"{str(path)!r} needs {' and '.join(missing)}: pip install {' '.join(missing)}")
    return suffix


def content_of(plan: Plan, suffix: str, *, figure: str = "timeline") -> bytes:
    """What is written to a file of this suffix: the plan itself as .json, its page as .html, or a figure of it.

    Args:
        figure: one of `FIGURES`.
    """
    if suffix == ".html":
        return page(plan)
    return plan.to_json() if suffix == ".json" else rendered(FIGURES[figure](plan), suffix)
