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
from typing import Any, TypeVar

from pyspark.ml import Model
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from sparkdl.spark.columns import col
from sparkdl.spark.session import release

SUM = "sparkdl sum"
TERM = "sparkdl term"

_LOST = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"  # Spark's error class for lost checkpoint blocks
_TIMES = 4  # attempts of a step, like Spark's default for tasks
_MEMBERS_PER_JOB = 8  # members per job of a recovery
_log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class MemberResult:
    """Result of evaluating a member.

    Attributes:
        weight: weight of the member in the ensemble; None if it is discarded.
        row: history row.
        stop_reason: stop reason; None if another member follows.
    """

    weight: float | None
    row: dict[str, Any]
    stop_reason: str | None = None


class RunningSums:
    """The rows with their running sums, from ``start`` on; call ``close`` at the end.

    ``term`` is a double that is never null, an expression of the columns of a member's output.
    """

    frame: DataFrame
    """The rows with their sums in ``SUM``."""

    def __init__(self, rows: DataFrame, start: Column, term: Column) -> None:
        self._input = rows.withColumn(SUM, start)
        self._term = term
        self._members: list[tuple[Model, float]] = []
        self._stored = self.frame = _materialize(self._input)

    def predict(self, model: Model) -> DataFrame:
        """The rows with their sums, and the term of a new member in ``TERM``."""
        before, self._stored = self._stored, _materialize(self._with_term(self.frame, model))
        release(before)
        self.frame = self._stored.drop(TERM)
        return self._stored

    def add(self, model: Model, weight: float) -> None:
        """Add the member of the last ``predict``."""
        self.frame = _summed(self._stored, weight)
        self._members.append((model, weight))

    def retry_on_lost_blocks(self, step: Callable[[], T]) -> T:
        """Run a step on the rows; if executors lose rows meanwhile, recompute them and run it again.

        Raises:
            Exception: the step failed without lost rows, or in every attempt.
        """
        for _ in range(_TIMES - 1):
            try:
                return step()
            except Exception as error:
                if not self._lost_blocks():
                    raise
                _log.warning("executors lost rows; fit computes them again: %s", error)
            self._recover()
        return step()

    def close(self) -> None:
        """Release the rows."""
        release(self._stored)

    def _with_term(self, frame: DataFrame, model: Model) -> DataFrame:
        return model.transform(frame).select(*map(col, frame.columns), self._term.alias(TERM))

    def _lost_blocks(self) -> bool:
        try:
            self._stored.count()
        except Exception as error:
            return _LOST in str(error)
        return False

    def _recover(self) -> None:
        """Recompute the sums of all members; the next step notices executors lost meanwhile."""
        stored: DataFrame | None = None
        try:
            stored = frame = _materialize(self._input)
            for index, (model, weight) in enumerate(self._members, start=1):
                frame = _summed(self._with_term(frame, model), weight)
                if index % _MEMBERS_PER_JOB == 0 or index == len(self._members):
                    before, stored = stored, _materialize(frame)
                    release(before)
                    frame = stored
        except BaseException as error:
            if stored is not None:
                release(stored)
            if _LOST not in str(error):
                raise
            _log.warning("executors lost more rows while fit computed lost rows again: %s", error)
            return
        release(self._stored)
        self._stored = self.frame = stored


def _summed(frame: DataFrame, weight: float) -> DataFrame:
    return frame.withColumn(SUM, col(SUM) + F.lit(weight) * col(TERM)).drop(TERM)


def _materialize(frame: DataFrame) -> DataFrame:
    return frame.localCheckpoint()  # computes the rows and cuts their lineage
