"""The course of a run on one member: losses and metrics, history, progress, hooks, early stopping."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sparkdl.early_stopping import EarlyStopping
from sparkdl.errors import InvalidInput
from sparkdl.evaluate import Meter, evaluate, open_metrics
from sparkdl.events import record
from sparkdl.hooks import Hooks, Snapshot
from sparkdl.layout import Replica
from sparkdl.rows import Rows
from sparkdl.tensors import Batch, arguments
from sparkdl.world import Group, World

if TYPE_CHECKING:
    from sparkdl.train import Training

_PROGRESS = 0.25  # seconds between progress events


class Course:
    """What a member keeps beside the replica and its rows.

    Attributes:
        history: a row per epoch, the same on every member.
        report: seconds of training, shape and dtype of a row of each input and the shape of one of the output, and
            the best epoch, None without patience.
    """

    def __init__(self, world: World, group: Group, training: Training, replica: Replica, rows: Rows) -> None:
        self.world, self.group, self.training, self.replica, self.rows = world, group, training, replica, rows
        self.history: list[dict[str, Any]] = []
        self.report: dict[str, Any] = {"inputs": None, "output": None, "train_seconds": 0.0}
        metrics = open_metrics(training.objective.metrics, world.device)
        self._criterion = training.objective.criterion(world.device)
        self._validation_metrics = {} if rows.validation is None else metrics
        self._meter = Meter(world.device, metrics if rows.validation is None else {})
        self._stopping = EarlyStopping(training.patience, group)
        self._hooks = Hooks(training.hooks, world.rank)
        self._started = self._shown = time.monotonic()

    def start(self) -> None:
        """The first step is next."""
        self._call("on_start")
        self._started = self._shown = time.monotonic()

    def observe(self, loss: Tensor, batch: Batch) -> None:
        """Take down a batch's loss and, without validation rows, its metrics.

        Raises:
            InvalidInput: the loss is not finite.
        """
        # Elsewhere than on the CPU, to look at each loss would be to wait for the device: there it is seen per epoch.
        if batch.weight and loss.device.type == "cpu" and not math.isfinite(loss):
            clock, steps = self.world.clock, self.rows.plan.steps
            raise self._diverged(float(loss), f"at step {clock.step}, batch {clock.step % steps + 1} of {steps} in")
        self._meter.add(loss, self.replica.output, batch)
        if self.report["inputs"] is None and all(isinstance(each, Tensor) for each in batch.inputs):
            self.report["inputs"] = [
                (list(each.shape[1:]), str(each.dtype).removeprefix("torch.")) for each in arguments(batch.inputs)
            ]
        if self.report["output"] is None and isinstance(self.replica.output, Tensor):
            self.report["output"] = list(self.replica.output.shape[1:])

    def end_step(self) -> None:
        """Tell the driver how far the gang is, now and then and from rank 0 alone; call the hooks."""
        self._call("on_step")
        now, clock = time.monotonic(), self.world.clock
        if self.world.rank or (clock.step > 1 and now - self._shown < _PROGRESS):
            return
        self._shown = now
        done = clock.step - clock.epoch * self.rows.plan.steps
        record(
            "progress",
            clock=clock,
            epochs=self.training.epochs,
            steps=self.rows.plan.steps,
            loss=self._meter.local_mean(),
            rows_per_second=done * self.rows.plan.batch_size / max(now - self._started, 1e-9),
        )

    def end_epoch(self) -> bool:
        """Close the epoch's row of the history; returns whether training is to end.

        Raises:
            InvalidInput: this member's mean loss is not finite.
        """
        seconds = time.monotonic() - self._started
        self.report["train_seconds"] += seconds
        module, clock, plan = self.replica.module, self.world.clock, self.rows.plan
        average_buffers(module, self.group, self.rows.share)
        row: dict[str, Any] = {"epoch": clock.epoch, "step": clock.step, "samples": clock.samples}
        own = self._meter.local_mean()
        if own is not None and not math.isfinite(own):
            raise self._diverged(own, "over")
        row |= self._meter.close(self.group)
        row |= self._validate(module)
        row |= {"seconds": seconds, "rows_per_second": plan.total / max(seconds, 1e-9)}
        self.history.append(row)
        if self.world.rank == 0:
            record("epoch", clock=clock, **row)
        stop = self._stopping.after(row, module)
        self._call("on_epoch")
        self._started = self._shown = time.monotonic()
        return stop

    def end(self) -> None:
        """Training is over."""
        self.report["best_epoch"] = self._stopping.epoch
        self._call("on_end")

    def weights(self) -> bytes:
        """The weights to keep, as safetensors; empty but on rank 0."""
        return self._stopping.weights(self.replica.module)

    def _validate(self, module: nn.Module) -> dict[str, float]:
        if self.rows.validation is None:
            return {}
        found = evaluate(
            module,
            self._criterion,
            self.rows.validation,
            self.group,
            metrics=self._validation_metrics,
            batch_size=self.training.batch_size,
            device=self.world.device,
            collate=self.training.collate,
        )
        return {f"valid_{name}": value for name, value in found.items()}

    def _diverged(self, loss: float, where: str) -> InvalidInput:
        epoch = len(self.history) + 1
        return InvalidInput(
            f"the loss is {loss} on rank {self.world.rank} {where} epoch {epoch}. Lower the learning rate, set "
            "clipNorm, scale the inputs, or look for a logarithm or a division of 0 in model and loss."
        )

    def _call(self, moment: str) -> None:
        if moment in self._hooks:
            snapshot = Snapshot(
                self.world.rank,
                self.world.size,
                self.world.clock,
                self.replica.module,
                self.world.device,
                self.training.epochs,
                self.rows.plan.steps,
                self.history,
                self._meter.local_mean(),
            )
            self._hooks.call(moment, snapshot)


def average_buffers(module: nn.Module, group: Group, share: float) -> None:
    """Average floating-point buffers, which batch normalisation keeps per member.

    Args:
        module: the replica's module.
        group: the members.
        share: this member's part of all training rows. A member without rows has seen nothing, and its buffers,
            still as they were at the start, count for nothing.
    """
    if group.size == 1:
        return
    for buffer in module.buffers():
        if buffer.is_floating_point():
            # In double precision, so that a buffer that is the same everywhere stays what it is.
            total = buffer.double() * share if share else torch.zeros_like(buffer, dtype=torch.float64)
            group.sum_(total)
            buffer.copy_(total)
