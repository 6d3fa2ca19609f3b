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
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from sparkdl.ensembles.base_learner import changed
from sparkdl.ensembles.members.member import Member
from sparkdl.ensembles.resampling.bootstrap import AllRows, LeaveFoldOut, fold_column, member_seed
from sparkdl.errors import InvalidInput
from sparkdl.io.fields import CheckedFields, Seed, Several
from sparkdl.spark.columns import ROW_ID, col


@dataclass(frozen=True)
class Folds(CheckedFields):
    """Assignment of rows to folds, and the members of each fold.

    Attributes:
        count: number of folds, at least 2.
        seed: seed of the folds and the members.
    """

    count: Several
    seed: Seed

    def column(self) -> Column:
        """Fold of each row."""
        return fold_column(col(ROW_ID), self.count, self.seed)

    def held_out(self, rows: DataFrame, fold: int) -> DataFrame:
        """The rows of a fold."""
        return rows.where(self.column() == fold)

    def index(self, base: int, fold: int | None = None) -> int:
        """Index of the member of a fold; with ``fold=None``, of the member trained on all rows."""
        return base * (self.count + 1) + (self.count if fold is None else fold)

    def member(self, bases: Sequence[Estimator[Any]], base: int, fold: int | None = None) -> Member:
        """The member with its own index and seed."""
        index = self.index(base, fold)
        estimator = self.seeded(bases[base], index)
        return Member(index, estimator, AllRows() if fold is None else LeaveFoldOut(fold, self.count, self.seed))

    def seeded(self, base: Estimator[Any], index: int) -> Estimator[Any]:
        """A copy of a base with a member's seed; unchanged if the base has no seed."""
        return changed(base, seed=member_seed(self.seed, index))

    def members(self, bases: Sequence[Estimator[Any]], *, final: bool = False) -> list[Member]:
        """The members of all folds and, if ``final``, those trained on all rows, ordered by index."""
        folds: list[int | None] = [*range(self.count), None] if final else [*range(self.count)]
        return [self.member(bases, base, fold) for base in range(len(bases)) for fold in folds]

    def count_rows(self, rows: DataFrame, label: str | None = None) -> tuple[int, int | None]:
        """Number of rows, and one more than the largest class in the column ``label``, in one job.

        Raises:
            InvalidInput: there are fewer rows than folds, a fold is empty, or all labels have one class.
        """
        labels = F.lit(None) if label is None else col(label)
        ends = [end(labels.cast("double")) for end in (F.min, F.max)]
        counted = rows.groupBy(self.column()).agg(F.count("*"), *ends).collect()
        total = sum(row[1] for row in counted)
        if total < self.count:
            raise InvalidInput(
                f"there are {total} rows for numFolds={self.count}; expected at least one row for each fold."
            )
        if empty := sorted({*range(self.count)} - {row[0] for row in counted}):
            raise InvalidInput(
                f"with numFolds={self.count}, the folds {empty} have none of the {total} rows; set fewer folds, "
                "or another seed."
            )
        lows, highs = ([row[end] for row in counted if row[end] is not None] for end in (2, 3))
        if lows and min(lows) == max(highs):
            raise InvalidInput(f"all labels in {label!r} are {min(lows):g}; expected at least two classes.")
        return total, int(max(highs)) + 1 if highs else None
