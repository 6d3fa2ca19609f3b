"""A run's directory, report and identity."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

from sparkdl import EMA, InvalidInput, TorchClassifier, TorchRegressor
from sparkdl.ml.report import Report
from sparkdl.ml.run import IDENTITY, Run, identity, own_checkpoints
from tests.ml.described import linear


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


def test_page_of_a_report(tmp_path: Path) -> None:
    report = Report({"seconds": 1.5, "rows": 10}, history=[{"epoch": 1, "loss": 0.75}])
    with pytest.raises(InvalidInput, match=r"no runDir; expected html\(path\)"):
        report.html()
    path = str(tmp_path / "page.html")
    assert report.html(path) == path
    assert "0.75" in Path(path).read_text()


class Scales:
    changes_result = True

    def __init__(self, by: float) -> None:
        self.by = by

    def on_end(self, run: Any) -> None:
        raise NotImplementedError


def estimator(**values: Any) -> TorchRegressor:
    return TorchRegressor(**{"model": linear(0.0), "inputCols": ["x"], **values})


def of_same_name(at: int) -> type[nn.Module]:
    class Net(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * scale

    scale = at
    return Net


def of_helper(at: int) -> Any:
    """A loss that calls a function of its module; the two modules differ in the function's body."""
    program: dict[str, Any] = {"__name__": "program"}
    exec(f"def helper(x):\n    return x + {at}\n\ndef loss(output, target):\n    return helper(output)", program)
    return program["loss"]


# test_describe has all kinds of values.
CHANGES = {
    "start weights": ("model", linear),
    "class of the same name": ("model", of_same_name),
    "loss body": ("loss", lambda at: [lambda output, target: output, lambda output, target: target][at]),
    "closure value": ("loss", lambda at: lambda output, target: output * at),
    "helper of the same module": ("loss", of_helper),
    "learning rate": ("learningRate", lambda at: 0.1 + at),
    "number": ("batchSize", lambda at: 20 + at),
    "callback that changes the result": ("callbacks", lambda at: [print, EMA(0.5 + at / 4)]),
    "added callback": ("callbacks", lambda at: [EMA(0.5)] * at),
    "own callback": ("callbacks", lambda at: [Scales(at)]),
}


@pytest.mark.parametrize(("name", "make"), CHANGES.values(), ids=CHANGES)
def test_changes_raise_by_name(name, make, tmp_path):
    run, first = Run(str(tmp_path)), estimator(**{name: make(0)}).descriptions()
    own_checkpoints(run, first).fence(0)
    run.save(IDENTITY, first)
    own_checkpoints(run, estimator(**{name: make(0)}).descriptions())
    with pytest.raises(InvalidInput, match=rf"belongs to the run .* These differ: {name} was .* and is ") as caught:
        own_checkpoints(run, estimator(**{name: make(1)}).descriptions())
    assert caught.value.message.count(" was ") == 1


def test_run_of_an_earlier_version_counts_as_one_with_the_callbacks(tmp_path):
    described = estimator(callbacks=[EMA(0.9)]).descriptions()
    before = {name: value for name, value in described.items() if name != "callbacks"}
    text = json.dumps(before, sort_keys=True)
    assert identity(described) == hashlib.sha256(text.encode()).hexdigest()[:16]  # as that version hashed it
    Run(str(tmp_path)).save(IDENTITY, before)
    with pytest.warns(UserWarning, match=r"did not record \[EMA\(decay=0.9\)\]; expected it"):
        own_checkpoints(Run(str(tmp_path)), described).fence(0)
    own_checkpoints(Run(str(tmp_path)), estimator().descriptions())


def test_another_run_raises_without_stored_descriptions(tmp_path):
    run = Run(str(tmp_path))
    own_checkpoints(run, {"loss": "a"}).fence(0)
    for text in (None, "{", "[]"):
        if text is not None:
            (tmp_path / f"{IDENTITY}.json").write_text(text)
        with pytest.raises(InvalidInput, match="belongs to the run"):
            own_checkpoints(run, {"loss": "b"})


def test_params_that_may_change_between_attempts():
    free = {"epochs": 9, "numWorkers": 4, "callbacks": [print], "runDir": "/else", "maxRestarts": 0, "telemetry": False}
    assert identity(estimator(**free).descriptions()) == identity(estimator().descriptions())
    assert identity(TorchClassifier(model=linear(0.0)).descriptions()) != identity(estimator().descriptions())
