"""The training objective: model, loss, optimizer, schedule and metrics."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, Literal

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim.lr_scheduler import ReduceLROnPlateau

from sparkdl.data.columns import listed
from sparkdl.errors import InvalidInput
from sparkdl.io.fields import CheckedFields, Count, Rule, one_of
from sparkdl.telemetry.emit import notify
from sparkdl.training.objective.loss import Criterion, LossFunction, as_module, check_loss
from sparkdl.training.objective.module_factory import ModelFactory, new_module
from sparkdl.training.objective.monitored_value import MODES, Mode, mode_of
from sparkdl.training.objective.optimizers import open_optimizer

OptimizerFactory = Callable[..., torch.optim.Optimizer]
SchedulerFactory = Callable[..., Any]

OutputKind = Literal["estimator", "classifier", "multilabel", "regressor"]
"""The output of an estimator's model: any tensor, class scores, scores of independent labels, or a number."""

PRECISIONS = ("fp32", "bf16", "fp16", "fp64")
INTERVALS = ("epoch", "step")


@dataclass(frozen=True)
class Objective(CheckedFields):
    """The objective and its arithmetic.

    Attributes:
        model: a factory without arguments, or a module with the initial weights.
        loss: an ``nn`` loss module, or ``loss(output, target)`` returning losses ``[B, ...]`` or a scalar batch mean.
        optimizer: called with the parameters, or if it takes ``named_parameters`` with pairs of a name and a parameter,
            for parameter groups; default: Adam with torch's defaults.
        scheduler: called with the optimizer, and with ``steps_per_epoch`` and ``epochs`` if it takes them; default:
            none.
        scheduler_interval: ``"epoch"`` or ``"step"``, after which the scheduler steps; rounds step it once a round.
        monitor: the column of the history that early stopping and ``ReduceLROnPlateau`` compare; default:
            ``valid_loss``, or without validation rows the training loss.
        monitor_mode: ``"min"`` or ``"max"``, the better value; ``"auto"`` asks the metric; losses are minimized.
        metrics: name -> ``torchmetrics.Metric`` (copied before use); default: none.
        precision: ``"fp32"``, ``"bf16"`` or ``"fp16"`` (autocast; weights stay float32; fp16 scales the loss), or
            ``"fp64"``.
        max_grad_norm: largest L2 norm of the global gradient, and with strategies of local steps of each worker's own;
            default: none.
        channels_last: whether weights and inputs ``[B, C, H, W]`` have their channels last in memory.
        compile: the backend of ``torch.compile``, such as ``"inductor"``; default: none. If the compiler fails, the
            module runs uncompiled, with a warning.
        tf32: whether GPUs multiply float32 matrices in TF32, as convolutions do by torch's default.
        micro_batches: number of micro-batches that a worker splits its rows of a step into, to save memory; the
            optimizer's step stays the same.
        device: where a task of rounds builds its module and its loss; a worker of a gang has ``world.device``.
    """

    model: ModelFactory | nn.Module
    loss: LossFunction | nn.Module
    optimizer: OptimizerFactory = torch.optim.Adam
    scheduler: SchedulerFactory | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    precision: Annotated[str, one_of(PRECISIONS)] = "fp32"
    max_grad_norm: Annotated[float, Rule("a number above 0", lambda number: number > 0)] | None = None
    scheduler_interval: Annotated[str, one_of(INTERVALS)] = "epoch"
    monitor: str | None = None
    monitor_mode: Annotated[str, one_of(MODES)] = "auto"
    channels_last: bool = False
    compile: str | None = None
    tf32: bool = False
    micro_batches: Count = 1
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - immutable

    def __post_init__(self) -> None:
        check_loss(self.loss)
        super().__post_init__()
        mode_of(self.monitor, self.monitor_mode, self.metrics)  # raises if it is unknown

    @property
    def mode(self) -> Mode:
        """Whether a lower or a higher monitored value is better."""
        return mode_of(self.monitor, self.monitor_mode, self.metrics)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights and of floating-point inputs."""
        return torch.float64 if self.precision == "fp64" else torch.float32

    def build(
        self, device: torch.device | str | None = None, *, warn: bool = False, parameters: bool = True
    ) -> nn.Module:
        """Make a module on ``device``, by default the objective's, and convert its weights to ``dtype``.

        With ``warn``, a warning names the dtypes that the conversion replaces. With ``parameters=False``, buffers are
        on ``device``, and parameters on ``meta``, without values and memory, unless the factory reads them.

        Raises:
            InvalidInput: the factory returned no module, or a parameter is lazy, complex, or none can be trained.
        """
        module = new_module(self.model, parameters=parameters)
        _check_module(module, on_meta=not parameters)
        dtypes = {str(value.dtype) for value in module.parameters() if value.is_floating_point()}
        if warn and (cast := dtypes - {"torch.float32", str(self.dtype)}):
            notify(f"weights of {listed([*cast])} in {type(module).__name__} become {self.dtype}, as precision sets.")
        # Unlike to(dtype), these two keep complex buffers.
        module = module.double() if self.dtype == torch.float64 else module.float()
        module = _moved(module, device or self.device)
        if self.channels_last:
            module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return module

    def open_optimizer(self, named: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        """The optimizer of these parameters; raises InvalidInput if its ``step()`` requires a closure."""
        return open_optimizer(self.optimizer, named)

    def for_run(self, steps_per_epoch: int, epochs: int) -> Objective:
        """The objective whose scheduler factory knows the length of the run, if it takes it.

        Raises as ``check_schedule``.
        """
        self.check_schedule(in_rounds=False)
        length = {"steps_per_epoch": steps_per_epoch, "epochs": epochs}
        taken = length_arguments(self.scheduler)
        if self.scheduler is None or not taken:
            return self
        return replace(self, scheduler=partial(self.scheduler, **{name: length[name] for name in taken}))

    def check_schedule(self, *, in_rounds: bool) -> None:
        """Raise InvalidInput if the scheduler's factory needs another interval or mode, or values that rounds lack."""
        taken, factory = length_arguments(self.scheduler), getattr(self.scheduler, "func", self.scheduler)
        plateau = factory is ReduceLROnPlateau
        if in_rounds and (taken or plateau):
            name = getattr(factory, "__name__", factory)
            missing = "no loss" if plateau else f"no {' and no '.join(sorted(taken))}"
            raise InvalidInput(
                f"scheduler is {name}, and rounds pass it {missing}; expected a schedule of rounds, such as "
                "torch.optim.lr_scheduler.StepLR."
            )
        if "steps_per_epoch" in taken and self.scheduler_interval == "epoch":
            raise InvalidInput(
                "scheduler takes steps_per_epoch, and schedulerInterval is 'epoch'; set schedulerInterval='step'."
            )
        if plateau:
            self._check_plateau(getattr(self.scheduler, "keywords", {}).get("mode", "min"))

    def _check_plateau(self, mode: str) -> None:
        if self.scheduler_interval == "step":
            raise InvalidInput("scheduler is a ReduceLROnPlateau; expected schedulerInterval='epoch' with it.")
        if mode != self.mode:
            better = "higher" if self.mode == "max" else "lower"
            raise InvalidInput(
                f"scheduler is a ReduceLROnPlateau with mode={mode!r}; expected mode={self.mode!r}: a {better} "
                f"{self.monitor or 'loss'} is better."
            )

    def open_scheduler(self, optimizer: torch.optim.Optimizer) -> Any:
        """The scheduler of the optimizer; None without one. Raises InvalidInput as ``check_schedule``."""
        scheduler = None if self.scheduler is None else self.scheduler(optimizer)
        if isinstance(scheduler, ReduceLROnPlateau):
            self._check_plateau(scheduler.mode)
        return scheduler

    def criterion(self, device: torch.device | str | None = None) -> Criterion:
        """The loss as a ``Criterion`` on ``device``, by default the objective's."""
        loss = as_module(self.loss)
        if isinstance(loss, nn.Module):
            loss = copy.deepcopy(loss).to(device=device or self.device, dtype=self.dtype)
        return Criterion(loss)


