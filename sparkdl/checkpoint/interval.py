"""The checkpoint interval."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from sparkdl.errors import InvalidInput

_FIRST = 60.0  # seconds to the first checkpoint of "auto", before a cost is measured
_MEAN_TIME = 4 * 3600.0  # assumed seconds between failures before the first one
_LEAST = 5.0  # minimum seconds between two checkpoints of "auto"


@dataclass(frozen=True)
class CheckpointInterval:
    """The distance between two checkpoints.

    Attributes:
        count: number of units.
        unit: ``"steps"``, ``"epochs"``, ``"seconds"`` or ``"auto"``: Young's interval ``sqrt(2 C M)`` in seconds. C is
            the measured cost of a checkpoint, M the mean time between failures, 4 h divided by the number of attempts
            (J. W. Young, A first order approximation to the optimum checkpoint interval, CACM 17(9), 1974).
    """

    count: int
    unit: str

    @staticmethod
    def of(given: int | str) -> CheckpointInterval:
        """Parse ``500`` (steps), ``"2 epochs"``, ``"30 seconds"`` or ``"auto"``.

        The caller handles ``"never"``, the other value of ``checkpointInterval``: it creates no checkpointer.

        Raises:
            InvalidInput: the value is none of these.
        """
        if given == "auto":
            return CheckpointInterval(1, "auto")
        if isinstance(given, int) and not isinstance(given, bool) and given >= 1:
            return CheckpointInterval(given, "steps")
        match = re.fullmatch(r"([1-9]\d*) (epoch|second)s?", given) if isinstance(given, str) else None
        if match is None:
            raise InvalidInput(
                f"checkpointInterval is {given!r}; expected a number of steps, such as 500, or '2 epochs', '30 "
                "seconds', 'auto' or 'never'."
            )
        return CheckpointInterval(int(match[1]), f"{match[2]}s")

    def seconds(self, cost: float | None, attempt: int) -> float:
        """Seconds between two checkpoints; infinite for steps and epochs.

        Args:
            cost: seconds that the last checkpoint took; None before the first.
            attempt: number of failed attempts.
        """
        if self.unit == "seconds":
            return float(self.count)
        if self.unit != "auto":
            return math.inf
        return _FIRST if cost is None else young_interval(cost, _MEAN_TIME / (attempt + 1))


def young_interval(cost: float, mean_time: float) -> float:
    """Young's interval in seconds, at least 5, from the seconds per checkpoint and between failures."""
    return max(math.sqrt(2 * cost * mean_time), _LEAST)
