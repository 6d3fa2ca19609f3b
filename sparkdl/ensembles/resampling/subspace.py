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
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor, nn

from sparkdl.errors import InvalidInput
from sparkdl.io.fields import CheckedFields, Count, Natural, Share, checked, one_of
from sparkdl.serving.format.export import Signature
from sparkdl.training.objective.module_factory import ModelFactory

_NAMED = {"sqrt": math.sqrt, "log2": math.log2}
Size = Annotated[str, one_of(_NAMED)] | Count | Share


def max_features(value: Any) -> str | float | int | None:
    """Convert the value of ``maxFeatures``; None means all features."""
    if value is None or (isinstance(value, str) and value == "all"):
        return None
    chosen: str | float | int = checked(value, Size | None, "maxFeatures")
    return chosen


@dataclass(frozen=True)
class Subspace(CheckedFields):
    """The features that a member sees: ``"sqrt"``, ``"log2"``, a share or a number, drawn with a seed."""

    size: Size
    seed: Natural

    def indices(self, features: int) -> list[int]:
        """Ascending indices of the visible ones among so many features."""
        if isinstance(self.size, str):
            taken = max(1, int(_NAMED[self.size](max(1, features))))
        elif isinstance(self.size, float):
            taken = max(1, math.floor(round(self.size * features, 9)))  # 0.29 * 100 is a little less than 29
        else:
            taken = self.size
        if not 1 <= taken <= features:
            raise InvalidInput(
                f"maxFeatures is {self.size!r}, and the data has {features} features; expected at most all."
            )
        chosen = np.random.default_rng(self.seed).choice(features, taken, replace=False)
        return sorted(chosen.tolist())


class Masked(nn.Module):
    """Runs a module with zeros for the features that it does not see.

    A mask is True for the visible numbers of an input's row; None shows the input. Masks are buffers, so saved weights
    include them. They have the same shapes for all members, so members can be stacked.
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
        # Not a product: NaN times 0 is NaN, so a hidden NaN would reach the module.
        seen = [
            tensor if name is None else torch.where(getattr(self, name), tensor, torch.zeros_like(tensor))
            for name, tensor in zip(self._names, inputs, strict=True)
        ]
        return self.module(*seen)


def masks(subspace: Subspace, shapes: Signature) -> list[Tensor | None]:
    """Boolean mask of a row for each floating-point input; None for other inputs."""
    sizes = [math.prod(shape) if _floating(name) else 0 for shape, name in shapes]
    if not any(sizes):
        raise InvalidInput(
            "maxFeatures is set, and no input of the model is floating-point; expected numbers that a member may "
            "not see, or maxFeatures=None."
        )
    flat = torch.zeros(sum(sizes), dtype=torch.bool)
    flat[subspace.indices(len(flat))] = True
    return [
        mask.reshape(shape).clone() if _floating(name) else None
        for mask, (shape, name) in zip(torch.split(flat, sizes), shapes, strict=True)
    ]


def masked(model: ModelFactory | nn.Module, subspace: Subspace, shapes: Signature) -> ModelFactory | nn.Module:
    """A model that sees some of its features; for a factory, a factory.

    The result shares a given module; copy it before training. The factory is saved by name if ``model`` is. ``shapes``
    has the row shape and dtype name of each input, such as ``([28, 28], "float32")``.
    """
    if isinstance(model, nn.Module):
        return Masked(model, masks(subspace, shapes))
    masks(subspace, shapes)  # on the driver, rather than in every task
    return MaskedFactory(model, subspace, tuple((tuple(shape), name) for shape, name in shapes))


@dataclass(frozen=True)
class MaskedFactory:
    """Factory of the masked module of another factory; ``shapes`` as in ``masked``."""

    factory: ModelFactory
    subspace: Subspace
    shapes: tuple[tuple[tuple[int, ...], str], ...]

    def __call__(self) -> nn.Module:
        """Make the module."""
        return Masked(self.factory(), masks(self.subspace, [(list(shape), name) for shape, name in self.shapes]))


def _floating(name: str) -> bool:
    dtype: torch.dtype = getattr(torch, name)
    return dtype.is_floating_point
