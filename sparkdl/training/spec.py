"""Settings and result of a training run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Protocol

from torch import Tensor

from sparkdl.cluster.group.world import World
from sparkdl.data.batching import CACHE_MODES
from sparkdl.data.fingerprint import Fingerprint
from sparkdl.data.sampler import Plan
from sparkdl.data.shard import Shard
from sparkdl.data.transforms import Augment, Collate, Transforms
from sparkdl.errors import InvalidInput
from sparkdl.io.fields import CheckedFields, Count, NonNegative, Seed, one_of
from sparkdl.training.callbacks.callback import check_callbacks
from sparkdl.training.layouts import Layout
from sparkdl.training.layouts.feed import Feed
from sparkdl.training.layouts.replicated import Replicated
from sparkdl.training.objective.labels import Classes
from sparkdl.training.objective.objective import Objective, OutputKind
from sparkdl.training.objective.probe import probe_batch
from sparkdl.training.strategies import Strategy
from sparkdl.training.strategies.allreduce import AllReduce


class StateSaver(Protocol):
    """Saves each worker's state and restores it in a later attempt, as ``sparkdl.checkpoint.checkpointer`` does."""

    def epoch(self) -> int:
        """The number of finished epochs in the newest checkpoint."""

    def load(self, world: World, fingerprint: Fingerprint, live: Mapping[str, Any]) -> dict[str, Any] | None:
        """The newest state that all workers can read; None if there is no such state.

        The tensors of ``live`` take the values of the state's shared tensors. If workers do not wait for each other in
        each step, ``live["settles"]`` is True: within an epoch, ``after_step`` then asks no other worker.

        What ``load`` opens, it closes by ``world.on_end``.
        """

    def check(self, state: dict[str, Any]) -> None:
        """Raise InvalidInput if the state cannot be saved."""

    def after_step(self, world: World, state: Callable[[], dict[str, Any]], *, finished: bool) -> None:
        """Save the state if a checkpoint is due; ``finished`` if no step follows."""


class PartWriter(Protocol):
    """Writes a worker's part of the weights, as ``sparkdl.checkpoint.part_folder.PartFolder`` does."""

    def check(self) -> None:
        """Raise InvalidInput if the driver would not see what this worker writes."""

    def write(self, name: str, pieces: Sequence[memoryview]) -> bytes:
        """Write a part from its pieces, and return what the driver needs to read it."""

    def write_rows(self, name: str, table: str, rows: Tensor) -> str:
        """Write this worker's rows of a table to a file that stays, and return what the driver needs to read it."""


@dataclass(frozen=True)
class TrainingSpec(CheckedFields):
    """Settings of a run, the same on every worker.

    Attributes:
        objective: the training objective.
        batch_size: rows of the GLOBAL batch.
        epochs: passes over the data.
        seed: seed of the initial weights, of the permutations and of each worker's generators.
        strategy: how replicas synchronise.
        layout: how a replica is placed on workers.
        shuffle: False trains on the rows in row-id order.
        drop_last: whether an epoch leaves out its last step if that has fewer rows.
        kind: the output that scoring needs, checked before the first step; None accepts any.
        patience: stop after this many epochs without a better value of the objective's ``monitor``; default: none.
        min_delta: the improvement below which a value is no better.
        keep_best: whether the result is the best epoch's weights, not the last; default: with validation rows or
            patience.
        callbacks: user callbacks on the workers; see ``sparkdl.training.callbacks.callback``.
        replica_check_interval: steps between two checks that the replicas are equal, beside the check at each epoch's
            end; default: none.
        classes: valid class labels; None if targets are not class indices.
        collate: ``collate(inputs, target)``, applied to every batch; default: none.
        augment: ``augment(inputs, target, generator)``, applied to training batches before ``collate``; default: none.
        checkpointer: saves each worker's state and restores it on a restart; default: none.
        cache_on_device: whether a GPU holds the shard: ``"auto"`` if it takes at most half of the free memory,
            ``"always"`` or ``"never"``. Batches with ``collate`` or ``augment`` are made on the CPU.
        measured: whether workers report progress and phase times.
        result_limit: bytes that the driver accepts as a result, ``spark.driver.maxResultSize``; default: any number.
        part_writer: writes a worker's part of weights of more than 256 MiB; default: the workers return it.
        last_epoch: the epoch, from 1, after which the run pauses: workers save their states and return no weights. Its
            schedule is of all ``epochs``; default: no pause.
        pauses: False ends the run at ``last_epoch`` as if training stopped there, with weights.
    """

    objective: Objective
    batch_size: Count
    epochs: Count = 1
    seed: Seed = 0
    strategy: Strategy = field(default_factory=AllReduce)
    layout: Layout = field(default_factory=Replicated)
    shuffle: bool = True
    drop_last: bool = False
    kind: OutputKind | None = None
    patience: Count | None = None
    min_delta: NonNegative = 0.0
    keep_best: bool | None = None
    callbacks: Sequence[Any] = ()
    replica_check_interval: Count | None = None
    classes: Classes | None = None
    collate: Collate | None = None
    augment: Augment | None = None
    checkpointer: StateSaver | None = None
    cache_on_device: Annotated[str, one_of(CACHE_MODES)] = "auto"
    measured: bool = True
    result_limit: Count | None = None
    part_writer: PartWriter | None = None
    last_epoch: Count | None = None
    pauses: bool = True

    def _check(self) -> None:
        check_callbacks(self.callbacks)
        equal = getattr(self.strategy, "replicated", True)
        if self.replica_check_interval is not None and not equal:
            alone = f"the workers of {type(self.strategy).__name__} have other weights between exchanges."
            warnings.warn(f"replicaCheckInterval={self.replica_check_interval} is ignored: {alone}", stacklevel=3)
        together = [type(callback).__name__ for callback in self.callbacks if getattr(callback, "replicated", False)]
        if together and not equal:
            raise InvalidInput(
                f"callbacks has {', '.join(together)}, which expects equal weights on all workers after each step, and "
                f"strategy is {type(self.strategy).__name__}, whose workers have other weights between "
                "exchanges. Leave the callback out, or set strategy=AllReduce()."
            )

    def keeps_best(self, *, validated: bool) -> bool:
        """Whether the result is the best epoch's weights; ``validated`` if there are validation rows."""
        return validated or self.patience is not None if self.keep_best is None else self.keep_best

    def feed(self, shard: Shard) -> Feed:
        """What a layout knows of the rows before this worker reads its ``shard``."""
        plan = Plan(shard.shard_rows, self.batch_size, self.seed, drop_last=self.drop_last)
        validated = shard.columns.validation is not None
        sample = partial(probe_batch, shard, Transforms(self.collate))
        saved = getattr(self.checkpointer, "layout_state", dict)  # savers of users may lack it
        return Feed(plan, self.objective.micro_batches, validated=validated, sample=sample, saved=saved)

    def title(self) -> str:
        """The epochs that an attempt starting now trains, for the Spark UI."""
        done, last = self.checkpointer.epoch() if self.checkpointer else 0, self.last_epoch or self.epochs
        return f"epochs {min(done + 1, last)} to {last}"


@dataclass(frozen=True)
class TrainingResult:
    """Result of one worker.

    Attributes:
        weights: this worker's part of the module's weights, for ``sparkdl.io.merged_weights.merge_weights``, or what
            ``part_writer`` returned for it; empty if the run paused.
        history: one row per epoch, the same on every worker.
        report: seconds, rows and bytes of this worker.
        in_file: whether ``part_writer`` wrote the weights.
    """

    weights: bytes
    history: list[dict[str, Any]]
    report: dict[str, Any]
    in_file: bool = False
