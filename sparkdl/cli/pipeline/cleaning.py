"""The rows of a run: ``CleaningStage``, ``SplitStage`` into training and validation, ``ScoringStage`` of new rows."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

from sparkdl.cli.data import Data
from sparkdl.cli.exit_codes import BadInput
from sparkdl.errors import InvalidInput
from sparkdl.io.fields import CheckedFields, Count, Fraction

_BUCKETS = 1 << 20


@dataclass(frozen=True)
class CleaningStage(CheckedFields):
    """Cleans raw rows by expressions of Spark SQL.

    Args:
        columns: new columns, or new values of old ones, by name, each from those before it: {age: "cast(age as int)"}.
        label: the expression of the label; rows to score may lack its columns.
        name: of the label's column.
        where: the condition of the rows to keep, for example "age is not null".
        drop: columns to remove last.
    """

    columns: dict[str, str] = field(default_factory=dict)
    label: str | None = None
    name: str = "label"
    where: str | None = None
    drop: list[str] = field(default_factory=list)

    def __call__(self, rows: DataFrame, *, labelled: bool) -> DataFrame:
        """Clean rows, and add the label's column if ``labelled``.

        Raises:
            BadInput: a column of an expression, or of the label, is missing.
        """
        label = {self.name: self.label} if labelled and self.label is not None else {}
        try:
            for name, expression in {**self.columns, **label}.items():
                rows = rows.withColumn(name, sql.expr(expression))
            rows = (rows if self.where is None else rows.where(self.where)).drop(*self.drop)
        except AnalysisException as error:
            reason = str(error).partition("\n")[0]
            raise BadInput(f"rows with the columns {', '.join(rows.columns)} cannot be cleaned: {reason}") from error
        if labelled and self.name not in rows.columns:
            raise BadInput(f"there is no label column {self.name!r}; the rows have {', '.join(rows.columns)}.")
        return rows


@dataclass(frozen=True)
class SplitStage(CheckedFields):
    """Selects validation rows: those of the last days by a date column, or a share by a hash of values.

    Args:
        date: the column of dates. Rows of the last `days` days up to the run's date are validation rows, rows before
            them training rows; later rows and rows without a date are left out.
        days: with date.
        hash: columns whose values decide; if empty, all. Equal rows always get the same side.
        share: of the rows, for validation by hash.

    Raises:
        InvalidInput: share or days is out of range, or both date and hash are given.
    """

    date: str | None = None
    days: Count = 7
    hash: list[str] = field(default_factory=list)
    share: Fraction = 0.2

    def _check(self) -> None:
        if self.date is not None and self.hash:
            raise InvalidInput("split has date and hash; expected one of them.")

    def __call__(self, rows: DataFrame, day: datetime.date | None) -> Column:
        """Whether a row is a validation row; null for a row that is left out.

        Raises:
            BadInput: a column is missing.
            InvalidInput: the rows are split by date, and the run has none.
        """
        named = [self.date] if self.date is not None else self.hash or rows.columns
        missing = [name for name in named if name not in rows.columns]
        if missing:
            raise BadInput(f"split needs the columns {', '.join(missing)}; the rows have {', '.join(rows.columns)}.")
        columns = [sql.col(f"`{name}`") for name in named]
        if self.date is None:
            return sql.pmod(sql.xxhash64(*columns), sql.lit(_BUCKETS)) < sql.lit(round(self.share * _BUCKETS))
        if day is None:
            raise InvalidInput(f"split.date is {self.date!r}, and the run has no date; set date, or split by hash.")
        when = sql.to_date(columns[0])
        before = sql.when(when < sql.lit(day - datetime.timedelta(days=self.days - 1)), False)
        return before.when(when <= sql.lit(day), True)


@dataclass(frozen=True)
class ScoringStage(CheckedFields):
    """Rows that the model in use scores after the gate.

    Args:
        data: the rows, which need no label; {date} and {run_id} are replaced.
        columns: the columns to write; if empty, those of the rows and the predictions.
    """

    data: Data
    columns: list[str] = field(default_factory=list)
