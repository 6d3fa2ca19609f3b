"""Params of estimators and models follow the conventions of pyspark.ml."""

from __future__ import annotations

import re
from copy import deepcopy
from dataclasses import make_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torchmetrics
from pyspark.ml.param import Params
from torch import nn

import sparkdl
from sparkdl import AllReduce, TorchClassifier, TorchEstimator, TorchModel, TorchRegressor
from sparkdl.data.columns import InputColumn
from sparkdl.data.transforms import AssembledInputs
from sparkdl.errors import InvalidInput
from sparkdl.io.weights import pack
from sparkdl.rounds.local_solvers import LocalSGDSolver
from sparkdl.serving.format.param_values import same
from sparkdl.training.objective.optimizers import optimizer_factory
from tests.ml import nets
from tests.ml.rows import Steps

# For each converter and each kind of value; all of them can be saved by name.
VALUES: dict[str, Any] = {
    "model": nets.scores,
    "loss": nn.L1Loss(),
    "modelArgs": {"outputs": 2},
    "assembleInputs": True,
    "optimizer": "sgd",
    "learningRate": 0.5,
    "optimizerArgs": {"momentum": 0.9},
    "scheduler": partial(torch.optim.lr_scheduler.StepLR, step_size=3),
    "metrics": {"error": torchmetrics.MeanSquaredError(squared=False)},
    "inputCols": ["a"],
    "columnSpecs": [InputColumn("a", "int64")],
    "collate": nets.mlp,
    "thresholds": [0.25, 0.75],
    "labelCol": "y",
    "validationFraction": 0.25,
    "classWeights": "balanced",
    "predictionCol": "p",
    "numWorkers": 3,
    "batchSize": 64,
    "epochs": 5,
    "seed": 11,
    "strategy": sparkdl.ConsensusADMM(prox=sparkdl.ElasticNet(1e-3, 0.5), solver=LocalSGDSolver(batch_size=4)),
    "device": "cuda",
    "precision": "fp64",
    "maxGradNorm": 0.5,
    "microBatches": 4,
    "numClasses": 7,
    "multiLabel": True,
    "monitorMode": "min",
    "augment": nets.digits,
    "callbacks": [Steps("steps")],
    "trackers": [sparkdl.TensorBoard("curves")],
    "runDir": "/shared/runs/1",
    "taskGpus": 0.5,
    "checkpointInterval": "2 epochs",
    "maxRestarts": 5,
    "logLevel": "info",
}
DEFAULTS = {name: param.default for name, param in TorchEstimator.declared().items() if not param.required}
MODEL_PARAMS = {"device", "inputCols", "featuresCol", "labelCol", "columnSpecs", "assembleInputs", "collate"}
MODEL_PARAMS |= {"thresholds", "predictionCol", "rawPredictionCol", "probabilityCol"}


def value_of(instance: Any, name: str) -> Any:
    return getattr(instance, f"get{name[0].upper()}{name[1:]}")()


def put(instance: Any, name: str, value: Any) -> Any:
    return getattr(instance, f"set{name[0].upper()}{name[1:]}")(value)


def trained(**values: Any) -> TorchModel:
    model = TorchModel(factory=nets.scores, weights=pack(nets.scores()))
    for name, value in values.items():
        put(model, name, value)
    return model


ESTIMATORS = (TorchEstimator, TorchClassifier, TorchRegressor)
REQUIRED = {TorchEstimator: {"model", "loss"}, TorchClassifier: {"model"}, TorchRegressor: {"model"}, TorchModel: set()}
each_kind = pytest.mark.parametrize("make", [*ESTIMATORS, trained])


def values_of(make: Any) -> dict[str, Any]:
    return {name: value for name, value in VALUES.items() if make().hasParam(name)}


