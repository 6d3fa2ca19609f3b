"""The scheduled pipeline on a week of small days: finished dates, the gate, bad rows, kills and takeovers."""

from __future__ import annotations

import json
import re
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest
from mlflow import MlflowClient
from pyspark.ml import PipelineModel

from sparkdl.cli import scoring
from sparkdl.cli.pipeline.stages import PipelineRun
from sparkdl.io import files
from sparkdl.telemetry.event_reader import read_events
from tests.cli.pipeline.week import DAY, DAYS, NEXT, ROWS, Killed, write
from tests.training.test_digits import finish, submit

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

BINARY = "pyspark.ml.evaluation.BinaryClassificationEvaluator"
KILLER = """
import os
import signal
import time
from pathlib import Path

class Kills:
    '''Kills the driver when it has a checkpoint, once.'''

    every_rank = False

    def __init__(self, folder: str):
        self.folder = Path(folder)

    def on_epoch(self, run):
        if not (self.folder / "mark").exists():
            while not list(self.folder.rglob("attempt-*/manifest.json")):
                time.sleep(0.01)
            (self.folder / "mark").touch()
            os.kill(os.getpid(), signal.SIGKILL)

class Waits:
    '''Keeps a worker after its second epoch, for at most a minute, until it ends with its driver.'''

    every_rank = False

    def on_epoch(self, run):
        if run.clock.epoch >= 2:
            time.sleep(60)
"""


def test_date_runs_once_and_next_date_starts_from_its_weights_and_waits_for_rows_to_score(small, spark):
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

    (small.folder / "new").rename(small.folder / "late")
    code, printed = small.run(*options, "--keep", 1, date=NEXT)
    assert (code, "PATH_NOT_FOUND" in printed) == (4, True)
    later = small.versions.current()
    assert later != version
    assert set(small.stages(NEXT)) == {"etl", "start", "train", "gate", "publish"}
    before = small.written(NEXT)
    (small.folder / "late").rename(small.folder / "new")
    code, printed = small.run(*options, "--keep", 1, date=NEXT)
    assert (code, f"{ROWS * len(DAYS)} rows scored by {later}" in printed) == (0, True)
    assert before.items() <= small.written(NEXT).items()
    assert small.versions.names() == [later]
    assert small.versions.about(later)["start"] == version
    assert (small.done(NEXT)["current"], small.done(NEXT)["version"]) == (version, later)
    (compared,), (earlier,) = (result["metrics"].values() for result in (small.done(NEXT), done))
    assert compared["in_use"] == pytest.approx(earlier["value"], abs=1e-3)  # Spark bins scores by a sample
    assert isinstance(scoring.load(spark, str(small.root)), PipelineModel)


def test_a_search_is_a_stage_and_the_next_one_starts_from_its_best_model(small, spark):
    linear = {"class_path": "torch.nn.Linear", "init_args": {"in_features": 2, "out_features": 2}}
    estimator = {"model": linear, "epochs": 2, "batchSize": 32, "validationFraction": 0.2}
    settings = {"numTrials": 2, "sampler": "random", "paramSpace": {"learningRate": [0.01, 0.1, 0.3]}}
    tuner = {"estimator": {"class_path": "sparkdl.TorchClassifier", "init_args": estimator}, **settings}
    inputs = {"inputCols": ["a", "b"], "outputCol": "features"}
    small.keys = {
        "stages": [
            {"class_path": "pyspark.ml.feature.VectorAssembler", "init_args": inputs},
            {"class_path": "sparkdl.TorchTuner", "init_args": tuner},
        ]
    }
    options = ("--split.date", "null", "--warm_start", "true")
    code, printed = small.run(*options)
    assert code == 0, printed
    version = small.versions.current()
    model = scoring.load(spark, str(small.root))
    assert len(model.stages[1].trials) == 2
    assert not list(small.root.glob("runs/*/*/train-*/trials"))
    assert {"prediction", "probability"} <= {*spark.read.parquet(str(small.root / "scores")).columns}
    code, printed = small.run(*options, date=NEXT)
    assert code == 0, printed
    assert small.versions.about(small.versions.current())["start"] == version


