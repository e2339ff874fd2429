"""The original's networks, tensor by tensor against its own logs, and our LSTM against closed forms."""

from __future__ import annotations

import csv
import gzip
import json
import math
import time
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from offenders import every
from test_zoo import of_kind

from planner import Graph, MemoryModel, Schedule, allocate, simulate, zoo
from planner.analysis.evaluator import evaluator_of
from planner.errors import GraphError
from planner.lowering.schema import lower
from planner.mxnet.nnvm import nnvm

ACTIVATIONS = MemoryModel(scope="activations")
MODELS: dict[str, Callable[[], nx.DiGraph]] = {
    "resnet_3-4-6-3": partial(zoo.mxnet_resnet, (3, 4, 6, 3)),
    "resnet_3-8-36-3": partial(zoo.mxnet_resnet, (3, 8, 36, 3)),
    "resnet_15-120-180-15": partial(zoo.mxnet_resnet, (15, 120, 180, 15)),
    "lstm_4x1024_t64": partial(zoo.mxnet_lstm, 64),
    "inception_bn": zoo.inception_bn,
}
TRACED = [name for name in MODELS if name != "inception_bn"]


@cache
def model(name: str) -> nx.DiGraph:
    return nx.freeze(MODELS[name]())


@cache
def program(name: str) -> Graph:
    return lower(model(name))


def keep_all(graph: Graph) -> Schedule:
    evaluator = evaluator_of(graph, ACTIVATIONS)
    return evaluator.schedule(evaluator.keep_all)


def read_json(shared: Path, name: str) -> dict[str, Any]:
    path = shared / "data" / "mxnet" / f"{name}.json"
    if not path.exists():
        return json.loads(gzip.decompress(path.with_suffix(".json.gz").read_bytes()))
    return json.loads(path.read_text())


class Node:
    """One op of the zoo in the fixture's terms: what it reads and writes, arrays for gradients of arguments apart."""

    def __init__(self, graph: nx.DiGraph, name: str) -> None:
        given = graph.nodes[name]
        wires = sorted(
            (at, source, output)
            for source, _, edge in graph.in_edges(name, data=True)
            for output, at in zip(edge["reads"], edge["at"], strict=True)
        )
        assert [at for at, _, _ in wires] == list(range(len(wires)))
        updates = given.get("updates", ())
        count = len(wires) - len(updates)
        self.name, self.op, self.phase = name, given["op"], given["phase"]
        self.reads = [(source, output) for _, source, output in wires[:count]]
        self.written = {output: wires[position][1] for position, output in updates}
        assert sorted(position for position, _ in updates) == list(range(count, len(wires)))
        self.after = [source for source, _, edge in graph.in_edges(name, data=True) if edge["reads"] == ()]
        several = isinstance(given["nbytes"], tuple)
        self.sizes = list(given["nbytes"]) if several else [given["nbytes"]]
        self.shapes = [list(shape) for shape in (given["shape"] if several else [given["shape"]])]
        self.kept = list(given.get("output", ()))
        self.inplace = [list(pair) for pair in given.get("inplace", ())]


def computed(graph: nx.DiGraph) -> list[Node]:
    return [Node(graph, name) for name, kind in graph.nodes(data="kind", default="op") if kind == "op"]


def internal_bytes(graph: nx.DiGraph) -> int:
    """Sum of all computed values that MXNet has to find memory for."""
    total = 0
    for _, given in graph.nodes(data=True):
        if "op" in given:
            sizes = given["nbytes"] if isinstance(given["nbytes"], tuple) else (given["nbytes"],)
            total += sum(sizes) - sum(sizes[output] for _, output in given.get("updates", ()))
    return total


