"""Every public estimator takes its Params in the same ways: constructor, load, copy and setParams."""

from __future__ import annotations

import inspect

import pytest
from pyspark.ml.classification import LogisticRegression
from pyspark.ml.evaluation import MulticlassClassificationEvaluator

import sparkdl
from tests.ml import nets

# pyspark.ml's own classes need a session.
ARGUMENTS = {
    "TorchEstimator": lambda: {"model": nets.column, "loss": lambda output, target: output},  # pickled
    "TorchClassifier": lambda: {"model": nets.scores},
    "TorchRegressor": lambda: {"model": nets.column},
    "Bagging": lambda: {"base": LogisticRegression()},
    "Boosting": lambda: {"base": LogisticRegression()},
    "Stacking": lambda: {"bases": [LogisticRegression()]},
    "BestOf": lambda: {"candidates": [LogisticRegression()], "evaluator": MulticlassClassificationEvaluator()},
}


def values(instance) -> dict[str, str]:
    return {param.name: repr(type(value)) for param, value in instance.extractParamMap().items()}


def test_all_public_estimators_are_here():
    public = {name: getattr(sparkdl, name) for name in sparkdl.__all__}
    assert {*ARGUMENTS} == {name for name, kind in public.items() if isinstance(kind, type) and hasattr(kind, "fit")}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_constructor_load_copy_and_set_params(name, spark, tmp_path):
    # Bagging.load() had no argument trust, and Boosting() none for disagreementCol and parallelism.
    kind, path = getattr(sparkdl, name), str(tmp_path / "saved")
    instance = kind(**ARGUMENTS[name]())
    params = {param.name for param in instance.params}
    for function in (kind, kind.setParams):
        assert params <= {*inspect.signature(function).parameters}
    instance.save(path)
    loaded = [kind.load(path, trust=True), kind.read().trust().load(path), kind.read().trust(True).load(path)]
    for other in (*loaded, instance.copy(), instance.copy({})):
        assert (type(other), other.uid, values(other)) == (kind, instance.uid, values(instance))
    assert instance.copy().setParams(seed=7).getSeed() == instance.copy({instance.seed: 7}).getSeed() == 7
