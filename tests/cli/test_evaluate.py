"""The jobs that read rows and judge a saved model, on real executors; scikit-learn has the right answers."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from pyspark.sql import SparkSession
from sklearn import metrics as right

from sparkdl import TorchModel
from sparkdl.cli.commands import run
from sparkdl.cli.data import Data
from sparkdl.io.weights import pack
from tests.ml import nets
from tests.sessions import frame

ROWS = 400


@pytest.fixture(scope="module")
def arrays():
    random = np.random.default_rng(1)
    x = random.normal(size=(ROWS, 3))
    scores = nets.scores()(torch.from_numpy(x).float()).detach().numpy()
    noisy = random.random(ROWS) < 0.3
    return {
        "features": x,
        "three": np.where(noisy, random.integers(0, 3, ROWS), scores.argmax(1)),
        "two": (x.sum(1) + random.normal(size=ROWS) > 0).astype(float),
        "value": np.sin(x).sum(1),
    }


@pytest.fixture(scope="module")
def rows(spark, arrays, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("rows") / "rows")
    frame(arrays).write.parquet(folder)
    return folder


@pytest.fixture
def saved(tmp_path):
    """The path of a saved model that is fitted to nothing."""

    def saved(factory, kind, **params):
        model = TorchModel(factory=factory, weights=pack(factory()), kind=kind)
        model._set(**params)
        model.save(str(tmp_path / "model"))
        return str(tmp_path / "model")

    return saved


@pytest.fixture
def job(spark, monkeypatch, capsys):
    """Run a job in this session, which outlives it; the exit code and what was printed."""
    monkeypatch.setattr(SparkSession, "__exit__", lambda *_: None)

    def job(name, *arguments):
        code = run(name, list(map(str, arguments)))
        shown = capsys.readouterr()
        return code, shown.out + shown.err

    return job


def outputs(spark, path, rows):
    """Probabilities ``[rows, classes]`` and predictions of a saved model, in the order of the features."""
    found = TorchModel.load(path).transform(spark.read.parquet(rows)).collect()
    return (
        np.stack([row["probability"].toArray() for row in found]),
        np.array([row["prediction"] for row in found]),
        found,
    )


def test_three_classes(spark, job, saved, rows, tmp_path):
    path, output = saved(nets.scores, "classifier"), tmp_path / "out" / "metrics.json"
    code, said = job("evaluate", "--model", path, "--data.path", rows, "--label", "three", "--output", output)
    assert code == 0, said
    chances, predictions, found = outputs(spark, path, rows)
    labels = [row["three"] for row in found]
    figures = json.loads(output.read_text())
    assert figures["rows"] == ROWS
    assert figures["accuracy"] == pytest.approx(right.accuracy_score(labels, predictions))
    assert figures["macro_f1"] == pytest.approx(right.f1_score(labels, predictions, average="macro"))
    assert figures["log_loss"] == pytest.approx(right.log_loss(labels, chances), rel=1e-5)
    assert figures["auc"] is None
    assert figures["confusion"]["classes"] == [0, 1, 2]
    np.testing.assert_array_equal(figures["confusion"]["counts"], right.confusion_matrix(labels, predictions))
    assert f"accuracy {figures['accuracy']:.4f}" in said
    assert f"macro F1 {figures['macro_f1']:.4f}\nlog loss {figures['log_loss']:.4f}\n" in said
    assert "AUC" not in said
    code, said = job("evaluate", "--model", path, "--data.path", rows, "--label", "three", "--output", output)
    assert (code, "metrics.json exists; set overwrite" in said) == (2, True)


def test_two_classes_have_an_area(spark, job, saved, rows, tmp_path):
    path, output = saved(nets.column, "classifier"), tmp_path / "metrics.json"
    code, said = job("evaluate", "--model", path, "--data.path", rows, "--label", "two", "--output", output)
    assert code == 0, said
    chances, _, found = outputs(spark, path, rows)
    labels = [row["two"] for row in found]
    figures = json.loads(output.read_text())
    assert figures["auc"] == pytest.approx(right.roc_auc_score(labels, chances[:, 1]), rel=1e-6)
    assert figures["log_loss"] == pytest.approx(right.log_loss(labels, chances), rel=1e-5)
    assert f"AUC {figures['auc']:.4f}" in said
    one = ["--data.query", f"select * from parquet.`{rows}` where two = 1"]
    code, said = job("evaluate", "--model", path, *one, "--label", "two")
    assert (code, "AUC" in said) == (0, False)


def test_numbers(spark, job, saved, rows, tmp_path):
    path, output = saved(nets.column, "regressor"), tmp_path / "metrics.json"
    code, said = job("evaluate", "--model", path, "--data.path", rows, "--label", "value", "--output", output)
    assert code == 0, said
    found = TorchModel.load(path).transform(spark.read.parquet(rows)).collect()
    labels, predictions = ([row[name] for row in found] for name in ("value", "prediction"))
    figures = json.loads(output.read_text())
    assert figures["rmse"] == pytest.approx(right.root_mean_squared_error(labels, predictions))
    assert figures["mae"] == pytest.approx(right.mean_absolute_error(labels, predictions))
    assert figures["r2"] == pytest.approx(right.r2_score(labels, predictions))
    code, said = job("predict", "--model", path, "--data.path", rows, "--label", "value")
    assert f"root mean squared error {figures['rmse']:.4g} (400 rows)" in said
    assert f"R2 {figures['r2']:.4f}" in said
    constant = ["--data.query", f"select features, 1 as label from parquet.`{rows}`"]
    code, said = job("evaluate", "--model", path, *constant)
    assert (code, "R2" in said) == (0, False)


def test_only_rows_with_a_label_count(job, saved, rows):
    path = saved(nets.scores, "classifier")
    some = f"select features, if(three = 0, null, three) as label from parquet.`{rows}`"
    code, said = job("evaluate", "--model", path, "--data.query", some)
    assert code == 0, said
    assert "of 400 rows" not in said
    none = f"select features, cast(null as int) as label from parquet.`{rows}`"
    code, said = job("evaluate", "--model", path, "--data.query", none)
    assert (code, "no row has a label in the column label" in said) == (2, True)
    text = f"select features, 'high' as label from parquet.`{rows}`"
    code, said = job("evaluate", "--model", path, "--data.query", text)
    assert (code, "label is of type string; expected numbers" in said) == (2, True)
    code, said = job("predict", "--model", path, "--data.path", rows, "--label", "nothing")
    assert (code, "label is 'nothing'; expected one of the columns features" in said) == (2, True)


def test_what_cannot_be_compared_is_refused(job, saved, rows):
    path = saved(nets.Autoencoder, "estimator")
    code, said = job("evaluate", "--model", path, "--data.path", rows, "--label", "value")
    assert (code, "prediction is the model's raw output" in said) == (2, True)


def test_a_label_beyond_the_models_classes_is_wrong_and_no_error(job, saved, rows, tmp_path):
    path = saved(nets.scores, "classifier")
    other = f"select features, 7 as label from parquet.`{rows}`"
    code, said = job("evaluate", "--model", path, "--data.query", other)
    assert code == 0, said
    assert "accuracy 0.0000 (0 of 400 rows)\nmacro F1 0.0000\nlog loss 34.5388" in said


def test_rows_of_every_format(spark, tmp_path):
    plain = spark.range(20).selectExpr("cast(id as double) / 4 as x", "cast(id % 3 as int) as label")
    expected = sorted(map(tuple, plain.collect()))
    schema = "x double, label int"
    for kind, given in {
        "parquet": {},
        "orc": {},
        "json": {"schema": schema},
        "csv": {"schema": schema, "options": {"header": True, "sep": ";"}},
    }.items():
        plain.write.format(kind).options(**given.get("options", {})).save(str(tmp_path / kind))
        found = Data(path=str(tmp_path / kind), format=kind, **given).read(spark)
        assert found.schema.simpleString() == "struct<x:double,label:int>", kind
        assert sorted(map(tuple, found.collect())) == expected
    plain.write.saveAsTable("rows_of_a_job")
    try:
        for given in ({"table": "default.rows_of_a_job"}, {"query": "select x, label from rows_of_a_job"}):
            assert sorted(map(tuple, Data(**given).read(spark).collect())) == expected
    finally:
        spark.sql("drop table rows_of_a_job")
