"""Members that the driver fits: their rows, parallel fits, the properties of threads, and failures."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from pyspark import StorageLevel
from pyspark.ml import Pipeline
from pyspark.ml.classification import LogisticRegression, OneVsRest
from pyspark.ml.feature import StandardScaler, VectorAssembler
from pyspark.sql import functions as F

from sparkdl import LBFGS, Bagging, TorchClassifier
from sparkdl.cluster.shutdown import forget_stop, request_stop
from sparkdl.ensembles.members.driver_fits import drawn, fit_on_driver, takes_weights
from sparkdl.ensembles.members.member import Member, Plan
from sparkdl.ensembles.members.store import MemberStore
from sparkdl.ensembles.resampling.bootstrap import AllRows, Bootstrap, LeaveFoldOut
from sparkdl.errors import ClusterUnavailable, InvalidInput, Stopped, WorkerFailed
from sparkdl.ml.param_declaration import param
from sparkdl.spark.columns import ROW_ID
from tests.ensembles.counting import Counting, CountingModel, Weightless

pytestmark = pytest.mark.slow

COUNT = 240
REPEATING, SHARE = Bootstrap(1.3, True, 5), Bootstrap(0.4, False, 5)


class WithIds(Weightless):
    """Needs ids, and takes no weights."""

    idCol = param("ids")  # noqa: N815 - the name of a Param


@pytest.fixture
def counting(monkeypatch):
    monkeypatch.setattr(Weightless, "calls", {})
    return lambda then: monkeypatch.setattr(Weightless, "then", staticmethod(then))


@pytest.fixture(scope="module")
def numbers(spark):
    values = spark.range(COUNT, numPartitions=3).select("id", (F.col("id") % 3).cast("double").alias("w"))
    return values.withColumn(ROW_ID, F.col("id"))


def counts(draw):
    return draw.counts(np.arange(COUNT))


# ---- rows ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draw", [REPEATING, SHARE, LeaveFoldOut(1, 3, 5), AllRows()])
def test_base_without_weights_gets_copies(draw, numbers):
    estimator, rows = drawn(Member(0, Weightless(1), draw), numbers)
    found = np.bincount([row["id"] for row in rows.collect()], minlength=COUNT)
    np.testing.assert_array_equal(found, counts(draw))
    assert rows.columns == ["id", "w"]
    assert isinstance(estimator, Weightless)


def test_base_with_weights_gets_weights_if_rows_repeat(numbers, counting):
    members = [Member(0, Counting(1), REPEATING), Member(1, Counting(2, "w"), REPEATING)]
    fit_on_driver([*members, Member(2, Counting(3, "w"), LeaveFoldOut(0, 3, 5))], numbers, Plan())
    for seed in (1, 2):
        found, names = Counting.calls[seed]
        assert names == ["id", "w", "sparkdl weight"]
        own = [1.0 if seed == 1 else row % 3 for row in range(COUNT)]
        assert found == [(row, row % 3, count * own[row]) for row, count in enumerate(counts(REPEATING)) if count]
    assert Counting.calls[3][1] == ["id", "w"]


def test_bases_that_take_weights(spark):
    scaler, assembler = StandardScaler(inputCol="a", outputCol="b"), VectorAssembler(inputCols=["a"], outputCol="b")
    assert takes_weights(LogisticRegression())
    assert takes_weights(Pipeline(stages=[assembler, LogisticRegression()]))
    assert not takes_weights(Pipeline(stages=[assembler, Pipeline(stages=[scaler, LogisticRegression()])]))
    assert not takes_weights(Weightless(1))
    assert not takes_weights(TorchClassifier())  # an epoch of weighted rows would have fewer steps
    assert not takes_weights(OneVsRest(classifier=TorchClassifier()))  # its networks would take fewer steps
    assert takes_weights(OneVsRest(classifier=TorchClassifier(strategy=LBFGS())))


def test_copies_have_their_own_ids(numbers):
    decimals = numbers.withColumn("id", F.col("id").cast("decimal(12,0)"))
    member = Member(0, WithIds(1)._set(idCol="id"), REPEATING)
    rows = drawn(member, decimals)[1]
    assert [(field.name, field.dataType.simpleString()) for field in rows.schema] == [("id", "bigint"), ("w", "double")]
    copies = {row["id"]: row["w"] for row in rows.collect()}
    assert len(copies) == counts(REPEATING).sum()
    assert {row for row in copies if 0 <= row < COUNT} == {*np.flatnonzero(counts(REPEATING)).tolist()}
    assert sum(copies.values()) == (counts(REPEATING) * (np.arange(COUNT) % 3)).sum()
    again = drawn(member, decimals.repartition(2))[1]
    assert {row["id"]: row["w"] for row in again.collect()} == copies


def test_ids_of_nested_bases(numbers):
    inner = Pipeline(stages=[StandardScaler(inputCol="id"), Bagging(base=WithIds(1)._set(idCol="id"))])
    found = [row["id"] for row in drawn(Member(0, inner, REPEATING), numbers)[1].collect()]
    assert len(found) == len({*found}) > COUNT


def test_copies_are_on_the_side_of_their_row(numbers):
    network = TorchClassifier(inputCols=["w"], labelCol="id", idCol="id", validationFraction=0.25)
    pipeline = Pipeline(stages=[StandardScaler(inputCol="w"), network])
    original = numbers.withColumn("row", F.col("id"))
    held = {row["row"] for row in network.derived_columns().with_validation(original).frame.collect() if row[-1]}
    assert COUNT / 8 < len(held) < COUNT / 2
    for base, last in ((network, lambda base: base), (pipeline, lambda base: base.getStages()[-1])):
        estimator, rows = drawn(Member(0, base, REPEATING), original)
        name = last(estimator).getValidationIndicatorCol()
        assert (last(estimator).getValidationFraction(), last(base).getValidationFraction()) == (None, 0.25)
        found = rows.collect()
        assert all(row[name] == (row["row"] in held) for row in found)
        expected = [1 if row in held else count for row, count in enumerate(counts(REPEATING))]
        assert np.bincount([row["row"] for row in found], minlength=COUNT).tolist() == expected
    one_vs_rest = drawn(Member(0, OneVsRest(classifier=network), SHARE), original)[0]
    assert one_vs_rest.getClassifier().getValidationIndicatorCol() == "sparkdl validation"


# ---- parallel fits ---------------------------------------------------------------------------------------------------


def test_parallelism_is_the_number_of_fits_at_a_time(numbers, counting):
    """Each fit waits for two others: with fewer at a time none would return, with more not all would."""
    barrier, lock, most, running = threading.Barrier(3), threading.Lock(), [0], [0]

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
    assert fit_on_driver([], numbers, Plan()).models == []


def test_single_fits_run_in_order_with_the_properties_of_the_thread(numbers, counting, spark):
    seen = []
    counting(lambda seed: seen.append((seed, spark.sparkContext.getLocalProperty("tests.who"))))
    spark.sparkContext.setLocalProperty("tests.who", "me")
    try:
        fit_on_driver([Member(index, Counting(9 - index)) for index in range(4)], numbers, Plan())
    finally:
        spark.sparkContext.setLocalProperty("tests.who", None)
    assert seen == [(seed, "me") for seed in (9, 8, 7, 6)]


def test_rows_are_cached_for_several_fits_alone(spark, counting):
    data, seen = spark.range(10).withColumn(ROW_ID, F.col("id")), []
    counting(lambda seed: seen.append(data.storageLevel.useMemory))
    for count in (1, 2):
        fit_on_driver([Member(index, Counting(index)) for index in range(count)], data, Plan())
    assert (seen, data.storageLevel.useMemory) == ([False, True, True], False)
    data.persist(StorageLevel.MEMORY_ONLY)
    fit_on_driver([Member(index, Counting(index)) for index in range(2)], data, Plan())
    assert data.storageLevel.useMemory
    data.unpersist()


# ---- failures --------------------------------------------------------------------------------------------------------


def failing(*seeds, error=lambda: RuntimeError("no memory\nleft")):
    def then(seed):
        if seed in seeds:
            raise error()

    return then


def five():
    return [Member(index, Counting(100 + index), Bootstrap(1.0, True, index)) for index in range(5)]


@pytest.fixture
def plan(tmp_path):
    store = MemberStore(str(tmp_path))
    store.begin({})
    return Plan(store, parallelism=4)


def test_next_fit_trains_only_the_missing_members(plan, numbers, counting):
    counting(failing(102, 104))
    with pytest.raises(WorkerFailed) as failed:
        fit_on_driver(five(), numbers, plan)
    assert failed.value.message == (
        "member 2: RuntimeError: no memory\nleft. Members [4] also failed. 3 of 5 members are trained and 3 are "
        "stored; call fit again to train only the missing ones."
    )
    assert isinstance(failed.value.__cause__, RuntimeError)
    assert sorted(Counting.calls) == [100, 101, 102, 103, 104]
    Counting.calls.clear()
    counting(failing())
    found = fit_on_driver(five(), numbers, plan)
    assert sorted(Counting.calls) == [102, 104]
    assert (found.trained, found.restored) == ([2, 4], [0, 1, 3])
    assert [type(model) for model in found.models] == [CountingModel] * 5
    again = fit_on_driver(five(), numbers, plan)
    assert (again.trained, again.restored, again.seconds) == ([], list(range(5)), found.seconds)


def test_no_member_starts_after_a_request_to_stop(plan, numbers, counting):
    counting(lambda seed: request_stop("somebody asked") if seed == 101 else None)
    try:
        with pytest.raises(Stopped, match=r"member 2: .*somebody asked.* not begun .* 2 of 5 members are trained"):
            fit_on_driver(five(), numbers, Plan(plan.store))
    finally:
        forget_stop()
    assert sorted(Counting.calls) == [100, 101]
    counting(failing())
    assert fit_on_driver(five(), numbers, plan).restored == [0, 1]


def test_model_that_cannot_be_stored_is_used(plan, numbers, counting, monkeypatch):
    monkeypatch.setattr(CountingModel, "write", None, raising=False)
    with pytest.warns(UserWarning, match="member 0 is not stored"):
        assert fit_on_driver(five()[:1], numbers, plan).trained == [0]
    assert plan.store.load(0) is None


class Odd(Stopped):
    """An error with another constructor."""

    def __init__(self) -> None:
        super().__init__("odd", trace="somewhere")


class OddInput(InvalidInput):
    """An invalid input with another constructor."""

    def __init__(self) -> None:
        super().__init__("odd")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (lambda: ClusterUnavailable("no slots."), ClusterUnavailable),
        (Odd, WorkerFailed),
        (OddInput, InvalidInput),
        (SystemExit, SystemExit),  # it ends a thread of the pool, and must not leave the fit waiting
    ],
)
def test_error_names_the_member_and_keeps_its_class(error, kind, numbers, counting):
    counting(failing(101, error=error))
    with pytest.raises(kind) as failed:
        fit_on_driver(five()[:2], numbers, Plan(parallelism=2))
    assert type(failed.value) is kind
    if kind is not SystemExit:
        assert failed.value.message.startswith("member 1: ")
        assert failed.value.message.endswith("1 of 2 members are trained; without runDir, fit stores none.")
        assert failed.value.trace == getattr(failed.value.__cause__, "trace", None)
