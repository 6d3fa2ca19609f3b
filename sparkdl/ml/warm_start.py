"""A model factory that starts from the weights of a trained model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from inspect import signature
from typing import TYPE_CHECKING, Any

from torch import nn

from sparkdl.errors import InvalidInput
from sparkdl.io.weights import adopt, pack, unpack
from sparkdl.io.weights_file import Weights, WeightsFile, read_weights
from sparkdl.training.layouts.table import without_rows
from sparkdl.training.layouts.table_files import files_of, weights_of_tables
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
        weights: safetensors bytes, or the files of a model with large tables. A worker of a gang reads its own rows.
        digest: hash of the weights, for ``config.json``; computed, not an argument.
    """

    factory: Callable[..., nn.Module]
    weights: Weights = field(repr=False)
    digest: str = ""

    def __post_init__(self) -> None:
        if isinstance(weights := self.weights, WeightsFile):
            parts = [weights, *(file for files in weights.tables.values() for file in files)]
            weights = "".join(part.sha256 for part in parts).encode()
        object.__setattr__(self, "digest", sha256(weights).hexdigest()[:16])

    @classmethod
    def of(cls, model: TorchModel, factory: Callable[..., nn.Module]) -> WarmStart:
        """Start from a model's weights. Of a factory that needs the estimator's ``modelArgs``, ``fit`` checks them.

        Raises:
            InvalidInput: the names or shapes of the weights differ from those of the factory's modules.
        """
        weights = model._trained.weights
        start = cls(factory, weights if isinstance(weights, WeightsFile) and weights.tables else pack(model.module()))
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
            with kept_random_state(), without_rows() if isinstance(self.weights, WeightsFile) else nullcontext():
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
        if any(parameter.is_meta for parameter in module.parameters()):
            return module
        if isinstance(self.weights, bytes):
            unpack(self.weights, module)
            return module
        for table, files in files_of(module, self.weights.tables):
            table.weight.data = table.weight.data.to(files.dtype)
            table.read(files)
        adopt(module, read_weights(self.weights) | weights_of_tables(module))
        return module
