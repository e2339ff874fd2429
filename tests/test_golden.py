"""papers/golden.md is complete and honest; sizes, worked examples and options of `estimate` from nowhere else."""

from __future__ import annotations

import ast
import gzip
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import cases
import msgspec
import networkx as nx
import pytest
from offenders import every
from programs import elements
from test_zoo import of_kind, of_op
from test_zoo_mxnet import internal_bytes

import planner
from planner import zoo
from planner.cli import main as cli
from planner.footprint.estimate import estimate, rule_of_thumb
from planner.lowering.devices import DEVICES
from planner.memory import MemoryModel
from planner.mxnet.nnvm import nnvm
from planner.training_step import OPTIMIZERS

TESTS = Path(__file__).resolve().parent
TABLE = TESTS.parent / "papers" / "golden.md"
MIB = 2**20
ACTIVATIONS = MemoryModel("activations")


# --- the table


def rows() -> list[list[str]]:
    """Cells of all tables of the note; what holds a row is in its last cell."""
    lines = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    headings = {k - 1 for k, row in enumerate(cells) if set("".join(row)) == {"-"}}
    return [row for k, row in enumerate(cells) if k not in headings and k - 1 not in headings]


def functions_of(name: str) -> set[str]:
    """Test functions of a file."""
    body = ast.parse((TESTS / name).read_text(encoding="utf-8")).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef)}


NAMED = re.compile(r"`(test_\w+\.py)::(\w+)`")


def test_every_row_names_a_test_or_says_why_not() -> None:
    assert len(rows()) > 60
    for row in rows():
        beside = NAMED.sub("", row[-1]).strip(" ,;")
        reason = re.fullmatch(r"not (ours|here|yet): \w.{20,}", beside)
        assert reason if beside else NAMED.search(row[-1]), row


def test_every_test_the_table_names_exists() -> None:
    named = {match for row in rows() for match in NAMED.findall(row[-1])}
    assert len(named) > 30
    for name in {file for file, _ in named}:
        assert {test for file, test in named if file == name} <= functions_of(name), name


def numbers(text: str) -> set[str]:
    """Numbers with a thousands comma or a decimal point."""
    return set(re.findall(r"\d{1,3}(?:,\d{3})+|(?<![\w.])\d+\.\d+(?![\w.]*\d)", text))


def section(text: str, heading: str) -> str:
    """Lines from one heading to the next of the same level."""
    return re.split(r"\n## ", text[text.index(heading) + 3 :])[0]


def test_every_number_of_the_notes_is_in_the_table(shared: Path) -> None:
    table = numbers(TABLE.read_text(encoding="utf-8"))
    golden = numbers((shared / "golden.md").read_text())
    checked = section((shared / "original.md").read_text(), "## 4. Seeds")
    found = numbers(" ".join(cell for line in checked.splitlines() if line[:1] == "|" for cell in line.split("|")[1:3]))
    assert len(golden) > 70
    assert len(found) > 50
    assert golden - table == set()
    assert found - table == set()


# --- sizes of well-known models


def convolutions(graph: nx.DiGraph) -> list[str]:
    return [n for n, op in graph.nodes(data="op") if op == "Conv"]


def test_a_real_gpu_run_of_resnet50_makes_the_convolutions_of_v1_5(shared: Path) -> None:
    """PyTorch's execution trace of three steps at batch 32, shape by shape."""
    with gzip.open(shared / "data/graphs/chakra/resnet_et.json.gz") as file:
        nodes = json.load(file)["nodes"]
    traced = Counter(tuple(node["outputs"]["shapes"][0]) for node in nodes if node["name"] == "aten::conv2d")
    graph = zoo.resnet(50, batch=32, training=False)
    assert traced == Counter(graph.nodes[n]["shape"] for n in convolutions(graph) for _ in range(3))
    assert of_op(graph, "Conv") == 32 * 11_113_984 == 355_647_488


