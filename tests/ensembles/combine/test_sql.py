"""Members one after the other with different classes, or without a prediction of a row."""

from __future__ import annotations

import numpy as np
import pytest
from pyspark.ml import Model
from pyspark.ml.functions import array_to_vector, vector_to_array
from pyspark.ml.param.shared import HasPredictionCol, HasProbabilityCol
from pyspark.sql import functions as F

from sparkdl.ensembles.model import EnsembleModel

pytestmark = pytest.mark.slow

ROWS = 4
WEIGHTS = [1.0, 0.5, 2.0]


class Told(Model, HasPredictionCol, HasProbabilityCol):
    """Predicts SQL expressions."""

    def __init__(self, prediction="0D", classes=None, chances="null"):
        super().__init__()
        self.prediction, self.numClasses, self.chances = prediction, classes, chances

    def _transform(self, dataset):
        found = F.expr(f"cast({self.chances} as array<double>)")
        vector = F.when(found.isNotNull(), array_to_vector(found))
        scored = dataset.withColumn(self.getPredictionCol(), F.expr(self.prediction))
        return scored.withColumn(self.getProbabilityCol(), vector)


def output(model, spark):
    """The columns as NumPy arrays; NaN for null."""
    made = model.transform(spark.range(ROWS).repartition(1)).orderBy("id")
    names = [name for name in made.columns if name != "id"]
    vectors = [name for name in names if name in ("rawPrediction", "probability")]
    rows = made.select(*(vector_to_array(name).alias(name) if name in vectors else name for name in names)).collect()
    return {name: np.array([row[name] for row in rows], np.float64) for name in names}


def array(numbers):
    return f"array({', '.join(f'{number}D' for number in numbers)})"


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
@pytest.mark.parametrize("classes", [None, 5])
def test_soft_votes_pad_classes_that_members_do_not_know(spark, order, classes):
    chances = [[0.2, 0.8], [0.1, 0.2, 0.7], [0.5, 0.5]]
    models = [Told(chances=array(chances[at])) for at in order]
    made = EnsembleModel(models, rule="soft", weights=[WEIGHTS[at] for at in order], numClasses=classes)
    found = output(made, spark)
    padded = np.array([[*each, 0.0, 0.0, 0.0][: classes or 3] for each in chances])
    votes = np.array(WEIGHTS) @ padded
    np.testing.assert_allclose(found["rawPrediction"], [votes] * ROWS, rtol=1e-12)
    np.testing.assert_allclose(found["probability"], [votes / sum(WEIGHTS)] * ROWS, rtol=1e-12)
    assert set(found["prediction"]) == {votes.argmax()} == {1}
    thresholds = [0.9, 0.9, 0.1, 0.9, 0.9][: classes or 3]
    assert set(output(made.setThresholds(thresholds), spark)["prediction"]) == {2}


@pytest.mark.parametrize("counts", [(2, 4, None), (4, 2, None), (None, 3, 4)])
def test_hard_votes_count_the_most_classes_of_any_member(spark, counts):
    models = [Told("3D" if count == 4 else "1D", count) for count in counts]
    found = output(EnsembleModel(models, rule="hard"), spark)
    np.testing.assert_array_equal(found["rawPrediction"], [[0, 2, 0, 1]] * ROWS)
    found = output(EnsembleModel(models, rule="hard", numClasses=6), spark)
    assert found["rawPrediction"].shape == (ROWS, 6)


NULL = "if(id = 2, null, if(id % 3 = 0, 0D, 1D))"


@pytest.mark.parametrize("ansi", ["true", "false"])
@pytest.mark.parametrize("null", [[1], [0, 1, 2]])
def test_null_is_no_prediction(spark, ansi, null):
    said = [NULL if at in null else "if(id % 3 = 0, 0D, 1D)" for at in range(3)]
    told = [Told(each, 2, f"if({each} is null, null, array(1 - {each}, {each}))") for each in said]
    arrays = EnsembleModel([Told(f"array({each}, 1D)") for each in said], rule="mean")
    models = [EnsembleModel(told, rule=rule, weights=WEIGHTS, numClasses=2) for rule in ("hard", "mean", "sum", "soft")]
    for model in models:
        model.setDisagreementCol("" if model.rule == "sum" else "apart")
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        results = [output(model, spark) for model in models]
        lists = output(arrays, spark)["prediction"]
    finally:
        spark.conf.set("spark.sql.ansi.enabled", before)
    for found in results:
        for name, values in found.items():
            assert np.isnan(values[2]).any(), name
            assert np.isfinite(values[[0, 1, 3]]).all(), name
    assert np.isnan(lists[2, 0])
    np.testing.assert_array_equal(np.delete(lists, 2, 0), [[0, 1], [1, 1], [0, 1]])
    np.testing.assert_array_equal(results[0]["prediction"][[0, 1, 3]], [0, 1, 0])
    np.testing.assert_allclose(results[2]["prediction"][[0, 1, 3]], [0, sum(WEIGHTS), 0])
