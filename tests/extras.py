"""Libraries of the extra `test-torch`: a test that needs one is skipped where it is absent, and counted at the end."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from bench.vision import name_missing_ops

ABSENT = "extra test-torch absent"
NOT_IMPORTED = "unable to import module"  # pytest's own words for a module of doctests


def imported(name: str) -> Any:
    """Import a library, or skip: the test that asks, or the whole module where its top asks."""
    try:
        if name.split(".")[0] in {"torchvision", "transformers"}:  # the second imports the first
            name_missing_ops()
        return import_module(name)
    except ModuleNotFoundError as error:
        pytest.skip(f"{ABSENT}: {error}", allow_module_level=True)
