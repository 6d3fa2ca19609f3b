"""Fits that run at the same time as other Python tasks of the same daemon."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from torch import nn

from benchmarks.hosts import until
from sparkdl import TorchRegressor
from tests.sessions import frame


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


def line() -> nn.Module:
    return nn.Linear(2, 1)


def fit(rows, *callbacks):
    estimator = TorchRegressor(model=line, numWorkers=1, epochs=2, batchSize=16, callbacks=list(callbacks))
    return estimator.fit(rows).module().state_dict()["weight"].tolist()


@pytest.fixture
def rows(spark):
    x = np.random.default_rng(0).normal(size=(64, 2)).astype(np.float32)
    return frame({"features": x, "label": x[:, 0]}).persist()


def test_two_fits_at_a_time(rows, tmp_path):
    a, b = Meets(tmp_path / "a", tmp_path / "b"), Meets(tmp_path / "b", tmp_path / "a")
    with ThreadPoolExecutor(2) as threads:
        fits = [threads.submit(fit, rows, meets) for meets in (a, b)]
        assert [each.result(60) for each in fits] == [fit(rows)] * 2


def test_daemon_forks_worker_during_fit(spark, rows, tmp_path):
    a, b = Meets(tmp_path / "a", tmp_path / "b"), Meets(tmp_path / "b", tmp_path / "a")
    with ThreadPoolExecutor(1) as threads:
        trained = threads.submit(fit, rows, a)
        assert spark.range(0, 3, 1, 1).mapInArrow(b.as_task, "id long").count() == 3
        assert trained.result(60) == fit(rows)