@every("name", MODELS)
def test_equals_the_original_tensor_by_tensor_in_execution_order(shared: Path, name: str) -> None:
    graph, fixture = model(name), read_json(shared, f"{name}_sharing")
    entries = fixture["entries"]
    nodes = computed(graph)
    assert len(nodes) == len(fixture["nodes"]) == fixture["golden"]["nodes"]
    entry_of: dict[tuple[str, int], int] = {}
    for ours, original in zip(nodes, fixture["nodes"], strict=True):
        assert (ours.op, ours.phase) == (original["op"], original["phase"]), ours.name
        # Sums and hints share names in the original.
        assert ours.name == original["name"] or original["name"].startswith(("sum_grad", "_id"))
        made = [entries[entry] for entry in original["outputs"]]
        assert ours.sizes == [entry["bytes"] for entry in made], ours.name
        assert ours.shapes == [entry["shape"] for entry in made], ours.name
        assert ours.kept == [k for k, entry in enumerate(made) if entry["is_output"]], ours.name
        assert list(ours.written) == [k for k, entry in enumerate(made) if entry["external"]], ours.name
        # MXNet takes no other
        pairs = [[i, o, bool(same)] for i, o, same in original["inplace"] if not made[o]["external"]]
        assert ours.inplace == pairs, ours.name
        counted = [entry for i, entry in enumerate(original["inputs"]) if i not in original["ignored_inputs"]]
        assert len(ours.reads) == len(counted), ours.name
        for value, entry in zip(ours.reads, counted, strict=True):
            if value not in entry_of:  # a variable, at its first reader
                entry_of[value] = entry
                assert value[0] == entries[entry]["name"] or (
                    value[0].endswith("_head_grad") and not entries[entry]["name"]
                )
                node = graph.nodes[value[0]]
                assert [node["nbytes"], list(node["shape"])] == [entries[entry][key] for key in ("bytes", "shape")]
            assert entry_of[value] == entry, ours.name
        ignored = [original["inputs"][i] for i in original["ignored_inputs"]]
        assert [entry_of[source, 0] for source in ours.after[: len(ignored)]] == ignored, ours.name
        entry_of |= {(ours.name, k): entry for k, entry in enumerate(original["outputs"])}
    assert sorted(entry_of.values()) == list(range(len(entries)))  # one to one
    assert len(entry_of) == fixture["golden"]["entries"]


@every("name", MODELS)
def test_sizes_outside_the_totals_are_the_original_ones(shared: Path, name: str) -> None:
    golden = read_json(shared, f"{name}_sharing")["golden"]
    residents = [op for op in program(name).ops if op.resident]
    arrays = [op for op in residents if op.name.endswith("_grad") and op.kind == "state"]
    assert sum(op.outputs[0].nbytes for op in arrays) == golden["external_gradient_bytes"]
    assert sum(op.outputs[0].nbytes for op in residents if op not in arrays) == golden["external_variable_bytes"]
    fresh = [t for op in program(name).ops for t in op.outputs if not program(name).on_resident(t.name)]
    assert sum(t.nbytes for t in fresh) == golden["no_sharing_total_bytes"]
    assert len(fresh) == golden["internal_entries"]


@every("name", MODELS)
def test_every_argument_has_its_gradient_and_nothing_else_has(name: str) -> None:
    graph = model(name)
    arguments = [n for n, k in graph.nodes(data="kind") if k in ("input", "parameter") and not n.endswith("_head_grad")]
    written = {array: (node, output) for node in computed(graph) for output, array in node.written.items()}
    assert sorted(written) == sorted(f"{argument}_grad" for argument in arguments)
    for argument in arguments:
        assert graph.nodes[f"{argument}_grad"]["shape"] == graph.nodes[argument]["shape"]
        node, _ = written[f"{argument}_grad"]
        if node.op == "_copy" or node.op == "add_n":  # shared over time
            continue
        forward = node.name.removesuffix("_backward")
        assert graph.has_edge(argument, forward)


@every("name", MODELS)
def test_the_judge_finds_the_original_live_peaks(shared: Path, name: str) -> None:
    golden = read_json(shared, f"{name}_sharing")["golden"]
    bare = model(name).copy()
    for node in bare:
        bare.nodes[node].pop("inplace", None)
    without = lower(bare)
    assert simulate(without, keep_all(without), memory=ACTIVATIONS).peak_bytes == golden["live_peak_bytes"]
    graph = program(name)
    assert simulate(graph, keep_all(graph), memory=ACTIVATIONS).peak_bytes == golden["live_peak_inplace_bytes"]


@every("name", MODELS)
def test_the_original_allocator_gives_the_original_totals(shared: Path, name: str) -> None:
    golden = read_json(shared, f"{name}_sharing")["golden"]
    graph = program(name)
    for match_range in ("0", "2", "16"):
        allocator = partial(nnvm, match_range=int(match_range))
        found = allocate(graph, keep_all(graph), allocator=allocator, memory=ACTIVATIONS)
        assert found.arena_bytes == golden["by_match_range"][match_range]["total_bytes"]


@every(("build", "mb"), [
    (partial(zoo.mxnet_resnet, (3, 4, 23, 3)), 13995), (partial(zoo.mxnet_resnet, (3, 24, 36, 3)), 28279),
    (partial(zoo.mxnet_lstm, 256), 87576),
])  # fmt: skip
def test_depths_without_a_fixture_have_the_measured_sum_of_tensors(build: Callable[[], nx.DiGraph], mb: int) -> None:
    """original.md section 3, column no-opt."""
    assert internal_bytes(build()) >> 20 == mb


