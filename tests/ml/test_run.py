"""A run's directory and its report."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path

import cloudpickle
import pytest

from sparkdl.errors import InvalidInput
from sparkdl.ml.report import Report
from sparkdl.ml.run import Run


@pytest.mark.parametrize("prefix", ["", "file://", "file:"])
@pytest.mark.parametrize("suffix", ["", "/"])
def test_values_are_written_as_json(prefix, suffix, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "digits"
    run = Run(f"{prefix}{folder}{suffix}")
    assert run.events == f"{folder}/events"
    assert not folder.exists()
    run.save("history", [{"epoch": 1, "loss": 0.25}, {"epoch": 2, "loss": 0.125}])
    run.save("report", {"rows": [0] * 1000})
    run.save("report", {"model": int, "path": Path("/x"), "ünïcode": "é"})
    assert run.load("history") == [{"epoch": 1, "loss": 0.25}, {"epoch": 2, "loss": 0.125}]
    report = {"model": "<class 'int'>", "path": "/x", "ünïcode": "é"}
    assert json.loads((folder / "report.json").read_text()) == run.load("report") == report
    assert (folder / "report.json").read_bytes().endswith(b"}\n")
    assert sorted(os.listdir(folder)) == ["history.json", "report.json"]


def test_relative_and_missing_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Run(".").events == f"{tmp_path}/events"
    Run().save("report", {"rows": 1})
    assert (Run().events, Run().load("report"), os.listdir(tmp_path)) == (None, None, [])


def test_report_is_a_dict() -> None:
    report = Report({"seconds": 1.5}, history=[{"epoch": 1}])
    assert report == {"seconds": 1.5} == json.loads(json.dumps(report))
    for copied in (copy.deepcopy(report), cloudpickle.loads(cloudpickle.dumps(report)), copy.copy(report)):
        assert (type(copied), copied) == (Report, report)


def test_page_of_a_report(tmp_path: Path) -> None:
    report = Report({"seconds": 1.5, "rows": 10}, history=[{"epoch": 1, "loss": 0.75}])
    with pytest.raises(InvalidInput, match=r"no runDir; expected html\(path\)"):
        report.html()
    path = str(tmp_path / "page.html")
    assert report.html(path) == path
    assert "0.75" in Path(path).read_text()
    (tmp_path / "history.json").write_text(json.dumps([{"epoch": 1, "loss": 0.625}]))
    assert Report({"seconds": 1.5}, directory=str(tmp_path)).html() == str(tmp_path / "report.html")
    assert "0.625" in (tmp_path / "report.html").read_text()
