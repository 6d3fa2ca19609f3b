"""How values are told: others differ, the same do not, in another process either."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyspark.ml import Pipeline
from pyspark.ml.classification import LogisticRegression
from pyspark.ml.feature import StandardScaler, StringIndexer
from pyspark.ml.linalg import DenseMatrix
from torch import nn

from sparkdl import TorchClassifier
from sparkdl.ensembles.telling import Telling, places, within
from sparkdl.strategies.reducers import Exact
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


CODE = """
{more}
import torch

SIZE = {size}

{more}
def size():
    {doc}
    return SIZE + {add}

class Base:
    {doc}
    def __init__(self):
        self.size = size()

class Net(Base):
    def forward(self, x):
        {doc}
        class Inner:
            {doc}
            value = None
        return x * {factor}

def make():
    {doc}
    if Net is None:
        return None
    return Net()
"""
PLAIN = {"more": "", "doc": "", "size": 3, "add": 0, "factor": 2}


def module(**given: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"__name__": "__main__"}
    exec(CODE.format(**PLAIN | given), found)  # as a notebook does
    return found


def test_docstrings_and_places_do_not_count():
    plain, moved = module(), module(more="# more\n\n", doc="'''What it is.'''")
    assert moved["make"].__doc__
    for name in ("make", "Net", "size"):
        assert told(plain[name]) == told(moved[name])
        assert told(plain[name]) != name


@pytest.mark.parametrize("given", [{"size": 4}, {"add": 1}, {"factor": 3}])
def test_the_code_beside_a_function_counts(given):
    assert told(module()["make"]) != told(module(**given)["make"])


def test_what_holds_itself_is_told():
    def again(times):
        return times and again(times - 1)

    module = nn.Module()
    module.own = [module.forward, again]  # type: ignore[assignment]
    assert told(module) == told(module)
    assert told(again) == told(again)


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


def test_estimators_in_a_scope_are_told_by_their_params(spark):
    def holding(depth: int) -> Any:
        base = Pipeline(stages=[StandardScaler(inputCol="a"), LogisticRegression(maxIter=depth)])
        return lambda: [base, *base.getStages()]

    assert told(holding(1)) == told(holding(1)) != told(holding(2))


def test_a_networks_defaults_need_no_digests(spark):
    found = told(TorchClassifier(model=scope(0)))
    assert {name for name, value in found.items() if value != str(value).split(" ")[0]} >= {"model", "loss"}
    assert found["optimizer"] == "partial(Adam, lr=0.001)"
