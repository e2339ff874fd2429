"""The README's examples run and print what it shows, and the paths that notes name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.extras import imported

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
NOTES = (README, ROOT / "bench/README.md", *sorted((ROOT / "papers").rglob("*.md")))
HEADER = r"Plan  resnet:1001 · 10,711 ops · strategy auto · allocator auto · scope total"
SIZE, FACTOR = r"\d+\.\d\d GiB", r"\d\.\d{3}x"
#: Where the names of modules in backticks begin.
FOLDERS = (ROOT, ROOT / "planner", ROOT / "tests", ROOT / "bench", ROOT / "papers")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)


def run_example(source: str) -> None:
    exec(compile(source, "README.md", "exec"), {})


def check_report(text: str) -> None:
    """The report of the first example: its format, and figures that hold for any plan worth printing."""
    lines = text.splitlines()
    verdict = re.fullmatch(
        rf"Fits 7GB, (\S+ \S+) to spare: ({SIZE}) in place of {SIZE}, for (\d+\.\d\d) % more cost", lines[0]
    )
    assert verdict is not None
    assert lines[1] == HEADER
    columns = [re.split(r"  +", line.strip()) for line in lines[2:6]]
    assert columns[0] == ["no recomputation", "this plan", "budget"]
    assert [row[0] for row in columns[1:]] == ["peak", "memory", "cost"]
    assert re.fullmatch(rf"peak {SIZE} {SIZE}", " ".join(columns[1]))
    assert re.fullmatch(rf"memory {SIZE} {SIZE} 6\.52 GiB", " ".join(columns[2]))
    assert re.fullmatch(rf"cost 1\.000x {FACTOR}", " ".join(columns[3]))
    bounds = re.fullmatch(
        rf"  Lower bound on memory: no plan's peak is below ({SIZE})\n"
        rf"  Lower bound on cost: within this budget no plan costs less than ({FACTOR})",
        "\n".join(lines[6:8]),
    )
    assert bounds is not None
    overhead = float(verdict[3])
    assert re.search(rf"ops recomputed: \+{verdict[3]} % cost; without it 4\.\d\dx the memory$", text, re.MULTILINE)
    peaks = [float(cell.split()[0]) for cell in (bounds[1], columns[1][2], verdict[2], "6.52", columns[1][1])]
    assert peaks == sorted(peaks)
    assert peaks[0] < peaks[1] < peaks[4]
    bound = 100 * (float(bounds[2][:-1]) - 1)
    assert 10 < bound <= overhead + 0.05
    assert overhead <= 13
    assert abs(100 * (float(columns[3][2][:-1]) - 1) - overhead) < 0.051
    for fact in (
        r"Not proven optimal: at most \d\.\d\d % of a step's cost above",
        r"Peak at step \d+ of \d+, op \S+: weights",
    ):
        assert re.search(rf"^  {fact}", text, re.MULTILINE), fact
    assert re.search(r"^  Memory [▁▂▃▄▅▆▇█]{60}$", text, re.MULTILINE)
    largest = re.findall(r"^    \S+ +\d+\.\d\d MiB  (?:kept|recomputed)(?:  x (\d+))?$", text, re.MULTILINE)
    assert sum(int(count or 1) for count in largest) == 8


def test_the_first_example_prints_a_report_as_shown_below_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_example(blocks("python")[0])
    check_report(capsys.readouterr().out)
    check_report(blocks("text")[0])


def test_every_other_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for example in blocks("python")[1:]:
        if "import torch" not in example:
            run_example(example)


def test_the_example_of_a_pytorch_model_trains_it_as_it_would_be_without_a_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    imported("torch")
    monkeypatch.chdir(tmp_path)
    (example,) = [block for block in blocks("python") if "import torch" in block]
    run_example(example)
    assert re.search(r"all \d+ values are equal to the bit\nPeak .* as predicted, to the byte", capsys.readouterr().out)


def test_the_two_commands_of_a_fresh_machine_come_first() -> None:
    commands = re.findall(r"^    (pip install .*)$", README.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert commands == [
        "pip install '.[onnx]' && planner optimize resnet:1001 --batch 32 --budget 7GB",
        "pip install '.[test]' && pytest",
    ]


def test_files_and_folders_that_notes_name_exist() -> None:
    missing = [
        f"{note.relative_to(ROOT)}: {named}"
        for note in NOTES
        for named in re.findall(r"`((?:[\w-]+/)*[\w-]+\.py|(?:[\w-]+/)+)`", note.read_text(encoding="utf-8"))
        if not any((folder / named).exists() for folder in (*FOLDERS, note.parent))
    ]
    assert missing == []
