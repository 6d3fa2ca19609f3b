"""Inspects all shards before the first round: rows, labels, and shapes in the model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from sparkdl.cluster.tasks import TaskRunner, Tensors
from sparkdl.data.columns import Columns
from sparkdl.data.fingerprint import FingerprintScan
from sparkdl.data.shard import Denominators, Shard, scan
from sparkdl.data.transforms import Transforms
from sparkdl.rounds import add
from sparkdl.rounds.evaluate import as_only
from sparkdl.training.dataloader import check_split
from sparkdl.training.objective.labels import Classes, LabelBounds, LabelScan, are_valid, check_bounds
from sparkdl.training.objective.loss import forward, trained
from sparkdl.training.objective.objective import Objective, OutputKind
from sparkdl.training.objective.probe import probe_batch, probe_evaluation, probe_model
from sparkdl.training.rng import forked


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
    steps: bool = False  # whether training takes steps in training mode; else it evaluates the loss, as L-BFGS does
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - immutable

    reduce = staticmethod(add)

    def map(self, state: Any, shard: Shard) -> tuple[Tensors, Any]:
        """Inspect a shard."""
        validation = 0 if shard.columns.validation is None else len(shard.split()[1])
        labels = None if self.classes is None else LabelScan(shard.columns, self.classes)
        marks, terms = FingerprintScan(shard), Denominators(shard, self.objective.criterion().denominators)
        scan(shard, *[consumer for consumer in (labels, marks, terms) if consumer is not None])
        rows, bounds = (shard.rows - validation, validation), {} if labels is None else labels.bounds
        note = {"fingerprint": str(marks.result()), "rows": rows, "bounds": bounds}
        shard = replace(as_only(shard), denominators=terms.values)
        parts = (shard,) if shard.columns.validation is None else (shard.subset(rows, ()) for rows in shard.split())
        denominators = {"columns": shard.columns, "denominator": [part.denominator() for part in parts]}
        return {}, note | denominators | self._probe(shard, bounds)

    def _probe(self, shard: Shard, bounds: LabelBounds) -> dict[str, Any]:
        if not shard.rows:
            return {"inputs": None, "output": None}
        batch = probe_batch(shard, self.transforms).to(self.device)
        with forked(self.device):
            module = self.objective.build(self.device)
            output, summary = probe_model(module, lambda rows: forward(module, rows.inputs), batch, self.kind)
            # Of invalid labels, the driver raises for all shards together.
            labelled = self.classes is None or are_valid(bounds, self.classes.of_output(summary["output"]))
            # Without weight there is no mean, and steps call the loss in training mode.
            if labelled and batch.weight and not self.steps:
                trained(self.objective.criterion(self.device)(output, batch))
            if labelled and (shard.columns.validation is not None or self.objective.metrics):
                probe_evaluation(output, batch, self.objective, self.device)
        return summary


def inspect_shards(jobs: TaskRunner, work: InspectShard) -> DataSummary:
    """Inspect all shards; raises InvalidInput without training or validation rows, or for an invalid label.

    WorkerFailed is raised if the model or the loss fails on the rows.
    """
    _, notes = jobs.run(work, {})
    training, validation = (tuple(note["rows"][kind] for note in notes) for kind in (0, 1))
    columns: Columns = notes[0]["columns"]
    training_sum, *validation_sum = (sum(terms) for terms in zip(*(note["denominator"] for note in notes), strict=True))
    check_split(
        sum(training), None if columns.validation is None else sum(validation), training_sum, sum(validation_sum)
    )
    inputs, output = ([note[name] for note in notes if note[name] is not None] for name in ("inputs", "output"))
    if work.classes is not None:
        check_bounds([note["bounds"] for note in notes], work.classes.of_output(next(iter(output), None)))
    fingerprints = tuple(note["fingerprint"] for note in notes)
    return DataSummary(fingerprints, training, validation, next(iter(inputs), None), next(iter(output), None))
