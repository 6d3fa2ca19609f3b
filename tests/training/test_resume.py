"""A run that stopped after any of its steps and goes on from its state ends as if it had never stopped, to the bit."""

from __future__ import annotations

import random
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

from sparkdl.cluster.group.world import World
from sparkdl.cluster.inline import InlineCluster
from sparkdl.cluster.local import LocalCluster
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.errors import InvalidInput, WorkerFailed
from sparkdl.io.serialization import pack_state, unpack_state
from sparkdl.training.dataloader import Rows
from sparkdl.training.loop import Training
from sparkdl.training.objective import Objective
from sparkdl.training.spec import Trained

STEPS = 5  # of an epoch
COLUMNS = Columns((InputColumn("x"),), InputColumn("label"), InputColumn("weight"))
TIMES = ("seconds", "rows_per_second")


class Restless(nn.Module):
    """All that a step may depend on: masks, statistics of batches, every generator, a buffer that is not persistent."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.3)
        self.head = nn.Linear(8, 4)
        self.spare = nn.Linear(8, 4)
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
            x = x * (1 + 0.1 * random.gauss(0, 1) + 0.1 * np.random.randn() + 0.1 * torch.sin(self.calls))
        hidden = self.drop(torch.tanh(self.norm(self.first(x))))
        return self.head(hidden) + (self.spare(hidden) if self.training and float(self.calls) > 7 else 0)


class Draws:
    """A hook that draws random numbers."""

    every_rank = True

    def on_start(self, run: Any) -> None:
        torch.rand(3)

    def on_step(self, run: Any) -> None:
        torch.rand(run.clock.step)


def noisy(inputs: tuple[Any, ...], target: Tensor | None, generator: torch.Generator) -> tuple[Any, Tensor | None]:
    (x,) = inputs
    return (x + 0.1 * torch.randn(x.shape, generator=generator),), target


def data() -> dict[str, np.ndarray]:
    """144 rows, every sixth of which may be held out; the labels of those are not those that training teaches."""
    draw = np.random.default_rng(3)
    x = draw.normal(size=(144, 3)).astype(np.float32)
    label = (x[:, 0] > 0) + 2 * (x[:, 1] > 0)
    held = np.arange(144) % 6 == 0
    return {"x": x, "label": np.where(held, 3 - label, label), "weight": draw.uniform(0.5, 2, 144), "held": held}


def adam() -> tuple[Training, Columns]:
    """Ends after two of its four epochs, with the weights of the first one."""
    objective = Objective(
        Restless,
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 1.0, 0.5])),
        partial(torch.optim.Adam, lr=0.05),
        partial(torch.optim.lr_scheduler.MultiStepLR, milestones=[2, 6]),
        {"accuracy": MulticlassAccuracy(4), "range": MinMaxMetric(MulticlassAccuracy(4, average="micro"))},
    )
    training = Training(objective, 24, 4, seed=1, micro_batches=2, patience=1, augment=noisy, hooks=[Draws()])
    return training, replace(COLUMNS, validation=InputColumn("held", "bool"))


def sgd() -> tuple[Training, Columns]:
    """Two epochs, with metrics of the training rows."""
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
    )
    return Training(objective, 29, 2, seed=2, micro_batches=2, augment=noisy), COLUMNS


CASES = {"Adam": adam, "SGD": sgd}
each_case = pytest.mark.parametrize("case", CASES)


@dataclass(frozen=True)
class Folder:
    """Keeps the state of every step in a folder.

    Attributes:
        folder: where; a file for each step and rank.
        start: the step to go on from; None to begin anew. A tuple has one for each rank.
        stop: the step after which the member fails.
    """

    folder: str
    start: int | tuple[int | None, ...] | None = None
    stop: int | None = None

    def load(self, world: World, parts: list[str]) -> dict[str, Any] | None:
        start = self.start[world.rank] if isinstance(self.start, tuple) else self.start
        return None if start is None else unpack_state(self.file(start, world.rank).read_bytes())

    def after_step(self, world: World, state: Callable[[], dict[str, Any]], *, over: bool) -> None:
        self.file(world.clock.step, world.rank).write_bytes(pack_state(state()))
        if world.clock.step == self.stop:
            raise RuntimeError("stopped")

    def close(self) -> None:
        pass

    def file(self, step: int, rank: int) -> Path:
        return Path(self.folder, f"{step}-{rank}")


@pytest.fixture(scope="module")
def pair():
    with LocalCluster(2) as cluster:
        yield cluster


def essence(folder: Path, step: int, rank: int) -> bytes:
    """A kept state without its times."""
    whole = unpack_state(Folder(str(folder)).file(step, rank).read_bytes())
    state = whole["own"]
    for name in ("feed_wait_seconds", "epoch_seconds"):
        del state[name]
    del state["report"]["train_seconds"], state["report"]["phases"]
    state["history"] = untimed(state["history"])
    return pack_state(whole)


def untimed(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in TIMES} for row in history]


def run(cluster: Any, case: str, keeper: Folder | None, **options: Any) -> list[Trained]:
    training, columns = CASES[case]()
    return cluster.gang(replace(training, keeper=keeper, **options), data(), columns)


def assert_alike(found: list[Trained], expected: list[Trained]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.weights == other.weights
        assert repr(untimed(one.history)) == repr(untimed(other.history))
        for name in ("best_epoch", "inputs", "output", "rows", "bytes_per_step"):
            assert one.report[name] == other.report[name]


def check_every(cluster: Any, case: str, steps: list[int], folder: Path) -> None:
    """Stop after each of the steps, go on from there, and compare with a run that did not stop."""
    whole, part = folder / "whole", folder / "part"
    whole.mkdir()
    part.mkdir()
    expected = run(cluster, case, Folder(str(whole)))
    last = expected[0].history[-1]["step"]
    assert_alike(run(cluster, case, None), expected)
    for step in steps:
        for file in part.iterdir():
            file.unlink()
        with pytest.raises(WorkerFailed, match="stopped"):
            run(cluster, case, Folder(str(part), stop=step))
        found = run(cluster, case, Folder(str(part), start=step))
        assert_alike(found, expected)
        for rank in range(cluster.size):
            assert essence(part, last, rank) == essence(whole, last, rank)


# ---- to the bit -----------------------------------------------------------------------------------------------------


@each_case
def test_alone_from_every_step(case, tmp_path):
    check_every(InlineCluster(), case, list(range(1, 2 * STEPS + 1)), tmp_path)


@pytest.mark.slow
@each_case
def test_two_members_from_some_steps(case, pair, tmp_path):
    check_every(pair, case, [1, STEPS, STEPS + 1], tmp_path)


@pytest.mark.slow
def test_three_members_from_some_steps(tmp_path):
    with LocalCluster(3) as cluster:
        for case in CASES:
            (tmp_path / case).mkdir()
            check_every(cluster, case, [STEPS - 1, STEPS, 2 * STEPS], tmp_path / case)


def test_the_runs_are_what_they_are_meant_to_be():
    (stopped,), (whole,) = (run(InlineCluster(), case, None) for case in CASES)
    assert [(row["epoch"], row["step"]) for row in stopped.history] == [(1, STEPS), (2, 2 * STEPS)]
    assert stopped.report["best_epoch"] == 1
    assert [row["step"] for row in whole.history] == [STEPS, 2 * STEPS]
    assert set(whole.history[0]) > {"accuracy", "area", "range"}


# ---- epochs ---------------------------------------------------------------------------------------------------------


class Steps:
    """A hook that writes down the steps it sees."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def on_step(self, run: Any) -> None:
        with self.file.open("a", encoding="utf-8") as out:
            out.write(f"{run.clock.epoch}/{run.clock.step} ")