# --- forward part and marks


def test_the_forward_part_equals_the_layer_table(shared: Path) -> None:
    graph = model("resnet_3-4-6-3")
    rows = list(csv.DictReader((shared / "data" / "mxnet" / "resnet_layers.csv").open()))
    nodes = {node.name: node for node in computed(graph)}
    order = [name for name, node in nodes.items() if node.phase == "forward"]
    assert len(order) == 180
    for row in rows:
        output, shape = int(row["output_index"]), [int(extent) for extent in row["output_shape"].split("x")]
        if row["op"] == "variable":
            given = graph.nodes[row["name"]]
            assert (given["nbytes"], list(given["shape"])) == (int(row["output_bytes"]), shape)
            continue
        node = nodes[row["name"]]
        assert order[int(row["order"])] == row["name"]
        assert (node.op, node.sizes[output], node.shapes[output]) == (row["op"], int(row["output_bytes"]), shape)
        if output == 0:
            assert [source for source, _ in node.reads] == row["inputs"].split(";")
    outputs = sum(len(nodes[name].sizes) for name in order)
    variables = sum(1 for n, k in graph.nodes(data="kind") if k and not n.endswith("_grad"))
    assert outputs + variables == len(rows)


def swept(graph: Graph) -> list[list[Any]]:
    """What Alg. 3 sweeps: variables in order of their first readers, and the outputs users see (of batch norm, one)."""
    rows: list[list[Any]] = []
    for op in graph.ops:
        if op.phase == "backward":
            break
        if op.resident:
            rows.append([op.name, op.outputs[0].nbytes, int(op.kind == "parameter"), None])
            continue
        stage = "True" if op.stage is True else op.stage
        visible = op.outputs[:1] if op.op == "BatchNorm" else op.outputs
        for k, tensor in enumerate(visible):
            rows.append([f"{op.name}_output{k if len(visible) > 1 else ''}", tensor.nbytes, 0, stage])
    return rows


@every("name", TRACED)
def test_marks_and_sweep_equal_the_traces_of_the_search(shared: Path, name: str) -> None:
    trace = read_json(shared, f"alg3_{name}")
    found = swept(program(name))
    last = next((k for k, row in enumerate(found) if row[0].endswith(("_head_grad", "_grad"))), len(found))
    assert found[:last] == trace["sequence"]
    marks = [[op.name, op.op, int(op.stage is not None)] for op in program(name).ops if op.phase == "forward"]
    assert marks == [[node, op, candidate] for node, op, _, candidate, _ in trace["decisions"]]


def test_a_resnet_of_another_size_keeps_its_rules() -> None:
    graph = zoo.mxnet_resnet([2, 1], batch=3, image=75, classes=7)
    assert graph.nodes["softmax"]["shape"] == (3, 7)
    assert [n for n, stage in graph.nodes(data="stage") if stage] == ["leakyrelu4", "_plus0", "leakyrelu11"]
    assert graph.nodes["global_pool"]["shape"] == (3, 512, 1, 1)


# --- gradient sums

SMALL = {"batch": 2, "layers": 1, "hidden": 3, "features": 4, "embed": 5, "classes": 6}


@every("steps", [1, 2, 7, 8, 20])
def test_gradients_of_shared_weights_are_one_sum_up_to_7_terms_and_a_chain_from_8(steps: int) -> None:
    graph = zoo.mxnet_lstm(steps, **SMALL)
    shared = [n for n, k in graph.nodes(data="kind") if k == "parameter"]
    assert len(shared) == 7
    ops = Counter(op for _, op in graph.nodes(data="op"))
    sums = [node for node in computed(graph) if node.op == "add_n" and node.written]
    if steps == 1:
        assert not sums
    elif steps < 8:
        assert [len(node.reads) for node in sums] == [steps] * len(shared)
        assert ops["_grad_add"] == ops["_copy"] == 0
    else:
        assert not sums
        assert (ops["_grad_add"], ops["_copy"]) == (len(shared) * (steps - 1), len(shared))
        # Latest time step first, and no term is made before the sum so far.
        for k in range(1, steps):
            before = f"t{steps - 1}_cls_backward" if k == 1 else f"cls_weight_sum_{k - 1}"
            term = f"t{steps - 1 - k}_cls_backward"
            assert Node(graph, f"cls_weight_sum_{k}").reads == [(before, int(k == 1)), (term, 1)]
            assert before in Node(graph, term).after
    simulate(lower(graph), keep_all(lower(graph)), memory=ACTIVATIONS)


