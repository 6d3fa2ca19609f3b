"""The notebooks run, and every cell gives what it is shown with: a picture, a table, text; not the same numbers."""

from __future__ import annotations

import nbformat
import pytest

from tests.notebooks.executing import executed, notebooks
from tests.notebooks.outputs import kinds

pytestmark = [pytest.mark.notebook, pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(400)]


@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)
def test_a_notebook_runs_and_gives_what_it_shows(path, tmp_path):
    found, shown = executed(path, tmp_path), nbformat.read(path, as_version=4)
    assert outputs(found) == outputs(shown)


def outputs(notebook):
    """The kinds of each cell's outputs, but for progress: a fit that is over at once has none to show."""
    return [(number, sorted({*kinds(cell)} - {"progress"})) for number, cell in enumerate(notebook.cells)]
