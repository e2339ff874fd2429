"""CSV tables of buffers with the columns MiniMalloc reads, written back with an offset for each buffer."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from planner.errors import PlanFileError, VerificationError
from planner.memory import Buffer
from planner.packing.arena import Packing
from planner.packing.intervals import Intervals
from planner.simulator import check_overlaps
from planner.units import MAX_BYTES

REQUIRED: Final = ("id", "lower", "upper", "size")
_OPTIONAL: Final = {"alignment": 1, "fixed_offset": -1}
_MOST_DIGITS: Final = 19


class Table(msgspec.Struct, frozen=True):
    """A table of buffers.

    Args:
        path: as given.
        header, rows: cells of the file, in its order.
        names: of the buffers, then of reserved regions.
        intervals: the numbers of each name.
    """

    path: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    names: tuple[str, ...]
    intervals: Intervals

    def buffers(self, packing: Packing) -> tuple[Buffer, ...]:
        """The buffers at the packing's offsets."""
        numbers = self.intervals
        columns = (numbers.nbytes, numbers.start, numbers.end, packing.offset)
        rows = zip(self.names, *(column.tolist() for column in columns), strict=True)
        return tuple(Buffer(name, 0, False, nbytes, start, end, offset) for name, nbytes, start, end, offset in rows)

    def check(self, packing: Packing) -> None:
        """Check that offsets are aligned and as fixed, buffers never share a byte, and the arena is as stated.

        Raises:
            VerificationError: names the buffer.
        """
        buffers = self.buffers(packing)
        _check_apart(buffers)
        places = (self.intervals.alignment.tolist(), self.intervals.fixed.tolist())
        for buffer, alignment, fixed in zip(buffers, *places, strict=True):
            if buffer.offset < 0 or buffer.offset % alignment or fixed not in (-1, buffer.offset):
                lawful = f"a multiple of {alignment}" if fixed < 0 else f"at {fixed}"
                raise VerificationError(f"buffer {buffer.value!r} is at offset {buffer.offset}; it must be {lawful}")
        top = max((b.offset + b.nbytes for b in buffers if b.nbytes and b.end > b.start), default=0)
        if top != packing.top_bytes or packing.bound_bytes > top:
            said = f"{packing.bound_bytes} to {packing.top_bytes} bytes"
            raise VerificationError(f"the packing says {said}; its buffers end at {top}")

    def to_csv(self, packing: Packing) -> str:
        """The table with the column `offset`, new or written over."""
        place = self.header.index("offset") if "offset" in self.header else len(self.header)
        text = io.StringIO()
        # The writer does not quote a lone carriage return by itself.
        returns = any("\r" in cell for row in (self.header, *self.rows) for cell in row)
        writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL if returns else csv.QUOTE_MINIMAL)
        writer.writerow((*self.header[:place], "offset", *self.header[place + 1 :]))
        for row, offset in zip(self.rows, packing.offset.tolist(), strict=False):
            writer.writerow((*row[:place], offset, *row[place + 1 :]))
        return text.getvalue()


