"""Callbacks: moments, ranks and the state that they see."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from torch import nn

from sparkdl.cluster.inline import InlineCluster
from sparkdl.cluster.local import LocalCluster
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.errors import InvalidInput, WorkerFailed
from sparkdl.training.loop import Training
from sparkdl.training.objective import Objective

COLUMNS = Columns((InputColumn("x"),), InputColumn("y", "float32"))
ROWS = {"x": np.ones((10, 1), np.float32), "y": np.arange(10, dtype=np.float32)}


def line() -> nn.Module:
    return nn.Linear(1, 1)


def training(*callbacks: object) -> Training:
    return Training(Objective(line, nn.MSELoss()), 4, 2, callbacks=callbacks)


class Diary:
    """Writes a line for every call to a file."""

    def __init__(self, folder: Path, *, every_rank: bool = False) -> None:
        self.folder, self.every_rank = folder, every_rank

    def _write(self, name, run) -> None:
        with open(self.folder / str(run.rank), "a", encoding="utf-8") as file:
            file.write(f"{name} {run.clock.epoch} {run.clock.step} {len(run.history)}, ")

    def on_start(self, run) -> None:
        assert (run.epochs, run.steps, run.loss) == (2, 3, None)
        assert isinstance(run.module, nn.Linear)
        self._write("start", run)

    def on_step(self, run) -> None:
        assert run.loss > 0
        self._write("step", run)

    def on_epoch(self, run) -> None:
        assert run.history[-1]["epoch"] == run.clock.epoch
        self._write("epoch", run)

    def on_end(self, run) -> None:
        self._write("end", run)


FIRST = "start 0 0 0, step 0 1 0, step 0 2 0, step 0 3 0, epoch 1 3 1, "
SECOND = "step 1 4 1, step 1 5 1, step 1 6 1, epoch 2 6 2, end 2 6 2, "


def test_moments_and_ranks(tmp_path):
    one, every = tmp_path / "one", tmp_path / "every"
    one.mkdir()
    every.mkdir()
    LocalCluster(2).gang(training(Diary(one), Diary(every, every_rank=True)), ROWS, COLUMNS)
    assert [path.name for path in one.iterdir()] == ["0"]
    assert sorted(path.name for path in every.iterdir()) == ["0", "1"]
    assert (one / "0").read_text() == FIRST + SECOND


def test_failing_callback_ends_run():
    with pytest.raises(WorkerFailed, match="ZeroDivisionError"):
        InlineCluster().gang(training(SimpleNamespace(on_end=lambda run: 1 // 0)), ROWS, COLUMNS)


def test_object_without_callback_methods_raises():
    with pytest.raises(InvalidInput, match="none of the methods on_start, on_step, on_epoch, on_end"):
        training(SimpleNamespace(on_end=print), "a string")
