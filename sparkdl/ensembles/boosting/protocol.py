"""Protocol of boosting rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.ml import Model
from pyspark.sql import DataFrame

from sparkdl.ensembles.boosting.running_sums import RunningSums


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


class Rounds(Protocol):
    """Rounds of one boosting rule.

    Attributes:
        columns: hidden column names by the members' Params.
        running: the rows and their sums.
    """

    columns: Mapping[str, str]
    running: RunningSums

    def member_rows(self) -> DataFrame:
        """The rows for the next member."""

    def evaluate_member(self, index: int, model: Model) -> MemberResult:
        """Evaluate a member, and add it to the sums unless it is discarded."""
