"""One-line text for any value, whole numbers from arguments, and tables in aligned columns."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Final

from planner.errors import GraphError

_MOST_BYTES: Final = 2**62
_MOST_COUNTED: Final = 10**7


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
