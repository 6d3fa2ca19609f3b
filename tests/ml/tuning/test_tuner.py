"""Searches on Spark: exact trials in tasks and on gangs, faults, the front door, and mistakes."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.feature import VectorAssembler
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau

from benchmarks.hosts import until
from sparkdl import (
    EMA,
    Bagging,
    InvalidInput,
    LocalSGD,
    ParallelSGD,
    Range,
    SuccessiveHalving,
    TorchClassifier,
    TorchTuner,
    TorchTunerModel,
    load_predictor,
)
from sparkdl.cluster.shutdown import forget_stop, request_stop
from sparkdl.errors import Stopped, WorkerFailed
from sparkdl.ml.tuning.search_space import apply
from sparkdl.telemetry.event_reader import read_events
from tests.ml import rows
from tests.ml.rows import ARRAYS
from tests.sessions import IN_PROCESS, frame, session

HALVING = SuccessiveHalving(2, 1)  # of four epochs the rungs 1, 2, 4
SPACE = {TorchClassifier.learningRate: Range(1e-3, 0.3, log=True), "batchSize": [20, 40]}


class Net(nn.Sequential):
    """Two scores of three numbers, with dropout."""

    def __init__(self, hidden: int = 8) -> None:
        super().__init__(nn.Linear(3, hidden), nn.Tanh(), nn.Dropout(0.2), nn.Linear(hidden, 2))


classifier = partial(
    rows.classifier,
    model=Net,
    optimizer="adam",
    validationIndicatorCol="valid",
    epochs=4,
    batchSize=30,
    numWorkers=None,
)
tuner = partial(TorchTuner, paramSpace=SPACE, numTrials=4, sampler="random", earlyTermination=HALVING, parallelism=1)

SCHEDULES: dict[str, dict[str, Any]] = {
    "a schedule of all steps": {
        "validationIndicatorCol": None,
        "validationFraction": 0.25,
        "idCol": None,
        "scheduler": partial(OneCycleLR, max_lr=0.05),
        "schedulerInterval": "step",
        "callbacks": [EMA(0.9)],
        "keepBest": False,
    },
    "a schedule by the value": {"scheduler": partial(ReduceLROnPlateau, patience=0), "patience": 2, "minDelta": 0.01},
}


def figures(model: Any) -> list[dict[str, Any]]:
    return [{name: one for name, one in row.items() if "second" not in name} for row in model.history]


def assert_same(one: Any, other: Any) -> None:
    """The bits of two models, and their histories but for seconds."""
    left, right = one.module().state_dict(), other.module().state_dict()
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert figures(one) == figures(other)


@pytest.mark.parametrize("workers", [None, 2])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_trial_that_pauses_at_each_rung_equals_an_undisturbed_fit(data, tmp_path, schedule, workers):
    estimator = classifier(**SCHEDULES[schedule], numWorkers=workers)
    search = tuner(estimator=estimator, paramSpace={"learningRate": [0.02]}, sampler="grid", runDir=str(tmp_path))
    model = search.fit(data)
    [trial] = model.trials
    assert [*trial["values"]] == ["1", "2", "4"]
    alone = apply(model.bestParams, estimator).copy({estimator.runDir: None, estimator.numWorkers: workers or 1})
    assert_same(model.bestModel, alone.fit(data))
    again = search.fit(data)
    assert_same(again.bestModel, model.bestModel)
    assert again.trials == model.trials


@dataclass(frozen=True)
class Fault:
    """A callback that acts once, in the second epoch of a trial: it waits, or ends its process or another one."""

    folder: str
    how: str

    def on_epoch(self, run: Any) -> None:
        if run.clock.epoch != 2 or (mark := Path(self.folder, "mark")).exists():
            return
        mark.touch()
        if self.how == "hold":
            until(Path(self.folder, "go").exists, "the end of the search")
        elif self.how == "task":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.how == "executor":  # the parent of the daemon that forked this process
            os.kill(psutil.Process().parent().parent().pid, signal.SIGKILL)
        else:
            os.killpg(int(Path(self.folder, "driver").read_text()), signal.SIGKILL)


def search_of(folder: Path, how: str) -> Any:
    estimator = classifier(callbacks=[Fault(str(folder), how)])
    return tuner(estimator=estimator, runDir=str(folder / "run"))


def lose_driver(folder: str) -> None:
    """A driver that its task kills."""
    Path(folder, "driver").write_text(str(os.getpid()))
    with session(Path(folder, "spark"), IN_PROCESS):
        search_of(Path(folder), "driver").fit(frame(ARRAYS))


@pytest.fixture(scope="module")
def undisturbed(data: Any) -> TorchTunerModel:
    return tuner(estimator=classifier()).fit(data)


def epochs_of(folder: Path) -> int:
    """The epochs that trials have trained, by the events of the search."""
    return sum(event.kind == "epoch" for event in read_events(str(folder / "run/events")))


@pytest.mark.chaos
@pytest.mark.parametrize("how", ["task", "driver"])
def test_a_lost_task_or_driver_costs_no_rung_and_changes_no_bit(data, tmp_path, undisturbed, driver, how):
    if how == "driver":
        assert driver(lose_driver, tmp_path).code == -signal.SIGKILL
    model = search_of(tmp_path, how).fit(data)
    # The epoch in which the task or the driver was lost has no checkpoint; a driver loses its last events.
    assert epochs_of(tmp_path) - sum(trial["epochs"] for trial in model.trials) <= 1
    assert [trial["values"] for trial in model.trials] == [trial["values"] for trial in undisturbed.trials]
    assert_same(model.bestModel, undisturbed.bestModel)
    assert (tmp_path / "mark").exists()


@pytest.mark.chaos
@pytest.mark.parametrize("how", ["stop", "cancel"])
def test_a_stopped_or_cancelled_search_continues(data, tmp_path, undisturbed, how):
    def interrupt() -> None:
        until((tmp_path / "mark").exists, "the second epoch of a trial")
        if how == "stop":
            request_stop("SIGTERM")
        else:
            data.sparkSession.sparkContext.cancelAllJobs()

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(Stopped, match="asked to stop .SIGTERM" if how == "stop" else "the user cancelled"):
            search_of(tmp_path, "hold").fit(data)
    finally:
        (tmp_path / "go").touch()
        thread.join()
        forget_stop()
    model = search_of(tmp_path, "hold").fit(data)
    assert [trial["values"] for trial in model.trials] == [trial["values"] for trial in undisturbed.trials]
    assert_same(model.bestModel, undisturbed.bestModel)


@pytest.mark.chaos
def test_a_lost_checkpoint_is_trained_again_with_a_warning(data, tmp_path, undisturbed):
    search = tuner(estimator=classifier(), runDir=str(tmp_path), numTrials=3)
    paused = next(trial for trial in search.fit(data).trials if trial["state"] == "paused")
    for folder in (tmp_path / f"trials/{paused['number']:05d}/checkpoints").iterdir():
        for file in folder.iterdir():
            file.unlink()
    more = search.setParamSpace(SPACE).setNumTrials(4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = more.fit(data)
    assert [trial["values"] for trial in model.trials] == [trial["values"] for trial in undisturbed.trials]
    promoted = model.trials[paused["number"]]["epochs"] > paused["epochs"]
    assert promoted == any("its newest checkpoint is of epoch 0" in str(one.message) for one in caught)


def test_without_early_termination_no_directory_is_needed(data):
    for workers in (None, 2):
        estimator = classifier(numWorkers=workers, epochs=2)
        model = tuner(estimator=estimator, earlyTermination=None, numTrials=2, parallelism=2).fit(data)
        assert [trial["state"] for trial in model.trials] == ["finished"] * 2
        best = min(model.trials, key=lambda trial: trial["value"])
        assert (model.bestParams, model.bestValue) == (best["params"], best["value"])
        assert min(row["valid_loss"] for row in model.bestModel.history) == best["value"]


@pytest.mark.slow
def test_trials_that_read_other_columns(data, tmp_path):
    space = {"classWeights": [None, "balanced", [1.0, 3.0]], "precision": ["fp32", "fp64"]}
    model = tuner(estimator=classifier(epochs=1), paramSpace=space, sampler="grid", runDir=str(tmp_path)).fit(data)
    assert len({trial["value"] for trial in model.trials}) == 6


def test_the_front_door(spark, data, tmp_path):
    names = [f"x{index}" for index in range(3)]
    columns = frame({**{name: ARRAYS["x"][:, index] for index, name in enumerate(names)}, **ARRAYS})
    search = tuner(estimator=classifier(inputCols=["features"], metrics={}), runDir=str(tmp_path / "run"), numTrials=2)
    pipeline = Pipeline(stages=[VectorAssembler(inputCols=names, outputCol="features"), search])
    pipeline.save(str(tmp_path / "pipeline"))
    loaded = Pipeline.load(str(tmp_path / "pipeline")).getStages()[1]
    assert (loaded.getParamSpace(), loaded.getEarlyTermination()) == (search.getParamSpace(), HALVING)
    assert loaded.getEstimator().getModel() is Net
    assert "paramSpace" in search.explainParams()

    fitted = pipeline.fit(columns)
    model = fitted.stages[1]
    assert model.summary.unit == "trial"
    assert "best trial" in str(model.summary)
    assert model.evaluate(fitted.stages[0].transform(columns)).accuracy > 0.5
    fitted.save(str(tmp_path / "model"))
    stage = PipelineModel.load(str(tmp_path / "model")).stages[1]
    assert stage.bestModel.columnTypes == dict(fitted.stages[0].transform(columns).dtypes)
    for name in ("bestParams", "bestValue", "trials", "history", "report", "uid"):
        assert getattr(stage, name) == getattr(model, name)
    inputs = {name: ARRAYS["x"][:, index] for index, name in enumerate(names)}
    expected = np.array([row.prediction for row in fitted.transform(columns).orderBy("row").collect()])
    predicted = load_predictor(str(tmp_path / "model"), modules=["tests"]).predict(inputs)["prediction"]
    assert (np.asarray(predicted) == expected).all()
    model.save(str(tmp_path / "stage"))
    assert "probability" in load_predictor(str(tmp_path / "stage"), modules=["tests"]).outputs

    # A grid over the search: each map has its own directory.
    models = search.setEstimator(classifier()).fit(data, [{search.seed: 1}, {search.seed: 2}])
    assert models[0].trials[0]["params"] != models[1].trials[0]["params"]
    assert len([path for path in (tmp_path / "run").iterdir() if (path / "search.json").exists()]) == 2


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "no estimator": ({"estimator": None}, "estimator is not set; expected a TorchClassifier"),
    "a pipeline": ({"estimator": Pipeline(stages=[])}, r"Make the search the last stage of the pipeline"),
    "an ensemble": ({"estimator": Bagging(base=TorchClassifier())}, r"use BestOf\(candidates"),
    "no space": ({"paramSpace": None}, "paramSpace is empty"),
    "an empty space": ({"paramSpace": {}}, "paramSpace is empty"),
    "no mapping": ({"paramSpace": [1]}, "paramSpace is .1.; expected a dict of lists and ranges"),
    "no validation rows": (
        {"estimator": classifier(validationIndicatorCol=None)},
        "the estimator has no validation rows",
    ),
    "training rows": ({"estimator": classifier(monitor="loss")}, "monitor is 'loss', which is of training rows"),
    "rounds": ({"estimator": classifier(strategy=ParallelSGD())}, "which trains in rounds, and rungs are epochs"),
    "no checkpoints": ({"estimator": classifier(checkpointInterval="never")}, "trials continue from checkpoints"),
    "no checkpoints in a directory": (
        {"estimator": classifier(checkpointInterval="never"), "earlyTermination": None, "runDir": "run"},
        "trials continue from checkpoints",
    ),
    "gangs and rounds": (
        {"paramSpace": {"strategy": [LocalSGD(2), ParallelSGD()]}},
        "strategies of gangs and algorithms of rounds",
    ),
    "rounds in the space": ({"paramSpace": {"strategy": [ParallelSGD()]}}, "which trains in rounds, and rungs are"),
    "a Param and its name": (
        {"paramSpace": {TorchClassifier.learningRate: [0.1], "learningRate": [0.2]}},
        "paramSpace has a Param and its name",
    ),
    "a float for a whole number": ({"paramSpace": {"modelArgs.hidden": [16.5]}}, "modelArgs.hidden is a whole number"),
    "an unknown argument": ({"paramSpace": {"modelArgs.hiden": [16]}}, "Did you mean modelArgs.hidden"),
    "equal values": ({"paramSpace": {"batchSize": [64, 64]}}, "expected each value once"),
    "epochs": ({"paramSpace": {"epochs": [1, 2]}}, "earlyTermination decides on the epochs"),
    "min_epochs": ({"earlyTermination": SuccessiveHalving(min_epochs=9)}, "min_epochs is 9, and epochs is 4"),
    "a place": ({"paramSpace": {"runDir": ["a", "b"]}}, "paramSpace has runDir, which is no hyperparameter"),
    "no column": ({"estimator": classifier(inputCols=["z"])}, "there is no column 'z'"),
    "a sampler": ({"sampler": "annealing"}, "sampler is 'annealing'; expected one of grid, random, tpe, gp"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_raise_before_anything_runs(data, name):
    values, message = MISTAKES[name]
    jobs = data.sparkSession.sparkContext.statusTracker()
    before = jobs.getJobIdsForGroup()
    with pytest.raises(InvalidInput, match=message):
        tuner(**{"estimator": classifier(), **values}).fit(data)
    assert jobs.getJobIdsForGroup() == before


def test_another_search_in_the_directory_and_ignored_settings(data, tmp_path):
    settings = {"runDir": str(tmp_path), "numTrials": 1}
    noisy = classifier(runDir="elsewhere", trackers=[Tracker()], maxRestarts=1, epochs=2)
    with pytest.warns(UserWarning, match="ignore") as caught:
        tuner(estimator=noisy, **settings, parallelism=1).fit(data)
    messages = " ".join(str(one.message) for one in caught)
    for part in (
        "runDir of the estimator is ignored",
        "trackers of the estimator are ignored",
        "maxRestarts is 1; tri",
    ):
        assert part in messages
    other = classifier(epochs=3, seed=1)
    message = "differ: estimator.epochs was '2' and is '3'; estimator.seed was '0' and is '1'; sampler was 'random'"
    with pytest.raises(InvalidInput, match=message):
        tuner(estimator=other, **settings, sampler="tpe").fit(data)
    with pytest.warns(UserWarning, match="parallelism is 9, and the slots are enough for 2 trials at a time"):
        tuner(estimator=classifier(epochs=1), earlyTermination=None, numTrials=1, parallelism=9).fit(data)


class Tracker:
    """A tracker that keeps the rows of trials."""

    rows: list[Any] = []  # noqa: RUF012

    def on_epoch(self, run: Any) -> None:
        Tracker.rows.append(run.history[-1])


class Struck(Net):
    """Fails if it is wide."""

    def forward(self, x: Any) -> Any:
        if self[0].out_features > 8:
            raise ValueError("struck")
        return super().forward(x)


def test_a_trial_that_fails_is_a_row_and_trackers_get_all_rows(data, tmp_path):
    Tracker.rows.clear()
    estimator = classifier(model=Struck, epochs=1, strategy=LocalSGD(2))
    space = {"modelArgs.hidden": [4, 16, 8], "strategy.every": [1, 2]}
    settings = {"sampler": "grid", "earlyTermination": None, "trackers": [Tracker()]}
    model = tuner(estimator=estimator, paramSpace=space, **settings, runDir=str(tmp_path)).fit(data)
    assert [trial["state"] for trial in model.trials] == ["finished"] * 2 + ["failed"] * 2 + ["finished"] * 2
    assert "struck" in model.trials[2]["error"]
    assert Tracker.rows == model.history
    with pytest.raises(WorkerFailed, match=r"trial 0: .* ValueError: struck"):
        tuner(estimator=estimator, paramSpace={"modelArgs.hidden": [16, 17, 18]}, **settings).fit(data)


def test_rounds_train_each_trial_to_its_end(data, tmp_path):
    """Also if the space has the algorithm; more trials than gangs that fit wait for slots."""
    estimator = classifier(epochs=1, numWorkers=2)
    space = {"strategy": [ParallelSGD(rounds=1), ParallelSGD(rounds=2)]}
    settings = {"sampler": "grid", "earlyTermination": None, "parallelism": 2, "runDir": str(tmp_path)}
    with pytest.warns(UserWarning, match="the slots are enough for 1 trials at a time"):
        model = tuner(estimator=estimator, paramSpace=space, **settings).fit(data)
    assert [trial["epochs"] for trial in model.trials] == [1, 2]
    assert "round" in model.bestModel.history[0]
