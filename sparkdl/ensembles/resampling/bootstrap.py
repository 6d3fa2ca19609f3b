"""Sampling of rows for members: a function of a seed and the row ids.

For each seed, row ``i`` has the random number

    u_i = xxHash64(i; xxHash64(seed; 42)) / 2^64                    in [0, 1), of its upper 53 bits

and is drawn ``k_i`` times:

    with replacement       k_i = the smallest k with u_i < P(X <= k),   X ~ Poisson(rate)
    without                k_i = 1 if u_i < rate, else 0
    folds                  k_i = 0 if floor(u_i * folds) == fold, else 1

The Poisson draw needs no row count: N. Oza and S. Russell, Online bagging and boosting, AISTATS 2001. The bootstrap of
``n`` out of ``n`` rows has the same mean and, for many rows, the same distribution.

Each rule is written once, for NumPy arrays in tasks and for Spark columns. Only the hash has two versions: Spark's own
keeps plans lazy and in the JVM, and tasks have no Spark.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, cast

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import Column
from pyspark.sql import functions as F

from sparkdl.errors import InvalidInput
from sparkdl.io.fields import CheckedFields, Natural, Rule, Seed, Several

Ids = NDArray[np.int64]
Counts = NDArray[np.int64]

_PRIMES = np.array(
    [0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5], np.uint64
)
_FIRST = 42  # seed of Spark's xxhash64()
_MOST = 100  # Spark could not analyze the expression of a larger rate: it has a term per count


class Draw:
    """How often each row is drawn; subclasses are frozen dataclasses with a ``seed``."""

    seed: int
    training_only = False
    """Whether it samples only training rows; each validation row then appears once."""

    @property
    def repeats(self) -> bool:
        """Whether a row may be drawn more than once."""
        return False

    def counts(self, ids: Ids) -> Counts:
        """Number of draws of each row, int64 ``[rows]``."""
        return cast(Counts, self._times(uniform(ids, self.seed)))

    def column(self, row_id: Column) -> Column:
        """Number of draws of each row, as a Spark column of integers."""
        return cast(Column, self._times(uniform_column(row_id, self.seed)))

    def out_of_bag(self, row_id: Column) -> Column:
        """Whether each row is never drawn, as a Spark column of booleans."""
        return self.column(row_id) == 0

    def _times(self, chances: Any) -> Any:
        raise NotImplementedError


@dataclass(frozen=True)
class AllRows(Draw):
    """Each row once."""

    def counts(self, ids: Ids) -> Counts:
        """Ones."""
        return np.ones(len(ids), np.int64)

    def column(self, row_id: Column) -> Column:
        """The literal 1."""
        return F.lit(1)


@dataclass(frozen=True)
class Bootstrap(CheckedFields, Draw):
    """Random rows, each ``rate`` times on average: at most 1 without replacement, 100 with it."""

    rate: Annotated[float, Rule(f"above 0 and at most {_MOST}", lambda rate: 0 < rate <= _MOST)]
    replace: bool
    seed: Seed

    training_only = True

    def _check(self) -> None:
        if not self.replace and self.rate > 1:
            raise InvalidInput(f"a draw without replacement has the rate {self.rate}; expected at most 1.")

    @property
    def repeats(self) -> bool:
        """Equals ``replace``."""
        return self.replace

    def _times(self, chances: Any) -> Any:
        exceeded = sum(_integer(chances >= bound) for bound in self._bounds())
        return exceeded if self.replace else 1 - exceeded

    def out_of_bag(self, row_id: Column) -> Column:
        """Whether each row is never drawn, from the first bound alone: Spark evaluates all terms of a count."""
        exceeds = uniform_column(row_id, self.seed) >= self._bounds()[0]
        return ~exceeds if self.replace else exceeds

    def _bounds(self) -> list[float]:
        if not self.replace:
            return [self.rate]
        bounds, term, total, k = list[float](), math.exp(-self.rate), 0.0, 0
        while total + term > total or k <= self.rate:
            total += term
            bounds.append(total)
            k += 1
            term *= self.rate / k
        return bounds


@dataclass(frozen=True)
class LeaveFoldOut(CheckedFields, Draw):
    """Each row outside one fold once; validation rows too, since early stopping on a row of the fold would leak it."""

    fold: Natural
    folds: Several
    seed: Seed

    def _times(self, chances: Any) -> Any:
        floor: Any = F.floor if isinstance(chances, Column) else np.floor
        return _integer(floor(chances * self.folds) != self.fold)


def _integer(condition: Any) -> Any:
    return condition.cast("int") if isinstance(condition, Column) else condition.astype(np.int64)


def fold_column(row_id: Column, folds: int, seed: int) -> Column:
    """Fold of each row, an integer from 0."""
    return F.floor(uniform_column(row_id, seed) * folds).cast("int")


def uniform(ids: Ids, seed: int) -> NDArray[np.float64]:
    """``u_i`` of each row, float64 ``[rows]``."""
    hashed = _xxhash64(ids, _xxhash64(np.array([seed], np.int64), np.array([_FIRST], np.uint64)))
    return cast(NDArray[np.float64], (hashed >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def uniform_column(row_id: Column, seed: int) -> Column:
    """``u_i`` as a Spark column."""
    hashed = F.xxhash64(F.lit(seed).cast("bigint"), row_id.cast("bigint"))
    return F.shiftrightunsigned(hashed, 11).cast("double") * F.lit(2.0**-53)


def _xxhash64(values: Ids, seed: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """xxHash64 of each 8-byte value: https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md."""
    one, two, three, four, five = _PRIMES
    with np.errstate(over="ignore"):
        lane = _rotated(values.view(np.uint64) * two, 31) * one
        hashed = _rotated((seed + five + np.uint64(8)) ^ lane, 27) * one + four
        hashed = (hashed ^ (hashed >> np.uint64(33))) * two
        hashed = (hashed ^ (hashed >> np.uint64(29))) * three
        return hashed ^ (hashed >> np.uint64(32))  # type: ignore[no-any-return]


def _rotated(values: NDArray[np.uint64], bits: int) -> NDArray[np.uint64]:
    return (values << np.uint64(bits)) | (values >> np.uint64(64 - bits))  # type: ignore[no-any-return]


def member_seed(seed: int, index: int) -> int:
    """Seed of a member, in [0, 2^31), distinct for each index of an ensemble.

    Each step is a bijection of the 31-bit numbers, so for any ``seed`` the function is one of ``index``.
    """
    mask = (1 << 31) - 1
    # The hash gives neighboring seeds distant values.
    [hashed] = _xxhash64(np.array([seed & ((1 << 63) - 1)], np.int64), np.array([_FIRST], np.uint64))
    bits = (int(hashed) + index) & mask
    for factor, shift in ((0x2C1B3C6D, 15), (0x297A2D39, 13)):
        bits = ((bits ^ (bits >> shift)) * factor) & mask
    return bits ^ (bits >> 16)
