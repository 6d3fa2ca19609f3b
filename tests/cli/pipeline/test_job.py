"""The scheduled pipeline on a week of small days: finished dates, the gate, bad rows, kills and takeovers."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.ml import PipelineModel

from sparkdl.cli import saved_models
from sparkdl.cli.pipeline.stages import PipelineRun
from sparkdl.io import files
from sparkdl.telemetry.event_reader import read_events
from tests.cli.pipeline.week import DAY, DAYS, NEXT, ROWS, write
from tests.training.test_digits import finish, submit

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(240)]

BINARY = "pyspark.ml.evaluation.BinaryClassificationEvaluator"
KILLER = """
import os
import signal
import time
from pathlib import Path

class Kills:
    '''Kills the driver when it has a checkpoint, once.'''

    def __init__(self, folder: str):
        self.folder = Path(folder)

    def on_epoch(self, run):
        if not (self.folder / "mark").exists():
            while not list(self.folder.rglob("attempt-*/manifest.json")):
                time.sleep(0.01)
            (self.folder / "mark").touch()
            os.kill(os.getpid(), signal.SIGKILL)
"""


# ---- dates and the gate -----------------------------------------------------------------------------------------


def test_date_runs_once_and_next_date_starts_from_its_weights(small, spark):
    options = ("--split.date", "null", "--warm_start", "true")  # by a hash, so that both dates compare the same rows
    code, printed = small.run(*options)
    assert code == 0, printed
    done, version = small.done(), small.versions.current()
    assert (done["passed"], done["version"]) == (True, version)
    assert f"published {version}: areaUnderROC" in printed
    assert not list(small.root.glob("runs/*/*/data-*"))
    assert not list(small.root.glob("runs/*/*/train-*/checkpoints"))
    assert list(small.root.glob("runs/*/*/train-*/events/*"))

    before = small.written()
    code, printed = small.run(*options)
    assert (code, f"{DAY} is finished\n" in printed) == (0, True)
    assert small.written() == before

    assert small.run(*options, "--keep", 1, date=NEXT)[0] == 0
    later = small.versions.current()
    assert later != version
    assert small.versions.names() == [later]
    assert small.versions.about(later)["start"] == version
    assert small.done(NEXT)["current"] == version
    (in_use,), (value,) = (
        [metric[name] for metric in result["metrics"].values()]
        for result, name in ((small.done(NEXT), "in_use"), (done, "value"))
    )
    assert in_use == pytest.approx(value, abs=1e-3)  # Spark bins scores by a sample
    assert isinstance(saved_models.load(spark, str(small.root)), PipelineModel)


def test_gate_rejects_bad_models_and_scores_wait_for_their_rows(small):
    code, printed = small.run("--gate.least", "1.1")
    assert code == 3
    assert f"{5 * ROWS - ROWS} training rows, {2 * ROWS} validation rows" in printed  # the day after is left out
    assert f"the model of {DAY} is not published; none is in use" in printed
    assert small.versions.current() is None
    assert not (small.root / "scores").exists()

    (small.folder / "new").rename(small.folder / "late")
    code, printed = small.run("--gate.compare", "false", date=NEXT)
    assert (code, "PATH_NOT_FOUND" in printed) == (4, True)
    good = small.versions.current()
    assert set(small.stages(NEXT)) == {"etl", "start", "train", "gate", "publish"}
    before = small.written(NEXT)
    (small.folder / "late").rename(small.folder / "new")
    code, printed = small.run("--gate.compare", "false", date=NEXT)
    assert (code, f"{ROWS * len(DAYS)} rows scored by {good}" in printed) == (0, True)
    assert before.items() <= small.written(NEXT).items()
    assert small.done(NEXT)["version"] == good

    untrained = {"class_path": "torch.optim.SGD", "init_args": {"lr": 1e-12}}
    for _ in range(2):  # a rejected date is finished too
        code, printed = small.run(date="2026-11-24", optimizer=untrained)
        assert (code, f"is not published; {good} is in use" in printed) == (3, True), printed
    assert small.versions.current() == good
    assert small.done("2026-11-24")["scores"]["version"] == good


# ---- bad rows and arguments -------------------------------------------------------------------------------------


def test_corrected_rows_are_read_again(small):
    for columns, expected, text in (
        ({"y": np.full(ROWS * len(DAYS), 5)}, 2, "5"),  # a class that the network does not have
        ({"a": pa.nulls(ROWS * len(DAYS), pa.float64())}, 4, "null"),
        ({"a": np.repeat("x", ROWS * len(DAYS))}, 4, "type string of column a is not supported"),
    ):
        write(small.folder / "raw", **columns)
        code, printed = small.run()
        assert (code, text in printed) == (expected, True), printed
        assert small.versions.current() is None
    write(small.folder / "raw")
    assert small.run()[0] == 0


@pytest.mark.parametrize(
    ("arguments", "expected", "text"),
    [
        (["--data.path", "/nowhere/{date}.csv"], 4, "/nowhere/2026-11-22.csv"),
        (["--clean.where", "a > 1000"], 4, "there is no training row"),
        (["--clean.label", "cast(null as int)"], 4, "have no label"),
        (["--clean.drop", "[a]"], 4, "a"),
        (["--date", "yesterday"], 2, "date is 'yesterday'; expected one as 2026-11-22"),
        (["--keep", "0"], 2, "keep is 0; expected a number of versions"),
        (["--run-id", "a:b"], 2, "run_id is 'a:b'; expected letters, digits"),
        (["--run-id", "2026-11-22.8"], 2, "run_id is '2026-11-22.8', which begins with a date"),
        (["--gate.metrics", f"{{areaUnderROC: {{evaluator: {BINARY}}}}}"], 2, "the name of the evaluator's metric"),
        (["--refused-exit-code", "300"], 2, "refused_exit_code is 300; expected an exit code"),
    ],
)
def test_exit_code_names_the_mistake(small, arguments, expected, text):
    code, printed = small.run(*arguments)
    assert (code, text in printed) == (expected, True), printed
    assert small.versions.current() is None


# ---- kills and takeovers ----------------------------------------------------------------------------------------


class Killed(BaseException):
    """Ends a run in the driver, which handles no such error."""


@pytest.mark.parametrize(
    ("place", "stages"),
    [
        ("train", {"etl", "start"}),
        ("score_rows", {"etl", "start", "train", "gate", "publish"}),
        ("tidy", {"etl", "start", "train", "gate", "publish", "score"}),
    ],
)
def test_killed_run_resumes_at_its_stage(small, monkeypatch, place, stages):
    def kill(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(PipelineRun, place, kill)
        with pytest.raises(Killed):
            small.run()
    assert set(small.stages()) == stages
    assert (small.root / "scores").exists() == (place == "tidy")
    published, before = small.versions.current(), small.written(DAY)
    assert (published is None) == (place == "train")
    unfinished = "cafecafecafe-0000-12345678"
    left = [
        small.root / f"versions/{DAY}-{unfinished}/model",
        small.root / f"scores/_{DAY}-{unfinished}",
        small.root / f"runs/{DAY}/cafecafecafe/data-0000-12345678",
    ]
    other = small.root / f"versions/{NEXT}-{unfinished}/model"  # of an unfinished date
    for folder in (*left, other):
        folder.mkdir(parents=True)
        (folder / "file").touch()

    assert small.run()[0] == 0
    assert before.items() <= small.written(DAY).items()
    assert small.done()["version"] == small.versions.current()
    assert published in (None, small.versions.current())
    assert len(small.versions.names()) == 1
    assert not any(folder.exists() for folder in left)
    assert other.exists()


@pytest.mark.chaos
def test_sigkill_in_training_resumes_from_the_checkpoint(small):
    (small.folder / "killing.py").write_text(KILLER)
    tracker = {"class_path": "killing.Kills", "init_args": {"folder": str(small.folder)}}
    network = {"epochs": 200, "checkpointInterval": "1 epoch"}
    words = ("--config", small.configured(trackers=[tracker], **network), "--date", DAY)
    process = submit("etl_train", *words, local=small.folder / "local", modules=(small.folder / "killing.py",))
    printed, code = finish(process)
    assert code not in (0, 1), printed
    assert (small.folder / "mark").exists(), printed
    assert set(small.stages()) == {"etl", "start"}
    code, printed = small.run(**network)
    assert code == 0, printed
    assert small.done()["passed"]
    (place,) = small.root.glob("runs/*/*/train-*/events")
    epochs = [event for event in read_events(str(place)) if event.kind == "epoch"]
    last = max(event.attempt for event in epochs)
    trained = [event.payload["epoch"] for event in epochs if event.attempt == last]
    assert trained[0] > 1
    assert trained[-1] == 200


def test_pruned_version_before_its_gate_trains_again(small):
    assert small.run()[0] == 0
    first = small.versions.current()
    for name in ("gate", "publish", "score"):
        small.stages()[name].unlink()
    (small.root / f"runs/{DAY}/done.json").unlink()
    files.delete(f"{small.versions.root}/CURRENT")
    files.delete(f"{small.versions.root}/versions/{first}")
    assert small.run()[0] == 0
    assert small.versions.current() not in (None, first)
    assert len(small.versions.names()) == 1


@pytest.mark.parametrize(("place", "date"), [("train", DAY), ("score_rows", DAY), ("evaluate", NEXT)])
def test_second_run_in_the_middle_of_the_first(small, monkeypatch, place, date):
    """Of one date the later run takes over. Another date's publishes first, and the gate compares with its model."""
    whole, calls = getattr(PipelineRun, place), []

    @functools.wraps(whole)
    def interrupted(run: PipelineRun, *arguments: Any) -> Any:
        calls.append(place)
        if len(calls) > 1:
            return whole(run, *arguments)
        result = whole(run, *arguments) if date == NEXT else None
        assert small.run("--gate.margin", 1, date=date)[0] == 0
        return result or whole(run, *arguments)

    monkeypatch.setattr(PipelineRun, place, interrupted)
    code, printed = small.run("--gate.margin", 1, "--force")
    assert code == (5 if date == DAY else 0), printed
    assert small.done()["passed"]
    assert small.versions.current() == small.done()["version"]
    if date == DAY:
        assert "another run of this date has taken over" in printed
    else:
        assert small.done()["current"] == small.done(NEXT)["version"]
        assert set(small.versions.names()) == {small.done()["version"], small.done(NEXT)["version"]}
