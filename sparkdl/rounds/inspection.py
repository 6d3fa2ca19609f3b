"""Inspects all shards before the first round: rows, labels, and shapes in the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from sparkdl.cluster.tasks import TaskRunner, Tensors
from sparkdl.data.columns import Columns
from sparkdl.data.fingerprint import fingerprint
from sparkdl.data.shard import Shard
from sparkdl.data.transforms import Transforms
from sparkdl.rounds import add
from sparkdl.rounds.evaluate import as_only_shard
from sparkdl.training.dataloader import check_split
from sparkdl.training.labels import Classes, check_bounds, label_bounds
from sparkdl.training.loss import Criterion
from sparkdl.training.objective import Objective, OutputKind, trained
from sparkdl.training.probe import probe, trial_batch


@dataclass(frozen=True)
class DataSummary:
    """Summary of the data; numbers of rows and fingerprints are of each shard."""

    fingerprints: tuple[str, ...]
    training: tuple[int, ...]
    validation: tuple[int, ...]
    inputs: list[tuple[list[int], str]] | None  # shape and dtype of one row of each; None if a shape varies
    output: list[int] | None  # shape of one row; None if the output is not a tensor


@dataclass(frozen=True)
class InspectShard:
    """Inspects a shard: a ``MapReduce`` that returns its results as notes."""

    objective: Objective
    classes: Classes | None = None
    transforms: Transforms | None = None
    kind: OutputKind | None = None

    reduce = staticmethod(add)

    def map(self, state: Any, shard: Shard) -> tuple[Tensors, Any]:
        """Inspect a shard."""
        validation = 0 if shard.columns.validation is None else len(shard.split()[1])
        bounds = None if self.classes is None else label_bounds(shard, self.classes)
        note = {"fingerprint": str(fingerprint(shard)), "rows": (shard.rows - validation, validation), "bounds": bounds}
        criterion = self.objective.criterion()
        shard = as_only_shard(shard, criterion)
        training = shard if shard.columns.validation is None else shard.subset(shard.split()[0], shard.shard_rows)
        return {}, note | {"columns": shard.columns, "mass": training.mass()} | self._probe(shard, criterion)

    def _probe(self, shard: Shard, criterion: Criterion) -> dict[str, Any]:
        if not shard.rows:
            return {"inputs": None, "output": None}
        batch = trial_batch(shard, self.transforms)
        with torch.random.fork_rng(devices=[]):
            output, summary = probe(self.objective.build(), batch, self.kind)
            if batch.weight:  # else there is no mean
                trained(criterion(output, batch))
        return summary


def inspect_shards(jobs: TaskRunner, work: InspectShard) -> DataSummary:
    """Inspect all shards; raises InvalidInput without training or validation rows, or for an invalid label.

    WorkerFailed is raised if the model or the loss fails on the rows.
    """
    _, notes = jobs.run(work, {})
    training, validation = (tuple(note["rows"][kind] for note in notes) for kind in (0, 1))
    columns: Columns = notes[0]["columns"]
    if work.classes is not None:
        check_bounds([note["bounds"] for note in notes], columns, work.classes)
    mass = sum(note["mass"] for note in notes)
    check_split(sum(training), None if columns.validation is None else sum(validation), mass)
    inputs, output = ([note[name] for note in notes if note[name] is not None] for name in ("inputs", "output"))
    fingerprints = tuple(note["fingerprint"] for note in notes)
    return DataSummary(fingerprints, training, validation, next(iter(inputs), None), next(iter(output), None))
