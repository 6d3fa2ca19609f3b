"""A run that stops after any step and resumes from its state is bit-identical to a run that never stopped."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC
from torchmetrics.wrappers import MinMaxMetric, Running

from sparkdl.checkpoint.checkpointer import Checkpointer
from sparkdl.checkpoint.interval import CheckpointInterval
from sparkdl.checkpoint.store import Checkpoints
from sparkdl.cluster.group.world import World
from sparkdl.cluster.inline import InlineCluster
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.errors import InvalidInput, WorkerFailed
from sparkdl.io.serialization import pack_state, unpack_state
from sparkdl.training.callbacks.ema import EMA
from sparkdl.training.loop import Training
from sparkdl.training.objective.objective import Objective
from sparkdl.training.rng import random_state, set_random_state
from sparkdl.training.spec import TrainingResult
from tests.chaos.runs import assert_alike, data, untimed

STEPS = 5  # of an epoch
COLUMNS = Columns((InputColumn("x"),), InputColumn("label"), InputColumn("weight"))


class Restless(nn.Module):
    """All that a step may depend on: masks, statistics of batches, every generator, a buffer that is not persistent."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.3)
        self.head = nn.Linear(8, 4)
        self.spare = nn.Linear(8, 4)
        self.inner = nn.Module()
        self.inner.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        calls = self.inner.get_buffer("calls")
        if self.training:
            calls += 1
            x = x * (1 + 0.1 * random.gauss(0, 1) + 0.1 * np.random.randn() + 0.1 * torch.sin(calls))
        hidden = self.drop(torch.tanh(self.norm(self.first(x))))
        return self.head(hidden) + (self.spare(hidden) if self.training and float(calls) > 7 else 0)


class Draws:
    """A callback that draws random numbers."""

    def on_start(self, run: Any) -> None:
        torch.rand(3)

    def on_step(self, run: Any) -> None:
        torch.rand(run.clock.step)


class Logs:
    """Logs the first step of each epoch, which a run resumed within the epoch must know."""

    def on_step(self, run: Any) -> None:
        if run.clock.step % run.steps == 1:
            run.log(first=run.loss)


def noisy(inputs: tuple[Any, ...], target: Tensor | None, generator: torch.Generator) -> tuple[Any, Tensor | None]:
    (x,) = inputs
    return (x + 0.1 * torch.randn(x.shape, generator=generator),), target


def adam() -> tuple[Training, Columns]:
    """Ends after two of its four epochs, with the weights of the first one."""
    objective = Objective(
        Restless,
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 1.0, 0.5])),
        partial(torch.optim.Adam, lr=0.05),
        partial(torch.optim.lr_scheduler.ReduceLROnPlateau, patience=0),
        {"accuracy": MulticlassAccuracy(4), "range": MinMaxMetric(MulticlassAccuracy(4, average="micro"))},
        micro_batches=2,
    )
    training = Training(objective, 24, 4, seed=1, patience=1, augment=noisy, callbacks=[Draws()])
    return training, replace(COLUMNS, validation=InputColumn("held", "bool"))


def sgd() -> tuple[Training, Columns]:
    """Two epochs with averaged weights, with metrics of the training rows."""
    metrics = {
        "accuracy": MulticlassAccuracy(4) + MulticlassAccuracy(4, average="micro"),
        "area": MulticlassAUROC(4),
        "range": MinMaxMetric(MulticlassAccuracy(4)),
        "lately": Running(MulticlassAccuracy(4), window=3),
    }
    objective = Objective(
        Restless,
        nn.CrossEntropyLoss(),
        partial(torch.optim.SGD, lr=0.05, momentum=0.9),
        partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=0.2, total_steps=12),
        metrics,
        max_grad_norm=0.5,
        scheduler_interval="step",
        micro_batches=2,
    )
    callbacks = [Logs(), EMA(0.5)]
    return Training(objective, 29, 2, seed=2, augment=noisy, callbacks=callbacks), COLUMNS


CASES = {"Adam": adam, "SGD": sgd}


@dataclass(frozen=True)
class Folder:
    """Keeps the state of every step in a folder.

    Attributes:
        folder: where; a file for each step and rank.
        start: the step to resume from; None to start anew. A tuple has one for each rank.
        stop: the step after which the worker fails.
    """

    folder: str
    start: int | tuple[int | None, ...] | None = None
    stop: int | None = None

    def epoch(self) -> int:
        return 0

    def load(self, world: World, shards: list[str], live: object) -> dict[str, Any] | None:
        start = self.start[world.rank] if isinstance(self.start, tuple) else self.start
        return None if start is None else unpack_state(self.file(start, world.rank).read_bytes())

    def check(self, state: dict[str, Any]) -> None:
        pass

    def after_step(self, world: World, state: Callable[[], dict[str, Any]], *, finished: bool) -> None:
        kept = {name: value for name, value in state().items() if name != "slices"}
        self.file(world.clock.step, world.rank).write_bytes(pack_state(kept))
        if world.clock.step == self.stop:
            raise RuntimeError("stopped")

    def file(self, step: int, rank: int) -> Path:
        return Path(self.folder, f"{step}-{rank}")


