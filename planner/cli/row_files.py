"""Rows of an answer as a CSV file, for spreadsheets and pandas: exact bytes, one record a row."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from planner import errors
from planner.cli.console import check_output, print_bytes

Record = Mapping[str, object]


def check_table(output: str | None, *, force: bool, as_json: bool) -> None:
    """Refuse before the work a table that cannot be written after it.

    Args:
        output: a file, "-" for standard output, or None.
    """
    if output == "-" and as_json:
        raise click.UsageError("--json and -o - both write to standard output; give one")
    if output in (None, "-"):
        return
    if Path(str(output)).suffix.lower() != ".csv":
        raise errors.OutputError(f"cannot write {output!r}: end the name with .csv")
    check_output(output, force=force)


def write_table(output: str | None, records: Sequence[Record]) -> list[str]:
    """Write the table, and give back a line that says so, where there is a file to name."""
    if output is None:
        return []
    text = io.StringIO()
    table = csv.DictWriter(text, list(records[0]), lineterminator="\n")
    table.writeheader()
    table.writerows(records)
    content = text.getvalue().encode(errors="surrogateescape")
    if output == "-":
        print_bytes(content)
        return []
    from planner.files import write_whole

    write_whole(output, content)
    return [f"  Saved to {output}"]
