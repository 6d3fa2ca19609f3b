"""Each mistake of a user is one error that names it, and writes no history."""

from __future__ import annotations

import sys
import threading
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from pyspark.ml.linalg import Vectors
from pyspark.sql import Row
from torch import Tensor, nn

from sparkdl import ParallelSGD, TorchClassifier
from sparkdl.errors import ClusterUnavailable, InvalidInput, WorkerFailed
from tests.ml import nets

pytestmark = pytest.mark.slow

SCREEN = 24 * 100  # characters
MODULE = "on_the_driver_alone"


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nets.scores()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class Fails(Inner):
    """Raises on the worker that has a row above 100."""

    def forward(self, x: Tensor) -> Tensor:
        if x.max() > 100:
            raise LookupError("no such sample")
        return self.inner(x)


class Two(Inner):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.inner(x) + y


class Locked(Inner):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


def exploding(output: Tensor, target: Tensor) -> Tensor:
    return output.sum(1) * float("nan")


def number(output: Tensor, target: Tensor) -> float:
    return 1.0


ROWS = [Row(features=[float(i), 1.0, 2.0], label=i % 3) for i in range(40)]


def row(**changed: Any) -> list[Row]:
    """The rows, with one of them changed."""
    return [*ROWS[:-1], Row(**{**ROWS[-1].asDict(), **changed})]


def ragged_vectors(spark: Any) -> Any:
    return spark.createDataFrame([Row(features=Vectors.dense([1.0] * (1 + i % 2)), label=i % 3) for i in range(40)])


class Mistake(NamedTuple):
    """Pieces of the message in order, arguments of the estimator, rows or a function of the session, error."""

    message: list[str]
    arguments: dict[str, Any] = {}  # noqa: RUF012 - nobody writes to it
    data: Any = None
    error: type[Exception] = InvalidInput


MISTAKES = {
    "missing column": Mistake(["no column 'x'", "'features', 'label'"], {"inputCols": ["x"]}),
    "null": Mistake(["'features'", "1 null", "na.drop()"], data=row(features=None)),
    "ragged vectors": Mistake(["'features'", "several lengths"], data=ragged_vectors),
    "label above numClasses": Mistake(
        ["'label' holds 7", "from 0 to 2", "StringIndexer"], {"numClasses": 3}, row(label=7)
    ),
    "label above the model's classes": Mistake(
        ["the loss raised IndexError", "Target 7 is out of bounds", "The output was [", "3] float32", "target ["],
        data=row(label=7),
        error=WorkerFailed,
    ),
    "one class": Mistake(
        ["'label' holds 1 in every row", "at least two classes"],
        data=[Row(features=[1.0, 1.0, 2.0], label=1) for _ in range(40)],
    ),
    "no rows": Mistake(["the data has no rows"], data=lambda spark: spark.createDataFrame(ROWS).where("false")),
    "only validation rows": Mistake(
        ["every row is a validation row"],
        {"validationIndicatorCol": "valid"},
        [Row(**each.asDict(), valid=True) for each in ROWS],
    ),
    "too many workers": Mistake(["9 task slots", "numWorkers"], {"numWorkers": 9}, None, ClusterUnavailable),
    "too large minWorkers": Mistake(["minWorkers is 3", "at most numWorkers, which is 2"], {"minWorkers": 3}),
    "model with a lock": Mistake(["objective.model.lock is of type lock", "cannot pickle"], {"model": Locked()}),
    "module without executors": Mistake([f"the module '{MODULE}' is on the driver but not on", "--py-files"]),
    "failing model": Mistake(
        ["LookupError: no such sample"], {"model": Fails}, row(features=[200.0, 0.0, 0.0]), WorkerFailed
    ),
    "too few inputs": Mistake(
        ["forward() of Two raised TypeError", "missing 1 required positional argument: 'y'", "Its inputs were ["],
        {"model": Two},
        error=WorkerFailed,
    ),
    "loss without a tensor": Mistake(["returned float", "torch.Tensor"], {"loss": number}),
    "NaN loss": Mistake(
        ["the loss is nan on rank", "step 0", "batch 1 of 1 in epoch 1", "maxGradNorm"], {"loss": exploding}
    ),
    "no module": Mistake(["returned dict; expected a torch.nn.Module"], {"model": dict}),
    "classes of a binary loss": Mistake(
        ["numClasses is 3", "expected 2: BCEWithLogitsLoss()"], {"numClasses": 3, "loss": nn.BCEWithLogitsLoss()}
    ),
}
IN_ROUNDS = {
    name: MISTAKES[name]
    for name in ("null", "one class", "only validation rows", "module without executors", "too few inputs")
} | {
    "NaN loss": Mistake(["round 1", "the loss is not finite", "maxGradNorm"], {"loss": exploding}),
    "failing model": MISTAKES["failing model"]._replace(message=["round 1", "LookupError: no such sample"]),
    "device": Mistake(["device is 'cuda'", "ParallelSGD"], {"device": "cuda"}),
    "precision": Mistake(["expected 'fp32' or 'fp64' with ParallelSGD"], {"precision": "bf16"}),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_is_named(spark, tmp_path, monkeypatch, name):
    check(spark, tmp_path / "run", monkeypatch, name, MISTAKES[name])


@pytest.mark.parametrize("name", IN_ROUNDS)
def test_mistake_is_named_in_rounds(spark, tmp_path, monkeypatch, name):
    strategy = ParallelSGD(rounds=1, shard_batch_size=20)
    check(spark, tmp_path / "run", monkeypatch, name, IN_ROUNDS[name], strategy=strategy)


def check(spark, run, monkeypatch, name, mistake, **given):
    data = mistake.data(spark) if callable(mistake.data) else spark.createDataFrame(mistake.data or ROWS)
    arguments = {"model": nets.scores, "numWorkers": 2} | given | mistake.arguments
    if name == "module without executors":
        module = ModuleType(MODULE)
        exec("from tests.ml import nets\ndef make():\n    return nets.scores()", module.__dict__)
        monkeypatch.setitem(sys.modules, MODULE, module)
        arguments["model"] = module.make
    with pytest.raises(mistake.error) as caught:
        TorchClassifier(**arguments, runDir=str(run)).fit(data)
    assert type(caught.value) is mistake.error
    text = rest = caught.value.message
    for piece in mistake.message:
        assert piece in rest, text
        rest = rest.partition(piece)[2]
    if mistake.error is WorkerFailed:
        assert f"rank {caught.value.rank}" in str(caught.value)
        assert "in forward" in caught.value.trace or "loss" in text
    assert len(text) < SCREEN
    assert "\tat " not in str(caught.value)  # no Java stack
    assert "py4j" not in str(caught.value)
    assert not (run / "history.json").exists()


def test_session_works_after_mistakes(spark):
    for name in ("null", "NaN loss"):
        with pytest.raises(InvalidInput):
            TorchClassifier(**{"model": nets.scores, "numWorkers": 2} | MISTAKES[name].arguments).fit(
                spark.createDataFrame(MISTAKES[name].data or ROWS)
            )
    model = TorchClassifier(model=partial(nets.scores), numWorkers=2).fit(spark.createDataFrame(ROWS))
    assert model.transform(spark.createDataFrame(ROWS)).count() == 40
