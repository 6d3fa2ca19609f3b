"""Numbers that Spark gives rows, while members are kept by them; and maps whose values are estimators."""

from __future__ import annotations

import numpy as np
import pytest
from pyspark import StorageLevel
from pyspark.ml import Pipeline
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.ml.feature import StandardScaler, VectorAssembler
from pyspark.ml.regression import DecisionTreeRegressor, LinearRegression
from pyspark.sql import functions as F

from sparkdl.ensembles import params
from sparkdl.ensembles.bagging import Bagging
from sparkdl.ensembles.best_of import BestOf
from sparkdl.ensembles.boosting.estimator import Boosting
from sparkdl.ensembles.stacking import Stacking
from sparkdl.errors import SparkdlError
from tests.sessions import frame


@pytest.fixture
def looks(monkeypatch):
    """How often rows were looked at."""
    found, real = [], params.fingerprint
    monkeypatch.setattr(params, "fingerprint", lambda rows: found.append(rows) or real(rows))
    return found


@pytest.fixture
def given(spark):
    return frame({"id": np.arange(30), "x": np.linspace(0, 1, 30), "label": np.linspace(0, 1, 30) ** 2})


@pytest.mark.parametrize("ensemble", [Bagging, Boosting])
@pytest.mark.parametrize(("ids", "kept"), [(None, True), ("id", True), (None, False)])
def test_rows_are_held_where_members_are_kept_by_their_numbers(given, tmp_path, looks, ensemble, ids, kept):
    made, held = ensemble(base=LinearRegression(), idCol=ids, runDir=str(tmp_path) if kept else None), kept and not ids
    with made.running(given) as (rows, plan):
        assert (rows.frame.storageLevel != StorageLevel.NONE) == held
        assert (plan.kept is not None) == kept
    assert len(looks) == kept + held  # for the members that are there, and again at the end for rows that Spark numbers
    assert rows.frame.storageLevel == StorageLevel.NONE


@pytest.mark.slow
def test_members_are_trained_on_the_rows_that_are_held(given, tmp_path, monkeypatch, looks):
    plans = []
    real = LinearRegression._fit
    monkeypatch.setattr(
        LinearRegression,
        "_fit",
        lambda self, rows: plans.append(rows._jdf.queryExecution().executedPlan().toString()) or real(self, rows),
    )
    data = VectorAssembler(inputCols=["x"], outputCol="features").transform(given)
    Bagging(base=LinearRegression(), numModels=1, runDir=str(tmp_path)).fit(data)
    assert ["InMemoryTableScan" in plan for plan in plans] == [True]
    assert len(looks) == 2


@pytest.mark.parametrize(
    ("ensemble", "kept", "message"),
    [
        (Stacking(bases=[]), False, "members may have been judged by rows that they have seen; give idCol"),
        (Stacking(bases=[]), True, "members may have been judged by rows that they have seen; give idCol"),
        (Bagging(), True, "members that are kept may have been drawn from other rows than those they are kept for"),
        (Boosting(), True, "members that are kept may have been drawn from other rows than those they are kept for"),
    ],
)
def test_numbers_that_change_while_members_train_are_an_error(spark, tmp_path, ensemble, kept, message):
    """As those of evicted rows do that come in another order when they are computed again."""
    at_random = F.expr("reflect('java.util.UUID', 'randomUUID')")  # of which the plan holds no seed
    unordered = frame({"x": np.arange(20)}).withColumn("u", at_random).orderBy("u").drop("u")
    directory = str(tmp_path / "run") if kept else None
    made = ensemble.copy().with_bases([LinearRegression()]).setRunDir(directory)
    message = f"row numbers changed while members were trained, and {message}"
    message += f".* or write the rows to a table.* Remove '{directory}'" if kept else ""
    with pytest.raises(SparkdlError, match=message), made.running(unordered) as (rows, _):
        rows.frame.unpersist(blocking=True)
    assert rows.frame.storageLevel == StorageLevel.NONE


# ---- maps ------------------------------------------------------------------------------------------------------------


def pipeline(depth: int) -> Pipeline:
    scaler = StandardScaler(inputCol="features")
    return Pipeline(stages=[scaler, DecisionTreeRegressor(featuresCol=scaler.getOutputCol(), maxDepth=depth)])


def directory(ensemble, given, tmp_path) -> str:
    """Where a fit with a map keeps members."""
    with ensemble.setRunDir(str(tmp_path)).running(given) as (_, plan):
        found: str = plan.kept.directory
    assert found.startswith(f"{tmp_path}/")
    return found.removeprefix(f"{tmp_path}/")


@pytest.mark.parametrize(
    ("make", "name", "value"),
    [
        (lambda: Bagging(base=pipeline(2)), "base", pipeline),
        (lambda: Stacking(bases=[pipeline(2)], meta=pipeline(3)), "meta", pipeline),
        (lambda: BestOf(candidates=[pipeline(2)]), "candidates", lambda depth: [pipeline(depth), pipeline(3)]),
        (
            lambda: BestOf(candidates=[pipeline(2)]),
            "evaluator",
            lambda which: RegressionEvaluator(metricName=["r2", "mae"][which - 1]),
        ),
    ],
)
def test_estimators_of_a_map_tell_directories_apart(given, tmp_path, make, name, value):
    def found(which: int) -> str:
        ensemble = make().setIdCol("id")
        return directory(ensemble.copy({ensemble.getParam(name): value(which)}), given, tmp_path)

    assert found(1) == found(1)  # of other objects, with other uids
    assert found(1) != found(2)


def test_values_for_what_comes_with_a_map_count(given, tmp_path):
    def found(*depths: int) -> str:
        bagging, trees = Bagging(base=pipeline(1), idCol="id"), [DecisionTreeRegressor() for _ in depths]
        own = {tree.maxDepth: depth for tree, depth in zip(trees, depths, strict=True)}
        return directory(bagging.copy({bagging.base: trees[0], **own}), given, tmp_path)

    assert found(1, 1) == found(1, 1)
    assert found(1, 1) != found(2, 1)


@pytest.mark.slow
def test_maps_of_bases_are_fitted(given, tmp_path):
    data = VectorAssembler(inputCols=["x"], outputCol="features").transform(given)
    bagging = Bagging(base=pipeline(1), numModels=1, idCol="id", runDir=str(tmp_path))
    maps = [{bagging.base: pipeline(depth)} for depth in (1, 2)]
    assert [bagging.fit(data, given).report["trained"] for given in maps] == [[0], [0]]
    again = Bagging(base=pipeline(1), numModels=1, idCol="id", runDir=str(tmp_path))
    found = again.fit(data, {again.base: pipeline(2)})
    assert (found.report["trained"], found.report["restored"]) == ([], [0])
