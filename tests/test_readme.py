"""The README's examples run and print what it shows; its two commands are those a fresh machine needs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[1] / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_first_example_prints_the_report_shown_below_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(blocks("python")[0], "README.md", "exec"), {})
    assert capsys.readouterr().out == blocks("text")[0]


@pytest.mark.parametrize("example", blocks("python")[1:])
def test_every_other_example_runs(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    exec(compile(example, "README.md", "exec"), namespace)
    assert namespace


def test_the_two_commands_of_a_fresh_machine_come_first() -> None:
    commands = re.findall(r"^    (pip install .*)$", README.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert commands == [
        "pip install '.[onnx]' && planner optimize resnet:1001 --batch 32 --budget 7GB",
        "pip install '.[test]' && pytest",
    ]
