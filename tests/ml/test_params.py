"""The Params of estimators and models, as every other estimator of pyspark.ml has them."""

from __future__ import annotations

import inspect
from functools import partial

import pytest
import torch
from torch import nn

from sparkdl import AllReduce, TorchClassifier, TorchEstimator, TorchRegressor
from sparkdl.data.columns import InputColumn
from sparkdl.errors import InvalidInput
from sparkdl.io.weights import pack
from sparkdl.ml.estimator import DistributedEstimator
from sparkdl.ml.model import TorchModel
from tests.ml import nets

ESTIMATORS = (TorchEstimator, TorchClassifier, TorchRegressor)


class Diary:
    def on_epoch(self, run):
        """What happens then is no matter of Params."""


VALUES = {
    "model": nets.scores,
    "loss": nn.L1Loss(),
    "optimizer": partial(torch.optim.SGD, lr=0.5),
    "scheduler": partial(torch.optim.lr_scheduler.StepLR, step_size=3),
    "metrics": {"error": object()},
    "inputCols": ["a"],
    "featuresCol": "a",
    "columnSpecs": [InputColumn("a", "int64")],
    "collate": nets.mlp,
    "thresholds": [0.25, 0.75],
    "labelCol": "y",
    "weightCol": "w",
    "validationIndicatorCol": "held out",
    "idCol": "id",
    "predictionCol": "p",
    "rawPredictionCol": "raw",
    "probabilityCol": "chances",
    "numWorkers": 3,
    "batchSize": 64,
    "epochs": 5,
    "seed": 11,
    "strategy": AllReduce(bucket_bytes=1 << 20),
    "device": "cuda",
    "precision": "fp64",
    "maxGradNorm": 0.5,
    "microBatches": 4,
    "numClasses": 7,
    "patience": 2,
    "augment": nets.mlp,
    "hooks": [Diary()],
    "runDir": "/shared/runs/1",
    "resourceTimeout": 7.5,
    "allowUnencrypted": True,
    "checkpointInterval": "2 epochs",
    "maxRestarts": 5,
    "minWorkers": 2,
    "elasticTimeout": 9.5,
    "maxRounds": 40,
    "maxSeconds": 60.0,
    "telemetry": False,
    "logLevel": "info",
}
DEFAULTS = {
    "scheduler": None,
    "metrics": {},
    "inputCols": ["features"],
    "featuresCol": "features",
    "columnSpecs": [],
    "collate": None,
    "thresholds": None,
    "labelCol": "label",
    "weightCol": None,
    "validationIndicatorCol": None,
    "idCol": None,
    "predictionCol": "prediction",
    "rawPredictionCol": "rawPrediction",
    "probabilityCol": "probability",
    "numWorkers": 1,
    "batchSize": 256,
    "epochs": 1,
    "seed": 0,
    "strategy": AllReduce(),
    "device": "cpu",
    "precision": "fp32",
    "maxGradNorm": None,
    "microBatches": 1,
    "numClasses": None,
    "patience": None,
    "augment": None,
    "hooks": [],
    "runDir": None,
    "resourceTimeout": 120.0,
    "allowUnencrypted": False,
    "checkpointInterval": "auto",
    "maxRestarts": 3,
    "minWorkers": None,
    "elasticTimeout": 300.0,
    "maxRounds": None,
    "maxSeconds": None,
    "telemetry": True,
    "logLevel": "warning",
}

each_estimator = pytest.mark.parametrize("kind", ESTIMATORS)
each_param = pytest.mark.parametrize("name", VALUES)


def got(instance, name):
    return getattr(instance, f"get{name[0].upper()}{name[1:]}")()


def put(instance, name, value):
    return getattr(instance, f"set{name[0].upper()}{name[1:]}")(value)


def test_every_param_is_tested():
    assert {param.name for param in TorchEstimator().params} == set(VALUES)


@each_estimator
def test_every_param_is_an_argument(kind):
    estimator = kind(**VALUES)
    assert {name: got(estimator, name) for name in VALUES} == VALUES
    arguments = inspect.signature(kind).parameters.values()
    assert {argument.name for argument in arguments} == set(VALUES)
    assert {argument.kind for argument in arguments} == {inspect.Parameter.KEYWORD_ONLY}
    documented = inspect.getdoc(DistributedEstimator)
    assert [name for name in VALUES if f"\n    {name}: " not in documented] == []


@each_param
def test_a_setter_sets_and_returns_the_estimator(name):
    estimator = TorchEstimator()
    assert put(estimator, name, VALUES[name]) is estimator
    assert got(estimator, name) == VALUES[name]
    assert estimator.isSet(name)


@each_estimator
def test_defaults(kind):
    assert {name: got(kind(), name) for name in DEFAULTS} == DEFAULTS
    optimizer = kind().getOptimizer()([nn.Parameter(torch.zeros(1))])
    assert type(optimizer) is torch.optim.Adam
    assert optimizer.defaults["lr"] == 1e-3


