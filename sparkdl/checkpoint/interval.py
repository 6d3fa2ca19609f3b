"""When it is time for a checkpoint."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from sparkdl.errors import InvalidInput

_FIRST = 60.0  # seconds to the first checkpoint of "auto", before it is known what one costs
_MEAN_TIME = 4 * 3600.0  # seconds between failures as long as there was none
_LEAST = 5.0  # seconds between two checkpoints of "auto"


@dataclass(frozen=True)
class Every:
    """The distance between two checkpoints.

    Attributes:
        count: how many.
        unit: ``"steps"``, ``"epochs"``, ``"seconds"``; or ``"auto"``, which takes Young's interval
            ``sqrt(2 C M)`` seconds from the measured cost C of a checkpoint and the observed mean time M between
            failures (J. W. Young, A first order approximation to the optimum checkpoint interval, CACM 17(9), 1974).
    """

    count: int
    unit: str

    @staticmethod
    def of(given: int | str) -> Every:
        """``500`` (steps), ``"2 epochs"``, ``"30 seconds"`` or ``"auto"``.

        ``"never"``, which ``checkpointEvery`` may be besides, is no distance: who is given it makes no keeper.

        Raises:
            InvalidInput: it is something else.
        """
        if given == "auto":
            return Every(1, "auto")
        if isinstance(given, int) and not isinstance(given, bool) and given >= 1:
            return Every(given, "steps")
        match = re.fullmatch(r"([1-9]\d*) (epoch|second)s?", given) if isinstance(given, str) else None
        if match is None:
            raise InvalidInput(
                f"checkpointEvery is {given!r}; expected a number of steps, such as 500, or '2 epochs', '30 seconds', "
                "'auto' or 'never'."
            )
        return Every(int(match[1]), f"{match[2]}s")

    def seconds(self, cost: float | None, attempt: int) -> float:
        """Seconds from one checkpoint to the next; infinite where it goes by steps or epochs.

        Args:
            cost: seconds that the last one took; None before there was one.
            attempt: how many attempts have failed before this one.
        """
        if self.unit == "seconds":
            return float(self.count)
        if self.unit != "auto":
            return math.inf
        return _FIRST if cost is None else young(cost, _MEAN_TIME / (attempt + 1))


def young(cost: float, mean_time: float) -> float:
    """Young's interval in seconds, from the seconds a checkpoint costs and the mean seconds between failures."""
    return max(math.sqrt(2 * cost * mean_time), _LEAST)
