"""The course of a run on one member: losses and metrics, history, progress, hooks, early stopping."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from sparkdl.cluster.group.world import Group, World
from sparkdl.data.batch import Batch, arguments
from sparkdl.errors import InvalidInput
from sparkdl.io.serialization import random_state, set_random_state
from sparkdl.telemetry.clock import Clock
from sparkdl.telemetry.emit import record
from sparkdl.telemetry.step_timer import EVERY, Laps, end_step, enter, flush, measuring
from sparkdl.training.callbacks import Hooks, Snapshot
from sparkdl.training.dataloader import Rows
from sparkdl.training.early_stopping import EarlyStopping
from sparkdl.training.evaluate import Meter, evaluate, load_metric_states, metric_states, open_metrics
from sparkdl.training.layouts import Replica
from sparkdl.training.strategies import Sync

if TYPE_CHECKING:
    from sparkdl.training.loop import Training

_PROGRESS = 0.25  # seconds between progress events of rank 0, which the progress bar follows
_OTHERS = 5.0  # and of the others
_MANY = 8  # members that tell of as many steps as they may; of more, all together tell of no more
_FORMAT = 1  # of a state
_DEALT = ("members", "rows of the parts")  # what of a place may be different when an epoch begins


class Keeper(Protocol):
    """Keeps the members' states, so that a later attempt goes on from one; on every member a copy of it is called."""

    def epoch(self) -> int:
        """The epochs that are over where an attempt that begins now goes on; called on the driver, for its title."""

    def load(self, world: World, parts: list[str]) -> dict[str, Any] | None:
        """A state to go on from, as ``Course.state`` returned it after a step that all have in common; None for none.

        It is this member's; in a gang of another size it is of an epoch's end, and of any member.

        Args:
            world: the gang.
            parts: the fingerprint of each part, the same on every member.
        """

    def after_step(self, world: World, state: Callable[[], dict[str, Any]], *, over: bool) -> None:
        """A step is over, and its epoch as well where it was the last one of it; ``world.clock`` says which.

        Args:
            world: the gang; the call may use collectives.
            over: whether the training is over with it.
            state: gives this member's state. Its tensors and lists are those that training goes on with: they are to
                be packed, or copied, before this returns.
        """

    def close(self) -> None:
        """The attempt is over, in whatever way: let go of everything."""


