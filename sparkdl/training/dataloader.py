"""Data loader of one worker: split off validation rows, plan the steps, yield batches.

Before the first step the workers agree on the rows of each shard, on row weights and on class labels.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from sparkdl.cluster.group.world import Group, World
from sparkdl.data.batch import Batch
from sparkdl.data.batching import Batcher, DeviceCache
from sparkdl.data.fingerprint import Fingerprint, FingerprintScan
from sparkdl.data.sampler import Plan
from sparkdl.data.shard import Denominators, Shard, scan
from sparkdl.data.transforms import Transforms
from sparkdl.errors import InvalidInput
from sparkdl.telemetry.emit import record
from sparkdl.telemetry.step_timer import enter_phase
from sparkdl.training.layouts import Replica
from sparkdl.training.objective.labels import Classes, LabelScan, check_bounds
from sparkdl.training.objective.probe import probe_batch, probe_evaluation, probe_model
from sparkdl.training.partner_rows import gather_rows
from sparkdl.training.rng import forked
from sparkdl.training.spec import TrainingSpec


class BatchLoader:
    """The rows of one worker.

    Attributes:
        shard: all rows of the worker, training and validation.
        fingerprint: of all rows of the worker; None without a checkpointer.
        validation: the validation rows; None without a validation column.
        cache: all rows on the device, where the model is; None if batches are copied from the host.
        share: the fraction of all training rows that this worker and its partners have.
        spare: a row that counts nothing, for replicas in lockstep; else None.
        report: ``rows``, ``validation_rows``, and ``feed_wait_seconds``, the time that training waited for batches.

    Raises:
        InvalidInput: training or validation rows are missing, a label is invalid, or the replica needs rows, and this
            worker lacks one in a step or micro-batch.
    """

    def __init__(self, shard: Shard, world: World, training: TrainingSpec, replica: Replica) -> None:
        group, device = world.group(), world.device
        self._replica, self._partners = replica, replica.workers.partners
        self.report: dict[str, Any] = {"rows": shard.rows, "feed_wait_seconds": 0.0}
        self._group, self._training, self._device, self.shard = group, training, device, shard
        self._classes = training.classes or Classes()
        criterion = training.objective.criterion()
        bounds = None if training.classes is None else LabelScan(shard.columns, training.classes)
        marks = None if training.checkpointer is None else FingerprintScan(shard)
        terms = Denominators(shard, criterion.denominators)
        scan(shard, *[consumer for consumer in (bounds, marks, terms) if consumer is not None])
        self.fingerprint: Fingerprint | None = None if marks is None else marks.result()
        self._bounds = [] if bounds is None else group.gather(bounds.bounds)
        check_bounds(self._bounds, self._classes)
        shard, self.validation = _split(replace(shard, denominators=terms.values), group)
        self.plan = Plan(shard.shard_rows, training.batch_size, training.seed, training.shuffle, training.drop_last)
        self.report["validation_rows"] = 0 if self.validation is None else self.validation.rows
        transforms = Transforms(training.collate, training.augment, criterion.denominators)
        valid_denominator = None if self.validation is None else self.validation.denominator()
        terms_of_all = group.gather((shard.denominators is not None, shard.denominator(), valid_denominator))
        weighted, trained, held_out = zip(*terms_of_all, strict=True)
        validation = None if self.validation is None else sum(self.validation.shard_rows)
        check_split(self.plan.total, validation, sum(trained), sum(one or 0 for one in held_out))
        if group.rank == 0:
            record("rows", training=self.plan.total, validation=validation or 0)
        ranks = self._partners.ranks or (group.rank,)
        self.share = sum(self.plan.rows[rank] for rank in ranks) / self.plan.total
        if any(weighted) and shard.denominators is None:
            # ``batches`` sums denominators over all workers, including those whose rows all weigh 1.
            shard = shard.with_unit_denominators()
        if replica.needs_rows:
            _check_every_step(self.plan, shard.index, training.objective.micro_batches)
        mode = training.cache_on_device
        if transforms:
            if mode == "always":
                warnings.warn(
                    "cacheOnDevice='always' is ignored: collate and augment make batches on the CPU.", stacklevel=2
                )
            mode = "never"
        self.cache = DeviceCache.of(self.shard, device, mode)
        self._batcher = replace(Batcher(shard, self.plan, device, transforms), cache=self.cache)
        self.spare = self._spare_row(shard) if replica.lockstep else None

    def _spare_row(self, shard: Shard) -> Batch:
        """The first row of positive weight of the lowest rank that has one, the same on all workers; a collective."""
        lowest = min(rank for rank, has_rows in enumerate(self._group.gather(shard.denominator() > 0)) if has_rows)
        row = None
        if self._group.rank == lowest:
            row = probe_batch(shard, Transforms(self._training.collate), 2)  # batch normalisation takes no single row
        first: Batch = self._group.gather(row)[lowest]
        return replace(first.to(self._device), weight_fraction=0.0, micro_fraction=0.0)

    def probe(self) -> dict[str, Any]:
        """Run the replica on the first rows; return the report's ``inputs`` and ``output``.

        Raises InvalidInput if scoring would reject the output, or a label is beyond the output.
        """
        replica, objective, kind = self._replica, self._training.objective, self._training.kind
        nothing: dict[str, Any] = {"inputs": None, "output": None}
        if not self.shard.rows and not replica.lockstep and self._partners.size == 1:
            return nothing
        batch = probe_batch(self.shard, Transforms(self._training.collate)).to(self._device)
        batch = gather_rows(batch, self._partners)
        with forked(self._device):
            rows = replace(batch, weight=float(batch.rows))  # rows without a weight have an output, too
            counts = bool(batch.rows) and replica.reports
            output, summary = probe_model(
                replica.module, lambda _: replica.evaluate(rows), batch, kind if counts else None
            )
            if not counts:
                return nothing
            check_bounds(self._bounds, self._classes.of_output(summary["output"]))
            # An estimator's output may be another in training mode.
            measured = objective.metrics and kind not in (None, "estimator")
            if self.validation is not None or measured:
                probe_evaluation(output, batch, objective, self._device)
        return summary

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from step ``start``; earlier rows are neither read nor transformed.

        The batches equal those of a full epoch. The wait for each is added to ``feed_wait_seconds``.
        """
        totals = None
        if self._batcher.shard.denominators is not None:
            weights = self._batcher.step_weights(epoch).to(self._device)  # NCCL sums on GPUs only
            enter_phase("exchange")
            self._group.sum_(weights)
            totals = weights.tolist()
        batches = self._batcher.batches(epoch, start=start, totals=totals)
        while True:
            enter_phase("feed")
            before = time.perf_counter()
            batch = next(batches, None)
            self.report["feed_wait_seconds"] += time.perf_counter() - before
            if batch is None:
                return
            yield gather_rows(batch, self._partners)

    def validation_batches(self) -> Iterator[Batch]:
        """The batches of the validation rows, as many on each worker; raises ValueError without a validation column."""
        rows, training = self.validation, self._training
        if rows is None:
            raise ValueError("there is no validation column.")
        plan = Plan(rows.shard_rows, training.batch_size, shuffle=False)
        transforms = Transforms(training.collate, denominators=training.objective.criterion().denominators)
        for batch in Batcher(rows, plan, self._device, transforms, self.cache).batches(0):
            yield gather_rows(batch, self._partners)