def test_lstm_sizes_grow_by_the_same_amount_each_step() -> None:
    parts = []
    for steps in (16, 17, 40):
        graph = zoo.mxnet_lstm(steps, **SMALL)
        parameters = sum(a["nbytes"] for _, a in graph.nodes(data=True) if a.get("kind") == "parameter")
        parts.append((sum("op" in a for _, a in graph.nodes(data=True)), internal_bytes(graph), parameters))
    one, two, last = parts
    assert [b - a for a, b in zip(one, last, strict=True)] == [24 * (b - a) for a, b in zip(one, two, strict=True)]
    assert one[2] == two[2] == 4 * (5 * 4 + 12 * (5 + 3 + 2) + 6 * (3 + 1))


def test_arithmetic_is_that_of_the_convolutions_and_twice_that_backward() -> None:
    graph = model("resnet_3-4-6-3")
    flops = {n: a["flops"] for n, a in graph.nodes(data=True) if "flops" in a}
    batch, channels, height, width = graph.nodes["convolution0"]["shape"]
    assert flops["convolution0"] == 2 * batch * channels * height * width * 3 * 7 * 7
    assert flops["convolution0_backward"] == 2 * flops["convolution0"] + math.prod(graph.nodes["convolution0"]["shape"])
    assert flops["fc1_backward"] == 2 * flops["fc1"] + 32 * 1000
    assert flops["_plus0"] == flops["_plus1"] == math.prod(graph.nodes["_plus0"]["shape"])
    assert (flops["flatten"], graph.nodes["flatten"]["cost"]) == (0, 0.0)
    assert all(
        a["cost"] > 0 for n, a in graph.nodes(data=True) if a.get("op") not in (None, "Flatten", "_backward_copy")
    )


def test_seconds_are_of_the_device() -> None:
    slow, fast = (zoo.mxnet_lstm(2, **SMALL, device=name) for name in ("v100", "h100"))
    assert all(slow.nodes[n]["cost"] > a["cost"] for n, a in fast.nodes(data=True) if a.get("op") == "SliceChannel")


def test_995_layers_are_built_in_seconds_and_lstms_in_linear_time() -> None:
    start = time.process_time()
    zoo.mxnet_resnet((15, 120, 180, 15))
    assert time.process_time() - start < 5
    seconds = []
    for steps in (30, 120):
        start = time.process_time()
        zoo.mxnet_lstm(steps)
        seconds.append(time.process_time() - start)
    assert seconds[1] < 12 * seconds[0] + 1  # linear in steps


# --- our LSTM


@every("steps", [1, 2, 9])
def test_lstm_parameters_are_counted_once(steps: int) -> None:
    graph = zoo.lstm(steps, batch=2, layers=3, hidden=4, features=5, classes=6)
    assert of_kind(graph, "parameter") == 16 * (5 + 4 + 2) + 2 * 16 * (4 + 4 + 2) + 6 * (4 + 1)
    assert of_kind(graph, "input") == steps * 2 * (5 + 1) + 3 * 2 * (2 * 4)
    assert len([n for n, k in graph.nodes(data="kind") if k == "parameter"]) == 3 * 4 + 2


def test_lstm_forward_has_the_closed_form_bytes() -> None:
    steps, batch, layers, hidden, classes = 5, 3, 2, 8, 11
    graph = zoo.lstm(steps, batch=batch, layers=layers, hidden=hidden, classes=classes)
    forward = [a for _, a in graph.nodes(data=True) if a.get("phase") == "forward"]
    made = sum(sum(a["nbytes"]) if isinstance(a["nbytes"], tuple) else a["nbytes"] for a in forward)
    # Three products and their slices of four gates each, four gates, keep, write, cell, tanh, hidden; logits,
    # log-probabilities, loss.
    assert made == 4 * steps * (layers * batch * hidden * (4 * 4 + 4 + 5) + 2 * batch * classes + 1)
    flops = sum(a["flops"] for a in forward if a["op"] == "Gemm")
    assert flops == 2 * steps * batch * (layers * 4 * hidden * 2 * hidden + classes * hidden)


@every("steps", [2, 6])
def test_lstm_gradients_of_shared_weights_accumulate_over_time(steps: int) -> None:
    graph = zoo.lstm(steps, batch=2, layers=2, hidden=4, classes=6)
    makers = {"l0.weight_hidden": "l0.hidden_gates", "l1.bias_input": "l1.input_gates", "head.weight": "head"}
    for weight, maker in makers.items():
        terms = {f"t{t}.{maker}.bwd" for t in range(steps)}
        adds = [n for n in graph if n.startswith(f"{weight}.grad")]
        assert len(adds) == steps - 1
        assert {u for n in adds for u in graph.predecessors(n)} - set(adds) == terms
        assert graph.has_edge(adds[-1], f"{weight}.update")
    assert len([n for n in graph if n.endswith(".update")]) == 10


