"""The report of a run is a dict that writes itself as a page."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import cloudpickle
import pytest

from sparkdl.errors import InvalidInput
from sparkdl.ml.report import Report


def test_a_report_is_a_dict() -> None:
    report = Report({"seconds": 1.5}, history=[{"epoch": 1}])
    assert report == {"seconds": 1.5}
    assert json.loads(json.dumps(report)) == report
    for other in (copy.deepcopy(report), cloudpickle.loads(cloudpickle.dumps(report)), copy.copy(report)):
        assert other == report
        assert isinstance(other, Report)


def test_without_a_directory_a_page_needs_a_path(tmp_path: Path) -> None:
    report = Report({"seconds": 1.5, "rows": 10}, history=[{"epoch": 1, "loss": 0.75}])
    with pytest.raises(InvalidInput, match=r"no runDir; expected html\(path\)"):
        report.html()
    path = str(tmp_path / "page.html")
    assert report.html(path) == path
    assert "0.75" in Path(path).read_text()


def test_with_a_directory_it_lies_there(tmp_path: Path) -> None:
    (tmp_path / "history.json").write_text(json.dumps([{"epoch": 1, "loss": 0.625}]))
    report = Report({"seconds": 1.5}, directory=str(tmp_path))
    assert report.html() == str(tmp_path / "report.html")
    assert "0.625" in (tmp_path / "report.html").read_text()
