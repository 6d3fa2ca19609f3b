"""The training loop, alone and of two workers: results, events, errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torchmetrics.regression import MeanSquaredError

from sparkdl.checkpoint.checkpointer import Checkpointer
from sparkdl.checkpoint.interval import CheckpointInterval
from sparkdl.checkpoint.store import Checkpoints
from sparkdl.cluster.group.world import World
from sparkdl.cluster.inline import InlineCluster
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.shard import Shard
from sparkdl.errors import InvalidInput, WorkerFailed
from sparkdl.io.serialization import unpack_state
from sparkdl.telemetry.event import Event
from sparkdl.training.layouts.replicated import Replicated
from sparkdl.training.loop import Training
from sparkdl.training.objective.objective import Objective
from sparkdl.training.spec import TrainingResult
from sparkdl.training.strategies import average_buffers
from tests.contracts import work
from tests.contracts.strategy_contract import ROWS, numbers
from tests.results import merged

COLUMNS = Columns((InputColumn("x"),), InputColumn("y"), row_id=InputColumn("row"))
SEEDED = work.Seeded(work.Net)
OBJECTIVE = Objective(SEEDED, nn.MSELoss(), partial(torch.optim.SGD, lr=0.05))


def alone(training: Training, columns: Columns = COLUMNS, data: Any = None, **options: Any) -> TrainingResult:
    (trained,) = InlineCluster().gang(training, numbers() if data is None else data, columns, **options)
    return trained


def loaded(trained: Sequence[TrainingResult], module: nn.Module) -> nn.Module:
    module.load_state_dict(merged(trained))
    return module


# ---- results ----------------------------------------------------------------------------------------------------


def test_weights_history_and_events_of_two_workers(pair):
    events: list[Event] = []
    trained = pair.gang(Training(OBJECTIVE, 16, epochs=2), numbers(), COLUMNS, listener=events.append)
    kept = [unpack_state(worker.weights) for worker in trained]
    assert all(worker["others"].keys() == set() for worker in kept[1:])
    sizes = [sum(tensor.numel() for tensor in worker["parameters"].values()) for worker in kept]
    assert sum(sizes) == sum(parameter.numel() for parameter in work.Net().parameters())
    assert all(sizes)
    first, module = trained[0], loaded(trained, work.Net())
    assert any((a != b).any() for a, b in zip(module.parameters(), SEEDED().parameters(), strict=True))
    common = ("epoch", "step", "samples", "loss")
    ours, theirs = ([[row[name] for name in common] for row in each.history] for each in trained)
    assert ours == theirs
    assert [row[:3] for row in ours] == [[1, 3, ROWS], [2, 6, 2 * ROWS]]
    assert (first.report["rows"], first.report["output"]) == (ROWS // 2, [])
    elements = sum(parameter.numel() + 1 for parameter in module.parameters())
    assert first.report["bytes_per_step"] == 4 * elements  # gradients, and who has one

    by_kind = {kind: [event for event in events if event.kind == kind] for kind in ("progress", "epoch", "step")}
    assert {event.rank for event in by_kind["progress"]} == {0, 1}
    progress = next(event for event in by_kind["progress"] if event.rank == 0)
    assert progress.clock == {"epoch": 0, "step": 1, "samples": 16}
    assert (progress.payload["epochs"], progress.payload["steps"], progress.payload["loss"] > 0) == (2, 3, True)
    assert [(event.rank, event.clock["epoch"]) for event in by_kind["epoch"]] == [(0, 1), (0, 2)]
    assert [event.payload for event in by_kind["epoch"]] == first.history
    for rank, worker in enumerate(trained):
        steps = [event.payload for event in by_kind["step"] if event.rank == rank]
        sums = [sum(each[name] for each in steps) for name in ("steps", "rows", "bytes")]
        assert sums == [6, 2 * worker.report["rows"], 6 * worker.report["bytes_per_step"]]
        assert {"feed", "forward", "backward", "exchange", "update"} <= set(worker.report["phases"])
        for phase, seconds in worker.report["phases"].items():
            assert seconds == pytest.approx(sum(each["seconds"].get(phase, 0.0) for each in steps), abs=1e-5)


def test_loss_is_mean_over_epoch():
    still = replace(OBJECTIVE, optimizer=partial(torch.optim.SGD, lr=0.0))
    trained = alone(Training(still, 7, epochs=2))
    data = numbers()
    with torch.no_grad():
        output = SEEDED()(torch.tensor(data["x"], dtype=torch.float32))
        expected = nn.functional.mse_loss(output, torch.tensor(data["y"], dtype=torch.float32)).item()
    assert [row["loss"] for row in trained.history] == [pytest.approx(expected, rel=1e-6)] * 2
    assert trained.report["bytes_per_step"] == 0


def test_validation_rows_are_not_trained_on(pair):
    objective = replace(OBJECTIVE, metrics={"error": MeanSquaredError()}, precision="fp64")
    columns = replace(COLUMNS, validation=InputColumn("held", "bool"), floating="float64")
    data = numbers()
    data["held"] = np.arange(ROWS) >= 40  # all of them on the second member
    training = Training(objective, 8, epochs=2)
    results = pair.gang(training, data, columns)
    both = results[0]
    only = alone(training, replace(columns, validation=None), {name: array[:40] for name, array in data.items()})
    assert [row["samples"] for row in both.history] == [40, 80]
    assert both.history[0]["step"] == 5
    assert "error" not in both.history[0]
    with torch.no_grad():
        output = loaded(results, objective.build())(torch.tensor(data["x"][40:]))
        expected = nn.functional.mse_loss(output, torch.tensor(data["y"][40:])).item()
    assert both.history[-1]["valid_loss"] == pytest.approx(expected, rel=1e-12)
    assert both.history[-1]["valid_error"] == pytest.approx(expected, rel=1e-6)
    assert set(only.history[0]) == {"epoch", "step", "samples", "loss", "error", "seconds", "rows_per_second"}


def test_seed_decides_weights():
    random = replace(OBJECTIVE, model=work.Net)
    runs = [alone(Training(random, 16, seed=seed)).weights for seed in (0, 1, 0, 2**40)]
    assert runs[0] == runs[2]
    assert len(set(runs)) == 3


def test_unshuffled_rows_come_in_id_order():
    def targets(world: World, shard: Shard) -> list[float]:
        seen: list[float] = []

        def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            seen.extend(target.tolist())
            return (output - target).square().mean()

        Training(replace(OBJECTIVE, loss=loss), 20, epochs=2, shuffle=False)(world, shard)
        return seen

    assert InlineCluster().gang(targets, numbers() | {"y": np.arange(ROWS)}, COLUMNS) == [[*range(ROWS)] * 2]


# ---- callbacks --------------------------------------------------------------------------------------------------


class Diary:
    """Writes a word for every call to a file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _write(self, moment: str, run: Any) -> None:
        with open(self.folder / f"{type(self).__name__}-{run.rank}", "a", encoding="utf-8") as file:
            file.write(f"{moment} {run.clock.epoch} {run.clock.step} {len(run.history)}, ")

    def on_start(self, run):
        assert (run.epochs, run.steps, run.loss, type(run.module)) == (2, 3, None, work.Net)
        self._write("start", run)

    def on_step(self, run):
        assert run.loss > 0
        self._write("step", run)

    def on_epoch(self, run):
        assert run.history[-1]["epoch"] == run.clock.epoch
        self._write("epoch", run)

    def on_end(self, run):
        self._write("end", run)