def state(instance: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The set values and the defaults, by name."""
    maps = instance._paramMap, instance._defaultParamMap
    return tuple({param.name: values[param] for param in instance.params if param in values} for values in maps)


@each_kind
def test_defaults(make):
    instance = make()
    assert {param.name for param in instance.params if not instance.hasDefault(param)} == REQUIRED[type(instance)]
    assert not any(instance.isSet(param) for param in instance.params)
    names = MODEL_PARAMS if make is trained else {*DEFAULTS}
    assert {param.name for param in instance.params} - {"model", "loss"} == names
    assert {name: value_of(instance, name) for name in names} == {name: DEFAULTS[name] for name in names}
    if make is not trained:
        optimizer = optimizer_factory(instance.getOptimizer(), None, {})([nn.Parameter(torch.zeros(1))])
        assert (type(optimizer), optimizer.defaults["lr"]) == (torch.optim.Adam, 1e-3)


@each_kind
def test_docs_and_explanations_are_short(make):
    instance = make(**values_of(make))
    for param, line in zip(instance.params, instance.explainParams().split("\n"), strict=True):
        assert re.fullmatch(r"[^\s.].{4,}[\w')\]]", param.doc), param.doc
        assert line.startswith(f"{param.name}: {param.doc} (")
        assert not re.search(r"0x[0-9a-f]{4,}|<function|<class|functools|torch\.|tests\.", line), line


def test_explanation():
    estimator = TorchRegressor(loss=nn.L1Loss())
    assert estimator.explainParam("loss").endswith(" (default: MSELoss(), current: L1Loss())")
    assert estimator.explainParam("optimizer").endswith(" (default: adam)")
    assert estimator.explainParam("batchSize") == "batchSize: rows of the GLOBAL batch (default: 256)"
    assert estimator.explainParam("model").endswith(" (undefined)")


@each_kind
def test_all_ways_to_set_a_param_agree(make):
    for name, value in values_of(make).items():
        by_setter, by_param = make(), make()
        assert put(by_setter, name, value) is by_setter
        by_param.set(by_param.getParam(name), value)
        for instance in (by_setter, by_param, by_setter.copy(), make(**{name: value})):
            assert instance.isSet(name)
            assert value_of(instance, name) == value
    if make is not trained:
        assert same(state(make().setParams(**VALUES)), state(make(**VALUES)))


@each_kind
def test_none_turns_off_only_params_whose_doc_mentions_it(make):
    instance = make(**values_of(make))
    for param in instance.params:
        if "None" in param.doc:
            assert value_of(put(instance, param.name, None), param.name) is None
        elif param.name not in {"model", "loss", "strategy"}:  # the fit checks these
            with pytest.raises((TypeError, InvalidInput), match=param.name):
                put(instance, param.name, None)
    if make is not trained:  # in the constructor None is the default, but for the label
        unset = make(**dict.fromkeys(VALUES))
        assert {name: value_of(unset, name) for name in DEFAULTS} == DEFAULTS | {"labelCol": None}


CHECKPOINT_STEPS = "expected a number of steps"
ALGORITHM = dict.fromkeys(("init", "map", "reduce", "apply", "converged", "metrics"), print)
without_uses_optimizer = make_dataclass("Half", [], namespace=ALGORITHM)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("numWorkers", 0, "numWorkers is 0; expected a whole number of at least 1"),
        ("checkpointInterval", "2 days", f"checkpointInterval is '2 days'; {CHECKPOINT_STEPS}"),
        ("checkpointInterval", 0, f"checkpointInterval is 0; {CHECKPOINT_STEPS}"),
        ("logLevel", "loud", "logLevel is 'loud'; expected one of debug, info, warning, error, off"),
        ("device", "tpu", "device is 'tpu'; expected one of cpu, cuda"),
        ("backend", "mpi", "backend is 'mpi'; expected one of auto, nccl, gloo"),
        ("taskGpus", 0, "taskGpus is 0.0; expected a finite number above 0, or None"),
        ("precision", "fp8", "precision is 'fp8'; expected one of fp32, bf16, fp16, fp64"),
        ("thresholds", [0.0, 0.0], r"thresholds is \[0.0, 0.0\]; .* at most one"),
        ("optimizer", "sdg", "optimizer is 'sdg'; expected one of .*adamw.*, or a function that is called"),
        ("optimizerArgs", [0.1], r"optimizerArgs is \[0.1\]; expected a dict of arguments by name"),
        ("scheduler", 0.9, "scheduler is 0.9; expected a function"),
        ("strategy", "allreduce", r"strategy is 'allreduce'; expected .* AllReduce\(\).*uses_optimizer, init, map"),
        ("strategy", AllReduce, r"strategy is <class .*AllReduce'>; expected"),
        ("strategy", without_uses_optimizer(), "expected .* a dataclass with uses_optimizer"),
        ("metrics", ["accuracy"], r"metrics is \['accuracy'\]; expected a dict of names and torchmetrics metrics"),
        ("metrics", {"f1": "accuracy"}, r"metrics has 'accuracy' as 'f1'; expected a metric, such as BinaryAUROC\(\)"),
        ("metrics", {"f1": torchmetrics.MeanSquaredError}, r"metrics has <class .*> as 'f1'; expected a metric"),
        *(
            ("validationFraction", value, f"validationFraction is {value}.0; expected a number above 0 and below 1")
            for value in (0, 1)
        ),
        *(
            ("classWeights", value, "classWeights is .*; expected 'balanced', or a list of a number above 0 for each")
            for value in ("even", [1.0], [1.0, 0.0], [1.0, float("inf")])
        ),
        ("labelCol", [], "labelCol is .*; expected the name of a column, or distinct names"),
        ("labelCol", ["a", "a"], "labelCol is .*; expected the name of a column, or distinct names"),
    ],
)
def test_invalid_values_raise_wherever_they_are_set(name, value, message):
    estimator = TorchEstimator()
    for call in (
        lambda: TorchEstimator(**{name: value}),
        lambda: put(estimator, name, value),
        lambda: estimator.setParams(**{name: value}),
        lambda: estimator.copy({estimator.getParam(name): value}),
    ):
        with pytest.raises(InvalidInput, match=message):
            call()


@pytest.mark.parametrize(
    ("name", "value"),
    [("epochs", "many"), ("inputCols", "features"), ("predictionCol", 3), ("batchSize", 2.5), ("labelCol", 3)],
)
def test_wrong_types_raise_as_in_pyspark(name, value):
    with pytest.raises(TypeError, match=f'Invalid param value given for param "{name}"'):
        TorchEstimator(**{name: value})


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (TorchClassifier(), r"model is not set; expected it as TorchClassifier\(model="),
        (TorchEstimator(model=nets.scores), r"loss is not set; expected it as TorchEstimator\(loss="),
        (TorchRegressor(model=nets.scores, callbacks=[3]), "callbacks holds .*on_epoch"),
        (TorchClassifier(model=nets.scores, loss=nn.BCELoss(), numClasses=3), r"numClasses is 3; expected 2: BCELoss"),
    ],
)
def test_settings_that_fit_no_run_raise_before_it(estimator, message):
    with pytest.raises(InvalidInput, match=message):
        estimator.training()


def test_contradicting_columns_raise():
    for specs in ([InputColumn("y")], [InputColumn("a"), InputColumn("a")]):
        with pytest.raises(InvalidInput, match=r"columnSpecs describes .*; expected each column once, .* are 'a', 'b'"):
            TorchRegressor(inputCols=["a", "b"], columnSpecs=specs).read_columns()
    for kind, loss in ((TorchRegressor, nn.MSELoss()), (TorchClassifier, nn.BCELoss())):
        with pytest.raises(InvalidInput, match=r"expected one column.* TorchEstimator takes"):
            kind(labelCol=["a", "b"], loss=loss).read_columns()


@each_kind
def test_copies_share_no_param_maps(make):
    instance = make(**values_of(make))
    before, extra = state(instance), {instance.predictionCol: "other", instance.thresholds: [0.1, 0.9]}
    copied, changed = instance.copy(), instance.copy(extra)
    assert same(state(copied), before)
    assert same(state(changed)[0], before[0] | {"predictionCol": "other", "thresholds": [0.1, 0.9]})
    changed.setCollate(None).clear(changed.columnSpecs)
    copied._setDefault(predictionCol="default")
    assert same(state(instance), before)


def spoil(instance: Any, read: Any) -> None:
    """Change every list and dict in place."""
    for param in instance.params:
        value = read(instance, param.name) if instance.isDefined(param) else None
        if isinstance(value, list):
            value.append("more")
        elif isinstance(value, dict):
            value["more"] = "more"


@each_kind
@pytest.mark.parametrize("is_set", [False, True], ids=["defaults", "set"])
def test_change_in_place_stays_in_one_instance(make, is_set):
    arguments = deepcopy(values_of(make))  # a change in them reaches no other test
    instance = make(**arguments if is_set else {})
    before, fresh, unchanged = deepcopy((state(instance), state(make()), arguments))
    spoil(instance, value_of)
    for separate in (instance.copy(), instance.copy({instance.predictionCol: "p"}), make(**arguments)):
        spoil(separate, Params.getOrDefault)
    assert same(state(instance), before)
    assert same(state(make()), fresh)
    assert same(arguments, unchanged)


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_newer_of_inputCols_and_featuresCol_decides(kind):  # noqa: N802 - Params
    one, several = kind(featuresCol="a"), kind(inputCols=["b", "c"])
    assert one.copy({one.inputCols: ["b", "c"]}).getInputCols() == ["b", "c"]
    assert several.copy({several.featuresCol: "a"}).getInputCols() == ["a"]
    assert (one.getInputCols(), several.getInputCols()) == (["a"], ["b", "c"])
    assert several.setParams(featuresCol="d").getInputCols() == ["d"]
    assert several.setInputCols(["e"]).getInputCols() == ["e"]
    one.set(one.inputCols, ["b"])
    for disagree in (one.getInputCols, lambda: kind(featuresCol="a", inputCols=["b"])):
        with pytest.raises(InvalidInput, match=r"featuresCol is 'a' and inputCols is \['b'\]; expected only one"):
            disagree()


@each_kind
def test_saved_params_are_loaded(spark, tmp_path, make):
    for number, values in enumerate(({}, values_of(make))):
        instance, path = make(**values), str(tmp_path / str(number))
        instance.save(path)
        assert not (tmp_path / str(number) / "objects.pkl").exists()
        loaded = type(instance).load(path)
        assert (loaded.uid, {param.parent for param in loaded.params}) == (instance.uid, {instance.uid})
        assert same(state(loaded), state(instance))


@pytest.mark.parametrize("make", [TorchRegressor, sparkdl.Bagging])
def test_path_of_run_becomes_text(make):
    assert make(runDir=Path("/runs/a b")).getRunDir() == make().setRunDir(Path("/runs/a b")).getRunDir() == "/runs/a b"


def test_training_settings():
    training = TorchRegressor(**VALUES | {"numClasses": None, "multiLabel": False}).training()
    assert (training.batch_size, training.epochs, training.seed) == (64, 5, 11)
    assert (training.strategy, training.augment) == (AllReduce(), nets.digits)  # VALUES have an algorithm of rounds
    assert training.collate == AssembledInputs(nets.mlp, "float64")
    objective = training.objective
    assert same(objective.model, partial(nets.scores, outputs=2))
    assert (objective.precision, objective.max_grad_norm, objective.scheduler) == ("fp64", 0.5, VALUES["scheduler"])
    assert objective.micro_batches == 4
    assert same(objective.optimizer, partial(torch.optim.SGD, momentum=0.9, lr=0.5))


@pytest.mark.parametrize(
    ("estimator", "dtype"),
    [
        (TorchClassifier(), "int64"),
        (TorchClassifier(loss=nn.BCEWithLogitsLoss()), "float32"),
        (TorchClassifier(loss=nn.BCELoss(), precision="fp64"), "float64"),
        (TorchRegressor(), "float32"),
        (TorchEstimator(), None),
    ],
)
def test_labels_have_the_dtype_that_the_loss_takes(estimator, dtype):
    assert estimator.read_columns().target == InputColumn("label", dtype)


def test_columns():
    specs = InputColumn("b", "int64", ragged="offsets")
    names = {"labelCol": "y", "weightCol": "w", "validationIndicatorCol": "v", "idCol": "i"}
    columns = TorchRegressor(inputCols=["a", "b"], columnSpecs=[specs], precision="fp64", **names).read_columns()
    assert columns.inputs == (InputColumn("a"), specs)
    assert (columns.target, columns.weight) == (InputColumn("y", "float64"), InputColumn("w", "float64"))
    assert (columns.validation, columns.row_id) == (InputColumn("v", "bool"), InputColumn("i", "int64"))
    assert columns.floating == "float64"
    assert TorchEstimator(labelCol=None).read_columns().target is None
    for kind in (TorchEstimator, TorchClassifier):
        several = kind(labelCol=["a", "b"]).setLabelCol(("c", "d"))
        assert several.getLabelCol() == ["c", "d"]
        assert several.read_columns().target == (InputColumn("c", "float32"), InputColumn("d", "float32"))
