"""Runs the model on a few rows before the first step, and refuses a model that ``transform`` could not score."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sparkdl.data.batch import Batch, Input, arguments
from sparkdl.data.batching import stored_batch
from sparkdl.data.sampler import generator
from sparkdl.data.shard import Shard
from sparkdl.data.transforms import Transforms
from sparkdl.errors import InvalidInput
from sparkdl.training.objective.loss import kept_buffers, shapes
from sparkdl.training.objective.metrics import MetricAccumulator, local_states, open_metrics, together
from sparkdl.training.objective.objective import Objective, OutputKind

_ROWS = 32  # of the probe; a loss may need several, such as the largest few
_EXPECTED = {
    "estimator": "expected one tensor [B, ...]",
    "classifier": "a classifier's model returns scores [B, classes], [B] or [B, 1], or for labels [B, d1, ...] scores "
    "[B, classes, d1, ...]",
    "multilabel": "a multi-label classifier's model returns scores [B, labels]",
    "regressor": "a regressor's model returns numbers [B] or [B, 1]",
}


def probe_batch(shard: Shard, transforms: Transforms | None, most: int = _ROWS) -> Batch:
    """At most ``most`` rows of a shard: first its rows of positive weight, then the others, each in order."""
    positions = torch.arange(min(most, shard.rows))
    if shard.denominators is not None:
        weighs = (shard.denominators if shard.order is None else shard.denominators.index_select(0, shard.order)) > 0
        positions = torch.cat([torch.nonzero(mask).flatten()[:most] for mask in (weighs, ~weighs)])[:most]
    batch = stored_batch(shard, positions if shard.order is None else shard.order[positions])
    return transforms(batch, generator(0)) if transforms else batch


def probe_model(
    module: nn.Module, evaluate: Callable[[Batch], Any], batch: Batch, kind: OutputKind | None
) -> tuple[Any, dict[str, Any]]:
    """Run the model on at least one row in evaluation mode; raises InvalidInput if scoring would reject the output.

    Returns the output of ``evaluate``, and for the report ``inputs``, the shape and dtype of one row of each input
    (None if a shape varies), and ``output``, the shape of one row (None if it is no tensor). The module's mode and
    buffers are restored.
    """
    was_training = module.training
    module.eval()
    with kept_buffers(module):  # some models count their calls
        output = evaluate(batch)
    module.train(was_training)
    if kind is not None:
        check_output(output, batch.rows, kind)
        if kind == "classifier" and output.dim() > 2:
            _check_labels(output, batch.target)
    shape = list(output.shape[1:]) if isinstance(output, Tensor) else None
    return output, {"inputs": row_shapes(batch.inputs), "output": shape}


def probe_evaluation(output: Any, batch: Batch, objective: Objective, device: torch.device) -> None:
    """Evaluate the probe's output by loss and metrics, as validation does; raises as they do."""
    if batch.weight:
        criterion, metrics = objective.criterion(device), open_metrics(objective.metrics, device)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of few rows
            got = criterion.arguments(output, batch)
            MetricAccumulator(device, metrics).add(criterion(output, batch), batch.weight, *got)
            # A user's metric may need more rows, and any metric more than one.
            torchmetrics = {
                name: one for name, one in metrics.items() if type(one).__module__.startswith("torchmetrics.")
            }
            together(torchmetrics, [local_states(torchmetrics)] if batch.rows > 1 else [], *got)


def check_output(output: Any, rows: int, kind: OutputKind) -> None:
    """Raise InvalidInput unless the output of ``rows`` rows can be scored."""
    if isinstance(output, Tensor) and output.dim() and len(output) == rows:
        single = output.dim() == 1 or (output.dim() == 2 and output.shape[1] == 1)
        valid = {
            "estimator": True,
            "classifier": single or (output.dim() > 1 and output.shape[1] > 1),
            "multilabel": output.dim() == 2,
            "regressor": single,
        }
        if valid[kind]:
            return
    advice = "" if kind == "estimator" else " TorchEstimator takes any tensor."
    if not isinstance(output, Tensor):
        advice = (
            " If the loss needs more than one tensor, return them if self.training, else the prediction. On validation "
            "rows the loss then gets the prediction."
        )
    raise InvalidInput(f"the model returned {shapes(output)} for {rows} rows; {_EXPECTED[kind]}.{advice}")


def _check_labels(output: Tensor, target: Tensor | None) -> None:
    labels = None if target is None else target.shape
    if labels in (output.shape[:1] + output.shape[2:], output.shape):  # indices of classes, or their probabilities
        return
    raise InvalidInput(
        f"the model returned {shapes(output)} for {'no labels' if target is None else f'labels {shapes(target)}'}; "
        "expected scores [B, classes] for labels [B], or [B, classes, d1, ...] for labels [B, d1, ...], as "
        "nn.CrossEntropyLoss takes them. TorchEstimator takes any tensor."
    )


def row_shapes(columns: Sequence[Input]) -> list[tuple[list[int], str]] | None:
    """The shape and the dtype's name of one row of each input; None if a shape varies."""
    if not all(isinstance(column, Tensor) for column in columns):
        return None
    return [(list(value.shape[1:]), str(value.dtype).removeprefix("torch.")) for value in arguments(columns)]
