"""A model factory that begins with the weights of a model that was trained before."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Protocol

from torch import nn

from sparkdl.errors import InvalidInput
from sparkdl.io.weights import pack, unpack

__all__ = ["WarmStart"]


class Trained(Protocol):
    """What has been trained, as a ``TorchModel``."""

    def module(self) -> nn.Module:
        """The module with its weights."""


@dataclass(frozen=True)
class WarmStart:
    """A factory whose modules have given weights: training starts from them, with an optimizer that starts anew.

        TorchClassifier(model=WarmStart.of(earlier, partial(Net, channels=24)), ...)

    A model that is trained from it is saved as one of ``factory``: it needs neither this nor the earlier model.

    Attributes:
        factory: makes a module of the same architecture, or is one.
        weights: safetensors bytes.
        digest: of the weights, and not to be given: what the start is known by in ``config.json``.
    """

    factory: Callable[[], nn.Module]
    weights: bytes = field(repr=False)
    digest: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", sha256(self.weights).hexdigest()[:16])

    @classmethod
    def of(cls, model: Trained, factory: Callable[[], nn.Module]) -> WarmStart:
        """Begin with a model's weights.

        Raises:
            InvalidInput: the factory's modules have other weights, by their names or shapes.
        """
        start = cls(factory, pack(model.module()))
        start()
        return start

    def __call__(self) -> nn.Module:
        """A module with the weights.

        Raises:
            InvalidInput: they do not fit.
        """
        module = copy.deepcopy(self.factory) if isinstance(self.factory, nn.Module) else self.factory()
        if not isinstance(module, nn.Module):
            raise InvalidInput(f"the factory returned {type(module).__name__}; expected a torch.nn.Module.")
        unpack(self.weights, module)
        return module
