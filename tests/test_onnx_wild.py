"""ONNX files as real exporters leave them: counts of data/graphs/README.md, or a refusal with node and reason."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from naive import keep_all
from offenders import every
from test_onnx import GEMM, make, manifest, model, saved_at, weights

from planner.api import optimize
from planner.cli.main import cli
from planner.errors import GraphError
from planner.lowering.differentiate import differentiate
from planner.lowering.onnx.importer import from_onnx
from planner.lowering.schema import lower
from planner.memory import MemoryModel
from planner.simulator import simulate

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

#: What binds the free dimensions of each file to the sizes of data/graphs/README.md.
BOUND: dict[str, dict[str, Any]] = {
    "cntk_mnist": {},
    "basic_pitch_nmp": {"dims": {"unk__749": 1}},
    "fastestdet": {},
    "ppocr_cls_mobile": {"batch": 1, "dims": {"x:2": 48, "x:3": 192}},
}
#: Elements and bytes of outputs that onnx's own inference leaves untyped and the importer does not: in ppocr_cls_mobile
#: the 200 pooled features of the last Reshape, whose target is computed from a shape, and four times the 2 classes
#: behind it, in float32.
UNTYPED = {"ppocr_cls_mobile": (200 + 4 * 2, 4 * (200 + 4 * 2))}


def wild(shared: Path, name: str) -> Path:
    return shared / "data" / "graphs" / "onnx_wild" / f"{name}.onnx"


# --- the six real files


@every("training", [True, False])
@every("name", BOUND)
def test_counts_are_those_of_the_manifest(shared: Path, name: str, training: bool) -> None:
    expected = manifest(shared)[f"onnx_wild/{name}.onnx"]
    source = from_onnx(wild(shared, name), training=training, **BOUND[name]).graph["source"]
    more_elems, more_bytes = UNTYPED.get(name, (0, 0))
    assert source["nodes"] == expected["nodes"]
    assert source["act_elems"] == expected["act_elems"] + more_elems
    assert source["act_bytes"] == expected["act_bytes"] + more_bytes


@every("training", [True, False])
@every("name", BOUND)
def test_each_file_gives_a_legal_program(shared: Path, name: str, training: bool) -> None:
    program = lower(from_onnx(wild(shared, name), training=training, **BOUND[name]))
    assert not program.dead
    simulate(program, keep_all(program))


@every("name", ["cntk_mnist", "basic_pitch_nmp", "fastestdet"])
def test_initializers_are_weights_or_arguments(shared: Path, name: str) -> None:
    expected = manifest(shared)[f"onnx_wild/{name}.onnx"]
    tensors = onnx.load(wild(shared, name)).graph.initializer
    scales = 4 if name == "fastestdet" else 0  # of its Resize, in float32
    arguments = scales + sum(
        math.prod(tensor.dims) for tensor in tensors if tensor.data_type != TensorProto.FLOAT or not tensor.dims
    )
    assert from_onnx(wild(shared, name), **BOUND[name]).graph["source"]["params"] == expected["init_elems"] - arguments


def test_weights_in_constant_nodes_are_parameters_and_bare_numbers_are_not(shared: Path) -> None:
    expected = manifest(shared)["onnx_wild/ppocr_cls_mobile.onnx"]
    graph = from_onnx(wild(shared, "ppocr_cls_mobile"), **BOUND["ppocr_cls_mobile"])
    # 18 Reshape targets of 4 int64, 4 arguments of Slice of 1 int64 and one int32, and the two bounds of 18 Clips.
    arguments = 18 * 4 * 8 + 4 * 8 + 4 + 18 * 2 * 4
    nodes = onnx.load(wild(shared, "ppocr_cls_mobile")).graph.node
    bounds = {name for node in nodes if node.op_type == "Clip" for name in node.input[1:]}
    constants = [node for node in nodes if node.op_type == "Constant" and node.output[0] not in bounds]
    arguments += 4 * sum(
        1 for node in constants if not node.attribute[0].t.dims and node.attribute[0].t.data_type == TensorProto.FLOAT
    )
    assert 4 * graph.graph["source"]["params"] == expected["constant_bytes"] - arguments
    assert not [n for n, kind in graph.nodes(data="kind") if kind == "parameter" and graph.nodes[n]["shape"] == ()]


@pytest.mark.parametrize("name", BOUND)
def test_each_training_step_is_planned(shared: Path, name: str) -> None:
    program = lower(from_onnx(wild(shared, name), **BOUND[name]))
    plan = optimize(program, "80%", memory=MemoryModel("activations"))
    whole = simulate(program, keep_all(program), memory=MemoryModel("activations"))
    assert plan.verify().peak_bytes <= whole.peak_bytes * 4 // 5
    assert plan.execute(scale=256)


def test_all_free_dimensions_are_told_at_once_in_the_form_of_the_caller(shared: Path, run: Any) -> None:
    path = wild(shared, "ppocr_cls_mobile")
    places = r"no size for dimensions 0 of 'x', 2 of 'x' \(\?\), 3 of 'x' \(\?\)"
    with pytest.raises(
        GraphError, match=rf"{path.name}: {places}; give batch=SIZE, dims={{'x:2': SIZE, 'x:3': SIZE}}$"
    ):
        from_onnx(path)
    with pytest.raises(GraphError, match=r"; give dims=\{'x:2': SIZE, 'x:3': SIZE\}$"):
        from_onnx(path, batch=1)
    for command in ("inspect", "estimate", "optimize"):
        told = run(command, path)
        assert told.code == 3
        assert told.err.rstrip().endswith("; give --batch SIZE --dim x:2=SIZE --dim x:3=SIZE")
    assert run("inspect", path, "--batch", 1, "--dim", "x:2=48", "--dim", "x:3=192", "--inference").code == 0


def test_the_command_line_binds_a_dimension(shared: Path) -> None:
    path = str(wild(shared, "basic_pitch_nmp"))
    result = CliRunner().invoke(cli, ["inspect", path, "--dim", "unk__749=1", "--inference"])
    assert result.exit_code == 0, result.output
    sizes = ["--batch", "1", "--dim", "x:2=48", "--dim", "x:3=192", "--inference"]
    result = CliRunner().invoke(cli, ["inspect", str(wild(shared, "ppocr_cls_mobile")), *sizes])
    assert result.exit_code == 0, result.output


@every(("name", "message"), [
    ("silero_vad_16k_op15", r"no size for dimensions 0 of 'input' \(batch\), 1 of 'input' \(sequence\), 1 of 'state'"),
    ("superres_prepost_op18",
        r"no rule for node 'pre_process_0' \(com.microsoft.extensions.DecodeImage\): domain .* none of ONNX's"),
])  # fmt: skip
@every("training", [True, False])
def test_what_no_rule_covers_is_refused_by_node_and_reason(
    shared: Path, name: str, message: str, training: bool
) -> None:
    with pytest.raises(GraphError, match=message) as error:
        from_onnx(wild(shared, name), training=training)
    assert str(error.value).startswith(f"{wild(shared, name)}: ")
    assert "\n" not in str(error.value)


# --- small models written here


def ints(name: str, *values: int) -> Any:
    return helper.make_tensor(name, TensorProto.INT64, [len(values)], values)


def test_a_target_computed_from_a_shape_is_folded_and_no_tensor(tmp_path: Path) -> None:
    """Through an int32 cast, where onnx's own data propagation gives up."""
    nodes = [
        make("Shape", "x", "shape", name="shape"),
        make("Cast", "shape", "narrow", to=TensorProto.INT32, name="narrow"),
        make("Slice", "narrow zero one", "rows", name="rows"),
        make("Cast", "rows", "wide", to=TensorProto.INT64, name="wide"),
        make("Mul", "wide three", "total", name="total"),
        make("Concat", "total one", "target", axis=0, name="target"),
        make("Reshape", "x target", "y", name="flat"),
    ]
    path = saved_at(tmp_path, model(nodes, initializers=[ints("zero", 0), ints("one", 1), ints("three", 3)]))
    graph = from_onnx(path, training=False)
    assert list(graph) == ["x", "flat"]
    assert graph.nodes["flat"]["shape"] == (6, 1)
    # x is 2 x 3: shape 2 + 2, one row 1 + 1 + 1, target 2, and y 6; int32 takes 4 bytes, int64 8.
    assert graph.graph["source"]["act_elems"] == 2 + 2 + 1 + 1 + 1 + 2 + 6
    assert graph.graph["source"]["act_bytes"] == 8 * 2 + 4 * 2 + 4 + 8 + 8 + 8 * 2 + 4 * 6


