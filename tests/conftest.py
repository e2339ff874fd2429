"""Where the shared files are, how hard hypothesis tries, the command line in this process, kernels compiled once."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from planner import mxnet
from planner.cli import main as cli
from tests import extras
from tests.warm import compile_kernels

mxnet.register()
ABSENT = "shared files absent"
_SLOW_BUILDERS = [HealthCheck.too_slow, HealthCheck.data_too_large]

for _profile, _examples in (("quick", 10), ("default", 40), ("thorough", 2000)):
    settings.register_profile(
        _profile,
        max_examples=_examples,
        deadline=None,
        derandomize=_profile == "default" and os.environ.get("CI", "") not in ("", "0"),
        suppress_health_check=_SLOW_BUILDERS,
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of shared notes and data: `PLANNER_SHARED`, by default beside the repository."""
    folder = Path(os.environ.get("PLANNER_SHARED") or Path(__file__).resolve().parents[1].parent / "shared")
    if not (folder / "cases.md").is_file():
        pytest.skip(ABSENT)
    return folder


class Answer:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """The `planner` command in this process, in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["planner", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_info:
            cli.main()
        captured = capsys.readouterr()
        code = exit_info.value.code
        assert isinstance(code, int)
        return Answer(code, captured.out, captured.err)

    return call


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile kernels before workers start."""
    config = session.config
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        compile_kernels()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Two lines that a build can read: reports of xdist workers arrive here too."""
    reports = [report.longrepr for report in terminalreporter.stats.get("skipped", [])]
    reasons = [report[2] if isinstance(report, tuple) else str(report) for report in reports]
    for what, words in (("shared files", (ABSENT,)), ("PyTorch's extras", (extras.ABSENT, extras.NOT_IMPORTED))):
        count = sum(any(word in reason for word in words) for reason in reasons)
        terminalreporter.write_line(f"{count} tests skipped because {what} were absent")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """PyTorch on one thread, from a seed: bits are compared."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)
