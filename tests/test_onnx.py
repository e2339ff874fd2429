"""from_onnx on real files: counts that others made, the traps of presentation.md 1.3, and errors of one line."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import keep_all
from offenders import every
from programs import elements, saved

from planner.errors import GraphError
from planner.lowering.onnx.importer import from_onnx
from planner.lowering.read import read_graph
from planner.lowering.schema import lower
from planner.simulator import simulate

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper  # noqa: E402

LIGHT = (
    "bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet", "vgg19",
    "zfnet512",
)  # fmt: skip
SCALING = ("densenet121", "squeezenet")


def light(shared: Path, name: str) -> Path:
    return shared / "data" / "graphs" / "onnx_light" / f"light_{name}.onnx"


def manifest(shared: Path) -> dict[str, dict[str, Any]]:
    return json.loads((shared / "data" / "graphs" / "manifest.json").read_text())  # type: ignore[no-any-return]


# --- the nine real files


@every("training", [True, False])
@every("name", LIGHT)
def test_counts_are_those_of_the_manifest(shared: Path, name: str, training: bool) -> None:
    expected = manifest(shared)[f"onnx_light/light_{name}.onnx"]
    source = from_onnx(light(shared, name), training=training).graph["source"]
    for key in ("nodes", "real_nodes", "params", "bn_stats", "act_elems", "act_bytes"):
        assert source[key] == expected[key], key
    assert source["folded"] == expected.get("foldable", 1 if name == "inception_v1" else 0)


@every("training", [True, False])
@every("name", LIGHT)
def test_each_file_gives_a_legal_program(shared: Path, name: str, training: bool) -> None:
    graph = from_onnx(light(shared, name), training=training, optimizer="adam")
    assert [graph.nodes[n]["position"] for n in graph] == list(range(len(graph)))
    program = lower(graph)
    assert [op.name for op in program.ops] == list(graph)
    assert not program.dead
    simulate(program, keep_all(program))


@every("name", LIGHT)
def test_weights_are_parameters_and_running_statistics_are_states(shared: Path, name: str) -> None:
    expected = manifest(shared)[f"onnx_light/light_{name}.onnx"]
    graph = from_onnx(light(shared, name))
    kinds = dict.fromkeys(("parameter", "state"), 0)
    for node, kind in graph.nodes(data="kind"):
        if kind in kinds:
            kinds[kind] += elements(graph, node)
    assert kinds == {"parameter": expected["params"] - expected["bn_stats"], "state": expected["bn_stats"]}
    updated = {n.removesuffix(".update") for n, phase in graph.nodes(data="phase") if phase == "update"} - {"barrier"}
    assert updated == {n for n, kind in graph.nodes(data="kind") if kind == "parameter"}


@every("name", SCALING)
def test_a_batch_of_8_has_8_times_the_activations(shared: Path, name: str) -> None:
    expected = manifest(shared)[f"onnx_light/light_{name}.onnx"]
    source = from_onnx(light(shared, name), batch=8).graph["source"]
    assert source["act_elems"] == expected["act_elems_batch8"] == 8 * expected["act_elems"]
    assert source["params"] == expected["params"]


@every("name", sorted(set(LIGHT) - set(SCALING)))
@every("batch", [2, 8])
def test_a_frozen_batch_is_an_error_that_names_the_reshape(shared: Path, name: str, batch: int) -> None:
    path = light(shared, name)
    first = next(
        node.name for node in onnx.load(path).graph.node if node.op_type == "Reshape" and node.input[0] != node.name
    )
    with pytest.raises(
        GraphError, match=rf"light_{name}.onnx: node 'n\d+' \(Reshape\) has batch 1 frozen .*batch={batch}"
    ) as error:
        from_onnx(path, batch=batch)
    # inception_v1's first Reshape is of a weight and folds; its batch is frozen in the second.
    assert f"'{'n140' if name == 'inception_v1' else first}'" in str(error.value)
    assert from_onnx(path, batch=1).graph["source"] == from_onnx(path).graph["source"]


@every(("name", "runtime_tensors", "runtime_elems"), [
    ("vgg19", 0, 0), ("resnet50", 0, 0),
    # onnxruntime also keeps int64 vectors that its kernels need at run time and a static plan does not:
    # the two input lengths of each of 8 Concat, and the shape (4) before the global pool.
    ("squeezenet", 8 + 1, 8 * 2 + 4),
])  # fmt: skip
def test_backward_reads_what_onnxruntime_reads(
    shared: Path, name: str, runtime_tensors: int, runtime_elems: int
) -> None:
    expected = manifest(shared)[f"onnx_training/{name}_training.onnx"]
    graph = from_onnx(light(shared, name))
    assert len(saved(graph)) == expected["saved_tensors"] - runtime_tensors
    assert sum(elements(graph, *value) for value in saved(graph)) == expected["saved_elems"] - runtime_elems


def test_resnet50_is_the_same_step_from_the_file_and_from_the_zoo(shared: Path) -> None:
    from planner import zoo
    from planner.memory import MemoryModel

    peaks = []
    for graph in (from_onnx(light(shared, "resnet50")), zoo.resnet(50, batch=1)):
        program = lower(graph)
        peaks.append(simulate(program, keep_all(program), memory=MemoryModel(scope="activations")).peak_bytes)
    # The file ends in a softmax, whose gradient and the zoo's log-probabilities are both of 1000 floats.
    assert peaks[0] == peaks[1]


def test_dead_masks_are_pruned_and_unused_initializers_ignored(shared: Path) -> None:
    alexnet = from_onnx(light(shared, "bvlc_alexnet"), training=False)
    assert len(alexnet.graph["source"]["pruned"]) == 2  # data/graphs/README.md: 2 untyped dropout masks, dead
    assert len(from_onnx(light(shared, "resnet50")).graph["source"]["ignored"]) == 1
    assert len(from_onnx(light(shared, "zfnet512")).graph["source"]["ignored"]) == 1
    assert from_onnx(light(shared, "vgg19")).graph["source"]["ignored"] == ()


def test_dropout_saves_a_bool_mask_that_can_be_drawn_again(shared: Path) -> None:
    graph = from_onnx(light(shared, "squeezenet"))
    drop = next(n for n, op in graph.nodes(data="op") if op == "Dropout")
    assert graph.nodes[drop]["dtype"] == ("float32", "bool")
    assert graph.nodes[drop]["nbytes"][0] == 4 * graph.nodes[drop]["nbytes"][1]
    assert graph.nodes[drop].get("recomputable", True)
    state = graph.nodes[f"{drop}.rng"]
    assert (state["nbytes"], state["cost"], state["recomputable"]) == (16, 0.0, False)
    assert not [
        n for n, op in from_onnx(light(shared, "squeezenet"), training=False).nodes(data="op") if op == "GeneratorState"
    ]


def test_pool_indices_take_8_bytes_each(shared: Path) -> None:
    graph = from_onnx(light(shared, "vgg19"))
    pools = [a for _, a in graph.nodes(data=True) if a.get("op") == "MaxPool"]
    assert pools
    assert all(a["nbytes"][1] == 2 * a["nbytes"][0] for a in pools)


def test_nothing_is_written_beside_the_file_and_counts_do_not_depend_on_training(shared: Path, tmp_path: Path) -> None:
    copy = tmp_path / "model.onnx"
    copy.write_bytes(light(shared, "squeezenet").read_bytes())
    assert from_onnx(copy).graph["source"] == from_onnx(str(copy), training=False).graph["source"]
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]


# --- small models written here


def make(op: str, reads: str | list[str], makes: str | list[str], **more: Any) -> Any:
    """An ONNX node; names as one text, in which `_` is an input left out."""
    names = [[name.strip("_") for name in text.split()] if isinstance(text, str) else text for text in (reads, makes)]
    return helper.make_node(op, *names, **more)


def model(
    nodes: list[Any],
    *,
    shape: list[Any] | None = None,
    initializers: list[Any] | None = None,
    outputs: tuple[str, ...] = ("y",),
    **kw: Any,
) -> Any:
    fed = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape or [2, 3])]
    made = [helper.make_empty_tensor_value_info(name) for name in outputs]
    graph = helper.make_graph(nodes, "g", fed, made, initializer=initializers or [])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8, **kw)


def weights(name: str, *shape: int) -> Any:
    return helper.make_tensor(name, TensorProto.FLOAT, shape, [0.0] * math.prod(shape))


def saved_at(folder: Path, what: Any) -> Path:
    path = folder / "m.onnx"
    path.write_bytes(what if isinstance(what, bytes) else what.SerializeToString())
    return path


GEMM = [make("Gemm", "x w", "y", name="fc")]


def test_a_named_dimension_is_bound_and_a_batch_replaces_any(tmp_path: Path) -> None:
    path = saved_at(tmp_path, model(GEMM, shape=["N", 3], initializers=[weights("w", 3, 4)]))
    assert from_onnx(path, dims={"N": 5}, training=False).nodes["fc"]["shape"] == (5, 4)
    assert from_onnx(path, batch=6, training=False).nodes["fc"]["shape"] == (6, 4)
    with pytest.raises(GraphError, match=r"m.onnx: no size for dimension 0 of 'x' \(N\); give batch=SIZE$"):
        from_onnx(path)
    with pytest.raises(GraphError, match="no input has a dimension named 'M'; named dimensions: N"):
        from_onnx(path, dims={"M": 1})
    with pytest.raises(GraphError, match="name the same dimension"):
        from_onnx(path, dims={"N": 5}, batch=6)


def test_a_batch_of_minus_one_in_the_file_is_no_size_and_one_that_is_no_count_is_refused(tmp_path: Path) -> None:
    for size in (-1, 0):
        path = saved_at(tmp_path, model(GEMM, shape=[size, 3], initializers=[weights("w", 3, 4)]))
        with pytest.raises(GraphError, match="no size for dimension 0 of 'x'; give batch=SIZE"):
            from_onnx(path)
        assert from_onnx(path, batch=2, training=False).graph["source"]["act_elems"] == 8
    for batch in (0, -1, 2.5, True, "8", 2**40):
        with pytest.raises(GraphError, match="size of 'batch'"):
            from_onnx(path, batch=batch)  # type: ignore[arg-type]


def test_a_reshape_that_folds_the_batch_into_features_is_refused(tmp_path: Path) -> None:
    """Elements are all there, so only comparison with the file's own batch shows that the batch was lost."""
    target = helper.make_tensor("t", TensorProto.INT64, [2], [1, -1])
    nodes = [make("Relu", "x", "r"), make("Reshape", "r t", "y", name="flat")]
    for size, why in ((1, r"node 'flat' \(Reshape\) has batch 1 frozen"), ("N", r"output 'y' is \[1, 12\] at batch=4")):
        path = saved_at(tmp_path, model(nodes, shape=[size, 3], initializers=[target]))
        with pytest.raises(GraphError, match=why):
            from_onnx(path, batch=4, training=False)


