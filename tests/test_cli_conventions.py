"""What people expect of any command: help with examples, -h, -q, -v, completion, one versioned object with --json."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from planner.cli.main import cli

BUFFERS = "id,lower,upper,size\na,4,7,8192\nb,5,7,8192\nc,1,2,8192\nd,2,5,16384\ne,3,6,16384\nf,5,9,12288\n"
#: Of each command a call and the schema of its object; the calls before make the files of those after.
OBJECTS = {
    "optimize chain:8 --budget 7 -o plan.json": "planner-report",
    "curve chain:8 --budgets 7,8": "planner-curve",
    "estimate chain:8": "planner-estimate",
    "inspect chain:8": "planner-inventory",
    "simulate plan.json": "planner-trace",
    "verify plan.json": "planner-verdict",
    "explain plan.json f3 --no-search": "planner-explanation",
    "report plan.json -o plan.svg": "planner-file",
    "export plan.json --to csv -o plan.csv": "planner-file",
    "pack buffers.csv": "planner-packing",
    "measure --json -- true": "planner-measurement",
    "warm": "planner-kernels",
    "zoo": "planner-models",
    "zoo gpt2": "planner-options",
    "help": "planner-topics",
    "help shell": "planner-topic",
}


def commands() -> dict[str, click.Command]:
    context = click.Context(cli)
    found = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    assert None not in found.values()
    return {name: command for name, command in found.items() if command is not None}


def completed(*words: str, shell: str = "bash") -> list[str]:
    """What a shell is offered for the last word, as lines of "type,name"."""
    environment = {"COMP_WORDS": " ".join(["planner", *words]), "COMP_CWORD": str(len(words))}
    environment["_PLANNER_COMPLETE"] = f"{shell}_complete"
    code = "import sys; sys.argv = ['planner']\nfrom planner.cli.main import main\nmain()"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    return done.stdout.split()


def imported(*words: str) -> set[str]:
    """Modules that a command has imported when it ends."""
    code = f"import contextlib, io, sys; sys.argv = ['planner', *{list(words)!r}]\nfrom planner.cli.main import main\n"
    code += "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()): main()\n"
    code += "print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_bare_planner_and_h_print_the_help_that_lists_every_command(run) -> None:
    bare, short, long = run(), run("-h"), run("--help")
    assert (bare.code, bare.err) == (0, "")
    assert bare.out == short.out == long.out
    listed = re.findall(r"^  ([a-z]+)  ", bare.out, flags=re.MULTILINE)
    assert sorted(listed) == sorted(commands())
    assert max(map(len, bare.out.splitlines())) <= 80
    assert "..." not in bare.out.partition("Options:")[2]  # no summary is cut


def test_every_command_answers_to_h_q_v_and_json(run) -> None:
    wrong = []
    for name in commands():
        answer = run(name, "-h")
        missing = [word for word in ("-h, --help", "-q, --quiet", "-v, --verbose", "--json") if word not in answer.out]
        wrong += [f"{name}: no {word}" for word in missing]
        wrong += [] if (answer.code, answer.err) == (0, "") else [f"{name}: {vars(answer)}"]
    assert wrong == []


def test_options_of_a_search_stand_in_sections(run) -> None:
    titles = re.findall(r"^(\w[\w ]*):$", run("optimize", "-h").out, flags=re.MULTILINE)
    assert titles == ["Options", "Search", "Graph", "Training step", "Memory", "Output and help", "Examples"]


def test_the_examples_in_help_run(run, tmp_path: Path) -> None:
    (tmp_path / "buffers.csv").write_text(BUFFERS)
    wrong = []
    for name, command in commands().items():
        epilog = re.findall(r"Example: (planner .*)", command.epilog or "")
        examples = [*getattr(command, "examples", ()), *epilog]
        wrong += [] if examples else [f"{name} has no example"]
    ordered = sorted(commands(), key=lambda name: name != "optimize")  # it writes the plan that others read
    for name in ordered:
        command = commands()[name]
        for example in (*getattr(command, "examples", ()), *re.findall(r"Example: (planner .*)", command.epilog or "")):
            program, *words = shlex.split(example)
            answer = run(*words)
            wrong += [] if (program, answer.code) == ("planner", 0) else [f"{example}: {answer.err}"]
    assert wrong == []


def test_json_is_one_object_with_a_schema_and_a_version_for_every_command(run, tmp_path: Path) -> None:
    (tmp_path / "buffers.csv").write_text(BUFFERS)
    wrong = []
    for call, schema in OBJECTS.items():
        answer = run(*(call.split() if "--json" in call else [*call.split(), "--json"]))
        found = json.loads(answer.out)
        if (answer.code, found["schema"], found["version"]) != (0, schema, 1):
            wrong.append(f"{call}: {answer.code} {answer.out[:80]} {answer.err}")
    assert wrong == []
    assert {call.split()[0] for call in OBJECTS} == set(commands())


def test_quiet_is_the_answer_in_one_line_and_excludes_verbose(run) -> None:
    whole, quiet = run("optimize", "chain:8", "--budget", "8"), run("optimize", "chain:8", "--budget", "8", "-q")
    assert quiet.out == whole.out.splitlines()[0] + "\n"
    both = run("optimize", "chain:8", "-q", "-v")
    assert (both.code, both.out) == (2, "")
    assert "give one" in both.err


def test_verbose_names_phases_and_their_time_on_standard_error(run) -> None:
    plain, told = run("optimize", "chain:8", "--budget", "8"), run("optimize", "chain:8", "--budget", "8", "--verbose")
    assert plain.err == ""
    assert told.out == plain.out
    assert re.fullmatch(r"(reading the graph|planning): \d+\.\d s\n(reading the graph|planning): \d+\.\d s\n", told.err)


def test_shells_complete_models_files_strategies_devices_and_topics() -> None:
    for shell in ("bash", "zsh"):
        found = " ".join(completed("optimize", "resnet1", shell=shell))
        assert all(name in found for name in ("resnet18", "resnet101", "resnet152")), shell
        assert "file" in found
    assert completed("optimize", "x", "--strategy", "chen-") == ["plain,chen-budget", "plain,chen-sqrt"]
    assert completed("optimize", "x", "--device", "a100") == ["plain,a100", "plain,a100-40"]
    assert completed("estimate", "x", "--fits", "t4,h2") == ["plain,t4,h200"]
    assert completed("simulate", "pl") == ["file,pl"]
    assert completed("help", "sh") == ["plain,shell"]


def test_the_list_of_models_and_help_import_no_kernels_and_no_networkx() -> None:
    for words in (["zoo"], ["--help"], ["optimize", "-h"]):
        found = imported(*words)
        assert "planner.cli.main" in found
        assert not {"numba", "networkx", "networkx.algorithms", "numpy"} & found, words


def test_a_wrong_word_is_answered_with_the_right_one(run) -> None:
    for words, meant in (
        ("version", "planner --version"), ("optimize chain:8 --memory 3", "--budget"),
        ("optimize gpt2 --dtype bf16", "--option dtype=bf16"), ("help shel", "'shell'"),
    ):  # fmt: skip
        answer = run(*words.split())
        assert answer.code == 2
        assert meant in answer.err


@pytest.mark.parametrize("ending", [".txt", ".xlsx", ""])
def test_an_ending_that_is_no_plan_page_or_figure_is_refused_before_the_work(run, ending: str) -> None:
    answer = run("optimize", "chain:8", "-o", f"plan{ending}")
    assert (answer.code, answer.out) == (2, "")
    assert ".json, .html, .svg, .png or .pdf" in answer.err
    assert not Path(f"plan{ending}").exists()


def test_a_dash_is_standard_output(run) -> None:
    answer = run("optimize", "chain:8", "--budget", "7", "-o", "-")
    assert json.loads(answer.out)["format"] == "planner-plan"
    assert not Path("-").exists()
