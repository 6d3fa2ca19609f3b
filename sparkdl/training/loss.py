"""The loss of a step, as the weighted mean over the rows of the global batch.

With ``l_i`` the loss of row ``i``, averaged over its trailing dimensions, the loss over all workers is

    L(w) = sum_i a_i * l_i(w) / sum_i a_i * m_i

``a_i`` is the row's weight (``weightCol``, else 1). ``m_i`` is its mass, the term in the loss's own denominator: 1, or
the class weight of its label, 0 for ``ignore_index``. ``L`` equals ``torch.nn.CrossEntropyLoss(weight, ignore_index)``
of the whole batch on one machine.

One case differs: with ``label_smoothing`` and a class of weight 0, rows have a loss but ``m_i = 0``. If a worker has
only such rows in a step, their loss is omitted.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sparkdl.data.batch import Batch, arguments
from sparkdl.errors import InvalidInput, WorkerFailed

LossFunction = Callable[[Any, Tensor], Tensor]

_ELEMENTWISE = (nn.BCELoss, nn.BCEWithLogitsLoss, nn.HuberLoss, nn.L1Loss, nn.MSELoss, nn.SmoothL1Loss)


class Criterion:
    """Local mean losses whose sum, weighted by each worker's share, is the global mean."""

    def __init__(self, loss: LossFunction | nn.Module) -> None:
        self._mean = loss
        self._each = loss
        if isinstance(loss, nn.Module) and hasattr(loss, "reduction"):
            self._each = copy.deepcopy(loss)
            self._each.reduction = "none"  # type: ignore[assignment]

    def __call__(self, output: Any, batch: Batch) -> Tensor:
        """The local mean loss, a scalar: the weighted losses of the batch's rows over ``batch.weight``."""
        output, target = _aligned(output, target_of(batch), elementwise=isinstance(self._mean, _ELEMENTWISE))
        if batch.denominators is None and batch.weights is None:
            loss = _called(self._mean, output, target)
            return loss if loss.dim() == 0 else _row_means(loss, batch.rows).mean()
        losses = _row_means(_called(self._each, output, target), batch.rows)
        weighted = losses if batch.weights is None else losses * batch.weights
        return weighted.sum() / batch.weight

    def denominators(self, target: Tensor) -> Tensor | None:
        """Each row's mass ``m_i``, float64 ``[B]``; None if all are 1.

        Only class-index losses have others: the class weights, and 0 for ignored labels.
        """
        if not isinstance(self._mean, (nn.CrossEntropyLoss, nn.NLLLoss)) or target.is_floating_point():
            return None
        target = target.long()  # among uint8 labels an ignore_index of -100 would wrap to 156
        valid = target != self._mean.ignore_index
        if self._mean.weight is None:
            masses = valid.to(torch.float64)
        else:
            masses = self._mean.weight.to("cpu", torch.float64)[torch.where(valid, target, 0)] * valid
        masses = masses.flatten(1).mean(1) if masses.dim() > 1 else masses
        return None if bool((masses == 1).all()) else masses


def target_of(batch: Batch) -> Tensor:
    """The batch's target; without one, the first argument of ``forward()``, as for an autoencoder."""
    return arguments(batch.inputs[:1])[0] if batch.target is None else batch.target


def check_loss(loss: object) -> None:
    """Raise InvalidInput if the loss sums over rows, or is neither a function nor a loss module."""
    reduction = getattr(loss, "reduction", None)
    if isinstance(loss, nn.Module) and reduction not in (None, "mean", "none"):
        raise InvalidInput(
            f"{type(loss).__name__} has reduction={reduction!r}; expected 'mean': losses are averaged over the "
            "global batch, so that the batch size does not change the learning rate."
        )
    if not callable(loss) or isinstance(loss, type):
        raise InvalidInput(f"loss is {loss!r}; expected a function loss(output, target), or an nn loss module.")


def shapes(value: Any) -> str:
    """Format shapes and dtypes of a tensor, or of nested tensors in a list, tuple or dict."""
    if isinstance(value, Tensor):
        return f"{list(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name!r}: {shapes(item)}" for name, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(shapes, value))})"
    return type(value).__name__


def _called(loss: LossFunction | nn.Module, output: Any, target: Tensor) -> Tensor:
    """Call the loss. On failure report both shapes, since torch's error often names one or none."""
    try:
        value = loss(output, target)
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        raise WorkerFailed(
            f"the loss raised {type(error).__name__}: {str(error).rstrip('.')}. The output was {shapes(output)}, the "
            f"target {shapes(target)}."
        ) from error
    if not isinstance(value, Tensor):
        raise InvalidInput(f"loss(output, target) returned {type(value).__name__}; expected a torch.Tensor.")
    return value


def _aligned(output: Any, target: Tensor, *, elementwise: bool) -> tuple[Any, Tensor]:
    """Squeeze ``[B, 1]`` to ``[B]``, which elementwise losses would broadcast; integers may be labels, and stay."""
    if isinstance(output, Tensor) and (elementwise or target.is_floating_point()):
        if output.shape == (*target.shape, 1):
            return output.squeeze(-1), target
        if elementwise and target.shape == (*output.shape, 1):
            return output, target.squeeze(-1)
    return output, target


def _row_means(losses: Tensor, rows: int) -> Tensor:
    if losses.dim() == 0:
        raise InvalidInput(
            "loss(output, target) returned a scalar, which cannot be weighted by row; expected one loss for "
            'each row, for example with reduction="none".'
        )
    if losses.shape[0] != rows:
        raise InvalidInput(f"loss(output, target) returned shape {tuple(losses.shape)} for a batch of {rows} rows.")
    return losses.flatten(1).mean(1) if losses.dim() > 1 else losses