def test_lstm_marks_what_goes_to_the_next_time_step() -> None:
    graph = zoo.lstm(3, batch=2, layers=2, hidden=4, classes=6)
    marked: dict[str, set[str]] = {}
    for node, stage in graph.nodes(data="stage"):
        if stage is not None:
            marked.setdefault(stage, set()).add(node)
    assert marked == {str(t): {f"t{t}.l{k}.{part}" for k in (0, 1) for part in ("cell", "hidden")} for t in range(3)}
    for source, reader in graph.edges():
        later = source.startswith("t0.") and reader.startswith("t1.") and graph.nodes[reader]["phase"] == "forward"
        assert not later or source in marked["0"]


def test_lstm_for_inference_gives_the_logits_of_each_step() -> None:
    graph = zoo.lstm(4, batch=2, layers=1, hidden=4, classes=6, training=False)
    found = lower(graph)
    assert set(found.outputs) == {*(f"t{t}.head" for t in range(4))}
    assert not any("labels" in n for n in graph)


def test_an_lstm_computes_the_textbook_equations() -> None:
    """The DAG, run by its op types in numpy, against the recurrence written down independently."""
    steps, batch, hidden = 3, 2, 4
    graph = zoo.lstm(steps, batch=batch, layers=2, hidden=hidden, classes=5, training=False)
    random = np.random.default_rng(0)
    values: dict[tuple[str, int], np.ndarray] = {}
    rules: dict[str, Callable[..., Any]] = {"Add": np.add, "Mul": np.multiply, "Tanh": np.tanh}
    rules.update(Gemm=lambda x, w, b: x @ w.T + b, Sigmoid=lambda x: 1 / (1 + np.exp(-x)))
    for name, given in graph.nodes(data=True):
        if given.get("kind", "op") != "op":
            values[name, 0] = random.normal(size=given["shape"])
            continue
        reads = [values[value] for value in Node(graph, name).reads]
        if given["op"] == "Split":
            values |= {(name, k): part for k, part in enumerate(np.split(reads[0], 4, axis=1))}
        else:
            values[name, 0] = rules[given["op"]](*reads)
    weights = {name: values[name, 0] for name, kind in graph.nodes(data="kind") if kind == "parameter"}
    h = [values[f"l{k}.hidden", 0] for k in (0, 1)]
    c = [values[f"l{k}.cell", 0] for k in (0, 1)]
    for t in range(steps):
        x = values[f"t{t}.input", 0]
        for k in (0, 1):
            gates = x @ weights[f"l{k}.weight_input"].T + weights[f"l{k}.bias_input"]
            gates = gates + h[k] @ weights[f"l{k}.weight_hidden"].T + weights[f"l{k}.bias_hidden"]
            i, f, g, o = (gates[:, part * hidden : (part + 1) * hidden] for part in range(4))
            c[k] = c[k] / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
            h[k] = np.tanh(c[k]) / (1 + np.exp(-o))
            x = h[k]
        np.testing.assert_allclose(values[f"t{t}.head", 0], x @ weights["head.weight"].T + weights["head.bias"])


# --- by name, and what is refused


def test_build_knows_the_original_networks() -> None:
    by_name = zoo.build("mxnet_resnet:1-2", batch=1, image=64)
    assert lower(by_name).ops == lower(zoo.mxnet_resnet((1, 2), batch=1, image=64)).ops
    assert lower(zoo.build("mxnet_lstm:3", batch=1)).ops == lower(zoo.mxnet_lstm(3, batch=1)).ops
    assert lower(zoo.build("inception_bn", batch=1)).ops == lower(zoo.inception_bn(batch=1)).ops
    assert lower(zoo.build("lstm:2", batch=3, layers=1)).ops == lower(zoo.lstm(2, batch=3, layers=1)).ops
    assert lower(zoo.mxnet_resnet(np.array([1, 2]).tolist(), batch=np.int64(1), image=64)).ops


@every("stages", [(), 5, "3-4-6-3", None])
def test_stages_must_be_blocks_per_stage(stages: Any) -> None:
    with pytest.raises(GraphError, match=r"mxnet_resnet: stages is .*expected blocks per stage"):
        zoo.mxnet_resnet(stages)
