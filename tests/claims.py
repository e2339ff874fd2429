"""One item for a claim about many rows: it lists every row that the claim is not true of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import pytest


def for_each(*columns: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Turn a claim about a row into a test of all rows, the product of the columns. Cheaper than an item a row."""
    rows = list(product(*columns))

    def decorated(claim: Callable[..., None]) -> Callable[[], None]:
        def test() -> None:
            assert rows
            wrong = [f"{row}: {found}" for row in rows if (found := _failure(claim, row)) is not None]
            assert not wrong, "\n\n".join(wrong)

        test.__name__, test.__doc__, test.__module__ = claim.__name__, claim.__doc__, claim.__module__
        return test

    return decorated


def _failure(claim: Callable[..., None], row: tuple[Any, ...]) -> str | None:
    try:
        claim(*row)
    except (Exception, pytest.fail.Exception) as failure:
        return f"{type(failure).__name__}: {failure}"
    return None
