"""The command line as people use it: results on stdout, one-line errors on stderr, exit codes of the design."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import networkx as nx
import pytest
from click.testing import CliRunner
from conftest import Answer

import planner
from planner.cli import main as cli
from planner.files import refuse_larger
from planner.lowering.read import read_graph
from planner.names import ALLOCATORS, STRATEGIES
from planner.text import printable


def error_lines(answer: Answer) -> list[str]:
    lines = answer.err.strip().splitlines()
    assert lines[0].startswith("error: ")
    assert "Traceback" not in answer.err
    return lines


def faults(answer: Answer, code: int, *named: str) -> list[str]:
    """What a refusal must be and is not: this exit code, nothing on stdout, one error line that names what is wrong."""
    lines = answer.err.splitlines()
    whole = (answer.code, answer.out, len(lines)) == (code, "", 1) and lines[0].startswith("error: ")
    return [] if whole and all(part in lines[0] for part in named) else [f"{code} {named}: {vars(answer)}"]


def small(path: Path, **changes: object) -> Path:
    """Node-link JSON of a two-op graph; `changes` go to node b."""
    graph = nx.DiGraph()
    graph.add_node("a", nbytes=4)
    graph.add_node("b", **{"nbytes": 2, **changes})
    graph.add_edge("a", "b")
    path.write_text(json.dumps(nx.node_link_data(graph, edges="links")))
    return path


def test_a_plan_is_made_saved_verified_and_replayed(run) -> None:
    made = run("optimize", "chain:8", "--budget", "7", "-o", "plan.json")
    assert made.code == 0
    assert made.err == ""
    assert made.out.startswith("Fits 7 B, 0 B to spare: 7 B in place of 9 B")
    assert run("verify", "plan.json", "--graph", "chain:8").code == 0
    trace = json.loads(run("simulate", "plan.json", "--json").out)["trace"]
    assert trace["peak_bytes"] == 7
    assert trace["cost"] == 19  # public case C1: 7 -> 19


def test_json_reports_carry_a_schema_and_exact_bytes(run) -> None:
    answer = run("optimize", "chain:8", "--budget", "8", "--json")
    report = json.loads(answer.out)
    assert (report["schema"], report["version"]) == ("planner-report", 1)
    assert report["report"]["budget"] == 8
    assert report["report"]["plan"] == {"peak_bytes": 8, "arena_bytes": 8, "cost": 18.0}  # C1: 8 -> 18


def test_without_a_budget_the_least_peak_is_planned(run) -> None:
    assert "least peak" in run("optimize", "chain:8").out


def test_an_infeasible_budget_exits_4_with_the_least_workable_on_the_last_line(run) -> None:
    answer = run("optimize", "chain:8", "--budget", "2")
    assert answer.code == 4
    assert "needs 3 B" in error_lines(answer)[0]  # two inputs and an output of one byte each
    least = int(error_lines(answer)[-1].split("(")[1].split(" bytes")[0])
    assert run("optimize", "chain:8", "--budget", least).code == 0
    as_json = run("optimize", "chain:8", "--budget", "2", "--json")
    assert json.loads(as_json.out)["minimum"] == least
    assert json.loads(as_json.out)["proven"] is True


def test_a_graph_file_in_either_json_form_is_planned(run, tmp_path: Path) -> None:
    node_link = small(tmp_path / "g.json")
    assert run("optimize", node_link, "--budget", "100%").code == 0
    assert run("zoo", "chain:4", "-o", "encoded.json").code == 0
    assert run("optimize", "encoded.json", "--budget", "100%").code == 0


def test_a_callable_of_the_user_is_planned_and_its_failure_named(run, tmp_path: Path) -> None:
    (tmp_path / "mymodel.py").write_text(
        "import networkx as nx\ndef graph():\n    g = nx.DiGraph()\n    g.add_node('a', nbytes=4)\n    return g\n"
        "def broken():\n    raise ValueError('no weights')\n"
    )
    assert run("optimize", "mymodel:graph").code == 0
    answer = run("optimize", "mymodel:broken")
    assert answer.code == 3
    assert "no weights" in error_lines(answer)[0]
    sys.modules.pop("mymodel", None)


LONG = "9" * 5000
RESNET = "optimize resnet:50 --batch 1"
REFUSED = [
    ("optimize chain:8 --budget 7Gb", 2, "7Gb"), ("optimize chain:8 --budget -1GB", 2, "-1GB"),
    ("optimize chain:8 --budget 0", 2, "'0'"), ("optimize chain:8 --budget 150%", 2, "150%"),
    (f"optimize chain:8 --budget {LONG}", 2, "5000"), ("optimize chain:8 --strategy best", 2, "chen-budget"),
    ("optimize chain:8 --allocator best", 2, "first-fit"), ("optimize chain:8 --effort 0", 2, "effort"),
    ("optimize chain:8 --alignment 0", 2, "alignment"), ("optimize chain:8 --reserve much", 2, "reserve"),
    ("optimize chain:8 --time-limit 0", 2, "time limit"), ("optimize chain:8 --scope all", 2, "--scope"),
    ("optimize chain:8 -o missing/plan.json", 2, "missing/plan.json"), ("optimize chain:x", 3, "chain:x"),
    ("optimize chain:8 --batch 3", 3, "batch"), ("optimize chain:99999999999999999999", 3, "10**7"),
    ("optimize chain:10000001", 3, "10**7"), ("optimize gpt:1 --batch 99999999999", 3, "10**7"),
    ("optimize resnet:1001", 2, "--batch"), ("optimize resnet:50 --batch 0", 2, "--batch"),
    (f"{RESNET} --dim image", 2, "image"),
    (f"{RESNET} --dim image=64 --dim image=32", 2, "--dim image is given twice"),
    (f"{RESNET} --dim image=\u00b2", 2, "--dim"), (f"{RESNET} --dim image=\u0663", 2, "--dim"),
    (f"{RESNET} --dim image={LONG}", 2, "--dim"), (f"{RESNET} --dim batch=3", 2, "write --batch"),
    (f"{RESNET} --dim spec=3", 2, "--dim spec"), ("optimize nothing.onnx", 3, "nothing.onnx"),
    ("optimize no.such.module:graph", 3, "no.such.module:graph"), (["optimize", "no\nfile"], 3, r"no\nfile"),
    (f"curve chain:8 --budgets {LONG}", 2, "5000 digits"), ("curve chain:8 --budgets \u00b2", 2, "budget"),
    ("simulate nothing.json", 3, "nothing.json"), ("verify nothing.json", 3, "nothing.json"),
    ("verify plan.json --batch 3", 2, "--batch is for --graph"),
    ("verify plan.json --dim image=3", 2, "--dim is for --graph"),
    ("verify plan.json --inference", 2, "--inference is for --graph"),
    ("verify plan.json --scale 3", 2, "--scale is for --execute"), ("zoo -o g.json", 2, "name a model"),
    ("zoo alexnet:4 -o v.json", 3, "alexnet"), ("optimize", 2, "GRAPH"), ("fly", 2, "fly"),
]  # fmt: skip


def test_what_cannot_be_done_is_one_line_that_names_it_and_with_json_one_object(run) -> None:
    wrong = list[str]()
    for words, code, named in REFUSED:
        arguments = words if isinstance(words, list) else words.split(" ")
        answer, told = run(*arguments), run(*arguments, "--json")
        found = json.loads(told.out)
        wrong += faults(answer, code, named)
        same = (told.code, told.err) == (code, answer.err) == (code, f"error: {printable(found['message'])}\n")
        if not same or (found["schema"], found["version"]) != ("planner-error", 1) or len(answer.err) >= 400:
            wrong.append(f"{words}: {vars(told)}")
    assert wrong == []


def test_a_bad_attribute_names_the_node(run, tmp_path: Path) -> None:
    wrong = list[str]()
    sizes = [("nbytes", None, "nbytes"), ("nbytes", -1, "nbytes"), ("nbytes", 2**62, "2**62")]
    others = [("cost", "much"), ("kind", "weight"), ("inplace", [[0, 3]]), ("output", 0)]
    for key, value, named in (*sizes, *((key, value, key) for key, value in others)):
        wrong += faults(run("optimize", small(tmp_path / "g.json", **{key: value})), 3, "'b'", named)
    assert wrong == []


def test_an_interrupt_that_a_compiler_swallows_and_fails_of_is_an_interrupt() -> None:
    code = """if True:
        import os, signal, sys, time
        import planner.api
        def compile(*arguments, **options):  # as llvmlite's callbacks do
            try:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(5)
            except KeyboardInterrupt:
                pass
            raise RuntimeError("no compiled object")
        planner.api.optimize = compile
        sys.argv = ["planner", "optimize", "chain:8"]
        from planner.cli.main import main
        main()
    """
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (130, "error: interrupted before there was a result\n")


def test_an_output_without_a_name_is_refused_before_the_work(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.zoo.build", lambda *_arguments, **_options: pytest.fail("the graph was read"))
    answer = run("optimize", "chain:8", "-o", "")
    assert faults(answer, 2, "cannot write ''; name a file in a folder that exists and can be written") == []


def test_an_interrupt_is_one_line_and_one_object(run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("planner.zoo.build", interrupted)
    answer = run("optimize", "chain:8", "--json")
    assert answer.code == 130
    assert json.loads(answer.out)["error"] == "Abort"
    assert len(error_lines(answer)) == 1


def test_the_models_are_listed_as_one_json_object(run) -> None:
    models = json.loads(run("zoo", "--json").out)
    assert (models["schema"], models["version"]) == ("planner-models", 1)
    assert [model["name"] for model in models["models"]] == list(planner.zoo.MODELS)
    resnet = next(model for model in models["models"] if model["name"] == "resnet")
    assert resnet["required"] == ["batch"]
    written = json.loads(run("zoo", "chain:4", "-o", "g.json", "--json").out)
    # input, 4 layers, 5 backward
    assert (written["schema"], written["file"], written["ops"]) == ("planner-model", "g.json", 10)


MODULE = """
import sys
def five(): return 5
def none(): return None
def text(): return "chain:8"
def leave(): sys.exit(7)
def lines(): raise ValueError("one\\ntwo")
number = 5
def loud():
    import networkx as nx
    print("loading")
    graph = nx.DiGraph()
    graph.add_node("a", nbytes=4)
    return graph
