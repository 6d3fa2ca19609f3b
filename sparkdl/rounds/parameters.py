"""What is trained of a model's weights, as one vector."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from sparkdl.training.objective import Objective

Weights = dict[str, Tensor]


def start(objective: Objective, seed: int) -> tuple[Weights, list[str]]:
    """A new model's ``state_dict``, and the names of what is trained in it, tied parameters once."""
    with seeded(seed):
        module = objective.build()
    return weights_of(module), list(trainable(module))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Torch's random numbers on the CPU begin at a seed; afterwards they go on as if nothing had been."""
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would seed every kind of device, which takes milliseconds and is not put back.
        torch.default_generator.manual_seed(seed)
        yield


def weights_of(module: nn.Module) -> Weights:
    """A copy of the module's ``state_dict``, tied parameters once."""
    others = tied(module)
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items() if name not in others}


def module_of(objective: Objective, weights: Mapping[str, Tensor]) -> nn.Module:
    """A module with these weights, a copy of them."""
    with torch.random.fork_rng(devices=[]):
        module = objective.build()
    load(module, weights)
    return module


def load(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Set a module's weights, tied parameters to that of their first name."""
    module.load_state_dict({**weights, **{name: weights[first] for name, first in tied(module).items()}})


def tied(module: nn.Module) -> dict[str, str]:
    """The other names of parameters that have several -> the first."""
    first: dict[int, str] = {}
    every = module.named_parameters(remove_duplicate=False)
    return {name: first[id(each)] for name, each in every if first.setdefault(id(each), name) != name}


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """Name -> parameter that is trained, in the order of the module."""
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def flatten(weights: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
    """The named tensors one behind the other."""
    return torch.cat([weights[name].detach().flatten() for name in names])


def unflatten(flat: Tensor, weights: Mapping[str, Tensor], names: Sequence[str]) -> Weights:
    """The weights with the values of ``flat`` under the names, and the others as they are."""
    found, first = dict(weights), 0
    for name in names:
        shape, size = weights[name].shape, weights[name].numel()
        found[name] = flat[first : first + size].view(shape).clone()
        first += size
    return found


def gradient_of(parameters: Mapping[str, nn.Parameter]) -> Tensor:
    """The gradients one behind the other; of what the loss does not depend on, zeros."""
    return torch.cat(
        [(torch.zeros_like(each) if each.grad is None else each.grad).flatten() for each in parameters.values()]
    )


def rest(weights: Mapping[str, Tensor], names: Sequence[str]) -> Weights:
    """What is not trained and can be averaged: floating-point buffers, and parameters that are frozen.

    Args:
        weights: those of the state, which are the same for all parts: so all find the same names.
        names: of what is trained.
    """
    others = {name: tensor for name, tensor in weights.items() if name not in names and tensor.is_floating_point()}
    return averaged(others)


def averaged(weights: Mapping[str, Tensor]) -> Weights:
    """The weights without tensors that are not finite: a mask of -inf has no mean, and stays as it is."""
    return {name: tensor for name, tensor in weights.items() if bool(torch.isfinite(tensor).all())}
