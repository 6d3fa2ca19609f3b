"""What transform does beside predicting: what travels, what runs once, what an error says, whom it works with."""

from __future__ import annotations

import copy
import os
import re
import warnings
from dataclasses import dataclass
from types import SimpleNamespace

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
import torch
from pyspark.errors import PythonException
from pyspark.ml import PipelineModel
from pyspark.ml.evaluation import BinaryClassificationEvaluator, MulticlassClassificationEvaluator, RegressionEvaluator
from pyspark.sql import functions
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_type
from torch import nn

from sparkdl.data.columns import Columns, InputColumn
from sparkdl.errors import InvalidInput
from sparkdl.io.weights import pack
from sparkdl.ml.inference.broadcast import ModelBroadcast
from sparkdl.ml.inference.model_cache import CachedModel, ModelCache
from sparkdl.ml.inference.outputs import no_outputs, output_type, outputs
from sparkdl.ml.inference.scorer import Scorer, score
from sparkdl.ml.model import TorchModel
from tests.ml import nets
from tests.sessions import frame

X = np.random.default_rng(0).normal(size=(50, 3))


def made(factory=nets.Line, kind="regressor", **params):
    model = TorchModel(factory=factory, weights=pack(factory()), kind=kind)
    return model._set(**{"inputCols": ["x"]} | params)


def scorer(factory, kind="regressor", **others) -> Scorer:
    return Scorer(factory, pack(factory()), kind, "fp32", Columns((InputColumn("x"),)), **others)


def features(**others):
    return frame({"row": np.arange(len(X)), "x": X} | others)


def plan(data) -> str:
    return data._jdf.queryExecution().executedPlan().toString()


# ---- outputs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vectors", [True, False])
@pytest.mark.parametrize("floating", ["float32", "float64"])
@pytest.mark.parametrize(
    ("kind", "scalar", "shape"),
    [
        ("classifier", False, (4, 3)),
        ("classifier", True, (4, 1)),
        ("regressor", True, (4,)),
        ("estimator", True, (4,)),
        ("estimator", False, (4, 2, 2)),
    ],
)
def test_outputs_have_the_type_that_spark_was_told(kind, scalar, shape, floating, vectors):
    declared = output_type(kind, scalar=scalar, floating=floating, vectors=vectors)
    found = outputs(torch.zeros(shape, dtype=getattr(torch, floating)), kind, vectors=vectors)
    assert found.type == to_arrow_type(declared, timezone="UTC") == no_outputs(declared).type
    assert (len(found), len(no_outputs(declared))) == (4, 0)


def test_outputs_lie_where_the_model_wrote_them():
    raw = torch.arange(6, dtype=torch.float64)
    assert outputs(raw, "regressor").field("prediction").buffers()[1].address == raw.data_ptr()
    lists = outputs(raw.reshape(3, 2).float(), "estimator").field("prediction")
    assert lists.to_pylist() == [[0, 1], [2, 3], [4, 5]]


def predicted(probabilities, thresholds):
    raw = torch.tensor([probabilities]).log()
    return outputs(raw, "classifier", thresholds=thresholds).field("prediction")[0].as_py()


@pytest.mark.parametrize(
    ("thresholds", "expected"),
    [
        (None, 0),
        ([1.0, 1.0, 1.0], 0),
        ([0.9, 0.1, 0.5], 1),
        ([1.0, 1.0, 0.01], 2),
        ([1.0, 0.0, 1.0], 1),  # infinite
    ],
)
def test_thresholds_divide_probabilities(thresholds, expected):
    assert predicted([0.6, 0.3, 0.1], thresholds) == expected


def test_a_threshold_of_0_does_not_choose_a_class_without_probability():
    assert predicted([0.6, 0.4, 0.0], [1.0, 0.1, 0.0]) == 1


