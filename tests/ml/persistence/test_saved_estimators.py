"""Estimators on disk: by name what names make again, pickled what they do not, and both in pipelines elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
import torchmetrics
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.feature import VectorAssembler
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR, StepLR

from sparkdl import AllReduce, TorchClassifier, TorchEstimator, TorchModel, TorchRegressor
from sparkdl.data.columns import InputColumn
from sparkdl.errors import InvalidInput
from sparkdl.ml.persistence.param_values import NotDescribable, describe, kinds_of, resolve, same
from tests.ml import nets
from tests.sessions import ROOT, frame


def by_row(output, target):
    """A loss of a module."""
    return functional.mse_loss(output, target, reduction="none")


@dataclass(frozen=True)
class Doubling:
    """An augmentation with a setting."""

    factor: float = 2.0
    only: tuple[int, ...] = (0,)

    def __call__(self, inputs, target, generator):
        return inputs, target


class Hook:
    """A hook that keeps things."""

    every_rank = True

    def __init__(self, seen):
        self.seen = seen


class Odd(nn.MSELoss):
    """Not what the constructor's arguments say."""

    def __init__(self, scale=1.0):
        super().__init__()
        self.scale = scale * 2


def travelled(value, name):
    kinds = kinds_of(name)
    return resolve(json.loads(json.dumps(describe(value, kinds))), kinds)


# ---- values by name --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", nets.Line),
        ("model", nets.digits),
        ("model", partial(nets.mlp, 3, 4, outputs=1)),
        ("loss", nn.CrossEntropyLoss(weight=torch.tensor([1.0, 0.1]), label_smoothing=0.1, ignore_index=3)),
        ("loss", nn.BCEWithLogitsLoss(pos_weight=torch.tensor([2.0], dtype=torch.float64))),
        ("loss", nn.HuberLoss(delta=0.3)),
        ("loss", functional.cross_entropy),
        ("loss", partial(functional.cross_entropy, label_smoothing=0.2)),
        ("loss", by_row),
        ("optimizer", torch.optim.SGD),
        ("optimizer", partial(torch.optim.AdamW, lr=1e-2, betas=(0.8, 0.9))),
        ("scheduler", partial(StepLR, step_size=3)),
        ("metrics", {"accuracy": torchmetrics.classification.MulticlassAccuracy(3, average="macro", top_k=2)}),
        ("metrics", {"error": torchmetrics.MeanSquaredError(squared=False), "mean": torchmetrics.MeanMetric()}),
        ("strategy", AllReduce()),
        ("augment", Doubling(3.0, (1, 2))),
        ("hooks", [Doubling(), Doubling(1.0)]),
        ("columnSpecs", [InputColumn("a", "int64", (3, 4)), InputColumn("b")]),
    ],
)
def test_what_names_and_arguments_make_again(name, value):
    assert same(travelled(value, name), value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", nets.Line()),
        ("model", lambda: nets.mlp(3, outputs=1)),
        ("loss", Odd(3.0)),
        ("loss", lambda output, target: output - target),
        ("optimizer", partial(torch.optim.SGD, lr=torch.tensor(1.0, requires_grad=True))),
        ("scheduler", partial(LambdaLR, lr_lambda=lambda step: 0.9)),
        ("hooks", [Hook([])]),
        ("augment", Hook(1)),
        ("collate", torch.stack),
        ("optimizer", nets.Line),
        ("loss", nn.CrossEntropyLoss(weight=torch.ones(5000))),
    ],
)
def test_what_they_do_not(name, value):
    with pytest.raises(NotDescribable):
        describe(value, kinds_of(name))


def test_a_metric_that_has_counted_is_not_made_again():
    counted = torchmetrics.MeanMetric()
    counted.update(1.0)
    with pytest.raises(NotDescribable):
        describe({"mean": counted}, kinds_of("metrics"))


