"""Checks that a saved state fits the replica, and names the differences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from sparkdl.errors import InvalidInput
from sparkdl.training.loss import shapes

_LISTED = 5  # differences that a message lists


def kind_of(value: object) -> str | None:
    """Class name of an optimizer or a scheduler; None without one."""
    return None if value is None else type(value).__qualname__


def check_fit(
    module: Mapping[str, Any], optimizer: torch.optim.Optimizer, scheduler: Any, state: dict[str, Any]
) -> None:
    """Raise InvalidInput with the differences if a state is of another architecture, optimizer or scheduler.

    torch would load some mismatches silently. ``state`` has the module's saved state as ``"module"``.
    """
    differences = [*_tensors(module, state["module"]), *_optimizers(optimizer, scheduler, state)]
    if differences:
        more = f"; and {len(differences) - _LISTED} more" if len(differences) > _LISTED else ""
        raise InvalidInput(
            f"the saved state is of another training: {'; '.join(differences[:_LISTED])}{more}. Resume with the model, "
            "optimizer and scheduler of the saved run, or start a new run elsewhere."
        )


def _tensors(current: Mapping[str, Any], saved: Mapping[str, Any]) -> Iterator[str]:
    for name in {**current, **saved}:
        if name not in saved:
            yield f"it lacks the model's {name}"
        elif name not in current:
            yield f"it has {name}, which the model lacks"
        elif name.endswith("_extra_state"):
            continue  # its shape may change
        elif isinstance(current[name], Tensor) and shapes(current[name]) != shapes(saved[name]):
            yield f"its {name} is {shapes(saved[name])}, the model's is {shapes(current[name])}"


def _optimizers(optimizer: torch.optim.Optimizer, scheduler: Any, state: dict[str, Any]) -> Iterator[str]:
    for name, kind in (("optimizer", kind_of(optimizer)), ("scheduler", kind_of(scheduler))):
        if state["kinds"][name] != kind:
            yield f"its {name} is {state['kinds'][name]}, this training's is {kind}"
    saved = [len(group["params"]) for group in state["optimizer"]["param_groups"]]
    groups = [len(group["params"]) for group in optimizer.param_groups]
    if saved != groups:
        yield f"its optimizer has groups of {saved} parameters, this training's of {groups}"
