"""Which rows a member is given, and how often: a function of a seed and the rows' ids.

Row ``i`` has a random number of its own for each seed,

    u_i = xxHash64(i; xxHash64(seed; 42)) / 2^64                    in [0, 1), of its upper 53 bits

and is drawn ``k_i`` times,

    with replacement       k_i = the smallest k with u_i < P(X <= k),   X ~ Poisson(rate)
    without                k_i = 1 if u_i < rate, else 0
    folds                  k_i = 0 if floor(u_i * folds) == held, else 1

The Poisson draw is the bootstrap of data whose number nobody need know: N. Oza and S. Russell, Online bagging and
boosting, AISTATS 2001. A draw of ``n`` out of ``n`` rows has the same mean and, for many rows, the same distribution.

Every rule is there twice, for NumPy arrays in a task and as a Spark column, and both give the same numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import Column
from pyspark.sql import functions as F

from sparkdl.errors import InvalidInput

Ids = NDArray[np.int64]
Counts = NDArray[np.int64]

_PRIME = tuple(
    np.uint64(prime)
    for prime in (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
)
_FIRST = 42  # the seed of Spark's xxhash64()
_MOST = 100


class Draw(Protocol):
    """How often each row is drawn; a frozen dataclass."""

    @property
    def repeats(self) -> bool:
        """Whether a row may be drawn more than once."""

    @property
    def training_only(self) -> bool:
        """Whether it is of training rows alone, and validation rows stay as they are."""

    def counts(self, ids: Ids) -> Counts:
        """How often the rows of these ids are drawn, ``[rows]``."""

    def column(self, row_id: Column) -> Column:
        """The same as a Spark column of integers."""


@dataclass(frozen=True)
class Everything:
    """Each row once."""

    repeats = False
    training_only = False

    def counts(self, ids: Ids) -> Counts:
        """See ``Draw``."""
        return np.ones(len(ids), np.int64)

    def column(self, row_id: Column) -> Column:
        """See ``Draw``."""
        return F.lit(1)


@dataclass(frozen=True)
class Bootstrap:
    """Rows by chance.

    Attributes:
        rate: how often a row is drawn on average; at most 1 without replacement, and 100 with it.
        replace: whether a row may be drawn more than once.
        seed: of the draw.

    Raises:
        InvalidInput: the rate is none.
    """

    rate: float
    replace: bool
    seed: int

    training_only = True

    def __post_init__(self) -> None:
        # A larger one would be a Spark expression of so many terms that it cannot be analysed.
        most = _MOST if self.replace else 1
        if not 0 < self.rate <= most:
            how = "with" if self.replace else "without"
            raise InvalidInput(
                f"a draw {how} replacement has the rate {self.rate!r}; expected one above 0 and up to {most}."
            )

    @property
    def repeats(self) -> bool:
        """See ``Draw``."""
        return self.replace

    def counts(self, ids: Ids) -> Counts:
        """See ``Draw``."""
        found, chances = np.zeros(len(ids), np.int64), uniform(ids, self.seed)
        for bound in self._bounds():
            found += chances >= bound
        return found if self.replace else 1 - found

    def column(self, row_id: Column) -> Column:
        """See ``Draw``."""
        chance, found = uniform_column(row_id, self.seed), F.lit(0)
        for bound in self._bounds():
            found = found + F.when(chance >= F.lit(bound), 1).otherwise(0)
        return found if self.replace else F.lit(1) - found

    def _bounds(self) -> list[float]:
        """``P(X <= k)`` for k = 0, 1, ... up to where nothing of a chance is left."""
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
class Without:
    """Every row but those of one fold, each once.

    Attributes:
        held: the fold that is left out, from 0.
        folds: how many there are.
        seed: of the folds.
    """

    held: int
    folds: int
    seed: int

    repeats = False
    training_only = False  # who learns of a row when to stop has seen it

    def counts(self, ids: Ids) -> Counts:
        """See ``Draw``."""
        found: Counts = (np.floor(uniform(ids, self.seed) * self.folds) != self.held).astype(np.int64)
        return found

    def column(self, row_id: Column) -> Column:
        """See ``Draw``."""
        return F.when(fold_column(row_id, self.folds, self.seed) != self.held, 1).otherwise(0)


def fold_column(row_id: Column, folds: int, seed: int) -> Column:
    """The fold of each row, an integer from 0."""
    return F.floor(uniform_column(row_id, seed) * folds).cast("int")


def uniform(ids: Ids, seed: int) -> NDArray[np.float64]:
    """``u_i`` of rows."""
    hashed = _xxhash64(ids, _xxhash64(np.array([seed], np.int64), np.array([_FIRST], np.uint64)))
    found: NDArray[np.float64] = (hashed >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return found


def uniform_column(row_id: Column, seed: int) -> Column:
    """``u_i`` as a Spark column."""
    hashed = F.xxhash64(F.lit(seed).cast("bigint"), row_id.cast("bigint"))
    return F.shiftrightunsigned(hashed, 11).cast("double") * F.lit(2.0**-53)


def _xxhash64(values: Ids, seed: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """xxHash64 of 8 bytes each: https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md."""
    one, two, three, four, five = _PRIME
    with np.errstate(over="ignore"):
        lane = _rotated(values.view(np.uint64) * two, 31) * one
        found = _rotated((seed + five + np.uint64(8)) ^ lane, 27) * one + four
        found = (found ^ (found >> np.uint64(33))) * two
        found = (found ^ (found >> np.uint64(29))) * three
        return found ^ (found >> np.uint64(32))  # type: ignore[no-any-return]


def _rotated(values: NDArray[np.uint64], bits: int) -> NDArray[np.uint64]:
    return (values << np.uint64(bits)) | (values >> np.uint64(64 - bits))  # type: ignore[no-any-return]


def member_seed(seed: int, index: int) -> int:
    """The seed of a member, in [0, 2^31): no two of an ensemble have the same.

    Each step maps the 31-bit numbers one to one, and so the whole does, of ``index`` for any ``seed``.
    """
    mask = (1 << 31) - 1
    found = (_folded(seed) + index) & mask
    for factor, shift in ((0x2C1B3C6D, 15), (0x297A2D39, 13)):
        found = ((found ^ (found >> shift)) * factor) & mask
    return found ^ (found >> 16)


def _folded(seed: int) -> int:
    """A seed of any size as 31 bits, in which neighbours are far from one another."""
    [found] = _xxhash64(np.array([seed & ((1 << 63) - 1)], np.int64), np.array([_FIRST], np.uint64))
    return int(found) & ((1 << 31) - 1)