def check_split(training: int, validation: int | None, denominator: float, validation_denominator: float) -> None:
    """Raise InvalidInput without training rows, or validation rows, of positive weight.

    The denominators are the weights of all these rows; ``validation`` is None without a validation column.
    """
    if not training:
        raise InvalidInput("there are no rows to train on: every row is a validation row.")
    if validation == 0:
        raise InvalidInput(
            "no row is a validation row; mark some rows, or set a larger validationFraction, or leave both Params out."
        )
    for kind, total in (("training", denominator), ("validation", validation_denominator if validation else 1.0)):
        if not total:
            raise InvalidInput(
                f"all {kind} rows weigh 0 in the loss; expected a positive weight of at least one. Class weights of 0 "
                "and ignore_index leave out rows as weightCol does."
            )


def _check_every_step(plan: Plan, shard: int, micro_batches: int) -> None:
    fewest, step = min((plan.count(shard, step), step) for step in range(plan.steps))
    if fewest < micro_batches:
        raise InvalidInput(
            f"this worker has {fewest} rows in step {step} of {plan.steps}, and SyncBatchNorm needs one in each "
            "micro-batch. Partition the rows evenly, raise batchSize, or set dropLast=True."
        )


def _split(shard: Shard, group: Group) -> tuple[Shard, Shard | None]:
    if shard.columns.validation is None:
        return shard, None
    training, validation = shard.split()
    rows = group.gather((len(training), len(validation)))
    shards = tuple(zip(*rows, strict=True))
    return shard.subset(training, shards[0]), shard.subset(validation, shards[1])