def test_a_reshape_that_keeps_the_batch_is_accepted(tmp_path: Path) -> None:
    for target in ([-1, 3, 1], [0, 3, 1]):
        shape = helper.make_tensor("t", TensorProto.INT64, [3], target)
        path = saved_at(tmp_path, model([make("Reshape", "x t", "y", name="r")], initializers=[shape]))
        assert from_onnx(path, batch=4, training=False).nodes["r"]["shape"] == (4, 3, 1)


def test_shape_arguments_are_no_tensors_and_a_reshaped_weight_is_the_weight(tmp_path: Path) -> None:
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [0])
    nodes = [
        make("Unsqueeze", "w axes", "u", name="unsqueeze"),
        make("Identity", "u", "v", name="again"),
        make("Mul", "x v", "y", name="scale"),
    ]
    graph = from_onnx(saved_at(tmp_path, model(nodes, initializers=[weights("w", 3), axes])))
    assert [n for n in graph if graph.nodes[n].get("kind", "op") != "op"] == ["x", "w"]
    assert graph.graph["source"]["folded"] == 2
    assert graph.nodes["w"]["shape"] == (3,)
    assert graph.nodes["scale.bwd"]["nbytes"] == 12
    assert set(graph.predecessors("scale.bwd")) == {"loss.bwd", "x"}