def essence(folder: Path, step: int, rank: int) -> bytes:
    """A kept state without its times."""
    whole = unpack_state(Folder(str(folder)).file(step, rank).read_bytes())
    state = whole["local"]
    for name in ("feed_wait_seconds", "epoch_seconds"):
        del state[name]
    del state["report"]["train_seconds"], state["report"]["phases"]
    state["history"] = untimed(state["history"])
    return pack_state(whole)


def run(cluster: Any, case: str, checkpointer: Folder | None, **options: Any) -> list[TrainingResult]:
    training, columns = CASES[case]()
    return cluster.gang(replace(training, checkpointer=checkpointer, **options), data(), columns)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("size", "steps"), [(1, [1, STEPS, STEPS + 2]), pytest.param(2, [1, STEPS], marks=pytest.mark.slow)]
)
def test_resumed_run_is_bit_identical(case, size, steps, pair, tmp_path):
    """Stop after each of the steps, resume, and compare with a run that did not stop."""
    cluster, whole, shard = InlineCluster() if size == 1 else pair, tmp_path / "whole", tmp_path / "shard"
    whole.mkdir()
    expected = run(cluster, case, Folder(str(whole)))
    assert [(row["epoch"], row["step"]) for row in expected[0].history] == [(1, STEPS), (2, 2 * STEPS)]
    assert expected[0].report["best_epoch"] == (1 if case == "Adam" else None)
    assert_alike(run(cluster, case, None), expected)
    for step in steps:
        shutil.rmtree(shard, ignore_errors=True)
        shard.mkdir()
        with pytest.raises(WorkerFailed, match="stopped"):
            run(cluster, case, Folder(str(shard), stop=step))
        assert_alike(run(cluster, case, Folder(str(shard), start=step)), expected)
        for rank in range(size):
            assert essence(shard, 2 * STEPS, rank) == essence(whole, 2 * STEPS, rank)


# ---- epochs ---------------------------------------------------------------------------------------------------------


class Steps:
    """A callback that writes down the steps it sees."""

    every_rank = False

    def __init__(self, file: Path) -> None:
        self.file = file

    def on_step(self, run: Any) -> None:
        with self.file.open("a", encoding="utf-8") as out:
            out.write(f"{run.clock.epoch}/{run.clock.step} ")


@pytest.mark.parametrize("case", CASES)
def test_finished_run_trains_no_more(case, tmp_path):
    """With more epochs, a run that stopped early stays finished, and another one continues."""
    training = CASES[case]()[0]
    constant, callbacks = replace(training.objective, scheduler=None), [*training.callbacks, Steps(tmp_path / "seen")]
    expected = run(InlineCluster(), case, checkpointer := Folder(str(tmp_path)), objective=constant)
    checkpointer = replace(checkpointer, start=2 * STEPS)
    resumed = run(InlineCluster(), case, checkpointer, objective=constant, callbacks=callbacks)
    assert not (tmp_path / "seen").exists()
    assert_alike(resumed, expected)
    longer = run(InlineCluster(), case, None, objective=constant, epochs=5)
    assert len(longer[0].history) == (2 if case == "Adam" else 5)
    assert_alike(run(InlineCluster(), case, checkpointer, objective=constant, epochs=5), longer)


def test_fewer_epochs_than_done_raises(tmp_path):
    checkpointer = Folder(str(tmp_path))
    run(InlineCluster(), "SGD", checkpointer)
    with pytest.raises(InvalidInput, match="of step 6, past the end of 1 epochs of 5 steps; set epochs"):
        run(InlineCluster(), "SGD", replace(checkpointer, start=STEPS + 1), epochs=1)
    assert len(run(InlineCluster(), "SGD", replace(checkpointer, start=STEPS), epochs=1)[0].history) == 1


def test_resumed_run_adds_times(tmp_path):
    checkpointer = Folder(str(tmp_path))
    run(InlineCluster(), "SGD", checkpointer)
    file = checkpointer.file(STEPS + 2, 0)
    state = (whole := unpack_state(file.read_bytes()))["local"]
    assert 0 < state["epoch_seconds"] < state["report"]["train_seconds"] + 60
    state["epoch_seconds"], state["feed_wait_seconds"], state["report"]["train_seconds"] = 1000.0, 2000.0, 4000.0
    file.write_bytes(pack_state(whole))
    (resumed,) = run(InlineCluster(), "SGD", replace(checkpointer, start=STEPS + 2))
    assert 1000 < resumed.history[1]["seconds"] < 2000 < resumed.report["feed_wait_seconds"] < 3000
    assert resumed.report["train_seconds"] == 4000 + resumed.history[1]["seconds"]


