"""What the tests of ensembles share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.functions import array_to_vector
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sparkdl.spark.columns import ROW_ID
from tests.ensembles.fakes import ARRAYS
from tests.rounds.data import adult
from tests.sessions import frame


@pytest.fixture(scope="session")
def data(spark):
    """The rows of ``ARRAYS`` with vectors of all features, and of two."""
    vectors = {"features": array_to_vector("x"), "some": array_to_vector(F.slice("x", 1, 2))}
    return frame(ARRAYS).withColumns(vectors).cache()


@pytest.fixture(scope="session")
def people(spark):
    """600 rows of Adult: 20 columns x0, x1 ..., and all of them as features."""
    x, y = (array[:600] for array in adult()["train"])
    data = frame({"id": np.arange(len(y)), "x": x[:, :20].astype(np.float64), "label": y.astype(np.float64)})
    names = [f"x{number}" for number in range(20)]
    data = data.select("id", "label", *(F.col("x")[number].alias(name) for number, name in enumerate(names)))
    assembled = VectorAssembler(inputCols=names, outputCol="features").transform(data).withColumn(ROW_ID, F.col("id"))
    return assembled.repartition(2).cache()


@dataclass(frozen=True)
class Adult:
    """The rows of Adult, to train on and to test with."""

    train: DataFrame
    test: DataFrame

    def fit(self, estimator):
        return estimator.fit(self.train)

    def metric(self, model, name):
        """A metric of the model on the test rows."""
        return MulticlassClassificationEvaluator(metricName=name).evaluate(model.transform(self.test))


@pytest.fixture(scope="session")
def measured(spark):
    """Fits estimators to the training rows of Adult, and measures models on its test rows."""
    frames = {}
    for name, (x, y) in adult().items():
        rows = frame({"id": np.arange(len(y)), "x": x, "label": y.astype(np.float64)})
        frames[name] = rows.withColumn("features", array_to_vector("x")).repartition(2, "id").cache()
    return Adult(frames["train"], frames["test"])