@pytest.mark.parametrize("start", [STEPS - 1, STEPS, STEPS + 1])
def test_no_epoch_is_skipped_and_none_is_repeated(start, tmp_path):
    keeper, seen = Folder(str(tmp_path)), tmp_path / "seen"
    run(InlineCluster(), "SGD", keeper)
    (found,) = run(InlineCluster(), "SGD", replace(keeper, start=start), hooks=[Steps(seen)])
    assert seen.read_text().split() == [f"{(step - 1) // STEPS}/{step}" for step in range(start + 1, 2 * STEPS + 1)]
    assert [row["epoch"] for row in found.history] == [1, 2]


@each_case
def test_a_finished_run_has_nothing_left_to_do(case, tmp_path):
    keeper = Folder(str(tmp_path))
    expected = run(InlineCluster(), case, keeper)
    found = run(InlineCluster(), case, replace(keeper, start=2 * STEPS), hooks=[Steps(tmp_path / "seen")])
    assert not (tmp_path / "seen").exists()
    assert_alike(found, expected)


def test_a_finished_run_goes_on_with_more_epochs(tmp_path):
    keeper, constant = Folder(str(tmp_path)), replace(sgd()[0].objective, scheduler=None)
    run(InlineCluster(), "SGD", keeper, objective=constant)
    expected = run(InlineCluster(), "SGD", None, objective=constant, epochs=3)
    assert_alike(run(InlineCluster(), "SGD", replace(keeper, start=2 * STEPS), objective=constant, epochs=3), expected)
    assert len(expected[0].history) == 3


def test_fewer_epochs_than_are_done_are_refused(tmp_path):
    keeper = Folder(str(tmp_path))
    run(InlineCluster(), "SGD", keeper)
    with pytest.raises(InvalidInput, match="of step 6, after the end of the 1 epochs of 5 steps that are asked for"):
        run(InlineCluster(), "SGD", replace(keeper, start=STEPS + 1), epochs=1)
    assert len(run(InlineCluster(), "SGD", replace(keeper, start=STEPS), epochs=1)[0].history) == 1


