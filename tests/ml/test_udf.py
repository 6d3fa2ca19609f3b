"""Sizes of batches, outputs, cached and broadcast models, and the plans of queries."""

from __future__ import annotations

import copy
import os
import re
import warnings
from dataclasses import dataclass
from functools import partial

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
import torch
from pyspark.errors import PythonException
from pyspark.sql import functions
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from torch import nn

from sparkdl import Columns, InputColumn, InvalidInput, TorchModel
from sparkdl.io.weights import pack
from sparkdl.ml.broadcast import ModelBroadcast
from sparkdl.serving.batch_size import BUDGET, batch_rows, batches
from sparkdl.serving.model_cache import CachedModel, ModelCache
from sparkdl.serving.outputs import Outputs
from sparkdl.serving.scorer import Scorer, score
from tests.connect.fakes import remote
from tests.ml import nets
from tests.sessions import frame

X = np.random.default_rng(0).normal(size=(50, 3))


def made(factory=nets.Line, kind="regressor", **params):
    model = TorchModel(factory=factory, weights=pack(factory()), kind=kind)
    return model._set(**{"inputCols": ["x"]} | params)


def scorer(factory, kind="regressor", **others) -> Scorer:
    return Scorer(factory, pack(factory()), Outputs(kind, **others), "fp32", Columns((InputColumn("x"),)))


def features(**others):
    return frame({"row": np.arange(len(X)), "x": X} | others)


def plan(data) -> str:
    return data._jdf.queryExecution().executedPlan().toString()


def floats(*rows) -> pa.Array:
    return pa.array(rows, pa.list_(pa.float32()))


# ---- sizes of batches ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "most", "sizes"), [(1100, 1000, [550, 550]), (7, 3, [3, 2, 2]), (0, 512, []), (3, 1, [1, 1, 1])]
)
def test_batches_are_few_and_equal(rows, most, sizes):
    pieces = list(batches(rows, most))
    assert [piece.start for piece in pieces] == [0, *(piece.stop for piece in pieces)][:-1]
    assert [piece.stop - piece.start for piece in pieces] == sizes


def test_largest_tensor_bounds_the_rows():
    wide = nn.Sequential(nn.Linear(1, 1000), nn.ReLU(), nn.Linear(1000, 1))
    narrow, x = nn.Linear(1, 1), torch.zeros(100, 1)
    assert batch_rows(lambda rows: wide(x[rows]), (x,), budget=400_000) == 100
    assert batch_rows(lambda rows: narrow(x[rows]), (x,), budget=400) == 100
    assert batch_rows(lambda rows: x[rows] + 1, (x,), budget=1) == 1


