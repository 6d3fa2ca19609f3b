"""Exact losses and metrics of a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

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


@contextmanager
def restoring(module: nn.Module) -> Iterator[None]:
    """Restore parameters and buffers after the block, whether it overwrites or replaces them or their modules."""
    registries = [one for part in module.modules() for one in (part._parameters, part._buffers, part._modules)]
    names = [(registry, dict(registry)) for registry in registries]
    copies = [(value, value.data, value.detach().clone()) for value in (*module.parameters(), *module.buffers())]
    yield
    for registry, before in names:
        registry.update(before)  # type: ignore[arg-type]
    for value, data, copy in copies:
        value.data = data.copy_(copy)