def test_a_number_computed_from_a_shape_is_a_state_and_keeps_nothing_alive(tmp_path: Path) -> None:
    nodes = [
        make("Relu", "x", "r", name="relu"),
        make("Shape", "r", "shape", name="shape"),
        make("Cast", "shape", "sizes", to=TensorProto.FLOAT, name="sizes"),
        make("ReduceSum", "sizes", "total", keepdims=0, name="total"),
        make("Div", "r total", "y", name="scale"),
    ]
    graph = from_onnx(saved_at(tmp_path, model(nodes)), training=False)
    assert set(graph.predecessors("scale")) == {"relu", "total"}
    assert graph.nodes["total"]["kind"] == "state"
    assert list(graph.successors("relu")) == ["scale"]


def test_what_cannot_be_sized_is_named_with_its_node(tmp_path: Path) -> None:
    target = helper.make_tensor_value_info("target", TensorProto.INT64, [2])
    whole = model([make("Reshape", "x target", "z", name="flat"), make("Relu", "z", "y", name="relu")])
    whole.graph.input.append(target)
    with pytest.raises(GraphError, match=r"node 'flat' \(Reshape\): no size could be inferred for value 'z'") as error:
        from_onnx(saved_at(tmp_path, whole), training=False)
    assert "\n" not in str(error.value)


