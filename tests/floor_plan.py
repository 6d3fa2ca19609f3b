"""Counts of the house: ``python -m tests.floor_plan`` prints entries, rooms, circles, levels, chains and reach."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "sparkdl"
LOOP = "sparkdl.training.loop"


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Every file of the package by its dotted name."""
    names = {}
    for path in sorted((root / "sparkdl").rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def imported(tree: ast.AST, known: set[str]) -> Iterator[str]:
    """Modules of the package that a file imports, inside functions and under TYPE_CHECKING too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                if full in known:
                    yield full
                elif node.module in known:
                    yield node.module


def import_graph(root: Path = ROOT) -> dict[str, set[str]]:
    """For each file the files it imports; the front page ``sparkdl`` itself stands outside."""
    files = modules(root)
    known = set(files) - {"sparkdl"}
    return {name: set(imported(ast.parse(files[name].read_text(encoding="utf-8")), known)) - {name} for name in known}


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The groups of files that import each other, by reachability."""

    @cache
    def reach(name: str) -> frozenset[str]:
        return reached(graph, name)

    groups = {tuple(sorted(b for b in reach(a) if a in reach(b))) for a in graph if a in reach(a)}
    return [list(group) for group in sorted(groups)]


def reached(graph: dict[str, set[str]], start: str) -> frozenset[str]:
    """Every file that ``start`` imports, directly or not."""
    seen: set[str] = set()
    ahead = list(graph[start])
    while ahead:
        name = ahead.pop()
        if name not in seen:
            seen.add(name)
            ahead += graph[name]
    return frozenset(seen)


def longest_chain(graph: dict[str, set[str]]) -> list[str]:
    """The longest path of imports; a graph with circles has none."""

    @cache
    def chain(name: str) -> tuple[str, ...]:
        return (name, *max((chain(lower) for lower in graph[name]), key=len, default=()))

    return list(max(map(chain, graph), key=len))


def levels(stands_on: dict[str, set[str]]) -> int:
    """The number of levels of a graph of rooms."""

    @cache
    def level(room: str) -> int:
        return 1 + max((level(lower) for lower in stands_on[room]), default=0)

    return max(map(level, stands_on))


def entries(folder: Path) -> list[str]:
    """What stands in one folder, caches aside."""
    return sorted(path.name for path in folder.iterdir() if path.name != "__pycache__")


def largest_room() -> tuple[int, str]:
    """The number of Python files of the room that has the most, and its path."""
    rooms = {path.parent for path in PACKAGE.rglob("*.py")}
    return max((len(list(room.glob("*.py"))), str(room.relative_to(ROOT))) for room in rooms)


def room_graph(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """For each room the rooms that its files import."""
    rooms: dict[str, set[str]] = {}
    for name, lower in graph.items():
        room = ".".join(name.split(".")[:2])
        rooms.setdefault(room, set()).update({".".join(one.split(".")[:2]) for one in lower} - {room})
    return rooms


def outside_training(graph: dict[str, set[str]]) -> list[str]:
    """The files outside training/ that the loop imports, directly or not."""
    return sorted(name for name in reached(graph, LOOP) if not name.startswith("sparkdl.training"))


def report() -> Iterator[str]:
    graph = import_graph()
    rooms = room_graph(graph)
    yield f"{len(entries(PACKAGE))} entries on the ground floor"
    yield "{} files in the largest room, {}".format(*largest_room())
    rings = circles(graph)
    yield f"{len(rings)} circles among files"
    yield from ("  " + " ".join(ring) for ring in rings)
    if not circles(rooms):
        yield f"{levels(rooms)} levels of rooms"
    if not rings:
        longest = longest_chain(graph)
        yield f"{len(longest)} files in the longest chain: {' '.join(longest)}"
    outside = outside_training(graph)
    yield f"{len(outside)} files outside training/ that the loop reaches: {' '.join(outside)}"


if __name__ == "__main__":
    print(*report(), sep="\n")
