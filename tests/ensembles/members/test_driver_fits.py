"""Members that the driver fits: their rows, their features, several at a time, and what is left after a failure."""

from __future__ import annotations

import threading
from functools import partial

import numpy as np
import pytest
from pyspark import StorageLevel
from pyspark.ml import Pipeline, Transformer
from pyspark.ml.classification import (
    DecisionTreeClassificationModel,
    DecisionTreeClassifier,
    LogisticRegression,
)
from pyspark.ml.feature import StandardScaler, VectorAssembler
from pyspark.sql import functions as F
from torch import nn

from sparkdl import TorchClassifier
from sparkdl.cluster.shutdown import forget_stop, request_stop
from sparkdl.ensembles.bagging import Bagging
from sparkdl.ensembles.base_learner import leaf
from sparkdl.ensembles.members.driver_fits import drawn, fit_on_driver, takes_weights
from sparkdl.ensembles.members.member import Member, Plan, Rows
from sparkdl.ensembles.members.store import MemberStore
from sparkdl.ensembles.resampling.bootstrap import AllRows, Bootstrap, LeaveFoldOut, member_seed
from sparkdl.errors import ClusterUnavailable, InvalidInput, Stopped, WorkerFailed
from sparkdl.ml.param_declaration import param
from sparkdl.spark.columns import ROW_ID, col
from tests.ensembles.counting import Counting, CountingModel, Weightless

pytestmark = pytest.mark.slow

COUNT = 240


@pytest.fixture
def counting(monkeypatch):
    monkeypatch.setattr(Weightless, "calls", {})
    return lambda then: monkeypatch.setattr(Weightless, "then", staticmethod(then))


@pytest.fixture(scope="module")
def numbers(spark):
    values = spark.range(COUNT, numPartitions=3).select("id", (F.col("id") % 3).cast("double").alias("w"))
    return Rows(values.withColumn(ROW_ID, F.col("id")), ROW_ID)


def counts(draw):
    return draw.counts(np.arange(COUNT))


# ---- rows --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draw", [Bootstrap(1.3, True, 5), Bootstrap(0.4, False, 5), LeaveFoldOut(1, 3, 5), AllRows()])
def test_rows_are_there_as_often_as_they_are_drawn(draw, numbers, counting):
    estimator, rows = drawn(Member(0, Weightless(1), draw), numbers)
    found = np.bincount([row["id"] for row in rows.collect()], minlength=COUNT)
    np.testing.assert_array_equal(found, counts(draw))
    assert rows.columns == ["id", "w"]
    assert isinstance(estimator, Weightless)


def test_rows_that_repeat_are_weights_where_weights_are_taken(numbers, counting):
    draw = Bootstrap(1.3, True, 5)
    fit_on_driver([Member(0, Counting(1), draw), Member(1, Counting(2, "w"), draw)], numbers, Plan())
    for seed in (1, 2):
        found, names = Counting.calls[seed]
        assert names == ["id", "w", "sparkdl weight"]
        wanted = [
            (row, row % 3, float(count) * (1.0 if seed == 1 else row % 3))
            for row, count in enumerate(counts(draw))
            if count
        ]
        assert found == wanted


def test_draws_that_do_not_repeat_leave_weights_alone(numbers, counting):
    fit_on_driver([Member(0, Counting(1, "w"), LeaveFoldOut(0, 3, 5))], numbers, Plan())
    assert Counting.calls[1][1] == ["id", "w"]


def test_what_takes_weights(spark):
    scaler, assembler = StandardScaler(inputCol="a", outputCol="b"), VectorAssembler(inputCols=["a"], outputCol="b")
    assert takes_weights(LogisticRegression())
    assert takes_weights(Pipeline(stages=[assembler, LogisticRegression()]))
    assert not takes_weights(Pipeline(stages=[scaler, LogisticRegression()]))
    assert not takes_weights(Pipeline(stages=[assembler, Pipeline(stages=[scaler, LogisticRegression()])]))
    assert not takes_weights(Weightless(1))


