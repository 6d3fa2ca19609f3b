"""The job that writes the report page: where, of what, and what it says of what is no run."""

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
from tests.sessions import ROOT, driver_environment, frame
from tests.telemetry.html.looking import look
from tests.telemetry.html.made import gang, written

JOB = ROOT / "jobs" / "report.py"


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


def test_the_page_of_a_run_is_in_its_directory(job, runs):
    assert job(runs[0]) == (0, f"wrote {runs[0]}/report.html\n", "")
    assert "<h1>one</h1>" in Path(runs[0], "report.html").read_text()
    assert job(f"file://{runs[0]}/")[0] == 0  # and is overwritten


def test_it_is_written_elsewhere_where_that_is_asked_for(job, runs, tmp_path):
    output = tmp_path / "pages" / "one.html"
    assert job(runs[0], "--output", output) == (0, f"wrote {output}\n", "")
    assert "<h1>one</h1>" in output.read_text()
    assert not Path(runs[0], "report.html").exists()


def test_several_runs_are_beside_one_another(job, runs, tmp_path):
    assert job(*runs, "--output", tmp_path / "both.html")[0] == 0
    page = (tmp_path / "both.html").read_text()
    assert "<h1>one and two</h1>" in page
    assert "Differences" in page


def test_of_several_runs_the_place_has_to_be_given(job, runs):
    assert job(*runs) == (2, "", "error: 2 runs are given; expected --output FILE, where to write their page.\n")


@pytest.mark.parametrize("name", ["nowhere", "empty"])
def test_a_folder_without_a_run_is_refused(job, runs, tmp_path, name):
    (tmp_path / "empty").mkdir()
    code, out, err = job(runs[0], tmp_path / name, "--output", tmp_path / "page.html")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {tmp_path / name} holds no run; expected the runDir of a fit")
    assert not (tmp_path / "page.html").exists()


def test_a_run_beside_itself_is_refused(job, runs, tmp_path):
    code, _, err = job(runs[0], runs[0], "--output", tmp_path / "page.html")
    assert code == 2
    assert "each once" in err


def test_a_place_that_cannot_be_written_is_an_error(job, runs, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = job(runs[0], "--output", tmp_path / "file" / "page.html")
    assert code == 1
    assert err.startswith("error: ")


@pytest.mark.parametrize("arguments", [[], ["--outptu", "x", "run"]])
def test_a_bad_command_line_is_refused(job, arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        job(*arguments)
    assert ended.value.code == 2
    assert "usage: " in capsys.readouterr().err


PLAIN = """
import runpy, sys
try:
    runpy.run_path(sys.argv.pop(1), run_name="__main__")
finally:
    assert not {"pyspark", "torch", "jsonargparse"} & set(sys.modules)
"""


def test_plain_python_will_do(runs, tmp_path):
    """Alone, and so in a second, without anything of Spark or torch."""
    command = [sys.executable, "-c", PLAIN, str(JOB), runs[0]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"wrote {runs[0]}/report.html\n", "")


@pytest.mark.slow
@pytest.mark.cluster
def test_spark_submit_runs_it_as_well(runs, tmp_path):
    command = [Path(sys.executable).parent / "spark-submit", JOB, *runs, "--output", tmp_path / "both.html"]
    environment = driver_environment(tmp_path / "local")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    assert f"wrote {tmp_path / 'both.html'}" in done.stdout


@pytest.mark.slow
def test_the_page_of_a_fit(spark, browser, tmp_path):
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