def test_model_is_measured_once():
    sizes = []

    class Wide(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            sizes.append(len(x))
            return x.expand(len(x), 1 << 16).sum(1)  # 256 KiB a row

    loaded, x = CachedModel(Wide()), torch.arange(70.0).unsqueeze(1)
    for _ in range(2):
        assert torch.equal(score(loaded, (x,)), torch.arange(70.0) * (1 << 16))
    assert loaded.rows == BUDGET // (1 << 18) == 32
    assert sizes == [8, 24, 23, 23, 24, 23, 23]


def test_a_model_that_changes_its_inputs_sees_each_row_once_and_unchanged():
    class Doubles(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mul_(2).sum(1)

    x = np.arange(60.0, dtype=np.float32).reshape(20, 3)
    expected = 2 * x.sum(1)
    np.testing.assert_array_equal(score(CachedModel(Doubles()), (x,)), expected)
    np.testing.assert_array_equal(x, np.arange(60.0).reshape(20, 3))


# ---- outputs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vectors", [True, False])
@pytest.mark.parametrize("floating", ["float32", "float64"])
@pytest.mark.parametrize(
    ("kind", "scalar", "shape"),
    [
        *(("classifier", True, (4, 1)), ("multilabel", True, (4, 1)), ("multilabel", False, (4, 3))),
        *(("classifier", False, shape) for shape in ((4, 3), (4, 3, 2), (4, 3, 2, 5))),
        *(("regressor", True, (4,)), ("estimator", True, (4,)), ("estimator", True, (4, 1))),
        ("estimator", False, (4, 2, 2)),
    ],
)
def test_outputs_have_the_type_of_the_udf(kind, scalar, shape, floating, vectors):
    dims = len(shape) - 2 if kind == "classifier" else 0
    outputs = Outputs(kind, scalar=scalar, vectors=vectors, dims=dims)
    arrays, empty = outputs.arrays(torch.zeros(shape, dtype=getattr(torch, floating))), outputs.none(floating)
    assert arrays.type == to_arrow_type(from_arrow_type(outputs.type(floating))) == empty.type == outputs.type(floating)
    assert (len(arrays), len(empty)) == (4, 0)


def test_outputs_share_the_memory_of_the_tensor():
    raw = torch.arange(6, dtype=torch.float64)
    assert Outputs("regressor").arrays(raw).field("prediction").buffers()[1].address == raw.data_ptr()
    lists = Outputs("estimator").arrays(raw.reshape(3, 2).float()).field("prediction")
    assert lists.to_pylist() == [[0, 1], [2, 3], [4, 5]]


THREE = np.log([[0.6, 0.3, 0.1]])
TOKENS = [[[0.0, 2.0, np.nan], [1.0, 0.0, 0.0]]]  # [1, classes, tokens]
LABELS = [[0.0, 0.1, -0.1, np.nan]]


@pytest.mark.parametrize(
    ("kind", "scores", "thresholds", "expected"),
    [
        ("classifier", THREE, None, 0),
        ("classifier", THREE, (1.0, 1.0, 1.0), 0),
        ("classifier", THREE, (0.9, 0.1, 0.5), 1),
        ("classifier", THREE, (1.0, 1.0, 0.01), 2),
        ("classifier", THREE, (1.0, 0.0, 1.0), 1),  # infinite
        ("classifier", [[np.log(0.6), np.log(0.4), -np.inf]], (1.0, 0.1, 0.0), 1),  # 0 / 0 never wins
        ("classifier", [[np.nan, 0.0, 0.0]], (0.0, 1.0, 1.0), np.nan),
        ("classifier", [2.0], (0.1, 0.95), 0),  # a probability of 0.88, and 0.88 / 0.95 < 0.12 / 0.1
        ("classifier", TOKENS, None, [1, 0, np.nan]),
        ("classifier", TOKENS, (0.1, 0.9), [0, 0, np.nan]),
        ("multilabel", LABELS, None, [0, 1, 0, np.nan]),
        ("multilabel", LABELS, (0.4, 0.6, 0.4, 0.0), [1, 0, 1, np.nan]),
    ],
)
def test_thresholds_divide_probabilities_of_classes_and_bound_those_of_labels(kind, scores, thresholds, expected):
    raw = torch.tensor(np.array(scores))
    arrays = Outputs(kind, thresholds, dims=max(raw.dim() - 2, 0)).arrays(raw)
    np.testing.assert_array_equal(arrays.field("prediction").to_pylist(), [expected])
    if raw.dim() > 1:
        chances = raw.sigmoid() if kind == "multilabel" else raw.softmax(1)
        np.testing.assert_allclose(arrays.field("raw").to_pylist(), raw.movedim(1, -1))
        np.testing.assert_allclose(arrays.field("probability").to_pylist(), chances.movedim(1, -1))
    with pytest.raises(InvalidInput, match=r"thresholds has 1 numbers, .* [234] (classes|labels)"):
        Outputs(kind, (1.0,), dims=max(raw.dim() - 2, 0)).arrays(raw)


class Pair(nn.Linear):
    def forward(self, x):
        return super().forward(x), x


class Mean(nn.Linear):
    def forward(self, x):
        return super().forward(x).mean()


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (lambda: Pair(3, 1), "the model returned tuple; expected one tensor"),
        (lambda: Mean(3, 1), r"the model returned the shape \[\] for 2 rows; expected \[2, ...\]"),
        (partial(nets.mlp, 3, outputs=2), r"returned \[2, 2\] .* returns numbers \[B\] or \[B, 1\]"),
    ],
)
def test_invalid_outputs_raise(factory, message):
    with pytest.raises(InvalidInput, match=message):
        list(scorer(factory).scores([floats(*[[1.0, 2.0, 3.0]] * 2)]))


# ---- cached and broadcast models -------------------------------------------------------------------------------------


def test_cache_evicts_the_least_recently_used():
    cache, loads = ModelCache(limit=400), []

    def load(name, count):
        loads.append(name)
        return CachedModel(nn.Linear(count, 1, bias=False))

    for name in ("one", "two", "one", "three", "one", "two", "large", "one", "large"):
        count = 1000 if name == "large" else 40
        cache.get(name, 4 * count, partial(load, name, count))
    assert loads == ["one", "two", "three", "two", "large", "one", "large"]


def test_copies_share_one_broadcast(spark):
    model = made()
    shipped = [copied._shipment.ship(copied._scorer(), spark) for copied in (model, model, model.copy())]
    assert len({id(scorer.packed) for scorer in shipped}) == len({scorer.digest for scorer in shipped}) == 1
    assert len(cloudpickle.dumps(shipped[0].scorer)) < 2000
    other = made(nets.column)._shipment.ship(made(nets.column)._scorer(), spark)
    assert other.digest != shipped[0].digest
    assert copy.deepcopy(model).transform(features()).collect() == model.transform(features()).collect()


def test_over_connect_the_query_carries_the_model():
    for factory in (nets.Line, nets.Moody):  # the cache of this process has both
        shipped = ModelBroadcast().ship(scorer(factory), remote())
        (result,) = cloudpickle.loads(cloudpickle.dumps(shipped)).scores([floats(*X.tolist())])
        (expected,) = scorer(factory).scores([floats(*X.tolist())])
        assert result.equals(expected)


