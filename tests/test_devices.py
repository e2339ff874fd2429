"""Roofline seconds on named devices."""

from __future__ import annotations

import pytest

from planner.errors import GraphError
from planner.lowering.devices import DEVICES, device, roofline_seconds


def test_the_table_has_the_devices_the_design_names() -> None:
    assert {"a100", "h100", "v100", "t4", "rtx4090", "cpu"} <= set(DEVICES)
    assert all(name == entry.name for name, entry in DEVICES.items())


def test_unknown_device_lists_those_there_are() -> None:
    with pytest.raises(GraphError, match=r"'a1000'.*a100.*cpu"):
        device("a1000")
    with pytest.raises(GraphError, match="unknown device None"):
        device(None)  # type: ignore[arg-type]


def test_arithmetic_bounds_a_large_product_and_traffic_an_elementwise_op() -> None:
    # Data sheet: 19.5 TFLOP/s in float32, 312 in 16-bit on tensor cores, 2,039 GB/s.
    a100 = device("a100")
    assert roofline_seconds(a100, flops=19.5e12, bytes_moved=1.0) == 1.0
    assert roofline_seconds(a100, flops=312e12, bytes_moved=1.0, dtype="bfloat16") == 1.0
    assert roofline_seconds(a100, flops=1.0, bytes_moved=2039e9) == 1.0


def test_a_dtype_without_a_rate_runs_at_that_of_float32() -> None:
    v100 = device("v100")
    assert roofline_seconds(v100, flops=15.7e12, bytes_moved=0.0, dtype="bfloat16") == 1.0


def test_nothing_takes_no_time() -> None:
    assert roofline_seconds(device("cpu"), flops=0, bytes_moved=0) == 0.0