def test_the_stablehlo_text_of_resnet50_has_the_convolutions_of_v1(shared: Path) -> None:
    """IREE's test model, channels last."""
    text = (shared / "data/graphs/stablehlo/resnet50_v1_stablehlo.mlir").read_text()
    found = re.findall(r"stablehlo\.convolution\(.* -> tensor<(\d+)x(\d+)x(\d+)x(\d+)xf32>", text)
    graph = zoo.resnet(50, batch=1, stride_on_1x1=True, training=False)
    ours = Counter(graph.nodes[n]["shape"] for n in convolutions(graph))
    assert Counter((int(n), int(c), int(h), int(w)) for n, h, w, c in found) == ours
    assert sum(math.prod(shape) * count for shape, count in ours.items()) == 10_587_136


def test_keras_and_caffe_count_biases_and_statistics_that_ours_has_not() -> None:
    graph = zoo.resnet(50, batch=1, training=False)
    biases = sum(graph.nodes[n]["shape"][1] for n in convolutions(graph))
    # Keras: all convolutions have a bias
    assert of_kind(graph, "parameter") + biases + of_kind(graph, "state") == 25_636_712
    assert graph.nodes["stem.conv"]["shape"][1] == 64  # Caffe: only the first has, 25,557,096


def test_resnet50_and_vgg19_have_as_many_outputs_as_their_onnx_files() -> None:
    resnet = zoo.resnet(50, batch=1)
    layers = of_op(resnet, "Conv", "BatchNormalization", "Relu", "Add", "MaxPool", "GlobalAveragePool", "Gemm")
    # a reshape, and a softmax that is part of our loss
    assert layers + elements(resnet, "head.flatten") + 1_000 == 37_562_832
    vgg = zoo.vgg(19, batch=1)
    ops = ("Conv", "Relu", "MaxPool", "Gemm", "Flatten", "Dropout")
    assert 1 + sum(1 for _, a in vgg.nodes(data=True) if a.get("op") in ops and a["phase"] == "forward") == 46


def test_vgg16_takes_60_950_432_bytes_and_not_96_million() -> None:
    graph = zoo.vgg(16, batch=1, training=False)
    found = estimate(graph, rule="cs231n")
    assert found.rule is not None
    activations = found.rule.activations_bytes + found.rule.inputs_bytes
    assert activations == 60_950_432
    assert (round(activations / 1e6, 2), round(activations / MIB, 2)) == (60.95, 58.13)
    assert 4 * 24_000_000 == 96_000_000  # what the notes' own line says, where its rows add up to 15.2 million
    assert sum(elements(graph, n) for n in graph if n.endswith(".weight")) == 138_344_128
    assert round(found.rule.parameters_bytes / MIB, 1) == 527.8


# --- worked examples in circulation


def weight_layers(graph: nx.DiGraph) -> int:
    """Convolutions and fully connected layers on the longest way through."""
    depth: dict[str, int] = {}
    for node in nx.topological_sort(graph):
        before = max((depth[u] for u in graph.predecessors(node)), default=0)
        depth[node] = before + (graph.nodes[node].get("op") in ("Conv", "Gemm"))
    return max(depth.values())


@every(("name", "layers"), [("bvlc_alexnet", 8), ("vgg19", 19), ("inception_v1", 22), ("resnet50", 50)])
def test_depth_counts_layers_with_weights(shared: Path, name: str, layers: int) -> None:
    pytest.importorskip("onnx")
    path = shared / f"data/graphs/onnx_light/light_{name}.onnx"
    assert weight_layers(planner.from_onnx(path, training=False)) == layers


def test_the_zoo_has_the_depths_of_its_names() -> None:
    built = {"vgg:19": 19, "resnet:50": 50, "resnet:152": 152}
    assert {name: weight_layers(zoo.build(name, batch=1, training=False)) for name in built} == built


def test_the_parts_of_the_mnist_net_and_where_60_5_comes_from() -> None:
    parameters, activations = 813_802, 56_586
    assert 320 + 9_248 == 9_568  # with one input channel
    assert round(4 * parameters / MIB, 3) == 3.104
    assert round(4 * activations / MIB, 4) == 0.2159
    assert round(rule_of_thumb(parameters, activations, optimizer=None) / MIB, 3) == 3.320
    rounded = rule_of_thumb(parameters, 0) / MIB + 128 * 2 * 0.2
    assert round(rounded, 1) == 60.5
    assert round(rule_of_thumb(6_600_000, 0, optimizer=None) / MIB, 2) == 25.18


