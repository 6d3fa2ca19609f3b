"""Optimizers by name, class or factory, with a learning rate and other arguments."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from sparkdl.errors import InvalidInput

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


def takes_names(factory: Any) -> bool:
    """Whether a factory takes ``named_parameters``, pairs of a name and a parameter, for parameter groups."""
    try:
        return next(iter(inspect.signature(factory).parameters), None) == "named_parameters"
    except ValueError:  # a class in C without a signature
        return False
