"""Optimizers by name, class or factory, with a learning rate and other arguments."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from sparkdl.errors import InvalidInput
from sparkdl.telemetry.emit import notify

OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    kind.__name__.lower(): kind
    for kind in vars(torch.optim).values()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
}
"""The classes of ``torch.optim`` by their names in lower case, such as ``"adamw"``."""


def optimizer_factory(optimizer: Any, learning_rate: float | None, arguments: Mapping[str, Any]) -> Any:
    """The optimizer with its arguments bound.

    Args:
        optimizer: a name of ``OPTIMIZERS``, a class, or a factory that is called with the parameters.
        learning_rate: the argument ``lr``; None leaves the optimizer's default.
        arguments: other arguments, such as ``weight_decay``.

    Raises:
        InvalidInput: the factory binds an argument already, or does not take it.
    """
    factory = OPTIMIZERS[optimizer] if isinstance(optimizer, str) else optimizer
    bound, settings = getattr(factory, "keywords", {}), {**arguments}
    if learning_rate is not None:
        if "lr" in settings:
            raise InvalidInput(
                f"learningRate is {learning_rate} and optimizerArgs has lr={settings['lr']}; expected one."
            )
        settings["lr"] = learning_rate
    if not settings:
        return factory
    taken = inspect.signature(factory).parameters
    any_name = any(one.kind is one.VAR_KEYWORD for one in taken.values())
    for name, value in settings.items():
        param = "learningRate" if name == "lr" and learning_rate is not None else "optimizerArgs"
        if name in bound:
            raise InvalidInput(
                f"optimizer binds {name}={bound[name]!r} already, and {param} gives {name}={value!r}; expected one of "
                "them, or the optimizer's class or name."
            )
        if name not in taken and not any_name:
            raise InvalidInput(
                f"{param} gives {name}={value!r}, which optimizer does not take; expected "
                f"{', '.join([*taken][1:]) or 'no arguments with this factory'}."
            )
    return partial(factory, **settings)


def check_elementwise(factory: Any, names: Sequence[str] = ("weight",)) -> None:
    """Raise InvalidInput unless the optimizer treats each element of a tensor alone, so that it can step on slices.

    Three steps on tensors ``[4, 6]``, and three steps of two other optimizers on their halves, by rows and by columns,
    must give bit-identical tensors.

    Args:
        factory: called as ``Objective.optimizer``.
        names: names of parameters, for a factory that takes them.
    """
    for dim in (0, 1):
        random = torch.Generator().manual_seed(0)
        tensors = [torch.randn(4, 6, generator=random) for _ in names]
        gradients = [[torch.randn(4, 6, generator=random) for _ in names] for _ in range(3)]
        halves = [[tensor.chunk(2, dim)[number] for tensor in tensors] for number in (0, 1)]
        try:
            expected = _stepped(factory, names, tensors, gradients)
            parts = [
                _stepped(factory, names, half, [[one.chunk(2, dim)[number] for one in step] for step in gradients])
                for number, half in enumerate(halves)
            ]
        except InvalidInput:
            raise
        except Exception as error:
            notify(
                f"optimizer cannot be checked on small tensors on the CPU: {type(error).__name__}: {error}. With this "
                "layout, it must compute an element's step from that element alone."
            )
            return
        if any(not torch.equal(one, torch.cat(pair, dim)) for one, *pair in zip(expected, *parts, strict=True)):
            raise InvalidInput(
                "optimizer computes an element's step from other elements of its tensor, as Adafactor, Muon and LARS "
                "do, and with this layout a worker has some of them; expected an optimizer such as AdamW, or "
                "layout=Replicated()."
            )


def has_momentum(factory: Any, names: Sequence[str] = ("weight",)) -> bool:
    """Whether the optimizer moves a weight of 0 that has the gradient 0, after a step with another gradient.

    Args:
        factory: called as ``Objective.optimizer``; ``check_elementwise`` has passed.
        names: names of parameters, for a factory that takes them.
    """
    parameters = [torch.nn.Parameter(torch.zeros(4, 6, device="cpu")) for _ in names]
    optimizer = open_optimizer(factory, zip(names, parameters, strict=True))
    for gradient in (1.0, 0.0):
        for parameter in parameters:
            parameter.data.zero_()
            parameter.grad = torch.full_like(parameter, gradient)
        optimizer.step()
    return any(bool(parameter.any()) for parameter in parameters)


def open_optimizer(factory: Any, named: Iterable[tuple[str, torch.nn.Parameter]]) -> torch.optim.Optimizer:
    """The optimizer of these parameters; raises InvalidInput if its ``step()`` requires a closure."""
    optimizer: torch.optim.Optimizer = factory([*named] if takes_names(factory) else [value for _, value in named])
    check_closure(optimizer)
    return optimizer


def check_closure(optimizer: torch.optim.Optimizer) -> None:
    """Raise InvalidInput if the optimizer's ``step()`` requires a closure."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise InvalidInput(
            f"optimizer is {type(optimizer).__name__}, whose step() requires a closure; expected an optimizer that "
            "steps on given gradients. For L-BFGS over all rows, set strategy=LBFGS()."
        )


def _stepped(
    factory: Any, names: Sequence[str], values: Sequence[torch.Tensor], steps: Sequence[Sequence[torch.Tensor]]
) -> list[torch.Tensor]:
    parameters = [torch.nn.Parameter(value.clone(memory_format=torch.contiguous_format)) for value in values]
    optimizer = open_optimizer(factory, zip(names, parameters, strict=True))
    for gradients in steps:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.clone(memory_format=torch.contiguous_format)
        optimizer.step()
    return [parameter.detach() for parameter in parameters]


def takes_names(factory: Any) -> bool:
    """Whether a factory takes ``named_parameters``, pairs of a name and a parameter, for parameter groups."""
    try:
        return next(iter(inspect.signature(factory).parameters), None) == "named_parameters"
    except ValueError:  # a class in C without a signature
        return False
