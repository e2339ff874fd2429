"""Files are written whole or not at all, and read in the one version that is understood."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from planner.errors import OutputError, PlanFileError, PlannerError
from planner.units import format_bytes

#: A JSON file above it is refused: decoding takes several times its size in memory.
MOST_BYTES: Final = 2**31


def write_whole(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file so that a reader, or a crash, never sees half of it.

    Args:
        path: an existing file is replaced; a link stays a link, and the file it points to is written.
        content: all bytes of the file.
    Raises:
        OutputError: the folder is missing or cannot be written; the file stays as it was.
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


def refuse_larger(file: BinaryIO, what: str, refused: type[PlannerError]) -> None:
    """Refuse a JSON file above the limit before any more of it is read.

    Args:
        what: kind and name of the file, for the error.
        refused: the error to raise.
    """
    nbytes = os.fstat(file.fileno()).st_size
    if nbytes > MOST_BYTES:
        raise refused(f"{what} has {format_bytes(nbytes)}; JSON is read up to {format_bytes(MOST_BYTES)}")


def read_versioned(
    path: str | os.PathLike[str], *, kind: str, format: str, versions: tuple[int, ...], again: str
) -> dict[str, Any]:
    """The decoded JSON object of a file that carries its format and version; its other fields are not checked.

    Args:
        kind: "plan", "curve" or "calibration", for the errors.
        format, versions: what the file must carry, and one of these, the newest last.
        again: how to get a file of this version.
    Raises:
        PlanFileError: missing, too large, not JSON, of another kind, or of another version.
    """
    try:
        with open(path, "rb") as file:
            refuse_larger(file, f"{kind} {str(path)!r}", PlanFileError)
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
