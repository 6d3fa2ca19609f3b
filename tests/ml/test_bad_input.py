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

from sparkdl import ParallelSGD, TorchClassifier, TorchRegressor
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


class Frozen(Inner):
    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)


class Two(Inner):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.inner(x) + y


class Locked(Inner):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


def exploding(output: Tensor, target: Tensor) -> Tensor:
    return output.sum(1) * float("nan")


def short(output: Tensor, target: Tensor) -> Tensor:
    return output.sum(1)[1:]


def number(output: Tensor, target: Tensor) -> float:
    return 1.0


ROWS = [Row(features=[float(i), 1.0, 2.0], label=i % 3) for i in range(40)]


def row(**changed: Any) -> list[Row]:
    """The rows, with one of them changed."""
    return [*ROWS[:-1], Row(**{**ROWS[-1].asDict(), **changed})]


def typed(kind: str) -> Any:
    """The rows with features of another type."""
    return lambda spark: spark.createDataFrame(ROWS).selectExpr(f"{kind} as features", "label")


def ragged_vectors(spark: Any) -> Any:
    return spark.createDataFrame([Row(features=Vectors.dense([1.0] * (1 + i % 2)), label=i % 3) for i in range(40)])


class Mistake(NamedTuple):
    """Pieces of the message in order, arguments of the estimator, rows or a function of the session, error."""

    message: list[str]
    arguments: dict[str, Any] = {}  # noqa: RUF012 - nobody writes to it
    data: Any = None
    error: type[Exception] = InvalidInput
    estimator: Any = TorchClassifier


MISTAKES = {
    "missing column": Mistake(["no column 'x'", "'features', 'label'"], {"inputCols": ["x"]}),
    "missing label": Mistake(["no column 'y'", "'features', 'label'"], {"labelCol": "y"}),
    "strings": Mistake(["'features'", "string", "StringIndexer"], data=typed("'a'")),
    "map": Mistake(["'features'", "map<", "Select its values", "VectorAssembler"], data=typed("map('a', 1)")),
    "struct": Mistake(["'features'", "struct<", "Select its fields", "VectorAssembler"], data=typed("struct(1 as a)")),
    "timestamp": Mistake(["'features'", "timestamp", "F.unix_timestamp"], data=typed("current_timestamp()")),
    "interval": Mistake(["'features'", "interval day", "F.extract"], data=typed("interval '3' day")),
    "null": Mistake(["'features'", "1 null", "na.drop()"], data=row(features=None)),
    "NaN": Mistake(["'features'", "1 NaN"], data=row(features=[0.0, float("nan"), 0.0])),
    "infinity": Mistake(["'features'", "1 infinite"], data=row(features=[0.0, float("inf"), 0.0])),
    "ragged arrays": Mistake(["'features'", "several lengths", 'ragged="offsets"'], data=row(features=[0.0])),
    "ragged vectors": Mistake(["'features'", "several lengths"], data=ragged_vectors),
    "label between classes": Mistake(
        ["'label'", "whole numbers"], data=[Row(features=[1.0, 1.0, 2.0], label=0.5 * i) for i in range(40)]
    ),
    "negative label": Mistake(["'label' holds -1", "class indices from 0"], data=row(label=-1)),
    "label above numClasses": Mistake(
        ["'label' holds 7", "from 0 to 2", "StringIndexer"], {"numClasses": 3}, row(label=7)
    ),
    "label above the model's classes": Mistake(
        ["the loss raised IndexError", "Target 7 is out of bounds", "output of [", "3] float32", "target of ["],
        data=row(label=7),
        error=WorkerFailed,
    ),
    "negative weight": Mistake(
        ["'weight'", "-1"], {"weightCol": "weight"}, [Row(**each.asDict(), weight=-1.0) for each in ROWS]
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
        ["forward() of Two raised TypeError", "missing 1 required positional argument: 'y'", "given 1 inputs, of ["],
        {"model": Two},
        error=WorkerFailed,
    ),
    "model of another width": Mistake(
        ["forward() of Sequential raised RuntimeError", "x3 and 64x", "given 1 inputs, of [", ", 3] float32"],
        {"model": nets.digits},
        error=WorkerFailed,
    ),
    "loss of the wrong shape": Mistake(["loss(output, target)", "shape (", "batch of"], {"loss": short}),
    "loss without a tensor": Mistake(["returned float", "torch.Tensor"], {"loss": number}),
    "loss of other shapes": Mistake(
        ["the loss raised", "output of [", ", 3] float32", "target of [", "] float32"],
        {"loss": nn.MSELoss()},
        error=WorkerFailed,
        estimator=TorchRegressor,
    ),
    "no trainable parameters": Mistake(["Frozen has no trainable parameters"], {"model": Frozen}),
    "NaN loss": Mistake(
        ["the loss is nan on rank", "step 0", "batch 1 of 1 in epoch 1", "maxGradNorm"], {"loss": exploding}
    ),
    "no module": Mistake(["returned dict; expected a torch.nn.Module"], {"model": dict}),
    "classes of a binary loss": Mistake(
        ["numClasses is 3", "expected 2: BCEWithLogitsLoss()"], {"numClasses": 3, "loss": nn.BCEWithLogitsLoss()}
    ),
}
# The checks of rows, of module, forward pass and loss are shared with gangs: one mistake of each place.
IN_ROUNDS = {
    name: MISTAKES[name]
    for name in (
        "missing column", "null", "label between classes", "label above numClasses", "one class", "no rows",
        "only validation rows", "model with a lock", "module without executors", "too few inputs",
        "label above the model's classes", "loss of the wrong shape", "no trainable parameters", "no module",
    )
} | {
    "NaN loss": Mistake(["round 1", "the loss is not finite", "maxGradNorm"], {"loss": exploding}),
    "failing model": MISTAKES["failing model"]._replace(message=["round 1", "LookupError: no such sample"]),
    "device": Mistake(["device is 'cuda'", "ParallelSGD"], {"device": "cuda"}),
    "precision": Mistake(["expected 'fp32' or 'fp64' with ParallelSGD"], {"precision": "bf16"}),
}  # fmt: skip


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
        mistake.estimator(**arguments, runDir=str(run)).fit(data)
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
    for name in ("NaN", "NaN loss"):
        with pytest.raises(InvalidInput):
            TorchClassifier(**{"model": nets.scores, "numWorkers": 2} | MISTAKES[name].arguments).fit(
                spark.createDataFrame(MISTAKES[name].data or ROWS)
            )
    model = TorchClassifier(model=partial(nets.scores), numWorkers=2).fit(spark.createDataFrame(ROWS))
    assert model.transform(spark.createDataFrame(ROWS)).count() == 40
