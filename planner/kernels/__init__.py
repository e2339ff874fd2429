"""Compiled kernels: arrays in, arrays out, int64 bytes and float64 cost; the caller allocates.

`kernel` is the one decorator. A kernel may call kernels of other files: the compiled code is kept on disk with a stamp
of all sources
of this package, so an edit of any of them compiles all of them anew. Each is compiled for one signature, when first
called: whole numbers and truth values that one kernel hands another are written np.int64(1) and np.bool_(True), as each
literal has a type of its own.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from importlib import resources
from typing import Any, TypeVar, cast

from numba import njit
from numba.core import caching

from planner.errors import KernelCacheError

Function = TypeVar("Function", bound=Callable[..., Any])
_numba: Any = caching  # its classes have no types


def kernel(function: Function) -> Function:
    """Compile on first call, keep the result on disk, release the GIL.

    Raises:
        KernelCacheError: no folder for compiled kernels can be written.
    """
    # nobody calls a kernel from C; numba's types know no such option
    options: dict[str, Any] = {"nogil": True, "no_cfunc_wrapper": True}
    compiled: Any = njit(**options)(function)
    try:
        compiled._cache = _cache_of(function)  # what `cache=True` does, with a stamp of our own
    except RuntimeError as error:
        if "cannot cache" not in str(error):
            raise
        raise KernelCacheError(
            "no folder for compiled kernels can be written; set NUMBA_CACHE_DIR to one that can be"
        ) from None
    return cast(Function, compiled)


def _cache_of(function: Callable[..., Any]) -> Any:
    """Numba's cache on disk of a function. Left alone, it looks for edits in the file of the function, not in those of
    what it calls.
    """
    cache = _numba.FunctionCache(function)
    stamp = (cache._impl.locator.get_source_stamp(), _SOURCES)
    cache._cache_file = _numba.IndexDataCacheFile(cache.cache_path, cache._impl.filename_base, stamp)
    return cache


def _stamp_of_sources() -> str:
    """One hash of all files of this package, also where it lies in a zip archive."""
    digest = hashlib.sha256()
    folders = [resources.files(__name__)]
    while folders:
        for entry in sorted(folders.pop().iterdir(), key=lambda entry: entry.name):
            if entry.is_dir():
                folders.append(entry)
            elif entry.name.endswith(".py"):
                source = entry.read_bytes()
                digest.update(f"{entry.name} {len(source)} ".encode() + source)
    return digest.hexdigest()


_SOURCES = _stamp_of_sources()


def _check_cache_folder() -> None:
    """Numba passes over an unusable NUMBA_CACHE_DIR in silence, and compiles anew in every process; say so instead."""
    folder = os.environ.get("NUMBA_CACHE_DIR")
    if not folder:
        return
    try:
        os.makedirs(folder, exist_ok=True)
        usable = os.access(folder, os.W_OK | os.X_OK)
    except OSError:
        usable = False
    if not usable:
        raise KernelCacheError(
            f"kernel cache {folder!r} (NUMBA_CACHE_DIR) cannot be written; name a folder that can be, or unset it"
        )


_check_cache_folder()