@dataclass(frozen=True)
class Counted:
    """A factory that notes the process in which it makes a model."""

    path: str

    def __call__(self) -> nn.Module:
        with open(self.path, "a", encoding="utf-8") as notes:
            notes.write(f"{os.getpid()}\n")
        return nets.Line()


@pytest.mark.slow
def test_worker_makes_the_module_once_for_all_tasks(spark, tmp_path, monkeypatch):
    # Another environment has its own workers: those of other tests take no part.
    monkeypatch.setitem(spark.sparkContext.environment, "SPARKDL_TEST", str(tmp_path))
    model = made(Counted(str(tmp_path / "made")))
    data = features().repartition(6, "row").cache()
    (tmp_path / "made").unlink(missing_ok=True)
    # The condition needs the value: pyspark 4.0 decides about null without the model.
    counts = [model.transform(data).where("prediction < 1e9").count() for _ in range(2)]
    assert counts == [len(X)] * 2
    pids = (tmp_path / "made").read_text(encoding="utf-8").split()
    assert len(pids) == len(set(pids)) <= 2  # 24 tasks


# ---- plans -----------------------------------------------------------------------------------------------------------


def test_transform_starts_no_job(spark):
    tracker = spark.sparkContext.statusTracker()
    spark.sparkContext.setJobGroup("lazy", "transform")
    try:
        made(nets.scores, "classifier").transform(features())
        assert tracker.getJobIdsForGroup("lazy") == []
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)


def test_filters_on_other_columns_are_pushed_below_the_model(spark, tmp_path):
    # If the UDF were not deterministic, a filter on the prediction would run it once and not twice. But every other
    # filter would stay above the model, which would read and score all days for the sake of one.
    features(day=np.arange(50) % 5).write.parquet(str(tmp_path / "data"))
    scored = made().transform(spark.read.parquet(str(tmp_path / "data")))
    chosen = scored.where("prediction > 0 and day = 3")
    assert re.search(r"PushedFilters: \[IsNotNull\(day\), EqualTo\(day,3\)\]", plan(chosen))
    rows = scored.collect()
    assert len(chosen.collect()) == sum(row["prediction"] > 0 and row["day"] == 3 for row in rows) > 0


def test_unread_vectors_are_not_computed(spark):
    scored = made(nets.scores, "classifier").transform(features())
    assert "UDF(" in plan(scored)
    assert "UDF(" not in plan(scored.select("prediction"))
    only = made(nets.scores, "classifier", rawPredictionCol="", probabilityCol="").transform(features())
    assert only.columns == ["row", "x", "prediction"]
    assert only.schema["prediction"].dataType == T.DoubleType()
    rows = scored.orderBy("row").select("prediction").collect()
    assert only.orderBy("row").select("prediction").collect() == rows


def test_thresholds_of_a_regressor_warn(spark):
    with pytest.warns(UserWarning, match="thresholds .*regressor"):
        made(thresholds=[1.0, 1.0]).transform(features())
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        made().transform(features())


@pytest.mark.parametrize("arrow", [True, False])  # pyspark 4.0 has pandas UDFs only
def test_nulls_raise_and_nan_stays_with_every_udf(spark, monkeypatch, arrow):
    x = X.copy()
    x[7, 1] = np.nan
    model = made(nets.scores, "classifier")
    scored = [str(row) for row in model.transform(features(x=x)).orderBy("row").collect()]
    assert "nan" in scored[7].rpartition("]")[2]
    if not arrow:  # pandas shows null and NaN alike
        monkeypatch.delattr(functions, "arrow_udf", raising=False)
        assert [str(row) for row in model.transform(features(x=x)).orderBy("row").collect()] == scored
    nulls = [([1.0, None, 3.0], "array<double>"), (None, "array<double>"), (None, "double")]
    for value, kind in nulls[:1] if arrow else nulls:
        rows = spark.createDataFrame([(value,)], f"x {kind}").coalesce(1)
        with pytest.raises(PythonException, match="InvalidInput: column 'x' has 1 null"):
            made().transform(rows).collect()


def test_stream_of_files(spark, tmp_path):
    folder, out = str(tmp_path / "in"), str(tmp_path / "out")
    for rows in (slice(20), slice(20, 50)):
        frame({"row": np.arange(50)[rows], "x": X[rows]}).coalesce(1).write.mode("append").parquet(folder)
    model = made(nets.scores, "classifier")
    stream = spark.readStream.schema("row long, x array<double>").option("maxFilesPerTrigger", 1).parquet(folder)
    scored = model.transform(stream).select("row", "prediction")
    assert scored.isStreaming
    writer = scored.writeStream.format("parquet").option("path", out).option("checkpointLocation", f"{out}s")
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(120), query.status
    assert query.exception() is None
    expected = model.transform(spark.read.parquet(folder)).select("row", "prediction").orderBy("row").collect()
    assert len(expected) == 50
    assert spark.read.parquet(out).orderBy("row").collect() == expected