def test_corrected_rows_are_read_again_and_redo_trains_again(small, store):
    """With a scheduler's id; the first model does not pass all metrics."""
    name, count = f"{DAY}.8", ROWS * len(DAYS)
    small.keys = {"register": {"name": "week", "tracking_uri": store}}
    area = {"class_path": BINARY, "init_args": {"metricName": "areaUnderPR"}}
    metrics = {"precision and recall": {"evaluator": area, "least": 0.9}}
    checks = {"enough rows": "count(*) >= 100", "other labels": "max(label) > 0"}
    words = ("--run-id", 8, "--gate.metrics", json.dumps(metrics), "--gate.checks", json.dumps(checks))
    for columns, expected, text in (
        ({"y": np.zeros(count, int)}, 4, "the gate's checks: 'other labels' (max(label) > 0)."),
        ({"y": np.full(count, 5)}, 2, "5"),  # a class that the network does not have
        ({"a": pa.nulls(count, pa.float64())}, 4, "null"),
        ({"a": np.repeat("x", count)}, 4, "type string of column a is not supported"),
    ):
        write(small.folder / "raw", **columns)
        code, printed = small.run(*words)
        assert (code, text in printed) == (expected, True), printed
        assert not small.stages(name).keys() & {"etl", "train"}
        assert small.versions.names() == []

    def done() -> tuple[dict[str, bool], Any]:
        found = json.loads((small.root / f"runs/{name}/done.json").read_text())
        return {metric: values["passed"] for metric, values in found["metrics"].items()}, found["registered"]

    write(small.folder / "raw", y=np.arange(count) % 2)  # no column tells it
    code, printed = small.run(*words)
    assert (code, f"the model of {name} is not published; none is in use" in printed) == (3, True)
    assert re.search(r"rejected .*precision and recall 0\.\d+ failed: 0\.\d+ < 0\.9, the gate's least", printed)
    for code in (0, 7):  # a rejected run is finished too
        assert small.run(*words, f"--refused-exit-code={code}")[0] == code
    assert done() == ({"areaUnderROC": True, "precision and recall": False}, None)
    assert small.versions.current() is None
    assert not (small.root / "scores").exists()
    assert MlflowClient(store).search_registered_models() == []

    (first,), etl = small.versions.names(), small.stages(name)["etl"]
    before = etl.read_text()
    write(small.folder / "raw")
    code, printed = small.run(*words, "--redo")
    assert (code, etl.read_text() == before) == (0, False), printed
    assert done() == ({"areaUnderROC": True, "precision and recall": True}, {"name": "week", "version": "1"})
    assert small.versions.names() == [first, current := small.versions.current()]
    assert (small.root / f"scores/run={name}/_SUCCESS").exists()

    untrained = {"class_path": "torch.optim.SGD", "init_args": {"lr": 1e-12}}
    code, printed = small.run("--refused-exit-code=7", date="2026-11-24", optimizer=untrained)
    assert (code, f"is not published; {current} is in use" in printed) == (7, True), printed
    assert re.search(r"areaUnderROC .* failed: [.\d]+ < ([.\d]+): the model in use has \1, the margin is 0\b", printed)
    assert (small.versions.current(), small.done("2026-11-24")["scores"]["version"]) == (current, current)


@pytest.mark.parametrize(
    ("arguments", "expected", "text"),
    [
        (["--data.path", "/nowhere/{date}.csv"], 4, "/nowhere/2026-11-22.csv"),
        (["--clean.where", "a > 1000"], 4, "there is no training row"),
        (["--clean.label", "cast(null as int)"], 4, "have no label"),
        (["--clean.drop", "[a]"], 4, "a"),
        (["--date", "yesterday"], 2, "date is 'yesterday'; expected one as 2026-11-22"),
        (["--keep", "0"], 2, "keep is 0; expected a whole number"),
        (["--run-id", "a:b"], 2, "run_id is 'a:b'; expected letters, digits"),
        (["--run-id", "2026-11-22.8"], 2, "run_id is '2026-11-22.8', which begins with a date"),
        (["--gate.metrics", f"{{areaUnderROC: {{evaluator: {BINARY}}}}}"], 2, "the name of the evaluator's metric"),
        (["--refused-exit-code", "300"], 2, "refused_exit_code is 300; expected a whole number from 0 to 255"),
    ],
)
def test_exit_code_names_the_mistake(small, arguments, expected, text):
    code, printed = small.run(*arguments)
    assert (code, text in printed) == (expected, True), printed
    assert small.versions.current() is None


