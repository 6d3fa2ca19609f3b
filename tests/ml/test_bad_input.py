"""What a user can get wrong, as one table: each mistake is one error that names it, and loses nothing."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
from pyspark.ml.linalg import Vectors
from pyspark.sql import Row
from torch import Tensor, nn

from sparkdl import ParallelSGD, TorchClassifier, TorchEstimator, TorchRegressor
from sparkdl.errors import ClusterUnavailable, InvalidInput, SparkdlError, WorkerFailed
from tests.ml import nets

pytestmark = pytest.mark.slow  # all of them together, each being a fit

SCREEN = 24 * 100  # characters


class Fails(nn.Module):
    """Raises on the member that has a row above 100."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nets.scores()

    def forward(self, x: Tensor) -> Tensor:
        if x.max() > 100:
            raise LookupError("no such sample")
        return self.inner(x)


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nets.scores().requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nets.scores()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.inner(x) + y


class Locked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nets.scores()
        self.lock = threading.Lock()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def exploding(output: Tensor, target: Tensor) -> Tensor:
    return output.sum(1) * float("nan")


def short(output: Tensor, target: Tensor) -> Tensor:
    return output.sum(1)[1:]


def number(output: Tensor, target: Tensor) -> float:
    return 1.0


def only_here() -> Any:
    """A factory of a module that is on the driver alone."""
    module = ModuleType("on_the_driver_alone")
    exec("from tests.ml import nets\ndef make():\n    return nets.scores()", module.__dict__)
    sys.modules["on_the_driver_alone"] = module
    return module.make


ROWS = [Row(features=[float(i), 1.0, 2.0], label=i % 3) for i in range(40)]


def row(**changed: Any) -> list[Row]:
    """The rows, with one of them changed."""
    return [*ROWS[:-1], Row(**{**ROWS[-1].asDict(), **changed})]


def typed(kind: str) -> Callable[[Any], Any]:
    """The rows with features of another type."""
    return lambda spark: spark.createDataFrame(ROWS).selectExpr(f"{kind} as features", "label")


@dataclass
class Mistake:
    """What is wrong, and what is said.

    Attributes:
        says: pieces of the message, in this order.
        arguments: of the estimator.
        data: rows, or a function of the session that makes a DataFrame.
        kind: the error's class.
        estimator: the estimator's class.
    """

    says: list[str]
    arguments: dict[str, Any] = field(default_factory=dict)
    data: Any = None
    kind: type[SparkdlError] = InvalidInput
    estimator: Any = TorchClassifier


MISTAKES = {
    "a missing column": Mistake(["no column 'x'", "'features', 'label'"], {"inputCols": ["x"]}),
    "a missing label": Mistake(["no column 'y'", "'features', 'label'"], {"labelCol": "y"}),
    "strings": Mistake(["'features'", "string", "StringIndexer"], data=typed("'a'")),
    "a map": Mistake(["'features'", "map<", "Select its values", "VectorAssembler"], data=typed("map('a', 1)")),
    "a struct": Mistake(
        ["'features'", "struct<", "Select its fields", "VectorAssembler"], data=typed("struct(1 as a)")
    ),
    "a null": Mistake(["shard ", "'features'", "1 null", "na.drop()"], data=row(features=None)),
    "a null label": Mistake(["'label'", "1 null"], data=row(label=None)),
    "a NaN": Mistake(["shard ", "'features'", "1 NaN"], data=row(features=[0.0, float("nan"), 0.0])),
    "infinity": Mistake(["shard ", "'features'", "1 infinite"], data=row(features=[0.0, float("inf"), 0.0])),
    "ragged arrays": Mistake(["shard ", "'features'", "several lengths"], data=row(features=[0.0])),
    "ragged vectors": Mistake(
        ["'features'", "several lengths"],
        data=lambda spark: spark.createDataFrame(
            [Row(features=Vectors.dense([1.0] * (1 + i % 2)), label=i % 3) for i in range(40)]
        ),
    ),
    "a label between classes": Mistake(
        ["'label'", "whole numbers"], data=[Row(features=[1.0, 1.0, 2.0], label=0.5 * i) for i in range(40)]
    ),
    "a negative label": Mistake(["'label' holds -1", "class indices from 0"], data=row(label=-1)),
    "a label too large for numClasses": Mistake(
        ["'label' holds 7", "from 0 to 2", "StringIndexer"], {"numClasses": 3}, row(label=7)
    ),
    "a label too large for the model": Mistake(
        ["the loss raised IndexError", "Target 7 is out of bounds", "output of [", "3] float32", "target of ["],
        data=row(label=7),
        kind=WorkerFailed,
    ),
    "a negative weight": Mistake(
        ["'weight'", "-1"], {"weightCol": "weight"}, [Row(**each.asDict(), weight=-1.0) for each in ROWS]
    ),
    "one class only": Mistake(
        ["'label' holds 1 in every row", "at least two classes"],
        data=[Row(features=[1.0, 1.0, 2.0], label=1) for _ in range(40)],
    ),
    "no rows": Mistake(["the data has no rows"], data=lambda spark: spark.createDataFrame(ROWS).where("false")),
    "too many workers": Mistake(
        ["9 workers need 9 task slots", "numWorkers"], {"numWorkers": 9}, None, ClusterUnavailable
    ),
    "a batch of nothing": Mistake(["batchSize is 0", "at least 1"], {"batchSize": 0}),
    "no epochs": Mistake(["epochs is -1", "at least 1"], {"epochs": -1}),
    "no workers": Mistake(["numWorkers is 0", "at least 1"], {"numWorkers": 0}),
    "a model that cannot be pickled": Mistake(
        ["objective.model.lock is of type lock", "cannot pickle"], {"model": Locked()}
    ),
    "a module that executors lack": Mistake(
        ["the module 'on_the_driver_alone' is on the driver but not on", "--py-files"], {"model": only_here}
    ),
    "a model that raises": Mistake(
        ["LookupError: no such sample"], {"model": Fails}, row(features=[200.0, 0.0, 0.0]), WorkerFailed
    ),
    "too few inputs": Mistake(
        ["forward() of Two raised TypeError", "missing 1 required positional argument: 'y'", "given 1 inputs, of ["],
        {"model": Two},
        kind=WorkerFailed,
    ),
    "a model of another width": Mistake(
        ["forward() of Sequential raised RuntimeError", "x3 and 64x", "given 1 inputs, of [", ", 3] float32"],
        {"model": nets.digits},
        kind=WorkerFailed,
    ),
    "a loss of the wrong shape": Mistake(["loss(output, target)", "shape (", "batch of"], {"loss": short}),
    "a loss that is no tensor": Mistake(["returned float", "torch.Tensor"], {"loss": number}),
    "a loss of other shapes": Mistake(
        ["the loss raised", "output of [", ", 3] float32", "target of [", "] float32"],
        {"model": nets.scores, "loss": nn.MSELoss()},
        kind=WorkerFailed,
        estimator=TorchRegressor,
    ),
    "nothing to train": Mistake(["Frozen has no trainable parameters"], {"model": Frozen}),
    "a NaN loss": Mistake(
        ["the loss is nan on rank", "step 0", "batch 1 of 1 in epoch 1", "maxGradNorm"], {"loss": exploding}
    ),
    "no loss": Mistake(["loss is not set", "TorchEstimator(loss=...)"], estimator=TorchEstimator),
    "a model that is none": Mistake(["returned dict; expected a torch.nn.Module"], {"model": dict}),
    "a hook of nothing": Mistake(["hooks holds", "on_epoch"], {"hooks": [3]}),
    "an unknown device": Mistake(["device is 'tpu'", "cpu, cuda"], {"device": "tpu"}),
    "an unknown precision": Mistake(["precision is 'fp8'", "fp32, bf16, fp64"], {"precision": "fp8"}),
    "a clipping norm of nothing": Mistake(["maxGradNorm is 0", "above 0"], {"maxGradNorm": 0}),
    "two zero thresholds": Mistake(["thresholds is [0.0, 0.0]", "at most one"], {"thresholds": [0.0, 0.0]}),
    "two names for the inputs": Mistake(
        ["featuresCol is 'x'", "inputCols is ['a']"], {"featuresCol": "x", "inputCols": ["a"]}
    ),
}