def test_default_losses():
    assert isinstance(TorchClassifier().getLoss(), nn.CrossEntropyLoss)
    assert isinstance(TorchRegressor().getLoss(), nn.MSELoss)
    assert not TorchEstimator().isDefined("loss")


def test_none_means_not_given_but_for_the_label():
    estimator = TorchEstimator(**dict.fromkeys(VALUES))
    assert {name: got(estimator, name) for name in DEFAULTS} == DEFAULTS | {"labelCol": None}


@each_estimator
@pytest.mark.parametrize("given", [{}, VALUES], ids=["defaults", "set"])
def test_params_explain_themselves(kind, given):
    estimator = kind(**given)
    text = estimator.explainParams()
    for param in estimator.params:
        assert f"{param.name}: {param.doc}" in text
        assert len(param.doc) > 5
    assert "batchSize: rows of the GLOBAL batch (default: 256" in text


@each_estimator
def test_copies_are_independent(kind):
    estimator = kind(model=nets.scores, epochs=3, loss=nn.MSELoss())
    copied = estimator.copy({estimator.epochs: 9, estimator.seed: 4})
    assert (copied.getEpochs(), copied.getSeed(), copied.getModel()) == (9, 4, nets.scores)
    assert (estimator.getEpochs(), estimator.getSeed()) == (3, 0)
    assert copied.uid == estimator.uid
    copied.setBatchSize(8)
    assert estimator.getBatchSize() == 256
    assert type(copied) is kind


def test_estimators_are_told_apart():
    assert TorchClassifier().uid != TorchClassifier().uid
    assert TorchClassifier().uid.startswith("TorchClassifier_")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("numWorkers", 0, "numWorkers is 0; expected at least 1"),
        ("batchSize", -4, "batchSize is -4; expected at least 1"),
        ("epochs", 0, "epochs is 0; expected at least 1"),
        ("microBatches", 0, "microBatches is 0; expected at least 1"),
        ("resourceTimeout", -1, "resourceTimeout is -1; expected at least 0"),
        ("checkpointInterval", "2 days", "checkpointInterval is '2 days'; expected a number of steps"),
        ("checkpointInterval", 0, "checkpointInterval is 0; expected a number of steps"),
        ("maxRestarts", -1, "maxRestarts is -1; expected at least 0"),
        ("minWorkers", 0, "minWorkers is 0; expected at least 1"),
        ("elasticTimeout", -1, "elasticTimeout is -1; expected at least 0"),
        ("maxRounds", 0, "maxRounds is 0; expected at least 1"),
        ("maxSeconds", -1, "maxSeconds is -1; expected at least 0"),
        ("logLevel", "loud", "logLevel is 'loud'; expected one of debug, info, warning, error, off"),
        ("device", "tpu", "device is 'tpu'; expected one of cpu, cuda"),
        ("precision", "fp16", "precision is 'fp16'; expected one of fp32, bf16, fp64"),
        ("optimizer", "sgd", "optimizer is 'sgd'; expected a function"),
        ("strategy", "allreduce", r"strategy is 'allreduce'; expected how replicas agree, such as AllReduce\(\)"),
        ("strategy", AllReduce, r"strategy is <class .*AllReduce'>; expected how replicas agree"),
        ("scheduler", 0.9, "scheduler is 0.9; expected a function"),
        ("metrics", ["accuracy"], r"metrics is \['accuracy'\]; expected a dict of names and torchmetrics metrics"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_given(name, value, message):
    with pytest.raises(InvalidInput, match=message):
        TorchEstimator(**{name: value})
    with pytest.raises(InvalidInput, match=message):
        put(TorchEstimator(), name, value)
    estimator = TorchEstimator()
    with pytest.raises(InvalidInput, match=message):
        estimator.copy({estimator.getParam(name): value})


@pytest.mark.parametrize(
    ("name", "value"), [("epochs", "many"), ("inputCols", "features"), ("predictionCol", 3), ("batchSize", 2.5)]
)
def test_other_types_are_refused_as_pyspark_does(name, value):
    with pytest.raises(TypeError, match=f'Invalid param value given for param "{name}"'):
        TorchEstimator(**{name: value})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": None}, r"model is not set; expected it as TorchClassifier\(model="),
        ({"maxGradNorm": -1.0}, "maxGradNorm is -1.0; expected a number above 0"),
        ({"loss": nn.MSELoss(reduction="sum")}, "MSELoss has reduction='sum'; expected 'mean'"),
    ],
)
def test_what_fits_no_run_is_refused_before_there_is_one(given, message):
    with pytest.raises(InvalidInput, match=message):
        TorchClassifier(**{"model": nets.scores} | given).training()


