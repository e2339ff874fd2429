"""All models but ResNet and LSTM: sizes that others counted, and what a transformer's backward reads."""

from __future__ import annotations

import json
import re
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from naive import keep_all
from offenders import every
from programs import elements, saved
from test_zoo import of_kind, of_op

import planner
from planner import zoo
from planner.errors import InfeasibleBudget
from planner.lowering.devices import device
from planner.lowering.differentiate import differentiate
from planner.lowering.operators.lookup import TensorType, attributes
from planner.memory import MemoryModel
from planner.zoo.attention import vocabulary_loss
from planner.zoo.builder import Layers


def nbytes(graph: nx.DiGraph, node: str, output: int = 0) -> int:
    size = graph.nodes[node]["nbytes"]
    return int(size[output] if isinstance(size, tuple) else size)


def saved_bytes(graph: nx.DiGraph) -> int:
    """Bytes of the storages a backward op reads: a view and what it looks at are one."""

    def base(node: str, output: int) -> tuple[str, int]:
        for position, viewed, *_ in graph.nodes[node].get("view", ()):
            if viewed == output:
                for source, _, edge in graph.in_edges(node, data=True):
                    if position in edge["at"]:
                        return base(source, edge["reads"][edge["at"].index(position)])
        return node, output

    return sum(nbytes(graph, *value) for value in {base(*value) for value in saved(graph)})


def keep_all_trace(graph: nx.DiGraph, **memory: Any) -> planner.Trace:
    program = planner.lower(graph)
    return planner.simulate(program, keep_all(program), memory=MemoryModel(**memory))


# --- rows of the operator table


def test_fused_attention_counts_the_two_products_and_the_softmax() -> None:
    q, kv, y = TensorType((2, 3, 5, 8)), TensorType((2, 3, 7, 8)), TensorType((2, 3, 5, 8))
    found = attributes("FusedAttention", node="n", inputs=[q, kv, kv], outputs=[y], device=device("a100"))
    assert found["flops"] == 2 * 3 * 5 * 7 * (2 * 8 + 2 * 8 + 5)


# --- VGG


def _golden_vgg16(shared: Path) -> dict[str, tuple[int, int]]:
    """Elements and parameters per layer of golden.md; "conv3_2, conv3_3 802,816 (590,080 each)" is two layers."""
    text = (shared / "golden.md").read_text().replace("\n", " ")
    rows = text[text.index("VGG16 per layer") : text.index("ResNet-50 v1.5 per stage")]
    found = {}
    for row in rows.split(": ", 1)[1].split("; "):
        names, count, parameters = re.fullmatch(r"(.+?) (\d[\d,]*)(?: \(([\d,]+)(?: each)?\))?\.?\s*", row).groups()  # type: ignore[union-attr]
        listed = names.split(", ")
        if span := re.fullmatch(r"conv(\d)_(\d)-\1?_?(\d)", re.sub(r"-\d_", "-", names)):
            listed = [f"conv{span[1]}_{k}" for k in range(int(span[2]), int(span[3]) + 1)]
        for name in listed:
            found[name] = int(count.replace(",", "")), int((parameters or "0").replace(",", ""))
    return found


def _node(name: str) -> str:
    if layer := re.fullmatch(r"(conv|pool)(\d)(?:_(\d))?", name):
        return f"stage{layer[2]}.{layer[1]}{layer[3] or ''}"
    return "image" if name == "input" else f"head.{name}"


def test_vgg16_has_the_golden_elements_and_parameters_of_each_layer(shared: Path) -> None:
    graph = zoo.vgg(16, batch=1)
    rows = _golden_vgg16(shared)
    assert len(rows) == 1 + 13 + 5 + 3
    for name, (count, parameters) in rows.items():
        node = _node(name)
        assert elements(graph, node) == count, name
        assert (
            sum(elements(graph, f"{node}.{part}") for part in ("weight", "bias") if f"{node}.{part}" in graph)
            == parameters
        ), name
    assert sum(count for count, _ in rows.values()) == 15_237_608


