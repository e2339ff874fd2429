"""Which line of the user's model is at work."""

from __future__ import annotations

import linecache
import sys
import sysconfig
from pathlib import Path
from typing import Final, Optional

import torch

_OTHERS: Final = (sysconfig.get_paths()["stdlib"], torch.__path__[0], str(Path(__file__).parent))


def is_users(filename: str) -> bool:
    """True for a file that is neither of Python, nor of PyTorch, nor of this room."""
    return not filename.startswith((*_OTHERS, "<"))


def line_at_work() -> Optional[str]:
    """File and number of the innermost line that is running and is the user's.

    >>> line_at_work() is None or ":" in line_at_work()
    True
    """
    frame = sys._getframe(1)
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return None


def quoted(line: str) -> str:
    """A line with its text: `model.py:12 \\`x = self.fc(x)\\``."""
    file, _, number = line.rpartition(":")
    text = linecache.getline(file, int(number)).strip()
    return f"{line} `{text}`" if text else line