def test_a_tree_of_weights_is_the_tree_of_the_repeated_rows(people):
    draw, tree = Bootstrap(1.0, True, 2), DecisionTreeClassifier(maxDepth=3, seed=1)
    [model] = fit_on_driver([Member(0, tree, draw)], people, Plan()).models
    count = draw.column(col(ROW_ID))
    repeated = people.frame.withColumn("copy", F.explode(F.array_repeat(F.lit(0), count)))
    assert model.toDebugString.split(":", 1)[1] == tree.fit(repeated).toDebugString.split(":", 1)[1]


# ---- real estimators ---------------------------------------------------------------------------------------------


def test_members_of_several_kinds(people):
    draws = [Bootstrap(1.0, True, member_seed(0, index)) for index in range(3)]
    assembler = VectorAssembler(inputCols=["x0", "x1"], outputCol="two")
    scaler = StandardScaler(inputCol="two", outputCol="scaled")
    bases = [
        LogisticRegression(maxIter=5),
        DecisionTreeClassifier(maxDepth=3),
        Pipeline(stages=[assembler, scaler, LogisticRegression(featuresCol="scaled", maxIter=5)]),
    ]
    members = [Member(index, base, draw) for index, (base, draw) in enumerate(zip(bases, draws, strict=True))]
    found = fit_on_driver(members, people, Plan(parallelism=2))
    assert found.trained == [0, 1, 2]
    assert found.restored == []
    assert all(seconds > 0 for seconds in found.seconds)
    assert [type(leaf(model)).__name__ for model in found.models] == [
        *("LogisticRegressionModel", "DecisionTreeClassificationModel", "LogisticRegressionModel")
    ]
    for model in found.models:
        right = model.transform(people.frame).where("prediction = label").count()
        assert right > 0.7 * 3000


def test_a_member_again_is_the_same_member_in_other_partitions(people):
    member = Member(3, DecisionTreeClassifier(maxDepth=4, seed=5), Bootstrap(1.0, True, 5))
    shuffled = Rows(people.frame.orderBy(F.xxhash64("id")).repartition(3), ROW_ID)
    one, other = (fit_on_driver([member], rows, Plan()).models[0] for rows in (people, shuffled))
    assert one.toDebugString.split(":", 1)[1] == other.toDebugString.split(":", 1)[1]


# ---- several at a time -------------------------------------------------------------------------------------------


def test_as_many_fits_as_said_run_at_a_time(numbers, counting):
    """Each waits until three are there: with fewer at a time none would come back, with more not all would."""
    barrier, most, running = threading.Barrier(3), [0], [0]
    lock = threading.Lock()

    def meet(seed):
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        barrier.wait(60)
        with lock:
            running[0] -= 1

    counting(meet)
    found = fit_on_driver([Member(index, Counting(index)) for index in range(6)], numbers, Plan(parallelism=3))
    assert found.trained == list(range(6))
    assert most == [3]


def test_one_fit_at_a_time_goes_in_order_with_the_properties_of_the_thread(numbers, counting, spark):
    seen = []
    counting(lambda seed: seen.append((seed, spark.sparkContext.getLocalProperty("tests.who"))))
    spark.sparkContext.setLocalProperty("tests.who", "me")
    try:
        fit_on_driver([Member(index, Counting(9 - index)) for index in range(4)], numbers, Plan())
    finally:
        spark.sparkContext.setLocalProperty("tests.who", None)
    assert seen == [(seed, "me") for seed in (9, 8, 7, 6)]


def test_rows_are_cached_for_several_fits_alone(spark, counting):
    def cached():
        return data.storageLevel.useMemory

    data = spark.range(10).withColumn(ROW_ID, F.col("id"))
    seen = []
    counting(lambda seed: seen.append(cached()))
    rows = Rows(data, ROW_ID)
    fit_on_driver([Member(0, Counting(0))], rows, Plan())
    fit_on_driver([Member(index, Counting(index)) for index in range(2)], rows, Plan())
    assert (seen, cached()) == ([False, True, True], False)
    data.persist(StorageLevel.MEMORY_ONLY)
    fit_on_driver([Member(index, Counting(index)) for index in range(2)], rows, Plan())
    assert cached()
    data.unpersist()


