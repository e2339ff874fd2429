"""Functions with one gradient, which exporters take apart and frameworks do not: GELU, SiLU, group normalization."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from offenders import every
from test_onnx import make, saved_at
from test_onnx_rows import F, ints, weights, written

from bench.saved import Saved, saved
from planner.lowering.onnx.importer import from_onnx

onnx = pytest.importorskip("onnx")
from onnx import helper  # noqa: E402


def number(name: str, value: float) -> Any:
    return helper.make_tensor(name, F, [], [value])


HALF, ONE, ROOT, TURNED = (
    number("half", 0.5),
    number("one", 1),
    number("root", math.sqrt(2)),
    number("turned", 0.5**0.5),
)
ERF = [make("Div", "h root", "d"), make("Erf", "d", "e"), make("Add", "e one", "s")]
GELUS = {
    "half the product": [*ERF, make("Mul", "h s", "p"), make("Mul", "p half", "g", name="last")],
    "half the input": [*ERF, make("Mul", "h half", "p"), make("Mul", "p s", "g", name="last")],
    "half the sum, multiplied by 1 / sqrt 2": [
        make("Mul", "h turned", "d"), make("Erf", "d", "e"), make("Add", "one e", "s"), make("Mul", "half s", "p"),
        make("Mul", "h p", "g", name="last"),
    ],
}  # fmt: skip
SILU = [make("Sigmoid", "h", "s"), make("Mul", "s h", "g", name="last")]
GROUPS = [
    make("Constant", [], "ones", value_floats=[1.0, 1.0]), make("Constant", [], "zeros", value_floats=[0.0, 0.0]),
    make("Reshape", "h grouped", "a"), make("InstanceNormalization", "a ones zeros", "b"), make("Shape", "h", "whole"),
    make("Reshape", "b whole", "c"), make("Unsqueeze", "scale places", "k"), make("CastLike", "k c", "l"),
    make("Mul", "c l", "d"), make("Unsqueeze", "shift places", "m"), make("CastLike", "m d", "n"),
    make("Add", "d n", "g", name="last"),
]  # fmt: skip
GROUPED = [
    ints("grouped", 0, 2, -1), ints("places", 1, 2), weights("scale", 8), weights("shift", 8),
]  # fmt: skip


def between_products(folder: Path, parts: list[Any]) -> Path:
    """x [2, 8] w -> h, the parts of a function h -> g, g u -> y [2, 4]."""
    nodes = [make("MatMul", "x w", "h"), *parts, make("MatMul", "g u", "y")]
    return written(folder, nodes, [2, 8], [weights("w", 8, 8), weights("u", 8, 4), HALF, ONE, ROOT, TURNED])


def between_convolutions(folder: Path, parts: list[Any], stored: list[Any]) -> Path:
    """x [2, 3, 4, 4] w -> h of 8 channels, the parts of a function h -> g, g u -> y."""
    nodes = [make("Conv", "x w", "h"), *parts, make("Conv", "g u", "y")]
    path = written(folder, nodes, [2, 3, 4, 4], [weights("w", 8, 3, 1, 1), weights("u", 2, 8, 1, 1), *stored], opset=18)
    model = onnx.load(path)
    model.producer_name = "pytorch"  # whose Constant nodes are no weights
    return saved_at(folder, model)


def ops(path: Path, **options: Any) -> list[str]:
    graph = from_onnx(path, **{"training": "forward", **options})
    return [op for _, op in graph.nodes(data="op") if op is not None]


@every(("op", "parts"), [*(("Gelu", parts) for parts in GELUS.values()), ("Swish", SILU)])
def test_an_activation_with_one_gradient_keeps_its_input_alone(tmp_path: Path, op: str, parts: list[Any]) -> None:
    """Its backward reads h, and that of the second product its result: 2 tensors of 2 x 8 floats."""
    path = between_products(tmp_path, parts)
    assert ops(path) == ["MatMul", op, "MatMul"]
    step = from_onnx(path)
    assert saved(step) == Saved(2 * 2 * 8 * 4, 0)
    assert "last" in step
    assert len(ops(path, training=False)) == 2 + len(parts)


def test_a_group_normalization_keeps_its_input_and_its_weights_are_parameters(tmp_path: Path) -> None:
    """h and the normalized one, for the convolution after it: 2 tensors of 2 x 8 x 4 x 4 floats."""
    path = between_convolutions(tmp_path, GROUPS, GROUPED)
    assert [op for op in ops(path) if op not in ("Unsqueeze", "CastLike")] == ["Conv", "GroupNormalization", "Conv"]
    step = from_onnx(path)
    assert saved(step) == Saved(2 * 2 * 8 * 4 * 4 * 4, 0)
    assert {name for name, kind in step.nodes(data="kind") if kind == "parameter"} == {"w", "u", "scale", "shift"}


@every(("parts", "stays"), [
    ([*SILU[:1], make("Mul", "s h", "m"), make("Add", "m s", "g")], "Sigmoid"),  # the gate is read elsewhere too
    ([make("Sigmoid", "h", "s"), make("Exp", "h", "f"), make("Mul", "s f", "g")], "Sigmoid"),  # another factor
    ([*ERF, make("Mul", "h s", "p"), make("Mul", "p half", "q"), make("Add", "q e", "g")], "Erf"),  # erf is read too
    ([*ERF, make("Mul", "h s", "p"), make("Mul", "p one", "g")], "Erf"),  # no half
    ([make("Mul", "h half", "d"), *ERF[1:], make("Mul", "h s", "p"), make("Mul", "p half", "g")], "Erf"),  # no root
])  # fmt: skip
def test_parts_that_are_no_such_function_stay_apart(tmp_path: Path, parts: list[Any], stays: str) -> None:
    assert stays in ops(between_products(tmp_path, parts))


@every("change", ["trained", "moving"])
def test_a_normalization_with_weights_of_its_own_or_a_moving_scale_stays_apart(tmp_path: Path, change: str) -> None:
    """The scale of each group is trained; or the input decides what multiplies the normalized values."""
    if change == "trained":
        own = [
            make("InstanceNormalization", "a w2 w3", "b") if node.op_type.startswith("I") else node for node in GROUPS
        ]
        path = between_convolutions(tmp_path, own, [*GROUPED, weights("w2", 2), weights("w3", 2)])
    else:
        moving = [make("Mul", "c h", "d") if node.op_type == "Mul" else node for node in GROUPS]
        path = between_convolutions(tmp_path, moving, GROUPED)
    assert "InstanceNormalization" in ops(path)
