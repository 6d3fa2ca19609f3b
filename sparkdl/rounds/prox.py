"""Penalties on the weights, and their proximal operators.

For a penalty ``g`` and a step ``t`` the proximal operator is

    prox_{t g}(v) = argmin_z  g(z) + ||z - v||^2 / (2 t)

    L1          g(z) = l ||z||_1              soft(v, t l) = sign(v) max(|v| - t l, 0)
    L2          g(z) = l/2 ||z||^2            v / (1 + t l)
    ElasticNet  g(z) = l (a ||z||_1 + (1 - a)/2 ||z||^2)     soft(v, t l a) / (1 + t l (1 - a))
    Box         g(z) = 0 for low <= z <= high, else infinite min(max(v, low), high)

N. Parikh and S. Boyd, Proximal algorithms, Foundations and Trends in Optimization 1(3), 2014. The penalty is added to
the mean loss. If that is half the squared error, ``l`` is scikit-learn's ``alpha`` of Lasso and ElasticNet. For
LogisticRegression, ``l`` of L2 is ``1 / (C rows)``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Protocol

from torch import Tensor

from sparkdl.errors import InvalidInput
from sparkdl.io.fields import CheckedFields, NonNegative, Rule, within


class Prox(Protocol):
    """A penalty that is separable over a tensor's entries."""

    @property
    @abstractmethod
    def penalize_bias(self) -> bool:
        """Whether biases are penalised as well; see ``penalised``."""

    @abstractmethod
    def prox(self, v: Tensor, t: float) -> Tensor:
        """``prox_{t g}(v)``, of the same shape."""


@dataclass(frozen=True)
class _Strength(CheckedFields):
    strength: NonNegative
    penalize_bias: bool = False


@dataclass(frozen=True)
class L1(_Strength):
    """``strength ||z||_1``, which sets many entries to 0.

    Attributes:
        strength: ``l``, at least 0.
        penalize_bias: whether biases are penalised as well.
    """

    def prox(self, v: Tensor, t: float) -> Tensor:
        """``soft(v, t l)``."""
        return _soft(v, t * self.strength)


@dataclass(frozen=True)
class L2(_Strength):
    """``strength/2 ||z||^2``: weight decay.

    Attributes:
        strength: ``l``, at least 0.
        penalize_bias: whether biases are penalised as well.
    """

    def prox(self, v: Tensor, t: float) -> Tensor:
        """``v / (1 + t l)``."""
        return v / (1 + t * self.strength)


@dataclass(frozen=True)
class ElasticNet(CheckedFields):
    """``strength (ratio ||z||_1 + (1 - ratio)/2 ||z||^2)``.

    Attributes:
        strength: ``l``, at least 0.
        ratio: ``a``, from 0 (L2) to 1 (L1).
        penalize_bias: whether biases are penalised as well.
    """

    strength: NonNegative
    ratio: Annotated[float, within(0.0, 1.0)] = 0.5
    penalize_bias: bool = False

    def prox(self, v: Tensor, t: float) -> Tensor:
        """``soft(v, t l a) / (1 + t l (1 - a))``."""
        return _soft(v, t * self.strength * self.ratio) / (1 + t * self.strength * (1 - self.ratio))


@dataclass(frozen=True)
class Box(CheckedFields):
    """Bounds on the entries.

    Attributes:
        low: the smallest value.
        high: the largest value.
        penalize_bias: whether biases are bounded as well.
    """

    low: Annotated[float, Rule("a number", lambda number: True)] = float("-inf")
    high: Annotated[float, Rule("a number", lambda number: True)] = float("inf")
    penalize_bias: bool = False

    def _check(self) -> None:
        if not self.low <= self.high:
            raise InvalidInput(f"Box has low={self.low!r} and high={self.high!r}; expected low to be at most high.")

    def prox(self, v: Tensor, t: float) -> Tensor:
        """``min(max(v, low), high)``, for any ``t``."""
        return v.clamp(self.low, self.high)


def penalised(parameters: Mapping[str, Tensor], biases: bool) -> dict[str, bool]:
    """Name -> whether a penalty applies to the parameter.

    A bias is a parameter with fewer than two dimensions, as is usual for weight decay; normalisation layers count.
    """
    return {name: biases or tensor.dim() > 1 for name, tensor in parameters.items()}


def _soft(v: Tensor, threshold: float) -> Tensor:
    return v.sign() * (v.abs() - threshold).clamp(min=0)
