"""The house of design section 2, read from the imports: data flows top to bottom, and the judge shares no code with the
judged.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import networkx as nx
import pytest

ROOT = Path(__file__).resolve().parents[1]
#: A module imports only from layers above its own; inside a layer, without circles.
LAYERS = (
    "errors", "text", "names", "units", "remedies", "files", "graph", "schedule", "memory", "simulator", "report",
    "problem", "lowering", "zoo", "kernels", "analysis", "bounds", "policy", "packing", "search", "mxnet", "plan",
    "footprint", "planning", "api", "executors", "torch", "views", "cli",
)  # fmt: skip
JUDGE_MAY_IMPORT = {"errors", "graph", "memory", "schedule"}
OPTIONAL = {
    "onnx",
    "torch",
    "matplotlib",
    "plotly",
    "jinja2",
    "highspy",
    "psutil",
    "ortools",
    "distributed",
    "checkpoint_schedules",
}
HEAVY = {"numpy", "numba", "networkx", *OPTIONAL}
#: What must stay quick to import.
LIGHT = (
    "planner",
    "planner.cli.main",
    "planner.errors",
    "planner.units",
    "planner.schedule",
    "planner.memory",
    "planner.graph",
)


class Import(NamedTuple):
    """One import that runs when its module is imported."""

    line: int
    module: str  # absolute; for `from a import b` it is a.b where that is a module of ours


def module_name(path: Path) -> str:
    """planner/search/chen.py -> planner.search.chen"""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_module(name: str) -> bool:
    base = ROOT.joinpath(*name.split("."))
    return base.with_suffix(".py").is_file() or base.is_dir()


def module_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """Statements that run at import: class bodies and branches too, functions and `if TYPE_CHECKING` not."""
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        statement = waiting.pop(0)
        yield statement
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
            waiting += statement.orelse
            continue
        waiting += [
            child for child in ast.walk(statement) if isinstance(child, ast.stmt) and _parent_is(statement, child)
        ]


def _parent_is(parent: ast.stmt, child: ast.stmt) -> bool:
    if child is parent:
        return False
    blocks = [getattr(parent, field, []) for field in ("body", "orelse", "finalbody")]
    blocks += [handler.body for handler in getattr(parent, "handlers", [])] + [
        case.body for case in getattr(parent, "cases", [])
    ]
    return any(child in block for block in blocks)


def imports(source: str, name: str) -> list[Import]:
    """What importing the module imports."""
    found = []
    package = name if is_module(name) and ROOT.joinpath(*name.split(".")).is_dir() else name.rpartition(".")[0]
    for statement in module_level(ast.parse(source)):
        if isinstance(statement, ast.Import):
            found += [Import(statement.lineno, alias.name) for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom):
            base = statement.module or ""
            if statement.level:
                anchor = package.split(".")[: len(package.split(".")) - statement.level + 1]
                base = ".".join([*anchor, *([base] if base else [])])
            for alias in statement.names:
                inner = f"{base}.{alias.name}"
                ours = base.split(".")[0] == "planner" and is_module(inner)
                found.append(Import(statement.lineno, inner if ours else base))
    return found


PATHS = {module_name(path): path for path in sorted((ROOT / "planner").rglob("*.py"))}
MODULES = {name: imports(path.read_text(), name) for name, path in PATHS.items()}


def layer(name: str) -> str:
    """planner.search.chen -> search; the package itself has none."""
    return name.split(".")[1] if "." in name else ""


def place(name: str, found: Import) -> str:
    return f"{PATHS[name].relative_to(ROOT)}:{found.line} imports {found.module}"


every_module = pytest.mark.parametrize("name", MODULES)


def test_the_reader_of_imports_sees_what_runs_at_import_and_nothing_else() -> None:
    source = """
import a
if TYPE_CHECKING:
    import b
else:
    import c
try:
    import d
except ImportError:
    import e
class C:
    import f
    def method(self):
        import g
def function():
    import h
from planner import errors, optimize
from planner.graph import Graph
from . import units
from .search.chen import x
with open("f"):
    from i import j
