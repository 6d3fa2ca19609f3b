"""The work of a task that trains a trial to a rung."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, replace
from typing import Any

import torch

from sparkdl.checkpoint.checkpointer import Checkpointer
from sparkdl.checkpoint.interval import CheckpointInterval
from sparkdl.checkpoint.store import Checkpoints
from sparkdl.cluster.group.world import World
from sparkdl.cluster.tasks import Tensors
from sparkdl.data.shard import Shard
from sparkdl.errors import ClusterUnavailable, Fenced, InvalidInput
from sparkdl.ml.tuning.trial_table import TrialTable
from sparkdl.training.loop import Training
from sparkdl.training.spec import TrainingResult


@dataclass(frozen=True)
class TrialCheckpoints:
    """Where a trial's states are saved: the table proves that a task sees the driver's directory."""

    table: TrialTable
    checkpoints: Checkpoints
    interval: CheckpointInterval


@dataclass(frozen=True)
class RungWork:
    """Trains a trial to a rung, for ``sparkdl.cluster.tasks.TaskRunner.each``.

    Attributes:
        training: the training of the trial, with the rung as ``last_epoch``.
        saved: where its state is saved; None trains the whole trial without checkpoints.
        weights: whether the task returns weights.
        device: device of the task.
    """

    training: Training
    saved: TrialCheckpoints | None
    weights: bool
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - immutable

    def map(self, number: Any, shard: Shard) -> tuple[Tensors, Any]:
        """Train the trial ``number`` to the rung; the note has ``weights``, ``history``, ``report`` and ``seconds``."""
        start = time.monotonic()
        trained = self._trained(self.training, shard) if self.saved is None else self._resumed(number, shard)
        state = {name: getattr(trained, name) for name in ("history", "report", "in_file")}
        state |= {"weights": trained.weights if self.weights else b"", "seconds": time.monotonic() - start}
        return {}, state

    def _trained(self, training: Training, shard: Shard, attempt: int = 0) -> TrainingResult:
        with (world := World(device=self.device, attempt=attempt)).ends:
            return training(world, shard)

    def _resumed(self, number: Any, shard: Shard) -> TrainingResult:
        saved = self.saved
        assert saved is not None
        try:
            saved.table.check_writable()
        except InvalidInput as error:  # no failure of this trial: others would fail alike
            raise ClusterUnavailable(error.message) from error
        # Each attempt of the task fences those before it, which Spark may have lost, but which may still train.
        checkpoints = replace(saved.checkpoints, writer=uuid.uuid4().hex)
        training = replace(self.training, checkpointer=Checkpointer(checkpoints, saved.interval))
        try:
            trained = self._trained(training, shard, attempt=checkpoints.next_attempt())
        except Fenced as error:
            saved.table.check_writable()
            raise OSError(f"a later attempt of the task for trial {number} has begun: {error}") from error  # no result
        checkpoints.prune()
        return trained

    def reduce(self, left: Tensors, right: Tensors) -> Tensors:
        """Never called: trials have no reduction."""
        raise NotImplementedError