def test_one_score_has_two_thresholds():
    raw = torch.tensor([2.0])  # a probability of 0.88
    assert outputs(raw, "classifier", thresholds=[0.1, 0.95]).field("prediction").to_pylist() == [
        0 + 1.0 * (0.88 / 0.95 > 0.12 / 0.1)
    ]
    with pytest.raises(InvalidInput, match="thresholds has 3 numbers, but the model tells 2 classes apart"):
        outputs(raw, "classifier", thresholds=[1.0, 1.0, 1.0])


def test_nan_goes_through():
    rows = pa.array([[1.0, 2.0, 3.0], [float("nan"), 0.0, 0.0], [float("inf"), 1.0, 1.0]], pa.list_(pa.float32()))
    (found,) = scorer(nets.Line).scores([rows])
    assert np.isfinite(found.field("prediction")[0].as_py())
    assert np.isnan(found.field("prediction")[1].as_py())
    (found,) = scorer(nets.scores, "classifier", thresholds=(0.0, 1.0, 1.0)).scores([rows])
    assert found.field("prediction")[0].as_py() == 0
    assert np.isnan(found.field("prediction")[1].as_py())


def test_nulls_do_not():
    with pytest.raises(InvalidInput, match="column 'x' has 1 null"):
        list(scorer(nets.Line).scores([pa.array([[1.0, 2.0, 3.0], None])]))


# ---- pieces ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 3, 10, 100])
def test_pieces_make_a_whole(rows):
    loaded = CachedModel(nets.scores().eval(), rows=3)
    x = torch.randn(rows, 3)
    with torch.no_grad():
        torch.testing.assert_close(score(loaded, (x,)), nets.scores()(x))


def test_a_batch_without_rows_goes_through_no_model():
    (found,) = scorer(lambda: nets.mlp(5, outputs=1)).scores([pa.array([], pa.list_(pa.float32()))])
    assert len(found) == 0


class Pair(nn.Linear):
    """Two outputs."""

    def forward(self, x):
        return super().forward(x), x


class Mean(nn.Linear):
    """One number for all rows."""

    def forward(self, x):
        return super().forward(x).mean()


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (lambda: Pair(3, 1), "the model returned tuple; expected one tensor"),
        (lambda: Mean(3, 1), r"the model returned the shape \[\] for 2 rows; expected \[2, ...\]"),
    ],
)
def test_what_is_no_output_is_refused(factory, message):
    with pytest.raises(InvalidInput, match=message):
        list(scorer(factory).scores([pa.array([[1.0, 2.0, 3.0]] * 2)]))


class Inplace(nn.Linear):
    """Changes what it is given."""

    def forward(self, x):
        return super().forward(x.mul_(0))


def test_a_model_may_write_to_its_inputs():
    rows = pa.array([[1.0, 2.0, 3.0]] * 2, pa.list_(pa.float32()))
    list(scorer(lambda: Inplace(3, 1)).scores([rows]))
    assert rows.to_pylist() == [[1.0, 2.0, 3.0]] * 2


# ---- models that a worker holds --------------------------------------------------------------------------------------


def numbers(count: int) -> nn.Module:
    return nn.Linear(count, 1, bias=False)


def test_models_stay_while_there_is_room():
    shelf, loads = ModelCache(limit=400), []

    def get(name, count):
        return shelf.get(name, 4 * count, lambda: loads.append(name) or numbers(count))

    one = get("one", 40)
    get("two", 40)
    assert get("one", 40) is one
    assert loads == ["one", "two"]
    get("three", 40)  # "two" has been unused for longest
    assert ("one" in shelf, "two" in shelf, "three" in shelf) == (True, False, True)
    get("large", 1000)
    assert len(shelf) == 1
    get("one", 40)
    assert ("large" in shelf, len(shelf)) == (False, 1)


# ---- what travels ----------------------------------------------------------------------------------------------------


