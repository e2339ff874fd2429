"""One-line text for any value, whole numbers from arguments, and tables in aligned columns."""

from __future__ import annotations

import operator
import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

from planner.errors import GraphError

_MOST_BYTES: Final = 2**62
_MOST_COUNTED: Final = 10**7
_GAP: Final = re.compile(" {2,}")
_NUMBERS: Final = re.compile(r"([0-9]{1,9})")

Shared = TypeVar("Shared")


def printable(text: str) -> str:
    r"""One line that a terminal shows as it is: line breaks, control characters and lone surrogates are escaped.

    >>> printable("two\nlines")
    'two\\nlines'
    """
    return "".join(char if char == " " or char.isprintable() else ascii(char)[1:-1] for char in text)


def shortened(text: str, most: int) -> str:
    """A text of at most `most` characters, the last of them an ellipsis where some are missing.

    >>> shortened("resnet:1001", 7)
    'resnet…'
    """
    return text if len(text) <= most else f"{text[: most - 1]}…"


def shown(value: Any, most: int = 200) -> str:
    """A value in an error message: one line of at most `most` characters."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"of {value.bit_length()} bits"
    return shortened(printable(" ".join(repr(value).split())), most)


def nearest(word: str, words: Sequence[str]) -> list[str]:
    """The words, two at most, that the writer of a word that is none of them may have meant, the nearest first.

    >>> nearest("adamm", ["sgd", "adam"])
    ['adam']
    """
    from difflib import get_close_matches

    return get_close_matches(word, words, n=2, cutoff=0.5)


def as_int(value: Any) -> int | None:
    """The plain int of Python's or NumPy's, or None: no bool, no float, no text.

    >>> as_int(7), as_int(True), as_int(7.0)
    (7, None, None)
    """
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def whole_number(model: str, name: str, value: Any, *, least: int) -> int:
    """A model's argument that counts something; one named `nbytes` may be as large as a size.

    Raises:
        GraphError: another type, too small, or above 10**7 (2**62 bytes).
    """
    most, power = (_MOST_BYTES, "2**62") if name.endswith("nbytes") else (_MOST_COUNTED, "10**7")
    number = as_int(value)
    if number is None or not least <= number <= most:
        raise GraphError(f"{model}: {name} is {shown(value)}, expected an int >= {least} and at most {power}")
    return number


def aligned(rows: Sequence[Sequence[str]], *, left: int = 1) -> list[str]:
    """Lines of columns two spaces apart; the first `left` columns are left-aligned, all others right-aligned.

    A row may be shorter than the others.

    >>> aligned([["op", "bytes"], ["conv", "7"]])
    ['op    bytes', 'conv      7']
    """
    widths = [max(len(row[k]) for row in rows if k < len(row)) for k in range(max(map(len, rows), default=0))]
    return [
        "  ".join(
            cell.ljust(width) if k < left else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=False))
        ).rstrip()
        for row in rows
    ]


def fitting(
    rows: Sequence[Sequence[str]], *, width: int | None, less_wanted: Sequence[str], left: int = 1
) -> tuple[list[str], tuple[str, ...]]:
    """`aligned` rows of at most `width` characters, and the headings of the columns left out for it.

    Args:
        rows: the first one is the heading; a row that is shorter ends early.
        width: None: as wide as they are.
        less_wanted: headings of the columns that may go, first to go first.

    >>> fitting([["op", "bytes", "cost"], ["conv", "7", "1"]], width=12, less_wanted=["cost"])
    (['op    bytes', 'conv      7'], ('cost',))
    """
    dropped: list[str] = []
    heading = list(rows[0]) if rows else []
    for name in (None, *less_wanted):
        if name is not None and name in heading:
            dropped.append(name)
        kept = [k for k in range(max(map(len, rows), default=0)) if k >= len(heading) or heading[k] not in dropped]
        lines = aligned([[row[k] for k in kept if k < len(row)] for row in rows], left=left)
        if width is None or max(map(len, lines), default=0) <= width:
            break
    return lines, tuple(dropped)


def folded(rows: Iterable[tuple[str, Shared]], *, least: int = 3) -> list[tuple[str, int, Shared]]:
    """Neighbours that share all but one number of their name, which counts on by one, as one row.

    Args:
        rows: (name, what neighbours must share).
        least: so many become one row; fewer stay.
    Returns:
        (name, how many, what they share).

    >>> folded([("h0.mlp", 4), ("h1.mlp", 4), ("h2.mlp", 4), ("head", 4)])
    [('h0-h2.mlp', 3, 4), ('head', 1, 4)]
    """
    runs: list[list[tuple[str, Shared]]] = []
    for name, shared in rows:
        run = runs[-1] if runs else []
        if run and run[-1][1] == shared and _counts_on(run[0][0], run[-1][0], name):
            run.append((name, shared))
        else:
            runs.append([(name, shared)])
    return [
        row
        for run in runs
        for row in (
            [(_range_of(run[0][0], run[-1][0]), len(run), run[0][1])]
            if len(run) >= least
            else [(name, 1, shared) for name, shared in run]
        )
    ]


def counted_on(name: str) -> str | None:
    """The name with its last number one higher; None where it has none.

    >>> counted_on("h9.mlp"), counted_on("head")
    ('h10.mlp', None)
    """
    parts = _NUMBERS.split(name)
    return None if len(parts) < 3 else "".join([*parts[:-2], str(int(parts[-2]) + 1), parts[-1]])


def _counts_on(first: str, last: str, name: str) -> bool:
    """True if a name is the next of those from a first to a last, by the number in which it differs from the last."""
    before, after = _NUMBERS.split(last), _NUMBERS.split(name)
    if len(before) != len(after):
        return False
    places = [k for k, (one, other) in enumerate(zip(before, after, strict=True)) if one != other]
    if len(places) != 1 or places[0] % 2 == 0 or int(after[places[0]]) != int(before[places[0]]) + 1:
        return False
    return first == last or _NUMBERS.split(first)[places[0]] != before[places[0]]


def _range_of(first: str, last: str) -> str:
    """The names from one to another: of the part in which they differ both, of all other parts one."""
    pairs = zip(first.split("."), last.split("."), strict=True)
    return ".".join(one if one == other else f"{one}-{other}" for one, other in pairs)


def wrapped(line: str, width: int) -> list[str]:
    """A line of prose in lines of at most `width` characters, the later ones indented further; no word is cut.

    A row of a table, three columns or more that are two or more spaces apart, stays as it is.

    >>> wrapped("  Peak at op conv1, of which weights are most", 30)
    ['  Peak at op conv1, of which', '    weights are most']
    """
    text = line.lstrip(" ")
    if len(line) <= width or len(_GAP.findall(text.rstrip(" "))) > 1:
        return [line]
    indent = " " * (len(line) - len(text))
    return textwrap.wrap(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
