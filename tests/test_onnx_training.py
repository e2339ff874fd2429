"""Training graphs that onnxruntime's tools wrote: counts of data/graphs/README.md, and shapes that the tool stored."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from naive import keep_all
from offenders import every
from programs import elements, saved
from test_onnx import make, manifest, saved_at

from planner.api import optimize
from planner.errors import GraphError, InfeasibleBudget
from planner.lowering.onnx.importer import from_onnx
from planner.lowering.onnx.model_file import infer_sizes, read_model
from planner.lowering.schema import lower
from planner.memory import MemoryModel
from planner.simulator import simulate

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper  # noqa: E402

FILES = ("squeezenet", "vgg19", "resnet50", "inception_v2")
#: data/graphs/README.md: nodes, forward nodes, *Grad ops, trainables, forward tensors read by backward, their elements.
README = {
    "squeezenet": (194, 67, 57, 1_235_496, 49, 4_213_924),
    "vgg19": (139, 46, 42, 143_667_240, 33, 17_938_408),
    "resnet50": (548, 176, 158, 25_557_032, 212, 21_180_264),
    "inception_v2": (1930, 647, 221, 11_214_888, 588, 14_067_500),
}
ACTIVATIONS = MemoryModel("activations")


def training(shared: Path, name: str) -> Path:
    return shared / "data" / "graphs" / "onnx_training" / f"{name}_training.onnx"


def ops(graph: nx.DiGraph, op: str) -> list[dict[str, Any]]:
    return [attributes for _, attributes in graph.nodes(data=True) if attributes.get("op") == op]


# --- the four real files


@every("name", FILES)
def test_counts_are_those_of_the_manifest_and_of_the_readme(shared: Path, name: str) -> None:
    expected = manifest(shared)[f"onnx_training/{name}_training.onnx"]
    source = from_onnx(training(shared, name)).graph["source"]
    keys = ("nodes", "forward_nodes", "grad_ops", "trainable", "saved_tensors", "saved_elems")
    assert tuple(source[key] for key in keys) == tuple(expected[key] for key in keys) == README[name]


@every("name", FILES)
def test_backward_reads_in_the_dag_what_it_reads_in_the_file(shared: Path, name: str) -> None:
    graph = from_onnx(training(shared, name))
    assert (len(saved(graph)), sum(elements(graph, *value) for value in saved(graph))) == README[name][4:]


@every("name", FILES)
def test_each_file_is_a_legal_step_in_its_own_order(shared: Path, name: str) -> None:
    graph = from_onnx(training(shared, name))
    program = lower(graph)
    assert [op.name for op in program.ops] == list(graph)
    assert not program.dead
    trace = simulate(program, keep_all(program), memory=MemoryModel("total"))
    without = simulate(program, keep_all(program), memory=ACTIVATIONS)
    residents = sum(a["nbytes"] for _, a in graph.nodes(data=True) if a.get("kind", "op") != "op")
    assert trace.peak_bytes - without.peak_bytes == residents


@every("name", FILES)
def test_every_value_has_the_shape_the_tool_stored_for_it(shared: Path, name: str) -> None:
    """Types stored in the file are not read by the importer, so they check its rules and onnx's inference alike."""
    model = read_model(training(shared, name))
    sizes = infer_sizes(model, batch=None, dims=None)
    stored = 0
    for value in (*model.graph.value_info, *model.graph.output):
        tensor = value.type.tensor_type
        found = sizes[value.name]
        assert found is not None
        if tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim):
            assert found.shape == tuple(dim.dim_value for dim in tensor.shape.dim), value.name
            stored += 1
    assert stored > 0.6 * len(model.graph.value_info)  # presentation.md 1.4: 60-82 % of outputs
    assert all(sizes.get(name) is not None for node in model.graph.node for name in node.output if name)


@every("name", FILES)
def test_a_gradient_has_the_shape_of_its_parameter_and_its_buffer_is_updated_in_place(shared: Path, name: str) -> None:
    graph = from_onnx(training(shared, name))
    parameters = {n: elements(graph, n) for n, kind in graph.nodes(data="kind") if kind == "parameter"}
    assert sum(parameters.values()) == README[name][3]
    accumulators = [n for n, op in graph.nodes(data="op") if op == "InPlaceAccumulatorV2"]
    assert len(accumulators) == len(parameters)
    for accumulator in accumulators:
        assert graph.nodes[accumulator]["updates"] == ((0, 1),)
        assert graph.nodes[accumulator]["recomputable"] is False
        edges = graph.in_edges(accumulator, data=True)
        reads = {at: (u, output) for u, _, edge in edges for output, at in zip(*edge.values(), strict=True)}
        buffer = reads[0][0]
        assert graph.nodes[buffer]["kind"] == "state"
        parameter = buffer.removesuffix("_grad.accumulation.buffer")
        gradient = graph.nodes[reads[1][0]]
        shape = gradient["shape"][reads[1][1]] if isinstance(gradient["nbytes"], tuple) else gradient["shape"]
        assert shape == graph.nodes[parameter]["shape"] == graph.nodes[buffer]["shape"]
        assert graph.nodes[accumulator]["dtype"] == ("bool", "float32")


