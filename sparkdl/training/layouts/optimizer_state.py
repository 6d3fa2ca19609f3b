"""An optimizer's state by the names of its parameters, so that workers which hold other parameters can read it.

``optimizer.state_dict()`` numbers the parameters. Here ``"state"`` has a dict of each parameter by name, and the
``"params"`` of a group are names beside the group's options. A sparse tensor, such as the momentum that
``torch.optim.SGD`` makes of sparse gradients, becomes a dense one, which steps on them as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer


def state_by_name(optimizer: Optimizer, named: Mapping[str, nn.Parameter]) -> dict[str, Any]:
    """The optimizer's state; dense tensors are live, and ``named`` are the module's parameters."""
    groups, state = _names(optimizer, named), optimizer.state_dict()
    names = dict(enumerate(name for group in groups for name in group))
    state["state"] = {names.get(number, number): _dense(values) for number, values in state["state"].items()}
    state["param_groups"] = [
        options | {"params": group} for options, group in zip(state["param_groups"], groups, strict=True)
    ]
    return state


def load_by_name(optimizer: Optimizer, named: Mapping[str, nn.Parameter], state: Mapping[str, Any]) -> None:
    """Restore a state from ``state_by_name`` of an optimizer with the same groups."""
    numbers = {name: number for number, name in enumerate(name for group in _names(optimizer, named) for name in group)}
    groups = [
        options | {"params": [numbers[name] for name in group]}
        for options, group in zip(state["param_groups"], _names(optimizer, named), strict=True)
    ]
    values = {numbers.get(name, name): values for name, values in state["state"].items()}
    optimizer.load_state_dict({**state, "state": values, "param_groups": groups})


def differences(optimizer: Optimizer, named: Mapping[str, nn.Parameter], state: Mapping[str, Any]) -> Iterator[str]:
    """What keeps the optimizer from loading a state of ``state_by_name``, as parts of a sentence."""
    saved, current = [group["params"] for group in state["param_groups"]], _names(optimizer, named)
    if [*map(len, saved)] != [*map(len, current)]:
        yield f"its optimizer has groups of {[*map(len, saved)]} parameters, this training's of {[*map(len, current)]}"
    elif [*map(sorted, saved)] != [*map(sorted, current)]:
        yield "its optimizer's groups have other parameters than this training's"


def _dense(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _dense(part) for name, part in value.items()}
    return value.to_dense() if isinstance(value, Tensor) and value.is_sparse else value


def _names(optimizer: Optimizer, named: Mapping[str, nn.Parameter]) -> list[list[str]]:
    names, groups = {id(parameter): name for name, parameter in named.items()}, optimizer.param_groups
    # An optimizer may have a parameter that the module lacks.
    return [
        [names.get(id(one), f"parameter {place} of group {number}") for place, one in enumerate(group["params"])]
        for number, group in enumerate(groups)
    ]
