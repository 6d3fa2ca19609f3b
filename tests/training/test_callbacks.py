"""Callbacks that stop, log, change the optimizer, and average the weights."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sparkdl.cluster.inline import InlineCluster
from sparkdl.cluster.local import LocalCluster
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.errors import InvalidInput, WorkerFailed
from sparkdl.io.weights import read_state
from sparkdl.training.ema import EMA
from sparkdl.training.loop import Training
from sparkdl.training.objective import Objective
from sparkdl.training.spec import Trained
from sparkdl.training.strategies.allreduce import AllReduce
from tests.contracts.strategy_contract import ROWS, Case, numbers
from tests.rounds.data import adult
from tests.training.test_resume import Folder


@pytest.fixture(scope="module")
def pair():
    with LocalCluster(2) as cluster:
        yield cluster


def training(*callbacks: Any, **others: Any) -> Training:
    """Three epochs of three steps in fp64."""
    case = Case(optimizer=partial(torch.optim.SGD, lr=0.05), batch_size=16, epochs=3)
    return replace(case.training(AllReduce()), callbacks=callbacks, **others)


def fit(cluster: Any, trained: Training) -> list[Trained]:
    return cluster.gang(trained, numbers(), Case().columns())


class Stops:
    """Stops after a step, or after an epoch."""

    def __init__(self, *, step: int | None = None, epoch: int | None = None, rank: int = 0) -> None:
        self.step, self.epoch, self.rank, self.every_rank = step, epoch, rank, rank > 0

    def on_step(self, run: Any) -> None:
        if run.rank == self.rank and run.clock.step == self.step:
            run.stop(f"step {self.step} on rank {run.rank}")
            run.stop("too late")

    def on_epoch(self, run: Any) -> None:
        if run.rank == self.rank and run.clock.epoch == self.epoch:
            run.stop("enough")


# ---- stop ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("callback", "epochs", "reason"),
    [
        (Stops(epoch=2), 2, "enough"),
        (Stops(step=1), 1, "step 1 on rank 0"),
        (Stops(step=1, rank=1), 1, "step 1 on rank 1"),
        (Stops(), 3, None),
    ],
    ids=["epoch", "step", "another rank", "never"],
)
def test_stop_ends_training_of_all_workers_after_the_epoch(pair, callback, epochs, reason):
    for worker in fit(pair, training(callback)):
        assert (len(worker.history), worker.report["stop_reason"]) == (epochs, reason)


def test_patience_has_its_reason():
    (worker,) = fit(InlineCluster(), training(patience=1, min_delta=1e9))
    assert (len(worker.history), worker.report["stop_reason"]) == (2, "no better value for patience=1")


# ---- log ----------------------------------------------------------------------------------------------------------


class Logs:
    every_rank = True

    def on_step(self, run: Any) -> None:
        run.log(last=torch.tensor(float(run.clock.step)))

    def on_epoch(self, run: Any) -> None:
        run.log(mean=3 * run.rank, epochs=run.history[-1]["epoch"])


def test_logged_numbers_are_in_the_history_of_all_workers(pair):
    events: list[Any] = []
    workers = pair.gang(training(Logs()), numbers(), Case().columns(), listener=events.append)
    rows = [{name: row[name] for name in ("last", "mean", "epochs")} for row in workers[0].history]
    assert rows == [{"last": 3.0 * epoch, "mean": 1.5, "epochs": epoch} for epoch in (1, 2, 3)]
    assert [row["mean"] for row in workers[1].history] == [1.5] * 3
    assert [event.payload["mean"] for event in events if event.kind == "epoch"] == [1.5] * 3


@pytest.mark.parametrize(
    ("moment", "values", "message"),
    [
        ("on_epoch", {"loss": 1.0}, "run.log got loss, which each row of the history has"),
        ("on_step", {"norm": "large"}, "run.log got norm='large'; expected a number"),
        ("on_step", {"norm": torch.zeros(2)}, "run.log got norm=tensor"),
        ("on_end", {"norm": 1.0}, "called run.log or run.stop in on_end"),
    ],
)
def test_values_that_cannot_be_logged_raise(moment, values, message):
    callback = SimpleNamespace(**{moment: lambda run: run.log(**values)})
    with pytest.raises(InvalidInput, match=message):
        fit(InlineCluster(), training(callback))


# ---- the optimizer ------------------------------------------------------------------------------------------------


class Freezes:
    """Sets the learning rate to 0 after the first epoch."""

    every_rank = True

    def on_epoch(self, run: Any) -> None:
        for group in run.optimizer.param_groups:
            group["lr"] = 0.0


def test_callback_changes_the_optimizer(pair):
    frozen, first = (fit(pair, replace(training(Freezes()), epochs=epochs))[0].weights for epochs in (3, 1))
    assert frozen == first


# ---- averages of the weights --------------------------------------------------------------------------------------

STEPS: list[dict[str, Tensor]] = []
VALIDATED: list[dict[str, Tensor]] = []


class Notes:
    """Appends the weights after each step to STEPS, and the validated weights to VALIDATED."""

    def on_start(self, run: Any) -> None:
        STEPS.append({name: value.detach().clone() for name, value in run.module.named_parameters()})

    on_step = on_start

    def on_validation_end(self, run: Any) -> None:
        VALIDATED.append({name: value.detach().clone() for name, value in run.module.named_parameters()})


def test_average_is_that_of_the_formula_and_leaves_the_steps_alone():
    found = []
    for callbacks in ([Notes()], [Notes(), EMA(0.6)]):
        STEPS.clear()
        VALIDATED.clear()
        (worker,) = fit(InlineCluster(), training(*callbacks))
        found.append(list(STEPS))
    for one, other in zip(*found, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
    average, *steps = found[1]
    for number, weights in enumerate(steps, start=1):
        decay = min(0.6, (1 + number) / (10 + number))
        average = {name: decay * value + (1 - decay) * weights[name] for name, value in average.items()}
    for name, value in average.items():
        torch.testing.assert_close(read_state(worker.weights)[name], value, rtol=0, atol=1e-12)
        torch.testing.assert_close(VALIDATED[-1][name], value, rtol=0, atol=1e-12)


def test_average_of_two_workers_equals_that_of_one(pair):
    (alone,), (first, second) = (
        fit(cluster, training(EMA(0.9), batch_size=ROWS)) for cluster in (InlineCluster(), pair)
    )
    for name, value in read_state(alone.weights).items():
        torch.testing.assert_close(read_state(first.weights)[name], value, rtol=0, atol=1e-12)
    assert second.weights == b""


def twice(world: Any, shard: Any) -> list[bytes]:
    """The weights of two runs of one training, whose callbacks have the same objects."""
    one = training(EMA(0.9))
    return [one(world, shard).weights for _ in range(2)]


def test_second_run_of_a_process_begins_its_own_average():
    ((first, second),) = InlineCluster().gang(twice, numbers(), Case().columns())
    assert second == first


def test_best_epoch_keeps_its_average():
    held = numbers() | {"held": np.arange(ROWS) % 4 == 0}
    columns = replace(Case().columns(), validation=InputColumn("held", "bool"))
    kept, last = (
        InlineCluster().gang(training(EMA(0.9), keep_best=best), held, columns)[0].weights for best in (True, False)
    )
    assert kept == last  # the loss falls, and the last epoch is the best


def perceptron(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 16), nn.Tanh(), nn.Linear(16, 1), nn.Flatten(0))


def test_average_has_a_smaller_loss_than_noisy_weights_on_adult():
    (x, y), (unseen, labels) = adult()["train"], adult()["test"]
    held = np.arange(6000) >= 4000
    rows = {
        "x": np.concatenate([x[:4000], unseen[:2000]]),
        "y": np.concatenate([y[:4000], labels[:2000]]),
        "held": held,
    }
    columns = Columns((InputColumn("x"),), InputColumn("y"), validation=InputColumn("held", "bool"))
    objective = Objective(partial(perceptron, x.shape[1]), nn.BCEWithLogitsLoss(), partial(torch.optim.SGD, lr=1.0))
    losses = []
    for callbacks in ([], [EMA(0.99)]):
        (worker,) = InlineCluster().gang(Training(objective, 8, 2, callbacks=callbacks), rows, columns)
        losses.append(worker.history[-1]["valid_loss"])
    assert losses[1] < losses[0] - 0.02


def test_resumed_run_needs_the_callback_of_its_average(tmp_path):
    with pytest.raises(WorkerFailed, match="stopped"):
        fit(InlineCluster(), training(EMA(0.9), checkpointer=Folder(str(tmp_path), stop=2)))
    with pytest.raises(InvalidInput, match="of a run with the callbacks EMA 1; expected them in callbacks"):
        fit(InlineCluster(), training(checkpointer=Folder(str(tmp_path), start=2)))


@pytest.mark.parametrize("decay", [-0.1, 1.0, float("nan")])
def test_decay_out_of_range_raises(decay):
    with pytest.raises(InvalidInput, match="expected a number from 0 to below 1"):
        EMA(decay)
