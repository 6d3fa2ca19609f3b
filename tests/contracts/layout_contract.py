"""Guarantees of every layout: whatever it cuts, a fit is that of workers that hold the whole model.

A concrete test class says which layout, and has a fixture ``cluster`` of a size that fits it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from sparkdl.checkpoint.checkpointer import Checkpointer
from sparkdl.checkpoint.interval import CheckpointInterval
from sparkdl.checkpoint.store import Checkpoints
from sparkdl.cluster.inline import InlineCluster
from sparkdl.data.columns import InputColumn
from sparkdl.errors import InvalidInput, WorkerFailed
from sparkdl.training.callbacks.ema import EMA
from sparkdl.training.layouts import Layout
from sparkdl.training.layouts.replicated import Replicated
from sparkdl.training.loop import Training
from tests.contracts import work
from tests.contracts.strategy_contract import ADAM, CASES, ROWS, Case, SynchronousContract, numbers
from tests.results import merged

OPTIMIZERS = {
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "AdamW": partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1),
    "Adagrad": partial(torch.optim.Adagrad, lr=0.1),
}
LAYOUT_CASES = (
    *("SGD", "Adam in fp32", "minibatches", "minibatches of less than a row each", "three pieces, weights"),
    *("three pieces, class weights", "clipping", "scheduler", "unused parameters", "frozen parameters"),
    *("parameters for a few rows, Adam", "tied weights"),
)


@dataclass(frozen=True)
class Fails:
    """A callback that fails after a step."""

    step: int

    def on_step(self, run: Any) -> None:
        if run.clock.step == self.step:
            raise LookupError("a fault on purpose")


class LayoutContract(SynchronousContract):
    """Guarantees of a layout; ``cases`` are those of ``CASES`` that its models allow."""

    cases: ClassVar[Sequence[str]] = LAYOUT_CASES
    model: ClassVar[Any] = work.Normalised  # of the fit with everything
    tied: ClassVar[Any] = work.Tied  # of runs that resume

    def test_one_worker_is_plain_optimizer(self, cluster):
        if (needed := self.layout.multiple(1)) == 1:
            super().test_one_worker_is_plain_optimizer(cluster)
            return
        with pytest.raises(InvalidInput, match=f"takes multiples of {needed} workers"):
            self.fit(InlineCluster(), Case())

    def test_a_scaled_loss_falls_and_replicas_skip_the_same_steps(self, cluster):
        """Slices refuse fp16."""
        with pytest.raises(InvalidInput, match="precision is 'fp16'"):
            self.fit(cluster, Case(precision="fp16"))

    def test_a_fit_with_all_that_a_fit_has(self, cluster):
        """An average of the weights, a metric, and validation, of whose rows some workers have none."""
        layouts = Replicated(), self.layout
        expected, actual = (cluster.gang(everything(one, self.model), HELD, HELD_COLUMNS) for one in layouts)
        assert_close(merged(actual), merged(expected))
        for row, other in zip(actual[0].history, expected[0].history, strict=True):
            assert row.keys() == other.keys()
            for name in row.keys() - {"seconds", "rows_per_second"}:
                assert row[name] == pytest.approx(other[name], rel=1e-9), name
        assert actual[0].report["best_epoch"] == expected[0].report["best_epoch"]

    def test_a_resume_within_an_epoch_is_bit_identical(self, cluster, tmp_path):
        settings = {"batch_size": 10, "model": self.tied}
        expected = resume(cluster, resumable(tmp_path / "undisturbed", "AdamW", self.layout, **settings))
        with pytest.raises(WorkerFailed, match="on purpose"):
            resume(cluster, resumable(tmp_path / "run", "AdamW", self.layout, callbacks=(Fails(8),), **settings))
        assert_close(resume(cluster, resumable(tmp_path / "run", "AdamW", self.layout, **settings)), expected, 0)

    @pytest.mark.parametrize("optimizer", OPTIMIZERS)
    def test_a_run_resumes_under_another_layout_and_size(self, cluster, tmp_path, optimizer):
        """Each step has all rows, so that the number of workers does not change its gradient."""
        alone, model = InlineCluster(), self.tied
        expected = resume(alone, resumable(tmp_path / "undisturbed", optimizer, Replicated(), model=model))
        stages = [(cluster, self.layout), (alone, Replicated()), (cluster, self.layout), (cluster, Replicated())]
        for epochs, (workers, layout) in enumerate(stages, start=1):
            settings = {"epochs": epochs, "model": model}
            weights = resume(workers, resumable(tmp_path / "run", optimizer, layout, **settings))
        assert_close(weights, expected)


class OnTwoWorkers:
    """The fixture ``cluster`` of two workers."""

    @pytest.fixture
    def cluster(self, pair):
        return pair


class OnFourWorkers:
    """The fixture ``cluster`` of four workers."""

    @pytest.fixture
    def cluster(self, four):
        return four


# Rows for validation, all of the first worker.
HELD = numbers() | {"held": np.arange(ROWS) < 5}
HELD_COLUMNS = replace(Case(weight="weight").columns(), validation=InputColumn("held", "bool"))


def everything(layout: Layout, model: Any) -> Training:
    """An average of the weights, a metric, clipping, and patience with the best weights."""
    # Its import takes as long as torch's, and most workers that import this module have no metric.
    from torchmetrics.regression import MeanAbsoluteError

    case = Case(model, optimizer=ADAM, weight="weight", batch_size=22, epochs=3, accumulate=2)
    training = case.training(layout=layout)
    objective = replace(training.objective, metrics={"error": MeanAbsoluteError()}, max_grad_norm=0.3)
    return replace(training, objective=objective, callbacks=(EMA(0.5),), patience=2)


def resumable(folder: Path, optimizer: str, layout: Layout, *, model: Any = work.Tied, **options: Any) -> Training:
    """A run that saves a checkpoint after each step."""
    case = Case(model, optimizer=OPTIMIZERS[optimizer], batch_size=options.pop("batch_size", None), epochs=4)
    saving = Checkpointer(Checkpoints(str(folder), run="one"), CheckpointInterval.of(1), elastic=True)
    return replace(case.training(layout=layout), checkpointer=saving, **options)


def resume(cluster: Any, training: Training) -> dict[str, torch.Tensor]:
    """The weights at the end of a run that begins or resumes."""
    assert isinstance(training.checkpointer, Checkpointer)
    attempt = training.checkpointer.checkpoints.next_attempt()
    return merged(cluster.gang(training, numbers(), Case().columns(), attempt=attempt))


def assert_close(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float = 1e-12) -> None:
    for name, weight in expected.items():
        torch.testing.assert_close(
            actual[name], weight, rtol=0, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}"
        )


assert {*LAYOUT_CASES} <= CASES.keys()
