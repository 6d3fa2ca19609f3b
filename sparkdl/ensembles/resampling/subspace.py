"""Random subspaces: each member sees some of the features.

T. K. Ho, The random subspace method for constructing decision forests, IEEE PAMI 20(8), 1998.

Of ``n`` features a member sees ``k``, drawn without replacement:

    "sqrt"      k = floor(sqrt(n))
    "log2"      k = floor(log2(n))
    share       k = floor(share * n)            a float in (0, 1]
    number      k = number                      an integer of at least 1

and one where that is none. A PyTorch model is given the others as zeros, so that it has the same weights whatever it
sees: the features are all numbers of a row of all its floating-point inputs, one after the other. Other inputs, as the
indices of an embedding, it sees whole.
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
from sparkdl.ml.persistence.factory import describe, resolve
from sparkdl.training.objective import ModelFactory

Size = str | float | int

_NAMED = {"sqrt": math.sqrt, "log2": math.log2}
_EXPECTED = "expected None or 'all', 'sqrt', 'log2', a share above 0 and up to 1.0, or a whole number of at least 1"


def feature_subset(value: Any) -> Size | None:
    """What a Param says of the features that a member sees; None for all of them.

    Raises:
        InvalidInput: it is nothing that says so.
    """
    if value is None or value == "all":
        return None
    if isinstance(value, str):
        if value in _NAMED:
            return value
    elif isinstance(value, Integral) and not isinstance(value, bool):
        if int(value) >= 1:
            return int(value)
    elif isinstance(value, Real) and not isinstance(value, bool) and 0 < float(value) <= 1:
        return float(value)
    raise InvalidInput(f"featureSubset is {value!r}; {_EXPECTED}.")


@dataclass(frozen=True)
class Subspace:
    """Which features a member sees.

    Attributes:
        size: ``"sqrt"``, ``"log2"``, a share in (0, 1], or a number of at least 1.
        seed: of the choice, at least 0.

    Raises:
        InvalidInput: ``size`` is none of these.
    """

    size: Size
    seed: int

    def __post_init__(self) -> None:
        if feature_subset(self.size) is None:
            raise InvalidInput(f"a subspace has the size {self.size!r}; {_EXPECTED}. All features are no subspace.")

    def indices(self, features: int) -> list[int]:
        """The features, in ascending order; at least one.

        Args:
            features: how many there are.

        Raises:
            InvalidInput: there are fewer than ``size``, or none.
        """
        taken = self._taken(features)
        if not 1 <= taken <= features:
            raise InvalidInput(f"featureSubset is {self.size!r}, and the data has {features} features; {_EXPECTED}.")
        chosen = np.random.default_rng(self.seed).choice(features, taken, replace=False)
        return sorted(chosen.tolist())

    def _taken(self, features: int) -> int:
        if isinstance(self.size, str):
            return max(1, int(_NAMED[self.size](max(1, features))))
        if isinstance(self.size, float):
            return max(1, math.floor(round(self.size * features, 9)))  # 0.29 * 100 is a little less than 29
        return self.size


class Masked(nn.Module):
    """A module that is given zeros for the features it does not see.

    The masks are buffers, so that a saved model has them among its weights, and those of all members have the same
    shapes, so that members can be stacked.

    Args:
        module: what computes.
        masks: of each input, for the numbers of a row, True where they are seen; None for an input that is seen whole.
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
                # Not a product: NaN times 0 is NaN, and what is not seen must not be felt.
                each if name is None else torch.where(getattr(self, name), each, torch.zeros_like(each))
                for name, each in zip(self._names, inputs, strict=True)
            )
        )


def masks(subspace: Subspace, shapes: Signature) -> list[Tensor | None]:
    """Which numbers of a row a member sees, as a boolean tensor for each floating-point input, None for the others.

    Args:
        subspace: which features.
        shapes: of each input the shape of a row and the name of its dtype.

    Raises:
        InvalidInput: no input is floating-point, or there are fewer features than ``subspace`` takes.
    """
    sizes = [math.prod(shape) if _floating(name) else 0 for shape, name in shapes]
    if not any(sizes):
        raise InvalidInput(
            "featureSubset is set, and no input of the model is floating-point; expected numbers that a member may "
            "not see, or featureSubset=None."
        )
    seen = torch.zeros(sum(sizes), dtype=torch.bool)
    seen[subspace.indices(len(seen))] = True
    parts = torch.split(seen, sizes)
    return [
        part.reshape(shape).clone() if _floating(name) else None
        for part, (shape, name) in zip(parts, shapes, strict=True)
    ]


def masked(model: ModelFactory | nn.Module, subspace: Subspace, shapes: Signature) -> ModelFactory | nn.Module:
    """A model that sees some of its features; a factory where a factory is given.

    Args:
        model: a factory without arguments, or a module, which is shared by what is returned: whoever trains copies.
        subspace: which features it sees.
        shapes: of each of its inputs the shape of a row and the name of the dtype, such as ``([28, 28], "float32")``.

    Returns:
        What ``sparkdl.ml.persistence.factory.describe`` describes where it describes ``model``, and no argument of
        that is a tuple.

    Raises:
        InvalidInput: as ``masks``.
    """
    if isinstance(model, nn.Module):
        return Masked(model, masks(subspace, shapes))
    masks(subspace, shapes)  # on the driver, rather than in every task
    plain = [[list(shape), name] for shape, name in shapes]
    told: dict[str, Any] = {"size": subspace.size, "seed": subspace.seed, "shapes": plain}
    description = _description(model)
    return partial(masked_module, model, **told) if description is None else partial(masked_named, description, **told)


def masked_module(factory: ModelFactory, *, size: Size, seed: int, shapes: Signature) -> nn.Module:
    """What ``masked`` makes of a factory that has no name."""
    return Masked(factory(), masks(Subspace(size, seed), shapes))


def masked_named(description: dict[str, Any], *, size: Size, seed: int, shapes: Signature) -> nn.Module:
    """What ``masked`` makes of a factory by its name; ``sparkdl.ml.persistence.factory.resolve`` checks the name."""
    return masked_module(resolve(description), size=size, seed=seed, shapes=shapes)


def _description(factory: ModelFactory) -> dict[str, Any] | None:
    """A factory by name; None where that is not quite the same factory: a tuple would be a list in training already."""
    try:
        found = describe(factory)
    except InvalidInput:
        return None
    given = (list(factory.args), dict(factory.keywords)) if isinstance(factory, partial) else ([], {})
    return found if given == (found["args"], found["kwargs"]) else None


def _floating(name: str) -> bool:
    dtype: torch.dtype = getattr(torch, name)
    return dtype.is_floating_point