class OfOneRank(Diary):
    every_rank = False


FIRST = "start 0 0 0, step 0 1 0, step 0 2 0, step 0 3 0, epoch 1 3 1, "
SECOND = "step 1 4 1, step 1 5 1, step 1 6 1, epoch 2 6 2, end 2 6 2, "


def test_callbacks_are_called_on_every_rank_or_on_rank_0(pair, tmp_path):
    callbacks = [Diary(tmp_path), OfOneRank(tmp_path)]
    pair.gang(Training(OBJECTIVE, 16, 2, callbacks=callbacks), numbers(), COLUMNS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["Diary-0", "Diary-1", "OfOneRank-0"]
    assert all(path.read_text() == FIRST + SECOND for path in tmp_path.iterdir())


def test_failing_and_invalid_callbacks_raise():
    with pytest.raises(WorkerFailed, match="ZeroDivisionError"):
        alone(Training(OBJECTIVE, 16, callbacks=[SimpleNamespace(on_end=lambda run: 1 // 0)]))
    with pytest.raises(InvalidInput, match="none of the methods on_start, on_step, on_validation_start, on_valid"):
        Training(OBJECTIVE, 16, callbacks=[SimpleNamespace(on_end=print), "a string"])


# ---- errors -----------------------------------------------------------------------------------------------------


def test_validation_reports_each_batch_as_progress():
    """A long validation must not look like a stuck worker."""

    def work(world: World, shard: Shard) -> list[str]:
        phases: list[str] = []

        def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            phases.append(world.phase)
            return (output - target).square().mean()

        Training(replace(OBJECTIVE, loss=loss), 16)(world, shard)
        return [phase for phase in phases if phase.startswith("validate")]

    data = numbers() | {"held": np.arange(ROWS) < 20}
    columns = replace(COLUMNS, validation=InputColumn("held", "bool"))
    assert InlineCluster().gang(work, data, columns) == [["validate, batch 0", "validate, batch 1"]]


def test_without_training_or_validation_rows_raises():
    with pytest.raises(InvalidInput, match="no data to train on"):
        InlineCluster().gang(Training(OBJECTIVE, 16))
    for held, message in ((True, "every row is a validation row"), (False, "no row is a validation row")):
        data = numbers() | {"held": np.full(ROWS, held)}
        with pytest.raises(InvalidInput, match=message):
            alone(Training(OBJECTIVE, 16), replace(COLUMNS, validation=InputColumn("held", "bool")), data)


class Unloadable(work.Net):
    def get_extra_state(self) -> int:
        return 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": replace(OBJECTIVE, model=Unloadable)}, "Unloadable, which has get_extra_state; expected set_"),
        ({"result_limit": 100}, "the driver accepts results of 0.0001 MB. Set runDir, .* spark.driver.maxResultSize"),
        ({"callbacks": [SimpleNamespace(on_step=print, state_dict=lambda: {"file": open})]}, r"\.file is of type bu"),
    ],
)
def test_what_cannot_be_saved_is_found_before_the_first_step(changes, message, tmp_path):
    saving = Checkpointer(Checkpoints(str(tmp_path), run="a run"), CheckpointInterval.of("1 epoch"))
    with pytest.raises(InvalidInput, match=message) as caught:
        alone(Training(**{"objective": OBJECTIVE, "batch_size": 16, "checkpointer": saving} | changes))
    assert caught.value.step == 0


# ---- buffers ----------------------------------------------------------------------------------------------------


SAME = torch.tensor([0.1, -float("inf"), 3.4e38])


def test_buffers_are_averaged_by_share(pair):
    def averaged(world, shard):
        module = nn.Module()
        module.register_buffer("own", torch.tensor([float(world.rank), 1.0]))
        module.register_buffer("same", SAME.clone())
        module.register_buffer("narrow", torch.tensor([0.1]).half())
        module.register_buffer("count", torch.tensor(world.rank))
        average_buffers(module, world.group(), (0.1, 0.9)[world.rank])
        return {name: buffer.tolist() for name, buffer in module.named_buffers()}

    for rank, found in enumerate(pair.gang(averaged)):
        assert found["own"] == pytest.approx([0.9, 1.0])
        assert (found["same"], found["count"]) == (SAME.tolist(), rank)
        assert found["narrow"] == torch.tensor([0.1]).half().tolist()


@dataclass(frozen=True)
class NeedsRows(Replicated):
    """A layout whose workers exchange in each pass, as with SyncBatchNorm."""

    def place(self, objective, world, feed):
        replica = super().place(objective, world, feed)
        replica.needs_rows = True
        return replica


def test_a_layout_that_needs_rows_of_each_worker_raises_before_the_first_step():
    alone(Training(OBJECTIVE, 16, layout=NeedsRows()))
    with pytest.raises(InvalidInput, match=r"3 rows in step 3 of 4, and SyncBatchNorm needs one in each"):
        alone(Training(replace(OBJECTIVE, micro_batches=4), 15, layout=NeedsRows()))