@every("name", FILES)
def test_phases_follow_the_first_gradient_op(shared: Path, name: str) -> None:
    graph = from_onnx(training(shared, name))
    phases = [(phase, graph.nodes[n]["op"]) for n, phase in graph.nodes(data="phase") if phase is not None]
    assert [op for phase, op in phases if phase == "loss"] == ["SoftmaxCrossEntropyLoss"]
    assert phases.index(("loss", "SoftmaxCrossEntropyLoss")) < [phase for phase, _ in phases].index("backward")
    assert sum(1 for phase, op in phases if phase != "backward" and op != "GeneratorState") == README[name][1]
    assert not [op for phase, op in phases if phase != "backward" and op.endswith("Grad")]
    assert {graph.nodes[n]["kind"] for n in ("labels", "lazy_reset_grad")} == {"input"}
    assert graph.nodes["labels"]["dtype"] == "int64"


def test_resnet50_saves_what_was_counted_by_hand(shared: Path) -> None:
    """data/graphs/README.md: by kind of value, with pool indices of 8 bytes each."""
    graph = from_onnx(training(shared, "resnet50"))
    found: dict[tuple[str, str], int] = {}
    for node, output in saved(graph):
        attributes = graph.nodes[node]
        dtype = attributes["dtype"][output] if isinstance(attributes["nbytes"], tuple) else attributes["dtype"]
        key = (attributes["op"], dtype)
        found[key] = found.get(key, 0) + elements(graph, node, output)
    assert found[("Conv", "float32")] == 11_113_984
    # One value for each ReLU: its output, or, where nothing else keeps that, its input of the same size (the first and
    # the last).
    first = 64 * 112 * 112
    assert found[("Relu", "float32")] + found[("Add", "float32")] + first == 9_608_704
    assert found[("BatchNormInternal", "float32")] == 53_120 + first
    assert found[("MaxPool", "float32")] == found[("MaxPool", "int64")] == 200_704
    assert found[("Reshape", "float32")] == 2_048
    assert found[("SoftmaxCrossEntropyLoss", "float32")] == 1_000


def test_vgg19_masks_take_one_byte_and_indices_eight(shared: Path) -> None:
    graph = from_onnx(training(shared, "vgg19"))
    masks = [a["nbytes"][1] for a in ops(graph, "Dropout")]
    indices = [a["nbytes"][1] for a in ops(graph, "MaxPool")]
    assert (sum(masks), sum(indices)) == (8_192, 8 * 1_530_368)
    assert len(ops(graph, "GeneratorState")) == 2


def test_dead_running_statistics_are_pruned_and_the_running_ones_are_states(shared: Path) -> None:
    graph = from_onnx(training(shared, "resnet50"))
    assert len(graph.graph["pruned"]) == 106  # presentation.md 1.3: dead outputs of 53 normalizations
    normalizations = [n for n, op in graph.nodes(data="op") if op == "BatchNormInternal"]
    statistics = {u for n in normalizations for u in graph.predecessors(n) if re.search("_r(m|iv)_0$", u)}
    assert sum(elements(graph, n) for n in statistics) == 53_120
    assert {graph.nodes[n]["kind"] for n in statistics} == {"state"}


def test_gradients_of_convolutions_cost_twice_the_forward_but_for_the_image(shared: Path) -> None:
    graph = from_onnx(training(shared, "resnet50"))
    forward = sum(a["flops"] for a in ops(graph, "Conv"))
    multiply_adds = 4_089_184_256 - 2_048_000  # golden.md: ResNet-50 v1.5 without its classifier
    assert forward == 2 * multiply_adds
    stem = next(a["flops"] for a in ops(graph, "Conv"))
    assert sum(a["flops"] for a in ops(graph, "ConvGrad")) == 2 * forward - stem


@pytest.mark.parametrize("name", FILES)
def test_a_plan_verifies_at_each_budget_or_at_the_least_that_works(shared: Path, name: str) -> None:
    program = lower(from_onnx(training(shared, name)))
    for budget in ("80%", "60%"):
        least = None
        try:
            plan = optimize(program, budget, memory=ACTIVATIONS)
        except InfeasibleBudget as error:
            least = error.minimum
        if least is not None:
            plan = optimize(program, least, memory=ACTIVATIONS)
        assert plan.budget is not None
        assert plan.verify().peak_bytes <= plan.report.plan.arena_bytes <= plan.budget
    assert plan.execute(scale=256)


