"""The notebooks as they lie in the repository: what readers see without running anything."""

from __future__ import annotations

import ast
import re
import socket
import sys

import nbformat
import pytest

from tests.notebooks.executing import EXAMPLES, notebooks
from tests.notebooks.outputs import METADATA, PROGRESS, kinds
from tests.sessions import ROOT

LARGEST = 150_000  # bytes
MAX_CELL_LINES = 25
CELLS = range(8, 21)

NAMES = {"quickstart", "own_loop", "choosing_a_strategy", "recovery", "ensembles", "pipeline"}
# Folders in which files of a machine lie; addresses in memory say nothing to a reader either.
PLACES = re.compile(
    r"(?:(?<![\w.:/])|\bfile:/*)/(?:tmp|home|root|usr|opt|var|mnt|work|private|Users)/|\b0x[0-9a-f]{6,}"
)

each_notebook = pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)


def read(path):
    return nbformat.read(path, as_version=4)


def code(path):
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


def said(cell):
    """All that a cell's outputs hold of text."""
    for output in cell.outputs:
        yield from (output[name] for name in ("text", "evalue") if name in output)
        yield from (text for kind, text in output.get("data", {}).items() if kind.startswith("text/"))


def test_there_are_those_that_the_readme_of_the_examples_names():
    names = {path.stem for path in notebooks()}
    assert names >= NAMES
    lines = (EXAMPLES / "README.md").read_text(encoding="utf-8").splitlines()
    listed = [name for line in lines for name in re.findall(r"^\|\s*\[(\S+\.(?:ipynb|py))\]\(\1\)", line)]
    assert sorted(listed) == sorted(path.name for path in EXAMPLES.iterdir() if path.suffix in (".ipynb", ".py"))


@each_notebook
def test_it_is_a_notebook_with_no_metadata_but_the_necessary(path):
    notebook = read(path)
    nbformat.validate(notebook)
    assert notebook.metadata == METADATA
    assert all(cell.metadata == {} for cell in notebook.cells)
    assert all(output.metadata == {} for cell in code(path) for output in cell.outputs if "data" in output)


@each_notebook
def test_it_was_executed_from_top_to_bottom_without_errors(path):
    cells = code(path)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert not [cell.source for cell in cells if "error" in kinds(cell)]


@each_notebook
def test_it_shows_progress_a_table_and_a_picture(path):
    assert {"progress", "table", "picture"} <= {kind for cell in code(path) for kind in kinds(cell)}


@each_notebook
def test_it_names_no_place_of_the_machine_that_ran_it(path):
    host, texts = socket.gethostname(), [text for cell in code(path) for text in (cell.source, *said(cell))]
    found = [text for text in texts if PLACES.search(text) or str(ROOT) in text or sys.prefix in text]
    assert not found
    assert host == "localhost" or not [text for text in texts if re.search(rf"\b{re.escape(host)}\b", text)]


@each_notebook
def test_its_standard_error_has_progress_alone(path):
    streams = [output for cell in code(path) for output in cell.outputs if output.output_type == "stream"]
    lines = [line for each in streams if each.name == "stderr" for line in each.text.splitlines()]
    assert lines
    assert not [line for line in lines if not PROGRESS.match(line) or "\r" in line]


@each_notebook
def test_it_is_small(path):
    assert path.stat().st_size < LARGEST


@each_notebook
def test_it_reads_as_an_article(path):
    notebook = read(path)
    assert notebook.cells[0].cell_type == "markdown"
    assert notebook.cells[0].source.startswith("# ")
    assert len(notebook.cells) in CELLS
    long = [cell.source for cell in notebook.cells if len(cell.source.splitlines()) > MAX_CELL_LINES]
    assert not long


@each_notebook
def test_its_code_is_python_that_makes_its_session_first(path):
    cells = code(path)
    for cell in cells:
        ast.parse(cell.source)  # no magics: a cell can be put into a program
    assert "SparkSession" in cells[0].source
    assert cells[-1].source == "spark.stop()"


@each_notebook
def test_what_it_links_to_is_there(path):
    texts = [cell.source for cell in read(path).cells if cell.cell_type == "markdown"]
    links = [link for text in texts for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert links
    assert not [link for link in links if not (EXAMPLES / link).resolve().exists()]


def test_places_of_a_machine_are_recognised():
    for text in ("at /tmp/x", "'/home/me/a.py'", "file:///root/x", "<Axes at 0x7f00deadbeef>"):
        assert PLACES.search(text), text
    for text in ("loss 1/2", "s3://bucket/tmp/x", "docs/own-loop.md", "rows/s=24,811"):
        assert not PLACES.search(text), text