def test_an_inner_value_that_is_an_output_too_is_part_of_the_loss(tmp_path: Path) -> None:
    nodes = [*GEMM, make("Relu", "y", "z", name="relu")]
    path = saved_at(tmp_path, model(nodes, initializers=[weights("w", 3, 4)], outputs=("y", "z")))
    graph = from_onnx(path)
    assert set(graph.predecessors("loss")) == {"relu", "y.output"}
    assert graph.nodes["y.output"]["view"] == ((0, 0),)
    assert set(lower(from_onnx(path, training=False)).outputs) == {"fc", "relu"}


def test_names_with_colons_cannot_collide_with_outputs(tmp_path: Path) -> None:
    nodes = [make("MaxPool", "x", "p", name="p", kernel_shape=[2]), make("Relu", "p", "y", name="p:0")]
    graph = from_onnx(saved_at(tmp_path, model(nodes, shape=[1, 2, 4])), training=False)
    lower(graph)
    assert list(graph) == ["x", "p", "p_0"]


FC = model(GEMM, initializers=[weights("w", 3, 4)])
DAMAGED = "damaged or not an ONNX model"


def relu(reads: str, makes: str, **more: Any) -> Any:
    return model([make("Relu", reads, makes, name="r", **more)])


@every(("what", "message"), [
    (b"", DAMAGED), (b"\x00\x01 no protobuf \xff" * 9, DAMAGED), (b"ir_version: 8", DAMAGED),
    (FC.SerializeToString()[:-7], DAMAGED),
    (FC.SerializeToString().replace(b"fc", b"\xfc\xff"), "is damaged: the name"),
    (model([]), f"{DAMAGED}: it has no nodes"),
    (model([make("STFT", "x", "y", name="e")]), r"no rule for node 'e' \(STFT\)"),
    (relu("x", "y", domain="acme"), r"no rule for node 'r' \(acme.Relu\)"),
    (relu("gone", "y"), r"'r' \(Relu\) reads 'gone', which nothing"),
    (relu("x", "x"), r"'r' \(Relu\) makes 'x', which exists"), (relu("x", "z"), "output 'y' is made by no node"),
    (model(GEMM, initializers=[weights("w", 5, 4)]), "shape inference failed: .*fc"),
])  # fmt: skip
def test_a_bad_file_is_one_line_that_names_it(tmp_path: Path, what: Any, message: str) -> None:
    path = saved_at(tmp_path, what)
    with pytest.raises(GraphError, match=message) as error:
        from_onnx(path)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.onnx", tmp_path):
        with pytest.raises(GraphError, match=rf"^{path}: cannot be read"):
            from_onnx(path)


