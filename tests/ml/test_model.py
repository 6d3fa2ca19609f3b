"""A trained model scores DataFrames; most tests here make one from known weights, without training."""

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


def model(factory, kind="estimator", **others):
    params = {name: others.pop(name) for name in list(others) if name.endswith(("Col", "Cols"))}
    made = TorchModel(factory=factory, weights=pack(factory().to(others.pop("dtype", None))), kind=kind, **others)
    return made._set(**{"inputCols": ["x"]} | params)


def features(**others):
    return frame({"row": np.arange(len(X)), "x": X} | others)


def scored(model, data, *names):
    """The named output columns as arrays, rows in order; vectors as arrays."""
    found = model.transform(data)
    vectors = {field.name for field in found.schema if isinstance(field.dataType, VectorUDT)}
    chosen = [vector_to_array(name).alias(name) if name in vectors else F.col(name) for name in names]
    rows = found.orderBy("row").select(*chosen).collect()
    return [np.array([row[name] for row in rows]) for name in names]


def expected(factory, *inputs):
    with torch.no_grad():
        return factory().eval()(*(inputs or (FLOAT,)))


# ---- outputs ---------------------------------------------------------------------------------------------------------


def test_a_classifier_gives_scores_probabilities_and_classes(spark):
    found = model(nets.scores, "classifier").transform(features())
    assert found.columns == ["row", "x", "rawPrediction", "probability", "prediction"]
    kinds = [found.schema[name].dataType for name in found.columns[2:]]
    assert kinds == [VectorUDT(), VectorUDT(), T.DoubleType()]
    raw, probability, prediction = scored(
        model(nets.scores, "classifier"), features(), "rawPrediction", "probability", "prediction"
    )
    scores = expected(nets.scores)
    np.testing.assert_allclose(raw, scores, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(probability, scores.softmax(1), rtol=1e-5)
    np.testing.assert_array_equal(prediction, scores.argmax(1))


@pytest.mark.parametrize("factory", [nets.column, nets.Line], ids=["[B, 1]", "[B]"])
def test_one_score_is_that_of_class_1(spark, factory):
    raw, probability, prediction = scored(
        model(factory, "classifier"), features(), "rawPrediction", "probability", "prediction"
    )
    score = expected(nets.Line).double().numpy()
    chance = 1 / (1 + np.exp(-score))
    np.testing.assert_allclose(raw, np.stack([-score, score], 1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(probability, np.stack([1 - chance, chance], 1), rtol=1e-4)
    np.testing.assert_array_equal(prediction, score > 0)
    assert 0 < prediction.sum() < len(prediction)


@pytest.mark.parametrize("factory", [nets.column, nets.Line], ids=["[B, 1]", "[B]"])
def test_a_regressor_gives_a_number(spark, factory):
    found = model(factory, "regressor").transform(features())
    assert found.columns == ["row", "x", "prediction"]
    assert found.schema["prediction"].dataType == T.DoubleType()
    (prediction,) = scored(model(factory, "regressor"), features(), "prediction")
    np.testing.assert_allclose(prediction, expected(nets.Line), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("factory", [nets.column, nets.Line], ids=["[B, 1]", "[B]"])
def test_a_raw_output_of_one_number_is_a_float(spark, factory):
    (prediction,) = scored(model(factory, scalar=True), features(), "prediction")
    np.testing.assert_allclose(prediction, expected(nets.Line), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("factory", "width"), [(nets.Autoencoder, 3), (nets.Image, 6)])
def test_any_other_raw_output_is_an_array_of_floats(spark, factory, width):
    found = model(factory).transform(features())
    assert found.schema["prediction"].dataType.elementType == T.FloatType()
    (prediction,) = scored(model(factory), features(), "prediction")
    assert prediction.shape == (50, width)
    np.testing.assert_allclose(prediction, expected(factory).flatten(1), rtol=1e-5, atol=1e-6)


def test_double_precision_is_kept(spark):
    made = model(nets.Line, "regressor", precision="fp64", dtype=torch.float64)
    (prediction,) = scored(made, features(), "prediction")
    with torch.no_grad():
        np.testing.assert_allclose(prediction, nets.Line().double()(torch.from_numpy(X)), rtol=1e-12)


def test_raw_outputs_in_double_precision_are_doubles(spark):
    scalar = model(nets.column, precision="fp64", dtype=torch.float64, scalar=True).transform(features())
    assert scalar.schema["prediction"].dataType == T.DoubleType()
    array = model(nets.scores, precision="fp64", dtype=torch.float64).transform(features())
    found = np.array([row["prediction"] for row in array.orderBy("row").collect()])
    with torch.no_grad():
        np.testing.assert_allclose(found, nets.scores().double()(torch.from_numpy(X)), rtol=1e-12)


def test_models_are_in_evaluation_mode(spark):
    (prediction,) = scored(model(nets.Moody, "regressor"), features(), "prediction")
    np.testing.assert_allclose(prediction, FLOAT.sum(1), rtol=1e-5, atol=1e-5)


def test_output_columns_may_have_other_names_or_be_left_out(spark):
    made = model(nets.scores, "classifier", rawPredictionCol="", probabilityCol="a.b c", predictionCol="class")
    assert made.transform(features()).columns == ["row", "x", "a.b c", "class"]
    assert made.transform(features(), {made.predictionCol: "other"}).columns == ["row", "x", "a.b c", "other"]


def test_an_output_column_that_is_there_already_is_refused(spark):
    with pytest.raises(InvalidInput, match="there is a column 'prediction' already"):
        model(nets.Line, "regressor").transform(features(prediction=X[:, 0]))
    with pytest.raises(InvalidInput, match="set probabilityCol to another name"):
        model(nets.scores, "classifier", predictionCol="p", probabilityCol="p").transform(features())


# ---- inputs ----------------------------------------------------------------------------------------------------------


def test_several_inputs_are_the_arguments_of_forward_in_order(spark):
    random = np.random.default_rng(1)
    images, kinds = random.normal(size=(50, 2, 2)), random.integers(0, 4, 50).astype(np.int32)
    data = features(image=images, kind=kinds, price=X[:, 0])
    made = model(nets.Scaled, "regressor", inputCols=["image", "kind", "price"])
    (prediction,) = scored(made, data, "prediction")
    inputs = torch.from_numpy(images).float(), torch.from_numpy(kinds).long(), FLOAT[:, 0]
    np.testing.assert_allclose(prediction, expected(nets.Scaled, *inputs), rtol=1e-5)


def test_vectors_dense_and_sparse(spark):
    dense = [(0, Vectors.dense([1.0, 0.0, 2.0])), (1, Vectors.sparse(3, {0: 1.0, 2: 2.0}))]
    (prediction,) = scored(model(nets.Line, "regressor"), spark.createDataFrame(dense, ["row", "x"]), "prediction")
    assert prediction[0] == prediction[1]


@pytest.mark.parametrize("name", ["a.b", "a b", "a`b"])
def test_any_column_name_will_do(spark, name):
    data = features().withColumnRenamed("x", name).withColumn("c.d", F.lit("kept"))
    found = model(nets.Line, "regressor", inputCols=[name]).transform(data)
    assert found.columns == ["row", name, "c.d", "prediction"]
    assert found.orderBy("row").first()["c.d"] == "kept"


def test_inputs_are_checked_before_anything_runs(spark):
    with pytest.raises(InvalidInput, match="there is no column 'x'; the data has 'row'"):
        model(nets.Line, "regressor").transform(features().drop("x"))
    with pytest.raises(InvalidInput, match="column 'x' has type string"):
        model(nets.Line, "regressor").transform(features().withColumn("x", F.lit("a")))


def test_many_rows_go_through_in_pieces(spark):
    data = spark.range(0, 5000, 1, 1).selectExpr("id as row", "array(id / 5000, 1.0, 2.0) as x")
    (prediction,) = scored(model(nets.Moody, "regressor"), data, "prediction")
    np.testing.assert_allclose(prediction, np.arange(5000) / 5000 + 3, rtol=1e-5)


@pytest.mark.parametrize("kind", ["classifier", "regressor", "estimator"])
def test_no_rows_are_no_rows(spark, kind):
    made = model(nets.scores if kind == "classifier" else nets.Line, kind, scalar=kind == "estimator")
    empty = features().where("row < 0")
    assert made.transform(empty).collect() == []
    assert len(made.transform(features().where("row = 7").repartition(4)).collect()) == 1


def test_other_columns_stay_and_need_not_be_read(spark, tmp_path):
    data = features(label=X[:, 0]).withColumn("text", F.concat(F.lit("row "), "row"))
    data.select("*", F.struct("row", "label").alias("both")).write.parquet(str(tmp_path / "data"))
    read = spark.read.parquet(str(tmp_path / "data"))
    found = model(nets.Line, "regressor").transform(read)
    assert found.columns == ["row", "x", "label", "text", "both", "prediction"]
    first = found.orderBy("row").first()
    assert (first["text"], first["both"]["row"]) == ("row 0", 0)

    predicted, others = plan(found.select("prediction")), plan(found.select("text"))
    assert "ReadSchema: struct<x:array<double>>" in predicted
    assert "ArrowEvalPython" in predicted
    assert "ArrowEvalPython" not in others
    assert "x:array" not in others
    (scoring,) = [line for line in plan(found).splitlines() if "ArrowEvalPython" in line]
    inputs = scoring[scoring.index("[score(cast(x#") : scoring.index("]")]
    # In pyspark 4.0 an argument more tells of nulls; no other column goes to Python.
    assert set(re.findall(r"(?<!lambda )\b(\w+)#\d+", inputs)) == {"x"}


def plan(data):
    return data._jdf.queryExecution().executedPlan().toString()


def test_the_module(spark):
    made = model(nets.scores, "classifier")
    module = made.module()
    assert not module.training
    torch.testing.assert_close(module.state_dict(), nets.scores().state_dict(), rtol=0, atol=0)
    next(module.parameters()).data.zero_()
    torch.testing.assert_close(made.module().state_dict(), nets.scores().state_dict(), rtol=0, atol=0)
