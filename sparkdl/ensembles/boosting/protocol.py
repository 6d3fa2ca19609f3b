"""What one round of boosting finds of its member."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.ml import Model
from pyspark.sql import DataFrame

from sparkdl.ensembles.boosting.running_sums import Running


@dataclass(frozen=True)
class Verdict:
    """What becomes of a member.

    Attributes:
        weight: of the member in the ensemble; None where it is discarded.
        row: of the history.
        over: why it is the last member; None where others follow.
    """

    weight: float | None
    row: dict[str, Any]
    over: str | None = None


class Rounds(Protocol):
    """Rounds of one rule.

    Attributes:
        columns: the Params of members that name hidden columns of their rows.
        running: the rows and their sums.
    """

    columns: Mapping[str, str]
    running: Running

    def member_rows(self) -> DataFrame:
        """The rows for the next member."""

    def judge(self, index: int, model: Model) -> Verdict:
        """What becomes of a member; one that is not discarded is added to the sums.

        Args:
            index: of the member, from 0.
            model: the member.
        """
