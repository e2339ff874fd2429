"""The rooms of planner/ and who imports whom, read from the sources.

`python -m bench.house` draws them, `python -m bench.house papers/README.md` puts the drawing into that file.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import networkx as nx

ROOT = Path(__file__).resolve().parents[1]


class Import(NamedTuple):
    """One import statement, a name at a time."""

    line: int
    module: str  # absolute; for `from a import b` it is a.b where that is a module of the package
    inside: str  # the function it stands in; empty: it runs when its module is imported
    typing: bool  # under `if TYPE_CHECKING`: it never runs


class House:
    """A package as its files say, without importing it.

    Args:
        folder: of the package; its name is that of the package.
    """

    def __init__(self, folder: Path) -> None:
        self.name = folder.name
        self.paths = {_module_name(path, folder): path for path in sorted(folder.rglob("*.py"))}
        self.trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in self.paths.items()}
        self.imports = {name: list(self._imports(name)) for name in self.paths}

    def room(self, module: str) -> str:
        """planner.search.chen -> search; a module of the top folder is a room of its own. Empty for other modules."""
        return module.split(".")[1] if module.startswith(f"{self.name}.") else ""

    def is_face(self, module: str) -> bool:
        """True for the `__init__` of a room."""
        return self.paths[module].name == "__init__.py"

    @cached_property
    def modules(self) -> nx.DiGraph:
        """Who imports whom at run time, in functions too. The `__init__` of a room runs before any module of the room.

        Left out are a face's imports of its own modules, and the face of the package, which imports on demand.
        """
        graph = nx.DiGraph()
        graph.add_nodes_from(self.paths)
        for name, imports in self.imports.items():
            for target in {found.module for found in imports if not found.typing and found.module in self.paths}:
                faces = (".".join(target.split(".")[:k]) for k in range(2, target.count(".") + 1))
                graph.add_edges_from((name, face) for face in faces if not f"{name}.".startswith(f"{face}."))
                if name != self.name != target != name and not target.startswith(f"{name}."):
                    graph.add_edge(name, target)
        return graph

    @cached_property
    def rooms(self) -> nx.DiGraph:
        """The same between rooms."""
        pairs = ((self.room(a), self.room(b)) for a, b in self.modules.edges)
        graph = nx.DiGraph(sorted({(a, b) for a, b in pairs if a != b}))
        graph.add_nodes_from(sorted({self.room(name) for name in self.paths} - {""}))
        return graph

    def _imports(self, name: str) -> Iterator[Import]:
        package = name if self.is_face(name) else name.rpartition(".")[0]
        for statement, inside, typing in _statements(self.trees[name]):
            if isinstance(statement, ast.Import):
                yield from (Import(statement.lineno, alias.name, inside, typing) for alias in statement.names)
                continue
            above = package.split(".")[: package.count(".") + 2 - statement.level] if statement.level else []
            base = ".".join([*above, *([statement.module] if statement.module else [])])
            for alias in statement.names:
                inner = f"{base}.{alias.name}"
                yield Import(statement.lineno, inner if inner in self.paths else base, inside, typing)


def _statements(
    tree: ast.AST, inside: str = "", typing: bool = False
) -> Iterator[tuple[ast.Import | ast.ImportFrom, str, bool]]:
    """(import statement, function it stands in, whether it is for annotations only)."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child, inside, typing
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from _statements(ast.Module(child.body, []), inside, True)
            yield from _statements(ast.Module(child.orelse, []), inside, typing)
        elif not isinstance(child, ast.expr):
            named = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
            yield from _statements(child, child.name if named and not inside else inside, typing)


def _module_name(path: Path, folder: Path) -> str:
    parts = path.relative_to(folder.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def circles(graph: nx.DiGraph) -> list[str]:
    """A shortest circle through each knot of nodes that reach each other."""
    found = []
    for knot in nx.strongly_connected_components(graph):
        start = min(knot)
        ways = (nx.shortest_path(graph.subgraph(knot), node, start) for node in graph[start] if node in knot)
        way = min(ways, key=lambda way: (len(way), way), default=None)
        found += [" -> ".join([start, *way])] if way else []
    return sorted(found)


def diagram(house: House) -> str:
    """The rooms as Mermaid: folders, and the modules that are verbs; an arrow says "imports".

    What every room reads is left out (the nouns and the leaves), and so is an arrow beside a longer way.
    """
    folders = {house.room(name) for name in house.paths if house.is_face(name)} - {""}
    chosen = nx.transitive_reduction(house.rooms.subgraph(folders | {"api", "plan", "simulator"} & set(house.rooms)))
    order = nx.lexicographical_topological_sort(chosen)
    lines = [f"  {room} --> {' & '.join(sorted(chosen[room]))}" for room in order if chosen[room]]
    return "\n".join(["graph TD", *lines]) + "\n"


def with_diagram(text: str, drawn: str) -> str:
    """A Markdown text with its first Mermaid block drawn anew."""
    return re.sub(r"```mermaid\n.*?```", f"```mermaid\n{drawn}```", text, count=1, flags=re.DOTALL)


if __name__ == "__main__":
    drawn = diagram(House(ROOT / "planner"))
    print(drawn, end="")
    for path in map(Path, sys.argv[1:]):
        path.write_text(with_diagram(path.read_text(encoding="utf-8"), drawn), encoding="utf-8")
