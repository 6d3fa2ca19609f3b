"""Exact losses and metrics of a model."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from sparkdl.data.batch import Batch
from sparkdl.training.loss import Criterion
from sparkdl.training.metrics import MetricAccumulator
from sparkdl.training.objective import forward


def observe(module: nn.Module, criterion: Criterion, batches: Iterable[Batch], meter: MetricAccumulator) -> None:
    """Accumulate batches in evaluation mode; the module's training mode is restored afterwards."""
    was_training = module.training
    module.eval()
    with torch.no_grad():
        for batch in batches:
            if batch.weight:
                output = forward(module, batch.inputs)
                meter.add(criterion(output, batch), batch.weight, *criterion.arguments(output, batch))
    module.train(was_training)