def read_table(path: str | os.PathLike[str], *, reserved: Sequence[tuple[int, int]] = ()) -> Table:
    """Read a table of buffers from a CSV file with a header.

    Columns: id, lower, upper (live from lower until before upper), size in bytes; optional are alignment and
    fixed_offset, whose empty cells mean 1 and "anywhere". Other columns are kept; a column gaps must be empty.

    Args:
        reserved: (offset, bytes) of regions that no buffer may touch at any time.
    Raises:
        PlanFileError: names the file, and the line and buffer.
    """
    name = os.fspath(path)
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            lines = [(reader.line_num, tuple(row)) for row in reader if row]
    except OSError as error:
        raise PlanFileError(f"cannot read {name!r}: {error.strerror or error}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise PlanFileError(f"{name!r} is not a CSV file: {error}") from None
    if not lines:
        raise PlanFileError(f"{name!r} is empty; the first line names the columns: {', '.join(REQUIRED)}")
    header = tuple(cell.strip() for cell in lines[0][1])
    missing = [column for column in REQUIRED if column not in header]
    if missing or len(set(header)) < len(header):
        wrong = f"has no column {missing[0]!r}" if missing else f"has a column {max(header, key=header.count)!r} twice"
        columns = f"the columns are {', '.join(REQUIRED)}, and alignment and fixed_offset if you wish"
        raise PlanFileError(f"{name!r} {wrong}; {columns}")
    found = [_row(f"{name!r}, line {number}", header, row) for number, row in lines[1:]]
    names = [str(row[0]) for row in found]
    known: set[str] = set()
    for (number, _), buffer in zip(lines[1:], names, strict=True):
        if buffer in known:
            raise PlanFileError(f"{name!r}, line {number}: there is a buffer {buffer!r} already; give each its own id")
        known.add(buffer)
    numbers = [row[1:] for row in found]
    begin = min((row[1] for row in numbers), default=0)
    end = max((row[2] for row in numbers), default=1)
    for offset, nbytes in reserved:
        names.append(f"reserved {offset}:{nbytes}")
        numbers.append((nbytes, begin, max(end, begin + 1), 1, offset))
    table = np.array(numbers, dtype=np.int64).reshape(-1, 5).T.copy()
    if sum(row[0] + row[3] - 1 for row in numbers) + max((0, *(row[4] for row in numbers))) > MAX_BYTES:
        raise PlanFileError(f"{name!r}: sizes, alignments and the highest fixed offset add up to more than 2**62 bytes")
    made = Table(name, header, tuple(row for _, row in lines[1:]), tuple(names), Intervals(*table))
    _check_fixed(made)
    return made


def _row(where: str, header: tuple[str, ...], row: tuple[str, ...]) -> tuple[str, int, int, int, int, int]:
    """(name, bytes, lower, upper, alignment, fixed offset or -1)."""
    if len(row) != len(header):
        raise PlanFileError(f"{where}: {len(row)} cells, and the header has {len(header)}")
    cells = {column: cell.strip() for column, cell in zip(header, row, strict=True)}
    name = cells["id"]
    where = f"{where}, buffer {name!r}"
    found = {column: _int(where, column, cells[column]) for column in REQUIRED[1:]}
    for column, default in _OPTIONAL.items():
        found[column] = _int(where, column, cells[column]) if cells.get(column) else default
    if found["upper"] < found["lower"]:
        raise PlanFileError(f"{where}: upper {found['upper']} is below lower {found['lower']}")
    alignment, offset = found["alignment"], found["fixed_offset"]
    if alignment < 1:
        raise PlanFileError(f"{where}: alignment {alignment} is not at least 1")
    if offset > 0 and offset % alignment:
        raise PlanFileError(f"{where}: fixed_offset {offset} is no multiple of its alignment {alignment}")
    if cells.get("gaps"):
        fix = "give each part a row, or leave gaps empty"
        raise PlanFileError(f"{where}: a lifetime with gaps is not supported; {fix}")
    return name, found["size"], found["lower"], found["upper"], alignment, offset


def _int(where: str, column: str, text: str) -> int:
    signed = column in ("lower", "upper")
    digits = text[1:] if signed and text[:1] == "-" else text
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= _MOST_DIGITS and int(digits) < MAX_BYTES):
        raise PlanFileError(f"{where}: {column} {text[:40]!r} is not an int{'' if signed else ' >= 0'} below 2**62")
    return int(text)


def _check_fixed(table: Table) -> None:
    offset = table.intervals.fixed
    buffers = table.buffers(Packing(offset, 0, 0, "fixed", 0, False))
    try:
        _check_apart([buffer for buffer in buffers if buffer.offset >= 0])
    except VerificationError as error:
        raise PlanFileError(f"{table.path!r}: fixed offsets contradict each other: {error}") from None


def _check_apart(buffers: Sequence[Buffer]) -> None:
    """Check as the judge does, without its words about executions, which a table does not have."""
    try:
        check_overlaps(buffers)
    except VerificationError as error:
        raise VerificationError(str(error).replace(", execution 0", "")) from None