def test_a_node_with_too_few_inputs_is_refused(tmp_path: Path) -> None:
    nodes = [make("BatchNormalization", "x w w w", "y", name="bn")]
    with pytest.raises(GraphError, match=r"node 'bn' \(BatchNormalization\) has 4 inputs, and its op needs 5"):
        from_onnx(saved_at(tmp_path, model(nodes, initializers=[weights("w", 3)])))


def test_an_op_type_with_a_line_break_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="no rule for node 'r'") as error:
        from_onnx(saved_at(tmp_path, model([make("Re\nlu", "x", "y", name="r")])))
    assert "\n" not in str(error.value)


def test_two_dimensions_of_one_name_are_bound_by_place(tmp_path: Path) -> None:
    path = saved_at(tmp_path, model([make("Relu", "x", "y", name="r")], shape=["N", "?", "?"]))
    assert from_onnx(path, training=False, dims={"N": 2, "?": 3}).nodes["r"]["shape"] == (2, 3, 3)
    assert from_onnx(path, training=False, batch=2, dims={"x:1": 3, "x:2": 5}).nodes["r"]["shape"] == (2, 3, 5)
    with pytest.raises(GraphError, match="no input has a dimension named 'x:3'"):
        from_onnx(path, training=False, dims={"x:3": 5})


