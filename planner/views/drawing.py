"""How figures are drawn: by matplotlib's objects, with no window, no global state, and equal bytes every time."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, ParamSpec

from planner.errors import PlannerError
from planner.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Drawn = ParamSpec("Drawn")

#: Okabe and Ito's palette, which readers with any colour vision tell apart; markers say the same once more.
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X")
INK, FAINT, ZONE = "#222222", "#767676", "#EDEDED"
STYLE: Final[dict[str, Any]] = {
    "font.family": ["DejaVu Sans", "sans-serif"], "font.size": 10.0,
    "axes.edgecolor": FAINT, "axes.labelcolor": INK, "axes.spines.right": False, "axes.spines.top": False,
    "axes.titlesize": 12.0, "axes.titleweight": "bold",
    "figure.dpi": 100.0, "savefig.dpi": 200.0,
    "grid.color": "#E2E2E2", "grid.linewidth": 0.8, "legend.frameon": False,
    "xtick.color": FAINT, "xtick.labelcolor": INK, "ytick.color": FAINT, "ytick.labelcolor": INK,
    "svg.fonttype": "none",  # text stays text: it can be searched, and read aloud
    "svg.hashsalt": "planner",
    "text.parse_math": False,  # names of nodes and strategies are no formulas
    "pdf.fonttype": 42,
}  # fmt: skip


@contextmanager
def style() -> Iterator[None]:
    """Draw in our style and give the user's style back afterwards.

    Raises:
        PlannerError: no matplotlib.
    """
    try:
        import matplotlib.style
    except ImportError:
        raise PlannerError("figures need matplotlib: pip install 'sublinear-planner[plot]'") from None
    with matplotlib.style.context(["default", STYLE]):
        yield


def styled(draw: Callable[Drawn, Figure]) -> Callable[Drawn, Figure]:
    @wraps(draw)
    def in_style(*args: Drawn.args, **kwargs: Drawn.kwargs) -> Figure:
        with style():
            return draw(*args, **kwargs)

    return in_style


def rendered(figure: Figure, suffix: str) -> bytes:
    """The content of a .svg, .png or .pdf file, without date and random ids: equal figures give equal bytes."""
    metadata: dict[str, dict[str, Any]] = {
        ".svg": {"Date": None, "Creator": "planner"},
        ".png": {"Software": None},
        ".pdf": {"CreationDate": None, "Creator": "planner", "Producer": None},
    }
    content = io.BytesIO()
    with style():
        figure.savefig(content, format=suffix[1:], metadata=metadata[suffix])
    return content.getvalue()


def legend_below(figure: Figure, entries: int) -> None:
    """Put the legend below the axes, in as many columns as fit."""
    for columns in range(entries, 0, -1):
        legend = figure.legend(loc="outside lower center", ncols=columns)
        if columns == 1 or legend.get_window_extent().width < 0.98 * figure.bbox.width:
            return
        legend.remove()


def above(axes: Axes, where: float, points: float, text: str, side: str, colour: str) -> None:
    """Text above the axes, `points` above their upper edge; `where` is 0 at the left and 1 at the right."""
    place: dict[str, Any] = {"xycoords": "axes fraction", "xytext": (0, points), "textcoords": "offset points"}
    axes.annotate(text, (where, 1.0), **place, ha=side, va="bottom", fontsize=9, color=colour)


def unit_of(nbytes: int) -> tuple[int, str]:
    """The IEC unit in which a size reads well."""
    unit = format_bytes(nbytes).split(" ")[1]
    return 1024 ** ("B", "KiB", "MiB", "GiB", "TiB", "PiB").index(unit), unit


def size_in(nbytes: int, unit_bytes: int, unit: str) -> str:
    """A size in the unit of the axis, or exactly where the unit is too coarse."""
    return format_bytes(nbytes) if unit_bytes == 1 or 10 * nbytes < unit_bytes else f"{nbytes / unit_bytes:.2f} {unit}"
