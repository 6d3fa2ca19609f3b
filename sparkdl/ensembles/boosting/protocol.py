"""Protocol of boosting rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.ml import Model
from pyspark.sql import DataFrame

from sparkdl.ensembles.boosting.running_sums import Running


@dataclass(frozen=True)
class Verdict:
    """Result of evaluating a member.

    Attributes:
        weight: weight of the member in the ensemble; None if it is discarded.
        row: history row.
        over: stop reason; None if another member follows.
    """

    weight: float | None
    row: dict[str, Any]
    over: str | None = None


class Rounds(Protocol):
    """Rounds of one boosting rule.

    Attributes:
        columns: hidden column names by the members' Params.
        running: the rows and their sums.
    """

    columns: Mapping[str, str]
    running: Running

    def member_rows(self) -> DataFrame:
        """The rows for the next member."""

    def judge(self, index: int, model: Model) -> Verdict:
        """Evaluate a member, and add it to the sums unless it is discarded.

        Args:
            index: index of the member, from 0.
            model: the member.
        """
