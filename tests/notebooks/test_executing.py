"""How notebooks are executed and tidied, on small ones without Spark."""

from __future__ import annotations

import re
import socket

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError
from nbformat import v4

from tests.notebooks.executing import executed, main
from tests.notebooks.outputs import METADATA, PROGRESS, kinds

KINDS = [
    ("1 + 1", ["text"]),
    ("x = 1", []),
    ("print('said')\nprint('more')", ["text"]),
    ("import pandas as pd\npd.DataFrame({'a': [1]})", ["table"]),
    ("import matplotlib.pyplot as plt\n_, axes = plt.subplots()\naxes.plot([1, 2])\nplt.show()", ["picture"]),
    ("from tqdm.auto import tqdm\nfor _ in tqdm(range(3), desc='fit'):\n    pass\nprint('done')", ["progress", "text"]),
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


def test_outputs_are_of_the_kinds_that_cells_give(written, folder):
    found = executed(written(*(source for source, _ in KINDS)), folder)
    assert [kinds(cell) for cell in found.cells] == [expected for _, expected in KINDS]
    assert [cell.execution_count for cell in found.cells] == list(range(1, len(KINDS) + 1))
    (bar,) = texts(found.cells[-1], "stderr")
    assert re.fullmatch(r"fit: 100%\|█+\| 3/3 \[.*\]\n", bar)  # its last state, and nothing about ipywidgets
    assert PROGRESS.match(bar)


def test_what_other_processes_say_stays_in_the_log(written, folder):
    path = written("import os\nos.system('echo noise; echo noise >&2')\nprint('said')")
    (cell,) = executed(path, folder).cells
    assert texts(cell, "stdout") == ["said\n"]
    assert texts(cell, "stderr") == []
    assert (folder / "log").read_text().count("noise") == 2


def test_it_runs_this_python_in_the_folder(written, folder):
    path = written("import os, sys\nprint(sys.executable, os.getcwd(), os.environ['PYSPARK_PYTHON'])")
    (cell,) = executed(path, folder).cells
    interpreter, place, executors = texts(cell, "stdout")[0].split()
    assert interpreter == executors
    assert place == str(folder / "work")


def test_a_cell_that_fails_is_shown_with_its_traceback_and_the_log(written, folder):
    path = written("import os\nos.system('echo the JVM is gone >&2')", "def divide():\n    1 / 0\n\ndivide()")
    with pytest.raises(CellExecutionError) as raised:
        executed(path, folder)
    said = re.sub(r"\x1b\[[\d;]*m", "", str(raised.value))
    assert "divide()" in said
    assert "ZeroDivisionError: division by zero" in said
    assert "the JVM is gone" in raised.value.__notes__[0]


def test_the_host_and_metadata_are_not_kept(written, folder):
    path = written("import socket\nprint(f'on {socket.gethostname()}')", "socket.gethostname()")
    found = executed(path, folder)
    assert texts(found.cells[0], "stdout") == ["on localhost\n"]
    assert found.cells[1].outputs[0].data == {"text/plain": "'localhost'"}
    assert found.metadata == METADATA
    assert all(cell.metadata == {} for cell in found.cells)
    assert socket.gethostname() == "localhost" or socket.gethostname() not in nbformat.writes(found)


def test_the_program_writes_in_place(written, capsys):
    path = written("print('said')")
    main([str(path)])
    (cell,) = nbformat.read(path, as_version=4).cells
    assert texts(cell, "stdout") == ["said\n"]
    assert "small.ipynb" in capsys.readouterr().out
