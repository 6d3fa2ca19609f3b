"""Bugs on Spark and of estimators: one test for each, with its story."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from functools import partial
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyspark.errors import PySparkException
from pyspark.ml.linalg import Vectors
from pyspark.sql import types as T

from sparkdl import TorchModel, TorchRegressor
from sparkdl.cluster.failure import Failure
from sparkdl.cluster.group.network import Address
from sparkdl.cluster.group.rendezvous import RendezvousSpec, meet
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.errors import ErrorContext, InvalidInput, PeerLost, SparkdlError, WorkerFailed, WorkerLost
from sparkdl.io.weights import pack
from sparkdl.ml.inference.outputs import output_type, outputs
from sparkdl.ml.inference.scorer import Scorer
from sparkdl.spark.cluster import SparkCluster, _explained, _FailureListener
from sparkdl.spark.columns import _travels_as, select_columns
from sparkdl.telemetry.event import Event
from sparkdl.training.strategies.allreduce import AllReduce
from tests.contracts import own_loops, work
from tests.contracts.map_reduce_contract import ARRAYS, COLUMNS, ROWS, Raises, Sums, Whole
from tests.contracts.strategy_contract import Case, numbers
from tests.faults.held import StopsOnArrival
from tests.listening import unreachable
from tests.ml import nets
from tests.sessions import frame

# ---- columns ---------------------------------------------------------------------------------------------------------


def test_ids_of_decimal_type_lost_their_last_digits() -> None:
    # Decimals travelled as float32 also as ids: 2^24 and 2^24 + 1 were the same id.
    row_id = InputColumn("id", "int64")
    assert _travels_as(T.DecimalType(18, 0), row_id, "float32") == T.LongType()
    assert _travels_as(T.DecimalType(18, 2), row_id, "float32") == T.DoubleType()
    assert _travels_as(T.DecimalType(18, 2), InputColumn("price"), "float32") == T.FloatType()


def test_integers_in_vectors_lost_their_last_digits(spark) -> None:
    # A vector travelled as float32 also if its column was to be int64: 2^24 + 1 became 2^24.
    data = spark.createDataFrame([(Vectors.dense([float(2**24 + 1)]),)], ["x"])
    prepared, _ = select_columns(data, Columns((InputColumn("x", "int64"),)))
    assert prepared.first()["x"] == [2**24 + 1]


def test_column_with_dot_in_its_name_was_not_found(spark) -> None:
    # mapInArrow resolves columns by name, unquoted: "a.b" was the field b of a column a.
    data = frame({"a.b": np.arange(4.0), "c`d": np.arange(4)})
    shards = SparkCluster(spark, 2).gang(work.rows, data, ["a.b", "c`d"])
    assert sum(shard["columns"]["a.b"].sum() for shard in shards) == 6


def test_rows_of_the_driver_were_all_in_shard_0(spark) -> None:
    # Spark's optimizer computes the rows of a pandas or Arrow table on the driver, as partition 0. Two tasks packed
    # shard 0.
    with SparkCluster(spark, 2).map_reduce(frame(ARRAYS), COLUMNS, shuffle=False) as jobs:
        assert jobs.shard_rows == (50, 51)
        [found] = jobs.each(Whole(), [0], all_rows=True)
    assert found.note["ids"] == list(range(ROWS))


@pytest.mark.parametrize("does", [Sums(), Raises()], ids=["sums", "raises"])
def test_lost_events_of_round_tasks_were_not_counted(spark, monkeypatch, does) -> None:
    # The jobs had no listener, and failed tasks reported no counts: a report without one event was called complete.
    monkeypatch.setattr(SparkCluster, "_channel", unreachable)
    events: list[Event] = []
    jobs = SparkCluster(spark, 2).map_reduce(frame(ARRAYS), COLUMNS, listener=events.append)
    with suppress(WorkerFailed), jobs as opened:
        opened.run(does, torch.tensor(1.0))
    lost = {event.rank: event.payload["dropped"] for event in events if event.kind == "outcome"}
    assert sorted(lost) == [0, 1]
    assert min(lost.values()) > 0


def test_shards_followed_the_partitions_of_the_data(spark) -> None:
    # Rows were dealt round robin, anew in each partition of the input: other partitions gave other shards.
    data = frame({"id": np.arange(40), "x": np.arange(40.0)})
    columns = work.columns_of("x", row_id="id")
    one, other = (SparkCluster(spark, 2).gang(work.rows, given, columns) for given in (data, data.repartition(7, "x")))
    for first, second in zip(one, other, strict=True):
        np.testing.assert_array_equal(first["columns"]["id"], second["columns"]["id"])


def test_dataframe_without_rows_was_an_index_error(spark) -> None:
    # Spark's optimizer replaces a plan without rows by an empty table: no task runs.
    with pytest.raises(InvalidInput, match="the data has no rows"):
        TorchRegressor(model=nets.column, inputCols=["x"], labelCol="y").fit(
            spark.range(3).selectExpr("array(1.0, 2.0, 3.0) as x", "0.5 as y").where("false")
        )


# ---- failures --------------------------------------------------------------------------------------------------------


WATCH = SimpleNamespace(gave_up=None)
CRASH = PySparkException("Could not recover from a failed barrier ResultStage: ResultTask(5, 1) crashed\n\tat a.b")


def failed(kind: str, rank: int, *, peer: bool) -> Event:
    failure = Failure(kind, "gone", "Traceback", ErrorContext("work", rank, "host", 1), peer, 1.0)
    return Event("failed", rank, 1, 0.0, None, failure.to_json())


def test_loss_of_worker_was_reported_as_loss_of_its_peers() -> None:
    # A killed worker reports nothing, while its peers report at once that a peer is lost. Their host was blamed.
    ear = _FailureListener(None, 2, 1)
    for rank in range(2):
        ear(Event("started", rank, 1, 0.0, None, {"pid": 1, "host": f"host{rank}"}))
    ear(failed("PeerLost", 0, peer=True))
    explained = _explained(CRASH, WATCH, ear)
    assert isinstance(explained, WorkerLost)
    assert (explained.rank, explained.host, explained.attempt) == (1, "host1", 1)
    ear(failed("ValueError", 0, peer=False))
    assert str(_explained(CRASH, WATCH, ear)).startswith("ValueError: gone")
    ear.close()


def test_worker_of_lost_host_had_no_rank() -> None:
    # The error named the task, but a worker without any event was not looked up.
    explained = _explained(CRASH, WATCH, _FailureListener(None, 2, 3))
    assert isinstance(explained, WorkerLost)
    assert (explained.stage, explained.rank, explained.host, explained.attempt) == ("launch", 1, None, 3)


@pytest.mark.chaos
def test_worker_stopped_before_rendezvous_held_up_barrier_stage(spark, tmp_path) -> None:
    # Such a worker has no heartbeat to miss, and Spark's allGather waits for a year.
    decode = StopsOnArrival(str(tmp_path / "mark"))
    columns = Columns((InputColumn("x", decode=decode),))
    frame = spark.createDataFrame(pa.table({"x": pa.array([bytes(8)] * 4, pa.binary())}))
    events: list[Event] = []
    with pytest.raises(WorkerLost, match=r"never started: some workers did not join .* within 5 s") as caught:
        SparkCluster(spark, 2, timeout=5).gang(lambda world, shard: None, frame, columns, listener=events.append)
    [started] = {event.rank for event in events if event.kind == "started"}
    assert (caught.value.rank, caught.value.stage) == (1 - started, "launch")
    assert sum(SparkCluster(spark, 2).gang(lambda world, shard: shard.rows, frame, columns)) == 4


def test_error_in_data_was_its_own_cause(spark) -> None:
    # `raise error from error` makes a ring of causes.
    data = spark.range(4).selectExpr("if(id = 3, raise_error('no such row'), id) as x")
    with pytest.raises(PySparkException, match="no such row") as caught:
        SparkCluster(spark, 2).gang(work.rows, data, ["x"])
    assert caught.value.__cause__ is not caught.value
    assert not isinstance(caught.value, SparkdlError)


def test_worker_without_address_kept_the_others_waiting() -> None:
    # If rank 0 could not listen, it gave up before the exchange of addresses, for which the others waited.
    lines: list[str] = []

    def exchange(line: str) -> list[str]:
        lines.append(line)
        return [line, json.dumps({"host": "b", "address": "127.0.0.1"})]

    elsewhere = Address("192.0.2.200")  # an address that no host has
    with pytest.raises(OSError, match="assign"):
        meet(RendezvousSpec(0, 2, "run", 0, elsewhere), exchange)
    assert len(lines) == 1
    with pytest.raises(PeerLost, match=r"rank 0 cannot join: .*assign"):
        meet(RendezvousSpec(1, 2, "run", 0, Address("127.0.0.1")), lambda line: [lines[0], line])


# ---- scoring ---------------------------------------------------------------------------------------------------------


def scorer(factory, kind, precision="fp32", dtype=torch.float32) -> Scorer:
    floating = "float64" if precision == "fp64" else "float32"
    columns = Columns((InputColumn("x"),), floating=floating)
    return Scorer(factory, pack(factory().to(dtype)), kind, precision, columns)


def test_raw_output_of_one_number_per_row_was_an_array() -> None:
    # TorchEstimator's model declares a number, but an output [B, 1] came as arrays of length 1.
    for raw in (torch.zeros(2), torch.zeros(2, 1)):
        declared = output_type("estimator", scalar=True, floating="float32")
        assert pa.types.is_float32(outputs(raw, "estimator").type.field("prediction").type)
        assert declared["prediction"].dataType == T.FloatType()


def test_predictions_in_double_precision_were_rounded_to_single() -> None:
    # Every output was cast to float32, and then declared a double.
    x = np.random.default_rng(0).normal(size=(5, 3))
    (found,) = scorer(nets.column, "regressor", "fp64", torch.float64).scores([pa.array(x.tolist())])
    with torch.no_grad():
        expected = nets.column().double()(torch.from_numpy(x)).squeeze(1)
    np.testing.assert_array_equal(found.field("prediction").to_numpy(), expected)


def test_several_numbers_per_row_were_several_rows() -> None:
    # A regressor's output [B, 2] was flattened to 2 B predictions.
    three = partial(nets.mlp, 3, outputs=2)
    with pytest.raises(InvalidInput, match=r"the shape \[1, 2\]; expected \[B\] or \[B, 1\]"):
        list(scorer(three, "regressor").scores([pa.array([[1.0, 2.0, 3.0]])]))


def test_second_column_of_the_same_name_was_made(spark) -> None:
    # Scoring twice gave two columns "prediction", which nobody can select by name.
    model = TorchModel(factory=nets.column, weights=pack(nets.column()), kind="regressor").setInputCols(["x"])
    data = frame({"x": np.zeros((2, 3))})
    with pytest.raises(InvalidInput, match="there is a column 'prediction' already; drop it, or set predictionCol"):
        model.transform(model.transform(data))


@pytest.mark.slow
def test_worker_froze_after_failed_ddp_loop(spark) -> None:
    # The last reference to the process group was DDP's reducer, whose destructor joins threads while it holds the GIL:
    # every third or fourth time a deadlock, in processes that outlive the gang.
    case = Case(batch_size=7)
    cluster, data = SparkCluster(spark, 2, timeout=30), frame(numbers())
    for _ in range(6):
        with pytest.raises(WorkerFailed, match="stumbled over a row"):
            cluster.gang(own_loops.Ddp(case.training(AllReduce()), stumbles=1), data, case.columns())


# ---- Params ----------------------------------------------------------------------------------------------------------


def test_added_metric_was_in_every_estimator() -> None:
    # The default of metrics was one dict for all estimators, and callbacks stayed the caller's list, also of a copy.
    TorchRegressor().getMetrics()["error"] = 1
    assert TorchRegressor().getMetrics() == {}
    callbacks: list[object] = [1]
    estimator = TorchRegressor(callbacks=callbacks)
    callbacks.append(2)
    estimator.copy().getOrDefault("callbacks").append(3)
    assert estimator.getCallbacks() == [1]


def test_input_columns_in_param_map_were_ignored() -> None:
    # featuresCol hides inputCols: a search over inputCols was a search over one and the same model.
    estimator = TorchRegressor(featuresCol="a")
    assert estimator.copy({estimator.inputCols: ["b", "c"]}).getInputCols() == ["b", "c"]


def test_none_was_set_without_check() -> None:
    # pyspark asks a Param's converter about every value but None.
    for name in ("epochs", "inputCols", "device", "optimizer"):
        with pytest.raises((TypeError, InvalidInput), match=name):
            TorchRegressor().setParams(**{name: None})


def test_new_estimator_had_a_param_set() -> None:
    # The constructor could not tell its default for labelCol from the user's "label".
    assert not TorchRegressor().isSet("labelCol")
    assert TorchRegressor(labelCol="label").isSet("labelCol")
    assert TorchRegressor(labelCol=None).getLabelCol() is None


def test_params_of_estimator_were_not_those_of_its_model(spark) -> None:
    # The model had another uid, so that {estimator.predictionCol: "p"} in transform() was ignored.
    data = spark.range(4).selectExpr("array(1.0, 2.0, 3.0) as x", "0.5 as y")
    estimator = TorchRegressor(model=nets.column, inputCols=["x"], labelCol="y")
    model = estimator.fit(data)
    assert model.uid == estimator.uid
    assert model.transform(data, {estimator.predictionCol: "p"}).columns == ["x", "y", "p"]


# ---- logs ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def query_failed(spark):
    with pytest.raises(PySparkException, match="DIVIDE_BY_ZERO"):
        spark.sql("select 1 / id from range(1)").collect()


def test_failed_query_turned_logs_of_later_tests_into_json(query_failed, caplog) -> None:
    # If an error has a query context, pyspark makes a logger that has every handler, also pytest's, write JSON.
    logging.getLogger("sparkdl.tests").warning("as it is")
    assert "as it is\n" in caplog.text
    assert '"msg"' not in caplog.text