def test_an_estimator_without_a_loss_asks_for_one():
    with pytest.raises(InvalidInput, match=r"loss is not set; expected it as TorchEstimator\(loss="):
        TorchEstimator(model=nets.scores).training()


def test_what_a_member_is_told():
    given = {name: value for name, value in VALUES.items() if name != "metrics"}
    training = TorchEstimator(**given).training()
    assert (training.batch_size, training.epochs, training.seed, training.micro_batches) == (64, 5, 11, 4)
    assert training.strategy is VALUES["strategy"]
    objective = training.objective
    assert (objective.model, objective.precision, objective.max_grad_norm) == (nets.scores, "fp64", 0.5)
    assert (objective.optimizer, objective.scheduler) == (VALUES["optimizer"], VALUES["scheduler"])


@pytest.mark.parametrize(
    ("estimator", "dtype"),
    [
        (TorchClassifier(), "int64"),
        (TorchClassifier(loss=nn.BCEWithLogitsLoss()), "float32"),
        (TorchClassifier(loss=nn.BCELoss(), precision="fp64"), "float64"),
        (TorchRegressor(), "float32"),
        (TorchRegressor(precision="fp64"), "float64"),
        (TorchEstimator(), None),
    ],
)
def test_labels_are_what_the_loss_takes(estimator, dtype):
    assert estimator.read_columns().target.dtype == dtype


def test_columns_by_what_they_are_for():
    columns = TorchRegressor(
        inputCols=["a", "b"], labelCol="y", weightCol="w", validationIndicatorCol="v", idCol="i", precision="fp64"
    ).read_columns()
    assert [column.name for column in columns.inputs] == ["a", "b"]
    named = {name: getattr(columns, name) for name in ("target", "weight", "validation", "row_id")}
    assert {name: (column.name, column.dtype) for name, column in named.items()} == {
        "target": ("y", "float64"),
        "weight": ("w", "float64"),
        "validation": ("v", "bool"),
        "row_id": ("i", "int64"),
    }
    assert columns.floating == "float64"
    assert TorchEstimator(labelCol=None).read_columns().target is None


def test_columns_say_more_of_inputs():
    tokens = InputColumn("b", "int64", ragged="offsets")
    for kind in ESTIMATORS:
        assert kind(inputCols=["a", "b"], columnSpecs=[tokens]).read_columns().inputs == (InputColumn("a"), tokens)


@pytest.mark.parametrize("said", [["y"], ["a", "a"], ["a", "nothing"]])
def test_columns_say_nothing_of_others(said):
    estimator = TorchRegressor(inputCols=["a", "b"], labelCol="y", columnSpecs=[InputColumn(name) for name in said])
    with pytest.raises(InvalidInput, match=r"columnSpecs describes .*; expected each column once, .* are 'a', 'b'"):
        estimator.read_columns()


def test_several_labels():
    estimator = TorchEstimator(labelCol=["a", "b"], precision="fp64")
    assert estimator.getLabelCol() == ["a", "b"]
    assert estimator.setLabelCol(("c", "d")).getLabelCol() == ["c", "d"]
    assert estimator.read_columns().target == (InputColumn("c", "float64"), InputColumn("d", "float64"))
    assert TorchClassifier(labelCol=["a", "b"]).read_columns().target == (
        InputColumn("a", "float32"),
        InputColumn("b", "float32"),
    )
    for one in (TorchRegressor(labelCol=["a", "b"]), TorchClassifier(labelCol=["a", "b"], loss=nn.BCELoss())):
        with pytest.raises(InvalidInput, match=r"labelCol is \['a', 'b'\]; expected one column.* TorchEstimator takes"):
            one.read_columns()
    for wrong in ([], ["a", "a"]):
        with pytest.raises(InvalidInput, match="expected the name of a column, or names that differ"):
            TorchEstimator(labelCol=wrong)
    with pytest.raises(TypeError, match='Invalid param value given for param "labelCol"'):
        TorchEstimator(labelCol=3)


def test_a_member_is_told_what_batches_go_through():
    training = TorchRegressor(model=nets.column, collate=nets.mlp, augment=nets.digits).training()
    assert (training.collate, training.augment) == (nets.mlp, nets.digits)


def test_the_params_of_a_model():
    model = TorchModel(factory=nets.scores, weights=pack(nets.scores()))
    names = {"inputCols", "featuresCol", "columnSpecs", "collate", "thresholds"}
    names |= {"predictionCol", "rawPredictionCol", "probabilityCol"}
    assert {param.name for param in model.params} == names
    assert {name: got(model, name) for name in names} == {name: DEFAULTS[name] for name in names}
    for name in names:
        assert put(model, name, VALUES[name]) is model
        assert got(model, name) == VALUES[name]
    assert "predictionCol" in model.explainParams()
    copied = model.copy({model.predictionCol: "other"})
    assert (copied.getPredictionCol(), model.getPredictionCol(), copied.uid) == ("other", "p", model.uid)
