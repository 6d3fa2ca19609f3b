"""A model factory that starts from the weights of a trained model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from inspect import signature
from typing import TYPE_CHECKING, Any

from torch import nn

from sparkdl.errors import InvalidInput
from sparkdl.io.weights import pack, unpack
from sparkdl.training.objective.module_factory import new_module
from sparkdl.training.rng import kept_random_state

if TYPE_CHECKING:
    from sparkdl.ml.model import TorchModel


@dataclass(frozen=True)
class WarmStart:
    """A factory whose modules start from given weights, with a new optimizer.

        TorchClassifier(model=WarmStart.of(earlier, partial(Net, channels=24)), ...)

    The weights keep their precision until training converts them to its own, whatever the factory's precision is.
    The saved form of the trained model names ``factory``, and needs neither this object nor the earlier model.

    Attributes:
        factory: makes a module of the same architecture, or is one.
        weights: safetensors bytes.
        digest: hash of the weights, for ``config.json``; computed, not an argument.
    """

    factory: Callable[..., nn.Module]
    weights: bytes = field(repr=False)
    digest: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", sha256(self.weights).hexdigest()[:16])

    @classmethod
    def of(cls, model: TorchModel, factory: Callable[..., nn.Module]) -> WarmStart:
        """Start from a model's weights. Of a factory that needs the estimator's ``modelArgs``, ``fit`` checks them.

        Raises:
            InvalidInput: the names or shapes of the weights differ from those of the factory's modules.
        """
        start = cls(factory, pack(model.module()))
        if not isinstance(factory, nn.Module):
            try:
                with suppress(ValueError):  # a builtin has no signature
                    signature(factory).bind()
            except TypeError:  # it needs arguments
                return start
        return start.called_with({})

    def called_with(self, arguments: dict[str, Any]) -> WarmStart:
        """The start whose factory gets ``arguments``; raises InvalidInput unless it takes them and the weights fit."""
        start = replace(self, factory=partial(self.factory, **arguments)) if arguments else self
        try:
            with kept_random_state():
                start()
        except TypeError as error:
            raise InvalidInput(f"the factory of WarmStart fails with modelArgs={arguments}: {error}.") from error
        return start

    def __call__(self) -> nn.Module:
        """Make a module with the weights; of a module without parameters, see ``new_module``, none are read.

        Raises:
            InvalidInput: they do not fit.
        """
        module = new_module(self.factory)
        if not any(parameter.is_meta for parameter in module.parameters()):
            unpack(self.weights, module)
        return module