"""


NO_GRAPHS = {
    "cli_functions:five": "returned int", "cli_functions:none": "returned NoneType",
    "cli_functions:text": "returned str", "cli_functions:leave": "SystemExit: 7", "cli_functions:lines": "one two",
    "cli_functions:number": "TypeError", "cli_functions:nobody": "nobody", "cli_syntax:graph": "SyntaxError",
    "cli_raises:graph": "RuntimeError: on import", "cli_leaves:graph": "SystemExit: 3",
    ".cli_functions:five": "named in full", ":five": "named in full",
}  # fmt: skip


@pytest.mark.parametrize("command", ["inspect", "optimize"])
def test_a_callable_that_gives_no_graph_is_one_line(run, tmp_path: Path, command: str) -> None:
    (tmp_path / "cli_functions.py").write_text(MODULE)
    (tmp_path / "cli_syntax.py").write_text("def (")
    (tmp_path / "cli_raises.py").write_text("raise RuntimeError('on import')")
    (tmp_path / "cli_leaves.py").write_text("raise SystemExit(3)")
    before, wrong = list(sys.path), list[str]()
    for name, named in NO_GRAPHS.items():
        wrong += faults(run(command, name), 3, named)
        sys.modules.pop("cli_functions", None)
        assert sys.path == before
    assert wrong == []


def test_what_a_callable_prints_is_no_part_of_the_result(run, tmp_path: Path) -> None:
    (tmp_path / "cli_functions.py").write_text(MODULE)
    answer = run("inspect", "cli_functions:loud", "--json")
    sys.modules.pop("cli_functions", None)
    assert answer.err == "loading\n"
    assert json.loads(answer.out)["inventory"]["ops"] == 1


def test_an_output_that_cannot_be_written_is_one_line(run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys, "stdout", Full())
    for arguments in ("optimize chain:4", "optimize chain:4 --json", "zoo", "inspect chain:4"):
        answer = run(*arguments.split())
        assert answer.code == 2
        assert error_lines(answer) == ["error: cannot write to standard output: No space left on device"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_disk_is_said_once_and_not_again_at_exit() -> None:
    for arguments in (["--help"], ["zoo", "--json"]):
        command = [sys.executable, "-m", "planner.cli", *arguments]
        with open("/dev/full", "w") as full:
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        assert done.returncode == 2
        assert done.stderr == "error: cannot write to standard output: No space left on device\n"


def test_a_reader_that_left_is_no_error(run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Left(io.StringIO):
        def flush(self) -> None:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(sys, "stdout", Left())
    answer = run("optimize", "chain:4")
    assert (answer.code, answer.err) == (0, "")


def test_an_internal_error_is_one_line_that_says_how_to_see_more(run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_arguments: object, **_options: object) -> None:
        raise ZeroDivisionError("two\nlines")

    monkeypatch.setattr("planner.zoo.build", broken)
    monkeypatch.delenv("PLANNER_TRACEBACK", raising=False)
    answer = run("optimize", "chain:8", "--json")
    assert answer.code == 1
    said = "internal error: ZeroDivisionError: two lines; set PLANNER_TRACEBACK=1 for the traceback"
    assert error_lines(answer) == [f"error: {said}"]
    assert json.loads(answer.out)["message"] == said
    monkeypatch.setenv("PLANNER_TRACEBACK", "1")
    traced = run("optimize", "chain:8")
    assert traced.code == 1
    assert traced.err.startswith("Traceback")
    assert traced.err.splitlines()[-1] == "error: internal error: ZeroDivisionError: two lines"


def test_names_with_control_characters_stay_on_their_line(run, tmp_path: Path) -> None:
    graph = nx.DiGraph()
    graph.add_node("a\nb\x1b[31m", nbytes=400)
    (tmp_path / "g.json").write_text(json.dumps(nx.node_link_data(graph, edges="links")))
    answer = run("optimize", "g.json", "--budget", "2")
    assert answer.code == 4
    assert len(error_lines(answer)) == 2  # the last line is the least that works
    assert "\x1b" not in answer.err
    assert printable("a\n\x1b\u202e\ud800é") == r"a\n\x1b\u202e\ud800é"


def test_a_file_name_that_is_no_text_is_written_and_shown_escaped(run, tmp_path: Path) -> None:
    name = os.fsdecode(b"\x80.json")
    answer = run("optimize", "chain:4", "-o", name, "--json")
    assert (answer.code, answer.err) == (0, "")
    assert json.loads(answer.out)["plan_file"] == r"\udc80.json"
    assert r"Saved to \udc80.json" in run("optimize", "chain:4", "-o", name, "-f").out
    assert run("optimize", "chain:4", "-o", name, "--json").code == 2


NODES = '{"directed": true, "multigraph": %s, "graph": %s, "nodes": [%s], "links": [%s]}'
A, B, EDGE = '{"id": "a", "nbytes": 1}', '{"id": "b", "nbytes": 1}', '{"source": "a", "target": "b"}'


MISREAD = [
    ('{"nodes":[5],"links":[]}', "node 0"), ('{"nodes":[null],"links":[]}', "node 0"), ("[null]", "no graph"),
    ("5", "no graph"), ("null", "no graph"), (NODES % ("false", "5", A, ""), "'graph'"),
    (NODES % ("false", '[["name","x"]]', A, ""), "'graph'"), (NODES % ("3", "{}", A, ""), "'multigraph'"),
    (NODES % ("false", "{}", A + ', {"nbytes": 1}', ""), "node 1"),
    (NODES % ("false", "{}", '{"id": {"x": 1}, "nbytes": 1}', ""), "node 0"),
    (NODES % ("false", "{}", f"{A}, {B}, {A}", ""), "two nodes have the id 'a'"),
    (NODES % ("true", "{}", f"{A}, {B}, {A}", ""), "two nodes have the id 'a'"),
    (NODES % ("false", "{}", f"{A}, {B}", f"{EDGE}, {EDGE}"), "two edges from 'a' to 'b'"),
    (NODES % ("false", "{}", '{"id": ' + "[" * 900 + "1" + "]" * 900 + "}", ""), "nested too deeply"),
    (NODES % ("false", "{}", f"{A}, {B}", "7"), "edge 0"),
    (NODES % ("false", "{}", f"{A}, {B}", '{"source": "a"}'), "edge 0"),
    (NODES % ("false", "{}", f"{A}, {B}", '{"source": "a", "target": {"b": 1}}'), "edge 0"),
    (NODES % ("false", "{}", A, EDGE), "'b', which is not among the nodes"),
]  # fmt: skip


def test_node_link_json_that_would_be_another_program_is_refused(run, tmp_path: Path) -> None:
    wrong = list[str]()
    for text, named in MISREAD:
        (tmp_path / "g.json").write_text(text)
        wrong += faults(run("optimize", "g.json"), 3, "g.json", named)
    assert wrong == []


def test_parallel_edges_of_a_multigraph_are_two_reads(tmp_path: Path) -> None:
    (tmp_path / "g.json").write_text(NODES % ("true", "{}", f"{A}, {B}", f"{EDGE}, {EDGE}"))
    assert planner.lower(read_graph(tmp_path / "g.json")).op_named["b"].reads == ("a", "a")


def test_a_json_file_in_no_encoding_of_json_is_called_json(run, tmp_path: Path) -> None:
    texts = (b"", b" \n", "\ufeff{}".encode(), "{}".encode("utf-16"), "{}".encode("utf-16-le"), b"\x08\x07")
    for content in texts:
        (tmp_path / "g.JSON").write_bytes(content)
        answer = run("inspect", "g.JSON")
        assert faults(answer, 3) == []
        assert "JSON: " in answer.err or "JSON is read as UTF-8" in answer.err
    (tmp_path / "g.txt").write_bytes("{}".encode("utf-16"))
    assert "JSON is read as UTF-8" in run("inspect", "g.txt").err


def test_a_file_that_holds_no_graph_is_refused(run, tmp_path: Path) -> None:
    lost_edge = '{"nodes": [], "links": [{"source": "a", "target": "b"}]}'
    wrong = list[str]()
    for text in ("{", "[]", "{}", '{"nodes": 3}', lost_edge, "", "\x00\x01"):
        (tmp_path / "g.json").write_text(text)
        wrong += faults(run("optimize", "g.json"), 3)
    assert wrong == []


def test_a_json_file_above_the_limit_is_refused_before_it_is_read(run, tmp_path: Path) -> None:
    with open(tmp_path / "g.json", "wb") as file:
        file.truncate(2**31 + 1)  # zeros that take no disk
    told = "'g.json' has 2.00 GiB; JSON is read up to 2.00 GiB"
    limited = [("optimize g.json", f"graph {told}"), ("verify g.json", f"plan {told}")]
    limited += [
        ("estimate chain:4 --calibration g.json", f"calibration {told}"),
        ("measure --against g.json -- true", told),
    ]
    assert [fault for words, named in limited for fault in faults(run(*words.split()), 3, named)] == []
    os.truncate(tmp_path / "g.json", 2**31)
    with open(tmp_path / "g.json", "rb") as file:
        refuse_larger(file, "plan", planner.PlanFileError)  # a file of exactly the limit is read


def test_a_cycle_names_its_nodes(run, tmp_path: Path) -> None:
    parts = json.loads(small(tmp_path / "g.json").read_text())
    parts["links"].append({"source": "b", "target": "a"})
    (tmp_path / "g.json").write_text(json.dumps(parts))
    answer = run("optimize", "g.json")
    assert answer.code == 3
    assert "cycle" in error_lines(answer)[0]


def test_an_existing_file_is_kept_unless_forced(run, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("mine")
    answer = run("optimize", "chain:4", "-o", "plan.json")
    assert answer.code == 2
    assert "-f" in error_lines(answer)[0]
    assert (tmp_path / "plan.json").read_text() == "mine"
    assert run("optimize", "chain:4", "-o", "plan.json", "-f").code == 0
    assert planner.load(tmp_path / "plan.json").verify().peak_bytes > 0


ALTERED = [
    (lambda plan: plan["schedule"]["steps"].pop(3), 6),
    (lambda plan: [buffer.update(offset=0) for buffer in plan["allocation"]["buffers"]], 6),
    (lambda plan: plan["report"]["plan"].update(peak_bytes=1), 6),
    (lambda plan: plan["report"]["keep_all"].update(cost=100.0), 6),
    (lambda plan: plan["report"].update(recomputed_ops=0), 6),
    (lambda plan: plan["report"].update(peak_lower_bound=8), 6),
    (lambda plan: plan["report"]["request"]["budget"].update(nbytes=1), 6),
    (lambda plan: plan.update(version=4), 3),
    (lambda plan: plan.update(format="other"), 3),
    (lambda plan: plan["ops"][1]["outputs"][0].update(nbytes=7), 3),
    (lambda plan: plan.pop("schedule"), 3),
]


def test_a_plan_file_that_was_altered_is_refused(run, tmp_path: Path) -> None:
    run("optimize", "chain:8", "--budget", "7", "-o", "plan.json")
    untouched, wrong = (tmp_path / "plan.json").read_text(), list[str]()
    for place, (change, code) in enumerate(ALTERED):
        plan = json.loads(untouched)
        change(plan)
        (tmp_path / "plan.json").write_text(json.dumps(plan))
        wrong += [f"change {place}: {fault}" for fault in faults(run("verify", "plan.json"), code)]
    assert wrong == []


def test_a_plan_of_another_graph_is_refused(run) -> None:
    run("optimize", "chain:8", "-o", "plan.json")
    answer = run("verify", "plan.json", "--graph", "chain:9")
    assert answer.code == 3
    assert "another graph" in error_lines(answer)[0]


def test_inspect_counts_an_onnx_file_as_its_manifest_does(run, shared: Path) -> None:
    manifest = json.loads((shared / "data/graphs/manifest.json").read_text())["onnx_light/light_resnet50.onnx"]
    file = shared / "data/graphs/onnx_light/light_resnet50.onnx"
    inventory = json.loads(run("inspect", file, "--json").out)["inventory"]
    assert inventory["source"]["params"] == manifest["params"]
    assert inventory["source"]["act_bytes"] == manifest["act_bytes"]
    assert inventory["source"]["real_nodes"] == manifest["real_nodes"]
    assert inventory["saved_tensors"] == 212  # golden.md: forward tensors read by backward
    assert "Saved for backward: 212 storages" in run("inspect", file).out


def test_a_truncated_onnx_file_is_refused(run, shared: Path, tmp_path: Path) -> None:
    whole = (shared / "data/graphs/onnx_light/light_vgg19.onnx").read_bytes()
    (tmp_path / "cut.onnx").write_bytes(whole[: len(whole) // 2])
    answer = run("optimize", "cut.onnx")
    assert answer.code == 3
    assert "cut.onnx" in error_lines(answer)[0]


def test_inspect_and_zoo_print_tables(run) -> None:
    assert "Peak without recomputation (total): 9 B" in run("inspect", "chain:8").out  # C1: keep-all peak 9
    assert "resnet" in run("zoo").out


def test_help_lists_every_strategy_and_allocator_that_comes_with_the_package() -> None:
    program = "from planner import mxnet; from planner.packing import allocator_names\n"
    program += "from planner.search import strategy_names\nmxnet.register()\n"
    program += "print(strategy_names(), allocator_names(), sep='\\n')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [str(STRATEGIES), str(ALLOCATORS)]
    for command in ("optimize", "curve"):
        text = " ".join(CliRunner().invoke(cli.cli, [command, "--help"]).output.split())
        assert ", ".join(STRATEGIES) in text
        assert ", ".join(ALLOCATORS) in text


def test_help_and_version_answer_without_heavy_imports() -> None:
    code = "import sys; sys.argv = ['planner', '--help']\nfrom planner.cli.main import main\n"
    code += "try: main()\nexcept SystemExit: pass\n"
    code += "print(sorted({'numpy', 'numba', 'networkx', 'msgspec', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")
    assert "optimize" in done.stdout


def test_a_kernel_cache_that_cannot_be_written_is_named() -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": os.path.join(os.devnull, "kernels")}
    command = [sys.executable, "-m", "planner.cli", "optimize", "chain:4"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "NUMBA_CACHE_DIR" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
