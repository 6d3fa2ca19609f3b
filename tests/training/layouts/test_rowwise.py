"""Layouts whose workers hold slices of one replica, or compute one replica together, train as a single process does."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchmetrics.regression import MeanAbsoluteError

from sparkdl.checkpoint.checkpointer import Checkpointer
from sparkdl.checkpoint.interval import CheckpointInterval
from sparkdl.checkpoint.store import Checkpoints
from sparkdl.cluster.inline import InlineCluster
from sparkdl.data.columns import InputColumn
from sparkdl.errors import WorkerFailed
from sparkdl.training.callbacks.ema import EMA
from sparkdl.training.layouts import Layout
from sparkdl.training.layouts.replicated import Replicated
from sparkdl.training.loop import Training
from tests.contracts import work
from tests.contracts.rowwise import Rowwise, Together
from tests.contracts.strategy_contract import (
    ADAM,
    CASES,
    ROWS,
    SGD,
    Case,
    SynchronousContract,
    assert_equal,
    numbers,
    single_process,
    together,
)
from tests.faults import flip, tear
from tests.results import merged


class TestRowwise(SynchronousContract):
    layout = Rowwise()
    cases = tuple(name for name in CASES if "SparseAdam" not in name)  # the gathered gradient is dense

    @pytest.fixture
    def cluster(self, pair):
        return pair


@pytest.mark.parametrize(
    "name", ["weights", "three pieces, class weights", "parameters for a few rows, Adam", "clipping"]
)
def test_pairs_that_run_on_the_rows_of_both_train_as_one_process(four, name):
    case = CASES[name]
    training = case.training(layout=Together())
    workers = four.gang(work.Fit(training), numbers(), case.columns())
    expected = single_process(training, numbers(), case.columns(), together(workers))
    for worker in workers:
        assert_equal(worker["parameters"], expected, case.tolerance)


# ---- all that a fit has ----------------------------------------------------------------------------------------------


def everything(layout: Layout, model: Any) -> Training:
    """An average of the weights, a metric, validation and the best epoch."""
    case = Case(model, optimizer=ADAM, weight="weight", batch_size=22, epochs=3, accumulate=2)
    training = case.training(layout=layout)
    objective = replace(training.objective, metrics={"error": MeanAbsoluteError()}, max_grad_norm=0.3)
    return replace(training, objective=objective, callbacks=(EMA(0.5),), patience=2)


@pytest.mark.parametrize(
    ("layout", "model"), [(Rowwise(), work.Normalised), (Together(), work.Net)], ids=["rowwise", "together"]
)
def test_a_worker_without_validation_rows_takes_part(pair, layout, model):
    data = numbers() | {"held": np.arange(ROWS) < 5}  # all of the first worker
    columns = replace(Case(weight="weight").columns(), validation=InputColumn("held", "bool"))
    expected, actual = (pair.gang(everything(one, model), data, columns) for one in (Replicated(), layout))
    for name, weight in merged(expected).items():
        torch.testing.assert_close(merged(actual)[name], weight, rtol=0, atol=1e-12)
    for row, other in zip(actual[0].history, expected[0].history, strict=True):
        assert row.keys() == other.keys()
        for name in row.keys() - {"seconds", "rows_per_second"}:
            assert row[name] == pytest.approx(other[name], rel=1e-9), name
    assert actual[0].report["best_epoch"] == expected[0].report["best_epoch"]


# ---- resume ----------------------------------------------------------------------------------------------------------

OPTIMIZERS = {
    "SGD": partial(torch.optim.SGD, lr=0.1),
    "momentum": SGD,
    "Adam": ADAM,
    "Adagrad": partial(torch.optim.Adagrad, lr=0.1),
}


@dataclass(frozen=True)
class Fails:
    """A callback that fails after a step."""

    step: int

    def on_step(self, run: Any) -> None:
        if run.clock.step == self.step:
            raise LookupError("a fault on purpose")


def resumable(folder: Path, optimizer: str, layout: Layout, **options: Any) -> Training:
    case = Case(work.Tied, optimizer=OPTIMIZERS[optimizer], batch_size=options.pop("batch_size", None), epochs=4)
    saving = Checkpointer(Checkpoints(str(folder), run="one"), CheckpointInterval.of(1), elastic=True)
    return replace(case.training(layout=layout), checkpointer=saving, **options)


def run(cluster: Any, training: Training) -> dict[str, torch.Tensor]:
    assert isinstance(training.checkpointer, Checkpointer)
    attempt = training.checkpointer.checkpoints.next_attempt()
    return merged(cluster.gang(training, numbers(), Case().columns(), attempt=attempt))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_workers_of_other_number_and_layout_resume_at_an_epochs_end(pair, three, tmp_path, optimizer):
    """Each step has all rows, so that the number of workers does not change its gradient."""
    alone = InlineCluster()
    expected = run(alone, resumable(tmp_path / "whole", optimizer, Replicated()))
    sequence = [(pair, Rowwise()), (three, Rowwise()), (alone, Replicated()), (pair, Rowwise())]
    for epochs, (cluster, layout) in enumerate(sequence, start=1):
        weights = run(cluster, resumable(tmp_path / "parts", optimizer, layout, epochs=epochs))
    for name, weight in expected.items():
        torch.testing.assert_close(weights[name], weight, rtol=0, atol=1e-12)


@pytest.mark.parametrize("damage", [flip, tear, os.remove], ids=["damaged", "torn", "missing"])
def test_workers_with_slices_resume_from_the_checkpoint_before_a_damaged_one(pair, tmp_path, damage):
    expected = run(pair, resumable(tmp_path / "whole", "Adam", Rowwise(), batch_size=10))
    with pytest.raises(WorkerFailed, match="on purpose"):
        run(pair, resumable(tmp_path / "parts", "Adam", Rowwise(), callbacks=(Fails(8),), batch_size=10))
    newest = max((tmp_path / "parts").glob("attempt-*/shared-00001"))
    damage(newest)
    weights = run(pair, resumable(tmp_path / "parts", "Adam", Rowwise(), batch_size=10))
    for name, weight in expected.items():
        assert torch.equal(weights[name], weight)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("layouts", [(Rowwise(), Replicated()), (Replicated(), Rowwise())], ids=["to whole", "to rows"])
def test_workers_of_another_layout_resume_within_an_epoch(pair, tmp_path, optimizer, layouts):
    settings = {"batch_size": 10}
    expected = run(pair, resumable(tmp_path / "whole", optimizer, layouts[1], **settings))
    with pytest.raises(WorkerFailed, match="on purpose"):
        run(pair, resumable(tmp_path / "parts", optimizer, layouts[0], callbacks=(Fails(8),), **settings))
    weights = run(pair, resumable(tmp_path / "parts", optimizer, layouts[1], **settings))
    for name, weight in expected.items():
        torch.testing.assert_close(weights[name], weight, rtol=0, atol=1e-12)
