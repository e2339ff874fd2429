"""Files are written whole or not at all, and read in the one version that is understood."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from planner.errors import OutputError, PlanFileError


def write_whole(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file so that a reader, or a crash, never sees half of it.

    Args:
        path: its content is replaced if it exists; a link stays a link, and what it points to is written.
        content: all of it.
    Raises:
        OutputError: the folder is missing or cannot be written; the file is as it was.
    """
    target = Path(os.path.realpath(path))
    temporary: str | None = None
    try:
        if target.is_dir():
            raise IsADirectoryError(21, "is a folder")
        if target.exists() and not target.is_file():
            raise OSError(22, "is not a regular file")
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
        raise OutputError(
            f"cannot write {str(path)!r}: {why}; name a file in a folder that exists and can be written"
        ) from None
    finally:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)


def read_versioned(
    path: str | os.PathLike[str], *, kind: str, format: str, versions: tuple[int, ...], again: str
) -> dict[str, Any]:
    """The content of a JSON file that carries its format and version; what is in it is not checked further.

    Args:
        kind: "plan" or "curve", for the errors.
        format, versions: what the file must carry, and one of these, the newest last.
        again: how to get a file of this version.
    Raises:
        PlanFileError: missing, not JSON, of another kind, or of another version.
    """
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise PlanFileError(f"cannot read {kind} {str(path)!r}: {error.strerror or error}") from None
    try:
        head = msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PlanFileError(f"{str(path)!r} is not a {kind} file: {error}") from None
    if head.get("format") != format:
        raise PlanFileError(
            f"{str(path)!r} is not a {kind} file: format is {head.get('format')!r}, expected {format!r}"
        )
    if head.get("version") not in versions:
        found, newest = head.get("version"), versions[-1]
        raise PlanFileError(
            f"{str(path)!r} is a {kind} of version {found!r}; this planner reads version {newest}: {again}"
        )
    return head


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
