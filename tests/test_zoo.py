"""Zoo models: sizes that others measured, structure that the literature states."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from cases import C1, chain
from naive import keep_all
from offenders import every
from programs import elements, saved

import planner
from planner import zoo
from planner.errors import GraphError
from planner.lowering.dag import as_dag
from planner.lowering.schema import lower
from planner.lowering.step import with_step
from planner.simulator import simulate
from planner.training_step import TrainingStep


def of_kind(graph: nx.DiGraph, kind: str) -> int:
    return sum(elements(graph, n) for n, k in graph.nodes(data="kind") if k == kind)


def of_op(graph: nx.DiGraph, *ops: str) -> int:
    """Elements of the first outputs of forward ops of these types."""
    return sum(elements(graph, n) for n, a in graph.nodes(data=True) if a.get("op") in ops and a["phase"] == "forward")


def golden(shared: Path, row: str) -> list[int]:
    """Numbers with a thousands comma in the value column of a row of golden.md."""
    line = next(line for line in (shared / "golden.md").read_text().splitlines() if line.startswith(f"| {row}"))
    return [int(number.replace(",", "")) for number in re.findall(r"\d{1,3}(?:,\d{3})+", line.split("|")[2])]


LAYERS = ("Conv", "BatchNormalization", "Relu", "Add", "MaxPool", "GlobalAveragePool", "Gemm")


def test_resnet50_has_the_golden_sizes(shared: Path) -> None:
    graph = zoo.resnet(50, batch=1)
    residents = golden(shared, "ResNet-50 params; BN running stats")[:2]
    assert [of_kind(graph, "parameter"), of_kind(graph, "state")] == residents
    conv = golden(shared, "ResNet-50 v1.5 conv = BN outputs")[0]
    assert of_op(graph, "Conv") == of_op(graph, "BatchNormalization") == conv
    parts = [of_op(graph, *LAYERS), *(of_op(graph, op) for op in ("Conv", "BatchNormalization", "Relu", "Add"))]
    ends = of_op(graph, "MaxPool", "GlobalAveragePool", "Gemm")
    assert [*parts, ends] == golden(shared, "ResNet-50 v1.5 all 174 op outputs")
    assert sum(1 for _, a in graph.nodes(data=True) if a.get("op") in LAYERS and a["phase"] == "forward") == 174


@every(
    ("depth", "params", "outputs", "count"), [(101, 44_549_160, 56_325_608, 344), (152, 60_192_808, 79_506_920, 514)]
)
def test_resnet_101_and_152_have_the_golden_sizes(
    shared: Path, depth: int, params: int, outputs: int, count: int
) -> None:
    graph = zoo.resnet(depth, batch=1)
    text = (shared / "golden.md").read_text()
    assert f"{params:,}" in text
    assert f"{outputs:,}" in text
    assert (of_kind(graph, "parameter"), of_op(graph, *LAYERS)) == (params, outputs)
    assert sum(1 for _, a in graph.nodes(data=True) if a.get("op") in LAYERS and a["phase"] == "forward") == count


@every(("depth", "parameters", "conv"), [(18, 11_689_512, 2_308_096 + 175_616), (34, 21_797_672, 3_562_496 + 175_616)])
def test_resnets_of_basic_blocks_have_the_parameters_of_torchvision(depth: int, parameters: int, conv: int) -> None:
    """Outputs by hand: stem 64 * 112**2; then 2 convolutions a block and 3 projections.

    A convolution of stages 1 to 4 makes 200,704, 100,352, 50,176 and 25,088 elements; so does the stage's projection.
    With 2, 2, 2, 2 blocks: 802,816 + 4 * 376,320 = 2,308,096; with 3, 4, 6, 3: 802,816 + 6 * 200,704 + 8 * 100,352 +
    12 * 50,176 + 6 * 25,088 = 3,562,496. Three projections: 175,616.
    """
    graph = zoo.resnet(depth, batch=1, training=False)
    assert of_kind(graph, "parameter") == parameters
    assert of_op(graph, "Conv") == conv
    convolutions = [n for n, a in graph.nodes(data=True) if a.get("op") in ("Conv", "Gemm") and ".shortcut" not in n]
    assert len(convolutions) == depth


def test_resnet152_parts_have_the_golden_sizes(shared: Path) -> None:
    graph = zoo.resnet(152, batch=1)
    assert of_kind(graph, "state") == golden(shared, "ResNet-152 params; BN stats")[1]
    conv, relu, add, total = golden(shared, "ResNet-152 v1.5 conv / ReLU / add")
    assert [of_op(graph, "Conv"), of_op(graph, "Relu"), of_op(graph, "Add")] == [conv, relu, add]
    assert of_op(graph, *LAYERS) == total


def test_multiply_adds_are_the_golden_ones(shared: Path) -> None:
    expected = golden(shared, "multiply-adds ResNet-50 / 101 / 152")
    for depth, multiply_adds in zip((50, 101, 152), expected, strict=True):
        graph = zoo.resnet(depth, batch=1, training=False)
        products = [a["flops"] for _, a in graph.nodes(data=True) if a.get("op") in ("Conv", "Gemm")]
        assert sum(products) == 2 * multiply_adds


def test_resnet50_backward_reads_the_212_tensors_that_onnxruntime_reads(shared: Path) -> None:
    graph = zoo.resnet(50, batch=1)
    assert golden(shared, "ResNet-50 training: forward tensors read by backward") == [21_180_264]
    assert len(saved(graph)) == 212
    assert sum(elements(graph, *value) for value in saved(graph)) == 21_180_264


def test_resnet1001_is_the_pinned_one_and_is_built_in_seconds() -> None:
    start = time.perf_counter()
    graph = zoo.resnet(1001, batch=32)
    seconds = time.perf_counter() - start
    assert of_kind(graph, "parameter") == 376_355_880  # design.md 5
    # Three convolutions a block, the stem's and the classifier; projections are not counted.
    convolutions = [n for n, a in graph.nodes(data=True) if a.get("op") in ("Conv", "Gemm") and ".shortcut" not in n]
    assert len(convolutions) == 1001
    assert seconds < 10


def test_activations_scale_with_the_batch_and_parameters_do_not() -> None:
    one, eight = zoo.resnet(50, batch=1), zoo.resnet(50, batch=8)
    assert of_op(eight, *LAYERS) == 8 * of_op(one, *LAYERS)
    assert of_kind(eight, "parameter") == of_kind(one, "parameter")


def test_replaying_a_batch_norm_leaves_the_running_statistics_alone() -> None:
    """cases.md C9: 0.19 instead of 0.1 means that a recomputed batch norm updated them twice."""
    graph = zoo.resnet((1,), batch=2, image=32)
    assert graph.nodes["stem.bn"].get("updates", ()) == ()
    stats = graph.nodes["stem.bn.stats"]
    assert (stats["updates"], stats["recomputable"], stats["phase"]) == (((0, 0), (1, 1)), False, "forward")


def test_inference_has_one_output_an_op_and_no_labels() -> None:
    graph = zoo.resnet(50, batch=1, training=False)
    assert all(isinstance(nbytes, int) for _, nbytes in graph.nodes(data="nbytes"))
    assert "labels" not in graph
    assert lower(graph).outputs == ("head.fc",)
    assert {phase for _, phase in graph.nodes(data="phase")} <= {None, "forward"}


def test_layers_name_the_block_they_are_in() -> None:
    graph = zoo.resnet(50, batch=1)
    for node in ("stage2.block3.conv1", "stage2.block3.conv1.bwd", "stage2.block3.bn1.stats"):
        assert graph.nodes[node]["module"] == "stage2.block3"


def test_explicit_stages_are_the_same_network() -> None:
    assert lower(zoo.resnet((3, 4, 6, 3), batch=1)).ops == lower(zoo.resnet(50, batch=1)).ops
    assert lower(zoo.resnet(50, batch=np.int64(1))).ops == lower(zoo.resnet(50, batch=1)).ops


# --- chain


def test_chain_of_8_is_case_c1() -> None:
    graph = zoo.chain(8)
    case = C1.digraph()
    assert [n for n in graph if n != "x"] == [n for n in case if n != "x"]
    assert set(graph.edges()) == set(case.edges())
    program = lower(graph)
    trace = simulate(program, keep_all(program))
    assert (trace.peak_bytes, trace.cost) == (9, 17)  # cases.md C1: from 9 on, 17
    assert program.outputs == ("g0",)


def test_chain_text_of_any_length_agrees() -> None:
    for n in (1, 2, 30):
        words = [word.partition(":")[0] for word in chain(n).split()]
        graph = zoo.chain(n)
        wired = [f"{node}<{','.join(u for u, _ in graph.in_edges(node))}" for node in graph if node != "x"]
        assert wired == words


@every(
    ("kept", "expected"),
    [(("in",), {"g2", "f1"}), (("out",), {"g2", "f2"}), (("in", "out"), {"g2", "f1", "f2"}), ("out", {"g2", "f2"})],
)
def test_chain_backward_reads_what_is_asked(kept: Any, expected: set[str]) -> None:
    assert set(zoo.chain(3, reads=kept).predecessors("g1")) == expected


def test_chain_sizes_and_costs_are_uniform() -> None:
    graph = zoo.chain(3, nbytes=5, cost=2.5, input_nbytes=7)
    assert graph.nodes["x"]["nbytes"] == 7
    assert {(a["nbytes"], a["cost"]) for n, a in graph.nodes(data=True) if n != "x"} == {(5, 2.5)}
    assert [graph.nodes[n]["phase"] for n in ("f3", "g3", "g2", "g0")] == ["forward", "loss", "backward", "backward"]


# --- the training step

SMALL: list[tuple[str, dict[str, Any]]] = [
    ("resnet:1-1", {"image": 32}), ("vgg:16", {"image": 32, "classes": 3}), ("squeezenet", {"image": 32}),
    ("densenet:1-1", {"image": 32}), ("unet:1", {"image": 32, "channels": 2}),
    ("gpt:1", {"tokens": 4, "hidden": 8, "heads": 2, "vocabulary": 11, "dropout": 0.1, "dtype": "bfloat16"}),
    ("vit:1", {"image": 32, "hidden": 8, "heads": 2}), ("mlp:4-3-2", {}), ("lstm:2", {"layers": 1, "hidden": 4}),
]  # fmt: skip


@every(("spec", "options"), SMALL)
def test_a_model_takes_the_step_that_its_forward_pass_is_given_elsewhere(spec: str, options: dict[str, Any]) -> None:
    forward = zoo.build(spec, batch=2, training="forward", **options)
    for step in (TrainingStep("adam", update="fused"), TrainingStep("none"), TrainingStep("momentum", micro_batches=3)):
        own = lower(zoo.build(spec, batch=2, step=step, **options))
        # A DAG numbers the values of an op anew: those of a copy are "loss@1:0" in it, not "loss:0@1".
        assert own.ops == lower(as_dag(with_step(forward, step))).ops, (spec, step)


def test_a_step_without_an_optimizer_takes_the_one_of_the_model() -> None:
    step = TrainingStep(gradients="zeroed")
    for name, stated in (
        ("adam", TrainingStep("adam", gradients="zeroed")),
        (None, TrainingStep("none", gradients="zeroed")),
    ):
        found = lower(zoo.mlp([4, 2], batch=1, optimizer=name, step=step))
        assert found.ops == lower(zoo.mlp([4, 2], batch=1, step=stated)).ops
    with pytest.raises(GraphError, match="mlp:4-2: training is False, which has no step; leave out training or step"):
        zoo.mlp([4, 2], batch=1, training=False, step=step)


# --- build


def test_build_takes_the_names_of_the_command_line() -> None:
    assert lower(zoo.build("chain:100")).ops == lower(zoo.chain(100)).ops
    assert lower(zoo.build("resnet:1-2", batch=1, image=32)).ops == lower(zoo.resnet((1, 2), batch=1, image=32)).ops
    assert len(zoo.build("resnet:50", batch=1, training=False)) == len(zoo.resnet(50, batch=1, training=False))


def test_every_model_says_what_it_is_and_takes() -> None:
    for model in zoo.MODELS.values():
        assert model.description
        assert set(model.required) <= set(model.options)


@every(("spec", "options", "message"), [
    ("rsnet50", {"batch": 1}, "unknown model 'rsnet50'; did you mean 'resnet50'"),
    ("alexnet", {"batch": 1}, "unknown model 'alexnet'; `planner zoo` lists"),
    ("resnt:50", {"batch": 1}, "unknown model 'resnt:50'; did you mean 'resnet:50'"),
    ("bert", {"batch": 1}, "'bert' needs a number of blocks, e.g. bert:12, or bert-base, .*bert-large"),
    ("resnet", {"batch": 1}, "'resnet' needs a depth"), ("resnet:", {"batch": 1}, "'resnet' needs a depth"),
    ("resnet:3-x", {"batch": 1}, "'resnet' needs a depth"),
    ("resnet:20", {"batch": 1}, "no depth 20; known: 18, 34, 50, 101, 152, 1001"),
    ("resnet:18", {"batch": 1, "stride_on_1x1": True}, "leave stride_on_1x1 out"),
    ("resnet:3-0-1", {"batch": 1}, "neither a depth"), ("resnet:50", {}, "'resnet' needs the option 'batch'"),
    ("resnet:50", {"batch": 0}, "batch is 0, expected an int >= 1"), ("resnet:50", {"batch": 2.5}, "batch is 2.5"),
    ("resnet:50", {"batch": True}, "batch is True"), ("resnet:50", {"batch": 1, "image": -3}, "image is -3"),
    ("resnet:50", {"batch": 1, "reads": "in"}, "'resnet' takes no option 'reads'; it takes batch"),
    ("resnet:50", {"batch": 1, "device": "tpu"}, "unknown device 'tpu'"),
    ("resnet:50", {"batch": 1, "optimizer": "lion"}, "unknown optimizer 'lion'"),
    ("resnet:50", {"batch": 1, "optimizer": "lion", "training": False}, "unknown optimizer 'lion'"),
    ("chain:0", {}, "n is 0, expected an int >= 1"), ("chain:1.5", {}, "'chain' needs a number of layers"),
    ("chain:3", {"reads": ("side",)}, "reads is .*expected"), ("chain:3", {"reads": ()}, "reads is .*expected"),
    ("chain:3", {"cost": float("nan")}, "cost is nan"), ("chain:3", {"nbytes": -1}, "nbytes is -1"),
    ("chain:3", {"batch": 1}, "'chain' takes no option 'batch'"),
    ("vgg:11", {"batch": 1}, "no depth 11; known: 16, 19"),
    ("vgg:16", {"batch": 1, "image": 16}, "window does not fit"),
    ("squeezenet", {"batch": 1, "image": 16}, "window does not fit"),
    ("squeezenet:11", {"batch": 1}, "needs no argument"), ("densenet:120", {"batch": 1}, "no depth 120; known: 121"),
    ("densenet:0-1", {"batch": 1}, "neither a depth"), ("unet:4", {"batch": 1, "image": 571}, "must be even"),
    ("unet:9", {"batch": 1}, "expected at most 8"),
    ("gpt:2", {"batch": 1, "hidden": 10, "heads": 3}, "no multiple of 3 heads"),
    ("gpt:2", {"batch": 1, "dropout": 1.0}, "dropout is 1.0"),
    ("gpt:2", {"batch": 1, "dtype": "int8"}, "unknown dtype 'int8'; known: float32"),
    ("gpt:2", {"batch": 1, "tokens": 10, "loss_chunks": 3}, "10 tokens do not divide into 3"),
    ("gpt:2", {"batch": 1, "positions": 1000}, "1024 tokens are more than 1000 positions"),
    ("gpt:2", {"batch": 1, "activation": "relu"}, "unknown activation 'relu'; known: gelu, gelu_new"),
    ("bert:2", {"batch": 1, "tokens": 513}, "513 tokens are more than 512 positions"),
    ("bert:2", {"batch": 1, "classes": 0}, "bert: classes is 0"),
    ("llama:2", {"batch": 1, "kv_heads": 5}, "32 heads are no multiple of 5 kv_heads"),
    ("llama:2", {"batch": 1, "hidden": 100}, "hidden is 100, no multiple of 32 heads; give head_width"),
    ("llama:2", {"batch": 1, "head_width": 3}, "head_width is 3; rotary positions turn pairs"),
    ("vit:2", {"batch": 1, "image": 8}, "window does not fit"),
    ("vit:2", {"batch": 1, "optimizer": "lion"}, "unknown optimizer"), ("mlp:5", {"batch": 1}, "at least two"),
    ("mlp:5-6", {"batch": 1, "tied": True}, "need one width"), ("mlp:5-0", {"batch": 1}, "width is 0"),
    ("inception_bn:3", {}, "'inception_bn' needs no argument; got 'inception_bn:3'"),
    ("inception_bn", {"batch": 0}, "inception_bn: batch is 0, expected an int >= 1"),
    ("inception_bn", {"image": 9}, "'pool2': a 3x3 window does not fit an image of 2x2"),
    ("inception_bn", {"device": "tpu"}, "unknown device 'tpu'"),
    ("mxnet_resnet", {}, "'mxnet_resnet' needs blocks per stage"),
    ("mxnet_resnet:3-x", {}, "'mxnet_resnet' needs blocks per stage"),
    ("mxnet_resnet:3-0", {}, "mxnet_resnet: stages is 0"),
    ("mxnet_resnet:1", {"image": 3}, "'pooling0': a 3x3 window does not fit an image of 2x2"),
    ("mxnet_resnet:1", {"optimizer": "sgd"}, "takes no option 'optimizer'"),
    ("mxnet_lstm:0", {}, "mxnet_lstm: steps is 0"),
    ("mxnet_lstm:two", {}, "'mxnet_lstm' needs a number of time steps"),
    ("mxnet_lstm:2", {"hidden": 1.5}, "mxnet_lstm: hidden is 1.5"), ("lstm:2", {}, "'lstm' needs the option 'batch'"),
    ("lstm:0", {"batch": 1}, "lstm: steps is 0"), ("lstm:2", {"batch": 1, "features": 0}, "lstm: features is 0"),
    ("lstm:2", {"batch": 1, "optimizer": "lion"}, "unknown optimizer 'lion'"),
    ("lstm:2", {"batch": 1, "device": "tpu"}, "unknown device 'tpu'"),
])  # fmt: skip
def test_bad_specs_name_what_is_accepted(spec: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        zoo.build(spec, **options)


# --- names that people know models by


@every(("alias", "parameters", "small"), [
    ("resnet18", 11_689_512, {}), ("resnet34", 21_797_672, {}), ("resnet50", 25_557_032, {}),
    ("resnet101", 44_549_160, {}), ("resnet152", 60_192_808, {}), ("vgg16", 138_357_544, {}),
    ("vgg19", 143_667_240, {}), ("densenet121", 7_978_856, {}), ("densenet169", 14_149_480, {}),
    ("densenet201", 20_013_928, {}), ("squeezenet1_1", 1_235_496, {}), ("unet", 31_030_658, {}),
    ("gpt2", 124_439_808, {"tokens": 8}), ("gpt2-medium", 354_823_168, {"tokens": 8}),
    ("gpt2-large", 774_030_080, {"tokens": 8}), ("gpt2-xl", 1_557_611_200, {"tokens": 8}),
    ("bert-base", 109_482_240, {"tokens": 8}), ("bert-base-uncased", 109_482_240, {"tokens": 8}),
    ("bert-large", 335_141_888, {"tokens": 8}), ("bert-large-uncased", 335_141_888, {"tokens": 8}),
    ("vit_b_16", 86_567_656, {}), ("vit_b_32", 88_224_232, {}), ("vit_l_16", 304_326_632, {}),
    ("vit_l_32", 306_535_400, {}), ("llama-3.2-1b", 1_235_814_400, {"tokens": 8}),
    ("llama-3.2-3b", 3_212_749_824, {"tokens": 8}), ("llama-3-8b", 8_030_261_248, {"tokens": 8}),
    ("llama-3.1-8b", 8_030_261_248, {"tokens": 8}), ("llama-2-7b", 6_738_415_616, {"tokens": 8}),
])  # fmt: skip
def test_an_alias_has_the_published_parameters(alias: str, parameters: int, small: dict[str, Any]) -> None:
    """torchvision's table of weights, Hugging Face's model cards, golden.md; U-Net as its own test counts it."""
    graph = zoo.build(alias, batch=1, training=False, **small)
    assert of_kind(graph, "parameter") == parameters
    assert graph.graph["name"] == alias


def test_every_alias_is_counted() -> None:
    rows = Path(__file__).read_text(encoding="utf-8")
    assert [alias for alias in zoo.ALIASES if f'("{alias}", ' not in rows] == []


@every("text", ["ResNet50", "resnet-50", "RESNET_50"])
def test_case_and_hyphens_of_a_name_do_not_matter(text: str) -> None:
    graph = zoo.build(text, batch=1, image=32)
    assert graph.graph["name"] == "resnet50"
    assert lower(graph).ops == lower(zoo.build("ResNet:50", batch=1, image=32)).ops
    assert lower(graph).ops == lower(zoo.resnet(50, batch=1, image=32)).ops


def test_an_option_wins_over_that_of_an_alias() -> None:
    sizes: dict[str, Any] = {"batch": 1, "tokens": 4, "hidden": 8, "heads": 2, "vocabulary": 11}
    drawn = [zoo.build("gpt2", **sizes, **further) for further in ({}, {"dropout": 0.0})]
    assert ["embed.dropout" in graph for graph in drawn] == [True, False]
    assert zoo.build("resnet50", batch=1, image=32, stride_on_1x1=True).graph["name"] == "resnet50 v1"


@every(("attribute", "said"), [
    ("resnet50", "write zoo.build('resnet50', batch=...)"),
    ("gpt2_medium", "write zoo.build('gpt2-medium', batch=...)"),
    ("rsnet50", "did you mean 'resnet50'?"), ("nothing_like_it", "`planner zoo` lists the models"),
])  # fmt: skip
def test_an_attribute_that_is_missing_says_what_to_write(attribute: str, said: str) -> None:
    with pytest.raises(AttributeError, match=re.escape(f"no attribute '{attribute}'; {said}")):
        getattr(zoo, attribute)


# --- where a path may stand


def test_every_verb_takes_a_name_with_a_batch_of_one_that_it_shows() -> None:
    plan = planner.optimize("mlp:8-4-2", "100%")
    assert plan.graph == lower(zoo.mlp([8, 4, 2], batch=1))
    assert plan.graph.name == "mlp:8-4-2, batch 1"
    assert "mlp:8-4-2, batch 1" in str(plan.report)
    assert planner.curve("chain:8", [9]).points[0].cost == 17.0  # case C1; a chain has no batch
    assert planner.estimate("MLP:8-4-2", optimizer="adam").graph == "mlp:8-4-2, batch 1"
    assert planner.simulate("mlp:8-4-2", plan.schedule).peak_bytes == plan.report.plan.peak_bytes
    assert planner.allocate("mlp:8-4-2", plan.schedule).arena_bytes >= plan.report.plan.peak_bytes


def test_a_model_comes_before_a_file_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("squeezenet", "mine"):
        Path(name).write_bytes(lower(zoo.chain(2)).to_json())
    assert lower(zoo.opened("squeezenet", image=64)).name == "squeezenet, batch 1"
    assert lower(zoo.opened(Path("squeezenet"))) == lower(zoo.opened("mine")) == lower(zoo.chain(2))


@every(("text", "message"), [
    ("rsnet50", "no file 'rsnet50', and no zoo model of that name; did you mean 'resnet50'?"),
    ("resnt:50", "no file 'resnt:50', and no zoo model of that name; did you mean 'resnet:50'?"),
    ("nosuch.onnx", "cannot read graph 'nosuch.onnx': No such file or directory"),
])  # fmt: skip
def test_a_text_that_names_nothing_says_what_is_near(text: str, message: str) -> None:
    for verb in (planner.optimize, planner.estimate, planner.curve):
        with pytest.raises(GraphError, match=re.escape(message)):
            verb(text)
