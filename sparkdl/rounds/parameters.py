"""A model's trainable parameters as one vector, and its other weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from sparkdl.data.columns import listed
from sparkdl.errors import InvalidInput
from sparkdl.training.layouts.table import tables_of
from sparkdl.training.objective.objective import Objective
from sparkdl.training.rng import forked
from sparkdl.training.strategies.buckets import views

Weights = dict[str, Tensor]


def start(objective: Objective, seed: int) -> tuple[Weights, list[str]]:
    """A new model's ``state_dict`` and the names of its trainable parameters, tied parameters once."""
    with seeded(seed):
        module = objective.build(warn=True)
    if tables := tables_of(module):
        raise InvalidInput(
            f"the model has a Table, {listed([*tables])}, which gangs alone train; expected AllReduce()."
        )
    return weights_of(module), list(trainable(module))


@contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed torch's CPU generator for the block, and a GPU's; restore their states afterwards."""
    with forked(device):
        # torch.manual_seed would take milliseconds to seed all devices, and their states would not be restored.
        torch.default_generator.manual_seed(seed)
        if device is not None and device.type == "cuda":
            torch.cuda.default_generators[device.index].manual_seed(seed)
        yield


def weights_of(module: nn.Module) -> Weights:
    """A copy of the module's ``state_dict`` on the CPU, tied parameters once; InvalidInput if it has extra state."""
    others, state = tied(module), module.state_dict()
    if extra := [name for name in state if name.endswith("_extra_state")]:
        raise InvalidInput(
            f"{type(module).__name__} has extra state, {listed(extra)}, which rounds cannot average; expected a "
            "strategy of a gang, such as AllReduce(), or buffers."
        )
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in state.items() if name not in others}


def module_of(objective: Objective, weights: Mapping[str, Tensor]) -> nn.Module:
    """A new module with a copy of these weights, on the objective's device."""
    with forked():
        module = objective.build()
    load(module, weights)
    return module


def load(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load weights into a module; tied parameters share the entry of their first name."""
    others = {name: weights[first] for name, first in tied(module).items() if first in weights}
    module.load_state_dict({**weights, **others})


def tied(module: nn.Module) -> dict[str, str]:
    """Further names of tied parameters -> their first name."""
    first: dict[int, str] = {}
    named = module.named_parameters(remove_duplicate=False)
    return {name: first[id(tensor)] for name, tensor in named if first.setdefault(id(tensor), name) != name}


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """Name -> trainable parameter, in the module's order."""
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def flatten(weights: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
    """The named tensors, concatenated, ``[n]``."""
    return torch.cat([weights[name].detach().flatten() for name in names])


def unflatten(flat: Tensor, weights: Mapping[str, Tensor], names: Sequence[str]) -> Weights:
    """A copy of ``weights`` in which the named tensors have the values of ``flat``, ``[n]``."""
    tensors = views(flat, [weights[name].shape for name in names])
    return {**weights, **{name: tensor.clone() for name, tensor in zip(names, tensors, strict=True)}}


def gradient_of(parameters: Mapping[str, nn.Parameter]) -> Tensor:
    """The concatenated gradients on the CPU, ``[n]``; zeros for parameters without one."""
    gradients = (torch.zeros_like(value) if value.grad is None else value.grad for value in parameters.values())
    return torch.cat([gradient.flatten() for gradient in gradients]).cpu()


def rest(weights: Mapping[str, Tensor], names: Sequence[str]) -> Weights:
    """Weights that are averaged but not trained: frozen parameters, and buffers of real or complex numbers."""
    return averaged({name: value for name, value in weights.items() if name not in names and is_inexact(value)})


def is_inexact(value: Tensor) -> bool:
    """Whether a tensor holds real or complex numbers, which have a mean of their own dtype; integers are rounded."""
    return value.is_floating_point() or value.is_complex()


def averaged(weights: Mapping[str, Tensor]) -> Weights:
    """The weights without tensors that are not finite: a mask of -inf has no mean and stays unchanged."""
    return {name: tensor for name, tensor in weights.items() if bool(torch.isfinite(tensor).all())}
