"""The loss of a step, as the weighted mean over the rows of the global batch.

With ``l_i`` the loss of row ``i``, averaged over its trailing dimensions, the loss over all workers is

    L(w) = sum_i a_i * l_i(w) / sum_i a_i * m_i

``a_i`` is the row's weight (``weightCol``, else 1). ``m_i`` is its mass, the term in the loss's own denominator: 1, or
the class weight of its label, 0 for ``ignore_index``. ``L`` equals ``torch.nn.CrossEntropyLoss(weight, ignore_index)``
of the whole batch on one machine.

A loss gets the model's output and the target unchanged. Losses of torch that compare element by element, as modules or
as functions, get equal shapes: ``[B, 1]`` beside ``[B]`` becomes ``[B]``.

One case differs: with ``label_smoothing`` and a class of weight 0, rows have a loss but ``m_i = 0``. If a worker has
only such rows in a step, their loss is omitted.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from sparkdl.data.batch import Batch, arguments
from sparkdl.errors import InvalidInput, WorkerFailed

LossFunction = Callable[[Any, Tensor], Tensor]

_ELEMENTWISE: dict[Any, type[nn.Module]] = {
    functional.binary_cross_entropy: nn.BCELoss,
    functional.binary_cross_entropy_with_logits: nn.BCEWithLogitsLoss,
    functional.hinge_embedding_loss: nn.HingeEmbeddingLoss,
    functional.huber_loss: nn.HuberLoss,
    functional.kl_div: nn.KLDivLoss,
    functional.l1_loss: nn.L1Loss,
    functional.mse_loss: nn.MSELoss,
    functional.poisson_nll_loss: nn.PoissonNLLLoss,
    functional.smooth_l1_loss: nn.SmoothL1Loss,
    functional.soft_margin_loss: nn.SoftMarginLoss,
}
_MODULES = _ELEMENTWISE | {
    functional.cross_entropy: nn.CrossEntropyLoss,
    functional.multi_margin_loss: nn.MultiMarginLoss,
    functional.multilabel_margin_loss: nn.MultiLabelMarginLoss,
    functional.multilabel_soft_margin_loss: nn.MultiLabelSoftMarginLoss,
    functional.nll_loss: nn.NLLLoss,
}


def as_module(loss: Any) -> Any:
    """The loss module of a function of ``torch.nn.functional``, or of a partial with its settings; else the loss."""
    function, settings = loss, dict[str, Any]()
    if isinstance(loss, partial) and not loss.args:
        function, settings = loss.func, loss.keywords
    module = next((module for known, module in _MODULES.items() if known is function), None)
    known = module is not None and settings.keys() <= inspect.signature(module).parameters.keys()
    return module(**settings) if module is not None and known else loss


class Criterion:
    """Local mean losses whose sum, weighted by each worker's share, is the global mean."""

    def __init__(self, loss: LossFunction | nn.Module) -> None:
        loss = as_module(loss)
        self._elementwise = isinstance(loss, tuple(_ELEMENTWISE.values()))
        self._unchecked = not isinstance(loss, tuple(_MODULES.values()))  # for broadcasts, until the first batch
        self._mean = loss
        self._each = loss
        if isinstance(loss, nn.Module) and hasattr(loss, "reduction"):
            self._each = copy.deepcopy(loss)
            self._each.reduction = "none"  # type: ignore[assignment]

    def __call__(self, output: Any, batch: Batch) -> Tensor:
        """The local mean loss, a scalar: the weighted losses of the batch's rows over ``batch.weight``."""
        output, target = self.arguments(output, batch)
        whole = batch.denominators is None and batch.weights is None
        with _RefuseBroadcasts(target) if self._unchecked else nullcontext():
            loss = _called(self._mean if whole else self._each, output, target)
        self._unchecked &= batch.rows == 1
        if whole and loss.dim() == 0:
            return loss
        if loss.dim() == 0:
            raise InvalidInput(
                "loss(output, target) returned a scalar, which cannot be weighted by row; expected one loss for "
                'each row, for example with reduction="none".'
            )
        losses = loss.flatten(1).mean(1) if loss.dim() > 1 else loss
        if whole:
            return losses.mean()
        weighted = losses if batch.weights is None else losses * batch.weights
        return weighted.sum() / batch.weight

    def arguments(self, output: Any, batch: Batch) -> tuple[Any, Tensor]:
        """The output and the target, as the loss and the metrics get them.

        Raises:
            InvalidInput: a loss of torch would broadcast the output and the target.
        """
        target = target_of(batch)
        if not self._elementwise or not isinstance(output, Tensor) or output.shape == target.shape:
            return output, target
        if output.shape == (*target.shape, 1):
            return output.squeeze(-1), target
        if target.shape == (*output.shape, 1):
            return output, target.squeeze(-1)
        raise InvalidInput(
            f"{type(self._mean).__name__} compares the output with the target element by element; expected equal "
            f"shapes. The output was {shapes(output)}, the target {shapes(target)}."
        )

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
    """Raise InvalidInput if the loss sums over rows, has trainable parameters, or is no function and no module."""
    loss = as_module(loss)
    reduction = getattr(loss, "reduction", None)
    if isinstance(loss, nn.Module) and reduction not in (None, "mean", "none"):
        raise InvalidInput(
            f"{type(loss).__name__} has reduction={reduction!r}; expected 'mean': losses are averaged over the "
            "global batch, so that the batch size does not change the learning rate."
        )
    parameters = loss.named_parameters() if isinstance(loss, nn.Module) else ()
    if trainable := [name for name, value in parameters if value.requires_grad]:
        raise InvalidInput(
            f"{type(loss).__name__} has the trainable parameters {', '.join(trainable)}, which no optimizer gets; move "
            "them into the model, or call requires_grad_(False)."
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
    except InvalidInput:
        raise
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        raise WorkerFailed(
            f"the loss raised {type(error).__name__}: {str(error).rstrip('.')}. The output was {shapes(output)}, the "
            f"target {shapes(target)}."
        ) from error
    if not isinstance(value, Tensor) or (value.dim() and len(value) != len(target)):
        raise InvalidInput(
            f"loss(output, target) returned {shapes(value)} for {len(target)} rows; expected a torch.Tensor of "
            f"losses [{len(target)}, ...], or of their mean. The output was {shapes(output)}, the target "
            f"{shapes(target)}."
        )
    return value


class _RefuseBroadcasts(TorchFunctionMode):
    """Raises InvalidInput in its block if a function broadcasts the output against the target.

    The difference of ``[B, 1]`` and ``[B]`` is ``[B, B]``, whose mean trains a wrong model. Functions of the target
    alone, as in a ranking loss, may broadcast it.
    """

    def __init__(self, target: Tensor) -> None:
        super().__init__()
        self._target = target

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        values = [value for value in (*args, *(kwargs or {}).values()) if isinstance(value, Tensor)]
        rows, result = len(self._target), func(*args, **(kwargs or {}))
        shapes = {tuple(value.shape) for value in values}
        if rows > 1 and shapes == {(rows,), (rows, 1)} and len({*map(self._is_target, values)}) == 2:
            squared = isinstance(result, Tensor) and result.shape == (rows, rows)
            if squared or any(func is known for known in _ELEMENTWISE):
                one, other = (list(value.shape) for value in values[:2])
                raise InvalidInput(
                    f"the loss broadcasts {one} and {other} to [{rows}, {rows}]; expected equal shapes of output and "
                    "target, as after output.squeeze(1) or target.unsqueeze(1)."
                )
        return result

    def _is_target(self, value: Tensor) -> bool:
        return value.untyped_storage().data_ptr() == self._target.untyped_storage().data_ptr()
