"""Running sums per row: the only state that boosting passes between rounds.

    S_i = start_i + sum_m a_m t_m(i)                 added in the order of the members

The term ``t_m(i)`` is a function of member m's prediction for row i. After each member, Spark computes the rows and
their sums once and keeps them on the executors (local checkpoint, in memory or on disk), so the cost of a round does
not grow with the number of members. If an executor is lost, the sums are recomputed from the input rows and all members
in the same order; they are bit-identical.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from pyspark.ml import Model
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from sparkdl.spark.columns import col
from sparkdl.spark.jvm import release

SUM = "sparkdl sum"
TERM = "sparkdl term"

_LOST = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"  # Spark's error class for lost checkpoint blocks
_TIMES = 4  # attempts of a step, like Spark's default for tasks
_MEMBERS_PER_JOB = 8  # members per job of a recovery
_log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class Contribution:
    """Contribution of a member to a row's sum, before its weight.

    Attributes:
        prediction: prediction column of the members.
        of: maps that column to the term, a double that is never null.
    """

    prediction: str
    of: Callable[[Column], Column]


class RunningSums:
    """The rows with their running sums; call ``close`` at the end.

    Args:
        rows: input rows; Spark recomputes them if an executor is lost.
        start: sums before the first member.
        term: contribution of each member.
    """

    frame: DataFrame
    """The rows with their sums in ``SUM``."""

    def __init__(self, rows: DataFrame, start: Column, term: Contribution) -> None:
        self._given = rows.withColumn(SUM, start)
        self._term = term
        self._members: list[tuple[Model, float]] = []
        self._held = self.frame = _materialize(self._given)

    def look(self, model: Model) -> DataFrame:
        """The rows with their sums, and the contribution of a new member in ``TERM``."""
        before, self._held = self._held, _materialize(self._with_term(self.frame, model))
        release(before)
        self.frame = self._held.drop(TERM)
        return self._held

    def add(self, model: Model, weight: float) -> None:
        """Add the member of the last ``look``."""
        self.frame = _summed(self._held, weight)
        self._members.append((model, weight))

    def retry_on_lost_blocks(self, step: Callable[[], T]) -> T:
        """Run a step on the rows; if executors lose rows meanwhile, recompute them and run it again.

        Raises:
            Exception: the step failed without lost rows, or in every attempt.
        """
        for left in reversed(range(_TIMES)):
            try:
                return step()
            except Exception as error:
                if not left or self._whole():
                    raise
                _log.warning("executors lost rows; fit computes them again: %s", error)
            self._recover()
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Release the rows."""
        release(self._held)

    def _with_term(self, frame: DataFrame, model: Model) -> DataFrame:
        term = self._term.of(col(self._term.prediction))
        return model.transform(frame).select(*map(col, frame.columns), term.alias(TERM))

    def _whole(self) -> bool:
        try:
            self._held.count()
        except Exception as error:
            return _LOST not in str(error)
        return True

    def _recover(self) -> None:
        """Recompute the sums of all members; the next step notices executors lost meanwhile."""
        held: DataFrame | None = None
        try:
            held = frame = _materialize(self._given)
            for index, (model, weight) in enumerate(self._members, start=1):
                frame = _summed(self._with_term(frame, model), weight)
                if index % _MEMBERS_PER_JOB == 0 or index == len(self._members):
                    before, held = held, _materialize(frame)
                    release(before)
                    frame = held
        except BaseException as error:
            if held is not None:
                release(held)
            if _LOST not in str(error):
                raise
            _log.warning("executors lost more rows while fit computed lost rows again: %s", error)
            return
        release(self._held)
        self._held = self.frame = held


def _summed(frame: DataFrame, weight: float) -> DataFrame:
    return frame.withColumn(SUM, col(SUM) + F.lit(weight) * col(TERM)).drop(TERM)


def _materialize(frame: DataFrame) -> DataFrame:
    """Compute the rows and cut their lineage."""
    return frame.localCheckpoint()
