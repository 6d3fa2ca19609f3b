"""Rows, and for each of them a sum over the members so far: all that one round of boosting hands to the next.

    S_i = start_i + sum_m a_m t_m(i)                 added in the order of the members

The term ``t_m(i)`` is a function of what member m predicts of row i. After each member the rows and their sums are
computed once and held by the executors (Spark's local checkpoint, in memory or on disk), so that a round costs no more
after many members than after few. With an executor its rows are lost: then the sums are computed anew from the rows as
they were given and all members so far, in the same order, and so to the same bits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from pyspark.ml import Model
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from sparkdl.spark.columns import named
from sparkdl.spark.jvm import release

SUM = "sparkdl sum"
TERM = "sparkdl term"

_LOST = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"  # what Spark says of held rows that are gone
_TIMES = 4  # that a step is taken, as often as Spark by default runs a task
_BREATH = 8  # members whose terms are computed in one job when all are computed anew
_log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class Term:
    """What a member adds to the sum of a row, before its weight.

    Attributes:
        prediction: the column that members write.
        of: from that column to the term, a double that is never null.
    """

    prediction: str
    of: Callable[[Column], Column]


class Running:
    """The rows with their sums. It is to be closed.

    Args:
        rows: as they were given; they are computed again when an executor is lost.
        start: the sums before any member.
        term: what members add.
    """

    def __init__(self, rows: DataFrame, start: Column, term: Term) -> None:
        self._given = rows.withColumn(SUM, start)
        self._term = term
        self._members: list[tuple[Model, float]] = []
        self._held = _hold(self._given)
        self._frame = self._held

    @property
    def frame(self) -> DataFrame:
        """The rows with their sums in ``SUM``."""
        return self._frame

    def look(self, model: Model) -> DataFrame:
        """The rows with their sums, and in ``TERM`` what a member that is not yet among them would add."""
        before, self._held = self._held, _hold(self._with_term(self._frame, model))
        release(before)
        self._frame = self._held.drop(TERM)
        return self._held

    def add(self, model: Model, weight: float) -> None:
        """Add the member that was looked at last."""
        self._frame = _summed(self._held, weight)
        self._members.append((model, weight))

    def steadily(self, step: Callable[[], T]) -> T:
        """Take a step on the rows, and take it again where rows were lost while it lasted.

        Raises:
            Exception: what the step raises while no row is lost, or every time.
        """
        for left in reversed(range(_TIMES)):
            try:
                return step()
            except Exception as error:
                if not left or self._whole():
                    raise
                _log.warning("rows that executors held are lost, and are computed anew: %s", error)
            self._recover()
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Let go of the rows."""
        release(self._held)

    def _with_term(self, frame: DataFrame, model: Model) -> DataFrame:
        term = self._term.of(named(self._term.prediction))
        return model.transform(frame).select(*map(named, frame.columns), term.alias(TERM))

    def _whole(self) -> bool:
        try:
            self._held.count()
        except Exception as error:
            return _LOST not in str(error)
        return True

    def _recover(self) -> None:
        """Compute the sums of all members so far; executors that are lost meanwhile are noticed by the next step."""
        held: DataFrame | None = None
        try:
            held = frame = _hold(self._given)
            for index, (model, weight) in enumerate(self._members, start=1):
                frame = _summed(self._with_term(frame, model), weight)
                if index % _BREATH == 0 or index == len(self._members):
                    before, held = held, _hold(frame)
                    release(before)
                    frame = held
        except BaseException as error:
            if held is not None:
                release(held)
            if _LOST not in str(error):
                raise
            _log.warning("more rows were lost while lost ones were computed anew: %s", error)
            return
        release(self._held)
        self._held = self._frame = held


def _summed(frame: DataFrame, weight: float) -> DataFrame:
    """The rows with the sums of one member more."""
    return frame.withColumn(SUM, named(SUM) + F.lit(weight) * named(TERM)).drop(TERM)


def _hold(frame: DataFrame) -> DataFrame:
    """The rows, computed, without how they were computed."""
    return frame.localCheckpoint()
