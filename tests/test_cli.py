"""The command line as people use it: results on stdout, one-line errors on stderr, exit codes of the design."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import networkx as nx
import pytest
from click.testing import CliRunner

import planner
from planner import cli
from planner.names import ALLOCATORS, STRATEGIES


class Answer:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """The `planner` command in this process, in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["planner", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_info:
            cli.main()
        captured = capsys.readouterr()
        code = exit_info.value.code
        assert isinstance(code, int)
        return Answer(code, captured.out, captured.err)

    return call


def error_lines(answer: Answer) -> list[str]:
    lines = answer.err.strip().splitlines()
    assert lines[0].startswith("error: ")
    assert "Traceback" not in answer.err
    return lines


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
    assert "Fits 7 bytes (total), 0 B spare" in made.out
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


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["optimize", "chain:8", "--budget", "7Gb"], 2, "7Gb"),
        (["optimize", "chain:8", "--budget", "-1GB"], 2, "-1GB"),
        (["optimize", "chain:8", "--budget", "0"], 2, "'0'"),
        (["optimize", "chain:8", "--budget", "150%"], 2, "150%"),
        (["optimize", "chain:8", "--strategy", "best"], 2, "chen-budget"),
        (["optimize", "chain:8", "--allocator", "best"], 2, "first-fit"),
        (["optimize", "chain:8", "--effort", "0"], 2, "effort"),
        (["optimize", "chain:8", "--alignment", "0"], 2, "alignment"),
        (["optimize", "chain:8", "--reserve", "much"], 2, "reserve"),
        (["optimize", "chain:8", "--time-limit", "0"], 2, "time limit"),
        (["optimize", "chain:8", "--scope", "all"], 2, "--scope"),
        (["optimize", "chain:8", "-o", "missing/plan.json"], 2, "missing/plan.json"),
        (["optimize", "chain:x"], 3, "chain:x"),
        (["optimize", "chain:8", "--batch", "3"], 3, "batch"),
        (["optimize", "resnet:1001"], 2, "--batch"),
        (["optimize", "resnet:50", "--batch", "0"], 2, "--batch"),
        (["optimize", "resnet:50", "--batch", "1", "--dim", "image"], 2, "image"),
        (["optimize", "nothing.onnx"], 3, "nothing.onnx"),
        (["optimize", "no.such.module:graph"], 3, "no.such.module:graph"),
        (["simulate", "nothing.json"], 3, "nothing.json"),
        (["verify", "nothing.json"], 3, "nothing.json"),
        (["zoo", "chain:4"], 2, "-o"),
        (["zoo", "alexnet:4", "-o", "v.json"], 3, "alexnet"),
        (["fly"], 2, "fly"),
    ],
)
def test_what_cannot_be_done_is_one_line_that_names_it(run, arguments: list[str], code: int, named: str) -> None:
    answer = run(*arguments)
    assert answer.code == code
    assert len(error_lines(answer)) == 1
    assert named in answer.err
    assert answer.out == ""


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"nbytes": None}, "nbytes"),
        ({"nbytes": -1}, "nbytes"),
        ({"nbytes": 2**62}, "2**62"),
        ({"cost": "much"}, "cost"),
        ({"kind": "weight"}, "kind"),
        ({"inplace": [[0, 3]]}, "inplace"),
        ({"output": 0}, "output"),
    ],
)
def test_a_bad_attribute_names_the_node(run, tmp_path: Path, changes: dict[str, object], named: str) -> None:
    answer = run("optimize", small(tmp_path / "g.json", **changes))
    assert answer.code == 3
    assert len(error_lines(answer)) == 1
    assert "'b'" in answer.err
    assert named in answer.err


