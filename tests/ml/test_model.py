"""A model's output columns, from known weights and without training."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sparkdl.errors import InvalidInput
from sparkdl.io.weights import pack
from sparkdl.ml.model import TorchModel
from tests.ml import nets
from tests.sessions import frame

X = np.random.default_rng(0).normal(size=(50, 3))
FLOAT = torch.from_numpy(X).float()
FP64 = {"precision": "fp64", "dtype": torch.float64}
one_number = pytest.mark.parametrize("factory", [nets.column, nets.Line], ids=["[B, 1]", "[B]"])


def model(factory, kind="estimator", **others):
    params = {name: others.pop(name) for name in list(others) if name.endswith(("Col", "Cols"))}
    made = TorchModel(factory=factory, weights=pack(factory().to(others.pop("dtype", None))), kind=kind, **others)
    return made._set(**{"inputCols": ["x"]} | params)


def features(**others):
    return frame({"row": np.arange(len(X)), "x": X} | others)


def outputs(model, data):
    """The output columns as arrays, rows in order; vectors as arrays."""
    scored = model.transform(data)
    kinds = {field.name: field.dataType for field in scored.schema if field.name not in data.columns}
    columns = [
        vector_to_array(name).alias(name) if kind == VectorUDT() else F.col(name) for name, kind in kinds.items()
    ]
    rows = scored.orderBy("row").select(*columns).collect()
    return kinds, {name: np.array([row[name] for row in rows]) for name in kinds}


def expected(factory, *inputs):
    with torch.no_grad():
        return factory().eval()(*(inputs or (FLOAT,)))


CLASSIFIER = {"rawPrediction": VectorUDT(), "probability": VectorUDT(), "prediction": T.DoubleType()}


def test_classifier_returns_scores_probabilities_and_classes(spark):
    kinds, found = outputs(model(nets.scores, "classifier"), features())
    assert list(kinds.items()) == list(CLASSIFIER.items())
    scores = expected(nets.scores)
    np.testing.assert_allclose(found["rawPrediction"], scores, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["probability"], scores.softmax(1), rtol=1e-5)
    np.testing.assert_array_equal(found["prediction"], scores.argmax(1))


@one_number
def test_one_score_belongs_to_class_1(spark, factory):
    found = outputs(model(factory, "classifier"), features())[1]
    score = expected(nets.Line).double().numpy()
    chance = 1 / (1 + np.exp(-score))
    np.testing.assert_allclose(found["rawPrediction"], np.stack([-score, score], 1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["probability"], np.stack([1 - chance, chance], 1), rtol=1e-4)
    np.testing.assert_array_equal(found["prediction"], score > 0)
    assert 0 < found["prediction"].sum() < len(X)


@one_number
def test_one_number_is_a_double_of_regressors_and_a_raw_float(spark, factory):
    for kind, returned in (("regressor", T.DoubleType()), ("estimator", T.FloatType())):
        kinds, found = outputs(model(factory, kind, scalar=True), features())
        assert kinds == {"prediction": returned}
        np.testing.assert_allclose(found["prediction"], expected(nets.Line), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("factory", "width"), [(nets.Autoencoder, 3), (nets.Image, 6)])
def test_other_raw_outputs_are_arrays_of_floats(spark, factory, width):
    kinds, found = outputs(model(factory), features())
    assert kinds["prediction"].elementType == T.FloatType()
    assert found["prediction"].shape == (50, width)
    np.testing.assert_allclose(found["prediction"], expected(factory).flatten(1), rtol=1e-5, atol=1e-6)


def test_double_precision_stays(spark):
    made = {
        nets.Line: (model(nets.Line, "regressor", **FP64), T.DoubleType()),
        nets.column: (model(nets.column, scalar=True, **FP64), T.DoubleType()),
        nets.scores: (model(nets.scores, **FP64), T.ArrayType(T.DoubleType(), False)),
    }
    for factory, (each, kind) in made.items():
        kinds, found = outputs(each, features())
        assert kinds == {"prediction": kind}
        with torch.no_grad():
            wanted = factory().double()(torch.from_numpy(X)).numpy()
        np.testing.assert_allclose(found["prediction"].reshape(wanted.shape), wanted, rtol=1e-12)


def test_models_are_in_evaluation_mode_for_any_number_of_rows(spark):
    data = spark.range(0, 5000, 1, 1).selectExpr("id as row", "array(id / 5000, 1.0, 2.0) as x")
    found = outputs(model(nets.Moody, "regressor"), data)[1]
    np.testing.assert_allclose(found["prediction"], np.arange(5000) / 5000 + 3, rtol=1e-5)


@pytest.mark.parametrize("kind", ["classifier", "regressor", "estimator"])
def test_partitions_without_rows(spark, kind):
    made = model(nets.scores if kind == "classifier" else nets.Line, kind, scalar=kind == "estimator")
    assert made.transform(features().where("row < 0")).collect() == []
    assert made.transform(spark.createDataFrame([], "x array<float>")).collect() == []
    assert len(made.transform(features().where("row = 7").repartition(4)).collect()) == 1


def test_names_of_columns(spark):
    made = model(nets.scores, "classifier", rawPredictionCol="", probabilityCol="a.b c", predictionCol="class")
    assert made.transform(features()).columns == ["row", "x", "a.b c", "class"]
    assert made.transform(features(), {made.predictionCol: "other"}).columns == ["row", "x", "a.b c", "other"]
    for name in ("a.b", "a b", "a`b"):
        data = features().withColumnRenamed("x", name).withColumn("c.d", F.lit("kept"))
        scored = model(nets.Line, "regressor", inputCols=[name]).transform(data)
        assert scored.columns == ["row", name, "c.d", "prediction"]
        assert scored.orderBy("row").first()["c.d"] == "kept"


def test_invalid_columns_raise_before_any_job(spark):
    line = model(nets.Line, "regressor")
    same = model(nets.scores, "classifier", predictionCol="p", probabilityCol="p")
    for made, data, message in (
        (line, features(prediction=X[:, 0]), "column 'prediction'"),
        (same, features(), "set probabilityCol to another name"),
        (line, features().drop("x"), "no column 'x'; the data has 'row'"),
        (line, features().withColumn("x", F.lit("a")), "column 'x' has type string"),
    ):
        with pytest.raises(InvalidInput, match=message):
            made.transform(data)


def test_several_inputs_are_the_arguments_of_forward_in_order(spark):
    random = np.random.default_rng(1)
    images, kinds = random.normal(size=(50, 2, 2)), random.integers(0, 4, 50).astype(np.int32)
    made = model(nets.Scaled, "regressor", inputCols=["image", "kind", "price"])
    found = outputs(made, features(image=images, kind=kinds, price=X[:, 0]))[1]
    inputs = torch.from_numpy(images).float(), torch.from_numpy(kinds).long(), FLOAT[:, 0]
    np.testing.assert_allclose(found["prediction"], expected(nets.Scaled, *inputs), rtol=1e-5)
    dense = [(0, Vectors.dense([1.0, 0.0, 2.0])), (1, Vectors.sparse(3, {0: 1.0, 2: 2.0}))]
    found = outputs(model(nets.Line, "regressor"), spark.createDataFrame(dense, ["row", "x"]))[1]
    assert found["prediction"][0] == found["prediction"][1]


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


def plan(data):
    return data._jdf.queryExecution().executedPlan().toString()


def test_module_is_a_new_one_in_evaluation_mode():
    made = model(nets.scores, "classifier")
    module = made.module()
    assert not module.training
    next(module.parameters()).data.zero_()
    torch.testing.assert_close(made.module().state_dict(), nets.scores().state_dict(), rtol=0, atol=0)
