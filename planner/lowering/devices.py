"""Devices by name: what one holds, how fast it is, and the roofline time of an op on it.

Absolute seconds are a model, good for the ratio of one op to another: an op is as slow as the slower of its arithmetic
and its memory traffic (Williams, Waterman and Patterson 2009, "Roofline").
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, final

from planner.errors import GraphError
from planner.text import shown

#: What the context and the libraries take of a device before the first tensor; a budget that is a device keeps it free.
CONTEXT_BYTES: Final = 512 * 2**20
_GIB: Final = 2**30


@final
@dataclass(frozen=True, slots=True)
class Device:
    """One device as one process sees it.

    Args:
        name: as people write it; see `find_device` for what else is understood.
        bandwidth: memory traffic in bytes per second.
        peak: FLOP per second by dtype name; a dtype that is not listed runs at the rate of float32.
        source: of the speeds.
        total_bytes: all memory that the runtime reports to a process, before the context takes its part; the least
            of the reports found. None: not a budget.
        memory_source: who reported `total_bytes`.
        marketed_gib: the size it is sold by, which no process ever sees.
        link_bandwidth: bytes per second between the device and the host, one way; None where it is the host.
    """

    name: str
    bandwidth: float
    peak: Mapping[str, float]
    source: str
    total_bytes: int | None = None
    memory_source: str = ""
    marketed_gib: int | None = None
    link_bandwidth: float | None = None


#: One way of a slot of 16 lanes, which is half of what data sheets print.
_GEN3, _GEN4, _GEN5 = 16e9, 32e9, 64e9


def _rates(float64: float, float32: float, **others: float) -> Mapping[str, float]:
    return MappingProxyType({"float64": float64, "float32": float32, **others})


def _tensor_rates(float64: float, float32: float, half: float) -> Mapping[str, float]:
    return _rates(float64, float32, float16=half, bfloat16=half)


# Speeds are dense rates (no sparsity); float32 is the ordinary rate, not TF32; 16-bit floats use tensor cores with
# 32-bit accumulation. Memory is what PyTorch calls "total capacity", cut to the digits it prints; where reports of one
# device differ (by driver, ECC and board) it is the least.
_DEVICES: Final = (
    Device("a100", 2.039e12, _tensor_rates(9.7e12, 19.5e12, 312e12), "NVIDIA A100 data sheet, SXM 80 GB",
           int(79.14 * _GIB), "github.com/lianqi1008/Control-GIC/issues/6", 80, _GEN4),
    Device("a100-40", 1.555e12, _tensor_rates(9.7e12, 19.5e12, 312e12), "NVIDIA A100 data sheet, SXM 40 GB",
           42_298_834_944, "github.com/bottlerocket-os/bottlerocket/pull/3873 (deviceQuery)", 40, _GEN4),
    Device("h100", 3.35e12, _tensor_rates(34e12, 67e12, 989e12), "NVIDIA H100 data sheet, SXM5",
           int(79.11 * _GIB), "github.com/vllm-project/vllm/issues/27508", 80, _GEN5),
    Device("h200", 4.8e12, _tensor_rates(34e12, 67e12, 989e12), "NVIDIA H200 data sheet, SXM",
           int(139.8 * _GIB), "github.com/sungwon-chae/arxiv_confi, etu_logging.md", 141, _GEN5),
    # It has no bfloat16 units.
    Device("v100", 900e9, _rates(7.8e12, 15.7e12, float16=125e12), "NVIDIA V100 data sheet, SXM2",
           int(31.72 * _GIB), "github.com/tensorflow/tensorflow/issues/37162", 32, _GEN3),
    Device("v100-16", 900e9, _rates(7.8e12, 15.7e12, float16=125e12), "NVIDIA V100 data sheet, SXM2",
           int(15.75 * _GIB), "TensorFlow's log on Summit (OLCF), 2022-09-28; github.com/kchengiva/Shift-GCN/issues/34"
           " has 15.78", 16, _GEN3),
    Device("t4", 320e9, _rates(0.25e12, 8.1e12, float16=65e12), "NVIDIA T4 product page; float64 at 1/32 of float32",
           int(14.56 * _GIB), "github.com/Zheng-Chong/CatVTON/issues/133", 16, _GEN3),
    Device("l4", 300e9, _tensor_rates(0.473e12, 30.3e12, 121e12), "NVIDIA L4 data sheet; float64 at 1/64 of float32",
           int(22.16 * _GIB), "huggingface.co/0xZee/llama3-1_finetuned_NVDA_L4 (log)", 24, _GEN4),
    Device("a10", 600e9, _tensor_rates(0.4875e12, 31.2e12, 125e12), "NVIDIA A10 data sheet; float64 at 1/64 of float32",
           int(21.99 * _GIB), "github.com/zai-org/CogVLM/issues/236", 24, _GEN4),
    Device("l40s", 864e9, _tensor_rates(1.431e12, 91.6e12, 362e12), "NVIDIA L40S data sheet; float64 at 1/64",
           int(44.42 * _GIB), "github.com/stepfun-ai/Step-Video-T2V/issues/8", 48, _GEN4),
    Device("rtx4090", 1.008e12, _tensor_rates(1.29e12, 82.6e12, 165.2e12), "NVIDIA Ada architecture white paper",
           int(23.52 * _GIB), "github.com/Soul-AILab/SoulX-FlashTalk/issues/5", 24, _GEN4),
    Device("rtx3090", 936e9, _tensor_rates(0.556e12, 35.6e12, 71e12), "NVIDIA GA102 architecture white paper",
           int(23.69 * _GIB), "github.com/JiaweiLian/AP-PA/issues/3", 24, _GEN4),
    # Maxwell and Pascal have no fast 16-bit units: frameworks compute in float32.
    Device("titanx", 336.5e9, _rates(0.206e12, 6.6e12), "NVIDIA GTX TITAN X (Maxwell) product page; float64 at 1/32",
           12_797_607_936, "github.com/gpgpu-sim/gpgpu-sim_distribution/issues/169 (deviceQuery)", 12, _GEN3),
    Device("gtx1080ti", 484e9, _rates(0.354e12, 11.3e12), "NVIDIA GTX 1080 Ti product page; float64 at 1/32",
           int(10.91 * _GIB), "TensorFlow's log of one, 2020-06-28 (deviceMemorySize: 10.91GiB)", 11, _GEN3),
    Device("cpu", 100e9, _rates(0.5e12, 1e12), "round figures for 16 AVX2 cores x 32 FLOP x 2 GHz, 4 channels of DDR4"),
)  # fmt: skip
DEVICES: Final[Mapping[str, Device]] = MappingProxyType({entry.name: entry for entry in _DEVICES})

_NOISE: Final = re.compile(r"nvidia|geforce|gtx(?=titan)|tesla|sxm[0-9]*|pcie|hbm[0-9]e?|maxwell|[^a-z0-9]|gi?b$")


def _key(name: str) -> str:
    """What is left of a name without maker, board, memory and signs: that of "NVIDIA A100-SXM4-40GB" is "a10040"."""
    key = name.lower().strip()
    while (shorter := _NOISE.sub("", key)) != key:
        key = shorter
    return key


_BY_KEY: Final = {_key(entry.name): entry for entry in _DEVICES} | {
    f"{_key(name)}{entry.marketed_gib}": entry for name, entry in DEVICES.items() if entry.total_bytes
}


def find_device(name: Any) -> Device | None:
    """The device that a name means, or None.

    Case, spaces and signs do not count, nor do maker, board and the size it is sold by: "RTX 4090", "A100-80GB" and
    what the runtime itself says ("NVIDIA A100-SXM4-40GB") are understood. A bare number is none: "4090" is bytes.

    >>> [find_device(name).name for name in ("T4", "RTX 4090", "A100-80GB", "NVIDIA A100-SXM4-40GB", "Tesla T4")]
    ['t4', 'rtx4090', 'a100', 'a100-40', 't4']
    """
    return _BY_KEY.get(_key(name)) if isinstance(name, str) else None


def device(name: str) -> Device:
    """The device of that name; costs are seconds on it.

    Args:
        name: as `find_device` understands it.
    Raises:
        GraphError: no such device; names the nearest, and those there are.

    >>> device("A100").bandwidth
    2039000000000.0
    """
    found = find_device(name)
    if found is None:
        near = nearest(name)
        hint = f" did you mean {' or '.join(near)}?" if near else ""
        raise GraphError(f"unknown device {shown(name)};{hint} known: {', '.join(DEVICES)}")
    return found


def nearest(name: Any) -> list[str]:
    """Names of up to three devices that read like this one, the most alike first.

    >>> nearest("a1000"), nearest("l5"), nearest("7GB")
    (['a100', 'a100-40'], ['l4'], [])
    """
    key = _key(name) if isinstance(name, str) and len(name) <= 40 else ""
    if key.isdecimal() and len(key) < 4:  # a size
        return []
    keys = difflib.get_close_matches(key, _BY_KEY, n=3, cutoff=0.5)
    return list(dict.fromkeys(_BY_KEY[key].name for key in keys))


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
