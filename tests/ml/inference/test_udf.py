"""Scoring with pyspark 4.0, which has pandas UDFs alone."""

from __future__ import annotations

import numpy as np
import pytest
from pyspark.errors import PythonException
from pyspark.sql import Row, functions

from sparkdl.io.weights import pack
from sparkdl.ml.model import TorchModel
from tests.ml import nets
from tests.sessions import frame

X = np.random.default_rng(0).normal(size=(50, 3))


def transformed(model: TorchModel, x: np.ndarray) -> list[Row]:
    return model.transform(frame({"row": np.arange(len(x)), "x": x})).orderBy("row").drop("x").collect()


@pytest.mark.slow
@pytest.mark.parametrize(("factory", "kind"), [(nets.Line, "regressor"), (nets.scores, "classifier")])
def test_a_null_is_no_nan(spark, monkeypatch, factory, kind):
    # To pandas both are NaN, and what a function returns as NaN is null to Spark, or an error of Java's in an array.
    model = TorchModel(factory=factory, weights=pack(factory()), kind=kind)._set(inputCols=["x"])
    x = X.copy()
    x[7, 1] = np.nan
    expected = transformed(model, x)
    monkeypatch.delattr(functions, "arrow_udf", raising=False)
    found = transformed(model, x)
    assert [str(row) for row in found] == [str(row) for row in expected]
    assert "nan" in str(found[7])
    for rows, of in (([([1.0, None, 3.0],)], "array<double>"), ([(None,)], "array<double>"), ([(None,)], "double")):
        nulls = spark.createDataFrame(rows, f"x {of}").coalesce(1)
        with pytest.raises(PythonException, match="InvalidInput: column 'x' has 1 null"):
            model.transform(nulls).collect()
