"""Reports a run from one worker: history, validation, progress and phase times. It changes no weights."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from sparkdl.data.batch import Batch
from sparkdl.errors import InvalidInput
from sparkdl.telemetry.emit import record
from sparkdl.telemetry.step_timer import EVERY, StepTimer, end_step, enter_phase, flush, measuring
from sparkdl.training.objective.metrics import MetricAccumulator, observe
from sparkdl.training.objective.monitored_value import monitored
from sparkdl.training.trainer_state import TrainerState

_PROGRESS = 0.25  # seconds between progress events of rank 0, which the progress bar shows
_OTHERS = 5.0  # and of the other ranks
_MANY = 8  # Up to this many ranks report every step; above it the total rate is capped.


class TrainingMonitor:
    """Reports the run of one worker; updates the history, meter and report of ``state``."""

    def __init__(self, state: TrainerState) -> None:
        self.state = state
        self._criterion = state.training.objective.criterion(state.world.device)
        self._monitor = state.training.objective.monitor
        self._shown = time.monotonic()

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure the seconds of each phase of the block's steps; they go to the report's ``"phases"``."""
        seconds = self.state.report.get("phases", {}) if self.state.training.measured else {}
        self.state.report["phases"] = seconds
        every = EVERY * max(1.0, self.state.world.size / _MANY)
        with measuring(StepTimer(seconds, every=every) if self.state.training.measured else None):
            yield
            flush(clock=self.state.world.clock)

    def observe(self, loss: Tensor, batch: Batch) -> None:
        """Add a batch's loss and, without validation rows, its metrics.

        Raises InvalidInput if the loss is on the CPU and not finite; for other devices ``end_epoch`` checks the mean.
        """
        if not batch.weight or not self.state.replica.reports:
            return
        state, output = self.state, self.state.replica.output
        # Reading a loss waits for the device, so that losses on other devices are checked once per epoch.
        if loss.device.type == "cpu" and not math.isfinite(loss):
            where = f"at step {state.world.clock.step}, batch {state.position + 1} of {state.rows.plan.steps} in"
            raise self._diverged(float(loss), where)
        state.meter.add(loss, batch.weight, *self._criterion.arguments(output, batch))

    def end_step(self, batch: Batch) -> None:
        """Report the phases of the step, and progress at intervals."""
        state, clock, plan = self.state, self.state.world.clock, self.state.rows.plan
        rows = batch.rows if state.replica.reports else 0
        end_step(clock=clock, rows=rows, sent=state.sync.bytes_per_step + state.replica.bytes_per_step)
        now = time.monotonic()
        every = _PROGRESS if state.world.rank == 0 else _OTHERS
        if not state.training.measured or (clock.step > 1 and now - self._shown < every):
            return
        self._shown = now
        loss, rate = state.meter.local_mean(), state.position * plan.batch_size / max(state.epoch_seconds, 1e-9)
        epochs, steps = state.training.epochs, plan.steps
        record("progress", clock=clock, epochs=epochs, steps=steps, loss=loss, rows_per_second=rate)

    def validate(self) -> float:
        """Validate the epoch and add its row to the history; return the monitored value, the same on all workers."""
        state, clock, seconds = self.state, self.state.world.clock, self.state.epoch_seconds
        state.report["train_seconds"] += seconds
        row: dict[str, Any] = {"epoch": clock.epoch, "step": clock.step, "samples": clock.samples}
        mean = state.meter.local_mean()
        if mean is not None and not math.isfinite(mean):
            raise self._diverged(mean, "over")
        row |= state.meter.close(state.group)
        row |= self._validate() | state.sync.epoch_columns()
        enter_phase("other")
        row |= {"seconds": seconds, "rows_per_second": state.rows.plan.total / max(seconds, 1e-9)}
        state.history.append(row)
        # Rank 0 decides for all: sums may differ in the last bit, and the rest wait for workers that stop alone.
        value = torch.tensor(monitored(row, self._monitor), dtype=torch.float64, device=state.world.device)
        state.group.broadcast_(value)
        return value.item()

    def end_epoch(self) -> None:
        """Report the epoch's row."""
        if self.state.world.rank == 0:
            record("epoch", clock=self.state.world.clock, **self.state.history[-1])
        self._shown = time.monotonic()
        end_step(clock=self.state.world.clock, steps=0)

    def _validate(self) -> dict[str, float]:
        state = self.state
        if state.rows.validation is None:
            return {}
        enter_phase("validate")
        meter, batches = MetricAccumulator(state.world.device, state.metrics), state.rows.validation_batches()
        replica, counted = state.replica, meter if state.replica.reports else None
        observe(replica.module, replica.evaluate, self._criterion, self._counted(batches), counted)
        values = meter.close(state.group)
        state.world.phase = "work"
        return {f"valid_{name}": value for name, value in values.items()}

    def _counted(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        # The number shows that a long validation makes progress.
        for number, batch in enumerate(batches):
            self.state.world.phase = f"validate, batch {number}"
            yield batch

    def _diverged(self, loss: float, where: str) -> InvalidInput:
        epoch = len(self.state.history) + 1
        return InvalidInput(
            f"the loss is {loss} on rank {self.state.world.rank} {where} epoch {epoch}. Lower the learning rate, set "
            "maxGradNorm, scale the inputs, or look for a logarithm or a division of 0 in model and loss."
        )
