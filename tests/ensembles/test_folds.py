"""Folds: each row is held back once, by members of its own; and what is refused before anything is trained."""

from __future__ import annotations

import numpy as np
import pytest
from pyspark import StorageLevel
from pyspark.ml import Pipeline
from pyspark.ml.classification import DecisionTreeClassifier
from pyspark.ml.feature import StandardScaler
from pyspark.ml.regression import LinearRegression
from pyspark.sql import functions as F

from sparkdl.ensembles.folds import Folds, seeded, summary
from sparkdl.ensembles.members.member import Models, Rows
from sparkdl.ensembles.resampling.bootstrap import AllRows, LeaveFoldOut, member_seed, uniform
from sparkdl.ensembles.stacking import Stacking
from sparkdl.errors import InvalidInput
from tests.sessions import frame

IDS = np.arange(1000)


@pytest.mark.parametrize("count", [2, 3, 10])
def test_each_row_is_left_out_of_one_fold(count):
    folds = Folds(count, 7)
    counts = np.array([folds.without(fold).counts(IDS) for fold in range(count)])
    assert set(np.unique(counts)) == {0, 1}
    assert (counts.sum(0) == count - 1).all()
    assert (1 - counts).sum(1) == pytest.approx(len(IDS) / count, rel=0.2)


def test_other_seeds_make_other_folds():
    one, other = (np.floor(uniform(IDS, seed) * 5) for seed in (1, 2))
    assert (one == other).mean() == pytest.approx(0.2, abs=0.06)


def test_members_are_numbered_by_base_and_fold(spark):
    folds, bases = Folds(3, 5), [DecisionTreeClassifier(), LinearRegression()]
    members = folds.members(bases)
    assert [member.index for member in members] == [0, 1, 2, 4, 5, 6]
    assert [member.draw for member in members] == 2 * [LeaveFoldOut(fold, 3, 5) for fold in range(3)]
    assert [folds.member(bases, base).index for base in (0, 1)] == [folds.index(0), folds.index(1)] == [3, 7]
    assert folds.member(bases, 1).draw == AllRows()
    assert [member.estimator.getSeed() for member in members[:3]] == [member_seed(5, index) for index in range(3)]


def test_a_base_without_a_seed_is_as_it_was(spark):
    base = LinearRegression(regParam=0.5)
    copied = seeded(base, 0, 3)
    assert copied is not base
    assert copied.extractParamMap() == base.extractParamMap()


def test_the_last_stage_of_a_pipeline_has_the_seed(spark):
    base = Pipeline(stages=[StandardScaler(inputCol="x", outputCol="z"), DecisionTreeClassifier(featuresCol="z")])
    assert seeded(base, 4, 1).getStages()[-1].getSeed() == member_seed(4, 1)
    assert not base.getStages()[-1].isSet("seed")


def rows_of(count: int, **columns: np.ndarray) -> Rows:
    return Rows(frame({"row": np.arange(count), **columns}), "row")


def test_the_rows_of_a_fold_are_those_that_its_members_do_not_see(spark):
    rows, folds = rows_of(200), Folds(4, 3)
    for fold in range(4):
        held = sorted(row for (row,) in folds.held(rows, fold).collect())
        assert held == [i for i, count in enumerate(folds.without(fold).counts(IDS[:200])) if count == 0]


def test_a_look_at_the_rows_counts_folds_and_classes(spark):
    tally = Folds(3, 1).checked(rows_of(90, label=np.arange(90) % 5), "label")
    fold = np.floor(uniform(IDS[:90], 1) * 3)
    assert tally.rows == tuple(int((fold == each).sum()) for each in range(3))
    assert tally.classes == 5
    assert Folds(3, 1).checked(rows_of(90)).classes is None


def test_rows_without_a_label_count_as_rows(spark):
    rows = rows_of(90, label=np.arange(90) % 2)
    some = Rows(rows.frame.withColumn("label", F.when(F.col("row") > 5, F.col("label"))), "row")
    tally = Folds(2, 1).checked(some, "label")
    assert (sum(tally.rows), tally.classes) == (90, 2)


def test_fewer_rows_than_folds_are_refused(spark):
    with pytest.raises(InvalidInput, match=r"there are 3 rows for numFolds=5; expected a row for each fold"):
        Folds(5, 0).checked(rows_of(3))


def test_no_rows_are_refused(spark):
    with pytest.raises(InvalidInput, match=r"there are 0 rows for numFolds=2"):
        Folds(2, 0).checked(rows_of(0))


def test_a_fold_without_rows_is_named(spark):
    fold = np.floor(uniform(IDS[:8], 0) * 8)
    empty = [each for each in range(8) if each not in fold]
    assert empty  # eight rows do not fall into eight folds
    with pytest.raises(InvalidInput) as caught:
        Folds(8, 0).checked(rows_of(8))
    assert f"of numFolds=8 the folds {empty} have none of the 8 rows" in str(caught.value)


def test_labels_of_one_class_are_refused(spark):
    with pytest.raises(InvalidInput, match="all labels in 'label' are 3; expected rows of two classes"):
        Folds(2, 0).checked(rows_of(20, label=np.full(20, 3.0)), "label")


def test_what_is_told_is_of_all_fits():
    assert summary(Models([], [], [], [4, 1], [0]), Models([], [], [], [], [9])) == {
        "trained": [1, 4],
        "restored": [0, 9],
    }


@pytest.mark.parametrize("given", [1, 0, -3])
def test_fewer_than_two_folds_are_refused(given):
    with pytest.raises(InvalidInput, match=rf"numFolds is {given}; expected at least 2"):
        Stacking(numFolds=given)
    with pytest.raises(InvalidInput, match=rf"numFolds is {given}; expected at least 2"):
        Stacking().setNumFolds(given)


# ---- numbers that Spark gives rows ----------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [None, "row"])
def test_numbered_rows_are_persisted_while_members_train(spark, given):
    with Stacking(idCol=given).running(rows_of(10).frame) as (rows, plan):
        assert (rows.frame.storageLevel != StorageLevel.NONE) == (given is None)
        assert (plan.kept, plan.parallelism) == (None, 1)
    assert rows.frame.storageLevel == StorageLevel.NONE


def test_rows_that_are_persisted_stay_so(spark):
    data = rows_of(10).frame.cache()
    with Stacking().running(data) as (rows, _):
        assert rows.frame.storageLevel == StorageLevel.NONE
    assert data.storageLevel != StorageLevel.NONE
    data.unpersist()


def test_rows_that_are_held_in_memory_alone_are_persisted(spark):
    data = rows_of(10).frame.persist(StorageLevel.MEMORY_ONLY)
    with Stacking().running(data) as (rows, _):
        assert rows.frame.storageLevel.useDisk
    assert data.storageLevel == StorageLevel.MEMORY_ONLY
    data.unpersist()


def test_ids_that_are_given_are_not_looked_at_again(spark, monkeypatch):
    monkeypatch.setattr("sparkdl.ensembles.params.fingerprint", lambda _: pytest.fail("it was computed"))
    with Stacking(idCol="row").running(rows_of(10).frame):
        pass


def test_a_failure_leaves_nothing_persisted(spark):
    with pytest.raises(RuntimeError), Stacking().running(rows_of(10).frame) as (rows, _):
        raise RuntimeError
    assert rows.frame.storageLevel == StorageLevel.NONE
