"""Estimators and models keep the conventions of pyspark.ml: what Params, copies and saved instances are."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torchmetrics
from torch import nn

from sparkdl import TorchModel, TorchRegressor
from sparkdl.errors import InvalidInput
from sparkdl.io.weights import pack
from sparkdl.ml.persistence.param_values import same
from tests.ml import nets
from tests.ml.persistence.test_saved_estimators import Doubling
from tests.ml.test_params import ESTIMATORS, VALUES, got, put


def trained(**given: Any) -> TorchModel:
    """A model as a fit leaves it, with these Params."""
    model = TorchModel(factory=nets.scores, weights=pack(nets.scores()))
    for name, value in given.items():
        put(model, name, value)
    return model


MAKERS: dict[str, Callable[..., Any]] = {kind.__name__: kind for kind in ESTIMATORS} | {"TorchModel": trained}
REQUIRED = {
    "TorchEstimator": {"model", "loss"},
    "TorchClassifier": {"model"},
    "TorchRegressor": {"model"},
    "TorchModel": set(),
}
# Each can be saved by name. Of featuresCol and inputCols, which stand for the same, there is one.
DISTINCT = {name: value for name, value in VALUES.items() if name != "featuresCol"} | {
    "metrics": {"error": torchmetrics.MeanSquaredError(squared=False)},
    "hooks": [Doubling()],
}

each = pytest.mark.parametrize("kind", MAKERS)
each_estimator = pytest.mark.parametrize("kind", ESTIMATORS)


def values_of(instance: Any) -> dict[str, Any]:
    """A value for each Param of an instance."""
    return {name: value for name, value in DISTINCT.items() if instance.hasParam(name)}


def full(kind: str) -> Any:
    """An instance with every Param set."""
    return MAKERS[kind](**values_of(MAKERS[kind]()))


def state(instance: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is set and what the defaults are, by name."""
    maps = instance._paramMap, instance._defaultParamMap
    return tuple({param.name: found[param] for param in instance.params if param in found} for found in maps)


# ---- Params ----------------------------------------------------------------------------------------------------------


@each
def test_a_param_has_a_default_or_is_required(kind):
    instance = MAKERS[kind]()
    assert type(instance).__name__ == kind
    assert {param.name for param in instance.params if not instance.hasDefault(param)} == REQUIRED[kind]
    assert not any(instance.isSet(param) for param in instance.params)


@each
def test_a_param_is_declared_as_pyspark_declares_them(kind):
    instance = MAKERS[kind]()
    names = [param.name for param in instance.params]
    assert names == sorted(names)
    for param in instance.params:
        assert getattr(instance, param.name) is param
        assert getattr(type(instance), param.name).name == param.name
        assert instance.getParam(param.name) == param
        assert param.parent == instance.uid
        assert re.fullmatch(r"[^\s.].*[\w')\]]", param.doc), f"{param.name}: {param.doc!r}"


@each
def test_all_ways_to_set_a_param_agree(kind):
    for name, value in values_of(MAKERS[kind]()).items():
        by_setter, by_param = MAKERS[kind](), MAKERS[kind]()
        assert put(by_setter, name, value) is by_setter
        by_param.set(by_param.getParam(name), value)
        for instance in (by_param, by_setter.copy(), MAKERS[kind]().copy({}), MAKERS[kind](**{name: value})):
            if instance.isSet(name):
                assert got(instance, name) == got(by_setter, name) == value


@each_estimator
def test_set_params_takes_what_the_constructor_takes(kind):
    estimator = kind()
    assert estimator.setParams(**DISTINCT) is estimator
    assert same(state(estimator), state(kind(**DISTINCT)))
    assert estimator.setParams(featuresCol="b", labelCol=None, weightCol=None).getInputCols() == ["b"]
    assert (estimator.getLabelCol(), estimator.getWeightCol(), estimator.getEpochs()) == (None, None, 5)
    for call in (kind, estimator.setParams):
        with pytest.raises(TypeError, match="unexpected keyword argument 'learningRate'"):
            call(learningRate=0.1)
        with pytest.raises(InvalidInput, match="epochs is 0; expected at least 1"):
            call(epochs=0)


