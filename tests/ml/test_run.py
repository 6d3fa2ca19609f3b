"""A run's directory."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sparkdl.ml.run import Run


def uri(folder: Path) -> str:
    return f"file://{folder}"


@pytest.mark.parametrize("name", [str, uri, lambda folder: f"{folder}/", lambda folder: f"file:{folder}"])
def test_values_are_written_as_json(name, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "digits"
    run = Run(name(folder))
    run.save("history", [{"epoch": 1, "loss": 0.25}, {"epoch": 2, "loss": 0.125}])
    run.save("report", {"rows": 7, "ünïcode": "é"})
    assert json.loads((folder / "history.json").read_text()) == [
        {"epoch": 1, "loss": 0.25},
        {"epoch": 2, "loss": 0.125},
    ]
    assert json.loads((folder / "report.json").read_text()) == {"rows": 7, "ünïcode": "é"}
    assert sorted(os.listdir(folder)) == ["history.json", "report.json"]


def test_a_file_is_written_anew(tmp_path: Path) -> None:
    run = Run(str(tmp_path))
    run.save("report", {"rows": [0] * 1000})
    run.save("report", {"rows": 1})
    assert json.loads((tmp_path / "report.json").read_text()) == {"rows": 1}
    assert (tmp_path / "report.json").read_bytes().endswith(b"}\n")


def test_what_json_cannot_say_is_written_as_text(tmp_path: Path) -> None:
    Run(str(tmp_path)).save("config", {"model": int, "path": Path("/x")})
    assert json.loads((tmp_path / "config.json").read_text()) == {"model": "<class 'int'>", "path": "/x"}


def test_without_a_directory_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Run().save("report", {"rows": 1})
    assert os.listdir(tmp_path) == []
    assert Run().events is None


def test_the_folder_of_the_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for directory in (str(tmp_path), f"{tmp_path}/", uri(tmp_path), f"{uri(tmp_path)}/", "."):
        assert Run(directory).events == f"{tmp_path}/events"
    assert os.listdir(tmp_path) == []
