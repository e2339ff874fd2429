"""Compile the kernels before the workers start, so that they find them on disk and none compiles what another does.

Two processes share the work: the annealer's kernels take as long as all others together.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def compile_kernels() -> None:
    """Return when both processes have ended; one that fails is left to the tests to report."""
    root = Path(__file__).resolve().parents[1]
    parts = [subprocess.Popen([sys.executable, "-m", "tests.warm", part], cwd=root) for part in ("annealer", "others")]
    for part in parts:
        part.wait()


def _compile(part: str) -> None:
    from planner.cli.warm_command import questions

    for name, ask in questions():
        if (name in ("annealing", "passes")) == (part == "annealer"):
            ask()


if __name__ == "__main__":
    _compile(sys.argv[1])
