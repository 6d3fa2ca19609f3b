"""Gangs on Spark: what every cluster promises, and what only Spark can get wrong."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from sparkdl.data.columns import Columns, InputColumn
from sparkdl.errors import InvalidInput, SparkdlError, WorkerFailed, WorkerLost
from sparkdl.spark import cluster as spark_cluster
from sparkdl.spark.cluster import SparkCluster
from sparkdl.training.loop import Training
from sparkdl.training.objective import Objective
from tests.contracts import work
from tests.contracts.cluster_contract import ClusterContract
from tests.contracts.strategy_contract import SAMPLE, SynchronousContract, numbers
from tests.sessions import frame
from tests.spark import drivers
from tests.spark.work import Counting, Killed, Stubborn

pytestmark = pytest.mark.timeout(240)


class OnSpark(ClusterContract):
    size = 1

    @pytest.fixture
    def cluster(self, spark):
        return SparkCluster(spark, self.size)

    def make_data(self, arrays):
        return frame(arrays)


class TestSparkClusterOf2(OnSpark):
    size = 2


@pytest.mark.slow
class TestSparkClusterOf1(OnSpark):
    size = 1


@pytest.mark.slow
class TestAllReduceOnSpark(SynchronousContract):
    cases = SAMPLE

    @pytest.fixture
    def cluster(self, spark):
        return SparkCluster(spark, 2)

    def make_data(self, arrays):
        return frame(arrays)

    def make_parts(self, parts):
        pytest.skip("Spark deals rows out by itself")


@pytest.mark.slow
@pytest.mark.timeout(330)
def test_four_members(driver, tmp_path):
    found = driver(drivers.four_members, tmp_path, timeout=300).result
    assert found["ranks"] == [0, 1, 2, 3]
    assert found["total"] == [[10.0, 10.0]] * 4
    assert sum(found["rows"]) == 48
    assert found["distance"] < 1e-12
    assert found["failure"][:2] == ["WorkerFailed", 2]
    assert found["lost"] == "WorkerLost"
    assert found["again"] == [[10.0, 10.0]] * 4


# ---- one exchange, the same bits -----------------------------------------------------------------------------------


def test_members_meet_through_spark_once(spark, monkeypatch):
    monkeypatch.setattr(spark_cluster, "BarrierTask", Counting)
    found = SparkCluster(spark, 2).gang(work.rows, frame(numbers(20)), ["x", "y"])
    assert sum(part["rows"] for part in found) == 20


def weights(spark, data, row_id=None):
    """The weights, as bytes, of a run of several epochs on two members."""
    objective = Objective(work.Seeded(work.Net), torch.nn.MSELoss(), partial(torch.optim.Adam, lr=0.01))
    columns = Columns((InputColumn("x"),), InputColumn("y"), row_id=None if row_id is None else InputColumn(row_id))
    return SparkCluster(spark, 2).gang(Training(objective, 16, 3, seed=3), data, columns)[0].weights


def test_the_same_data_gives_the_same_bits(spark):
    columns = ["array(sin(id), cos(id), id / 400) as x", "sin(3 * id) as y"]
    data = spark.range(0, 400, 1, 8).selectExpr(*columns)
    assert weights(spark, data) == weights(spark, data)


def test_ids_fix_the_order_however_the_rows_are_partitioned(spark):
    arrays = numbers(200)
    reversed_parts = frame({name: array[::-1] for name, array in arrays.items()}).repartition(5, "y")
    assert weights(spark, reversed_parts, "row") == weights(spark, frame(arrays), "row")


# ---- several gangs at a time ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2], ids=["side by side", "one after the other"])
def test_two_gangs_in_one_session(spark, size):
    data = frame(numbers(40))
    alone = SparkCluster(spark, size).gang(work.rows, data, work.columns_of("x", row_id="row"))
    with ThreadPoolExecutor(2) as pool:
        runs = [
            pool.submit(SparkCluster(spark, size).gang, work.rows, data, work.columns_of("x", row_id="row"))
            for _ in range(2)
        ]
        for run in runs:
            for part, expected in zip(run.result(200), alone, strict=True):
                np.testing.assert_array_equal(part["columns"]["x"], expected["columns"]["x"])
    assert len(list(spark.sparkContext.statusTracker().getActiveJobsIds())) == 0


# ---- what goes wrong -----------------------------------------------------------------------------------------------


@pytest.mark.chaos
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_worker_is_a_lost_member(spark, rank):
    events = []
    with pytest.raises(WorkerLost) as caught:
        SparkCluster(spark, 2).gang(Killed(rank), listener=events.append, attempt=3)
    assert (caught.value.rank, caught.value.attempt) == (rank, 3)
    started = {event.rank: event.payload for event in events if event.kind == "started"}
    assert caught.value.host == started[rank]["host"]
    assert "\tat " not in str(caught.value)
    assert ".scala" not in str(caught.value)
    assert not os.path.exists(f"/proc/{started[rank]['pid']}")
    assert SparkCluster(spark, 2).gang(work.total) == [(3.0, 3.0)] * 2


def test_a_failure_speaks_of_the_member_and_not_of_the_jvm(spark):
    with pytest.raises(WorkerFailed) as caught:
        SparkCluster(spark, 2).gang(work.Fails(1, ValueError("the milk is sour")))
    text = str(caught.value)
    assert "in give_up" in text
    assert "py4j" not in text
    assert "java" not in text.lower()
    assert caught.value.__cause__ is None


@pytest.mark.slow
def test_a_failure_in_the_data_is_pysparks_own(spark):
    fails = F.udf(lambda value: 6 // (value - 3), "long")
    data = spark.range(0, 8, 1, 4).select(fails("id").alias("x"))
    with pytest.raises(PySparkException, match="ZeroDivisionError") as caught:
        SparkCluster(spark, 2).gang(work.rows, data, ["x"])
    assert not isinstance(caught.value, SparkdlError)
    assert SparkCluster(spark, 2).gang(work.total) == [(3.0, 3.0)] * 2


@pytest.mark.slow
def test_a_member_that_does_not_stop_keeps_no_secret(spark, monkeypatch, tmp_path):
    monkeypatch.setattr(spark_cluster, "_GRACE", 0.5)
    os.mkfifo(tmp_path / "pipe.1")
    with pytest.raises(WorkerFailed, match="ValueError: I give up") as caught:
        SparkCluster(spark, 2).gang(Stubborn(str(tmp_path / "pipe")))
    assert caught.value.rank == 0
    assert "in __call__" in caught.value.trace
    assert SparkCluster(spark, 2).gang(work.total) == [(3.0, 3.0)] * 2


def test_without_a_channel_to_the_driver_it_works_in_silence(spark, monkeypatch):
    def refuses(*_: object, **__: object) -> None:
        raise InvalidInput("nobody can listen here")

    monkeypatch.setattr(spark_cluster, "Channel", refuses)
    with pytest.warns(UserWarning, match="no live progress: nobody can listen here"):
        assert SparkCluster(spark, 2).gang(work.total) == [(3.0, 3.0)] * 2
    with pytest.warns(UserWarning, match="no live progress"), pytest.raises(WorkerFailed, match="the milk is sour"):
        SparkCluster(spark, 2).gang(work.Fails(1, ValueError("the milk is sour")))


def test_what_is_no_dataframe_is_refused(spark):
    with pytest.raises(InvalidInput, match="data is of type dict; expected a Spark DataFrame"):
        SparkCluster(spark, 2).gang(work.rows, numbers(4), ["x"])
    with pytest.raises(InvalidInput, match="at least 1"):
        SparkCluster(spark, 0)


@pytest.mark.chaos
@pytest.mark.timeout(330)
def test_ctrl_c_ends_the_job_and_nothing_else(driver, tmp_path):
    found = driver(drivers.interrupted, tmp_path, timeout=300).result
    assert found["interrupted"] is True
    assert found["active jobs"] == []
    assert found["members"] == 2
    assert found["still alive"] == []
    assert found["left on disk"] == []
    assert found["open while it ran"] > 0
    assert found["still open"] == []
    assert found["steps of the next fit"] == 5
