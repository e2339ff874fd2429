"""Another batch than the file's: passed where each row runs as before, refused by number and place elsewhere."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy
import pytest
from extras import imported
from offenders import every
from test_onnx import make, model, saved_at, weights
from test_onnx_wild import ints

from planner.errors import GraphError
from planner.lowering.onnx.importer import from_onnx

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper  # noqa: E402


def reshape(shape: list[Any], *target: int) -> Any:
    return model([make("Reshape", "x t", "y", name="r")], shape=shape, initializers=[ints("t", *target)])


def recurrent(op: str, shape: list[Any], state: tuple[int, ...]) -> Any:
    """A layer of 16 units whose initial hidden state is an input; weights and names as the standard orders them."""
    gates = {"LSTM": 4, "GRU": 3}[op]
    inputs = "x w r _ _ h" + (" c" if op == "LSTM" else "")
    stored = [weights("w", 1, gates * 16, shape[2]), weights("r", 1, gates * 16, 16)]
    made = model([make(op, inputs, "y", hidden_size=16, name="rnn")], shape=shape, initializers=stored)
    for name in inputs.split()[5:]:
        made.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, state))
    return made


def picked(op: str, shape: list[Any], *flat: int) -> Any:
    """Rows by fixed numbers: a Gather of a table, or a Slice of the first two."""
    nodes, stored = [make("Slice", "x zero two", "y", name="pick")], [ints("zero", 0), ints("two", 2)]
    if op == "Gather":
        nodes = [make("Reshape", "x all", "f", name="flat"), make("Gather", "f table", "y", name="pick")]
        table = helper.make_tensor("table", TensorProto.INT64, flat, range(math.prod(flat)))
        stored = [ints("all", -1), table]
    return model(nodes, shape=shape, initializers=stored)


def time_major(shape: list[Any], *, own: int) -> Any:
    """[N, T, C] -> [T, N, C] -> [T * N, C] -> [T, -1, C], as nn.MultiheadAttention does."""
    nodes = [
        make("Transpose", "x", "t", perm=[1, 0, 2], name="t"),
        make("Reshape", "t flat", "f", name="f"),
        make("MatMul", "f w", "m", name="m"),
        make("Reshape", "m back", "y", name="back"),
    ]
    stored = [ints("flat", -1, 8), weights("w", 8, 6), ints("back", own, -1, 6)]
    return model(nodes, shape=shape, initializers=stored)


def counted(shape: list[Any], *target: str) -> Any:
    """[N, T, C] -> [T, N, C] -> [T * N, C] -> the target, whose letters are sizes that Shape reads of x."""
    letters = {"N": 0, "T": 1, "C": 2}
    picks = [make("Gather", f"sizes at_{letter}", f"one_{letter}") for letter in target]
    nodes = [
        make("Shape", "x", "sizes"), *picks, make("Concat", [f"one_{letter}" for letter in target], "back", axis=0),
        make("Transpose", "x", "t", perm=[1, 0, 2]), make("Reshape", "t flat", "f"),
        make("Reshape", "f back", "y", name="back"),
    ]  # fmt: skip
    stored = [ints("flat", -1, 8), *(ints(f"at_{letter}", letters[letter]) for letter in target)]
    return model(nodes, shape=shape, initializers=stored)


PASSED = [
    (reshape([4, 9, 32], 0, 9, 4, 8), 8, (8, 9, 4, 8)), (reshape([4, 9, 32], -1, 9, 4, 8), 8, (8, 9, 4, 8)),
    (reshape([1, 9, 32], -1, 1, 9, 32), 4, (4, 1, 9, 32)), (reshape(["N", 9, 32], -1, 1, 9, 32), 4, (4, 1, 9, 32)),
    (time_major(["N", 5, 8], own=5), 3, (5, 3, 6)), (time_major([4, 5, 8], own=5), 3, (5, 3, 6)),
    (time_major([1, 5, 8], own=5), 4, (5, 4, 6)), (time_major([5, 5, 8], own=5), 5, (5, 5, 6)),
    # nn.MultiheadAttention of ViT and of TransformerEncoder: its target is computed, and a time of 5 is no batch
    (counted(["N", 5, 8], "T", "N", "C"), 4, (5, 4, 8)), (counted([1, 5, 8], "T", "N", "C"), 4, (5, 4, 8)),
    (model([make("Transpose", "x", "t", perm=[1, 0, 2, 3]), make("Reshape", "t s", "y", name="r")],
           shape=["N", 20, 2, 4], initializers=[ints("s", 0, 0, -1)]), 4, (20, 4, 8)),
    # a Squeeze without axes drops the batch where it is 1: that says nothing of a batch of 4
    (model([make("Squeeze", "x", "s", name="s"), make("Gemm", "s w", "y", name="fc")], shape=["N", 3, 1],
           initializers=[weights("w", 3, 4)]), 4, (4, 4)),
    (recurrent("LSTM", [9, 4, 12], (1, 4, 16)), None, (9, 1, 4, 16)),
]  # fmt: skip


@every(("made", "batch", "shape"), PASSED)
def test_a_batch_that_each_row_passes_by_itself_is_accepted(
    tmp_path: Path, made: Any, batch: int | None, shape: tuple[int, ...]
) -> None:
    graph = from_onnx(saved_at(tmp_path, made), batch=batch, training=False)
    last = graph.nodes[list(graph)[-1]]
    assert (last["shape"][0] if isinstance(last["nbytes"], tuple) else last["shape"]) == shape


#: Files that a runtime runs at any batch, and makes the rows of this one.
PICKED = [
    (picked("Gather", [2, 3], 2, 3), 2),
    (picked("Gather", [2, 32], 2, 32, 1, 1), 2),
    (picked("Slice", [2, 3]), 2),
]


@every(("made", "batch", "message"), [
    (reshape([4, 9, 32], 4, -1, 32), 8, r"'r' \(Reshape\) has batch 4 frozen at place 0 of its target \[4, free, 32\]"),
    (reshape([1, 3, 4], 1, 6, -1), 4, r"has batch 1 frozen at place 0 of its target \[1, 6, free\]"),
    # the batch is dimension 1 here, and its number is named, not that of dimension 0
    (model([make("Transpose", "x", "t", perm=[1, 0, 2]), make("Reshape", "t s", "y", name="r")], shape=[4, 20, 128],
           initializers=[ints("s", 20, 4, 2, 64)]), 2, r"has batch 4 frozen at place 1 of its target \[20, 4, 2, 64\]"),
    # the classifier of a static mobilenet, and the heads of a static Llama
    (reshape([2, 576, 1, 1], 2, 576), 4, r"has batch 2 frozen at place 0 of its target \[2, 576\]"),
    (reshape([2, 32, 128], 2, 32, 4, 32), 4, r"has batch 2 frozen at place 0 of its target \[2, 32, 4, 32\]"),
    (PICKED[0][0], 4, r"node 'pick' \(Gather\) picks a fixed part of dimension 0, which became 12"),
    (PICKED[1][0], 4, r"makes \[2, 32, 1, 1\] at any batch, so batch=4 cannot pass"),
    (PICKED[2][0], 4, r"node 'pick' \(Slice\) picks a fixed part of dimension 0, which became 4"),
    (recurrent("LSTM", [9, 4, 12], (1, 2, 16)), None, r"initial state 'h' is \[1, 2, 16\], and its .* \[1, 4, 16\]"),
    (recurrent("GRU", [9, 1, 12], (1, 1, 16)), 4, r"'rnn' \(GRU\): initial state 'h' is \[4, 1, 16\], .* \[1, 1, 16\]"),
    # declared free, and traced at 2: rows of different samples would be mixed
    (reshape(["N", 4, 8], 2, -1, 8), 4, r"output 'y' is \[2, 8, 8\] at batch=4: no dimension of it is the batch"),
    # as long as the batch by chance: refused, although it runs; the file does not tell the two apart
    (time_major([4, 4, 8], own=4), 3, "has batch 4 frozen at place 0"),
])  # fmt: skip
def test_a_batch_that_is_frozen_is_refused_by_number_and_place(
    tmp_path: Path, made: Any, batch: int | None, message: str
) -> None:
    with pytest.raises(GraphError, match=message) as error:
        from_onnx(saved_at(tmp_path, made), batch=batch, training=False)
    assert "\n" not in str(error.value)


def run_at(made: Any, batch: int) -> tuple[int, ...]:
    """The shape that a runtime makes of an input with its first size replaced."""
    runtime = imported("onnxruntime")
    fed, free = {}, onnx.ModelProto.FromString(made.SerializeToString())
    for value in free.graph.input:
        sizes = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        if value.name == "x":
            sizes[0] = batch
            value.type.tensor_type.shape.dim[0].dim_param = "rows"
        fed[value.name] = numpy.ones(sizes, "float32")
    options = runtime.SessionOptions()
    options.log_severity_level = 4  # it warns of each picked row
    (found,) = runtime.InferenceSession(free.SerializeToString(), options).run(None, fed)
    return tuple(found.shape)


def test_a_runtime_runs_the_batches_accepted_and_makes_too_few_rows_of_picks() -> None:
    for made, batch, shape in PASSED:
        own = made.graph.input[0].type.tensor_type.shape.dim[0].dim_value
        assert run_at(made, batch or own) == shape
    for made, rows in PICKED:
        assert run_at(made, 4)[0] == rows


def test_files_that_were_refused_for_a_false_reason_load(shared: Path) -> None:
    """A time-major part is no frozen batch, and positions over batch and sequence are no vectors to broadcast."""
    folder = shared / "data" / "findings"
    major = from_onnx(folder / "batch_time_major.onnx", batch=4, training=False)
    assert major.nodes[list(major)[-1]]["shape"][:2] == (20, 4)
    for rows in (4, 8):
        ranges = from_onnx(folder / "range_broadcast.onnx", dims={"N": rows, "S": 8}, training=False)
        assert rows in ranges.nodes[list(ranges)[-1]]["shape"]
