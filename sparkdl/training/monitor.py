"""Reports a run from one worker: history, progress, phase times, validation and callbacks."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from sparkdl.data.batch import Batch
from sparkdl.data.batching import Batcher
from sparkdl.data.sampler import Plan
from sparkdl.data.transforms import Transforms
from sparkdl.errors import InvalidInput
from sparkdl.telemetry.emit import record
from sparkdl.telemetry.step_timer import EVERY, StepTimer, end_step, enter_phase, flush, measuring
from sparkdl.training.callbacks.callback import CallbackContext, Requests, agreed, on_every_rank
from sparkdl.training.layouts.replica_check import ReplicaCheck
from sparkdl.training.objective.metrics import MetricAccumulator, observe
from sparkdl.training.objective.monitored_value import monitored
from sparkdl.training.strategies import average_buffers
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
        self._check = ReplicaCheck(state.replica, state.world, state.sync.replicated)
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

    def start(self) -> None:
        """Call ``on_start``, then start the clock of the first epoch."""
        self._call("on_start")
        self.state.start()
        self._shown = time.monotonic()

    def observe(self, loss: Tensor, batch: Batch) -> None:
        """Add a batch's loss and, without validation rows, its metrics.

        Raises InvalidInput if the loss is on the CPU and not finite; for other devices ``end_epoch`` checks the mean.
        """
        if not batch.weight:
            return
        state, output = self.state, self.state.replica.output
        # Reading a loss waits for the device, so that losses on other devices are checked once per epoch.
        if loss.device.type == "cpu" and not math.isfinite(loss):
            where = f"at step {state.world.clock.step}, batch {state.position + 1} of {state.rows.plan.steps} in"
            raise self._diverged(float(loss), where)
        state.meter.add(loss, batch.weight, *self._criterion.arguments(output, batch))

    def end_step(self, batch: Batch) -> None:
        """Call ``on_step``, save the state if due, and report progress at intervals."""
        enter_phase("other")
        self._call("on_step")
        state, clock, plan = self.state, self.state.world.clock, self.state.rows.plan
        if state.position < plan.steps:  # else end_epoch compares the replicas and saves the state
            interval = state.training.replica_check_interval
            if interval and state.sync.replicated and not clock.step % interval:
                self._compare(f"after step {clock.step}")
            state.save()
        end_step(clock=clock, rows=batch.rows, sent=state.sync.bytes_per_step)
        now = time.monotonic()
        every = _PROGRESS if state.world.rank == 0 else _OTHERS
        if not state.training.measured or (clock.step > 1 and now - self._shown < every):
            return
        self._shown = now
        loss, rate = state.meter.local_mean(), state.position * plan.batch_size / max(state.epoch_seconds, 1e-9)
        epochs, steps = state.training.epochs, plan.steps
        record("progress", clock=clock, epochs=epochs, steps=steps, loss=loss, rows_per_second=rate)

    def end_epoch(self) -> None:
        """Validate, add the epoch's row to the history, and call ``on_epoch``."""
        state, clock = self.state, self.state.world.clock
        module, seconds = state.replica.module, state.epoch_seconds
        state.report["train_seconds"] += seconds
        self._compare(f"after epoch {clock.epoch}", refresh=True)
        enter_phase("exchange")
        average_buffers(module, state.group, state.rows.share)
        row: dict[str, Any] = {"epoch": clock.epoch, "step": clock.step, "samples": clock.samples}
        mean = state.meter.local_mean()
        if mean is not None and not math.isfinite(mean):
            raise self._diverged(mean, "over")
        row |= state.meter.close(state.group)
        called = [one for one in state.callbacks.values() if on_every_rank(one)]
        around = any(hasattr(one, name) for one in called for name in ("on_validation_start", "on_validation_end"))
        with _restoring(module) if around else nullcontext():
            self._call("on_validation_start")
            row |= self._validate(module)
            enter_phase("other")
            row |= {"seconds": seconds, "rows_per_second": state.rows.plan.total / max(seconds, 1e-9)}
            state.history.append(row)
            # Rank 0 decides for all: sums may differ in the last bit, and the rest wait for workers that stop alone.
            value = torch.tensor(monitored(row, self._monitor), dtype=torch.float64, device=state.world.device)
            state.group.broadcast_(value)
            state.replica.end_epoch(value.item())
            state.stopping.after(clock.epoch, value.item(), module)
            self._call("on_validation_end")
        self._call("on_epoch")
        self._fulfil(row)
        if state.world.rank == 0:
            record("epoch", clock=clock, **row)
        state.start_epoch()
        self._shown = time.monotonic()
        state.save()
        end_step(clock=clock, steps=0)

    def end(self) -> None:
        """Call ``on_end`` after the last epoch; raises InvalidInput if a callback stops or logs in it."""
        stopping = self.state.stopping
        best = {"best_epoch": stopping.epochs.best, "keeps_best": stopping.keep}
        self.state.report |= {**best, "stop_reason": stopping.reason}
        self._call("on_end")
        if self.state.requests != Requests():
            raise InvalidInput(
                "a callback called run.log or run.stop in on_end, after the last epoch; expected on_epoch."
            )

    def _fulfil(self, row: dict[str, Any]) -> None:
        state = self.state
        if state.training.callbacks:
            requests = agreed(state.group.gather(state.requests), row)
            row |= requests.logged
            state.stopping.reason = state.stopping.reason or requests.stop
            state.requests = Requests()

    def _validate(self, module: nn.Module) -> dict[str, float]:
        state, training, rows = self.state, self.state.training, self.state.rows.validation
        if rows is None:
            return {}
        enter_phase("validate")
        plan = Plan(rows.shard_rows, training.batch_size, shuffle=False)
        transforms = Transforms(training.collate, denominators=self._criterion.denominators)
        batches = Batcher(rows, plan, state.world.device, transforms, self.state.rows.cache).batches(0)
        meter = MetricAccumulator(state.world.device, state.metrics)
        observe(module, self._criterion, self._counted(batches), meter)
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

    def _call(self, moment: str) -> None:
        callbacks, compared = [*self.state.callbacks.values()], False
        for callback in reversed(callbacks) if moment == "on_validation_end" else callbacks:
            if not hasattr(callback, moment):
                continue
            enter_phase("callbacks")
            if on_every_rank(callback):
                compared = moment != "on_step"
                getattr(callback, moment)(self._context())
            else:
                with self._check.watch(callback, moment) as on_access:
                    getattr(callback, moment)(self._context(on_access=on_access))
            enter_phase("other")
        # Within a block of local steps, at which a run may resume, replicas differ.
        if compared and (moment != "on_start" or self.state.sync.replicated or not self.state.position):
            # After validation the training's weights return, and after on_end no step follows.
            self._compare(f"after {moment}", refresh=moment in ("on_start", "on_epoch"))

    def _compare(self, moment: str, *, refresh: bool = False) -> None:
        enter_phase("exchange")
        if self._check(moment) and refresh and not self.state.sync.replicated:
            self.state.sync.load_state_dict(self.state.sync.state_dict())  # such as the weights that begin a block
        enter_phase("other")

    def _context(self, **options: Any) -> CallbackContext:
        state, world = self.state, self.state.world
        return CallbackContext(
            *(world.rank, world.size, world.clock, state.replica.module, state.replica.optimizer, world.device),
            *(state.training.epochs, state.rows.plan.steps, state.history, state.meter.local_mean, state.requests),
            **options,
        )


@contextmanager
def _restoring(module: nn.Module) -> Iterator[None]:
    """Restore parameters and buffers after the block, whether it overwrites or replaces them or their modules."""
    registries = [one for part in module.modules() for one in (part._parameters, part._buffers, part._modules)]
    names = [(registry, dict(registry)) for registry in registries]
    copies = [(value, value.data, value.detach().clone()) for value in (*module.parameters(), *module.buffers())]
    yield
    for registry, before in names:
        registry.update(before)  # type: ignore[arg-type]
    for value, data, kept in copies:
        value.data = data.copy_(kept)
