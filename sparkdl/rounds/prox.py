"""Penalties on the weights, and their proximal operators.

For a penalty ``g`` and a step ``t`` the proximal operator is

    prox_{t g}(v) = argmin_z  g(z) + ||z - v||^2 / (2 t)

    L1          g(z) = l ||z||_1              soft(v, t l) = sign(v) max(|v| - t l, 0)
    L2          g(z) = l/2 ||z||^2            v / (1 + t l)
    ElasticNet  g(z) = l (a ||z||_1 + (1 - a)/2 ||z||^2)     soft(v, t l a) / (1 + t l (1 - a))
    Box         g(z) = 0 for low <= z <= high, else infinite min(max(v, low), high)

N. Parikh and S. Boyd, Proximal algorithms, Foundations and Trends in Optimization 1(3), 2014. The loss is a mean over
the rows, and ``l`` stands beside that: scikit-learn's ``alpha`` of Lasso and ElasticNet is ``l`` for half the squared
error, ``1 / (C rows)`` of LogisticRegression is ``l`` of L2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from sparkdl.errors import InvalidInput


class Prox(Protocol):
    """A penalty that is separable over the entries of a tensor."""

    @property
    def biases(self) -> bool:
        """Whether it is applied to biases as well; see ``penalised``."""

    def prox(self, v: Tensor, t: float) -> Tensor:
        """``prox_{t g}(v)``, of the same shape."""


@dataclass(frozen=True)
class L1:
    """``strength ||z||_1``: many entries become 0.

    Attributes:
        strength: ``l``, at least 0.
        biases: whether it is applied to biases as well.
    """

    strength: float
    biases: bool = False

    def __post_init__(self) -> None:
        _at_least_0("L1", "strength", self.strength)

    def prox(self, v: Tensor, t: float) -> Tensor:
        """See ``Prox``."""
        return _soft(v, t * self.strength)


@dataclass(frozen=True)
class L2:
    """``strength/2 ||z||^2``: weight decay.

    Attributes:
        strength: ``l``, at least 0.
        biases: whether it is applied to biases as well.
    """

    strength: float
    biases: bool = False

    def __post_init__(self) -> None:
        _at_least_0("L2", "strength", self.strength)

    def prox(self, v: Tensor, t: float) -> Tensor:
        """See ``Prox``."""
        return v / (1 + t * self.strength)


@dataclass(frozen=True)
class ElasticNet:
    """``strength (ratio ||z||_1 + (1 - ratio)/2 ||z||^2)``.

    Attributes:
        strength: ``l``, at least 0.
        ratio: ``a``, from 0 (L2) to 1 (L1).
        biases: whether it is applied to biases as well.
    """

    strength: float
    ratio: float = 0.5
    biases: bool = False

    def __post_init__(self) -> None:
        _at_least_0("ElasticNet", "strength", self.strength)
        if not 0 <= self.ratio <= 1:
            raise InvalidInput(f"ElasticNet has ratio={self.ratio!r}; expected 0 (L2) to 1 (L1).")

    def prox(self, v: Tensor, t: float) -> Tensor:
        """See ``Prox``."""
        return _soft(v, t * self.strength * self.ratio) / (1 + t * self.strength * (1 - self.ratio))


@dataclass(frozen=True)
class Box:
    """Entries stay between two bounds.

    Attributes:
        low: the smallest value.
        high: the largest value.
        biases: whether it is applied to biases as well.
    """

    low: float = float("-inf")
    high: float = float("inf")
    biases: bool = False

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise InvalidInput(f"Box has low={self.low!r} and high={self.high!r}; expected low to be at most high.")

    def prox(self, v: Tensor, t: float) -> Tensor:
        """See ``Prox``; ``t`` makes no difference."""
        return v.clamp(self.low, self.high)


def penalised(parameters: Mapping[str, Tensor], biases: bool) -> dict[str, bool]:
    """Name -> whether a penalty is applied to the parameter.

    A bias, which is not penalised unless asked, is a parameter with fewer than two dimensions: those of normalisation
    layers count as well, as is usual for weight decay.
    """
    return {name: biases or tensor.dim() > 1 for name, tensor in parameters.items()}


def _soft(v: Tensor, threshold: float) -> Tensor:
    return v.sign() * (v.abs() - threshold).clamp(min=0)


def _at_least_0(kind: str, name: str, value: float) -> None:
    if not value >= 0:
        raise InvalidInput(f"{kind} has {name}={value!r}; expected a number of at least 0.")