def test_every_truncation_of_a_real_file_is_refused(shared: Path, tmp_path: Path) -> None:
    whole = light(shared, "bvlc_alexnet").read_bytes()
    for length in range(0, len(whole), 97):
        with pytest.raises(GraphError):
            from_onnx(saved_at(tmp_path, whole[:length]))


@settings(max_examples=30)
@given(st.data())
def test_a_damaged_file_is_read_or_refused_in_one_line(
    shared: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray(light(shared, "bvlc_alexnet").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = saved_at(tmp_path_factory.mktemp("damaged"), bytes(content))
    try:
        lower(from_onnx(path, training=False))
    except GraphError as error:
        assert "\n" not in str(error)  # noqa: PT017


def test_missing_external_weights_are_named(tmp_path: Path) -> None:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3, 4], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="w.bin")
    path = saved_at(tmp_path, model(GEMM, initializers=[tensor]))
    with pytest.raises(GraphError, match=r"m.onnx: initializer 'w': its external weights 'w.bin' are missing"):
        from_onnx(path)
    (tmp_path / "w.bin").write_bytes(b"\0" * 48)
    assert from_onnx(path).graph["source"]["params"] == 12


def altered(what: Any, change: Callable[[Any], Any]) -> Any:
    change(what)
    return what


SPARSE = helper.make_sparse_tensor(weights("s", 1), helper.make_tensor("at", TensorProto.INT64, [1], [0]), [3, 4])


FORBIDDEN = [
    (lambda made: made.graph.input.append(made.graph.input[0]), "has two inputs named 'x'"),
    (lambda made: made.graph.initializer.append(weights("w", 3, 9)), "has two initializers named 'w'"),
    (lambda made: made.graph.initializer[0].dims.__setitem__(0, -3), r"initializer 'w' has a size below 0: \[-3, 4\]"),
    (lambda made: setattr(made.opset_import[0], "version", 999), "has operator set 999, and the onnx package here"),
    (lambda made: setattr(made.opset_import[0], "version", 0), "has operator set 0,"),
    (lambda made: made.graph.sparse_initializer.append(SPARSE), "initializer 's' is sparse"),
    (lambda made: setattr(made.graph.input[0].type.tensor_type, "elem_type", TensorProto.FLOAT8E5M2FNUZ),
     "input: value 'x' is of dtype 'float8e5m2fnuz'; known: float64"),
]  # fmt: skip


@every("training", [True, False])
@every(("change", "message"), FORBIDDEN)
def test_what_a_file_may_not_say_is_refused_by_name(tmp_path: Path, change: Any, message: str, training: bool) -> None:
    path = saved_at(tmp_path, altered(model(GEMM, initializers=[weights("w", 3, 4)]), change))
    with pytest.raises(GraphError, match=f"m.onnx: {message}"):
        from_onnx(path, training=training)


