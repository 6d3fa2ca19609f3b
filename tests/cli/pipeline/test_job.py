"""The scheduled pipeline on a week of small days: finished dates, the gate, bad rows, kills and takeovers."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from pyspark.ml import PipelineModel

from sparkdl.cli import saved_models
from sparkdl.cli.pipeline.stages import PipelineRun
from sparkdl.io import files
from sparkdl.ml.persistence.registry import Versions
from sparkdl.telemetry.event_reader import read_events
from tests.training.test_digits import finish, submit

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(240)]

DAYS = [f"2026-11-{day}" for day in range(17, 24)]
DAY, NEXT = "2026-11-22", "2026-11-23"
ROWS = 60  # a day
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


def write(path: Path, **columns: Any) -> None:
    """A week of rows as Parquet; ``columns`` replace its own."""
    drawn = np.random.default_rng(0).normal(size=(ROWS * len(DAYS), 2))
    table = {"day": np.repeat(DAYS, ROWS), "a": drawn[:, 0], "b": drawn[:, 1], "y": (drawn.sum(1) > 0).astype(int)}
    path.mkdir(exist_ok=True)
    pq.write_table(pa.table(table | columns), path / "part.parquet")


class Small:
    """A pipeline in a folder, and the command that runs it."""

    def __init__(self, folder: Path, job: Any) -> None:
        self.folder, self.job, self.root = folder, job, folder / "root"
        self.versions = Versions(str(self.root))

    def configured(self, **network: Any) -> Path:
        """The configuration; ``network`` are more arguments of the classifier."""
        linear = {"class_path": "torch.nn.Linear", "init_args": {"in_features": 2, "out_features": 2}}
        rate = {"class_path": "torch.optim.SGD", "init_args": {"lr": 1.0}}
        arguments = {"model": linear, "optimizer": rate, "epochs": 2, "batchSize": 32, **network}
        inputs = {"inputCols": ["a", "b"], "outputCol": "features"}
        values = {
            "root": str(self.root),
            "data": {"path": str(self.folder / "raw"), "format": "parquet"},
            "clean": {"label": "y"},
            "split": {"date": "day", "days": 2},
            "stages": [
                {"class_path": "pyspark.ml.feature.VectorAssembler", "init_args": inputs},
                {"class_path": "sparkdl.TorchClassifier", "init_args": arguments},
            ],
            "evaluator": {"class_path": "pyspark.ml.evaluation.BinaryClassificationEvaluator"},
            "score": {"data": {"path": str(self.folder / "new"), "format": "parquet"}},
        }
        file = self.folder / "pipeline.yaml"
        file.write_text(yaml.safe_dump(values))
        return file

    def run(self, *arguments: object, date: str = DAY, **network: Any) -> tuple[int, str]:
        return self.job("etl_train", "--config", self.configured(**network), "--date", date, *arguments)

    def done(self, date: str = DAY) -> dict[str, Any]:
        """The result of a finished date, whose scores are complete."""
        scores = pq.read_table(self.root / "scores" / f"date={date}")
        assert scores.column_names == ["day", "a", "b", "y", "prediction", "probability"]
        assert scores.num_rows == ROWS * len(DAYS)
        return json.loads((self.root / "runs" / date / "done.json").read_text())

    def stages(self, date: str = DAY) -> dict[str, Path]:
        """The files of the finished stages of a date."""
        files = (self.root / "runs" / date).glob("*/*.json")
        return {file.stem: file for file in files if file.parent.name != "attempts"}

    def written(self, date: str | None = None) -> dict[Path, int]:
        """When all files, or those of the finished stages of a date, were written."""
        paths = self.root.rglob("*") if date is None else self.stages(date).values()
        return {path: path.stat().st_mtime_ns for path in paths if path.is_file()}


@pytest.fixture
def small(tmp_path, job) -> Small:
    for name in ("raw", "new"):
        write(tmp_path / name)
    return Small(tmp_path, job)


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


def test_older_date_is_published_only_by_force(small):
    assert small.run(date=NEXT)[0] == 0
    later = small.versions.current()
    code, printed = small.run("--gate.margin", 1)
    assert (code, small.versions.current()) == (0, later), printed
    assert f"passed, but {later} of a later date stays in use (--force publishes it)" in printed
    done = small.done()
    assert (done["passed"], done["published"], done["scores"]["version"]) == (True, False, later)
    assert json.loads(next(line for line in printed.splitlines() if line.startswith("{"))) == done
    code, printed = small.run("--gate.margin", 1, "--redo", "--force")
    assert (code, small.versions.current()) == (0, small.done()["version"]), printed
    assert small.done()["version"] not in (later, done["version"])


def test_redo_trains_again_on_rows_read_again(small):
    assert small.run("--gate.compare", "false")[0] == 0
    first, etl = small.versions.current(), small.stages()["etl"]
    before = etl.read_text()
    write(small.folder / "raw", a=np.arange(ROWS * len(DAYS)) / 100.0)
    code, printed = small.run("--gate.compare", "false", "--redo")
    assert (code, etl.read_text() == before) == (0, False), printed
    assert small.versions.current() not in (None, first)
    assert len(small.versions.names()) == 2


@pytest.mark.parametrize("code", [0, 7])
def test_refused_model_ends_with_the_user_s_code(small, code):
    for _ in range(2):
        assert small.run("--gate.least", "1.1", f"--refused-exit-code={code}")[0] == code
    assert small.versions.current() is None


def test_all_metrics_of_the_gate_have_to_pass(small):
    area = {
        "class_path": "pyspark.ml.evaluation.BinaryClassificationEvaluator",
        "init_args": {"metricName": "areaUnderPR"},
    }
    for least, expected in ((0.5, 0), (1.5, 3)):
        metrics = json.dumps({"precision and recall": {"evaluator": area, "least": least}})
        code, printed = small.run("--gate.metrics", metrics, "--gate.margin", 1, "--redo")
        assert code == expected, printed
        assert [(name, metric["passed"]) for name, metric in small.done()["metrics"].items()] == [
            ("areaUnderROC", True),
            ("precision and recall", code == 0),
        ]


def test_input_that_fails_a_check_is_not_trained_on(small):
    checks = {"enough rows": "count(*) >= 1000", "both labels": "count(distinct label) = 2"}
    code, printed = small.run("--gate.checks", json.dumps(checks))
    assert (code, "the gate's checks: 'enough rows' (count(*) >= 1000)." in printed) == (4, True), printed
    assert (small.stages(), small.versions.names()) == ({}, [])
    assert small.run("--gate.checks", json.dumps(checks | {"enough rows": "count(*) >= 100"}))[0] == 0


def test_runs_of_a_scheduler_have_their_own_names(small):
    for run_id, words, name in (("hourly-7", ["--split.date", "null"], "hourly-7"), ("8", ["--date", DAY], f"{DAY}.8")):
        code, printed = small.job(
            *("etl_train", "--config", small.configured(), "--run-id", run_id, *words),
            *("--data.path", str(small.folder / "{run_id}")),
        )
        assert (code, "PATH_NOT_FOUND" in printed) == (4, True), printed
        write(small.folder / run_id)
        code, printed = small.job(
            *("etl_train", "--config", small.configured(), "--run-id", run_id, *words),
            *("--data.path", str(small.folder / "{run_id}")),
        )
        assert code in (0, 3), printed
        assert (small.root / f"runs/{name}/done.json").exists()
        assert (small.root / f"scores/run={name}/_SUCCESS").exists()
    code, printed = small.job("etl_train", "--config", small.configured(), "--run-id", "9")
    assert (code, "split.date is 'day', and the run has no date" in printed) == (2, True), printed


@pytest.mark.parametrize(
    ("arguments", "network", "expected", "text"),
    [
        ([], {}, 0, f"{DAY} is valid: 5 columns, 2 stages"),
        (["--gate.checks", "{rows: count(*)}"], {}, 2, "is of type bigint; expected a condition"),
        (["--gate.checks", "{rows: max(c) > 1}"], {}, 4, "cannot be checked"),
        (["--clean.drop", "[a]"], {}, 4, "No such struct field `a`"),
        (["--evaluator.labelCol", "target"], {}, 2, "labelCol of BinaryClassificationEvaluator is 'target'"),
        ([], {"featuresCol": "vector"}, 2, "there is no column 'vector'"),
        ([], {"numWorkers": 300}, 1, "300 workers need 300 task slots"),
        (["--score.data.path", "/nowhere"], {}, 4, "/nowhere"),
    ],
)
def test_check_validates_without_running(small, arguments, network, expected, text):
    code, printed = small.run("--check", *arguments, **network)
    assert (code, text in printed) == (expected, True), printed
    assert not small.root.exists()


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
