"""The commands that read rows and evaluate a saved model; scikit-learn has the right answers."""

import json

import numpy as np
import pytest
import torch
from sklearn import metrics as right

from sparkdl import TorchModel
from sparkdl.cli.data import Data
from sparkdl.io.weights import pack
from tests.ml import nets
from tests.sessions import frame
from tests.training.test_digits import words

ROWS = 400


@pytest.fixture(scope="module")
def rows(spark, tmp_path_factory):
    random = np.random.default_rng(1)
    x = random.normal(size=(ROWS, 3))
    scores = nets.scores()(torch.from_numpy(x).float()).detach().numpy()
    noisy = random.random(ROWS) < 0.3
    arrays = {
        "features": x,
        "three": np.where(noisy, random.integers(0, 3, ROWS), scores.argmax(1)),
        "two": (x.sum(1) + random.normal(size=ROWS) > 0).astype(float),
        "value": np.sin(x).sum(1),
    }
    folder = str(tmp_path_factory.mktemp("rows") / "rows")
    frame(arrays).write.parquet(folder)
    return folder


@pytest.fixture
def saved(tmp_path):
    """The path of a saved model that is fitted to nothing."""

    def saved(factory, kind):
        model = TorchModel(factory=factory, weights=pack(factory()), kind=kind)
        model.write().overwrite().save(str(tmp_path / "model"))
        return str(tmp_path / "model")

    return saved


@pytest.fixture
def evaluate(spark, job, saved, rows, tmp_path):
    """Evaluate a new model: its metrics, the scored rows and what was printed."""

    def evaluate(factory, kind, label):
        path, output = saved(factory, kind), tmp_path / "out" / "metrics.json"
        options = {"data.path": rows, "label": label, "output": output, "overwrite": "true"}
        code, printed = job("evaluate", *words(model=path, **options))
        assert code == 0, printed
        return json.loads(output.read_text()), TorchModel.load(path).transform(spark.read.parquet(rows)), printed

    return evaluate


def column(rows, name):
    return np.array([row[name] for row in rows.select(name).collect()])


def test_classes(job, evaluate, rows, tmp_path):
    figures, result, printed = evaluate(nets.scores, "classifier", "three")
    labels, predictions = column(result, "three"), column(result, "prediction")
    assert (figures["rows"], figures["auc"], figures["confusion"]["classes"]) == (ROWS, None, [0, 1, 2])
    assert figures["macro_f1"] == pytest.approx(right.f1_score(labels, predictions, average="macro"))
    np.testing.assert_array_equal(figures["confusion"]["counts"], right.confusion_matrix(labels, predictions))
    assert f"accuracy {right.accuracy_score(labels, predictions):.4f}" in printed
    assert f"macro F1 {figures['macro_f1']:.4f}\nlog loss {figures['log_loss']:.4f}\n" in printed
    assert "AUC" not in printed
    model, output = tmp_path / "model", tmp_path / "out" / "metrics.json"
    code, printed = job("evaluate", "--model", model, "--data.path", rows, "--label", "three", "--output", output)
    assert (code, "metrics.json exists; set overwrite" in printed) == (2, True)
    figures, _, printed = evaluate(nets.column, "classifier", "two")
    assert f"AUC {figures['auc']:.4f}" in printed
    one = ["--data.query", f"select * from parquet.`{rows}` where two = 1"]
    code, printed = job("evaluate", "--model", model, *one, "--label", "two")
    assert (code, "AUC" in printed) == (0, False)


def test_labels_of_an_array_column(job, tmp_path, rows):
    """Of a multi-label classifier, and of tokens; the label is by default the model's own."""
    path, output = str(tmp_path / "model"), tmp_path / "metrics.json"
    model = TorchModel(factory=nets.scores, weights=pack(nets.scores()), kind="multilabel", output=[3])
    query = f"select *, 1 as one, array(two, two, 1 - two) as flags from parquet.`{rows}`"
    for label, expected in ((["two", "one"], 2), ("flags", 0)):
        model._set(labelCol=label).write().overwrite().save(path)
        code, printed = job("evaluate", "--model", path, "--data.query", query, "--output", output)
        assert (code, "not as many as predictions" in printed) == (expected, expected == 2), printed
    figures = json.loads(output.read_text())
    assert (figures["label"], 0 < figures["subset_accuracy"] < 1) == ("flags", True)


def test_numbers(job, evaluate, rows, tmp_path):
    figures, result, _ = evaluate(nets.column, "regressor", "value")
    labels, predictions = column(result, "value"), column(result, "prediction")
    assert figures["rmse"] == pytest.approx(right.root_mean_squared_error(labels, predictions))
    assert figures["mae"] == pytest.approx(right.mean_absolute_error(labels, predictions))
    assert figures["r2"] == pytest.approx(right.r2_score(labels, predictions))
    model = ["--model", tmp_path / "model"]
    code, printed = job("predict", *model, "--data.path", rows, "--label", "value")
    assert f"root mean squared error {figures['rmse']:.4g} (400 rows)" in printed
    assert f"R2 {figures['r2']:.4f}" in printed
    code, printed = job("evaluate", *model, "--data.query", f"select features, 1 as label from parquet.`{rows}`")
    assert (code, "R2" in printed) == (0, False)


def test_labels(job, saved, rows):
    """Rows without a label are left out; a class that the model lacks counts as wrong; other labels raise."""
    model = ["--model", saved(nets.scores, "classifier")]
    code, printed = job("predict", *model, "--data.path", rows, "--label", "nothing")
    assert (code, "there is no label column 'nothing'; the rows have 'features'" in printed) == (2, True)
    for label, expected, text in (
        ("if(three = 0, null, three)", 0, "accuracy"),
        ("cast(null as int)", 2, "no row has a label in the column label"),
        ("'high'", 2, "label is of type string; expected numbers"),
        ("7", 0, "accuracy 0.0000 (0 of 400 rows)\nmacro F1 0.0000\nlog loss 34.5388"),
    ):
        query = f"select features, {label} as label from parquet.`{rows}`"
        code, printed = job("evaluate", *model, "--data.query", query)
        assert (code, text in printed) == (expected, True), printed
        assert label == "7" or "of 400 rows" not in printed


def test_rows_of_every_format_table_and_query(spark, tmp_path):
    plain = spark.range(20).selectExpr("cast(id as double) / 4 as x", "cast(id % 3 as int) as label")
    expected = sorted(map(tuple, plain.collect()))
    schema = "x double, label int"
    csv = {"schema": schema, "options": {"header": True, "sep": ";"}}
    for kind, arguments in {"parquet": {}, "csv": csv}.items():
        plain.write.format(kind).options(**arguments.get("options", {})).save(str(tmp_path / kind))
        result = Data(path=str(tmp_path / kind), format=kind, **arguments).read(spark)
        assert result.schema.simpleString() == "struct<x:double,label:int>", kind
        assert sorted(map(tuple, result.collect())) == expected
    plain.write.saveAsTable("rows_of_a_job")
    try:
        for source in ({"table": "default.rows_of_a_job"}, {"query": "select x, label from rows_of_a_job"}):
            assert sorted(map(tuple, Data(**source).read(spark).collect())) == expected
    finally:
        spark.sql("drop table rows_of_a_job")