def test_a_file_above_2_gib_is_named_for_what_it_is_without_reading_it(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    with path.open("wb") as file:
        file.truncate(2**31)  # a hole: it takes no room
    for read in (from_onnx, read_graph):
        with pytest.raises(
            GraphError, match="is larger than 2 GiB, which no ONNX file can be; save its weights beside it"
        ):
            read(path)


def test_functions_of_the_file_are_written_out(tmp_path: Path) -> None:
    """Two calls of a layer, relu(x w), with own weights, 3 x 3 and 3 x 4; only the relus' outputs are saved."""
    body = [make("MatMul", "a b", "p"), make("Relu", "p", "q")]
    layer = helper.make_function("mine", "Layer", ["a", "b"], ["q"], body, [helper.make_opsetid("", 13)])
    nodes = [make("Layer", "x w", "h", domain="mine", name="one"), make("Layer", "h v", "y", domain="mine", name="two")]
    made = model(nodes, initializers=[weights("w", 3, 3), weights("v", 3, 4)], functions=[layer])
    made.opset_import.append(helper.make_opsetid("mine", 1))
    step = from_onnx(saved_at(tmp_path, made))
    assert [step.nodes[n]["op"] for n in step if step.nodes[n].get("phase") == "forward"] == ["MatMul", "Relu"] * 2
    assert step.graph["source"]["params"] == 3 * 3 + 3 * 4
    assert sorted(step.nodes[node]["nbytes"] for node, _ in saved(step)) == [4 * 2 * 3, 4 * 2 * 4]


def test_a_damaged_function_is_refused_like_a_damaged_node(tmp_path: Path) -> None:
    body = [make("Relu", "a", "q", name="inside")]
    layer = helper.make_function("mine", "Layer", ["a"], ["q"], body, [helper.make_opsetid("", 13)])
    made = model([make("Layer", "x", "y", domain="mine", name="one")], functions=[layer])
    made.opset_import.append(helper.make_opsetid("mine", 1))
    for old, new in ((b"Relu", b"R\xffl\xfe"), (b"inside", b"in\xffi\xfee")):
        with pytest.raises(GraphError, match=r"is damaged|cannot be written out|no rule"):
            from_onnx(saved_at(tmp_path, made.SerializeToString().replace(old, new)))


def test_a_stored_tensor_that_is_an_output_hides_no_size(tmp_path: Path) -> None:
    path = saved_at(tmp_path, model(GEMM, initializers=[weights("w", 3, 4)], outputs=("w", "y")))
    assert from_onnx(path, training=False).nodes["fc"]["shape"] == (2, 4)


@every(("op", "opset", "inputs", "attributes"), [
    ("GroupNormalization", 18, {"s": (2,), "b": (2,)}, {"num_groups": 2}),
    ("GroupNormalization", 21, {"s": (4,), "b": (4,)}, {"num_groups": 2}), ("MeanVarianceNormalization", 9, {}, {}),
    ("MeanVarianceNormalization", 13, {}, {}),
])  # fmt: skip
def test_normalizations_that_are_functions_of_the_standard_have_the_shape_of_what_they_read(
    tmp_path: Path, op: str, opset: int, inputs: dict[str, tuple[int, ...]], attributes: dict[str, Any]
) -> None:
    nodes = [make(op, ["x", *inputs], "n", name="n", **attributes), make("Conv", "n w", "y", name="c")]
    stored = [weights("w", 5, 4, 1, 1), *(weights(name, *shape) for name, shape in inputs.items())]
    made = altered(
        model(nodes, shape=[2, 4, 3, 3], initializers=stored),
        lambda found: setattr(found.opset_import[0], "version", opset),
    )
    graph = from_onnx(saved_at(tmp_path, made))
    assert (graph.nodes["n"]["shape"], graph.nodes["c"]["shape"]) == ((2, 4, 3, 3), (2, 5, 3, 3))


def test_options_are_checked_before_the_file_is_read(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="unknown optimizer 'lion'"):
        from_onnx(tmp_path / "none.onnx", optimizer="lion")
    with pytest.raises(GraphError, match="unknown device 'tpu'"):
        from_onnx(tmp_path / "none.onnx", device="tpu")


def test_without_the_onnx_package_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(GraphError, match=r"pip install 'sublinear-planner\[onnx\]'"):
        from_onnx(saved_at(tmp_path, b"x"))


def test_a_file_without_weights_can_be_planned_for_inference_only(tmp_path: Path) -> None:
    path = saved_at(tmp_path, model([make("Relu", "x", "y", name="r")]))
    assert list(from_onnx(path, training=False)) == ["x", "r"]
    with pytest.raises(GraphError, match="no trainable resident"):
        from_onnx(path)
