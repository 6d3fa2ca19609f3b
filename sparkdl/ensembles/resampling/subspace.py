"""Random subspaces: each member sees some of the features.

T. K. Ho, The random subspace method for constructing decision forests, IEEE PAMI 20(8), 1998.

A member sees ``k`` of ``n`` features, drawn without replacement:

    "sqrt"      k = floor(sqrt(n))
    "log2"      k = floor(log2(n))
    share       k = floor(share * n)            a float in (0, 1]
    number      k = number                      an integer of at least 1

but at least one. A PyTorch model gets zeros for the other features, so its weights have the same shapes for any
subspace. Its features are all numbers of a row of its floating-point inputs, concatenated. It sees all of its other
inputs, such as indices of an embedding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparkdl.errors import InvalidInput
from sparkdl.ml.persistence.export import Signature
from sparkdl.training.objective import ModelFactory

Size = str | float | int

_NAMED = {"sqrt": math.sqrt, "log2": math.log2}
_EXPECTED = "expected None or 'all', 'sqrt', 'log2', a share above 0 and up to 1.0, or a whole number of at least 1"


def max_features(value: Any) -> Size | None:
    """Convert the value of ``maxFeatures``; None means all features.

    Raises:
        InvalidInput: the value is invalid.
    """
    if value is None or (isinstance(value, str) and value == "all"):
        return None
    if isinstance(value, str) and value in _NAMED:
        return value
    if isinstance(value, Real) and not isinstance(value, bool):
        if isinstance(value, Integral) and int(value) >= 1:
            return int(value)
        if not isinstance(value, Integral) and 0 < float(value) <= 1:
            return float(value)
    raise InvalidInput(f"maxFeatures is {value!r}; {_EXPECTED}.")


@dataclass(frozen=True)
class Subspace:
    """The features that a member sees.

    Attributes:
        size: ``"sqrt"``, ``"log2"``, a share in (0, 1], or a number of at least 1.
        seed: seed of the choice, at least 0.

    Raises:
        InvalidInput: ``size`` is invalid.
    """

    size: Size
    seed: int

    def __post_init__(self) -> None:
        if max_features(self.size) is None:
            raise InvalidInput(f"a subspace has the size {self.size!r}; {_EXPECTED}. All features are no subspace.")

    def indices(self, features: int) -> list[int]:
        """Indices of the features, ascending; at least one.

        Args:
            features: number of all features.

        Raises:
            InvalidInput: there are fewer features than ``size``, or none.
        """
        taken = self._taken(features)
        if not 1 <= taken <= features:
            raise InvalidInput(f"maxFeatures is {self.size!r}, and the data has {features} features; {_EXPECTED}.")
        chosen = np.random.default_rng(self.seed).choice(features, taken, replace=False)
        return sorted(chosen.tolist())

    def _taken(self, features: int) -> int:
        if isinstance(self.size, str):
            return max(1, int(_NAMED[self.size](max(1, features))))
        if isinstance(self.size, float):
            return max(1, math.floor(round(self.size * features, 9)))  # 0.29 * 100 is a little less than 29
        return self.size


class Masked(nn.Module):
    """Runs a module with zeros for the features that it does not see.

    The masks are buffers, so saved weights include them. They have the same shapes for all members, so members can be
    stacked.

    Args:
        module: the wrapped module.
        masks: boolean mask of each input's row, True for visible numbers; None for a fully visible input.
    """

    def __init__(self, module: nn.Module, masks: Sequence[Tensor | None]) -> None:
        super().__init__()
        self.module = module
        self._names = [None if mask is None else f"seen_{number}" for number, mask in enumerate(masks)]
        for name, mask in zip(self._names, masks, strict=True):
            if name is not None:
                self.register_buffer(name, mask)

    def forward(self, *inputs: Tensor) -> Any:
        """The module's output."""
        return self.module(
            *(
                # Not a product: NaN times 0 is NaN, so a hidden NaN would reach the module.
                each if name is None else torch.where(getattr(self, name), each, torch.zeros_like(each))
                for name, each in zip(self._names, inputs, strict=True)
            )
        )


def masks(subspace: Subspace, shapes: Signature) -> list[Tensor | None]:
    """Boolean mask of a row for each floating-point input; None for other inputs.

    Args:
        subspace: the visible features.
        shapes: row shape and dtype name of each input.

    Raises:
        InvalidInput: no input is floating-point, or there are fewer features than ``subspace.size``.
    """
    sizes = [math.prod(shape) if _floating(name) else 0 for shape, name in shapes]
    if not any(sizes):
        raise InvalidInput(
            "maxFeatures is set, and no input of the model is floating-point; expected numbers that a member may "
            "not see, or maxFeatures=None."
        )
    seen = torch.zeros(sum(sizes), dtype=torch.bool)
    seen[subspace.indices(len(seen))] = True
    parts = torch.split(seen, sizes)
    return [
        part.reshape(shape).clone() if _floating(name) else None
        for part, (shape, name) in zip(parts, shapes, strict=True)
    ]


def masked(model: ModelFactory | nn.Module, subspace: Subspace, shapes: Signature) -> ModelFactory | nn.Module:
    """A model that sees some of its features; for a factory, a factory.

    Args:
        model: a factory without arguments, or a module. The result shares the module; copy it before training.
        subspace: the visible features.
        shapes: row shape and dtype name of each input, such as ``([28, 28], "float32")``.

    Returns:
        A masked module or factory. The factory is saved by name if ``model`` is.

    Raises:
        InvalidInput: ``masks`` fails.
    """
    if isinstance(model, nn.Module):
        return Masked(model, masks(subspace, shapes))
    masks(subspace, shapes)  # on the driver, rather than in every task
    plain = [(list(shape), name) for shape, name in shapes]
    return partial(masked_module, model, size=subspace.size, seed=subspace.seed, shapes=plain)


def masked_module(factory: ModelFactory, *, size: Size, seed: int, shapes: Signature) -> nn.Module:
    """Build the masked module of a factory."""
    return Masked(factory(), masks(Subspace(size, seed), shapes))


def _floating(name: str) -> bool:
    dtype: torch.dtype = getattr(torch, name)
    return dtype.is_floating_point
