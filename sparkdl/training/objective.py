"""What is minimised: model, loss, optimizer, schedule, metrics.

The loss of a step is the weighted mean over the rows ``i`` of the GLOBAL batch, wherever they lie,

    L(w) = sum_i a_i * l_i(w) / sum_i a_i * m_i

with ``l_i`` the loss of row ``i`` averaged over its trailing dimensions, ``a_i`` its weight (``weightCol``, else
1) and ``m_i`` its mass: 1, or what a class-weighted loss or one with ``ignore_index`` divides by, so that the
result is what ``torch.nn.CrossEntropyLoss(weight, ignore_index, reduction="mean")`` gives for the whole batch on
one machine.

That stops holding where rows have a loss but no mass: with ``label_smoothing`` and a class of weight 0, the rows of a
member that has no other class in a step are left out of it.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sparkdl.data.batch import Batch, Input, arguments
from sparkdl.errors import InvalidInput, MemberFailed

ModelFactory = Callable[[], nn.Module]
LossFunction = Callable[[Any, Tensor], Tensor]
OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
SchedulerFactory = Callable[[torch.optim.Optimizer], Any]

PRECISIONS = ("fp32", "bf16", "fp64")

_ELEMENTWISE = (nn.BCELoss, nn.BCEWithLogitsLoss, nn.HuberLoss, nn.L1Loss, nn.MSELoss, nn.SmoothL1Loss)


@dataclass(frozen=True)
class Objective:
    """What is minimised, and in which arithmetic.

    Attributes:
        model: a factory without arguments, or a module whose weights are the start.
        loss: an ``nn`` loss module, or ``loss(output, target)`` returning losses ``[B, ...]`` or a scalar batch mean.
        optimizer: called with the parameters; the default is Adam with torch's defaults.
        scheduler: called with the optimizer; stepped after every optimizer step, or once a round. None for a
            constant rate.
        metrics: name -> ``torchmetrics.Metric`` (copied before use).
        precision: ``"fp32"``, ``"bf16"`` (autocast; weights stay float32) or ``"fp64"``.
        clip_norm: the largest L2 norm of the global gradient; None for no clipping.
    """

    model: ModelFactory | nn.Module
    loss: LossFunction | nn.Module
    optimizer: OptimizerFactory = torch.optim.Adam
    scheduler: SchedulerFactory | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    precision: str = "fp32"
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise InvalidInput(f"precision is {self.precision!r}; expected one of {', '.join(PRECISIONS)}.")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise InvalidInput(f"clipNorm is {self.clip_norm!r}; expected a number above 0, or None.")
        _check_loss(self.loss)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights and of floating-point inputs."""
        return torch.float64 if self.precision == "fp64" else torch.float32

    def build(self, device: torch.device | str = "cpu") -> nn.Module:
        """A new module on ``device`` in the weights' dtype.

        Raises:
            InvalidInput: the factory did not return a module, or nothing in it can be trained.
        """
        module = copy.deepcopy(self.model) if isinstance(self.model, nn.Module) else self.model()
        if not isinstance(module, nn.Module):
            raise InvalidInput(f"model() returned {type(module).__name__}; expected a torch.nn.Module.")
        if not any(parameter.requires_grad for parameter in module.parameters()):
            raise InvalidInput(f"{type(module).__name__} has no trainable parameters; nothing can be trained.")
        return module.to(device=device, dtype=self.dtype)

    def open_optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimizer of some parameters.

        Raises:
            InvalidInput: its step evaluates the loss itself, as often as it likes.
        """
        optimizer = self.optimizer(parameters)
        closure = inspect.signature(optimizer.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise InvalidInput(
                f"optimizer is {type(optimizer).__name__}, whose step() takes a closure that evaluates the loss; "
                "expected one that takes a step with the gradients there are. strategy=LBFGS() minimises by L-BFGS, "
                "over all rows, in rounds."
            )
        return optimizer

    def criterion(self, device: torch.device | str = "cpu") -> Criterion:
        """The loss, ready to be called on members."""
        loss = self.loss
        if isinstance(loss, nn.Module):
            loss = copy.deepcopy(loss).to(device=device, dtype=self.dtype)
        return Criterion(loss)


class Criterion:
    """The loss of batches: local means whose share-weighted sum is the global mean."""

    def __init__(self, loss: LossFunction | nn.Module) -> None:
        self._mean = loss
        self._each = loss
        if isinstance(loss, nn.Module) and hasattr(loss, "reduction"):
            self._each = copy.deepcopy(loss)
            self._each.reduction = "none"  # type: ignore[assignment]

    def __call__(self, output: Any, batch: Batch) -> Tensor:
        """The local mean, a scalar: the losses of the batch's rows, weighted, over ``batch.weight``."""
        output, target = _aligned(output, target_of(batch), elementwise=isinstance(self._mean, _ELEMENTWISE))
        if batch.masses is None and batch.weights is None:
            loss = _called(self._mean, output, target)
            return loss if loss.dim() == 0 else _row_means(loss, batch.rows).mean()
        losses = _row_means(_called(self._each, output, target), batch.rows)
        weighted = losses if batch.weights is None else losses * batch.weights
        return weighted.sum() / batch.weight

    def masses(self, target: Tensor) -> Tensor | None:
        """What each row adds to the loss's denominator, float64 ``[B]``; None where each row adds 1.

        Only class-index losses divide by something else: by the classes' weights, leaving out ignored labels.
        """
        if not isinstance(self._mean, (nn.CrossEntropyLoss, nn.NLLLoss)) or target.is_floating_point():
            return None
        target = target.long()  # an ignore_index of -100 would be taken for 156 among unsigned labels
        kept = target != self._mean.ignore_index
        if self._mean.weight is None:
            each = kept.to(torch.float64)
        else:
            each = self._mean.weight.to("cpu", torch.float64)[torch.where(kept, target, 0)] * kept
        each = each.flatten(1).mean(1) if each.dim() > 1 else each
        return None if bool((each == 1).all()) else each


