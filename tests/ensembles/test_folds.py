"""Folds: members that never see the rows of their fold."""

from __future__ import annotations

import numpy as np
import pytest
from pyspark.ml.classification import DecisionTreeClassifier
from pyspark.ml.regression import LinearRegression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sparkdl.ensembles.folds import Folds
from sparkdl.ensembles.resampling.bootstrap import AllRows, LeaveFoldOut, member_seed, uniform
from sparkdl.errors import InvalidInput
from sparkdl.spark.columns import ROW_ID
from tests.sessions import frame

IDS = np.arange(1000)


def rows_of(count: int, **columns: np.ndarray) -> DataFrame:
    return frame({ROW_ID: np.arange(count), **columns})


def test_members_are_numbered_by_base_and_fold_and_seeded(spark):
    folds, bases = Folds(3, 5), [DecisionTreeClassifier(), LinearRegression(regParam=0.5)]
    members = folds.members(bases)
    assert [member.index for member in members] == [0, 1, 2, 4, 5, 6]
    assert [member.draw for member in members] == 2 * [LeaveFoldOut(fold, 3, 5) for fold in range(3)]
    assert [folds.member(bases, base).index for base in (0, 1)] == [folds.index(0), folds.index(1)] == [3, 7]
    assert folds.member(bases, 1).draw == AllRows()
    assert [member.estimator.getSeed() for member in members[:3]] == [member_seed(5, index) for index in range(3)]
    assert members[3].estimator is not bases[1]
    assert members[3].estimator.extractParamMap() == bases[1].extractParamMap()


@pytest.mark.parametrize("count", [2, 4])
def test_each_row_is_held_out_once(spark, count):
    folds, rows = Folds(count, 3), rows_of(200)
    counts = np.array([LeaveFoldOut(fold, count, 3).counts(IDS[:200]) for fold in range(count)])
    assert set(np.unique(counts)) == {0, 1}
    assert (counts.sum(0) == count - 1).all()
    assert (1 - counts).sum(1) == pytest.approx(200 / count, rel=0.2)
    for fold in range(count):
        held = sorted(row for (row,) in folds.held_out(rows, fold).collect())
        assert held == np.flatnonzero(counts[fold] == 0).tolist()
    other, own = (LeaveFoldOut(0, count, seed).counts(IDS) for seed in (2, 3))
    assert (other == own).mean() == pytest.approx(1 - 2 * (count - 1) / count**2, abs=0.06)


def test_tally_counts_folds_and_classes(spark):
    rows = rows_of(90, label=np.arange(90) % 5)
    assert Folds(3, 1).count_rows(rows, "label") == (90, 5)
    assert Folds(3, 1).count_rows(rows) == (90, None)
    unlabelled = rows.withColumn("label", F.when(F.col(ROW_ID) > 5, F.col("label")))
    assert Folds(2, 1).count_rows(unlabelled, "label") == (90, 5)


EMPTY = [fold for fold in range(8) if fold not in np.floor(uniform(IDS[:8], 0) * 8)]


@pytest.mark.parametrize(
    ("count", "rows", "message"),
    [
        (5, 3, "there are 3 rows for numFolds=5; expected at least one row for each fold"),
        (8, 8, rf"with numFolds=8, the folds \[{', '.join(map(str, EMPTY))}\] have none of the 8 rows"),
        (2, 20, "all labels in 'label' are 3; expected at least two classes"),
    ],
)
def test_rows_that_cannot_be_folded_raise(spark, count, rows, message):
    with pytest.raises(InvalidInput, match=message):
        Folds(count, 0).count_rows(rows_of(rows, label=np.full(rows, 3.0)), "label")
