"""Runs a suite: its cases in order, then its targets."""

from __future__ import annotations

import sys
from collections.abc import Callable

from bench.cases import Suite
from bench.known import BestKnown
from bench.measure import Bench, Case, Size, warm
from bench.results import Results, Row, current_commit, results
from bench.targets import Rows

#: Called with cases done, cases in all, rows so far and what comes next.
Progress = Callable[[int, int, int, str], None]
_SIZES: dict[Size, int] = {"quick": 0, "normal": 1, "slow": 2}


def wanted(suite: Suite, *, size: Size) -> list[Case]:
    """The cases of a run of this size."""
    return [case for case in suite.cases if _SIZES[case.size] <= _SIZES[size]]


def run(
    suite: Suite,
    *,
    size: Size = "normal",
    repeat: int = 1,
    progress: Progress = lambda *_: None,
    known: BestKnown | None = None,
) -> Results:
    """Measure the cases of a suite. What is missing here is named on stderr and left out.

    Args:
        size: "quick" a few cases in seconds, "slow" all.
        repeat: runs of each measurement; the least counts.
        known: best known plans; better ones are put there.
    """
    cases, rows = wanted(suite, size=size), list[Row]()
    commit = current_commit()
    bench = Bench(repeat=repeat, size=size, known=known)
    warm()
    for done, case in enumerate(cases):
        progress(done, len(cases), len(rows), case.name)
        if why := case.missing():
            print(f"left out: {why}", file=sys.stderr)
            continue
        for row in case.rows(bench):
            rows.append(row)
            progress(done, len(cases), len(rows), case.name)
    progress(len(cases), len(cases), len(rows), "")
    found = [target.row(Rows(rows)) for target in suite.targets]
    rows += [row for row in found if row is not None]
    options = {"quick": int(size == "quick"), "slow": int(size == "slow"), "repeat": repeat}
    return results(suite.name, tuple(rows), commit=commit, options=options)
