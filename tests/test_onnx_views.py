"""What a framework hands over without a copy in training, and the few values that its layers keep or do not keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from offenders import every
from test_onnx import make
from test_onnx_rows import I64, F, ints, weights, written

from bench.saved import Saved, saved
from planner.lowering.onnx.importer import from_onnx

onnx = pytest.importorskip("onnx")
from onnx import helper  # noqa: E402


def number(name: str, value: float) -> Any:
    return helper.make_tensor(name, F, [], [value])


@every(("node", "offset"), [
    (make("Cast", "h", "v", to=F), 0),
    (make("CastLike", "h x", "v"), 0),
    (make("Gather", "h second", "v", axis=0), 1 * 3 * 4 * 5 * 4),  # the second of 2 blocks
    (make("Gather", "h last", "v", axis=1), 2 * 4 * 5 * 4),  # begins after 2 of 3 rows of 4 x 5
    (make("Transpose", "h", "v", perm=[0, 1, 3, 2]), None),
    (make("Gather", "h several", "v", axis=1), None),
    (make("Cast", "h", "v", to=onnx.TensorProto.FLOAT16), None),
])  # fmt: skip
def test_what_strides_can_say_is_a_view_in_training_and_a_copy_in_inference(
    tmp_path: Path, node: Any, offset: int | None
) -> None:
    node.name = "node"
    places = [
        helper.make_tensor("second", I64, [], [1]),
        helper.make_tensor("last", I64, [], [-1]),
        ints("several", 0, 2),
    ]
    nodes = [make("MatMul", "x w", "h"), node, make("Relu", "v", "y")]
    path = written(tmp_path, nodes, [2, 3, 4, 5], [weights("w", 5, 5), *places])
    step = from_onnx(path, training="forward")
    assert step.nodes["node"].get("view", ()) == (() if offset is None else ((0, 0, offset),))
    assert not from_onnx(path, training=False).nodes["node"].get("view", ())


@every(("shape", "perm", "after", "view"), [
    ([4, 1, 3, 5], [1, 0, 2, 3], (), True),  # a dimension of one element moves
    ([4, 2, 3, 5], [1, 0, 2, 3], (), False),
    ([6, 4, 5], [1, 0, 2], (2, 2, 6, 5), True),  # heads: the outermost is split, the matrices stay
    ([6, 4, 5], [1, 0, 2], (24, 5), False),  # rows of both dimensions in a new order: a copy
    ([6, 4, 5], [0, 2, 1], (3, 2, 5, 4), False),
])  # fmt: skip
def test_a_transposition_is_a_view_where_nothing_after_it_needs_other_rows(
    tmp_path: Path, shape: list[int], perm: list[int], after: tuple[int, ...], view: bool
) -> None:
    nodes = [make("MatMul", "x w", "h"), make("Transpose", "h", "v", perm=perm, name="node")]
    nodes.append(make("Reshape", "v after", "y") if after else make("Relu", "v", "y"))
    path = written(tmp_path, nodes, shape, [weights("w", 5, 5), ints("after", *after)])
    assert bool(from_onnx(path).nodes["node"].get("view")) is view


def test_a_layer_normalization_keeps_two_floats_a_row(tmp_path: Path) -> None:
    """Mean and deviation of 6 rows, beside its input and, for the product after it, its result of 2 x 3 x 8."""
    nodes = [
        make("MatMul", "x w", "h"), make("LayerNormalization", "h scale shift", "g"), make("MatMul", "g u", "y"),
    ]  # fmt: skip
    stored = [weights("w", 8, 8), weights("u", 8, 4), weights("scale", 8), weights("shift", 8)]
    path = written(tmp_path, nodes, [2, 3, 8], stored)
    assert saved(from_onnx(path)) == Saved(2 * (2 * 3 * 8 * 4) + 2 * 6 * 4, 0)


@every(("rate", "kept"), [(0.0, 0), (0.25, 2 * 8)])
def test_a_dropout_of_rate_0_draws_no_mask(tmp_path: Path, rate: float, kept: int) -> None:
    """A byte an element where it draws; the product after it keeps 2 x 8 floats either way."""
    nodes = [make("MatMul", "x w", "h"), make("Dropout", "h rate", "g"), make("MatMul", "g u", "y")]
    path = written(tmp_path, nodes, [2, 8], [weights("w", 8, 8), weights("u", 8, 4), number("rate", rate)])
    assert saved(from_onnx(path)) == Saved(2 * 8 * 4 + kept, 0)
