"""Compiled kernels: arrays in, arrays out, int64 bytes and float64 cost; the caller allocates.

`kernel` is the one decorator. Each kernel calls only kernels of its own file, because the disk cache does not see edits
elsewhere, and is compiled for one signature, when first called.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

from planner.errors import KernelCacheError

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Compile on first call, keep the result on disk, release the GIL.

    Raises:
        KernelCacheError: no folder for compiled kernels can be written.
    """
    try:
        return cast(Function, njit(cache=True, nogil=True)(function))
    except RuntimeError as error:
        if "cannot cache" not in str(error):
            raise
        raise KernelCacheError(
            "no folder for compiled kernels can be written; set NUMBA_CACHE_DIR to one that can be"
        ) from None


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
        raise KernelCacheError(f"kernel cache {folder!r} (NUMBA_CACHE_DIR) cannot be written; name a folder that can be, or unset it")


_check_cache_folder()
