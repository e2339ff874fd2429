"""Sizes as text, and back: the only place that knows units.

People write `"7GB"`; programs want an exact int; reports show IEC units with two decimals. 7GB and 7GiB differ by
7.4 %, so this module guesses nothing: it refuses what it does not understand, and lists the accepted forms.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from numbers import Integral, Real
from typing import Union

from planner.errors import UnitError
from planner.text import as_int, shown

BudgetText = Union[int, float, str]

_FACTORS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGTP", start=1):
    _FACTORS[_letter] = _FACTORS[f"{_letter}B"] = 1000**_power
    _FACTORS[f"{_letter}IB"] = 1024**_power

MAX_BYTES = 2**62
_LONGEST = 40  # characters; a longer number is no size, and costs time to read
_SIZES = 'write "7GB" (7e9), "7GiB" (7*2**30), or bytes as an int >= 1'
_BUDGETS = f'{_SIZES}; or a fraction as 0.4 or "40%"'
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)")
_PERCENT = re.compile(r"[0-9]+(\.[0-9]+)?\s*%")
_FRACTION = re.compile(
    r"[0-9]*\.[0-9]+|[0-9]+(\.[0-9]+)?[eE]-[0-9]{1,3}"
)  # the second as Python shows floats below 0.0001
_NEGATIVE = re.compile(r"-\s*[0-9.]+\s*(%|[A-Za-z]*)")


def parse_bytes(text: int | str, *, what: str = "size") -> int:
    """An exact number of bytes from `"7GB"`, `"1.5GiB"`, `"512 mb"`, `"123"` or an int >= 0, numpy's included.

    Args:
        text: the size; decimal units are powers of 1000, IEC units (`GiB`) powers of 1024; a part of a byte is dropped.
            `"7Gb"` is refused: a small `b` after an upper-case prefix means bits to some readers.
        what: the word for the size in an error.
    Raises:
        UnitError: not understood, negative, or above 2**62.

    >>> parse_bytes("7GB"), parse_bytes("7GiB"), parse_bytes("1.5 MiB")
    (7000000000, 7516192768, 1572864)
    """
    if not isinstance(text, str):
        whole = as_int(text)
        if whole is None:
            raise UnitError(f"{what} {shown(text)} is not a size: {_forms(what)}")
        value = Fraction(whole)
    elif len(text) > _LONGEST:
        raise UnitError(f"{what} of {len(text)} characters is not understood: {_forms(what)}")
    else:
        match = _SIZE.fullmatch(text.strip())
        unit = match[2] if match else ""
        bits = unit.endswith("b") and unit != unit.lower()
        if match is None or unit.upper() not in _FACTORS or bits:
            why = "is not understood" + (" (b reads as bits)" if bits else "")
            why = "is negative" if _NEGATIVE.fullmatch(text.strip()) else why
            raise UnitError(f"{what} {text!r} {why}: {_forms(what)}")
        value = Fraction(match[1]) * _FACTORS[unit.upper()]
    if not 0 <= value <= MAX_BYTES:
        given = text if isinstance(text, str) or abs(value) < 10**_LONGEST else f"of more than {_LONGEST} digits"
        why = "is negative" if value < 0 else "is above 2**62 bytes"
        raise UnitError(f"{what} {given} {why}: {_forms(what)}")
    return math.floor(value)


def _forms(what: str) -> str:
    return _BUDGETS if what == "budget" else _SIZES


def parse_budget(budget: BudgetText, keep_all_peak_bytes: int) -> int:
    """The exact bytes of a budget; a fraction is of the peak without recomputation, in the same scope.

    Args:
        budget: see `parse_bytes`; also a float in (0, 1], its text as `"0.4"` or `"1e-9"`, `"40%"`, and `"auto"` for
            the free memory of the device. The smallest fraction still gives one byte.
        keep_all_peak_bytes: 100 %.
    Raises:
        UnitError: not understood, zero, negative, NaN, above 100 %, or `"auto"` with no device to ask.

    >>> parse_budget("40%", 1000), parse_budget(0.4, 1000), parse_budget("2KB", 1000)
    (400, 400, 2000)
    """
    fraction: Fraction | None = None
    if isinstance(budget, Real) and not isinstance(budget, Integral):  # floats of numpy too
        if not math.isfinite(budget):
            raise UnitError(f"budget {budget!r} is not a size: {_BUDGETS}")
        fraction = Fraction(str(budget))  # the shortest decimal of a float is what people wrote
    elif isinstance(budget, str) and len(budget) <= _LONGEST:
        text = budget.strip()
        if text == "auto":
            return free_device_bytes()
        if _PERCENT.fullmatch(text):
            fraction = Fraction(text[:-1].strip()) / 100
        elif _FRACTION.fullmatch(text):
            fraction = Fraction(text)
    if fraction is not None:
        if not 0 < fraction <= 1:
            why = "is negative" if fraction < 0 else "is not a fraction in (0, 1]"
            raise UnitError(f"budget {budget!r} {why}: {_BUDGETS}")
        return max(1, math.floor(fraction * keep_all_peak_bytes))
    nbytes = parse_bytes(budget, what="budget")  # type: ignore[arg-type]
    if nbytes < 1:
        raise UnitError(f"budget {budget!r} leaves no memory at all: {_BUDGETS}")
    return nbytes


def free_device_bytes() -> int:
    """Free bytes of the first CUDA device, as its driver reports them.

    PyTorch is asked here and not in `planner.torch`: budgets are made of this module, which comes before all rooms.

    Raises:
        UnitError: no PyTorch or no such device.
    """
    try:
        import torch
    except ImportError:
        why = "asks the device through PyTorch, which is not installed"
        raise UnitError(f'budget "auto" {why}: write the bytes, as "7GB"') from None
    if not torch.cuda.is_available():
        raise UnitError('budget "auto": no CUDA device was found: write the bytes, as "7GB"')
    free_bytes, _total_bytes = torch.cuda.mem_get_info()
    return int(free_bytes)


def format_bytes(nbytes: int) -> str:
    """IEC units with two decimals, for people.

    >>> format_bytes(7_000_000_000), format_bytes(512), format_bytes(1536)
    ('6.52 GiB', '512 B', '1.50 KiB')
    """
    if abs(nbytes) < 1024:
        return f"{nbytes} B"
    value = float(nbytes)
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        value /= 1024
        if abs(value) < 1023.995 or unit == "PiB":
            break
    return f"{value:.2f} {unit}"


def exactly(nbytes: int) -> str:
    """Bytes in IEC units and, in brackets, to the byte.

    >>> exactly(7_000_000_000)
    '6.52 GiB (7000000000 bytes)'
    """
    return f"{format_bytes(nbytes)} ({nbytes} bytes)"


def counted(count: int, what: str) -> str:
    """A number and its noun.

    >>> counted(1, "op"), counted(2594, "op")
    ('1 op', '2,594 ops')
    """
    return f"{count:,} {what}{'' if count == 1 else 's'}"