def external(name: str, dtype: int, dims: list[int], location: str, length: int) -> Any:
    tensor = TensorProto(name=name, data_type=dtype, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", "0"), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)
    return tensor


def test_external_weights_take_the_bytes_of_their_dims_and_external_arguments_are_read(tmp_path: Path) -> None:
    nodes = [make("Gemm", "x w", "g", name="fc"), make("Reshape", "g t", "y", name="flat")]
    tensors = [
        external("w", TensorProto.FLOAT, [3, 4096], "w.bin", 3 * 4096 * 4),
        external("t", TensorProto.INT64, [1], "t.bin", 8),
    ]
    path = saved_at(tmp_path, model(nodes, initializers=tensors))
    (tmp_path / "w.bin").write_bytes(b"")  # a large weight's bytes are never read
    (tmp_path / "t.bin").write_bytes((8192).to_bytes(8, "little"))
    graph = from_onnx(path, training=False)
    assert (graph.nodes["w"]["nbytes"], graph.nodes["flat"]["shape"]) == (3 * 4096 * 4, (8192,))
    (tmp_path / "t.bin").write_bytes(b"1234")
    with pytest.raises(GraphError, match=r"m.onnx: initializer 't': its external data") as error:
        from_onnx(path, training=False)
    assert "\n" not in str(error.value)
    (tmp_path / "t.bin").unlink()
    with pytest.raises(GraphError, match=r"initializer 't': its external weights 't.bin' are missing beside the file"):
        from_onnx(path, training=False)


def test_each_dtype_counts_its_own_bytes(tmp_path: Path) -> None:
    kinds = {"FLOAT16": 2, "BFLOAT16": 2, "DOUBLE": 8, "INT64": 8, "INT32": 4, "INT8": 1, "UINT8": 1, "BOOL": 1}
    nodes = [make("Cast", "x", [kind], to=getattr(TensorProto, kind), name=kind) for kind in kinds]
    nodes.append(make("ArgMax", "x", "index", axis=1, name="index"))
    nodes.append(make("Greater", "x x", "mask", name="mask"))
    path = saved_at(tmp_path, model(nodes, shape=[2, 3], outputs=(*kinds, "index", "mask")))
    graph = from_onnx(path, training=False)
    assert {kind: graph.nodes[kind]["nbytes"] for kind in kinds} == {kind: 6 * size for kind, size in kinds.items()}
    assert (graph.nodes["index"]["nbytes"], graph.nodes["mask"]["nbytes"]) == (2 * 8, 6)
    assert graph.graph["source"]["act_bytes"] == 6 * sum(kinds.values()) + 16 + 6
    assert graph.graph["source"]["act_elems"] == 6 * len(kinds) + 2 + 6


def test_weights_in_low_precision_take_theirs(tmp_path: Path) -> None:
    half = numpy_helper.from_array(numpy_helper.to_array(weights("w", 3, 4)).astype("float16"), "w")
    nodes = [make("Cast", "x", "h", to=TensorProto.FLOAT16, name="half"), make("Gemm", "h w", "y")]
    graph = from_onnx(saved_at(tmp_path, model(nodes, initializers=[half])), optimizer="adam")
    assert (graph.nodes["w"]["nbytes"], graph.nodes["w"]["dtype"]) == (24, "float16")
    assert graph.nodes["y.bwd"]["nbytes"] == 24


# --- what the backward of the added rows reads


@every(("op", "reads", "kept"), [
    # d/dx of the op's formula; "m" its first input, "y" its output.
    ("HardSigmoid", ["m"], {"m"}), ("HardSwish", ["m"], {"m"}), ("Erf", ["m"], {"m"}), ("Abs", ["m"], {"m"}),
    ("Elu", ["m"], {"m"}), ("Softplus", ["m"], {"m"}),
    ("Reciprocal", ["m"], {"y"}),  # -1 / x^2 = -y^2
    ("ReduceMax", ["m"], {"m", "y"}), ("ReduceMin", ["m"], {"m", "y"}),
    ("Pow", ["m", "two"], {"m", "two"}),  # c x^(c - 1)
    ("Where", ["mask", "m", "two"], {"mask"}), ("Tile", ["m", "twice"], set()), ("DepthToSpace", ["m"], set()),
    ("GlobalMaxPool", ["m"], {"m", "y"}),
])  # fmt: skip
def test_backward_reads_what_the_derivative_names(tmp_path: Path, op: str, reads: list[str], kept: set[str]) -> None:
    attributes: dict[str, Any] = {"blocksize": 2} if op == "DepthToSpace" else {}
    nodes = [
        make("Mul", "x w", "m", name="m"),
        make("Greater", "x w", "mask", name="mask"),
        make(op, reads, "y", name="y", **attributes),
        make("Identity", "y", "z", name="z"),
    ]
    two = helper.make_tensor("two", TensorProto.FLOAT, [], [2.0])
    stored = [weights("w", 1), two, ints("twice", 2, 1, 1, 1)]
    listed = nodes if "mask" in reads else [nodes[0], *nodes[2:]]
    whole = model(listed, shape=[2, 4, 2, 2], initializers=stored, outputs=("z",))
    whole.opset_import[0].version = 14
    step = from_onnx(saved_at(tmp_path, whole))
    assert set(step.predecessors("y.bwd")) - {"loss.bwd"} == kept


def test_a_split_is_differentiated_by_joining_the_gradients_of_all_its_outputs(tmp_path: Path) -> None:
    nodes = [
        make("Gemm", "x w", "g", name="fc"),
        make("Split", "g", "a b", axis=1, name="split"),
        make("Relu", "a", "r", name="relu"),
        make("Mul", "r b", "y", name="gate"),
    ]
    graph = from_onnx(saved_at(tmp_path, model(nodes, initializers=[weights("w", 3, 4)])))
    assert graph.nodes["split"]["shape"] == ((2, 2), (2, 2))
    assert set(graph.predecessors("split.bwd")) == {"relu.bwd", "gate.bwd"}
    assert graph.nodes["split.bwd"]["nbytes"] == 2 * 4 * 4


def test_an_interpolation_keeps_nothing_for_its_backward(tmp_path: Path) -> None:
    scales = helper.make_tensor("scales", TensorProto.FLOAT, [4], [1.0, 1.0, 2.0, 2.0])
    nodes = [make("Mul", "x w", "m", name="m"), make("Resize", "m _ scales", "y", mode="linear", name="up")]
    graph = from_onnx(saved_at(tmp_path, model(nodes, shape=[1, 2, 3, 3], initializers=[weights("w", 1), scales])))
    assert graph.nodes["up"]["shape"] == (1, 2, 6, 6)
    assert set(graph.predecessors("up.bwd")) == {"loss.bwd"}


def test_no_gradient_flows_through_comparisons_and_steps(tmp_path: Path) -> None:
    for op in ("Greater", "Less", "Equal", "GreaterOrEqual", "LessOrEqual"):
        nodes = [*GEMM, make(op, "y y", "z", name="compare")]
        path = saved_at(tmp_path, model(nodes, initializers=[weights("w", 3, 4)], outputs=("z",)))
        with pytest.raises(GraphError, match="nothing to differentiate"):
            differentiate(from_onnx(path, training=False))
