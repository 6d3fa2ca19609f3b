"""Values as text: on one line, equal for equal values, also in another process, and different for different ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torchmetrics
from pyspark.ml import Pipeline
from pyspark.ml.classification import LogisticRegression
from pyspark.ml.feature import StandardScaler, StringIndexer
from pyspark.ml.tuning import CrossValidator
from torch import nn

from sparkdl import AllReduce, InvalidInput
from sparkdl.ml.persistence.describe import describe
from sparkdl.ml.persistence.formatting import format_value
from sparkdl.ml.persistence.nested_params import params_in, within
from sparkdl.training.strategies.reducers.exact import Exact
from tests.ml import nets
from tests.ml.described import VARIANTS, Holding, Later, Slotted, Weighted, scope
from tests.sessions import ROOT


@pytest.mark.parametrize("make", [*VARIANTS, lambda at: nn.LazyLinear(3 + at)])
def test_different_values_have_different_descriptions(make):
    assert describe(make(0)) == describe(make(0)) != describe(make(1))


def test_plain_values_have_no_hash():
    values = {"a": (1, 0.5, None)}, ["x"], Exact(), partial(torch.optim.SGD, lr=0.1), nn.functional.mse_loss
    expected = ["{'a': (1, 0.5, None)}", "['x']", "Exact()", "partial(SGD, lr=0.1)", "mse_loss"]
    assert [describe(value) for value in values] == expected


def test_values_may_contain_themselves():
    def several() -> list[Any]:
        def again(times):
            return times and again(times - 1)

        module = nn.Module()
        module.own = [module.forward, again]  # type: ignore[assignment]
        items: list[Any] = [1, scope(0)]
        items.append(items)
        parent = Later(1)
        parent.parent = [Later(2, parent)]
        estimator = Holding()
        estimator.set(estimator.held, scope([estimator, items]))
        other = Holding(held=[("a", estimator)])
        estimator.set(estimator.held, [scope(other), other])
        return [again, module, items, {"a": items}, parent, estimator, other, partial(map, other), Slotted(other)]

    assert describe(several()) == describe(several())
    for one, same in zip(several(), several(), strict=True):
        assert json.dumps(describe(one)) == json.dumps(describe(same))


def test_caches_are_ignored():
    step, weighted = Later(1), Weighted(2)
    before = describe(step), describe(weighted.loss)
    step.cache, _ = {"a": 1}, weighted.half
    assert (describe(step), describe(weighted.loss)) == before
    step.table = 3
    assert describe(step) != before[0]


def test_deeply_nested_values_raise():
    node: Any = None
    for _ in range(10_000):
        node = Slotted(node)
    with pytest.raises(InvalidInput, match="nested too deeply"):
        describe(scope(node))


@pytest.mark.slow
def test_descriptions_are_equal_in_another_process():
    script = (
        "from sparkdl.ml.persistence.describe import describe\n"
        "from tests.ml.described import VARIANTS\n"
        "print([describe(make(0)) for make in VARIANTS])"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "17"}
    printed = subprocess.check_output([sys.executable, "-c", script], env=environment, text=True, timeout=100)
    assert printed.strip() == str([describe(make(0)) for make in VARIANTS])


class Plain:
    def method(self) -> None: ...


class Pair(NamedTuple):
    one: Any
    other: Any = None


@dataclass
class Filled:
    one: Any
    gone: Any = field(default_factory=list)

    def __post_init__(self) -> None:
        del self.gone


ITSELF: list[Any] = [1]
ITSELF.append(ITSELF)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *(("label", "label"), ("", "''"), (None, "None"), (["a", "b"], "['a', 'b']"), (("a",), "('a',)")),
        ({"mean": torchmetrics.MeanMetric()}, "{'mean': MeanMetric()}"),
        *((nets.column, "column"), (nets.inner(), "Inner"), (lambda: None, "<lambda>")),
        (partial(nets.mlp, 3, 4, outputs=1), "partial(mlp, 3, 4, outputs=1)"),
        (nn.Sequential(nn.ReLU(), nn.Tanh()), "Sequential( (0): ReLU() (1): Tanh() )"),
        (AllReduce(bucket_bytes=64), "AllReduce(reduce=Exact(), bucket_bytes=64)"),
        *(([Plain()], "[Plain object]"), (Plain().method, "Plain.method")),
        *(({"b", "a"}, "{'a', 'b'}"), (set(), "set()")),
        ([frozenset({2, 1})], "[frozenset({1, 2})]"),
        (OrderedDict(a={"c", "b"}), "OrderedDict({'a': {'b', 'c'}})"),
        (np.array([{"b", "a"}, None], dtype=object), "array([{'a', 'b'}, None], dtype=object)"),
        (Pair({"b", "a"}), "Pair(one={'a', 'b'}, other=None)"),
        (SimpleNamespace(call=nets.column), "SimpleNamespace(call=column)"),
        (torch.Size([2, 3]), "torch.Size([2, 3])"),
        *((Filled(1), "Filled(one=1)"), (Filled(ITSELF), "Filled(one=[1, ...])")),
        (threading.Lock(), "<unlocked _thread.lock object>"),
        ("x" * 300, "x" * 197 + "..."),
    ],
)
def test_value_fits_on_one_line(value, text):
    assert format_value(value) == text


# ---- Params ----------------------------------------------------------------------------------------------------------


def test_aliases_replace_uids(spark):
    def pipeline() -> Pipeline:
        indexer = StringIndexer(inputCol="a")
        scaler = StandardScaler(inputCol=indexer.getOutputCol())
        return Pipeline(stages=[indexer, Pipeline(stages=[scaler, LogisticRegression()])])

    one = describe(pipeline())
    assert one == describe(pipeline())
    indexer, inner = one["stages"].values()
    assert indexer["outputCol"] == inner["stages"]["0"]["inputCol"] == "StringIndexer#1__output"
    assert inner["stages"]["0"]["outputCol"] == "StandardScaler#3__output"
    names = ["Pipeline", "StringIndexer", "Pipeline", "StandardScaler", "LogisticRegression"]
    assert [type(params).__name__ for params in within(pipeline())] == names


def test_params_of_nested_estimators_count(spark):
    def cross_validator(depth: int) -> CrossValidator:
        logistic = LogisticRegression()
        pipeline = Pipeline(stages=[logistic])
        maps: list[Any] = [{logistic.maxIter: depth, pipeline.stages: [LogisticRegression(maxIter=depth)]}]
        return CrossValidator(estimator=pipeline, estimatorParamMaps=maps)

    def holding(depth: int) -> Any:
        base = Pipeline(stages=[StandardScaler(inputCol="a"), LogisticRegression(maxIter=depth)])
        return lambda: [base, *base.getStages()]

    for make in (cross_validator, lambda depth: scope(cross_validator(depth)), holding):
        assert describe(make(1)) == describe(make(1)) != describe(make(2))
    (inner,) = describe(cross_validator(1))["estimatorParamMaps"].values()
    assert inner["LogisticRegression#2.maxIter"] == "1"
    assert inner["Pipeline#1.stages"]["0"]["class"] == "LogisticRegression"
    assert [type(params) for params in params_in({"a": [("b", LogisticRegression())]})] == [LogisticRegression]


CODE = """
{more}
import functools, logging, threading
from dataclasses import dataclass
import torch
from torch import nn
from torch.nn import functional as F