def shapes(value: Any) -> str:
    """Shapes and dtypes of a tensor, or of tensors in a list, tuple or dict, for messages."""
    if isinstance(value, Tensor):
        return f"{list(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name!r}: {shapes(each)}" for name, each in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(shapes, value))})"
    return type(value).__name__


def forward(module: nn.Module, columns: Iterable[Input]) -> Any:
    """The model's output.

    Raises:
        MemberFailed: the model raised; the message says what it was given.
    """
    inputs = arguments(columns)
    try:
        return module(*inputs)
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        raise MemberFailed(
            f"forward() of {type(module).__name__} raised {type(error).__name__}: {error}. It was given "
            f"{len(inputs)} inputs, of {', '.join(map(shapes, inputs))}."
        ) from error


def trained(loss: Tensor) -> Tensor:
    """The loss, of which something can be trained.

    Raises:
        InvalidInput: nothing can.
    """
    if loss.grad_fn is None:
        raise InvalidInput("the loss does not depend on any trainable parameter; nothing can be trained.")
    return loss


def _called(loss: LossFunction | nn.Module, output: Any, target: Tensor) -> Tensor:
    """The loss, or an error that says what it was given: torch's own often names one shape of the two, or none."""
    try:
        value = loss(output, target)
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        raise MemberFailed(
            f"the loss raised {type(error).__name__}: {error}. It was given an output of {shapes(output)} and a target "
            f"of {shapes(target)}."
        ) from error
    if not isinstance(value, Tensor):
        raise InvalidInput(f"loss(output, target) returned {type(value).__name__}; expected a torch.Tensor.")
    return value


def target_of(batch: Batch) -> Tensor:
    """The batch's target; ``forward()``'s first argument where there is none (an autoencoder)."""
    return arguments(batch.inputs[:1])[0] if batch.target is None else batch.target


def _check_loss(loss: object) -> None:
    reduction = getattr(loss, "reduction", None)
    if isinstance(loss, nn.Module) and reduction not in (None, "mean", "none"):
        raise InvalidInput(
            f"{type(loss).__name__} has reduction={reduction!r}; expected 'mean': losses are averaged over the "
            "global batch, so that the batch size does not change the learning rate."
        )
    if not callable(loss) or isinstance(loss, type):
        raise InvalidInput(
            f"loss is {loss!r}; expected a function loss(output, target), or an nn loss module such as nn.MSELoss()."
        )


def _aligned(output: Any, target: Tensor, *, elementwise: bool) -> tuple[Any, Tensor]:
    """``[B, 1]`` as ``[B]`` beside a ``[B]``: an elementwise loss would broadcast the two to ``[B, B]``.

    Whole numbers may be class labels ``[B]`` beside scores ``[B, 1]``, unless the loss is known not to read them so.
    """
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