@pytest.mark.parametrize(
    ("name", "forged"),
    [
        ("optimizer", {"name": "os:system"}),
        ("optimizer", {"partial": "os:system", "args": [{"value": "true"}], "kwargs": {}}),
        ("optimizer", {"name": "sparkdl.cluster.worker_process:subprocess.Popen"}),
        ("optimizer", {"name": "torch.nn:Linear"}),
        ("optimizer", {"name": "torch.hub:load"}),
        ("model", {"partial": "torch:load", "args": [{"value": "x.pkl"}], "kwargs": {}}),
        ("strategy", {"make": "subprocess:Popen", "kwargs": {"args": {"value": ["true"]}}}),
        ("strategy", {"make": "tests.ml.nets:Line", "kwargs": {}}),
        ("model", {"make": "tests.ml.nets:Line", "kwargs": {}}),
        ("loss", {"name": "tests.ml.nets:Line.__init__.__globals__"}),
        ("loss", {"name": "no.such:thing"}),
        ("loss", {"strange": 1}),
        ("loss", "text"),
    ],
)
def test_forged_names_are_refused(name, forged):
    with pytest.raises(InvalidInput, match="a saved Param"):
        resolve(forged, kinds_of(name))


# ---- estimators ------------------------------------------------------------------------------------------------------


def full():
    return TorchClassifier(
        model=partial(nets.mlp, 3, outputs=2),
        loss=nn.CrossEntropyLoss(weight=torch.tensor([1.0, 0.5])),
        optimizer=partial(torch.optim.SGD, lr=0.1),
        scheduler=partial(StepLR, step_size=3),
        metrics={"accuracy": torchmetrics.classification.BinaryAccuracy()},
        columnSpecs=[InputColumn("features", "float32", (3,))],
        thresholds=[0.5, 0.5],
        labelCol="y",
        batchSize=4,
        epochs=2,
        augment=Doubling(),
        hooks=[Doubling(1.0)],
    )


def values(estimator):
    return {param.name: estimator.getOrDefault(param) for param in estimator.params if estimator.isDefined(param)}


@pytest.mark.parametrize("make", [full, TorchRegressor, partial(TorchEstimator, model=nets.Line, labelCol=None)])
def test_an_estimator_is_loaded_as_it_was(spark, tmp_path, make):
    estimator, path = make(), str(tmp_path / "estimator")
    estimator.save(path)
    loaded = type(estimator).load(path)
    assert type(loaded) is type(estimator)
    assert loaded.uid == estimator.uid
    assert same(values(loaded), values(estimator))
    assert [loaded.isSet(param.name) for param in loaded.params] == [
        estimator.isSet(param.name) for param in estimator.params
    ]
    assert {entry.name for entry in (tmp_path / "estimator").iterdir()} == {"metadata"}
    with pytest.raises(InvalidInput, match="exists; use write"):
        loaded.save(path)
    loaded.copy({loaded.epochs: 9}).write().overwrite().save(path)
    assert type(estimator).load(path).getEpochs() == 9
    assert loaded.getEpochs() == estimator.getEpochs()


def test_what_has_no_name_is_pickled_and_needs_trust(spark, tmp_path):
    path = str(tmp_path / "estimator")
    estimator = TorchRegressor(model=nets.Line(), hooks=[Hook([1, 2])], batchSize=4)
    estimator.save(path)
    with pytest.raises(InvalidInput, match=r"\['hooks', 'model'\].*trust=True.*spark.sparkdl.trust"):
        TorchRegressor.load(path)
    loaded = TorchRegressor.load(path, trust=True)
    assert loaded.getHooks()[0].seen == [1, 2]
    assert same(loaded.getModel().state_dict(), estimator.getModel().state_dict())
    (tmp_path / "estimator/objects.pkl").unlink()
    with pytest.raises(InvalidInput, match=r"is damaged: objects.pkl cannot be read"):
        TorchRegressor.load(path, trust=True)


