"""Losses and metrics over several workers are those of one process with all rows."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import (
    BinaryAUROC,
    BinaryF1Score,
    BinaryROC,
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
)
from torchmetrics.regression import MeanAbsoluteError, MeanSquaredError, PearsonCorrCoef, SpearmanCorrCoef
from torchmetrics.wrappers import MinMaxMetric

from sparkdl.cluster.group.world import World
from sparkdl.cluster.inline import InlineCluster
from sparkdl.data.batching import Batcher
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.sampler import Plan
from sparkdl.data.shard import Shard
from sparkdl.errors import InvalidInput
from sparkdl.training.loop import Training
from sparkdl.training.objective.loss import forward
from sparkdl.training.objective.metrics import MetricAccumulator, local_states, observe, open_metrics, together
from sparkdl.training.objective.objective import Objective
from tests.contracts import work

CLASSES = work.Seeded(work.Classifier)
NUMBERS = work.Seeded(work.Net)
PROBABILITIES = work.Seeded(work.Probability)
DATA = {
    "x": np.random.default_rng(0).normal(size=(90, 3)).astype(np.float32),
    "label": np.random.default_rng(1).integers(0, 4, 90),
    "y": np.random.default_rng(2).normal(size=90).astype(np.float32),
    "good": np.random.default_rng(3).integers(0, 2, 90),
}


@dataclass(frozen=True)
class Evaluate:
    """Evaluates twice, so that metrics have to be reset."""

    model: work.Seeded
    loss: nn.Module
    metrics: dict[str, Metric]
    batch_size: int = 16

    def __call__(self, world: World, shard: Shard | None) -> list[dict[str, Any]]:
        assert shard is not None
        objective = Objective(self.model, self.loss)
        module, metrics = objective.build().train(), open_metrics(self.metrics, world.device)
        criterion = objective.criterion()
        shard = shard.with_denominators(criterion.denominators)
        batcher = Batcher(shard, Plan(shard.shard_rows, self.batch_size, shuffle=False))
        values = []
        for _ in range(2):
            meter = MetricAccumulator(world.device, metrics)
            observe(module, lambda batch: forward(module, batch.inputs), criterion, batcher.batches(0), meter)
            values.append(meter.close(world.group()))
        assert module.training
        return values


MULTICLASS = {
    "accuracy": MulticlassAccuracy(4),
    "each": MulticlassAccuracy(4, average="none"),
    "f1": MulticlassF1Score(4),
    "confusion": MulticlassConfusionMatrix(4),
    "binned auroc": MulticlassAUROC(4, thresholds=20),
}
BINARY = {"auroc": BinaryAUROC(), "f1": BinaryF1Score(), "roc": BinaryROC(thresholds=None)}
IGNORING = nn.CrossEntropyLoss(weight=torch.tensor([0.5, 1.0, 2.0, 4.0]), ignore_index=2)


def numeric() -> dict[str, Metric]:
    plain = {"mse": MeanSquaredError(), "spearman": SpearmanCorrCoef(), "pearson": PearsonCorrCoef()}
    nested = {"difference": MeanSquaredError() - MeanAbsoluteError(), "range": MinMaxMetric(SpearmanCorrCoef())}
    return plain | nested


class FloatLabels(nn.BCELoss):
    """torch expects float labels here, torchmetrics integers."""

    def forward(self, output, target):
        return super().forward(output, target.to(output.dtype))


class Outputs(Metric):
    """Keeps the outputs of every batch in a list, which torchmetrics gathers item by item."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("kept", default=[], dist_reduce_fx=None)

    def update(self, output, target):
        self.kept.append(output)

    def compute(self):
        return torch.cat(self.kept).sort().values


