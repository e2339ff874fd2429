"""`planner inspect`: bytes and readers by module, op type and op; and hostile names in what the commands print."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from conftest import Answer
from rich.console import Console

from planner import zoo
from planner.cli import tables
from planner.footprint.inventory import take_inventory
from planner.footprint.modules import Breakdown, Row, break_down
from planner.lowering.onnx.importer import from_onnx
from planner.lowering.schema import lower
from planner.memory import MemoryModel
from planner.names import scoped

GRAPHS: dict[str, Callable[[], nx.DiGraph]] = {
    "resnet": lambda: zoo.resnet((2, 1), batch=2, image=64, optimizer="adam"),
    "gpt": lambda: zoo.gpt(2, batch=2, tokens=8, hidden=8, heads=2, vocabulary=11, dropout=0.1, fused_attention=False),
    "gpt-16-bit": lambda: zoo.gpt(
        1, batch=2, tokens=8, hidden=8, heads=2, vocabulary=12, dtype="bfloat16", master_weights=True
    ),
    "lstm": lambda: zoo.lstm(3, batch=2, layers=2, hidden=4, classes=5),
    "tied mlp": lambda: zoo.mlp((8, 8, 8, 8), batch=2, tied=True),
    "densenet": lambda: zoo.densenet((2, 2), batch=1, image=64),
    "inference": lambda: zoo.vgg(16, batch=1, image=32, training=False),
    "chain": lambda: zoo.chain(9),
}


class Twin:
    """The same facts read off the networkx DAG, slowly and by other means."""

    def __init__(self, graph: nx.DiGraph) -> None:
        self.graph = graph
        self.nodes: dict[str, dict[str, Any]] = {str(node): attributes for node, attributes in graph.nodes(data=True)}
        self.first_reader: dict[str, str] = {}
        for node in graph:  # in program order
            for before, _, edge in graph.in_edges(node, data=True):
                if edge.get("reads", (0,)):
                    self.first_reader.setdefault(str(before), str(node))
        self.saved: dict[tuple[str, int], set[str]] = defaultdict(set)
        for node, attributes in self.nodes.items():
            for before, _, edge in graph.in_edges(node, data=True) if attributes.get("phase") == "backward" else ():
                for output in edge.get("reads", (0,)):
                    root = self.root(str(before), output)
                    maker = self.nodes[root[0]]
                    if maker.get("phase") in ("forward", "loss") and maker.get("kind", "op") == "op":
                        self.saved[root].add(node)

    def root(self, node: str, output: int) -> tuple[str, int]:
        """The node and output that allocated the storage: through views and updates to where they begin."""
        for pair in (*self.nodes[node].get("view", ()), *self.nodes[node].get("updates", ())):
            if pair[1] == output:
                for before, _, edge in self.graph.in_edges(node, data=True):
                    for read, at in zip(edge.get("reads", (0,)), edge.get("at", (0,)), strict=True):
                        if at == pair[0]:
                            return self.root(str(before), read)
        return node, output

    def sizes(self, node: str) -> list[int]:
        nbytes = self.nodes[node]["nbytes"]
        return [nbytes] if isinstance(nbytes, int) else list(nbytes)

    def totals(self, belongs: Callable[[str], bool]) -> dict[str, Any]:
        """What a row must say whose ops are those for which `belongs` is true."""
        own = {node: attributes.get("kind", "op") for node, attributes in self.nodes.items()}
        ops = [node for node, kind in own.items() if kind == "op" and belongs(node)]
        read = [node for node, kind in own.items() if kind == "parameter" and node in self.first_reader]
        weights = [node for node in read if belongs(self.first_reader[node])]
        sized = {(node, k): size for node in ops for k, size in enumerate(self.sizes(node))}
        fresh = {place: size for place, size in sized.items() if self.root(*place) == place}
        forward = [node for node in ops if self.nodes[node].get("phase") in ("forward", "loss")]
        backward = [node for node in ops if self.nodes[node].get("phase") == "backward"]

        def total(fact: str, nodes: list[str], default: float = 0) -> Any:
            return sum(self.nodes[node].get(fact, default) for node in nodes)

        return {
            "ops": len(ops),
            "parameter_bytes": sum(sum(self.sizes(node)) for node in weights),
            "nbytes": sum(fresh.values()),
            "forward_bytes": sum(size for (node, _), size in fresh.items() if node in forward),
            "saved_storages": len(self.saved.keys() & fresh.keys()),
            "saved_bytes": sum(size for root, size in fresh.items() if root in self.saved),
            "cost": pytest.approx(total("cost", ops, 1.0)),
            "flops": total("flops", ops),
            "forward_flops": total("flops", forward),
            "backward_flops": total("flops", backward),
        }

    def readers(self, belongs: Callable[[str], bool], called: Callable[[str], str]) -> dict[str, int]:
        """By name of a reader, the bytes it reads of what such ops made."""
        read: dict[str, set[tuple[str, int]]] = defaultdict(set)
        for root, nodes in self.saved.items():
            for node in nodes if belongs(root[0]) else ():
                read[called(node)].add(root)
        return {name: sum(self.sizes(node)[k] for node, k in roots) for name, roots in read.items()}


def facts(row: Row) -> dict[str, Any]:
    names = ("ops", "parameter_bytes", "nbytes", "forward_bytes", "saved_storages", "saved_bytes", "cost", "flops")
    return {name: getattr(row, name) for name in (*names, "forward_flops", "backward_flops")}


def readers(row: Row) -> dict[str, int]:
    return {reader.name: reader.nbytes for reader in row.readers}


def found_in(graph: nx.DiGraph) -> Breakdown:
    return break_down(lower(graph))


def golden(shared: Path, start: str) -> list[int]:
    """Numbers with a thousands comma in the value column of a row of golden.md."""
    line = next(line for line in (shared / "golden.md").read_text().splitlines() if line.startswith(f"| {start}"))
    return [int(number.replace(",", "")) for number in re.findall(r"\d{1,3}(?:,\d{3})+", line.split("|")[2])]


@pytest.mark.parametrize("name", GRAPHS)
def test_ops_types_and_modules_hold_what_the_dag_says_and_add_up(name: str) -> None:
    graph = GRAPHS[name]()
    program, twin = lower(graph), Twin(graph)
    found, inventory = break_down(program), take_inventory(program, MemoryModel())
    types = {node: a["op"] for node, a in twin.nodes.items() if a.get("kind", "op") == "op"}
    assert [row.name for row in found.ops] == list(types)
    for row in found.ops:
        assert facts(row) == twin.totals(lambda node, row=row: node == row.name)
        assert readers(row) == twin.readers(lambda node, row=row: node == row.name, str)
    assert {row.name for row in found.operators} == set(types.values())
    for row in found.operators:
        assert facts(row) == twin.totals(lambda node, row=row: types[node] == row.name)
        assert readers(row) == twin.readers(lambda node, row=row: types[node] == row.name, types.__getitem__)
    if name in ("resnet", "densenet", "inference"):
        modules_are_prefixes(found, twin)
    assert (found.total.saved_storages, found.total.saved_bytes) == (inventory.saved_tensors, inventory.saved_bytes)
    assert found.total.ops == inventory.ops
    assert found.total.nbytes == sum(group.nbytes for group in inventory.phases)
    outermost = [row for row in found.modules if row.depth == 1]
    for rows in (outermost, found.operators, found.ops):
        for fact, value in facts(found.total).items():
            assert sum(getattr(row, fact) for row in rows) == (pytest.approx(value) if fact == "cost" else value)


def modules_are_prefixes(found: Breakdown, twin: Twin) -> None:
    """Where every name starts with that of its layer, a module holds exactly the ops whose names it begins."""
    names = {row.name for row in found.modules}
    layers = {name for name in names if not any(other.startswith(f"{name}.") for other in names)}

    def inside(module: str, node: str) -> bool:
        return node == module or node.startswith(f"{module}.")

    for row in found.modules:
        assert facts(row) == twin.totals(lambda node, row=row: inside(row.name, node))

        def called(node: str, row: Row = row) -> str:
            layer = next(layer for layer in layers if inside(layer, node))
            return layer if row.name in layers else ".".join(layer.split(".")[: row.depth])

        assert readers(row) == twin.readers(lambda node, row=row: inside(row.name, node), called)


def test_a_module_is_followed_by_what_is_inside_it() -> None:
    found = found_in(zoo.resnet((2, 1), batch=1, image=64))
    around: list[str] = []
    for row in found.modules:
        assert row.depth == len(row.name.split("."))
        del around[row.depth - 1 :]
        assert row.name.split(".")[:-1] == (around[-1].split(".") if around else [])
        around.append(row.name)
    assert len({row.name for row in found.modules}) == len(found.modules)


def test_resnet50_has_the_parameters_and_multiply_adds_of_the_literature(shared: Path) -> None:
    found = found_in(zoo.resnet(50, batch=1))
    assert found.total.parameters == golden(shared, "ResNet-50 params")[0] == 25_557_032
    types = {row.name: row for row in found.operators}
    multiply_adds = golden(shared, "multiply-adds ResNet-50 / 101 / 152")[0]
    assert types["Conv"].forward_flops + types["Gemm"].forward_flops == 2 * multiply_adds == 8_178_368_512
    text = (shared / "golden.md").read_text()
    stages = re.search(r"ResNet-50 v1.5 per stage.*?fc 1,000 \([\d,]+\)", text, flags=re.DOTALL)
    assert stages is not None
    expected = {
        name: int(count.replace(",", "")) for name, count in re.findall(r"(\w+) [\d,]+\s*\(([\d,]+)\)", stages[0])
    }
    modules = {row.name: row for row in found.modules}
    assert {name: modules["head.fc" if name == "fc" else name].parameters for name in expected} == expected
    assert list(expected) == ["stem", "stage1", "stage2", "stage3", "stage4", "fc"]
    assert modules["stage4"].shape == (1, 2048, 7, 7)
    assert modules["stem"].shape == (1, 64, 56, 56)
    assert (modules["stem.bn"].op, modules["stem.bn"].shape) == ("BatchNormalization", (1, 64, 112, 112))


def test_vgg16_has_the_parameters_of_each_layer_and_15_47_giga_multiply_adds(shared: Path) -> None:
    found = found_in(zoo.vgg(16, batch=1))
    assert found.total.parameters == golden(shared, "VGG16 params")[0] == 138_357_544
    # 3x3 convolutions (input channels, output channels, pixels across) of configuration D, and the three layers on top
    convolutions = [(3, 64, 224), (64, 64, 224), (64, 128, 112), (128, 128, 112), (128, 256, 56), (256, 256, 56)]
    convolutions += [(256, 256, 56), (256, 512, 28), *[(512, 512, 28)] * 2, *[(512, 512, 14)] * 3]
    connected = [(25088, 4096), (4096, 4096), (4096, 1000)]
    multiply_adds = sum(9 * a * b * across**2 for a, b, across in convolutions) + sum(a * b for a, b in connected)
    types = {row.name: row for row in found.operators}
    assert types["Conv"].forward_flops + types["Gemm"].forward_flops == 2 * multiply_adds
    assert round(multiply_adds / 1e9, 2) == 15.47
    layers = [row.parameters for row in found.modules if row.op in ("Conv", "Gemm")]
    assert layers == [9 * a * b + b for a, b, _ in convolutions] + [a * b + b for a, b in connected]
    assert all(f"{count:,}" in (shared / "golden.md").read_text() for count in layers)


def test_a_layer_applied_a_hundred_times_has_its_weights_once_and_its_values_a_hundred_times() -> None:
    """cases.md C4: right after the forward 4,240,445,440 bytes are held, the input among them."""
    found = found_in(zoo.mlp([1024] * 101, batch=10240, relu=False, tied=True))
    assert found.total.parameters == 1024 * 1024 + 1024
    assert found.total.saved_storages == 100
    assert found.total.parameter_bytes + found.total.saved_bytes + 10240 * 1024 * 4 == 4_240_445_440


def test_a_recorded_training_step_saves_what_onnxruntime_saves(shared: Path) -> None:
    found = found_in(from_onnx(shared / "data/graphs/onnx_training/resnet50_training.onnx"))
    # golden.md: 212 float32 tensors of 21,180,264 elements, 200,704 of them int64 indices of the max pool
    assert (found.total.saved_storages, found.total.saved_bytes) == (212, 4 * 21_180_264 + 4 * 200_704)
    rows = {row.name: row for row in found.modules}
    # the backward of the layer after it
    assert [reader.name for reader in rows["n0"].readers] == ["n1_BatchNormInternal"]
    assert rows["n7"].backward_flops > 0  # a gradient node stands with its forward node
    # sums of a value's gradients, in no scope
    assert {name.partition("_r")[0] for name in rows if "Grad" in name} == {"AccumulateGrad"}


def test_a_view_is_saved_as_the_storage_it_looks_at_and_a_parameter_never() -> None:
    graph = nx.DiGraph()
    graph.add_node("w", nbytes=8, kind="parameter", shape=(2,))
    graph.add_node("net.a", nbytes=16, phase="forward", op="Mul")
    graph.add_node("net.v", nbytes=16, phase="forward", op="Reshape", view=((0, 0),))
    graph.add_node("loss", nbytes=4, phase="loss", op="Sum")
    graph.add_node("g", nbytes=16, phase="backward", op="MulGrad")
    graph.add_node("h", nbytes=8, phase="backward", op="MulGrad")
    graph.add_edges_from([("w", "net.a"), ("net.a", "net.v"), ("net.v", "loss"), ("net.v", "g")])
    graph.add_edges_from([("w", "h"), ("net.a", "h"), ("g", "h")])
    rows = {row.name: row for row in found_in(graph).ops}
    told = [(reader.name, reader.storages, reader.nbytes) for reader in rows["net.a"].readers]
    assert told == [("g", 1, 16), ("h", 1, 16)]
    assert (rows["net.a"].saved_storages, rows["net.a"].saved_bytes, rows["net.a"].parameters) == (1, 16, 2)
    assert (rows["net.v"].nbytes, rows["net.v"].saved_storages, rows["net.v"].readers) == (0, 0, ())
    assert rows["net.a"].unknown_flops == 1


def test_a_module_is_the_attribute_or_the_name_and_a_parameter_goes_with_its_first_reader() -> None:
    graph = nx.DiGraph()
    graph.add_node("onnx::Conv_7", nbytes=12, kind="parameter", shape=(3,))
    for name, module in {"a/b/Conv": None, "x": "a.b", "y.z": None, "plain": None}.items():
        graph.add_node(name, nbytes=1, module=module, op="Op")
    graph.add_node("onnx::Conv_7.update", nbytes=12, phase="update", op="Update")
    graph.add_node("lonely.bias", nbytes=4, kind="parameter")
    graph.add_edges_from(("onnx::Conv_7", reader) for reader in ("a/b/Conv", "plain", "onnx::Conv_7.update"))
    rows = {row.name: row for row in found_in(graph).modules}
    assert list(rows) == ["a", "a.b", "a.b.Conv", "a.b.x", "y", "y.z", "plain", "lonely", "lonely.bias"]
    assert (rows["a.b"].ops, rows["a.b"].parameters, rows["a.b.Conv"].ops, rows["plain"].parameters) == (3, 3, 2, 0)
    assert (rows["lonely"].ops, rows["lonely"].parameters, rows["lonely"].parameter_bytes) == (0, None, 4)


SCOPES = {
    "/backbone/stage3/stage3.6/Reshape_1": ("backbone", "stage3", "6", "Reshape_1"),
    "/model/layers.0/self_attn/q_proj/MatMul": ("model", "layers", "0", "self_attn", "q_proj", "MatMul"),
    "m/x/slice;m/y/slice": ("m", "x", "slice"),
    "a;b": ("a;b",), "f1": ("f1",), "...": ("...",), "": ("",),
}  # fmt: skip


def test_scopes_of_exporters_are_told_apart() -> None:
    assert {name: scoped(name) for name in SCOPES} == SCOPES


def test_onnx_nodes_carry_the_module_their_exporter_wrote(shared: Path) -> None:
    graph = from_onnx(shared / "data/graphs/onnx_wild/fastestdet.onnx")
    assert graph.nodes["/backbone/stage3/stage3.6/Reshape_1"]["module"] == "backbone.stage3.6"
    assert graph.nodes["/backbone/first_conv/first_conv.0/Conv.bwd"]["module"] == "backbone.first_conv.0"
    names = {row.name for row in found_in(graph).modules if row.depth == 2 and row.name.startswith("backbone.")}
    assert names == {"backbone.first_conv", "backbone.maxpool", "backbone.stage2", "backbone.stage3", "backbone.stage4"}


def test_a_name_of_ten_thousand_parts_is_no_tree_of_ten_thousand_rows() -> None:
    graph = nx.DiGraph()
    graph.add_node(".".join(map(str, range(10_000))), nbytes=1)
    assert len(found_in(graph).modules) <= 32


def test_the_largest_model_of_the_zoo_is_told_in_seconds() -> None:
    program = lower(zoo.resnet(1001, batch=32))
    start = time.process_time()
    found = break_down(program)
    assert time.process_time() - start < 10
    assert found.total.parameters == 376_355_880  # design.md 5
    assert len([row for row in found.modules if row.depth == 2 and row.name.startswith("stage3.")]) == 319


RESNET = ("inspect", "resnet:2-2", "--batch", "2", "--dim", "image=64")


def table(answer: Answer) -> list[str]:
    """Lines between the two rules."""
    lines = answer.out.splitlines()
    rules = [k for k, line in enumerate(lines) if set(line.strip()) == {"─"}]
    return lines[rules[0] + 1 : rules[1]]


def test_json_holds_all_rows_whatever_the_table_shows(run) -> None:
    found = json.loads(run(*RESNET, "--json", "--limit", "1", "--by", "op").out)
    assert (found["schema"], found["version"]) == ("planner-inventory", 1)
    program = lower(zoo.resnet((2, 2), batch=2, image=64))
    assert len(found["breakdown"]["ops"]) == sum(not op.resident for op in program.ops)
    conv = next(row for row in found["breakdown"]["modules"] if row["name"] == "stage1.block2.conv2")
    assert (conv["op"], conv["shape"], conv["parameters"], conv["depth"]) == ("Conv", [2, 64, 16, 16], 64 * 64 * 9, 3)
    assert conv["forward_flops"] == 2 * 9 * 64 * 64 * 16 * 16 * 2
    assert (conv["saved_storages"], conv["saved_bytes"]) == (1, 2 * 64 * 16 * 16 * 4)
    assert conv["readers"] == [{"name": "stage1.block2.bn2", "storages": 1, "nbytes": 2 * 64 * 16 * 16 * 4}]
    facts_of_ops = [pair for row in found["breakdown"]["ops"] for pair in row.items()]
    assert {type(value) for key, value in facts_of_ops if key.endswith(("bytes", "flops", "storages"))} == {int}
    assert found["inventory"]["saved_bytes"] == found["breakdown"]["total"]["saved_bytes"]


def test_rows_left_out_are_counted(run) -> None:
    for by in ("module", "op", "layer"):
        options = (*RESNET, "--by", by, *(("--depth", "3") if by == "module" else ()))
        whole, cut = (table(run(*options, "--limit", limit)) for limit in (0, 5))
        assert [line.split() for line in cut[:5]] == [line.split() for line in whole[:5]]
        assert cut[5:] == [f"  ... {len(whole) - 5:,} more rows; --limit 0 shows all"]


def test_without_a_depth_modules_go_as_deep_as_the_limit_shows_whole(run) -> None:
    shallow, deep = run(*RESNET, "--limit", "10"), run(*RESNET, "--limit", "20")
    assert [line.split()[0] for line in table(shallow)] == ["stem", "stage1", "stage2", "head", "loss"]
    assert [line.split()[0] for line in table(deep)][:5] == ["stem", "conv", "bn", "relu", "pool"]
    assert "Modules to depth 1 of 4; --depth 2 has 11 rows more" in shallow.out  # stem 4, stages 2 each, head 3
    assert (
        len(table(run(*RESNET, "--depth", "2", "--limit", "0"))) == 5 + 11
    )  # without the barrier, which holds nothing


def test_a_module_table_names_the_layers_whose_backward_reads(run) -> None:
    lines = {line.split()[0]: line for line in table(run(*RESNET, "--depth", "2", "--limit", "0"))[:5]}
    assert lines["conv"].endswith("  stem.bn")
    assert lines["relu"].endswith("  itself")
    assert "[2, 64, 32, 32]" in lines["conv"]
    assert "9,408" in lines["conv"]
    assert "stage1" in lines["pool"]


def test_sorting_puts_the_most_saved_first_and_keeps_modules_together(run) -> None:
    answer = run(*RESNET, "--depth", "2", "--limit", "0", "--sort", "saved")
    rows = {row.name: row for row in found_in(zoo.resnet((2, 2), batch=2, image=64)).modules if row.depth <= 2}
    del rows["barrier"]  # it holds nothing
    expected = []
    for outer in sorted((row for row in rows.values() if row.depth == 1), key=lambda row: -row.saved_bytes):
        expected.append(outer.name)
        inner = [row for row in rows.values() if row.name.startswith(f"{outer.name}.")]
        expected += [row.name.split(".")[1] for row in sorted(inner, key=lambda row: -row.saved_bytes)]
    assert [line.split()[0] for line in table(answer)] == expected


def test_the_readme_shows_what_is_printed(run) -> None:
    readme = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")
    after = readme.partition("`planner inspect resnet:50 --batch 32 --depth 1` prints")[2]
    shown = after.partition("```text\n")[2].partition("```")[0]
    assert run("inspect", "resnet:50", "--batch", "32", "--depth", "1").out.startswith(shown)
    assert len(shown.splitlines()) == 13


def test_a_depth_is_for_modules_only(run) -> None:
    answer = run(*RESNET, "--by", "op", "--depth", "2")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == "error: --depth is for --by module; --by op has no tree\n"


HEADINGS = {
    "module": ["module", "op", "output shape", "params", "fwd FLOPs", "bwd FLOPs", "cost", "forward", "saved"],
    "op": ["op type", "ops", "params", "FLOPs", "cost", "bytes", "saved"],
    "layer": ["layer", "op", "phase", "output shape", "params", "FLOPs", "cost", "bytes", "saved"],
}


@pytest.mark.parametrize("width", [40, 80, 120, 160, 300])
def test_a_table_fits_its_terminal_and_says_what_it_left_out(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    found = found_in(zoo.gpt(2, batch=1, tokens=8, hidden=8, heads=2, vocabulary=11))
    for by, every in HEADINGS.items():
        screen = io.StringIO()
        screen.isatty = lambda: True  # type: ignore[method-assign]
        monkeypatch.setattr(sys, "stdout", screen)
        monkeypatch.setattr(tables, "console", lambda screen=screen: Console(file=screen, width=width))
        tables.print_breakdown(found, by=by, depth=None, limit=0, sort=None)
        lines = screen.getvalue().splitlines()
        left_out = [line for line in lines if line.startswith("  Left out in")]
        body = [line for line in lines if line not in left_out and not line.startswith("  Modules to")]
        assert max(map(len, body)) <= width
        *shown, reader = re.split(r"\s{2,}", lines[0].strip())
        hidden = left_out[0].partition(": ")[2].partition(";")[0].split(", ") if left_out else []
        assert sorted([*shown, *hidden]) == sorted(every)
        assert [heading for heading in every if heading in shown] == shown
        assert {every[0], "saved"} <= set(shown)
        assert reader.startswith("read")
        assert not (hidden and width == 300)


HOSTILE = "n\x1b[31mred\x9b2J\nfake line\u202e"


def test_names_of_a_file_cannot_steer_the_terminal(run, tmp_path: Path) -> None:
    graph = nx.DiGraph(name=f"graph {HOSTILE}")
    graph.add_node(HOSTILE, nbytes=64, phase="forward", op=f"Op{HOSTILE}", module=f"m{HOSTILE}")
    graph.add_node("b", nbytes=64, phase="backward", op=f"Grad{HOSTILE}")
    graph.add_edge(HOSTILE, "b")
    (tmp_path / "g.json").write_text(json.dumps(nx.node_link_data(graph, edges="links")))
    assert run("optimize", "g.json", "-o", "plan.json").code == 0
    commands = ("inspect", "inspect --by op", "inspect --by layer", "optimize", "estimate", "curve", "simulate")
    for command in commands:
        verb, *options = command.split()
        answer = run(verb, "plan.json" if verb == "simulate" else "g.json", *options)
        assert answer.code == 0, command
        assert r"n\x1b[31mred\x9b2J\nfake line\u202e" in answer.out, command
        assert not [char for char in answer.out if char != "\n" and not char.isprintable()], command
        assert not [line for line in answer.out.splitlines() if line.startswith("fake line")], command


def test_equal_neighbours_are_one_row_with_their_number(run) -> None:
    sizes = [f"--option={size}" for size in ("tokens=8", "hidden=8", "heads=2", "vocabulary=11")]
    lines = table(run("inspect", "gpt:6", "--batch", "1", "--depth", "1", *sizes))
    # the last block is read by the head, and has one op less: the others hand their sum of gradients on
    assert [re.split(r"  +", line.strip())[0] for line in lines] == ["embed", "h0-h4 x 5", "h5", "head", "loss"]
    assert lines[1].endswith("  itself, the next")
    assert lines[2].endswith("  itself, head")


def test_rows_are_written_as_a_table_with_exact_bytes(run, tmp_path: Path) -> None:
    assert run(*RESNET, "--by", "layer", "-o", "rows.csv", "-q").code == 0
    rows = list(csv.DictReader((tmp_path / "rows.csv").open()))
    found = found_in(zoo.resnet((2, 2), batch=2, image=64))
    assert [row["name"] for row in rows] == [row.name for row in found.ops]
    assert sum(int(row["saved_bytes"]) for row in rows) == found.total.saved_bytes
    conv = next(row for row in rows if row["name"] == "stem.conv")
    assert (conv["shape"], conv["op"]) == ("2x64x32x32", "Conv")
    assert run(*RESNET, "--by", "layer", "-o", "-").out == (tmp_path / "rows.csv").read_text()
    batches = run("estimate", "mlp:64-64", "--batch", "1,8", "--fits", "t4", "-o", "-").out
    first, second = csv.DictReader(batches.splitlines())
    assert [first["batch"], second["batch"], second["fits t4"]] == ["1", "8", "fits"]
    parts = [int(value) for name, value in second.items() if name.endswith("_bytes") and value]
    peak, needed, *components, bound = parts
    assert peak == needed == sum(components) >= bound
    assert "end the name with .csv" in run(*RESNET, "-o", "rows.xlsx").err