LOST_EDGE = '{"nodes": [], "links": [{"source": "a", "target": "b"}]}'


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"nodes": 3}', LOST_EDGE, "", "\x00\x01"])
def test_a_file_that_holds_no_graph_is_refused(run, tmp_path: Path, text: str) -> None:
    (tmp_path / "g.json").write_text(text)
    answer = run("optimize", "g.json")
    assert answer.code == 3
    assert len(error_lines(answer)) == 1


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


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda plan: plan["schedule"]["steps"].pop(3), 6),
        (lambda plan: [buffer.update(offset=0) for buffer in plan["allocation"]["buffers"]], 6),
        (lambda plan: plan["report"]["plan"].update(peak_bytes=1), 6),
        (lambda plan: plan["report"]["keep_all"].update(cost=100.0), 6),
        (lambda plan: plan["report"].update(recomputed_ops=0), 6),
        (lambda plan: plan["report"].update(peak_lower_bound=8), 6),
        (lambda plan: plan.update(budget=1), 6),
        (lambda plan: plan.update(version=2), 3),
        (lambda plan: plan.update(format="other"), 3),
        (lambda plan: plan["ops"][1]["outputs"][0].update(nbytes=7), 3),
        (lambda plan: plan.pop("schedule"), 3),
    ],
)
def test_a_plan_file_that_was_altered_is_refused(run, tmp_path: Path, change, code: int) -> None:
    run("optimize", "chain:8", "--budget", "7", "-o", "plan.json")
    plan = json.loads((tmp_path / "plan.json").read_text())
    change(plan)
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    answer = run("verify", "plan.json")
    assert answer.code == code
    assert len(error_lines(answer)) == 1


def test_a_plan_of_another_graph_is_refused(run) -> None:
    run("optimize", "chain:8", "-o", "plan.json")
    answer = run("verify", "plan.json", "--graph", "chain:9")
    assert answer.code == 3
    assert "another graph" in error_lines(answer)[0]


def test_inspect_counts_an_onnx_file_as_its_manifest_does(run, shared: Path) -> None:
    manifest = json.loads((shared / "data/graphs/manifest.json").read_text())["onnx_light/light_resnet50.onnx"]
    inventory = json.loads(run("inspect", shared / "data/graphs/onnx_light/light_resnet50.onnx", "--json").out)["inventory"]
    assert inventory["source"]["params"] == manifest["params"]
    assert inventory["source"]["act_bytes"] == manifest["act_bytes"]
    assert inventory["source"]["real_nodes"] == manifest["real_nodes"]
    assert inventory["saved_tensors"] == 212  # golden.md: forward tensors read by backward
    table = run("inspect", shared / "data/graphs/onnx_light/light_resnet50.onnx").out
    assert "Saved for backward: 212 storages" in table


def test_a_truncated_onnx_file_is_refused(run, shared: Path, tmp_path: Path) -> None:
    whole = (shared / "data/graphs/onnx_light/light_vgg19.onnx").read_bytes()
    (tmp_path / "cut.onnx").write_bytes(whole[: len(whole) // 2])
    answer = run("optimize", "cut.onnx")
    assert answer.code == 3
    assert "cut.onnx" in error_lines(answer)[0]


def test_inspect_and_zoo_print_tables(run) -> None:
    assert "Keep-all peak (total): 9 B" in run("inspect", "chain:8").out  # C1: keep-all peak 9
    assert "resnet" in run("zoo").out


def test_help_lists_every_strategy_and_allocator_that_comes_with_the_package() -> None:
    program = "from planner.packing import allocator_names; from planner.search import strategy_names\n"
    program += "print(strategy_names(), allocator_names(), sep='\\n')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [str(STRATEGIES), str(ALLOCATORS)]
    for command in ("optimize", "curve"):
        text = " ".join(CliRunner().invoke(cli.cli, [command, "--help"]).output.split())
        assert ", ".join(STRATEGIES) in text
        assert ", ".join(ALLOCATORS) in text


def test_help_and_version_answer_without_heavy_imports() -> None:
    code = "import sys; sys.argv = ['planner', '--help']\nfrom planner.cli import main\ntry: main()\nexcept SystemExit: pass\n"
    code += "print(sorted({'numpy', 'numba', 'networkx', 'msgspec', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")
    assert "optimize" in done.stdout


def test_a_kernel_cache_that_cannot_be_written_is_named() -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": os.path.join(os.devnull, "kernels")}
    done = subprocess.run(
        [sys.executable, "-m", "planner.cli", "optimize", "chain:4"], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert "NUMBA_CACHE_DIR" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
