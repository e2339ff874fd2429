"""The house of design section 2, read from the imports: data flows one way, the judge shares no code."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

import planner
from bench.house import ROOT, House, Import, circles, diagram, with_diagram
from planner import Problem, Proposal, zoo

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HOUSE = House(ROOT / "planner")
#: A module imports at run time only from rooms before its own; inside a room, without circles.
ROOMS = (
    "errors", "text", "names", "units", "remedies", "files", "dtypes", "graph", "patterns", "schedule", "memory",
    "simulator", "training_step", "lowering", "problem", "report", "kernels", "analysis", "bounds", "policy", "packing",
    "search", "mxnet", "zoo", "executors", "plan", "views", "planning", "footprint", "api", "torch", "cli",
)  # fmt: skip
JUDGE_MAY_IMPORT = {"errors", "graph", "memory", "schedule"}
#: A noun shows itself by views, which it imports when it is asked to.
NOUNS, SHOWS = {"report", "plan"}, {"as_html", "diff"}
KNOWS_THE_RESERVE = {"memory", "problem", "plan", "files", "cli", "views"}
#: What must stay quick to import, and what makes it slow.
LIGHT = "planner, planner.cli.main, planner.errors, planner.graph, planner.memory, planner.schedule, planner.units"
HELP = (["--help"], ["--version"], ["optimize", "--help"], ["curve", "--help"])
HEAVY = {"numpy", "numba", "networkx"}
PICKLERS = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal"}


def required(requirements: list[str]) -> set[str]:
    """Libraries by the name they are imported with."""
    return {re.split(r"[<>=]", requirement)[0].replace("-", "_") for requirement in requirements}


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = {extra: required(names) for extra, names in PROJECT["optional-dependencies"].items()}
#: Extras name these for the command line alone.
TOOLS = {"pytest_xdist", "ruff", "mypy"}
#: torch.onnx writes files through the first, and tests run files by the second.
ASKED_BY_NAME = {"onnxscript", "onnxruntime"}


def place(name: str, line: int) -> str:
    return f"{HOUSE.paths[name].relative_to(ROOT)}:{line}"


def run_time_imports(where: Callable[[str, Import], bool]) -> list[str]:
    """Where a module imports what, of all imports that run (in functions too) and for which a claim is true."""
    return [
        f"{place(name, found.line)} imports {found.module}"
        for name, imports in HOUSE.imports.items()
        for found in imports
        if not found.typing and where(name, found)
    ]


def library(module: str) -> str:
    """The library a module is of; empty for the standard library and for ourselves."""
    top = module.split(".")[0]
    return "" if top == "planner" or top in sys.stdlib_module_names else top


def test_the_reader_of_imports_sees_lazy_ones_and_none_that_only_annotate(tmp_path: Path) -> None:
    sources = {
        "__init__": "def f():\n    from fake import a",
        "a": "import os.path\nclass C:\n    def m(self):\n        from fake.room.b import x",
        "lone": "if TYPE_CHECKING:\n    from fake import a\nelse:\n    import fake.leaf\nfrom fake import a, x",
        "leaf": "try:\n    import json\nexcept ImportError:\n    from . import lone as l",
        "room/__init__": "def face():\n    from fake.room import b\n    from .c import y",
        "room/b": "from fake.room import face",
        "room/c": "from .. import a",
    }
    for name, source in sources.items():
        path = tmp_path / "fake" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    house = House(tmp_path / "fake")
    assert house.imports["fake.a"] == [Import(1, "os.path", "", False), Import(4, "fake.room.b", "m", False)]
    assert [found.module for found in house.imports["fake.lone"]] == ["fake.a", "fake.leaf", "fake.a", "fake"]
    assert [found.typing for found in house.imports["fake.lone"]] == [True, False, False, False]
    assert circles(house.modules) == ["fake.leaf -> fake.lone -> fake.leaf"]  # a face may import its own modules
    assert circles(house.rooms) == ["a -> room -> a", "leaf -> lone -> leaf"]
    house.rooms.remove_edges_from([("room", "a"), ("leaf", "lone")])
    assert diagram(house) == "graph TD\n"
    assert with_diagram("a\n```mermaid\nold\n```\nb", "new\n") == "a\n```mermaid\nnew\n```\nb"


def test_no_modules_and_no_rooms_import_each_other_in_circles() -> None:
    assert circles(HOUSE.modules) == []
    assert circles(HOUSE.rooms) == []


def test_no_two_modules_have_one_base_name() -> None:
    names = Counter(path.name for path in HOUSE.paths.values())
    assert {name for name, count in names.items() if count > 1} <= {"__init__.py", "__main__.py"}


def test_a_module_imports_only_from_rooms_before_its_own() -> None:
    assert set(HOUSE.rooms) <= set(ROOMS), "say in design.md and in ROOMS where a new room belongs"

    def upward(name: str, found: Import) -> bool:
        room, own = HOUSE.room(found.module), HOUSE.room(name)
        if room == "views" and own in NOUNS and found.inside in SHOWS:
            return False  # no circle: the test above holds that views never imports that noun
        return found.module == "planner" or (bool(room and own) and ROOMS.index(room) > ROOMS.index(own))

    assert run_time_imports(upward) == []


def test_the_front_door_imports_on_demand_what_its_annotations_say() -> None:
    annotated = {}
    for statement in ast.walk(HOUSE.trees["planner"]):
        if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith("planner."):
            annotated.update({alias.asname: (statement.module, alias.name) for alias in statement.names})
    assert annotated == {name: (f"planner.{home}", name) for name, home in planner._HOME_OF.items()}
    assert [name for name in planner.__all__ if getattr(planner, name, None) is None] == []


def test_the_judge_is_plain_python_and_imports_nothing_that_it_judges() -> None:
    def forbidden(name: str, found: Import) -> bool:
        allowed = found.module.split(".")[0] != "planner" or HOUSE.room(found.module) in JUDGE_MAY_IMPORT
        return name == "planner.simulator" and not (allowed and library(found.module) in {"", "msgspec"})

    assert run_time_imports(forbidden) == []


def test_kernels_import_numpy_numba_and_each_other() -> None:
    def forbidden(name: str, found: Import) -> bool:
        allowed = found.module.split(".")[0] != "planner" or HOUSE.room(found.module) in {"kernels", "errors"}
        return HOUSE.room(name) == "kernels" and not (allowed and library(found.module) in {"", "numpy", "numba"})

    assert run_time_imports(forbidden) == []


def test_kernels_say_what_they_take() -> None:
    wrong = []
    for name, node in ((name, node) for name, tree in HOUSE.trees.items() for node in ast.walk(tree)):
        if isinstance(node, ast.FunctionDef) and any("kernel" in ast.unparse(by) for by in node.decorator_list):
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            untyped = [a.arg for a in given if a.annotation is None or ast.unparse(a.annotation) == "Any"]
            wrong += [f"{place(name, node.lineno)} {node.name}({', '.join(untyped)})"] if untyped else []
    assert wrong == []


def test_the_reserve_is_read_only_where_budgets_are_made_and_shown() -> None:
    wrong = [
        place(name, node.lineno)
        for name, tree in HOUSE.trees.items()
        if HOUSE.room(name) not in KNOWS_THE_RESERVE
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == "reserve"
    ]
    assert wrong == []


def test_libraries_that_are_optional_are_imported_where_they_are_used() -> None:
    core = {"", *required(PROJECT["dependencies"])}
    everything = core.union(*EXTRAS.values())

    def forbidden(name: str, found: Import) -> bool:
        if library(found.module) == "torch":  # a leaf that budgets are made of asks the device for its free bytes
            return HOUSE.room(name) != "torch" and (name, found.inside) != ("planner.units", "free_device_bytes")
        return library(found.module) not in (everything if found.inside else core)

    assert run_time_imports(forbidden) == []


def test_extras_name_only_libraries_that_something_imports() -> None:
    read = [House(ROOT / folder).imports.values() for folder in ("planner", "bench", "tests", "papers")]
    imported = {library(found.module) for modules in read for imports in modules for found in imports}
    imported |= TOOLS | ASKED_BY_NAME
    assert {extra: unused for extra, names in EXTRAS.items() if (unused := names - imported)} == {}


def test_no_module_can_load_a_pickle() -> None:
    """One may write them: `from pickle import dumps`, and no other way in."""

    def loads(statement: ast.AST) -> bool:
        if isinstance(statement, ast.ImportFrom):
            named = {alias.name for alias in statement.names}
            return (statement.module or "").split(".")[0] in PICKLERS and (statement.module, named) != (
                "pickle",
                {"dumps"},
            )
        return isinstance(statement, ast.Import) and any(a.name.split(".")[0] in PICKLERS for a in statement.names)

    walked = ((name, node) for name, tree in HOUSE.trees.items() for node in ast.walk(tree))
    assert [place(name, node.lineno) for name, node in walked if loads(node)] == []


def test_importing_the_front_door_and_asking_for_help_bring_no_heavy_library() -> None:
    lines = ["import contextlib, io, sys, " + LIGHT]
    lines += ["from planner.cli.main import main", "said = io.StringIO()", f"for words in {HELP!r}:"]
    lines += ["    sys.argv = ['planner', *words]"]
    lines += ["    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(said):", "        main()"]
    lines += ["assert said.getvalue().count('Usage') == 3", "print(*{name.split('.')[0] for name in sys.modules})"]
    command = [sys.executable, "-c", "\n".join(lines)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, timeout=60)
    assert not HEAVY.union(*EXTRAS.values()) & set(done.stdout.split())


def test_at_most_five_frames_lie_between_optimize_and_the_search_for_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    class Asked(Exception):
        pass

    def asked(problem: Problem) -> Proposal:
        raise Asked

    monkeypatch.setattr(import_module("planner.search.auto"), "cuts", asked)
    with pytest.raises(Asked) as caught:
        planner.optimize(zoo.chain(40), "40%")
    frames = [str(entry) for entry in caught.traceback if ROOT / "planner" in Path(entry.path).parents]
    assert len(frames) - 1 <= 5, "\n".join(frames)  # the first is optimize


def test_the_drawing_in_papers_is_of_todays_imports() -> None:
    text = (ROOT / "papers/README.md").read_text(encoding="utf-8")
    assert with_diagram(text, diagram(HOUSE)) == text, "run python -m bench.house papers/README.md"