def test_the_model_is_broadcast_once_and_copies_share_it(spark):
    model = made()
    shipped = [each._shipment.ship(each._scorer(), spark) for each in (model, model, model.copy())]
    assert len({id(each.packed) for each in shipped}) == 1
    assert len({each.digest for each in shipped}) == 1
    assert len(cloudpickle.dumps(shipped[0].scorer)) < 2000
    other = made(nets.column)._shipment.ship(made(nets.column)._scorer(), spark)
    assert other.digest != shipped[0].digest


def test_without_a_context_the_model_travels_in_the_query():
    connect = SimpleNamespace()  # as far as shipping goes, a session of Spark Connect
    rows = pa.array(X.tolist(), pa.list_(pa.float32()))
    with pytest.warns(UserWarning, match="no SparkContext to broadcast with"):
        shipped = ModelBroadcast().ship(scorer(nets.Line), connect)
    (found,) = cloudpickle.loads(cloudpickle.dumps(shipped)).scores([rows])
    (expected,) = scorer(nets.Line).scores([rows])
    assert found.equals(expected)


@dataclass(frozen=True)
class Counted:
    """A factory that notes the process in which it makes a model.

    Attributes:
        path: of the file of notes.
    """

    path: str

    def __call__(self) -> nn.Module:
        with open(self.path, "a", encoding="utf-8") as notes:
            notes.write(f"{os.getpid()}\n")
        return nets.Line()


@pytest.mark.slow
def test_a_worker_makes_the_module_once_however_many_tasks_it_gets(spark, tmp_path, monkeypatch):
    # Workers of another environment are workers of their own: those that other tests have left take no part.
    monkeypatch.setitem(spark.sparkContext.environment, "SPARKDL_TEST", str(tmp_path))
    model = TorchModel(factory=Counted(str(tmp_path / "made")), weights=pack(nets.Line()), kind="regressor")
    model._set(inputCols=["x"])
    data = features().repartition(6, "row").cache()
    (tmp_path / "made").unlink(missing_ok=True)
    # A condition on the value: pyspark 4.0 answers whether there is one without the model.
    counts = [model.transform(data).where("prediction < 1e9").count() for _ in range(2)]
    assert counts == [len(X)] * 2
    pids = (tmp_path / "made").read_text(encoding="utf-8").split()
    assert len(pids) == len(set(pids)) <= 2  # 24 tasks, on two executors with a worker each


def test_a_copied_model_scores_the_same(spark):
    model = made()
    model.transform(features())
    again = copy.deepcopy(model)
    assert again.transform(features()).collect() == model.transform(features()).collect()


def test_transform_runs_nothing(spark):
    tracker = spark.sparkContext.statusTracker()
    spark.sparkContext.setJobGroup("lazy", "transform")
    try:
        made().transform(features()).createOrReplaceTempView("lazily")
        assert tracker.getJobIdsForGroup("lazy") == []
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)


@pytest.mark.slow
def test_two_models_in_one_plan_do_not_exchange_weights(spark):
    double = TorchModel(factory=nets.Moody, weights=pack(nets.Moody()), kind="regressor")
    module = nets.Moody()
    module.factor.data.fill_(3.0)
    triple = TorchModel(factory=nets.Moody, weights=pack(module), kind="regressor")
    both = PipelineModel([m.setInputCols(["x"]).setPredictionCol(n) for m, n in ((double, "one"), (triple, "three"))])
    for _ in range(2):
        rows = both.transform(features()).select("one", "three").collect()
        np.testing.assert_allclose(
            [row["three"] for row in rows], [3 * row["one"] for row in rows], rtol=1e-4, atol=1e-5
        )


# ---- plans -----------------------------------------------------------------------------------------------------------


def test_a_filter_on_another_column_is_pushed_below_the_model(spark, tmp_path):
    # A UDF that is said not to be deterministic would run once under a filter on the prediction, and not twice; but it
    # would keep every other filter above the model, and read and score all days for the sake of one.
    features(day=np.arange(50) % 5).write.parquet(str(tmp_path / "data"))
    scored = made().transform(spark.read.parquet(str(tmp_path / "data")))
    chosen = scored.where("prediction > 0 and day = 3")
    assert re.search(r"PushedFilters: \[IsNotNull\(day\), EqualTo\(day,3\)\]", plan(chosen))
    rows = scored.collect()
    assert len(chosen.collect()) == sum(row["prediction"] > 0 and row["day"] == 3 for row in rows) > 0


