"""Inspects all shards before the first round: rows, labels, and shapes in the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sparkdl.cluster.tasks import TaskRunner, Tensors
from sparkdl.data.batch import arguments
from sparkdl.data.batching import stored_batch
from sparkdl.data.columns import Columns
from sparkdl.data.fingerprint import fingerprint
from sparkdl.data.sampler import generator
from sparkdl.data.shard import Shard
from sparkdl.data.transforms import Transforms
from sparkdl.errors import InvalidInput
from sparkdl.rounds import add
from sparkdl.rounds.evaluate import as_only_shard
from sparkdl.training.labels import Classes, check_bounds, label_bounds
from sparkdl.training.objective import Objective, forward, trained

_PROBE = 2  # rows of the trial batch


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

    reduce = staticmethod(add)

    def map(self, state: Any, shard: Shard) -> tuple[Tensors, Any]:
        """Inspect a shard."""
        held = 0 if shard.columns.validation is None else len(shard.split()[1])
        bounds = None if self.classes is None else label_bounds(shard, self.classes)
        note = {"fingerprint": str(fingerprint(shard)), "rows": (shard.rows - held, held), "bounds": bounds}
        return {}, note | {"columns": shard.columns} | self._probe(shard)

    def _probe(self, shard: Shard) -> dict[str, Any]:
        if not shard.rows:
            return {"inputs": None, "output": None}
        criterion = self.objective.criterion()
        own = as_only_shard(shard, criterion)
        with torch.random.fork_rng(devices=[]):
            batch = stored_batch(own, _probed(own))
            batch = self.transforms(batch, generator(0)) if self.transforms else batch
            output = forward(self.objective.build().eval(), batch.inputs)
            if batch.weight:  # else there is no mean
                trained(criterion(output, batch))
        inputs = None
        if all(isinstance(each, Tensor) for each in batch.inputs):
            found = arguments(batch.inputs)
            inputs = [(list(each.shape[1:]), str(each.dtype).removeprefix("torch.")) for each in found]
        return {"inputs": inputs, "output": list(output.shape[1:]) if isinstance(output, Tensor) else None}


def _probed(shard: Shard) -> Tensor:
    """Stored positions of the first few rows, rows of positive weight first."""
    positions = torch.arange(min(_PROBE, shard.rows))
    if shard.denominators is not None:
        weighs = (shard.denominators if shard.order is None else shard.denominators.index_select(0, shard.order)) > 0
        positions = torch.cat([torch.nonzero(each).flatten()[:_PROBE] for each in (weighs, ~weighs)])[:_PROBE]
    return positions if shard.order is None else shard.order[positions]


def inspect_shards(jobs: TaskRunner, work: InspectShard) -> DataSummary:
    """Inspect all shards.

    Raises:
        InvalidInput: training or validation rows are missing, or a label is invalid.
        WorkerFailed: the model or the loss fails on the rows.
    """
    _, notes = jobs.run(work, {})
    training, validation = (tuple(note["rows"][kind] for note in notes) for kind in (0, 1))
    columns: Columns = notes[0]["columns"]
    if work.classes is not None:
        check_bounds([note["bounds"] for note in notes], columns, work.classes)
    if not sum(training):
        raise InvalidInput("there are no rows to train on: every row is a validation row.")
    if columns.validation is not None and not sum(validation):
        raise InvalidInput(
            "there is a validation column, but no row is a validation row; expected some, or no such column."
        )
    inputs, output = (
        next((note[name] for note in notes if note[name] is not None), None) for name in ("inputs", "output")
    )
    return DataSummary(tuple(note["fingerprint"] for note in notes), training, validation, inputs, output)
