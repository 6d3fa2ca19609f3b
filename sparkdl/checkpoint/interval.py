"""The checkpoint interval."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Annotated

from sparkdl.errors import InvalidInput
from sparkdl.io.fields import CheckedFields, Count, one_of

_FIRST = 60.0  # seconds to the first checkpoint of "auto", before a cost is measured
_MEAN_TIME = 4 * 3600.0  # assumed seconds between failures before the first one
_LEAST = 5.0  # minimum seconds between two checkpoints of "auto"


@dataclass(frozen=True)
class CheckpointInterval(CheckedFields):
    """The distance between two checkpoints: ``count`` of ``"steps"``, ``"epochs"`` or ``"seconds"``, or ``"auto"``.

    ``"auto"`` is Young's interval ``sqrt(2 C M)`` in seconds. C is the measured cost of a checkpoint, M the mean time
    between failures, 4 h divided by the number of attempts (J. W. Young, A first order approximation to the optimum
    checkpoint interval, CACM 17(9), 1974).
    """

    count: Count
    unit: Annotated[str, one_of(("steps", "epochs", "seconds", "auto"))]

    @staticmethod
    def of(value: int | str) -> CheckpointInterval:
        """Parse ``500`` (steps), ``"2 epochs"``, ``"30 seconds"`` or ``"auto"``; raises InvalidInput for other values.

        For ``"never"``, the other value of ``checkpointInterval``, the caller creates no checkpointer.
        """
        if value == "auto":
            return CheckpointInterval(1, "auto")
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            return CheckpointInterval(value, "steps")
        match = re.fullmatch(r"([1-9]\d*) (epoch|second)s?", value) if isinstance(value, str) else None
        if match is None:
            raise InvalidInput(
                f"checkpointInterval is {value!r}; expected a number of steps, such as 500, or '2 epochs', '30 "
                "seconds', 'auto' or 'never'."
            )
        return CheckpointInterval(int(match[1]), f"{match[2]}s")

    def seconds(self, cost: float | None, attempt: int) -> float:
        """Seconds between two checkpoints; infinite for steps and epochs.

        ``cost`` is of the last checkpoint, None before the first; ``attempt`` counts the failed attempts.
        """
        if self.unit == "seconds":
            return float(self.count)
        if self.unit != "auto":
            return math.inf
        return _FIRST if cost is None else max(math.sqrt(2 * cost * _MEAN_TIME / (attempt + 1)), _LEAST)
