"""Members one after the other with different classes, or without a prediction of a row."""

import numpy as np
import pytest
from pyspark.ml import Model
from pyspark.ml.functions import array_to_vector
from pyspark.ml.param.shared import HasPredictionCol, HasProbabilityCol
from pyspark.sql import functions as F

from sparkdl import EnsembleModel, InvalidInput
from sparkdl.ensembles.combine.rules import Combining
from sparkdl.ensembles.combine.sql import SqlCombiner
from tests.ensembles.fakes import outputs
from tests.sessions import conf

pytestmark = pytest.mark.slow

ROWS = 4
WEIGHTS = [1.0, 0.5, 2.0]
OUT = {"raw": "", "probability": "", "prediction": "prediction"}


class Told(Model, HasPredictionCol, HasProbabilityCol):
    """Predicts SQL expressions."""

    def __init__(self, prediction="0D", classes=None, chances="null"):
        super().__init__()
        self.prediction, self.numClasses, self.chances = prediction, classes, chances

    def _transform(self, dataset):
        chances = F.expr(f"cast({self.chances} as array<double>)")
        vector = F.when(chances.isNotNull(), array_to_vector(chances))
        scored = dataset.withColumn(self.getPredictionCol(), F.expr(self.prediction))
        return scored.withColumn(self.getProbabilityCol(), vector)


def output(model, spark):
    """The columns as NumPy arrays; NaN for null."""
    rows = spark.range(ROWS).withColumnRenamed("id", "row").repartition(1)
    names = model.transform(rows).columns[1:]
    return dict(zip(names, outputs(model, rows, *names), strict=True))


def array(numbers):
    return f"array({', '.join(f'{number}D' for number in numbers)})"


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
@pytest.mark.parametrize("classes", [None, 5])
def test_soft_votes_pad_classes_that_members_do_not_know(spark, order, classes):
    chances = [[0.2, 0.8], [0.1, 0.2, 0.7], [0.5, 0.5]]
    models = [Told(chances=array(chances[at])) for at in order]
    made = EnsembleModel(models, rule="soft", weights=[WEIGHTS[at] for at in order], numClasses=classes)
    columns = output(made, spark)
    padded = np.array([[*known, 0.0, 0.0, 0.0][: classes or 3] for known in chances])
    votes = np.array(WEIGHTS) @ padded
    np.testing.assert_allclose(columns["rawPrediction"], [votes] * ROWS, rtol=1e-12)
    np.testing.assert_allclose(columns["probability"], [votes / sum(WEIGHTS)] * ROWS, rtol=1e-12)
    assert set(columns["prediction"]) == {votes.argmax()} == {1}
    thresholds = [0.9, 0.9, 0.1, 0.9, 0.9][: classes or 3]
    assert set(output(made.setThresholds(thresholds), spark)["prediction"]) == {2}


@pytest.mark.parametrize("counts", [(2, 4, None), (4, 2, None), (None, 3, 4)])
def test_hard_votes_count_the_most_classes_of_any_member(spark, counts):
    models = [Told("3D" if count == 4 else "1D", count) for count in counts]
    votes = output(EnsembleModel(models, rule="hard"), spark)["rawPrediction"]
    np.testing.assert_array_equal(votes, [[0, 2, 0, 1]] * ROWS)
    assert output(EnsembleModel(models, rule="hard", numClasses=6), spark)["rawPrediction"].shape == (ROWS, 6)


@pytest.mark.parametrize("rule", ["soft", "hard", "mean"])
def test_members_may_be_many(spark, rule):
    combining = Combining(rule, (1.0,) * 150)
    value = F.array(F.lit(0.25), F.lit(0.75)) if rule == "soft" else F.lit(1.0)
    members = {f"sparkdl member {index} {combining.column}": value for index in range(150)}
    combined = SqlCombiner([Told()] * 150, combining, 2).combined(spark.range(2).withColumns(members), OUT, ["id"])
    assert combined.collect() == [(0, 1.0), (1, 1.0)]


@pytest.mark.parametrize("rule", ["soft", "hard", "mean"])
def test_predictions_of_others_than_voters_do_not_count(spark, rule):
    """The first member has no prediction of row 2, but only in one case votes on it."""
    models = [Told(each, 2, f"if({each} is null, null, array(1 - {each}, {each}))") for each in (NULL, "1D", "1D")]
    model = EnsembleModel(models, rule=rule, numClasses=2)
    rows, votes = spark.range(ROWS).withColumnRenamed("id", "row").repartition(1), F.lit(True)
    for first, expected in ((F.col("row") != 2, 1.0), (votes, np.nan)):
        scored = model.with_votes(rows, [first, votes, ~votes], "votes", ["row"]).orderBy("row").toPandas()["votes"]
        np.testing.assert_array_equal(scored[2], expected)
        assert scored[[0, 1, 3]].notna().all()


def test_arrays_have_no_voters(spark):
    model = EnsembleModel([Told("array(1D, 2D)")], rule="mean")
    with pytest.raises(InvalidInput, match="the members predict arrays; an out-of-bag score expects numbers"):
        model.with_votes(spark.range(2), [F.lit(True)], "votes")


NULL = "if(row = 2, null, if(row % 3 = 0, 0D, 1D))"


@pytest.mark.parametrize("ansi", ["true", "false"])
@pytest.mark.parametrize("null", [[1], [0, 1, 2]])
def test_null_is_no_prediction(spark, ansi, null):
    said = [NULL if at in null else "if(row % 3 = 0, 0D, 1D)" for at in range(3)]
    told = [Told(each, 2, f"if({each} is null, null, array(1 - {each}, {each}))") for each in said]
    arrays = EnsembleModel([Told(f"array({each}, 1D)") for each in said], rule="mean")
    models = [EnsembleModel(told, rule=rule, weights=WEIGHTS, numClasses=2) for rule in ("hard", "mean", "sum", "soft")]
    for model in models:
        model.setDisagreementCol("" if model.rule == "sum" else "apart")
    with conf(spark, "spark.sql.ansi.enabled", ansi):
        results = [output(model, spark) for model in models]
        lists = output(arrays, spark)["prediction"]
    for columns in results:
        for name, values in columns.items():
            assert np.isnan(values[2]).any(), name
            assert np.isfinite(values[[0, 1, 3]]).all(), name
    assert np.isnan(lists[2, 0])
    np.testing.assert_array_equal(np.delete(lists, 2, 0), [[0, 1], [1, 1], [0, 1]])
    np.testing.assert_array_equal(results[0]["prediction"][[0, 1, 3]], [0, 1, 0])
    np.testing.assert_allclose(results[2]["prediction"][[0, 1, 3]], [0, sum(WEIGHTS), 0])