def test_killed_run_resumes_at_its_stage_and_trains_again_without_its_version(small, monkeypatch):
    unfinished = "cafecafecafe-0000-12345678"
    left = [
        small.root / f"versions/{DAY}-{unfinished}/model",
        small.root / f"scores/_{DAY}-{unfinished}",
        small.root / f"runs/{DAY}/cafecafecafe/data-0000-12345678",
    ]
    other = small.root / f"versions/{NEXT}-{unfinished}/model"  # of an unfinished date
    published, before = None, {}
    for place, stages in (
        ("train", {"etl", "start"}),
        ("score_rows", {"etl", "start", "train", "gate", "publish"}),
        ("tidy", {"etl", "start", "train", "gate", "publish", "score"}),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(PipelineRun, place, Mock(side_effect=Killed))
            with pytest.raises(Killed):
                small.run()
        assert set(small.stages()) == stages
        assert (small.root / "scores").exists() == (place == "tidy")
        assert before.items() <= small.written(DAY).items()
        assert published in (None, small.versions.current())
        published, before = small.versions.current(), small.written(DAY)
        assert (published is None) == (place == "train")
    for folder in (*left, other):
        folder.mkdir(parents=True)
        (folder / "file").touch()

    assert small.run()[0] == 0
    assert before.items() <= small.written(DAY).items()
    assert small.done()["version"] == small.versions.current() == published
    assert small.versions.names() == [published]
    assert not any(folder.exists() for folder in left)
    assert other.exists()

    for name in ("gate", "publish", "score"):  # pruned before its gate
        small.stages()[name].unlink()
    (small.root / f"runs/{DAY}/done.json").unlink()
    files.delete(f"{small.versions.root}/CURRENT")
    files.delete(f"{small.versions.root}/versions/{published}")
    assert small.run()[0] == 0
    assert small.versions.current() not in (None, published)
    assert len(small.versions.names()) == 1


@pytest.mark.chaos
def test_sigkill_in_training_resumes_from_the_checkpoint(small):
    (small.folder / "killing.py").write_text(KILLER)
    tracker = {"class_path": "killing.Kills", "init_args": {"folder": str(small.folder)}}
    network = {"epochs": 3, "checkpointInterval": "1 epoch"}
    watched = small.configured(trackers=[tracker], callbacks=["killing.Waits"], **network)
    words = ("--config", watched, "--date", DAY)
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
    assert trained[-1] == 3


def test_later_date_in_the_gate_of_an_older_one_stays_in_use_without_force(small, store, monkeypatch):
    """The later date publishes first. The gate compares with its model; only force replaces it."""
    small.keys = {"register": {"name": "week", "tracking_uri": store}}
    mlflow, found = MlflowClient(store), []

    def champion() -> str:
        version = mlflow.get_model_version_by_alias("week", "champion")
        return version.tags["sparkdl.pipeline.version"]

    whole, calls = PipelineRun.evaluate, []

    def interrupted(self: PipelineRun, *arguments: Any) -> Any:
        calls.append(self)
        first, result = len(calls) == 1, whole(self, *arguments)
        if first:
            found.append(small.run("--gate.margin", 1, date=NEXT))
        return result

    monkeypatch.setattr(PipelineRun, "evaluate", interrupted)
    code, printed = small.run("--gate.margin", 1)
    ((other, early),) = found
    assert f"{5 * ROWS - ROWS} training rows, {2 * ROWS} validation rows" in early  # the day after is left out
    done, later = small.done(), small.done(NEXT)["version"]
    assert (code, other, small.versions.current(), champion()) == (0, 0, later, later), printed
    assert f"passed, but {later} of a later date stays in use (--force publishes it)" in printed
    assert (done["passed"], done["published"], done["scores"]["version"]) == (True, False, later)
    assert (done["current"], done["registered"]) == (later, None)
    assert json.loads(next(line for line in printed.splitlines() if line.startswith("{"))) == done
    code, printed = small.run("--gate.margin", 1, "--force")
    assert (code, small.versions.current(), champion()) == (0, done["version"], done["version"]), printed
    assert f"published {done['version']}" in printed
    assert small.done() == {**done, "published": True, "registered": {"name": "week", "version": "2"}}
    assert set(small.versions.names()) == {done["version"], later}

    small.versions.publish(later)
    for file in (small.root / f"runs/{DAY}/done.json", small.stages()["publish"]):  # the run has not finished
        file.unlink()
    assert small.run("--gate.margin", 1, "--force")[0] == 0
    assert (small.versions.current(), small.done()["published"]) == (done["version"], True)


def test_run_of_a_scheduler_has_its_own_name_and_need_not_compare_models(small):
    other = small.root / "versions/other/model/metadata"  # nobody can load it
    other.mkdir(parents=True)
    (other / "part-00000").touch()
    small.versions.complete("other", {"run": "other", "date": None})
    small.versions.publish("other")
    words = ("--run-id", "hourly-7", "--split.date", "null", "--data.path", small.folder / "{run_id}")
    for expected in (4, 0):
        code, printed = small.job("etl_train", "--config", small.configured(), *words, "--gate.compare", "false")
        assert (code, "PATH_NOT_FOUND" in printed) == (expected, expected == 4), printed
        write(small.folder / "hourly-7")
    done = json.loads((small.root / "runs/hourly-7/done.json").read_text())
    assert (done["current"], [metric["in_use"] for metric in done["metrics"].values()]) == ("other", [None])
    assert small.versions.current() == done["version"]
    assert (small.root / "scores/run=hourly-7/_SUCCESS").exists()
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
