"""Each mistake of a user is one error that names it, and writes no history."""

from __future__ import annotations

import sys
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from pyspark.ml.linalg import Vectors
from pyspark.sql import Row
from torch import Tensor, nn
from torchmetrics.classification import BinaryAUROC, MulticlassAccuracy

from sparkdl import LBFGS, ConsensusADMM, FederatedAveraging, ParallelSGD, TorchClassifier
from sparkdl.errors import InvalidInput, WorkerFailed
from tests.ml import nets

pytestmark = pytest.mark.slow

SCREEN = 24 * 100  # characters
MODULE = "on_the_driver_alone"


class Fails(nn.Linear):
    """Raises in training on the worker that has a row above 100; the trial before it runs in evaluation mode."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and x.max() > 100:
            raise LookupError("no such sample")
        return super().forward(x)


def exploding(output: Tensor, target: Tensor) -> Tensor:
    return output.sum(1) * float("nan")


def of_pairs() -> nn.Module:
    """A factory, unlike a class, does not tell the driver the arguments of ``forward``."""
    return nn.Bilinear(3, 3, 3)


def number(output: Tensor, target: Tensor) -> float:
    return 1.0


ROWS = [Row(features=[float(i), 1.0, 2.0], label=i % 3) for i in range(40)]


def changed(**values: Any) -> list[Row]:
    """The rows; the last one has other values."""
    return [*ROWS[:-1], Row(**{**ROWS[-1].asDict(), **values})]


class Mistake(NamedTuple):
    """Pieces of the message in order, arguments of the estimator, rows, error."""

    message: list[str]
    arguments: dict[str, Any] = {}  # noqa: RUF012 - nobody writes to it
    rows: list[Row] = ROWS
    error: type[Exception] = InvalidInput


MISTAKES = {
    "null": Mistake(
        ["'features'", "1 null", "na.drop()"],
        {"validationFraction": 0.5},
        [Row(features=Vectors.dense(row.features) if row.label else None, label=row.label) for row in ROWS[1:5]],
    ),
    "null label": Mistake(
        ["'label'", "1 null", "na.drop()"],
        {"multiLabel": True},
        [Row(features=row.features, label=Vectors.dense(1, 0, 1) if row.label else None) for row in ROWS[1:5]],
    ),
    "null weight": Mistake(
        ["'weight'", "1 null", "na.drop()"],
        {"weightCol": "weight"},
        [Row(**row.asDict(), weight=1.0 if row.label else None) for row in ROWS[1:5]],
    ),
    "one-hot label": Mistake(
        ["class indices", "F.array_position("],
        rows=[Row(features=row.features, label=Vectors.dense(*(row.label == at for at in range(3)))) for row in ROWS],
    ),
    "one score": Mistake(
        ["CrossEntropyLoss", "BCEWithLogitsLoss"],
        {"model": nets.column},
        [Row(features=row.features, label=row.label % 2) for row in ROWS],
    ),
    "metric of one score": Mistake(
        ["the metric 'auc' raised", "use MulticlassAUROC(num_classes=3)"], {"metrics": {"auc": BinaryAUROC()}}
    ),
    "label above numClasses": Mistake(
        ["'label' holds 7", "from 0 to 2", "StringIndexer"], {"numClasses": 3}, changed(label=7)
    ),
    "label above the model's classes": Mistake(["'label' holds 7", "from 0 to 2"], rows=changed(label=7)),
    "one class": Mistake(
        ["'label' holds 1 in every row", "at least two classes"],
        rows=[Row(features=[1.0, 1.0, 2.0], label=1) for _ in range(40)],
    ),
    "module without executors": Mistake([f"the module '{MODULE}' is on the driver but not on", "--py-files"]),
    "failing model": Mistake(
        ["LookupError: no such sample"],
        {"model": partial(Fails, 3, 3)},
        changed(features=[200.0, 0.0, 0.0]),
        WorkerFailed,
    ),
    "too few inputs": Mistake(
        ["forward() of Bilinear raised TypeError", "missing 1 required positional argument", "Its inputs were ["],
        {"model": of_pairs},
        error=WorkerFailed,
    ),
    "loss without a tensor": Mistake(["returned float", "torch.Tensor"], {"loss": number}),
    "unknown monitor": Mistake(["monitor is 'auc'; the history has loss"], {"monitor": "auc"}),
    "mode of the monitor": Mistake(
        ["monitorMode is 'auto'", "whether a higher sum is better; expected 'min' or 'max'"],
        {"monitor": "sum", "metrics": {"sum": MulticlassAccuracy(3) + 1}},
    ),
    "NaN loss": Mistake(
        ["the loss is nan on rank", "step 0", "batch 1 of 1 in epoch 1", "maxGradNorm"], {"loss": exploding}
    ),
}
ROUNDS = {"strategy": ParallelSGD(rounds=1, shard_batch_size=20)}
SAME = ("null", "one-hot label", "one score", "metric of one score")
SAME += ("label above the model's classes", "module without executors", "too few inputs")
IN_ROUNDS = {name: MISTAKES[name] for name in SAME} | {
    "NaN loss": Mistake(["round 1", "the loss is not finite", "maxGradNorm"], {"loss": exploding}),
    "failing model": MISTAKES["failing model"]._replace(message=["round 1", "LookupError: no such sample"]),
    "device": Mistake(["device is 'cuda'", "PyTorch sees 0 GPUs", "set device='cpu'"], {"device": "cuda"}),
    "precision": Mistake(
        ["expected 'fp32' or 'fp64' with LBFGS, whose tasks take no optimizer steps"],
        {"strategy": LBFGS(), "precision": "bf16"},
    ),
    "patience": Mistake(
        ["patience is 3", "ConsensusADMM", "set validationIndicatorCol"], {"strategy": ConsensusADMM(), "patience": 3}
    ),
    "client": Mistake(["writer"], {"strategy": FederatedAveraging("writer")}),
}


@pytest.mark.parametrize(
    ("mistake", "strategy"),
    [
        *(pytest.param(mistake, {}, id=name) for name, mistake in MISTAKES.items()),
        *(pytest.param(mistake, ROUNDS, id=f"{name} in rounds") for name, mistake in IN_ROUNDS.items()),
    ],
)
def test_mistake_is_named(spark, tmp_path, monkeypatch, mistake, strategy):
    arguments = {"model": nets.scores, "numWorkers": 2} | strategy | mistake.arguments
    if MODULE in mistake.message[0]:
        module = ModuleType(MODULE)
        exec("from tests.ml import nets\ndef make():\n    return nets.scores()", module.__dict__)
        monkeypatch.setitem(sys.modules, MODULE, module)
        arguments["model"] = module.make
    with pytest.raises(mistake.error) as caught:
        TorchClassifier(**arguments, runDir=str(tmp_path)).fit(spark.createDataFrame(mistake.rows))
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
    assert not (tmp_path / "history.json").exists()