# ---- failures ----------------------------------------------------------------------------------------------------


def failing(*seeds, error=lambda: RuntimeError("no memory\nleft")):
    def then(seed):
        if seed in seeds:
            raise error()

    return then


def five():
    return [Member(index, Counting(100 + index), Bootstrap(1.0, True, index)) for index in range(5)]


@pytest.mark.parametrize("parallelism", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_the_same_fit_again_trains_only_what_is_missing(parallelism, numbers, counting, tmp_path):
    plan = Plan(MemberStore(str(tmp_path)), parallelism)
    plan.kept.begin({})
    counting(failing(102, 104))
    with pytest.raises(WorkerFailed) as failed:
        fit_on_driver(five(), numbers, plan)
    message = failed.value.message
    assert message.startswith("member 2: RuntimeError: no memory\nleft. Members [4] failed as well. 3 of 5 members")
    assert message.endswith("are finished and 3 are kept; the same fit again trains only what is missing.")
    assert isinstance(failed.value.__cause__, RuntimeError)
    assert sorted(Counting.calls) == [100, 101, 102, 103, 104]
    Counting.calls.clear()
    counting(failing())
    found = fit_on_driver(five(), numbers, plan)
    assert sorted(Counting.calls) == [102, 104]
    assert (found.trained, found.restored) == ([2, 4], [0, 1, 3])
    assert [type(model) for model in found.models] == [CountingModel] * 5
    Counting.calls.clear()
    once_more = fit_on_driver(five(), numbers, plan)
    assert Counting.calls == {}
    assert (once_more.trained, once_more.restored) == ([], list(range(5)))
    assert once_more.seconds == found.seconds


def test_no_member_begins_after_a_request_to_stop(numbers, counting, tmp_path):
    """A fit that has begun ends, and its member is kept."""
    plan = Plan(MemberStore(str(tmp_path)))
    plan.kept.begin({})
    counting(lambda seed: request_stop("somebody asked") if seed == 101 else None)
    try:
        with pytest.raises(Stopped, match=r"member 2: .*somebody asked.* not begun .* 2 of 5 members are finished"):
            fit_on_driver(five(), numbers, plan)
    finally:
        forget_stop()
    assert sorted(Counting.calls) == [100, 101]
    counting(failing())
    assert fit_on_driver(five(), numbers, plan).restored == [0, 1]


def test_without_a_directory_nothing_is_kept(numbers, counting):
    counting(failing(101))
    with pytest.raises(WorkerFailed, match=r"left\. 4 of 5 members are finished, and nothing is kept without runDir\."):
        fit_on_driver(five(), numbers, Plan())


def test_a_model_that_cannot_be_kept_is_used(numbers, counting, tmp_path, monkeypatch):
    monkeypatch.setattr(CountingModel, "write", None, raising=False)
    kept = MemberStore(str(tmp_path))
    kept.begin({})
    with pytest.warns(UserWarning, match="member 0 is not kept"):
        found = fit_on_driver(five()[:1], numbers, Plan(kept))
    assert found.trained == [0]
    assert kept.load(0) is None


class Odd(Stopped):
    """One that is not made as the others are."""

    def __init__(self) -> None:
        super().__init__("odd", trace="somewhere")


class OddInput(InvalidInput):
    """A mistake that is not said as the others are."""

    def __init__(self) -> None:
        super().__init__("odd")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (lambda: InvalidInput("maxDepth is 99."), InvalidInput),
        (lambda: ClusterUnavailable("no slots."), ClusterUnavailable),
        (Odd, WorkerFailed),
        (OddInput, InvalidInput),
        (lambda: ValueError("x"), WorkerFailed),
    ],
)
def test_an_error_keeps_its_class(error, kind, numbers, counting):
    counting(failing(101, error=error))
    with pytest.raises(kind, match=r"^member 1: ") as failed:
        fit_on_driver(five()[:2], numbers, Plan())
    assert type(failed.value) is kind
    assert failed.value.trace == getattr(failed.value.__cause__, "trace", None)


