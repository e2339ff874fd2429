"""`planner warm` leaves no kernel to be compiled later."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import planner
from planner import kernels
from tests.test_cli import error_lines

#: Kernels that the questions call, and those that these call: where the cache has the first, numba loads no other.
REACHED = """
import importlib, json, pkgutil
from planner import kernels
from planner.cli.warm_command import questions

def compiled(value):
    return hasattr(value, "signatures") and hasattr(value, "py_func")

names = [found.name for found in pkgutil.walk_packages(kernels.__path__, "planner.kernels.")]
every = {value for name in names for value in vars(importlib.import_module(name)).values() if compiled(value)}
for _, ask in questions():
    ask()
ahead, reached = [kernel for kernel in every if kernel.signatures], set()
while ahead:
    kernel = ahead.pop()
    if kernel not in reached:
        reached.add(kernel)
        named = map(kernel.py_func.__globals__.get, kernel.py_func.__code__.co_names)
        ahead += filter(compiled, named)
print(json.dumps([[k.__name__ for k in every], [k.__name__ for k in every - reached]]))
"""


def test_the_questions_of_warm_reach_every_kernel_of_the_package() -> None:
    done = subprocess.run([sys.executable, "-c", REACHED], capture_output=True, text=True, check=True)
    every, missed = json.loads(done.stdout)
    sources = [path.read_text() for path in (Path(planner.__file__).parent / "kernels").rglob("*.py")]
    written = [
        node.name
        for source in sources
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and "kernel" in map(ast.unparse, node.decorator_list)
    ]
    assert sorted(every) == sorted(written)
    assert missed == []


def test_the_command_says_how_many_kernels_it_left_and_where(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    folder = tmp_path / "planner-0"
    (folder / "anneal").mkdir(parents=True)

    def compiling() -> None:
        asked.append("one")
        (folder / "anneal" / "moves.py310.nbi").touch()
        (folder / "anneal" / "moves.py310.1.nbc").touch()

    monkeypatch.setattr("planner.cli.warm_command.questions", lambda: iter([("one", compiling)]))
    monkeypatch.setattr(kernels, "FOLDER", folder)
    answer = run("warm")
    assert (answer.code, answer.out, asked) == (0, f"1 compiled kernels in {folder}\n", ["one"])
    content = json.loads(run("warm", "--json").out)
    assert content == {"schema": "planner-kernels", "version": 1, "kernels": 1, "folder": str(folder)}


def test_where_kernels_are_kept_nowhere_the_command_says_how_they_would_be(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "FOLDER", None)
    answer = run("warm")
    assert (answer.code, answer.out) == (2, "")
    assert "NUMBA_CACHE_DIR" in error_lines(answer)[-1]