@dataclass
class Config:
    {doc}
    dropout: float

class Plain:
    {doc}
    def __init__(self, by):
        self.by, self.lock = by, threading.Lock()

class Net(Plain):
    def forward(self, x):
        {doc}
        class Inner:
            {doc}
            value = None
        return x * {factor}

{more}
@functools.lru_cache
def cached(x):
    {doc}
    return x + {cached}

class Holder:
    config = Config({held})
    class Inner:
        value = {inner}

LOGGER, LOCK = logging.getLogger("{logger}"), threading.Lock()
CONFIG, PLAIN, NAMES = Config({config}), Plain({plain}), {{"a", {name!r}}}
CUT, LOSS, TYPE = functools.partial(torch.clamp, max={cut}), F.{loss}, torch.{dtype}
LAYERS, CHOICE = {{"one": nn.Linear, "loss": F.{choice}}}, [CONFIG]
CHOICE.append(CHOICE)

def make():
    {doc}
    if Net is None:
        return None
    LOGGER.info(LOCK)
    return CONFIG, PLAIN, NAMES, CUT, LOSS, TYPE, LAYERS, CHOICE, cached(1), Holder
"""
COUNTED = ("cached", "factor", "held", "inner", "config", "plain", "name", "cut")
DEFAULTS = {"logger": "a", "loss": "mse_loss", "dtype": "float32", "choice": "l1_loss", "more": "", "doc": ""}


@pytest.mark.parametrize("name", ["notebook", "__main__"])
@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        *(({name: 2}, True) for name in COUNTED),
        *(({"loss": "l1_loss"}, True), ({"dtype": "float64"}, True), ({"choice": "mse_loss"}, True)),
        *(({"logger": "b"}, False), ({"more": "# more\n\n", "doc": "'''A docstring.'''"}, False)),
    ],
    ids=str,
)
def test_code_and_globals_of_program_count(name, changes, counts):
    """Docstrings, comments, line numbers and a library's objects do not count."""

    def described(**changes: Any) -> list[Any]:
        names: dict[str, Any] = {"__name__": name}
        with pytest.MonkeyPatch.context() as patch:  # a data class looks its module up
            patch.setitem(sys.modules, name, ModuleType(name))
            exec(CODE.format(**dict.fromkeys(COUNTED, 1) | DEFAULTS | changes), names)  # as a notebook does
            return [describe(names[name]) for name in ("make", "Net", "cached")]

    before, after = described(), described(**changes)
    assert before == described()
    assert (before[0] != after[0]) == counts
    assert counts or before == after
