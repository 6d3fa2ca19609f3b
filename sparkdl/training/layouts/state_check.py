"""Checks that a saved state fits the replica, and names the differences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from sparkdl.errors import InvalidInput
from sparkdl.training.loss import shapes

_TOLD = 5  # differences that a message lists


def kind_of(value: object) -> str | None:
    """Class name of an optimizer or a scheduler; None without one."""
    return None if value is None else type(value).__qualname__


def check_fit(
    module: Mapping[str, Any], optimizer: torch.optim.Optimizer, scheduler: Any, state: dict[str, Any]
) -> None:
    """Check that a state is of this architecture, optimizer and scheduler; torch would load some mismatches silently.

    Args:
        module: the module's current ``state_dict``.
        optimizer: the replica's optimizer.
        scheduler: the replica's scheduler; None without one.
        state: the saved ``"alike"`` of ``ReplicatedReplica.state_dict``, with the module's state as ``"module"``.

    Raises:
        InvalidInput: they differ; the message lists the differences.
    """
    found = [*_tensors(module, state["module"]), *_optimizers(optimizer, scheduler, state)]
    if found:
        more = f"; and {len(found) - _TOLD} more" if len(found) > _TOLD else ""
        raise InvalidInput(
            f"the saved state is of another training: {'; '.join(found[:_TOLD])}{more}. Resume with the model, "
            "optimizer and scheduler of the saved run, or start a new run elsewhere."
        )


def _tensors(own: Mapping[str, Any], saved: Mapping[str, Any]) -> Iterator[str]:
    for name in {**own, **saved}:
        if name not in saved:
            yield f"it lacks the model's {name}"
        elif name not in own:
            yield f"it has {name}, which the model lacks"
        elif isinstance(own[name], Tensor) and shapes(own[name]) != shapes(saved[name]):
            yield f"its {name} is {shapes(saved[name])}, the model's is {shapes(own[name])}"


def _optimizers(optimizer: torch.optim.Optimizer, scheduler: Any, state: dict[str, Any]) -> Iterator[str]:
    for name, own in (("optimizer", kind_of(optimizer)), ("scheduler", kind_of(scheduler))):
        if state["kinds"][name] != own:
            yield f"its {name} is {state['kinds'][name]}, this training's is {own}"
    saved = [len(group["params"]) for group in state["optimizer"]["param_groups"]]
    groups = [len(group["params"]) for group in optimizer.param_groups]
    if saved != groups:
        yield f"its optimizer has groups of {saved} parameters, this training's of {groups}"
