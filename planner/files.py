"""Files are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from planner.errors import OutputError


def write_whole(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file so that a reader, or a crash, never sees half of it.

    Args:
        path: replaced if it exists.
        content: all of it.
    Raises:
        OutputError: the folder is missing or cannot be written; the file is as it was.
    """
    target = Path(path)
    temporary: str | None = None
    try:
        if target.is_dir():
            raise IsADirectoryError(21, "is a folder")
        mode = target.stat().st_mode if target.exists() else 0o666 & ~_umask()
        if target.exists() and not os.access(target, os.W_OK):
            raise PermissionError(13, "no permission")
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode & 0o777)
        os.replace(temporary, target)
        temporary = None
    except OSError as error:
        why = error.strerror or str(error)
        raise OutputError(f"cannot write {str(path)!r}: {why}; name a file in a folder that exists and can be written") from None
    finally:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
