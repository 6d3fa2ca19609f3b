"""The committed notebooks of examples/, and that they still run."""

import ast
import re
import socket
import sys

import nbformat
import pytest

from tests.docs.pages import anchors
from tests.notebooks.driver_jvm import driver_jvm
from tests.notebooks.executing import EXAMPLES, METADATA, PROGRESS, data_sets, environment, executed, kinds, notebooks
from tests.rounds.data import real
from tests.sessions import ROOT

LARGEST = 150_000  # bytes
MAX_CELL_LINES = 25
CELLS = range(8, 21)

ONE_JVM = {"choosing_a_strategy", "ensembles", "images", "quickstart", "text"}
"""Notebooks whose drivers share a JVM; others start jobs, kill executors, search in threads or measure seconds."""
# Folders of a machine, and addresses in memory.
PLACES = re.compile(
    r"(?:(?<![\w.:/])|\bfile:/*)/(?:tmp|home|root|usr|opt|var|mnt|work|private|Users)/|\b0x[0-9a-f]{6,}"
)

each_notebook = pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)


def read(path):
    return nbformat.read(path, as_version=4)


def code(path):
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


def output_texts(cell):
    for output in cell.outputs:
        yield from (output[name] for name in ("text", "evalue") if name in output)
        yield from (text for kind, text in output.get("data", {}).items() if kind.startswith("text/"))


def test_readme_of_the_examples_lists_all_of_them():
    lines = (EXAMPLES / "README.md").read_text(encoding="utf-8").splitlines()
    listed = [name for line in lines for name in re.findall(r"^\|\s*\[(\S+\.(?:ipynb|py))\]\(\1\)", line)]
    assert sorted(listed) == sorted(path.name for path in EXAMPLES.iterdir() if path.suffix in (".ipynb", ".py"))


@each_notebook
def test_notebook_was_executed_and_has_the_needed_metadata_alone(path):
    notebook, cells = read(path), code(path)
    nbformat.validate(notebook)
    assert path.stat().st_size < LARGEST
    assert notebook.metadata == METADATA
    assert all(cell.metadata == {} for cell in notebook.cells)
    assert all(output.metadata == {} for cell in cells for output in cell.outputs if "data" in output)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    shown = {kind for cell in cells for kind in kinds(cell)}
    assert "error" not in shown
    assert {"progress", "table", "picture"} <= shown


@each_notebook
def test_outputs_name_no_machine_and_standard_error_has_progress_alone(path):
    host, texts = socket.gethostname(), [text for cell in code(path) for text in (cell.source, *output_texts(cell))]
    assert not [text for text in texts if PLACES.search(text) or str(ROOT) in text or sys.prefix in text]
    assert host == "localhost" or not [text for text in texts if re.search(rf"\b{re.escape(host)}\b", text)]
    streams = [output for cell in code(path) for output in cell.outputs if output.output_type == "stream"]
    lines = [line for stream in streams if stream.name == "stderr" for line in stream.text.splitlines()]
    assert lines
    assert not [line for line in lines if not PROGRESS.match(line) or "\r" in line]


@each_notebook
def test_notebook_reads_as_an_article(path):
    notebook, cells = read(path), code(path)
    assert notebook.cells[0].cell_type == "markdown"
    assert notebook.cells[0].source.startswith("# ")
    assert len(notebook.cells) in CELLS
    assert max(len(cell.source.splitlines()) for cell in notebook.cells) <= MAX_CELL_LINES
    for cell in cells:
        ast.parse(cell.source)  # no magics: a cell can be put into a program
    assert "SparkSession" in cells[0].source
    assert cells[-1].source == "spark.stop()"
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    links = [link for text in texts for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert links
    for place, _, anchor in (link.partition("#") for link in links):
        target = (EXAMPLES / place).resolve()
        assert target.exists(), place
        assert not anchor or anchor in anchors(target.read_text(encoding="utf-8")), f"{place}#{anchor}"


def test_places_of_a_machine_are_recognised():
    for text in ("at /tmp/x", "'/home/me/a.py'", "file:///root/x", "<Axes at 0x7f00deadbeef>"):
        assert PLACES.search(text), text
    for text in ("loss 1/2", "s3://bucket/tmp/x", "docs/own-loop.md", "rows/s=24,811"):
        assert not PLACES.search(text), text


@pytest.fixture(scope="module")
def jvm(tmp_path_factory):
    """The driver's JVM of one notebook after another; each has a SparkContext of its own."""
    folder = tmp_path_factory.mktemp("jvm")
    (folder / "local").mkdir()
    with driver_jvm(folder, environment(folder)) as jvm:
        yield jvm


@pytest.mark.notebook
@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.timeout(600)
@each_notebook
def test_notebook_gives_the_kinds_of_its_committed_outputs(path, tmp_path, jvm):
    def outputs(notebook):
        """Without progress: a fast fit shows none."""
        return [sorted({*kinds(cell)} - {"progress"}) for cell in notebook.cells]

    for name in data_sets(read(path)):
        real(name)
    assert outputs(executed(path, tmp_path, jvm if path.stem in ONE_JVM else None)) == outputs(read(path))
