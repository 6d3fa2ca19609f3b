"""Rules of the source beyond those of ruff: each reads one file and yields its violations."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.law import BUDGETS, CLASSIC, CONFINED, RIDDLE_LOCALS, RIDDLES, STANDS_ON, TOUCH_CLASSIC, below, room_of

ROOT = Path(__file__).resolve().parents[2]

# What `import sparkdl` must not load: each costs a second or more, or needs a JVM.
HEAVY = {"numpy", "pandas", "py4j", "pyarrow", "pyspark", "tensorboard", "mlflow", "torch", "torchmetrics"}

MAX_ENTRIES = 17
MAX_LEVELS, MAX_CHAIN, MAX_REACH = 10, 21, 17
MAX_ROOM_FILES = 18
MAX_FILE_LINES = 400
MAX_SCRIPT_LINES = 15
MAX_FUNCTION_LINES = 60
JVM_ATTRIBUTES = {"_jvm", "_jsc", "_jsparkSession", "_gateway", "_jdf", "_jrdd", "_java_obj", "_java_resource_profile"}
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "base", "manager"}

PACKAGE = ("sparkdl",)
CODE = ("sparkdl", "jobs", "examples", "benchmarks")
ALL = (*CODE, "tests")

Finding = tuple[int, str]
Graph = dict[str, set[str]]


# ---- files and their imports ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """A file: its path below the root, its dotted name, text and syntax tree."""

    path: Path
    module: str
    text: str
    tree: ast.Module


def sources(root: Path, tops: tuple[str, ...]) -> Iterator[Source]:
    for path in sorted(path for top in tops for path in (root / top).rglob("*.py")):
        yield parsed(root, path.relative_to(root))


@cache
def parsed(root: Path, path: Path) -> Source:
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
    files = {source.module: source for source in sources(root, PACKAGE) if source.module != "sparkdl"}
    graph = {}
    for name, source in files.items():
        modules = (target if target in files else target.rpartition(".")[0] for _, target in imports(source))
        graph[name] = {target for target in modules if target in files} - {name}
    return graph


def room_graph(graph: Graph) -> Graph:
    """For each room the rooms that its files import."""
    rooms: Graph = {}
    for name, lower in graph.items():
        room = ".".join(name.split(".")[:2])
        rooms.setdefault(room, set()).update({".".join(one.split(".")[:2]) for one in lower} - {room})
    return rooms


def longest_chain(graph: Graph) -> int:
    """The length of the longest path of imports; a circle raises CycleError, which names its files."""
    length: dict[str, int] = {}
    for name in TopologicalSorter(graph).static_order():
        length[name] = 1 + max((length[lower] for lower in graph[name]), default=0)
    return max(length.values())


def reached(graph: Graph, name: str) -> set[str]:
    """Every file that a file imports, directly or not."""
    below: Graph = {}
    for file in TopologicalSorter(graph).static_order():
        below[file] = graph[file].union(*(below[lower] for lower in graph[file]))
    return below[name]


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


# ---- the rules --------------------------------------------------------------------------------------------------


def one_way(source: Source) -> Iterator[Finding]:
    """Imports go down the rooms, and nothing imports the tests."""
    if source.module == "sparkdl":
        return
    room = room_of(source.module)
    if room is None:
        yield 1, "is in no room: give it one in tests/law.py"
        return
    for line, name in imports(source):
        lower, public = room_of(name), within(name, "sparkdl") and not name.startswith("sparkdl.__")
        if within(name, "tests") or (lower is not None and lower not in below(room)):
            yield line, f"imports {name}, and {room} does not stand on it"
        elif lower is None and public and within(room, "sparkdl"):
            yield line, f"imports {name}, which is in no room: the names in sparkdl itself are for its users"


def confined(source: Source) -> Iterator[Finding]:
    """Spark, collectives and Arrow stay in the rooms made for them."""
    for line, name in imports(source):
        for package, rooms in CONFINED.items():
            if within(name, package) and not any(within(source.module, room) for room in rooms.split()):
                yield line, f"imports {name}; only {', '.join(rooms.split())} may"


def jvm_confined(source: Source) -> Iterator[Finding]:
    """Only files that may import py4j call into the JVM."""
    if not any(within(source.module, file) for file in CONFINED["py4j"].split()):
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Attribute) and node.attr in JVM_ATTRIBUTES:
                yield node.lineno, f"reads {node.attr}; only {', '.join(CONFINED['py4j'].split())} may call the JVM"


def classic_confined(source: Source) -> Iterator[Finding]:
    """The session and the runner of tasks alone touch what a session of Spark Connect lacks."""
    if any(within(source.module, file) for file in TOUCH_CLASSIC.split()):
        return
    for node in ast.walk(source.tree):
        match node:
            case ast.Attribute(attr=name) | ast.alias(name=name) if name in CLASSIC:
                yield getattr(node, "lineno", 0), f"touches {name}; only {', '.join(TOUCH_CLASSIC.split())} may"


def short_file(source: Source) -> Iterator[Finding]:
    lines = len(source.text.splitlines())
    if lines > MAX_FILE_LINES:
        yield 1, f"has {lines} lines, more than {MAX_FILE_LINES}"


def short_script(source: Source) -> Iterator[Finding]:
    """A job is a few lines over the installed package: files beside it are not shipped with it."""
    if source.text.count("\n") > MAX_SCRIPT_LINES:
        yield 1, f"has more than {MAX_SCRIPT_LINES} lines"
    yield from ((at, f"imports {name}") for at, name in imports(source) if not name.startswith(("sparkdl.", "sys")))


def short_functions(source: Source) -> Iterator[Finding]:
    for function in ast.walk(source.tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        first = function.body[0]
        spoken = ast.get_docstring(function) is not None
        docstring = (first.end_lineno or 0) - first.lineno + 1 if spoken else 0
        lines = (function.end_lineno or 0) - function.lineno + 1 - docstring
        if lines > MAX_FUNCTION_LINES:
            yield function.lineno, f"{function.name} has {lines} lines, more than {MAX_FUNCTION_LINES}"


def telling_names(source: Source) -> Iterator[Finding]:
    parts = source.path.with_suffix("").parts
    yield from ((1, f"{part!r} says nothing about its content") for part in parts if part.strip("_") in FORBIDDEN_NAMES)
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ClassDef) and node.name in RIDDLES and within(source.module, "sparkdl"):
            yield node.lineno, f"the class {node.name} says nothing about its content"
        elif isinstance(node, ast.FunctionDef) and not node.name.startswith("__") and within(source.module, "sparkdl"):
            named = {part.arg if isinstance(part, ast.arg) else part.id for part in ast.walk(node) if _names(part)}
            yield from ((node.lineno, f"{name!r} in {node.name} says nothing") for name in named & RIDDLE_LOCALS)


def _names(node: ast.AST) -> bool:
    return isinstance(node, ast.arg) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))


def no_swallowing(source: Source) -> Iterator[Finding]:
    """An error is handled or it travels on: neither ``except: pass`` nor ``suppress(Exception)``."""
    for node in ast.walk(source.tree):
        match node:
            case ast.ExceptHandler(body=body):
                if all(isinstance(line, ast.Pass) or _is_constant(line) for line in body):
                    yield node.lineno, "swallows an error"
            case ast.Call(func=ast.Name(id="suppress") | ast.Attribute(attr="suppress"), args=kinds):
                if {"Exception", "BaseException"} & {ast.unparse(kind) for kind in kinds}:
                    yield node.lineno, "swallows every error"


def _is_constant(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)


RULES: dict[Callable[[Source], Iterator[Finding]], tuple[str, ...]] = {
    one_way: CODE,
    confined: PACKAGE,
    jvm_confined: PACKAGE,
    classic_confined: PACKAGE,
    short_file: ALL,
    short_script: ("jobs",),
    short_functions: ALL,
    telling_names: ALL,
    no_swallowing: ALL,
}


def findings(rule: Callable[[Source], Iterator[Finding]], root: Path) -> list[str]:
    return [
        f"{source.path}:{line}: {what}" for source in sources(root, RULES[rule]) for line, what in sorted(rule(source))
    ]


# ---- the project -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_project_keeps(rule):
    wrong = findings(rule, ROOT)
    assert not wrong, "\n".join(["", *wrong])


def floor_plan() -> dict[str, int]:
    """The counts of the house."""
    entries = [path for path in (ROOT / "sparkdl").iterdir() if path.name != "__pycache__"]
    rooms = Counter(path.parent for path in (ROOT / "sparkdl").rglob("*.py"))
    graph = import_graph()
    loop = [name for name in reached(graph, "sparkdl.training.loop") if not within(name, "sparkdl.training")]
    return {
        "entries on the ground floor": len(entries),
        "files in the largest room": max(rooms.values()),
        "levels of rooms": longest_chain(room_graph(graph)),
        "files in the longest chain of imports": longest_chain(graph),
        "files outside training/ that the loop reaches": len(loop),
    }


def test_floor_plan():
    limits = (MAX_ENTRIES, MAX_ROOM_FILES, MAX_LEVELS, MAX_CHAIN, MAX_REACH)
    counts = zip(floor_plan().items(), limits, strict=True)
    assert {name: count for (name, count), limit in counts if count > limit} == {}


def test_rooms_keep_their_budgets():
    lines = Counter[str]()
    for source in sources(ROOT, PACKAGE):
        lines[room_of(source.module) or ""] += len(source.text.splitlines())
    assert set(BUDGETS) == {room for room in STANDS_ON if within(room, "sparkdl")}
    assert {room: lines[room] for room, budget in BUDGETS.items() if lines[room] > budget} == {}


def test_import_of_sparkdl_imports_no_room_and_nothing_heavy():
    script = "import sys, sparkdl; print(*sys.modules)"
    fresh = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(fresh.stdout.split())
    assert [name for name in loaded if within(name, "sparkdl")] == ["sparkdl"]
    assert not loaded & HEAVY


# ---- violations and legal code -----------------------------------------------------------------------------------


def long(lines: int) -> str:
    """A function of ``lines`` lines and a docstring that alone is longer than allowed."""
    return "\n".join(
        ["def f():", '    """One', *["    line."] * MAX_FUNCTION_LINES, '    """', *["    x = 1"] * (lines - 1)]
    )


VIOLATIONS = [
    (one_way, "sparkdl/io/files.py", "from sparkdl.cluster.worker import Worker"),
    (one_way, "sparkdl/io/files.py", "import sparkdl.data.columns as columns"),
    (one_way, "sparkdl/io/files.py", "from sparkdl import data"),
    (one_way, "sparkdl/io/files.py", "if TYPE_CHECKING:\n    from sparkdl.data.columns import Column"),
    (one_way, "sparkdl/io/files.py", "importlib.import_module('sparkdl.data')"),
    (one_way, "sparkdl/io/files.py", "from tests import faults"),
    (one_way, "sparkdl/io/files.py", "from sparkdl import TorchEstimator"),
    (one_way, "sparkdl/data/spool.py", "from ..spark.cluster import SparkCluster"),
    (one_way, "sparkdl/nowhere.py", "x = 1"),
    (confined, "sparkdl/training/loop.py", "from pyspark.sql import DataFrame"),
    (confined, "sparkdl/training/loop.py", "from torch import distributed"),
    (confined, "sparkdl/training/loop.py", "import torch\ntorch.distributed.barrier()"),
    (jvm_confined, "sparkdl/spark/classic_tasks.py", "spark.sparkContext._jvm.System.gc()"),
    (classic_confined, "sparkdl/ml/model.py", "spark.sparkContext.broadcast(b'')"),
    (classic_confined, "sparkdl/ml/model.py", "from pyspark import RDD"),
    (short_file, "tests/test_x.py", "x = 1\n" * (MAX_FILE_LINES + 1)),
    (short_script, "jobs/train.py", "x = 1\n" * (MAX_SCRIPT_LINES + 1)),
    (short_script, "jobs/train.py", "from predict import predict"),
    (short_functions, "sparkdl/train.py", long(MAX_FUNCTION_LINES + 1)),
    (telling_names, "sparkdl/common/columns.py", ""),
    (telling_names, "tests/_helpers.py", ""),
    (telling_names, "sparkdl/ml/fit_monitor.py", "class Watch: ..."),
    (no_swallowing, "sparkdl/training/loop.py", "try:\n    f()\nexcept:\n    'never mind'\n    pass"),
    (no_swallowing, "sparkdl/training/loop.py", "with contextlib.suppress(Exception):\n    f()"),
]

LEGAL = [
    (one_way, "sparkdl/cluster/worker.py", "from sparkdl.data.clock import Clock\nfrom sparkdl.io import files"),
    (one_way, "sparkdl/rounds/loop.py", "from . import prox\nfrom sparkdl.training.loop import train"),
    (one_way, "sparkdl/io/files.py", "from sparkdl import __version__, errors"),
    (confined, "sparkdl/training/layouts/pipeline.py", "import torch.distributed\ntorch.distributed.barrier()"),
    (confined, "sparkdl/training/loop.py", "from torch import nn\nimport pysparkling"),
    (jvm_confined, "sparkdl/spark/session/classic.py", "spark.sparkContext._jvm.System.gc()"),
    (classic_confined, "sparkdl/spark/session/classic.py", "spark.sparkContext.broadcast(b'')"),
    (short_file, "sparkdl/training/loop.py", "x = 1\n" * MAX_FILE_LINES),
    (short_functions, "sparkdl/training/loop.py", long(MAX_FUNCTION_LINES)),
    (no_swallowing, "sparkdl/training/loop.py", "try:\n    f()\nexcept OSError:\n    log()"),
    (no_swallowing, "sparkdl/training/loop.py", "with suppress(FileNotFoundError):\n    f()"),
]


def written(root: Path, path: str, text: str) -> Path:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text, encoding="utf-8")
    return root


@pytest.mark.parametrize(
    ("rule", "path", "text", "count"), [(*case, 1) for case in VIOLATIONS] + [(*case, 0) for case in LEGAL]
)
def test_rule_finds_violations_alone(rule, path, text, count, tmp_path):
    assert len(findings(rule, written(tmp_path, path, text))) == count


if __name__ == "__main__":
    print(*(f"{count:3} {name}" for name, count in floor_plan().items()), sep="\n")
