"""What drivers on the first of several hosts are told to call, in the session that they have; all is JSON."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.sql import SparkSession

from examples import digits_net
from sparkdl import TorchClassifier, TorchModel, TorchRegressor
from sparkdl.checkpoint.checkpointer import Checkpointer
from sparkdl.checkpoint.interval import CheckpointInterval
from sparkdl.checkpoint.store import Checkpoints
from sparkdl.cluster.supervisor import Supervisor
from sparkdl.errors import InvalidInput
from sparkdl.spark.cluster import SparkCluster
from tests.faults import Held
from tests.hosts import workers
from tests.ml import nets
from tests.sessions import frame

SILENCE = 5.0
"""Seconds without a sign of life after which a member is given up."""


def meet(size: int) -> list[dict[str, Any]]:
    """A gang whose members only meet."""
    return SparkCluster(SparkSession.active(), size).gang(workers.peers)


def fit(folder: str, size: int = 2, hold: dict[str, Any] | None = None) -> dict[str, Any]:
    """``members.training()`` with a checkpoint every two steps, in spite of what happens.

    Args:
        folder: of the run.
        size: members.
        hold: the fields of a ``Held``, a hook that waits at a step for somebody to do harm.
    """
    keeper = Checkpointer(Checkpoints(f"{folder}/checkpoints", run="a run"), CheckpointInterval(2, "steps"))
    hooks = [workers.Steps(f"{folder}/steps"), *([] if hold is None else [Held(**hold)])]
    Path(folder).mkdir(exist_ok=True)
    supervisor = Supervisor(SparkCluster(SparkSession.active(), size), back_off=0.1, heartbeat_timeout=SILENCE)
    trained = supervisor.gang(
        workers.training(keeper=keeper, hooks=hooks),
        frame(workers.rows()),
        workers.COLUMNS,
        attempt=keeper.checkpoints.next_attempt(),
    )
    return {
        "weights": hashlib.sha256(trained[0].weights).hexdigest(),
        "history": [[row["step"], row["samples"], row["loss"]] for row in trained[0].history],
        "failures": [[type(error).__name__, error.rank, error.host, str(error)] for error in supervisor.failures],
    }


def refused(folder: str) -> str:
    """Why a fit whose directory is not the same for all members is refused."""
    rows = {"row": np.arange(40), "x": np.zeros((40, 3)), "y": np.zeros(40)}
    regressor = TorchRegressor(
        model=nets.column,
        inputCols=["x"],
        labelCol="y",
        numWorkers=2,
        batchSize=10,
        runDir=folder,
        checkpointInterval=2,
        hooks=[workers.Steps(f"{folder}/steps")],
    )
    try:
        regressor.fit(frame(rows))
    except InvalidInput as error:
        return str(error)
    return "it was not"


def learn(data: str, model: str) -> float:
    """Train on the digits in ``<data>/train``, save the model, and give the accuracy on those in ``<data>/test``."""
    classifier = TorchClassifier(
        model=partial(digits_net.Net, channels=24),
        optimizer=partial(torch.optim.Adam, lr=5e-3),
        numWorkers=2,
        batchSize=128,
        epochs=12,
    )
    spark = SparkSession.active()
    fitted = classifier.fit(spark.read.parquet(f"{data}/train"))
    fitted.save(model)
    return accuracy(fitted, spark.read.parquet(f"{data}/test"))


def score(data: str, model: str) -> float:
    """The accuracy of a saved model on the digits in ``<data>/test``."""
    return accuracy(TorchModel.load(model), SparkSession.active().read.parquet(f"{data}/test"))


def accuracy(model: TorchModel, held_out: Any) -> float:
    """The part of the rows that the model gets right."""
    return MulticlassClassificationEvaluator(metricName="accuracy").evaluate(model.transform(held_out))


class _Counts:
    """What became of the tests of a suite."""

    def __init__(self) -> None:
        self.passed = 0
        self.others: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self.passed += 1
        elif not report.passed:
            self.others.append(f"{report.nodeid} {report.outcome}\n{report.longreprtext}")


def suite(path: str, folder: str) -> dict[str, Any]:
    """The tests of a file: how many passed, and what became of the others."""
    counts = _Counts()
    code = pytest.main(["-q", "-p", "no:cacheprovider", "--basetemp", folder, "--durations=5", path], [counts])
    return {"code": int(code), "passed": counts.passed, "others": counts.others}