@pytest.mark.filterwarnings("ignore:Metric `SpearmanCorrcoef` will save all targets")
@pytest.mark.parametrize(
    ("size", "bounds"),
    [
        pytest.param(1, [0, 90], id="one"),
        pytest.param(3, [0, 13, 77, 90], id="uneven shards", marks=pytest.mark.slow),
        pytest.param(3, [0, 11, 90, 90], id="empty shard", marks=pytest.mark.slow),
    ],
)
def test_metrics_are_those_of_one_process(three, size, bounds):
    cluster = three if size == 3 else InlineCluster()
    columns = Columns((InputColumn("x"),), InputColumn("y"), row_id=InputColumn("row"))
    for does, target in (
        (Evaluate(CLASSES, nn.CrossEntropyLoss(), MULTICLASS), "label"),
        (Evaluate(CLASSES, IGNORING, {}), "label"),
        (Evaluate(PROBABILITIES, FloatLabels(), BINARY), "good"),
        (Evaluate(NUMBERS, nn.MSELoss(), numeric()), "y"),
        (Evaluate(NUMBERS, nn.MSELoss(), {"outputs": Outputs()}, batch_size=2), "y"),
    ):
        table = pa.table({"x": list(DATA["x"]), "y": DATA[target], "row": np.arange(90)})
        shards = [table.slice(first, last - first) for first, last in itertools.pairwise(bounds)]
        every = [values for worker in cluster.gang(does, shards, columns) for values in worker]
        assert all(str(values) == str(every[0]) for values in every)  # of both evaluations, on all workers
        assert_same(every[0], expected(does, target))


def test_collection_is_its_metrics():
    opened = open_metrics({"all": MetricCollection([MULTICLASS["f1"], MULTICLASS["each"]])}, torch.device("cpu"))
    assert {name: type(metric) for name, metric in opened.items()} == {
        "all_MulticlassF1Score": MulticlassF1Score,
        "all_MulticlassAccuracy": MulticlassAccuracy,
    }


def expected(does: Evaluate, target: str) -> dict[str, Any]:
    """The values by torch and torchmetrics alone."""
    module = does.model().eval()
    with torch.no_grad():
        output, labels = module(torch.from_numpy(DATA["x"])), torch.from_numpy(DATA[target])
        values: dict[str, Any] = {"loss": does.loss(output, labels).item()}
        for name, metric in does.metrics.items():
            metric.reset()
            metric.update(output, labels)
            values[name] = plain(metric.compute())
            metric.reset()
    return values


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, tuple) else value.tolist()


def assert_same(ours: Any, theirs: Any, name: str = "") -> None:
    if isinstance(theirs, dict):
        assert list(ours) == list(theirs)
        for key, value in theirs.items():
            assert_same(ours[key], value, key)
    else:
        np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=1e-7, err_msg=name)


class Unfinished(Outputs):
    def compute(self):
        raise ValueError("no curve.")


@pytest.mark.parametrize(
    ("metric", "step", "message"),
    [
        (BinaryAUROC(), 0, r"the output \[32, 4\] float32 .* use MulticlassAUROC\(num_classes=4\)"),
        (MinMaxMetric(BinaryAUROC()), 0, "Return another shape from the model, or wrap the metric"),
        (Unfinished(), 6, "ValueError: no curve. It gets what the loss gets. Return another shape"),
    ],
)
def test_metric_that_fails_is_named_before_the_first_step_if_it_is_of_torchmetrics(metric, step, message):
    columns = Columns((InputColumn("x"),), InputColumn("label"))
    training = Training(Objective(CLASSES, nn.CrossEntropyLoss(), metrics={"auc": metric}), 16, kind="classifier")
    with pytest.raises(InvalidInput, match=f"the metric 'auc' raised .*{message}") as caught:
        InlineCluster().gang(training, {"x": DATA["x"], "label": DATA["label"]}, columns)
    assert caught.value.step == step


def test_metrics_of_no_rows_are_nan():
    metrics = open_metrics({"auroc": BinaryAUROC(), "mse": MeanSquaredError()}, torch.device("cpu"))
    assert all(map(np.isnan, together(metrics, [local_states(metrics)]).values()))


def test_metrics_are_copied_and_reset():
    given = MeanSquaredError()
    given.update(torch.ones(3), torch.zeros(3))
    opened = open_metrics({"mse": given}, torch.device("cpu"))
    opened["mse"].update(torch.ones(2), torch.ones(2))
    assert together(opened, [local_states(opened)]) == {"mse": 0.0}
    assert not opened["mse"].update_called
    assert given.compute().item() == 1.0
