"""The command that writes the report page."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sparkdl.cli import report
from tests.sessions import ROOT
from tests.telemetry.html.made import gang, written


@pytest.fixture
def runs(tmp_path):
    """The directories of two runs."""
    made = [gang(), gang(loss=2.0)]
    return [
        written(tmp_path / name, data.events, history=list(data.history), config=data.configuration, report=data.report)
        for name, data in zip(("one", "two"), made, strict=True)
    ]


def test_page_of_a_run_is_in_its_directory_or_where_output_says(runs, tmp_path, capsys):
    output = tmp_path / "pages" / "one.html"
    assert report.main([runs[0], "--output", str(output)]) == 0
    assert "<h1>one</h1>" in output.read_text()
    assert not Path(runs[0], "report.html").exists()
    for place in (runs[0], f"file://{runs[0]}/"):  # the second overwrites
        assert report.main([place]) == 0
    assert "<h1>one</h1>" in Path(runs[0], "report.html").read_text()
    assert capsys.readouterr().out.startswith(f"wrote {output}\nwrote {runs[0]}/report.html\n")


def test_page_compares_several_runs(runs, tmp_path):
    assert report.main([*runs, "--output", str(tmp_path / "both.html")]) == 0
    page = (tmp_path / "both.html").read_text()
    assert "<h1>one and two</h1>" in page
    assert "Differences" in page


@pytest.mark.parametrize(
    ("words", "expected", "message"),
    [
        ("{one} {two}", 2, "error: 2 runs are given without an output; expected --output FILE.\n"),
        (
            "{one} {tmp}/nowhere --output {tmp}/a.html",
            2,
            "error: {tmp}/nowhere holds no run; expected the runDir of a fit",
        ),
        ("{one} {tmp}/empty --output {tmp}/a.html", 2, "error: {tmp}/empty holds no run; expected the runDir of a fit"),
        ("{one} {one} --output {tmp}/a.html", 2, "each once"),
        ("{one} --output {tmp}/file/a.html", 1, "error: "),
        ("", 2, "usage: "),
        ("--outptu x run", 2, "usage: "),
    ],
)
def test_mistake_has_an_exit_code(runs, tmp_path, capsys, words, expected, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    places = {"one": runs[0], "two": runs[1], "tmp": tmp_path}
    try:
        code = report.main(words.format(**places).split())
    except SystemExit as ended:
        code = ended.code
    assert code == expected
    assert message.format(**places) in capsys.readouterr().err
    assert not (tmp_path / "a.html").exists()


PLAIN = """
import runpy, sys
try:
    runpy.run_path(sys.argv.pop(1), run_name="__main__")
finally:
    assert not {"pyspark", "torch", "jsonargparse"} & set(sys.modules)
"""


def test_script_loads_neither_spark_nor_torch(runs, tmp_path):
    command = [sys.executable, "-c", PLAIN, str(ROOT / "jobs/report.py"), runs[0]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"wrote {runs[0]}/report.html\n", "")