def test_vectors_that_nobody_reads_are_not_made(spark):
    found = made(nets.scores, "classifier").transform(features())
    assert "UDF(" in plan(found)
    assert "UDF(" not in plan(found.select("prediction"))
    only = made(nets.scores, "classifier", rawPredictionCol="", probabilityCol="").transform(features())
    assert only.columns == ["row", "x", "prediction"]
    assert only.schema["prediction"].dataType == T.DoubleType()
    rows = found.orderBy("row").select("prediction").collect()
    assert only.orderBy("row").select("prediction").collect() == rows


# ---- whom it works with ----------------------------------------------------------------------------------------------


def test_thresholds(spark):
    model = made(nets.scores, "classifier", thresholds=[1.0, 1.0, 1e-6])
    assert {row["prediction"] for row in model.transform(features()).collect()} == {2.0}
    extra = {model.thresholds: [1.0, 1.0]}
    with pytest.raises(PythonException, match="thresholds has 2 numbers, but the model tells 3 classes apart"):
        model.transform(features(), extra).collect()
    with pytest.warns(UserWarning, match="those of this regressor are ignored"):
        made(thresholds=[1.0, 1.0]).transform(features())
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        made().transform(features())


@pytest.mark.slow
def test_errors_of_the_data_reach_the_user(spark):
    ragged = spark.createDataFrame([([1.0, 2.0, 3.0],), ([1.0],)], "x array<double>").coalesce(1)
    with pytest.raises(PythonException, match="InvalidInput: column 'x' has arrays of several lengths, 3 and 1"):
        made().transform(ragged).collect()
    nulls = spark.createDataFrame([([1.0, None, 3.0],), (None,)], "x array<double>").coalesce(1)
    with pytest.raises(PythonException, match="InvalidInput: column 'x' has 1 null"):
        made().transform(nulls).collect()


@pytest.mark.slow
def test_evaluators(spark):
    target = X @ [1.0, -2.0, 0.5]
    data = features(label=(target > 0).astype(float), target=target)
    binary = made(nets.column, "classifier").transform(data)
    assert 0 <= BinaryClassificationEvaluator().evaluate(binary) <= 1
    many = made(nets.scores, "classifier").transform(data)
    assert 0 <= MulticlassClassificationEvaluator(metricName="accuracy").evaluate(many) <= 1
    assert MulticlassClassificationEvaluator(metricName="logLoss").evaluate(many) > 0
    assert RegressionEvaluator(labelCol="target").evaluate(made().transform(data)) > 0


def test_sql_over_a_view(spark):
    made(nets.scores, "classifier").transform(features()).createOrReplaceTempView("predictions")
    rows = spark.sql("select prediction, count(*) as n from predictions group by prediction").collect()
    assert sum(row["n"] for row in rows) == 50
    (best,) = spark.sql("select max(row) as r from predictions where prediction >= 0").collect()
    assert best["r"] == 49


def test_partitions_without_rows(spark):
    data = features().where("row = 7").repartition(4)
    assert len(made().transform(data).collect()) == 1
    assert made().transform(features().limit(0)).collect() == []
    assert made().transform(spark.createDataFrame([], "x array<float>")).collect() == []


@pytest.mark.parametrize(("factory", "kind"), [(nets.Line, "regressor"), (nets.scores, "classifier")])
def test_spark_without_arrow_udfs(spark, monkeypatch, factory, kind):
    expected = made(factory, kind).transform(features()).orderBy("row").collect()
    monkeypatch.delattr(functions, "arrow_udf", raising=False)
    assert made(factory, kind).transform(features()).orderBy("row").collect() == expected
