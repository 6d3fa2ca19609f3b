"""How values are told: others differ, the same do not, in another process either."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pyspark.ml import Pipeline
from pyspark.ml.classification import LogisticRegression
from pyspark.ml.feature import StandardScaler, StringIndexer
from pyspark.ml.linalg import DenseMatrix
from pyspark.ml.param import Param, Params
from pyspark.ml.tuning import CrossValidator
from torch import nn

from sparkdl import TorchClassifier
from sparkdl.ensembles.telling import Telling, params_in, places, within
from sparkdl.training.strategies.reducers import Exact
from tests.sessions import ROOT


def told(value: Any) -> Any:
    return Telling().told(value)


def linear(weight: float) -> nn.Module:
    module = nn.Linear(2, 2)
    nn.init.constant_(module.weight, weight)
    nn.init.zeros_(module.bias)
    return module


class Augment:
    """Shows nothing of what it does."""

    def __init__(self, by: float) -> None:
        self.by = by

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by


@dataclass(frozen=True)
class Step:
    """Hides one of its fields."""

    call: Any
    hidden: Any = field(default=0, repr=False)


class Net(nn.Module):
    """Has an attribute that is no part of its state."""

    def __init__(self, power: int) -> None:
        super().__init__()
        self.power = power

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x**self.power


class Scaled(nn.Module):
    """Has a number, and a buffer, that are in no state; parameters may be frozen."""

    def __init__(self, scale: float = 1, buffer: float = 1, frozen: bool = False) -> None:
        super().__init__()
        self._scale = scale
        self.register_buffer("table", torch.tensor([buffer]), persistent=False)
        self.shift = nn.Parameter(torch.zeros(1), requires_grad=not frozen)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self._scale + self.table + self.shift


class Slotted:
    """Has no dictionary."""

    __slots__ = ("_unset", "by")

    def __init__(self, by: Any) -> None:
        self.by = by


class Weighted:
    """Shows little of itself; one value is computed when it is asked for."""

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def __repr__(self) -> str:
        return "Weighted()"

    @cached_property
    def half(self) -> float:
        return self.weight / 2

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


@dataclass
class Later:
    """Has fields that are set later, one of which is a cache."""

    by: float
    table: Any = field(init=False)
    parent: Any = None
    cache: Any = field(init=False, repr=False)


class Holding(Params):
    """Has a Param whose value may be anything."""

    held: Param[Any] = Param(Params._dummy(), "held", "anything")

    def __init__(self, **given: Any) -> None:
        super().__init__()
        self._set(**given)


def wrapped(add: float) -> Any:
    losses = [lambda x, y: x + 1, lambda x, y: x + 2]
    return functools.wraps(nn.functional.cross_entropy)(losses[int(add)])


NAMES = [f"column {number}" for number in range(9)]  # enough that their order in a set is another in each process
LONG = np.arange(5000.0)


def scope(number: Any, default: Any = 1) -> Any:
    def inner(x: Any, y: Any = default) -> Any:
        return x + y + number

    return inner


OTHERS = [
    lambda at: [lambda x: x + 1, lambda x: x + 2][at],
    lambda at: [lambda x: x in {"a", "b"}, lambda x: x in {"a", "c"}][at],
    lambda at: [lambda x: torch.relu(x) + 1, lambda x: torch.tanh(x) + 1][at],
    lambda at: [lambda x: sorted(x, key=lambda y: y + 1), lambda x: sorted(x, key=lambda y: y + 2)][at],
    lambda at: [lambda x, *, y=1: x + y, lambda x, *, y=2: x + y][at],
    scope,
    lambda at: scope(0, at),
    lambda at: partial(map, scope(at)),
    lambda at: cache(scope(at)),
    lambda at: {"a": [scope(at)]},
    lambda at: scope([scope(at)]),
    lambda at: Step(scope(at)),
    lambda at: Step(1, at),
    Augment,
    lambda at: Augment(at).__call__,
    lambda at: nn.CrossEntropyLoss(torch.tensor([1.0, 2.0 + at])),
    lambda at: nn.CrossEntropyLoss(label_smoothing=0.1 * at),
    linear,
    lambda at: linear(0.0).to([torch.float32, torch.float64][at]),
    lambda at: nn.Sequential(linear(0.0), Net(at)),
    lambda at: LONG + at * (LONG == 2000),
    lambda at: LONG.reshape([(50, 100), (100, 50)][at]),
    lambda at: torch.from_numpy(LONG + at * (LONG == 2000)),
    lambda at: np.array([at, None], dtype=object),
    lambda at: DenseMatrix(50, 50, [float(at * (number == 1000)) for number in range(2500)]),
    Scaled,
    lambda at: nn.Sequential(Scaled(buffer=at)),
    lambda at: Scaled(frozen=bool(at)),
    lambda at: {*NAMES[at:]},
    lambda at: partial(map, skip={*NAMES[at:]}),
    lambda at: scope([{"a": frozenset(NAMES[at:])}]),
    lambda at: Step({*NAMES}, OrderedDict(a={*NAMES[at:]})),
    lambda at: SimpleNamespace(skip={*NAMES}, call=scope(at)),
    lambda at: {scope(at), scope(2), scope(3), *NAMES},
    lambda at: {"a": [np.array([scope(at), {*NAMES}], dtype=object)]},
    wrapped,
    lambda at: scope(wrapped(at)),
    lambda at: torch.no_grad()(scope(at)),
    lambda at: Later(at, parent={*NAMES}),
    lambda at: {scope(at): 1},
    lambda at: {(scope(at), "a"): scope(0)},
    lambda at: [" ", "  "][at],
    lambda at: ["a  b", "a b"][at],
    Slotted,
    lambda at: Slotted(Slotted(scope(at))),
    lambda at: Weighted(at).loss,
    lambda at: scope(Weighted(at).loss),
    lambda at: dict.fromkeys([*NAMES, at]).get,
    lambda at: Holding(held=[("a", Holding(held=at))]),
    lambda at: {"a": {"b": Holding(held=scope(at))}},
    lambda at: partial(map, Holding(held=at)),
    lambda at: scope({"a": [Holding(held={*NAMES[at:]})]}),
]


@pytest.mark.parametrize("make", OTHERS)
def test_what_text_does_not_tell_apart(make):
    assert told(make(0)) == told(make(0))
    assert told(make(0)) != told(make(1))


def test_plain_values_are_their_text():
    given = {"a": (1, 0.5, None)}, ["x"], Exact(), partial(torch.optim.SGD, lr=0.1), nn.functional.mse_loss
    assert [told(each) for each in given] == [
        *("{'a': (1, 0.5, None)}", "['x']", "Exact()", "partial(SGD, lr=0.1)", "mse_loss")
    ]


def test_what_holds_itself_is_told():
    def again(times):
        return times and again(times - 1)

    module = nn.Module()
    module.own = [module.forward, again]  # type: ignore[assignment]
    assert told(module) == told(module)
    assert told(again) == told(again)


def test_what_holds_itself_in_other_ways_is_told(spark):
    def several() -> list[Any]:
        items: list[Any] = [1, scope(0)]
        items.append(items)
        parent = Later(1)
        parent.parent = [Later(2, parent)]
        estimator = Holding()
        estimator.set(estimator.held, scope([estimator, items]))
        other = Holding(held=[("a", estimator)])
        estimator.set(estimator.held, [scope(other), other])
        return [items, {"a": items}, parent, estimator, other, partial(map, other), Slotted(other)]

    assert told(several()) == told(several())
    for one, same in zip(several(), several(), strict=True):
        assert told(one) == told(same)
        assert json.dumps(Telling(places(*params_in(one))).told(one))


def test_what_use_fills_in_does_not_count():
    step, weighted = Later(1), Weighted(2)
    before = told(step), told(weighted.loss)
    step.cache, _ = {"a": 1}, weighted.half
    assert (told(step), told(weighted.loss)) == before
    step.table = 3
    assert told(step) != before[0]


def test_modules_without_values_yet(spark):
    assert told(nn.LazyLinear(3)) == told(nn.LazyLinear(3)) != told(nn.LazyLinear(4))


def other_process(seed: str) -> str:
    script = "from tests.ensembles.test_telling import OTHERS, told\nprint([told(make(0)) for make in OTHERS])"
    found = subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        timeout=100,
    )
    return found.stdout.strip()


@pytest.mark.slow
def test_it_is_the_same_in_another_process():
    assert Path(__file__).is_relative_to(ROOT)
    assert other_process("17") == str([told(make(0)) for make in OTHERS])


def test_uids_are_told_as_places(spark):
    def pipeline() -> Pipeline:
        indexer = StringIndexer(inputCol="a")
        scaler = StandardScaler(inputCol=indexer.getOutputCol())
        return Pipeline(stages=[indexer, Pipeline(stages=[scaler, LogisticRegression()])])

    one, other = (Telling(places(each)).told(each) for each in (pipeline(), pipeline()))
    assert one == other
    indexer, inner = one["stages"].values()
    assert indexer["outputCol"] == inner["stages"]["0"]["inputCol"] == "StringIndexer#1__output"
    assert inner["stages"]["0"]["outputCol"] == "StandardScaler#3__output"
    assert [type(each).__name__ for each in within(pipeline())] == [
        *("Pipeline", "StringIndexer", "Pipeline", "StandardScaler", "LogisticRegression")
    ]


def test_maps_of_params_are_told_by_places(spark):
    def cross_validator(depth: int) -> CrossValidator:
        logistic = LogisticRegression()
        pipeline = Pipeline(stages=[logistic])
        maps: list[Any] = [{logistic.maxIter: depth, pipeline.stages: [LogisticRegression(maxIter=depth)]}]
        return CrossValidator(estimator=pipeline, estimatorParamMaps=maps)

    def telling(depth: int) -> Any:
        given = cross_validator(depth)
        return Telling(places(given)).told(given)

    assert telling(1) == telling(1) != telling(2)
    (inner,) = telling(1)["estimatorParamMaps"].values()
    assert inner["LogisticRegression#2.maxIter"] == "1"
    assert inner["Pipeline#1.stages"]["0"]["class"] == "LogisticRegression"
    assert told(scope(cross_validator(1))) == told(scope(cross_validator(1))) != told(scope(cross_validator(2)))
    assert [type(each).__name__ for each in params_in({"a": [("b", LogisticRegression())]})] == ["LogisticRegression"]


def test_estimators_in_a_scope_are_told_by_their_params(spark):
    def holding(depth: int) -> Any:
        base = Pipeline(stages=[StandardScaler(inputCol="a"), LogisticRegression(maxIter=depth)])
        return lambda: [base, *base.getStages()]

    assert told(holding(1)) == told(holding(1)) != told(holding(2))


def test_a_networks_defaults_need_no_digests(spark):
    found = told(TorchClassifier(model=scope(0)))
    assert {name for name, value in found.items() if value != str(value).split(" ")[0]} >= {"model", "loss"}
    assert found["optimizer"] == "partial(Adam, lr=0.001)"
