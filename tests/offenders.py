"""Many cases in one test item: every case runs, and the item names each case that fails."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import pytest


def every(
    names: str | tuple[str, ...], rows: Iterable[Any], ids: Iterable[str] | Callable[[Any], str] = repr
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test once a row, as `pytest.mark.parametrize` does, in one item that fails with a line for each bad row.

    Args:
        names: of the test's arguments, as text with commas or as a tuple.
        rows: one value a row, or a tuple of values where there are several names. Fixtures are shared by all rows.
        ids: what a row is called when it fails.
    """
    keys = names.replace(" ", "").split(",") if isinstance(names, str) else list(names)
    listed = list(rows)
    assert listed, "no cases"
    labels = [ids(row)[:100] for row in listed] if callable(ids) else list(ids)
    cases = [dict(zip(keys, row if len(keys) > 1 else (row,), strict=True)) for row in listed]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def run(**fixtures: Any) -> None:
            failures: list[str] = []
            errors: list[BaseException] = []
            for label, case in zip(labels, cases, strict=True):
                try:
                    test(**fixtures, **case)
                except (Exception, pytest.fail.Exception) as error:
                    errors.append(error)
                    failures.append(f"{label}: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
            if failures:
                raise AssertionError("\n".join([f"{len(failures)} of {len(cases)} cases", *failures])) from errors[0]

        signature = inspect.signature(test)
        rest = [parameter for name, parameter in signature.parameters.items() if name not in keys]
        run.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]
        del run.__wrapped__  # type: ignore[attr-defined]  # pytest would ask it for fixtures
        return run

    return decorate
