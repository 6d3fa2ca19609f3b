"""A trial of the model on a few rows, before the first step: a model that cannot be scored is never trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sparkdl.data.batch import Batch, Input, arguments
from sparkdl.errors import InvalidInput
from sparkdl.training.loss import shapes
from sparkdl.training.objective import OutputKind, forward

_EXPECTED = {
    "estimator": "one tensor [B, ...]",
    "classifier": "scores [B, classes], [B] or [B, 1]",
    "regressor": "numbers [B] or [B, 1]",
}


def probe(module: nn.Module, batch: Batch, kind: OutputKind | None) -> tuple[Any, dict[str, Any]]:
    """Run the model on a few rows in evaluation mode, as scoring does.

    Args:
        module: its mode is restored, and no random number of the training is drawn.
        batch: at least one row.
        kind: the output that scoring needs; None accepts any.

    Returns:
        The output, and for the report ``inputs``, the shape and dtype of one row of each input, or None if a shape
        varies, and ``output``, the shape of one row, or None if it is no tensor.

    Raises:
        InvalidInput: scoring would reject the output.
    """
    was_training = module.training
    with torch.random.fork_rng(devices=[]):
        output = forward(module.eval(), batch.inputs)
    module.train(was_training)
    if kind is not None:
        check_output(output, batch.rows, kind)
    shape = list(output.shape[1:]) if isinstance(output, Tensor) else None
    return output, {"inputs": _row_shapes(batch.inputs), "output": shape}


def check_output(output: Any, rows: int, kind: OutputKind) -> None:
    """Raise InvalidInput unless the output of ``rows`` rows can be scored."""
    if isinstance(output, Tensor) and output.dim() and len(output) == rows:
        single = output.dim() == 1 or (output.dim() == 2 and output.shape[1] == 1)
        if single or kind == "estimator" or (kind == "classifier" and output.dim() == 2):
            return
    advice = "TorchEstimator takes any tensor."
    if not isinstance(output, Tensor):
        advice = "If the loss needs more than one tensor, return it if self.training, and the prediction otherwise."
    raise InvalidInput(
        f"the model returned {shapes(output)} for {rows} rows; a {kind}'s model returns {_EXPECTED[kind]}. {advice}"
    )


def _row_shapes(columns: Sequence[Input]) -> list[tuple[list[int], str]] | None:
    if not all(isinstance(column, Tensor) for column in columns):
        return None
    return [(list(value.shape[1:]), str(value.dtype).removeprefix("torch.")) for value in arguments(columns)]