def _check_module(module: nn.Module, *, on_meta: bool) -> None:
    name, tensors = type(module).__name__, [*module.named_parameters(), *module.named_buffers()]
    if lazy := [key for key, value in tensors if is_lazy(value) or (value.is_meta and not on_meta)]:
        raise InvalidInput(
            f"{name} has lazy parameters without a shape, or tensors on the device 'meta': {listed(lazy)}. Replace its "
            "lazy layers, such as nn.LazyLinear(8) by nn.Linear(in_features, 8), or call it once and set the module; "
            "make the model on the CPU."
        )
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise InvalidInput(f"{name} has no trainable parameters; nothing can be trained.")
    if keys := [key for key, value in module.named_parameters() if value.is_complex()]:
        raise InvalidInput(
            f"{name} has complex parameters: {listed(keys)}; expected real ones, such as "
            "nn.Parameter(torch.view_as_real(weight)), which forward() turns back with torch.view_as_complex."
        )


def _moved(module: nn.Module, device: torch.device | str) -> nn.Module:
    if not any(parameter.is_meta for parameter in module.parameters()):
        return module.to(device)
    for part in module.modules():
        for name, buffer in part.named_buffers(recurse=False):
            setattr(part, name, buffer.to(device))
    return module


def length_arguments(scheduler: SchedulerFactory | None) -> set[str]:
    """Which of ``steps_per_epoch`` and ``epochs`` a scheduler's factory takes and leaves open."""
    bound = getattr(scheduler, "keywords", {})
    if scheduler is None or "total_steps" in bound:
        return set()
    return ({"steps_per_epoch", "epochs"} & inspect.signature(scheduler).parameters.keys()) - bound.keys()