def test_what_ends_a_thread_does_not_leave_the_fit_waiting(numbers, counting):
    counting(failing(101, error=SystemExit))
    with pytest.raises(SystemExit):
        fit_on_driver(five()[:2], numbers, Plan(parallelism=2))


def test_no_members_are_no_mistake(numbers):
    assert fit_on_driver([], numbers, Plan()).models == []


def test_what_spark_says_names_the_member(people):
    members = [Member(0, LogisticRegression(labelCol="gone"))]
    with pytest.raises(WorkerFailed, match=r"member 0: .*gone"):
        fit_on_driver(members, people, Plan())


def test_the_model_of_a_tree_is_restored(people, tmp_path):
    plan = Plan(MemberStore(str(tmp_path)))
    plan.kept.begin({})
    members = [Member(0, DecisionTreeClassifier(maxDepth=2), Bootstrap(1.0, True, 1))]
    fit_on_driver(members, people, plan)
    found = fit_on_driver(members, people, plan)
    assert found.restored == [0]
    assert isinstance(found.models[0], DecisionTreeClassificationModel)
    assert isinstance(found.models[0], Transformer)


# ---- ids ---------------------------------------------------------------------------------------------------------


class WithIds(Weightless):
    """One that needs ids, and takes no weights."""

    idCol = param("ids")  # noqa: N815 - the name of a Param


@pytest.mark.parametrize("kind", ["int", "bigint", "decimal(12,0)"])
def test_copies_have_ids_of_their_own(numbers, kind):
    draw = Bootstrap(1.3, True, 5)
    given = Rows(numbers.frame.withColumn("id", F.col("id").cast(kind)), ROW_ID)
    estimator = WithIds(1)._set(idCol="id")
    rows = drawn(Member(0, estimator, draw), given)[1]
    assert rows.columns == ["id", "w"]
    assert rows.schema["id"].dataType.simpleString() == "bigint"
    found = [row["id"] for row in rows.collect()]
    assert len(found) == len({*found}) == counts(draw).sum()
    assert {each for each in found if 0 <= each < COUNT} == {*np.flatnonzero(counts(draw)).tolist()}
    again = drawn(Member(0, estimator, draw), Rows(given.frame.repartition(2), ROW_ID))[1]
    assert sorted(row["id"] for row in again.collect()) == sorted(found)
    values = {row["id"]: row["w"] for row in rows.collect()}
    assert sum(values.values()) == (counts(draw) * (np.arange(COUNT) % 3)).sum()


def test_ids_of_an_ensembles_base_are_of_their_own_as_well(numbers):
    inner = Pipeline(stages=[StandardScaler(inputCol="id"), Bagging(base=WithIds(1)._set(idCol="id"))])
    rows = drawn(Member(0, inner, Bootstrap(1.3, True, 5)), numbers)[1]
    found = [row["id"] for row in rows.collect()]
    assert len(found) == len({*found}) > COUNT


def test_ids_are_as_they_are_without_copies(numbers):
    estimator = WithIds(1)._set(idCol="id")
    rows = drawn(Member(0, estimator, Bootstrap(0.4, False, 5)), numbers)[1]
    assert sorted(row["id"] for row in rows.collect()) == np.flatnonzero(counts(Bootstrap(0.4, False, 5))).tolist()


def test_a_network_is_fitted_on_copies(people):
    """Behind a scaler, which would not see weights: the network is a gang's, and refuses ids that come twice."""
    network = TorchClassifier(
        model=partial(nn.Linear, 20, 2), featuresCol="scaled", idCol="id", numWorkers=2, batchSize=500
    )
    base = Pipeline(stages=[StandardScaler(inputCol="features", outputCol="scaled"), network])
    draw, some = Bootstrap(1.0, True, 1), Rows(people.frame.where("id < 500"), ROW_ID)
    [model] = fit_on_driver([Member(0, base, draw)], some, Plan()).models
    assert leaf(model).report["rows"] == draw.counts(np.arange(500)).sum()