def test_vgg16_has_the_golden_totals(shared: Path) -> None:
    text = (shared / "golden.md").read_text()
    graph = zoo.vgg(16, batch=1)
    layers = of_op(graph, "Conv", "MaxPool", "Gemm")
    relus = of_op(graph, "Relu")
    flops = sum(
        a["flops"] for _, a in graph.nodes(data=True) if a.get("op") in ("Conv", "Gemm") and a["phase"] == "forward"
    )
    found = [of_kind(graph, "parameter"), elements(graph, "image") + layers, layers, layers + relus, relus, flops // 2]
    assert found == [138_357_544, 15_237_608, 15_087_080, 28_642_792, 13_555_712, 15_470_264_320]
    assert all(f"{number:,}" in text for number in found)
    # original.md section 4: 13,416 of the parameters are biases.
    assert sum(elements(graph, n) for n in graph if n.endswith(".bias")) == 13_416


def test_vgg_relu_overwrites_the_convolution_it_follows_as_cs231n_counts_it() -> None:
    taken = keep_all_trace(zoo.vgg(16, batch=1)).inplace_taken
    assert {(made, over) for _, made, over in taken} >= {(f"stage1.relu{k}", f"stage1.conv{k}") for k in (1, 2)}


def test_vgg19_is_the_network_of_the_onnx_file(shared: Path) -> None:
    manifest = (shared / "data/graphs/manifest.json").read_text()
    graph = zoo.vgg(19, batch=1)
    outputs = of_op(graph, "Conv", "Relu", "MaxPool", "Gemm", "Flatten", "Dropout")
    softmax = elements(graph, "head.fc8")  # the file ends with one; ours is part of the loss
    assert (of_kind(graph, "parameter"), outputs + softmax) == (143_667_240, 31_286_224)
    assert '"act_elems": 31286224' in manifest
    # What onnxruntime's training graph of it saves: 33 tensors.
    assert (len(saved(graph)), sum(elements(graph, *value) for value in saved(graph))) == (33, 17_938_408)
    assert '"saved_elems": 17938408' in manifest


# --- ResNet-50's rows in the counting of CS231n, and of the seeds


def test_resnet50_has_the_golden_rows_per_stage(shared: Path) -> None:
    graph = zoo.resnet(50, batch=1)
    text = (shared / "golden.md").read_text().replace("\n", " ")
    rows = text[text.index("ResNet-50 v1.5 per stage") : text.index("Warning: the CS231n")]
    ops = ("Conv", "BatchNormalization", "Relu", "Add")

    def rows_of(prefix: str) -> list[int]:
        inside = graph.subgraph([n for n in graph if n.startswith(prefix)])
        return [of_op(inside, *ops), of_kind(inside, "parameter")]

    stages = [rows_of(prefix) for prefix in ("stem.", "stage1.", "stage2.", "stage3.", "stage4.")]
    assert stages[0] == [2_408_448, 9_536]
    later = [[14_852_096, 215_808], [10_536_960, 1_219_584], [7_476_224, 7_098_368], [2_082_304, 14_964_736]]
    assert stages[1:] == later
    assert all(f"{count:,} ({parameters:,})" in rows for count, parameters in stages)
    assert [elements(graph, n) for n in ("stem.pool", "head.pool", "head.fc")] == [200_704, 2_048, 1_000]


def test_resnet50_in_the_counting_of_cs231n_and_of_the_seeds() -> None:
    graph = zoo.resnet(50, batch=1)
    # golden.md
    assert elements(graph, "image") + of_op(graph, "Conv", "MaxPool", "GlobalAveragePool", "Gemm") == 11_468_264
    # original.md section 4: the seeds' "16M activations = 64MB" are convolutions and residual sums, in mixed units.
    assert of_op(graph, "Conv", "Add") == 16_633_344
    # of 25,557,032; "26M = 99MB" rounds before it divides
    assert round(4 * of_kind(graph, "parameter") / 2**20, 1) == 97.5
    assert round(4 * 26e6 / 2**20, 2) == 99.18


def test_resnet_v1_has_its_stride_in_the_first_convolution_and_the_parameters_of_v1_5() -> None:
    first, later = zoo.resnet(50, batch=1, stride_on_1x1=True), zoo.resnet(50, batch=1)
    assert [first.nodes[f"stage2.block1.conv{k}"]["shape"] for k in (1, 2)] == [(1, 128, 28, 28)] * 2
    assert [later.nodes[f"stage2.block1.conv{k}"]["shape"][2:] for k in (1, 2)] == [(56, 56), (28, 28)]
    assert of_kind(first, "parameter") == of_kind(later, "parameter")
    assert zoo.build("resnet:50", batch=1, stride_on_1x1=1).graph["name"] == first.graph["name"] != later.graph["name"]


@every(("depth", "conv"), [(50, 10_587_136), (101, 15_705_088), (152, 22_027_264)])
def test_resnet_v1_has_the_golden_sizes(depth: int, conv: int) -> None:
    """golden.md: v1 convolutions, its parts at 152 layers, all its outputs at 101."""
    graph = zoo.resnet(depth, batch=1, stride_on_1x1=True, training=False)
    relu, add = of_op(graph, "Relu"), of_op(graph, "Add")
    ends = of_op(graph, "MaxPool", "GlobalAveragePool", "Gemm")
    assert (of_op(graph, "Conv"), of_op(graph, "BatchNormalization")) == (conv, conv)
    if depth == 101:
        assert 2 * conv + relu + add + ends == 54_745_064
    if depth == 152:
        assert (relu, add) == (20_521_984, 13_146_112)


@every(("depth", "blobs"), [(50, 16_311_248), (101, 24_841_168), (152, 35_378_128)])
def test_resnet_v1_takes_the_golden_blobs_where_normalization_and_relu_are_in_place(depth: int, blobs: int) -> None:
    """golden.md: Caffe's distinct blobs; a sum in place, which Caffe does not do, counts as its own."""
    program = planner.lower(zoo.resnet(depth, batch=1, stride_on_1x1=True, training=False))
    trace = planner.simulate(program, keep_all(program))
    made = sum(
        t.nbytes for op in program.ops if not op.resident for t in op.outputs if program.storage_root[t.name] == t.name
    )
    taken = [name for _, name, _ in trace.inplace_taken if program.producer[name].op in ("BatchNormalization", "Relu")]
    softmax = 1000  # Caffe's last layer; ours is part of the loss
    assert (made - sum(program.tensors[name].nbytes for name in taken)) // 4 + softmax == blobs


# --- SqueezeNet


def test_squeezenet_is_the_network_of_torchvision_and_of_the_onnx_file(shared: Path) -> None:
    graph = zoo.squeezenet(batch=1)
    ops = ("Conv", "Relu", "MaxPool", "Concat", "Dropout", "GlobalAveragePool")
    outputs = [n for n, a in graph.nodes(data=True) if a.get("op") in ops and a["phase"] == "forward"]
    softmax = elements(graph, "head.flatten")  # the file ends with one; ours is part of the loss
    assert len(outputs) + 1 == 66
    assert (of_kind(graph, "parameter"), of_op(graph, *ops) + softmax) == (1_235_496, 7_047_904)
    manifest = json.loads((shared / "data/graphs/manifest.json").read_bytes())
    file, runtime = manifest["onnx_light/light_squeezenet.onnx"], manifest["onnx_training/squeezenet_training.onnx"]
    assert (file["params"], file["act_elems"], file["real_nodes"]) == (1_235_496, 7_047_904, 66)
    # onnxruntime keeps 9 small vectors more, 20 elements, that its kernels need at run time; see test_onnx.py.
    kept = len(saved(graph)), sum(elements(graph, *value) for value in saved(graph))
    assert kept == (runtime["saved_tensors"] - 9, runtime["saved_elems"] - 20)


# --- DenseNet and U-Net


def test_densenet121_has_the_parameters_of_torchvision_and_its_statistics_as_states(shared: Path) -> None:
    graph = zoo.densenet(121, batch=1)
    assert (of_kind(graph, "parameter"), of_kind(graph, "state")) == (7_978_856, 83_648)
    # The file is Caffe's net: after each normalization, scale and shift once more; its statistics are counted as well.
    file = json.loads((shared / "data/graphs/manifest.json").read_bytes())["onnx_light/light_densenet121.onnx"]
    assert (file["params"], file["bn_stats"]) == (7_978_856 + 2 * 83_648, 83_648)
    convolutions = [n for n, a in graph.nodes(data=True) if a.get("op") in ("Conv", "Gemm")]
    assert len(convolutions) == 121


@every(("depth", "parameters"), [(169, 14_149_480), (201, 20_013_928)])
def test_deeper_densenets_have_the_parameters_of_torchvision(depth: int, parameters: int) -> None:
    assert of_kind(zoo.densenet(depth, batch=1, training=False), "parameter") == parameters


def test_densenet_copies_grow_with_the_square_of_a_block() -> None:
    """Pleiss et al. 2017: layer l of a block concatenates l - 1 outputs and the input of the block."""
    graph = zoo.densenet((8,), batch=1, image=32)
    copies = sum(elements(graph, n) for n, op in graph.nodes(data="op") if op == "Concat")
    assert copies == 8 * 8 * sum(64 + 32 * k for k in range(1, 9))


def test_unet_has_the_sizes_of_the_published_figure() -> None:
    """Ronneberger et al. 2015, figure 1: 572 pixels in, 388 out, and the side of each level."""
    graph = zoo.unet(batch=1)
    sides = {"down": (570, 568, 282, 280, 138, 136, 66, 64), "up": (390, 388, 198, 196, 102, 100, 54, 52)}
    expected = {f"{way}{k // 2}.relu{k % 2 + 1}": side for way in sides for k, side in enumerate(sides[way])}
    for node, side in {**expected, "bottom.relu1": 30, "bottom.relu2": 28, "head": 388}.items():
        assert graph.nodes[node]["shape"][2:] == (side, side), node
    assert [graph.nodes[f"up{k}.concat"]["shape"][1] for k in range(4)] == [128, 256, 512, 1024]
    # Sum of 9 cin cout + cout of the 18 convolutions, 4 cin cout + cout of the 4 upward ones, and the 1x1.
    widths = [1, 64, 64, 128, 128, 256, 256, 512, 512, 1024, 1024]
    way_down = sum(9 * a * b + b for a, b in pairwise(widths))
    way_up = sum(4 * 2 * c * c + c + 9 * 2 * c * c + c + 9 * c * c + c for c in (512, 256, 128, 64))
    assert of_kind(graph, "parameter") == way_down + way_up + 2 * 64 + 2 == 31_030_658


def test_a_padded_unet_crops_nothing() -> None:
    graph = zoo.unet(2, batch=1, image=16, channels=4, padding=1)
    assert graph.nodes["head"]["shape"] == (1, 2, 16, 16)
    assert not [n for n, op in graph.nodes(data="op") if op == "Slice"]


# --- transformers


def test_gpt2_small_and_vit_b16_have_their_published_parameters() -> None:
    assert of_kind(zoo.gpt(batch=1), "parameter") == 124_439_808
    assert of_kind(zoo.vit(batch=1), "parameter") == 86_567_656


def test_tied_embeddings_are_one_resident_with_one_gradient() -> None:
    graph = zoo.gpt(1, batch=1, tokens=8, hidden=4, heads=2, vocabulary=11)
    assert set(graph.successors("wte.weight")) >= {"embed.wte", "head.logits", "wte.weight.update"}
    assert graph.nodes["wte.weight.grad2"]["inplace"] == ((0, 0), (1, 0))
    assert [n for n in graph if n.endswith(".update") and n.startswith("wte")] == ["wte.weight.update"]


S, B, H, A = 64, 2, 32, 4  # sequence, batch, hidden, heads
GPT: dict[str, Any] = {"batch": B, "tokens": S, "hidden": H, "heads": A, "vocabulary": 11}


def _block_bytes(**options: Any) -> int:
    """Bytes that one more block saves for its backward."""
    sizes: dict[str, Any] = {**GPT, "dtype": "bfloat16", **options}
    return saved_bytes(zoo.gpt(3, **sizes)) - saved_bytes(zoo.gpt(2, **sizes))


STATISTICS = 2 * 2 * 4 * S * B  # float32 mean and 1/std of two layer normalizations, which the papers leave out


def test_a_block_saves_what_korthikanti_et_al_count() -> None:
    """Korthikanti et al. 2022, eq. 1, in 16 bits with dropout: sbh (34 + 5 as/h) bytes a layer."""
    assert _block_bytes(fused_attention=False, dropout=0.1) == S * B * H * 34 + 5 * A * S * S * B + STATISTICS


def test_a_block_with_fused_attention_saves_nothing_of_tokens_by_tokens() -> None:
    """The same without 5 as^2b: q, k, v and the output stay, and a float32 a row and head."""
    rows, without_masks = 4 * A * S * B, 34 - 2
    assert _block_bytes(fused_attention=True) == S * B * H * without_masks + rows + STATISTICS
    assert _block_bytes(fused_attention=True, dropout=0.1) == S * B * H * 34 + rows + STATISTICS + 16
    graph = zoo.gpt(2, **GPT)
    plain = zoo.gpt(2, **GPT, fused_attention=False)

    def squares(graph: nx.DiGraph) -> int:
        made = (a for _, a in graph.nodes(data=True) if a.get("kind") is None)
        return sum(bool(a.get("shape")) and a["shape"][-2:] == (S, S) for a in made)

    assert (squares(graph), squares(plain) > 0) == (0, True)


def test_gelu_new_saves_its_input_and_three_values_more() -> None:
    """Hugging Face's 0.5 x (1 + tanh(...)): x for its cube, tanh for itself, 0.5 x and 1 + tanh for their product."""
    assert _block_bytes(activation="gelu_new") - _block_bytes() == 3 * 2 * 4 * S * B * H


@every("batch", [1, B])
def test_a_vit_block_saves_what_torchvisions_saves(batch: int) -> None:
    """Inputs and outputs of two norms 4; q, k and v 3; attention 1; GELU 4 and 4. Measured with 1 and 4 images."""
    units = 16
    sizes: dict[str, Any] = {"batch": batch, "image": 32, "patch": 4, "hidden": H, "heads": A, "classes": 3}
    grown = saved_bytes(zoo.vit(3, **sizes)) - saved_bytes(zoo.vit(2, **sizes))
    rows = batch * (8 * 8 + 1)
    assert grown == 4 * rows * (H * units + A + 4)  # log-sum-exp a head, mean and 1/std of two norms


def test_the_classifier_of_a_vit_keeps_all_normalized_tokens_alive() -> None:
    """PyTorch's x[:, 0] is a view, and the classifier saves it."""
    graph = zoo.vit(1, **_PATCHES)
    assert graph.nodes["head.class"]["view"] == ((0, 0),)
    assert ("head.class", 0) in saved(graph)


def test_positions_beyond_the_tokens_are_parameters_alone() -> None:
    few, many = zoo.gpt(1, **GPT), zoo.gpt(1, **GPT, positions=100)
    assert of_kind(many, "parameter") - of_kind(few, "parameter") == (100 - S) * H
    assert saved_bytes(many) == saved_bytes(few)


def test_the_split_of_q_k_and_v_takes_no_bytes() -> None:
    graph = zoo.gpt(1, **GPT)
    part = 4 * B * S * H
    assert graph.nodes["h0.split"]["view"] == ((0, 0, 0), (0, 1, part), (0, 2, 2 * part))
    assert nbytes(graph, "h0.qkv") == 3 * part


def test_mixed_types_count_their_own_bytes() -> None:
    graph = zoo.gpt(1, **GPT, dtype="bfloat16", dropout=0.1, fused_attention=False)
    rows = B * S
    assert nbytes(graph, "tokens") == nbytes(graph, "labels") == 8 * rows
    assert [nbytes(graph, "h0.ln1", output) for output in range(3)] == [2 * rows * H, 4 * rows, 4 * rows]
    assert [nbytes(graph, "h0.dropout1", output) for output in range(2)] == [2 * rows * H, rows * H]
    logits = [nbytes(graph, n) // (rows * 11) for n in ("head.logits", "head.upcast", "loss.bwd", "head.upcast.bwd")]
    assert (logits, nbytes(graph, "loss", 1)) == ([2, 4, 4, 2], 4 * rows * 11)


def test_master_weights_are_float32_with_copies_that_are_values() -> None:
    sizes: dict[str, Any] = {**GPT, "dtype": "bfloat16"}
    pure, mixed = zoo.gpt(2, **sizes), zoo.gpt(2, **sizes, master_weights=True, optimizer="adam")
    count = of_kind(pure, "parameter")
    assert of_kind(mixed, "parameter") == count
    parameters = [n for n, kind in mixed.nodes(data="kind") if kind == "parameter"]
    assert sum(nbytes(mixed, n) for n in parameters) == 4 * count == 2 * sum(nbytes(pure, n) for n in parameters)
    assert sum(nbytes(mixed, f"{n}.cast") for n in parameters) == 2 * count
    assert sum(nbytes(mixed, f"{n}.cast.bwd") for n in parameters) == 4 * count  # gradients the optimizer reads
    assert sum(nbytes(mixed, n) for n, kind in mixed.nodes(data="kind") if kind == "state") == 8 * count


def test_gpt_flops_are_those_of_the_palm_paper() -> None:
    """Chowdhery et al. 2022, appendix B: 6N + 12 LHQT FLOPs a token, N the weights of products."""
    layers, tokens, batch, hidden, heads, vocabulary = 3, 16, 2, 8, 2, 11
    graph = zoo.gpt(
        layers, batch=batch, tokens=tokens, hidden=hidden, heads=heads, vocabulary=vocabulary, fused_attention=False
    )
    products = [a for _, a in graph.nodes(data=True) if a.get("op") in ("Gemm", "MatMul", "GemmGrad", "MatMulGrad")]
    weights = 12 * layers * hidden**2 + vocabulary * hidden
    biases = layers * (3 + 1 + 4 + 1) * hidden  # their gradients are sums: an add for each row
    expected = 6 * weights + 12 * layers * heads * (hidden // heads) * tokens + biases
    assert sum(a["flops"] for a in products) == expected * batch * tokens


def test_layers_of_a_transformer_name_their_block_and_leave_cuts_to_the_analysis() -> None:
    graph = zoo.gpt(2, batch=1, tokens=8, hidden=4, heads=2, vocabulary=11)
    assert [
        graph.nodes[n]["module"] for n in ("h1.qkv", "h1.split", "h1.attention", "h1.attention.bwd", "h1.add2")
    ] == ["h1"] * 5
    assert not [n for n, stage in graph.nodes(data="stage") if stage]


def test_a_gpt_of_96_layers_is_built_in_a_second() -> None:
    start = time.perf_counter()
    graph = zoo.gpt(96, batch=1)
    assert time.perf_counter() - start < 5  # about 0.3 s where nothing else runs
    assert len([n for n in graph if n.endswith(".attention")]) == 96


# --- BERT and Llama

_TEXTS: dict[str, Any] = {"batch": B, "tokens": S, "hidden": H, "heads": A, "vocabulary": 11}
_LLAMA: dict[str, Any] = {**_TEXTS, "kv_heads": 2, "intermediate": 48}


@every(("model", "blocks", "options", "parameters"), [
    ("bert", 12, {}, 109_482_240), ("bert", 24, {"hidden": 1024, "heads": 16}, 335_141_888),
    ("llama", 16, {}, 1_235_814_400),
    ("llama", 32, {"hidden": 4096, "intermediate": 14336, "tied": False}, 8_030_261_248),
])  # fmt: skip
def test_bert_and_llama_have_their_published_parameters(
    model: str, blocks: int, options: dict[str, Any], parameters: int
) -> None:
    graph = zoo.build(f"{model}:{blocks}", batch=1, tokens=8, training=False, **options)
    assert of_kind(graph, "parameter") == parameters


def test_all_parameters_of_bert_are_trained_and_a_classifier_adds_its_own() -> None:
    graph, more = zoo.bert(2, **_TEXTS), zoo.bert(2, **_TEXTS, classes=3)
    for step in (graph, more):
        parameters = {n for n, kind in step.nodes(data="kind") if kind == "parameter"}
        assert {n for n in step if n.endswith(".update")} == {f"{n}.update" for n in parameters}
    assert of_kind(more, "parameter") - of_kind(graph, "parameter") == 3 * H + 3


def test_a_block_of_bert_saves_its_post_norm_values() -> None:
    """The input, q, k, v, attention, two sums and the norm between: 8 units; 4 and 4 of GELU; statistics and rows."""
    grown = saved_bytes(zoo.bert(3, **_TEXTS)) - saved_bytes(zoo.bert(2, **_TEXTS))
    assert grown == 4 * S * B * (H * 16 + A + 4)
    dropped = saved_bytes(zoo.bert(3, **_TEXTS, dropout=0.1)) - saved_bytes(zoo.bert(2, **_TEXTS, dropout=0.1))
    assert dropped == grown + S * B * H * 2 + 16  # bool masks of both branches, and the state for the attention


@every(("options", "of_a_token"), [
    # 7 H: two sums, two norms, q, attention, and k and v of half as many heads; SwiGLU 4 * 48; a float32 a head for
    # the scores and a float32 for each norm.
    ({}, 4 * (7 * H + 4 * 48) + 4 * A + 2 * 4),
    # The normalized rows too.
    ({"fused_norm": False}, 4 * (9 * H + 4 * 48) + 4 * A + 2 * 4),
    # In place of the sums their float32 copies.
    ({"fused_norm": False, "dtype": "bfloat16"}, 2 * (7 * H + 4 * 48) + 4 * 2 * H + 4 * A + 2 * 4),
])  # fmt: skip
def test_a_block_of_llama_saves_what_pytorchs_saves(options: dict[str, Any], of_a_token: int) -> None:
    sizes = {**_LLAMA, **options}
    assert saved_bytes(zoo.llama(3, **sizes)) - saved_bytes(zoo.llama(2, **sizes)) == S * B * of_a_token


def test_keys_and_values_of_few_heads_are_copied_for_plain_attention_alone() -> None:
    fused, plain = zoo.llama(1, **_LLAMA), zoo.llama(1, **_LLAMA, fused_attention=False)
    assert fused.nodes["h0.value"]["shape"] == (B * S, 2 * H // A)
    assert set(fused.predecessors("h0.attention")) == {"h0.query.rotary", "h0.key.rotary", "h0.value.heads"}
    assert plain.nodes["h0.attention.values.repeat"]["shape"] == (B, A, S, H // A)


def test_llama_flops_are_twice_the_weights_and_its_scores() -> None:
    """Forward FLOPs a token: 2 for each weight of a product, and 4 tokens * width a head and block for the scores."""
    graph = zoo.llama(2, **_LLAMA, fused_attention=False, training=False)
    products = sum(a["flops"] for _, a in graph.nodes(data=True) if a.get("op") in ("Gemm", "MatMul"))
    weights = 2 * (2 * H * H + 2 * H * 2 * H // A + 3 * H * 48) + 11 * H
    assert products == S * B * (2 * weights + 2 * 4 * S * H)


# --- fully connected, the seeds' counts, and the cases


def test_the_seeds_small_net_has_813_802_parameters_and_56_586_activations() -> None:
    """original.md section 4: 320, 9,248, 802,944 and 1,290; three input channels make it 896, not 960."""
    layers = Layers("mnist", device="a100", training=True)
    x = layers.relu(
        "relu1", layers.conv("conv1", layers.input("image", (1, 1, 28, 28)), 32, kernel=3, padding=1, bias=True)
    )
    x = layers.relu("relu2", layers.conv("conv2", x, 32, kernel=3, padding=1, bias=True))
    x = layers.flatten("flatten", layers.max_pool("pool", x, kernel=2, stride=2, padding=0))
    layers.linear("fc2", layers.relu("relu3", layers.linear("fc1", x, 128)), 10)
    graph = layers.graph
    counts = [
        elements(graph, f"{name}.weight") + elements(graph, f"{name}.bias") for name in ("conv1", "conv2", "fc1", "fc2")
    ]
    assert (counts, of_kind(graph, "parameter")) == ([320, 9_248, 802_944, 1_290], 813_802)
    assert [elements(graph, n) for n in ("conv1", "conv2", "pool", "fc1", "fc2")] == [25_088, 25_088, 6_272, 128, 10]
    assert of_op(graph, "Conv", "MaxPool", "Gemm") == 56_586
    colour = Layers("colour", device="a100", training=True)
    colour.conv("conv", colour.input("image", (1, 3, 256, 256)), 32, kernel=3, bias=True)
    assert of_kind(colour.graph, "parameter") == 896
    assert nbytes(colour.graph, "image") // 4 == 192 * 1024  # 192 KiB, one byte a colour


def test_an_mlp_has_the_parameters_of_its_widths() -> None:
    assert of_kind(zoo.mlp([6272, 128, 10], batch=1), "parameter") == 802_944 + 1_290
    assert of_kind(zoo.build("mlp:784-128-10", batch=1), "parameter") == 784 * 128 + 128 + 128 * 10 + 10


def test_case_c4_one_layer_applied_100_times_counts_its_weight_once() -> None:
    graph = zoo.mlp([1024] * 101, batch=10240, relu=False, tied=True)
    value, layer = 10240 * 1024 * 4, 1024 * 1024 * 4 + 1024 * 4
    trace = keep_all_trace(graph)
    ops = [n for n, kind in graph.nodes(data="kind") if kind is None]
    after_forward = trace.timeline_bytes[ops.index("fc100")]
    assert after_forward == 4_240_445_440 == 101 * value + layer == 4044.00390625 * 2**20
    # The first backward: 100 inputs, two gradients of values, one weight and one gradient of it; the loss.
    assert (trace.peak_bytes, trace.peak_op) == (102 * value + 2 * layer + 4, "fc100.bwd")
    # From then on the gradients so far, those just made, and no third.
    weights = [n for n in graph if n.startswith("weight.grad")]
    assert len(weights) == 99
    taken = {made for _, made, _ in trace.inplace_taken}
    assert set(weights) <= taken
    # cases.md: input, weight and its gradient leave 24 whole slots of 1 GiB; recomputation then fits it.
    assert planner.optimize(graph, "1GiB", allocator=None).report.plan.peak_bytes <= 2**30


def spike(*, returned: bool = False) -> nx.DiGraph:
    """cases.md C5: what makes `hid`, the classifier, the upcast and the loss, with its weight trained."""
    layers = Layers("spike", device="a100", training=True)
    hid = layers.gelu("hid", layers.draft.resident("x", TensorType((32768, 2048), "bfloat16"), kind="parameter"))
    l16 = layers.linear("l16", hid, 151936, bias=False)
    if returned:
        layers.draft.mark_output(l16)
    l32 = layers.draft.apply("l32", "Cast", [l16], [TensorType((32768, 151936))])
    layers.cross_entropy("loss", l32, layers.input("labels", (32768,), "int64"))
    return differentiate(layers.graph, loss="loss:0")


def test_case_c5_the_logits_spike_has_the_bytes_of_the_issue() -> None:
    graph = spike()
    values = [(name, 0) for name in ("hid", "l16", "l32", "loss", "loss.bwd", "l32.bwd", "l16.bwd")]
    values.insert(3, ("loss", 1))
    full, half, hidden = 19_914_555_392, 9_957_277_696, 134_217_728
    assert [nbytes(graph, *value) for value in values] == [hidden, half, full, full, 4, full, half, hidden]
    assert keep_all_trace(graph, scope="activations").peak_bytes == 39_963_328_516
    assert keep_all_trace(spike(returned=True), scope="activations").peak_bytes == 49_920_606_212


def test_case_c5_no_plan_goes_below_two_float32_logits() -> None:
    memory = MemoryModel(scope="activations")
    assert planner.optimize(spike(), memory=memory, allocator=None).report.plan.peak_bytes == 39_829_110_788
    with pytest.raises(InfeasibleBudget) as caught:
        planner.optimize(spike(), "24GiB", memory=memory, allocator=None)
    assert (caught.value.minimum, caught.value.proven) == (39_829_110_788, True)


def test_case_c5_in_eight_chunks_a_plan_holds_the_logits_of_one() -> None:
    """cases.md: 8 chunks give 2 * 19,914,555,392 / 8 + 2 * 134,217,728; the classifier's weight is frozen there."""
    layers = Layers("chunked", device="a100", training=True)
    hid = layers.gelu("hid", layers.draft.resident("x", TensorType((32768, 2048), "bfloat16"), kind="parameter"))
    weight = layers.draft.resident("weight", TensorType((151936, 2048), "bfloat16"), kind="state")
    loss = vocabulary_loss(layers, hid, weight, layers.input("labels", (32768,), "int64"), chunks=8)
    graph = differentiate(layers.graph, loss=loss)
    plan = planner.optimize(graph, memory=MemoryModel(scope="activations"), allocator=None).report.plan
    assert 2 * 19_914_555_392 // 8 < plan.peak_bytes <= 5_247_074_304


def test_the_peak_of_a_gpt_with_a_large_vocabulary_is_its_loss() -> None:
    graph = zoo.gpt(1, batch=1, tokens=32768, hidden=2048, heads=16, vocabulary=151936, dtype="bfloat16")
    trace = keep_all_trace(graph)
    assert [size for _, size in trace.live_at_peak[:2]] == [19_914_555_392] * 2
    assert trace.peak_op is not None
    assert trace.peak_op.startswith("loss")


# --- all of them

_IMAGES: dict[str, Any] = {"batch": 2, "image": 32, "classes": 10}
_TOKENS: dict[str, Any] = {"batch": 2, "tokens": 64, "hidden": 32, "heads": 4, "vocabulary": 50}
_PATCHES: dict[str, Any] = {"batch": 4, "image": 64, "hidden": 32, "heads": 4, "classes": 10}
SMALL: list[tuple[str, dict[str, Any]]] = [
    ("vgg:16", _IMAGES), ("resnet:1-1", {**_IMAGES, "stride_on_1x1": True}),
    ("squeezenet", {**_IMAGES, "image": 64}),
    ("densenet:3-4", {**_IMAGES, "image": 64}), ("unet:3", {"batch": 1, "image": 140, "channels": 8}),
    ("unet:2", {"batch": 1, "image": 32, "channels": 8, "padding": 1}), ("gpt:4", _TOKENS),
    ("gpt:4", {**_TOKENS, "dropout": 0.1, "dtype": "bfloat16"}),
    ("gpt:3", {**_TOKENS, "dtype": "bfloat16", "master_weights": True}),
    ("gpt:4", {**_TOKENS, "dropout": 0.1, "fused_attention": False}),
    ("gpt:3", {**_TOKENS, "vocabulary": 500, "dtype": "bfloat16", "loss_chunks": 4}), ("vit:4", _PATCHES),
    ("vit:2", {**_PATCHES, "fused_attention": False, "dropout": 0.1}), ("mlp:64-64-64-64-10", {"batch": 512}),
    ("bert:2", {**_TOKENS, "dropout": 0.1}), ("llama:2", {**_TOKENS, "kv_heads": 2, "intermediate": 48}),
]  # fmt: skip
# These are built and judged alone: a search on them takes long and tries no more than those on the graphs above.
LARGER: list[tuple[str, dict[str, Any]]] = [
    ("bert:2", {**_TOKENS, "classes": 3, "fused_attention": False, "dtype": "bfloat16", "master_weights": True}),
    ("llama:3", {**_TOKENS, "kv_heads": 1, "intermediate": 48, "tied": False, "fused_norm": False, "dtype": "bfloat16",
        "loss_chunks": 2}),
    ("llama:2", {**_TOKENS, "kv_heads": 2, "fused_attention": False, "intermediate": 48}),
    ("gpt:3", {**_TOKENS, "activation": "gelu_new", "positions": 80}), ("resnet:18", _IMAGES),
]  # fmt: skip
STEPS = [*SMALL, *LARGER, ("resnet:1-2", _IMAGES), ("lstm:3", {"batch": 2, "layers": 2, "hidden": 4, "classes": 6})]
IDS = [f"{spec}{'+'.join(['', *map(str, options)][-2:])}" for spec, options in SMALL]


@every("optimizer", ["sgd", "momentum", "adam", None])
@every(("spec", "options"), STEPS)
def test_a_step_is_a_legal_program(spec: str, options: dict[str, Any], optimizer: str | None) -> None:
    graph = zoo.build(spec, **options, optimizer=optimizer)
    assert [graph.nodes[n]["position"] for n in graph] == list(range(len(graph)))
    program = planner.lower(graph)
    assert [op.name for op in program.ops] == list(graph)
    assert not program.dead
    assert graph.graph["pruned"] == ()
    assert "loss" in {value.partition(":")[0] for value in program.outputs}
    planner.simulate(program, keep_all(program))


@pytest.mark.parametrize(("spec", "options"), SMALL, ids=IDS)
def test_a_step_can_be_planned_below_keep_all(spec: str, options: dict[str, Any]) -> None:
    graph = zoo.build(spec, **options)
    memory = MemoryModel(scope="activations")
    least = planner.optimize(graph, memory=memory, effort=0.05).report.plan
    whole = keep_all_trace(graph, scope="activations").peak_bytes
    assert least.peak_bytes <= whole
    budget = max(least.arena_bytes, int(0.6 * whole))
    plan = planner.optimize(graph, budget, memory=memory, effort=0.05)
    assert plan.report.plan.arena_bytes <= budget
    # on real bytes: views of q, k and v, and all that is in place
    plan.execute(scale=64 if spec.startswith("vgg") else None)


@every(("spec", "options"), [*SMALL, *LARGER])
def test_inference_is_the_forward_pass_alone(spec: str, options: dict[str, Any]) -> None:
    graph = zoo.build(spec, **options, training=False)
    program = planner.lower(graph)
    assert len(program.outputs) == 1
    assert "labels" not in graph
    assert {phase for _, phase in graph.nodes(data="phase")} <= {None, "forward"}
    planner.simulate(program, keep_all(program))
