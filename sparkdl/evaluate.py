"""Losses and metrics of a model, exact over all members."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sparkdl.feed.part import Part
from sparkdl.feed.sampling import Plan
from sparkdl.objective import Criterion, target_of
from sparkdl.tensors import Batch
from sparkdl.world import Group

Metrics = Mapping[str, Any]


def open_metrics(metrics: Metrics, device: torch.device) -> dict[str, Any]:
    """Fresh copies of torchmetrics metrics, on a device."""
    return {name: copy.deepcopy(metric).to(device) for name, metric in metrics.items()}


class Meter:
    """The mean loss and the metrics of some batches.

    Args:
        device: where the losses lie; adding one does not wait for the device.
        metrics: name -> torchmetrics metric, updated with every batch.
    """

    def __init__(self, device: torch.device, metrics: Metrics) -> None:
        dtype = torch.float64
        self._sum = torch.zeros((), dtype=dtype, device=device)
        self._weight = 0.0
        self._metrics = metrics

    def add(self, loss: Tensor, output: Any, batch: Batch) -> None:
        """Take down one batch: its local mean loss, and its output where there are metrics."""
        if not batch.weight:
            return
        self._sum.add_(loss, alpha=batch.weight)
        self._weight += batch.weight
        for metric in self._metrics.values():
            metric.update(_detached(output), target_of(batch))

    def local_mean(self) -> float | None:
        """This member's mean loss so far."""
        return float(self._sum) / self._weight if self._weight else None

    def close(self, group: Group) -> dict[str, float]:
        """The mean loss and the metrics over all members, the same on each; the meter starts again at nothing."""
        totals = torch.stack([self._sum, torch.tensor(self._weight, dtype=torch.float64, device=self._sum.device)])
        group.sum_(totals)
        total, weight = totals.tolist()
        self._sum.zero_()
        self._weight = 0.0
        return {"loss": total / weight if weight else float("nan")} | {
            name: synchronised(metric, group) for name, metric in self._metrics.items()
        }


def evaluate(
    module: nn.Module,
    criterion: Criterion,
    part: Part,
    group: Group,
    *,
    metrics: Metrics,
    batch_size: int,
    device: torch.device,
) -> dict[str, float]:
    """Loss and metrics of a module over every member's part.

    Args:
        module: what is evaluated; its mode is put back afterwards.
        criterion: the loss.
        part: this member's rows; may be empty.
        group: the members.
        metrics: torchmetrics metrics, which are reset.
        batch_size: rows of a batch over all members.
        device: where the module lies.
    """
    plan, meter = Plan(part.parts, batch_size, shuffle=False), Meter(device, metrics)
    was_training = module.training
    module.eval()
    with torch.no_grad():
        for batch in part.batches(plan, epoch=0, device=device):
            if batch.weight:
                output = module(*batch.inputs)
                meter.add(criterion(output, batch), output, batch)
    module.train(was_training)
    return meter.close(group)


def synchronised(metric: Any, group: Group) -> Any:
    """A torchmetrics metric's value over all members, exactly, by its own reductions; the metric is reset.

    Members that saw no row are left out: an empty state has neither the dtype nor the shape of a full one.
    """
    updated = group.gather(bool(metric.update_called))

    def gather(tensor: Tensor, **_: Any) -> list[Tensor]:
        states = group.gather(tensor.cpu())
        return [state.to(tensor.device) for state, used in zip(states, updated, strict=True) if used]

    metric.dist_sync_fn = gather
    metric.distributed_available_fn = lambda: group.size > 1 and any(updated)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The ``compute`` method of metric", category=UserWarning)
        value = metric.compute()
    metric.reset()
    if isinstance(value, Tensor):
        return value.item() if value.numel() == 1 else value.tolist()
    return value


def predict(module: nn.Module, inputs: tuple[Tensor, ...], *, batch_size: int = 1024) -> Tensor:
    """The module's outputs for ``inputs``, ``[rows, ...]``, in evaluation mode and without gradients."""
    rows = len(inputs[0])
    was_training = module.training
    module.eval()
    with torch.inference_mode():
        pieces = [
            module(*(tensor[first : first + batch_size] for tensor in inputs))
            for first in range(0, max(rows, 1), batch_size)
        ]
    module.train(was_training)
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def _detached(output: Any) -> Any:
    return output.detach() if isinstance(output, Tensor) else output
