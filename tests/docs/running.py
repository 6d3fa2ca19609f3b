"""How the Python blocks of a page are run: in the page's order, in one namespace, as in a notebook.

A page that takes names for granted has a preamble, tests/docs/preambles/<page>.py, with one function:

    def page(execute, folder[, spark]):
        execute({"train": ...})      # runs the blocks; returns their namespace

Pages whose function has a parameter ``spark`` need a session, and are run by the slow tests. Pages without a preamble
take nothing for granted.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.docs import substitutions
from tests.docs.pages import ROOT, Block

Execute = Callable[[dict[str, Any]], dict[str, Any]]
PREAMBLES = Path(__file__).parent / "preambles"


def preamble_name(page: str) -> str:
    """The module's name: ``own_loop`` of docs/own-loop.md, ``clusters_yarn`` of docs/clusters/yarn.md."""
    return page.removeprefix("docs/").removesuffix(".md").lower().replace("/", "_").replace("-", "_")


def needs_spark(page: str) -> bool:
    """Whether a page's blocks need a session; told without importing what its preamble imports."""
    source = PREAMBLES / f"{preamble_name(page)}.py"
    return source.is_file() and "def page(execute, folder, spark):" in source.read_text(encoding="utf-8")


def run(page: str, chosen: Sequence[Block], folder: Path, spark: Any = None) -> None:
    """Run the blocks of a page."""

    ran: list[Block] = []

    def execute(names: dict[str, Any]) -> dict[str, Any]:
        # What is defined here travels to members by value, as from a program's main module.
        namespace = {"__name__": "__main__", **names}
        for block in chosen:
            exec(compiled(block, folder), namespace)
            ran.append(block)
        return namespace

    if (PREAMBLES / f"{preamble_name(page)}.py").is_file():
        found = importlib.import_module(f"tests.docs.preambles.{preamble_name(page)}")
        found.page(execute, folder, *([spark] if needs_spark(page) else []))
    else:
        execute({})
    assert ran == list(chosen), f"the preamble of {page} does not run its blocks once"


def compiled(block: Block, folder: Path) -> Any:
    """A block as code, whose tracebacks name the page and its lines."""
    code = substitutions.python(block.code, folder)
    return compile("\n" * (block.line - 1) + code, str(ROOT / block.page), "exec")
