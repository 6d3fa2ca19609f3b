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
from sparkdl.data.columns import InputColumn
from sparkdl.errors import InvalidInput, WorkerFailed
from sparkdl.io.serialization import pack_state, unpack_state
from sparkdl.training.callbacks.ema import EMA
from sparkdl.training.loop import Training
from sparkdl.training.spec import TrainingResult
from sparkdl.training.strategies.allreduce import AllReduce
from tests.contracts.strategy_contract import ROWS, Case, numbers
from tests.contracts.work import Net
from tests.results import merged
from tests.training.test_resume import Folder


def training(*callbacks: Any, **others: Any) -> Training:
    """Three epochs of three steps in fp64."""
    case = Case(optimizer=partial(torch.optim.SGD, lr=0.05), batch_size=16, epochs=3)
    return replace(case.training(AllReduce()), callbacks=callbacks, **others)


def fit(cluster: Any, trained: Training) -> list[TrainingResult]:
    return cluster.gang(trained, numbers(), Case().columns())


class Stops:
    """Stops after a step, or after an epoch."""

    def __init__(self, *, step: int | None = None, epoch: int | None = None, rank: int = 0) -> None:
        self.step, self.epoch, self.rank = step, epoch, rank

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


class Freezes:
    """Sets the learning rate to 0 after the first epoch."""

    def on_epoch(self, run: Any) -> None:
        for group in run.optimizer.param_groups:
            group["lr"] = 0.0


def test_callback_changes_the_optimizer(pair):
    frozen, first = (fit(pair, replace(training(Freezes()), epochs=epochs)) for epochs in (3, 1))
    assert [worker.weights for worker in frozen] == [worker.weights for worker in first]


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
        torch.testing.assert_close(merged([worker])[name], value, rtol=0, atol=1e-12)
        torch.testing.assert_close(VALIDATED[-1][name], value, rtol=0, atol=1e-12)


def test_average_of_two_workers_equals_that_of_one(pair):
    averaged = training(EMA(0.9), batch_size=ROWS)
    alone, both = (merged(fit(cluster, averaged)) for cluster in (InlineCluster(), pair))
    for name, value in alone.items():
        torch.testing.assert_close(both[name], value, rtol=0, atol=1e-12)


HOW = ("data", "module", "stale")


class Swaps:
    """Validates other weights and buffers; restores stale ones, or none."""

    def __init__(self, how: str) -> None:
        self.how, self.kept = how, torch.zeros(())

    def on_validation_start(self, run: Any) -> None:
        module, self.kept = run.module, run.module.head.weight.detach().clone()
        if self.how == "data":
            module.head.weight.data = torch.zeros_like(self.kept)
        elif self.how == "module":
            module.head = nn.Linear(8, 1).double()
        else:
            module.head.weight.data.zero_()
        module.seen = torch.full_like(module.seen, 7.0)  # as update_bn does

    def on_validation_end(self, run: Any) -> None:
        if self.how == "stale":
            run.module.head.weight.data.copy_(self.kept + 1)


class Counts(Net):
    """Has a buffer, and weights that depend on nothing but the training."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        nn.init.normal_(self.head.weight)
        self.register_buffer("seen", torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.seen


def double(run: Any) -> None:
    run.module.head.weight.data.mul_(2)


TWO = [EMA(0.5), EMA(0.99)]
DOUBLES = SimpleNamespace(on_validation_end=double)  # without on_validation_start


@pytest.mark.parametrize(
    "callbacks",
    [TWO, [*TWO, EMA(0.5)], [DOUBLES], *([EMA(0.5), other] for other in (DOUBLES, *map(Swaps, HOW)))],
)
def test_callbacks_around_validation_leave_the_weights_of_the_training(callbacks):
    objective = replace(training().objective, model=Counts)
    found = []
    for chosen in ([], callbacks, callbacks[::-1]):
        STEPS.clear()
        (worker,) = fit(InlineCluster(), training(Notes(), *chosen, objective=objective))
        found.append(list(STEPS))
        if chosen and isinstance(chosen[-1], EMA):  # the last average counts
            assert worker.weights == fit(InlineCluster(), training(chosen[-1], objective=objective))[0].weights
    for steps in found[1:]:
        for one, other in zip(found[0], steps, strict=True):
            assert all(torch.equal(one[name], other[name]) for name in one)


ORDER: list[str] = []


def note(name: str, run: Any) -> None:
    ORDER.append(name)


def test_validation_ends_in_reverse_order():
    moments = [
        SimpleNamespace(on_validation_start=partial(note, name), on_validation_end=partial(note, f"end of {name}"))
        for name in ("a", "b")
    ]
    fit(InlineCluster(), training(*moments, epochs=1))
    assert ORDER == ["a", "b", "end of b", "end of a"]


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
    both = (training(EMA(0.9), keep_best=best) for best in (True, False))
    kept, last = (InlineCluster().gang(one, held, columns)[0].weights for one in both)
    assert kept == last  # the loss falls, and the last epoch is the best


def test_resumed_run_needs_the_callback_of_its_average(tmp_path):
    with pytest.raises(WorkerFailed, match="stopped"):
        fit(InlineCluster(), training(EMA(0.9), checkpointer=Folder(str(tmp_path), stop=2)))
    for callbacks, message in (
        ([], "of a run with the callbacks EMA 1; expected them in callbacks"),
        ([EMA(0.5)], "average has decay=0.9, and this one decay=0.5"),
        ([EMA(0.9), EMA(0.9)], "of a run without the callbacks EMA 2; expected none of them in callbacks"),
    ):
        with pytest.raises(InvalidInput, match=message):
            fit(InlineCluster(), training(*callbacks, checkpointer=Folder(str(tmp_path), start=2)))


class Totals:
    """Adds its rank + 1 after each step; the version before called it on rank 0 alone."""

    def __init__(self) -> None:
        self.total = 0

    def on_step(self, run: Any) -> None:
        self.total += run.rank + 1
        run.log(total=self.total)

    def state_dict(self) -> dict[str, int]:
        return {"total": self.total}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.total = state["total"]


def test_states_of_an_earlier_version_resume_on_all_ranks(pair, tmp_path):
    """It had the callbacks' states on rank 0 alone, and averages without their decay."""
    callbacks = [EMA(0.9), Totals()]
    whole = fit(pair, training(*callbacks, checkpointer=Folder(str(tmp_path))))
    assert whole[1].history[-1]["total"] == (9 + 18) / 2
    for rank in (0, 1):
        file = Folder(str(tmp_path)).file(3, rank)
        state = unpack_state(file.read_bytes())
        del state["shared"]["callbacks"]["EMA 1"]["decay"]
        if rank:
            state["local"]["callbacks"].clear()
        file.write_bytes(pack_state(state))
    resumed = fit(pair, training(*callbacks, checkpointer=Folder(str(tmp_path), start=3)))
    assert [worker.weights for worker in resumed] == [worker.weights for worker in whole]
    assert resumed[1].history[-1]["total"] == (9 + 3 + 12) / 2
