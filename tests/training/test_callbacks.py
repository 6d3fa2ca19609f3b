"""Hooks: when they are called, on whom, and what they see."""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

from sparkdl.cluster.inline import InlineCluster
from sparkdl.cluster.local import LocalCluster
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.errors import InvalidInput, WorkerFailed
from sparkdl.training.callbacks import Hooks
from sparkdl.training.loop import Training
from sparkdl.training.objective import Objective

COLUMNS = Columns((InputColumn("x"),), InputColumn("y", "float32"))
ROWS = {"x": np.ones((10, 1), np.float32), "y": np.arange(10, dtype=np.float32)}


def line() -> nn.Module:
    return nn.Linear(1, 1)


def training(*hooks: object) -> Training:
    return Training(Objective(line, nn.MSELoss()), 4, 2, hooks=hooks)


class Diary:
    """Writes a line for every call to a file."""

    def __init__(self, path: str, *, every_rank: bool = False) -> None:
        self.path, self.every_rank = path, every_rank

    def _write(self, name, run) -> None:
        with open(f"{self.path}.{run.rank}", "a", encoding="utf-8") as file:
            file.write(f"{name} {run.clock.epoch} {run.clock.step} {len(run.history)}\n")

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


class AtTheEnd:
    def on_end(self, run) -> None:
        raise LookupError("no room for the results")


LINES = [
    "start 0 0 0",
    "step 0 1 0",
    "step 0 2 0",
    "step 0 3 0",
    "epoch 1 3 1",
    "step 1 4 1",
    "step 1 5 1",
    "step 1 6 1",
    "epoch 2 6 2",
    "end 2 6 2",
]


def test_the_moments_of_a_run(tmp_path):
    InlineCluster().gang(training(Diary(str(tmp_path / "diary"))), ROWS, COLUMNS)
    assert (tmp_path / "diary.0").read_text().splitlines() == LINES


@pytest.mark.slow
@pytest.mark.parametrize("every_rank", [False, True])
def test_rank_0_alone_unless_every_rank_is_asked_for(tmp_path, every_rank):
    LocalCluster(2).gang(training(Diary(str(tmp_path / "diary"), every_rank=every_rank)), ROWS, COLUMNS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["diary.0", "diary.1"][: 1 + every_rank]
    assert (tmp_path / "diary.0").read_text().splitlines() == LINES


def test_a_hook_that_raises_ends_the_run():
    with pytest.raises(WorkerFailed, match="LookupError: no room for the results"):
        InlineCluster().gang(training(AtTheEnd()), ROWS, COLUMNS)


def test_what_would_never_be_called_is_refused():
    with pytest.raises(InvalidInput, match="none of the methods on_start, on_step, on_epoch, on_end"):
        training(AtTheEnd(), "a string")


def test_nothing_is_prepared_for_moments_without_hooks():
    hooks = Hooks([AtTheEnd()], rank=0)
    assert ["on_step" in hooks, "on_end" in hooks, "on_end" in Hooks([AtTheEnd()], rank=1)] == [False, True, False]
