"""Devices by name, and the roofline time of an op on one.

Absolute seconds are a model, good for the ratio of one op to another: an op is as slow as the slower of its arithmetic
and its memory traffic (Williams, Waterman and Patterson 2009, "Roofline").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, final

from planner.errors import GraphError


@final
@dataclass(frozen=True, slots=True)
class Device:
    """What bounds the speed of an op.

    Args:
        name: as `device()` knows it.
        bandwidth: memory traffic in bytes per second.
        peak: FLOP per second by dtype name; a dtype that is not listed runs at the rate of float32.
    """

    name: str
    bandwidth: float
    peak: Mapping[str, float]


def _device(name: str, bandwidth: float, **peak: float) -> Device:
    return Device(name, bandwidth, MappingProxyType(peak))


# Vendor data sheets, dense rates (no sparsity). float32 is the ordinary rate, not TF32; 16-bit floats use tensor cores.
_DEVICES: Final = (
    # NVIDIA A100 data sheet, SXM 80 GB.
    _device("a100", 2.039e12, float64=9.7e12, float32=19.5e12, float16=312e12, bfloat16=312e12),
    # NVIDIA H100 data sheet, SXM5.
    _device("h100", 3.35e12, float64=34e12, float32=67e12, float16=989e12, bfloat16=989e12),
    # NVIDIA V100 data sheet, SXM2; it has no bfloat16 units.
    _device("v100", 900e9, float64=7.8e12, float32=15.7e12, float16=125e12),
    # NVIDIA T4 product page; float64 runs at 1/32 of float32 on this architecture.
    _device("t4", 320e9, float64=0.25e12, float32=8.1e12, float16=65e12),
    # NVIDIA Ada architecture white paper, 16-bit with 32-bit accumulation.
    _device("rtx4090", 1.008e12, float64=1.29e12, float32=82.6e12, float16=165.2e12, bfloat16=165.2e12),
    # Round figures for a 16-core AVX2 server (16 cores x 32 FLOP x 2 GHz, 4 channels of DDR4), not a data sheet.
    _device("cpu", 100e9, float64=0.5e12, float32=1e12),
)
DEVICES: Final[Mapping[str, Device]] = MappingProxyType({entry.name: entry for entry in _DEVICES})

#: Nominal memory in bytes. The driver and the context take a part that no graph shows: use `MemoryModel(reserve=...)`.
DEVICE_BYTES: Final[Mapping[str, int]] = MappingProxyType({name: gib * 2**30 for name, gib in {
    "a100": 80, "a100-40": 40, "h100": 80, "h200": 141, "v100": 32, "v100-16": 16, "t4": 16, "l4": 24, "a10": 24,
    "l40s": 48, "rtx4090": 24, "rtx3090": 24, "titanx": 12, "gtx1080ti": 11,
}.items()})  # fmt: skip


def device(name: str) -> Device:
    """The device of that name; costs are seconds on it.

    Args:
        name: a key of `DEVICES`.
    Raises:
        GraphError: no such device; lists those there are.

    >>> device("a100").bandwidth
    2039000000000.0
    """
    found = DEVICES.get(name) if isinstance(name, str) else None
    if found is None:
        raise GraphError(f"unknown device {name!r}; known: {', '.join(DEVICES)}")
    return found


def roofline_seconds(device: Device, *, flops: float, bytes_moved: float, dtype: str = "float32") -> float:
    """Seconds one execution takes: its arithmetic or its traffic, whichever is slower.

    Args:
        flops: floating point operations.
        bytes_moved: bytes read plus bytes written.
        dtype: decides the arithmetic rate.
    Source: Williams, Waterman and Patterson 2009. Ours has no launch overhead and no caches.

    >>> roofline_seconds(device("a100"), flops=0, bytes_moved=2.039e12)
    1.0
    """
    rate = device.peak.get(dtype) or device.peak["float32"]
    return max(flops / rate, bytes_moved / device.bandwidth)
