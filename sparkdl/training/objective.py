"""The training objective: model, loss, optimizer, schedule and metrics."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sparkdl.data.batch import Input, arguments
from sparkdl.errors import InvalidInput, WorkerFailed
from sparkdl.training.loss import Criterion, LossFunction, check_loss, shapes

ModelFactory = Callable[[], nn.Module]
OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
SchedulerFactory = Callable[[torch.optim.Optimizer], Any]

PRECISIONS = ("fp32", "bf16", "fp64")


@dataclass(frozen=True)
class Objective:
    """The objective and its arithmetic.

    Attributes:
        model: a factory without arguments, or a module with the initial weights.
        loss: an ``nn`` loss module, or ``loss(output, target)`` returning losses ``[B, ...]`` or a scalar batch mean.
        optimizer: called with the parameters; default: Adam with torch's defaults.
        scheduler: called with the optimizer; stepped after every optimizer step, or once a round. Default: none.
        metrics: name -> ``torchmetrics.Metric`` (copied before use); default: none.
        precision: ``"fp32"``, ``"bf16"`` (autocast; weights stay float32) or ``"fp64"``.
        max_grad_norm: largest L2 norm of the global gradient; default: none.
    """

    model: ModelFactory | nn.Module
    loss: LossFunction | nn.Module
    optimizer: OptimizerFactory = torch.optim.Adam
    scheduler: SchedulerFactory | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    precision: str = "fp32"
    max_grad_norm: float | None = None

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise InvalidInput(f"precision is {self.precision!r}; expected one of {', '.join(PRECISIONS)}.")
        if self.max_grad_norm is not None and not self.max_grad_norm > 0:
            raise InvalidInput(f"maxGradNorm is {self.max_grad_norm!r}; expected a number above 0, or None.")
        check_loss(self.loss)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights and of floating-point inputs."""
        return torch.float64 if self.precision == "fp64" else torch.float32

    def build(self, device: torch.device | str = "cpu") -> nn.Module:
        """A new module on ``device`` in the weights' dtype.

        Raises InvalidInput if the factory did not return a module, or the module has no trainable parameter.
        """
        module = copy.deepcopy(self.model) if isinstance(self.model, nn.Module) else self.model()
        if not isinstance(module, nn.Module):
            raise InvalidInput(f"model() returned {type(module).__name__}; expected a torch.nn.Module.")
        if not any(parameter.requires_grad for parameter in module.parameters()):
            raise InvalidInput(f"{type(module).__name__} has no trainable parameters; nothing can be trained.")
        return module.to(device=device, dtype=self.dtype)

    def open_optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimizer of these parameters; raises InvalidInput if its ``step()`` requires a closure."""
        optimizer = self.optimizer(parameters)
        closure = inspect.signature(optimizer.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise InvalidInput(
                f"optimizer is {type(optimizer).__name__}, whose step() requires a closure; expected an optimizer that "
                "steps on given gradients. For L-BFGS over all rows, set strategy=LBFGS()."
            )
        return optimizer

    def criterion(self, device: torch.device | str = "cpu") -> Criterion:
        """The loss as a ``Criterion`` on ``device``."""
        loss = self.loss
        if isinstance(loss, nn.Module):
            loss = copy.deepcopy(loss).to(device=device, dtype=self.dtype)
        return Criterion(loss)


def forward(module: nn.Module, columns: Iterable[Input]) -> Any:
    """The model's output. If the model raises, WorkerFailed reports the shapes of its inputs."""
    inputs = arguments(columns)
    try:
        return module(*inputs)
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        raise WorkerFailed(
            f"forward() of {type(module).__name__} raised {type(error).__name__}: {str(error).rstrip('.')}. "
            f"Its inputs were {', '.join(map(shapes, inputs))}."
        ) from error


def row_shapes(columns: Sequence[Input]) -> list[tuple[list[int], str]] | None:
    """Shape and dtype of one row of each input; None if an input's shape varies."""
    if not all(isinstance(column, Tensor) for column in columns):
        return None
    return [(list(value.shape[1:]), str(value.dtype).removeprefix("torch.")) for value in arguments(columns)]


def output_shape(output: Any) -> list[int] | None:
    """Shape of one row of the model's output; None if it is not a tensor."""
    return list(output.shape[1:]) if isinstance(output, Tensor) else None


def trained(loss: Tensor) -> Tensor:
    """The loss; raises InvalidInput if it depends on no trainable parameter."""
    if loss.grad_fn is None:
        raise InvalidInput("the loss does not depend on any trainable parameter; nothing can be trained.")
    return loss