@each
def test_what_is_cleared_is_the_default_again(kind):
    instance, fresh = full(kind), MAKERS[kind]()
    for param in instance.params:
        instance.clear(param)
    assert state(instance)[0] == {}
    assert same(state(instance)[1], state(fresh)[1])


@each
def test_none_is_a_value_only_of_what_can_be_turned_off(kind):
    instance = full(kind)
    for param in instance.params:
        if "None" in param.doc:
            assert got(put(instance, param.name, None), param.name) is None
        elif param.name not in {"model", "loss", "strategy"}:  # which a fit asks for
            with pytest.raises((TypeError, InvalidInput), match=param.name):
                put(instance, param.name, None)


# ---- explainParams ---------------------------------------------------------------------------------------------------


@each
@pytest.mark.parametrize("make", [lambda kind: MAKERS[kind](), full], ids=["defaults", "set"])
def test_explain_params_reads_well(kind, make):
    instance = make(kind)
    lines = instance.explainParams().split("\n")
    assert len(lines) == len(instance.params)
    for param, line in zip(instance.params, lines, strict=True):
        assert line == instance.explainParam(param) == instance.explainParam(param.name)
        assert line.startswith(f"{param.name}: {param.doc} (")
        assert re.search(r" \((default: .+|current: .+|default: .+, current: .+|undefined)\)$", line), line
        assert ("current: " in line) == instance.isSet(param)
        assert not re.search(r"0x[0-9a-f]{4,}|<function|<class|functools|torch\.|tests\.", line), line


def test_an_explanation():
    estimator = TorchRegressor(model=nets.column, loss=nn.L1Loss())
    assert estimator.explainParam("loss").endswith(" (default: MSELoss(), current: L1Loss())")
    assert estimator.explainParam("optimizer").endswith(" (default: partial(Adam, lr=0.001))")
    assert estimator.explainParam("batchSize") == "batchSize: rows of the GLOBAL batch (default: 256)"
    assert TorchRegressor().explainParam("model").endswith(" (undefined)")


# ---- copies and uids -------------------------------------------------------------------------------------------------


@each
def test_copies_share_no_param_maps(kind):
    instance = full(kind)
    before = state(instance)
    extra = {instance.predictionCol: "other", instance.thresholds: [0.1, 0.9]}
    copied, changed = instance.copy(), instance.copy(extra)
    assert {type(one) for one in (copied, changed)} == {type(instance)}
    assert same(state(copied), before)
    assert same(state(changed)[0], before[0] | {"predictionCol": "other", "thresholds": [0.1, 0.9]})
    changed.setCollate(None).clear(changed.columnSpecs)
    copied._setDefault(predictionCol="p")
    assert same(state(instance), before)
    for wrong, error in (({"epochs": 3}, TypeError), ([instance.predictionCol], TypeError)):
        with pytest.raises(error):
            instance.copy(wrong)
    with pytest.raises(InvalidInput, match="thresholds is"):
        instance.copy({instance.thresholds: [1.0]})


def frozen(found: Any) -> Any:
    """A copy of the lists and dicts, with the very things in them."""
    if isinstance(found, dict):
        return {key: frozen(value) for key, value in found.items()}
    return type(found)(map(frozen, found)) if type(found) in (list, tuple) else found


def spoil(instance: Any) -> None:
    """Change in place what can be: what Params hold, and what the getters give."""
    for param in instance.params:
        if instance.isDefined(param):
            for value in (instance.getOrDefault(param), got(instance, param.name)):
                if isinstance(value, list):
                    value.append("more")
                elif isinstance(value, dict):
                    value["more"] = "more"