# ---- other states ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"objective": replace(sgd()[0].objective, metrics={"area": MulticlassAUROC(4)})},
            r"of the metrics .*, lately; expected .*, area, .*: \w+ differs",
        ),
        ({"batch_size": 30}, "its batchSize is 29, expected 30"),
        ({"seed": 7}, "its seed is 2, expected 7"),
    ],
)
def test_state_of_another_training_raises(changes, message, tmp_path):
    run(InlineCluster(), "SGD", Folder(str(tmp_path)))
    with pytest.raises(InvalidInput, match=message):
        run(InlineCluster(), "SGD", Folder(str(tmp_path), start=3), **changes)


@pytest.mark.slow
def test_workers_resume_from_one_step_with_one_size(pair, tmp_path):
    run(pair, "SGD", Folder(str(tmp_path)))
    for starts in ((3, 4), (None, 3)):
        with pytest.raises(InvalidInput, match=r"states of the steps \[.*\]; expected one step, or none"):
            run(pair, "SGD", Folder(str(tmp_path), start=starts))
    with pytest.raises(InvalidInput, match="its number of workers is 2, expected 1"):
        run(InlineCluster(), "SGD", Folder(str(tmp_path), start=3))


# ---- random numbers -------------------------------------------------------------------------------------------------

HAS_GPU = torch.cuda.is_available()
GPU = pytest.param("cuda:0", marks=[pytest.mark.gpu, pytest.mark.skipif(not HAS_GPU, reason="needs a CUDA device")])


@pytest.mark.parametrize("before", range(3))
@pytest.mark.parametrize("device", ["cpu", GPU])
def test_generators_resume(request, before, device):
    """Of Gaussian numbers an odd count is drawn, as Python and numpy keep every second back."""

    def drawn() -> list[Any]:
        numbers = [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(3).tolist()]
        return [*numbers, torch.rand(5, device=device).tolist()]

    start = random_state()
    request.addfinalizer(lambda: set_random_state(start))
    for _ in range(before):
        drawn()
    state = random_state(torch.device(device))
    packed = pack_state(state)
    expected = [drawn(), drawn()]
    assert pack_state(state) == packed  # a copy
    set_random_state(unpack_state(packed), torch.device(device))
    assert [drawn(), drawn()] == expected


def test_random_numbers_of_caller_stay(tmp_path):
    def drawn() -> list[float]:
        return [random.random(), np.random.rand(), float(torch.rand(()))]

    run(InlineCluster(), "SGD", checkpointer := Folder(str(tmp_path)))
    state = unpack_state(checkpointer.file(4, 0).read_bytes())["local"]["random"]
    numbers = []
    for start in (None, 4):
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        if start:
            run(InlineCluster(), "SGD", replace(checkpointer, start=start))
        numbers.append(drawn())
    assert numbers[0] == numbers[1]
    assert state.keys() == {"python", "numpy", "torch"}


# ---- pauses ----------------------------------------------------------------------------------------------------------


@dataclass
class Ends:
    """A callback that writes down the end of training."""

    file: Path

    def on_end(self, run: Any) -> None:
        with self.file.open("a", encoding="utf-8") as out:
            out.write(f"{run.rank} ")


def one_cycle() -> tuple[Training, Columns]:
    """Four epochs of a schedule that knows their number, averaged weights, and the best epoch's weights."""
    scheduler = partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=0.2)
    objective = Objective(
        Restless, nn.CrossEntropyLoss(), partial(torch.optim.Adam, lr=0.05), scheduler, scheduler_interval="step"
    )
    training = Training(objective, 24, 4, seed=3, augment=noisy, callbacks=[Logs(), EMA(0.5)])
    return training, replace(COLUMNS, validation=InputColumn("held", "bool"))


@pytest.mark.parametrize("case", [adam, one_cycle], ids=lambda case: case.__name__)
@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_run_that_pauses_after_epochs_is_bit_identical(case, size, pair, tmp_path):
    cluster = InlineCluster() if size == 1 else pair
    training, columns = case()
    expected = cluster.gang(training, data(), columns)
    ends, epochs = Ends(tmp_path / "ends"), len(expected[0].history)
    training = replace(training, callbacks=[*training.callbacks, ends])
    for last in range(1, training.epochs + 1):
        saved = Checkpoints(str(tmp_path / "run"), run="one")
        saver = Checkpointer(saved, CheckpointInterval.of("1 epoch"))
        paused = replace(training, checkpointer=saver, last_epoch=last)
        results = cluster.gang(paused, data(), columns, attempt=saved.next_attempt())
        assert len(results[0].history) == min(last, epochs)
        assert all(bool(result.weights) == (last >= epochs) for result in results)
        assert (tmp_path / "ends").exists() == (last >= epochs)
    assert_alike(results, expected)


def test_a_pause_without_a_checkpointer_raises():
    with pytest.raises(InvalidInput, match="last_epoch is set, and there is no checkpointer"):
        run(InlineCluster(), "SGD", None, last_epoch=1)
