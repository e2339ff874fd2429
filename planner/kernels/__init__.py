"""Compiled kernels: arrays in, arrays out, int64 bytes and float64 cost; the caller allocates.

`kernel` is the one decorator. Each kernel is compiled for one signature, when first called: whole numbers and truth
values that one kernel hands another are written np.int64(1) and np.bool_(True), as each literal has a type of its own.

Compiled code is kept on disk, in a folder named by a hash of all sources of this package: numba itself looks for edits
only in the file of a function, and a kernel may call kernels of other files.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

from planner.errors import KernelCacheError

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Function = TypeVar("Function", bound=Callable[..., Any])

_DAY: Final = 24 * 3600.0
_UNUSED: Final = 30 * _DAY  # after which a folder of other sources is deleted
_config: Any = numba.config


def kernel(function: Function) -> Function:
    """Compile on first call, keep the result on disk, release the GIL."""
    # nobody calls a kernel from C; numba's types know no such option
    options: dict[str, Any] = {"nogil": True, "no_cfunc_wrapper": True, "cache": FOLDER is not None}
    before = _config.CACHE_DIR
    if FOLDER is not None:
        _config.CACHE_DIR = str(FOLDER)  # read while a function is decorated, so other users of numba keep theirs
    try:
        return cast(Function, numba.njit(**options)(function))
    finally:
        _config.CACHE_DIR = before


def _name_of_sources() -> str:
    """The folder's name: a hash of all files of this package, also in a zip archive, and of how they are compiled."""
    digest = hashlib.sha256(f"numba {numba.__version__} bounds {_config.BOUNDSCHECK}".encode())
    folders = [resources.files(__name__)]
    while folders:
        for entry in sorted(folders.pop().iterdir(), key=lambda entry: entry.name):
            if entry.is_dir():
                folders.append(entry)
            elif entry.name.endswith(".py"):
                source = entry.read_bytes()
                digest.update(f"{entry.name} {len(source)} ".encode() + source)
    return f"planner-{digest.hexdigest()[:16]}"


def _cache_folder(named: str | None) -> Path | None:
    """The folder for compiled kernels: in the one that NUMBA_CACHE_DIR names, else in the user's cache.

    Returns:
        None, after a warning, where the user's cache cannot be written, or where others can write it.
    Raises:
        KernelCacheError: the folder that NUMBA_CACHE_DIR names cannot be written.
    """
    try:
        parent = Path(named) if named else _users_cache()
        folder = parent / _name_of_sources()
        is_new = not folder.exists()
        folder.mkdir(mode=0o777 if named else 0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, RuntimeError) as error:  # Path.home raises RuntimeError where there is none
        if named:
            raise KernelCacheError(
                f"kernel cache {named!r} (NUMBA_CACHE_DIR) cannot be written; name a folder that can be, or unset it"
            ) from None
        warnings.warn(
            f"kernels are compiled anew in every process, as no folder can keep them ({error}); set NUMBA_CACHE_DIR",
            RuntimeWarning,
            stacklevel=3,
        )
        return None
    _note_use(folder, is_new, time.time())
    return folder


def _users_cache() -> Path:
    """The user's own cache folder, made where it is missing.

    Raises:
        OSError: it cannot be made, another user owns it, or others can write it and so could place code there.
    """
    variable, beside_home = ("LOCALAPPDATA", "AppData/Local") if os.name == "nt" else ("XDG_CACHE_HOME", ".cache")
    base = os.environ.get(variable, "")
    folder = (Path(base) if os.path.isabs(base) else Path.home() / beside_home) / "planner"
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.stat()
    if os.name != "nt" and (found.st_uid != os.geteuid() or found.st_mode & 0o022):
        raise PermissionError(f"others own or can write {folder}")
    return folder


def _note_use(folder: Path, is_new: bool, now: float) -> None:
    """Once a day, mark a folder as used, and delete those of other sources that were not used for 30 days."""
    try:
        if not is_new and now - folder.stat().st_mtime < _DAY:
            return
        os.utime(folder, (now, now))
        for other in folder.parent.iterdir():
            if other == folder or not re.fullmatch(r"planner-[0-9a-f]{16}", other.name) or other.is_symlink():
                continue
            if other.is_dir() and now - other.stat().st_mtime > _UNUSED:
                shutil.rmtree(other, ignore_errors=True)
    except OSError:
        pass  # another process deleted it first, or it belongs to somebody else


#: Where compiled kernels are kept; None: nowhere.
FOLDER: Final = None if _config.DISABLE_JIT else _cache_folder(_config.CACHE_DIR)
