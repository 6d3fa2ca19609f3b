"""The command that writes the report page."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torchmetrics.classification import MulticlassAccuracy

from sparkdl import TorchClassifier
from sparkdl.cli import report
from sparkdl.telemetry.html import RunData
from tests.ml import nets
from tests.sessions import ROOT, frame
from tests.telemetry.html.looking import look
from tests.telemetry.html.made import gang, written


@pytest.fixture
def runs(tmp_path):
    """The directories of two runs."""
    made = [gang(), gang(loss=2.0)]
    return [
        written(tmp_path / name, data.events, history=list(data.history), config=data.configuration, report=data.report)
        for name, data in zip(("one", "two"), made, strict=True)
    ]


@pytest.fixture
def job(capsys):
    """Run the job: its exit code, and what it printed to standard output and to standard error."""

    def job(*arguments):
        code = report.main([str(each) for each in arguments])
        return code, *capsys.readouterr()

    return job


def test_page_of_a_run_is_in_its_directory_or_where_output_says(job, runs, tmp_path):
    output = tmp_path / "pages" / "one.html"
    assert job(runs[0], "--output", output) == (0, f"wrote {output}\n", "")
    assert "<h1>one</h1>" in output.read_text()
    assert not Path(runs[0], "report.html").exists()
    assert job(runs[0]) == (0, f"wrote {runs[0]}/report.html\n", "")
    assert "<h1>one</h1>" in Path(runs[0], "report.html").read_text()
    assert job(f"file://{runs[0]}/")[0] == 0  # and is overwritten


def test_page_compares_several_runs(job, runs, tmp_path):
    assert job(*runs, "--output", tmp_path / "both.html")[0] == 0
    page = (tmp_path / "both.html").read_text()
    assert "<h1>one and two</h1>" in page
    assert "What differs" in page


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


@pytest.mark.slow
def test_page_of_a_fit(spark, browser, tmp_path):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 3, generator=generator)
    rows = frame({"x": x.numpy(), "label": (x[:, 0] > 0).long().numpy() + (x[:, 1] > 0).long().numpy()})
    classifier = TorchClassifier(
        model=nets.scores,
        metrics={"accuracy": MulticlassAccuracy(3)},
        inputCols=["x"],
        numWorkers=2,
        batchSize=50,
        epochs=3,
        runDir=str(tmp_path / "run"),
    )
    model = classifier.fit(rows)
    assert model.report.html(str(tmp_path / "own.html")) == str(tmp_path / "own.html")
    assert report.main([str(tmp_path / "run")]) == 0
    for page in (tmp_path / "own.html", tmp_path / "run" / "report.html"):
        found = look(browser, page.read_text(), tmp_path)
        assert found.trouble is None
        assert list(found.charts) == ["loss", "metric-0", "throughput", "phases", "timeline"]
        assert sorted(found.charts["phases"]["ticks"]) == ["rank 0", "rank 1"]
    data = RunData.read(str(tmp_path / "run"))
    assert (data.state, data.called(1)) == ("finished", "rank 1")
    assert "<td>pyspark</td>" in page.read_text()