class Course:
    """What a member keeps beside the replica and its rows, and all of it as the state that a run goes on from.

    Attributes:
        history: a row per epoch, the same on every member.
        report: seconds of training, in all and by phase; shape and dtype of a row of each input, the shape of one of
            the output, and the best epoch, None without patience.
    """

    def __init__(self, world: World, training: Training, replica: Replica, sync: Sync, rows: Rows) -> None:
        self.world, self.training, self.replica, self.sync, self.rows = world, training, replica, sync, rows
        self.group = world.group()
        self.history: list[dict[str, Any]] = []
        self.report: dict[str, Any] = {"inputs": None, "output": None, "train_seconds": 0.0, "phases": {}}
        self._metrics = open_metrics(training.objective.metrics, world.device)
        self._criterion = training.objective.criterion(world.device)
        self._meter = Meter(world.device, self._metrics if rows.validation is None else {})
        self._stopping = EarlyStopping(training.patience, self.group)
        self._hooks = Hooks(training.hooks, world.rank)
        self._random: dict[str, Any] | None = None
        self._spent = 0.0  # seconds of the first epoch that an earlier attempt has spent
        self._begun = 0  # the step at which the current epoch began
        self._started = self._shown = time.monotonic()
        world.clock.load_state_dict(Clock().state_dict())

    @property
    def position(self) -> int:
        """Steps of the current epoch that are done: the first one to do, from 0."""
        return self.world.clock.step - self._begun

    @property
    def over(self) -> bool:
        """Whether all epochs are done, or as many as early stopping allows."""
        return self._stopping.over or self.world.clock.epoch >= self.training.epochs

    def state(self) -> dict[str, Any]:
        """All that this member's next steps depend on, for ``pack_state``; tensors and lists are the live ones.

        Returns:
            ``"alike"``, which is the same on all members, dicts of tensors; and ``"own"``.

        Raises:
            InvalidInput: a step has begun and is not over.
        """
        replica = self.replica.state_dict()
        alike = {"alike": replica.pop("alike")} if self.sync.alike else {}
        own = {
            "format": _FORMAT,
            "place": self._place(),
            "rank": self.world.rank,
            "clock": self.world.clock.state_dict(),
            "position": self.position,
            "replica": replica,
            "sync": self.sync.state_dict(),
            "meter": self._meter.state_dict(),
            "metrics": metric_states(self._metrics),
            "stopping": self._stopping.state_dict(),
            "history": self.history,
            "report": self.report,
            "feed_wait_seconds": self.rows.report["feed_wait_seconds"],
            "epoch_seconds": time.monotonic() - self._started,
            "random": random_state(self.world.device),
        }
        return {"alike": alike, "own": own}

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Go on from what the keeper has, if it has anything, and let go of the keeper at the end of the block."""
        keeper = self.training.keeper
        if keeper is None:
            yield
            return
        try:
            self.restore(keeper.load(self.world, self.rows.fingerprints()))
            yield
        finally:
            keeper.close()

    def restore(self, state: dict[str, Any] | None) -> None:
        """Go on from a state that ``state`` returned, on every member from the same step; None begins anew.

        A state of an epoch's end may be that of a member of a gang of another size.

        Raises:
            InvalidInput: the state is of another model, optimizer, gang, batch size or data, of another step than that
                of another member, or of one after the last epoch that is asked for.
        """
        own = None if state is None else state["own"]
        if own is not None:
            self._check(own)
        steps = self.group.gather(None if own is None else own["clock"]["step"])
        if len({*steps}) > 1:
            raise InvalidInput(f"the members, by rank, have states of the steps {steps}; expected one step, or none.")
        if state is None or own is None:
            return
        self.replica.load_state_dict(own["replica"] | state["alike"])
        self._meter.load_state_dict(own["meter"])
        load_metric_states(self._metrics, own["metrics"])
        self.world.clock.load_state_dict(own["clock"])
        self._begun = self.world.clock.step - own["position"]
        self._stopping.load_state_dict(own["stopping"])
        self.history, self.report = own["history"], own["report"]
        self.rows.report["feed_wait_seconds"] = own["feed_wait_seconds"]
        self._spent = own["epoch_seconds"]
        if own["place"]["members"] == self.world.size:  # else what is a member's alone has nobody to go on
            self.sync.load_state_dict(own["sync"])
        if own["rank"] == self.world.rank:
            self._random = own["random"]
        else:  # what another rank has spent is not this one's
            self.report["phases"] = {}
        if self.world.rank == 0:
            record("restored", clock=self.world.clock, history=self.history)

    def _check(self, own: dict[str, Any]) -> None:
        if own["format"] != _FORMAT:
            raise InvalidInput(
                f"the saved state has format {own['format']} and this version of sparkdl reads {_FORMAT}; go on with "
                "the version that saved it, or begin anew elsewhere."
            )
        place = self._place()
        if not own["position"]:  # at an epoch's end it fits another gang as well
            place = {name: value for name, value in place.items() if name not in _DEALT}
        _check_place(own["place"], place)
        epoch, asked = own["clock"]["epoch"], self.training.epochs
        if epoch + bool(own["position"]) > asked:
            raise InvalidInput(
                f"the saved state is of step {own['clock']['step']}, after the end of the {asked} epochs of "
                f"{self.rows.plan.steps} steps that are asked for; expected as many epochs as before, or more."
            )

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure what the block's steps spend their time on; the report has the seconds by phase."""
        seconds = self.report.get("phases", {}) if self.training.measured else {}
        self.report["phases"] = seconds
        every = EVERY * max(1.0, self.world.size / _MANY)
        with measuring(Laps(seconds, every=every) if self.training.measured else None):
            yield
            flush(clock=self.world.clock)

    def start(self) -> None:
        """The first step, or the first one after those restored, is next."""
        self._call("on_start")
        self._shown = time.monotonic()
        self._started = self._shown - self._spent
        if self._random is not None:  # after whatever hooks have drawn
            set_random_state(self._random, self.world.device)
            self._random = None

    def observe(self, loss: Tensor, batch: Batch) -> None:
        """Take down a batch's loss and, without validation rows, its metrics.

        Raises:
            InvalidInput: the loss is not finite.
        """
        # Elsewhere than on the CPU, to look at each loss would be to wait for the device: there it is seen per epoch.
        if batch.weight and loss.device.type == "cpu" and not math.isfinite(loss):
            step, steps = self.world.clock.step, self.rows.plan.steps
            raise self._diverged(float(loss), f"at step {step}, batch {self.position + 1} of {steps} in")
        self._meter.add(loss, self.replica.output, batch)
        if self.report["inputs"] is None and all(isinstance(each, Tensor) for each in batch.inputs):
            self.report["inputs"] = [
                (list(each.shape[1:]), str(each.dtype).removeprefix("torch.")) for each in arguments(batch.inputs)
            ]
        if self.report["output"] is None and isinstance(self.replica.output, Tensor):
            self.report["output"] = list(self.replica.output.shape[1:])

    def end_step(self, batch: Batch) -> None:
        """Call the hooks, have the state kept, and tell the driver how far this member is, now and then.

        Args:
            batch: of the step that is over.
        """
        enter("other")
        self._call("on_step")
        if self.position < self.rows.plan.steps:  # else the epoch's end is part of the step
            self._keep()
        clock = self.world.clock
        end_step(clock=clock, rows=batch.rows, sent=self.sync.bytes_per_step)
        now = time.monotonic()
        every = _PROGRESS if self.world.rank == 0 else _OTHERS
        if not self.training.measured or (clock.step > 1 and now - self._shown < every):
            return
        self._shown = now
        record(
            "progress",
            clock=clock,
            epochs=self.training.epochs,
            steps=self.rows.plan.steps,
            loss=self._meter.local_mean(),
            rows_per_second=self.position * self.rows.plan.batch_size / max(now - self._started, 1e-9),
        )

    def end_epoch(self) -> None:
        """Close the epoch's row of the history.

        Raises:
            InvalidInput: this member's mean loss is not finite.
        """
        seconds = time.monotonic() - self._started
        self.report["train_seconds"] += seconds
        enter("exchange")
        module, clock, plan = self.replica.module, self.world.clock, self.rows.plan
        average_buffers(module, self.group, self.rows.share)
        row: dict[str, Any] = {"epoch": clock.epoch, "step": clock.step, "samples": clock.samples}
        own = self._meter.local_mean()
        if own is not None and not math.isfinite(own):
            raise self._diverged(own, "over")
        row |= self._meter.close(self.group)
        if self.rows.validation is not None:
            enter("validate")
        row |= self._validate(module)
        enter("other")
        row |= {"seconds": seconds, "rows_per_second": plan.total / max(seconds, 1e-9)}
        self.history.append(row)
        if self.world.rank == 0:
            record("epoch", clock=clock, **row)
        self._stopping.after(row, module)
        self._call("on_epoch")
        self._started = self._shown = time.monotonic()
        self._begun = clock.step
        self._keep()
        end_step(clock=clock, steps=0)

    def end(self) -> None:
        """Training is over."""
        self.report["best_epoch"] = self._stopping.epoch
        self._call("on_end")

    def weights(self) -> bytes:
        """The weights to keep, as safetensors; empty but on rank 0."""
        return self._stopping.weights(self.replica.module)

    def _keep(self) -> None:
        if self.training.keeper is not None:
            self.training.keeper.after_step(self.world, self.state, over=self.over)

    def _place(self) -> dict[str, Any]:
        plan = self.rows.plan
        return {"members": self.world.size, "rows of the parts": list(plan.rows)} | {
            "batchSize": plan.batch_size,
            "seed": plan.seed,
            "shuffle": plan.shuffle,
        }

    def _validate(self, module: nn.Module) -> dict[str, float]:
        if self.rows.validation is None:
            return {}
        found = evaluate(
            module,
            self._criterion,
            self.rows.validation,
            self.group,
            metrics=self._metrics,
            batch_size=self.training.batch_size,
            device=self.world.device,
            collate=self.training.collate,
            on_batch=self._validating,
        )
        self.world.phase = "work"
        return {f"valid_{name}": value for name, value in found.items()}

    def _validating(self, batch: int) -> None:
        # With its number: however long validation takes, it is seen to go on.
        self.world.phase = f"validate, batch {batch}"

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
            enter("hooks")
            self._hooks.call(moment, snapshot)
            enter("other")


def _check_place(saved: dict[str, Any], own: dict[str, Any]) -> None:
    for name, value in own.items():
        if saved[name] != value:
            raise InvalidInput(
                f"the saved state is of another training: its {name} is {saved[name]}, expected {value}. Go on with "
                "the gang, the data and the settings that it was saved with, or begin anew elsewhere."
            )


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
