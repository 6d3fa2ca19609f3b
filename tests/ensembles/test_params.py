"""Row numbers that Spark gives, while members depend on them; and param maps with estimators."""

from __future__ import annotations

import json
from contextlib import nullcontext
from unittest.mock import Mock

import numpy as np
import pytest
from pyspark import StorageLevel
from pyspark.ml import Pipeline
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.ml.feature import StandardScaler
from pyspark.ml.regression import DecisionTreeRegressor, LinearRegression
from pyspark.sql import functions as F

from sparkdl import Bagging, BestOf, Boosting, InvalidInput, SparkdlError, Stacking, TorchClassifier
from sparkdl.ensembles import params
from tests.sessions import frame


@pytest.fixture
def given(spark):
    return frame({"id": np.arange(30), "x": np.linspace(0, 1, 30), "label": np.linspace(0, 1, 30) ** 2})


def test_members_of_an_earlier_version_had_other_validation_rows(given, tmp_path):
    bagging = Bagging(base=TorchClassifier(inputCols=["x"], validationFraction=0.5), idCol="id", runDir=str(tmp_path))
    path = tmp_path / "ensemble.json"
    with bagging.running(given):
        saved = json.loads(path.read_text())
    assert saved["configuration"].pop("validationSplit")
    path.write_text(json.dumps(saved))
    with pytest.raises(InvalidInput, match=r"earlier version .* rows would change"), bagging.running(given):
        pass


NONE = StorageLevel.NONE


def with_base(ensemble):
    base = LinearRegression()
    return ensemble.copy()._set(**({"bases": [base]} if isinstance(ensemble, Stacking) else {"base": base}))


@pytest.mark.parametrize(
    "case",
    [
        (Stacking(), NONE, True),
        (Stacking(idCol="id"), NONE, False),
        (Stacking(), StorageLevel.MEMORY_AND_DISK, False),
        (Stacking(), StorageLevel.MEMORY_ONLY, True),  # evicted rows would be computed again
        *((make(runDir="run"), NONE, True) for make in (Bagging, Boosting)),
        *((make(runDir="run", idCol="id"), NONE, False) for make in (Bagging, Boosting)),
        *((make(), NONE, False) for make in (Bagging, Boosting)),
        (Bagging(oobScore=True), NONE, True),
        (Bagging(oobScore=True, idCol="id"), NONE, False),
    ],
)
@pytest.mark.parametrize("fails", [False, True])
def test_rows_are_persisted_while_members_depend_on_their_numbers(given, tmp_path, monkeypatch, case, fails):
    looks = Mock(wraps=params.fingerprint)
    monkeypatch.setattr(params, "fingerprint", looks)
    ensemble, level, persisted = case
    if level != NONE:
        given.persist(level)
    stored = ensemble.getRunDir() is not None
    made = with_base(ensemble).setRunDir(str(tmp_path) if stored else None)
    ends = pytest.raises(LookupError, match="on purpose") if fails else nullcontext()
    with ends, made.running(given) as (rows, plan):
        assert rows.storageLevel.useDisk == persisted
        assert ((plan.store is not None), plan.parallelism) == (stored, 1)
        if fails:
            raise LookupError("on purpose")
    assert (rows.storageLevel, given.storageLevel) == (NONE, level)
    given.unpersist()
    judged = isinstance(ensemble, Stacking) or (ensemble.hasParam("oobScore") and ensemble.getOobScore())
    numbered = ensemble.getIdCol() is None and (stored or judged)
    # One look for the stored members, and another at the end if Spark numbers the rows.
    assert looks.call_count == (stored or numbered) + (numbered and not fails)


JUDGED = "members may have been evaluated on their training rows. Set idCol"
DRAWN = "stored members may have trained on other rows than their fingerprint says. Set idCol"