def test_a_batch_scales_what_is_fed_and_leaves_what_is_held(shared: Path) -> None:
    once, twice = (from_onnx(training(shared, "squeezenet"), batch=batch) for batch in (1, 2))
    # int64: the two input lengths of each of 8 concatenations, and the shape before the global pool
    lengths = 8 * 2 + 4
    assert twice.graph["source"]["saved_elems"] == 2 * (README["squeezenet"][5] - lengths) + lengths
    assert twice.graph["source"]["trainable"] == README["squeezenet"][3]
    for name, attributes in once.nodes(data=True):
        if attributes.get("kind", "op") != "op":
            factor = 2 if name in ("data_0", "labels") else 1
            assert twice.nodes[name]["nbytes"] == factor * attributes["nbytes"], name


@every("name", ["vgg19", "resnet50", "inception_v2"])
def test_a_batch_frozen_in_a_step_is_an_error_that_names_the_reshape(shared: Path, name: str) -> None:
    with pytest.raises(GraphError, match=r"node 'n\d+' \(Reshape\) has batch 1 frozen .* batch=2 cannot pass"):
        from_onnx(training(shared, name), batch=2)


def test_a_step_is_no_inference_graph(shared: Path) -> None:
    with pytest.raises(GraphError, match=r"squeezenet_training.onnx: holds its own backward pass"):
        from_onnx(training(shared, "squeezenet"), training=False)


# --- small steps written here


def step(nodes: list[Any], inputs: dict[str, tuple[int, ...]], outputs: tuple[str, ...]) -> Any:
    fed = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    graph = helper.make_graph(nodes, "g", fed, [helper.make_empty_tensor_value_info(name) for name in outputs])
    opsets = [helper.make_opsetid("", 14), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def gradient(op: str, reads: list[str], makes: list[str], **attributes: Any) -> Any:
    return make(op, reads, makes, name=f"{op}.node", domain="com.microsoft", **attributes)


def test_a_bias_gradient_has_the_shape_of_the_bias(tmp_path: Path) -> None:
    nodes = [
        make("Conv", "x w b", "y", name="conv"),
        gradient("ConvGrad", ["y", "x", "w"], ["x_grad", "w_grad", "b_grad"]),
    ]
    path = saved_at(
        tmp_path, step(nodes, {"x": (2, 3, 8, 8), "w": (5, 3, 3, 3), "b": (5,)}, ("x_grad", "w_grad", "b_grad"))
    )
    node = from_onnx(path).nodes["ConvGrad.node"]
    assert node["shape"] == ((2, 3, 8, 8), (5, 3, 3, 3), (5,))
    forward = 2 * math.prod((2, 5, 6, 6)) * 27
    assert node["flops"] == 2 * forward + math.prod((2, 5, 6, 6))


def test_a_value_that_no_rule_sizes_is_named_with_its_node(tmp_path: Path) -> None:
    nodes = [make("Relu", "x", "y", name="relu"), gradient("MaxPoolGrad", ["y", "x"], ["x_grad"])]
    with pytest.raises(
        GraphError, match=r"node 'MaxPoolGrad.node' \(MaxPoolGrad\): no size could be inferred for value 'x_grad'"
    ) as error:
        from_onnx(saved_at(tmp_path, step(nodes, {"x": (2, 3)}, ("x_grad",))))
    assert "\n" not in str(error.value)


def test_an_unknown_gradient_op_is_refused_by_name(tmp_path: Path) -> None:
    nodes = [make("Relu", "x", "y", name="relu"), gradient("FastGeluGrad", ["y", "x"], ["x_grad"])]
    with pytest.raises(GraphError, match=r"no rule for node 'FastGeluGrad.node' \(com.microsoft.FastGeluGrad\)"):
        from_onnx(saved_at(tmp_path, step(nodes, {"x": (2, 3)}, ("x_grad",))))


@every(("op", "needed"), [("ReluGrad", 2), ("ConvGrad", 3), ("InPlaceAccumulatorV2", 2)])
def test_a_node_with_too_few_inputs_is_refused(tmp_path: Path, op: str, needed: int) -> None:
    nodes = [make("Relu", "x", "y"), gradient("ReluGrad", ["y", "y"], ["z"]), gradient(op, ["z"], ["x_grad"])]
    with pytest.raises(GraphError, match=rf"'{op}.node' \({op}\) has 1 inputs, and its op needs {needed}"):
        from_onnx(saved_at(tmp_path, step(nodes, {"x": (2, 3)}, ("x_grad",))))


def test_a_relu_gradient_may_overwrite_the_gradient_it_reads_and_nothing_else(tmp_path: Path) -> None:
    nodes = [make("Relu", "x", "y", name="relu"), gradient("ReluGrad", ["y", "y"], ["x_grad"])]
    graph = from_onnx(saved_at(tmp_path, step(nodes, {"x": (2, 3)}, ("x_grad",))))
    assert graph.nodes["ReluGrad.node"]["inplace"] == ((0, 0),)
    assert json.dumps(graph.graph["source"]["pruned"]) == "[]"
