"""Counts of the package: ``python -m tests.floor_plan`` prints entries, rooms, circles, levels, chains and reach."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.law import CONFINED

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "sparkdl"
LOOP = "sparkdl.training.loop"

Graph = dict[str, set[str]]


@dataclass(frozen=True)
class Source:
    """One file: its path below the root, its dotted module name, its text and its syntax tree."""

    path: Path
    module: str
    text: str
    tree: ast.Module


def sources(root: Path, tops: tuple[str, ...]) -> Iterator[Source]:
    for path in sorted(path for top in tops for path in (root / top).rglob("*.py")):
        yield read(root, path.relative_to(root))


@cache
def read(root: Path, path: Path) -> Source:
    text = (root / path).read_text(encoding="utf-8")
    module = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    return Source(path, module, text, ast.parse(text, str(path)))


def targets(node: ast.AST, source: Source) -> Iterator[str]:
    """The dotted names that one node imports, ``from a import b`` as ``a.b``."""
    match node:
        case ast.Import(names=names):
            yield from (alias.name for alias in names)
        case ast.ImportFrom(module=module, names=names, level=level):
            package = source.path.parent.parts[: len(source.path.parent.parts) - level + 1] if level else ()
            base = ".".join((*package, *([module] if module else [])))
            yield from (f"{base}.{alias.name}" for alias in names)
        case ast.Call(
            func=ast.Name(id="__import__" | "import_module") | ast.Attribute(attr="import_module"),
            args=[ast.Constant(value=str(name)), *_],
        ):
            yield name
        case ast.Attribute(value=ast.Name(id=parent), attr=attr) if f"{parent}.{attr}" in CONFINED:
            yield f"{parent}.{attr}"  # `import torch` gives torch.distributed as well


def imports(source: Source) -> Iterator[tuple[int, str]]:
    """Every import with its line: inside functions and under TYPE_CHECKING too."""
    for node in ast.walk(source.tree):
        yield from ((getattr(node, "lineno", 0), name) for name in targets(node, source))


def import_graph(root: Path = ROOT) -> Graph:
    """For each file the files it imports; the front page ``sparkdl`` itself stands outside."""
    files = {source.module: source for source in sources(root, ("sparkdl",)) if source.module != "sparkdl"}
    graph = {}
    for name, source in files.items():
        found = (target if target in files else target.rpartition(".")[0] for _, target in imports(source))
        graph[name] = {target for target in found if target in files} - {name}
    return graph


def circles(graph: Graph) -> list[list[str]]:
    """The groups of files that import each other, by reachability."""
    reach = {name: reached(graph, name) for name in graph}
    groups = {tuple(sorted(b for b in reach[a] if a in reach[b])) for a in graph if a in reach[a]}
    return [list(group) for group in sorted(groups)]


def reached(graph: Graph, start: str) -> set[str]:
    """Every file that ``start`` imports, directly or not."""
    seen: set[str] = set()
    ahead = list(graph[start])
    while ahead:
        name = ahead.pop()
        if name not in seen:
            seen.add(name)
            ahead += graph[name]
    return seen


def longest_chain(graph: Graph) -> list[str]:
    """The longest path of imports; a graph with circles has none."""

    @cache
    def chain(name: str) -> tuple[str, ...]:
        return (name, *max((chain(lower) for lower in graph[name]), key=len, default=()))

    return list(max(map(chain, graph), key=len))


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "__pycache__")


def largest_room() -> tuple[int, str]:
    """The number of Python files of the room that has the most, and its path."""
    rooms = {path.parent for path in PACKAGE.rglob("*.py")}
    return max((len(list(room.glob("*.py"))), str(room.relative_to(ROOT))) for room in rooms)


def room_graph(graph: Graph) -> Graph:
    """For each room the rooms that its files import."""
    rooms: Graph = {}
    for name, lower in graph.items():
        room = ".".join(name.split(".")[:2])
        rooms.setdefault(room, set()).update({".".join(one.split(".")[:2]) for one in lower} - {room})
    return rooms


def outside_training(graph: Graph) -> list[str]:
    """The files outside training/ that the loop imports, directly or not."""
    return sorted(name for name in reached(graph, LOOP) if not name.startswith("sparkdl.training"))


def report() -> Iterator[str]:
    graph = import_graph()
    rings, outside = circles(graph), outside_training(graph)
    yield f"{len(entries(PACKAGE))} entries on the ground floor"
    yield "{} files in the largest room, {}".format(*largest_room())
    yield f"{len(rings)} circles among files"
    yield from ("  " + " ".join(ring) for ring in rings)
    if not rings:
        longest = longest_chain(graph)
        yield f"{len(longest_chain(room_graph(graph)))} levels of rooms"
        yield f"{len(longest)} files in the longest chain: {' '.join(longest)}"
    yield f"{len(outside)} files outside training/ that the loop reaches: {' '.join(outside)}"


if __name__ == "__main__":
    print(*report(), sep="\n")
