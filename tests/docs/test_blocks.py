"""Every block of README.md and docs/ is run, or is on a list with the reason why it is not.

Blocks of Python are run here and by test_spark_blocks.py, those of the shell by test_commands.py; test_settings.py and
test_site.py look after the others. A block in a language that nobody looks after fails, and so does one without a
fence, which cannot say what it is.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import traceback

import pytest

from tests.docs import running, substitutions
from tests.docs.pages import INDENTED, Block, blocks, in_language, newcomers, read

RUNNERS = {
    "python": "test_blocks.py, test_spark_blocks.py",
    "bash": "test_commands.py",
    "cron": "test_commands.py",
    "properties": "test_settings.py",
    "dockerfile": "test_settings.py",
    "{eval-rst}": "test_site.py",
    "{literalinclude}": "test_examples.py",
    "text": "output, or a picture made of letters",
}

# Blocks of Python that are not run, by their page and a line of theirs: they are compiled, and what they import is
# looked for where it is installed.
NOT_RUN = {
    ("docs/migration.md", "from horovod.spark.common.store import Store"): (
        "Horovod 0.28 is older than the versions of torch and pyarrow that are pinned here"
    ),
    ("docs/pipeline.md", "from airflow.sdk import DAG"): (
        "Airflow pins hundreds of packages, which is why it lives in an environment of its own"
    ),
}
ABSENT = {"airflow", "horovod"}


def reason(block: Block) -> str | None:
    """Why a block is not run; None where it is."""
    found = [why for (page, line), why in NOT_RUN.items() if page == block.page and line in block.code.splitlines()]
    return found[0] if found else None


def run_blocks(page: str) -> list[Block]:
    """The blocks of Python of a page that are run."""
    return [block for block in blocks(page) if block.language == "python" and reason(block) is None]


PAGES = [page for page in newcomers() if run_blocks(page)]
FAST = [page for page in PAGES if not running.needs_spark(page)]


@pytest.mark.parametrize("page", newcomers())
def test_every_block_has_a_runner(page):
    for block in blocks(page):
        assert block.language != INDENTED, f"{block}: write a fence and a language, ```text for output"
        assert block.language in RUNNERS, f"{block}: nobody runs {block.language!r}; expected one of {[*RUNNERS]}"


@pytest.mark.parametrize("page", FAST)
def test_a_page_without_spark(page, tmp_path):
    running.run(page, run_blocks(page), tmp_path)


# ---- what is not run --------------------------------------------------------------------------------------------


def test_what_is_not_run_is_there_and_once():
    for page, line in NOT_RUN:
        assert len([block for block in blocks(page) if line in block.code.splitlines()]) == 1, (page, line)


@pytest.mark.parametrize("block", [block for block in in_language("python") if reason(block)], ids=str)
def test_what_is_not_run_compiles_and_imports_what_there_is(block, tmp_path):
    running.compiled(block, tmp_path)
    for module, name in imported(block.code):
        if module.partition(".")[0] in ABSENT:
            continue
        found = importlib.import_module(module)
        assert name is None or hasattr(found, name), f"{block}: {module} has no {name}"


def test_what_is_called_absent_is_absent():
    assert not [name for name in ABSENT if importlib.util.find_spec(name)]


def imported(code: str) -> list[tuple[str, str | None]]:
    """The modules that a block imports, each with a name that it takes from there."""
    found: list[tuple[str, str | None]] = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found += [(each.name, None) for each in node.names]
        if isinstance(node, ast.ImportFrom) and node.module:
            found += [(node.module, each.name) for each in node.names]
    return found


# ---- the tables are not older than the pages ----------------------------------------------------------------------


@pytest.mark.parametrize(("language", "table"), [("python", substitutions.PYTHON), ("bash", substitutions.SHELL)])
def test_every_substitution_is_used(language, table):
    code = [re.sub(r"\\\n\s*", "", block.code) for block in in_language(language)]
    for pattern, _, why in table:
        assert why
        assert any(re.search(pattern, each, re.MULTILINE) for each in code), pattern


def test_every_preamble_has_a_page():
    names = {running.preamble_name(page) for page in PAGES}
    there = {path.stem for path in running.PREAMBLES.glob("*.py")} - {"__init__"}
    assert there <= names


# ---- and blocks are run as they should be -------------------------------------------------------------------------

PAGE = """
# A page

Indented code:

    x = 1

```python
y = 2
```

* in a list

  ```python
  assert y == 2
  raise LookupError(y)
  ```

```text
y = 3
```
"""


def test_blocks_are_found_wherever_they_are():
    found = blocks("page.md", PAGE)
    assert [(block.language, block.line) for block in found] == [
        (INDENTED, 6),
        ("python", 9),
        ("python", 15),
        ("text", 20),
    ]
    assert found[2].code == "assert y == 2\nraise LookupError(y)\n"


def test_a_page_is_one_namespace_and_its_errors_name_its_lines(tmp_path):
    chosen = [block for block in blocks("page.md", PAGE) if block.language == "python"]
    with pytest.raises(LookupError) as failed:
        running.run("page.md", chosen, tmp_path)
    last = traceback.extract_tb(failed.value.__traceback__)[-1]
    assert last.filename.endswith("/page.md")
    assert last.lineno == 16


def test_substitutions_change_numbers_and_places_alone(tmp_path):
    code = 'fit(numWorkers=40, runDir="hdfs:///runs/a", epochs=20, lr=0.1)'
    changed = f'fit(numWorkers=2, runDir="{tmp_path}/runs/a", epochs=2, lr=0.1)'
    assert substitutions.python(code, tmp_path) == changed


def test_readme_is_a_newcomers_page():
    assert "README.md" in PAGES
    assert read("README.md").startswith("# sparkdl")
