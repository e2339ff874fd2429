"""Element types of tensors: their bytes, and the names people type for them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

DTYPE_BYTES: Final[Mapping[str, int]] = MappingProxyType({
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "complex64": 8,
    "complex128": 16, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint64": 8, "uint32": 4, "uint16": 2, "uint8": 1,
    "bool": 1,
})  # fmt: skip
#: Names that people type, beside the dtypes' own.
DTYPE_ALIASES: Final[Mapping[str, str]] = MappingProxyType({
    "bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32", "fp64": "float64",
})  # fmt: skip


def is_float(dtype: str | None) -> bool:
    """True if gradients flow through values of this dtype; a dtype nobody gave counts as float."""
    return dtype is None or dtype.startswith(("float", "bfloat", "complex"))
