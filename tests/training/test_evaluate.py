"""Losses and metrics over several members are those of one process that sees all rows."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import partial
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

from sparkdl.cluster.group.world import Group, World
from sparkdl.cluster.inline import InlineCluster
from sparkdl.cluster.local import LocalCluster
from sparkdl.data.batch import Batch
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.shard import Shard
from sparkdl.training.evaluate import evaluate, observe
from sparkdl.training.loss import Criterion
from sparkdl.training.metrics import MetricAccumulator, open_metrics, synchronised
from sparkdl.training.objective import Objective
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
    """Evaluate twice, so that metrics have to start anew."""

    model: work.Seeded
    loss: nn.Module
    metrics: dict[str, Metric]
    batch_size: int = 16

    def __call__(self, world: World, part: Shard | None) -> list[dict[str, Any]]:
        assert part is not None
        objective = Objective(self.model, self.loss)
        module, metrics = objective.build().train(), open_metrics(self.metrics, world.device)
        criterion = objective.criterion()
        part = part.with_denominators(criterion.denominators)
        return [
            evaluate(
                *(module, criterion, part, world.group()),
                metrics=metrics,
                batch_size=self.batch_size,
                device=world.device,
            )
            for _ in range(2)
        ]


@pytest.fixture(scope="module", params=[1, 2, 3])
def cluster(request):
    if request.param == 1:
        yield InlineCluster()
        return
    with LocalCluster(request.param) as cluster:
        yield cluster


def parts(size: int, target: str, empty: bool) -> list[pa.Table]:
    """Uneven parts; the last one empty."""
    bounds = (
        {1: [0, 90], 2: [0, 90, 90], 3: [0, 11, 90, 90]} if empty else {1: [0, 90], 2: [0, 13, 90], 3: [0, 13, 77, 90]}
    )
    columns = {"x": list(DATA["x"]), "y": DATA[target], "row": np.arange(90)}
    table = pa.table(columns)
    return [table.slice(first, last - first) for first, last in itertools.pairwise(bounds[size])]


def found(cluster, does: Evaluate, target: str, *, empty: bool = False) -> dict[str, Any]:
    """What every member finds, both times."""
    columns = Columns((InputColumn("x"),), InputColumn("y"), row_id=InputColumn("row"))
    every = cluster.gang(does, parts(cluster.size, target, empty), columns)
    first = every[0][0]
    assert all(str(value) == str(first) for values in every for value in values)
    return first


def expected(does: Evaluate, target: str) -> dict[str, Any]:
    """The same by torch and torchmetrics alone."""
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


MULTICLASS = {
    "accuracy": MulticlassAccuracy(4),
    "each": MulticlassAccuracy(4, average="none"),
    "f1": MulticlassF1Score(4),
    "confusion": MulticlassConfusionMatrix(4),
    "binned auroc": MulticlassAUROC(4, thresholds=20),
}
BINARY = {"auroc": BinaryAUROC(), "f1": BinaryF1Score(), "roc": BinaryROC(thresholds=None)}


def regression() -> dict[str, Metric]:
    return {"mse": MeanSquaredError(), "spearman": SpearmanCorrCoef(), "pearson": PearsonCorrCoef()}


def nested() -> dict[str, Metric]:
    return {"difference": MeanSquaredError() - MeanAbsoluteError(), "range": MinMaxMetric(SpearmanCorrCoef())}


class WholeNumbers(nn.BCELoss):
    """torch wants labels as floats here, torchmetrics as whole numbers."""

    def forward(self, output, target):
        return super().forward(output, target.to(output.dtype))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Metric `SpearmanCorrcoef` will save all targets")
@pytest.mark.parametrize("empty", [False, True], ids=["uneven parts", "a part without rows"])
def test_metrics_are_those_of_one_process(cluster, empty):
    for does, target in (
        (Evaluate(CLASSES, nn.CrossEntropyLoss(), MULTICLASS), "label"),
        (Evaluate(PROBABILITIES, WholeNumbers(), BINARY), "good"),
        (Evaluate(NUMBERS, nn.MSELoss(), regression()), "y"),
        (Evaluate(NUMBERS, nn.MSELoss(), nested()), "y"),
    ):
        assert_same(found(cluster, does, target, empty=empty), expected(does, target))


def test_lists_may_be_longer_on_one_member_than_on_another(cluster):
    does = Evaluate(NUMBERS, nn.MSELoss(), {"outputs": Outputs()}, batch_size=2)
    outputs = expected(does, "y")["outputs"]
    for empty in (False, True):
        assert sorted(found(cluster, does, "y", empty=empty)["outputs"]) == pytest.approx(sorted(outputs), abs=1e-6)


class Outputs(Metric):
    """Keeps every batch's outputs in a list, which torchmetrics gathers item by item."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("kept", default=[], dist_reduce_fx=None)

    def update(self, output, target):
        self.kept.append(output)

    def compute(self):
        return torch.cat(self.kept)


def test_a_collection_is_its_metrics(cluster):
    does = Evaluate(CLASSES, nn.CrossEntropyLoss(), {"all": MetricCollection([MULTICLASS["f1"], MULTICLASS["each"]])})
    ours = found(cluster, does, "label")
    theirs = expected(
        replace(
            does, metrics={"all_MulticlassF1Score": MULTICLASS["f1"], "all_MulticlassAccuracy": MULTICLASS["each"]}
        ),
        "label",
    )
    assert_same({name: ours[name] for name in sorted(ours)}, {name: theirs[name] for name in sorted(theirs)})


def test_metrics_of_no_rows_are_not_numbers():
    metrics = open_metrics({"auroc": BinaryAUROC(), "mse": MeanSquaredError()}, torch.device("cpu"))
    assert all(np.isnan(synchronised(metric, Group())) for metric in metrics.values())


def test_metrics_are_copied_and_start_anew():
    given = MeanSquaredError()
    given.update(torch.ones(3), torch.zeros(3))
    opened = open_metrics({"mse": given}, torch.device("cpu"))["mse"]
    opened.update(torch.ones(2), torch.ones(2))
    assert synchronised(opened, Group()) == 0.0
    assert not opened.update_called
    assert given.compute().item() == 1.0


def test_class_weights_and_ignored_labels_count_as_in_one_process(cluster):
    loss = nn.CrossEntropyLoss(weight=torch.tensor([0.5, 1.0, 2.0, 4.0]), ignore_index=2)
    does = Evaluate(CLASSES, loss, {})
    assert_same(found(cluster, does, "label"), expected(does, "label"))


def test_a_module_is_left_in_its_mode():
    module = nn.Dropout(0.5)
    for training in (True, False):
        module.train(training)
        batch = Batch((torch.ones(5, 2),), None, None, None, 5, 5.0, 1.0)
        observe(module, Criterion(nn.MSELoss()), [batch], meter := MetricAccumulator(torch.device("cpu"), {}))
        assert meter.local_mean() == 0.0
        assert module.training is training


def test_each_batch_is_told_before_it_goes_through_the_model():
    def work_of(world, part):
        objective, told = Objective(partial(nn.Linear, 3, 1), nn.MSELoss()), []
        evaluate(
            *(objective.build(), objective.criterion(), part, world.group()),
            metrics={},
            batch_size=4,
            device=world.device,
            on_batch=told.append,
        )
        return told

    data = {"x": np.ones((10, 3), np.float32), "y": np.ones((10, 1), np.float32)}
    columns = Columns((InputColumn("x"),), InputColumn("y"))
    assert InlineCluster().gang(work_of, data, columns) == [[0, 1, 2]]