def test_where_742_34_comes_from() -> None:
    assert round(218.27 + 4.39 + 128 * 4.06, 2) == 742.34
    exact = rule_of_thumb(19_072_984, 532_752, batch=128, inputs=9_000)
    parts = [round(4 * count / MIB, 3) for count in (532_752, 3 * 19_072_984, 128 * 9_000)]
    assert parts == [2.032, 218.273, 4.395]
    assert round(4 * 128 * 532_752 / MIB, 3) == 260.133
    once = 4 * (3 * 19_072_984 + 128 * 9_000 + 532_752)
    assert round(once / MIB, 4) == 224.6998
    assert exact - once == 4 * (2 * 128 - 1) * 532_752
    assert exact // MIB == 742
    assert exact / 2**30 < 1 < exact / MIB  # 1024 squared is a MiB


def test_16_million_activations_are_64_decimal_megabytes_and_61_mib() -> None:
    assert rule_of_thumb(0, 16_000_000, optimizer=None) == 64_000_000
    assert round(64_000_000 / MIB, 1) == 61.0
    assert round(rule_of_thumb(0, 16_000_000, batch=32, optimizer=None) / 2**30, 3) == 1.907


def unfolded(graph: nx.DiGraph) -> tuple[float, float, float]:
    """GB: im2col of all convolutions, of those above 1x1, and input x K x K of all."""
    every = large = by_input = 0
    for node in convolutions(graph):
        kernel = math.prod(graph.nodes[f"{node}.weight"]["shape"][2:])
        image = next(u for u in graph.predecessors(node) if u != f"{node}.weight")
        batch, _, height, width = graph.nodes[node]["shape"]
        channels = graph.nodes[f"{node}.weight"]["shape"][1]
        matrix = 4 * batch * channels * kernel * height * width
        every += matrix
        large += matrix if kernel > 1 else 0
        by_input += 4 * elements(graph, image) * kernel
    return round(every / 1e9, 2), round(large / 1e9, 2), round(by_input / 1e9, 2)


def test_no_reading_of_lowering_gives_resnet50_7_5_gb() -> None:
    later = zoo.resnet(50, batch=32, training=False)
    first = zoo.resnet(50, batch=32, stride_on_1x1=True, training=False)
    assert unfolded(later) == (2.79, 1.83, 4.24)
    assert unfolded(first)[2] == 3.64
    assert [round(2 * by_input, 1) for by_input in (3.64, 4.24)] == [7.3, 8.5]
    found = estimate(later, lowering=True, rule="cs231n")
    assert found.rule is not None
    assert found.rule.lowering_bytes / 1e9 == pytest.approx(1.83, abs=0.005)  # a 1x1 kernel unfolds nothing


def test_half_the_precision_and_twice_the_batch_take_the_same_activations() -> None:
    size: dict[str, Any] = {"tokens": 16, "hidden": 16, "heads": 2, "vocabulary": 101}
    full, half, same = (
        estimate(zoo.gpt(2, batch=batch, dtype=dtype, **size)).components["activations"]
        for batch, dtype in ((2, "float32"), (4, "bfloat16"), (2, "bfloat16"))
    )
    # Statistics stay float32: mean and 1/std of five normalizations, and one number a head and row of two attentions.
    statistics = 4 * (5 * 2 + 2 * 2) * 2 * 16
    assert half == full + statistics
    assert same == (full + statistics) // 2
    assert rule_of_thumb(0, 1_000, batch=64, itemsize=2) == rule_of_thumb(0, 1_000, batch=32)


def test_resnet50_recomputed_by_the_original_saves_2_8_5_4_or_7_5_times_and_4_is_another_net() -> None:
    """What a factor is against: sharing, in-place alone, nothing; MXNet 1.5.1 and memonger at batch 32."""
    ratios = {}
    for stages in ((3, 4, 6, 3), (3, 8, 36, 3)):
        model = zoo.mxnet_resnet(stages, batch=32)
        graph = planner.lower(model)
        found = planner.optimize(graph, strategy="memonger", allocator="nnvm", memory=ACTIVATIONS)
        plan = found.report.plan.arena_bytes
        schedule = planner.optimize(graph, "100%", allocator=None, memory=ACTIVATIONS).schedule
        sharing, inplace = (
            planner.allocate(graph, schedule, allocator=partial(nnvm, match_range=r), memory=ACTIVATIONS).arena_bytes
            for r in (16, 0)
        )
        sizes = [sharing, inplace, internal_bytes(model)]
        ratios[stages] = [round(nbytes / plan, 1) for nbytes in sizes]
        assert 2.66 <= round(sizes[2] / sharing, 2) <= 2.74
    assert ratios[3, 4, 6, 3] == [2.8, 5.4, 7.5]
    assert ratios[3, 8, 36, 3][0] == 4.0


