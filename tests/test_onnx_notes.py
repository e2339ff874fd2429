"""The module tree of a file by PyTorch's dynamo exporter, and what shows that a file is not the step one trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from offenders import every
from test_onnx import make, model, saved_at, weights
from test_onnx_weights import RULE_NAME, told

from planner.footprint.modules import break_down
from planner.lowering.onnx.importer import from_onnx
from planner.lowering.schema import lower

pytest.importorskip("onnx")

SCOPES = "pkg.torch.onnx.name_scopes"
STACK = "pkg.torch.onnx.stack_trace"
FX_NODE = "pkg.torch.onnx.fx_node"


def scoped_file(folder: Path) -> Path:
    """Two layers as dynamo names them: flat node names, and the module of each node in its metadata alone."""
    nodes = [
        told(make("MatMul", "x a", "h", name="node_linear"), **{SCOPES: "['', 'layers.0', 'layers.0.fc', 'linear']"}),
        told(make("Relu", "h", "r", name="node_relu"), **{SCOPES: "['', 'layers.0', 'relu']"}),
        told(
            make("MatMul", "r b", "g", name="node_linear_1"), **{SCOPES: "['', 'layers.1', 'layers.1.fc', 'linear_1']"}
        ),
        told(
            make("Add", "g x", "y", name="node_add"),
            **{SCOPES: "['', '_empty_nn_module_stack_from_metadata_hook', 'add']"},
        ),
    ]
    return saved_at(folder, model(nodes, initializers=[weights("a", 3, 3), weights("b", 3, 3)]))


def test_scopes_in_metadata_make_the_module_tree(tmp_path: Path) -> None:
    graph = from_onnx(scoped_file(tmp_path), training="forward")
    named = {node: graph.nodes[node].get("module") for node in graph if graph.nodes[node].get("kind", "op") == "op"}
    assert named == {
        "node_linear": "layers.0.fc",
        "node_relu": "layers.0",
        "node_linear_1": "layers.1.fc",
        "node_add": None,
    }
    tree = [(row.name, row.depth) for row in break_down(lower(graph)).modules if "node" not in row.name]
    assert tree == [("layers", 1), ("layers.0", 2), ("layers.0.fc", 3), ("layers.1", 2), ("layers.1.fc", 3)]


def test_patterns_of_modules_choose_ops_of_such_a_file(run: Any, tmp_path: Path) -> None:
    answer = run("optimize", scoped_file(tmp_path), "--save", "module:layers.0")
    assert answer.code == 0, answer.err
    assert "module:layers.0" in answer.out
    assert "names no" not in answer.err


CONV = [("x a", "h", "/first/Conv"), ("h b", "y", "/second/Conv")]


def convolutions(*names: str, rule: str = "") -> Any:
    pair = zip(CONV, names, strict=True)
    nodes = [make("Conv", [reads.split()[0], name], makes, name=title) for (reads, makes, title), name in pair]
    if rule:
        nodes = [told(node, **{RULE_NAME: rule}) for node in nodes]
    return model(nodes, shape=[1, 3, 4, 4], initializers=[weights(name, 3, 3, 1, 1) for name in names])


def attention(rate: str, *, drops: bool = False) -> Any:
    """A product of the module `layers.0.attn`, behind another layer's Dropout, as dynamo words its call."""
    call = "%sdpa : [num_users=1] = call_function[target=torch.ops.aten.scaled_dot_product_attention.default]"
    said = {FX_NODE: f"{call}(args = (%view_4, %view_5, %view_6, {rate}), kwargs = {{}})"}
    said[SCOPES] = "['', 'layers.0', 'layers.0.attn', 'sdpa']"
    inner = [told(make("Dropout", "d", "p"), **said)] if drops else [told(make("Relu", "d", "p"), **said)]
    nodes = [make("Dropout", "x", "d"), *inner, told(make("MatMul", "p w", "y"), **said)]
    return model(nodes, initializers=[weights("w", 3, 4)])


@every(("made", "notes"), [
    (attention("None, 0.1"), ["dropout inside attention is gone from 1 layers (layers.0.attn)"]),
    (attention("%mask, 0.25, True"), ["dropout inside attention is gone from 1 layers (layers.0.attn)"]),
    (attention("None, 0.1", drops=True), []), (attention("None, 0.0"), []), (attention("%mask"), []),
    (convolutions("first.weight", "second.weight"), []),
    (convolutions("onnx::Conv_7", "onnx::Conv_9"), ["batch normalization was folded into 2 layers (first, second)"]),
    (convolutions("first.weight", "onnx::Conv_9"), ["batch normalization was folded into 1 layers (second)"]),
    (convolutions("a", "b", rule="FuseBatchNormIntoConv"),
     ["batch normalization was folded into 2 layers (first, second)"]),
    (convolutions("a", "b", rule="MaterializeReshapeShape"), []),
    (model([told(make("Gemm", "x w", "y"), **{STACK: "File m.py, line 3\n    return self.fc(self.dropout(x))\n"})],
           initializers=[weights("w", 3, 4)]), ["dropout is gone, as in 'return self.fc(self.dropout(x))'"]),
    (model([make("Dropout", "x", "d"), told(make("Gemm", "d w", "y"), **{STACK: "    self.dropout(x)"})],
           initializers=[weights("w", 3, 4)]), []),
])  # fmt: skip
def test_layers_that_an_export_for_inference_removed_are_noted(tmp_path: Path, made: Any, notes: list[str]) -> None:
    found = from_onnx(saved_at(tmp_path, made), training=False).graph["source"]["notes"]
    assert [note.split(":")[0] for note in found] == notes


def test_inspect_prints_the_note(run: Any, tmp_path: Path) -> None:
    answer = run("inspect", saved_at(tmp_path, convolutions("onnx::Conv_7", "onnx::Conv_9")))
    assert "  Note  batch normalization was folded into 2 layers (first, second): the step that trains it" in answer.out