@pytest.mark.parametrize(
    ("ensemble", "stored", "message"),
    [
        (Stacking(bases=[]), False, JUDGED),
        (Stacking(bases=[]), True, JUDGED),
        (Bagging(), True, DRAWN),
        (Bagging(oobScore=True), False, JUDGED),
    ],
)
def test_numbers_that_change_while_members_train_raise(spark, tmp_path, ensemble, stored, message):
    """Evicted rows are computed again, and may come in another order."""
    at_random = F.expr("reflect('java.util.UUID', 'randomUUID')")  # the plan holds no seed
    unordered = frame({"x": np.arange(20)}).withColumn("u", at_random).orderBy("u").drop("u")
    directory = str(tmp_path / "run") if stored else None
    made = with_base(ensemble).setRunDir(directory)
    message = f"row numbers changed while members trained: {message}"
    message += f".* Also delete '{directory}'" if stored else ""
    with pytest.raises(SparkdlError, match=message), made.running(unordered) as (rows, _):
        rows.unpersist(blocking=True)
    assert rows.storageLevel == NONE


def test_ensembles_with_folds_ignore_disagreement(given):
    made = Stacking(disagreementCol="apart", idCol="id")
    with pytest.warns(UserWarning, match="a Stacking ignores it: its members do not vote"), made.running(given):
        pass


# ---- param maps ------------------------------------------------------------------------------------------------------


def pipeline(depth: int) -> Pipeline:
    scaler = StandardScaler(inputCol="features")
    return Pipeline(stages=[scaler, DecisionTreeRegressor(featuresCol=scaler.getOutputCol(), maxDepth=depth)])


def bagged(depth: int) -> Bagging:
    """A copy by a map with a tree and a value for the tree."""
    bagging, tree = Bagging(base=pipeline(1), idCol="id"), DecisionTreeRegressor()
    return bagging.copy({bagging.base: tree, tree.maxDepth: depth})


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
        (None, "value for a tree of the map", None),
    ],
)
def test_estimators_of_a_map_have_their_own_directories(given, tmp_path, make, name, value):
    def directory_of(which: int) -> str:
        if make is None:
            ensemble = bagged(which)
        else:
            ensemble = make().setIdCol("id")
            ensemble = ensemble.copy({ensemble.getParam(name): value(which)})
        with ensemble.setRunDir(str(tmp_path)).running(given) as (_, plan):
            directory: str = plan.store.directory
        assert directory.startswith(f"{tmp_path}/")
        return directory

    assert directory_of(1) == directory_of(1)  # of other objects, with other uids
    assert directory_of(1) != directory_of(2)


def test_maps_name_bases_of_one_class_by_their_places(spark):
    one, other = LinearRegression(), LinearRegression()
    stacking = Stacking(bases=[one, other], runDir="/nowhere")
    maps = [{one.regParam: 1.0, other.regParam: 2.0}, {one.regParam: 2.0, other.regParam: 1.0}]
    assert stacking.copy(maps[0])._map != stacking.copy(maps[1])._map
    assert stacking.copy(maps[0])._map == stacking.copy(dict(reversed(maps[0].items())))._map


@pytest.mark.parametrize(
    "make",
    [
        lambda tree: Bagging(base=tree),
        lambda tree: Boosting(base=tree),
        lambda tree: Stacking(bases=[LinearRegression(), tree]),
        lambda tree: Stacking(bases=[LinearRegression()], meta=tree),
        lambda tree: BestOf(candidates=[tree]),
    ],
)
def test_copies_have_their_own_bases_and_evaluator(spark, make):
    tree = DecisionTreeRegressor(maxDepth=2)
    first = make(tree).setIdCol("id")
    other = first.copy({tree.maxDepth: 5, first.seed: 7})
    assert (first.base_estimators()[-1].getMaxDepth(), first.getSeed()) == (2, 0)
    assert (other.base_estimators()[-1].getMaxDepth(), other.getSeed()) == (5, 7)
    assert (other.uid, other.getIdCol()) == (first.uid, "id")
    assert [base.uid for base in other.base_estimators()] == [base.uid for base in first.base_estimators()]
    evaluator = RegressionEvaluator()
    copied = BestOf(evaluator=evaluator).copy({evaluator.metricName: "r2"})
    assert (copied.getEvaluator().getMetricName(), evaluator.getMetricName()) == ("r2", "rmse")