def test_a_sequence_of_1000_steps_takes_a_twentieth_for_a_third_more_time() -> None:
    """Gruslys et al. 2016; backward costs twice the forward."""
    graph = zoo.chain(1000)
    nx.set_node_attributes(graph, {n: 2.0 for n in graph if n.startswith("g")}, "cost")
    plan = planner.optimize(graph, 50, strategy="chain", allocator=None)
    assert plan.report.keep_all.peak_bytes / plan.report.plan.peak_bytes >= 20
    assert plan.report.overhead <= 1 / 3


def test_a_sixteenth_of_the_batch_takes_a_sixteenth_of_the_activations() -> None:
    size: dict[str, Any] = {"layers": 1, "hidden": 4, "features": 3, "classes": 5}
    large, small = (estimate(zoo.lstm(8, batch=batch, **size)).later.most for batch in (64, 4))
    assert large["activations"] == 16 * small["activations"]
    assert large["inputs"] == 16 * small["inputs"]
    assert large["parameters"] == small["parameters"]


def test_the_cards_of_the_notes_and_one_input_batch() -> None:
    assert {name: DEVICES[name].marketed_gib for name in ("titanx", "gtx1080ti")} == {"titanx": 12, "gtx1080ti": 11}
    found = estimate(zoo.vgg(16, batch=128, training=False))
    assert found.components["inputs"] == 128 * 3 * 224 * 224 * 4
    # Parameters three times and activations twice are 1.78 GB for one image; activations of 128 alone are 7.8 GB.
    assert estimate(zoo.vgg(16, batch=1)).fits("3GiB")
    assert not estimate(zoo.vgg(16, batch=128)).fits("6GiB")


# --- public cases


def test_case_c4_in_1_gib_costs_278_runs() -> None:
    """cases.md C4: 24 slots of 40 MiB are left for 100 layers; 278 is the recurrence of C10."""
    assert (2**30 - 2 * 4_198_400 - 41_943_040) // 41_943_040 == 24
    assert planner.optimize(zoo.chain(100), 24, allocator=None).report.plan.cost == 278


def test_case_c8_has_5_buffers_for_its_7_values() -> None:
    graph = planner.lower(cases.c8())
    plan = planner.optimize(graph, 10**9, memory=ACTIVATIONS)  # keep-all
    assert plan.allocation is not None
    assert sum(buffer.nbytes > 0 for buffer in plan.allocation.buffers) == 5
    made = [t.nbytes for op in graph.ops if not op.resident for t in op.outputs]
    assert (len(made), sum(made)) == (7, 56)
    assert sum(buffer.nbytes for buffer in plan.allocation.buffers) == 40


# --- the commands


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """The JSON object that a command prints."""

    def call(*arguments: object) -> Any:
        monkeypatch.setattr(sys, "argv", ["planner", *map(str, arguments), "--json"])
        with pytest.raises(SystemExit) as exit_info:
            cli.main()
        assert exit_info.value.code == 0
        return json.loads(capsys.readouterr().out)

    return call


def test_inspect_counts_what_onnxruntime_reads_of_resnet50(answer: Any) -> None:
    inventory = answer("inspect", "resnet:50", "--batch", 1)["inventory"]
    residents = {group["name"]: group["nbytes"] for group in inventory["residents"]}
    assert (residents["parameter"], residents["state"]) == (4 * 25_557_032, 4 * 53_120)
    # 212 tensors of 21,180,264 elements, of which the 200,704 indices of the pooling take 8 bytes each.
    assert (inventory["saved_tensors"], inventory["saved_bytes"]) == (212, 4 * 21_180_264 + 4 * 200_704)