def test_an_early_end_stays_the_end(tmp_path):
    keeper = Folder(str(tmp_path))
    expected = run(InlineCluster(), "Adam", keeper)
    assert_alike(run(InlineCluster(), "Adam", replace(keeper, start=2 * STEPS), epochs=9), expected)


def test_times_go_on_too(tmp_path):
    keeper = Folder(str(tmp_path))
    run(InlineCluster(), "SGD", keeper)
    file = keeper.file(STEPS + 2, 0)
    state = (whole := unpack_state(file.read_bytes()))["own"]
    assert 0 < state["epoch_seconds"] < state["report"]["train_seconds"] + 60
    state["epoch_seconds"], state["feed_wait_seconds"], state["report"]["train_seconds"] = 1000.0, 2000.0, 4000.0
    file.write_bytes(pack_state(whole))
    (found,) = run(InlineCluster(), "SGD", replace(keeper, start=STEPS + 2))
    assert 1000 < found.history[1]["seconds"] < 2000 < found.report["feed_wait_seconds"] < 3000
    assert found.report["train_seconds"] == 4000 + found.history[1]["seconds"]


# ---- the feed -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fed:
    """The batches of an epoch from a step on, and how many of them were transformed."""

    start: int

    def __call__(self, world: World, part: Any) -> tuple[list[Any], int]:
        calls = []

        def counted(*given: Any) -> Any:
            calls.append(1)
            return noisy(*given)

        rows = Rows(part, world.group(), replace(adam()[0], augment=counted), world.device)
        batches = [(*batch.inputs, batch.target, batch.weights) for batch in rows.batches(1, start=self.start)]
        return [[each.tolist() for each in batch] for batch in batches], len(calls)


@pytest.mark.parametrize("start", range(STEPS + 1))
def test_batches_from_a_step_on(start):
    columns = adam()[1]
    ((whole, _),) = InlineCluster().gang(Fed(0), data(), columns)
    ((found, transformed),) = InlineCluster().gang(Fed(start), data(), columns)
    assert len(whole) == STEPS
    assert found == whole[start:]
    assert transformed == STEPS - start


# ---- what is refused ------------------------------------------------------------------------------------------------


class Wider(Restless):
    """Another architecture."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 5)
        self.tail = nn.Linear(1, 1)


def other(**changes: Any) -> Objective:
    return replace(sgd()[0].objective, **changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"objective": other(model=Wider)},
            r"its head.weight is \[4, 8\] float32, the model's is \[5, 8\] float32; .*; it has no tail.weight, which",
        ),
        ({"objective": other(precision="fp64")}, r"8, 3\] float32, the model's is \[8, 3\] float64; .* and \d more"),
        ({"objective": other(optimizer=torch.optim.Adam)}, "its optimizer is SGD, this training's is Adam"),
        ({"objective": other(scheduler=None)}, "its scheduler is OneCycleLR, this training's is None"),
        (
            {"objective": other(metrics={"area": MulticlassAUROC(4)})},
            r"of the metrics .*, lately; expected .*, area, each of the same class: \w+ differs",
        ),
        ({"batch_size": 30}, "its batchSize is 29, expected 30"),
        ({"seed": 7}, "its seed is 2, expected 7"),
    ],
    ids=["architecture", "precision", "optimizer", "scheduler", "metrics", "batchSize", "seed"],
)
def test_the_state_of_another_training_is_refused_by_what_differs(changes, said, tmp_path):
    run(InlineCluster(), "SGD", Folder(str(tmp_path)))
    with pytest.raises(InvalidInput, match=said):
        run(InlineCluster(), "SGD", Folder(str(tmp_path), start=3), **changes)


@pytest.mark.slow
@pytest.mark.parametrize("starts", [(3, 4), (None, 3), (3, None)])
def test_members_have_to_go_on_from_one_step(starts, pair, tmp_path):
    run(pair, "SGD", Folder(str(tmp_path)))
    with pytest.raises(InvalidInput, match=r"states of the steps \[.*\]; expected one step, or none"):
        run(pair, "SGD", Folder(str(tmp_path), start=starts))


def test_a_gang_of_another_size_is_refused(pair, tmp_path):
    run(pair, "SGD", Folder(str(tmp_path)))
    with pytest.raises(InvalidInput, match="its members is 2, expected 1"):
        run(InlineCluster(), "SGD", Folder(str(tmp_path), start=3))


# ---- random numbers -------------------------------------------------------------------------------------------------


def test_the_callers_random_numbers_are_left_alone(tmp_path):
    def drawn() -> list[float]:
        return [random.random(), np.random.rand(), float(torch.rand(()))]

    run(InlineCluster(), "SGD", keeper := Folder(str(tmp_path)))
    state = unpack_state(keeper.file(4, 0).read_bytes())["own"]["random"]
    numbers = []
    for start in (None, 4):
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        if start:
            run(InlineCluster(), "SGD", replace(keeper, start=start))
        numbers.append(drawn())
    assert numbers[0] == numbers[1]
    assert state.keys() == {"python", "numpy", "torch"}
