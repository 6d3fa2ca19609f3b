"""What the tests of ensembles share."""

import numpy as np
import pytest
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.functions import array_to_vector
from pyspark.sql import functions as F

from sparkdl.spark.columns import ROW_ID
from tests.ensembles.fakes import ARRAYS
from tests.sessions import frame


@pytest.fixture(scope="session")
def data(spark):
    """The rows of ``ARRAYS`` with vectors of all features, and of two."""
    vectors = {"features": array_to_vector("x"), "some": array_to_vector(F.slice("x", 1, 2))}
    return frame(ARRAYS).withColumns(vectors).cache()


@pytest.fixture(scope="session")
def people(spark):
    """600 rows: 20 columns x0, x1 ..., and all of them as features."""
    x = np.random.default_rng(0).normal(size=(600, 20))
    data = frame({"id": np.arange(600), "x": x, "label": (x.sum(1) > 0).astype(np.float64)})
    names = [f"x{number}" for number in range(20)]
    data = data.select("id", "label", *(F.col("x")[number].alias(name) for number, name in enumerate(names)))
    assembled = VectorAssembler(inputCols=names, outputCol="features").transform(data).withColumn(ROW_ID, F.col("id"))
    return assembled.repartition(2).cache()