STEPS: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    ((), {}), (("--micro-batches", "3"), {"micro_batches": 3}), (("--gradients", "zeroed"), {"gradients": "zeroed"}),
    *((("--update", update), {"update": update}) for update in ("fused", "per-tensor", "multi-tensor")),
    *((("--optimizer", name), {"optimizer": name}) for name in OPTIMIZERS),
    (("--master-weights", "--optimizer", "adam"), {"master_weights": True, "optimizer": "adam"}),
    (("--rule", "cs231n"), {"rule": "cs231n"}),
    (("--scope", "activations", "--alignment", "512", "--reserve", "1MiB"),
        {"memory": MemoryModel("activations", 512, MIB)}),
]  # fmt: skip
MODEL = """
from functools import partial
from planner import zoo

net = partial(zoo.gpt, 1, tokens=8, hidden=8, heads=2, vocabulary=31, dtype="bfloat16")
image = partial(zoo.resnet, (1,), image=32, classes=10)
forward = partial(zoo.vgg, 16, image=32, training=False)
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The user's own code in the current folder."""
    (tmp_path / "golden_models.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("golden_models", None)


@pytest.mark.usefixtures("modules")
@every(("arguments", "options"), STEPS, ids=str)
def test_the_command_takes_each_option_of_a_step(
    answer: Any, arguments: tuple[str, ...], options: dict[str, Any]
) -> None:
    graphs = {
        "net": partial(zoo.gpt, 1, tokens=8, hidden=8, heads=2, vocabulary=31, dtype="bfloat16"),
        "image": partial(zoo.resnet, (1,), image=32, classes=10),
    }
    for name, build in graphs.items():
        printed = answer("estimate", f"golden_models:{name}", "--batch", "2,3", *arguments)["rows"]
        for row, batch in zip(printed, (2, 3), strict=True):
            assert row["batch"] == batch
            found = json.loads(msgspec.json.encode(estimate(build(batch=batch), **options)))
            assert found.items() <= row["footprint"].items()


def test_the_command_estimates_inference(answer: Any) -> None:
    found = answer("estimate", "vgg:16", "--batch", 1, "--inference", "--rule", "cs231n")["rows"][0]
    assert [moment["phase"] for moment in found["footprint"]["later"]["phases"]] == ["forward"]
    assert found["footprint"]["rule"]["parameters_bytes"] == 553_430_176
    assert found["components"]["parameters"] == 553_430_176
    # Two layers at a time: the largest are the 64 channels of the first stage, one of which is overwritten.
    assert found["components"]["activations"] == 2 * 4 * 3_211_264


@pytest.mark.usefixtures("modules")
def test_a_forward_graph_of_the_users_becomes_the_training_step_of_an_optimizer(answer: Any) -> None:
    options = ("--optimizer", "adam", "--fits", "3GiB", "--largest-batch")
    printed = answer("estimate", "golden_models:forward", "--batch", "2", *options)
    forward = partial(zoo.vgg, 16, image=32, training=False)
    found = estimate(forward(batch=2), optimizer="adam")
    assert found.training
    assert json.loads(msgspec.json.encode(found)).items() <= printed["rows"][0]["footprint"].items()
    fits = [estimate(forward(batch=printed["largest_batch"] + more), optimizer="adam").fits("3GiB") for more in (0, 1)]
    assert fits == [True, False]


def test_inference_with_an_optimizer_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        sys, "argv", ["planner", "estimate", "vgg:16", "--batch", "1", "--inference", "--optimizer", "adam"]
    )
    with pytest.raises(SystemExit) as exit_info:
        cli.main()
    assert exit_info.value.code == 2
    assert capsys.readouterr().err.startswith(
        "error: --inference has no backward pass and no update, so no --optimizer"
    )


@every(("device", "verdicts"), [("t4", [True, False]), ("16GiB", [True, False]), ("16MB", [True, False])])
def test_each_row_has_a_verdict_for_a_device_by_name_or_size(answer: Any, device: str, verdicts: list[bool]) -> None:
    """The input of ten million rows is 41 GB; of one row, all is the 4.2 MB of parameters and as much of gradients."""
    printed = answer("estimate", "mlp:1024-1024", "--batch", "1,10000000", "--fits", device)["rows"]
    assert [row["fits"] for row in printed] == [row["advice"]["fits"] for row in printed] == verdicts
