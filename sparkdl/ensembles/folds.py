"""Cross-validation folds and the members trained on them.

With folds k = 0 ... K - 1, bases b = 0 ... B - 1, and the random number u_i of row i (``resampling/bootstrap.py``),

    fold(i) = floor(u_i K)           member(b, k) = b (K + 1) + k          member(b, K): base b on all rows

Member ``(b, k)`` trains on the rows with fold(i) != k and predicts the rows with fold(i) = k. Each base thus predicts
each row once, with a model that never saw it. The fold of a row depends on its id and the seed alone. If Spark numbers
the rows, ``fit`` persists them while members train and verifies the numbers afterwards: a renumbered row could reach a
model that saw it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.ml import Estimator
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sparkdl.ensembles.base_learner import changed
from sparkdl.ensembles.declarations import FoldCountParams
from sparkdl.ensembles.members.member import Member, Models, Rows
from sparkdl.ensembles.params import EnsembleParams
from sparkdl.ensembles.resampling.bootstrap import LeaveFoldOut, fold_column, member_seed
from sparkdl.errors import InvalidInput
from sparkdl.spark.columns import col


@dataclass(frozen=True)
class Folds:
    """Assignment of rows to folds, and the members of each fold.

    Attributes:
        count: number of folds, at least 2.
        seed: seed of the folds and the members.
    """

    count: int
    seed: int

    def held(self, rows: Rows, fold: int) -> DataFrame:
        """The rows of a fold."""
        return rows.frame.where(fold_column(col(rows.row_id), self.count, self.seed) == fold)

    def index(self, base: int, fold: int | None = None) -> int:
        """Index of the member of a fold; with ``fold=None``, of the member trained on all rows."""
        return base * (self.count + 1) + (self.count if fold is None else fold)

    def member(self, bases: Sequence[Estimator[Any]], base: int, fold: int | None = None) -> Member:
        """The member with its own index and seed."""
        number = self.index(base, fold)
        estimator = seeded(bases[base], self.seed, number)
        return Member(number, estimator) if fold is None else Member(number, estimator, self.without(fold))

    def without(self, fold: int) -> LeaveFoldOut:
        """All rows outside a fold."""
        return LeaveFoldOut(fold, self.count, self.seed)

    def members(self, bases: Sequence[Estimator[Any]]) -> list[Member]:
        """The members of all folds, ordered by base."""
        return [self.member(bases, base, fold) for base in range(len(bases)) for fold in range(self.count)]

    def checked(self, rows: Rows, label: str | None = None) -> Tally:
        """Count the rows of the folds, in one job.

        Args:
            rows: all rows.
            label: column of class labels; default: none.

        Raises:
            InvalidInput: there are fewer rows than folds, a fold is empty, or all labels have one class.
        """
        fold = fold_column(col(rows.row_id), self.count, self.seed).alias("fold")
        labels = F.lit(None) if label is None else col(label)
        ends = [end(labels.cast("double")) for end in (F.min, F.max)]
        found = {each[0]: each[1:] for each in rows.frame.groupBy(fold).agg(F.count("*"), *ends).collect()}
        total = sum(count for count, *_ in found.values())
        empty = [fold for fold in range(self.count) if fold not in found]
        if total < self.count:
            raise InvalidInput(
                f"there are {total} rows for numFolds={self.count}; expected at least one row for each fold."
            )
        if empty:
            raise InvalidInput(
                f"with numFolds={self.count}, the folds {empty} have none of the {total} rows; set fewer folds, "
                "or another seed."
            )
        lows, highs = ([each[end] for each in found.values() if each[end] is not None] for end in (1, 2))
        if lows and min(lows) == max(highs):
            raise InvalidInput(f"all labels in {label!r} are {min(lows):g}; expected at least two classes.")
        counts = tuple(found[fold][0] for fold in range(self.count))
        return Tally(counts, int(max(highs)) + 1 if highs else None)


@dataclass(frozen=True)
class Tally:
    """Row counts and classes of a dataset.

    Attributes:
        rows: number of rows in each fold.
        classes: one more than the largest label; None without class labels.
    """

    rows: tuple[int, ...]
    classes: int | None


def seeded(base: Estimator[Any], seed: int, index: int) -> Estimator[Any]:
    """A copy of a base with a member's seed; unchanged if the base has no seed."""
    return changed(base, seed=member_seed(seed, index))


def summary(*fits: Models) -> dict[str, Any]:
    """Report entries of fits: the indices of the members ``trained`` and ``restored``."""
    return {
        "trained": sorted(index for fit in fits for index in fit.trained),
        "restored": sorted(index for fit in fits for index in fit.restored),
    }


class FoldParams(FoldCountParams, EnsembleParams):
    """Shared behavior of the ensembles with folds."""

    _judged_by_rows = True
