"""Scoring with pyspark 4.0, which has pandas UDFs alone."""

from __future__ import annotations

import numpy as np
import pytest
from pyspark.errors import PythonException
from pyspark.sql import functions

from sparkdl.ml.model import TorchModel
from sparkdl.weights import pack
from tests.ml import nets
from tests.sessions import frame

X = np.random.default_rng(0).normal(size=(50, 3))


def predictions(model: TorchModel, x: np.ndarray) -> list[float | None]:
    rows = model.transform(frame({"row": np.arange(len(x)), "x": x})).orderBy("row")
    return [row["prediction"] for row in rows.collect()]


@pytest.mark.slow
def test_a_null_is_no_nan(spark, monkeypatch):
    # To pandas both are NaN. What a function returns as NaN Spark makes null.
    model = TorchModel(factory=nets.Line, weights=pack(nets.Line()), kind="regressor")._set(inputCols=["x"])
    x = X.copy()
    x[7, 1] = np.nan
    expected = predictions(model, x)
    monkeypatch.delattr(functions, "arrow_udf", raising=False)
    found = predictions(model, x)
    assert found[7] is None
    assert found[:7] + found[8:] == expected[:7] + expected[8:]
    for rows, kind in (([([1.0, None, 3.0],)], "array<double>"), ([(None,)], "array<double>"), ([(None,)], "double")):
        nulls = spark.createDataFrame(rows, f"x {kind}").coalesce(1)
        with pytest.raises(PythonException, match="InvalidInput: column 'x' has 1 null"):
            model.transform(nulls).collect()
