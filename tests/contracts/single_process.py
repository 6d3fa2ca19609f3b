"""Training with torch alone in one process, which distributed training must equal."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from sparkdl.data.columns import Columns
from sparkdl.training.loop import Training
from tests.contracts.work import arrays, new_model


def single_process(
    training: Training, data: dict[str, np.ndarray], columns: Columns, steps: Sequence[np.ndarray]
) -> dict[str, np.ndarray]:
    """The weights after the given steps.

    Args:
        training: its model factory builds the same weights each time.
        data: column name -> array ``[rows, ...]``.
        columns: of the inputs, the target and the weight.
        steps: the rows of each step.
    """
    objective = training.objective
    module = new_model(training).to(objective.dtype).train()
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = objective.optimizer(trained)
    scheduler = None if objective.scheduler is None else objective.scheduler(optimizer)
    kinds = {name: objective.dtype if array.dtype.kind == "f" else None for name, array in data.items()}
    tensors = {name: torch.as_tensor(array, dtype=kinds[name]) for name, array in data.items()}
    loss = copy.deepcopy(objective.loss)
    assert isinstance(loss, nn.Module)
    loss.to(objective.dtype)
    for rows in steps:
        chosen = {name: tensor[torch.from_numpy(rows)] for name, tensor in tensors.items()}
        optimizer.zero_grad()
        output = module(*(chosen[column.name] for column in columns.inputs))
        assert columns.target is not None
        weights = None if columns.weight is None else chosen[columns.weight.name]
        _mean(loss, output, chosen[columns.target.name], weights).backward()
        if objective.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(trained, objective.max_grad_norm)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return arrays(dict(module.named_parameters(remove_duplicate=False)))


def _mean(loss: nn.Module, output: Tensor, target: Tensor, weights: Tensor | None) -> Tensor:
    if weights is None:
        return loss(output, target)
    each = copy.deepcopy(loss)
    each.reduction = "none"
    return (weights * each(output, target)).sum() / weights.sum()