"""
    assert {found.module for found in imports(source, "planner.api")} == {
        "a",
        "c",
        "d",
        "e",
        "f",
        "i",
        "planner",
        "planner.errors",
        "planner.graph",
        "planner.units",
        "planner.search.chen",
    }


@every_module
def test_every_module_has_a_layer(name: str) -> None:
    assert name == "planner" or layer(name) in LAYERS, f"{name}: say in design.md and in LAYERS where it belongs"


@every_module
def test_a_module_imports_only_from_layers_above_it(name: str) -> None:
    if name == "planner":
        assert [place(name, found) for found in MODULES[name] if found.module.startswith("planner")] == []
        return
    allowed = LAYERS[: LAYERS.index(layer(name)) + 1] if layer(name) in LAYERS else LAYERS
    wrong = [
        place(name, found)
        for found in MODULES[name]
        if found.module.split(".")[0] == "planner" and layer(found.module) not in allowed
    ]
    assert wrong == []


def test_modules_do_not_import_each_other_in_circles() -> None:
    graph = nx.DiGraph(
        (name, found.module) for name, all_found in MODULES.items() for found in all_found if found.module in MODULES
    )
    assert list(nx.simple_cycles(graph)) == []


def test_the_judge_imports_nothing_that_it_judges() -> None:
    assert {
        layer(found.module) for found in MODULES["planner.simulator"] if found.module.startswith("planner")
    } <= JUDGE_MAY_IMPORT
    tree = ast.parse(PATHS["planner.simulator"].read_text())
    inner = [
        node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom)) and node not in tree.body
    ]
    assert [ast.unparse(node) for node in inner] == []


def test_the_judge_is_plain_python() -> None:
    assert not HEAVY & {found.module.split(".")[0] for found in MODULES["planner.simulator"]}


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("planner.kernels.")])
def test_kernels_import_numpy_numba_their_decorator_and_each_other(name: str) -> None:
    allowed = {"__future__", "typing", "collections", "math", "numpy", "numba", "planner"}
    assert {found.module.split(".")[0] for found in MODULES[name]} <= allowed
    assert {layer(found.module) for found in MODULES[name] if found.module.startswith("planner")} <= {"kernels"}


def test_the_kernels_package_defines_its_decorator_alone() -> None:
    allowed = set(sys.stdlib_module_names) | {"numpy", "numba"}
    outside = {
        found.module for found in MODULES.get("planner.kernels", ()) if found.module.split(".")[0] not in allowed
    }
    assert outside <= {"planner.errors"}


@every_module
def test_optional_libraries_are_imported_where_they_are_used(name: str) -> None:
    assert [place(name, found) for found in MODULES[name] if found.module.split(".")[0] in OPTIONAL] == []


@every_module
def test_a_module_imports_only_what_the_project_depends_on(name: str) -> None:
    core = {"planner", "numpy", "numba", "networkx", "click", "rich", "msgspec", "joblib"}
    allowed = set(sys.stdlib_module_names) | core
    assert [place(name, found) for found in MODULES[name] if found.module.split(".")[0] not in allowed] == []


@every_module
def test_no_module_can_load_a_pickle(name: str) -> None:
    names = {
        node.name
        for tree in (ast.parse(PATHS[name].read_text()),)
        for node in ast.walk(tree)
        if isinstance(node, ast.alias)
    }
    assert not names & {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal"}


def loaded_by(statement: str) -> set[str]:
    """Top-level modules in a fresh interpreter after a statement."""
    program = statement + "\nimport sys\nprint(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT, timeout=60
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("name", [name for name in LIGHT if name in MODULES])
def test_importing_the_front_door_brings_no_heavy_library(name: str) -> None:
    assert not HEAVY & loaded_by(f"import {name}")


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["optimize", "--help"], ["curve", "--help"]])
def test_asking_for_help_brings_no_heavy_library(arguments: list[str]) -> None:
    words = ["planner", *arguments]
    statement = f"""
import contextlib, io, sys
from planner.cli.main import main
sys.argv = {words!r}
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()) as said:
    main()
assert said.getvalue()
"""
    assert not HEAVY & loaded_by(statement)
