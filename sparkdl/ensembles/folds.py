"""Folds: members that are trained on all rows but those of a fold, and judged by that fold's.

With folds k = 0 ... K - 1, bases b = 0 ... B - 1, and the random number u_i of row i (``draws.py``),

    fold(i) = floor(u_i K)           member(b, k) = b (K + 1) + k          member(b, K): of base b, on all rows

Member ``(b, k)`` is trained on the rows i with fold(i) != k and predicts those with fold(i) = k, so that each row is
predicted once for each base, by a model that has not seen it. Which fold a row is in depends on its id and the seed
alone. Where ids are numbers that Spark gives rows as they come, the numbered rows are persisted while members train,
and looked at again after it: a row whose number changed would be predicted by a model that has seen it.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.ml import Estimator
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sparkdl.ensembles.base_learner import changed
from sparkdl.ensembles.declarations import FoldCountParams
from sparkdl.ensembles.members.member import Member, Models, Plan, Rows
from sparkdl.ensembles.params import EnsembleParams
from sparkdl.ensembles.resampling.bootstrap import Without, fold_column, member_seed
from sparkdl.errors import InvalidInput
from sparkdl.spark.columns import named


@dataclass(frozen=True)
class Folds:
    """Which rows are in which fold, and the members that they make.

    Attributes:
        count: of the folds, at least 2.
        seed: of the folds and of the members.
    """

    count: int
    seed: int

    def held(self, rows: Rows, fold: int) -> DataFrame:
        """The rows of a fold."""
        return rows.frame.where(fold_column(named(rows.row_id), self.count, self.seed) == fold)

    def index(self, base: int, fold: int | None = None) -> int:
        """The number of a member: of a fold, or with None of the one that is trained on all rows."""
        return base * (self.count + 1) + (self.count if fold is None else fold)

    def member(self, bases: Sequence[Estimator[Any]], base: int, fold: int | None = None) -> Member:
        """A member as ``index`` numbers it, with a seed of its own."""
        number = self.index(base, fold)
        estimator = seeded(bases[base], self.seed, number)
        return Member(number, estimator) if fold is None else Member(number, estimator, self.without(fold))

    def without(self, fold: int) -> Without:
        """All rows but those of a fold."""
        return Without(fold, self.count, self.seed)

    def members(self, bases: Sequence[Estimator[Any]]) -> list[Member]:
        """The members of all folds of all bases, those of the first base first."""
        return [self.member(bases, base, fold) for base in range(len(bases)) for fold in range(self.count)]

    def checked(self, rows: Rows, label: str | None = None) -> Tally:
        """Count the rows of the folds, in one job.

        Args:
            rows: all rows.
            label: the column of class labels; None where there is none.

        Raises:
            InvalidInput: there are fewer rows than folds, a fold has none, or the labels are all of one class.
        """
        fold = fold_column(named(rows.row_id), self.count, self.seed).alias("fold")
        labels = F.lit(None) if label is None else named(label)
        ends = [end(labels.cast("double")) for end in (F.min, F.max)]
        found = {each[0]: each[1:] for each in rows.frame.groupBy(fold).agg(F.count("*"), *ends).collect()}
        total = sum(count for count, *_ in found.values())
        empty = [fold for fold in range(self.count) if fold not in found]
        if total < self.count:
            raise InvalidInput(f"there are {total} rows for folds={self.count}; expected a row for each fold at least.")
        if empty:
            raise InvalidInput(
                f"of folds={self.count} the folds {empty} have none of the {total} rows, which are put there by chance;"
                " set fewer folds, or another seed."
            )
        lows, highs = ([each[end] for each in found.values() if each[end] is not None] for end in (1, 2))
        if lows and min(lows) == max(highs):
            raise InvalidInput(f"all labels in {label!r} are {min(lows):g}; expected rows of two classes at least.")
        counts = tuple(found[fold][0] for fold in range(self.count))
        return Tally(counts, int(max(highs)) + 1 if highs else None)


@dataclass(frozen=True)
class Tally:
    """What a look at the rows has found.

    Attributes:
        rows: of each fold.
        classes: one more than the largest label; None where there are no labels of classes.
    """

    rows: tuple[int, ...]
    classes: int | None


def seeded(base: Estimator[Any], seed: int, index: int) -> Estimator[Any]:
    """A copy of a base with the seed of a member, where it has one."""
    return changed(base, seed=member_seed(seed, index))


def told(*fits: Models) -> dict[str, Any]:
    """What a report says of members: the indices of those ``trained`` and ``restored``."""
    return {
        "trained": sorted(index for fit in fits for index in fit.trained),
        "restored": sorted(index for fit in fits for index in fit.restored),
    }


class FoldParams(FoldCountParams, EnsembleParams):
    """What the ensembles that work with folds have in common."""

    _judged_by_rows = True

    @contextlib.contextmanager
    def running(self, dataset: DataFrame) -> Iterator[tuple[Rows, Plan]]:
        """See ``EnsembleParams``."""
        if self.getDisagreementCol():
            warnings.warn(
                f"disagreementCol is {self.getDisagreementCol()!r}; a {type(self).__name__} ignores it: its members do "
                "not vote.",
                stacklevel=5,
            )
        with super().running(dataset) as found:
            yield found
