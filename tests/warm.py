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


def _plan(part: str) -> None:
    from planner import optimize, zoo

    graph = zoo.chain(30)
    if part == "annealer":
        optimize(graph, "50%", strategy="retention", allocator=None, effort=0.01)
        return
    for strategy in ("cuts", "chen-budget", "chain", "binomial"):
        optimize(graph, "50%", strategy=strategy)
    optimize(graph, "50%", strategy="chen-budget", recompute=["full"])
    optimize(graph, strategy="memonger", allocator="nnvm")


if __name__ == "__main__":
    _plan(sys.argv[1])
