"""A model's output columns, from known weights and without training."""

import re

import numpy as np
import pytest
import torch
from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import functions as F
from pyspark.sql import types as T
from torch import nn

from sparkdl import InvalidInput, TorchModel
from sparkdl.io.weights import pack
from tests.ml import nets
from tests.ml.test_udf import X, features, plan

FLOAT = torch.from_numpy(X).float()


def model(factory, kind="estimator", **others):
    params = {name: others.pop(name) for name in list(others) if name.endswith(("Col", "Cols"))}
    trained = TorchModel(factory=factory, weights=pack(factory().to(others.pop("dtype", None))), kind=kind, **others)
    return trained._set(**{"inputCols": ["x"]} | params)


def outputs(model, data):
    """The output columns as arrays, rows in order; vectors as arrays."""
    scored = model.transform(data)
    kinds = {field.name: field.dataType for field in scored.schema if field.name not in data.columns}
    arrays = {name: vector_to_array(name).alias(name) for name, kind in kinds.items() if kind == VectorUDT()}
    rows = scored.orderBy("row").select(*(arrays.get(name, F.col(name)) for name in kinds)).collect()
    return kinds, {name: np.array([row[name] for row in rows]) for name in kinds}


def expected(factory):
    with torch.no_grad():
        return factory().eval()(FLOAT)


def matrices():
    return nn.Sequential(nets.mlp(3, outputs=6), nn.Unflatten(1, (2, 3)))


@pytest.mark.parametrize(
    ("factory", "kind", "kinds"),
    [
        (nets.scores, "classifier", [VectorUDT(), VectorUDT(), T.DoubleType()]),
        (nets.column, "classifier", [VectorUDT(), VectorUDT(), T.DoubleType()]),
        (nets.Line, "regressor", [T.DoubleType()]),
        (nets.column, "regressor", [T.DoubleType()]),
        (nets.column, "estimator", [T.FloatType()]),
        (nets.Autoencoder, "estimator", [T.ArrayType(T.FloatType(), False)]),
        (matrices, "estimator", [T.ArrayType(T.FloatType(), False)]),
    ],
)
def test_columns_and_values(spark, factory, kind, kinds):
    types, columns = outputs(model(factory, kind, output=[1] if factory is nets.column else None), features())
    names = ["rawPrediction", "probability", "prediction"] if kind == "classifier" else ["prediction"]
    assert list(types.items()) == list(zip(names, kinds, strict=True))
    raw = expected(factory).flatten(1) if factory is matrices else expected(factory)
    if kind == "classifier":  # one score belongs to class 1
        raw = raw if factory is nets.scores else torch.cat([-raw, raw], 1)
        chances = raw.softmax(1) if factory is nets.scores else raw.sigmoid()
        np.testing.assert_allclose(columns["rawPrediction"], raw, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(columns["probability"], chances, rtol=1e-4)
        np.testing.assert_array_equal(columns["prediction"], raw.argmax(1))
    else:
        np.testing.assert_allclose(columns["prediction"], raw.squeeze(-1), rtol=1e-5, atol=1e-6)


def test_double_precision_stays(spark):
    arrays = T.ArrayType(T.DoubleType(), False)
    for factory, output, kind in ((nets.column, [1], T.DoubleType()), (nets.scores, [2], arrays)):
        types, columns = outputs(model(factory, output=output, precision="fp64", dtype=torch.float64), features())
        assert types == {"prediction": kind}
        with torch.no_grad():
            values = factory().double()(torch.from_numpy(X)).numpy()
        np.testing.assert_allclose(columns["prediction"].reshape(values.shape), values, rtol=1e-12)


def test_models_are_in_evaluation_mode_for_any_number_of_rows(spark):
    data = spark.range(0, 5000, 1, 1).selectExpr("id as row", "array(id / 5000, 1.0, 2.0) as x")
    columns = outputs(model(nets.Moody, "regressor"), data)[1]
    np.testing.assert_allclose(columns["prediction"], np.arange(5000) / 5000 + 3, rtol=1e-5)


@pytest.mark.parametrize("kind", ["classifier", "regressor", "estimator"])
def test_partitions_without_rows(spark, kind):
    factory = nets.scores if kind == "classifier" else nets.Line
    trained = model(factory, kind, output=[] if kind == "estimator" else None)
    assert trained.transform(features().where("row < 0")).collect() == []
    assert trained.transform(spark.createDataFrame([], "x array<float>")).collect() == []
    assert len(trained.transform(features().where("row = 7").repartition(4)).collect()) == 1


def test_names_of_columns(spark):
    trained = model(nets.scores, "classifier", rawPredictionCol="", probabilityCol="a.b c", predictionCol="class")
    assert trained.transform(features()).columns == ["row", "x", "a.b c", "class"]
    assert trained.transform(features(), {trained.predictionCol: "other"}).columns == ["row", "x", "a.b c", "other"]
    for name in ("a.b", "a b", "a`b"):
        data = features().withColumnRenamed("x", name).withColumn("c.d", F.lit("kept"))
        scored = model(nets.Line, "regressor", inputCols=[name]).transform(data)
        assert scored.columns == ["row", name, "c.d", "prediction"]
        assert scored.orderBy("row").first()["c.d"] == "kept"


def test_invalid_columns_raise_before_any_job(spark):
    line = model(nets.Line, "regressor")
    same = model(nets.scores, "classifier", predictionCol="p", probabilityCol="p")
    for trained, data, message in (
        (line, features(prediction=X[:, 0]), "column 'prediction'"),
        (same, features(), "set probabilityCol to another name"),
        (line, features().drop("x"), "no column 'x'; the data has 'row'"),
        (line, features().withColumn("x", F.lit("a")), "column 'x' has type string"),
    ):
        with pytest.raises(InvalidInput, match=message):
            trained.transform(data)


def test_only_input_columns_reach_python(spark, tmp_path):
    data = features(label=X[:, 0]).withColumn("text", F.concat(F.lit("row "), "row"))
    data.select("*", F.struct("row", "label").alias("both")).write.parquet(str(tmp_path / "data"))
    scored = model(nets.Line, "regressor").transform(spark.read.parquet(str(tmp_path / "data")))
    assert scored.columns == ["row", "x", "label", "text", "both", "prediction"]
    first = scored.orderBy("row").first()
    assert (first["text"], first["both"]["row"]) == ("row 0", 0)
    predicted, others = plan(scored.select("prediction")), plan(scored.select("text"))
    assert "ReadSchema: struct<x:array<double>>" in predicted
    assert "ArrowEvalPython" in predicted
    assert "ArrowEvalPython" not in others
    assert "x:array" not in others
    (scoring,) = [line for line in plan(scored).splitlines() if "ArrowEvalPython" in line]
    inputs = scoring[scoring.index("[score(cast(x#") : scoring.index("]")]
    # In pyspark 4.0 another argument marks nulls; no other column goes to Python.
    assert set(re.findall(r"(?<!lambda )\b(\w+)#\d+", inputs)) == {"x"}


def test_module_is_a_new_one_in_evaluation_mode():
    scores = model(nets.scores, "classifier")
    module = scores.module()
    assert not module.training
    next(module.parameters()).data.zero_()
    torch.testing.assert_close(scores.module().state_dict(), nets.scores().state_dict(), rtol=0, atol=0)
