"""The loop of rounds: init or restore -> (map -> reduce -> apply -> save -> record)* until done.

A round counts once its state is saved: the state, the history, and the names of the shards' local states. If the driver
is killed within a round, it repeats that round from the same state.

If an algorithm returns no row for a round, the round was preparatory, such as one that counts rows. It counts neither
in the history nor for ``max_rounds``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from sparkdl.checkpoint.store import Checkpoints
from sparkdl.cluster.shutdown import stop_requested, stopped
from sparkdl.cluster.tasks import TaskRunner, Tensors
from sparkdl.data.clock import Clock
from sparkdl.data.columns import listed
from sparkdl.data.shard import Shard
from sparkdl.data.transforms import Transforms
from sparkdl.errors import InvalidInput
from sparkdl.io.serialization import pack_pieces, unpack_state
from sparkdl.rounds import Algorithm, State, to_send
from sparkdl.rounds.evaluate import Validation
from sparkdl.rounds.inspection import DataSummary, InspectShard, inspect_shards
from sparkdl.rounds.local_state import LocalState
from sparkdl.training.callbacks.early_stopping import EarlyStopping
from sparkdl.training.objective.labels import Classes
from sparkdl.training.objective.monitored_value import monitored
from sparkdl.training.objective.objective import Objective, OutputKind

_SHARD = "rounds"


@dataclass(frozen=True)
class Round:
    """One round of an algorithm on the training rows: the ``MapReduce`` of the cluster."""

    algorithm: Algorithm
    objective: Objective
    rows: tuple[int, ...]  # training rows of each shard
    transforms: Transforms | None = None
    memories: LocalState | None = None  # None without a shared directory
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - immutable

    def map(self, state: Any, shard: Shard) -> tuple[Tensors, Any]:
        """Map a shard; the note is the name of its local state."""
        if shard.columns.validation is not None:
            shard = shard.subset(shard.split()[0], self.rows)
        shard = replace(shard, transforms=self.transforms)
        name = state["memories"][shard.index] if state["memories"] else None  # a shard without rows may have none
        memory = None if name is None else self._memories().read(name)
        objective = replace(self.objective, device=self.device)
        update, memory = self.algorithm.map(objective, state["state"], shard, memory)
        if away := sorted(key for key, tensor in update.items() if tensor.device.type != "cpu"):
            raise InvalidInput(
                f"{type(self.algorithm).__name__}.map returned {listed(away)} on {update[away[0]].device}; expected "
                "tensors on the CPU, as weights_of, gradient_of and scalars return them, or after tensor.cpu()."
            )
        for key, tensor in update.items():
            if not bool(torch.isfinite(tensor).all()):
                raise InvalidInput(
                    f"{key} is not finite; lower the learning rate, set maxGradNorm or scale the inputs."
                )
        if memory is None:
            return update, None
        return update, self._memories().write(state["number"], shard.index, memory)

    def reduce(self, left: Tensors, right: Tensors) -> Tensors:
        """Combine two updates."""
        return self.algorithm.reduce(left, right)

    def _memories(self) -> LocalState:
        if self.memories is None:
            raise InvalidInput(f"{type(self.algorithm).__name__} keeps a local state for each shard; set memories=.")
        return self.memories


@dataclass
class Rounds:
    """A run of rounds."""

    algorithm: Algorithm
    objective: Objective
    seed: int = 0  # of the initial weights and of all random numbers
    checkpoints: Checkpoints | None = None  # where to save the state after every round
    memories: str | None = None  # directory of the local states, which all tasks can read
    max_rounds: int | None = None
    max_seconds: float | None = None  # after which no round begins
    patience: int | None = None  # stop after this many rounds without a better value of the objective's monitor
    min_delta: float = 0.0  # the improvement below which a value is no better
    keep_best: bool = False  # whether the result is the best round's weights, not the last
    classes: Classes | None = None  # None if targets are not class indices
    transforms: Transforms | None = None
    kind: OutputKind | None = None  # the output that scoring needs; None accepts any
    listener: Callable[[dict[str, Any]], None] | None = None  # called with the history's row after every round
    restored: Callable[[list[dict[str, Any]]], None] | None = None  # called with the history after a resume
    inspected: Callable[[DataSummary], None] = lambda summary: None  # called once with the summary of the data
    summary: DataSummary | None = field(default=None, init=False)  # of the data, once the run has begun
    best: int | None = field(default=None, init=False)  # the best round, from 1; None unless rounds are compared
    sent: int = field(default=0, init=False)  # bytes of the updates that all shards sent

    def run(self, jobs: TaskRunner) -> tuple[State, list[dict[str, Any]]]:
        """Run rounds until the algorithm is done.

        Returns:
            The last state, whose ``"weights"`` are the model's, and the history: one row per round, from 1.

        Raises:
            InvalidInput: the rows cannot be trained on, an update is not finite, or the saved rounds are of other rows.
            Fenced: another driver has begun the same run.
            Stopped: the process was asked to stop; with ``checkpoints`` the finished rounds are saved.
        """
        began, attempt = time.monotonic(), 0
        if self.checkpoints is not None:
            attempt = self.checkpoints.next_attempt()
            self.checkpoints.fence(attempt)
        collate = None if self.transforms is None else replace(self.transforms, augment=None)
        inspection = InspectShard(self.objective, self.classes, collate, self.kind, self.algorithm.uses_optimizer)
        self.summary = inspect_shards(jobs, inspection)
        self.inspected(self.summary)
        saved = self._restore(self.summary) or self._first(self.summary)
        with ExitStack() as stack:
            memories = None if self.memories is None else LocalState(self.memories)
            if memories is not None:
                memories.take_over()
                stack.callback(memories.withdraw)
            work = Round(self.algorithm, self.objective, self.summary.training, self.transforms, memories)
            while not self._over(saved, time.monotonic() - began):
                saved = self._round(jobs, work, saved, collate)
                self._save(saved, attempt)
                if memories is not None:  # delete files that no remaining checkpoint refers to
                    memories.forget(saved["done"] - (1 if self.checkpoints is None else self.checkpoints.keep))
                if self.listener is not None and saved["history"]:
                    self.listener(saved["history"][-1])
            if memories is not None and self.checkpoints is None:  # no run can resume
                memories.forget(saved["done"])
        stopping = self._stopping(saved)
        self.best = stopping.best
        return {**saved["state"], "weights": dict(stopping.weights or saved["state"]["weights"])}, saved["history"]

    def _first(self, summary: DataSummary) -> dict[str, Any]:
        start = {"memories": [], "done": 0, "history": [], "shards": list(summary.fingerprints)}
        state = self.algorithm.init(self.objective, self.seed)
        return {**start, "state": state, "best": EarlyStopping().state_dict()}

    def _round(
        self, jobs: TaskRunner, work: Round, saved: dict[str, Any], collate: Transforms | None
    ) -> dict[str, Any]:
        start, number, done = time.monotonic(), len(saved["history"]) + 1, saved["done"] + 1
        sent = {"state": to_send(self.algorithm, saved["state"]), "memories": saved["memories"], "number": done}
        update, memories = jobs.run(work, sent, number=number)
        self.sent += sum(tensor.nbytes for tensor in update.values()) * len(jobs.shard_rows)
        state = self.algorithm.apply(saved["state"], update)
        row, stopping = self.algorithm.metrics(state), self._stopping(saved)
        after = {**saved, "state": state, "memories": memories if any(memories) else [], "done": done}
        if not row:
            return after
        validated = bool(self.summary and sum(self.summary.validation))
        if validated or self.objective.metrics:
            values = Validation(self.objective, collate, validation=validated).measure(jobs, state["weights"], number)
            if not validated:  # the loss of the training rows is the algorithm's
                del values["loss"]
            row = row | {f"{'valid_' * validated}{name}": value for name, value in values.items()}
        row = {"round": number, **row, "seconds": time.monotonic() - start}
        if self.keep_best or self.patience is not None:
            value = monitored(row, self.objective.monitor)
            stopping.after(number, value, (lambda: dict(state["weights"])) if self.keep_best else None)
        return {**after, "history": [*saved["history"], row], "best": stopping.state_dict()}

    def _stopping(self, saved: dict[str, Any]) -> EarlyStopping:
        return EarlyStopping(self.patience, self.min_delta, self.objective.mode, **saved["best"])

    def _over(self, saved: dict[str, Any], seconds: float) -> bool:
        done = len(saved["history"])
        if (
            self.algorithm.converged(saved["state"])
            or self._stopping(saved).finished(done)
            or (self.max_rounds is not None and done >= self.max_rounds)
            or (self.max_seconds is not None and seconds >= self.max_seconds)
        ):
            return True
        if stop_requested() is not None:
            if self.checkpoints is None:
                raise stopped(f"ended after round {done}: it keeps no checkpoints", "begins anew")
            raise stopped(f"ended after round {done}")
        return False

    def _restore(self, summary: DataSummary) -> dict[str, Any] | None:
        newest = None if self.checkpoints is None else self.checkpoints.latest()
        if newest is None:
            return None
        saved: dict[str, Any] = unpack_state(newest[1].read(_SHARD))
        if saved["shards"] != list(summary.fingerprints):
            before, now = (
                f"{sum(int(text.partition('-')[0]) for text in shards)} rows in {len(shards)} shards"
                for shards in (saved["shards"], summary.fingerprints)
            )
            raise InvalidInput(
                f"the saved rounds are of {before}, and the data has {now}, or other rows. Take another runDir, or the "
                "same data and number of shards. If a query returns other rows each time, write its result to a "
                "table, or set idCol."
            )
        if self.restored is not None:
            self.restored(saved["history"])
        return saved

    def _save(self, saved: dict[str, Any], attempt: int) -> None:
        if self.checkpoints is None:
            return
        clock = Clock(step=saved["done"])
        name = self.checkpoints.name(clock, attempt)
        digest = self.checkpoints.write(name, _SHARD, *pack_pieces(saved)).result()
        self.checkpoints.commit(name, [digest], clock, world_size=len(saved["shards"]))
