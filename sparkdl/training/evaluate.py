"""Exact losses and metrics of a model over all workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn

from sparkdl.cluster.group.world import Group
from sparkdl.data.batch import Batch
from sparkdl.data.batching import Batcher
from sparkdl.data.sampler import Plan
from sparkdl.data.shard import Shard
from sparkdl.data.transforms import Collate, Transforms
from sparkdl.training.loss import Criterion
from sparkdl.training.metrics import MetricAccumulator, Metrics
from sparkdl.training.objective import forward


def evaluate(
    module: nn.Module,
    criterion: Criterion,
    shard: Shard,
    group: Group,
    *,
    metrics: Metrics,
    batch_size: int,
    device: torch.device,
    collate: Collate | None = None,
    on_batch: Callable[[int], None] | None = None,
) -> dict[str, float]:
    """Loss and metrics of a module over the shards of all workers.

    Args:
        module: the module; its training mode is restored afterwards.
        criterion: the loss.
        shard: this worker's rows; may be empty.
        group: the workers.
        metrics: name -> torchmetrics metric; all are reset afterwards.
        batch_size: rows of a batch over all workers.
        device: device of the module.
        collate: ``collate(inputs, target)``, applied to each batch; default: none.
        on_batch: called before each batch with its number, from 0; default: none.

    Returns:
        ``"loss"`` and each metric by its name, the same on every worker.
    """
    transforms = Transforms(collate, denominators=criterion.denominators)
    plan, meter = Plan(shard.shard_rows, batch_size, shuffle=False), MetricAccumulator(device, metrics)
    observe(module, criterion, Batcher(shard, plan, device, transforms).batches(0), meter, on_batch)
    return meter.close(group)


def observe(
    module: nn.Module,
    criterion: Criterion,
    batches: Iterable[Batch],
    meter: MetricAccumulator,
    on_batch: Callable[[int], None] | None = None,
) -> None:
    """Accumulate the loss and metrics of batches in ``meter``; arguments as for ``evaluate``."""
    was_training = module.training
    module.eval()
    with torch.no_grad():
        for number, batch in enumerate(batches):
            if on_batch is not None:
                on_batch(number)
            if batch.weight:
                output = forward(module, batch.inputs)
                meter.add(criterion(output, batch), output, batch)
    module.train(was_training)
