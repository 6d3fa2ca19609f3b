"""Fixed bugs of estimators and models on Spark: a test for each, with its story."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.ml.classification import OneVsRest
from pyspark.ml.feature import VectorAssembler
from pyspark.sql import functions as F
from torch import nn
from torch.nn import functional

from benchmarks.hosts import until
from sparkdl import Bagging, EnsembleModel, ParallelSGD, TorchClassifier
from sparkdl.errors import InvalidInput, Stopped
from sparkdl.io.threads import in_background
from sparkdl.io.weights import pack
from tests.ml import nets
from tests.ml.rows import ROWS, Steps, classifier, regressor

FOREVER = 10**6


@contextmanager
def cancelled(ready: Callable[[], bool], cancel: Callable[[], None]) -> Iterator[None]:
    """A block in which the run ends once ``cancel`` has been called, after ``ready`` was true."""

    def run() -> None:
        try:
            until(ready, "the run")
        finally:
            cancel()  # else the run would never end

    done = in_background(run, "cancel")
    with pytest.raises(Stopped, match=r"the user cancelled a Spark job of this run \("):
        yield
    done.result()


def cancel_stage(context: Any) -> None:
    for stage in context.statusTracker().getActiveStageIds():
        context._jsc.sc().cancelStage(stage)  # as the Spark UI does


CANCELS: dict[str, Callable[[Any], None]] = {
    "all jobs": lambda context: context.cancelAllJobs(),
    "group": lambda context: context.cancelJobGroup("the user's"),
    "tag": lambda context: context.cancelJobsWithTag("theirs"),
    "stage": cancel_stage,
}


@pytest.mark.slow
@pytest.mark.parametrize("cancel", CANCELS.values(), ids=CANCELS)
def test_cancelled_fit_began_again(spark, data, tmp_path, cancel) -> None:
    # Its job's failure counted as a lost worker: the fit took up to three more attempts.
    context, steps = spark.sparkContext, tmp_path / "steps"
    context.setJobGroup("the user's", "a cell")
    context.addJobTag("theirs")
    try:
        with cancelled(steps.exists, partial(cancel, context)):
            regressor(epochs=FOREVER, callbacks=[Steps(str(steps))]).fit(data)
    finally:
        context.removeJobTag("theirs")
        context.setLocalProperty("spark.jobGroup.id", None)
    assert steps.read_text().split().count("1") == 1


@pytest.mark.slow
def test_cancelled_rounds_were_a_lost_worker(spark, data) -> None:
    rounds: list[int] = []
    tracker = SimpleNamespace(on_epoch=lambda run: rounds.append(1))

    def cancel() -> None:
        before = len(rounds)
        while len(rounds) < before + 1000 and not ended:  # between two rounds there is no job
            spark.sparkContext.cancelAllJobs()

    ended: list[bool] = []
    with cancelled(lambda: bool(rounds), cancel):
        try:
            regressor(strategy=ParallelSGD(rounds=FOREVER), trackers=[tracker]).fit(data)
        finally:
            ended.append(True)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2], ids=["tasks", "gangs"])
def test_cancelled_ensemble_trained_its_other_members(spark, data, tmp_path, workers) -> None:
    steps = tmp_path / "steps"
    base = regressor(epochs=FOREVER, numWorkers=workers, callbacks=[Steps(str(steps))])
    with cancelled(steps.exists, spark.sparkContext.cancelAllJobs):
        Bagging(base=base, numModels=3).fit(data)


def chances() -> nn.Module:
    return nn.Sequential(nets.column(), nn.Sigmoid())


@pytest.mark.slow
@pytest.mark.parametrize("loss", [nn.BCELoss(), functional.binary_cross_entropy])
def test_probabilities_went_through_a_second_sigmoid(data, loss) -> None:
    # So all of them were above one half, and the class of every row was 1.
    scores = classifier(model=nets.column, loss=functional.binary_cross_entropy_with_logits, epochs=3).fit(data)
    trained = classifier(model=chances, loss=loss, epochs=3).fit(data)
    columns = ["row", "probability", "prediction"]
    expected, found = (model.transform(data).orderBy("row").select(columns).collect() for model in (scores, trained))
    assert {row.prediction for row in found} == {0.0, 1.0}
    assert np.allclose([row.probability for row in found], [row.probability for row in expected], atol=1e-5)
    voted = EnsembleModel([trained, trained.copy()], rule="soft").transform(data)
    assert {row.prediction for row in voted.collect()} == {0.0, 1.0}


def test_one_vs_rest_ignored_weights(data) -> None:
    # It looks for pyspark.ml's own mixin. Vectors without a known size failed in an assembler that keeps invalid rows.
    rest = OneVsRest(classifier=classifier(idCol=None), featuresCol="x", labelCol="label", weightCol="weight")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="weightCol is ignored")
        rest.fit(data)
    model = classifier().fit(data)
    assert model.numClasses == 3
    assembler = VectorAssembler(inputCols=["probability"], outputCol="all", handleInvalid="keep")
    assert assembler.transform(model.transform(data)).count() == ROWS


def test_columns_that_no_model_reads_were_ambiguous(data) -> None:
    model = regressor().fit(data)
    joined = data.select("x", "owner").crossJoin(data.select(F.col("owner")).limit(1))
    assert model.transform(joined).columns == ["x", "owner", "owner", "prediction"]
    with pytest.raises(InvalidInput, match="there is a column 'Prediction' already"):
        model.transform(data.withColumn("Prediction", F.lit(0)))
    with pytest.raises(InvalidInput, match="there are 2 columns 'row': 'row', 'Row'"):
        regressor().fit(data.withColumn("Row2", F.col("row")).toDF(*data.columns, "Row"))


def test_names_of_numpy_were_pickled(spark, tmp_path) -> None:
    names = np.array(["x", "y"])
    saved = classifier(inputCols=[*names], labelCol=names[1])
    saved.save(str(tmp_path / "classifier"))
    loaded = TorchClassifier.load(str(tmp_path / "classifier"))
    assert (loaded.getInputCols(), loaded.getLabelCol()) == (["x", "y"], "y")
    assert type(loaded.getLabelCol()) is str


def test_data_that_is_no_bounded_dataframe_failed_anywhere(spark, data) -> None:
    model = regressor().fit(data)
    for call in (regressor().fit, model.transform, Bagging(base=regressor()).fit):
        with pytest.raises(InvalidInput, match=r"data is of type pandas.DataFrame; expected a Spark DataFrame"):
            call(data.limit(3).toPandas())
    stream = spark.readStream.format("rate").load()
    for call in (regressor().fit, Bagging(base=regressor()).fit):
        with pytest.raises(InvalidInput, match=r"data is a streaming DataFrame, which never ends"):
            call(stream)


@dataclass(frozen=True)
class Meets:
    """Waits in each step until the other one has begun."""

    mine: Path
    other: Path
    every_rank = False

    def on_step(self, run: object) -> None:
        self.mine.touch()
        until(self.other.exists, f"{self.other}")

    def as_task(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        self.on_step(None)
        yield from batches


def test_daemon_forked_no_worker_during_a_fit(spark, data, tmp_path) -> None:
    one, other = Meets(tmp_path / "a", tmp_path / "b"), Meets(tmp_path / "b", tmp_path / "a")
    fit = partial(regressor, numWorkers=1, batchSize=60)
    with ThreadPoolExecutor(1) as threads:
        trained = threads.submit(fit(callbacks=[one]).fit, data)
        assert spark.range(0, 3, 1, 1).mapInArrow(other.as_task, "id long").count() == 3
        assert pack(trained.result(60).module()) == pack(fit().fit(data).module())