def test_what_is_something_else_is_not_loaded(spark, tmp_path):
    TorchRegressor().save(str(tmp_path / "regressor"))
    with pytest.raises(InvalidInput, match=r"holds a sparkdl.ml.estimator.TorchRegressor; expected a sparkdl Torch"):
        TorchClassifier.load(str(tmp_path / "regressor"))
    with pytest.raises(InvalidInput, match="expected a sparkdl TorchModel"):
        TorchModel.load(str(tmp_path / "regressor"))
    with pytest.raises(InvalidInput, match="cannot be loaded as a TorchRegressor"):
        TorchRegressor.load(str(tmp_path / "gone"))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text[: len(text) // 2], "cannot be loaded as a TorchRegressor"),
        (lambda text: text.replace('"format":', '"format":9'), "written by a newer sparkdl"),
        (lambda text: text.replace("sparkdl.ml.estimator", "pyspark.ml.feature"), "holds a pyspark.ml.feature"),
    ],
    ids=["truncated", "newer", "foreign"],
)
def test_a_damaged_newer_or_foreign_estimator_is_refused(spark, tmp_path, change, says):
    TorchRegressor(model=nets.Line).write().save(str(tmp_path / "saved"))
    (metadata,) = (tmp_path / "saved" / "metadata").glob("part-*")
    (tmp_path / "saved" / "metadata" / f".{metadata.name}.crc").unlink()  # Spark would see that something has changed
    text = metadata.read_text()
    assert change(text) != text
    metadata.write_text(change(text))
    with pytest.raises(InvalidInput, match=says):
        TorchRegressor.load(str(tmp_path / "saved"))


def rows():
    random = np.random.default_rng(2)
    return frame({name: random.normal(size=12) for name in "abc"} | {"label": random.normal(size=12)})


@pytest.mark.slow
def test_a_pipeline_is_loaded_and_fits_the_same(spark, tmp_path):
    stages = [
        VectorAssembler(inputCols=["a", "b", "c"], outputCol="features"),
        TorchRegressor(model=nets.Line, batchSize=4, idCol=None),
    ]
    pipeline = Pipeline(stages=stages)
    pipeline.save(str(tmp_path / "pipeline"))
    loaded = Pipeline.load(str(tmp_path / "pipeline"))
    assert [stage.uid for stage in loaded.getStages()] == [stage.uid for stage in stages]
    data = rows()
    first, second = (one.fit(data).transform(data).select("prediction").collect() for one in (pipeline, loaded))
    assert first == second


SCRIPT = """
import sys
from pyspark.ml import Pipeline
from torch import nn
from sparkdl import TorchRegressor
from tests.ml.persistence.test_saved_estimators import rows
from tests.sessions import session
from pyspark.ml.feature import VectorAssembler

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)
    def forward(self, x):
        return self.layer(x)

if __name__ == "__main__":
    folder = sys.argv[1]
    with session(folder + "/spark", "local[1]") as spark:
        stages = [VectorAssembler(inputCols=["a", "b", "c"], outputCol="features"),
                  TorchRegressor(model=Net, batchSize=4)]
        pipeline = Pipeline(stages=stages)
        fitted = pipeline.fit(rows())
        pipeline.save(folder + "/pipeline")
        fitted.save(folder + "/fitted")
        fitted.transform(rows()).select("prediction").coalesce(1).write.json(folder + "/predictions")
"""


@pytest.mark.slow
@pytest.mark.timeout(330)
def test_a_model_of_main_travels_to_another_process(spark, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "spark").mkdir()
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    data = rows()
    loaded = PipelineModel.load(str(tmp_path / "fitted"))
    found = [row["prediction"] for row in loaded.transform(data).collect()]
    said = [row["prediction"] for row in spark.read.json(str(tmp_path / "predictions")).collect()]
    np.testing.assert_allclose(sorted(found), sorted(said), rtol=1e-6)
    with pytest.raises(InvalidInput, match=r"pickled parts.*\['model'\]"):
        Pipeline.load(str(tmp_path / "pipeline"))
    spark.conf.set("spark.sparkdl.trust", "true")
    try:
        again = Pipeline.load(str(tmp_path / "pipeline"))
    finally:
        spark.conf.unset("spark.sparkdl.trust")
    assert len(again.fit(data).transform(data).collect()) == 12
