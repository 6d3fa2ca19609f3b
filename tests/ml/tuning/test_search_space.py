"""Search spaces: their keys, their values, and estimators with suggested values."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from sparkdl import AllReduce, InvalidInput, LocalSGD, TorchClassifier
from sparkdl.ml.tuning.number_range import Range
from sparkdl.ml.tuning.search_space import SearchSpace, apply


class Wide(nn.Module):
    def __init__(self, hidden: int = 8, rate: float = 0.1) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, hidden), nn.Dropout(rate), nn.Linear(hidden, 2))


def classifier(**settings: Any) -> TorchClassifier:
    return TorchClassifier(**{"model": Wide, "strategy": LocalSGD(4), **settings})


SPACE: dict[Any, Any] = {
    "learningRate": Range(1e-4, 1e-1, log=True),
    "batchSize": [64, 256],
    "modelArgs.hidden": Range(16, 256, log=True, step=1),
    "optimizerArgs.weight_decay": {"low": 1e-6, "high": 1e-2, "log": True},
    "strategy.every": Range(1, 8, step=1),
}


def test_values_are_set_on_a_copy():
    base = classifier(modelArgs={"rate": 0.2}, optimizerArgs={"betas": (0.5, 0.9)})
    space = SearchSpace.of(SPACE | {"precision": ["fp32", "fp64"]}, base)
    values = {"learningRate": 0.01, "modelArgs.hidden": 32, "optimizerArgs.weight_decay": 1e-3, "strategy.every": 2}
    changed = apply(values, base)
    assert changed.getLearningRate() == 0.01
    assert changed.getModelArgs() == {"rate": 0.2, "hidden": 32}
    assert changed.getOptimizerArgs() == {"betas": (0.5, 0.9), "weight_decay": 1e-3}
    assert changed.getStrategy() == LocalSGD(2)
    assert (base.getModelArgs(), base.getStrategy(), base.isSet(base.learningRate)) == (
        {"rate": 0.2},
        LocalSGD(4),
        False,
    )
    assert space.domains["optimizerArgs.weight_decay"] == Range(1e-6, 1e-2, log=True)
    assert space.domains["precision"] == ("fp32", "fp64")


def test_grids():
    space = SearchSpace.of({"batchSize": [8, 16], "strategy.every": Range(1, 7, step=3)}, classifier())
    assert space.combinations() == 6
    every = [tuple(space.combination(number).values()) for number in range(6)]
    assert every == [(0, 1), (0, 4), (0, 7), (1, 1), (1, 4), (1, 7)]
    assert space.values(space.combination(4)) == {"batchSize": 16, "strategy.every": 4}
    assert Range(0.1, 0.5, step=0.1).count == 5
    assert SearchSpace({"a": Range(1, 10**12, step=1)}).combination(10**11)["a"] == 10**11 + 1
    with pytest.raises(InvalidInput, match=r"Range\(.*\) has no step, and a grid has all its combinations"):
        SearchSpace.of(SPACE, classifier()).combinations()


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({}, "paramSpace is empty"),
        ({"learningrate": [1]}, "'learningrate', which TorchClassifier does not have. Did you mean learningRate"),
        ({"runDir": ["a"]}, "paramSpace has runDir, which is no hyperparameter"),
        ({"labelCol": ["a"]}, "paramSpace has labelCol, which is no hyperparameter"),
        ({"learningRate.x": [1]}, "learningRate.x, which is no hyperparameter"),
        ({"learningRate": [0.1], "optimizerArgs.lr": [0.1]}, "are one number"),
        ({"modelArgs.hidden": [8], "model": [Wide]}, None),
        ({"strategy.every": [8], "strategy": [AllReduce()]}, "expected either of them"),
        ({"batchSize": [0]}, r"paramSpace\['batchSize'\] has 0, which the estimator refuses"),
        ({"batchSize": Range(8, 64)}, "draws floats, and batchSize is a whole number"),
        ({"modelArgs.hidden": Range(8.0, 64.0)}, "draws floats, and modelArgs.hidden is a whole number"),
        ({"strategy.every": Range(1.0, 2.0)}, "draws floats, and strategy.every is a whole number"),
        ({"strategy.missing": [1]}, "has no field 'missing'"),
        ({"modelArgs.width": [1]}, "which the estimator refuses: .*width"),
        ({"learningRate": 0.1}, "expected a list of values, or a Range"),
        ({"learningRate": []}, "expected a list of values, or a Range"),
        ({"learningRate": {"low": 1, "top": 2}}, "expected low and high"),
        ({"precision": ["fp32", "fp12"]}, "has 'fp12', which the estimator refuses"),
    ],
)
def test_bad_spaces_raise(space, message):
    if message is None:
        SearchSpace.of(space, classifier())
        return
    with pytest.raises(InvalidInput, match=message):
        SearchSpace.of(space, classifier())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"low": 2, "high": 1}, "expected finite numbers, low below high"),
        ({"low": 0, "high": float("inf")}, "expected a finite number"),
        ({"low": 0, "high": 1, "log": True}, "log=True and low=0; expected a number above 0"),
        ({"low": 1, "high": 9, "step": 0}, "step=0; expected a number above 0"),
        ({"low": 1.0, "high": 9.0, "step": 2.0, "log": True}, "expected step=1 and whole numbers, or no step"),
    ],
)
def test_bad_ranges_raise(arguments, message):
    with pytest.raises(InvalidInput, match=message):
        Range(**arguments)


def test_choices_may_be_any_objects():
    rates = [partial(torch.optim.SGD, lr=0.1), partial(torch.optim.Adam, lr=0.01)]
    SearchSpace.of({"optimizer": rates}, classifier())
    assert apply({"optimizer": rates[1]}, classifier()).getOptimizer() is rates[1]