IN_ROUNDS = {
    "a NaN loss": ["part ", "round 1", "the loss is not finite", "maxGradNorm"],
    "a model that raises": ["part ", "round 1", "LookupError: no such sample"],
}
"""What rounds say of it, where that is something else."""


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named(spark, tmp_path, name):
    check(spark, tmp_path / "run", MISTAKES[name], batchSize=40)


@pytest.mark.filterwarnings("ignore:.*does not use it")
@pytest.mark.parametrize("name", sorted({*MISTAKES} - {"too many workers", "a hook of nothing"}))
def test_a_mistake_is_named_in_rounds(spark, tmp_path, name):
    """Parts wait for their turn, and hooks are of no use."""
    mistake = MISTAKES[name]
    says = IN_ROUNDS.get(name, mistake.says)
    check(spark, tmp_path / "run", replace(mistake, says=says), strategy=ParallelSGD(rounds=1, shard_batch_size=20))


def check(spark, run, mistake, **given):
    """The mistake is one error of its kind that says what it should, and leaves no history."""
    data = mistake.data(spark) if callable(mistake.data) else spark.createDataFrame(mistake.data or ROWS)
    arguments = {"model": nets.scores, "numWorkers": 2} | given | mistake.arguments
    if arguments["model"] is only_here:  # and not wherever this module is imported, which executors do as well
        arguments["model"] = only_here()
    with pytest.raises(mistake.kind) as caught:
        mistake.estimator(**arguments, runDir=str(run)).fit(data)
    assert type(caught.value) is mistake.kind
    text, rest = caught.value.message, caught.value.message
    for piece in mistake.says:
        assert piece in rest, text
        rest = rest.partition(piece)[2]
    if mistake.kind is WorkerFailed:
        assert f"rank {caught.value.rank}" in str(caught.value)
    assert len(text) < SCREEN
    assert "\tat " not in str(caught.value)  # no Java stack beside it
    assert not (run / "history.json").exists()


@pytest.mark.parametrize("name", ["a NaN", "a NaN loss"])
def test_a_mistake_leaves_the_session_as_it_was(spark, name):
    mistake = MISTAKES[name]
    arguments = {"model": nets.scores, "numWorkers": 2} | mistake.arguments
    with pytest.raises(mistake.kind):
        TorchClassifier(**arguments).fit(spark.createDataFrame(mistake.data or ROWS))
    model = TorchClassifier(model=partial(nets.scores), numWorkers=2).fit(spark.createDataFrame(ROWS))
    assert model.transform(spark.createDataFrame(ROWS)).count() == 40
    assert torch.isfinite(model.module()[0].weight).all()
