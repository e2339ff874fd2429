"""Rows of an answer as a CSV file, for spreadsheets and pandas: exact bytes, one record a row."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping

from planner.cli.console import check_file_or_stream, print_bytes

Record = Mapping[str, object]


def check_table(output: str | None, *, force: bool, as_json: bool) -> None:
    """Refuse before the work a table that cannot be written after it.

    Args:
        output: a file, "-" for standard output, or None.
    """
    if output is not None and output != "-":
        from planner.views.plan_files import check_suffix

        check_suffix(output, allowed=(".csv",))
    check_file_or_stream(output, force=force, as_json=as_json)


def write_table(output: str | None, records: Iterable[Record]) -> list[str]:
    """Write the table, and give back a line that says so, where there is a file to name; records are made for it."""
    if output is None:
        return []
    rows, text = list(records), io.StringIO()
    table = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    content = text.getvalue().encode(errors="surrogateescape")
    if output == "-":
        print_bytes(content)
        return []
    from planner.files import write_whole

    write_whole(output, content)
    return [f"  Saved to {output}"]
