"""Notebooks run and are tidied: small ones without Spark, and those of examples/."""

from __future__ import annotations

import re
import socket
import tempfile
from contextlib import nullcontext

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError
from nbformat import v4

from tests.notebooks.executing import executed, main, notebooks
from tests.notebooks.outputs import METADATA, PROGRESS, kinds

CELLS = [
    ("1 + 1", ["text"]),
    ("x = 1", []),
    ("print('one')\nprint('two')", ["text"]),
    ("import pandas as pd\npd.DataFrame({'a': [1]})", ["table"]),
    ("import matplotlib.pyplot as plt\n_, axes = plt.subplots()\naxes.plot([1, 2])\nplt.show()", ["picture"]),
    ("from tqdm.auto import tqdm\nfor _ in tqdm(range(3), desc='fit'):\n    pass\nprint('done')", ["progress", "text"]),
    ("import os\nos.system('echo noise; echo noise >&2')\nprint('own')", ["text"]),
    ("import sys\nprint(sys.executable, os.getcwd(), os.environ['PYSPARK_PYTHON'])", ["text"]),
    ("import socket\nprint(f'on {socket.gethostname()}')\nsocket.gethostname()", ["text"]),
]


@pytest.fixture
def written(tmp_path):
    def write(*sources):
        cells = [v4.new_code_cell(source) for source in sources]
        path = tmp_path / "small.ipynb"
        nbformat.write(v4.new_notebook(cells=cells, metadata={"widgets": {}, **METADATA}), path)
        return path

    return write


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "folder"
    place.mkdir()
    return place


def texts(cell, name):
    return [output.text for output in cell.outputs if output.output_type == "stream" and output.name == name]


def test_program_writes_tidied_outputs_in_place(written, folder, monkeypatch, capsys):
    monkeypatch.setattr(tempfile, "TemporaryDirectory", lambda: nullcontext(folder))
    path = written(*(source for source, _ in CELLS))
    main([str(path)])
    assert "small.ipynb" in capsys.readouterr().out
    notebook = nbformat.read(path, as_version=4)
    assert [kinds(cell) for cell in notebook.cells] == [expected for _, expected in CELLS]
    assert [cell.execution_count for cell in notebook.cells] == list(range(1, len(CELLS) + 1))
    *_, bar, noise, python, host = notebook.cells
    (line,) = texts(bar, "stderr")
    assert re.fullmatch(r"fit: 100%\|█+\| 3/3 \[.*\]\n", line)  # the last state, and no warning about ipywidgets
    assert PROGRESS.match(line)
    assert (texts(noise, "stdout"), texts(noise, "stderr")) == (["own\n"], [])
    assert (folder / "log").read_text().count("noise") == 2
    interpreter, place, executors = texts(python, "stdout")[0].split()
    assert (interpreter, place) == (executors, str(folder / "work"))
    assert texts(host, "stdout") == ["on localhost\n"]
    assert host.outputs[1].data == {"text/plain": "'localhost'"}
    assert notebook.metadata == METADATA
    assert all(cell.metadata == {} for cell in notebook.cells)
    assert socket.gethostname() == "localhost" or socket.gethostname() not in str(host.outputs)


def test_failed_cell_shows_its_traceback_and_the_log(written, folder):
    path = written("import os\nos.system('echo the JVM is gone >&2')", "def divide():\n    1 / 0\n\ndivide()")
    with pytest.raises(CellExecutionError) as raised:
        executed(path, folder)
    message = re.sub(r"\x1b\[[\d;]*m", "", str(raised.value))
    assert "divide()" in message
    assert "ZeroDivisionError: division by zero" in message
    assert "the JVM is gone" in raised.value.__notes__[0]


@pytest.mark.notebook
@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.timeout(400)
@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)
def test_notebook_gives_the_kinds_of_its_committed_outputs(path, tmp_path):
    def outputs(notebook):
        """Without progress: a fast fit shows none."""
        return [sorted({*kinds(cell)} - {"progress"}) for cell in notebook.cells]

    assert outputs(executed(path, tmp_path)) == outputs(nbformat.read(path, as_version=4))