@each
@pytest.mark.parametrize("make", [lambda kind: MAKERS[kind](), full], ids=["defaults", "set"])
def test_what_is_changed_in_place_is_nobody_elses(kind, make):
    """Neither the original's, nor a copy's, nor that of all instances of the class, nor that of who has set it."""
    instance, given = make(kind), values_of(MAKERS[kind]())
    before, fresh, values = frozen(state(instance)), frozen(state(MAKERS[kind]())), frozen(given)
    spoil(instance.copy())
    assert same(state(instance), before)
    spoil(instance.copy({instance.predictionCol: "p"}))
    assert same(state(instance), before)
    spoil(MAKERS[kind](**given))
    assert same(state(MAKERS[kind]()), fresh)
    assert same(given, values)


@each_estimator
def test_getters_give_what_may_be_changed(kind):
    estimator = kind(metrics={"a": torchmetrics.MeanMetric()}, labelCol=["a", "b"], hooks=[1], thresholds=[1.0, 2.0])
    for name in ("Metrics", "LabelCol", "Hooks", "Thresholds", "InputCols", "ColumnSpecs"):
        getattr(estimator, f"get{name}")().clear()
        assert getattr(estimator, f"get{name}")() or name == "ColumnSpecs"


@each
def test_uids(kind):
    instances = [MAKERS[kind]() for _ in range(20)]
    uids = [instance.uid for instance in instances]
    assert len(set(uids)) == 20
    for instance in instances:
        assert re.fullmatch(rf"{kind}_[0-9a-f]+", instance.uid)
        assert instance.copy().uid == instance.copy({instance.predictionCol: "p"}).uid == instance.uid
        assert {param.parent for param in instance.copy().params} == {instance.uid}
    assert [instance.uid for instance in instances] == uids


@each_estimator
def test_the_newer_of_two_params_for_the_same_decides(kind):
    one, several = kind(featuresCol="a"), kind(inputCols=["b", "c"])
    assert one.copy({one.inputCols: ["b", "c"]}).getInputCols() == ["b", "c"]
    assert several.copy({several.featuresCol: "a"}).getInputCols() == ["a"]
    assert (one.getInputCols(), several.getInputCols()) == (["a"], ["b", "c"])
    one.set(one.inputCols, ["b"])
    for disagree in (one.getInputCols, lambda: kind(featuresCol="a", inputCols=["b"])):
        with pytest.raises(InvalidInput, match=r"featuresCol is 'a' and inputCols is \['b'\]; expected only one"):
            disagree()


# ---- saving ----------------------------------------------------------------------------------------------------------


@each
@pytest.mark.parametrize("make", [lambda kind: MAKERS[kind](), full], ids=["defaults", "set"])
def test_what_was_saved_is_loaded_param_by_param(spark, tmp_path, kind, make):
    instance, path = make(kind), str(tmp_path / "saved")
    instance.write().overwrite().save(path)
    loaded = type(instance).load(path)
    assert (type(loaded), loaded.uid) == (type(instance), instance.uid)
    assert {param.parent for param in loaded.params} == {instance.uid}
    assert same(state(loaded), state(instance))


def contents(folder: Path) -> dict[str, bytes]:
    """Every file in a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@each
def test_what_is_there_is_replaced_only_on_request(spark, tmp_path, kind):
    first, second, path = MAKERS[kind](), MAKERS[kind]().setPredictionCol("p"), tmp_path / "saved"
    first.save(str(path))
    before = contents(path)
    for save in (second.save, second.write().save):
        with pytest.raises(InvalidInput, match=r"exists; use write\(\).overwrite\(\).save"):
            save(str(path))
        assert contents(path) == before
    second.write().overwrite().save(str(path))
    loaded = type(second).load(str(path))
    assert (loaded.uid, loaded.getPredictionCol()) == (second.uid, "p")
    assert [entry.name for entry in tmp_path.iterdir()] == ["saved"]
