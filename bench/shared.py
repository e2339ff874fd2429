"""The shared data that some suites read: `PLANNER_SHARED`, by default beside the repository. Nothing of it is kept
here.
"""

from __future__ import annotations

import os
from pathlib import Path


def path_of(name: str) -> Path:
    """Where a file of the shared data is.

    Args:
        name: from its folder on, such as "minimalloc/K.1048576.csv".
    """
    shared = os.environ.get("PLANNER_SHARED") or Path(__file__).resolve().parents[2] / "shared"
    return Path(shared) / "data" / name


def missing(name: str) -> str | None:
    """Why a file cannot be read, or None."""
    return None if path_of(name).is_file() else f"{name}: no such file in the shared data (set PLANNER_SHARED)"
