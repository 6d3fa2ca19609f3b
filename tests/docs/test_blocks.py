"""Every block of README.md and docs/ runs, in the order of its page, or stands on a list with the reason.

The blocks of a page share one namespace, as in a notebook. test_commands.py runs the commands of shell blocks
and checks settings; test_site.py checks the API. A block fails if its language has no runner, or if it has no fence.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
from collections.abc import Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import torch

from tests.docs import substitutions
from tests.docs.pages import INDENTED, ROOT, Block, blocks, in_language, newcomers
from tests.docs.preambles import PREAMBLES

RUNNERS = {
    "python": "test_blocks.py",
    "bash": "test_commands.py",
    "cron": "test_commands.py",
    "properties": "test_commands.py",
    "dockerfile": "test_commands.py",
    "{eval-rst}": "test_site.py",
    "{literalinclude}": "make docs",
    "text": "output, or a picture made of letters",
}

# Blocks of Python that do not run, by page and a line: they compile, and their installed imports exist.
NOT_RUN = {
    # Horovod 0.28 is older than the pinned versions of torch and pyarrow.
    ("docs/migration.md", "from horovod.spark.common.store import Store"),
    # Neither is a dependency, and each would add a package of hundreds of megabytes or its own pins.
    ("docs/migration.md", "from xgboost.spark import SparkXGBClassifier"),
    ("docs/migration.md", "import lightning"),
    # Airflow pins hundreds of packages, in an environment of its own.
    ("docs/pipeline.md", "from airflow.sdk import DAG"),
}
ABSENT = {"airflow", "horovod", "lightning", "xgboost"}


def runs(block: Block) -> bool:
    lines = block.code.splitlines()
    return block.language == "python" and not any(page == block.page and line in lines for page, line in NOT_RUN)


def run(page: str, chosen: Sequence[Block], folder: Path, *spark: Any) -> None:
    """Run blocks of a page between its preamble's assumptions and assertions."""
    calls = []

    def execute(names: dict[str, Any]) -> dict[str, Any]:
        calls.append(names)
        # As those of a main module, functions travel to workers by value.
        namespace = {"__name__": "__main__", **names}
        for block in chosen:
            exec(compiled(block, folder), namespace)
        return namespace

    PREAMBLES.get(page, alone)(execute, folder, *spark)
    assert len(calls) == 1, f"the preamble of {page} does not run its blocks once"


def compiled(block: Block, folder: Path) -> Any:
    """A block as code, whose tracebacks name the page and its lines."""
    code = substitutions.python(block.code, folder)
    return compile("\n" * (block.line - 1) + code, str(ROOT / block.page), "exec")


def alone(execute: Any, folder: Path) -> None:
    """The preamble of a page that assumes nothing."""
    execute({})


PAGES = {page: chosen for page in newcomers() if (chosen := [block for block in blocks(page) if runs(block)])}
WITH_SPARK = [page for page in PAGES if "spark" in inspect.signature(PREAMBLES.get(page, alone)).parameters]


@pytest.mark.parametrize("page", newcomers())
def test_every_block_has_a_runner(page):
    for block in blocks(page):
        assert block.language != INDENTED, f"{block}: write a fence and a language, ```text for output"
        assert block.language in RUNNERS, f"{block}: nobody runs {block.language!r}; expected one of {[*RUNNERS]}"


@pytest.mark.parametrize("page", [page for page in PAGES if page not in WITH_SPARK])
def test_page_without_spark(page, tmp_path):
    run(page, PAGES[page], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_SPARK)
def test_page_with_spark(page, spark, tmp_path):
    torch.manual_seed(0)  # as at the start of a program
    run(page, PAGES[page], tmp_path, spark)


@pytest.mark.parametrize(("page", "line"), sorted(NOT_RUN))
def test_skipped_block_compiles_and_its_imports_exist(page, line, tmp_path):
    (block,) = [block for block in blocks(page) if line in block.code.splitlines()]
    compiled(block, tmp_path)
    assert not [name for name in ABSENT if importlib.util.find_spec(name)]
    nodes = list(ast.walk(ast.parse(block.code)))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    partly = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    names += [f"{node.module}.{alias.name}" for node in partly for alias in node.names]
    for name in names:
        assert name.partition(".")[0] in ABSENT or resolve_name(name), block


def test_substitutions_and_preambles_are_used():
    for language, rules in (("python", substitutions.PYTHON), ("bash", substitutions.SHELL)):
        code = "\n".join(re.sub(r"\\\n\s*", "", block.code) for block in in_language(language))
        assert [pattern for pattern, _, _ in rules if not re.search(pattern, code, re.MULTILINE)] == []
    assert set(PREAMBLES) <= set(PAGES)
    assert {"README.md", "docs/quickstart.md", "docs/recovery.md", "docs/rounds.md"} <= set(WITH_SPARK)
